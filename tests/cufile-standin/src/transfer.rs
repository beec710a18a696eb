//! The moving of bytes between a file and memory.

use std::os::fd::AsRawFd;
use std::time::Instant;

use crate::cuda::{self, Copying};
use crate::error::{Failure, code};
use crate::fault::What;
use crate::latency;
use crate::ledger::{self, Direction, Form, Operation, Way};
use crate::settings::{Route, settings};
use crate::state::File;
use crate::target::{Busy, Target};

/// Bytes that are staged in host memory at a time.
const PIECE: usize = 4 << 20;

/// Below this alignment of offset, size and address, an operation counts as unaligned.
const ALIGNMENT: u64 = 4096;

impl From<Copying> for Failure {
    fn from(copying: Copying) -> Failure {
        Failure::Cuda(copying.0)
    }
}

/// The way that operations on this file are said to take.
pub(crate) fn way(file: &File) -> Way {
    match settings().route {
        Route::Nvfs if file.direct => Way::Nvfs,
        Route::P2pDma if file.direct => Way::P2pDma,
        _ => Way::Posix,
    }
}

/// Whether the file's mode allows the direction, and the offset is one.
pub(crate) fn check(file: &File, direction: Direction, offset: i64) -> Result<(), Failure> {
    let allowed = if direction == Direction::Read { file.readable } else { file.writable };
    if !allowed {
        return Err(Failure::Errno(code::INVALID_FILE_OPEN_FLAG));
    }
    if offset < 0 { Err(Failure::Errno(code::INVALID_VALUE)) } else { Ok(()) }
}

/// Moves all that the faults leave of an operation, target after target, and counts it.
pub(crate) fn run(
    busy: &Busy,
    direction: Direction,
    form: Form,
    offset: i64,
    faults: &[What],
) -> Result<usize, Failure> {
    latency::pause();
    let size: usize = busy.targets.iter().map(|target| target.len).sum();
    let began = Instant::now();
    let allowed = faults.iter().try_fold(size, |least, fault| Ok(least.min(fault.of_transfer(size)?)));
    let moved = allowed.and_then(|allowed| all(busy, direction, offset, allowed));
    let aligned = |value: u64| value.is_multiple_of(ALIGNMENT);
    let unaligned = !aligned(offset as u64)
        || busy.targets.iter().any(|target| !aligned(target.address) || !aligned(target.len as u64));
    ledger::record(&Operation {
        direction,
        form,
        device: busy.targets.first().map_or(0, |target| target.device),
        way: way(&busy.file),
        unaligned,
        moved: moved.ok().map(|bytes| bytes as u64),
        microseconds: began.elapsed().as_micros() as u64,
    });
    moved
}

fn all(busy: &Busy, direction: Direction, offset: i64, allowed: usize) -> Result<usize, Failure> {
    let mut moved = 0;
    for target in &busy.targets {
        let wanted = target.len.min(allowed - moved);
        let done = one(&busy.file, target, direction, offset + moved as i64, wanted)?;
        moved += done;
        if done < wanted || moved == allowed {
            break;
        }
    }
    Ok(moved)
}

fn one(
    file: &File,
    target: &Target,
    direction: Direction,
    offset: i64,
    wanted: usize,
) -> Result<usize, Failure> {
    if target.on_host {
        return in_pieces(wanted, |done, len| {
            let address = target.address as usize + done;
            kernel(file, direction, address, len, offset + done as i64)
        });
    }
    let mut staged = vec![0; wanted.min(PIECE)];
    // The context was checked in the call; another thread than the caller's has to make it current.
    let outcome = cuda::in_context(target.context, || {
        Ok(cuda::with_stream(|stream| {
            in_pieces(wanted, |done, len| {
                let address = target.address + done as u64;
                let at = offset + done as i64;
                if direction == Direction::Write {
                    cuda::get(&mut staged[..len], address, stream)?;
                }
                let count = kernel(file, direction, staged.as_mut_ptr() as usize, len, at)?;
                if direction == Direction::Read && count > 0 {
                    cuda::put(address, &staged[..count], stream)?;
                }
                Ok(count)
            })
        }))
    });
    outcome.map_err(Failure::Cuda)?
}

/// Calls `piece` with (bytes done, bytes to do) until all is done or the kernel has no more.
fn in_pieces(
    wanted: usize,
    mut piece: impl FnMut(usize, usize) -> Result<usize, Failure>,
) -> Result<usize, Failure> {
    let mut done = 0;
    while done < wanted {
        match piece(done, (wanted - done).min(PIECE))? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

/// One `pread` or `pwrite`, begun again where a signal came.
fn kernel(
    file: &File,
    direction: Direction,
    address: usize,
    len: usize,
    offset: i64,
) -> Result<usize, Failure> {
    let fd = file.own.as_raw_fd();
    loop {
        // SAFETY: either memory of our own, or host memory of the caller, for which it vouches as with read(2).
        let count = unsafe {
            match direction {
                Direction::Read => libc::pread(fd, address as *mut _, len, offset),
                Direction::Write => libc::pwrite(fd, address as *const _, len, offset),
            }
        };
        if let Ok(count) = usize::try_from(count) {
            return Ok(count);
        }
        // SAFETY: the calling thread's errno is always readable.
        match unsafe { *libc::__errno_location() } {
            libc::EINTR => {}
            errno => return Err(Failure::Errno(errno)),
        }
    }
}
