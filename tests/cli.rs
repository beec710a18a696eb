//! The command line as scripts see it: exit status, one JSON object on standard output, and errors that name files.
#![cfg(feature = "cli")]

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::command::{gpufeed, json, ran};
use common::{folder, noise, write, write_shards};
use serde_json::Value;

const BACKENDS: [&str; 4] = ["auto", "uring", "pread", "page-cache"];

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn uring_works() -> bool {
    gpufeed::Backend::Uring.probe().is_ok()
}

#[test]
fn load_tells_scripts_all_that_it_promises() {
    let digits = repository("datasets/digits");
    let args = ["load", digits.to_str().unwrap(), "--epochs", "2", "--last-batch", "short", "--digest"];
    let it = json(&args);
    for key in ["samples", "batches", "bytes", "pinned_bytes", "device_bytes", "peak_rss_bytes", "epochs"] {
        assert!(it[key].is_u64(), "{key}: {}", it[key]);
    }
    for key in ["seconds", "gb_per_s", "gib_per_s", "cpu_seconds"] {
        assert!(
            it[key].as_f64().is_some_and(|value| value >= 0.0 && value.is_finite()),
            "{key}: {}",
            it[key]
        );
    }
    for key in ["device", "backend", "backend_reason", "digest"] {
        assert!(it[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {}", it[key]);
    }
    assert_eq!((it["samples"].as_u64(), it["batches"].as_u64()), (Some(2 * 1797), Some(2 * 29)));
    assert_eq!((it["bytes"].as_u64(), it["epochs"].as_u64()), (Some(2 * 1797 * 65), Some(2)));
    assert_eq!(it["digest"].as_str().unwrap().len(), 64);
    let ways = it["bytes_by_way"].as_object().unwrap();
    for way in ["uring_direct", "uring_buffered", "pread_direct", "pread_buffered", "page_cache"] {
        assert!(ways[way].is_u64(), "{way}");
    }
    assert_eq!(ways.values().filter_map(Value::as_u64).sum::<u64>(), 2 * 1797 * 65);
    let rates = (it["gb_per_s"].as_f64().unwrap(), it["gib_per_s"].as_f64().unwrap());
    assert!((rates.0 * 1e9 - rates.1 * 1_073_741_824.0).abs() <= rates.0 * 1e3, "{rates:?}");
    // Without --digest there is none.
    assert!(json(&args[..2]).get("digest").is_none());
}

#[test]
fn load_names_what_the_data_lies_on_and_what_that_means_for_gds() {
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::write(shm.path().join("a.bin"), [7; 4096]).unwrap();
    fs::write(shm.path().join("b.bin"), [7; 4096]).unwrap();
    let args = ["load", shm.path().to_str().unwrap(), "--record-bytes", "64", "--device", "host"];
    let it = json(&args);
    let [on] = &it["file_systems"].as_array().unwrap()[..] else { panic!("{}", it["file_systems"]) };
    assert_eq!((on["kind"].as_str(), on["mount_point"].as_str()), (Some("tmpfs"), Some("/dev/shm")));
    assert_eq!((on["files"].as_u64(), on["transport"].is_null()), (Some(2), true));
    assert_eq!(on["gds"]["possible"].as_bool(), Some(false));
    assert!(on["gds"]["reason"].as_str().is_some_and(|reason| reason.contains("memory")), "{on}");
    assert!(on["options"].as_str().is_some_and(|options| options.contains("rw")), "{on}");
    let (_, text, _) = ran(&args);
    assert!(
        text.contains("\nfilesystem tmpfs at /dev/shm: 2 files; tmpfs keeps its files in memory"),
        "{text}"
    );
}

#[test]
fn inspect_tells_scripts_all_that_it_promises() {
    let it = json(&["inspect", repository("datasets/digits").to_str().unwrap()]);
    for key in [
        "format",
        "shards",
        "samples",
        "payload_bytes",
        "dtype",
        "shape",
        "fields",
        "alignment",
        "fingerprint",
    ] {
        assert!(it.get(key).is_some(), "{key}");
    }
    assert_eq!((it["samples"].as_u64(), it["payload_bytes"].as_u64()), (Some(1797), Some(1797 * 65)));
    assert_eq!((it["format"].as_str(), it["shards"].as_u64()), (Some("records"), Some(8)));
    let fields: Vec<_> = it["fields"].as_array().unwrap().iter().map(|field| field["name"].clone()).collect();
    assert_eq!(fields, ["image", "label"]);
    let npy = json(&["inspect", repository("datasets/digits-npy").to_str().unwrap()]);
    assert_eq!((npy["format"].as_str(), npy["samples"].as_u64()), (Some("npy"), Some(1797)));
    assert_ne!(npy["fingerprint"], it["fingerprint"]);
}

#[test]
fn text_for_people_and_json_for_scripts_do_not_mix() {
    let digits = repository("datasets/digits");
    let digits = digits.to_str().unwrap();
    // Shown batches are for people: with --json they go to standard error.
    let (status, stdout, stderr) = ran(&["load", digits, "--show", "2", "--json"]);
    assert_eq!(status, 0);
    serde_json::from_str::<Value>(&stdout).unwrap();
    assert!(stderr.contains("batch 0") && stderr.contains("batch 1") && !stdout.contains("batch 0"));
    let (status, stdout, stderr) = ran(&["load", digits, "--show", "1"]);
    assert_eq!(status, 0);
    assert!(stdout.contains("batch 0") && stdout.contains("GB/s") && stdout.contains("GiB/s"));
    assert_eq!(stderr, "", "no progress bar where there is no terminal");
    for verb in ["load", "inspect"] {
        let (status, stdout, stderr) = ran(&[verb, "/nonexistent/dataset", "--json"]);
        assert_eq!((status, &*stdout), (1, ""));
        assert!(stderr.contains("/nonexistent/dataset"));
    }
}

#[test]
fn wrong_arguments_end_with_two_and_failed_work_with_one() {
    let digits = repository("datasets/digits");
    let digits = digits.to_str().unwrap();
    let wrong: [&[&str]; 23] = [
        &[],
        &["lod"],
        &["load"],
        &["load", digits, "--no-such-flag"],
        &["load", digits, "--batch-size", "many"],
        &["load", digits, "--batch-size", "0"],
        &["load", digits, "--batch-size", "1798"],
        &["load", digits, "--io-bytes", "1MB"],
        &["load", digits, "--io-bytes", "100"],
        &["load", digits, "--device", "tpu"],
        &["load", digits, "--backend", "fast"],
        &["load", digits, "--shuffle", "some"],
        &["load", digits, "--last-batch", "keep"],
        &["load", digits, "--queue-depth", "0"],
        &["load", digits, "--polling", "sometimes"],
        &["load", digits, "--prefetch", "0"],
        &["load", digits, "--record-bytes", "0"],
        &["inspect", digits, "--format", "parquet"],
        &["generate", "/tmp/nowhere", "--samples", "1", "--size", "1MiB"],
        &["generate", "/tmp/nowhere", "--samples", "0"],
        &["generate", "/tmp/nowhere", "--samples", "1", "--record-bytes", "0"],
        &["generate", "/tmp/nowhere", "--samples", "1", "--shard-bytes", "1"],
        &["load", digits, "--backend", "gds", "--device", "host"],
    ];
    for args in wrong {
        let (status, stdout, stderr) = ran(args);
        assert_eq!((status, &*stdout), (2, ""), "{args:?}: {stderr}");
        assert!(!stderr.is_empty());
    }
    let (status, stdout, _) = ran(&["--help"]);
    assert!(status == 0 && stdout.contains("load") && stdout.contains("Exit status"));

    let folder = folder();
    let paths = write_shards(folder.path(), &[noise(1, 1000), noise(2, 1001)]);
    let here = folder.path().to_str().unwrap();
    let (status, stdout, stderr) = ran(&["load", here, "--record-bytes", "1000"]);
    assert_eq!((status, &*stdout), (1, ""));
    assert!(stderr.contains(paths[1].to_str().unwrap()) && stderr.contains("1 bytes over"), "{stderr}");
    let (status, _, stderr) = ran(&["load", here]);
    assert!(status == 1 && stderr.contains("--record-bytes"), "{stderr}");
    let (status, _, stderr) = ran(&["load", digits, "--memory-limit", "1MiB"]);
    assert!(status == 1 && stderr.contains("limit is 1048576"), "{stderr}");
    let out = folder.path().join("no/such/folder/order");
    let (status, _, stderr) = ran(&["load", digits, "--order-out", out.to_str().unwrap()]);
    assert!(status == 1 && stderr.contains(out.to_str().unwrap()), "{stderr}");
}

#[test]
fn polling_and_drives_are_told_and_polling_that_cannot_be_is_an_error() {
    let digits = repository("datasets/digits");
    let digits = digits.to_str().unwrap();
    let it = json(&["load", digits, "--polling", "never", "--queue-depth", "3"]);
    assert_eq!(it["polling"]["used"], false, "{it}");
    assert!(it["polling"]["reason"].as_str().unwrap().contains("switched off"), "{it}");
    assert_eq!((it["polling"]["reads"].as_u64(), it["queue_depth"].as_u64()), (Some(0), Some(3)));
    let drives = it["drives"].as_array().unwrap();
    assert!(drives.len() == 1 && drives[0]["device"].as_str().unwrap().contains(':'), "{it}");
    assert!(drives[0]["files"].as_u64() > Some(0), "{it}");
    let (status, _, stderr) = ran(&["load", digits, "--polling", "always", "--backend", "pread"]);
    assert!(status == 1 && stderr.contains("only the backend uring polls"), "{stderr}");
    let (status, stdout, _) = ran(&["load", digits, "--polling", "auto"]);
    assert!(status == 0 && stdout.contains("polled for: no: "), "{stdout}");
}

#[test]
fn sizes_are_taken_with_their_units() {
    let folder = folder();
    write(&folder.path().join("a.bin"), &noise(1, 64 << 10));
    let here = folder.path().to_str().unwrap();
    for (size, samples) in [("4096", 16), ("4KiB", 16), ("64KiB", 1)] {
        let it = json(&["load", here, "--record-bytes", size, "--batch-size", "1", "--io-bytes", "64KiB"]);
        assert_eq!(it["samples"].as_u64(), Some(samples));
    }
}

#[test]
fn the_digest_is_the_same_by_every_backend_and_by_a_few_lines_of_python() {
    let folder = folder();
    for dataset in ["datasets/digits", "datasets/digits-npy"] {
        let dataset = repository(dataset);
        let mut digests = Vec::new();
        let mut orders = Vec::new();
        for (i, backend) in BACKENDS.iter().enumerate().filter(|(_, name)| **name != "uring" || uring_works())
        {
            let order = folder.path().join(format!("order-{i}"));
            // What must make no difference differs from backend to backend.
            let depth = (i * 7 + 1).to_string();
            let it = json(&[
                "load",
                dataset.to_str().unwrap(),
                "--backend",
                backend,
                "--digest",
                "--shuffle",
                "full",
                "--seed",
                "5",
                "--epochs",
                "2",
                "--last-batch",
                "pad",
                "--queue-depth",
                &depth,
                "--order-out",
                order.to_str().unwrap(),
            ]);
            assert!(*backend == "auto" || it["backend"] == **backend);
            digests.push(it["digest"].as_str().unwrap().to_string());
            orders.push(fs::read_to_string(&order).unwrap());
        }
        assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
        assert!(orders.iter().all(|order| *order == orders[0]));
        let lines: Vec<u64> = orders[0].lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(lines.len(), 2 * 29 * 64);
        assert_ne!(lines[..64], lines[29 * 64..30 * 64], "two epochs have two orders");

        let order = folder.path().join("order-0");
        let python = Command::new("python3")
            .arg(repository("datasets/check_digest.py"))
            .args([&dataset, Path::new("--order"), &order])
            .output();
        match python {
            Ok(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), digests[0]);
            }
            Err(error) => {
                eprintln!("skipped: there is no python3 to compare with: {error}");
                assert!(std::env::var_os("CI").is_none(), "the checks promise to run python3");
            }
        }
    }
}

