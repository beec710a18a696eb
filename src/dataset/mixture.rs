//! Several datasets in one run, in exact proportions.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::index::{Column, Dataset, ShardFile, short};
use crate::order::{Interleave, Part};
use crate::{Error, Result};

/// A weighted mixture of datasets, for [`Loader::builder`](crate::Loader::builder).
///
/// ```no_run
/// use gpufeed::{Dataset, Loader, Mixture, Shuffle};
///
/// // Of ten samples seven are of the one, two and one of the others: exactly, and evenly spread.
/// let parts = ["web", "books", "code"].map(Dataset::open);
/// let [web, books, code] = parts;
/// let mixture = Mixture::new([(web?, 7), (books?, 2), (code?, 1)])?.epoch_samples(1_000_000)?;
/// let loader = Loader::builder(mixture).batch_size(250).shuffle(Shuffle::Full).seed(7).build()?;
/// # Ok::<(), gpufeed::Error>(())
/// ```
///
/// The datasets have the same columns. Each is gone through from beginning to end, in its own shuffled order, again and
/// again; where an epoch ends, the next goes on. So over a run every sample of a dataset comes equally often, give or
/// take one.
#[derive(Debug, Clone)]
pub struct Mixture {
    /// The samples of all datasets, one dataset after the other.
    dataset: Arc<Dataset>,
    interleave: Arc<Interleave>,
    samples: u64,
    parts: Vec<String>,
    fingerprint: String,
}

impl Mixture {
    /// Mixes datasets by whole-number weights: with 7, 2 and 1, ten samples have seven of the first, and so on. An epoch has
    /// as many samples as all of them together; see [`epoch_samples`](Mixture::epoch_samples).
    ///
    /// # Errors
    /// `InvalidArgument` if there is no dataset, columns differ in name, dtype or shape, a weight is 0, or the weights, in
    /// lowest terms, add up to more than 65536.
    pub fn new(parts: impl IntoIterator<Item = (Dataset, u64)>) -> Result<Mixture> {
        let (datasets, weights): (Vec<Dataset>, Vec<u64>) = parts.into_iter().unzip();
        let mut first = 0u64;
        let mut places = Vec::new();
        for (dataset, &weight) in datasets.iter().zip(&weights) {
            places.push(Part { first, samples: dataset.len(), weight });
            first = first
                .checked_add(dataset.len())
                .ok_or_else(|| Error::argument("the datasets of a mixture have too many samples to count"))?;
        }
        let interleave = Interleave::new(places)?;
        let fingerprints: Vec<String> = datasets.iter().map(|it| it.fingerprint().to_string()).collect();
        let dataset = Arc::new(one_after_the_other(datasets)?);
        let samples = dataset.len();
        let mut mixture = Mixture {
            dataset,
            interleave: interleave.into(),
            samples,
            parts: fingerprints,
            fingerprint: String::new(),
        };
        mixture.fingerprint = mixture.hash();
        Ok(mixture)
    }

    /// How many samples an epoch has. A multiple of the global batch size loses none to the last batch of an epoch.
    ///
    /// # Errors
    /// `InvalidArgument` for 0.
    pub fn epoch_samples(mut self, samples: u64) -> Result<Mixture> {
        if samples == 0 {
            return Err(Error::argument("an epoch of the mixture has 0 samples; it must have at least 1"));
        }
        self.samples = samples;
        self.fingerprint = self.hash();
        Ok(self)
    }

    /// Samples in an epoch.
    pub fn samples_per_epoch(&self) -> u64 {
        self.samples
    }

    /// The samples of all datasets, one dataset after the other. A batch's sample numbers are those in here.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// Which dataset a sample is of, counted in the order in which they were given, and its number there; `None` beyond the
    /// last sample.
    pub fn source_of(&self, sample: u64) -> Option<(usize, u64)> {
        let parts = self.interleave.parts();
        let part = parts.partition_point(|part| part.first <= sample).checked_sub(1)?;
        let within = sample - parts[part].first;
        (within < parts[part].samples).then_some((part, within))
    }

    /// The weights, in lowest terms.
    pub fn weights(&self) -> Vec<u64> {
        self.interleave.parts().iter().map(|part| part.weight).collect()
    }

