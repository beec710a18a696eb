//! What the loader itself costs where the bytes cost next to nothing: `cargo bench --bench loader`.
//!
//! The data lies in the page cache or in memory and is small, so what is measured is the work for each sample (order, plan,
//! copies of a few bytes) and for each batch (a slot that is filled, lent and given back). Planner and ring are private
//! and stay so: through the public interface a regression shows where a user would feel it, and the interface needs no
//! second, secret one.

use std::fs;
use std::path::Path;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gpufeed::{Backend, Dataset, Dtype, Loader, Shuffle};

/// In memory where there is such a folder, so that a disk has no part in it.
fn folder() -> std::io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
}

fn dataset(folder: &Path, sample_bytes: u64, samples: u64) -> gpufeed::Result<Dataset> {
    let path = folder.join(format!("{sample_bytes}.bin"));
    fs::write(&path, vec![7; (sample_bytes * samples) as usize]).expect("there is room for a few mebibytes");
    Dataset::builder().records("data", path, Dtype::U8, &[sample_bytes]).build()
}

/// One epoch; the batches are given back at once.
fn epoch(loader: &mut Loader, number: u64) -> u64 {
    let epoch = loader.epoch(number).expect("the loader has no other epoch");
    epoch.map(|batch| batch.expect("the data is right here").samples().len() as u64).sum()
}

/// Samples of 64 bytes in large batches: planning is nearly all of it.
fn planning(c: &mut Criterion) {
    let folder = folder().expect("a folder in memory");
    let samples = 1 << 16;
    let dataset = dataset(folder.path(), 64, samples).expect("a dataset of one file");
    let mut group = c.benchmark_group("plan");
    group.sample_size(20).throughput(Throughput::Elements(samples));
    let shuffles = [
        ("none", Shuffle::None),
        ("full", Shuffle::Full),
        ("blocks", Shuffle::Blocks { block: 64, window: 16_384 }),
    ];
    for (name, shuffle) in shuffles {
        let loader = Loader::builder(dataset.clone())
            .backend(Backend::PageCache)
            .shuffle(shuffle)
            .seed(7)
            .batch_size(4096)
            .build();
        let mut loader = loader.expect("the page cache is always there");
        let mut number = 0;
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                number += 1;
                epoch(&mut loader, number)
            });
        });
    }
    group.finish();
}

/// Batches of one small sample: handing slots over is nearly all of it.
fn hand_over(c: &mut Criterion) {
    let folder = folder().expect("a folder in memory");
    let samples = 4096;
    let dataset = dataset(folder.path(), 512, samples).expect("a dataset of one file");
    let mut group = c.benchmark_group("hand-over");
    group.sample_size(20).throughput(Throughput::Elements(samples));
    for prefetch in [1, 8] {
        let loader = Loader::builder(dataset.clone())
            .backend(Backend::PageCache)
            .batch_size(1)
            .prefetch(prefetch)
            .build();
        let mut loader = loader.expect("the page cache is always there");
        let mut number = 0;
        group.bench_function(BenchmarkId::new("prefetch", prefetch), |bencher| {
            bencher.iter(|| {
                number += 1;
                epoch(&mut loader, number)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, planning, hand_over);
criterion_main!(benches);
