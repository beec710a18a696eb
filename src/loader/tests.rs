//! The loader over real files and real readers, with faults put between the two. Every batch is held to what a
//! plain slice of the files gives.

mod bad;
mod changed;
mod drives;
mod gap;
mod live;
mod polling;
mod stuck;
mod tenants;

use std::collections::HashSet;
use std::error::Error as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::*;
use crate::backend::testing::{Fate, Faults, Random, Seen};
use crate::backend::{Backend, Way};
use crate::dataset::Dtype;
use crate::order::{LastBatch, Order, Shuffle};

/// Files of records in a folder on a real disk, and all of their bytes.
pub(super) struct Data {
    pub(super) dataset: Arc<Dataset>,
    paths: Vec<PathBuf>,
    bytes: Vec<u8>,
    record: usize,
    _folder: TempDir,
}

impl Data {
    pub(super) fn new(record: usize, shards: &[usize]) -> Data {
        let folder = tempfile::tempdir_in(".").unwrap();
        let mut random = Random(record as u64);
        let (mut paths, mut bytes) = (Vec::new(), Vec::new());
        for (number, records) in shards.iter().enumerate() {
            let path = folder.path().join(format!("shard-{number:03}.bin"));
            let part: Vec<u8> =
                (0..(records * record).div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
            let part = &part[..records * record];
            fs::write(&path, part).unwrap();
            // Written out, so that they can be evicted and direct reads need not wait for it.
            fs::File::open(&path).unwrap().sync_all().unwrap();
            bytes.extend_from_slice(part);
            paths.push(path);
        }
        let dataset = Dataset::builder()
            .records("data", paths.clone(), Dtype::U8, &[record as u64])
            .build()
            .map(Arc::new)
            .unwrap();
        Data { dataset, paths, bytes, record, _folder: folder }
    }

    pub(super) fn loader(&self) -> LoaderBuilder {
        Loader::builder(Arc::clone(&self.dataset))
    }

    pub(super) fn sample(&self, sample: u64) -> &[u8] {
        &self.bytes[sample as usize * self.record..][..self.record]
    }

    fn assert_batch(&self, batch: &Batch) {
        let view = batch.columns().next().unwrap();
        assert_eq!(view.size_bytes(), batch.len() * self.record);
        for (row, &sample) in batch.samples().iter().enumerate() {
            assert!(
                view.sample(row).unwrap() == self.sample(sample),
                "row {row} of batch {} (sample {sample}) is wrong",
                batch.index()
            );
        }
        assert_eq!(batch.bytes_by_way().total(), view.size_bytes() as u64);
    }

    /// Runs a whole epoch: every batch right, in order, with the samples that the order says.
    fn assert_epoch(&self, loader: &mut Loader, epoch: u64, order: &Order) {
        let mut position = 0;
        let mut batches = 0;
        for batch in loader.epoch(epoch).unwrap() {
            let batch = batch.unwrap();
            assert_eq!((batch.index(), batch.epoch()), (batches, epoch));
            self.assert_batch(&batch);
            for &sample in batch.samples() {
                assert_eq!(order.sample(position % order.len()), Some(sample));
                position += 1;
            }
            batches += 1;
        }
        assert_eq!(batches, loader.batches_per_epoch());
        assert_eq!(position, loader.samples_per_epoch());
    }

    /// The sample that a byte of a file belongs to.
    fn sample_at(&self, path: &std::path::Path, offset: u64) -> u64 {
        let file = self.paths.iter().position(|known| known == path).unwrap();
        let before: u64 = self.dataset.files()[..file].iter().map(ShardFile::samples).sum();
        before + offset / self.record as u64
    }

    fn inode(&self, file: usize) -> u64 {
        fs::metadata(&self.paths[file]).unwrap().ino()
    }
}

use crate::dataset::ShardFile;

/// Three or four batches of a window are read together.
const BLOCKS: Shuffle = Shuffle::Blocks { block: 6, window: 33 };

fn stored(data: &Data) -> Order {
    Order::new(data.dataset.len(), 0, 0, Shuffle::None)
}

/// The backends that work here. `pread` and `page-cache` always do.
pub(super) fn backends() -> Vec<Backend> {
    let all = [Backend::Uring, Backend::Pread, Backend::PageCache];
    all.into_iter().filter(|backend| backend.probe().is_ok()).collect()
}

/// Those that read around the page cache, which the disk under the tests must allow.
fn direct_backends() -> Vec<Backend> {
    let data = Data::new(4096, &[4]);
    let works = |backend: &Backend| {
        let mut loader = data.loader().backend(*backend).batch_size(4).build().unwrap();
        data.assert_epoch(&mut loader, 0, &stored(&data));
        loader.report().bytes_by_way.bytes(Way::of(*backend, true)) > 0
    };
    let direct: Vec<_> = backends().into_iter().filter(|b| *b != Backend::PageCache).filter(works).collect();
    if direct.is_empty() {
        eprintln!("skipped: the file system under the working folder has no direct I/O");
        assert!(std::env::var_os("CI").is_none(), "the checks promise to run this on a real disk");
    }
    direct
}

fn with(faults: Faults, mut builder: LoaderBuilder) -> LoaderBuilder {
    builder.wrap = Some(faults.wrap());
    builder
}

pub(super) fn look(seen: &Mutex<Seen>) -> Seen {
    seen.lock().unwrap().clone()
}

#[test]
fn reads_cut_short_anywhere_are_resumed_and_every_byte_is_right() {
    let direct = direct_backends();
    for backend in backends() {
        for (record, shards) in [(1003, vec![100, 61]), (4096, vec![40]), (150_528, vec![5, 6])] {
            let data = Data::new(record, &shards);
            for shuffle in [Shuffle::None, Shuffle::Full, BLOCKS] {
                for io_bytes in [4096, 64 << 10, 1 << 20] {
                    for cut in [0, 1, 2] {
                        // The first attempt at each place brings a half, one byte, or a whole number of blocks.
                        let faults = Faults::new(move |read| match (read.before, cut) {
                            (0, 0) => Fate::Cut((read.len / 2).max(1)),
                            (0, 1) if read.offset % 512 == 0 => Fate::Cut(1),
                            (0, 1) => Fate::Pass,
                            (0, _) => Fate::Cut((read.len / 3).next_multiple_of(4096)),
                            _ => Fate::Pass,
                        });
                        let seen = faults.seen();
                        let builder = data.loader().backend(backend).batch_size(8).shuffle(shuffle).seed(3);
                        let builder = builder.last_batch(LastBatch::Pad).io_bytes(io_bytes);
                        let mut loader = with(faults, builder).build().unwrap();
                        let order = Order::new(data.dataset.len(), 3, 0, shuffle);
                        data.assert_epoch(&mut loader, 0, &order);
                        assert!(look(&seen).cut > 0);
                        // Resumed on a boundary, or the kernel would have refused a direct read.
                        let report = loader.report();
                        assert!(!direct.contains(&backend) || report.not_direct.is_empty(), "{report:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_read_that_brings_one_more_block_each_time_gets_there() {
    for backend in backends() {
        let data = Data::new(100_001, &[7]);
        let faults = Faults::new(|read| Fate::Cut((read.len / 2).max(8192)));
        let mut loader = with(faults, data.loader().backend(backend).batch_size(7)).build().unwrap();
        data.assert_epoch(&mut loader, 0, &stored(&data));
    }
}

#[test]
fn cut_delayed_and_disordered_reads_give_the_same_bytes_in_the_same_order() {
    for backend in backends() {
        for seed in 0..12 {
            let data = Data::new(700 + seed as usize * 97, &[90, 1, 70, 33]);
            let mut random = Random(seed);
            let faults = Faults::new(move |read| match random.below(6) {
                0 => Fate::Cut((random.below(read.len as usize) as u32).max(4096)),
                1 => Fate::Cut(4096),
                2 if read.before < 20 => Fate::Fail([libc::EINTR, libc::EAGAIN][random.below(2)]),
                _ => Fate::Pass,
            });
            let depth = 1 + seed as u32 * 3;
            let shuffle = [Shuffle::Full, BLOCKS][seed as usize % 2];
            let builder = data.loader().backend(backend).batch_size(11).shuffle(shuffle).seed(seed);
            let builder = builder.last_batch(LastBatch::Short).io_bytes(4096 << (seed % 4));
            let builder = builder.queue_depth(depth).prefetch(1 + seed as u32 % 5);
            let faults = faults.disorder(seed);
            let seen = faults.seen();
            let mut loader = with(faults, builder).build().unwrap();
            for epoch in 0..2 {
                let order = Order::new(data.dataset.len(), seed, epoch, shuffle);
                data.assert_epoch(&mut loader, epoch, &order);
            }
            assert!(look(&seen).most_in_flight <= depth as usize);
        }
    }
}

#[test]
fn a_read_that_brings_nothing_is_an_error_and_never_zeros() {
    for backend in backends() {
        let data = Data::new(5000, &[10, 10]);
        let inode = data.inode(1);
        let faults = Faults::new(move |read| if read.inode == inode { Fate::Cut(0) } else { Fate::Pass });
        let builder = data.loader().backend(backend).batch_size(5);
        let mut loader = with(faults, builder).build().unwrap();
        let mut epoch = loader.epoch(0).unwrap();
        for _ in 0..2 {
            data.assert_batch(&epoch.next().unwrap().unwrap());
        }
        let error = epoch.next().unwrap().unwrap_err();
        assert!(epoch.next().is_none());
        assert_eq!((error.kind(), error.path()), (ErrorKind::Io, Some(data.paths[1].as_path())));
        assert!(
            error.to_string().contains("reads end at byte 0, though the file has 50000 bytes"),
            "{error}"
        );
    }
}

#[test]
fn interrupted_and_put_off_reads_are_tried_again_but_not_for_ever() {
    for backend in backends() {
        let data = Data::new(3000, &[20]);
        for errno in [libc::EINTR, libc::EAGAIN] {
            let faults =
                Faults::new(move |read| if read.before < 50 { Fate::Fail(errno) } else { Fate::Pass });
            let mut loader = with(faults, data.loader().backend(backend).batch_size(4)).build().unwrap();
            data.assert_epoch(&mut loader, 0, &stored(&data));

            let faults = Faults::new(move |_| Fate::Fail(errno));
            let mut loader = with(faults, data.loader().backend(backend).batch_size(4)).build().unwrap();
            let error = loader.epoch(0).unwrap().next().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            let cause = error.source().unwrap().downcast_ref::<std::io::Error>().unwrap();
            assert_eq!(cause.raw_os_error(), Some(errno));
        }
    }
}

#[test]
fn a_refused_direct_read_goes_through_the_page_cache_and_is_told_with_its_reason() {
    for backend in direct_backends() {
        for errno in [libc::EINVAL, libc::EOPNOTSUPP] {
            for io_bytes in [4096, 1 << 20] {
                let data = Data::new(5001, &[40, 30, 20]);
                let inode = data.inode(1);
                // Of the second file only, and not from the first read on.
                let faults = Faults::new(move |read| {
                    let refuse = read.inode == inode && read.direct && read.offset >= 8192;
                    if refuse { Fate::Fail(errno) } else { Fate::Pass }
                });
                let builder = data.loader().backend(backend).batch_size(9).io_bytes(io_bytes);
                let mut loader = with(faults.disorder(1), builder).build().unwrap();
                for epoch in 0..2 {
                    data.assert_epoch(&mut loader, epoch, &stored(&data));
                }
                let report = loader.report();
                let [told] = &report.not_direct[..] else { panic!("{:?}", report.not_direct) };
                assert_eq!((told.files, &told.first), (1, &data.paths[1]));
                let cause = std::io::Error::from_raw_os_error(errno).to_string();
                assert!(told.reason.contains("direct read was refused") && told.reason.contains(&cause));
                // Counted by the way taken, per file.
                let file = |index: usize| loader.file_bytes(index).unwrap();
                assert_eq!(file(0), (2 * 40 * 5001, 0));
                assert_eq!(file(2), (2 * 20 * 5001, 0));
                let (direct, buffered) = file(1);
                assert!(direct + buffered == 2 * 30 * 5001 && buffered > direct, "{direct} {buffered}");
                assert_eq!(report.bytes_by_way.bytes(Way::of(backend, false)), buffered);
                assert_eq!(report.bytes_by_way.total(), 2 * 90 * 5001);
                assert_eq!(loader.file_bytes(3), None);
            }
        }
    }
}

#[test]
fn descriptors_stay_bounded_when_every_file_falls_back() {
    for backend in direct_backends() {
        let data = Data::new(4096, &[2; 200]);
        let open = || {
            fs::read_dir("/proc/self/fd")
                .unwrap()
                .flatten()
                .filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| data.paths.contains(&to)))
                .count()
        };
        let faults = Faults::new(|read| if read.direct { Fate::Fail(libc::EINVAL) } else { Fate::Pass });
        let mut loader = with(faults, data.loader().backend(backend).batch_size(4)).build().unwrap();
        data.assert_epoch(&mut loader, 0, &stored(&data));
        assert_eq!(loader.report().not_direct[0].files, 200);
        assert!(open() <= 200, "{} descriptors for 200 files", open());
    }
}

#[test]
fn a_failed_read_names_its_place_and_earlier_batches_still_come_in_order() {
    for backend in backends() {
        for errno in [libc::EIO, libc::EACCES, libc::ENXIO] {
            for fail in [0u64, 1, 9, 30] {
                for refuse in [false, true] {
                    let data = Data::new(6000, &[33, 44]);
                    let faults = Faults::new(move |read| match read.number {
                        n if n == fail && refuse => Fate::Refuse(errno),
                        n if n == fail => Fate::Fail(errno),
                        _ => Fate::Pass,
                    });
                    let seen = faults.seen();
                    // By blocks, some batches are read together.
                    let shuffle = if errno == libc::EIO { BLOCKS } else { Shuffle::Full };
                    let builder = data.loader().backend(backend).batch_size(7).shuffle(shuffle).seed(5);
                    let builder = builder.io_bytes(4096).prefetch(7);
                    let mut loader = with(faults.disorder(fail), builder).build().unwrap();
                    let order = Order::new(77, 5, 0, shuffle);
                    let mut epoch = loader.epoch(0).unwrap();
                    let mut batches = 0;
                    let error = loop {
                        match epoch.next().unwrap() {
                            Ok(batch) => {
                                assert_eq!(batch.index(), batches);
                                data.assert_batch(&batch);
                                batches += 1;
                            }
                            Err(error) => break error,
                        }
                    };
                    assert!(epoch.next().is_none() && epoch.next().is_none());
                    drop(epoch);
                    assert_eq!((error.kind(), error.backend()), (ErrorKind::Io, Some(backend.name())));
                    let text = error.to_string();
                    let path = error.path().unwrap();
                    for part in [path.to_str().unwrap(), &format!("offset {}", error.offset().unwrap())] {
                        assert!(text.contains(part), "{text}");
                    }
                    let cause = error.source().unwrap().downcast_ref::<std::io::Error>().unwrap();
                    assert_eq!(cause.raw_os_error(), Some(errno));
                    // The batch that did not come is the first that needs what could not be read.
                    let first = data.sample_at(path, error.offset().unwrap());
                    let last = data.sample_at(path, error.offset().unwrap() + error.length().unwrap() - 1);
                    let missing: HashSet<u64> =
                        (batches * 7..batches * 7 + 7).filter_map(|at| order.sample(at)).collect();
                    assert!((first..=last).any(|sample| missing.contains(&sample)));
                    // The next epoch starts afresh.
                    assert!(look(&seen).started > fail);
                    data.assert_epoch(&mut loader, 1, &Order::new(77, 5, 1, shuffle));
                }
            }
        }
    }
}

#[test]
fn an_invalid_argument_on_a_buffered_read_is_an_error_and_not_a_reason_to_fall_back() {
    let data = Data::new(5000, &[10]);
    let faults = Faults::new(|_| Fate::Fail(libc::EINVAL));
    let builder = data.loader().backend(Backend::PageCache).batch_size(5);
    let mut loader = with(faults, builder).build().unwrap();
    let error = loader.epoch(0).unwrap().next().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.backend()), (ErrorKind::Io, Some("page-cache")));
    assert!(loader.report().not_direct.is_empty());
}

#[test]
fn a_panic_of_the_reading_thread_reaches_the_caller_and_closes_the_loader() {
    for backend in backends() {
        for fail in [0u64, 3, 20] {
            let data = Data::new(5000, &[60]);
            let faults =
                Faults::new(move |read| if read.number == fail { Fate::PanicInReap } else { Fate::Pass });
            let seen = faults.seen();
            let builder = data.loader().backend(backend).batch_size(4).io_bytes(4096);
            let mut loader = with(faults, builder).build().unwrap();
            let kept: Vec<_> = loader.epoch(0).unwrap().collect();
            let (last, before) = kept.split_last().unwrap();
            before.iter().for_each(|batch| data.assert_batch(batch.as_ref().unwrap()));
            let error = last.as_ref().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Panicked);
            assert!(error.to_string().contains("as the fault plan says"), "{error}");
            for _ in 0..2 {
                let error = loader.epoch(1).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Closed);
                assert!(error.to_string().contains("as the fault plan says"), "{error}");
            }
            drop(loader);
            assert!(look(&seen).dropped);
            before.iter().for_each(|batch| data.assert_batch(batch.as_ref().unwrap()));
        }
    }
}

#[test]
fn a_panic_of_a_thread_of_the_pool_reaches_the_caller_and_closes_the_loader() {
    for backend in [Backend::Pread, Backend::PageCache] {
        let data = Data::new(5000, &[60]);
        let faults = Faults::new(move |read| if read.number == 7 { Fate::PanicInThread } else { Fate::Pass });
        let builder = data.loader().backend(backend).batch_size(4).io_bytes(4096).prefetch(2);
        let mut loader = with(faults, builder).build().unwrap();
        let mut epoch = loader.epoch(0).unwrap();
        let error = epoch.find_map(|batch| batch.map(|batch| data.assert_batch(&batch)).err()).unwrap();
        assert_eq!((error.kind(), error.backend()), (ErrorKind::Panicked, Some(backend.name())));
        assert!(error.to_string().contains("as the test asks"), "{error}");
        assert!(epoch.next().is_none());
        drop(epoch);
        assert_eq!(loader.epoch(1).unwrap_err().kind(), ErrorKind::Closed);
    }
}

#[test]
fn a_panic_of_a_thread_of_the_pool_closes_the_loader_even_if_no_epoch_could_tell_it() {
    for backend in [Backend::Pread, Backend::PageCache] {
        let mut unseen = 0;
        for round in 0..120u64 {
            let data = Data::new(5000, &[60]);
            let (at, hidden) = (round % 30, round % 4 < 2);
            let faults = Faults::new(move |read| match read.number {
                n if n == at => Fate::PanicInThread,
                // The epoch tells of what is missing first.
                n if hidden && n + 3 == at => Fate::Fail(libc::EIO),
                _ => Fate::Pass,
            });
            let seen = faults.seen();
            let builder = data.loader().backend(backend).batch_size(4).io_bytes(4096).prefetch(3);
            let mut loader = with(faults, builder).build().unwrap();
            let mut epoch = loader.epoch(0).unwrap();
            let told = epoch.next().unwrap().err().map(|error| error.kind());
            // It is left with reads in flight, or goes on until it is ended.
            match round % 3 {
                0 => drop(epoch),
                1 => std::mem::forget(epoch),
                _ => drop((epoch.next(), epoch)),
            }
            loader.resume(&loader.state()).unwrap();
            if look(&seen).started <= at {
                continue; // not even read ahead
            }
            unseen += u64::from(told != Some(ErrorKind::Panicked));
            for _ in 0..2 {
                let error = loader.next_epoch().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Closed);
                assert!(error.to_string().contains("as the test asks"), "{error}");
            }
        }
        assert!(unseen > 10, "the epochs told of all but {unseen} panics");
    }
}

