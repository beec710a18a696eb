//! Page-aligned host memory for I/O.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

use crate::{Error, ErrorKind, Result};

const HUGE_PAGE: usize = 2 << 20;

/// An anonymous private mapping: page-aligned (aligned to 2 MiB and backed by huge pages, where the kernel has
/// them, from 2 MiB on), filled with zeros, and present in memory from the start, so that the first pass over it
/// costs no page faults.
///
/// Access goes through raw pointers, since kernel and threads write to disjoint parts of it at the same time; who
/// may touch which part is the business of the ring and the staging chunks.
#[derive(Debug)]
pub(crate) struct HostMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory that any thread may use; it hands out raw pointers only, whose users prove
// for themselves that they do not race.
unsafe impl Send for HostMapping {}
// SAFETY: as above.
unsafe impl Sync for HostMapping {}

impl HostMapping {
    /// Maps `len` bytes (rounded up to whole pages), touched in parallel.
    pub(crate) fn new(len: usize) -> Result<HostMapping> {
        let refuse = |what: &str, error: io::Error| {
            Error::new(ErrorKind::OutOfMemory, format!("{what} {len} bytes of host memory")).caused_by(error)
        };
        let page = 4096;
        let len = len.max(1).checked_next_multiple_of(page).unwrap_or(usize::MAX & !(page - 1));
        let spare = if len >= HUGE_PAGE { HUGE_PAGE } else { 0 };
        let Some(whole) = len.checked_add(spare) else {
            return Err(refuse("cannot map", io::Error::from_raw_os_error(libc::ENOMEM)));
        };
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no existing memory.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                whole,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let Some(map) = NonNull::new(map.cast::<u8>()).filter(|_| map != libc::MAP_FAILED) else {
            return Err(refuse("cannot map", io::Error::last_os_error()));
        };
        let head = if spare > 0 { map.as_ptr().align_offset(HUGE_PAGE).min(spare) } else { 0 };
        // SAFETY: `head <= spare`, so head + len lies within the mapping; the parts before and after it are whole
        // pages that nobody points to, and are given back.
        let start = unsafe {
            let start = map.add(head);
            if head > 0 {
                libc::munmap(map.as_ptr().cast(), head);
            }
            if spare > head {
                libc::munmap(start.add(len).as_ptr().cast(), spare - head);
            }
            start
        };
        let mapping = HostMapping { start, len };
        if spare > 0 {
            // SAFETY: the range is this mapping; advice does not change its contents. A refusal only costs speed.
            unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
        mapping.touch().map_err(|error| refuse("cannot get", error))?;
        Ok(mapping)
    }

    /// Makes every page present, by several threads where there is enough to do.
    fn touch(&self) -> io::Result<()> {
        const PART: usize = 64 << 20;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let parts = self.len.div_ceil(PART).min(cores).max(1);
        let step = self.len.div_ceil(parts).next_multiple_of(HUGE_PAGE);
        let touch = |from: usize| populate(self.as_ptr().wrapping_add(from), step.min(self.len - from));
        if parts == 1 {
            return populate(self.as_ptr(), self.len);
        }
        std::thread::scope(|scope| {
            let touch = &touch;
            let threads: Vec<_> =
                (0..self.len).step_by(step).map(|from| scope.spawn(move || touch(from))).collect();
            // `populate` has no way to panic, and a thread that did would only leave pages to be touched later.
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
        })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Makes whole pages present and writable without changing their contents.
fn populate(start: *mut u8, len: usize) -> io::Result<()> {
    const MADV_POPULATE_WRITE: i32 = 23; // Linux 5.14
    loop {
        // SAFETY: the range is part of a live private mapping of this module; populating keeps its contents.
        if unsafe { libc::madvise(start.cast::<c_void>(), len, MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // An older kernel: the pages come at their first use instead.
            Some(libc::EINVAL) => return Ok(()),
            _ => return Err(error),
        }
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        // SAFETY: start and len are those of a mapping made in `new`; whoever owns it has proven that neither the
        // kernel nor a thread uses it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_aligned_zeroed_and_writable_to_its_last_byte() {
        for len in [1, 4096, 4097, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1, 200 << 20] {
            let mapping = HostMapping::new(len).unwrap();
            assert!(mapping.len() >= len && mapping.len() < len + 4096);
            assert_eq!(mapping.as_ptr() as usize % if len >= HUGE_PAGE { HUGE_PAGE } else { 4096 }, 0);
            // SAFETY: both bytes lie in the mapping, which only this test uses.
            unsafe {
                assert_eq!((*mapping.as_ptr(), *mapping.as_ptr().add(mapping.len() - 1)), (0, 0));
                *mapping.as_ptr().add(mapping.len() - 1) = 1;
            }
        }
    }

    #[test]
    fn memory_that_no_machine_has_is_an_error_of_its_own_kind() {
        for len in [usize::MAX, usize::MAX / 2, 1 << 60] {
            assert_eq!(HostMapping::new(len).unwrap_err().kind(), ErrorKind::OutOfMemory);
        }
    }
}
