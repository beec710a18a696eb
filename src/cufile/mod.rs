//! cuFile, safely: reads and writes between files and GPU memory with no stop in host memory.
//!
//! ```text
//! Driver::open ── FileHandle::open ──┬── read_at / write_at / read_vectored
//!      │                             ├── Batch        (many at once; dropping it waits)
//!      └── RegisteredBuffer::new ────┴── StreamRead   (in the order of a stream; dropping it waits)
//! ```
//!
//! The library is found at run time, and a program that never opens a [`Driver`] never touches it. What is in flight
//! keeps what it needs alive: the file handle, the registration and the memory behind it. The driver is closed when
//! its last user has gone, never at exit.
//!
//! cuFile has a compatibility mode of its own, in which it reads through host memory and says nothing about it.
//! [`Driver::route`] tells, from the driver's properties, and [`Driver::reads`] from its statistics, which way it
//! really goes.

mod batch;
mod config;
mod driver;
mod file;
mod probe;
mod properties;
mod registration;
mod stream;

pub use batch::{Batch, BatchOutcome};
pub use config::Config;
pub use driver::{Driver, Setting};
pub use file::FileHandle;
pub(crate) use file::{deregister, register};
pub use properties::{Properties, ReadCounts, Route};
pub use registration::RegisteredBuffer;
pub(crate) use registration::Registration;
pub use stream::StreamRead;

use cufile_sys::{CUfileError_t, IoFailure, LoadError, MissingSymbol};

use crate::{Error, ErrorKind};

impl From<MissingSymbol> for Error {
    fn from(missing: MissingSymbol) -> Self {
        Error::new(ErrorKind::Unsupported, missing.to_string())
    }
}

/// No library, told in words.
fn not_loaded(error: &LoadError) -> Error {
    Error::new(ErrorKind::Unavailable, error.to_string())
}

/// Turns what most functions return into a result. `what` says what was asked.
fn check(what: &str, returned: CUfileError_t) -> crate::Result<()> {
    if returned == CUfileError_t::SUCCESS {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Device, format!("{what}: {returned}")))
}

/// Turns a failed read or write into an error.
fn io_failed(what: &str, failure: IoFailure) -> Error {
    let error = Error::new(ErrorKind::Io, what.to_string());
    match failure {
        IoFailure::Os(errno) => error.caused_by(std::io::Error::from_raw_os_error(errno)),
        failure => Error::new(ErrorKind::Io, format!("{what}: {failure}")),
    }
}

/// A value of cuFile's signed file offset.
fn offset(value: u64) -> crate::Result<libc::off_t> {
    libc::off_t::try_from(value)
        .map_err(|_| Error::argument(format!("file offset {value} is beyond what a file can have")))
}
