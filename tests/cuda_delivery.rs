//! Batches on an emulated GPU have the bytes of their files, however late the device does its work, and however a
//! consumer's streams use them.

mod cuda_common;

use cuda_common::{Consumer, DELAYS, Data, Dice, HELD, Use, backends, child};
use gpufeed::{Backend, Loader, Shuffle};

/// Runs epochs whose batches are used in stream order, in ways that `how` chooses, and checked at the end of each.
fn deliver(data: &Data, loader: &mut Loader, shuffle: Shuffle, epochs: u64, mut how: impl FnMut(u64) -> Use) {
    let mut consumer = Consumer::new(0, data.sample_bytes() * data.samples as usize);
    println!("{}, prefetch {}, {shuffle}, {} bytes", loader.report().backend, loader.prefetch(), data.record);
    for epoch in 0..epochs {
        let mut samples = Vec::new();
        for batch in loader.epoch(epoch).unwrap() {
            let batch = batch.unwrap();
            samples.extend_from_slice(batch.samples());
            let how = how(batch.index());
            consumer.take(batch, how);
        }
        assert_eq!(samples, data.order(shuffle, 3, epoch));
        consumer.check(data);
    }
}

#[test]
fn every_backend_delivers_the_bytes_of_the_files_at_any_delay_and_prefetch() {
    for delay in DELAYS {
        child!(&[("CUDA_EMULATOR_DELAY", delay)], || {
            let data = Data::new(4096, 150);
            for backend in backends() {
                for (prefetch, shuffle) in [
                    (1, Shuffle::Full),
                    (2, Shuffle::None),
                    (3, Shuffle::Full),
                    (4, Shuffle::Full),
                    (5, Shuffle::None),
                    (6, Shuffle::Full),
                    (7, Shuffle::None),
                    (8, Shuffle::Full),
                ] {
                    let builder = data.loader().backend(backend).prefetch(prefetch);
                    let mut loader = builder.shuffle(shuffle).seed(3).build().unwrap();
                    let held = if prefetch > 2 { Use::Hold } else { Use::Twice };
                    let uses = [Use::DropAtOnce, Use::ReleaseAfter, Use::TwoStreams, held];
                    deliver(&data, &mut loader, shuffle, 2, |batch| uses[batch as usize % 4]);
                }
            }
        });
    }
}

#[test]
fn records_of_any_size_arrive_whole() {
    for delay in ["random:5:200", HELD] {
        child!(&[("CUDA_EMULATOR_DELAY", delay)], || {
            // Of one byte, of odd sizes, of a page, of an image, and larger than a chunk.
            for (record, samples, batch) in
                [(1, 700, 64), (513, 300, 16), (4096, 70, 7), (150_528, 20, 4), (300_001, 7, 3)]
            {
                let data = Data::new(record, samples);
                for backend in backends() {
                    for (shuffle, io_bytes) in
                        [(Shuffle::None, 4096), (Shuffle::Full, 64 << 10), (Shuffle::None, 1 << 20)]
                    {
                        let builder = data.loader().backend(backend).batch_size(batch).io_bytes(io_bytes);
                        let mut loader =
                            builder.prefetch(2).queue_depth(4).shuffle(shuffle).seed(3).build().unwrap();
                        deliver(&data, &mut loader, shuffle, 1, |batch| Use::ALL[batch as usize % 6]);
                    }
                }
            }
        });
    }
}

#[test]
fn a_slow_consumer_gets_the_same_bytes_as_a_fast_one() {
    child!(&[("CUDA_EMULATOR_DELAY", "random:6:500")], || {
        let data = Data::new(2000, 200);
        for backend in backends() {
            for sleep in [0, 1, 4] {
                let mut loader = data.loader().backend(backend).prefetch(2).build().unwrap();
                deliver(&data, &mut loader, Shuffle::None, 1, |batch| {
                    if sleep > 0 && batch % 3 == 0 {
                        std::thread::sleep(std::time::Duration::from_millis(sleep));
                    }
                    Use::ALL[batch as usize % 2]
                });
            }
        }
    });
}

#[test]
fn batches_are_used_by_any_number_of_streams_and_given_back_in_any_order() {
    for delay in ["random:7:1000", "random:8:100", "adversarial:3", HELD] {
        child!(&[("CUDA_EMULATOR_DELAY", delay)], || {
            let data = Data::new(777, 400);
            for backend in backends() {
                let builder = data.loader().backend(backend).batch_size(8).prefetch(4);
                let mut loader = builder.shuffle(Shuffle::Full).seed(3).build().unwrap();
                let mut dice = Dice(backend as u64);
                deliver(&data, &mut loader, Shuffle::Full, 4, |_| Use::ALL[dice.roll(8) as usize]);
            }
        });
    }
}

#[test]
fn with_one_slot_ahead_and_all_work_held_back_every_epoch_is_right() {
    // The tightest ring: a slot or a chunk that is given back early is filled again at once.
    child!(&[("CUDA_EMULATOR_DELAY", HELD)], || {
        let data = Data::new(5000, 60);
        for backend in backends() {
            let builder = data.loader().backend(backend).batch_size(2).prefetch(1);
            let mut loader =
                builder.queue_depth(1).io_bytes(8192).shuffle(Shuffle::Full).seed(3).build().unwrap();
            deliver(&data, &mut loader, Shuffle::Full, 8, |batch| Use::ALL[batch as usize % 6]);
        }
    });
}

#[test]
fn many_epochs_leave_nothing_behind_on_the_device() {
    child!(&[("CUDA_EMULATOR_DELAY", "random:9:20")], || {
        let data = Data::new(100, 64);
        for backend in backends() {
            let mut loader = data.loader().backend(backend).build().unwrap();
            data.assert_epoch(&mut loader, Shuffle::None, 0, 0);
            let before = cuda_common::stats();
            deliver(&data, &mut loader, Shuffle::None, 100, |batch| Use::ALL[batch as usize % 5]);
            let after = cuda_common::stats();
            // Each of 3 to 17 slots keeps an event for each stream that used it at once: at most two here.
            assert!(after.events <= before.events + 2 * 17, "{before:?} {after:?}");
            assert_eq!(
                (before.device_allocations, before.host_registrations, before.streams),
                (after.device_allocations, after.host_registrations, after.streams)
            );
        }
    });
}

#[test]
fn bytes_are_counted_by_the_way_they_took_and_copied_once() {
    child!(&[], || {
        let data = Data::new(4096, 100);
        for (backend, ways) in [
            (Backend::Uring, &["uring_direct", "uring_buffered"][..]),
            (Backend::Pread, &["pread_direct", "pread_buffered"]),
            (Backend::PageCache, &["page_cache"]),
        ] {
            if backend.probe().is_err() {
                continue;
            }
            let before = cuda_common::stats();
            let mut loader = data.loader().backend(backend).build().unwrap();
            loader.epoch(0).unwrap().for_each(|batch| drop(batch.unwrap()));
            let report = loader.report();
            let all = data.sample_bytes() as u64 * data.samples;
            let bytes: u64 = report
                .bytes_by_way
                .iter()
                .filter(|(way, _)| ways.contains(&way.name()))
                .map(|(_, bytes)| bytes)
                .sum();
            assert_eq!((bytes, report.bytes_by_way.total()), (all, all));
            drop(loader);
            let after = cuda_common::stats();
            assert_eq!(after.bytes_host_to_device - before.bytes_host_to_device, all);
            assert_eq!(after.bytes_device_to_host, before.bytes_device_to_host);
        }
    });
}
