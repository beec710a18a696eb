//! Slots in device memory that hold nothing but their batch, when that is asked for.

mod cuda_common;

use cuda_common::{Data, HELD, backends, calls, child};
use gpufeed::cudarc::driver::{CudaContext, result};
use gpufeed::{Device, LastBatch, Shuffle};

/// `len` bytes of a device's memory, once a stream has seen the batch there.
fn device_bytes(ordinal: u32, batch: &gpufeed::Batch, from: u64, len: usize) -> Vec<u8> {
    let context = CudaContext::new(ordinal as usize).unwrap();
    let stream = context.new_stream().unwrap();
    batch.wait_on(&stream).unwrap();
    stream.synchronize().unwrap();
    let mut bytes = vec![0xAA; len];
    // SAFETY: the range lies in the slot that is lent to the batch, and whose bytes are all there.
    unsafe { result::memcpy_dtoh_sync(&mut bytes, from) }.unwrap();
    bytes
}

#[test]
fn a_short_batch_leaves_nothing_of_an_earlier_one_on_any_device() {
    for delay in ["none", "random:3:500", HELD] {
        child!(&[("CUDA_EMULATOR_DEVICES", "2"), ("CUDA_EMULATOR_DELAY", delay)], || {
            let data = Data::new(900, 100);
            for backend in backends() {
                for shuffle in [Shuffle::None, Shuffle::Blocks { block: 6, window: 36 }] {
                    for clear in [true, false] {
                        let builder =
                            data.loader().backend(backend).devices(&[Device::Cuda(0), Device::Cuda(1)]);
                        let builder = builder.batch_size(12).prefetch(1).shuffle(shuffle);
                        let mut loader =
                            builder.last_batch(LastBatch::Short).clear_slots(clear).build().unwrap();
                        let mut last = None;
                        for batch in loader.epoch(0).unwrap() {
                            drop(last.take());
                            last = batch.map(Some).unwrap();
                        }
                        // 100 samples in batches of 12: 4 are left, and room for 8 more.
                        let last = last.unwrap();
                        assert_eq!(last.len(), 4);
                        data.assert_batch(&last);
                        for device in 0..2 {
                            for column in last.columns() {
                                let column = column.on(Device::Cuda(device)).unwrap();
                                let size = column.size_bytes();
                                let end = column.device_ptr().unwrap() + size as u64;
                                let dirty = device_bytes(device, &last, end, 2 * size);
                                let dirty = dirty.iter().any(|byte| *byte != 0);
                                assert!(!(clear && dirty), "{backend}, {shuffle}, device {device}");
                                assert!(clear || dirty, "an earlier batch was there");
                            }
                        }
                    }
                }
            }
        });
    }
}

#[test]
fn device_memory_is_zeroed_before_it_is_freed() {
    child!(&[("CUDA_EMULATOR_DEVICES", "2")], || {
        let data = Data::new(900, 100);
        for backend in backends() {
            for clear in [false, true] {
                let builder = data.loader().backend(backend).devices(&[Device::Cuda(0), Device::Cuda(1)]);
                let mut loader = builder.batch_size(10).clear_slots(clear).build().unwrap();
                loader.epoch(0).unwrap().take(2).for_each(|batch| drop(batch.unwrap()));
                let before = calls(c"cuMemsetD8_v2");
                drop(loader);
                // The ring on each device.
                assert_eq!(calls(c"cuMemsetD8_v2") - before, if clear { 2 } else { 0 });
            }
        }
    });
}
