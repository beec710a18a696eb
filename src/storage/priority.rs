//! The I/O priority of a thread, and whether the disk under a file looks at it.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;

use crate::{Error, ErrorKind, Result};

/// How the reads of a loader stand against the I/O of others on the same disk.
///
/// Written `realtime:0` to `realtime:7`, `best-effort:0` to `best-effort:7` (0 is the highest), and `idle`. Where none is
/// set it follows the CPU's nice value: `best-effort:4` for a nice of 0.
///
/// It is a matter of the disk's I/O scheduler: `bfq` goes by class and level, `mq-deadline` by the class alone (since
/// Linux 5.14), `kyber` and `none` by neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IoPriority {
    /// Before everybody else's. Takes the capability `CAP_SYS_ADMIN`, or `CAP_SYS_NICE` (since Linux 5.14).
    RealTime(u8),
    /// The usual class.
    BestEffort(u8),
    /// Only while nobody else wants the disk.
    Idle,
}

/// Levels of the classes that have any, from 0 on (`IOPRIO_NR_LEVELS`).
const LEVELS: u8 = 8;
const CLASS_SHIFT: u32 = 13;
const WHO_PROCESS: libc::c_int = 1;

impl IoPriority {
    /// Class and level as the kernel takes them.
    fn encoded(self) -> libc::c_int {
        let (class, level) = match self {
            IoPriority::RealTime(level) => (1, level),
            IoPriority::BestEffort(level) => (2, level),
            IoPriority::Idle => (3, 0),
        };
        class << CLASS_SHIFT | libc::c_int::from(level)
    }

    fn level(self) -> u8 {
        match self {
            IoPriority::RealTime(level) | IoPriority::BestEffort(level) => level,
            IoPriority::Idle => 0,
        }
    }
}

impl FromStr for IoPriority {
    type Err = Error;

    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for anything but the names above.
    fn from_str(text: &str) -> Result<Self> {
        let level = |text: &str| text.parse().ok().filter(|level| *level < LEVELS && text.len() == 1);
        let parsed = match text.split_once(':') {
            None if text == "idle" => Some(IoPriority::Idle),
            Some(("best-effort", rest)) => level(rest).map(IoPriority::BestEffort),
            Some(("realtime", rest)) => level(rest).map(IoPriority::RealTime),
            _ => None,
        };
        parsed.ok_or_else(|| {
            Error::argument(format!(
                "unknown I/O priority {text:?}; known are idle, best-effort:0 to best-effort:7 and realtime:0 to realtime:7"
            ))
        })
    }
}

impl fmt::Display for IoPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IoPriority::RealTime(level) => f.pad(&format!("realtime:{level}")),
            IoPriority::BestEffort(level) => f.pad(&format!("best-effort:{level}")),
            IoPriority::Idle => f.pad("idle"),
        }
    }
}

/// Sets the I/O priority of this thread, and of the threads that it starts from now on.
///
/// # Errors
/// `InvalidArgument` for a level above 7; `Io` if the kernel refuses, with the reason in words.
pub(crate) fn apply(priority: IoPriority) -> Result<()> {
    if priority.level() >= LEVELS {
        let what = format!("the I/O priority {priority} has a level above {}", LEVELS - 1);
        return Err(Error::argument(what));
    }
    set_for_this_thread(priority).map_err(|error| {
        let why = match (error.raw_os_error(), priority) {
            (Some(libc::EPERM), IoPriority::RealTime(_)) => {
                "the class realtime takes the capability CAP_SYS_ADMIN, or CAP_SYS_NICE (since Linux 5.14)"
            }
            (Some(libc::EPERM), _) => {
                "a security policy forbids it (a container's seccomp profile, most likely)"
            }
            (Some(libc::ENOSYS), _) => "this kernel has no I/O priorities, or a sandbox hides them",
            _ => "the kernel refuses",
        };
        Error::new(ErrorKind::Io, format!("cannot set the I/O priority {priority}: {why}")).caused_by(error)
    })
}

/// The system call `ioprio_set` for the calling thread.
///
/// # What inherits it
///
/// - A thread started afterwards (`copy_io` in the kernel's `fork.c` copies the parent's priority where one was set).
///   Later changes stay with the thread that makes them: threads do not share an I/O context.
/// - Reads by `pread` and by io_uring: a request takes the priority of the thread that submits it. io_uring's is from the
///   entry's own `ioprio` only if that is not 0; else `io_prep_rw` (`io_uring/rw.c`) takes `get_current_ioprio()`, in
///   the thread that calls `io_uring_enter`. The kernel's worker threads for a ring share its I/O context (`CLONE_IO`).
///   On Linux 6.18 the tracepoint `block_rq_issue` shows it so for io_uring, `pread` and reads into the page cache.
///
/// So it is enough for the reading thread to set it before it makes its reader, be that a ring or a pool of threads.
pub(crate) fn set_for_this_thread(priority: IoPriority) -> io::Result<()> {
    // SAFETY: takes three numbers; 0 as the process is the calling thread.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, priority.encoded()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The I/O scheduler of the disk under a file, by the file's `st_dev`.
///
/// `None` where that is not known: the file system has no block device of its own (NFS, overlayfs, btrfs, tmpfs), or
/// several disks below it that differ.
pub(crate) fn scheduler_of(device: u64) -> Option<String> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    scheduler_at(Path::new(&format!("/sys/dev/block/{major}:{minor}")), 8)
}

