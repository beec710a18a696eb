//! How a loader is put together.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use super::pipeline::{Links, Setup};
use super::plan::Layout;
use super::ring::{Free, Ring};
use super::staging::Staging;
use super::start::Start;
use super::stats::Stats;
use super::{Loader, Settings, Shared, StopHandle};
use crate::backend::{Backend, Chosen, GdsSettings, Wanted, choose};
use crate::dataset::{Dataset, Mixture};
use crate::memory::{Device, Target, resolve};
use crate::order::{Batches, Cut, LastBatch, Run, Shuffle, Stand, State};
use crate::storage::{FileTable, OpenPolicy};
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
    resume: Option<State>,
    devices: Vec<Device>,
    backend: Backend,
    prefetch: Option<u32>,
    shrink_ring: bool,
    require_gds: bool,
    queue_depth: u32,
    io_bytes: u64,
    memory_limit: Option<u64>,
    lend_timeout: Duration,
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
            resume: None,
            devices: vec![Device::Host],
            backend: Backend::Auto,
            prefetch: None,
            shrink_ring: false,
            require_gds: false,
            queue_depth: 16,
            io_bytes: 1 << 20,
            memory_limit: None,
            lend_timeout: Duration::from_secs(30),
            #[cfg(test)]
            wrap: None,
        }
    }

    /// Samples in a batch. Default: 64.
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
        let wanted = Wanted { backend: self.backend, context, require_gds: self.require_gds };
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
            rank: 0,
            world: 1,
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
        let (ring, free) = self.ring(&layout, chunks, target, together)?;
        // cuFile reads into GPU memory only; what it cannot read passes through a host buffer of each thread.
        let staging = Staging::new(chunks, io_bytes as usize, target.contexts().first().filter(|_| by_gds))?;
        let bounce_bytes = if by_gds { u64::from(depth) * u64::from(io_bytes) } else { 0 };
        let gds = chosen.gds.clone().map(|cufile| {
            let smallest = if self.backend == Backend::Auto { GDS_SMALLEST } else { 0 };
            (cufile, GdsSettings { require: self.require_gds, smallest })
        });
        let settings = Settings {
            batches,
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
        chunks: u32,
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
            let ring_bytes = slots.saturating_mul(slot_bytes).saturating_mul(devices);
            let needed = ring_bytes.saturating_add(u64::from(chunks) * u64::from(layout.io_bytes));
            let made = match self.memory_limit.filter(|&limit| needed > limit) {
                Some(limit) => Err(Error::new(
                    ErrorKind::OutOfMemory,
                    format!(
                        "the loader needs {needed} bytes ({slots} slots of {slot_bytes} on {devices} devices and \
                         {chunks} chunks of {}), the limit is {limit}",
                        layout.io_bytes
                    ),
                )),
                None => Ring::new(slots as usize, layout.slot_bytes, target.clone()),
            };
            match made {
                Err(error) if error.kind() == ErrorKind::OutOfMemory && self.shrink_ring && prefetch > 1 => {
                    prefetch /= 2;
                }
                Err(error) if error.kind() == ErrorKind::OutOfMemory && self.memory_limit.is_none() => {
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
