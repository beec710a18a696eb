//! Once the first batches have come, nothing is allocated for a batch or a read any more: not by the threads that read,
//! not by `next`, and not by letting go of a batch.

mod cuda_common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cuda_common::{Data, child};
use gpufeed::cudarc::driver::{CudaContext, result};
use gpufeed::{Backend, Device, Shuffle};

/// Counts allocations of the whole process while it is armed. (The emulated driver has an allocator of its own.)
struct Counting;

static ARMED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
static FIRST_WAITS: AtomicU64 = AtomicU64::new(0);

/// Where what is used allocates once for its first use, which may be late, since a thread that always finds something to
/// do has not waited yet: crossbeam for a thread that waits the first time and for the first waiter at a channel, and
/// cudarc to look up a function of the driver, like `cuEventSynchronize`, when it is first called.
const FIRST_WAIT: [&str; 3] = [
    "crossbeam_channel::waker::Waker::register",
    "crossbeam_channel::context::Context::new",
    "cudarc::driver::sys::load",
];

/// As many threads read as there may be reads in flight, and two more wait for them, for each other and for the driver.
const MOST_FIRST_WAITS: u64 = 2 * (8 + 2) + 4;

thread_local! {
    /// This thread is telling of an allocation, which allocates too.
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

impl Counting {
    fn count() {
        if !ARMED.load(Ordering::Relaxed) || TELLING.get() {
            return;
        }
        TELLING.set(true);
        if COUNT.load(Ordering::Relaxed) + FIRST_WAITS.load(Ordering::Relaxed) < 40 {
            let trace = std::backtrace::Backtrace::force_capture().to_string();
            if FIRST_WAIT.iter().any(|place| trace.contains(place)) {
                FIRST_WAITS.fetch_add(1, Ordering::Relaxed);
            } else if COUNT.fetch_add(1, Ordering::Relaxed) < 3 {
                // Says where, for whoever has to find it.
                eprintln!("allocation in thread {:?}:\n{trace}", std::thread::current().name());
            }
        } else {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
        TELLING.set(false);
    }
}

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::count();
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Counting::count();
        // SAFETY: as the caller vouches.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts the allocations of two epochs, after a first one: from when every shard has been opened until the reading
/// thread may come to the epoch's end.
fn allocations(data: &Data, backend: Backend, device: Device, shuffle: Shuffle) -> u64 {
    let builder = data.loader().backend(backend).device(device).shuffle(shuffle).seed(1);
    let mut loader = builder.prefetch(3).batch_size(16).build().unwrap();
    let stream = (device != Device::Host).then(|| CudaContext::new(0).unwrap().new_stream().unwrap());
    let (warm, last) = (40, loader.batches_per_epoch() - 8);
    let mut sum = 0u64;
    COUNT.store(0, Ordering::SeqCst);
    FIRST_WAITS.store(0, Ordering::SeqCst);
    for epoch in 0..3 {
        for batch in loader.epoch(epoch).unwrap() {
            let batch = batch.unwrap();
            if epoch > 0 && batch.index() == warm {
                ARMED.store(true, Ordering::SeqCst);
            }
            for column in batch.columns() {
                match &stream {
                    Some(stream) => {
                        batch.wait_on(stream).unwrap();
                        sum += column.device_ptr().unwrap() % 2;
                    }
                    None => sum += u64::from(column.bytes().unwrap()[0]),
                }
            }
            if batch.index() == last {
                ARMED.store(false, Ordering::SeqCst);
            }
        }
    }
    drop(stream);
    assert!(sum < u64::MAX);
    assert!(FIRST_WAITS.load(Ordering::SeqCst) <= MOST_FIRST_WAITS);
    COUNT.load(Ordering::SeqCst)
}

#[test]
fn nothing_is_allocated_per_batch_or_read() {
    for delay in ["none", "random:31:100"] {
        child!(&[("CUDA_EMULATOR_DELAY", delay)], || {
            let data = Data::new(700, 1600);
            let mut wrong = Vec::new();
            for device in [Device::Host, Device::Cuda(0)] {
                for backend in [Backend::Uring, Backend::Pread, Backend::PageCache, Backend::Auto] {
                    for shuffle in [Shuffle::None, Shuffle::Full] {
                        if backend.probe().is_err() {
                            continue;
                        }
                        let count = allocations(&data, backend, device, shuffle);
                        if count > 0 {
                            wrong.push(format!("{device} {backend} {shuffle}: {count}"));
                        }
                    }
                }
            }
            assert!(wrong.is_empty(), "allocations: {wrong:#?}");
            assert_eq!(result::device::get_count().unwrap(), 1);
        });
    }
}

#[test]
fn nothing_is_allocated_for_a_batch_on_several_devices() {
    child!(&[("CUDA_EMULATOR_DEVICES", "2")], || {
        let data = Data::new(700, 800);
        let builder = data.loader().devices(&[Device::Cuda(0), Device::Cuda(1)]).prefetch(3);
        let mut loader = builder.build().unwrap();
        let streams = [0, 1].map(|ordinal| CudaContext::new(ordinal).unwrap().new_stream().unwrap());
        COUNT.store(0, Ordering::SeqCst);
        for batch in loader.epoch(0).unwrap() {
            let batch = batch.unwrap();
            ARMED.store((24..40).contains(&batch.index()), Ordering::SeqCst);
            streams.iter().for_each(|stream| batch.wait_on(stream).unwrap());
        }
        assert_eq!(COUNT.load(Ordering::SeqCst), 0);
        assert!(FIRST_WAITS.load(Ordering::SeqCst) <= MOST_FIRST_WAITS);
    });
}

#[test]
fn the_counter_counts() {
    // Not while the other tests' children count: they are processes of their own.
    child!(&[], || {
        ARMED.store(true, Ordering::SeqCst);
        drop(std::hint::black_box(vec![1u8; 100]));
        ARMED.store(false, Ordering::SeqCst);
        assert!(COUNT.load(Ordering::SeqCst) >= 1);
    });
}
