//! Which memory and which file an operation names, and whether it may.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use crate::call;
use crate::cuda;
use crate::error::{Failure, code};
use crate::misuse::{Misuse, report};
use crate::settings::{TooLarge, settings};
use crate::state::{self, Buffer, File, HandleKind, State};

/// The memory of one operation, checked.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: u64,
    pub(crate) len: usize,
    pub(crate) context: usize,
    pub(crate) device: i32,
    pub(crate) on_host: bool,
    buffer: Option<Arc<Buffer>>,
}

/// How an operation names its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// By the base of a registration and an offset: the base must be the registered one.
    BaseAndOffset,
    /// By an address alone, as vectors do.
    Address,
}

/// A file and the memory of an operation on it, both marked as in use until this is dropped.
#[derive(Debug)]
pub(crate) struct Busy {
    pub(crate) file: Arc<File>,
    pub(crate) targets: Vec<Target>,
}

impl Busy {
    pub(crate) fn new(file: Arc<File>, targets: Vec<Target>) -> Busy {
        state::begin(&file.in_flight);
        for target in &targets {
            target.buffer.iter().for_each(|buffer| state::begin(&buffer.in_flight));
            if !target.on_host {
                cuda::hold(target.address);
            }
        }
        Busy { file, targets }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for target in &self.targets {
            target.buffer.iter().for_each(|buffer| state::end(&buffer.in_flight));
            if !target.on_host {
                cuda::let_go(target.address);
            }
        }
        state::end(&self.file.in_flight);
    }
}

/// The file behind a handle, whose descriptor must still be the one that was registered.
pub(crate) fn file(call: &str, handle: usize) -> Result<Arc<File>, Failure> {
    let state = State::lock();
    let Some(file) = state.handles.get(&handle).cloned() else {
        let (misuse, detail) = state.bad_handle(handle, HandleKind::File, false);
        drop(state);
        report(misuse, call, handle as u64, detail);
        return Err(Failure::Code(code::HANDLE_NOT_REGISTERED));
    };
    drop(state);
    if !is_same(&file) {
        let detail = format!("descriptor {} was closed, or is another file now", file.fd);
        report(Misuse::FdClosed, call, handle as u64, &detail);
        return Err(Failure::Errno(libc::EBADF));
    }
    Ok(file)
}

/// Whether the caller's descriptor is still open on the registered file.
pub(crate) fn is_same(file: &File) -> bool {
    // SAFETY: an all-zero stat is a valid value to be overwritten.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: fstat answers for any number, and fills in a struct of our own.
    let open = unsafe { libc::fstat(file.fd, &mut found) } == 0;
    // SAFETY: as above.
    let flags = unsafe { libc::fcntl(file.fd, libc::F_GETFL) };
    // SAFETY: asks about a descriptor of our own.
    let own = unsafe { libc::fcntl(file.own.as_raw_fd(), libc::F_GETFL) };
    open && (found.st_dev, found.st_ino) == (file.device, file.inode)
        && flags & libc::O_ACCMODE == own & libc::O_ACCMODE
        && (flags & libc::O_DIRECT != 0) == file.direct
}

/// The size that is left of an operation under the largest allowed one.
pub(crate) fn limited(size: usize) -> Result<usize, Failure> {
    match settings().max_io {
        Some((max, TooLarge::Refuse)) if size as u64 > max => Err(Failure::Errno(code::INVALID_VALUE)),
        Some((max, TooLarge::Shorten)) => Ok(size.min(max as usize)),
        _ => Ok(size),
    }
}

/// The memory of an operation. `offset` may not be negative, nor the sum too large.
pub(crate) fn memory(
    call: &str,
    base: u64,
    offset: i64,
    len: usize,
    naming: Naming,
) -> Result<Target, Failure> {
    if base == 0 {
        return Err(Failure::Errno(libc::EINVAL));
    }
    let outside = Failure::Errno(code::INVALID_MAPPING_RANGE);
    let offset = u64::try_from(offset).map_err(|_| Failure::Errno(code::INTERNAL_ERROR))?;
    let address = base.checked_add(offset).ok_or(outside)?;
    address.checked_add(len as u64).ok_or(outside)?;
    let buffer = registration(call, base, offset, len, naming)?;
    let Some(memory) = cuda::memory(base).filter(|memory| !memory.on_host) else {
        return on_host(call, address, len, buffer);
    };
    if memory.context == 0 {
        report(Misuse::PoolMemory, call, base, "stream-ordered memory, which cuFile cannot be given");
        return Err(Failure::Code(code::CUDA_POINTER_INVALID));
    }
    let end = memory.base + memory.len;
    if address + len as u64 > end {
        let detail = format!("{len} bytes at offset {offset} end past the allocation's end at {end:#x}");
        report(Misuse::PastAllocation, call, base, &detail);
        return Err(outside);
    }
    let context = call::context_of(call, Some(memory.context), base)?;
    Ok(Target { address, len, context, device: memory.device, on_host: false, buffer })
}

/// The registration that an operation uses, if any.
fn registration(
    call: &str,
    base: u64,
    offset: u64,
    len: usize,
    naming: Naming,
) -> Result<Option<Arc<Buffer>>, Failure> {
    let state = State::lock();
    let Some(buffer) = state.buffer_around(base).cloned() else {
        let ended = state.was_registered(base);
        drop(state);
        if settings().unregistered_reads {
            return Ok(None);
        }
        if ended {
            report(Misuse::UseAfterDeregister, call, base, "this buffer was deregistered before");
        }
        return Err(Failure::Code(code::MEMORY_NOT_REGISTERED));
    };
    drop(state);
    let inside = base - buffer.base;
    if naming == Naming::BaseAndOffset && inside != 0 {
        let detail = format!(
            "{inside} bytes into the registration at {:#x}: give its base, and an offset",
            buffer.base
        );
        report(Misuse::NotTheRegisteredBase, call, base, &detail);
        return Err(Failure::Errno(code::INVALID_MAPPING_RANGE));
    }
    if inside + offset + len as u64 > buffer.len {
        let detail = format!("{len} bytes at offset {offset} of a registration of {} bytes", buffer.len);
        report(Misuse::PastRegistration, call, base, &detail);
        return Err(Failure::Errno(code::INVALID_MAPPING_RANGE));
    }
    Ok(Some(buffer))
}

/// Host memory, where that is allowed.
fn on_host(call: &str, address: u64, len: usize, buffer: Option<Arc<Buffer>>) -> Result<Target, Failure> {
    if buffer.is_some() {
        report(Misuse::FreedWhileRegistered, call, address, "the memory of this registration is gone");
        return Err(Failure::Code(code::CUDA_POINTER_INVALID));
    }
    if !settings().host_memory {
        report(Misuse::HostPointer, call, address, "no device memory of this driver");
        return Err(Failure::Code(code::CUDA_MEMORY_TYPE_INVALID));
    }
    Ok(Target { address, len, context: 0, device: 0, on_host: true, buffer })
}
