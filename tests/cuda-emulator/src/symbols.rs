//! `cuGetProcAddress`: from plain names to the versions behind them.

use std::ffi::{CStr, CString, c_void};

use crate::call;
use crate::caller;
use crate::error::{Answer, Code};
use crate::ffi::{Out, Text};

/// Names whose form depends on the CUDA version that the caller was built for: (name, least version, form), newest
/// first. Every other name takes its `_v2`, if there is one: those are as old as CUDA 4.
const VERSIONED: &[(&str, i32, &str)] = &[
    ("cuCtxCreate", 13_000, "cuCtxCreate_v4"),
    ("cuCtxCreate", 0, "cuCtxCreate_v2"),
    ("cuCtxGetDevice", 13_010, "cuCtxGetDevice_v2"),
    ("cuCtxGetDevice", 0, "cuCtxGetDevice"),
    ("cuCtxSynchronize", 13_010, "cuCtxSynchronize_v2"),
    ("cuCtxSynchronize", 0, "cuCtxSynchronize"),
    ("cuDeviceGetUuid", 11_040, "cuDeviceGetUuid_v2"),
    ("cuDeviceGetUuid", 0, "cuDeviceGetUuid"),
    ("cuDevicePrimaryCtxRelease", 11_000, "cuDevicePrimaryCtxRelease_v2"),
    ("cuDevicePrimaryCtxRelease", 0, "cuDevicePrimaryCtxRelease"),
    ("cuDevicePrimaryCtxReset", 11_000, "cuDevicePrimaryCtxReset_v2"),
    ("cuDevicePrimaryCtxReset", 0, "cuDevicePrimaryCtxReset"),
    ("cuDevicePrimaryCtxSetFlags", 11_000, "cuDevicePrimaryCtxSetFlags_v2"),
    ("cuDevicePrimaryCtxSetFlags", 0, "cuDevicePrimaryCtxSetFlags"),
    ("cuEventElapsedTime", 12_080, "cuEventElapsedTime_v2"),
    ("cuEventElapsedTime", 0, "cuEventElapsedTime"),
    ("cuGetProcAddress", 12_000, "cuGetProcAddress_v2"),
    ("cuGetProcAddress", 11_030, "cuGetProcAddress"),
    ("cuLaunchHostFunc", 0, "cuLaunchHostFunc"),
    ("cuMemcpyBatchAsync", 13_000, "cuMemcpyBatchAsync_v2"),
    ("cuMemcpyBatchAsync", 12_080, "cuMemcpyBatchAsync"),
    ("cuStreamGetCaptureInfo", 12_030, "cuStreamGetCaptureInfo_v3"),
    ("cuStreamGetCaptureInfo", 11_030, "cuStreamGetCaptureInfo_v2"),
    ("cuStreamGetCaptureInfo", 10_010, "cuStreamGetCaptureInfo"),
    ("cuStreamGetCtx", 0, "cuStreamGetCtx"),
];

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`; 1 asks for the legacy default stream, as does 0 here.
const PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// `CUdriverProcAddressQueryResult`.
const FOUND: i32 = 0;
const NO_SYMBOL: i32 = 1;
const NEWER_VERSION_NEEDED: i32 = 2;

/// This library's own handle. It may have been opened with local scope, so that a global look-up would not find it.
fn own_handle() -> *mut c_void {
    let path = caller::own_path().and_then(|path| CString::new(path.as_os_str().as_encoded_bytes()).ok());
    let Some(path) = path else { return libc::RTLD_DEFAULT };
    // SAFETY: the path that the loader itself has for this library; NOLOAD opens nothing new.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() { libc::RTLD_DEFAULT } else { handle }
}

fn own_symbol(name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: a NUL-terminated name and an open handle.
    let found = unsafe { libc::dlsym(own_handle(), CStr::as_ptr(&name)) };
    (!found.is_null()).then_some(found)
}

/// The function behind a plain name for a caller of CUDA `version`, or why there is none.
fn resolve(name: &str, version: i32, flags: u64) -> Result<*mut c_void, i32> {
    if !name.starts_with("cu") || name.starts_with("cuda_emulator") {
        return Err(NO_SYMBOL);
    }
    let mut forms = VERSIONED.iter().filter(|(plain, _, _)| *plain == name).peekable();
    let form = if forms.peek().is_some() {
        forms
            .find(|(_, least, _)| version >= *least)
            .map(|(_, _, form)| *form)
            .ok_or(NEWER_VERSION_NEEDED)?
            .to_owned()
    } else if own_symbol(&format!("{name}_v2")).is_some() {
        format!("{name}_v2")
    } else {
        name.to_owned()
    };
    if flags & PER_THREAD_DEFAULT_STREAM != 0 {
        for suffix in ["_ptsz", "_ptds"] {
            if let Some(found) = own_symbol(&format!("{form}{suffix}")) {
                return Ok(found);
            }
        }
    }
    own_symbol(&form).ok_or(NO_SYMBOL)
}

fn get(name: Text, function: Out<*mut c_void>, version: i32, flags: u64, status: Out<i32>) -> Answer {
    let name = name.read()?;
    if function.is_null() || flags > PER_THREAD_DEFAULT_STREAM {
        return Err(Code::INVALID_VALUE);
    }
    match resolve(&name, version, flags) {
        Ok(found) => {
            status.set_if_asked(FOUND);
            function.set(found)
        }
        Err(why) => {
            status.set_if_asked(why);
            function.set(std::ptr::null_mut())?;
            Err(Code::NOT_FOUND)
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress(name: Text, function: Out<*mut c_void>, version: i32, flags: u64) -> Code {
    call::anywhere("cuGetProcAddress", || {
        // SAFETY: null is a valid "do not tell me".
        let status = unsafe { Out::from_raw(std::ptr::null_mut()) };
        get(name, function, version, flags, status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress_v2(
    name: Text,
    function: Out<*mut c_void>,
    version: i32,
    flags: u64,
    status: Out<i32>,
) -> Code {
    call::anywhere("cuGetProcAddress_v2", || get(name, function, version, flags, status))
}
