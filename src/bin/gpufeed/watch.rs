//! A thread that looks at a loader while it runs: what it waits for, and its metrics.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpufeed::{Bottleneck, Error, LoaderStats, StatsHandle};
use indicatif::ProgressBar;

/// How often the line of progress says anew what the run waits for. It is about the time since it did so last.
const LOOK: Duration = Duration::from_secs(1);
/// How often metrics are written.
const WRITE: Duration = Duration::from_secs(5);

/// Ends with [`end`](Watcher::end), or when it is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    /// `None` only while ending: a closed channel ends the thread.
    going_on: Option<Sender<()>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Watcher {
    pub(crate) fn start(
        handle: StatsHandle,
        progress: ProgressBar,
        metrics: Option<PathBuf>,
        rank: String,
    ) -> Watcher {
        let (going_on, over) = channel::<()>();
        let watch = move || {
            let mut before: Option<LoaderStats> = None;
            let mut written = Instant::now();
            let mut result = Ok(());
            let write = |stats: &LoaderStats| match &metrics {
                Some(path) => write_metrics(path, &stats.to_prometheus(&[("rank", &rank)])),
                None => Ok(()),
            };
            loop {
                let ended = over.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout);
                let Some(stats) = handle.stats() else { return Ok(()) };
                let lately = before.as_ref().map_or_else(|| stats.clone(), |before| stats.since(before));
                // While nothing comes at all, what it was before is the best guess.
                if lately.bottleneck() != Bottleneck::Unknown {
                    progress.set_message(words(lately.bottleneck()));
                }
                if ended || written.elapsed() >= WRITE {
                    // One that cannot be written may be writable later; the last one counts.
                    result = write(&stats);
                    written = Instant::now();
                }
                if ended {
                    return result;
                }
                before = Some(stats);
            }
        };
        let thread = std::thread::Builder::new().name("watch".into()).spawn(watch).ok();
        Watcher { going_on: Some(going_on), thread }
    }

    /// Looks a last time. The error is that of the last metrics.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        self.going_on = None;
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or(Ok(())))
    }
}

fn words(bottleneck: Bottleneck) -> &'static str {
    match bottleneck {
        Bottleneck::Storage => "waits for storage",
        Bottleneck::Copy => "waits for copies",
        Bottleneck::Consumer => "waits for the consumer",
        Bottleneck::Limit => "waits for --limit-rate",
        Bottleneck::Plan => "waits for planning",
        _ => "",
    }
}

/// Whole or not at all: Prometheus may read it at any moment.
fn write_metrics(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path));
    Ok(written.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        Error::io(path, "cannot write the metrics", error)
    })?)
}
