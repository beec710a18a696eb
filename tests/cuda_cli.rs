//! `gpufeed load --device` on an emulated GPU: what the command line says, and what it refuses.

#![cfg(feature = "cli")]

mod cuda_common;

use std::path::Path;
use std::process::Command;

use cuda_common::{DriverFile, Outcome, backends, describe, finish, folder, on_emulator};
use serde_json::Value;

/// Runs `gpufeed load datasets/digits` with these flags and this environment.
fn load(driver: DriverFile, environment: &[(&str, &str)], flags: &[&str]) -> Outcome {
    verb("load", driver, environment, flags)
}

fn verb(verb: &str, driver: DriverFile, environment: &[(&str, &str)], flags: &[&str]) -> Outcome {
    let folder = folder();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpufeed"));
    on_emulator(&mut command, folder.path(), driver);
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/digits");
    // Nothing was tuned before.
    command.env("XDG_CACHE_HOME", folder.path());
    command.arg(verb).arg(digits).args(flags).envs(environment.iter().copied());
    finish(command, folder.path())
}

#[track_caller]
fn json(driver: DriverFile, environment: &[(&str, &str)], flags: &[&str]) -> Value {
    let outcome = load(driver, environment, &[flags, &["--json"]].concat());
    assert!(outcome.code == Some(0) && outcome.reports.is_empty(), "{}", describe(&outcome));
    serde_json::from_str(&outcome.output).unwrap_or_else(|error| panic!("{error}: {}", describe(&outcome)))
}

#[test]
fn the_json_of_a_load_tells_the_device_its_memory_and_the_way() {
    let host = json(DriverFile::Emulator, &[], &["--device", "host", "--digest"]);
    for backend in backends() {
        let name = backend.name();
        let gpu = json(DriverFile::Emulator, &[], &["--device", "cuda:0", "--digest", "--backend", name]);
        assert_eq!(gpu["device"], "cuda:0");
        assert_eq!(gpu["device_reason"], "it was named");
        assert_eq!(gpu["digest"], host["digest"]);
        assert_eq!(gpu["samples"], host["samples"]);
        assert!(gpu["pinned_bytes"].as_u64().unwrap() > 0 && gpu["device_bytes"].as_u64().unwrap() > 0);
        let ways = gpu["bytes_by_way"].as_object().unwrap();
        let all: u64 = ways.values().map(|bytes| bytes.as_u64().unwrap()).sum();
        assert_eq!(all, gpu["bytes"].as_u64().unwrap());
        let prefix = name.replace('-', "_").replace("auto", "");
        let taken: Vec<_> = ways.iter().filter(|(_, bytes)| bytes.as_u64() > Some(0)).collect();
        assert!(taken.iter().all(|(way, _)| way.starts_with(&prefix)), "{name}: {ways:?}");
    }
}

#[test]
fn auto_takes_a_gpu_where_there_is_one_and_says_why_not_where_there_is_none() {
    for flags in [&["--device", "auto"][..], &[]] {
        assert_eq!(json(DriverFile::Emulator, &[], flags)["device"], "cuda:0");
        let host = json(DriverFile::Missing, &[], flags);
        assert_eq!(host["device"], "host");
        assert!(host["device_reason"].as_str().unwrap().contains("there is no CUDA driver"));
        let none = json(DriverFile::Emulator, &[("CUDA_EMULATOR_DEVICES", "0")], flags);
        assert_eq!(none["device"], "host");
        assert!(none["device_reason"].as_str().unwrap().contains("sees no device"));
    }
}

