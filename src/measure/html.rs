//! A report as one page for a browser: all it needs is in it, and it needs no script, no font and no network.
//!
//! Whoever changes this should look at the page afterwards: `tests/report_page` leaves screenshots of it.

mod curve;
mod facts;
mod notes;
mod plot;
mod scale;
mod tables;
mod text;

use std::fmt::Write;

use super::{BenchReport, Cache, Mark, Summary, Sweep};
use notes::Notes;
use plot::{Line, Plot, Row};
use text::{Escaped, GB_PER_GIB, date, figure, missing, number};

/// A report as one HTML page that stands alone, for any width, in light and dark, and without a script.
///
/// Each figure on it says where it comes from: `data-path` is a JSON pointer into the report, `data-value` the value
/// there, and `data-factor` what that was multiplied by before it was rounded. The report itself, as JSON, is the text
/// of the element `report`, so the page is also a file for programs.
///
/// Whatever the report holds, all of its text is escaped, and a number that is not finite is shown as not known.
pub fn render(report: &BenchReport) -> String {
    let mut out = String::with_capacity(64 << 10);
    head(&mut out, report);
    header(&mut out, report);
    out.push_str("<main id=\"main\">\n");
    facts::conclusion(&mut out, report);
    throughput(&mut out, report);
    facts::failures(&mut out, report);
    cpu(&mut out, report);
    latency(&mut out, report);
    utilisation(&mut out, report);
    sweeps(&mut out, report);
    facts::limits(&mut out, report);
    facts::machine(&mut out, report);
    section(&mut out, "runs", "Every run");
    tables::runs(&mut out, report);
    out.push_str("</section>\n</main>\n");
    footer(&mut out, report);
    out
}

fn head(out: &mut String, report: &BenchReport) {
    // The policy makes sure that the page asks for nothing, whatever a path or an error has in it.
    let _ = write!(
        out,
        r##"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="color-scheme" content="light dark">
<title>gpufeed benchmark of {}</title>
<link rel="icon" href="data:,">
<style>
{}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
{PATTERNS}
"##,
        Escaped(&report.data.path),
        include_str!("html/style.css")
    );
}

/// What warm bars are filled with, so that they differ from cold ones by more than their colour.
const PATTERNS: &str = r#"<svg class="patterns" width="0" height="0" aria-hidden="true" focusable="false"><defs><pattern id="hatch" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="hatch-ground" width="8" height="8"/><rect class="hatch-line" width="3" height="8"/></pattern></defs></svg>"#;

fn header(out: &mut String, report: &BenchReport) {
    let _ = write!(
        out,
        "<header>\n<p class=\"kicker\">gpufeed {}</p>\n<h1>Benchmark of <span class=\"path\">{}</span></h1>\n<p class=\"when\"><time>{}</time>, took {}.</p>\n",
        Escaped(&report.machine.gpufeed),
        Escaped(&report.data.path),
        date(report.started),
        figure("/took_seconds", report.took_seconds, (1.0, "s"))
    );
    if report.interrupted {
        out.push_str("<p class=\"banner\" role=\"note\"><strong>Interrupted.</strong> The benchmark was ended before its time: here is what was measured until then. Runs, backends or sweeps may be missing.</p>\n");
    }
    let mut links = vec![("conclusion", "Conclusion"), ("throughput", "Throughput")];
    if !report.failures.is_empty() {
        links.push(("failures", "Failures"));
    }
    links.extend([
        ("cpu", "CPU cost"),
        ("latency", "Latency"),
        ("utilisation", "Utilisation"),
        ("sweeps", "Sweeps"),
    ]);
    links.extend([("limits", "Limits"), ("machine", "Machine and settings"), ("runs", "Every run")]);
    out.push_str("<nav aria-label=\"On this page\"><ul>\n");
    for (id, name) in links {
        let _ = writeln!(out, "<li><a href=\"#{id}\">{name}</a></li>");
    }
    out.push_str("</ul></nav>\n</header>\n");
}

