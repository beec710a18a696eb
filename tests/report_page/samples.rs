//! Reports to make pages of: an ordinary one, and those that a page may break on.

use std::collections::BTreeMap;

use gpufeed::measure::{
    BenchReport, Cache, DataInfo, Failure, Limit, Limits, Machine, Mark, Quantiles, Run, Settings, Spread,
    Summary, Sweep, SweepPoint,
};

/// Every sample, with a name for its file.
pub(crate) fn all() -> Vec<(&'static str, BenchReport)> {
    vec![
        ("ordinary", ordinary()),
        ("empty", empty()),
        ("one-run", one_run()),
        ("many", many()),
        ("hostile", hostile()),
        ("extreme", extreme()),
        ("nothing-known", nothing_known()),
    ]
}

fn mark(kind: &str, reason: &str) -> Mark {
    Mark { kind: kind.into(), reason: reason.into() }
}

fn around(median: f64, share: f64) -> Option<Spread> {
    let (min, max) = (median * (1.0 - share), median * (1.0 + 0.7 * share));
    Some(Spread { count: 5, min, median, max })
}

fn quantiles(count: u64, p50_us: f64, p99_us: f64, max_us: f64) -> Quantiles {
    Quantiles { count, p50_us, p99_us, max_us }
}

/// No run was finished.
pub(crate) fn empty() -> BenchReport {
    BenchReport {
        version: 1,
        started: 1_796_000_000,
        took_seconds: 0.0,
        interrupted: true,
        command: Vec::new(),
        machine: Machine::default(),
        data: DataInfo::default(),
        settings: Settings::default(),
        limits: Limits::default(),
        runs: Vec::new(),
        summary: Vec::new(),
        failures: Vec::new(),
        sweeps: Vec::new(),
        conclusion: Vec::new(),
    }
}

