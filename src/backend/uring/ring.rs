//! One io_uring, with memory and files registered where the kernel gives that.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::types::{Fd, Fixed};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};

use crate::backend::{Region, Request};

/// The kernel limits one registered buffer to this many bytes.
const LARGEST_BUFFER: usize = 1 << 30;

/// A ring. Dropping it waits for every read that it has in flight.
///
/// Made and used by one thread only: it is set up for a single issuer where the kernel knows that (Linux 6.0).
pub(super) struct Ring {
    ring: IoUring,
    in_flight: u32,
    /// Regions are registered as buffers, each under its own number.
    buffers: bool,
    /// How many places the table of registered files has; 0 without one.
    files: u32,
    /// What notes call it.
    name: &'static str,
}

/// Why no ring could be made.
#[derive(Debug)]
pub(crate) struct NoRing(pub(crate) String);

/// How the kernel finds out that a read is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finds {
    /// The drive interrupts.
    ByInterrupt,
    /// Whoever waits asks the drive again and again (`IORING_SETUP_IOPOLL`). Such a ring takes only direct reads, of files
    /// whose file system knows how to ask, and answers EOPNOTSUPP to all others.
    ByPolling,
}

impl Ring {
    /// Makes a ring for `depth` reads in flight.
    pub(super) fn new(depth: u32, finds: Finds) -> Result<Ring, NoRing> {
        let name = match finds {
            Finds::ByInterrupt => "io_uring",
            Finds::ByPolling => "the polled io_uring",
        };
        Ok(Ring { ring: make_ring(depth, finds)?, in_flight: 0, buffers: false, files: 0, name })
    }

    /// Registers a table of that many files, and the regions.
    pub(super) fn register(&mut self, regions: &[Region], files: u32, notes: &mut Vec<String>) {
        notes.extend(self.register_buffers(regions).err());
        let submitter = self.ring.submitter();
        // An empty table without a list of no descriptors is known from Linux 5.19 on.
        let registered = submitter
            .register_files_sparse(files)
            .or_else(|_| submitter.register_files(&vec![-1; files as usize]));
        match registered {
            Ok(()) => self.files = files,
            Err(error) => notes.push(format!("files are not registered with {}: {error}", self.name)),
        }
    }

    fn register_buffers(&mut self, regions: &[Region]) -> Result<(), String> {
        let bytes: usize = regions.iter().map(|region| region.len).sum();
        let not = format!("buffers are not registered with {}", self.name);
        if regions.iter().any(|region| region.len > LARGEST_BUFFER) {
            return Err(format!("{not}: one is larger than the kernel's limit of {LARGEST_BUFFER} bytes"));
        }
        let vectors: Vec<libc::iovec> = regions
            .iter()
            .map(|region| libc::iovec {
                iov_base: region.start.host().unwrap_or_default().cast(),
                iov_len: region.len,
            })
            .collect();
        // SAFETY: the regions are mapped for as long as this ring lives (the contract of `Reader::start` for reads, and
        // of the pipeline, which owns both and drops the reader first).
        match unsafe { self.ring.submitter().register_buffers(&vectors) } {
            Ok(()) => {
                self.buffers = true;
                Ok(())
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => Err(format!(
                "{not}: they need {bytes} bytes of locked memory, the limit (ulimit -l, RLIMIT_MEMLOCK) is {}: {error}",
                locked_memory_limit()
            )),
            Err(error) => Err(format!("{not}: {error}")),
        }
    }

    /// Puts a descriptor, or -1 for none, into the table of registered files.
    pub(super) fn update(&mut self, index: u32, fd: RawFd, notes: &mut Vec<String>) {
        if index < self.files && self.ring.submitter().register_files_update(index, &[fd]).is_err() {
            // From here on plain descriptors are used; what is registered stays until the ring goes.
            self.files = 0;
            notes.push(format!(
                "files are no longer registered with {}: the kernel refused an update",
                self.name
            ));
        }
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Queues a read to `dest`, which is where the request wants it. `by_descriptor`: of the descriptor itself, whatever is
    /// registered in its place by now.
    ///
    /// # Safety
    /// As for `Reader::start`: memory and descriptor stay valid until the completion has been taken.
    pub(super) unsafe fn push(
        &mut self,
        request: &Request,
        dest: *mut u8,
        by_descriptor: bool,
    ) -> io::Result<()> {
        let &Request { file, fd, len, offset, .. } = request;
        let registered = file < self.files && !by_descriptor;
        let entry = match (self.buffers, registered) {
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
        // SAFETY: the caller keeps destination and descriptor valid until the completion is taken.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.enter(0)?;
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Submits what is queued, and waits for `want` completions unless some are there already. With 0 it still has the kernel
    /// do what it put off, and look at the drive once if that is to be polled.
    pub(super) fn enter(&mut self, want: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(want) {
            Ok(_) => Ok(()),
            // A signal came, or completions must be reaped before the kernel takes more: the caller looks again.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Takes the completions that are there: the token of each read, and its length or minus an error code.
    pub(super) fn take(&mut self, mut each: impl FnMut(u32, i32)) {
        let mut count = 0;
        for entry in self.ring.completion() {
            let entry: cqueue::Entry = entry;
            each(entry.user_data() as u32, entry.result());
            count += 1;
        }
        self.in_flight -= count;
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("name", &self.name).field("in_flight", &self.in_flight).finish()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may still write into the regions: wait for every read that was started.
        while self.in_flight > 0 {
            let (before, entered) = (self.in_flight, self.enter(1));
            self.take(|_, _| {});
            if entered.is_err() && self.in_flight == before {
                // The kernel takes no call on this ring any more. Its memory must not be freed under it.
                eprintln!("gpufeed: io_uring cannot be drained with {} reads in flight", self.in_flight);
                std::process::abort();
            }
        }
    }
}

fn make_ring(depth: u32, finds: Finds) -> Result<IoUring, NoRing> {
    // Newer kernels do less work per completion with these; older ones refuse them with EINVAL. The last makes the kernel say
    // that it has put work off, which a look that does not wait would leave undone.
    let make = || {
        let (mut newest, mut plain) = (IoUring::builder(), IoUring::builder());
        match finds {
            Finds::ByInterrupt => {
                newest.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            }
            // What is polled for is found in the call that polls, so there is nothing to put off.
            Finds::ByPolling => {
                newest.setup_single_issuer().setup_iopoll();
                plain.setup_iopoll();
            }
        }
        match newest.build(depth) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => plain.build(depth),
            made => made,
        }
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
