//! What the tests over NVIDIA's own libcufile share: the libraries, and a child process in which one of them finds what
//! it needs: the emulated driver, and udev's record of the disk.

#![allow(dead_code, reason = "each test file uses its own part of this")]
#![allow(unused_macros, unused_imports, reason = "each test file uses its own part of this")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cuda_common::{DONE, DriverFile, Outcome, describe, emulator, finish, folder, on_emulator};

/// The folder with the unpacked wheels.
pub(crate) const WHEELS: &str = "GPUFEED_CUFILE_WHEELS";
/// Names the library of a child.
pub(crate) const LIBRARY: &str = "GPUFEED_LIBCUFILE";
/// Which test this process is the child of.
const CHILD: &str = "GPUFEED_CUFILE_TEST_CHILD";
/// `cuFileDriverOpen` of 1.14 frees its first 64 KiB of device memory twice.
const OVERLOOKED: &str = "double-free@libcufile.so.0";

/// What cuFile needs to know of the disk, and containers lack: udev's record of the block device. `/run` is replaced in
/// a mount namespace of the child's own.
const STARTER: &str = r#"mount -t tmpfs tmpfs /run || exit 97
if [ -n "$DISK" ]; then
    mkdir -p /run/udev/data || exit 97
    printf 'E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=ext4\n' > "/run/udev/data/b$DISK" || exit 97
fi
LD_PRELOAD=$PRELOAD exec "$0" "$@""#;

/// A library, and the version that its wheel says it has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cufile {
    /// 1200 for 1.20.
    pub(crate) version: i32,
    pub(crate) path: PathBuf,
}

impl Cufile {
    /// Whether it has statistics and tells BAR sizes.
    pub(crate) fn has_statistics(&self) -> bool {
        self.version >= 1150
    }

    /// Whether it has vectored reads.
    pub(crate) fn has_vectored(&self) -> bool {
        self.version >= 1190
    }
}

/// Says that a test did not run, and why. Where the project's own checks run, that is a failure.
fn skip(reason: &str) {
    let checks = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
    assert!(!checks, "this test must run where CI is set, but {reason}");
    eprintln!("skipped: {reason}");
}

/// The libraries to test with, the oldest first; or `None`, with a skip.
pub(crate) fn libraries() -> Option<Vec<Cufile>> {
    let Some(wheels) = std::env::var_os(WHEELS).filter(|value| !value.is_empty()) else {
        skip(&format!(
            "{WHEELS} does not name a folder with unpacked wheels (`pip download --no-deps nvidia-cufile` and the same \
             for `nvidia-cufile-cu12`, then unzip each into a folder of its own below it)"
        ));
        return None;
    };
    let mut unshare = Command::new("unshare");
    unshare.args(["-rm", "sh", "-c", "mount -t tmpfs tmpfs /run"]).stdin(Stdio::null());
    match unshare.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let words = String::from_utf8_lossy(&output.stderr);
            skip(&format!("`unshare -rm` cannot make a mount namespace here: {}", words.trim()));
            return None;
        }
        Err(error) => {
            skip(&format!("`unshare` cannot be run: {error}"));
            return None;
        }
    }
    let mut found = Vec::new();
    collect(Path::new(&wheels), &mut found);
    assert!(!found.is_empty(), "there is no libcufile.so.0 below {}", Path::new(&wheels).display());
    found.sort();
    Some(found)
}

fn collect(folder: &Path, found: &mut Vec<Cufile>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path().canonicalize().unwrap();
        if path.is_dir() {
            collect(&path, found);
        } else if path.file_name().is_some_and(|file| file == "libcufile.so.0") {
            found.push(Cufile { version: version_of(&path), path });
        }
    }
}

/// The version in the name of the `nvidia_cufile*-1.20.0.107.dist-info` that lies beside the wheel's files.
fn version_of(file: &Path) -> i32 {
    let named = |folder: &Path| -> Option<i32> {
        fs::read_dir(folder).ok()?.find_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let rest = name.strip_prefix("nvidia_cufile")?.strip_suffix(".dist-info")?.rsplit('-').next()?;
            let mut numbers = rest.split('.').map(|number| number.parse::<i32>().unwrap());
            Some(numbers.next()? * 1000 + numbers.next()? * 10)
        })
    };
    let version = file.ancestors().skip(1).find_map(named);
    version.unwrap_or_else(|| panic!("{}: no nvidia_cufile*.dist-info beside it", file.display()))
}

