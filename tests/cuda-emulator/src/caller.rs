//! Which library called the driver: for reports, and for misuse by others that a test asks to overlook.

use std::ffi::{CStr, c_void};
use std::path::Path;

/// What the loader knows about the library around an address: where it begins, and its file.
fn library(address: *const c_void) -> Option<(usize, &'static Path)> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: dladdr answers for any address, and fills in a struct of our own.
    let known = unsafe { libc::dladdr(address, &mut info) } != 0;
    if !known || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a name that the loader keeps for as long as the library is loaded; libraries on the call stack are.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((info.dli_fbase as usize, Path::new(std::str::from_utf8(name.to_bytes()).ok()?)))
}

/// The path of this library as the loader has it.
pub(crate) fn own_path() -> Option<&'static Path> {
    library(own_path as *const c_void).map(|(_, path)| path)
}

/// The file name of the library, or program, from which this library was entered; none on its own threads.
pub(crate) fn file_name() -> Option<String> {
    let (own, _) = library(file_name as *const c_void)?;
    let mut frames = [std::ptr::null_mut(); 64];
    // SAFETY: backtrace writes at most as many addresses as the array holds.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), frames.len() as i32) };
    let frames = frames.iter().take(usize::try_from(count).unwrap_or(0));
    let (_, path) = frames.filter_map(|frame| library(*frame)).find(|(base, _)| *base != own)?;
    path.file_name()?.to_str().map(str::to_owned)
}
