//! Streams as queues of operations, each run in order by a thread of its own.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar};
use std::time::{Duration, Instant};

use crate::context::ContextId;
use crate::driver::{Driver, HandleKind};
use crate::error::Answer;
use crate::memory::Memory;
use crate::settings::{Delay, settings};
use crate::work::{Work, abandon, execute};

/// A stream's handle.
pub(crate) type StreamId = usize;

/// How a stream came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// `cuStreamCreate`.
    Created,
    /// A context's legacy default stream.
    Legacy,
    /// One thread's default stream in one context.
    PerThread,
}

/// One place in one stream: reached once that many operations of the stream are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) stream: StreamId,
    pub(crate) sequence: u64,
}

#[derive(Debug)]
struct Operation {
    sequence: u64,
    work: Work,
    after: Vec<Ticket>,
    asked: Instant,
}

/// One stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) kind: StreamKind,
    pub(crate) context: ContextId,
    pub(crate) device: i32,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// How many streams were made before this one: what random delays are drawn from.
    ordinal: u64,
    /// Destroyed by the caller, and gone once its queue is empty.
    destroyed: bool,
    queue: VecDeque<Operation>,
    /// Operations ever put on the stream.
    queued: u64,
    /// Operations that are done. An operation that runs is in neither `queue` nor `done`.
    done: u64,
    /// Operations that somebody waits for: an adversarial delay ends for them.
    demanded: u64,
    /// How often the caller has asked whether the present work is done.
    queries: u32,
    /// Whether the operation that runs now is one that a caller could notice.
    noticed: bool,
    has_thread: bool,
    wake: Arc<Condvar>,
}

impl Stream {
    /// Whether the legacy default stream and this one wait for each other.
    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & 1 == 0
    }

    /// Whether it stands for a `cuStreamCreate` that was not yet undone.
    pub(crate) fn was_created(&self) -> bool {
        self.kind == StreamKind::Created && !self.destroyed
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed
    }

    /// Whether something is left to do whose loss a caller would notice.
    pub(crate) fn has_work(&self) -> bool {
        self.noticed || self.queue.iter().any(|operation| operation.work.is_noticed())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.done == self.queued
    }
}

impl Driver {
    /// A new stream. Its thread starts with its first operation.
    pub(crate) fn new_stream(
        &mut self,
        kind: StreamKind,
        context: ContextId,
        flags: u32,
        priority: i32,
    ) -> StreamId {
        let id = self.new_handle(HandleKind::Stream);
        let ordinal = self.count_stream();
        let device = self.contexts.get(&context).map_or(0, |context| context.device);
        let stream = Stream {
            kind,
            context,
            device,
            flags,
            priority,
            ordinal,
            destroyed: false,
            queue: VecDeque::new(),
            queued: 0,
            done: 0,
            demanded: 0,
            queries: 0,
            noticed: false,
            has_thread: false,
            wake: Arc::new(Condvar::new()),
        };
        self.streams.insert(id, stream);
        id
    }

    /// The caller gives the stream up: what is queued still runs, then the thread ends.
    pub(crate) fn retire_stream(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.destroyed = true;
        stream.wake.notify_all();
        if !stream.has_thread {
            self.streams.remove(&id);
        }
    }

    /// The place after everything that is on the stream now.
    pub(crate) fn tail(&self, stream: StreamId) -> Ticket {
        Ticket { stream, sequence: self.streams.get(&stream).map_or(0, |stream| stream.queued) }
    }

    /// A stream that is gone has done all its work.
    pub(crate) fn is_done(&self, ticket: Ticket) -> bool {
        self.streams.get(&ticket.stream).is_none_or(|stream| stream.done >= ticket.sequence)
    }