#[test]
fn a_consumer_may_leave_an_epoch_at_any_batch_and_come_back() {
    for backend in backends() {
        let data = Data::new(3001, &[50, 25]);
        for prefetch in [1, 2, 8] {
            let builder =
                data.loader().backend(backend).batch_size(5).shuffle(Shuffle::Full).prefetch(prefetch);
            let builder = builder.io_bytes(4096);
            let mut loader = with(Faults::none().disorder(9), builder).build().unwrap();
            for leave in 0..=15 {
                for (i, batch) in loader.epoch(leave).unwrap().enumerate().take(leave as usize) {
                    let batch = batch.unwrap();
                    assert_eq!((batch.index(), batch.epoch()), (i as u64, leave));
                    data.assert_batch(&batch);
                }
            }
            data.assert_epoch(&mut loader, 99, &Order::new(75, 0, 99, Shuffle::Full));
        }
    }
}

#[test]
fn an_epoch_that_was_forgotten_does_not_leak_into_the_next() {
    for backend in backends() {
        let data = Data::new(3001, &[75]);
        let builder = data.loader().backend(backend).batch_size(5).shuffle(Shuffle::Full);
        let mut loader = builder.build().unwrap();
        let mut epoch = loader.epoch(0).unwrap();
        data.assert_batch(&epoch.next().unwrap().unwrap());
        std::mem::forget(epoch);
        data.assert_epoch(&mut loader, 1, &Order::new(75, 0, 1, Shuffle::Full));
    }
}

