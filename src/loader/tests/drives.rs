//! Files on several drives: each has a queue of its own.

use super::*;
use crate::backend::testing::Attempt;

/// Takes each file to be on a drive of its own, by the number in its name.
fn apart(file: &ShardFile) -> u64 {
    let digits = |c: &char| c.is_ascii_digit();
    file.path()
        .file_stem()
        .unwrap()
        .to_str()
        .unwrap()
        .chars()
        .filter(digits)
        .collect::<String>()
        .parse()
        .unwrap()
}

fn on_drives(builder: LoaderBuilder) -> LoaderBuilder {
    LoaderBuilder { pretend_device: Some(apart), ..builder }
}

/// Lets every read pass, and keeps what it was told.
fn noted() -> (Faults, Arc<Mutex<Vec<Attempt>>>) {
    let all: Arc<Mutex<Vec<Attempt>>> = Arc::default();
    let notes = Arc::clone(&all);
    let faults = Faults::new(move |read| {
        notes.lock().unwrap().push(*read);
        Fate::Pass
    });
    (faults, all)
}

#[test]
fn a_drive_that_says_nothing_keeps_no_other_idle() {
    for backend in backends() {
        let data = Data::new(4096, &[300, 300]);
        let order = Order::new(data.dataset.len(), 3, 0, Shuffle::Full);
        let (batch, slots, depth) = (20, 6, 5);
        let faults = Faults::none().hold(data.inode(0));
        let seen = faults.seen();
        let builder = data.loader().backend(backend).batch_size(batch).shuffle(Shuffle::Full).seed(3);
        let builder = on_drives(builder.queue_depth(depth).prefetch(slots - 1));
        let mut loader = with(faults, builder).build().unwrap();
        assert_eq!(loader.queue_depth(), depth);
        assert_eq!(loader.report().drives.len(), 2);
        data.assert_epoch(&mut loader, 0, &order);
        // All that the fast drive has of the batches that there are slots for came before the first byte of the slow one.
        let ahead = (0..u64::from(slots) * batch).filter(|at| order.sample(*at).unwrap() >= 300);
        let ahead = ahead.count() as u64 * 4096;
        let seen = look(&seen);
        assert_eq!(seen.before_held, Some(ahead), "{backend}");
        assert_eq!(seen.most_held, depth as usize);
        assert!(seen.most_in_flight <= 2 * depth as usize);
    }
}

#[test]
fn queues_of_several_drives_are_each_as_deep_as_was_asked_and_bring_right_bytes() {
    for backend in backends() {
        let data = Data::new(3000, &[50, 70, 30]);
        let inodes = [0, 1, 2].map(|file| data.inode(file));
        for (depth, shuffle) in [(1, Shuffle::Full), (3, BLOCKS), (8, Shuffle::None)] {
            let faults = inodes.iter().fold(Faults::none(), |faults, inode| faults.hold(*inode));
            let seen = faults.seen();
            let builder = data.loader().backend(backend).batch_size(11).shuffle(shuffle).seed(1);
            let builder = builder.last_batch(LastBatch::Short).io_bytes(4096).queue_depth(depth);
            let mut loader = with(faults, on_drives(builder)).build().unwrap();
            for epoch in 0..2 {
                let order = Order::new(data.dataset.len(), 1, epoch, shuffle);
                data.assert_epoch(&mut loader, epoch, &order);
            }
            let most = look(&seen).most_in_flight;
            assert!(most <= 3 * depth as usize, "{most}");
            assert!(shuffle == Shuffle::None || most > depth as usize, "{shuffle}: {most}");
        }
    }
}

#[test]
fn with_a_single_drive_reads_start_in_the_order_of_batches_and_places() {
    for backend in backends() {
        let data = Data::new(4096, &[40, 40]);
        let started = |builder: LoaderBuilder| {
            let (faults, all) = noted();
            let builder = builder.backend(backend).batch_size(8).shuffle(Shuffle::Full).queue_depth(1);
            let mut loader = with(faults, builder).build().unwrap();
            data.assert_epoch(&mut loader, 0, &Order::new(80, 0, 0, Shuffle::Full));
            let all = all.lock().unwrap();
            all.iter().map(|read| (read.inode == data.inode(1), read.offset)).collect::<Vec<_>>()
        };
        let order = Order::new(80, 0, 0, Shuffle::Full);
        let mut expected = Vec::new();
        for batch in 0..10 {
            let mut samples: Vec<u64> = (0..8).map(|i| order.sample(batch * 8 + i).unwrap()).collect();
            samples.sort_unstable();
            // Neighbours may be read at once.
            expected.push(
                samples.into_iter().map(|sample| (sample >= 40, sample % 40 * 4096)).collect::<Vec<_>>(),
            );
        }
        let expected = expected.concat();
        let mut left = expected.iter();
        for read in started(data.loader()) {
            assert!(left.any(|place| *place == read), "{backend}: {read:?} is out of order");
        }
        // With two, those of each are in this order.
        let both = started(on_drives(data.loader()));
        for file in [false, true] {
            let mut left = expected.iter().filter(|(it, _)| *it == file);
            for read in both.iter().filter(|(it, _)| *it == file) {
                assert!(left.any(|place| place == read), "{backend}: {read:?} is out of order on its drive");
            }
        }
    }
}

