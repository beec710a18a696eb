//! Storage that does not answer: for a while, or never.

use super::*;

/// Long enough for whatever is not stuck, on a busy machine too.
const AMPLE: Duration = Duration::from_secs(100);
/// Short, since all that waits for it is stuck.
const SHORT: Duration = Duration::from_millis(40);

/// Reads beyond the first so many do not come back until the gate is opened.
fn hang_from(number: u64) -> Faults {
    Faults::new(move |read| if read.number >= number { Fate::Hang } else { Fate::Pass })
}

/// What the reading thread has, and is gone with it.
fn wait_until_dropped(seen: &Mutex<Seen>) {
    let since = Instant::now();
    while !look(seen).dropped {
        assert!(since.elapsed() < AMPLE, "the thread that was left behind does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn reads_that_never_come_back_end_the_epoch_with_an_error_and_close_the_loader() {
    for backend in backends() {
        let data = Data::new(5000, &[60]);
        let faults = hang_from(11);
        let (seen, gate) = (faults.seen(), faults.gate());
        let builder = data.loader().backend(backend).batch_size(4).io_bytes(4096).prefetch(20);
        let mut loader = with(faults, builder).read_timeout(SHORT).build().unwrap();
        let mut epoch = loader.epoch(0).unwrap();
        let mut kept = Vec::new();
        let error = epoch.find_map(|batch| batch.map(|batch| kept.push(batch)).err()).unwrap();
        assert!(epoch.next().is_none());
        drop(epoch);
        assert_eq!((error.kind(), error.backend()), (ErrorKind::TimedOut, Some(backend.name())));
        assert_eq!(error.path(), Some(data.paths[0].as_path()));
        assert!(error.length().is_some_and(|length| length <= 4096), "{error}");
        assert!(error.to_string().contains("storage has not answered for "), "{error}");
        // It is the oldest of those that do not come back, which the first batch that did not come needs.
        let sample = error.offset().unwrap() / 5000;
        assert_eq!(sample / 4, kept.len() as u64, "{error}");
        let again = loader.next_epoch().unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Closed);
        assert!(again.to_string().contains("storage has not answered"), "{again}");
        assert!(loader.report().notes.iter().any(|note| note.contains("kept until storage answers")));
        drop(loader);
        // What the reads may still be written to is there until they have come back.
        assert!(!look(&seen).dropped && look(&seen).in_flight > 0);
        gate.open();
        wait_until_dropped(&seen);
        kept.iter().for_each(|batch| data.assert_batch(batch));
    }
}

#[test]
fn a_loader_with_reads_that_never_come_back_can_be_left_at_any_point() {
    for backend in backends() {
        for way in 0..5 {
            let data = Data::new(5000, &[60]);
            let faults = hang_from(7);
            let (seen, gate) = (faults.seen(), faults.gate());
            let builder = data.loader().backend(backend).batch_size(4).io_bytes(4096).prefetch(2);
            let mut loader = with(faults, builder).read_timeout(SHORT).build().unwrap();
            let (stop, state) = (loader.stop_handle(), loader.state());
            let mut epoch = loader.epoch(0).unwrap();
            let kept = epoch.next().unwrap().unwrap();
            match way {
                // The loader with its epoch, or the epoch first.
                0 => drop(epoch),
                1 => std::mem::forget(epoch),
                2 => {
                    drop(epoch);
                    assert_eq!(loader.epoch(1).unwrap_err().kind(), ErrorKind::TimedOut);
                    assert_eq!(loader.epoch(1).unwrap_err().kind(), ErrorKind::Closed);
                }
                3 => {
                    drop(epoch);
                    assert_eq!(loader.resume(&state).unwrap_err().kind(), ErrorKind::TimedOut);
                }
                _ => {
                    stop.stop();
                    assert_eq!(epoch.next().unwrap().unwrap_err().kind(), ErrorKind::Stopped);
                    assert!(epoch.next().is_none());
                    drop(epoch);
                    assert_eq!(loader.next_epoch().unwrap_err().kind(), ErrorKind::TimedOut);
                }
            }
            drop(loader);
            assert!(!look(&seen).dropped, "{way}");
            data.assert_batch(&kept);
            gate.open();
            wait_until_dropped(&seen);
            data.assert_batch(&kept);
        }
    }
}

#[test]
fn storage_that_answers_in_the_end_loses_nothing() {
    for backend in backends() {
        let data = Data::new(5000, &[60]);
        let faults = hang_from(9);
        let gate = faults.gate();
        let builder = data.loader().backend(backend).batch_size(4).io_bytes(4096);
        let mut loader = with(faults, builder).read_timeout(AMPLE).build().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                gate.open();
            });
            data.assert_epoch(&mut loader, 0, &stored(&data));
        });
        data.assert_epoch(&mut loader, 1, &stored(&data));
    }
}

