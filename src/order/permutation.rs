//! A keyed permutation of `[0, n)` that is computed, not stored.

/// Feistel rounds. Four make a permutation that looks random to few queries; the others are margin for the
/// tiny halves of small datasets, and cost nothing beside the read that each position stands for.
const ROUNDS: usize = 8;

/// The smallest domain, as a power of two. Below it the halves would have so few values that some orders of
/// a few samples came far more often than others.
const MIN_BITS: u32 = 8;

/// The increment of splitmix64: 2^64 divided by the golden ratio, made odd.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection of `[0, n)`, chosen by a seed and an epoch, in constant memory.
///
/// It is a Feistel network over the smallest power of two that holds `n`. A value that falls outside of `[0,
/// n)` goes through the network again until it falls inside (cycle walking), which keeps the whole a
/// bijection; as the domain is smaller than `2 n` (for `n` of 128 and more), that takes less than two passes
/// on average.
///
/// Saved positions stay valid only as long as the same key gives the same order, so nothing here may ever
/// change what `apply` returns. `the_order_is_fixed_for_all_time` pins it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Permutation {
    n: u64,
    /// Bits of the right half; the left half has as many or one less.
    right_bits: u32,
    left_mask: u64,
    right_mask: u64,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `[0, n)` that belongs to `seed` and `epoch`.
    pub(crate) fn new(n: u64, seed: u64, epoch: u64) -> Self {
        let bits = (u64::BITS - n.saturating_sub(1).leading_zeros()).max(MIN_BITS);
        let right_bits = bits.div_ceil(2);
        // Mixed one after the other, so that (seed 1, epoch 0) and (seed 0, epoch 1) have nothing in common.
        let start = mix(mix(seed ^ GOLDEN).wrapping_add(epoch));
        let mut keys = [0; ROUNDS];
        let mut state = start;
        for key in &mut keys {
            state = state.wrapping_add(GOLDEN);
            *key = mix(state);
        }
        Permutation {
            n,
            right_bits,
            left_mask: (1 << (bits - right_bits)) - 1,
            right_mask: (1 << right_bits) - 1,
            keys,
        }
    }

    /// Where `i` goes. `i` must be less than `n`.
    pub(crate) fn apply(&self, i: u64) -> u64 {
        debug_assert!(i < self.n, "position {i} of a permutation of {}", self.n);
        if self.n <= 1 {
            return 0;
        }
        // Ends: the cycle that `i` lies on leads back to `i`, which is less than `n`.
        let mut x = i;
        loop {
            x = self.pass(x);
            if x < self.n {
                return x;
            }
        }
    }

    /// Which `i` goes to `x`. `x` must be less than `n`.
    pub(crate) fn invert(&self, x: u64) -> u64 {
        debug_assert!(x < self.n, "value {x} of a permutation of {}", self.n);
        if self.n <= 1 {
            return 0;
        }
        let mut i = x;
        loop {
            i = self.pass_back(i);
            if i < self.n {
                return i;
            }
        }
    }

    /// One pass through the network. Each round changes one half by a function of the other, which can be
    /// undone whatever that function is; so the halves need not be equally wide.
    fn pass(&self, x: u64) -> u64 {
        let mut left = x >> self.right_bits;
        let mut right = x & self.right_mask;
        for pair in self.keys.chunks_exact(2) {
            left ^= mix(right ^ pair[0]) & self.left_mask;
            right ^= mix(left ^ pair[1]) & self.right_mask;
        }
        left << self.right_bits | right
    }

    /// `pass`, undone.
    fn pass_back(&self, x: u64) -> u64 {
        let mut left = x >> self.right_bits;
        let mut right = x & self.right_mask;
        for pair in self.keys.chunks_exact(2).rev() {
            right ^= mix(left ^ pair[1]) & self.right_mask;
            left ^= mix(right ^ pair[0]) & self.left_mask;
        }
        left << self.right_bits | right
    }
}

