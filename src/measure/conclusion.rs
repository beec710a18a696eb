//! What follows from a benchmark, in plain words.

use super::report::{BenchReport, Cache, Spread, Summary};
use super::summary::disk_limit;

/// Marks that take a figure out of the comparison: it is not what its heading says.
const DISQUALIFYING: [&str; 6] = ["cached", "not-cached", "unchecked", "memory", "above-disk", "above-link"];

/// One sentence each. Nothing is concluded from figures that are not what they seem to be.
pub(super) fn of(report: &BenchReport) -> Vec<String> {
    let mut words = Vec::new();
    let in_memory = report.summary.iter().flat_map(|it| &it.marks).any(|mark| mark.kind == "memory");
    if in_memory {
        words.push(format!(
            "The data is on {}, which is memory: nothing here is the speed of a disk.",
            report.machine.filesystem
        ));
    }
    for cache in [Cache::Cold, Cache::Warm] {
        words.extend(of_cache(report, cache));
    }
    for failure in report.failures.iter().filter(|failure| failure.backend == "gds") {
        words.push(format!("GDS was not measured: {}.", failure.error.trim_end_matches('.')));
    }
    for sweep in &report.sweeps {
        let rated = sweep.points.iter().filter_map(|point| Some((point, point.gib_per_s?)));
        let best = rated.clone().max_by(|a, b| a.1.median.total_cmp(&b.1.median));
        let worst = rated.min_by(|a, b| a.1.median.total_cmp(&b.1.median));
        let (Some((best, fast)), Some((worst, slow))) = (best, worst) else { continue };
        let head =
            format!("{}, {} with {}", name(sweep.cache), sweep.backend, sweep.setting.replace('_', " "));
        if best.value == worst.value {
            continue;
        }
        words.push(if apart(&fast, &slow) {
            format!(
                "{head} {} gives {:.3} GiB/s, {} that with {}.",
                best.value,
                fast.median,
                times(fast.median / slow.median),
                worst.value
            )
        } else {
            format!("{head} of {} or {} does not differ by more than the noise.", best.value, worst.value)
        });
    }
    if report.interrupted {
        words.push(
            "It was ended early: what was measured until then is here, and the rest is missing.".into(),
        );
    }
    words
}

fn of_cache(report: &BenchReport, cache: Cache) -> Vec<String> {
    let here: Vec<&Summary> = report.summary.iter().filter(|it| it.cache == cache).collect();
    let why_not = |it: &Summary| {
        let taints = |kind: &&str| {
            // What is in memory is as warm as can be.
            DISQUALIFYING.contains(kind) && (*kind != "memory" || cache == Cache::Cold)
        };
        it.marks.iter().map(|mark| mark.kind.as_str()).find(taints).map(str::to_string)
    };
    let trusted = |it: &&&Summary| why_not(it).is_none();
    let rated = |it: &&Summary| Some((it.backend.clone(), it.gib_per_s?, it.cpu_seconds_per_gib?));
    let mut rates: Vec<(String, Spread, Spread)> = here.iter().filter(trusted).filter_map(rated).collect();
    rates.sort_by(|a, b| b.1.median.total_cmp(&a.1.median));
    let mut words = Vec::new();
    if rates.is_empty() && !here.is_empty() {
        words.push(format!("{}, no figure can be relied on: the marks say why.", name(cache)));
    }
    for (it, why) in here.iter().filter(|_| !rates.is_empty()).filter_map(|it| Some((it, why_not(it)?))) {
        words.push(format!("{}, {} is not compared: its figure is marked ({why}).", name(cache), it.backend));
    }
    if report.settings.step_ms > 0.0 {
        // The step sets the pace, so rates say little about the ways.
        for it in &here {
            if let Some(use_of) = it.utilisation {
                words.push(format!(
                    "{}, {} keeps an accelerator that takes {} ms a batch busy {:.1} % of the time.",
                    name(cache),
                    it.backend,
                    report.settings.step_ms,
                    use_of.median * 100.0
                ));
            }
        }
        return words;
    }
    let Some((best, rate, cpu)) = rates.first() else { return words };
    let usual = rates.iter().find(|(backend, ..)| backend == "page-cache");
    match usual {
        Some((usual, slow, slow_cpu)) if usual != best => words.push(if apart(rate, slow) {
            format!(
                "{}, {best} is {} as fast as the page cache, at {} of its CPU time for a byte.",
                name(cache),
                times(rate.median / slow.median),
                percent(cpu.median / slow_cpu.median)
            )
        } else {
            format!(
                "{}, {best} and the page cache do not differ by more than the noise; {best} takes {} of its CPU time.",
                name(cache),
                percent(cpu.median / slow_cpu.median)
            )
        }),
        _ => {
            if let Some((second, slow, _)) = rates.get(1) {
                words.push(if apart(rate, slow) {
                    let times = times(rate.median / slow.median);
                    format!("{}, {best} is the fastest, {times} as fast as {second}.", name(cache))
                } else {
                    format!("{}, {best} and {second} do not differ by more than the noise.", name(cache))
                });
            }
        }
    }
    if let Some(limit) = disk_limit(&report.limits).filter(|limit| cache == Cache::Cold && *limit > 0.0) {
        words.push(format!(
            "{}, {best} reads {:.0} % of what the disk gave to a plain read loop.",
            name(cache),
            rate.median / limit * 100.0
        ));
    }
    words
}

