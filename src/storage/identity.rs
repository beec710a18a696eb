//! Which file a path meant when it was indexed, so that another file under the same name is noticed.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::{Error, ErrorKind, Result};

/// What tells one state of a file from another: device, inode, size and time of the last write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// The device that the file system is on (`st_dev`).
    pub device: u64,
    /// The inode number.
    pub inode: u64,
    /// The size in bytes.
    pub size: u64,
    /// The time of the last write, in nanoseconds since 1970.
    pub mtime_ns: i128,
}

impl FileIdentity {
    /// The identity of an open file.
    pub(crate) fn of(metadata: &Metadata) -> Self {
        FileIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            mtime_ns: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
        }
    }

    /// In words, how the file that is there now differs from the one that was indexed.
    pub(crate) fn difference(&self, now: &FileIdentity) -> Option<String> {
        if (self.device, self.inode) != (now.device, now.inode) {
            Some("another file has taken its name since it was indexed".into())
        } else if self.size != now.size {
            Some(format!("it had {} bytes when it was indexed and has {} now", self.size, now.size))
        } else if self.mtime_ns != now.mtime_ns {
            Some("it was written to since it was indexed".into())
        } else {
            None
        }
    }
}

/// Opens `path` for reading, if it is a regular file. Never waits (as the open of a FIFO would).
pub(crate) fn open_regular(path: &Path, flags: i32) -> Result<(File, Metadata)> {
    open_with(path, flags).map_err(|error| match error {
        OpenError::Open(source) => Error::io(path, "cannot open the file", source),
        OpenError::Stat(source) => Error::io(path, "cannot read the file's status", source),
        OpenError::NotRegular(what) => {
            Error::new(ErrorKind::InvalidData, format!("it is {what}, not a regular file")).at(path)
        }
    })
}

/// Why a file could not be opened; `Open` keeps the error code, on which the choice of direct I/O depends.
#[derive(Debug)]
pub(crate) enum OpenError {
    Open(io::Error),
    Stat(io::Error),
    NotRegular(&'static str),
}

pub(crate) fn open_with(path: &Path, flags: i32) -> std::result::Result<(File, Metadata), OpenError> {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(OpenError::Open)?;
    let metadata = file.metadata().map_err(OpenError::Stat)?;
    let kind = metadata.file_type();
    if kind.is_file() {
        // It was there for the open alone, and cuFile takes no descriptor that has it.
        // SAFETY: the descriptor is open; no pointers are passed.
        let cleared = unsafe {
            let set = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
            set >= 0 && libc::fcntl(file.as_raw_fd(), libc::F_SETFL, set & !libc::O_NONBLOCK) == 0
        };
        return if cleared { Ok((file, metadata)) } else { Err(OpenError::Stat(io::Error::last_os_error())) };
    }
    Err(OpenError::NotRegular(if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_block_device() || kind.is_char_device() {
        "a device"
    } else {
        "a socket or another special file"
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_replaced_truncated_or_rewritten_file_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, b"12345678").unwrap();
        let id = |p: &Path| FileIdentity::of(&std::fs::metadata(p).unwrap());
        let before = id(&path);
        assert_eq!(before.difference(&id(&path)), None);

        let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all(b"x").unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert!(before.difference(&id(&path)).unwrap().contains("written to"));

        file.set_len(5).unwrap();
        assert!(before.difference(&id(&path)).unwrap().contains("8 bytes when it was indexed and has 5"));

        std::fs::write(dir.path().join("b"), b"12345678").unwrap();
        std::fs::rename(dir.path().join("b"), &path).unwrap();
        assert!(before.difference(&id(&path)).unwrap().contains("another file"));
    }

    #[test]
    fn special_files_are_named_and_a_fifo_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let name = CString::new(fifo.as_os_str().as_bytes()).unwrap();
        // SAFETY: `name` is a valid C string for the whole call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for (path, what) in
            [(fifo.as_path(), "a FIFO"), (dir.path(), "a directory"), (Path::new("/dev/zero"), "a device")]
        {
            let error = open_regular(path, 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(error.to_string().contains(what), "{error}");
            assert_eq!(error.path(), Some(path));
        }
    }
}
