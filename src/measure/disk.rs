//! What the disk can give: a plain loop of direct reads over the same files, by threads, that looks at no byte.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::marks::mark;
use super::report::{Limit, Mark, Spread};
use super::run::rates;
use super::stop::Stop;
use crate::memory::HostMapping;
use crate::storage::DirectIo;
use crate::{Dataset, Error, Result};

/// The bytes of one read: enough for any disk to be busy with, and a multiple of any direct-I/O boundary.
const BLOCK: u64 = 1 << 20;
/// As many reads in flight as a loader has by default.
const THREADS: u64 = 16;
/// A limit is known by then; larger datasets are read in part.
pub(super) const LONGEST: Duration = Duration::from_secs(10);

/// What some way of reading gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reading {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

pub(super) fn method() -> String {
    format!("plain loop of direct reads of 1 MiB, {THREADS} threads")
}

/// Reads the dataset's files directly, front to back, for at most [`LONGEST`].
///
/// # Errors
/// A file cannot be read directly, in words.
pub(super) fn read_all(dataset: &Dataset, stop: &Stop) -> Result<Reading, String> {
    if let Some(first) = dataset.files().first() {
        let (file, _) = dataset.opener.open_regular(first.path(), 0).map_err(|error| error.to_string())?;
        if let DirectIo::Unsupported(why) = DirectIo::promised(&file) {
            return Err(why);
        }
    }
    // Number of the first block of each file, and of all blocks at the end.
    let mut starts = vec![0];
    for shard in dataset.files() {
        starts.push(starts[starts.len() - 1] + shard.identity().size.div_ceil(BLOCK));
    }
    let (next, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let blocks = starts[starts.len() - 1];
    let threads = THREADS.min(blocks).max(1);
    // One mapping, so that it has huge pages: a read into scattered small ones is cut up into many for the disk.
    let memory = HostMapping::new((threads * BLOCK) as usize).map_err(|error| error.to_string())?;
    // Numbers, since a raw pointer stays on its thread; each is one thread's own part.
    let buffers: Vec<usize> =
        (0..threads).map(|thread| memory.as_ptr() as usize + (thread * BLOCK) as usize).collect();

    let start = Instant::now();
    let read = |buffer: usize| -> Result<()> {
        let mut open: Option<(usize, File)> = None;
        loop {
            let block = next.fetch_add(1, Ordering::Relaxed);
            if block >= blocks || stop.asked() || start.elapsed() > LONGEST {
                return Ok(());
            }
            // Empty files share their start with the next one.
            let index = starts.partition_point(|&first| first <= block) - 1;
            let shard = &dataset.files()[index];
            let file = match &open {
                Some((known, file)) if *known == index => file,
                _ => {
                    let opened = dataset.opener.open_regular(shard.path(), libc::O_DIRECT)?.0;
                    &open.insert((index, opened)).1
                }
            };
            // SAFETY: the buffer is this thread's own part, of so many bytes, of a mapping that outlives the threads.
            let read = unsafe { pread(file, buffer as *mut u8, (block - starts[index]) * BLOCK) }
                .map_err(|e| Error::io(shard.path(), "cannot be read directly", e))?;
            bytes.fetch_add(read, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let read = &read;
        let threads: Vec<_> = buffers.iter().map(|&buffer| scope.spawn(move || read(buffer))).collect();
        // `read` does not panic; a thread that did would have read less, which is what is counted.
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
    })
    .map_err(|error| super::run::in_full(&error))?;
    Ok(Reading { bytes: bytes.into_inner(), seconds: start.elapsed().as_secs_f64() })
}

/// # Safety
/// `buffer` has room for a block, and nobody else uses that meanwhile.
unsafe fn pread(file: &File, buffer: *mut u8, offset: u64) -> io::Result<u64> {
    loop {
        // SAFETY: the descriptor is open, and the caller vouches for the buffer.
        let n =
            unsafe { libc::pread(file.as_raw_fd(), buffer.cast(), BLOCK as usize, offset as libc::off_t) };
        match u64::try_from(n) {
            Ok(n) => return Ok(n),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Puts several readings together; `None` if no rate can be told of any.
pub(super) fn limit(method: String, readings: &[Reading]) -> Option<Limit> {
    let values: Vec<f64> =
        readings.iter().filter_map(|it| rates(it.bytes, it.seconds)).map(|(_, gib)| gib).collect();
    let gib_per_s = Spread::of(&values)?;
    let mut marks: Vec<Mark> = super::marks::noisy(Some(&gib_per_s)).into_iter().collect();
    if let Some(short) = readings.iter().map(|it| it.seconds).min_by(f64::total_cmp).filter(|it| *it < 0.1) {
        marks.push(mark("short", format!("a reading took only {:.0} ms", short * 1e3)));
    }
    Some(Limit { method, gib_per_s, marks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

    #[test]
    fn the_plain_loop_reads_every_byte_of_every_file() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let sizes = [3 << 20, 4096, (1 << 20) + 512 * 3];
        for (i, size) in sizes.iter().enumerate() {
            std::fs::write(folder.path().join(format!("{i}.bin")), vec![7u8; *size]).unwrap();
        }
        let shards = format!("{}/*.bin", folder.path().display());
        let dataset = Dataset::builder().records("data", shards.as_str(), Dtype::U8, &[512]).build().unwrap();
        match read_all(&dataset, &Stop::new()) {
            Ok(reading) => assert_eq!(reading.bytes, sizes.iter().sum::<usize>() as u64),
            Err(why) => eprintln!("skipped: {why}"),
        }
    }

    #[test]
    fn a_limit_that_cannot_be_told_is_none() {
        assert_eq!(limit(String::new(), &[]), None);
        assert_eq!(limit(String::new(), &[Reading { bytes: 4096, seconds: 0.0 }]), None);
        let one = limit(String::new(), &[Reading { bytes: 1 << 30, seconds: 0.5 }]).unwrap();
        assert_eq!((one.gib_per_s.median, one.marks.len()), (2.0, 0));
    }
}