#[test]
fn the_same_samples_have_one_digest_whatever_their_format_and_batch_size() {
    let (raw, npy) = (repository("datasets/digits"), repository("datasets/digits-npy"));
    let digest = |path: &Path, batch: &str| {
        let it = json(&[
            "load",
            path.to_str().unwrap(),
            "--digest",
            "--batch-size",
            batch,
            "--last-batch",
            "short",
        ]);
        it["digest"].as_str().unwrap().to_string()
    };
    let one = digest(&raw, "64");
    assert!([digest(&raw, "1"), digest(&raw, "1797"), digest(&npy, "100")].iter().all(|other| *other == one));
}

#[test]
fn generate_repeats_itself_by_seed_and_spares_what_is_there() {
    let folder = folder();
    let made = |name: &str, seed: &str, format: &str| {
        let path = folder.path().join(name);
        let it = json(&[
            "generate",
            path.to_str().unwrap(),
            "--samples",
            "1000",
            "--record-bytes",
            "1003",
            "--shard-bytes",
            "256KiB",
            "--seed",
            seed,
            "--format",
            format,
        ]);
        assert_eq!((it["samples"].as_u64(), it["bytes"].as_u64()), (Some(1000), Some(1_003_000)));
        let mut files: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert_eq!(files.len(), 5, "{files:?}"); // and dataset.json
        files.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>()
    };
    let first = made("a", "1", "records");
    assert!(first == made("b", "1", "records"));
    assert!(first != made("c", "2", "records"));
    made("d", "1", "npy");
    let digest = |name: &str| {
        let path = folder.path().join(name);
        let it = json(&["load", path.to_str().unwrap(), "--digest", "--last-batch", "short"]);
        it["digest"].as_str().unwrap().to_string()
    };
    assert_eq!(digest("a"), digest("d"));
    assert_ne!(digest("a"), digest("c"));

    let path = folder.path().join("a");
    let (status, stdout, stderr) = ran(&["generate", path.to_str().unwrap(), "--samples", "1", "--json"]);
    assert_eq!((status, &*stdout), (1, ""));
    assert!(stderr.contains(path.to_str().unwrap()) && stderr.contains("not empty"), "{stderr}");
    let now: Vec<_> = first.len().to_string().into();
    assert_eq!(fs::read_dir(&path).unwrap().count().to_string().into_bytes(), now);
}

