//! The bytes are right, whatever the offset and the length.

mod common;

use common::{BUFFER, FILE, HELD, Scene, errno};

const LEAKS: &[(&str, &str)] = &[("CUFILE_STANDIN_LEAKS", "1")];

#[test]
fn bytes_are_right_at_awkward_offsets_and_lengths() {
    child!(LEAKS, || {
        let scene = Scene::registered();
        for (size, file_offset, buffer_offset) in [
            (1, 0, 0),
            (4096, 4096, 8192),
            (4097, 4095, 1),
            (511, 513, 4097),
            (100_000, 4097, 123),
            (FILE, 0, 3),
            (1, FILE - 1, BUFFER - 1),
        ] {
            assert_eq!(scene.read(size, file_offset as i64, buffer_offset as i64), size as isize);
            scene.same(file_offset, buffer_offset, size);
        }
        scene.end();
    })
    .clean();
}

#[test]
fn bytes_around_the_target_stay_as_they_are() {
    child!(LEAKS, || {
        let scene = Scene::registered();
        assert_eq!(scene.read(1000, 77, 4099), 1000);
        scene.untouched(0, 4099);
        scene.same(77, 4099, 1000);
        scene.untouched(5099, 4096);
        scene.end();
    })
    .clean();
}

#[test]
fn reads_end_at_the_end_of_the_file() {
    child!(LEAKS, || {
        let scene = Scene::registered();
        assert_eq!(scene.read(4096, FILE as i64 - 100, 0), 100);
        scene.same(FILE - 100, 0, 100);
        scene.untouched(100, 4096);
        assert_eq!(scene.read(4096, FILE as i64, 0), 0);
        assert_eq!(scene.read(4096, 1 << 40, 0), 0);
        assert_eq!(scene.read(0, 0, 0), 0);
        scene.end();
    })
    .clean();
}

#[test]
fn reads_of_unregistered_memory_work() {
    child!(LEAKS, || {
        let scene = Scene::new();
        assert_eq!(scene.read(5000, 1, 1), 5000);
        scene.same(1, 1, 5000);
        scene.end_unregistered();
    })
    .clean();
}

#[test]
fn reads_of_unregistered_memory_can_be_forbidden() {
    child!(&[("CUFILE_STANDIN_UNREGISTERED_READS", "fail")], || {
        let scene = Scene::new();
        assert_eq!(scene.read(5000, 1, 1), -5024);
        scene.untouched(0, 5002);
        scene.end_unregistered();
    })
    .clean();
}

#[test]
fn arguments_that_make_no_sense_are_errors() {
    child!(LEAKS, || {
        let scene = Scene::registered();
        for (size, file_offset, buffer_offset, wanted) in
            [(4096, -1, 0, 5022), (4096, 0, -1, 5030), (4096, i64::MAX - 10, 0, 5022)]
        {
            assert_eq!(scene.read(size, file_offset, buffer_offset), -1);
            assert_eq!(errno(), wanted);
        }
        assert_eq!(scene.cufile.cuFileRead(scene.handle, 0, 4096, 0, 0), -1);
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(scene.cufile.cuFileWrite(scene.handle, scene.buffer, 4096, 0, 0), -1);
        assert_eq!(errno(), 5019);
        scene.end();
    })
    .clean();
}

#[test]
fn host_memory_can_be_allowed() {
    child!(&[("CUFILE_STANDIN_HOST_MEMORY", "allow")], || {
        let scene = Scene::new();
        let mut bytes = vec![0_u8; 5000];
        assert_eq!(scene.cufile.cuFileRead(scene.handle, bytes.as_mut_ptr() as u64, 4900, 7, 50), 4900);
        assert!(bytes[50..4950] == scene.content[7..4907]);
        scene.end_unregistered();
    })
    .clean();
}

