//! The benchmark: which runs, in which order, and what comes of them.

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::caches::{self, Dropping};
use super::found::Found;
use super::report::{BenchReport, Cache, DataInfo, Sweep};
use super::run::{self, Configure, Measured, RunFailure, RunSpec, Vary};
use super::stop::Stop;
use super::{conclusion, disk, fio, link, machine, summary};
use crate::loader::Source;
use crate::{Backend, Device, ErrorKind, Loader, LoaderBuilder, Result};

/// Measures backends side by side on the user's own data, cold and warm, in turn.
///
/// In every round the disk's limit is measured, then each backend goes through one epoch, cold, and then again, warm:
/// A B A B, so that a disk that drifts drifts for all of them. Before each run the caches are dropped or filled, and what
/// of the data is in the page cache is looked at just before its epoch begins. Files are only ever read.
///
/// ```no_run
/// use gpufeed::measure::{Bench, Cache};
/// use gpufeed::{Backend, Dataset};
///
/// let dataset = Dataset::open("datasets/digits")?;
/// let report = Bench::new(dataset)
///     .backends(&[Backend::Uring, Backend::PageCache])
///     .caches(&[Cache::Cold])
///     .rounds(3)
///     .loader(|loader| loader.batch_size(256))
///     .run()?;
/// for summary in &report.summary {
///     println!("{} {:?} {:?}", summary.backend, summary.gib_per_s, summary.marks);
/// }
/// # Ok::<(), gpufeed::Error>(())
/// ```
///
/// # Where runs happen
///
/// [`run`](Bench::run) does them in this process: then CPU seconds are those of all its threads, and peak memory is that of
/// all of it while the run lasts (the kernel's count is set back before, for everybody in the process who looks). With
/// [`run_by`](Bench::run_by) and [`run_in_child`](super::run_in_child), each is a process of its own, as `gpufeed bench` does
/// it: what it counts is its own, and a backend that crashes is a failure like any other.
#[must_use]
pub struct Bench<'a> {
    source: Source,
    configure: Box<Configure<'a>>,
    backends: Vec<Backend>,
    caches: Vec<Cache>,
    rounds: u64,
    step: Duration,
    sweeps: Vec<Vec<Vary>>,
    dropping: Dropping,
    fio: bool,
    longest: Option<Duration>,
    progress: Box<dyn FnMut(&Progress) + 'a>,
    stop: Stop,
}

/// Far more than anybody waits for; the list of all runs is made before the first.
const MOST_ROUNDS: u64 = 1_000_000;

/// How far a benchmark has come.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Measurements that are done.
    pub done: u64,
    /// All of them.
    pub total: u64,
    /// What is measured next, in words.
    pub next: String,
}

/// One thing to measure.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Disk,
    Fio,
    Link,
    Run(RunSpec),
}

impl fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bench").field("source", &self.source).field("backends", &self.backends).finish()
    }
}

