//! `gpufeed load` as a part of a job and within limits: ranks by hand and by launchers, shuffles, mixtures, and what may be
//! taken for them.
#![cfg(feature = "cli")]

mod common;

use std::path::Path;

use common::command::{gpufeed, json, json_of, ran, told};
use common::data::Data;
use common::load::{Load, Loaded, at_once, dealt_back, digest, load};
use common::write_shards;
use gpufeed::{LastBatch, Order, Shuffle};

fn data() -> Data {
    Data::records(100, &[70, 1, 50, 12])
}

fn digits() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/digits").to_str().unwrap().into()
}

/// A run that cannot be: its exit status and what it says.
#[track_caller]
fn refused(args: &[&str], environment: &[(&str, &str)]) -> (i32, String) {
    let mut command = gpufeed();
    command.args(["load", &digits()]).args(args).envs(environment.iter().copied());
    let (status, stdout, stderr) = told(command.output().unwrap());
    assert!(
        status != 0 && stdout.is_empty() && !stderr.contains("panicked"),
        "{args:?} {environment:?}: {stderr}"
    );
    (status, stderr)
}

/// As many runs as there are ranks, each told by `tell` which one it is; what they must deliver together.
fn job(data: &Data, ranks: u32, args: &[&str], tell: impl Fn(&mut Load, u32)) -> Vec<Loaded> {
    let one = |rank| {
        let mut run = Load::of(data, args);
        tell(&mut run, rank);
        run
    };
    at_once(data, (0..ranks).map(one).collect())
}

fn by_hand(run: &mut Load, rank: u32, ranks: u32) {
    run.command.args(["--rank", &rank.to_string(), "--world-size", &ranks.to_string()]);
}

#[test]
fn ranks_by_hand_share_the_epochs_of_one_rank_alone() {
    let data = data();
    let shuffles: [&[&str]; 3] =
        [&[], &["--shuffle", "full"], &["--shuffle", "blocks", "--block", "5", "--window", "40"]];
    for shuffle in shuffles {
        let common = [shuffle, &["--epochs", "2", "--seed", "5", "--last-batch", "pad"]].concat();
        let alone = load(&data, &[&common[..], &["--batch-size", "12"]].concat());
        assert_eq!((alone.json["rank"].as_u64(), alone.json["world_size"].as_u64()), (Some(0), Some(1)));
        assert_eq!(alone.order.len(), 2 * 144);
        for (ranks, size) in [(2, 6), (3, 4)] {
            let batch = size.to_string();
            let args = [&common[..], &["--batch-size", &batch]].concat();
            let all = job(&data, ranks, &args, |run, rank| by_hand(run, rank, ranks));
            assert_eq!(dealt_back(&all, size), alone.order, "{shuffle:?}");
            for (rank, it) in all.iter().enumerate() {
                assert_eq!((&it.json["rank"], &it.json["world_size"]), (&rank.into(), &ranks.into()));
                assert_eq!((it.json["batches"].as_u64(), it.state()), (Some(24), (2, 0)));
                assert!(it.json["launcher"].is_null());
                assert_eq!(it.json["agreement"], all[0].json["agreement"]);
            }
            assert_ne!(all[0].json["agreement"], alone.json["agreement"]);
        }
    }
}

