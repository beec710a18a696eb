//! What the tests of the CUDA side share: a child process on the emulated driver, data on a real disk, and a consumer
//! that works in streams, as a training step does.

#![allow(dead_code, reason = "each test file uses its own part of this")]
#![allow(unused_macros, unused_imports, reason = "each test file uses its own part of this")]

#[path = "../common/launcher.rs"]
#[allow(clippy::duplicate_mod, reason = "a test may use this module and the other one that has it")]
pub(crate) mod launcher;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpufeed::cudarc::driver::{CudaContext, CudaStream, result, sys};
use gpufeed::{Backend, Batch, ColumnView, Dataset, Device, Dtype, LastBatch, Loader, LoaderBuilder, Order};
use gpufeed::{Shuffle, cudarc};
use tempfile::TempDir;

/// Which test this process is the child of.
const CHILD: &str = "GPUFEED_CUDA_TEST_CHILD";

/// What a child prints at the end of its body: without it, no test has run there.
pub(crate) const DONE: &str = "the child has come to the end of its body";

/// A child that takes longer is killed, and its test fails. `GPUFEED_TEST_DEADLINE` gives it other seconds, for runs
/// under a checker of memory.
fn deadline() -> Duration {
    let seconds = std::env::var("GPUFEED_TEST_DEADLINE").map_or(300, |text| text.parse().unwrap());
    Duration::from_secs(seconds)
}

/// Holds work back until somebody waits for it, or has asked three times whether it is done.
pub(crate) const HELD: &str = "adversarial:3600000";

/// How an emulated device may delay its work, from not at all to as long as it can.
pub(crate) const DELAYS: [&str; 6] =
    ["none", "random:1:300", "random:2:2000", "random:3:50", "adversarial:5", HELD];

/// The emulated driver that cargo built for the tests: beside this executable, or one folder up.
pub(crate) fn emulator() -> PathBuf {
    let executable = std::env::current_exe().expect("a test has an executable");
    let candidates: Vec<PathBuf> = executable
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("libgpufeed_cuda_emulator.so"))
        .collect();
    let found = candidates.iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("none of {candidates:?} exists")).clone()
}

/// A folder on a real disk. `/tmp` may be in memory, where direct I/O is accepted at any alignment.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Which driver a child finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverFile {
    Emulator,
    Missing,
    /// A library that is no driver.
    Other,
}

/// A command whose CUDA driver is the emulator (or what `driver` says), with nothing left of the caller's settings.
/// Reports of misuse and leaks go to `report` in the folder.
pub(crate) fn on_emulator(command: &mut Command, folder: &Path, driver: DriverFile) {
    let library = folder.join("libcuda.so.1");
    match driver {
        DriverFile::Emulator => std::os::unix::fs::symlink(emulator(), library).unwrap(),
        DriverFile::Missing => {}
        DriverFile::Other => {
            let libc = fs::read_to_string("/proc/self/maps").unwrap();
            let found = libc.split_whitespace().find(|word| word.contains("libgcc_s.so"));
            let found = found.or_else(|| libc.split_whitespace().find(|word| word.contains("libc.so")));
            std::os::unix::fs::symlink(found.expect("a test is linked with libc"), library).unwrap();
        }
    }
    launcher::without_launcher(command);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"CUDA_") {
            command.env_remove(name);
        }
    }
    command
        .env("LD_LIBRARY_PATH", folder)
        .env("CUDA_EMULATOR_REPORT", folder.join("report"))
        .env("CUDA_EMULATOR_LEAKS", "1");
}

/// How a process ended, and what the emulator reported about it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) timed_out: bool,
    pub(crate) reports: Vec<String>,
    pub(crate) output: String,
}

/// libcufile 1.20 now and then pops a context, in a thread of its own, that it has not pushed. The driver refuses that, and
/// no more comes of it; it is not a call of ours.
fn is_of_cufile_alone(report: &str) -> bool {
    let is = report.contains("no-current-context in cuCtxPopCurrent_v2")
        && report.contains("(called from libcufile.so.0)");
    if is {
        eprintln!("left out, as it is cuFile's own: {report}");
    }
    is
}