/// A machine with a GPU, four backends, some figures that are not what they seem to be, and one backend that failed.
pub(crate) fn ordinary() -> BenchReport {
    let short = mark("short", "An epoch took 0.31 s; below 1 s, starting up weighs too much in the rate.");
    let memory =
        mark("memory", "The bytes came from the page cache: this is the speed of memory, not of the disk.");
    let noisy =
        mark("noisy", "The fastest run was 1.9 times as fast as the slowest: other work was going on.");
    let above =
        mark("above-disk", "The rate is 1.14 times the disk's limit, which was measured 40 s earlier.");
    let detour =
        mark("detour", "3.1 % of the bytes went through the page cache, although direct I/O was asked for.");
    let cached = mark("cached", "The page cache could not be emptied: 12 % of the data was in it.");
    let rows = [
        ("auto", Cache::Cold, 2.58, 0.015, vec![]),
        ("auto", Cache::Warm, 6.25, 0.146, vec![memory.clone()]),
        ("uring", Cache::Cold, 2.44, 0.016, vec![above]),
        ("uring", Cache::Warm, 2.50, 0.015, vec![]),
        ("pread", Cache::Cold, 2.47, 0.037, vec![noisy, detour]),
        ("pread", Cache::Warm, 2.40, 0.035, vec![]),
        ("page-cache", Cache::Cold, 1.54, 0.657, vec![cached]),
        ("page-cache", Cache::Warm, 5.34, 0.190, vec![memory, short.clone()]),
    ];
    let mut summary = Vec::new();
    for (i, (backend, cache, rate, cpu, marks)) in rows.into_iter().enumerate() {
        let slow = 1.0 + i as f64 / 5.0;
        summary.push(Summary {
            backend: backend.into(),
            cache,
            gib_per_s: around(rate, 0.12),
            cpu_seconds_per_gib: around(cpu, 0.2),
            reads: quantiles(4096, 310.0 * slow, 1900.0 * slow, 9100.0 * slow),
            batch_waits: quantiles(446, 1.2 * slow, 840.0 * slow, 21_000.0 * slow),
            cached_fraction_before: Some(if cache == Cache::Cold { 0.0 } else { 1.0 }),
            share_of_disk: Some(rate / 2.6),
            share_of_link: Some(rate / 24.8),
            utilisation: around(0.62 + 0.03 * i as f64, 0.03),
            marks,
        });
    }
    let mut withheld = summary[5].clone();
    withheld.backend = "gds".into();
    withheld.cache = Cache::Cold;
    withheld.gib_per_s = None;
    withheld.cpu_seconds_per_gib = None;
    withheld.utilisation = None;
    withheld.reads = Quantiles::default();
    withheld.marks = vec![short];
    summary.push(withheld);
    let point = |value: &str, rate: f64| SweepPoint {
        value: value.into(),
        gib_per_s: around(rate, 0.15),
        cpu_seconds_per_gib: around(0.04 / rate, 0.1),
        marks: Vec::new(),
    };
    let sweep = |setting: &str, backend: &str, points: &[(&str, f64)]| Sweep {
        setting: setting.into(),
        backend: backend.into(),
        cache: Cache::Cold,
        points: points.iter().map(|(value, rate)| point(value, *rate)).collect(),
    };
    let sizes = [("64KiB", 0.9), ("256KiB", 1.7), ("1MiB", 2.44), ("4MiB", 2.51), ("16MiB", 2.48)];
    let depths = [
        ("1", 0.31),
        ("2", 0.6),
        ("4", 1.1),
        ("8", 1.9),
        ("16", 2.4),
        ("32", 2.45),
        ("64", 2.5),
        ("128", 2.42),
    ];
    let shuffles = [
        ("none", 2.5),
        ("full", 1.7),
        ("blocks:64:1024", 2.2),
        ("blocks:64:16384", 2.1),
        ("blocks:256:65536", 2.4),
    ];
    let mut sweeps = vec![
        sweep("io_bytes", "uring", &sizes),
        sweep("io_bytes", "page-cache", &sizes.map(|(value, rate)| (value, rate * 0.6))),
        sweep("queue_depth", "uring", &depths),
        sweep("shuffle", "uring", &shuffles),
    ];
    sweeps[1].cache = Cache::Warm;
    sweeps[2].points[1].gib_per_s = None;
    sweeps[2].points[1].marks.push(mark("short", "Only 3 batches were delivered."));
    sweeps[2].points[5].marks.push(mark("noisy", "The fastest run was 1.6 times as fast as the slowest."));
    let limit = |method: &str, rate| Limit {
        method: method.into(),
        gib_per_s: around(rate, 0.08).unwrap_or_default(),
        marks: Vec::new(),
    };
    let runs = (0..5).flat_map(|round| summary[..8].iter().map(move |it| run(it, round))).collect();
    BenchReport {
        interrupted: false,
        took_seconds: 183.4,
        command: ["gpufeed", "bench", "/data/train set", "--rounds", "5", "--html", "report.html"]
            .map(String::from)
            .to_vec(),
        machine: Machine {
            cpu: "AMD EPYC 9654 96-Core Processor".into(),
            processors: 16,
            memory_bytes: 128 << 30,
            kernel: "Linux 6.18.44".into(),
            gpus: vec!["Example GPU 80GB".into()],
            filesystem: "ext4".into(),
            disk: Some("nvme0n1 (none)".into()),
            gpufeed: "0.1.0".into(),
        },
        data: DataInfo {
            path: "/data/train set".into(),
            format: "records".into(),
            shards: 65,
            samples: 28_532,
            sample_bytes: 150_528,
            payload_bytes: 28_532 * 150_528,
            fingerprint: "9f2c1ab07d3344a1".repeat(4),
        },
        settings: Settings {
            device: "cuda:0".into(),
            rounds: 5,
            batch_size: 64,
            shuffle: "full".into(),
            prefetch: 4,
            queue_depth: 16,
            io_bytes: 1 << 20,
            step_ms: 2.5,
            caches_dropped_by: vec!["posix_fadvise".into(), "drop_caches".into()],
        },
        limits: Limits {
            disk: Some(limit("One thread, io_uring, direct reads of 1 MiB, 16 in flight, the files in turn.", 2.6)),
            fio: Some(limit("fio 3.33, io_uring, direct=1, bs=1M, iodepth=16.", 2.37)),
            link: Some(limit("Copies of 16 MiB from pinned host memory.", 24.8)),
        },
        runs,
        summary,
        failures: vec![Failure {
            backend: "gds".into(),
            cache: Some(Cache::Warm),
            error: "cuFileHandleRegister: 5030 (the device is not known to udev)\n/run/udev/data/b259:1 is missing".into(),
        }],
        sweeps,
        conclusion: vec![
            "From a cold disk, auto (which took uring) fed 2.58 GiB/s, 99 % of what the disk can do.".into(),
            "The plain two-copy way needed 41 times the CPU time for each GiB.".into(),
            "A larger read than 1 MiB brings nothing on this disk.".into(),
        ],
        ..empty()
    }
}

