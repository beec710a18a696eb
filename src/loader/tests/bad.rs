//! Samples that cannot be read: skipped one by one, and never more than was allowed.

use super::*;

/// Reads that touch a byte of these samples fail.
fn failing(data: &Data, bad: &[u64], errno: i32) -> Faults {
    let mut ranges = Vec::new();
    for &sample in bad {
        let (mut file, mut record) = (0, sample);
        while record >= data.dataset.files()[file].samples() {
            record -= data.dataset.files()[file].samples();
            file += 1;
        }
        let from = record * data.record as u64;
        ranges.push((data.inode(file), from, from + data.record as u64));
    }
    Faults::new(move |read| {
        let end = read.offset + u64::from(read.len);
        let touches = |&(inode, from, until): &(u64, u64, u64)| {
            inode == read.inode && from < end && read.offset < until
        };
        if ranges.iter().any(touches) { Fate::Fail(errno) } else { Fate::Pass }
    })
}

/// Records of whole blocks, so that one can be bad without its neighbours.
const RECORD: usize = 8192;

fn assert_skipped(data: &Data, loader: &mut Loader, epoch: u64, order: &Order, bad: &[u64]) {
    let (mut position, mut missing) = (0, Vec::new());
    let mut batches = 0;
    for batch in loader.epoch(epoch).unwrap() {
        let batch = batch.unwrap();
        data.assert_batch(&batch);
        batches += 1;
        for (row, &sample) in batch.samples().iter().enumerate() {
            let own = order.sample(position % order.len()).unwrap();
            position += 1;
            let skipped = batch.skipped().iter().find(|(skipped, _)| *skipped == row as u64);
            match skipped {
                None => assert_eq!(sample, own),
                Some((_, of)) => {
                    assert!(*of == own && bad.contains(&own) && !bad.contains(&sample));
                    let own_rows = |s: &u64| batch.samples().iter().filter(|other| *other == s).count();
                    assert!(own_rows(&sample) > 1, "the row repeats one of the batch's own");
                    missing.push(own);
                }
            }
        }
    }
    assert_eq!(batches, loader.batches_per_epoch(), "the number of batches stays");
    missing.sort_unstable();
    missing.dedup();
    assert_eq!(missing, bad);
}

#[test]
fn bad_samples_are_skipped_one_by_one_and_told() {
    for backend in backends() {
        for (shuffle, io_bytes, prefetch) in [
            (Shuffle::None, 1 << 20, 3),
            (Shuffle::Full, 4096, 1),
            (BLOCKS, 1 << 20, 9),
            (BLOCKS, 16 << 10, 2),
        ] {
            for bad in [&[0u64][..], &[59], &[7, 8, 9, 33], &[30, 31]] {
                let data = Data::new(RECORD, &[31, 29]);
                let builder = data.loader().backend(backend).batch_size(8).shuffle(shuffle).seed(3);
                let builder = builder.last_batch(LastBatch::Pad).io_bytes(io_bytes).prefetch(prefetch);
                let builder = builder.bad_samples(BadSamples::Skip { limit: bad.len() as u64 });
                let faults = failing(&data, bad, libc::EIO).disorder(bad[0]);
                let seen = faults.seen();
                let mut loader = with(faults, builder).build().unwrap();
                let order = |epoch| Order::new(60, 3, epoch, shuffle);
                assert_skipped(&data, &mut loader, 0, &order(0), bad);
                let mut told = loader.report().bad_samples;
                told.sort_by_key(|it| it.sample);
                assert_eq!(told.iter().map(|it| it.sample).collect::<Vec<_>>(), bad);
                for it in &told {
                    let second = it.sample >= 31;
                    assert_eq!((&it.path, &it.column[..]), (&data.paths[usize::from(second)], "data"));
                    assert_eq!(it.record, it.sample - if second { 31 } else { 0 });
                    assert!(
                        it.reason.contains("os error 5") && it.reason.contains("offset"),
                        "{}",
                        it.reason
                    );
                }
                // They are known now: no read of the next epochs fails.
                let failed = look(&seen).failed;
                for epoch in 1..3 {
                    assert_skipped(&data, &mut loader, epoch, &order(epoch), bad);
                }
                assert_eq!(look(&seen).failed, failed);
                assert_eq!(loader.report().bad_samples.len(), bad.len());
            }
        }
    }
}

