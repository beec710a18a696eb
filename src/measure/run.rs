//! One run: an epoch by one backend, in this process.

use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::caches::{self, Dropping};
use super::marks;
use super::report::{Cache, Quantiles, Run, Settings};
use super::stop::Stop;
use crate::loader::Source;
use crate::{Backend, Dataset, ErrorKind, Loader, LoaderBuilder, Shuffle, Stage};

/// A setting of the loader, with a value that it is to have in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Vary {
    /// The most bytes that one read asks for.
    IoBytes(u64),
    /// Reads in flight on each drive.
    QueueDepth(u32),
    /// Samples in a batch.
    BatchSize(u64),
    /// Batches read ahead.
    Prefetch(u32),
    /// The shuffle.
    Shuffle(Shuffle),
}

impl Vary {
    /// The name of the setting, as reports have it: `io_bytes`, `queue_depth`, `batch_size`, `prefetch`, `shuffle`.
    pub fn setting(&self) -> &'static str {
        match self {
            Vary::IoBytes(_) => "io_bytes",
            Vary::QueueDepth(_) => "queue_depth",
            Vary::BatchSize(_) => "batch_size",
            Vary::Prefetch(_) => "prefetch",
            Vary::Shuffle(_) => "shuffle",
        }
    }

    fn apply(self, builder: LoaderBuilder) -> LoaderBuilder {
        match self {
            Vary::IoBytes(bytes) => builder.io_bytes(bytes),
            Vary::QueueDepth(reads) => builder.queue_depth(reads),
            Vary::BatchSize(samples) => builder.batch_size(samples),
            Vary::Prefetch(batches) => builder.prefetch(batches),
            Vary::Shuffle(shuffle) => builder.shuffle(shuffle),
        }
    }
}

impl fmt::Display for Vary {
    /// The value alone, as it is written on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Vary::IoBytes(bytes) if bytes > 0 && bytes % (1 << 20) == 0 => write!(f, "{}MiB", bytes >> 20),
            Vary::IoBytes(bytes) if bytes > 0 && bytes % (1 << 10) == 0 => write!(f, "{}KiB", bytes >> 10),
            Vary::IoBytes(bytes) => write!(f, "{bytes}"),
            Vary::QueueDepth(reads) => write!(f, "{reads}"),
            Vary::BatchSize(samples) => write!(f, "{samples}"),
            Vary::Prefetch(batches) => write!(f, "{batches}"),
            Vary::Shuffle(shuffle) => write!(f, "{shuffle}"),
        }
    }
}

/// What one run measures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// The backend.
    pub backend: Backend,
    /// The state of the page cache.
    pub cache: Cache,
    /// Which round, from 0.
    pub round: u64,
    /// The setting that is another one than usual.
    pub vary: Option<Vary>,
}

/// What a run found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The figures.
    pub run: Run,
    /// The settings of the loader, defaults filled in. `rounds` and `caches_dropped_by` are left empty.
    pub settings: Settings,
    /// The fingerprint of the dataset that was read.
    pub fingerprint: String,
}

/// Why a run found nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunFailure {
    /// It failed before its epoch began, with this error.
    Setup(String),
    /// It failed later, with this error.
    Epoch(String),
    /// It was asked to stop.
    Stopped,
}

impl fmt::Display for RunFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunFailure::Setup(error) | RunFailure::Epoch(error) => f.write_str(error),
            RunFailure::Stopped => f.write_str("it was asked to stop"),
        }
    }
}

/// What makes the settings of every run.
pub(super) type Configure<'a> = dyn Fn(LoaderBuilder) -> LoaderBuilder + 'a;

