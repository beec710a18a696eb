//! Small datasets whose every byte is known, and what batches of them delivered.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpufeed::{Batch, Dataset, Dtype, Epoch, Loader, State};
use tempfile::TempDir;

use super::{bytes_of, folder, noise, npy, write, write_shards};

/// A dataset of one column in a folder of its own, and all of its bytes.
pub(crate) struct Data {
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) record: usize,
    folder: TempDir,
}

impl Data {
    /// Raw records of so many bytes, in shards of so many records.
    pub(crate) fn records(record: usize, shards: &[usize]) -> Data {
        let folder = folder();
        let parts: Vec<Vec<u8>> =
            shards.iter().enumerate().map(|(i, n)| noise((record * 100 + i) as u64, n * record)).collect();
        let paths = write_shards(folder.path(), &parts);
        let builder = Dataset::builder().records("data", paths.clone(), Dtype::U8, &[record as u64]);
        let dataset = builder.build().map(Arc::new).unwrap();
        Data { dataset, paths, bytes: parts.concat(), record, folder }
    }

    /// Arrays of `(n, 3)` bytes.
    pub(crate) fn npy(shards: &[usize]) -> Data {
        let folder = folder();
        let (mut paths, mut bytes) = (Vec::new(), Vec::new());
        for (i, &samples) in shards.iter().enumerate() {
            let part = noise(i as u64 + 1, 3 * samples);
            let path = folder.path().join(format!("{i}.npy"));
            write(&path, &npy("'|u1'", &format!("({samples}, 3)"), 64, &part));
            bytes.extend(part);
            paths.push(path);
        }
        let dataset = Dataset::open(folder.path()).map(Arc::new).unwrap();
        Data { dataset, paths, bytes, record: 3, folder }
    }

    pub(crate) fn len(&self) -> u64 {
        self.dataset.len()
    }

    /// The dataset on the command line. The folder may come to hold other files too.
    pub(crate) fn pattern(&self) -> PathBuf {
        let suffix = self.paths[0].extension().unwrap().to_str().unwrap();
        self.folder.path().join(format!("*.{suffix}"))
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn sample(&self, sample: u64) -> &[u8] {
        &self.bytes[sample as usize * self.record..][..self.record]
    }

    /// The bytes of samples, one after the other.
    pub(crate) fn bytes_of(&self, samples: &[u64]) -> Vec<u8> {
        samples.iter().flat_map(|&sample| self.sample(sample)).copied().collect()
    }
}

/// All that a batch of one column says of itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Got {
    pub(crate) epoch: u64,
    pub(crate) index: u64,
    pub(crate) samples: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) padding: u64,
    pub(crate) state: State,
}

impl From<&Batch> for Got {
    fn from(batch: &Batch) -> Got {
        Got {
            epoch: batch.epoch(),
            index: batch.index(),
            samples: batch.samples().to_vec(),
            bytes: bytes_of(&batch.columns().next().unwrap()),
            padding: batch.padding(),
            state: batch.state(),
        }
    }
}

/// Goes through what is left of an epoch, and checks at every batch that what was told of the rest is so.
pub(crate) fn rest(mut epoch: Epoch<'_>) -> Vec<Got> {
    let mut all = Vec::new();
    let told = epoch.batches_left();
    loop {
        let left = told - all.len() as u64;
        assert_eq!((epoch.batches_left(), epoch.size_hint()), (left, (0, Some(left as usize))));
        let Some(batch) = epoch.next() else {
            assert_eq!(left, 0, "it ended early");
            assert!(epoch.next().is_none(), "it went on after its end");
            return all;
        };
        let batch = batch.unwrap();
        assert!(!batch.is_empty() && batch.len() == batch.samples().len());
        assert_eq!(batch.epoch(), epoch.number());
        assert_eq!(batch.state(), epoch.state());
        all.push(Got::from(&batch));
    }
}

/// A whole epoch, and whether the loader told before how much it is.
pub(crate) fn whole(loader: &mut Loader, number: u64) -> Vec<Got> {
    let all = rest(loader.epoch(number).unwrap());
    assert_eq!(all.len() as u64, loader.batches_per_epoch());
    assert_eq!(samples(&all).len() as u64, loader.samples_per_epoch());
    assert!(all.iter().map(|batch| batch.index).eq(0..all.len() as u64));
    assert_eq!((loader.state().epoch(), loader.state().position()), (number + 1, 0));
    all
}

/// The samples of batches, one after the other.
pub(crate) fn samples(batches: &[Got]) -> Vec<u64> {
    batches.iter().flat_map(|batch| batch.samples.clone()).collect()
}

/// Parts of `all`, of `size` each.
pub(crate) fn part(size: u64, number: u64) -> Range<usize> {
    (size * number) as usize..(size * (number + 1)) as usize
}
