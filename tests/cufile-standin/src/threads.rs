//! Threads of the library's own.

/// Starts a thread that takes no signals, so that the host program's handlers run on its own threads.
pub(crate) fn start(work: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    // SAFETY: an all-zero signal set is a valid value to be overwritten.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are ours; only this thread's mask changes, and it is put back below.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
    }
    let started = std::thread::Builder::new().name("cufile-standin".to_owned()).spawn(work);
    // SAFETY: puts back the mask saved above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    started.unwrap_or_else(|error| {
        // Without its thread an operation would hang its waiters: a test is better served by an end with a reason.
        eprintln!("cufile-standin: cannot start a thread: {error}");
        std::process::abort()
    })
}
