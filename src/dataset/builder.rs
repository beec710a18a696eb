//! Building a dataset column by column.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rayon::prelude::*;

use super::index::{Column, Dataset, Format, ShardFile};
use super::{Dtype, npy};
use crate::storage::{FileIdentity, Opener, Visits, expand, twice_if_stale, within};
use crate::{Error, ErrorKind, Result};

/// The shards of one column: a folder, file or pattern, or a list of files in an order of the caller's choice.
#[derive(Debug, Clone)]
pub struct Shards(Source);

#[derive(Debug, Clone)]
enum Source {
    Named(PathBuf),
    Listed(Vec<PathBuf>),
}

impl From<&str> for Shards {
    fn from(path: &str) -> Self {
        Shards(Source::Named(path.into()))
    }
}

impl From<&Path> for Shards {
    fn from(path: &Path) -> Self {
        Shards(Source::Named(path.into()))
    }
}

impl From<PathBuf> for Shards {
    fn from(path: PathBuf) -> Self {
        Shards(Source::Named(path))
    }
}

impl From<Vec<PathBuf>> for Shards {
    fn from(paths: Vec<PathBuf>) -> Self {
        Shards(Source::Listed(paths))
    }
}

impl Shards {
    pub(crate) fn list(self, opener: &Opener) -> Result<Vec<PathBuf>> {
        match self.0 {
            Source::Named(path) => expand(opener, &path, super::manifest::FILE_NAME),
            Source::Listed(paths) => Ok(paths),
        }
    }
}

#[derive(Debug, Clone)]
struct Part {
    name: String,
    shards: Shards,
    layout: Layout,
}

/// How a column's files are laid out.
#[derive(Debug, Clone)]
pub(crate) enum Layout {
    Records {
        dtype: Dtype,
        shape: Vec<u64>,
    },
    /// With what dtype and sample shape are expected to be, where somebody said so.
    Npy {
        dtype: Option<Dtype>,
        shape: Option<Vec<u64>>,
    },
}

/// Builds a [`Dataset`] from columns.
///
/// ```no_run
/// use gpufeed::{Dataset, Dtype};
///
/// let dataset = Dataset::builder()
///     .records("image", "data/images-*.bin", Dtype::U8, &[8, 8])
///     .npy("label", "data/labels.npy")
///     .build()?;
/// # Ok::<(), gpufeed::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct DatasetBuilder {
    parts: Vec<Part>,
    root: Option<PathBuf>,
    timeout: Option<Duration>,
}

impl DatasetBuilder {
    /// A builder with no column yet.
    pub fn new() -> Self {
        DatasetBuilder::default()
    }

    /// Adds a column of raw records: each of `shape` elements of `dtype`, with nothing between them.
    #[must_use]
    pub fn records(mut self, name: &str, shards: impl Into<Shards>, dtype: Dtype, shape: &[u64]) -> Self {
        let layout = Layout::Records { dtype, shape: shape.to_vec() };
        self.parts.push(Part { name: name.into(), shards: shards.into(), layout });
        self
    }

    /// Adds a column of `.npy` files; the first axis of each array counts the samples.
    #[must_use]
    pub fn npy(mut self, name: &str, shards: impl Into<Shards>) -> Self {
        let layout = Layout::Npy { dtype: None, shape: None };
        self.parts.push(Part { name: name.into(), shards: shards.into(), layout });
        self
    }

    /// Files are opened only below this folder, as [`OpenOptions::root`](super::OpenOptions::root) says.
    #[must_use]
    pub fn root(mut self, folder: impl Into<PathBuf>) -> Self {
        self.root = Some(folder.into());
        self
    }

    /// How long a look at one folder or file may take, as [`OpenOptions::timeout`](super::OpenOptions::timeout) says.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Looks at every file (headers only) and puts the columns together.
    ///
    /// # Errors
    /// A file is missing, not regular, empty, malformed, or does not fit the others; columns differ in length or
    /// share a name; there is no sample; or one leads out of the root. The error names the file.
    pub fn build(self) -> Result<Dataset> {
        within(self.timeout, "the dataset was opened", move |visits| self.build_now(visits))
    }

    fn build_now(self, visits: Visits) -> Result<Dataset> {
        let opener = Opener::below(self.root.as_deref(), visits)?;
        let parts = self
            .parts
            .into_iter()
            .map(|part| column(&opener, part.name, part.shards.list(&opener)?, part.layout))
            .collect::<Result<_>>()?;
        Dataset::assemble(parts, opener)
    }
}

