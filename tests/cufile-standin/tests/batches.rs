//! Batches: every entry's status and length, capacity, cancelling, and entries that fail singly.

mod common;

use common::{CANCELED, COMPLETE, Event, FAILED, FILE, Scene, content};

const LEAKS: &[(&str, &str)] = &[("CUFILE_STANDIN_LEAKS", "1")];

fn short() -> libc::timespec {
    libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 }
}

#[test]
fn every_entry_is_done_and_told_once() {
    child!(&[("CUFILE_STANDIN_LATENCY", "random:1:500")], || {
        let scene = Scene::registered();
        let batch = scene.cufile.batch(128);
        for count in [1, 2, 127, 128] {
            let entries: Vec<_> = (0..count).map(|at| scene.entry(at, at * 9_000 + 1, 8_999)).collect();
            scene.cufile.cuFileBatchIOSubmit(batch, count as u32, entries.as_ptr(), 0).ok();
            let events = scene.cufile.ended(batch, count as u32);
            let wanted: Vec<_> =
                (0..count).map(|cookie| Event { cookie, status: COMPLETE, ret: 8_999 }).collect();
            assert_eq!(events, wanted);
            (0..count).for_each(|at| scene.same(at * 9_000 + 1, at * 9_000 + 1, 8_999));
        }
        assert_eq!(scene.cufile.ended(batch, 0), []);
        scene.cufile.cuFileBatchIODestroy(batch);
        scene.end();
    })
    .clean();
}

#[test]
fn the_last_entry_is_done_first() {
    child!(LEAKS, || {
        let scene = Scene::registered();
        let batch = scene.cufile.batch(3);
        // All to the same place, where the first entry's bytes are the last to come.
        let mut entries: Vec<_> = (0..3).map(|at| scene.entry(at, at * 4096, 4096)).collect();
        entries.iter_mut().for_each(|entry| entry.buffer_offset = 0);
        scene.cufile.cuFileBatchIOSubmit(batch, 3, entries.as_ptr(), 0).ok();
        assert_eq!(scene.cufile.ended(batch, 3).len(), 3);
        scene.same(0, 0, 4096);
        scene.cufile.cuFileBatchIODestroy(batch);
        scene.end();
    })
    .clean();
}

#[test]
fn entries_end_at_the_end_of_the_file_and_failures_say_why() {
    child!(LEAKS, || {
        let scene = Scene::registered();
        let batch = scene.cufile.batch(4);
        let entries = [scene.entry(1, FILE - 10, 100), scene.entry(2, FILE, 50), scene.entry(3, 0, 0)];
        scene.cufile.cuFileBatchIOSubmit(batch, 3, entries.as_ptr(), 0).ok();
        let lengths: Vec<_> =
            scene.cufile.ended(batch, 3).iter().map(|event| (event.status, event.ret)).collect();
        assert_eq!(lengths, [(COMPLETE, 10), (COMPLETE, 0), (COMPLETE, 0)]);
        // Refused as a whole, with nothing begun: a write to a file opened for reading.
        let mut write = scene.entry(4, 0, 10);
        write.opcode = 1;
        scene.cufile.cuFileBatchIOSubmit(batch, 2, [entries[0], write].as_ptr(), 0).is(5019);
        write.opcode = 2;
        scene.cufile.cuFileBatchIOSubmit(batch, 1, &write, 0).is(5022);
        scene.cufile.cuFileBatchIOSubmit(batch, 0, &write, 0).is(5022);
        scene.cufile.cuFileBatchIOSubmit(batch, 1, &entries[0], 1).is(5022);
        assert_eq!(scene.cufile.ended(batch, 0), []);
        scene.cufile.cuFileBatchIODestroy(batch);
        scene.end();
    })
    .clean();
}

#[test]
fn batches_write_too() {
    child!(LEAKS, || {
        let scene = Scene::registered();
        assert_eq!(scene.read(20_000, 0, 0), 20_000);
        let out = std::fs::File::create("out").unwrap();
        let handle = scene.cufile.handle(&out);
        let batch = scene.cufile.batch(2);
        let mut entries = [scene.entry(1, 0, 10_000), scene.entry(2, 10_000, 10_000)];
        entries.iter_mut().for_each(|entry| (entry.opcode, entry.handle) = (1, handle));
        scene.cufile.cuFileBatchIOSubmit(batch, 2, entries.as_ptr(), 0).ok();
        assert!(
            scene.cufile.ended(batch, 2).iter().all(|event| (event.status, event.ret) == (COMPLETE, 10_000))
        );
        assert!(std::fs::read("out").unwrap() == content(FILE)[..20_000]);
        scene.cufile.cuFileBatchIODestroy(batch);
        scene.cufile.cuFileHandleDeregister(handle);
        scene.end();
    })
    .clean();
}

