//! Polling: that it is right wherever it is tried, and that it is told why it is not.

use super::*;
use crate::backend::Polling;

fn pretending(builder: LoaderBuilder) -> LoaderBuilder {
    LoaderBuilder { pretend_polled: true, ..builder }
}

#[test]
fn whatever_the_drive_says_to_polled_reads_the_bytes_are_right() {
    if Backend::Uring.probe().is_err() {
        return eprintln!("skipped: no io_uring here");
    }
    let data = Data::new(5001, &[40, 30, 20]);
    for (backend, shuffle) in [(Backend::Uring, Shuffle::Full), (Backend::Auto, Shuffle::None)] {
        let builder = data.loader().backend(backend).batch_size(9).shuffle(shuffle).io_bytes(4096);
        let builder = pretending(builder.polling(Polling::Always).last_batch(LastBatch::Short));
        let mut loader = with(Faults::none().disorder(5), builder).build().unwrap();
        for epoch in 0..2 {
            let order = Order::new(data.dataset.len(), 0, epoch, shuffle);
            data.assert_epoch(&mut loader, epoch, &order);
        }
        let report = loader.report();
        let refused = report.notes.iter().filter(|note| note.contains("cannot be polled")).count();
        // Either the kernel takes such reads, polled queues or not, or it refuses them, which is told once. Neither says
        // anything about direct reads.
        let polling = &report.polling;
        assert!(polling.used == (polling.reads > 0) && polling.reason.contains("asked for"), "{polling:?}");
        let direct = report.bytes_by_way.bytes(Way::UringDirect);
        if direct > 0 {
            assert!(polling.used != (refused == 1), "{polling:?} {:?}", report.notes);
            assert!(report.not_direct.iter().all(|it| it.reason.contains("page cache")), "{report:?}");
        }
        assert!(polling.used || polling.reason.contains("no read was polled for"), "{polling:?}");
    }
}

#[test]
fn polling_that_is_demanded_and_cannot_be_is_an_error_that_says_why() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("a");
    fs::write(&path, [1; 4096]).unwrap();
    let dataset = Dataset::builder().records("data", path, Dtype::U8, &[64]).build().map(Arc::new).unwrap();
    let always = |backend| Loader::builder(Arc::clone(&dataset)).backend(backend).polling(Polling::Always);
    let refused = |builder: LoaderBuilder| {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        error.to_string()
    };
    for backend in [Backend::Pread, Backend::PageCache] {
        let error = refused(always(backend));
        assert!(error.contains("only the backend uring polls") && error.contains(backend.name()), "{error}");
    }
    if Backend::Uring.probe().is_ok() {
        for backend in [Backend::Uring, Backend::Auto] {
            let error = refused(always(backend));
            assert!(error.contains("no block device of its own"), "{error}");
        }
    }
}

#[test]
fn without_a_trial_there_is_no_polling_and_the_reason_is_told() {
    let data = Data::new(64, &[100]);
    let why = |builder: LoaderBuilder| {
        let mut loader = builder.build().unwrap();
        data.assert_epoch(&mut loader, 0, &stored(&data));
        let polling = loader.report().polling;
        assert!(!polling.used && polling.reads == 0);
        polling.reason
    };
    let auto = || pretending(data.loader().batch_size(10));
    let never = why(auto().polling(Polling::Never));
    assert!(never.contains("switched off"), "{never}");
    let other = why(auto().backend(Backend::Pread));
    assert!(other.contains("pread does not poll"), "{other}");
    if Backend::Uring.probe().is_ok() {
        let named = why(auto().backend(Backend::Uring));
        assert!(named.contains("not asked for"), "{named}");
        let small = why(auto());
        assert!(small.contains("6400 bytes are too few for a trial"), "{small}");
        let limited = why(auto().limit_rate(1 << 30));
        assert!(limited.contains("limited in their rate"), "{limited}");
    }
}

#[test]
fn a_trial_on_the_files_of_a_large_dataset_decides_and_leaves_nothing_behind() {
    if Backend::Uring.probe().is_err() {
        return eprintln!("skipped: no io_uring here");
    }
    // Files with holes, so that they take no room.
    let folder = tempfile::tempdir_in(".").unwrap();
    let paths: Vec<PathBuf> = (0..3).map(|number| folder.path().join(format!("{number}.bin"))).collect();
    for path in &paths {
        fs::File::create(path).unwrap().set_len(1 << 30).unwrap();
    }
    let dataset = Dataset::builder().records("data", paths, Dtype::U8, &[4096]).build().unwrap();
    let builder = Loader::builder(dataset).shuffle(Shuffle::Full).batch_size(64).queue_depth(8);
    let mut loader = pretending(builder.memory_limit(64 << 20)).build().unwrap();
    for batch in loader.epoch(0).unwrap().take(20) {
        assert!(batch.unwrap().columns().next().unwrap().bytes().unwrap().iter().all(|byte| *byte == 0));
    }
    let report = loader.report();
    let (polling, tried) = (&report.polling, report.polling.reason.contains("a trial on its files read"));
    eprintln!("{polling:?}");
    // Without polled queues the kernel may refuse, or do as if it polled.
    assert!(
        tried || polling.reason.contains("cannot be polled") || polling.reason.contains("no file"),
        "{polling:?}"
    );
    assert_eq!(tried, report.backend_reason.contains("with polling and"), "{}", report.backend_reason);
    // The trial's own reads are not counted; those of the epoch are one for each sample, also of batches read ahead.
    let most = 64 * (20 + u64::from(loader.prefetch()) + 1);
    assert!(polling.reads <= most, "{polling:?}");
}
