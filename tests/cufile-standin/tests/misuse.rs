//! What callers must not do: each an error where there is one, and a report.

mod common;

use std::os::fd::{AsRawFd, IntoRawFd};

use common::{BUFFER, CuFile, Cuda, Error, FILE, Properties, Scene, direct, errno};

#[test]
fn calls_before_the_driver_is_open_and_after_it_is_closed() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let cufile = CuFile::load();
        let buffer = cuda.allocate(4096);
        cufile.cuFileBufRegister(buffer, 4096, 0).is(5001);
        assert_eq!(cufile.cuFileRead(1, buffer, 4096, 0, 0), -5001);
        cufile.cuFileDriverGetProperties(&mut Properties::default()).is(5001);
        cufile.cuFileDriverClose_v2().is(5001);
        cufile.cuFileDriverOpen().ok();
        cufile.cuFileDriverOpen().ok();
        assert_eq!(cufile.cuFileUseCount(), 2);
        cufile.cuFileDriverClose_v2().ok();
        cufile.cuFileDriverGetProperties(&mut Properties::default()).ok();
        cufile.cuFileDriverClose().ok();
        cufile.cuFileHandleDeregister(1);
        cufile.cuFileDriverClose().is(5001);
        // Which need no driver.
        cufile.cuFileGetVersion(&mut 0).ok();
        assert_eq!(cufile.cuFileUseCount(), 0);
    })
    .reported(&[
        "call-before-open in cuFileBufRegister",
        "call-before-open in cuFileRead",
        "call-before-open in cuFileDriverGetProperties",
        "close-not-open in cuFileDriverClose_v2",
        "call-before-open in cuFileHandleDeregister",
        "close-not-open in cuFileDriverClose",
    ]);
}

#[test]
fn opening_without_a_context() {
    child!(&[], || {
        let cuda = Cuda::ready();
        assert_eq!(cuda.cuCtxSetCurrent(0), 0);
        let cufile = CuFile::load();
        assert_eq!(cufile.cuFileDriverOpen(), Error { cufile: 5011, cuda: 201 });
        assert_eq!(cufile.cuFileUseCount(), 0);
    })
    .reported(&["no-current-context in cuFileDriverOpen"]);
}

#[test]
fn handles_after_their_end() {
    child!(&[], || {
        let scene = Scene::registered();
        scene.cufile.cuFileHandleDeregister(scene.handle);
        assert_eq!(scene.read(4096, 0, 0), -5027);
        scene.cufile.cuFileHandleDeregister(scene.handle);
        scene.cufile.cuFileHandleDeregister(0x40);
        assert_eq!(scene.cufile.cuFileRead(0x40, scene.buffer, 1, 0, 0), -5027);
        let again = scene.cufile.handle(&scene.file);
        assert_ne!(again, scene.handle);
        scene.cufile.cuFileHandleDeregister(again);
    })
    .reported(&[
        "use-after-deregister in cuFileRead",
        "double-deregister in cuFileHandleDeregister",
        "unknown-handle in cuFileHandleDeregister",
        "unknown-handle in cuFileRead",
    ]);
}

#[test]
fn buffers_after_their_end() {
    child!(&[("CUFILE_STANDIN_UNREGISTERED_READS", "fail")], || {
        let scene = Scene::registered();
        scene.cufile.cuFileBufDeregister(scene.buffer).ok();
        assert_eq!(scene.read(4096, 0, 0), -5024);
        scene.cufile.cuFileBufDeregister(scene.buffer).is(5024);
        scene.cufile.cuFileBufDeregister(scene.buffer + 512).is(5024);
        scene.end_unregistered();
    })
    .reported(&[
        "use-after-deregister in cuFileRead",
        "double-deregister in cuFileBufDeregister",
        "unknown-buffer in cuFileBufDeregister",
    ]);
}

#[test]
fn registering_twice() {
    child!(&[], || {
        let scene = Scene::registered();
        scene.cufile.try_handle(scene.file.as_raw_fd()).0.is(5028);
        scene.cufile.cuFileBufRegister(scene.buffer, BUFFER, 0).is(5023);
        scene.cufile.cuFileBufRegister(scene.buffer + 4096, 4096, 0).is(5023);
        scene.cufile.cuFileBufDeregister(scene.buffer + 4096).is(5024);
        scene.end();
    })
    .reported(&[
        "double-register in cuFileHandleRegister",
        "double-register in cuFileBufRegister",
        "overlapping-registration in cuFileBufRegister",
        "not-the-registered-base in cuFileBufDeregister",
    ]);
}

