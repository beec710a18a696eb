//! The check among the ranks of one host that their loaders do it by themselves: each says what it feeds, and the next
//! one that disagrees is told.
//!
//! Loaders are compared with those that have the same name in the same job. A process may have several, for training and
//! validation say: the first of each process is compared with the first of every other, the second with the second,
//! and so on. That is by count and not by which are alive, since the ranks of a run are never quite at the same place:
//! one may have built its loader for the next epoch while another still has that of the last. A loader that only some of
//! the ranks build needs a name of its own.

mod registry;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use self::registry::{Folder, PREFIX, Registry, SLOT_BYTES};
use super::{Agreement, Rank};
use crate::{Error, Result};

/// How long a loader waits for the registry before it goes on unchecked.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same when it is dropped: what it leaves undone then, the next one does.
const PATIENCE_AT_END: Duration = Duration::from_millis(100);
/// No more bytes of a setting's name or value are shown.
const MAX_TEXT: usize = 200;

/// What came of entering a loader.
#[derive(Debug)]
pub(crate) enum Entered {
    /// It agrees with the others that are here so far, and those that come later are held to it.
    Checked(Registration),
    /// It was not compared with anyone; why, in words.
    NotChecked(String),
}

/// A loader that the other ranks of the host see, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Registration {
    registry: Registry,
    slot: u64,
    /// The process that entered: a forked child has a copy of this, and must leave everything as it is.
    process: u32,
}

/// What a loader says about itself, as JSON in its slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    rank: u32,
    world_size: u32,
    /// How many loaders of this name the process had entered before.
    number: u32,
    /// Tells processes apart, also those that have the same number in two pid namespaces.
    process: String,
    pid: u32,
    agreement: String,
    details: Vec<(String, String)>,
}

impl Registration {
    /// Compares a loader named `name` with those of the other ranks on this host, and enters it.
    ///
    /// `details` are the settings that `agreement` was made of, in words: they say what differs if something does.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if a loader of another rank does not agree, or another
    /// process has the same rank.
    pub(crate) fn enter(
        rank: &Rank,
        name: &str,
        agreement: Agreement,
        details: &[(String, String)],
    ) -> Result<Entered> {
        let temporary = std::env::temp_dir();
        let bases = [Path::new("/dev/shm"), &temporary, Path::new("/tmp")];
        Registration::enter_in(&bases, rank, name, agreement, details)
    }

    /// `bases` are the folders in which the registry may be; the first that will do is taken.
    fn enter_in(
        bases: &[&Path],
        rank: &Rank,
        name: &str,
        agreement: Agreement,
        details: &[(String, String)],
    ) -> Result<Entered> {
        match Registration::try_enter(bases, rank, name, agreement, details) {
            Ok(registration) => Ok(Entered::Checked(registration)),
            Err(Refused::NotChecked(why)) => Ok(Entered::NotChecked(why)),
            Err(Refused::Disagrees(error)) => Err(error),
        }
    }

    fn try_enter(
        bases: &[&Path],
        rank: &Rank,
        name: &str,
        agreement: Agreement,
        details: &[(String, String)],
    ) -> Result<Registration, Refused> {
        if rank.world_size() == 1 {
            return Err("there is only one rank".to_string().into());
        }
        let Some(job) = rank.job() else {
            return Err("the job has no name by which the ranks of a host could find each other"
                .to_string()
                .into());
        };
        let count = Count::take(rank.rank(), job, name)?;
        let mine = Entry {
            rank: rank.rank(),
            world_size: rank.world_size(),
            number: count.number,
            process: count.process.clone(),
            pid: std::process::id(),
            agreement: agreement.to_string(),
            details: details.iter().map(|(key, value)| (shortened(key), shortened(value))).collect(),
        };
        let mut registry = open(bases, &file_name(job, name))?;
        let entered = registry.alone(PATIENCE, |table| -> Result<u64, Refused> {
            let others = table.others().map_err(|error| format!("cannot read who is there: {error}"))?;
            let others: Vec<Entry> = others.iter().filter_map(|content| Entry::from_slot(content)).collect();
            mine.compare(&others)?;
            Ok(table.take(&mine.to_slot()).map_err(|error| format!("cannot enter the loader: {error}"))?)
        })?;
        match entered {
            Ok(slot) => Ok(Registration { registry, slot, process: mine.pid }),
            Err(refused) => {
                // One that is not checked is a loader all the same; one that disagrees is none, and the next try has
                // the number that the loader has in the other ranks.
                if matches!(refused, Refused::Disagrees(_)) {
                    count.give_back();
                }
                Err(refused)
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        let slot = self.slot;
        if self.registry.alone(PATIENCE_AT_END, |table| table.leave(slot)).is_err() {
            self.registry.release(slot);
        }
    }
}

/// Why a loader was not entered.
#[derive(Debug)]
enum Refused {
    Disagrees(Error),
    NotChecked(String),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused::Disagrees(error)
    }
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Refused::NotChecked(why)
    }
}

/// Opens the registry in the first folder that will do; for ranks with the same folders it is the same.
fn open(bases: &[&Path], name: &str) -> Result<Registry, String> {
    let mut reasons: Vec<String> = Vec::new();
    for base in bases {
        let opened = Folder::open(base).and_then(|folder| {
            folder.sweep();
            Registry::open(folder, name)
        });
        match opened {
            Ok(registry) => return Ok(registry),
            Err(why) if reasons.contains(&why) => {}
            Err(why) => reasons.push(why),
        }
    }
    Err(format!("there is no folder for it: {}", reasons.join("; ")))
}

