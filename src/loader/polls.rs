//! Whether a loader polls for its reads, and the trial that decides it.

use std::time::{Duration, Instant};

use super::LoaderBuilder;
use super::staging::Staging;
use crate::backend::{Backend, Chosen, Polling, ReadFailure, Reader, Request, UringReader};
use crate::dataset::Dataset;
use crate::order::Shuffle;
use crate::storage::{Call, Drives, FileTable, Pulse};
use crate::{Error, ErrorKind, Result};

/// Whether the reads of a loader are polled for, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PollingReport {
    /// Whether any were; known at the end of each epoch.
    pub used: bool,
    /// How many.
    pub reads: u64,
    /// Why, or why not. Where a trial decided, with both of its figures.
    pub reason: String,
}

/// What is to become of polling, by the settings of a loader.
#[derive(Debug, Clone)]
pub(super) enum Polls {
    No(String),
    /// On these drives, by their numbers.
    Yes(Vec<bool>),
    /// If the trial says so.
    Try(Vec<bool>, Trial),
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) polls: bool,
    pub(super) reason: String,
    /// A trial decided.
    pub(super) tried: bool,
}

impl Verdict {
    pub(super) fn by_rule(polls: bool, reason: impl Into<String>) -> Verdict {
        Verdict { polls, reason: reason.into(), tried: false }
    }

    /// What there is to report after so many polled reads.
    pub(super) fn report(&self, reads: u64) -> PollingReport {
        let reason = match self.polls && reads == 0 {
            true => format!("{}, but no read was polled for so far", self.reason),
            false => self.reason.clone(),
        };
        PollingReport { used: reads > 0, reads, reason }
    }
}

/// Reads with and without polling, in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trial {
    /// Bytes of a read.
    len: u32,
    /// Reads in flight.
    depth: u32,
    /// Reads of one part: a round has one part with polling and one without.
    reads: u32,
}

const ROUNDS: u32 = 4;
/// The parts of all rounds, and one before them that does not count: drives sleep.
const PARTS: u32 = 2 * ROUNDS + 1;
/// A part reads so many bytes, if that keeps the queue full, or as many as come in so long.
const PART_BYTES: u64 = 1 << 20;
const PART_LASTS: Duration = Duration::from_millis(50);
/// A dataset smaller than so many trials is read without one.
const WORTH_IT: u64 = 64;
/// Faster by less than this is not worth a processor.
const MARGIN: f64 = 1.05;
/// No part begins later than this.
const LONGEST: Duration = Duration::from_millis(500);
/// A trial reads of so many files at most.
const MOST_FILES: usize = 32;

impl LoaderBuilder {
    /// Refuses polling that is demanded and cannot be.
    pub(super) fn check_polling(&self, chosen: &Chosen, drives: &Drives) -> Result<()> {
        if self.polling != Polling::Always {
            return Ok(());
        }
        let refuse = |why: String| {
            let what = format!("polling was asked for and cannot be: {why}");
            Err(Error::new(ErrorKind::Unavailable, what))
        };
        match (chosen.backend, drives.polled()) {
            (Backend::Uring, Ok(_)) => Ok(()),
            (Backend::Uring, Err(why)) => refuse(why),
            (other, _) => {
                refuse(format!("only the backend uring polls, and this one is {other}: {}", chosen.reason))
            }
        }
    }

    /// What the settings say of polling for a loader of this backend, queue depth and I/O size.
    pub(super) fn polls(&self, backend: Backend, drives: &Drives, (depth, io_bytes): (u32, u32)) -> Polls {
        let no = |why: &str| Polls::No(why.into());
        match self.polling {
            Polling::Never => return no("it was switched off"),
            Polling::Auto if self.backend != Backend::Auto => {
                return no("it was not asked for, and a trial is for the backend auto");
            }
            _ if backend != Backend::Uring => {
                return Polls::No(format!("the backend {backend} does not poll"));
            }
            _ => {}
        }
        let drives = match drives.polled() {
            Ok(drives) => drives,
            Err(why) => return Polls::No(why),
        };
        if self.polling == Polling::Always {
            return Polls::Yes(drives);
        }
        if self.limit_rate.is_some() {
            return no("reads are limited in their rate, so there is nothing to be gained");
        }
        let trial = Trial::new(usual_read(&self.dataset, self.shuffle, self.batch_size), depth, io_bytes);
        let all: u64 = self.dataset.files().iter().map(|file| file.identity().size).sum();
        if all < trial.bytes() * WORTH_IT {
            return Polls::No(format!(
                "the dataset's {all} bytes are too few for a trial, which would read {} of them",
                trial.bytes()
            ));
        }
        Polls::Try(drives, trial)
    }
}

