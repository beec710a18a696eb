//! Shards whose every byte is known, and what `gpufeed load` delivers of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::guest::{PROGRAMS, forget_caches, sh};
use crate::launcher::without_launcher;

/// The bytes of a record: no multiple of anything that storage likes.
pub(crate) const RECORD: usize = 1500;
/// The records of each shard.
const SHARDS: [usize; 4] = [700, 1, 333, 400];

/// Shards of records in a folder.
#[derive(Debug)]
pub(crate) struct Data {
    folder: PathBuf,
    shards: Vec<PathBuf>,
    bytes: Vec<u8>,
}

impl Data {
    /// Writes the shards into a folder.
    pub(crate) fn in_folder(folder: impl Into<PathBuf>) -> Data {
        let folder = folder.into();
        fs::create_dir_all(&folder).unwrap();
        let (mut shards, mut bytes) = (Vec::new(), Vec::new());
        for (i, records) in SHARDS.iter().enumerate() {
            let shard = folder.join(format!("shard-{i}.bin"));
            let part = noise(i as u64 + 1, records * RECORD);
            fs::write(&shard, &part).unwrap();
            bytes.extend(part);
            shards.push(shard);
        }
        Data { folder, shards, bytes }
    }

    /// Data that is not there.
    pub(crate) fn absent(folder: &str) -> Data {
        Data { folder: folder.into(), shards: Vec::new(), bytes: Vec::new() }
    }

    /// The same data, seen at another path.
    pub(crate) fn at(&self, folder: impl Into<PathBuf>) -> Data {
        let folder = folder.into();
        let names = self.shards.iter().map(|shard| folder.join(shard.file_name().unwrap()));
        Data { shards: names.collect(), bytes: self.bytes.clone(), folder }
    }

    pub(crate) fn samples(&self) -> usize {
        self.bytes.len() / RECORD
    }

    /// The bytes of all samples.
    pub(crate) fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(crate) fn shards(&self) -> &[PathBuf] {
        &self.shards
    }

    /// `gpufeed load` of all of it, with these arguments too.
    pub(crate) fn load(&self, args: &[&str]) -> Command {
        let mut command = gpufeed();
        command.arg("load").arg(self.pattern()).args(["--record-bytes", &RECORD.to_string()]);
        command.args(["--json", "--digest", "--last-batch", "short"]).args(args);
        // Memory is slow to come by here.
        let little = [["--prefetch", "4"], ["--queue-depth", "8"]];
        command.args(little.iter().filter(|[flag, _]| !args.contains(flag)).flatten());
        command
    }

    /// Runs that, cold, and holds it to the bytes of the shards as a plain read gives them.
    #[track_caller]
    pub(crate) fn loads(&self, args: &[&str]) -> Value {
        self.loads_in(&[], args)
    }

