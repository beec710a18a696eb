//! Opening and closing, and what the driver says of itself.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::call::{self, When};
use crate::cuda;
use crate::error::{Answer, Error, code};
use crate::ffi::{Out, Properties};
use crate::misuse::{Misuse, report};
use crate::parameters;
use crate::settings::{Route, settings};
use crate::state::{self, State};

/// The limits that can be set while the driver is open.
#[derive(Debug)]
struct Limits {
    poll: bool,
    poll_threshold_kib: usize,
    max_direct_io_kib: usize,
    max_cache_kib: u32,
    max_pinned_kib: u32,
}

static LIMITS: Mutex<Option<Limits>> = Mutex::new(None);

fn older() -> bool {
    settings().version < 1150
}

fn limits() -> MutexGuard<'static, Option<Limits>> {
    let mut limits = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
    limits.get_or_insert_with(|| Limits {
        poll: false,
        poll_threshold_kib: 4,
        max_direct_io_kib: parameters::size("max_direct_io"),
        max_cache_kib: parameters::size("max_device_cache") as u32,
        max_pinned_kib: u32::MAX - 3,
    });
    limits
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverOpen() -> Error {
    call::status("cuFileDriverOpen", When::Anytime, || {
        call::some_context("cuFileDriverOpen", 0)?;
        State::lock().opens += 1;
        call::opened();
        Ok(())
    })
}

fn close(call: &'static str) -> Error {
    call::status(call, When::Anytime, || {
        let mut state = State::lock();
        if state.opens != 1 {
            if state.opens == 0 {
                drop(state);
                report(Misuse::CloseNotOpen, call, 0, "the driver is not open");
                return Err(Error::cufile(code::DRIVER_NOT_INITIALIZED));
            }
            state.opens -= 1;
            return Ok(());
        }
        state.opens = 0;
        let handles = std::mem::take(&mut state.handles);
        let buffers = std::mem::take(&mut state.buffers);
        let batches = std::mem::take(&mut state.batches);
        let streams = std::mem::take(&mut state.streams);
        state.past_buffers.extend(buffers.values().map(|buffer| (buffer.base, buffer.len)));
        let moving = state.stream_operations;
        drop(state);
        *LIMITS.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let left = |address: u64, what: &str| report(Misuse::CloseWhileRegistered, call, address, what);
        for (handle, file) in &handles {
            let busy = if state::any(&file.in_flight) { ", with operations in flight" } else { "" };
            left(*handle as u64, &format!("descriptor {} is registered{busy}", file.fd));
        }
        for (base, buffer) in &buffers {
            left(*base, &format!("a buffer of {} bytes is registered", buffer.len));
            cuda::let_go(*base);
        }
        batches.keys().for_each(|batch| left(*batch as u64, "a batch is set up"));
        streams.keys().for_each(|stream| left(*stream as u64, "a stream is registered"));
        if moving > 0 {
            left(0, &format!("{moving} stream-ordered operations are in flight"));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverClose() -> Error {
    close("cuFileDriverClose")
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverClose_v2() -> Error {
    close("cuFileDriverClose_v2")
}

#[unsafe(no_mangle)]
extern "C" fn cuFileUseCount() -> i64 {
    call::silent("cuFileUseCount", When::Anytime, || State::lock().opens as i64)
}

const NVME: u32 = 1 << 4;
/// The flag of older versions for NVMe by PCI P2PDMA.
const NVME_P2P: u32 = 1 << 11;
const ALLOW_COMPAT: u32 = 1 << 1;
const P2P_FEATURE: u32 = 1 << 4;

/// The flags of what is supported, the features, and the kernel module's version, as the route has them.
fn supported() -> (u32, u32, (u32, u32)) {
    let features = if older() { 0b0111 } else { 0b1111 };
    match settings().route {
        Route::Compat => (0, features, (0, 0)),
        Route::Nvfs => (NVME, features, (2, 24)),
        Route::P2pDma if older() => (NVME_P2P, features, (0, 0)),
        Route::P2pDma => (NVME, features | P2P_FEATURE, (0, 0)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverGetProperties(properties: Out<Properties>) -> Error {
    call::status("cuFileDriverGetProperties", When::DriverOpen, || {
        let guard = limits();
        let Some(limits) = guard.as_ref() else { return Err(Error::cufile(code::INTERNAL_ERROR)) };
        let (status_flags, feature_flags, (major_version, minor_version)) = supported();
        properties.set(Properties {
            major_version,
            minor_version,
            poll_threshold_kib: limits.poll_threshold_kib,
            max_direct_io_kib: limits.max_direct_io_kib,
            status_flags,
            control_flags: ALLOW_COMPAT | u32::from(limits.poll),
            feature_flags,
            max_device_cache_kib: limits.max_cache_kib,
            per_buffer_cache_kib: parameters::size("per_buffer_cache") as u32,
            max_pinned_kib: limits.max_pinned_kib,
            max_batch_io: settings().max_batch,
            max_batch_timeout_ms: 5,
        })
    })
}

/// Sets one limit, if it is a multiple of `unit` in the range.
fn set(
    call: &'static str,
    kib: usize,
    unit: usize,
    range: std::ops::RangeInclusive<usize>,
    change: impl FnOnce(&mut Limits),
) -> Error {
    call::status(call, When::DriverOpen, || {
        if !range.contains(&kib) || !kib.is_multiple_of(unit) {
            let code = if older() { code::DRIVER_UNSUPPORTED_LIMIT } else { code::INVALID_VALUE };
            return Err(Error::cufile(code));
        }
        limits().as_mut().map(change).ok_or(Error::cufile(code::INTERNAL_ERROR))
    })
}

/// C's `bool`, of which only 0 and 1 are sound.
#[unsafe(no_mangle)]
extern "C" fn cuFileDriverSetPollMode(poll: u8, kib: usize) -> Error {
    set("cuFileDriverSetPollMode", kib, 4, 4..=16384, |limits| {
        limits.poll = poll != 0;
        limits.poll_threshold_kib = kib;
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverSetMaxDirectIOSize(kib: usize) -> Error {
    set("cuFileDriverSetMaxDirectIOSize", kib, 64, 64..=16384, |limits| limits.max_direct_io_kib = kib)
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverSetMaxCacheSize(kib: usize) -> Error {
    set("cuFileDriverSetMaxCacheSize", kib, 4, 0..=(1 << 30), |limits| limits.max_cache_kib = kib as u32)
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverSetMaxPinnedMemSize(kib: usize) -> Error {
    set("cuFileDriverSetMaxPinnedMemSize", kib, 4, 64..=(u32::MAX as usize), |limits| {
        limits.max_pinned_kib = kib as u32;
    })
}

/// Whether parameters may be set: only before the driver is open.
pub(crate) fn must_be_closed() -> Answer {
    if State::lock().opens > 0 { Err(Error::cufile(code::DRIVER_ALREADY_OPEN)) } else { Ok(()) }
}
