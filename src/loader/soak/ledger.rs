//! What a run has delivered, as plain lists: which rows have to come next, and that in the end every sample came once.

use crate::order::{LastBatch, Order, Shuffle, Stand, State};

/// How epochs are cut into batches. A run that goes on from a state may be cut another way than before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) batch: u64,
    pub(super) world: u64,
    pub(super) last: LastBatch,
}

impl Cut {
    fn global(self) -> u64 {
        self.batch * self.world
    }

    /// Whether so many samples could not be dealt to the ranks evenly.
    pub(super) fn refuses(self, samples: u64) -> bool {
        self.last == LastBatch::Short && (1..self.world).contains(&(samples % self.global()))
    }
}

/// A global batch that was delivered to every rank, or the end of an epoch that had none left.
#[derive(Debug)]
struct Taken {
    epoch: u64,
    /// Without what repeats others to fill the batch.
    samples: Vec<u64>,
    /// The position behind it.
    until: u64,
    after: Stand,
    /// So many samples of the epoch may be left out.
    spare: u64,
}

/// What was delivered up to the states that the run went on from.
#[derive(Debug)]
pub(super) struct Ledger {
    fingerprint: String,
    pub(super) samples: u64,
    pub(super) shuffle: Shuffle,
    pub(super) seed: u64,
    /// Where the first of `taken` begins.
    start: Stand,
    taken: Vec<Taken>,
    order: (u64, Vec<u64>),
    /// Epochs that every sample of came in, and that the run can no more go back to.
    pub(super) whole: u64,
}

impl Ledger {
    pub(super) fn new(fingerprint: &str, samples: u64, shuffle: Shuffle, seed: u64) -> Ledger {
        Ledger {
            fingerprint: fingerprint.into(),
            samples,
            shuffle,
            seed,
            start: Stand::default(),
            taken: Vec::new(),
            order: (u64::MAX, Vec::new()),
            whole: 0,
        }
    }

    pub(super) fn stand(&self) -> Stand {
        self.taken.last().map_or(self.start, |taken| taken.after)
    }

    pub(super) fn state(&self) -> State {
        State::new(&self.fingerprint, self.shuffle, self.seed, self.stand())
    }

    /// Samples of the present epoch that have not come.
    pub(super) fn left(&self) -> u64 {
        self.samples - self.stand().position
    }

    /// Batches of the present epoch that have not come.
    pub(super) fn batches_left(&self, cut: Cut) -> u64 {
        match cut.last {
            LastBatch::Drop => self.left() / cut.global(),
            _ => self.left().div_ceil(cut.global()),
        }
    }

    /// The rows that a rank has to get next, and how many of them are padding; `None` at the end of the epoch.
    pub(super) fn rows(&mut self, cut: Cut, rank: u64) -> Option<(Vec<u64>, u64)> {
        if self.batches_left(cut) == 0 {
            return None;
        }
        let Stand { epoch, position } = self.stand();
        if self.order.0 != epoch {
            let order = Order::new(self.samples, self.seed, epoch, self.shuffle);
            self.order = (epoch, (0..self.samples).map(|at| order.sample(at).unwrap()).collect());
        }
        let order = &self.order.1;
        let mut rows: Vec<u64> = order[position as usize..].to_vec();
        rows.truncate(cut.global() as usize);
        let real = rows.len() as u64;
        rows.extend(order.iter().cycle().take((cut.global() - real) as usize));
        let (from, until) = match cut.last {
            LastBatch::Short => (real * rank / cut.world, real * (rank + 1) / cut.world),
            _ => (rank * cut.batch, (rank + 1) * cut.batch),
        };
        let padding = (from..until).filter(|row| *row >= real).count() as u64;
        Some((rows[from as usize..until as usize].to_vec(), padding))
    }

    /// Every rank was delivered its rows: these samples, the padding left out.
    pub(super) fn take(&mut self, cut: Cut, samples: Vec<u64>) {
        let Stand { epoch, position } = self.stand();
        let until = (position + cut.global() * u64::from(!samples.is_empty())).min(self.samples);
        let spare = if cut.last == LastBatch::Drop { cut.global() - 1 } else { 0 };
        self.taken.push(Taken { epoch, samples, until, after: Stand { epoch, position: until }, spare });
        if self.batches_left(cut) == 0 {
            if let Some(last) = self.taken.last_mut() {
                last.after = Stand { epoch: epoch + 1, position: 0 };
            }
            self.check(epoch);
        }
        // Only what the last two epochs had may be gone back to.
        let old = self.taken.iter().take_while(|taken| taken.epoch + 1 < self.stand().epoch).count();
        let known = self.taken[..old].iter().filter(|taken| taken.after.epoch > taken.epoch);
        self.whole += known.count() as u64;
        self.start = self.taken[..old].last().map_or(self.start, |taken| taken.after);
        self.taken.drain(..old);
    }

    /// Every sample of an epoch that is over came once, but for those at its end that may be dropped.
    fn check(&self, epoch: u64) {
        let all: Vec<&Taken> = self.taken.iter().filter(|taken| taken.epoch == epoch).collect();
        let Some(last) = all.last() else { return };
        let order = Order::new(self.samples, self.seed, epoch, self.shuffle);
        let mut wanted: Vec<u64> = (0..last.until).map(|at| order.sample(at).unwrap()).collect();
        let mut found: Vec<u64> = all.iter().flat_map(|taken| taken.samples.iter().copied()).collect();
        wanted.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, wanted, "samples of epoch {epoch}");
        assert!(self.samples - last.until <= last.spare, "epoch {epoch} ended at {}", last.until);
    }

    /// How many states the run can go back to, the present one included.
    pub(super) fn states(&self) -> usize {
        self.taken.len() + 1
    }

    /// Forgets all that was delivered after one of them.
    pub(super) fn go_back(&mut self, state: usize) {
        self.taken.truncate(state);
    }

    /// The run goes on at the beginning of another epoch.
    pub(super) fn jump(&mut self, epoch: u64) {
        self.taken.clear();
        self.start = Stand { epoch, position: 0 };
    }
}
