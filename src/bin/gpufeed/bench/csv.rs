//! Every run as a line of comma-separated values.

use gpufeed::measure::{BenchReport, Cache, Quantiles, Run};

const HEADER: &str = "backend,backend_used,cache,round,seconds,setup_seconds,bytes,samples,batches,gb_per_s,gib_per_s,\
    cpu_seconds,cpu_seconds_per_gib,cached_fraction_before,cached_fraction_after,reads,read_p50_us,read_p99_us,read_max_us,\
    batch_waits,batch_wait_p50_us,batch_wait_p99_us,batch_wait_max_us,ways,peak_rss_bytes,pinned_bytes,device_bytes,\
    utilisation,marks,interrupted";

/// A value that was not told is an empty field.
pub(crate) fn table(report: &BenchReport) -> String {
    let mut text = format!("{HEADER}\n");
    for run in &report.runs {
        text += &line(run, report.interrupted);
        text.push('\n');
    }
    text
}

fn line(run: &Run, interrupted: bool) -> String {
    let mut fields = vec![
        quoted(&run.backend),
        quoted(&run.backend_used),
        match run.cache {
            Cache::Cold => "cold".into(),
            Cache::Warm => "warm".into(),
        },
    ];
    fields.extend([run.round.to_string(), run.seconds.to_string(), run.setup_seconds.to_string()]);
    fields.extend([run.bytes, run.samples, run.batches].map(|value| value.to_string()));
    fields.extend([run.gb_per_s, run.gib_per_s].map(optional));
    fields.push(run.cpu_seconds.to_string());
    fields.extend(
        [run.cpu_seconds_per_gib, run.cached_fraction_before, run.cached_fraction_after].map(optional),
    );
    fields.extend(quantiles(&run.reads));
    fields.extend(quantiles(&run.batch_waits));
    let ways = run.bytes_by_way.iter().filter(|(_, bytes)| **bytes > 0);
    fields.push(quoted(&ways.map(|(way, bytes)| format!("{way}={bytes}")).collect::<Vec<_>>().join(" ")));
    fields.extend([run.peak_rss_bytes, run.pinned_bytes, run.device_bytes].map(|value| value.to_string()));
    fields.push(optional(run.utilisation));
    fields.push(quoted(&run.marks.iter().map(|mark| mark.kind.as_str()).collect::<Vec<_>>().join(" ")));
    fields.push(interrupted.to_string());
    fields.join(",")
}

fn quantiles(it: &Quantiles) -> [String; 4] {
    let told = |value: f64| if it.count > 0 { value.to_string() } else { String::new() };
    [it.count.to_string(), told(it.p50_us), told(it.p99_us), told(it.max_us)]
}

fn optional(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into() }
}