#[test]
fn generate_refuses_what_would_be_no_dataset() {
    let folder = folder();
    let path = folder.path().join("new");
    let path = path.to_str().unwrap();
    for args in [
        &["--samples", "0"][..],
        &["--size", "1KiB"],
        &["--samples", "1", "--record-bytes", "0"],
        &["--samples", "1", "--record-bytes", "1MiB", "--shard-bytes", "4KiB"],
        &["--samples", "18446744073709551615"],
    ] {
        let (status, stdout, stderr) = ran(&[&["generate", path], args].concat());
        assert!(status == 2 && stdout.is_empty(), "{args:?}: {stderr}");
        assert!(!Path::new(path).exists(), "{args:?}");
    }
}

/// Sends a signal to a run that would take for ever, and looks at how it ends.
fn interrupted(args: &[&str], signal: libc::c_int) {
    let mut child = gpufeed().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Long enough that signals are caught by then, on a busy machine too.
    let deadline = Instant::now() + Duration::from_secs(20);
    let caught = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim();
        u64::from_str_radix(mask, 16).unwrap_or(0) & (1 << (signal - 1)) != 0
    };
    while !caught() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "it is still at work");
    let sent = Instant::now();
    // SAFETY: the process is a child that was not waited for, so its number is its own.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
    let output = child.wait_with_output().unwrap();
    // Generous: it is about a second on an idle machine, and never is for ever.
    assert!(sent.elapsed() < Duration::from_secs(5), "{:?}", sent.elapsed());
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stdout.is_empty());
}

