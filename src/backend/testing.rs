//! Readers for tests: one that puts faults, delays and checks around a real one.

use std::collections::HashMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::{Completion, ReadFailure, Reader, Request};
use crate::storage::FileObserver;

/// Puts a reader of a test around the real one.
pub(crate) struct Wrap(pub(crate) Around);

type Around = Box<dyn FnOnce(Box<dyn Reader>) -> Box<dyn Reader> + Send>;

impl std::fmt::Debug for Wrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wrap")
    }
}

/// A pool's thread that is asked to read from this descriptor panics.
pub(crate) const PANICS: RawFd = -77;

/// SplitMix64: the same seed gives the same test.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is at least 1.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, all: &mut [T]) {
        for i in (1..all.len()).rev() {
            all.swap(i, self.below(i + 1));
        }
    }
}

/// A read that is about to start, as a fault plan sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// Counted from 0 over the life of the reader.
    pub(crate) number: u64,
    /// How often a read at this descriptor and offset was started before.
    pub(crate) before: u64,
    /// The inode of the file.
    pub(crate) inode: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// The descriptor was opened with `O_DIRECT`.
    pub(crate) direct: bool,
}

/// What becomes of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// What the real reader does.
    Pass,
    /// At most this many bytes come; the memory after them holds rubbish.
    Cut(u32),
    /// It fails with this code, and never reaches the real reader.
    Fail(i32),
    /// It cannot even be started.
    Refuse(i32),
    /// The thread that reaps it panics.
    PanicInReap,
    /// The thread that reads it panics; for a pool only.
    PanicInThread,
    /// It does not come back, and does not reach the real reader, before the gate of [`Faults::gate`] is opened.
    Hang,
}

/// Keeps reads that hang, and whoever waits for them, until it is opened.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn is_open(&self) -> bool {
        *self.open.lock().unwrap()
    }

    fn wait(&self) {
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open).unwrap());
    }
}

/// What the reader has seen and done.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen {
    pub(crate) started: u64,
    pub(crate) most_in_flight: usize,
    pub(crate) cut: u64,
    pub(crate) failed: u64,
    /// Reads that were started and whose end was not told, now or when the reader was dropped.
    pub(crate) in_flight: usize,
    pub(crate) dropped: bool,
    /// Bytes of reads that are not held back, and as many of them as had been told before the first that is.
    pub(crate) others: u64,
    pub(crate) before_held: Option<u64>,
    /// The most reads that were held back at once.
    pub(crate) most_held: usize,
}

/// A fault plan, and in which order completions come.
pub(crate) struct Faults {
    plan: Box<dyn FnMut(&Attempt) -> Fate + Send>,
    /// Completions are held back and come in any order.
    disorder: Option<Random>,
    /// Whoever waits for completions waits at least so long.
    slow: Duration,
    /// Files, by inode, of which no read completes as long as another read is in flight.
    held: Vec<u64>,
    seen: Arc<Mutex<Seen>>,
    gate: Arc<Gate>,
}

impl Faults {
    pub(crate) fn new(plan: impl FnMut(&Attempt) -> Fate + Send + 'static) -> Self {
        let (seen, gate, held) = Default::default();
        Faults { plan: Box::new(plan), disorder: None, slow: Duration::ZERO, held, seen, gate }
    }

    pub(crate) fn none() -> Self {
        Faults::new(|_| Fate::Pass)
    }

    pub(crate) fn disorder(mut self, seed: u64) -> Self {
        self.disorder = Some(Random(seed));
        self
    }

    pub(crate) fn slow(mut self, wait: Duration) -> Self {
        self.slow = wait;
        self
    }

    /// Holds back reads of this file as long as another read is in flight, and then lets go of one.
    pub(crate) fn hold(mut self, inode: u64) -> Self {
        self.held.push(inode);
        self
    }

    pub(crate) fn seen(&self) -> Arc<Mutex<Seen>> {
        Arc::clone(&self.seen)
    }

    /// What lets the reads that hang go on.
    pub(crate) fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    pub(crate) fn wrap(self) -> Wrap {
        Wrap(Box::new(|inner| {
            Box::new(FaultyReader {
                inner,
                faults: self,
                flights: HashMap::new(),
                inside: 0,
                hanging: Vec::new(),
                ready: Vec::new(),
                tries: HashMap::new(),
            })
        }))
    }
}

struct Airborne {
    fate: Fate,
    held: bool,
    dest: *mut u8,
    len: u32,
}

/// Carries out a fault plan, and checks the contract of `Reader::start` on the way.
struct FaultyReader {
    inner: Box<dyn Reader>,
    faults: Faults,
    flights: HashMap<u32, Airborne>,
    /// Reads that the real reader has.
    inside: usize,
    /// Reads that it gets when the gate is open.
    hanging: Vec<Request>,
    /// Completed, and not yet told.
    ready: Vec<Completion>,
    tries: HashMap<(RawFd, u64), u64>,
}

impl FaultyReader {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.faults.seen.lock().unwrap()
    }

    fn take_in(&mut self, block: bool) -> io::Result<()> {
        if block && self.inside == 0 && self.ready.is_empty() {
            self.faults.gate.wait();
        }
        if self.faults.gate.is_open() {
            for request in std::mem::take(&mut self.hanging) {
                self.inside += 1;
                // SAFETY: as in `start`.
                unsafe { self.inner.start(request) }?;
            }
        }
        let mut done = Vec::new();
        if self.inside > 0 {
            self.inner.reap(block && self.ready.is_empty(), &mut done)?;
        }
        self.inside -= done.len();
        for mut completion in done {
            let flight = &self.flights[&completion.token];
            if let (Fate::Cut(most), Ok(n)) = (flight.fate, &mut completion.result) {
                let come = *n;
                *n = come.min(most);
                assert!(come <= flight.len && !completion.gathered);
                // SAFETY: the read has completed inside and was not told outside, so its destination, which holds
                // `come` bytes, is still this read's alone.
                unsafe { flight.dest.add(*n as usize).write_bytes(0xEE, (come - *n) as usize) };
                self.seen().cut += 1;
            }
            self.ready.push(completion);
        }
        Ok(())
    }
}

