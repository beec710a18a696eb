//! The stream API, and which stream a handle names.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;

use crate::call;
use crate::context::ContextId;
use crate::driver::{Driver, HandleKind, handle_number};
use crate::error::{Answer, Code};
use crate::ffi::{Device, Out};
use crate::queue::{StreamId, StreamKind};
use crate::work::{HostFn, StreamCallback, UserData, Work};

/// Stream priorities: a lower number goes first.
pub(crate) const LEAST_PRIORITY: i32 = 0;
pub(crate) const GREATEST_PRIORITY: i32 = -5;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`; null stands for the former, or in the `_ptsz` forms for the latter.
pub(crate) const LEGACY: StreamId = 1;
pub(crate) const PER_THREAD: StreamId = 2;

/// What a null stream means in the `_ptsz` forms of a function.
pub(crate) fn per_thread(stream: StreamId) -> StreamId {
    if stream == 0 { PER_THREAD } else { stream }
}

/// This thread's default streams, by context; they end with the thread.
#[derive(Debug, Default)]
struct OwnStreams(HashMap<ContextId, StreamId>);

impl Drop for OwnStreams {
    fn drop(&mut self) {
        let mut driver = Driver::lock("the end of a thread");
        for stream in self.0.values() {
            driver.retire_stream(*stream);
        }
    }
}

thread_local! {
    static OWN: RefCell<OwnStreams> = RefCell::default();
}

impl Driver {
    /// The stream that a handle names for the calling thread, whose context may be used.
    pub(crate) fn stream(&mut self, handle: StreamId) -> Answer<StreamId> {
        if handle > PER_THREAD {
            let Some(stream) = self.streams.get(&handle).filter(|stream| !stream.is_destroyed()) else {
                return self.bad_handle(handle, HandleKind::Stream, false, Code::INVALID_HANDLE);
            };
            let context = stream.context;
            return self.healthy(context).map(|()| handle);
        }
        let context = self.current_context()?;
        self.healthy(context)?;
        if handle != PER_THREAD {
            return Ok(self.context(context)?.legacy);
        }
        // In an exit handler this thread's streams are gone already; then each call gets one of its own.
        if let Ok(Some(own)) = OWN.try_with(|own| own.borrow().0.get(&context).copied()) {
            return Ok(own);
        }
        let own = self.new_stream(StreamKind::PerThread, context, 0, 0);
        let _ = OWN.try_with(|streams| streams.borrow_mut().0.insert(context, own));
        Ok(own)
    }

    /// The context that a stream belongs to.
    pub(crate) fn context_of(&self, stream: StreamId) -> Answer<ContextId> {
        self.streams.get(&stream).map(|stream| stream.context).ok_or(Code::INVALID_HANDLE)
    }
}

/// Entry points that act on one stream, whose own context (not the current one, if they differ) must be in order.
pub(crate) fn on_stream(
    call: &'static str,
    handle: StreamId,
    body: impl FnOnce(&mut Driver, StreamId) -> Answer,
) -> Code {
    call::with_some_context(call, |driver| {
        let stream = driver.stream(handle)?;
        body(driver, stream)
    })
}

/// Defines the `_ptsz` form of a function, in which a null stream is the thread's own.
macro_rules! per_thread_form {
    ($($name:ident => $plain:ident($($argument:ident: $kind:ty),*; $stream:ident));* $(;)?) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $kind,)* $stream: $crate::queue::StreamId) -> $crate::error::Code {
                $plain($($argument,)* $crate::stream::per_thread($stream))
            }
        )*
    };
}
pub(crate) use per_thread_form;

fn create(call: &'static str, stream: Out<StreamId>, flags: u32, priority: i32) -> Code {
    call::in_context(call, |driver, context| {
        if flags > 1 || stream.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // Out-of-range priorities are clamped, as documented.
        let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
        stream.set(driver.new_stream(StreamKind::Created, context, flags, priority))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: Out<StreamId>, flags: u32) -> Code {
    create("cuStreamCreate", stream, flags, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(stream: Out<StreamId>, flags: u32, priority: i32) -> Code {
    create("cuStreamCreateWithPriority", stream, flags, priority)
}

/// Work that is still queued runs to its end: destroying a busy stream is documented to be fine.
#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: StreamId) -> Code {
    call::with_some_context("cuStreamDestroy_v2", |driver| {
        match driver.streams.get(&stream) {
            Some(found) if found.was_created() => driver.retire_stream(stream),
            _ => return driver.bad_handle(stream, HandleKind::Stream, true, Code::INVALID_HANDLE),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: StreamId) -> Code {
    on_stream("cuStreamSynchronize", stream, |driver, stream| {
        let context = driver.context_of(stream)?;
        let tail = driver.tail(stream);
        driver.wait_for(tail);
        driver.healthy(context)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: StreamId) -> Code {
    on_stream("cuStreamQuery", stream, |driver, stream| {
        if driver.query_stream(stream) { Ok(()) } else { Err(Code::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetFlags(stream: StreamId, flags: Out<u32>) -> Code {
    on_stream("cuStreamGetFlags", stream, |driver, stream| {
        flags.set(driver.streams.get(&stream).map_or(0, |stream| stream.flags))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetPriority(stream: StreamId, priority: Out<i32>) -> Code {
    on_stream("cuStreamGetPriority", stream, |driver, stream| {
        priority.set(driver.streams.get(&stream).map_or(0, |stream| stream.priority))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetId(stream: StreamId, id: Out<u64>) -> Code {
    on_stream("cuStreamGetId", stream, |_, stream| id.set(handle_number(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(stream: StreamId, context: Out<ContextId>) -> Code {
    on_stream("cuStreamGetCtx", stream, |driver, stream| context.set(driver.context_of(stream)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetDevice(stream: StreamId, device: Out<Device>) -> Code {
    on_stream("cuStreamGetDevice", stream, |driver, stream| {
        device.set(driver.streams.get(&stream).map_or(0, |stream| stream.device))
    })
}

/// `CU_STREAM_CAPTURE_STATUS_NONE`: capturing is not emulated, so no stream ever captures.
const NOT_CAPTURING: i32 = 0;

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: StreamId, status: Out<i32>) -> Code {
    on_stream("cuStreamIsCapturing", stream, |_, _| status.set(NOT_CAPTURING))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo(stream: StreamId, status: Out<i32>, _id: Out<u64>) -> Code {
    on_stream("cuStreamGetCaptureInfo", stream, |_, _| status.set(NOT_CAPTURING))
}

/// The outputs after `status` are left alone when no capture is going on, as documented.
#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo_v2(stream: StreamId, status: Out<i32>) -> Code {
    on_stream("cuStreamGetCaptureInfo_v2", stream, |_, _| status.set(NOT_CAPTURING))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo_v3(stream: StreamId, status: Out<i32>) -> Code {
    on_stream("cuStreamGetCaptureInfo_v3", stream, |_, _| status.set(NOT_CAPTURING))
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(stream: StreamId, function: Option<HostFn>, data: *mut c_void) -> Code {
    on_stream("cuLaunchHostFunc", stream, |driver, stream| {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        driver.enqueue(stream, Work::HostFunction { function, data: UserData(data) }, Vec::new());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamAddCallback(
    named: StreamId,
    callback: Option<StreamCallback>,
    data: *mut c_void,
    flags: u32,
) -> Code {
    on_stream("cuStreamAddCallback", named, |driver, stream| {
        let function = callback.filter(|_| flags == 0).ok_or(Code::INVALID_VALUE)?;
        driver.enqueue(stream, Work::Callback { function, data: UserData(data), named }, Vec::new());
        Ok(())
    })
}

/// Defines `_ptsz` forms whose stream comes first.
macro_rules! per_thread_first {
    ($($name:ident => $plain:ident($($argument:ident: $kind:ty),*));* $(;)?) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name(stream: StreamId $(, $argument: $kind)*) -> Code {
                $plain(per_thread(stream) $(, $argument)*)
            }
        )*
    };
}

per_thread_first! {
    cuStreamSynchronize_ptsz => cuStreamSynchronize();
    cuStreamQuery_ptsz => cuStreamQuery();
    cuStreamGetFlags_ptsz => cuStreamGetFlags(flags: Out<u32>);
    cuStreamGetPriority_ptsz => cuStreamGetPriority(priority: Out<i32>);
    cuStreamGetId_ptsz => cuStreamGetId(id: Out<u64>);
    cuStreamGetCtx_ptsz => cuStreamGetCtx(context: Out<ContextId>);
    cuStreamIsCapturing_ptsz => cuStreamIsCapturing(status: Out<i32>);
    cuStreamGetCaptureInfo_ptsz => cuStreamGetCaptureInfo(status: Out<i32>, id: Out<u64>);
    cuStreamGetCaptureInfo_v2_ptsz => cuStreamGetCaptureInfo_v2(status: Out<i32>);
    cuLaunchHostFunc_ptsz => cuLaunchHostFunc(function: Option<HostFn>, data: *mut c_void);
    cuStreamAddCallback_ptsz => cuStreamAddCallback(callback: Option<StreamCallback>, data: *mut c_void, flags: u32);
}
