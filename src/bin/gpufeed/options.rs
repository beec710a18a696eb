//! Flags that several verbs share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use gpufeed::{Dataset, Format, OpenOptions};

/// Which files, and what they are.
#[derive(Debug, Args)]
pub(crate) struct DatasetArgs {
    /// A folder of shards, a file, or a quoted pattern; shards are taken in byte order of their names.
    #[arg(value_name = "DATASET")]
    pub(crate) path: PathBuf,
    /// The format of the shards. `auto` asks dataset.json, else looks at their content.
    #[arg(long, value_enum, default_value_t = FormatArg::Auto)]
    format: FormatArg,
    /// The shards hold raw records of this many bytes each.
    #[arg(long, value_name = "N", value_parser = parse_size)]
    record_bytes: Option<u64>,
    /// Open files only below this folder: a path or a symbolic link that leads out of it is an error. Needs Linux 5.6.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormatArg {
    Auto,
    Records,
    Npy,
}

impl DatasetArgs {
    pub(crate) fn open(&self, timeout: Duration) -> gpufeed::Result<Dataset> {
        self.open_at(&self.path, timeout)
    }

    /// Another dataset of the same format.
    pub(crate) fn open_at(&self, path: &Path, timeout: Duration) -> gpufeed::Result<Dataset> {
        let mut options = OpenOptions::new().timeout(timeout);
        options = match self.format {
            FormatArg::Auto => options,
            FormatArg::Records => options.format(Format::Records),
            FormatArg::Npy => options.format(Format::Npy),
        };
        if let Some(bytes) = self.record_bytes {
            options = options.record_bytes(bytes);
        }
        if let Some(folder) = &self.root {
            options = options.root(folder);
        }
        options.open(path)
    }
}

/// Arguments that make no sense together or for what they are about; the exit status is that of wrong arguments.
#[derive(Debug)]
pub(crate) struct WrongArguments(pub(crate) String);

impl std::fmt::Display for WrongArguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongArguments {}

/// `4096`, `64KiB`, `1MiB`, `2GiB`, `1TiB`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u32); 5] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("B", 0)];
    let (digits, shift) = UNITS
        .iter()
        .find_map(|(unit, shift)| text.strip_suffix(unit).map(|digits| (digits, *shift)))
        .unwrap_or((text, 0));
    let number: u64 = digits.trim().parse().map_err(|_| {
        format!("{text:?} is not a size; write bytes, or a whole number with KiB, MiB, GiB or TiB")
    })?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} does not fit into 64 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_powers_of_two_only() {
        for (text, bytes) in
            [("4096", 4096), ("64KiB", 65536), ("1MiB", 1 << 20), ("2GiB", 2 << 30), ("7B", 7)]
        {
            assert_eq!(parse_size(text), Ok(bytes));
        }
        for text in ["", "MiB", "1MB", "1 k", "-1", "1.5GiB", "99999999999TiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
