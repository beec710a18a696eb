//! Faults on request, at every function that can fail.

mod common;

use common::{BUFFER, CuFile, Cuda, Error, Event, Properties, Scene, direct, errno};

const EVERY_CODE: &str = "cuFileDriverOpen:*:5033";

#[test]
fn the_driver_refuses_to_open() {
    child!(&[("CUFILE_STANDIN_FAIL", EVERY_CODE), ("CUFILE_STANDIN_LEAKS", "1")], || {
        Cuda::ready();
        let cufile = CuFile::load();
        cufile.cuFileDriverOpen().is(5033);
        cufile.cuFileDriverOpen().is(5033);
        assert_eq!((cufile.cuFileUseCount(), cufile.stats().faults_struck), (0, 2));
    })
    .clean();
}

#[test]
fn a_fault_strikes_the_calls_that_it_names() {
    let fail = "cuFileBufRegister:2:5045,cuFileBufRegister:3:cuda:2,cuFileBufDeregister:2+:5030";
    child!(&[("CUFILE_STANDIN_FAIL", fail)], || {
        let scene = Scene::registered();
        let other = scene.cuda.allocate(4096);
        scene.cufile.cuFileBufRegister(other, 4096, 0).is(5045);
        assert_eq!(scene.cufile.cuFileBufRegister(other, 4096, 0), Error { cufile: 5011, cuda: 2 });
        scene.cufile.cuFileBufRegister(other, 4096, 0).ok();
        scene.cufile.cuFileBufDeregister(other).ok();
        scene.cufile.cuFileBufDeregister(scene.buffer).is(5030);
        scene.cufile.cuFileBufDeregister(scene.buffer).is(5030);
        assert_eq!((scene.cufile.stats().faults_struck, scene.cufile.stats().buffers), (4, 1));
    })
    .clean();
}

const TRANSFERS: &str = "cuFileRead:1:errno:5,cuFileRead:2:code:5030,cuFileRead:3:short:7,cuFileRead:4:half,\
    cuFileRead:5:zero,cuFileReadv:1:short:5000,cuFileWrite:1:errno:28,cuFileWritev:1:half";

#[test]
fn reads_and_writes_fail_or_fall_short() {
    child!(&[("CUFILE_STANDIN_FAIL", TRANSFERS)], || {
        let scene = Scene::registered();
        assert_eq!((scene.read(4096, 0, 0), errno()), (-1, libc::EIO));
        assert_eq!(scene.read(4096, 0, 0), -5030);
        scene.untouched(0, 4096);
        assert_eq!(scene.read(4096, 0, 0), 7);
        scene.same(0, 0, 7);
        scene.untouched(7, 4096);
        assert_eq!(scene.read(4096, 0, 0), 2048);
        scene.untouched(2048, 4096);
        assert_eq!(scene.read(4096, 0, 0), 0);
        assert_eq!(scene.read(4096, 0, 0), 4096);
        scene.same(0, 0, 4096);
        let vectors = [(scene.buffer + 8192, 4096), (scene.buffer + 16384, 4096)];
        assert_eq!(scene.cufile.cuFileReadv(scene.handle, vectors.as_ptr(), 2, 0, 0), 5000);
        scene.same(4096, 16384, 904);
        scene.untouched(16384 + 904, 4096 - 904);
        let out = std::fs::File::create("out").unwrap();
        let handle = scene.cufile.handle(&out);
        assert_eq!((scene.cufile.cuFileWrite(handle, scene.buffer, 64, 0, 0), errno()), (-1, libc::ENOSPC));
        assert_eq!(scene.cufile.cuFileWritev(handle, vectors.as_ptr(), 2, 0, 0), 4096);
        assert_eq!(std::fs::metadata("out").unwrap().len(), 4096);
        scene.cufile.cuFileHandleDeregister(handle);
        scene.end();
    })
    .clean();
}

