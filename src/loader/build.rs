//! Building a loader from its settings: memory, backend, threads.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crossbeam_channel::{Receiver, bounded};

use super::depth::{Depth, MOST_READS};
use super::plan::Layout;
use super::polls::Verdict;
use super::rate::{Clock, SystemClock, TokenBucket};
use super::ring::{Free, Ring};
use super::setup::{Links, Setup};
use super::staging::Staging;
use super::start::Start;
use super::stats::Stats;
use super::timing::{Timing, Watch};
use super::{Loader, LoaderBuilder, Settings, Shared, StopHandle};
use crate::backend::{Backend, Chosen, GdsSettings, Polling, Wanted, choose};
use crate::dataset::{Mixture, ShardFile};
use crate::launch::{Agreement, Entered, Registration};
use crate::memory::{Target, resolve};
use crate::order::{Batches, Cut, Run, Shuffle, Stand};
use crate::storage::{
    Drives, FileSystem, FileTable, IoShape, OpenPolicy, Pulse, honours_priority, scheduler_of,
};
use crate::{Error, ErrorKind, Result};
/// cuFile takes its short way for reads on these boundaries only.
const GDS_ALIGN: u32 = 4096;
/// `auto` does not send smaller reads through cuFile: a cuFile read has a cost of its own (`benches/RECORD.md`). The number
/// is KvikIO's default; where the two ways cross on a real GPU has not been measured.
const GDS_SMALLEST: u32 = 16 << 10;
/// Reads ahead at least this much, so that the queue stays full while a batch changes hands.
const AHEAD_BYTES: u64 = 32 << 20;
/// By default the ring, and the plan for it, take no more than this for the windows of a shuffle by blocks.
const WINDOW_BYTES: u64 = 512 << 20;
/// What a sample takes in a plan, beside its bytes in the ring: its number, and where it is to be read from and put to.
const PLANNED_BYTES: u64 = 64;
/// By default the ring has no more slots than this: each is set up, and registered with the kernel, when the loader is built.
const MOST_SLOTS: u64 = 512;
/// The kernel takes at most this many registered buffers: one for each slot and chunk.
const MOST_REGIONS: u64 = 16 << 10;
/// The most bytes that the kernel moves in one read, rounded down to a whole 64 KiB.
const LARGEST_IO: u64 = 0x7fff_0000;

/// How a loader reads.
#[derive(Debug)]
struct Io {
    /// Reads in flight at once.
    depth: u32,
    /// The most bytes of one read.
    bytes: u32,
    /// See [`Layout::cut`].
    cut: u32,
    /// What the storage had to say in that.
    note: Option<String>,
}

impl LoaderBuilder {
    /// Allocates the memory, starts the threads, and sets up the backend.
    ///
    /// # Errors
    /// `InvalidArgument` for settings that make no sense (a batch size of 0; one above the dataset's length with
    /// [`LastBatch::Drop`](crate::LastBatch::Drop), since no batch would come); `Unavailable` if the named backend does not work here;
    /// `OutOfMemory` if the memory is above the limit or cannot be had, stating how much it is; for a named GPU,
    /// `Unavailable` without a driver or a device and `InvalidArgument` for a number that no device has; `TimedOut` if storage does
    /// not answer ([`read_timeout`](LoaderBuilder::read_timeout)).
    pub fn build(mut self) -> Result<Loader> {
        self.shuffle.check()?;
        let run = self.run();
        let batches = Batches::new(run.samples, self.cut())?;
        let stand = match &self.resume {
            Some(state) => state.stand_in(self.fingerprint(), run.shuffle, run.seed, run.samples)?,
            None => Stand::default(),
        };
        batches.starting_at(stand.position)?;
        let file_systems = self.dataset.file_systems_within(self.read_timeout)?;
        let io = self.io(&file_systems)?;
        let (target, device_reason) = resolve(&self.devices)?;
        let context = target.contexts().first();
        let tuned = self.tuned.filter(|_| self.backend == Backend::Auto && !self.require_gds);
        let wanted = Wanted {
            backend: self.backend,
            context,
            require_gds: self.require_gds,
            below_root: self.dataset.opener.has_root(),
            file_systems: &file_systems,
        };
        // Where the fastest does not work any more, `auto` is as it is without.
        let fastest = tuned.and_then(|backend| choose(Wanted { backend, ..wanted }).ok());
        let mut chosen = match fastest {
            Some(fastest) => {
                Chosen { reason: "it was the fastest when this disk was tuned".into(), ..fastest }
            }
            None => choose(wanted)?,
        };
        let drives = self.drives();
        self.check_polling(&chosen, &drives)?;
        let mut loader = loop {
            let built = self.build_with(
                (&run, batches, stand),
                (&io, &file_systems, &drives),
                (&target, &device_reason),
                chosen.clone(),
            );
            // It worked when it was tried out a moment ago, but memory is short (locked memory, a GPU's BAR1 space), and
            // others take of it too.
            let next = match &built {
                Err(error) if self.may_read_otherwise() && failed_to_start(error) => {
                    chosen.next_best(error.to_string())
                }
                _ => None,
            };
            match next {
                Some(next) => chosen = next,
                None => break built?,
            }
        };
        self.enter(&mut loader, &run, stand)?;
        Ok(loader)
    }

