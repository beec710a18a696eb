//! `gpufeed load`: epochs of a dataset, through the loader.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use clap::Args;
use gpufeed::{Batch, ColumnView, Dtype, Error, FileSystem, Loader, LoaderStats, Rank, Stage, State, Wait};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::interrupt::Recording;
use crate::loading::{LoaderArgs, Tune};
use crate::options::{DatasetArgs, WrongArguments};
use crate::watch::Watcher;
use crate::{interrupt, output, ranked};

#[derive(Debug, Args)]
pub(crate) struct Load {
    #[command(flatten)]
    dataset: DatasetArgs,
    /// SHA-256 over the delivered sample bytes, in the order of delivery, over all epochs. A sample's bytes are
    /// those of its columns, one after the other.
    #[arg(long)]
    digest: bool,
    /// Write the delivered sample numbers to this file, one a line. With several ranks write {rank} into the path, which
    /// stands for the number of the rank.
    #[arg(long, value_name = "FILE")]
    order_out: Option<PathBuf>,
    /// Print the first N batches: their samples and the first values of each column.
    #[arg(long, value_name = "N", default_value_t = 0)]
    show: u64,
    /// Go on from the state in this file, which --state-out wrote; all ranks from the same. World size and batch size may
    /// be others than they were.
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Write the state of the run to this file when it begins, and when it ends, is interrupted, or fails. With {rank} in the path, which stands
    /// for the number of the rank, each rank writes its own, and the one at the smallest position counts what all have
    /// delivered. Without it rank 0 alone writes, and what others had not reached by then would not come.
    #[arg(long, value_name = "FILE")]
    state_out: Option<PathBuf>,
    /// Write it after every N batches as well.
    #[arg(long, value_name = "N", requires = "state_out", value_parser = clap::value_parser!(u64).range(1..))]
    state_every: Option<u64>,
    /// Write what every stage did when, for Chrome's about:tracing or Perfetto, to this file.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write how long the stages take, and what the run waits for, to this file as text for Prometheus: every 5 seconds, and
    /// at the end.
    #[arg(long, value_name = "FILE")]
    metrics_out: Option<PathBuf>,
    /// First find the I/O size, queue depth and backend that read this dataset fastest, cold, and remember them for this disk
    /// (in the cache folder of the user, for later runs). Takes up to a minute.
    #[arg(long, conflicts_with = "no_tuning")]
    tune: bool,
    /// Do not use what --tune found before.
    #[arg(long)]
    no_tuning: bool,
    /// End after N batches, wherever the epoch is.
    #[arg(long, value_name = "N")]
    max_batches: Option<u64>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    // Last, since its headings go for whatever comes after them.
    #[command(flatten)]
    loader: LoaderArgs,
}

/// Where what was delivered goes, and how far that has come.
struct Sinks {
    digest: Option<Sha256>,
    order: Option<(PathBuf, BufWriter<File>)>,
    state: State,
    state_out: Option<PathBuf>,
    /// Memory to use again.
    buffers: Vec<Vec<u8>>,
}

impl Sinks {
    /// Takes note of a batch.
    fn take(&mut self, batch: &Batch) -> anyhow::Result<()> {
        if let Some(digest) = &mut self.digest {
            hash(digest, batch, &mut self.buffers)?;
        }
        if let Some((path, order)) = &mut self.order {
            for sample in batch.samples() {
                writeln!(order, "{sample}").map_err(|e| Error::io(path, "cannot write", e))?;
            }
        }
        self.state = batch.state();
        Ok(())
    }

    /// Writes out what is known: first the order, so that it has all that the state counts.
    fn keep(&mut self) -> anyhow::Result<()> {
        if let Some((path, order)) = &mut self.order {
            order.flush().map_err(|e| Error::io(path, "cannot write", e))?;
        }
        match &self.state_out {
            Some(path) => Ok(self.state.write(path)?),
            None => Ok(()),
        }
    }
}

/// What the last words of an interrupted run have to get at.
type Shared = Arc<Mutex<Sinks>>;

fn lock(sinks: &Shared) -> MutexGuard<'_, Sinks> {
    sinks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[derive(Debug, Default)]
struct Totals {
    samples: u64,
    batches: u64,
    bytes: u64,
    seconds: f64,
    cpu_seconds: f64,
    /// Of these, what went before the first epoch: opening, indexing, memory, drivers.
    setup_seconds: f64,
    setup_cpu_seconds: f64,
}