#[test]
fn an_interrupt_ends_a_long_run_soon_with_its_own_status() {
    let digits = repository("datasets/digits");
    let digits = digits.to_str().unwrap();
    for backend in BACKENDS.into_iter().filter(|name| *name != "uring" || uring_works()) {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            interrupted(&["load", digits, "--epochs", "100000000", "--backend", backend, "--json"], signal);
        }
        // Waiting for the next byte that it may read.
        interrupted(&["load", digits, "--limit-rate", "1", "--backend", backend, "--json"], libc::SIGINT);
    }
}

#[test]
fn a_signal_at_any_moment_ends_a_run_and_leaves_a_whole_state_or_none() {
    let (folder, digits) = (folder(), repository("datasets/digits"));
    let backends: Vec<_> = BACKENDS.into_iter().filter(|name| *name != "uring" || uring_works()).collect();
    for round in 0..60u64 {
        let state = folder.path().join(format!("{round}.json"));
        let mut child = gpufeed()
            .args(["load", digits.to_str().unwrap(), "--epochs", "100000000", "--json", "--shuffle", "full"])
            .args(["--backend", backends[round as usize % backends.len()], "--state-out"])
            .arg(&state)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From before it listens to signals until it is well under way.
        std::thread::sleep(Duration::from_micros(round * round * 30));
        let signal = [libc::SIGINT, libc::SIGTERM][round as usize / 2 % 2];
        // SAFETY: the process is a child that was not waited for, so its number is its own.
        assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
        let deadline = Instant::now() + Duration::from_secs(60);
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < deadline, "round {round}: it goes on"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let before = status.signal() == Some(signal);
        assert!(before || status.code() == Some(130), "round {round}: {status:?}");
        if state.exists() {
            gpufeed::State::read(&state).unwrap();
        }
    }
}

