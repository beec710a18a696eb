//! From a path alone to a dataset: `dataset.json`, or a look at the files.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::builder::{Layout, column};
use super::manifest::{self, Manifest, ManifestFormat};
use super::{Dataset, Dtype, Format, npy};
use crate::storage::{Opener, Visits, expand, matching, twice_if_stale, within};
use crate::{Error, ErrorKind, Result};

/// How to open a path as a dataset, where its files alone do not tell.
///
/// ```no_run
/// // A folder of raw records of 224 x 224 x 3 bytes.
/// let dataset = gpufeed::OpenOptions::new().record_bytes(150_528).open("data/train")?;
/// # Ok::<(), gpufeed::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    format: Option<Format>,
    record_bytes: Option<u64>,
    root: Option<PathBuf>,
    timeout: Option<Duration>,
}

impl OpenOptions {
    /// Nothing is known but the path.
    pub fn new() -> Self {
        OpenOptions::default()
    }

    /// The files are of this format.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = Some(format);
        self
    }

    /// The files are raw records of this many bytes each, delivered as `u8`.
    #[must_use]
    pub fn record_bytes(mut self, bytes: u64) -> Self {
        self.record_bytes = Some(bytes);
        self
    }

    /// Files are opened only below this folder, now and whenever the dataset is read: for paths, links and
    /// `dataset.json`s that come from somebody who may not read everything that this process may.
    ///
    /// A path that is not below the folder, or has a `..` there, is an error of the kind
    /// [`OutsideRoot`](ErrorKind::OutsideRoot). So is a symbolic link that is absolute, leads out of the folder, or is
    /// one of those that /proc has, even one that takes a shard's place after the dataset was opened; other links are
    /// followed. The folder itself may be reached through links. It is opened once, so it does not matter what
    /// becomes of its name. Hard links and mounts below it are its own.
    ///
    /// The backend `gds` is not used: cuFile opens each file once more by its name.
    ///
    /// Needs `openat2` (Linux 5.6, and a sandbox that allows it); where it is missing, opening is an error of the
    /// kind [`Unavailable`](ErrorKind::Unavailable). The fingerprint does not depend on the root.
    #[must_use]
    pub fn root(mut self, folder: impl Into<PathBuf>) -> Self {
        self.root = Some(folder.into());
        self
    }

    /// How long a look at one folder or file may take (its name, its status, its first bytes) before opening the dataset ends with
    /// an error of the kind [`TimedOut`](ErrorKind::TimedOut) that names it. Default, and zero: as long as the kernel waits, which
    /// for a file server that is down may be for ever.
    ///
    /// The files are then opened by a thread of its own, which is left behind with what it has if it hangs.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Opens a folder, a file, or a pattern of the shell. A folder with a `dataset.json` is what that says.
    ///
    /// # Errors
    /// As [`Dataset::open`]; also when the options contradict each other or the folder's `dataset.json`.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Dataset> {
        let (options, path) = (self.clone(), path.as_ref().to_path_buf());
        within(self.timeout, "the dataset was opened", move |visits| options.open_now(&path, visits))
    }

    fn open_now(&self, path: &Path, visits: Visits) -> Result<Dataset> {
        let opener = Opener::below(self.root.as_deref(), visits)?;
        let manifest_path = path.join(manifest::FILE_NAME);
        let has_manifest =
            opener.metadata(path).is_ok_and(|it| it.is_dir()) && opener.is_there(&manifest_path)?;
        match (self.format, self.record_bytes) {
            (_, Some(0)) => return Err(Error::argument("the record size is 0 bytes; it must be at least 1")),
            (Some(Format::Records), None) if !has_manifest => {
                return Err(Error::argument("raw records need their size in bytes (--record-bytes)"));
            }
            (Some(format @ Format::Npy), Some(_)) => {
                return Err(Error::argument(format!(
                    "a record size contradicts the format {}",
                    format.name()
                )));
            }
            _ => {}
        }
        if has_manifest {
            let dataset = from_manifest(opener, path, &manifest_path)?;
            return self.agrees_with(&dataset, &manifest_path).map(|()| dataset);
        }
        let paths = expand(&opener, path, manifest::FILE_NAME)?;
        let format = match (self.format, self.record_bytes) {
            (_, Some(_)) => Format::Records,
            (Some(format), None) => format,
            (None, None) => detect(&opener, &paths)?,
        };
        let layout = match format {
            Format::Records => {
                Layout::Records { dtype: Dtype::U8, shape: vec![self.record_bytes.unwrap_or_default()] }
            }
            Format::Npy => Layout::Npy { dtype: None, shape: None },
        };
        Dataset::assemble(vec![column(&opener, "data".into(), paths, layout)?], opener)
    }
}

