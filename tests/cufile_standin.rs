//! cuFile's direct paths and its faults, over a stand-in for the library.

mod cuda_common;
mod standin_common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_common::{Data, Dice, HELD, Use};
use gpufeed::cudarc::driver::{CudaContext, CudaStream, result};
use gpufeed::cufile::{Batch, Driver, FileHandle, RegisteredBuffer, Route};
use gpufeed::{
    Backend, BytesByWay, CheckpointFile, Dataset, Device, DeviceBuffer, Dtype, Error, ErrorKind, Loader,
    Shuffle, Way, WriteOptions,
};
use standin_common::{
    GPU, assert_all_by, assert_holds, assert_nothing_is_left, called, cool, deliver, file, in_child, inside,
    memory, open, over_standin, setting,
};

const ROUTES: [&str; 2] = ["nvfs", "p2pdma"];
const NVFS: (&str, &str) = ("CUFILE_STANDIN_ROUTE", "nvfs");
const SLOW: (&str, &str) = ("CUFILE_STANDIN_LATENCY", "random:7:300");

fn told_route() -> Route {
    match &*setting("CUFILE_STANDIN_ROUTE") {
        "nvfs" => Route::NvidiaFs,
        "p2pdma" => Route::PciP2pdma,
        _ => Route::Compatibility,
    }
}

/// The payload of one epoch.
fn payload(data: &Data) -> u64 {
    data.samples * data.sample_bytes() as u64
}

// ---- A machine that reads straight into the GPU ----

#[test]
fn where_cufile_is_direct_every_byte_goes_that_way_and_is_counted_so() {
    let timings = [("none", "none"), ("random:4:300", "random:5:200"), (HELD, "random:6:100")];
    for (route, (delay, latency)) in ROUTES.into_iter().flat_map(|route| timings.map(|it| (route, it))) {
        let environment = [
            ("CUFILE_STANDIN_ROUTE", route),
            ("CUDA_EMULATOR_DELAY", delay),
            ("CUFILE_STANDIN_LATENCY", latency),
        ];
        over_standin!(&environment, || {
            for (record, samples, batch) in
                [(1, 700, 64), (513, 200, 16), (4096, 70, 7), (150_528, 12, 4), (300_001, 7, 3)]
            {
                let data = Data::new(record, samples);
                cool(&data.dataset());
                let mut before = inside();
                for (backend, require, shuffle, io_bytes) in [
                    (Backend::Gds, false, Shuffle::None, 4096),
                    (Backend::Gds, true, Shuffle::Full, 64 << 10),
                    (Backend::Auto, true, Shuffle::None, 1 << 20),
                ] {
                    let builder = data.loader().backend(backend).require_gds(require).batch_size(batch);
                    let builder = builder.io_bytes(io_bytes).prefetch(2).queue_depth(4);
                    let mut loader = builder.shuffle(shuffle).seed(3).build().unwrap();
                    deliver(&data, &mut loader, shuffle, 1, |batch| Use::ALL[batch as usize % 6]);
                    let report = loader.report();
                    assert_eq!((report.backend, report.gds_route), (Backend::Gds, Some(told_route())));
                    assert_all_by(report.bytes_by_way, Way::Gds, payload(&data));
                    assert!(report.notes.is_empty() && report.not_direct.is_empty(), "{report:?}");
                    // What the other side counted.
                    let now = inside();
                    assert_eq!(now.direct_bytes - before.direct_bytes, report.bytes_read);
                    assert_eq!(now.posix_bytes, before.posix_bytes);
                    before = now;
                }
            }
            assert_nothing_is_left();
        });
    }
}

#[test]
fn auto_takes_gds_where_it_is_direct_and_says_by_which_route() {
    for route in ROUTES {
        over_standin!(&[("CUFILE_STANDIN_ROUTE", route)], || {
            // Large records: none of the reads of theirs is too small to be worth it.
            let data = Data::new(64 << 10, 40);
            cool(&data.dataset());
            let mut loader = data.loader().seed(3).build().unwrap();
            deliver(&data, &mut loader, Shuffle::None, 1, |_| Use::DropAtOnce);
            let report = loader.report();
            assert_eq!((report.backend, report.gds_route), (Backend::Gds, Some(told_route())));
            assert!(report.backend_reason.contains(told_route().name()), "{}", report.backend_reason);
            assert!(report.passed_over.is_empty());
            let ways = report.bytes_by_way;
            assert_eq!(ways.bytes(Way::Gds), 40 * (64 << 10));
            // The numbers are read in small pieces.
            assert_eq!(ways.bytes(Way::PreadDirect), 40 * 8);
            assert_eq!(ways.total(), payload(&data));
            assert_eq!(inside().posix_bytes, 0);
            assert!(Backend::Gds.probe().unwrap().direct);

            // A host loader does not look for cuFile at all.
            let mut loader = data.loader().device(Device::Host).build().unwrap();
            data.assert_epoch_on_host(&mut loader);
            assert_ne!(loader.report().backend, Backend::Gds);
        });
    }
}

#[test]
fn below_a_root_gds_is_passed_over_and_refused_since_cufile_opens_files_by_their_names() {
    over_standin!(&[NVFS], || {
        let data = Data::new(64 << 10, 20);
        let free = data.dataset();
        let numbers = free.files().last().unwrap().path();
        let builder = Dataset::builder().root(numbers.parent().unwrap());
        let dataset = Arc::new(builder.records("x", numbers, Dtype::U64, &[]).build().unwrap());
        let loader = || Loader::builder(Arc::clone(&dataset)).device(GPU).batch_size(20);
        let mut loaded = loader().build().unwrap();
        for batch in loaded.epoch(0).unwrap() {
            let mut bytes = Vec::new();
            batch.unwrap().column("x").unwrap().copy_to_host(&mut bytes).unwrap();
            assert_eq!(bytes, (0..20).flat_map(u64::to_le_bytes).collect::<Vec<_>>());
        }
        let report = loaded.report();
        assert_ne!(report.backend, Backend::Gds);
        assert_eq!(report.passed_over[0].backend, Backend::Gds);
        assert!(report.passed_over[0].reason.contains("below the root"), "{report:?}");
        for builder in [loader().backend(Backend::Gds), loader().require_gds(true)] {
            let error = builder.build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("below the root"), "{error}");
        }
        assert_eq!(called(c"cuFileHandleRegister"), 0);
    });
}

#[test]
fn small_reads_and_shards_in_the_page_cache_do_not_go_through_cufile() {
    over_standin!(&[NVFS], || {
        let data = Data::new(4096, 100);
        for (cold, way) in [(true, Way::PreadDirect), (false, Way::PreadBuffered)] {
            for file in data.dataset().files() {
                match cold {
                    true => gpufeed::evict(file.path()).unwrap(),
                    false => drop(std::fs::read(file.path()).unwrap()),
                }
            }
            let mut loader = data.loader().shuffle(Shuffle::Full).seed(3).build().unwrap();
            deliver(&data, &mut loader, Shuffle::Full, 2, |batch| Use::ALL[batch as usize % 6]);
            let report = loader.report();
            assert_eq!(report.backend, Backend::Gds);
            assert_all_by(report.bytes_by_way, way, 2 * payload(&data));
            assert_eq!(called(c"cuFileRead"), 0);
        }
        // Where it is required, they do, and directly.
        let builder = data.loader().shuffle(Shuffle::Full).seed(3).require_gds(true);
        let mut loader = builder.build().unwrap();
        deliver(&data, &mut loader, Shuffle::Full, 1, |batch| Use::ALL[batch as usize % 6]);
        assert_all_by(loader.report().bytes_by_way, Way::Gds, payload(&data));
        assert_eq!(inside().posix_bytes, 0);
    });
}

#[test]
fn in_compatibility_mode_auto_passes_cufile_over_and_says_why() {
    over_standin!(&[], || {
        let data = Data::new(64 << 10, 20);
        cool(&data.dataset());
        let mut loader = data.loader().seed(3).build().unwrap();
        deliver(&data, &mut loader, Shuffle::None, 1, |_| Use::DropAtOnce);
        let report = loader.report();
        assert_ne!(report.backend, Backend::Gds);
        assert_eq!((report.passed_over[0].backend, report.gds_route), (Backend::Gds, None));
        assert!(report.passed_over[0].reason.contains("compatibility mode"), "{report:?}");
        assert_eq!(report.bytes_by_way.bytes(Way::Gds) + report.bytes_by_way.bytes(Way::CufileCompat), 0);
        for backend in [Backend::Auto, Backend::Gds] {
            let error = data.loader().backend(backend).require_gds(true).build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("compatibility mode"), "{error}");
        }
        assert!(!Backend::Gds.probe().unwrap().direct);

        let mut loader = data.loader().backend(Backend::Gds).seed(3).build().unwrap();
        deliver(&data, &mut loader, Shuffle::None, 1, |_| Use::DropAtOnce);
        let report = loader.report();
        assert_eq!(report.gds_route, Some(Route::Compatibility));
        assert_all_by(report.bytes_by_way, Way::CufileCompat, payload(&data));
        assert_eq!((inside().posix_bytes, inside().direct_bytes), (report.bytes_read, 0));
    });
}

