//! Copies from staging chunks into slots of device memory, in the order of streams and without waiting for them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaStream, result};

use super::{Context, CudaBuffer, Event, Stream, failed};
use crate::backend::{Address, Piece};
use crate::{Error, Result};

/// What has to happen on the device before and after a slot is used.
#[derive(Debug)]
pub(crate) struct SlotEvents {
    /// For each device: the slot's bytes are there.
    ready: Vec<Event>,
    /// Streams of the caller that use the slot. Locked once for each use of a batch, never for a read.
    users: Mutex<Vec<User>>,
}

#[derive(Debug)]
struct User {
    event: Event,
    device: usize,
    /// The stream while the batch is lent.
    stream: Option<Arc<CudaStream>>,
    /// The event was recorded after the last use, and nobody has waited for it yet.
    pending: bool,
}

impl SlotEvents {
    pub(crate) fn new(contexts: &[Arc<Context>]) -> Result<SlotEvents> {
        let ready = contexts.iter().map(Event::new).collect::<Result<_>>()?;
        Ok(SlotEvents { ready, users: Mutex::default() })
    }

    /// Has a caller's stream wait until the slot is there, and remembers it as a user. `device` counts the devices
    /// that the slot is delivered to; the stream is of that device.
    pub(crate) fn lend_to(&self, device: usize, stream: &Arc<CudaStream>) -> Result<()> {
        let ready = &self.ready[device];
        ready.hold_back(stream)?;
        let mut users = self.users();
        // The default streams of all devices have the same handle.
        let same = |known: &Arc<CudaStream>| known.cu_stream() == stream.cu_stream();
        if users.iter().any(|user| user.device == device && user.stream.as_ref().is_some_and(same)) {
            return Ok(());
        }
        let free =
            users.iter_mut().find(|user| user.stream.is_none() && !user.pending && user.device == device);
        match free {
            Some(user) => user.stream = Some(Arc::clone(stream)),
            None => {
                let event = Event::new(ready.context())?;
                users.push(User { event, device, stream: Some(Arc::clone(stream)), pending: false });
            }
        }
        Ok(())
    }

    /// Waits, on the host, until the slot's bytes are on a device.
    pub(crate) fn wait_ready(&self, device: usize) -> Result<()> {
        self.ready[device].synchronize()
    }

    /// The batch is given back: marks, in every stream that used it, the point behind the last use.
    pub(crate) fn release(&self) {
        for user in self.users().iter_mut() {
            if let Some(stream) = user.stream.take() {
                if user.event.context().check_process().is_err() {
                    continue; // a forked child has no GPU; the parent's batch is another value
                }
                user.pending = true;
                if user.event.record_on(&stream).is_err() {
                    // The point cannot be marked, so it is waited for. Should that fail too, the device is lost, and
                    // with it whatever was queued.
                    user.pending = false;
                    let _ = stream.synchronize();
                }
            }
        }
    }

