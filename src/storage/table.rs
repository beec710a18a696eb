//! The open files of a loader: a bounded set of descriptors, each opened the best way that its file allows.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use super::direct::{Alignment, DirectIo, refuses_direct};
use super::identity::FileIdentity;
use super::opener::{OpenError, twice_if_stale};
use super::pulse::{Call, Pulse};
use super::residency::residency_of;
use crate::dataset::Dataset;
use crate::{Error, ErrorKind, Result};

/// How a loader wants its files opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenPolicy {
    /// Around the page cache where the file system can.
    Direct,
    /// As `Direct`, but a shard that is in the page cache already is read from there.
    DirectUnlessCached,
    /// Through the page cache.
    Buffered,
}

/// A shard with at least this share in the page cache is read from there: the disk would be asked for data that is
/// in memory already, and direct I/O loses to a copy from memory by a factor.
const CACHED_FROM: f64 = 0.75;

/// How a file is read for the rest of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileMode {
    /// Whether reads go around the page cache.
    pub(crate) direct: bool,
    /// Whether the file was found in the page cache, so that reads will not wait for a disk.
    pub(crate) cached: bool,
    /// Offsets, lengths and memory addresses of reads are multiples of this: 1 for buffered reads.
    pub(crate) align: u32,
}

impl FileMode {
    const BUFFERED: FileMode = FileMode { direct: false, cached: false, align: 1 };
    const CACHED: FileMode = FileMode { direct: false, cached: true, align: 1 };
}

/// Why files were not read directly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PassedOver {
    pub(crate) reason: String,
    pub(crate) first: std::path::PathBuf,
    pub(crate) files: u64,
}

/// What a backend is told when descriptors come and go, so that it can register them with the kernel.
pub(crate) trait FileObserver {
    fn opened(&mut self, index: u32, fd: RawFd);
    fn closing(&mut self, index: u32);
}

#[derive(Debug)]
struct Entry {
    file: u32,
    handle: File,
    /// Reads that use the descriptor at the moment; it is not closed before this is 0.
    users: u32,
    /// Used since the clock hand last passed.
    recent: bool,
}

const CLOSED: u32 = u32::MAX;

/// A bounded set of open files, with the least recently used closed first (by the clock algorithm).
#[derive(Debug)]
pub(crate) struct FileTable {
    dataset: Arc<Dataset>,
    policy: OpenPolicy,
    /// Reads are never longer than this, so an alignment beyond it cannot be met.
    io_bytes: u32,
    /// The backend wants direct reads aligned to this, whatever the file system wants.
    least_align: u32,
    entries: Vec<Entry>,
    capacity: usize,
    hand: usize,
    /// For each file its place in `entries`, or `CLOSED`.
    place: Vec<u32>,
    /// For each file how it is read, once that has been found out in this epoch.
    modes: Vec<Option<FileMode>>,
    /// For each file whether it was opened, or looked at again, in this epoch.
    looked: Vec<bool>,
    /// What one real direct read showed, per device.
    proofs: HashMap<u64, DirectIo>,
    /// Descriptors that were replaced while reads still used them, and their places.
    retired: Vec<(u32, File)>,
    passed_over: Vec<PassedOver>,
    /// Which calls into storage are made here, for others to see.
    pulse: Arc<Pulse>,
}

impl FileTable {
    pub(crate) fn new(dataset: Arc<Dataset>, policy: OpenPolicy, io_bytes: u32, least_align: u32) -> Self {
        let files = dataset.files().len();
        FileTable {
            dataset,
            policy,
            io_bytes,
            least_align,
            entries: Vec::new(),
            capacity: descriptor_limit().min(files.max(1)),
            hand: 0,
            place: vec![CLOSED; files],
            modes: vec![None; files],
            looked: vec![false; files],
            proofs: HashMap::new(),
            retired: Vec::new(),
            passed_over: Vec::new(),
            pulse: Arc::new(Pulse::new(0)),
        }
    }

    /// Says there which calls into storage it makes.
    pub(crate) fn tells(&mut self, pulse: &Arc<Pulse>) {
        self.pulse = Arc::clone(pulse);
    }

    /// The most files that are open at once.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Why files were not read directly, so far.
    pub(crate) fn passed_over(&self) -> &[PassedOver] {
        &self.passed_over
    }

