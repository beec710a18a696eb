//! Device memory to files, for checkpoints: whole or not at all.

mod writers;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::{Backend, BytesByWay, Chosen, Wanted, Way, choose};
use crate::cufile::{FileHandle, RegisteredBuffer};
use crate::memory::DeviceBuffer;
use crate::storage::{DirectIo, refuses_direct};
use crate::{Error, ErrorKind, Result};
use writers::Part;

/// How a [`CheckpointFile`] is written.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    backend: Backend,
    require_gds: bool,
    queue_depth: u32,
    io_bytes: usize,
}

impl Default for WriteOptions {
    fn default() -> Self {
        WriteOptions { backend: Backend::Auto, require_gds: false, queue_depth: 8, io_bytes: 4 << 20 }
    }
}

impl WriteOptions {
    /// The best way that works, with 8 writes of 4 MiB in flight.
    pub fn new() -> Self {
        WriteOptions::default()
    }

    /// The way to write; the names are those for reading, and `pread` stands for `pwrite`. Default: [`Backend::Auto`].
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Whether anything but GDS that is really direct is an error. Default: no.
    #[must_use]
    pub fn require_gds(mut self, require: bool) -> Self {
        self.require_gds = require;
        self
    }

    /// Writes in flight at once, from 1 to 256. Default: 8.
    #[must_use]
    pub fn queue_depth(mut self, writes: u32) -> Self {
        self.queue_depth = writes;
        self
    }

    /// The most bytes of one write: at least 4096, rounded up to whole 4096, and at most 1 GiB. Default: 4 MiB.
    #[must_use]
    pub fn io_bytes(mut self, bytes: usize) -> Self {
        self.io_bytes = bytes;
        self
    }
}

/// A file that appears under its name when it is whole.
///
/// It is written under a temporary name in the same folder. [`commit`](CheckpointFile::commit) makes it durable and
/// gives it its name, in one step that replaces what was there; a drop before that removes it, and what was there
/// stays. Ranges may be written in any order and at any place; the file grows as needed, and what is never written is
/// zeros.
///
/// ```no_run
/// use gpufeed::{CheckpointFile, Device, DeviceBuffer, WriteOptions};
///
/// let weights = DeviceBuffer::new(Device::Cuda(0), 1 << 30)?;
/// let mut file = CheckpointFile::create("model.bin", WriteOptions::new())?;
/// file.write_at(0, &weights, 0..weights.len())?;
/// let ways = file.commit()?;
/// # Ok::<(), gpufeed::Error>(())
/// ```
#[derive(Debug)]
pub struct CheckpointFile {
    path: PathBuf,
    temporary: PathBuf,
    /// For what does not lie on boundaries, and everything where direct I/O does not work.
    buffered: File,
    /// For whole blocks, with the size of a block.
    direct: Option<(File, u64)>,
    options: WriteOptions,
    /// How buffers of a device (`None`: the host) are written. It keeps cuFile's driver open from range to range.
    chosen: Option<(Option<u32>, Chosen)>,
    ways: BytesByWay,
    notes: Vec<String>,
    committed: bool,
}

impl CheckpointFile {
    /// Creates the file under a temporary name.
    ///
    /// # Errors
    /// `InvalidArgument` for a path without a file name or options out of range; `NotFound` or `Io` if the folder is
    /// not there or cannot be written to.
    pub fn create(path: impl AsRef<Path>, mut options: WriteOptions) -> Result<CheckpointFile> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let path = path.as_ref();
        if !(1..=256).contains(&options.queue_depth) {
            let what = format!("the queue depth is {}; it must be from 1 to 256", options.queue_depth);
            return Err(Error::argument(what));
        }
        if !(4096..=1 << 30).contains(&options.io_bytes) {
            let what =
                format!("a write of {} bytes is out of range; from 4096 to 1 GiB will do", options.io_bytes);
            return Err(Error::argument(what));
        }
        options.io_bytes = options.io_bytes.next_multiple_of(4096);
        let Some(name) = path.file_name() else {
            return Err(Error::argument(format!("{}: it names no file", path.display())));
        };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        hidden.push(format!(".{}-{number}.tmp", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let open = |create: bool, flags: i32| {
            let mut open = std::fs::OpenOptions::new();
            open.read(true).write(true).create_new(create).custom_flags(flags).open(&temporary)
        };
        let buffered = open(true, 0).map_err(|e| Error::io(&temporary, "cannot create the file", e))?;
        let direct = match (options.backend, DirectIo::promised(&buffered)) {
            (Backend::PageCache, _) | (_, DirectIo::Unsupported(_)) => None,
            (_, DirectIo::Supported(it)) if it.memory <= 4096 && it.offset <= 4096 => {
                // A block of 4096 suits every file system that takes smaller ones, and cuFile.
                open(false, libc::O_DIRECT).ok().map(|file| (file, 4096))
            }
            _ => None,
        };
        Ok(CheckpointFile {
            path: path.into(),
            temporary,
            buffered,
            direct,
            options,
            chosen: None,
            ways: BytesByWay::default(),
            notes: Vec::new(),
            committed: false,
        })
    }

    /// Writes a range of a buffer to byte `at` of the file, and returns when the system has taken it. What is queued on
    /// streams that write to the buffer is not waited for.
    ///
    /// # Errors
    /// `InvalidArgument` for a range beyond the buffer; `Unavailable` if the named backend does not work here; `Io` or
    /// `Device` if a write fails: the file is then of no use, and dropping it removes it.
    pub fn write_at(&mut self, at: u64, buffer: &DeviceBuffer, range: Range<usize>) -> Result<()> {
        let len = range
            .end
            .checked_sub(range.start)
            .ok_or_else(|| Error::argument("the range ends before it starts"))?;
        buffer.check(range.start, len)?;
        if at.checked_add(len as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Error::argument(format!("byte {at} is beyond what a file can have")));
        }
        let chosen = self.choice(buffer)?;
        // What lies on boundaries goes directly, the rest through the page cache.
        let block = self.direct.as_ref().map_or(1, |(_, block)| *block);
        let (first, last) =
            (at.next_multiple_of(block).min(at + len as u64), (at + len as u64) / block * block);
        let middle = if self.direct.is_some() && last > first { first..last } else { at..at };
        let place = |byte: u64| range.start + (byte - at) as usize;
        let whole = at..at + len as u64;
        for edge in [whole.start..middle.start, middle.end..whole.end] {
            let part = Part { file: &self.buffered, at: edge.start, buffer, from: place(edge.start) };
            writers::in_threads(&part, (edge.end - edge.start) as usize, &self.options)
                .map_err(|e| self.failed(e, &edge))?;
            self.ways.add(Way::of(instead(&chosen), false), edge.end - edge.start);
        }
        if middle.is_empty() {
            return Ok(());
        }
        let length = (middle.end - middle.start) as usize;
        let way = match self.direct_part(&chosen, middle.start, buffer, place(middle.start), length) {
            Ok(way) => way,
            // Some file systems refuse a direct write though they took the open.
            Err(error) if refused(&error) && !self.options.require_gds => {
                self.notes.push(format!("direct writes were refused, so the page cache was used: {error}"));
                let part = Part { file: &self.buffered, at: middle.start, buffer, from: place(middle.start) };
                writers::in_threads(&part, length, &self.options).map_err(|e| self.failed(e, &middle))?;
                Way::of(instead(&chosen), false)
            }
            Err(error) => return Err(self.failed(error, &middle)),
        };
        self.ways.add(way, length as u64);
        self.notes.dedup();
        Ok(())
    }

