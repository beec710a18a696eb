//! Reports of what a caller did that CUDA forbids, or leaves undefined.
//!
//! A report is one line in one write to a file opened with `O_APPEND`, so that lines from many threads and child
//! processes do not mix, and so that a harness needs only to look whether the file is empty.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::caller;
use crate::settings::settings;

/// What kind of misuse; the word in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misuse {
    UseAfterFree,
    DoubleFree,
    FreeInFlight,
    FreeWhileHeld,
    WrongFree,
    UnknownPointer,
    OutOfBounds,
    OverlappingCopy,
    SpansRegistration,
    DevicePointerAsHost,
    NotRegistered,
    UnmappedRegistration,
    UseBeforeAllocation,
    NoCurrentContext,
    WrongContext,
    DestroyedContext,
    DestroyInFlight,
    UseAfterDestroy,
    DoubleDestroy,
    UnknownHandle,
    CallInCallback,
    CallInForkedChild,
    Leak,
}

impl Misuse {
    fn word(self) -> &'static str {
        match self {
            Misuse::UseAfterFree => "use-after-free",
            Misuse::DoubleFree => "double-free",
            Misuse::FreeInFlight => "free-in-flight",
            Misuse::FreeWhileHeld => "free-while-held",
            Misuse::WrongFree => "wrong-free",
            Misuse::UnknownPointer => "unknown-pointer",
            Misuse::OutOfBounds => "out-of-bounds",
            Misuse::OverlappingCopy => "overlapping-copy",
            Misuse::SpansRegistration => "spans-registration",
            Misuse::DevicePointerAsHost => "device-pointer-as-host",
            Misuse::NotRegistered => "not-registered",
            Misuse::UnmappedRegistration => "unmapped-registration",
            Misuse::UseBeforeAllocation => "use-before-allocation",
            Misuse::NoCurrentContext => "no-current-context",
            Misuse::WrongContext => "wrong-context",
            Misuse::DestroyedContext => "destroyed-context",
            Misuse::DestroyInFlight => "destroy-in-flight",
            Misuse::UseAfterDestroy => "use-after-destroy",
            Misuse::DoubleDestroy => "double-destroy",
            Misuse::UnknownHandle => "unknown-handle",
            Misuse::CallInCallback => "call-in-callback",
            Misuse::CallInForkedChild => "call-in-forked-child",
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
    let caller = caller::file_name();
    let caller = caller.as_deref().unwrap_or("the emulator's own thread");
    if settings().overlook.iter().any(|(kind, file)| kind == misuse.word() && file == caller) {
        return;
    }
    REPORTED.fetch_add(1, Ordering::Relaxed);
    let line = format!(
        "cuda-emulator: misuse: {} in {call} at {address:#x}: {detail} (called from {caller})\n",
        misuse.word()
    );
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
