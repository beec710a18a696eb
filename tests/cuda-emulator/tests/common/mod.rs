//! Shared by the tests: finding the built library, running a body in a child process, and the driver's functions.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(missing_docs, missing_debug_implementations, unreachable_pub, reason = "not a library")]
#![allow(non_snake_case, reason = "the functions have the names of cuda.h")]

use std::ffi::{CString, OsString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

pub const SUCCESS: i32 = 0;
pub const INVALID_VALUE: i32 = 1;
pub const OUT_OF_MEMORY: i32 = 2;
pub const NOT_INITIALIZED: i32 = 3;
pub const NO_DEVICE: i32 = 100;
pub const INVALID_DEVICE: i32 = 101;
pub const INVALID_CONTEXT: i32 = 201;
pub const ECC_UNCORRECTABLE: i32 = 214;
pub const PEER_ACCESS_UNSUPPORTED: i32 = 217;
pub const INVALID_HANDLE: i32 = 400;
pub const NOT_FOUND: i32 = 500;
pub const NOT_READY: i32 = 600;
pub const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
pub const PEER_ACCESS_NOT_ENABLED: i32 = 705;
pub const CONTEXT_IS_DESTROYED: i32 = 709;
pub const HOST_MEMORY_ALREADY_REGISTERED: i32 = 712;
pub const HOST_MEMORY_NOT_REGISTERED: i32 = 713;
pub const LAUNCH_FAILED: i32 = 719;
pub const NOT_PERMITTED: i32 = 800;
pub const NOT_SUPPORTED: i32 = 801;
pub const UNKNOWN: i32 = 999;

/// Holds operations back for longer than any test runs, whatever the caller asks: only a wait lets them run.
pub const HELD: (&str, &str) = ("CUDA_EMULATOR_DELAY", "adversarial:3600000:4000000000");

const CHILD: &str = "CUDA_EMULATOR_TEST_CHILD";

/// What a child prints at the end of its body: without it, no test has run there.
const DONE: &str = "the child has come to the end of its body";

/// The library that cargo built for these tests: beside this executable, or one folder up.
pub fn library() -> PathBuf {
    let executable = std::env::current_exe().expect("a test has an executable");
    let beside = executable.ancestors().skip(1).take(2);
    let candidates: Vec<PathBuf> = beside.map(|folder| folder.join("libgpufeed_cuda_emulator.so")).collect();
    candidates
        .iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("none of {candidates:?} exists"))
        .clone()
}

/// A folder for one test, removed at its end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("cuda-emulator-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How a child ended, and what the emulator reported about it.
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
        self.succeeded();
        assert!(self.reports.is_empty(), "unexpected reports: {self:#?}");
    }

    /// The child ran to its end, and was reported for exactly these (kind, entry point), in this order.
    #[track_caller]
    pub fn reported(&self, wanted: &[(&str, &str)]) {
        self.succeeded();
        let starts: Vec<String> = wanted
            .iter()
            .map(|(kind, call)| format!("cuda-emulator: misuse: {kind} in {call} at 0x"))
            .collect();
        let fits = starts.len() == self.reports.len()
            && starts.iter().zip(&self.reports).all(|(start, report)| report.starts_with(start.as_str()));
        assert!(fits, "wanted {starts:#?}, got {self:#?}");
    }
}

/// Runs `body` in a child process with this environment. `test` is the name of the calling test, which the child runs
/// again; there, `body` is called and the child ends.
#[track_caller]
pub fn in_child(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) -> Outcome {
    in_child_of(&[], test, environment, body)
}

/// As [`in_child`], with a command (such as `unshare`) that starts the child.
#[track_caller]
pub fn in_child_of(
    starter: &[&str],
    test: &str,
    environment: &[(&str, &str)],
    body: impl FnOnce(),
) -> Outcome {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        // SAFETY: only sets a timer. A child that hangs ends by SIGALRM, and its test fails.
        unsafe { libc::alarm(120) };
        body();
        println!("{DONE}");
        std::process::exit(0);
    }
    let folder = Folder::new(test);
    let report = folder.path().join("report");
    std::os::unix::fs::symlink(library(), folder.path().join("libcuda.so.1")).expect("a link can be made");
    let executable = std::env::current_exe().expect("a test has an executable");
    let mut words: Vec<OsString> = starter.iter().map(OsString::from).collect();
    words.push(executable.into());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["--exact", test, "--nocapture", "--test-threads=1"]);
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"CUDA_EMULATOR_"))
    {
        command.env_remove(name);
    }
    command.env_remove("CUDA_VISIBLE_DEVICES");
    command.env(CHILD, test).env("LD_LIBRARY_PATH", folder.path()).env("CUDA_EMULATOR_REPORT", &report);
    command.envs(environment.iter().copied()).current_dir(folder.path());
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

