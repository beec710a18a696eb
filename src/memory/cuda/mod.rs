//! NVIDIA GPUs, by the CUDA driver API.
//!
//! The driver's library is found at run time: [`probe`] asks it, without ever panicking, whether there is anything to
//! talk to, and only then is cudarc (which panics where the library is missing) called.

mod buffer;
mod context;
mod copier;
mod event;
mod pinned;
mod probe;
mod slice;

pub(crate) use buffer::CudaBuffer;
pub(crate) use context::{Context, Entered};
pub(crate) use copier::{Copier, SlotEvents};
pub(crate) use event::{Event, Stream};
pub(crate) use pinned::Pinned;
pub(crate) use probe::{Driver, probe};
pub use slice::DeviceSlice;

use cudarc::driver::result::{self, DriverError};

use crate::backend::Piece;
use crate::{Error, ErrorKind, Result};

/// Turns a driver's error into ours, at once: cudarc's own type calls the driver again whenever it is formatted.
pub(crate) fn failed(what: impl Into<String>, error: DriverError) -> Error {
    let code = error.0 as u32;
    // The driver is there (it gave this code), so asking it for the name is safe.
    let name = error.error_name().ok().map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_else(|| "an unknown error".into());
    let kind = match code {
        2 => ErrorKind::OutOfMemory,
        _ => ErrorKind::Device,
    };
    Error::new(kind, format!("{}: {name} ({code})", what.into()))
}

/// Copies pieces of a chunk into slots of device memory and returns when they are there: the synchronous copy of
/// pageable memory, as most programs do it.
///
/// # Safety
/// Every piece lies within the chunk that starts at `chunk` and is filled up to its end, and within the ring of slots that
/// starts at `ring` in this context; nobody else touches these bytes meanwhile.
pub(crate) unsafe fn copy_now(
    context: &Context,
    chunk: *const u8,
    ring: u64,
    pieces: &[Piece],
) -> Result<()> {
    let _entered = context.enter()?;
    for piece in pieces {
        // SAFETY: the caller vouches for the range of the chunk.
        let source =
            unsafe { std::slice::from_raw_parts(chunk.add(piece.from as usize), piece.len as usize) };
        // SAFETY: the caller vouches for the range of the ring.
        unsafe { result::memcpy_htod_sync(ring + piece.to as u64, source) }
            .map_err(|e| failed("a copy to the device failed", e))?;
    }
    arrived()
}

/// Waits for copies from pageable memory to the device of the current context. The driver may return from one as soon
/// as it has taken the bytes into its own memory: they are on the device when the default stream has passed, which
/// such copies run on.
fn arrived() -> Result<()> {
    // SAFETY: null names the default stream of the current context.
    unsafe { result::stream::synchronize(std::ptr::null_mut()) }
        .map_err(|e| failed("a copy to the device failed", e))
}

/// Copies host memory to the device and returns when it is there.
///
/// # Safety
/// `to..to + from.len()` lies in an allocation of this context that no queued work uses.
pub(crate) unsafe fn copy_in(context: &Context, from: &[u8], to: u64) -> Result<()> {
    let _entered = context.enter()?;
    // SAFETY: the caller vouches for the range of the device, and `from` is a slice.
    unsafe { result::memcpy_htod_sync(to, from) }.map_err(|e| failed("a copy to the device failed", e))?;
    arrived()
}

/// Copies device memory to the host and returns when it is there.
///
/// # Safety
/// `from..from + to.len()` lies in an allocation of this context, and no work that is still queued writes to it.
pub(crate) unsafe fn copy_back(context: &Context, from: u64, to: &mut [u8]) -> Result<()> {
    let _entered = context.enter()?;
    // SAFETY: the caller vouches for the range of the device, and `to` is a slice.
    unsafe { result::memcpy_dtoh_sync(to, from) }.map_err(|e| failed("a copy from the device failed", e))
}
