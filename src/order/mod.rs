//! Which sample comes when: arithmetic on (number of samples, seed, epoch, position), with nothing stored.

mod batches;
mod blocks;
mod interleave;
mod permutation;
mod run;
mod state;

pub use batches::LastBatch;
pub(crate) use batches::{Batches, Cut};
pub(crate) use interleave::{Interleave, Mixed, Part, gcd};
pub(crate) use run::{Course, Run};
pub(crate) use state::Stand;
pub use state::State;

use crate::{Error, Result};
use blocks::Blocks;
use permutation::Permutation;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How the samples of an epoch are mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Shuffle {
    /// Not at all: samples come as they are stored, the same in every epoch.
    #[default]
    None,
    /// A permutation of the whole dataset, another one in each epoch: any sample can come at any position.
    Full,
    /// Blocks of neighbours are permuted over the whole dataset, then samples are mixed within windows, both in
    /// another way in each epoch.
    ///
    /// A loader that has room for the batches of a window reads the blocks of the window whole and deals them out to its
    /// batches, so reads are as long as a block is. (With several ranks each reads its own samples of the blocks only.)
    ///
    /// What that costs in mixing, by `cargo bench --bench mixing`, for 2^20 samples in batches of 256: how far samples come
    /// from where they are stored, as a share of the dataset; how many neighbours in the file come in one batch; of how
    /// many blocks a batch has samples; how many of a batch's pairs of samples came in one batch in the epoch before.
    ///
    /// | shuffle | way | neighbours | blocks | met again |
    /// | --- | --- | --- | --- | --- |
    /// | `none` | 0 % | 99.61 % | 4.0 | 100 % |
    /// | `blocks:64:256` (a batch) | 33.3 % | 98.44 % | 4.0 | 24.7 % |
    /// | `blocks:64:1024` | 33.3 % | 24.55 % | 16.0 | 1.56 % |
    /// | `blocks:64:4096` (16 batches) | 33.3 % | 6.12 % | 63.0 | 0.119 % |
    /// | `blocks:64:16384` | 33.3 % | 1.54 % | 162.7 | 0.030 % |
    /// | `blocks:64:65536` | 33.3 % | 0.38 % | 227.0 | 0.025 % |
    /// | `full` | 33.3 % | 0.03 % | 254.1 | 0.024 % |
    ///
    /// So a window of 16 global batches or more is a good one, and of 64 hardly to be told from `full`.
    Blocks {
        /// Neighbouring samples of a block, from 1 on.
        block: u64,
        /// Positions in a window, from 1 on. Samples of different windows are not mixed with each other.
        window: u64,
    },
}

impl Shuffle {
    const NAMES: &'static str = "none, full, blocks:BLOCK:WINDOW";

    /// [`Shuffle::Blocks`] with sizes for samples of so many bytes (over all columns): blocks of about a mebibyte, but of no
    /// more than 16384 samples (a window is planned at once, and plans grow with the number of samples), and windows of 64
    /// of them.
    pub fn blocks_of(sample_bytes: u64) -> Self {
        let block = ((1u64 << 20) / sample_bytes.max(1)).clamp(1, 1 << 14);
        Shuffle::Blocks { block, window: 64 * block }
    }

    pub(crate) fn check(self) -> Result<()> {
        match self {
            Shuffle::Blocks { block: 0, .. } => {
                Err(Error::argument("a block of the shuffle has 0 samples; it must be at least 1"))
            }
            Shuffle::Blocks { window: 0, .. } => {
                Err(Error::argument("a window of the shuffle has 0 samples; it must be at least 1"))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for Shuffle {
    type Err = Error;

    /// Reads `none`, `full`, or `blocks:BLOCK:WINDOW` with two numbers of samples.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for anything else.
    fn from_str(name: &str) -> Result<Self> {
        let blocks = || {
            let (block, window) = name.strip_prefix("blocks:")?.split_once(':')?;
            Some(Shuffle::Blocks { block: block.parse().ok()?, window: window.parse().ok()? })
        };
        let shuffle = match name {
            "none" => Some(Shuffle::None),
            "full" => Some(Shuffle::Full),
            _ => blocks(),
        };
        let unknown = || Error::argument(format!("unknown shuffle {name:?}; known are {}", Shuffle::NAMES));
        shuffle.ok_or_else(unknown).and_then(|shuffle| shuffle.check().map(|()| shuffle))
    }
}

impl fmt::Display for Shuffle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shuffle::None => f.pad("none"),
            Shuffle::Full => f.pad("full"),
            Shuffle::Blocks { block, window } => f.pad(&format!("blocks:{block}:{window}")),
        }
    }
}

/// The order of one epoch: which sample comes at which position.
///
/// It depends on the number of samples, the seed, the epoch and the kind of shuffle, and on nothing else: it
/// is the same on every machine and in every version of this crate. It takes constant memory, and the sample
/// of any position is found in constant time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    samples: u64,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Stored,
    Full(Permutation),
    Blocks(Blocks),
}

