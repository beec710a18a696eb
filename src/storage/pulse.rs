//! Calls into storage that may never come back: of a server that is down, or a disk that is gone.
//!
//! The thread that makes them says here which one it is in, so that whoever waits for the thread can tell how long storage
//! has kept it, and with what. It is told before and after a call, not in it: a call that hangs cannot tell anything.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// What a thread asks of storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// It waits for reads in flight.
    Reads,
    /// It opens a file, or asks for its status.
    Open(u32),
    /// It closes files.
    Close,
}

/// The call that a thread is in, and the reads that it has in flight. Written by that thread alone, without a lock.
#[derive(Debug)]
pub(crate) struct Pulse {
    born: Instant,
    /// When the present call began, in nanoseconds since `born`, from 1 on; 0 while there is none.
    since: AtomicU64,
    /// Which call it is, and the file.
    call: AtomicU64,
    /// The reads in flight, by token.
    reads: Box<[Read]>,
    /// Reads that were started so far.
    started: AtomicU64,
}

#[derive(Debug, Default)]
struct Read {
    /// The how many-th it is of all that were started, from 1 on; 0 if it is not in flight.
    number: AtomicU64,
    file: AtomicU32,
    len: AtomicU32,
    offset: AtomicU64,
}

/// A call that has not come back yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Silence {
    since: u64,
    /// How long it has taken so far.
    pub(crate) lasts: Duration,
}

/// What storage has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// So many reads, of which this one was started first.
    Reads {
        count: usize,
        file: u32,
        offset: u64,
        len: u32,
    },
    Open(u32),
    Close,
}

impl Pulse {
    /// For a thread that has at most `depth` reads in flight.
    pub(crate) fn new(depth: u32) -> Pulse {
        Pulse {
            born: Instant::now(),
            since: AtomicU64::new(0),
            call: AtomicU64::new(0),
            reads: (0..depth).map(|_| Read::default()).collect(),
            started: AtomicU64::new(0),
        }
    }

    /// A call begins.
    pub(crate) fn begin(&self, call: Call) {
        let call = match call {
            Call::Reads => 0,
            Call::Close => 1,
            Call::Open(file) => 2 | u64::from(file) << 32,
        };
        self.call.store(call, Ordering::Relaxed);
        let since = self.born.elapsed().as_nanos() as u64;
        self.since.store(since.max(1), Ordering::Release);
    }

    /// It has come back.
    pub(crate) fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
        // Before anything that is written from here on; `unanswered` has the other half.
        fence(Ordering::Release);
    }

    /// A read is in flight. Started again for its rest, it counts as a new one.
    pub(crate) fn start(&self, token: u32, file: u32, offset: u64, len: u32) {
        let number = self.started.load(Ordering::Relaxed) + 1;
        self.started.store(number, Ordering::Relaxed);
        let read = &self.reads[token as usize];
        read.file.store(file, Ordering::Relaxed);
        read.len.store(len, Ordering::Relaxed);
        read.offset.store(offset, Ordering::Relaxed);
        read.number.store(number, Ordering::Relaxed);
    }

    /// It is not any more.
    pub(crate) fn land(&self, token: u32) {
        self.reads[token as usize].number.store(0, Ordering::Relaxed);
    }

    /// The call that the thread is in, if it is in one.
    pub(crate) fn silence(&self) -> Option<Silence> {
        let since = self.since.load(Ordering::Acquire);
        let now = self.born.elapsed().as_nanos() as u64;
        (since > 0).then(|| Silence { since, lasts: Duration::from_nanos(now.saturating_sub(since)) })
    }

    /// What the call is about; `None` if it has come back by now.
    pub(crate) fn unanswered(&self, silence: &Silence) -> Option<Unanswered> {
        let call = self.call.load(Ordering::Relaxed);
        let unanswered = match (call as u32, (call >> 32) as u32) {
            (2, file) => Unanswered::Open(file),
            (1, _) => Unanswered::Close,
            _ => {
                let in_flight = || self.reads.iter().filter(|it| it.number.load(Ordering::Relaxed) > 0);
                let first = in_flight().min_by_key(|it| it.number.load(Ordering::Relaxed));
                let Some(first) = first else { return Some(Unanswered::Close) };
                Unanswered::Reads {
                    count: in_flight().count(),
                    file: first.file.load(Ordering::Relaxed),
                    offset: first.offset.load(Ordering::Relaxed),
                    len: first.len.load(Ordering::Relaxed),
                }
            }
        };
        // Nothing of the above was written to meanwhile if the thread is still in that call.
        fence(Ordering::Acquire);
        (self.since.load(Ordering::Relaxed) == silence.since).then_some(unanswered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_read_that_was_started_first_is_the_one_that_is_told() {
        let pulse = Pulse::new(3);
        assert!(pulse.silence().is_none());
        pulse.start(2, 7, 4096, 100);
        pulse.start(0, 8, 0, 200);
        pulse.start(1, 9, 512, 300);
        pulse.begin(Call::Reads);
        let silence = pulse.silence().unwrap();
        let first = Unanswered::Reads { count: 3, file: 7, offset: 4096, len: 100 };
        assert_eq!(pulse.unanswered(&silence), Some(first));
        pulse.end();
        assert!(pulse.silence().is_none());
        // It has come back, so there is nothing to tell any more.
        assert_eq!(pulse.unanswered(&silence), None);
        // Its rest is asked for: now the other ones have waited longer.
        pulse.start(2, 7, 4196, 50);
        pulse.land(0);
        pulse.begin(Call::Reads);
        let silence = pulse.silence().unwrap();
        let next = Unanswered::Reads { count: 2, file: 9, offset: 512, len: 300 };
        assert_eq!(pulse.unanswered(&silence), Some(next));
    }

    #[test]
    fn every_call_is_told_as_what_it_is() {
        let pulse = Pulse::new(1);
        for (call, expected) in [
            (Call::Open(0), Unanswered::Open(0)),
            (Call::Open(u32::MAX), Unanswered::Open(u32::MAX)),
            (Call::Close, Unanswered::Close),
        ] {
            pulse.begin(call);
            assert_eq!(pulse.unanswered(&pulse.silence().unwrap()), Some(expected));
            pulse.end();
        }
    }
}
