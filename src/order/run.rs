//! The samples of a run, epoch by epoch.

use std::sync::Arc;

use super::{Interleave, Mixed, Order, Shuffle};
use crate::Result;

/// What the order of every epoch of a run follows from.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// Samples of an epoch.
    pub(crate) samples: u64,
    pub(crate) seed: u64,
    pub(crate) shuffle: Shuffle,
    /// For a mixture of datasets.
    pub(crate) mixture: Option<Arc<Interleave>>,
}

/// The samples of one epoch, by position.
#[derive(Debug)]
pub(crate) enum Course {
    One(Order),
    Mixed(Mixed),
}

impl Run {
    /// Fails for an epoch of a mixture that is beyond what can be counted.
    pub(crate) fn epoch(&self, epoch: u64) -> Result<Course> {
        Ok(match &self.mixture {
            None => Course::One(Order::new(self.samples, self.seed, epoch, self.shuffle)),
            Some(mixture) => {
                Course::Mixed(Mixed::new(mixture, self.samples, self.seed, epoch, self.shuffle)?)
            }
        })
    }
}

impl Course {
    /// The sample at a position; `None` at and after the end of the epoch.
    pub(crate) fn sample(&mut self, position: u64) -> Option<u64> {
        match self {
            Course::One(order) => order.sample(position),
            Course::Mixed(mixed) => mixed.sample(position),
        }
    }
}
