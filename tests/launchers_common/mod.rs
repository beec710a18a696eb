//! What tests with real launchers share: finding them, starting them, and waiting for their end.
#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::common::launcher::without_launcher;

/// Whatever is waited for takes a second or so. This is for machines that do much else.
const DEADLINE: Duration = Duration::from_secs(180);

/// The first of `names` that is a program which says `says` of its version.
pub(crate) fn installed(names: &[&'static str], says: &str, package: &str) -> Option<&'static str> {
    let found = names.iter().copied().find(|name| {
        let output = Command::new(name).arg("--version").output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(says))
    });
    if found.is_none() {
        eprintln!("skipped: none of {} is here (Debian: {package})", names.join(", "));
        assert!(std::env::var_os("CI").is_none(), "the checks promise to run this");
    }
    found
}

/// Open MPI's `mpirun`, told that more ranks may come than a small machine has cores.
pub(crate) fn open_mpi() -> Option<[&'static str; 2]> {
    let mpirun = installed(&["mpirun.openmpi", "mpirun"], "Open MPI", "openmpi-bin")?;
    Some([mpirun, "--oversubscribe"])
}

/// A program with its first arguments, which is told nothing of a launcher that the tests may run under.
pub(crate) fn command(program: &[&str]) -> Command {
    let mut command = Command::new(program[0]);
    without_launcher(&mut command);
    command
        .args(&program[1..])
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .stdin(Stdio::null());
    command
}

/// Waits until `done` says something, or fails after the deadline.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(it) = done() {
            return it;
        }
        assert!(Instant::now() < end, "waited for long: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for the end of a process, which after the deadline is killed.
pub(crate) fn ended(child: &mut Child, what: &str) -> ExitStatus {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("{what} did not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
