//! The machine itself: commands, drives and mounts.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// Where the programs are.
pub(crate) const PROGRAMS: &str = "/vm";

/// Runs a line of shell, and returns what it printed. It must succeed.
#[track_caller]
pub(crate) fn sh(line: &str) -> String {
    match attempt(line) {
        Ok(printed) => printed,
        Err(printed) => panic!("{line}: {printed}"),
    }
}

/// Runs a line of shell: what it printed, as an error if it failed.
pub(crate) fn attempt(line: &str) -> Result<String, String> {
    let shell = Command::new("sh").args(["-ec", line]).stdin(Stdio::null()).output();
    let output = shell.expect("a shell can be started");
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).trim().to_string();
    if output.status.success() { Ok(printed) } else { Err(printed) }
}

/// Something that has to be undone.
#[derive(Debug)]
pub(crate) struct Undo(String);

impl Undo {
    /// Runs a line of shell now, and another one when this is dropped.
    #[track_caller]
    pub(crate) fn after(line: &str, undo: impl Into<String>) -> Undo {
        sh(line);
        Undo(undo.into())
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // A child that was killed may need a moment to be gone.
        let undone = (0..50).any(|_| {
            let done = attempt(&self.0);
            if let Err(printed) = &done {
                eprintln!("{}: {printed}", self.0);
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
            done.is_ok()
        });
        if !undone && !std::thread::panicking() {
            panic!("{} was not undone", self.0);
        }
    }
}

/// The device file of one of the NVMe drives that `tests/vm/run` gives the machine.
#[track_caller]
pub(crate) fn drive(name: &str) -> PathBuf {
    let link = PathBuf::from(format!("/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_{name}"));
    fs::canonicalize(&link).unwrap_or_else(|e| panic!("{}: {e}", link.display()))
}

/// A file system that is mounted until it is dropped.
#[derive(Debug)]
pub(crate) struct Mounted {
    point: PathBuf,
    _undo: Undo,
}

impl Mounted {
    /// Mounts what `what` says (as for mount(8)) at a folder in `/mnt`.
    #[track_caller]
    pub(crate) fn at(name: &str, what: &str) -> Mounted {
        let point = PathBuf::from("/mnt").join(name);
        fs::create_dir_all(&point).unwrap();
        let at = point.display();
        Mounted { _undo: Undo::after(&format!("mount {what} {at}"), format!("umount {at}")), point }
    }

    /// Makes a file system on a device, as `make` does it, and mounts it with these options.
    #[track_caller]
    pub(crate) fn fresh(make: &str, device: &Path, options: &str) -> Mounted {
        Mounted::fresh_at("case", make, device, options)
    }

    /// The same at a folder of this name.
    #[track_caller]
    pub(crate) fn fresh_at(name: &str, make: &str, device: &Path, options: &str) -> Mounted {
        let device = device.display();
        // udev may not have noticed by itself yet, and cuFile asks what it knows.
        sh(&format!(
            "wipefs -qa {device}; {make} {device}; udevadm trigger --settle $(readlink -f {device})"
        ));
        Mounted::at(name, &format!("-o {options} {device}"))
    }

    pub(crate) fn point(&self) -> &Path {
        &self.point
    }

    /// A path below it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }
}

/// Writes everything out and forgets what is cached, so that reads reach the drives.
pub(crate) fn forget_caches() {
    sh("sync; echo 3 >/proc/sys/vm/drop_caches");
}

/// Has QEMU's monitor carry out a command, and returns what it printed.
#[track_caller]
pub(crate) fn monitor(command: &str) -> String {
    let port = fs::OpenOptions::new().read(true).write(true).open("/dev/virtio-ports/host").unwrap();
    writeln!(&port, "{command}").unwrap();
    let mut line = String::new();
    BufReader::new(&port).read_line(&mut line).unwrap();
    let answer: Value = serde_json::from_str(&line).unwrap();
    answer["return"].as_str().unwrap_or_else(|| panic!("{command}: {answer}")).to_string()
}
