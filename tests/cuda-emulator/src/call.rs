//! What every entry point does first: count itself, and see whether the driver, the thread and the context may be used.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::context::ContextId;
use crate::driver::Driver;
use crate::error::{Answer, Code};
use crate::misuse::{Misuse, report};
use crate::settings::settings;
use crate::{leaks, stats};

/// The process that called `cuInit`, or 0. A forked child inherits the tables but none of the streams' threads.
static INITIALIZED_BY: AtomicI32 = AtomicI32::new(0);

/// Set by an exit handler: from then on the driver answers that it is shutting down, as the real one does.
static SHUT_DOWN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is inside a host function that a stream runs. CUDA forbids every API call there.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs a host function of a stream, during which this thread may not call the driver.
pub(crate) fn as_callback(function: impl FnOnce()) {
    IN_CALLBACK.set(true);
    function();
    IN_CALLBACK.set(false);
}

/// Entry points that work before `cuInit` and in callbacks: versions, names of errors, look-ups of symbols.
pub(crate) fn anywhere(call: &'static str, body: impl FnOnce() -> Answer) -> Code {
    if !in_forked_child() {
        stats::count_call(call);
    }
    body().into()
}

/// Entry points that need an initialised driver, but no context.
pub(crate) fn initialized(call: &'static str, body: impl FnOnce(&mut Driver) -> Answer) -> Code {
    usable(call).and_then(|()| body(&mut Driver::lock(call))).into()
}

/// Entry points that act on the calling thread's current context.
pub(crate) fn in_context(call: &'static str, body: impl FnOnce(&mut Driver, ContextId) -> Answer) -> Code {
    initialized(call, |driver| {
        let context = driver.current_context()?;
        driver.healthy(context)?;
        body(driver, context)
    })
}

/// Entry points for which any current context will do, since what they act on has a context of its own. The manual
/// lists `INVALID_CONTEXT` for them without saying when; here it means that a thread forgot to bind one.
pub(crate) fn with_some_context(call: &'static str, body: impl FnOnce(&mut Driver) -> Answer) -> Code {
    initialized(call, |driver| {
        driver.current_context()?;
        body(driver)
    })
}

/// Asked before any lock is taken: in the child, a lock may stay held by a thread that was not inherited.
fn in_forked_child() -> bool {
    let owner = INITIALIZED_BY.load(Ordering::Acquire);
    // SAFETY: getpid has no preconditions.
    owner != 0 && owner != unsafe { libc::getpid() }
}

fn usable(call: &'static str) -> Answer {
    if in_forked_child() {
        report(Misuse::CallInForkedChild, call, 0, "the driver was initialised before the fork");
        return Err(Code::NOT_INITIALIZED);
    }
    stats::count_call(call);
    if SHUT_DOWN.load(Ordering::Acquire) {
        return Err(Code::DEINITIALIZED);
    }
    if IN_CALLBACK.get() {
        report(Misuse::CallInCallback, call, 0, "host functions run by a stream must not call the driver");
        return Err(Code::NOT_PERMITTED);
    }
    if INITIALIZED_BY.load(Ordering::Acquire) == 0 { Err(Code::NOT_INITIALIZED) } else { Ok(()) }
}

extern "C" fn shut_down() {
    if settings().leaks {
        leaks::report_all();
    }
    SHUT_DOWN.store(true, Ordering::Release);
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: u32) -> Code {
    if in_forked_child() {
        report(Misuse::CallInForkedChild, "cuInit", 0, "the driver was initialised before the fork");
        return Code::NOT_INITIALIZED;
    }
    stats::count_call("cuInit");
    if flags != 0 {
        return Code::INVALID_VALUE;
    }
    if SHUT_DOWN.load(Ordering::Acquire) {
        return Code::DEINITIALIZED;
    }
    if let Some(code) = settings().init_error {
        return code;
    }
    if settings().devices.is_empty() {
        return Code::NO_DEVICE;
    }
    // SAFETY: getpid has no preconditions.
    let pid = unsafe { libc::getpid() };
    if INITIALIZED_BY.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        // SAFETY: `shut_down` is a C function without arguments, and this library is never unloaded (its streams'
        // threads run its code).
        unsafe { libc::atexit(shut_down) };
    }
    Code::SUCCESS
}
