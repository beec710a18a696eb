//! The file in which the loaders of one job on one host find each other.
//!
//! It is a row of slots, one per loader. A slot belongs to whoever holds the lock on its byte, and its content counts
//! only as long as someone does; the kernel drops the locks of a process that dies, in whatever way and in whatever pid
//! namespace, so nothing stale is ever believed. (A child that it forked, and that runs no other program, has them too and
//! keeps them.) The locks are those of open file descriptions, which two loaders of one process do not share. Another
//! byte is the lock under which slots are looked at, taken and given back.

use std::ffi::{CStr, CString, c_int, c_short};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The size of a slot in bytes, which is the most that a loader can say about itself.
pub(super) const SLOT_BYTES: usize = 4096;
/// More loaders than any host has in one job. A file that someone made larger is read no further.
const MAX_SLOTS: u64 = 4096;
/// The byte of the lock for all slots, past the content; the locks of the slots follow.
const TABLE_LOCK: i64 = 1 << 30;
/// Files of the registry are named so, and then by 32 hexadecimal digits; any other file in the folder is not ours.
pub(super) const PREFIX: &str = "ranks-";
/// So many other files are looked at in search of those that killed jobs left behind.
const MAX_SWEPT: usize = 64;

/// A folder that nobody else can write to.
#[derive(Debug)]
pub(super) struct Folder {
    dir: File,
    path: PathBuf,
}

impl Folder {
    /// Opens `gpufeed-<uid>` in `base`, and makes it if it is missing. The error is a reason, in words.
    pub(super) fn open(base: &Path) -> Result<Folder, String> {
        // SAFETY: it has no arguments and cannot fail.
        let user = unsafe { libc::geteuid() };
        let path = base.join(format!("gpufeed-{user}"));
        let failed = |what: &str, error: io::Error| format!("{}: {what}: {error}", path.display());
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("cannot make the folder", error));
            }
            _ => {}
        }
        // Anyone may have made it, in a base that is open to all; so it is looked at after it was opened.
        let dir = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
            .open(&path)
            .map_err(|error| failed("cannot open it as a folder", error))?;
        let status = dir.metadata().map_err(|error| failed("cannot read its status", error))?;
        if status.uid() != user {
            return Err(format!("{}: it belongs to user {}", path.display(), status.uid()));
        }
        if status.mode() & 0o077 != 0 {
            return Err(format!(
                "{}: it is open to other users (mode {:o})",
                path.display(),
                status.mode() & 0o7777
            ));
        }
        Ok(Folder { dir, path })
    }

    fn open_file(&self, name: &CStr, flags: c_int) -> io::Result<File> {
        let flags = flags | libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the folder's descriptor is open and `name` ends with a NUL; both live through the call.
        let fd = unsafe { libc::openat(self.dir.as_raw_fd(), name.as_ptr(), flags, 0o600 as libc::mode_t) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above has opened it, and nobody else knows it.
        let file = unsafe { File::from_raw_fd(fd) };
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        Ok(file)
    }

    /// Whether `name` means this file still.
    fn names(&self, name: &CStr, file: &File) -> bool {
        let is = |a: &std::fs::Metadata, b: &std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let there = self.open_file(name, 0).and_then(|there| there.metadata());
        there.ok().zip(file.metadata().ok()).is_some_and(|(there, here)| is(&there, &here))
    }

    fn remove(&self, name: &CStr) {
        // SAFETY: the folder's descriptor is open and `name` ends with a NUL; both live through the call. A file that
        // cannot be removed does no harm: nothing in it counts.
        unsafe { libc::unlinkat(self.dir.as_raw_fd(), name.as_ptr(), 0) };
    }

    /// Removes files that no living process uses: a job that was killed as a whole had nobody to do it.
    pub(super) fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return };
        let ours = |name: &[u8]| {
            let digits = name.strip_prefix(PREFIX.as_bytes());
            digits.is_some_and(|digits| digits.len() == 32 && digits.iter().all(u8::is_ascii_hexdigit))
        };
        for entry in entries.take(MAX_SWEPT).flatten().filter(|entry| ours(entry.file_name().as_bytes())) {
            let Ok(name) = CString::new(entry.file_name().as_bytes()) else { continue };
            let Ok(file) = self.open_file(&name, 0) else { continue };
            let table = Table { folder: self, name: &name, file: &file };
            if table.lock(Duration::ZERO).is_ok_and(|locked| locked) {
                table.remove_unless_used();
                table.unlock();
            }
        }
    }
}

/// The file of a job, with its place.
#[derive(Debug)]
pub(super) struct Registry {
    folder: Folder,
    name: CString,
    file: File,
}

impl Registry {
    /// Opens the file and makes it if it is missing. The error is a reason, in words.
    pub(super) fn open(folder: Folder, name: &str) -> Result<Registry, String> {
        let path = folder.path.join(name);
        let name = CString::new(name).map_err(|_| "its name has a zero byte".to_string())?;
        match folder.open_file(&name, libc::O_CREAT) {
            Ok(file) => Ok(Registry { folder, name, file }),
            Err(error) => Err(format!("{}: cannot open the file: {error}", path.display())),
        }
    }

