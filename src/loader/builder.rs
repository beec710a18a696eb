//! How a loader is put together.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use super::bad::BadSamples;
use super::pipeline::{Links, Setup};
use super::plan::Layout;
use super::rate::{Clock, SystemClock, TokenBucket};
use super::ring::{Free, Ring};
use super::staging::Staging;
use super::start::Start;
use super::stats::Stats;
use super::{Loader, Settings, Shared, StopHandle};
use crate::backend::{Backend, Chosen, GdsSettings, Wanted, choose};
use crate::dataset::{Dataset, Mixture};
use crate::launch::{Agreement, Rank};
use crate::memory::{Device, Target, resolve};
use crate::order::{Batches, Cut, LastBatch, Run, Shuffle, Stand, State};
use crate::storage::{FileTable, IoPriority, OpenPolicy, honours_priority, scheduler_of};
use crate::{Error, ErrorKind, Result};

/// What a loader loads: a [`Dataset`], or a [`Mixture`] of several.
#[derive(Debug, Clone)]
pub struct Source {
    dataset: Arc<Dataset>,
    mixture: Option<Mixture>,
}

impl From<Dataset> for Source {
    fn from(dataset: Dataset) -> Self {
        Arc::new(dataset).into()
    }
}

impl From<Arc<Dataset>> for Source {
    fn from(dataset: Arc<Dataset>) -> Self {
        Source { dataset, mixture: None }
    }
}

impl From<Mixture> for Source {
    fn from(mixture: Mixture) -> Self {
        Source { dataset: Arc::clone(mixture.dataset()), mixture: Some(mixture) }
    }
}

/// Settings of a [`Loader`] to be.
#[derive(Debug)]
#[must_use]
pub struct LoaderBuilder {
    dataset: Arc<Dataset>,
    mixture: Option<Mixture>,
    batch_size: u64,
    shuffle: Shuffle,
    seed: u64,
    last_batch: LastBatch,
    allow_empty_epochs: bool,
    rank: Rank,
    resume: Option<State>,
    devices: Vec<Device>,
    backend: Backend,
    prefetch: Option<u32>,
    shrink_ring: bool,
    require_gds: bool,
    queue_depth: u32,
    io_bytes: u64,
    memory_limit: Option<u64>,
    host_memory_limit: Option<u64>,
    device_memory_limit: Option<u64>,
    limit_rate: Option<u64>,
    io_priority: Option<IoPriority>,
    clear_slots: bool,
    bad_samples: BadSamples,
    lend_timeout: Duration,
    #[cfg(test)]
    pub(crate) clock: Option<Box<dyn Clock>>,
    #[cfg(test)]
    pub(crate) wrap: Option<crate::backend::testing::Wrap>,
}

/// cuFile takes its short way for reads on these boundaries only.
const GDS_ALIGN: u32 = 4096;
/// `auto` does not send smaller reads through cuFile: a cuFile read has a cost of its own (`benches/RECORD.md`). The number
/// is KvikIO's default; where the two ways cross on a real GPU has not been measured.
const GDS_SMALLEST: u32 = 16 << 10;
/// Reads ahead at least this much, so that the queue stays full while a batch changes hands.
const AHEAD_BYTES: u64 = 32 << 20;
/// By default the ring takes no more than this for the windows of a shuffle by blocks.
const WINDOW_BYTES: u64 = 512 << 20;
/// The kernel takes at most this many registered buffers: one for each slot and chunk.
const MOST_REGIONS: u64 = 16 << 10;
/// The most bytes that the kernel moves in one read, rounded down to a whole 64 KiB.
const LARGEST_IO: u64 = 0x7fff_0000;

impl LoaderBuilder {
    pub(super) fn new(source: Source) -> Self {
        let Source { dataset, mixture } = source;
        LoaderBuilder {
            dataset,
            mixture,
            batch_size: 64,
            shuffle: Shuffle::None,
            seed: 0,
            last_batch: LastBatch::Drop,
            allow_empty_epochs: false,
            rank: Rank::single(),
            resume: None,
            devices: vec![Device::Host],
            backend: Backend::Auto,
            prefetch: None,
            shrink_ring: false,
            require_gds: false,
            queue_depth: 16,
            io_bytes: 1 << 20,
            memory_limit: None,
            host_memory_limit: None,
            device_memory_limit: None,
            limit_rate: None,
            io_priority: None,
            clear_slots: false,
            bad_samples: BadSamples::Error,
            lend_timeout: Duration::from_secs(30),
            #[cfg(test)]
            clock: None,
            #[cfg(test)]
            wrap: None,
        }
    }

