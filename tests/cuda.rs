//! What a batch on an emulated GPU hands to its user, and what gpufeed leaves alone: other devices, other contexts, the
//! thread's own context.

mod cuda_common;

use std::sync::Arc;
use std::time::Duration;

use cuda_common::{Consumer, Data, HELD, Use, backends, calls, child, current, stats};
use gpufeed::cudarc::driver::{CudaContext, CudaStream, result, sys};
use gpufeed::{Backend, Batch, Device, ErrorKind, Loader, Shuffle};

fn first(loader: &mut Loader) -> Batch {
    loader.epoch(0).unwrap().next().unwrap().unwrap()
}

#[test]
fn a_batch_on_a_gpu_has_addresses_and_no_bytes_for_the_host() {
    child!(&[], || {
        let data = Data::new(513, 40);
        let mut loader = data.loader().build().unwrap();
        let batch = first(&mut loader);
        assert_eq!(batch.devices(), [Device::Cuda(0)]);
        let (column, number) = (batch.column("data").unwrap(), batch.column("number").unwrap());
        assert!(column.device_ptr().unwrap() > 0 && number.device_ptr().unwrap().is_multiple_of(8));
        for error in
            [column.bytes().unwrap_err(), column.sample(0).unwrap_err(), column.elements::<u8>().unwrap_err()]
        {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("\"data\" is in the memory of a GPU"), "{error}");
        }
        let error = column.on(Device::Cuda(1)).unwrap_err();
        assert!(error.to_string().contains("not on device cuda:1"), "{error}");
        assert_eq!(column.on(Device::Host).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let mut bytes = vec![1; 3];
        column.copy_to_host(&mut bytes).unwrap();
        assert_eq!(bytes, data.naive("data", batch.samples()));
        number.copy_to_host(&mut bytes).unwrap();
        assert_eq!(bytes, data.naive("number", batch.samples()));
    });
}

#[test]
fn copy_to_host_waits_for_the_bytes() {
    child!(&[("CUDA_EMULATOR_DELAY", HELD)], || {
        let data = Data::new(4096, 64);
        for backend in backends() {
            let mut loader = data.loader().backend(backend).shuffle(Shuffle::Full).seed(5).build().unwrap();
            data.assert_epoch(&mut loader, Shuffle::Full, 5, 0);
            data.assert_epoch(&mut loader, Shuffle::Full, 5, 1);
        }
    });
}

#[test]
fn cudarc_works_on_a_borrowed_slice_of_a_batch() {
    for delay in ["none", "random:1:500", HELD] {
        child!(&[("CUDA_EMULATOR_DELAY", delay)], || {
            let data = Data::new(100, 64);
            let mut loader = data.loader().build().unwrap();
            let context = CudaContext::new(0).unwrap();
            let stream = context.new_stream().unwrap();
            let mut kept = Vec::new();
            for batch in loader.epoch(0).unwrap() {
                let batch = batch.unwrap();
                batch.wait_on(&stream).unwrap();
                let numbers = batch.column("number").unwrap().device_slice::<u64>(&stream).unwrap();
                assert_eq!(numbers.len(), batch.len());
                let copy = stream.clone_dtod(&*numbers).unwrap();
                let part = stream.clone_dtod(&numbers.slice(1..3)).unwrap();
                kept.push((batch.samples().to_vec(), copy, part));
                drop(numbers);
                drop(batch);
            }
            for (samples, copy, part) in kept {
                assert_eq!(stream.clone_dtoh(&copy).unwrap(), samples);
                assert_eq!(stream.clone_dtoh(&part).unwrap(), samples[1..3]);
            }
        });
    }
}

#[test]
fn a_slice_is_refused_for_the_wrong_size_stream_or_place() {
    child!(&[("CUDA_EMULATOR_DEVICES", "2")], || {
        let data = Data::new(16, 32);
        let mut loader = data.loader().build().unwrap();
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        let foreign = CudaContext::new(1).unwrap().new_stream().unwrap();
        let batch = first(&mut loader);
        let numbers = batch.column("number").unwrap();
        let error = numbers.device_slice::<u32>(&stream).unwrap_err();
        assert!(error.to_string().contains("u32") && error.kind() == ErrorKind::InvalidArgument, "{error}");
        let error = numbers.device_slice::<u64>(&foreign).unwrap_err();
        assert!(error.to_string().contains("the stream belongs to device cuda:1"), "{error}");
        let mut host = data.loader().device(Device::Host).build().unwrap();
        let batch = first(&mut host);
        let error = batch.column("number").unwrap().device_slice::<u64>(&stream).unwrap_err();
        assert!(error.to_string().contains("is in host memory"), "{error}");
        assert_eq!(batch.column("number").unwrap().device_ptr(), None);
    });
}