#[test]
fn ranges_that_do_not_fit() {
    child!(&[], || {
        let scene = Scene::new();
        scene.cufile.cuFileBufRegister(scene.buffer, BUFFER + 1, 0).is(5014);
        assert_eq!((scene.read(4096, 0, BUFFER as i64 - 4095), errno()), (-1, 5017));
        scene.cufile.cuFileBufRegister(scene.buffer, 65_536, 0).ok();
        assert_eq!((scene.read(4097, 0, 61_440), errno()), (-1, 5017));
        assert_eq!(scene.cufile.cuFileRead(scene.handle, scene.buffer + 4096, 4096, 0, 0), -1);
        let vector = (scene.buffer + 61_440, 4097);
        assert_eq!(scene.cufile.cuFileReadv(scene.handle, &vector, 1, 0, 0), -1);
        scene.untouched(0, 65_536);
        assert_eq!(scene.read(4096, 0, 61_440), 4096);
        scene.end();
    })
    .reported(&[
        "past-allocation in cuFileBufRegister",
        "past-allocation in cuFileRead",
        "past-registration in cuFileRead",
        "not-the-registered-base in cuFileRead",
        "past-registration in cuFileReadv",
    ]);
}

#[test]
fn memory_of_the_wrong_kind() {
    child!(&[], || {
        let scene = Scene::new();
        let host = vec![0_u8; 8192];
        let host_address = host.as_ptr() as u64;
        assert_eq!(scene.cufile.cuFileRead(scene.handle, host_address, 4096, 0, 0), -5013);
        scene.cufile.cuFileBufRegister(host_address, 8192, 0).is(5012);
        let mut pool = 0;
        let stream = scene.cuda.stream();
        assert_eq!(scene.cuda.cuMemAllocAsync(&mut pool, 8192, stream), 0);
        assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
        scene.cufile.cuFileBufRegister(pool, 8192, 0).is(5012);
        assert_eq!(scene.cufile.cuFileRead(scene.handle, pool, 4096, 0, 0), -5012);
        scene.cufile.cuFileBufRegister(scene.buffer, 0, 0).is(5022);
        scene.cufile.cuFileBufRegister(scene.buffer, 8, 1).is(5022);
        assert!(host.iter().all(|byte| *byte == 0));
        scene.end_unregistered();
    })
    .reported(&[
        "host-pointer in cuFileRead",
        "host-pointer in cuFileBufRegister",
        "pool-memory in cuFileBufRegister",
        "pool-memory in cuFileRead",
    ]);
}

#[test]
fn memory_freed_while_it_is_registered() {
    child!(&[], || {
        let scene = Scene::registered();
        assert_eq!(scene.cuda.cuMemFree_v2(scene.buffer), 0);
        assert_eq!(scene.read(4096, 0, 0), -5012);
        scene.cufile.cuFileBufDeregister(scene.buffer).is(5012);
        scene.cufile.cuFileHandleDeregister(scene.handle);
        scene.cufile.cuFileDriverClose_v2().ok();
    })
    .reported(&[
        "free-while-held in cuMemFree_v2",
        "freed-while-registered in cuFileRead",
        "freed-while-registered in cuFileBufDeregister",
    ]);
}

#[test]
fn threads_without_the_right_context() {
    child!(&[("CUDA_EMULATOR_DEVICES", "2")], || {
        let scene = Scene::registered();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                assert_eq!(scene.read(4096, 0, 0), -5011);
                scene.cuda.bind(1);
                assert_eq!(scene.read(4096, 0, 0), -5015);
                scene.cuda.bind(0);
                assert_eq!(scene.read(4096, 0, 0), 4096);
            });
        });
        scene.end();
    })
    .reported(&["no-current-context in cuFileRead", "wrong-context in cuFileRead"]);
}

#[test]
fn any_context_can_be_allowed() {
    child!(&[("CUDA_EMULATOR_DEVICES", "2"), ("CUFILE_STANDIN_CONTEXT", "any")], || {
        let scene = Scene::registered();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                assert_eq!(scene.read(4096, 0, 0), 4096);
                scene.cuda.bind(1);
                assert_eq!(scene.read(4096, 4096, 4096), 4096);
                scene.same(0, 0, 8192);
            });
            // Registering needs one all the same, as with the real library.
            threads.spawn(|| {
                let error = scene.cufile.cuFileBufRegister(scene.buffer, 4096, 0);
                assert_eq!(error, Error { cufile: 5011, cuda: 201 });
            });
        });
        scene.end();
    })
    .reported(&["no-current-context in cuFileBufRegister"]);
}

#[test]
fn descriptors_closed_too_early() {
    child!(&[], || {
        let scene = Scene::registered();
        let gone = direct("data");
        let handle = scene.cufile.handle(&gone);
        let number = gone.into_raw_fd();
        // SAFETY: the descriptor is this test's own.
        unsafe { libc::close(number) };
        let read = || scene.cufile.cuFileRead(handle, scene.buffer, 4096, 0, 0);
        assert_eq!((read(), errno()), (-1, libc::EBADF));
        // Another file under the same number.
        std::fs::write("other", "other").unwrap();
        let other = direct("other");
        assert_eq!(other.as_raw_fd(), number);
        assert_eq!((read(), errno()), (-1, libc::EBADF));
        scene.cufile.try_handle(number).0.is(5028);
        scene.cufile.cuFileHandleDeregister(handle);
        scene.untouched(0, 4096);
        let other_handle = scene.cufile.handle(&other);
        scene.cufile.cuFileHandleDeregister(other_handle);
        scene.end();
    })
    .reported(&[
        "fd-closed in cuFileRead",
        "fd-closed in cuFileRead",
        "fd-closed in cuFileHandleRegister",
        "fd-closed in cuFileHandleDeregister",
    ]);
}

