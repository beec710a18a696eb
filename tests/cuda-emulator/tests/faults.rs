//! Faults on request.

mod common;

use common::{
    Cuda, ECC_UNCORRECTABLE, HOST_MEMORY_ALREADY_REGISTERED, INVALID_VALUE, LAUNCH_FAILED, NO_DEVICE,
    NOT_INITIALIZED, OUT_OF_MEMORY, UNKNOWN,
};

const LEN: usize = 4096;

#[test]
fn the_driver_may_refuse_to_initialise() {
    child!(&[("CUDA_EMULATOR_INIT_ERROR", "803")], || {
        let cuda = Cuda::open();
        assert_eq!(cuda.cuInit(0), 803);
        assert_eq!(cuda.cuDeviceGetCount(&mut 0), NOT_INITIALIZED);
    })
    .clean();
}

#[test]
fn there_may_be_no_device() {
    child!(&[("CUDA_EMULATOR_DEVICES", "0")], || {
        assert_eq!(Cuda::open().cuInit(0), NO_DEVICE);
    })
    .clean();
}

#[test]
fn the_driver_may_be_of_any_version() {
    child!(&[("CUDA_EMULATOR_DRIVER_VERSION", "12020")], || {
        let mut version = 0;
        ok!(Cuda::open().cuDriverGetVersion(&mut version));
        assert_eq!(version, 12_020);
    })
    .clean();
}

#[test]
fn device_memory_ends_at_its_size() {
    child!(&[("CUDA_EMULATOR_MEMORY", "1048576")], || {
        let cuda = Cuda::ready();
        let mut pointer = 0;
        assert_eq!(cuda.cuMemAlloc_v2(&mut pointer, (1 << 20) + 1), OUT_OF_MEMORY);
        ok!(cuda.cuMemAlloc_v2(&mut pointer, 1 << 20));
        let (mut free, mut total) = (1, 0);
        ok!(cuda.cuMemGetInfo_v2(&mut free, &mut total));
        assert_eq!((free, total), (0, 1 << 20));
        assert_eq!(cuda.cuMemAlloc_v2(&mut 0, 1), OUT_OF_MEMORY);
        ok!(cuda.cuMemFree_v2(pointer));
        ok!(cuda.cuMemAlloc_v2(&mut pointer, 1 << 20));
    })
    .clean();
}

#[test]
fn allocation_fails_after_so_many_bytes() {
    child!(&[("CUDA_EMULATOR_FAIL_ALLOC_AFTER", "10000")], || {
        let cuda = Cuda::ready();
        let pointer = cuda.allocate(6000);
        ok!(cuda.cuMemFree_v2(pointer));
        assert_eq!(cuda.cuMemAlloc_v2(&mut 0, 6000), OUT_OF_MEMORY, "what was freed counts too");
        cuda.allocate(4000);
    })
    .clean();
}

#[test]
fn pinned_allocation_fails_after_so_many_bytes() {
    child!(&[("CUDA_EMULATOR_FAIL_HOST_ALLOC_AFTER", "4096:801")], || {
        let cuda = Cuda::ready();
        cuda.pinned(LEN, 0);
        assert_eq!(cuda.cuMemHostAlloc(&mut 0, 1, 0), 801);
    })
    .clean();
}

#[test]
fn registration_may_always_fail() {
    child!(&[("CUDA_EMULATOR_FAIL_REGISTER_AFTER", "0")], || {
        let cuda = Cuda::ready();
        let memory = vec![0_u8; 4 * LEN];
        let start = (memory.as_ptr() as usize).next_multiple_of(LEN);
        assert_eq!(cuda.cuMemHostRegister_v2(start, LEN, 0), OUT_OF_MEMORY);
        assert_eq!(cuda.cuMemHostRegister_v2(start, LEN, 0), OUT_OF_MEMORY);
        assert_eq!(cuda.stats().host_registrations, 0);
    })
    .clean();
}

#[test]
fn registration_fails_once_its_bytes_are_used_up() {
    child!(&[("CUDA_EMULATOR_FAIL_REGISTER_AFTER", "4096:801")], || {
        let cuda = Cuda::ready();
        let memory = vec![0_u8; 4 * LEN];
        let start = (memory.as_ptr() as usize).next_multiple_of(LEN);
        ok!(cuda.cuMemHostRegister_v2(start, LEN, 0));
        assert_eq!(cuda.cuMemHostRegister_v2(start, LEN, 0), HOST_MEMORY_ALREADY_REGISTERED);
        assert_eq!(cuda.cuMemHostRegister_v2(start + LEN, LEN, 0), 801);
        ok!(cuda.cuMemHostUnregister(start));
    })
    .clean();
}