/// Whether an I/O scheduler looks at priorities.
///
/// The kernel's `include/uapi/linux/ioprio.h` describes the classes "as implemented by the BFQ and mq-deadline
/// schedulers": bfq since it exists (Linux 4.12), mq-deadline since commit c807ab520fc3 (Linux 5.14), where it maps the
/// class to one of three queues and drops the level. (Whatever the scheduler, ATA disks with NCQ priorities can prefer
/// the class realtime.)
pub(crate) fn honours_priority(scheduler: &str) -> bool {
    matches!(scheduler, "bfq" | "mq-deadline")
}

/// The scheduler of a block device by its folder in sysfs, at most `levels` of devices down.
fn scheduler_at(folder: &Path, levels: u32) -> Option<String> {
    // A partition has its queue, and what it is made of, one folder up.
    let folders = [folder.to_path_buf(), folder.join("..")];
    // For device mapper and md it is the disks below that order requests. They keep a request's priority.
    let below =
        folders.iter().flat_map(|folder| std::fs::read_dir(folder.join("slaves"))).flatten().flatten();
    let mut below = below.map(|entry| entry.path()).peekable();
    if below.peek().is_some() {
        let levels = levels.checked_sub(1)?;
        let first = scheduler_at(&below.next()?, levels)?;
        return below.all(|other| scheduler_at(&other, levels).as_ref() == Some(&first)).then_some(first);
    }
    let text =
        folders.iter().find_map(|folder| std::fs::read_to_string(folder.join("queue/scheduler")).ok())?;
    chosen(&text).map(str::to_string)
}

