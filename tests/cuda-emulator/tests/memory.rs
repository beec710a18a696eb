//! Memory: what it looks like, who may touch it, and what the driver says of an address.

mod common;

use std::ffi::c_void;

use common::{
    Cuda, HELD, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, NOT_FOUND,
    NOT_SUPPORTED,
};

const LEN: usize = 4096;

#[test]
fn the_host_cannot_read_device_memory() {
    let outcome = child!(&[], || {
        let pointer = Cuda::ready().allocate(LEN);
        // SAFETY: none: that this faults is what is tested.
        let byte = unsafe { (pointer as *const u8).read_volatile() };
        println!("the host has read {byte}");
    });
    assert_eq!(outcome.signal, Some(libc::SIGSEGV), "{outcome:?}");
}

#[test]
fn the_host_cannot_write_device_memory() {
    let outcome = child!(&[], || {
        let pointer = Cuda::ready().allocate(8 << 20);
        // SAFETY: none: that this faults is what is tested.
        unsafe { (pointer as *mut u8).write_volatile(1) };
    });
    assert_eq!(outcome.signal, Some(libc::SIGSEGV), "{outcome:?}");
}

#[test]
fn the_kernel_refuses_device_memory() {
    child!(&[], || {
        let pointer = Cuda::ready().allocate(LEN);
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: the kernel checks the address, and refuses it.
        let read = unsafe { libc::pread(descriptor, pointer as *mut c_void, 16, 0) };
        assert_eq!(read, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
    })
    .clean();
}

#[test]
fn freed_pinned_memory_faults() {
    let outcome = child!(&[], || {
        let cuda = Cuda::ready();
        let memory = cuda.pinned(LEN, 1);
        ok!(cuda.cuMemFreeHost(memory.as_ptr() as usize));
        // SAFETY: none: that this faults is what is tested.
        unsafe { memory.as_ptr().read_volatile() };
    });
    assert_eq!(outcome.signal, Some(libc::SIGSEGV), "{outcome:?}");
}

#[test]
fn handles_are_no_addresses() {
    let outcome = child!(&[], || {
        let stream = Cuda::ready().stream();
        // SAFETY: none: that this faults is what is tested.
        unsafe { (stream as *const u8).read_volatile() };
    });
    assert_eq!(outcome.signal, Some(libc::SIGSEGV), "{outcome:?}");
}

#[test]
fn fresh_memory_is_not_zero_and_freed_addresses_do_not_come_back() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..200 {
            let pointer = cuda.allocate(LEN);
            assert_eq!(cuda.read(pointer, LEN), [0xA5; LEN]);
            assert!(seen.insert(pointer), "an address was given out twice");
            ok!(cuda.cuMemFree_v2(pointer));
        }
    })
    .clean();
}

#[test]
fn small_allocations_are_aligned_to_512_bytes_and_large_ones_to_2_mib() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let small: Vec<u64> = (0..8).map(|_| cuda.allocate(100)).collect();
        assert!(small.iter().all(|pointer| pointer % 512 == 0));
        assert!(small.iter().any(|pointer| pointer % 4096 != 0), "callers must not count on pages");
        assert_eq!(cuda.allocate(3 << 20) % (2 << 20), 0);
    })
    .clean();
}

#[test]
fn sizes_and_flags_are_checked() {
    child!(&[], || {
        let cuda = Cuda::ready();
        assert_eq!(cuda.cuMemAlloc_v2(&mut 0, 0), INVALID_VALUE);
        assert_eq!(cuda.cuMemAlloc_v2(std::ptr::null_mut(), 1), INVALID_VALUE);
        assert_eq!(cuda.cuMemAlloc_v2(&mut 0, usize::MAX), common::OUT_OF_MEMORY);
        assert_eq!(cuda.cuMemHostAlloc(&mut 0, 0, 0), INVALID_VALUE);
        assert_eq!(cuda.cuMemHostAlloc(&mut 0, 1, 16), INVALID_VALUE);
        assert_eq!(cuda.cuMemHostRegister_v2(0, LEN, 0), INVALID_VALUE);
        let pages = vec![0_u8; 2 * LEN];
        let start = (pages.as_ptr() as usize).next_multiple_of(LEN);
        assert_eq!(cuda.cuMemHostRegister_v2(start, 0, 0), INVALID_VALUE);
        assert_eq!(cuda.cuMemHostRegister_v2(start, LEN, 32), INVALID_VALUE);
        assert_eq!(cuda.cuMemHostRegister_v2(start, LEN, 8), NOT_SUPPORTED, "read-only registration");
        assert_eq!(
            cuda.cuMemsetD32_v2(cuda.allocate(8) + 2, 1, 1),
            INVALID_VALUE,
            "not aligned to the value"
        );
        let empty = cuda.allocate(8);
        ok!(cuda.cuMemcpyHtoD_v2(empty, start, 0));
    })
    .clean();
}

