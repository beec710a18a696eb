//! The loader: from a dataset to batches in memory, read ahead of the training step.

mod bad;
mod batch;
mod build;
mod builder;
mod depth;
mod flight;
mod leave;
mod live;
#[cfg(test)]
mod model;
mod nvtx;
mod pipeline;
mod plan;
mod polls;
mod rate;
mod ring;
mod setup;
mod staging;
mod start;
mod stats;
mod timing;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select};

pub use bad::{BadSample, BadSamples};
pub use batch::{Batch, ColumnView};
pub use builder::{LoaderBuilder, Source};
pub use live::{Bottleneck, LoaderStats, StageStats};
pub use polls::PollingReport;
pub use stats::NotDirect;
pub use timing::{Stage, Wait};

use crate::backend::{Backend, BytesByWay, Chosen, Unavailable};
use crate::cufile::Route;
use crate::dataset::Dataset;
use crate::launch::{Agreement, Rank, Registration};
use crate::memory::Device;
use crate::order::{Batches, Run, Shuffle, Stand, State};
use crate::storage::{FileSystem, Pulse};
use crate::{Error, ErrorKind, Result};
use polls::Verdict;
use ring::Ring;
use setup::{Command, Delivery, Task};
use stats::Stats;
use timing::{Timing, Watch};

/// Feeds batches of a dataset into memory, epoch after epoch.
///
/// A loader owns one thread that reads (and, for `pread` and `page-cache`, threads that it reads with), a ring of
/// slots for batches, and staging memory for reads that cannot land in a slot: all of it allocated when it is
/// built. Dropping it, or an [`Epoch`] or [`Batch`] of it, is safe at any moment.
///
/// Each epoch looks at a file by its name before it first reads it. If it is not the one that was indexed (it was replaced,
/// removed or written to, by inode, size and time of the last write), that is an error of the kind
/// [`Changed`](crate::ErrorKind::Changed) or [`NotFound`](crate::ErrorKind::NotFound). What changes while the epoch goes on is
/// noticed by the next one: until then a replaced file is read as it was, and of one that is written to in place nobody can
/// tell which of its bytes come.
///
/// ```no_run
/// use gpufeed::{Dataset, Loader, Shuffle};
///
/// let dataset = Dataset::open("datasets/digits")?;
/// let mut loader = Loader::builder(dataset).batch_size(64).shuffle(Shuffle::Full).seed(7).build()?;
/// for epoch in 0..3 {
///     for batch in loader.epoch(epoch)? {
///         let batch = batch?;
///         let images: &[u8] = batch.column("image")?.bytes()?;
///         // ...
///     }
/// }
/// # Ok::<(), gpufeed::Error>(())
/// ```
#[derive(Debug)]
pub struct Loader {
    shared: Arc<Shared>,
    settings: Settings,
    /// `None` only while dropping: a closed channel ends the thread.
    commands: Option<Sender<Command>>,
    deliveries: Receiver<Delivery>,
    thread: Option<JoinHandle<()>>,
    stop: StopHandle,
    stopped: Receiver<()>,
    /// An epoch was started, and that it is over has not been heard yet.
    running: bool,
    /// Where the caller's times are noted, and since when it has been at work on a batch.
    watch: Option<Watch>,
    stepping: Option<Instant>,
    /// What comes next, if the caller goes on where it is.
    stand: Stand,
    /// Since when the epoch that is running is not wanted any more.
    left_at: Option<Instant>,
    /// What the thread waits for at storage.
    pulse: Arc<Pulse>,
    /// What became of the thread of a loader that storage does not answer.
    left_behind: Option<String>,
    /// Why the loader takes no more calls.
    closed: Option<String>,
    /// The process that has the loader's threads; a forked child has not.
    process: u32,
    /// How the loaders of other ranks on this host see this one.
    _registration: Option<Registration>,
}

/// What loader, epochs and batches share.
#[derive(Debug)]
struct Shared {
    dataset: Arc<Dataset>,
    run: Run,
    /// The fingerprint of the dataset, or of the mixture.
    fingerprint: String,
    ring: Arc<Ring>,
    stats: Arc<Stats>,
    /// For a loader that looks at itself.
    timing: Option<Arc<Timing>>,
    cancel: Arc<AtomicBool>,
}

