//! `gpufeed bench`: the backends side by side on the user's own data.

mod csv;
mod file;
mod text;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use gpufeed::measure::{self, BenchReport, Cache, Measured, RunFailure, RunSpec, Stop, Vary};
use gpufeed::{Backend, Shuffle};
use indicatif::{ProgressBar, ProgressStyle};

use crate::interrupt::Recording;
use crate::loading::{Found, LoaderArgs};
use crate::options::{DatasetArgs, WrongArguments, parse_size};
use crate::{interrupt, output};
use file::ReportFile;

#[derive(Debug, Args)]
#[command(mut_arg("backend", |arg| arg.hide(true)), mut_arg("epochs", |arg| arg.hide(true)))]
pub(crate) struct Bench {
    #[command(flatten)]
    dataset: DatasetArgs,
    /// The backends, in this order: gds, uring, pread, page-cache, auto. [default: all but auto]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    backends: Vec<Backend>,
    /// Whether the data is in the page cache before a run.
    #[arg(long, value_enum, default_value_t = CacheArg::Both)]
    cache: CacheArg,
    /// Runs of each backend and state of the cache.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Simulate a training step that takes so many milliseconds for each batch, and tell accelerator utilisation.
    #[arg(long, value_name = "X", value_parser = parse_ms)]
    step_ms: Option<f64>,
    /// Run everything with each of these values of one setting as well: io-bytes, queue-depth, batch-size, prefetch or
    /// shuffle, as in io-bytes=64KiB,256KiB,1MiB. May be repeated.
    #[arg(long, value_name = "SETTING=A,B", value_parser = parse_sweep)]
    sweep: Vec<SweepArg>,
    /// Empty the page cache of the whole machine before cold runs, too. For root.
    #[arg(long)]
    drop_caches: bool,
    /// Do not run fio.
    #[arg(long)]
    no_fio: bool,
    /// End after so many seconds, with what was measured until then.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_seconds: Option<u64>,
    /// Write every run to this file, one a line, for spreadsheets.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the report to this file as a page with plots, which stands alone.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Do this one run, and print what it found: how the benchmark calls itself.
    #[arg(long, hide = true, value_name = "SPEC", value_parser = parse_spec)]
    one_run: Option<RunSpec>,
    // Last, since its headings go for whatever comes after them.
    #[command(flatten)]
    loader: LoaderArgs,
}

/// What makes a file of a report.
type Render = fn(&BenchReport) -> String;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CacheArg {
    Cold,
    Warm,
    Both,
}

/// A setting and its values, as they were written.
#[derive(Debug, Clone)]
struct SweepArg(Vec<Value>);

#[derive(Debug, Clone)]
enum Value {
    Known(Vary),
    /// How large blocks are is known when the dataset is.
    Blocks,
}

