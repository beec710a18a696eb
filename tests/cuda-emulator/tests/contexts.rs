//! Contexts, devices and peers.

mod common;

use std::ffi::{CStr, CString};

use common::{
    CONTEXT_IS_DESTROYED, Cuda, HELD, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NOT_INITIALIZED,
    PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED, PEER_ACCESS_UNSUPPORTED,
};

const LEN: usize = 4096;
const TWO: (&str, &str) = ("CUDA_EMULATOR_DEVICES", "2");
const PEERS: (&str, &str) = ("CUDA_EMULATOR_PEER_ACCESS", "on");

fn current(cuda: &Cuda) -> usize {
    let mut context = 1;
    ok!(cuda.cuCtxGetCurrent(&mut context));
    context
}

#[test]
fn nothing_works_before_initialisation() {
    child!(&[], || {
        let cuda = Cuda::open();
        assert_eq!(cuda.cuDeviceGetCount(&mut 0), NOT_INITIALIZED);
        assert_eq!(cuda.cuCtxGetCurrent(&mut 0), NOT_INITIALIZED);
        assert_eq!(cuda.cuMemAlloc_v2(&mut 0, 1), NOT_INITIALIZED);
        ok!(cuda.cuDriverGetVersion(&mut 0));
        assert_eq!(cuda.cuInit(1), INVALID_VALUE);
        ok!(cuda.cuInit(0));
        ok!(cuda.cuInit(0));
    })
    .clean();
}

#[test]
fn devices_describe_themselves() {
    child!(&[TWO, ("CUDA_EMULATOR_MEMORY", "1073741824")], || {
        let cuda = Cuda::open();
        ok!(cuda.cuInit(0));
        let mut count = 0;
        ok!(cuda.cuDeviceGetCount(&mut count));
        assert_eq!(count, 2);
        assert_eq!(cuda.cuDeviceGet(&mut 0, 2), INVALID_DEVICE);
        assert_eq!(cuda.cuDeviceGet(&mut 0, -1), INVALID_DEVICE);
        for device in 0..2 {
            let mut text = [0; 64];
            ok!(cuda.cuDeviceGetPCIBusId(text.as_mut_ptr(), 64, device));
            // SAFETY: the driver has written a NUL-terminated string.
            let id = unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().unwrap().to_owned();
            assert_eq!(id, format!("0000:0{}:00.0", device + 1));
            let mut found = -1;
            ok!(cuda.cuDeviceGetByPCIBusId(&mut found, CString::new(id).unwrap().as_ptr()));
            assert_eq!(found, device);
            ok!(cuda.cuDeviceGetName(text.as_mut_ptr(), 64, device));
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().unwrap();
            assert!(name.contains("Emulated") && name.contains("no GPU"), "{name}");
            let mut bytes = 0;
            ok!(cuda.cuDeviceTotalMem_v2(&mut bytes, device));
            assert_eq!(bytes, 1 << 30);
            let mut pools = 0;
            ok!(cuda.cuDeviceGetAttribute(&mut pools, 115, device));
            assert_eq!(pools, 1);
        }
        assert_eq!(cuda.cuDeviceGetByPCIBusId(&mut 0, c"0000:77:00.0".as_ptr()), INVALID_DEVICE);
        assert_eq!(cuda.cuDeviceGetAttribute(&mut 0, 0, 0), INVALID_VALUE);
    })
    .clean();
}

#[test]
fn a_process_sees_the_devices_that_it_is_given() {
    child!(&[("CUDA_EMULATOR_DEVICES", "3"), ("CUDA_VISIBLE_DEVICES", "2,0")], || {
        let cuda = Cuda::open();
        ok!(cuda.cuInit(0));
        let (mut count, mut bus) = (0, 0);
        ok!(cuda.cuDeviceGetCount(&mut count));
        ok!(cuda.cuDeviceGetAttribute(&mut bus, 33, 0));
        assert_eq!((count, bus), (2, 3));
    })
    .clean();
}

