use super::*;
use crate::memory::Device;

fn buffer(len: usize) -> (DeviceBuffer, Vec<u8>) {
    let bytes: Vec<u8> =
        (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let mut buffer = DeviceBuffer::new(Device::Host, len).unwrap();
    buffer.write(0, &bytes).unwrap();
    (buffer, bytes)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(".").unwrap()
}

const BACKENDS: [Backend; 4] = [Backend::Auto, Backend::Uring, Backend::Pread, Backend::PageCache];

#[test]
fn every_place_and_length_is_written_right_by_every_backend() {
    let folder = folder();
    let (buffer, bytes) = buffer(300_000);
    for backend in BACKENDS {
        for (at, from, len) in [
            (0u64, 0usize, 300_000usize),
            (0, 0, 4096),
            (1, 0, 4096),
            (4095, 3, 4098),
            (4096, 4096, 8192),
            (5000, 17, 100_001),
            (0, 0, 1),
            (8191, 1, 0),
        ] {
            let path = folder.path().join("out");
            let options = WriteOptions::new().backend(backend).io_bytes(8192).queue_depth(3);
            let mut file = CheckpointFile::create(&path, options).unwrap();
            file.write_at(at, &buffer, from..from + len).unwrap();
            let ways = file.commit().unwrap();
            assert_eq!(ways.total(), len as u64, "{backend} {at} {from} {len}");
            let mut right = vec![0; if len == 0 { 0 } else { at as usize }];
            right.extend(&bytes[from..from + len]);
            assert!(std::fs::read(&path).unwrap() == right, "{backend} {at} {from} {len}");
        }
    }
}

#[test]
fn a_file_grows_by_pieces_in_any_order() {
    let folder = folder();
    let (buffer, bytes) = buffer(100_000);
    for backend in BACKENDS {
        let path = folder.path().join("out");
        let mut file = CheckpointFile::create(&path, WriteOptions::new().backend(backend)).unwrap();
        for start in (0..100_000).step_by(7777).rev() {
            let end = (start + 7777).min(100_000);
            file.write_at(start as u64, &buffer, start..end).unwrap();
        }
        file.commit().unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes);
    }
}

#[test]
fn what_was_there_stays_until_the_commit_and_nothing_else_is_left() {
    let folder = folder();
    let (buffer, bytes) = buffer(10_000);
    let path = folder.path().join("model.bin");
    std::fs::write(&path, b"old").unwrap();
    let mut file = CheckpointFile::create(&path, WriteOptions::new()).unwrap();
    file.write_at(0, &buffer, 0..10_000).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    drop(file);
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

    let mut file = CheckpointFile::create(&path, WriteOptions::new()).unwrap();
    file.write_at(0, &buffer, 0..10_000).unwrap();
    file.commit().unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn nonsense_is_refused_and_a_failed_write_is_an_error() {
    let folder = folder();
    let (buffer, _) = buffer(100);
    let path = folder.path().join("out");
    let create = |options| CheckpointFile::create(&path, options).map(|_| ()).unwrap_err();
    assert_eq!(create(WriteOptions::new().queue_depth(0)).kind(), ErrorKind::InvalidArgument);
    assert_eq!(create(WriteOptions::new().io_bytes(1)).kind(), ErrorKind::InvalidArgument);
    let nowhere = CheckpointFile::create(folder.path().join("no/where"), WriteOptions::new()).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::NotFound);
    assert!(
        CheckpointFile::create("/", WriteOptions::new()).unwrap_err().to_string().contains("names no file")
    );

    let mut file = CheckpointFile::create(&path, WriteOptions::new()).unwrap();
    assert_eq!(file.write_at(0, &buffer, 50..101).unwrap_err().kind(), ErrorKind::InvalidArgument);
    #[allow(clippy::reversed_empty_ranges, reason = "it is what must be refused")]
    let reversed = file.write_at(0, &buffer, 2..1).unwrap_err();
    assert_eq!(reversed.kind(), ErrorKind::InvalidArgument);
    assert_eq!(file.write_at(u64::MAX - 5, &buffer, 0..10).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let gds = WriteOptions::new().backend(Backend::Gds);
    let mut file = CheckpointFile::create(&path, gds).unwrap();
    assert!(file.write_at(0, &buffer, 0..10).unwrap_err().to_string().contains("name a GPU"));

    // A device that is always full stands for a disk that is.
    let full = std::fs::OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
    for way in [writers::in_threads, writers::by_uring] {
        let part = Part { file: &full, at: 0, buffer: &buffer, from: 0 };
        let error = way(&part, 100, &WriteOptions::new()).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("No space left"), "{error}: {source}");
    }
}
