//! What goes wrong with a GPU or its driver is one clear error, and nothing hangs, leaks or panics because of it.

mod cuda_common;

use std::time::{Duration, Instant};

use cuda_common::{Consumer, Data, DriverFile, HELD, Use, backends, child, stats};
use gpufeed::cudarc::driver::CudaContext;
use gpufeed::{Backend, Device, Error, ErrorKind, Loader, Shuffle};

/// `auto` delivers to the host, right bytes and all, and tells why; a named GPU is refused with the same reason.
fn assert_no_gpu(why: &str) {
    let data = Data::new(100, 40);
    let mut loader = data.loader().device(Device::Auto).build().unwrap();
    let report = loader.report();
    assert_eq!(report.devices, [Device::Host]);
    assert!(report.device_reason.contains(why), "{}", report.device_reason);
    data.assert_epoch_on_host(&mut loader);
    for device in [Device::Cuda(0), Device::Cuda(7)] {
        let error = data.loader().device(device).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let text = error.to_string();
        assert!(text.contains(&device.to_string()) && text.contains(why), "{text}");
        let error = data.loader().devices(&[Device::Cuda(0), Device::Cuda(1)]).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}

#[test]
fn without_a_driver_auto_is_the_host() {
    child!(DriverFile::Missing, &[], || assert_no_gpu("there is no CUDA driver: libcuda.so.1"));
}

#[test]
fn a_library_that_is_no_driver_is_called_that() {
    child!(DriverFile::Other, &[], || assert_no_gpu("libcuda.so.1 is not a CUDA driver: it has no cuInit"));
}

#[test]
fn a_driver_without_a_device_is_told_from_no_driver() {
    for environment in [("CUDA_EMULATOR_DEVICES", "0"), ("CUDA_VISIBLE_DEVICES", "")] {
        child!(&[environment], || assert_no_gpu("the CUDA driver sees no device"));
    }
}

#[test]
fn a_driver_that_is_too_old_is_told_by_its_version() {
    child!(&[("CUDA_EMULATOR_DRIVER_VERSION", "11030")], || {
        assert_no_gpu("the CUDA driver is too old: it supports CUDA 11.3, 11.4 is needed");
    });
}

#[test]
fn the_oldest_driver_that_is_supported_is_used() {
    child!(&[("CUDA_EMULATOR_DRIVER_VERSION", "11040")], || {
        let data = Data::new(10, 40);
        let mut loader = data.loader().device(Device::Auto).build().unwrap();
        assert_eq!(loader.report().devices, [Device::Cuda(0)]);
        data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
    });
}

#[test]
fn a_driver_that_fails_to_start_is_told_by_its_code() {
    child!(&[("CUDA_EMULATOR_INIT_ERROR", "999")], || {
        assert_no_gpu("the CUDA driver cannot be initialised: cuInit gave 999");
    });
}

#[test]
fn an_index_that_no_device_has_is_refused_with_what_there_is() {
    child!(&[("CUDA_EMULATOR_DEVICES", "2")], || {
        let data = Data::new(10, 40);
        for index in [2, 3, u32::MAX] {
            for devices in [&[Device::Cuda(index)][..], &[Device::Cuda(0), Device::Cuda(index)]] {
                let error = data.loader().devices(devices).build().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                let text = error.to_string();
                let wanted = format!("cuda:{index} does not exist: the driver sees 2 (cuda:0 to cuda:1)");
                assert!(text.contains(&wanted), "{text}");
            }
        }
        assert_eq!(stats().contexts, 0);
    });
}

fn all_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text += &format!(": {next}");
        cause = next.source();
    }
    text
}

#[test]
fn a_full_gpu_is_an_error_that_tells_what_the_ring_needs_and_what_is_free() {
    let size = (4 << 20).to_string();
    child!(&[("CUDA_EMULATOR_MEMORY", &size), ("CUDA_EMULATOR_DEVICES", "2")], || {
        let data = Data::new(64 << 10, 64);
        // A slot takes a little over 1 MiB.
        let builder = || data.loader().batch_size(16).prefetch(8);
        for devices in [&[Device::Cuda(0)][..], &[Device::Cuda(0), Device::Cuda(1)]] {
            let error = builder().devices(devices).build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            let text = all_causes(&error);
            assert!(text.contains("the ring needs 9 slots of 10") && text.contains("prefetch 8"), "{text}");
            assert!(text.contains("4194304 are free") || text.contains("of its 4194304"), "{text}");
            // Nothing is left of the attempt, and a smaller ring is made only if that was asked for.
            assert_eq!((stats().device_allocations, stats().events, stats().streams), (0, 0, 0));
            let mut loader = builder().devices(devices).shrink_ring(true).build().unwrap();
            assert_eq!(loader.prefetch(), 2);
            data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
        }
        // Where not even the smallest ring fits, it is an error still.
        let error = data.loader().batch_size(64).prefetch(8).shrink_ring(true).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(all_causes(&error).contains("prefetch 1"), "{}", all_causes(&error));
        // `auto` is a choice of device, not of a way around an error.
        let error = builder().device(Device::Auto).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    });
}