#[test]
fn a_read_that_fails_on_one_drive_lets_earlier_batches_of_all_drives_come() {
    for backend in backends() {
        let data = Data::new(4096, &[60, 60, 60]);
        let order = Order::new(180, 2, 0, Shuffle::Full);
        for bad in [7u64, 75, 179] {
            let (inode, offset) = (data.inode(bad as usize / 60), bad % 60 * 4096);
            let faults = Faults::new(move |read| {
                let hit =
                    read.inode == inode && (read.offset..read.offset + u64::from(read.len)).contains(&offset);
                if hit { Fate::Fail(libc::EIO) } else { Fate::Pass }
            });
            let builder = data.loader().backend(backend).batch_size(6).shuffle(Shuffle::Full).seed(2);
            let builder = on_drives(builder.queue_depth(2).prefetch(4));
            let mut loader = with(faults.disorder(bad).hold(data.inode(1)), builder).build().unwrap();
            let position = (0..180).find(|at| order.sample(*at) == Some(bad)).unwrap();
            let mut epoch = loader.epoch(0).unwrap();
            for _ in 0..position / 6 {
                data.assert_batch(&epoch.next().unwrap().unwrap());
            }
            let error = epoch.next().unwrap().unwrap_err();
            assert_eq!(
                (error.kind(), error.path()),
                (ErrorKind::Io, Some(data.paths[bad as usize / 60].as_path()))
            );
        }
    }
}

#[test]
fn bad_samples_on_one_of_several_drives_are_skipped() {
    for backend in backends() {
        let data = Data::new(4096, &[60, 60]);
        let inode = data.inode(1);
        let faults = Faults::new(move |read| {
            let hit =
                read.inode == inode && (read.offset..read.offset + u64::from(read.len)).contains(&(5 * 4096));
            if hit { Fate::Fail(libc::EIO) } else { Fate::Pass }
        });
        let builder = data.loader().backend(backend).batch_size(10).shuffle(Shuffle::Full);
        let builder = builder.queue_depth(3).bad_samples(BadSamples::Skip { limit: 1 });
        let mut loader = with(faults.hold(inode), on_drives(builder)).build().unwrap();
        for _ in 0..2 {
            let batches: Vec<_> =
                loader.next_epoch().unwrap().map(|batch| data.assert_batch(&batch.unwrap())).collect();
            assert_eq!(batches.len(), 12);
        }
        let bad: Vec<u64> = loader.report().bad_samples.iter().map(|it| it.sample).collect();
        assert_eq!(bad, [65]);
    }
}

#[test]
fn several_drives_make_do_with_the_memory_of_one_before_it_is_an_error() {
    let data = Data::new(4096, &[50; 8]);
    let build = |limit: u64, prefetch| {
        let builder = data.loader().batch_size(10).queue_depth(8).io_bytes(64 << 10).backend(Backend::Pread);
        on_drives(builder.prefetch(prefetch).memory_limit(limit)).build()
    };
    let (slot, io) = (48 << 10, 64u64 << 10);
    let ample = build(1 << 30, 1).unwrap();
    assert_eq!((ample.queue_depth(), ample.memory().pinned_bytes), (8, 64 * io));
    assert_eq!((ample.memory().device_bytes, ample.report().drives.len()), (2 * slot, 8));
    // Half, and then an eighth: what a single drive would have.
    for (chunks, each) in [(63, 4), (31, 2), (15, 1), (8, 1)] {
        let mut loader = build(2 * slot + chunks * io, 1).unwrap();
        assert_eq!(loader.queue_depth(), each, "{chunks}");
        assert!(loader.memory().pinned_bytes <= chunks * io);
        data.assert_epoch(&mut loader, 0, &stored(&data));
        let notes = loader.report().notes;
        assert!(notes.iter().any(|note| note.contains(&format!("{each} each instead of 8"))), "{notes:?}");
    }
    let error = build(2 * slot + 7 * io, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("8 chunks"), "{error}");
}

#[test]
fn drives_that_share_a_rate_all_get_their_turn() {
    for backend in backends() {
        let data = Data::new(4096, &[40, 40]);
        let builder = data.loader().backend(backend).batch_size(8).shuffle(Shuffle::Full).queue_depth(4);
        let mut loader = with(Faults::none(), on_drives(builder.limit_rate(8 << 20))).build().unwrap();
        data.assert_epoch(&mut loader, 0, &Order::new(80, 0, 0, Shuffle::Full));
    }
}
