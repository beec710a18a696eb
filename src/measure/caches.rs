//! The page cache before a run: emptied of the dataset, or filled with it. What that did is looked at, not believed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use super::report::Cache;
use super::run::cached_share;
use super::stop::Stop;
use crate::storage::{evict_by, memory_file_system};
use crate::{Dataset, Error, Result};

/// Empties the page cache of everything that is not in use, for root.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
/// Pages that are being read ahead or written back stay for a moment.
const ATTEMPTS: u32 = 5;

/// How caches are dropped.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Dropping {
    /// Of the whole machine, too.
    pub(super) drop_caches: bool,
}

impl Dropping {
    pub(super) fn names(self) -> Vec<String> {
        let mut names = vec!["posix_fadvise".to_string()];
        if self.drop_caches {
            names.push("drop_caches".into());
        }
        names
    }

    /// Whether this process may.
    pub(super) fn check(self) -> Result<()> {
        if !self.drop_caches {
            return Ok(());
        }
        let opened = File::options().write(true).open(DROP_CACHES);
        opened.map(|_| ()).map_err(|e| Error::io(Path::new(DROP_CACHES), "only root can drop all caches", e))
    }
}

/// Makes the state that a run wants, as far as it can be made.
pub(super) fn prepare(dataset: &Dataset, cache: Cache, dropping: Dropping, stop: &Stop) -> Result<()> {
    match cache {
        Cache::Cold => {
            empty(dataset, stop)?;
            if dropping.drop_caches {
                let control = File::options().write(true).open(DROP_CACHES);
                let done = control.and_then(|mut file| file.write_all(b"1"));
                done.map_err(|e| Error::io(Path::new(DROP_CACHES), "cannot drop the caches", e))?;
            }
            Ok(())
        }
        Cache::Warm => fill(dataset, stop),
    }
}

/// Takes the dataset's files out of the page cache. Dirty pages are written back first: they are no change to a file,
/// only on their way. Mapped pages stay.
pub(super) fn empty(dataset: &Dataset, stop: &Stop) -> Result<()> {
    if in_memory(dataset).is_some() {
        return Ok(());
    }
    for attempt in 0..ATTEMPTS {
        if cached_share(dataset).is_some_and(|share| share == 0.0) {
            break;
        }
        if attempt > 0 {
            std::thread::sleep(Duration::from_millis(10 << attempt));
        }
        for shard in dataset.files() {
            if stop.asked() {
                return Ok(());
            }
            let (file, _) = dataset.opener.open_regular(shard.path(), 0)?;
            // SAFETY: the descriptor is open; no memory is passed. A file system that cannot sync has nothing dirty.
            unsafe { libc::fdatasync(file.as_raw_fd()) };
            evict_by(&dataset.opener, shard.path())?;
        }
    }
    Ok(())
}

/// Reads the dataset's files through the page cache, once, unless all of them are there.
fn fill(dataset: &Dataset, stop: &Stop) -> Result<()> {
    if cached_share(dataset).is_some_and(|share| share >= 1.0) {
        return Ok(());
    }
    let mut buffer = vec![0u8; 1 << 20];
    for shard in dataset.files() {
        let (mut file, _) = dataset.opener.open_regular(shard.path(), 0)?;
        loop {
            if stop.asked() {
                return Ok(());
            }
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Error::io(shard.path(), "cannot read it into the page cache", error));
                }
            }
        }
    }
    Ok(())
}

/// The file system in memory that one of the files is on, by name.
pub(super) fn in_memory(dataset: &Dataset) -> Option<&'static str> {
    let mut devices = Vec::new();
    for shard in dataset.files() {
        let device = shard.identity().device;
        if devices.contains(&device) {
            continue;
        }
        devices.push(device);
        let name = dataset.opener.open_regular(shard.path(), 0).ok().and_then(|it| memory_file_system(&it.0));
        if name.is_some() {
            return name;
        }
    }
    None
}
