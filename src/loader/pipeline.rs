//! The thread that reads: it plans batches, keeps the backend's queue full, and hands on slots as they get whole.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender, select};

use super::plan::{Layout, PlannedRead, Planner, Target};
use super::ring::{Filling, Free, Ready, Ring};
use super::staging::Staging;
use super::stats::Stats;
use crate::backend::{Address, Backend, Completion, Gather, ReadFailure, Reader, Request, Way};
use crate::dataset::Dataset;
use crate::memory::cuda::{Copier, Pinned};
use crate::order::{Batches, Order, Shuffle};
use crate::storage::{FileTable, refuses_direct};
use crate::{Error, ErrorKind, Result};

/// What the pipeline is asked to do. A closed channel ends it.
#[derive(Debug)]
pub(crate) enum Command {
    /// Deliver the batches of an epoch.
    Start { epoch: u64 },
    /// The caller wants no more of this epoch. Only wakes the pipeline up; the flag counts.
    Cancel,
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
    pub(crate) batches: Batches,
    pub(crate) seed: u64,
    pub(crate) shuffle: Shuffle,
    pub(crate) layout: Layout,
    pub(crate) backend: Backend,
    pub(crate) queue_depth: u32,
}

/// The channels and shared values of a pipeline.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) commands: Receiver<Command>,
    pub(crate) free: Receiver<Free>,
    pub(crate) deliveries: Sender<Delivery>,
    pub(crate) cancel: Arc<AtomicBool>,
    pub(crate) stats: Arc<Stats>,
}

/// The memory that a pipeline works with, and what moves bytes within it.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) ring: Arc<Ring>,
    pub(crate) staging: Staging,
    pub(crate) copier: Option<Copier>,
    pub(crate) pinned: Option<Pinned>,
}

pub(crate) struct Pipeline {
    /// Dropped first: it waits for every read in flight, before the memory that they write to goes.
    reader: Box<dyn Reader>,
    /// Dropped next: it waits for every copy out of the chunks. `None` for host memory.
    copier: Option<Copier>,
    /// How the staging memory is known to CUDA; dropped before the memory goes.
    pinned: Option<Pinned>,
    staging: Staging,
    files: FileTable,
    setup: Setup,
    links: Links,
    planner: Planner,
    /// Free slots that came back to this thread itself.
    spare: Vec<Free>,
    /// Slots being read into, in the order of their batches.
    filling: VecDeque<Fill>,
    /// The number that the first of `filling` has, counted over the life of the pipeline.
    first: u64,
    /// The next read to start: the number of its slot, and its place in that slot's plan.
    next: (u64, usize),
    /// Reads in flight, by token.
    flights: Vec<Option<Flight>>,
    tokens: Vec<u32>,
    done: Vec<Completion>,
    /// What went wrong, and the number of the slot whose batch cannot come. Batches before it are still delivered.
    failure: Option<(u64, Error)>,
    /// Dropped last, after every slot: a slot waits for the caller's streams.
    ring: Arc<Ring>,
}

struct Fill {
    slot: Filling,
    /// Reads that have not completed, those not yet started included.
    left: usize,
}

/// A read in flight.
#[derive(Debug, Clone, Copy)]
struct Flight {
    fill: u64,
    read: PlannedRead,
    chunk: Option<u32>,
    /// The file is kept open for this flight.
    held: bool,
    /// Bytes that have come so far.
    come: u32,
    /// Where the present attempt started, in bytes from the window's start.
    base: u32,
    /// Attempts that brought nothing new.
    fruitless: u32,
    direct: bool,
}

/// A read that is interrupted or refused for lack of resources is tried again this often.
const MOST_FRUITLESS: u32 = 100;

impl Pipeline {
    pub(crate) fn new(
        setup: Setup,
        links: Links,
        files: FileTable,
        reader: Box<dyn Reader>,
        places: Places,
    ) -> Self {
        let Places { ring, staging, copier, pinned } = places;
        let depth = setup.queue_depth as usize;
        Pipeline {
            reader,
            copier,
            pinned,
            files,
            staging,
            planner: Planner::default(),
            spare: Vec::with_capacity(ring.slots()),
            filling: VecDeque::with_capacity(ring.slots()),
            first: 0,
            next: (0, 0),
            flights: vec![None; depth],
            tokens: (0..depth as u32).rev().collect(),
            done: Vec::with_capacity(depth),
            failure: None,
            ring,
            setup,
            links,
        }
    }

