//! The life of loaders, epochs and batches in a program: several at once, in any thread, left behind by a panic, idle for
//! long, forked. Most of it runs twice: with batches in host memory, and on an emulated GPU that reports what is leaked.

mod common;
mod cuda_common;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{assert_batch, backends, folder, noise, write_shards};
use cuda_common::{DriverFile, HELD, finish, on_emulator};
use gpufeed::{
    Backend, Batch, Dataset, Dtype, Epoch, Error, ErrorKind, LastBatch, Loader, LoaderBuilder, Order,
    Shuffle, StopHandle,
};
use tempfile::TempDir;

/// Shards of records, and all of their bytes.
struct Data {
    dataset: Arc<Dataset>,
    all: Vec<u8>,
    record: usize,
    folder: TempDir,
}

impl Data {
    fn new(record: usize, shards: &[usize]) -> Data {
        let folder = folder();
        let parts: Vec<Vec<u8>> =
            shards.iter().enumerate().map(|(i, n)| noise((record + i) as u64, n * record)).collect();
        let paths = write_shards(folder.path(), &parts);
        let dataset = Dataset::builder().records("data", paths, Dtype::U8, &[record as u64]).build();
        Data { dataset: Arc::new(dataset.unwrap()), all: parts.concat(), record, folder }
    }

    fn loader(&self, backend: Backend) -> LoaderBuilder {
        common::loader(Arc::clone(&self.dataset)).backend(backend).batch_size(5).last_batch(LastBatch::Short)
    }

    fn assert_batch(&self, batch: &Batch) {
        assert_batch(batch, |_, sample| &self.all[sample as usize * self.record..][..self.record]);
    }

    /// What is left of an epoch, from a position on: every batch right, with the samples that the order says.
    fn assert_rest(&self, epoch: &mut Epoch<'_>, from: u64, shuffle: Shuffle) {
        let order = Order::new(self.dataset.len(), 0, epoch.number(), shuffle);
        let mut position = from;
        for batch in epoch {
            let batch = batch.unwrap();
            self.assert_batch(&batch);
            for &sample in batch.samples() {
                assert_eq!(order.sample(position), Some(sample));
                position += 1;
            }
        }
        assert_eq!(position, self.dataset.len());
    }

    fn assert_epoch(&self, loader: &mut Loader, number: u64, shuffle: Shuffle) {
        self.assert_rest(&mut loader.epoch(number).unwrap(), 0, shuffle);
    }
}

/// Fails the test if `body` takes minutes: what hangs would never say so. The process ends, as a thread that hangs cannot
/// be ended.
fn never_hangs<T>(body: impl FnOnce() -> T) -> T {
    let (done, waiting) = crossbeam_channel::bounded::<()>(0);
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let watch = std::thread::spawn(move || {
        if waiting.recv_timeout(Duration::from_secs(300)) == Err(crossbeam_channel::RecvTimeoutError::Timeout)
        {
            eprintln!("{name} hangs");
            std::process::exit(101);
        }
    });
    let outcome = catch_unwind(AssertUnwindSafe(body));
    drop(done);
    watch.join().unwrap();
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

#[test]
fn loaders_epochs_and_batches_may_go_to_other_threads() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<Loader>();
    send::<Epoch<'_>>();
    send::<Batch>();
    send::<LoaderBuilder>();
    send::<StopHandle>();
    sync::<StopHandle>();
    sync::<Batch>();
    sync::<Loader>();
    send::<Error>();
}

#[test]
fn loaders_of_one_dataset_on_many_threads_each_give_every_sample() {
    let data = Data::new(1003, &[40, 1, 31]);
    never_hangs(|| {
        std::thread::scope(|scope| {
            for (i, backend) in backends().into_iter().cycle().take(8).enumerate() {
                let data = &data;
                scope.spawn(move || {
                    let shuffle = common::SHUFFLES[i % 3];
                    let builder = data.loader(backend).shuffle(shuffle).io_bytes(4096);
                    let mut loader =
                        builder.queue_depth(1 + i as u32).prefetch(8 - i as u32).build().unwrap();
                    for epoch in 0..6 {
                        loader
                            .epoch(100)
                            .unwrap()
                            .take(i)
                            .for_each(|batch| data.assert_batch(&batch.unwrap()));
                        data.assert_epoch(&mut loader, epoch, shuffle);
                    }
                });
            }
        });
    });
}