#[test]
fn slots_are_filled_again_only_when_their_consumer_is_through() {
    for delay in ["none", "random:2:2000", "adversarial:5", HELD] {
        over_standin!(&[NVFS, SLOW, ("CUDA_EMULATOR_DELAY", delay)], || {
            let data = Data::new(4096, 150);
            for (prefetch, shuffle) in [(1, Shuffle::Full), (2, Shuffle::None), (5, Shuffle::Full)] {
                for backend in [Backend::Gds, Backend::Auto] {
                    cool(&data.dataset());
                    let builder = data.loader().backend(backend).prefetch(prefetch);
                    let mut loader = builder.shuffle(shuffle).seed(3).build().unwrap();
                    let mut dice = Dice(u64::from(prefetch));
                    let uses = if prefetch > 2 { 8 } else { 6 };
                    deliver(&data, &mut loader, shuffle, 2, |_| Use::ALL[dice.roll(uses) as usize]);
                }
            }
            // The tightest ring.
            let builder = data.loader().backend(Backend::Gds).batch_size(2).prefetch(1).queue_depth(1);
            let mut loader = builder.io_bytes(8192).shuffle(Shuffle::Full).seed(3).build().unwrap();
            deliver(&data, &mut loader, Shuffle::Full, 2, |batch| Use::ALL[batch as usize % 6]);
        });
    }
}

#[test]
fn the_drivers_statistics_say_what_was_done() {
    for route in ["nvfs", "p2pdma", "compat"] {
        over_standin!(&[("CUFILE_STANDIN_ROUTE", route)], || {
            let driver = open();
            assert_eq!(driver.route().unwrap(), told_route());
            driver.count_reads().unwrap();
            let (path, bytes) = file("data", 64 << 10);
            let handle = FileHandle::open(&driver, &path).unwrap();
            let (buffer, _) = memory(64 << 10);
            let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
            for part in 0..4 {
                handle.read_exact_at(part << 14, 1 << 14, &registered, (part as usize) << 14).unwrap();
            }
            assert_holds(&buffer, 0, &bytes);
            let counted = driver.reads().unwrap();
            let all = [counted.nvidia_fs, counted.pci_p2pdma, counted.posix];
            let right = match told_route() {
                Route::NvidiaFs => [4, 0, 0],
                Route::PciP2pdma => [0, 4, 0],
                _ => [0, 0, 4],
            };
            assert_eq!(all, right);
        });
    }
}

// ---- A library that is not there, or not whole ----

#[test]
fn a_driver_that_does_not_open_is_unavailable_and_auto_goes_on_without() {
    for (what, told) in [("5001", "5001"), ("5033", "5033"), ("5008", "5008"), ("cuda:100", "5011")] {
        let fault = format!("cuFileDriverOpen:*:{what}");
        over_standin!(&[NVFS, ("CUFILE_STANDIN_FAIL", &fault), ("TOLD", told)], || {
            for _ in 0..2 {
                let error = Driver::open(GPU).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                let words = error.to_string();
                assert!(
                    words.contains("cuFile cannot be used") && words.contains(&setting("TOLD")),
                    "{words}"
                );
            }
            goes_on_without_cufile(ErrorKind::Unavailable, &setting("TOLD"));
        });
    }
}

