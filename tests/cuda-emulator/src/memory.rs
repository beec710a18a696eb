//! One allocation: what the caller sees, and where its bytes really are.
//!
//! A device pointer lies in a reserved range that nobody can read or write (`PROT_NONE`). The bytes lie in a second,
//! hidden mapping, at an address that is never given out. Host code that follows a device pointer faults at once, a
//! system call that is given one fails with `EFAULT`, and the emulator works through the hidden mapping.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::context::ContextId;
use crate::error::{Answer, Code};

/// What fresh device memory holds: not zeros, so that a read of bytes that nobody wrote shows.
pub(crate) const FRESH: u8 = 0xA5;

const PAGE: usize = 4096;

/// The machine's page size, where the kernel asks for it.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf only looks a number up.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE)
}

/// Allocations from this size on begin on this boundary, as the real driver's do.
const LARGE: usize = 2 << 20;

/// How an allocation came to be, and so how it must be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocAsync`.
    Pool,
    /// `cuMemHostAlloc`, `cuMemAllocHost`.
    HostAlloc,
    /// `cuMemHostRegister`: the caller's own pages.
    HostRegistered,
}

impl Kind {
    pub(crate) fn on_device(self) -> bool {
        matches!(self, Kind::Device | Kind::Pool)
    }
}

/// A private anonymous mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: usize,
    len: usize,
}

impl Mapping {
    fn new(len: usize, protection: i32) -> Answer<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping wherever the kernel likes touches nothing that exists.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(Code::OUT_OF_MEMORY);
        }
        Ok(Mapping { address: address as usize, len })
    }

    /// Takes the pages away but keeps the addresses, so that nothing else comes to lie there.
    pub(crate) fn seal(&self) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the range is this mapping's own; by the time that it is sealed no operation uses it, and a host
        // access by the caller is the use after free that the fault is meant to show.
        unsafe { libc::mmap(self.address as *mut _, self.len, libc::PROT_NONE, flags, -1, 0) };
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's own and its owner, who hands out no borrows, is going.
        unsafe { libc::munmap(self.address as *mut _, self.len) };
    }
}

/// One allocation or registration.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) kind: Kind,
    /// The address that the caller knows.
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) context: ContextId,
    pub(crate) device: i32,
    pub(crate) flags: u32,
    /// `CU_POINTER_ATTRIBUTE_BUFFER_ID`: never used twice.
    pub(crate) id: u64,
    /// Where the emulator reads and writes the bytes.
    alias: usize,
    /// The hidden mapping behind `alias`, for device memory.
    _hidden: Option<Mapping>,
    /// The addresses that the caller sees, unless they are the caller's own.
    reserved: Option<Arc<Mapping>>,
    /// Stream operations that still have to read or write this memory.
    pending: AtomicUsize,
    /// Whether the stream has come to the allocation; true from the start except for `cuMemAllocAsync`.
    born: AtomicBool,
    sync_memops: AtomicBool,
    /// Registrations by others (as cuFile's), told through `cuda_emulator_hold`.
    holds: AtomicUsize,
}

/// Who owns an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) context: ContextId,
    pub(crate) device: i32,
}

impl Memory {
    fn assemble(kind: Kind, base: usize, len: usize, owner: Owner, flags: u32, alias: usize) -> Memory {
        static NEXT_ID: AtomicUsize = AtomicUsize::new(1);
        Memory {
            kind,
            base,
            len,
            context: owner.context,
            device: owner.device,
            flags,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed) as u64,
            alias,
            _hidden: None,
            reserved: None,
            pending: AtomicUsize::new(0),
            born: AtomicBool::new(kind != Kind::Pool),
            sync_memops: AtomicBool::new(false),
            holds: AtomicUsize::new(0),
        }
    }

    /// Fresh device memory, full of [`FRESH`].
    pub(crate) fn on_device(kind: Kind, len: usize, owner: Owner) -> Answer<Memory> {
        let padded = len.checked_add(LARGE + 3 * PAGE).ok_or(Code::OUT_OF_MEMORY)?;
        let reserved = Mapping::new(padded, libc::PROT_NONE)?;
        // A small allocation begins on 512 bytes and on purpose not on a page, since the real driver packs small
        // ones together and only promises 256. At least a page that belongs to nobody lies on either side.
        static TURN: AtomicUsize = AtomicUsize::new(0);
        let base = if len < LARGE / 2 {
            reserved.address + PAGE + 512 * (1 + 2 * (TURN.fetch_add(1, Ordering::Relaxed) % 4))
        } else {
            (reserved.address + PAGE).next_multiple_of(LARGE)
        };
        let hidden = Mapping::new(base % PAGE + len, libc::PROT_READ | libc::PROT_WRITE)?;
        let alias = hidden.address + base % PAGE;
        // SAFETY: `alias` begins `len` writable bytes of the mapping made above, which nobody else knows yet.
        unsafe { std::ptr::write_bytes(alias as *mut u8, FRESH, len) };
        let mut memory = Memory::assemble(kind, base, len, owner, 0, alias);
        memory._hidden = Some(hidden);
        memory.reserved = Some(Arc::new(reserved));
        Ok(memory)
    }

    /// Fresh pinned host memory, readable by the caller.
    pub(crate) fn on_host(len: usize, owner: Owner, flags: u32) -> Answer<Memory> {
        let mapping = Mapping::new(len, libc::PROT_READ | libc::PROT_WRITE)?;
        let base = mapping.address;
        // SAFETY: `len` writable bytes of the mapping made above, which nobody else knows yet.
        unsafe { std::ptr::write_bytes(base as *mut u8, FRESH, len) };
        let mut memory = Memory::assemble(Kind::HostAlloc, base, len, owner, flags, base);
        memory.reserved = Some(Arc::new(mapping));
        Ok(memory)
    }

    /// The caller's own pages.
    pub(crate) fn registered(base: usize, len: usize, owner: Owner, flags: u32) -> Memory {
        Memory::assemble(Kind::HostRegistered, base, len, owner, flags, base)
    }

    /// One past the last address.
    pub(crate) fn end(&self) -> usize {
        self.base + self.len
    }

    /// Where the byte at the caller's `address`, which must lie in this allocation, really is.
    pub(crate) fn real(&self, address: usize) -> usize {
        self.alias + (address - self.base)
    }

    pub(crate) fn reserved(&self) -> Option<Arc<Mapping>> {
        self.reserved.clone()
    }

    pub(crate) fn in_flight(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_born(&self) -> bool {
        self.born.load(Ordering::Acquire)
    }

    pub(crate) fn bear(&self) {
        self.born.store(true, Ordering::Release);
    }

    pub(crate) fn sync_memops(&self) -> bool {
        self.sync_memops.load(Ordering::Relaxed)
    }

    pub(crate) fn set_sync_memops(&self, on: bool) {
        self.sync_memops.store(on, Ordering::Relaxed);
    }

    pub(crate) fn hold(&self) {
        self.holds.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends one hold; false if there was none.
    pub(crate) fn let_go(&self) -> bool {
        self.holds.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |holds| holds.checked_sub(1)).is_ok()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holds.load(Ordering::Relaxed) > 0
    }
}

/// A pending use of an allocation by a stream operation: keeps the bytes mapped, and is seen by whoever frees it.
#[derive(Debug)]
pub(crate) struct Use(Arc<Memory>);

impl Use {
    pub(crate) fn new(memory: Arc<Memory>) -> Use {
        memory.pending.fetch_add(1, Ordering::AcqRel);
        Use(memory)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.0
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::AcqRel);
    }
}
