//! Where the batches of an epoch begin and end, and which rows of them a rank gets.

use crate::error::by_name;
use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// What becomes of the samples at the end of an epoch that do not fill a global batch.
///
/// A global batch is a batch of every rank: `batch_size` x world size samples, neighbours in the order of the epoch.
/// Rank `r` gets the `r`-th `batch_size` of them. Every rank gets the same number of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LastBatch {
    /// They are not delivered: every batch is full, and none has a sample twice. With a shuffle, other
    /// samples are left out in each epoch.
    #[default]
    Drop,
    /// They come in a full global batch, whose remaining rows repeat the first samples of the same epoch (round and
    /// round, if it has fewer than that).
    Pad,
    /// They come in batches that are smaller than the others: `n` samples are dealt to `w` ranks as evenly as they
    /// can be, in order, so that rank `r` gets those from `n * r / w` up to `n * (r + 1) / w`. Fewer samples than
    /// ranks would leave a rank without a batch; that is an error when the loader is built.
    Short,
}

impl LastBatch {
    const ALL: [LastBatch; 3] = [LastBatch::Drop, LastBatch::Pad, LastBatch::Short];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
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

/// How an epoch is cut into batches, for one rank of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Samples in a batch of one rank.
    pub(crate) batch_size: u64,
    pub(crate) last: LastBatch,
    pub(crate) rank: u64,
    pub(crate) world: u64,
    /// Whether an epoch with too few samples for any batch is no error, but has no batch on any rank.
    pub(crate) allow_empty: bool,
}

/// The batches of one epoch, or of what is left of it from a position on, for one rank. At most one of them is not
/// full of samples of its own: the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Batches {
    /// Samples of the whole epoch.
    samples: u64,
    /// The position of the first sample, at most `samples`.
    from: u64,
    /// Samples of a global batch: at least 1.
    global: u64,
    cut: Cut,
}

/// The rows that one rank has of one batch, as positions in the epoch's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rows {
    /// The position of the global batch's first row.
    first: u64,
    /// Rows of the global batch that are its own: the positions `first..first + real`. Those after them repeat the
    /// positions 0, 1, 2, ... of the epoch.
    real: u64,
    /// The rank's rows of the global batch.
    from: u64,
    until: u64,
    /// Samples of the epoch: an epoch that is shorter than the padding is repeated more than once.
    samples: u64,
}

impl Batches {
    /// The batches that an epoch of `samples` samples makes.
    ///
    /// Fails for a batch size of 0, for a rank outside of its world, if no batch would come (unless that is allowed),
    /// and if ranks would get different numbers of batches.
    pub(crate) fn new(samples: u64, cut: Cut) -> Result<Self> {
        let Cut { batch_size, last, rank, world, allow_empty } = cut;
        if batch_size == 0 {
            return Err(Error::argument("the batch size is 0; it must be at least 1"));
        }
        if rank >= world {
            return Err(Error::argument(format!("rank {rank} is not one of {world} ranks")));
        }
        let global = batch_size.checked_mul(world).ok_or_else(|| {
            Error::argument(format!("batches of {batch_size} samples on {world} ranks are too many to count"))
        })?;
        let ranks = match world {
            1 => String::new(),
            _ => format!(" on each of {world} ranks ({global} together)"),
        };
        let empty = match last {
            LastBatch::Drop => global > samples,
            LastBatch::Pad => samples == 0,
            LastBatch::Short => samples < world,
        };
        if empty && !allow_empty {
            return Err(Error::argument(match last {
                _ if samples == 0 => "the dataset has no samples, so there is no batch to deliver".into(),
                LastBatch::Drop => format!(
                    "the batch size {batch_size}{ranks} is larger than the dataset's {samples} samples, and a last \
                     batch that is not full is dropped, so nothing would come; the last batch `pad`{} gives one \
                     batch, and epochs without any batch can be allowed",
                    if samples < world { "" } else { " or `short`" }
                ),
                _ => format!(
                    "the dataset has {samples} samples for {world} ranks, so with the last batch `short` some would \
                     have none; `pad` repeats samples, and epochs without any batch can be allowed"
                ),
            }));
        }
        if last == LastBatch::Pad && samples.div_ceil(global).checked_mul(global).is_none() {
            return Err(Error::argument(format!(
                "{samples} samples padded to batches of {batch_size}{ranks} are too many to count"
            )));
        }
        let batches = Batches { samples, from: 0, global, cut };
        match empty {
            // Nothing is to come on any rank.
            true => Ok(Batches { from: samples, ..batches }),
            false => batches.alike_on_all_ranks(),
        }
    }

