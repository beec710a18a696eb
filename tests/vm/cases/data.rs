//! Shards whose every byte is known, and what `gpufeed load` delivers of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::guest::{PROGRAMS, forget_caches};
use crate::launcher::without_launcher;

/// The bytes of a record: no multiple of anything that storage likes.
const RECORD: usize = 1500;
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
        command.arg("load").arg(self.folder.join("*.bin")).args(["--record-bytes", &RECORD.to_string()]);
        command
            .args(["--json", "--digest", "--last-batch", "short"])
            // Memory is slow to come by here.
            .args(["--prefetch", "4", "--queue-depth", "8"])
            .args(args);
        command
    }

    /// Runs that, cold, and holds it to the bytes of the shards as a plain read gives them.
    #[track_caller]
    pub(crate) fn loads(&self, args: &[&str]) -> Value {
        self.delivers(self.load(args))
    }

    /// The same with this library as cuFile.
    #[track_caller]
    pub(crate) fn loads_by(&self, cufile: &Path, args: &[&str]) -> Value {
        let mut command = self.load(args);
        // 1.14 frees its first device memory twice, which the emulated driver reports.
        command.env("GPUFEED_LIBCUFILE", cufile).env("CUDA_EMULATOR_OVERLOOK", "double-free@libcufile.so.0");
        self.delivers(command)
    }

    #[track_caller]
    fn delivers(&self, mut command: Command) -> Value {
        forget_caches();
        let order = Path::new("/tmp/order");
        command.arg("--order-out").arg(order);
        let what = format!("{command:?}");
        let ended = run(command);
        assert_eq!(ended.status, Some(0), "{what}: {}", ended.errors);
        let json: Value = serde_json::from_str(&ended.printed).unwrap_or_else(|e| panic!("{what}: {e}"));
        let order: Vec<usize> =
            fs::read_to_string(order).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        let (mut sorted, all) = (order.clone(), (0..self.samples()).collect::<Vec<_>>());
        sorted.sort_unstable();
        assert!(sorted == all, "{what}: not each sample once: {} of {}", order.len(), all.len());
        assert_eq!(json["digest"].as_str(), Some(&*self.digest_of(&order)), "{what}");
        json
    }

    /// The digest of records in an order.
    fn digest_of(&self, order: &[usize]) -> String {
        let mut digest = Sha256::new();
        order.iter().for_each(|&i| digest.update(&self.bytes[i * RECORD..][..RECORD]));
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether the files are now what was written, by plain reads.
    #[track_caller]
    pub(crate) fn is_whole(&self) {
        let read: Vec<u8> = self.shards.iter().flat_map(|shard| fs::read(shard).unwrap()).collect();
        assert!(read == self.bytes, "{}: other bytes than were written", self.folder.display());
    }
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

/// Each version of NVIDIA's cuFile that is there.
pub(crate) fn cufiles() -> Vec<PathBuf> {
    let mut found: Vec<_> = (0..)
        .map(|i| PathBuf::from(format!("{PROGRAMS}/cufile-{i}/libcufile.so.0")))
        .take_while(|it| it.exists())
        .collect();
    assert!(!found.is_empty(), "no cuFile in {PROGRAMS}");
    found.sort();
    found
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    pub(crate) printed: String,
    pub(crate) errors: String,
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn run(mut command: Command) -> Ended {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ended { status: output.status.code(), printed: text(&output.stdout), errors: text(&output.stderr) }
}

/// What a run with `--json` says of itself: bytes by way, those with some.
pub(crate) fn ways(json: &Value) -> Vec<(&str, u64)> {
    let all = json["bytes_by_way"].as_object().expect("ways");
    all.iter().map(|(way, bytes)| (way.as_str(), bytes.as_u64().unwrap())).filter(|(_, n)| *n > 0).collect()
}

/// Every backend, on the host and on an emulated GPU, in order and shuffled: each delivers every sample and the right bytes, by a
/// way that is direct where `direct` says so. What the runs say of the file system they read from is returned.
#[track_caller]
pub(crate) fn every_way(data: &Data, direct: bool) -> Value {
    data.is_whole();
    let way = |backend: &str| match (backend, direct) {
        ("pread", true) => "pread_direct",
        ("pread", false) => "pread_buffered",
        ("page-cache", _) => "page_cache",
        (_, true) => "uring_direct",
        (_, false) => "uring_buffered",
    };
    let mut last = Value::Null;
    for (device, shuffles) in [("host", &["none", "full"][..]), ("cuda:0", &["full"])] {
        for backend in ["auto", "uring", "pread", "page-cache"] {
            for shuffle in shuffles {
                let json = data.loads(&["--backend", backend, "--device", device, "--shuffle", shuffle]);
                assert_eq!(
                    ways(&json),
                    [(way(backend), data.size())],
                    "{backend} {device} {shuffle}: {json}"
                );
                last = json;
            }
        }
    }
    last
}

/// NVIDIA's own cuFile, each version, on an emulated GPU, with the real udev and the real list of modules: in its
/// compatibility mode it delivers the right bytes, since there is no nvidia-fs here.
#[track_caller]
pub(crate) fn by_cufile(data: &Data) {
    for cufile in cufiles() {
        for shuffle in ["none", "full"] {
            let json =
                data.loads_by(&cufile, &["--backend", "gds", "--device", "cuda:0", "--shuffle", shuffle]);
            assert_eq!(ways(&json), [("cufile_compat", data.size())], "{}: {json}", cufile.display());
        }
    }
}