/// Names a file by what all who share it have in common.
fn file_name(job: &str, name: &str) -> String {
    let mut hash = Sha256::new();
    for text in ["gpufeed registry 1", job, name] {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    let digits: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{PREFIX}{digits}")
}

impl Entry {
    /// Checks what the others say against this loader's own.
    fn compare(&self, others: &[Entry]) -> Result<()> {
        let same_rank = |other: &&Entry| other.rank == self.rank && other.process != self.process;
        if let Some(other) = others.iter().find(same_rank) {
            return Err(Error::argument(format!(
                "another process on this host ({}) is rank {} of {} as well; each process that feeds a run needs a \
                 rank of its own, and one that is no part of it is rank 0 of 1",
                other.pid, other.rank, other.world_size
            )));
        }
        let mut differing: Vec<&Entry> = others
            .iter()
            .filter(|other| other.number == self.number && other.agreement != self.agreement)
            .collect();
        differing.sort_by_key(|other| other.rank);
        let Some((first, more)) = differing.split_first() else { return Ok(()) };
        let more = match more.len() {
            0 => String::new(),
            1 => " (and another rank disagrees as well)".into(),
            n => format!(" (and {n} other ranks disagree as well)"),
        };
        Err(Error::argument(format!(
            "rank {} of this host {}{more}; all ranks of a run must feed from the same data in the same order",
            first.rank,
            self.difference(first)
        )))
    }

    /// In words, after the rank of the other.
    fn difference(&self, other: &Entry) -> String {
        let find = |entry: &'_ Entry, key: &str| {
            entry.details.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone())
        };
        let mut keys: Vec<&String> = self.details.iter().chain(&other.details).map(|(key, _)| key).collect();
        let mut seen = HashSet::new();
        keys.retain(|key| seen.insert(*key) && find(self, key) != find(other, key));
        if keys.is_empty() {
            let dataset = |entry: &Entry| entry.agreement.get(..16).map(str::to_string);
            let what = if dataset(self) == dataset(other) { "in another order" } else { "from other data" };
            return format!("feeds {what} than this rank ({})", self.rank);
        }
        let all = |entry: &Entry| {
            let words: Vec<String> = keys
                .iter()
                .map(|key| match find(entry, key) {
                    Some(value) => format!("{key} {value}"),
                    None => format!("no {key}"),
                })
                .collect();
            words.join(", ")
        };
        format!("reads with {}, this rank ({}) with {}", all(other), self.rank, all(self))
    }

    /// Leaves out the last details where not all of them fit.
    fn to_slot(&self) -> Vec<u8> {
        let mut entry = self.clone();
        loop {
            let content = serde_json::to_vec(&entry).unwrap_or_default();
            if content.len() <= SLOT_BYTES || entry.details.pop().is_none() {
                return content;
            }
        }
    }

    /// What cannot be understood was written by nobody who could be compared with.
    fn from_slot(content: &[u8]) -> Option<Entry> {
        serde_json::from_slice(content)
            .ok()
            .filter(|entry: &Entry| entry.agreement.parse::<Agreement>().is_ok())
    }
}

/// Cut to what a message has room for.
fn shortened(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.into();
    }
    let end = (0..=MAX_TEXT).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    format!("{}...", &text[..end])
}

/// The number of a loader among those of its rank, job and name in this process.
#[derive(Debug)]
struct Count {
    key: (u32, String, String),
    number: u32,
    process: String,
}

/// This process, as its loaders know it.
#[derive(Debug)]
struct Process {
    pid: u32,
    id: String,
    entered: HashMap<(u32, String, String), u32>,
}

static PROCESS: Mutex<Option<Process>> = Mutex::new(None);

impl Process {
    /// Runs `work` with it. A process that was forked while another thread was in here has it locked for ever; so this
    /// waits only for so long.
    fn with<T>(work: impl FnOnce(&mut Process) -> T) -> Result<T, String> {
        let end = Instant::now() + PATIENCE;
        let mut guard = loop {
            match PROCESS.try_lock() {
                Ok(guard) => break guard,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() >= end => {
                    return Err("the process was forked while it built a loader".into());
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let pid = std::process::id();
        match &mut *guard {
            Some(process) if process.pid == pid => Ok(work(process)),
            // The first loader, of the process or of a forked child, which is a process of its own.
            other => {
                let mut random = [0; 16];
                File::open("/dev/urandom")
                    .and_then(|mut source| source.read_exact(&mut random))
                    .map_err(|error| format!("/dev/urandom cannot be read: {error}"))?;
                let id = random.iter().map(|byte| format!("{byte:02x}")).collect();
                Ok(work(other.insert(Process { pid, id, entered: HashMap::new() })))
            }
        }
    }
}

impl Count {
    fn take(rank: u32, job: &str, name: &str) -> Result<Count, String> {
        let key = (rank, job.to_string(), name.to_string());
        Process::with(|process| {
            let entered = process.entered.entry(key.clone()).or_default();
            let number = *entered;
            *entered += 1;
            Count { key, number, process: process.id.clone() }
        })
    }

    fn give_back(self) {
        // If that fails, the next loader is compared with no other.
        let _ = Process::with(|process| {
            if let Some(entered) = process.entered.get_mut(&self.key).filter(|n| **n == self.number + 1) {
                *entered = self.number;
            }
        });
    }
}

#[cfg(test)]
mod tests;