#[test]
fn the_local_rank_says_which_gpu_and_the_global_one_never_does() {
    // The third of four ranks, and the first of two on its host.
    let ranks = [("RANK", "2"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")];
    let mut environment = [&[("CUDA_EMULATOR_DEVICES", "2")][..], &ranks].concat();
    let local = json(DriverFile::Emulator, &environment, &["--device", "cuda:local"]);
    assert_eq!((&local["device"], &local["rank"]), (&"cuda:0".into(), &2.into()));
    environment[3].1 = "1";
    let local = json(DriverFile::Emulator, &environment, &["--device", "cuda:local"]);
    assert_eq!(local["device"], "cuda:1");
    // A GPU for each rank is there to be had, so the user is told of it.
    let outcome = load(DriverFile::Emulator, &environment, &["--device", "auto"]);
    assert!(outcome.output.contains("--device cuda:local gives each its own"), "{}", describe(&outcome));
    environment[0].1 = "1";
    let outcome = load(DriverFile::Emulator, &environment, &["--device", "cuda:local"]);
    assert!(
        outcome.code == Some(2) && outcome.output.contains("cuda:1 does not exist"),
        "{}",
        describe(&outcome)
    );
}

#[test]
fn several_devices_each_get_every_batch() {
    let environment = [("CUDA_EMULATOR_DEVICES", "2"), ("CUDA_EMULATOR_PEER_ACCESS", "on")];
    let one = json(DriverFile::Emulator, &environment, &["--device", "cuda:1", "--digest"]);
    let two = json(DriverFile::Emulator, &environment, &["--device", "cuda:0,cuda:1", "--digest"]);
    assert_eq!(two["device"], "cuda:0,cuda:1");
    assert_eq!(one["digest"], two["digest"]);
    assert_eq!(one["bytes_read"], two["bytes_read"]);
    assert_eq!(two["device_bytes"].as_u64().unwrap(), 2 * one["device_bytes"].as_u64().unwrap());
    assert!(two["device_reason"].as_str().unwrap().contains("by peer access"));
}

#[test]
fn a_device_that_does_not_exist_or_make_sense_is_one_line_on_standard_error() {
    let two = [("CUDA_EMULATOR_DEVICES", "2")];
    for (driver, flags, why) in [
        (DriverFile::Emulator, &["--device", "cuda:2"][..], "cuda:2 does not exist: the driver sees 2"),
        (DriverFile::Missing, &["--device", "cuda:0"], "there is no CUDA driver"),
        (DriverFile::Other, &["--device", "cuda:0"], "is not a CUDA driver"),
        (DriverFile::Emulator, &["--device", "cuda:0,cuda:0"], "cuda:0 is named twice"),
        (DriverFile::Emulator, &["--device", "host,cuda:0"], "device host cannot be one of several"),
        (DriverFile::Emulator, &["--device", "gpu"], "known are auto, host, cuda:N"),
        (DriverFile::Emulator, &["--device", "cuda:"], "known are auto, host, cuda:N"),
        (DriverFile::Emulator, &["--device", "cuda:-1"], "known are auto, host, cuda:N"),
        (DriverFile::Emulator, &["--device", ""], "known are auto, host, cuda:N"),
    ] {
        let outcome = load(driver, &two, &[flags, &["--json"]].concat());
        let fine = outcome.code.is_some_and(|code| code != 0) && outcome.output.contains(why);
        assert!(fine && !outcome.output.contains("panicked"), "{flags:?}: {}", describe(&outcome));
        assert!(outcome.reports.is_empty(), "{}", describe(&outcome));
    }
}

#[test]
fn a_ring_that_does_not_fit_is_shrunk_only_if_asked() {
    // Two slots of a batch of 256 digits fit, nine do not.
    let small = [("CUDA_EMULATOR_MEMORY", "131072")];
    let flags = ["--device", "cuda:0", "--batch-size", "256", "--prefetch", "8"];
    let outcome = load(DriverFile::Emulator, &small, &flags);
    assert!(outcome.code.is_some_and(|code| code != 0), "{}", describe(&outcome));
    assert!(outcome.output.contains("the ring needs 9 slots of "), "{}", describe(&outcome));
    assert!(outcome.output.contains("of its 131072 are free"), "{}", describe(&outcome));
    let shrunk = json(DriverFile::Emulator, &small, &[&flags[..], &["--shrink-ring"]].concat());
    assert!(shrunk["device_bytes"].as_u64().unwrap() <= 131_072);
}

#[test]
fn limits_on_memory_are_kept_to_the_byte() {
    for backend in backends() {
        for (flag, key) in
            [("--device-memory-limit", "device_bytes"), ("--host-memory-limit", "pinned_bytes")]
        {
            let run = |bytes: u64| {
                let bytes = bytes.to_string();
                load(
                    DriverFile::Emulator,
                    &[],
                    &["--device", "cuda:0", "--backend", backend.name(), flag, &bytes, "--json"],
                )
            };
            let refused = run(1);
            let need =
                refused.output.split("the loader needs ").nth(1).and_then(|rest| rest.split(' ').next());
            let need: u64 = need.unwrap_or_else(|| panic!("{}", describe(&refused))).parse().unwrap();
            assert_eq!([refused.code, run(need - 1).code], [Some(1); 2], "{}", describe(&refused));
            let built = run(need);
            assert_eq!(built.code, Some(0), "{}", describe(&built));
            let it: Value = serde_json::from_str(&built.output).unwrap();
            assert_eq!(it[key], need, "{backend} {key}");
        }
    }
}

#[test]
fn a_gpu_that_fails_in_the_middle_is_an_error_and_a_code() {
    for fault in ["CUDA_EMULATOR_FAIL_COPY", "CUDA_EMULATOR_LOSE_DEVICE_AFTER"] {
        let outcome = load(
            DriverFile::Emulator,
            &[(fault, "5"), ("CUDA_EMULATOR_LEAKS", "0")],
            &["--device", "cuda:0", "--epochs", "2"],
        );
        let fine = outcome.code.is_some_and(|code| code != 0) && outcome.output.contains("CUDA_ERROR_");
        assert!(fine && !outcome.output.contains("panicked"), "{}", describe(&outcome));
    }
}

#[test]
fn a_benchmark_measures_the_link_and_holds_the_backends_against_it() {
    let flags =
        ["--device", "cuda:0", "--rounds", "1", "--cache", "warm", "--no-fio", "--json", "--batch-size", "8"];
    let outcome = verb("bench", DriverFile::Emulator, &[], &flags);
    assert!(outcome.code == Some(0) && outcome.reports.is_empty(), "{}", describe(&outcome));
    let it: Value = serde_json::from_str(&outcome.output).unwrap();
    assert!(it["limits"]["link"]["gib_per_s"]["median"].as_f64().unwrap() > 0.0, "{}", it["limits"]);
    assert!(it["machine"]["gpus"][0].as_str().unwrap().contains("Emulated"), "{}", it["machine"]);
    assert_eq!(it["settings"]["device"], "cuda:0");
    for run in it["runs"].as_array().unwrap() {
        assert!(run["bytes"].as_u64() == Some(1792 * 65) && run["device_bytes"].as_u64() > Some(0), "{run}");
        assert_ne!(run["backend"], "gds");
    }
    for summary in it["summary"].as_array().unwrap() {
        assert_eq!(summary["share_of_link"].is_null(), summary["gib_per_s"].is_null(), "{summary}");
    }
    // There is no cuFile here, and that is what it says, not 0.
    let failure = &it["failures"][0];
    assert!(
        failure["backend"] == "gds" && failure["error"].as_str().unwrap().contains("cuFile"),
        "{failure}"
    );
}
