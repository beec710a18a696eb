//! The command line as scripts run it.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::launcher::without_launcher;

/// A cache folder in which no tuning is remembered.
pub(crate) const UNTUNED: &str = "/nonexistent";

/// The program on its own: no launcher tells it a rank, nothing was tuned before, and no terminal is there.
pub(crate) fn gpufeed() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpufeed"));
    without_launcher(&mut command).stdin(Stdio::null()).env("XDG_CACHE_HOME", UNTUNED);
    command
}

/// Exit status, standard output and standard error.
pub(crate) fn told(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().expect("no signal ended it"), text(output.stdout), text(output.stderr))
}

/// The same of a run with these arguments.
pub(crate) fn ran(args: &[&str]) -> (i32, String, String) {
    told(gpufeed().args(args).output().unwrap())
}

/// The one JSON object of a run that does its work.
#[track_caller]
pub(crate) fn json(args: &[&str]) -> Value {
    json_of(ran(&[args, &["--json"]].concat()))
}

/// The same of a run with `--json` that is over.
#[track_caller]
pub(crate) fn json_of((status, stdout, stderr): (i32, String, String)) -> Value {
    assert_eq!(status, 0, "{stderr}");
    let value: Value = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
    assert!(value.is_object() && stdout.starts_with('{'), "{stdout}");
    value
}
