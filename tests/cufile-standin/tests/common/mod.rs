//! Shared by the tests: finding the built libraries, running a body in a child process, and the functions of both.

#![allow(dead_code, unused_imports, reason = "each test file uses its own part")]
#![allow(missing_docs, missing_debug_implementations, unreachable_pub, reason = "not a library")]
#![allow(non_snake_case, reason = "the functions have the names of the headers")]

mod scene;

use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use scene::{BUFFER, FILE, Scene, direct};

/// Holds stream operations back for longer than any test runs: only a wait lets them run.
pub const HELD: (&str, &str) = ("CUDA_EMULATOR_DELAY", "adversarial:3600000:4000000000");

pub const COMPLETE: i32 = 0x10;
pub const CANCELED: i32 = 8;
pub const FAILED: i32 = 0x40;

const CHILD: &str = "CUFILE_STANDIN_TEST";

/// What a child prints at the end of its body: without it, no test has run there.
const DONE: &str = "the child has come to the end of its body";

/// A library beside this executable, or one folder up.
pub fn library(name: &str) -> PathBuf {
    let executable = std::env::current_exe().expect("a test has an executable");
    let candidates: Vec<PathBuf> =
        executable.ancestors().skip(1).take(2).map(|folder| folder.join(name)).collect();
    let found = candidates.iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("none of {candidates:?} exists")).clone()
}

/// A folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("cufile-standin-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How a child ended, and what both libraries reported about it.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub reports: Vec<String>,
    pub output: String,
}

impl Outcome {
    #[track_caller]
    pub fn succeeded(&self) -> &Outcome {
        assert!(self.code == Some(0) && self.output.contains(DONE), "the child failed: {self:#?}");
        self
    }

    /// The child ran to its end and did nothing wrong.
    #[track_caller]
    pub fn clean(&self) {
        self.reported(&[]);
    }

    /// The child ran to its end, and was reported for exactly these, in this order: `<kind> in <function>`.
    #[track_caller]
    pub fn reported(&self, wanted: &[&str]) {
        self.succeeded();
        let fits = wanted.len() == self.reports.len()
            && wanted.iter().zip(&self.reports).all(|(wanted, report)| {
                report
                    .split_once(": misuse: ")
                    .is_some_and(|(_, rest)| rest.starts_with(&format!("{wanted} at 0x")))
            });
        assert!(fits, "wanted {wanted:#?}, got {self:#?}");
    }

    /// The child was ended by the stand-in, which says why.
    #[track_caller]
    pub fn aborted(&self, why: &str) {
        assert!(self.signal == Some(libc::SIGABRT) && self.output.contains(why), "wanted {why}: {self:#?}");
    }
}

/// Runs `body` in a child process with this environment. `test` is the name of the calling test, which the child runs
/// again; there, `body` is called and the child ends.
#[track_caller]
pub fn in_child(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) -> Outcome {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        // Not seen by the stand-in, which knows no such setting.
        // SAFETY: the child's only other thread is the harness's, which waits for this one.
        unsafe { std::env::remove_var(CHILD) };
        // SAFETY: only sets a timer. A child that hangs ends by SIGALRM, and its test fails.
        unsafe { libc::alarm(120) };
        body();
        println!("{DONE}");
        std::process::exit(0);
    }
    let folder = Folder::new(test);
    let report = folder.0.join("report");
    for (file, name) in
        [("libgpufeed_cuda_emulator.so", "libcuda.so.1"), ("libgpufeed_cufile_standin.so", "libcufile.so.0")]
    {
        std::os::unix::fs::symlink(library(file), folder.0.join(name)).expect("a link can be made");
    }
    let mut command = Command::new(std::env::current_exe().expect("a test has an executable"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    for (name, _) in std::env::vars_os() {
        let ours = ["CUDA_EMULATOR_", "CUFILE_STANDIN_", "CUDA_VISIBLE_DEVICES"];
        if ours.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes())) {
            command.env_remove(name);
        }
    }
    command.env(CHILD, test).env("LD_LIBRARY_PATH", &folder.0);
    command.env("CUDA_EMULATOR_REPORT", &report).env("CUFILE_STANDIN_REPORT", &report);
    command.envs(environment.iter().copied()).current_dir(&folder.0);
    let output = command.output().expect("the child can be started");
    Outcome {
        code: output.status.code(),
        signal: std::os::unix::process::ExitStatusExt::signal(&output.status),
        reports: std::fs::read_to_string(&report).unwrap_or_default().lines().map(str::to_owned).collect(),
        output: String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
    }
}

