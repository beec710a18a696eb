//! Where the batches of an epoch begin and end.

use super::by_name;
use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// What becomes of the samples at the end of an epoch that do not fill a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LastBatch {
    /// They are not delivered: every batch is full, and none has a sample twice. With a shuffle, other
    /// samples are left out in each epoch.
    #[default]
    Drop,
    /// They come in a full batch, whose remaining rows repeat the first samples of the same epoch.
    Pad,
    /// They come in a batch that has fewer samples than the others.
    Short,
}

impl LastBatch {
    const ALL: [LastBatch; 3] = [LastBatch::Drop, LastBatch::Pad, LastBatch::Short];

    fn name(self) -> &'static str {
        match self {
            LastBatch::Drop => "drop",
            LastBatch::Pad => "pad",
            LastBatch::Short => "short",
        }
    }
}

impl FromStr for LastBatch {
    type Err = Error;

    /// Reads `drop`, `pad` or `short`.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for any other name.
    fn from_str(name: &str) -> Result<Self> {
        by_name("last batch", &LastBatch::ALL, LastBatch::name, name)
    }
}

impl fmt::Display for LastBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The batches of one epoch. At least one, and at most one of them is not full of its own samples: the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Batches {
    /// At least 1.
    samples: u64,
    /// At least 1.
    batch_size: u64,
    last: LastBatch,
}

/// The rows of one batch, as positions in the epoch's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rows {
    /// The position of the first row.
    pub(crate) first: u64,
    /// Rows that are the batch's own: the positions `first..first + real`.
    pub(crate) real: u64,
    /// Rows after those, which repeat the positions 0, 1, 2, ... of the epoch.
    pub(crate) pad: u64,
    /// Samples of the epoch: an epoch with fewer than `pad` of them is repeated more than once.
    samples: u64,
}

impl Batches {
    /// The batches of `batch_size` samples each that an epoch of `samples` samples makes.
    ///
    /// Fails if there are no samples, if the batch size is 0, or if no batch would come.
    pub(crate) fn new(samples: u64, batch_size: u64, last: LastBatch) -> Result<Self> {
        if batch_size == 0 {
            return Err(Error::argument("the batch size is 0; it must be at least 1"));
        }
        if samples == 0 {
            return Err(Error::argument("the dataset has no samples, so there is no batch to deliver"));
        }
        if last == LastBatch::Drop && batch_size > samples {
            return Err(Error::argument(format!(
                "the batch size {batch_size} is larger than the dataset's {samples} samples, and a last batch that \
                 is not full is dropped, so nothing would come; the last batch `pad` or `short` gives one batch"
            )));
        }
        if last == LastBatch::Pad && samples.div_ceil(batch_size).checked_mul(batch_size).is_none() {
            return Err(Error::argument(format!(
                "{samples} samples padded to batches of {batch_size} are too many to count"
            )));
        }
        Ok(Batches { samples, batch_size, last })
    }

    /// Batches an epoch: at least 1.
    pub(crate) fn count(&self) -> u64 {
        match self.last {
            LastBatch::Drop => self.samples / self.batch_size,
            LastBatch::Pad | LastBatch::Short => self.samples.div_ceil(self.batch_size),
        }
    }

    /// Samples delivered an epoch, padding included.
    pub(crate) fn delivered(&self) -> u64 {
        match self.last {
            // Neither overflows: the one is at most `samples`, the other was checked by `new`.
            LastBatch::Drop | LastBatch::Pad => self.count() * self.batch_size,
            LastBatch::Short => self.samples,
        }
    }

    /// The rows of the batch with the number `batch`, counted from 0, which must be less than `count()`.
    pub(crate) fn rows(&self, batch: u64) -> Rows {
        debug_assert!(batch < self.count(), "batch {batch} of {}", self.count());
        // Less than `samples`, as the batch has at least one sample of its own.
        let first = batch * self.batch_size;
        let real = self.batch_size.min(self.samples - first);
        let pad = match self.last {
            LastBatch::Pad => self.batch_size - real,
            LastBatch::Drop | LastBatch::Short => 0,
        };
        Rows { first, real, pad, samples: self.samples }
    }
}

impl Rows {
    /// Rows of the batch, padding included: at least 1.
    pub(crate) fn len(&self) -> u64 {
        self.real + self.pad
    }

