//! What is refused, is not there, or has changed: one error that names the path, the file system and the cause.

use std::fs;

use crate::data::{Data, Ended, WAYS, run};
use crate::guest::{Mounted, drive, sh};
use crate::server::{Server, TCP, TCP_3};

/// A run that ends with an error of one line that has all of these words.
#[track_caller]
fn says(ended: &Ended, words: &[&str]) {
    let Ended { status, errors, .. } = ended;
    assert_eq!(*status, Some(1), "{errors}");
    let line = errors.lines().find(|line| line.starts_with("error:")).unwrap_or_else(|| panic!("{errors}"));
    for word in words {
        assert!(line.contains(word), "{word:?} is not in {line:?}");
    }
}

#[test]
fn a_mount_that_is_not_there() {
    let before = fs::read_to_string("/etc/fstab").unwrap_or_default();
    fs::create_dir_all("/mnt/absent").unwrap();
    fs::write("/etc/fstab", "10.1.1.1:/data /mnt/absent nfs4 ro,noauto 0 0\n").unwrap();
    let ended = run(Data::absent("/mnt/absent/train").load(&[]));
    fs::write("/etc/fstab", before).unwrap();
    says(&ended, &["/mnt/absent/train", "nothing is mounted at /mnt/absent", "10.1.1.1:/data (nfs4)"]);
}

#[test]
fn a_file_that_the_server_keeps_from_root() {
    let server = Server::exporting("rw,root_squash");
    let data = Data::in_folder(server.folder().join("data"));
    sh(&format!("chmod 600 {}/data/*", server.folder().display()));
    for options in [TCP, TCP_3] {
        let mounted = server.mount(options);
        let ended = run(data.at(mounted.join("data")).load(&[]));
        says(
            &ended,
            &["/mnt/nfs/data/shard-0.bin", "at /mnt/nfs from 10.1.1.1:", "root_squash", "(os error 13)"],
        );
    }
}

#[test]
fn a_file_system_that_is_read_only() {
    let mounted = Mounted::fresh("mkfs.xfs -q -f", &drive("n0"), "defaults");
    let data = Data::in_folder(mounted.join("data"));
    sh(&format!("mount -o remount,ro {}", mounted.point().display()));
    // What is only read is read.
    data.loads(&["--device", "host"]);
    for (flag, name) in [("--state-out", "state"), ("--order-out", "order"), ("--metrics-out", "metrics")] {
        let path = mounted.join(name);
        let ended = run(data.load(&["--device", "host", flag, path.to_str().unwrap()]));
        says(
            &ended,
            &[&format!("/mnt/case/{name}"), "xfs at /mnt/case", "mounted read-only", "(os error 30)"],
        );
    }
}

#[test]
fn a_file_system_that_is_full() {
    let device = drive("n0");
    let mounted = Mounted::fresh("mkfs.ext4 -q -F", &device, "data=ordered");
    let data = Data::in_folder(mounted.join("data"));
    sh(&format!("dd if=/dev/zero of={}/filler bs=1M 2>/dev/null || true; sync", mounted.point().display()));
    sh(&format!("dd if=/dev/zero of={}/rest bs=512 2>/dev/null || true; sync", mounted.point().display()));
    let mut generate = crate::data::gpufeed();
    generate.arg("generate").arg(mounted.join("made")).args(["--size", "8MiB"]);
    says(&run(generate), &["/mnt/case/made", "ext4 at /mnt/case", "it is full", "(os error 28)"]);
    let path = mounted.join("state");
    let ended = run(data.load(&["--device", "host", "--state-out", path.to_str().unwrap()]));
    says(&ended, &["/mnt/case/state", "ext4 at /mnt/case", "it is full", "(os error 28)"]);
    assert!(!path.exists(), "half a state was left behind");
    data.loads(&["--device", "host"]);
}

/// Changes a file on the server in the middle of a run that has it open.
#[track_caller]
fn changed_meanwhile(options: &str, change: &str, expected: &[&str]) {
    let server = Server::start();
    let mounted = server.mount(options);
    for way in WAYS {
        let data = Data::in_folder(server.folder().join("data"));
        let seen = data.at(mounted.join("data"));
        let running = seen.under_way(way, &["--shuffle", "full"]);
        sh(&format!(
            "cd {} && {change}; sync; echo 2 >/proc/sys/vm/drop_caches",
            data.shards()[0].parent().unwrap().display()
        ));
        let ended = running.end();
        let words = &ended.errors;
        assert_eq!(ended.status, Some(1), "{way:?}: {words}{}", ended.printed);
        assert!(words.contains("/mnt/nfs/data/shard-0.bin"), "{way:?}: {words}");
        assert!(expected.iter().any(|word| words.contains(word)), "{way:?}: {words}");
        fs::remove_dir_all(server.folder().join("data")).unwrap();
    }
}

#[test]
fn a_file_that_is_removed_on_the_server() {
    changed_meanwhile(&format!("{TCP_3},noac"), "rm shard-0.bin", &["(os error 2)", "(os error 116)"]);
}

#[test]
fn a_file_that_gets_shorter_on_the_server() {
    // The server's reads are short from here on, once the client has given back the delegation that it has.
    let shorten = "until truncate -s 5000 shard-0.bin 2>/dev/null; do sleep 0.1; done";
    changed_meanwhile(&format!("{TCP},noac"), shorten, &["has 5000"]);
}
