//! Does opening the driver return? Found out where it can be given up: in a child process.

use std::ffi::{CStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cufile_sys::{CUfileOpError, Library, sym};

use crate::memory::cuda::Context;

/// How long a driver may take to open: 2 seconds are usual.
const DEADLINE: Duration = Duration::from_secs(20);
/// Set for the child: the device's number, a colon, and the library's path.
const ASKED: &CStr = c"GPUFEED_PROBE_CUFILE";
/// Exit statuses of the child: the driver opened; it did not, and the code is on standard output.
const OPENED: i32 = 77;
const REFUSED: i32 = 78;

/// Whether `on_load` has run, as it does in a program that has this crate linked in.
static LOADED: AtomicBool = AtomicBool::new(false);

/// Runs before `main`, so that this very program can be started again as the child.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    LOADED.store(true, Ordering::Release);
    // SAFETY: the name is a C string; nothing changes the environment this early.
    let asked = unsafe { libc::getenv(ASKED.as_ptr()) };
    if asked.is_null() {
        return;
    }
    // SAFETY: getenv gave a C string that stays valid, since nothing changes the environment this early.
    let asked = unsafe { CStr::from_ptr(asked) }.to_bytes();
    let status = std::panic::catch_unwind(|| open_here(asked)).unwrap_or(1);
    // SAFETY: ends the process at once, without handlers: the driver may have left threads of its own.
    unsafe { libc::_exit(status) }
}

/// What the child does.
fn open_here(asked: &[u8]) -> c_int {
    let Some(colon) = asked.iter().position(|byte| *byte == b':') else { return 1 };
    let ordinal = std::str::from_utf8(&asked[..colon]).ok().and_then(|text| text.parse().ok());
    let path = Path::new(std::ffi::OsStr::from_bytes(&asked[colon + 1..]));
    let (Some(ordinal), Ok(library)) = (ordinal, Library::open_at(path)) else { return 1 };
    let (Ok(context), Ok(open)) = (Context::open(ordinal), library.require(sym::cuFileDriverOpen)) else {
        return 1;
    };
    let Ok(_entered) = context.enter() else { return 1 };
    // SAFETY: takes nothing; a context is current. Should it not return, the parent ends this process.
    let returned = unsafe { open() };
    if returned.err == CUfileOpError::SUCCESS {
        return OPENED;
    }
    let line = format!("{returned}\n");
    // SAFETY: the line lives through the call; a pipe to the parent takes a short line whole.
    unsafe { libc::write(1, line.as_ptr().cast::<c_void>(), line.len()) };
    REFUSED
}

/// Whether the driver can be opened; found out once per process.
///
/// # Errors
/// Why not, in words.
pub(super) fn check(library: &Library, ordinal: u32) -> Result<(), String> {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    FOUND.get_or_init(|| ask(library, ordinal)).clone()
}

fn ask(library: &Library, ordinal: u32) -> Result<(), String> {
    // By fopen, as the library does it: what stands in for the file there does so here.
    // SAFETY: both are C strings.
    let modules = unsafe { libc::fopen(c"/proc/modules".as_ptr(), c"r".as_ptr()) };
    if modules.is_null() {
        return Err(
            "/proc/modules cannot be read (a sandbox or a kernel without modules), without which its driver \
                    may never return from opening"
                .into(),
        );
    }
    // SAFETY: opened above and closed once.
    unsafe { libc::fclose(modules) };
    if !LOADED.load(Ordering::Acquire) || !in_main_program() {
        return Ok(());
    }
    let folder = std::env::temp_dir().join(format!("gpufeed-probe-{}", std::process::id()));
    // cuFile writes a log into the current folder.
    let made = std::fs::create_dir_all(&folder);
    let outcome = made.map_err(|e| format!("{}: cannot make it: {e}", folder.display())).and_then(|()| {
        let mut asked = format!("{ordinal}:").into_bytes();
        asked.extend(library.path().as_os_str().as_bytes());
        ask_child(&folder, &asked, DEADLINE)
    });
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

fn ask_child(folder: &Path, asked: &[u8], deadline: Duration) -> Result<(), String> {
    let name = ASKED.to_str().unwrap_or_default();
    let mut child = Command::new("/proc/self/exe")
        .env(name, std::ffi::OsStr::from_bytes(asked))
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("a child process that tries it cannot be started: {e}"))?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("its driver did not return from opening within {deadline:?}"));
            }
            Err(e) => return Err(format!("a child process that tries it cannot be waited for: {e}")),
        }
    };
    match status.code() {
        Some(OPENED) => Ok(()),
        Some(REFUSED) => {
            // The library may have said something of its own before.
            let mut told = String::new();
            if let Some(out) = &mut child.stdout {
                let _ = std::io::Read::read_to_string(out, &mut told);
            }
            let lines: Vec<&str> = told.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            Err(format!("its driver does not open: {}", lines.join("; ")))
        }
        _ => Err(format!("opening its driver ended a child process ({status})")),
    }
}

/// Whether this code is part of the program itself, whose constructors run before `main`.
fn in_main_program() -> bool {
    struct Search {
        address: usize,
        found: bool,
    }
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
        // SAFETY: the caller of this callback passes a valid `info`, and `data` as given below.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
        for i in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: there are dlpi_phnum program headers.
            let header = unsafe { &*info.dlpi_phdr.add(i) };
            let start = info.dlpi_addr as usize + header.p_vaddr as usize;
            if header.p_type == libc::PT_LOAD
                && (start..start + header.p_memsz as usize).contains(&search.address)
            {
                search.found = true;
            }
        }
        1 // the first object is the program itself; no more are looked at
    }
    let mut search = Search { address: on_load as *const () as usize, found: false };
    // SAFETY: the callback takes these arguments, and `search` lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut search).cast()) };
    search.found
}