    /// Forgets how files are read, since what is in the page cache changes between epochs. No read may be in flight.
    ///
    /// No epoch delivers a file that was replaced, removed or written to before it began: each is opened anew when it is first
    /// used, or, where its descriptor is kept, looked at again by its name.
    pub(crate) fn start_epoch(&mut self, observer: &mut dyn FileObserver) {
        self.pulse.begin(Call::Close);
        self.retired.clear();
        self.looked.fill(false);
        if self.policy == OpenPolicy::DirectUnlessCached {
            while let Some(entry) = self.entries.pop() {
                observer.closing(self.entries.len() as u32);
                self.place[entry.file as usize] = CLOSED;
            }
            self.modes.fill(None);
            self.passed_over.clear();
        }
        self.pulse.end();
    }

    /// How `file` is read; opens it to find out, if need be.
    pub(crate) fn mode(&mut self, file: u32, observer: &mut dyn FileObserver) -> Result<FileMode> {
        match self.modes[file as usize] {
            Some(mode) => Ok(mode),
            None => {
                self.place_of(file, observer)?;
                // Opening a file settles its mode.
                Ok(self.modes[file as usize].unwrap_or(FileMode::BUFFERED))
            }
        }
    }

    /// Keeps `file` open until `release`. Returns its place, its descriptor and how it is read now.
    pub(crate) fn acquire(
        &mut self,
        file: u32,
        observer: &mut dyn FileObserver,
    ) -> Result<(u32, RawFd, FileMode)> {
        let place = self.place_of(file, observer)?;
        let entry = &mut self.entries[place as usize];
        entry.users += 1;
        entry.recent = true;
        Ok((place, entry.handle.as_raw_fd(), self.modes[file as usize].unwrap_or(FileMode::BUFFERED)))
    }

    pub(crate) fn release(&mut self, file: u32) {
        let place = self.place[file as usize];
        if let Some(entry) = self.entries.get_mut(place as usize) {
            entry.users = entry.users.saturating_sub(1);
            if entry.users == 0 && !self.retired.is_empty() {
                self.pulse.begin(Call::Close);
                self.retired.retain(|(known, _)| *known != place);
                self.pulse.end();
            }
        }
    }

    /// Reads `file` through the page cache from now on, since a direct read was refused. Its users stay valid.
    pub(crate) fn fall_back(
        &mut self,
        file: u32,
        reason: &str,
        observer: &mut dyn FileObserver,
    ) -> Result<RawFd> {
        let place = self.place_of(file, observer)?;
        if self.modes[file as usize].is_some_and(|mode| mode.direct) {
            let (path, identity) = self.facts(file);
            self.pulse.begin(Call::Open(file));
            let opened = self.dataset.opener.open_regular(path, 0);
            self.pulse.end();
            let (handle, now) = opened?;
            check_identity(path, identity, &FileIdentity::of(&now))?;
            self.pass_over(file, reason);
            self.modes[file as usize] = Some(FileMode::BUFFERED);
            observer.closing(place);
            observer.opened(place, handle.as_raw_fd());
            let old = std::mem::replace(&mut self.entries[place as usize].handle, handle);
            self.retired.push((place, old));
        }
        Ok(self.entries[place as usize].handle.as_raw_fd())
    }

    /// Opens `file` again, since a server does not know what the descriptor `stale` means any more. It has to be the file that was
    /// indexed. Its users stay valid.
    pub(crate) fn reopen(&mut self, file: u32, stale: RawFd, observer: &mut dyn FileObserver) -> Result<()> {
        let place = self.place_of(file, observer)?;
        // As long as it has users its number is no other's, so another read has had it opened again.
        if self.entries[place as usize].handle.as_raw_fd() != stale {
            return Ok(());
        }
        let handle = self.open(file)?;
        observer.closing(place);
        observer.opened(place, handle.as_raw_fd());
        let old = std::mem::replace(&mut self.entries[place as usize].handle, handle);
        self.retired.push((place, old));
        Ok(())
    }

    fn facts(&self, file: u32) -> (&std::path::Path, &FileIdentity) {
        let file = &self.dataset.files()[file as usize];
        (&file.path, &file.identity)
    }

