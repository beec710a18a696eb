//! Finding the I/O size, queue depth and backend that suit a disk, and remembering them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Spread;
use crate::storage::write_whole;
use crate::{Backend, Error, ErrorKind, Result};

/// Settings of a loader that can be tuned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// The way to read.
    pub backend: Backend,
    /// The most bytes that one read asks for.
    pub io_bytes: u64,
    /// Reads in flight on each drive; for `pread` that many threads.
    pub queue_depth: u32,
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// The backend.
    pub backend: Backend,
    /// The most bytes that one read asks for.
    pub io_bytes: u64,
    /// Reads in flight on each drive.
    pub queue_depth: u32,
    /// Whether these are other settings than the default: only if they were faster beyond noise.
    pub faster: bool,
    /// GiB per second with them, in turn with the default.
    pub gib_per_s: Spread,
    /// GiB per second by default.
    pub default_gib_per_s: Spread,
    /// How long the search took, in seconds.
    pub took_seconds: f64,
    /// When, in seconds since 1970 (UTC).
    pub measured: u64,
}

/// I/O sizes and queue depths that are tried, around whatever is best so far.
const IO_BYTES: [u64; 6] = [128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
const QUEUE_DEPTHS: [u32; 6] = [4, 8, 16, 32, 64, 128];
/// Better by less than this is no better: a single measurement is not worth more.
const WORTH_IT: f64 = 1.05;
/// So many rounds of the best against the default, in turn, decide.
const ROUNDS: usize = 5;

/// Searches from `default` on, one setting after the other, and lets the best that it finds compete with the default, in
/// turn. `measure` gives the GiB per second of a candidate, or an error for one that does not work here.
///
/// It looks at the clock before each measurement, and ends the search when `budget` is half used, so that the other half
/// is for the competition.
///
/// # Errors
/// That of the default, if it does not work.
pub fn tune(
    default: Candidate,
    backends: &[Backend],
    budget: Duration,
    mut measure: impl FnMut(Candidate) -> Result<f64>,
) -> Result<Tuning> {
    let begun = Instant::now();
    let mut known: Vec<(Candidate, f64)> = vec![(default, measure(default)?)];
    let mut best = known[0];
    // What does not work here is not the best.
    let mut rate = |candidate: Candidate| -> f64 {
        if let Some((_, rate)) = known.iter().find(|(other, _)| *other == candidate) {
            return *rate;
        }
        if begun.elapsed() > budget / 2 {
            return 0.0;
        }
        let rate = measure(candidate).unwrap_or(0.0);
        known.push((candidate, rate));
        rate
    };
    let mut improved = true;
    while std::mem::take(&mut improved) {
        let others = backends.iter().map(|&backend| Candidate { backend, ..best.0 });
        let sizes = near(&IO_BYTES, best.0.io_bytes).map(|io_bytes| Candidate { io_bytes, ..best.0 });
        let depths =
            near(&QUEUE_DEPTHS, best.0.queue_depth).map(|queue_depth| Candidate { queue_depth, ..best.0 });
        let all: Vec<Candidate> = others.chain(sizes).chain(depths).filter(|it| *it != best.0).collect();
        for candidate in all {
            let found = rate(candidate);
            if found > best.1 * WORTH_IT {
                (best, improved) = ((candidate, found), true);
            }
        }
    }
    let (mut tuned, mut untuned) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        // At least one round each, whatever the clock says.
        if tuned.is_empty() || begun.elapsed() < budget {
            untuned.push(measure(default)?);
            tuned.push(if best.0 == default { untuned[untuned.len() - 1] } else { measure(best.0)? });
        }
    }
    let spread = |values: &[f64]| Spread::of(values).unwrap_or_default();
    let (tuned, untuned) = (spread(&tuned), spread(&untuned));
    let faster = best.0 != default && tuned.median > untuned.median * WORTH_IT;
    let (settings, gib_per_s) = if faster { (best.0, tuned) } else { (default, untuned) };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Ok(Tuning {
        backend: settings.backend,
        io_bytes: settings.io_bytes,
        queue_depth: settings.queue_depth,
        faster,
        gib_per_s,
        default_gib_per_s: untuned,
        took_seconds: begun.elapsed().as_secs_f64(),
        measured: now.map_or(0, |now| now.as_secs()),
    })
}

/// The values next to `at`: one below, and one above.
fn near<T: Copy + PartialOrd + 'static>(all: &'static [T], at: T) -> impl Iterator<Item = T> {
    let below = all.iter().copied().rev().find(|value| *value < at);
    let above = all.iter().copied().find(|value| *value > at);
    below.into_iter().chain(above)
}

/// Tunings that were found, by what they depend on, in one file.
#[derive(Debug)]
pub struct Tunings {
    path: PathBuf,
}

impl Tunings {
    /// Those of this user: `gpufeed/tuning.json` in `$XDG_CACHE_HOME`, else in `~/.cache`; `None` if neither is known.
    pub fn of_user() -> Option<Tunings> {
        let absolute =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache =
            absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
        Some(Tunings { path: cache.join("gpufeed/tuning.json") })
    }

