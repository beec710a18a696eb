//! What a process holds at the moment, and a process of its own for what is to be counted.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What was held whenever all loaders were dropped.
#[derive(Debug)]
pub(super) struct Usage {
    threads: usize,
    descriptors: usize,
    /// Resident memory in KiB.
    resident: Vec<u64>,
}

/// Memory that a process may take for good: what the allocator keeps, above all for threads that come and go.
const SLACK_KIB: u64 = 4 << 10;

impl Usage {
    /// What the process holds before its first loader.
    pub(super) fn now() -> Usage {
        Usage { threads: threads(), descriptors: descriptors(), resident: Vec::new() }
    }

    /// Waits until no more threads and descriptors are there than at first, and takes note of the memory.
    pub(super) fn look(&mut self) {
        let wanted = (self.threads, self.descriptors);
        // A thread that was joined is listed for a moment more.
        let deadline = Instant::now() + Duration::from_secs(60);
        while (threads(), descriptors()) != wanted {
            assert!(
                Instant::now() < deadline,
                "{wanted:?} threads and descriptors became {:?}",
                (threads(), descriptors())
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        self.resident.push(resident());
    }

    /// Memory late in the run is what it was once the run had warmed up.
    pub(super) fn assert_flat(&self) -> String {
        let count = self.resident.len();
        assert!(count >= 12, "only {count} looks");
        let median = |part: &[u64]| {
            let mut part = part.to_vec();
            part.sort_unstable();
            part[part.len() / 2]
        };
        let third = count / 3;
        let (early, late) = (median(&self.resident[third..2 * third]), median(&self.resident[2 * third..]));
        let text = format!(
            "{} threads and {} descriptors at each of {count} looks, resident {} KiB at first, {early} KiB in the second \
             third, {late} KiB in the last, {} KiB at the end",
            self.threads,
            self.descriptors,
            self.resident[0],
            self.resident[count - 1],
        );
        assert!(late <= early + SLACK_KIB, "memory grows: {text}");
        text
    }
}

/// Without the workers that the kernel starts and ends for io_uring as it likes.
fn threads() -> usize {
    let names = fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path().join("comm"));
    names.filter_map(|name| fs::read_to_string(name).ok()).filter(|name| !name.starts_with("iou-")).count()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A number from the environment.
pub(super) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Names the test that this process is the child of.
const CHILD: &str = "GPUFEED_SOAK_CHILD";

/// Runs `body` in a process of its own, which is the test `test` of this module once more.
/// `on_emulator`: there its
/// CUDA driver is the emulated one, which must have nothing to report, such as what was left on a device.
pub(super) fn in_child(test: &str, on_emulator: bool, epochs: u64, seed: u64, body: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        return body();
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("output");
    let file = File::create(&log).unwrap();
    let executable = std::env::current_exe().unwrap();
    let mut command = Command::new(&executable);
    if on_emulator {
        let beside = |path: &Path| path.join("libgpufeed_cuda_emulator.so");
        let library = executable.ancestors().skip(1).take(2).map(beside).find(|path| path.exists());
        let library = library.expect("cargo builds it with the tests");
        std::os::unix::fs::symlink(library, folder.path().join("libcuda.so.1")).unwrap();
        command
            .env("LD_LIBRARY_PATH", folder.path())
            .env("CUDA_EMULATOR_REPORT", folder.path().join("report"))
            .env("CUDA_EMULATOR_LEAKS", "1")
            .env("CUDA_EMULATOR_DELAY", format!("random:{seed}:60"));
    }
    let mut child = command
        .args(["--exact", &format!("loader::{test}"), "--nocapture", "--test-threads=1"])
        .env(CHILD, test)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .spawn()
        .unwrap();
    // Some seconds are usual for 200 epochs.
    let deadline = Instant::now() + Duration::from_secs(600 + epochs);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let text = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let reports = fs::read_to_string(folder.path().join("report")).unwrap_or_default();
    let fine =
        status.is_some_and(|status| status.success()) && text.contains("1 passed") && reports.is_empty();
    let tail = lines[lines.len().saturating_sub(60)..].join("\n");
    assert!(fine, "GPUFEED_SOAK_SEED={seed}, {status:?} (none: it hangs):\n{tail}\n{reports}");
    lines
        .iter()
        .filter(|line| line.contains(" epochs, ") || line.contains(" looks"))
        .for_each(|line| println!("{line}"));
}
