//! SIGINT and SIGTERM: stop cleanly, and in any case soon.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use gpufeed::StopHandle;

/// The exit status of an interrupted run.
pub(crate) const STATUS: u8 = 130;

/// What is not over by then, such as a read that hangs, is left to the kernel.
const PATIENCE: Duration = Duration::from_millis(800);
/// The same as long as what was delivered is not on record, which on a busy disk takes its time.
const PATIENCE_FOR_RECORD: Duration = Duration::from_secs(4);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static RECORDING: AtomicBool = AtomicBool::new(false);
static STOP: Mutex<Option<Box<dyn Fn() + Send>>> = Mutex::new(None);
static FOLDER: Mutex<Option<PathBuf>> = Mutex::new(None);
static LAST_WORDS: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);

/// Whether the user wants the run to end.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Acquire)
}

/// Has a loader stopped by the next signal.
pub(crate) fn stops(handle: StopHandle) {
    calls(move || handle.stop());
}

/// Has the next signal call this.
pub(crate) fn calls(stop: impl Fn() + Send + 'static) {
    // A signal that comes from here on waits for the lock, and then finds it.
    let mut slot = STOP.lock().unwrap_or_else(PoisonError::into_inner);
    if interrupted() {
        stop();
    }
    *slot = Some(Box::new(stop));
}

/// Has a folder removed if the process has to be cut off.
pub(crate) fn removes(folder: &Path) {
    *FOLDER.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder.into());
}

fn cut_off() -> ! {
    let words = LAST_WORDS.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(words) = words {
        // They may hang as well, on the same file system even.
        let (said, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            words();
            let _ = said.send(());
        });
        let _ = heard.recv_timeout(PATIENCE);
    }
    if let Some(folder) = &*FOLDER.lock().unwrap_or_else(PoisonError::into_inner) {
        // What is just being written into it would keep it there.
        let removed = || std::fs::remove_dir_all(folder).is_ok() || !folder.exists();
        let _ = (0..20).any(|_| removed());
    }
    eprintln!("interrupted");
    std::process::exit(STATUS.into());
}

/// Has this done before a run that does not end by itself is cut off.
pub(crate) fn last_words(words: impl FnOnce() + Send + 'static) {
    *LAST_WORDS.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(words));
}

/// A run that puts on record what it delivered, until this is dropped.
#[derive(Debug)]
pub(crate) struct Recording(());

impl Recording {
    pub(crate) fn begin() -> Self {
        RECORDING.store(true, Ordering::Release);
        Recording(())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        RECORDING.store(false, Ordering::Release);
    }
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
            // It may come twice for one wish: from the terminal, and from a launcher that passes on what the terminal has
            // sent it. The first is on its way to the end.
            if INTERRUPTED.swap(true, Ordering::AcqRel) {
                continue;
            }
            let since = Instant::now();
            if let Some(stop) = &*STOP.lock().unwrap_or_else(PoisonError::into_inner) {
                stop();
            }
            std::thread::spawn(move || {
                while !is_enough(since.elapsed(), RECORDING.load(Ordering::Acquire)) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                cut_off();
            });
        }
    };
    if let Err(error) = std::thread::Builder::new().name("signals".into()).spawn(wait) {
        eprintln!("note: signals are not caught: {error}");
    }
}

/// Whether a run that was to end so long ago has had its time.
fn is_enough(since: Duration, recording: bool) -> bool {
    since >= if recording { PATIENCE_FOR_RECORD } else { PATIENCE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_being_put_on_record_has_more_time_but_not_for_ever() {
        for (tenths, recording, enough) in [
            (7, false, false),
            (7, true, false),
            (8, false, true),
            (8, true, false),
            (39, true, false),
            (40, true, true),
        ] {
            assert_eq!(
                is_enough(Duration::from_millis(100 * tenths), recording),
                enough,
                "{tenths} {recording}"
            );
        }
    }
}
