//! Reads by `pread` from a fixed set of threads.

use std::io;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::{Completion, ReadFailure, Reader, Request};
use crate::memory::cuda::Context;
use crate::storage::FileObserver;
use crate::{Error, ErrorKind, Result};

/// Threads that each do one `pread` at a time, and the copy that follows it, if any.
#[derive(Debug)]
pub(crate) struct PoolReader {
    /// `None` only while dropping: a closed channel ends the threads.
    requests: Option<Sender<Request>>,
    completions: Receiver<Completion>,
    threads: Vec<JoinHandle<()>>,
}

/// What a thread of the pool does with a request.
pub(super) type Work = Box<dyn FnMut(&Request) -> Completion + Send>;

impl PoolReader {
    /// Starts `depth` threads; as many reads can be in flight. `context` is that of the device which the copies of
    /// requests go to, if they go to one.
    pub(crate) fn new(depth: u32, context: Option<Arc<Context>>) -> Result<Self> {
        PoolReader::with(depth, || {
            let context = context.clone();
            Ok(Box::new(move |request| read(request, context.as_deref())))
        })
    }

    /// Starts `depth` threads that do what `make` makes for each.
    pub(super) fn with(depth: u32, make: impl Fn() -> Result<Work>) -> Result<Self> {
        let (requests, incoming) = bounded(depth as usize);
        let (outgoing, completions) = bounded(depth as usize);
        let mut pool = PoolReader { requests: Some(requests), completions, threads: Vec::new() };
        for i in 0..depth {
            let (incoming, outgoing, work) = (incoming.clone(), outgoing.clone(), make()?);
            let thread = std::thread::Builder::new()
                .name(format!("gpufeed-read-{i}"))
                .stack_size(256 << 10)
                .spawn(move || serve(&incoming, &outgoing, work))
                .map_err(|e| {
                    Error::new(ErrorKind::Io, format!("cannot start reading thread {i} of {depth}"))
                        .caused_by(e)
                })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }
}

fn serve(requests: &Receiver<Request>, completions: &Sender<Completion>, mut work: Work) {
    for request in requests {
        let outcome = catch_unwind(AssertUnwindSafe(|| work(&request)));
        let completion = match outcome {
            Ok(completion) => completion,
            Err(panic) => Completion {
                token: request.token,
                result: Err(ReadFailure::Panicked(crate::loader::panic_message(&*panic))),
                gathered: false,
                way: None,
            },
        };
        if completions.send(completion).is_err() {
            return;
        }
    }
}

fn read(request: &Request, context: Option<&Context>) -> Completion {
    #[cfg(test)]
    assert_ne!(request.fd, super::testing::PANICS, "as the test asks");
    let Some(dest) = request.dest.host() else {
        let result = Err(ReadFailure::Errno(libc::EFAULT));
        return Completion { token: request.token, result, gathered: false, way: None };
    };
    let result = pread(request, dest);
    let (result, gathered) = match (request.gather, result) {
        // SAFETY: the window is filled as far as the copy needs it, the pieces stay alive until the read is reaped,
        // and chunk and slot belong to this read alone.
        (Some((need, gather)), Ok(n)) if n >= need => match unsafe { gather.run(context) } {
            Ok(()) => (Ok(n), true),
            Err(error) => (Err(ReadFailure::Copy(error)), false),
        },
        (_, result) => (result, false),
    };
    Completion { token: request.token, result, gathered, way: None }
}

/// Reads what a request asks for to `dest`, which has room for it and is the caller's alone.
pub(super) fn pread(request: &Request, dest: *mut u8) -> Result<u32, ReadFailure> {
    loop {
        // SAFETY: whoever started the read keeps destination and descriptor valid until it is reaped, and nobody
        // else touches the destination meanwhile.
        let n = unsafe {
            libc::pread(request.fd, dest.cast(), request.len as usize, request.offset as libc::off_t)
        };
        match u32::try_from(n) {
            Ok(n) => return Ok(n),
            Err(_) => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                errno => return Err(ReadFailure::Errno(errno.unwrap_or(libc::EIO))),
            },
        }
    }
}

impl FileObserver for PoolReader {
    fn opened(&mut self, _index: u32, _fd: RawFd) {}
    fn closing(&mut self, _index: u32) {}
}

impl Reader for PoolReader {
    unsafe fn start(&mut self, request: Request) -> io::Result<()> {
        // Both fail only when every thread is gone, which the threads never are before `drop`.
        let sender = self.requests.as_ref().ok_or_else(gone)?;
        sender.send(request).map_err(|_| gone())
    }

    fn reap(&mut self, block: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        if block {
            done.push(self.completions.recv().map_err(|_| gone())?);
        }
        done.extend(self.completions.try_iter());
        Ok(())
    }
}

fn gone() -> io::Error {
    io::Error::other("the reading threads are gone")
}

impl Drop for PoolReader {
    fn drop(&mut self) {
        // Threads finish the reads that were started, then find the channel closed.
        self.requests = None;
        for thread in self.threads.drain(..) {
            // A panic inside a read was caught and reported there; nothing is left to say here.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_pool_that_cannot_be_made_whole_leaves_no_thread() {
        let (held, made) = (Arc::new(()), Cell::new(0));
        let made = PoolReader::with(50, || {
            made.set(made.get() + 1);
            if made.get() == 40 {
                return Err(Error::argument("as the test asks"));
            }
            let held = Arc::clone(&held);
            Ok(Box::new(move |request| {
                let _ = &held;
                read(request, None)
            }))
        });
        assert!(made.unwrap_err().to_string().contains("as the test asks"));
        // Each thread had one until its end.
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