fn footer(out: &mut String, report: &BenchReport) {
    out.push_str("<footer>\n<p>1 GB is 10<sup>9</sup> bytes, 1 GiB is 2<sup>30</sup>. Bars and points are medians, whiskers and bands go from the smallest to the largest value. A figure is rounded to three digits; the exact one is in the report, which this page holds as JSON in its element <code>report</code>.</p>\n</footer>\n");
    // In JSON, these characters stand only in strings, where they may be written this way; so nothing ends the element.
    let json = serde_json::to_string(report).unwrap_or_else(|_| "null".into());
    let json = json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    let _ =
        write!(out, "<script type=\"application/json\" id=\"report\">{json}</script>\n</body>\n</html>\n");
}

fn throughput(out: &mut String, report: &BenchReport) {
    section(out, "throughput", "Throughput");
    if report.summary.is_empty() {
        nothing(out, "No run was finished.");
        return;
    }
    let rows: Vec<Row<'_>> = rows(report, |it| {
        let rate = it.gib_per_s.map(|it| format!("{} GB/s · ", number(it.median * GB_PER_GIB)));
        (
            it.gib_per_s,
            "withheld",
            format!("{}{}", rate.unwrap_or_default(), plot::cached(it.cached_fraction_before)),
        )
    });
    let limits = &report.limits;
    let lines: Vec<Line<'_>> = [
        ("disk limit", "disk", &limits.disk),
        ("fio", "fio", &limits.fio),
        ("link limit", "link", &limits.link),
    ]
    .into_iter()
    .filter_map(|(name, class, limit)| Some(Line { name, class, value: limit.as_ref()?.gib_per_s.median }))
    .collect();
    out.push_str("<div class=\"card\">\n");
    legend(out, report, "the median", !lines.is_empty());
    let plot = Plot {
        id: "plot-throughput",
        title: "Throughput by backend and state of the page cache",
        unit: "GiB/s",
        attribute: "gib",
    };
    plot::bars(out, &plot, &rows, &lines);
    let notes = Notes::of("throughput", report.summary.iter().map(|it| (named(it), &*it.marks)));
    tables::throughput(out, report, &notes);
    notes.write(out);
    out.push_str("</div>\n</section>\n");
}

fn cpu(out: &mut String, report: &BenchReport) {
    section(out, "cpu", "CPU cost");
    if report.summary.is_empty() {
        nothing(out, "No run was finished.");
        return;
    }
    out.push_str("<p>User and system seconds of the whole process for each GiB delivered: what is left of the processors for the training step.</p>\n");
    let rows: Vec<Row<'_>> =
        rows(report, |it| (it.cpu_seconds_per_gib, "withheld", plot::cached(it.cached_fraction_before)));
    out.push_str("<div class=\"card\">\n");
    legend(out, report, "the median", false);
    let plot = Plot {
        id: "plot-cpu",
        title: "CPU seconds per GiB by backend and state of the page cache",
        unit: "s/GiB",
        attribute: "cpu",
    };
    plot::bars(out, &plot, &rows, &[]);
    tables::cpu(out, report);
    out.push_str("</div>\n</section>\n");
}

