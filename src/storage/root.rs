//! The folder below which every file of a dataset must lie, when one is set.
//!
//! A path is first related to the root by its words alone. What is left of it is opened by the kernel, in one call
//! (`openat2`) that follows no link out of the root, so that there is no moment at which a link could be swapped in.

use std::ffi::{CString, c_int};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use crate::{Error, ErrorKind, Result};

/// An open folder. It stays this folder whatever becomes of its name.
#[derive(Debug)]
pub(super) struct Root {
    folder: File,
    /// As the user named it, for errors.
    name: PathBuf,
    /// The current folder when the root was opened, where relative paths start.
    start: PathBuf,
    /// The root's absolute path as it was named, and the one with no link in it.
    prefixes: [PathBuf; 2],
}

/// Links are followed as long as they stay below; those of /proc, which jump anywhere, are not followed at all.
const STRICT: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS;

impl Root {
    /// Opens the folder, and makes sure that the kernel can open files below it.
    pub(super) fn open(name: &Path) -> Result<Root> {
        let folder = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
            .open(name)
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotADirectory => Error::argument("the root is not a folder").at(name),
                _ => Error::io(name, "cannot open the root", error),
            })?;
        // Not known in a folder that was removed; absolute paths can be related all the same.
        let start = std::env::current_dir().unwrap_or_default();
        let named = absolute(&start, name);
        let plain = fs::canonicalize(name).unwrap_or_else(|_| named.clone());
        let root = Root { folder, name: name.into(), start, prefixes: [named, plain] };
        root.probe().map_err(|error| root.error(name, "cannot open the root", error))?;
        Ok(root)
    }

    /// Whether it is the same folder, by whatever name, and relative paths start at the same place.
    pub(super) fn is(&self, other: &Root) -> bool {
        let identity = |root: &Root| root.folder.metadata().map(|it| (it.dev(), it.ino())).ok();
        let (this, that) = (identity(self), identity(other));
        this.is_some() && this == that && self.start == other.start
    }

    /// Opens `path` for reading. One that leads out of the root gets `EXDEV`, or `ELOOP` for a link of /proc;
    /// [`Root::error`] has words for them.
    pub(super) fn open_below(&self, path: &Path, flags: c_int) -> io::Result<File> {
        if path.as_os_str().is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        let rest = self.below(path).map_err(|_| io::Error::from_raw_os_error(libc::EXDEV))?;
        self.openat2(&rest, flags, STRICT)
    }

    /// What went wrong with `path`, in words.
    pub(super) fn error(&self, path: &Path, what: &str, error: io::Error) -> Error {
        let outside = |why: String| Error::new(ErrorKind::OutsideRoot, why).at(path);
        let rest = match self.below(path) {
            Ok(rest) => rest,
            Err(why) => return outside(why),
        };
        let root = self.name.display();
        match error.raw_os_error() {
            Some(libc::EXDEV) => outside(format!(
                "a symbolic link in it leads out of the root {root}, or is absolute, which is not followed below a root"
            )),
            Some(libc::ELOOP) if self.is_magic(&rest) => {
                outside(format!("a link of /proc in it may lead out of the root {root}"))
            }
            Some(libc::ENOSYS | libc::EPERM) if self.probe().is_err() => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "opening files below the root {root} needs openat2 (Linux 5.6), which is refused here"
                ),
            )
            .at(path)
            .caused_by(error),
            _ => Error::io(path, what, error),
        }
    }

    /// `path` relative to the root, by its words; or why it is not below it.
    fn below(&self, path: &Path) -> Result<PathBuf, String> {
        let whole = absolute(&self.start, path);
        let Some(rest) = self.prefixes.iter().find_map(|prefix| whole.strip_prefix(prefix).ok()) else {
            return Err(format!("it is not below the root {}", self.name.display()));
        };
        if rest.components().any(|part| part == Component::ParentDir) {
            // The kernel would let it pass as long as it stays below, but no dataset needs it.
            return Err(format!("it has a `..` below the root {}", self.name.display()));
        }
        Ok(if rest.as_os_str().is_empty() { ".".into() } else { rest.into() })
    }

    /// Whether the kernel lets this process use `openat2` at all.
    fn probe(&self) -> io::Result<()> {
        self.openat2(Path::new("."), libc::O_PATH | libc::O_DIRECTORY, STRICT).map(drop)
    }

    /// Whether `ELOOP` meant a link of /proc: without the flag against these there is another error or none.
    fn is_magic(&self, rest: &Path) -> bool {
        let found = self.openat2(rest, libc::O_PATH, libc::RESOLVE_BENEATH);
        found.err().and_then(|error| error.raw_os_error()) != Some(libc::ELOOP)
    }

    fn openat2(&self, rest: &Path, flags: c_int, resolve: u64) -> io::Result<File> {
        let rest = CString::new(rest.as_os_str().as_bytes())?;
        // SAFETY: three integers, for which zero is a valid value.
        let mut how: libc::open_how = unsafe { std::mem::zeroed() };
        // With O_PATH, openat2 refuses the flag for large files instead of ignoring it.
        let large = if flags & libc::O_PATH == 0 { libc::O_LARGEFILE } else { 0 };
        how.flags = (flags | large | libc::O_CLOEXEC) as u64;
        how.resolve = resolve;
        again(|| {
            // SAFETY: the folder is open, and the C string and `how`, whose size is told, live through the call.
            let fd = unsafe {
                libc::syscall(
                    libc::SYS_openat2,
                    self.folder.as_raw_fd(),
                    rest.as_ptr(),
                    &raw const how,
                    size_of::<libc::open_how>(),
                )
            };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
            Ok(unsafe { File::from_raw_fd(fd as RawFd) })
        })
    }
}

