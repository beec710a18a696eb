//! Storage that stops answering in the middle of an epoch, and comes back or does not.

use std::time::Duration;

use crate::data::{Data, GDS, WAYS};
use crate::guest::{Mounted, Undo, drive, sh};
use crate::server::{RDMA, Server, TCP, TCP_3};

#[test]
fn a_run_goes_on_when_its_server_does() {
    let server = Server::start();
    let data = Data::in_folder(server.folder().join("data"));
    for (options, last) in [(TCP, WAYS[3]), (TCP_3, GDS), (RDMA, WAYS[3])] {
        let mounted = server.mount(options);
        let data = data.at(mounted.join("data"));
        let ways = [WAYS[0], WAYS[1], WAYS[2], last];
        let runs = ways.map(|way| data.under_way(way, &[]));
        server.stop();
        std::thread::sleep(Duration::from_secs(3));
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
fn ends_while_nothing_answers(
    data: &Data,
    ways: &[[&str; 2]],
    named: &str,
    stop: impl Fn(),
    go_on: impl Fn(),
) {
    let slow = |way, args: &[&str]| data.under_way(way, &[&["--limit-rate", "40KiB"], args].concat());
    let runs: Vec<_> =
        ways.iter().map(|&way| (way, slow(way, &["--read-timeout", "3"]), slow(way, &[]))).collect();
    stop();
    std::thread::sleep(Duration::from_secs(1));
    runs.iter().for_each(|(_, _, interrupted)| interrupted.interrupt());
    for (_, timed, interrupted) in &runs {
        interrupted.gets_to_its_end();
        timed.gets_to_its_end();
    }
    go_on();
    let folder = data.shards()[0].parent().unwrap().display().to_string();
    for (way, timed, interrupted) in runs {
        let (timed, interrupted) = (timed.end(), interrupted.end());
        assert_eq!(interrupted.status, Some(130), "{way:?}: {}", interrupted.errors);
        assert_eq!(timed.status, Some(1), "{way:?}: {}", timed.errors);
        for word in [&folder, "not answered for 3 s", named] {
            assert!(timed.errors.contains(word), "{way:?}: {word} is not in {}", timed.errors);
        }
    }
    // What was left in flight did no harm.
    data.is_whole();
}

#[track_caller]
fn ends_while_its_server_stays_away(options: &str, ways: &[[&str; 2]]) {
    let server = Server::start();
    let data = Data::in_folder(server.folder().join("data"));
    let mounted = server.mount(options);
    let data = data.at(mounted.join("data"));
    ends_while_nothing_answers(&data, ways, "nfs4 at /mnt/nfs", || server.stop(), || server.go_on());
}

#[test]
fn a_server_that_stays_away() {
    ends_while_its_server_stays_away(TCP, &[WAYS[1], WAYS[2], GDS]);
}

#[test]
fn a_server_that_stays_away_over_rdma() {
    ends_while_its_server_stays_away(RDMA, &[WAYS[0], WAYS[1]]);
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
    ends_while_nothing_answers(&data, &WAYS, "ext4 at /mnt/case", suspend, || {
        drop(sh("dmsetup resume stops"))
    });
}

#[test]
fn a_server_that_is_down_when_a_file_is_opened() {
    let server = Server::start();
    let data = Data::in_folder(server.folder().join("data"));
    let mounted = server.mount(&format!("{TCP},noac"));
    let data = data.at(mounted.join("data"));
    server.stop();
    let timeout = ["--read-timeout", "3"];
    let (timed, inspected, interrupted) = (data.start(&timeout), data.inspect(&timeout), data.start(&[]));
    std::thread::sleep(Duration::from_secs(1));
    interrupted.interrupt();
    let (interrupted, timed) = (interrupted.end(), [timed.end(), inspected.end()]);
    server.go_on();
    assert_eq!(interrupted.status, Some(130), "{}", interrupted.errors);
    for timed in timed {
        assert_eq!(timed.status, Some(1), "{}", timed.errors);
        let words = &timed.errors;
        assert!(words.contains("/mnt/nfs") && words.contains("not answered for 3 s"), "{words}");
    }
}