    /// Those in a file, which need not be there yet.
    pub fn at(path: impl Into<PathBuf>) -> Tunings {
        Tunings { path: path.into() }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tuning that was remembered under a key.
    ///
    /// # Errors
    /// `Io` if the file cannot be read, `InvalidData` if it is none of tunings.
    pub fn get(&self, key: &str) -> Result<Option<Tuning>> {
        Ok(self.all()?.remove(key))
    }

    /// Remembers a tuning, whole or not at all.
    ///
    /// # Errors
    /// As [`get`](Tunings::get), and `Io` if it cannot be written.
    pub fn put(&self, key: &str, tuning: &Tuning) -> Result<()> {
        let failed = |what: &str, error| Error::io(&self.path, what, error);
        // What cannot be read is of no use to anybody, and is written anew.
        let mut all = self.all().unwrap_or_default();
        all.insert(key.into(), tuning.clone());
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(|e| failed("cannot make the folder of tunings", e))?;
        let text = serde_json::to_vec_pretty(&all).map_err(|e| {
            Error::new(ErrorKind::Io, "tunings cannot be made JSON").at(&self.path).caused_by(e)
        })?;
        write_whole(&self.path, &text).map_err(|error| failed("cannot write the tunings", error))
    }

    fn all(&self) -> Result<std::collections::BTreeMap<String, Tuning>> {
        match std::fs::read(&self.path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|e| Error::data(&self.path, format!("it holds no tunings: {e}"))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Default::default()),
            Err(error) => Err(Error::io(&self.path, "cannot read the tunings", error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Candidate = Candidate { backend: Backend::Uring, io_bytes: 1 << 20, queue_depth: 16 };
    const BACKENDS: [Backend; 2] = [Backend::Uring, Backend::Pread];
    const LONG: Duration = Duration::from_secs(3600);

    /// A disk that likes large I/Os and a depth of 64, and on which pread loses a tenth.
    fn disk(candidate: Candidate) -> Result<f64> {
        let size = (candidate.io_bytes as f64).log2() / 22.0;
        let depth = 1.0 - (f64::from(candidate.queue_depth).log2() - 6.0).abs() / 8.0;
        Ok(2.0 * size * depth * if candidate.backend == Backend::Pread { 0.9 } else { 1.0 })
    }

    #[test]
    fn the_best_settings_are_found_from_the_default_on() {
        let mut asked = 0;
        let tuning = tune(DEFAULT, &BACKENDS, LONG, |candidate| {
            asked += 1;
            disk(candidate)
        })
        .unwrap();
        assert_eq!((tuning.backend, tuning.queue_depth), (Backend::Uring, 64));
        assert!(tuning.faster && tuning.gib_per_s.median > tuning.default_gib_per_s.median);
        assert!(asked < 40, "{asked} measurements");
    }

    #[test]
    fn where_nothing_is_faster_beyond_noise_the_default_stays() {
        let mut state = 1u64;
        let tuning = tune(DEFAULT, &BACKENDS, LONG, |_| {
            // Noise of two per cent.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            Ok(2.0 + (state >> 40) as f64 / (1u64 << 24) as f64 * 0.04)
        })
        .unwrap();
        assert!(!tuning.faster);
        assert_eq!((tuning.backend, tuning.io_bytes, tuning.queue_depth), (Backend::Uring, 1 << 20, 16));
    }

    #[test]
    fn a_lucky_measurement_does_not_win_the_competition() {
        let mut first = true;
        let tuning = tune(DEFAULT, &BACKENDS, LONG, |candidate| {
            Ok(if candidate.queue_depth == 32 && std::mem::take(&mut first) { 9.0 } else { 2.0 })
        })
        .unwrap();
        assert!(!tuning.faster && tuning.queue_depth == 16);
    }

    #[test]
    fn what_does_not_work_is_passed_over_and_time_is_kept() {
        let fails = |candidate: Candidate| match candidate.backend {
            Backend::Pread => Err(Error::argument("no")),
            _ => disk(candidate),
        };
        assert_eq!(tune(DEFAULT, &BACKENDS, LONG, fails).unwrap().backend, Backend::Uring);
        let default_fails = tune(DEFAULT, &BACKENDS, LONG, |_| Err(Error::argument("no default")));
        assert_eq!(default_fails.unwrap_err().to_string(), "no default");
        // Without any time the default is measured, and stays.
        let mut asked = 0;
        let tuning = tune(DEFAULT, &BACKENDS, Duration::ZERO, |candidate| {
            asked += 1;
            disk(candidate)
        });
        assert!(!tuning.unwrap().faster && asked == 2);
    }

    #[test]
    fn tunings_are_remembered_by_key_and_a_damaged_file_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let tunings = Tunings::at(folder.path().join("deep/tuning.json"));
        assert_eq!(tunings.get("a").unwrap(), None);
        let one = tune(DEFAULT, &BACKENDS, LONG, |_| Ok(2.0)).unwrap();
        let one = Tuning { took_seconds: 1.5, ..one };
        tunings.put("a", &one).unwrap();
        tunings.put("b", &Tuning { queue_depth: 7, ..one.clone() }).unwrap();
        assert_eq!(tunings.get("a").unwrap(), Some(one.clone()));
        assert_eq!(tunings.get("b").unwrap().unwrap().queue_depth, 7);
        std::fs::write(tunings.path(), "{").unwrap();
        let error = tunings.get("a").unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::InvalidData, Some(tunings.path())));
        tunings.put("a", &one).unwrap();
        assert_eq!((tunings.get("a").unwrap(), tunings.get("b").unwrap()), (Some(one), None));
    }
}
