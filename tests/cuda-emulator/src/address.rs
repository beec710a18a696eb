//! Which address belongs to which allocation, and which did until it was freed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::context::ContextId;
use crate::driver::Driver;
use crate::error::{Answer, Code};
use crate::memory::{Kind, Mapping, Memory, Use};
use crate::misuse::Misuse;

/// How many freed ranges, and how many bytes of addresses, are kept reserved: until then a late use is recognised.
const QUARANTINE_RANGES: usize = 4096;
const QUARANTINE_BYTES: usize = 64 << 30;

/// A range that was given back.
#[derive(Debug)]
struct Freed {
    base: usize,
    end: usize,
    kind: Kind,
    /// Keeps the addresses reserved, so that no new allocation can come to lie where a stale pointer points.
    reserved: Arc<Mapping>,
}

/// All ranges that the driver knows.
#[derive(Debug, Default)]
pub(crate) struct AddressMap {
    live: BTreeMap<usize, Arc<Memory>>,
    freed: BTreeMap<usize, Freed>,
    /// The bases in `freed`, oldest first.
    order: VecDeque<usize>,
    quarantined: usize,
}

impl AddressMap {
    pub(crate) fn live(&self) -> impl Iterator<Item = &Arc<Memory>> {
        self.live.values()
    }

    pub(crate) fn insert(&mut self, memory: Arc<Memory>) {
        self.live.insert(memory.base, memory);
    }

    /// The live allocation around `address`.
    pub(crate) fn find(&self, address: usize) -> Option<&Arc<Memory>> {
        let (_, memory) = self.live.range(..=address).next_back()?;
        (address < memory.end()).then_some(memory)
    }

    /// A live allocation that shares at least a byte with `start..end`.
    pub(crate) fn overlapping(&self, start: usize, end: usize) -> Option<&Arc<Memory>> {
        let (_, memory) = self.live.range(..end).next_back()?;
        (memory.end() > start).then_some(memory)
    }

    /// Whether `address` lies in a range that was freed.
    pub(crate) fn was_freed(&self, address: usize) -> Option<Kind> {
        let (_, freed) = self.freed.range(..=address).next_back()?;
        (address < freed.end).then_some(freed.kind)
    }

    /// Forgets a live allocation; what the driver had reserved for it goes into quarantine.
    pub(crate) fn remove(&mut self, memory: &Memory) {
        self.live.remove(&memory.base);
        let Some(reserved) = memory.reserved() else { return };
        self.quarantined += reserved.len();
        self.order.push_back(memory.base);
        let freed = Freed { base: memory.base, end: memory.end(), kind: memory.kind, reserved };
        self.freed.insert(freed.base, freed);
        while self.order.len() > QUARANTINE_RANGES || self.quarantined > QUARANTINE_BYTES {
            let Some(freed) = self.order.pop_front().and_then(|base| self.freed.remove(&base)) else {
                break;
            };
            self.quarantined -= freed.reserved.len();
        }
    }
}

/// A range of bytes that an operation reads or writes, already translated to where the bytes really are.
#[derive(Debug)]
pub(crate) struct Place {
    /// None for pageable host memory.
    pub(crate) held: Option<Use>,
    /// The address that the caller gave.
    pub(crate) address: usize,
    /// Where the bytes are.
    pub(crate) real: usize,
}

impl Place {
    pub(crate) fn memory(&self) -> Option<&Memory> {
        self.held.as_ref().map(Use::memory)
    }

    pub(crate) fn on_device(&self) -> bool {
        self.memory().is_some_and(|memory| memory.kind.on_device())
    }

    pub(crate) fn is_pageable(&self) -> bool {
        self.held.is_none()
    }
}

/// What an argument's C type says about the memory that it may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// `CUdeviceptr`: device memory, or pinned host memory under its device address.
    Device,
    /// `void*`: host memory, pinned or not.
    Host,
    /// Unified addressing: either.
    Any,
}

impl Driver {
    /// Finds the `len` bytes at `address` for a use by `context`, or reports what is wrong with them.
    pub(crate) fn place(
        &self,
        address: u64,
        len: usize,
        expect: Expect,
        context: ContextId,
    ) -> Answer<Place> {
        let at = address as usize;
        let wrong = |misuse, detail: &str| self.misuse(misuse, address, Code::INVALID_VALUE, detail);
        let end = at.checked_add(len).filter(|_| at != 0).ok_or(Code::INVALID_VALUE)?;
        let Some(memory) = self.addresses.find(at) else {
            if let Some(kind) = self.addresses.was_freed(at) {
                return wrong(Misuse::UseAfterFree, &format!("{kind:?} memory that was freed before"));
            }
            if expect == Expect::Device {
                return wrong(Misuse::UnknownPointer, "neither device memory nor pinned host memory");
            }
            if self.addresses.overlapping(at, end).is_some() {
                return wrong(
                    Misuse::SpansRegistration,
                    "begins in pageable memory and runs into pinned memory",
                );
            }
            return Ok(Place { held: None, address: at, real: at });
        };
        if memory.kind.on_device() && expect == Expect::Host {
            return wrong(Misuse::DevicePointerAsHost, "device memory passed as host memory");
        }
        if end > memory.end() {
            let over = end - memory.end();
            return wrong(
                Misuse::OutOfBounds,
                &format!("{len} bytes run {over} past the end of the allocation"),
            );
        }
        if memory.kind.on_device() && !self.can_access(context, memory) {
            let detail =
                format!("memory of device {}, used by a context without peer access to it", memory.device);
            return wrong(Misuse::WrongContext, &detail);
        }
        Ok(Place { held: Some(Use::new(memory.clone())), address: at, real: memory.real(at) })
    }

    /// Whether a context may name this device memory in its own operations.
    fn can_access(&self, context: ContextId, memory: &Memory) -> bool {
        let Some(using) = self.contexts.get(&context) else {
            return false;
        };
        match memory.kind {
            // Stream-ordered memory comes from the device's pool and so belongs to the device, not to a context.
            Kind::Pool if using.device == memory.device => true,
            _ => context == memory.context || using.peers.contains(&memory.context),
        }
    }
}