/// What a child finds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings<'s> {
    /// `/run/udev`, with the record of the disk.
    pub(crate) udev: bool,
    /// An answer for who opens `/proc/modules` where there is none.
    pub(crate) modules: bool,
    pub(crate) environment: &'s [(&'s str, &'s str)],
}

impl Surroundings<'static> {
    /// All that cuFile needs.
    pub(crate) const GOOD: Surroundings<'static> =
        Surroundings { udev: true, modules: true, environment: &[] };
}

/// `program` on the emulated driver, with a library as its cuFile, working in `folder`, where logs and reports go. The
/// caller adds the arguments.
pub(crate) fn command(
    program: &OsStr,
    library: &Path,
    surroundings: &Surroundings<'_>,
    folder: &Path,
) -> Command {
    let mut command = Command::new("unshare");
    on_emulator(&mut command, folder, DriverFile::Emulator);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"CUFILE_") {
            command.env_remove(name);
        }
    }
    let disk = folder.metadata().unwrap().dev();
    let disk = format!("{}:{}", libc::major(disk), libc::minor(disk));
    let preload = if surroundings.modules { emulator().into_os_string() } else { OsString::new() };
    command
        .args(["-rm", "sh", "-c", STARTER])
        .arg(program)
        .env("DISK", if surroundings.udev { disk } else { String::new() })
        .env("PRELOAD", preload)
        .env("CUDA_EMULATOR_OVERLOOK", OVERLOOKED)
        .env(LIBRARY, library)
        .envs(surroundings.environment.iter().copied())
        .current_dir(folder);
    command
}

/// Runs `body` for each library, in a child process in these surroundings, and fails if the child fails, hangs, misuses
/// the driver or leaves something behind. `test` is the name of the calling test, which the child runs again; there
/// `body` is called.
#[track_caller]
pub(crate) fn with_each_library(test: &str, surroundings: &Surroundings<'_>, body: impl FnOnce(Cufile)) {
    if let Ok(asked) = std::env::var(CHILD) {
        let version = asked.strip_prefix(test).unwrap().trim().parse().unwrap();
        body(Cufile { version, path: std::env::var_os(LIBRARY).unwrap().into() });
        println!("{DONE}");
        // What the body held is dropped by now, so that what is still there at the exit is a leak.
        std::process::exit(0);
    }
    let mut wrong = Vec::new();
    for cufile in libraries().unwrap_or_default() {
        let folder = folder();
        let executable = std::env::current_exe().expect("a test has an executable");
        let mut command = command(executable.as_os_str(), &cufile.path, surroundings, folder.path());
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
        command.env(CHILD, format!("{test} {}", cufile.version));
        let outcome = finish(command, folder.path());
        let fine = outcome.code == Some(0) && outcome.output.contains(DONE) && outcome.reports.is_empty();
        if !fine {
            wrong.push(format!("{test} with {cufile:?}: {}", describe(&outcome)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// [`with_each_library`] for the test function that it stands in.
macro_rules! with_cufile {
    ($body:expr) => {
        with_cufile!(&$crate::cufile_common::Surroundings::GOOD, $body)
    };
    ($surroundings:expr, $body:expr) => {{
        fn here() {}
        let path = std::any::type_name_of_val(&here);
        let test = path.split("::").nth(1).expect("crate::test::here");
        $crate::cufile_common::with_each_library(test, $surroundings, $body)
    }};
}
pub(crate) use with_cufile;

/// Runs `gpufeed` in these surroundings: its exit status, the JSON object that it printed, and all that it printed.
#[track_caller]
pub(crate) fn gpufeed(
    cufile: &Cufile,
    surroundings: &Surroundings<'_>,
    args: &[&str],
) -> (i32, Option<Value>, String) {
    let folder = folder();
    let program = OsStr::new(env!("CARGO_BIN_EXE_gpufeed"));
    let mut command = command(program, &cufile.path, surroundings, folder.path());
    // Nothing was tuned before.
    command.args(args).env("XDG_CACHE_HOME", folder.path());
    let outcome = finish(command, folder.path());
    let what = || format!("{args:?} with {cufile:?}: {}", describe(&outcome));
    assert!(outcome.reports.is_empty() && !outcome.timed_out, "{}", what());
    let status = outcome.code.unwrap_or_else(|| panic!("{}", what()));
    let json = outcome.output.find('{').zip(outcome.output.rfind('}'));
    let json = json.and_then(|(first, last)| serde_json::from_str(&outcome.output[first..=last]).ok());
    (status, json, outcome.output)
}

/// A file in the folder of this child.
pub(crate) fn at(name: &str) -> PathBuf {
    std::env::current_dir().unwrap().join(name)
}