    /// Which rank of how many this loader feeds. Default: [`Rank::single`], whatever launcher started the process; ask one by
    /// [`Rank::detect`].
    ///
    /// A global batch is `batch_size` x world size samples, neighbours in the order of the epoch, and rank `r` gets the
    /// `r`-th `batch_size` of them. Loaders of one job on one host compare what they feed from ([`Agreement`]), and
    /// `build` fails if they differ.
    ///
    /// [`Agreement`]: crate::Agreement
    pub fn rank(mut self, rank: Rank) -> Self {
        self.rank = rank;
        self
    }

    /// Samples in a batch of one rank. Default: 64.
    pub fn batch_size(mut self, samples: u64) -> Self {
        self.batch_size = samples;
        self
    }

    /// How the samples of an epoch are mixed. Default: [`Shuffle::None`].
    pub fn shuffle(mut self, shuffle: Shuffle) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// The seed of the shuffle. The order of an epoch depends on dataset length, seed and epoch only. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// What becomes of samples that do not fill a batch. Default: [`LastBatch::Drop`].
    pub fn last_batch(mut self, last_batch: LastBatch) -> Self {
        self.last_batch = last_batch;
        self
    }

    /// Whether a dataset with too few samples for any batch, or with fewer samples than there are ranks and the last batch
    /// `short`, is no error, but makes epochs without a batch on every rank. Default: no.
    pub fn allow_empty_epochs(mut self, allow: bool) -> Self {
        self.allow_empty_epochs = allow;
        self
    }

    /// Go on where a run was when `state` was taken: [`Loader::next_epoch`] gives the rest of its epoch. World size, batch
    /// size, last batch, backend, threads and depth may be others than they were.
    ///
    /// [`build`](LoaderBuilder::build) fails if the state is of another dataset, seed or shuffle, and says which.
    pub fn resume(mut self, state: State) -> Self {
        self.resume = Some(state);
        self
    }

    /// Where batches are delivered. Default: [`Device::Host`].
    pub fn device(mut self, device: Device) -> Self {
        self.devices = vec![device];
        self
    }

    /// Deliver each batch to several GPUs, and read it once: it is brought to the first, and copied from there to
    /// the others (by peer access where they have it, through the host where not).
    ///
    /// For a loader of its own on each GPU, build one for each.
    pub fn devices(mut self, devices: &[Device]) -> Self {
        self.devices = devices.to_vec();
        self
    }

    /// Whether a ring that does not fit onto the device is built smaller: with half the prefetch depth, down to 1.
    /// Default: no, that is an error which tells how much is free.
    pub fn shrink_ring(mut self, shrink: bool) -> Self {
        self.shrink_ring = shrink;
        self
    }

    /// Whether anything but GDS that is really direct is an error: where it does not work at all, where cuFile would
    /// take its compatibility mode, and where it fails to read a range. Default: no.
    pub fn require_gds(mut self, require: bool) -> Self {
        self.require_gds = require;
        self
    }

    /// The way to read. Default: [`Backend::Auto`].
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Batches read ahead of the caller, from 1 on; the ring has one slot more. Default: what makes 32 MiB, but at
    /// least 2 and at most 16; with [`Shuffle::Blocks`], what two windows take, up to 512 MiB. (With fewer slots, the
    /// batches of a window are read in parts, by smaller reads.)
    pub fn prefetch(mut self, batches: u32) -> Self {
        self.prefetch = Some(batches);
        self
    }

    /// Reads in flight at once, from 1 to 4096; for `pread` and `page-cache` that many threads. Default: 16.
    ///
    /// A dataset of more files than may be open at once (a quarter of `ulimit -n`) gets fewer reads than that.
    pub fn queue_depth(mut self, reads: u32) -> Self {
        self.queue_depth = reads;
        self
    }

