//! Files that are replaced, written to or removed, and what a server does not know any more.

use super::*;

type Change = fn(&std::path::Path);

/// Makes another file of the same bytes and time, and gives it the name.
fn replace(path: &std::path::Path) {
    let other = path.with_extension("new");
    fs::copy(path, &other).unwrap();
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    fs::File::options().write(true).open(&other).unwrap().set_modified(modified).unwrap();
    fs::rename(&other, path).unwrap();
}

#[test]
fn a_stale_descriptor_is_replaced_and_no_byte_is_lost() {
    for backend in backends() {
        for io_bytes in [4096, 1 << 20] {
            let data = Data::new(5001, &[40, 30]);
            // Each place is stale once, some after a part has come.
            let mut stale = HashSet::new();
            let faults = Faults::new(move |read| match read.number % 3 {
                0 if read.before == 0 => Fate::Cut((read.len / 2).next_multiple_of(4096)),
                1 if stale.insert((read.inode, read.offset)) => Fate::Fail(libc::ESTALE),
                _ => Fate::Pass,
            });
            let seen = faults.seen();
            let builder = data.loader().backend(backend).batch_size(7).io_bytes(io_bytes);
            let mut loader = with(faults.disorder(4), builder).build().unwrap();
            for epoch in 0..2 {
                data.assert_epoch(&mut loader, epoch, &stored(&data));
            }
            assert!(look(&seen).failed > 0);
        }
    }
}

#[test]
fn a_file_that_stays_stale_is_an_error_that_names_it() {
    for backend in backends() {
        let data = Data::new(5001, &[40]);
        let faults = Faults::new(|_| Fate::Fail(libc::ESTALE));
        let mut loader = with(faults, data.loader().backend(backend).batch_size(4)).build().unwrap();
        let error = loader.epoch(0).unwrap().next().unwrap().unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::Io, Some(data.paths[0].as_path())));
        let cause = error.source().unwrap().downcast_ref::<std::io::Error>().unwrap();
        assert_eq!(cause.raw_os_error(), Some(libc::ESTALE));
        // The next epoch starts afresh, with the descriptors of this one closed.
        assert!(loader.epoch(1).is_ok());
    }
}

#[test]
fn a_stale_file_whose_name_means_another_by_now_is_told_as_changed_and_a_missing_one_as_missing() {
    for backend in backends() {
        for (kind, words) in [(ErrorKind::Changed, "another file"), (ErrorKind::NotFound, "cannot open")] {
            let data = Data::new(5001, &[40]);
            let path = data.paths[0].clone();
            let faults = Faults::new(move |_| {
                match kind {
                    ErrorKind::Changed => replace(&path),
                    _ => drop(fs::remove_file(&path)),
                }
                Fate::Fail(libc::ESTALE)
            });
            let builder = data.loader().backend(backend).batch_size(4).queue_depth(1);
            let mut loader = with(faults, builder).build().unwrap();
            let error = loader.epoch(0).unwrap().next().unwrap().unwrap_err();
            assert_eq!((error.kind(), error.path()), (kind, Some(data.paths[0].as_path())), "{error}");
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!((error.offset(), error.backend()), (Some(0), Some(backend.name())));
        }
    }
}

#[test]
fn an_epoch_notices_what_became_of_a_file_since_the_last_one() {
    let rewrite = |path: &std::path::Path| {
        let modified = fs::metadata(path).unwrap().modified().unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(modified + Duration::from_secs(1)).unwrap();
    };
    let all: [(Change, ErrorKind, &str); 4] = [
        (replace, ErrorKind::Changed, "another file"),
        (rewrite, ErrorKind::Changed, "written to"),
        (|path| fs::write(path, b"shorter").unwrap(), ErrorKind::Changed, "bytes when it was indexed"),
        (|path| fs::remove_file(path).unwrap(), ErrorKind::NotFound, "cannot open"),
    ];
    for backend in backends().into_iter().chain([Backend::Auto]) {
        for (change, kind, words) in all {
            let data = Data::new(5000, &[8, 8]);
            let mut loader = data.loader().backend(backend).batch_size(4).build().unwrap();
            for epoch in 0..2 {
                data.assert_epoch(&mut loader, epoch, &stored(&data));
            }
            change(&data.paths[1]);
            let mut epoch = loader.epoch(2).unwrap();
            // What is not of that file still comes.
            for _ in 0..2 {
                data.assert_batch(&epoch.next().unwrap().unwrap());
            }
            let error = epoch.next().unwrap().unwrap_err();
            assert_eq!((error.kind(), error.path()), (kind, Some(data.paths[1].as_path())), "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