fn run(it: &Summary, round: u64) -> Run {
    let rate = it.gib_per_s.map(|it| it.median * (0.96 + 0.02 * round as f64));
    let bytes = 28_480 * 150_528;
    Run {
        backend: it.backend.clone(),
        backend_used: if it.backend == "auto" { "uring".into() } else { it.backend.clone() },
        backend_reason: "it was named".into(),
        cache: it.cache,
        round,
        seconds: bytes as f64 / (1u64 << 30) as f64 / rate.unwrap_or(1.0),
        setup_seconds: 0.0123,
        bytes,
        samples: 28_480,
        batches: 445,
        gb_per_s: rate.map(|rate| rate * 1.073_741_824),
        gib_per_s: rate,
        cpu_seconds: 0.064,
        cpu_seconds_per_gib: it.cpu_seconds_per_gib.map(|it| it.median),
        cached_fraction_before: it.cached_fraction_before,
        cached_fraction_after: Some(0.0004),
        reads: it.reads,
        batch_waits: it.batch_waits,
        bytes_by_way: BTreeMap::from([("uring_direct".into(), bytes), ("page_cache".into(), 0)]),
        peak_rss_bytes: 47 << 20,
        pinned_bytes: 16 << 20,
        device_bytes: 38_600_000,
        utilisation: it.utilisation.map(|it| it.median),
        marks: it.marks.clone(),
    }
}

/// One backend, once, and nothing around it.
fn one_run() -> BenchReport {
    let mut it = ordinary();
    it.summary.truncate(1);
    it.runs.truncate(1);
    it.summary[0].gib_per_s = Spread::of(&[2.5]);
    it.summary[0].utilisation = None;
    it.summary[0].batch_waits = quantiles(1, 0.0, 0.0, 0.0);
    it.limits = Limits::default();
    it.sweeps = vec![it.sweeps[0].clone()];
    it.sweeps[0].points.truncate(1);
    it.failures.clear();
    it
}

/// Twelve backends in both states, and sweeps of 1 to 20 points.
fn many() -> BenchReport {
    let mut it = ordinary();
    let pattern = it.summary.clone();
    it.summary.clear();
    for number in 0..12 {
        for (cache, from) in [(Cache::Cold, 2 * (number % 4)), (Cache::Warm, 2 * (number % 4) + 1)] {
            let backend = format!("{}-{number}", pattern[from].backend);
            it.summary.push(Summary { backend, cache, ..pattern[from].clone() });
        }
    }
    it.sweeps = (1..=20)
        .map(|count| Sweep {
            setting: if count % 2 == 0 { "queue_depth".into() } else { "shuffle".into() },
            backend: format!("backend-{count}"),
            cache: if count % 3 == 0 { Cache::Warm } else { Cache::Cold },
            points: (0..count)
                .map(|i| SweepPoint {
                    value: if count % 2 == 0 { (1u64 << i).to_string() } else { format!("blocks:{i}:16384") },
                    gib_per_s: if i % 7 == 5 { None } else { around(0.4 + 0.2 * i as f64, 0.2) },
                    cpu_seconds_per_gib: None,
                    marks: if i % 7 == 5 { vec![mark("short", "Too short.")] } else { Vec::new() },
                })
                .collect(),
        })
        .collect();
    it
}

/// What would break a page if it were not escaped, and what would break its layout if it could.
pub(crate) const HOSTILE: &str =
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'\u{0}\u{1b}[31m\u{202e}<!--]]>";