#[test]
fn anything_may_be_dropped_at_any_moment_with_reads_in_flight() {
    let data = Data::new(9000, &[120, 80]);
    for backend in backends() {
        // Threads are dearer than rings.
        let rounds = if backend == Backend::Uring { 300 } else { 80 };
        let mut random = Random(42);
        let mut most = 0;
        for round in 0..rounds {
            let builder = data.loader().backend(backend).batch_size(4).queue_depth(64).io_bytes(4096);
            let builder = builder.shuffle(Shuffle::Full).seed(round).prefetch(1 + random.below(16) as u32);
            let faults = Faults::none().disorder(round);
            let seen = faults.seen();
            let mut loader = with(faults, builder).build().unwrap();
            let mut kept = Vec::new();
            for number in 0..random.below(3) as u64 {
                let mut epoch = loader.epoch(number).unwrap();
                let wanted =
                    random.below(8).min(loader_slots(&epoch) - 1 - kept.len().min(loader_slots(&epoch) - 1));
                for _ in 0..wanted {
                    kept.push(epoch.next().unwrap().unwrap());
                    if random.below(2) == 0 {
                        kept.swap_remove(random.below(kept.len()));
                    }
                }
                if random.below(3) == 0 {
                    std::thread::yield_now();
                }
            }
            if random.below(2) == 0 {
                drop(loader);
                kept.iter().for_each(|batch| data.assert_batch(batch));
            } else {
                kept.iter().for_each(|batch| data.assert_batch(batch));
                random.shuffle(&mut kept);
                kept.truncate(random.below(3));
                drop(loader);
            }
            kept.iter().for_each(|batch| data.assert_batch(batch));
            let seen = look(&seen);
            assert!(seen.dropped);
            most = most.max(seen.most_in_flight);
        }
        assert_eq!(most, 64, "the queue was never full");
    }
}

