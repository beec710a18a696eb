//! `gpufeed selftest`: every device and backend that this machine has delivers the same, right bytes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use gpufeed::{
    Backend, Batch, Dataset, Device, Dtype, Error, ErrorKind, LastBatch, Loader, LoaderBuilder, Shuffle,
};
use serde_json::json;

use crate::{interrupt, output};

#[derive(Debug, Args)]
pub(crate) struct Selftest {
    /// Where to write the test files; on the storage that is to be tested. They are removed afterwards.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    dir: PathBuf,
    /// Test these devices only. [default: the host and every GPU]
    #[arg(long, value_delimiter = ',')]
    device: Vec<Device>,
    /// Test these backends only. [default: all]
    #[arg(long, value_delimiter = ',')]
    backend: Vec<Backend>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Record sizes around the boundaries of direct I/O, and one larger than an I/O.
const RECORDS: [u64; 9] = [1, 7, 511, 512, 513, 4096, 4097, 150_528, (1 << 20) + 13];
/// Payload of a test file, about; the last record of each file ends somewhere within a block.
const FILE_BYTES: u64 = 3 << 20;

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Two files of records, as a loader reads them and as they are.
struct Data {
    record: u64,
    files: Vec<PathBuf>,
    bytes: Vec<u8>,
}

type Case = fn(&Setting, &[Data]) -> anyhow::Result<()>;

const CASES: [(&str, Case); 6] = [
    ("every record size, in order and shuffled, to the end of the file", right_bytes),
    ("several columns side by side", columns),
    ("epochs that end early", early_ends),
    ("a slow consumer", slow_consumer),
    ("the smallest ring", small_ring),
    ("two loaders at once", two_at_once),
];

/// A device and a backend under test.
#[derive(Debug, Clone, Copy)]
struct Setting {
    device: Device,
    backend: Backend,
}

impl Selftest {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let folder = Folder(self.dir.join(format!("gpufeed-selftest-{}", std::process::id())));
        std::fs::create_dir_all(&folder.0).map_err(|e| Error::io(&folder.0, "cannot make it", e))?;
        interrupt::removes(&folder.0);
        let data = RECORDS
            .iter()
            .map(|&record| Data::write(&folder.0, record))
            .collect::<anyhow::Result<Vec<_>>>()?;

        let (mut passed, mut failed, mut skipped) = (0u64, Vec::new(), Vec::new());
        for (device, known) in self.devices(&data[0]) {
            if let Err(why) = known {
                skipped.push(json!({ "device": device.to_string(), "reason": why }));
                self.say("skip", &format!("{device}: {why}"));
                continue;
            }
            for backend in self.backends() {
                if let Err(reason) = works(Setting { device, backend }, &data[0]) {
                    let (device, backend) = (device.to_string(), backend.name());
                    self.say("skip", &format!("{device} {backend}: {reason}"));
                    skipped
                        .push(json!({ "device": device, "backend": backend, "reason": reason.to_string() }));
                    continue;
                }
                for (name, case) in CASES {
                    let outcome = case(&Setting { device, backend }, &data);
                    go_on()?;
                    match outcome {
                        Ok(()) => {
                            passed += 1;
                            self.say("ok", &format!("{device} {backend}: {name}"));
                        }
                        Err(error) => {
                            let error = format!("{error:#}");
                            self.say("FAIL", &format!("{device} {backend}: {name}: {error}"));
                            failed.push(json!({
                                "device": device.to_string(), "backend": backend.name(), "case": name, "error": error,
                            }));
                        }
                    }
                }
            }
        }
        let cases = passed + failed.len() as u64;
        if self.json {
            output::json(&json!({
                "cases": cases,
                "passed": passed,
                "failed": failed.len(),
                "failures": failed,
                "skipped": skipped,
            }))?;
        } else {
            println!("{passed} passed, {} failed, {} skipped", failed.len(), skipped.len());
        }
        ensure!(failed.is_empty(), "{} of {cases} cases failed", failed.len());
        ensure!(cases > 0, "nothing was tested");
        Ok(())
    }

    fn say(&self, status: &str, text: &str) {
        if self.json {
            eprintln!("{status:4} {text}");
        } else {
            println!("{status:4} {text}");
        }
    }

