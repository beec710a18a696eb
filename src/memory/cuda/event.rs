//! Streams and events of our own, and the caller's streams.

use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};

use super::{Context, failed};
use crate::Result;

/// A stream of our own. It does not synchronize with the default stream.
#[derive(Debug)]
pub(crate) struct Stream {
    raw: sys::CUstream,
    context: Arc<Context>,
}

// SAFETY: a stream handle may be used from any thread that has made its context current, which every method does.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks inside.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Stream> {
        let _entered = context.enter()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(|e| failed("cannot make a stream", e))?;
        Ok(Stream { raw, context: Arc::clone(context) })
    }

    pub(crate) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What is queued from now on waits for the event; the host does not. The event may be of another device.
    pub(crate) fn wait(&self, event: &Event) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: both handles are alive: they are freed by their owners' drops only.
        unsafe {
            result::stream::wait_event(self.raw, event.raw, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)
        }
        .map_err(|e| failed("a stream cannot wait for an event", e))
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: the handle is alive.
        unsafe { result::stream::synchronize(self.raw) }.map_err(|e| failed("waiting for a stream failed", e))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // What is queued may still touch memory of whoever drops this next.
        let _ = self.synchronize();
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: created in `new`, destroyed only here, with nothing queued any more.
        let _ = unsafe { result::stream::destroy(self.raw) };
    }
}

/// A point in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    raw: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: an event handle may be used from any thread that has made its context current, which every method does.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks inside.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// An event that has passed, until it is recorded.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Event> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags_enum::CU_EVENT_BLOCKING_SYNC as u32;
        // SAFETY: `raw` lives through the call.
        unsafe { sys::cuEventCreate(&mut raw, flags) }
            .result()
            .map_err(|e| failed("cannot make an event", e))?;
        Ok(Event { raw, context: Arc::clone(context) })
    }

    pub(crate) fn record(&self, stream: &Stream) -> Result<()> {
        self.record_raw(stream.raw)
    }

    /// Records on a caller's stream, which was checked to belong to this event's context.
    pub(crate) fn record_on(&self, stream: &CudaStream) -> Result<()> {
        self.record_raw(stream.cu_stream())
    }

    fn record_raw(&self, stream: sys::CUstream) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: event and stream are alive (their owners are borrowed by the callers) and of one context.
        unsafe { result::event::record(self.raw, stream) }.map_err(|e| failed("cannot record an event", e))
    }

    /// Has a caller's stream wait; the host does not.
    pub(crate) fn hold_back(&self, stream: &CudaStream) -> Result<()> {
        let _entered = self.context.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both handles are alive: the stream is borrowed, the event is ours.
        unsafe { result::stream::wait_event(stream.cu_stream(), self.raw, flags) }
            .map_err(|e| failed("a stream cannot wait for an event", e))
    }

    /// Whether everything recorded has been done.
    ///
    /// # Errors
    /// The work failed, or the device is lost.
    pub(crate) fn passed(&self) -> Result<bool> {
        let _entered = self.context.enter()?;
        // SAFETY: the handle is alive.
        match unsafe { result::event::query(self.raw) } {
            Ok(()) => Ok(true),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => Err(failed("work on the device failed", error)),
        }
    }

    /// Waits until everything recorded has been done, without keeping a processor busy.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: the handle is alive.
        unsafe { result::event::synchronize(self.raw) }.map_err(|e| failed("work on the device failed", e))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: created in `new`, destroyed only here. The driver keeps a recorded event alive until it has passed.
        let _ = unsafe { result::event::destroy(self.raw) };
    }
}
