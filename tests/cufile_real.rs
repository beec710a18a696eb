//! cuFile over NVIDIA's own libraries, in their compatibility mode, on the emulated driver: each test runs with every
//! library below `GPUFEED_CUFILE_WHEELS`.
#![cfg(feature = "cli")]

mod cuda_common;
mod cufile_common;

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cuda_common::{noise, second_context, stats};
use cufile_common::{Surroundings, at, gpufeed, libraries, with_cufile};
use gpufeed::cudarc::driver::CudaContext;
use gpufeed::cufile::{Batch, Config, Driver, FileHandle, ReadCounts, RegisteredBuffer, Route, Setting};
use gpufeed::{
    Backend, Dataset, Device, DeviceBuffer, Dtype, Error, ErrorKind, LastBatch, Loader, Shuffle, Way,
};
use serde_json::Value;

/// Where direct I/O and cuFile's own 4 KiB pages begin and end.
const AWKWARD: [usize; 7] = [0, 1, 511, 512, 4095, 4096, 4097];
const GPU: Device = Device::Cuda(0);
const PATIENCE: Duration = Duration::from_secs(20);

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

/// A file in the child's folder, with bytes without a pattern.
fn file(name: &str, len: usize) -> (PathBuf, Vec<u8>) {
    let (path, bytes) = (at(name), noise(len as u64, len));
    write(&path, &bytes);
    (path, bytes)
}

/// GPU memory, and what is in it.
fn memory(len: usize) -> (DeviceBuffer, Vec<u8>) {
    let (mut buffer, bytes) = (DeviceBuffer::new(GPU, len).unwrap(), noise(!0, len));
    buffer.write(0, &bytes).unwrap();
    (buffer, bytes)
}

/// The whole of GPU memory is as it should be: what was read is right, and nothing else was touched.
#[track_caller]
fn assert_holds(buffer: &DeviceBuffer, right: &[u8]) {
    let mut found = vec![0; right.len()];
    buffer.read(0, &mut found).unwrap();
    if found != right {
        let first = found.iter().zip(right).position(|(a, b)| a != b).unwrap();
        panic!("GPU memory is wrong from byte {first} of {} on", right.len());
    }
}

/// An error with all its causes.
fn words(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text += &format!(": {next}");
        cause = next.source();
    }
    text
}

#[track_caller]
fn assert_error<T: std::fmt::Debug>(result: gpufeed::Result<T>, kind: ErrorKind, parts: &[&str]) {
    let error = result.unwrap_err();
    let text = words(&error);
    assert_eq!(error.kind(), kind, "{text}");
    assert!(parts.iter().all(|part| text.contains(part)), "{text:?} lacks one of {parts:?}");
}

/// How often the library counts its driver as open.
fn use_count() -> i64 {
    // SAFETY: takes nothing and reads a counter.
    unsafe { cufile_sys::Library::open().unwrap().cuFileUseCount.unwrap()() }
}

#[test]
fn the_driver_opens_closes_and_opens_again() {
    with_cufile!(|cufile| {
        for device in [Device::Host, Device::Auto, Device::Cuda(1), Device::Cuda(u32::MAX)] {
            assert_eq!(Driver::open(device).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        let (path, bytes) = file("data", 5000);
        for round in 0..3 {
            let driver = Driver::open(GPU).unwrap();
            assert_eq!(use_count(), 1);
            assert_eq!(driver.version().unwrap(), cufile.version);
            assert_eq!(driver.library_path().canonicalize().unwrap(), cufile.path);
            let properties = driver.properties().unwrap();
            assert_eq!((properties.nvidia_fs, properties.storage), ((0, 0), 0));
            assert_eq!(properties.max_batch, 128);
            let settings = driver.settings().unwrap();
            for wanted in [
                ("properties_io_batchsize", Setting::Number(128)),
                ("properties_allow_compat_mode", Setting::Switch(true)),
            ] {
                assert!(settings.contains(&(wanted.0.into(), wanted.1)), "{settings:?}");
            }
            assert!(properties.max_direct_io_bytes >= 1 << 20 && properties.max_pinned_bytes >= 1 << 20);
            assert_eq!(driver.route().unwrap(), Route::Compatibility);
            if !cufile.has_statistics() {
                let parts = ["cuFileGetBARSizeInKB", "1.15", "1.14"];
                assert_error(driver.bar_bytes(), ErrorKind::Unsupported, &parts);
            }
            // Clones and openings are counted by us, the library knows of one.
            let others = [Driver::open(GPU).unwrap(), driver.clone()];
            let handle = FileHandle::open(&others[0], &path).unwrap();
            let (buffer, _) = memory(5000);
            let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
            assert_eq!(use_count(), 1);
            // The file and the buffer are users too; the last one closes, on whatever thread.
            drop((driver, others));
            handle.read_exact_at(0, 5000, &registered, 0).unwrap();
            assert_holds(&buffer, &bytes);
            drop(registered);
            assert_eq!(use_count(), 1);
            if round == 1 {
                drop(handle);
            } else {
                std::thread::spawn(move || drop(handle)).join().unwrap();
            }
            assert_eq!(use_count(), 0);
        }
        // From several threads, so that the last drop of one meets the first opening of another.
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..3 {
                        assert_eq!(Driver::open(GPU).unwrap().route().unwrap(), Route::Compatibility);
                    }
                });
            }
        });
        assert_eq!(use_count(), 0);
        // Two of the library's own answers at once destroy the heap of 1.14.
        let driver = Driver::open(GPU).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..300).for_each(|_| assert!(driver.properties().is_ok())));
            }
        });
    });
}

#[test]
fn a_thousand_files_leave_no_descriptor_behind() {
    with_cufile!(|_| {
        let (path, _) = file("data", 5000);
        let driver = Driver::open(GPU).unwrap();
        let open = || fs::read_dir("/proc/self/fd").unwrap().count();
        let (_, before) = (FileHandle::open(&driver, &path).unwrap(), open());
        for _ in 0..1000 {
            FileHandle::open(&driver, &path).unwrap();
        }
        assert!(open() <= before, "{before} descriptors became {}", open());
    });
}

