//! What the integration tests share: data on a real disk, and naive readers to compare with.
#![allow(dead_code, reason = "each test file uses its own part of this")]

#[cfg(feature = "cli")]
pub(crate) mod command;
pub(crate) mod data;
pub(crate) mod launcher;
#[cfg(feature = "cli")]
pub(crate) mod load;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use gpufeed::{Backend, Batch, Dataset, Loader, Order, Shuffle};
use tempfile::TempDir;

/// A new folder on a real disk. `/tmp` may be in memory, where direct I/O is accepted at any alignment.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Bytes without a pattern; the same for the same seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len];
    for part in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        part.copy_from_slice(&state.to_le_bytes()[..part.len()]);
    }
    bytes
}

/// Writes a file through to the disk, so that its pages can be evicted.
pub(crate) fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

/// Takes a file out of the page cache. Pages that are in use at the moment stay, so it may take a few times.
pub(crate) fn make_cold(path: &Path) {
    for _ in 0..500 {
        gpufeed::evict(path).unwrap();
        if gpufeed::residency(path).unwrap().cached_pages == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{}: it stays in the page cache", path.display());
}

/// Writes `shard-0000.bin` and so on.
pub(crate) fn write_shards(folder: &Path, shards: &[Vec<u8>]) -> Vec<PathBuf> {
    let name = |i: usize| folder.join(format!("shard-{i:04}.bin"));
    shards.iter().enumerate().map(|(i, bytes)| (write(&name(i), bytes), name(i)).1).collect()
}

/// A version 1 header that is padded to a multiple of `multiple` bytes, then the data.
pub(crate) fn npy(descr: &str, shape: &str, multiple: usize, data: &[u8]) -> Vec<u8> {
    npy_of(&format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"), multiple, data)
}

pub(crate) fn npy_of(dict: &str, multiple: usize, data: &[u8]) -> Vec<u8> {
    let length = (10 + dict.len() + 1).next_multiple_of(multiple) - 10;
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((length as u16).to_le_bytes());
    bytes.extend(dict.as_bytes());
    bytes.resize(10 + length - 1, b' ');
    bytes.push(b'\n');
    bytes.extend(data);
    bytes
}

/// `auto`, and the backends that work here.
pub(crate) fn backends() -> Vec<Backend> {
    let all = [Backend::Auto, Backend::Uring, Backend::Pread, Backend::PageCache];
    let works = |backend: &Backend| match backend.probe() {
        Ok(_) => true,
        Err(refused) => {
            eprintln!("left out: {refused}");
            false
        }
    };
    all.into_iter().filter(works).collect()
}

/// Whether files in `folder()` can be read around the page cache. Where that was promised, it must be so.
pub(crate) fn direct_here() -> bool {
    let folder = folder();
    let path = folder.path().join("probe");
    write(&path, &noise(1, 8192));
    let dataset = Dataset::builder().records("data", path, gpufeed::Dtype::U8, &[4096]).build().unwrap();
    let mut loader = Loader::builder(dataset).backend(Backend::Pread).batch_size(2).build().unwrap();
    loader.epoch(0).unwrap().for_each(|batch| drop(batch.unwrap()));
    let direct = loader.report().bytes_by_way.bytes(gpufeed::Way::PreadDirect) > 0;
    if !direct {
        eprintln!("skipped: there is no direct I/O here: {:?}", loader.report().not_direct);
        assert!(std::env::var_os("CI").is_none(), "the checks promise to run this on a real disk");
    }
    direct
}

/// The samples that an epoch delivers, by the rules as they are written down.
pub(crate) fn expected(samples: u64, batch: u64, last: gpufeed::LastBatch, order: &Order) -> Vec<Vec<u64>> {
    let mut all: Vec<u64> = (0..samples).map(|position| order.sample(position).unwrap()).collect();
    let over = samples % batch;
    match last {
        gpufeed::LastBatch::Drop => all.truncate((samples - over) as usize),
        gpufeed::LastBatch::Pad if over > 0 => {
            let first: Vec<u64> = all.iter().copied().cycle().take((batch - over) as usize).collect();
            all.extend(first);
        }
        _ => {}
    }
    all.chunks(batch as usize).map(<[u64]>::to_vec).collect()
}

/// Names the device that the tests of a process deliver to; the host if it is not set.
pub(crate) const DEVICE: &str = "GPUFEED_TEST_DEVICE";

/// A builder that delivers to the device under test.
pub(crate) fn loader(dataset: impl Into<gpufeed::Source>) -> gpufeed::LoaderBuilder {
    let device = std::env::var(DEVICE).map_or(gpufeed::Device::Host, |name| name.parse().unwrap());
    Loader::builder(dataset).device(device)
}

/// A column's bytes, wherever they are.
pub(crate) fn bytes_of(column: &gpufeed::ColumnView<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    column.copy_to_host(&mut bytes).unwrap();
    bytes
}

/// Every column of a batch against the bytes that `naive` has for (column, sample).
pub(crate) fn assert_batch<'a>(batch: &Batch, naive: impl Fn(usize, u64) -> &'a [u8]) {
    for (index, column) in batch.columns().enumerate() {
        let bytes = bytes_of(&column);
        let size = bytes.len() / batch.len();
        for (row, &sample) in batch.samples().iter().enumerate() {
            assert!(
                bytes[row * size..][..size] == *naive(index, sample),
                "column {:?}, row {row} of batch {} (sample {sample}) is wrong",
                column.name(),
                batch.index()
            );
        }
        assert!(column.sample(batch.len()).is_err());
    }
}

/// All bytes of an epoch, and its samples.
pub(crate) fn run(loader: &mut Loader, epoch: u64) -> (Vec<u8>, Vec<u64>) {
    let (mut bytes, mut samples) = (Vec::new(), Vec::new());
    for batch in loader.epoch(epoch).unwrap() {
        let batch = batch.unwrap();
        samples.extend_from_slice(batch.samples());
        let columns: Vec<Vec<u8>> = batch.columns().map(|column| bytes_of(&column)).collect();
        for row in 0..batch.len() {
            for column in &columns {
                let size = column.len() / batch.len();
                bytes.extend_from_slice(&column[row * size..][..size]);
            }
        }
    }
    (bytes, samples)
}

/// The kinds of order that a loader knows.
pub(crate) const SHUFFLES: [Shuffle; 3] =
    [Shuffle::None, Shuffle::Full, Shuffle::Blocks { block: 5, window: 17 }];
