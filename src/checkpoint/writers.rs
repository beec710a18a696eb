//! The ways of a write that goes through host memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use io_uring::{IoUring, opcode, types::Fd};

use super::WriteOptions;
use crate::memory::{DeviceBuffer, HostMapping};
use crate::{Error, ErrorKind, Result};

/// Bytes of a buffer, from its byte `from` on, and where in a file they go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'p> {
    pub(super) file: &'p File,
    pub(super) at: u64,
    pub(super) buffer: &'p DeviceBuffer,
    pub(super) from: usize,
}

impl Part<'_> {
    /// Copies `len` bytes from byte `start` of the part on into a chunk of host memory.
    fn fetch(&self, start: usize, len: usize, chunk: &HostMapping, offset: usize) -> Result<()> {
        assert!(offset + len <= chunk.len(), "a chunk has room for an I/O");
        // SAFETY: the range lies in the mapping, which its caller shares with no thread and no write in flight.
        let bytes = unsafe { std::slice::from_raw_parts_mut(chunk.as_ptr().add(offset), len) };
        self.buffer.read(self.from + start, bytes)
    }
}

fn failed(backend: &'static str, source: io::Error) -> Error {
    Error::new(ErrorKind::Io, "the write failed").by(backend).caused_by(source)
}

/// Writes by `pwrite` from as many threads as there may be writes in flight, each with a chunk of its own.
pub(super) fn in_threads(part: &Part<'_>, len: usize, options: &WriteOptions) -> Result<()> {
    let step = options.io_bytes;
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        let chunk = HostMapping::new(step.min(len))?;
        loop {
            let start = next.fetch_add(step, Ordering::Relaxed);
            if start >= len {
                return Ok(());
            }
            let now = step.min(len - start);
            part.fetch(start, now, &chunk, 0)?;
            // SAFETY: the first `now` bytes of the mapping were just written, and are this thread's alone.
            let bytes = unsafe { std::slice::from_raw_parts(chunk.as_ptr(), now) };
            std::os::unix::fs::FileExt::write_all_at(part.file, bytes, part.at + start as u64)
                .map_err(|e| failed("pread", e))?;
        }
    };
    let threads = len.div_ceil(step).min(options.queue_depth as usize);
    match threads {
        0 => Ok(()),
        1 => work(),
        _ => std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let outcomes = threads.into_iter().map(|thread| {
                let panicked = |panic: Box<dyn std::any::Any + Send>| {
                    let message = crate::loader::panic_message(&*panic);
                    Err(Error::new(ErrorKind::Panicked, format!("a writing thread panicked: {message}")))
                };
                thread.join().unwrap_or_else(panicked)
            });
            // Every thread is joined, whatever the first one says.
            outcomes.collect::<Vec<_>>().into_iter().collect()
        }),
    }
}

/// Writes by io_uring: while some chunks are on their way to the disk, the next one is fetched from the device.
pub(super) fn by_uring(part: &Part<'_>, len: usize, options: &WriteOptions) -> Result<()> {
    let step = options.io_bytes;
    let depth = len.div_ceil(step).min(options.queue_depth as usize).max(1);
    // Declared before the ring, so dropped after it; and no write is left in flight by then.
    let chunks = HostMapping::new(depth * step)?;
    let mut ring = IoUring::new(depth as u32).map_err(|e| failed("uring", e))?;
    let mut free: Vec<usize> = (0..depth).collect();
    // For each chunk: first byte of its write, bytes in all, and bytes that have gone.
    let mut writes = vec![(0usize, 0usize, 0usize); depth];
    let (mut next, mut in_flight) = (0, 0usize);
    let mut outcome = Ok(());
    while in_flight > 0 || (next < len && outcome.is_ok()) {
        if let (true, true, Some(chunk)) = (next < len, outcome.is_ok(), free.pop()) {
            let now = step.min(len - next);
            match part.fetch(next, now, &chunks, chunk * step) {
                Ok(()) => {
                    writes[chunk] = (next, now, 0);
                    push(&mut ring, part, &chunks, step, chunk, writes[chunk]);
                    in_flight += 1;
                }
                Err(error) => outcome = Err(error),
            }
            next += now;
            if !free.is_empty() && next < len {
                // Hands over what is queued, and goes on fetching. A failure shows when something is waited for.
                let _ = ring.submit();
                continue;
            }
        }
        match ring.submit_and_wait(usize::from(in_flight > 0)) {
            Ok(_) => {}
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
            Err(e) => {
                // The kernel may still read the chunks: they are never given back.
                std::mem::forget((ring, chunks));
                return Err(failed("uring", e));
            }
        }
        let done: Vec<_> =
            ring.completion().map(|entry| (entry.user_data() as usize, entry.result())).collect();
        for (chunk, result) in done {
            let (_, all, gone) = &mut writes[chunk];
            match result {
                n if n > 0 => *gone += n as usize,
                0 => outcome = Err(failed("uring", io::ErrorKind::WriteZero.into())),
                errno if matches!(-errno, libc::EINTR | libc::EAGAIN) => {}
                errno => outcome = Err(failed("uring", io::Error::from_raw_os_error(-errno))),
            }
            if outcome.is_ok() && *gone < *all {
                // A direct write goes on from a boundary; what went beyond it is written again.
                *gone = *gone / 4096 * 4096;
                push(&mut ring, part, &chunks, step, chunk, writes[chunk]);
            } else {
                free.push(chunk);
                in_flight -= 1;
            }
        }
    }
    outcome
}

fn push(
    ring: &mut IoUring,
    part: &Part<'_>,
    chunks: &HostMapping,
    step: usize,
    chunk: usize,
    (start, all, gone): (usize, usize, usize),
) {
    let from = chunks.as_ptr().wrapping_add(chunk * step + gone);
    let entry = opcode::Write::new(Fd(part.file.as_raw_fd()), from, (all - gone) as u32)
        .offset(part.at + (start + gone) as u64)
        .build()
        .user_data(chunk as u64);
    // The queue has room for every chunk, and is emptied whenever something is waited for.
    // SAFETY: file and chunks outlive the write: `by_uring` returns only when none is in flight.
    while unsafe { ring.submission().push(&entry) }.is_err() {
        let _ = ring.submit();
    }
}