#[test]
fn a_failing_copy_of_the_driver_is_told() {
    child!(&[("CUDA_EMULATOR_FAIL_COPY", "1")], || {
        let scene = Scene::registered();
        assert_eq!(scene.read(4096, 0, 0), -5011);
        assert_eq!(scene.read(4096, 0, 0), 4096);
        scene.end();
    })
    .clean();
}

/// Ends the process with success after a while: what runs before must not return.
fn must_hang(call: impl FnOnce() + Send + 'static) {
    let returned = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let sign = returned.clone();
    std::thread::spawn(move || {
        call();
        sign.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!returned.load(std::sync::atomic::Ordering::SeqCst), "the call has returned");
}

#[test]
fn opening_can_hang() {
    child!(&[("CUFILE_STANDIN_FAIL", "cuFileDriverOpen:1:hang")], || {
        let cuda = Cuda::ready();
        let cufile = CuFile::load();
        must_hang(move || {
            cuda.bind(0);
            cufile.cuFileDriverOpen().ok();
        });
        // Only that call.
        cufile.cuFileDriverOpen().ok();
        cufile.cuFileDriverClose_v2().ok();
    })
    .clean();
}

#[test]
fn asking_a_batch_can_hang_whatever_the_timeout() {
    child!(&[("CUFILE_STANDIN_FAIL", "cuFileBatchIOGetStatus:1:hang")], || {
        let scene = Scene::registered();
        let (cufile, batch) = (scene.cufile, scene.cufile.batch(1));
        scene.cufile.cuFileBatchIOSubmit(batch, 1, &scene.entry(1, 0, 4096), 0).ok();
        must_hang(move || {
            let (mut event, mut count) = (Event::default(), 1);
            let timeout = libc::timespec { tv_sec: 0, tv_nsec: 1 };
            cufile.cuFileBatchIOGetStatus(batch, 1, &mut count, &mut event, &timeout).ok();
        });
        assert_eq!(scene.cufile.ended(batch, 1).len(), 1);
        scene.cufile.cuFileBatchIODestroy(batch);
        scene.end();
    })
    .clean();
}

#[test]
fn registration_fails_after_so_many_bytes() {
    child!(&[("CUFILE_STANDIN_REGISTER_LIMIT", "12288:5036")], || {
        let scene = Scene::new();
        let (a, b) = (scene.cuda.allocate(8192), scene.cuda.allocate(8192));
        scene.cufile.cuFileBufRegister(a, 8192, 0).ok();
        scene.cufile.cuFileBufRegister(b, 8192, 0).is(5036);
        scene.cufile.cuFileBufRegister(b, 4096, 0).ok();
        assert_eq!(scene.cufile.stats().registered_bytes, 12288);
        scene.cufile.cuFileBufDeregister(a).ok();
        scene.cufile.cuFileBufDeregister(b).ok();
        scene.cufile.cuFileBufRegister(b, 8192, 0).ok();
        scene.cufile.cuFileBufDeregister(b).ok();
        scene.cufile.cuFileBufRegister(scene.buffer, BUFFER, 0).is(5036);
        scene.end_unregistered();
    })
    .clean();
}

#[test]
fn no_filesystem_is_good_enough() {
    child!(&[("CUFILE_STANDIN_HANDLE_FS", "fail:5030")], || {
        Cuda::ready();
        let cufile = CuFile::load();
        cufile.cuFileDriverOpen().ok();
        std::fs::write("data", "x").unwrap();
        let file = direct("data");
        cufile.try_handle(std::os::fd::AsRawFd::as_raw_fd(&file)).0.is(5030);
        cufile.cuFileDriverClose().ok();
    })
    .clean();
}

#[test]
fn large_reads_are_refused() {
    child!(&[("CUFILE_STANDIN_MAX_IO", "8192")], || {
        let scene = Scene::registered();
        assert_eq!(scene.read(8192, 0, 0), 8192);
        assert_eq!((scene.read(8193, 0, 0), errno()), (-1, 5022));
        let batch = scene.cufile.batch(1);
        scene.cufile.cuFileBatchIOSubmit(batch, 1, &scene.entry(1, 0, 8193), 0).is(5022);
        scene.cufile.cuFileBatchIODestroy(batch);
        scene.end();
    })
    .clean();
}

#[test]
fn large_reads_are_shortened() {
    child!(&[("CUFILE_STANDIN_MAX_IO", "8192:shorten")], || {
        let scene = Scene::registered();
        assert_eq!(scene.read(100_000, 1, 0), 8192);
        scene.same(1, 0, 8192);
        scene.untouched(8192, 8192);
        scene.end();
    })
    .clean();
}

const EVERYWHERE: &str = "cuFileDriverClose_v2:1:5006,cuFileDriverGetProperties:1:5002,cuFileDriverSetPollMode:1:5003,\
    cuFileDriverSetMaxDirectIOSize:1:5003,cuFileDriverSetMaxCacheSize:1:5003,cuFileDriverSetMaxPinnedMemSize:1:5003,\
    cuFileHandleRegister:2:5008,cuFileBatchIOSetUp:1:5039,cuFileBatchIOSubmit:1:5040,cuFileBatchIOGetStatus:1:5041,\
    cuFileBatchIOCancel:1:5042,cuFileStreamRegister:1:5007,cuFileStreamDeregister:1:5030,cuFileGetVersion:1:5030,\
    cuFileGetStatsL1:1:5048,cuFileGetBARSizeInKB:1:5029";

#[test]
fn every_function_can_fail() {
    child!(&[("CUFILE_STANDIN_FAIL", EVERYWHERE)], || {
        let scene = Scene::registered();
        let cufile = scene.cufile;
        cufile.cuFileDriverClose_v2().is(5006);
        cufile.cuFileDriverGetProperties(&mut Properties::default()).is(5002);
        cufile.cuFileDriverSetPollMode(true, 4).is(5003);
        cufile.cuFileDriverSetMaxDirectIOSize(1024).is(5003);
        cufile.cuFileDriverSetMaxCacheSize(1024).is(5003);
        cufile.cuFileDriverSetMaxPinnedMemSize(1024).is(5003);
        cufile.try_handle(std::os::fd::AsRawFd::as_raw_fd(&scene.file)).0.is(5008);
        let mut batch = 0;
        cufile.cuFileBatchIOSetUp(&mut batch, 1).is(5039);
        let batch = cufile.batch(1);
        cufile.cuFileBatchIOSubmit(batch, 1, &scene.entry(1, 0, 4096), 0).is(5040);
        let (mut event, mut count) = (Event::default(), 1);
        cufile.cuFileBatchIOGetStatus(batch, 0, &mut count, &mut event, std::ptr::null()).is(5041);
        cufile.cuFileBatchIOCancel(batch).is(5042);
        cufile.cuFileBatchIODestroy(batch);
        let stream = scene.cuda.stream();
        cufile.cuFileStreamRegister(stream, 0).is(5007);
        cufile.cuFileStreamRegister(stream, 0).ok();
        cufile.cuFileStreamDeregister(stream).is(5030);
        cufile.cuFileStreamDeregister(stream).ok();
        cufile.cuFileGetVersion(&mut 0).is(5030);
        cufile.cuFileGetStatsL1([0; 78].as_mut_ptr()).is(5048);
        cufile.cuFileGetBARSizeInKB(0, &mut 0).is(5029);
        assert_eq!(cufile.stats().faults_struck, 16);
        scene.end();
    })
    .clean();
}

#[test]
fn a_setting_that_is_not_understood_ends_the_process() {
    for (name, value) in [
        ("CUFILE_STANDIN_FAIL", "cuFileRead:1:5001"),
        ("CUFILE_STANDIN_FAIL", "cuFileReed:1:zero"),
        ("CUFILE_STANDIN_ROUTE", "direct"),
        ("CUFILE_STANDIN_FIAL", "cuFileRead:1:zero"),
    ] {
        child!(&[(name, value)], || {
            CuFile::load();
        })
        .aborted(name);
    }
}
