//! Memory of the caller that may be gone: read and written through the kernel, which says so instead of crashing.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A pipe, whose two ends copy between memory that may fault and memory of our own.
#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    fn new() -> Option<Pipe> {
        let mut ends = [0; 2];
        // SAFETY: pipe2 fills in two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return None;
        }
        // SAFETY: two fresh descriptors that nobody else owns.
        Some(unsafe { Pipe { read: OwnedFd::from_raw_fd(ends[0]), write: OwnedFd::from_raw_fd(ends[1]) } })
    }
}

/// The eight bytes at an address; none if it is null or not mapped.
pub(crate) fn load(address: usize) -> Option<u64> {
    let pipe = Pipe::new()?;
    let mut value = 0_u64;
    // SAFETY: the kernel checks the address, and answers EFAULT where it cannot be read.
    if unsafe { libc::write(pipe.write.as_raw_fd(), address as *const _, 8) } != 8 {
        return None;
    }
    // SAFETY: eight bytes of our own.
    let read = unsafe { libc::read(pipe.read.as_raw_fd(), (&raw mut value).cast(), 8) };
    (read == 8).then_some(value)
}

/// Stores eight bytes; false if the address is null or cannot be written.
pub(crate) fn store(address: usize, value: u64) -> bool {
    let Some(pipe) = Pipe::new() else { return false };
    // SAFETY: eight bytes of our own.
    if unsafe { libc::write(pipe.write.as_raw_fd(), (&raw const value).cast(), 8) } != 8 {
        return false;
    }
    // SAFETY: the kernel checks the address; that nobody else uses these bytes now is the caller's contract with
    // cuFile, whose result they are to hold.
    unsafe { libc::read(pipe.read.as_raw_fd(), address as *mut _, 8) == 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mapped_is_none() {
        let mut value = 7_u64;
        let address = &raw mut value as usize;
        assert_eq!(load(address), Some(7));
        assert!(store(address, 9));
        assert_eq!(load(address), Some(9));
        assert_eq!(load(0), None);
        assert!(!store(8, 1));
    }
}
