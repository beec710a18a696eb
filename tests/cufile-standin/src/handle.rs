//! Files, registered by their descriptors.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::call::{self, When};
use crate::error::{Answer, Error, code};
use crate::ffi::{Array, Descriptor, Out};
use crate::misuse::{Misuse, report};
use crate::settings::settings;
use crate::state::{self, File, HandleKind, State};
use crate::statistics::{self, Event};
use crate::target;

const OPAQUE_FD: i32 = 1;

/// Flags of open(2) that cuFile's manual rules out, as far as a descriptor still shows them.
const REFUSED_FLAGS: i32 =
    libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_PATH;

fn open_again(fd: i32) -> Answer<File> {
    // SAFETY: an all-zero stat is a valid value to be overwritten.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: both answer for any number; fstat fills in a struct of our own.
    let (known, flags) = unsafe { (libc::fstat(fd, &mut found) == 0, libc::fcntl(fd, libc::F_GETFL)) };
    if !known || flags < 0 {
        return Err(Error::cufile(code::INVALID_VALUE));
    }
    if !matches!(found.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK) {
        return Err(Error::cufile(code::INVALID_FILE_TYPE));
    }
    if flags & REFUSED_FLAGS != 0 {
        return Err(Error::cufile(code::INVALID_FILE_OPEN_FLAG));
    }
    let mode = flags & libc::O_ACCMODE;
    let path = format!("/proc/self/fd/{fd}\0");
    // SAFETY: a NUL-terminated path.
    let own = unsafe { libc::open(path.as_ptr().cast(), mode | libc::O_CLOEXEC) };
    if own < 0 {
        return Err(Error::cufile(code::GETNEWFD_FAILED));
    }
    Ok(File {
        fd,
        // SAFETY: a fresh descriptor that nobody else owns.
        own: unsafe { OwnedFd::from_raw_fd(own) },
        device: found.st_dev,
        inode: found.st_ino,
        writable: mode != libc::O_RDONLY,
        readable: mode != libc::O_WRONLY,
        direct: flags & libc::O_DIRECT != 0,
        in_flight: AtomicU64::new(0),
    })
}

/// # Safety
///
/// `descriptor` must be null or point to a `CUfileDescr_t`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileHandleRegister(handle: Out<usize>, descriptor: Array<Descriptor>) -> Error {
    const CALL: &str = "cuFileHandleRegister";
    call::status(CALL, When::DriverOpen, || {
        // SAFETY: one element, by this function's contract.
        let descriptor = unsafe { descriptor.read(1) }?[0];
        if handle.is_null() || descriptor.kind != OPAQUE_FD || !descriptor.operations.is_null() {
            return Err(Error::cufile(code::INVALID_VALUE));
        }
        if let Some(code) = settings().handle_fs {
            return Err(Error::cufile(code));
        }
        let file = open_again(descriptor.handle as u32 as i32)?;
        let mut state = State::lock();
        if let Some((old, other)) = state.handles.iter().find(|(_, other)| other.fd == file.fd) {
            // A closed descriptor's number comes back soon; the old handle then stands for the wrong file.
            let detail = if target::is_same(other) {
                "registered already"
            } else {
                "its number still belongs to a closed file's handle"
            };
            let (misuse, old) = if target::is_same(other) {
                (Misuse::DoubleRegister, *old)
            } else {
                (Misuse::FdClosed, *old)
            };
            drop(state);
            report(misuse, CALL, old as u64, &format!("descriptor {}: {detail}", file.fd));
            return Err(Error::cufile(code::HANDLE_ALREADY_REGISTERED));
        }
        let number = state.new_handle(HandleKind::File);
        state.handles.insert(number, Arc::new(file));
        drop(state);
        statistics::event(Event::HandleRegister);
        handle.set(number)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileHandleDeregister(handle: usize) {
    const CALL: &str = "cuFileHandleDeregister";
    call::silent(CALL, When::DriverOpen, || {
        let mut state = State::lock();
        let Some(file) = state.handles.remove(&handle) else {
            let (misuse, detail) = state.bad_handle(handle, HandleKind::File, true);
            drop(state);
            report(misuse, CALL, handle as u64, detail);
            return;
        };
        drop(state);
        if state::any(&file.in_flight) {
            report(
                Misuse::DeregisterInFlight,
                CALL,
                handle as u64,
                "operations on this file have not finished",
            );
        }
        if !target::is_same(&file) {
            let detail = format!("descriptor {} was closed, or is another file now", file.fd);
            report(Misuse::FdClosed, CALL, handle as u64, &detail);
        }
        statistics::event(Event::HandleDeregister);
    });
}