#[test]
fn the_child_that_tries_the_driver_tells_what_became_of_it() {
    with_cufile!(|cufile| {
        // This program, started as `Driver::open` starts it: it comes to the attempt, and never to its tests.
        let asked = |device: &str, library: &Path| {
            let mut child = Command::new("/proc/self/exe");
            child.env("GPUFEED_PROBE_CUFILE", format!("{device}:{}", library.display()));
            let output = child.stdin(Stdio::null()).output().unwrap();
            (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
        };
        assert_eq!(asked("0", &cufile.path), (77, String::new()));
        for (device, library) in [
            ("1", cufile.path.as_path()),
            ("none", &cufile.path),
            ("0", Path::new("/not/there")),
            ("0", Path::new("/proc/self/exe")),
        ] {
            assert_eq!(asked(device, library), (1, String::new()), "{device} {library:?}");
        }
    });
}

#[test]
fn a_driver_that_does_not_open_is_told_by_its_code() {
    with_cufile!(|_| {
        fs::write(at("cufile.json"), "{ \"properties\": { \"allow_compat_mode\": false } }").unwrap();
        // SAFETY: no other thread of this process looks at the environment.
        unsafe { std::env::set_var("CUFILE_ENV_PATH_JSON", at("cufile.json")) };
        for _ in 0..2 {
            let start = Instant::now();
            let parts = ["cuFile cannot be used: its driver does not open", "5001", "compat"];
            assert_error(Driver::open(GPU), ErrorKind::Unavailable, &parts);
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!(use_count(), 0);
        let refused = Backend::Gds.probe().unwrap_err();
        assert!(refused.reason.contains("5001"), "{refused}");
    });
}

#[test]
fn a_library_that_is_not_cufile_is_called_that() {
    let emulator = cuda_common::emulator();
    for other in [emulator.to_str().unwrap(), "/not/there/libcufile.so.0", "/proc/version"] {
        let environment = [(cufile_common::LIBRARY, other)];
        with_cufile!(&Surroundings { environment: &environment, ..Surroundings::GOOD }, |cufile| {
            let start = Instant::now();
            let path = cufile.path.to_str().unwrap();
            assert_error(Driver::open(GPU), ErrorKind::Unavailable, &[path, "cuFile cannot be loaded"]);
            assert!(Backend::Gds.probe().unwrap_err().reason.contains(path));
            assert!(start.elapsed() < PATIENCE);
        });
    }
}

#[test]
fn without_proc_modules_the_driver_is_not_opened_at_all() {
    if Path::new("/proc/modules").exists() {
        return eprintln!("skipped: this kernel has /proc/modules");
    }
    with_cufile!(&Surroundings { modules: false, ..Surroundings::GOOD }, |_| {
        let start = Instant::now();
        assert_error(Driver::open(GPU), ErrorKind::Unavailable, &["/proc/modules cannot be read"]);
        assert!(start.elapsed() < Duration::from_secs(5));
        assert_eq!(use_count(), 0);
    });
}

/// Reads from and to every awkward place, and looks at all of the memory each time.
fn read_everywhere(
    handle: &FileHandle,
    bytes: &[u8],
    registered: &RegisteredBuffer<'_>,
    buffer: &DeviceBuffer,
    right: &mut [u8],
) {
    for start in AWKWARD {
        for len in AWKWARD {
            for from in AWKWARD {
                let n = handle.read_at(from as u64, len, registered, start);
                let n = n.unwrap_or_else(|error| panic!("{len} from {from} to {start}: {}", words(&error)));
                assert_eq!(n, len, "from {from} to {start}");
                right[start..][..len].copy_from_slice(&bytes[from..][..len]);
                assert_holds(buffer, right);
            }
        }
    }
}

#[test]
fn reads_at_every_awkward_place_bring_the_right_bytes() {
    with_cufile!(|_| {
        let (path, bytes) = file("data", 3 * 4096 + 777);
        let driver = Driver::open(GPU).unwrap();
        let direct = FileHandle::open(&driver, &path).unwrap();
        let plain = FileHandle::register(&driver, File::open(&path).unwrap(), &path).unwrap();
        let (buffer, mut right) = memory(12345);
        let unregistered = RegisteredBuffer::unregistered(&driver, &buffer).unwrap();
        read_everywhere(&direct, &bytes, &unregistered, &buffer, &mut right);
        read_everywhere(&plain, &bytes, &unregistered, &buffer, &mut right);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        assert_eq!((registered.len(), registered.is_empty()), (12345, false));
        read_everywhere(&direct, &bytes, &registered, &buffer, &mut right);
    });
}

#[test]
fn at_the_end_of_the_file_reads_are_short_and_beyond_it_empty() {
    with_cufile!(|_| {
        let (path, bytes) = file("data", 3 * 4096 + 777);
        let (empty, _) = file("empty", 0);
        let driver = Driver::open(GPU).unwrap();
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, mut right) = memory(12345);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        // What was asked for and did not come is undefined; what was not asked for is as it was.
        let mut read = |handle: &FileHandle, from: u64, len: usize, wanted: &[u8]| {
            let n = handle.read_at(from, len, &registered, 1000).unwrap();
            assert_eq!(n, wanted.len(), "{len} bytes from {from}");
            right[1000..][..n].copy_from_slice(wanted);
            buffer.read(1000 + n, &mut right[1000 + n..][..len - n]).unwrap();
            assert_holds(&buffer, &right);
        };
        for back in AWKWARD {
            for len in AWKWARD {
                let from = bytes.len() - back;
                read(&handle, from as u64, len, &bytes[from..][..len.min(back)]);
                read(&handle, (bytes.len() + back) as u64, len, &[]);
                read(&FileHandle::open(&driver, &empty).unwrap(), back as u64, len, &[]);
            }
        }
        let end = bytes.len() as u64;
        handle.read_exact_at(end - 100, 100, &registered, 0).unwrap();
        handle.read_exact_at(end, 0, &registered, 0).unwrap();
        for (from, missing) in
            [(end - 100, "the file ends 1 bytes before"), (end, "the file ends 101 bytes before")]
        {
            let result = handle.read_exact_at(from, 101, &registered, 0);
            assert_error(result, ErrorKind::Io, &[missing, path.to_str().unwrap(), "backend gds"]);
        }
        for (len, start) in [(12346, 0), (1, 12345), (0, 12346), (usize::MAX, 1), (1, usize::MAX)] {
            let parts = ["12345 bytes"];
            assert_error(handle.read_at(0, len, &registered, start), ErrorKind::InvalidArgument, &parts);
            assert_error(handle.write_at(0, len, &registered, start), ErrorKind::InvalidArgument, &parts);
        }
        let place = u64::MAX;
        assert_error(
            handle.read_at(place, 1, &registered, 0),
            ErrorKind::InvalidArgument,
            &["18446744073709551615"],
        );
        for (from, len) in [(i64::MAX as u64, 1), (i64::MAX as u64 - 4095, 4096)] {
            assert_error(
                handle.read_at(from, len, &registered, 0),
                ErrorKind::Io,
                &["CU_FILE_INVALID_VALUE (5022)"],
            );
        }
    });
}

#[test]
fn reads_from_several_threads_come_to_the_right_places() {
    with_cufile!(|_| {
        let (path, bytes) = file("data", (4 << 20) + 123);
        let driver = Driver::open(GPU).unwrap();
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, _) = memory(bytes.len());
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (handle, registered, end) = (&handle, &registered, bytes.len());
                scope.spawn(move || {
                    let mut at = thread * (1 << 20);
                    let end = if thread == 3 { end } else { at + (1 << 20) };
                    for len in [1, 4095, 70_000, 300_001].into_iter().cycle() {
                        let len = len.min(end - at);
                        handle.read_exact_at(at as u64, len, registered, at).unwrap();
                        at += len;
                        if at == end {
                            break;
                        }
                    }
                });
            }
        });
        assert_holds(&buffer, &bytes);
    });
}