impl Bench {
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        let since = Instant::now();
        if self.loader.epochs != 1 {
            return Err(WrongArguments("each run is one epoch; --rounds says how many runs".into()).into());
        }
        if self.backends.is_empty() && self.loader.backend != Backend::Auto {
            self.backends = vec![self.loader.backend];
        }
        let found = self.loader.find(&self.dataset, &self.loader.rank()?)?;
        match &self.one_run {
            Some(spec) => self.one_run(spec, &found, since),
            None => self.all(&found),
        }
    }

    /// The child's part: one run, by the same flags.
    fn one_run(&self, spec: &RunSpec, found: &Found, since: Instant) -> anyhow::Result<()> {
        // The parent may be killed, and nobody would read the answer.
        // SAFETY: takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let stop = Stop::new();
        stops(&stop);
        let answer = self.bench(found, &stop)?.measure(spec, since);
        output::json(&serde_json::to_value(answer)?)
    }

    fn all(&self, found: &Found) -> anyhow::Result<()> {
        // What cannot be written is said before anything is measured.
        let mut files: Vec<(ReportFile, Render)> = Vec::new();
        for (path, render) in [(&self.csv, csv::table as Render), (&self.html, measure::render_html)] {
            if let Some(path) = path {
                files.push((ReportFile::open(path, &self.dataset.path)?, render));
            }
        }
        let stop = Stop::new();
        let _recording = Recording::begin(); // what was measured is told, whatever ends it
        stops(&stop);
        let progress = progress_bar();
        let bench = self.bench(found, &stop)?.progress(|step| {
            progress.set_length(step.total);
            progress.set_position(step.done);
            progress.set_message(step.next.clone());
        });
        let outcome = bench.run_by(run_in_child);
        progress.finish_and_clear();
        let mut report = outcome?;
        report.command = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        report.data.path = self.dataset.path.display().to_string();
        self.tell(&report, files)
    }

    fn bench<'a>(&'a self, found: &'a Found, stop: &Stop) -> anyhow::Result<measure::Bench<'a>> {
        let mut bench = measure::Bench::new(found.source.clone())
            .loader(|builder| self.loader.apply(found, builder))
            .rounds(self.rounds)
            .caches(match self.cache {
                CacheArg::Cold => &[Cache::Cold],
                CacheArg::Warm => &[Cache::Warm],
                CacheArg::Both => &[Cache::Cold, Cache::Warm],
            })
            .step(Duration::from_secs_f64(self.step_ms.unwrap_or(0.0) / 1e3))
            .drop_caches(self.drop_caches)
            .fio(!self.no_fio)
            .stop(stop);
        if !self.backends.is_empty() {
            bench = bench.backends(&self.backends);
        }
        if let Some(seconds) = self.max_seconds.filter(|_| self.one_run.is_none()) {
            bench = bench.longest(Duration::from_secs(seconds));
        }
        for SweepArg(values) in &self.sweep {
            bench = bench.sweep(values.iter().map(|value| match value {
                Value::Known(vary) => *vary,
                Value::Blocks => Vary::Shuffle(Shuffle::blocks_of(found.sample_bytes)),
            }));
        }
        Ok(bench)
    }

    /// Files first: whatever becomes of them, the report is printed.
    fn tell(&self, report: &BenchReport, files: Vec<(ReportFile, Render)>) -> anyhow::Result<()> {
        let written: Vec<_> = files.into_iter().map(|(file, render)| file.write(&render(report))).collect();
        if self.json {
            output::json(&serde_json::to_value(report)?)?;
        } else {
            print!("{}", text::of(report));
        }
        written.into_iter().collect::<anyhow::Result<()>>()?;
        if report.runs.is_empty() && !report.interrupted {
            let errors: Vec<_> =
                report.failures.iter().map(|it| format!("{}: {}", it.backend, it.error)).collect();
            return Err(anyhow!("no backend could be measured: {}", errors.join("; ")));
        }
        if interrupt::interrupted() {
            return Err(anyhow!("interrupted"));
        }
        Ok(())
    }
}

fn stops(stop: &Stop) {
    let stop = stop.clone();
    interrupt::calls(move || stop.stop());
}

/// Has this program do one run in a process of its own, by the same arguments.
fn run_in_child(spec: &RunSpec, stop: &Stop) -> Result<Measured, RunFailure> {
    let spec = serde_json::to_string(spec).map_err(|error| RunFailure::Setup(error.to_string()))?;
    // This very program, even if its file has been replaced by now.
    let mut command = Command::new("/proc/self/exe");
    command.args(std::env::args_os().skip(1).chain([OsString::from(format!("--one-run={spec}"))]));
    measure::run_in_child(command, stop)
}

/// To standard error, and hidden where that is no terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn parse_spec(text: &str) -> Result<RunSpec, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn parse_ms(text: &str) -> Result<f64, String> {
    let parsed = text.parse().ok().filter(|ms: &f64| *ms > 0.0 && *ms <= 3.6e6);
    parsed.ok_or_else(|| format!("{text:?} is not a number of milliseconds, above 0 and up to an hour"))
}

/// `io-bytes=64KiB,256KiB`.
fn parse_sweep(text: &str) -> Result<SweepArg, String> {
    let (setting, values) = text.split_once('=').ok_or_else(|| format!("{text:?} is not SETTING=A,B"))?;
    fn number<N: FromStr>(text: &str) -> Result<N, String> {
        text.parse().map_err(|_| format!("{text:?} is not a number that fits"))
    }
    let value = |text: &str| -> Result<Value, String> {
        Ok(Value::Known(match setting {
            "io-bytes" => Vary::IoBytes(parse_size(text)?),
            "queue-depth" => Vary::QueueDepth(number(text)?),
            "batch-size" => Vary::BatchSize(number(text)?),
            "prefetch" => Vary::Prefetch(number(text)?),
            "shuffle" if text == "blocks" => return Ok(Value::Blocks),
            "shuffle" => Vary::Shuffle(text.parse().map_err(|error: gpufeed::Error| error.to_string())?),
            _ => {
                let known = "io-bytes, queue-depth, batch-size, prefetch, shuffle";
                return Err(format!("unknown setting {setting:?}; known are {known}"));
            }
        }))
    };
    values.split(',').map(value).collect::<Result<_, _>>().map(SweepArg)
}