fn latency(out: &mut String, report: &BenchReport) {
    section(out, "latency", "Latency");
    if report.summary.is_empty() {
        nothing(out, "No run was finished.");
        return;
    }
    out.push_str("<p>The middle, over the runs, of what half of them took at most, 99 of 100, and all. The axes go by powers of ten.</p>\n<div class=\"pair\">\n");
    for (id, title, say, reads) in [
        ("reads", "Reads", "How long a read took, from its start to its completion.", true),
        ("waits", "Waits for batches", "How long the training step waited for a batch.", false),
    ] {
        let of = |it: &Summary| if reads { it.reads } else { it.batch_waits };
        let rows: Vec<_> = rows(report, |it| (None, "", plot::cached_in_short(it.cached_fraction_before)))
            .into_iter()
            .zip(report.summary.iter().map(of))
            .collect();
        let _ = write!(out, "<div class=\"card\">\n<h3>{title}</h3>\n<p>{say}</p>\n{QUANTILES}");
        let name = format!("{title}: latency by backend and state of the page cache");
        let plot = Plot { id: &format!("plot-{id}"), title: &name, unit: "µs", attribute: id };
        plot::latencies(out, &plot, &rows);
        tables::latency(out, report, title, if reads { "reads" } else { "batch_waits" }, of);
        out.push_str("</div>\n");
    }
    out.push_str("</div>\n</section>\n");
}

fn utilisation(out: &mut String, report: &BenchReport) {
    section(out, "utilisation", "Utilisation");
    if report.summary.iter().all(|it| it.utilisation.is_none()) {
        nothing(out, "No training step was simulated, so there is no utilisation to tell.");
        return;
    }
    let _ = writeln!(
        out,
        "<p>The share of the time in which the simulated training step ran, {} for each batch, as MLPerf Storage defines accelerator utilisation. What is missing to 100 % is waiting for data.</p>",
        figure("/settings/step_ms", report.settings.step_ms, (1.0, "ms"))
    );
    let percents = |it: super::Spread| super::Spread {
        count: it.count,
        min: it.min * 100.0,
        median: it.median * 100.0,
        max: it.max * 100.0,
    };
    let rows: Vec<Row<'_>> = rows(report, |it| {
        (it.utilisation.map(percents), "not measured", plot::cached(it.cached_fraction_before))
    });
    let all = Line { name: "never waiting:", class: "fio", value: 100.0 };
    out.push_str("<div class=\"card\">\n");
    legend(out, report, "the median", false);
    let plot = Plot {
        id: "plot-utilisation",
        title: "Accelerator utilisation by backend and state of the page cache",
        unit: "%",
        attribute: "utilisation-percent",
    };
    plot::bars(out, &plot, &rows, &[all]);
    tables::utilisation(out, report);
    out.push_str("</div>\n</section>\n");
}

fn sweeps(out: &mut String, report: &BenchReport) {
    section(out, "sweeps", "Sweeps");
    if report.sweeps.is_empty() {
        nothing(out, "No setting was varied.");
        return;
    }
    out.push_str("<p>One setting is varied, all else stays as it is under <a href=\"#machine\">settings</a>. The line is the median, the band goes from the smallest to the largest value. Curves of one setting have the same scale.</p>\n");
    let mut settings: Vec<&str> = Vec::new();
    for sweep in &report.sweeps {
        if !settings.contains(&&*sweep.setting) {
            settings.push(&sweep.setting);
        }
    }
    for setting in settings {
        let same = || report.sweeps.iter().enumerate().filter(|(_, sweep)| sweep.setting == setting);
        let axis = curve::axis(same().map(|(_, sweep)| sweep));
        let _ = write!(out, "<h3><code>{}</code></h3>\n<div class=\"pair\">\n", Escaped(setting));
        for (index, sweep) in same() {
            one_sweep(out, index, sweep, &axis);
        }
        out.push_str("</div>\n");
    }
    out.push_str("</section>\n");
}

fn one_sweep(out: &mut String, index: usize, sweep: &Sweep, axis: &scale::Linear) {
    let cache = cache_name(sweep.cache);
    let _ = write!(
        out,
        "<div class=\"card sweep\" data-setting=\"{0}\" data-backend=\"{1}\" data-cache=\"{cache}\">\n<h4>{1} <span class=\"cache\">· {cache}, GiB/s</span></h4>\n",
        Escaped(&sweep.setting),
        Escaped(&sweep.backend)
    );
    let title = format!("Throughput by {}: {}, {cache}", sweep.setting, sweep.backend);
    let plot = Plot { id: &format!("plot-sweep-{index}"), title: &title, unit: "GiB/s", attribute: "gib" };
    curve::curve(out, &plot, sweep, axis);
    let id = format!("sweep-{index}");
    let notes = Notes::of(&id, sweep.points.iter().map(|it| (it.value.clone(), &*it.marks)));
    tables::sweep(out, index, sweep, &notes);
    notes.write(out);
    out.push_str("</div>\n");
}