    /// Whether every use that was marked is over.
    pub(crate) fn settled(&self) -> Result<bool> {
        for user in self.users().iter().filter(|user| user.pending) {
            if !user.event.passed()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a stream of the caller may still use the slot that was given back.
    pub(crate) fn in_use(&self) -> bool {
        self.users()
            .iter()
            .any(|user| user.stream.is_none() && user.event.passed().is_ok_and(|passed| !passed))
    }

    /// Deals with the events that mark the last uses, once each.
    fn settle(&self, mut wait: impl FnMut(&Event) -> Result<()>) -> Result<()> {
        for user in self.users().iter_mut().filter(|user| user.pending) {
            wait(&user.event)?;
            user.pending = false;
        }
        Ok(())
    }

    fn users(&self) -> std::sync::MutexGuard<'_, Vec<User>> {
        self.users.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for SlotEvents {
    fn drop(&mut self) {
        // The slot's memory goes next.
        let _ = self.settle(Event::synchronize);
    }
}

/// The copy streams of a loader: one that brings chunks to the first device, and one for each further device, which
/// takes the batch from the first.
///
/// Dropping it waits for every copy.
#[derive(Debug)]
pub(crate) struct Copier {
    stream: Stream,
    further: Vec<Stream>,
    /// For each chunk: the copies out of it are done.
    events: Vec<Event>,
    /// Chunks that are being copied from, in the order of the stream.
    busy: VecDeque<u32>,
}

impl Copier {
    pub(crate) fn new(contexts: &[Arc<Context>], chunks: u32) -> Result<Copier> {
        let Some((first, further)) = contexts.split_first() else {
            return Err(Error::argument("there is no device to copy to"));
        };
        Ok(Copier {
            stream: Stream::new(first)?,
            further: further.iter().map(Stream::new).collect::<Result<_>>()?,
            events: (0..chunks).map(|_| Event::new(first)).collect::<Result<_>>()?,
            busy: VecDeque::with_capacity(chunks as usize),
        })
    }

    /// Before a slot is filled again: what is queued on the copy stream from now on waits until every stream of the
    /// caller, and every copy to a further device, is done with it. With `on_host` this thread waits instead.
    pub(crate) fn reopen(&self, slot: &SlotEvents, on_host: bool) -> Result<()> {
        let wait = |event: &Event| if on_host { event.synchronize() } else { self.stream.wait(event) };
        slot.settle(wait)?;
        slot.ready[1..].iter().try_for_each(wait)
    }

    /// Queues the copies out of a chunk.
    ///
    /// # Safety
    /// Every piece lies within the chunk, which starts at `from`, on the host or on the first device, and stays as it is
    /// until `reclaim` gives it back; and within a slot that is being filled, of the ring that starts at `to` in memory
    /// of the first device.
    pub(crate) unsafe fn copy(&mut self, chunk: u32, from: Address, to: u64, pieces: &[Piece]) -> Result<()> {
        // First of all the chunk is taken, so that whatever happens it is given back, and not before time.
        self.busy.push_back(chunk);
        // SAFETY: as the caller vouches.
        let queued = unsafe { self.queue(from, to, pieces) };
        let marked = queued.and_then(|()| self.events[chunk as usize].record(&self.stream));
        if marked.is_err() {
            // What was queued before the failure is not marked by the event.
            let _ = self.stream.synchronize();
        }
        marked
    }

    /// # Safety
    /// As for `copy`.
    unsafe fn queue(&self, from: Address, to: u64, pieces: &[Piece]) -> Result<()> {
        let _entered = self.stream.context().enter()?;
        for piece in pieces {
            let (to, len) = (to + piece.to as u64, piece.len as usize);
            let queued = match from.plus(piece.from as usize) {
                Address::Host(from) => {
                    // SAFETY: the caller vouches for the range of the chunk.
                    let source = unsafe { std::slice::from_raw_parts(from, len) };
                    // SAFETY: the caller vouches for the range of the slot, and that the chunk stays as it is.
                    unsafe { result::memcpy_htod_async(to, source, self.stream.raw()) }
                }
                // SAFETY: as above.
                Address::Device(from) => unsafe {
                    result::memcpy_dtod_async(to, from, len, self.stream.raw())
                },
            };
            queued.map_err(|e| failed("a copy to the device cannot be queued", e))?;
        }
        Ok(())
    }

    /// Gives back the chunks whose copies are done.
    pub(crate) fn reclaim(&mut self, mut give_back: impl FnMut(u32)) -> Result<()> {
        while let Some(&chunk) = self.busy.front() {
            if !self.events[chunk as usize].passed()? {
                break;
            }
            self.busy.pop_front();
            give_back(chunk);
        }
        Ok(())
    }

    /// Whether chunks are being copied from.
    pub(crate) fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// Waits until at least one more chunk is free, if any is being copied from.
    pub(crate) fn wait(&mut self, mut give_back: impl FnMut(u32)) -> Result<()> {
        if let Some(&chunk) = self.busy.front() {
            self.events[chunk as usize].synchronize()?;
            self.busy.pop_front();
            give_back(chunk);
        }
        Ok(())
    }

    /// Waits for every copy, and gives back every chunk, even if copies failed: nothing touches them any more.
    pub(crate) fn drain(&mut self, give_back: impl FnMut(u32)) -> Result<()> {
        let waited = self.stream.synchronize();
        self.busy.drain(..).for_each(give_back);
        waited
    }

    /// Every copy of a batch is queued: takes the parts of the slot (start, length) that hold it to the further
    /// devices, and marks the points where it is there. `gaps` are other parts of the slot, which are zeroed on every
    /// device before that. `start` is where the slot starts in each device's buffer.
    pub(crate) fn finish(
        &self,
        buffers: &[Arc<CudaBuffer>],
        start: u64,
        parts: impl Iterator<Item = (usize, usize)> + Clone,
        gaps: impl Iterator<Item = (usize, usize)> + Clone,
        slot: &SlotEvents,
    ) -> Result<()> {
        zero(&self.stream, &buffers[0], start, gaps.clone())?;
        slot.ready[0].record(&self.stream)?;
        for (device, stream) in self.further.iter().enumerate().map(|(i, stream)| (i + 1, stream)) {
            stream.wait(&slot.ready[0])?;
            let (to, from) = (&buffers[device], &buffers[0]);
            // What used the slot here is over when it is filled on the first device.
            zero(stream, to, start, gaps.clone())?;
            let entered = stream.context().enter()?;
            for (part, len) in parts.clone() {
                let offset = start + part as u64;
                // SAFETY: both buffers have the same layout, the part lies in the slot, which is filled on the first
                // device at this point of the stream and free on this one; both contexts are retained.
                unsafe {
                    result::memcpy_peer_async(
                        to.context().raw(),
                        to.start() + offset,
                        from.context().raw(),
                        from.start() + offset,
                        len,
                        stream.raw(),
                    )
                }
                .map_err(|e| failed("a copy to a further device cannot be queued", e))?;
            }
            drop(entered);
            slot.ready[device].record(stream)?;
        }
        Ok(())
    }
}

/// Queues the zeroing of parts (start, length) of the slot that starts at byte `start` of a buffer, and is being filled.
fn zero(
    stream: &Stream,
    buffer: &CudaBuffer,
    start: u64,
    parts: impl Iterator<Item = (usize, usize)>,
) -> Result<()> {
    let mut parts = parts.filter(|(_, len)| *len > 0).peekable();
    if parts.peek().is_none() {
        return Ok(());
    }
    let _entered = stream.context().enter()?;
    for (part, len) in parts {
        // SAFETY: the part lies in a slot of the buffer, which the pipeline owns until the batch is handed on, and the
        // stream has waited for what used it before.
        unsafe { result::memset_d8_async(buffer.start() + start + part as u64, 0, len, stream.raw()) }
            .map_err(|e| failed("memory of a slot cannot be zeroed", e))?;
    }
    Ok(())
}