fn hostile() -> BenchReport {
    let mut it = ordinary();
    let bad = || HOSTILE.to_owned();
    let endless = "x".repeat(3000);
    it.command = vec![bad(), endless.clone()];
    it.machine = Machine {
        cpu: bad(),
        kernel: bad(),
        gpus: vec![bad(), endless.clone()],
        filesystem: bad(),
        disk: Some(endless.clone()),
        gpufeed: bad(),
        ..it.machine
    };
    it.data.path = format!("/data/{HOSTILE}/{endless}");
    it.data.format = bad();
    it.data.fingerprint = endless.clone();
    it.settings.device = bad();
    it.settings.shuffle = endless.clone();
    it.settings.caches_dropped_by = vec![bad()];
    for limit in [&mut it.limits.disk, &mut it.limits.fio, &mut it.limits.link].into_iter().flatten() {
        limit.method = bad();
        limit.marks = vec![Mark { kind: bad(), reason: endless.clone() }];
    }
    for (i, row) in it.summary.iter_mut().enumerate() {
        row.backend = format!("{i}{HOSTILE}");
        row.marks.push(Mark { kind: bad(), reason: bad() });
    }
    for run in &mut it.runs {
        run.backend = endless.clone();
        run.backend_used = bad();
        run.backend_reason = bad();
        run.bytes_by_way = BTreeMap::from([("</b>&\"'".into(), 7), ("a/b~c".into(), 8)]);
        run.marks.push(Mark { kind: bad(), reason: bad() });
    }
    it.failures = vec![Failure { backend: bad(), cache: None, error: format!("{HOSTILE}\n{endless}") }];
    for sweep in &mut it.sweeps {
        sweep.setting = bad();
        sweep.backend = bad();
        for point in &mut sweep.points {
            point.value = format!("{HOSTILE}{}", point.value);
            point.marks.push(Mark { kind: endless.clone(), reason: bad() });
        }
    }
    it.conclusion.push(bad());
    it.conclusion.push(endless);
    it
}

/// The smallest, the largest, and what is no number at all.
fn extreme() -> BenchReport {
    let mut it = ordinary();
    let values = [0.0, 1e-12, 1e-300, 1e12, 1e300, f64::NAN, f64::INFINITY, -1.0];
    for (row, value) in it.summary.iter_mut().zip(values) {
        let spread = Some(Spread { count: u64::MAX, min: value, median: value, max: value });
        row.gib_per_s = spread;
        row.cpu_seconds_per_gib = spread;
        row.utilisation = spread;
        row.share_of_disk = Some(value);
        row.cached_fraction_before = Some(value);
        row.reads = quantiles(u64::MAX, value, value, value);
        row.batch_waits = quantiles(1, 0.0, value, value);
    }
    for (point, value) in it.sweeps[2].points.iter_mut().zip(values) {
        point.gib_per_s = Some(Spread { count: 1, min: value, median: value, max: value });
    }
    for (run, value) in it.runs.iter_mut().zip(values) {
        run.gib_per_s = Some(value);
        run.seconds = value;
        run.cpu_seconds = value;
        run.bytes = u64::MAX;
        run.peak_rss_bytes = u64::MAX;
    }
    if let Some(limit) = &mut it.limits.disk {
        limit.gib_per_s = Spread { count: 1, min: f64::NAN, median: f64::NAN, max: f64::INFINITY };
    }
    it.took_seconds = f64::NAN;
    it.started = u64::MAX;
    it.settings.io_bytes = u64::MAX;
    it
}

/// Everything that may be missing is.
fn nothing_known() -> BenchReport {
    let mut it = ordinary();
    it.limits = Limits::default();
    it.machine.disk = None;
    for row in &mut it.summary {
        row.gib_per_s = None;
        row.cpu_seconds_per_gib = None;
        row.cached_fraction_before = None;
        row.share_of_disk = None;
        row.share_of_link = None;
        row.utilisation = None;
        row.reads = Quantiles::default();
        row.batch_waits = Quantiles::default();
    }
    for run in &mut it.runs {
        run.gb_per_s = None;
        run.gib_per_s = None;
        run.cpu_seconds_per_gib = None;
        run.cached_fraction_before = None;
        run.cached_fraction_after = None;
        run.utilisation = None;
        run.bytes_by_way.clear();
    }
    for point in it.sweeps.iter_mut().flat_map(|sweep| &mut sweep.points) {
        point.gib_per_s = None;
        point.cpu_seconds_per_gib = None;
    }
    it.sweeps.push(Sweep {
        setting: "prefetch".into(),
        backend: "uring".into(),
        cache: Cache::Cold,
        points: Vec::new(),
    });
    it
}
