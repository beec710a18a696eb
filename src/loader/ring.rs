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

use crate::backend::{Address, BytesByWay, Region};
use crate::memory::cuda::{self, CudaBuffer, SlotEvents};
use crate::memory::{HostMapping, Target};
use crate::order::Stand;
use crate::{Error, Result};

/// The memory of all slots, and the way back for those that were lent.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: Memory,
    target: Target,
    slots: usize,
    slot_bytes: usize,
    lent: AtomicUsize,
    home: Sender<Free>,
    /// The process that fills the slots; a forked child gives none back.
    process: u32,
}

#[derive(Debug)]
enum Memory {
    Host(HostMapping),
    /// One buffer for each device, all with the same layout.
    Cuda(Vec<Arc<CudaBuffer>>),
}

/// What is known of the batch in a slot. It moves with the slot, so that its memory is used again.
#[derive(Debug, Default)]
pub(crate) struct SlotInfo {
    /// The sample numbers, in the order of delivery.
    pub(crate) samples: Vec<u64>,
    /// For each column the first byte of its payload in the slot.
    pub(crate) starts: Vec<usize>,
    /// The number of the batch in its epoch.
    pub(crate) batch: u64,
    pub(crate) epoch: u64,
    /// Where the run stands when the batch has been delivered.
    pub(crate) next: Stand,
    /// How many of the samples, at the end, repeat others to fill the batch.
    pub(crate) padding: u64,
    /// Rows whose own sample cannot be read, with that sample: they have another one of the batch.
    pub(crate) skipped: Vec<(u64, u64)>,
    pub(crate) ways: BytesByWay,
    /// For slots in device memory.
    pub(crate) events: Option<SlotEvents>,
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
    /// Allocates `slots` slots of `slot_bytes` on every device. All of them wait in the channel that is returned. With
    /// `wipe` nobody who gets the memory of a device later finds anything in it; the host's goes back to the kernel,
    /// which sees to that.
    pub(crate) fn new(
        slots: usize,
        slot_bytes: usize,
        target: Target,
        wipe: bool,
    ) -> Result<(Arc<Ring>, Receiver<Free>)> {
        let (home, free) = bounded(slots);
        for index in 0..slots {
            // The channel has room for every slot and its receiver is right here.
            let mut info = Box::<SlotInfo>::default();
            if let Target::Cuda(contexts) = &target {
                info.events = Some(SlotEvents::new(contexts)?);
            }
            let _ = home.send(Free(Slot { index, info }));
        }
        let bytes = slots.saturating_mul(slot_bytes);
        let memory = match &target {
            Target::Host => Memory::Host(HostMapping::new(bytes)?),
            Target::Cuda(contexts) => Memory::Cuda(
                contexts
                    .iter()
                    .map(|it| CudaBuffer::new(it, bytes).map(|buffer| Arc::new(buffer.wiped(wipe))))
                    .collect::<Result<_>>()?,
            ),
        };
        let (lent, process) = (AtomicUsize::new(0), std::process::id());
        Ok((Arc::new(Ring { memory, target, slots, slot_bytes, lent, home, process }), free))
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// How many slots are lent out at the moment.
    pub(crate) fn lent(&self) -> usize {
        self.lent.load(Ordering::Relaxed)
    }

    /// The bytes of all slots, over all devices.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.memory {
            Memory::Host(memory) => memory.len() as u64,
            Memory::Cuda(buffers) => buffers.iter().map(|buffer| buffer.len() as u64).sum(),
        }
    }

    /// The devices that the slots are on.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// The memory of the slots on GPUs.
    pub(crate) fn buffers(&self) -> &[Arc<CudaBuffer>] {
        match &self.memory {
            Memory::Host(_) => &[],
            Memory::Cuda(buffers) => buffers,
        }
    }

    /// The slots as regions that reads land in, in the order of their numbers: on the first device.
    pub(crate) fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        (0..self.slots).map(|index| Region { start: self.start(index), len: self.slot_bytes })
    }

    /// How far into each device's buffer a slot starts.
    pub(crate) fn offset(&self, index: usize) -> usize {
        debug_assert!(index < self.slots);
        index * self.slot_bytes
    }

    /// The size of a slot in bytes.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// The memory of all slots, one after the other: on the first device.
    pub(crate) fn memory(&self) -> Address {
        match &self.memory {
            Memory::Host(memory) => Address::Host(memory.as_ptr()),
            // A target of GPUs has at least one.
            Memory::Cuda(buffers) => Address::Device(buffers.first().map_or(0, |buffer| buffer.start())),
        }
    }

    fn start(&self, index: usize) -> Address {
        self.memory().plus(self.offset(index))
    }
}

impl Free {
    pub(crate) fn events(&self) -> Option<&SlotEvents> {
        self.0.info.events.as_ref()
    }

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

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    pub(crate) fn index(&self) -> usize {
        self.slot.as_ref().map_or(0, |slot| slot.index)
    }

    /// `len` bytes from byte `start` of the slot on; `None` if they are on a device.
    pub(crate) fn bytes(&self, start: usize, len: usize) -> Option<&[u8]> {
        self.check(start, len);
        let Address::Host(slot) = self.ring.start(self.index()) else { return None };
        let bytes = NonNull::new(slot.wrapping_add(start)).unwrap_or(NonNull::dangling());
        // SAFETY: the range lies in the slot, which is initialised memory (mapped zeroed) that lives as long as the
        // ring, which `self` keeps alive. A lent slot is written by nobody until `self` is dropped: the reads of
        // its batch were reaped before it became ready, and only a free slot is filled again.
        Some(unsafe { std::slice::from_raw_parts(bytes.as_ptr(), len) })
    }

    /// The address of byte `start` of the slot on a device; `None` if it is in host memory.
    pub(crate) fn device_ptr(&self, device: usize, start: usize) -> Option<u64> {
        let buffer = self.ring.buffers().get(device)?;
        Some(buffer.start() + (self.ring.offset(self.index()) + start) as u64)
    }

    /// Copies `to.len()` bytes from byte `start` of the slot on, when they are there, from a device to the host.
    pub(crate) fn copy_back(&self, device: usize, start: usize, to: &mut [u8]) -> Result<()> {
        self.check(start, to.len());
        let events = self.info().events.as_ref();
        let (Some(from), Some(events)) = (self.device_ptr(device, start), events) else {
            return Err(Error::argument("the batch is not on this device"));
        };
        events.wait_ready(device)?;
        // SAFETY: the range lies in the slot, whose bytes are all there now, and which is written by nobody while
        // it is lent.
        unsafe { cuda::copy_back(self.ring.buffers()[device].context(), from, to) }
    }

    fn check(&self, start: usize, len: usize) {
        assert!(
            start.checked_add(len).is_some_and(|end| end <= self.ring.slot_bytes),
            "the range is within the slot"
        );
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            if self.ring.process != std::process::id() {
                // Nobody fills slots here, a thread of the parent may have held the channel's lock at the fork, and the
                // caller's streams are the parent's.
                return std::mem::forget(slot);
            }
            self.ring.lent.fetch_sub(1, Ordering::Relaxed);
            if let Some(events) = &slot.info.events {
                events.release();
            }
            // As in `discard`.
            let _ = self.ring.home.send(Free(slot));
        }
    }
}