/// The finalizer of splitmix64: a bijection of `u64` in which every bit of the input reaches every bit of the
/// output.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(n: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let permutation = Permutation::new(n, seed, epoch);
        (0..n).map(|i| permutation.apply(i)).collect()
    }

    fn assert_bijection(n: u64, seed: u64, epoch: u64) {
        let mut seen = vec![false; n as usize];
        for x in order(n, seed, epoch) {
            assert!(!std::mem::replace(&mut seen[x as usize], true), "{x} came twice, n {n} seed {seed}");
        }
    }

    /// Checks that `counts` scatter about `expected` as independent draws would: a statistic with `freedom`
    /// degrees of freedom lies within five standard deviations of its mean. `scale` is the correction for
    /// draws without replacement.
    fn assert_scattered(what: &str, counts: &[u64], expected: &[f64], freedom: f64, scale: f64) {
        let chi: f64 = counts.iter().zip(expected).map(|(&c, e)| (c as f64 - e).powi(2) / e).sum();
        let far = (chi * scale - freedom) / (2.0 * freedom).sqrt();
        assert!(far.abs() < 5.0, "{what}: {far:.1} standard deviations off");
    }

    #[test]
    fn the_order_is_fixed_for_all_time() {
        // Values of an independent implementation.
        let first =
            |n, seed, epoch| (0..8).map(|i| Permutation::new(n, seed, epoch).apply(i)).collect::<Vec<_>>();
        assert_eq!(first(1797, 7, 0), [1289, 1531, 940, 769, 323, 415, 497, 688]);
        assert_eq!(first(1797, 7, 1), [30, 1022, 1094, 1086, 1458, 462, 1614, 1163]);
        assert_eq!(order(10, 0, 0), [4, 2, 7, 0, 9, 1, 3, 8, 5, 6]);
        let large = Permutation::new(10u64.pow(12), 7, 3);
        assert_eq!([large.apply(0), large.apply(1)], [736_115_524_948, 781_838_978_601]);
        let largest = Permutation::new(1 << 63, u64::MAX, u64::MAX);
        assert_eq!(largest.apply(0), 5_014_156_456_406_997_279);
        assert_eq!(largest.apply((1 << 63) - 1), 8_675_072_203_696_230_344);
    }

    #[test]
    fn every_sample_comes_exactly_once_at_every_small_size() {
        for n in 0..300 {
            assert_bijection(n, 1, 0);
            assert_bijection(n, n, u64::MAX);
        }
    }

    #[test]
    fn every_sample_comes_exactly_once_around_powers_of_two() {
        for bits in 8..17 {
            for n in [(1 << bits) - 1, 1 << bits, (1 << bits) + 1] {
                assert_bijection(n, 42, bits);
            }
        }
        assert_bijection(100_003, 0, 0);
    }

    #[test]
    fn an_order_depends_on_seed_and_epoch_and_on_nothing_else() {
        let base = order(100, 5, 3);
        assert_eq!(base, order(100, 5, 3));
        for (seed, epoch) in
            [(5, 4), (5, 2), (6, 3), (3, 5), (4, 4), (6, 2), (5 + (1 << 32), 3), (5, 3 + (1 << 32))]
        {
            assert_ne!(base, order(100, seed, epoch), "seed {seed} epoch {epoch}");
        }
    }

    #[test]
    fn a_shuffled_order_is_not_the_stored_one() {
        for seed in 0..50 {
            let kept = order(1000, seed, 0).iter().zip(0..).filter(|&(&x, i)| x == i).count();
            assert!(kept < 10, "{kept} samples of 1000 stay where they are, seed {seed}");
        }
    }

    #[test]
    fn every_order_of_a_few_samples_is_equally_likely() {
        for (n, orders) in [(2, 2), (3, 6), (4, 24), (5, 120)] {
            let mut counts = std::collections::HashMap::new();
            let draws = orders * 200;
            for seed in 0..draws {
                *counts.entry(order(n, seed, seed % 7)).or_insert(0) += 1;
            }
            let counts: Vec<u64> = counts.into_values().collect();
            assert_eq!(counts.len() as u64, orders, "some order of {n} samples never comes");
            let expected = vec![200.0; counts.len()];
            assert_scattered(&format!("orders of {n}"), &counts, &expected, orders as f64 - 1.0, 1.0);
        }
    }

    #[test]
    fn each_sample_is_equally_likely_at_each_position() {
        for (n, draws) in [(2, 4000), (3, 4000), (5, 4000), (10, 2000), (64, 1000), (200, 400), (1797, 100)] {
            // Cells of neighbouring positions and samples, of almost equal size.
            let cells = n.min(16);
            let cell = |x: u64| x * cells / n;
            let mut sizes = vec![0.0; cells as usize];
            (0..n).for_each(|x| sizes[cell(x) as usize] += 1.0);
            let mut counts = vec![0; (cells * cells) as usize];
            for seed in 0..draws {
                for (x, i) in order(n, seed, 0).into_iter().zip(0..) {
                    counts[(cell(i) * cells + cell(x)) as usize] += 1;
                }
            }
            let expected: Vec<f64> = (0..cells * cells)
                .map(|c| draws as f64 * sizes[(c / cells) as usize] * sizes[(c % cells) as usize] / n as f64)
                .collect();
            let freedom = ((cells - 1) * (cells - 1)) as f64;
            let scale = (n - 1) as f64 / n as f64;
            assert_scattered(&format!("positions, n {n}"), &counts, &expected, freedom, scale);
        }
    }

    #[test]
    fn neighbours_in_the_order_are_not_neighbours_in_the_file() {
        for (n, draws) in [(3, 4000), (5, 4000), (10, 2000), (64, 1000), (200, 400), (1797, 100)] {
            // The step from one position to the next, modulo n, is any of 1..n alike.
            let cells = (n - 1).min(32);
            let cell = |step: u64| ((step - 1) * cells / (n - 1)) as usize;
            let mut sizes = vec![0.0; cells as usize];
            (1..n).for_each(|step| sizes[cell(step)] += 1.0);
            let mut counts = vec![0; cells as usize];
            for seed in 0..draws {
                // Every other pair, so that the steps counted share no sample.
                for pair in order(n, seed, 1).chunks_exact(2) {
                    counts[cell((pair[1] + n - pair[0]) % n)] += 1;
                }
            }
            let steps = (draws * (n / 2)) as f64;
            let expected: Vec<f64> = sizes.iter().map(|size| steps * size / (n - 1) as f64).collect();
            assert_scattered(&format!("steps, n {n}"), &counts, &expected, cells as f64 - 1.0, 1.0);
        }
    }

    #[test]
    fn consecutive_epochs_are_independent() {
        let (n, cells) = (64, 64);
        let mut counts = vec![0; cells];
        for epoch in 0..1000 {
            let (this, next) = (order(n, 9, epoch), order(n, 9, epoch + 1));
            this.iter().zip(&next).for_each(|(a, b)| counts[((b + n - a) % n) as usize] += 1);
        }
        let expected = vec![1000.0; cells];
        assert_scattered("shifts between epochs", &counts, &expected, 63.0, 1.0);
    }

    #[test]
    fn huge_sizes_stay_in_range_and_are_quick() {
        for n in [10u64.pow(12), (1 << 40) + 1, 1 << 63, (1 << 63) - 1, u64::MAX] {
            let permutation = Permutation::new(n, 3, 1);
            let mut seen = std::collections::HashSet::new();
            // A seek that walked there from the first position would never end.
            for i in (0..100_000).chain(n - 100_000..n) {
                let x = permutation.apply(i);
                assert!(x < n);
                seen.insert(x);
            }
            assert_eq!(seen.len(), 200_000);
        }
    }

    proptest! {
        #[test]
        fn no_two_positions_share_a_sample(n in 2..u64::MAX, seed: u64, epoch: u64, a: u64, b: u64) {
            let (a, b) = (a % n, b % n);
            let permutation = Permutation::new(n, seed, epoch);
            let (x, y) = (permutation.apply(a), permutation.apply(b));
            prop_assert!(x < n && y < n);
            prop_assert_eq!(a == b, x == y);
            prop_assert_eq!((permutation.invert(x), permutation.invert(y)), (a, b));
        }
    }
}
