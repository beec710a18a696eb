//! What opens the files of a dataset: any path, or only what lies below a root.

use std::ffi::{CStr, OsStr, OsString, c_int};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use super::root::Root;
use super::within::{Visit, Visits};
use crate::{Error, ErrorKind, Result};

/// Opens, looks up and lists, wherever a path leads (the default), or nowhere else than below a root.
///
/// Everything that touches the files of a dataset by their names goes through the dataset's opener.
#[derive(Debug, Clone, Default)]
pub(crate) struct Opener {
    root: Option<Arc<Root>>,
    /// What it looks at is told here.
    visits: Visits,
}

/// Why a file could not be opened; `Open` keeps the error code, on which the choice of direct I/O depends.
#[derive(Debug)]
pub(crate) enum OpenError {
    Open(io::Error),
    Stat(io::Error),
    NotRegular(&'static str),
}

impl Opener {
    /// An opener of what lies below `root`, if there is one, else of everything.
    ///
    /// # Errors
    /// The root cannot be opened, is not a folder, or the kernel cannot open files below it.
    pub(crate) fn below(root: Option<&Path>, visits: Visits) -> Result<Opener> {
        let open = |root| {
            let _visit = visits.begin(root);
            Root::open(root)
        };
        let root = root.map(open).transpose()?.map(Arc::new);
        Ok(Opener { root, visits })
    }

    /// The same, for somebody who may lose patience.
    pub(crate) fn watched(&self, visits: Visits) -> Opener {
        Opener { visits, ..self.clone() }
    }

    /// The same, for when nobody loses patience any more.
    pub(crate) fn unwatched(self) -> Opener {
        Opener { visits: Visits::default(), ..self }
    }

    /// Says that `path` is looked at, if somebody may lose patience, until what is returned is dropped. What the opener does
    /// itself it says itself.
    pub(crate) fn visit(&self, path: &Path) -> Visit<'_> {
        self.visits.begin(path)
    }

    /// Whether somebody may lose patience.
    pub(crate) fn is_watched(&self) -> bool {
        self.visits.are_watched()
    }

    /// Whether there are files that it does not open.
    pub(crate) fn has_root(&self) -> bool {
        self.root.is_some()
    }

    /// Whether the other opens the same files.
    pub(crate) fn is(&self, other: &Opener) -> bool {
        match (&self.root, &other.root) {
            (None, None) => true,
            (Some(this), Some(that)) => this.is(that),
            _ => false,
        }
    }

    /// Opens `path` for reading, if it is a regular file. Never waits (as the open of a FIFO would).
    pub(crate) fn open_regular(&self, path: &Path, flags: c_int) -> Result<(File, Metadata)> {
        self.open_with(path, flags).map_err(|error| self.open_error(path, error))
    }

    /// As `open_regular`, for callers to whom the error code matters.
    pub(crate) fn open_with(
        &self,
        path: &Path,
        flags: c_int,
    ) -> std::result::Result<(File, Metadata), OpenError> {
        let _visit = self.visit(path);
        let flags = flags | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = self.open(path, flags).map_err(OpenError::Open)?;
        let metadata = file.metadata().map_err(OpenError::Stat)?;
        let kind = metadata.file_type();
        if kind.is_file() {
            // It was there for the open alone, and cuFile takes no descriptor that has it.
            // SAFETY: the descriptor is open; no pointers are passed.
            let cleared = unsafe {
                let set = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
                set >= 0 && libc::fcntl(file.as_raw_fd(), libc::F_SETFL, set & !libc::O_NONBLOCK) == 0
            };
            return if cleared {
                Ok((file, metadata))
            } else {
                Err(OpenError::Stat(io::Error::last_os_error()))
            };
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

    /// What an error of `open_with` for `path` is in words.
    pub(crate) fn open_error(&self, path: &Path, error: OpenError) -> Error {
        match error {
            OpenError::Open(source) => self.error(path, "cannot open the file", source),
            OpenError::Stat(source) => Error::io(path, "cannot read the file's status", source),
            OpenError::NotRegular(what) => {
                Error::new(ErrorKind::InvalidData, format!("it is {what}, not a regular file")).at(path)
            }
        }
    }

    /// The status of what `path` leads to. [`Opener::error`] has words for the error.
    pub(crate) fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let _visit = self.visit(path);
        match &self.root {
            None => fs::metadata(path),
            Some(root) => root.open_below(path, libc::O_PATH)?.metadata(),
        }
    }

    /// The status of `path` itself, where it is a link. [`Opener::error`] has words for the error.
    pub(crate) fn link_metadata(&self, path: &Path) -> io::Result<Metadata> {
        let _visit = self.visit(path);
        match &self.root {
            None => fs::symlink_metadata(path),
            Some(root) => root.open_below(path, libc::O_PATH | libc::O_NOFOLLOW)?.metadata(),
        }
    }

    /// Opens what `path` leads to as a place alone (`O_PATH`): it cannot be read, and nobody has to allow it.
    pub(crate) fn open_as_place(&self, path: &Path) -> io::Result<File> {
        let _visit = self.visit(path);
        self.open(path, libc::O_PATH)
    }

    /// Whether `path` leads to something. That it leads out of the root is an error: it is not as if it were missing.
    pub(crate) fn is_there(&self, path: &Path) -> Result<bool> {
        match self.metadata(path).map_err(|error| self.error(path, "cannot read its status", error)) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::OutsideRoot | ErrorKind::Unavailable) => {
                Err(error)
            }
            Err(_) => Ok(false),
        }
    }

    /// The names in a folder, in no order. [`Opener::error`] has words for the error.
    pub(crate) fn names(&self, folder: &Path) -> io::Result<Vec<OsString>> {
        let _visit = self.visit(folder);
        names_in(self.open(folder, libc::O_DIRECTORY)?)
    }

    /// What an error of one of the above for `path` is in words.
    pub(crate) fn error(&self, path: &Path, what: &str, error: io::Error) -> Error {
        match &self.root {
            None => Error::io(path, what, error),
            Some(root) => root.error(path, what, error),
        }
    }

    fn open(&self, path: &Path, flags: c_int) -> io::Result<File> {
        let open = || match &self.root {
            None => fs::OpenOptions::new().read(true).custom_flags(flags).open(path),
            Some(root) => root.open_below(path, flags),
        };
        match open() {
            // What the name led to has just been replaced on the server.
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => open(),
            opened => opened,
        }
    }
}