impl OpenOptions {
    /// A folder's own word counts; options may repeat it, and must not contradict it.
    fn agrees_with(&self, dataset: &Dataset, manifest: &Path) -> Result<()> {
        for column in dataset.columns() {
            let found = (column.format(), column.sample_bytes());
            let wanted = (self.format.unwrap_or(found.0), self.record_bytes.unwrap_or(found.1));
            if found != wanted {
                return Err(Error::argument(format!(
                    "column {:?} is {} with samples of {} bytes; {} with {} bytes was asked for",
                    column.name(),
                    found.0.name(),
                    found.1,
                    wanted.0.name(),
                    wanted.1
                ))
                .at(manifest));
            }
        }
        Ok(())
    }
}

fn from_manifest(opener: Opener, folder: &Path, path: &Path) -> Result<Dataset> {
    const LARGEST: u64 = 16 << 20;
    let text = twice_if_stale(|| {
        let _visit = opener.visit(path);
        let (file, metadata) = opener.open_regular(path, 0)?;
        if metadata.len() > LARGEST {
            let what = format!("it has {} bytes; a dataset.json is small", metadata.len());
            return Err(Error::data(path, what));
        }
        let mut text = vec![0; metadata.len() as usize];
        file.read_exact_at(&mut text, 0).map_err(|e| Error::io(path, "cannot read it", e))?;
        Ok(text)
    })?;
    let Manifest { columns } = manifest::parse(path, &text)?;
    let parts = columns.into_iter().map(|it| {
        let files = matching(&opener, folder, &it.files)?;
        if files.is_empty() {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("column {:?}: no file in the folder matches {:?}", it.name, it.files),
            )
            .at(path));
        }
        let layout = match it.format {
            ManifestFormat::Records => {
                let (dtype, shape) = it.record_shape();
                Layout::Records { dtype, shape }
            }
            ManifestFormat::Npy => Layout::Npy { dtype: it.dtype, shape: it.shape },
        };
        column(&opener, it.name, files, layout)
    });
    let parts = parts.collect::<Result<_>>()?;
    Dataset::assemble(parts, opener)
}

/// The one format that all files have by their first bytes. Names only help to say what else a file may be.
fn detect(opener: &Opener, paths: &[PathBuf]) -> Result<Format> {
    let mut found: Option<(&Path, Format)> = None;
    for path in paths {
        let format = twice_if_stale(|| detect_one(opener, path))?;
        match found {
            Some((first, known)) if known != format => {
                return Err(Error::data(
                    path,
                    format!("it is {}, but {} is {}", format.name(), first.display(), known.name()),
                ));
            }
            _ => found = Some((path, format)),
        }
    }
    found.map(|(_, format)| format).ok_or_else(|| Error::argument("there are no files"))
}

fn detect_one(opener: &Opener, path: &Path) -> Result<Format> {
    let _visit = opener.visit(path);
    let (file, metadata) = opener.open_regular(path, 0)?;
    let len = metadata.len();
    if len == 0 {
        return Err(Error::data(path, "the shard is empty"));
    }
    let mut head = [0u8; 512];
    let head = &mut head[..len.min(512) as usize];
    file.read_exact_at(head, 0).map_err(|e| Error::io(path, "cannot read its first bytes", e))?;
    if head.starts_with(npy::MAGIC) {
        return Ok(Format::Npy);
    }
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    if extension == "npy" {
        // It says why it is not.
        npy::read_header(path, &file, len)?;
    }
    let known = match () {
        () if head.starts_with(b"PK\x03\x04") => Some("a zip archive (as .npz is)"),
        () if head.starts_with(b"\x1f\x8b") => Some("gzip-compressed"),
        () if head.starts_with(b"version https://git-lfs") => {
            Some("a git-LFS pointer, not the data that it points to (git lfs pull)")
        }
        () if head.len() >= 262 && &head[257..262] == b"ustar" => Some("a tar archive"),
        () if extension == "safetensors" => Some("safetensors"),
        () if extension == "tfrecord" => Some("TFRecord"),
        () => None,
    };
    Err(match known {
        Some(what) => {
            Error::new(ErrorKind::Unsupported, format!("it is {what}, which is not read yet")).at(path)
        }
        None => Error::data(
            path,
            "its content tells no format; if it holds raw records, give their size (--record-bytes) or a dataset.json",
        ),
    })
}