#[test]
fn files_that_cannot_be_registered() {
    child!(&[], || {
        let scene = Scene::registered();
        let refused = |file: &std::fs::File, code| scene.cufile.try_handle(file.as_raw_fd()).0.is(code);
        refused(&std::fs::File::open(".").unwrap(), 5018);
        refused(&std::fs::File::open("/dev/null").unwrap(), 5018);
        refused(&std::fs::File::options().append(true).open("data").unwrap(), 5019);
        scene.cufile.try_handle(-1).0.is(5022);
        scene.cufile.try_handle(9999).0.is(5022);
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = descriptors();
        for _ in 0..100 {
            let file = direct("data");
            let handle = scene.cufile.handle(&file);
            scene.cufile.cuFileHandleDeregister(handle);
        }
        assert_eq!(descriptors(), before);
        scene.end();
    })
    .clean();
}

#[test]
fn ending_what_operations_still_use() {
    child!(&[("CUFILE_STANDIN_FAIL", "cuFileBatchIOSubmit:1:entry:0:never")], || {
        let scene = Scene::registered();
        let batch = scene.cufile.batch(1);
        scene.cufile.cuFileBatchIOSubmit(batch, 1, &scene.entry(1, 0, 4096), 0).ok();
        // The entry is taken up by another thread.
        while scene.cufile.stats().batch_entries_in_flight == 0 {
            std::thread::yield_now();
        }
        scene.cufile.cuFileBufDeregister(scene.buffer).ok();
        scene.cufile.cuFileHandleDeregister(scene.handle);
        assert_eq!(scene.cuda.cuMemFree_v2(scene.buffer), 0);
    })
    .reported(&[
        "deregister-in-flight in cuFileBufDeregister",
        "deregister-in-flight in cuFileHandleDeregister",
        "free-while-held in cuMemFree_v2",
    ]);
}

#[test]
fn closing_the_driver_with_things_registered() {
    child!(&[], || {
        let scene = Scene::registered();
        scene.cufile.batch(1);
        let stream = scene.cuda.stream();
        scene.cufile.cuFileStreamRegister(stream, 0).ok();
        scene.cufile.cuFileDriverClose_v2().ok();
        let stats = scene.cufile.stats();
        assert_eq!((stats.handles, stats.buffers, stats.batches, stats.streams), (0, 0, 0, 0));
        // Not held any more.
        assert_eq!(scene.cuda.cuMemFree_v2(scene.buffer), 0);
        scene.cufile.cuFileDriverOpen().ok();
        assert_eq!(scene.read(1, 0, 0), -5027);
        scene.cufile.cuFileDriverClose_v2().ok();
    })
    .reported(&[
        "close-while-registered in cuFileDriverClose_v2",
        "close-while-registered in cuFileDriverClose_v2",
        "close-while-registered in cuFileDriverClose_v2",
        "close-while-registered in cuFileDriverClose_v2",
        "use-after-deregister in cuFileRead",
    ]);
}

#[test]
fn what_is_left_at_exit() {
    child!(&[("CUFILE_STANDIN_LEAKS", "1")], || {
        let scene = Scene::registered();
        scene.cufile.batch(1);
    })
    .reported(&["leak in exit", "leak in exit", "leak in exit", "leak in exit"]);
}

#[test]
fn calls_in_a_forked_child() {
    child!(&[("CUFILE_STANDIN_LEAKS", "1")], || {
        let scene = Scene::registered();
        // SAFETY: the child calls nothing that could wait for a thread that it has not inherited.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let failed = scene.read(4096, 0, 0) != -5001 || scene.cufile.cuFileUseCount() != 0;
            // SAFETY: ends the child without any exit handler.
            unsafe { libc::_exit(i32::from(failed)) };
        }
        let mut status = 0;
        // SAFETY: a child of our own, and a local.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(scene.read(FILE, 0, 0), FILE as isize);
        scene.end();
    })
    .reported(&["call-in-forked-child in cuFileRead", "call-in-forked-child in cuFileUseCount"]);
}

#[test]
fn a_report_can_abort() {
    child!(&[("CUFILE_STANDIN_ABORT", "1"), ("CUFILE_STANDIN_REPORT", "")], || {
        let cufile = CuFile::load();
        cufile.cuFileDriverClose_v2().is(5001);
    })
    .aborted("cufile-standin: misuse: close-not-open in cuFileDriverClose_v2 at 0x0");
}
