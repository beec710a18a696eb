//! Order and lateness: what a stream promises, and what it does not.

mod common;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Cuda, HELD, LAUNCH_FAILED, NOT_PERMITTED, NOT_READY};

const LEN: usize = 4096;

#[test]
fn a_copy_from_pinned_memory_reads_it_when_the_stream_runs_it() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (target, stream) = (cuda.allocate(LEN), cuda.stream());
        let host = cuda.pinned(LEN, 1);
        ok!(cuda.cuMemcpyHtoDAsync_v2(target, host.as_ptr() as usize, LEN, stream));
        // Too early: the copy has not been waited for, and so must deliver the new bytes.
        host.fill(2);
        assert_eq!(cuda.peek(target), 0xA5);
        ok!(cuda.cuStreamSynchronize(stream));
        assert_eq!(cuda.read(target, LEN), [2; LEN]);
    })
    .clean();
}

#[test]
fn a_copy_from_registered_memory_is_as_late() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (target, stream) = (cuda.allocate(LEN), cuda.stream());
        let mut host = vec![1_u8; 3 * LEN];
        let start = (host.as_ptr() as usize).next_multiple_of(LEN);
        ok!(cuda.cuMemHostRegister_v2(start, LEN, 0));
        ok!(cuda.cuMemcpyHtoDAsync_v2(target, start, LEN, stream));
        host.fill(2);
        ok!(cuda.cuStreamSynchronize(stream));
        assert_eq!(cuda.read(target, LEN), [2; LEN]);
        ok!(cuda.cuMemHostUnregister(start));
    })
    .clean();
}

#[test]
fn pageable_memory_is_staged_during_the_call() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (target, stream) = (cuda.allocate(LEN), cuda.stream());
        let mut host = vec![1_u8; LEN];
        ok!(cuda.cuMemcpyHtoDAsync_v2(target, host.as_ptr() as usize, LEN, stream));
        host.fill(2);
        drop(host);
        assert_eq!(cuda.peek(target), 0xA5, "staged, but not there yet");
        ok!(cuda.cuStreamSynchronize(stream));
        assert_eq!(cuda.read(target, LEN), [1; LEN]);
    })
    .clean();
}

#[test]
fn a_synchronous_copy_from_pageable_memory_may_return_before_the_bytes_are_there() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let target = cuda.allocate(LEN);
        let host = vec![1_u8; LEN];
        ok!(cuda.cuMemcpyHtoD_v2(target, host.as_ptr() as usize, LEN));
        assert_eq!(cuda.peek(target), 0xA5);
        // A stream that does not wait for the default stream does not see them either...
        assert_eq!(cuda.read(target, 1), [0xA5]);
        // ...but the default stream itself, where the next synchronous copy goes, does.
        let mut back = vec![0_u8; LEN];
        ok!(cuda.cuMemcpyDtoH_v2(back.as_mut_ptr() as usize, target, LEN));
        assert_eq!(back, host);
    })
    .clean();
}

#[test]
fn a_synchronous_copy_from_pinned_memory_is_done_when_it_returns() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let target = cuda.allocate(LEN);
        let host = cuda.pinned(LEN, 1);
        ok!(cuda.cuMemcpyHtoD_v2(target, host.as_ptr() as usize, LEN));
        assert_eq!(cuda.peek(target), 1);
    })
    .clean();
}

#[test]
fn a_copy_to_pageable_memory_is_done_when_it_returns() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (source, stream) = (cuda.allocate(LEN), cuda.stream());
        let pinned = cuda.pinned(LEN, 0);
        ok!(cuda.cuMemcpyDtoHAsync_v2(pinned.as_ptr() as usize, source, LEN, stream));
        assert_eq!(pinned[0], 0, "to pinned memory it is late");
        let mut pageable = vec![0_u8; LEN];
        ok!(cuda.cuMemcpyDtoHAsync_v2(pageable.as_mut_ptr() as usize, source, LEN, stream));
        assert_eq!(pageable, [0xA5; LEN]);
        assert_eq!(pinned, [0xA5; LEN], "what was before it on the stream is done too");
    })
    .clean();
}

#[test]
fn operations_of_one_stream_run_in_order() {
    for delay in ["none", "random:5:200", "adversarial"] {
        child!(&[("CUDA_EMULATOR_DELAY", delay)], || {
            let cuda = Cuda::ready();
            let stream = cuda.stream();
            let (first, second) = (cuda.allocate(LEN), cuda.allocate(LEN));
            let host = cuda.pinned(LEN, 0);
            for round in 0..20 {
                ok!(cuda.cuMemsetD8Async(first, round, LEN, stream));
                ok!(cuda.cuMemcpyDtoDAsync_v2(second, first, LEN, stream));
                ok!(cuda.cuMemsetD8Async(first, 0xEE, LEN, stream));
                ok!(cuda.cuMemcpyDtoHAsync_v2(host.as_ptr() as usize, second, LEN, stream));
                ok!(cuda.cuStreamSynchronize(stream));
                assert_eq!(host, [round; LEN]);
            }
        })
        .clean();
    }
}

