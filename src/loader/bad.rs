//! Samples that cannot be read: found one by one, and left out if the caller wants that.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::flight::Flight;
use super::pipeline::Pipeline;
use super::plan::{Lot, PlannedRead, Target, for_each_io, window};
use super::ring::SlotInfo;
use crate::backend::BytesByWay;
use crate::dataset::Column;
use crate::{Error, ErrorKind, Result};

/// What becomes of samples that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BadSamples {
    /// The epoch ends with an error, after the batches before them.
    #[default]
    Error,
    /// They are left out: the rows that would have had them repeat the next sample of their batch that can be read, so
    /// batches keep their sizes and their number, on every rank. Each is reported. More than `limit` of them, counted
    /// over the life of the loader, or a batch without any sample that can be read, is an error after all.
    ///
    /// Only reads that the operating system fails make a sample bad. A shard that is missing, or is not the file that
    /// was indexed, is an error in any case.
    Skip {
        /// The most samples that may be bad.
        limit: u64,
    },
}

/// A sample that cannot be read, and was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadSample {
    /// Its number in the dataset.
    pub sample: u64,
    /// The column whose value cannot be read: the first one, if there are several.
    pub column: String,
    /// The shard.
    pub path: PathBuf,
    /// Its number in the shard.
    pub record: u64,
    /// What happened, with the place in the file.
    pub reason: String,
}

/// The bad samples that are known.
#[derive(Debug, Default)]
pub(super) struct BadOnes {
    samples: BTreeSet<u64>,
    /// Reads that failed although each of their samples can be read.
    unexplained: u32,
    /// What became of the last probe.
    pub(super) probed: Option<Probe>,
}

/// What a read of one sample alone showed.
#[derive(Debug)]
pub(super) enum Probe {
    Good,
    /// The operating system failed the read.
    Bad(Error),
    /// It could not be found out.
    Broken(Error),
}

/// A read that failed, in which some samples may be bad.
#[derive(Debug)]
pub(super) struct Suspect {
    pub(super) group: u64,
    pub(super) read: PlannedRead,
    pub(super) error: Error,
}

impl BadOnes {
    /// Puts, in the rows that would have bad samples, others of the same batch.
    pub(super) fn replace_in(&self, info: &mut SlotInfo) -> Result<()> {
        info.skipped.clear();
        if self.samples.is_empty() {
            return Ok(());
        }
        let rows = info.samples.len();
        for row in 0..rows {
            let sample = info.samples[row];
            if !self.samples.contains(&sample) {
                continue;
            }
            // The next one that is good; rows before this one have been dealt with, and have good ones only.
            let good = (1..rows).map(|step| info.samples[(row + step) % rows]);
            let Some(good) = good.into_iter().find(|other| !self.samples.contains(other)) else {
                return Err(Error::new(
                    ErrorKind::Io,
                    format!("none of the {rows} samples of batch {} can be read", info.batch),
                ));
            };
            info.skipped.push((row as u64, sample));
            info.samples[row] = good;
        }
        Ok(())
    }
}

impl Pipeline {
    /// Whether an error of a read may come from bad samples, which are to be skipped.
    pub(super) fn is_suspect(&self, error: &Error) -> bool {
        matches!(self.setup.bad_samples, BadSamples::Skip { .. }) && error.kind() == ErrorKind::Io
    }

    /// Finds out which samples of the suspect reads are bad, and plans their batches without them. Nothing is in flight.
    pub(super) fn investigate(&mut self) -> Result<()> {
        // Copies that are queued must not come after what is read now.
        if let Some(copier) = &mut self.copier {
            copier.drain(|chunk| self.staging.give_back(chunk))?;
        }
        let mut suspects = std::mem::take(&mut self.suspects);
        suspects.sort_by_key(|suspect| suspect.group);
        for suspect in &suspects {
            // Batches before one that cannot come still do.
            if let Err((fill, error)) = self.probe_samples(suspect) {
                self.fail(fill, error);
            }
        }
        suspects.dedup_by_key(|suspect| suspect.group);
        for suspect in suspects {
            self.plan_again((suspect.group - self.first_group) as usize);
        }
        Ok(())
    }