#[test]
fn more_bad_samples_than_allowed_are_an_error_that_names_one() {
    for backend in backends() {
        for limit in [0, 1, 2] {
            let data = Data::new(RECORD, &[40]);
            let builder = data.loader().backend(backend).batch_size(4).io_bytes(64 << 10);
            let builder = builder.bad_samples(BadSamples::Skip { limit });
            let mut loader = with(failing(&data, &[9, 17, 25], libc::EIO), builder).build().unwrap();
            let mut epoch = loader.epoch(0).unwrap();
            // Three batches of four come before samples 9, 17 and 25 have been met more often than allowed.
            for index in 0..2 + 2 * limit {
                let batch = epoch.next().unwrap().unwrap();
                assert_eq!(batch.index(), index);
                data.assert_batch(&batch);
            }
            let error = epoch.next().unwrap().unwrap_err();
            assert_eq!((error.kind(), error.path()), (ErrorKind::Io, Some(data.paths[0].as_path())));
            let text = error.to_string();
            for part in
                [format!("record {} cannot be read", 9 + 8 * limit), format!("{limit} samples before it")]
            {
                assert!(text.contains(&part), "{text}");
            }
            assert!(epoch.next().is_none());
            drop(epoch);
            assert_eq!(loader.report().bad_samples.len() as u64, limit);
        }
    }
}

#[test]
fn without_the_policy_the_first_bad_sample_ends_the_epoch() {
    for backend in backends() {
        let data = Data::new(RECORD, &[40]);
        let builder = data.loader().backend(backend).batch_size(4);
        let mut loader = with(failing(&data, &[9], libc::EIO), builder).build().unwrap();
        let outcomes: Vec<_> = loader.epoch(0).unwrap().map(|batch| batch.map(drop)).collect();
        assert_eq!(outcomes.len(), 3);
        assert_eq!(outcomes[2].as_ref().unwrap_err().kind(), ErrorKind::Io);
        assert!(loader.report().bad_samples.is_empty());
    }
}

#[test]
fn a_batch_of_which_nothing_can_be_read_is_an_error() {
    for backend in backends() {
        let data = Data::new(RECORD, &[40]);
        let builder =
            data.loader().backend(backend).batch_size(4).bad_samples(BadSamples::Skip { limit: 100 });
        let mut loader = with(failing(&data, &[8, 9, 10, 11], libc::EIO), builder).build().unwrap();
        let mut epoch = loader.epoch(0).unwrap();
        for _ in 0..2 {
            data.assert_batch(&epoch.next().unwrap().unwrap());
        }
        let error = epoch.next().unwrap().unwrap_err();
        assert!(error.to_string().contains("none of the 4 samples of batch 2"), "{error}");
    }
}

#[test]
fn a_read_that_fails_though_its_samples_can_be_read_is_tried_again_but_not_for_ever() {
    for backend in backends() {
        let data = Data::new(RECORD, &[40]);
        let build = |most: u64| {
            // Reads of more than one sample fail, so many times at each place.
            let faults = Faults::new(move |read| {
                if read.len > RECORD as u32 && read.before < most {
                    Fate::Fail(libc::EIO)
                } else {
                    Fate::Pass
                }
            });
            let builder = data.loader().backend(backend).batch_size(8).queue_depth(1);
            with(faults, builder.bad_samples(BadSamples::Skip { limit: 3 })).build().unwrap()
        };
        let mut loader = build(3);
        data.assert_epoch(&mut loader, 0, &stored(&data));
        assert!(loader.report().bad_samples.is_empty());
        let error = build(u64::MAX).epoch(0).unwrap().next().unwrap().unwrap_err();
        assert!(error.to_string().contains("each sample in it can be read"), "{error}");
    }
}

#[test]
fn a_file_that_is_not_the_one_that_was_indexed_is_never_skipped() {
    for backend in backends() {
        let data = Data::new(RECORD, &[10, 10]);
        let builder =
            data.loader().backend(backend).batch_size(5).bad_samples(BadSamples::Skip { limit: 100 });
        let mut loader = builder.build().unwrap();
        fs::write(&data.paths[1], b"short").unwrap();
        let outcomes: Vec<_> = loader.epoch(0).unwrap().map(|batch| batch.map(drop)).collect();
        assert_eq!(outcomes.len(), 3);
        assert_eq!(outcomes[2].as_ref().unwrap_err().kind(), ErrorKind::Changed);
    }
}
