//! What fio reads of the same files, as a second opinion on the disk, where it is installed.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::Command;

use serde_json::Value;

use super::child;
use super::disk::{LONGEST, Reading};
use super::stop::Stop;
use crate::Dataset;

/// The kernel takes no longer argument; half of it leaves room for whatever else there is.
const LONGEST_ARGUMENT: usize = 64 << 10;

pub(super) fn method() -> String {
    let pages = match huge_pages_free() {
        true => "into huge pages",
        false => {
            "into scattered pages, as no huge pages are reserved (sysctl vm.nr_hugepages=32), which some disks are slow with"
        }
    };
    format!("fio, io_uring with direct reads of 1 MiB, 16 in flight, {pages}")
}

/// Whether fio finds huge pages for its buffers. It knows only those that were reserved.
fn huge_pages_free() -> bool {
    let facts = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = facts.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    free.and_then(|count| count.trim().parse::<u64>().ok()).is_some_and(|count| count >= 16)
}

/// # Errors
/// Why there is no figure, in words.
pub(super) fn read_all(dataset: &Dataset, stop: &Stop) -> Result<Reading, String> {
    let names = file_names(dataset)?;
    let mut command = Command::new("fio");
    // fio writes nothing: --readonly refuses jobs that would, and no file is made that is not there.
    command.args([
        "--name=gpufeed",
        "--output-format=json",
        "--thread",
        "--readonly",
        "--allow_file_create=0",
    ]);
    command.args([
        "--rw=read",
        "--bs=1M",
        "--direct=1",
        "--ioengine=io_uring",
        "--iodepth=16",
        "--invalidate=0",
    ]);
    if huge_pages_free() {
        command.arg("--iomem=mmaphuge");
    }
    command.arg("--file_service_type=sequential").arg(format!("--runtime={}", LONGEST.as_secs())).arg(names);
    let output = child::output_of(command, stop)?;
    if !output.status.success() {
        return Err(format!("fio failed: {}", child::last_words(&output)));
    }
    reading(&output.stdout).ok_or_else(|| "fio's output is not understood".into())
}

/// All files as the one argument that fio wants, its own separators escaped.
fn file_names(dataset: &Dataset) -> Result<OsString, String> {
    let mut names = b"--filename=".to_vec();
    for (i, shard) in dataset.files().iter().enumerate() {
        if i > 0 {
            names.push(b':');
        }
        for byte in shard.path().as_os_str().as_bytes() {
            if matches!(byte, b':' | b'\\') {
                names.push(b'\\');
            }
            names.push(*byte);
        }
        if names.len() > LONGEST_ARGUMENT {
            return Err(format!("{} files are too many to name to fio", dataset.files().len()));
        }
    }
    Ok(OsString::from_vec(names))
}

/// Bytes and seconds of the one job. fio prints warnings before its JSON, on standard output too.
fn reading(output: &[u8]) -> Option<Reading> {
    let start = output.iter().position(|byte| *byte == b'{')?;
    let it: Value = serde_json::from_slice(&output[start..]).ok()?;
    let read = &it["jobs"][0]["read"];
    let seconds = read["runtime"].as_f64()? / 1e3;
    Some(Reading { bytes: read["io_bytes"].as_u64()?, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_read_past_warnings_and_nonsense_is_none() {
        let text = br#"fio: a warning
            {"jobs": [{"read": {"io_bytes": 1073741824, "runtime": 500}}]}"#;
        assert_eq!(reading(text), Some(Reading { bytes: 1 << 30, seconds: 0.5 }));
        for text in [&b""[..], b"{", b"{}", br#"{"jobs": []}"#, br#"{"jobs": [{"read": {"runtime": 1}}]}"#] {
            assert_eq!(reading(text), None);
        }
    }
}
