//! Memory of a device that a program owns, for reads and writes outside a loader.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::cuda::{self, CudaBuffer};
use super::{Device, HostMapping, Target, resolve};
use crate::{Error, Result};

/// Memory on a device: of the host, page-aligned, or of a GPU, from `cuMemAlloc`.
///
/// It is freed when this value has gone, and every registration, batch and read in flight that was made with it.
#[derive(Debug)]
pub struct DeviceBuffer {
    memory: Memory,
    len: usize,
}

#[derive(Debug)]
enum Memory {
    Host(HostMapping),
    Cuda(Arc<CudaBuffer>),
}

impl DeviceBuffer {
    /// Allocates `len` bytes. Host memory is zeroed; the contents of GPU memory are undefined.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes or a GPU that does not exist, `Unavailable` without a driver, `OutOfMemory` with
    /// what was asked and what is free.
    pub fn new(device: Device, len: usize) -> Result<DeviceBuffer> {
        if len == 0 {
            return Err(Error::argument("a buffer of 0 bytes cannot be allocated"));
        }
        let (target, _) = resolve(&[device])?;
        let memory = match &target {
            Target::Host => Memory::Host(HostMapping::new(len)?),
            Target::Cuda(contexts) => Memory::Cuda(Arc::new(CudaBuffer::new(&contexts[0], len)?)),
        };
        Ok(DeviceBuffer { memory, len })
    }

    /// The size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes; never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device.
    pub fn device(&self) -> Device {
        match &self.memory {
            Memory::Host(_) => Device::Host,
            Memory::Cuda(buffer) => Device::Cuda(buffer.context().ordinal()),
        }
    }

    /// The address of the first byte on the GPU; `None` in host memory.
    pub fn device_ptr(&self) -> Option<u64> {
        self.cuda().map(|buffer| buffer.start())
    }

    /// Copies bytes from the host into the buffer, from byte `at` on, and returns when they are there.
    ///
    /// # Errors
    /// `InvalidArgument` for a range beyond the end, `Device` if the GPU fails.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        self.check(at, bytes.len())?;
        match &self.memory {
            Memory::Host(mapping) => {
                // SAFETY: the range is inside the mapping, and `self` is borrowed exclusively.
                unsafe { std::ptr::copy(bytes.as_ptr(), mapping.as_ptr().add(at), bytes.len()) };
                Ok(())
            }
            // SAFETY: the range is inside the buffer.
            Memory::Cuda(buffer) => unsafe {
                cuda::copy_in(buffer.context(), bytes, buffer.start() + at as u64)
            },
        }
    }

    /// Copies bytes of the buffer, from byte `at` on, to the host. What streams have queued on the buffer is not
    /// waited for: see [`read_after`](DeviceBuffer::read_after).
    ///
    /// # Errors
    /// As `write`.
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        self.check(at, bytes.len())?;
        match &self.memory {
            Memory::Host(mapping) => {
                // SAFETY: the range is inside the mapping, which is initialised and which only
                // `write` writes to, with an exclusive borrow.
                unsafe { std::ptr::copy(mapping.as_ptr().add(at), bytes.as_mut_ptr(), bytes.len()) };
                Ok(())
            }
            // SAFETY: the range is inside the buffer.
            Memory::Cuda(buffer) => unsafe {
                cuda::copy_back(buffer.context(), buffer.start() + at as u64, bytes)
            },
        }
    }

    /// As [`read`](DeviceBuffer::read), after what is queued on a stream.
    ///
    /// # Errors
    /// As `write`; also `InvalidArgument` for a stream of another device or context.
    pub fn read_after(&self, stream: &Arc<CudaStream>, at: usize, bytes: &mut [u8]) -> Result<()> {
        if let Some(buffer) = self.cuda() {
            buffer.context().check_stream(stream)?;
            let event = cuda::Event::new(buffer.context())?;
            event.record_on(stream)?;
            event.synchronize()?;
        }
        self.read(at, bytes)
    }

    /// # Errors
    /// `InvalidArgument`, with the range and the size.
    pub(crate) fn check(&self, at: usize, len: usize) -> Result<()> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::argument(format!(
                "{len} bytes from byte {at} on do not lie in a buffer of {} bytes",
                self.len
            ))),
        }
    }

    pub(crate) fn cuda(&self) -> Option<&Arc<CudaBuffer>> {
        match &self.memory {
            Memory::Host(_) => None,
            Memory::Cuda(buffer) => Some(buffer),
        }
    }
}
