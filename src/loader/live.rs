//! What a loader says about itself while it runs: how long its stages take, and what it waits for.

use std::fmt::{self, Write};
use std::time::Duration;

use super::timing::{Span, Stage, Timing, Totals, Wait};
use crate::backend::BytesByWay;

/// How a loader has spent its time so far. From [`Loader::stats`](crate::Loader::stats).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LoaderStats {
    /// Since the loader was built.
    pub elapsed: Duration,
    /// Payload bytes read, by the way they took. Batches that were read ahead count.
    pub bytes_by_way: BytesByWay,
    /// Batches delivered.
    pub batches: u64,
    stages: [StageStats; Stage::ALL.len()],
    waits: [Duration; Wait::ALL.len()],
    copies_itself: bool,
}

/// How long a stage took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageStats {
    /// How often it was done.
    pub count: u64,
    /// All of it together.
    pub total: Duration,
    /// Half of them took no longer. To two digits, as the next; after the first 4096 from one in 16.
    pub p50: Duration,
    /// 99 of 100 took no longer.
    pub p99: Duration,
    /// None took longer.
    pub max: Duration,
}

/// What a run waits for, that is what would have to be faster for it to be faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bottleneck {
    /// Nothing yet: no batch has been delivered.
    Unknown,
    /// The reads.
    Storage,
    /// Copies, out of staging chunks or to the GPU.
    Copy,
    /// The caller: batches are ready when it asks for them.
    Consumer,
    /// The limit on bytes per second that the loader was given.
    Limit,
    /// Working out which reads to do.
    Plan,
}

impl Bottleneck {
    /// The name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Bottleneck::Unknown => "unknown",
            Bottleneck::Storage => "storage",
            Bottleneck::Copy => "copy",
            Bottleneck::Consumer => "consumer",
            Bottleneck::Limit => "limit",
            Bottleneck::Plan => "plan",
        }
    }
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A caller that waits for less than this share of the time is what the run waits for.
const HARDLY_WAITS: f64 = 0.1;

impl LoaderStats {
    pub(super) fn new(timing: &Timing, bytes_by_way: BytesByWay) -> LoaderStats {
        let totals = timing.totals();
        let stages = Stage::ALL.map(|stage| StageStats::of(&totals, stage));
        LoaderStats {
            elapsed: timing.elapsed(),
            bytes_by_way,
            batches: stages[Stage::BatchWait as usize].count,
            stages,
            waits: Wait::ALL.map(|wait| totals.wait(wait)),
            copies_itself: timing.copies_itself,
        }
    }

    /// How long a stage took.
    pub fn stage(&self, stage: Stage) -> StageStats {
        self.stages[stage as usize]
    }

    /// How long the reading thread did nothing but wait for this.
    pub fn waited_for(&self, wait: Wait) -> Duration {
        self.waits[wait as usize]
    }

    /// How many of a stage went on at once, on average: for reads the part of the drives' queues that was in use.
    pub fn occupancy(&self, stage: Stage) -> f64 {
        let elapsed = self.elapsed.as_secs_f64();
        if elapsed > 0.0 { self.stage(stage).total.as_secs_f64() / elapsed } else { 0.0 }
    }

    /// What came since an earlier look: times, counts and bytes. Quantiles are those of the whole run.
    pub fn since(&self, earlier: &LoaderStats) -> LoaderStats {
        let mut since = self.clone();
        since.elapsed = self.elapsed.saturating_sub(earlier.elapsed);
        since.batches = self.batches.saturating_sub(earlier.batches);
        since.bytes_by_way = self.bytes_by_way.since(&earlier.bytes_by_way);
        for (now, before) in since.stages.iter_mut().zip(&earlier.stages) {
            now.count = now.count.saturating_sub(before.count);
            now.total = now.total.saturating_sub(before.total);
        }
        for (now, before) in since.waits.iter_mut().zip(&earlier.waits) {
            *now = now.saturating_sub(*before);
        }
        since
    }

    /// What the run waits for.
    ///
    /// It is what the reading thread spent most of its time on: waiting for reads, for or with copies, for batches to come
    /// back from the caller, for its limit, or planning. If the caller hardly waits for batches (less than a tenth of the
    /// time between two calls for one), it is the caller in any case, unless copies to a GPU, for which only the caller's
    /// streams wait, took more than half of the time.
    pub fn bottleneck(&self) -> Bottleneck {
        let of = |stage: Stage| self.stage(stage).total.as_secs_f64();
        let wait = |wait: Wait| self.waited_for(wait).as_secs_f64();
        let (waited, worked) = (of(Stage::BatchWait), of(Stage::Step));
        if self.batches == 0 || waited + worked <= 0.0 {
            return Bottleneck::Unknown;
        }
        let only_streams_wait = wait(Wait::Copy) > 0.5 * self.elapsed.as_secs_f64();
        if waited < HARDLY_WAITS * (waited + worked) && !only_streams_wait {
            return Bottleneck::Consumer;
        }
        // Copies on the host are done by the thread itself; those to a GPU it only waits for.
        let copies = if self.copies_itself { of(Stage::Copy) } else { wait(Wait::Copy) };
        let candidates = [
            (wait(Wait::Storage), Bottleneck::Storage),
            (copies, Bottleneck::Copy),
            (wait(Wait::Slot), Bottleneck::Consumer),
            (wait(Wait::Limit), Bottleneck::Limit),
            (of(Stage::Plan), Bottleneck::Plan),
        ];
        let most = candidates.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        most.map_or(Bottleneck::Storage, |(_, what)| what)
    }

