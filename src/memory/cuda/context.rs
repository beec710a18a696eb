//! A device's context, current on a thread only while it is used.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use super::{Driver, failed, probe};
use crate::{Error, ErrorKind, Result};

/// The primary context of one device, which frameworks in the same process share.
///
/// No other device is touched. The context is made current by [`Context::enter`] and the thread's own one comes back
/// afterwards, so that a caller who works on another device never finds itself on this one.
#[derive(Debug)]
pub(crate) struct Context {
    /// `None` only while dropping.
    cuda: Option<Arc<CudaContext>>,
    raw: sys::CUcontext,
    device: sys::CUdevice,
    ordinal: u32,
    process: u32,
}

/// A context that is current on this thread until the value goes.
#[derive(Debug)]
pub(crate) struct Entered(std::marker::PhantomData<*const ()>);

impl Context {
    /// Takes up the primary context of the device with this index.
    ///
    /// # Errors
    /// `Unavailable` without a driver or a device; `InvalidArgument` for an index that no device has.
    pub(crate) fn open(ordinal: u32) -> Result<Arc<Context>> {
        let Driver { devices, .. } = probe()
            .map_err(|why| Error::new(ErrorKind::Unavailable, format!("device cuda:{ordinal}: {why}")))?;
        if ordinal >= devices {
            return Err(Error::argument(format!(
                "device cuda:{ordinal} does not exist: the driver sees {devices} (cuda:0 to cuda:{})",
                devices - 1
            )));
        }
        let refused = |e| failed(format!("device cuda:{ordinal} cannot be opened"), e);
        let device = result::device::get(ordinal as i32).map_err(refused)?;
        // SAFETY: the device handle came from the driver; the retain is undone below.
        let raw = unsafe { result::primary_ctx::retain(device) }.map_err(refused)?;
        // cudarc replaces the thread's current context unless it is this one: pushed for a while, it covers the
        // thread's own, which need not even be alive any more.
        // SAFETY: the context was just retained, and the push is undone by `Entered`.
        let opened = unsafe { sys::cuCtxPushCurrent_v2(raw) }.result().and_then(|()| {
            let _entered = Entered(std::marker::PhantomData);
            CudaContext::new(ordinal as usize)
        });
        // SAFETY: undoes the retain above; cudarc has its own.
        let _ = unsafe { result::primary_ctx::release(device) };
        let cuda = Some(opened.map_err(refused)?);
        Ok(Arc::new(Context { cuda, raw, device, ordinal, process: std::process::id() }))
    }

    /// The device's index.
    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// What the driver calls the device.
    pub(crate) fn name(&self) -> Result<String> {
        result::device::get_name(self.device).map_err(|e| failed("the device has no name", e))
    }

    pub(crate) fn raw(&self) -> sys::CUcontext {
        self.raw
    }

    /// Makes the context current on this thread.
    ///
    /// # Errors
    /// `Device` in a process that was forked after the context was opened: CUDA does not work there.
    pub(crate) fn enter(&self) -> Result<Entered> {
        self.check_process()?;
        // SAFETY: the context is retained as long as `self` lives; the push is undone by `Entered`.
        unsafe { sys::cuCtxPushCurrent_v2(self.raw()) }
            .result()
            .map_err(|e| failed(format!("device cuda:{} cannot be made current", self.ordinal), e))?;
        Ok(Entered(std::marker::PhantomData))
    }

    pub(crate) fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Device,
            format!(
                "device cuda:{} was opened before this process was forked; CUDA does not survive a fork: open it in the child",
                self.ordinal
            ),
        ))
    }

    /// Free and total memory of the device, in bytes.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        let _entered = self.enter()?;
        let (free, total) =
            result::mem_get_info().map_err(|e| failed("cannot ask for the free memory", e))?;
        Ok((free as u64, total as u64))
    }

    /// Whether cudarc takes a caller's stream for one of this context.
    pub(crate) fn is_of(&self, stream: &CudaStream) -> bool {
        stream.context().cu_ctx() == self.raw()
    }

    /// Checks that a caller's stream belongs to this context, also by the driver's word: a stream of another
    /// library is cudarc's by the caller's word only.
    ///
    /// # Errors
    /// `InvalidArgument`, naming both devices; `Device` if the driver does not know the stream, or after a fork.
    pub(crate) fn check_stream(&self, stream: &CudaStream) -> Result<()> {
        let theirs = stream.context();
        let mut owner = theirs.cu_ctx();
        if self.is_of(stream) {
            let _entered = self.enter()?;
            // SAFETY: the stream is borrowed, and the answer lives through the call.
            unsafe { sys::cuStreamGetCtx(stream.cu_stream(), &mut owner) }
                .result()
                .map_err(|e| failed("the driver does not know the stream", e))?;
            if owner == self.raw() {
                return Ok(());
            }
        }
        let what = if theirs.ordinal() as u32 == self.ordinal {
            format!("another context than the primary one of device cuda:{}", self.ordinal)
        } else {
            format!("device cuda:{}", theirs.ordinal())
        };
        Err(Error::argument(format!(
            "the stream belongs to {what}, the batch to the primary context of device cuda:{}",
            self.ordinal
        )))
    }

    /// Lets this device read the other's memory, where the hardware can. Whether it can.
    pub(crate) fn enable_peer(&self, other: &Context) -> Result<bool> {
        let mut can = 0;
        let (mine, theirs) = (self.device, other.device);
        // SAFETY: both device handles came from the driver, and `can` lives through the call.
        unsafe { sys::cuDeviceCanAccessPeer(&mut can, mine, theirs) }
            .result()
            .map_err(|e| failed("cannot ask for peer access", e))?;
        if can == 0 {
            return Ok(false);
        }
        let _entered = self.enter()?;
        // SAFETY: the other context is retained as long as `other` lives.
        match unsafe { sys::cuCtxEnablePeerAccess(other.raw(), 0) } {
            sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            // The copies work without it, through the host.
            _ => Ok(false),
        }
    }
}

// SAFETY: context and device handles may be used from any thread; the driver locks inside.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The context that is current on this thread; null if none is.
fn current() -> sys::CUcontext {
    result::ctx::get_current().ok().flatten().unwrap_or(std::ptr::null_mut())
}

impl Drop for Context {
    fn drop(&mut self) {
        let Some(cuda) = self.cuda.take() else { return };
        if self.check_process().is_err() {
            // The context is the parent's; in a forked child the driver takes no calls.
            std::mem::forget(cuda);
            return;
        }
        let before = current();
        // cudarc makes the context current to release it and leaves it so, even when that destroyed it: pushed for a
        // while, it covers the thread's own.
        // SAFETY: the context is retained until cudarc's value goes, and the push is undone by `Entered`.
        let entered = unsafe { sys::cuCtxPushCurrent_v2(self.raw) }.result();
        let entered = entered.map(|()| Entered(std::marker::PhantomData));
        drop(cuda);
        drop(entered);
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the device handle came from the driver, and both results live through the call.
        let _ = unsafe { sys::cuDevicePrimaryCtxGetState(self.device, &mut flags, &mut active) };
        if before == self.raw && active == 0 {
            // SAFETY: null means none.
            let _ = unsafe { result::ctx::set_current(std::ptr::null_mut()) };
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: undoes this value's push, on the same thread (the value is not Send).
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}
