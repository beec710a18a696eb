//! Reads by io_uring, driven by the thread that made it: one ring, and a polled one beside it where that was chosen.

mod ring;

use std::io;
use std::os::fd::RawFd;

pub(crate) use ring::NoRing;
use ring::{Finds, Ring};

use super::{Completion, ReadFailure, Reader, Region, Request};
use crate::storage::FileObserver;

/// One or two rings.
///
/// Made and used by one thread only.
#[derive(Debug)]
pub(crate) struct UringReader {
    ring: Ring,
    /// For the reads that name a drive to be polled.
    polled: Option<PolledRing>,
    depth: u32,
    notes: Vec<String>,
}

/// The ring whose completions are polled for.
#[derive(Debug)]
struct PolledRing {
    ring: Ring,
    /// The reads that it has in flight, by token: what it cannot do goes to the other ring.
    reads: Vec<Option<Request>>,
    /// Reads that go to the other ring now. Empty between calls that succeed.
    turned_away: Vec<Request>,
    /// Drives, by number, that have answered that they cannot be polled.
    refused: Vec<bool>,
    /// Reads that were completed here.
    count: u64,
    /// What the ring had to do without from the beginning, which is of no account when it goes.
    made_with: Vec<String>,
}

impl UringReader {
    /// Makes a ring for `depth` reads in flight.
    pub(crate) fn new(depth: u32, regions: &[Region], files: u32) -> Result<Self, NoRing> {
        let mut reader = UringReader {
            ring: Ring::new(depth, Finds::ByInterrupt)?,
            polled: None,
            depth,
            notes: Vec::new(),
        };
        reader.ring.register(regions, files, &mut reader.notes);
        Ok(reader)
    }

    /// As `new`, with a polled ring beside it for reads of `drives` drives. Each of the two registers the regions, so they
    /// count twice as locked memory; if that is enough for one of the rings only, then for the polled one if it is `first`.
    pub(crate) fn polling(
        depth: u32,
        regions: &[Region],
        files: u32,
        (drives, first): (usize, bool),
    ) -> Result<Self, NoRing> {
        let (mut ring, mut notes) = (Ring::new(depth, Finds::ByPolling)?, Vec::new());
        if first {
            ring.register(regions, files, &mut notes);
        }
        let mut reader = UringReader::new(depth, regions, files)?;
        if !first {
            ring.register(regions, files, &mut notes);
        }
        reader.notes.extend(notes.iter().cloned());
        reader.polled = Some(PolledRing {
            ring,
            reads: vec![None; depth as usize],
            turned_away: Vec::with_capacity(depth as usize),
            refused: vec![false; drives],
            count: 0,
            made_with: notes,
        });
        Ok(reader)
    }

    /// Gives up the polled ring. Nothing may be in flight that is still to be reaped.
    pub(crate) fn stop_polling(&mut self) {
        if let Some(polled) = self.polled.take() {
            self.notes.retain(|note| !polled.made_with.contains(note));
        }
    }

    /// Whether there is a polled ring, and no drive has refused to be polled.
    pub(crate) fn polls(&self) -> bool {
        self.polled.as_ref().is_some_and(|polled| !polled.refused.contains(&true))
    }

    /// Counts the reads that are polled for from 0 again.
    pub(crate) fn forget_polled_reads(&mut self) {
        self.polled.iter_mut().for_each(|polled| polled.count = 0);
    }
}

impl PolledRing {
    fn is_busy(&self) -> bool {
        self.ring.in_flight() > 0 || !self.turned_away.is_empty()
    }

    /// Takes the completions that are there; reads that cannot be polled for become `turned_away`.
    fn take(&mut self, done: &mut Vec<Completion>, notes: &mut Vec<String>) {
        let PolledRing { ring, reads, turned_away, refused, count, .. } = self;
        ring.take(|token, result| {
            let read = reads[token as usize].take();
            match (-result, read) {
                // This is about polling. Whether the file can be read directly at all, the other ring tells.
                (libc::EOPNOTSUPP, Some(read)) => {
                    if let Some(refused) = read.poll.and_then(|drive| refused.get_mut(drive as usize))
                        && !std::mem::replace(refused, true)
                    {
                        notes.push(format!(
                            "a drive cannot be polled though it has polled queues; its reads are completed by interrupts: {}",
                            io::Error::from_raw_os_error(libc::EOPNOTSUPP)
                        ));
                    }
                    turned_away.push(read);
                }
                // The polled queues are full. A polled read never waits for room in them; some kernels start it again from
                // a thread of their own, others leave that to us.
                (libc::EAGAIN, Some(read)) => turned_away.push(read),
                _ => {
                    *count += 1;
                    done.push(completion(token, result));
                }
            }
        });
    }
}

fn completion(token: u32, result: i32) -> Completion {
    let result = u32::try_from(result).map_err(|_| ReadFailure::Errno(-result));
    Completion { token, result, gathered: false, way: None }
}