#[test]
fn more_than_the_limit_cannot_be_set_up() {
    child!(&[("CUFILE_STANDIN_MAX_BATCH", "64")], || {
        let scene = Scene::registered();
        let mut batch = 0;
        for (count, wanted) in [(0, 5022), (1, 0), (64, 0), (65, 5022), (u32::MAX, 5022)] {
            scene.cufile.cuFileBatchIOSetUp(&mut batch, count).is(wanted);
            if wanted == 0 {
                scene.cufile.cuFileBatchIODestroy(batch);
            }
        }
        scene.end();
    })
    .clean();
}

#[test]
fn more_than_was_set_up_cannot_be_submitted() {
    child!(LEAKS, || {
        let scene = Scene::registered();
        let batch = scene.cufile.batch(2);
        let entries: Vec<_> = (0..3).map(|at| scene.entry(at, at * 4096, 4096)).collect();
        scene.cufile.cuFileBatchIOSubmit(batch, 3, entries.as_ptr(), 0).is(5037);
        scene.cufile.cuFileBatchIOSubmit(batch, 2, entries.as_ptr(), 0).ok();
        // Even if both have ended: nobody has asked about them.
        scene.cufile.cuFileBatchIOSubmit(batch, 1, entries.as_ptr(), 0).is(5037);
        assert_eq!(scene.cufile.ended(batch, 2).len(), 2);
        scene.cufile.cuFileBatchIOSubmit(batch, 1, entries.as_ptr(), 0).ok();
        assert_eq!(scene.cufile.ended(batch, 1).len(), 1);
        scene.cufile.cuFileBatchIODestroy(batch);
        scene.end();
    })
    .reported(&["batch-too-large in cuFileBatchIOSubmit", "batch-too-large in cuFileBatchIOSubmit"]);
}

const SINGLY: &str = "cuFileBatchIOSubmit:1:entry:0:failed,cuFileBatchIOSubmit:1:entry:1:-5,\
    cuFileBatchIOSubmit:1:entry:2:100,cuFileBatchIOSubmit:1:entry:3:invalid,cuFileBatchIOSubmit:1:entry:4:timeout,\
    cuFileBatchIOSubmit:1:entry:5:canceled,cuFileBatchIOSubmit:2:entry:*:0";

#[test]
fn entries_fail_singly() {
    child!(&[("CUFILE_STANDIN_FAIL", SINGLY)], || {
        let scene = Scene::registered();
        let batch = scene.cufile.batch(8);
        let entries: Vec<_> = (0..7).map(|at| scene.entry(at, at * 8192, 4096)).collect();
        scene.cufile.cuFileBatchIOSubmit(batch, 7, entries.as_ptr(), 0).ok();
        let found: Vec<_> =
            scene.cufile.ended(batch, 7).iter().map(|event| (event.status, event.ret)).collect();
        // Each lies with one of its two words, so that a caller who looks at one only is found out.
        let wanted = [
            (FAILED, 4096),
            (COMPLETE, -5),
            (COMPLETE, 100),
            (4, 4096),
            (0x20, 4096),
            (CANCELED, 4096),
            (COMPLETE, 4096),
        ];
        assert_eq!(found, wanted);
        for at in [0, 1, 3, 4, 5] {
            scene.untouched(at * 8192, 4096);
        }
        scene.same(16384, 16384, 100);
        scene.untouched(16484, 3996);
        scene.same(6 * 8192, 6 * 8192, 4096);
        scene.cufile.cuFileBatchIOSubmit(batch, 2, entries.as_ptr(), 0).ok();
        assert!(scene.cufile.ended(batch, 2).iter().all(|event| (event.status, event.ret) == (COMPLETE, 0)));
        scene.cufile.cuFileBatchIODestroy(batch);
        scene.end();
    })
    .clean();
}

