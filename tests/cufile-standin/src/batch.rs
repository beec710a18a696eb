//! Batches: many reads and writes under one handle, done in threads of the library's own, the last one first.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::call::{self, When};
use crate::error::{Answer, Error, Failure, code};
use crate::fault::{Entry as EntryFault, What};
use crate::ffi::{Array, Event, Out, Parameters};
use crate::ledger::{Direction, Form};
use crate::misuse::{Misuse, report};
use crate::settings::settings;
use crate::state::{HandleKind, State};
use crate::statistics::{self, Event as Counted};
use crate::target::{self, Busy, Naming};
use crate::{threads, transfer};

const MODE_BATCH: i32 = 1;
const CANCELED: i32 = 0x08;
const COMPLETE: i32 = 0x10;
const FAILED: i32 = 0x40;

/// One batch that was set up.
#[derive(Debug)]
pub(crate) struct Batch {
    capacity: u64,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// Submitted, and not yet told by `cuFileBatchIOGetStatus`.
    outstanding: u64,
    /// Submitted, and not yet ended.
    in_flight: u64,
    ended: VecDeque<Event>,
    /// Entries that end only when they are cancelled.
    stuck: Vec<(usize, Busy)>,
    submissions: u64,
    /// Submissions up to this one are cancelled.
    cancelled: u64,
}

/// One entry, checked.
#[derive(Debug)]
struct Entry {
    cookie: usize,
    direction: Direction,
    offset: i64,
    busy: Option<Busy>,
    fault: Option<EntryFault>,
}

impl Batch {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Entries that have not ended.
    pub(crate) fn in_flight(&self) -> u64 {
        self.lock().in_flight
    }

    fn end(&self, event: Event) {
        let mut inner = self.lock();
        inner.in_flight -= 1;
        inner.ended.push_back(event);
        drop(inner);
        statistics::event(Counted::BatchEntry { ok: event.status == COMPLETE });
        self.changed.notify_all();
    }

    fn work(&self, entries: Vec<Entry>, submission: u64) {
        for entry in entries.into_iter().rev() {
            if self.lock().cancelled >= submission {
                let cookie = entry.cookie;
                drop(entry);
                self.end(Event { cookie, status: CANCELED, ret: 0 });
            } else if let Some(event) = self.run(entry) {
                self.end(event);
            }
        }
    }

    /// Does one entry; none if it is to stay in flight.
    fn run(&self, entry: Entry) -> Option<Event> {
        let Entry { cookie, direction, offset, busy, fault } = entry;
        let Some(busy) = busy else { return Some(Event { cookie, status: COMPLETE, ret: 0 }) };
        let size: usize = busy.targets.iter().map(|target| target.len).sum();
        let cap = match fault {
            Some(EntryFault::Never) => {
                self.lock().stuck.push((cookie, busy));
                return None;
            }
            Some(EntryFault::Status(status)) => return Some(Event { cookie, status, ret: size as i64 }),
            Some(EntryFault::Ret(ret)) if ret < 0 => return Some(Event { cookie, status: COMPLETE, ret }),
            Some(EntryFault::Ret(ret)) => vec![What::Short(ret as usize)],
            None => Vec::new(),
        };
        Some(match transfer::run(&busy, direction, Form::Batch, offset, &cap) {
            Ok(bytes) => Event { cookie, status: COMPLETE, ret: bytes as i64 },
            Err(failure) => Event { cookie, status: FAILED, ret: -i64::from(failure.number()) },
        })
    }

    /// Ends what has not begun, and what would never end.
    fn cancel(&self) {
        let mut inner = self.lock();
        inner.cancelled = inner.submissions;
        let stuck = std::mem::take(&mut inner.stuck);
        drop(inner);
        for (cookie, busy) in stuck {
            drop(busy);
            self.end(Event { cookie, status: CANCELED, ret: 0 });
        }
    }

    /// Waits until `least` entries have ended or the time is over, and answers up to `most` of them.
    fn reap(&self, least: usize, most: usize, until: Option<Instant>) -> Vec<Event> {
        let mut inner = self.lock();
        while inner.ended.len() < least {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            inner = match left {
                Some(Duration::ZERO) => break,
                Some(left) => {
                    self.changed.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner),
            };
        }
        let count = most.min(inner.ended.len());
        inner.outstanding -= count as u64;
        inner.ended.drain(..count).collect()
    }
}

/// An older library says the same of all that goes wrong with a batch.
fn refused(code: i32) -> Error {
    Error::cufile(if settings().version < 1150 { code::INTERNAL_ERROR } else { code })
}

fn find(call: &str, handle: usize, ending: bool) -> Answer<Arc<Batch>> {
    let mut state = State::lock();
    let found = if ending { state.batches.remove(&handle) } else { state.batches.get(&handle).cloned() };
    found.ok_or_else(|| {
        let (misuse, detail) = state.bad_handle(handle, HandleKind::Batch, ending);
        drop(state);
        report(misuse, call, handle as u64, detail);
        refused(code::INVALID_VALUE)
    })
}