/// A named `gds` fails so, and `auto` works and tells these words.
#[track_caller]
fn goes_on_without_cufile(kind: ErrorKind, words: &str) {
    let data = Data::new(64 << 10, 12);
    cool(&data.dataset());
    for builder in [data.loader().backend(Backend::Gds), data.loader().require_gds(true)] {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let mut loader = data.loader().build().unwrap();
    data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
    let report = loader.report();
    assert!(report.backend != Backend::Gds && report.passed_over[0].reason.contains(words), "{report:?}");
    assert_eq!(report.bytes_by_way.bytes(Way::Gds) + report.bytes_by_way.bytes(Way::CufileCompat), 0);
    let (buffer, bytes) = memory(10_000);
    let path = std::env::current_dir().unwrap().join("checkpoint");
    let mut out = CheckpointFile::create(&path, WriteOptions::new()).unwrap();
    out.write_at(0, &buffer, 0..bytes.len()).unwrap();
    assert_eq!(out.commit().unwrap().bytes(Way::Gds), 0);
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_driver_that_never_opens_is_given_up() {
    over_standin!(&[NVFS, ("CUFILE_STANDIN_FAIL", "cuFileDriverOpen:*:hang")], || {
        let start = Instant::now();
        let error = Driver::open(GPU).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("did not return"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(30));
        // That is known from now on.
        goes_on_without_cufile(ErrorKind::Unavailable, "did not return");
        assert!(start.elapsed() < Duration::from_secs(30));
    });
}

#[test]
fn a_driver_that_tells_nothing_is_not_taken_for_a_direct_one() {
    over_standin!(&[NVFS, ("CUFILE_STANDIN_FAIL", "cuFileDriverGetProperties:*:5008")], || {
        assert_eq!(open().properties().unwrap_err().kind(), ErrorKind::Device);
        goes_on_without_cufile(ErrorKind::Device, "5008");
        assert_nothing_is_left();
    });
}

#[test]
fn a_library_that_is_not_cufile_is_told_by_its_name() {
    let driver = cuda_common::emulator();
    for (library, words) in [
        (driver.to_str().unwrap(), "not cuFile"),
        ("/etc/passwd", "/etc/passwd"),
        ("/nowhere/libcufile.so.0", "not there"),
        ("/nowhere", "not there"),
    ] {
        over_standin!(&[("GPUFEED_LIBCUFILE", library), ("TOLD", words)], || {
            let error = Driver::open(GPU).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            goes_on_without_cufile(ErrorKind::Unavailable, &setting("TOLD"));
        });
    }
}

#[test]
fn what_a_library_lacks_is_an_error_that_names_it_and_the_rest_works() {
    const LACKS: &str = "cuFileReadAsync,cuFileBatchIOSetUp,cuFileGetVersion,cuFileReadv,cuFileGetBARSizeInKB,\
                         cuFileSetStatsLevel,cuFileGetStatsL3,cuFileDriverSetPollMode,cuFileBatchIOCancel";
    over_standin!(&[NVFS, ("CUFILE_STANDIN_MISSING", LACKS)], || {
        let driver = open();
        let (path, bytes) = file("data", 8192);
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, _) = memory(8192);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        let lacks = |error: Error, name: &str| {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let words = error.to_string();
            assert!(words.contains(name) && words.contains("1."), "{words}");
        };
        lacks(handle.read_on_stream(0, 4096, &registered, 0, &stream).unwrap_err(), "cuFileReadAsync");
        lacks(Batch::new(&driver, 1).unwrap_err(), "cuFileBatchIOSetUp");
        lacks(driver.version().unwrap_err(), "cuFileGetVersion");
        lacks(handle.read_vectored(0, &registered, &[(0, 10)]).unwrap_err(), "cuFileReadv");
        lacks(driver.bar_bytes().unwrap_err(), "cuFileGetBARSizeInKB");
        lacks(driver.count_reads().unwrap_err(), "cuFileSetStatsLevel");
        lacks(driver.reads().unwrap_err(), "cuFileGetStatsL3");
        lacks(driver.set_poll_mode(true, 4096).unwrap_err(), "cuFileDriverSetPollMode");
        handle.read_exact_at(0, 8192, &registered, 0).unwrap();
        assert_holds(&buffer, 0, &bytes);
        reads_all_by_gds();
    });
}

/// A loader of a named `gds` reads all of its bytes by it.
#[track_caller]
fn reads_all_by_gds() {
    let data = Data::new(4096, 60);
    cool(&data.dataset());
    let mut loader = data.loader().backend(Backend::Gds).build().unwrap();
    data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
    let way = if told_route().is_direct() { Way::Gds } else { Way::CufileCompat };
    assert_all_by(loader.report().bytes_by_way, way, payload(&data));
}

#[test]
fn an_old_library_does_what_it_can() {
    for (version, route) in [("1140", "compat"), ("1140", "nvfs"), ("1110", "nvfs"), ("1150", "nvfs")] {
        over_standin!(&[("CUFILE_STANDIN_VERSION", version), ("CUFILE_STANDIN_ROUTE", route)], || {
            let driver = open();
            assert_eq!(driver.version().unwrap().to_string(), setting("CUFILE_STANDIN_VERSION"));
            assert_eq!(driver.route().unwrap(), told_route());
            if driver.version().unwrap() < 1150 {
                assert_eq!(driver.count_reads().unwrap_err().kind(), ErrorKind::Unsupported);
                assert_eq!(driver.bar_bytes().unwrap_err().kind(), ErrorKind::Unsupported);
            }
            drop(driver);
            reads_all_by_gds();
            assert_nothing_is_left();
        });
    }
}

#[test]
fn without_what_everything_needs_it_is_no_cufile() {
    for missing in ["cuFileRead", "cuFileDriverOpen", "cuFileHandleRegister", "cuFileBufRegister"] {
        over_standin!(&[NVFS, ("CUFILE_STANDIN_MISSING", missing)], || {
            let missing = setting("CUFILE_STANDIN_MISSING");
            let data = Data::new(64 << 10, 12);
            cool(&data.dataset());
            if missing != "cuFileBufRegister" {
                let error = data.loader().require_gds(true).build().unwrap_err();
                assert!(error.to_string().contains(&missing), "{error}");
            }
            let mut loader = data.loader().build().unwrap();
            data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
            println!("{:?}", loader.report());
        });
    }
}

// ---- Calls that fail ----

/// A fault for a child, by its environment.
fn with_fault(test: &str, setting: &str, fault: &str, body: impl FnOnce()) {
    in_child(test, &[NVFS, (setting, fault)], body);
}

#[test]
fn files_that_cufile_refuses_are_read_by_pread_and_noted() {
    const TEST: &str = "files_that_cufile_refuses_are_read_by_pread_and_noted";
    for what in ["*:5030", "*:5008", "*:5019", "*:cuda:201", "2:5008"] {
        let fault = format!("cuFileHandleRegister:{what}");
        with_fault(TEST, "CUFILE_STANDIN_FAIL", &fault, || {
            let fault = setting("CUFILE_STANDIN_FAIL");
            let code = fault.rsplit(':').next().unwrap().replace("201", "5011");
            let data = Data::new(4096, 90);
            cool(&data.dataset());
            for backend in [Backend::Gds, Backend::Auto] {
                // The stand-in itself reads through the page cache.
                cool(&data.dataset());
                let mut loader = data.loader().backend(backend).build().unwrap();
                data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
                let (report, ways) = (loader.report(), loader.report().bytes_by_way);
                assert_eq!(report.backend, Backend::Gds);
                assert_eq!(ways.total(), payload(&data));
                assert_eq!(ways.total(), ways.bytes(Way::Gds) + ways.bytes(Way::PreadDirect));
                if fault.contains('*') {
                    assert_all_by(ways, Way::PreadDirect, payload(&data));
                }
                let noted = report.notes.iter().any(|note| note.contains(&code));
                assert!(noted || backend == Backend::Auto && fault.contains("2:"), "{report:?}");
            }
            if fault.contains('*') {
                let mut loader = data.loader().require_gds(true).build().unwrap();
                let error = loader.epoch(0).unwrap().find_map(Result::err).unwrap();
                assert!(error.path().is_some() && error.backend() == Some("gds"), "{error:?}");
                let words = cause(&error);
                assert!(words.contains(&code) && words.contains("required"), "{words}");
                if code == "5030" && !std::path::Path::new("/run/udev").exists() {
                    assert!(words.contains("/run/udev"), "{words}");
                }
                let driver = open();
                let path = data.dataset().files()[0].path().to_path_buf();
                let error = FileHandle::open(&driver, &path).unwrap_err();
                assert_eq!((error.kind(), error.path()), (ErrorKind::Device, Some(&*path)));
            }
            drop(data);
            assert_nothing_is_left();
        });
    }
}

/// An error and what caused it, in words.
fn cause(error: &Error) -> String {
    let mut words = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(error) = next {
        words = format!("{words}: {error}");
        next = error.source();
    }
    words
}

#[test]
fn memory_that_cannot_be_registered_is_used_as_it_is_and_noted() {
    const TEST: &str = "memory_that_cannot_be_registered_is_used_as_it_is_and_noted";
    for (name, fault) in [
        ("CUFILE_STANDIN_FAIL", "cuFileBufRegister:*:5016"),
        ("CUFILE_STANDIN_FAIL", "cuFileBufRegister:3:5020"),
        ("CUFILE_STANDIN_FAIL", "cuFileBufRegister:2+:cuda:2"),
        ("CUFILE_STANDIN_REGISTER_LIMIT", "300000"),
        ("CUFILE_STANDIN_REGISTER_LIMIT", "300000:5020"),
        ("CUFILE_STANDIN_BAR_KIB", "512"),
    ] {
        with_fault(TEST, name, fault, || {
            let bar = setting("CUFILE_STANDIN_BAR_KIB");
            let data = Data::new(4096, 90);
            cool(&data.dataset());
            for require in [false, true] {
                let builder = data.loader().backend(Backend::Gds).require_gds(require).prefetch(3);
                let mut loader = builder.shuffle(Shuffle::Full).seed(3).build().unwrap();
                println!("{:?}", inside());
                if !bar.is_empty() {
                    assert!((1..=256 << 10).contains(&inside().registered_bytes));
                }
                deliver(&data, &mut loader, Shuffle::Full, 2, |batch| Use::ALL[batch as usize % 6]);
                let report = loader.report();
                assert_all_by(report.bytes_by_way, Way::Gds, 2 * payload(&data));
                let words = if bar.is_empty() { "cannot be registered" } else { "BAR1" };
                let noted = report
                    .notes
                    .iter()
                    .any(|note| note.contains("buffers are registered with cuFile") && note.contains(words));
                // The third call of the process is the first loader's.
                assert!(noted || require && setting("CUFILE_STANDIN_FAIL").contains(":3:"), "{report:?}");
            }
            assert_nothing_is_left();

            let driver = open();
            let (buffer, _) = memory(1 << 20);
            match RegisteredBuffer::new(&driver, &buffer) {
                Ok(registered) => {
                    assert!(!bar.is_empty() || called(c"cuFileBufRegister") > 3, "{registered:?}")
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Device),
            }
        });
    }
}

#[test]
fn where_only_registered_memory_can_be_read_into_the_rest_comes_by_pread() {
    let environment =
        [NVFS, ("CUFILE_STANDIN_REGISTER_LIMIT", "300000"), ("CUFILE_STANDIN_UNREGISTERED_READS", "fail")];
    over_standin!(&environment, || {
        let data = Data::new(4096, 90);
        cool(&data.dataset());
        let mut loader = data.loader().backend(Backend::Gds).prefetch(4).build().unwrap();
        for epoch in 0..2 {
            data.assert_epoch(&mut loader, Shuffle::None, 0, epoch);
        }
        let (report, ways) = (loader.report(), loader.report().bytes_by_way);
        assert_eq!(ways.bytes(Way::Gds) + ways.bytes(Way::PreadDirect), 2 * payload(&data));
        assert!(ways.bytes(Way::PreadDirect) > 0 && report.notes.len() > 1, "{report:?}");
    });
}

#[test]
fn a_read_that_fails_is_done_by_pread_or_is_an_error_where_gds_is_required() {
    const TEST: &str = "a_read_that_fails_is_done_by_pread_or_is_an_error_where_gds_is_required";
    let whats = ["errno:5", "errno:22", "errno:95", "errno:12", "code:5022", "code:5011", "code:5035"];
    for (what, call) in whats.into_iter().flat_map(|what| ["1", "7", "*", "20+"].map(|call| (what, call))) {
        with_fault(TEST, "CUFILE_STANDIN_FAIL", &format!("cuFileRead:{call}:{what}"), || {
            let fault = setting("CUFILE_STANDIN_FAIL");
            let data = Data::new(4096, 90);
            cool(&data.dataset());
            let loader = |require| {
                let builder = data.loader().backend(Backend::Gds).require_gds(require);
                builder.shuffle(Shuffle::Full).seed(3).build().unwrap()
            };
            let with_pread = |calls: &str| {
                let mut loader = loader(false);
                deliver(&data, &mut loader, Shuffle::Full, 2, |batch| Use::ALL[batch as usize % 6]);
                let (report, ways) = (loader.report(), loader.report().bytes_by_way);
                assert_eq!(ways.bytes(Way::Gds) + ways.bytes(Way::PreadDirect), 2 * payload(&data));
                assert!(ways.bytes(Way::PreadDirect) > 0, "{ways:?}");
                assert!(!calls.contains('*') || ways.bytes(Way::Gds) == 0, "{ways:?}");
                let noted = report.notes.iter().any(|note| note.contains("cuFile failed once"));
                assert!(noted && inside().failed > 0, "{report:?}");
                // After its first failure a file is left alone for the rest of the epoch: of some 360 reads at most
                // those that were in flight.
                assert!(!calls.contains('*') || called(c"cuFileRead") < 120, "{}", called(c"cuFileRead"));
            };
            // The calls of one process are counted together: whoever comes first gets a fault that strikes once.
            if fault.contains(":7:") || fault.contains(":1:") && fault.contains("errno:5") {
                return with_pread(&fault);
            }
            let mut loader = loader(true);
            let mut error = None;
            for batch in loader.epoch(0).unwrap() {
                match batch {
                    Ok(batch) => data.assert_batch(&batch),
                    Err(it) => error = Some(it),
                }
            }
            let error = error.expect("a read failed");
            assert_eq!((error.kind(), error.backend()), (ErrorKind::Io, Some("gds")), "{error}");
            assert!(error.path().is_some() && error.offset().is_some() && error.length() > Some(0));
            assert!(cause(&error).contains("the cuFile read failed"), "{}", cause(&error));
            assert_eq!(loader.report().bytes_by_way.bytes(Way::PreadDirect), 0);
            if fault.contains('*') || fault.contains('+') {
                drop(loader);
                return with_pread(&fault);
            }
            // It was but one call: the next epoch is whole.
            data.assert_epoch(&mut loader, Shuffle::Full, 3, 1);
        });
    }
}

#[test]
fn short_reads_are_resumed_and_one_that_gets_nowhere_is_a_failed_one() {
    const TEST: &str = "short_reads_are_resumed_and_one_that_gets_nowhere_is_a_failed_one";
    let faults =
        ["1:half", "*:half", "*:short:4096", "5:short:1", "*:short:5000", "5:zero", "*:short:1", "*:zero"];
    let faults = faults.map(|it| ("CUFILE_STANDIN_FAIL", format!("cuFileRead:{it}")));
    let limit = ("CUFILE_STANDIN_MAX_IO", "8192:shorten".to_string());
    for (name, fault) in faults.into_iter().chain([limit]) {
        with_fault(TEST, name, &fault, || {
            let fault = setting("CUFILE_STANDIN_FAIL");
            let nowhere = fault.contains("short:1") || fault.contains("zero");
            for (record, samples) in [(32 << 10, 12), (5001, 40)] {
                let data = Data::new(record, samples);
                cool(&data.dataset());
                for require in [true, false] {
                    let builder = data.loader().backend(Backend::Gds).require_gds(require);
                    let mut loader = builder.batch_size(4).build().unwrap();
                    let mut failed = None;
                    for batch in loader.epoch(0).unwrap() {
                        match batch {
                            Ok(batch) => data.assert_batch(&batch),
                            Err(error) => failed = Some(error),
                        }
                    }
                    let (report, ways) = (loader.report(), loader.report().bytes_by_way);
                    match failed {
                        Some(error) => {
                            assert!(require && (nowhere || fault.contains("half")), "{}", cause(&error));
                            assert!(error.path().is_some() && error.offset().is_some(), "{error:?}");
                            assert!(error.length().is_some(), "{error:?}");
                        }
                        None => {
                            assert_eq!(ways.bytes(Way::Gds) + ways.bytes(Way::PreadDirect), payload(&data));
                            assert!(!require || ways.bytes(Way::PreadDirect) == 0);
                            let noted = report.notes.iter().any(|note| note.contains("the file goes on"));
                            assert!(noted || ways.bytes(Way::PreadDirect) == 0, "{report:?}");
                        }
                    }
                }
            }
        });
    }
}

#[test]
fn a_reading_thread_is_not_confused_by_the_largest_io_of_the_driver() {
    over_standin!(&[NVFS, ("CUFILE_STANDIN_MAX_IO", "8192:refuse")], || {
        let data = Data::new(64 << 10, 12);
        cool(&data.dataset());
        let mut loader = data.loader().backend(Backend::Gds).build().unwrap();
        data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
        assert!(loader.report().bytes_by_way.bytes(Way::PreadDirect) > 0);
        let mut loader = data.loader().backend(Backend::Gds).io_bytes(8192).build().unwrap();
        data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
        assert_all_by(loader.report().bytes_by_way, Way::Gds, payload(&data));
    });
}

// ---- Batches ----

const PAGE: usize = 4096;
const ENTRIES: usize = 16;

/// A batch of a page for each entry, the pages of the file from the last to the first.
fn pages<'b>(driver: &Driver, handle: &'b FileHandle, registered: &'b RegisteredBuffer<'_>) -> Batch<'b> {
    let mut batch = Batch::new(driver, ENTRIES).unwrap();
    for entry in 0..ENTRIES {
        let from = (ENTRIES - 1 - entry) * PAGE;
        assert_eq!(batch.read(handle, from as u64, PAGE, registered, entry * PAGE).unwrap(), entry);
    }
    batch
}