#[test]
fn a_page_is_registered_once() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let memory = vec![0_u8; 6 * LEN];
        let start = (memory.as_ptr() as usize).next_multiple_of(LEN);
        ok!(cuda.cuMemHostRegister_v2(start, 2 * LEN, 0));
        assert_eq!(cuda.cuMemHostRegister_v2(start, 2 * LEN, 0), HOST_MEMORY_ALREADY_REGISTERED);
        assert_eq!(cuda.cuMemHostRegister_v2(start + LEN, 2 * LEN, 0), HOST_MEMORY_ALREADY_REGISTERED);
        ok!(cuda.cuMemHostRegister_v2(start + 2 * LEN, LEN, 0));
        let driver_owned = cuda.pinned(LEN, 0).as_ptr() as usize;
        assert_eq!(cuda.cuMemHostRegister_v2(driver_owned, LEN, 0), HOST_MEMORY_ALREADY_REGISTERED);
        ok!(cuda.cuMemHostUnregister(start));
        ok!(cuda.cuMemHostRegister_v2(start, 2 * LEN, 0));
        assert_eq!(cuda.stats().host_registered_bytes, 3 * LEN as u64);
    })
    .clean();
}

#[test]
fn unregistering_what_is_not_registered_is_an_error() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let memory = vec![0_u8; 4 * LEN];
        let start = (memory.as_ptr() as usize).next_multiple_of(LEN);
        assert_eq!(cuda.cuMemHostUnregister(start), HOST_MEMORY_NOT_REGISTERED);
        ok!(cuda.cuMemHostRegister_v2(start, 2 * LEN, 0));
        assert_eq!(cuda.cuMemHostUnregister(start + 16), INVALID_VALUE);
        ok!(cuda.cuMemHostUnregister(start));
        assert_eq!(cuda.cuMemHostUnregister(start), HOST_MEMORY_NOT_REGISTERED);
    })
    .reported(&[
        ("not-registered", "cuMemHostUnregister"),
        ("wrong-free", "cuMemHostUnregister"),
        ("not-registered", "cuMemHostUnregister"),
    ]);
}

#[test]
fn pinned_memory_has_one_address_for_host_and_device() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let host = cuda.pinned(LEN, 3);
        let (address, mut device) = (host.as_ptr() as usize, 0);
        ok!(cuda.cuMemHostGetDevicePointer_v2(&mut device, address + 5, 0));
        assert_eq!(device, address as u64 + 5);
        let target = cuda.allocate(LEN);
        ok!(cuda.cuMemcpyDtoD_v2(target, address as u64, LEN));
        ok!(cuda.cuCtxSynchronize());
        assert_eq!(cuda.peek(target), 3);
        let mut flags = 0;
        ok!(cuda.cuMemHostGetFlags(&mut flags, address));
        assert_eq!(flags, 2, "mapped, though not asked for");
        let pageable = [0_u8; 16];
        assert_eq!(
            cuda.cuMemHostGetDevicePointer_v2(&mut device, pageable.as_ptr() as usize, 0),
            INVALID_VALUE
        );
    })
    .clean();
}

/// One attribute in the type that it has.
fn attribute<T: Default>(cuda: &Cuda, number: u32, pointer: u64) -> Result<T, i32> {
    let mut value = T::default();
    match cuda.cuPointerGetAttribute(std::ptr::from_mut(&mut value).cast(), number, pointer) {
        0 => Ok(value),
        code => Err(code),
    }
}

