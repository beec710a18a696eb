//! `gpufeed generate`: a synthetic dataset for trying things out.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{Args, ValueEnum};
use gpufeed::Error;
use serde_json::json;

use crate::options::{WrongArguments, parse_size};
use crate::{interrupt, output};

#[derive(Debug, Args)]
pub(crate) struct Generate {
    /// The folder to write; it must not exist yet, or be empty.
    dst: PathBuf,
    /// Samples to write.
    #[arg(long, value_name = "N", required_unless_present = "size", conflicts_with = "size")]
    samples: Option<u64>,
    /// Write as many samples as fit into this.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Bytes of a sample.
    #[arg(long, value_name = "N", default_value = "150528", value_parser = parse_size)]
    record_bytes: u64,
    /// The most bytes of payload in a shard; a shard holds whole samples.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    shard_bytes: u64,
    /// The format of the shards.
    #[arg(long, value_enum, default_value_t = FormatArg::Records)]
    format: FormatArg,
    /// The same seed gives the same bytes.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormatArg {
    Records,
    Npy,
}

impl Generate {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let record = self.record_bytes;
        if record == 0 {
            return Err(WrongArguments("the record size is 0 bytes; it must be at least 1".into()).into());
        }
        let samples = self.samples.unwrap_or_else(|| self.size.unwrap_or(0) / record);
        if samples == 0 {
            return Err(
                WrongArguments(format!("there is nothing to write: 0 samples of {record} bytes")).into()
            );
        }
        let per_shard = self.shard_bytes / record;
        if per_shard == 0 {
            let what =
                format!("a shard of {} bytes cannot hold one sample of {record} bytes", self.shard_bytes);
            return Err(WrongArguments(what).into());
        }
        if samples.checked_mul(record).is_none() {
            let what = format!("{samples} samples of {record} bytes do not fit into 64 bits");
            return Err(WrongArguments(what).into());
        }
        self.make_folder()?;
        let shards = samples.div_ceil(per_shard);
        for shard in 0..shards {
            let here = per_shard.min(samples - shard * per_shard);
            let (suffix, header) = match self.format {
                FormatArg::Records => ("bin", Vec::new()),
                FormatArg::Npy => ("npy", npy_header(here, record)),
            };
            // As many digits as keep byte order and number order the same.
            let digits = shards.to_string().len().max(5);
            let path = self.dst.join(format!("shard-{shard:0digits$}.{suffix}"));
            let mut random = Random::new(self.seed, shard);
            write(&path, &header, here * record, &mut random)?;
        }
        let column = match self.format {
            FormatArg::Records => json!({
                "name": "data", "format": "records", "files": "shard-*.bin", "dtype": "u8", "shape": [record],
            }),
            FormatArg::Npy => json!({ "name": "data", "format": "npy", "files": "shard-*.npy" }),
        };
        let manifest = serde_json::to_vec_pretty(&json!({ "version": 1, "columns": [column] }))?;
        let path = self.dst.join("dataset.json");
        std::fs::write(&path, manifest).map_err(|e| Error::io(&path, "cannot write it", e))?;
        let bytes = samples * record;
        if self.json {
            output::json(&json!({ "samples": samples, "bytes": bytes, "shards": shards }))
        } else {
            println!("{}: {samples} samples in {shards} shards, {}", self.dst.display(), output::size(bytes));
            Ok(())
        }
    }

    fn make_folder(&self) -> anyhow::Result<()> {
        let dst = &self.dst;
        std::fs::create_dir_all(dst).map_err(|e| Error::io(dst, "cannot make the folder", e))?;
        let mut entries = std::fs::read_dir(dst).map_err(|e| Error::io(dst, "cannot list it", e))?;
        if entries.next().is_some() {
            bail!("{}: the folder is not empty; nothing was written", dst.display());
        }
        Ok(())
    }
}

/// Writes to a temporary name first, so that what is there under a shard's name is whole.
fn write(path: &Path, header: &[u8], bytes: u64, random: &mut Random) -> anyhow::Result<()> {
    let temporary = path.with_extension("tmp");
    let failed = |error| Error::io(path, "cannot write it", error);
    let mut fill = || -> anyhow::Result<()> {
        let file = File::create(&temporary).map_err(failed)?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(header).map_err(failed)?;
        let mut block = [0u8; 64 << 10];
        let mut left = bytes;
        while left > 0 {
            if interrupt::interrupted() {
                bail!("interrupted");
            }
            let now = left.min(block.len() as u64) as usize;
            random.fill(&mut block[..now]);
            file.write_all(&block[..now]).map_err(failed)?;
            left -= now as u64;
        }
        file.flush().map_err(failed)?;
        Ok(std::fs::rename(&temporary, path).map_err(failed)?)
    };
    fill().inspect_err(|_| {
        let _ = std::fs::remove_file(&temporary);
    })
}

fn npy_header(samples: u64, record: u64) -> Vec<u8> {
    let dict = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({samples}, {record}), }}");
    let padded = (10 + dict.len() + 1).next_multiple_of(64);
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend(((padded - 10) as u16).to_le_bytes());
    header.extend(format!("{dict:width$}\n", width = padded - 11).into_bytes());
    header
}

/// SplitMix64, one stream per (seed, shard).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64, shard: u64) -> Self {
        let mut start = Random(seed);
        Random(start.next() ^ shard.wrapping_mul(0xd134_2543_de82_ef95))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn fill(&mut self, block: &mut [u8]) {
        for part in block.chunks_mut(8) {
            let bytes = self.next().to_le_bytes();
            part.copy_from_slice(&bytes[..part.len()]);
        }
    }
}
