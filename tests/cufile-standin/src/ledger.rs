//! What was moved, by direction; passed on to cuFile's own statistics.

use std::sync::{Mutex, PoisonError};

use crate::statistics;

/// Whether bytes come from the file or go to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// The way that bytes are said to have taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Posix,
    Nvfs,
    P2pDma,
}

/// Which call asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Plain,
    Vector,
    Batch,
    Stream,
}

/// One finished operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) direction: Direction,
    pub(crate) form: Form,
    pub(crate) device: i32,
    pub(crate) way: Way,
    pub(crate) unaligned: bool,
    /// None if it failed.
    pub(crate) moved: Option<u64>,
    pub(crate) microseconds: u64,
}

/// Sums over all operations of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Total {
    pub(crate) ok: u64,
    pub(crate) failed: u64,
    pub(crate) bytes: u64,
    pub(crate) direct_bytes: u64,
}

const NOTHING: Total = Total { ok: 0, failed: 0, bytes: 0, direct_bytes: 0 };

static TOTALS: Mutex<[Total; 2]> = Mutex::new([NOTHING; 2]);

/// Counts one operation.
pub(crate) fn record(operation: &Operation) {
    let mut totals = TOTALS.lock().unwrap_or_else(PoisonError::into_inner);
    let total = &mut totals[operation.direction as usize];
    match operation.moved {
        None => total.failed += 1,
        Some(bytes) => {
            total.ok += 1;
            total.bytes += bytes;
            total.direct_bytes += if operation.way == Way::Posix { 0 } else { bytes };
        }
    }
    drop(totals);
    statistics::record(operation);
}

/// The sums so far.
pub(crate) fn total(direction: Direction) -> Total {
    TOTALS.lock().unwrap_or_else(PoisonError::into_inner)[direction as usize]
}
