//! The one lock, and the tables behind it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::batch::Batch;
use crate::misuse::Misuse;

/// A registered file.
#[derive(Debug)]
pub(crate) struct File {
    /// The caller's descriptor, which must stay open while the file is registered.
    pub(crate) fd: i32,
    /// The same file, opened again for buffered reads and writes at any offset.
    pub(crate) own: OwnedFd,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) writable: bool,
    pub(crate) readable: bool,
    /// Opened with `O_DIRECT`, without which nothing goes the direct way.
    pub(crate) direct: bool,
    pub(crate) in_flight: AtomicU64,
}

/// A registered range of memory.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) in_flight: AtomicU64,
}

/// A registered stream.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) flags: u32,
    pub(crate) in_flight: u64,
}

/// Everything that is registered.
#[derive(Debug)]
pub(crate) struct State {
    /// How often the driver was opened and not yet closed.
    pub(crate) opens: u64,
    pub(crate) handles: BTreeMap<usize, Arc<File>>,
    pub(crate) buffers: BTreeMap<u64, Arc<Buffer>>,
    /// Bases that were registered once, and are not now.
    pub(crate) past_buffers: BTreeMap<u64, u64>,
    pub(crate) batches: BTreeMap<usize, Arc<Batch>>,
    pub(crate) streams: BTreeMap<usize, Stream>,
    pub(crate) stream_operations: u64,
    next: usize,
}

static STATE: Mutex<State> = Mutex::new(State {
    opens: 0,
    handles: BTreeMap::new(),
    buffers: BTreeMap::new(),
    past_buffers: BTreeMap::new(),
    batches: BTreeMap::new(),
    streams: BTreeMap::new(),
    stream_operations: 0,
    next: 0,
});

/// Handles are no addresses: none of them can be mapped.
const HANDLE_BASE: usize = 0x00CF_0000_0000_0000;

/// What a handle stands for; part of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleKind {
    File = 1,
    Batch = 2,
}

impl State {
    pub(crate) fn lock() -> MutexGuard<'static, State> {
        // A panic while the lock is held aborts the process at the C boundary, so poison tells nothing new.
        STATE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle that was never given out before.
    pub(crate) fn new_handle(&mut self, kind: HandleKind) -> usize {
        self.next += 1;
        HANDLE_BASE | (self.next << 4) | kind as usize
    }

    /// How to report a handle that is in no table, and the words for it.
    pub(crate) fn bad_handle(&self, handle: usize, kind: HandleKind, ending: bool) -> (Misuse, &'static str) {
        let number = (handle & !HANDLE_BASE) >> 4;
        let given_out = handle & HANDLE_BASE == HANDLE_BASE && handle & 15 == kind as usize;
        match (given_out && number > 0 && number <= self.next, ending) {
            (true, true) => (Misuse::DoubleDeregister, "ended before"),
            (true, false) => (Misuse::UseAfterDeregister, "this handle was ended before"),
            (false, _) => (Misuse::UnknownHandle, "never given out"),
        }
    }

    pub(crate) fn registered_bytes(&self) -> u64 {
        self.buffers.values().map(|buffer| buffer.len).sum()
    }

    /// The registered buffer that holds an address.
    pub(crate) fn buffer_around(&self, address: u64) -> Option<&Arc<Buffer>> {
        let (_, buffer) = self.buffers.range(..=address).next_back()?;
        (address - buffer.base < buffer.len).then_some(buffer)
    }

    /// Whether a registration around this address was ended, and none is there now.
    pub(crate) fn was_registered(&self, address: u64) -> bool {
        let past = self.past_buffers.range(..=address).next_back();
        past.is_some_and(|(base, len)| address - base < *len) && self.buffer_around(address).is_none()
    }
}

/// One more operation.
pub(crate) fn begin(count: &AtomicU64) {
    count.fetch_add(1, Ordering::AcqRel);
}

/// One operation less.
pub(crate) fn end(count: &AtomicU64) {
    count.fetch_sub(1, Ordering::AcqRel);
}

/// Whether there are any.
pub(crate) fn any(count: &AtomicU64) -> bool {
    count.load(Ordering::Acquire) > 0
}