/// What a loader was built with, defaults filled in.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) batches: Batches,
    pub(crate) rank: Rank,
    /// Why it was not compared with the loaders of other ranks on this host, though there may be some.
    pub(crate) not_compared: Option<String>,
    pub(crate) agreement: Agreement,
    /// What the agreement is about, without the place to start from.
    pub(crate) order: Vec<(&'static str, String)>,
    pub(crate) prefetch: u32,
    pub(crate) queue_depth: u32,
    /// The devices, and how many files are on each.
    pub(crate) drives: Vec<(u64, u64)>,
    pub(crate) io_bytes: u32,
    polling: Verdict,
    pub(crate) lend_timeout: Duration,
    pub(crate) read_timeout: Option<Duration>,
    pub(crate) trace: bool,
    pub(crate) devices: Vec<Device>,
    pub(crate) device_reason: String,
    pub(crate) chosen: Chosen,
    pub(crate) file_systems: Vec<FileSystem>,
    pub(crate) device_bytes: u64,
    pub(crate) pinned_bytes: u64,
}

/// The memory that a loader has allocated, in bytes. It stays the same from `build` until the loader is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// The ring of slots that batches are delivered in, over all devices. For host memory this is host memory.
    pub device_bytes: u64,
    /// Host memory for I/O that is not the ring itself: the staging chunks. Pinned, for a GPU.
    pub pinned_bytes: u64,
}

/// Which way the bytes went so far, and why.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// Where batches are delivered: one device, or several that each get every batch.
    pub devices: Vec<Device>,
    /// Why there.
    pub device_reason: String,
    /// The backend in use.
    pub backend: Backend,
    /// Why this one.
    pub backend_reason: String,
    /// The backends that `auto` would have preferred, and why they do not work here.
    pub passed_over: Vec<Unavailable>,
    /// For the backend `gds`: the way that cuFile goes, by its driver's properties.
    pub gds_route: Option<Route>,
    /// The file systems that the files of the dataset lie on, in the order of the first file on each, as they were when the
    /// loader was built.
    pub file_systems: Vec<FileSystem>,
    /// What the files are on, as the kernel tells it: each has a queue of its own.
    pub drives: Vec<DriveFiles>,
    /// Whether reads were polled for, and why.
    pub polling: PollingReport,
    /// Payload bytes read, by the way they took. Batches that were read ahead and not yet delivered count.
    pub bytes_by_way: BytesByWay,
    /// Bytes read, with what alignment added.
    pub bytes_read: u64,
    /// Why files were not read directly, though the backend would; known at the end of each epoch.
    pub not_direct: Vec<NotDirect>,
    /// Samples that cannot be read and were skipped, in the order in which they were found; see [`BadSamples::Skip`].
    pub bad_samples: Vec<BadSample>,
    /// What the backend had to do without, such as registered buffers; known at the end of each epoch.
    pub notes: Vec<String>,
}

/// A device, and how many files of the dataset are on it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriveFiles {
    /// The numbers of the device, `major:minor`. Major 0: the file system has no block device of its own (NFS, btrfs, tmpfs).
    pub device: String,
    /// The number of files.
    pub files: u64,
}

impl DriveFiles {
    fn of(&(device, files): &(u64, u64)) -> DriveFiles {
        DriveFiles { device: format!("{}:{}", libc::major(device), libc::minor(device)), files }
    }
}

impl Shared {
    fn state(&self, stand: Stand) -> State {
        State::new(&self.fingerprint, self.run.shuffle, self.run.seed, stand)
    }

    fn stand_of(&self, state: &State) -> Result<Stand> {
        let Run { samples, seed, shuffle, .. } = self.run;
        state.stand_in(&self.fingerprint, shuffle, seed, samples)
    }
}

impl Loader {
    /// A builder with the default settings, for a dataset or a [`Mixture`](crate::Mixture) of several.
    pub fn builder(data: impl Into<Source>) -> LoaderBuilder {
        LoaderBuilder::new(data.into())
    }

