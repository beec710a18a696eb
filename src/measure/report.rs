//! What a benchmark found, as values: every report, for people or programs, is made of these.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All that one benchmark found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// The version of this format: 1.
    pub version: u32,
    /// When it began, in seconds since 1970 (UTC).
    pub started: u64,
    /// How long all of it took, in seconds.
    pub took_seconds: f64,
    /// It was interrupted: what is here was measured before that.
    pub interrupted: bool,
    /// The command line, if there was one.
    pub command: Vec<String>,
    /// Where it was measured.
    pub machine: Machine,
    /// On what data.
    pub data: DataInfo,
    /// By which settings.
    pub settings: Settings,
    /// What storage and link can do at most, measured beside the runs.
    pub limits: Limits,
    /// Every run, in the order in which they were done.
    pub runs: Vec<Run>,
    /// Per backend and state of the cache.
    pub summary: Vec<Summary>,
    /// What failed, with its error: never a rate of 0.
    pub failures: Vec<Failure>,
    /// One setting varied at a time.
    pub sweeps: Vec<Sweep>,
    /// What follows from it, in plain words: one sentence each.
    pub conclusion: Vec<String>,
}

/// The machine, as far as it matters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Processors that this process may use.
    pub processors: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Name and release of the kernel.
    pub kernel: String,
    /// The GPUs in use, by name; empty for host memory.
    pub gpus: Vec<String>,
    /// The type of the file system that the data is on, such as `ext4` or `tmpfs`.
    pub filesystem: String,
    /// The block device, if there is one, with its I/O scheduler.
    pub disk: Option<String>,
    /// The version of gpufeed.
    pub gpufeed: String,
}

/// The dataset.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DataInfo {
    /// As it was named.
    pub path: String,
    /// Its format.
    pub format: String,
    /// Files, over all columns.
    pub shards: u64,
    /// Samples.
    pub samples: u64,
    /// Bytes of one sample, over all columns.
    pub sample_bytes: u64,
    /// Bytes of all samples.
    pub payload_bytes: u64,
    /// Its fingerprint.
    pub fingerprint: String,
}

/// What is the same in all runs, sweeps aside.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The device that batches are delivered to.
    pub device: String,
    /// Runs of each backend and state of the cache, in turn.
    pub rounds: u64,
    /// Samples in a batch.
    pub batch_size: u64,
    /// The shuffle.
    pub shuffle: String,
    /// Batches read ahead.
    pub prefetch: u64,
    /// Reads in flight on each drive.
    pub queue_depth: u64,
    /// The most bytes that one read asks for.
    pub io_bytes: u64,
    /// How long a simulated training step takes for each batch, in milliseconds; 0 for none.
    pub step_ms: f64,
    /// How caches are dropped: `posix_fadvise`, and `drop_caches` for root.
    pub caches_dropped_by: Vec<String>,
}

/// What storage and link can do at most.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// A plain direct read loop of our own over the same files, cold.
    pub disk: Option<Limit>,
    /// fio's direct read of the same files, cold, where fio is installed.
    pub fio: Option<Limit>,
    /// Copies from pinned host memory to the device. `None` for host memory.
    pub link: Option<Limit>,
}

/// One limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// How it was measured, in words.
    pub method: String,
    /// GiB (2^30 bytes) per second, over several runs.
    pub gib_per_s: Spread,
    /// Why it is not to be trusted, if it is not.
    pub marks: Vec<Mark>,
}

/// The smallest, the middle and the largest of some values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// How many values there were.
    pub count: u64,
    /// The smallest.
    pub min: f64,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

/// Whether the data was in the page cache before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// It was dropped from there, and that was checked.
    Cold,
    /// It was read once before, and that was checked.
    Warm,
}

/// Why a figure is not what it seems to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// One word for programs: `cached` (a cold run that was not), `not-cached` (a warm one that was not), `unchecked` (the
    /// kernel does not tell), `memory`, `short`, `noisy`, `above-link`, `above-disk`, `detour`, and for a point of a sweep
    /// `failed`.
    pub kind: String,
    /// The reason, in words.
    pub reason: String,
}

/// Latencies in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// How many were measured.
    pub count: u64,
    /// Half of them took no longer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// None took longer.
    pub max_us: f64,
}

