//! Stream-ordered reads and writes: their order, and parameters that are read when the stream comes to them.

mod common;

use common::{FILE, HELD, Scene};

/// Parameters in memory that stays where it is.
struct Late {
    size: usize,
    file_offset: i64,
    buffer_offset: i64,
    result: isize,
}

impl Late {
    fn new(size: usize, file_offset: i64, buffer_offset: i64) -> &'static mut Late {
        Box::leak(Box::new(Late { size, file_offset, buffer_offset, result: 0 }))
    }

    fn read(&mut self, scene: &Scene, stream: usize) -> common::Error {
        let result = &raw mut self.result;
        let Late { size, file_offset, buffer_offset, .. } = self;
        scene.cufile.cuFileReadAsync(
            scene.handle,
            scene.buffer,
            size,
            file_offset,
            buffer_offset,
            result,
            stream,
        )
    }

    fn result(&self) -> isize {
        // SAFETY: a live place, which the stand-in writes from another thread.
        unsafe { (&raw const self.result).read_volatile() }
    }
}

#[test]
fn nothing_happens_before_the_stream_comes_to_it() {
    child!(&[HELD], || {
        let scene = Scene::registered();
        let stream = scene.cuda.stream();
        let late = Late::new(10_000, 777, 33);
        late.read(&scene, stream).ok();
        scene.untouched(0, 20_000);
        // Neither zero nor a length: whoever looks too early is found out.
        assert!(late.result() != 0 && late.result() != 10_000);
        assert_eq!(scene.cufile.stats().stream_operations_in_flight, 1);
        assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
        assert_eq!(late.result(), 10_000);
        scene.same(777, 33, 10_000);
        assert_eq!(scene.cufile.stats().stream_operations_in_flight, 0);
        scene.end();
    })
    .clean();
}

#[test]
fn operations_keep_the_order_of_their_stream() {
    child!(&[("CUDA_EMULATOR_DELAY", "random:3:300"), ("CUFILE_STANDIN_LATENCY", "random:4:300")], || {
        let scene = Scene::registered();
        for stream in [0, scene.cuda.stream()] {
            let (first, second) = (Late::new(8192, 0, 0), Late::new(4096, 100_000, 0));
            first.read(&scene, stream).ok();
            second.read(&scene, stream).ok();
            assert_eq!(scene.cuda.cuMemsetD8Async(scene.buffer + 16, 9, 16, stream), 0);
            assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
            assert_eq!((first.result(), second.result()), (8192, 4096));
            scene.same(100_000, 0, 16);
            assert_eq!(scene.cuda.bytes(scene.buffer + 16, 16), [9; 16]);
            scene.same(100_032, 32, 4064);
            scene.same(4096, 4096, 4096);
        }
        scene.end();
    })
    .clean();
}

#[test]
fn parameters_are_read_late() {
    child!(&[HELD], || {
        let scene = Scene::registered();
        let stream = scene.cuda.stream();
        let late = Late::new(10_000, 0, 0);
        late.read(&scene, stream).ok();
        (late.size, late.file_offset, late.buffer_offset) = (3_000, 500, 40);
        assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
        assert_eq!(late.result(), 3_000);
        scene.same(500, 40, 3_000);
        scene.untouched(3_040, 4_096);
        scene.end();
    })
    .clean();
}

#[test]
fn late_changes_can_be_reported() {
    child!(&[HELD, ("CUFILE_STANDIN_ASYNC_CHANGES", "report")], || {
        let scene = Scene::registered();
        let stream = scene.cuda.stream();
        let late = Late::new(10_000, 0, 0);
        late.read(&scene, stream).ok();
        late.file_offset = 500;
        assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
        scene.same(500, 0, 10_000);
        scene.end();
    })
    .reported(&["async-parameters-changed in cuFileReadAsync"]);
}

#[test]
fn fixed_parameters_are_those_of_the_call() {
    child!(&[HELD], || {
        let scene = Scene::registered();
        let stream = scene.cuda.stream();
        scene.cufile.cuFileStreamRegister(stream, 7).ok();
        let late = Late::new(10_000, 100, 8);
        late.read(&scene, stream).ok();
        (late.size, late.file_offset, late.buffer_offset) = (1, 2, 3);
        assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
        assert_eq!(late.result(), 10_000);
        scene.same(100, 8, 10_000);
        scene.cufile.cuFileStreamDeregister(stream).ok();
        // Page-aligned inputs were promised.
        scene.cufile.cuFileStreamRegister(stream, 8).ok();
        let late = Late::new(4096, 100, 0);
        late.read(&scene, stream).ok();
        assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
        assert_eq!(late.result(), -5022);
        scene.cufile.cuFileStreamDeregister(stream).ok();
        scene.end();
    })
    .reported(&["async-parameters-changed in cuFileReadAsync"]);
}

#[test]
fn the_end_of_the_file_and_errors_come_late() {
    child!(&[HELD], || {
        let scene = Scene::registered();
        let stream = scene.cuda.stream();
        let late = Late::new(4096, FILE as i64 - 6, 0);
        late.read(&scene, stream).ok();
        assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
        assert_eq!(late.result(), 6);
        let late = Late::new(4096, 0, 0);
        late.read(&scene, stream).ok();
        late.file_offset = -1;
        assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
        assert_eq!(late.result(), -5022);
        let nothing = Late::new(0, 0, 0);
        nothing.read(&scene, stream).ok();
        assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
        assert_eq!(nothing.result(), 0);
        let negative = Late::new(10, -1, 0);
        negative.read(&scene, stream).is(5022);
        scene.end();
    })
    .clean();
}

