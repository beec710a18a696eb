//! What callers must not do: each an error where one is documented, and a report.

mod common;

use common::{CONTEXT_IS_DESTROYED, Cuda, HELD, INVALID_HANDLE, INVALID_VALUE, NOT_INITIALIZED};

const LEN: usize = 4096;

#[test]
fn use_after_free() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let (pointer, other, stream) = (cuda.allocate(LEN), cuda.allocate(LEN), cuda.stream());
        ok!(cuda.cuMemFree_v2(pointer));
        let host = cuda.pinned(LEN, 0).as_ptr() as usize;
        assert_eq!(cuda.cuMemcpyHtoDAsync_v2(pointer + 8, host, 8, stream), INVALID_VALUE);
        assert_eq!(cuda.cuMemcpyDtoH_v2(host, pointer, 8), INVALID_VALUE);
        assert_eq!(cuda.cuMemsetD8_v2(pointer, 0, 8), INVALID_VALUE);
        ok!(cuda.cuMemFreeHost(host));
        assert_eq!(cuda.cuMemcpyHtoDAsync_v2(other, host, 8, stream), INVALID_VALUE);
    })
    .reported(&[
        ("use-after-free", "cuMemcpyHtoDAsync_v2"),
        ("use-after-free", "cuMemcpyDtoH_v2"),
        ("use-after-free", "cuMemsetD8_v2"),
        ("use-after-free", "cuMemcpyHtoDAsync_v2"),
    ]);
}

#[test]
fn freeing_twice_or_in_the_wrong_way() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let pointer = cuda.allocate(LEN);
        let host = cuda.pinned(LEN, 0).as_ptr() as usize;
        assert_eq!(cuda.cuMemFree_v2(pointer + 256), INVALID_VALUE);
        assert_eq!(cuda.cuMemFree_v2(host as u64), INVALID_VALUE);
        assert_eq!(cuda.cuMemFreeAsync(pointer, 0), INVALID_VALUE);
        assert_eq!(cuda.cuMemHostUnregister(host), INVALID_VALUE);
        ok!(cuda.cuMemFree_v2(pointer));
        assert_eq!(cuda.cuMemFree_v2(pointer), INVALID_VALUE);
        ok!(cuda.cuMemFreeHost(host));
        assert_eq!(cuda.cuMemFreeHost(host), INVALID_VALUE);
        assert_eq!(cuda.cuMemFree_v2(0x1234_5000), INVALID_VALUE);
    })
    .reported(&[
        ("wrong-free", "cuMemFree_v2"),
        ("wrong-free", "cuMemFree_v2"),
        ("wrong-free", "cuMemFreeAsync"),
        ("wrong-free", "cuMemHostUnregister"),
        ("double-free", "cuMemFree_v2"),
        ("double-free", "cuMemFreeHost"),
        ("unknown-pointer", "cuMemFree_v2"),
    ]);
}

#[test]
fn freeing_what_a_stream_still_uses() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (pointer, stream) = (cuda.allocate(LEN), cuda.stream());
        let host = cuda.pinned(LEN, 1).as_ptr() as usize;
        let memory = vec![2_u8; 3 * LEN];
        let registered = (memory.as_ptr() as usize).next_multiple_of(LEN);
        ok!(cuda.cuMemHostRegister_v2(registered, LEN, 0));
        ok!(cuda.cuMemcpyHtoDAsync_v2(pointer, registered, LEN, stream));
        ok!(cuda.cuMemHostUnregister(registered));
        ok!(cuda.cuMemcpyHtoDAsync_v2(pointer, host, LEN, stream));
        ok!(cuda.cuMemFreeHost(host));
        ok!(cuda.cuMemsetD8Async(pointer, 1, LEN, stream));
        ok!(cuda.cuMemFree_v2(pointer));
        ok!(cuda.cuStreamSynchronize(stream));
    })
    .reported(&[
        ("free-in-flight", "cuMemHostUnregister"),
        ("free-in-flight", "cuMemFreeHost"),
        ("free-in-flight", "cuMemFree_v2"),
    ]);
}

#[test]
fn freeing_in_order_is_fine() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (pointer, stream) = (cuda.allocate(LEN), cuda.stream());
        let host = cuda.pinned(LEN, 1).as_ptr() as usize;
        ok!(cuda.cuMemcpyHtoDAsync_v2(pointer, host, LEN, stream));
        ok!(cuda.cuStreamSynchronize(stream));
        ok!(cuda.cuMemFreeHost(host));
        ok!(cuda.cuMemFree_v2(pointer));
    })
    .clean();
}

