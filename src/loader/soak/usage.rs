//! What a process holds at the moment, and a process of its own for what is to be counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// What was held whenever all loaders were dropped.
#[derive(Debug)]
pub(super) struct Usage {
    threads: usize,
    descriptors: usize,
    /// Resident memory, and what is allocated on the heap, in KiB.
    memory: Vec<[u64; 2]>,
}

/// How much more there may be late than early: of resident memory what the system's allocator keeps, for threads that come
/// and go; of what is allocated next to nothing.
const SLACK_KIB: [u64; 2] = [4 << 10, 64];

impl Usage {
    /// What the process holds before its first loader.
    pub(super) fn now() -> Usage {
        Usage { threads: threads(), descriptors: descriptors(), memory: Vec::new() }
    }

    /// Waits until no more threads and descriptors are there than at first, and takes note of the memory.
    pub(super) fn look(&mut self) {
        let wanted = (self.threads, self.descriptors);
        // A thread that was joined is listed for a moment more.
        let deadline = Instant::now() + Duration::from_secs(60);
        while (threads(), descriptors()) != wanted {
            let found = (threads(), descriptors());
            assert!(Instant::now() < deadline, "{wanted:?} threads and descriptors became {found:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.memory.push([resident(), allocated()]);
        println!("look {}: {:?} KiB", self.memory.len(), self.memory.last());
    }

    /// Memory late in the run is what it was once the run had warmed up.
    pub(super) fn assert_flat(&self) -> String {
        let count = self.memory.len();
        assert!(count >= 12, "only {count} looks");
        let median = |part: &[[u64; 2]], which: usize| {
            let mut part: Vec<u64> = part.iter().map(|memory| memory[which]).collect();
            part.sort_unstable();
            part[part.len() / 2]
        };
        let (early, late) = self.memory[count / 3..].split_at(count / 3);
        let (early, late) = ([0, 1].map(|i| median(early, i)), [0, 1].map(|i| median(late, i)));
        let text = format!(
            "{} threads and {} descriptors at each of {count} looks; resident and heap {:?} KiB at first, {early:?} KiB in \
             the second third, {late:?} KiB in the last, {:?} KiB at the end",
            self.threads,
            self.descriptors,
            self.memory[0],
            self.memory[count - 1],
        );
        assert!([0, 1].iter().all(|&i| late[i] <= early[i] + SLACK_KIB[i]), "memory grows: {text}");
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

/// Counts what this crate and those that it uses have allocated, and hands everything on to the system's allocator. What
/// other libraries allocate, such as the emulated driver that keeps a record of what was freed, goes by it.
struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.fetch_add(size as i64 - layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocated() -> u64 {
    u64::try_from(LIVE.load(Ordering::Relaxed)).unwrap_or(0) >> 10
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
