//! How much of a file is in the page cache, and how to get it out of there.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::opener::Opener;
use crate::{Error, Result};

/// How much of a file range is in the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Residency {
    /// Pages of the range that are in the page cache.
    pub cached_pages: u64,
    /// Pages of the range.
    pub pages: u64,
}

impl Residency {
    /// The cached share, from 0 to 1; 0 for an empty range.
    pub fn fraction(&self) -> f64 {
        if self.pages == 0 { 0.0 } else { self.cached_pages as f64 / self.pages as f64 }
    }
}

impl std::ops::AddAssign for Residency {
    fn add_assign(&mut self, other: Self) {
        self.cached_pages += other.cached_pages;
        self.pages += other.pages;
    }
}

/// The page-cache residency of a whole file. Reads none of it.
///
/// Uses `cachestat` (Linux 6.5), else `mmap` and `mincore`.
///
/// # Errors
/// The file cannot be opened, or the kernel does not tell: `cachestat` answers only to who owns the file or may
/// write it.
pub fn residency(path: impl AsRef<Path>) -> Result<Residency> {
    residency_by(&Opener::default(), path.as_ref())
}

/// The page-cache residency of a whole file that `opener` opens.
pub(crate) fn residency_by(opener: &Opener, path: &Path) -> Result<Residency> {
    let (file, metadata) = opener.open_regular(path, 0)?;
    residency_of(&file, 0..metadata.len())
        .map_err(|e| Error::io(path, "cannot read the page-cache residency", e))
}

/// Asks the kernel to drop a file's clean pages from the page cache (`POSIX_FADV_DONTNEED`).
///
/// Dirty or mapped pages stay; [`residency`] tells what is left.
///
/// # Errors
/// The file cannot be opened, or the kernel refuses.
pub fn evict(path: impl AsRef<Path>) -> Result<()> {
    evict_by(&Opener::default(), path.as_ref())
}

/// As [`evict`], for a file that `opener` opens.
pub(crate) fn evict_by(opener: &Opener, path: &Path) -> Result<()> {
    let (file, _) = opener.open_regular(path, 0)?;
    // SAFETY: the descriptor is open for the whole call; no memory is passed.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        errno => Err(Error::io(path, "cannot drop its cached pages", io::Error::from_raw_os_error(errno))),
    }
}

pub(crate) fn residency_of(file: &File, range: Range<u64>) -> io::Result<Residency> {
    if range.is_empty() {
        return Ok(Residency::default());
    }
    by_cachestat(file, &range).or_else(|error| match error.raw_os_error() {
        Some(libc::ENOSYS) if may_ask(file) => by_mincore(file, &range),
        _ => Err(error),
    })
}

/// Whether `mincore` tells this process the truth. To one that neither owns nor may write the file, the kernel
/// answers that everything is resident (`cachestat` refuses with EPERM instead).
fn may_ask(file: &File) -> bool {
    // SAFETY: takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    user == 0
        || file.metadata().is_ok_and(|m| m.uid() == user)
        // SAFETY: the descriptor is open, and the empty path with AT_EMPTY_PATH names it.
        || unsafe { libc::faccessat(file.as_raw_fd(), c"".as_ptr(), libc::W_OK, libc::AT_EMPTY_PATH) } == 0
}

fn page_size() -> u64 {
    // SAFETY: sysconf takes no pointers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

fn pages(range: &Range<u64>) -> u64 {
    let page = page_size();
    range.end.div_ceil(page) - range.start / page
}

fn by_cachestat(file: &File, range: &Range<u64>) -> io::Result<Residency> {
    const SYS_CACHESTAT: libc::c_long = 451; // the same number on every architecture
    #[repr(C)]
    struct CachestatRange {
        offset: u64,
        length: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Cachestat {
        cache: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    let asked = CachestatRange { offset: range.start, length: range.end - range.start };
    let mut found = Cachestat::default();
    // SAFETY: the descriptor is open, and both structs have the kernel's layout and live through the call.
    let done = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const asked, &raw mut found, 0) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let pages = pages(range);
    // A large folio that reaches beyond the range is counted whole by some kernels.
    Ok(Residency { cached_pages: found.cache.min(pages), pages })
}

fn by_mincore(file: &File, range: &Range<u64>) -> io::Result<Residency> {
    const WINDOW: u64 = 1 << 30;
    let page = page_size();
    let mut total = Residency::default();
    let mut start = range.start / page * page;
    let mut seen = Vec::new();
    while start < range.end {
        let length = (range.end - start).min(WINDOW);
        let count = length.div_ceil(page);
        seen.resize(count as usize, 0u8);
        // SAFETY: a fresh mapping of an open file; it is never read through, only asked about, and unmapped below.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length as usize,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                start as libc::off_t,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `map` is a mapping of `length` bytes, and `seen` has one byte for each of its pages.
        let done = unsafe { libc::mincore(map, length as usize, seen.as_mut_ptr().cast()) };
        let error = io::Error::last_os_error();
        // SAFETY: `map` and `length` are those of the mapping made above, and nothing points into it.
        unsafe { libc::munmap(map, length as usize) };
        if done != 0 {
            return Err(error);
        }
        total += Residency { cached_pages: seen.iter().map(|b| u64::from(b & 1)).sum(), pages: count };
        start += length;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_just_written_is_resident_and_gone_after_eviction() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("f");
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![7u8; 1_000_001]).unwrap();
        file.sync_all().unwrap();
        let full = residency(&path).unwrap();
        assert_eq!((full.cached_pages, full.pages), (245, 245));
        let open = File::open(&path).unwrap();
        assert_eq!(by_mincore(&open, &(0..1_000_001)).unwrap(), full);
        evict(&path).unwrap();
        assert_eq!(residency(&path).unwrap().cached_pages, 0);
        assert_eq!(by_mincore(&open, &(0..1_000_001)).unwrap().cached_pages, 0);
    }

    #[test]
    fn an_empty_file_has_no_pages_and_no_nan() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        File::create(&path).unwrap();
        let none = residency(&path).unwrap();
        assert_eq!(none, Residency::default());
        assert_eq!(none.fraction(), 0.0);
    }
}