/// [`in_child`] for the test function that it stands in.
#[macro_export]
macro_rules! child {
    ($environment:expr, $body:expr) => {{
        fn here() {}
        let path = std::any::type_name_of_val(&here);
        let test = path.split("::").nth(1).expect("crate::test::here");
        $crate::common::in_child(test, $environment, $body)
    }};
}

/// Bytes that differ at any two nearby offsets.
pub fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ at as u8).collect()
}

/// `CUfileError_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    pub cufile: i32,
    pub cuda: i32,
}

impl Error {
    pub fn code(cufile: i32) -> Error {
        Error { cufile, cuda: 0 }
    }

    #[track_caller]
    pub fn ok(self) {
        assert_eq!(self, Error::code(0));
    }

    #[track_caller]
    pub fn is(self, cufile: i32) {
        assert_eq!(self.cufile, cufile, "{self:?}");
    }
}

#[repr(C)]
pub struct Descriptor {
    pub kind: i32,
    pub fd: u64,
    pub operations: *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    pub mode: i32,
    pub base: u64,
    pub file_offset: i64,
    pub buffer_offset: i64,
    pub size: usize,
    pub handle: usize,
    pub opcode: i32,
    pub cookie: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    pub cookie: usize,
    pub status: i32,
    pub ret: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Properties {
    pub major_version: u32,
    pub minor_version: u32,
    pub poll_threshold_kib: usize,
    pub max_direct_io_kib: usize,
    pub status_flags: u32,
    pub control_flags: u32,
    pub feature_flags: u32,
    pub max_device_cache_kib: u32,
    pub per_buffer_cache_kib: u32,
    pub max_pinned_kib: u32,
    pub max_batch_io: u32,
    pub max_batch_timeout_ms: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub driver_opens: u64,
    pub handles: u64,
    pub buffers: u64,
    pub registered_bytes: u64,
    pub batches: u64,
    pub batch_entries_in_flight: u64,
    pub streams: u64,
    pub stream_operations_in_flight: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub failed: u64,
    pub direct_bytes: u64,
    pub posix_bytes: u64,
    pub faults_struck: u64,
    pub misuses: u64,
}

/// Declares a library's functions as methods that look them up and call them.
macro_rules! library {
    ($library:ident: $($name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        impl $library {
            $(
                #[allow(clippy::too_many_arguments)]
                #[track_caller]
                pub fn $name(&self, $($argument: $kind),*) $(-> $result)? {
                    let found = self.symbol(stringify!($name));
                    assert!(!found.is_null(), "{} is not exported", stringify!($name));
                    // SAFETY: the function has this type. The tests pass valid pointers where the headers ask for
                    // them; that any other argument may be wrong is what they test.
                    unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) $(-> $result)?>(found)(
                            $($argument),*)
                    }
                }
            )*
        }
    };
}

fn open(path: &Path) -> usize {
    let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path without NUL");
    // SAFETY: a library of this workspace.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    // SAFETY: after a failed dlopen, dlerror is a string.
    assert!(!handle.is_null(), "{:?}", unsafe { CStr::from_ptr(libc::dlerror()) });
    handle as usize
}

fn symbol(library: usize, name: &str) -> *mut c_void {
    let name = CString::new(name).expect("a name without NUL");
    // SAFETY: an open handle and a NUL-terminated name.
    unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) }
}

/// The emulated CUDA driver.
#[derive(Clone, Copy)]
pub struct Cuda(usize);