impl Load {
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        let rank = self.loader.rank()?;
        let tune = match (self.tune, self.no_tuning) {
            (true, _) => Tune::Found(self.loader.tune(&self.dataset, &rank)?),
            (false, true) => Tune::Never,
            _ => Tune::Remembered,
        };
        // The clock includes opening files, allocating memory and starting threads: a user waits for those too.
        let (start, cpu_start) = (Instant::now(), output::cpu_seconds());
        self.settle_files(&rank)?;
        let resume = self.resume.as_ref().map(State::read).transpose()?;
        let (mut loader, tuning) =
            self.loader.build(&self.dataset, &rank, resume, (self.trace.is_some(), tune))?;
        interrupt::stops(loader.stop_handle());

        let mut totals = Totals {
            setup_seconds: start.elapsed().as_secs_f64(),
            setup_cpu_seconds: output::cpu_seconds() - cpu_start,
            ..Totals::default()
        };
        let order = match &self.order_out {
            Some(path) => {
                let file = File::create(path).map_err(|e| Error::io(path, "cannot create it", e))?;
                Some((path.clone(), BufWriter::new(file)))
            }
            None => None,
        };
        let sinks: Shared = Arc::new(Mutex::new(Sinks {
            digest: self.digest.then(Sha256::new),
            order,
            state: loader.state(),
            state_out: self.state_out.clone(),
            buffers: Vec::new(),
        }));
        // A place that cannot be written to is told now, and not when the work is done.
        lock(&sinks).keep()?;
        let last = Arc::clone(&sinks);
        interrupt::last_words(move || {
            if let Err(error) = lock(&last).keep() {
                eprintln!("error: {error:#}");
            }
        });
        let recording = (self.order_out.is_some() || self.state_out.is_some()).then(Recording::begin);
        let progress = self.progress(&loader);
        let watcher = self.watch(&loader, &progress);
        let outcome = self.epochs(&mut loader, &mut totals, &sinks, &progress);
        let watched = watcher.end();
        progress.finish_and_clear();
        // Whatever ended the run, what was delivered is on record.
        let kept = lock(&sinks).keep();
        drop(recording);
        if let (Err(_), Err(error)) = (&outcome, &kept) {
            // What ended the run decides how it exits; that the state is lost must be known all the same.
            eprintln!("error: {error:#}");
        }
        outcome?;
        kept?;
        watched?;
        if let (Some(path), Some(trace)) = (&self.trace, loader.trace_json()) {
            std::fs::write(path, trace).map_err(|e| Error::io(path, "cannot write the trace", e))?;
        }
        totals.seconds = start.elapsed().as_secs_f64();
        totals.cpu_seconds = output::cpu_seconds() - cpu_start;
        let mut sinks = lock(&sinks);
        let (state, digest) = (sinks.state.clone(), sinks.digest.take().map(|it| hex(&it.finalize())));
        drop(sinks);
        if self.json {
            let mut all = self.as_json(&loader, &totals, &state, digest);
            all["tuning"] = serde_json::to_value(&tuning)?;
            output::json(&all)
        } else {
            self.as_text(&loader, &totals, &state, digest);
            Ok(())
        }
    }

    /// Settles which files this rank writes, so that no two ranks write one. Those that a launcher started have one
    /// command line; by hand each has its own, and the paths in it are meant as they are.
    fn settle_files(&mut self, rank: &Rank) -> anyhow::Result<()> {
        let by_hand = rank.world_size() == 1 || self.loader.rank_by_hand();
        let shared = |path: &PathBuf| !by_hand && !ranked::names_rank(path);
        if let Some(path) = self.order_out.as_ref().filter(|path| shared(path)) {
            return Err(WrongArguments(format!(
                "--order-out {0}: all {1} ranks would write this file, each over what the others wrote; write {{rank}} \
                 where the number of the rank is to be, as in {0}.{{rank}}",
                path.display(),
                rank.world_size()
            ))
            .into());
        }
        if let Some(path) = self.resume.as_ref().filter(|path| ranked::names_rank(path)) {
            return Err(WrongArguments(format!(
                "--resume {}: all ranks go on from one state; of those that ranks have written it is the one at the \
                 smallest position",
                path.display()
            ))
            .into());
        }
        if let Some(path) = self.state_out.as_ref().filter(|path| shared(path)) {
            match rank.rank() {
                0 => eprintln!(
                    "note: rank 0 alone writes the state to {0}; as {0}.{{rank}} each rank would write its own",
                    path.display()
                ),
                _ => self.state_out = None,
            }
        }
        for path in [&mut self.order_out, &mut self.state_out].into_iter().flatten() {
            *path = ranked::path_of(path, rank.rank());
        }
        Ok(())
    }

    /// Goes through the epochs, from where the loader stands on.
    fn epochs(
        &self,
        loader: &mut Loader,
        totals: &mut Totals,
        sinks: &Shared,
        progress: &ProgressBar,
    ) -> anyhow::Result<()> {
        let most = self.max_batches.unwrap_or(u64::MAX);
        while loader.state().epoch() < self.loader.epochs && totals.batches < most {
            for batch in loader.next_epoch()? {
                let batch = batch?;
                if totals.batches < self.show {
                    progress.suspend(|| self.print(&batch))?;
                }
                let bytes: usize = batch.columns().map(|column| column.size_bytes()).sum();
                totals.samples += batch.len() as u64;
                totals.batches += 1;
                totals.bytes += bytes as u64;
                progress.inc(bytes as u64);
                // Not held while the next batch is waited for.
                let mut sinks = lock(sinks);
                sinks.take(&batch)?;
                if self.state_every.is_some_and(|every| totals.batches.is_multiple_of(every)) {
                    sinks.keep()?;
                }
                if totals.batches == most {
                    break;
                }
            }
            // An epoch without a batch has gone by too.
            if totals.batches < most {
                lock(sinks).state = loader.state();
            }
        }
        Ok(())
    }

    /// Starts to tell, again and again, what the run waits for: in the line of progress, and as metrics.
    fn watch(&self, loader: &Loader, progress: &ProgressBar) -> Watcher {
        let rank = loader.rank().rank().to_string();
        Watcher::start(loader.stats_handle(), progress.clone(), self.metrics_out.clone(), rank)
    }

    fn progress(&self, loader: &Loader) -> ProgressBar {
        let epochs = self.loader.epochs.saturating_sub(loader.state().epoch());
        let bytes = loader.samples_per_epoch().saturating_mul(loader.dataset().sample_bytes());
        let bytes = bytes.saturating_mul(epochs);
        let bar = ProgressBar::new(bytes); // to standard error, and hidden where that is no terminal
        let style = ProgressStyle::with_template(
            "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} {msg}",
        );
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }

    fn print(&self, batch: &Batch) -> gpufeed::Result<()> {
        let mut text = format!(
            "epoch {} batch {}: {} samples: {}\n",
            batch.epoch(),
            batch.index(),
            batch.len(),
            few(batch.samples().iter(), batch.len())
        );
        for column in batch.columns() {
            let (name, dtype, shape) = (column.name(), column.dtype(), column.shape());
            text += &format!("  {name:8} {dtype} {shape:?}: {}\n", values(&column)?);
        }
        if self.json {
            eprint!("{text}");
        } else {
            print!("{text}");
        }
        Ok(())
    }

    fn as_json(&self, loader: &Loader, totals: &Totals, state: &State, digest: Option<String>) -> Value {
        let (report, memory) = (loader.report(), loader.memory());
        let (gb_per_s, gib_per_s) = output::rates(totals.bytes, totals.seconds);
        let ways: Map<String, Value> =
            report.bytes_by_way.iter().map(|(way, bytes)| (way.name().into(), bytes.into())).collect();
        let not_direct: Vec<_> = report
            .not_direct
            .iter()
            .map(|it| json!({ "reason": it.reason, "first": it.first.display().to_string(), "files": it.files }))
            .collect();
        let passed_over: Vec<_> = report
            .passed_over
            .iter()
            .map(|it| json!({ "backend": it.backend.name(), "reason": it.reason }))
            .collect();
        let bad_samples: Vec<_> = report
            .bad_samples
            .iter()
            .map(|it| {
                let path = it.path.display().to_string();
                json!({ "sample": it.sample, "column": it.column, "path": path, "record": it.record, "reason": it.reason })
            })
            .collect();
        let devices: Vec<_> = report.devices.iter().map(|device| device.to_string()).collect();
        let devices = devices.join(",");
        let drives: Vec<_> =
            report.drives.iter().map(|it| json!({ "device": it.device, "files": it.files })).collect();
        let mut all = json!({
            "samples": totals.samples,
            "batches": totals.batches,
            "bytes": totals.bytes,
            "seconds": totals.seconds,
            "gb_per_s": gb_per_s,
            "gib_per_s": gib_per_s,
            "cpu_seconds": totals.cpu_seconds,
            "setup_seconds": totals.setup_seconds,
            "setup_cpu_seconds": totals.setup_cpu_seconds,
            "peak_rss_bytes": output::peak_rss_bytes(),
            "pinned_bytes": memory.pinned_bytes,
            "device_bytes": memory.device_bytes,
            "device": devices,
            "device_reason": report.device_reason,
            "backend": report.backend.name(),
            "backend_reason": report.backend_reason,
            "gds_route": report.gds_route.map(|route| route.name()),
            "passed_over": passed_over,
            "file_systems": report.file_systems.iter().map(file_system).collect::<Vec<_>>(),
            "queue_depth": loader.queue_depth(),
            "drives": drives,
            "polling": {
                "used": report.polling.used,
                "reads": report.polling.reads,
                "reason": report.polling.reason,
            },
            "not_direct": not_direct,
            "waits_for": loader.stats().map(|stats| stats.bottleneck().name()),
            "stages": loader.stats().map(|stats| stages(&stats)),
            "bad_samples": bad_samples,
            "notes": report.notes,
            "bytes_by_way": ways,
            "bytes_read": report.bytes_read,
            "epochs": self.loader.epochs,
            "rank": loader.rank().rank(),
            "world_size": loader.rank().world_size(),
            "launcher": loader.rank().launcher().map(|launcher| launcher.name()),
            "agreement": loader.agreement().to_string(),
            "state": state,
        });
        if let Some(digest) = digest {
            all["digest"] = digest.into();
        }
        all
    }

    fn as_text(&self, loader: &Loader, totals: &Totals, state: &State, digest: Option<String>) {
        let (report, memory) = (loader.report(), loader.memory());
        let (gb_per_s, gib_per_s) = output::rates(totals.bytes, totals.seconds);
        println!(
            "{} samples in {} batches over {} epochs: {} in {:.3} s, {gb_per_s:.3} GB/s ({gib_per_s:.3} GiB/s), {:.3} CPU s",
            totals.samples,
            totals.batches,
            self.loader.epochs,
            output::size(totals.bytes),
            totals.seconds,
            totals.cpu_seconds
        );
        if loader.rank().world_size() > 1 {
            println!("{}, agreement {}", loader.rank(), loader.agreement());
        }
        if state.position() > 0 {
            println!("stands at position {} of epoch {}", state.position(), state.epoch());
        }
        let devices: Vec<_> = report.devices.iter().map(|device| device.to_string()).collect();
        println!("device {}: {}", devices.join(","), report.device_reason);
        println!("backend {}: {}", report.backend, report.backend_reason);
        if let Some(route) = report.gds_route {
            println!("cuFile goes by {}, as its driver's properties say", route.name());
        }
        if report.drives.len() > 1 {
            let drives: Vec<_> =
                report.drives.iter().map(|it| format!("{} ({} files)", it.device, it.files)).collect();
            println!("drives: {}; up to {} reads in flight on each", drives.join(", "), loader.queue_depth());
        }
        let polled = if report.polling.used { "yes" } else { "no" };
        println!("polled for: {polled}: {}", report.polling.reason);
        for it in &report.passed_over {
            println!("passed over: {}: {}", it.backend, it.reason);
        }
        let ways: Vec<_> = report
            .bytes_by_way
            .iter()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(way, bytes)| format!("{} by {}", output::size(bytes), way.name()))
            .collect();
        println!("read: {}; {} with alignment", ways.join(", "), output::size(report.bytes_read));
        for it in &report.file_systems {
            println!("filesystem {it}: {} files; {}", it.files, it.gds.reason);
        }
        for it in &report.not_direct {
            println!(
                "not direct: {} of {} files: {} (first: {})",
                it.files,
                loader.dataset().files().len(),
                it.reason,
                it.first.display()
            );
        }
        if let Some(stats) = loader.stats() {
            let reads = stats.stage(Stage::Read);
            println!(
                "it waited for {}; reads took {:.0} us (half), {:.0} us (99 of 100), {:.1} in flight",
                stats.bottleneck(),
                reads.p50.as_secs_f64() * 1e6,
                reads.p99.as_secs_f64() * 1e6,
                stats.occupancy(Stage::Read)
            );
        }
        for it in &report.bad_samples {
            println!(
                "skipped: sample {} (record {} of {}): {}",
                it.sample,
                it.record,
                it.path.display(),
                it.reason
            );
        }
        for note in &report.notes {
            println!("note: {note}");
        }
        println!(
            "memory: ring {}, staging {}, peak resident {}",
            output::size(memory.device_bytes),
            output::size(memory.pinned_bytes),
            output::size(output::peak_rss_bytes())
        );
        if let Some(digest) = digest {
            println!("sha256 of the samples as delivered: {digest}");
        }
    }
}

