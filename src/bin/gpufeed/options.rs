//! Flags that several verbs share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use gpufeed::{Backend, Dataset, Device, Format, LastBatch, Loader, OpenOptions, Shuffle};

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
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormatArg {
    Auto,
    Records,
    Npy,
}

impl DatasetArgs {
    pub(crate) fn open(&self) -> gpufeed::Result<Dataset> {
        let mut options = OpenOptions::new();
        options = match self.format {
            FormatArg::Auto => options,
            FormatArg::Records => options.format(Format::Records),
            FormatArg::Npy => options.format(Format::Npy),
        };
        if let Some(bytes) = self.record_bytes {
            options = options.record_bytes(bytes);
        }
        options.open(&self.path)
    }
}

/// How to load.
#[derive(Debug, Args)]
pub(crate) struct LoaderArgs {
    /// Where batches are delivered: auto, host or cuda:N; `auto` takes the first GPU when there is one. Several GPUs
    /// (cuda:0,cuda:1) each get every batch, which is read once.
    #[arg(long, default_value = "auto", value_delimiter = ',')]
    device: Vec<Device>,
    /// The way to read: auto, gds, uring, pread or page-cache.
    #[arg(long, default_value_t = Backend::Auto)]
    backend: Backend,
    /// Fail where reads would not go straight from storage into GPU memory.
    #[arg(long)]
    require_gds: bool,
    /// Samples in a batch.
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: u64,
    /// Epochs to run.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) epochs: u64,
    /// How the samples of an epoch are mixed: none or full.
    #[arg(long, default_value_t = Shuffle::None)]
    shuffle: Shuffle,
    /// The seed of the shuffle.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// What becomes of samples that do not fill a batch: drop, pad or short.
    #[arg(long, default_value_t = LastBatch::Drop)]
    last_batch: LastBatch,
    /// Batches read ahead. [default: what makes 32 MiB, from 2 to 16]
    #[arg(long, value_name = "N")]
    prefetch: Option<u32>,
    /// Reads in flight at once; for pread and page-cache that many threads.
    #[arg(long, value_name = "N", default_value_t = 16)]
    queue_depth: u32,
    /// The most bytes that one read asks for.
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = parse_size)]
    io_bytes: u64,
    /// If the ring does not fit into the memory of the GPU, take half the prefetch depth, down to 1.
    #[arg(long)]
    shrink_ring: bool,
    /// Refuse to start if the ring and the staging memory would take more than this.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory_limit: Option<u64>,
}

impl LoaderArgs {
    pub(crate) fn build(&self, dataset: Dataset) -> gpufeed::Result<Loader> {
        let mut builder = Loader::builder(dataset)
            .devices(&self.device)
            .shrink_ring(self.shrink_ring)
            .require_gds(self.require_gds)
            .backend(self.backend)
            .batch_size(self.batch_size)
            .shuffle(self.shuffle)
            .seed(self.seed)
            .last_batch(self.last_batch)
            .queue_depth(self.queue_depth)
            .io_bytes(self.io_bytes);
        if let Some(batches) = self.prefetch {
            builder = builder.prefetch(batches);
        }
        if let Some(bytes) = self.memory_limit {
            builder = builder.memory_limit(bytes);
        }
        builder.build()
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
