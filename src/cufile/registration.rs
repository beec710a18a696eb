//! GPU memory that cuFile knows.

use std::marker::PhantomData;
use std::sync::Arc;

use cufile_sys::sym;

use super::{Driver, check};
use crate::memory::DeviceBuffer;
use crate::memory::cuda::CudaBuffer;
use crate::{Error, Result};

/// A GPU buffer registered with cuFile, which saves the pinning of each read. It borrows its memory:
///
/// ```compile_fail,E0505
/// # use gpufeed::{Device, DeviceBuffer, cufile::{Driver, RegisteredBuffer}};
/// let driver = Driver::open(Device::Cuda(0))?;
/// let buffer = DeviceBuffer::new(Device::Cuda(0), 1 << 20)?;
/// let registered = RegisteredBuffer::new(&driver, &buffer)?;
/// drop(buffer); // does not compile: it is still registered
/// drop(registered);
/// # Ok::<(), gpufeed::Error>(())
/// ```
#[derive(Debug)]
pub struct RegisteredBuffer<'b> {
    registration: Arc<Registration>,
    len: usize,
    buffer: PhantomData<&'b DeviceBuffer>,
}

/// What batches and reads in flight share. The memory goes after the registration.
#[derive(Debug)]
pub(crate) struct Registration {
    start: u64,
    /// Whether cuFile knows the memory; otherwise reads pin it each time.
    known: bool,
    _memory: Arc<CudaBuffer>,
    driver: Driver,
}

impl<'b> RegisteredBuffer<'b> {
    /// Registers the whole of a buffer on the driver's GPU.
    ///
    /// # Errors
    /// `InvalidArgument` for memory that is not on that GPU; `Device` if cuFile refuses (too little BAR1 space is the
    /// usual reason).
    pub fn new(driver: &Driver, buffer: &'b DeviceBuffer) -> Result<RegisteredBuffer<'b>> {
        let memory = on_gpu(driver, buffer)?;
        let registration = Registration::new(driver, memory, memory.start(), buffer.len())?;
        Ok(RegisteredBuffer { registration: Arc::new(registration), len: buffer.len(), buffer: PhantomData })
    }

    /// Takes a buffer as it is: reads into it work, and pin it anew each time.
    ///
    /// # Errors
    /// `InvalidArgument` for memory that is not on the driver's GPU.
    pub fn unregistered(driver: &Driver, buffer: &'b DeviceBuffer) -> Result<RegisteredBuffer<'b>> {
        let memory = Arc::clone(on_gpu(driver, buffer)?);
        let registration =
            Registration { start: memory.start(), known: false, _memory: memory, driver: driver.clone() };
        Ok(RegisteredBuffer { registration: Arc::new(registration), len: buffer.len(), buffer: PhantomData })
    }

    /// The size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes; never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn registration(&self) -> &Arc<Registration> {
        &self.registration
    }

    /// # Errors
    /// `InvalidArgument`, with the range and the size.
    pub(super) fn check(&self, at: usize, len: usize) -> Result<()> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::argument(format!(
                "{len} bytes from byte {at} on do not lie in a registered buffer of {} bytes",
                self.len
            ))),
        }
    }
}

fn on_gpu<'m>(driver: &Driver, buffer: &'m DeviceBuffer) -> Result<&'m Arc<CudaBuffer>> {
    let gpu = driver.context().ordinal();
    match buffer.cuda() {
        Some(memory) if memory.context().ordinal() == gpu => Ok(memory),
        _ => Err(Error::argument(format!(
            "the buffer is on device {}, the cuFile driver was opened for cuda:{gpu}",
            buffer.device()
        ))),
    }
}

impl Registration {
    /// Registers `len` bytes from `start` on, which lie in `memory`.
    pub(crate) fn new(
        driver: &Driver,
        memory: &Arc<CudaBuffer>,
        start: u64,
        len: usize,
    ) -> Result<Registration> {
        let register = driver.library().require(sym::cuFileBufRegister)?;
        let _entered = driver.context().enter()?;
        // SAFETY: the range lies in an allocation of the GPU that `memory` keeps alive until after deregistration.
        let returned = unsafe { register(start as *const _, len, 0) };
        check(&format!("{len} bytes of GPU memory cannot be registered"), returned)?;
        Ok(Registration { start, known: true, _memory: Arc::clone(memory), driver: driver.clone() })
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.known {
            return;
        }
        let Ok(_entered) = self.driver.context().enter() else { return };
        if let Ok(deregister) = self.driver.library().require(sym::cuFileBufDeregister) {
            // SAFETY: registered under this start in `new`, deregistered only here; whoever reads into the memory
            // holds this value.
            unsafe { deregister(self.start as *const _) };
        }
    }
}