#[test]
fn vectors_are_filled_one_after_the_other() {
    child!(LEAKS, || {
        let scene = Scene::registered();
        let at = |offset: u64, len: usize| (scene.buffer + offset, len);
        let vectors = [at(9, 100), at(8192, 0), at(5000, 4097), at(1000, 1)];
        assert_eq!(scene.cufile.cuFileReadv(scene.handle, vectors.as_ptr(), 4, 33, 0), 4198);
        scene.same(33, 9, 100);
        scene.same(133, 5000, 4097);
        scene.same(4230, 1000, 1);
        let tail = FILE as i64 - 150;
        assert_eq!(scene.cufile.cuFileReadv(scene.handle, vectors.as_ptr(), 4, tail, 0), 150);
        scene.same(FILE - 50, 5000, 50);
        assert_eq!(scene.cufile.cuFileReadv(scene.handle, vectors.as_ptr(), 0, 0, 0), -1);
        assert_eq!(scene.cufile.cuFileReadv(scene.handle, vectors.as_ptr(), 4, 0, 1), -1);
        assert_eq!(errno(), 5022);
        scene.end();
    })
    .clean();
}

#[test]
fn writes_reach_the_file() {
    child!(LEAKS, || {
        let scene = Scene::registered();
        let file = std::fs::File::options().read(true).write(true).create_new(true).open("out").unwrap();
        let handle = scene.cufile.handle(&file);
        assert_eq!(scene.read(100_000, 0, 0), 100_000);
        assert_eq!(scene.cufile.cuFileWrite(handle, scene.buffer, 70_000, 11, 77), 70_000);
        let vectors = [(scene.buffer, 10), (scene.buffer + 4096, 20)];
        assert_eq!(scene.cufile.cuFileWritev(handle, vectors.as_ptr(), 2, 80_000, 0), 30);
        let written = std::fs::read("out").unwrap();
        assert_eq!(written.len(), 80_030);
        assert!(written[..11] == [0; 11] && written[11..70_011] == scene.content[77..70_077]);
        assert!(written[80_000..80_010] == scene.content[..10]);
        assert!(written[80_010..] == scene.content[4096..4116]);
        scene.cufile.cuFileHandleDeregister(handle);
        scene.end();
    })
    .clean();
}

#[test]
fn reads_do_not_wait_for_streams() {
    child!(&[HELD], || {
        let scene = Scene::registered();
        // Held back on the default stream, and so written over what the read has put there.
        assert_eq!(scene.cuda.cuMemsetD8Async(scene.buffer, 7, 4096, 0), 0);
        assert_eq!(scene.read(4096, 0, 0), 4096);
        scene.same(0, 0, 4096);
        assert_eq!(scene.cuda.cuStreamSynchronize(0), 0);
        assert_eq!(scene.cuda.bytes(scene.buffer, 4096), [7; 4096]);
        scene.end();
    })
    .clean();
}

#[test]
fn many_threads_read_at_once() {
    let environment = [("CUFILE_STANDIN_LATENCY", "random:3:300"), ("CUDA_EMULATOR_DELAY", "random:5:100")];
    child!(&environment, || {
        let scene = Scene::registered();
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let scene = &scene;
                threads.spawn(move || {
                    scene.cuda.bind(0);
                    for step in 0..20 {
                        let offset = thread * 200_000 + step * 9_973;
                        assert_eq!(scene.read(9_973, offset as i64, offset as i64), 9_973);
                    }
                });
            }
        });
        for thread in 0..4 {
            scene.same(thread * 200_000, thread * 200_000, 20 * 9_973);
        }
        let stats = scene.cufile.stats();
        assert_eq!((stats.reads, stats.read_bytes), (80, 80 * 9_973));
        assert_eq!((stats.posix_bytes, stats.direct_bytes), (80 * 9_973, 0));
        scene.end();
    })
    .clean();
}

#[test]
fn large_operations_go_through_in_pieces() {
    child!(LEAKS, || {
        const LARGE: usize = (9 << 20) + 1;
        let scene = Scene::registered();
        let bytes = common::content(LARGE);
        std::fs::write("large", &bytes).unwrap();
        let file = std::fs::File::options().read(true).write(true).open("large").unwrap();
        let handle = scene.cufile.handle(&file);
        let memory = scene.cuda.allocate(LARGE);
        assert_eq!(scene.cufile.cuFileRead(handle, memory, LARGE - 5, 5, 5), LARGE as isize - 5);
        assert!(scene.cuda.bytes(memory + 5, LARGE - 5) == bytes[5..]);
        assert_eq!(scene.cufile.cuFileWrite(handle, memory, LARGE - 5, 0, 5), LARGE as isize - 5);
        assert!(std::fs::read("large").unwrap()[..LARGE - 5] == bytes[5..]);
        scene.cufile.cuFileHandleDeregister(handle);
        scene.end();
    })
    .clean();
}
