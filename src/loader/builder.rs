//! How a loader is put together.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crossbeam_channel::bounded;

use super::pipeline::{Links, Pipeline, Setup};
use super::plan::Layout;
use super::ring::{Ring, Staging};
use super::stats::Stats;
use super::{Loader, Settings, Shared, StopHandle};
use crate::backend::{Backend, Chosen, PoolReader, Reader, Region, UringReader, choose};
use crate::dataset::Dataset;
use crate::order::{Batches, LastBatch, Shuffle};
use crate::storage::{FileTable, OpenPolicy};
use crate::{Error, ErrorKind, Result};

/// Settings of a [`Loader`] to be.
#[derive(Debug)]
#[must_use]
pub struct LoaderBuilder {
    dataset: Arc<Dataset>,
    batch_size: u64,
    shuffle: Shuffle,
    seed: u64,
    last_batch: LastBatch,
    backend: Backend,
    prefetch: Option<u32>,
    queue_depth: u32,
    io_bytes: u64,
    memory_limit: Option<u64>,
    lend_timeout: Duration,
    #[cfg(test)]
    pub(crate) wrap: Option<WrapReader>,
}

/// Puts a reader of a test around the real one.
#[cfg(test)]
pub(crate) type WrapReader = crate::backend::testing::Wrap;

/// Reads ahead at least this much, so that the queue stays full while a batch changes hands.
const AHEAD_BYTES: u64 = 32 << 20;
/// The kernel takes at most this many registered buffers: one for each slot and chunk.
const MOST_REGIONS: u64 = 16 << 10;
/// The most bytes that the kernel moves in one read, rounded down to a whole 64 KiB.
const LARGEST_IO: u64 = 0x7fff_0000;

