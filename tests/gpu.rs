//! Tests that need a real GPU. Each asks for one when it runs, and says why it is skipped where there is none.
//!
//! On a machine with a GPU, `cargo test --test gpu -- --nocapture` shows what ran. The emulated driver would answer too,
//! but proves nothing here: it is told apart by its devices' names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpufeed::cudarc::driver::CudaContext;
use gpufeed::cufile::{Driver, FileHandle, RegisteredBuffer};
use gpufeed::{
    Backend, CheckpointFile, Dataset, Device, DeviceBuffer, Dtype, LastBatch, Loader, Shuffle, WriteOptions,
};

/// Asks for a GPU, by our own probe first: cudarc panics where there is no driver.
fn gpu() -> Option<Arc<CudaContext>> {
    if let Err(error) = DeviceBuffer::new(Device::Cuda(0), 4096) {
        println!("skipped: {error}");
        return None;
    }
    let context = CudaContext::new(0).unwrap();
    let name = context.name().unwrap();
    if name.contains("Emulated") {
        println!("skipped: {name} is no GPU");
        return None;
    }
    Some(context)
}

/// Opens cuFile, or says why it does not work here.
fn cufile() -> Option<Driver> {
    gpu()?;
    Driver::open(Device::Cuda(0)).inspect_err(|error| println!("skipped: {error}")).ok()
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn file(folder: &Path, bytes: &[u8]) -> PathBuf {
    let path = folder.join("data.bin");
    std::fs::write(&path, bytes).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    gpufeed::evict(&path).unwrap();
    path
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn gpu_batches_are_right_in_the_order_of_the_callers_stream() {
    let Some(context) = gpu() else { return };
    const RECORD: usize = 150_528;
    let (folder, bytes) = (folder(), noise(RECORD * 300));
    let path = file(folder.path(), &bytes);
    let stream = context.new_stream().unwrap();
    for backend in [Backend::Auto, Backend::Gds, Backend::Uring, Backend::Pread, Backend::PageCache] {
        let dataset =
            Dataset::builder().records("data", path.clone(), Dtype::U8, &[RECORD as u64]).build().unwrap();
        let builder =
            Loader::builder(dataset).device(Device::Cuda(0)).backend(backend).batch_size(16).prefetch(2);
        let mut loader = match builder.shuffle(Shuffle::Full).last_batch(LastBatch::Short).build() {
            Ok(loader) => loader,
            Err(error) => {
                println!("skipped {backend}: {error}");
                continue;
            }
        };
        for epoch in 0..3 {
            let mut copies = Vec::new();
            for batch in loader.epoch(epoch).unwrap() {
                let batch = batch.unwrap();
                batch.wait_on(&stream).unwrap();
                let view = batch.column("data").unwrap().device_slice::<u8>(&stream).unwrap();
                // Queued, not waited for: the slot must not be filled again before it has run.
                copies.push((stream.clone_dtod(&*view).unwrap(), batch.samples().to_vec()));
            }
            for (copy, samples) in copies {
                let found = stream.clone_dtoh(&copy).unwrap();
                for (row, sample) in samples.into_iter().enumerate() {
                    let right = &bytes[sample as usize * RECORD..][..RECORD];
                    assert!(&found[row * RECORD..][..RECORD] == right, "sample {sample} by {backend}");
                }
            }
        }
        println!("{backend}: {:?}", loader.report().bytes_by_way);
    }
}

#[test]
fn gpu_reads_by_cufile_are_right_at_awkward_places() {
    let Some(driver) = cufile() else { return };
    println!("cuFile {:?}, {:?}", driver.version(), driver.properties());
    let (folder, bytes) = (folder(), noise(3_000_001));
    let handle = FileHandle::open(&driver, file(folder.path(), &bytes)).unwrap();
    let buffer = DeviceBuffer::new(Device::Cuda(0), 1 << 20).unwrap();
    let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
    let mut found = vec![0; 1 << 20];
    for (from, len, at) in
        [(0, 4096, 0), (4097, 100_000, 123), (4096, 1 << 19, 4096), (2_999_000, 1001, 7), (511, 1, 1)]
    {
        handle.read_exact_at(from, len, &registered, at).unwrap();
        buffer.read(at, &mut found[..len]).unwrap();
        assert!(found[..len] == bytes[from as usize..][..len], "{len} bytes at {from}");
    }
}

#[test]
fn gpu_reads_by_cufile_come_in_the_order_of_a_stream() {
    let (Some(driver), Some(context)) = (cufile(), gpu()) else { return };
    let (folder, bytes) = (folder(), noise(1 << 20));
    let handle = FileHandle::open(&driver, file(folder.path(), &bytes)).unwrap();
    let buffer = DeviceBuffer::new(Device::Cuda(0), 1 << 20).unwrap();
    let registered = RegisteredBuffer::new(&driver, &buffer).unwrap();
    let stream = context.new_stream().unwrap();
    match handle.read_on_stream(4096, 1 << 19, &registered, 0, &stream) {
        Ok(read) => assert_eq!(read.wait().unwrap(), 1 << 19),
        Err(error) => return println!("skipped: {error}"),
    }
    let mut found = vec![0; 1 << 19];
    buffer.read_after(&stream, 0, &mut found).unwrap();
    assert!(found == bytes[4096..][..1 << 19]);
}

#[test]
fn gpu_checkpoints_hold_what_the_memory_held() {
    if gpu().is_none() {
        return;
    }
    let (folder, bytes) = (folder(), noise(10_000_019));
    let mut buffer = DeviceBuffer::new(Device::Cuda(0), bytes.len()).unwrap();
    buffer.write(0, &bytes).unwrap();
    for backend in [Backend::Auto, Backend::Gds, Backend::Uring, Backend::Pread, Backend::PageCache] {
        let path = folder.path().join("out");
        let mut file = CheckpointFile::create(&path, WriteOptions::new().backend(backend)).unwrap();
        match file.write_at(0, &buffer, 0..bytes.len()) {
            Ok(()) => println!("{backend}: {:?}", file.commit().unwrap()),
            Err(error) => {
                println!("skipped {backend}: {error}");
                continue;
            }
        }
        assert!(std::fs::read(&path).unwrap() == bytes, "{backend}");
    }
}

#[test]
fn gpu_selftest_passes_on_every_gpu() {
    if gpu().is_none() {
        return;
    }
    let folder = folder();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gpufeed"));
    let output = command.args(["selftest", "--dir"]).arg(folder.path()).output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