    /// Runs `work` alone. The error is a reason, in words; it takes no longer than about `patience` to come.
    pub(super) fn alone<T>(
        &mut self,
        patience: Duration,
        work: impl FnOnce(&Table<'_>) -> T,
    ) -> Result<T, String> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let table = Table { folder: &self.folder, name: &self.name, file: &self.file };
            match table.lock(left) {
                Ok(true) => {}
                Ok(false) => return Err(self.reason("it stayed locked by another process")),
                Err(error) => return Err(self.reason(&format!("cannot lock it: {error}"))),
            }
            // The last one out may have removed the file between our opening and locking it.
            if self.folder.names(&self.name, &self.file) {
                let done = work(&table);
                table.unlock();
                return Ok(done);
            }
            if left.is_zero() {
                return Err(self.reason("it was removed again and again"));
            }
            match self.folder.open_file(&self.name, libc::O_CREAT) {
                Ok(file) => self.file = file,
                Err(error) => return Err(self.reason(&format!("cannot open the file: {error}"))),
            }
        }
    }

    /// Gives a slot back without waiting for anyone.
    pub(super) fn release(&self, slot: u64) {
        // A lock that cannot be given back goes with the descriptor.
        let _ = set_lock(&self.file, libc::F_UNLCK, slot_lock(slot));
    }

    fn reason(&self, what: &str) -> String {
        format!("{}: {what}", self.folder.path.join(self.name.to_string_lossy().as_ref()).display())
    }
}

/// The slots, to whoever is alone with them.
#[derive(Debug)]
pub(super) struct Table<'a> {
    folder: &'a Folder,
    name: &'a CStr,
    file: &'a File,
}

impl Table<'_> {
    /// What the living others have in their slots, where it can be read.
    pub(super) fn others(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        for slot in 0..self.slots()? {
            if self.is_held(slot)? {
                all.push(self.read(slot)?);
            }
        }
        Ok(all)
    }

    /// Takes a free slot and writes `content`, which fits into it.
    pub(super) fn take(&self, content: &[u8]) -> io::Result<u64> {
        debug_assert!(content.len() <= SLOT_BYTES);
        for slot in 0..MAX_SLOTS {
            if set_lock(self.file, libc::F_WRLCK, slot_lock(slot))? {
                let mut padded = content.to_vec();
                padded.resize(SLOT_BYTES, 0);
                return match self.file.write_all_at(&padded, slot * SLOT_BYTES as u64) {
                    Ok(()) => Ok(slot),
                    Err(error) => {
                        set_lock(self.file, libc::F_UNLCK, slot_lock(slot))?;
                        Err(error)
                    }
                };
            }
        }
        Err(io::Error::other(format!("all of its {MAX_SLOTS} slots are taken")))
    }

    /// Gives a slot back; the last one removes the file.
    pub(super) fn leave(&self, slot: u64) {
        let _ = set_lock(self.file, libc::F_UNLCK, slot_lock(slot));
        self.remove_unless_used();
    }

    fn remove_unless_used(&self) {
        let unused = || -> io::Result<bool> {
            for slot in 0..self.slots()? {
                if self.is_held(slot)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        if unused().is_ok_and(|unused| unused) && self.folder.names(self.name, self.file) {
            self.folder.remove(self.name);
        }
    }

    fn slots(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len().div_ceil(SLOT_BYTES as u64).min(MAX_SLOTS))
    }

    /// Whether anyone but this open file holds the slot.
    fn is_held(&self, slot: u64) -> io::Result<bool> {
        let mut lock = lock_of(libc::F_WRLCK, slot_lock(slot));
        // SAFETY: the descriptor is open, and `lock` is one `flock` that the kernel reads and writes.
        if unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(c_int::from(lock.l_type) != libc::F_UNLCK)
    }

    fn read(&self, slot: u64) -> io::Result<Vec<u8>> {
        let mut content = vec![0; SLOT_BYTES];
        let mut filled = 0;
        while filled < SLOT_BYTES {
            match self.file.read_at(&mut content[filled..], slot * SLOT_BYTES as u64 + filled as u64)? {
                0 => break,
                n => filled += n,
            }
        }
        let end = content.iter().position(|byte| *byte == 0).unwrap_or(SLOT_BYTES);
        content.truncate(end);
        Ok(content)
    }

    /// Whether the lock for all slots was had in time. A blocking call would have no end if its holder is stopped.
    fn lock(&self, patience: Duration) -> io::Result<bool> {
        let end = Instant::now() + patience;
        let mut pause = Duration::from_micros(100);
        while !set_lock(self.file, libc::F_WRLCK, TABLE_LOCK)? {
            if Instant::now() >= end {
                return Ok(false);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        }
        Ok(true)
    }

    /// By a call of its own: a forked child may keep the open file, and with it every lock, for as long as it lives.
    fn unlock(&self) {
        let _ = set_lock(self.file, libc::F_UNLCK, TABLE_LOCK);
    }
}

fn slot_lock(slot: u64) -> i64 {
    TABLE_LOCK + 1 + slot as i64
}

fn lock_of(kind: c_int, byte: i64) -> libc::flock {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as c_short;
    lock.l_whence = libc::SEEK_SET as c_short;
    lock.l_start = byte as libc::off_t;
    lock.l_len = 1;
    lock
}

/// Sets or clears the lock on one byte without waiting; `false` if another open file has it.
fn set_lock(file: &File, kind: c_int, byte: i64) -> io::Result<bool> {
    let lock = lock_of(kind, byte);
    // SAFETY: the descriptor is open, and `lock` is one `flock` that the kernel reads.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}