    /// What the files are on.
    fn drives(&self) -> Arc<Drives> {
        let device = |file: &ShardFile| file.identity().device;
        #[cfg(test)]
        let device = |file: &ShardFile| self.pretend_device.map_or(device(file), |device| device(file));
        let drives = Drives::new(self.dataset.files().iter().map(device));
        #[cfg(test)]
        let drives = if self.pretend_polled { drives.pretend_polled() } else { drives };
        Arc::new(drives)
    }

    /// Whether any backend will do.
    fn may_read_otherwise(&self) -> bool {
        self.backend == Backend::Auto && !self.require_gds && self.polling != Polling::Always
    }

    /// Compares the loader with those of other ranks on this host, as the last thing: others are held to what it says.
    fn enter(&self, loader: &mut Loader, run: &Run, stand: Stand) -> Result<()> {
        if self.rank.world_size() == 1 {
            return Ok(());
        }
        let fingerprint = [("dataset fingerprint", self.fingerprint().to_string())];
        let details: Vec<(String, String)> = fingerprint
            .into_iter()
            .chain(self.order_settings(run))
            .chain(place(stand))
            .map(|(name, value)| (name.into(), value))
            .collect();
        match Registration::enter(&self.rank, &self.name, loader.agreement(), &details)? {
            Entered::Checked(registration) => loader._registration = Some(registration),
            Entered::NotChecked(why) => {
                let note = format!("not compared with other ranks on this host: {why}");
                loader.settings.not_compared = Some(note);
            }
        }
        Ok(())
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
        (io, file_systems, drives): (&Io, &[FileSystem], &Arc<Drives>),
        (target, device_reason): (&Target, &str),
        chosen: Chosen,
    ) -> Result<Loader> {
        let (asked, io_bytes) = (io.depth, io.bytes);
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
        let mut files =
            FileTable::new(Arc::clone(&self.dataset), policy, io_bytes, if by_gds { GDS_ALIGN } else { 1 });
        // Every read in flight may be of another file, and planning opens one more.
        let most = match files.capacity() {
            capacity if capacity < self.dataset.files().len() => MOST_READS.min(capacity as u32 - 1),
            _ => MOST_READS,
        };
        let mut layout = Layout::new(&self.dataset, rows, io_bytes, at_once || (on_gpu && !by_gds))
            .ok_or_else(|| {
                let one = self.dataset.sample_bytes();
                let what = format!("a batch of {rows} samples of {one} bytes does not fit into memory");
                Error::new(ErrorKind::OutOfMemory, what)
            })?;
        layout.cut = io.cut;
        // Chunks are read into, and for a GPU that many more can be copied from meanwhile.
        let chunks_of = |depth: Depth| match on_gpu && !at_once {
            true => chunks_for(depth.all, io_bytes),
            false => depth.all,
        };
        // A window may be larger than the epoch.
        let together = window.map_or(1, |window| window.min(run.samples).div_ceil(batches.global()));
        let mut depth = Depth::new(asked, drives.count(), most, io_bytes);
        // Several drives make do with less, down to what one would have, before memory is too little.
        let (ring, free) = loop {
            let memory = (chunks_of(depth), depth.all, by_gds);
            match (self.ring(&layout, memory, target, (together, rows)), depth.less(asked, drives.count())) {
                (Err(error), Some(less)) if error.kind() == ErrorKind::OutOfMemory => depth = less,
                (made, _) => break made?,
            }
        };
        let chunks = chunks_of(depth);
        // cuFile reads into GPU memory only; what it cannot read passes through a host buffer of each thread.
        let context = target.contexts().first().filter(|_| by_gds);
        let staging = Staging::new(chunks, io_bytes as usize, context, self.clear_slots)?;
        let bounce_bytes = if by_gds { u64::from(depth.all) * u64::from(io_bytes) } else { 0 };
        let gds = chosen.gds.clone().map(|cufile| {
            let smallest = if self.backend == Backend::Auto { GDS_SMALLEST } else { 0 };
            (cufile, GdsSettings { require: self.require_gds, smallest })
        });
        let polls = self.polls(chosen.backend, drives, (depth.all, io_bytes));
        let mut settings = Settings {
            batches,
            rank: self.rank.clone(),
            not_compared: None,
            agreement: agreement(self.fingerprint(), self.order_settings(run), stand),
            order: self.order_settings(run),
            prefetch: ring.slots() as u32 - 1,
            queue_depth: depth.each,
            drives: drives.files(),
            io_bytes,
            polling: Verdict::by_rule(false, ""), // until the reading thread has tried
            lend_timeout: self.lend_timeout,
            read_timeout: Some(self.read_timeout).filter(|timeout| !timeout.is_zero()),
            trace: self.trace,
            device_bytes: ring.bytes() + if by_gds { staging.bytes() } else { 0 },
            pinned_bytes: if by_gds { bounce_bytes } else { staging.bytes() },
            devices: target.devices(),
            device_reason: device_reason.into(),
            chosen,
            file_systems: file_systems.to_vec(),
        };
        let timing = (self.stats || self.trace).then(|| Arc::new(Timing::new(self.trace, !on_gpu)));
        let watch = |chunks| timing.clone().map(|timing| Watch::new(timing, chunks));
        let setup = Setup {
            dataset: Arc::clone(&self.dataset),
            layout,
            backend: settings.chosen.backend,
            depth,
            drives: Arc::clone(drives),
            polled: Vec::new(), // as above
            window,
            clear: self.clear_slots,
            bad_samples: self.bad_samples,
            limit: self.limit(io_bytes)?,
            watch: watch(chunks),
            notes: self.notes(depth, drives).into_iter().chain(io.note.clone()).collect(),
        };
        let pulse = Arc::new(Pulse::new(depth.all));
        files.tells(&pulse);
        let stats = Arc::new(Stats::new(self.dataset.files().len()));
        let cancel = Arc::new(AtomicBool::new(false));
        let (commands, incoming) = bounded(2);
        // Room for every slot and the word that an epoch is over: the reading thread never waits for the caller here.
        let (outgoing, deliveries) = bounded(ring.slots() + 1);
        let (stop, stopped) = bounded(1);
        let (thread, polling) = Start {
            links: Links {
                commands: incoming,
                free,
                deliveries: outgoing,
                cancel: Arc::clone(&cancel),
                stats: Arc::clone(&stats),
                pulse: Arc::clone(&pulse),
            },
            files,
            ring: Arc::clone(&ring),
            staging,
            priority: self.io_priority,
            gds,
            polls,
            read_timeout: settings.read_timeout,
            setup,
            #[cfg(test)]
            wrap: self.wrap.take(),
        }
        .start()?;
        if polling.tried {
            settings.chosen.reason = format!("{}; {}", settings.chosen.reason, polling.reason);
        }
        settings.polling = polling;
        Ok(Loader {
            shared: Arc::new(Shared {
                dataset: Arc::clone(&self.dataset),
                run: run.clone(),
                fingerprint: self.fingerprint().into(),
                ring,
                stats,
                timing: timing.clone(),
                cancel,
            }),
            settings,
            commands: Some(commands),
            deliveries,
            thread: Some(thread),
            stop: StopHandle(stop),
            stopped,
            running: false,
            watch: watch(0),
            stepping: None,
            stand,
            closed: None,
            process: std::process::id(),
            pulse,
            left_at: None,
            left_behind: None,
            _registration: None,
        })
    }

