//! Tuning a loader on its own data: each candidate reads some of it, cold.

use std::time::{Duration, Instant};

use super::caches::{Dropping, prepare};
use super::machine;
use super::report::Cache;
use super::run::cached_share;
use super::stop::Stop;
use super::tune::{Candidate, Tuning, tune};
use crate::{Backend, Device, Error, ErrorKind, Loader, LoaderBuilder, Result, Shuffle, Source};

/// A candidate reads for so long, or so much.
const LONGEST_READ: Duration = Duration::from_millis(700);
const MOST_BYTES: u64 = 1 << 30;
/// More than this in the page cache, after it was emptied, and what is measured is memory.
const CACHED: f64 = 0.5;

/// Finds the I/O size, queue depth and backend with which a loader reads its data fastest, cold, in about `budget`; a minute
/// is plenty. `configure` makes all other settings. Remember the result under [`tuning_key`].
///
/// # Errors
/// `Unsupported` if the data stays in memory (tmpfs, say), so that there is no disk to tune for; `Stopped` if `stop` was asked;
/// that of a loader with the default settings, if it does not work.
pub fn tune_loader(
    source: impl Into<Source>,
    configure: impl Fn(LoaderBuilder) -> LoaderBuilder,
    budget: Duration,
    stop: &Stop,
) -> Result<Tuning> {
    let source = source.into();
    let build = |candidate: Option<Candidate>| -> Result<Loader> {
        let mut builder = configure(Loader::builder(source.clone()));
        if let Some(it) = candidate {
            builder = builder.backend(it.backend).io_bytes(it.io_bytes).queue_depth(it.queue_depth);
        }
        builder.build()
    };
    prepare(source.dataset(), Cache::Cold, Dropping::default(), stop)?;
    if cached_share(source.dataset()).is_some_and(|share| share > CACHED) {
        let what = "the data stays in memory when the page cache is emptied, so there is no disk to tune for";
        let path = source.dataset().files().first().map(|file| file.path().to_path_buf()).unwrap_or_default();
        return Err(Error::new(ErrorKind::Unsupported, what).at(&path));
    }
    let untuned = build(None)?;
    let used = untuned.report().backend;
    let default =
        Candidate { backend: used, io_bytes: untuned.io_bytes().into(), queue_depth: untuned.queue_depth() };
    drop(untuned);
    // The baseline is slow by design, and what does not work where the default does is passed over.
    let backends: Vec<Backend> = [used, Backend::Uring, Backend::Pread].into_iter().collect();
    let mut epoch = 0;
    tune(default, &backends, budget, |candidate| {
        if stop.asked() {
            return Err(Error::new(ErrorKind::Stopped, "the tuning was asked to stop"));
        }
        prepare(source.dataset(), Cache::Cold, Dropping::default(), stop)?;
        let mut loader = build(Some(candidate))?;
        stop.stops(loader.stop_handle());
        // Another epoch each time, so that a shuffle reads other places.
        epoch += 1;
        let (mut bytes, start) = (0, Instant::now());
        for batch in loader.epoch(epoch)? {
            let batch = batch?;
            batch.arrive()?;
            bytes += batch.columns().map(|column| column.size_bytes() as u64).sum::<u64>();
            if start.elapsed() >= LONGEST_READ || bytes >= MOST_BYTES {
                break;
            }
        }
        Ok(bytes as f64 / start.elapsed().as_secs_f64().max(1e-9) / f64::from(1u32 << 30))
    })
}

/// What a tuning depends on, in one line: the host, the file system and disk that the data is on, where batches go, and
/// whether single samples are read, and of what size, or runs of them.
pub fn tuning_key(source: &Source, devices: &[Device], shuffle: Shuffle) -> String {
    let dataset = source.dataset();
    let machine = machine::describe(dataset);
    let device = dataset.files().first().map_or(0, |file| file.identity().device);
    // `auto` takes the first GPU, if there is one.
    let devices: Vec<Device> =
        devices.iter().map(|it| if *it == Device::Auto { Device::Cuda(0) } else { *it }).collect();
    let target = match machine::gpus(&devices).join("+") {
        none if none.is_empty() => "host".into(),
        gpus => gpus,
    };
    let pattern = match shuffle {
        Shuffle::Full => format!("samples of {} bytes", dataset.sample_bytes().next_power_of_two()),
        _ => "runs".into(),
    };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!(
        "{} | {} on {}:{} {} | {target} | {pattern}",
        host.trim(),
        machine.filesystem,
        libc::major(device),
        libc::minor(device),
        machine.disk.unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dataset;

    #[test]
    fn a_loader_is_tuned_on_its_own_data_and_memory_is_told_from_a_disk() {
        // On a real disk; the working folder is on one, /tmp may not be.
        let folder = tempfile::tempdir_in(".").unwrap();
        let write = |path: &std::path::Path| {
            std::fs::write(path, vec![7u8; 8 << 20]).unwrap();
            std::fs::File::open(path).unwrap().sync_all().unwrap();
            Dataset::builder().records("x", path, crate::Dtype::U8, &[4096]).build().unwrap()
        };
        let dataset = write(&folder.path().join("data.bin"));
        let tuning =
            tune_loader(dataset.clone(), |builder| builder.batch_size(64), Duration::ZERO, &Stop::new())
                .unwrap();
        // Without any time it is the default, measured.
        assert!(!tuning.faster && tuning.gib_per_s.median > 0.0, "{tuning:?}");
        let untuned = Loader::builder(dataset.clone()).build().unwrap();
        assert_eq!(tuning.queue_depth, untuned.queue_depth());
        let other = Tuning { queue_depth: 4, io_bytes: 128 << 10, backend: Backend::Pread, ..tuning };
        let tuned = Loader::builder(dataset.clone()).tuned(&other).build().unwrap();
        assert_eq!((tuned.queue_depth(), tuned.io_bytes()), (4, 128 << 10));
        let report = tuned.report();
        assert!(report.backend == Backend::Pread && report.backend_reason.contains("tuned"), "{report:?}");
        // A backend that the user names is taken, tuned or not.
        let named =
            Loader::builder(dataset.clone()).tuned(&other).backend(Backend::PageCache).build().unwrap();
        assert_eq!(named.report().backend, Backend::PageCache);
        let source = Source::from(dataset);
        let key = |shuffle| tuning_key(&source, &[Device::Auto], shuffle);
        assert_eq!(key(Shuffle::None), key(Shuffle::Blocks { block: 1, window: 2 }));
        assert!(
            key(Shuffle::None) != key(Shuffle::Full) && key(Shuffle::Full).contains("samples of 4096 bytes")
        );

        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let dataset = write(&memory.path().join("data.bin"));
        let error = tune_loader(dataset, |it| it, Duration::ZERO, &Stop::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}
