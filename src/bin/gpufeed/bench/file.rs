//! A file that a report goes to.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use gpufeed::Error;

use crate::options::WrongArguments;

/// Opened before anything is measured, and left as it is until there is something to write.
#[derive(Debug)]
pub(crate) struct ReportFile {
    path: PathBuf,
    file: File,
}

impl ReportFile {
    /// Opens a file for a report on this dataset. It must not lie in the dataset's folder, where it would be taken for a
    /// shard, let alone be one.
    pub(crate) fn open(path: &Path, dataset: &Path) -> anyhow::Result<ReportFile> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = fs::canonicalize(folder);
        // A pattern lies in the folder before its last part.
        let data = match fs::canonicalize(dataset) {
            Ok(data) => Some(data),
            Err(_) => dataset.parent().and_then(|folder| fs::canonicalize(folder).ok()),
        };
        let same_file = fs::canonicalize(path).ok().is_some_and(|path| Some(path) == data);
        if same_file || (folder.is_ok() && folder.ok() == data) {
            let what = format!("{}: a report cannot lie among the data that is measured", path.display());
            return Err(WrongArguments(what).into());
        }
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|e| Error::io(path, "cannot write the report", e))?;
        Ok(ReportFile { path: path.into(), file })
    }

    /// Writes the report, in place of what was there.
    pub(crate) fn write(mut self, text: &str) -> anyhow::Result<()> {
        let mut write = || {
            // What is no file of its own, such as a terminal, has no length.
            if self.file.metadata()?.is_file() {
                self.file.set_len(0)?;
            }
            self.file.write_all(text.as_bytes())?;
            self.file.flush()
        };
        Ok(write().map_err(|e| Error::io(&self.path, "cannot write the report", e))?)
    }
}
