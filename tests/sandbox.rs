//! Where the kernel or a container refuses io_uring or locked memory: it works all the same, and says why it had to.
//! Where it refuses what a root needs: it does not work, and says why.
#![cfg(feature = "cli")]

mod common;

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::command::gpufeed;
use serde_json::Value;

fn digits() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/digits").to_str().unwrap().into()
}

/// Has every call of io_uring answered with `errno` from here on.
fn refuse_io_uring(errno: u32) -> io::Result<()> {
    // io_uring_setup, _enter and _register: 425 to 427 on every architecture.
    refuse(425, 427, errno)
}

/// Has the system calls of these numbers answered with `errno` from here on, as the seccomp profile of a container does.
fn refuse(first: u32, last: u32, errno: u32) -> io::Result<()> {
    const NUMBER: u32 = 0; // the offset of `nr` in `seccomp_data`
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, first, 0, 2),
        statement(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, last, 1, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno, 0, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the first call takes no pointer; the program and its filter live through the second, which copies them.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the limit on locked memory, and gives up the capability that exempts from it (root has it).
fn limit_locked_memory(bytes: u64) -> io::Result<()> {
    const CAP_IPC_LOCK: u32 = 14;
    const VERSION_3: u32 = 0x2008_0522;
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    let header = Header { version: VERSION_3, pid: 0 };
    let mut data = [Data { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: limit, header and data (two entries, as version 3 has) live through the calls and have the kernel's
    // layout.
    unsafe {
        if libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        // Without the capability to do this there is none to give up either: exec gives an ordinary user nothing.
        libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);
        if libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        for set in [&mut data[0].effective, &mut data[0].permitted, &mut data[0].inheritable] {
            *set &= !(1 << CAP_IPC_LOCK);
        }
        if libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Runs the command line after `prepare`: its exit status, the JSON object, and what it said to people.
fn load(
    args: &[&str],
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) -> (i32, Option<Value>, String) {
    let mut command = gpufeed();
    command.args(["load", &digits(), "--json", "--digest"]).args(args);
    // SAFETY: between fork and exec only system calls are made, and no memory is allocated.
    unsafe { command.pre_exec(prepare) };
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).ok(), stderr)
}

fn plain_digest() -> Value {
    load(&["--backend", "page-cache"], || Ok(())).1.unwrap()["digest"].clone()
}

#[test]
fn auto_goes_by_pread_where_a_sandbox_refuses_io_uring_and_says_why() {
    for (errno, words) in [(libc::EPERM, "os error 1"), (libc::ENOSYS, "os error 38")] {
        let (status, found, stderr) = load(&["--backend", "auto"], move || refuse_io_uring(errno as u32));
        assert_eq!(status, 0, "{stderr}");
        let found = found.unwrap();
        assert_eq!(found["backend"], "pread");
        let reason = found["backend_reason"].as_str().unwrap();
        assert!(reason.contains("uring") && reason.contains(words), "{reason}");
        assert!(reason.contains("sandbox") || reason.contains("io_uring_disabled"), "{reason}");
        assert_eq!(found["passed_over"][0]["backend"], "uring");
        assert!(found["passed_over"][0]["reason"].as_str().unwrap().contains(words));
        assert_eq!(found["bytes_by_way"]["uring_direct"], 0);
        assert_eq!(found["bytes_by_way"]["uring_buffered"], 0);
        assert_eq!(found["digest"], plain_digest());
    }
}

#[test]
fn uring_by_name_fails_where_a_sandbox_refuses_it_and_is_not_replaced() {
    for (errno, words) in [(libc::EPERM, "os error 1"), (libc::ENOSYS, "os error 38")] {
        let (status, found, stderr) = load(&["--backend", "uring"], move || refuse_io_uring(errno as u32));
        assert_eq!((status, found), (1, None), "{stderr}");
        assert!(stderr.contains("uring") && stderr.contains(words), "{stderr}");
        assert!(stderr.contains("sandbox") || stderr.contains("io_uring_disabled"), "{stderr}");
    }
}

#[test]
fn the_other_backends_do_not_ask_for_io_uring() {
    for backend in ["pread", "page-cache"] {
        let (status, found, stderr) = load(&["--backend", backend], || refuse_io_uring(libc::EPERM as u32));
        assert_eq!(status, 0, "{stderr}");
        assert_eq!(found.unwrap()["digest"], plain_digest());
    }
}

#[test]
fn a_low_limit_on_locked_memory_costs_registered_buffers_and_nothing_else() {
    if let Err(refused) = gpufeed::Backend::Uring.probe() {
        return eprintln!("skipped: {refused}");
    }
    for backend in ["auto", "uring"] {
        let (status, found, stderr) = load(&["--backend", backend], || limit_locked_memory(64 << 10));
        assert_eq!(status, 0, "{stderr}");
        let found = found.unwrap();
        // Some kernels count the ring itself, so `auto` may do without it.
        if found["backend"] == "uring" {
            let notes = found["notes"].to_string();
            assert!(notes.contains("buffers are not registered"), "{notes}");
            assert!(notes.contains("RLIMIT_MEMLOCK") && notes.contains("65536 bytes"), "{notes}");
        }
        assert_eq!(found["digest"], plain_digest());
    }
}

#[test]
fn auto_goes_by_pread_where_locked_memory_is_enough_to_try_a_ring_and_not_for_the_real_one() {
    let prepare = || limit_locked_memory(16 << 10);
    let (status, found, stderr) = load(&["--backend", "auto", "--queue-depth", "256"], prepare);
    assert_eq!(status, 0, "{stderr}");
    let found = found.unwrap();
    assert_eq!(found["digest"], plain_digest());
    // Some kernels count registered buffers only, not the ring itself.
    let why = if found["backend"] == "pread" { &found["backend_reason"] } else { &found["notes"] };
    assert!(why.to_string().contains("RLIMIT_MEMLOCK"), "{found}");
}

#[test]
fn with_no_limit_on_locked_memory_there_is_nothing_to_note() {
    if let Err(refused) = gpufeed::Backend::Uring.probe() {
        return eprintln!("skipped: {refused}");
    }
    let unlimited = || {
        let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: `limit` lives through the call.
        match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let mut allowed = Command::new("true");
    // SAFETY: as in `load`.
    unsafe { allowed.pre_exec(unlimited) };
    if allowed.status().is_err() {
        return eprintln!("skipped: this user may not raise the limit on locked memory");
    }
    let (status, found, stderr) = load(&["--backend", "uring"], unlimited);
    assert_eq!(status, 0, "{stderr}");
    assert_eq!(found.unwrap()["notes"], serde_json::json!([]));
}

#[test]
fn a_root_is_an_error_where_openat2_is_refused_and_never_done_without() {
    const OPENAT2: u32 = 437; // on every architecture
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets");
    let root = root.to_str().unwrap();
    for (errno, words) in [(libc::EPERM, "os error 1"), (libc::ENOSYS, "os error 38")] {
        let prepare = move || refuse(OPENAT2, OPENAT2, errno as u32);
        let (status, found, stderr) = load(&["--root", root], prepare);
        assert_eq!((status, found), (1, None), "{stderr}");
        for words in [root, words, "openat2 (Linux 5.6)"] {
            assert!(stderr.contains(words), "{stderr}");
        }
        // Without a root, nothing asks for it.
        let (status, found, stderr) = load(&[], prepare);
        assert_eq!(status, 0, "{stderr}");
        assert_eq!(found.unwrap()["digest"], plain_digest());
    }
    let (status, found, stderr) = load(&["--root", root], || Ok(()));
    assert_eq!(status, 0, "{stderr}");
    assert_eq!(found.unwrap()["digest"], plain_digest());
}