    /// The batches of what is left of the epoch from a position on, which may be the epoch's end.
    pub(crate) fn starting_at(&self, position: u64) -> Result<Self> {
        Batches { from: position.clamp(self.from, self.samples), ..*self }.alike_on_all_ranks()
    }

    fn alike_on_all_ranks(self) -> Result<Self> {
        let (world, batch_size) = (self.cut.world, self.cut.batch_size);
        let rest = (self.samples - self.from) % self.global;
        if self.cut.last != LastBatch::Short || rest == 0 || rest >= world {
            return Ok(self);
        }
        let from = match self.from {
            0 => String::new(),
            from => format!(" that are left from position {from} on"),
        };
        Err(Error::argument(format!(
            "of the {} samples{from}, {rest} do not fill batches of {batch_size} on each of {world} ranks; that is fewer \
             than there are ranks, so with the last batch `short` some ranks would have a batch less than others; \
             take `drop` or `pad`, or another batch size",
            self.samples - self.from,
        )))
    }

    /// Batches, on every rank.
    pub(crate) fn count(&self) -> u64 {
        let left = self.samples - self.from;
        match self.cut.last {
            LastBatch::Drop => left / self.global,
            LastBatch::Pad | LastBatch::Short => left.div_ceil(self.global),
        }
    }

    /// Samples that the rank is delivered, padding included.
    pub(crate) fn delivered(&self) -> u64 {
        match self.count() {
            0 => 0,
            // All but the last are full.
            count => (count - 1) * self.cut.batch_size + self.rows(count - 1).len(),
        }
    }

    /// The most samples in a batch of a rank, whatever its position: what a slot has to hold.
    pub(crate) fn largest(&self) -> u64 {
        match self.cut.last {
            LastBatch::Short => self.cut.batch_size.min(self.samples.div_ceil(self.cut.world)).max(1),
            LastBatch::Drop | LastBatch::Pad => self.cut.batch_size,
        }
    }

    /// Samples of a global batch.
    pub(crate) fn global(&self) -> u64 {
        self.global
    }

    /// Where the batches begin.
    pub(crate) fn from(&self) -> u64 {
        self.from
    }

    /// The position behind the global batch with the number `batch`; `None` if that ends the epoch.
    pub(crate) fn end(&self, batch: u64) -> Option<u64> {
        (batch + 1 < self.count()).then(|| self.from + (batch + 1) * self.global)
    }

    /// The rows that the rank has of the batch with the number `batch`, counted from 0, which must be less than
    /// `count()`.
    pub(crate) fn rows(&self, batch: u64) -> Rows {
        debug_assert!(batch < self.count(), "batch {batch} of {}", self.count());
        let Cut { batch_size, last, rank, world, .. } = self.cut;
        // Less than `samples`, as the batch has at least one sample of its own.
        let first = self.from + batch * self.global;
        let real = self.global.min(self.samples - first);
        let (from, until) = match last {
            LastBatch::Short if real < self.global => {
                (share(real, rank, world), share(real, rank + 1, world))
            }
            _ => (rank * batch_size, (rank + 1) * batch_size),
        };
        Rows { first, real, from, until, samples: self.samples }
    }
}

/// Where the part of rank `rank` begins, if `all` are dealt to `world` ranks as evenly as they can be.
fn share(all: u64, rank: u64, world: u64) -> u64 {
    // At most `all`, since the rank is at most `world`.
    (u128::from(all) * u128::from(rank) / u128::from(world)) as u64
}

impl Rows {
    /// Rows of the rank, padding included: at least 1.
    pub(crate) fn len(&self) -> u64 {
        self.until - self.from
    }

    /// How many of them, at the end, repeat samples of the beginning of the epoch.
    pub(crate) fn padding(&self) -> u64 {
        self.until.saturating_sub(self.real.max(self.from))
    }

