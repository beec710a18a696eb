//! NVIDIA's own libcufile on the emulator, where a copy of it is at hand: `GPUFEED_LIBCUFILE=<path of libcufile.so.0>`.
//!
//! It comes in the wheels `nvidia-cufile` and `nvidia-cufile-cu12`; its licence lets a test fetch it, but it is never
//! committed. Needs `unshare` and the right to make user and mount namespaces.

mod common;

use std::ffi::{CString, c_char, c_void};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use common::{Cuda, in_child_of, library};

const TEST: &str = "the_real_libcufile_reads_right_bytes_into_device_memory";

/// What libcufile needs to know of the file's block device, which containers lack: udev's record of it.
const STARTER: &str = r#"mount -t tmpfs tmpfs /run && mkdir -p /run/udev/data &&
    printf 'E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=ext4\n' > "/run/udev/data/b$DEVICE" && exec "$0" "$@""#;

#[test]
fn the_real_libcufile_reads_right_bytes_into_device_memory() {
    if std::env::var_os("GPUFEED_LIBCUFILE").is_none() {
        println!("skipped: GPUFEED_LIBCUFILE does not name a libcufile.so.0");
        return;
    }
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cufile-{}", std::process::id()));
    if std::env::var_os("CUFILE_TEST_FILE").is_none() {
        std::fs::write(&path, content(1 << 20)).unwrap();
    }
    let number = path.metadata().map(|data| data.dev()).unwrap_or_default();
    let device = format!("{}:{}", libc::major(number), libc::minor(number));
    let library = library();
    for delay in ["none", "random:3:200", "adversarial"] {
        let environment = [
            ("CUDA_EMULATOR_DELAY", delay),
            ("CUDA_EMULATOR_DRIVER_VERSION", "13000"),
            // cuFileDriverOpen of 1.14 frees its first 64 KiB of device memory twice.
            ("CUDA_EMULATOR_OVERLOOK", "double-free@libcufile.so.0"),
            ("LD_PRELOAD", library.to_str().unwrap()),
            ("CUFILE_TEST_FILE", path.to_str().unwrap()),
            ("DEVICE", &device),
        ];
        let outcome = in_child_of(&["unshare", "-rm", "sh", "-c", STARTER], TEST, &environment, body);
        println!("{delay}: {}", outcome.output);
        outcome.clean();
    }
    std::fs::remove_file(&path).unwrap();
}

/// Bytes that differ at any two nearby offsets.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ at as u8).collect()
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Error {
    cufile: i32,
    cuda: i32,
}

#[repr(C)]
struct Descriptor {
    kind: i32,
    fd: u64,
    operations: *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    mode: i32,
    base: u64,
    file_offset: i64,
    device_offset: i64,
    size: usize,
    file: *mut c_void,
    opcode: i32,
    cookie: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct Finished {
    cookie: usize,
    status: i32,
    bytes: usize,
}

const COMPLETE: i32 = 0x10;

struct CuFile(*mut c_void);

impl CuFile {
    fn open(path: &str) -> CuFile {
        let path = CString::new(path).unwrap();
        // SAFETY: the library that the user named.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: after a failed dlopen, dlerror is a string.
            panic!("{:?}", unsafe { std::ffi::CStr::from_ptr(libc::dlerror()) });
        }
        CuFile(handle)
    }

    /// # Safety
    ///
    /// `F` must be the function's type.
    unsafe fn function<F: Copy>(&self, name: &str) -> F {
        let name = CString::new(name).unwrap();
        // SAFETY: an open handle and a NUL-terminated name.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr() as *const c_char) };
        assert!(!found.is_null(), "{name:?}");
        // SAFETY: a function pointer of this type, by the caller's word.
        unsafe { std::mem::transmute_copy(&found) }
    }
}

fn check(what: &str, error: Error) {
    assert_eq!((error.cufile, error.cuda), (0, 0), "{what}");
}

fn read_back(cuda: &Cuda, pointer: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ok!(cuda.cuMemcpyDtoH_v2(bytes.as_mut_ptr() as usize, pointer, len));
    bytes
}