    /// The most bytes that one read asks for: at least 4096, rounded up to whole 4096. Default: 1 MiB.
    ///
    /// A file system that needs larger multiples for direct I/O is read directly only if this is one of them.
    pub fn io_bytes(mut self, bytes: u64) -> Self {
        self.io_bytes = bytes;
        self
    }

    /// Refuse to build a loader whose ring and staging memory take more than this many bytes. Default: no limit.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// As [`memory_limit`](LoaderBuilder::memory_limit), for host memory alone: staging, and the ring where that is on the
    /// host. Default: no limit.
    pub fn host_memory_limit(mut self, bytes: u64) -> Self {
        self.host_memory_limit = Some(bytes);
        self
    }

    /// As [`memory_limit`](LoaderBuilder::memory_limit), for the memory of each GPU. Default: no limit.
    pub fn device_memory_limit(mut self, bytes: u64) -> Self {
        self.device_memory_limit = Some(bytes);
        self
    }

    /// Ask storage for at most this many bytes per second (what alignment adds is counted), with bursts of a tenth of
    /// that or of one I/O, whichever is more. Default: no limit.
    pub fn limit_rate(mut self, bytes_per_second: u64) -> Self {
        self.limit_rate = Some(bytes_per_second);
        self
    }

    /// The I/O priority of the loader's reads. Default: that of the thread that builds it.
    ///
    /// Where the I/O scheduler of a disk does not look at it, [`Report::notes`](crate::Report::notes) says so.
    pub fn io_priority(mut self, priority: IoPriority) -> Self {
        self.io_priority = Some(priority);
        self
    }

    /// Whether a batch's slot holds nothing but the batch: all else in it, such as bytes of neighbouring records that
    /// direct I/O read along and what an earlier batch left, is zeroed before the batch is delivered; and memory of a
    /// GPU is zeroed before it is freed, so that no other loader or program finds anything there. Default: no; then
    /// such bytes are never part of a batch, but whoever reads beyond it on a GPU could see them.
    pub fn clear_slots(mut self, clear: bool) -> Self {
        self.clear_slots = clear;
        self
    }

    /// What becomes of samples that cannot be read. Default: [`BadSamples::Error`].
    pub fn bad_samples(mut self, policy: BadSamples) -> Self {
        self.bad_samples = policy;
        self
    }

    /// How long an epoch waits for a batch while the caller holds every slot of the ring, before it gives up with
    /// an error of the kind [`SlotsExhausted`](ErrorKind::SlotsExhausted). Default: 30 seconds.
    pub fn lend_timeout(mut self, timeout: Duration) -> Self {
        self.lend_timeout = timeout;
        self
    }

    /// Allocates the memory, starts the threads, and sets up the backend.
    ///
    /// # Errors
    /// `InvalidArgument` for settings that make no sense (a batch size of 0; one above the dataset's length with
    /// [`LastBatch::Drop`], since no batch would come); `Unavailable` if the named backend does not work here;
    /// `OutOfMemory` if the memory is above the limit or cannot be had, stating how much it is; for a named GPU,
    /// `Unavailable` without a driver or a device and `InvalidArgument` for a number that no device has.
    pub fn build(mut self) -> Result<Loader> {
        self.shuffle.check()?;
        let run = self.run();
        let batches = Batches::new(run.samples, self.cut())?;
        let stand = match &self.resume {
            Some(state) => state.stand_in(self.fingerprint(), run.shuffle, run.seed, run.samples)?,
            None => Stand::default(),
        };
        batches.starting_at(stand.position)?;
        let io_shape = self.io_shape()?;
        let (target, device_reason) = resolve(&self.devices)?;
        let context = target.contexts().first();
        let wanted = Wanted {
            backend: self.backend,
            context,
            require_gds: self.require_gds,
            below_root: self.dataset.opener.has_root(),
        };
        let mut chosen = choose(wanted)?;
        loop {
            let built =
                self.build_with((&run, batches, stand), io_shape, &target, &device_reason, chosen.clone());
            // It worked when it was tried out a moment ago, but memory is short (locked memory, a GPU's BAR1 space), and
            // others take of it too.
            let next = match &built {
                Err(error)
                    if self.backend == Backend::Auto && !self.require_gds && failed_to_start(error) =>
                {
                    chosen.next_best(error.to_string())
                }
                _ => None,
            };
            match next {
                Some(next) => chosen = next,
                None => return built,
            }
        }
    }