    /// Puts one operation on a stream, after `after` and after what the default stream's rules add.
    pub(crate) fn enqueue(&mut self, id: StreamId, work: Work, mut after: Vec<Ticket>) -> Ticket {
        let (kind, context, blocking) = match self.streams.get(&id) {
            Some(stream) => (stream.kind, stream.context, stream.is_blocking()),
            None => {
                return Ticket { stream: id, sequence: 0 };
            }
        };
        // The legacy default stream runs after everything on the context's blocking streams, and they after it.
        if kind == StreamKind::Legacy {
            let others = self.streams.iter().filter(|(other, stream)| {
                **other != id && stream.context == context && stream.is_blocking() && !stream.is_idle()
            });
            after.extend(others.map(|(other, stream)| Ticket { stream: *other, sequence: stream.queued }));
        } else if blocking && let Some(legacy) = self.contexts.get(&context).map(|context| context.legacy) {
            after.push(self.tail(legacy));
        }
        after.retain(|ticket| ticket.stream != id && !self.is_done(*ticket));
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ticket { stream: id, sequence: 0 };
        };
        stream.queued += 1;
        stream.queries = 0;
        let sequence = stream.queued;
        stream.queue.push_back(Operation { sequence, work, after, asked: Instant::now() });
        stream.wake.notify_all();
        if !stream.has_thread {
            stream.has_thread = true;
            start_thread(id);
        }
        Ticket { stream: id, sequence }
    }

    /// Somebody waits for this place: nothing up to it is held back any longer.
    pub(crate) fn demand(&mut self, ticket: Ticket) {
        if let Some(stream) = self.streams.get_mut(&ticket.stream)
            && stream.demanded < ticket.sequence
        {
            stream.demanded = ticket.sequence;
            stream.wake.notify_all();
        }
    }

    /// Blocks the calling host thread until the place is reached.
    pub(crate) fn wait_for(&mut self, ticket: Ticket) {
        self.demand(ticket);
        while !self.is_done(ticket) {
            self.wait_for_progress();
        }
    }

    /// Counts one question whether everything on the stream is done, and answers it.
    pub(crate) fn query_stream(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else {
            return true;
        };
        if stream.is_idle() {
            return true;
        }
        stream.queries += 1;
        if let Delay::Adversarial { queries, .. } = settings().delay
            && stream.queries >= queries
        {
            let tail = self.tail(id);
            self.demand(tail);
        }
        false
    }

    /// Runs everything down until nothing uses this memory any more. Only for a caller who is already reported:
    /// it keeps the emulator itself from touching memory that is gone.
    pub(crate) fn drain(&mut self, memory: &Memory) {
        let deadline = Instant::now() + Duration::from_secs(10);
        let all: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in all {
            let tail = self.tail(id);
            self.demand(tail);
        }
        while memory.in_flight() && Instant::now() < deadline {
            self.wait_for_progress_within(Duration::from_millis(100));
        }
    }

    /// The next operation to run, once it may run; none when the stream has ended.
    fn next_operation(&mut self, id: StreamId) -> Option<Operation> {
        loop {
            let stream = self.streams.get(&id)?;
            let wake = stream.wake.clone();
            let Some(head) = stream.queue.front() else {
                if stream.destroyed {
                    self.streams.remove(&id);
                    self.tell_progress();
                    return None;
                }
                self.wait_on(&wake, None);
                continue;
            };
            if let Delay::Adversarial { hold, .. } = settings().delay
                && stream.demanded < head.sequence
            {
                let held = head.asked.elapsed();
                if held < hold {
                    self.wait_on(&wake, Some(hold - held));
                    continue;
                }
            }
            let unmet: Vec<Ticket> =
                head.after.iter().copied().filter(|ticket| !self.is_done(*ticket)).collect();
            if unmet.is_empty() {
                let stream = self.streams.get_mut(&id)?;
                let operation = stream.queue.pop_front()?;
                stream.noticed = operation.work.is_noticed();
                return Some(operation);
            }
            for ticket in unmet {
                self.demand(ticket);
            }
            self.wait_for_progress();
        }
    }

    /// Marks one operation done, with the error that it left behind.
    fn finish(&mut self, id: StreamId, sequence: u64, outcome: Answer) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.done = sequence;
        stream.noticed = false;
        let context = stream.context;
        if let (Err(code), Some(context)) = (outcome, self.contexts.get_mut(&context)) {
            context.break_with(code);
        }
        self.tell_progress();
    }
}

/// Starts a stream's thread. It takes no signals, so that the host program's handlers run on its own threads.
fn start_thread(id: StreamId) {
    // SAFETY: an all-zero signal set is a valid value to be overwritten.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are ours; only this thread's mask changes, and it is put back below.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
    }
    let started = std::thread::Builder::new().name("cuda-emulator".to_owned()).spawn(move || run(id));
    // SAFETY: puts back the mask saved above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    if let Err(error) = started {
        // Without its thread a stream would hang its waiters: a test is better served by an end with a reason.
        eprintln!("cuda-emulator: cannot start the thread of a stream: {error}");
        std::process::abort();
    }
}

/// The life of a stream's thread.
fn run(id: StreamId) {
    let mut driver = Driver::lock("a stream");
    while let Some(operation) = driver.next_operation(id) {
        let Some(stream) = driver.streams.get(&id) else { return };
        let (context, ordinal) = (stream.context, stream.ordinal);
        let broken = driver.contexts.get(&context).and_then(|context| context.broken());
        let Operation { sequence, work, .. } = operation;
        let buried = if let Work::Bury(memory) = &work { Some(memory.clone()) } else { None };
        let outcome = driver.unlocked(|| {
            pause(ordinal, sequence);
            match broken {
                None => execute(work),
                Some(code) => abandon(work, code),
            }
        });
        if let Some(memory) = buried {
            driver.return_bytes(&memory);
        }
        driver.finish(id, sequence, outcome);
    }
}

/// The random delay of one operation: the same for the same seed, stream and place, whatever the timing.
fn pause(ordinal: u64, sequence: u64) {
    if let Delay::Random { seed, max } = settings().delay
        && !max.is_zero()
    {
        let mut bits = seed ^ (ordinal << 32) ^ sequence;
        // The finaliser of SplitMix64.
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^= bits >> 31;
        std::thread::sleep(Duration::from_micros(bits % (max.as_micros() as u64 + 1)));
    }
}
