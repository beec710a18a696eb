//! Copies: which stream they run on, what they read late, and when the call returns.
//!
//! The rules are those of "API synchronization behavior" in the driver API's manual, each in its least generous
//! reading: what may be late is late, and what need not be waited for is not waited for.

use crate::address::{Expect, Place};
use crate::call;
use crate::context::ContextId;
use crate::driver::Driver;
use crate::error::{Answer, Code};
use crate::faults;
use crate::ffi::DevicePtr;
use crate::misuse::Misuse;
use crate::queue::{StreamId, Ticket};
use crate::stats::Route;
use crate::stream::{LEGACY, PER_THREAD, on_stream, per_thread, per_thread_form};
use crate::work::{Source, Work};

/// When a copy's source may be read, beyond what its kind of memory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// As documented for the kind of memory: pageable memory during the call, all else in stream order.
    Usual,
    /// In stream order even from pageable memory (`cuMemcpyBatchAsync`).
    Late,
    /// During the call even from pinned memory (`cuMemcpyBatchAsync`).
    DuringCall,
}

/// One copy, as asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) to: DevicePtr,
    pub(crate) to_kind: Expect,
    pub(crate) from: DevicePtr,
    pub(crate) from_kind: Expect,
    pub(crate) len: usize,
}

fn route(from: &Place, to: &Place) -> Route {
    match (from.on_device(), to.on_device()) {
        (false, true) => Route::HostToDevice,
        (true, false) => Route::DeviceToHost,
        (false, false) => Route::HostToHost,
        (true, true) => {
            let device = |place: &Place| place.memory().map(|memory| memory.device);
            if device(from) == device(to) { Route::DeviceToDevice } else { Route::DeviceToPeer }
        }
    }
}

impl Driver {
    /// Puts a copy on a stream. Answers its place, and whether the call must wait for it even if it is asynchronous.
    pub(crate) fn copy(
        &mut self,
        copy: Copy,
        stream: StreamId,
        reading: Reading,
    ) -> Answer<Option<(Ticket, bool)>> {
        if copy.len == 0 {
            return Ok(None);
        }
        let context = self.context_of(stream)?;
        let to = self.place(copy.to, copy.len, copy.to_kind, context)?;
        let from = self.place(copy.from, copy.len, copy.from_kind, context)?;
        self.copy_places(from, to, copy.len, stream, reading)
    }

    /// As [`Driver::copy`], once both sides are known.
    fn copy_places(
        &mut self,
        from: Place,
        to: Place,
        len: usize,
        stream: StreamId,
        reading: Reading,
    ) -> Answer<Option<(Ticket, bool)>> {
        if from.address < to.address + len && to.address < from.address + len {
            let detail = format!("the source at {:#x} and the destination share bytes", from.address);
            return self.misuse(Misuse::OverlappingCopy, to.address as u64, Code::INVALID_VALUE, &detail);
        }
        self.count_operation(stream)?;
        faults::copy()?;
        if let Some(code) = faults::copy_late() {
            return Ok(Some((self.enqueue(stream, Work::Fail(code), Vec::new()), false)));
        }
        let route = route(&from, &to);
        let pageable_target = to.is_pageable();
        let host_to_host = route == Route::HostToHost;
        let stage = match reading {
            Reading::Usual => from.is_pageable() && !host_to_host,
            Reading::Late => false,
            Reading::DuringCall => !from.on_device(),
        };
        // Pageable memory is not kept alive by anything, so that the call must not return before it is written.
        let wait = pageable_target || (reading == Reading::Usual && host_to_host);
        let source = if stage {
            // SAFETY: host memory that the caller promises to be readable for `len` bytes during the call.
            Source::Staged(unsafe { std::slice::from_raw_parts(from.real as *const u8, len) }.to_vec())
        } else {
            Source::Late(from)
        };
        let ticket = self.enqueue(stream, Work::Copy { from: source, to, len, route }, Vec::new());
        Ok(Some((ticket, wait)))
    }

    /// Counts an operation against the budget after which the device is lost.
    pub(crate) fn count_operation(&mut self, stream: StreamId) -> Answer {
        faults::operation().inspect_err(|code| {
            if let Some(device) = self.streams.get(&stream).map(|stream| stream.device) {
                self.lose_device(device, *code);
            }
        })
    }

    /// Waits, and answers the error that the stream's context is left with.
    fn wait_and_check(&mut self, ticket: Ticket) -> Answer {
        let context = self.context_of(ticket.stream);
        self.wait_for(ticket);
        self.healthy(context?)
    }
}

/// An asynchronous copy on a stream.
fn asynchronous(call: &'static str, copy: Copy, stream: StreamId) -> Code {
    on_stream(call, stream, |driver, stream| match driver.copy(copy, stream, Reading::Usual)? {
        Some((ticket, true)) => driver.wait_and_check(ticket),
        _ => Ok(()),
    })
}

/// A synchronous copy: on the default stream, and waited for unless both sides are on the device, or the source was
/// pageable and is staged by now.
fn synchronous(call: &'static str, copy: Copy, stream: StreamId) -> Code {
    call::in_context(call, |driver, _| {
        let stream = driver.stream(stream)?;
        let facts = |address: DevicePtr| {
            let memory = driver.addresses.find(address as usize);
            let sync = memory.is_some_and(|memory| memory.sync_memops());
            (memory.map(|memory| memory.kind.on_device()), sync)
        };
        let ((from, from_sync), (to, to_sync)) = (facts(copy.from), facts(copy.to));
        let both_on_device = from == Some(true) && to == Some(true);
        let staged = from.is_none() && to == Some(true);
        let may_return = (both_on_device || staged) && !from_sync && !to_sync;
        match driver.copy(copy, stream, Reading::Usual)? {
            Some((ticket, wait)) if wait || !may_return => driver.wait_and_check(ticket),
            _ => Ok(()),
        }
    })
}

