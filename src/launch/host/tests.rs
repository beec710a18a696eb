//! Ranks that are real processes: the test program starts itself anew for each, and tells it what to do by its
//! environment and its standard input.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use super::*;
use crate::ErrorKind;

/// Set for the processes that are ranks: base folder, job, rank, world size, loader's name, seed.
const RANK: &str = "GPUFEED_TEST_RANK";

fn agreement(fingerprint: &str, seed: u64) -> (Agreement, Vec<(String, String)>) {
    let order = [("seed", seed.to_string()), ("shuffle", "full".to_string())];
    let mut details: Vec<(String, String)> = vec![("fingerprint".into(), fingerprint.into())];
    details.extend(order.iter().map(|(key, value)| (key.to_string(), value.clone())));
    (Agreement::new(fingerprint, &order), details)
}

/// Jobs have other names in each test, as its folder has: the tests are one process, which counts its loaders.
fn rank(base: &Path, rank: u32, size: u32, job: &str) -> Rank {
    Rank::new(rank, size).unwrap().with_job(job_name(base, job))
}

fn job_name(base: &Path, job: &str) -> String {
    format!("{job} in {}", base.display())
}

fn enter(base: &Path, rank: &Rank, name: &str, seed: u64) -> Result<Entered> {
    let (agreement, details) = agreement("f00d", seed);
    Registration::enter_in(&[base], rank, name, agreement, &details)
}

fn entered(base: &Path, rank: &Rank, name: &str, seed: u64) -> Registration {
    match enter(base, rank, name, seed).unwrap() {
        Entered::Checked(registration) => registration,
        Entered::NotChecked(why) => panic!("not checked: {why}"),
    }
}

fn reason(outcome: Result<Entered>) -> String {
    match outcome.unwrap() {
        Entered::Checked(_) => panic!("it was checked"),
        Entered::NotChecked(why) => why,
    }
}

/// The files of the registry.
fn files(base: &Path) -> Vec<PathBuf> {
    let folder = base.join(format!("gpufeed-{}", fs::metadata(base).unwrap().uid()));
    fs::read_dir(folder).map_or(Vec::new(), |all| all.map(|entry| entry.unwrap().path()).collect())
}

/// A process that is a rank.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(base: &Path, job: &str, rank: u32, size: u32, name: &str, seed: u64) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "launch::host::tests::a_rank", "--nocapture"])
            .env(RANK, format!("{}|{job}|{rank}|{size}|{name}|{seed}", base.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Process { child, input, output }
    }

    /// What came of its loader, or of what it was told since.
    fn says(&mut self) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            // The test harness writes its own lines, the first part of this one among them.
            if let Some((_, said)) = line.split_once("rank says: ") {
                return said.trim_end().to_string();
            }
            line.clear();
        }
        panic!("the process has ended");
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }
}

