//! The tables under the plots: the same figures, exact places in the report with them.

use std::fmt::Write;

use super::notes::Notes;
use super::text::{Escaped, GB_PER_GIB, count, figure, micros, missing, size};
use super::{cache_name, share};
use crate::measure::{BenchReport, Quantiles, Run, Spread, Summary, Sweep};

/// A table in a region of its own that scrolls, and that can be reached by keyboard for that. Columns whose name ends
/// in a `#` hold numbers.
pub(super) fn table(out: &mut String, caption: &str, columns: &[&str], rows: impl FnOnce(&mut String)) {
    let caption = Escaped(caption);
    let _ = write!(
        out,
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{caption} (table)\">\n<table>\n<caption>{caption}</caption>\n<thead><tr>"
    );
    for column in columns {
        match column.strip_suffix('#') {
            Some(name) => write!(out, "<th scope=\"col\" class=\"n\">{name}</th>"),
            None => write!(out, "<th scope=\"col\">{column}</th>"),
        }
        .unwrap_or_default();
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    rows(out);
    out.push_str("</tbody>\n</table>\n</div>\n");
}

fn cell(out: &mut String, html: &str) {
    let _ = write!(out, "<td class=\"n\">{html}</td>");
}

fn words(out: &mut String, html: &str) {
    let _ = write!(out, "<td class=\"words\">{html}</td>");
}

/// The beginning of a row about a backend in a state of the cache.
fn begin(out: &mut String, kind: &str, index: usize, backend: &str, cache: &str, more: &str) {
    let backend = Escaped(backend);
    let _ = write!(
        out,
        "<tr data-row=\"{kind}\" data-index=\"{index}\" data-backend=\"{backend}\" data-cache=\"{cache}\"{more}><th scope=\"row\">{backend}</th><td>{cache}</td>"
    );
}

/// Median, smallest and largest, and how many; or one word for all four.
fn spread(out: &mut String, path: &str, spread: Option<Spread>, factor: f64, absent: &str) {
    match spread {
        Some(it) => {
            for (name, value) in [("median", it.median), ("min", it.min), ("max", it.max)] {
                cell(out, &figure(&format!("{path}/{name}"), value, (factor, "")));
            }
            cell(out, &count(&format!("{path}/count"), it.count));
        }
        None => {
            let _ = write!(out, "<td class=\"n\" colspan=\"4\"><span class=\"none\">{absent}</span></td>");
        }
    }
}

/// The exact spread as attributes of a row.
fn attributes(name: &str, spread: Option<Spread>) -> String {
    let finite = spread.filter(|it| [it.min, it.median, it.max].iter().all(|it| it.is_finite()));
    finite.map_or_else(String::new, |it| {
        format!(
            " data-{name}-min=\"{:?}\" data-{name}-median=\"{:?}\" data-{name}-max=\"{:?}\"",
            it.min, it.median, it.max
        )
    })
}

pub(super) fn throughput(out: &mut String, report: &BenchReport, notes: &Notes<'_>) {
    let columns = [
        "Backend",
        "Cache",
        "GiB/s, median#",
        "Smallest#",
        "Largest#",
        "Runs#",
        "GB/s, median#",
        "Of the disk’s limit#",
        "Of the link’s limit#",
        "Cached before#",
        "Marks",
    ];
    table(out, "Throughput", &columns, |out| {
        for (i, it) in report.summary.iter().enumerate() {
            let path = format!("/summary/{i}");
            begin(out, "throughput", i, &it.backend, cache_name(it.cache), &attributes("gib", it.gib_per_s));
            let rate = format!("{path}/gib_per_s");
            spread(out, &rate, it.gib_per_s, 1.0, "withheld");
            let gb = it.gib_per_s.map(|it| figure(&format!("{rate}/median"), it.median, (GB_PER_GIB, "")));
            cell(out, &gb.unwrap_or_else(|| "<span class=\"none\">withheld</span>".into()));
            cell(out, &share(&format!("{path}/share_of_disk"), it.share_of_disk));
            cell(out, &share(&format!("{path}/share_of_link"), it.share_of_link));
            cell(out, &share(&format!("{path}/cached_fraction_before"), it.cached_fraction_before));
            let _ = writeln!(out, "<td>{}</td></tr>", notes.badges(&it.marks));
        }
    });
}

pub(super) fn cpu(out: &mut String, report: &BenchReport) {
    let columns = ["Backend", "Cache", "s/GiB, median#", "Smallest#", "Largest#", "Runs#", "Cached before#"];
    table(out, "CPU seconds per GiB", &columns, |out| {
        for (i, it) in report.summary.iter().enumerate() {
            let path = format!("/summary/{i}");
            let more = attributes("cpu", it.cpu_seconds_per_gib);
            begin(out, "cpu", i, &it.backend, cache_name(it.cache), &more);
            spread(out, &format!("{path}/cpu_seconds_per_gib"), it.cpu_seconds_per_gib, 1.0, "withheld");
            cell(out, &share(&format!("{path}/cached_fraction_before"), it.cached_fraction_before));
            out.push_str("</tr>\n");
        }
    });
}

pub(super) fn latency(
    out: &mut String,
    report: &BenchReport,
    title: &str,
    field: &str,
    of: impl Fn(&Summary) -> Quantiles,
) {
    let columns = ["Backend", "Cache", "Half#", "99 of 100#", "All#", "Measured#", "Cached before#"];
    table(out, &format!("{title}: latency"), &columns, |out| {
        for (i, it) in report.summary.iter().enumerate() {
            let path = format!("/summary/{i}");
            begin(out, field, i, &it.backend, cache_name(it.cache), "");
            quantiles(out, &format!("{path}/{field}"), of(it));
            cell(out, &count(&format!("{path}/{field}/count"), of(it).count));
            cell(out, &share(&format!("{path}/cached_fraction_before"), it.cached_fraction_before));
            out.push_str("</tr>\n");
        }
    });
}

fn quantiles(out: &mut String, path: &str, it: Quantiles) {
    for (name, value) in [("p50_us", it.p50_us), ("p99_us", it.p99_us), ("max_us", it.max_us)] {
        // With nothing measured, a 0 would look like a figure.
        let html = if it.count == 0 { missing() } else { micros(&format!("{path}/{name}"), value) };
        cell(out, &html);
    }
}

pub(super) fn utilisation(out: &mut String, report: &BenchReport) {
    let columns =
        ["Backend", "Cache", "Median, %#", "Smallest, %#", "Largest, %#", "Runs#", "Cached before#"];
    table(out, "Accelerator utilisation", &columns, |out| {
        for (i, it) in report.summary.iter().enumerate() {
            let path = format!("/summary/{i}");
            let more = attributes("utilisation", it.utilisation);
            begin(out, "utilisation", i, &it.backend, cache_name(it.cache), &more);
            spread(out, &format!("{path}/utilisation"), it.utilisation, 100.0, "not measured");
            cell(out, &share(&format!("{path}/cached_fraction_before"), it.cached_fraction_before));
            out.push_str("</tr>\n");
        }
    });
}

pub(super) fn sweep(out: &mut String, index: usize, sweep: &Sweep, notes: &Notes<'_>) {
    let caption = format!("{}: {}, {}", sweep.setting, sweep.backend, cache_name(sweep.cache));
    let columns =
        ["Value", "GiB/s, median#", "Smallest#", "Largest#", "Runs#", "GB/s#", "CPU s/GiB#", "Marks"];
    table(out, &caption, &columns, |out| {
        for (i, it) in sweep.points.iter().enumerate() {
            let path = format!("/sweeps/{index}/points/{i}");
            let value = Escaped(&it.value);
            let more = attributes("gib", it.gib_per_s);
            let _ = write!(
                out,
                "<tr data-row=\"sweep\" data-index=\"{i}\" data-point=\"{value}\"{more}><th scope=\"row\">{value}</th>"
            );
            let rate = format!("{path}/gib_per_s");
            spread(out, &rate, it.gib_per_s, 1.0, "withheld");
            let gb = it.gib_per_s.map(|it| figure(&format!("{rate}/median"), it.median, (GB_PER_GIB, "")));
            cell(out, &gb.unwrap_or_else(|| "<span class=\"none\">withheld</span>".into()));
            let cpu = format!("{path}/cpu_seconds_per_gib/median");
            let median = it.cpu_seconds_per_gib.map(|it| figure(&cpu, it.median, (1.0, "")));
            cell(out, &median.unwrap_or_else(missing));
            let _ = writeln!(out, "<td>{}</td></tr>", notes.badges(&it.marks));
        }
    });
}

pub(super) fn runs(out: &mut String, report: &BenchReport) {
    if report.runs.is_empty() {
        out.push_str("<p class=\"nothing\">No run was finished.</p>\n");
        return;
    }
    let columns = [
        "Backend",
        "Cache",
        "Round#",
        "GiB/s#",
        "GB/s#",
        "Time#",
        "Setup#",
        "Cached before#",
        "Cached after#",
        "CPU time#",
        "CPU s/GiB#",
        "Read, half#",
        "Read, 99 of 100#",
        "Read, all#",
        "Wait, half#",
        "Wait, 99 of 100#",
        "Wait, all#",
        "Utilisation#",
        "Payload#",
        "Samples#",
        "Batches#",
        "Most memory#",
        "Staging#",
        "Ring#",
        "Bytes by way",
        "In use, and why",
        "Marks",
    ];
    let name = |it: &Run| format!("{}, {}", it.backend, cache_name(it.cache));
    let notes = Notes::of("runs", report.runs.iter().map(|it| (name(it), &*it.marks)));
    out.push_str("<p>In the order in which they were done.</p>\n<div class=\"card\">\n");
    table(out, "Every run", &columns, |out| {
        for (i, it) in report.runs.iter().enumerate() {
            run(out, i, it, &notes);
        }
    });
    notes.write(out);
    out.push_str("</div>\n");
}

fn run(out: &mut String, index: usize, it: &Run, notes: &Notes<'_>) {
    let at = |name: &str| format!("/runs/{index}/{name}");
    let plain = |name: &str, value: f64, unit| figure(&at(name), value, (1.0, unit));
    begin(out, "run", index, &it.backend, cache_name(it.cache), "");
    cell(out, &count(&at("round"), it.round));
    let withheld = || "<span class=\"none\">withheld</span>".to_owned();
    cell(out, &it.gib_per_s.map_or_else(withheld, |rate| plain("gib_per_s", rate, "")));
    cell(out, &it.gb_per_s.map_or_else(withheld, |rate| plain("gb_per_s", rate, "")));
    cell(out, &plain("seconds", it.seconds, "s"));
    cell(out, &plain("setup_seconds", it.setup_seconds, "s"));
    cell(out, &share(&at("cached_fraction_before"), it.cached_fraction_before));
    cell(out, &share(&at("cached_fraction_after"), it.cached_fraction_after));
    cell(out, &plain("cpu_seconds", it.cpu_seconds, "s"));
    cell(out, &it.cpu_seconds_per_gib.map_or_else(withheld, |cost| plain("cpu_seconds_per_gib", cost, "")));
    quantiles(out, &at("reads"), it.reads);
    quantiles(out, &at("batch_waits"), it.batch_waits);
    cell(out, &share(&at("utilisation"), it.utilisation));
    cell(out, &size(&at("bytes"), it.bytes));
    cell(out, &count(&at("samples"), it.samples));
    cell(out, &count(&at("batches"), it.batches));
    cell(out, &size(&at("peak_rss_bytes"), it.peak_rss_bytes));
    cell(out, &size(&at("pinned_bytes"), it.pinned_bytes));
    cell(out, &size(&at("device_bytes"), it.device_bytes));
    let ways = it.bytes_by_way.iter().filter(|(_, bytes)| **bytes > 0).map(|(way, bytes)| {
        // A name is part of a JSON pointer here, which has its own way to write these two.
        let key = way.replace('~', "~0").replace('/', "~1");
        format!("{} {}", Escaped(way), size(&at(&format!("bytes_by_way/{key}")), *bytes))
    });
    words(out, &ways.collect::<Vec<_>>().join(", "));
    words(out, &format!("{}: {}", Escaped(&it.backend_used), Escaped(&it.backend_reason)));
    let _ = writeln!(out, "<td>{}</td></tr>", notes.badges(&it.marks));
}
