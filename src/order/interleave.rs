//! Which dataset of a mixture comes when, in exact proportions.

use std::sync::Arc;

use super::permutation::mix;
use super::{Order, Shuffle};
use crate::{Error, Result};

/// A cycle of a mixture has at most this many samples. It is stored.
const LONGEST_CYCLE: u64 = 1 << 16;

/// One dataset of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// The number of its first sample among the samples of all.
    pub(crate) first: u64,
    /// At least 1.
    pub(crate) samples: u64,
    /// At least 1.
    pub(crate) weight: u64,
}

/// The order of a mixture: an endless sequence of samples, in which each part has a share.
///
/// It is made of cycles that are all alike. A cycle has as many samples of each part as the part's weight says
/// (weights are first divided by what they have in common), spread as evenly as they can be. Each part is gone
/// through from beginning to end again and again, each time in another order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interleave {
    parts: Vec<Part>,
    /// For each place in a cycle the part, and which of the part's samples of the cycle it is.
    cycle: Vec<(u32, u32)>,
}

impl Interleave {
    /// Fails without parts, for a part without weight or samples, and for weights whose cycle would be too long.
    pub(crate) fn new(parts: Vec<Part>) -> Result<Self> {
        let common = parts.iter().fold(0, |common, part| gcd(common, part.weight));
        if parts.is_empty() {
            return Err(Error::argument("a mixture needs at least one dataset"));
        }
        if let Some(i) = parts.iter().position(|part| part.weight == 0 || part.samples == 0) {
            let what = if parts[i].weight == 0 { "has the weight 0" } else { "has no samples" };
            return Err(Error::argument(format!("dataset {i} of the mixture {what}")));
        }
        let weights: Vec<u64> = parts.iter().map(|part| part.weight / common).collect();
        let total = weights.iter().try_fold(0u64, |sum, weight| sum.checked_add(*weight));
        let Some(total) = total.filter(|total| *total <= LONGEST_CYCLE) else {
            return Err(Error::argument(format!(
                "the weights of the mixture are {weights:?}, of which one cycle is more than {LONGEST_CYCLE} samples; \
                 take smaller numbers of about the same proportions"
            )));
        };
        // The k-th of w samples belongs at (2 k + 1) / (2 w) of the cycle; where two want one place, the first part
        // comes first. Compared crosswise, in whole numbers.
        let mut cycle: Vec<(u32, u32)> = Vec::with_capacity(total as usize);
        for (part, &weight) in weights.iter().enumerate() {
            cycle.extend((0..weight).map(|k| (part as u32, k as u32)));
        }
        cycle.sort_by_key(|&(part, k)| {
            let (k, weight) = (u128::from(k), u128::from(weights[part as usize]));
            // Exact enough to tell any two places apart: they differ by at least 1 / (2 * 2^16 * 2^16).
            ((2 * k + 1) << 64) / (2 * weight)
        });
        let parts = parts.iter().zip(&weights).map(|(part, &weight)| Part { weight, ..*part }).collect();
        Ok(Interleave { parts, cycle })
    }

    /// What of which part comes at a position: the part, and how many of its samples came before.
    pub(crate) fn place(&self, position: u64) -> (usize, u64) {
        let length = self.cycle.len() as u64;
        let (part, k) = self.cycle[(position % length) as usize];
        // At most `position`, since the weight is at most the cycle's length.
        (part as usize, position / length * self.parts[part as usize].weight + u64::from(k))
    }

    /// The datasets, with their weights in lowest terms.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }
}

/// The samples of an interleaved sequence, by position, for one seed and shuffle.
#[derive(Debug, Clone)]
pub(crate) struct Mixed {
    interleave: Arc<Interleave>,
    seed: u64,
    shuffle: Shuffle,
    /// The position at which the epoch begins.
    start: u64,
    samples: u64,
    /// For each part the pass that was asked for last, with its order.
    recent: Vec<Option<(u64, Order)>>,
}

impl Mixed {
    /// The epoch `epoch` of a mixture whose epochs have `samples` samples each: it goes on where the one before ended.
    pub(crate) fn new(
        interleave: &Arc<Interleave>,
        samples: u64,
        seed: u64,
        epoch: u64,
        shuffle: Shuffle,
    ) -> Result<Self> {
        let end = epoch.checked_add(1).and_then(|epochs| epochs.checked_mul(samples));
        if end.is_none() {
            return Err(Error::argument(format!(
                "epoch {epoch} of a mixture of {samples} samples each is beyond what can be counted"
            )));
        }
        let recent = vec![None; interleave.parts.len()];
        Ok(Mixed {
            interleave: Arc::clone(interleave),
            seed,
            shuffle,
            start: epoch * samples,
            samples,
            recent,
        })
    }

