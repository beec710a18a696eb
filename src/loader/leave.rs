//! Leaving an epoch, or the loader: the reading thread is waited for, but not for ever.
//!
//! A thread that storage keeps (a read of a server that is down, or an open) cannot be told to come back. So it is not: the
//! caller leaves it behind, with all that the kernel or a device may still write to, which the thread owns or shares: reader, ring,
//! staging, registrations, open files. If storage answers after all, the thread finds its epoch cancelled and its loader gone, and
//! ends, and only then is any of that freed. If not, none of it ever is.

use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::setup::{Command, Delivery};
use super::{Loader, StopHandle, panic_message};
use crate::backend::Backend;
use crate::dataset::Dataset;
use crate::storage::{Pulse, Unanswered, in_words, lies_on};
use crate::{Error, ErrorKind, Result};

/// How long an epoch or a loader that was left waits for storage that does not answer, at most.
const GRACE: Duration = Duration::from_secs(10);
/// How often it looks whether storage answers.
const LOOK: Duration = Duration::from_millis(20);

impl Loader {
    /// Tells the pipeline to stop, and takes back everything that it has delivered. If storage keeps the thread too long, the
    /// epoch goes on running; who begins another waits for it once more.
    pub(super) fn end_epoch_soon(&mut self) {
        let _ = self.end_epoch(self.grace());
    }

    /// As `end_epoch_soon`, for who needs the thread. If storage keeps it too long, the loader is closed.
    pub(super) fn end_epoch_for_good(&mut self) -> Result<()> {
        self.end_epoch(self.settings.read_timeout).map_err(|error| self.close_behind(error))
    }

    fn end_epoch(&mut self, limit: Option<Duration>) -> Result<()> {
        // In a forked child nobody is there to answer.
        if !self.running || self.check_process().is_err() {
            self.running = false;
            return Ok(());
        }
        let left_at = *self.left_at.get_or_insert_with(|| {
            self.shared.cancel.store(true, Ordering::Release);
            if let Some(commands) = &self.commands {
                // If there is no room, what is there wakes the thread.
                let _ = commands.try_send(Command::Cancel);
            }
            Instant::now()
        });
        loop {
            match self.deliveries.recv_timeout(LOOK) {
                Ok(Delivery::Batch(ready)) => ready.discard(&self.shared.ring),
                // If the thread is gone, the next call says why.
                Ok(Delivery::End | Delivery::Failed(_)) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    // Who stops a loader does not want to wait for it.
                    let limit = if self.stopped.is_empty() { limit } else { self.grace() };
                    self.check_overdue(limit, Some(left_at))?;
                }
            }
        }
        (self.running, self.left_at) = (false, None);
        Ok(())
    }

    /// How long to wait for a batch before `give_up_if_overdue` is called, and no longer than `most`.
    pub(super) fn next_look(&self, most: Duration) -> Duration {
        let Some(limit) = self.settings.read_timeout else { return most };
        let lasts = self.pulse.silence().map_or(Duration::ZERO, |silence| silence.lasts);
        most.min(limit.saturating_sub(lasts)).max(Duration::from_millis(1))
    }

    /// Closes the loader if storage has kept its thread too long.
    pub(super) fn give_up_if_overdue(&mut self) -> Result<()> {
        self.check_overdue(self.settings.read_timeout, None).map_err(|error| self.close_behind(error))
    }

    fn grace(&self) -> Option<Duration> {
        Some(self.settings.read_timeout.map_or(GRACE, |timeout| timeout.min(GRACE)))
    }

    /// An error if storage has kept the thread for so long; of the time before `from` nothing counts.
    fn check_overdue(&self, limit: Option<Duration>, from: Option<Instant>) -> Result<()> {
        check_overdue((&self.pulse, &self.shared.dataset), self.settings.chosen.backend, (limit, from))
    }

    /// Closes the loader for an error, and leaves its thread behind.
    fn close_behind(&mut self, error: Error) -> Error {
        self.shared.cancel.store(true, Ordering::Release);
        (self.commands, self.thread, self.running) = (None, None, false);
        self.closed = Some(error.to_string());
        self.left_behind = Some(format!(
            "the reading thread, its {} bytes of memory and its open files are kept until storage answers",
            self.settings.device_bytes + self.settings.pinned_bytes
        ));
        error
    }

    /// The reading thread has ended before its loader: says why, and closes the loader.
    pub(super) fn why_gone(&mut self) -> Error {
        let why = match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => format!("the reading thread panicked: {}", panic_message(&*panic)),
            _ => "the reading thread has ended".into(),
        };
        self.closed = Some(why.clone());
        Error::new(ErrorKind::Panicked, why)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // In a forked child there is no thread to wait for, and whatever lock of a channel one held at the fork
            // is held for ever: the channels are left as they are.
            std::mem::forget(self.commands.take());
            // The system may have given what the thread was known by to one that was started since.
            std::mem::forget(self.thread.take());
            std::mem::forget(std::mem::replace(&mut self.deliveries, crossbeam_channel::never()));
            std::mem::forget(std::mem::replace(&mut self.stopped, crossbeam_channel::never()));
            std::mem::forget(std::mem::replace(&mut self.stop, StopHandle(crossbeam_channel::bounded(1).0)));
            return;
        }
        self.shared.cancel.store(true, Ordering::Release);
        self.commands = None;
        let Some(thread) = self.thread.take() else { return };
        let left_at = self.left_at.unwrap_or_else(Instant::now);
        loop {
            match self.deliveries.recv_timeout(LOOK) {
                Ok(Delivery::Batch(ready)) => ready.discard(&self.shared.ring),
                Ok(Delivery::End | Delivery::Failed(_)) => {}
                // By now it has no read in flight and no file open: see the order of the pipeline's fields.
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    if self.check_overdue(self.grace(), Some(left_at)).is_err() {
                        return;
                    }
                }
            }
        }
        // A panic that no epoch was there to report has nobody left to hear of it.
        let _ = thread.join();
    }
}

