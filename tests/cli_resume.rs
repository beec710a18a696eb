//! `gpufeed load` that goes on in a fresh process, wherever the one before ended: by itself, by a signal, or killed.
#![cfg(feature = "cli")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::command::told;
use common::data::Data;
use common::load::{Load, Loaded, Running, at_once, dealt_back, load, order_in, stand};
use gpufeed::Backend;
use serde_json::Value;

const SHUFFLES: [&[&str]; 3] =
    [&[], &["--shuffle", "full"], &["--shuffle", "blocks", "--block", "5", "--window", "40"]];

fn data() -> Data {
    Data::records(100, &[70, 1, 50, 12])
}

/// The backends that work here, by name.
fn backends() -> Vec<&'static str> {
    common::backends().into_iter().map(Backend::name).collect()
}

/// A folder for a state, and the path of one.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = common::folder();
    let state = folder.path().join("state.json");
    (folder, state)
}

fn read(state: &Path) -> Value {
    let text = fs::read_to_string(state).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("the state is not whole: {error}: {text:?}"))
}

/// A run that goes on from a state, if it is there, and keeps its own there.
fn go_on(data: &Data, state: &Path, args: &[&str]) -> Load {
    let mut run = Load::of(data, args);
    run.command.arg("--state-out").arg(state);
    if state.exists() {
        run.command.arg("--resume").arg(state);
    }
    run
}

#[test]
fn a_run_in_parts_delivers_what_a_run_at_once_does() {
    let data = data();
    for shuffle in SHUFFLES {
        for last in ["drop", "pad", "short"] {
            let args = [shuffle, &["--epochs", "3", "--seed", "5", "--last-batch", last]].concat();
            let args = [&args[..], &["--batch-size", "8"]].concat();
            let whole = load(&data, &args);
            let (_folder, state) = place();
            let mut order = Vec::new();
            // Parts of seven batches, each of them read in another way; 17 batches are an epoch.
            let ways = backends().into_iter().cycle().zip(["1", "8", "3"].into_iter().cycle());
            for (backend, depth) in ways {
                let way = ["--backend", backend, "--queue-depth", depth, "--prefetch", depth];
                let part =
                    go_on(&data, &state, &[&args[..], &way, &["--max-batches", "7"]].concat()).run(&data);
                assert_eq!(part.json["state"], read(&state));
                order.extend(part.order);
                let (epoch, _) = stand(&part.json["state"]);
                if epoch == 3 {
                    break;
                }
                assert_eq!(part.json["batches"], 7);
            }
            assert!(order == whole.order, "{shuffle:?} {last}");
            assert_eq!((whole.state(), stand(&read(&state))), ((3, 0), (3, 0)));
            // There is nothing left, and that is no error.
            let nothing = go_on(&data, &state, &args).run(&data);
            assert_eq!((nothing.order.len(), nothing.state()), (0, (3, 0)));
            // More epochs are the next ones.
            let more =
                [shuffle, &["--epochs", "4", "--seed", "5", "--last-batch", last, "--batch-size", "8"]];
            let more = go_on(&data, &state, &more.concat()).run(&data);
            let four =
                [shuffle, &["--epochs", "4", "--seed", "5", "--last-batch", last, "--batch-size", "8"]];
            assert_eq!([order, more.order].concat(), load(&data, &four.concat()).order);
        }
    }
}