    fn run(&self) -> Run {
        Run {
            samples: self.mixture.as_ref().map_or(self.dataset.len(), Mixture::samples_per_epoch),
            seed: self.seed,
            shuffle: self.shuffle,
            mixture: self.mixture.as_ref().map(|mixture| Arc::clone(mixture.interleave())),
        }
    }

    fn cut(&self) -> Cut {
        Cut {
            batch_size: self.batch_size,
            last: self.last_batch,
            rank: self.rank.rank().into(),
            world: self.rank.world_size().into(),
            allow_empty: self.allow_empty_epochs,
        }
    }

    fn build_with(
        &mut self,
        (run, batches, stand): (&Run, Batches, Stand),
        (depth, io_bytes): (u32, u32),
        target: &Target,
        device_reason: &str,
        chosen: Chosen,
    ) -> Result<Loader> {
        let on_gpu = !target.contexts().is_empty();
        let at_once = chosen.backend == Backend::PageCache;
        let by_gds = chosen.backend == Backend::Gds;
        let rows = batches.largest();
        let window = match self.shuffle {
            Shuffle::Blocks { window, .. } => Some(window),
            _ => None,
        };
        let policy = match (self.backend, chosen.backend) {
            // What comes from the page cache does not come by GDS.
            (Backend::Auto, _) if !self.require_gds => OpenPolicy::DirectUnlessCached,
            (_, Backend::PageCache) => OpenPolicy::Buffered,
            _ => OpenPolicy::Direct,
        };
        let files =
            FileTable::new(Arc::clone(&self.dataset), policy, io_bytes, if by_gds { GDS_ALIGN } else { 1 });
        // Every read in flight may be of another file, and planning opens one more.
        let depth = match files.capacity() {
            capacity if capacity < self.dataset.files().len() => depth.min(capacity as u32 - 1),
            _ => depth,
        };
        let layout =
            Layout::new(&self.dataset, rows, io_bytes, at_once || (on_gpu && !by_gds)).ok_or_else(|| {
                let one = self.dataset.sample_bytes();
                let what = format!("a batch of {rows} samples of {one} bytes does not fit into memory");
                Error::new(ErrorKind::OutOfMemory, what)
            })?;
        // Chunks are read into, and for a GPU that many more can be copied from meanwhile.
        let chunks = if on_gpu && !at_once { chunks_for(depth, io_bytes) } else { depth };
        let together = window.map_or(1, |window| window.div_ceil(batches.global()));
        let (ring, free) = self.ring(&layout, (chunks, depth, by_gds), target, together)?;
        // cuFile reads into GPU memory only; what it cannot read passes through a host buffer of each thread.
        let context = target.contexts().first().filter(|_| by_gds);
        let staging = Staging::new(chunks, io_bytes as usize, context, self.clear_slots)?;
        let bounce_bytes = if by_gds { u64::from(depth) * u64::from(io_bytes) } else { 0 };
        let gds = chosen.gds.clone().map(|cufile| {
            let smallest = if self.backend == Backend::Auto { GDS_SMALLEST } else { 0 };
            (cufile, GdsSettings { require: self.require_gds, smallest })
        });
        let settings = Settings {
            batches,
            rank: self.rank.clone(),
            agreement: Agreement::new(self.fingerprint(), &self.order_settings(run, stand)),
            prefetch: ring.slots() as u32 - 1,
            queue_depth: depth,
            io_bytes,
            lend_timeout: self.lend_timeout,
            device_bytes: ring.bytes() + if by_gds { staging.bytes() } else { 0 },
            pinned_bytes: if by_gds { bounce_bytes } else { staging.bytes() },
            devices: target.devices(),
            device_reason: device_reason.into(),
            chosen,
        };
        let setup = Setup {
            dataset: Arc::clone(&self.dataset),
            layout,
            backend: settings.chosen.backend,
            queue_depth: depth,
            window,
            clear: self.clear_slots,
            bad_samples: self.bad_samples,
            limit: self.limit(io_bytes)?,
            notes: self.notes(),
        };
        let stats = Arc::new(Stats::new(self.dataset.files().len()));
        let cancel = Arc::new(AtomicBool::new(false));
        let (commands, incoming) = bounded(2);
        // Room for every slot and the word that an epoch is over: the reading thread never waits for the caller here.
        let (outgoing, deliveries) = bounded(ring.slots() + 1);
        let (stop, stopped) = bounded(1);
        let thread = Start {
            links: Links {
                commands: incoming,
                free,
                deliveries: outgoing,
                cancel: Arc::clone(&cancel),
                stats: Arc::clone(&stats),
            },
            files,
            ring: Arc::clone(&ring),
            staging,
            priority: self.io_priority,
            gds,
            setup,
            #[cfg(test)]
            wrap: self.wrap.take(),
        }
        .start()?;
        Ok(Loader {
            shared: Arc::new(Shared {
                dataset: Arc::clone(&self.dataset),
                run: run.clone(),
                fingerprint: self.fingerprint().into(),
                ring,
                stats,
                cancel,
            }),
            settings,
            commands: Some(commands),
            deliveries,
            thread: Some(thread),
            stop: StopHandle(stop),
            stopped,
            running: false,
            stand,
            closed: None,
            process: std::process::id(),
        })
    }

