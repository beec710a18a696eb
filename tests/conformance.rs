//! Every backend against one naive reader: `std::fs::read`, and a slice of it. All of it runs twice: with batches in host
//! memory, and on an emulated GPU.

mod common;
mod cuda_common;

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{
    assert_batch, backends, direct_here, expected, folder, make_cold, noise, npy, run, write, write_shards,
};
use gpufeed::{
    Backend, Dataset, Dtype, ErrorKind, LastBatch, OpenOptions, Order, Shuffle, Way, evict, residency,
};
use tempfile::TempDir;

fn records(paths: Vec<PathBuf>, record: u64) -> Arc<Dataset> {
    Dataset::builder().records("data", paths, Dtype::U8, &[record]).build().map(Arc::new).unwrap()
}

/// Everything about one dataset of records: every backend, order, policy, batch and I/O size.
fn conform(record: usize, shards: &[usize], batches: &[u64], io_bytes: &[u64]) {
    conform_in(&[folder()], record, shards, batches, io_bytes);
}

/// The same, with shards in these folders by turns.
fn conform_in(folders: &[TempDir], record: usize, shards: &[usize], batches: &[u64], io_bytes: &[u64]) {
    let parts: Vec<Vec<u8>> =
        shards.iter().enumerate().map(|(i, n)| noise((record * 31 + i) as u64, n * record)).collect();
    let path = |i: usize| folders[i % folders.len()].path().join(format!("shard-{i:04}.bin"));
    let paths: Vec<PathBuf> =
        parts.iter().enumerate().map(|(i, bytes)| (write(&path(i), bytes), path(i)).1).collect();
    let all: Vec<u8> = paths.iter().flat_map(|path| fs::read(path).unwrap()).collect();
    let dataset = records(paths.clone(), record as u64);
    let samples = dataset.len();
    let sample = |_: usize, sample: u64| &all[sample as usize * record..][..record];
    for backend in backends() {
        for &io in io_bytes {
            for &batch in batches {
                for shuffle in common::SHUFFLES {
                    for last in [LastBatch::Drop, LastBatch::Pad, LastBatch::Short] {
                        if last == LastBatch::Drop && batch > samples {
                            continue;
                        }
                        // Else `auto` would find them in the page cache, and leave its direct ways untried.
                        paths.iter().for_each(|path| evict(path).unwrap());
                        let builder = common::loader(Arc::clone(&dataset)).backend(backend).io_bytes(io);
                        let builder = builder.batch_size(batch).shuffle(shuffle).seed(11).last_batch(last);
                        let mut loader = builder.queue_depth(8).build().unwrap();
                        let order = Order::new(samples, 11, 4, shuffle);
                        let wanted = expected(samples, batch, last, &order);
                        let mut seen = 0;
                        for (found, wanted) in loader.epoch(4).unwrap().zip(&wanted) {
                            let found = found.unwrap();
                            assert_eq!(found.samples(), wanted);
                            assert_batch(&found, sample);
                            assert_eq!(found.bytes_by_way().total() as usize, wanted.len() * record);
                            seen += 1;
                        }
                        assert_eq!(seen, wanted.len(), "{backend} {io} {batch} {shuffle} {last}");
                        assert_eq!(loader.batches_per_epoch(), wanted.len() as u64);
                        // A sample that comes twice in a batch is read once.
                        let report = loader.report();
                        assert_eq!((report.drives.len(), loader.queue_depth()), (folders.len(), 8));
                        assert!(last == LastBatch::Pad || report.bytes_read >= report.bytes_by_way.total());
                    }
                }
            }
        }
    }
}

#[test]
fn records_of_a_few_bytes_are_right_by_every_backend() {
    for record in [1, 7] {
        conform(record, &[4096, 1, 5000, 3], &[1000, 4097], &[4096, 64 << 10, 1 << 20]);
    }
}

#[test]
fn records_near_half_a_kilobyte_are_right_by_every_backend() {
    for record in [511, 512, 513] {
        conform(record, &[40, 1, 33, 8], &[5, 82], &[4096, 64 << 10]);
    }
}

