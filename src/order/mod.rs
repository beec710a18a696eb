//! Which sample comes when: arithmetic on (number of samples, seed, epoch, position), with nothing stored.

mod batches;
mod permutation;

pub(crate) use batches::Batches;
pub use batches::LastBatch;

use crate::{Error, Result};
use permutation::Permutation;
use std::fmt;
use std::str::FromStr;

/// How the samples of an epoch are mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Shuffle {
    /// Not at all: samples come as they are stored, the same in every epoch.
    #[default]
    None,
    /// A permutation of the whole dataset, another one in each epoch: any sample can come at any position.
    Full,
}

impl Shuffle {
    const ALL: [Shuffle; 2] = [Shuffle::None, Shuffle::Full];

    fn name(self) -> &'static str {
        match self {
            Shuffle::None => "none",
            Shuffle::Full => "full",
        }
    }
}

impl FromStr for Shuffle {
    type Err = Error;

    /// Reads `none` or `full`.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for any other name.
    fn from_str(name: &str) -> Result<Self> {
        by_name("shuffle", &Shuffle::ALL, Shuffle::name, name)
    }
}

impl fmt::Display for Shuffle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
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
    /// `None` where samples come as they are stored.
    permutation: Option<Permutation>,
}

impl Order {
    /// The order of `samples` samples in the epoch `epoch` of the run that has the seed `seed`. Without a
    /// shuffle, seed and epoch make no difference.
    pub fn new(samples: u64, seed: u64, epoch: u64, shuffle: Shuffle) -> Self {
        let permutation = match shuffle {
            Shuffle::None => None,
            Shuffle::Full => Some(Permutation::new(samples, seed, epoch)),
        };
        Order { samples, permutation }
    }

    /// The number, counted from 0 in the order of storage, of the sample that comes at `position`; `None` at
    /// and after the end of the epoch.
    pub fn sample(&self, position: u64) -> Option<u64> {
        if position >= self.samples {
            return None;
        }
        Some(match &self.permutation {
            Some(permutation) => permutation.apply(position),
            None => position,
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

/// The one of `all` that is called `name`, or an error that lists the names there are.
fn by_name<T: Copy>(what: &str, all: &[T], name_of: fn(T) -> &'static str, name: &str) -> Result<T> {
    all.iter().copied().find(|&value| name_of(value) == name).ok_or_else(|| {
        let known: Vec<_> = all.iter().copied().map(name_of).collect();
        Error::argument(format!("unknown {what} {name:?}; known are {}", known.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use proptest::prelude::*;

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
        for shuffle in [Shuffle::None, Shuffle::Full] {
            let order = Order::new(0, 7, 0, shuffle);
            assert!(order.is_empty());
            assert_eq!(order.sample(0), None);
            assert_eq!(Order::new(1, 7, 0, shuffle).sample(0), Some(0));
        }
    }

    #[test]
    fn names_of_shuffles_are_read_as_written() {
        for (shuffle, name) in [(Shuffle::None, "none"), (Shuffle::Full, "full")] {
            assert_eq!(shuffle.to_string(), name);
            assert_eq!(name.parse::<Shuffle>().unwrap(), shuffle);
        }
        let error = "Full".parse::<Shuffle>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.to_string(), "unknown shuffle \"Full\"; known are none, full");
    }

    proptest! {
        #[test]
        fn the_batches_of_a_shuffled_epoch_deliver_every_sample(
            samples in 1u64..500, size in 1u64..70, seed: u64, epoch: u64,
        ) {
            let order = Order::new(samples, seed, epoch, Shuffle::Full);
            let batches = Batches::new(samples, size, LastBatch::Short).unwrap();
            let mut seen: Vec<u64> = (0..batches.count())
                .map(|batch| batches.rows(batch))
                .flat_map(|rows| (0..rows.len()).map(move |i| rows.position(i)))
                .map(|position| order.sample(position).unwrap())
                .collect();
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..samples));
        }
    }
}