#[test]
fn one_copy_fails_in_its_call_and_the_next_goes_on() {
    child!(&[("CUDA_EMULATOR_FAIL_COPY", "2")], || {
        let cuda = Cuda::ready();
        let (stream, target) = (cuda.stream(), cuda.allocate(LEN));
        let host = cuda.pinned(LEN, 1).as_ptr() as usize;
        let copy = || cuda.cuMemcpyHtoDAsync_v2(target, host, LEN, stream);
        assert_eq!([copy(), copy(), copy()], [0, UNKNOWN, 0]);
        ok!(cuda.cuStreamSynchronize(stream));
        assert_eq!(cuda.stats().copies_done, 2);
    })
    .clean();
}

#[test]
fn a_copy_that_fails_on_its_stream_leaves_the_context_broken() {
    child!(&[("CUDA_EMULATOR_FAIL_COPY_LATE", "1")], || {
        let cuda = Cuda::ready();
        let (stream, target) = (cuda.stream(), cuda.allocate(LEN));
        let host = cuda.pinned(LEN, 1).as_ptr() as usize;
        ok!(cuda.cuMemcpyHtoDAsync_v2(target, host, LEN, stream));
        assert_eq!(cuda.cuStreamSynchronize(stream), LAUNCH_FAILED);
        assert_eq!(cuda.peek(target), 0xA5, "the bytes never came");
        assert_eq!(cuda.cuMemAlloc_v2(&mut 0, 1), LAUNCH_FAILED);
        assert_eq!(cuda.cuMemcpyHtoDAsync_v2(target, host, LEN, stream), LAUNCH_FAILED);
        assert_eq!(cuda.cuCtxSynchronize(), LAUNCH_FAILED);
    })
    .clean();
}

#[test]
fn a_lost_device_answers_every_later_call_with_the_same_error() {
    let environment = [("CUDA_EMULATOR_LOSE_DEVICE_AFTER", "2"), ("CUDA_EMULATOR_DEVICES", "2")];
    child!(&environment, || {
        let cuda = Cuda::ready();
        let (stream, event, target) = (cuda.stream(), cuda.event(), cuda.allocate(LEN));
        ok!(cuda.cuMemsetD8Async(target, 1, LEN, stream));
        ok!(cuda.cuMemsetD8Async(target, 2, LEN, stream));
        ok!(cuda.cuEventRecord(event, stream));
        ok!(cuda.cuStreamSynchronize(stream));
        assert_eq!(cuda.cuMemsetD8Async(target, 3, LEN, stream), ECC_UNCORRECTABLE);
        assert_eq!(cuda.cuStreamSynchronize(stream), ECC_UNCORRECTABLE);
        assert_eq!(cuda.cuStreamQuery(stream), ECC_UNCORRECTABLE);
        assert_eq!(cuda.cuEventQuery(event), ECC_UNCORRECTABLE);
        assert_eq!(cuda.cuMemFree_v2(target), ECC_UNCORRECTABLE);
        assert_eq!(cuda.cuCtxSynchronize(), ECC_UNCORRECTABLE);
        assert_eq!(cuda.peek(target), 2);
        // The other device lives on.
        cuda.bind(1);
        cuda.allocate(LEN);
    })
    .clean();
}

#[test]
fn a_setting_that_is_not_understood_ends_the_process() {
    let outcome = child!(&[("CUDA_EMULATOR_DELAY", "sometimes")], || {
        Cuda::open().cuInit(0);
    });
    assert_eq!(outcome.signal, Some(libc::SIGABRT), "{outcome:?}");
    assert!(outcome.output.contains("CUDA_EMULATOR_DELAY=sometimes: expected"), "{outcome:?}");
}

#[test]
fn the_process_may_end_at_the_first_report() {
    let outcome = child!(&[("CUDA_EMULATOR_ABORT", "1")], || {
        assert_eq!(Cuda::ready().cuMemFree_v2(4096), INVALID_VALUE);
        unreachable!("the report comes before the error");
    });
    assert_eq!(outcome.signal, Some(libc::SIGABRT), "{outcome:?}");
    assert_eq!(outcome.reports.len(), 1, "{outcome:?}");
}
