//! `gpufeed bench` as scripts see it: what it promises, and what it does not claim.
#![cfg(feature = "cli")]

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{folder, noise, write};
use serde_json::Value;
use tempfile::TempDir;

fn gpufeed(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpufeed"));
    command.arg("bench").args(args).stdin(Stdio::null());
    command
}

fn ran(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = gpufeed(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// The one JSON object of a benchmark, in which no number is infinite or not one.
#[track_caller]
fn json(args: &[&str]) -> Value {
    let (status, stdout, stderr) = ran(&[args, &["--json", "--no-fio"]].concat());
    assert_eq!((status, &*stderr), (0, ""));
    // JSON has no NaN: where one was, serde writes null, which only what may be missing is.
    let value: Value = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
    serde_json::from_value::<gpufeed::measure::BenchReport>(value.clone()).unwrap();
    value
}

/// Records of 64 KiB in two shards, on a real disk.
fn data(records: usize) -> (TempDir, PathBuf) {
    let folder = folder();
    let path = folder.path().join("data");
    fs::create_dir(&path).unwrap();
    let bytes = noise(7, records * (64 << 10));
    let (first, second) = bytes.split_at(records / 2 * (64 << 10));
    write(&path.join("a.bin"), first);
    write(&path.join("b.bin"), second);
    (folder, path)
}

const RECORDS: [&str; 2] = ["--record-bytes", "64KiB"];

fn with<'a>(path: &'a Path, args: &[&'a str]) -> Vec<&'a str> {
    [&[path.to_str().unwrap()], &RECORDS[..], args].concat()
}

fn uring_works() -> bool {
    gpufeed::Backend::Uring.probe().is_ok()
}

fn kinds(of: &Value) -> Vec<&str> {
    of["marks"].as_array().unwrap().iter().map(|mark| mark["kind"].as_str().unwrap()).collect()
}

#[test]
fn the_json_tells_all_that_it_promises_and_its_figures_agree() {
    let (_folder, path) = data(1024);
    let it = json(&with(&path, &["--backends", "pread,page-cache", "--rounds", "2", "--batch-size", "32"]));
    assert_eq!((it["version"].as_u64(), it["interrupted"].as_bool()), (Some(1), Some(false)));
    let runs = it["runs"].as_array().unwrap();
    let order: Vec<_> =
        runs.iter().map(|run| (run["cache"].as_str().unwrap(), run["backend"].as_str().unwrap())).collect();
    let round = [("cold", "pread"), ("cold", "page-cache"), ("warm", "pread"), ("warm", "page-cache")];
    assert_eq!(order, [round, round].concat(), "in turn");
    for run in runs {
        let number = |key: &str| run[key].as_f64().unwrap_or_else(|| panic!("{key}: {run}"));
        assert_eq!(
            (number("samples"), number("batches"), number("bytes")),
            (1024.0, 32.0, (64 << 20) as f64)
        );
        assert!(number("seconds") > 0.0 && number("cpu_seconds") >= 0.0 && number("setup_seconds") > 0.0);
        assert_eq!(run["batch_waits"]["count"].as_u64(), Some(32));
        for quantiles in ["reads", "batch_waits"].map(|key| &run[key]) {
            let [p50, p99, max] = ["p50_us", "p99_us", "max_us"].map(|key| quantiles[key].as_f64().unwrap());
            assert!(quantiles["count"].as_u64() > Some(0) && 0.0 < max && p50 <= p99 && p99 <= max, "{run}");
        }
        if run["gib_per_s"].is_null() {
            assert!(number("seconds") < 0.01 && kinds(run).contains(&"short"), "{run}");
        } else {
            let close = |a: f64, b: f64| assert!((a - b).abs() <= b * 1e-9, "{a} {b}");
            close(number("gb_per_s"), number("bytes") / number("seconds") / 1e9);
            close(number("gib_per_s"), number("bytes") / number("seconds") / 1_073_741_824.0);
            close(number("cpu_seconds_per_gib"), number("cpu_seconds") * 16.0);
        }
        let ways = run["bytes_by_way"].as_object().unwrap();
        assert_eq!(ways.values().filter_map(Value::as_u64).sum::<u64>(), 64 << 20);
        assert!(number("peak_rss_bytes") > number("device_bytes"));
        let cached = number("cached_fraction_before");
        if run["cache"] == "warm" {
            assert!(cached > 0.99 || kinds(run).contains(&"not-cached"), "{run}");
        } else {
            assert!(cached <= 0.01 || kinds(run).contains(&"cached"), "{run}");
        }
    }
    for summary in it["summary"].as_array().unwrap() {
        let same = |run: &&Value| run["backend"] == summary["backend"] && run["cache"] == summary["cache"];
        let mut rates: Vec<f64> =
            runs.iter().filter(same).filter_map(|run| run["gib_per_s"].as_f64()).collect();
        rates.sort_by(f64::total_cmp);
        let told = &summary["gib_per_s"];
        match rates[..] {
            [] => assert!(told.is_null()),
            _ => {
                let median = (rates[(rates.len() - 1) / 2] + rates[rates.len() / 2]) / 2.0;
                let told = ["min", "median", "max"].map(|key| told[key].as_f64().unwrap());
                assert!((told[1] - median).abs() < 1e-9);
                assert_eq!((told[0], told[2]), (rates[0], rates[rates.len() - 1]));
            }
        }
    }
    assert_eq!(it["summary"].as_array().unwrap().len(), 4);
    for key in ["cpu", "kernel", "filesystem", "gpufeed"] {
        assert!(it["machine"][key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {}", it["machine"]);
    }
    assert_eq!(it["data"]["samples"].as_u64(), Some(1024));
    assert_eq!(it["settings"]["batch_size"].as_u64(), Some(32));
}

#[test]
fn a_figure_of_memory_is_called_that() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return eprintln!("skipped: no /dev/shm") };
    let path = folder.path().join("data");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.bin"), noise(1, 4 << 20)).unwrap();
    let it = json(&with(&path, &["--backends", "uring,pread", "--rounds", "1"]));
    assert!(it["limits"]["disk"].is_null(), "there is no disk: {}", it["limits"]);
    for summary in it["summary"].as_array().unwrap() {
        assert!(kinds(summary).contains(&"memory"), "{summary}");
        assert!(kinds(summary).contains(&"detour"), "nothing was read directly: {summary}");
        assert!(summary["share_of_disk"].is_null());
    }
    let words = it["conclusion"].to_string();
    assert!(words.contains("memory") && !words.contains("times as fast as the page cache"), "{words}");
}

#[test]
fn data_that_cannot_be_dropped_from_the_cache_is_never_called_cold() {
    let (_folder, path) = data(256);
    // SAFETY: a mapping of an open file of this test, which is read and nothing else, and lives to the end.
    let mapped = unsafe {
        let file = fs::File::open(path.join("a.bin")).unwrap();
        let len = file.metadata().unwrap().len() as usize;
        let map = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            std::os::fd::AsRawFd::as_raw_fd(&file),
            0,
        );
        assert_ne!(map, libc::MAP_FAILED);
        std::slice::from_raw_parts(map.cast::<u8>(), len)
    };
    assert!(mapped.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>() > 0);
    let it = json(&with(&path, &["--backends", "page-cache,pread", "--rounds", "1", "--cache", "cold"]));
    for summary in it["summary"].as_array().unwrap() {
        assert!(kinds(summary).contains(&"cached"), "{summary}");
        assert!(summary["cached_fraction_before"].as_f64().unwrap() > 0.4, "{summary}");
    }
    let words = it["conclusion"].to_string();
    assert!(words.contains("no figure can be relied on") && !words.contains("as fast as"), "{words}");
}

#[test]
fn headers_that_were_read_when_the_data_was_opened_do_not_make_it_warm() {
    let folder = folder();
    for shard in 0..4 {
        let bytes = common::npy("'|u1'", "(64, 4096)", 64, &noise(shard, 64 * 4096));
        write(&folder.path().join(format!("{shard}.npy")), &bytes);
    }
    let args = [folder.path().to_str().unwrap(), "--backends", "auto", "--rounds", "1"];
    let it = json(&args);
    let (cold, warm) = (&it["runs"][0], &it["runs"][1]);
    assert!(cold["cached_fraction_before"].as_f64().unwrap() <= 0.01, "{cold}");
    assert!(warm["cached_fraction_before"].as_f64().unwrap() >= 0.99, "{warm}");
    // `auto` looks at what is cached.
    if uring_works() && !kinds(cold).contains(&"memory") {
        let bytes = |run: &Value, way: &str| run["bytes_by_way"][way].as_u64().unwrap();
        assert!(bytes(warm, "uring_buffered") > 0 && bytes(warm, "uring_direct") == 0, "{warm}");
    }
}

#[test]
fn a_backend_that_does_not_work_shows_its_error_and_no_figure() {
    let (_folder, path) = data(64);
    let it = json(&with(&path, &["--device", "host", "--backends", "gds,pread", "--rounds", "2"]));
    let failures = it["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 1, "it is tried once: {failures:?}");
    assert_eq!(failures[0]["backend"], "gds");
    assert!(failures[0]["error"].as_str().unwrap().contains("name a GPU"), "{failures:?}");
    for list in ["runs", "summary"] {
        assert!(it[list].as_array().unwrap().iter().all(|it| it["backend"] == "pread"), "{}", it[list]);
    }
    let args = with(&path, &["--device", "host", "--backends", "gds", "--rounds", "1", "--no-fio"]);
    let (status, stdout, stderr) = ran(&args);
    assert_eq!(status, 1, "{stdout}");
    assert!(
        stderr.contains("no backend could be measured: gds: ") && stdout.contains("failed: gds"),
        "{stderr}"
    );
    assert!(!stdout.contains("0.000"), "{stdout}");
}

#[test]
fn inputs_are_left_as_they_are() {
    let (_folder, path) = data(64);
    let state = || {
        let mut names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        let of = |path: &PathBuf| {
            let it = fs::metadata(path).unwrap();
            (
                path.clone(),
                it.ino(),
                it.size(),
                it.mtime(),
                it.mtime_nsec(),
                it.ctime_nsec(),
                fs::read(path).unwrap(),
            )
        };
        names.iter().map(of).collect::<Vec<_>>()
    };
    let before = state();
    let args = with(&path, &["--rounds", "1", "--sweep", "io-bytes=4KiB,64KiB"]);
    let (status, ..) = ran(&args);
    assert_eq!(status, 0);
    assert!(before == state());
}

#[test]
fn one_sample_is_enough_and_makes_no_number_that_is_none() {
    let (_folder, path) = data(2);
    fs::remove_file(path.join("b.bin")).unwrap();
    for step in [&[][..], &["--step-ms", "1"]] {
        let args = ["--last-batch", "short", "--rounds", "1", "--backends", "pread,page-cache"];
        let it = json(&with(&path, &[&args, step].concat()));
        for run in it["runs"].as_array().unwrap() {
            assert_eq!((run["samples"].as_u64(), run["batches"].as_u64()), (Some(1), Some(1)));
            assert!(kinds(run).contains(&"short"), "{run}");
        }
        let args = with(&path, &[&args[..], step, &["--no-fio"]].concat());
        let (status, stdout, _) = ran(&args);
        assert!(status == 0 && !stdout.contains("NaN") && !stdout.contains("inf"), "{stdout}");
    }
}

#[test]
fn no_sample_or_no_batch_is_told_and_divides_nothing() {
    let (folder, path) = data(64);
    let it =
        json(&with(&path, &["--batch-size", "100", "--allow-empty", "--backends", "pread", "--rounds", "1"]));
    for run in it["runs"].as_array().unwrap() {
        assert_eq!((run["bytes"].as_u64(), run["batches"].as_u64()), (Some(0), Some(0)));
        assert!(run["gib_per_s"].is_null() && run["cpu_seconds_per_gib"].is_null(), "{run}");
        assert!(kinds(run).contains(&"short"), "{run}");
    }
    // None at all is an error that names the file.
    let none = folder.path().join("none.npy");
    fs::write(&none, common::npy("'<f4'", "(0, 4)", 64, &[])).unwrap();
    let (status, stdout, stderr) = ran(&[none.to_str().unwrap(), "--json"]);
    assert_eq!((status, &*stdout), (1, ""));
    assert!(stderr.contains("none.npy") && stderr.contains("no samples"), "{stderr}");
}

#[test]
fn a_simulated_step_tells_how_busy_it_was_kept() {
    let (_folder, path) = data(64);
    let args =
        ["--backends", "pread", "--rounds", "1", "--cache", "warm", "--batch-size", "8", "--step-ms", "10"];
    let it = json(&with(&path, &args));
    let run = &it["runs"][0];
    let (busy, seconds) = (run["utilisation"].as_f64().unwrap(), run["seconds"].as_f64().unwrap());
    assert!((busy - 0.08 / seconds).abs() < 1e-9 && seconds >= 0.08, "{run}");
    assert_eq!(it["summary"][0]["utilisation"]["median"].as_f64(), Some(busy));
}

#[test]
fn a_sweep_has_a_point_for_every_value_and_the_error_of_one_that_fails() {
    let (_folder, path) = data(64);
    let args = ["--backends", "pread", "--rounds", "1", "--cache", "cold", "--sweep", "queue-depth=1,5000,4"];
    let it = json(&with(&path, &[&args[..], &["--sweep", "shuffle=none,blocks"]].concat()));
    let sweeps = it["sweeps"].as_array().unwrap();
    let values = |sweep: &Value| {
        let points = sweep["points"].as_array().unwrap();
        points.iter().map(|point| point["value"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        (&sweeps[0]["setting"], values(&sweeps[0])),
        (&"queue_depth".into(), vec!["1".into(), "5000".into(), "4".into()])
    );
    assert_eq!(
        (&sweeps[1]["setting"], values(&sweeps[1])),
        (&"shuffle".into(), vec!["none".into(), "blocks:16:1024".into()])
    );
    let bad = &sweeps[0]["points"][1];
    assert!(bad["gib_per_s"].is_null() && kinds(bad) == ["failed"], "{bad}");
    let error = it["failures"][0]["error"].as_str().unwrap();
    assert!(error.starts_with("with queue_depth 5000: "), "{error}");
    assert_eq!(it["runs"].as_array().unwrap().len(), 1, "runs of sweeps are not among the others");
}

#[test]
fn a_report_that_cannot_be_written_is_an_error_that_names_it() {
    let (folder, path) = data(64);
    let args = with(&path, &["--backends", "pread", "--rounds", "1", "--no-fio"]);
    let missing = folder.path().join("none/runs.csv");
    let (status, stdout, stderr) = ran(&[&args[..], &["--csv", missing.to_str().unwrap()]].concat());
    assert_eq!((status, &*stdout), (1, ""), "before anything is measured");
    assert!(stderr.contains("none/runs.csv"), "{stderr}");
    let (status, _, stderr) = ran(&[&args[..], &["--html", missing.to_str().unwrap()]].concat());
    assert!(status == 1 && stderr.contains("none/runs.csv"), "{stderr}");
    // What was measured is not lost with it.
    let (status, stdout, stderr) = ran(&[&args[..], &["--csv", "/dev/full", "--json"]].concat());
    assert_eq!(status, 1);
    assert!(stderr.contains("/dev/full") && stderr.contains("No space left"), "{stderr}");
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap()["runs"].as_array().unwrap().len(), 2);
    // A report among the shards would be one of them, and a shard is no place for one.
    for inside in [path.join("runs.csv"), path.join("a.bin")] {
        let (status, _, stderr) = ran(&[&args[..], &["--csv", inside.to_str().unwrap()]].concat());
        assert!(status == 2 && stderr.contains(inside.to_str().unwrap()), "{stderr}");
    }
    assert!(
        !path.join("runs.csv").exists() && fs::metadata(path.join("a.bin")).unwrap().len() == 32 * (64 << 10)
    );
    let page = folder.path().join("page.html");
    let (status, ..) = ran(&[&args[..], &["--html", page.to_str().unwrap()]].concat());
    let text = fs::read_to_string(&page).unwrap();
    assert!(status == 0 && text.contains("<html") && text.contains("pread"), "{text}");
    // In place of a longer one that was there.
    let csv = folder.path().join("runs.csv");
    fs::write(&csv, noise(1, 100_000)).unwrap();
    let (status, ..) = ran(&[&args[..], &["--csv", csv.to_str().unwrap()]].concat());
    let text = fs::read_to_string(&csv).unwrap();
    let lines: Vec<_> = text.lines().map(|line| line.split(',').count()).collect();
    assert!(status == 0 && lines.len() == 3 && lines.iter().all(|fields| *fields == lines[0]), "{text}");
}

#[test]
fn arguments_that_make_no_sense_are_told_before_anything_is_measured() {
    let (_folder, path) = data(64);
    for args in [
        &["--batch-size", "100000"][..],
        &["--queue-depth", "0"],
        &["--epochs", "2"],
        &["--sweep", "speed=1,2"],
        &["--sweep", "queue-depth"],
        &["--sweep", "io-bytes=1MB"],
        &["--step-ms", "-1"],
        &["--step-ms", "NaN"],
        &["--rounds", "0"],
        &["--rounds", "18446744073709551615"],
        &["--backends", "fast"],
        &["--cache", "hot"],
    ] {
        let (status, stdout, stderr) = ran(&with(&path, args));
        assert!(status == 2 && stdout.is_empty() && !stderr.is_empty(), "{args:?}: {status} {stderr}");
    }
}

/// Interrupts a benchmark that would take for ever, when it has measured something.
fn interrupted(signal: libc::c_int, sweep: bool) -> Value {
    let (folder, path) = data(64);
    let csv = folder.path().join("runs.csv");
    let mut args = with(&path, &["--backends", "pread", "--cache", "warm", "--json", "--no-fio", "--csv"]);
    args.push(csv.to_str().unwrap());
    match sweep {
        true => args.extend(["--rounds", "1", "--step-ms", "300", "--sweep", "batch-size=1,2,3"]),
        false => args.extend(["--rounds", "1000000"]),
    }
    let mut child = gpufeed(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A run or two, also where the machine is busy; the sweep takes 20 s for its first value.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(child.try_wait().unwrap().is_none(), "it is still at work");
    // SAFETY: the process is a child that was not waited for, so its number is its own.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
    let sent = Instant::now();
    let mut stdout = String::new();
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // Generous: it is soon, and never for ever.
    assert!(sent.elapsed() < Duration::from_secs(10), "{:?}", sent.elapsed());
    let it: Value = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
    let lines = fs::read_to_string(csv).unwrap().lines().count();
    assert_eq!(lines, 1 + it["runs"].as_array().unwrap().len());
    it
}

#[test]
fn what_was_measured_before_an_interrupt_is_kept_and_marked() {
    for (signal, sweep) in [(libc::SIGINT, true), (libc::SIGTERM, false)] {
        let it = interrupted(signal, sweep);
        assert_eq!(it["interrupted"], true);
        assert!(
            !it["runs"].as_array().unwrap().is_empty() && it["failures"].as_array().unwrap().is_empty(),
            "{it}"
        );
        for run in it["runs"].as_array().unwrap() {
            assert_eq!(run["samples"].as_u64(), Some(64), "a run that was cut short is not counted: {run}");
        }
        assert!(it["conclusion"].to_string().contains("ended early"));
    }
}

#[test]
fn a_time_limit_ends_it_with_what_there_is() {
    let (_folder, path) = data(64);
    let args = ["--backends", "pread", "--cache", "warm", "--rounds", "1000000", "--max-seconds", "1"];
    let it = json(&with(&path, &args));
    assert_eq!(it["interrupted"], true);
    assert!(it["limits"]["disk"].is_null(), "warm says nothing about the disk");
    assert!(it["took_seconds"].as_f64().unwrap() >= 1.0);
}

#[test]
fn text_is_for_people_and_fits_a_terminal() {
    let (_folder, path) = data(256);
    let (status, stdout, stderr) =
        ran(&with(&path, &["--rounds", "2", "--no-fio", "--sweep", "prefetch=1,2"]));
    assert_eq!((status, &*stderr), (0, ""), "no progress where there is no terminal");
    for word in [
        "GB/s",
        "GiB/s",
        "cached",
        "CPU s/GiB",
        "cold",
        "warm",
        "page-cache",
        "failed: gds",
        "sweep of prefetch",
    ] {
        assert!(stdout.contains(word), "{word}: {stdout}");
    }
    let long: Vec<_> = stdout.lines().filter(|line| line.chars().count() > 100).collect();
    // Only a path is never broken.
    assert!(long.iter().all(|line| line.contains(path.to_str().unwrap())), "{long:?}");
}
