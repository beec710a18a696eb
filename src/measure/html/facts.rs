//! What a page says beside its plots: conclusion, failures, limits, the machine and the settings.

use std::fmt::Write;

use super::notes::with_reasons;
use super::tables::table;
use super::text::{Escaped, GB_PER_GIB, count, date, figure, size};
use super::{cache_name, kinds, nothing, section, share};
use crate::measure::{BenchReport, Cache, Summary};

/// What follows from it, and the figures that one looks for first.
pub(super) fn conclusion(out: &mut String, report: &BenchReport) {
    section(out, "conclusion", "Conclusion");
    if report.conclusion.is_empty() {
        out.push_str("<p class=\"nothing\">Nothing follows from what was measured.</p>\n");
    } else {
        out.push_str("<ul class=\"conclusion\">\n");
        for sentence in &report.conclusion {
            let _ = writeln!(out, "<li>{}</li>", Escaped(sentence));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("<dl class=\"tiles\">\n");
    for cache in [Cache::Cold, Cache::Warm] {
        let fastest = report.summary.iter().enumerate().filter(|(_, it)| it.cache == cache);
        let rate = |it: &Summary| it.gib_per_s.map(|it| it.median).filter(|it| it.is_finite());
        let fastest = fastest.filter_map(|(i, it)| Some((i, it, rate(it)?)));
        if let Some((i, it, rate)) = fastest.max_by(|a, b| a.2.total_cmp(&b.2)) {
            fastest_tile(out, i, it, rate);
        }
    }
    let limits = [
        ("Limit of the disk", "disk", &report.limits.disk),
        ("Limit of the link", "link", &report.limits.link),
    ];
    for (name, field, limit) in limits {
        if let Some(limit) = limit {
            let path = format!("/limits/{field}/gib_per_s/median");
            let marks = kinds(&limit.marks).iter().fold(String::new(), |all, kind| {
                format!("{all} <span class=\"badge\">{}</span>", Escaped(kind))
            });
            tile(
                out,
                name,
                &figure(&path, limit.gib_per_s.median, (1.0, "GiB/s")),
                &format!("{}{marks}", figure(&path, limit.gib_per_s.median, (GB_PER_GIB, "GB/s"))),
            );
        }
    }
    out.push_str("</dl>\n</section>\n");
}

fn fastest_tile(out: &mut String, index: usize, it: &Summary, rate: f64) {
    let path = format!("/summary/{index}");
    let median = format!("{path}/gib_per_s/median");
    let mut more =
        format!("<strong>{}</strong>, {}", Escaped(&it.backend), figure(&median, rate, (GB_PER_GIB, "GB/s")));
    let _ = match it.cached_fraction_before {
        Some(_) => write!(
            more,
            ", {} cached before",
            share(&format!("{path}/cached_fraction_before"), it.cached_fraction_before)
        ),
        None => write!(more, ", cached before: not known"),
    };
    for kind in kinds(&it.marks) {
        let _ = write!(more, " <span class=\"badge\">{}</span>", Escaped(kind));
    }
    let name = format!("Fastest, {}", cache_name(it.cache));
    tile(out, &name, &figure(&median, rate, (1.0, "GiB/s")), &more);
}

fn tile(out: &mut String, name: &str, big: &str, more: &str) {
    let _ = writeln!(
        out,
        "<div><dt>{name}</dt><dd><span class=\"big\">{big}</span><span class=\"more\">{more}</span></dd></div>"
    );
}

/// What could not be measured, with its error.
pub(super) fn failures(out: &mut String, report: &BenchReport) {
    if report.failures.is_empty() {
        return;
    }
    section(out, "failures", "Failures");
    out.push_str("<p>These could not be measured. That is no rate of 0: there is no figure.</p>\n<ul class=\"failures\">\n");
    for it in &report.failures {
        let cache = it.cache.map_or("before any run", cache_name);
        let _ = writeln!(
            out,
            "<li data-failure=\"{0}\"><strong>{0}</strong> <span class=\"cache\">· {cache}</span><span class=\"error\">{1}</span></li>",
            Escaped(&it.backend),
            Escaped(&it.error)
        );
    }
    out.push_str("</ul>\n</section>\n");
}

/// What storage and link can do at most, and how that was found.
pub(super) fn limits(out: &mut String, report: &BenchReport) {
    section(out, "limits", "Limits");
    let all = [
        ("Disk", "disk", &report.limits.disk),
        ("fio", "fio", &report.limits.fio),
        ("Link to the device", "link", &report.limits.link),
    ];
    if all.iter().all(|(_, _, limit)| limit.is_none()) {
        nothing(out, "No limit was measured: there is nothing to hold the rates against.");
        return;
    }
    let columns =
        ["Limit", "GiB/s, median#", "Smallest#", "Largest#", "Runs#", "GB/s, median#", "How", "Marks"];
    out.push_str("<div class=\"card\">\n");
    table(out, "What storage and link can do at most", &columns, |out| {
        for (name, field, limit) in all {
            let Some(limit) = limit else { continue };
            let (path, it) = (format!("/limits/{field}/gib_per_s"), limit.gib_per_s);
            let _ =
                write!(out, "<tr data-row=\"limit\" data-limit=\"{field}\"><th scope=\"row\">{name}</th>");
            for (name, value) in [("median", it.median), ("min", it.min), ("max", it.max)] {
                let _ = write!(
                    out,
                    "<td class=\"n\">{}</td>",
                    figure(&format!("{path}/{name}"), value, (1.0, ""))
                );
            }
            let _ = writeln!(
                out,
                "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"words\">{}</td><td class=\"words\">{}</td></tr>",
                count(&format!("{path}/count"), it.count),
                figure(&format!("{path}/median"), it.median, (GB_PER_GIB, "")),
                Escaped(&limit.method),
                with_reasons(&limit.marks)
            );
        }
    });
    out.push_str("</div>\n</section>\n");
}

/// The machine, the data and the settings.
pub(super) fn machine(out: &mut String, report: &BenchReport) {
    let BenchReport { machine, data, settings, .. } = report;
    section(out, "machine", "Machine and settings");
    out.push_str("<div class=\"trio\">\n");
    let text = |text: &str| {
        if text.is_empty() {
            "<span class=\"none\">not known</span>".into()
        } else {
            Escaped(text).to_string()
        }
    };
    let gpus = if machine.gpus.is_empty() { "none: host memory".into() } else { machine.gpus.join(", ") };
    facts(
        out,
        "Machine",
        &[
            ("Processor", text(&machine.cpu)),
            ("Processors", count("/machine/processors", machine.processors)),
            ("Memory", size("/machine/memory_bytes", machine.memory_bytes)),
            ("Kernel", text(&machine.kernel)),
            ("GPUs", text(&gpus)),
            ("File system", text(&machine.filesystem)),
            ("Disk", text(machine.disk.as_deref().unwrap_or(""))),
            ("gpufeed", text(&machine.gpufeed)),
        ],
    );
    facts(
        out,
        "Data",
        &[
            ("Path", text(&data.path)),
            ("Format", text(&data.format)),
            ("Shards", count("/data/shards", data.shards)),
            ("Samples", count("/data/samples", data.samples)),
            ("A sample", size("/data/sample_bytes", data.sample_bytes)),
            ("All samples", size("/data/payload_bytes", data.payload_bytes)),
            ("Fingerprint", format!("<code>{}</code>", text(&data.fingerprint))),
        ],
    );
    let step = if settings.step_ms == 0.0 {
        "none".into()
    } else {
        figure("/settings/step_ms", settings.step_ms, (1.0, "ms for each batch"))
    };
    facts(
        out,
        "Settings",
        &[
            ("Device", text(&settings.device)),
            ("Rounds", count("/settings/rounds", settings.rounds)),
            ("Batch size", format!("{} samples", count("/settings/batch_size", settings.batch_size))),
            ("Shuffle", text(&settings.shuffle)),
            ("Prefetch", format!("{} batches", count("/settings/prefetch", settings.prefetch))),
            ("Queue depth", format!("{} reads", count("/settings/queue_depth", settings.queue_depth))),
            ("Largest read", size("/settings/io_bytes", settings.io_bytes)),
            ("Simulated step", step),
            ("Caches dropped by", text(&settings.caches_dropped_by.join(", "))),
        ],
    );
    out.push_str("</div>\n");
    let command = match report.command.is_empty() {
        true => text("none: measured from a program"),
        false => format!("<code>{}</code>", Escaped(&command_line(&report.command))),
    };
    let _ = write!(
        out,
        "<p class=\"command\">Command line: {command}</p>\n<p>Began {}; format {} of the report.</p>\n</section>\n",
        date(report.started),
        count("/version", report.version.into())
    );
}

fn facts(out: &mut String, title: &str, all: &[(&str, String)]) {
    let _ = write!(out, "<div class=\"card\">\n<h3>{title}</h3>\n<dl class=\"facts\">\n");
    for (name, html) in all {
        let _ = writeln!(out, "<div><dt>{name}</dt><dd>{html}</dd></div>");
    }
    out.push_str("</dl>\n</div>\n");
}

/// The arguments as a shell would take them.
fn command_line(arguments: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let quoted = |it: &String| {
        if !it.is_empty() && it.chars().all(plain) {
            it.clone()
        } else {
            format!("'{}'", it.replace('\'', r"'\''"))
        }
    };
    arguments.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_pasted_into_a_shell() {
        let line = |all: &[&str]| command_line(&all.iter().map(|it| it.to_string()).collect::<Vec<_>>());
        assert_eq!(line(&["gpufeed", "bench", "/data/a-b"]), "gpufeed bench /data/a-b");
        assert_eq!(line(&["x", "my data", "it's", ""]), r"x 'my data' 'it'\''s' ''");
    }
}