/// Not a test: what the started processes run.
#[test]
fn a_rank() {
    let Ok(text) = std::env::var(RANK) else { return };
    let parts: Vec<&str> = text.split('|').collect();
    let [base, job, number, size, name, seed] = parts[..] else { panic!("{text}") };
    let rank = rank(base.as_ref(), number.parse().unwrap(), size.parse().unwrap(), job);
    let say = |what: &str| println!("rank says: {what}");
    let mut loaders = Vec::new();
    let build =
        |loaders: &mut Vec<Registration>| match enter(base.as_ref(), &rank, name, seed.parse().unwrap()) {
            Ok(Entered::Checked(registration)) => {
                loaders.push(registration);
                say("checked");
            }
            Ok(Entered::NotChecked(why)) => say(&format!("not checked: {why}")),
            Err(error) => say(&format!("error: {error}")),
        };
    build(&mut loaders);
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "another" => build(&mut loaders),
            "drop" => {
                loaders.remove(0);
                say("dropped");
            }
            "fork" => {
                // SAFETY: the child only drops the registration and ends; it takes no lock that another thread has.
                match unsafe { libc::fork() } {
                    0 => {
                        loaders.clear();
                        // SAFETY: it ends the process.
                        unsafe { libc::_exit(0) };
                    }
                    child => {
                        // SAFETY: it waits for the child from above, and asks for no status.
                        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                        say("forked");
                    }
                }
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn ranks_that_agree_are_checked_and_the_last_one_removes_the_file() {
    let base = TempDir::new().unwrap();
    let mut ranks: Vec<Process> =
        (0..4).map(|rank| Process::start(base.path(), "job", rank, 4, "train", 7)).collect();
    for rank in &mut ranks {
        assert_eq!(rank.says(), "checked");
    }
    let files_now = files(base.path());
    assert_eq!(files_now.len(), 1);
    let folder = fs::metadata(files_now[0].parent().unwrap()).unwrap();
    assert_eq!((folder.mode() & 0o7777, fs::metadata(&files_now[0]).unwrap().mode() & 0o777), (0o700, 0o600));
    ranks.into_iter().for_each(Process::end);
    assert_eq!(files(base.path()), [] as [PathBuf; 0]);
}

#[test]
fn a_rank_with_another_seed_is_found_out_with_what_differs() {
    let base = TempDir::new().unwrap();
    let mut other = Process::start(base.path(), "job", 2, 4, "train", 8);
    assert_eq!(other.says(), "checked");
    let error = enter(base.path(), &rank(base.path(), 0, 4, "job"), "train", 7).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(
        error.to_string(),
        "rank 2 of this host reads with seed 8, this rank (0) with seed 7; all ranks of a run must feed from the \
         same data in the same order"
    );
    // And the one that comes later is told as well, whoever is wrong.
    let mut late = Process::start(base.path(), "job", 3, 4, "train", 7);
    assert!(
        late.says().starts_with("error: rank 2 of this host reads with seed 8, this rank (3) with seed 7")
    );
    // A second try has the number of the first.
    late.tell("another");
    assert!(late.says().starts_with("error: rank 2"));
    other.end();
    late.tell("another");
    assert_eq!(late.says(), "checked");
    late.end();
    drop(entered(base.path(), &rank(base.path(), 0, 4, "job"), "train", 7));
}

#[test]
fn another_dataset_is_named_by_its_fingerprint() {
    let base = TempDir::new().unwrap();
    let (mine, my_details) = agreement("f00d", 7);
    let enter = |number: u32, agreement, details: &[(String, String)]| {
        Registration::enter_in(
            &[base.path()],
            &rank(base.path(), number, 4, "job"),
            "train",
            agreement,
            details,
        )
    };
    let _first = enter(0, mine, &my_details).unwrap();
    let (other, mut details) = agreement("beef", 7);
    let error = enter(1, other, &details).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "rank 0 of this host reads with fingerprint f00d, this rank (1) with fingerprint beef; all"
        ),
        "{error}"
    );
    details.push(("limit".into(), "10".into()));
    let error = enter(1, other, &details).unwrap_err().to_string();
    assert!(error.contains("with fingerprint f00d, no limit, this"), "{error}");
    // Where the words do not tell, the hashes do.
    let error = enter(1, other, &my_details).unwrap_err().to_string();
    assert!(error.starts_with("rank 0 of this host feeds from other data than this rank (1)"), "{error}");
    let error = enter(1, agreement("f00d", 8).0, &my_details).unwrap_err().to_string();
    assert!(error.starts_with("rank 0 of this host feeds in another order than this rank (1)"), "{error}");
    // All that disagree are counted.
    let _second = enter(1, mine, &my_details).unwrap();
    let error = enter(2, other, &my_details).unwrap_err().to_string();
    assert!(error.contains("(and another rank disagrees as well)"), "{error}");
}

#[test]
fn the_entry_of_a_killed_rank_is_stale_at_once() {
    let base = TempDir::new().unwrap();
    let mut killed = Process::start(base.path(), "job", 1, 4, "train", 8);
    assert_eq!(killed.says(), "checked");
    assert!(enter(base.path(), &rank(base.path(), 0, 4, "job"), "train", 7).is_err());
    killed.kill();
    // Its file is there still, and so is what it said.
    assert_eq!(files(base.path()).len(), 1);
    let _next = entered(base.path(), &rank(base.path(), 0, 4, "job"), "train", 7);
    let mut restarted = Process::start(base.path(), "job", 1, 4, "train", 7);
    assert_eq!(restarted.says(), "checked");
    restarted.end();
}

#[test]
fn what_killed_jobs_leave_behind_is_removed_by_the_next_one() {
    let base = TempDir::new().unwrap();
    for job in ["a", "b"] {
        let mut killed = Process::start(base.path(), job, 0, 2, "train", 7);
        assert_eq!(killed.says(), "checked");
        killed.kill();
    }
    let mut alive = Process::start(base.path(), "c", 0, 2, "train", 7);
    assert_eq!(alive.says(), "checked");
    assert_eq!(files(base.path()).len(), 1);
    drop(entered(base.path(), &rank(base.path(), 0, 2, "d"), "train", 7));
    assert_eq!(files(base.path()).len(), 1);
    alive.end();
    assert_eq!(files(base.path()).len(), 0);
}

