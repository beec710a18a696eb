//! What the library says of itself and of the machine: properties by route, versions, parameters, statistics.

mod common;

use std::ffi::CString;

use common::{COMPLETE, CuFile, Cuda, Properties, Scene};

fn properties(cufile: CuFile) -> Properties {
    let mut properties = Properties::default();
    cufile.cuFileDriverGetProperties(&mut properties).ok();
    properties
}

fn flags(cufile: CuFile, storage: u32) -> u32 {
    let mut flags = 99;
    cufile.cuFileDriverGetP2PFlags(storage, &mut flags).ok();
    flags
}

/// Statistics of a direct read, an unaligned one, one of a file that is not opened for direct I/O, and a batch of two:
/// (reads by P2PDMA, by nvidia-fs, by POSIX; bytes said to be direct).
fn reads_by_way(scene: &Scene) -> ([u64; 3], u64) {
    scene.cufile.cuFileSetStatsLevel(3).ok();
    scene.cufile.cuFileStatsStart().ok();
    assert_eq!(scene.read(4096, 4096, 0), 4096);
    assert_eq!(scene.read(100, 7, 3), 100);
    let buffered = std::fs::File::open("data").unwrap();
    let handle = scene.cufile.handle(&buffered);
    assert_eq!(scene.cufile.cuFileRead(handle, scene.buffer, 1000, 0, 0), 1000);
    scene.cufile.cuFileHandleDeregister(handle);
    let batch = scene.cufile.batch(2);
    let entries = [scene.entry(1, 0, 4096), scene.entry(2, 8192, 4096)];
    scene.cufile.cuFileBatchIOSubmit(batch, 2, entries.as_ptr(), 0).ok();
    assert!(scene.cufile.ended(batch, 2).iter().all(|event| event.status == COMPLETE));
    scene.cufile.cuFileBatchIODestroy(batch);

    let mut words = [0_u64; 700];
    scene.cufile.cuFileGetStatsL3(words.as_mut_ptr()).ok();
    assert_eq!(words[..2], [5, 0], "reads");
    assert_eq!(words[12], 4096 + 100 + 1000 + 8192, "bytes");
    assert_eq!((words[4], words[6]), (1, 1), "registrations of files");
    assert_eq!((words[22], words[24], words[26], words[30]), (1, 2, 1, 1), "batches");
    assert_eq!(words[52], 8192, "bytes by batches");
    // 78 words of level 1, 64 of level 2, the count of GPUs, two of UUID; reads, bandwidth, utilisation, duration.
    assert_eq!(words[142], 1, "GPUs");
    let gpu = &words[145..];
    assert_eq!((gpu[0], gpu[4], gpu[8], gpu[12]), (13_388, 5, 2, 0), "bytes, reads, unaligned, errors");
    ([gpu[5], gpu[6], gpu[7]], scene.cufile.stats().direct_bytes)
}

#[test]
fn compatibility_mode_supports_nothing() {
    child!(&[], || {
        let scene = Scene::registered();
        let found = properties(scene.cufile);
        assert_eq!((found.major_version, found.status_flags, found.feature_flags), (0, 0, 15));
        assert_eq!((found.control_flags, found.max_batch_io, found.max_direct_io_kib), (2, 128, 16384));
        assert_eq!((flags(scene.cufile, 4), flags(scene.cufile, 0)), (0, 0));
        let mut kib = 7;
        assert_eq!(scene.cufile.cuFileGetBARSizeInKB(0, &mut kib).cuda, 801);
        assert_eq!(reads_by_way(&scene), ([0, 0, 5], 0));
        scene.end();
    })
    .clean();
}

#[test]
fn nvidia_fs_is_told_as_such() {
    child!(&[("CUFILE_STANDIN_ROUTE", "nvfs"), ("CUFILE_STANDIN_BAR_KIB", "1024")], || {
        let scene = Scene::registered();
        let found = properties(scene.cufile);
        assert_eq!((found.major_version, found.minor_version), (2, 24));
        assert_eq!((found.status_flags, found.feature_flags), (1 << 4, 15));
        assert_eq!((flags(scene.cufile, 4), flags(scene.cufile, 2)), (2, 0));
        let mut kib = 0;
        scene.cufile.cuFileGetBARSizeInKB(0, &mut kib).ok();
        assert_eq!(kib, 1024);
        scene.cufile.cuFileGetBARSizeInKB(1, &mut kib).is(5022);
        assert_eq!(reads_by_way(&scene), ([0, 4, 1], 4096 + 100 + 8192));
        scene.end();
    })
    .clean();
}