#[test]
fn other_ranks_and_another_batch_size_go_on_with_the_very_next_sample() {
    let data = data();
    for shuffle in SHUFFLES {
        let args = [shuffle, &["--seed", "5", "--epochs", "2", "--last-batch", "short"]].concat();
        let (_folder, state) = place();
        let whole = load(&data, &args).order;
        let ranks = |count: u32, size: &str, more: &[&str]| -> Vec<Loaded> {
            let run = |rank: u32| {
                let mut run = Load::of(&data, &[&args[..], &["--batch-size", size], more].concat());
                if state.exists() {
                    run.command.arg("--resume").arg(&state);
                }
                run.command.args(["--rank", &rank.to_string(), "--world-size", &count.to_string()]);
                run
            };
            at_once(&data, (0..count).map(run).collect())
        };
        // Three batches on each of two ranks; any of them may keep the state.
        let first = ranks(2, "9", &["--max-batches", "3"]);
        assert_eq!(first[0].json["state"], first[1].json["state"]);
        assert_eq!(first[0].state(), (0, 54));
        fs::write(&state, first[1].json["state"].to_string()).unwrap();
        let second = ranks(3, "5", &["--max-batches", "4"]);
        assert_eq!(second[0].state(), (0, 114));
        fs::write(&state, second[2].json["state"].to_string()).unwrap();
        let third = ranks(1, "50", &[]);
        let all = [dealt_back(&first, 9), dealt_back(&second, 5), third[0].order.clone()].concat();
        assert!(all == whole, "{shuffle:?}: {all:?}");
        // The 19 that are left of the first epoch, then the 133 of the second.
        assert_eq!(third[0].json["batches"], 1 + 3);
    }
}

