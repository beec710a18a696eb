//! A shuffle whose reads stay large: blocks of neighbours are permuted, then samples are mixed within windows.

use super::permutation::{Permutation, mix};

/// Sets the keys of blocks, and of the windows' insides, apart from those of a full shuffle.
const BLOCK_TAG: u64 = 0x626c_6f63_6b73_2e31;
const WINDOW_TAG: u64 = 0x7769_6e64_6f77_2e31;

/// A bijection of `[0, n)` in constant memory, in two steps.
///
/// The samples are cut into blocks of `block` neighbours (the last one may be smaller), which come in a permuted
/// order. The sequence that this gives is cut into windows of `window` positions (the last one may be smaller), and
/// each is permuted by itself. So all samples of a window lie in about `window / block` blocks, wherever in the
/// dataset those are, and who reads a window at once reads whole blocks.
///
/// As with `Permutation`, nothing here may ever change what `apply` returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blocks {
    n: u64,
    block: u64,
    window: u64,
    order: Permutation,
    /// Where in the permuted order the last block comes, and by how many samples it falls short of a whole one.
    last_at: u64,
    missing: u64,
    window_seed: u64,
    epoch: u64,
}

impl Blocks {
    /// The order of `n` samples that belongs to `seed` and `epoch`. `block` and `window` are at least 1.
    pub(crate) fn new(n: u64, block: u64, window: u64, seed: u64, epoch: u64) -> Self {
        let count = n.div_ceil(block);
        let order = Permutation::new(count, mix(seed ^ BLOCK_TAG), epoch);
        Blocks {
            n,
            block,
            window,
            last_at: if count == 0 { 0 } else { order.invert(count - 1) },
            // Not `count * block - n`, which could overflow.
            missing: if n.is_multiple_of(block) { 0 } else { block - n % block },
            order,
            window_seed: mix(seed ^ WINDOW_TAG),
            epoch,
        }
    }

    /// Where `i` goes. `i` must be less than `n`.
    pub(crate) fn apply(&self, i: u64) -> u64 {
        debug_assert!(i < self.n, "position {i} of {} samples in blocks", self.n);
        let number = i / self.window;
        self.block_sample(number * self.window + self.inside(number).apply(i % self.window))
    }

    /// The permutation within the window of this number.
    fn inside(&self, number: u64) -> Permutation {
        let len = self.window.min(self.n - number * self.window);
        Permutation::new(len, mix(self.window_seed ^ self.epoch), number)
    }

    /// The sample at a place in the sequence of permuted blocks.
    fn block_sample(&self, place: u64) -> u64 {
        // Everything behind the last block, which may be a small one, comes earlier by what that is missing.
        let last_from = u128::from(self.last_at) * u128::from(self.block);
        let last_until = last_from + u128::from(self.block - self.missing);
        let shifted = match u128::from(place) >= last_until {
            true => u128::from(place) + u128::from(self.missing),
            false => u128::from(place),
        };
        let block = u128::from(self.block);
        // Below the number of blocks, and within a block: both fit.
        let (slot, within) = ((shifted / block) as u64, (shifted % block) as u64);
        self.order.apply(slot) * self.block + within
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(n: u64, block: u64, window: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let blocks = Blocks::new(n, block, window, seed, epoch);
        (0..n).map(|i| blocks.apply(i)).collect()
    }

    #[test]
    fn every_sample_comes_exactly_once_at_every_small_size() {
        for n in 0..70 {
            for block in [1, 2, 3, 7, 16, 69, 70, 200] {
                for window in [1, 2, 5, 16, 64, 1000] {
                    let mut all = order(n, block, window, n, 3);
                    all.sort_unstable();
                    assert!(all.into_iter().eq(0..n), "n {n} block {block} window {window}");
                }
            }
        }
    }

    #[test]
    fn a_window_of_one_keeps_blocks_whole_and_in_order() {
        let all = order(1000, 16, 1, 7, 0);
        let mut starts = Vec::new();
        let mut rest = &all[..];
        while let Some(&first) = rest.first() {
            let len = if first == 992 { 8 } else { 16 };
            assert!(first.is_multiple_of(16) && rest[..len].iter().copied().eq(first..first + len as u64));
            starts.push(first);
            rest = &rest[len..];
        }
        assert!(starts.windows(2).any(|pair| pair[0] > pair[1]), "the blocks are not mixed");
        assert_eq!(starts.len(), 63);
    }

    #[test]
    fn a_window_touches_few_blocks_and_mixes_them() {
        let (block, window) = (32, 256);
        let all = order(10_000, block, window, 9, 2);
        for samples in all.chunks(window as usize) {
            let mut blocks: Vec<u64> = samples.iter().map(|sample| sample / block).collect();
            blocks.sort_unstable();
            blocks.dedup();
            // The small last block can shift the others by a part of one.
            assert!(blocks.len() as u64 <= window / block + 2, "{} blocks", blocks.len());
            let neighbours = samples.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
            assert!(neighbours < samples.len() / 8, "{neighbours} neighbours of {}", samples.len());
        }
    }

    #[test]
    fn the_order_is_fixed_for_all_time() {
        // Values of an independent implementation, which puts blocks and windows together as lists.
        assert_eq!(order(10, 3, 4, 7, 0), [8, 6, 7, 0, 1, 4, 3, 2, 9, 5]);
        let blocks = Blocks::new(100_003, 100, 4096, 7, 3);
        assert_eq!([0, 1, 50_000, 100_002].map(|i| blocks.apply(i)), [34_786, 57_412, 29_481, 71_613]);
    }

    #[test]
    fn an_order_depends_on_seed_and_epoch() {
        let base = order(300, 4, 50, 5, 3);
        assert_eq!(base, order(300, 4, 50, 5, 3));
        for (seed, epoch) in [(5, 4), (6, 3), (3, 5), (4, 4)] {
            assert_ne!(base, order(300, 4, 50, seed, epoch));
        }
        // Windows of one epoch are not mixed alike.
        let blocks = Blocks::new(1 << 20, 1 << 20, 64, 1, 0);
        let inside =
            |blocks: &Blocks, w: u64| (0..64).map(|i| blocks.apply(w * 64 + i) % 64).collect::<Vec<_>>();
        assert_ne!(inside(&blocks, 0), inside(&blocks, 1));
    }

    proptest! {
        #[test]
        fn huge_orders_stay_in_range_and_never_repeat(
            n in 2..u64::MAX, block in 1..u64::MAX, window in 1..u64::MAX, seed: u64, a: u64, b: u64,
        ) {
            let (a, b) = (a % n, b % n);
            let blocks = Blocks::new(n, block, window, seed, 1);
            let (x, y) = (blocks.apply(a), blocks.apply(b));
            prop_assert!(x < n && y < n);
            prop_assert_eq!(a == b, x == y);
        }

        #[test]
        fn orders_of_any_shape_are_permutations(n in 0u64..400, block in 1u64..80, window in 1u64..500, seed: u64) {
            let mut all = order(n, block, window, seed, 0);
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..n));
        }
    }
}