/// Makes the state of the cache, builds a loader and goes through one epoch. `since` is when the program began to work on it.
pub(super) fn measure(
    spec: &RunSpec,
    (source, configure): (&Source, &Configure<'_>),
    (step, dropping): (Duration, Dropping),
    since: Instant,
    stop: &Stop,
) -> Result<Measured, RunFailure> {
    let failed = |error: crate::Error| match error.kind() {
        ErrorKind::Stopped => RunFailure::Stopped,
        _ => RunFailure::Epoch(in_full(&error)),
    };
    let dataset = source.dataset();
    let not_prepared = |error: crate::Error| RunFailure::Epoch(in_full(&error));
    // `auto` may look at the cache when the loader is built.
    let preparing = Instant::now();
    caches::prepare(dataset, spec.cache, dropping, stop).map_err(not_prepared)?;
    let preparing = preparing.elapsed();
    forget_peak_rss();
    let mut builder = configure(Loader::builder(source.clone())).backend(spec.backend).stats(true);
    if let Some(vary) = spec.vary {
        builder = vary.apply(builder);
    }
    let mut loader = builder.build().map_err(|error| RunFailure::Setup(in_full(&error)))?;
    stop.stops(loader.stop_handle());
    let mut waits = Vec::with_capacity(loader.batches_per_epoch().min(1 << 24) as usize);
    let (mut bytes, mut samples) = (0, 0);
    let setup_seconds = since.elapsed().saturating_sub(preparing).as_secs_f64();
    if spec.cache == Cache::Cold {
        // Whoever opened the files may have read headers, and the kernel some of what follows them.
        caches::empty(dataset, stop).map_err(not_prepared)?;
    }
    if stop.asked() {
        return Err(RunFailure::Stopped);
    }
    let cached_before = cached_share(dataset);

    let (cpu_before, start) = (cpu_seconds(), Instant::now());
    let mut seconds = 0.0;
    let mut asked = start;
    for batch in loader.epoch(0).map_err(failed)? {
        let batch = batch.map_err(failed)?;
        // On a GPU a batch is handed over before its bytes are there; a training step would wait for them, on its stream.
        batch.arrive().map_err(failed)?;
        waits.push(asked.elapsed().as_secs_f64() * 1e6);
        bytes += batch.columns().map(|column| column.size_bytes() as u64).sum::<u64>();
        samples += batch.len() as u64;
        if !step.is_zero() {
            std::thread::sleep(step); // with the batch in hand, as a training step has it
        }
        drop(batch);
        asked = Instant::now();
        seconds = (asked - start).as_secs_f64();
        if stop.asked() {
            return Err(RunFailure::Stopped);
        }
    }
    let cpu_seconds = cpu_seconds() - cpu_before;

    let report = loader.report();
    let memory = loader.memory();
    let batches = waits.len() as u64;
    let rates = rates(bytes, seconds);
    let in_use = step.as_secs_f64() * batches as f64;
    let mut run = Run {
        backend: spec.backend.name().into(),
        backend_used: report.backend.name().into(),
        backend_reason: report.backend_reason.clone(),
        cache: spec.cache,
        round: spec.round,
        seconds,
        setup_seconds,
        bytes,
        samples,
        batches,
        gb_per_s: rates.map(|(gb, _)| gb),
        gib_per_s: rates.map(|(_, gib)| gib),
        cpu_seconds,
        cpu_seconds_per_gib: rates.map(|_| cpu_seconds / (bytes as f64 / GIB)),
        cached_fraction_before: cached_before,
        cached_fraction_after: cached_share(dataset),
        reads: read_latencies(&loader),
        batch_waits: quantiles(&mut waits),
        bytes_by_way: report.bytes_by_way.iter().map(|(way, bytes)| (way.name().into(), bytes)).collect(),
        peak_rss_bytes: peak_rss_bytes(),
        pinned_bytes: memory.pinned_bytes,
        device_bytes: memory.device_bytes,
        utilisation: (!step.is_zero() && seconds > 0.0).then(|| (in_use / seconds).min(1.0)),
        marks: Vec::new(),
    };
    run.marks = marks::of_run(&run, &report.not_direct, dataset);
    let devices: Vec<String> = report.devices.iter().map(|device| device.to_string()).collect();
    let settings = Settings {
        device: devices.join(","),
        batch_size: loader.batch_size(),
        shuffle: loader.shuffle().to_string(),
        prefetch: loader.prefetch().into(),
        queue_depth: loader.queue_depth().into(),
        io_bytes: loader.io_bytes().into(),
        step_ms: step.as_secs_f64() * 1e3,
        ..Settings::default()
    };
    Ok(Measured { run, settings, fingerprint: dataset.fingerprint().into() })
}

/// How long the loader's reads took.
fn read_latencies(loader: &Loader) -> Quantiles {
    let Some(reads) = loader.stats().map(|stats| stats.stage(Stage::Read)) else {
        return Quantiles::default();
    };
    let [p50_us, p99_us, max_us] = [reads.p50, reads.p99, reads.max].map(|took| took.as_secs_f64() * 1e6);
    Quantiles { count: reads.count, p50_us, p99_us, max_us }
}

const GIB: f64 = (1u64 << 30) as f64;

/// Shorter than this, in seconds, start and end of a run weigh as much as what lies between them.
pub(super) const SHORTEST: f64 = 0.01;

/// (10^9 bytes, 2^30 bytes) per second; `None` where there is no telling.
pub(super) fn rates(bytes: u64, seconds: f64) -> Option<(f64, f64)> {
    (bytes > 0 && seconds >= SHORTEST).then(|| {
        let rate = bytes as f64 / seconds;
        (rate / 1e9, rate / GIB)
    })
}

/// The share of the dataset's bytes that is in the page cache; `None` where the kernel does not say.
pub(super) fn cached_share(dataset: &Dataset) -> Option<f64> {
    dataset.residency().ok().map(|residency| residency.fraction())
}

/// Of values in microseconds, by their ranks.
fn quantiles(values: &mut [f64]) -> Quantiles {
    values.sort_by(f64::total_cmp);
    let Some(max_us) = values.last().copied() else { return Quantiles::default() };
    let at = |share: f64| values[((values.len() as f64 * share).ceil() as usize).clamp(1, values.len()) - 1];
    Quantiles { count: values.len() as u64, p50_us: at(0.5), p99_us: at(0.99), max_us }
}

/// An error with its causes, in one line.
pub(super) fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// User and system seconds of this process so far, all threads together.
fn cpu_seconds() -> f64 {
    // SAFETY: all zeros is a valid `rusage`, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// The kernel remembers the most that ever was resident; from here on, it counts anew.
fn forget_peak_rss() {
    // Where /proc cannot be written, the figure is that of the whole process.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_comes_in_both_units_or_not_at_all() {
        let (gb, gib) = rates(1 << 30, 1.0).unwrap();
        assert_eq!((format!("{gb:.3}"), format!("{gib:.3}")), ("1.074".into(), "1.000".into()));
        assert_eq!((gb, gib), (1.073_741_824, 1.0));
        for (bytes, seconds) in [(0, 1.0), (1 << 30, 0.0), (1 << 30, 0.009), (0, 0.0)] {
            assert_eq!(rates(bytes, seconds), None, "{bytes} {seconds}");
        }
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        assert_eq!(quantiles(&mut []), Quantiles::default());
        let one = quantiles(&mut [7.0]);
        assert_eq!((one.count, one.p50_us, one.p99_us, one.max_us), (1, 7.0, 7.0, 7.0));
        let mut many: Vec<f64> = (1..=1000).rev().map(f64::from).collect();
        let many = quantiles(&mut many);
        assert_eq!((many.p50_us, many.p99_us, many.max_us), (500.0, 990.0, 1000.0));
    }

    #[test]
    fn a_value_is_written_as_on_the_command_line() {
        let text = |vary: Vary| format!("{}={vary}", vary.setting());
        assert_eq!(text(Vary::IoBytes(65536)), "io_bytes=64KiB");
        assert_eq!(text(Vary::IoBytes(3 << 20)), "io_bytes=3MiB");
        assert_eq!(text(Vary::IoBytes(5000)), "io_bytes=5000");
        assert_eq!(text(Vary::Shuffle(Shuffle::Full)), "shuffle=full");
    }
}