    /// The batches of an epoch, in its order, from its beginning. Reading ahead starts at once.
    ///
    /// # Errors
    /// `Closed` after a panic in one of the loader's threads, or after `TimedOut`. No other error of an earlier epoch closes it.
    /// `TimedOut` if an epoch was left and its reads have still not come back
    /// (see [`read_timeout`](LoaderBuilder::read_timeout)).
    pub fn epoch(&mut self, epoch: u64) -> Result<Epoch<'_>> {
        self.begin(Stand { epoch, position: 0 })
    }

    /// The batches that come next: the rest of the epoch that was left early or [resumed](LoaderBuilder::resume), or the
    /// epoch after the one that was last gone through.
    ///
    /// ```no_run
    /// # fn run(mut loader: gpufeed::Loader, epochs: u64) -> gpufeed::Result<()> {
    /// while loader.state().epoch() < epochs {
    ///     for batch in loader.next_epoch()? {
    ///         let batch = batch?;
    ///         // ... train, and from time to time save `batch.state()` with the model ...
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`epoch`](Loader::epoch), and `InvalidArgument` if what is left of an epoch cannot be dealt to the ranks evenly
    /// (see [`LastBatch::Short`](crate::LastBatch::Short)).
    pub fn next_epoch(&mut self) -> Result<Epoch<'_>> {
        self.begin(self.stand)
    }

    fn begin(&mut self, stand: Stand) -> Result<Epoch<'_>> {
        self.check_process()?;
        // Nothing is left of an epoch that was dropped; one that was forgotten is still running, or one that storage keeps.
        self.end_epoch_for_good()?;
        if let (None, Some(message)) = (&self.closed, self.shared.stats.panic()) {
            self.closed = Some(format!("a reading thread panicked: {message}"));
        }
        if let Some(why) = &self.closed {
            return Err(Error::new(ErrorKind::Closed, format!("the loader was closed: {why}")));
        }
        let Stand { epoch, position } = stand;
        let batches = self.settings.batches.starting_at(position)?;
        let course = self.shared.run.epoch(epoch)?;
        self.stand = stand;
        self.shared.cancel.store(false, Ordering::Release);
        let start = Command::Start(Box::new(Task { epoch, course, batches }));
        let sent = self.commands.as_ref().is_some_and(|commands| commands.send(start).is_ok());
        if !sent {
            return Err(self.why_gone());
        }
        self.running = true;
        Ok(Epoch { loader: self, epoch, left: batches.count() })
    }

    /// Where the run stands: behind the last batch that was delivered, however far reads are ahead. Between epochs it is
    /// at the beginning of the next one. The same as the last batch's [`Batch::state`].
    pub fn state(&self) -> State {
        self.shared.state(self.stand)
    }

    /// Has [`next_epoch`](Loader::next_epoch) go on from a saved state.
    ///
    /// # Errors
    /// `InvalidArgument` if the state is of another dataset, seed or shuffle, which the error names; `Unsupported` if it
    /// was written by a later version of this crate; `TimedOut` as [`epoch`](Loader::epoch).
    pub fn resume(&mut self, state: &State) -> Result<()> {
        self.end_epoch_for_good()?;
        self.stand = self.shared.stand_of(state)?;
        // Ranks that go on from different places do not agree.
        let (fingerprint, order) = (&self.shared.fingerprint, self.settings.order.clone());
        self.settings.agreement = build::agreement(fingerprint, order, self.stand);
        Ok(())
    }

    /// The dataset.
    pub fn dataset(&self) -> &Dataset {
        &self.shared.dataset
    }

    /// Batches in a whole epoch: as many on every rank.
    pub fn batches_per_epoch(&self) -> u64 {
        self.settings.batches.count()
    }

    /// Samples delivered to this rank in a whole epoch, padding included.
    pub fn samples_per_epoch(&self) -> u64 {
        self.settings.batches.delivered()
    }

    /// Which rank of how many this loader feeds.
    pub fn rank(&self) -> &Rank {
        &self.settings.rank
    }

    /// A short value that is the same on all ranks if they feed from the same data, in the same order, from the same
    /// place on: where they were built to start, or [`resume`](Loader::resume) put them. Loaders of one job on one host compare it when they are built; across hosts exchange it, and give
    /// all of them to [`Agreement::check`].
    pub fn agreement(&self) -> Agreement {
        self.settings.agreement
    }

    /// Samples in a batch of this rank; the last one of an epoch may have fewer.
    pub fn batch_size(&self) -> u64 {
        self.settings.batches.largest()
    }

    /// How the samples of an epoch are mixed.
    pub fn shuffle(&self) -> Shuffle {
        self.shared.run.shuffle
    }

    /// How many batches are read ahead of the caller.
    pub fn prefetch(&self) -> u32 {
        self.settings.prefetch
    }

    /// How many reads are in flight at once on each drive (see [`LoaderBuilder::queue_depth`]).
    pub fn queue_depth(&self) -> u32 {
        self.settings.queue_depth
    }

    /// The most bytes that one read asks for.
    pub fn io_bytes(&self) -> u32 {
        self.settings.io_bytes
    }

    /// The memory that the loader has allocated.
    pub fn memory(&self) -> MemoryUse {
        MemoryUse { device_bytes: self.settings.device_bytes, pinned_bytes: self.settings.pinned_bytes }
    }

    /// Which way the bytes went so far, and why.
    pub fn report(&self) -> Report {
        let stats = &self.shared.stats;
        Report {
            devices: self.settings.devices.clone(),
            device_reason: self.settings.device_reason.clone(),
            backend: self.settings.chosen.backend,
            backend_reason: self.settings.chosen.reason.clone(),
            passed_over: self.settings.chosen.passed_over.clone(),
            gds_route: self.settings.chosen.gds.as_ref().map(|(_, route)| *route),
            file_systems: self.settings.file_systems.clone(),
            drives: self.settings.drives.iter().map(DriveFiles::of).collect(),
            polling: self.settings.polling.report(stats.polled_reads()),
            bytes_by_way: stats.bytes_by_way(),
            bytes_read: stats.bytes_read(),
            not_direct: stats.not_direct(),
            bad_samples: stats.bad_samples(),
            notes: self
                .settings
                .not_compared
                .iter()
                .chain(&self.left_behind)
                .cloned()
                .chain(stats.notes())
                .collect(),
        }
    }

    /// How the loader has spent its time so far; `None` unless [`LoaderBuilder::stats`] asked for it.
    pub fn stats(&self) -> Option<LoaderStats> {
        self.stats_handle().stats()
    }

    /// A handle by which another thread, such as one that shows progress or serves metrics, gets the same.
    pub fn stats_handle(&self) -> StatsHandle {
        StatsHandle { timing: self.shared.timing.clone(), stats: Arc::clone(&self.shared.stats) }
    }

    /// What every stage did when, as JSON that Chrome's `about:tracing` and Perfetto show; `None` unless
    /// [`LoaderBuilder::trace`] asked for it.
    pub fn trace_json(&self) -> Option<String> {
        self.settings
            .trace
            .then(|| self.shared.timing.as_ref().map(|timing| live::chrome_trace(timing.spans())))?
    }

    /// Payload bytes read from a file of the dataset so far: around the page cache, and through it.
    ///
    /// `file` counts the dataset's [`files`](Dataset::files); `None` beyond the last.
    pub fn file_bytes(&self, file: usize) -> Option<(u64, u64)> {
        (file < self.shared.dataset.files().len()).then(|| self.shared.stats.file(file))
    }

    /// A handle by which another thread, such as one that waits for signals, ends the present and all later epochs.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let why = "the loader was built before this process was forked; its threads are in the parent";
        Err(Error::new(ErrorKind::Closed, why))
    }
}

