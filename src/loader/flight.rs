//! Reads in flight: from a planned read to payload in its slot, with what can go wrong on the way.

use std::os::fd::RawFd;
use std::time::Instant;

use super::bad::{Probe, Suspect};
use super::pipeline::Pipeline;
use super::plan::{PlannedRead, Target};
use super::timing::{Stage, Wait};
use crate::backend::{Address, Backend, Completion, Gather, ReadFailure, Request, Way};
use crate::storage::{Call, refuses_direct};
use crate::{Error, ErrorKind, Result};

/// A read in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flight {
    /// The number of the group whose plan has the read.
    pub(super) group: u64,
    pub(super) read: PlannedRead,
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
    /// The descriptor that is read from.
    fd: RawFd,
    /// The file was opened again for it, and no byte has come since.
    reopened: bool,
    /// When it was started, if that is looked at.
    began: Option<Instant>,
    /// It only finds out whether it can be done.
    probing: bool,
}

impl Flight {
    /// A read that only finds out whether it can be done.
    pub(super) fn probe(group: u64, read: PlannedRead, chunk: u32) -> Flight {
        Flight { probing: true, ..Flight::new(group, read, Some(chunk)) }
    }

    pub(super) fn new(group: u64, read: PlannedRead, chunk: Option<u32>) -> Flight {
        Flight {
            group,
            read,
            chunk,
            held: false,
            come: 0,
            base: 0,
            fruitless: 0,
            direct: false,
            fd: -1,
            reopened: false,
            began: None,
            probing: false,
        }
    }
}

/// A read that is interrupted or refused for lack of resources is tried again this often.
const MOST_FRUITLESS: u32 = 100;

impl Pipeline {
    /// Starts planned reads while queues have room: on each drive in the order of batches, and on all of them at once, so
    /// that one which is slow or has nothing to do does not keep another from going on with later batches.
    pub(super) fn start_reads(&mut self) {
        self.put_off = None;
        if let Some(watch) = &mut self.setup.watch {
            watch.tick = Instant::now();
        }
        if !self.suspects.is_empty() {
            // First what is in flight lands, then it is found out which samples are bad.
            return;
        }
        let (mut at, mut drive) = (0, 0);
        while !self.tokens.is_empty() {
            let Some(group) = self.groups.get(at) else { return };
            // Batches before the one that failed still come, and their reads may be anywhere in their group.
            if self.failed_before(group.first + 1) {
                return;
            }
            let Some(&share) = group.plan.shares.get(drive) else {
                (at, drive) = (at + 1, 0);
                continue;
            };
            if share.left() == 0 || self.flying[drive] >= self.setup.depth.each {
                drive += 1;
                continue;
            }
            let read = group.plan.reads[share.next];
            let staged = matches!(read.target, Target::Chunk { .. });
            if staged && !self.staging.has_free() {
                // All of them are being read into or copied from.
                return;
            }
            if let Some(wait) = self.setup.limit.as_mut().and_then(|limit| limit.take(read.len.into()).err())
            {
                self.put_off = Some(wait);
                return;
            }
            let chunk = if staged { self.staging.take() } else { None };
            self.groups[at].plan.shares[drive].next += 1;
            let mut flight = Flight::new(self.first_group + at as u64, read, chunk);
            flight.began = self.setup.watch.as_ref().map(|watch| watch.tick);
            let Some(token) = self.take_off(flight) else { return };
            if let Err(error) = self.launch(token, flight) {
                self.give_up(token, &flight, error);
            }
        }
    }

    /// Gives a read a token, if there is one, until it lands.
    pub(super) fn take_off(&mut self, flight: Flight) -> Option<u32> {
        let token = self.tokens.pop()?;
        self.flights[token as usize] = Some(flight);
        self.flying[self.setup.drives.of(flight.read.file) as usize] += 1;
        Some(token)
    }