/// The bytes that most reads of a loader ask for, as far as its I/O size allows.
fn usual_read(dataset: &Dataset, shuffle: Shuffle, batch_size: u64) -> u64 {
    let sample = dataset.columns().iter().map(|column| column.sample_bytes()).max().unwrap_or(0);
    match shuffle {
        Shuffle::Full => sample,
        Shuffle::Blocks { block, .. } => sample.saturating_mul(block),
        Shuffle::None => sample.saturating_mul(batch_size),
    }
}

/// A file that a trial reads of.
struct Open {
    file: u32,
    place: u32,
    fd: std::os::fd::RawFd,
    size: u64,
    align: u64,
    drive: u32,
}

impl Trial {
    fn new(usual: u64, depth: u32, io_bytes: u32) -> Trial {
        let len = usual.min(io_bytes.into()).next_multiple_of(4096).min(io_bytes.into()) as u32;
        let reads = (PART_BYTES / u64::from(len.max(1))).max(depth.into()) as u32;
        Trial { len, depth, reads }
    }

    /// The bytes that it reads.
    fn bytes(&self) -> u64 {
        u64::from(self.len) * u64::from(self.reads) * u64::from(PARTS)
    }

    /// Lets polling compete, on the loader's own files, into its own memory, which nobody uses yet: chunks whose regions
    /// begin with `region`.
    ///
    /// # Errors
    /// `Io` if the ring cannot be waited for; reads may be in flight then, which the drop of the reader waits for.
    pub(super) fn run(
        &self,
        reader: &mut UringReader,
        (files, pulse): (&mut FileTable, &Pulse),
        (staging, region): (&Staging, u32),
        (drives, polled): (&Drives, &[bool]),
        sizes: impl ExactSizeIterator<Item = u64>,
    ) -> Result<Verdict> {
        let open = match self.open(reader, files, (drives, polled), sizes) {
            Ok(open) => open,
            Err(error) => {
                return Ok(Verdict::by_rule(false, format!("a trial could not open its files: {error}")));
            }
        };
        let verdict = if open.is_empty() {
            Ok(Verdict::by_rule(false, "no file on a drive with polled queues is read directly"))
        } else {
            let (begun, mut part, mut failed) = (Instant::now(), 0, None);
            let verdict = compete(|polled| {
                part += 1;
                if begun.elapsed() > LONGEST {
                    return Ok(None);
                }
                let (rate, errno) =
                    self.part((reader, pulse), &open, (staging, region), (part - 1, polled))?;
                failed = failed.or(errno);
                Ok((errno.is_none() && (reader.polls() || !polled)).then_some(rate))
            });
            match (verdict, failed) {
                (Ok(_), Some(errno)) => {
                    let error = std::io::Error::from_raw_os_error(errno);
                    Ok(Verdict::by_rule(false, format!("a read of the trial failed: {error}")))
                }
                (Ok(_), None) if !reader.polls() => Ok(Verdict::by_rule(
                    false,
                    "the drive has polled queues and answers that it cannot be polled",
                )),
                (verdict, _) => verdict,
            }
        };
        open.iter().for_each(|it| files.release(it.file));
        reader.forget_polled_reads();
        verdict.map_err(|e| {
            Error::new(ErrorKind::Io, "waiting for the reads of a trial failed").by("uring").caused_by(e)
        })
    }