    /// The devices to test, each with why it cannot be.
    fn devices(&self, data: &Data) -> Vec<(Device, Result<(), String>)> {
        let works = |device| works(Setting { device, backend: Backend::PageCache }, data);
        if !self.device.is_empty() {
            return self
                .device
                .iter()
                .map(|&device| (device, works(device).map_err(|e| e.to_string())))
                .collect();
        }
        let mut all = vec![(Device::Host, Ok(()))];
        for index in 0.. {
            match works(Device::Cuda(index)) {
                Ok(()) => all.push((Device::Cuda(index), Ok(()))),
                Err(error) if error.kind() == ErrorKind::InvalidArgument => break,
                Err(error) => {
                    all.push((Device::Cuda(index), Err(error.to_string())));
                    if error.kind() == ErrorKind::Unavailable {
                        break;
                    }
                }
            }
        }
        all
    }

    fn backends(&self) -> Vec<Backend> {
        if self.backend.is_empty() {
            vec![Backend::Gds, Backend::Uring, Backend::Pread, Backend::PageCache, Backend::Auto]
        } else {
            self.backend.clone()
        }
    }
}

/// An error after a signal, so that the folder goes before the process does.
fn go_on() -> anyhow::Result<()> {
    ensure!(!interrupt::interrupted(), "interrupted");
    Ok(())
}

/// Whether a loader can be built at all.
fn works(setting: Setting, data: &Data) -> gpufeed::Result<()> {
    data.dataset().and_then(|dataset| setting.loader(dataset).build()).map(|_| ())
}

impl Data {
    /// Writes two files of unequal size whose bytes tell their place.
    fn write(folder: &Path, record: u64) -> anyhow::Result<Data> {
        let count = (FILE_BYTES / record).clamp(2, 5000);
        let (mut files, mut bytes) = (Vec::new(), Vec::new());
        for (i, samples) in [count, count / 2 + 1].into_iter().enumerate() {
            go_on()?;
            let first = bytes.len() as u64;
            let part: Vec<u8> = (first..first + samples * record).map(byte_at).collect();
            let path = folder.join(format!("records-{record}-{i}.bin"));
            std::fs::write(&path, &part).map_err(|e| Error::io(&path, "cannot write it", e))?;
            // Direct reads see only what has reached the disk's side of the page cache; eviction makes them cold.
            std::fs::File::open(&path)?.sync_all()?;
            gpufeed::evict(&path)?;
            files.push(path);
            bytes.extend(part);
        }
        Ok(Data { record, files, bytes })
    }

    fn dataset(&self) -> gpufeed::Result<Dataset> {
        Dataset::builder().records("data", self.files.clone(), Dtype::U8, &[self.record]).build()
    }

    fn sample(&self, number: u64) -> &[u8] {
        let start = (number * self.record) as usize;
        &self.bytes[start..start + self.record as usize]
    }

    /// Every sample of a batch is what the file has.
    fn check(&self, batch: &Batch, buffer: &mut Vec<u8>) -> anyhow::Result<()> {
        go_on()?;
        batch.column("data")?.copy_to_host(buffer)?;
        for (&number, found) in batch.samples().iter().zip(buffer.chunks_exact(self.record as usize)) {
            let right = self.sample(number);
            if let Some(at) = (0..right.len()).find(|&at| found[at] != right[at]) {
                bail!(
                    "sample {number} of {} bytes is wrong from byte {at} on: {:#04x} instead of {:#04x}",
                    self.record,
                    found[at],
                    right[at]
                );
            }
        }
        Ok(())
    }
}

