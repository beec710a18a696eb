//! How fast cuFile itself reads one file into GPU memory: by `cuFileRead` from several threads, or by its batches.
//!
//! `cargo run --release --example cufile_ways FILE threads|batch N [IO_BYTES]` prints one JSON line. The `gds` backend is
//! built on what this shows; see `benches/RECORD.md`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gpufeed::cufile::{Batch, Driver, FileHandle, RegisteredBuffer};
use gpufeed::{Device, DeviceBuffer};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, way, number, rest @ ..] = &arguments[..] else {
        bail!("usage: cufile_ways FILE threads|batch N [IO_BYTES]");
    };
    let number: usize = number.parse().context("N is not a number")?;
    let io: usize =
        rest.first().map_or(Ok(1 << 20), |text| text.parse()).context("IO_BYTES is not a number")?;
    let size = std::fs::metadata(path)?.len();

    let start = Instant::now();
    let driver = Driver::open(Device::Cuda(0))?;
    let file = FileHandle::open(&driver, path)?;
    let buffer = DeviceBuffer::new(Device::Cuda(0), number * io)?;
    let registered = RegisteredBuffer::new(&driver, &buffer)?;
    let opened = start.elapsed();
    let (start, cpu) = (Instant::now(), cpu_seconds());
    match way.as_str() {
        "threads" => threads(&file, &registered, size, io, number)?,
        "batch" => batches(&driver, &file, &registered, size, io, number)?,
        other => bail!("unknown way {other:?}; known are threads, batch"),
    }
    println!(
        "{{\"way\": \"{way}\", \"n\": {number}, \"io_bytes\": {io}, \"bytes\": {size}, \"seconds\": {:.4}, \"cpu_s\": {:.3}, \"open_seconds\": {:.3}}}",
        start.elapsed().as_secs_f64(),
        cpu_seconds() - cpu,
        opened.as_secs_f64()
    );
    Ok(())
}

/// User and system seconds of this process so far.
fn cpu_seconds() -> f64 {
    // SAFETY: all zeros is a valid `rusage`, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn threads(
    file: &FileHandle,
    buffer: &RegisteredBuffer<'_>,
    size: u64,
    io: usize,
    n: usize,
) -> anyhow::Result<()> {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let work = |thread: usize| -> gpufeed::Result<()> {
            loop {
                let from = next.fetch_add(io as u64, Ordering::Relaxed);
                if from >= size {
                    return Ok(());
                }
                let len = io.min((size - from) as usize);
                file.read_exact_at(from, len, buffer, thread * io)?;
            }
        };
        let threads: Vec<_> = (0..n).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a reading thread does not panic"))
    })?;
    Ok(())
}

fn batches(
    driver: &Driver,
    file: &FileHandle,
    buffer: &RegisteredBuffer<'_>,
    size: u64,
    io: usize,
    n: usize,
) -> anyhow::Result<()> {
    let mut from = 0;
    while from < size {
        let mut batch = Batch::new(driver, n)?;
        for entry in 0..n {
            if from < size {
                let len = io.min((size - from) as usize);
                batch.read(file, from, len, buffer, entry * io)?;
                from += len as u64;
            }
        }
        batch.submit()?;
        for outcome in batch.wait(Duration::from_secs(60))? {
            outcome.result?;
        }
    }
    Ok(())
}
