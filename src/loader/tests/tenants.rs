//! What a loader leaves to others: a limit on its rate, budgets of memory, and nothing of its own in a slot but the batch.

use super::*;
use crate::backend::Address;
use crate::loader::rate::Clock;
use crate::loader::rate::tests::FakeClock;

#[test]
fn a_limit_on_bytes_per_second_is_kept_and_used_up() {
    for backend in backends() {
        for (record, shuffle) in [(4096, Shuffle::None), (5000, Shuffle::Full), (700, BLOCKS)] {
            let data = Data::new(record, &[200, 100]);
            let clock = FakeClock::default();
            let rate = 100_000;
            let builder = data.loader().backend(backend).batch_size(16).shuffle(shuffle).io_bytes(16 << 10);
            let mut builder = builder.limit_rate(rate).prefetch(4);
            builder.clock = Some(Box::new(clock.clone()));
            let mut loader = builder.build().unwrap();
            let order = Order::new(300, 0, 0, shuffle);
            data.assert_epoch(&mut loader, 0, &order);
            // Of what was asked for, all but one burst has had to wait.
            let read = loader.report().bytes_read;
            let burst = 16 << 10;
            let seconds = clock.now().as_secs_f64();
            let least = (read.saturating_sub(burst)) as f64 / rate as f64;
            // Reads at the end of a file are asked for whole blocks and bring less.
            let most = (read + 2 * 65536) as f64 / rate as f64;
            assert!(least <= seconds && seconds <= most, "{read} bytes in {seconds} s");
        }
    }
}

#[test]
fn a_loader_that_waits_for_its_limit_can_be_dropped_and_stopped() {
    let data = Data::new(4096, &[100]);
    // One burst, then days.
    let build = || data.loader().batch_size(10).io_bytes(4096).limit_rate(1).build().unwrap();
    drop(build());
    let mut loader = build();
    let mut epoch = loader.epoch(0).unwrap();
    let stop = epoch.loader.stop_handle();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        stop.stop();
    });
    let error = loop {
        match epoch.next().unwrap() {
            Ok(batch) => data.assert_batch(&batch),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Stopped);
    stopper.join().unwrap();
    let mut loader = build();
    let epoch = loader.epoch(0).unwrap();
    drop(epoch);
    assert_eq!(data.loader().limit_rate(0).build().unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// Whatever of a batch's slot is not payload.
fn beside(batch: &Batch) -> Vec<u8> {
    let ring = batch.slot.ring();
    let Address::Host(memory) = ring.memory() else { panic!("not on the host") };
    let start = memory.wrapping_add(ring.offset(batch.slot.index()));
    // SAFETY: the slot is lent to the batch, whose reads have all landed, so nobody writes to it.
    let slot = unsafe { std::slice::from_raw_parts(start, ring.slot_bytes()) };
    let payload = batch.columns().map(|column| {
        let bytes = column.bytes().unwrap();
        let from = bytes.as_ptr() as usize - start as usize;
        from..from + bytes.len()
    });
    let payload: Vec<_> = payload.collect();
    (0..slot.len()).filter(|at| !payload.iter().any(|range| range.contains(at))).map(|at| slot[at]).collect()
}

#[test]
fn a_cleared_slot_holds_nothing_but_the_batch() {
    for backend in backends() {
        for shuffle in [Shuffle::None, Shuffle::Full, BLOCKS] {
            // Unaligned records, so that direct reads bring neighbours along, and a short batch at the end.
            let data = Data::new(5003, &[40, 35]);
            let build = |clear| {
                let builder = data.loader().backend(backend).batch_size(8).shuffle(shuffle).prefetch(2);
                builder.last_batch(LastBatch::Short).clear_slots(clear).build().unwrap()
            };
            let mut left = 0;
            for clear in [false, true] {
                let mut loader = build(clear);
                for epoch in 0..2 {
                    for batch in loader.epoch(epoch).unwrap() {
                        let batch = batch.unwrap();
                        data.assert_batch(&batch);
                        let rest = beside(&batch);
                        let dirty = rest.iter().filter(|byte| **byte != 0).count();
                        assert!(!clear || dirty == 0, "{dirty} bytes of others by {backend}, {shuffle}");
                        left += dirty;
                    }
                }
            }
            assert!(left > 0, "without it there are some: the short batch leaves an earlier one's behind");
        }
    }
}

#[test]
fn budgets_of_memory_are_kept_or_refused_with_what_is_needed() {
    let data = Data::new(4096, &[100]);
    let plain = data.loader().batch_size(10).build().unwrap().memory();
    let whole = plain.device_bytes + plain.pinned_bytes;
    for exact in [true, false] {
        let limit = whole - u64::from(!exact);
        for builder in [data.loader().memory_limit(limit), data.loader().host_memory_limit(limit)] {
            match builder.batch_size(10).build() {
                Ok(loader) => assert!(exact && loader.memory() == plain),
                Err(error) => {
                    assert!(!exact && error.kind() == ErrorKind::OutOfMemory, "{error}");
                    let text = error.to_string();
                    assert!(text.contains(&whole.to_string()) && text.contains(&limit.to_string()), "{text}");
                }
            }
        }
    }
    // No GPU takes part.
    assert!(data.loader().device_memory_limit(0).build().is_ok());
    let small = data.loader().batch_size(10).host_memory_limit(whole - 1).shrink_ring(true).build().unwrap();
    assert!(small.memory().device_bytes < plain.device_bytes && small.prefetch() >= 1);
}

#[test]
fn a_priority_of_idle_is_taken_and_its_effect_told() {
    use crate::storage::IoPriority;
    let data = Data::new(4096, &[50]);
    for backend in backends() {
        let builder = data.loader().backend(backend).batch_size(10).io_priority(IoPriority::Idle);
        let mut loader = builder.build().unwrap();
        data.assert_epoch(&mut loader, 0, &stored(&data));
        for note in loader.report().notes {
            assert!(!note.contains("priority") || note.contains("idle has no effect"), "{note}");
        }
    }
    let error = data.loader().io_priority(IoPriority::BestEffort(8)).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