#[test]
fn large_reads_bring_the_right_bytes() {
    with_cufile!(|_| {
        let (path, bytes) = file("data", (40 << 20) + 1);
        let driver = Driver::open(GPU).unwrap();
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, mut right) = memory(bytes.len() + 9);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        // More than the largest I/O and than the largest of cuFile's own buffers.
        for (from, len, start) in [(0, bytes.len(), 0), (3, bytes.len() - 3, 12), (0, 16 << 20, 4096)] {
            handle.read_exact_at(from as u64, len, &registered, start).unwrap();
            right[start..][..len].copy_from_slice(&bytes[from..][..len]);
            assert_holds(&buffer, &right);
        }
    });
}

#[test]
fn writes_come_to_the_right_places_and_nowhere_else() {
    with_cufile!(|_| {
        let path = at("data");
        let mut right = noise(3, 10_000);
        write(&path, &right);
        let driver = Driver::open(GPU).unwrap();
        let open = File::options().read(true).write(true).open(&path).unwrap();
        let handle = FileHandle::register(&driver, open, &path).unwrap();
        let (buffer, bytes) = memory(20_000);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        let mut put = |to: usize, len: usize, start: usize| {
            assert_eq!(handle.write_at(to as u64, len, &registered, start).unwrap(), len);
            right.resize(right.len().max(if len == 0 { 0 } else { to + len }), 0);
            right[to..][..len].copy_from_slice(&bytes[start..][..len]);
            assert!(fs::read(&path).unwrap() == right, "{len} bytes to {to} from {start}");
        };
        for to in AWKWARD {
            for len in AWKWARD {
                put(to, len, (to * 7 + len * 3) % 11_000);
            }
        }
        // Beyond the end: the file grows, with zeros in between.
        put(9_999, 2, 5);
        put(12_288, 4096, 4096);
        put(50_001, 4097, 3);
        assert_holds(&buffer, &bytes);
        let read_only = FileHandle::open(&driver, &path).unwrap();
        let result = read_only.write_at(0, 4096, &registered, 0);
        assert_error(result, ErrorKind::Io, &["the cuFile write failed", path.to_str().unwrap()]);
        let open = File::options().write(true).open(&path).unwrap();
        let write_only = FileHandle::register(&driver, open, &path).unwrap();
        let result = write_only.read_at(0, 4096, &registered, 0);
        assert_error(result, ErrorKind::Io, &["the cuFile read failed", "(5019)"]);
        assert!(fs::read(&path).unwrap() == right);
    });
}

#[test]
fn vectored_reads_bring_the_right_bytes_where_the_library_has_them() {
    with_cufile!(|cufile| {
        let (path, bytes) = file("data", 3 * 4096 + 777);
        let driver = Driver::open(GPU).unwrap();
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, mut right) = memory(30_000);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        if !cufile.has_vectored() {
            let result = handle.read_vectored(0, &registered, &[(0, 10)]);
            assert_error(result, ErrorKind::Unsupported, &["cuFileReadv", "1.19", "1.14"]);
            return;
        }
        let mut read = |from: usize, parts: &[(usize, usize)]| {
            let mut left = &bytes[from..];
            let n = handle.read_vectored(from as u64, &registered, parts).unwrap();
            assert_eq!(n, left.len().min(parts.iter().map(|part| part.1).sum()), "{parts:?} from {from}");
            for &(start, len) in parts {
                let (come, rest) = left.split_at(len.min(left.len()));
                right[start..][..come.len()].copy_from_slice(come);
                buffer.read(start + come.len(), &mut right[start..][come.len()..len]).unwrap();
                left = rest;
            }
            assert_holds(&buffer, &right);
        };
        for from in AWKWARD {
            read(from, &[(5, 7), (4096, 4096), (20_000, 1), (20_001, 511)]);
            read(from, &[(20_001, 4097), (0, 512)]);
            read(from, &[(1, 4096)]);
            // To the end of the file and on.
            read(from, &[(0, 10_000), (15_000, 15_000)]);
        }
        read(0, &[(0, 0)]);
        let result = handle.read_vectored(0, &registered, &[(0, 10), (30_000, 1)]);
        assert_error(result, ErrorKind::InvalidArgument, &["30000 bytes"]);
        assert!(handle.read_vectored(0, &registered, &[]).is_err());
        assert_holds(&buffer, &right);
    });
}