fn host_to_device(to: DevicePtr, from: usize, len: usize) -> Copy {
    Copy { to, to_kind: Expect::Device, from: from as DevicePtr, from_kind: Expect::Host, len }
}

fn device_to_host(to: usize, from: DevicePtr, len: usize) -> Copy {
    Copy { to: to as DevicePtr, to_kind: Expect::Host, from, from_kind: Expect::Device, len }
}

fn device_to_device(to: DevicePtr, from: DevicePtr, len: usize) -> Copy {
    Copy { to, to_kind: Expect::Device, from, from_kind: Expect::Device, len }
}

fn unified(to: DevicePtr, from: DevicePtr, len: usize) -> Copy {
    Copy { to, to_kind: Expect::Any, from, from_kind: Expect::Any, len }
}

/// Defines a copy in its four forms: synchronous and asynchronous, each also for the per-thread default stream.
macro_rules! copies {
    ($($make:ident($to:ty, $from:ty): $sync:ident, $sync_own:ident, $queued:ident, $queued_own:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $sync(to: $to, from: $from, len: usize) -> Code {
                synchronous(stringify!($sync), $make(to, from, len), LEGACY)
            }

            #[unsafe(no_mangle)]
            extern "C" fn $sync_own(to: $to, from: $from, len: usize) -> Code {
                synchronous(stringify!($sync_own), $make(to, from, len), PER_THREAD)
            }

            #[unsafe(no_mangle)]
            extern "C" fn $queued(to: $to, from: $from, len: usize, stream: StreamId) -> Code {
                asynchronous(stringify!($queued), $make(to, from, len), stream)
            }

            #[unsafe(no_mangle)]
            extern "C" fn $queued_own(to: $to, from: $from, len: usize, stream: StreamId) -> Code {
                asynchronous(stringify!($queued_own), $make(to, from, len), per_thread(stream))
            }
        )*
    };
}

copies! {
    host_to_device(DevicePtr, usize):
        cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz;
    device_to_host(usize, DevicePtr):
        cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz;
    device_to_device(DevicePtr, DevicePtr):
        cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz;
    unified(DevicePtr, DevicePtr):
        cuMemcpy, cuMemcpy_ptds, cuMemcpyAsync, cuMemcpyAsync_ptsz;
}

/// Both sides of a copy between contexts, each looked up by the context that it is said to belong to. No peer access
/// is needed: without it the driver goes through the host.
fn peer_places(
    driver: &Driver,
    to: (DevicePtr, ContextId),
    from: (DevicePtr, ContextId),
    len: usize,
) -> Answer<(Place, Place)> {
    driver.context(to.1)?;
    driver.context(from.1)?;
    Ok((driver.place(from.0, len, Expect::Device, from.1)?, driver.place(to.0, len, Expect::Device, to.1)?))
}

fn peer_async(
    call: &'static str,
    to: (DevicePtr, ContextId),
    from: (DevicePtr, ContextId),
    len: usize,
    stream: StreamId,
) -> Code {
    on_stream(call, stream, |driver, stream| {
        if len > 0 {
            let (from, to) = peer_places(driver, to, from, len)?;
            driver.copy_places(from, to, len, stream, Reading::Usual)?;
        }
        Ok(())
    })
}

/// Returns before the copy is done, but orders it after all that is queued in the three contexts, and before all that
/// comes later.
fn peer_sync(
    call: &'static str,
    to: (DevicePtr, ContextId),
    from: (DevicePtr, ContextId),
    len: usize,
    stream: StreamId,
) -> Code {
    call::in_context(call, |driver, context| {
        if len == 0 {
            return Ok(());
        }
        let own = driver.stream(stream)?;
        let (source, target) = peer_places(driver, to, from, len)?;
        let concerned = [context, to.1, from.1];
        let streams: Vec<StreamId> = driver
            .streams
            .iter()
            .filter(|(id, stream)| **id != own && concerned.contains(&stream.context))
            .map(|(id, _)| *id)
            .collect();
        let before = streams.iter().map(|stream| driver.tail(*stream)).collect();
        driver.enqueue(own, Work::Nothing, before);
        if let Some((ticket, _)) = driver.copy_places(source, target, len, own, Reading::Usual)? {
            for stream in streams {
                driver.enqueue(stream, Work::Nothing, vec![ticket]);
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeer(
    to: DevicePtr,
    to_context: ContextId,
    from: DevicePtr,
    from_context: ContextId,
    len: usize,
) -> Code {
    peer_sync("cuMemcpyPeer", (to, to_context), (from, from_context), len, LEGACY)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeer_ptds(
    to: DevicePtr,
    to_context: ContextId,
    from: DevicePtr,
    from_context: ContextId,
    len: usize,
) -> Code {
    peer_sync("cuMemcpyPeer_ptds", (to, to_context), (from, from_context), len, PER_THREAD)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: DevicePtr,
    to_context: ContextId,
    from: DevicePtr,
    from_context: ContextId,
    len: usize,
    stream: StreamId,
) -> Code {
    peer_async("cuMemcpyPeerAsync", (to, to_context), (from, from_context), len, stream)
}

per_thread_form! {
    cuMemcpyPeerAsync_ptsz => cuMemcpyPeerAsync(
        to: DevicePtr, to_context: ContextId, from: DevicePtr, from_context: ContextId, len: usize; stream);
}