impl FaultyReader {
    /// How many of those that are ready may be told now, which come first: those that are not held back, or one that is.
    fn hold_back(&mut self, block: bool) -> io::Result<usize> {
        loop {
            let flights = &self.flights;
            self.ready.sort_by_key(|it| flights[&it.token].held);
            let others = self.ready.iter().take_while(|it| !flights[&it.token].held);
            let bytes: u64 =
                others.clone().filter_map(|it| it.result.as_ref().ok()).map(|n| u64::from(*n)).sum();
            let others = others.count();
            if others > 0 || !block {
                self.seen().others += bytes;
                return Ok(others);
            }
            if self.inside == 0 {
                let mut seen = self.seen();
                seen.before_held = seen.before_held.or(Some(seen.others));
                return Ok(1.min(self.ready.len()));
            }
            let ready = std::mem::take(&mut self.ready);
            self.take_in(true)?;
            self.ready.extend(ready);
        }
    }
}

impl FileObserver for FaultyReader {
    fn opened(&mut self, index: u32, fd: RawFd) {
        self.tries.retain(|(known, _), _| *known != fd);
        self.inner.opened(index, fd);
    }

    fn closing(&mut self, index: u32) {
        self.inner.closing(index);
    }
}

impl Reader for FaultyReader {
    unsafe fn start(&mut self, mut request: Request) -> io::Result<()> {
        let dest = request.dest.host().unwrap_or_default();
        let (start, len) = (dest as usize, request.len);
        // SAFETY: asks for the flags of a descriptor; no memory is passed.
        let flags = unsafe { libc::fcntl(request.fd, libc::F_GETFL) };
        assert!(flags >= 0, "a read from a closed descriptor");
        assert_eq!(flags & libc::O_ACCMODE, libc::O_RDONLY);
        assert!(len > 0, "a read of nothing");
        for (token, other) in &self.flights {
            assert_ne!(*token, request.token, "two reads in flight have one token");
            let from = other.dest as usize;
            let apart = start + len as usize <= from || from + other.len as usize <= start;
            assert!(apart, "two reads in flight write to the same memory");
        }
        // SAFETY: all zeros is a valid `stat`, and the call fills it for an open descriptor.
        let inode = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            assert_eq!(libc::fstat(request.fd, &mut stat), 0);
            stat.st_ino
        };
        let tries = self.tries.entry((request.fd, request.offset)).or_default();
        let before = *tries;
        *tries += 1;
        let direct = flags & libc::O_DIRECT != 0;
        let number = self.seen().started;
        let attempt = Attempt { number, before, inode, offset: request.offset, len, direct };
        let fate = (self.faults.plan)(&attempt);
        self.seen().started += 1;
        if let Fate::Refuse(errno) = fate {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let held = self.faults.held.contains(&inode);
        self.flights.insert(request.token, Airborne { fate, held, dest, len });
        {
            let mut seen = self.seen();
            seen.in_flight = self.flights.len();
            seen.most_held = seen.most_held.max(self.flights.values().filter(|it| it.held).count());
            seen.most_in_flight = seen.most_in_flight.max(seen.in_flight);
        }
        match fate {
            Fate::Fail(errno) => {
                self.seen().failed += 1;
                let result = Err(ReadFailure::Errno(errno));
                self.ready.push(Completion { token: request.token, result, gathered: false, way: None });
                return Ok(());
            }
            // The copy must wait until the read is whole.
            Fate::Cut(_) => request.gather = None,
            Fate::PanicInThread => request.fd = PANICS,
            Fate::Hang => {
                self.hanging.push(request);
                return Ok(());
            }
            _ => {}
        }
        self.inside += 1;
        // SAFETY: the caller's promise for the request holds until its completion is told, which comes later than
        // the real reader's own.
        unsafe { self.inner.start(request) }
    }

    fn reap(&mut self, block: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        assert!(!block || !self.flights.is_empty(), "waits though nothing is in flight");
        std::thread::sleep(self.faults.slow);
        self.take_in(block)?;
        let mut count = self.ready.len();
        if let Some(random) = &mut self.faults.disorder {
            random.shuffle(&mut self.ready);
            // At least one if the caller waits; others are held back.
            count = random.below(count + 1).max(usize::from(block).min(count));
        }
        if !self.faults.held.is_empty() {
            count = self.hold_back(block)?;
        }
        for completion in self.ready.drain(..count) {
            let flight = self.flights.remove(&completion.token);
            if flight.is_some_and(|flight| flight.fate == Fate::PanicInReap) {
                panic!("as the fault plan says");
            }
            done.push(completion);
        }
        self.seen().in_flight = self.flights.len();
        Ok(())
    }

    fn notes(&self) -> &[String] {
        self.inner.notes()
    }

    fn polled(&self) -> u64 {
        self.inner.polled()
    }
}

impl Drop for FaultyReader {
    fn drop(&mut self) {
        if !self.hanging.is_empty() {
            // As the contract of a reader says.
            self.faults.gate.wait();
        }
        if let Ok(mut seen) = self.faults.seen.lock() {
            seen.dropped = true;
        }
    }
}