library! { Cuda:
    cuInit(flags: u32) -> i32;
    cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) -> i32;
    cuCtxSetCurrent(context: usize) -> i32;
    cuStreamCreate(stream: *mut usize, flags: u32) -> i32;
    cuStreamDestroy_v2(stream: usize) -> i32;
    cuStreamSynchronize(stream: usize) -> i32;
    cuMemAlloc_v2(pointer: *mut u64, size: usize) -> i32;
    cuMemAllocAsync(pointer: *mut u64, size: usize, stream: usize) -> i32;
    cuMemFree_v2(pointer: u64) -> i32;
    cuMemcpyHtoD_v2(to: u64, from: usize, len: usize) -> i32;
    cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) -> i32;
    cuda_emulator_peek(address: u64, buffer: *mut u8, len: usize) -> i32;
}

impl Cuda {
    pub fn symbol(&self, name: &str) -> *mut c_void {
        symbol(self.0, name)
    }

    /// Opened, initialised, and with device 0's primary context current.
    pub fn ready() -> Cuda {
        let cuda = Cuda(open(Path::new("libcuda.so.1")));
        assert_eq!(cuda.cuInit(0), 0);
        cuda.bind(0);
        cuda
    }

    pub fn bind(&self, device: i32) {
        let mut context = 0;
        assert_eq!(self.cuDevicePrimaryCtxRetain(&mut context, device), 0);
        assert_eq!(self.cuCtxSetCurrent(context), 0);
    }

    pub fn allocate(&self, len: usize) -> u64 {
        let mut pointer = 0;
        assert_eq!(self.cuMemAlloc_v2(&mut pointer, len), 0);
        pointer
    }

    pub fn stream(&self) -> usize {
        let mut stream = 0;
        assert_eq!(self.cuStreamCreate(&mut stream, 1), 0);
        stream
    }

    /// Device memory as it is now, whatever is pending.
    pub fn bytes(&self, pointer: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(self.cuda_emulator_peek(pointer, bytes.as_mut_ptr(), len), 0);
        bytes
    }
}

/// The stand-in.
#[derive(Clone, Copy)]
pub struct CuFile(usize);