/// The variables that a launcher sets for a rank of three on one host. The job has a name of its own in each test run.
fn launched(launcher: &str, rank: u32) -> Vec<(String, String)> {
    let job = std::process::id();
    let text = match launcher {
        "torchrun" => format!(
            "RANK={rank} WORLD_SIZE=3 LOCAL_RANK={rank} LOCAL_WORLD_SIZE=3 GROUP_RANK=0 GROUP_WORLD_SIZE=1 \
             MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=test-{job} TORCHELASTIC_RESTART_COUNT=0"
        ),
        "script" => format!("RANK={rank} WORLD_SIZE=3"),
        "slurm" => format!(
            "SLURM_JOB_ID={job} SLURM_STEP_ID=0 SLURM_PROCID={rank} SLURM_LOCALID={rank} SLURM_NODEID=0 SLURM_NTASKS=3 \
             SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=3 SLURM_GTIDS=0,1,2"
        ),
        "openmpi" => format!(
            "OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK={rank} \
             OMPI_COMM_WORLD_LOCAL_SIZE=3 OMPI_MCA_ess_base_jobid={job} PMIX_RANK={rank} PMIX_NAMESPACE={job}"
        ),
        "hydra" => format!("PMI_RANK={rank} PMI_SIZE=3 MPI_LOCALRANKID={rank} MPI_LOCALNRANKS=3"),
        "pmi" => format!("PMI_RANK={rank} PMI_SIZE=3 PMI_JOBID={job}"),
        "pmix" => format!("PMIX_RANK={rank} PMIX_NAMESPACE=test-{job}"),
        // One process per host, which starts torchrun there.
        "torchrun in slurm" => {
            let inner = launched("torchrun", rank);
            let outer = "SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=1 \
                SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_GTIDS=0";
            return inner.into_iter().chain(pairs(outer)).collect();
        }
        _ => unreachable!("{launcher}"),
    };
    pairs(&text)
}

fn pairs(text: &str) -> Vec<(String, String)> {
    text.split_whitespace()
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(a, b)| (a.into(), b.into()))
        .collect()
}

#[test]
fn the_rank_is_the_one_that_the_launcher_says() {
    let data = data();
    let args = ["--shuffle", "full", "--batch-size", "4", "--last-batch", "pad"];
    let alone = load(&data, &["--shuffle", "full", "--batch-size", "12", "--last-batch", "pad"]);
    for (launcher, name, more) in [
        ("torchrun", "torchrun", &[][..]),
        ("script", "torchrun", &[]),
        ("slurm", "slurm", &[]),
        ("openmpi", "openmpi", &[]),
        ("hydra", "hydra", &[]),
        ("pmi", "hydra", &[]),
        // It does not tell the world size.
        ("pmix", "pmix", &["--world-size", "3"]),
        ("torchrun in slurm", "torchrun", &[]),
        // The same by hand as well.
        ("slurm", "slurm", &["--world-size", "3"]),
    ] {
        let all = job(&data, 3, &[&args, more].concat(), |run, rank| {
            run.command.envs(launched(launcher, rank));
        });
        assert_eq!(dealt_back(&all, 4), alone.order, "{launcher}");
        for (rank, it) in all.iter().enumerate() {
            assert_eq!((&it.json["rank"], &it.json["world_size"]), (&rank.into(), &3.into()), "{launcher}");
            assert_eq!(it.json["launcher"], name, "{launcher}");
        }
    }
    // All of it by hand, under a launcher that says the same: it is the launcher's.
    let all = job(&data, 3, &args, |run, rank| {
        run.command.envs(launched("slurm", rank));
        by_hand(run, rank, 3);
    });
    assert_eq!(dealt_back(&all, 4), alone.order);
    assert_eq!(all[2].json["launcher"], "slurm");
}

#[test]
fn what_says_nothing_of_ranks_leaves_one_rank() {
    let data = data();
    let alone = load(&data, &["--batch-size", "10"]);
    for text in [
        // A batch script of Slurm with four tasks is one process.
        "SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0",
        "RANK=0 WORLD_SIZE=1",
        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1",
        "LOCAL_RANK=-1 MASTER_ADDR=here",
    ] {
        let mut run = Load::of(&data, &["--batch-size", "10"]);
        run.command.envs(pairs(text));
        let it = run.run(&data);
        assert_eq!((it.order, &it.json["world_size"]), (alone.order.clone(), &1.into()), "{text}");
    }
    // A rank by hand is one where a launcher started this process alone.
    let mut run = Load::of(&data, &["--batch-size", "10", "--rank", "1", "--world-size", "2"]);
    run.command.envs(pairs("SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1"));
    let it = run.run(&data);
    let second: Vec<u64> = alone.order[..120].chunks(20).flat_map(|batch| batch[10..].to_vec()).collect();
    assert_eq!((it.order, &it.json["rank"]), (second, &1.into()));
}