impl LoaderBuilder {
    pub(super) fn new(dataset: Arc<Dataset>) -> Self {
        LoaderBuilder {
            dataset,
            batch_size: 64,
            shuffle: Shuffle::None,
            seed: 0,
            last_batch: LastBatch::Drop,
            backend: Backend::Auto,
            prefetch: None,
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

    /// The way to read. Default: [`Backend::Auto`].
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Batches read ahead of the caller, from 1 on; the ring has one slot more. Default: what makes 32 MiB, but at
    /// least 2 and at most 16.
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
    /// `OutOfMemory` if the memory is above the limit or cannot be had, stating how much it is.
    pub fn build(mut self) -> Result<Loader> {
        let chosen = choose(self.backend)?;
        match self.build_with(chosen) {
            // It worked when it was tried out a moment ago: locked memory is short, and others take it too.
            Err(error) if self.backend == Backend::Auto && error.kind() == ErrorKind::Unavailable => {
                self.build_with(Chosen::instead_of_uring(error.to_string()))
            }
            built => built,
        }
    }

    fn build_with(&mut self, chosen: Chosen) -> Result<Loader> {
        let batches = Batches::new(self.dataset.len(), self.batch_size, self.last_batch)?;
        let depth = self.queue_depth;
        if !(1..=4096).contains(&depth) {
            return Err(Error::argument(format!("the queue depth is {depth}; it must be from 1 to 4096")));
        }
        if self.prefetch == Some(0) {
            return Err(Error::argument("the prefetch depth is 0; it must be at least 1"));
        }
        if self.io_bytes < 4096 {
            return Err(Error::argument(format!(
                "an I/O of {} bytes is too small; it must be at least 4096",
                self.io_bytes
            )));
        }
        // An I/O or a slot beyond the largest file or a whole epoch would only take memory.
        let largest = self.dataset.files().iter().map(|file| file.identity().size).max().unwrap_or(0);
        let useful = largest.checked_next_multiple_of(64 << 10).unwrap_or(LARGEST_IO);
        let io_bytes = self.io_bytes.min(LARGEST_IO).next_multiple_of(4096).min(useful) as u32;
        let rows = match self.last_batch {
            LastBatch::Short => self.batch_size.min(self.dataset.len()),
            _ => self.batch_size,
        };

        let policy = match (self.backend, chosen.backend) {
            (Backend::Auto, _) => OpenPolicy::DirectUnlessCached,
            (_, Backend::PageCache) => OpenPolicy::Buffered,
            _ => OpenPolicy::Direct,
        };
        let files = FileTable::new(Arc::clone(&self.dataset), policy, io_bytes);
        // Every read in flight may be of another file, and planning opens one more.
        let depth = match files.capacity() {
            capacity if capacity < self.dataset.files().len() => depth.min(capacity as u32 - 1),
            _ => depth,
        };
        let layout = Layout::new(&self.dataset, rows, io_bytes, chosen.backend == Backend::PageCache)
            .ok_or_else(|| {
                let one = self.dataset.sample_bytes();
                Error::new(
                    ErrorKind::OutOfMemory,
                    format!("a batch of {rows} samples of {one} bytes does not fit into memory"),
                )
            })?;
        let slot_bytes = layout.slot_bytes as u64;
        let prefetch = self.prefetch.unwrap_or_else(|| AHEAD_BYTES.div_ceil(slot_bytes).clamp(2, 16) as u32);
        let slots = u64::from(prefetch) + 1;
        if slots + u64::from(depth) > MOST_REGIONS {
            return Err(Error::argument(format!(
                "prefetch {prefetch} and queue depth {depth} are more than {MOST_REGIONS} buffers together"
            )));
        }
        let needed = slots.saturating_mul(slot_bytes).saturating_add(u64::from(depth) * u64::from(io_bytes));
        if let Some(limit) = self.memory_limit.filter(|&limit| needed > limit) {
            return Err(Error::new(
                ErrorKind::OutOfMemory,
                format!(
                    "the loader needs {needed} bytes ({slots} slots of {slot_bytes} and {depth} chunks of {io_bytes}), the limit is {limit}"
                ),
            ));
        }

        let (ring, free) = Ring::new(slots as usize, layout.slot_bytes)?;
        let staging = Staging::new(depth, io_bytes as usize)?;
        let stats = Arc::new(Stats::new(self.dataset.files().len()));
        let cancel = Arc::new(AtomicBool::new(false));
        let settings = Settings {
            batches,
            prefetch,
            queue_depth: depth,
            io_bytes,
            lend_timeout: self.lend_timeout,
            staging_bytes: staging.bytes(),
            chosen,
        };
        let backend = settings.chosen.backend;
        let setup = Setup {
            dataset: Arc::clone(&self.dataset),
            batches,
            seed: self.seed,
            shuffle: self.shuffle,
            layout,
            backend,
            queue_depth: depth,
        };
        let (commands, incoming) = bounded(2);
        // Room for every slot and the word that an epoch is over: the reading thread never waits for the caller here.
        let (outgoing, deliveries) = bounded(slots as usize + 1);
        let (stop, stopped) = bounded(1);
        let links = Links {
            commands: incoming,
            free,
            deliveries: outgoing,
            cancel: Arc::clone(&cancel),
            stats: Arc::clone(&stats),
        };
        #[cfg(test)]
        let wrap = self.wrap.take();
        let (started, starting) = bounded(1);
        let pipeline_ring = Arc::clone(&ring);
        let thread = std::thread::Builder::new()
            .name("gpufeed-io".into())
            .spawn(move || {
                // The ring of io_uring belongs to the thread that makes it, so the reader is made here.
                let regions: Vec<Region> = pipeline_ring.regions().chain(staging.regions()).collect();
                let reader = make_reader(backend, depth, &regions, files.capacity() as u32);
                #[cfg(test)]
                let reader = reader.map(|reader| match wrap {
                    Some(wrap) => (wrap.0)(reader),
                    None => reader,
                });
                match reader {
                    Ok(reader) => {
                        let pipeline = Pipeline::new(setup, links, pipeline_ring, staging, files, reader);
                        let _ = started.send(Ok(()));
                        pipeline.run();
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
            })
            .map_err(|e| Error::new(ErrorKind::Io, "cannot start the reading thread").caused_by(e))?;
        let loader = Loader {
            shared: Arc::new(Shared { dataset: Arc::clone(&self.dataset), ring, stats, cancel }),
            settings,
            commands: Some(commands),
            deliveries,
            thread: Some(thread),
            stop: StopHandle(stop),
            stopped,
            running: false,
            closed: None,
        };
        match starting.recv() {
            Ok(Ok(())) => Ok(loader),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let mut loader = loader;
                Err(loader.why_gone())
            }
        }
    }
}

fn make_reader(backend: Backend, depth: u32, regions: &[Region], files: u32) -> Result<Box<dyn Reader>> {
    match backend {
        Backend::Pread | Backend::PageCache => Ok(Box::new(PoolReader::new(depth)?)),
        Backend::Auto | Backend::Uring => match UringReader::new(depth, regions, files) {
            Ok(reader) => Ok(Box::new(reader)),
            Err(refused) => Err(Error::new(ErrorKind::Unavailable, refused.0).by(backend.name())),
        },
    }
}