/// Looks at a loader's times from another thread.
#[derive(Debug, Clone)]
pub struct StatsHandle {
    timing: Option<Arc<Timing>>,
    stats: Arc<Stats>,
}

impl StatsHandle {
    /// How the loader has spent its time so far; `None` unless [`LoaderBuilder::stats`] asked for it.
    pub fn stats(&self) -> Option<LoaderStats> {
        self.timing.as_ref().map(|timing| LoaderStats::new(timing, self.stats.bytes_by_way()))
    }
}

/// Ends a loader's epochs from another thread.
#[derive(Debug, Clone)]
pub struct StopHandle(Sender<()>);

impl StopHandle {
    /// Makes the present and every later epoch end with an error of the kind
    /// [`Stopped`](crate::ErrorKind::Stopped), at once. Only atomics and a wake-up; safe from any thread.
    pub fn stop(&self) {
        // The channel has room for one message, which nobody takes out: the first one stops for good.
        let _ = self.0.try_send(());
    }
}

/// The batches of one epoch.
///
/// Ends early when dropped: reads in flight are waited for, what was read ahead is discarded, and the loader is
/// ready for its next epoch. (Reads that storage does not answer are waited for 10 seconds; the next epoch waits for them again.)
/// After an error it yields nothing more.
#[derive(Debug)]
pub struct Epoch<'l> {
    loader: &'l mut Loader,
    epoch: u64,
    left: u64,
}

