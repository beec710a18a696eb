//! What bad input gets: one clear error that names the file and the cause, or correct data.

mod common;

use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions as Open};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use common::{assert_batch, backends, folder, noise, npy, npy_of, run, write, write_shards};
use gpufeed::{
    Backend, Dataset, Dtype, Error, ErrorKind, Format, LastBatch, Loader, OpenOptions, Result, Shuffle,
};

/// The error has this kind, is about this path, and says all of these words, on one line.
#[track_caller]
fn assert_told(error: &Error, kind: ErrorKind, path: &Path, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert_eq!(error.path(), Some(path), "{text}");
    for word in words.iter().copied().chain([&*path.to_string_lossy()]) {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
    assert!(!text.contains('\n'), "{text}");
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(outcome: Result<T>, kind: ErrorKind, path: &Path, words: &[&str]) {
    assert_told(&outcome.unwrap_err(), kind, path, words);
}

fn records(path: &Path, bytes: u64) -> Result<Dataset> {
    OpenOptions::new().record_bytes(bytes).open(path)
}

/// The dataset as it is found by each way to open it.
fn every_way(path: &Path, bytes: u64) -> [Result<Dataset>; 3] {
    [
        records(path, bytes),
        Dataset::builder().records("data", path, Dtype::U8, &[bytes]).build(),
        Dataset::builder().records("data", vec![path.to_path_buf()], Dtype::U8, &[bytes]).build(),
    ]
}

#[test]
fn a_path_that_is_not_there_is_told_as_that() {
    let folder = folder();
    let path = folder.path().join("nothing");
    for outcome in every_way(&path, 8) {
        assert_refused(outcome, ErrorKind::NotFound, &path, &[]);
    }
    assert_refused(Dataset::open(&path), ErrorKind::NotFound, &path, &["no such file or folder"]);
    let path = folder.path().join("shard-*.bin");
    assert_refused(records(&path, 8), ErrorKind::NotFound, &path, &["matches no file"]);
    let path = folder.path().join("a-file/below");
    write(&folder.path().join("a-file"), b"12345678");
    assert_refused(records(&path, 8), ErrorKind::Io, &path, &[]);
}

#[test]
fn a_folder_with_no_shard_is_told_as_that() {
    let folder = folder();
    let only_hidden = folder.path().join("only-hidden");
    fs::create_dir(&only_hidden).unwrap();
    write(&only_hidden.join(".hidden"), b"12345678");
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    for path in [&only_hidden, &empty] {
        assert_refused(records(path, 8), ErrorKind::NotFound, path, &["no shard"]);
        assert_refused(Dataset::open(path), ErrorKind::NotFound, path, &["no shard"]);
    }
    let error = Dataset::builder().records("data", Vec::new(), Dtype::U8, &[8]).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("\"data\" has no files"));
    assert_eq!(Dataset::builder().build().unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn an_empty_shard_is_named() {
    let folder = folder();
    let paths = write_shards(folder.path(), &[noise(1, 16), Vec::new(), noise(2, 16)]);
    assert_refused(records(folder.path(), 8), ErrorKind::InvalidData, &paths[1], &["empty"]);
    assert_refused(Dataset::open(&paths[1]), ErrorKind::InvalidData, &paths[1], &["empty"]);
    let path = folder.path().join("empty.npy");
    write(&path, b"");
    assert_refused(Dataset::open(&path), ErrorKind::InvalidData, &path, &["empty"]);
}

#[test]
fn a_shard_that_is_no_multiple_of_the_record_size_is_named_with_the_remainder() {
    let folder = folder();
    for (len, words) in [
        (4097, ["4097", "4 records and 97 bytes over"]),
        (1001, ["1001", "1 records and 1 bytes over"]),
        (1999, ["1999", "1 records and 999 bytes over"]),
    ] {
        let paths = write_shards(folder.path(), &[noise(1, 3000), noise(2, len)]);
        assert_refused(records(folder.path(), 1000), ErrorKind::InvalidData, &paths[1], &words);
    }
    // A tail as two shards would have it together is not taken as one record.
    let paths = write_shards(folder.path(), &[noise(1, 1500), noise(2, 1500)]);
    assert_refused(records(folder.path(), 1000), ErrorKind::InvalidData, &paths[0], &["500 bytes over"]);
}

#[test]
fn a_record_size_of_zero_or_above_the_file_is_refused() {
    let folder = folder();
    let path = folder.path().join("a.bin");
    write(&path, &noise(1, 100));
    for outcome in every_way(&path, 0) {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    for bytes in [101, 1 << 40, u64::MAX] {
        for outcome in every_way(&path, bytes) {
            assert_refused(outcome, ErrorKind::InvalidData, &path, &["100 bytes", &bytes.to_string()]);
        }
    }
    for shape in [&[0][..], &[3, 0], &[1 << 33, 1 << 33], &[u64::MAX, 2]] {
        let error = Dataset::builder().records("x", &*path, Dtype::F32, shape).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("\"x\""), "{error}");
    }
}

#[test]
fn an_odd_length_does_not_fit_elements_of_two_bytes() {
    let folder = folder();
    let path = folder.path().join("tokens.bin");
    write(&path, &noise(1, 2001));
    let outcome = Dataset::builder().records("token", &*path, Dtype::U16, &[]).build();
    assert_refused(outcome, ErrorKind::InvalidData, &path, &["2001", "1 bytes over"]);
    // And 65535 is not taken for 65536.
    let ids: Vec<u8> = [65535u32, 65536].iter().flat_map(|id| id.to_le_bytes()).collect();
    write(&path, &ids);
    let dataset = Dataset::builder().records("token", &*path, Dtype::U32, &[]).build().unwrap();
    let mut loader = Loader::builder(dataset).batch_size(2).build().unwrap();
    let batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
    assert_eq!(batch.column("token").unwrap().elements::<u32>().unwrap(), [65535, 65536]);
}

#[test]
fn settings_that_make_no_sense_are_refused_before_anything_is_read() {
    let folder = folder();
    let path = folder.path().join("a.bin");
    write(&path, &noise(1, 80));
    let loader = || Loader::builder(records(&path, 8).unwrap());
    let refused = [
        (loader().batch_size(11), "nothing would come"),
        (loader().batch_size(0), "batch size is 0"),
        (loader().batch_size(5).queue_depth(0), "queue depth is 0"),
        (loader().batch_size(5).queue_depth(5000), "queue depth is 5000"),
        (loader().batch_size(5).prefetch(0), "prefetch depth is 0"),
        (loader().batch_size(5).prefetch(u32::MAX), "prefetch 4294967295"),
        (loader().batch_size(5).io_bytes(4095), "4095 bytes is too small"),
        (loader().batch_size(5).io_bytes(0), "0 bytes is too small"),
    ];
    for (builder, words) in refused {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    for rows in [1 << 58, u64::MAX] {
        let error = loader().batch_size(rows).last_batch(LastBatch::Pad).build().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::InvalidArgument), "{error}");
    }
    let mut whole = loader().batch_size(u64::MAX).last_batch(LastBatch::Short).build().unwrap();
    assert_eq!(run(&mut whole, 0).1.len(), 10);
    let mut most = loader().batch_size(5).io_bytes(u64::MAX).build().unwrap();
    assert_eq!(run(&mut most, u64::MAX).1.len(), 10);
}

#[test]
fn what_is_no_regular_file_is_refused_by_name_and_never_waited_for() {
    let folder = folder();
    let fifo = folder.path().join("fifo");
    let name = CString::new(fifo.as_os_str().as_bytes()).unwrap();
    // SAFETY: `name` is a C string for the whole call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let socket = folder.path().join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&socket).ok();
    for (path, what) in
        [(&*fifo, "a FIFO"), (Path::new("/dev/zero"), "a device"), (Path::new("/dev/null"), "a device")]
    {
        for outcome in every_way(path, 8) {
            assert_refused(outcome, ErrorKind::InvalidData, path, &[what, "not a regular file"]);
        }
        assert_refused(Dataset::open(path), ErrorKind::InvalidData, path, &[what]);
    }
    assert!(records(&socket, 8).is_err());
    // As one shard among others.
    fs::remove_file(&socket).ok();
    write(&folder.path().join("a.bin"), &noise(1, 8));
    assert_refused(records(folder.path(), 8), ErrorKind::InvalidData, &fifo, &["a FIFO"]);
    fs::remove_file(&fifo).unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    assert_refused(records(folder.path(), 8), ErrorKind::InvalidData, &inner, &["a directory"]);
}

#[test]
fn a_link_is_followed_and_one_to_nothing_or_to_itself_is_told() {
    let folder = folder();
    let elsewhere = common::folder();
    write(&elsewhere.path().join("target"), &noise(1, 80));
    let link = folder.path().join("a.bin");
    symlink(elsewhere.path().join("target"), &link).unwrap();
    let mut loader = Loader::builder(records(folder.path(), 8).unwrap()).batch_size(10).build().unwrap();
    assert_eq!(run(&mut loader, 0).0, noise(1, 80));

    let dangling = folder.path().join("b.bin");
    symlink(folder.path().join("gone"), &dangling).unwrap();
    let looping = folder.path().join("c.bin");
    symlink(&looping, &looping).unwrap();
    for outcome in every_way(&dangling, 8) {
        assert_refused(outcome, ErrorKind::NotFound, &dangling, &[]);
    }
    assert_refused(records(&dangling, 8), ErrorKind::NotFound, &dangling, &["symbolic link to nothing"]);
    for outcome in every_way(&looping, 8) {
        assert_refused(outcome, ErrorKind::Io, &looping, &[]);
    }
    // As one shard among others.
    assert_refused(records(folder.path(), 8), ErrorKind::NotFound, &dangling, &[]);
    fs::remove_file(&dangling).unwrap();
    assert_refused(records(folder.path(), 8), ErrorKind::Io, &looping, &[]);
}

#[test]
fn a_file_that_may_not_be_read_is_named_with_the_reason() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let path = folder.path().join("a.bin");
    write(&path, &noise(1, 80));
    let dataset = records(&path, 8).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if File::open(&path).is_ok() {
        return eprintln!("skipped: this user may read everything");
    }
    assert_refused(records(&path, 8), ErrorKind::Io, &path, &["cannot open"]);
    for backend in backends() {
        let builder = Loader::builder(dataset.clone()).backend(backend).batch_size(10);
        let mut loader = builder.build().unwrap();
        assert_refused(loader.epoch(0).unwrap().next().unwrap(), ErrorKind::Io, &path, &["cannot open"]);
    }
}

/// Indexes two shards, has `change` change the second, and gives what each backend says of that.
fn after(change: impl Fn(&Path), kind: ErrorKind, words: &[&str]) {
    for backend in backends() {
        for open_before in [false, true] {
            let folder = folder();
            let first = noise(1, 8000);
            let paths = write_shards(folder.path(), &[first.clone(), noise(2, 8000)]);
            let dataset = records(folder.path(), 1000).unwrap();
            let builder = Loader::builder(dataset).backend(backend).batch_size(4).prefetch(1).queue_depth(1);
            let mut loader = builder.build().unwrap();
            if open_before {
                // `auto` looks again in each epoch; the others keep what they have open.
                run(&mut loader, 0);
                if backend != Backend::Auto {
                    continue;
                }
            }
            change(&paths[1]);
            let mut epoch = loader.epoch(1).unwrap();
            for _ in 0..2 {
                let batch = epoch.next().unwrap().unwrap();
                assert_batch(&batch, |_, sample| &first[sample as usize * 1000..][..1000]);
            }
            assert_refused(epoch.next().unwrap(), kind, &paths[1], words);
            assert!(epoch.next().is_none());
            drop(epoch);
            // It is no better the next time, and the loader is still of use.
            let again = loader.epoch(2).unwrap().find_map(Result::err).unwrap();
            assert_told(&again, kind, &paths[1], words);
        }
    }
}

#[test]
fn a_shard_truncated_after_it_was_indexed_is_told_as_changed() {
    let cut = |path: &Path| Open::new().write(true).open(path).unwrap().set_len(7999).unwrap();
    after(cut, ErrorKind::Changed, &["8000 bytes when it was indexed", "7999 now"]);
    let empty = |path: &Path| Open::new().write(true).open(path).unwrap().set_len(0).unwrap();
    after(empty, ErrorKind::Changed, &["8000 bytes when it was indexed", "0 now"]);
}

#[test]
fn a_shard_replaced_under_its_name_is_told_as_changed() {
    let replace = |path: &Path| {
        let other = path.with_extension("new");
        write(&other, &noise(9, 8000));
        fs::rename(other, path).unwrap();
    };
    after(replace, ErrorKind::Changed, &["another file has taken its name"]);
}

#[test]
fn a_shard_written_to_after_it_was_indexed_is_told_as_changed() {
    let rewrite = |path: &Path| {
        let file = Open::new().write(true).open(path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", 100).unwrap();
        // A file system's clock is coarse.
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    };
    after(rewrite, ErrorKind::Changed, &["written to since it was indexed"]);
    let grow = |path: &Path| Open::new().write(true).open(path).unwrap().set_len(9000).unwrap();
    after(grow, ErrorKind::Changed, &["8000 bytes when it was indexed", "9000 now"]);
}

#[test]
fn a_shard_removed_or_made_something_else_after_it_was_indexed_is_told() {
    after(|path| fs::remove_file(path).unwrap(), ErrorKind::NotFound, &["cannot open"]);
    let to_folder = |path: &Path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    };
    after(to_folder, ErrorKind::InvalidData, &["a directory"]);
}

#[test]
fn arrays_that_cannot_be_delivered_are_refused_by_what_they_are() {
    let folder = folder();
    let path = folder.path().join("array.npy");
    let array = |descr: &str, order: &str, shape: &str| {
        format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}")
    };
    let data = noise(1, 96);
    let cases: [(Vec<u8>, ErrorKind, &str); 12] = [
        (npy_of(&array("'|O'", "False", "(3,)"), 64, &data), ErrorKind::Unsupported, "unpickled"),
        (npy_of(&array("'<f4'", "True", "(4, 6)"), 64, &data), ErrorKind::Unsupported, "Fortran order"),
        (npy_of(&array("'>f4'", "False", "(4, 6)"), 64, &data), ErrorKind::Unsupported, "big-endian"),
        (npy_of(&array("[('a', '<f4')]", "False", "(24,)"), 64, &data), ErrorKind::Unsupported, "structured"),
        (npy_of(&array("'<U4'", "False", "(6,)"), 64, &data), ErrorKind::Unsupported, "strings"),
        (npy_of(&array("'|u1'", "False", "()"), 64, &data[..1]), ErrorKind::Unsupported, "no sample axis"),
        (
            npy_of(&array("'<f4'", "False", "(4, 7)"), 64, &data),
            ErrorKind::InvalidData,
            "truncated: 16 of the 112",
        ),
        (npy_of(&array("'<f4'", "False", "(4, 5)"), 64, &data), ErrorKind::InvalidData, "16 bytes follow"),
        (
            npy_of(&array("'<f4'", "False", "(8589934592, 8589934592)"), 64, &data),
            ErrorKind::InvalidData,
            "too large",
        ),
        (npy_of("{'descr': '<f4'}", 64, &data), ErrorKind::InvalidData, "malformed"),
        (
            b"\x93NUMPY\x01\x00\xff\xff{".to_vec(),
            ErrorKind::InvalidData,
            "65545 bytes long by its own account",
        ),
        (b"\x93NUMPY\x09\x00\x05\x00{}".to_vec(), ErrorKind::Unsupported, "version 9.0"),
    ];
    for (bytes, kind, words) in cases {
        write(&path, &bytes);
        assert_refused(Dataset::open(&path), kind, &path, &[words]);
        assert_refused(Dataset::builder().npy("x", &*path).build(), kind, &path, &[words]);
    }
}

