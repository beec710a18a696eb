//! SIGINT and SIGTERM: stop cleanly, and in any case soon.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use gpufeed::StopHandle;

/// The exit status of an interrupted run.
pub(crate) const STATUS: u8 = 130;

/// What is not over by then, such as a read that hangs, is left to the kernel.
const PATIENCE: Duration = Duration::from_millis(800);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static STOP: Mutex<Option<StopHandle>> = Mutex::new(None);

/// Whether the user wants the run to end.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Acquire)
}

/// Has a loader stopped by the next signal.
pub(crate) fn stops(handle: StopHandle) {
    if interrupted() {
        handle.stop();
    }
    *STOP.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(handle);
}

/// Starts the thread that waits for signals. A reader that closes our standard output (`| head`) ends us quietly.
pub(crate) fn listen() {
    // SAFETY: no other thread runs yet, and the default action replaces no handler of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let signals = match Signals::new([SIGINT, SIGTERM]) {
        Ok(signals) => signals,
        // Without it a signal ends the process the usual way.
        Err(error) => return eprintln!("note: signals are not caught: {error}"),
    };
    let wait = move || {
        let mut signals = signals;
        for _ in signals.forever() {
            if INTERRUPTED.swap(true, Ordering::AcqRel) {
                std::process::exit(STATUS.into());
            }
            if let Some(handle) = &*STOP.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) {
                handle.stop();
            }
            std::thread::spawn(|| {
                std::thread::sleep(PATIENCE);
                std::process::exit(STATUS.into());
            });
        }
    };
    if let Err(error) = std::thread::Builder::new().name("signals".into()).spawn(wait) {
        eprintln!("note: signals are not caught: {error}");
    }
}
