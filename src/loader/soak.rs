//! A soak: hundreds of epochs of runs that are broken off, resumed, cut another way and disturbed at random. Every batch is
//! held to the arithmetic of the order; threads, descriptors and memory are counted all the while.
//!
//! Each backend has a child process to itself, so that what is counted there is its own. By hand, for longer:
//!
//! ```text
//! GPUFEED_SOAK_EPOCHS=100000 GPUFEED_SOAK_SEED=7 cargo test --release --lib soak -- --nocapture --test-threads=1
//! ```

mod fleet;
mod ledger;
mod usage;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::tests::{Data, backends, look};
use super::{Batch, Loader, StopHandle};
use crate::backend::Backend;
use crate::backend::testing::{Fate, Random};
use crate::memory::Device;
use crate::order::{LastBatch, Shuffle};
use crate::{Error, ErrorKind};
use fleet::Fleet;
use ledger::{Cut, Ledger};
use usage::{Usage, in_child, number};

/// What a step of the soak does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    /// The rest of the epoch.
    Whole,
    /// Some batches, and the epoch dropped.
    Leave,
    /// Some batches, and the epoch forgotten: it goes on reading.
    Forget,
    /// Some batches, of which some are kept.
    Keep,
    /// What was kept goes to another thread, which drops it in any order.
    Scatter,
    /// Back to an earlier state, in the same loaders.
    GoBack,
    /// To the beginning of any epoch.
    Jump,
    /// Other loaders go on from the saved state.
    Rebuild,
    /// The consumer panics between two batches.
    Panic,
    /// The consumer holds every slot.
    Hold,
    /// A stop from another thread.
    Stop,
    /// A read fails, or a thread panics.
    Fault,
}

const ACTS: [(Act, usize); 12] = [
    (Act::Whole, 8),
    (Act::Leave, 4),
    (Act::Forget, 3),
    (Act::Keep, 4),
    (Act::Scatter, 2),
    (Act::GoBack, 2),
    (Act::Jump, 1),
    (Act::Rebuild, 3),
    (Act::Panic, 1),
    (Act::Hold, 2),
    (Act::Stop, 1),
    (Act::Fault, 5),
];

/// A batch of every rank.
type Batches = Vec<Batch>;

struct Soak {
    backend: Backend,
    device: Device,
    random: Random,
    all: Vec<Arc<Data>>,
    data: Arc<Data>,
    ledger: Ledger,
    fleet: Fleet,
    /// Batches of the present loaders, and of those before.
    kept: Vec<Batches>,
    old: Vec<Batches>,
    helpers: Vec<JoinHandle<()>>,
    usage: Usage,
    done: BTreeMap<Act, u64>,
}

/// Every row is what the files have, wherever the batch is.
fn assert_batch(data: &Data, batch: &Batch) {
    let mut bytes = Vec::new();
    batch.columns().next().unwrap().copy_to_host(&mut bytes).unwrap();
    let size = data.dataset.sample_bytes() as usize;
    assert_eq!(bytes.len(), batch.len() * size);
    for (row, &sample) in bytes.chunks_exact(size).zip(batch.samples()) {
        assert!(row == data.sample(sample), "sample {sample} in batch {} is wrong", batch.index());
    }
    assert_eq!(batch.bytes_by_way().total(), bytes.len() as u64);
}

fn shuffles(data: &Data) -> [Shuffle; 4] {
    let window = data.dataset.len() / 5;
    [
        Shuffle::None,
        Shuffle::Full,
        Shuffle::Blocks { block: 6, window: 33 },
        Shuffle::Blocks { block: 4, window },
    ]
}

fn new_ledger(data: &Data, shuffle: Shuffle, seed: u64) -> Ledger {
    Ledger::new(data.dataset.fingerprint(), data.dataset.len(), shuffle, seed)
}

