//! Counters, and the functions that let a test in the same process read them.
//!
//! They are exported under `cuda_emulator_` names, which no CUDA program looks up.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::driver::Driver;
use crate::error::Code;
use crate::ffi::{Out, Text};
use crate::memory::Kind;
use crate::misuse;

static CALLS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Counts one call of an entry point.
pub(crate) fn count_call(call: &'static str) {
    *CALLS.lock().unwrap_or_else(PoisonError::into_inner).entry(call).or_default() += 1;
}

/// Where bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    DeviceToPeer,
    HostToHost,
}

static COPIES: AtomicU64 = AtomicU64::new(0);
static BYTES: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

/// Counts one copy when it has been done, not when it was asked for.
pub(crate) fn count_copy(route: Route, bytes: u64) {
    COPIES.fetch_add(1, Ordering::Relaxed);
    BYTES[route as usize].fetch_add(bytes, Ordering::Relaxed);
}

/// What [`cuda_emulator_stats`] answers. Sizes are in bytes; a test that reads it declares the same `repr(C)` struct.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Stats {
    device_allocations: u64,
    device_bytes: u64,
    host_allocations: u64,
    host_allocated_bytes: u64,
    host_registrations: u64,
    host_registered_bytes: u64,
    streams: u64,
    events: u64,
    contexts: u64,
    copies_done: u64,
    bytes_host_to_device: u64,
    bytes_device_to_host: u64,
    bytes_device_to_device: u64,
    bytes_device_to_peer: u64,
    bytes_host_to_host: u64,
    misuses: u64,
}

/// What is alive now, and what has been copied so far.
#[unsafe(no_mangle)]
extern "C" fn cuda_emulator_stats(stats: Out<Stats>) -> Code {
    let driver = Driver::lock("cuda_emulator_stats");
    let bytes = |route: Route| BYTES[route as usize].load(Ordering::Relaxed);
    let mut answer = Stats {
        streams: driver.streams.values().filter(|stream| stream.was_created()).count() as u64,
        events: driver.events.len() as u64,
        contexts: driver.contexts.values().filter(|context| !context.destroyed).count() as u64,
        copies_done: COPIES.load(Ordering::Relaxed),
        bytes_host_to_device: bytes(Route::HostToDevice),
        bytes_device_to_host: bytes(Route::DeviceToHost),
        bytes_device_to_device: bytes(Route::DeviceToDevice),
        bytes_device_to_peer: bytes(Route::DeviceToPeer),
        bytes_host_to_host: bytes(Route::HostToHost),
        misuses: misuse::reported(),
        ..Stats::default()
    };
    for memory in driver.addresses.live() {
        let (count, bytes) = match memory.kind {
            Kind::Device | Kind::Pool => (&mut answer.device_allocations, &mut answer.device_bytes),
            Kind::HostAlloc => (&mut answer.host_allocations, &mut answer.host_allocated_bytes),
            Kind::HostRegistered => (&mut answer.host_registrations, &mut answer.host_registered_bytes),
        };
        *count += 1;
        *bytes += memory.len as u64;
    }
    stats.set(answer).into()
}

/// How often the entry point `name` (with its version suffix) was called; 0 for a name never called.
#[unsafe(no_mangle)]
extern "C" fn cuda_emulator_calls(name: Text) -> u64 {
    let Ok(name) = name.read() else { return 0 };
    CALLS.lock().unwrap_or_else(PoisonError::into_inner).get(name.as_str()).copied().unwrap_or(0)
}

/// Writes all counts as text, one `name count` a line, into a buffer of `len` bytes, and answers the size needed.
///
/// # Safety
///
/// `buffer` must be null or valid for `len` writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuda_emulator_all_calls(buffer: Out<c_char>, len: usize) -> usize {
    let calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let text: String = calls.iter().map(|(name, count)| format!("{name} {count}\n")).collect();
    let bytes: Vec<c_char> = text.bytes().chain([0]).map(|byte| byte as c_char).collect();
    if !buffer.is_null() && bytes.len() <= len {
        // SAFETY: the text fits in the `len` bytes that the caller promises.
        let _ = unsafe { buffer.fill(&bytes) };
    }
    bytes.len()
}

/// Reads device memory behind the driver's back, whatever the streams are doing: for a test to see what a pending
/// operation has not done yet.
///
/// # Safety
///
/// `buffer` must be null or valid for `len` writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuda_emulator_peek(address: u64, buffer: Out<u8>, len: usize) -> Code {
    let driver = Driver::lock("cuda_emulator_peek");
    let Some(memory) = driver.addresses.find(address as usize) else {
        return Code::INVALID_VALUE;
    };
    if len > memory.end() - address as usize {
        return Code::INVALID_VALUE;
    }
    let real = memory.real(address as usize) as *const u8;
    // SAFETY: `len` bytes from `real` on lie inside a live allocation, which the held lock keeps from being freed.
    // A stream may be writing them; that race is what the caller asks to see, and so they are read as volatile.
    let bytes: Vec<u8> = (0..len).map(|index| unsafe { real.add(index).read_volatile() }).collect();
    // SAFETY: the caller's buffer holds `len` bytes.
    unsafe { buffer.fill(&bytes) }.into()
}

/// Tells the emulator that somebody (a stand-in for cuFile, say) has registered the allocation around `address`:
/// freeing it before [`cuda_emulator_let_go`] is then a misuse.
#[unsafe(no_mangle)]
extern "C" fn cuda_emulator_hold(address: u64) -> Code {
    let driver = Driver::lock("cuda_emulator_hold");
    let Some(memory) = driver.addresses.find(address as usize) else {
        return Code::INVALID_VALUE;
    };
    memory.hold();
    Code::SUCCESS
}

/// Ends one [`cuda_emulator_hold`].
#[unsafe(no_mangle)]
extern "C" fn cuda_emulator_let_go(address: u64) -> Code {
    let driver = Driver::lock("cuda_emulator_let_go");
    let held = driver.addresses.find(address as usize).is_some_and(|memory| memory.let_go());
    if held { Code::SUCCESS } else { Code::INVALID_VALUE }
}