#[test]
fn writes_take_what_the_stream_has_put_there() {
    child!(&[HELD], || {
        let scene = Scene::registered();
        let out = std::fs::File::create("out").unwrap();
        let handle = scene.cufile.handle(&out);
        let stream = scene.cuda.stream();
        assert_eq!(scene.cuda.cuMemsetD8Async(scene.buffer, 5, 6000, stream), 0);
        let late = Late::new(6000, 4, 0);
        let (offset, place, result) = (&late.file_offset, &late.buffer_offset, &raw mut late.result);
        scene.cufile.cuFileWriteAsync(handle, scene.buffer, &late.size, offset, place, result, stream).ok();
        assert_eq!(std::fs::metadata("out").unwrap().len(), 0);
        assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
        assert_eq!(late.result(), 6000);
        let written = std::fs::read("out").unwrap();
        assert!(written.len() == 6004 && written[4..] == [5; 6000]);
        scene.cufile.cuFileHandleDeregister(handle);
        scene.end();
    })
    .clean();
}

#[test]
fn parameters_that_are_gone_are_reported() {
    child!(&[HELD], || {
        let scene = Scene::registered();
        let stream = scene.cuda.stream();
        let page = || {
            // SAFETY: a fresh mapping.
            let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, 3, 0x22, -1, 0) };
            assert_ne!(page, libc::MAP_FAILED);
            page.cast::<Late>()
        };
        let submit = |late: *mut Late| {
            // SAFETY: a whole page of our own, which nothing else refers to.
            unsafe { *late = Late { size: 4096, file_offset: 0, buffer_offset: 0, result: 0 } };
            // SAFETY: as above.
            unsafe { (*late).read(&scene, stream) }.ok();
        };
        let (freed, reused, grown) = (page(), page(), page());
        [freed, reused, grown].into_iter().for_each(submit);
        // SAFETY: the mistake that this test is about: the memory goes while the stream still needs it. (It is sealed and not
        // unmapped, so that nothing else can come to lie there.)
        unsafe {
            libc::mprotect(freed.cast(), 4096, libc::PROT_NONE);
            (*reused).result = 12;
            (*grown).size = 8192;
        }
        assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
        scene.untouched(0, 8192);
        // SAFETY: two pages that are mapped still.
        unsafe { assert_eq!(((*reused).result, (*grown).result), (12, -5022)) };
        scene.end();
    })
    .reported(&[
        "async-parameters-gone in cuFileReadAsync",
        "async-result-overwritten in cuFileReadAsync",
        "async-size-grew in cuFileReadAsync",
    ]);
}

#[test]
fn ending_things_before_the_stream_has_passed_is_reported() {
    child!(&[HELD], || {
        let scene = Scene::registered();
        let stream = scene.cuda.stream();
        scene.cufile.cuFileStreamRegister(stream, 0).ok();
        let late = Late::new(4096, 0, 0);
        late.read(&scene, stream).ok();
        scene.cufile.cuFileStreamDeregister(stream).ok();
        scene.cufile.cuFileBufDeregister(scene.buffer).ok();
        scene.cufile.cuFileHandleDeregister(scene.handle);
        assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
        assert_eq!(late.result(), -5027);
        scene.cufile.cuFileStreamDeregister(stream).is(5022);
        scene.cufile.cuFileDriverClose_v2().ok();
    })
    .reported(&[
        "deregister-in-flight in cuFileStreamDeregister",
        "deregister-in-flight in cuFileBufDeregister",
        "deregister-in-flight in cuFileHandleDeregister",
        "use-after-deregister in cuFileReadAsync",
        "double-deregister in cuFileStreamDeregister",
    ]);
}

#[test]
fn memory_freed_before_the_stream_has_passed_is_reported() {
    child!(&[HELD], || {
        let scene = Scene::new();
        let stream = scene.cuda.stream();
        let late = Late::new(4096, 0, 0);
        late.read(&scene, stream).ok();
        assert_eq!(scene.cuda.cuMemFree_v2(scene.buffer), 0);
        assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
        assert_eq!(late.result(), -5013);
    })
    .reported(&["free-while-held in cuMemFree_v2", "host-pointer in cuFileReadAsync"]);
}

const LATE_FAULTS: &str = "cuFileReadAsync:1:5038,cuFileReadAsync:2:errno:5,cuFileReadAsync:3:code:5030,\
    cuFileReadAsync:4:half,cuFileReadAsync:5:zero,cuFileReadAsync:6:cuda:719";

#[test]
fn operations_fail_at_once_or_late() {
    child!(&[HELD, ("CUFILE_STANDIN_FAIL", LATE_FAULTS)], || {
        let scene = Scene::registered();
        let stream = scene.cuda.stream();
        Late::new(4096, 0, 0).read(&scene, stream).is(5038);
        for wanted in [-5, -5030, 2048, 0] {
            let late = Late::new(4096, 0, 0);
            late.read(&scene, stream).ok();
            assert_eq!(scene.cuda.cuStreamSynchronize(stream), 0);
            assert_eq!(late.result(), wanted);
        }
        let error = Late::new(4096, 0, 0).read(&scene, stream);
        assert_eq!((error.cufile, error.cuda), (5011, 719));
        scene.same(0, 0, 2048);
        scene.untouched(2048, 2048);
        assert_eq!(scene.cufile.stats().faults_struck, 6);
        scene.end();
    })
    .clean();
}