/// Indexes the files of one column.
pub(crate) fn column(
    opener: &Opener,
    name: String,
    paths: Vec<PathBuf>,
    layout: Layout,
) -> Result<(Column, Vec<ShardFile>)> {
    if paths.is_empty() {
        return Err(Error::argument(format!("column {name:?} has no files")));
    }
    let make = |format, dtype: Dtype, shape: Vec<u64>, sample_bytes| Column {
        name: name.clone(),
        format,
        dtype,
        shape,
        sample_bytes,
        first_file: 0,
        starts: Vec::new(),
    };
    match layout {
        Layout::Records { dtype, shape } => {
            let record = bytes_of(dtype, &shape).filter(|&bytes| bytes > 0).ok_or_else(|| {
                Error::argument(format!(
                    "column {name:?}: a record of shape {shape:?} and dtype {dtype} has no size that can be read"
                ))
            })?;
            let shards = for_each(opener, &paths, |path| records_shard(opener, path, record))?;
            Ok((make(Format::Records, dtype, shape, record), shards))
        }
        Layout::Npy { dtype: wanted, shape: wanted_shape } => {
            let found = for_each(opener, &paths, |path| npy_shard(opener, path))?;
            let (dtype, shape) = (found[0].dtype, found[0].shape.clone());
            for (path, file) in paths.iter().zip(&found) {
                if (file.dtype, &file.shape) != (dtype, &shape) {
                    return Err(Error::data(
                        path,
                        format!(
                            "its samples are {} of shape {:?}, those of {} are {dtype} of shape {shape:?}; the samples of a column must be alike",
                            file.dtype,
                            file.shape,
                            paths[0].display()
                        ),
                    ));
                }
            }
            if wanted.is_some_and(|wanted| wanted != dtype)
                || wanted_shape.as_ref().is_some_and(|w| *w != shape)
            {
                let wanted = wanted.map_or("any dtype", Dtype::name);
                let wanted_shape =
                    wanted_shape.map_or("any shape".into(), |shape| format!("shape {shape:?}"));
                return Err(Error::data(
                    &paths[0],
                    format!(
                        "its samples are {dtype} of shape {shape:?}; {wanted} of {wanted_shape} was expected"
                    ),
                ));
            }
            let bytes = bytes_of(dtype, &shape).filter(|&bytes| bytes > 0).ok_or_else(|| {
                Error::data(&paths[0], format!("its samples of shape {shape:?} have no elements"))
            })?;
            Ok((make(Format::Npy, dtype, shape, bytes), found.into_iter().map(|file| file.shard).collect()))
        }
    }
}

/// The size of an array in bytes, if it fits.
pub(crate) fn bytes_of(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(dtype.size(), |bytes, &axis| bytes.checked_mul(axis))
}

/// Maps over files in parallel where there are many; the first error in the files' order is the one returned.
fn for_each<T: Send>(
    opener: &Opener,
    paths: &[PathBuf],
    look: impl Fn(&Path) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    const MANY: usize = 128;
    let look = |path: &Path| twice_if_stale(|| look(path));
    if paths.len() < MANY {
        return paths.iter().map(|path| look(path)).collect();
    }
    let all = || paths.par_iter().map(|path| look(path)).collect::<Vec<Result<T>>>();
    let all = if opener.is_watched() {
        // Threads that hang are left behind, and must not be those that the rest of the process shares.
        let own = rayon::ThreadPoolBuilder::new().thread_name(|i| format!("gpufeed-open-{i}")).build();
        let failed = |e| Error::new(ErrorKind::Io, "cannot start threads that open the dataset").caused_by(e);
        own.map_err(failed)?.install(all)
    } else {
        all()
    };
    all.into_iter().collect()
}

fn records_shard(opener: &Opener, path: &Path, record: u64) -> Result<ShardFile> {
    let (_, metadata) = opener.open_regular(path, 0)?;
    let size = metadata.len();
    if size == 0 {
        return Err(Error::data(path, "the shard is empty"));
    }
    if size < record {
        return Err(Error::data(
            path,
            format!("the shard has {size} bytes, fewer than one record of {record}"),
        ));
    }
    if size % record != 0 {
        return Err(Error::data(
            path,
            format!(
                "its {size} bytes are not a multiple of the record size {record}: {} records and {} bytes over",
                size / record,
                size % record
            ),
        ));
    }
    Ok(ShardFile {
        path: path.into(),
        identity: FileIdentity::of(&metadata),
        data_offset: 0,
        samples: size / record,
    })
}

struct NpyShard {
    shard: ShardFile,
    dtype: Dtype,
    shape: Vec<u64>,
}

fn npy_shard(opener: &Opener, path: &Path) -> Result<NpyShard> {
    let _visit = opener.visit(path);
    let (file, metadata) = opener.open_regular(path, 0)?;
    let header = npy::read_header(path, &file, metadata.len())?;
    let Some((&samples, shape)) = header.shape.split_first() else {
        return Err(
            Error::new(ErrorKind::Unsupported, "a zero-dimensional array has no sample axis").at(path)
        );
    };
    Ok(NpyShard {
        shard: ShardFile {
            path: path.into(),
            identity: FileIdentity::of(&metadata),
            data_offset: header.data_offset,
            samples,
        },
        dtype: header.dtype,
        shape: shape.to_vec(),
    })
}