/// What files lie on, for scripts.
fn file_system(it: &FileSystem) -> Value {
    let devices: Vec<_> = it
        .devices
        .iter()
        .map(|device| json!({ "name": device.name, "kind": device.kind.to_string() }))
        .collect();
    json!({
        "kind": it.kind,
        "mount_point": it.mount_point.display().to_string(),
        "source": it.source,
        "transport": it.transport,
        "options": it.options,
        "read_only": it.read_only,
        "devices": devices,
        "files": it.files,
        "gds": { "possible": it.gds.possible, "reason": it.gds.reason },
    })
}

/// What the stages took, for scripts.
fn stages(stats: &LoaderStats) -> Value {
    let of = |stage: Stage| {
        let it = stats.stage(stage);
        json!({
            "count": it.count,
            "seconds": it.total.as_secs_f64(),
            "p50_seconds": it.p50.as_secs_f64(),
            "p99_seconds": it.p99.as_secs_f64(),
            "max_seconds": it.max.as_secs_f64(),
            "occupancy": stats.occupancy(stage),
        })
    };
    let mut all: Map<String, Value> =
        Stage::ALL.into_iter().map(|stage| (stage.name().to_string(), of(stage))).collect();
    let waits: Map<String, Value> = Wait::ALL
        .into_iter()
        .map(|wait| (wait.name().into(), stats.waited_for(wait).as_secs_f64().into()))
        .collect();
    all.insert("waited_seconds".into(), waits.into());
    all.into()
}