    /// Gives a read to the backend, from its present base on.
    pub(super) fn launch(&mut self, token: u32, mut flight: Flight) -> Result<()> {
        let read = flight.read;
        if flight.held {
            self.files.release(read.file);
            flight.held = false;
            self.flights[token as usize] = Some(flight);
        }
        let (place, fd, mode) = self.files.acquire(read.file, &mut *self.reader)?;
        (flight.held, flight.direct, flight.fd) = (true, mode.direct, fd);
        self.flights[token as usize] = Some(flight);
        let (slots_on_host, at_once, first_chunk) =
            (self.copier.is_none(), self.copies_at_once(), self.landing_slots());
        let ring = self.ring.memory();
        let (window, region, gather) = match (read.target, flight.chunk) {
            (Target::Chunk { from, count }, Some(chunk)) => {
                let start = self.staging.start(chunk);
                let plan = &self.groups[(flight.group - self.first_group) as usize].plan;
                let pieces = &plan.pieces[from as usize..(from + count) as usize];
                // Threads that read copy too, unless copies are queued on a stream.
                let gather = match start {
                    Address::Host(chunk) if slots_on_host || at_once => {
                        Some((read.need - flight.base, Gather::new(chunk, ring, pieces)))
                    }
                    _ => None,
                };
                (start, first_chunk + chunk, gather)
            }
            (Target::Slot(to), _) => (ring.plus(to), (to / self.ring.slot_bytes()) as u32, None),
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
            poll: self.polled_drive(read.file).filter(|_| mode.direct),
            cached: mode.cached,
            handle: 0,
            gather,
        };
        self.pulse.start(token, read.file, request.offset, request.len);
        // SAFETY: the destination is a part of a slot that is filling, as all slots are that a plan in `groups` is for
        // and that wait for bytes, or of a chunk that was taken, and the planner gives no byte of a slot to two reads;
        // ring and staging outlive the reader (a field before them), the file stays open until `release`, and the plan
        // with its pieces stays as it is until all of its reads have landed.
        unsafe { self.reader.start(request) }.map_err(|e| self.failure(&flight, "cannot start a read", e))
    }

    /// Waits for completions and deals with them.
    pub(super) fn reap(&mut self) -> Result<()> {
        let mut done = std::mem::take(&mut self.done);
        let range = self.range(c"gpufeed wait for storage");
        let from = self.now();
        self.pulse.begin(Call::Reads);
        let waited = self.reader.reap(true, &mut done);
        self.pulse.end();
        drop(range);
        if let (Some(watch), Some(from)) = (&mut self.setup.watch, from) {
            // The reads of this time were completed by now.
            watch.tick = Instant::now();
            watch.waited_until(Wait::Storage, (from, watch.tick));
        }
        for completion in done.drain(..) {
            self.complete(completion);
        }
        self.done = done;
        if let Some(watch) = &mut self.setup.watch {
            let bytes = std::mem::take(&mut watch.copied_bytes);
            if bytes > 0 {
                watch.took(Stage::Copy, watch.tick, 0, bytes);
            }
        }
        waited.map_err(|e| Error::new(ErrorKind::Io, "waiting for reads failed").by(self.name()).caused_by(e))
    }

    pub(super) fn complete(&mut self, completion: Completion) {
        let token = completion.token;
        let Some(mut flight) = self.flights[token as usize] else { return };
        let outcome = match completion.result {
            Ok(n) => self.advance(&mut flight, n),
            Err(ReadFailure::Errno(errno)) => self.recover(&mut flight, errno),
            Err(ReadFailure::Refused(n, _)) => self.advance(&mut flight, n),
            Err(ReadFailure::Copy(error)) => Err(self.placed(&flight, error)),
            Err(ReadFailure::Panicked(message)) => {
                self.links.stats.note_panic(&message);
                Err(Error::new(ErrorKind::Panicked, format!("a reading thread panicked: {message}"))
                    .by(self.name()))
            }
        };
        let again = match outcome {
            Ok(true) if flight.probing => {
                self.bad.probed = Some(Probe::Good);
                return self.land(token);
            }
            Ok(true) => match self.copy_out(&flight, token, completion.gathered) {
                Ok(()) => {
                    let way = completion.way.unwrap_or(Way::of(self.setup.backend, flight.direct));
                    self.book(&flight, way);
                    return self.land(token);
                }
                Err(error) => Err(error),
            },
            Ok(false) => {
                // The rest cannot wait behind reads that it was let through before.
                if let Some(limit) = &mut self.setup.limit {
                    limit.charge(u64::from(flight.read.len - flight.base));
                }
                self.launch(token, flight)
            }
            // What could not be read may be a few samples only.
            Err(error) if flight.probing && self.is_suspect(&error) => {
                self.bad.probed = Some(Probe::Bad(error));
                return self.land(token);
            }
            Err(error) if self.is_suspect(&error) => {
                self.suspects.push(Suspect { group: flight.group, read: flight.read, error });
                return self.land(token);
            }
            Err(error) => Err(error),
        };
        if let Err(error) = again {
            self.give_up(token, &flight, error);
        }
    }