library! { CuFile:
    cuFileDriverOpen() -> Error;
    cuFileDriverClose() -> Error;
    cuFileDriverClose_v2() -> Error;
    cuFileUseCount() -> i64;
    cuFileDriverGetProperties(properties: *mut Properties) -> Error;
    cuFileDriverSetPollMode(poll: bool, kib: usize) -> Error;
    cuFileDriverSetMaxDirectIOSize(kib: usize) -> Error;
    cuFileDriverSetMaxCacheSize(kib: usize) -> Error;
    cuFileDriverSetMaxPinnedMemSize(kib: usize) -> Error;
    cuFileHandleRegister(handle: *mut usize, descriptor: *const Descriptor) -> Error;
    cuFileHandleDeregister(handle: usize);
    cuFileBufRegister(base: u64, len: usize, flags: i32) -> Error;
    cuFileBufDeregister(base: u64) -> Error;
    cuFileRead(handle: usize, base: u64, size: usize, file_offset: i64, buffer_offset: i64) -> isize;
    cuFileWrite(handle: usize, base: u64, size: usize, file_offset: i64, buffer_offset: i64) -> isize;
    cuFileReadv(handle: usize, vectors: *const (u64, usize), count: usize, file_offset: i64, flags: u32) -> isize;
    cuFileWritev(handle: usize, vectors: *const (u64, usize), count: usize, file_offset: i64, flags: u32) -> isize;
    cuFileBatchIOSetUp(batch: *mut usize, count: u32) -> Error;
    cuFileBatchIOSubmit(batch: usize, count: u32, parameters: *const Parameters, flags: u32) -> Error;
    cuFileBatchIOGetStatus(
        batch: usize, least: u32, count: *mut u32, events: *mut Event, timeout: *const libc::timespec,
    ) -> Error;
    cuFileBatchIOCancel(batch: usize) -> Error;
    cuFileBatchIODestroy(batch: usize);
    cuFileStreamRegister(stream: usize, flags: u32) -> Error;
    cuFileStreamDeregister(stream: usize) -> Error;
    cuFileReadAsync(
        handle: usize, base: u64, size: *const usize, file_offset: *const i64, buffer_offset: *const i64,
        result: *mut isize, stream: usize,
    ) -> Error;
    cuFileWriteAsync(
        handle: usize, base: u64, size: *const usize, file_offset: *const i64, buffer_offset: *const i64,
        result: *mut isize, stream: usize,
    ) -> Error;
    cuFileGetVersion(version: *mut i32) -> Error;
    cuFileGetBARSizeInKB(device: i32, kib: *mut usize) -> Error;
    cuFileDriverGetP2PFlags(storage: u32, flags: *mut u32) -> Error;
    cuFileDriverSetP2PFlags(storage: u32, flags: u32) -> Error;
    cuFileExportPCIeTopology(path: *const c_char) -> Error;
    cuFileGetParameterSizeT(which: u32, value: *mut usize) -> Error;
    cuFileSetParameterSizeT(which: u32, value: usize) -> Error;
    cuFileGetParameterMinMaxValue(which: u32, least: *mut usize, most: *mut usize) -> Error;
    cuFileGetParameterBool(which: u32, value: *mut bool) -> Error;
    cuFileSetParameterBool(which: u32, value: bool) -> Error;
    cuFileGetParameterString(which: u32, buffer: *mut u8, len: i32) -> Error;
    cuFileSetParameterString(which: u32, value: *const c_char) -> Error;
    cuFileSetParameterPosixPoolSlabArray(sizes: *const usize, counts: *const usize, len: i32) -> Error;
    cuFileGetParameterPosixPoolSlabArray(sizes: *mut usize, counts: *mut usize, len: i32) -> Error;
    cuFileSetStatsLevel(level: i32) -> Error;
    cuFileGetStatsLevel(level: *mut i32) -> Error;
    cuFileStatsStart() -> Error;
    cuFileStatsStop() -> Error;
    cuFileStatsReset() -> Error;
    cuFileGetStatsL1(stats: *mut u64) -> Error;
    cuFileGetStatsL2(stats: *mut u64) -> Error;
    cuFileGetStatsL3(stats: *mut u64) -> Error;
    cufile_standin_stats(stats: *mut Stats) -> i32;
    cufile_standin_calls(name: *const c_char) -> u64;
    cufile_standin_all_calls(buffer: *mut u8, len: usize) -> usize;
}

/// The calling thread's errno.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().expect("an errno")
}

impl CuFile {
    pub fn load() -> CuFile {
        CuFile(open(Path::new("libcufile.so.0")))
    }

    pub fn symbol(&self, name: &str) -> *mut c_void {
        symbol(self.0, name)
    }

    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        assert_eq!(self.cufile_standin_stats(&mut stats), 0);
        stats
    }

    /// Registers a descriptor, and answers the error too.
    pub fn try_handle(&self, fd: i32) -> (Error, usize) {
        let mut handle = 0;
        let descriptor = Descriptor { kind: 1, fd: fd as u64, operations: std::ptr::null() };
        let error = self.cuFileHandleRegister(&mut handle, &descriptor);
        (error, handle)
    }

    pub fn handle(&self, file: &File) -> usize {
        let (error, handle) = self.try_handle(file.as_raw_fd());
        error.ok();
        handle
    }

    pub fn batch(&self, capacity: u32) -> usize {
        let mut batch = 0;
        self.cuFileBatchIOSetUp(&mut batch, capacity).ok();
        batch
    }

    /// Waits for `least` entries, without a timeout.
    #[track_caller]
    pub fn ended(&self, batch: usize, least: u32) -> Vec<Event> {
        let mut events = [Event::default(); 128];
        let mut count = 128;
        self.cuFileBatchIOGetStatus(batch, least, &mut count, events.as_mut_ptr(), std::ptr::null()).ok();
        let mut events = events[..count as usize].to_vec();
        events.sort_by_key(|event| event.cookie);
        events
    }
}
