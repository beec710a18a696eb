//! What most tests begin with.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

use super::{CuFile, Cuda, Parameters, content};

/// Both libraries ready, the driver open, a file of [`content`], and a registered buffer.
pub struct Scene {
    pub cuda: Cuda,
    pub cufile: CuFile,
    pub file: File,
    pub handle: usize,
    pub buffer: u64,
    pub content: Vec<u8>,
}

/// The file's length: no multiple of anything.
pub const FILE: usize = 1_234_567;
/// The buffer's length.
pub const BUFFER: usize = 2 << 20;

impl Scene {
    pub fn new() -> Scene {
        let cuda = Cuda::ready();
        let cufile = CuFile::load();
        cufile.cuFileDriverOpen().ok();
        let content = content(FILE);
        std::fs::write("data", &content).unwrap();
        let file = direct("data");
        let handle = cufile.handle(&file);
        let buffer = cuda.allocate(BUFFER);
        Scene { cuda, cufile, file, handle, buffer, content }
    }

    /// As [`Scene::new`], with the buffer registered.
    pub fn registered() -> Scene {
        let scene = Scene::new();
        scene.cufile.cuFileBufRegister(scene.buffer, BUFFER, 0).ok();
        scene
    }

    pub fn read(&self, size: usize, file_offset: i64, buffer_offset: i64) -> isize {
        self.cufile.cuFileRead(self.handle, self.buffer, size, file_offset, buffer_offset)
    }

    /// An entry of a batch that reads into the buffer where the file has it, as far as both go.
    pub fn entry(&self, cookie: usize, offset: usize, size: usize) -> Parameters {
        Parameters {
            mode: 1,
            base: self.buffer,
            file_offset: offset as i64,
            buffer_offset: offset as i64,
            size,
            handle: self.handle,
            opcode: 0,
            cookie,
        }
    }

    /// The buffer's bytes at these offsets are the file's.
    #[track_caller]
    pub fn same(&self, file_offset: usize, buffer_offset: usize, len: usize) {
        let found = self.cuda.bytes(self.buffer + buffer_offset as u64, len);
        assert!(found == self.content[file_offset..file_offset + len], "wrong bytes");
    }

    /// Nothing was written to these bytes since they were allocated.
    #[track_caller]
    pub fn untouched(&self, buffer_offset: usize, len: usize) {
        let found = self.cuda.bytes(self.buffer + buffer_offset as u64, len);
        assert!(found.iter().all(|byte| *byte == 0xA5), "bytes changed");
    }

    /// Gives everything back in order. The buffer must be registered.
    pub fn end(self) {
        self.cufile.cuFileBufDeregister(self.buffer).ok();
        self.end_unregistered();
    }

    pub fn end_unregistered(self) {
        self.cufile.cuFileHandleDeregister(self.handle);
        self.cufile.cuFileDriverClose_v2().ok();
        assert_eq!(self.cuda.cuMemFree_v2(self.buffer), 0);
    }
}

/// A file opened to be read with `O_DIRECT`.
pub fn direct(path: &str) -> File {
    File::options().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
}