#[test]
fn freeing_on_a_stream_what_another_stream_still_uses() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (stream, other) = (cuda.stream(), cuda.stream());
        let mut pointer = 0;
        ok!(cuda.cuMemAllocAsync(&mut pointer, LEN, stream));
        ok!(cuda.cuStreamSynchronize(stream));
        ok!(cuda.cuMemsetD8Async(pointer, 1, LEN, other));
        ok!(cuda.cuMemFreeAsync(pointer, stream));
        assert_eq!(cuda.cuMemsetD8Async(pointer, 1, LEN, stream), INVALID_VALUE);
        ok!(cuda.cuStreamSynchronize(stream));
        ok!(cuda.cuStreamSynchronize(other));
    })
    .reported(&[("use-after-free", "cuMemsetD8Async"), ("free-in-flight", "cuMemFreeAsync")]);
}

#[test]
fn using_stream_ordered_memory_on_a_stream_that_does_not_wait_for_it() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (stream, other) = (cuda.stream(), cuda.stream());
        let mut pointer = 0;
        ok!(cuda.cuMemAllocAsync(&mut pointer, LEN, stream));
        ok!(cuda.cuMemsetD8Async(pointer, 1, LEN, other));
        ok!(cuda.cuStreamSynchronize(other));
    })
    .reported(&[("use-before-allocation", "a stream")]);
}

#[test]
fn freeing_what_is_registered_elsewhere() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let pointer = cuda.allocate(LEN);
        ok!(cuda.cuda_emulator_hold(pointer + 100));
        ok!(cuda.cuda_emulator_let_go(pointer));
        assert_eq!(cuda.cuda_emulator_let_go(pointer), INVALID_VALUE);
        ok!(cuda.cuda_emulator_hold(pointer));
        ok!(cuda.cuMemFree_v2(pointer));
    })
    .reported(&[("free-while-held", "cuMemFree_v2")]);
}

#[test]
fn copying_out_of_bounds() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let (pointer, stream) = (cuda.allocate(100), cuda.stream());
        let host = cuda.pinned(LEN, 0).as_ptr() as usize;
        ok!(cuda.cuMemcpyHtoDAsync_v2(pointer + 90, host, 10, stream));
        assert_eq!(cuda.cuMemcpyHtoDAsync_v2(pointer + 91, host, 10, stream), INVALID_VALUE);
        assert_eq!(cuda.cuMemcpyDtoHAsync_v2(host + LEN - 5, pointer, 10, stream), INVALID_VALUE);
        assert_eq!(cuda.cuMemsetD8Async(pointer, 0, 101, stream), INVALID_VALUE);
        assert_eq!(cuda.cuMemsetD8Async(pointer + 100, 0, 1, stream), INVALID_VALUE);
        assert_eq!(cuda.cuMemsetD8Async(pointer, 0, usize::MAX, stream), INVALID_VALUE);
        ok!(cuda.cuStreamSynchronize(stream));
    })
    .reported(&[
        ("out-of-bounds", "cuMemcpyHtoDAsync_v2"),
        ("out-of-bounds", "cuMemcpyDtoHAsync_v2"),
        ("out-of-bounds", "cuMemsetD8Async"),
        ("unknown-pointer", "cuMemsetD8Async"),
    ]);
}

#[test]
fn copying_between_the_wrong_kinds_of_memory() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let (pointer, second) = (cuda.allocate(4 * LEN), cuda.allocate(LEN));
        let memory = vec![0_u8; 5 * LEN];
        let start = (memory.as_ptr() as usize).next_multiple_of(LEN);
        assert_eq!(cuda.cuMemcpyHtoD_v2(start as u64, start + LEN, 16), INVALID_VALUE);
        assert_eq!(cuda.cuMemcpyHtoD_v2(pointer, second as usize, 16), INVALID_VALUE);
        assert_eq!(cuda.cuMemcpyDtoD_v2(pointer, pointer + 8, 16), INVALID_VALUE);
        ok!(cuda.cuMemHostRegister_v2(start + LEN, LEN, 0));
        assert_eq!(cuda.cuMemcpyHtoD_v2(pointer, start, 2 * LEN), INVALID_VALUE);
        assert_eq!(cuda.cuMemcpyHtoD_v2(pointer, start + LEN, LEN + 1), INVALID_VALUE);
        assert_eq!(cuda.cuMemHostRegister_v2(pointer as usize, LEN, 0), INVALID_VALUE);
        ok!(cuda.cuMemHostUnregister(start + LEN));
    })
    .reported(&[
        ("unknown-pointer", "cuMemcpyHtoD_v2"),
        ("device-pointer-as-host", "cuMemcpyHtoD_v2"),
        ("overlapping-copy", "cuMemcpyDtoD_v2"),
        ("spans-registration", "cuMemcpyHtoD_v2"),
        ("out-of-bounds", "cuMemcpyHtoD_v2"),
        ("device-pointer-as-host", "cuMemHostRegister_v2"),
    ]);
}