#[test]
fn files_that_are_not_of_the_registry_stay() {
    let base = TempDir::new().unwrap();
    drop(entered(base.path(), &rank(base.path(), 0, 2, "job"), "train", 7));
    let folder = base.path().join(format!("gpufeed-{}", fs::metadata(base.path()).unwrap().uid()));
    let digits = "0".repeat(32);
    let names =
        ["shard.npy".into(), digits.clone(), format!("ranks-{digits}0"), format!("ranks-{}x", &digits[1..])];
    names.iter().for_each(|name: &String| fs::write(folder.join(name), "precious").unwrap());
    let left_behind = folder.join(format!("ranks-{digits}"));
    fs::write(&left_behind, "of a job that was killed").unwrap();
    drop(entered(base.path(), &rank(base.path(), 0, 2, "job"), "train", 7));
    assert!(names.iter().all(|name| fs::read(folder.join(name)).unwrap() == b"precious"));
    assert!(!left_behind.exists());
}

#[test]
fn the_real_registry_is_in_shared_memory() {
    let base = TempDir::new().unwrap();
    let (mine, other) = (rank(base.path(), 0, 2, "job"), rank(base.path(), 1, 2, "job"));
    let (agreed, details) = agreement("f00d", 7);
    let Entered::Checked(registration) = Registration::enter(&mine, "train", agreed, &details).unwrap()
    else {
        panic!("it was not checked");
    };
    let file = file_name(&job_name(base.path(), "job"), "train");
    let user = fs::metadata("/proc/self").unwrap().uid();
    let path = Path::new("/dev/shm").join(format!("gpufeed-{user}")).join(file);
    assert!(path.exists() || !Path::new("/dev/shm").exists());
    let (disagreed, details) = agreement("f00d", 8);
    assert!(Registration::enter(&other, "train", disagreed, &details).is_err());
    drop(registration);
    assert!(!path.exists());
}

#[test]
fn two_processes_cannot_be_the_same_rank() {
    let base = TempDir::new().unwrap();
    let mut first = Process::start(base.path(), "job", 0, 4, "train", 7);
    assert_eq!(first.says(), "checked");
    let mut second = Process::start(base.path(), "job", 0, 4, "train", 7);
    let said = second.says();
    let pid = first.child.id();
    assert!(
        said.starts_with(&format!("error: another process on this host ({pid}) is rank 0 of 4 as well")),
        "{said}"
    );
    // Whichever of its loaders the other has by now.
    first.tell("another");
    assert_eq!(first.says(), "checked");
    first.tell("drop");
    assert_eq!(first.says(), "dropped");
    second.tell("another");
    assert!(second.says().contains("as well"));
    first.end();
    second.tell("another");
    assert_eq!(second.says(), "checked");
    second.end();
}

#[test]
fn several_loaders_of_a_process_are_each_compared_with_their_like() {
    let base = TempDir::new().unwrap();
    let (mine, other) = (rank(base.path(), 0, 2, "job"), rank(base.path(), 1, 2, "job"));
    // Training and validation have other seeds, and each agrees with that of the other rank.
    let train = entered(base.path(), &mine, "data", 7);
    let validation = entered(base.path(), &mine, "data", 100);
    let other_train = entered(base.path(), &other, "data", 7);
    assert!(enter(base.path(), &other, "data", 101).is_err());
    let other_validation = entered(base.path(), &other, "data", 100);
    // A loader with a name of its own is compared with those of that name.
    let named = entered(base.path(), &other, "only here", 3);
    // One rank is ahead: it has built its next loader while the other has the last one still.
    drop(train);
    let next = entered(base.path(), &mine, "data", 8);
    drop(other_train);
    assert!(enter(base.path(), &other, "data", 7).unwrap_err().to_string().contains("seed 8"));
    let other_next = entered(base.path(), &other, "data", 8);
    drop((validation, other_validation, named, next, other_next));
    assert_eq!(files(base.path()).len(), 0);
}

#[test]
fn jobs_do_not_see_each_other() {
    let base = TempDir::new().unwrap();
    let mut a = Process::start(base.path(), "a", 0, 4, "train", 7);
    let mut b = Process::start(base.path(), "b", 0, 4, "train", 8);
    assert_eq!((a.says(), b.says()), ("checked".into(), "checked".into()));
    assert_eq!(files(base.path()).len(), 2);
    a.end();
    b.end();
}