#[test]
fn streams_run_independently_until_an_event_joins_them() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (first, second) = (cuda.stream(), cuda.stream());
        let memory = cuda.allocate(LEN);
        ok!(cuda.cuMemsetD8Async(memory, 1, LEN, first));
        ok!(cuda.cuStreamSynchronize(second));
        assert_eq!(cuda.peek(memory), 0xA5, "another stream's wait does not help");
        let event = cuda.event();
        ok!(cuda.cuEventRecord(event, first));
        ok!(cuda.cuStreamWaitEvent(second, event, 0));
        ok!(cuda.cuStreamSynchronize(second));
        assert_eq!(cuda.peek(memory), 1);
    })
    .clean();
}

#[test]
fn the_legacy_default_stream_and_blocking_streams_wait_for_each_other() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (blocking, free) = (cuda.blocking_stream(), cuda.stream());
        let (a, b, c) = (cuda.allocate(LEN), cuda.allocate(LEN), cuda.allocate(LEN));
        ok!(cuda.cuMemsetD8Async(a, 1, LEN, blocking));
        ok!(cuda.cuMemsetD8Async(b, 2, LEN, free));
        ok!(cuda.cuMemsetD8_v2(c, 3, LEN));
        assert_eq!(cuda.peek(c), 0xA5, "a fill of device memory does not wait");
        ok!(cuda.cuStreamSynchronize(0));
        assert_eq!((cuda.peek(a), cuda.peek(b), cuda.peek(c)), (1, 0xA5, 3));
        // And the other way round.
        ok!(cuda.cuMemsetD8_v2(c, 4, LEN));
        ok!(cuda.cuMemsetD8Async(a, 5, LEN, blocking));
        ok!(cuda.cuStreamSynchronize(blocking));
        assert_eq!((cuda.peek(a), cuda.peek(b), cuda.peek(c)), (5, 0xA5, 4));
        ok!(cuda.cuCtxSynchronize());
        assert_eq!(cuda.peek(b), 2);
    })
    .clean();
}

#[test]
fn each_thread_has_a_default_stream_of_its_own() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let mut context = 0;
        ok!(cuda.cuCtxGetCurrent(&mut context));
        let (mine, theirs) = (cuda.allocate(LEN), cuda.allocate(LEN));
        let host = cuda.pinned(LEN, 7).as_ptr() as usize;
        ok!(cuda.cuMemcpyHtoDAsync_v2_ptsz(mine, host, LEN, 0));
        std::thread::spawn(move || {
            ok!(cuda.cuCtxSetCurrent(context));
            ok!(cuda.cuMemcpyHtoDAsync_v2(theirs, host, LEN, 2));
            ok!(cuda.cuStreamSynchronize(2));
        })
        .join()
        .unwrap();
        assert_eq!((cuda.peek(mine), cuda.peek(theirs)), (0xA5, 7));
        ok!(cuda.cuStreamSynchronize(2));
        assert_eq!(cuda.peek(mine), 7);
    })
    .clean();
}

#[test]
fn a_query_says_not_ready_a_few_times_and_then_lets_the_work_run() {
    child!(&[("CUDA_EMULATOR_DELAY", "adversarial:3600000:3")], || {
        let cuda = Cuda::ready();
        let stream = cuda.stream();
        let memory = cuda.allocate(LEN);
        ok!(cuda.cuStreamQuery(stream));
        ok!(cuda.cuMemsetD8Async(memory, 1, LEN, stream));
        assert_eq!(cuda.cuStreamQuery(stream), NOT_READY);
        assert_eq!(cuda.cuStreamQuery(stream), NOT_READY);
        assert_eq!(cuda.peek(memory), 0xA5);
        while cuda.cuStreamQuery(stream) == NOT_READY {
            std::thread::yield_now();
        }
        assert_eq!(cuda.peek(memory), 1);
    })
    .clean();
}

#[test]
fn held_work_runs_by_itself_in_the_end() {
    child!(&[("CUDA_EMULATOR_DELAY", "adversarial:20")], || {
        let cuda = Cuda::ready();
        let memory = cuda.allocate(LEN);
        ok!(cuda.cuMemsetD8Async(memory, 1, LEN, cuda.stream()));
        while cuda.peek(memory) != 1 {
            std::thread::yield_now();
        }
    })
    .clean();
}

static SEEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(data: *mut c_void) {
    SEEN.fetch_add(data as u32, Ordering::SeqCst);
}

extern "C" fn hear(_stream: usize, status: i32, data: *mut c_void) {
    SEEN.fetch_add(data as u32 + status as u32, Ordering::SeqCst);
}

extern "C" fn misbehave(_data: *mut c_void) {
    let cuda = Cuda::open();
    assert_eq!(cuda.cuCtxSynchronize(), NOT_PERMITTED);
}

