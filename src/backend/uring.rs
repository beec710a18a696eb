//! Reads by io_uring: one ring, driven by the thread that made it.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::types::{Fd, Fixed};
use io_uring::{IoUring, Probe, opcode, squeue};

use super::{Completion, ReadFailure, Reader, Region, Request};
use crate::storage::FileObserver;

/// The kernel limits one registered buffer to this many bytes.
const LARGEST_BUFFER: usize = 1 << 30;

/// An io_uring, with memory and files registered where the kernel gives that.
///
/// Made and used by one thread only: the ring is set up for a single issuer where the kernel knows that (Linux 6.0).
pub(crate) struct UringReader {
    ring: IoUring,
    in_flight: u32,
    depth: u32,
    /// Regions are registered as buffers, each under its own number.
    buffers: bool,
    /// How many places the table of registered files has; 0 without one.
    files: u32,
    notes: Vec<String>,
}

/// Why no ring could be made.
#[derive(Debug)]
pub(crate) struct NoRing(pub(crate) String);

impl UringReader {
    /// Makes a ring for `depth` reads in flight.
    pub(crate) fn new(depth: u32, regions: &[Region], files: u32) -> Result<Self, NoRing> {
        let ring = make_ring(depth)?;
        let mut reader =
            UringReader { ring, in_flight: 0, depth, buffers: false, files: 0, notes: Vec::new() };
        reader.register_buffers(regions);
        match reader.ring.submitter().register_files_sparse(files) {
            Ok(()) => reader.files = files,
            Err(error) => reader.notes.push(format!("files are not registered with io_uring: {error}")),
        }
        Ok(reader)
    }

    fn register_buffers(&mut self, regions: &[Region]) {
        let bytes: usize = regions.iter().map(|region| region.len).sum();
        if regions.iter().any(|region| region.len > LARGEST_BUFFER) {
            self.notes.push(format!(
                "buffers are not registered with io_uring: one is larger than the kernel's limit of {LARGEST_BUFFER} bytes"
            ));
            return;
        }
        let vectors: Vec<libc::iovec> = regions
            .iter()
            .map(|region| libc::iovec {
                iov_base: region.start.host().unwrap_or_default().cast(),
                iov_len: region.len,
            })
            .collect();
        // SAFETY: the regions are mapped for as long as this reader lives (the contract of `Reader::start` for
        // reads, and of the pipeline, which owns both and drops the reader first).
        match unsafe { self.ring.submitter().register_buffers(&vectors) } {
            Ok(()) => self.buffers = true,
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => self.notes.push(format!(
                "buffers are not registered with io_uring: they need {bytes} bytes of locked memory, the limit \
                 (ulimit -l, RLIMIT_MEMLOCK) is {}: {error}",
                locked_memory_limit()
            )),
            Err(error) => self.notes.push(format!("buffers are not registered with io_uring: {error}")),
        }
    }

    /// Submits what is queued, and waits for `want` completions unless some are there already.
    fn enter(&mut self, want: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(want) {
            Ok(_) => Ok(()),
            // A signal came, or completions must be reaped before the kernel takes more: the caller looks again.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn collect(&mut self, done: &mut Vec<Completion>) -> usize {
        let before = done.len();
        for entry in self.ring.completion() {
            let result = u32::try_from(entry.result()).map_err(|_| ReadFailure::Errno(-entry.result()));
            done.push(Completion { token: entry.user_data() as u32, result, gathered: false, way: None });
        }
        let count = done.len() - before;
        self.in_flight -= count as u32;
        count
    }
}

impl std::fmt::Debug for UringReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UringReader").field("depth", &self.depth).field("in_flight", &self.in_flight).finish()
    }
}

impl FileObserver for UringReader {
    fn opened(&mut self, index: u32, fd: RawFd) {
        if index < self.files && self.ring.submitter().register_files_update(index, &[fd]).is_err() {
            // From here on plain descriptors are used; what is registered stays until the ring goes.
            self.files = 0;
            self.notes
                .push("files are no longer registered with io_uring: the kernel refused an update".into());
        }
    }

    fn closing(&mut self, index: u32) {
        if index < self.files && self.ring.submitter().register_files_update(index, &[-1]).is_err() {
            self.files = 0;
        }
    }
}

impl Reader for UringReader {
    unsafe fn start(&mut self, request: Request) -> io::Result<()> {
        debug_assert!(self.in_flight < self.depth);
        let Request { file, fd, len, offset, .. } = request;
        // The kernel cannot reach a GPU's memory, and is not asked to.
        let dest = request.dest.host().ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
        let entry = match (self.buffers, file < self.files) {
            (true, true) => {
                opcode::ReadFixed::new(Fixed(file), dest, len, request.region as u16).offset(offset).build()
            }
            (true, false) => {
                opcode::ReadFixed::new(Fd(fd), dest, len, request.region as u16).offset(offset).build()
            }
            (false, true) => opcode::Read::new(Fixed(file), dest, len).offset(offset).build(),
            (false, false) => opcode::Read::new(Fd(fd), dest, len).offset(offset).build(),
        };
        // Without this the copy from the page cache would be done here, by this one thread, while submitting.
        let flags = if request.cached { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let entry = entry.flags(flags).user_data(request.token.into());
        // The queue has room for `depth` entries and is emptied by each `enter`; a full one is emptied first.
        // SAFETY: the caller of `start` keeps destination and descriptor valid until the completion is reaped.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.enter(0)?;
        }
        self.in_flight += 1;
        Ok(())
    }

