//! NVMe drives: queues that are polled, and several drives read at once.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::data::{Data, run, ways};
use crate::guest::{Mounted, Undo, drive, forget_caches, sh};

/// Makes an ext4 and mounts it at a place of this name, so that there may be several.
#[track_caller]
fn ext4_at(name: &str, device: &Path) -> Mounted {
    Mounted::fresh_at(name, "mkfs.ext4 -q -F", device, "data=ordered")
}

/// Whether a run polled, how often, and why.
#[track_caller]
fn polling(json: &Value) -> (bool, u64, &str) {
    let it = &json["polling"];
    (it["used"].as_bool().unwrap(), it["reads"].as_u64().unwrap(), it["reason"].as_str().unwrap())
}

/// Polled reads of data on a drive: right bytes, all of them direct, and no word of a drive that cannot.
#[track_caller]
fn polls(data: &Data) {
    for (device, shuffle, io, depth) in
        [("host", "none", "1MiB", "16"), ("host", "full", "4KiB", "64"), ("cuda:0", "full", "64KiB", "2")]
    {
        let args = ["--backend", "uring", "--polling", "always", "--device", device];
        let more = ["--shuffle", shuffle, "--io-bytes", io, "--queue-depth", depth];
        let json = data.loads(&[&args[..], &more].concat());
        let (used, reads, reason) = polling(&json);
        assert!(used && reads > 0 && reason.contains("asked for"), "{json}");
        let [("uring_direct", _)] = ways(&json)[..] else { panic!("{json}") };
        assert!(!json["notes"].to_string().contains("cannot be polled"), "{json}");
    }
}

/// What `--polling always` says where it cannot be.
#[track_caller]
fn refused(data: &Data) -> String {
    let ended = run(data.load(&["--polling", "always"]));
    assert_eq!(ended.status, Some(1), "{}", ended.printed);
    ended.errors
}

#[test]
fn polled_reads_bring_right_bytes_with_sectors_of_512_and_of_4096_bytes() {
    let of_512 = ext4_at("polled", &drive("n0"));
    polls(&Data::in_folder(of_512.join("data")));
    drop(of_512);
    let of_4096 = Mounted::fresh("mkfs.xfs -q -f", &drive("n2"), "defaults");
    polls(&Data::in_folder(of_4096.join("data")));
}

#[test]
fn polled_reads_go_through_device_mapper() {
    let device = drive("n0");
    sh(&format!("wipefs -qa {}", device.display()));
    let table = format!("0 $(blockdev --getsz {0}) linear {0} 0", device.display());
    let _volume = Undo::after(&format!("echo {table} | dmsetup create polled"), "dmsetup remove polled");
    let volume = Path::new("/dev/mapper/polled");
    let mounted = ext4_at("polled", volume);
    let data = Data::in_folder(mounted.join("data"));
    let queue = format!("/sys/block/{}/queue/io_poll", name_of(&fs::canonicalize(volume).unwrap()));
    match fs::read_to_string(queue).unwrap().trim() {
        "1" => polls(&data),
        // Linux 5.10 does not pass such reads on, and says so.
        _ => assert!(refused(&data).contains("has no polled queues"), "{}", refused(&data)),
    }
}

#[test]
fn files_that_cannot_be_polled_are_read_beside_those_that_can() {
    let mounted = ext4_at("polled", &drive("n0"));
    let data = Data::in_folder(mounted.join("data"));
    // Half of the files in memory, which direct reads do not reach.
    let elsewhere = PathBuf::from("/dev/shm/nvme");
    fs::create_dir_all(&elsewhere).unwrap();
    for shard in data.shards().iter().step_by(2) {
        move_to(shard, &elsewhere);
    }
    for shuffle in ["none", "full"] {
        let args = ["--backend", "uring", "--polling", "always", "--shuffle", shuffle];
        let json = data.loads(&args);
        let (used, reads, _) = polling(&json);
        assert!(used && reads > 0, "{json}");
        assert_eq!(json["drives"].as_array().unwrap().len(), 2, "{json}");
        let ways: Vec<_> = ways(&json).into_iter().map(|(way, _)| way).collect();
        assert_eq!(ways, ["uring_buffered", "uring_direct"], "{json}");
    }
    fs::remove_dir_all(elsewhere).unwrap();
}

#[test]
fn polling_that_cannot_be_is_an_error_that_says_why() {
    let in_memory = Data::in_folder("/dev/shm/unpolled");
    assert!(refused(&in_memory).contains("no block device of its own"), "{}", refused(&in_memory));
    fs::remove_dir_all("/dev/shm/unpolled").unwrap();
    // The disk of the machine's root has no polled queues.
    let on_root = Data::in_folder("/var/unpolled");
    assert!(refused(&on_root).contains("has no polled queues"), "{}", refused(&on_root));
    let json = on_root.loads(&["--polling", "auto", "--backend", "auto"]);
    assert!(!polling(&json).0 && polling(&json).2.contains("has no polled queues"), "{json}");
    fs::remove_dir_all("/var/unpolled").unwrap();
}