#[test]
fn memory_that_cannot_be_pinned_is_used_as_it_is_and_noted() {
    for refused in ["0", "0:801", "0:712", "100000"] {
        let environment = [("CUDA_EMULATOR_FAIL_REGISTER_AFTER", refused), ("CUDA_EMULATOR_DELAY", HELD)];
        child!(&environment, || {
            let data = Data::new(5000, 64);
            for backend in backends() {
                let mut loader = data.loader().backend(backend).prefetch(2).build().unwrap();
                let mut consumer = Consumer::new(0, data.sample_bytes() * 64);
                for epoch in 0..2 {
                    for batch in loader.epoch(epoch).unwrap() {
                        consumer.take(batch.unwrap(), Use::DropAtOnce);
                    }
                    consumer.check(&data);
                }
                assert_eq!(stats().host_registrations, 0);
                let notes = loader.report().notes;
                let noted = notes.iter().any(|note| note.contains("is not pinned for the GPU"));
                assert_eq!(noted, backend != Backend::PageCache, "{backend}: {notes:?}");
            }
        });
    }
}

/// Runs epochs until the device has failed, then some more; answers the errors of epochs. Whatever happens, batches
/// that come have the right bytes, all ends in time, and dropping works.
fn run_into_failure(data: &Data, mut loader: Loader, epochs: u64) -> Vec<Error> {
    let start = Instant::now();
    let mut errors = Vec::new();
    let stream = CudaContext::new(0).and_then(|context| context.new_stream());
    let mut bytes = Vec::new();
    for epoch in 0..epochs {
        let batches = match loader.epoch(epoch) {
            Ok(batches) => batches,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let mut kept = Vec::new();
        for batch in batches {
            match batch {
                Ok(batch) => {
                    if let Ok(stream) = &stream {
                        if let Err(error) = batch.wait_on(stream) {
                            assert_eq!(error.kind(), ErrorKind::Device, "{error}");
                        }
                        let column = batch.column("number").unwrap();
                        if let Err(error) = column.device_slice::<u64>(stream) {
                            assert_eq!(error.kind(), ErrorKind::Device, "{error}");
                        }
                    }
                    match batch.column("data").unwrap().copy_to_host(&mut bytes) {
                        Ok(()) => assert!(bytes == data.naive("data", batch.samples()), "wrong bytes"),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Device, "{error}"),
                    }
                    kept.push(batch);
                    kept.truncate(1);
                }
                Err(error) => errors.push(error),
            }
        }
    }
    drop(loader);
    assert!(start.elapsed() < Duration::from_secs(60));
    errors
}

#[test]
fn a_copy_that_is_refused_ends_its_epoch_and_the_next_one_works() {
    for nth in ["1", "7", "20", "33"] {
        for delay in ["none", HELD] {
            let environment = [("CUDA_EMULATOR_FAIL_COPY", nth), ("CUDA_EMULATOR_DELAY", delay)];
            child!(&environment, || {
                let data = Data::new(3000, 64);
                let which = std::env::var("CUDA_EMULATOR_FAIL_COPY").unwrap().len();
                let backends = backends();
                let backend = backends[which % backends.len()];
                let mut loader =
                    data.loader().backend(backend).prefetch(2).shuffle(Shuffle::Full).build().unwrap();
                let mut errors = Vec::new();
                for epoch in 0..4 {
                    for batch in loader.epoch(epoch).unwrap() {
                        match batch {
                            Ok(batch) => drop(batch),
                            Err(error) => errors.push(error),
                        }
                    }
                }
                assert_eq!(errors.len(), 1, "{errors:?}");
                assert_eq!(errors[0].kind(), ErrorKind::Device);
                assert!(errors[0].to_string().contains("CUDA_ERROR_UNKNOWN (999)"), "{}", errors[0]);
                data.assert_epoch(&mut loader, Shuffle::Full, 0, 5);
            });
        }
    }
}

