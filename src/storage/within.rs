//! Work on files that may hang, done by a thread that is left behind if it does.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};

use super::blame::lies_on;
use crate::{Error, ErrorKind, Result};

/// The files and folders that are being looked at, for somebody who may lose patience.
#[derive(Debug, Clone, Default)]
pub(crate) struct Visits(Option<Arc<Mutex<Log>>>);

#[derive(Debug, Default)]
struct Log {
    /// In the order in which they began.
    present: Vec<(u64, Instant, PathBuf)>,
    count: u64,
}

/// A look at a file or folder; it is over when this is dropped.
#[derive(Debug)]
pub(crate) struct Visit<'a>(Option<(&'a Mutex<Log>, u64)>);

impl Visits {
    /// A look at `path` begins.
    pub(crate) fn begin(&self, path: &Path) -> Visit<'_> {
        Visit(self.0.as_deref().map(|log| {
            let mut entries = lock(log);
            entries.count += 1;
            let number = entries.count;
            entries.present.push((number, Instant::now(), path.into()));
            (log, number)
        }))
    }

    /// Whether somebody may lose patience.
    pub(crate) fn are_watched(&self) -> bool {
        self.0.is_some()
    }

    /// The one that has lasted longest.
    fn longest(&self) -> Option<(Duration, PathBuf)> {
        let log = lock(self.0.as_deref()?);
        log.present.first().map(|(_, since, path)| (since.elapsed(), path.clone()))
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if let Some((log, number)) = self.0 {
            lock(log).present.retain(|(known, ..)| *known != number);
        }
    }
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does work whose visits may hang. If one takes longer than `limit`, that is an error that names it, and the thread that does the
/// work is left behind. Without a limit, or with one of zero, the work is done by this thread, however long it takes. `what` says
/// what was done, as in "the dataset was opened".
pub(crate) fn within<T: Send + 'static>(
    limit: Option<Duration>,
    what: &str,
    work: impl FnOnce(Visits) -> Result<T> + Send + 'static,
) -> Result<T> {
    let Some(limit) = limit.filter(|limit| !limit.is_zero()) else { return work(Visits::default()) };
    let visits = Visits(Some(Arc::default()));
    let theirs = visits.clone();
    let (sender, receiver) = bounded(1);
    let thread = std::thread::Builder::new()
        .name("gpufeed-open".into())
        .spawn(move || {
            // Nobody may be there any more who wants to know.
            let _ = sender.send(catch_unwind(AssertUnwindSafe(|| work(theirs))));
        })
        .map_err(|e| Error::new(ErrorKind::Io, "cannot start a thread that looks at files").caused_by(e))?;
    let mut wait = limit;
    loop {
        match receiver.recv_timeout(wait) {
            Ok(outcome) => {
                // It has nothing left to do; nobody who counts threads shall find it.
                let _ = thread.join();
                return outcome.unwrap_or_else(|panic| resume_unwind(panic));
            }
            Err(RecvTimeoutError::Timeout) => {
                let Some((lasts, path)) = visits.longest() else { continue };
                if lasts >= limit {
                    let text = format!("storage has not answered for {}, while {what}", in_words(lasts));
                    return Err(Error::new(ErrorKind::TimedOut, text).at(&path).on(lies_on(&path, None)));
                }
                wait = (limit - lasts).max(Duration::from_millis(1));
            }
            // The thread always sends, and this is the error of one that did not.
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Panicked, "the thread that looks at files has ended"));
            }
        }
    }
}

/// A time as it is told in errors.
pub(crate) fn in_words(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.0} s", time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Option<Duration> = Some(Duration::from_millis(30));

    #[test]
    fn the_look_that_hangs_is_named_and_its_thread_left_behind() {
        let (release, held) = bounded::<()>(0);
        let error = within(SHORT, "a test ran", move |visits| {
            drop(visits.begin(Path::new("/good")));
            let _folder = visits.begin(Path::new("/hangs"));
            let _file = visits.begin(Path::new("/hangs/too"));
            let _ = held.recv();
            Ok(())
        })
        .unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::TimedOut, Some(Path::new("/hangs"))));
        assert!(error.to_string().contains("s, while a test ran"), "{error}");
        drop(release);
    }

    #[test]
    fn only_a_look_that_lasts_counts() {
        let done = within(SHORT, "a test ran", |visits| {
            for _ in 0..1000 {
                drop(visits.begin(Path::new("/a")));
            }
            // Work that is no look at a file may take its time.
            std::thread::sleep(Duration::from_millis(100));
            Ok(visits.longest().is_none())
        });
        assert!(done.unwrap());
        // What began first is named, as long as it lasts.
        let visits = Visits(Some(Arc::default()));
        let path = || visits.longest().unwrap().1;
        let (one, two) = (visits.begin(Path::new("/one")), visits.begin(Path::new("/two")));
        assert_eq!(path(), Path::new("/one"));
        drop(one);
        assert_eq!(path(), Path::new("/two"));
        drop(two);
        assert!(visits.longest().is_none());
    }

    #[test]
    fn a_panic_and_an_error_come_through() {
        let panic = catch_unwind(|| within::<()>(SHORT, "", |_| panic!("as the test asks"))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"as the test asks"));
        let error = within::<()>(SHORT, "", |_| Err(Error::argument("no"))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn without_a_limit_there_is_no_other_thread() {
        for limit in [None, Some(Duration::ZERO)] {
            let here = std::thread::current().id();
            let there = within(limit, "", |visits| Ok((std::thread::current().id(), visits.are_watched())));
            assert_eq!(there.unwrap(), (here, false));
        }
    }
}