    /// The same with these settings in its environment.
    #[track_caller]
    pub(crate) fn loads_in(&self, settings: &[(&str, &str)], args: &[&str]) -> Value {
        let (json, mut order) = self.delivers(settings, args);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..self.samples()), "{args:?}: not each sample once");
        json
    }

    /// The same, of the samples that come: also in which order they do.
    #[track_caller]
    pub(crate) fn delivers(&self, settings: &[(&str, &str)], args: &[&str]) -> (Value, Vec<usize>) {
        forget_caches();
        let path = Path::new("/tmp/order");
        let mut command = self.load(args);
        command.envs(settings.iter().copied()).arg("--order-out").arg(path);
        let what = format!("{command:?}");
        let ended = run(command);
        assert_eq!(ended.status, Some(0), "{what}: {}", ended.errors);
        let order: Vec<usize> =
            fs::read_to_string(path).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        let json = ended.json();
        assert_eq!(json["digest"].as_str(), Some(&*self.digest_of(&order)), "{what}");
        (json, order)
    }

    /// Starts a run, and goes on meanwhile.
    #[track_caller]
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let order = own_path("order");
        let mut command = self.load(args);
        command.arg("--order-out").arg(&order);
        Running::start(command, order)
    }

    /// Starts `gpufeed inspect` of it, with these arguments too.
    #[track_caller]
    pub(crate) fn inspect(&self, args: &[&str]) -> Running {
        let mut command = gpufeed();
        command.arg("inspect").arg(self.pattern()).args(["--record-bytes", &RECORD.to_string()]).args(args);
        Running::start(command, PathBuf::new())
    }

    /// Starts a run in order that takes some 15 seconds, cold, and goes on when it has delivered something.
    #[track_caller]
    pub(crate) fn under_way(&self, [backend, device]: [&str; 2], args: &[&str]) -> Running {
        forget_caches();
        let state = own_path("state");
        let way = ["--backend", backend, "--device", device, "--io-bytes", "4096", "--batch-size", "16"];
        let told = ["--state-out", state.to_str().unwrap(), "--state-every", "1"];
        let rate = if args.contains(&"--limit-rate") { &[][..] } else { &["--limit-rate", "150KiB"] };
        let running = self.start(&[&way[..], &told, rate, args].concat());
        let since = Instant::now();
        // It is written when the run begins, and after each batch.
        while position(&state).is_none_or(|position| position == 0) {
            if since.elapsed() > MOST {
                panic!("nothing is delivered: {:?}", running.end());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        running
    }

    /// Whether a run that was started delivered every sample, and the right bytes.
    #[track_caller]
    pub(crate) fn is_delivered(&self, ended: &Ended) {
        let json = ended.json();
        assert_eq!(json["digest"].as_str(), Some(&*self.digest_of(&ended.order)), "{json}");
        let mut order = ended.order.clone();
        order.sort_unstable();
        assert!(order.into_iter().eq(0..self.samples()), "not each sample once");
    }

    /// The pattern of all shards.
    pub(crate) fn pattern(&self) -> PathBuf {
        self.folder.join("*.bin")
    }

    /// The bytes of a record.
    pub(crate) fn record(&self, i: usize) -> &[u8] {
        &self.bytes[i * RECORD..][..RECORD]
    }

    /// The digest of records in an order.
    fn digest_of(&self, order: &[usize]) -> String {
        let mut digest = Sha256::new();
        order.iter().for_each(|&i| digest.update(self.record(i)));
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether the files are now what was written, by plain reads.
    #[track_caller]
    pub(crate) fn is_whole(&self) {
        let read: Vec<u8> = self.shards.iter().flat_map(|shard| fs::read(shard).unwrap()).collect();
        assert!(read == self.bytes, "{}: other bytes than were written", self.folder.display());
    }
}

/// A path that no other run uses.
fn own_path(what: &str) -> PathBuf {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    PathBuf::from(format!("/tmp/{what}-{}", RUNS.fetch_add(1, Ordering::Relaxed)))
}

/// How far a run is by the state that it wrote.
fn position(state: &Path) -> Option<u64> {
    let state: Value = serde_json::from_str(&fs::read_to_string(state).ok()?).ok()?;
    state["position"].as_u64()
}

/// Bytes without a pattern, the same for the same seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(len).collect()
}

/// The program, with the emulated driver as its CUDA driver and the newest cuFile.
pub(crate) fn gpufeed() -> Command {
    let mut command = Command::new(format!("{PROGRAMS}/gpufeed"));
    without_launcher(&mut command)
        .current_dir("/tmp")
        .stdin(Stdio::null())
        .env("LD_LIBRARY_PATH", PROGRAMS)
        .env("XDG_CACHE_HOME", "/nonexistent");
    command
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    pub(crate) printed: String,
    pub(crate) errors: String,
    /// The samples that it delivered, for a run that was started with [`Data::start`].
    order: Vec<usize>,
}

impl Ended {
    fn new(output: Output) -> Ended {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (printed, errors) = (text(&output.stdout), text(&output.stderr));
        Ended { status: output.status.code(), printed, errors, order: Vec::new() }
    }

    /// What it printed, as it does with `--json`.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.printed).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// The ways to read whose runs are stopped, changed or starved in the middle: a backend and a device each.
pub(crate) const WAYS: [[&str; 2]; 4] =
    [["uring", "host"], ["pread", "host"], ["page-cache", "host"], ["uring", "cuda:0"]];
/// Those of them that read directly.
pub(crate) const DIRECT_WAYS: [[&str; 2]; 3] = [WAYS[0], WAYS[1], WAYS[3]];
/// One by cuFile, whose driver takes some 5 seconds to open where the processor is emulated too.
pub(crate) const GDS: [&str; 2] = ["gds", "cuda:0"];

/// Runs a command to its end.
#[track_caller]
pub(crate) fn run(mut command: Command) -> Ended {
    Ended::new(command.output().unwrap())
}

/// A run ends within this, and if not, it never does.
const MOST: Duration = Duration::from_secs(150);

/// A run that is at work. It is killed if nobody waits for its end, as when a case fails.
#[derive(Debug)]
pub(crate) struct Running {
    child: Option<Child>,
    order: PathBuf,
}

impl Running {
    #[track_caller]
    fn start(mut command: Command, order: PathBuf) -> Running {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running { child: Some(child), order }
    }

    /// Sends what Ctrl-C sends.
    #[track_caller]
    pub(crate) fn interrupt(&self) {
        self.signal("INT");
    }

    /// Sends a signal.
    #[track_caller]
    pub(crate) fn signal(&self, signal: &str) {
        sh(&format!("kill -{signal} {}", self.child.as_ref().expect("it has not ended").id()));
    }

    /// Waits until it has done all that it can do to end. A thread that waits for a disk, as `pread` does, cannot be killed: while
    /// there is one, nobody gets to see the end of the process.
    #[track_caller]
    pub(crate) fn gets_to_its_end(&self) {
        let (child, start) = (self.child.as_ref().expect("it has not ended"), Instant::now());
        let first_thread_is_gone = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            // What follows the name, which is in brackets.
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
        };
        while !first_thread_is_gone() {
            assert!(start.elapsed() < MOST, "the run does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for its end, which must come soon enough.
    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        let (child, start) = (self.child.as_mut().expect("it has not ended"), Instant::now());
        while child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < MOST, "the run does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = self.child.take().map(Child::wait_with_output).expect("it has just ended").unwrap();
        let order = fs::read_to_string(&self.order).unwrap_or_default();
        // The last line may have been cut off.
        let order = order.lines().filter_map(|line| line.parse().ok()).collect();
        Ended { order, ..Ended::new(output) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            // Not for ever: see `gets_to_its_end`.
            for _ in 0..100 {
                if child.try_wait().is_ok_and(|ended| ended.is_some()) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// What a run with `--json` says of itself: bytes by way, those with some.
pub(crate) fn ways(json: &Value) -> Vec<(&str, u64)> {
    let all = json["bytes_by_way"].as_object().expect("ways");
    all.iter().map(|(way, bytes)| (way.as_str(), bytes.as_u64().unwrap())).filter(|(_, n)| *n > 0).collect()
}

/// Every backend, on the host and on an emulated GPU, in order on the one and shuffled on the other, without cuFile: each delivers every
/// sample and the right bytes, directly but for the page cache. What the runs say of the file system they read from is returned.
#[track_caller]
pub(crate) fn every_way(data: &Data) -> Value {
    data.is_whole();
    let way = |backend: &str| match backend {
        "pread" => "pread_direct",
        "page-cache" => "page_cache",
        _ => "uring_direct",
    };
    let mut last = Value::Null;
    // See `GDS`; `auto` would ask it each time.
    let none = [("GPUFEED_LIBCUFILE", "/nonexistent")];
    for (device, in_order) in [("host", ["auto", "pread"]), ("cuda:0", ["uring", "page-cache"])] {
        for backend in ["auto", "uring", "pread", "page-cache"] {
            let shuffle = if in_order.contains(&backend) { "none" } else { "full" };
            let args = ["--backend", backend, "--device", device, "--shuffle", shuffle];
            let json = data.loads_in(&none, &args);
            assert_eq!(ways(&json), [(way(backend), data.size())], "{backend} {device} {shuffle}: {json}");
            last = json;
        }
    }
    last
}