#[test]
fn streams_that_a_batch_is_not_on_are_refused_by_name() {
    child!(&[("CUDA_EMULATOR_DEVICES", "2")], || {
        let data = Data::new(16, 64);
        let mut loader = data.loader().build().unwrap();
        let primary = CudaContext::new(0).unwrap();
        let other_device = CudaContext::new(1).unwrap();
        let other_context = cuda_common::second_context(&primary);
        let there = other_context.new_stream().unwrap();
        // SAFETY: the stream outlives the wrapper. That it is of this context is a lie, as a careless caller tells it.
        let disguised = unsafe { primary.wrap_borrowed_stream(there.cu_stream()) };
        let refused = |stream: &Arc<CudaStream>, why: &str| {
            let batch = {
                let mut loader = data.loader().build().unwrap();
                first(&mut loader)
            };
            let error = batch.wait_on(stream).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(why), "{error}");
            data.assert_batch(&batch);
            assert_eq!(batch.release_after(stream).unwrap_err().kind(), ErrorKind::InvalidArgument);
        };
        refused(&other_device.new_stream().unwrap(), "device cuda:1");
        refused(&other_device.default_stream(), "device cuda:1");
        refused(&there, "another context than the primary one of device cuda:0");
        refused(&disguised, "another context than the primary one of device cuda:0");
        // A batch that was refused to one stream is there for the next.
        let batch = first(&mut loader);
        batch.wait_on(&there).unwrap_err();
        batch.release_after(&primary.new_stream().unwrap()).unwrap();
        data.assert_epoch(&mut loader, Shuffle::None, 0, 1);

        let mut host = data.loader().device(Device::Host).build().unwrap();
        let batch = first(&mut host);
        let error = batch.wait_on(&primary.default_stream()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("the batch is in host memory"), "{error}");
    });
}

#[test]
fn wait_on_and_release_hold_up_no_host_thread() {
    // Nothing on the device moves unless somebody waits or asks, so that a hidden wait would end this delay.
    child!(&[("CUDA_EMULATOR_DELAY", "adversarial:3600000:4000000000")], || {
        let data = Data::new(64 << 10, 4);
        let mut loader = data.loader().batch_size(1).prefetch(4).build().unwrap();
        let mut consumer = Consumer::new(0, data.sample_bytes() * 4);
        let waits =
            || calls(c"cuStreamSynchronize") + calls(c"cuEventSynchronize") + calls(c"cuCtxSynchronize");
        let mut epoch = loader.epoch(0).unwrap();
        let batches: Vec<_> = epoch.by_ref().take(4).map(Result::unwrap).collect();
        // The reading thread ends its epoch by waiting for its own copies. Only after that are all waits the caller's.
        assert!(epoch.next().is_none());
        let before = waits();
        for batch in batches {
            consumer.take(batch, Use::DropAtOnce);
        }
        assert_eq!(waits(), before);
        consumer.check(&data);
    });
}

#[test]
fn a_batch_outlives_its_loader_and_everything_else() {
    for delay in ["none", "random:3:2000", HELD] {
        child!(&[("CUDA_EMULATOR_DELAY", delay)], || {
            let data = Data::new(4096, 64);
            for backend in backends() {
                let mut consumer = Consumer::new(0, data.sample_bytes() * 64);
                let mut loader = data.loader().backend(backend).prefetch(3).build().unwrap();
                let mut batches: Vec<_> = loader.epoch(0).unwrap().take(4).map(Result::unwrap).collect();
                batches[1].wait_on(&consumer.streams[0]).unwrap();
                drop(loader);
                data.assert_batch(&batches[0]);
                drop(batches.swap_remove(0));
                for batch in batches {
                    consumer.take(batch, Use::TwoStreams);
                }
                consumer.check(&data);
            }
            assert_eq!(stats().device_allocations, 0);
        });
    }
}

#[test]
fn a_batch_is_dropped_last_of_all_and_on_another_thread() {
    child!(&[("CUDA_EMULATOR_DELAY", "random:4:1000")], || {
        let data = Data::new(4096, 32);
        let stream = {
            let context = CudaContext::new(0).unwrap();
            context.new_stream().unwrap()
        };
        let batch = first(&mut data.loader().build().unwrap());
        batch.wait_on(&stream).unwrap();
        // From here on the batch alone keeps the stream and its context.
        drop(stream);
        std::thread::spawn(move || {
            data.assert_batch(&batch);
            drop(batch);
            assert!(current().is_null());
        })
        .join()
        .unwrap();
        let left = stats();
        assert_eq!((left.device_allocations, left.streams, left.events), (0, 0, 0), "{left:?}");
    });
}

#[test]
fn holding_every_slot_is_an_error_and_not_a_hang() {
    child!(&[], || {
        let data = Data::new(64, 160);
        let builder = data.loader().prefetch(1).lend_timeout(Duration::from_millis(50));
        let mut loader = builder.build().unwrap();
        let mut epoch = loader.epoch(0).unwrap();
        let held = [epoch.next().unwrap().unwrap(), epoch.next().unwrap().unwrap()];
        assert_eq!(epoch.next().unwrap().unwrap_err().kind(), ErrorKind::SlotsExhausted);
        drop(epoch);
        drop(held);
        data.assert_epoch(&mut loader, Shuffle::None, 0, 1);
    });
}

