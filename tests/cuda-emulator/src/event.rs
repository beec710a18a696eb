//! Events: marks in a stream.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::call;
use crate::context::ContextId;
use crate::driver::{Driver, HandleKind};
use crate::error::{Answer, Code};
use crate::ffi::Out;
use crate::misuse::Misuse;
use crate::queue::{StreamId, Ticket};
use crate::settings::{Delay, settings};
use crate::stream::{on_stream, per_thread};
use crate::work::Work;

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

/// The last record of an event.
#[derive(Debug)]
struct Recorded {
    /// The place in the stream that was recorded. Those who wait took a copy, so recording again does not move them.
    ticket: Ticket,
    finished: Arc<OnceLock<Instant>>,
    queries: u32,
}

/// One event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: ContextId,
    flags: u32,
    recorded: Option<Recorded>,
}

impl Driver {
    fn event(&self, handle: usize) -> Answer<&Event> {
        match self.events.get(&handle) {
            Some(event) => Ok(event),
            None => self.bad_handle(handle, HandleKind::Event, false, Code::INVALID_HANDLE),
        }
    }

    /// The place that an event marks now; none if it was never recorded, which counts as reached.
    fn marked(&self, handle: usize) -> Answer<Option<Ticket>> {
        Ok(self.event(handle)?.recorded.as_ref().map(|recorded| recorded.ticket))
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: Out<usize>, flags: u32) -> Code {
    call::in_context("cuEventCreate", |driver, context| {
        let shared_with_timing = flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0;
        if flags > 7 || shared_with_timing || event.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let handle = driver.new_handle(HandleKind::Event);
        driver.events.insert(handle, Event { context, flags, recorded: None });
        event.set(handle)
    })
}

/// An event may be destroyed before it is reached: those who wait for it still do.
#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: usize) -> Code {
    call::with_some_context("cuEventDestroy_v2", |driver| match driver.events.remove(&event) {
        Some(_) => Ok(()),
        None => driver.bad_handle(event, HandleKind::Event, true, Code::INVALID_HANDLE),
    })
}

fn record(call: &'static str, handle: usize, stream: StreamId) -> Code {
    on_stream(call, stream, |driver, stream| {
        let of_event = driver.event(handle)?.context;
        let of_stream = driver.context_of(stream)?;
        if of_event != of_stream {
            let detail = "the event and the stream belong to different contexts";
            return driver.misuse(Misuse::WrongContext, handle as u64, Code::INVALID_HANDLE, detail);
        }
        let finished = Arc::new(OnceLock::new());
        let ticket = driver.enqueue(stream, Work::Record(finished.clone()), Vec::new());
        if let Some(event) = driver.events.get_mut(&handle) {
            event.recorded = Some(Recorded { ticket, finished, queries: 0 });
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: usize, stream: StreamId) -> Code {
    record("cuEventRecord", event, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecordWithFlags(event: usize, stream: StreamId, flags: u32) -> Code {
    // CU_EVENT_RECORD_EXTERNAL only means something to a stream that captures.
    if flags != 0 {
        return Code::INVALID_VALUE;
    }
    record("cuEventRecordWithFlags", event, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: usize) -> Code {
    call::initialized("cuEventQuery", |driver| {
        let context = driver.event(event)?.context;
        driver.healthy(context)?;
        let Some(ticket) = driver.marked(event)? else {
            return Ok(());
        };
        if driver.is_done(ticket) {
            return Ok(());
        }
        let asked =
            driver.events.get_mut(&event).and_then(|event| event.recorded.as_mut()).map_or(0, |recorded| {
                recorded.queries += 1;
                recorded.queries
            });
        if let Delay::Adversarial { queries, .. } = settings().delay
            && asked >= queries
        {
            driver.demand(ticket);
        }
        Err(Code::NOT_READY)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: usize) -> Code {
    call::with_some_context("cuEventSynchronize", |driver| {
        let context = driver.event(event)?.context;
        driver.healthy(context)?;
        if let Some(ticket) = driver.marked(event)? {
            driver.wait_for(ticket);
        }
        driver.healthy(context)
    })
}

/// The stream may belong to another context, even of another device, than the event.
#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: StreamId, event: usize, flags: u32) -> Code {
    on_stream("cuStreamWaitEvent", stream, |driver, stream| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if let Some(ticket) = driver.marked(event)? {
            driver.enqueue(stream, Work::Nothing, vec![ticket]);
        }
        Ok(())
    })
}

fn elapsed(call: &'static str, milliseconds: Out<f32>, start: usize, end: usize) -> Code {
    call::with_some_context(call, |driver| {
        let (first, last) = (driver.event(start)?, driver.event(end)?);
        driver.healthy(first.context)?;
        if first.context != last.context {
            let detail = "the two events belong to different contexts";
            return driver.misuse(Misuse::WrongContext, end as u64, Code::INVALID_HANDLE, detail);
        }
        if (first.flags | last.flags) & DISABLE_TIMING != 0 {
            return Err(Code::INVALID_HANDLE);
        }
        let (Some(first), Some(last)) = (&first.recorded, &last.recorded) else {
            return Err(Code::INVALID_HANDLE);
        };
        if !driver.is_done(first.ticket) || !driver.is_done(last.ticket) {
            return Err(Code::NOT_READY);
        }
        let (Some(from), Some(to)) = (first.finished.get(), last.finished.get()) else {
            return Err(Code::NOT_READY);
        };
        let forward = to.saturating_duration_since(*from).as_secs_f32();
        let backward = from.saturating_duration_since(*to).as_secs_f32();
        milliseconds.set((forward - backward) * 1000.0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(milliseconds: Out<f32>, start: usize, end: usize) -> Code {
    elapsed("cuEventElapsedTime", milliseconds, start, end)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: usize, end: usize) -> Code {
    elapsed("cuEventElapsedTime_v2", milliseconds, start, end)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord_ptsz(event: usize, stream: StreamId) -> Code {
    cuEventRecord(event, per_thread(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecordWithFlags_ptsz(event: usize, stream: StreamId, flags: u32) -> Code {
    cuEventRecordWithFlags(event, per_thread(stream), flags)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent_ptsz(stream: StreamId, event: usize, flags: u32) -> Code {
    cuStreamWaitEvent(per_thread(stream), event, flags)
}