    /// The position of the global batch's first row.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The position in the epoch's order whose sample is the row `i`, which must be less than `len()`.
    pub(crate) fn position(&self, i: u64) -> u64 {
        debug_assert!(i < self.len(), "row {i} of {}", self.len());
        let row = self.from + i;
        if row < self.real { self.first + row } else { (row - self.real) % self.samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn cut(batch_size: u64, last: LastBatch, rank: u64, world: u64) -> Cut {
        Cut { batch_size, last, rank, world, allow_empty: false }
    }

    fn batches(samples: u64, batch_size: u64, last: LastBatch) -> Batches {
        Batches::new(samples, cut(batch_size, last, 0, 1)).unwrap()
    }

    /// The positions of each batch, in turn.
    fn positions(batches: &Batches) -> Vec<Vec<u64>> {
        (0..batches.count())
            .map(|batch| batches.rows(batch))
            .map(|rows| (0..rows.len()).map(|i| rows.position(i)).collect())
            .collect()
    }

    /// What every rank gets of the epoch from `from` on, batch by batch; `None` if the constructor refuses, which it
    /// must do on all ranks alike.
    fn world(samples: u64, size: u64, last: LastBatch, ranks: u64, from: u64) -> Option<Vec<Vec<Vec<u64>>>> {
        let made: Vec<_> = (0..ranks)
            .map(|rank| Batches::new(samples, cut(size, last, rank, ranks)))
            .map(|made| made.and_then(|it| it.starting_at(from)))
            .collect();
        assert!(made.iter().all(|it| it.is_ok()) || made.iter().all(|it| it.is_err()));
        made.into_iter().map(|it| it.ok().map(|it| positions(&it))).collect()
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
        assert_eq!((pad.rows(5).first(), pad.rows(5).padding(), pad.rows(4).padding()), (40, 2, 0));
    }

    #[test]
    fn three_ranks_get_neighbouring_parts_of_each_global_batch() {
        let of = |last| world(46, 4, last, 3, 0).unwrap();
        assert_eq!(of(LastBatch::Drop)[1], [[4, 5, 6, 7], [16, 17, 18, 19], [28, 29, 30, 31]]);
        let pad = of(LastBatch::Pad);
        assert_eq!(pad[1][3], [40, 41, 42, 43]);
        assert_eq!(pad[2][3], [44, 45, 0, 1]);
        // Ten samples for three ranks: 3, 3 and 4.
        let short = of(LastBatch::Short);
        assert_eq!([&short[0][3], &short[1][3]], [&[36, 37, 38], &[39, 40, 41]]);
        assert_eq!(short[2][3], [42, 43, 44, 45]);
    }

    #[test]
    fn every_position_comes_exactly_once_at_any_world_size_and_ranks_get_equally_many_batches() {
        for samples in 0..200u64 {
            for ranks in 1..10u64 {
                for size in [1, 2, 3, 5, 8, 16, 64] {
                    let global = size * ranks;
                    for last in LastBatch::ALL {
                        let Some(all) = world(samples, size, last, ranks, 0) else {
                            let rest = samples % global;
                            let refused = match last {
                                LastBatch::Drop => samples < global,
                                LastBatch::Pad => samples == 0,
                                LastBatch::Short => samples == 0 || (rest > 0 && rest < ranks),
                            };
                            assert!(refused, "{samples} {ranks} {size} {last}");
                            continue;
                        };
                        let count = all[0].len();
                        assert!(all.iter().all(|rank| rank.len() == count));
                        assert!(all.iter().flatten().all(|batch| !batch.is_empty()));
                        // One global batch after the other, rank after rank: the order of one rank alone.
                        let union: Vec<u64> = (0..count)
                            .flat_map(|b| all.iter().flat_map(move |rank| rank[b].clone()))
                            .collect();
                        let mut wanted: Vec<u64> = (0..samples).collect();
                        match last {
                            LastBatch::Drop => wanted.truncate((samples / global * global) as usize),
                            LastBatch::Pad => {
                                let whole = samples.div_ceil(global) * global;
                                wanted.extend((0..samples).cycle().take((whole - samples) as usize));
                            }
                            LastBatch::Short => {}
                        }
                        assert_eq!(union, wanted, "{samples} {ranks} {size} {last}");
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_told_of_an_epoch_are_those_that_come() {
        for samples in 1..60u64 {
            for size in 1..20u64 {
                for ranks in 1..4 {
                    for (rank, last) in (0..ranks).flat_map(|rank| LastBatch::ALL.map(|last| (rank, last))) {
                        let Ok(batches) = Batches::new(samples, cut(size, last, rank, ranks)) else {
                            continue;
                        };
                        for from in 0..=samples {
                            let Ok(rest) = batches.starting_at(from) else { continue };
                            let all = positions(&rest);
                            assert_eq!(rest.delivered(), all.concat().len() as u64);
                            assert!(all.iter().all(|batch| batch.len() as u64 <= rest.largest()));
                            for batch in 0..rest.count() {
                                let rows = rest.rows(batch);
                                let global = batch * size * ranks + rank * size;
                                let pads = (0..rows.len()).filter(|i| global + i >= samples - from);
                                let pads = if last == LastBatch::Pad { pads.count() } else { 0 };
                                assert_eq!(rows.padding(), pads as u64, "{rows:?}");
                                let next = from + (batch + 1) * size * ranks;
                                let ends = batch + 1 == rest.count();
                                assert_eq!(rest.end(batch), (!ends).then_some(next));
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_epoch_that_is_gone_on_with_elsewhere_still_covers_everything_once() {
        // Some batches by one world, the rest by another of another size and batch size.
        for samples in [1u64, 7, 46, 100, 173] {
            for (ranks, size, then_ranks, then_size) in
                [(4, 3, 3, 4), (4, 3, 3, 5), (1, 8, 5, 2), (3, 1, 1, 1), (2, 2, 7, 1)]
            {
                let Some(all) = world(samples, size, LastBatch::Short, ranks, 0) else { continue };
                for done in 0..=all[0].len() {
                    let mut seen: Vec<u64> = all.iter().flat_map(|rank| rank[..done].concat()).collect();
                    let position = (done as u64 * size * ranks).min(samples);
                    for (last, repeats) in [(LastBatch::Short, false), (LastBatch::Pad, true)] {
                        let Some(rest) = world(samples, then_size, last, then_ranks, position) else {
                            continue;
                        };
                        let mut both = seen.clone();
                        both.extend(rest.iter().flat_map(|rank| rank.concat()));
                        both.sort_unstable();
                        if repeats {
                            both.dedup();
                        }
                        assert!(both.into_iter().eq(0..samples), "{samples} {done}");
                    }
                    seen.clear();
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
    fn a_plan_that_delivers_nothing_is_an_error_unless_that_is_wanted() {
        for last in LastBatch::ALL {
            for (samples, size) in [(0, 4), (4, 0), (0, 0)] {
                let error = Batches::new(samples, cut(size, last, 0, 1)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            }
            // Fewer samples than ranks.
            for (samples, rank) in [(0, 0), (2, 0), (2, 7)] {
                let cut = Cut { allow_empty: true, ..cut(1, last, rank, 8) };
                let batches = Batches::new(samples, cut).unwrap();
                let padded = last == LastBatch::Pad && samples > 0;
                assert_eq!((batches.count(), batches.delivered()), (padded.into(), padded.into()));
                assert_eq!(batches.starting_at(1).unwrap().count(), u64::from(padded));
            }
        }
        let error = Batches::new(7, cut(8, LastBatch::Drop, 0, 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let message = error.to_string();
        for part in ["size 8", "7 samples", "nothing would come", "`pad` or `short`"] {
            assert!(message.contains(part), "{message}");
        }
        let message = Batches::new(7, cut(2, LastBatch::Drop, 0, 4)).unwrap_err().to_string();
        assert!(message.contains("size 2 on each of 4 ranks (8 together)"), "{message}");
    }

    #[test]
    fn ranks_that_would_get_different_numbers_of_batches_are_told_why() {
        let message = Batches::new(2, cut(8, LastBatch::Short, 0, 4)).unwrap_err().to_string();
        assert!(message.contains("2 samples for 4 ranks"), "{message}");
        let message = Batches::new(34, cut(8, LastBatch::Short, 0, 4)).unwrap_err().to_string();
        for part in ["of the 34 samples", "2 do not fill", "4 ranks", "`drop` or `pad`"] {
            assert!(message.contains(part), "{message}");
        }
        let batches = Batches::new(34, cut(2, LastBatch::Short, 0, 3)).unwrap();
        let message = batches.starting_at(26).unwrap_err().to_string();
        assert!(
            message.contains("of the 8 samples that are left from position 26 on, 2 do not"),
            "{message}"
        );
        assert!(Batches::new(10, cut(1, LastBatch::Drop, 4, 4)).is_err());
    }

    #[test]
    fn sizes_near_the_largest_number_do_not_overflow() {
        for last in [LastBatch::Drop, LastBatch::Short] {
            let batches = batches(u64::MAX, 1 << 20, last);
            let rows = batches.rows(batches.count() - 1);
            assert_eq!(rows.first() % (1 << 20), 0);
            assert!(rows.position(rows.len() - 1) < u64::MAX);
            let late = batches.starting_at(u64::MAX - 10);
            assert!(late.is_ok_and(|late| late.delivered() == if last == LastBatch::Short { 10 } else { 0 }));
        }
        assert_eq!(batches(3, u64::MAX, LastBatch::Pad).rows(0).position(u64::MAX - 1), 2);
        let error = Batches::new(u64::MAX, cut(1 << 20, LastBatch::Pad, 0, 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(Batches::new(9, cut(u64::MAX / 2, LastBatch::Pad, 0, 3)).is_err());
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
