//! How long each stage takes, for a loader that was asked to look at itself.
//!
//! The threads note times in memory of their own, and add them up once per batch: no lock is taken for a read.

use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::nvtx::Range;

/// What can take time. Each has a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Working out the reads of batches that are planned together.
    Plan,
    /// A read, from its start to its completion.
    Read,
    /// Taking payload out of staging chunks: on the host the copies out of those that were completed together, on a GPU each
    /// from queueing it to hearing that it is done.
    Copy,
    /// The caller's wait for a batch.
    BatchWait,
    /// What the caller does between taking a batch and asking for the next.
    Step,
}

impl Stage {
    /// All of them.
    pub const ALL: [Stage; 5] = [Stage::Plan, Stage::Read, Stage::Copy, Stage::BatchWait, Stage::Step];

    /// The name in reports, metrics and traces.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Plan => "plan",
            Stage::Read => "read",
            Stage::Copy => "copy",
            Stage::BatchWait => "batch_wait",
            Stage::Step => "step",
        }
    }

    /// The line of a trace on which it is drawn. Those of one line do not overlap, reads aside.
    pub(super) fn track(self) -> u32 {
        match self {
            Stage::Plan => 1,
            Stage::Read => 2,
            Stage::Copy => 3,
            Stage::BatchWait | Stage::Step => 4,
        }
    }
}

/// What the reading thread can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wait {
    /// Completions of reads.
    Storage,
    /// Copies to the GPU, all chunks being in use.
    Copy,
    /// The caller, to give back a batch, or its streams, to be done with one.
    Slot,
    /// The limit on bytes per second.
    Limit,
}

impl Wait {
    /// All of them.
    pub const ALL: [Wait; 4] = [Wait::Storage, Wait::Copy, Wait::Slot, Wait::Limit];

    /// The name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Wait::Storage => "storage",
            Wait::Copy => "copy",
            Wait::Slot => "slot",
            Wait::Limit => "limit",
        }
    }
}

/// Something that took time, for a trace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) stage: Stage,
    /// Since the loader was built.
    pub(super) from: Duration,
    pub(super) took: Duration,
    /// The batch, and for a read how many bytes it brought.
    pub(super) batch: u64,
    pub(super) bytes: u64,
}

/// The most spans that are kept: about 50 MB. What comes after them is counted.
const MOST_SPANS: usize = 1 << 20;
/// Longer than any wait; histograms cover this much.
const LONGEST: Duration = Duration::from_secs(3600);

/// The sums of all threads.
#[derive(Debug)]
pub(super) struct Timing {
    start: Instant,
    /// The reading thread copies by itself, rather than to queue copies to a GPU.
    pub(super) copies_itself: bool,
    totals: Mutex<Totals>,
}

/// What has been added up so far.
#[derive(Debug, Clone)]
pub(super) struct Totals {
    /// Of the first times, and of a part of the later ones.
    stages: [Histogram<u64>; Stage::ALL.len()],
    sums: [Sum; Stage::ALL.len()],
    waits: [Duration; Wait::ALL.len()],
    /// For a trace.
    spans: Option<Vec<Span>>,
    lost_spans: u64,
}

/// All times of a stage together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sum {
    pub(super) count: u64,
    pub(super) total: Duration,
    pub(super) max: Duration,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.count += other.count;
        self.total += other.total;
        self.max = self.max.max(other.max);
    }
}

/// The times that one thread has noted and not added up.
#[derive(Debug, Default)]
struct Notes {
    sums: [Sum; Stage::ALL.len()],
    spans: Vec<Span>,
    waits: [Duration; Wait::ALL.len()],
}

/// A thread that notes its times.
#[derive(Debug)]
pub(super) struct Watch {
    timing: Arc<Timing>,
    notes: Notes,
    /// When each chunk's copy was queued.
    pub(super) queued: Vec<Option<Instant>>,
    /// When the reads that are being started, or were just completed, were.
    pub(super) tick: Instant,
    /// Bytes that were copied since then.
    pub(super) copied_bytes: u64,
    /// How often each stage was noted, over all time.
    counts: [u64; Stage::ALL.len()],
    /// Every time is kept, for a trace.
    every: bool,
}

/// The first times of a stage go into its histogram, and then one in so many.
const ALL_OF: u64 = 4096;
const ONE_IN: u64 = 16;