#[test]
fn an_array_cut_anywhere_is_refused() {
    let folder = folder();
    let path = folder.path().join("array.npy");
    let whole = npy("'<u2'", "(5, 3)", 64, &noise(1, 30));
    for len in 0..whole.len() {
        write_only(&path, &whole[..len]);
        let error = Dataset::open(&path).unwrap_err();
        assert_told(&error, ErrorKind::InvalidData, &path, &[]);
    }
    write_only(&path, &whole);
    assert_eq!(Dataset::open(&path).unwrap().len(), 5);
}

fn write_only(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
}

#[test]
fn arrays_of_other_dtypes_or_shapes_cannot_be_shards_of_one_column() {
    let folder = folder();
    let (a, b) = (folder.path().join("a.npy"), folder.path().join("b.npy"));
    write(&a, &npy("'<f4'", "(2, 3, 4)", 64, &noise(1, 96)));
    for (descr, shape, words) in [
        ("'<f4'", "(2, 3, 5)", ["[3, 5]", "[3, 4]"]),
        ("'<i4'", "(2, 3, 4)", ["i32", "f32"]),
        ("'<f4'", "(2, 12)", ["[12]", "[3, 4]"]),
    ] {
        let bytes = if shape == "(2, 3, 5)" { 120 } else { 96 };
        write(&b, &npy(descr, shape, 64, &noise(2, bytes)));
        let first = a.display().to_string();
        assert_refused(
            Dataset::open(folder.path()),
            ErrorKind::InvalidData,
            &b,
            &[words[0], words[1], &first],
        );
    }
    write(&b, &noise(3, 100));
    let error = Dataset::open(folder.path()).unwrap_err();
    assert_told(&error, ErrorKind::InvalidData, &b, &[]);
}