    /// Reads, one by one, the samples that a suspect read was for. An error comes with the number of the slot whose batch
    /// cannot come.
    fn probe_samples(&mut self, suspect: &Suspect) -> Result<(), (u64, Error)> {
        let Suspect { group, read, error: first_error } = suspect;
        let (from, until) = (read.offset, read.offset + u64::from(read.need));
        let dataset = std::sync::Arc::clone(&self.setup.dataset);
        let fills = self.fills_of((group - self.first_group) as usize);
        let mut found = false;
        for &fill in &fills {
            let samples = self.filling[fill].slot.info().samples.clone();
            let number = self.first + fill as u64;
            for (column, sample) in
                samples.iter().flat_map(|s| dataset.columns().iter().map(move |c| (c, *s)))
            {
                let place = dataset.locate(column, sample);
                let end = place.offset + column.sample_bytes();
                let within = place.file == read.file && place.offset < until && from < end;
                if !within || self.bad.samples.contains(&sample) {
                    continue;
                }
                let probed =
                    self.probe(*group, place.file, place.offset, end).map_err(|error| (number, error))?;
                if let Some(error) = probed {
                    found = true;
                    self.mark_bad(column, sample, place.file, error).map_err(|error| (number, error))?;
                }
            }
        }
        if found {
            return Ok(());
        }
        // All of them can be read, or are known to be bad, yet the read failed: it is tried again, but not for ever.
        self.bad.unexplained += 1;
        if self.bad.unexplained <= MOST_UNEXPLAINED {
            return Ok(());
        }
        let path = self.setup.dataset.files()[read.file as usize].path();
        let what = format!(
            "a read failed, though each sample in it can be read, and so did {MOST_UNEXPLAINED} before it: {first_error}"
        );
        let error = Error::new(ErrorKind::Io, what).at(path).range(read.offset, read.need.into());
        Err((self.first + fills.first().map_or(0, |fill| *fill as u64), error))
    }

    /// Counts a sample as bad, unless there are too many.
    fn mark_bad(&mut self, column: &Column, sample: u64, file: u32, error: Error) -> Result<()> {
        let BadSamples::Skip { limit } = self.setup.bad_samples else { return Err(error) };
        let shard = file - column.first_file;
        let record = sample - column.starts[shard as usize];
        let path = self.setup.dataset.files()[file as usize].path().to_path_buf();
        if self.bad.samples.len() as u64 >= limit {
            let what = format!(
                "record {record} cannot be read, and {limit} samples before it could not be read either, which is as many as \
                 may be skipped"
            );
            return Err(Error::new(ErrorKind::Io, what).at(&path).by(self.name()).caused_by(error));
        }
        self.bad.samples.insert(sample);
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        let reason = format!("{error}{cause}");
        self.links.stats.bad_sample(BadSample { sample, column: column.name().into(), path, record, reason });
        Ok(())
    }

    /// Reads the bytes `from..until` of a file, for nothing but to see whether that works. Returns the error if not.
    fn probe(&mut self, group: u64, file: u32, from: u64, until: u64) -> Result<Option<Error>> {
        let align = self.files.mode(file, &mut *self.reader)?.align;
        let mut reads = Vec::new();
        for_each_io((from, until), align.into(), self.setup.layout.sizes(), |from, until| {
            let (offset, end) = window(from, until, align.into());
            reads.push(PlannedRead {
                file,
                offset,
                len: (end - offset) as u32,
                need: (until - offset) as u32,
                payload: 0,
                target: Target::Chunk { from: 0, count: 0 },
            });
        });
        for read in reads {
            // Nothing is in flight, so there is a token, and a chunk.
            let flight = self.staging.take().map(|chunk| Flight::probe(group, read, chunk));
            let Some((flight, token)) = flight.and_then(|flight| Some((flight, self.take_off(flight)?)))
            else {
                return Err(Error::new(ErrorKind::Closed, "a probe found reads in flight"));
            };
            self.bad.probed = None;
            if let Err(error) = self.launch(token, flight) {
                self.land(token);
                return Err(error);
            }
            loop {
                match self.bad.probed.take() {
                    None => self.reap()?,
                    Some(Probe::Good) => break,
                    Some(Probe::Bad(error)) => return Ok(Some(error)),
                    Some(Probe::Broken(error)) => return Err(error),
                }
            }
        }
        Ok(None)
    }

