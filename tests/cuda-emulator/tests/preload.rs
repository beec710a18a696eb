//! The library preloaded: it answers for `/proc/modules`, and for `libcuda.so.1` itself.

mod common;

use std::ffi::CStr;
use std::path::Path;

use common::library;

fn open(path: &CStr) -> Option<Vec<u8>> {
    // SAFETY: two NUL-terminated strings; the file is closed below.
    let file = unsafe { libc::fopen(path.as_ptr(), c"r".as_ptr()) };
    if file.is_null() {
        return None;
    }
    let mut bytes = vec![0; 1 << 16];
    // SAFETY: an open file, and a buffer of that size.
    let len = unsafe { libc::fread(bytes.as_mut_ptr().cast(), 1, bytes.len(), file) };
    // SAFETY: opened above.
    unsafe { libc::fclose(file) };
    bytes.truncate(len);
    Some(bytes)
}

#[test]
fn proc_modules_can_be_opened_even_where_it_is_missing() {
    let library = library();
    child!(&[("LD_PRELOAD", library.to_str().unwrap())], || {
        let modules = open(c"/proc/modules").expect("never missing");
        assert_eq!(modules.is_empty(), std::fs::read("/proc/modules").unwrap_or_default().is_empty());
        std::fs::write("here", "some bytes").unwrap();
        assert_eq!(open(c"here").as_deref(), Some(&b"some bytes"[..]));
        assert_eq!(open(c"missing"), None);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOENT));
    })
    .clean();
}

#[test]
fn without_preloading_nothing_changes() {
    child!(&[], || {
        assert_eq!(open(c"/proc/modules").is_some(), Path::new("/proc/modules").exists());
    })
    .clean();
}

#[test]
fn preloaded_it_is_the_libcuda_that_programs_open() {
    let library = library();
    // An empty search path: the loader must be content with what is loaded already.
    child!(&[("LD_PRELOAD", library.to_str().unwrap()), ("LD_LIBRARY_PATH", "")], || {
        common::Cuda::ready().allocate(64);
    })
    .clean();
}
