//! Disks that fail: by device-mapper's faults under a file system, and by being pulled out.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::data::{Data, RECORD, WAYS, run};
use crate::guest::{Mounted, Undo, drive, forget_caches, monitor, sh};

const BACKENDS: [&str; 4] = ["uring", "pread", "page-cache", "auto"];
/// The errno of a failed read.
const EIO: &str = "(os error 5)";

/// A file system on a device whose table can be changed.
#[derive(Debug)]
struct Mapped {
    mounted: Mounted,
    device: PathBuf,
    sectors: u64,
    _mapped: Undo,
}

impl Mapped {
    #[track_caller]
    fn new() -> Mapped {
        let device = drive("n1");
        let sectors = sh(&format!("blockdev --getsz {}", device.display())).parse().unwrap();
        let create = format!("dmsetup create faults --table '0 {sectors} linear {} 0'", device.display());
        let mapped = Undo::after(&create, "dmsetup remove --retry faults");
        let mounted = Mounted::fresh("mkfs.ext4 -q -F", "/dev/mapper/faults".as_ref(), "data=ordered");
        Mapped { mounted, device, sectors, _mapped: mapped }
    }

    /// Has another table from here on, of lines that begin with the first sector.
    #[track_caller]
    fn becomes(&self, table: &str) {
        forget_caches();
        // Without freezing the file system: Linux 6.12 cannot freeze one whose superblock it could not write.
        sh(&format!(
            "dmsetup suspend --nolockfs faults; printf '{table}' | dmsetup load faults; dmsetup resume faults"
        ));
    }

    /// Is one target throughout.
    #[track_caller]
    fn becomes_all(&self, target: &str, more: &str) {
        self.becomes(&format!("0 {} {target} {} 0 {more}", self.sectors, self.device.display()));
    }

    /// Is as it was.
    fn heals(&self) {
        self.becomes_all("linear", "");
    }

    /// The first sector on the device of a block of a file.
    #[track_caller]
    fn sector_of(&self, file: &Path, offset: u64) -> u64 {
        // In units of 1024 bytes, which no file system has smaller ones than.
        let block = offset / 1024;
        // Logical block, physical block and length of each extent.
        for line in sh(&format!("filefrag -s -b1024 -v {}", file.display())).lines() {
            let numbers: Vec<u64> = line
                .split(|c: char| !c.is_ascii_digit())
                .filter(|text| !text.is_empty())
                .filter_map(|text| text.parse().ok())
                .collect();
            if let (true, [_, first, last, place, ..]) = (line.contains(".."), &numbers[..])
                && (*first..=*last).contains(&block)
            {
                return (place + block - first) * 2;
            }
        }
        panic!("{} has no block {block}", file.display());
    }
}

#[test]
fn sectors_that_cannot_be_read() {
    let mapped = Mapped::new();
    let data = Data::in_folder(mapped.mounted.join("data"));
    const AT: u64 = 40 * 4096;
    let (first, dev) = (mapped.sector_of(&data.shards()[0], AT), mapped.device.display());
    let after = first + 8;
    mapped.becomes(&format!(
        "0 {first} linear {dev} 0\\n{first} 8 error\\n{after} {} linear {dev} {after}\\n",
        mapped.sectors - after
    ));
    let bad = (AT / RECORD as u64) as usize..=((AT + 4095) / RECORD as u64) as usize;
    for device in ["host", "cuda:0"] {
        for backend in BACKENDS {
            forget_caches();
            let args = ["--device", device, "--backend", backend];
            let ended = run(data.load(&args));
            assert_eq!(ended.status, Some(1), "{backend}: {}", ended.errors);
            for word in ["shard-0.bin", "offset ", "ext4 at /mnt/case", EIO] {
                assert!(ended.errors.contains(word), "{backend}: {word} is not in {}", ended.errors);
            }
            // Where it may, it goes on with all that can be read.
            let args = [&args[..], &["--skip-bad", "10", "--shuffle", "full"]].concat();
            let (json, order) = data.delivers(&[], &args);
            let skipped: Vec<usize> = of_each(&json, "record");
            assert!(
                skipped.iter().all(|record| bad.contains(record)) && !skipped.is_empty(),
                "{backend}: {json}"
            );
            assert!(order.iter().all(|sample| !skipped.contains(sample)), "{backend}: {json}");
        }
    }
    mapped.heals();
    data.loads(&[]);
}

/// A number of each bad sample.
fn of_each(json: &Value, what: &str) -> Vec<usize> {
    let bad = json["bad_samples"].as_array().unwrap();
    bad.iter().map(|it| it[what].as_u64().unwrap() as usize).collect()
}

#[test]
fn a_disk_that_fails_now_and_then() {
    let mapped = Mapped::new();
    let data = Data::in_folder(mapped.mounted.join("data"));
    // So that it is not the journal that notices.
    sh("mount -o remount,ro /mnt/case");
    // Up for two seconds, down for one.
    mapped.becomes_all("flakey", "2 1");
    let mut failed = 0;
    for backend in BACKENDS.into_iter().cycle().take(12) {
        forget_caches();
        let running = data.start(&["--device", "host", "--backend", backend, "--limit-rate", "1MiB"]);
        let ended = running.end();
        match ended.status {
            Some(0) => data.is_delivered(&ended),
            _ => {
                failed += 1;
                assert!(ended.errors.contains("/mnt/case/data"), "{backend}: {}", ended.errors);
                assert!(ended.errors.contains(EIO), "{backend}: {}", ended.errors);
            }
        }
    }
    assert!(failed > 0, "the disk never failed");
    mapped.heals();
    data.loads(&[]);
}

#[test]
fn a_disk_that_is_slow() {
    let mapped = Mapped::new();
    let data = Data::in_folder(mapped.mounted.join("data"));
    mapped.becomes_all("delay", "200");
    for backend in ["uring", "pread"] {
        // Slow is not dead, though the whole takes longer than the timeout.
        let way = ["--device", "host", "--backend", backend];
        let slow = ["--read-timeout", "3", "--queue-depth", "1", "--io-bytes", "128KiB"];
        data.loads(&[&way[..], &slow].concat());
    }
}

#[test]
fn a_drive_that_is_pulled_out() {
    let stays = Mounted::fresh_at("stays", "mkfs.ext4 -q -F", &drive("n0"), "data=ordered");
    let here = Data::in_folder(stays.join("data"));
    let goes = Mounted::fresh_at("goes", "mkfs.ext4 -q -F", &drive("gone"), "data=ordered");
    let data = Data::in_folder(goes.join("data"));
    // A drive takes its time to go.
    let runs = WAYS.map(|way| data.under_way(way, &["--limit-rate", "40KiB"]));
    let said = monitor("device_del gone");
    assert_eq!(said, "");
    for run in runs {
        let ended = run.end();
        assert_eq!(ended.status, Some(1), "{}", ended.errors);
        assert!(ended.errors.contains("/mnt/goes/data/shard-"), "{}", ended.errors);
        assert!(ended.errors.contains("ext4 at /mnt/goes"), "{}", ended.errors);
    }
    // Reads of the other drive go on.
    here.loads(&["--device", "host"]);
}