#[test]
fn entries_of_a_batch_fail_singly_and_none_is_taken_for_a_whole_one() {
    const TEST: &str = "entries_of_a_batch_fail_singly_and_none_is_taken_for_a_whole_one";
    let outcomes = ["failed", "invalid", "timeout", "canceled", "-5", "-5011", "-1", "0", "100", "4095"];
    let all =
        outcomes.iter().flat_map(|outcome| ["0", "7", "15", "*"].map(|entry| format!("{entry}:{outcome}")));
    // Several kinds in one batch, to have fewer children.
    let mut faults: Vec<String> = all.map(|it| format!("cuFileBatchIOSubmit:1:entry:{it}")).collect();
    faults.retain(|it| it.contains(":*:") || it.contains(":7:"));
    faults.push("cuFileBatchIOSubmit:1:entry:0:failed,cuFileBatchIOSubmit:1:entry:15:-5".into());
    for fault in faults {
        with_fault(TEST, "CUFILE_STANDIN_FAIL", &fault, || {
            let fault = setting("CUFILE_STANDIN_FAIL");
            let driver = open();
            let (path, bytes) = file("data", ENTRIES * PAGE);
            let handle = FileHandle::open(&driver, &path).unwrap();
            let (buffer, before) = memory(ENTRIES * PAGE);
            let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
            for round in 0..2 {
                let mut batch = pages(&driver, &handle, &registered);
                batch.submit().unwrap();
                let outcomes = batch.wait(Duration::from_secs(10)).unwrap();
                assert_eq!(outcomes.len(), ENTRIES);
                for (entry, outcome) in outcomes.into_iter().enumerate() {
                    assert_eq!(outcome.entry, entry);
                    let from = (ENTRIES - 1 - entry) * PAGE;
                    let struck = round == 0
                        && (fault.contains(&format!("entry:{entry}:")) || fault.contains("entry:*:"));
                    let come = match outcome.result {
                        Ok(n) => {
                            let short = fault.rsplit(':').next().unwrap().parse::<usize>();
                            assert_eq!(n, if struck { short.unwrap() } else { PAGE });
                            n
                        }
                        Err(error) => {
                            assert!(struck, "{error}");
                            assert_eq!((error.kind(), error.path()), (ErrorKind::Io, Some(&*path)));
                            let range = (error.offset(), error.length());
                            assert_eq!(range, (Some(from as u64), Some(PAGE as u64)));
                            0
                        }
                    };
                    assert_holds(&buffer, entry * PAGE, &bytes[from..from + come]);
                    if round == 0 && come == 0 {
                        assert_holds(&buffer, entry * PAGE, &before[entry * PAGE..][..PAGE]);
                    }
                }
                // Waited for already.
                assert!(batch.wait(Duration::ZERO).unwrap().iter().all(|it| it.result.is_err()));
            }
        });
    }
}

#[test]
fn a_batch_that_is_refused_leaves_nothing_in_flight() {
    const TEST: &str = "a_batch_that_is_refused_leaves_nothing_in_flight";
    for fault in [
        "cuFileBatchIOSetUp:1:5011",
        "cuFileBatchIOSubmit:1:5011",
        "cuFileBatchIOSubmit:1:cuda:1",
        "cuFileBatchIOGetStatus:1:5011",
        "cuFileBatchIOGetStatus:2:5005",
    ] {
        with_fault(TEST, "CUFILE_STANDIN_FAIL", fault, || {
            let fault = setting("CUFILE_STANDIN_FAIL");
            let driver = open();
            let (path, bytes) = file("data", ENTRIES * PAGE);
            let handle = FileHandle::open(&driver, &path).unwrap();
            let (buffer, _) = memory(ENTRIES * PAGE);
            let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
            if fault.contains("SetUp") {
                assert_eq!(Batch::new(&driver, ENTRIES).unwrap_err().kind(), ErrorKind::Device);
            }
            let mut batch = pages(&driver, &handle, &registered);
            if fault.contains("Submit") {
                assert_eq!(batch.submit().unwrap_err().kind(), ErrorKind::Device);
                assert_eq!(batch.wait(Duration::ZERO).unwrap_err().kind(), ErrorKind::InvalidArgument);
                assert_eq!((inside().reads, inside().batch_entries_in_flight), (0, 0));
                drop(batch);
                batch = pages(&driver, &handle, &registered);
            }
            batch.submit().unwrap();
            if fault.contains("GetStatus:1") {
                assert_eq!(batch.wait(Duration::from_secs(9)).unwrap_err().kind(), ErrorKind::Device);
            }
            let all = batch.wait(Duration::from_secs(9));
            let all = all.or_else(|_| batch.wait(Duration::from_secs(9))).unwrap();
            assert!(all.into_iter().all(|it| it.result.unwrap() == PAGE));
            for entry in 0..ENTRIES {
                assert_holds(&buffer, entry * PAGE, &bytes[(ENTRIES - 1 - entry) * PAGE..][..PAGE]);
            }
        });
    }
}