    /// Opens files on drives with polled queues, those that are read directly: all, or some that lie evenly among them.
    fn open(
        &self,
        reader: &mut UringReader,
        files: &mut FileTable,
        (drives, polled): (&Drives, &[bool]),
        sizes: impl ExactSizeIterator<Item = u64>,
    ) -> Result<Vec<Open>> {
        let fit = |(file, size): (usize, u64)| {
            (polled[drives.of(file as u32) as usize] && size >= self.len.into())
                .then_some((file as u32, size))
        };
        let all: Vec<(u32, u64)> = sizes.enumerate().filter_map(fit).collect();
        let most = MOST_FILES.min(files.capacity());
        let mut open = Vec::new();
        for &(file, size) in all.iter().step_by(all.len().div_ceil(most).max(1)) {
            match files.acquire(file, reader) {
                Ok((place, fd, mode)) if mode.direct => {
                    let (align, drive) = (mode.align.max(4096).into(), drives.of(file));
                    open.push(Open { file, place, fd, size, align, drive });
                }
                Ok(_) => files.release(file),
                Err(error) => {
                    open.iter().for_each(|it: &Open| files.release(it.file));
                    return Err(error);
                }
            }
        }
        Ok(open)
    }

    /// One part: how many bytes came in a second, and the code of a read that failed.
    fn part(
        &self,
        (reader, pulse): (&mut UringReader, &Pulse),
        open: &[Open],
        (staging, region): (&Staging, u32),
        (part, polled): (u32, bool),
    ) -> std::io::Result<(f64, Option<i32>)> {
        let mut tokens: Vec<u32> = (0..self.depth).collect();
        let mut done = Vec::with_capacity(tokens.len());
        let (mut started, mut landed, mut failed) = (0, 0, None);
        let begun = Instant::now();
        let mut go_on = true;
        while landed < started || go_on {
            while go_on {
                let Some(token) = tokens.pop() else { break };
                // The places of all parts lie between each other, so that none reads what another has read.
                let at = u64::from(started) * u64::from(PARTS) + u64::from(part);
                let it = &open[(at % open.len() as u64) as usize];
                let of_file = (u64::from(PARTS) * u64::from(self.reads)).div_ceil(open.len() as u64);
                let room = it.size - u64::from(self.len);
                let offset = u128::from(room) * u128::from(at / open.len() as u64) / u128::from(of_file);
                let request = Request {
                    token,
                    file: it.place,
                    fd: it.fd,
                    offset: offset as u64 / it.align * it.align,
                    dest: staging.start(token),
                    len: self.len,
                    region: region + token,
                    poll: polled.then_some(it.drive),
                    cached: false,
                    handle: 0,
                    gather: None,
                };
                pulse.start(token, it.file, request.offset, request.len);
                // SAFETY: the destination is the chunk with the token's number, of which there are at least `depth`, and of
                // which no other read has the token; chunks outlive the reader, which its caller drops before them; the
                // file is held open until the trial is over, when all reads have landed or the reader is dropped.
                unsafe { reader.start(request) }?;
                started += 1;
                go_on = started < self.reads;
            }
            pulse.begin(Call::Reads);
            let waited = reader.reap(true, &mut done);
            pulse.end();
            waited?;
            for completion in done.drain(..) {
                landed += 1;
                pulse.land(completion.token);
                tokens.push(completion.token);
                match completion.result {
                    Ok(_) | Err(ReadFailure::Errno(libc::EINTR | libc::EAGAIN)) => {}
                    Err(ReadFailure::Errno(errno)) => failed = Some(errno),
                    Err(_) => failed = Some(libc::EIO),
                }
            }
            go_on = go_on && failed.is_none() && begun.elapsed() < PART_LASTS;
        }
        let bytes = u64::from(self.len) * u64::from(landed);
        Ok((bytes as f64 / begun.elapsed().as_secs_f64().max(1e-9), failed))
    }
}