    /// All that the order depends on beside the data and the place to start from, and that ranks have in common.
    fn order_settings(&self, run: &Run) -> Vec<(&'static str, String)> {
        vec![
            ("seed", run.seed.to_string()),
            ("shuffle", run.shuffle.to_string()),
            ("samples per epoch", run.samples.to_string()),
            ("batch size", self.batch_size.to_string()),
            ("world size", self.rank.world_size().to_string()),
            ("last batch", self.last_batch.to_string()),
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
    fn notes(&self, depth: Depth, drives: &Drives) -> Vec<String> {
        let mut notes = Vec::new();
        if drives.count() > 1 && depth.each < self.queue_depth {
            notes.push(format!(
                "the {} drives have {} reads in flight together, {} each instead of {}: more would take too much memory, or \
                 too many open files",
                drives.count(),
                depth.all,
                depth.each,
                self.queue_depth
            ));
        }
        let Some(priority) = self.io_priority else { return notes };
        let devices: std::collections::BTreeSet<u64> =
            self.dataset.files().iter().map(|file| file.identity().device).collect();
        let ignoring: std::collections::BTreeSet<String> =
            devices.into_iter().filter_map(scheduler_of).filter(|name| !honours_priority(name)).collect();
        let note = |name| {
            format!(
                "the I/O priority {priority} has no effect where the disk's I/O scheduler is {name}, as it is here"
            )
        };
        notes.extend(ignoring.into_iter().map(note));
        notes
    }

    fn fingerprint(&self) -> &str {
        self.mixture.as_ref().map_or(self.dataset.fingerprint(), Mixture::fingerprint)
    }

    /// Queue depth, and the size of reads: what the user says, else what suits the storage.
    fn io(&self, file_systems: &[FileSystem]) -> Result<Io> {
        let depth = self.queue_depth;
        if !(1..=4096).contains(&depth) {
            return Err(Error::argument(format!("the queue depth is {depth}; it must be from 1 to 4096")));
        }
        let shape = IoShape::of(file_systems);
        let wanted = self.io_bytes.unwrap_or(shape.bytes);
        if wanted < 4096 {
            let what = format!("an I/O of {wanted} bytes is too small; it must be at least 4096");
            return Err(Error::argument(what));
        }
        // An I/O beyond the largest file would only take memory.
        let largest = self.dataset.files().iter().map(|file| file.identity().size).max().unwrap_or(0);
        let useful = largest.checked_next_multiple_of(64 << 10).unwrap_or(LARGEST_IO);
        let most = useful.min(LARGEST_IO);
        let bytes = wanted.checked_next_multiple_of(4096).unwrap_or(most).min(most) as u32;
        let cut = cut(bytes, shape.unit);
        let note = (cut > 0 && u64::from(bytes) < useful)
            .then(|| format!("reads of up to {bytes} bytes are cut at multiples of {cut}: {}", shape.why));
        Ok(Io { depth, bytes, cut, note })
    }

    /// Allocates the ring, or says what it would take.
    fn ring(
        &self,
        layout: &Layout,
        (chunks, depth, by_gds): (u32, u32, bool),
        target: &Target,
        (together, rows): (u64, u64),
    ) -> Result<(Arc<Ring>, Receiver<Free>)> {
        let slot_bytes = layout.slot_bytes as u64;
        let devices = target.contexts().len().max(1) as u64;
        let mut prefetch = match self.prefetch {
            Some(0) => return Err(Error::argument("the prefetch depth is 0; it must be at least 1")),
            Some(batches) => batches,
            None => {
                let ahead = AHEAD_BYTES.div_ceil(slot_bytes).clamp(2, 16);
                // Two windows: one for the caller, and one to be read meanwhile. No more than can be had.
                let planned = PLANNED_BYTES.saturating_mul(rows);
                let most = WINDOW_BYTES / slot_bytes.saturating_add(planned);
                let most = most.min(MOST_REGIONS.saturating_sub(chunks.into())).min(MOST_SLOTS);
                let windows = together.saturating_mul(2).min(most);
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

/// Where reads of up to `bytes` are cut in a file for storage that likes multiples of `unit`: as many units as fit into
/// one read, or a read that fits into one unit several times. 0 where neither is so.
fn cut(bytes: u32, unit: u64) -> u32 {
    let io = u64::from(bytes);
    match unit {
        0 => 0,
        _ if unit <= io => (io / unit * unit) as u32,
        _ if unit.is_multiple_of(io) => bytes,
        _ => 0,
    }
}

/// What ranks have in common that feed from the same data in the same order, from `stand` on.
pub(super) fn agreement(
    fingerprint: &str,
    mut order: Vec<(&'static str, String)>,
    stand: Stand,
) -> Agreement {
    order.extend(place(stand));
    Agreement::new(fingerprint, &order)
}

/// Where ranks start from together.
fn place(stand: Stand) -> [(&'static str, String); 2] {
    [("first epoch", stand.epoch.to_string()), ("first position", stand.position.to_string())]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_cut_at_whole_units_of_the_storage_or_of_themselves() {
        for (bytes, unit, expected) in [
            (1 << 20, 0, 0),
            (1 << 20, 1 << 20, 1 << 20),
            (1 << 20, 256 << 10, 1 << 20),
            (1 << 20, 192 << 10, 960 << 10),
            (256 << 10, 1 << 20, 256 << 10),
            (384 << 10, 1 << 20, 0),
            (4 << 20, 8 << 20, 4 << 20),
        ] {
            assert_eq!(cut(bytes, unit), expected, "reads of {bytes}, units of {unit}");
        }
    }
}
