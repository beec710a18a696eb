//! What the reading thread counts, for others to look at.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use super::bad::BadSample;
use crate::backend::{BytesByWay, Way};
use crate::storage::PassedOver;

/// Counters that the reading thread adds to, without a lock, and anybody may read.
#[derive(Debug)]
pub(crate) struct Stats {
    ways: [AtomicU64; Way::ALL.len()],
    bytes_read: AtomicU64,
    /// Written at the end of an epoch.
    polled_reads: AtomicU64,
    /// For each file the payload bytes read around and through the page cache.
    files: Vec<[AtomicU64; 2]>,
    /// Written at the end of an epoch, and when a bad sample is found.
    words: Mutex<Words>,
    /// What the first panic of a thread that reads for the reading thread said. The epoch may not have told it: it was
    /// left, or another read failed first.
    panic: OnceLock<String>,
}

#[derive(Debug, Default)]
struct Words {
    passed_over: Vec<PassedOver>,
    notes: Vec<String>,
    bad_samples: Vec<BadSample>,
}

impl Stats {
    pub(crate) fn new(files: usize) -> Self {
        Stats {
            ways: Default::default(),
            bytes_read: AtomicU64::new(0),
            polled_reads: AtomicU64::new(0),
            files: (0..files).map(|_| Default::default()).collect(),
            words: Mutex::default(),
            panic: OnceLock::new(),
        }
    }

    pub(crate) fn count(&self, file: u32, way: Way, direct: bool, payload: u64, read: u64) {
        self.ways[way as usize].fetch_add(payload, Ordering::Relaxed);
        self.files[file as usize][usize::from(!direct)].fetch_add(payload, Ordering::Relaxed);
        self.bytes_read.fetch_add(read, Ordering::Relaxed);
    }

    pub(crate) fn publish<'a>(
        &self,
        passed_over: &[PassedOver],
        notes: impl Iterator<Item = &'a str>,
        polled_reads: u64,
    ) {
        self.polled_reads.store(polled_reads, Ordering::Relaxed);
        let mut words = self.words.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        words.passed_over = passed_over.to_vec();
        words.notes = notes.map(str::to_string).collect();
    }

    pub(crate) fn bad_sample(&self, bad: BadSample) {
        self.words.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).bad_samples.push(bad);
    }

    pub(crate) fn bad_samples(&self) -> Vec<BadSample> {
        self.words.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).bad_samples.clone()
    }

    pub(crate) fn bytes_by_way(&self) -> BytesByWay {
        BytesByWay(std::array::from_fn(|i| self.ways[i].load(Ordering::Relaxed)))
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    pub(crate) fn polled_reads(&self) -> u64 {
        self.polled_reads.load(Ordering::Relaxed)
    }

    pub(crate) fn file(&self, index: usize) -> (u64, u64) {
        let [direct, buffered] = &self.files[index];
        (direct.load(Ordering::Relaxed), buffered.load(Ordering::Relaxed))
    }

    pub(crate) fn not_direct(&self) -> Vec<NotDirect> {
        let words = self.words.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let of = |it: &PassedOver| NotDirect {
            reason: it.reason.clone(),
            first: it.first.clone(),
            files: it.files,
        };
        words.passed_over.iter().map(of).collect()
    }

    pub(crate) fn note_panic(&self, message: &str) {
        let _ = self.panic.set(message.into());
    }

    pub(crate) fn panic(&self) -> Option<&str> {
        self.panic.get().map(String::as_str)
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.words.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).notes.clone()
    }
}

/// Why some files were read through the page cache by a backend that reads around it where it can.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotDirect {
    /// The reason, in words.
    pub reason: String,
    /// The first file that it held for.
    pub first: PathBuf,
    /// How many files it held for.
    pub files: u64,
}
