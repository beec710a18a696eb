//! What it costs to open a dataset of many shards, in files per second: `cargo bench --bench index`.
//!
//! The files are in the page cache or in memory: it is the work of the index, not of a disk.

use std::fs;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gpufeed::Dataset;

const SHARDS: u64 = 1000;

/// A header of version 1.0 for two rows of 8 bytes, and the rows.
fn npy() -> Vec<u8> {
    let header = format!("{:<117}\n", "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 8), }");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes().chain(0..16));
    bytes
}

fn opening(c: &mut Criterion) {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let folder = folder.expect("a folder in memory");
    let (plain, manifest) = (folder.path().join("plain"), folder.path().join("manifest"));
    for dir in [&plain, &manifest] {
        fs::create_dir(dir).expect("the folder is new");
        for shard in 0..SHARDS {
            fs::write(dir.join(format!("shard-{shard:05}.npy")), npy())
                .expect("there is room for small files");
        }
    }
    let columns = r#"{"version": 1, "columns": [{"name": "data", "format": "npy", "files": "shard-*.npy"}]}"#;
    fs::write(manifest.join("dataset.json"), columns).expect("there is room for a small file");
    let mut group = c.benchmark_group("open");
    group.sample_size(20).throughput(Throughput::Elements(SHARDS));
    for (name, dir) in [("npy", &plain), ("dataset.json", &manifest)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let dataset = Dataset::open(dir).expect("every shard is right");
                assert_eq!(dataset.len(), 2 * SHARDS);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, opening);
criterion_main!(benches);