#[test]
fn an_epoch_that_was_left_while_storage_hung_does_not_leak_into_the_next() {
    for backend in backends() {
        let data = Data::new(5000, &[60]);
        let faults = hang_from(7);
        let gate = faults.gate();
        let builder = data.loader().backend(backend).batch_size(4).io_bytes(4096).prefetch(2);
        let mut loader = with(faults, builder).read_timeout(AMPLE).build().unwrap();
        let mut epoch = loader.epoch(0).unwrap();
        data.assert_batch(&epoch.next().unwrap().unwrap());
        // It is left running, as if the grace were over.
        std::mem::forget(epoch);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                gate.open();
            });
            data.assert_epoch(&mut loader, 1, &stored(&data));
        });
    }
}

#[test]
fn with_no_timeout_only_a_stop_ends_the_wait() {
    let data = Data::new(5000, &[60]);
    let faults = hang_from(0);
    let gate = faults.gate();
    let mut loader = with(faults, data.loader().batch_size(4)).read_timeout(Duration::ZERO).build().unwrap();
    let stop = loader.stop_handle();
    let mut epoch = loader.epoch(0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            stop.stop();
            // Or the grace would have to be waited for.
            gate.open();
        });
        assert_eq!(epoch.next().unwrap().unwrap_err().kind(), ErrorKind::Stopped);
    });
}

#[test]
fn a_panic_with_reads_that_never_come_back_is_told_as_what_can_be_known() {
    let data = Data::new(5000, &[60]);
    let faults = Faults::new(|read| match read.number {
        0..3 => Fate::Pass,
        3 => Fate::PanicInReap,
        _ => Fate::Hang,
    });
    let (seen, gate) = (faults.seen(), faults.gate());
    let builder = data.loader().backend(Backend::Pread).batch_size(4).io_bytes(4096).prefetch(2);
    let mut loader = with(faults, builder).read_timeout(SHORT).build().unwrap();
    // The thread unwinds, and waits for the reads on its way.
    let error = loader.epoch(0).unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    drop(loader);
    assert!(!look(&seen).dropped);
    gate.open();
    wait_until_dropped(&seen);
}

#[test]
fn a_thread_that_storage_keeps_while_it_starts_is_not_waited_for_for_ever() {
    let data = Data::new(4096, &[4]);
    let pulse = crate::storage::Pulse::new(2);
    let (started, starting) = crossbeam_channel::bounded(1);
    let limit = Some(Duration::from_millis(1));
    let wait = || leave::started(&starting, (&pulse, &data.dataset), Backend::Uring, limit);
    pulse.start(0, 0, 4096, 512);
    pulse.begin(crate::storage::Call::Reads);
    let error = wait().unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::TimedOut, Some(data.paths[0].as_path())));
    assert_eq!((error.offset(), error.length()), (Some(4096), Some(512)));
    // One that is not in a call takes as long as it takes.
    pulse.end();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            started.send(7).unwrap();
        });
        assert_eq!(wait().unwrap(), Some(7));
    });
    drop(started);
    assert_eq!(wait().unwrap(), None);
}