#[test]
fn what_cannot_be_registered_is_an_error_that_says_why() {
    let environment = [("CUDA_EMULATOR_DEVICES", "2")];
    with_cufile!(&Surroundings { environment: &environment, ..Surroundings::GOOD }, |cufile| {
        let (path, bytes) = file("data", 5000);
        let driver = Driver::open(GPU).unwrap();
        // Memory that is not on the driver's GPU.
        for device in [Device::Host, Device::Cuda(1)] {
            let buffer = DeviceBuffer::new(device, 5000).unwrap();
            let parts = [&*device.to_string(), "cuda:0"];
            assert_error(RegisteredBuffer::new(&driver, &buffer), ErrorKind::InvalidArgument, &parts);
            assert_error(
                RegisteredBuffer::unregistered(&driver, &buffer),
                ErrorKind::InvalidArgument,
                &parts,
            );
        }
        // The second GPU has a driver of its own, which is the same for the library.
        let second = Driver::open(Device::Cuda(1)).unwrap();
        let buffer = DeviceBuffer::new(Device::Cuda(1), 5000).unwrap();
        let registered = RegisteredBuffer::new(&second, &buffer).unwrap();
        let handle = FileHandle::open(&second, &path).unwrap();
        handle.read_exact_at(0, 5000, &registered, 0).unwrap();
        assert_holds(&buffer, &bytes);

        // Files that are none.
        assert_error(FileHandle::open(&driver, "/not/there"), ErrorKind::NotFound, &["/not/there"]);
        assert_error(FileHandle::open(&driver, "/dev/null"), ErrorKind::InvalidData, &["a device"]);
        assert_error(FileHandle::open(&driver, at("")), ErrorKind::InvalidData, &["a directory"]);
        // A file system that only newer libraries take.
        let in_memory = Path::new("/run/data");
        fs::write(in_memory, &bytes).unwrap();
        let handle = FileHandle::open(&driver, in_memory);
        if cufile.version < 1200 {
            assert_error(handle, ErrorKind::Device, &["/run/data", "cannot register the file", "5030"]);
        } else {
            let (buffer, _) = memory(5000);
            let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
            handle.unwrap().read_exact_at(0, 5000, &registered, 0).unwrap();
            assert_holds(&buffer, &bytes);
        }
        assert_error(FileHandle::open(&driver, "/proc/self/maps"), ErrorKind::Device, &["/proc/self/maps"]);
    });
}

#[test]
fn without_udev_the_refusal_says_what_to_do() {
    with_cufile!(&Surroundings { udev: false, ..Surroundings::GOOD }, |_| {
        let (path, _) = file("data", 5000);
        let driver = Driver::open(GPU).unwrap();
        let parts = ["there is no /run/udev", "container", path.to_str().unwrap()];
        assert_error(FileHandle::open(&driver, &path), ErrorKind::Device, &parts);
    });
}

#[test]
fn batches_of_every_size_bring_the_right_bytes() {
    with_cufile!(|_| {
        let (path, bytes) = file("data", 128 * 4096 + 777);
        let driver = Driver::open(GPU).unwrap();
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, mut right) = memory(1 << 20);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        let most = driver.properties().unwrap().max_batch as usize;
        for (round, size) in [1, 2, 127, most, 60].into_iter().enumerate() {
            let mut batch = Batch::new(&driver, size).unwrap();
            // In compatibility mode 1.14 has buffers of 4 KiB for 128 entries, larger ones for 64, and never returns
            // from submitting more.
            let (more, odd) = if size <= 60 { (100, round) } else { (0, 0) };
            for i in 0..size {
                let (from, len, to) = (i * 4096 + odd, 4096 - i + more, i * 8000 + i);
                assert_eq!(batch.read(&handle, from as u64, len, &registered, to).unwrap(), i);
                right[to..][..len].copy_from_slice(&bytes[from..][..len]);
            }
            let one_more = batch.read(&handle, 0, 1, &registered, 0);
            assert_error(one_more, ErrorKind::InvalidArgument, &["full", &format!("{size} entries")]);
            assert_error(batch.wait(PATIENCE), ErrorKind::InvalidArgument, &["not submitted"]);
            batch.submit().unwrap();
            assert_error(batch.submit(), ErrorKind::InvalidArgument, &["submitted once"]);
            let late = batch.read(&handle, 0, 1, &registered, 0);
            assert_error(late, ErrorKind::InvalidArgument, &["submitted already"]);
            let outcomes = batch.wait(PATIENCE).unwrap();
            assert_eq!(outcomes.len(), size);
            for (i, outcome) in outcomes.into_iter().enumerate() {
                assert_eq!((outcome.entry, outcome.result.unwrap()), (i, 4096 - i + more));
            }
            assert_holds(&buffer, &right);
            // Each outcome is given once.
            let again = batch.wait(PATIENCE).unwrap();
            assert!(again.iter().all(|outcome| outcome.result.is_err()));
        }
        for size in [0, most + 1, usize::MAX] {
            let parts = [&*size.to_string(), &*most.to_string()];
            assert_error(Batch::new(&driver, size), ErrorKind::InvalidArgument, &parts);
        }
        let mut batch = Batch::new(&driver, 2).unwrap();
        assert_error(batch.submit(), ErrorKind::InvalidArgument, &["at least one entry"]);
        for (len, to) in [(1, 1 << 20), (usize::MAX, 1), ((1 << 20) + 1, 0)] {
            let result = batch.read(&handle, 0, len, &registered, to);
            assert_error(result, ErrorKind::InvalidArgument, &["1048576 bytes"]);
        }
        assert_error(
            batch.read(&handle, u64::MAX, 1, &registered, 0),
            ErrorKind::InvalidArgument,
            &["offset"],
        );
    });
}