#[test]
fn many_that_come_and_go_at_once_all_find_a_file_that_counts() {
    let base = TempDir::new().unwrap();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (base, mine) = (base.path(), rank(base.path(), number, 8, "job"));
            scope.spawn(move || (0..40).for_each(|_| drop(entered(base, &mine, "train", 7))));
        }
    });
    assert_eq!(files(base.path()).len(), 0);
}

#[test]
fn a_file_that_was_removed_between_opening_and_locking_is_made_anew() {
    let base = TempDir::new().unwrap();
    let name = file_name(&job_name(base.path(), "job"), "train");
    let mut early = Registry::open(Folder::open(base.path()).unwrap(), &name).unwrap();
    drop(entered(base.path(), &rank(base.path(), 0, 2, "job"), "train", 7));
    assert_eq!(files(base.path()).len(), 0);
    let (slot, there) = early
        .alone(PATIENCE, |table| (table.take(b"{}").unwrap(), fs::metadata(&files(base.path())[0]).unwrap()))
        .unwrap();
    let mut other = Registry::open(Folder::open(base.path()).unwrap(), &name).unwrap();
    assert_eq!(other.alone(PATIENCE, |table| table.others().unwrap()).unwrap(), [b"{}"]);
    assert_eq!(there.ino(), fs::metadata(&files(base.path())[0]).unwrap().ino());
    early.alone(PATIENCE, |table| table.leave(slot)).unwrap();
    assert_eq!(files(base.path()).len(), 0);
}

#[test]
fn a_forked_child_leaves_the_entry_of_its_parent() {
    let base = TempDir::new().unwrap();
    let mut parent = Process::start(base.path(), "job", 1, 2, "train", 8);
    assert_eq!(parent.says(), "checked");
    parent.tell("fork");
    assert_eq!(parent.says(), "forked");
    assert!(enter(base.path(), &rank(base.path(), 0, 2, "job"), "train", 7).is_err());
    parent.end();
    assert_eq!(files(base.path()).len(), 0);
}

#[test]
fn a_single_rank_and_a_job_without_a_name_are_not_checked() {
    let base = TempDir::new().unwrap();
    assert_eq!(
        reason(enter(base.path(), &rank(base.path(), 0, 1, "job"), "train", 7)),
        "there is only one rank"
    );
    let nameless = Rank::new(0, 2).unwrap();
    assert!(reason(enter(base.path(), &nameless, "train", 7)).starts_with("the job has no name"));
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
}