    /// Serves epochs until the loader goes.
    pub(crate) fn run(mut self) {
        while let Ok(command) = self.links.commands.recv() {
            let Command::Start { epoch } = command else { continue };
            self.files.start_epoch(&mut *self.reader);
            let outcome = self.deliver(epoch);
            // Whatever happened, nothing stays in flight and no slot stays half filled.
            let drained = self.drain();
            let pinning = self.pinned.as_ref().and_then(Pinned::refused);
            let notes = self.reader.notes().iter().map(String::as_str).chain(pinning);
            self.links.stats.publish(self.files.passed_over(), notes);
            let last = match outcome.and(drained) {
                Ok(()) => Delivery::End,
                Err(error) => Delivery::Failed(error),
            };
            if self.links.deliveries.send(last).is_err() {
                return;
            }
        }
    }

    fn cancelled(&self) -> bool {
        self.links.cancel.load(Ordering::Acquire)
    }

    fn deliver(&mut self, epoch: u64) -> Result<()> {
        let order = Order::new(self.setup.dataset.len(), self.setup.seed, epoch, self.setup.shuffle);
        let count = self.setup.batches.count();
        let mut batch = 0;
        while !self.cancelled() {
            // Plan just far enough ahead to keep the queue full: a plan fixes what is read from where.
            while batch < count
                && self.failure.is_none()
                && self.unstarted() < self.setup.queue_depth as usize
            {
                let Some(slot) = self.free_slot() else { break };
                if self.tokens.len() < self.flights.len() && self.would_wait_for(&slot)? {
                    self.spare.push(slot);
                    break;
                }
                self.plan(slot, &order, batch);
                batch += 1;
            }
            if let Some(copier) = &mut self.copier {
                copier.reclaim(|chunk| self.staging.give_back(chunk))?;
            }
            self.start_reads();
            self.hand_on()?;
            if self.failure.as_ref().is_some_and(|(fill, _)| *fill <= self.first) {
                return self.failure.take().map_or(Ok(()), |(_, error)| Err(error));
            }
            if self.tokens.len() < self.flights.len() {
                self.reap()?;
            } else if !self.filling.is_empty() {
                // What keeps the next read from starting is that all chunks are being copied from.
                if let Some(copier) = &mut self.copier {
                    copier.wait(|chunk| self.staging.give_back(chunk))?;
                }
            } else if batch == count || !self.wait_for_slot() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The batch in the slot of this number cannot come.
    fn fail(&mut self, fill: u64, error: Error) {
        if self.failure.as_ref().is_none_or(|(known, _)| fill < *known) {
            self.failure = Some((fill, error));
        }
    }

    /// Whether planning for this slot would have this thread wait for the caller's streams.
    fn would_wait_for(&self, slot: &Free) -> Result<bool> {
        match slot.events() {
            Some(events) if self.lands_without_order() => Ok(!events.settled()?),
            _ => Ok(false),
        }
    }

    fn free_slot(&mut self) -> Option<Free> {
        self.spare.pop().or_else(|| self.links.free.try_recv().ok())
    }

    /// Waits until a slot comes back. `false`: the epoch was cancelled, or the loader is gone.
    fn wait_for_slot(&mut self) -> bool {
        select! {
            recv(self.links.free) -> slot => match slot {
                Ok(slot) => self.spare.push(slot),
                Err(_) => return false,
            },
            recv(self.links.commands) -> command => return command.is_ok() && !self.cancelled(),
        }
        true
    }

    /// Reads that are planned and not yet started.
    fn unstarted(&self) -> usize {
        let (fill, read) = self.next;
        let skip = (fill - self.first) as usize;
        let planned: usize =
            self.filling.iter().skip(skip).map(|fill| fill.slot.info().plan.reads.len()).sum();
        planned - read
    }

    fn plan(&mut self, slot: Free, order: &Order, batch: u64) {
        let mut slot = slot.start();
        if let (Some(copier), Some(events)) = (&self.copier, &slot.info().events) {
            // The baseline's copies and cuFile's reads are not in a stream that could wait.
            if let Err(error) = copier.reopen(events, self.lands_without_order()) {
                self.spare.push(slot.abandon());
                return self.fail(self.first + self.filling.len() as u64, error);
            }
        }
        let rows = self.setup.batches.rows(batch);
        let info = slot.info_mut();
        info.batch = batch;
        info.padding = rows.pad;
        info.ways = Default::default();
        info.samples.clear();
        // Every position of a batch is within the epoch, so each has a sample.
        info.samples.extend((0..rows.len()).filter_map(|i| order.sample(rows.position(i))));
        let (files, reader) = (&mut self.files, &mut *self.reader);
        let mode_of = |file| files.mode(file, &mut *reader);
        let planned = self.planner.plan(
            &mut info.plan,
            &self.setup.layout,
            &self.setup.dataset,
            &info.samples,
            mode_of,
        );
        match planned {
            Ok(()) => {
                let left = info.plan.reads.len();
                self.filling.push_back(Fill { slot, left });
            }
            Err(error) => {
                self.spare.push(slot.abandon());
                self.fail(self.first + self.filling.len() as u64, error);
            }
        }
    }

    /// Starts planned reads while the queue has room.
    fn start_reads(&mut self) {
        while let Some(&token) = self.tokens.last() {
            let (number, index) = self.next;
            if self.failure.as_ref().is_some_and(|(failed, _)| *failed <= number) {
                return;
            }
            let Some(fill) = self.filling.get((number - self.first) as usize) else { return };
            let Some(&read) = fill.slot.info().plan.reads.get(index) else {
                self.next = (number + 1, 0);
                continue;
            };
            let chunk = match read.target {
                Target::Slot(_) => None,
                Target::Chunk { .. } => match self.staging.take() {
                    Some(chunk) => Some(chunk),
                    // All of them are being read into or copied from.
                    None => return,
                },
            };
            self.tokens.pop();
            self.next = (number, index + 1);
            let flight = Flight {
                fill: number,
                read,
                chunk,
                held: false,
                come: 0,
                base: 0,
                fruitless: 0,
                direct: false,
            };
            self.flights[token as usize] = Some(flight);
            if let Err(error) = self.launch(token, flight) {
                self.land(token);
                self.fail(number, error);
            }
        }
    }

    /// Gives a read to the backend, from its present base on.
    fn launch(&mut self, token: u32, mut flight: Flight) -> Result<()> {
        let read = flight.read;
        if flight.held {
            self.files.release(read.file);
            flight.held = false;
            self.flights[token as usize] = Some(flight);
        }
        let (place, fd, mode) = self.files.acquire(read.file, &mut *self.reader)?;
        (flight.held, flight.direct) = (true, mode.direct);
        self.flights[token as usize] = Some(flight);
        let (slots_on_host, at_once, first_chunk) =
            (self.copier.is_none(), self.copies_at_once(), self.landing_slots());
        let fill = &mut self.filling[(flight.fill - self.first) as usize];
        let slot = fill.slot.memory(&self.ring);
        let (window, region, gather) = match (read.target, flight.chunk) {
            (Target::Chunk { from, count }, Some(chunk)) => {
                let start = self.staging.start(chunk);
                let pieces = &fill.slot.info().plan.pieces[from as usize..(from + count) as usize];
                // Threads that read copy too, unless copies are queued on a stream.
                let gather = match start {
                    Address::Host(chunk) if slots_on_host || at_once => {
                        Some((read.need - flight.base, Gather::new(chunk, slot, pieces)))
                    }
                    _ => None,
                };
                (start, first_chunk + chunk, gather)
            }
            (Target::Slot(to), _) => (slot.plus(to), fill.slot.index() as u32, None),
            (Target::Chunk { .. }, None) => return Err(misplanned()),
        };
        let request = Request {
            token,
            file: place,
            fd,
            offset: read.offset + u64::from(flight.base),
            dest: window.plus(flight.base as usize),
            len: read.len - flight.base,
            region,
            cached: mode.cached,
            handle: 0,
            gather,
        };
        // SAFETY: the destination is a part of a slot that is filling or of a chunk that was taken, and the planner
        // gives no byte of a slot to two reads; ring and staging outlive the reader (a field before them), the file
        // stays open until `release`, and the plan with its pieces stays in the slot until the fill is handed on,
        // which waits for the completion.
        unsafe { self.reader.start(request) }.map_err(|e| self.failure(&flight, "cannot start a read", e))
    }

    /// Waits for completions and deals with them.
    fn reap(&mut self) -> Result<()> {
        let mut done = std::mem::take(&mut self.done);
        let waited = self.reader.reap(true, &mut done);
        for completion in done.drain(..) {
            self.complete(completion);
        }
        self.done = done;
        waited.map_err(|e| Error::new(ErrorKind::Io, "waiting for reads failed").by(self.name()).caused_by(e))
    }

    fn complete(&mut self, completion: Completion) {
        let token = completion.token;
        let Some(mut flight) = self.flights[token as usize] else { return };
        let outcome = match completion.result {
            Ok(n) => self.advance(&mut flight, n),
            Err(ReadFailure::Errno(errno)) => self.recover(&mut flight, errno),
            Err(ReadFailure::Refused(n, _)) => self.advance(&mut flight, n),
            Err(ReadFailure::Copy(error)) => Err(self.placed(&flight, error)),
            Err(ReadFailure::Panicked(message)) => {
                Err(Error::new(ErrorKind::Panicked, format!("a reading thread panicked: {message}"))
                    .by(self.name()))
            }
        };
        let again = match outcome {
            Ok(true) => {
                if let Err(error) = self.copy_out(&flight, token, completion.gathered) {
                    self.land(token);
                    return self.fail(flight.fill, error);
                }
                let fill = &mut self.filling[(flight.fill - self.first) as usize];
                fill.left -= 1;
                let way = completion.way.unwrap_or(Way::of(self.setup.backend, flight.direct));
                let payload = u64::from(flight.read.payload);
                fill.slot.info_mut().ways.add(way, payload);
                self.links.stats.count(flight.read.file, way, flight.direct, payload, flight.come.into());
                return self.land(token);
            }
            Ok(false) => self.launch(token, flight),
            Err(error) => Err(error),
        };
        if let Err(error) = again {
            self.land(token);
            self.fail(flight.fill, error);
        }
    }

    /// Takes note of `n` more bytes. `true`: the read is whole; `false`: the rest is asked for again.
    fn advance(&mut self, flight: &mut Flight, n: u32) -> Result<bool> {
        let read = flight.read;
        let come = flight.base.saturating_add(n).min(read.len);
        if come >= read.need {
            flight.come = come;
            return Ok(true);
        }
        if come <= flight.come {
            // Nothing new: the file ends here, whatever its size was.
            return Err(self.short(flight));
        }
        flight.come = come;
        // A direct read can only go on from a boundary; what came beyond it is read again.
        let align = self.files.mode(read.file, &mut *self.reader)?.align;
        flight.base = come / align * align;
        Ok(false)
    }

    /// Decides what a failed read means. `false`: it is tried again.
    fn recover(&mut self, flight: &mut Flight, errno: i32) -> Result<bool> {
        let error = std::io::Error::from_raw_os_error(errno);
        let file = flight.read.file;
        if refuses_direct(errno) && flight.direct {
            let reason = format!("a direct read was refused: {error}");
            self.files.fall_back(file, &reason, &mut *self.reader)?;
            (flight.base, flight.come) = (0, 0);
            return Ok(false);
        }
        let again = matches!(errno, libc::EINTR | libc::EAGAIN);
        if again && flight.fruitless < MOST_FRUITLESS {
            flight.fruitless += 1;
            return Ok(false);
        }
        Err(self.failure(flight, "the read failed", error))
    }

    /// Takes the payload of a completed read to its slot, or queues that.
    fn copy_out(&mut self, flight: &Flight, token: u32, gathered: bool) -> Result<()> {
        let (Target::Chunk { from, count }, Some(chunk), false) =
            (flight.read.target, flight.chunk, gathered)
        else {
            return Ok(());
        };
        let fill = &mut self.filling[(flight.fill - self.first) as usize];
        let slot = fill.slot.memory(&self.ring);
        let pieces = &fill.slot.info().plan.pieces[from as usize..(from + count) as usize];
        let start = self.staging.start(chunk);
        match (start, slot, &mut self.copier) {
            (_, Address::Device(to), Some(copier)) => {
                // From here on the chunk is the copier's, even if it fails half way: it gives it back.
                if let Some(flight) = &mut self.flights[token as usize] {
                    flight.chunk = None;
                }
                // SAFETY: the read has completed and brought every byte that the pieces need; the planner made them
                // for this chunk size and slot; the chunk is taken until the copier gives it back, and the pieces
                // are only read during the call. The slot is filling, and what used it before was waited for.
                unsafe { copier.copy(chunk, start, to, pieces) }
            }
            // SAFETY: the read has completed and brought every byte that the pieces need; the planner made the
            // pieces for this chunk size and slot; chunk and these bytes of the slot belong to this read alone.
            (Address::Host(start), slot, _) => unsafe { Gather::new(start, slot, pieces).run(None) },
            (Address::Device(_), ..) => Err(misplanned()),
        }
    }

    /// How many slots reads can land in; their regions come before those of the chunks.
    fn landing_slots(&self) -> u32 {
        let lands = self.copier.is_none() || self.setup.backend == Backend::Gds;
        if lands { self.ring.slots() as u32 } else { 0 }
    }

    /// Whether bytes come to device slots by other ways than the copy stream, so that it is this thread that has to
    /// wait for the last use of a slot.
    fn lands_without_order(&self) -> bool {
        matches!(self.setup.backend, Backend::PageCache | Backend::Gds)
    }

    /// Whether the backend's threads copy by themselves, and are done when they say so.
    fn copies_at_once(&self) -> bool {
        self.setup.backend == Backend::PageCache
    }

    /// Takes note that a read is no longer in flight.
    fn land(&mut self, token: u32) {
        if let Some(flight) = self.flights[token as usize].take() {
            if flight.held {
                self.files.release(flight.read.file);
            }
            if let Some(chunk) = flight.chunk {
                self.staging.give_back(chunk);
            }
            self.tokens.push(token);
        }
    }

    /// Hands on the slots at the front that are whole. Batches leave in order.
    fn hand_on(&mut self) -> Result<()> {
        while self.filling.front().is_some_and(|fill| fill.left == 0) {
            let Some(fill) = self.filling.pop_front() else { break };
            self.first += 1;
            self.next = self.next.max((self.first, 0));
            if let Err(error) = self.send_off(&fill.slot) {
                self.spare.push(fill.slot.abandon());
                return Err(error);
            }
            if let Err(lost) = self.links.deliveries.send(Delivery::Batch(fill.slot.finish())) {
                if let Delivery::Batch(ready) = lost.into_inner() {
                    ready.discard(&self.ring);
                }
                return Err(Error::new(ErrorKind::Closed, "the loader is gone"));
            }
        }
        Ok(())
    }

    /// Marks, on the devices, the points at which a batch is there.
    fn send_off(&self, slot: &Filling) -> Result<()> {
        let info = slot.info();
        let (Some(copier), Some(events)) = (&self.copier, &info.events) else { return Ok(()) };
        let rows = info.samples.len() as u64;
        let columns = self.setup.layout.columns.iter();
        let parts = info.plan.starts.iter().zip(columns);
        let parts = parts.map(|(&start, region)| (start, (rows * region.sample_bytes) as usize));
        copier.finish(self.ring.buffers(), self.ring.offset(slot.index()) as u64, parts, events)
    }

    /// Waits for every read and copy in flight, and takes back the slots that are not whole.
    fn drain(&mut self) -> Result<()> {
        while self.tokens.len() < self.flights.len() {
            let mut done = std::mem::take(&mut self.done);
            let waited = self.reader.reap(true, &mut done);
            for completion in done.drain(..) {
                self.land(completion.token);
            }
            self.done = done;
            if let Err(error) = waited {
                // Nobody can tell what is in flight any more. The panic ends this thread, the reader's own drop
                // waits for the kernel or ends the process, and the loader reports this text.
                std::panic::panic_any(format!("reads in flight cannot be waited for: {error}"));
            }
        }
        let copied = match &mut self.copier {
            Some(copier) => copier.drain(|chunk| self.staging.give_back(chunk)),
            None => Ok(()),
        };
        self.first += self.filling.len() as u64;
        self.next = (self.first, 0);
        self.failure = None;
        self.spare.extend(self.filling.drain(..).map(|fill| fill.slot.abandon()));
        copied
    }

    fn name(&self) -> &'static str {
        self.setup.backend.name()
    }

    fn placed(&self, flight: &Flight, error: Error) -> Error {
        let read = flight.read;
        let path = self.setup.dataset.files()[read.file as usize].path();
        error.at(path).range(read.offset, read.need.into()).by(self.name())
    }

    fn failure(&self, flight: &Flight, what: &str, error: std::io::Error) -> Error {
        let read = flight.read;
        let path = self.setup.dataset.files()[read.file as usize].path();
        Error::io(path, what, error).range(read.offset, read.need.into()).by(self.name())
    }

    /// The error for a file that gave fewer bytes than it had when it was indexed.
    fn short(&self, flight: &Flight) -> Error {
        let read = flight.read;
        let file = &self.setup.dataset.files()[read.file as usize];
        let indexed = file.identity().size;
        let ends = read.offset + u64::from(flight.come);
        let (kind, what) = match std::fs::metadata(file.path()) {
            Ok(now) if now.len() < indexed => (
                ErrorKind::Changed,
                format!("it had {indexed} bytes when it was indexed and has {} now", now.len()),
            ),
            _ => (ErrorKind::Io, format!("reads end at byte {ends}, though the file has {indexed} bytes")),
        };
        Error::new(kind, what).at(file.path()).range(read.offset, read.need.into()).by(self.name())
    }
}

/// The planner gives a read that cannot land in its slot a chunk, always.
fn misplanned() -> Error {
    Error::new(ErrorKind::Closed, "a read was planned for memory that the kernel cannot reach")
}
