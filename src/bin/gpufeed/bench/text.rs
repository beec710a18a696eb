//! A benchmark's report for a terminal of 100 columns.

use gpufeed::measure::{BenchReport, Cache, Limit, Mark, Quantiles, Run, Spread, Summary, Vary};

use crate::output;

const WIDTH: usize = 100;

pub(crate) fn of(report: &BenchReport) -> String {
    let mut text = head(report);
    let mut notes = Notes::default();
    text += &rates(report, &mut notes);
    text += &costs(report);
    text += &ways(report);
    text += &sweeps(report, &mut notes);
    text += &limits(report, &mut notes);
    for failure in &report.failures {
        let cache = failure.cache.map_or(String::new(), |cache| format!(", {}", name(cache)));
        text += &wrapped(&format!("failed: {}{cache}: ", failure.backend), &failure.error);
    }
    text += &notes.explained();
    if !report.conclusion.is_empty() {
        text.push('\n');
    }
    for sentence in &report.conclusion {
        text += &wrapped("", sentence);
    }
    text
}

/// Marks by letter, in the order in which they come up.
#[derive(Debug, Default)]
struct Notes(Vec<Mark>);

impl Notes {
    /// The letters of some marks, to stand beside a figure.
    fn letters(&mut self, marks: &[Mark]) -> String {
        let mut letters = String::new();
        for mark in marks {
            let known = self.0.iter().position(|known| known == mark);
            let index = known.unwrap_or_else(|| {
                self.0.push(mark.clone());
                self.0.len() - 1
            });
            letters += &letter(index);
        }
        letters
    }

    fn explained(&self) -> String {
        let line = |(index, mark): (usize, &Mark)| {
            wrapped(&format!("  {}  {}: ", letter(index), mark.kind), &mark.reason)
        };
        let lines: String = self.0.iter().enumerate().map(line).collect();
        if lines.is_empty() { lines } else { format!("\nmarks\n{lines}") }
    }
}

/// a to z, then a1 and so on.
fn letter(index: usize) -> String {
    let letter = char::from(b'a' + (index % 26) as u8);
    if index < 26 { letter.into() } else { format!("{letter}{}", index / 26) }
}

fn head(report: &BenchReport) -> String {
    let (data, machine, settings) = (&report.data, &report.machine, &report.settings);
    let size = output::size(data.payload_bytes);
    let mut text = wrapped(
        "data      ",
        &format!(
            "{}: {} samples of {} bytes in {} {} shards, {size}",
            data.path, data.samples, data.sample_bytes, data.shards, data.format
        ),
    );
    let disk = machine.disk.as_deref().map(|disk| format!(" on {disk}")).unwrap_or_default();
    let memory = output::size(machine.memory_bytes);
    let gpus: String = machine.gpus.iter().map(|gpu| format!("; {gpu}")).collect();
    text += &wrapped(
        "machine   ",
        &format!(
            "{}, {} processors, {memory}; {}; {}{disk}{gpus}",
            machine.cpu, machine.processors, machine.kernel, machine.filesystem
        ),
    );
    if !report.runs.is_empty() {
        let io = Vary::IoBytes(settings.io_bytes);
        let step =
            if settings.step_ms > 0.0 { format!(", step {} ms", settings.step_ms) } else { String::new() };
        text += &wrapped(
            "settings  ",
            &format!(
                "device {}, batch {}, shuffle {}, prefetch {}, queue depth {}, I/O {io}, {} rounds{step}",
                settings.device,
                settings.batch_size,
                settings.shuffle,
                settings.prefetch,
                settings.queue_depth,
                settings.rounds
            ),
        );
    }
    if report.interrupted {
        text += "ENDED EARLY: only what was measured until then is here\n";
    }
    text
}