#[test]
fn three_loaders_nested_in_each_other_need_no_more_than_one_read_in_flight_each() {
    let data = Data::new(2000, &[20]);
    never_hangs(|| {
        for backend in backends() {
            let build = |shuffle| {
                let builder = data.loader(backend).shuffle(shuffle).queue_depth(1).prefetch(8);
                builder.io_bytes(4096).build().unwrap()
            };
            let [mut outer, mut middle, mut inner] = common::SHUFFLES.map(build);
            for one in outer.epoch(0).unwrap() {
                let one = one.unwrap();
                for (i, two) in middle.epoch(1).unwrap().enumerate() {
                    let two = two.unwrap();
                    data.assert_epoch(&mut inner, i as u64, common::SHUFFLES[2]);
                    data.assert_batch(&two);
                }
                data.assert_batch(&one);
            }
        }
    });
}

#[test]
fn an_epoch_goes_on_in_another_thread_and_is_dropped_there() {
    let data = Arc::new(Data::new(1500, &[33]));
    never_hangs(|| {
        for backend in backends() {
            for taken in 0..4 {
                let mut loader = data.loader(backend).shuffle(Shuffle::Full).prefetch(2).build().unwrap();
                let mut epoch = loader.epoch(7).unwrap();
                let kept = epoch.next().unwrap().unwrap();
                let data_there = &data;
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        (0..taken).for_each(|_| data_there.assert_batch(&epoch.next().unwrap().unwrap()));
                        drop(epoch);
                    });
                });
                // The loader follows, with a batch of it still here.
                let data_there = Arc::clone(&data);
                let there = std::thread::spawn(move || {
                    assert_eq!((loader.state().epoch(), loader.state().position()), (7, 5 + 5 * taken));
                    let mut rest = loader.next_epoch().unwrap();
                    data_there.assert_rest(&mut rest, 5 + 5 * taken, Shuffle::Full);
                    drop(rest);
                    loader
                });
                let mut loader = there.join().unwrap();
                data.assert_batch(&kept);
                drop(kept);
                data.assert_epoch(&mut loader, 8, Shuffle::Full);
            }
        }
    });
}

#[test]
fn batches_outlive_loader_dataset_and_files() {
    for backend in backends() {
        let Data { dataset, all, record, folder } = Data::new(3001, &[11, 9]);
        let builder = common::loader(dataset).backend(backend).batch_size(5).prefetch(4);
        let mut loader = builder.build().unwrap();
        let mut batches: Vec<Batch> = loader.epoch(0).unwrap().map(Result::unwrap).collect();
        drop(loader);
        folder.close().unwrap();
        assert_eq!(batches.len(), 4);
        while !batches.is_empty() {
            let all = &all;
            batches.iter().for_each(|batch| {
                assert_batch(batch, |_, sample| &all[sample as usize * record..][..record]);
            });
            let last = batches.remove(batches.len() / 2);
            std::thread::spawn(move || drop(last)).join().unwrap();
        }
    }
}

#[test]
fn a_consumer_may_rest_for_longer_than_the_lend_timeout() {
    let data = Data::new(1000, &[60]);
    never_hangs(|| {
        for (backend, milliseconds) in backends().into_iter().flat_map(|it| [(it, 0), (it, 25)]) {
            let timeout = Duration::from_millis(milliseconds);
            let mut loader = data.loader(backend).prefetch(3).lend_timeout(timeout).build().unwrap();
            let mut epoch = loader.epoch(0).unwrap();
            // Holding no batch, then one, and so on up to all: rest is not an error, only asking for more is.
            let mut held = Vec::new();
            for _ in 0..4 {
                std::thread::sleep(4 * timeout);
                held.push(epoch.next().unwrap().unwrap());
            }
            std::thread::sleep(4 * timeout);
            held.remove(0);
            data.assert_batch(&epoch.next().unwrap().unwrap());
            held.iter().for_each(|batch| data.assert_batch(batch));
            drop(epoch);
            held.clear();
            data.assert_rest(&mut loader.next_epoch().unwrap(), 25, Shuffle::None);
        }
    });
}

