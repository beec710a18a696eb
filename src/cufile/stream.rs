//! Reads in the order of a stream.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cufile_sys::{CUstream, decode_return, sym};

use super::file::Registered;
use super::registration::Registration;
use super::{FileHandle, RegisteredBuffer, check, io_failed, offset};
use crate::memory::cuda::Event;
use crate::{Error, ErrorKind, Result};

/// A read that was queued on a stream; needs cuFile 1.7.
///
/// The driver takes the parameters when the stream comes to the read, so they live on the heap until it has passed:
/// waiting for the value, or dropping it, waits for the stream.
#[derive(Debug)]
pub struct StreamRead<'b> {
    /// `None` only while dropping.
    parts: Option<Parts>,
    buffer: PhantomData<&'b ()>,
}

#[derive(Debug)]
struct Parts {
    parameters: Box<Parameters>,
    passed: Event,
    file: Arc<Registered>,
    _registration: Arc<Registration>,
    _stream: Arc<CudaStream>,
}

/// What the driver reads, and the result that it writes, some time later.
#[derive(Debug)]
#[repr(C)]
struct Parameters {
    size: usize,
    file_offset: libc::off_t,
    buffer_offset: libc::off_t,
    bytes_read: isize,
}

impl FileHandle {
    /// Queues a read of `len` bytes from byte `from` of the file into the buffer, from its byte `at` on, behind what is
    /// on the stream. Needs cuFile 1.7 and a GPU: cuFile's compatibility mode does part of it by a kernel.
    ///
    /// # Errors
    /// `InvalidArgument` for a range beyond the buffer or a stream of another device or context; `Unsupported` for a
    /// library that cannot; `Device` if the driver refuses.
    pub fn read_on_stream<'b>(
        &self,
        from: u64,
        len: usize,
        buffer: &'b RegisteredBuffer<'_>,
        at: usize,
        stream: &Arc<CudaStream>,
    ) -> Result<StreamRead<'b>> {
        buffer.check(at, len)?;
        let file = self.shared();
        let driver = file.driver();
        let read = driver.library().require(sym::cuFileReadAsync)?;
        driver.context().check_stream(stream)?;
        let mut parameters = Box::new(Parameters {
            size: len,
            file_offset: offset(from)?,
            buffer_offset: offset(at as u64)?,
            bytes_read: 0,
        });
        let passed = Event::new(driver.context())?;
        let base = buffer.registration().start() as *mut c_void;
        let entered = driver.context().enter()?;
        let p: *mut Parameters = &mut *parameters;
        // SAFETY: the handle is registered and the range lies in the buffer; the parameters stay where they are, on
        // the heap, untouched, until the stream has passed the read, as do file, registration and stream.
        let returned = unsafe {
            read(
                file.raw(),
                base,
                &raw mut (*p).size,
                &raw mut (*p).file_offset,
                &raw mut (*p).buffer_offset,
                &raw mut (*p).bytes_read,
                CUstream(stream.cu_stream().cast()),
            )
        };
        drop(entered);
        // Even a refused read may have queued something that looks at the parameters.
        let parts = Parts {
            parameters,
            passed,
            file: Arc::clone(file),
            _registration: Arc::clone(buffer.registration()),
            _stream: Arc::clone(stream),
        };
        if let Err(error) = parts.passed.record_on(stream) {
            // Nothing tells when the stream will have passed the read.
            parts.keep();
            return Err(error);
        }
        let queued = StreamRead { parts: Some(parts), buffer: PhantomData };
        check("cuFile cannot queue a read on the stream", returned)
            .map_err(|e| e.at(file.path()).range(from, len as u64).by("gds"))?;
        Ok(queued)
    }
}

impl StreamRead<'_> {
    /// Waits until the stream has passed the read. Returns the bytes that came: fewer than asked for only at the end
    /// of the file.
    ///
    /// # Errors
    /// `Io` if the read failed, `Device` if the stream did.
    pub fn wait(mut self) -> Result<usize> {
        let Some(parts) = self.parts.take() else { return Ok(0) };
        if let Err(error) = parts.passed.synchronize() {
            parts.keep();
            return Err(error);
        }
        // SAFETY: the stream has passed the read, so the driver writes the result no more.
        let n = unsafe { (&raw const parts.parameters.bytes_read).read_volatile() };
        let (size, from) = (parts.parameters.size, parts.parameters.file_offset as u64);
        let place = |error: Error| error.at(parts.file.path()).range(from, size as u64).by("gds");
        match decode_return(n, 0) {
            Ok(n) if n <= size => Ok(n),
            Ok(n) => Err(place(Error::new(ErrorKind::Io, format!("cuFile reports {n} bytes of {size}")))),
            Err(failure) => Err(place(io_failed("a read on a stream failed", failure))),
        }
    }
}

impl Parts {
    /// The stream failed, or does not tell: what the driver may still look at is never given back.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for StreamRead<'_> {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take()
            && parts.passed.synchronize().is_err()
        {
            parts.keep();
        }
    }
}
