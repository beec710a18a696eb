//! The loaders of all ranks of a run, and what goes wrong in them on purpose.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::tests::{Data, look};
use super::super::{BadSamples, Loader};
use super::ledger::{Cut, Ledger};
use crate::ErrorKind;
use crate::backend::Backend;
use crate::backend::testing::{Fate, Faults, Random, Seen};
use crate::launch::Rank;
use crate::memory::Device;
use crate::order::{LastBatch, State};

/// A fault that waits for its read, whichever rank's it is.
#[derive(Debug, Default)]
pub(super) struct Trap(Mutex<Option<Armed>>);

#[derive(Debug, Clone, Copy)]
struct Armed {
    fate: Fate,
    /// Reads until it springs.
    after: u64,
    /// The rank that it caught.
    caught: Option<usize>,
}

impl Trap {
    fn spring(&self, rank: usize) -> Option<Fate> {
        let mut armed = self.0.lock().unwrap();
        let armed = armed.as_mut().filter(|armed| armed.caught.is_none())?;
        if armed.after > 0 {
            armed.after -= 1;
            return None;
        }
        armed.caught = Some(rank);
        Some(armed.fate)
    }

    pub(super) fn arm(&self, fate: Fate, after: u64) {
        *self.0.lock().unwrap() = Some(Armed { fate, after, caught: None });
    }

    pub(super) fn disarm(&self) -> Option<usize> {
        self.0.lock().unwrap().take().and_then(|armed| armed.caught)
    }
}

/// A loader of every rank.
pub(super) struct Fleet {
    pub(super) cut: Cut,
    pub(super) loaders: Vec<Loader>,
    pub(super) seen: Vec<Arc<Mutex<Seen>>>,
    pub(super) trap: Arc<Trap>,
    pub(super) slots: usize,
    /// How long it waits while every slot is lent is no matter; else that is short.
    pub(super) patient: bool,
    /// It leaves out samples that cannot be read, of which there are none: a read that failed is made good.
    pub(super) skips: bool,
}

impl Fleet {
    pub(super) fn none() -> Fleet {
        let cut = Cut { batch: 1, world: 1, last: LastBatch::Drop };
        Fleet {
            cut,
            loaders: vec![],
            seen: vec![],
            trap: Arc::default(),
            slots: 0,
            patient: true,
            skips: false,
        }
    }

    /// `None`: what is left of the epoch, or a whole one, cannot be dealt to the ranks evenly, and the loader said so.
    pub(super) fn build(
        (backend, device): (Backend, Device),
        data: &Data,
        ledger: &Ledger,
        cut: Cut,
        random: &mut Random,
    ) -> Option<Fleet> {
        // What is saved is text.
        let state: State = serde_json::from_str(&serde_json::to_string(&ledger.state()).unwrap()).unwrap();
        let mut fleet =
            Fleet { cut, patient: random.below(3) > 0, skips: random.below(3) == 0, ..Fleet::none() };
        let noisy = random.below(2) == 0;
        let timeout = Duration::from_millis(if fleet.patient { 300_000 } else { 40 });
        let depth = [1, 2, 3, 8, 16][random.below(5)];
        let prefetch = 1 + random.below(6) as u32;
        fleet.slots = prefetch as usize + 1;
        for rank in 0..cut.world as usize {
            let (trap, mut noise) = (Arc::clone(&fleet.trap), Random(random.next()));
            let mut faults = Faults::new(move |read| match (trap.spring(rank), noise.below(40)) {
                (Some(fate), _) => fate,
                (None, 0) if noisy => Fate::Cut((noise.below(read.len as usize) as u32).max(4096)),
                (None, 1) if noisy => Fate::Cut(4096),
                (None, 2) if noisy && read.before < 20 => {
                    Fate::Fail([libc::EINTR, libc::EAGAIN][noise.below(2)])
                }
                (None, 3) if noisy && read.direct && noise.below(20) == 0 => {
                    Fate::Fail([libc::EINVAL, libc::EOPNOTSUPP][noise.below(2)])
                }
                _ => Fate::Pass,
            });
            if noisy {
                faults = faults.disorder(random.next());
            }
            fleet.seen.push(faults.seen());
            let builder = data.loader().backend(backend).device(device);
            let builder = builder.seed(ledger.seed).shuffle(ledger.shuffle);
            let builder = builder.batch_size(cut.batch).last_batch(cut.last).resume(state.clone());
            let builder = builder.rank(Rank::new(rank as u32, cut.world as u32).unwrap());
            let builder = builder.prefetch(prefetch).queue_depth(depth).lend_timeout(timeout);
            let builder = builder.io_bytes([4096, 8192, 64 << 10][random.below(3)]);
            let mut builder = builder.clear_slots(random.below(2) == 0);
            if fleet.skips {
                builder = builder.bad_samples(BadSamples::Skip { limit: 0 });
            }
            builder.wrap = Some(faults.wrap());
            let refused = cut.refuses(ledger.samples) || cut.refuses(ledger.left());
            match builder.build() {
                Ok(loader) => fleet.loaders.push(loader),
                Err(error) => {
                    assert!(refused && error.kind() == ErrorKind::InvalidArgument, "{error}");
                    return None;
                }
            }
            assert!(!refused, "{cut:?} with {} left of {}", ledger.left(), ledger.samples);
        }
        let agreed = fleet.loaders.iter().all(|it| it.agreement() == fleet.loaders[0].agreement());
        assert!(agreed && fleet.loaders.iter().all(|it| it.state() == state));
        Some(fleet)
    }

    /// Takes every rank to where the run stands: after an error some are a batch ahead. It also ends what was forgotten.
    pub(super) fn align(&mut self, ledger: &Ledger) {
        for loader in &mut self.loaders {
            loader.resume(&ledger.state()).unwrap();
        }
        self.assert_idle();
    }

    pub(super) fn assert_idle(&self) {
        // A reader that is dropped by a panic waits for what is in flight, and tells nobody.
        let idle = |seen: &Seen| seen.in_flight == 0 || seen.dropped;
        assert!(self.seen.iter().all(|seen| idle(&look(seen))), "reads in flight after an epoch");
    }
}
