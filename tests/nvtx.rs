//! The ranges that a loader marks for a profiler, as a stand-in for NVTX's library sees them.

mod cuda_common;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use cuda_common::{Data, DriverFile, describe, finish, folder, on_emulator};
use gpufeed::{Backend, Loader};

/// Tells the child what its loader is to do, and the stand-in where to write.
const MODE: &str = "GPUFEED_NVTX_TEST_MODE";
const LOG: &str = "GPUFEED_NVTX_TEST_LOG";

/// Writes a line for each call as it comes: the thread, and the name of the range; nothing where one is closed.
const STAND_IN: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/syscall.h>
static int note(const char *name) {
    char line[200];
    int len = snprintf(line, sizeof line, "%ld %s\n", (long)syscall(SYS_gettid), name);
    int fd = open(getenv("GPUFEED_NVTX_TEST_LOG"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (fd < 0 || write(fd, line, len) != len) abort();
    close(fd);
    return 0;
}
int nvtxRangePushA(const char *name) { return note(name); }
int nvtxRangePop(void) { return note(""); }
"#;

/// The body of the children: a few epochs on a GPU or the host, one of them left early.
fn load(mode: &str) {
    let data = Data::new(4000, 400);
    let device = data.loader();
    let builder = if mode == "host" { Loader::builder(data.dataset()).batch_size(16) } else { device };
    let builder = builder.backend(Backend::Pread).queue_depth(2).prefetch(2).stats(mode != "unwatched");
    let mut loader = builder.build().unwrap();
    for batch in loader.epoch(0).unwrap() {
        drop(batch.unwrap());
    }
    drop(loader.epoch(1).unwrap().next().unwrap().unwrap());
    // All slots are kept for a while, so that the reading thread waits for one.
    let mut epoch = loader.epoch(2).unwrap();
    let kept: Vec<_> = epoch.by_ref().take(2).map(Result::unwrap).collect();
    std::thread::sleep(std::time::Duration::from_millis(100));
    drop(kept);
    epoch.for_each(|batch| drop(batch.unwrap()));
}

/// The calls of a child, by thread: the names of the ranges it opened. All of them are closed.
fn ranges(mode: &str, with_library: bool) -> Vec<BTreeSet<String>> {
    let folder = folder();
    if with_library {
        let source = folder.path().join("nvtx.c");
        fs::write(&source, STAND_IN).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(folder.path().join("libnvToolsExt.so.1")).arg(&source);
        assert!(cc.status().expect("a C compiler is there, since Rust links by it").success());
    }
    let log = folder.path().join("ranges");
    let mut command = Command::new(std::env::current_exe().unwrap());
    on_emulator(&mut command, folder.path(), DriverFile::Emulator);
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env(MODE, mode).env(LOG, &log);
    command.env("CUDA_EMULATOR_DEVICES", "1").env("CUDA_EMULATOR_DELAY", "random:1:20000");
    let outcome = finish(command, folder.path());
    assert_eq!(outcome.code, Some(0), "{}", describe(&outcome));
    assert!(outcome.output.contains("1 passed"), "{}", describe(&outcome));

    let calls = fs::read_to_string(&log).unwrap_or_default();
    let mut threads: Vec<(&str, Vec<&str>, BTreeSet<String>)> = Vec::new();
    for line in calls.lines() {
        let (thread, name) = line.split_once(' ').unwrap();
        let at = threads.iter().position(|known| known.0 == thread).unwrap_or_else(|| {
            threads.push((thread, Vec::new(), BTreeSet::new()));
            threads.len() - 1
        });
        let (_, open, seen) = &mut threads[at];
        if name.is_empty() {
            assert!(open.pop().is_some(), "a range is closed that was not opened:\n{calls}");
        } else {
            open.push(name);
            seen.insert(name.to_owned());
        }
    }
    assert!(threads.iter().all(|(_, open, _)| open.is_empty()), "a range stays open:\n{calls}");
    threads.into_iter().map(|(.., seen)| seen).collect()
}

#[test]
fn child() {
    if let Ok(mode) = std::env::var(MODE) {
        load(&mode);
    }
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| format!("gpufeed {name}")).collect()
}

#[test]
fn a_watched_loader_marks_its_stages_and_closes_every_range() {
    for (mode, reading) in [
        ("host", &["plan", "wait for storage", "wait for a slot"][..]),
        ("device", &["plan", "wait for storage", "wait for copies", "wait for a slot"]),
    ] {
        let found = ranges(mode, true);
        assert_eq!(found.len(), 2, "{mode}: {found:?}");
        assert!(found.contains(&names(reading)), "{mode}: {found:?}");
        assert!(found.contains(&names(&["wait for a batch"])), "{mode}: {found:?}");
    }
}

#[test]
fn a_loader_that_is_not_watched_marks_nothing() {
    assert_eq!(ranges("unwatched", true), []);
}

#[test]
fn without_the_library_nothing_is_marked_and_the_loader_works() {
    assert_eq!(ranges("device", false), []);
}
