//! Loading, with libraries that are made here by the C compiler.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Folder, has_compiler, run, run_test};
use cufile_sys::{
    CUfileOpError, CUfileStatsLevel1_t, CUfileStatsLevel2_t, CUfileStatsLevel3_t, LIBRARY_VARIABLE, Library,
    Reason, StatsLayout, Version, sym,
};

/// A stand-in for cuFile 1.15 with the functions that a test needs. Its statistics have the older layout.
const STAND_IN: &str = "
typedef struct { int err; int cu_err; } error;
error cuFileDriverOpen(void) { return (error){ 5011, 100 }; }
error cuFileHandleRegister(void **handle, void *descriptor) { return (error){ 5030, 0 }; }
long cuFileRead(void *handle, void *base, unsigned long size, long offset, long at) { return -5022; }
error cuFileGetVersion(int *version) { *version = 1150; return (error){ 0, 0 }; }
static error fill(unsigned long *stats, int level, int bytes) {
    for (int word = 0; word < bytes / 8; word++) stats[word] = level * 1000 + word;
    return (error){ 0, 0 };
}
error cuFileGetStatsL1(unsigned long *stats) { return fill(stats, 1, 512); }
error cuFileGetStatsL2(unsigned long *stats) { return fill(stats, 2, 1024); }
error cuFileGetStatsL3(unsigned long *stats) { return fill(stats, 3, 5000); }
";

fn library(folder: &Folder, name: &str, source: &str) -> PathBuf {
    let source = folder.file("source.c", source);
    let library = folder.path().join(name);
    run(Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).args([&library, &source]));
    library
}

/// Runs a child test with this library named by the environment.
fn child(name: &str, folder: &Folder, library: &Path) {
    let (status, output) = run_test(name, folder.path(), &[(LIBRARY_VARIABLE, library)]);
    assert!(status.success() && output.contains("1 passed"), "{status}\n{output}");
}

#[test]
fn the_named_library_is_opened_once_and_only_it() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::new("load");
    let file = library(&folder, "libstandin.so", STAND_IN);
    library(&folder, "second.so", STAND_IN);
    std::os::unix::fs::symlink(&file, folder.path().join("link.so")).unwrap();
    child("child_opens_the_named_library", &folder, &file);
    library(&folder, "libcufile.so.0", STAND_IN);
    child("child_opens_a_named_folder", &folder, folder.path());
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_opens_the_named_library() {
    let Some(file) = std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from) else { return };
    let opened: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| Library::open().unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let library = opened[0];
    assert!(opened.iter().all(|other| std::ptr::eq(*other, library)), "threads at once open it once");
    assert_eq!(library.path(), file);
    assert_eq!(library.version(), Some(Version::new(1, 15)));
    assert!(std::ptr::eq(library, Library::open().unwrap()));
    assert!(std::ptr::eq(library, Library::open_at(&file).unwrap()));
    assert!(std::ptr::eq(library, Library::open_at(file.with_file_name("link.so")).unwrap()));
    assert!(std::ptr::eq(library, Library::open_at("libstandin.so").unwrap()), "from the current folder");

    let other = file.with_file_name("second.so");
    let error = Library::open_at(&other).unwrap_err();
    assert_eq!(error.attempts()[0].reason, Reason::OtherIsOpen(file.clone()));

    // SAFETY: the stand-in's function takes nothing.
    let outcome = unsafe { library.cuFileDriverOpen.unwrap()() };
    assert_eq!((outcome.err, outcome.cu_err), (CUfileOpError::CUDA_DRIVER_ERROR, 100));

    let missing = library.require(sym::cuFileReadAsync).unwrap_err();
    assert_eq!((missing.name, missing.since), ("cuFileReadAsync", Version::new(1, 7)));
    assert_eq!(
        missing.to_string(),
        format!("{} has no cuFileReadAsync, which came with cuFile 1.7; it is cuFile 1.15", file.display())
    );

    assert_eq!(library.stats_layout(), Some(StatsLayout::V1_15));
    let mut one = CUfileStatsLevel1_t { readv_bytes: 7, ..Default::default() };
    let (mut two, mut three) = (CUfileStatsLevel2_t::default(), CUfileStatsLevel3_t::default());
    // SAFETY: the stand-in writes as many bytes as the older layout of each level has.
    unsafe {
        library.stats_level1(&mut one).unwrap().result().unwrap();
        library.stats_level2(&mut two).unwrap().result().unwrap();
        library.stats_level3(&mut three).unwrap().result().unwrap();
    }
    assert_eq!((one.read_ops.ok, one.last_batch_write_bytes, one.readv_bytes), (1000, 1063, 0));
    assert_eq!((two.basic.last_batch_write_bytes, two.basic.readv_ops.ok), (2063, 0));
    assert_eq!((two.read_size_kb_hist[0], two.write_size_kb_hist[31]), (2064, 2127));
    assert_eq!((three.num_gpus, three.per_gpu_stats[0].read_bytes), (3128, 3131));
    assert_eq!(three.per_gpu_stats[15].reg_bytes, 3624);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_opens_a_named_folder() {
    let Some(folder) = std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from) else { return };
    let library = Library::open().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(library.path(), folder.join("libcufile.so.0"));
}

#[test]
fn what_is_named_but_unusable_is_an_error_and_no_detour() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::new("refuse");
    let other = library(&folder, "other.so", "int answer(void) { return 42; }");
    child("child_is_refused", &folder, &other);
    let text = folder.file("text.so", "this is no library\n");
    child("child_is_refused", &folder, &text);
    child("child_is_refused", &folder, &folder.path().join("absent.so"));
    let needy = library(&folder, "needy.so", "extern int gone(void); int answer(void) { return gone(); }");
    child("child_is_refused", &folder, &needy);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_is_refused() {
    let Some(file) = std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from) else { return };
    for error in [Library::open().unwrap_err(), Library::open_at(&file).unwrap_err()] {
        let [attempt] = error.attempts() else { panic!("{error}") };
        assert_eq!(attempt.place, file);
        let name = file.file_name().unwrap().to_str().unwrap();
        match (&attempt.reason, name) {
            (Reason::Missing, "absent.so") => {}
            (Reason::NotCufile(missing), "other.so") => {
                assert_eq!(missing, &["cuFileDriverOpen", "cuFileHandleRegister", "cuFileRead"]);
            }
            (Reason::NotLoadable(why), "text.so") => assert_eq!(why, "not a shared library"),
            (Reason::NotLoadable(why), "needy.so") => assert!(why.contains("gone"), "{why}"),
            _ => panic!("{error}"),
        }
        assert_eq!(error.to_string().lines().count(), 1);
    }
    let error = Library::open().unwrap_err();
    assert_eq!(error.named_by(), Some(LIBRARY_VARIABLE));
    assert!(error.to_string().contains(LIBRARY_VARIABLE), "{error}");
}
