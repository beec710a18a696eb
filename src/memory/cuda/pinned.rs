//! Host memory that the GPU's copy engine can read while the host does something else.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;

use super::{Context, failed};
use crate::Result;

/// Drivers refuse very large single registrations, so memory is registered in parts of about this many bytes.
const PART: usize = 1 << 30;

/// Page-aligned host memory that is registered with CUDA, as far as the driver lets it, until this is dropped. It does
/// not own the memory.
#[derive(Debug)]
pub(crate) struct Pinned {
    parts: Vec<*mut c_void>,
    refused: Option<String>,
    context: Arc<Context>,
}

// SAFETY: the pointers are only given back to the driver, which takes calls from any thread.
unsafe impl Send for Pinned {}
// SAFETY: as above; nothing is done with them through a shared reference.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Registers a range of whole pages that is used in chunks of `chunk` bytes, none of which may lie in two
    /// registrations, since no copy may reach from one into another. Where the driver refuses, the memory works unregistered: copies from it
    /// then hold up the thread that asks for them.
    ///
    /// # Safety
    /// `start..start + len` is mapped and stays so until the value is dropped, and is not registered already.
    pub(crate) unsafe fn register(
        context: &Arc<Context>,
        start: *mut u8,
        len: usize,
        chunk: usize,
    ) -> Result<Pinned> {
        const PORTABLE: u32 = 1; // pinned for every context, not just this one
        let _entered = context.enter()?;
        let mut pinned = Pinned { parts: Vec::new(), refused: None, context: Arc::clone(context) };
        let step = (PART / chunk.max(1)).max(1) * chunk.max(1);
        for offset in (0..len).step_by(step) {
            let part = start.wrapping_add(offset).cast::<c_void>();
            // SAFETY: the part lies in the range that the caller vouches for.
            let code = unsafe { sys::cuMemHostRegister_v2(part, step.min(len - offset), PORTABLE) };
            if let Err(error) = code.result() {
                let what = format!(
                    "staging memory of {len} bytes is not pinned for the GPU, so copies do not overlap"
                );
                pinned.unregister();
                pinned.refused = Some(failed(what, error).to_string());
                break;
            }
            pinned.parts.push(part);
        }
        Ok(pinned)
    }

    /// Why the memory is not registered, if it is not.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    fn unregister(&mut self) {
        for part in self.parts.drain(..) {
            // SAFETY: registered in `register` and unregistered only here. Whoever queued copies from the memory
            // has waited for them before letting go of the registration.
            let _ = unsafe { sys::cuMemHostUnregister(part) };
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(_entered) = Arc::clone(&self.context).enter() {
            self.unregister();
        }
    }
}