#[test]
fn each_entry_of_a_batch_has_an_outcome_of_its_own() {
    with_cufile!(|_| {
        let (path, bytes) = file("data", 3 * 4096 + 777);
        let out = at("out");
        write(&out, &[7; 3 * 4096]);
        let driver = Driver::open(GPU).unwrap();
        let handle = FileHandle::open(&driver, &path).unwrap();
        let mut options = File::options();
        let open = options.read(true).write(true).custom_flags(libc::O_DIRECT).open(&out).unwrap();
        let written = FileHandle::register(&driver, open, &out).unwrap();
        let (buffer, mut right) = memory(8 * 4096);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        let end = bytes.len();
        let mut batch = Batch::new(&driver, 8).unwrap();
        let mut wanted = Vec::new();
        for (from, come) in
            [(0, 4096), (end - 4096, 4096), (end - 100, 100), (end, 0), (end + 5000, 0), (1, 4096)]
        {
            let to = wanted.len() * 4096;
            let number = batch.read(&handle, from as u64, 4096, &registered, to).unwrap();
            assert_eq!(number, wanted.len());
            wanted.push((from, come));
        }
        let writes = batch.write(&written, 4096, 4096, &registered, 7 * 4096).unwrap();
        batch.submit().unwrap();
        for outcome in batch.wait(PATIENCE).unwrap() {
            let to = outcome.entry * 4096;
            if outcome.entry == writes {
                assert_eq!(outcome.result.unwrap(), 4096);
            } else {
                let (from, come) = wanted[outcome.entry];
                assert_eq!(outcome.result.unwrap(), come, "entry {}", outcome.entry);
                right[to..][..come].copy_from_slice(&bytes[from.min(end)..][..come]);
                buffer.read(to + come, &mut right[to..][come..4096]).unwrap();
            }
        }
        assert_holds(&buffer, &right);
        let written = fs::read(&out).unwrap();
        assert!(written[4096..8192] == right[7 * 4096..]);
        assert!(written[..4096].iter().chain(&written[8192..]).all(|&byte| byte == 7));
        // A batch that is refused as a whole moves nothing, and may be dropped.
        let open = File::options().write(true).open(&out).unwrap();
        let write_only = FileHandle::register(&driver, open, &out).unwrap();
        let mut batch = Batch::new(&driver, 2).unwrap();
        batch.read(&handle, 0, 4096, &registered, 4096).unwrap();
        batch.read(&write_only, 0, 4096, &registered, 0).unwrap();
        assert_error(batch.submit(), ErrorKind::Device, &["cuFile refuses the batch"]);
        drop(batch);
        assert_holds(&buffer, &right);
    });
}

#[test]
fn a_batch_may_be_dropped_at_any_moment() {
    with_cufile!(|_| {
        let (path, bytes) = file("data", 128 * 4096);
        let driver = Driver::open(GPU).unwrap();
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, mut right) = memory(bytes.len());
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        let start = Instant::now();
        let full = || {
            let mut batch = Batch::new(&driver, 128).unwrap();
            for at in (0..bytes.len()).step_by(4096) {
                batch.read(&handle, at as u64, 4096, &registered, at).unwrap();
            }
            batch
        };
        drop(Batch::new(&driver, 128).unwrap());
        drop(full());
        assert_holds(&buffer, &right);
        for how in 0..4 {
            let mut batch = full();
            batch.submit().unwrap();
            match how {
                0 => drop(batch),
                1 => std::thread::scope(|scope| scope.spawn(move || drop(batch)).join().unwrap()),
                2 => {
                    // Too little time: what is not done goes on, and the drop waits for it.
                    let _ = batch.wait(Duration::ZERO);
                    drop(batch);
                }
                _ => drop(batch.wait(PATIENCE).unwrap()),
            }
            // Nothing is in flight any more.
            right.copy_from_slice(&bytes);
            assert_holds(&buffer, &right);
        }
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    });
}

#[test]
fn two_batches_do_not_mix() {
    with_cufile!(|_| {
        let (path, bytes) = file("data", 64 * 1000);
        let driver = Driver::open(GPU).unwrap();
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, _) = memory(bytes.len());
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        let mut batches = [Batch::new(&driver, 32).unwrap(), Batch::new(&driver, 32).unwrap()];
        for i in 0..64 {
            batches[i % 2].read(&handle, i as u64 * 1000, 1000, &registered, i * 1000).unwrap();
        }
        for batch in &mut batches {
            batch.submit().unwrap();
        }
        for batch in batches.iter_mut().rev() {
            assert!(batch.wait(PATIENCE).unwrap().iter().all(|it| matches!(it.result, Ok(1000))));
        }
        assert_holds(&buffer, &bytes);
    });
}

#[test]
fn everything_may_go_in_any_order() {
    with_cufile!(|_| {
        let (path, _) = file("data", 5000);
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let driver = Driver::open(GPU).unwrap();
            let handle = FileHandle::open(&driver, &path).unwrap();
            let (buffer, _) = memory(5000);
            let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
            let (mut driver, mut handle, mut registered) = (Some(driver), Some(handle), Some(registered));
            for (step, &what) in order.iter().enumerate() {
                match what {
                    0 => drop(driver.take()),
                    1 => drop(handle.take()),
                    _ => drop(registered.take()),
                }
                assert_eq!(use_count(), i64::from(step < 2), "{order:?}");
            }
        }
        // With a batch in flight, which keeps the driver open, and goes before the file and the buffer that it uses.
        for order in 0..4 {
            let driver = Driver::open(GPU).unwrap();
            let handle = FileHandle::open(&driver, &path).unwrap();
            let (buffer, _) = memory(5000);
            let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
            let mut batch = Batch::new(&driver, 1).unwrap();
            batch.read(&handle, 0, 5000, &registered, 0).unwrap();
            batch.submit().unwrap();
            match order {
                0 => {
                    drop(driver);
                    drop(batch);
                    drop(handle);
                    drop(registered);
                }
                1 => {
                    drop(batch);
                    drop(registered);
                    drop(handle);
                    drop(driver);
                }
                2 => {
                    drop(batch);
                    drop(handle);
                    drop(driver);
                    drop(registered);
                }
                _ => {
                    drop(driver);
                    drop(batch);
                    drop(registered);
                    drop(handle);
                }
            }
            assert_eq!(use_count(), 0);
            drop(buffer);
            assert_eq!(stats().device_bytes, 0);
        }
        // Clones of a handle share it, and keep it.
        let driver = Driver::open(GPU).unwrap();
        let handle = FileHandle::open(&driver, &path).unwrap();
        let other = handle.clone();
        let (buffer, _) = memory(5000);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        drop(handle);
        other.read_exact_at(0, 5000, &registered, 0).unwrap();
    });
}

