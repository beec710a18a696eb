//! Every function that real callers look up is there, under the name and the version that they ask for.

mod common;

use std::ffi::{CStr, CString, c_void};

use common::{Cuda, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED};

fn looked_up() -> impl Iterator<Item = &'static str> {
    include_str!("looked_up_symbols.txt").lines().filter(|line| !line.starts_with('#'))
}

fn resolve(cuda: &Cuda, name: &str, version: i32, flags: u64) -> (i32, *mut c_void, i32) {
    let (mut found, mut status) = (std::ptr::null_mut(), -1);
    let name = CString::new(name).unwrap();
    let code = cuda.cuGetProcAddress_v2(name.as_ptr(), &mut found, version, flags, &mut status);
    (code, found, status)
}

#[test]
fn all_are_exported_and_found_by_the_driver_itself() {
    child!(&[], || {
        let cuda = Cuda::open();
        let missing: Vec<&str> = looked_up().filter(|name| cuda.symbol(name).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let unresolved: Vec<&str> = looked_up()
            .filter(|name| !name.starts_with("cuMemcpyBatchAsync"))
            .filter(|name| resolve(&cuda, name, 13_000, 0).0 != 0)
            .collect();
        assert!(unresolved.is_empty(), "{unresolved:?}");
        assert!(looked_up().count() > 600);
    })
    .clean();
}

#[test]
fn a_plain_name_stands_for_the_version_of_the_caller() {
    child!(&[], || {
        let cuda = Cuda::open();
        for (name, version, flags, wanted) in [
            ("cuMemAlloc", 12_000, 0, "cuMemAlloc_v2"),
            ("cuMemcpyHtoDAsync", 12_000, 0, "cuMemcpyHtoDAsync_v2"),
            ("cuMemcpyHtoDAsync", 12_000, 2, "cuMemcpyHtoDAsync_v2_ptsz"),
            ("cuMemcpyHtoD", 12_000, 2, "cuMemcpyHtoD_v2_ptds"),
            ("cuStreamSynchronize", 12_000, 1, "cuStreamSynchronize"),
            ("cuEventElapsedTime", 12_060, 0, "cuEventElapsedTime"),
            ("cuEventElapsedTime", 12_080, 0, "cuEventElapsedTime_v2"),
            ("cuMemcpyBatchAsync", 12_080, 0, "cuMemcpyBatchAsync"),
            ("cuMemcpyBatchAsync", 13_000, 0, "cuMemcpyBatchAsync_v2"),
            ("cuCtxCreate", 12_080, 0, "cuCtxCreate_v2"),
            ("cuCtxCreate", 13_000, 0, "cuCtxCreate_v4"),
            ("cuGetProcAddress", 12_000, 0, "cuGetProcAddress_v2"),
            ("cuInit", 12_000, 0, "cuInit"),
        ] {
            let (code, found, status) = resolve(&cuda, name, version, flags);
            assert_eq!((code, status, Some(found)), (0, 0, cuda.symbol(wanted)), "{name} for {version}");
        }
        assert_eq!(resolve(&cuda, "cuNoSuchThing", 12_000, 0), (NOT_FOUND, std::ptr::null_mut(), 1));
        assert_eq!(resolve(&cuda, "cuMemcpyBatchAsync", 12_000, 0), (NOT_FOUND, std::ptr::null_mut(), 2));
        assert_eq!(resolve(&cuda, "fopen", 12_000, 0).0, NOT_FOUND);
    })
    .clean();
}

#[test]
fn what_is_not_emulated_says_so() {
    child!(&[], || {
        let cuda = Cuda::ready();
        assert_eq!(cuda.cuLaunchKernel(), NOT_SUPPORTED);
        assert_eq!(cuda.calls("cuLaunchKernel"), 1);
    })
    .clean();
}

#[test]
fn errors_have_their_names_and_texts() {
    child!(&[], || {
        let cuda = Cuda::open();
        for (code, name, text) in [
            (0, "CUDA_SUCCESS", "no error"),
            (1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"),
            (2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
            (100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
            (201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
            (600, "CUDA_ERROR_NOT_READY", "device not ready"),
            (801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"),
            (999, "CUDA_ERROR_UNKNOWN", "unknown error"),
        ] {
            let mut found = std::ptr::null();
            ok!(cuda.cuGetErrorName(code, &mut found));
            // SAFETY: a static string of the driver.
            assert_eq!(unsafe { CStr::from_ptr(found) }.to_str(), Ok(name));
            ok!(cuda.cuGetErrorString(code, &mut found));
            // SAFETY: as above.
            assert_eq!(unsafe { CStr::from_ptr(found) }.to_str(), Ok(text));
        }
        let mut found = c"left over".as_ptr();
        assert_eq!(cuda.cuGetErrorName(12_345, &mut found), INVALID_VALUE);
        assert!(found.is_null());
    })
    .clean();
}