/// What `cuda_emulator_stats` fills in.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub device_allocations: u64,
    pub device_bytes: u64,
    pub host_allocations: u64,
    pub host_allocated_bytes: u64,
    pub host_registrations: u64,
    pub host_registered_bytes: u64,
    pub streams: u64,
    pub events: u64,
    pub contexts: u64,
    pub copies_done: u64,
    pub bytes_host_to_device: u64,
    pub bytes_device_to_host: u64,
    pub bytes_device_to_device: u64,
    pub bytes_device_to_peer: u64,
    pub bytes_host_to_host: u64,
    pub misuses: u64,
}

/// Declares the driver's functions, as fields that hold what the loader found and as methods that call it.
macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {
        /// The emulator, opened the way that CUDA programs open the driver.
        #[derive(Clone, Copy)]
        pub struct Cuda {
            handle: usize,
            $($name: unsafe extern "C" fn($($kind),*) -> i32,)*
        }

        impl Cuda {
            pub fn open() -> Cuda {
                // SAFETY: a library without load-time code of its own.
                let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
                assert!(!handle.is_null(), "libcuda.so.1 cannot be opened");
                Cuda {
                    handle: handle as usize,
                    $(
                        // SAFETY: the function has the type that its field declares, as cuda.h does.
                        $name: unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> i32>(
                                symbol(handle, stringify!($name)))
                        },
                    )*
                }
            }

            $(
                #[allow(clippy::too_many_arguments)]
                pub fn $name(&self, $($argument: $kind),*) -> i32 {
                    // SAFETY: the tests pass valid pointers where cuda.h asks for them; that any other argument may
                    // be wrong is what they test.
                    unsafe { (self.$name)($($argument),*) }
                }
            )*
        }
    };
}

fn symbol(handle: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).expect("a name without NUL");
    // SAFETY: an open handle and a NUL-terminated name.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?} is not exported");
    found
}

pub type Callback = extern "C" fn(*mut c_void);
pub type StreamCallback = extern "C" fn(usize, i32, *mut c_void);

functions! {
    cuInit(flags: u32);
    cuDriverGetVersion(version: *mut i32);
    cuGetErrorName(error: i32, text: *mut *const c_char);
    cuGetErrorString(error: i32, text: *mut *const c_char);
    cuGetProcAddress_v2(name: *const c_char, out: *mut *mut c_void, version: i32, flags: u64, status: *mut i32);
    cuDeviceGetCount(count: *mut i32);
    cuDeviceGet(device: *mut i32, ordinal: i32);
    cuDeviceGetName(name: *mut c_char, len: i32, device: i32);
    cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: i32);
    cuDeviceGetPCIBusId(id: *mut c_char, len: i32, device: i32);
    cuDeviceGetByPCIBusId(device: *mut i32, id: *const c_char);
    cuDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32);
    cuDevicePrimaryCtxRetain(context: *mut usize, device: i32);
    cuDevicePrimaryCtxRelease_v2(device: i32);
    cuDevicePrimaryCtxReset_v2(device: i32);
    cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32);
    cuCtxCreate_v2(context: *mut usize, flags: u32, device: i32);
    cuCtxDestroy_v2(context: usize);
    cuCtxPushCurrent_v2(context: usize);
    cuCtxPopCurrent_v2(context: *mut usize);
    cuCtxSetCurrent(context: usize);
    cuCtxGetCurrent(context: *mut usize);
    cuCtxGetDevice(device: *mut i32);
    cuCtxSynchronize();
    cuCtxEnablePeerAccess(peer: usize, flags: u32);
    cuCtxDisablePeerAccess(peer: usize);
    cuStreamCreate(stream: *mut usize, flags: u32);
    cuStreamDestroy_v2(stream: usize);
    cuStreamSynchronize(stream: usize);
    cuStreamQuery(stream: usize);
    cuStreamWaitEvent(stream: usize, event: usize, flags: u32);
    cuStreamWriteValue32(stream: usize, address: u64, value: u32, flags: u32);
    cuStreamWaitValue32(stream: usize, address: u64, value: u32, flags: u32);
    cuStreamAddCallback(stream: usize, callback: StreamCallback, data: *mut c_void, flags: u32);
    cuLaunchHostFunc(stream: usize, function: Callback, data: *mut c_void);
    cuEventCreate(event: *mut usize, flags: u32);
    cuEventDestroy_v2(event: usize);
    cuEventRecord(event: usize, stream: usize);
    cuEventQuery(event: usize);
    cuEventSynchronize(event: usize);
    cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize);
    cuEventElapsedTime_v2(milliseconds: *mut f32, start: usize, end: usize);
    cuMemAlloc_v2(pointer: *mut u64, size: usize);
    cuMemFree_v2(pointer: u64);
    cuMemAllocAsync(pointer: *mut u64, size: usize, stream: usize);
    cuMemFreeAsync(pointer: u64, stream: usize);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, pointer: u64);
    cuMemHostAlloc(pointer: *mut usize, size: usize, flags: u32);
    cuMemFreeHost(pointer: usize);
    cuMemHostRegister_v2(pointer: usize, size: usize, flags: u32);
    cuMemHostUnregister(pointer: usize);
    cuMemHostGetDevicePointer_v2(out: *mut u64, pointer: usize, flags: u32);
    cuMemHostGetFlags(flags: *mut u32, pointer: usize);
    cuPointerGetAttribute(data: *mut c_void, attribute: u32, pointer: u64);
    cuPointerGetAttributes(count: u32, attributes: *const u32, data: *const *mut c_void, pointer: u64);
    cuMemcpyHtoD_v2(to: u64, from: usize, len: usize);
    cuMemcpyDtoH_v2(to: usize, from: u64, len: usize);
    cuMemcpyDtoD_v2(to: u64, from: u64, len: usize);
    cuMemcpy(to: u64, from: u64, len: usize);
    cuMemcpyHtoDAsync_v2(to: u64, from: usize, len: usize, stream: usize);
    cuMemcpyHtoDAsync_v2_ptsz(to: u64, from: usize, len: usize, stream: usize);
    cuMemcpyDtoHAsync_v2(to: usize, from: u64, len: usize, stream: usize);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize);
    cuMemcpyPeer(to: u64, to_context: usize, from: u64, from_context: usize, len: usize);
    cuMemcpyPeerAsync(to: u64, to_context: usize, from: u64, from_context: usize, len: usize, stream: usize);
    cuMemcpyBatchAsync(
        to: *const u64, from: *const u64, sizes: *const usize, count: usize, attributes: *const [u32; 6],
        starts: *const usize, attribute_count: usize, fail_index: *mut usize, stream: usize,
    );
    cuMemsetD8_v2(to: u64, value: u8, count: usize);
    cuMemsetD32_v2(to: u64, value: u32, count: usize);
    cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize);
    cuLaunchKernel();
    cuda_emulator_stats(stats: *mut Stats);
    cuda_emulator_peek(address: u64, buffer: *mut u8, len: usize);
    cuda_emulator_hold(address: u64);
    cuda_emulator_let_go(address: u64);
}

