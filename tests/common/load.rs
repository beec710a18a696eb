//! Runs of `gpufeed load` over known data, held to what they say of themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::command::{gpufeed, json_of, told};
use super::data::Data;
use super::folder;

/// What a run delivered, in the order of delivery, and what it said.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) json: Value,
    pub(crate) order: Vec<u64>,
}

impl Loaded {
    /// (epoch, position)
    pub(crate) fn state(&self) -> (u64, u64) {
        stand(&self.json["state"])
    }
}

/// (epoch, position) of a state.
pub(crate) fn stand(state: &Value) -> (u64, u64) {
    (state["epoch"].as_u64().unwrap(), state["position"].as_u64().unwrap())
}

/// The sample numbers in a file of `--order-out`.
pub(crate) fn order_in(path: &Path) -> Vec<u64> {
    fs::read_to_string(path).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}

/// A run that is to come, with a folder for what it writes.
pub(crate) struct Load {
    pub(crate) command: Command,
    out: TempDir,
}

impl Load {
    pub(crate) fn of(data: &Data, args: &[&str]) -> Load {
        let out = folder();
        let mut command = gpufeed();
        command.arg("load").arg(data.pattern()).args(["--record-bytes", &data.record.to_string()]);
        command
            .args(["--device", "host", "--json", "--digest", "--order-out"])
            .arg(out.path().join("order-{rank}"))
            .args(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Load { command, out }
    }

    /// Where the order goes.
    pub(crate) fn order(&self) -> PathBuf {
        // Named by the rank that the run found out.
        let mut files = std::fs::read_dir(self.out.path()).unwrap().map(|entry| entry.unwrap().path());
        files
            .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("order-"))
            .unwrap_or(self.out.path().join("order-0"))
    }

    /// Starts it, and goes on meanwhile.
    pub(crate) fn start(&mut self) -> Running {
        Running(Some(self.command.spawn().unwrap()))
    }

    #[track_caller]
    pub(crate) fn run(mut self, data: &Data) -> Loaded {
        let json = json_of(told(self.command.output().unwrap()));
        check(data, json, order_in(&self.order()))
    }
}

/// A run that is at work. It is killed if nobody waits for its end, as when a test fails.
pub(crate) struct Running(Option<Child>);

impl Running {
    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it is there until it has ended")
    }

    pub(crate) fn id(&mut self) -> libc::pid_t {
        self.child().id() as libc::pid_t
    }

    pub(crate) fn send(&mut self, signal: libc::c_int) {
        // SAFETY: the process is a child that was not waited for, so its number is its own.
        assert_eq!(unsafe { libc::kill(self.id(), signal) }, 0);
    }

    pub(crate) fn kill(mut self) {
        self.child().kill().unwrap();
    }

    /// Waits for its end: exit status, standard output and standard error.
    pub(crate) fn end(mut self) -> (i32, String, String) {
        told(self.0.take().expect("it is there until it has ended").wait_with_output().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether a run did as it said: its numbers and its digest are those of the samples in its order.
#[track_caller]
pub(crate) fn check(data: &Data, json: Value, order: Vec<u64>) -> Loaded {
    assert_eq!(json["samples"], order.len());
    assert_eq!(json["bytes"], order.len() * data.record);
    assert_eq!(json["digest"].as_str().unwrap(), digest(data, &order));
    for key in ["version", "dataset", "shuffle", "seed", "epoch", "position"] {
        assert!(json["state"].get(key).is_some(), "{key}: {}", json["state"]);
    }
    Loaded { json, order }
}

/// What `--digest` must say of samples in this order.
pub(crate) fn digest(data: &Data, order: &[u64]) -> String {
    Sha256::digest(data.bytes_of(order)).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[track_caller]
pub(crate) fn load(data: &Data, args: &[&str]) -> Loaded {
    Load::of(data, args).run(data)
}

/// Runs at once, as the ranks of a job are: each with its own arguments and environment.
#[track_caller]
pub(crate) fn at_once(data: &Data, runs: Vec<Load>) -> Vec<Loaded> {
    let started: Vec<_> = runs.into_iter().map(|mut run| (run.start(), run)).collect();
    let ends =
        started.into_iter().map(|(running, run)| check(data, json_of(running.end()), order_in(&run.order())));
    ends.collect()
}

/// The orders of all ranks put together, in batches of `size`: one global batch after the other, in the order of ranks.
pub(crate) fn dealt_back(ranks: &[Loaded], size: usize) -> Vec<u64> {
    let batches = ranks[0].order.len() / size;
    assert!(ranks.iter().all(|rank| rank.order.len() == batches * size));
    (0..batches)
        .flat_map(|i| ranks.iter().flat_map(move |rank| rank.order[i * size..][..size].to_vec()))
        .collect()
}
