//! The ways in which bytes can travel from a file into memory, and the choice among them.
//!
//! A backend moves ranges of files into memory and nothing else: it reports what each read brought, and the loader
//! resumes short reads, falls back, and counts. So every backend is held to the same rules by the same code.

mod choose;
mod gds;
mod polling;
mod pool;
#[cfg(test)]
pub(crate) mod testing;
mod uring;

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::str::FromStr;

pub use choose::{Capabilities, Unavailable};
pub(crate) use choose::{Chosen, Wanted, choose};
pub(crate) use gds::{GdsReader, GdsSettings};
pub use polling::Polling;
pub(crate) use pool::PoolReader;
pub(crate) use uring::{NoRing, UringReader};

use serde::{Deserialize, Serialize};

use crate::cufile::Route;
use crate::error::by_name;
use crate::memory::cuda;
use crate::storage::FileObserver;
use crate::{Error, Result};

/// A way to read, as the user names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Backend {
    /// The best that works here: `gds` for a GPU where cuFile is really direct, else `uring`, else `pread`; and for
    /// shards that are in the page cache already, through the page cache.
    #[default]
    Auto,
    /// cuFile, from storage into GPU memory, from as many threads as there may be reads in flight. It reads around host
    /// memory only where the driver says so (see [`Report::gds_route`](crate::Report)); otherwise cuFile's own compatibility
    /// mode reads through it.
    Gds,
    /// io_uring with direct I/O, one ring driven by one thread.
    Uring,
    /// `pread` with direct I/O, from as many threads as there may be reads in flight.
    Pread,
    /// The usual two copies: `read` through the page cache into a buffer, then a copy to where the data is wanted;
    /// from as many threads as there may be reads in flight. The baseline to compare with.
    PageCache,
}

impl Backend {
    const ALL: [Backend; 5] =
        [Backend::Auto, Backend::Gds, Backend::Uring, Backend::Pread, Backend::PageCache];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Auto => "auto",
            Backend::Gds => "gds",
            Backend::Uring => "uring",
            Backend::Pread => "pread",
            Backend::PageCache => "page-cache",
        }
    }

    /// Whether the backend works on this machine, by trying it out.
    ///
    /// # Errors
    /// Why it does not, in words.
    pub fn probe(self) -> Result<Capabilities, Unavailable> {
        choose::probe(self)
    }
}

impl FromStr for Backend {
    type Err = Error;

    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a name that no backend has.
    fn from_str(name: &str) -> Result<Self> {
        by_name("backend", &Backend::ALL, Backend::name, name)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The way that bytes took, as it is counted and reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Way {
    /// cuFile, with no stop in host memory.
    Gds,
    /// cuFile in its compatibility mode, through host memory.
    CufileCompat,
    /// io_uring, around the page cache.
    UringDirect,
    /// io_uring, through the page cache.
    UringBuffered,
    /// `pread`, around the page cache.
    PreadDirect,
    /// `pread`, through the page cache.
    PreadBuffered,
    /// `read` through the page cache and a second copy.
    PageCache,
}

impl Way {
    /// Every way, in the order of [`BytesByWay`].
    pub const ALL: [Way; 7] = [
        Way::Gds,
        Way::CufileCompat,
        Way::UringDirect,
        Way::UringBuffered,
        Way::PreadDirect,
        Way::PreadBuffered,
        Way::PageCache,
    ];

    /// The key in reports.
    pub fn name(self) -> &'static str {
        match self {
            Way::Gds => "gds",
            Way::CufileCompat => "cufile_compat",
            Way::UringDirect => "uring_direct",
            Way::UringBuffered => "uring_buffered",
            Way::PreadDirect => "pread_direct",
            Way::PreadBuffered => "pread_buffered",
            Way::PageCache => "page_cache",
        }
    }

    /// What cuFile reads or writes, by the way that its driver goes.
    pub(crate) fn by_cufile(route: Route) -> Way {
        if route.is_direct() { Way::Gds } else { Way::CufileCompat }
    }

    pub(crate) fn of(backend: Backend, direct: bool) -> Way {
        match (backend, direct) {
            (Backend::PageCache, _) => Way::PageCache,
            // What `gds` cannot read by cuFile it reads by `pread`.
            (Backend::Pread | Backend::Gds, true) => Way::PreadDirect,
            (Backend::Pread | Backend::Gds, false) => Way::PreadBuffered,
            (_, true) => Way::UringDirect,
            (_, false) => Way::UringBuffered,
        }
    }
}

/// Delivered payload bytes, by the way they took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BytesByWay(pub(crate) [u64; Way::ALL.len()]);

impl BytesByWay {
    /// The bytes that went one way.
    pub fn bytes(&self, way: Way) -> u64 {
        self.0[way as usize]
    }

    /// The bytes over all ways.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The ways and their bytes, those with none included.
    pub fn iter(&self) -> impl Iterator<Item = (Way, u64)> + '_ {
        Way::ALL.into_iter().map(|way| (way, self.bytes(way)))
    }

    /// What came since `earlier`.
    pub(crate) fn since(&self, earlier: &BytesByWay) -> BytesByWay {
        BytesByWay(std::array::from_fn(|i| self.0[i].saturating_sub(earlier.0[i])))
    }

    pub(crate) fn add(&mut self, way: Way, bytes: u64) {
        self.0[way as usize] += bytes;
    }
}

impl std::ops::AddAssign for BytesByWay {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, bytes)| *sum += bytes);
    }
}