impl Soak {
    fn new(backend: Backend, device: Device, seed: u64) -> Soak {
        let sizes: [(usize, &[usize]); 3] = [(700, &[90, 1, 70, 33]), (4096, &[40, 21]), (20_001, &[17, 20])];
        let all: Vec<_> = sizes.iter().map(|(record, shards)| Arc::new(Data::new(*record, shards))).collect();
        // A driver starts threads and opens files of its own, once.
        drop(all[0].loader().backend(backend).device(device).build().unwrap());
        let mut soak = Soak {
            backend,
            device,
            random: Random(seed),
            data: Arc::clone(&all[0]),
            ledger: new_ledger(&all[0], Shuffle::Full, seed),
            all,
            fleet: Fleet::none(),
            kept: Vec::new(),
            old: Vec::new(),
            helpers: Vec::new(),
            usage: Usage::now(),
            done: BTreeMap::new(),
        };
        soak.rebuild();
        soak
    }

    fn run(mut self, epochs: u64) {
        let mut whole = 0;
        for step in 0.. {
            if whole + self.ledger.whole >= epochs {
                break;
            }
            let mut dice = self.random.below(ACTS.iter().map(|(_, weight)| weight).sum());
            let drawn = ACTS.iter().find(|(_, weight)| match dice.checked_sub(*weight) {
                Some(rest) => (dice = rest, false).1,
                None => true,
            });
            let act = drawn.unwrap().0;
            let (cut, stand) = (self.fleet.cut, self.ledger.stand());
            println!("step {step}: {act:?} at {stand:?}, {cut:?}, slots {}", self.fleet.slots);
            let before = self.ledger.whole;
            self.step(act);
            // Another run begins to count anew.
            whole += if self.ledger.whole < before { before } else { 0 };
            *self.done.entry(act).or_default() += 1;
        }
        self.ledger = new_ledger(&self.data, Shuffle::None, 0);
        self.drop_all();
        self.settle();
        println!("{} to {}: {epochs} epochs, {:?}", self.backend, self.device, self.done);
        println!("{} to {}: {}", self.backend, self.device, self.usage.assert_flat());
    }

    fn step(&mut self, act: Act) {
        let some = self.random.below(6);
        let over = match act {
            Act::Whole => self.go(usize::MAX, None, false, &mut |_| ()),
            Act::Leave => self.go(some, None, false, &mut |_| ()),
            Act::Forget => self.go(some, None, true, &mut |_| ()),
            Act::Keep => return self.keep(some),
            Act::Scatter => return self.scatter(),
            Act::GoBack => return self.go_back(),
            Act::Jump => {
                let epoch = self.random.below(1000) as u64;
                self.ledger.jump(epoch);
                self.go(some, Some(epoch), false, &mut |_| ())
            }
            Act::Rebuild => return self.rebuild(),
            Act::Panic => return self.panic(some),
            Act::Hold => return self.hold(),
            Act::Stop => return self.stop(),
            Act::Fault => return self.fault(),
        };
        over.unwrap();
    }

