//! More of storage that stops answering than `stops` has: on an emulated GPU, between two files, with runs that are killed; and
//! of a server that does not know a file any more.

use std::fs;
use std::os::unix::fs::symlink;
use std::thread::sleep;
use std::time::Duration;

use crate::data::{DIRECT_WAYS, Data, Ended, WAYS};
use crate::guest::{Mounted, drive, sh};
use crate::server::{Server, TCP, TCP_3};

/// A server that is down until this is dropped, and then answers again.
struct Down<'a>(&'a Server, &'a Data);

impl<'a> Down<'a> {
    fn new(server: &'a Server, data: &'a Data) -> Down<'a> {
        server.stop();
        Down(server, data)
    }
}

impl Drop for Down<'_> {
    fn drop(&mut self) {
        self.0.go_on();
        self.1.is_whole();
    }
}

#[track_caller]
fn assert_failed_with(ended: &Ended, all: &[&str]) {
    assert_eq!(ended.status, Some(1), "{ended:?}");
    for words in all {
        assert!(ended.errors.contains(words), "{words} is not in {}", ended.errors);
    }
}

#[test]
fn a_gpu_is_left_alone_by_reads_that_do_not_come_back() {
    let server = Server::start();
    let mounted = server.mount(TCP);
    let data = Data::in_folder(server.folder().join("data")).at(mounted.join("data"));
    let way = ["uring", "cuda:0"];
    let run = data.under_way(way, &[]);
    let down = Down::new(&server, &data);
    sleep(Duration::from_secs(5));
    drop(down);
    let ended = run.end();
    assert_eq!(ended.status, Some(0), "{ended:?}");
    data.is_delivered(&ended);
    // The emulated driver would report memory that is freed or copied from while it is in use.
    let run = data.under_way(way, &["--read-timeout", "3"]);
    let _down = Down::new(&server, &data);
    let ended = run.end();
    assert_failed_with(&ended, &["storage has not answered for 3 s", "come back", "nfs4 at /mnt/nfs"]);
    assert!(!ended.errors.contains("emulator"), "{ended:?}");
}

#[test]
fn a_run_that_waits_for_a_server_can_be_killed() {
    let server = Server::start();
    let mounted = server.mount(TCP);
    let data = Data::in_folder(server.folder().join("data")).at(mounted.join("data"));
    // Apart: a read through the page cache waits in the kernel, where no signal ends it, for direct reads of the same file, and
    // those that io_uring began outlive their process.
    for ways in [&DIRECT_WAYS[..], &[["page-cache", "host"]]] {
        let runs: Vec<_> = ways.iter().map(|&way| data.under_way(way, &["--limit-rate", "40KiB"])).collect();
        let _down = Down::new(&server, &data);
        sleep(Duration::from_secs(1));
        runs.iter().for_each(|run| run.signal("KILL"));
        for (run, way) in runs.into_iter().zip(ways) {
            assert_eq!(run.end().status, None, "{way:?}");
        }
    }
}

#[test]
fn a_server_that_goes_down_before_the_next_file_is_opened_is_an_error_that_names_it() {
    let server = Server::start();
    let mounted = server.mount(TCP);
    let remote = Data::in_folder(server.folder().join("data")).at(mounted.join("data"));
    // The first of the shards is on a local disk, and takes some 14 seconds.
    let local = Mounted::fresh("mkfs.ext4 -q -F", &drive("n0"), "data=ordered");
    let folder = local.join("data");
    fs::create_dir(&folder).unwrap();
    for (i, shard) in remote.shards().iter().enumerate() {
        let here = folder.join(shard.file_name().unwrap());
        match i {
            0 => drop(fs::copy(shard, here).unwrap()),
            _ => symlink(shard, here).unwrap(),
        }
    }
    let data = remote.at(&folder);
    let runs = WAYS.map(|way| data.under_way(way, &["--limit-rate", "75KiB", "--read-timeout", "3"]));
    let _down = Down::new(&server, &remote);
    let next = data.shards()[1].to_str().unwrap();
    for run in runs {
        assert_failed_with(&run.end(), &[next, "has not answered for 3 s", "the file cannot be opened"]);
    }
}

#[test]
fn a_file_that_is_replaced_on_the_server_is_told_as_changed() {
    let server = Server::start();
    // In version 3 nothing is open on the server, so what was removed there is stale at once.
    let mounted = server.mount(TCP_3);
    let written = Data::in_folder(server.folder().join("data"));
    let data = written.at(mounted.join("data"));
    for way in WAYS {
        let run = data.under_way(way, &[]);
        let (first, other) = (&written.shards()[0], written.shards()[0].with_extension("other"));
        let (first, other) = (first.display(), other.display());
        sh(&format!("cp -p {first} {other}; sync; mv {other} {first}; sync"));
        let name = data.shards()[0].to_str().unwrap();
        assert_failed_with(&run.end(), &[name, "another file has taken its name"]);
    }
}