    /// The places in `filling` of the batches of a group that are not whole and can come.
    fn fills_of(&self, group: usize) -> Vec<usize> {
        let first = self.groups[group].first;
        let next =
            self.groups.get(group + 1).map_or(self.first + self.filling.len() as u64, |next| next.first);
        let numbers = (first.max(self.first)..next).filter(|&number| !self.failed_before(number + 1));
        numbers.map(|number| (number - self.first) as usize).filter(|&i| self.filling[i].left > 0).collect()
    }

    /// Plans the batches of a group that are not whole again, without bad samples.
    fn plan_again(&mut self, at: usize) {
        let mut fills = self.fills_of(at);
        for (i, &fill) in fills.iter().enumerate() {
            let info = self.filling[fill].slot.info_mut();
            // Rows that were filled with another sample before are looked at again: it may be bad itself.
            for (row, sample) in std::mem::take(&mut info.skipped) {
                info.samples[row as usize] = sample;
            }
            info.ways = BytesByWay::default();
            if let Err(error) = self.bad.replace_in(info) {
                self.fail(self.first + fill as u64, error);
                fills.truncate(i);
                break;
            }
        }
        let mut plan = std::mem::take(&mut self.groups[at].plan);
        let (files, reader) = (&mut self.files, &mut *self.reader);
        let (filling, ring) = (&self.filling, &self.ring);
        let planned = self.planner.plan(
            &mut plan,
            &self.setup.layout,
            &self.setup.dataset,
            fills.len(),
            |i| {
                let slot = &filling[fills[i]].slot;
                Lot { base: ring.offset(slot.index()), samples: &slot.info().samples }
            },
            |file| files.mode(file, &mut *reader),
        );
        if let Err(error) = planned {
            self.fail(self.first + fills.first().map_or(0, |fill| *fill as u64), error);
            plan.clear(self.setup.drives.count());
            fills.clear();
        }
        let columns = self.setup.layout.columns.len();
        for (i, &fill) in fills.iter().enumerate() {
            let fill = &mut self.filling[fill];
            let info = fill.slot.info_mut();
            info.starts.clear();
            info.starts.extend_from_slice(&plan.starts[i * columns..][..columns]);
            fill.left = info.samples.len() as u64 * self.setup.dataset.sample_bytes();
        }
        let group = &mut self.groups[at];
        group.left = plan.reads.len();
        group.plan = plan;
    }
}

/// So many reads may fail although each sample in them can be read by itself.
const MOST_UNEXPLAINED: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(samples: &[u64]) -> BadOnes {
        BadOnes { samples: samples.iter().copied().collect(), ..BadOnes::default() }
    }

    type Rows = Vec<u64>;

    fn replaced(samples: &[u64], bad_ones: &[u64]) -> Result<(Rows, Vec<(u64, u64)>)> {
        let mut info = SlotInfo { samples: samples.to_vec(), ..SlotInfo::default() };
        info.skipped.push((77, 77));
        bad(bad_ones).replace_in(&mut info)?;
        Ok((info.samples, info.skipped))
    }

    #[test]
    fn a_bad_sample_gives_its_row_to_the_next_good_one_of_the_batch() {
        assert_eq!(replaced(&[5, 6, 7], &[]).unwrap(), (vec![5, 6, 7], vec![]));
        assert_eq!(replaced(&[5, 6, 7], &[6]).unwrap(), (vec![5, 7, 7], vec![(1, 6)]));
        assert_eq!(replaced(&[5, 6, 7], &[6, 7]).unwrap(), (vec![5, 5, 5], vec![(1, 6), (2, 7)]));
        assert_eq!(replaced(&[5, 6, 7, 5], &[5]).unwrap(), (vec![6, 6, 7, 6], vec![(0, 5), (3, 5)]));
        let error = replaced(&[5, 5], &[5]).unwrap_err().to_string();
        assert!(error.contains("none of the 2 samples of batch 0"), "{error}");
    }
}