/// Runs a command to its end or to the deadline. What it prints goes to a file, so that it never waits for a reader.
pub(crate) fn finish(mut command: Command, folder: &Path) -> Outcome {
    let log = folder.join("output");
    let file = File::create(&log).unwrap();
    command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
    let mut child = command.spawn().expect("the child can be started");
    let (start, deadline) = (Instant::now(), deadline());
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if start.elapsed() > deadline => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let report = fs::read_to_string(folder.join("report")).unwrap_or_default();
    Outcome {
        code: status.and_then(|status| status.code()),
        timed_out: status.is_none(),
        reports: report.lines().filter(|line| !is_of_cufile_alone(line)).map(str::to_owned).collect(),
        output: String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned(),
    }
}

/// Runs `body` in a child process on the emulated driver, and fails if the child fails, hangs, misuses the driver or
/// leaves something behind. `test` is the name of the calling test, which the child runs again; there `body` is called.
#[track_caller]
pub(crate) fn in_child(test: &str, driver: DriverFile, environment: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        body();
        println!("{DONE}");
        // What the body held is dropped by now, so that what is still there at the exit is a leak.
        std::process::exit(0);
    }
    let folder = folder();
    let mut command = Command::new(std::env::current_exe().expect("a test has an executable"));
    on_emulator(&mut command, folder.path(), driver);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(CHILD, test).envs(environment.iter().copied());
    let outcome = finish(command, folder.path());
    let fine = outcome.code == Some(0) && outcome.output.contains(DONE) && outcome.reports.is_empty();
    assert!(fine, "{test} with {environment:?}: {}", describe(&outcome));
}

pub(crate) fn describe(outcome: &Outcome) -> String {
    let Outcome { code, timed_out, reports, output } = outcome;
    let few: Vec<&String> = reports.iter().take(8).collect();
    let all = reports.len();
    format!("code {code:?}, timed out {timed_out}, {all} reports {few:#?}\n{output}")
}

/// [`in_child`] for the test function that it stands in.
macro_rules! child {
    ($environment:expr, $body:expr) => {
        child!($crate::cuda_common::DriverFile::Emulator, $environment, $body)
    };
    ($driver:expr, $environment:expr, $body:expr) => {{
        fn here() {}
        let path = std::any::type_name_of_val(&here);
        let test = path.split("::").nth(1).expect("crate::test::here");
        $crate::cuda_common::in_child(test, $driver, $environment, $body)
    }};
}
pub(crate) use child;

/// Bytes without a pattern; the same for the same seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len];
    for part in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        part.copy_from_slice(&state.to_le_bytes()[..part.len()]);
    }
    bytes
}

/// A dataset of two columns: records without a pattern, in two shards, and the sample's own number.
#[derive(Debug)]
pub(crate) struct Data {
    folder: TempDir,
    pub(crate) samples: u64,
    pub(crate) record: usize,
    records: Vec<u8>,
    numbers: Vec<u8>,
}

impl Data {
    pub(crate) fn new(record: usize, samples: u64) -> Data {
        let folder = folder();
        let records = noise(record as u64 + samples, record * samples as usize);
        let numbers: Vec<u8> = (0..samples).flat_map(u64::to_le_bytes).collect();
        let cut = (samples as usize / 3).max(1) * record;
        write(&folder.path().join("data-0.bin"), &records[..cut]);
        if cut < records.len() {
            write(&folder.path().join("data-1.bin"), &records[cut..]);
        }
        write(&folder.path().join("numbers.bin"), &numbers);
        Data { folder, samples, record, records, numbers }
    }

    pub(crate) fn dataset(&self) -> Dataset {
        let at = |name: &str| self.folder.path().join(name);
        Dataset::builder()
            .records("data", at("data-*.bin"), Dtype::U8, &[self.record as u64])
            .records("number", at("numbers.bin"), Dtype::U64, &[])
            .build()
            .unwrap()
    }

    /// A loader for device 0 with small I/Os, so that little memory goes a long way.
    pub(crate) fn loader(&self) -> LoaderBuilder {
        Loader::builder(self.dataset())
            .device(Device::Cuda(0))
            .batch_size(16)
            .io_bytes(32 << 10)
            .queue_depth(8)
            .last_batch(LastBatch::Short)
    }

    /// Bytes of one sample over both columns.
    pub(crate) fn sample_bytes(&self) -> usize {
        self.record + 8
    }