fn name(cache: Cache) -> &'static str {
    match cache {
        Cache::Cold => "Cold",
        Cache::Warm => "Warm",
    }
}

/// Whether all of one is above all of the other.
fn apart(a: &Spread, b: &Spread) -> bool {
    a.min > b.max || b.min > a.max
}

fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if !percent.is_finite() => "a multiple".into(),
        percent if percent < 10.0 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

fn times(factor: f64) -> String {
    if factor.is_finite() { format!("{factor:.2} times") } else { "many times".into() }
}

#[cfg(test)]
mod tests {
    use super::super::report::{Failure, Limit, Limits, Run};
    use super::super::summary;
    use super::*;

    fn report(runs: &[Run]) -> BenchReport {
        let limit =
            Limit { method: String::new(), gib_per_s: Spread::of(&[2.5]).unwrap(), marks: Vec::new() };
        let limits = Limits { disk: Some(limit), ..Limits::default() };
        let summary = summary::of(runs, &limits);
        BenchReport { limits, runs: runs.to_vec(), summary, ..super::super::bench::empty_report() }
    }

    fn run(backend: &str, rate: f64, cpu: f64) -> Run {
        let (gib_per_s, cpu_seconds_per_gib) = (Some(rate), Some(cpu));
        Run { backend: backend.into(), gib_per_s, cpu_seconds_per_gib, ..summary::tests::run() }
    }

    #[test]
    fn the_best_is_compared_with_the_page_cache_and_with_the_disk() {
        let mut report = report(&[run("uring", 2.0, 0.1), run("page-cache", 1.0, 0.4)]);
        report.failures =
            vec![Failure { backend: "gds".into(), cache: None, error: "there is no GPU".into() }];
        let words = of(&report).join("\n");
        assert!(
            words.contains("uring is 2.00 times as fast as the page cache, at 25 % of its CPU"),
            "{words}"
        );
        assert!(words.contains("uring reads 80 % of what the disk gave"), "{words}");
        assert!(words.contains("GDS was not measured: there is no GPU."), "{words}");
    }

    #[test]
    fn what_is_within_the_noise_is_not_called_faster() {
        let runs = [
            run("uring", 1.0, 0.1),
            run("uring", 2.0, 0.1),
            run("page-cache", 1.1, 0.4),
            run("page-cache", 1.2, 0.4),
        ];
        let words = of(&report(&runs)).join("\n");
        assert!(words.contains("do not differ by more than the noise"), "{words}");
    }

    #[test]
    fn nothing_is_concluded_from_figures_that_are_marked() {
        let mut marked = run("uring", 9.0, 0.1);
        marked.marks.push(super::super::marks::mark("cached", "not cold"));
        let words = of(&report(&[marked])).join("\n");
        assert!(words.contains("no figure can be relied on") && !words.contains("the disk gave"), "{words}");
    }
}
