//! The state of the whole driver, behind one lock.
//!
//! One lock and not many: entry points look at several tables at once (a copy resolves addresses, a stream and a
//! context), and a test tool gains more from being obviously free of lock-order mistakes than from running in
//! parallel. Bytes are moved with the lock released.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::address::AddressMap;
use crate::context::{Context, ContextId};
use crate::device::DeviceState;
use crate::error::{Answer, Code};
use crate::event::Event;
use crate::misuse::{Misuse, report};
use crate::queue::{Stream, StreamId};
use crate::settings::settings;

/// Every table of the driver.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) devices: Vec<DeviceState>,
    pub(crate) contexts: BTreeMap<ContextId, Context>,
    pub(crate) streams: HashMap<StreamId, Stream>,
    pub(crate) events: HashMap<usize, Event>,
    pub(crate) addresses: AddressMap,
    next_handle: usize,
    streams_made: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    Mutex::new(State {
        devices: settings().devices.iter().map(|_| DeviceState::default()).collect(),
        contexts: BTreeMap::new(),
        streams: HashMap::new(),
        events: HashMap::new(),
        addresses: AddressMap::default(),
        next_handle: 1,
        streams_made: 0,
    })
});

/// Told whenever an operation has finished, a stream has gone, or an allocation is no longer in use.
static PROGRESS: Condvar = Condvar::new();

/// Kinds of handles, kept in a handle's low bits so that one kind passed for another is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleKind {
    Context = 1,
    Stream = 2,
    Event = 3,
}

/// Handles are not addresses at all (the top bits make them non-canonical): a caller who follows one faults at once.
const HANDLE_BASE: usize = 0xE0E0_0000_0000_0000;

/// The held lock, with the name of the entry point that holds it, for reports.
#[derive(Debug)]
pub(crate) struct Driver {
    guard: Option<MutexGuard<'static, State>>,
    pub(crate) call: &'static str,
}

impl Driver {
    pub(crate) fn lock(call: &'static str) -> Driver {
        // A panic while the lock is held aborts the process at the C boundary, so poison tells nothing new.
        Driver { guard: Some(STATE.lock().unwrap_or_else(PoisonError::into_inner)), call }
    }

    fn guard(&mut self) -> MutexGuard<'static, State> {
        self.guard.take().expect("the lock is held except inside the two methods that give it back")
    }

    /// Releases the lock until `condvar` is told something, or `timeout` has passed.
    pub(crate) fn wait_on(&mut self, condvar: &Condvar, timeout: Option<Duration>) {
        let guard = self.guard();
        let guard = match timeout {
            None => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0,
        };
        self.guard = Some(guard);
    }

    /// Releases the lock until some operation has finished.
    pub(crate) fn wait_for_progress(&mut self) {
        self.wait_on(&PROGRESS, None);
    }

    /// As [`Driver::wait_for_progress`], for no longer than `timeout`.
    pub(crate) fn wait_for_progress_within(&mut self, timeout: Duration) {
        self.wait_on(&PROGRESS, Some(timeout));
    }

    /// Wakes everybody who waits for progress.
    pub(crate) fn tell_progress(&self) {
        PROGRESS.notify_all();
    }

    /// Runs `work` with the lock released.
    pub(crate) fn unlocked<T>(&mut self, work: impl FnOnce() -> T) -> T {
        drop(self.guard());
        let result = work();
        self.guard = Some(STATE.lock().unwrap_or_else(PoisonError::into_inner));
        result
    }

    /// A handle that was never given out before.
    pub(crate) fn new_handle(&mut self, kind: HandleKind) -> usize {
        self.next_handle += 1;
        HANDLE_BASE | (self.next_handle << 4) | kind as usize
    }

    /// How many streams were made before the one that is being made.
    pub(crate) fn count_stream(&mut self) -> u64 {
        self.streams_made += 1;
        self.streams_made - 1
    }

    /// Reports a misuse by the current entry point, and gives `code` back for it to return.
    pub(crate) fn misuse<T>(&self, misuse: Misuse, address: u64, code: Code, detail: &str) -> Answer<T> {
        report(misuse, self.call, address, detail);
        Err(code)
    }

    /// Reports a handle that is in no table: destroyed before, or never one of this kind.
    pub(crate) fn bad_handle<T>(
        &self,
        handle: usize,
        kind: HandleKind,
        destroying: bool,
        code: Code,
    ) -> Answer<T> {
        let number = (handle & !HANDLE_BASE) >> 4;
        let given_out = handle & HANDLE_BASE == HANDLE_BASE && handle & 15 == kind as usize;
        if given_out && number <= self.next_handle {
            let misuse = if destroying { Misuse::DoubleDestroy } else { Misuse::UseAfterDestroy };
            self.misuse(misuse, handle as u64, code, &format!("this {kind:?} was destroyed before"))
        } else {
            self.misuse(Misuse::UnknownHandle, handle as u64, code, &format!("not a {kind:?}"))
        }
    }
}

impl Deref for Driver {
    type Target = State;
    fn deref(&self) -> &State {
        self.guard.as_ref().expect("the lock is held except inside the two methods that give it back")
    }
}

impl DerefMut for Driver {
    fn deref_mut(&mut self) -> &mut State {
        self.guard.as_mut().expect("the lock is held except inside the two methods that give it back")
    }
}

/// The number inside a handle, which serves as the id of a stream or a context.
pub(crate) fn handle_number(handle: usize) -> u64 {
    ((handle & !HANDLE_BASE) >> 4) as u64
}