    /// Equal for equal datasets in equal order, with equal weights and samples in an epoch.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    pub(crate) fn interleave(&self) -> &Arc<Interleave> {
        &self.interleave
    }

    fn hash(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(b"gpufeed mixture 1");
        hash.update(self.samples.to_le_bytes());
        for (fingerprint, part) in self.parts.iter().zip(self.interleave.parts()) {
            hash.update(fingerprint);
            hash.update(part.weight.to_le_bytes());
        }
        short(hash)
    }
}

/// One dataset of the samples of all, which must have the same columns.
fn one_after_the_other(datasets: Vec<Dataset>) -> Result<Dataset> {
    let mut datasets = datasets.into_iter();
    let Some(first) = datasets.next() else {
        return Err(Error::argument("a mixture needs at least one dataset"));
    };
    let opener = first.opener.clone();
    let files_of = |dataset: &Dataset, column: &Column| dataset.files_of(column).to_vec();
    let mut parts: Vec<(Column, Vec<ShardFile>)> =
        first.columns.iter().map(|column| (column.clone(), files_of(&first, column))).collect();
    for (number, other) in (1..).zip(datasets) {
        if !other.opener.is(&opener) {
            return Err(Error::argument(format!(
                "dataset {number} of the mixture has another allowed root than the first"
            )));
        }
        if other.columns.len() != parts.len() {
            return Err(Error::argument(format!(
                "dataset {number} of the mixture has {} columns, the first has {}",
                other.columns.len(),
                parts.len()
            )));
        }
        for ((known, files), column) in parts.iter_mut().zip(&other.columns) {
            let facts = |it: &Column| (it.name.clone(), it.dtype, it.shape.clone());
            if facts(known) != facts(column) {
                let path = other.files_of(column).first().map(|file| file.path.clone()).unwrap_or_default();
                let words = |it: &Column| format!("{:?} {} {:?}", it.name, it.dtype, it.shape);
                return Err(Error::argument(format!(
                    "dataset {number} of the mixture has the column {} where the first has {}",
                    words(column),
                    words(known)
                ))
                .at(&path));
            }
            files.extend(files_of(&other, column));
        }
    }
    Dataset::assemble(parts, opener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dtype;

    fn dataset(folder: &std::path::Path, name: &str, shape: &[u64], samples: usize) -> Dataset {
        let path = folder.join(name);
        let bytes = shape.iter().product::<u64>() as usize;
        std::fs::write(&path, vec![7u8; samples * bytes]).unwrap();
        Dataset::builder().records("x", path, Dtype::U8, shape).build().unwrap()
    }

    #[test]
    fn a_sample_is_found_in_the_dataset_that_it_is_of() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name, samples| dataset(folder.path(), name, &[2], samples);
        let mixture = Mixture::new([(of("a", 10), 30), (of("b", 1), 10), (of("c", 5), 20)]).unwrap();
        assert_eq!((mixture.samples_per_epoch(), mixture.dataset().len()), (16, 16));
        assert_eq!(mixture.weights(), [3, 1, 2]);
        let sources = [0, 9, 10, 11, 15].map(|sample| mixture.source_of(sample).unwrap());
        assert_eq!(sources, [(0, 0), (0, 9), (1, 0), (2, 0), (2, 4)]);
        assert_eq!(mixture.source_of(16), None);
    }

    #[test]
    fn a_fingerprint_tells_mixtures_apart() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (dataset(folder.path(), "a", &[2], 10), dataset(folder.path(), "b", &[2], 10));
        let of = |x: &Dataset, y: &Dataset, w| Mixture::new([(x.clone(), w), (y.clone(), 1)]).unwrap();
        let one = of(&a, &b, 2).fingerprint().to_string();
        assert_eq!(one, of(&a, &b, 2).fingerprint());
        for other in [of(&b, &a, 2), of(&a, &b, 3), of(&a, &b, 2).epoch_samples(7).unwrap()] {
            assert_ne!(one, other.fingerprint());
        }
        assert_ne!(one, a.fingerprint());
    }

    #[test]
    fn datasets_that_do_not_go_together_are_told_apart_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (dataset(folder.path(), "a", &[2], 10), dataset(folder.path(), "b", &[4], 10));
        let error = Mixture::new([(a.clone(), 1), (b, 1)]).unwrap_err();
        assert!(error.path().unwrap().ends_with("b"));
        for part in ["dataset 1", "\"x\" u8 [4]", "\"x\" u8 [2]"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(Mixture::new([]).is_err());
        assert!(Mixture::new([(a.clone(), 0)]).is_err());
        assert!(Mixture::new([(a, 1)]).unwrap().epoch_samples(0).is_err());
    }
}
