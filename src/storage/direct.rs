//! Whether a file can be read around the page cache, and on which boundaries.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use crate::memory::HostMapping;

/// The boundaries that direct I/O on a file needs. Both are powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignment {
    /// Memory addresses are multiples of this many bytes.
    pub memory: u32,
    /// File offsets and lengths are multiples of this many bytes.
    pub offset: u32,
}

impl Alignment {
    /// What is assumed where neither the file system nor the block device says.
    pub const FALLBACK: Alignment = Alignment { memory: 4096, offset: 4096 };
}

/// Whether a file can be read directly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectIo {
    /// Yes, on these boundaries.
    Supported(Alignment),
    /// No, and why, in words.
    Unsupported(String),
}

/// Error codes by which a file system says "no direct I/O here". Every other code is a real failure.
pub(crate) fn refuses_direct(errno: i32) -> bool {
    errno == libc::EINVAL || errno == libc::EOPNOTSUPP
}

impl DirectIo {
    /// What file system, `statx` and block device say about an open file. This is a promise, not yet a proof.
    pub(crate) fn promised(file: &File) -> DirectIo {
        decide(file_system(file), statx_alignment(file), block_size(file))
    }

    /// Reads one block from a file that was opened with `O_DIRECT`: an open that succeeds proves nothing.
    /// The inner error is a read that failed for a reason other than a refusal.
    pub(crate) fn proven(file: &File, alignment: Alignment) -> io::Result<DirectIo> {
        let length = alignment.offset.max(4096) as usize;
        let align = alignment.memory.max(4096) as usize;
        let Ok(buffer) = HostMapping::new(length + align) else {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        };
        let start = buffer.as_ptr().align_offset(align);
        loop {
            // SAFETY: `start` is below `align` (a power of two above the page size divides or is divided by the
            // mapping's own alignment), so `start + length` lies within the mapping, which nobody else uses.
            let n = unsafe { libc::pread(file.as_raw_fd(), buffer.as_ptr().add(start).cast(), length, 0) };
            if n >= 0 {
                return Ok(DirectIo::Supported(alignment));
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(errno) if refuses_direct(errno) => {
                    return Ok(DirectIo::Unsupported(format!(
                        "the file system accepts O_DIRECT but refuses a direct read of {length} bytes: {error}"
                    )));
                }
                _ => return Err(error),
            }
        }
    }
}

/// File systems that keep their files in memory, by magic.
const IN_MEMORY: [(i64, &str); 3] =
    [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs"), (0x9584_58f6, "hugetlbfs")];

/// The name of the file system of an open file, if it keeps its files in memory.
pub(crate) fn memory_file_system(file: &File) -> Option<&'static str> {
    in_memory(file_system(file))
}

fn in_memory(magic: Option<i64>) -> Option<&'static str> {
    IN_MEMORY.iter().find(|(known, _)| magic == Some(*known)).map(|(_, name)| *name)
}

/// The rule, apart from where its facts come from: file-system magic, (memory, offset) of `statx`, and the
/// logical block size of the device.
fn decide(magic: Option<i64>, statx: Option<(u32, u32)>, block: Option<u32>) -> DirectIo {
    // New kernels accept O_DIRECT on these, at any alignment, and then copy from the page cache.
    if let Some(name) = in_memory(magic) {
        return DirectIo::Unsupported(format!(
            "{name} keeps its files in memory, there is no disk to read directly"
        ));
    }
    let alignment = match statx {
        Some((0, _) | (_, 0)) => {
            return DirectIo::Unsupported(
                "the file system says (statx) that it has no direct I/O for this file".into(),
            );
        }
        Some((memory, offset)) => Alignment { memory, offset },
        None => match block {
            Some(size) if size > 0 => Alignment { memory: size, offset: size },
            _ => Alignment::FALLBACK,
        },
    };
    if !alignment.memory.is_power_of_two() || !alignment.offset.is_power_of_two() {
        return DirectIo::Unsupported(format!(
            "its direct-I/O alignment (memory {}, offset {}) is not a power of two",
            alignment.memory, alignment.offset
        ));
    }
    DirectIo::Supported(alignment)
}

fn file_system(file: &File) -> Option<i64> {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the descriptor is open for the whole call, and `stat` has room for one `statfs`.
    let done = unsafe { libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) };
    // SAFETY: the call above succeeded and filled `stat` (all zeros is a valid value in any case).
    #[allow(clippy::unnecessary_cast, reason = "the type of f_type differs between C libraries")]
    (done == 0).then(|| unsafe { stat.assume_init() }.f_type as i64)
}

/// (memory, offset) alignment by `statx(STATX_DIOALIGN)`: Linux 6.1. `None` where kernel or file system do not say.
fn statx_alignment(file: &File) -> Option<(u32, u32)> {
    let mut stat = std::mem::MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the descriptor is open, the empty path with AT_EMPTY_PATH names it, and `stat` has room for one `statx`.
    let done: c_int = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            stat.as_mut_ptr(),
        )
    };
    if done != 0 {
        return None;
    }
    // SAFETY: the call above succeeded and filled `stat` (all zeros is a valid value in any case).
    let stat = unsafe { stat.assume_init() };
    (stat.stx_mask & libc::STATX_DIOALIGN != 0).then_some((stat.stx_dio_mem_align, stat.stx_dio_offset_align))
}

/// The logical block size of the device under a file, by sysfs. A partition has its queue one folder up.
fn block_size(file: &File) -> Option<u32> {
    let device = file.metadata().ok()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    ["queue", "../queue"].iter().find_map(|queue| {
        let text =
            std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/logical_block_size"))
                .ok()?;
        text.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_source_that_knows_decides_and_zero_means_no() {
        let yes = |memory, offset| DirectIo::Supported(Alignment { memory, offset });
        assert_eq!(decide(Some(0xef53), Some((4, 512)), Some(4096)), yes(4, 512));
        assert_eq!(decide(Some(0xef53), Some((65536, 65536)), None), yes(65536, 65536));
        assert_eq!(decide(None, None, Some(16384)), yes(16384, 16384));
        assert_eq!(decide(None, None, None), yes(4096, 4096));
        assert_eq!(decide(None, None, Some(0)), yes(4096, 4096));
        for zero in [(0, 0), (0, 512), (512, 0)] {
            assert!(
                matches!(decide(None, Some(zero), Some(512)), DirectIo::Unsupported(why) if why.contains("statx"))
            );
        }
        assert!(
            matches!(decide(None, Some((4, 3000)), None), DirectIo::Unsupported(why) if why.contains("3000"))
        );
    }

    #[test]
    fn file_systems_in_memory_are_never_called_direct() {
        for magic in [0x0102_1994, 0x8584_58f6, 0x9584_58f6] {
            assert!(
                matches!(decide(Some(magic), Some((1, 1)), None), DirectIo::Unsupported(why) if why.contains("memory"))
            );
        }
    }

    #[test]
    fn only_a_refusal_is_taken_for_a_refusal() {
        assert!(refuses_direct(libc::EINVAL) && refuses_direct(libc::EOPNOTSUPP));
        for errno in [libc::EACCES, libc::EIO, libc::ENOENT, libc::ESTALE, libc::ENOMEM, libc::EPERM] {
            assert!(!refuses_direct(errno));
        }
    }
}