/// Looks at a file that it opens, and once more if a server says that it knows the open file no more.
pub(crate) fn twice_if_stale<T>(mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let stale = |error: &Error| {
        let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
        source.is_some_and(|source| source.raw_os_error() == Some(libc::ESTALE))
    };
    match look() {
        Err(error) if stale(&error) => look(),
        looked => looked,
    }
}

/// The names in an open folder. The standard library lists a folder by its path only, which may by now be another's.
fn names_in(folder: File) -> io::Result<Vec<OsString>> {
    struct Stream(*mut libc::DIR);
    impl Drop for Stream {
        fn drop(&mut self) {
            // SAFETY: the stream is open, and nothing uses it any more.
            unsafe { libc::closedir(self.0) };
        }
    }

    // SAFETY: the descriptor is open.
    let stream = unsafe { libc::fdopendir(folder.as_raw_fd()) };
    if stream.is_null() {
        return Err(io::Error::last_os_error());
    }
    // The stream closes it.
    let _ = folder.into_raw_fd();
    let stream = Stream(stream);
    let mut names = Vec::new();
    loop {
        // SAFETY: the address is that of this thread's errno, which alone tells an error from the end.
        unsafe { *libc::__errno_location() = 0 };
        // SAFETY: the stream is open, and only this thread uses it.
        let entry = unsafe { libc::readdir64(stream.0) };
        if entry.is_null() {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(0) { Ok(names) } else { Err(error) };
        }
        // SAFETY: an entry holds its name as a C string, and stays as it is until the next call.
        let name = unsafe { CStr::from_ptr((&raw const (*entry).d_name).cast()) }.to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_os_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    /// Unrestricted, and below the root of the file system.
    fn openers() -> [Opener; 2] {
        [Opener::default(), Opener::below(Some(Path::new("/")), Visits::default()).unwrap()]
    }

    #[test]
    fn special_files_are_named_and_a_fifo_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let name = CString::new(fifo.as_os_str().as_bytes()).unwrap();
        // SAFETY: `name` is a valid C string for the whole call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for opener in openers() {
            for (path, what) in [
                (fifo.as_path(), "a FIFO"),
                (dir.path(), "a directory"),
                (Path::new("/dev/zero"), "a device"),
            ] {
                let error = opener.open_regular(path, 0).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidData);
                assert!(error.to_string().contains(what), "{error}");
                assert_eq!(error.path(), Some(path));
            }
        }
    }

    #[test]
    fn a_folder_is_listed_whole_and_what_is_no_folder_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut expected: Vec<_> = (0..1000).map(|i| OsString::from(format!("{i:0200}"))).collect();
        expected.extend([".hidden".into(), OsStr::from_bytes(b"\xff").to_os_string()]);
        for name in &expected {
            File::create(dir.path().join(name)).unwrap();
        }
        expected.sort();
        for opener in openers() {
            let mut names = opener.names(dir.path()).unwrap();
            names.sort();
            assert_eq!(names, expected);
            let error = opener.names(&dir.path().join(".hidden")).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
            let error = opener.names(&dir.path().join("nothing")).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn an_opened_file_waits_as_files_do_whatever_the_open_needed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, b"1").unwrap();
        for opener in openers() {
            let (file, _) = opener.open_regular(&path, 0).unwrap();
            // SAFETY: the descriptor is open; no pointers are passed.
            let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
            assert_eq!(flags & (libc::O_NONBLOCK | libc::O_ACCMODE), libc::O_RDONLY);
        }
    }

    #[test]
    fn a_root_that_is_no_folder_or_not_there_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"1").unwrap();
        let error = Opener::below(Some(&file), Visits::default()).unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::InvalidArgument, Some(&*file)));
        assert!(error.to_string().contains("not a folder"), "{error}");
        let nothing = dir.path().join("nothing");
        let error = Opener::below(Some(&nothing), Visits::default()).unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::NotFound, Some(&*nothing)));
    }
}
