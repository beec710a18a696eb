//! `gpufeed inspect`: what a dataset is.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::options::DatasetArgs;
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    dataset: DatasetArgs,
    /// End with an error if storage does not answer for so long while the dataset is opened; 0 waits for ever.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    read_timeout: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

impl Inspect {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let dataset = self.dataset.open(Duration::from_secs(self.read_timeout))?;
        let alignment = dataset.alignment()?;
        let cached = dataset.residency().ok();
        let single = match dataset.columns() {
            [only] => Some(only),
            _ => None,
        };
        let mut formats: Vec<_> = dataset.columns().iter().map(|column| column.format().name()).collect();
        formats.dedup();
        let formats = formats.join("+");
        if !self.json {
            println!("{}: {formats}", self.dataset.path.display());
            println!(
                "{} samples in {} shards, {} of payload",
                dataset.len(),
                dataset.files().len(),
                output::size(dataset.payload_bytes())
            );
            for column in dataset.columns() {
                println!(
                    "  column {:8} {} {:?}, {} bytes a sample, {} {} shards",
                    column.name(),
                    column.dtype(),
                    column.shape(),
                    column.sample_bytes(),
                    column.shards(),
                    column.format().name()
                );
            }
            println!(
                "direct I/O in multiples of {} bytes: {} of {} shards and {} of {} samples start on a boundary",
                alignment.boundary,
                alignment.aligned_shards,
                alignment.shards,
                alignment.aligned_samples,
                alignment.samples
            );
            match cached {
                Some(cached) => println!("in the page cache: {:.1} %", cached.fraction() * 100.0),
                None => println!("in the page cache: not known (the kernel tells only a file's owner)"),
            }
            println!("fingerprint {}", dataset.fingerprint());
            return Ok(());
        }
        let fields: Vec<Value> = dataset
            .columns()
            .iter()
            .map(|column| {
                json!({
                    "name": column.name(),
                    "format": column.format().name(),
                    "dtype": column.dtype().name(),
                    "shape": column.shape(),
                    "sample_bytes": column.sample_bytes(),
                    "shards": column.shards(),
                })
            })
            .collect();
        output::json(&json!({
            "format": formats,
            "shards": dataset.files().len(),
            "samples": dataset.len(),
            "payload_bytes": dataset.payload_bytes(),
            "dtype": single.map(|column| column.dtype().name()),
            "shape": single.map(|column| column.shape()),
            "fields": fields,
            "alignment": {
                "boundary": alignment.boundary,
                "shards": alignment.shards,
                "aligned_shards": alignment.aligned_shards,
                "samples": alignment.samples,
                "aligned_samples": alignment.aligned_samples,
            },
            "cached_fraction": cached.map(|cached| cached.fraction()),
            "fingerprint": dataset.fingerprint(),
        }))
    }
}