    /// All that the order depends on beside the data, and that ranks have in common.
    fn order_settings(&self, run: &Run, stand: Stand) -> Vec<(&'static str, String)> {
        vec![
            ("seed", run.seed.to_string()),
            ("shuffle", run.shuffle.to_string()),
            ("samples per epoch", run.samples.to_string()),
            ("batch size", self.batch_size.to_string()),
            ("world size", self.rank.world_size().to_string()),
            ("last batch", self.last_batch.to_string()),
            ("first epoch", stand.epoch.to_string()),
            ("first position", stand.position.to_string()),
        ]
    }

    fn limit(&mut self, io_bytes: u32) -> Result<Option<TokenBucket>> {
        let Some(rate) = self.limit_rate else { return Ok(None) };
        let Some(rate) = std::num::NonZeroU64::new(rate) else {
            return Err(Error::argument("the limit is 0 bytes per second, so nothing would ever come"));
        };
        let clock: Box<dyn Clock> = Box::new(SystemClock::new());
        #[cfg(test)]
        let clock = self.clock.take().unwrap_or(clock);
        Ok(Some(TokenBucket::new(rate, (rate.get() / 10).max(io_bytes.into()), clock)))
    }

    /// What there is to say of the settings before anything is read.
    fn notes(&self) -> Vec<String> {
        let Some(priority) = self.io_priority else { return Vec::new() };
        let devices: std::collections::BTreeSet<u64> =
            self.dataset.files().iter().map(|file| file.identity().device).collect();
        let ignoring: std::collections::BTreeSet<String> =
            devices.into_iter().filter_map(scheduler_of).filter(|name| !honours_priority(name)).collect();
        let note = |name| {
            format!(
                "the I/O priority {priority} has no effect where the disk's I/O scheduler is {name}, as it is here"
            )
        };
        ignoring.into_iter().map(note).collect()
    }

    fn fingerprint(&self) -> &str {
        self.mixture.as_ref().map_or(self.dataset.fingerprint(), Mixture::fingerprint)
    }

    /// The queue depth, and the most bytes of one read.
    fn io_shape(&self) -> Result<(u32, u32)> {
        let depth = self.queue_depth;
        if !(1..=4096).contains(&depth) {
            return Err(Error::argument(format!("the queue depth is {depth}; it must be from 1 to 4096")));
        }
        if self.io_bytes < 4096 {
            let what = format!("an I/O of {} bytes is too small; it must be at least 4096", self.io_bytes);
            return Err(Error::argument(what));
        }
        // An I/O beyond the largest file would only take memory.
        let largest = self.dataset.files().iter().map(|file| file.identity().size).max().unwrap_or(0);
        let useful = largest.checked_next_multiple_of(64 << 10).unwrap_or(LARGEST_IO);
        let most = useful.min(LARGEST_IO);
        Ok((depth, self.io_bytes.checked_next_multiple_of(4096).unwrap_or(most).min(most) as u32))
    }