fn loader_slots(epoch: &Epoch<'_>) -> usize {
    epoch.loader.settings.prefetch as usize + 1
}

#[test]
fn batches_outlive_their_loader_and_may_go_to_other_threads() {
    for backend in backends() {
        let data = Data::new(7001, &[40]);
        let mut loader = data.loader().backend(backend).batch_size(8).prefetch(5).build().unwrap();
        let batches: Vec<Batch> = loader.epoch(0).unwrap().map(Result::unwrap).collect();
        assert_eq!(batches.len(), 5);
        drop(loader);
        std::thread::scope(|scope| {
            for batch in batches {
                let data = &data;
                scope.spawn(move || data.assert_batch(&batch));
            }
        });
    }
}

#[test]
fn a_caller_that_holds_every_slot_is_told_so_and_may_go_on_after_giving_some_back() {
    for backend in backends() {
        let data = Data::new(1000, &[100]);
        let builder = data.loader().backend(backend).batch_size(5).prefetch(3);
        let mut loader = builder.lend_timeout(Duration::from_millis(50)).build().unwrap();
        let mut kept = Vec::new();
        let error = loader.epoch(0).unwrap().find_map(|batch| batch.map(|batch| kept.push(batch)).err());
        assert_eq!(error.as_ref().map(Error::kind), Some(ErrorKind::SlotsExhausted));
        assert!(error.unwrap().to_string().contains("all 4 slots"));
        assert_eq!(kept.len(), 4);
        // Still so in another epoch, as long as they are held.
        let error = loader.epoch(1).unwrap().next().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SlotsExhausted);
        kept.iter().for_each(|batch| data.assert_batch(batch));
        // One slot is enough to go on.
        kept.pop();
        data.assert_epoch(&mut loader, 2, &stored(&data));
        kept.iter().for_each(|batch| data.assert_batch(batch));
        kept.clear();
        data.assert_epoch(&mut loader, 3, &stored(&data));
    }
}