#[test]
fn a_copy_to_a_further_device_that_is_refused_ends_its_epoch_and_the_next_one_works() {
    for nth in ["17", "18", "30", "31", "32", "33", "34", "35", "36"] {
        let environment = [
            ("CUDA_EMULATOR_FAIL_COPY", nth),
            ("CUDA_EMULATOR_DEVICES", "2"),
            ("CUDA_EMULATOR_DELAY", "random:5:300"),
        ];
        child!(&environment, || {
            let data = Data::new(3000, 64);
            let builder = data.loader().devices(&[Device::Cuda(0), Device::Cuda(1)]).prefetch(1);
            let mut loader = builder.build().unwrap();
            let mut errors = Vec::new();
            for epoch in 0..4 {
                errors.extend(loader.epoch(epoch).unwrap().filter_map(Result::err));
            }
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert_eq!(errors[0].kind(), ErrorKind::Device);
            data.assert_epoch(&mut loader, Shuffle::None, 0, 5);
        });
    }
}

#[test]
fn a_copy_that_fails_late_ends_the_epochs_with_errors() {
    // Its context is broken from then on, as CUDA has it: nothing works any more, and nothing hangs.
    for (which, nth) in ["1", "9", "40", "41", "42"].into_iter().enumerate() {
        for delay in ["none", "random:1:500", HELD] {
            let which = which.to_string();
            let environment =
                [("WHICH", &*which), ("CUDA_EMULATOR_FAIL_COPY_LATE", nth), ("CUDA_EMULATOR_DELAY", delay)];
            child!(&environment, || break_device("(719)"));
        }
    }
}

#[test]
fn a_device_that_is_lost_in_an_epoch_ends_it_with_an_error() {
    for (which, after) in ["0", "1", "13", "60", "61"].into_iter().enumerate() {
        for delay in ["none", "random:2:500", HELD] {
            let which = which.to_string();
            let environment = [
                ("WHICH", &*which),
                ("CUDA_EMULATOR_LOSE_DEVICE_AFTER", after),
                ("CUDA_EMULATOR_DELAY", delay),
            ];
            child!(&environment, || break_device("(214)"));
        }
    }
}

fn break_device(code: &str) {
    let backends = backends();
    let which: usize = std::env::var("WHICH").unwrap().parse().unwrap();
    let data = Data::new(3000, 64);
    // Something else keeps the context alive, as a training program does.
    let context = CudaContext::new(0).unwrap();
    let builder = data.loader().backend(backends[which % backends.len()]).prefetch(2);
    let errors = run_into_failure(&data, builder.build().unwrap(), 4);
    assert!(!errors.is_empty());
    for error in &errors {
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        assert!(error.to_string().contains(code), "{error}");
    }
    let error = data.loader().build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    std::mem::forget(context);
    end_with_broken_device();
}

/// Leaks of a device that takes no calls any more are the driver's own: the child ends without looking for them.
fn end_with_broken_device() {
    println!("{}", cuda_common::DONE);
    // SAFETY: ends the process; the output is flushed line by line.
    unsafe { libc::_exit(0) };
}

#[test]
fn a_loader_on_another_device_survives_the_loss_of_one() {
    let environment = [("CUDA_EMULATOR_DEVICES", "2"), ("CUDA_EMULATOR_LOSE_DEVICE_AFTER", "20")];
    child!(&environment, || {
        let data = Data::new(3000, 64);
        let loader = data.loader().device(Device::Cuda(0)).prefetch(1).build().unwrap();
        assert!(!run_into_failure(&data, loader, 3).is_empty());
        let mut host = data.loader().device(Device::Host).build().unwrap();
        data.assert_epoch_on_host(&mut host);
        end_with_broken_device();
    });
}

#[test]
fn a_limit_on_locked_memory_costs_speed_and_nothing_else() {
    child!(&[("CUDA_EMULATOR_DELAY", "random:3:200")], || {
        // Root may lock any amount; without the capability the limit holds.
        let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
        // SAFETY: plain system calls with values that live through them; the ids are those of "nobody".
        unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
        }
        drop_lock_capability();
        let data = Data::new(5000, 64);
        for backend in backends() {
            let mut loader = data.loader().backend(backend).prefetch(2).build().unwrap();
            data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
            let notes = loader.report().notes;
            let noted = notes.iter().any(|note| note.contains("RLIMIT_MEMLOCK") && note.contains("65536"));
            let wanted = matches!(loader.report().backend, Backend::Uring);
            assert_eq!(noted, wanted, "{backend}: {notes:?}");
        }
    });
}

