//! The one error type of the crate.
//!
//! An [`Error`] says what went wrong in a single line that names the file, the offset and the cause where there
//! are any. [`Error::kind`] says what a caller can do about it.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::storage;

/// What a caller can do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A path does not exist, or a pattern matched nothing. Correct the path.
    NotFound,
    /// An argument or a combination of them makes no sense. Correct the call.
    InvalidArgument,
    /// A file's content is not what its format demands: malformed, truncated, or of another kind.
    InvalidData,
    /// A file is well-formed but uses something that this crate does not read, such as object arrays.
    Unsupported,
    /// A file is not the one that was indexed: it was replaced, truncated or written to. Index the dataset again.
    Changed,
    /// A path leads out of the root that the dataset must lie below, by its name or by a symbolic link. Correct the
    /// path or the link, or do not trust who made it.
    OutsideRoot,
    /// The operating system refused or failed an operation on a file.
    Io,
    /// A backend that was named by the caller, or what a root needs of the kernel, does not work here. The message
    /// says why.
    Unavailable,
    /// Memory that is needed, of the host or of a device, does not fit into what there is or may be used.
    OutOfMemory,
    /// A GPU or its driver failed, or was used in a way that it does not allow.
    Device,
    /// Storage has not answered for as long as the caller wanted to wait: a server is down, or a disk is gone. What was read
    /// before is right. See to the storage, and build another loader, which can [resume](crate::LoaderBuilder::resume).
    TimedOut,
    /// Every slot of the ring is lent out and none came back in time. Drop batches, or raise the prefetch depth.
    SlotsExhausted,
    /// The loader was asked to stop.
    Stopped,
    /// A thread of the loader panicked. The loader is closed; build another.
    Panicked,
    /// The loader was closed by an earlier error.
    Closed,
}

/// The error of every fallible function of this crate.
///
/// Its `Display` is one line: the path, what happened, and where. The operating system's own error, if there is
/// one, is the [`source`](std::error::Error::source).
pub struct Error(Box<Inner>);

#[derive(thiserror::Error)]
struct Inner {
    kind: ErrorKind,
    message: String,
    path: Option<PathBuf>,
    range: Option<(u64, u64)>,
    backend: Option<&'static str>,
    /// What the file system under the path has to do with it.
    blamed: Option<String>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The file that the error is about, if it is about one.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The first byte of the file range that the error is about.
    pub fn offset(&self) -> Option<u64> {
        self.0.range.map(|(offset, _)| offset)
    }

    /// The length in bytes of the file range that the error is about.
    pub fn length(&self) -> Option<u64> {
        self.0.range.map(|(_, length)| length)
    }

    /// The name of the backend that failed, if one was at work.
    pub fn backend(&self) -> Option<&'static str> {
        self.0.backend
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            path: None,
            range: None,
            backend: None,
            blamed: None,
            source: None,
        }))
    }

    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidArgument, message)
    }

    /// Malformed content of `path`.
    pub(crate) fn data(path: &Path, message: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidData, message).at(path)
    }

    /// An operation on `path` that the operating system failed; `what` says which, as in "cannot open the file". A missing
    /// file gets the kind `NotFound`.
    ///
    /// Where the file system is to blame (it is full or read-only, its disk failed, its server refuses or does not answer), the
    /// message names it and says so. That is found without touching the path, which could wait for that server.
    pub fn io(path: &Path, what: impl Into<String>, source: std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        };
        let mut error = Error::new(kind, what).at(path);
        if let Some(errno) = source.raw_os_error().filter(|_| kind == ErrorKind::Io) {
            error.0.blamed = storage::blamed(path, errno);
        }
        error.caused_by(source)
    }

    /// About `path`. What is missing there may be missing because nothing is mounted.
    pub(crate) fn at(mut self, path: &Path) -> Self {
        self.0.path = Some(path.to_path_buf());
        if self.0.kind == ErrorKind::NotFound {
            self.0.blamed = storage::not_mounted(path);
        }
        self
    }

    /// Names the file system that the path lies on, if that is known.
    pub(crate) fn on(mut self, file_system: Option<String>) -> Self {
        self.0.blamed = file_system;
        self
    }

    /// Says this as well, after what is said already.
    pub(crate) fn also(mut self, note: &str) -> Self {
        self.0.message = format!("{}; {note}", self.0.message);
        self
    }

    pub(crate) fn range(mut self, offset: u64, length: u64) -> Self {
        self.0.range = Some((offset, length));
        self
    }

    pub(crate) fn by(mut self, backend: &'static str) -> Self {
        self.0.backend = Some(backend);
        self
    }

    pub(crate) fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }
}

impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path.display())?;
        }
        f.write_str(&self.message)?;
        let place = match (self.range, self.backend) {
            (Some((offset, length)), Some(backend)) => {
                Some(format!("offset {offset}, {length} bytes, backend {backend}"))
            }
            (Some((offset, length)), None) => Some(format!("offset {offset}, {length} bytes")),
            (None, Some(backend)) => Some(format!("backend {backend}")),
            (None, None) => None,
        };
        match (place, &self.blamed) {
            (Some(place), Some(blamed)) => write!(f, " ({place}; {blamed})"),
            (Some(only), None) => write!(f, " ({only})"),
            (None, Some(only)) => write!(f, " ({only})"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.to_string())
            .field("source", &self.0.source)
            .finish()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&*self.0)
    }
}

/// The one of `all` that is called `name`, or an error that lists the names there are.
pub(crate) fn by_name<T: Copy>(
    what: &str,
    all: &[T],
    name_of: fn(T) -> &'static str,
    name: &str,
) -> Result<T> {
    all.iter().copied().find(|&value| name_of(value) == name).ok_or_else(|| {
        let known: Vec<_> = all.iter().copied().map(name_of).collect();
        Error::argument(format!("unknown {what} {name:?}; known are {}", known.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn an_error_names_file_place_backend_and_cause() {
        let e = Error::io(Path::new("/d/shard-3.bin"), "read failed", std::io::Error::from_raw_os_error(12))
            .range(4096, 512)
            .by("uring");
        assert_eq!(e.to_string(), "/d/shard-3.bin: read failed (offset 4096, 512 bytes, backend uring)");
        assert_eq!(e.kind(), ErrorKind::Io);
        assert_eq!((e.offset(), e.length(), e.backend()), (Some(4096), Some(512), Some("uring")));
        assert!(e.source().unwrap().to_string().contains("os error 12"));
    }

    #[test]
    fn a_missing_file_is_told_from_a_failing_one() {
        let missing =
            Error::io(Path::new("x"), "cannot open", std::io::Error::from_raw_os_error(libc::ENOENT));
        let refused =
            Error::io(Path::new("x"), "cannot open", std::io::Error::from_raw_os_error(libc::EACCES));
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert_eq!(refused.kind(), ErrorKind::Io);
    }

    #[test]
    fn the_file_system_is_named_where_it_is_to_blame() {
        let full =
            || Error::io(Path::new("/dev/shm/state"), "cannot write", std::io::Error::from_raw_os_error(28));
        assert_eq!(full().to_string(), "/dev/shm/state: cannot write (tmpfs at /dev/shm; it is full)");
        let text = full().range(0, 9).by("uring").to_string();
        assert!(
            text.ends_with("(offset 0, 9 bytes, backend uring; tmpfs at /dev/shm; it is full)"),
            "{text}"
        );
        let other = Error::io(Path::new("/dev/shm/a"), "cannot read", std::io::Error::from_raw_os_error(22));
        assert_eq!(other.to_string(), "/dev/shm/a: cannot read");
        let silent = Error::new(ErrorKind::TimedOut, "nothing came").at(Path::new("/dev/shm/a"));
        let silent = silent.on(Some("tmpfs at /dev/shm".into()));
        assert_eq!(silent.to_string(), "/dev/shm/a: nothing came (tmpfs at /dev/shm)");
        let also = Error::argument("no").also("because");
        assert_eq!(also.to_string(), "no; because");
    }
}