#[test]
fn a_stream_read_that_cannot_be_done_is_a_clean_error() {
    with_cufile!(|_| {
        let (path, _) = file("data", 5000);
        let driver = Driver::open(GPU).unwrap();
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, _) = memory(5000);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        let context = CudaContext::new(0).unwrap();
        let streams = [context.new_stream().unwrap(), context.default_stream()];
        let before = stats();
        for stream in &streams {
            // The part that a GPU's kernel does is refused, now or when the stream comes to it.
            let queued = handle.read_on_stream(0, 4096, &registered, 0, stream);
            let result = queued.and_then(|queued| queued.wait());
            assert_error(
                result,
                ErrorKind::Io,
                &["a read on a stream failed", path.to_str().unwrap(), "os error 5"],
            );
            drop(handle.read_on_stream(1, 100, &registered, 5, stream));
            // Several at once, dropped in another order; the stream still works afterwards.
            let several: Vec<_> =
                (0..3).map(|i| handle.read_on_stream(i, 100, &registered, i as usize, stream)).collect();
            several.into_iter().rev().for_each(drop);
            stream.synchronize().unwrap();
        }
        assert_eq!((stats().events, stats().device_bytes), (before.events, before.device_bytes));
        let result = handle.read_on_stream(0, 5001, &registered, 0, &streams[0]);
        assert_error(result, ErrorKind::InvalidArgument, &["5000 bytes"]);
        let other = second_context(&context);
        let stream = other.new_stream().unwrap();
        let result = handle.read_on_stream(0, 100, &registered, 0, &stream);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidArgument);
        handle.read_exact_at(0, 5000, &registered, 0).unwrap();
    });
}

#[test]
fn reads_are_counted_by_the_way_they_took_where_the_library_does() {
    with_cufile!(|cufile| {
        let (path, _) = file("data", 50_000);
        let driver = Driver::open(GPU).unwrap();
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, _) = memory(50_000);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        if !cufile.has_statistics() {
            assert_error(
                driver.count_reads(),
                ErrorKind::Unsupported,
                &["cuFileSetStatsLevel", "1.15", "1.14"],
            );
            assert_error(driver.reads(), ErrorKind::Unsupported, &["cuFileGetStatsL3", "1.15", "1.14"]);
            return;
        }
        driver.count_reads().unwrap();
        assert_eq!(driver.reads().unwrap(), ReadCounts::default());
        for i in 1..=5 {
            handle.read_at(i * 100, 4096, &registered, 0).unwrap();
            let counts = driver.reads().unwrap();
            assert_eq!((counts.nvidia_fs, counts.pci_p2pdma, counts.posix), (0, 0, i));
        }
    });
}

#[test]
fn the_configuration_file_is_the_one_that_cufile_takes() {
    const GOOD: &str = "{
        // a comment, as in the file that NVIDIA ships
        \"logging\": { \"level\": \"ERROR\" },
        \"properties\": { \"max_direct_io_size_kb\": 4096, /* and another */ \"allow_compat_mode\": true }
    }";
    for name in ["good", "missing", "broken", "empty"] {
        let environment = [("GPUFEED_TEST_CONFIGURATION", name)];
        with_cufile!(&Surroundings { environment: &environment, ..Surroundings::GOOD }, |_| {
            let name = std::env::var("GPUFEED_TEST_CONFIGURATION").unwrap();
            let path = at("cufile.json");
            // SAFETY: no other thread of this process looks at the environment.
            unsafe { std::env::set_var("CUFILE_ENV_PATH_JSON", &path) };
            assert_eq!(Config::path_in_use(), path);
            let text = match name.as_str() {
                "good" => GOOD,
                "broken" => "{ \"properties\": ",
                _ => " ",
            };
            if name != "missing" {
                fs::write(&path, text).unwrap();
            }
            let config = Config::read(Config::path_in_use());
            match name.as_str() {
                "good" => {
                    let config = config.unwrap();
                    assert_eq!(config.path(), path);
                    assert_eq!(config.setting("properties.max_direct_io_size_kb"), Some(&Value::from(4096)));
                    assert_eq!(config.setting("properties.io_batchsize"), None);
                }
                "missing" => assert_error(config, ErrorKind::NotFound, &["cufile.json"]),
                _ => assert_error(config, ErrorKind::InvalidData, &["cufile.json", "not JSON"]),
            }
            let driver = Driver::open(GPU);
            if matches!(name.as_str(), "broken" | "empty") {
                let error = driver.unwrap_err();
                assert!(!error.to_string().contains('\n'), "{error}");
                assert_error::<()>(
                    Err(error),
                    ErrorKind::Unavailable,
                    &["does not open", path.to_str().unwrap()],
                );
                return;
            }
            // Without a file it works with its defaults.
            let bytes = driver.unwrap().properties().unwrap().max_direct_io_bytes;
            assert_eq!(bytes == 4096 << 10, name == "good", "{bytes}");
        });
    }
}

/// Runs `body` in a forked child, which must come to its end in time and without an error.
fn in_fork(body: impl FnOnce()) {
    // SAFETY: the child runs `body` and ends without returning; what it allocates works, since glibc's allocator
    // survives a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let ended = std::panic::catch_unwind(AssertUnwindSafe(body));
        // SAFETY: ends the process, without the handlers that the parent registered.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    assert!(child > 0);
    let start = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: the child is this process's own, and `status` lives through the call.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            0 if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(5)),
            0 => {
                // SAFETY: as above.
                unsafe { libc::kill(child, libc::SIGKILL) };
                panic!("the forked child hangs");
            }
            done => {
                assert_eq!((done, status), (child, 0));
                return;
            }
        }
    }
}

