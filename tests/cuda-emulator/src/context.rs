//! Contexts, and each thread's stack of them.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::call;
use crate::driver::{Driver, HandleKind};
use crate::error::{Answer, Code};
use crate::ffi::{Device, Out};
use crate::memory::Memory;
use crate::misuse::Misuse;
use crate::queue::{Stream, StreamId, StreamKind};

/// A context's handle.
pub(crate) type ContextId = usize;

/// One context. Its entry stays after its destruction, so that a stale handle is recognised.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: Device,
    pub(crate) flags: u32,
    pub(crate) primary: bool,
    pub(crate) destroyed: bool,
    /// The legacy default stream.
    pub(crate) legacy: StreamId,
    /// The contexts whose memory this one may access directly.
    pub(crate) peers: BTreeSet<ContextId>,
    /// The error that this context is left with; it never goes away.
    broken: Option<Code>,
}

impl Context {
    pub(crate) fn broken(&self) -> Option<Code> {
        self.broken
    }

    /// The first error stays.
    pub(crate) fn break_with(&mut self, code: Code) {
        self.broken.get_or_insert(code);
    }
}

thread_local! {
    /// The calling thread's stack; its last is current. Never dropped, because exit handlers (destructors of static
    /// objects in C++) call the driver after the main thread's other thread-local values are gone.
    static STACK: RefCell<ManuallyDrop<Vec<ContextId>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// The calling thread's current context, which may be destroyed.
fn current() -> Option<ContextId> {
    STACK.with_borrow(|stack| stack.last().copied())
}

fn push(context: ContextId) {
    STACK.with_borrow_mut(|stack| stack.push(context));
}

fn pop() -> Option<ContextId> {
    STACK.with_borrow_mut(|stack| stack.pop())
}

impl Driver {
    /// A context with its legacy default stream.
    pub(crate) fn new_context(&mut self, device: Device, flags: u32, primary: bool) -> ContextId {
        let id = self.new_handle(HandleKind::Context);
        let broken = self.devices.get(device as usize).and_then(|device| device.lost);
        let peers = BTreeSet::new();
        self.contexts
            .insert(id, Context { device, flags, primary, destroyed: false, legacy: 0, peers, broken });
        let legacy = self.new_stream(StreamKind::Legacy, id, 0, 0);
        if let Some(context) = self.contexts.get_mut(&id) {
            context.legacy = legacy;
        }
        id
    }

    /// The calling thread's current context, which may be destroyed; none is reported.
    pub(crate) fn current_context(&self) -> Answer<ContextId> {
        match current() {
            Some(context) => Ok(context),
            None => {
                let detail = "the calling thread has no current context";
                self.misuse(Misuse::NoCurrentContext, 0, Code::INVALID_CONTEXT, detail)
            }
        }
    }

    /// The context behind a handle that a caller passed, alive.
    pub(crate) fn context(&self, handle: ContextId) -> Answer<&Context> {
        match self.contexts.get(&handle) {
            Some(context) if !context.destroyed => Ok(context),
            Some(_) => self.misuse(
                Misuse::DestroyedContext,
                handle as u64,
                Code::CONTEXT_IS_DESTROYED,
                "this context was destroyed",
            ),
            None => self.bad_handle(handle, HandleKind::Context, false, Code::INVALID_CONTEXT),
        }
    }

    /// Whether work may be given to a context: alive, and not left with an error.
    pub(crate) fn healthy(&self, handle: ContextId) -> Answer {
        self.context(handle)?.broken().map_or(Ok(()), Err)
    }

    /// Takes a context down with all that belongs to it.
    pub(crate) fn destroy_context(&mut self, id: ContextId) {
        let streams: Vec<StreamId> =
            self.streams.iter().filter(|(_, stream)| stream.context == id).map(|(id, _)| *id).collect();
        // On a context that is broken nobody can wait for the work any more, and none of it is done.
        let healthy = self.contexts.get(&id).is_none_or(|context| context.broken().is_none());
        if healthy && streams.iter().any(|id| self.streams.get(id).is_some_and(Stream::has_work)) {
            let detail = "a context was destroyed while its streams had work";
            let _ = self.misuse::<()>(Misuse::DestroyInFlight, id as u64, Code::SUCCESS, detail);
        }
        for stream in &streams {
            let tail = self.tail(*stream);
            self.wait_for(tail);
        }
        for stream in streams {
            self.retire_stream(stream);
        }
        self.events.retain(|_, event| event.context != id);
        let owned: Vec<Arc<Memory>> =
            self.addresses.live().filter(|memory| memory.context == id).cloned().collect();
        for memory in owned {
            self.release(&memory);
        }
        if let Some(context) = self.contexts.get_mut(&id) {
            context.destroyed = true;
        }
        for context in self.contexts.values_mut() {
            context.peers.remove(&id);
        }
    }

    /// Blocks until everything on every stream of the context is done.
    pub(crate) fn synchronize_context(&mut self, id: ContextId) -> Answer {
        let streams: Vec<StreamId> =
            self.streams.iter().filter(|(_, stream)| stream.context == id).map(|(id, _)| *id).collect();
        let tails: Vec<_> = streams.into_iter().map(|stream| self.tail(stream)).collect();
        for tail in &tails {
            self.demand(*tail);
        }
        for tail in tails {
            self.wait_for(tail);
        }
        self.healthy(id)
    }
}

fn create(call: &'static str, context: Out<ContextId>, flags: u32, device: Device) -> Code {
    call::initialized(call, |driver| {
        driver.device(device)?;
        if context.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let id = driver.new_context(device, flags, false);
        push(id);
        context.set(id)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v2(context: Out<ContextId>, flags: u32, device: Device) -> Code {
    create("cuCtxCreate_v2", context, flags, device)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v3(
    context: Out<ContextId>,
    params: usize,
    count: i32,
    flags: u32,
    device: Device,
) -> Code {
    if params != 0 || count != 0 {
        return Code::UNSUPPORTED_EXEC_AFFINITY;
    }
    create("cuCtxCreate_v3", context, flags, device)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v4(context: Out<ContextId>, params: usize, flags: u32, device: Device) -> Code {
    if params != 0 {
        return Code::NOT_SUPPORTED;
    }
    create("cuCtxCreate_v4", context, flags, device)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: ContextId) -> Code {
    call::initialized("cuCtxDestroy_v2", |driver| {
        match driver.contexts.get(&context) {
            Some(found) if found.destroyed => {
                let detail = "this context was destroyed before";
                return driver.misuse(
                    Misuse::DoubleDestroy,
                    context as u64,
                    Code::CONTEXT_IS_DESTROYED,
                    detail,
                );
            }
            Some(found) if found.primary => {
                let detail = "primary contexts are released, not destroyed";
                return driver.misuse(Misuse::WrongContext, context as u64, Code::INVALID_CONTEXT, detail);
            }
            Some(_) => {}
            None => return driver.bad_handle(context, HandleKind::Context, true, Code::INVALID_CONTEXT),
        }
        if current() == Some(context) {
            pop();
        }
        driver.destroy_context(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: ContextId) -> Code {
    call::initialized("cuCtxPushCurrent_v2", |driver| {
        driver.context(context)?;
        push(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: Out<ContextId>) -> Code {
    call::initialized("cuCtxPopCurrent_v2", |driver| {
        let Some(popped) = pop() else {
            let detail = "nothing to pop: the calling thread has no current context";
            return driver.misuse(Misuse::NoCurrentContext, 0, Code::INVALID_CONTEXT, detail);
        };
        context.set_if_asked(popped);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: ContextId) -> Code {
    call::initialized("cuCtxSetCurrent", |driver| {
        if context != 0 {
            driver.context(context)?;
        }
        pop();
        if context != 0 {
            push(context);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<ContextId>) -> Code {
    call::initialized("cuCtxGetCurrent", |_| context.set(current().unwrap_or(0)))
}

/// The current context for a question that is also a way to find out that there is none: an error, but no report.
fn asked_about(driver: &Driver) -> Answer<ContextId> {
    let context = current().ok_or(Code::INVALID_CONTEXT)?;
    driver.context(context).map(|_| context)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: Out<Device>) -> Code {
    call::initialized("cuCtxGetDevice", |driver| {
        let context = asked_about(driver)?;
        device.set(driver.context(context)?.device)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice_v2(device: Out<Device>, context: ContextId) -> Code {
    call::initialized("cuCtxGetDevice_v2", |driver| {
        let context = if context == 0 { asked_about(driver)? } else { context };
        device.set(driver.context(context)?.device)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetFlags(flags: Out<u32>) -> Code {
    call::in_context("cuCtxGetFlags", |driver, context| flags.set(driver.context(context)?.flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetFlags(flags: u32) -> Code {
    call::in_context("cuCtxSetFlags", |driver, context| {
        driver.contexts.get_mut(&context).ok_or(Code::INVALID_CONTEXT)?.flags = flags;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetId(context: ContextId, id: Out<u64>) -> Code {
    call::initialized("cuCtxGetId", |driver| {
        let context = if context == 0 { asked_about(driver)? } else { context };
        driver.context(context)?;
        id.set(crate::driver::handle_number(context))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetApiVersion(context: ContextId, version: Out<u32>) -> Code {
    call::initialized("cuCtxGetApiVersion", |driver| {
        if context != 0 {
            driver.context(context)?;
        }
        version.set(3020)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Code {
    call::in_context("cuCtxSynchronize", |driver, context| driver.synchronize_context(context))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize_v2(context: ContextId) -> Code {
    call::initialized("cuCtxSynchronize_v2", |driver| {
        let context = if context == 0 { asked_about(driver)? } else { context };
        driver.healthy(context)?;
        driver.synchronize_context(context)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) -> Code {
    call::in_context("cuCtxGetStreamPriorityRange", |_, _| {
        least.set_if_asked(crate::stream::LEAST_PRIORITY);
        greatest.set_if_asked(crate::stream::GREATEST_PRIORITY);
        Ok(())
    })
}

/// `CU_LIMIT_*`: stack size, printf buffer, heap, and so on. There are no kernels, so a limit is only remembered as
/// having been in range.
const LIMITS: std::ops::Range<u32> = 0..11;

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetLimit(value: Out<usize>, limit: u32) -> Code {
    call::in_context("cuCtxGetLimit", |_, _| {
        if LIMITS.contains(&limit) { value.set(1024) } else { Err(Code::UNSUPPORTED_LIMIT) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetLimit(limit: u32, _value: usize) -> Code {
    call::in_context("cuCtxSetLimit", |_, _| {
        if LIMITS.contains(&limit) { Ok(()) } else { Err(Code::UNSUPPORTED_LIMIT) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCacheConfig(config: Out<u32>) -> Code {
    call::in_context("cuCtxGetCacheConfig", |_, _| config.set(0))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCacheConfig(config: u32) -> Code {
    call::in_context("cuCtxSetCacheConfig", |_, _| if config < 4 { Ok(()) } else { Err(Code::INVALID_VALUE) })
}