    fn place_of(&mut self, file: u32, observer: &mut dyn FileObserver) -> Result<u32> {
        let place = self.place[file as usize];
        if place != CLOSED {
            if !self.looked[file as usize] {
                self.look_again(file)?;
            }
            self.entries[place as usize].recent = true;
            return Ok(place);
        }
        // A place is made first, so that the limit on descriptors holds during the open too.
        let free = self.make_room()?;
        let handle = self.open(file)?;
        let fd = handle.as_raw_fd();
        let entry = Entry { file, handle, users: 0, recent: true };
        let place = match free {
            Some(place) => {
                observer.closing(place);
                let old = std::mem::replace(&mut self.entries[place as usize], entry);
                self.place[old.file as usize] = CLOSED;
                self.pulse.begin(Call::Close);
                drop(old);
                self.pulse.end();
                place
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.place[file as usize] = place;
        self.looked[file as usize] = true;
        observer.opened(place, fd);
        Ok(place)
    }

    /// Finds out whether the name of a file that is kept open still means it, and nobody wrote to it. An open asks a file server
    /// for that, where a look at the status may be answered from what the client remembers.
    fn look_again(&mut self, file: u32) -> Result<()> {
        let (path, identity) = self.facts(file);
        self.pulse.begin(Call::Open(file));
        let opened = self.dataset.opener.open_regular(path, 0);
        self.pulse.end();
        check_identity(path, identity, &FileIdentity::of(&opened?.1))?;
        self.looked[file as usize] = true;
        Ok(())
    }

    /// `None`: there is room for one more. `Some(place)`: this one may be replaced.
    fn make_room(&mut self) -> Result<Option<u32>> {
        if self.entries.len() < self.capacity {
            return Ok(None);
        }
        // Two rounds: the first takes the marks away.
        for _ in 0..2 * self.entries.len() {
            self.hand = (self.hand + 1) % self.entries.len();
            let entry = &mut self.entries[self.hand];
            if entry.users == 0 && !std::mem::take(&mut entry.recent) {
                return Ok(Some(self.hand as u32));
            }
        }
        Err(Error::new(
            ErrorKind::Io,
            format!(
                "all of the {} files that may be open at once are in use; raise the limit (ulimit -n)",
                self.capacity
            ),
        ))
    }

    fn open(&mut self, file: u32) -> Result<File> {
        self.pulse.begin(Call::Open(file));
        let opened = twice_if_stale(|| self.open_once(file));
        self.pulse.end();
        opened
    }

    fn open_once(&mut self, file: u32) -> Result<File> {
        let settled = self.modes[file as usize];
        let dataset = Arc::clone(&self.dataset);
        let shard = &dataset.files()[file as usize];
        let (path, identity) = (shard.path.as_path(), &shard.identity);
        let buffered = || -> Result<File> {
            let (handle, now) = dataset.opener.open_regular(path, 0)?;
            check_identity(path, identity, &FileIdentity::of(&now))?;
            Ok(handle)
        };
        let want_direct = settled.map_or(self.policy != OpenPolicy::Buffered, |mode| mode.direct);
        if !want_direct {
            self.modes[file as usize] = Some(settled.unwrap_or(FileMode::BUFFERED));
            return buffered();
        }
        let (handle, now) = match dataset.opener.open_with(path, libc::O_DIRECT) {
            Ok(opened) => opened,
            Err(OpenError::Open(error)) if error.raw_os_error().is_some_and(refuses_direct) => {
                let handle = buffered()?;
                self.pass_over(file, &format!("the file system refuses to open it with O_DIRECT: {error}"));
                self.modes[file as usize] = Some(FileMode::BUFFERED);
                return Ok(handle);
            }
            Err(error) => return Err(dataset.opener.open_error(path, error)),
        };
        check_identity(path, identity, &FileIdentity::of(&now))?;
        if settled.is_some() {
            return Ok(handle);
        }
        let cached = self.policy == OpenPolicy::DirectUnlessCached
            && residency_of(&handle, 0..identity.size).is_ok_and(|r| r.fraction() >= CACHED_FROM);
        let (mode, reason) = if cached {
            (FileMode::CACHED, Some("it is in the page cache already".to_string()))
        } else {
            match self.direct_io(path, identity, &handle)? {
                DirectIo::Supported(Alignment { memory, offset }) => {
                    let align = memory.max(offset).max(self.least_align);
                    if !self.io_bytes.is_multiple_of(align) {
                        let reason = format!(
                            "direct I/O needs multiples of {align} bytes, I/Os are {}",
                            self.io_bytes
                        );
                        (FileMode::BUFFERED, Some(reason))
                    } else if memory > 4096 {
                        let reason =
                            format!("direct I/O needs memory aligned to {memory} bytes, above the page size");
                        (FileMode::BUFFERED, Some(reason))
                    } else {
                        (FileMode { direct: true, cached: false, align }, None)
                    }
                }
                DirectIo::Unsupported(reason) => (FileMode::BUFFERED, Some(reason)),
            }
        };
        let handle = if mode.direct { handle } else { buffered()? };
        if let Some(reason) = reason {
            self.pass_over(file, &reason);
        }
        self.modes[file as usize] = Some(mode);
        Ok(handle)
    }

    /// What the file promises, proven once per device by a real read. A file of its own kind on a proven device
    /// (compressed, encrypted) still falls back at its first refused read.
    fn direct_io(
        &mut self,
        path: &std::path::Path,
        identity: &FileIdentity,
        handle: &File,
    ) -> Result<DirectIo> {
        let promised = DirectIo::promised(handle);
        let DirectIo::Supported(alignment) = promised else { return Ok(promised) };
        match self.proofs.get(&identity.device) {
            Some(DirectIo::Supported(_)) => Ok(promised),
            Some(refused) => Ok(refused.clone()),
            None => {
                let proof = DirectIo::proven(handle, alignment).map_err(|e| {
                    Error::io(path, "a first direct read failed", e).range(0, alignment.offset.into())
                })?;
                self.proofs.insert(identity.device, proof.clone());
                Ok(proof)
            }
        }
    }

    fn pass_over(&mut self, file: u32, reason: &str) {
        match self.passed_over.iter_mut().find(|known| known.reason == reason) {
            Some(known) => known.files += 1,
            None => self.passed_over.push(PassedOver {
                reason: reason.into(),
                first: self.dataset.files()[file as usize].path.clone(),
                files: 1,
            }),
        }
    }
}

impl Drop for FileTable {
    fn drop(&mut self) {
        // What follows is that the files are closed.
        self.pulse.begin(Call::Close);
    }
}

fn check_identity(path: &std::path::Path, indexed: &FileIdentity, now: &FileIdentity) -> Result<()> {
    match indexed.difference(now) {
        None => Ok(()),
        Some(difference) => Err(Error::new(ErrorKind::Changed, difference).at(path)),
    }
}

/// At most a quarter of the descriptors that the process may have, and no more than 1024.
fn descriptor_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives through the call.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    if known { usize::try_from(limit.rlim_cur / 4).unwrap_or(1024).clamp(8, 1024) } else { 64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::OpenOptions;
    use std::fs;

    struct Nobody;

    impl FileObserver for Nobody {
        fn opened(&mut self, _: u32, _: RawFd) {}
        fn closing(&mut self, _: u32) {}
    }

    #[test]
    fn a_file_that_falls_back_to_the_page_cache_is_still_opened_below_the_root() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("root")).unwrap();
        fs::write(path("root/a.bin"), [7; 8192]).unwrap();
        let dataset = OpenOptions::new().record_bytes(8).root(path("root")).open(path("root/a.bin")).unwrap();
        let mut table = FileTable::new(Arc::new(dataset), OpenPolicy::Direct, 1 << 20, 1);
        if !table.mode(0, &mut Nobody).unwrap().direct {
            return eprintln!("skipped: there is no direct I/O here: {:?}", table.passed_over());
        }
        // The same file, so that only its place tells.
        fs::rename(path("root/a.bin"), path("b.bin")).unwrap();
        std::os::unix::fs::symlink("../b.bin", path("root/a.bin")).unwrap();
        let error = table.fall_back(0, "for a test", &mut Nobody).unwrap_err();
        assert_eq!(
            (error.kind(), error.path()),
            (ErrorKind::OutsideRoot, Some(&*path("root/a.bin"))),
            "{error}"
        );
    }
}
