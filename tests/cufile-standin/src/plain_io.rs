//! `cuFileRead`, `cuFileWrite`, and their vectored forms.

use crate::call;
use crate::error::{Failure, code};
use crate::fault::What;
use crate::ffi::{Array, IoVec};
use crate::ledger::{Direction, Form};
use crate::target::{self, Busy, Naming};
use crate::transfer;

/// The most elements of a vector, as `readv` has it.
const MOST_VECTORS: usize = 1024;

fn plain(
    call: &'static str,
    direction: Direction,
    handle: usize,
    (base, size): (u64, usize),
    (file_offset, buffer_offset): (i64, i64),
) -> isize {
    call::transfer(call, |faults| {
        let file = target::file(call, handle)?;
        transfer::check(&file, direction, file_offset)?;
        if size == 0 {
            return no_bytes(faults);
        }
        let size = target::limited(size)?;
        let memory = target::memory(call, base, buffer_offset, size, Naming::BaseAndOffset)?;
        file_offset.checked_add_unsigned(size as u64).ok_or(Failure::Errno(code::INVALID_VALUE))?;
        transfer::run(&Busy::new(file, vec![memory]), direction, Form::Plain, file_offset, faults)
    })
}

/// Nothing to move; a fault still strikes.
fn no_bytes(faults: &[What]) -> Result<usize, Failure> {
    faults.iter().try_fold(0, |least, fault| Ok(least.min(fault.of_transfer(0)?)))
}

#[unsafe(no_mangle)]
extern "C" fn cuFileRead(
    handle: usize,
    base: u64,
    size: usize,
    file_offset: i64,
    buffer_offset: i64,
) -> isize {
    plain("cuFileRead", Direction::Read, handle, (base, size), (file_offset, buffer_offset))
}

#[unsafe(no_mangle)]
extern "C" fn cuFileWrite(
    handle: usize,
    base: u64,
    size: usize,
    file_offset: i64,
    buffer_offset: i64,
) -> isize {
    plain("cuFileWrite", Direction::Write, handle, (base, size), (file_offset, buffer_offset))
}

/// # Safety
///
/// `vectors` must be null or hold `count` elements.
unsafe fn vectored(
    call: &'static str,
    direction: Direction,
    handle: usize,
    vectors: Array<IoVec>,
    count: usize,
    file_offset: i64,
    flags: u32,
) -> isize {
    call::transfer(call, |faults| {
        let file = target::file(call, handle)?;
        transfer::check(&file, direction, file_offset)?;
        if flags != 0 || count == 0 || count > MOST_VECTORS {
            return Err(Failure::Errno(code::INVALID_VALUE));
        }
        // SAFETY: `count` elements, by this function's contract.
        let vectors = unsafe { vectors.read(count) }.map_err(|_| Failure::Errno(libc::EINVAL))?;
        let total = vectors.iter().try_fold(0_u64, |sum, vector| sum.checked_add(vector.len as u64));
        let total = total.ok_or(Failure::Errno(code::INVALID_VALUE))?;
        file_offset.checked_add_unsigned(total).ok_or(Failure::Errno(code::INVALID_VALUE))?;
        let mut left = target::limited(total as usize)?;
        let mut targets = Vec::new();
        for vector in vectors.iter().filter(|vector| vector.len > 0) {
            let len = vector.len.min(left);
            left -= len;
            if len > 0 {
                targets.push(target::memory(call, vector.base, 0, len, Naming::Address)?);
            }
        }
        if targets.is_empty() {
            return no_bytes(faults);
        }
        transfer::run(&Busy::new(file, targets), direction, Form::Vector, file_offset, faults)
    })
}

/// # Safety
///
/// `vectors` must be null or hold `count` elements.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileReadv(
    handle: usize,
    vectors: Array<IoVec>,
    count: usize,
    file_offset: i64,
    flags: u32,
) -> isize {
    // SAFETY: this function's contract.
    unsafe { vectored("cuFileReadv", Direction::Read, handle, vectors, count, file_offset, flags) }
}

/// # Safety
///
/// `vectors` must be null or hold `count` elements.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileWritev(
    handle: usize,
    vectors: Array<IoVec>,
    count: usize,
    file_offset: i64,
    flags: u32,
) -> isize {
    // SAFETY: this function's contract.
    unsafe { vectored("cuFileWritev", Direction::Write, handle, vectors, count, file_offset, flags) }
}