#[test]
fn one_digest_whatever_the_threads_the_depth_and_the_backend() {
    let data = data();
    for shuffle in SHUFFLES {
        let args = [shuffle, &["--seed", "5", "--epochs", "2", "--batch-size", "10"]].concat();
        let first = load(&data, &args);
        for backend in backends() {
            for (threads, prefetch) in [("1", "1"), ("1", "16"), ("8", "1"), ("8", "16"), ("16", "3")] {
                let way = ["--backend", backend, "--queue-depth", threads, "--prefetch", prefetch];
                let it = load(&data, &[&args[..], &way, &["--io-bytes", "4096"]].concat());
                let same = it.json["digest"] == first.json["digest"] && it.order == first.order;
                assert!(same, "{shuffle:?} {way:?}");
            }
        }
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused_with_what_differs() {
    let data = data();
    let (folder, state) = place();
    let args = ["--shuffle", "full", "--seed", "5"];
    go_on(&data, &state, &[&args[..], &["--max-batches", "1"]].concat()).run(&data);
    let good = read(&state);
    let with = |name: &str, key: &str, value: Value| {
        let mut changed = good.clone();
        assert_ne!(changed[key], value);
        changed[key] = value;
        let path = folder.path().join(name);
        fs::write(&path, changed.to_string()).unwrap();
        path
    };
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let refused = |data: &Data, state: &Path, args: &[&str], status: i32, words: &[&str]| {
        let mut run = Load::of(data, args);
        run.command.arg("--resume").arg(state);
        let (found, stdout, stderr) = told(run.command.output().unwrap());
        assert_eq!((found, &*stdout), (status, ""), "{stderr}");
        assert!(words.iter().all(|part| stderr.contains(part)), "{words:?}: {stderr}");
        // It was refused before anything was delivered, or any file made.
        assert!(!run.order().exists());
    };
    let full = |seed| ["--shuffle", "full", "--seed", seed];
    refused(&data, &state, &full("6"), 2, &["its seed is 5, this run's 6"]);
    refused(&data, &state, &args[2..], 2, &["its shuffle is full, this run's none"]);
    refused(
        &data,
        &state,
        &["--shuffle", "blocks", "--seed", "5"],
        2,
        &["shuffle is full, this run's blocks:"],
    );
    let print = |data: &Data| data.dataset.fingerprint().to_string();
    let longer = Data::records(100, &[70, 1, 50, 13]);
    refused(&longer, &state, &args, 2, &[&print(&data), &print(&longer)]);
    // A name that sorts where the other did, so that only the name is another.
    let renamed = Data::records(100, &[70, 1, 50, 12]);
    fs::rename(&renamed.paths[3], renamed.folder().join("shard-0007.bin")).unwrap();
    refused(&renamed, &state, &args, 2, &["fingerprint", &print(&data)]);
    let mix = format!("{}=1", longer.pattern().display());
    refused(&data, &state, &[&args[..], &["--mix", &mix]].concat(), 2, &["fingerprint"]);
    let beyond = with("beyond", "position", 134.into());
    refused(&data, &beyond, &args, 2, &["position 134 is beyond the 133 samples"]);
    // Not wrong arguments, but files that are not what they should be.
    let later = with("later", "version", 2.into());
    refused(&data, &later, &args, 1, &["version 2", later.to_str().unwrap()]);
    let half = file("half", &good.to_string()[..40]);
    for no_state in [&half, &file("empty", ""), &file("list", "[]"), &file("text", "epoch 3"), &data.paths[0]]
    {
        refused(&data, no_state, &args, 1, &[no_state.to_str().unwrap(), "no saved state"]);
    }
    for odd in [folder.path().join("missing"), folder.path().into(), "/dev/zero".into()] {
        refused(&data, &odd, &args, 1, &[odd.to_str().unwrap()]);
    }
    // The end of an epoch is the beginning of the next.
    let end = with("end", "position", 133.into());
    let mut run = Load::of(&data, &[&args[..], &["--epochs", "1"]].concat());
    run.command.arg("--resume").arg(&end);
    let it = run.run(&data);
    assert_eq!((it.order.len(), it.state()), (0, (1, 0)));
}

#[test]
fn a_state_that_cannot_be_kept_is_told_before_anything_is_read() {
    let data = data();
    let (folder, _) = place();
    let nowhere = folder.path().join("no/such/folder/state");
    for (state, every) in
        [(&nowhere, &[][..]), (&nowhere, &["--state-every", "1"]), (&folder.path().into(), &[])]
    {
        let mut run = Load::of(&data, every);
        run.command.arg("--state-out").arg(state);
        let (status, stdout, stderr) = told(run.command.output().unwrap());
        assert_eq!((status, &*stdout), (1, ""));
        assert!(stderr.contains(state.to_str().unwrap()) && stderr.contains("state"), "{stderr}");
        assert!(order_in(&run.order()).is_empty(), "nothing was delivered");
    }
    for args in [&["--state-every", "0", "--state-out", "x"][..], &["--state-every", "1"]] {
        let mut run = Load::of(&data, args);
        assert_eq!(told(run.command.output().unwrap()).0, 2, "{args:?}");
    }
}

#[test]
fn the_state_is_always_in_the_json() {
    let data = data();
    for (args, wanted) in [
        (&[][..], (1, 0)),
        (&["--epochs", "0"], (0, 0)),
        (&["--epochs", "5"], (5, 0)),
        (&["--max-batches", "0"], (0, 0)),
        (&["--max-batches", "1"], (0, 64)),
        // The last one of the epoch, and what is dropped of it is gone by.
        (&["--max-batches", "2"], (1, 0)),
        (&["--max-batches", "3", "--epochs", "2"], (1, 64)),
        (&["--batch-size", "1000", "--allow-empty", "--epochs", "4"], (4, 0)),
    ] {
        assert_eq!(load(&data, args).state(), wanted, "{args:?}");
    }
}

/// A run that would take for ever: a million epochs, at most a few hundred batches a second.
const SLOW: [&str; 14] = [
    "--epochs",
    "1000000",
    "--limit-rate",
    "1MiB",
    "--io-bytes",
    "4096",
    "--batch-size",
    "10",
    "--shuffle",
    "full",
    "--seed",
    "5",
    "--last-batch",
    "short",
];

/// Waits for something that comes sooner or later, on a busy machine too.
fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !there() {
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a state is there that is further than that.
fn beyond(state: &Path, than: (u64, u64)) -> bool {
    state.exists() && stand(&read(state)) > than
}

/// Samples of the run up to a place.
fn delivered(data: &Data, (epoch, position): (u64, u64)) -> usize {
    (epoch * data.len() + position) as usize
}

/// The order of so many epochs, and the arguments of a run of as many, as it is without a limit.
fn all(data: &Data, epochs: u64) -> (Vec<u64>, Vec<String>) {
    let mut args: Vec<String> = SLOW.map(str::to_string).into();
    args.drain(2..4);
    args[1] = epochs.to_string();
    let borrowed: Vec<&str> = args.iter().map(String::as_str).collect();
    (load(data, &borrowed).order, args)
}

#[test]
fn an_interrupted_run_keeps_its_state_and_goes_on_exactly_there() {
    let data = data();
    for (signal, every) in [
        (libc::SIGINT, &["--state-every", "3"][..]),
        (libc::SIGTERM, &["--state-every", "1"]),
        (libc::SIGINT, &[]),
    ] {
        let (_folder, state) = place();
        let mut run = go_on(&data, &state, &[&SLOW[..], every].concat());
        let mut child = run.start();
        // From the second state on it is at work; where it keeps none meanwhile, a moment has to do.
        wait_for("the state", || state.exists());
        match every {
            [] => std::thread::sleep(Duration::from_millis(300)),
            _ => wait_for("progress", || beyond(&state, (0, 0))),
        }
        child.send(signal);
        let (status, stdout, stderr) = child.end();
        assert_eq!((status, &*stdout, &*stderr), (130, "", "interrupted\n"));
        // Exactly what was delivered is in the order, and counts.
        let stands = stand(&read(&state));
        let first = order_in(&run.order());
        assert_eq!(first.len(), delivered(&data, stands), "{stands:?}");
        assert!(every.is_empty() || !first.is_empty());
        let (whole, args) = all(&data, stands.0 + 1);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let rest = go_on(&data, &state, &args).run(&data);
        assert!([first, rest.order].concat() == whole, "{stands:?}");
    }
}

#[test]
fn a_killed_run_leaves_a_whole_state_and_at_least_the_order_up_to_it() {
    let data = data();
    let (folder, state) = place();
    let mut order = Vec::new();
    let mut from = (0, 0);
    for kill in 0..8 {
        let mut run = go_on(&data, &state, &[&SLOW[..], &["--state-every", "1"]].concat());
        let child = run.start();
        if kill % 4 != 3 {
            wait_for("progress", || beyond(&state, from));
        } else {
            // As it starts, or a little later: whatever it is at.
            std::thread::sleep(Duration::from_millis(3 * kill));
        }
        child.kill();
        let stands = if state.exists() { stand(&read(&state)) } else { from };
        assert!(stands >= from, "it went back from {from:?} to {stands:?}");
        let counted = delivered(&data, stands) - delivered(&data, from);
        if counted > 0 {
            let lines = fs::read_to_string(run.order()).unwrap();
            // A line that the end cut off is not one of those that count.
            let lines: Vec<u64> =
                lines.split_inclusive('\n').take(counted).map(|it| it.trim().parse().unwrap()).collect();
            assert_eq!(lines.len(), counted, "the order lacks samples that the state counts");
            order.extend(lines);
        }
        from = stands;
    }
    let (whole, args) = all(&data, from.0 + 1);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    order.extend(go_on(&data, &state, &args).run(&data).order);
    assert!(order == whole);
    // What was being written when the end came may lie beside it, but nothing else.
    for entry in fs::read_dir(folder.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name == "state.json" || name.starts_with("state.json.") && name.ends_with(".tmp"), "{name}");
    }
}

#[test]
fn a_state_that_is_lost_at_the_end_is_told_whatever_ended_the_run() {
    let data = data();
    let folder = common::folder();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let state = inner.join("state");
    let mut run = go_on(&data, &state, &SLOW);
    let mut child = run.start();
    wait_for("the state", || state.exists());
    fs::remove_dir_all(&inner).unwrap();
    child.send(libc::SIGINT);
    let (status, stdout, stderr) = child.end();
    assert_eq!((status, &*stdout), (130, ""));
    assert!(stderr.contains(state.to_str().unwrap()) && stderr.contains("interrupted"), "{stderr}");
}

#[test]
fn a_run_that_fails_keeps_the_state_behind_what_it_delivered() {
    let data = data();
    let args = ["--batch-size", "10", "--last-batch", "short", "--prefetch", "1"];
    let whole = load(&data, &args).order;
    // The last shard, from sample 121 on, is cut off after it was indexed and before it is read: the run takes seconds.
    let (_folder, state) = place();
    let slow = ["--limit-rate", "4096", "--io-bytes", "4096", "--backend", "page-cache"];
    let mut run = go_on(&data, &state, &[&args[..], &slow].concat());
    let child = run.start();
    wait_for("the state", || state.exists());
    let cut = &data.paths[3];
    let bytes = fs::read(cut).unwrap();
    fs::OpenOptions::new().write(true).open(cut).unwrap().set_len(100).unwrap();
    let (status, stdout, stderr) = child.end();
    fs::write(cut, bytes).unwrap();
    assert_eq!((status, &*stdout), (1, ""), "{stderr}");
    assert!(stderr.contains(cut.to_str().unwrap()), "{stderr}");
    assert_eq!(stand(&read(&state)), (0, 120));
    let first = order_in(&run.order());
    assert_eq!(first, whole[..120]);
    let rest = go_on(&data, &state, &args).run(&data);
    assert!([first, rest.order].concat() == whole);
}

#[test]
fn a_run_whose_read_hangs_is_cut_off_by_a_signal_and_keeps_its_state() {
    let data = data();
    let (_folder, state) = place();
    let mut run = go_on(&data, &state, &[&SLOW[..], &["--backend", "pread", "--queue-depth", "1"]].concat());
    let mut child = run.start();
    let id = child.id();
    // It keeps no state while it is at work, so what it has read tells that it is.
    let read_bytes = || {
        let text = fs::read_to_string(format!("/proc/{id}/io")).unwrap();
        text.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse::<u64>().ok()).unwrap()
    };
    wait_for("the state", || state.exists());
    let before = read_bytes();
    wait_for("progress", || read_bytes() > before + 200_000);
    let thread = tasks(id).into_iter().find(|(name, _)| name == "gpufeed-read-0").expect("it has one").1;
    if !hold(thread) {
        return;
    }
    child.send(libc::SIGINT);
    let (status, stdout, stderr) = gone(thread, child);
    assert_eq!((status, &*stdout, &*stderr), (130, "", "interrupted\n"));
    let stands = stand(&read(&state));
    let first = order_in(&run.order());
    assert!(
        stands > (0, 0) && first.len() == delivered(&data, stands),
        "{stands:?}, {} samples",
        first.len()
    );
    let (whole, args) = all(&data, stands.0 + 1);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    assert!([first, go_on(&data, &state, &args).run(&data).order].concat() == whole);
}

/// The threads of a process: their names and numbers.
fn tasks(process: libc::pid_t) -> Vec<(String, libc::pid_t)> {
    let of = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        (name.trim().to_string(), task.file_name().to_str().unwrap().parse().unwrap())
    };
    fs::read_dir(format!("/proc/{process}/task")).unwrap().map(|task| of(task.unwrap())).collect()
}

