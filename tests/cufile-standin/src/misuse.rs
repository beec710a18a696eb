//! Reports of what a caller did that cuFile forbids, or leaves undefined.
//!
//! A report is one line in one write to a file opened with `O_APPEND`, so that lines from many threads and child
//! processes do not mix, and so that a harness needs only to look whether the file is empty.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::settings::settings;

/// What kind of misuse; the word in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misuse {
    CallBeforeOpen,
    CallInForkedChild,
    CloseNotOpen,
    CloseWhileRegistered,
    UseAfterDeregister,
    DoubleDeregister,
    DoubleRegister,
    UnknownHandle,
    UnknownBuffer,
    DeregisterInFlight,
    OverlappingRegistration,
    FreedWhileRegistered,
    NotTheRegisteredBase,
    PastRegistration,
    PastAllocation,
    HostPointer,
    PoolMemory,
    NoCurrentContext,
    WrongContext,
    FdClosed,
    BatchTooLarge,
    DestroyInFlight,
    WaitsForNothing,
    AsyncParametersGone,
    AsyncParametersChanged,
    AsyncSizeGrew,
    AsyncResultOverwritten,
    Leak,
}

impl Misuse {
    fn word(self) -> &'static str {
        match self {
            Misuse::CallBeforeOpen => "call-before-open",
            Misuse::CallInForkedChild => "call-in-forked-child",
            Misuse::CloseNotOpen => "close-not-open",
            Misuse::CloseWhileRegistered => "close-while-registered",
            Misuse::UseAfterDeregister => "use-after-deregister",
            Misuse::DoubleDeregister => "double-deregister",
            Misuse::DoubleRegister => "double-register",
            Misuse::UnknownHandle => "unknown-handle",
            Misuse::UnknownBuffer => "unknown-buffer",
            Misuse::DeregisterInFlight => "deregister-in-flight",
            Misuse::OverlappingRegistration => "overlapping-registration",
            Misuse::FreedWhileRegistered => "freed-while-registered",
            Misuse::NotTheRegisteredBase => "not-the-registered-base",
            Misuse::PastRegistration => "past-registration",
            Misuse::PastAllocation => "past-allocation",
            Misuse::HostPointer => "host-pointer",
            Misuse::PoolMemory => "pool-memory",
            Misuse::NoCurrentContext => "no-current-context",
            Misuse::WrongContext => "wrong-context",
            Misuse::FdClosed => "fd-closed",
            Misuse::BatchTooLarge => "batch-too-large",
            Misuse::DestroyInFlight => "destroy-in-flight",
            Misuse::WaitsForNothing => "waits-for-nothing",
            Misuse::AsyncParametersGone => "async-parameters-gone",
            Misuse::AsyncParametersChanged => "async-parameters-changed",
            Misuse::AsyncSizeGrew => "async-size-grew",
            Misuse::AsyncResultOverwritten => "async-result-overwritten",
            Misuse::Leak => "leak",
        }
    }
}

static REPORTED: AtomicU64 = AtomicU64::new(0);

/// How many reports this process has made.
pub(crate) fn reported() -> u64 {
    REPORTED.load(Ordering::Relaxed)
}

/// Writes one report.
pub(crate) fn report(misuse: Misuse, call: &str, address: u64, detail: &str) {
    REPORTED.fetch_add(1, Ordering::Relaxed);
    let line = format!("cufile-standin: misuse: {} in {call} at {address:#x}: {detail}\n", misuse.word());
    let written = settings().report.as_ref().is_some_and(|path| {
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).is_ok()
    });
    if !written {
        // A report must never be lost: standard error is also the way out when the file cannot be written.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    if settings().abort {
        std::process::abort();
    }
}
