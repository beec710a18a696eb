//! Is there a CUDA driver, and has it a device? Asked by our own `dlopen`, which fails instead of panicking.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The oldest driver that is used: CUDA 11.4, the first with GPUDirect Storage.
const OLDEST: i32 = 11040;

/// What a working driver said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Driver {
    /// Devices that it sees.
    pub(crate) devices: u32,
    /// The newest CUDA version that it supports: 12040 for 12.4.
    pub(crate) version: i32,
}

/// Asks once per process; a driver that could not be used stays so.
///
/// # Errors
/// Why there is nothing to use, in words.
pub(crate) fn probe() -> Result<Driver, String> {
    static FOUND: OnceLock<(u32, Result<Driver, String>)> = OnceLock::new();
    let (process, found) = FOUND.get_or_init(|| (std::process::id(), ask()));
    if found.is_ok() && *process != std::process::id() {
        return Err(
            "the CUDA driver was started before this process was forked, and does not survive a fork".into(),
        );
    }
    found.clone()
}

fn ask() -> Result<Driver, String> {
    // SAFETY: the name is a C string; loading the driver's library runs its initialisers, as linking to it would.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if library.is_null() {
        return Err(format!("there is no CUDA driver: {}", loader_error()));
    }
    // The library is never closed: it starts threads and hands out pointers to its own code.
    let init: unsafe extern "C" fn(c_uint) -> c_int = symbol(library, c"cuInit")?;
    let count: unsafe extern "C" fn(*mut c_int) -> c_int = symbol(library, c"cuDeviceGetCount")?;
    let version: unsafe extern "C" fn(*mut c_int) -> c_int = symbol(library, c"cuDriverGetVersion")?;
    let (mut devices, mut found) = (0, 0);
    // SAFETY: the three functions have these signatures in every version of the driver API, and both results live
    // through the calls. Codes are taken as plain integers.
    let codes = unsafe { [version(&mut found), init(0), count(&mut devices)] };
    if codes[0] == 0 && found < OLDEST {
        return Err(format!(
            "the CUDA driver is too old: it supports CUDA {}, {} is needed",
            dotted(found),
            dotted(OLDEST)
        ));
    }
    match codes {
        [_, 100, _] => Err("the CUDA driver sees no device (CUDA_ERROR_NO_DEVICE, 100)".into()),
        [_, code, _] if code != 0 => {
            Err(format!("the CUDA driver cannot be initialised: cuInit gave {code}"))
        }
        [code, _, _] if code != 0 => Err(format!("the CUDA driver does not tell its version: {code}")),
        [_, _, code] if code != 0 => Err(format!("the CUDA driver does not count its devices: {code}")),
        _ if devices <= 0 => Err("the CUDA driver sees no device".into()),
        _ => Ok(Driver { devices: devices as u32, version: found }),
    }
}

/// Looks a function up. `F` must be its type.
fn symbol<F: Copy>(library: *mut c_void, name: &CStr) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: `library` is a handle that dlopen gave, and `name` a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        return Err(format!("libcuda.so.1 is not a CUDA driver: it has no {}", name.to_string_lossy()));
    }
    // SAFETY: F is a function pointer by the caller's choice of type, as large as the pointer found, which is not
    // null.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
}

fn loader_error() -> String {
    // SAFETY: dlerror returns null or a C string that stays valid until the next dl call of this thread.
    unsafe {
        let text: *mut c_char = libc::dlerror();
        if text.is_null() {
            "libcuda.so.1 cannot be loaded".into()
        } else {
            CStr::from_ptr(text).to_string_lossy().into()
        }
    }
}

fn dotted(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}