    fn reap(&mut self, block: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        debug_assert!(!block || self.in_flight > 0);
        let before = done.len();
        self.enter(usize::from(block))?;
        self.collect(done);
        // `submit_and_wait` can return early with nothing completed (a signal), so the queue decides, not it.
        while block && done.len() == before {
            self.enter(1)?;
            self.collect(done);
        }
        Ok(())
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl Drop for UringReader {
    fn drop(&mut self) {
        // The kernel may still write into the regions: wait for every read that was started.
        let mut done = Vec::with_capacity(self.in_flight as usize);
        while self.in_flight > 0 {
            if self.enter(1).is_err() && self.collect(&mut done) == 0 {
                // The kernel takes no call on this ring any more. Its memory must not be freed under it.
                eprintln!("gpufeed: io_uring cannot be drained with {} reads in flight", self.in_flight);
                std::process::abort();
            }
            self.collect(&mut done);
        }
    }
}

fn make_ring(depth: u32) -> Result<IoUring, NoRing> {
    // Newer kernels do less work per completion with these; older ones refuse them with EINVAL.
    let make = || match IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(depth) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::builder().build(depth),
        made => made,
    };
    let mut made = make();
    // The kernel gives back the locked memory of a ring some time after it was closed.
    for wait in [1, 4, 16, 64, 256] {
        if made.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOMEM)) {
            std::thread::sleep(Duration::from_millis(wait));
            made = make();
        }
    }
    let ring = made.map_err(|error| NoRing(in_words(&error, &disabled_setting())))?;
    let mut probe = Probe::new();
    let known = ring.submitter().register_probe(&mut probe).is_ok();
    if !known || !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::ReadFixed::CODE) {
        return Err(NoRing("this kernel's io_uring cannot read yet (Linux 5.6 is needed)".into()));
    }
    Ok(ring)
}

/// What `kernel.io_uring_disabled` is set to, if the kernel has it.
fn disabled_setting() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok().map(|text| text.trim().to_string())
}

/// Why a ring was refused. A container's seccomp filter can answer EPERM or ENOSYS, whatever the kernel's version.
fn in_words(error: &io::Error, disabled: &Option<String>) -> String {
    let why = match (error.raw_os_error(), disabled.as_deref()) {
        (Some(libc::EPERM), Some("1")) => {
            "kernel.io_uring_disabled is 1: only processes with CAP_SYS_ADMIN or of kernel.io_uring_group may use it"
        }
        (Some(libc::EPERM), Some("2")) => "kernel.io_uring_disabled is 2: nobody may use it",
        (Some(libc::EPERM), Some(_)) => {
            "kernel.io_uring_disabled is 0, so a sandbox refuses it (a container's seccomp profile, most likely)"
        }
        (Some(libc::EPERM), None) => "a sandbox refuses it (a container's seccomp profile, most likely)",
        (Some(libc::ENOSYS), Some(_)) => {
            "the kernel knows io_uring, so a sandbox hides it (a container's seccomp profile, most likely)"
        }
        (Some(libc::ENOSYS), None) => {
            "the kernel has no io_uring (Linux 5.1 is needed), or a sandbox hides it"
        }
        (Some(libc::ENOMEM), _) => {
            return format!(
                "io_uring: no memory for a ring; all rings of a user, and the buffers registered with them, may count \
                 as locked memory together, whose limit (ulimit -l, RLIMIT_MEMLOCK) is {}: {error}",
                locked_memory_limit()
            );
        }
        _ => "the kernel refuses a ring",
    };
    format!("io_uring: {why}: {error}")
}

fn locked_memory_limit() -> String {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives through the call.
    match unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } {
        0 if limit.rlim_cur == libc::RLIM_INFINITY => "unlimited".into(),
        0 => format!("{} bytes", limit.rlim_cur),
        _ => "unknown".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_ring_is_explained_by_what_refused_it() {
        let words = |errno, setting: Option<&str>| {
            in_words(&io::Error::from_raw_os_error(errno), &setting.map(str::to_string))
        };
        assert!(words(libc::EPERM, Some("2")).contains("io_uring_disabled is 2"));
        assert!(words(libc::EPERM, Some("1")).contains("io_uring_disabled is 1"));
        assert!(words(libc::EPERM, Some("0")).contains("seccomp"));
        assert!(words(libc::EPERM, None).contains("sandbox"));
        assert!(words(libc::ENOSYS, Some("0")).contains("sandbox hides"));
        assert!(words(libc::ENOSYS, None).contains("no io_uring"));
        assert!(words(libc::ENOMEM, None).contains("RLIMIT_MEMLOCK"));
        assert!(words(libc::EPERM, None).contains("os error 1"));
    }
}
