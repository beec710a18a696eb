//! The CUDA driver underneath: found at run time, as the program under test finds it.

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

/// `CUhostFn`.
pub(crate) type HostFn = extern "C" fn(*mut c_void);

/// A code of the driver that is not success.
pub(crate) type CudaError = i32;

const NOT_INITIALIZED: CudaError = 3;
const NOT_SUPPORTED: CudaError = 801;
const NON_BLOCKING: u32 = 1;
const MEMORYTYPE_HOST: u32 = 1;

/// Declares the driver's functions, each looked up once and each possibly missing.
macro_rules! driver {
    ($($field:ident $name:literal($($argument:ident: $kind:ty),*);)*) => {
        #[derive(Debug)]
        struct Functions {
            $($field: Option<unsafe extern "C" fn($($kind),*) -> i32>,)*
        }

        impl Functions {
            fn find() -> Functions {
                Functions {
                    $(
                        $field: {
                            let found = symbol(concat!($name, "\0"));
                            // SAFETY: the function has the type that cuda.h (or the emulator's README) declares for
                            // it; null becomes None.
                            unsafe {
                                std::mem::transmute::<
                                    *mut c_void,
                                    Option<unsafe extern "C" fn($($kind),*) -> i32>,
                                >(found)
                            }
                        },
                    )*
                }
            }
        }

        $(
            fn $field($($argument: $kind),*) -> Result<(), CudaError> {
                let function = functions().$field.ok_or(NOT_INITIALIZED)?;
                // SAFETY: every caller in this file passes pointers to live locals, or what the program under test
                // passed for this very purpose.
                match unsafe { function($($argument),*) } {
                    0 => Ok(()),
                    code => Err(code),
                }
            }
        )*
    };
}

driver! {
    ctx_get_current "cuCtxGetCurrent"(context: *mut usize);
    ctx_set_current "cuCtxSetCurrent"(context: usize);
    pointer_attribute "cuPointerGetAttribute"(data: *mut c_void, attribute: u32, pointer: u64);
    stream_create "cuStreamCreate"(stream: *mut usize, flags: u32);
    stream_destroy "cuStreamDestroy_v2"(stream: usize);
    stream_synchronize "cuStreamSynchronize"(stream: usize);
    stream_query "cuStreamQuery"(stream: usize);
    host_to_device "cuMemcpyHtoDAsync_v2"(to: u64, from: usize, len: usize, stream: usize);
    device_to_host "cuMemcpyDtoHAsync_v2"(to: usize, from: u64, len: usize, stream: usize);
    launch_host "cuLaunchHostFunc"(stream: usize, function: HostFn, data: *mut c_void);
    device_count "cuDeviceGetCount"(count: *mut i32);
    device_uuid "cuDeviceGetUuid_v2"(uuid: *mut [u8; 16], device: i32);
    emulator_hold "cuda_emulator_hold"(address: u64);
    emulator_let_go "cuda_emulator_let_go"(address: u64);
}

fn functions() -> &'static Functions {
    static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
    FUNCTIONS.get_or_init(Functions::find)
}

/// Looks a name (with its NUL) up in the driver.
fn symbol(name: &str) -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        // SAFETY: the driver, which the program under test has opened already. Never closed.
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) as usize }
    });
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        // SAFETY: an open handle, or the default scope, and a NUL-terminated name.
        Ok(name) if library != 0 => unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) },
        _ => std::ptr::null_mut(),
    }
}

/// What the driver knows about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) base: u64,
    pub(crate) len: u64,
    /// 0 for stream-ordered memory, which belongs to no context.
    pub(crate) context: usize,
    pub(crate) device: i32,
    pub(crate) on_host: bool,
}

fn attribute<T: Default>(attribute: u32, address: u64) -> Result<T, CudaError> {
    let mut value = T::default();
    pointer_attribute((&raw mut value).cast(), attribute, address)?;
    Ok(value)
}

/// The memory around an address; none if the driver does not know it.
pub(crate) fn memory(address: u64) -> Option<Memory> {
    Some(Memory {
        on_host: attribute::<u32>(2, address).ok()? == MEMORYTYPE_HOST,
        context: attribute::<usize>(1, address).ok()?,
        device: attribute::<i32>(9, address).ok()?,
        base: attribute::<u64>(11, address).ok()?,
        len: attribute::<u64>(12, address).ok()?,
    })
}

/// The calling thread's current context; 0 if it has none.
pub(crate) fn current_context() -> Result<usize, CudaError> {
    let mut context = 0;
    ctx_get_current(&mut context)?;
    Ok(context)
}

/// Runs `work` with this context current, and then puts back the one that was.
pub(crate) fn in_context<T>(
    context: usize,
    work: impl FnOnce() -> Result<T, CudaError>,
) -> Result<T, CudaError> {
    let before = current_context()?;
    if before == context || context == 0 {
        return work();
    }
    ctx_set_current(context)?;
    let result = work();
    ctx_set_current(before)?;
    result
}

/// Runs `work` with a stream of its own, which is ordered with no other: storage does not wait for streams.
pub(crate) fn with_stream<T, E: From<Copying>>(work: impl FnOnce(usize) -> Result<T, E>) -> Result<T, E> {
    let mut stream = 0;
    stream_create(&mut stream, NON_BLOCKING).map_err(Copying)?;
    let result = work(stream);
    stream_destroy(stream).map_err(Copying)?;
    result
}

/// An error of the driver while bytes are copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copying(pub(crate) CudaError);

/// Copies `bytes` to the device, and waits.
pub(crate) fn put(to: u64, bytes: &[u8], stream: usize) -> Result<(), Copying> {
    host_to_device(to, bytes.as_ptr() as usize, bytes.len(), stream).map_err(Copying)?;
    stream_synchronize(stream).map_err(Copying)
}

/// Copies from the device into `bytes`, and waits.
pub(crate) fn get(bytes: &mut [u8], from: u64, stream: usize) -> Result<(), Copying> {
    device_to_host(bytes.as_mut_ptr() as usize, from, bytes.len(), stream).map_err(Copying)?;
    stream_synchronize(stream).map_err(Copying)
}

/// Whether the driver knows the stream.
pub(crate) fn check_stream(stream: usize) -> Result<(), CudaError> {
    const NOT_READY: CudaError = 600;
    stream_query(stream).or_else(|code| if code == NOT_READY { Ok(()) } else { Err(code) })
}

/// Has the stream call `function` when it comes to it.
///
/// # Safety
///
/// `data` must be what `function` expects, and live until it has run.
pub(crate) unsafe fn launch(stream: usize, function: HostFn, data: *mut c_void) -> Result<(), CudaError> {
    launch_host(stream, function, data)
}

pub(crate) fn devices() -> Result<i32, CudaError> {
    let mut count = 0;
    device_count(&mut count)?;
    Ok(count)
}

/// A device's UUID; zeros if the driver has none.
pub(crate) fn uuid(device: i32) -> [u8; 16] {
    let mut uuid = [0; 16];
    let _ = device_uuid(&mut uuid, device);
    uuid
}

/// Tells the emulated driver that the allocation around `address` must not be freed now.
pub(crate) fn hold(address: u64) {
    let _ = emulator_hold(address);
}

/// Ends one [`hold`]; false if the memory is not there any more.
pub(crate) fn let_go(address: u64) -> bool {
    matches!(emulator_let_go(address), Ok(()) | Err(NOT_INITIALIZED))
}

/// The driver's word for what it cannot do.
pub(crate) const fn not_supported() -> CudaError {
    NOT_SUPPORTED
}
