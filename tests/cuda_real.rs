//! The same on a real GPU, where there is one. Elsewhere each test prints why it was skipped, and passes.

mod cuda_common;

use std::sync::Arc;

use cuda_common::{Consumer, Data, Use, current};
use gpufeed::cudarc::driver::CudaContext;
use gpufeed::{Device, ErrorKind, Shuffle};

/// Whether device 0 can be used. Where a GPU was promised (`GPUFEED_GPU=1`), it must be so.
fn gpu() -> bool {
    let data = Data::new(1, 16);
    match data.loader().build() {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped: {error}");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(std::env::var_os("GPUFEED_GPU").is_none(), "a GPU was promised");
            false
        }
    }
}

#[test]
fn gpu_a_batch_outlives_its_loader_and_the_threads_context_is_left_alone() {
    if !gpu() {
        return;
    }
    let before = current();
    let data = Data::new(1000, 64);
    let mut loader = data.loader().build().unwrap();
    let batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
    drop(loader);
    assert_eq!(current(), before);
    data.assert_batch(&batch);
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    batch.wait_on(&stream).unwrap();
    let numbers = batch.column("number").unwrap().device_slice::<u64>(&stream).unwrap();
    assert_eq!(stream.clone_dtoh(&*numbers).unwrap(), batch.samples());
    drop(numbers);
    batch.release_after(&stream).unwrap();
}

#[test]
fn gpu_several_gpus_each_get_every_batch() {
    if !gpu() {
        return;
    }
    let count = CudaContext::device_count().unwrap() as u32;
    if count < 2 {
        eprintln!("skipped: there is one GPU only");
        return;
    }
    let devices: Vec<_> = (0..count).map(Device::Cuda).collect();
    let data = Data::new(5000, 200);
    let mut consumers: Vec<_> =
        (0..count).map(|ordinal| Consumer::new(ordinal, data.sample_bytes() * 200)).collect();
    let mut loader = data.loader().devices(&devices).shuffle(Shuffle::Full).prefetch(2).build().unwrap();
    for epoch in 0..3 {
        for batch in loader.epoch(epoch).unwrap() {
            let batch = batch.unwrap();
            for consumer in &mut consumers {
                let stream = Arc::clone(&consumer.streams[0]);
                batch.wait_on(&stream).unwrap();
                for column in batch.columns() {
                    consumer.copy(&batch, &column, &stream, true, Use::DropAtOnce);
                }
            }
        }
        consumers.iter_mut().for_each(|consumer| consumer.check(&data));
    }
}
