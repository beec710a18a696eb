//! What the tests against NVIDIA's own files share: where the files are, and how a test says that it did not
//! run.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use cufile_sys::Version;

/// The folder with the unpacked wheels.
pub(crate) const WHEELS: &str = "GPUFEED_CUFILE_WHEELS";

/// Says that a test did not run, and why. Where the project's own checks run, that is a failure.
pub(crate) fn skip(reason: &str) {
    let checks = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
    assert!(!checks, "this test must run where CI is set, but {reason}");
    eprintln!("skipped: {reason}");
}

/// A file of a wheel, and the wheel's version.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) version: Version,
    pub(crate) file: PathBuf,
}

/// Every file of this name below the folder of wheels, the oldest first; or None, with a skip.
pub(crate) fn wheels(name: &str) -> Option<Vec<Found>> {
    let Some(folder) = std::env::var_os(WHEELS).filter(|value| !value.is_empty()) else {
        skip(&format!(
            "{WHEELS} does not name a folder with unpacked wheels (`pip download --no-deps nvidia-cufile \
             nvidia-cufile-cu12`, then unzip each into a folder of its own below it)"
        ));
        return None;
    };
    let mut found = Vec::new();
    collect(Path::new(&folder), name, &mut found);
    assert!(!found.is_empty(), "there is no {name} below {}", Path::new(&folder).display());
    let mut found: Vec<_> =
        found.into_iter().map(|file| Found { version: version_of(&file), file }).collect();
    found.sort_by_key(|found| found.version);
    Some(found)
}

fn collect(folder: &Path, name: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, name, found);
        } else if path.file_name().is_some_and(|file| file == name) {
            found.push(path);
        }
    }
}

/// The version in the name of the `nvidia_cufile*-1.20.0.107.dist-info` that lies beside the wheel's files.
fn version_of(file: &Path) -> Version {
    for folder in file.ancestors().skip(1) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap_or_default();
            let Some(rest) =
                name.strip_prefix("nvidia_cufile").and_then(|name| name.strip_suffix(".dist-info"))
            else {
                continue;
            };
            let numbers = rest.rsplit('-').next().unwrap();
            let mut numbers = numbers.split('.').map(|number| number.parse::<i32>().unwrap());
            return Version::new(numbers.next().unwrap(), numbers.next().unwrap());
        }
    }
    panic!("{}: no nvidia_cufile*.dist-info beside it, so its version is not known", file.display());
}

/// Is there a C compiler? If not, with a skip.
pub(crate) fn has_compiler() -> bool {
    let there = Command::new("cc").arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        skip("there is no C compiler named cc");
    }
    there
}

/// A folder that is removed at the end.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("cufile-sys-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let file = self.0.join(name);
        std::fs::write(&file, content).unwrap();
        file
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program and gives what it printed; fails with the program's own words.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} gave {}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Runs one test of this file in a process of its own, with a deadline, and gives what it printed. The child
/// test must be marked `#[ignore]`, and print nothing large.
pub(crate) fn run_test(name: &str, folder: &Path, variables: &[(&str, &Path)]) -> (ExitStatus, String) {
    let output = folder.join("output");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        // cuFile writes cufile.log into the current folder.
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&output).unwrap())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let status = wait(&mut child, Duration::from_secs(60));
    (status, std::fs::read_to_string(output).unwrap())
}

fn wait(child: &mut Child, time: Duration) -> ExitStatus {
    let deadline = Instant::now() + time;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the child process did not end within {time:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