#[test]
fn batches_keep_to_the_drivers_limit() {
    over_standin!(&[NVFS, ("CUFILE_STANDIN_MAX_BATCH", "16")], || {
        let driver = open();
        assert_eq!(driver.properties().unwrap().max_batch, 16);
        for capacity in [0, 17, 1 << 20, usize::MAX] {
            let error = Batch::new(&driver, capacity).unwrap_err();
            assert!(
                error.kind() == ErrorKind::InvalidArgument && error.to_string().contains("16"),
                "{error}"
            );
        }
        let (path, bytes) = file("data", ENTRIES * PAGE);
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, _) = memory(ENTRIES * PAGE);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        let mut batch = pages(&driver, &handle, &registered);
        let wrong = |error: Error| assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        wrong(batch.read(&handle, 0, PAGE, &registered, 0).unwrap_err());
        wrong(batch.wait(Duration::ZERO).unwrap_err());
        batch.submit().unwrap();
        wrong(batch.submit().unwrap_err());
        wrong(batch.read(&handle, 0, PAGE, &registered, 0).unwrap_err());
        batch.wait(Duration::from_secs(9)).unwrap();
        wrong(batch.submit().unwrap_err());
        let mut batch = Batch::new(&driver, 2).unwrap();
        wrong(batch.submit().unwrap_err());
        for (at, len) in [(ENTRIES * PAGE, 1), (0, ENTRIES * PAGE + 1), (usize::MAX, 2), (1, usize::MAX)] {
            wrong(batch.read(&handle, 0, len, &registered, at).unwrap_err());
        }
        wrong(batch.read(&handle, u64::MAX, 1, &registered, 0).unwrap_err());
        // A write and a read past the file's end.
        batch.read(&handle, (ENTRIES * PAGE - 10) as u64, 100, &registered, 0).unwrap();
        batch.read(&handle, 1 << 40, 100, &registered, 100).unwrap();
        batch.submit().unwrap();
        let ends: Vec<_> =
            batch.wait(Duration::from_secs(9)).unwrap().into_iter().map(|it| it.result.unwrap()).collect();
        assert_eq!(ends, [10, 0]);
        assert_holds(&buffer, 0, &bytes[ENTRIES * PAGE - 10..]);
    });
}

#[test]
fn a_batch_is_dropped_at_any_moment() {
    over_standin!(&[NVFS, SLOW], || {
        let driver = open();
        let (path, bytes) = file("data", ENTRIES * PAGE);
        let mut dice = Dice(5);
        for round in 0..120 {
            let handle = FileHandle::open(&driver, &path).unwrap();
            let (buffer, _) = memory(ENTRIES * PAGE);
            let registered = match round % 3 {
                0 => RegisteredBuffer::unregistered(&driver, &buffer).unwrap(),
                _ => RegisteredBuffer::new(&driver, &buffer).unwrap(),
            };
            let mut batch = pages(&driver, &handle, &registered);
            let action = dice.roll(4);
            if action > 0 {
                batch.submit().unwrap();
            }
            if action > 1 {
                let _ = batch.wait(Duration::from_micros(dice.roll(1000)));
            }
            if action > 2 {
                batch.wait(Duration::from_secs(9)).map_or_else(|_| (), |_| ());
                assert_holds(&buffer, 0, &bytes[(ENTRIES - 1) * PAGE..]);
            }
            drop(batch);
            assert_eq!(inside().batch_entries_in_flight, 0);
        }
        drop(driver);
        assert_nothing_is_left();
    });
}

#[test]
fn an_entry_that_never_ends_is_given_up_and_its_memory_kept() {
    let environment = [
        NVFS,
        ("CUFILE_STANDIN_FAIL", "cuFileBatchIOSubmit:1:entry:3:never"),
        ("CUFILE_STANDIN_LEAKS", "0"),
        ("CUDA_EMULATOR_LEAKS", "0"),
    ];
    over_standin!(&environment, || {
        let driver = open();
        let (path, bytes) = file("data", ENTRIES * PAGE);
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, before) = memory(ENTRIES * PAGE);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        let mut batch = pages(&driver, &handle, &registered);
        batch.submit().unwrap();
        let start = Instant::now();
        let error = batch.wait(Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device);
        assert!(error.to_string().contains("1 of 16"), "{error}");
        assert!((200..2000).contains(&start.elapsed().as_millis()));
        drop(batch);
        assert!(start.elapsed() < Duration::from_secs(45), "dropping it hangs");
        assert_holds(&buffer, 0, &bytes[(ENTRIES - 1) * PAGE..]);
        assert_holds(&buffer, 3 * PAGE, &before[3 * PAGE..4 * PAGE]);
        drop(registered);
        drop((buffer, handle));
        // The next batch is not troubled.
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, _) = memory(ENTRIES * PAGE);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        let mut batch = pages(&driver, &handle, &registered);
        batch.submit().unwrap();
        assert!(batch.wait(Duration::from_secs(9)).unwrap().iter().all(|it| it.result.is_ok()));
    });
}

#[test]
fn what_is_forgotten_in_flight_is_sound() {
    let environment = [
        NVFS,
        SLOW,
        ("CUFILE_STANDIN_LEAKS", "0"),
        ("CUDA_EMULATOR_LEAKS", "0"),
        ("CUDA_EMULATOR_DELAY", "random:3:900"),
    ];
    over_standin!(&environment, || {
        let driver = open();
        let (path, _) = file("data", ENTRIES * PAGE);
        let context = CudaContext::new(0).unwrap();
        for _ in 0..20 {
            let handle = FileHandle::open(&driver, &path).unwrap();
            let (buffer, _) = memory(ENTRIES * PAGE);
            let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
            let mut batch = pages(&driver, &handle, &registered);
            batch.submit().unwrap();
            std::mem::forget(batch);
            let stream = context.new_stream().unwrap();
            std::mem::forget(handle.read_on_stream(0, PAGE, &registered, 0, &stream).unwrap());
            drop(registered);
            drop((buffer, handle));
        }
        drop((driver, context));
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(inside().misuses, 0);
    });
}

// ---- Reads in the order of a stream ----

/// A buffer of one page on the consumer's side, and a copy into it that a stream does when it comes to it.
fn copy_on(stream: &Arc<CudaStream>, to: &DeviceBuffer, at: usize, from: &DeviceBuffer, len: usize) {
    let (to, from) = (to.device_ptr().unwrap() + at as u64, from.device_ptr().unwrap());
    stream.context().bind_to_thread().unwrap();
    // SAFETY: both ranges lie in buffers that the caller drops after the stream has been waited for.
    unsafe { result::memcpy_dtod_async(to, from, len, stream.cu_stream()) }.unwrap();
}

#[test]
fn reads_on_a_stream_are_done_in_its_order_and_bring_the_right_bytes() {
    for (delay, changes) in
        [("none", "allow"), ("random:5:500", "report"), ("adversarial:5", "report"), (HELD, "report")]
    {
        let environment =
            [NVFS, SLOW, ("CUDA_EMULATOR_DELAY", delay), ("CUFILE_STANDIN_ASYNC_CHANGES", changes)];
        over_standin!(&environment, || {
            let driver = open();
            let (path, bytes) = file("data", ENTRIES * PAGE + 10);
            let handle = FileHandle::open(&driver, &path).unwrap();
            let (one, _) = memory(PAGE);
            let (all, _) = memory(ENTRIES * PAGE);
            let registered = RegisteredBuffer::new(&driver, &one).unwrap();
            let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
            // Every read into the same page, and a copy out of it before the next.
            let mut reads = Vec::new();
            for entry in 0..ENTRIES {
                let from = (entry * PAGE) as u64;
                reads.push(handle.read_on_stream(from, PAGE, &registered, 0, &stream).unwrap());
                copy_on(&stream, &all, entry * PAGE, &one, PAGE);
            }
            let end = (ENTRIES * PAGE) as u64;
            let last = handle.read_on_stream(end, PAGE, &registered, 0, &stream).unwrap();
            let beyond = handle.read_on_stream(1 << 40, PAGE, &registered, 0, &stream).unwrap();
            // Waited for from the last to the first.
            assert_eq!((beyond.wait().unwrap(), last.wait().unwrap()), (0, 10));
            while let Some(read) = reads.pop() {
                assert_eq!(read.wait().unwrap(), PAGE);
            }
            assert_holds(&all, 0, &bytes[..ENTRIES * PAGE]);
            assert_holds(&one, 0, &bytes[ENTRIES * PAGE..]);

            // Dropped unseen: the drop waits, and the memory may be used or go at once.
            for round in 0..20 {
                let read = handle.read_on_stream(0, PAGE, &registered, 0, &stream).unwrap();
                drop(read);
                assert_holds(&one, 0, &bytes[..PAGE]);
                let (other, _) = memory(PAGE);
                let unregistered = RegisteredBuffer::unregistered(&driver, &other).unwrap();
                let handle = FileHandle::open(&driver, &path).unwrap();
                let read = handle.read_on_stream(0, PAGE, &unregistered, 0, &stream).unwrap();
                if round % 2 == 0 {
                    drop(handle);
                    assert_eq!(read.wait().unwrap(), PAGE);
                    assert_holds(&other, 0, &bytes[..PAGE]);
                }
            }
            assert_eq!(inside().stream_operations_in_flight, 0);
            drop(reads);
            drop((registered, handle, driver));
            assert_nothing_is_left();
        });
    }
}

