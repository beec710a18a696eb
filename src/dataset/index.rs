//! The index itself: columns, their shards, and where a sample lies.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::{DatasetBuilder, Dtype};
use crate::order::gcd;
use crate::storage::{
    Alignment, DirectIo, FileIdentity, FileSystem, Opener, Residency, file_systems, residency_by, within,
};
use crate::{Error, Result};

/// The format of a column's shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Records of one fixed size, one after the other, with nothing between or around them.
    Records,
    /// NumPy's `.npy`; the first axis counts the samples.
    Npy,
}

impl Format {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Format::Records => "records",
            Format::Npy => "npy",
        }
    }
}

/// One file of a column.
#[derive(Debug, Clone)]
pub struct ShardFile {
    pub(crate) path: PathBuf,
    pub(crate) identity: FileIdentity,
    pub(crate) data_offset: u64,
    pub(crate) samples: u64,
}

impl ShardFile {
    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the file was when it was indexed.
    pub fn identity(&self) -> &FileIdentity {
        &self.identity
    }

    /// How many samples it holds.
    pub fn samples(&self) -> u64 {
        self.samples
    }
}

/// One value per sample: images, say, or labels. All samples of a column have one dtype and shape.
#[derive(Debug, Clone)]
pub struct Column {
    pub(crate) name: String,
    pub(crate) format: Format,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    pub(crate) sample_bytes: u64,
    /// The number, among all files of the dataset, of the column's first file.
    pub(crate) first_file: u32,
    /// For each of its shards the number of its first sample, and at the end the number of samples.
    pub(crate) starts: Vec<u64>,
}

/// Where samples lie: a run of neighbours in one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) file: u32,
    pub(crate) offset: u64,
}

impl Column {
    /// The column's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The format of its files.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The type of its elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The shape of one sample; empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The size of one sample in bytes.
    pub fn sample_bytes(&self) -> u64 {
        self.sample_bytes
    }

    /// The number of its shards.
    pub fn shards(&self) -> usize {
        self.starts.len() - 1
    }
}

/// An index of samples: which file, which offset, which length. Opening one reads headers only.
///
/// A dataset has one or more columns of one length; sample `i` is value `i` of every column.
#[derive(Debug, Clone)]
pub struct Dataset {
    pub(crate) columns: Vec<Column>,
    pub(crate) files: Vec<ShardFile>,
    pub(crate) samples: u64,
    pub(crate) fingerprint: String,
    /// What its files are opened by, as long as it lives.
    pub(crate) opener: Opener,
}

impl Dataset {
    /// A builder, for programs that know what their files are.
    pub fn builder() -> DatasetBuilder {
        DatasetBuilder::new()
    }

