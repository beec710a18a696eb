//! The settings of a loader to be.

use std::sync::Arc;
use std::time::Duration;

use super::bad::BadSamples;
#[cfg(test)]
use super::rate::Clock;
use crate::backend::{Backend, Polling};
use crate::dataset::{Dataset, Mixture};
use crate::launch::Rank;
use crate::measure::Tuning;
use crate::memory::Device;
use crate::order::{LastBatch, Shuffle, State};
use crate::storage::IoPriority;

/// What a loader loads: a [`Dataset`], or a [`Mixture`] of several.
#[derive(Debug, Clone)]
pub struct Source {
    dataset: Arc<Dataset>,
    mixture: Option<Mixture>,
}

impl Source {
    /// The dataset; of a mixture, that of all its parts.
    pub(crate) fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }
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

/// Settings of a [`Loader`](crate::Loader) to be.
#[derive(Debug)]
#[must_use]
pub struct LoaderBuilder {
    pub(super) dataset: Arc<Dataset>,
    pub(super) mixture: Option<Mixture>,
    pub(super) batch_size: u64,
    pub(super) shuffle: Shuffle,
    pub(super) seed: u64,
    pub(super) last_batch: LastBatch,
    pub(super) allow_empty_epochs: bool,
    pub(super) rank: Rank,
    pub(super) name: String,
    pub(super) resume: Option<State>,
    pub(super) devices: Vec<Device>,
    pub(super) backend: Backend,
    /// What was found to be fastest, for `auto`.
    pub(super) tuned: Option<Backend>,
    pub(super) prefetch: Option<u32>,
    pub(super) shrink_ring: bool,
    pub(super) require_gds: bool,
    pub(super) queue_depth: u32,
    /// `None`: what suits the storage.
    pub(super) io_bytes: Option<u64>,
    pub(super) polling: Polling,
    pub(super) memory_limit: Option<u64>,
    pub(super) host_memory_limit: Option<u64>,
    pub(super) device_memory_limit: Option<u64>,
    pub(super) limit_rate: Option<u64>,
    pub(super) io_priority: Option<IoPriority>,
    pub(super) clear_slots: bool,
    pub(super) bad_samples: BadSamples,
    pub(super) stats: bool,
    pub(super) trace: bool,
    pub(super) lend_timeout: Duration,
    pub(super) read_timeout: Duration,
    /// Drives are taken to have polled queues.
    #[cfg(test)]
    pub(crate) pretend_polled: bool,
    /// What a file is taken to be on.
    #[cfg(test)]
    pub(crate) pretend_device: Option<fn(&crate::ShardFile) -> u64>,
    #[cfg(test)]
    pub(crate) clock: Option<Box<dyn Clock>>,
    #[cfg(test)]
    pub(crate) wrap: Option<crate::backend::testing::Wrap>,
}

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
            name: String::new(),
            resume: None,
            devices: vec![Device::Host],
            backend: Backend::Auto,
            tuned: None,
            prefetch: None,
            shrink_ring: false,
            require_gds: false,
            queue_depth: 16,
            io_bytes: None,
            polling: Polling::Auto,
            memory_limit: None,
            host_memory_limit: None,
            device_memory_limit: None,
            limit_rate: None,
            io_priority: None,
            clear_slots: false,
            bad_samples: BadSamples::Error,
            stats: false,
            trace: false,
            lend_timeout: Duration::from_secs(30),
            read_timeout: Duration::from_secs(300),
            #[cfg(test)]
            pretend_polled: false,
            #[cfg(test)]
            pretend_device: None,
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

    /// A name, by which loaders are compared with those of other ranks: the first of this name with the first, the second
    /// with the second, and so on. Only a loader that some ranks do not build needs one. Default: the empty name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
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

    /// Go on where a run was when `state` was taken: [`Loader::next_epoch`](crate::Loader::next_epoch) gives the rest of its epoch. World size, batch
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

    /// Takes I/O size, queue depth and, for [`Backend::Auto`], the backend from what was found to be fastest on this disk, by
    /// [`tune_loader`](crate::measure::tune_loader). What is set after this counts instead.
    pub fn tuned(mut self, tuning: &Tuning) -> Self {
        self.tuned = Some(tuning.backend);
        self.queue_depth(tuning.queue_depth).io_bytes(tuning.io_bytes)
    }

    /// Batches read ahead of the caller, from 1 on; the ring has one slot more. Default: what makes 32 MiB, but at
    /// least 2 and at most 16; with [`Shuffle::Blocks`], what two windows take, up to 512 MiB. (With fewer slots, the
    /// batches of a window are read in parts, by smaller reads.)
    pub fn prefetch(mut self, batches: u32) -> Self {
        self.prefetch = Some(batches);
        self
    }

    /// Reads in flight at once on each drive, from 1 to 4096; for `pread` and `page-cache` that many threads. Default: 16.
    ///
    /// Files whose `st_dev` differs are taken to be on different drives. Each has a queue of its own, and goes on with the
    /// reads of later batches as far as there are slots, however slow another one is. Together there are at most 4096
    /// reads, and no more than take 256 MiB unless a single drive's take more, fit into the memory limits, or may have
    /// files open (a quarter of `ulimit -n`); drives then have fewer each, which [`Report::notes`](crate::Report::notes) says.
    pub fn queue_depth(mut self, reads: u32) -> Self {
        self.queue_depth = reads;
        self
    }

    /// The most bytes that one read asks for: at least 4096, rounded up to whole 4096. Default: what suits the storage, which
    /// is 1 MiB for most; where all files are on NFS, as many whole requests to the server (`rsize`) as that is, or one that
    /// is larger, up to 4 MiB; on a RAID, whole stripes of it. Reads of more than that are cut in the file at multiples of
    /// such a request or stripe; [`Report::notes`](crate::Report::notes) says so.
    ///
    /// A file system that needs larger multiples for direct I/O is read directly only if this is one of them.
    pub fn io_bytes(mut self, bytes: u64) -> Self {
        self.io_bytes = Some(bytes);
        self
    }

    /// Whether completions of direct reads are polled for, where the backend is `uring` and the drive has polled queues.
    /// Default: [`Polling::Auto`].
    pub fn polling(mut self, polling: Polling) -> Self {
        self.polling = polling;
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

    /// Whether the loader looks at how long its stages take, for [`Loader::stats`](crate::Loader::stats). Default: no, which
    /// costs nothing; it costs less than a hundredth of the throughput (`benches/RECORD.md`).
    ///
    /// Such a loader also marks NVTX ranges for a profiler, if `libnvToolsExt.so.1` is found: "gpufeed plan", "gpufeed
    /// wait for storage", "gpufeed wait for copies" and "gpufeed wait for a slot" on the thread that reads, and "gpufeed
    /// wait for a batch" on the caller's. NVTX 3 has no such library: a profiler that injects only that version does not
    /// see them.
    pub fn stats(mut self, look: bool) -> Self {
        self.stats = look;
        self
    }

    /// Whether it also keeps what every stage did when, for [`Loader::trace_json`](crate::Loader::trace_json): the first
    /// 2^20 spans, in about 50 MB. Default: no.
    pub fn trace(mut self, keep: bool) -> Self {
        self.trace = keep;
        self
    }

    /// How long an epoch waits for a batch while the caller holds every slot of the ring, before it gives up with
    /// an error of the kind [`SlotsExhausted`](crate::ErrorKind::SlotsExhausted). Default: 30 seconds.
    pub fn lend_timeout(mut self, timeout: Duration) -> Self {
        self.lend_timeout = timeout;
        self
    }

    /// How long storage may leave the loader without an answer (no read that is in flight completes, or the opening of a file
    /// does not end) before an epoch that waits for a batch ends with an error of the kind
    /// [`TimedOut`](crate::ErrorKind::TimedOut), which names the file and the place. Default: 300 seconds, in which a file server
    /// can be restarted. Zero: for ever.
    ///
    /// The loader is closed then. Its thread, and the memory that reads in flight may still be written to, are kept until storage
    /// answers after all; batches that the caller has stay as they are. The same if reads are still in flight 10 seconds after a
    /// loader was dropped, or this long if that is less.
    ///
    /// A process that ends meanwhile is gone at once, with one exception: a direct read of [`Backend::Pread`] from a local disk
    /// cannot be killed, so the kernel keeps a process that has one as a zombie until the disk answers.
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.read_timeout = timeout;
        self
    }
}