#[test]
fn a_slot_given_back_by_another_thread_lets_a_waiting_epoch_go_on() {
    let data = Data::new(1000, &[100]);
    for backend in backends() {
        let mut loader = data.loader().backend(backend).batch_size(5).prefetch(1).build().unwrap();
        let (sender, receiver) = crossbeam_channel::bounded::<Batch>(2);
        std::thread::scope(|scope| {
            let data = &data;
            scope.spawn(move || {
                for batch in receiver {
                    std::thread::sleep(Duration::from_millis(1));
                    data.assert_batch(&batch);
                }
            });
            for batch in loader.epoch(0).unwrap() {
                sender.send(batch.unwrap()).unwrap();
            }
            drop(sender);
        });
    }
}

#[test]
fn a_stop_ends_an_epoch_that_waits_and_all_later_ones() {
    for backend in backends() {
        let data = Data::new(1000, &[100]);
        let mut loader = data.loader().backend(backend).batch_size(5).prefetch(1).build().unwrap();
        let stop = loader.stop_handle();
        let started = Instant::now();
        let mut epoch = loader.epoch(0).unwrap();
        let kept = [epoch.next().unwrap().unwrap(), epoch.next().unwrap().unwrap()];
        // Both slots are held: the third batch cannot come, and 30 s is the time to wait for it.
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                stop.stop();
                stop.clone().stop();
            });
            epoch.next().unwrap().unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::Stopped);
        assert!(started.elapsed() < Duration::from_secs(20));
        assert!(epoch.next().is_none());
        drop(epoch);
        kept.iter().for_each(|batch| data.assert_batch(batch));
        drop(kept);
        assert_eq!(loader.epoch(1).unwrap().next().unwrap().unwrap_err().kind(), ErrorKind::Stopped);
    }
}