#[test]
fn records_near_a_page_are_right_by_every_backend() {
    for record in [4095, 4096, 4097] {
        conform(record, &[20, 1, 13], &[4, 100], &[4096, 64 << 10, 1 << 20]);
    }
}

#[test]
fn records_of_images_and_beyond_the_largest_io_are_right_by_every_backend() {
    conform(150_528, &[9, 4, 1], &[3, 14], &[4096, 64 << 10, 1 << 20]);
    conform((1 << 20) + 13, &[3, 2], &[2], &[64 << 10, 1 << 20]);
}

#[test]
fn records_on_two_devices_are_right_by_every_backend() {
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else {
        return eprintln!("skipped: there is no /dev/shm");
    };
    let folders = [folder(), other];
    let [first, second] = [&folders[0], &folders[1]].map(|it| fs::metadata(it.path()).unwrap().dev());
    assert_ne!(first, second, "the target folder is in the same file system as /dev/shm");
    conform_in(&folders, 511, &[40, 1, 33, 8], &[5, 82], &[4096, 64 << 10]);
    conform_in(&folders, 4096, &[20, 40], &[4, 60], &[4096, 1 << 20]);
}

#[test]
fn a_file_of_any_length_is_read_to_its_last_byte() {
    let folder = folder();
    for len in [1usize, 2, 511, 512, 513, 4095, 4096, 4097, 8191, 12_345, 65_537] {
        let path = folder.path().join(format!("{len}.bin"));
        write(&path, &noise(len as u64, len));
        let bytes = fs::read(&path).unwrap();
        // Records of every length that divides it, and so at every offset that such records have.
        for record in (1..=len).filter(|record| len % record == 0 && (len / record <= 64 || *record < 9)) {
            let dataset = records(vec![path.clone()], record as u64);
            for backend in backends() {
                for shuffle in common::SHUFFLES {
                    evict(&path).unwrap();
                    let builder = common::loader(Arc::clone(&dataset)).backend(backend).shuffle(shuffle);
                    let builder = builder.last_batch(LastBatch::Short).queue_depth(2).io_bytes(4096);
                    let mut loader = builder.batch_size(dataset.len()).build().unwrap();
                    for batch in loader.epoch(0).unwrap() {
                        assert_batch(&batch.unwrap(), |_, sample| {
                            &bytes[sample as usize * record..][..record]
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn every_offset_and_length_near_the_edges_of_blocks_comes_right() {
    // Two samples of one array, the header as long as it takes to put them where they shall be.
    let folder = folder();
    let data = noise(5, 2 * 9000);
    let near = [1, 511, 512, 513, 4095, 4096, 4097, 8999];
    for (number, offset) in [128, 511, 512, 513, 4095, 4096, 4097].into_iter().enumerate() {
        let paths: Vec<PathBuf> = (near.iter())
            .map(|len| {
                let path = folder.path().join(format!("{number}-{len}.npy"));
                write(&path, &npy("'|u1'", &format!("(2, {len})"), offset, &data[..2 * len]));
                path
            })
            .collect();
        for (path, len) in paths.iter().zip(near) {
            let bytes = fs::read(path).unwrap();
            let payload = &bytes[bytes.len() - 2 * len..];
            assert_eq!((bytes.len() - 2 * len) % offset, 0);
            let dataset = Arc::new(Dataset::open(path).unwrap());
            for backend in backends() {
                // Batches of 1, so that each of the two lies alone in its slot, and of 2.
                for batch in [1, 2] {
                    evict(path).unwrap();
                    let builder = common::loader(Arc::clone(&dataset)).backend(backend).batch_size(batch);
                    let mut loader = builder.queue_depth(2).io_bytes(4096).build().unwrap();
                    assert_eq!(run(&mut loader, 0).0, payload, "{offset} {len} {backend}");
                }
            }
        }
    }
}

#[test]
fn offsets_beyond_two_gigabytes_are_not_cut_off() {
    const RECORD: u64 = 1 << 20;
    const SIZE: u64 = 3 << 30;
    let folder = folder();
    let path = folder.path().join("sparse.bin");
    let file = File::create(&path).unwrap();
    file.set_len(SIZE).unwrap();
    // Markers across 2 GiB (below it, at it, over it), around 0x7ffff000, and at the end.
    for (i, at) in
        [0, (2 << 30) - 7, 2 << 30, (2 << 30) + 4096, 0x7fff_f000 - 3, SIZE - 5].into_iter().enumerate()
    {
        file.write_all_at(&noise(i as u64 + 1, 5), at).unwrap();
    }
    file.sync_all().unwrap();
    let dataset = records(vec![path.clone()], RECORD);
    let file = File::open(&path).unwrap();
    let naive = |sample: u64| {
        let mut bytes = vec![0; RECORD as usize];
        file.read_exact_at(&mut bytes, sample * RECORD).unwrap();
        bytes
    };
    // The last samples of the file, padded by its first ones: the order of an epoch puts all of them in two batches.
    for backend in backends() {
        let builder = common::loader(Arc::clone(&dataset)).backend(backend).batch_size(64);
        let mut loader = builder.io_bytes(4 << 30).queue_depth(1).prefetch(1).build().unwrap();
        assert!(loader.io_bytes() < 1 << 31, "an I/O of 4 GiB is clamped");
        drop(loader.epoch(0).unwrap().next().unwrap().unwrap());
        let builder = common::loader(Arc::clone(&dataset)).backend(backend).batch_size(8);
        let mut loader = builder.shuffle(Shuffle::Full).queue_depth(4).prefetch(1).build().unwrap();
        // The epochs whose first batch has one of the samples with a marker.
        let marked = [2047, 2048, 3071];
        let mut found = HashSet::new();
        for epoch in 0..2000 {
            let order = Order::new(dataset.len(), 0, epoch, Shuffle::Full);
            let hits: Vec<u64> =
                (0..8).filter_map(|at| order.sample(at)).filter(|s| marked.contains(s)).collect();
            if hits.is_empty() || hits.iter().all(|hit| found.contains(hit)) {
                continue;
            }
            let batch = loader.epoch(epoch).unwrap().next().unwrap().unwrap();
            let bytes = common::bytes_of(&batch.column("data").unwrap());
            let size = bytes.len() / batch.len();
            for (row, &sample) in batch.samples().iter().enumerate() {
                assert!(bytes[row * size..][..size] == *naive(sample), "sample {sample} by {backend}");
            }
            found.extend(hits);
        }
        assert_eq!(found.len(), marked.len());
    }
}

#[test]
fn columns_of_several_formats_come_side_by_side() {
    let folder = folder();
    let images = noise(1, 100 * 12 * 5);
    let labels = noise(2, 100 * 8);
    let weights = noise(3, 100 * 4);
    // Shards are cut at other samples in each column, and one header is no multiple of the elements' size.
    let image_paths = write_shards(folder.path(), &[images[..60 * 41].to_vec(), images[60 * 41..].to_vec()]);
    let label_path = folder.path().join("labels.npy");
    write(&label_path, &npy("'<i8'", "(100,)", 131, &labels));
    let weight_paths = [0, 1].map(|i| folder.path().join(format!("weights-{i}.npy")));
    write(&weight_paths[0], &npy("'<f4'", "(7,)", 64, &weights[..28]));
    write(&weight_paths[1], &npy("'<f4'", "(93,)", 4096, &weights[28..]));
    let dataset = Dataset::builder()
        .records("image", image_paths, Dtype::U8, &[12, 5])
        .npy("label", label_path)
        .npy("weight", weight_paths.to_vec())
        .build()
        .map(Arc::new)
        .unwrap();
    let naive = |column: usize, sample: u64| {
        let (bytes, size) = [(&images, 60), (&labels, 8), (&weights, 4)][column];
        &bytes[sample as usize * size..][..size]
    };
    for backend in backends() {
        for shuffle in common::SHUFFLES {
            dataset.files().iter().for_each(|file| evict(file.path()).unwrap());
            let builder =
                common::loader(Arc::clone(&dataset)).backend(backend).batch_size(9).shuffle(shuffle);
            let mut loader = builder.last_batch(LastBatch::Short).io_bytes(4096).build().unwrap();
            for batch in loader.epoch(0).unwrap() {
                let batch = batch.unwrap();
                assert_batch(&batch, naive);
                let label = batch.column("label").unwrap();
                assert_eq!((label.shape(), label.dtype()), (vec![batch.len() as u64], Dtype::I64));
                let first = i64::from_le_bytes(naive(1, batch.samples()[0]).try_into().unwrap());
                if batch.devices() == [gpufeed::Device::Host] {
                    assert_eq!(label.elements::<i64>().unwrap()[0], first);
                    let weights = batch.column("weight").unwrap().elements::<f32>().unwrap();
                    assert_eq!(weights.len(), batch.len());
                }
                assert_eq!(label.elements::<u8>().unwrap_err().kind(), ErrorKind::InvalidArgument);
                let error = batch.column("mask").unwrap_err().to_string();
                assert!(error.contains("mask") && error.contains("image, label, weight"), "{error}");
            }
        }
    }
}

#[test]
fn an_array_whose_header_ends_on_a_block_is_ordinary() {
    let folder = folder();
    let data = noise(8, 512 << 10);
    for multiple in [64, 512, 4096, 100] {
        let path = folder.path().join(format!("{multiple}.npy"));
        write(&path, &npy("'<u4'", "(1024, 128)", multiple, &data));
        let dataset = Arc::new(Dataset::open(&path).unwrap());
        for backend in backends() {
            evict(&path).unwrap();
            let mut loader = common::loader(Arc::clone(&dataset)).backend(backend).build().unwrap();
            assert_eq!(run(&mut loader, 0).0, data);
        }
    }
}

#[test]
fn epochs_differ_and_repeat_whatever_reads_them() {
    let folder = folder();
    let paths = write_shards(folder.path(), &[noise(1, 700 * 50), noise(2, 700 * 51)]);
    let dataset = records(paths, 700);
    let mut known: Vec<(Vec<u8>, Vec<u64>)> = Vec::new();
    for backend in backends() {
        for (prefetch, depth, io) in [(1, 1, 4096), (8, 64, 1 << 20), (2, 3, 8192)] {
            let builder =
                common::loader(Arc::clone(&dataset)).backend(backend).shuffle(Shuffle::Full).seed(9);
            let builder = builder.batch_size(10).last_batch(LastBatch::Short);
            let mut loader = builder.prefetch(prefetch).queue_depth(depth).io_bytes(io).build().unwrap();
            let epochs: Vec<_> = [0, 1, 2, 1].map(|epoch| run(&mut loader, epoch)).into();
            assert!(epochs[1] == epochs[3], "an epoch repeats");
            for (i, (_, samples)) in epochs.iter().enumerate().take(3) {
                let mut sorted = samples.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..101), "each sample once");
                assert!(epochs[..i].iter().all(|(_, other)| other != samples), "epochs differ");
            }
            if known.is_empty() {
                known.clone_from(&epochs);
            }
            assert!(known == epochs, "{backend}, prefetch {prefetch}, depth {depth}, I/O {io}");
        }
    }
}

#[test]
fn five_thousand_small_files_make_batches_of_a_thousand() {
    let folder = folder();
    let data = noise(3, 5000 * 472);
    for (i, sample) in data.chunks(472).enumerate() {
        // 128 bytes of header and 472 of data.
        let bytes = npy("'|u1'", "(1, 472)", 64, sample);
        assert_eq!(bytes.len(), 600);
        fs::write(folder.path().join(format!("{i:05}.npy")), bytes).unwrap();
    }
    let dataset = Arc::new(Dataset::open(folder.path()).unwrap());
    assert_eq!((dataset.len(), dataset.files().len()), (5000, 5000));
    for backend in backends() {
        let builder = common::loader(Arc::clone(&dataset)).backend(backend).batch_size(1024);
        let builder = builder.shuffle(Shuffle::Full).last_batch(LastBatch::Short);
        let mut loader = builder.build().unwrap();
        let mut samples = 0;
        for batch in loader.epoch(0).unwrap() {
            let batch = batch.unwrap();
            assert_batch(&batch, |_, sample| &data[sample as usize * 472..][..472]);
            samples += batch.len();
        }
        assert_eq!(samples, 5000);
    }
}

#[test]
fn a_direct_run_leaves_the_page_cache_as_it_was() {
    if !direct_here() {
        return;
    }
    let folder = folder();
    let paths = write_shards(folder.path(), &[noise(1, 1000 * 997), noise(2, 1000 * 997)]);
    let dataset = records(paths.clone(), 997);
    let cached = || paths.iter().map(|path| residency(path).unwrap().cached_pages).sum::<u64>();
    for backend in [Backend::Uring, Backend::Pread, Backend::Auto] {
        if backend.probe().is_err() {
            continue;
        }
        for shuffle in common::SHUFFLES {
            paths.iter().for_each(|path| make_cold(path));
            let builder = common::loader(Arc::clone(&dataset)).backend(backend).shuffle(shuffle);
            let mut loader = builder.last_batch(LastBatch::Short).build().unwrap();
            run(&mut loader, 0);
            assert_eq!(cached(), 0, "{backend} {shuffle}");
            let report = loader.report();
            let direct =
                report.bytes_by_way.bytes(Way::UringDirect) + report.bytes_by_way.bytes(Way::PreadDirect);
            assert_eq!((direct, report.bytes_by_way.total()), (2000 * 997, 2000 * 997));
            assert!(report.not_direct.is_empty());
        }
    }
}

#[test]
fn auto_reads_a_cached_shard_from_the_page_cache_and_says_so() {
    if !direct_here() {
        return;
    }
    let folder = folder();
    let paths = write_shards(folder.path(), &[noise(1, 1 << 20), noise(2, 1 << 20)]);
    let dataset = records(paths.clone(), 4096);
    paths.iter().for_each(|path| make_cold(path));
    let mut loader = common::loader(Arc::clone(&dataset)).batch_size(64).build().unwrap();
    // Cold; then with the second shard in the cache.
    run(&mut loader, 0);
    assert_eq!([0, 1].map(|i| loader.file_bytes(i).unwrap()), [(1 << 20, 0); 2]);
    fs::read(&paths[1]).unwrap();
    assert_eq!(residency(&paths[1]).unwrap().fraction(), 1.0);
    let (bytes, _) = run(&mut loader, 1);
    assert!(bytes == [fs::read(&paths[0]).unwrap(), fs::read(&paths[1]).unwrap()].concat());
    assert_eq!(loader.file_bytes(0), Some((2 << 20, 0)));
    assert_eq!(loader.file_bytes(1), Some((1 << 20, 1 << 20)));
    let report = loader.report();
    let buffered = [Way::UringBuffered, Way::PreadBuffered].map(|way| report.bytes_by_way.bytes(way));
    assert_eq!(buffered.iter().sum::<u64>(), 1 << 20);
    assert_eq!(report.not_direct.len(), 1);
    assert!(report.not_direct[0].first == paths[1] && report.not_direct[0].reason.contains("page cache"));
}

#[test]
fn a_file_system_in_memory_is_read_right_and_never_called_direct() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return eprintln!("skipped: there is no /dev/shm to write to");
    };
    let data = noise(4, 1003 * 77);
    let paths = write_shards(folder.path(), std::slice::from_ref(&data));
    for backend in backends() {
        for shuffle in common::SHUFFLES {
            let dataset = records(paths.clone(), 1003);
            let builder = common::loader(dataset).backend(backend).shuffle(shuffle).batch_size(10);
            let mut loader = builder.last_batch(LastBatch::Short).build().unwrap();
            for batch in loader.epoch(0).unwrap() {
                assert_batch(&batch.unwrap(), |_, sample| &data[sample as usize * 1003..][..1003]);
            }
            let report = loader.report();
            let direct = [Way::UringDirect, Way::PreadDirect].map(|way| report.bytes_by_way.bytes(way));
            assert_eq!(direct, [0, 0]);
            // The baseline does not try to read directly, so it has nothing to explain.
            assert_eq!(report.not_direct.is_empty(), backend == Backend::PageCache);
        }
    }
}

/// Runs one test of this file in a process of its own, with a setting that it finds in the environment.
fn alone(test: &str, mut prepare: impl FnMut(&mut Command)) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([test, "--exact", "--nocapture", "--test-threads=1"]).env("GPUFEED_TEST_ALONE", test);
    prepare(&mut child);
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn is_alone(test: &str) -> bool {
    std::env::var_os("GPUFEED_TEST_ALONE").is_some_and(|name| name == test)
}

#[test]
fn fifty_epochs_leave_descriptors_threads_and_memory_flat() {
    const NAME: &str = "fifty_epochs_leave_descriptors_threads_and_memory_flat";
    if !is_alone(NAME) {
        return alone(NAME, |_| {});
    }
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    // Without the workers that the kernel starts and ends for io_uring as it likes.
    let threads = || {
        let names = fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path().join("comm"));
        names
            .filter_map(|name| fs::read_to_string(name).ok())
            .filter(|name| !name.starts_with("iou-"))
            .count()
    };
    let resident = || {
        let text = fs::read_to_string("/proc/self/statm").unwrap();
        text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/digits");
    let state = || (descriptors(), threads());
    // A thread that was joined is listed for a moment more.
    let comes_to = |wanted| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while state() != wanted && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(state(), wanted);
    };
    let before = state();
    for backend in backends() {
        let dataset = Dataset::open(&digits).unwrap();
        let mut loader = common::loader(dataset).backend(backend).shuffle(Shuffle::Full).build().unwrap();
        (0..2).for_each(|epoch| drop(run(&mut loader, epoch)));
        let (settled, memory) = (state(), resident());
        for epoch in 2..50 {
            for batch in loader.epoch(epoch).unwrap() {
                assert_eq!(batch.unwrap().len(), 64);
            }
            assert_eq!(state(), settled, "{backend}, epoch {epoch}");
        }
        assert!(resident() < memory + (4 << 20), "{memory} bytes resident became {}", resident());
        drop(loader);
        comes_to(before);
    }
    // A new loader each time leaves nothing behind either.
    for round in 0..100 {
        let dataset = Dataset::open(&digits).unwrap();
        let mut loader = common::loader(dataset).queue_depth(4).build().unwrap();
        drop(loader.epoch(round).unwrap().next());
    }
    comes_to(before);
}

#[test]
fn more_shards_than_descriptors_are_read_all_the_same() {
    const NAME: &str = "more_shards_than_descriptors_are_read_all_the_same";
    if !is_alone(NAME) {
        return alone(NAME, |child| limit(child, libc::RLIMIT_NOFILE, 64));
    }
    let folder = folder();
    let parts: Vec<Vec<u8>> = (0..300).map(|i| noise(i, 4 * 1500)).collect();
    let paths = write_shards(folder.path(), &parts);
    let data = parts.concat();
    let dataset = records(paths, 1500);
    for backend in backends() {
        for depth in [1, 16, 64] {
            for shuffle in common::SHUFFLES {
                let builder = common::loader(Arc::clone(&dataset)).backend(backend).shuffle(shuffle);
                let mut loader = builder.queue_depth(depth).batch_size(100).io_bytes(4096).build().unwrap();
                let mut samples = 0;
                for batch in loader.epoch(0).unwrap() {
                    let batch = batch.unwrap();
                    assert_batch(&batch, |_, sample| &data[sample as usize * 1500..][..1500]);
                    samples += batch.len();
                }
                assert_eq!(samples, 1200, "{backend}, depth {depth}");
            }
        }
    }
}

/// Sets a limit of the child process, soft and hard.
fn limit(child: &mut Command, what: libc::__rlimit_resource_t, most: u64) {
    use std::os::unix::process::CommandExt;
    let set = move || {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: `limit` lives through the call.
        match unsafe { libc::setrlimit(what, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec the closure only makes one system call.
    unsafe { child.pre_exec(set) };
}

#[test]
fn bytes_are_counted_by_way_and_by_file() {
    let folder = folder();
    let paths = write_shards(folder.path(), &[noise(1, 900 * 20), noise(2, 900 * 11)]);
    for backend in backends() {
        let dataset = records(paths.clone(), 900);
        let mut loader = common::loader(dataset).backend(backend).batch_size(31).build().unwrap();
        let mut ways = gpufeed::BytesByWay::default();
        for batch in loader.epoch(0).unwrap() {
            ways += batch.unwrap().bytes_by_way();
        }
        let report = loader.report();
        assert_eq!(ways, report.bytes_by_way);
        assert_eq!(ways.total(), 900 * 31);
        let files =
            [0, 1].map(|file| loader.file_bytes(file).map(|(direct, buffered)| direct + buffered).unwrap());
        assert_eq!(files, [900 * 20, 900 * 11]);
        assert!(!report.backend_reason.is_empty());
    }
}

#[test]
fn shards_come_in_byte_order_of_their_names_and_names_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;
    let folder = folder();
    let names = [&b"a10.bin"[..], b"a9.bin", b"\xff\xfe\n.bin", b"B.bin"];
    for (i, name) in names.iter().enumerate() {
        write(&folder.path().join(std::ffi::OsStr::from_bytes(name)), &[i as u8; 8]);
    }
    for backend in backends() {
        let dataset = OpenOptions::new().record_bytes(8).open(folder.path()).unwrap();
        let mut loader = common::loader(dataset).backend(backend).batch_size(4).build().unwrap();
        let (bytes, _) = run(&mut loader, 0);
        assert_eq!(bytes.chunks(8).map(|sample| sample[0]).collect::<Vec<_>>(), [3, 0, 1, 2]);
    }
}

/// The whole of this file again but for the tests whose names have a word of `skip`, with batches on an emulated GPU whose
/// work is done at once, late, or as late as may be.
fn on_an_emulated_gpu(delay: &str, skip: &[&str]) {
    if std::env::var_os(common::DEVICE).is_some() {
        return; // this is the run on the emulated GPU
    }
    let folder = folder();
    let mut command = Command::new(std::env::current_exe().unwrap());
    cuda_common::on_emulator(&mut command, folder.path(), cuda_common::DriverFile::Emulator);
    command.args(["--test-threads=2", "--skip", "emulated_gpu"]);
    command.args(skip.iter().flat_map(|word| ["--skip", word]));
    command.env(common::DEVICE, "cuda:0").env("CUDA_EMULATOR_DELAY", delay);
    let outcome = cuda_common::finish(command, folder.path());
    let fine =
        outcome.code == Some(0) && outcome.reports.is_empty() && outcome.output.contains("test result: ok");
    assert!(fine, "delays {delay}: {outcome:?}");
}

#[test]
fn the_same_holds_on_an_emulated_gpu_without_delays() {
    on_an_emulated_gpu("none", &[]);
}

#[test]
fn the_same_holds_on_an_emulated_gpu_with_random_delays() {
    // Each copy sleeps, and these make a copy of each few bytes: minutes of sleep. `cuda_delivery` has smaller ones.
    on_an_emulated_gpu(
        "random:7:40",
        &["a_few_bytes", "half_a_kilobyte", "five_thousand", "every_offset", "any_length"],
    );
}

#[test]
fn the_same_holds_on_an_emulated_gpu_that_is_as_late_as_may_be() {
    on_an_emulated_gpu("adversarial:2", &[]);
}