#[test]
fn arrays_with_no_samples_add_none_and_alone_are_no_dataset() {
    let folder = folder();
    let (a, b) = (folder.path().join("a.npy"), folder.path().join("b.npy"));
    write(&a, &npy("'|u1'", "(0, 3)", 64, &[]));
    let error = Dataset::open(folder.path()).unwrap_err();
    assert!(error.to_string().contains("no sample") || error.to_string().contains("0 samples"), "{error}");
    write(&b, &npy("'|u1'", "(2, 3)", 64, b"abcdef"));
    let mut loader = Loader::builder(Dataset::open(folder.path()).unwrap()).batch_size(2).build().unwrap();
    assert_eq!(run(&mut loader, 0).0, b"abcdef");
    write(&a, &npy("'|u1'", "(2, 0)", 64, &[]));
    fs::remove_file(&b).unwrap();
    assert_refused(Dataset::open(folder.path()), ErrorKind::InvalidData, &a, &["no elements"]);
}

#[test]
fn columns_of_other_lengths_or_of_one_name_do_not_go_together() {
    let folder = folder();
    let (a, b) = (folder.path().join("a.bin"), folder.path().join("b.bin"));
    write(&a, &noise(1, 80));
    write(&b, &noise(2, 9));
    let both = |name: &str| {
        Dataset::builder().records("a", &*a, Dtype::U8, &[8]).records(name, &*b, Dtype::U8, &[]).build()
    };
    let error = both("b").unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("10") && text.contains('9') && text.contains("\"a\"") && text.contains("\"b\""),
        "{text}"
    );
    assert_eq!(both("a").unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn files_of_formats_that_are_not_read_are_told_by_name() {
    let folder = folder();
    let path = folder.path().join("data");
    for (bytes, kind, words) in [
        (&b"PK\x03\x04 and so on"[..], ErrorKind::Unsupported, "zip"),
        (b"\x1f\x8b\x08 and so on", ErrorKind::Unsupported, "gzip"),
        (b"version https://git-lfs.github.com/spec/v1\noid", ErrorKind::Unsupported, "git-LFS"),
        (b"\x00\x01\x02\x03", ErrorKind::InvalidData, "--record-bytes"),
        (b"7", ErrorKind::InvalidData, "--record-bytes"),
    ] {
        write(&path, bytes);
        assert_refused(Dataset::open(&path), kind, &path, &[words]);
    }
    let error = OpenOptions::new().format(Format::Records).open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let error = OpenOptions::new().format(Format::Npy).record_bytes(4).open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_refused(
        OpenOptions::new().format(Format::Npy).open(&path),
        ErrorKind::InvalidData,
        &path,
        &["npy"],
    );
}

#[test]
fn mistakes_in_a_manifest_are_named() {
    let folder = folder();
    write(&folder.path().join("a.bin"), &noise(1, 80));
    let manifest = folder.path().join("dataset.json");
    let column = |rest: &str| format!(r#"{{"version": 1, "columns": [{{"name": "x", {rest}}}]}}"#);
    for (text, kind, words) in [
        ("{".to_string(), ErrorKind::InvalidData, "not valid JSON"),
        (r#"{"version": 2, "columns": []}"#.into(), ErrorKind::Unsupported, "version 2"),
        (r#"{"version": 1, "columns": []}"#.into(), ErrorKind::InvalidData, "columns"),
        (
            column(r#""format": "records", "files": "*.bin", "dtype": "u9", "shape": [8]"#),
            ErrorKind::InvalidData,
            "u9",
        ),
        (column(r#""format": "tar", "files": "*.bin""#), ErrorKind::InvalidData, "tar"),
        (
            column(r#""format": "records", "files": "*.dat", "dtype": "u8", "shape": [8]"#),
            ErrorKind::NotFound,
            "*.dat",
        ),
    ] {
        write(&manifest, text.as_bytes());
        assert_refused(Dataset::open(folder.path()), kind, &manifest, &[words]);
    }
    write(
        &manifest,
        column(r#""format": "records", "files": "*.bin", "dtype": "u8", "shape": [8]"#).as_bytes(),
    );
    assert_eq!(Dataset::open(folder.path()).unwrap().len(), 10);
    assert_refused(records(folder.path(), 4), ErrorKind::InvalidArgument, &manifest, &["8 bytes", "4 bytes"]);
    // A shard that is at odds with it is named itself.
    write(&folder.path().join("b.bin"), &noise(1, 81));
    let shard = folder.path().join("b.bin");
    assert_refused(Dataset::open(folder.path()), ErrorKind::InvalidData, &shard, &["1 bytes over"]);
}

#[test]
fn names_that_are_not_text_are_read_and_told() {
    let folder = folder();
    let inner = folder.path().join(OsStr::from_bytes(b"folder-\xff"));
    fs::create_dir(&inner).unwrap();
    let path = inner.join(OsStr::from_bytes(b"shard-\xfe.bin"));
    write(&path, &noise(1, 80));
    for named in [inner.clone(), path.clone(), inner.join("*.bin")] {
        for backend in backends() {
            let builder = Loader::builder(records(&named, 8).unwrap()).backend(backend).batch_size(10);
            let mut loader = builder.shuffle(Shuffle::None).build().unwrap();
            assert_eq!(run(&mut loader, 0).0, noise(1, 80));
        }
    }
    assert_refused(records(&path, 7), ErrorKind::InvalidData, &path, &["3 bytes over"]);
}

#[test]
fn a_pattern_takes_the_files_that_it_matches_and_no_others() {
    let folder = folder();
    for (name, len) in [("a-1.bin", 8), ("a-2.bin", 8), ("b-1.bin", 7)] {
        write(&folder.path().join(name), &noise(len, len as usize));
    }
    assert_eq!(records(&folder.path().join("a-*.bin"), 8).unwrap().len(), 2);
    let b = folder.path().join("b-1.bin");
    assert_refused(records(&folder.path().join("*-1.bin"), 8), ErrorKind::InvalidData, &b, &[]);
    let listed: Vec<PathBuf> = vec![folder.path().join("a-2.bin"), folder.path().join("a-1.bin")];
    let dataset = Dataset::builder().records("x", listed.clone(), Dtype::U8, &[8]).build().unwrap();
    let files: Vec<_> = dataset.files().iter().map(|file| file.path().to_path_buf()).collect();
    assert_eq!(files, listed, "a list keeps its own order");
}

#[test]
fn input_files_are_never_changed() {
    let folder = folder();
    let paths = write_shards(folder.path(), &[noise(1, 8000), noise(2, 8000)]);
    let state = || -> Vec<_> {
        paths
            .iter()
            .map(|path| (fs::read(path).unwrap(), fs::metadata(path).unwrap().modified().unwrap()))
            .collect()
    };
    let before = state();
    for backend in backends() {
        let mut loader =
            Loader::builder(records(folder.path(), 1000).unwrap()).backend(backend).batch_size(3).build();
        run(loader.as_mut().unwrap(), 0);
    }
    assert!(state() == before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}