/// Stops one thread of a child, as one is that waits for a file system which does not answer.
fn hold(thread: libc::pid_t) -> bool {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: neither call touches memory of this process.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, none, none) };
    if seized != 0 {
        eprintln!("skipped: threads cannot be stopped here: {}", std::io::Error::last_os_error());
        assert!(std::env::var_os("CI").is_none(), "the checks promise to run this");
        return false;
    }
    // SAFETY: as before; the status is not asked for.
    unsafe {
        assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none), 0);
        assert_eq!(libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL), thread);
    }
    true
}

/// Waits until a thread that was stopped is gone, and with it its process.
fn gone(thread: libc::pid_t, process: Running) -> (i32, String, String) {
    // SAFETY: the status is not asked for. Whoever stopped a thread has to wait for it, or its process stays.
    wait_for("the end", || unsafe {
        libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) != 0
    });
    process.end()
}

#[test]
fn an_idle_run_reads_at_the_priority_that_was_asked_for() {
    let data = data();
    let (_folder, state) = place();
    let args = [&SLOW[..], &["--io-priority", "idle", "--backend", "pread", "--state-every", "1"]].concat();
    let mut run = go_on(&data, &state, &args);
    let mut child = run.start();
    wait_for("progress", || beyond(&state, (0, 0)));
    // SAFETY: it takes two numbers and answers with one.
    let class = |id: libc::pid_t| unsafe { libc::syscall(libc::SYS_ioprio_get, 1, id) } >> 13;
    let seen: Vec<_> = tasks(child.id()).into_iter().map(|(name, id)| (name, class(id))).collect();
    child.send(libc::SIGINT);
    assert_eq!(child.end().0, 130);
    let reading: Vec<_> = seen.iter().filter(|(name, _)| name.starts_with("gpufeed-")).collect();
    assert!(!reading.is_empty() && reading.iter().all(|(_, class)| *class == 3), "{seen:?}");
}
