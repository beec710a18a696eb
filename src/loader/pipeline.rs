//! The thread that reads: it plans batches, keeps the backend's queue full, and hands on slots as they get whole.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::select;

use super::bad::{BadOnes, Suspect};
use super::flight::Flight;
use super::nvtx::Range;
use super::plan::{Lot, Plan, Planner, Room};
use super::ring::{Filling, Free, Ring};
use super::setup::{Command, Delivery, Links, Places, Setup, Task};
use super::staging::Staging;
use super::timing::{Stage, Wait};
use crate::backend::{Address, Backend, Completion, ReadFailure, Reader};
use crate::memory::cuda::{Copier, Pinned, SlotEvents};
use crate::order::{Batches, Stand};
use crate::storage::{Call, FileTable, Pulse};
use crate::{Error, ErrorKind, Result};

pub(crate) struct Pipeline {
    /// Dropped first: it waits for every read in flight, before the memory that they write to goes.
    pub(super) reader: Box<dyn Reader>,
    /// Dropped next: what is waited for from here on is not storage.
    _reader_ends: ReaderEnds,
    /// Dropped then: it waits for every copy out of the chunks. `None` for host memory.
    pub(super) copier: Option<Copier>,
    /// How the staging memory is known to CUDA; dropped before the memory goes.
    pinned: Option<Pinned>,
    pub(super) staging: Staging,
    pub(super) files: FileTable,
    pub(super) setup: Setup,
    pub(super) links: Links,
    pub(super) pulse: Arc<Pulse>,
    pub(super) planner: Planner,
    /// Free slots that came back to this thread itself.
    spare: Vec<Free>,
    /// Slots that are being planned for. Empty between plans.
    forming: Vec<Filling>,
    /// Slots being read into, in the order of their batches.
    pub(super) filling: VecDeque<Fill>,
    /// The number that the first of `filling` has, counted over the life of the pipeline.
    pub(super) first: u64,
    /// For each slot, by its index, the number of its present place in `filling`.
    pub(super) fill_of: Vec<u64>,
    /// Plans of which some reads have not landed, in the order of their batches.
    pub(super) groups: VecDeque<Group>,
    /// The number that the first of `groups` has, counted over the life of the pipeline.
    pub(super) first_group: u64,
    /// Plans whose memory is used again.
    idle: Vec<Plan>,
    /// What the largest plan so far took: all have as much, or memory would be allocated late, when more of them than before
    /// happen to be in use.
    room: Room,
    /// Reads in flight, by token.
    pub(super) flights: Vec<Option<Flight>>,
    pub(super) tokens: Vec<u32>,
    /// How many of them each drive has, by its number.
    pub(super) flying: Vec<u32>,
    pub(super) done: Vec<Completion>,
    /// The limit on bytes per second keeps the next read from starting, for so long.
    pub(super) put_off: Option<Duration>,
    /// Samples that cannot be read, if they are to be skipped, and reads that failed and may tell more of them.
    pub(super) bad: BadOnes,
    pub(super) suspects: Vec<Suspect>,
    /// What went wrong, and the number of the slot whose batch cannot come. Batches before it are still delivered.
    failure: Option<(u64, Error)>,
    /// Dropped last, after every slot: a slot waits for the caller's streams.
    pub(super) ring: Arc<Ring>,
}

/// A slot that is being read into.
pub(super) struct Fill {
    pub(super) slot: Filling,
    /// Bytes of payload that have not come.
    pub(super) left: u64,
}

/// Batches that were planned together.
pub(super) struct Group {
    pub(super) plan: Plan,
    /// The number of the first of their slots.
    pub(super) first: u64,
    /// Reads that have not landed, those not yet started included.
    pub(super) left: usize,
}

/// Says that the drop of the reader begins.
struct Ends(Arc<Pulse>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.begin(Call::Reads);
    }
}

/// Says that it is over.
struct ReaderEnds(Arc<Pulse>);