/// Takes CAP_IPC_LOCK from this thread and those that it starts.
fn drop_lock_capability() {
    const CAP_IPC_LOCK: u32 = 14;
    const VERSION_3: u32 = 0x2008_0522;
    let mut header = [VERSION_3, 0];
    let mut sets = [0u32; 6]; // effective, permitted, inheritable; for capabilities below and above 32
    // SAFETY: header and sets have the layout of version 3 and live through both calls.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()), 0);
        sets[..3].iter_mut().for_each(|set| *set &= !(1 << CAP_IPC_LOCK));
        assert_eq!(libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()), 0);
    }
}

/// Forks, runs `body` in the child, and waits for it to end well and soon.
fn forked(body: impl FnOnce()) {
    // SAFETY: the child only runs `body` and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: ends a child that hangs.
        unsafe { libc::alarm(20) };
        let fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
        // SAFETY: ends this process, and runs nothing of the parent's.
        unsafe { libc::_exit(if fine { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7,
        "the forked child: status {status:#x}"
    );
}

#[test]
fn in_a_forked_child_everything_is_an_error_or_nothing_and_never_a_hang() {
    child!(&[("CUDA_EMULATOR_DELAY", "random:4:500")], || {
        let data = Data::new(300, 200);
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        for backend in backends() {
            for round in 0..8 {
                let mut loader = data.loader().backend(backend).prefetch(3).build().unwrap();
                let mut early = loader.epoch(0).unwrap();
                let old = early.next().unwrap().unwrap();
                old.wait_on(&stream).unwrap();
                drop(early);
                if round % 2 == 0 {
                    // In the middle of an epoch.
                    let mut epoch = loader.epoch(1).unwrap();
                    let batch = epoch.next().unwrap().unwrap();
                    let mut parts = Some((epoch, batch, old));
                    forked(|| {
                        let (mut epoch, batch, old) = parts.take().unwrap();
                        assert_eq!(batch.wait_on(&stream).unwrap_err().kind(), ErrorKind::Device);
                        let mut bytes = Vec::new();
                        let column = batch.column("data").unwrap();
                        assert_eq!(column.copy_to_host(&mut bytes).unwrap_err().kind(), ErrorKind::Device);
                        let error = batch.column("number").unwrap().device_slice::<u64>(&stream);
                        assert_eq!(error.unwrap_err().kind(), ErrorKind::Device);
                        let error = epoch.next().unwrap().unwrap_err();
                        assert!(error.to_string().contains("fork"), "{error}");
                        assert_eq!(error.kind(), ErrorKind::Closed);
                        assert!(epoch.next().is_none());
                        assert_eq!(batch.release_after(&stream).unwrap_err().kind(), ErrorKind::Device);
                        drop(old);
                        drop(epoch);
                    });
                    drop(parts);
                } else {
                    // Between epochs, with the loader itself dropped in the child.
                    let mut parts = Some((loader, old));
                    forked(|| {
                        let (mut loader, old) = parts.take().unwrap();
                        assert_eq!(loader.epoch(1).unwrap_err().kind(), ErrorKind::Closed);
                        drop(loader);
                        drop(old);
                        let error = data.loader().build().unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::Unavailable);
                        assert!(error.to_string().contains("before this process was forked"), "{error}");
                        let auto = data.loader().device(Device::Auto).build().unwrap();
                        assert_eq!(auto.report().devices, [Device::Host]);
                    });
                    let (again, old) = parts.take().unwrap();
                    drop(old);
                    loader = again;
                }
                // The parent's loader has not noticed.
                data.assert_epoch(&mut loader, Shuffle::None, 0, 2);
            }
        }
    });
}

#[test]
fn a_batch_kept_past_its_loader_is_dropped_in_a_forked_child_without_a_call() {
    child!(&[], || {
        let data = Data::new(300, 64);
        let mut loader = data.loader().build().unwrap();
        let batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
        drop(loader);
        let mut kept = Some(batch);
        forked(|| drop(kept.take()));
        data.assert_batch(kept.as_ref().unwrap());
    });
}

#[test]
fn a_host_loader_built_in_a_forked_child_works() {
    child!(&[], || {
        let data = Data::new(300, 64);
        let _loader = data.loader().build().unwrap();
        forked(|| {
            let mut host = data.loader().device(Device::Host).build().unwrap();
            data.assert_epoch_on_host(&mut host);
        });
    });
}
