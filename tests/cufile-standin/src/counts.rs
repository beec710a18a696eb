//! Counters, and the functions that let a test in the same process read them.
//!
//! They are exported under `cufile_standin_` names, which no cuFile program looks up.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::ffi::Out;
use crate::ledger::{self, Direction};
use crate::state::State;
use crate::{fault, misuse};

static CALLS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Counts one call of an entry point, and answers which it is, from 1.
pub(crate) fn count_call(call: &'static str) -> u64 {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let count = calls.entry(call).or_default();
    *count += 1;
    *count
}

/// What [`cufile_standin_stats`] answers; a test that reads it declares the same `repr(C)` struct.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Stats {
    driver_opens: u64,
    handles: u64,
    buffers: u64,
    registered_bytes: u64,
    batches: u64,
    batch_entries_in_flight: u64,
    streams: u64,
    stream_operations_in_flight: u64,
    reads: u64,
    read_bytes: u64,
    writes: u64,
    write_bytes: u64,
    failed: u64,
    direct_bytes: u64,
    posix_bytes: u64,
    faults_struck: u64,
    misuses: u64,
}

/// What is registered now, and what has been moved so far.
#[unsafe(no_mangle)]
extern "C" fn cufile_standin_stats(stats: Out<Stats>) -> i32 {
    let (reads, writes) = (ledger::total(Direction::Read), ledger::total(Direction::Write));
    let state = State::lock();
    let answer = Stats {
        driver_opens: state.opens,
        handles: state.handles.len() as u64,
        buffers: state.buffers.len() as u64,
        registered_bytes: state.registered_bytes(),
        batches: state.batches.len() as u64,
        batch_entries_in_flight: state.batches.values().map(|batch| batch.in_flight()).sum(),
        streams: state.streams.len() as u64,
        stream_operations_in_flight: state.stream_operations,
        reads: reads.ok,
        read_bytes: reads.bytes,
        writes: writes.ok,
        write_bytes: writes.bytes,
        failed: reads.failed + writes.failed,
        direct_bytes: reads.direct_bytes + writes.direct_bytes,
        posix_bytes: reads.bytes + writes.bytes - reads.direct_bytes - writes.direct_bytes,
        faults_struck: fault::struck(),
        misuses: misuse::reported(),
    };
    drop(state);
    Error::from(stats.set(answer)).cufile
}

/// How often an entry point was called; 0 for a name never called.
///
/// # Safety
///
/// `name` must be null or NUL-terminated.
#[unsafe(no_mangle)]
unsafe extern "C" fn cufile_standin_calls(name: *const c_char) -> u64 {
    if name.is_null() {
        return 0;
    }
    // SAFETY: not null, and so NUL-terminated by this function's contract.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    CALLS.lock().unwrap_or_else(PoisonError::into_inner).get(name.as_ref()).copied().unwrap_or(0)
}

/// Writes all counts as text, one `name count` a line, into a buffer of `len` bytes, and answers the size needed.
///
/// # Safety
///
/// `buffer` must be null or valid for `len` writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cufile_standin_all_calls(buffer: Out<u8>, len: usize) -> usize {
    let calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let text: String = calls.iter().map(|(name, count)| format!("{name} {count}\n")).collect();
    let bytes: Vec<u8> = text.bytes().chain([0]).collect();
    if !buffer.is_null() && bytes.len() <= len {
        // SAFETY: the text fits in the `len` bytes that the caller promises.
        let _ = unsafe { buffer.fill(&bytes) };
    }
    bytes.len()
}