impl Watch {
    pub(super) fn new(timing: Arc<Timing>, chunks: u32) -> Watch {
        let notes = Notes { spans: Vec::with_capacity(2 * NOTED), ..Notes::default() };
        let every = timing.lock().spans.is_some();
        let queued = vec![None; chunks as usize];
        Watch {
            timing,
            notes,
            queued,
            tick: Instant::now(),
            copied_bytes: 0,
            counts: Default::default(),
            every,
        }
    }

    /// Notes that a stage took from `from` until now.
    pub(super) fn took(&mut self, stage: Stage, from: Instant, batch: u64, bytes: u64) {
        self.took_until(stage, (from, Instant::now()), batch, bytes);
    }

    /// Notes that a stage took that long. To look at the clock for every read would cost more than the reads of a cache do.
    pub(super) fn took_until(
        &mut self,
        stage: Stage,
        (from, until): (Instant, Instant),
        batch: u64,
        bytes: u64,
    ) {
        let took = until.saturating_duration_since(from);
        self.notes.sums[stage as usize].add(Sum { count: 1, total: took, max: took });
        let count = &mut self.counts[stage as usize];
        *count += 1;
        // Quantiles are as good from a part of very many.
        if !self.every && *count > ALL_OF && !count.is_multiple_of(ONE_IN) {
            return;
        }
        let from = from.saturating_duration_since(self.timing.start);
        self.notes.spans.push(Span { stage, from, took, batch, bytes });
        if self.notes.spans.len() >= NOTED {
            self.add_up();
        }
    }

    /// Notes that there was nothing to do from `from` until now but to wait.
    pub(super) fn waited(&mut self, wait: Wait, from: Instant) {
        self.waited_until(wait, (from, Instant::now()));
    }

    pub(super) fn waited_until(&mut self, wait: Wait, (from, until): (Instant, Instant)) {
        self.notes.waits[wait as usize] += until.saturating_duration_since(from);
    }

    /// A range for a profiler, until it is dropped.
    pub(super) fn range(&self, name: &'static CStr) -> Option<Range> {
        Range::open(name)
    }

    /// A chunk's copy is done.
    pub(super) fn copied(&mut self, chunk: u32) {
        if let Some(from) = self.queued[chunk as usize].take() {
            self.took(Stage::Copy, from, 0, 0);
        }
    }

    /// Adds what was noted to the sums that others see.
    pub(super) fn add_up(&mut self) {
        self.timing.add(&mut self.notes);
    }
}

/// A thread's notes are added up when there are so many.
const NOTED: usize = 1024;

impl Timing {
    pub(super) fn new(trace: bool, copies_itself: bool) -> Timing {
        // In nanoseconds, to two digits. Bounds and precision are valid, so this cannot fail.
        let histogram = || {
            Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 2)
                .expect("the bounds of a histogram are valid")
        };
        let totals = Totals {
            stages: std::array::from_fn(|_| histogram()),
            sums: Default::default(),
            waits: Default::default(),
            spans: trace.then(Vec::new),
            lost_spans: 0,
        };
        Timing { start: Instant::now(), copies_itself, totals: Mutex::new(totals) }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Adds up what a thread has noted.
    fn add(&self, notes: &mut Notes) {
        let mut totals = self.lock();
        for span in notes.spans.drain(..) {
            totals.stages[span.stage as usize].saturating_record(span.took.as_nanos() as u64);
            match &mut totals.spans {
                Some(spans) if spans.len() < MOST_SPANS => spans.push(span),
                Some(_) => totals.lost_spans += 1,
                None => {}
            }
        }
        for (sum, more) in totals.sums.iter_mut().zip(&mut notes.sums) {
            sum.add(std::mem::take(more));
        }
        for (sum, wait) in totals.waits.iter_mut().zip(&mut notes.waits) {
            *sum += std::mem::take(wait);
        }
    }

    pub(super) fn totals(&self) -> Totals {
        self.lock().clone()
    }

    /// The spans for a trace, and how many there were no room for.
    pub(super) fn spans(&self) -> (Vec<Span>, u64) {
        let totals = self.lock();
        (totals.spans.clone().unwrap_or_default(), totals.lost_spans)
    }

    fn lock(&self) -> MutexGuard<'_, Totals> {
        self.totals.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Totals {
    pub(super) fn histogram(&self, stage: Stage) -> &Histogram<u64> {
        &self.stages[stage as usize]
    }

    pub(super) fn sum(&self, stage: Stage) -> Sum {
        self.sums[stage as usize]
    }

    pub(super) fn wait(&self, wait: Wait) -> Duration {
        self.waits[wait as usize]
    }
}