/// What the circles and lines of a plot of latencies stand for.
const QUANTILES: &str = r#"<ul class="legend"><li><svg width="14" height="14" aria-hidden="true"><circle class="ink" cx="7" cy="7" r="5.5"/></svg> half took no longer</li><li><svg width="16" height="16" aria-hidden="true"><path class="ink" d="M8 1 15 8 8 15 1 8z"/></svg> 99 of 100</li><li><svg width="8" height="16" aria-hidden="true"><path class="ink" d="M2.5 1h3v14h-3z"/></svg> all</li></ul>
"#;

/// What bars, whiskers and lines stand for.
fn legend(out: &mut String, report: &BenchReport, bar: &str, lines: bool) {
    out.push_str("<ul class=\"legend\">");
    for (cache, say) in
        [(Cache::Cold, "cold: dropped from the page cache"), (Cache::Warm, "warm: read once before")]
    {
        if report.summary.iter().any(|it| it.cache == cache) {
            let _ = write!(
                out,
                r#"<li><svg width="22" height="14" aria-hidden="true"><rect class="bar {}" x="1" y="1" width="20" height="12"/></svg> {say}</li>"#,
                cache_name(cache)
            );
        }
    }
    let _ = write!(
        out,
        r#"<li><svg width="22" height="14" aria-hidden="true"><path class="stroke" d="M1 7h20M1 2v10M21 2v10"/></svg> smallest to largest; the bar is {bar}</li>"#
    );
    if lines {
        out.push_str(r#"<li><svg width="10" height="14" aria-hidden="true"><path class="stroke dashed" d="M5 0v14"/></svg> what storage or link can do at most</li>"#);
    }
    out.push_str("</ul>\n");
}

/// A row for each summary, with its figure, what stands for it if it is missing, and the line under it.
fn rows<'a>(
    report: &'a BenchReport,
    of: impl Fn(&'a Summary) -> (Option<super::Spread>, &'a str, String),
) -> Vec<Row<'a>> {
    let row = |it: &'a Summary| {
        let (spread, absent, under) = of(it);
        let spread = spread.filter(|it| [it.min, it.median, it.max].iter().all(|it| it.is_finite()));
        Row { backend: &it.backend, cache: it.cache, spread, absent, under, marks: &it.marks }
    };
    report.summary.iter().map(row).collect()
}

fn section(out: &mut String, id: &str, title: &str) {
    let _ = write!(
        out,
        "<section id=\"{id}\" aria-labelledby=\"{id}-heading\">\n<h2 id=\"{id}-heading\">{title}</h2>\n"
    );
}

/// The rest of a section that has nothing to show.
fn nothing(out: &mut String, say: &str) {
    let _ = write!(out, "<p class=\"nothing\">{say}</p>\n</section>\n");
}

fn cache_name(cache: Cache) -> &'static str {
    match cache {
        Cache::Cold => "cold",
        Cache::Warm => "warm",
    }
}

fn named(summary: &Summary) -> String {
    format!("{}, {}", summary.backend, cache_name(summary.cache))
}

/// The kinds of some marks, each once.
fn kinds(marks: &[Mark]) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for mark in marks {
        if !all.contains(&&*mark.kind) {
            all.push(&mark.kind);
        }
    }
    all
}

/// A share as a figure in percent.
fn share(path: &str, value: Option<f64>) -> String {
    value.map_or_else(missing, |value| figure(path, value, (100.0, "%")))
}