#[test]
fn a_read_on_a_stream_that_fails_says_so_and_where() {
    const TEST: &str = "a_read_on_a_stream_that_fails_says_so_and_where";
    for what in ["5011", "cuda:1", "errno:5", "code:5022", "half", "zero", "short:1"] {
        with_fault(TEST, "CUFILE_STANDIN_FAIL", &format!("cuFileReadAsync:2:{what}"), || {
            let fault = setting("CUFILE_STANDIN_FAIL");
            let driver = open();
            let (path, bytes) = file("data", 3 * PAGE);
            let handle = FileHandle::open(&driver, &path).unwrap();
            let (buffer, before) = memory(3 * PAGE);
            let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
            let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
            let reads: Vec<_> = (0..3)
                .map(|page| {
                    handle.read_on_stream((page * PAGE) as u64, PAGE, &registered, page * PAGE, &stream)
                })
                .collect();
            for (page, read) in reads.into_iter().enumerate() {
                let at_once = read.is_err();
                let come = match read.and_then(|read| read.wait()) {
                    Ok(n) => n,
                    Err(error) => {
                        let kind = if at_once { ErrorKind::Device } else { ErrorKind::Io };
                        assert_eq!((error.kind(), error.path()), (kind, Some(&*path)));
                        assert_eq!((error.offset(), error.length()), (Some(PAGE as u64), Some(PAGE as u64)));
                        usize::MAX
                    }
                };
                let right = match fault.rsplit(':').next().unwrap() {
                    _ if page != 1 => PAGE,
                    "half" => PAGE / 2,
                    "zero" => 0,
                    "1" if fault.contains("short") => 1,
                    _ => usize::MAX,
                };
                assert_eq!(come, right);
                let come = if come == usize::MAX { 0 } else { come };
                assert_holds(&buffer, page * PAGE, &bytes[page * PAGE..][..come]);
                assert_holds(&buffer, page * PAGE + come, &before[page * PAGE + come..(page + 1) * PAGE]);
            }
        });
    }
}

#[test]
fn a_stream_of_another_device_or_context_is_refused() {
    over_standin!(&[NVFS, ("CUDA_EMULATOR_DEVICES", "2")], || {
        let driver = open();
        let (path, _) = file("data", PAGE);
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, before) = memory(PAGE);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        let first = CudaContext::new(0).unwrap();
        let own = cuda_common::second_context(&first);
        for stream in [CudaContext::new(1).unwrap().new_stream().unwrap(), own.new_stream().unwrap()] {
            let error = handle.read_on_stream(0, PAGE, &registered, 0, &stream).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        let stream = first.new_stream().unwrap();
        for (at, len) in [(PAGE, 1), (0, PAGE + 1), (usize::MAX, 1)] {
            let error = handle.read_on_stream(0, len, &registered, at, &stream).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        assert_eq!(called(c"cuFileReadAsync"), 0);
        assert_holds(&buffer, 0, &before);
        // Nor memory of another device.
        let other = DeviceBuffer::new(Device::Cuda(1), PAGE).unwrap();
        let host = DeviceBuffer::new(Device::Host, PAGE).unwrap();
        for buffer in [&other, &host] {
            for make in [RegisteredBuffer::new, RegisteredBuffer::unregistered] {
                assert_eq!(make(&driver, buffer).unwrap_err().kind(), ErrorKind::InvalidArgument);
            }
        }
        // Each GPU can have a driver of its own, and a loader.
        let data = Data::new(4096, 40);
        cool(&data.dataset());
        for gpu in [1, 0] {
            let mut loader = data.loader().device(Device::Cuda(gpu)).backend(Backend::Gds).build().unwrap();
            data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
            assert_all_by(loader.report().bytes_by_way, Way::Gds, payload(&data));
        }
    });
}

#[test]
fn a_batch_that_cufile_brought_to_one_gpu_is_copied_to_the_others() {
    for delay in ["random:4:300", HELD] {
        let environment = [NVFS, SLOW, ("CUDA_EMULATOR_DEVICES", "2"), ("CUDA_EMULATOR_DELAY", delay)];
        over_standin!(&environment, || {
            for (record, samples) in [(4096, 100), (777, 200)] {
                let data = Data::new(record, samples);
                for devices in [[Device::Cuda(0), Device::Cuda(1)], [Device::Cuda(1), Device::Cuda(0)]] {
                    let builder = data.loader().devices(&devices).backend(Backend::Gds).prefetch(2);
                    let mut loader = builder.shuffle(Shuffle::Full).seed(3).build().unwrap();
                    for epoch in 0..2 {
                        data.assert_epoch(&mut loader, Shuffle::Full, 3, epoch);
                    }
                    assert_all_by(loader.report().bytes_by_way, Way::Gds, 2 * payload(&data));
                }
            }
            assert_nothing_is_left();
        });
    }
}

// ---- Writes ----

/// Writes a checkpoint in awkward parts over an older one, and returns what became of it.
fn checkpoint(options: WriteOptions) -> (gpufeed::Result<BytesByWay>, Vec<String>, Vec<u8>, Vec<u8>) {
    let folder = std::env::current_dir().unwrap().join("checkpoints");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("model");
    std::fs::write(&path, "what was there").unwrap();
    let (buffer, bytes) = memory(300_000);
    let mut out = CheckpointFile::create(&path, options).unwrap();
    let mut right = vec![0; 310_000];
    let mut notes = Vec::new();
    let outcome = (|| {
        for (at, range) in [(0, 0..100_000), (200_001, 5000..100_000), (102_400, 0..81_920)] {
            right[at..][..range.len()].copy_from_slice(&bytes[range.clone()]);
            let written = out.write_at(at as u64, &buffer, range);
            notes = out.notes().to_vec();
            written?;
        }
        out.commit()
    })();
    right.truncate(295_001);
    let files = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(files, 1, "a temporary file was left");
    let found = std::fs::read(&path).unwrap();
    (outcome, notes, found, right)
}

#[test]
fn checkpoints_go_straight_from_the_gpu_where_they_can() {
    for route in ["nvfs", "p2pdma", "compat"] {
        over_standin!(&[("CUFILE_STANDIN_ROUTE", route), SLOW], || {
            let compat = !told_route().is_direct();
            for (backend, require) in [(Backend::Gds, false), (Backend::Auto, true), (Backend::Auto, false)] {
                for io_bytes in [4096, 40_000, 4 << 20] {
                    let options =
                        WriteOptions::new().backend(backend).require_gds(require).io_bytes(io_bytes);
                    let before = inside();
                    let (outcome, notes, found, right) = checkpoint(options);
                    if compat && require {
                        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
                        assert_eq!(found, b"what was there");
                        continue;
                    }
                    let ways = outcome.unwrap();
                    assert_eq!(found, right);
                    assert!(notes.is_empty(), "{notes:?}");
                    assert_eq!(ways.total(), 100_000 + 95_000 + 81_920);
                    let written = inside().write_bytes - before.write_bytes;
                    let way = match (compat, backend) {
                        (false, _) => Way::Gds,
                        (true, Backend::Gds) => Way::CufileCompat,
                        _ => {
                            assert_eq!(written, 0);
                            continue;
                        }
                    };
                    assert_eq!(ways.bytes(way), written);
                    assert_eq!(ways.bytes(way) + ways.bytes(Way::PreadBuffered), ways.total());
                    assert!(written > 240_000);
                }
            }
            assert_nothing_is_left();
        });
    }
}

#[test]
fn a_checkpoint_whose_writes_fail_leaves_the_old_file() {
    const TEST: &str = "a_checkpoint_whose_writes_fail_leaves_the_old_file";
    for fault in
        ["cuFileWrite:1:errno:28", "cuFileWrite:3:errno:5", "cuFileWrite:*:code:5022", "cuFileWrite:2:zero"]
    {
        with_fault(TEST, "CUFILE_STANDIN_FAIL", fault, || {
            let options = WriteOptions::new().backend(Backend::Gds).io_bytes(16 << 10);
            let (outcome, _, found, _) = checkpoint(options);
            let error = outcome.unwrap_err();
            assert_eq!((error.kind(), error.backend()), (ErrorKind::Io, Some("gds")), "{error}");
            assert!(error.path().is_some() && error.offset().is_some() && error.length().is_some());
            assert_eq!(found, b"what was there");
            assert_nothing_is_left();
        });
    }
}

#[test]
fn short_writes_go_on_and_refused_ones_go_another_way_and_are_noted() {
    const TEST: &str = "short_writes_go_on_and_refused_ones_go_another_way_and_are_noted";
    for fault in [
        "cuFileWrite:1:half",
        "cuFileWrite:*:short:5000",
        "cuFileWrite:2:short:1",
        "cuFileBufRegister:*:5016",
        "cuFileWrite:*:errno:22",
        "cuFileWrite:2:errno:22",
        "cuFileHandleRegister:*:5030",
        "cuFileHandleRegister:2:5008",
    ] {
        with_fault(TEST, "CUFILE_STANDIN_FAIL", fault, || {
            let fault = setting("CUFILE_STANDIN_FAIL");
            let other_way = fault.contains("errno") || fault.contains("Handle");
            let options = WriteOptions::new().backend(Backend::Gds).io_bytes(16 << 10);
            let (outcome, notes, found, right) = checkpoint(options.clone());
            let ways = outcome.unwrap();
            assert_eq!(found, right);
            assert_eq!(ways.total(), 100_000 + 95_000 + 81_920);
            assert_eq!(notes.is_empty(), !other_way && !fault.contains("BufRegister"), "{notes:?}");
            assert!(!other_way || ways.bytes(Way::Gds) < 240_000, "{ways:?}");
            if fault.contains('*') && other_way {
                let (outcome, _, found, _) = checkpoint(options.require_gds(true));
                assert!(outcome.unwrap_err().path().is_some());
                assert_eq!(found, b"what was there");
            }
            assert_nothing_is_left();
        });
    }
}

// ---- From the cradle to the grave ----

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_handles_leave_no_descriptor_and_no_registration() {
    over_standin!(&[NVFS], || {
        let (path, bytes) = file("data", 3 * PAGE);
        let (buffer, _) = memory(3 * PAGE);
        let driver = open();
        let mut before = 0;
        for round in 0..1000 {
            if round == 10 {
                before = descriptors();
            }
            let handle = FileHandle::open(&driver, &path).unwrap();
            let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
            if round % 100 == 0 {
                handle.read_exact_at(0, 3 * PAGE, &registered, 0).unwrap();
                assert_holds(&buffer, 0, &bytes);
            }
            match round % 3 {
                0 => drop((handle, registered)),
                1 => drop((registered, handle)),
                _ => drop((handle.clone(), registered, handle)),
            }
        }
        assert_eq!(descriptors(), before);
        assert_eq!((inside().handles, inside().buffers, inside().driver_opens), (0, 0, 1));
        drop(driver);
        // Nor do drivers, files that are refused, and loaders.
        for round in 0..30 {
            let driver = open();
            assert_eq!(inside().driver_opens, 1);
            assert!(FileHandle::open(&driver, "/proc/self/nothing").is_err());
            assert!(FileHandle::open(&driver, "/dev/null").is_err());
            drop(driver);
            assert_nothing_is_left();
            assert!(round < 10 || descriptors() == before, "{} were {before}", descriptors());
        }
        let data = Data::new(4096, 20);
        let before = descriptors();
        for _ in 0..10 {
            let mut loader = data.loader().backend(Backend::Gds).build().unwrap();
            data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
            drop(loader);
            assert_nothing_is_left();
            assert_eq!(descriptors(), before);
        }
    });
}

#[test]
fn the_driver_is_open_for_as_long_as_it_has_users_whatever_goes_first() {
    over_standin!(&[NVFS], || {
        let (path, bytes) = file("data", PAGE);
        let (buffer, _) = memory(PAGE);
        let opens = || inside().driver_opens;
        let parts = || {
            let driver = open();
            let handle = FileHandle::open(&driver, &path).unwrap();
            let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
            (driver, handle, registered)
        };
        let (driver, handle, registered) = parts();
        drop(driver);
        handle.read_exact_at(0, PAGE, &registered, 0).unwrap();
        assert_holds(&buffer, 0, &bytes);
        drop(handle);
        assert_eq!(opens(), 1);
        drop(registered);
        assert_eq!(opens(), 0);
        let (driver, handle, registered) = parts();
        drop((registered, handle));
        assert_eq!(opens(), 1);
        drop(driver);
        assert_eq!(opens(), 0);
        // A loader is a user, and so are its batches not.
        let data = Data::new(4096, 40);
        let (first, second) = (open(), open());
        let mut loader = data.loader().backend(Backend::Gds).build().unwrap();
        drop((first, second));
        let batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
        assert_eq!(opens(), 1);
        drop(loader);
        assert_eq!(opens(), 0);
        data.assert_batch(&batch);
        // From many threads, so that the last drop of one meets the first open of another.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| assert!(open().route().unwrap().is_direct())));
            }
        });
        assert_nothing_is_left();
    });
}