    /// The position in the epoch's order whose sample is the row `i`, which must be less than `len()`.
    pub(crate) fn position(&self, i: u64) -> u64 {
        debug_assert!(i < self.len(), "row {i} of {}", self.len());
        if i < self.real { self.first + i } else { (i - self.real) % self.samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn batches(samples: u64, batch_size: u64, last: LastBatch) -> Batches {
        Batches::new(samples, batch_size, last).unwrap()
    }

    /// The positions of each batch, in turn.
    fn positions(batches: &Batches) -> Vec<Vec<u64>> {
        (0..batches.count())
            .map(|batch| batches.rows(batch))
            .map(|rows| (0..rows.len()).map(|i| rows.position(i)).collect())
            .collect()
    }

    #[test]
    fn forty_six_samples_in_eights_leave_one_partial_batch_of_six() {
        let drop = batches(46, 8, LastBatch::Drop);
        assert_eq!((drop.count(), drop.delivered()), (5, 40));
        let short = batches(46, 8, LastBatch::Short);
        assert_eq!((short.count(), short.delivered()), (6, 46));
        assert_eq!(positions(&short)[5], [40, 41, 42, 43, 44, 45]);
        let pad = batches(46, 8, LastBatch::Pad);
        assert_eq!((pad.count(), pad.delivered()), (6, 48));
        assert_eq!(positions(&pad)[5], [40, 41, 42, 43, 44, 45, 0, 1]);
        assert_eq!((pad.rows(5).first, pad.rows(5).real, pad.rows(5).pad), (40, 6, 2));
    }

    #[test]
    fn a_hundred_samples_in_fours_are_twenty_five_full_batches_whatever_the_policy() {
        for last in LastBatch::ALL {
            let batches = batches(100, 4, last);
            assert_eq!((batches.count(), batches.delivered()), (25, 100));
            assert!(positions(&batches).concat().into_iter().eq(0..100));
            assert!((0..25).all(|batch| batches.rows(batch).pad == 0));
        }
    }

    #[test]
    fn every_position_comes_exactly_once_save_for_what_the_policy_says() {
        for samples in 1..60 {
            for size in 1..20 {
                let whole = samples / size * size;
                let rest = samples - whole;

                match Batches::new(samples, size, LastBatch::Drop) {
                    Ok(drop) => assert_eq!(positions(&drop).concat(), (0..whole).collect::<Vec<_>>()),
                    Err(_) => assert!(size > samples),
                }

                let short = positions(&batches(samples, size, LastBatch::Short));
                assert_eq!(short.concat(), (0..samples).collect::<Vec<_>>());
                let full = (samples / size) as usize;
                assert!(short[..full].iter().all(|batch| batch.len() as u64 == size));

                let pad = positions(&batches(samples, size, LastBatch::Pad));
                assert!(pad.iter().all(|batch| batch.len() as u64 == size));
                let missing = if rest == 0 { 0 } else { size - rest };
                let padding = (0..samples).cycle().take(missing as usize);
                assert_eq!(pad.concat(), (0..samples).chain(padding).collect::<Vec<_>>());

                for last in LastBatch::ALL {
                    if let Ok(batches) = Batches::new(samples, size, last) {
                        assert_eq!(batches.delivered(), positions(&batches).concat().len() as u64);
                    }
                }
            }
        }
    }

    #[test]
    fn padding_goes_round_an_epoch_that_is_shorter_than_it() {
        for samples in 1..20 {
            for size in samples..60 {
                let pad = batches(samples, size, LastBatch::Pad);
                assert_eq!((pad.count(), pad.delivered()), (1, size));
                assert_eq!(positions(&pad), [(0..samples).cycle().take(size as usize).collect::<Vec<_>>()]);
                let short = batches(samples, size, LastBatch::Short);
                assert_eq!(positions(&short), [(0..samples).collect::<Vec<_>>()]);
            }
        }
    }

    #[test]
    fn a_plan_that_delivers_nothing_is_an_error() {
        for last in LastBatch::ALL {
            for (samples, size) in [(0, 4), (4, 0), (0, 0)] {
                assert_eq!(Batches::new(samples, size, last).unwrap_err().kind(), ErrorKind::InvalidArgument);
            }
        }
        let error = Batches::new(7, 8, LastBatch::Drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let message = error.to_string();
        for part in ["size 8", "7 samples", "nothing would come", "`pad` or `short`"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn sizes_near_the_largest_number_do_not_overflow() {
        for last in [LastBatch::Drop, LastBatch::Short] {
            let batches = batches(u64::MAX, 1 << 20, last);
            let rows = batches.rows(batches.count() - 1);
            assert_eq!(rows.first % (1 << 20), 0);
            assert!(rows.position(rows.len() - 1) < u64::MAX);
        }
        assert_eq!(batches(3, u64::MAX, LastBatch::Pad).rows(0).position(u64::MAX - 1), 2);
        let error = Batches::new(u64::MAX, 1 << 20, LastBatch::Pad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn names_of_policies_are_read_as_written() {
        for (last, name) in LastBatch::ALL.into_iter().zip(["drop", "pad", "short"]) {
            assert_eq!(last.to_string(), name);
            assert_eq!(name.parse::<LastBatch>().unwrap(), last);
        }
        assert_eq!(LastBatch::default(), LastBatch::Drop);
        let error = "keep".parse::<LastBatch>().unwrap_err().to_string();
        assert_eq!(error, "unknown last batch \"keep\"; known are drop, pad, short");
    }
}