#[test]
fn a_wait_for_slow_storage_beyond_the_lend_timeout_is_no_error() {
    let data = Data::new(4096, &[40]);
    never_hangs(|| {
        for backend in backends() {
            let builder = data.loader(backend).batch_size(8).prefetch(1).io_bytes(4096).queue_depth(2);
            // A batch takes six timeouts; the last waits with all slots but one held.
            let builder = builder.limit_rate(8 * 4096 * 10).lend_timeout(Duration::from_millis(15));
            let mut loader = builder.build().unwrap();
            let mut held = Vec::new();
            for batch in loader.epoch(0).unwrap() {
                held.push(batch.unwrap());
                data.assert_batch(&held[0]);
                if held.len() == 2 {
                    held.remove(0);
                }
            }
        }
    });
}

#[test]
fn a_stop_at_any_time_from_any_thread_ends_every_later_epoch() {
    let data = Data::new(500, &[100]);
    never_hangs(|| {
        for backend in backends() {
            for round in 0..12u64 {
                let mut loader = data.loader(backend).prefetch(2).build().unwrap();
                let stop = loader.stop_handle();
                std::thread::scope(|scope| {
                    for i in 0..3 {
                        let stop = stop.clone();
                        scope.spawn(move || {
                            std::thread::sleep(Duration::from_micros(round * 150 + i * 20));
                            stop.stop();
                        });
                    }
                    let mut number = 0;
                    let error = loop {
                        let mut epoch = loader.epoch(number).unwrap();
                        number += 1;
                        let stopped =
                            epoch.find_map(|batch| batch.map(|batch| data.assert_batch(&batch)).err());
                        assert!(epoch.next().is_none());
                        if let Some(error) = stopped {
                            break error;
                        }
                    };
                    assert_eq!(error.kind(), ErrorKind::Stopped);
                });
                for _ in 0..2 {
                    let error = loader.next_epoch().unwrap().next().unwrap().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Stopped);
                }
                // It was the loader that was stopped, not the way.
                let state = loader.state();
                drop(loader);
                stop.stop();
                let mut again = data.loader(backend).resume(state.clone()).build().unwrap();
                data.assert_rest(&mut again.next_epoch().unwrap(), state.position(), Shuffle::None);
            }
        }
    });
}

/// Panics in a consumer that has a loader, an epoch and batches of its own, and one batch that somebody else keeps.
fn panicking_consumer(data: &Data, backend: Backend, after: usize) {
    let mut kept = None;
    let consumer = AssertUnwindSafe(|| {
        let mut loader = data.loader(backend).shuffle(Shuffle::Full).prefetch(4).build().unwrap();
        let mut epoch = loader.epoch(1).unwrap();
        kept = Some(epoch.next().unwrap().unwrap());
        let _mine: Vec<Batch> = epoch.by_ref().take(after).map(Result::unwrap).collect();
        resume_unwind(Box::new("as the test asks"));
    });
    assert!(catch_unwind(consumer).is_err());
    data.assert_batch(&kept.unwrap());
}

#[test]
fn a_panic_of_the_consumer_drops_whatever_it_has() {
    let data = Data::new(1003, &[60]);
    never_hangs(|| {
        for backend in backends() {
            (0..12).for_each(|round| panicking_consumer(&data, backend, round % 5));
            std::thread::scope(|scope| {
                for after in 0..3 {
                    let data = &data;
                    scope.spawn(move || panicking_consumer(data, backend, after));
                }
            });
        }
    });
}

