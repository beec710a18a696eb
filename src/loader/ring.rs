//! The slots that batches are delivered in.
//!
//! ```text
//! Free --start--> Filling --finish--> Ready --lend--> Lent --drop--> Free
//!                    |                  |
//!                    +--abandon--> Free +--discard--> Free
//! ```
//!
//! A slot is in exactly one state, since each state is a value of its own that moves: only a slot that is filling
//! has a pointer to write to, and only one that is lent has bytes to read.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::plan::Plan;
use crate::Result;
use crate::backend::{BytesByWay, Region};
use crate::memory::HostMapping;

/// The memory of all slots, and the way back for those that were lent.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: HostMapping,
    slots: usize,
    slot_bytes: usize,
    lent: AtomicUsize,
    home: Sender<Free>,
}

/// What is known of the batch in a slot. It moves with the slot, so that its memory is used again.
#[derive(Debug, Default)]
pub(crate) struct SlotInfo {
    /// The sample numbers, in the order of delivery.
    pub(crate) samples: Vec<u64>,
    pub(crate) plan: Plan,
    pub(crate) batch: u64,
    /// How many of the samples, at the end, repeat others to fill the batch.
    pub(crate) padding: u64,
    pub(crate) ways: BytesByWay,
}

#[derive(Debug)]
struct Slot {
    index: usize,
    info: Box<SlotInfo>,
}

/// A slot that nobody uses.
#[derive(Debug)]
pub(crate) struct Free(Slot);

/// A slot that is being read into.
#[derive(Debug)]
pub(crate) struct Filling(Slot);

/// A slot that holds a whole batch.
#[derive(Debug)]
pub(crate) struct Ready(Slot);

/// A slot in the caller's hands. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Lent {
    /// `None` only while dropping.
    slot: Option<Slot>,
    ring: Arc<Ring>,
}

impl Ring {
    /// Allocates `slots` slots of `slot_bytes`. All of them wait in the channel that is returned.
    pub(crate) fn new(slots: usize, slot_bytes: usize) -> Result<(Arc<Ring>, Receiver<Free>)> {
        let (home, free) = bounded(slots);
        for index in 0..slots {
            // The channel has room for every slot and its receiver is right here.
            let _ = home.send(Free(Slot { index, info: Box::default() }));
        }
        let memory = HostMapping::new(slots.saturating_mul(slot_bytes))?;
        Ok((Arc::new(Ring { memory, slots, slot_bytes, lent: AtomicUsize::new(0), home }), free))
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// How many slots are lent out at the moment.
    pub(crate) fn lent(&self) -> usize {
        self.lent.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    /// The slots as regions to register with the kernel, in the order of their numbers.
    pub(crate) fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        (0..self.slots).map(|index| Region { start: self.start(index), len: self.slot_bytes })
    }

    fn start(&self, index: usize) -> *mut u8 {
        debug_assert!(index < self.slots);
        self.memory.as_ptr().wrapping_add(index * self.slot_bytes)
    }
}

impl Free {
    pub(crate) fn start(self) -> Filling {
        Filling(self.0)
    }
}

impl Filling {
    pub(crate) fn index(&self) -> usize {
        self.0.index
    }

    pub(crate) fn info(&self) -> &SlotInfo {
        &self.0.info
    }

    pub(crate) fn info_mut(&mut self) -> &mut SlotInfo {
        &mut self.0.info
    }

    /// The slot's memory, to read into.
    pub(crate) fn memory(&mut self, ring: &Ring) -> *mut u8 {
        ring.start(self.0.index)
    }

    /// Every read of the batch has completed.
    pub(crate) fn finish(self) -> Ready {
        Ready(self.0)
    }

    /// Gives up on the batch. No read into the slot may be in flight.
    pub(crate) fn abandon(self) -> Free {
        Free(self.0)
    }
}

impl Ready {
    pub(crate) fn lend(self, ring: &Arc<Ring>) -> Lent {
        ring.lent.fetch_add(1, Ordering::Relaxed);
        Lent { slot: Some(self.0), ring: Arc::clone(ring) }
    }

    /// Gives the slot back unseen.
    pub(crate) fn discard(self, ring: &Ring) {
        // The channel has room for every slot; if the loader is gone, so is the need for it.
        let _ = ring.home.send(Free(self.0));
    }
}

impl Lent {
    pub(crate) fn info(&self) -> &SlotInfo {
        // The slot is taken out by `drop` only.
        self.slot.as_ref().map(|slot| &*slot.info).expect("a lent slot is there until it is dropped")
    }

    /// `len` bytes from byte `start` of the slot on.
    pub(crate) fn bytes(&self, start: usize, len: usize) -> &[u8] {
        let index = self.slot.as_ref().map_or(0, |slot| slot.index);
        assert!(
            start.checked_add(len).is_some_and(|end| end <= self.ring.slot_bytes),
            "the range is within the slot"
        );
        let bytes = NonNull::new(self.ring.start(index).wrapping_add(start)).unwrap_or(NonNull::dangling());
        // SAFETY: the range lies in the slot, which is initialised memory (mapped zeroed) that lives as long as the
        // ring, which `self` keeps alive. A lent slot is written by nobody until `self` is dropped: the reads of
        // its batch were reaped before it became ready, and only a free slot is filled again.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr(), len) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.ring.lent.fetch_sub(1, Ordering::Relaxed);
            // As in `discard`.
            let _ = self.ring.home.send(Free(slot));
        }
    }
}

/// Chunks of memory that reads pass through when they cannot land in a slot.
#[derive(Debug)]
pub(crate) struct Staging {
    memory: Option<HostMapping>,
    chunk_bytes: usize,
    free: Vec<u32>,
}

impl Staging {
    pub(crate) fn new(chunks: u32, chunk_bytes: usize) -> Result<Staging> {
        let memory = if chunks == 0 {
            None
        } else {
            Some(HostMapping::new((chunks as usize).saturating_mul(chunk_bytes))?)
        };
        Ok(Staging { memory, chunk_bytes, free: (0..chunks).rev().collect() })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.len() as u64)
    }

    /// The chunks as regions to register with the kernel: as many as a limit of `largest` bytes for one needs.
    pub(crate) fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        let total = self.memory.as_ref().map_or(0, |_| self.count());
        (0..total).map(|chunk| Region { start: self.start(chunk as u32), len: self.chunk_bytes })
    }

    fn count(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.len() / self.chunk_bytes)
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(crate) fn give_back(&mut self, chunk: u32) {
        self.free.push(chunk);
    }

    pub(crate) fn start(&self, chunk: u32) -> *mut u8 {
        let memory = self.memory.as_ref().map_or(std::ptr::null_mut(), HostMapping::as_ptr);
        memory.wrapping_add(chunk as usize * self.chunk_bytes)
    }
}