impl<'a> Bench<'a> {
    /// Every backend, cold and warm, five rounds, no training step.
    pub fn new(data: impl Into<Source>) -> Bench<'a> {
        Bench {
            source: data.into(),
            configure: Box::new(|builder| builder),
            backends: vec![Backend::Gds, Backend::Uring, Backend::Pread, Backend::PageCache],
            caches: vec![Cache::Cold, Cache::Warm],
            rounds: 5,
            step: Duration::ZERO,
            sweeps: Vec::new(),
            dropping: Dropping::default(),
            fio: true,
            longest: None,
            progress: Box::new(|_| ()),
            stop: Stop::new(),
        }
    }

    /// The settings of every loader: device, batch size, shuffle, depths. Default: those of [`Loader::builder`].
    pub fn loader(mut self, configure: impl Fn(LoaderBuilder) -> LoaderBuilder + 'a) -> Self {
        self.configure = Box::new(configure);
        self
    }

    /// The backends. Default: all but `auto`; those that do not work here are among the report's failures.
    pub fn backends(mut self, backends: &[Backend]) -> Self {
        self.backends = backends.to_vec();
        self
    }

    /// The states of the page cache. Default: cold, then warm.
    pub fn caches(mut self, caches: &[Cache]) -> Self {
        self.caches = caches.to_vec();
        self
    }

    /// How often each backend runs in each state of the cache. Default: 5.
    pub fn rounds(mut self, rounds: u64) -> Self {
        self.rounds = rounds;
        self
    }

    /// A training step, simulated by sleeping so long with each batch in hand; the report then tells accelerator
    /// utilisation. Default: none.
    pub fn step(mut self, step: Duration) -> Self {
        self.step = step;
        self
    }

    /// Runs every backend in every state of the cache with each of these values of one setting, all else the same. May be
    /// called for several settings.
    pub fn sweep(mut self, values: impl IntoIterator<Item = Vary>) -> Self {
        self.sweeps.push(values.into_iter().collect());
        self
    }

    /// Whether, before cold runs, the page cache of the whole machine is emptied too, which only root may. Default: no; then
    /// it is emptied of the dataset's files alone.
    pub fn drop_caches(mut self, drop: bool) -> Self {
        self.dropping.drop_caches = drop;
        self
    }

    /// Whether fio reads the files too, where it is installed. Default: yes.
    pub fn fio(mut self, fio: bool) -> Self {
        self.fio = fio;
        self
    }

    /// The benchmark ends after so long, wherever it is. Default: when it is done.
    pub fn longest(mut self, longest: Duration) -> Self {
        self.longest = Some(longest);
        self
    }

    /// Is told before each measurement how far it is.
    pub fn progress(mut self, progress: impl FnMut(&Progress) + 'a) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// Ends the benchmark when asked to.
    pub fn stop(mut self, stop: &Stop) -> Self {
        self.stop = stop.clone();
        self
    }

    /// Does one run, in this process: makes the cache cold or warm, builds a loader, and goes through an epoch. `since` is when
    /// the program began to work on it.
    ///
    /// # Errors
    /// Why there are no figures.
    pub fn measure(&self, spec: &RunSpec, since: Instant) -> Result<Measured, RunFailure> {
        let data = (&self.source, &*self.configure);
        run::measure(spec, data, (self.step, self.dropping), since, &self.stop)
    }

    /// Measures, with every run in this process.
    ///
    /// # Errors
    /// `InvalidArgument` for settings that make no sense for any backend, or nothing to measure; `Io` if caches are to be
    /// dropped by root, and this is not root. What goes wrong with a backend is in the report.
    pub fn run(mut self) -> Result<BenchReport> {
        let configure = std::mem::replace(&mut self.configure, Box::new(|builder| builder));
        let (source, how) = (self.source.clone(), (self.step, self.dropping));
        self.run_with(&*configure, |spec, stop| {
            run::measure(spec, (&source, &*configure), how, Instant::now(), stop)
        })
    }

    /// Measures, with every run done by `runner`: in another process, say.
    ///
    /// # Errors
    /// As [`run`](Bench::run).
    pub fn run_by(
        mut self,
        runner: impl FnMut(&RunSpec, &Stop) -> Result<Measured, RunFailure>,
    ) -> Result<BenchReport> {
        let configure = std::mem::replace(&mut self.configure, Box::new(|builder| builder));
        self.run_with(&*configure, runner)
    }

    fn run_with(
        mut self,
        configure: &Configure<'_>,
        mut runner: impl FnMut(&RunSpec, &Stop) -> Result<Measured, RunFailure>,
    ) -> Result<BenchReport> {
        self.check(configure)?;
        let (start, started) = (Instant::now(), SystemTime::now());
        if let Some(longest) = self.longest {
            self.stop.stop_at(start + longest);
        }
        let steps = self.steps();
        let mut found = Found::default();
        let mut done = 0;
        let total = steps.len() as u64;
        for step in steps {
            if self.stop.asked() {
                break;
            }
            (self.progress)(&Progress { done, total, next: step.to_string() });
            self.do_step(&step, &mut found, &mut runner);
            if self.stop.asked() {
                break; // whatever ran was cut short, and is not counted as done
            }
            done += 1;
        }
        let interrupted = done < total;
        Ok(self.report(found, interrupted, started, start.elapsed()))
    }

    /// What is wrong with the settings is said before anything is measured.
    fn check(&self, configure: &Configure<'_>) -> Result<()> {
        use crate::Error;
        if self.backends.is_empty() || self.caches.is_empty() || self.rounds == 0 {
            return Err(Error::argument(
                "there is nothing to measure: no backend, no state of the cache, or no round",
            ));
        }
        if self.rounds > MOST_ROUNDS {
            return Err(Error::argument(format!("{} rounds are more than {MOST_ROUNDS}", self.rounds)));
        }
        if self.sweeps.iter().any(|values| values.windows(2).any(|two| two[0].setting() != two[1].setting()))
        {
            return Err(Error::argument("a sweep varies one setting; its values are of several"));
        }
        self.dropping.check()?;
        // A loader that may take no memory comes as far as its settings make sense.
        let builder = configure(Loader::builder(self.source.clone()));
        let builder =
            builder.require_gds(false).backend(Backend::PageCache).device(Device::Host).memory_limit(0);
        match builder.build() {
            Err(error) if error.kind() != ErrorKind::OutOfMemory => Err(error),
            _ => Ok(()),
        }
    }

    /// Everything that is to be measured, in order.
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let spec = |backend: &Backend, cache: &Cache, round, vary| {
            Step::Run(RunSpec { backend: *backend, cache: *cache, round, vary })
        };
        for round in 0..self.rounds {
            // What is warm says nothing about the disk.
            if self.caches.contains(&Cache::Cold) {
                steps.push(Step::Disk);
                steps.extend(self.fio.then_some(Step::Fio));
            }
            for cache in &self.caches {
                steps.extend(self.backends.iter().map(|backend| spec(backend, cache, round, None)));
            }
            if round == 0 {
                steps.push(Step::Link); // which device is known by now
            }
        }
        for values in &self.sweeps {
            for round in 0..self.rounds {
                for cache in &self.caches {
                    for backend in &self.backends {
                        steps.extend(values.iter().map(|vary| spec(backend, cache, round, Some(*vary))));
                    }
                }
            }
        }
        steps
    }

    fn do_step(
        &self,
        step: &Step,
        found: &mut Found,
        runner: &mut impl FnMut(&RunSpec, &Stop) -> Result<Measured, RunFailure>,
    ) {
        let dataset = self.source.dataset();
        let cold = || {
            caches::prepare(dataset, Cache::Cold, self.dropping, &self.stop)
                .map_err(|error| run::in_full(&error))
        };
        match step {
            Step::Disk => match cold().and_then(|()| disk::read_all(dataset, &self.stop)) {
                _ if self.stop.asked() => {}
                Ok(reading) => found.disk.push(reading),
                Err(why) => found.remark(format!("The disk's limit was not measured: {why}.")),
            },
            Step::Fio if caches::in_memory(dataset).is_some() => {}
            Step::Fio if dataset.opener.has_root() => {
                found.remark("fio was not measured: it opens files by their names, below no root.".into());
            }
            Step::Fio => match cold().and_then(|()| fio::read_all(dataset, &self.stop)) {
                _ if self.stop.asked() => {}
                Ok(reading) => found.fio.push(reading),
                Err(why) => found.remark(format!("fio was not measured: {why}.")),
            },
            Step::Link => {
                let settings = found.settings.as_ref();
                let device = settings.and_then(|it| it.device.split(',').next()?.parse().ok());
                let Some(device @ Device::Cuda(ordinal)) = device else { return };
                match link::copy(ordinal, self.rounds.min(5), &self.stop) {
                    Ok(readings) => found.limits.link = disk::limit(link::method(device), &readings),
                    Err(error) => {
                        found.remark(format!("The link was not measured: {}.", run::in_full(&error)))
                    }
                }
            }
            Step::Run(spec) => {
                if found.gave_up(spec) {
                    return;
                }
                let outcome = runner(spec, &self.stop);
                found.take(spec, outcome, dataset.fingerprint(), &self.stop);
            }
        }
    }

    fn report(
        &self,
        mut found: Found,
        interrupted: bool,
        started: SystemTime,
        took: Duration,
    ) -> BenchReport {
        let dataset = self.source.dataset();
        found.limits.disk = disk::limit(disk::method(), &found.disk);
        found.limits.fio = disk::limit(fio::method(), &found.fio);
        summary::hold_against(&mut found.runs, &found.limits);
        for (_, run) in &mut found.varied {
            summary::hold_against(std::slice::from_mut(run), &found.limits);
        }
        let mut settings = found.settings.take().unwrap_or_default();
        settings.rounds = self.rounds;
        settings.step_ms = self.step.as_secs_f64() * 1e3;
        if self.caches.contains(&Cache::Cold) {
            settings.caches_dropped_by = self.dropping.names();
        }
        let mut machine = machine::describe(dataset);
        let devices: Vec<Device> = settings.device.split(',').filter_map(|name| name.parse().ok()).collect();
        machine.gpus = machine::gpus(&devices);
        let mut report = BenchReport {
            version: 1,
            started: started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            took_seconds: took.as_secs_f64(),
            interrupted,
            command: Vec::new(),
            machine,
            data: self.data(),
            settings,
            summary: summary::of(&found.runs, &found.limits),
            sweeps: self.sweeps(&found),
            limits: found.limits,
            runs: found.runs,
            failures: found.failures,
            conclusion: Vec::new(),
        };
        report.conclusion = conclusion::of(&report);
        report.conclusion.extend(found.remarks);
        report
    }

    fn data(&self) -> DataInfo {
        let dataset = self.source.dataset();
        let mut formats: Vec<&str> = dataset.columns().iter().map(|column| column.format().name()).collect();
        formats.dedup();
        let folder = dataset.files().first().and_then(|shard| shard.path().parent());
        DataInfo {
            path: folder.map(|folder| folder.display().to_string()).unwrap_or_default(),
            format: formats.join(", "),
            shards: dataset.files().len() as u64,
            samples: dataset.len(),
            sample_bytes: dataset.sample_bytes(),
            payload_bytes: dataset.payload_bytes(),
            fingerprint: dataset.fingerprint().into(),
        }
    }

    fn sweeps(&self, found: &Found) -> Vec<Sweep> {
        let mut sweeps = Vec::new();
        for values in self.sweeps.iter().filter(|values| !values.is_empty()) {
            for cache in &self.caches {
                for backend in &self.backends {
                    let points = values.iter().filter_map(|vary| found.point(*backend, *cache, *vary));
                    let points: Vec<_> = points.collect();
                    if !points.is_empty() {
                        let setting = values[0].setting().into();
                        sweeps.push(Sweep { setting, backend: backend.name().into(), cache: *cache, points });
                    }
                }
            }
        }
        sweeps
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Disk => f.write_str("the disk's limit"),
            Step::Fio => f.write_str("fio"),
            Step::Link => f.write_str("the link"),
            Step::Run(spec) => {
                let cache = match spec.cache {
                    Cache::Cold => "cold",
                    Cache::Warm => "warm",
                };
                write!(f, "{} {cache}, round {}", spec.backend, spec.round + 1)?;
                match spec.vary {
                    Some(vary) => write!(f, ", {} {vary}", vary.setting()),
                    None => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) fn empty_report() -> BenchReport {
    use super::report::{Limits, Machine, Settings};

    BenchReport {
        version: 1,
        started: 0,
        took_seconds: 0.0,
        interrupted: false,
        command: Vec::new(),
        machine: Machine::default(),
        data: DataInfo::default(),
        settings: Settings::default(),
        limits: Limits::default(),
        runs: Vec::new(),
        summary: Vec::new(),
        failures: Vec::new(),
        sweeps: Vec::new(),
        conclusion: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::report::{Run, Settings};
    use super::*;
    use crate::Dataset;

    fn digits() -> Dataset {
        Dataset::open(concat!(env!("CARGO_MANIFEST_DIR"), "/datasets/digits")).unwrap()
    }

    /// A runner that measures nothing, and writes down what it was asked for.
    fn answer(spec: &RunSpec) -> Measured {
        let run = Run {
            backend: spec.backend.name().into(),
            cache: spec.cache,
            round: spec.round,
            ..summary::tests::run()
        };
        Measured { run, settings: Settings::default(), fingerprint: digits().fingerprint().into() }
    }

    #[test]
    fn backends_take_turns_and_one_that_failed_is_not_tried_again() {
        let asked = RefCell::new(Vec::new());
        let bench = Bench::new(digits())
            .backends(&[Backend::Uring, Backend::Gds, Backend::Pread])
            .caches(&[Cache::Cold])
            .rounds(2)
            .fio(false);
        let report = bench
            .run_by(|spec, _| {
                asked.borrow_mut().push((spec.backend, spec.round));
                match spec.backend {
                    Backend::Gds => Err(RunFailure::Setup("no GPU".into())),
                    Backend::Pread if spec.round == 1 => Err(RunFailure::Epoch("a bad block".into())),
                    _ => Ok(answer(spec)),
                }
            })
            .unwrap();
        use Backend::{Gds, Pread, Uring};
        assert_eq!(*asked.borrow(), [(Uring, 0), (Gds, 0), (Pread, 0), (Uring, 1), (Pread, 1)]);
        assert!(!report.interrupted);
        let failures: Vec<_> =
            report.failures.iter().map(|it| (&*it.backend, it.cache, &*it.error)).collect();
        assert_eq!(failures, [("gds", None, "no GPU"), ("pread", Some(Cache::Cold), "a bad block")]);
        let counts: Vec<_> =
            report.summary.iter().map(|it| (&*it.backend, it.gib_per_s.unwrap().count)).collect();
        assert_eq!(counts, [("uring", 2), ("pread", 1)]);
    }

    #[test]
    fn an_end_in_the_middle_keeps_what_there_is() {
        let stop = Stop::new();
        let bench = Bench::new(digits()).backends(&[Backend::Pread]).rounds(5).fio(false).stop(&stop);
        let report = bench
            .run_by(|spec, stop| match spec.round {
                0 => Ok(answer(spec)),
                _ => {
                    stop.stop();
                    Err(RunFailure::Stopped)
                }
            })
            .unwrap();
        assert_eq!((report.interrupted, report.runs.len(), report.failures.len()), (true, 2, 0));
    }

    #[test]
    fn data_that_became_other_data_is_a_failure() {
        let other = |spec: &RunSpec, _: &Stop| Ok(Measured { fingerprint: "other".into(), ..answer(spec) });
        let report =
            Bench::new(digits()).backends(&[Backend::Pread]).rounds(1).fio(false).run_by(other).unwrap();
        assert!(report.runs.is_empty() && report.failures[0].error.contains("another one"));
    }

    #[test]
    fn runs_in_this_process_tell_the_same_things() {
        let bench = Bench::new(digits()).backends(&[Backend::PageCache]).rounds(1).fio(false);
        let report = bench.loader(|loader| loader.batch_size(100)).run().unwrap();
        assert_eq!(report.runs.len(), 2);
        for run in &report.runs {
            assert_eq!((run.samples, run.bytes), (1700, 1700 * 65));
            assert!(run.peak_rss_bytes > run.device_bytes);
        }
        assert_eq!(report.settings.batch_size, 100);
        let nothing = Bench::new(digits()).backends(&[]).run().unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::InvalidArgument);
        let mixed = Bench::new(digits()).sweep([Vary::QueueDepth(1), Vary::Prefetch(1)]).run().unwrap_err();
        assert_eq!(mixed.kind(), ErrorKind::InvalidArgument);
    }
}