impl FileObserver for UringReader {
    fn opened(&mut self, index: u32, fd: RawFd) {
        self.ring.update(index, fd, &mut self.notes);
        if let Some(polled) = &mut self.polled {
            polled.ring.update(index, fd, &mut self.notes);
        }
    }

    fn closing(&mut self, index: u32) {
        self.opened(index, -1);
    }
}

impl Reader for UringReader {
    unsafe fn start(&mut self, request: Request) -> io::Result<()> {
        // The kernel cannot reach a GPU's memory, and is not asked to.
        let dest = request.dest.host().ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
        if let (Some(polled), Some(drive)) = (&mut self.polled, request.poll)
            && !polled.refused[drive as usize]
        {
            debug_assert!(polled.ring.in_flight() < self.depth);
            // SAFETY: the caller of `start` keeps destination and descriptor valid until the completion is reaped.
            unsafe { polled.ring.push(&request, dest, false) }?;
            polled.reads[request.token as usize] = Some(request);
            return Ok(());
        }
        debug_assert!(self.ring.in_flight() < self.depth);
        // SAFETY: as above.
        unsafe { self.ring.push(&request, dest, false) }
    }

    fn reap(&mut self, block: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        let before = done.len();
        loop {
            let (mut looked, mut polling) = (false, false);
            if let Some(polled) = self.polled.as_mut().filter(|polled| polled.is_busy()) {
                // Nobody else finds these: each look is a call that asks the drive. It is told not to wait, since it would do
                // so without an eye on the other ring, and for as long as the drive says nothing.
                polled.ring.enter(0)?;
                polled.take(done, &mut self.notes);
                while let Some(read) = polled.turned_away.last() {
                    let dest = read.dest.host().unwrap_or_default();
                    // SAFETY: that the read is over was not told to the caller of `start`, whose promise still holds. The
                    // descriptor is the one that was opened for direct reads, also where another file has its place by now.
                    unsafe { self.ring.push(read, dest, true) }?;
                    polled.turned_away.pop();
                }
                (looked, polling) = (true, polled.ring.in_flight() > 0);
            }
            if self.ring.in_flight() > 0 || !looked {
                // With reads in both rings it is not slept in either.
                let wait = block && !polling && done.len() == before;
                self.ring.enter(usize::from(wait))?;
                self.ring.take(|token, result| done.push(completion(token, result)));
            }
            // It can return early with nothing completed (a signal), so the queues decide, not it.
            if !block || done.len() > before {
                return Ok(());
            }
            std::hint::spin_loop();
        }
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn polled(&self) -> u64 {
        self.polled.as_ref().map_or(0, |polled| polled.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Address;
    use crate::memory::HostMapping;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    const BLOCK: u32 = 4096;
    const BLOCKS: u32 = 64;

    /// A file on a real disk, whose blocks are filled with their numbers, opened for direct and for buffered reads.
    fn files() -> (tempfile::TempDir, [File; 2]) {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("a");
        let bytes: Vec<u8> = (0..BLOCKS).flat_map(|block| [block as u8; BLOCK as usize]).collect();
        std::fs::write(&path, bytes).unwrap();
        let buffered = File::open(&path).unwrap();
        buffered.sync_all().unwrap();
        let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path);
        (folder, [direct.unwrap_or_else(|_| File::open(&path).unwrap()), buffered])
    }

    /// A reader with as much in flight as the file has blocks, which are to be polled for or not as `polls` says, and the
    /// memory that it reads to.
    fn start(
        reader: &mut UringReader,
        memory: &HostMapping,
        files: &[File; 2],
        polls: fn(u32) -> Option<u32>,
    ) {
        for token in 0..BLOCKS {
            // The one that is read through the page cache cannot be polled for on any machine.
            let file = u32::from(token % 4 == 3);
            let request = Request {
                token,
                file,
                fd: files[file as usize].as_raw_fd(),
                offset: u64::from(token * BLOCK),
                dest: Address::Host(memory.as_ptr()).plus((token * BLOCK) as usize),
                len: BLOCK,
                region: 0,
                poll: polls(token),
                cached: false,
                handle: 0,
                gather: None,
            };
            // SAFETY: each read has a block of the memory to itself, which outlives the reader, as do the files.
            unsafe { reader.start(request) }.unwrap();
        }
    }

    fn reader(memory: &HostMapping, files: &[File; 2]) -> Option<UringReader> {
        let regions = [Region { start: Address::Host(memory.as_ptr()), len: memory.len() }];
        match UringReader::polling(BLOCKS, &regions, 2, (2, true)) {
            Ok(mut reader) => {
                (0..2).for_each(|place| reader.opened(place, files[place as usize].as_raw_fd()));
                Some(reader)
            }
            Err(NoRing(why)) => {
                eprintln!("skipped: {why}");
                None
            }
        }
    }

    #[test]
    fn reads_in_both_rings_bring_the_bytes_of_the_file_each_once() {
        let (_folder, files) = files();
        let ways: [fn(u32) -> Option<u32>; 4] =
            [|_| Some(0), |token| (token % 2 == 0).then_some(0), |token| Some(token % 2), |_| None];
        for polls in ways {
            let memory = HostMapping::new((BLOCKS * BLOCK) as usize).unwrap();
            let Some(mut reader) = reader(&memory, &files) else { return };
            for _ in 0..3 {
                start(&mut reader, &memory, &files, polls);
                let mut done = Vec::new();
                while done.len() < BLOCKS as usize {
                    let before = done.len();
                    reader.reap(true, &mut done).unwrap();
                    assert!(done.len() > before, "it returned with nothing");
                }
                let mut tokens: Vec<u32> = done.iter().map(|it| it.token).collect();
                tokens.sort_unstable();
                assert!(tokens.into_iter().eq(0..BLOCKS));
                for it in done {
                    assert_eq!(it.result.ok(), Some(BLOCK), "{}", it.token);
                    let start = it.token * BLOCK;
                    // SAFETY: the read has landed, and nobody else uses the memory.
                    let block = unsafe {
                        std::slice::from_raw_parts(memory.as_ptr().add(start as usize), BLOCK as usize)
                    };
                    assert!(block.iter().all(|byte| u32::from(*byte) == it.token));
                }
                // SAFETY: nothing is in flight.
                unsafe { memory.as_ptr().write_bytes(0xff, memory.len()) };
            }
            assert!(reader.polled() <= 3 * u64::from(BLOCKS));
        }
    }

    #[test]
    fn a_drive_that_refuses_to_be_polled_is_left_to_the_other_ring_with_one_note() {
        let (_folder, files) = files();
        let memory = HostMapping::new((BLOCKS * BLOCK) as usize).unwrap();
        let Some(mut reader) = reader(&memory, &files) else { return };
        assert!(reader.polls());
        for _ in 0..2 {
            start(&mut reader, &memory, &files, |token| (token % 4 == 3).then_some(1));
            let mut done = Vec::new();
            while done.len() < BLOCKS as usize {
                reader.reap(true, &mut done).unwrap();
            }
            assert!(done.iter().all(|it| it.result.is_ok()));
        }
        // The file was not opened for direct reads, which every kernel answers so.
        assert_eq!((reader.polls(), reader.polled()), (false, 0));
        let notes: Vec<_> = reader.notes().iter().filter(|it| it.contains("cannot be polled")).collect();
        assert_eq!(notes.len(), 1, "{notes:?}");
        let refused = &reader.polled.as_ref().unwrap().refused;
        assert_eq!(refused, &[false, true]);
    }

    #[test]
    fn a_ring_that_is_given_up_takes_its_notes_along_and_reads_go_on() {
        let (_folder, files) = files();
        let memory = HostMapping::new((BLOCKS * BLOCK) as usize).unwrap();
        let Some(mut reader) = reader(&memory, &files) else { return };
        let note = |text: &str| text.to_string();
        reader.notes.extend([note("of the first"), note("of the second")]);
        reader.polled.as_mut().unwrap().made_with.push(note("of the second"));
        reader.stop_polling();
        assert!(!reader.polls() && reader.notes().last() == Some(&note("of the first")));
        start(&mut reader, &memory, &files, |_| Some(0));
        let mut done = Vec::new();
        while done.len() < BLOCKS as usize {
            reader.reap(true, &mut done).unwrap();
        }
        assert!(done.iter().all(|it| it.result.as_ref().ok() == Some(&BLOCK)) && reader.polled() == 0);
    }

    #[test]
    fn a_reader_that_goes_waits_for_what_both_rings_have_in_flight() {
        let (_folder, files) = files();
        for reap in [false, true] {
            let memory = HostMapping::new((BLOCKS * BLOCK) as usize).unwrap();
            let Some(mut reader) = reader(&memory, &files) else { return };
            start(&mut reader, &memory, &files, |token| (token % 2 == 0).then_some(0));
            if reap {
                reader.reap(false, &mut Vec::new()).unwrap();
            }
            let both = (reader.ring.in_flight(), reader.polled.as_ref().unwrap().ring.in_flight());
            assert!(reap || both == (BLOCKS / 2, BLOCKS / 2), "{both:?}");
            drop(reader);
            for block in 0..BLOCKS {
                // SAFETY: nothing is in flight any more, and the block lies within the memory, which is this test's alone.
                let last = unsafe { memory.as_ptr().add((block * BLOCK + BLOCK - 1) as usize).read() };
                // One that the polled ring turned away has nobody left to read it.
                assert!(u32::from(last) == block || (block % 2 == 0 && last == 0), "{block}: {last}");
            }
        }
    }
}