    /// The backend for a buffer; found out once for buffers of one device that follow each other.
    fn choice(&mut self, buffer: &DeviceBuffer) -> Result<Chosen> {
        let context = buffer.cuda().map(|memory| memory.context());
        let device = context.map(|context| context.ordinal());
        if let Some((known, chosen)) = &self.chosen
            && *known == device
        {
            return Ok(chosen.clone());
        }
        let wanted = Wanted {
            backend: self.options.backend,
            context,
            require_gds: self.options.require_gds,
            below_root: false,
            file_systems: &[],
        };
        let chosen = choose(wanted)?;
        self.chosen = Some((device, chosen.clone()));
        Ok(chosen)
    }

    /// Writes whole blocks by the chosen backend. Where cuFile refuses the file, threads do it, with a note.
    fn direct_part(
        &mut self,
        chosen: &Chosen,
        at: u64,
        buffer: &DeviceBuffer,
        from: usize,
        len: usize,
    ) -> Result<Way> {
        let Some((file, _)) = &self.direct else { return Err(Error::argument("there is no direct file")) };
        let part = Part { file, at, buffer, from };
        match (&chosen.gds, chosen.backend) {
            (Some((driver, route)), _) => {
                let file =
                    file.try_clone().map_err(|e| Error::io(&self.temporary, "cannot duplicate it", e))?;
                let handle = match FileHandle::register(driver, file, &self.temporary) {
                    Ok(handle) => handle,
                    Err(error) if !self.options.require_gds => {
                        self.notes.push(format!("the file is not written by cuFile: {error}"));
                        return writers::in_threads(&part, len, &self.options).map(|()| Way::PreadDirect);
                    }
                    Err(error) => return Err(error),
                };
                // Registration saves pinning for each write, and is not needed.
                let memory = RegisteredBuffer::new(driver, buffer);
                let memory = memory.or_else(|error| {
                    self.notes.push(format!("the buffer is not registered with cuFile: {error}"));
                    RegisteredBuffer::unregistered(driver, buffer)
                })?;
                let mut done = 0;
                while done < len {
                    let now = self.options.io_bytes.min(len - done);
                    match handle.write_at(at + done as u64, now, &memory, from + done)? {
                        0 => return Err(Error::new(ErrorKind::Io, "a cuFile write took no byte").by("gds")),
                        n => done += n,
                    }
                }
                Ok(Way::by_cufile(*route))
            }
            (None, Backend::Uring) => writers::by_uring(&part, len, &self.options).map(|()| Way::UringDirect),
            (None, _) => writers::in_threads(&part, len, &self.options).map(|()| Way::PreadDirect),
        }
    }

    fn failed(&self, error: Error, range: &Range<u64>) -> Error {
        error.at(&self.temporary).range(range.start, range.end - range.start)
    }

    /// What had to be done differently than asked, in words.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Makes the file durable (`fsync` of the file and of its folder) and gives it its name. Returns the way that the
    /// bytes took.
    ///
    /// # Errors
    /// `Io` if the file cannot be made durable or renamed; what was there under the name is then still there.
    pub fn commit(mut self) -> Result<BytesByWay> {
        self.buffered.sync_all().map_err(|e| Error::io(&self.temporary, "cannot make it durable", e))?;
        std::fs::rename(&self.temporary, &self.path)
            .map_err(|e| Error::io(&self.path, "cannot give the file its name", e))?;
        self.committed = true;
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|e| Error::io(folder, "cannot make the file's name durable", e))?;
        Ok(self.ways)
    }
}

/// The backend that does what the chosen one does not: whatever uses threads.
fn instead(chosen: &Chosen) -> Backend {
    match chosen.backend {
        Backend::PageCache => Backend::PageCache,
        _ => Backend::Pread,
    }
}

fn refused(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    source.and_then(std::io::Error::raw_os_error).is_some_and(refuses_direct)
}

impl Drop for CheckpointFile {
    fn drop(&mut self) {
        if !self.committed {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests;
