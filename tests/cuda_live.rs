//! A loader that looks at itself, with a GPU: copies that are slow are what the run waits for.

mod cuda_common;

use cuda_common::{Data, child};
use gpufeed::cudarc::driver::result;
use gpufeed::{Backend, Bottleneck, Stage, Wait};

/// A training step, as the host sees one: something that a stream does.
unsafe extern "C" fn slow_step(_: *mut std::ffi::c_void) {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

#[test]
fn copies_that_are_slow_are_what_the_run_waits_for() {
    // Every copy takes up to 20 ms, and reads are of a file in the page cache.
    child!(&[("CUDA_EMULATOR_DEVICES", "1"), ("CUDA_EMULATOR_DELAY", "random:1:20000")], || {
        for backend in [Backend::Uring, Backend::Pread] {
            if backend.probe().is_err() {
                eprintln!("left out: {backend}");
                continue;
            }
            let data = Data::new(4000, 400);
            let mut loader = data.loader().backend(backend).queue_depth(2).stats(true).build().unwrap();
            for batch in loader.epoch(0).unwrap() {
                let batch = batch.unwrap();
                // What a training step would wait for.
                let stream = gpufeed::cudarc::driver::CudaContext::new(0).unwrap().new_stream().unwrap();
                batch.wait_on(&stream).unwrap();
            }
            let stats = loader.stats().unwrap();
            assert_eq!(stats.bottleneck(), Bottleneck::Copy, "{stats:?}");
            assert!(stats.waited_for(Wait::Copy) > stats.waited_for(Wait::Storage), "{stats:?}");
            assert!(
                stats.stage(Stage::Copy).count > 0
                    && stats.stage(Stage::Copy).max > stats.stage(Stage::Read).p50
            );
        }
    });
}

#[test]
fn streams_of_the_caller_that_are_slow_are_what_the_run_waits_for() {
    // The host never waits: it queues a slow step on its stream and drops the batch.
    child!(&[("CUDA_EMULATOR_DEVICES", "1"), ("CUDA_EMULATOR_DELAY", "none")], || {
        let data = Data::new(4000, 400);
        let builder = data.loader().backend(Backend::Pread).queue_depth(2).prefetch(1).stats(true);
        let mut loader = builder.build().unwrap();
        let stream = gpufeed::cudarc::driver::CudaContext::new(0).unwrap().new_stream().unwrap();
        for batch in loader.epoch(0).unwrap() {
            let batch = batch.unwrap();
            batch.wait_on(&stream).unwrap();
            // SAFETY: the function only sleeps, and does not look at its argument.
            unsafe {
                result::stream::launch_host_function(stream.cu_stream(), slow_step, std::ptr::null_mut())
            }
            .unwrap();
        }
        stream.synchronize().unwrap();
        let stats = loader.stats().unwrap();
        assert_eq!(stats.bottleneck(), Bottleneck::Consumer, "{stats:?}");
    });
}