/// Has parts done with and without polling, in turn, until all rounds are done or a part is not, and compares the medians of
/// the bytes per second that it is told.
fn compete(mut part: impl FnMut(bool) -> std::io::Result<Option<f64>>) -> std::io::Result<Verdict> {
    let (mut polled, mut not) = (Vec::new(), Vec::new());
    if part(true)?.is_some() {
        for _ in 0..ROUNDS {
            let (Some(with), Some(without)) = (part(true)?, part(false)?) else { break };
            polled.push(with);
            not.push(without);
        }
    }
    let rounds = polled.len();
    if rounds < 2 {
        let why = format!("a trial of polling got too little done in {LONGEST:?}");
        return Ok(Verdict::by_rule(false, why));
    }
    let median = |mut rates: Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        (rates[(rates.len() - 1) / 2] + rates[rates.len() / 2]) / 2.0 / f64::from(1u32 << 30)
    };
    let (polled, not) = (median(polled), median(not));
    let polls = polled >= not * MARGIN;
    let much = if polls { "" } else { ", which is not enough of a difference" };
    let reason = format!(
        "a trial on its files read {polled:.3} GiB/s with polling and {not:.3} without, the medians of {rounds} rounds in turn{much}"
    );
    Ok(Verdict { polls, reason, tried: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict on parts that bring 1 GiB in so many milliseconds each, polled and not, the first one apart; `None` for one that is
    /// not done.
    fn verdict(parts: &[Option<u64>]) -> Verdict {
        let mut asked = Vec::new();
        let verdict = compete(|polled| {
            asked.push(polled);
            Ok(parts[asked.len() - 1].map(|took| f64::from(1u32 << 30) * 1e3 / took as f64))
        });
        let rounds = std::iter::once(true).chain([true, false].into_iter().cycle());
        assert!(asked.iter().copied().eq(rounds.take(asked.len())), "{asked:?}");
        verdict.unwrap()
    }

    #[test]
    fn polling_is_taken_if_it_is_better_by_a_clear_margin_and_both_figures_are_told() {
        let all = |polled, not| {
            let round = [Some(polled), Some(not)];
            verdict(&[&[Some(9999)][..], &round.repeat(4)].concat())
        };
        let won = all(100, 110);
        assert!(won.polls && won.tried && won.reason.contains("10.000 GiB/s with polling and 9.091 without"));
        for (polled, not) in [(100, 104), (100, 100), (110, 100)] {
            let lost = all(polled, not);
            assert!(!lost.polls && lost.tried && lost.reason.contains("4 rounds"), "{}", lost.reason);
        }
    }

    #[test]
    fn one_lucky_or_unlucky_part_decides_nothing() {
        let parts = |first| [9, first, 100, 100, 100, 100, 100, 100, 100].map(Some);
        assert!(!verdict(&parts(1)).polls);
        let parts = |first| [9, first, 200, 100, 200, 100, 200, 100, 200].map(Some);
        assert!(verdict(&parts(5000)).polls);
    }

    #[test]
    fn a_trial_that_is_cut_short_needs_two_rounds() {
        let two = [Some(1), Some(100), Some(200), Some(100), Some(200), None];
        let verdict_of_two = verdict(&[&two[..], &[None, None, None]].concat());
        assert!(verdict_of_two.polls && verdict_of_two.reason.contains("2 rounds"));
        let one = [Some(1), Some(100), Some(200), None, None, None, None, None, None];
        assert_eq!(verdict(&one).reason, "a trial of polling got too little done in 500ms");
        assert!(!verdict(&[None; 9]).polls);
    }

    #[test]
    fn a_trial_reads_as_the_loader_does_and_no_more_than_it_says() {
        let small = Trial::new(100, 16, 1 << 20);
        assert_eq!(small, Trial { len: 4096, depth: 16, reads: 256 });
        let large = Trial::new(u64::MAX / 2, 16, 1 << 20);
        assert_eq!(large, Trial { len: 1 << 20, depth: 16, reads: 16 });
        assert_eq!((small.bytes(), large.bytes()), (9 * (1 << 20), 9 * (16 << 20)));
        assert_eq!(Trial::new(5000, 4, 12 << 10).len, 8192);
    }
}