impl Epoch<'_> {
    /// The number of the epoch.
    pub fn number(&self) -> u64 {
        self.epoch
    }

    /// How many batches are left.
    pub fn batches_left(&self) -> u64 {
        self.left
    }

    /// Where the run stands: behind the last batch that this epoch gave.
    pub fn state(&self) -> State {
        self.loader.state()
    }

    fn receive(&mut self) -> Result<Option<Batch>> {
        let loader = &mut *self.loader;
        if !loader.running || loader.left_at.is_some() {
            return Ok(None);
        }
        loader.check_process()?;
        let asked = loader.watch.as_ref().map(|_| Instant::now());
        if let (Some(watch), Some(from)) = (&mut loader.watch, loader.stepping.take()) {
            watch.took(Stage::Step, from, 0, 0);
        }
        let range = loader.watch.as_ref().and_then(|watch| watch.range(c"gpufeed wait for a batch"));
        // With no patience at all it would look again and again while a batch is being read.
        let patience = loader.settings.lend_timeout.max(Duration::from_millis(1));
        let mut quiet = Duration::ZERO;
        let delivery = loop {
            let wait = loader.next_look(patience.saturating_sub(quiet));
            // `select!` takes any that is ready; a stop comes first.
            if !loader.stopped.is_empty() {
                return Err(Error::new(ErrorKind::Stopped, "the loader was asked to stop"));
            }
            select! {
                recv(loader.deliveries) -> delivery => break delivery,
                recv(loader.stopped) -> _ => loader.stop.stop(), // put back for later epochs
                default(wait) => {
                    quiet += wait;
                    loader.give_up_if_overdue()?;
                    if quiet < patience {
                        continue;
                    }
                    quiet = Duration::ZERO;
                    let (lent, slots) = (loader.shared.ring.lent(), loader.shared.ring.slots());
                    if lent == slots {
                        return Err(Error::new(ErrorKind::SlotsExhausted, format!(
                            "all {slots} slots of the ring are lent out and none came back in {:?}; drop batches, or build the loader with a larger prefetch",
                            loader.settings.lend_timeout
                        )));
                    }
                }
            }
        };
        drop(range);
        match delivery {
            Ok(Delivery::Batch(ready)) => {
                self.left = self.left.saturating_sub(1);
                let lent = ready.lend(&loader.shared.ring);
                loader.stand = lent.info().next;
                if let (Some(watch), Some(from)) = (&mut loader.watch, asked) {
                    watch.took(Stage::BatchWait, from, lent.info().batch, 0);
                    watch.add_up();
                    loader.stepping = Some(Instant::now());
                }
                Ok(Some(Batch::new(lent, Arc::clone(&loader.shared))))
            }
            Ok(Delivery::End) => {
                loader.running = false;
                // A whole epoch has gone by, even if it had no batch.
                loader.stand = Stand { epoch: self.epoch.saturating_add(1), position: 0 };
                Ok(None)
            }
            Ok(Delivery::Failed(error)) => {
                loader.running = false;
                if error.kind() == ErrorKind::Panicked {
                    loader.closed = Some(error.to_string());
                }
                Err(error)
            }
            Err(_) => {
                loader.running = false;
                Err(loader.why_gone())
            }
        }
    }

    fn finish(&mut self) {
        self.left = 0;
        self.loader.stepping = None;
        if let Some(watch) = &mut self.loader.watch {
            watch.add_up();
        }
        self.loader.end_epoch_soon();
    }
}

impl Iterator for Epoch<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.receive().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.finish();
        }
        next
    }

    /// Exactly as many batches are left, unless one cannot be read.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        (0, Some(left))
    }
}

impl std::iter::FusedIterator for Epoch<'_> {}

impl Drop for Epoch<'_> {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The text of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod soak;
#[cfg(test)]
mod tests;
