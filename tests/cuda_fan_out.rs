//! Several emulated GPUs in one process: one loader that delivers each batch to all of them, and one loader for each.

mod cuda_common;

use std::sync::Arc;

use cuda_common::{Consumer, Data, HELD, Use, backends, child, stats};
use gpufeed::cudarc::driver::CudaContext;
use gpufeed::{Device, ErrorKind, Loader, Shuffle};

fn devices(count: u32) -> Vec<Device> {
    (0..count).map(Device::Cuda).collect()
}

/// Epochs whose batches each device uses on streams of its own, in its own way, before the batch is dropped.
fn deliver(data: &Data, loader: &mut Loader, consumers: &mut [Consumer], epochs: u64) {
    for epoch in 0..epochs {
        for batch in loader.epoch(epoch).unwrap() {
            let batch = batch.unwrap();
            for (i, consumer) in consumers.iter_mut().enumerate() {
                // Each device waits on another of its streams, the default one among them.
                let stream = match (batch.index() as usize + i) % 4 {
                    3 => consumer.context.default_stream(),
                    n => Arc::clone(&consumer.streams[n]),
                };
                batch.wait_on(&stream).unwrap();
                for (n, column) in batch.columns().enumerate() {
                    consumer.copy(&batch, &column, &stream, (n + i) % 2 == 0, Use::DropAtOnce);
                }
            }
        }
        consumers.iter_mut().for_each(|consumer| consumer.check(data));
    }
}

#[test]
fn each_device_gets_every_batch_at_any_delay_with_and_without_peer_access() {
    for peer in ["on", "off"] {
        for delay in ["none", "random:11:500", "random:12:3000", "adversarial:5", HELD] {
            let environment = [
                ("CUDA_EMULATOR_DEVICES", "4"),
                ("CUDA_EMULATOR_PEER_ACCESS", peer),
                ("CUDA_EMULATOR_DELAY", delay),
            ];
            child!(&environment, || {
                let data = Data::new(900, 100);
                let mut consumers: Vec<_> =
                    (0..4).map(|ordinal| Consumer::new(ordinal, data.sample_bytes() * 100)).collect();
                for backend in backends() {
                    for (count, prefetch) in [(2, 1), (4, 2)] {
                        let builder = data.loader().backend(backend).devices(&devices(count));
                        let mut loader =
                            builder.batch_size(12).prefetch(prefetch).shuffle(Shuffle::Full).build().unwrap();
                        deliver(&data, &mut loader, &mut consumers[..count as usize], 2);
                    }
                }
            });
        }
    }
}

#[test]
fn a_device_that_nobody_uses_is_refilled_no_earlier_than_it_is_filled() {
    // The last device's copies are all held back while only the first is used.
    child!(&[("CUDA_EMULATOR_DEVICES", "2"), ("CUDA_EMULATOR_DELAY", HELD)], || {
        let data = Data::new(900, 64);
        for backend in backends() {
            let mut loader = data.loader().backend(backend).devices(&devices(2)).prefetch(1).build().unwrap();
            let mut kept = Vec::new();
            let mut consumer = Consumer::new(0, data.sample_bytes() * 64);
            for batch in loader.epoch(0).unwrap() {
                consumer.take(batch.unwrap(), Use::DropAtOnce);
            }
            consumer.check(&data);
            for batch in loader.epoch(1).unwrap().take(2) {
                kept.push(batch.unwrap());
            }
            // The blocking way finds every device's bytes there.
            kept.iter().for_each(|batch| data.assert_batch(batch));
        }
    });
}

#[test]
fn the_default_streams_of_all_devices_hold_a_slot_back() {
    // They have the same handle on every device, and are still as many streams.
    child!(&[("CUDA_EMULATOR_DEVICES", "2"), ("CUDA_EMULATOR_DELAY", HELD)], || {
        let data = Data::new(900, 64);
        let mut consumers: Vec<_> =
            (0..2).map(|ordinal| Consumer::new(ordinal, data.sample_bytes() * 64)).collect();
        for backend in backends() {
            let builder = data.loader().backend(backend).devices(&devices(2)).batch_size(4);
            let mut loader = builder.prefetch(1).build().unwrap();
            for batch in loader.epoch(0).unwrap() {
                let batch = batch.unwrap();
                for consumer in &mut consumers {
                    let stream = consumer.context.default_stream();
                    batch.wait_on(&stream).unwrap();
                    for column in batch.columns() {
                        consumer.copy(&batch, &column, &stream, true, Use::Default);
                    }
                }
            }
            consumers.iter_mut().for_each(|consumer| consumer.check(&data));
        }
    });
}