#[test]
fn anything_is_dropped_at_any_moment_with_64_reads_in_flight() {
    for delay in ["random:21:60", HELD] {
        let environment = [NVFS, ("CUFILE_STANDIN_LATENCY", "random:3:400"), ("CUDA_EMULATOR_DELAY", delay)];
        over_standin!(&environment, || {
            let data = Data::new(500, 2048);
            let rounds = if setting("CUDA_EMULATOR_DELAY") == HELD { 40 } else { 200 };
            let mut dice = Dice(rounds);
            for _ in 0..rounds {
                drop_round(&data, &mut dice);
            }
            assert_nothing_is_left();
        });
    }
}

/// A loader, some epochs of it, and everything dropped whenever the dice say so.
fn drop_round(data: &Data, dice: &mut Dice) {
    let builder = data.loader().backend(Backend::Gds).shuffle(Shuffle::Full).batch_size(20).queue_depth(64);
    let builder = builder.io_bytes(4096).prefetch(2 + dice.roll(3) as u32);
    let mut loader = builder.lend_timeout(Duration::from_secs(60)).build().unwrap();
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let mut kept = Vec::new();
    let room = loader.prefetch() as usize;
    for epoch in 0..1 + dice.roll(3) {
        let mut batches = loader.epoch(epoch).unwrap();
        for _ in 0..dice.roll(5) {
            let Some(batch) = batches.next() else { break };
            let batch = batch.unwrap();
            if dice.roll(2) == 0 {
                batch.wait_on(&stream).unwrap();
            }
            if dice.roll(4) == 0 {
                data.assert_batch(&batch);
            }
            if dice.roll(3) == 0 && kept.len() < room {
                kept.push(batch);
            }
        }
        if dice.roll(2) == 0 {
            std::thread::sleep(Duration::from_micros(dice.roll(400)));
        }
    }
    match dice.roll(4) {
        0 => {
            let _ = loader.epoch(9).unwrap();
            drop(loader);
        }
        1 => {
            drop(kept.pop());
            drop(loader);
        }
        2 => drop(stream),
        _ => kept.iter().for_each(|batch| data.assert_batch(batch)),
    }
}

#[test]
fn several_loaders_read_at_once_each_its_own() {
    over_standin!(&[NVFS, SLOW, ("CUDA_EMULATOR_DELAY", "random:9:200")], || {
        std::thread::scope(|scope| {
            for which in 0..3_u64 {
                scope.spawn(move || {
                    let data = Data::new(4096 - which as usize * 999, 100);
                    let builder = data.loader().backend(Backend::Gds).shuffle(Shuffle::Full).seed(3);
                    let mut loader = builder.build().unwrap();
                    let mut dice = Dice(which);
                    deliver(&data, &mut loader, Shuffle::Full, 2, |_| Use::ALL[dice.roll(8) as usize]);
                    let report = loader.report();
                    assert_eq!(report.bytes_by_way.bytes(Way::Gds), report.bytes_by_way.total());
                });
            }
        });
        assert_nothing_is_left();
    });
}

#[test]
fn a_forked_child_gets_errors_and_leaves_its_parents_driver_alone() {
    over_standin!(&[NVFS], || {
        let driver = open();
        let (path, bytes) = file("data", PAGE);
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, _) = memory(PAGE);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        let data = Data::new(4096, 40);
        let mut loader = data.loader().backend(Backend::Gds).build().unwrap();
        data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        let mut batch = Batch::new(&driver, 1).unwrap();
        batch.read(&handle, 0, PAGE, &registered, 0).unwrap();
        // SAFETY: the child only calls what follows, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let outcomes = [
                ("open", Driver::open(GPU).is_err()),
                ("version", driver.version().is_err()),
                ("properties", driver.properties().is_err()),
                ("route", driver.route().is_err()),
                ("count_reads", driver.count_reads().is_err()),
                ("reads", driver.reads().is_err()),
                ("bar", driver.bar_bytes().is_err()),
                ("poll", driver.set_poll_mode(false, 0).is_err()),
                ("file", FileHandle::open(&driver, &path).is_err()),
                ("buffer", RegisteredBuffer::new(&driver, &buffer).is_err()),
                ("read", handle.read_at(0, PAGE, &registered, 0).is_err()),
                ("write", handle.write_at(0, PAGE, &registered, 0).is_err()),
                ("vectored", handle.read_vectored(0, &registered, &[(0, PAGE)]).is_err()),
                ("stream", handle.read_on_stream(0, PAGE, &registered, 0, &stream).is_err()),
                ("batch", Batch::new(&driver, 1).is_err()),
                ("submit", batch.submit().is_err()),
                ("epoch", loader.epoch(1).is_err()),
            ];
            let wrong: Vec<_> = outcomes.iter().filter(|(_, refused)| !refused).collect();
            if !wrong.is_empty() {
                eprintln!("these work in a forked child: {wrong:?}");
            }
            drop(batch);
            drop(registered);
            drop((handle, driver));
            // SAFETY: ends the child, with none of the parent's handlers.
            unsafe { libc::_exit(if wrong.is_empty() { 7 } else { 8 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was forked above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status >> 8, 7, "the child's status is {status:#x}");
        batch.submit().unwrap();
        assert_eq!(batch.wait(Duration::from_secs(9)).unwrap()[0].result.as_ref().unwrap(), &PAGE);
        assert_holds(&buffer, 0, &bytes);
        data.assert_epoch(&mut loader, Shuffle::None, 0, 2);
    });
}

