//! The runs of one backend and state of the cache, put together.

use super::marks;
use super::report::{Cache, Limits, Quantiles, Run, Spread, Summary, SweepPoint};

/// The best that any way of reading showed of the disk, in GiB/s.
pub(super) fn disk_limit(limits: &Limits) -> Option<f64> {
    let medians = [&limits.disk, &limits.fio].into_iter().flatten().map(|limit| limit.gib_per_s.median);
    medians.max_by(f64::total_cmp)
}

/// Marks runs that were faster than a limit: known only when all is measured.
pub(super) fn hold_against(runs: &mut [Run], limits: &Limits) {
    for run in runs {
        run.marks.extend(marks::above(run, disk_limit(limits), limits.link.as_ref()));
    }
}

/// One summary for each backend and state of the cache, in the order in which they first ran.
pub(super) fn of(runs: &[Run], limits: &Limits) -> Vec<Summary> {
    let mut groups: Vec<(&str, Cache)> = Vec::new();
    for run in runs {
        if !groups.contains(&(run.backend.as_str(), run.cache)) {
            groups.push((&run.backend, run.cache));
        }
    }
    groups.sort_by_key(|(_, cache)| *cache);
    groups.into_iter().map(|(backend, cache)| one(backend, cache, runs, limits)).collect()
}

fn one(backend: &str, cache: Cache, runs: &[Run], limits: &Limits) -> Summary {
    let runs = runs.iter().filter(|run| run.backend == backend && run.cache == cache);
    let gib_per_s = spread(runs.clone(), |run| run.gib_per_s);
    let rate = gib_per_s.map(|spread| spread.median);
    let share = |limit: Option<f64>| Some(rate? / limit.filter(|limit| *limit > 0.0)?);
    let mut marks = marks::together(runs.clone());
    marks.extend(marks::noisy(gib_per_s.as_ref()));
    Summary {
        backend: backend.into(),
        cache,
        gib_per_s,
        cpu_seconds_per_gib: spread(runs.clone(), |run| run.cpu_seconds_per_gib),
        reads: middle(runs.clone().map(|run| run.reads)),
        batch_waits: middle(runs.clone().map(|run| run.batch_waits)),
        cached_fraction_before: runs
            .clone()
            .filter_map(|run| run.cached_fraction_before)
            .max_by(f64::total_cmp),
        // What is read from the page cache says nothing about the disk.
        share_of_disk: if cache == Cache::Cold { share(disk_limit(limits)) } else { None },
        share_of_link: share(limits.link.as_ref().map(|link| link.gib_per_s.median)),
        utilisation: spread(runs, |run| run.utilisation),
        marks,
    }
}

/// The runs of one value of a sweep.
pub(super) fn point(value: String, runs: &[Run]) -> SweepPoint {
    let gib_per_s = spread(runs.iter(), |run| run.gib_per_s);
    let mut marks = marks::together(runs.iter());
    marks.extend(marks::noisy(gib_per_s.as_ref()));
    SweepPoint {
        value,
        gib_per_s,
        cpu_seconds_per_gib: spread(runs.iter(), |run| run.cpu_seconds_per_gib),
        marks,
    }
}

fn spread<'r>(runs: impl Iterator<Item = &'r Run>, of: impl Fn(&Run) -> Option<f64>) -> Option<Spread> {
    let values: Vec<f64> = runs.filter_map(of).collect();
    Spread::of(&values)
}

/// The middle, over the runs, of each quantile; of all values together, how many there were.
fn middle(all: impl Iterator<Item = Quantiles> + Clone) -> Quantiles {
    let all = all.filter(|quantiles| quantiles.count > 0);
    let of = |pick: fn(&Quantiles) -> f64| {
        let values: Vec<f64> = all.clone().map(|quantiles| pick(&quantiles)).collect();
        Spread::of(&values).map_or(0.0, |spread| spread.median)
    };
    Quantiles {
        count: all.clone().map(|quantiles| quantiles.count).sum(),
        p50_us: of(|it| it.p50_us),
        p99_us: of(|it| it.p99_us),
        max_us: of(|it| it.max_us),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::report::{Limit, Mark};
    use super::*;

    /// A run of 1 GiB in 1 s.
    pub(in super::super) fn run() -> Run {
        Run {
            backend: "pread".into(),
            backend_used: "pread".into(),
            backend_reason: "it was named".into(),
            cache: Cache::Cold,
            round: 0,
            seconds: 1.0,
            setup_seconds: 0.1,
            bytes: 1 << 30,
            samples: 1024,
            batches: 16,
            gb_per_s: Some(1.073_741_824),
            gib_per_s: Some(1.0),
            cpu_seconds: 0.1,
            cpu_seconds_per_gib: Some(0.1),
            cached_fraction_before: Some(0.0),
            cached_fraction_after: Some(0.0),
            reads: Quantiles::default(),
            batch_waits: Quantiles { count: 16, p50_us: 10.0, p99_us: 20.0, max_us: 30.0 },
            bytes_by_way: [("pread_direct".to_string(), 1 << 30)].into(),
            peak_rss_bytes: 1 << 20,
            pinned_bytes: 0,
            device_bytes: 1 << 20,
            utilisation: None,
            marks: Vec::new(),
        }
    }

    #[test]
    fn runs_are_put_together_by_backend_and_cache_cold_before_warm() {
        let warm = Run { cache: Cache::Warm, ..run() };
        let slow = Run { gib_per_s: Some(0.9), cached_fraction_before: Some(0.005), ..run() };
        let other = Run { backend: "uring".into(), gib_per_s: None, ..run() };
        let limits = Limits {
            disk: Some(Limit {
                method: String::new(),
                gib_per_s: Spread::of(&[2.0]).unwrap(),
                marks: Vec::new(),
            }),
            ..Limits::default()
        };
        let all = of(&[warm, run(), other, slow, run()], &limits);
        let names: Vec<_> = all.iter().map(|it| (it.backend.as_str(), it.cache)).collect();
        assert_eq!(names, [("pread", Cache::Cold), ("uring", Cache::Cold), ("pread", Cache::Warm)]);
        let pread = &all[0];
        let rate = pread.gib_per_s.unwrap();
        assert_eq!((rate.count, rate.min, rate.median, rate.max), (3, 0.9, 1.0, 1.0));
        assert_eq!(pread.share_of_disk, Some(0.5));
        assert_eq!(pread.cached_fraction_before, Some(0.005));
        assert_eq!((pread.batch_waits.count, pread.batch_waits.p99_us), (48, 20.0));
        assert_eq!((all[1].gib_per_s, all[1].share_of_disk), (None, None), "a rate that is withheld is no 0");
        assert_eq!(all[2].share_of_disk, None, "warm says nothing about the disk");
    }

    #[test]
    fn a_mark_of_some_runs_tells_of_how_many() {
        let short = Mark { kind: "short".into(), reason: "only 5 ms".into() };
        let marked = Run { marks: vec![short.clone()], ..run() };
        let summary = &of(&[run(), marked.clone(), run()], &Limits::default())[0];
        assert_eq!(summary.marks[0].reason, "only 5 ms (1 of 3 runs)");
        assert_eq!(of(&[marked.clone(), marked], &Limits::default())[0].marks, [short]);
    }
}