#[test]
fn a_trial_decides_and_tells_both_figures() {
    let mounted = [ext4_at("one", &drive("n0")), ext4_at("two", &drive("n1"))];
    let write = |to: &Path| {
        sh(&format!("dd if=/dev/zero of={} bs=1M count=300 oflag=direct status=none", to.display()))
    };
    mounted.iter().for_each(|it| drop(write(&it.join("a.bin"))));
    symlink(mounted[1].join("a.bin"), mounted[0].join("b.bin")).unwrap();
    forget_caches();
    let load = || -> Value {
        let mut command = crate::data::gpufeed();
        command.arg("load").arg(mounted[0].join("*.bin"));
        command.args([
            "--record-bytes",
            "16KiB",
            "--io-bytes",
            "16KiB",
            "--queue-depth",
            "4",
            "--shuffle",
            "full",
        ]);
        command.args(["--max-batches", "20", "--device", "host", "--json"]);
        let ended = run(command);
        assert_eq!(ended.status, Some(0), "{}", ended.errors);
        serde_json::from_str(&ended.printed).unwrap()
    };
    // A trial ends after half a second, in which a busy host may give the machine next to nothing.
    let mut all = std::iter::repeat_with(load).take(10);
    let json =
        all.find(|json| !polling(json).2.contains("too little done")).expect("a trial that gets enough done");
    let (used, reads, reason) = polling(&json);
    // Which one wins is nothing that an emulated drive can tell.
    assert!(reason.contains("GiB/s with polling and") && used == (reads > 0), "{json}");
    assert!(json["backend_reason"].as_str().unwrap().contains(reason), "{json}");
    assert_eq!(used, !reason.contains("not enough of a difference"), "{json}");
}

/// The name of a device file, as in sysfs.
fn name_of(device: &Path) -> &str {
    device.file_name().and_then(|name| name.to_str()).unwrap()
}

/// Reads that a block device has done, and sectors of them.
fn done_by(name: &str) -> (u64, u64) {
    let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
    let mut numbers = stat.split_whitespace().map(|it| it.parse().unwrap());
    (numbers.next().unwrap(), numbers.nth(1).unwrap())
}

/// Puts a file elsewhere, and a link in its place.
fn move_to(file: &Path, folder: &Path) {
    let to = folder.join(file.file_name().unwrap());
    fs::copy(file, &to).unwrap();
    fs::remove_file(file).unwrap();
    symlink(to, file).unwrap();
}

#[test]
fn a_slow_drive_does_not_keep_a_fast_one_idle() {
    let (fast, slow) = (drive("n0"), drive("n1"));
    sh(&format!("wipefs -qa {}", slow.display()));
    let table = |delay: &str| format!("echo 0 $(blockdev --getsz {0}) {delay}", slow.display());
    let (linear, delayed) =
        (format!("linear {} 0", slow.display()), format!("delay {} 0 10000", slow.display()));
    let _volume = Undo::after(&format!("{} | dmsetup create slow", table(&linear)), "dmsetup remove slow");
    let (here, there) = (ext4_at("fast", &fast), ext4_at("slow", Path::new("/dev/mapper/slow")));
    let data = Data::in_folder(here.join("data"));
    // Every second shard is slow: 1033 records of 1434.
    let (record, batch, slots) = (1500, 32, 9);
    data.shards().iter().step_by(2).for_each(|shard| move_to(shard, there.point()));
    let args = ["--backend", "uring", "--shuffle", "full", "--seed", "4", "--device", "host"];
    let more = ["--queue-depth", "2", "--batch-size", "32", "--prefetch", "8"];
    let args = [&args[..], &more].concat();
    let expected = data.loads(&args)["digest"].clone();
    let order = fs::read_to_string("/tmp/order").unwrap();
    let is_slow = |sample: usize| sample < 700 || (701..1034).contains(&sample);
    let ahead = order.lines().take(batch * slots).filter(|it| !is_slow(it.parse().unwrap())).count();
    assert!(ahead > 40, "{ahead}");

    let mapped = name_of(&fs::canonicalize("/dev/mapper/slow").unwrap()).to_string();
    let reload =
        |to: &str| format!("{} | dmsetup reload slow && dmsetup --noudevsync resume slow", table(to));
    // From here on each of its reads takes ten seconds; udev would look at the changed volume by many of them.
    let undelay = Undo::after(
        &format!("udevadm control --stop-exec-queue; {}", reload(&delayed)),
        format!("{}; udevadm control --start-exec-queue; udevadm settle", reload(&linear)),
    );
    let (before, slow_before) = (done_by(name_of(&fast)), done_by(&mapped));
    let running = data.start(&args);
    let (started, mut came, mut slow_came) = (Instant::now(), 0, 0);
    // All that the fast one has of the batches that there are slots for; records that are neighbours share a read.
    let wanted = (ahead * record * 9 / 10 / 512) as u64;
    while came < wanted && started.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(20));
        came = done_by(name_of(&fast)).1 - before.1;
        slow_came = done_by(&mapped).0 - slow_before.0;
    }
    drop(undelay);
    let ended = running.end();
    assert_eq!(ended.status, Some(0), "{}", ended.errors);
    let json = ended.json();
    assert_eq!(json["digest"], expected, "{json}");
    assert_eq!((json["queue_depth"].as_u64(), json["drives"].as_array().unwrap().len()), (Some(2), 2));
    // The read that shows that direct reads work, and a queue of two once.
    assert!(came >= wanted && slow_came <= 4, "{came} of {wanted} sectors, and {slow_came} slow reads");
}