#[test]
fn an_interrupted_selftest_removes_its_files() {
    let folder = folder();
    let here = folder.path().to_str().unwrap();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        interrupted(&["selftest", "--dir", here, "--json"], signal);
        assert_eq!(fs::read_dir(here).unwrap().count(), 0);
    }
}

#[test]
fn an_interrupted_generate_leaves_no_half_shard() {
    let folder = folder();
    let path = folder.path().join("large");
    interrupted(
        &["generate", path.to_str().unwrap(), "--size", "1TiB", "--shard-bytes", "1TiB", "--json"],
        libc::SIGINT,
    );
    // At most the temporary one of a run that had to be cut off.
    for entry in fs::read_dir(&path).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(Path::new(&name).extension().is_none_or(|suffix| suffix != "bin"), "{name:?}");
    }
}

#[test]
fn load_tells_what_it_waits_for_as_numbers_metrics_and_a_trace() {
    let digits = repository("datasets/digits");
    let folder = folder();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (trace, metrics) = (at("trace.json"), at("metrics.prom"));
    let it = json(&["load", digits.to_str().unwrap(), "--trace", &trace, "--metrics-out", &metrics]);
    let known = ["storage", "copy", "consumer", "limit", "plan"];
    assert!(known.contains(&it["waits_for"].as_str().unwrap()), "{}", it["waits_for"]);
    assert_eq!(it["stages"]["batch_wait"]["count"], it["batches"]);
    for key in ["count", "seconds", "p50_seconds", "p99_seconds", "max_seconds", "occupancy"] {
        assert!(it["stages"]["read"][key].is_number(), "{key}");
    }
    assert!(it["stages"]["waited_seconds"]["storage"].is_number());
    let text: Value = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    assert!(!text["traceEvents"].as_array().unwrap().is_empty());
    let text = fs::read_to_string(metrics).unwrap();
    assert!(text.contains(&format!("gpufeed_batches_total{{rank=\"0\"}} {}\n", it["batches"])), "{text}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");

    let (status, _, stderr) = ran(&["load", digits.to_str().unwrap(), "--metrics-out", "/nowhere/x"]);
    assert!(status == 1 && stderr.contains("/nowhere/x"), "{status} {stderr}");
    let (status, _, stderr) = ran(&["load", digits.to_str().unwrap(), "--trace", "/nowhere/x"]);
    assert!(status == 1 && stderr.contains("/nowhere/x"), "{status} {stderr}");
}