    /// Up to `most` batches from where the run stands, or from the beginning of an epoch, each held to the ledger. In the
    /// end the epoch is dropped or forgotten.
    fn go(
        &mut self,
        most: usize,
        jump: Option<u64>,
        forget: bool,
        each: &mut dyn FnMut(Batches),
    ) -> Result<(), Error> {
        let Soak { fleet, ledger, data, .. } = self;
        let (cut, start) = (fleet.cut, ledger.stand());
        let mut epochs = Vec::new();
        for loader in &mut fleet.loaders {
            let epoch = match jump {
                Some(epoch) => loader.epoch(epoch)?,
                None => loader.next_epoch()?,
            };
            assert_eq!((epoch.number(), epoch.batches_left()), (start.epoch, ledger.batches_left(cut)));
            epochs.push(epoch);
        }
        for number in 0..most as u64 {
            let (mut batches, mut samples) = (Vec::new(), Vec::new());
            for (rank, epoch) in epochs.iter_mut().enumerate() {
                let wanted = ledger.rows(cut, rank as u64);
                let batch = match epoch.next().transpose()? {
                    Some(batch) => batch,
                    None => {
                        assert_eq!(wanted, None, "the epoch ended early");
                        continue;
                    }
                };
                assert_batch(data, &batch);
                assert_eq!(wanted, Some((batch.samples().to_vec(), batch.padding())));
                assert_eq!(batch.epoch(), start.epoch);
                assert_eq!(batch.index(), start.position / (cut.batch * cut.world) + number);
                assert_eq!(batch.state(), epoch.state());
                samples.extend_from_slice(&batch.samples()[..batch.len() - batch.padding() as usize]);
                batches.push(batch);
            }
            ledger.take(cut, samples);
            let state = ledger.state();
            assert!(epochs.iter().all(|epoch| epoch.state() == state), "{state:?}");
            assert!(batches.iter().all(|batch| batch.state() == state));
            each(batches);
            if ledger.stand().epoch != start.epoch {
                break;
            }
        }
        if forget {
            epochs.into_iter().for_each(std::mem::forget);
        } else {
            // Of a whole epoch, the end too. (A stop may have come meanwhile.)
            let whole = ledger.stand().epoch != start.epoch;
            for epoch in epochs.iter_mut().filter(|_| whole) {
                assert!(epoch.next().transpose()?.is_none());
            }
            drop(epochs);
            fleet.assert_idle();
        }
        assert!(fleet.loaders.iter().all(|loader| loader.state() == ledger.state()));
        Ok(())
    }

    /// Keeps batches, but never all slots.
    fn keep(&mut self, most: usize) {
        let (mut kept, room) = (std::mem::take(&mut self.kept), self.fleet.slots - 1);
        let mut random = Random(self.random.next());
        let gone = self.go(most, None, false, &mut |batches| {
            kept.push(batches);
            while kept.len() > room || (!kept.is_empty() && random.below(3) == 0) {
                kept.swap_remove(random.below(kept.len()));
            }
        });
        self.kept = kept;
        gone.unwrap();
    }

    /// Drops what was kept in another thread, in any order.
    fn scatter(&mut self) {
        let mut all: Vec<Batch> = self.kept.drain(..).chain(self.old.drain(..)).flatten().collect();
        let (datas, mut random) = (self.all.clone(), Random(self.random.next()));
        self.helpers.push(std::thread::spawn(move || {
            random.shuffle(&mut all);
            for batch in all {
                let size = batch.columns().next().unwrap().size_bytes() / batch.len();
                let data = datas.iter().find(|data| data.dataset.sample_bytes() == size as u64);
                assert_batch(data.unwrap(), &batch);
                std::thread::sleep(Duration::from_micros(random.below(500) as u64));
                drop(batch);
            }
        }));
        if !self.fleet.patient || self.helpers.len() > 3 {
            self.join();
        }
    }

    fn join(&mut self) {
        self.helpers.drain(..).for_each(|helper| helper.join().unwrap());
    }

    fn go_back(&mut self) {
        let state = self.random.below(self.ledger.states());
        self.ledger.go_back(state);
        self.fleet.align(&self.ledger);
        if self.fleet.cut.refuses(self.ledger.left()) {
            // It was another cut's state, and does not go with this one.
            for loader in &mut self.fleet.loaders {
                assert_eq!(loader.next_epoch().unwrap_err().kind(), ErrorKind::InvalidArgument);
            }
            self.rebuild();
        }
    }

    fn panic(&mut self, after: usize) {
        let (mut left, mut held) = (after, Vec::new());
        let gone = catch_unwind(AssertUnwindSafe(|| {
            self.go(usize::MAX, None, false, &mut |batches| {
                // Those that were kept before hold slots too.
                held = batches;
                assert!(left > 0, "the consumer panics, as planned");
                held.clear();
                left -= 1;
            })
        }));
        held.clear();
        if let Ok(gone) = gone {
            gone.unwrap();
        }
        assert!(self.fleet.loaders.iter().all(|loader| loader.state() == self.ledger.state()));
        self.fleet.assert_idle();
    }