/// Adds a batch's samples, each with its columns one after the other, so that the size of batches does not matter.
/// `buffers` is memory to use again.
fn hash(digest: &mut Sha256, batch: &Batch, buffers: &mut Vec<Vec<u8>>) -> gpufeed::Result<()> {
    let columns: Vec<_> = batch.columns().collect();
    buffers.resize_with(columns.len(), Vec::new);
    let mut values = Vec::with_capacity(columns.len());
    for (column, buffer) in columns.iter().zip(buffers) {
        values.push(match column.device_ptr() {
            None => column.bytes()?,
            Some(_) => {
                column.copy_to_host(buffer)?;
                buffer.as_slice()
            }
        });
    }
    if let [only] = values[..] {
        digest.update(only);
        return Ok(());
    }
    for row in 0..batch.len() {
        for bytes in &values {
            let size = bytes.len() / batch.len();
            digest.update(&bytes[row * size..(row + 1) * size]);
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The first of `all` values.
fn few(values: impl Iterator<Item = impl std::fmt::Display>, all: usize) -> String {
    const SHOWN: usize = 16;
    let mut shown: Vec<_> = values.take(SHOWN).map(|value| value.to_string()).collect();
    if all > SHOWN {
        shown.push("...".into());
    }
    shown.join(" ")
}

fn values(column: &ColumnView<'_>) -> gpufeed::Result<String> {
    fn list<T: bytemuck::AnyBitPattern + std::fmt::Display>(bytes: &[u8]) -> String {
        let values = bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned::<T>);
        few(values, bytes.len() / size_of::<T>())
    }
    let mut bytes = Vec::new();
    column.copy_to_host(&mut bytes)?;
    Ok(match column.dtype() {
        Dtype::U8 | Dtype::Bool => list::<u8>(&bytes),
        Dtype::I8 => list::<i8>(&bytes),
        Dtype::U16 => list::<u16>(&bytes),
        Dtype::I16 => list::<i16>(&bytes),
        Dtype::U32 => list::<u32>(&bytes),
        Dtype::I32 => list::<i32>(&bytes),
        Dtype::U64 => list::<u64>(&bytes),
        Dtype::I64 => list::<i64>(&bytes),
        Dtype::F32 => list::<f32>(&bytes),
        Dtype::F64 => list::<f64>(&bytes),
        _ => format!("bytes {}", few(bytes.iter().map(|byte| format!("{byte:02x}")), bytes.len())),
    })
}