#[test]
fn ranks_that_contradict_each_other_or_make_no_sense_end_with_two() {
    let two: &[(&str, &str)] = &[("RANK", "1"), ("WORLD_SIZE", "2")];
    let mpi: &[(&str, &str)] =
        &[("RANK", "1"), ("WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
    type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);
    let cases: &[Case<'_>] = &[
        (&["--rank", "0", "--world-size", "2"], two, "rank 0 of 2 was given, but torchrun (RANK) says"),
        (&["--world-size", "3"], two, "a world size of 3 was given, which contradicts WORLD_SIZE=2"),
        (&["--world-size", "1"], two, "WORLD_SIZE=2"),
        (&["--rank", "1", "--world-size", "3"], two, "WORLD_SIZE=2"),
        (&[], mpi, "OMPI_COMM_WORLD_RANK=0 of OMPI_COMM_WORLD_SIZE=2 contradicts RANK=1 of WORLD_SIZE=2"),
        (&[], &[("RANK", "1")], "WORLD_SIZE is not set"),
        (&[], &[("RANK", "two"), ("WORLD_SIZE", "2")], "RANK=\"two\" is not a number"),
        (&[], &[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK=2 is not below WORLD_SIZE=2"),
        (&[], &[("WORLD_SIZE", "4")], "WORLD_SIZE=4 is set, but no variable says which rank"),
        (&[], &[("PMIX_RANK", "0")], "give the world size by hand"),
        (&["--rank", "1"], &[], "--world-size"),
        (&["--rank", "2", "--world-size", "2"], &[], "there is no rank 2 of 2"),
        (&["--rank", "0", "--world-size", "0"], &[], "the world size is 0"),
        (&["--world-size", "2"], &[], "no launcher says which of them this process is"),
        (&["--rank=-1", "--world-size", "2"], &[], "--rank"),
        // Too few samples, on every rank alike.
        (&["--rank", "0", "--world-size", "2000", "--batch-size", "1"], &[], "1 on each of 2000 ranks"),
    ];
    for (args, environment, words) in cases {
        let (status, stderr) = refused(args, environment);
        assert!(status == 2 && stderr.contains(words), "{args:?} {environment:?}: {status} {stderr}");
    }
}

#[test]
fn the_gpu_of_the_local_rank_takes_a_local_rank() {
    for (args, environment) in [
        (&["--device", "cuda:local"][..], &[][..]),
        (&["--device", "cuda:local", "--rank", "1", "--world-size", "2"], &[]),
        // The global rank is no substitute.
        (&["--device", "cuda:local"], &[("RANK", "1"), ("WORLD_SIZE", "2")]),
    ] {
        let (status, stderr) = refused(args, environment);
        assert!(status == 2 && stderr.contains("local rank of rank"), "{status} {stderr}");
    }
}

#[test]
fn a_shuffle_by_blocks_takes_sizes_or_finds_its_own() {
    let data = data();
    let args = ["--last-batch", "short", "--batch-size", "10", "--seed", "3", "--shuffle", "blocks"];
    for (more, block, window) in [
        // A mebibyte of samples of 100 bytes, and 64 times that.
        (&[][..], 10_485, 671_040),
        (&["--block", "8"], 8, 512),
        (&["--window", "50"], 10_485, 50),
        (&["--block", "8", "--window", "50"], 8, 50),
        (&["--block", "1", "--window", "18446744073709551615"], 1, u64::MAX),
        (&["--block", "18446744073709551615"], u64::MAX, u64::MAX),
    ] {
        let it = load(&data, &[&args, more].concat());
        let order = Order::new(133, 3, 0, Shuffle::Blocks { block, window });
        assert_eq!(it.order, (0..133).map(|at| order.sample(at).unwrap()).collect::<Vec<_>>(), "{more:?}");
        let told = &it.json["state"]["shuffle"]["blocks"];
        assert_eq!((told["block"].as_u64(), told["window"].as_u64()), (Some(block), Some(window)));
    }
    // Samples so small that a window by default is far more than an epoch.
    let it = json(&["load", &digits(), "--shuffle", "blocks", "--last-batch", "short"]);
    assert_eq!(it["samples"], 1797);
    for (args, words) in [
        (&["--block", "4"][..], "--block and --window are for --shuffle blocks"),
        (&["--window", "4"], "--block and --window are for --shuffle blocks"),
        (&["--shuffle", "full", "--block", "4"], "--block and --window are for --shuffle blocks"),
        (&["--shuffle", "blocks", "--block", "0"], "a block of the shuffle has 0 samples"),
        (&["--shuffle", "blocks", "--window", "0"], "a window of the shuffle has 0 samples"),
        (&["--shuffle", "blocks:4:16"], "blocks:4:16"),
    ] {
        let (status, stderr) = refused(args, &[]);
        assert!(status == 2 && stderr.contains(words), "{args:?}: {stderr}");
    }
}

#[test]
fn a_mixture_has_each_dataset_as_often_as_its_weight_says() {
    let folder = common::folder();
    let parts = [("a", 40usize), ("b", 10), ("c", 25)].map(|(name, records)| {
        let bytes = common::noise(records as u64, records * 8);
        std::fs::create_dir(folder.path().join(name)).unwrap();
        write_shards(&folder.path().join(name), std::slice::from_ref(&bytes));
        (folder.path().join(name).to_str().unwrap().to_string(), bytes)
    });
    let [a, b, c] = parts.each_ref().map(|(path, _)| path.as_str());
    let order = folder.path().join("order");
    let args = ["load", a, "--record-bytes", "8", "--digest", "--order-out", order.to_str().unwrap()];
    let (b, c) = (format!("{b}=2"), format!("{c}=1"));
    let mixed = ["--weight", "7", "--mix", &b, "--mix", &c, "--shuffle", "full"];
    let run = |more: &[&str]| {
        let it = json(&[&args[..], &mixed, more].concat());
        let order = common::load::order_in(&order);
        // Sample numbers count through the datasets, one after the other.
        let all = parts.each_ref().map(|(_, bytes)| bytes.clone()).concat();
        let bytes: Vec<u8> =
            order.iter().flat_map(|&sample| &all[sample as usize * 8..][..8]).copied().collect();
        let hash = <sha2::Sha256 as sha2::Digest>::digest(bytes);
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(it["digest"], hash.as_str());
        (it, order)
    };
    let (it, order) = run(&["--epoch-samples", "100", "--epochs", "3", "--batch-size", "10"]);
    assert_eq!((it["samples"].as_u64(), it["batches"].as_u64()), (Some(300), Some(30)));
    // Seven, two and one of every ten.
    for batch in order.chunks(10) {
        let count =
            |from: u64, until: u64| batch.iter().filter(|sample| (from..until).contains(sample)).count();
        assert_eq!((count(0, 40), count(40, 50), count(50, 75)), (7, 2, 1));
    }
    // As many as all have, by default.
    assert_eq!(run(&["--last-batch", "short"]).1.len(), 75);
    // Ranks of a mixture.
    let three = ["--epoch-samples", "100", "--epochs", "3", "--batch-size", "5", "--world-size", "2"];
    let ranks = ["0", "1"].map(|rank| run(&[&three[..], &["--rank", rank]].concat()).1);
    let together: Vec<u64> =
        (0..30).flat_map(|i| [&ranks[0][5 * i..][..5], &ranks[1][5 * i..][..5]].concat()).collect();
    assert_eq!(together, order);

    // Formats may differ, as long as columns do not.
    let npy = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/digits-npy");
    let it = json(&["load", &digits(), "--mix", &format!("{}=1", npy.display()), "--last-batch", "short"]);
    assert_eq!(it["samples"], 2 * 1797);
    let other = Data::npy(&[5]);
    let (status, stderr) = refused(&["--mix", &format!("{}=1", other.pattern().display())], &[]);
    assert!(status == 2 && stderr.contains("dataset 1 of the mixture has"), "{stderr}");

    let none = folder.path().join("nothing");
    for (status, more, words) in [
        (2, &["--mix", a][..], "is not DATASET=WEIGHT"),
        (2, &["--mix", &format!("{a}=many")], "is not DATASET=WEIGHT"),
        (2, &["--mix", &format!("{a}=0")], "has the weight 0"),
        (2, &["--mix", &format!("{a}=1"), "--weight", "0"], "dataset 0 of the mixture has the weight 0"),
        (2, &["--mix", &format!("{a}=1"), "--epoch-samples", "0"], "has 0 samples"),
        (2, &["--mix", &format!("{a}=1"), "--weight", "65536"], "more than 65536"),
        (2, &["--weight", "2"], "--mix"),
        (2, &["--epoch-samples", "2"], "--mix"),
        (1, &["--mix", &format!("{}=1", none.display())], "nothing"),
    ] {
        let (found, _, stderr) = ran(&[&["load", a, "--record-bytes", "8"], more].concat());
        assert!(found == status && stderr.contains(words), "{more:?}: {found} {stderr}");
    }
}

#[test]
fn limits_leave_the_bytes_as_they_are() {
    let data = data();
    let args = ["--shuffle", "full", "--last-batch", "short", "--batch-size", "9", "--backend", "pread"];
    let plain = load(&data, &args);
    assert_eq!(plain.json["digest"], digest(&data, &plain.order).as_str());
    for more in [
        &["--limit-rate", "64MiB"][..],
        // Bursts of one I/O.
        &["--limit-rate", "512KiB", "--io-bytes", "4096"],
        &["--io-priority", "idle"],
        &["--io-priority", "best-effort:7"],
        &["--clear-slots"],
        &["--clear-slots", "--limit-rate", "64MiB", "--io-priority", "idle", "--host-memory-limit", "1GiB"],
        &["--memory-limit", "1GiB", "--device-memory-limit", "1"],
    ] {
        let it = load(&data, &[&args, more].concat());
        assert!(it.order == plain.order && it.json["digest"] == plain.json["digest"], "{more:?}");
        assert!(it.json["notes"].is_array());
    }
    for (args, words) in [
        (&["--limit-rate", "0"][..], "the limit is 0 bytes per second"),
        (&["--limit-rate", "fast"], "is not a size"),
        (&["--io-priority", "low"], "known are idle, best-effort:0"),
        (&["--io-priority", "best-effort:8"], "known are idle, best-effort:0"),
    ] {
        let (status, stderr) = refused(args, &[]);
        assert!(status == 2 && stderr.contains(words), "{args:?}: {stderr}");
    }
}

#[test]
fn a_memory_limit_below_the_need_is_refused_with_the_need() {
    for (flag, words) in [("--host-memory-limit", "bytes of host memory"), ("--memory-limit", "bytes (")] {
        let args = ["--device", "host", flag, "1MiB", "--batch-size", "512"];
        let (status, stderr) = refused(&args, &[]);
        assert!(status == 1 && stderr.contains(words) && stderr.contains("the limit is 1048576"), "{stderr}");
        let need: u64 = stderr
            .split_once("the loader needs ")
            .and_then(|(_, rest)| rest.split_once(' '))
            .map(|(need, _)| need.parse().unwrap())
            .unwrap();
        // Exactly that is enough, and a byte less is not.
        let with = |bytes: u64, more: &[&str]| {
            let args =
                ["load", &digits(), "--device", "host", flag, &bytes.to_string(), "--batch-size", "512"];
            ran(&[&args[..], &["--json"], more].concat())
        };
        assert_eq!(with(need - 1, &[]).0, 1);
        let it = json_of(with(need, &[]));
        let taken = it["device_bytes"].as_u64().unwrap() + it["pinned_bytes"].as_u64().unwrap();
        assert_eq!(taken, need, "it takes what it said");
        // With a smaller ring it fits.
        let shrunk = json_of(with(need - 1, &["--shrink-ring"]));
        assert!(shrunk["device_bytes"].as_u64() < it["device_bytes"].as_u64());
        assert_eq!(shrunk["samples"], it["samples"]);
    }
}

#[test]
fn too_few_samples_for_a_batch_are_an_error_or_empty_epochs() {
    let data = Data::records(10, &[2]);
    for last in [LastBatch::Drop, LastBatch::Short] {
        for rank in ["0", "7"] {
            let ranks = ["--rank", rank, "--world-size", "8", "--batch-size", "1"];
            let args = [&ranks[..], &["--last-batch", last.name(), "--epochs", "3"]].concat();
            let mut run = Load::of(&data, &args);
            let (status, _, stderr) = told(run.command.output().unwrap());
            assert!(status == 2 && stderr.contains("2 samples"), "{stderr}");
            let it = load(&data, &[&args[..], &["--allow-empty"]].concat());
            assert_eq!((it.order.len(), it.json["batches"].as_u64(), it.state()), (0, Some(0), (3, 0)));
        }
    }
    // Where there are batches it changes nothing.
    let it = load(&data, &["--batch-size", "1", "--allow-empty"]);
    assert_eq!(it.order, [0, 1]);
}

#[test]
fn help_names_every_flag() {
    let (status, help, _) = ran(&["load", "--help"]);
    assert_eq!(status, 0);
    let flags = "format record-bytes device backend require-gds batch-size epochs shuffle block window seed rank world-size \
        last-batch allow-empty prefetch queue-depth io-bytes limit-rate io-priority memory-limit host-memory-limit \
        device-memory-limit shrink-ring clear-slots mix weight epoch-samples state-out state-every resume max-batches \
        digest order-out show json root";
    for flag in flags.split_whitespace() {
        let named = help.split_whitespace().any(|word| word.trim_end_matches(',') == format!("--{flag}"));
        assert!(named, "--{flag} is not in: {help}");
    }
    for words in
        ["drop, pad or short", "idle, best-effort:0", "[possible values: none, full, blocks]", "cuda:local"]
    {
        assert!(help.contains(words), "{words}: {help}");
    }
}

#[test]
fn what_was_tuned_is_remembered_and_used_unless_told_otherwise() {
    let (cache, folder) = (tempfile::tempdir().unwrap(), common::folder());
    let data = folder.path().join("data.bin");
    common::write(&data, &common::noise(3, 4 << 20));
    let run = |more: &[&str]| {
        let mut command = gpufeed();
        command.env("XDG_CACHE_HOME", cache.path()).arg("load").arg(&data);
        command.args(["--record-bytes", "4096", "--device", "host", "--json"]).args(more);
        told(command.output().unwrap())
    };
    assert!(json_of(run(&[]))["tuning"].is_null());
    let (status, stdout, stderr) = run(&["--tune"]);
    assert!(stderr.contains("tuned in "), "{stderr}");
    let tuned = json_of((status, stdout, stderr));
    let tuning = &tuned["tuning"];
    for key in ["io_bytes", "queue_depth", "took_seconds", "measured"] {
        assert!(tuning[key].is_number(), "{key}: {tuning}");
    }
    assert!(tuning["gib_per_s"]["median"].as_f64().unwrap() > 0.0, "{tuning}");
    assert!(cache.path().join("gpufeed/tuning.json").is_file());
    let again = json_of(run(&[]));
    assert_eq!(again["tuning"]["queue_depth"], tuning["queue_depth"]);
    assert!(again["backend_reason"].as_str().unwrap().contains("tuned"), "{}", again["backend_reason"]);
    assert!(json_of(run(&["--no-tuning"]))["tuning"].is_null());
    // Another pattern of reads is another matter.
    assert!(json_of(run(&["--shuffle", "full"]))["tuning"].is_null());

    std::fs::write(cache.path().join("gpufeed/tuning.json"), "{").unwrap();
    let (status, _, stderr) = run(&[]);
    assert!(status == 0 && stderr.contains("note: what was tuned before is not used"), "{stderr}");
    let (status, _, stderr) = run(&["--tune", "--no-tuning"]);
    assert!(status == 2, "{stderr}");
}