#[test]
fn host_functions_and_callbacks_run_in_their_place() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let stream = cuda.stream();
        ok!(cuda.cuLaunchHostFunc(stream, count, 2 as *mut c_void));
        let middle = cuda.event();
        ok!(cuda.cuEventRecord(middle, stream));
        ok!(cuda.cuStreamAddCallback(stream, hear, 10 as *mut c_void, 0));
        assert_eq!(SEEN.load(Ordering::SeqCst), 0);
        ok!(cuda.cuEventSynchronize(middle));
        assert_eq!(SEEN.load(Ordering::SeqCst), 2);
        ok!(cuda.cuStreamSynchronize(stream));
        assert_eq!(SEEN.load(Ordering::SeqCst), 12);
    })
    .clean();
}

#[test]
fn a_host_function_must_not_call_the_driver() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let stream = cuda.stream();
        ok!(cuda.cuLaunchHostFunc(stream, misbehave, std::ptr::null_mut()));
        ok!(cuda.cuStreamSynchronize(stream));
    })
    .reported(&[("call-in-callback", "cuCtxSynchronize")]);
}

#[test]
fn after_an_error_callbacks_hear_of_it_and_host_functions_do_not_run() {
    child!(&[("CUDA_EMULATOR_FAIL_COPY_LATE", "1")], || {
        let cuda = Cuda::ready();
        let stream = cuda.stream();
        let target = cuda.allocate(LEN);
        let host = cuda.pinned(LEN, 1).as_ptr() as usize;
        // The rest is queued before the failure, behind a wait that the host ends.
        let gate = cuda.pinned(LEN, 0);
        ok!(cuda.cuStreamWaitValue32(stream, gate.as_ptr() as u64, 1, 1));
        ok!(cuda.cuMemcpyHtoDAsync_v2(target, host, LEN, stream));
        ok!(cuda.cuLaunchHostFunc(stream, count, 2 as *mut c_void));
        ok!(cuda.cuStreamAddCallback(stream, hear, 10 as *mut c_void, 0));
        gate[0] = 1;
        assert_eq!(cuda.cuStreamSynchronize(stream), LAUNCH_FAILED);
        assert_eq!(SEEN.load(Ordering::SeqCst), 10 + LAUNCH_FAILED as u32);
        assert_eq!(cuda.peek(target), 0xA5);
    })
    .clean();
}

#[test]
fn a_stream_waits_for_a_value_that_another_stream_writes() {
    child!(&[("CUDA_EMULATOR_DELAY", "random:9:200")], || {
        let cuda = Cuda::ready();
        let (writer, waiter) = (cuda.stream(), cuda.stream());
        let (flag, memory) = (cuda.allocate(64), cuda.allocate(LEN));
        ok!(cuda.cuMemsetD8Async(flag, 0, 64, writer));
        ok!(cuda.cuStreamSynchronize(writer));
        ok!(cuda.cuStreamWaitValue32(waiter, flag, 7, 0));
        ok!(cuda.cuMemsetD8Async(memory, 1, LEN, waiter));
        assert_eq!(cuda.cuStreamQuery(waiter), NOT_READY);
        ok!(cuda.cuStreamWriteValue32(writer, flag, 7, 0));
        ok!(cuda.cuStreamSynchronize(waiter));
        assert_eq!(cuda.peek(memory), 1);
    })
    .clean();
}

#[test]
fn a_destroyed_stream_still_does_its_work() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (stream, memory, event) = (cuda.stream(), cuda.allocate(LEN), cuda.event());
        ok!(cuda.cuMemsetD8Async(memory, 1, LEN, stream));
        ok!(cuda.cuEventRecord(event, stream));
        ok!(cuda.cuStreamDestroy_v2(stream));
        ok!(cuda.cuEventSynchronize(event));
        assert_eq!(cuda.peek(memory), 1);
    })
    .clean();
}

#[test]
fn a_batch_of_copies_reads_each_source_as_its_attributes_say() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let stream = cuda.stream();
        let (first, second) = (cuda.allocate(LEN), cuda.allocate(LEN));
        let (late, early) = (cuda.pinned(LEN, 1), cuda.pinned(LEN, 1));
        let (to, from) = ([first, second], [late.as_ptr() as u64, early.as_ptr() as u64]);
        // In stream order, and during the call.
        let attributes = [[1, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0]];
        let mut fail = 0;
        let (sizes, starts) = ([LEN; 2], [0, 1]);
        let batch = |stream, fail: &mut usize| {
            let (to, from, sizes) = (to.as_ptr(), from.as_ptr(), sizes.as_ptr());
            cuda.cuMemcpyBatchAsync(to, from, sizes, 2, attributes.as_ptr(), starts.as_ptr(), 2, fail, stream)
        };
        assert_eq!(batch(0, &mut fail), common::INVALID_VALUE, "not on the legacy default stream");
        ok!(batch(stream, &mut fail));
        late.fill(2);
        early.fill(2);
        ok!(cuda.cuStreamSynchronize(stream));
        assert_eq!((cuda.peek(first), cuda.peek(second)), (2, 1));
    })
    .clean();
}