    /// The bytes of a column, as a naive reader finds them.
    pub(crate) fn naive(&self, column: &str, samples: &[u64]) -> Vec<u8> {
        let (bytes, size) = if column == "data" { (&self.records, self.record) } else { (&self.numbers, 8) };
        samples.iter().flat_map(|&sample| &bytes[sample as usize * size..][..size]).copied().collect()
    }

    /// The samples of an epoch of a loader with short last batches.
    pub(crate) fn order(&self, shuffle: Shuffle, seed: u64, epoch: u64) -> Vec<u64> {
        let order = Order::new(self.samples, seed, epoch, shuffle);
        (0..self.samples).map(|position| order.sample(position).unwrap()).collect()
    }

    /// Looks at a batch by the blocking way, on each of its devices.
    #[track_caller]
    pub(crate) fn assert_batch(&self, batch: &Batch) {
        let mut bytes = Vec::new();
        for column in batch.columns() {
            for device in batch.devices() {
                column.on(device).unwrap().copy_to_host(&mut bytes).unwrap();
                let right = bytes == self.naive(column.name(), batch.samples());
                assert!(right, "column {} of batch {} on {device}", column.name(), batch.index());
            }
        }
    }

    /// An epoch of a loader for host memory.
    #[track_caller]
    pub(crate) fn assert_epoch_on_host(&self, loader: &mut Loader) {
        let mut samples = 0;
        for batch in loader.epoch(0).unwrap() {
            let batch = batch.unwrap();
            assert_eq!(batch.devices(), [Device::Host]);
            for column in batch.columns() {
                assert!(column.bytes().unwrap() == self.naive(column.name(), batch.samples()));
            }
            samples += batch.len() as u64;
        }
        assert_eq!(samples, self.samples);
    }

    /// Every batch of an epoch, looked at by the blocking way, in order.
    #[track_caller]
    pub(crate) fn assert_epoch(&self, loader: &mut Loader, shuffle: Shuffle, seed: u64, epoch: u64) {
        let mut samples = Vec::new();
        for batch in loader.epoch(epoch).unwrap() {
            let batch = batch.unwrap();
            self.assert_batch(&batch);
            samples.extend_from_slice(batch.samples());
        }
        assert_eq!(samples, self.order(shuffle, seed, epoch));
    }
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

/// `auto`, and the backends that work here.
pub(crate) fn backends() -> Vec<Backend> {
    let all = [Backend::Uring, Backend::Pread, Backend::PageCache, Backend::Auto];
    let works = |backend: &Backend| match backend.probe() {
        Ok(_) => true,
        Err(refused) => {
            eprintln!("left out: {refused}");
            assert!(std::env::var_os("CI").is_none(), "the checks promise to run every backend");
            false
        }
    };
    all.into_iter().filter(works).collect()
}

/// How a consumer uses a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// One stream, copies to device memory, and the batch dropped at once.
    DropAtOnce,
    /// One stream, copies to pinned host memory, and `release_after`.
    ReleaseAfter,
    /// A column on each of two streams.
    TwoStreams,
    /// The same stream asked to wait before each column.
    Twice,
    /// The null stream of the context.
    Default,
    /// A stream of another library's making.
    Adopted,
    /// Kept for a while, and dropped out of order.
    Hold,
    /// Dropped unseen.
    Ignore,
}

impl Use {
    pub(crate) const ALL: [Use; 8] = [
        Use::DropAtOnce,
        Use::ReleaseAfter,
        Use::TwoStreams,
        Use::Twice,
        Use::Default,
        Use::Adopted,
        Use::Hold,
        Use::Ignore,
    ];
}

/// Copies batches, on streams of its own and without waiting, into memory of its own, and looks at them much later: a
/// slot that is filled again too early, or lent too early, shows as wrong bytes.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) streams: Vec<Arc<CudaStream>>,
    raw: sys::CUstream,
    device: Device,
    /// As much memory on the device as on the host.
    there: u64,
    here: *mut u8,
    len: usize,
    used: usize,
    taken: Vec<Taken>,
    held: Vec<Batch>,
}

#[derive(Debug)]
struct Taken {
    column: String,
    samples: Vec<u64>,
    on_device: bool,
    at: usize,
    len: usize,
    batch: (u64, u64),
    how: Use,
}

// SAFETY: the pointers are to memory of the consumer's own, and used by one thread at a time.
unsafe impl Send for Consumer {}