/// An error if storage has kept the thread of this pulse for so long; of the time before `from` nothing counts.
fn check_overdue(
    (pulse, dataset): (&Pulse, &Dataset),
    backend: Backend,
    (limit, from): (Option<Duration>, Option<Instant>),
) -> Result<()> {
    let (Some(limit), Some(silence)) = (limit, pulse.silence()) else { return Ok(()) };
    if from.map_or(silence.lasts, |from| silence.lasts.min(from.elapsed())) < limit {
        return Ok(());
    }
    let Some(unanswered) = pulse.unanswered(&silence) else { return Ok(()) };
    let error = |file: Option<u32>, what: &str| {
        let text = format!("storage has not answered for {}: {what}", in_words(silence.lasts));
        let error = Error::new(ErrorKind::TimedOut, text).by(backend.name());
        let Some(file) = file else { return error };
        let file = &dataset.files()[file as usize];
        error.at(file.path()).on(lies_on(file.path(), Some(file.identity().device)))
    };
    Err(match unanswered {
        Unanswered::Reads { count: 1, file, offset, len } => {
            error(Some(file), "the read has not come back").range(offset, len.into())
        }
        Unanswered::Reads { count, file, offset, len } => {
            let what = format!("of {count} reads in flight none has come back, this one is the oldest");
            error(Some(file), &what).range(offset, len.into())
        }
        Unanswered::Open(file) => error(Some(file), "the file cannot be opened"),
        Unanswered::Close => error(None, "files cannot be closed"),
    })
}

/// Waits for what a thread sends when it has started, which a trial on storage may keep. If it is kept for longer than `limit`,
/// that is an error, and the thread is left behind: it ends, and frees what it has, when storage answers.
pub(super) fn started<T>(
    starting: &Receiver<T>,
    (pulse, dataset): (&Pulse, &Dataset),
    backend: Backend,
    limit: Option<Duration>,
) -> Result<Option<T>> {
    loop {
        match starting.recv_timeout(LOOK) {
            Ok(sent) => return Ok(Some(sent)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => check_overdue((pulse, dataset), backend, (limit, None))?,
        }
    }
}