    /// Allocates the ring, or says what it would take.
    fn ring(
        &self,
        layout: &Layout,
        (chunks, depth, by_gds): (u32, u32, bool),
        target: &Target,
        together: u64,
    ) -> Result<(Arc<Ring>, Receiver<Free>)> {
        let slot_bytes = layout.slot_bytes as u64;
        let devices = target.contexts().len().max(1) as u64;
        let mut prefetch = match self.prefetch {
            Some(0) => return Err(Error::argument("the prefetch depth is 0; it must be at least 1")),
            Some(batches) => batches,
            None => {
                let ahead = AHEAD_BYTES.div_ceil(slot_bytes).clamp(2, 16);
                // Two windows: one for the caller, and one to be read meanwhile.
                let windows = (2 * together.min(MOST_REGIONS)).min(WINDOW_BYTES / slot_bytes);
                ahead.max(windows.saturating_sub(1)) as u32
            }
        };
        loop {
            let slots = u64::from(prefetch) + 1;
            if slots + u64::from(chunks) > MOST_REGIONS {
                return Err(Error::argument(format!(
                    "prefetch {prefetch} and queue depth {} are more than {MOST_REGIONS} buffers together",
                    self.queue_depth
                )));
            }
            let ring_bytes = slots.saturating_mul(slot_bytes);
            let io_bytes = u64::from(layout.io_bytes);
            let (staging, bounce) = (u64::from(chunks) * io_bytes, u64::from(depth) * io_bytes);
            // On the host, and on each GPU. cuFile's chunks are on the first.
            let (host, device) = match (target, by_gds) {
                (Target::Host, _) => (ring_bytes.saturating_add(staging), 0),
                (Target::Cuda(_), false) => (staging, ring_bytes),
                (Target::Cuda(_), true) => (bounce, ring_bytes.saturating_add(staging)),
            };
            let all = host.saturating_add(ring_bytes.saturating_mul(devices) * u64::from(device > 0));
            let all = all.saturating_add(if by_gds { staging } else { 0 });
            let limits = [
                ("", all, self.memory_limit),
                (" of host memory", host, self.host_memory_limit),
                (" of memory on a GPU", device, self.device_memory_limit),
            ];
            let above =
                limits.into_iter().find(|(_, needed, limit)| limit.is_some_and(|limit| *needed > limit));
            let made = match above {
                Some((of_what, needed, limit)) => Err(Error::new(
                    ErrorKind::OutOfMemory,
                    format!(
                        "the loader needs {needed} bytes{of_what} ({slots} slots of {slot_bytes} on {devices} devices and \
                         {chunks} chunks of {io_bytes}), the limit is {}",
                        limit.unwrap_or(0)
                    ),
                )),
                None => Ring::new(slots as usize, layout.slot_bytes, target.clone(), self.clear_slots),
            };
            match made {
                Err(error) if error.kind() == ErrorKind::OutOfMemory && self.shrink_ring && prefetch > 1 => {
                    prefetch /= 2;
                }
                Err(error) if error.kind() == ErrorKind::OutOfMemory && above.is_none() => {
                    let what =
                        format!("the ring needs {slots} slots of {slot_bytes} bytes (prefetch {prefetch})");
                    return Err(Error::new(ErrorKind::OutOfMemory, what).caused_by(error));
                }
                made => return made,
            }
        }
    }
}

/// Whether a loader could not be built for what its backend needs, and another backend may do.
fn failed_to_start(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Device | ErrorKind::Unsupported)
}

/// Chunks for a GPU: twice the queue depth, so that as many can be copied from as are read into, but no more than
/// 64 MiB unless the queue alone takes that.
fn chunks_for(depth: u32, io_bytes: u32) -> u32 {
    const MOST_BYTES: u32 = 64 << 20;
    (2 * depth).min((MOST_BYTES / io_bytes).max(depth + 1))
}
