//! What the tests over the stand-in cuFile share: a child process in which it is the library, on the emulated driver,
//! and a look inside it.

use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use gpufeed::cufile::Driver;
use gpufeed::{BytesByWay, Dataset, Device, DeviceBuffer, Loader, Shuffle, Way, evict};

use crate::cuda_common::{
    Consumer, DONE, Data, DriverFile, Outcome, Use, describe, emulator, finish, folder, noise, on_emulator,
};

pub(crate) const GPU: Device = Device::Cuda(0);
/// Names the library of a child.
const LIBRARY: &str = "GPUFEED_LIBCUFILE";
/// Which test this process is the child of.
const CHILD: &str = "GPUFEED_STANDIN_TEST_CHILD";

/// The stand-in that cargo built for the tests: beside the emulated driver.
fn standin() -> PathBuf {
    let path = emulator().with_file_name("libgpufeed_cufile_standin.so");
    assert!(path.exists(), "{path:?} is not there");
    path
}

/// A command whose cuFile is the stand-in and whose driver is the emulated one, with nothing left of the caller's
/// settings. Both report to one file in the folder.
pub(crate) fn command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    on_emulator(&mut command, folder, DriverFile::Emulator);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"CUFILE_") {
            command.env_remove(name);
        }
    }
    command
        // Also answers for /proc/modules, where there is none.
        .env("LD_PRELOAD", emulator())
        .env(LIBRARY, standin())
        .env("CUFILE_STANDIN_REPORT", folder.join("report"))
        .env("CUFILE_STANDIN_LEAKS", "1")
        .current_dir(folder);
    command
}

/// How the child of `test` ended. In that child, `body` is called and the process ends.
pub(crate) fn outcome(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) -> Outcome {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        body();
        println!("{DONE}");
        // What the body held is dropped by now, so that what is still there at the exit is a leak.
        std::process::exit(0);
    }
    let folder = folder();
    let executable = std::env::current_exe().expect("a test has an executable");
    let mut command = command(&executable, folder.path());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(CHILD, test).envs(environment.iter().copied());
    finish(command, folder.path())
}

/// Runs `body` in a child process over the stand-in, and fails if the child fails, hangs, misuses cuFile or the driver,
/// or leaves something behind. `test` is the name of the calling test.
#[track_caller]
pub(crate) fn in_child(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    let outcome = outcome(test, environment, body);
    let fine = outcome.code == Some(0) && outcome.output.contains(DONE) && outcome.reports.is_empty();
    assert!(fine, "{test} with {environment:?}: {}", describe(&outcome));
}

/// [`in_child`] for the test function that it stands in. Where it is called more than once, each child does the same
/// in another environment.
macro_rules! over_standin {
    ($environment:expr, $body:expr) => {{
        fn here() {}
        let path = std::any::type_name_of_val(&here);
        let test = path.split("::").nth(1).expect("crate::test::here");
        $crate::standin_common::in_child(test, $environment, $body)
    }};
}
pub(crate) use over_standin;

/// A setting of this child.
pub(crate) fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// What `cufile_standin_stats` fills in.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inside {
    pub(crate) driver_opens: u64,
    pub(crate) handles: u64,
    pub(crate) buffers: u64,
    pub(crate) registered_bytes: u64,
    pub(crate) batches: u64,
    pub(crate) batch_entries_in_flight: u64,
    pub(crate) streams: u64,
    pub(crate) stream_operations_in_flight: u64,
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) failed: u64,
    pub(crate) direct_bytes: u64,
    pub(crate) posix_bytes: u64,
    pub(crate) faults_struck: u64,
    pub(crate) misuses: u64,
}

fn symbol(name: &CStr) -> *mut c_void {
    let path = CString::new(std::env::var(LIBRARY).expect("a child")).unwrap();
    // SAFETY: the stand-in is a library without load-time code; it is never closed.
    let symbol = unsafe { libc::dlsym(libc::dlopen(path.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!symbol.is_null(), "{name:?} is not there");
    symbol
}

/// What the stand-in holds and has done.
pub(crate) fn inside() -> Inside {
    let mut stats = Inside::default();
    // SAFETY: the function has this type, and `Inside` its layout, as the stand-in's README says.
    let code = unsafe {
        let ask: unsafe extern "C" fn(*mut Inside) -> i32 =
            std::mem::transmute(symbol(c"cufile_standin_stats"));
        ask(&mut stats)
    };
    assert_eq!(code, 0);
    stats
}

/// How often a function of the stand-in was called.
pub(crate) fn called(name: &CStr) -> u64 {
    // SAFETY: the function has this type, as the stand-in's README says.
    unsafe {
        let ask: unsafe extern "C" fn(*const c_char) -> u64 =
            std::mem::transmute(symbol(c"cufile_standin_calls"));
        ask(name.as_ptr())
    }
}

/// Nothing is open or registered.
#[track_caller]
pub(crate) fn assert_nothing_is_left() {
    let left = inside();
    let of = [left.driver_opens, left.handles, left.buffers, left.batches, left.streams];
    assert_eq!(of, [0; 5], "{left:?}");
}

/// A file in the folder of this child, with bytes without a pattern, and not in the page cache.
pub(crate) fn file(name: &str, len: usize) -> (PathBuf, Vec<u8>) {
    let (path, bytes) = (std::env::current_dir().unwrap().join(name), noise(len as u64, len));
    fs::write(&path, &bytes).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    evict(&path).unwrap();
    (path, bytes)
}

/// GPU memory with known bytes.
pub(crate) fn memory(len: usize) -> (DeviceBuffer, Vec<u8>) {
    let (mut buffer, bytes) = (DeviceBuffer::new(GPU, len).unwrap(), noise(!0, len));
    buffer.write(0, &bytes).unwrap();
    (buffer, bytes)
}

/// The bytes of GPU memory from byte `at` on are these.
#[track_caller]
pub(crate) fn assert_holds(buffer: &DeviceBuffer, at: usize, right: &[u8]) {
    let mut found = vec![0; right.len()];
    buffer.read(at, &mut found).unwrap();
    if found != right {
        let first = found.iter().zip(right).position(|(a, b)| a != b).unwrap();
        panic!("wrong from byte {first} of {} on", right.len());
    }
}

pub(crate) fn open() -> Driver {
    Driver::open(GPU).unwrap()
}

/// Takes the files of a dataset out of the page cache.
pub(crate) fn cool(dataset: &Dataset) {
    for file in dataset.files() {
        evict(file.path()).unwrap();
    }
}

/// Runs epochs whose batches are used in stream order, in ways that `how` chooses, and checked at the end of each.
/// The loader was built with seed 3.
pub(crate) fn deliver(
    data: &Data,
    loader: &mut Loader,
    shuffle: Shuffle,
    epochs: u64,
    mut how: impl FnMut(u64) -> Use,
) {
    let mut consumer = Consumer::new(0, data.sample_bytes() * data.samples as usize);
    for epoch in 0..epochs {
        let mut samples = Vec::new();
        for batch in loader.epoch(epoch).unwrap() {
            let batch = batch.unwrap();
            samples.extend_from_slice(batch.samples());
            let how = how(batch.index());
            consumer.take(batch, how);
        }
        assert_eq!(samples, data.order(shuffle, 3, epoch));
        consumer.check(data);
    }
}

/// All bytes went by `way`, and there were so many.
#[track_caller]
pub(crate) fn assert_all_by(ways: BytesByWay, way: Way, bytes: u64) {
    assert_eq!((ways.bytes(way), ways.total()), (bytes, bytes), "{ways:?}");
}