#[test]
fn any_queue_depth_goes_with_any_prefetch_depth() {
    let data = Data::new(5003, &[64, 1]);
    for backend in backends() {
        for (depth, prefetch) in [(1, 8), (1, 1), (64, 1), (2, 3), (16, 64)] {
            let builder = data.loader().backend(backend).batch_size(3).queue_depth(depth).prefetch(prefetch);
            let builder = builder.io_bytes(4096).last_batch(LastBatch::Short).shuffle(Shuffle::Full);
            let faults = Faults::none();
            let seen = faults.seen();
            let mut loader = with(faults, builder).build().unwrap();
            data.assert_epoch(&mut loader, 0, &Order::new(65, 0, 0, Shuffle::Full));
            assert!(look(&seen).most_in_flight <= depth as usize);
        }
    }
}

#[test]
fn two_loaders_take_turns_in_one_thread() {
    let (one, two) = (Data::new(2000, &[40]), Data::new(300, &[12]));
    for backend in backends() {
        let mut outer =
            one.loader().backend(backend).batch_size(4).queue_depth(1).prefetch(1).build().unwrap();
        let mut inner =
            two.loader().backend(backend).batch_size(4).queue_depth(1).prefetch(1).build().unwrap();
        for (i, batch) in outer.epoch(0).unwrap().enumerate() {
            let batch = batch.unwrap();
            two.assert_epoch(&mut inner, i as u64, &stored(&two));
            one.assert_batch(&batch);
        }
    }
}