/// The rates, and what to hold them against.
fn rates(report: &BenchReport, notes: &mut Notes) -> String {
    if report.summary.is_empty() {
        return String::new();
    }
    let mut rows = vec![words(&[
        "cache",
        "backend",
        "cached",
        "GB/s",
        "GiB/s (min-max)",
        "CPU s/GiB",
        "of disk",
        "of link",
        "busy",
        "marks",
    ])];
    for it in &report.summary {
        let percent =
            |share: Option<f64>| share.map_or("-".into(), |share| format!("{:.0} %", share * 100.0));
        rows.push(vec![
            name(it.cache).into(),
            it.backend.clone(),
            it.cached_fraction_before.map_or("?".into(), |share| format!("{:.1} %", share * 100.0)),
            it.gib_per_s.map_or("-".into(), |rate| format!("{:.3}", gb(rate.median))),
            it.gib_per_s.as_ref().map_or("withheld".into(), spread),
            it.cpu_seconds_per_gib.map_or("-".into(), |cpu| format!("{:.3}", cpu.median)),
            percent(it.share_of_disk),
            percent(it.share_of_link),
            percent(it.utilisation.map(|it| it.median)),
            notes.letters(&it.marks),
        ]);
    }
    let mut text = format!("\n{}", table(&rows));
    if report.settings.step_ms > 0.0 {
        text += "busy: the share of the time in which the simulated training step ran\n";
    }
    text
}

/// Latencies and memory.
fn costs(report: &BenchReport) -> String {
    if report.summary.is_empty() {
        return String::new();
    }
    let mut rows =
        vec![words(&["cache", "backend", "reads, ms", "batches, ms", "peak memory", "pinned", "device"])];
    for it in &report.summary {
        let largest = |of: fn(&Run) -> u64| output::size(runs_of(report, it).map(of).max().unwrap_or(0));
        rows.push(vec![
            name(it.cache).into(),
            it.backend.clone(),
            latencies(&it.reads),
            latencies(&it.batch_waits),
            largest(|run| run.peak_rss_bytes),
            largest(|run| run.pinned_bytes),
            largest(|run| run.device_bytes),
        ]);
    }
    let what =
        "reads and waits for batches: p50 / p99 / largest, the middle of the runs; memory: the largest";
    format!("\n{}{what}\n", table(&rows))
}

fn runs_of<'r>(report: &'r BenchReport, it: &'r Summary) -> impl Iterator<Item = &'r Run> {
    report.runs.iter().filter(move |run| run.backend == it.backend && run.cache == it.cache)
}

/// By which way bytes went.
fn ways(report: &BenchReport) -> String {
    let mut text = String::new();
    for it in &report.summary {
        let mut ways: Vec<(&str, u64)> = Vec::new();
        for (way, bytes) in
            runs_of(report, it).flat_map(|run| &run.bytes_by_way).filter(|(_, bytes)| **bytes > 0)
        {
            match ways.iter_mut().find(|(known, _)| known == way) {
                Some((_, sum)) => *sum += bytes,
                None => ways.push((way, *bytes)),
            }
        }
        let total: u64 = ways.iter().map(|(_, bytes)| bytes).sum();
        let share = |(way, bytes): &(&str, u64)| {
            if *bytes == total {
                format!("all by {way}")
            } else {
                format!("{:.1} % by {way}", *bytes as f64 / total as f64 * 100.0)
            }
        };
        let shares: Vec<String> = ways.iter().map(share).collect();
        let mut line = shares.join(", ");
        if let Some(run) = runs_of(report, it).find(|run| run.backend != run.backend_used) {
            line += &format!(" ({}: {})", run.backend_used, run.backend_reason);
        }
        text += &wrapped(&format!("{:6}{:11}", name(it.cache), it.backend), &line);
    }
    if text.is_empty() { text } else { format!("\nway of the bytes\n{text}") }
}

fn sweeps(report: &BenchReport, notes: &mut Notes) -> String {
    let mut text = String::new();
    for sweep in &report.sweeps {
        let mut rows = vec![words(&[&sweep.setting, "GB/s", "GiB/s (min-max)", "CPU s/GiB", "marks"])];
        for point in &sweep.points {
            rows.push(vec![
                point.value.clone(),
                point.gib_per_s.map_or("-".into(), |rate| format!("{:.3}", gb(rate.median))),
                point.gib_per_s.as_ref().map_or("withheld".into(), spread),
                point.cpu_seconds_per_gib.map_or("-".into(), |cpu| format!("{:.3}", cpu.median)),
                notes.letters(&point.marks),
            ]);
        }
        text += &format!(
            "\nsweep of {}, {}, {}\n{}",
            sweep.setting,
            sweep.backend,
            name(sweep.cache),
            table(&rows)
        );
    }
    text
}