/// Of `none [mq-deadline] kyber` the one in brackets; a device that has no choice names just one.
fn chosen(text: &str) -> Option<&str> {
    let mut names = text.split_ascii_whitespace();
    let bracketed = |name: &'_ str| name.starts_with('[') && name.ends_with(']');
    match (names.clone().find(|name| bracketed(name)), names.next(), names.next()) {
        (Some(name), ..) => Some(name.trim_matches(['[', ']'])),
        (None, Some(only), None) => Some(only),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    /// What `ioprio_get` says of the calling thread.
    fn of_this_thread() -> libc::c_int {
        // SAFETY: takes two numbers; 0 as the process is the calling thread.
        let value = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0) };
        assert!(value >= 0, "{}", io::Error::last_os_error());
        value as libc::c_int
    }

    /// Runs `work` in a thread of its own, whose priority dies with it.
    fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    const ALL: [IoPriority; 4] =
        [IoPriority::Idle, IoPriority::BestEffort(0), IoPriority::BestEffort(4), IoPriority::BestEffort(7)];

    #[test]
    fn every_priority_is_read_as_it_is_written() {
        let levels = (0..8).flat_map(|level| [IoPriority::RealTime(level), IoPriority::BestEffort(level)]);
        for priority in levels.chain([IoPriority::Idle]) {
            assert_eq!(priority.to_string().parse::<IoPriority>().unwrap(), priority);
        }
        assert_eq!("realtime:0".parse::<IoPriority>().unwrap(), IoPriority::RealTime(0));
        assert_eq!(
            format!("{:>8}|{:<14}|", IoPriority::Idle, IoPriority::BestEffort(4)),
            "    idle|best-effort:4 |"
        );
        let wrong = ["", "idle:0", "idle ", "best-effort", "best-effort:", "best-effort:8", "best-effort:+4"];
        for text in
            wrong.into_iter().chain(["best-effort:04", "realtime:-1", "realtime: 1", "Idle", "rt:1", "none"])
        {
            let error = text.parse::<IoPriority>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{text}");
            assert!(error.to_string().contains("best-effort:7"), "{error}");
        }
    }

    #[test]
    fn a_priority_that_was_set_is_the_one_that_the_kernel_has() {
        for priority in ALL {
            assert_eq!(aside(|| apply(priority).map(|()| of_this_thread()).unwrap()), priority.encoded());
        }
        // Whether this one may be set is the machine's affair.
        match aside(|| apply(IoPriority::RealTime(3)).map(|()| of_this_thread())) {
            Ok(value) => assert_eq!(value, 1 << 13 | 3),
            Err(error) => assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}"),
        }
    }

    #[test]
    fn threads_started_later_inherit_it_and_others_do_not() {
        let before = of_this_thread();
        let (release, wait) = crossbeam_channel::bounded::<()>(0);
        std::thread::scope(|scope| {
            let earlier = scope.spawn(move || wait.recv().map(|()| of_this_thread()).unwrap());
            scope.spawn(move || {
                let elder = scope.spawn(of_this_thread).join().unwrap();
                assert_eq!(elder, before);
                apply(IoPriority::Idle).unwrap();
                let later = scope.spawn(|| {
                    let inherited = of_this_thread();
                    apply(IoPriority::BestEffort(6)).unwrap();
                    (inherited, of_this_thread())
                });
                let (inherited, changed) = later.join().unwrap();
                assert_eq!((inherited, changed), (3 << 13, 2 << 13 | 6));
                // The child's own change stays with the child.
                assert_eq!(of_this_thread(), 3 << 13);
                release.send(()).unwrap();
            });
            assert_eq!(earlier.join().unwrap(), before);
        });
        assert_eq!(of_this_thread(), before);
    }

    #[test]
    fn without_the_privilege_realtime_is_refused_in_words_and_the_rest_is_not() {
        aside(|| {
            #[repr(C)]
            struct Header(u32, libc::c_int);
            // Version 3 of the call; no capability in any of the three sets, each of two words.
            let (header, none) = (Header(0x2008_0522, 0), [0u32; 6]);
            // SAFETY: both live through the call and have the kernel's layout; it changes the calling thread only.
            let done = unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const none) };
            assert_eq!(done, 0, "{}", io::Error::last_os_error());
            let error = apply(IoPriority::RealTime(0)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            let text = error.to_string();
            assert!(text.contains("realtime:0") && text.contains("CAP_SYS_ADMIN"), "{text}");
            let cause = error.source().unwrap().downcast_ref::<io::Error>().unwrap();
            assert_eq!(cause.raw_os_error(), Some(libc::EPERM));
            for priority in ALL {
                apply(priority).unwrap();
                assert_eq!(of_this_thread(), priority.encoded());
            }
        });
    }

    #[test]
    fn a_level_that_there_is_not_is_an_invalid_argument() {
        for priority in [IoPriority::BestEffort(8), IoPriority::RealTime(255)] {
            assert_eq!(aside(|| apply(priority)).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn the_scheduler_in_use_is_the_one_in_brackets() {
        assert_eq!(chosen("none [mq-deadline] kyber bfq \n"), Some("mq-deadline"));
        assert_eq!(chosen("[none] mq-deadline\n"), Some("none"));
        assert_eq!(chosen("none\n"), Some("none"));
        assert_eq!(chosen("a b\n"), None);
        assert_eq!(chosen(""), None);
    }

    #[test]
    fn the_scheduler_is_that_of_the_disk_whatever_lies_on_top_of_it() {
        let sys = tempfile::tempdir().unwrap();
        let disk = |name: &str, scheduler: &str| {
            let folder = sys.path().join(name);
            fs::create_dir_all(folder.join("queue")).unwrap();
            fs::write(folder.join("queue/scheduler"), scheduler).unwrap();
            fs::create_dir(folder.join(format!("{name}1"))).unwrap();
            folder
        };
        let stacked = |name: &str, on: &[&Path]| {
            let folder = disk(name, "none\n");
            fs::create_dir(folder.join("slaves")).unwrap();
            for (number, below) in on.iter().enumerate() {
                symlink(below, folder.join(format!("slaves/{number}"))).unwrap();
            }
            folder
        };
        let at = |folder: &Path| scheduler_at(folder, 8);
        let bfq = || Some("bfq".to_string());
        let (a, b, c) = (disk("a", "none [bfq]\n"), disk("b", "[bfq] none\n"), disk("c", "[none] bfq\n"));
        assert_eq!(at(&a), bfq());
        assert_eq!(at(&a.join("a1")), bfq());
        // A volume on a partition of one disk, one on two disks that agree, one on two that do not.
        let lvm = stacked("lvm", &[&a.join("a1")]);
        assert_eq!(at(&lvm), bfq());
        assert_eq!(at(&stacked("md", &[&a, &b])), bfq());
        assert_eq!(at(&stacked("mixed", &[&a, &c])), None);
        // A partition of a volume on a volume.
        assert_eq!(at(&stacked("crypt", &[&lvm]).join("crypt1")), bfq());
        assert_eq!(at(&sys.path().join("missing")), None);
        // Nobody stacks disks in a ring; if somebody did, it ends.
        let ring = stacked("ring", &[]);
        symlink(&ring, ring.join("slaves/0")).unwrap();
        assert_eq!(at(&ring), None);
    }

    #[test]
    fn the_scheduler_under_this_folder_agrees_with_sysfs_or_is_not_known() {
        let device = fs::metadata(".").unwrap().dev();
        match scheduler_of(device) {
            Some(name) => {
                eprintln!(
                    "the scheduler here is {name}; it looks at priorities: {}",
                    honours_priority(&name)
                );
                assert!(!name.is_empty() && !name.contains(['[', ']', ' ', '\n']));
            }
            None => eprintln!("skipped: the file system here has no single disk"),
        }
        // Anonymous devices, as of tmpfs, have no entry.
        assert_eq!(scheduler_of(libc::makedev(0, 12345)), None);
    }
}