#[test]
fn an_entry_that_never_ends_can_be_cancelled() {
    child!(&[("CUFILE_STANDIN_FAIL", "cuFileBatchIOSubmit:1:entry:1:never")], || {
        let scene = Scene::registered();
        let batch = scene.cufile.batch(3);
        let entries: Vec<_> = (0..3).map(|at| scene.entry(at, at * 4096, 4096)).collect();
        scene.cufile.cuFileBatchIOSubmit(batch, 3, entries.as_ptr(), 0).ok();
        let first = scene.cufile.ended(batch, 2);
        assert_eq!(first.iter().map(|event| event.cookie).collect::<Vec<_>>(), [0, 2]);
        // A wait with a timeout ends without it.
        let (mut event, mut count) = (Event::default(), 1);
        scene.cufile.cuFileBatchIOGetStatus(batch, 1, &mut count, &mut event, &short()).ok();
        assert_eq!((count, scene.cufile.stats().batch_entries_in_flight), (0, 1));
        scene.cufile.cuFileBatchIOCancel(batch).ok();
        assert_eq!(scene.cufile.ended(batch, 1), [Event { cookie: 1, status: CANCELED, ret: 0 }]);
        scene.cufile.cuFileBatchIODestroy(batch);
        scene.end();
    })
    .clean();
}

#[test]
fn entries_that_have_not_begun_are_cancelled() {
    // Three seconds for all of them, if nobody cancelled.
    child!(&[("CUFILE_STANDIN_LATENCY", "random:1:50000")], || {
        let scene = Scene::registered();
        let batch = scene.cufile.batch(128);
        let entries: Vec<_> = (0..128).map(|at| scene.entry(at, at * 4096, 4096)).collect();
        scene.cufile.cuFileBatchIOSubmit(batch, 128, entries.as_ptr(), 0).ok();
        scene.cufile.cuFileBatchIOCancel(batch).ok();
        let events = scene.cufile.ended(batch, 128);
        assert_eq!(events.len(), 128);
        let (cancelled, done): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|event| event.status == CANCELED);
        assert!(!cancelled.is_empty());
        cancelled.iter().for_each(|event| scene.untouched(event.cookie * 4096, 4096));
        done.iter().for_each(|event| scene.same(event.cookie * 4096, event.cookie * 4096, 4096));
        scene.cufile.cuFileBatchIODestroy(batch);
        scene.end();
    })
    .clean();
}

#[test]
fn waiting_for_what_was_not_submitted_is_reported_and_does_not_hang() {
    child!(LEAKS, || {
        let scene = Scene::registered();
        let batch = scene.cufile.batch(3);
        let (mut event, mut count) = (Event::default(), 1);
        scene.cufile.cuFileBatchIOGetStatus(batch, 1, &mut count, &mut event, std::ptr::null()).is(5022);
        scene.cufile.cuFileBatchIOGetStatus(batch, 1, &mut count, &mut event, &short()).ok();
        assert_eq!(count, 0);
        count = 1;
        scene.cufile.cuFileBatchIOGetStatus(batch, 2, &mut count, &mut event, &short()).is(5022);
        scene.cufile.cuFileBatchIODestroy(batch);
        scene.end();
    })
    .reported(&["waits-for-nothing in cuFileBatchIOGetStatus"]);
}

#[test]
fn destroying_a_batch_in_flight_or_twice_is_reported() {
    child!(&[("CUFILE_STANDIN_FAIL", "cuFileBatchIOSubmit:1:entry:0:never")], || {
        let scene = Scene::registered();
        let batch = scene.cufile.batch(1);
        scene.cufile.cuFileBatchIOSubmit(batch, 1, &scene.entry(1, 0, 4096), 0).ok();
        scene.cufile.cuFileBatchIODestroy(batch);
        scene.cufile.cuFileBatchIODestroy(batch);
        scene.cufile.cuFileBatchIOCancel(batch).is(5022);
        scene.cufile.cuFileBatchIOSubmit(0x1230, 1, &scene.entry(1, 0, 4096), 0).is(5022);
    })
    .reported(&[
        "destroy-in-flight in cuFileBatchIODestroy",
        "double-deregister in cuFileBatchIODestroy",
        "use-after-deregister in cuFileBatchIOCancel",
        "unknown-handle in cuFileBatchIOSubmit",
    ]);
}