    /// The number of the sample at a position of the epoch.
    pub(crate) fn sample(&mut self, position: u64) -> Option<u64> {
        if position >= self.samples {
            return None;
        }
        let (part, before) = self.interleave.place(self.start + position);
        let Part { first, samples, .. } = self.interleave.parts[part];
        let (pass, within) = (before / samples, before % samples);
        let recent = &mut self.recent[part];
        if recent.as_ref().is_none_or(|(known, _)| *known != pass) {
            // Equal datasets in one mixture do not come in one order.
            let seed = mix(self.seed.wrapping_add(mix(part as u64 + 1)));
            *recent = Some((pass, Order::new(samples, seed, pass, self.shuffle)));
        }
        recent.as_ref().and_then(|(_, order)| order.sample(within)).map(|sample| first + sample)
    }
}

pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(of: &[(u64, u64)]) -> Vec<Part> {
        let mut first = 0;
        let mut part = |&(samples, weight): &(u64, u64)| {
            first += samples;
            Part { first: first - samples, samples, weight }
        };
        of.iter().map(&mut part).collect()
    }

    fn interleave(of: &[(u64, u64)]) -> Arc<Interleave> {
        Arc::new(Interleave::new(parts(of)).unwrap())
    }

    #[test]
    fn a_cycle_has_each_dataset_as_often_as_its_weight_says_and_spreads_it() {
        let seven_two_one = interleave(&[(100, 70), (100, 20), (100, 10)]);
        let cycle: Vec<usize> = (0..10).map(|p| seven_two_one.place(p).0).collect();
        assert_eq!(cycle, [0, 0, 1, 0, 0, 2, 0, 1, 0, 0]);
        for weights in [&[1u64, 1][..], &[3, 5, 2], &[1, 999], &[65535, 1], &[7]] {
            let of: Vec<_> = weights.iter().map(|&weight| (1000, weight)).collect();
            let mixed = interleave(&of);
            let total: u64 = weights.iter().sum();
            let mut counts = vec![0u64; weights.len()];
            for position in 0..2 * total {
                let (part, before) = mixed.place(position);
                assert_eq!(before, counts[part], "each sample of a part comes in turn");
                counts[part] += 1;
                for (count, weight) in counts.iter().zip(weights) {
                    // Never more than one sample away from the exact share.
                    let (has, share) = (count * total, weight * (position + 1));
                    assert!(has.abs_diff(share) <= total, "{counts:?} after {position} of {weights:?}");
                }
            }
            assert!(counts.iter().zip(weights).all(|(count, weight)| *count == 2 * weight));
        }
    }

    #[test]
    fn each_dataset_is_gone_through_whole_before_any_of_it_comes_again() {
        let mixture = interleave(&[(10, 3), (7, 1)]);
        for shuffle in [Shuffle::None, Shuffle::Full, Shuffle::Blocks { block: 2, window: 4 }] {
            let mut of: [Vec<u64>; 2] = Default::default();
            // Epochs that do not end with a cycle.
            for epoch in 0..20 {
                let mut mixed = Mixed::new(&mixture, 13, 5, epoch, shuffle).unwrap();
                for position in 0..13 {
                    let sample = mixed.sample(position).unwrap();
                    of[usize::from(sample >= 10)].push(sample);
                }
                assert_eq!(mixed.sample(13), None);
            }
            assert_eq!((of[0].len(), of[1].len()), (195, 65));
            for (samples, first, size) in [(&of[0], 0, 10), (&of[1], 10, 7)] {
                let mut passes = samples.chunks_exact(size);
                let mut orders = std::collections::HashSet::new();
                for pass in &mut passes {
                    let mut sorted = pass.to_vec();
                    sorted.sort_unstable();
                    assert!(sorted.into_iter().eq(first..first + size as u64));
                    orders.insert(pass.to_vec());
                }
                assert!(shuffle == Shuffle::None || orders.len() > 5);
            }
        }
    }

    #[test]
    fn a_position_is_found_without_going_there() {
        let mixture = interleave(&[(1 << 40, 7), (1 << 39, 3)]);
        let mut far = Mixed::new(&mixture, 10u64.pow(12), 1, 1_000_000, Shuffle::Full).unwrap();
        let a = far.sample(999_999_999_999).unwrap();
        let mut again = Mixed::new(&mixture, 10u64.pow(12), 1, 1_000_000, Shuffle::Full).unwrap();
        assert_eq!((0..3).map(|_| again.sample(999_999_999_999)).collect::<Vec<_>>(), [Some(a); 3]);
        assert!(Mixed::new(&mixture, 10u64.pow(12), 1, u64::MAX / 2, Shuffle::Full).is_err());
    }

    #[test]
    fn a_mixture_that_makes_no_sense_is_an_error() {
        for (of, what) in [
            (&[][..], "at least one dataset"),
            (&[(5, 1), (5, 0)], "dataset 1 of the mixture has the weight 0"),
            (&[(0, 1)], "dataset 0 of the mixture has no samples"),
            (&[(5, 65_536), (5, 1)], "more than 65536"),
            (&[(5, u64::MAX), (5, u64::MAX - 1)], "more than 65536"),
        ] {
            let error = Interleave::new(parts(of)).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        // In lowest terms they are few.
        assert_eq!(interleave(&[(5, 1 << 40), (5, 3 << 40)]).cycle.len(), 4);
    }
}