#[test]
fn a_fanned_out_batch_is_read_once_and_the_memory_is_told_over_all_devices() {
    child!(&[("CUDA_EMULATOR_DEVICES", "4"), ("CUDA_EMULATOR_PEER_ACCESS", "on")], || {
        let data = Data::new(1000, 64);
        let all = data.sample_bytes() as u64 * 64;
        for backend in backends() {
            let before = stats();
            let mut loader = data.loader().backend(backend).devices(&devices(4)).build().unwrap();
            let built = stats();
            assert_eq!(built.device_bytes - before.device_bytes, loader.memory().device_bytes);
            for batch in loader.epoch(0).unwrap() {
                let batch = batch.unwrap();
                assert_eq!(batch.devices(), devices(4));
                let error = batch.column("data").unwrap().on(Device::Cuda(4)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            }
            let report = loader.report();
            assert_eq!(report.bytes_by_way.total(), all);
            assert!(report.device_reason.contains("cuda:3 gets batches from cuda:0 by peer access"));
            drop(loader);
            let after = stats();
            assert_eq!(after.bytes_host_to_device - before.bytes_host_to_device, all);
            assert_eq!(after.bytes_device_to_peer - before.bytes_device_to_peer, 3 * all);
        }
    });
}

#[test]
fn without_peer_access_the_report_says_so() {
    child!(&[("CUDA_EMULATOR_DEVICES", "2")], || {
        let data = Data::new(10, 64);
        let mut loader = data.loader().devices(&[Device::Cuda(1), Device::Cuda(0)]).build().unwrap();
        data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
        let reason = loader.report().device_reason;
        assert!(reason.contains("cuda:0 gets batches from cuda:1 by copies through the host"), "{reason}");
    });
}

#[test]
fn the_order_of_devices_is_the_callers() {
    child!(&[("CUDA_EMULATOR_DEVICES", "3")], || {
        let data = Data::new(10, 64);
        let wanted = [Device::Cuda(2), Device::Cuda(0)];
        let mut loader = data.loader().devices(&wanted).build().unwrap();
        assert_eq!(loader.report().devices, wanted);
        data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
        let third = CudaContext::new(1).unwrap().new_stream().unwrap();
        let batch = loader.epoch(1).unwrap().next().unwrap().unwrap();
        let error = batch.wait_on(&third).unwrap_err();
        assert!(error.to_string().contains("the stream belongs to device cuda:1"), "{error}");
        for bad in [&[Device::Cuda(0), Device::Cuda(0)][..], &[Device::Host, Device::Cuda(0)], &[]] {
            let error = data.loader().devices(bad).build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad:?}");
        }
    });
}

#[test]
fn a_loader_for_each_device_runs_on_a_thread_of_its_own() {
    for delay in ["random:13:500", HELD] {
        child!(&[("CUDA_EMULATOR_DEVICES", "4"), ("CUDA_EMULATOR_DELAY", delay)], || {
            let data = Data::new(700, 96);
            for backend in backends() {
                std::thread::scope(|scope| {
                    for ordinal in 0..4 {
                        let data = &data;
                        scope.spawn(move || {
                            let builder = data.loader().device(Device::Cuda(ordinal)).backend(backend);
                            let builder = builder.batch_size(8).prefetch(1 + ordinal).queue_depth(4);
                            let mut loader = builder.shuffle(Shuffle::Full).build().unwrap();
                            let mut consumer = Consumer::new(ordinal, data.sample_bytes() * 96);
                            for epoch in 0..2 {
                                for batch in loader.epoch(epoch).unwrap() {
                                    let batch = batch.unwrap();
                                    let how = Use::ALL[(batch.index() as usize + ordinal as usize) % 7];
                                    consumer.take(batch, how);
                                }
                                consumer.check(data);
                            }
                        });
                    }
                });
            }
        });
    }
}
