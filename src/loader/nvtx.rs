//! Named ranges on a profiler's time line, where the library for them is there: NVTX, version 2.
//!
//! `libnvToolsExt.so.1` is looked for at run time and hands ranges to the profiler that the process runs under. Version 3
//! has no library, only headers that are compiled in; what injects that version alone does not see these ranges.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

#[derive(Clone, Copy)]
struct Library {
    push: Push,
    pop: Pop,
}

/// A range of this thread, open until it is dropped. Those of a thread nest.
pub(super) struct Range {
    pop: Pop,
    /// It is the thread's innermost range that is closed, so a guard stays on its thread.
    _here: PhantomData<*const ()>,
}

impl Range {
    /// `None` if there is no library.
    pub(super) fn open(name: &'static CStr) -> Option<Range> {
        let Library { push, pop } = library()?;
        // SAFETY: `library` found this function by its name, it has this signature, and `name` is a C string; the
        // library copies it. A negative result says that no profiler listens, and closing a range then does nothing.
        unsafe { push(name.as_ptr()) };
        Some(Range { pop, _here: PhantomData })
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: `library` found this function by its name, it has this signature, and the library is never closed.
        unsafe { (self.pop)() };
    }
}

/// Looks for the library, once per process.
fn library() -> Option<Library> {
    static FOUND: OnceLock<Option<Library>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: the name is a C string; loading the library runs its initialisers, as linking to it would.
        let library =
            unsafe { libc::dlopen(c"libnvToolsExt.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        let (push, pop) = (symbol(library, c"nvtxRangePushA")?, symbol(library, c"nvtxRangePop")?);
        // SAFETY: both are functions of the library that have these signatures in every release of NVTX 2, and the
        // library is never closed. A data pointer and a function pointer are alike here.
        Some(unsafe {
            Library {
                push: std::mem::transmute::<*mut c_void, Push>(push),
                pop: std::mem::transmute::<*mut c_void, Pop>(pop),
            }
        })
    })
}

/// An address in a library that `dlopen` gave; not null.
fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `library` is a handle that dlopen gave, and `name` a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