#[test]
fn registering_or_unregistering_pages_that_are_not_there() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a mapping of our own, which nothing else uses when it is taken away.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), 2 * LEN, protection, flags, -1, 0) };
        ok!(cuda.cuMemHostRegister_v2(start as usize, 2 * LEN, 0));
        // SAFETY: as above.
        unsafe { libc::munmap(start, 2 * LEN) };
        ok!(cuda.cuMemHostUnregister(start as usize));
        assert_eq!(cuda.cuMemHostRegister_v2(start as usize, 2 * LEN, 0), INVALID_VALUE);
    })
    .reported(&[
        ("unmapped-registration", "cuMemHostUnregister"),
        ("unknown-pointer", "cuMemHostRegister_v2"),
    ]);
}

#[test]
fn using_or_destroying_a_handle_that_was_destroyed_or_never_made() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let (stream, event) = (cuda.stream(), cuda.event());
        ok!(cuda.cuStreamDestroy_v2(stream));
        ok!(cuda.cuEventDestroy_v2(event));
        assert_eq!(cuda.cuStreamDestroy_v2(stream), INVALID_HANDLE);
        assert_eq!(cuda.cuEventDestroy_v2(event), INVALID_HANDLE);
        assert_eq!(cuda.cuStreamSynchronize(stream), INVALID_HANDLE);
        assert_eq!(cuda.cuEventRecord(event, 0), INVALID_HANDLE);
        let other = cuda.event();
        assert_eq!(cuda.cuStreamSynchronize(other), INVALID_HANDLE);
        assert_eq!(cuda.cuStreamDestroy_v2(0), INVALID_HANDLE);
        let mut context = 0;
        ok!(cuda.cuCtxCreate_v2(&mut context, 0, 0));
        ok!(cuda.cuCtxDestroy_v2(context));
        assert_eq!(cuda.cuCtxDestroy_v2(context), CONTEXT_IS_DESTROYED);
        assert_eq!(cuda.cuCtxSetCurrent(context), CONTEXT_IS_DESTROYED);
    })
    .reported(&[
        ("double-destroy", "cuStreamDestroy_v2"),
        ("double-destroy", "cuEventDestroy_v2"),
        ("use-after-destroy", "cuStreamSynchronize"),
        ("use-after-destroy", "cuEventRecord"),
        ("unknown-handle", "cuStreamSynchronize"),
        ("unknown-handle", "cuStreamDestroy_v2"),
        ("double-destroy", "cuCtxDestroy_v2"),
        ("destroyed-context", "cuCtxSetCurrent"),
    ]);
}

#[test]
fn taking_a_context_down_while_its_streams_have_work() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let mut context = 0;
        ok!(cuda.cuCtxCreate_v2(&mut context, 0, 0));
        ok!(cuda.cuMemsetD8Async(cuda.allocate(LEN), 1, LEN, cuda.stream()));
        ok!(cuda.cuCtxDestroy_v2(context));
    })
    .reported(&[("destroy-in-flight", "cuCtxDestroy_v2")]);
}

#[test]
fn calling_the_driver_in_a_forked_child() {
    child!(&[], || {
        let cuda = Cuda::ready();
        // SAFETY: the child only calls the emulator, which must refuse before it takes any lock, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = cuda.cuCtxSynchronize() == NOT_INITIALIZED;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if refused { 7 } else { 8 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child started above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7);
    })
    .reported(&[("call-in-forked-child", "cuCtxSynchronize")]);
}

#[test]
fn what_is_never_given_back_is_reported_on_request() {
    let outcome = child!(&[("CUDA_EMULATOR_LEAKS", "1")], || {
        let cuda = Cuda::ready();
        cuda.allocate(LEN);
        cuda.pinned(LEN, 0);
        cuda.stream();
        cuda.event();
        let kept = cuda.allocate(LEN);
        ok!(cuda.cuMemFree_v2(kept));
    });
    outcome.reported(&[("leak", "exit"); 4]);
}

#[test]
fn a_report_names_the_calling_program_and_a_named_one_can_be_overlooked() {
    let body = || assert_eq!(Cuda::ready().cuMemFree_v2(0x1234_5000), INVALID_VALUE);
    let program = std::env::current_exe().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    let outcome = child!(&[], body);
    outcome.reported(&[("unknown-pointer", "cuMemFree_v2")]);
    assert!(outcome.reports[0].ends_with(&format!("(called from {program})")), "{outcome:?}");
    child!(&[("CUDA_EMULATOR_OVERLOOK", &format!("unknown-pointer@{program}"))], body).clean();
}