    /// Opens a folder, a file, or a pattern of the shell (`data/shard-*.npy`).
    ///
    /// A folder with a `dataset.json` is what that says; otherwise every file is looked at, and all must be `.npy`.
    /// Raw records cannot be told from their content: use [`OpenOptions::record_bytes`](super::OpenOptions) or
    /// [`Dataset::builder`].
    ///
    /// # Errors
    /// Nothing is there, a file is malformed, or the files are not of one kind, dtype and shape. The error names
    /// the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Dataset> {
        super::OpenOptions::default().open(path)
    }

    /// The columns, in the order in which they make up a sample.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Every file of every column.
    pub fn files(&self) -> &[ShardFile] {
        &self.files
    }

    /// The file systems that the files lie on, in the order of the first file on each. Empty where `/proc` is not
    /// mounted.
    pub fn file_systems(&self) -> Vec<FileSystem> {
        self.file_systems_by(&self.opener)
    }

    fn file_systems_by(&self, opener: &Opener) -> Vec<FileSystem> {
        file_systems(opener, self.files.iter().map(|file| (&*file.path, file.identity.device)))
    }

    /// The same, unless a look at one of them takes longer than this.
    pub(crate) fn file_systems_within(self: &Arc<Self>, limit: Duration) -> Result<Vec<FileSystem>> {
        let dataset = Arc::clone(self);
        within(Some(limit), "the loader was built", move |visits| {
            Ok(dataset.file_systems_by(&dataset.opener.watched(visits)))
        })
    }

    /// The number of samples.
    pub fn len(&self) -> u64 {
        self.samples
    }

    /// Whether there is no sample; never true, since an empty dataset cannot be opened.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// The size in bytes of one sample: the sum over all columns.
    pub fn sample_bytes(&self) -> u64 {
        self.columns.iter().map(|c| c.sample_bytes).sum()
    }

    /// The size in bytes of all samples, without headers.
    pub fn payload_bytes(&self) -> u64 {
        self.samples * self.sample_bytes()
    }

    /// A short value that is equal for equal datasets on any machine: a hash of columns, formats, dtypes, shapes,
    /// and the names, sizes and sample counts of the shards. File contents and times are not part of it.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Counts the samples and shards whose data starts on a direct-I/O boundary of their file.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn alignment(&self) -> Result<AlignmentReport> {
        let mut report = AlignmentReport::default();
        for column in &self.columns {
            for shard in self.files_of(column) {
                let (file, _) = self.opener.open_regular(&shard.path, 0)?;
                let boundary = match DirectIo::promised(&file) {
                    DirectIo::Supported(Alignment { memory, offset }) => memory.max(offset),
                    DirectIo::Unsupported(_) => Alignment::FALLBACK.offset,
                };
                report.boundary = report.boundary.max(boundary);
                report.shards += 1;
                report.samples += shard.samples;
                let boundary = u64::from(boundary);
                if shard.data_offset.is_multiple_of(boundary) {
                    report.aligned_shards += 1;
                }
                report.aligned_samples +=
                    count_multiples(shard.data_offset, column.sample_bytes, shard.samples, boundary);
            }
        }
        Ok(report)
    }

    /// How much of the dataset's files is in the page cache. Reads none of them.
    ///
    /// # Errors
    /// As [`residency`](crate::residency) of each file.
    pub fn residency(&self) -> Result<Residency> {
        let mut total = Residency::default();
        for file in &self.files {
            total += residency_by(&self.opener, &file.path)?;
        }
        Ok(total)
    }

    pub(crate) fn files_of(&self, column: &Column) -> &[ShardFile] {
        let first = column.first_file as usize;
        &self.files[first..first + column.shards()]
    }

    /// Where a sample of a column lies. `sample` is below the dataset's length.
    pub(crate) fn locate(&self, column: &Column, sample: u64) -> Place {
        debug_assert!(sample < self.samples);
        // The last shard that starts at or before the sample; empty shards share a start with their successor.
        let shard = column.starts.partition_point(|&start| start <= sample) - 1;
        let file = column.first_file + shard as u32;
        let within = sample - column.starts[shard];
        Place { file, offset: self.files[file as usize].data_offset + within * column.sample_bytes }
    }

    /// Puts columns together: checks that they have one length and no name twice.
    pub(crate) fn assemble(parts: Vec<(Column, Vec<ShardFile>)>, opener: Opener) -> Result<Dataset> {
        let mut columns: Vec<Column> = Vec::new();
        let mut files = Vec::new();
        for (mut column, shards) in parts {
            if columns.iter().any(|known| known.name == column.name) {
                return Err(Error::argument(format!("two columns are named {:?}", column.name)));
            }
            column.first_file = u32::try_from(files.len())
                .ok()
                .filter(|_| files.len() + shards.len() < u32::MAX as usize)
                .ok_or_else(|| Error::argument("a dataset holds at most 2^32 - 2 files"))?;
            let mut start = 0u64;
            column.starts = vec![0];
            for shard in &shards {
                start += shard.samples;
                column.starts.push(start);
            }
            files.extend(shards);
            columns.push(column);
        }
        let length = |column: &Column| column.starts.last().copied().unwrap_or(0);
        let Some(first) = columns.first() else {
            return Err(Error::argument("a dataset needs at least one column"));
        };
        let samples = length(first);
        if let Some(other) = columns.iter().find(|column| length(column) != samples) {
            return Err(Error::argument(format!(
                "column {:?} has {samples} samples and column {:?} has {}; columns go side by side, so they need one length",
                first.name,
                other.name,
                length(other)
            )));
        }
        if samples == 0 {
            let shard = files.first().map(|f: &ShardFile| f.path.clone()).unwrap_or_default();
            return Err(Error::data(&shard, "the dataset has no samples"));
        }
        let sample_bytes = columns.iter().try_fold(0u64, |sum, c| sum.checked_add(c.sample_bytes));
        if sample_bytes.and_then(|bytes| bytes.checked_mul(samples)).is_none() {
            return Err(Error::argument("the dataset's size in bytes does not fit into 64 bits"));
        }
        let fingerprint = fingerprint(&columns, &files);
        Ok(Dataset { columns, files, samples, fingerprint, opener: opener.unwatched() })
    }
}

/// How many samples and shards start on a direct-I/O boundary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AlignmentReport {
    /// The boundary in bytes: the largest that one of the files needs.
    pub boundary: u32,
    /// Shards, over all columns.
    pub shards: u64,
    /// Shards whose first sample starts on a boundary.
    pub aligned_shards: u64,
    /// Samples, over all columns.
    pub samples: u64,
    /// Samples that start on a boundary.
    pub aligned_samples: u64,
}

/// How many of the `count` numbers `start, start + step, ...` are multiples of `of`, a power of two.
fn count_multiples(start: u64, step: u64, count: u64, of: u64) -> u64 {
    // The offsets repeat modulo `of` after at most `of` steps.
    let period = of / gcd(step % of, of);
    let hits = |n: u64| (0..n).filter(|i| (start % of + (i * (step % of))).is_multiple_of(of)).count() as u64;
    count / period * hits(period) + hits(count % period)
}

fn fingerprint(columns: &[Column], files: &[ShardFile]) -> String {
    let mut hash = Sha256::new();
    let mut put = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    put(b"gpufeed dataset 1");
    for column in columns {
        put(column.name.as_bytes());
        put(column.format.name().as_bytes());
        put(column.dtype.name().as_bytes());
        let shape: Vec<u8> = column.shape.iter().flat_map(|axis| axis.to_le_bytes()).collect();
        put(&shape);
        let first = column.first_file as usize;
        for file in &files[first..first + column.shards()] {
            put(std::os::unix::ffi::OsStrExt::as_bytes(file.path.file_name().unwrap_or_default()));
            put(&file.identity.size.to_le_bytes());
            put(&file.data_offset.to_le_bytes());
            put(&file.samples.to_le_bytes());
        }
    }
    short(hash)
}

/// The first half of a hash, as digits.
pub(super) fn short(hash: Sha256) -> String {
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_offsets_are_counted_as_a_loop_would() {
        for start in [0u64, 1, 64, 128, 512, 4096] {
            for step in [1u64, 64, 100, 512, 4096, 5000, 150_528] {
                for count in [0u64, 1, 7, 1000] {
                    for of in [512u64, 4096] {
                        let naive = (0..count).filter(|i| (start + i * step) % of == 0).count() as u64;
                        assert_eq!(
                            count_multiples(start, step, count, of),
                            naive,
                            "{start} {step} {count} {of}"
                        );
                    }
                }
            }
        }
    }
}
