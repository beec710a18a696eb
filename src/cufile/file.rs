//! A file that cuFile knows, and reads and writes of it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cufile_sys::{CUfileDescr_t, CUfileHandle_t, CUfileIOVec_t, CUfileOpError, decode_return, sym};

use super::{Driver, RegisteredBuffer, check, io_failed, offset};
use crate::storage::Opener;
use crate::{Error, ErrorKind, Result};

/// A file registered with cuFile.
///
/// Reads block until they are done. They are not ordered with streams: work that is still queued on the memory they
/// write to must have passed.
#[derive(Debug, Clone)]
pub struct FileHandle(Arc<Registered>);

/// The handle is deregistered before the descriptor is closed.
#[derive(Debug)]
pub(crate) struct Registered {
    raw: CUfileHandle_t,
    path: PathBuf,
    driver: Driver,
    _file: File,
}

// SAFETY: cuFile's functions take a handle from any thread, several at once.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl FileHandle {
    /// Opens a file for reading, for direct I/O where the file system has it.
    ///
    /// # Errors
    /// The file cannot be opened, or cuFile refuses it: then the error says what that usually means.
    pub fn open(driver: &Driver, path: impl AsRef<Path>) -> Result<FileHandle> {
        let path = path.as_ref();
        let opener = Opener::default();
        let file = match opener.open_regular(path, libc::O_DIRECT) {
            Ok((file, _)) => file,
            Err(_) => opener.open_regular(path, 0)?.0,
        };
        FileHandle::register(driver, file, path)
    }

    /// Registers a file that is open, for whatever it is open for.
    ///
    /// # Errors
    /// cuFile refuses it.
    pub fn register(driver: &Driver, file: File, path: &Path) -> Result<FileHandle> {
        let raw = register(driver, file.as_raw_fd()).map_err(|error| error.at(path))?;
        Ok(FileHandle(Arc::new(Registered { raw, path: path.into(), driver: driver.clone(), _file: file })))
    }

    /// Reads up to `len` bytes from byte `from` of the file into the buffer, from its byte `at` on. Returns how many
    /// came: fewer only at the end of the file, or where the driver stopped short. The rest of the `len` bytes of the
    /// buffer may have been written to as well.
    ///
    /// # Errors
    /// `InvalidArgument` for a range beyond the buffer; `Io` with the system's or cuFile's code.
    pub fn read_at(&self, from: u64, len: usize, buffer: &RegisteredBuffer<'_>, at: usize) -> Result<usize> {
        buffer.check(at, len)?;
        let read = self.0.driver.library().require(sym::cuFileRead)?;
        let _entered = self.enter()?;
        let base = buffer.registration().start() as *mut _;
        // SAFETY: the handle is registered, and the range lies in the buffer, which is borrowed through the call.
        let n = unsafe { read(self.0.raw, base, len, offset(from)?, offset(at as u64)?) };
        self.outcome("the cuFile read failed", n, from, len)
    }

    /// Reads `len` bytes, resuming short reads.
    ///
    /// # Errors
    /// As `read_at`; also `Io` if the file ends before.
    pub fn read_exact_at(
        &self,
        from: u64,
        len: usize,
        buffer: &RegisteredBuffer<'_>,
        at: usize,
    ) -> Result<()> {
        let mut come = 0;
        while come < len {
            match self.read_at(from + come as u64, len - come, buffer, at + come)? {
                0 => {
                    let what = format!("the file ends {} bytes before the end of the range", len - come);
                    return Err(self.error(ErrorKind::Io, what, from, len));
                }
                n => come += n,
            }
        }
        Ok(())
    }

    /// Writes `len` bytes of the buffer, from its byte `at` on, to byte `to` of the file. Returns how many went.
    ///
    /// # Errors
    /// As `read_at`.
    pub fn write_at(&self, to: u64, len: usize, buffer: &RegisteredBuffer<'_>, at: usize) -> Result<usize> {
        buffer.check(at, len)?;
        let write = self.0.driver.library().require(sym::cuFileWrite)?;
        let _entered = self.enter()?;
        let base = buffer.registration().start() as *const _;
        // SAFETY: as for `read_at`.
        let n = unsafe { write(self.0.raw, base, len, offset(to)?, offset(at as u64)?) };
        self.outcome("the cuFile write failed", n, to, len)
    }

    /// Reads from byte `from` of the file into several parts of a buffer, each (first byte, length), one after the
    /// other; since cuFile 1.19. Returns how many bytes came.
    ///
    /// # Errors
    /// As `read_at`; `Unsupported` for a library that cannot.
    pub fn read_vectored(
        &self,
        from: u64,
        buffer: &RegisteredBuffer<'_>,
        parts: &[(usize, usize)],
    ) -> Result<usize> {
        let read = self.0.driver.library().require(sym::cuFileReadv)?;
        let mut vectors = Vec::with_capacity(parts.len());
        let mut all = 0usize;
        for &(at, len) in parts {
            buffer.check(at, len)?;
            all = all.saturating_add(len);
            let base = (buffer.registration().start() + at as u64) as *mut _;
            vectors.push(CUfileIOVec_t { base, len });
        }
        let _entered = self.enter()?;
        // SAFETY: the handle is registered, the vectors live through the call, and each lies in the borrowed buffer.
        let n = unsafe { read(self.0.raw, vectors.as_ptr(), vectors.len(), offset(from)?, 0) };
        self.outcome("the vectored cuFile read failed", n, from, all)
    }

    pub(super) fn shared(&self) -> &Arc<Registered> {
        &self.0
    }

    fn enter(&self) -> Result<crate::memory::cuda::Entered> {
        self.0.driver.context().enter()
    }

    fn outcome(&self, what: &str, n: isize, from: u64, len: usize) -> Result<usize> {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        match decode_return(n, errno) {
            Ok(n) if n > len => {
                Err(self.error(ErrorKind::Io, format!("{what}: it reports {n} bytes of {len}"), from, len))
            }
            Ok(n) => Ok(n),
            Err(failure) => Err(io_failed(what, failure).at(&self.0.path).range(from, len as u64).by("gds")),
        }
    }

    fn error(&self, kind: ErrorKind, what: impl Into<String>, from: u64, len: usize) -> Error {
        Error::new(kind, what).at(&self.0.path).range(from, len as u64).by("gds")
    }
}