fn body() {
    let cuda = Cuda::ready();
    let file = std::fs::File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(std::env::var("CUFILE_TEST_FILE").unwrap())
        .unwrap();
    let content = content(1 << 20);
    let cufile = CuFile::open(&std::env::var("GPUFEED_LIBCUFILE").unwrap());
    // SAFETY: in this block, each function is given the type and the arguments that cufile.h declares for it; every
    // pointer is to a live local or to device memory that is freed at the end.
    unsafe {
        let version: unsafe extern "C" fn(*mut i32) -> Error = cufile.function("cuFileGetVersion");
        let mut number = 0;
        check("version", version(&mut number));
        println!("libcufile {number}");

        let driver_open: unsafe extern "C" fn() -> Error = cufile.function("cuFileDriverOpen");
        check("driver open", driver_open());

        let register: unsafe extern "C" fn(*mut *mut c_void, *const Descriptor) -> Error =
            cufile.function("cuFileHandleRegister");
        let descriptor = Descriptor { kind: 1, fd: file.as_raw_fd() as u64, operations: std::ptr::null() };
        let mut handle = std::ptr::null_mut();
        check("handle register", register(&mut handle, &descriptor));

        let buffer = cuda.allocate(1 << 20);
        let buffer_register: unsafe extern "C" fn(u64, usize, i32) -> Error =
            cufile.function("cuFileBufRegister");
        check("buffer register", buffer_register(buffer, 1 << 20, 0));

        let read: unsafe extern "C" fn(*mut c_void, u64, usize, i64, i64) -> isize =
            cufile.function("cuFileRead");
        assert_eq!(read(handle, buffer, 100_000, 4097, 123), 100_000);
        assert!(read_back(&cuda, buffer + 123, 100_000) == content[4097..104_097], "wrong bytes");
        assert_eq!(read_back(&cuda, buffer, 123), [0xA5; 123], "bytes before the read's target changed");

        let setup: unsafe extern "C" fn(*mut *mut c_void, u32) -> Error =
            cufile.function("cuFileBatchIOSetUp");
        let mut batch = std::ptr::null_mut();
        check("batch set up", setup(&mut batch, 4));
        let parameters: Vec<Parameters> = (0..4)
            .map(|index| Parameters {
                mode: 1,
                base: buffer,
                file_offset: index * 65_536,
                device_offset: 262_144 + index * 65_536,
                size: 65_536,
                file: handle,
                opcode: 0,
                cookie: 1 + index as usize,
            })
            .collect();
        let submit: unsafe extern "C" fn(*mut c_void, u32, *const Parameters, u32) -> Error =
            cufile.function("cuFileBatchIOSubmit");
        check("batch submit", submit(batch, 4, parameters.as_ptr(), 0));
        let status: unsafe extern "C" fn(
            *mut c_void,
            u32,
            *mut u32,
            *mut Finished,
            *mut libc::timespec,
        ) -> Error = cufile.function("cuFileBatchIOGetStatus");
        let mut cookies = Vec::new();
        while cookies.len() < 4 {
            let mut finished = [Finished::default(); 4];
            let mut count = 4;
            check("batch status", status(batch, 1, &mut count, finished.as_mut_ptr(), std::ptr::null_mut()));
            for entry in &finished[..count as usize] {
                assert_eq!((entry.status, entry.bytes), (COMPLETE, 65_536), "{entry:?}");
                cookies.push(entry.cookie);
            }
        }
        cookies.sort_unstable();
        assert_eq!(cookies, [1, 2, 3, 4]);
        assert!(
            read_back(&cuda, buffer + 262_144, 262_144) == content[..262_144],
            "wrong bytes in the batch"
        );

        let destroy: unsafe extern "C" fn(*mut c_void) = cufile.function("cuFileBatchIODestroy");
        destroy(batch);
        let buffer_deregister: unsafe extern "C" fn(u64) -> Error = cufile.function("cuFileBufDeregister");
        check("buffer deregister", buffer_deregister(buffer));
        let deregister: unsafe extern "C" fn(*mut c_void) = cufile.function("cuFileHandleDeregister");
        deregister(handle);
        ok!(cuda.cuMemFree_v2(buffer));
        let close: unsafe extern "C" fn() -> Error = cufile.function("cuFileDriverClose_v2");
        check("driver close", close());
    }
    println!("right bytes; {:?}", cuda.stats());
}
