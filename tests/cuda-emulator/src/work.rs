//! What an operation of a stream does, and the doing of it.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::address::Place;
use crate::call;
use crate::error::{Answer, Code};
use crate::memory::{Memory, Use};
use crate::misuse::{Misuse, report};
use crate::queue::StreamId;
use crate::stats::{self, Route};

/// Bytes that a copy reads.
#[derive(Debug)]
pub(crate) enum Source {
    /// Read when the stream comes to it.
    Late(Place),
    /// Taken from the caller's pageable memory during the call.
    Staged(Vec<u8>),
}

/// A caller's pointer that the emulator only passes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserData(pub(crate) *mut c_void);

// SAFETY: never followed here; the API hands it to the caller's own function on another thread by contract.
unsafe impl Send for UserData {}

/// `CUhostFn`.
pub(crate) type HostFn = extern "C" fn(*mut c_void);

/// `CUstreamCallback`.
pub(crate) type StreamCallback = extern "C" fn(StreamId, Code, *mut c_void);

/// How `cuStreamWaitValue` compares what lies in memory with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    GreaterOrEqual,
    Equal,
    And,
    Nor,
}

/// A 32- or 64-bit value of `cuStreamWriteValue` and `cuStreamWaitValue`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    Bits32(u32),
    Bits64(u64),
}

/// What an operation does.
#[derive(Debug)]
pub(crate) enum Work {
    /// Only waits for its dependencies.
    Nothing,
    Copy {
        from: Source,
        to: Place,
        len: usize,
        route: Route,
    },
    /// Writes the pattern's bytes over and over.
    Fill {
        to: Place,
        len: usize,
        pattern: Vec<u8>,
    },
    Record(Arc<OnceLock<Instant>>),
    HostFunction {
        function: HostFn,
        data: UserData,
    },
    Callback {
        function: StreamCallback,
        data: UserData,
        named: StreamId,
    },
    WriteValue {
        to: Place,
        value: Value,
    },
    WaitValue {
        at: Place,
        value: Value,
        comparison: Comparison,
    },
    /// Stream-ordered memory becomes usable.
    Bear(Arc<Memory>),
    /// Stream-ordered memory ends.
    Bury(Arc<Memory>),
    /// Fails in place of what was asked for.
    Fail(Code),
}

impl Work {
    /// Whether a caller could notice that it was not done: bytes move, or the caller's own function runs.
    pub(crate) fn is_noticed(&self) -> bool {
        !matches!(self, Work::Nothing | Work::Record(_) | Work::Bear(_) | Work::Bury(_))
    }
}

/// What is left of an operation on a context that has failed: events pass, callbacks hear of it, bytes stay.
pub(crate) fn abandon(work: Work, code: Code) -> Answer {
    match work {
        Work::Record(finished) => {
            let _ = finished.set(Instant::now());
        }
        Work::Callback { function, data, named } => call::as_callback(|| function(named, code, data.0)),
        _ => {}
    }
    Ok(())
}

/// Does the operation. Dropping `work` at the end gives its memory uses back.
pub(crate) fn execute(work: Work) -> Answer {
    match work {
        Work::Nothing => {}
        Work::Fail(code) => return Err(code),
        Work::Copy { from, to, len, route } => {
            check_born(&to);
            match &from {
                Source::Late(from) => {
                    check_born(from);
                    // SAFETY: both places were checked to hold `len` bytes, and are kept mapped by their uses or, if
                    // pageable, by the caller who is blocked until this copy is done. The regions of one copy do
                    // not overlap (checked in the call). A host that writes them meanwhile breaks CUDA's rules.
                    unsafe { std::ptr::copy(from.real as *const u8, to.real as *mut u8, len) };
                }
                Source::Staged(bytes) => {
                    // SAFETY: the vector holds `len` bytes of our own; the rest as above.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.real as *mut u8, len) };
                }
            }
            stats::count_copy(route, len as u64);
        }
        Work::Fill { to, len, pattern } => {
            check_born(&to);
            // SAFETY: as for a copy: `len` bytes were checked, and stay mapped through their use.
            let bytes = unsafe { std::slice::from_raw_parts_mut(to.real as *mut u8, len) };
            match pattern[..] {
                [byte] => bytes.fill(byte),
                _ => bytes
                    .chunks_mut(pattern.len())
                    .for_each(|chunk| chunk.copy_from_slice(&pattern[..chunk.len()])),
            }
        }
        Work::Record(finished) => {
            let _ = finished.set(Instant::now());
        }
        Work::HostFunction { function, data } => call::as_callback(|| function(data.0)),
        Work::Callback { function, data, named } => {
            call::as_callback(|| function(named, Code::SUCCESS, data.0));
        }
        Work::WriteValue { to, value } => match value {
            // SAFETY: four checked and aligned bytes, kept mapped by their use; volatile, since the host may poll.
            Value::Bits32(value) => unsafe { (to.real as *mut u32).write_volatile(value) },
            // SAFETY: as above, with eight bytes.
            Value::Bits64(value) => unsafe { (to.real as *mut u64).write_volatile(value) },
        },
        Work::WaitValue { at, value, comparison } => {
            while !satisfied(&at, value, comparison) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        Work::Bear(memory) => memory.bear(),
        Work::Bury(memory) => {
            if memory.in_flight() {
                let detail = "freed on a stream while operations on other streams still use it";
                report(Misuse::FreeInFlight, "cuMemFreeAsync", memory.base as u64, detail);
            }
        }
    }
    Ok(())
}

/// Stream-ordered memory may be used only after the stream has come to its allocation.
fn check_born(place: &Place) {
    if let Some(memory) = place.held.as_ref().map(Use::memory)
        && !memory.is_born()
    {
        let detail = "used on a stream that does not wait for the stream of its cuMemAllocAsync";
        report(Misuse::UseBeforeAllocation, "a stream", place.address as u64, detail);
    }
}

fn satisfied(at: &Place, wanted: Value, comparison: Comparison) -> bool {
    match wanted {
        Value::Bits32(wanted) => {
            // SAFETY: four checked and aligned bytes, kept mapped by their use; volatile, since the host writes them.
            let found = unsafe { (at.real as *const u32).read_volatile() };
            match comparison {
                // Cyclic, as the header says: (int32_t)(*addr - value) >= 0.
                Comparison::GreaterOrEqual => found.wrapping_sub(wanted) as i32 >= 0,
                Comparison::Equal => found == wanted,
                Comparison::And => found & wanted != 0,
                Comparison::Nor => !(found | wanted) != 0,
            }
        }
        Value::Bits64(wanted) => {
            // SAFETY: as above, with eight bytes.
            let found = unsafe { (at.real as *const u64).read_volatile() };
            match comparison {
                Comparison::GreaterOrEqual => found.wrapping_sub(wanted) as i64 >= 0,
                Comparison::Equal => found == wanted,
                Comparison::And => found & wanted != 0,
                Comparison::Nor => !(found | wanted) != 0,
            }
        }
    }
}