/// Runs one test of this file in a process of its own, whose threads and descriptors are its own.
fn alone(test: &str) -> bool {
    const ALONE: &str = "GPUFEED_LIFE_ALONE";
    if std::env::var(ALONE).as_deref() == Ok(test) {
        return true;
    }
    let folder = folder();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ALONE, test);
    let outcome = finish(command, folder.path());
    assert!(outcome.code == Some(0) && outcome.output.contains("1 passed"), "{outcome:?}");
    false
}

/// Threads and descriptors of this process, without the workers that the kernel starts for io_uring as it likes.
fn in_use() -> (usize, usize) {
    let names = fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path().join("comm"));
    let threads =
        names.filter_map(|name| fs::read_to_string(name).ok()).filter(|name| !name.starts_with("iou-"));
    (threads.count(), fs::read_dir("/proc/self/fd").unwrap().count())
}

fn comes_back_to(wanted: (usize, usize)) {
    // A thread that was joined is listed for a moment more.
    let deadline = Instant::now() + Duration::from_secs(60);
    while in_use() != wanted {
        assert!(Instant::now() < deadline, "{wanted:?} threads and descriptors became {:?}", in_use());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_panic_of_the_consumer_leaves_no_thread_and_no_descriptor() {
    if !alone("a_panic_of_the_consumer_leaves_no_thread_and_no_descriptor") {
        return;
    }
    let data = Data::new(1003, &[60]);
    let backends = backends();
    let before = in_use();
    for round in 0..20 {
        for &backend in &backends {
            panicking_consumer(&data, backend, round % 5);
        }
        comes_back_to(before);
    }
}

/// A number of bytes that `/proc/self/status` has for this process.
fn status(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap() << 10
}

#[test]
fn a_loader_that_cannot_be_built_leaves_no_thread_no_descriptor_and_no_memory() {
    if !alone("a_loader_that_cannot_be_built_leaves_no_thread_no_descriptor_and_no_memory") {
        return;
    }
    let data = Data::new(4096, &[3000]);
    let set = |most: u64| {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: `limit` lives through the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    };
    let before = in_use();
    let mut resident = Vec::new();
    for _ in 0..8 {
        // There is address space for the ring and not for the chunks, or not even for the ring.
        set(status("VmSize:") + (160 << 20));
        let staging = data.loader(Backend::Pread).queue_depth(4096).io_bytes(1 << 20).build().unwrap_err();
        let ring = data.loader(Backend::PageCache).batch_size(3000).prefetch(100).build().unwrap_err();
        set(libc::RLIM_INFINITY);
        let limit = data.loader(Backend::Auto).memory_limit(1).build().unwrap_err();
        for error in [staging, ring, limit] {
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        }
        comes_back_to(before);
        resident.push(status("VmRSS:"));
    }
    // What failed would have had many times that.
    assert!(resident[7] < resident[1] + (8 << 20), "{resident:?}");
}

/// Forks, runs `body` in the child, and waits for it to end well.
fn forked(body: impl FnOnce()) {
    // SAFETY: the child only runs `body`, whose threads are its own, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: ends a child that hangs.
        unsafe { libc::alarm(120) };
        let fine = catch_unwind(AssertUnwindSafe(body)).is_ok();
        // SAFETY: ends this process, and runs nothing of the parent's.
        unsafe { libc::_exit(if fine { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    let fine = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7;
    assert!(fine, "the forked child: status {status:#x}");
}

#[test]
fn in_a_forked_child_a_loader_is_closed_and_its_batches_are_what_they_were() {
    if !alone("in_a_forked_child_a_loader_is_closed_and_its_batches_are_what_they_were") {
        return;
    }
    let data = Data::new(1003, &[60]);
    for backend in backends() {
        for prefetch in [1, 6] {
            let mut loader = data.loader(backend).prefetch(prefetch).build().unwrap();
            let stop = loader.stop_handle();
            let mut epoch = loader.epoch(1).unwrap();
            let batch = epoch.next().unwrap().unwrap();
            let mut parts = Some((epoch, batch, stop));
            forked(|| {
                let (mut epoch, batch, stop) = parts.take().unwrap();
                data.assert_batch(&batch);
                let error = epoch.next().unwrap().unwrap_err();
                assert!(error.kind() == ErrorKind::Closed && error.to_string().contains("fork"), "{error}");
                assert!(epoch.next().is_none());
                drop(epoch);
                data.assert_batch(&batch);
                drop((batch, stop));
            });
            // The parent has not noticed.
            let (mut epoch, batch, _) = parts.take().unwrap();
            data.assert_rest(&mut epoch, 5, Shuffle::None);
            data.assert_batch(&batch);
        }
    }
}

#[test]
fn a_loader_built_in_a_forked_child_outlives_the_parents_loader_there() {
    if !alone("a_loader_built_in_a_forked_child_outlives_the_parents_loader_there") {
        return;
    }
    let data = Data::new(1003, &[60]);
    for backend in backends() {
        let mut parts = Some(data.loader(backend).queue_depth(4).build().unwrap());
        forked(|| {
            // Its threads may get the memory, and with it the names, that the parent's threads had.
            let mut fresh: Vec<Loader> =
                (0..4).map(|_| data.loader(backend).queue_depth(4).build().unwrap()).collect();
            let mut old = parts.take().unwrap();
            assert_eq!(old.epoch(0).unwrap_err().kind(), ErrorKind::Closed);
            drop(old);
            fresh.iter_mut().for_each(|loader| data.assert_epoch(loader, 0, Shuffle::None));
            drop(fresh);
        });
        data.assert_epoch(&mut parts.take().unwrap(), 0, Shuffle::None);
    }
}

#[test]
fn a_program_that_forks_all_the_time_gets_the_right_bytes() {
    if !alone("a_program_that_forks_all_the_time_gets_the_right_bytes") {
        return;
    }
    // Runs of half a mebibyte land in the slot, but for their ends, which are copied into the same pages.
    let data = Data::new(1003, &[1000, 1001]);
    for backend in backends() {
        let over = AtomicBool::new(false);
        let epochs = std::thread::scope(|scope| {
            let (data, over) = (&data, &over);
            let consumer = scope.spawn(move || {
                let builder = data.loader(backend).batch_size(523).prefetch(3).io_bytes(64 << 10);
                let mut loader = builder.build().unwrap();
                let mut epochs = 0;
                while !over.load(Ordering::Acquire) {
                    data.assert_epoch(&mut loader, epochs, Shuffle::None);
                    epochs += 1;
                }
                epochs
            });
            for _ in 0..300 {
                // The child has none of the locks that a thread of ours may hold, and asks for none.
                // SAFETY: it does nothing but leave.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: ends this process, and runs nothing of the parent's.
                    unsafe { libc::_exit(0) };
                }
                // SAFETY: waits for the child made above.
                assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
            }
            over.store(true, Ordering::Release);
            consumer.join().unwrap()
        });
        assert!(epochs > 0);
    }
}

/// All of this again but for what counts or forks, with batches on an emulated GPU.
fn on_an_emulated_gpu(delay: &str) {
    if std::env::var_os(common::DEVICE).is_some() {
        return; // this is the run on the emulated GPU
    }
    let folder = folder();
    let mut command = Command::new(std::env::current_exe().unwrap());
    on_emulator(&mut command, folder.path(), DriverFile::Emulator);
    command.args(["--test-threads=2", "--skip", "emulated_gpu", "--skip", "leaves_no", "--skip", "fork"]);
    command.env(common::DEVICE, "cuda:0").env("CUDA_EMULATOR_DELAY", delay);
    let outcome = finish(command, folder.path());
    let fine =
        outcome.code == Some(0) && outcome.reports.is_empty() && outcome.output.contains("test result: ok");
    assert!(fine, "delays {delay}: {outcome:?}");
}

#[test]
fn the_same_holds_on_an_emulated_gpu_and_nothing_is_leaked_there() {
    for delay in ["none", "random:7:200", HELD] {
        on_an_emulated_gpu(delay);
    }
}