#[test]
fn after_a_fork_everything_is_an_error_or_does_nothing() {
    with_cufile!(|_| {
        let (path, bytes) = file("data", 8192);
        let driver = Driver::open(GPU).unwrap();
        let handle = FileHandle::open(&driver, &path).unwrap();
        let (buffer, _) = memory(8192);
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        let mut batch = Batch::new(&driver, 2).unwrap();
        batch.read(&handle, 0, 4096, &registered, 0).unwrap();
        let mut flying = Batch::new(&driver, 1).unwrap();
        flying.read(&handle, 4096, 4096, &registered, 4096).unwrap();
        flying.submit().unwrap();
        in_fork(|| {
            let (device, parts) = (ErrorKind::Device, ["fork"]);
            assert_error(handle.read_at(0, 4096, &registered, 0), device, &parts);
            assert_error(handle.write_at(0, 4096, &registered, 0), device, &parts);
            assert_error(handle.read_on_stream(0, 4096, &registered, 0, &stream).map(drop), device, &parts);
            assert_error(FileHandle::open(&driver, &path).map(drop), device, &parts);
            assert_error(RegisteredBuffer::new(&driver, &buffer).map(drop), device, &parts);
            assert_error(Batch::new(&driver, 1).map(drop), device, &parts);
            assert_error(batch.submit(), device, &parts);
            assert_error(flying.wait(PATIENCE), device, &parts);
            assert_error(driver.properties(), device, &parts);
            assert_error(driver.route(), device, &parts);
            assert!(Driver::open(GPU).is_err());
            assert!(driver.reads().is_err() && driver.count_reads().is_err());
            // Dropping does nothing to what is the parent's.
            drop((batch, flying));
        });
        // The parent goes on as if nothing had been, after each fork.
        let right = |registered: &RegisteredBuffer<'_>| {
            handle.read_exact_at(0, 8192, registered, 0).unwrap();
            assert_holds(&buffer, &bytes);
        };
        right(&registered);
        in_fork(|| drop(handle.clone()));
        right(&registered);
        let again = RegisteredBuffer::new(&driver, &buffer);
        assert_error(again, ErrorKind::Device, &["8192 bytes of GPU memory cannot be registered", "5023"]);
        in_fork(move || drop(registered));
        let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
        right(&registered);
        drop(registered);
        in_fork(move || drop((driver, handle)));
        in_fork(move || drop(buffer));
        assert_eq!(use_count(), 0);
    });
}

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/datasets/digits");

/// Takes every file of a folder out of the page cache: what is in it is not read by cuFile.
fn make_cold(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            gpufeed::evict(path).unwrap();
        }
    }
}

/// `gpufeed load` of the digits, from a cold copy, to GPU 0.
#[track_caller]
fn load_digits(
    cufile: &cufile_common::Cufile,
    surroundings: &Surroundings<'_>,
    args: &[&str],
) -> (i32, Option<Value>, String) {
    let copy = cuda_common::folder();
    for entry in fs::read_dir(DIGITS).unwrap() {
        let from = entry.unwrap().path();
        write(&copy.path().join(from.file_name().unwrap()), &fs::read(&from).unwrap());
    }
    make_cold(copy.path());
    let mut all = vec!["load", copy.path().to_str().unwrap(), "--device", "cuda:0", "--json", "--digest"];
    all.extend(args);
    gpufeed(cufile, surroundings, &all)
}

fn host_digest(args: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpufeed"));
    cuda_common::launcher::without_launcher(&mut command);
    command.args(["load", DIGITS, "--device", "host", "--backend", "page-cache", "--json", "--digest"]);
    let output = command.args(args).stdin(Stdio::null()).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    found["digest"].clone()
}

#[test]
fn the_digits_come_by_cufile_with_the_digest_of_the_host() {
    let orders = [
        &["--last-batch", "short"][..],
        &["--shuffle", "full", "--seed", "7", "--epochs", "2", "--batch-size", "37"],
        &["--shuffle", "full", "--seed", "3", "--io-bytes", "4096", "--queue-depth", "3"],
    ];
    for cufile in libraries().unwrap_or_default() {
        for order in orders {
            let (status, found, output) =
                load_digits(&cufile, &Surroundings::GOOD, &[&["--backend", "gds"], order].concat());
            assert_eq!(status, 0, "{output}");
            let found = found.unwrap();
            assert_eq!(found["digest"], host_digest(order), "{output}");
            assert_eq!(
                (&found["backend"], &found["gds_route"]),
                (&"gds".into(), &"compatibility mode".into())
            );
            // The report never calls it direct.
            assert_eq!(found["bytes_by_way"]["gds"], 0);
            assert_eq!(found["bytes_by_way"]["cufile_compat"], found["bytes"], "{output}");
            assert_eq!(found["notes"], Value::Array(vec![]));
        }
    }
}

#[test]
fn auto_passes_the_compatibility_mode_over_and_says_so() {
    for cufile in libraries().unwrap_or_default() {
        let (status, found, output) = load_digits(&cufile, &Surroundings::GOOD, &["--backend", "auto"]);
        assert_eq!(status, 0, "{output}");
        let found = found.unwrap();
        assert_eq!((&found["backend"], &found["gds_route"]), (&"uring".into(), &Value::Null), "{output}");
        assert_eq!(found["passed_over"][0]["backend"], "gds");
        assert!(found["passed_over"][0]["reason"].to_string().contains("compatibility mode"), "{output}");
        assert!(found["backend_reason"].to_string().contains("gds was passed over"), "{output}");
        assert_eq!(found["digest"], host_digest(&[]));
        // Somebody who insists is refused.
        for backend in ["auto", "gds"] {
            let args = ["--backend", backend, "--require-gds"];
            let (status, found, output) = load_digits(&cufile, &Surroundings::GOOD, &args);
            assert_eq!((status, found), (1, None), "{output}");
            assert!(output.contains("compatibility mode"), "{output}");
        }
        let args = ["--backend", "uring", "--require-gds"];
        let (status, _, output) = load_digits(&cufile, &Surroundings::GOOD, &args);
        assert!(status != 0 && output.contains("exclude each other"), "{output}");
    }
}