#[test]
fn p2pdma_is_told_as_such() {
    child!(&[("CUFILE_STANDIN_ROUTE", "p2pdma")], || {
        let scene = Scene::registered();
        let found = properties(scene.cufile);
        assert_eq!((found.major_version, found.status_flags, found.feature_flags), (0, 1 << 4, 31));
        assert_eq!(flags(scene.cufile, 4), 1);
        scene.cufile.cuFileDriverSetP2PFlags(4, 2).ok();
        assert_eq!(flags(scene.cufile, 4), 0);
        scene.cufile.cuFileDriverGetP2PFlags(15, &mut 0).is(5022);
        assert_eq!(reads_by_way(&scene), ([4, 0, 1], 4096 + 100 + 8192));
        scene.end();
    })
    .clean();
}

const SINCE: &[(&str, i32)] = &[
    ("cuFileGetParameterSizeT", 1140),
    ("cuFileGetStatsL1", 1150),
    ("cuFileGetBARSizeInKB", 1150),
    ("cuFileDriverGetP2PFlags", 1160),
    ("cuFileExportPCIeTopology", 1170),
    ("cuFileReadv", 1190),
    ("cuFileWritev", 1190),
];

#[test]
fn functions_newer_than_the_version_are_not_there() {
    for version in ["1130", "1140", "1160", "1190", "1200"] {
        child!(&[("CUFILE_STANDIN_VERSION", version)], || {
            let cufile = CuFile::load();
            let mut version = 0;
            cufile.cuFileGetVersion(&mut version).ok();
            for (name, since) in SINCE {
                assert_eq!(cufile.symbol(name).is_null(), version < *since, "{name} of {version}");
            }
        })
        .clean();
    }
}

#[test]
fn functions_can_be_missing() {
    let missing = "cuFileReadAsync,cuFileDriverClose_v2,cuFileRead";
    child!(&[("CUFILE_STANDIN_MISSING", missing)], || {
        let cufile = CuFile::load();
        for name in ["cuFileReadAsync", "cuFileDriverClose_v2", "cuFileRead"] {
            assert!(cufile.symbol(name).is_null(), "{name}");
        }
        for name in ["cuFileWriteAsync", "cuFileDriverClose", "cuFileReadv", "cuFileGetStatsL3"] {
            assert!(!cufile.symbol(name).is_null(), "{name}");
        }
    })
    .clean();
}

/// What a 1.20 library exports of the header's functions.
const ALL: &[&str] = &[
    "cuFileBatchIOCancel",
    "cuFileBatchIODestroy",
    "cuFileBatchIOGetStatus",
    "cuFileBatchIOSetUp",
    "cuFileBatchIOSubmit",
    "cuFileBufDeregister",
    "cuFileBufRegister",
    "cuFileDriverClose",
    "cuFileDriverClose_v2",
    "cuFileDriverGetP2PFlags",
    "cuFileDriverGetProperties",
    "cuFileDriverOpen",
    "cuFileDriverSetMaxCacheSize",
    "cuFileDriverSetMaxDirectIOSize",
    "cuFileDriverSetMaxPinnedMemSize",
    "cuFileDriverSetP2PFlags",
    "cuFileDriverSetPollMode",
    "cuFileExportPCIeTopology",
    "cuFileGetBARSizeInKB",
    "cuFileGetParameterBool",
    "cuFileGetParameterGpuBounceBufferSlabArray",
    "cuFileGetParameterMinMaxValue",
    "cuFileGetParameterPosixPoolSlabArray",
    "cuFileGetParameterSizeT",
    "cuFileGetParameterString",
    "cuFileGetStatsL1",
    "cuFileGetStatsL2",
    "cuFileGetStatsL3",
    "cuFileGetStatsLevel",
    "cuFileGetVersion",
    "cuFileHandleDeregister",
    "cuFileHandleRegister",
    "cuFileRead",
    "cuFileReadAsync",
    "cuFileReadv",
    "cuFileSetParameterBool",
    "cuFileSetParameterGpuBounceBufferSlabArray",
    "cuFileSetParameterPosixPoolSlabArray",
    "cuFileSetParameterSizeT",
    "cuFileSetParameterString",
    "cuFileSetStatsLevel",
    "cuFileStatsReset",
    "cuFileStatsStart",
    "cuFileStatsStop",
    "cuFileStreamDeregister",
    "cuFileStreamRegister",
    "cuFileUseCount",
    "cuFileWrite",
    "cuFileWriteAsync",
    "cuFileWritev",
];

