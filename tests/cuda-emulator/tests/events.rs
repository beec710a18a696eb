//! Events: what a record captures, and who waits for what.

mod common;

use common::{Cuda, HELD, INVALID_HANDLE, INVALID_VALUE, NOT_READY};

const LEN: usize = 4096;

#[test]
fn an_event_that_was_never_recorded_is_complete() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let event = cuda.event();
        ok!(cuda.cuEventQuery(event));
        ok!(cuda.cuEventSynchronize(event));
        ok!(cuda.cuStreamWaitEvent(cuda.stream(), event, 0));
    })
    .clean();
}

#[test]
fn a_record_captures_what_is_queued_so_far_and_no_more() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (stream, event) = (cuda.stream(), cuda.event());
        let (before, after) = (cuda.allocate(LEN), cuda.allocate(LEN));
        ok!(cuda.cuMemsetD8Async(before, 1, LEN, stream));
        ok!(cuda.cuEventRecord(event, stream));
        ok!(cuda.cuMemsetD8Async(after, 2, LEN, stream));
        assert_eq!(cuda.cuEventQuery(event), NOT_READY);
        ok!(cuda.cuEventSynchronize(event));
        ok!(cuda.cuEventQuery(event));
        assert_eq!((cuda.peek(before), cuda.peek(after)), (1, 0xA5));
    })
    .clean();
}

#[test]
fn recording_again_moves_the_event_but_not_those_who_wait_already() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (first, second, waiter, event) = (cuda.stream(), cuda.stream(), cuda.stream(), cuda.event());
        let (a, b) = (cuda.allocate(LEN), cuda.allocate(LEN));
        ok!(cuda.cuMemsetD8Async(a, 1, LEN, first));
        ok!(cuda.cuEventRecord(event, first));
        ok!(cuda.cuStreamWaitEvent(waiter, event, 0));
        // The event now stands for `second` alone, which forgets `first`.
        ok!(cuda.cuMemsetD8Async(b, 2, LEN, second));
        ok!(cuda.cuEventRecord(event, second));
        ok!(cuda.cuEventSynchronize(event));
        assert_eq!((cuda.peek(a), cuda.peek(b)), (0xA5, 2));
        // The waiter still waits for the first record.
        ok!(cuda.cuStreamSynchronize(waiter));
        assert_eq!(cuda.peek(a), 1);
    })
    .clean();
}

#[test]
fn a_destroyed_event_still_holds_those_who_wait_for_it() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (stream, waiter, event) = (cuda.stream(), cuda.stream(), cuda.event());
        let memory = cuda.allocate(LEN);
        ok!(cuda.cuMemsetD8Async(memory, 1, LEN, stream));
        ok!(cuda.cuEventRecord(event, stream));
        ok!(cuda.cuStreamWaitEvent(waiter, event, 0));
        ok!(cuda.cuEventDestroy_v2(event));
        ok!(cuda.cuStreamSynchronize(waiter));
        assert_eq!(cuda.peek(memory), 1);
    })
    .clean();
}

#[test]
fn an_event_answers_not_ready_a_few_times_and_then_lets_the_work_run() {
    child!(&[("CUDA_EMULATOR_DELAY", "adversarial:3600000:2")], || {
        let cuda = Cuda::ready();
        let (stream, event) = (cuda.stream(), cuda.event());
        let memory = cuda.allocate(LEN);
        ok!(cuda.cuMemsetD8Async(memory, 1, LEN, stream));
        ok!(cuda.cuEventRecord(event, stream));
        assert_eq!(cuda.cuEventQuery(event), NOT_READY);
        while cuda.cuEventQuery(event) == NOT_READY {
            std::thread::yield_now();
        }
        assert_eq!(cuda.peek(memory), 1);
    })
    .clean();
}

#[test]
fn the_time_between_events_needs_both_recorded_with_timing_and_complete() {
    child!(&[HELD], || {
        let cuda = Cuda::ready();
        let (stream, start, end) = (cuda.stream(), cuda.event(), cuda.event());
        let mut time = -1.0;
        assert_eq!(cuda.cuEventElapsedTime(&mut time, start, end), INVALID_HANDLE, "never recorded");
        ok!(cuda.cuEventRecord(start, stream));
        ok!(cuda.cuEventRecord(end, stream));
        assert_eq!(cuda.cuEventElapsedTime(&mut time, start, end), NOT_READY);
        ok!(cuda.cuEventSynchronize(end));
        ok!(cuda.cuEventElapsedTime(&mut time, start, end));
        assert!(time >= 0.0);
        ok!(cuda.cuEventElapsedTime_v2(&mut time, end, start));
        assert!(time <= 0.0);
        let mut untimed = 0;
        ok!(cuda.cuEventCreate(&mut untimed, 2));
        ok!(cuda.cuEventRecord(untimed, stream));
        ok!(cuda.cuEventSynchronize(untimed));
        assert_eq!(cuda.cuEventElapsedTime(&mut time, start, untimed), INVALID_HANDLE);
    })
    .clean();
}

#[test]
fn flags_are_checked() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let mut event = 0;
        assert_eq!(cuda.cuEventCreate(&mut event, 8), INVALID_VALUE);
        assert_eq!(cuda.cuEventCreate(&mut event, 4), INVALID_VALUE, "between processes only without timing");
        assert_eq!(cuda.cuEventCreate(std::ptr::null_mut(), 0), INVALID_VALUE);
        assert_eq!(cuda.cuStreamWaitEvent(cuda.stream(), cuda.event(), 8), INVALID_VALUE);
    })
    .clean();
}

#[test]
fn an_event_is_recorded_on_streams_of_its_own_device_and_awaited_anywhere() {
    child!(&[("CUDA_EMULATOR_DEVICES", "2"), HELD], || {
        let cuda = Cuda::ready();
        let (stream, event, memory) = (cuda.stream(), cuda.event(), cuda.allocate(LEN));
        ok!(cuda.cuMemsetD8Async(memory, 1, LEN, stream));
        cuda.bind(1);
        let other = cuda.stream();
        assert_eq!(cuda.cuEventRecord(event, other), INVALID_HANDLE);
        ok!(cuda.cuEventRecord(event, stream));
        ok!(cuda.cuStreamWaitEvent(other, event, 0));
        ok!(cuda.cuStreamSynchronize(other));
        assert_eq!(cuda.peek(memory), 1);
    })
    .reported(&[("wrong-context", "cuEventRecord")]);
}