impl Registered {
    pub(super) fn raw(&self) -> CUfileHandle_t {
        self.raw
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Registers a descriptor; the caller keeps it open until it has deregistered the handle.
pub(crate) fn register(driver: &Driver, fd: i32) -> Result<CUfileHandle_t> {
    let register = driver.library().require(sym::cuFileHandleRegister)?;
    let mut raw = CUfileHandle_t::NULL;
    let mut descriptor = CUfileDescr_t::from_fd(fd);
    let _entered = driver.context().enter()?;
    // SAFETY: both structures live through the call, and the descriptor is open.
    let returned = unsafe { register(&mut raw, &mut descriptor) };
    // Either, by version, for a disk or a file system that it finds nothing about.
    if matches!(returned.err, CUfileOpError::INTERNAL_ERROR | CUfileOpError::HANDLE_NOT_REGISTERED) {
        let why = if Path::new("/run/udev").exists() {
            "it does not take the file system, or finds no record of the disk in /run/udev"
        } else {
            "there is no /run/udev, where it looks up the disk: give the container that folder of the host"
        };
        let code = returned.err.0;
        return Err(Error::new(
            ErrorKind::Device,
            format!("cuFile cannot register the file ({code}), most likely since {why}"),
        ));
    }
    check("cuFile cannot register the file", returned)?;
    Ok(raw)
}

/// Deregisters a handle.
///
/// # Safety
/// It is registered, and nothing that was started with it is in flight.
pub(crate) unsafe fn deregister(driver: &Driver, raw: CUfileHandle_t) {
    let Ok(_entered) = driver.context().enter() else { return };
    if let Ok(deregister) = driver.library().require(sym::cuFileHandleDeregister) {
        // SAFETY: the caller vouches for the handle.
        unsafe { deregister(raw) };
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered in `register`, and what is in flight holds this value.
        unsafe { deregister(&self.driver, self.raw) };
    }
}