impl Consumer {
    /// With room for `len` bytes between two checks.
    pub(crate) fn new(ordinal: u32, len: usize) -> Consumer {
        let context = CudaContext::new(ordinal as usize).unwrap();
        let streams: Vec<_> = (0..3).map(|_| context.new_stream().unwrap()).collect();
        context.bind_to_thread().unwrap();
        // SAFETY: the context is current; all of it is given back in `drop`.
        let (raw, there, here) = unsafe {
            (
                result::stream::create(result::stream::StreamKind::NonBlocking).unwrap(),
                result::malloc_sync(len).unwrap(),
                result::malloc_host(len, 0).unwrap().cast::<u8>(),
            )
        };
        Consumer {
            context,
            streams,
            raw,
            device: Device::Cuda(ordinal),
            there,
            here,
            len,
            used: 0,
            taken: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Queues the copies of a batch, and lets go of it as `how` says.
    pub(crate) fn take(&mut self, batch: Batch, how: Use) {
        let first = match how {
            Use::Default => self.context.default_stream(),
            // SAFETY: the stream lives until the consumer is dropped, which waits for it.
            Use::Adopted => unsafe { self.context.wrap_borrowed_stream(self.raw) },
            _ => Arc::clone(&self.streams[batch.index() as usize % 2]),
        };
        match how {
            Use::Ignore => return,
            Use::TwoStreams => {
                let second = Arc::clone(&self.streams[2]);
                batch.wait_on(&first).unwrap();
                batch.wait_on(&second).unwrap();
                for (index, column) in batch.columns().enumerate() {
                    self.copy(&batch, &column, if index == 0 { &first } else { &second }, index == 0, how);
                }
            }
            Use::Twice => {
                for column in batch.columns() {
                    batch.wait_on(&first).unwrap();
                    self.copy(&batch, &column, &first, false, how);
                }
            }
            _ => {
                batch.wait_on(&first).unwrap();
                for column in batch.columns() {
                    self.copy(&batch, &column, &first, how != Use::ReleaseAfter, how);
                }
            }
        }
        match how {
            Use::ReleaseAfter => batch.release_after(&first).unwrap(),
            Use::Hold => {
                self.held.push(batch);
                if self.held.len() == 2 {
                    drop(self.held.swap_remove(0));
                }
            }
            _ => drop(batch),
        }
    }

    /// Copies a column on the consumer's own device, to device or host memory.
    pub(crate) fn copy(
        &mut self,
        batch: &Batch,
        column: &ColumnView<'_>,
        stream: &CudaStream,
        on_device: bool,
        how: Use,
    ) {
        let (at, len) = (self.used, column.size_bytes());
        assert!(at + len <= self.len, "the consumer has no room: {at} + {len} > {}", self.len);
        self.used += len;
        let from = column.on(self.device).unwrap().device_ptr().unwrap();
        self.context.bind_to_thread().unwrap();
        let queued = if on_device {
            // SAFETY: both ranges are inside allocations of this context.
            unsafe { result::memcpy_dtod_async(self.there + at as u64, from, len, stream.cu_stream()) }
        } else {
            // SAFETY: the range is inside the consumer's pinned memory, which nobody looks at before `check`.
            let to = unsafe { std::slice::from_raw_parts_mut(self.here.add(at), len) };
            // SAFETY: the range on the device is inside the batch's slot.
            unsafe { result::memcpy_dtoh_async(to, from, stream.cu_stream()) }
        };
        queued.unwrap();
        self.taken.push(Taken {
            column: column.name().into(),
            samples: batch.samples().to_vec(),
            on_device,
            at,
            len,
            batch: (batch.epoch(), batch.index()),
            how,
        });
    }

    pub(crate) fn let_go(&mut self) {
        self.held.clear();
    }

    /// Waits for the streams and compares every copy with the files. What was held is let go.
    #[track_caller]
    pub(crate) fn check(&mut self, data: &Data) {
        self.held.clear();
        self.context.bind_to_thread().unwrap();
        for stream in &self.streams {
            stream.synchronize().unwrap();
        }
        self.context.default_stream().synchronize().unwrap();
        // SAFETY: the stream lives until `drop`.
        unsafe { result::stream::synchronize(self.raw) }.unwrap();
        let mut bytes = Vec::new();
        for taken in self.taken.drain(..) {
            bytes.clear();
            bytes.resize(taken.len, 0);
            if taken.on_device {
                // SAFETY: the range is inside the consumer's device memory, and every stream was waited for.
                unsafe { result::memcpy_dtoh_sync(&mut bytes, self.there + taken.at as u64) }.unwrap();
            } else {
                // SAFETY: the range is inside the consumer's pinned memory, and every stream was waited for.
                unsafe { self.here.add(taken.at).copy_to_nonoverlapping(bytes.as_mut_ptr(), taken.len) };
            }
            let right = data.naive(&taken.column, &taken.samples);
            if bytes != right {
                let (first, size) = (bytes.iter().zip(&right).position(|(a, b)| a != b), taken.len);
                panic!(
                    "wrong bytes: column {} of batch {:?} used by {:?}, from byte {first:?} of {size}",
                    taken.column, taken.batch, taken.how
                );
            }
        }
        self.used = 0;
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.held.clear();
        let _ = self.context.bind_to_thread();
        // SAFETY: all of it came from `new`, and is given back once; the streams that used it are waited for.
        unsafe {
            for stream in &self.streams {
                let _ = stream.synchronize();
            }
            let _ = self.context.default_stream().synchronize();
            let _ = result::stream::synchronize(self.raw);
            let _ = result::stream::destroy(self.raw);
            let _ = result::free_sync(self.there);
            let _ = result::free_host(self.here.cast());
        }
    }
}

/// What `cuda_emulator_stats` fills in.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) device_allocations: u64,
    pub(crate) device_bytes: u64,
    pub(crate) host_allocations: u64,
    pub(crate) host_allocated_bytes: u64,
    pub(crate) host_registrations: u64,
    pub(crate) host_registered_bytes: u64,
    pub(crate) streams: u64,
    pub(crate) events: u64,
    pub(crate) contexts: u64,
    pub(crate) copies_done: u64,
    pub(crate) bytes_host_to_device: u64,
    pub(crate) bytes_device_to_host: u64,
    pub(crate) bytes_device_to_device: u64,
    pub(crate) bytes_device_to_peer: u64,
    pub(crate) bytes_host_to_host: u64,
    pub(crate) misuses: u64,
}

fn emulator_symbol(name: &std::ffi::CStr) -> *mut std::ffi::c_void {
    // SAFETY: the emulator is a library without load-time code; it is never closed.
    let symbol =
        unsafe { libc::dlsym(libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!symbol.is_null(), "{name:?} is not there");
    symbol
}

/// What is alive in the emulated driver, and what it has copied.
pub(crate) fn stats() -> Stats {
    let mut stats = Stats::default();
    // SAFETY: the function has this type, and `Stats` its layout, as the emulator's README says.
    let code = unsafe {
        let ask: unsafe extern "C" fn(*mut Stats) -> i32 =
            std::mem::transmute(emulator_symbol(c"cuda_emulator_stats"));
        ask(&mut stats)
    };
    assert_eq!(code, 0);
    stats
}

/// How often an entry point of the driver was called.
pub(crate) fn calls(name: &std::ffi::CStr) -> u64 {
    // SAFETY: the function has this type, as the emulator's README says.
    unsafe {
        let ask: unsafe extern "C" fn(*const std::ffi::c_char) -> u64 =
            std::mem::transmute(emulator_symbol(c"cuda_emulator_calls"));
        ask(name.as_ptr())
    }
}

/// This thread's current context; null for none.
pub(crate) fn current() -> sys::CUcontext {
    result::ctx::get_current().unwrap().unwrap_or(std::ptr::null_mut())
}

/// A context of its own on the device of another. (Which of the driver's functions for that cudarc has depends on the
/// machine that it was built on.)
pub(crate) fn second_context(primary: &CudaContext) -> Arc<CudaContext> {
    let mut raw = std::ptr::null_mut();
    // SAFETY: the function has this type in cuda.h, and `raw` lives through the call; cudarc gets the context for good.
    unsafe {
        let create: unsafe extern "C" fn(*mut sys::CUcontext, u32, i32) -> i32 =
            std::mem::transmute(emulator_symbol(c"cuCtxCreate_v2"));
        assert_eq!(create(&mut raw, 0, primary.cu_device()), 0);
        CudaContext::from_raw_context(primary.ordinal(), primary.cu_device(), raw).unwrap()
    }
}

/// Small numbers without a pattern, the same for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}