#[test]
fn a_driver_that_does_not_close_is_used_again() {
    let environment =
        [NVFS, ("CUFILE_STANDIN_FAIL", "cuFileDriverClose_v2:1:5011"), ("CUFILE_STANDIN_LEAKS", "0")];
    over_standin!(&environment, || {
        drop(open());
        for _ in 0..3 {
            assert!(open().route().unwrap().is_direct());
            reads_all_by_gds();
        }
    });
}

#[test]
fn plain_reads_and_writes_tell_what_failed_and_where() {
    const TEST: &str = "plain_reads_and_writes_tell_what_failed_and_where";
    for what in ["errno:5", "errno:22", "code:5022", "half", "short:1", "zero"] {
        let fault = ["cuFileRead", "cuFileWrite", "cuFileReadv"].map(|name| format!("{name}:2:{what}"));
        with_fault(TEST, "CUFILE_STANDIN_FAIL", &fault.join(","), || {
            let driver = open();
            let (path, bytes) = file("data", 4 * PAGE);
            let (copy, _) = file("copy", 1);
            let handle = FileHandle::open(&driver, &path).unwrap();
            let target = std::fs::OpenOptions::new().read(true).write(true).open(&copy).unwrap();
            let target = FileHandle::register(&driver, target, &copy).unwrap();
            let (buffer, _) = memory(4 * PAGE);
            let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
            let parts = [(PAGE, PAGE), (3 * PAGE, 10)];
            for call in 1..=3 {
                let outcomes = [
                    (handle.read_at(PAGE as u64, PAGE, &registered, PAGE), &path, PAGE),
                    (target.write_at(PAGE as u64, PAGE, &registered, PAGE), &copy, PAGE),
                    (handle.read_vectored(PAGE as u64, &registered, &parts), &path, PAGE + 10),
                ];
                for (outcome, path, len) in outcomes {
                    let n = match outcome {
                        Ok(n) => n,
                        Err(error) => {
                            assert_eq!((error.kind(), error.path()), (ErrorKind::Io, Some(&**path)));
                            assert_eq!(
                                (error.offset(), error.length()),
                                (Some(PAGE as u64), Some(len as u64))
                            );
                            assert_eq!(error.backend(), Some("gds"));
                            usize::MAX
                        }
                    };
                    let right = match setting("CUFILE_STANDIN_FAIL").rsplit(':').next().unwrap() {
                        _ if call != 2 => len,
                        "half" => len / 2,
                        "zero" => 0,
                        "1" => 1,
                        _ => usize::MAX,
                    };
                    assert_eq!(n, right);
                }
            }
            assert_holds(&buffer, PAGE, &bytes[PAGE..2 * PAGE]);
            assert_holds(&buffer, 3 * PAGE, &bytes[2 * PAGE..2 * PAGE + 10]);
            assert_eq!(std::fs::read(&copy).unwrap()[PAGE..], bytes[PAGE..2 * PAGE]);
            // Beyond the buffer, or what a file can have.
            for (from, len, at) in
                [(0, 1, 4 * PAGE), (0, 4 * PAGE + 1, 0), (0, 2, usize::MAX), (u64::MAX, 1, 0)]
            {
                for outcome in [
                    handle.read_at(from, len, &registered, at),
                    target.write_at(from, len, &registered, at),
                    handle.read_vectored(from, &registered, &[(0, 1), (at, len)]),
                ] {
                    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::InvalidArgument);
                }
            }
        });
    }
}

#[cfg(feature = "cli")]
#[test]
fn the_program_delivers_the_same_digest_from_the_gpu_as_from_the_host() {
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/datasets/digits");
    let run = |route: &str, arguments: &[&str]| {
        let folder = cuda_common::folder();
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_gpufeed"));
        let mut command = standin_common::command(program, folder.path());
        command.env("CUFILE_STANDIN_ROUTE", route).args(arguments);
        let outcome = cuda_common::finish(command, folder.path());
        assert!(outcome.code == Some(0) && outcome.reports.is_empty(), "{}", cuda_common::describe(&outcome));
        outcome.output
    };
    let load = |route, device, backend| {
        let arguments = ["load", digits, "--json", "--digest", "--last-batch", "short", "--shuffle", "full"];
        let output = run(route, &[&arguments[..], &["--device", device, "--backend", backend]].concat());
        serde_json::from_str::<serde_json::Value>(&output).unwrap()
    };
    let host = load("compat", "host", "pread");
    assert!(host["digest"].as_str().unwrap().len() == 64);
    for (route, way, told) in [
        ("nvfs", "gds", "nvidia-fs"),
        ("p2pdma", "gds", "PCI P2PDMA"),
        ("compat", "cufile_compat", "compatibility mode"),
    ] {
        for backend in ["gds", "auto"] {
            let report = load(route, "cuda:0", backend);
            assert_eq!(report["digest"], host["digest"]);
            if backend == "gds" {
                assert_eq!(report["bytes_by_way"][way], report["bytes"], "{report}");
                assert_eq!(report["gds_route"], told, "{report}");
            } else {
                assert_eq!(report["backend"] == "gds", way == "gds", "{report}");
            }
        }
    }
}

#[test]
fn files_that_are_closed_and_opened_again_keep_their_handles_apart() {
    over_standin!(&[NVFS, SLOW], || {
        // A quarter of the descriptors is for shards: far fewer than there are.
        let few = libc::rlimit { rlim_cur: 160, rlim_max: 160 };
        // SAFETY: takes a structure that lives through the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
        let folder = cuda_common::folder();
        let bytes = cuda_common::noise(3, 150 * PAGE);
        for (shard, part) in bytes.chunks(PAGE).enumerate() {
            std::fs::write(folder.path().join(format!("{shard:03}.bin")), part).unwrap();
        }
        let shards = folder.path().join("*.bin");
        let dataset = Dataset::builder().records("data", shards, Dtype::U8, &[1024]).build().unwrap();
        let builder = Loader::builder(dataset).device(GPU).backend(Backend::Gds).batch_size(30);
        let mut loader = builder.shuffle(Shuffle::Full).queue_depth(16).build().unwrap();
        for epoch in 0..3 {
            let mut found = Vec::new();
            for batch in loader.epoch(epoch).unwrap() {
                let batch = batch.unwrap();
                batch.column("data").unwrap().copy_to_host(&mut found).unwrap();
                for (&sample, record) in batch.samples().iter().zip(found.chunks(1024)) {
                    assert!(record == &bytes[sample as usize * 1024..][..1024], "sample {sample}");
                }
                assert!(inside().handles <= 40, "{:?}", inside());
            }
        }
        assert_all_by(loader.report().bytes_by_way, Way::Gds, 3 * bytes.len() as u64);
        assert!(called(c"cuFileHandleRegister") > 300);
        drop(loader);
        assert_nothing_is_left();
    });
}

#[test]
fn what_cannot_be_read_directly_is_not_counted_as_gds() {
    over_standin!(&[NVFS], || {
        // In memory; whether that takes direct I/O depends on the kernel.
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return println!("there is no /dev/shm") };
        std::fs::write(folder.path().join("data.bin"), cuda_common::noise(1, 64 * PAGE)).unwrap();
        let dataset = || {
            let shards = folder.path().join("data.bin");
            Dataset::builder().records("data", shards, Dtype::U8, &[PAGE as u64]).build().unwrap()
        };
        let loader = |require| {
            let builder = Loader::builder(dataset()).device(GPU).backend(Backend::Gds).batch_size(8);
            builder.require_gds(require).build().unwrap()
        };
        let mut first = loader(false);
        assert!(first.epoch(0).unwrap().all(|batch| batch.is_ok()));
        let report = first.report();
        if report.not_direct.is_empty() {
            return println!("/dev/shm takes direct I/O");
        }
        assert_all_by(report.bytes_by_way, Way::PreadBuffered, 64 * PAGE as u64);
        let error = loader(true).epoch(0).unwrap().find_map(Result::err).unwrap();
        assert!(
            error.path().is_some() && cause(&error).contains("not open for direct I/O"),
            "{}",
            cause(&error)
        );
        assert_eq!((inside().posix_bytes, inside().direct_bytes), (0, 0));
    });
}
