//! What a pipeline is given when it is made, what it is asked to do, and what it delivers.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crossbeam_channel::{Receiver, Sender};

use super::bad::BadSamples;
use super::depth::Depth;
use super::plan::Layout;
use super::rate::TokenBucket;
use super::ring::{Free, Ready, Ring};
use super::staging::Staging;
use super::stats::Stats;
use super::timing::Watch;
use crate::Error;
use crate::backend::Backend;
use crate::dataset::Dataset;
use crate::memory::cuda::{Copier, Pinned};
use crate::order::{Batches, Course};
use crate::storage::{Drives, Pulse};

/// What the pipeline is asked to do. A closed channel ends it.
#[derive(Debug)]
pub(crate) enum Command {
    /// Deliver batches of an epoch.
    Start(Box<Task>),
    /// The caller wants no more of this epoch. Only wakes the pipeline up; the flag counts.
    Cancel,
}

/// What is to be delivered: an epoch, or what is left of it.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) epoch: u64,
    pub(crate) course: Course,
    pub(crate) batches: Batches,
}

/// What the pipeline delivers. Every started epoch ends with `End` or `Failed`.
#[derive(Debug)]
pub(crate) enum Delivery {
    Batch(Ready),
    End,
    Failed(Error),
}

/// What a pipeline is told once.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) layout: Layout,
    pub(crate) backend: Backend,
    pub(crate) depth: Depth,
    /// Which file is on which drive.
    pub(crate) drives: Arc<Drives>,
    /// For each drive whether its direct reads are polled for; empty where none are.
    pub(crate) polled: Vec<bool>,
    /// Positions whose samples are mixed with each other: their batches are read together, as far as slots allow.
    pub(crate) window: Option<u64>,
    /// Whatever of a slot is not payload is zeroed before the batch is delivered.
    pub(crate) clear: bool,
    /// Limits the bytes that are asked of storage.
    pub(crate) limit: Option<TokenBucket>,
    /// What becomes of samples that cannot be read.
    pub(crate) bad_samples: BadSamples,
    /// Where times are noted, for a loader that looks at itself.
    pub(crate) watch: Option<Watch>,
    /// What was found out when the loader was built and belongs in its report.
    pub(crate) notes: Vec<String>,
}

/// The channels and shared values of a pipeline.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) commands: Receiver<Command>,
    pub(crate) free: Receiver<Free>,
    pub(crate) deliveries: Sender<Delivery>,
    pub(crate) cancel: Arc<AtomicBool>,
    pub(crate) stats: Arc<Stats>,
    /// Which calls into storage this thread is in.
    pub(crate) pulse: Arc<Pulse>,
}

/// The memory that a pipeline works with, and what moves bytes within it.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) ring: Arc<Ring>,
    pub(crate) staging: Staging,
    pub(crate) copier: Option<Copier>,
    pub(crate) pinned: Option<Pinned>,
}