#[test]
fn each_thread_has_a_stack_of_contexts() {
    child!(&[], || {
        let cuda = Cuda::open();
        ok!(cuda.cuInit(0));
        assert_eq!(current(&cuda), 0);
        let (mut first, mut second, mut popped) = (0, 0, 0);
        ok!(cuda.cuCtxCreate_v2(&mut first, 0, 0));
        ok!(cuda.cuCtxCreate_v2(&mut second, 0, 0));
        assert_ne!(first, second);
        assert_eq!(current(&cuda), second, "a new context is current");
        ok!(cuda.cuCtxPopCurrent_v2(&mut popped));
        assert_eq!((popped, current(&cuda)), (second, first));
        ok!(cuda.cuCtxPushCurrent_v2(second));
        ok!(cuda.cuCtxSetCurrent(first));
        ok!(cuda.cuCtxPopCurrent_v2(&mut popped));
        assert_eq!((popped, current(&cuda)), (first, first), "setting replaces the top");
        std::thread::spawn(move || assert_eq!(current(&cuda), 0)).join().unwrap();
        ok!(cuda.cuCtxSetCurrent(0));
        assert_eq!(current(&cuda), 0);
        assert_eq!(cuda.cuCtxGetDevice(&mut 0), INVALID_CONTEXT);
        ok!(cuda.cuCtxDestroy_v2(second));
        ok!(cuda.cuCtxDestroy_v2(first));
    })
    .clean();
}

#[test]
fn a_thread_without_a_context_is_refused_and_reported() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let (pointer, stream, event) = (cuda.allocate(LEN), cuda.stream(), cuda.event());
        std::thread::spawn(move || {
            assert_eq!(cuda.cuMemAlloc_v2(&mut 0, 1), INVALID_CONTEXT);
            assert_eq!(cuda.cuMemFree_v2(pointer), INVALID_CONTEXT);
            assert_eq!(cuda.cuStreamSynchronize(0), INVALID_CONTEXT);
            // Even where the stream says which context is meant.
            assert_eq!(cuda.cuMemsetD8Async(pointer, 1, LEN, stream), INVALID_CONTEXT);
            assert_eq!(cuda.cuStreamDestroy_v2(stream), INVALID_CONTEXT);
            assert_eq!(cuda.cuEventDestroy_v2(event), INVALID_CONTEXT);
            ok!(cuda.cuEventQuery(event));
        })
        .join()
        .unwrap();
    })
    .reported(&[
        ("no-current-context", "cuMemAlloc_v2"),
        ("no-current-context", "cuMemFree_v2"),
        ("no-current-context", "cuStreamSynchronize"),
        ("no-current-context", "cuMemsetD8Async"),
        ("no-current-context", "cuStreamDestroy_v2"),
        ("no-current-context", "cuEventDestroy_v2"),
    ]);
}

extern "C" fn at_exit() {
    let cuda = Cuda::open();
    let context = current(&cuda);
    assert_ne!(context, 0);
    ok!(cuda.cuStreamSynchronize(0));
    ok!(cuda.cuStreamSynchronize(2));
    println!("the exit handler has used the driver");
}

#[test]
fn exit_handlers_of_the_program_can_still_use_the_driver() {
    let outcome = child!(&[], || {
        let cuda = Cuda::ready();
        ok!(cuda.cuStreamSynchronize(2));
        // SAFETY: a C function without arguments.
        unsafe { libc::atexit(at_exit) };
    });
    outcome.clean();
    assert!(outcome.output.contains("the exit handler has used the driver"), "{outcome:?}");
}