impl Order {
    /// The order of `samples` samples in the epoch `epoch` of the run that has the seed `seed`. Without a
    /// shuffle, seed and epoch make no difference.
    ///
    /// A block or window of 0 samples is taken as one of 1.
    pub fn new(samples: u64, seed: u64, epoch: u64, shuffle: Shuffle) -> Self {
        let kind = match shuffle {
            Shuffle::None => Kind::Stored,
            Shuffle::Full => Kind::Full(Permutation::new(samples, seed, epoch)),
            Shuffle::Blocks { block, window } => {
                Kind::Blocks(Blocks::new(samples, block.max(1), window.max(1), seed, epoch))
            }
        };
        Order { samples, kind }
    }

    /// The number, counted from 0 in the order of storage, of the sample that comes at `position`; `None` at
    /// and after the end of the epoch.
    pub fn sample(&self, position: u64) -> Option<u64> {
        if position >= self.samples {
            return None;
        }
        Some(match &self.kind {
            Kind::Stored => position,
            Kind::Full(permutation) => permutation.apply(position),
            Kind::Blocks(blocks) => blocks.apply(position),
        })
    }

    /// The number of positions, which is the number of samples.
    pub fn len(&self) -> u64 {
        self.samples
    }

    /// Whether there are no samples at all.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn without_a_shuffle_samples_come_as_stored() {
        let order = Order::new(5, 9, 9, Shuffle::None);
        assert!((0..5).all(|position| order.sample(position) == Some(position)));
        assert_eq!((order.sample(5), order.sample(u64::MAX), order.len()), (None, None, 5));
        assert_eq!(order, Order::new(5, 1, 2, Shuffle::default()));
    }

    #[test]
    fn a_shuffled_epoch_has_every_sample_once_and_ends() {
        let order = Order::new(1797, 7, 0, Shuffle::Full);
        let mut samples: Vec<_> = (0..order.len()).map(|p| order.sample(p).unwrap()).collect();
        assert_eq!(samples[..3], [1289, 1531, 940]);
        samples.sort_unstable();
        assert!(samples.into_iter().eq(0..1797));
        assert_eq!(order.sample(1797), None);
        assert_eq!(order.sample(u64::MAX), None);
    }

    #[test]
    fn epochs_differ_and_the_same_epoch_is_the_same() {
        assert_ne!(Order::new(100, 7, 0, Shuffle::Full), Order::new(100, 7, 1, Shuffle::Full));
        assert_eq!(Order::new(100, 7, 1, Shuffle::Full), Order::new(100, 7, 1, Shuffle::Full));
    }

    #[test]
    fn an_empty_order_has_no_first_sample() {
        for shuffle in [Shuffle::None, Shuffle::Full, Shuffle::Blocks { block: 3, window: 9 }] {
            let order = Order::new(0, 7, 0, shuffle);
            assert!(order.is_empty());
            assert_eq!(order.sample(0), None);
            assert_eq!(Order::new(1, 7, 0, shuffle).sample(0), Some(0));
        }
    }

    #[test]
    fn names_of_shuffles_are_read_as_written() {
        let blocks = Shuffle::Blocks { block: 64, window: 4096 };
        for (shuffle, name) in [(Shuffle::None, "none"), (Shuffle::Full, "full"), (blocks, "blocks:64:4096")]
        {
            assert_eq!(shuffle.to_string(), name);
            assert_eq!(name.parse::<Shuffle>().unwrap(), shuffle);
        }
        let error = "Full".parse::<Shuffle>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.to_string(), "unknown shuffle \"Full\"; known are none, full, blocks:BLOCK:WINDOW");
        for wrong in
            ["blocks", "blocks:", "blocks:4", "blocks:4:x", "blocks:0:8", "blocks:8:0", "blocks:1:2:3"]
        {
            assert_eq!(wrong.parse::<Shuffle>().unwrap_err().kind(), ErrorKind::InvalidArgument, "{wrong}");
        }
        assert_eq!(Shuffle::blocks_of(150_528), Shuffle::Blocks { block: 6, window: 384 });
        assert_eq!(Shuffle::blocks_of(u64::MAX), Shuffle::Blocks { block: 1, window: 64 });
        for tiny in [0, 1, 64] {
            assert_eq!(Shuffle::blocks_of(tiny), Shuffle::Blocks { block: 16_384, window: 1 << 20 });
        }
    }
}
