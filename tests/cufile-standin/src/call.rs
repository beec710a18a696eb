//! What every entry point does first: count itself, see whether cuFile may be called now, and fail if that is asked for.

use std::sync::atomic::{AtomicI32, Ordering};

use crate::counts;
use crate::cuda;
use crate::error::{Answer, Error, Failure, code};
use crate::fault::{self, What};
use crate::latency;
use crate::leaks;
use crate::misuse::{Misuse, report};
use crate::settings::settings;
use crate::state::State;

/// The process that first opened the driver, or 0. A forked child inherits the tables but none of the threads.
static OPENED_BY: AtomicI32 = AtomicI32::new(0);

/// When a function may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Anytime,
    DriverOpen,
}

/// The checks; answers the faults that are to strike in the body.
fn enter(call: &'static str, when: When) -> Answer<Vec<What>> {
    let owner = OPENED_BY.load(Ordering::Acquire);
    // Asked before any lock is taken: in the child, a lock may stay held by a thread that was not inherited.
    // SAFETY: getpid has no preconditions.
    if owner != 0 && owner != unsafe { libc::getpid() } {
        report(Misuse::CallInForkedChild, call, 0, "the driver was opened before the fork");
        return Err(Error::cufile(code::DRIVER_NOT_INITIALIZED));
    }
    let faults = fault::strike(call, counts::count_call(call));
    if faults.contains(&What::Hang) {
        latency::hang();
    }
    if when == When::DriverOpen && State::lock().opens == 0 {
        report(Misuse::CallBeforeOpen, call, 0, "the driver is not open");
        return Err(Error::cufile(code::DRIVER_NOT_INITIALIZED));
    }
    Ok(faults)
}

/// Entry points that answer a `CUfileError_t`.
pub(crate) fn status(call: &'static str, when: When, body: impl FnOnce() -> Answer) -> Error {
    status_with(call, when, |_| body())
}

/// As [`status`], for those whose faults are not only codes.
pub(crate) fn status_with(call: &'static str, when: When, body: impl FnOnce(&[What]) -> Answer) -> Error {
    let result = enter(call, when).and_then(|faults| {
        faults.iter().try_for_each(|fault| fault.at_once())?;
        body(&faults)
    });
    result.into()
}

/// Entry points that answer a count of bytes.
pub(crate) fn transfer(call: &'static str, body: impl FnOnce(&[What]) -> Result<usize, Failure>) -> isize {
    let faults = match enter(call, When::DriverOpen) {
        Ok(faults) => faults,
        Err(error) => return Failure::Code(error.cufile).answer(),
    };
    match body(&faults) {
        Ok(bytes) => bytes as isize,
        Err(failure) => failure.answer(),
    }
}

/// Entry points that cannot fail.
pub(crate) fn silent<T: Default>(call: &'static str, when: When, body: impl FnOnce() -> T) -> T {
    match enter(call, when) {
        Ok(_) => body(),
        Err(_) => T::default(),
    }
}

/// The calling thread's current context, which it must have whatever the settings say.
pub(crate) fn some_context(call: &str, address: u64) -> Result<usize, Failure> {
    match cuda::current_context().map_err(Failure::Cuda)? {
        0 => {
            const INVALID_CONTEXT: i32 = 201;
            report(Misuse::NoCurrentContext, call, address, "the calling thread has no current context");
            Err(Failure::Cuda(INVALID_CONTEXT))
        }
        context => Ok(context),
    }
}

/// As [`some_context`], and it must be the memory's own if that has one. Where the settings allow any, the memory's.
pub(crate) fn context_of(call: &str, memory: Option<usize>, address: u64) -> Result<usize, Failure> {
    let memory = memory.filter(|context| *context != 0);
    if !settings().context_required {
        return Ok(memory.unwrap_or(cuda::current_context().map_err(Failure::Cuda)?));
    }
    let current = some_context(call, address)?;
    if memory.is_some_and(|memory| memory != current) {
        let detail = "the memory belongs to another context than the current one";
        report(Misuse::WrongContext, call, address, detail);
        return Err(Failure::Code(code::CUDA_CONTEXT_MISMATCH));
    }
    Ok(current)
}

extern "C" fn at_exit() {
    // SAFETY: getpid has no preconditions.
    if settings().leaks && OPENED_BY.load(Ordering::Acquire) == unsafe { libc::getpid() } {
        leaks::report_all();
    }
}

/// Remembers which process opened the driver.
pub(crate) fn opened() {
    // SAFETY: getpid has no preconditions.
    let pid = unsafe { libc::getpid() };
    if OPENED_BY.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        // SAFETY: `at_exit` is a C function without arguments. A library that is closed before runs it then.
        unsafe { libc::atexit(at_exit) };
    }
}
