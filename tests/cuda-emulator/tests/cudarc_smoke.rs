//! cudarc, unchanged, on the emulator.

mod common;

use common::in_child;
use cudarc::driver::{CudaContext, DevicePtr, sys};

#[test]
fn cudarc_makes_contexts_streams_copies_pinned_memory_and_events() {
    for delay in ["none", "random:1:500", "adversarial"] {
        let environment = [("CUDA_EMULATOR_DELAY", delay), ("CUDA_EMULATOR_LEAKS", "1")];
        in_child("cudarc_makes_contexts_streams_copies_pinned_memory_and_events", &environment, body).clean();
    }
}

fn body() {
    // SAFETY: only looks whether the library can be opened.
    assert!(unsafe { sys::is_culib_present() });
    let context = CudaContext::new(0).unwrap();
    assert!(context.name().unwrap().contains("no GPU"));
    let stream = context.new_stream().unwrap();
    let other = context.new_stream().unwrap();

    let data: Vec<u32> = (0..100_000).collect();
    let there = stream.clone_htod(&data).unwrap();
    assert_eq!(stream.clone_dtoh(&there).unwrap(), data);

    // SAFETY: filled before it is read.
    let mut pinned = unsafe { context.alloc_pinned::<u8>(4096) }.unwrap();
    pinned.as_mut_slice().unwrap().fill(7);
    let mut target = stream.alloc_zeros::<u8>(4096).unwrap();
    stream.memcpy_htod(&pinned, &mut target).unwrap();
    let event = stream.record_event(None).unwrap();
    other.wait(&event).unwrap();
    let mut copy = other.alloc_zeros::<u8>(4096).unwrap();
    other.memcpy_dtod(&target, &mut copy).unwrap();
    event.synchronize().unwrap();
    assert!(event.is_complete());
    assert_eq!(other.clone_dtoh(&copy).unwrap(), vec![7; 4096]);

    let start = stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).unwrap();
    stream.memset_zeros(&mut target).unwrap();
    let end = stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).unwrap();
    assert!(start.elapsed_ms(&end).unwrap() >= 0.0);
    let (address, _guard) = target.device_ptr(&stream);
    assert_ne!(address, 0);

    // SAFETY: the memory is freed below, once, after its only use has been waited for.
    let plain = unsafe { cudarc::driver::result::malloc_sync(1 << 20) }.unwrap();
    // SAFETY: a megabyte of device memory, allocated above.
    unsafe { cudarc::driver::result::memset_d8_sync(plain, 9, 1 << 20) }.unwrap();
    context.synchronize().unwrap();
    // SAFETY: allocated above and not used any more.
    unsafe { cudarc::driver::result::free_sync(plain) }.unwrap();
    let (free, total) = context.mem_get_info().unwrap();
    assert!(free < total);
}
