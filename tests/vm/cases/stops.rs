//! Storage that stops answering in the middle of an epoch, and comes back or does not.

use std::time::Duration;

use crate::data::{Data, Running};
use crate::guest::{Mounted, Undo, drive, forget_caches, sh};
use crate::server::{Server, TCP, TCP_3};

const BACKENDS: [&str; 3] = ["uring", "pread", "page-cache"];

/// A run that takes some 20 seconds, and has begun.
#[track_caller]
fn slow(data: &Data, backend: &str, args: &[&str]) -> Running {
    forget_caches();
    // Direct reads of single records read several times as much as they deliver.
    let rate = if backend == "page-cache" { "100KiB" } else { "400KiB" };
    let all = [&["--backend", backend, "--device", "host", "--limit-rate", rate, "--shuffle", "full"], args];
    let running = data.start(&all.concat());
    std::thread::sleep(Duration::from_secs(2));
    running
}

#[test]
fn a_run_goes_on_when_its_server_does() {
    let server = Server::start();
    let data = Data::in_folder(server.folder().join("data"));
    for options in [TCP, TCP_3] {
        let mounted = server.mount(options);
        let data = data.at(mounted.join("data"));
        let runs = BACKENDS.map(|backend| slow(&data, backend, &[]));
        server.stop();
        std::thread::sleep(Duration::from_secs(5));
        server.go_on();
        for run in runs {
            let ended = run.end();
            assert_eq!(ended.status, Some(0), "{options}: {}", ended.errors);
            data.is_delivered(&ended);
        }
    }
}

/// While nothing answers, a run ends by its timeout with an error that names the file, and by a signal at once.
#[track_caller]
fn ends_while_nothing_answers(data: &Data, named: &str, stop: impl Fn(), go_on: impl Fn()) {
    for backend in BACKENDS {
        let (timed, interrupted) = (slow(data, backend, &["--read-timeout", "3"]), slow(data, backend, &[]));
        stop();
        std::thread::sleep(Duration::from_secs(1));
        interrupted.interrupt();
        interrupted.gets_to_its_end();
        timed.gets_to_its_end();
        go_on();
        let (interrupted, timed) = (interrupted.end(), timed.end());
        assert_eq!(interrupted.status, Some(130), "{backend}: {}", interrupted.errors);
        assert_eq!(timed.status, Some(1), "{backend}: {}", timed.errors);
        let (file, words) = (data.shards()[0].parent().unwrap().display().to_string(), &timed.errors);
        assert!(
            words.contains(&file) && words.contains("not answered for 3 s") && words.contains(named),
            "{backend}: {words}"
        );
    }
    // What was left in flight did no harm.
    data.is_whole();
}

#[test]
fn a_server_that_stays_away() {
    let server = Server::start();
    let data = Data::in_folder(server.folder().join("data"));
    let mounted = server.mount(TCP);
    let data = data.at(mounted.join("data"));
    ends_while_nothing_answers(&data, "nfs4 at /mnt/nfs", || server.stop(), || server.go_on());
}

#[test]
fn a_disk_that_does_not_answer() {
    let device = drive("n0");
    let sectors = sh(&format!("blockdev --getsz {}", device.display()));
    let create = format!("dmsetup create stops --table '0 {sectors} linear {} 0'", device.display());
    // Without reading ahead, or all of the data would be in the page cache by the time that the disk stops.
    let create = format!("{create}; udevadm settle; blockdev --setra 0 /dev/mapper/stops");
    let _mapped = Undo::after(&create, "dmsetup remove --retry stops");
    let mounted = Mounted::fresh("mkfs.ext4 -q -F", "/dev/mapper/stops".as_ref(), "data=ordered");
    let data = Data::in_folder(mounted.join("data"));
    let suspend = || drop(sh("dmsetup suspend --nolockfs stops"));
    ends_while_nothing_answers(&data, "ext4 at /mnt/case", suspend, || drop(sh("dmsetup resume stops")));
}

#[test]
fn a_server_that_is_down_when_a_file_is_opened() {
    let server = Server::start();
    let data = Data::in_folder(server.folder().join("data"));
    let mounted = server.mount(&format!("{TCP},noac"));
    let data = data.at(mounted.join("data"));
    server.stop();
    let (timed, interrupted) = (data.start(&["--read-timeout", "3"]), data.start(&[]));
    std::thread::sleep(Duration::from_secs(1));
    interrupted.interrupt();
    let (interrupted, timed) = (interrupted.end(), timed.end());
    server.go_on();
    assert_eq!(interrupted.status, Some(130), "{}", interrupted.errors);
    assert_eq!(timed.status, Some(1), "{}", timed.errors);
    assert!(
        timed.errors.contains("/mnt/nfs") && timed.errors.contains("not answered for 3 s"),
        "{}",
        timed.errors
    );
}