impl Drop for ReaderEnds {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// How often the pipeline looks whether the caller keeps so many batches that a whole window will never be free.
const WINDOW_PATIENCE: Duration = Duration::from_millis(5);

impl Pipeline {
    pub(crate) fn new(
        setup: Setup,
        links: Links,
        files: FileTable,
        reader: Box<dyn Reader>,
        places: Places,
    ) -> Self {
        let Places { ring, staging, copier, pinned } = places;
        let depth = setup.depth.all as usize;
        // Of plans for a whole window, which is half of the slots at most, three are in use at once: one that is read, one
        // that follows, and one of which the last reads have not landed.
        let most_plans = if setup.window.is_some() { ring.slots().min(3) } else { ring.slots() };
        let mut idle = Vec::with_capacity(ring.slots());
        idle.resize_with(most_plans, Plan::default);
        Pipeline {
            reader,
            _reader_ends: ReaderEnds(Arc::clone(&links.pulse)),
            copier,
            pinned,
            files,
            staging,
            planner: Planner::new(Arc::clone(&setup.drives)),
            spare: Vec::with_capacity(ring.slots()),
            forming: Vec::with_capacity(ring.slots()),
            filling: VecDeque::with_capacity(ring.slots()),
            first: 0,
            fill_of: vec![0; ring.slots()],
            groups: VecDeque::with_capacity(ring.slots()),
            first_group: 0,
            idle,
            room: Room::default(),
            flights: vec![None; depth],
            tokens: (0..depth as u32).rev().collect(),
            flying: vec![0; setup.drives.count().max(1)],
            done: Vec::with_capacity(depth),
            put_off: None,
            bad: BadOnes::default(),
            suspects: Vec::new(),
            failure: None,
            ring,
            setup,
            pulse: Arc::clone(&links.pulse),
            links,
        }
    }