#[test]
fn the_primary_context_is_shared_and_counted() {
    child!(&[], || {
        let cuda = Cuda::open();
        ok!(cuda.cuInit(0));
        let (mut first, mut second, mut flags, mut active) = (0, 0, 0, 9);
        ok!(cuda.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        assert_eq!(active, 0);
        ok!(cuda.cuDevicePrimaryCtxRetain(&mut first, 0));
        ok!(cuda.cuDevicePrimaryCtxRetain(&mut second, 0));
        assert_eq!(first, second);
        assert_eq!(current(&cuda), 0, "retaining does not make it current");
        ok!(cuda.cuCtxSetCurrent(first));
        let pointer = cuda.allocate(LEN);
        ok!(cuda.cuDevicePrimaryCtxRelease_v2(0));
        ok!(cuda.cuMemsetD8_v2(pointer, 1, LEN));
        ok!(cuda.cuCtxSynchronize());
        ok!(cuda.cuDevicePrimaryCtxRelease_v2(0));
        ok!(cuda.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        assert_eq!((active, cuda.stats().device_allocations), (0, 0), "it takes its memory with it");
        assert_eq!(cuda.cuMemAlloc_v2(&mut 0, 1), CONTEXT_IS_DESTROYED);
        assert_eq!(cuda.cuDevicePrimaryCtxRelease_v2(0), INVALID_CONTEXT);
    })
    .reported(&[("destroyed-context", "cuMemAlloc_v2")]);
}

#[test]
fn resetting_the_primary_context_ends_it_for_everybody() {
    child!(&[], || {
        let cuda = Cuda::ready();
        let stream = cuda.stream();
        ok!(cuda.cuDevicePrimaryCtxReset_v2(0));
        assert_eq!(cuda.cuStreamSynchronize(stream), common::INVALID_HANDLE);
        assert_eq!(cuda.cuCtxSynchronize(), CONTEXT_IS_DESTROYED);
        cuda.bind(0);
        cuda.allocate(LEN);
    })
    .reported(&[("use-after-destroy", "cuStreamSynchronize"), ("destroyed-context", "cuCtxSynchronize")]);
}

#[test]
fn memory_of_another_device_needs_peer_access() {
    child!(&[TWO, PEERS], || {
        let cuda = Cuda::ready();
        let first = current(&cuda);
        let theirs = cuda.allocate(LEN);
        let second = cuda.bind(1);
        let (mine, mut can) = (cuda.allocate(LEN), 0);
        ok!(cuda.cuMemsetD8_v2(mine, 7, LEN));
        assert_eq!(cuda.cuMemcpyDtoD_v2(theirs, mine, LEN), INVALID_VALUE);
        ok!(cuda.cuDeviceCanAccessPeer(&mut can, 1, 0));
        assert_eq!(can, 1);
        assert_eq!(cuda.cuCtxEnablePeerAccess(first, 1), INVALID_VALUE);
        ok!(cuda.cuCtxEnablePeerAccess(first, 0));
        assert_eq!(cuda.cuCtxEnablePeerAccess(first, 0), PEER_ACCESS_ALREADY_ENABLED);
        ok!(cuda.cuMemcpyDtoD_v2(theirs, mine, LEN));
        ok!(cuda.cuCtxSynchronize());
        assert_eq!(cuda.peek(theirs), 7);
        assert_eq!(cuda.stats().bytes_device_to_peer, LEN as u64);
        ok!(cuda.cuCtxDisablePeerAccess(first));
        assert_eq!(cuda.cuCtxDisablePeerAccess(first), PEER_ACCESS_NOT_ENABLED);
        assert_eq!(cuda.cuMemcpyDtoD_v2(theirs, mine, LEN), INVALID_VALUE);
        assert_eq!(cuda.cuCtxEnablePeerAccess(second, 0), INVALID_CONTEXT, "not to itself");
    })
    .reported(&[
        ("wrong-context", "cuMemcpyDtoD_v2"),
        ("wrong-context", "cuMemcpyDtoD_v2"),
        ("wrong-context", "cuCtxEnablePeerAccess"),
    ]);
}

#[test]
fn without_peer_access_only_peer_copies_cross_devices() {
    child!(&[TWO, HELD], || {
        let cuda = Cuda::ready();
        let (first, theirs) = (current(&cuda), cuda.allocate(LEN));
        let second = cuda.bind(1);
        let (mine, stream, mut can) = (cuda.allocate(LEN), cuda.stream(), 1);
        ok!(cuda.cuDeviceCanAccessPeer(&mut can, 1, 0));
        assert_eq!(can, 0);
        assert_eq!(cuda.cuCtxEnablePeerAccess(first, 0), PEER_ACCESS_UNSUPPORTED);
        ok!(cuda.cuMemsetD8Async(mine, 7, LEN, stream));
        ok!(cuda.cuMemcpyPeerAsync(theirs, first, mine, second, LEN, stream));
        assert_eq!(cuda.peek(theirs), 0xA5);
        ok!(cuda.cuStreamSynchronize(stream));
        assert_eq!(cuda.peek(theirs), 7);
    })
    .clean();
}

#[test]
fn a_synchronous_peer_copy_is_ordered_with_all_streams_of_its_contexts() {
    child!(&[TWO, HELD], || {
        let cuda = Cuda::ready();
        let (first, theirs, their_stream) = (current(&cuda), cuda.allocate(LEN), cuda.stream());
        let second = cuda.bind(1);
        let (mine, my_stream) = (cuda.allocate(LEN), cuda.stream());
        ok!(cuda.cuMemsetD8Async(mine, 7, LEN, my_stream));
        ok!(cuda.cuMemcpyPeer(theirs, first, mine, second, LEN));
        assert_eq!(cuda.peek(theirs), 0xA5, "the host is not made to wait");
        ok!(cuda.cuStreamSynchronize(their_stream));
        assert_eq!(cuda.peek(theirs), 7, "even a stream that was idle waits for it");
    })
    .clean();
}

#[test]
fn a_peer_copy_must_name_the_contexts_of_its_memory() {
    child!(&[TWO], || {
        let cuda = Cuda::ready();
        let (first, theirs) = (current(&cuda), cuda.allocate(LEN));
        let second = cuda.bind(1);
        let mine = cuda.allocate(LEN);
        assert_eq!(cuda.cuMemcpyPeer(theirs, second, mine, first, LEN), INVALID_VALUE);
    })
    .reported(&[("wrong-context", "cuMemcpyPeer")]);
}
