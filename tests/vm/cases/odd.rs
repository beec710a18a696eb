//! What gpufeed makes of a server that answers oddly.

use crate::data::{DIRECT_WAYS, GDS, WAYS, run};
use crate::odd_server::{Odd, OddServer};

/// Every way reads all of the data, while the server is like this.
#[track_caller]
fn every_way_reads_while(odd: Odd, args: &[&str]) {
    let (server, data) = OddServer::start();
    for [backend, device] in WAYS.into_iter().chain([GDS]) {
        server.becomes(odd);
        data.loads(&[&["--backend", backend, "--device", device], args].concat());
        assert!(server.oddities() > 0, "{backend} {device}: nothing was odd");
    }
}

#[test]
fn short_reads_are_gone_on_with() {
    every_way_reads_while(Odd::Short, &[]);
}

#[test]
fn a_handle_that_is_stale_is_opened_again_if_it_is_the_same_file() {
    // The first read is that which finds out whether there is direct I/O.
    for after in [0, 9] {
        every_way_reads_while(Odd::Stale { after, times: 1 }, &["--io-bytes", "65536"]);
    }
}

#[test]
fn a_server_that_is_not_ready_yet_is_waited_for() {
    let (server, data) = OddServer::start();
    for [backend, device] in WAYS {
        server.becomes(Odd::Later(1));
        data.loads(&["--backend", backend, "--device", device]);
        assert_eq!(server.oddities(), 1, "{backend} {device}");
    }
}

/// Every one of these ways ends with an error that has these words and names the file.
#[track_caller]
fn fails_while(odd: Odd, ways: &[[&str; 2]], words: &[&str]) {
    let (server, data) = OddServer::start();
    for [backend, device] in ways {
        server.becomes(odd);
        let ended = run(data.load(&["--backend", backend, "--device", device]));
        assert_eq!(ended.status, Some(1), "{backend} {device}: {}{}", ended.errors, ended.printed);
        for word in [&["/mnt/odd/shard-0.bin"], words].concat() {
            assert!(ended.errors.contains(word), "{backend} {device}: {word} is not in {}", ended.errors);
        }
    }
}

#[test]
fn a_handle_that_stays_stale_is_an_error() {
    fails_while(Odd::Stale { after: 0, times: u64::MAX }, &WAYS, &["nfs at /mnt/odd", "(os error 116)"]);
}

#[test]
fn a_part_that_the_server_cannot_read_is_an_error() {
    fails_while(Odd::BadAt(500_000), &WAYS, &["nfs at /mnt/odd", "(os error 5)", "offset "]);
}

#[test]
fn a_file_that_ends_before_its_size_is_an_error() {
    // Through the page cache, the kernel makes zeros of what the server says is not there.
    let words = ["reads end at byte 500001, though the file has 1050000 bytes"];
    fails_while(Odd::EndsAt(500_001), &DIRECT_WAYS, &words);
}
