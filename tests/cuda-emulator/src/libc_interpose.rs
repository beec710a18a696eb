//! `fopen` and `fopen64`, for when this library is preloaded.
//!
//! libcufile reads `/proc/modules` while it opens its driver, and spins for ever where that file does not exist, as in
//! micro-VMs whose kernel has no modules. Preloaded, these two answer that one name with an empty file, and only where
//! it is missing; everything else goes to the C library.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

type Fopen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;

/// The next definition of `name` after this library's own.
fn next(name: &'static CStr, slot: &OnceLock<Option<Fopen>>) -> Option<Fopen> {
    *slot.get_or_init(|| {
        // SAFETY: a NUL-terminated name, looked up behind this library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        // SAFETY: the C library's `fopen` and `fopen64` have this type; null becomes None.
        unsafe { std::mem::transmute::<*mut libc::c_void, Option<Fopen>>(found) }
    })
}

/// # Safety
///
/// As `fopen`: two NUL-terminated strings.
unsafe fn open(real: Option<Fopen>, path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    let Some(real) = real else {
        // SAFETY: the calling thread's errno is always writable.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        return std::ptr::null_mut();
    };
    // SAFETY: the caller's arguments, passed on.
    let file = unsafe { real(path, mode) };
    // SAFETY: `path` is NUL-terminated if it is not null.
    if !file.is_null() || path.is_null() || unsafe { CStr::from_ptr(path) } != c"/proc/modules" {
        return file;
    }
    // SAFETY: the calling thread's errno is always readable.
    if unsafe { *libc::__errno_location() } != libc::ENOENT {
        return file;
    }
    // SAFETY: as the first call; /dev/null is always empty.
    unsafe { real(c"/dev/null".as_ptr(), mode) }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    static REAL: OnceLock<Option<Fopen>> = OnceLock::new();
    // SAFETY: the caller's contract.
    unsafe { open(next(c"fopen", &REAL), path, mode) }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    static REAL: OnceLock<Option<Fopen>> = OnceLock::new();
    // SAFETY: the caller's contract.
    unsafe { open(next(c"fopen64", &REAL), path, mode) }
}