#[test]
fn without_udev_the_bytes_come_by_pread_and_a_note_says_why() {
    let surroundings = Surroundings { udev: false, ..Surroundings::GOOD };
    for cufile in libraries().unwrap_or_default() {
        let (status, found, output) = load_digits(&cufile, &surroundings, &["--backend", "gds"]);
        assert_eq!(status, 0, "{output}");
        let found = found.unwrap();
        assert_eq!(found["digest"], host_digest(&[]));
        assert_eq!(found["bytes_by_way"]["cufile_compat"], 0);
        let pread = found["bytes_by_way"]["pread_direct"].as_u64().unwrap()
            + found["bytes_by_way"]["pread_buffered"].as_u64().unwrap();
        assert_eq!(pread, found["bytes"].as_u64().unwrap(), "{output}");
        let notes = found["notes"].to_string();
        assert!(notes.contains("a file is not read by cuFile: cuFile cannot register"), "{notes}");
        assert!(notes.contains("there is no /run/udev"), "{notes}");
    }
}

#[test]
fn without_proc_modules_gds_is_refused_and_auto_goes_on() {
    if Path::new("/proc/modules").exists() {
        return eprintln!("skipped: this kernel has /proc/modules");
    }
    let surroundings = Surroundings { modules: false, ..Surroundings::GOOD };
    for cufile in libraries().unwrap_or_default() {
        let (status, _, output) = load_digits(&cufile, &surroundings, &["--backend", "gds"]);
        assert!(status == 1 && output.contains("/proc/modules"), "{output}");
        let (status, found, output) = load_digits(&cufile, &surroundings, &[]);
        assert_eq!(status, 0, "{output}");
        let found = found.unwrap();
        assert!(found["passed_over"][0]["reason"].to_string().contains("/proc/modules"), "{output}");
        assert_eq!((&found["backend"], &found["digest"]), (&"uring".into(), &host_digest(&[])));
    }
}

#[test]
fn a_large_file_of_odd_records_comes_whole_in_order_and_shuffled() {
    const RECORD: usize = 150_528;
    const SAMPLES: usize = (256 << 20) / RECORD;
    with_cufile!(|_| {
        // The last record ends somewhere within a block.
        let (path, bytes) = file("data", RECORD * SAMPLES);
        assert_ne!(bytes.len() % 4096, 0);
        let mut seen = vec![false; SAMPLES];
        let mut found = Vec::new();
        for (shuffle, io_bytes) in
            [(Shuffle::None, 1 << 20), (Shuffle::Full, 1 << 20), (Shuffle::Full, 64 << 10)]
        {
            gpufeed::evict(&path).unwrap();
            let dataset =
                Dataset::builder().records("data", &*path, Dtype::U8, &[RECORD as u64]).build().unwrap();
            let mut loader = Loader::builder(dataset)
                .device(GPU)
                .backend(Backend::Gds)
                .batch_size(64)
                .shuffle(shuffle)
                .seed(5)
                .io_bytes(io_bytes)
                .last_batch(LastBatch::Short)
                .build()
                .unwrap();
            seen.fill(false);
            for batch in loader.epoch(0).unwrap() {
                let batch = batch.unwrap();
                batch.column("data").unwrap().copy_to_host(&mut found).unwrap();
                for (&sample, found) in batch.samples().iter().zip(found.chunks_exact(RECORD)) {
                    assert!(
                        found == &bytes[sample as usize * RECORD..][..RECORD],
                        "sample {sample}, {shuffle}"
                    );
                    assert!(!std::mem::replace(&mut seen[sample as usize], true));
                }
            }
            assert!(seen.iter().all(|&seen| seen));
            let report = loader.report();
            assert_eq!(report.gds_route, Some(Route::Compatibility));
            assert_eq!(report.bytes_by_way.bytes(Way::CufileCompat), bytes.len() as u64);
            assert_eq!(report.notes, Vec::<String>::new());
        }
    });
}

#[test]
fn loaders_with_little_memory_bring_the_right_bytes() {
    with_cufile!(|_| {
        let probed = Backend::Gds.probe().unwrap();
        assert_eq!((probed.backend, probed.direct), (Backend::Gds, false));
        for (record, samples) in [(1, 3000), (7, 2000), (511, 200), (4096, 70), (4097, 70), (40_000, 30)] {
            let data = cuda_common::Data::new(record, samples);
            for (shuffle, io_bytes) in
                [(Shuffle::None, 4096), (Shuffle::Full, 4096), (Shuffle::Full, 32 << 10)]
            {
                for _ in 0..2 {
                    data.dataset().files().iter().for_each(|file| gpufeed::evict(file.path()).unwrap());
                    let builder = data.loader().backend(Backend::Gds).shuffle(shuffle).seed(9);
                    let mut loader = builder.io_bytes(io_bytes).prefetch(2).queue_depth(4).build().unwrap();
                    data.assert_epoch(&mut loader, shuffle, 9, 0);
                    data.assert_epoch(&mut loader, shuffle, 9, 1);
                    // An epoch that is dropped with reads in flight.
                    drop(loader.epoch(2).unwrap().take(1).map(Result::unwrap).collect::<Vec<_>>());
                }
            }
        }
        assert_eq!(use_count(), 0);
    });
}

#[test]
fn the_self_test_passes_with_every_backend() {
    for (i, cufile) in libraries().unwrap_or_default().iter().rev().enumerate() {
        // The other backends do not depend on the library.
        let backends = if i == 0 { "gds,uring,pread,page-cache,auto" } else { "gds" };
        let args = ["selftest", "--device", "cuda:0", "--backend", backends, "--json"];
        let (status, found, output) = gpufeed(cufile, &Surroundings::GOOD, &args);
        assert_eq!(status, 0, "{output}");
        let found = found.unwrap();
        assert_eq!(found["passed"], found["cases"]);
        assert_eq!(found["skipped"], Value::Array(vec![]), "{output}");
    }
}