#[test]
fn the_threads_own_context_stays_current() {
    child!(&[("CUDA_EMULATOR_DEVICES", "3"), ("CUDA_EMULATOR_DELAY", "random:5:200")], || {
        let data = Data::new(300, 64);
        let own = CudaContext::new(2).unwrap();
        let mine = own.cu_ctx();
        assert_eq!(current(), mine);
        for devices in [&[Device::Cuda(0)][..], &[Device::Cuda(1), Device::Cuda(0)]] {
            let stream = {
                let Device::Cuda(ordinal) = devices[0] else { unreachable!() };
                CudaContext::new(ordinal as usize).unwrap().new_stream().unwrap()
            };
            own.bind_to_thread().unwrap();
            let mut loader = data.loader().devices(devices).prefetch(1).build().unwrap();
            assert_eq!(current(), mine, "build");
            let mut kept = None;
            for batch in loader.epoch(0).unwrap() {
                let batch = batch.unwrap();
                assert_eq!(current(), mine, "next");
                batch.wait_on(&stream).unwrap();
                assert_eq!(current(), mine, "wait_on");
                let mut bytes = Vec::new();
                batch.column("data").unwrap().copy_to_host(&mut bytes).unwrap();
                assert_eq!(current(), mine, "copy_to_host");
                kept = Some(batch);
                assert_eq!(current(), mine, "drop of a batch");
            }
            drop(stream);
            own.bind_to_thread().unwrap();
            drop(loader);
            assert_eq!(current(), mine, "drop of a loader");
            // Drops the caller's stream too, which cudarc does in the stream's own context.
            drop(kept);
            own.bind_to_thread().unwrap();
            drop(data.loader().devices(devices).build().unwrap());
            assert_eq!(current(), mine, "drop of everything");
        }
        // A thread with none has none afterwards.
        std::thread::spawn(move || {
            let mut loader = data.loader().build().unwrap();
            assert!(current().is_null());
            data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
            assert!(current().is_null());
            drop(loader);
            assert!(current().is_null());
        })
        .join()
        .unwrap();
    });
}

#[test]
fn only_the_chosen_device_is_touched_and_all_is_given_back() {
    child!(&[("CUDA_EMULATOR_DEVICES", "3")], || {
        let data = Data::new(1000, 64);
        for backend in backends() {
            let mut loader = data.loader().device(Device::Cuda(2)).backend(backend).build().unwrap();
            data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
            let now = stats();
            assert_eq!((now.contexts, now.device_allocations), (1, 1), "{now:?}");
            let memory = loader.memory();
            assert_eq!(now.device_bytes, memory.device_bytes);
            let pinned = if backend == Backend::PageCache { 0 } else { memory.pinned_bytes };
            assert_eq!(now.host_registered_bytes, pinned);
            for (device, active) in [(0, 0), (1, 0), (2, 1)] {
                let (mut flags, mut is) = (0, 0);
                // SAFETY: both results live through the call.
                unsafe { sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut is) }.result().unwrap();
                assert_eq!(is, active, "device {device}");
            }
            drop(loader);
            let left = stats();
            let alive =
                [left.device_allocations, left.host_registrations, left.streams, left.events, left.contexts];
            assert_eq!(alive, [0; 5], "{left:?}");
        }
    });
}

#[test]
fn the_memory_of_a_loader_is_known_before_the_first_read_and_kept() {
    child!(&[], || {
        // Batches and files of any size: the chunks stay within 64 MiB.
        let data = Data::new(4 << 20, 16);
        let mut loader =
            data.loader().batch_size(8).prefetch(1).io_bytes(1 << 20).queue_depth(16).build().unwrap();
        let memory = loader.memory();
        assert!(memory.pinned_bytes <= 64 << 20, "{memory:?}");
        let before = stats();
        data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
        let after = stats();
        assert_eq!(loader.memory(), memory);
        assert_eq!(
            (before.device_bytes, before.host_registered_bytes),
            (after.device_bytes, after.host_registered_bytes)
        );
        let error = data.loader().memory_limit(1 << 20).batch_size(8).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    });
}

#[test]
fn a_device_is_called_by_its_number_among_the_visible_ones() {
    child!(&[("CUDA_EMULATOR_DEVICES", "3"), ("CUDA_VISIBLE_DEVICES", "2,0")], || {
        let data = Data::new(10, 20);
        let mut loader = data.loader().device(Device::Cuda(1)).build().unwrap();
        data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
        let error = data.loader().device(Device::Cuda(2)).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("cuda:2 does not exist: the driver sees 2"), "{error}");
        assert_eq!(result::device::get_count().unwrap(), 2);
    });
}