    /// The figures as text that Prometheus reads. `labels` go to every one of them, such as `[("rank", "3")]`.
    pub fn to_prometheus(&self, labels: &[(&str, &str)]) -> String {
        let mut text = String::new();
        let with = |more: &[(&str, &str)]| {
            let all: Vec<String> =
                labels.iter().chain(more).map(|(k, v)| format!("{k}=\"{}\"", escape(v))).collect();
            if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
        };
        let head = |text: &mut String, name: &str, kind: &str, help: &str| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "# HELP gpufeed_{name} {help}\n# TYPE gpufeed_{name} {kind}");
        };
        head(&mut text, "batches_total", "counter", "Batches delivered.");
        let _ = writeln!(text, "gpufeed_batches_total{} {}", with(&[]), self.batches);
        head(&mut text, "bytes_total", "counter", "Payload bytes read, by the way they took.");
        for (way, bytes) in self.bytes_by_way.iter() {
            let _ = writeln!(text, "gpufeed_bytes_total{} {bytes}", with(&[("way", way.name())]));
        }
        head(&mut text, "stage_seconds", "summary", "How long each stage took.");
        for stage in Stage::ALL {
            let it = self.stage(stage);
            for (quantile, value) in [("0.5", it.p50), ("0.99", it.p99), ("1", it.max)] {
                let labels = with(&[("stage", stage.name()), ("quantile", quantile)]);
                let _ = writeln!(text, "gpufeed_stage_seconds{labels} {}", value.as_secs_f64());
            }
            let labels = with(&[("stage", stage.name())]);
            let _ = writeln!(text, "gpufeed_stage_seconds_sum{labels} {}", it.total.as_secs_f64());
            let _ = writeln!(text, "gpufeed_stage_seconds_count{labels} {}", it.count);
        }
        head(
            &mut text,
            "wait_seconds_total",
            "counter",
            "How long the reading thread only waited, and for what.",
        );
        for wait in Wait::ALL {
            let labels = with(&[("for", wait.name())]);
            let _ =
                writeln!(text, "gpufeed_wait_seconds_total{labels} {}", self.waited_for(wait).as_secs_f64());
        }
        text
    }
}

impl StageStats {
    fn of(totals: &Totals, stage: Stage) -> StageStats {
        let (histogram, sum) = (totals.histogram(stage), totals.sum(stage));
        if histogram.is_empty() {
            return StageStats::default();
        }
        // A bucket's upper end may lie above the largest value.
        let at = |quantile| Duration::from_nanos(histogram.value_at_quantile(quantile)).min(sum.max);
        StageStats { count: sum.count, total: sum.total, p50: at(0.5), p99: at(0.99), max: sum.max }
    }
}

/// A label's value as Prometheus wants it.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The spans as JSON that Chrome's `about:tracing` and Perfetto read.
pub(super) fn chrome_trace((spans, lost): (Vec<Span>, u64)) -> String {
    let process = std::process::id();
    let mut text = String::from("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    let names = [(1, "plan"), (2, "reads"), (3, "copies"), (4, "caller")];
    for (track, name) in names {
        let _ = writeln!(
            text,
            "{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{process},\"tid\":{track},\"args\":{{\"name\":\"{name}\"}}}},"
        );
    }
    for (id, span) in spans.iter().enumerate() {
        let micros = |time: Duration| time.as_nanos() as f64 / 1000.0;
        let (name, track) = (span.stage.name(), span.stage.track());
        let args = format!("\"args\":{{\"batch\":{},\"bytes\":{}}}", span.batch, span.bytes);
        let common = format!("\"name\":\"{name}\",\"cat\":\"gpufeed\",\"pid\":{process},\"tid\":{track}");
        match span.stage {
            // Reads overlap, which only asynchronous events may.
            Stage::Read | Stage::Copy => {
                let end = micros(span.from + span.took);
                let _ = writeln!(
                    text,
                    "{{{common},\"ph\":\"b\",\"id\":{id},\"ts\":{},{args}}},",
                    micros(span.from)
                );
                let _ = writeln!(text, "{{{common},\"ph\":\"e\",\"id\":{id},\"ts\":{end}}},");
            }
            _ => {
                let _ = writeln!(
                    text,
                    "{{{common},\"ph\":\"X\",\"ts\":{},\"dur\":{},{args}}},",
                    micros(span.from),
                    micros(span.took)
                );
            }
        }
    }
    let _ = write!(
        text,
        "{{\"name\":\"spans that there was no room for\",\"ph\":\"C\",\"pid\":{process},\"ts\":0,\"args\":{{\"lost\":{lost}}}}}\n]}}"
    );
    text
}