fn byte_at(place: u64) -> u8 {
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Setting {
    fn loader(&self, dataset: Dataset) -> LoaderBuilder {
        Loader::builder(dataset).device(self.device).backend(self.backend).last_batch(LastBatch::Short)
    }

    /// Runs an epoch to its end; every sample must come once and be right.
    fn whole_epoch(&self, loader: &mut Loader, data: &Data, epoch: u64) -> anyhow::Result<()> {
        let mut buffer = Vec::new();
        let mut seen = vec![false; loader.dataset().len() as usize];
        for batch in loader.epoch(epoch)? {
            let batch = batch?;
            data.check(&batch, &mut buffer)?;
            for &number in batch.samples() {
                ensure!(!std::mem::replace(&mut seen[number as usize], true), "sample {number} came twice");
            }
        }
        ensure!(seen.iter().all(|&seen| seen), "not every sample came");
        Ok(())
    }
}

fn batch_size(data: &Data) -> u64 {
    ((1 << 20) / data.record).clamp(2, 500)
}

fn right_bytes(setting: &Setting, all: &[Data]) -> anyhow::Result<()> {
    for data in all {
        for (shuffle, io_bytes) in
            [(Shuffle::None, 1 << 20), (Shuffle::Full, 1 << 20), (Shuffle::Full, 64 << 10)]
        {
            let builder = setting.loader(data.dataset()?).batch_size(batch_size(data));
            let mut loader = builder.shuffle(shuffle).io_bytes(io_bytes).build()?;
            setting
                .whole_epoch(&mut loader, data, 3)
                .with_context(|| format!("records of {} bytes, shuffle {shuffle}", data.record))?;
        }
    }
    Ok(())
}

fn columns(setting: &Setting, all: &[Data]) -> anyhow::Result<()> {
    let data = &all[2];
    let dataset = Dataset::builder()
        .records("data", data.files.clone(), Dtype::U8, &[data.record])
        .records("again", data.files.clone(), Dtype::U8, &[data.record])
        .build()?;
    let mut loader = setting.loader(dataset).batch_size(100).shuffle(Shuffle::Full).build()?;
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for batch in loader.epoch(0)? {
        let batch = batch?;
        data.check(&batch, &mut one)?;
        batch.column("again")?.copy_to_host(&mut other)?;
        ensure!(one == other, "two columns of the same files differ");
    }
    Ok(())
}

fn early_ends(setting: &Setting, all: &[Data]) -> anyhow::Result<()> {
    let data = &all[4];
    let mut loader = setting.loader(data.dataset()?).batch_size(64).shuffle(Shuffle::Full).build()?;
    let mut buffer = Vec::new();
    for epoch in 0..8 {
        // Drops the epoch with reads in flight and batches ready.
        for batch in loader.epoch(epoch)?.take(epoch as usize) {
            data.check(&batch?, &mut buffer)?;
        }
    }
    setting.whole_epoch(&mut loader, data, 8)
}

fn slow_consumer(setting: &Setting, all: &[Data]) -> anyhow::Result<()> {
    let data = &all[5];
    let mut loader = setting.loader(data.dataset()?).batch_size(128).shuffle(Shuffle::Full).build()?;
    let mut buffer = Vec::new();
    let mut held = Vec::new();
    for (i, batch) in loader.epoch(0)?.enumerate() {
        held.push(batch?);
        if i % 2 == 1 {
            std::thread::sleep(Duration::from_millis(10));
            // What was lent a while ago is still what it was.
            for batch in held.drain(..) {
                data.check(&batch, &mut buffer)?;
            }
        }
    }
    Ok(())
}

fn small_ring(setting: &Setting, all: &[Data]) -> anyhow::Result<()> {
    let data = &all[6];
    let builder = setting.loader(data.dataset()?).batch_size(50).shuffle(Shuffle::Full);
    let mut loader = builder.prefetch(1).queue_depth(1).io_bytes(4096).build()?;
    setting.whole_epoch(&mut loader, data, 0)?;
    setting.whole_epoch(&mut loader, data, 1)
}

fn two_at_once(setting: &Setting, all: &[Data]) -> anyhow::Result<()> {
    let (one, other) = (&all[3], &all[7]);
    let mut first = setting.loader(one.dataset()?).batch_size(200).shuffle(Shuffle::Full).build()?;
    let mut second = setting.loader(other.dataset()?).batch_size(4).build()?;
    let (mut these, mut those) = (first.epoch(0)?, second.epoch(0)?);
    let mut buffer = Vec::new();
    loop {
        match (these.next(), those.next()) {
            (None, None) => return Ok(()),
            (a, b) => {
                if let Some(batch) = a {
                    one.check(&batch?, &mut buffer)?;
                }
                if let Some(batch) = b {
                    other.check(&batch?, &mut buffer)?;
                }
            }
        }
    }
}