#[test]
fn the_driver_describes_the_pointers_that_it_knows() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let mut context = 0;
        ok!(cuda.cuCtxGetCurrent(&mut context));
        let device = cuda.allocate(1000);
        let (mut base, mut size) = (0, 0);
        ok!(cuda.cuMemGetAddressRange_v2(&mut base, &mut size, device + 999));
        assert_eq!((base, size), (device, 1000));
        assert_eq!(cuda.cuMemGetAddressRange_v2(&mut base, &mut size, device + 1000), NOT_FOUND);
        assert_eq!(attribute(&cuda, 1, device + 1), Ok(context));
        assert_eq!(attribute(&cuda, 2, device + 1), Ok(2_u32), "device memory");
        assert_eq!(attribute(&cuda, 3, device + 1), Ok(device + 1));
        assert_eq!(attribute::<u64>(&cuda, 4, device), Err(INVALID_VALUE), "no host pointer");
        assert_eq!(attribute(&cuda, 9, device), Ok(0_i32));
        assert_eq!(attribute(&cuda, 11, device + 9), Ok(device));
        assert_eq!(attribute(&cuda, 12, device + 9), Ok(1000_usize));
        let host = cuda.pinned(LEN, 0).as_ptr() as u64;
        assert_eq!(attribute(&cuda, 2, host), Ok(1_u32), "host memory");
        assert_eq!(attribute(&cuda, 4, host + 1), Ok(host + 1));
        assert_eq!(attribute::<u32>(&cuda, 2, 0x1000), Err(INVALID_VALUE));
        assert_eq!(attribute::<u32>(&cuda, 99, device), Err(INVALID_VALUE));
        // Two allocations never have the same id.
        let ids: Vec<u64> = [device, host].iter().map(|at| attribute(&cuda, 7, *at).unwrap()).collect();
        assert_ne!(ids[0], ids[1]);
    })
    .clean();
}

#[test]
fn many_attributes_at_once_are_null_for_an_unknown_pointer() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let (mut kind, mut ordinal, mut device) = (9_u32, 9_i32, 9_u64);
        let kinds = [2, 9, 3];
        let data: [*mut c_void; 3] =
            [(&raw mut kind).cast(), (&raw mut ordinal).cast(), (&raw mut device).cast()];
        ok!(cuda.cuPointerGetAttributes(3, kinds.as_ptr(), data.as_ptr(), 0x1000));
        assert_eq!((kind, ordinal, device), (0, -2, 0));
        let pointer = cuda.allocate(64);
        ok!(cuda.cuPointerGetAttributes(3, kinds.as_ptr(), data.as_ptr(), pointer));
        assert_eq!((kind, ordinal, device), (2, 0, pointer));
    })
    .clean();
}

#[test]
fn stream_ordered_memory_lives_and_ends_in_stream_order() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (stream, other, event) = (cuda.stream(), cuda.stream(), cuda.event());
        let mut pointer = 0;
        ok!(cuda.cuMemAllocAsync(&mut pointer, LEN, stream));
        ok!(cuda.cuMemsetD8Async(pointer, 1, LEN, stream));
        ok!(cuda.cuEventRecord(event, stream));
        ok!(cuda.cuStreamWaitEvent(other, event, 0));
        let host = cuda.pinned(LEN, 0);
        ok!(cuda.cuMemcpyDtoHAsync_v2(host.as_ptr() as usize, pointer, LEN, other));
        ok!(cuda.cuEventRecord(event, other));
        ok!(cuda.cuStreamWaitEvent(stream, event, 0));
        ok!(cuda.cuMemFreeAsync(pointer, stream));
        let (mut before, mut after, mut total) = (0, 0, 0);
        ok!(cuda.cuMemGetInfo_v2(&mut before, &mut total));
        ok!(cuda.cuStreamSynchronize(stream));
        ok!(cuda.cuMemGetInfo_v2(&mut after, &mut total));
        assert_eq!(after - before, LEN, "the bytes are free once the stream has come to the free");
        assert_eq!(host, [1; LEN]);
    })
    .clean();
}

#[test]
fn what_is_alive_and_what_was_copied_is_counted() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let pointer = cuda.allocate(100);
        let stream = cuda.stream();
        let host = cuda.pinned(100, 1).as_ptr() as usize;
        ok!(cuda.cuMemcpyHtoDAsync_v2(pointer, host, 60, stream));
        ok!(cuda.cuMemcpyDtoHAsync_v2(host, pointer, 40, stream));
        ok!(cuda.cuStreamSynchronize(stream));
        let stats = cuda.stats();
        assert_eq!((stats.device_allocations, stats.device_bytes), (1, 100));
        assert_eq!((stats.host_allocations, stats.host_allocated_bytes), (1, 100));
        assert_eq!((stats.streams, stats.contexts, stats.copies_done), (1, 1, 2));
        assert_eq!((stats.bytes_host_to_device, stats.bytes_device_to_host), (60, 40));
        assert_eq!(cuda.calls("cuMemcpyHtoDAsync_v2"), 1);
        assert_eq!(cuda.calls("cuMemFree_v2"), 0);
    })
    .clean();
}
