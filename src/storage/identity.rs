//! Which file a path meant when it was indexed, so that another file under the same name is noticed.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::path::Path;

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
}