/// Repeats a call of `openat2`. The kernel gives up (`EAGAIN`) on a link with a `..` where something, anywhere on the
/// machine, was renamed or mounted at that moment: it cannot tell then whether the `..` stayed below.
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    const MOST: u32 = 1000;
    let mut times = 0;
    loop {
        match call() {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && times < MOST => {
                times += 1;
                std::thread::yield_now();
            }
            done => return done,
        }
    }
}

/// An absolute path for `path`, by its words. A `..` at the beginning goes up from `start`, which the kernel gave and
/// which so has no links. One behind a name stays: the name may be a link, and then `..` is not what it seems.
fn absolute(start: &Path, path: &Path) -> PathBuf {
    let mut whole = if path.is_absolute() { PathBuf::new() } else { start.to_path_buf() };
    let mut leading = path.is_relative();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if leading => {
                whole.pop();
            }
            part => {
                leading = false;
                whole.push(part);
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_path_is_related_to_the_root_by_its_words_or_by_its_plain_path() {
        let folder = tempfile::tempdir().unwrap();
        let plain = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir(plain.join("real")).unwrap();
        symlink("real", plain.join("link")).unwrap();
        let mut root = Root::open(&plain.join("link")).unwrap();
        root.start = plain.join("real/deep");
        let below = |path: &str| root.below(Path::new(path)).map(|rest| rest.display().to_string());
        let whole = |path: &str| below(&format!("{}/{path}", plain.display()));
        for (path, rest) in [("link", "."), ("link/", "."), ("link/a/./b", "a/b"), ("real/a", "a")] {
            assert_eq!(whole(path).as_deref(), Ok(rest), "{path}");
        }
        for (path, rest) in
            [("a", "deep/a"), ("./a", "deep/a"), ("../a", "a"), ("..", "."), ("../../link/a", "a")]
        {
            assert_eq!(below(path).as_deref(), Ok(rest), "{path}");
        }
        for path in ["", "linked/a", "reality", "/", "other/link/a", "x/../real/a"] {
            assert!(whole(path).unwrap_err().contains("not below the root"), "{path}");
        }
        assert!(below("../../a").unwrap_err().contains("not below the root"));
        for path in ["link/..", "link/../secret", "link/a/../b", "real/a/../../link/b"] {
            assert!(whole(path).unwrap_err().contains("`..`"), "{path}");
        }
        assert!(below("a/../b").unwrap_err().contains("`..`"));
    }

    #[test]
    fn a_root_named_with_dots_has_paths_that_are_named_alike_below_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        let root = Root::open(&folder.path().join("a/../a/b")).unwrap();
        for path in ["a/../a/b/c", "a/b/c"] {
            let path = fs::canonicalize(folder.path()).unwrap().join(path);
            assert_eq!(root.below(&path), Ok("c".into()));
        }
    }

    #[test]
    fn a_look_up_that_the_kernel_gave_up_is_repeated_but_not_for_ever() {
        let mut calls = 0;
        let mut after = |failures: u32, errno: i32| {
            calls = 0;
            let outcome = again(|| {
                calls += 1;
                if calls > failures { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
            });
            (outcome.map_err(|error| error.raw_os_error()), calls)
        };
        assert_eq!(after(50, libc::EAGAIN), (Ok(()), 51));
        assert_eq!(after(5000, libc::EINTR), (Ok(()), 5001));
        assert_eq!(after(u32::MAX, libc::EAGAIN), (Err(Some(libc::EAGAIN)), 1001));
        assert_eq!(after(1, libc::EXDEV), (Err(Some(libc::EXDEV)), 1));
    }

    #[test]
    fn a_link_that_goes_up_is_followed_while_other_files_are_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("links")).unwrap();
        for name in ["shard", "a"] {
            fs::write(path(name), b"12345678").unwrap();
        }
        // A longer way gives the renames more time to come in between.
        symlink("../links/".repeat(20) + "../shard", path("links/shard")).unwrap();
        let root = Root::open(folder.path()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    fs::rename(path("a"), path("b")).unwrap();
                    fs::rename(path("b"), path("a")).unwrap();
                }
            });
            let opened: Vec<_> = (0..2000).map(|_| root.open_below(&path("links/shard"), 0)).collect();
            done.store(true, Ordering::Relaxed);
            assert!(
                opened.into_iter().all(|file| file.is_ok_and(|file| file.metadata().unwrap().len() == 8))
            );
        });
    }

    #[test]
    fn a_name_that_is_a_file_and_a_link_out_by_turns_never_opens_what_is_outside() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("root")).unwrap();
        fs::write(path("root/inside"), b"inside").unwrap();
        fs::write(path("outside"), b"not inside").unwrap();
        let root = Root::open(&path("root")).unwrap();
        let turn = || {
            fs::hard_link(path("root/inside"), path("root/new")).unwrap();
            fs::rename(path("root/new"), path("root/a")).unwrap();
            symlink("../outside", path("root/new")).unwrap();
            fs::rename(path("root/new"), path("root/a")).unwrap();
        };
        turn();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    turn();
                }
            });
            let opened: Vec<_> = (0..500).map(|_| root.open_below(&path("root/a"), 0)).collect();
            done.store(true, Ordering::Relaxed);
            for file in opened {
                match file {
                    Ok(mut file) => assert_eq!(io::read_to_string(&mut file).unwrap(), "inside"),
                    Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EXDEV)),
                }
            }
        });
    }

    #[test]
    fn an_open_file_is_not_inherited_by_other_programs() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), b"1").unwrap();
        let root = Root::open(folder.path()).unwrap();
        let file = root.open_below(&folder.path().join("a"), 0).unwrap();
        for file in [&file, &root.folder] {
            // SAFETY: the descriptor is open; no pointers are passed.
            let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) };
            assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        }
    }
}