    /// Counts the payload of a read that is done, for the batches that it is of.
    fn book(&mut self, flight: &Flight, way: Way) {
        let Flight { read, group, .. } = *flight;
        self.links.stats.count(read.file, way, flight.direct, read.payload.into(), flight.come.into());
        if let Some(began) = flight.began {
            let first = self.groups[(group - self.first_group) as usize].first.max(self.first);
            let batch =
                self.filling.get((first - self.first) as usize).map_or(0, |fill| fill.slot.info().batch);
            if let Some(watch) = &mut self.setup.watch {
                watch.took_until(Stage::Read, (began, watch.tick), batch, flight.come.into());
            }
        }
        let slot_bytes = self.ring.slot_bytes();
        let (fill_of, first, filling) = (&self.fill_of, self.first, &mut self.filling);
        let mut count = |to: usize, bytes: u32| {
            // A slot of a batch that waits for bytes is filling, until now at least.
            let fill = &mut filling[(fill_of[to / slot_bytes] - first) as usize];
            fill.left -= u64::from(bytes);
            fill.slot.info_mut().ways.add(way, bytes.into());
        };
        let group = &mut self.groups[(group - self.first_group) as usize];
        match read.target {
            // The window may begin before the slot's payload, but not before the slot.
            Target::Slot(to) => count(to, read.payload),
            Target::Chunk { from, count: pieces } => {
                let pieces = &group.plan.pieces[from as usize..(from + pieces) as usize];
                pieces.iter().for_each(|piece| count(piece.to, piece.len));
            }
        }
        group.left -= 1;
    }

    /// A read failed for good: the first batch that it is of cannot come, and none after it.
    fn give_up(&mut self, token: u32, flight: &Flight, error: Error) {
        self.land(token);
        if flight.probing {
            self.bad.probed = Some(Probe::Broken(error));
            return;
        }
        let group = &self.groups[(flight.group - self.first_group) as usize];
        let fill = |to: usize| self.fill_of[to / self.ring.slot_bytes()];
        let first = match flight.read.target {
            Target::Slot(to) => fill(to),
            Target::Chunk { from, count } => {
                let pieces = &group.plan.pieces[from as usize..(from + count) as usize];
                pieces.iter().map(|piece| fill(piece.to)).min().unwrap_or(group.first)
            }
        };
        self.fail(first, error);
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
        (flight.come, flight.reopened) = (come, false);
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
        if errno == libc::ESTALE && !flight.reopened {
            flight.reopened = true;
            let reopened = self.files.reopen(file, flight.fd, &mut *self.reader);
            // What has come so far is of the same file.
            return reopened.map(|()| false).map_err(|error| self.placed(flight, error));
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
        let ring = self.ring.memory();
        let plan = &self.groups[(flight.group - self.first_group) as usize].plan;
        let pieces = &plan.pieces[from as usize..(from + count) as usize];
        let start = self.staging.start(chunk);
        match (start, ring, &mut self.copier) {
            (_, Address::Device(to), Some(copier)) => {
                // From here on the chunk is the copier's, even if it fails half way: it gives it back.
                if let Some(flight) = &mut self.flights[token as usize] {
                    flight.chunk = None;
                }
                if let Some(watch) = &mut self.setup.watch {
                    watch.queued[chunk as usize] = Some(watch.tick);
                }
                // SAFETY: the read has completed and brought every byte that the pieces need; the planner made them
                // for this chunk size and ring; the chunk is taken until the copier gives it back, and the pieces
                // are only read during the call. The slots are filling, and what used them before was waited for.
                unsafe { copier.copy(chunk, start, to, pieces) }
            }
            (Address::Host(start), ring, _) => {
                // SAFETY: the read has completed and brought every byte that the pieces need; the planner made the
                // pieces for this chunk size and ring; chunk and these bytes of the slots belong to this read alone.
                let copied = unsafe { Gather::new(start, ring, pieces).run(None) };
                if let Some(watch) = &mut self.setup.watch {
                    watch.copied_bytes += u64::from(flight.read.payload);
                }
                copied
            }
            (Address::Device(_), ..) => Err(misplanned()),
        }
    }

    /// How many slots reads can land in; their regions come before those of the chunks.
    fn landing_slots(&self) -> u32 {
        let lands = self.copier.is_none() || self.setup.backend == Backend::Gds;
        if lands { self.ring.slots() as u32 } else { 0 }
    }

    /// Whether the backend's threads copy by themselves, and are done when they say so.
    fn copies_at_once(&self) -> bool {
        self.setup.backend == Backend::PageCache
    }

    /// Takes note that a read is no longer in flight.
    pub(super) fn land(&mut self, token: u32) {
        if let Some(flight) = self.flights[token as usize].take() {
            if flight.held {
                self.files.release(flight.read.file);
            }
            if let Some(chunk) = flight.chunk {
                self.staging.give_back(chunk);
            }
            self.pulse.land(token);
            self.flying[self.setup.drives.of(flight.read.file) as usize] -= 1;
            self.tokens.push(token);
        }
    }

    /// The drive that a file is on, if it is to be polled.
    fn polled_drive(&self, file: u32) -> Option<u32> {
        let drive = self.setup.drives.of(file);
        self.setup.polled.get(drive as usize).is_some_and(|polled| *polled).then_some(drive)
    }

    pub(super) fn name(&self) -> &'static str {
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
        self.pulse.begin(Call::Open(read.file));
        let now = self.setup.dataset.opener.metadata(file.path());
        self.pulse.end();
        let (kind, what) = match now {
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