/// Payload bytes of a read that are copied from where they were read to where they are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First byte within the window that was read.
    pub(crate) from: u32,
    /// First byte within the ring of slots.
    pub(crate) to: usize,
    pub(crate) len: u32,
}

/// An address in host memory or in that of a GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Address {
    Host(*mut u8),
    /// In the memory of a GPU, which the host cannot touch.
    Device(u64),
}

impl Address {
    /// The address `bytes` further on.
    pub(crate) fn plus(self, bytes: usize) -> Address {
        match self {
            Address::Host(start) => Address::Host(start.wrapping_add(bytes)),
            Address::Device(start) => Address::Device(start + bytes as u64),
        }
    }

    /// The address in the memory of a GPU; `None` if it is not there.
    pub(crate) fn device(self) -> Option<u64> {
        match self {
            Address::Host(_) => None,
            Address::Device(start) => Some(start),
        }
    }

    /// The address in host memory; `None` if it is not there.
    pub(crate) fn host(self) -> Option<*mut u8> {
        match self {
            Address::Host(start) => Some(start),
            Address::Device(_) => None,
        }
    }
}

/// A copy out of a staging chunk, done by whoever completes the read, and done when it returns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gather {
    chunk: *const u8,
    /// The start of the ring, from which pieces count.
    ring: Address,
    pieces: *const Piece,
    count: usize,
}

// SAFETY: the pointers are used only by `run`, whose caller proves that they are valid wherever it runs.
unsafe impl Send for Gather {}

impl Gather {
    pub(crate) fn new(chunk: *const u8, ring: Address, pieces: &[Piece]) -> Self {
        Gather { chunk, ring, pieces: pieces.as_ptr(), count: pieces.len() }
    }

    /// Copies every piece. `context` is that of the device, for a slot in device memory.
    ///
    /// # Safety
    /// The slice of pieces is still alive; every piece lies within the chunk and within the ring; the chunk was
    /// filled up to the end of every piece; and nobody else touches these bytes of either meanwhile.
    pub(crate) unsafe fn run(&self, context: Option<&cuda::Context>) -> Result<()> {
        // SAFETY: the caller vouches for the slice.
        let pieces = unsafe { std::slice::from_raw_parts(self.pieces, self.count) };
        match (self.ring, context) {
            (Address::Host(ring), _) => {
                for piece in pieces {
                    // SAFETY: the caller vouches for both ranges; chunk and ring are different mappings.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            self.chunk.add(piece.from as usize),
                            ring.add(piece.to),
                            piece.len as usize,
                        );
                    }
                }
                Ok(())
            }
            // SAFETY: the caller vouches for both ranges.
            (Address::Device(ring), Some(context)) => unsafe {
                cuda::copy_now(context, self.chunk, ring, pieces)
            },
            (Address::Device(_), None) => Err(Error::argument("a copy to a device needs its context")),
        }
    }
}

/// One read as a backend sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    /// Comes back with the completion. At most one read in flight has it.
    pub(crate) token: u32,
    /// The place of the file among the open ones, as told to the `FileObserver`.
    pub(crate) file: u32,
    pub(crate) fd: RawFd,
    pub(crate) offset: u64,
    pub(crate) dest: Address,
    pub(crate) len: u32,
    /// The registered region that `dest..dest + len` lies in.
    pub(crate) region: u32,
    /// The number of the drive, if its polled queues are to be used for this read: a direct one.
    pub(crate) poll: Option<u32>,
    /// The data is in the page cache: reading it is a copy that keeps a processor busy, not a wait for a disk.
    pub(crate) cached: bool,
    /// cuFile's handle of the file; 0 for a read that does not go through cuFile.
    pub(crate) handle: usize,
    /// How many bytes the read must bring for its copy to be possible, and that copy. A backend that reads in
    /// threads of its own does the copy there; others leave it to the caller.
    pub(crate) gather: Option<(u32, Gather)>,
}

// SAFETY: the pointers are only written through by the kernel or the thread that does the read; see `Reader::start`.
unsafe impl Send for Request {}

/// What became of a read.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) token: u32,
    pub(crate) result: Result<u32, ReadFailure>,
    /// The copy of the request was done.
    pub(crate) gathered: bool,
    /// The way that the bytes took, where the backend has several.
    pub(crate) way: Option<Way>,
}

#[derive(Debug)]
pub(crate) enum ReadFailure {
    Errno(i32),
    /// The bytes came (so many), but not the way that was wanted.
    Refused(u32, Error),
    /// The copy that follows the read failed.
    Copy(Error),
    /// The thread that read panicked, with this message.
    Panicked(String),
}

/// A part of memory that reads land in, for registration with the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Region {
    pub(crate) start: Address,
    pub(crate) len: usize,
}

/// Moves ranges of files into memory: submit reads, reap completions.
///
/// At most as many reads are in flight as the reader was built for. Dropping it waits for all of them.
pub(crate) trait Reader: FileObserver {
    /// Starts a read.
    ///
    /// # Safety
    /// `dest..dest + len` lies in the region named, and it, the descriptor and what the gather points to stay
    /// valid, and are touched by nobody else, until the completion has been reaped or the reader dropped.
    unsafe fn start(&mut self, request: Request) -> io::Result<()>;

    /// Appends completed reads to `done`. With `block` it waits until there is at least one; it may only be called
    /// so while a read is in flight.
    fn reap(&mut self, block: bool, done: &mut Vec<Completion>) -> io::Result<()>;

    /// What the reader had to do without, in words.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// How many reads were completed by polling.
    fn polled(&self) -> u64 {
        0
    }
}