    fn hold(&mut self) {
        if self.fleet.patient {
            return;
        }
        let (slots, mut held) = (self.fleet.slots - self.kept.len(), Vec::new());
        let left = self.ledger.batches_left(self.fleet.cut) as usize;
        match self.go(usize::MAX, None, false, &mut |batches| held.push(batches)) {
            Ok(()) => assert!(left <= slots),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::SlotsExhausted, "{error}");
                // The first rank alone holds every slot.
                assert!(left > slots && held.len() == slots);
                self.fleet.align(&self.ledger);
                if self.random.below(2) == 0 {
                    let error = self.go(1, None, false, &mut |_| ()).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::SlotsExhausted, "{error}");
                    self.fleet.align(&self.ledger);
                }
                // One slot is enough to go on.
                held.swap_remove(self.random.below(slots));
                let some = self.random.below(6);
                self.go(some, None, false, &mut |_| ()).unwrap();
            }
        }
        let data = Arc::clone(&self.data);
        held.iter().flatten().for_each(|batch| assert_batch(&data, batch));
        self.random.shuffle(&mut held);
    }

    fn stop(&mut self) {
        let handles: Vec<StopHandle> = self.fleet.loaders.iter().map(Loader::stop_handle).collect();
        let pause = Duration::from_micros(self.random.below(2000) as u64);
        let stopper = std::thread::spawn(move || {
            std::thread::sleep(pause);
            handles.iter().for_each(StopHandle::stop);
        });
        if let Err(error) = self.go(usize::MAX, None, false, &mut |_| ()) {
            assert_eq!(error.kind(), ErrorKind::Stopped, "{error}");
        }
        stopper.join().unwrap();
        for loader in &mut self.fleet.loaders {
            let mut epoch = loader.next_epoch().unwrap();
            if epoch.batches_left() > 0 || self.random.below(2) == 0 {
                assert_eq!(epoch.next().unwrap().unwrap_err().kind(), ErrorKind::Stopped);
                assert!(epoch.next().is_none());
            }
        }
        self.rebuild();
    }

    fn fault(&mut self) {
        let fates: &[Fate] = match (self.random.below(4), self.backend) {
            (0, Backend::Uring) => &[Fate::PanicInReap],
            (0, _) => &[Fate::PanicInReap, Fate::PanicInThread],
            _ => &[Fate::Fail(libc::EIO), Fate::Fail(libc::ESTALE), Fate::Refuse(libc::EIO), Fate::Cut(0)],
        };
        let fate = fates[self.random.below(fates.len())];
        let panics = matches!(fate, Fate::PanicInReap | Fate::PanicInThread);
        // The file is opened again, and is the one that it was.
        let mended = matches!(fate, Fate::Fail(libc::ESTALE));
        // Nothing that was forgotten runs into it.
        self.fleet.align(&self.ledger);
        let most = if self.random.below(2) == 0 { usize::MAX } else { self.random.below(6) };
        self.fleet.trap.arm(fate, self.random.below(40) as u64);
        let gone = self.go(most, None, false, &mut |_| ());
        let caught = self.fleet.trap.disarm();
        println!("  {fate:?} caught {caught:?}: {gone:?}");
        match &gone {
            Ok(()) if mended => {}
            // In a whole epoch every read counts.
            Ok(()) => assert!(caught.is_none() || most < usize::MAX || (self.fleet.skips && !panics)),
            Err(error) => {
                assert!(!mended, "{error}");
                let kind = if panics { ErrorKind::Panicked } else { ErrorKind::Io };
                assert!(caught.is_some() && error.kind() == kind, "{fate:?}: {error}");
                assert!(panics || !self.fleet.skips || matches!(fate, Fate::Refuse(_)), "{fate:?}: {error}");
            }
        }
        match caught {
            Some(rank) if panics => {
                let loader = &mut self.fleet.loaders[rank];
                let kind = loader.next_epoch().unwrap_err().kind();
                assert!(matches!(kind, ErrorKind::Panicked | ErrorKind::Closed), "{kind:?}");
                assert_eq!(loader.epoch(3).unwrap_err().kind(), ErrorKind::Closed);
                self.rebuild();
            }
            _ => self.fleet.align(&self.ledger),
        }
    }

    /// Drops the loaders and, sooner or later, what was kept of them.
    fn drop_all(&mut self) {
        let loaders = std::mem::take(&mut self.fleet.loaders);
        self.old.append(&mut self.kept);
        match self.random.below(3) {
            0 => (self.old.clear(), drop(loaders)).1,
            1 => std::thread::spawn(move || drop(loaders)).join().unwrap(),
            _ => drop(loaders),
        }
        assert!(self.fleet.seen.iter().all(|seen| look(seen).dropped));
        let most = self.random.below(8);
        self.random.shuffle(&mut self.old);
        self.old.truncate(most);
    }

    /// Lets go of everything, and looks at what is left.
    fn settle(&mut self) {
        self.join();
        self.old.clear();
        self.usage.look();
    }

    /// Other loaders go on, or another run begins.
    fn rebuild(&mut self) {
        self.drop_all();
        if self.random.below(3) == 0 {
            self.settle();
        }
        if self.random.below(5) == 0 {
            let before = self.ledger.state();
            let (data, seed) = (self.random.below(3), self.random.next() % 100);
            self.data = Arc::clone(&self.all[data]);
            let shuffle = shuffles(&self.data)[self.random.below(4)];
            self.ledger = new_ledger(&self.data, shuffle, seed);
            let same = self.ledger.state().stand_in(before.fingerprint(), before.shuffle(), before.seed(), 0);
            let builder = self.data.loader().batch_size(1).seed(seed).shuffle(shuffle).resume(before);
            let refused = builder.build().err().map(|error| error.kind());
            assert!(same.is_ok() || refused == Some(ErrorKind::InvalidArgument));
        }
        self.fleet = loop {
            let world = [1, 1, 1, 2, 2, 3][self.random.below(6)];
            let last = [LastBatch::Drop, LastBatch::Pad, LastBatch::Short][self.random.below(3)];
            let cut = Cut { batch: 1 + self.random.below(12) as u64, world, last };
            let way = (self.backend, self.device);
            if let Some(fleet) = Fleet::build(way, &self.data, &self.ledger, cut, &mut self.random) {
                break fleet;
            }
        };
    }
}