    /// Serves epochs until the loader goes.
    pub(crate) fn run(mut self) {
        // At the end, or by a panic with reads in flight, which the drop of the reader waits for.
        let _ends = Ends(Arc::clone(&self.pulse));
        while let Ok(command) = self.links.commands.recv() {
            let Command::Start(task) = command else { continue };
            self.files.start_epoch(&mut *self.reader);
            let outcome = self.deliver(*task);
            // Whatever happened, nothing stays in flight and no slot stays half filled.
            let drained = self.drain();
            let pinning = self.pinned.as_ref().and_then(Pinned::refused);
            let notes = self.setup.notes.iter().chain(self.reader.notes()).map(String::as_str).chain(pinning);
            self.links.stats.publish(self.files.passed_over(), notes, self.reader.polled());
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

    fn deliver(&mut self, mut task: Task) -> Result<()> {
        let count = task.batches.count();
        let mut batch = 0;
        while !self.cancelled() {
            // Plan just far enough ahead to keep every drive's queue full: a plan fixes what is read from where.
            while batch < count && self.failure.is_none() && self.some_drive_wants_more() {
                let together = self.slots_for(&task.batches, batch)?;
                if together == 0 {
                    break;
                }
                let from = self.now();
                let range = self.range(c"gpufeed plan");
                let planned = self.plan(&mut task, batch, together);
                drop(range);
                self.took(Stage::Plan, from, batch, 0);
                batch += planned;
            }
            self.reclaim()?;
            if !self.suspects.is_empty() && self.tokens.len() == self.flights.len() {
                self.investigate()?;
            }
            self.start_reads();
            self.hand_on()?;
            self.retire_plans();
            if self.failed_before(self.first + 1) {
                return self.failure.take().map_or(Ok(()), |(_, error)| Err(error));
            }
            if self.tokens.len() < self.flights.len() {
                self.reap()?;
            } else if let Some(wait) = self.put_off.take() {
                self.wait_for_bytes(wait);
            } else if !self.filling.is_empty() && self.suspects.is_empty() {
                match &mut self.copier {
                    // What keeps the next read from starting is that all chunks are being copied from.
                    Some(copier) if copier.is_busy() => {
                        let from = self.setup.watch.as_ref().map(|_| Instant::now());
                        // Copies into a slot wait until the caller's streams are done with it.
                        let events = self.filling.iter().filter_map(|fill| fill.slot.info().events.as_ref());
                        let by_caller = from.is_some() && { events }.any(SlotEvents::in_use);
                        let name =
                            if by_caller { c"gpufeed wait for a slot" } else { c"gpufeed wait for copies" };
                        let range = self.setup.watch.as_ref().and_then(|watch| watch.range(name));
                        copier.wait(|chunk| {
                            self.staging.give_back(chunk);
                            if let Some(watch) = &mut self.setup.watch {
                                watch.copied(chunk);
                            }
                        })?;
                        drop(range);
                        self.waited(if by_caller { Wait::Slot } else { Wait::Copy }, from);
                    }
                    _ => {
                        return Err(Error::new(
                            ErrorKind::Closed,
                            "a batch waits for reads that nobody does",
                        ));
                    }
                }
            } else if !self.suspects.is_empty() {
                // They are looked into next.
            } else if batch == count || !self.wait_for_slot() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The time, if it is looked at.
    pub(super) fn now(&self) -> Option<Instant> {
        self.setup.watch.as_ref().map(|_| Instant::now())
    }

    /// A range for a profiler, if the loader is looked at.
    pub(super) fn range(&self, name: &'static CStr) -> Option<Range> {
        self.setup.watch.as_ref().and_then(|watch| watch.range(name))
    }

    pub(super) fn took(&mut self, stage: Stage, from: Option<Instant>, batch: u64, bytes: u64) {
        if let (Some(watch), Some(from)) = (&mut self.setup.watch, from) {
            watch.took(stage, from, batch, bytes);
        }
    }

    fn waited(&mut self, wait: Wait, from: Option<Instant>) {
        if let (Some(watch), Some(from)) = (&mut self.setup.watch, from) {
            watch.waited(wait, from);
        }
    }

    /// Takes back the chunks whose copies are done.
    fn reclaim(&mut self) -> Result<()> {
        let Some(copier) = &mut self.copier else { return Ok(()) };
        copier.reclaim(|chunk| {
            self.staging.give_back(chunk);
            if let Some(watch) = &mut self.setup.watch {
                watch.copied(chunk);
            }
        })
    }

    /// The batch in the slot of this number cannot come.
    pub(super) fn fail(&mut self, fill: u64, error: Error) {
        if self.failure.as_ref().is_none_or(|(known, _)| fill < *known) {
            self.failure = Some((fill, error));
        }
    }

    /// Whether a batch in a slot before this number cannot come.
    pub(super) fn failed_before(&self, fill: u64) -> bool {
        self.failure.as_ref().is_some_and(|(failed, _)| *failed < fill)
    }

    /// How many batches to plan together from `batch` on, for which that many slots are spare; 0 if there is to be
    /// waited for slots, or for the caller's streams.
    fn slots_for(&mut self, batches: &Batches, batch: u64) -> Result<usize> {
        let wanted = self.batches_together(batches, batch);
        while self.spare.len() < wanted {
            let Ok(slot) = self.links.free.try_recv() else { break };
            self.spare.push(slot);
        }
        let found = self.spare.len().min(wanted);
        // With nothing being read and nothing waiting for the caller, more come only if the caller gives batches back,
        // which may be never.
        let stuck = self.filling.is_empty() && self.ring.lent() + self.spare.len() == self.ring.slots();
        if found < wanted && !stuck {
            return Ok(0);
        }
        if self.tokens.len() < self.flights.len() {
            // Rather reap than wait.
            for slot in self.spare.iter().rev().take(found) {
                if self.would_wait_for(slot)? {
                    return Ok(0);
                }
            }
        }
        Ok(found)
    }

    /// How many batches from `batch` on have samples of the window that its first sample is in, as far as half of the
    /// slots go: the other half is for the caller meanwhile.
    fn batches_together(&self, batches: &Batches, batch: u64) -> usize {
        let Some(window) = self.setup.window else { return 1 };
        let first = batches.rows(batch).first();
        let in_window = (window - first % window).div_ceil(batches.global());
        let most = (self.ring.slots() / 2).max(1) as u64;
        in_window.min(most).min(batches.count() - batch) as usize
    }

    /// Whether planning for this slot would have this thread wait for the caller's streams.
    fn would_wait_for(&self, slot: &Free) -> Result<bool> {
        match slot.events() {
            Some(events) if self.lands_without_order() => Ok(!events.settled()?),
            _ => Ok(false),
        }
    }

    /// Waits until a slot comes back, or might as well. `false`: the epoch was cancelled, or the loader is gone.
    fn wait_for_slot(&mut self) -> bool {
        let from = self.now();
        let range = self.range(c"gpufeed wait for a slot");
        let go_on = self.slot_comes();
        drop(range);
        self.waited(Wait::Slot, from);
        go_on
    }

    fn slot_comes(&mut self) -> bool {
        let some_are_spare = !self.spare.is_empty();
        let patience = if some_are_spare { WINDOW_PATIENCE } else { Duration::MAX };
        select! {
            recv(self.links.free) -> slot => match slot {
                Ok(slot) => self.spare.push(slot),
                Err(_) => return false,
            },
            recv(self.links.commands) -> command => return command.is_ok() && !self.cancelled(),
            default(patience) => {}
        }
        true
    }

    /// Waits until the limit lets the next read through, or something is asked of this thread.
    fn wait_for_bytes(&mut self, wait: Duration) {
        let from = self.now();
        let Some(limit) = &self.setup.limit else { return };
        select! {
            // A start cannot come before this epoch has ended, and the loop sees that it was cancelled, or that the
            // loader is gone: its drop cancels before it lets go of the channel.
            recv(self.links.commands) -> _ => {}
            recv(limit.after(wait)) -> _ => {}
        }
        self.waited(Wait::Limit, from);
    }

    /// Whether fewer reads are planned and not yet started than some drive can have in flight.
    fn some_drive_wants_more(&self) -> bool {
        let unstarted =
            |drive: usize| self.groups.iter().map(|group| group.plan.shares[drive].left()).sum::<usize>();
        (0..self.flying.len()).any(|drive| unstarted(drive) < self.setup.depth.each as usize)
    }

    /// Plans batches from `batch` on, `together` of them, for which there are spare slots. Returns how many it planned:
    /// fewer if something is wrong, so that those before the one that cannot be planned still come.
    fn plan(&mut self, task: &mut Task, batch: u64, together: usize) -> u64 {
        let number = self.first + self.filling.len() as u64;
        let mut broken = None;
        for i in 0..together {
            let Some(slot) = self.spare.pop() else { break };
            let mut slot = slot.start();
            // The baseline's copies and cuFile's reads are not in a stream that could wait.
            let reopened = match (&self.copier, &slot.info().events) {
                (Some(copier), Some(events)) => copier.reopen(events, self.lands_without_order()),
                _ => Ok(()),
            };
            if let Err(error) = reopened {
                self.spare.push(slot.abandon());
                broken = Some(error);
                break;
            }
            self.address(&mut slot, task, batch + i as u64);
            if let Err(error) = self.bad.replace_in(slot.info_mut()) {
                self.spare.push(slot.abandon());
                broken = Some(error);
                break;
            }
            self.forming.push(slot);
        }
        let formed = self.forming.len();
        let mut plan = self.idle.pop().unwrap_or_default();
        plan.make_room(self.room);
        let mut planned = self.plan_reads(&mut plan);
        while self.forming.len() > 1 && planned.is_err() {
            // The one to blame is found by planning fewer.
            let half = self.forming.len() / 2;
            self.spare.extend(self.forming.drain(half..).map(Filling::abandon));
            planned = self.plan_reads(&mut plan);
        }
        if let Err(error) = planned {
            self.spare.extend(self.forming.drain(..).map(Filling::abandon));
            self.idle.push(plan);
            self.fail(number, error);
            return 0;
        }
        let planned = self.forming.len();
        if let (Some(error), true) = (broken, planned == formed) {
            self.fail(number + planned as u64, error);
        } // Else what is wrong with one before it is found next.
        let columns = self.setup.layout.columns.len();
        let sample_bytes = self.setup.dataset.sample_bytes();
        for (i, mut slot) in self.forming.drain(..).enumerate() {
            self.fill_of[slot.index()] = number + i as u64;
            let info = slot.info_mut();
            info.starts.clear();
            info.starts.extend_from_slice(&plan.starts[i * columns..][..columns]);
            let left = info.samples.len() as u64 * sample_bytes;
            self.filling.push_back(Fill { slot, left });
        }
        self.share_room(plan.room());
        let left = plan.reads.len();
        self.groups.push_back(Group { plan, first: number, left });
        planned as u64
    }

    /// All plans can hold as much as this one, or soon will.
    fn share_room(&mut self, room: Room) {
        let room = room.or(self.room);
        if room != self.room {
            self.room = room;
            self.idle.iter_mut().for_each(|plan| plan.make_room(room));
        }
    }

    /// Says in a slot which batch it is for.
    fn address(&self, slot: &mut Filling, task: &mut Task, batch: u64) {
        let Task { epoch, batches, course } = task;
        let (epoch, rows, info) = (*epoch, batches.rows(batch), slot.info_mut());
        // Batches that went before in another process count.
        info.batch = batches.from() / batches.global() + batch;
        info.epoch = epoch;
        info.next = match batches.end(batch) {
            Some(position) => Stand { epoch, position },
            None => Stand { epoch: epoch.saturating_add(1), position: 0 },
        };
        info.padding = rows.padding();
        info.ways = Default::default();
        info.samples.clear();
        // Every position of a batch is within the epoch, so each has a sample.
        info.samples.extend((0..rows.len()).filter_map(|i| course.sample(rows.position(i))));
    }

    fn plan_reads(&mut self, plan: &mut Plan) -> Result<()> {
        let (files, reader) = (&mut self.files, &mut *self.reader);
        let (forming, ring) = (&self.forming, &self.ring);
        self.planner.plan(
            plan,
            &self.setup.layout,
            &self.setup.dataset,
            forming.len(),
            |i| Lot { base: ring.offset(forming[i].index()), samples: &forming[i].info().samples },
            |file| files.mode(file, &mut *reader),
        )
    }

    /// Whether bytes come to device slots by other ways than the copy stream, so that it is this thread that has to
    /// wait for the last use of a slot.
    fn lands_without_order(&self) -> bool {
        matches!(self.setup.backend, Backend::PageCache | Backend::Gds)
    }

    /// Hands on the slots at the front that are whole. Batches leave in order.
    fn hand_on(&mut self) -> Result<()> {
        while self.filling.front().is_some_and(|fill| fill.left == 0) {
            let Some(fill) = self.filling.pop_front() else { break };
            self.first += 1;
            if let Err(error) = self.send_off(&fill.slot) {
                self.spare.push(fill.slot.abandon());
                return Err(error);
            }
            if let Some(watch) = &mut self.setup.watch {
                watch.add_up();
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
        let (rows, slot_bytes) = (info.samples.len() as u64, self.ring.slot_bytes());
        let columns = self.setup.layout.columns.iter();
        let parts = info.starts.iter().zip(columns);
        let parts = parts.map(|(&start, region)| (start, (rows * region.sample_bytes) as usize));
        // Between the parts, before the first and after the last.
        let ends = parts.clone().map(|(start, len)| start + len);
        let edges =
            std::iter::once(0).chain(ends).zip(parts.clone().map(|(start, _)| start).chain([slot_bytes]));
        let gaps = edges.map(|(from, until)| (from, until - from)).filter(|_| self.setup.clear);
        let offset = self.ring.offset(slot.index());
        if let Address::Host(ring) = self.ring.memory() {
            for (from, len) in gaps.clone() {
                // SAFETY: the range lies in this slot, which is filling, and no read of it is in flight any more.
                unsafe { ring.add(offset + from).write_bytes(0, len) };
            }
        }
        let (Some(copier), Some(events)) = (&self.copier, &info.events) else { return Ok(()) };
        copier.finish(self.ring.buffers(), offset as u64, parts, gaps, events)
    }

    /// Waits for every read and copy in flight, and takes back the slots that are not whole.
    fn drain(&mut self) -> Result<()> {
        while self.tokens.len() < self.flights.len() {
            let mut done = std::mem::take(&mut self.done);
            self.pulse.begin(Call::Reads);
            let waited = self.reader.reap(true, &mut done);
            self.pulse.end();
            for completion in done.drain(..) {
                if let Err(ReadFailure::Panicked(message)) = &completion.result {
                    self.links.stats.note_panic(message);
                }
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
        self.first_group += self.groups.len() as u64;
        self.idle.extend(self.groups.drain(..).map(|group| group.plan));
        (self.failure, self.put_off) = (None, None);
        self.suspects.clear();
        self.spare.extend(self.filling.drain(..).map(|fill| fill.slot.abandon()));
        copied
    }

    /// Takes back the plans at the front whose reads have all landed.
    fn retire_plans(&mut self) {
        while self.groups.front().is_some_and(|group| group.left == 0) {
            if let Some(mut group) = self.groups.pop_front() {
                group.plan.make_room(self.room);
                self.idle.push(group.plan);
                self.first_group += 1;
            }
        }
    }
}
