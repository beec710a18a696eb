//! Device memory for I/O.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::{Context, failed};
use crate::{Error, ErrorKind, Result};

/// Memory of one device, from `cuMemAlloc` (not from the stream-ordered pool, which cuFile cannot register).
#[derive(Debug)]
pub(crate) struct CudaBuffer {
    start: sys::CUdeviceptr,
    len: usize,
    context: Arc<Context>,
    /// Zeroed before it is freed, so that whoever gets the memory next finds nothing in it.
    wipe: bool,
}

impl CudaBuffer {
    /// Allocates `len` bytes.
    ///
    /// # Errors
    /// `OutOfMemory`, with what was asked and what is free.
    pub(crate) fn new(context: &Arc<Context>, len: usize) -> Result<CudaBuffer> {
        let entered = context.enter()?;
        // SAFETY: a plain allocation; whoever copies to or from it proves that the range is inside.
        let allocated = unsafe { result::malloc_sync(len) };
        drop(entered);
        match allocated {
            Ok(start) => Ok(CudaBuffer { start, len, context: Arc::clone(context), wipe: false }),
            Err(error) => {
                let ordinal = context.ordinal();
                let error = failed(format!("cannot allocate {len} bytes on device cuda:{ordinal}"), error);
                match (error.kind(), context.memory()) {
                    (ErrorKind::OutOfMemory, Ok((free, total))) => Err(Error::new(
                        ErrorKind::OutOfMemory,
                        format!("cuda:{ordinal} has no room for {len} bytes: {free} of its {total} are free"),
                    )),
                    _ => Err(error),
                }
            }
        }
    }

    /// Has the memory zeroed before it is freed.
    pub(crate) fn wiped(mut self, wipe: bool) -> Self {
        self.wipe = wipe;
        self
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for CudaBuffer {
    fn drop(&mut self) {
        // In a forked child the memory is the parent's; on a lost device there is nothing left to free.
        let Ok(_entered) = self.context.enter() else { return };
        if self.wipe {
            // Device memory is set in the order of the default stream, and not before this returns.
            // SAFETY: the whole allocation, on which nobody has work any more, as said below; null names the default
            // stream.
            unsafe {
                let _ = result::memset_d8_sync(self.start, 0, self.len);
                let _ = result::stream::synchronize(std::ptr::null_mut());
            }
        }
        // SAFETY: `start` came from `malloc_sync` in this context and is freed only here. Whoever had work on it in
        // a stream has waited for that work before letting go of the buffer.
        let _ = unsafe { result::free_sync(self.start) };
    }
}