fn checked(call: &str, parameters: &Parameters, fault: Option<EntryFault>) -> Result<Entry, Failure> {
    let direction = match (parameters.mode, parameters.opcode) {
        (MODE_BATCH, 0) => Direction::Read,
        (MODE_BATCH, 1) => Direction::Write,
        _ => return Err(Failure::Code(code::INVALID_VALUE)),
    };
    let Parameters { base, file_offset, buffer_offset, size, handle, cookie, .. } = *parameters;
    let file = target::file(call, handle)?;
    transfer::check(&file, direction, file_offset)?;
    let size = target::limited(size)?;
    file_offset.checked_add_unsigned(size as u64).ok_or(Failure::Code(code::INVALID_VALUE))?;
    let busy = if size == 0 {
        None
    } else {
        let memory = target::memory(call, base, buffer_offset, size, Naming::BaseAndOffset)?;
        Some(Busy::new(file, vec![memory]))
    };
    Ok(Entry { cookie, direction, offset: file_offset, busy, fault })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBatchIOSetUp(batch: Out<usize>, capacity: u32) -> Error {
    call::status("cuFileBatchIOSetUp", When::DriverOpen, || {
        let fits = (1..=settings().max_batch).contains(&capacity) && !batch.is_null();
        statistics::event(Counted::BatchSetup { ok: fits });
        if !fits {
            return Err(refused(code::INVALID_VALUE));
        }
        let mut state = State::lock();
        let handle = state.new_handle(HandleKind::Batch);
        let made = Batch { capacity: u64::from(capacity), inner: Mutex::default(), changed: Condvar::new() };
        state.batches.insert(handle, Arc::new(made));
        drop(state);
        batch.set(handle)
    })
}

fn submit(call: &str, handle: usize, parameters: &[Parameters], faults: &[What]) -> Answer {
    let batch = find(call, handle, false)?;
    let count = parameters.len() as u64;
    let mut inner = batch.lock();
    if inner.outstanding + count > batch.capacity {
        let detail = format!(
            "{count} entries, and {} not yet asked about, in a batch of {}",
            inner.outstanding, batch.capacity
        );
        drop(inner);
        report(Misuse::BatchTooLarge, call, handle as u64, &detail);
        return Err(refused(code::BATCH_FULL));
    }
    // Taken before the entries are checked, so that two threads cannot both have the last places.
    inner.outstanding += count;
    drop(inner);
    let of_entry = |index: usize| {
        faults.iter().find_map(|fault| match fault {
            What::Entry(which, outcome) if which.is_none_or(|which| which == index) => Some(*outcome),
            _ => None,
        })
    };
    let entries: Result<Vec<Entry>, Failure> = parameters
        .iter()
        .enumerate()
        .map(|(index, parameters)| checked(call, parameters, of_entry(index)))
        .collect();
    let mut inner = batch.lock();
    let entries = match entries {
        Ok(entries) => entries,
        Err(failure) => {
            inner.outstanding -= count;
            return Err(failure.into());
        }
    };
    inner.in_flight += count;
    inner.submissions += 1;
    let submission = inner.submissions;
    drop(inner);
    threads::start(move || batch.work(entries, submission));
    Ok(())
}

/// # Safety
///
/// `parameters` must be null or hold `count` elements.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileBatchIOSubmit(
    handle: usize,
    count: u32,
    parameters: Array<Parameters>,
    flags: u32,
) -> Error {
    const CALL: &str = "cuFileBatchIOSubmit";
    call::status_with(CALL, When::DriverOpen, |faults| {
        if count == 0 || flags != 0 {
            return Err(refused(code::INVALID_VALUE));
        }
        // SAFETY: `count` elements, by this function's contract.
        let parameters = unsafe { parameters.read(count as usize) }?;
        let answer = submit(CALL, handle, &parameters, faults);
        statistics::event(Counted::BatchSubmit { ok: answer.is_ok(), entries: u64::from(count) });
        answer
    })
}

/// # Safety
///
/// `events` must hold as many elements as `count` says, and `timeout` must be null or point to a `timespec`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileBatchIOGetStatus(
    handle: usize,
    least: u32,
    count: Out<u32>,
    events: Out<Event>,
    timeout: Array<libc::timespec>,
) -> Error {
    const CALL: &str = "cuFileBatchIOGetStatus";
    call::status(CALL, When::DriverOpen, || {
        let batch = find(CALL, handle, false)?;
        let most = count.get()?;
        if most == 0 || least > most || events.is_null() {
            return Err(refused(code::INVALID_VALUE));
        }
        // SAFETY: one element, or null, by this function's contract.
        let timeout = unsafe { timeout.read(1) }.ok().map(|timeout| timeout[0]);
        let until = timeout.map(|time| Instant::now() + duration(&time));
        if until.is_none() && u64::from(least) > batch.lock().outstanding {
            report(
                Misuse::WaitsForNothing,
                CALL,
                handle as u64,
                "without a timeout, for more than was submitted",
            );
            return Err(refused(code::INVALID_VALUE));
        }
        // Nothing more can end than is outstanding, and so that is all that is waited for.
        let least = u64::from(least).min(batch.lock().outstanding);
        let ended = batch.reap(least as usize, most as usize, until);
        // SAFETY: at most as many as the caller has room for.
        unsafe { events.fill(&ended) }?;
        count.set(ended.len() as u32)
    })
}

fn duration(time: &libc::timespec) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0).min(1 << 30);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0).min(999_999_999))
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBatchIOCancel(handle: usize) -> Error {
    call::status("cuFileBatchIOCancel", When::DriverOpen, || {
        let batch = find("cuFileBatchIOCancel", handle, false);
        statistics::event(Counted::BatchCancel { ok: batch.is_ok() });
        batch?.cancel();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBatchIODestroy(handle: usize) {
    const CALL: &str = "cuFileBatchIODestroy";
    call::silent(CALL, When::DriverOpen, || {
        let batch = find(CALL, handle, true);
        statistics::event(Counted::BatchDestroy { ok: batch.is_ok() });
        let Ok(batch) = batch else { return };
        let left = batch.in_flight();
        if left > 0 {
            let detail = format!("{left} entries have not ended");
            report(Misuse::DestroyInFlight, CALL, handle as u64, &detail);
            // They go on: the real library promises nothing here.
        }
    });
}