#[test]
fn the_library_has_its_name_and_all_functions_of_the_header() {
    child!(&[("CUFILE_STANDIN_REPORT", "")], || {
        let cufile = CuFile::load();
        let missing: Vec<&&str> = ALL.iter().filter(|name| cufile.symbol(name).is_null()).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let own = cufile.symbol("cuFileRead");
        // Already loaded under this name.
        // SAFETY: opens nothing new.
        let again = unsafe { libc::dlopen(c"libcufile.so.0".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
        // SAFETY: an open handle and a NUL-terminated name.
        assert_eq!(unsafe { libc::dlsym(again, c"cuFileRead".as_ptr()) }, own);
    })
    .clean();
}

#[test]
fn an_older_library_answers_in_its_own_way() {
    child!(&[("CUFILE_STANDIN_VERSION", "1140"), ("CUFILE_STANDIN_ROUTE", "p2pdma")], || {
        let scene = Scene::registered();
        let found = properties(scene.cufile);
        assert_eq!((found.status_flags, found.feature_flags, found.max_direct_io_kib), (1 << 11, 7, 1024));
        let mut batch = 0;
        scene.cufile.cuFileBatchIOSetUp(&mut batch, 129).is(5030);
        scene.cufile.cuFileDriverSetMaxDirectIOSize(1023).is(5003);
        scene.end();
    })
    .clean();
}

#[test]
fn limits_are_kept_and_checked() {
    child!(&[], || {
        let scene = Scene::registered();
        let cufile = scene.cufile;
        cufile.cuFileDriverSetPollMode(true, 8).ok();
        cufile.cuFileDriverSetMaxDirectIOSize(1024).ok();
        cufile.cuFileDriverSetMaxCacheSize(2048).ok();
        cufile.cuFileDriverSetMaxPinnedMemSize(4096).ok();
        let found = properties(cufile);
        assert_eq!((found.control_flags, found.poll_threshold_kib), (3, 8));
        assert_eq!(
            (found.max_direct_io_kib, found.max_device_cache_kib, found.max_pinned_kib),
            (1024, 2048, 4096)
        );
        cufile.cuFileDriverSetMaxDirectIOSize(1023).is(5022);
        cufile.cuFileDriverSetMaxDirectIOSize(1 << 40).is(5022);
        cufile.cuFileDriverSetPollMode(true, 3).is(5022);
        cufile.cuFileDriverClose_v2().is(0);
        cufile.cuFileDriverOpen().ok();
        assert_eq!(properties(cufile).max_direct_io_kib, 16384);
    })
    .succeeded();
}

#[test]
fn parameters_are_set_before_the_driver_is_open() {
    child!(&[], || {
        Cuda::ready();
        let cufile = CuFile::load();
        let (mut number, mut least, mut most, mut switch) = (0, 0, 0, false);
        cufile.cuFileGetParameterSizeT(9, &mut number).ok();
        cufile.cuFileGetParameterMinMaxValue(2, &mut least, &mut most).ok();
        assert_eq!((number, least, most), (128, 0, 128));
        cufile.cuFileSetParameterSizeT(9, 64).ok();
        cufile.cuFileGetParameterSizeT(9, &mut number).ok();
        assert_eq!(number, 64);
        cufile.cuFileSetParameterSizeT(9, 0).is(5022);
        cufile.cuFileGetParameterSizeT(12, &mut number).is(5022);
        cufile.cuFileGetParameterBool(1, &mut switch).ok();
        assert!(switch);
        cufile.cuFileSetParameterBool(1, false).ok();
        cufile.cuFileGetParameterBool(1, &mut switch).ok();
        assert!(!switch);
        let mut text = [0_u8; 64];
        cufile.cuFileSetParameterString(0, c"TRACE".as_ptr()).ok();
        cufile.cuFileGetParameterString(0, text.as_mut_ptr(), 5).is(5022);
        cufile.cuFileGetParameterString(0, text.as_mut_ptr(), 64).ok();
        assert_eq!(&text[..6], b"TRACE\0");
        let (sizes, counts) = ([4, 64], [8, 2]);
        cufile.cuFileSetParameterPosixPoolSlabArray(sizes.as_ptr(), counts.as_ptr(), 2).ok();
        let (mut size, mut count) = ([0; 2], [0; 2]);
        cufile.cuFileGetParameterPosixPoolSlabArray(size.as_mut_ptr(), count.as_mut_ptr(), 1).is(5022);
        cufile.cuFileGetParameterPosixPoolSlabArray(size.as_mut_ptr(), count.as_mut_ptr(), 2).ok();
        assert_eq!((size, count), (sizes, counts));
        cufile.cuFileDriverOpen().ok();
        cufile.cuFileSetParameterSizeT(9, 32).is(5026);
        cufile.cuFileSetParameterBool(1, true).is(5026);
        let path = CString::new("topology").unwrap();
        cufile.cuFileExportPCIeTopology(path.as_ptr()).ok();
        assert!(std::fs::read_to_string("topology").unwrap().contains("GPU 0"));
        cufile.cuFileDriverClose_v2().ok();
    })
    .clean();
}

#[test]
fn statistics_count_only_what_was_asked_for() {
    child!(&[("CUFILE_STANDIN_FAIL", "cuFileRead:3:errno:5")], || {
        let scene = Scene::registered();
        let cufile = scene.cufile;
        let mut words = [0_u64; 700];
        let mut level = 9;
        cufile.cuFileGetStatsLevel(&mut level).ok();
        assert_eq!(level, 0);
        cufile.cuFileStatsStart().is(5030);
        cufile.cuFileGetStatsL1(words.as_mut_ptr()).is(5022);
        cufile.cuFileSetStatsLevel(4).is(5022);
        cufile.cuFileSetStatsLevel(1).ok();
        assert_eq!(scene.read(10, 0, 0), 10);
        cufile.cuFileStatsStart().ok();
        assert_eq!(scene.read(20, 0, 0), 20);
        assert_eq!(scene.read(40, 0, 0), -1);
        let vector = (scene.buffer, 80);
        assert_eq!(cufile.cuFileReadv(scene.handle, &vector, 1, 0, 0), 80);
        cufile.cuFileGetStatsL1(words.as_mut_ptr()).ok();
        assert_eq!((words[0], words[1], words[12]), (1, 1, 20));
        assert_eq!((words[64], words[65], words[68]), (1, 0, 80));
        cufile.cuFileGetStatsL2(words.as_mut_ptr()).is(5022);
        cufile.cuFileStatsReset().ok();
        cufile.cuFileStatsStop().ok();
        assert_eq!(scene.read(10, 0, 0), 10);
        cufile.cuFileGetStatsL1(words.as_mut_ptr()).ok();
        assert_eq!((words[0], words[12]), (0, 0));
        let stats = cufile.stats();
        assert_eq!((stats.reads, stats.failed, stats.read_bytes), (4, 1, 120));
        assert_eq!(cufile.cufile_standin_calls(c"cuFileRead".as_ptr()), 4);
        let mut text = [0_u8; 4096];
        let len = cufile.cufile_standin_all_calls(text.as_mut_ptr(), text.len());
        let text = String::from_utf8(text[..len - 1].to_vec()).unwrap();
        assert!(text.contains("cuFileRead 4\n") && text.contains("cuFileReadv 1\n"), "{text}");
        scene.end();
    })
    .clean();
}