fn limits(report: &BenchReport, notes: &mut Notes) -> String {
    let limits = &report.limits;
    let mut line = |what: &str, limit: &Option<Limit>| match limit {
        Some(it) => {
            let letters = notes.letters(&it.marks);
            let marks = if letters.is_empty() { letters } else { format!("  [{letters}]") };
            let rate = format!("{:.3} GB/s, {} GiB/s", gb(it.gib_per_s.median), spread(&it.gib_per_s));
            wrapped(&format!("{what:10}"), &format!("{rate}: {}{marks}", it.method))
        }
        None => String::new(),
    };
    let text = line("disk", &limits.disk) + &line("disk, fio", &limits.fio) + &line("link", &limits.link);
    if text.is_empty() { text } else { format!("\nlimits\n{text}") }
}

fn name(cache: Cache) -> &'static str {
    match cache {
        Cache::Cold => "cold",
        Cache::Warm => "warm",
    }
}

/// GiB/s as GB/s.
fn gb(gib: f64) -> f64 {
    gib * f64::from(1u32 << 30) / 1e9
}

fn spread(it: &Spread) -> String {
    match it.count {
        1 => format!("{:.3}", it.median),
        _ => format!("{:.3} ({:.3}-{:.3})", it.median, it.min, it.max),
    }
}

fn latencies(it: &Quantiles) -> String {
    if it.count == 0 {
        return "-".into();
    }
    let ms = |us: f64| match us / 1e3 {
        ms if ms >= 100.0 => format!("{ms:.0}"),
        ms if ms >= 1.0 => format!("{ms:.1}"),
        ms => format!("{ms:.3}"),
    };
    format!("{} / {} / {}", ms(it.p50_us), ms(it.p99_us), ms(it.max_us))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| word.to_string()).collect()
}

/// Columns side by side: words to the left (the first two and the last), figures to the right. A column of which nothing is
/// told is left out.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows[0].len();
    let told = |column: usize| rows[1..].iter().any(|row| !matches!(row[column].as_str(), "-" | ""));
    let shown: Vec<usize> = (0..columns).filter(|column| told(*column)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for &column in &shown {
            let width = width(column);
            let left = rows[0][column] == "marks" || matches!(rows[0][column].as_str(), "cache" | "backend");
            let cell = &row[column];
            line += &if left { format!("{cell:width$}  ") } else { format!("{cell:>width$}  ") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Words in lines that fit; those after the first are indented as far as the label goes, but not too far.
fn wrapped(label: &str, words: &str) -> String {
    let indent = " ".repeat(label.chars().count().min(10));
    let (mut text, mut line) = (String::new(), label.to_string());
    let mut fresh = true;
    for word in words.split_whitespace() {
        if !fresh && line.chars().count() + 1 + word.chars().count() > WIDTH {
            text += line.trim_end();
            text.push('\n');
            line = indent.clone();
            fresh = true;
        }
        if !fresh {
            line.push(' ');
        }
        line += word;
        fresh = false;
    }
    text + line.trim_end() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_and_columns_of_which_nothing_is_told_are_left_out() {
        let rows = [words(&["cache", "GB/s", "of link", "marks"]), words(&["cold", "1.0", "-", "ab"])];
        assert_eq!(table(&rows), "cache  GB/s  marks\ncold    1.0  ab\n");
        let text = wrapped("  a  cached: ", &"word ".repeat(60));
        assert!(text.lines().count() > 2 && text.lines().all(|line| line.len() <= WIDTH), "{text}");
    }

    #[test]
    fn the_same_mark_has_one_letter() {
        let mark = |kind: &str| Mark { kind: kind.into(), reason: "it is so".into() };
        let mut notes = Notes::default();
        assert_eq!(notes.letters(&[mark("short"), mark("noisy")]), "ab");
        assert_eq!(notes.letters(&[mark("noisy")]), "b");
        assert_eq!(notes.explained(), "\nmarks\n  a  short: it is so\n  b  noisy: it is so\n");
        assert_eq!((letter(25), letter(26)), ("z".into(), "a1".into()));
    }
}