/// One epoch by one backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The backend that was named: `auto` too.
    pub backend: String,
    /// The backend that was in use, and why.
    pub backend_used: String,
    /// Why that one.
    pub backend_reason: String,
    /// The state of the page cache before.
    pub cache: Cache,
    /// Which round, from 0.
    pub round: u64,
    /// From the start of the epoch to its last batch, in seconds.
    pub seconds: f64,
    /// From the start of the program's work on it to the start of the epoch: opening, memory, drivers.
    pub setup_seconds: f64,
    /// Bytes of payload delivered.
    pub bytes: u64,
    /// Samples delivered.
    pub samples: u64,
    /// Batches delivered.
    pub batches: u64,
    /// 10^9 bytes per second; `None` where no rate can be told.
    pub gb_per_s: Option<f64>,
    /// 2^30 bytes per second.
    pub gib_per_s: Option<f64>,
    /// User and system seconds of the whole process during the epoch.
    pub cpu_seconds: f64,
    /// The same per 2^30 bytes.
    pub cpu_seconds_per_gib: Option<f64>,
    /// The share of the dataset's bytes that was in the page cache just before; `None` where that cannot be known.
    pub cached_fraction_before: Option<f64>,
    /// The same just after.
    pub cached_fraction_after: Option<f64>,
    /// How long reads took, from their start to their completion.
    pub reads: Quantiles,
    /// How long the caller waited for each batch.
    pub batch_waits: Quantiles,
    /// Payload bytes by the way they took.
    pub bytes_by_way: BTreeMap<String, u64>,
    /// The most memory that was resident in the process, in bytes.
    pub peak_rss_bytes: u64,
    /// Staging memory.
    pub pinned_bytes: u64,
    /// The ring.
    pub device_bytes: u64,
    /// The share of the time in which the simulated training step ran, as MLPerf Storage defines accelerator
    /// utilisation; `None` without a step.
    pub utilisation: Option<f64>,
    /// Why the figures are not what they seem to be.
    pub marks: Vec<Mark>,
}

/// The runs of one backend and state of the cache, together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The backend.
    pub backend: String,
    /// The state of the cache.
    pub cache: Cache,
    /// GiB per second; `None` where that was withheld.
    pub gib_per_s: Option<Spread>,
    /// CPU seconds per GiB.
    pub cpu_seconds_per_gib: Option<Spread>,
    /// Microseconds: the middle, over the runs, of each quantile.
    pub reads: Quantiles,
    /// The same for the waits for batches.
    pub batch_waits: Quantiles,
    /// The cached share before, the largest of the runs.
    pub cached_fraction_before: Option<f64>,
    /// The median rate as a share of the disk's limit.
    pub share_of_disk: Option<f64>,
    /// The median rate as a share of the link's limit.
    pub share_of_link: Option<f64>,
    /// Accelerator utilisation with the simulated step.
    pub utilisation: Option<Spread>,
    /// Why the figures are not what they seem to be: every mark of a run, once.
    pub marks: Vec<Mark>,
}

/// A backend that could not be measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The backend.
    pub backend: String,
    /// In which state of the cache; `None` if it did not come to that.
    pub cache: Option<Cache>,
    /// Its error.
    pub error: String,
}

/// One setting varied, all else the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// The setting: `io_bytes`, `queue_depth`, `batch_size`, `prefetch` or `shuffle`.
    pub setting: String,
    /// The backend.
    pub backend: String,
    /// The state of the cache.
    pub cache: Cache,
    /// In the order of the values.
    pub points: Vec<SweepPoint>,
}

/// One value of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepPoint {
    /// The value, as it is written on the command line.
    pub value: String,
    /// GiB per second; `None` where that was withheld.
    pub gib_per_s: Option<Spread>,
    /// CPU seconds per GiB.
    pub cpu_seconds_per_gib: Option<Spread>,
    /// Why the figures are not what they seem to be.
    pub marks: Vec<Mark>,
}

impl Spread {
    /// The spread of some values; `None` of none.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Spread { count: sorted.len() as u64, min, median: low + (high - low) / 2.0, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_smallest_the_middle_and_the_largest() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[f64::NAN]), None);
        let of = |values: &[f64]| Spread::of(values).map(|it| (it.count, it.min, it.median, it.max)).unwrap();
        assert_eq!(of(&[3.0]), (1, 3.0, 3.0, 3.0));
        assert_eq!(of(&[9.0, 1.0, 2.0]), (3, 1.0, 2.0, 9.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 9.0]), (4, 1.0, 3.0, 9.0));
    }
}