#[test]
fn ten_thousand_reads_go_through_a_queue_of_four() {
    let data = Data::new(4096, &[2500, 2500]);
    for backend in backends() {
        let faults = Faults::none().disorder(1);
        let seen = faults.seen();
        let builder = data.loader().backend(backend).batch_size(50).queue_depth(4).io_bytes(4096);
        let mut loader = with(faults, builder).build().unwrap();
        for epoch in 0..2 {
            data.assert_epoch(&mut loader, epoch, &stored(&data));
        }
        let seen = look(&seen);
        assert!(seen.started >= 10_000 && seen.most_in_flight == 4, "{seen:?}");
    }
}

#[test]
fn memory_is_what_was_said_and_a_limit_below_it_is_refused_before_anything_is_read() {
    let data = Data::new(5000, &[30]);
    let loader = data.loader().batch_size(6).build().unwrap();
    let memory = loader.memory();
    let all = memory.device_bytes + memory.pinned_bytes;
    assert!(data.loader().batch_size(6).memory_limit(all).build().is_ok());
    let error = data.loader().batch_size(6).memory_limit(all - 1).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains(&format!("needs {all} bytes")), "{error}");
}

#[test]
fn windows_of_any_size_leave_a_ring_that_can_be_had() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let path = folder.path().join("sparse.bin");
    fs::File::create(&path).unwrap().set_len(20 << 20).unwrap();
    let dataset = Arc::new(Dataset::builder().records("x", path, Dtype::U8, &[1]).build().unwrap());
    for (shuffle, batch_size, most) in [
        // More batches in a window than the kernel takes buffers.
        (Shuffle::blocks_of(1), 64, 16 << 10),
        (Shuffle::Blocks { block: 1, window: u64::MAX }, 1, 16 << 10),
        (Shuffle::Blocks { block: 1 << 10, window: u64::MAX }, 4096, 16 << 10),
        // A window that is larger than the epoch, which has 20 batches: twice that, if not for the samples.
        (Shuffle::Blocks { block: 1 << 20, window: u64::MAX }, 1 << 20, 40 + 64),
    ] {
        for queue_depth in [1, 64] {
            let builder = Loader::builder(Arc::clone(&dataset)).shuffle(shuffle).batch_size(batch_size);
            let builder = builder.queue_depth(queue_depth).io_bytes(4096).backend(Backend::PageCache);
            let loader = builder.build().unwrap();
            assert!(loader.prefetch() + queue_depth < most, "{shuffle}: {}", loader.prefetch());
            // What is known of samples takes memory too, and for tiny ones it takes the most.
            let samples = u64::from(loader.prefetch() + 1) * batch_size;
            assert!(samples <= 8 << 20 || loader.prefetch() == 16, "{shuffle}: {samples} samples at once");
        }
    }
}

#[test]
fn a_file_truncated_while_it_is_read_is_told_as_changed() {
    for backend in backends() {
        let data = Data::new(4096, &[64]);
        let builder = data.loader().backend(backend).batch_size(4).io_bytes(4096).prefetch(1).queue_depth(1);
        let mut loader = builder.build().unwrap();
        let mut epoch = loader.epoch(0).unwrap();
        data.assert_batch(&epoch.next().unwrap().unwrap());
        // It is open by now, and most of it not yet read.
        fs::OpenOptions::new().write(true).open(&data.paths[0]).unwrap().set_len(40 * 4096 + 100).unwrap();
        let mut batches = 1;
        let error = epoch
            .find_map(|batch| match batch {
                Ok(batch) => {
                    data.assert_batch(&batch);
                    batches += 1;
                    None
                }
                Err(error) => Some(error),
            })
            .unwrap();
        assert_eq!((error.kind(), error.path()), (ErrorKind::Changed, Some(data.paths[0].as_path())));
        assert_eq!((batches, error.offset()), (10, Some(40 * 4096)));
        assert!(
            error.to_string().contains("it had 262144 bytes when it was indexed and has 163940 now"),
            "{error}"
        );
    }
}