/// Asserts success, and says which call failed.
#[macro_export]
macro_rules! ok {
    ($call:expr) => {
        assert_eq!($call, 0, "{}", stringify!($call))
    };
}

impl Cuda {
    /// The address of any exported symbol.
    pub fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: an open handle and a NUL-terminated name.
        let found = unsafe { libc::dlsym(self.handle as *mut c_void, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    /// How often an entry point was called.
    pub fn calls(&self, name: &str) -> u64 {
        let function = self.symbol("cuda_emulator_calls").expect("exported");
        // SAFETY: the function's type, as documented.
        let function: extern "C" fn(*const c_char) -> u64 = unsafe { std::mem::transmute(function) };
        function(CString::new(name).expect("a name without NUL").as_ptr())
    }

    /// Opened, initialised, and with device 0's primary context current.
    pub fn ready() -> Cuda {
        let cuda = Cuda::open();
        ok!(cuda.cuInit(0));
        cuda.bind(0);
        cuda
    }

    /// Makes a device's primary context current.
    pub fn bind(&self, device: i32) -> usize {
        let mut context = 0;
        ok!(self.cuDevicePrimaryCtxRetain(&mut context, device));
        ok!(self.cuCtxSetCurrent(context));
        context
    }

    /// Reads device memory back and waits, on a stream of its own that waits for nothing else.
    pub fn read(&self, pointer: u64, len: usize) -> Vec<u8> {
        let stream = self.stream();
        let mut bytes = vec![0; len];
        ok!(self.cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr() as usize, pointer, len, stream));
        ok!(self.cuStreamDestroy_v2(stream));
        bytes
    }

    pub fn allocate(&self, len: usize) -> u64 {
        let mut pointer = 0;
        ok!(self.cuMemAlloc_v2(&mut pointer, len));
        pointer
    }

    /// Pinned host memory, full of `byte`.
    pub fn pinned(&self, len: usize, byte: u8) -> &'static mut [u8] {
        let mut pointer = 0;
        ok!(self.cuMemHostAlloc(&mut pointer, len, 0));
        // SAFETY: `len` fresh bytes that live until the test frees them, which it does by their address.
        let memory = unsafe { std::slice::from_raw_parts_mut(pointer as *mut u8, len) };
        memory.fill(byte);
        memory
    }

    pub fn stream(&self) -> usize {
        let mut stream = 0;
        ok!(self.cuStreamCreate(&mut stream, 1));
        stream
    }

    pub fn blocking_stream(&self) -> usize {
        let mut stream = 0;
        ok!(self.cuStreamCreate(&mut stream, 0));
        stream
    }

    pub fn event(&self) -> usize {
        let mut event = 0;
        ok!(self.cuEventCreate(&mut event, 0));
        event
    }

    /// The first byte of device memory as it is now, whatever is pending.
    pub fn peek(&self, pointer: u64) -> u8 {
        let mut byte = 0;
        ok!(self.cuda_emulator_peek(pointer, &mut byte, 1));
        byte
    }

    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        ok!(self.cuda_emulator_stats(&mut stats));
        stats
    }
}