#[test]
fn a_folder_that_others_could_write_to_is_refused() {
    let mine = rank(Path::new("refused"), 0, 2, "job");
    let name = format!("gpufeed-{}", fs::metadata("/proc/self").unwrap().uid());
    let refused = |make: &dyn Fn(&Path)| {
        let base = TempDir::new().unwrap();
        let folder = base.path().join(&name);
        make(&folder);
        let why = reason(enter(base.path(), &mine, "train", 7));
        assert!(why.contains(folder.to_str().unwrap()), "{why}");
        // The next one is taken in its place.
        let next = TempDir::new().unwrap();
        let (agreement, details) = agreement("f00d", 7);
        let outcome =
            Registration::enter_in(&[base.path(), next.path()], &mine, "train", agreement, &details);
        assert!(matches!(outcome.unwrap(), Entered::Checked(_)));
        why
    };
    let mode = |mode: u32| {
        move |folder: &Path| {
            fs::create_dir(folder).unwrap();
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    assert!(refused(&mode(0o777)).contains("it is open to other users (mode 777)"));
    assert!(refused(&mode(0o1777)).contains("(mode 1777)"));
    assert!(refused(&mode(0o750)).contains("(mode 750)"));
    let elsewhere = TempDir::new().unwrap();
    assert!(
        refused(&|folder| symlink(elsewhere.path(), folder).unwrap()).contains("cannot open it as a folder")
    );
    assert!(refused(&|folder| fs::write(folder, "").unwrap()).contains("cannot open it as a folder"));
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn a_folder_of_another_user_is_refused() {
    let base = TempDir::new().unwrap();
    let folder = base.path().join("gpufeed-0");
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("skipped: only root can give a folder away");
        return;
    }
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(12345), None).unwrap();
    let why = reason(enter(base.path(), &rank(base.path(), 0, 2, "job"), "train", 7));
    assert!(why.ends_with("it belongs to user 12345"), "{why}");
}

#[test]
fn without_any_folder_it_is_not_checked() {
    let base = Path::new("/no/such/folder");
    let why = reason(enter(base, &rank(base, 0, 2, "job"), "train", 7));
    assert!(why.starts_with("there is no folder for it: /no/such/folder/gpufeed-"), "{why}");
    assert!(why.contains("cannot make the folder"), "{why}");
}

#[test]
fn a_file_that_is_a_link_or_a_pipe_is_not_used() {
    let base = TempDir::new().unwrap();
    drop(entered(base.path(), &rank(base.path(), 0, 2, "other"), "train", 7));
    let folder = base.path().join(format!("gpufeed-{}", fs::metadata(base.path()).unwrap().uid()));
    let path = folder.join(file_name(&job_name(base.path(), "job"), "train"));
    let target = base.path().join("target");
    fs::write(&target, "precious").unwrap();
    symlink(&target, &path).unwrap();
    assert!(
        reason(enter(base.path(), &rank(base.path(), 0, 2, "job"), "train", 7))
            .contains("cannot open the file")
    );
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    fs::remove_file(&path).unwrap();
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the name ends with a NUL and lives through the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert!(
        reason(enter(base.path(), &rank(base.path(), 0, 2, "job"), "train", 7))
            .contains("it is no regular file")
    );
}

#[test]
fn garbage_in_the_file_is_stale() {
    let base = TempDir::new().unwrap();
    let (mine, other) = (rank(base.path(), 0, 2, "job"), rank(base.path(), 1, 2, "job"));
    let path = |base: &Path| files(base).pop().unwrap();
    // In the slots of nobody, and in the slot of a living loader.
    let held = entered(base.path(), &other, "train", 8);
    let file = fs::OpenOptions::new().write(true).open(path(base.path())).unwrap();
    for garbage in [
        &[0xff; SLOT_BYTES][..],
        &[b'['; SLOT_BYTES],
        &[0; SLOT_BYTES],
        b"{}\0",
        br#"{"rank":1,"world_size":2,"number":0,"process":"x","pid":1,"agreement":"short","details":[]}"#,
    ] {
        file.write_all_at(&[0; SLOT_BYTES], 0).unwrap();
        file.write_all_at(garbage, 0).unwrap();
        file.write_all_at(garbage, 3 * SLOT_BYTES as u64 + 17).unwrap();
        drop(entered(base.path(), &rank(base.path(), 0, 2, "job"), "train", 7));
    }
    // Much longer, and shorter, than any that was written.
    for len in [1 << 40, 5, 0] {
        file.set_len(len).unwrap();
        let started = Instant::now();
        drop(entered(base.path(), &mine, "train", 7));
        assert!(started.elapsed() < PATIENCE);
    }
    drop(held);
    assert_eq!(files(base.path()).len(), 0);
}

#[test]
fn a_registry_that_stays_locked_is_not_waited_for_forever() {
    let base = TempDir::new().unwrap();
    let _held = entered(base.path(), &rank(base.path(), 1, 2, "job"), "train", 7);
    let mut blocker = Registry::open(
        Folder::open(base.path()).unwrap(),
        &file_name(&job_name(base.path(), "job"), "train"),
    )
    .unwrap();
    let started = Instant::now();
    let why = blocker
        .alone(PATIENCE, |_| reason(enter(base.path(), &rank(base.path(), 0, 2, "job"), "train", 7)))
        .unwrap();
    assert!(why.ends_with("it stayed locked by another process"), "{why}");
    assert!(started.elapsed() < PATIENCE * 2);
    // It was the first loader of its rank, so the next one is not held to the first of the others.
    let _second = entered(base.path(), &rank(base.path(), 0, 2, "job"), "train", 8);
}

#[test]
fn long_settings_are_cut_to_what_a_slot_holds() {
    assert_eq!(shortened("short"), "short");
    let long = "ä".repeat(MAX_TEXT);
    assert_eq!(shortened(&long), format!("{}...", "ä".repeat(MAX_TEXT / 2)));
    let (agreement, _) = agreement("f00d", 7);
    let entry = Entry {
        rank: u32::MAX,
        world_size: u32::MAX,
        number: u32::MAX,
        process: "f".repeat(32),
        pid: u32::MAX,
        agreement: agreement.to_string(),
        details: (0..100).map(|i| (format!("setting {i}"), "\0\u{1}".repeat(50))).collect(),
    };
    let content = entry.to_slot();
    assert!(content.len() <= SLOT_BYTES && !content.contains(&0));
    let read = Entry::from_slot(&content).unwrap();
    assert!(!read.details.is_empty() && entry.details.starts_with(&read.details));
}