fn soak(test: &str, backend: Backend, device: Device) {
    if !backends().contains(&backend) {
        return eprintln!("skipped: {}", backend.probe().unwrap_err());
    }
    let (epochs, seed) = (number("GPUFEED_SOAK_EPOCHS", 200), number("GPUFEED_SOAK_SEED", 1));
    in_child(&format!("soak::{test}"), device != Device::Host, epochs, seed, || {
        Soak::new(backend, device, seed).run(epochs);
    });
}

macro_rules! soaks {
    ($($test:ident: $backend:ident, $device:expr;)*) => {
        $(#[test] fn $test() { soak(stringify!($test), Backend::$backend, $device); })*
    };
}

soaks! {
    epochs_disturbed_at_random_leave_nothing_behind_by_uring: Uring, Device::Host;
    epochs_disturbed_at_random_leave_nothing_behind_by_pread: Pread, Device::Host;
    epochs_disturbed_at_random_leave_nothing_behind_through_the_page_cache: PageCache, Device::Host;
    epochs_disturbed_at_random_leave_nothing_behind_by_uring_on_an_emulated_gpu: Uring, Device::Cuda(0);
    epochs_disturbed_at_random_leave_nothing_behind_by_pread_on_an_emulated_gpu: Pread, Device::Cuda(0);
    epochs_disturbed_at_random_leave_nothing_behind_through_the_page_cache_on_an_emulated_gpu:
        PageCache, Device::Cuda(0);
}
