//! Reads by cuFile, into GPU memory, from a pool of threads.
//!
//! What cuFile cannot or should not read (a file that it refuses, a read that failed, a shard that is in the page cache,
//! a read too small to be worth it) is read by `pread` into host memory and copied to the GPU, by the same threads, and
//! counted as such.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use cufile_sys::{CUfileHandle_t, decode_return, sym};

use super::pool::{PoolReader, Work, pread};
use super::{Completion, ReadFailure, Reader, Region, Request, Way};
use crate::cufile::{Driver, Registration, Route};
use crate::memory::HostMapping;
use crate::memory::cuda::{self, Context, CudaBuffer};
use crate::storage::FileObserver;
use crate::{Error, ErrorKind, Result};

/// Of the GPU's BAR1 space at most this part is taken for registrations; others on the machine need some too.
const BAR_SHARE: u64 = 2;
/// A short read goes on from a boundary of this many bytes.
const BLOCK: usize = 4096;

/// What a loader wants of the backend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GdsSettings {
    /// A read that cuFile does not do is an error.
    pub(crate) require: bool,
    /// Reads of fewer bytes do not go through cuFile.
    pub(crate) smallest: u32,
}

/// A pool of threads that read by cuFile.
pub(crate) struct GdsReader {
    pool: PoolReader,
    /// Registrations of the regions; those that failed are not in here. Dropped after the pool.
    _registrations: Vec<Registration>,
    /// cuFile's handles of the open files, by place.
    handles: Vec<Option<Arc<Handle>>>,
    /// The place of the file of each read in flight, and the handle that it uses, by token.
    in_use: Vec<(usize, Option<Arc<Handle>>)>,
    /// Why files are not read by cuFile, by place: it refused them or failed once, or would not read them directly.
    refused: Vec<Option<String>>,
    way: Way,
    driver: Driver,
    settings: GdsSettings,
    notes: Vec<String>,
}

/// A registered descriptor, which the file table keeps open.
#[derive(Debug)]
struct Handle {
    raw: CUfileHandle_t,
    driver: Driver,
}

// SAFETY: cuFile's functions take a handle from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: registered when it was made; reads in flight hold a reference.
        unsafe { crate::cufile::deregister(&self.driver, self.raw) };
    }
}

impl GdsReader {
    /// Starts `depth` threads, and registers the regions, which lie in `memory`, as far as that goes.
    pub(crate) fn new(
        (driver, route): (Driver, Route),
        settings: GdsSettings,
        depth: u32,
        io_bytes: u32,
        regions: &[(Region, &Arc<CudaBuffer>)],
    ) -> Result<Self> {
        let mut notes = Vec::new();
        let registrations = register(&driver, regions, &mut notes);
        let starts = regions.iter().filter_map(|(region, _)| region.start.device()).collect::<Arc<[u64]>>();
        let way = Way::by_cufile(route);
        let pool = PoolReader::with(depth, || {
            let worker = Worker {
                read: driver.library().require(sym::cuFileRead)?,
                context: Arc::clone(driver.context()),
                regions: Arc::clone(&starts),
                bounce: HostMapping::new(io_bytes as usize)?,
                way,
                require: settings.require,
            };
            Ok(Box::new(move |request: &Request| worker.serve(request)) as Work)
        })?;
        let in_use = (0..depth).map(|_| (0, None)).collect();
        let (handles, refused) = (Vec::new(), Vec::new());
        Ok(GdsReader {
            pool,
            _registrations: registrations,
            handles,
            in_use,
            refused,
            way,
            driver,
            settings,
            notes,
        })
    }
}

/// Registers as much as the GPU's BAR1 space allows. What is left out is read into unregistered, which works too.
fn register(
    driver: &Driver,
    regions: &[(Region, &Arc<CudaBuffer>)],
    notes: &mut Vec<String>,
) -> Vec<Registration> {
    let bar = driver.bar_bytes().ok().filter(|&bytes| bytes > 0).map(|bytes| bytes / BAR_SHARE);
    let pinned = driver.properties().ok().map(|it| it.max_pinned_bytes).filter(|&bytes| bytes > 0);
    let limit = bar.unwrap_or(u64::MAX).min(pinned.unwrap_or(u64::MAX));
    let (mut registrations, mut bytes) = (Vec::new(), 0);
    let mut why = None;
    for (region, memory) in regions {
        let Some(start) = region.start.device() else { continue };
        if bytes + region.len as u64 > limit {
            why = Some(format!(
                "no more than {limit} bytes are registered, for the sake of the GPU's BAR1 space"
            ));
            break;
        }
        match Registration::new(driver, memory, start, region.len) {
            Ok(registration) => registrations.push(registration),
            Err(error) => {
                why = Some(error.to_string());
                break;
            }
        }
        bytes += region.len as u64;
    }
    if let Some(why) = why {
        let (done, all) = (registrations.len(), regions.len());
        notes.push(format!(
            "{done} of {all} buffers are registered with cuFile, the others are used as they are: {why}"
        ));
    }
    registrations
}

/// What one thread has.
struct Worker {
    read: ReadFunction,
    context: Arc<Context>,
    /// Where each region starts.
    regions: Arc<[u64]>,
    /// Where bytes land that do not come by cuFile.
    bounce: HostMapping,
    way: Way,
    require: bool,
}

type ReadFunction =
    unsafe extern "C" fn(CUfileHandle_t, *mut std::ffi::c_void, usize, libc::off_t, libc::off_t) -> isize;

impl Worker {
    fn serve(&self, request: &Request) -> Completion {
        let done = |result, way| Completion { token: request.token, result, gathered: false, way };
        let Some(dest) = request.dest.device() else {
            return done(Err(ReadFailure::Errno(libc::EFAULT)), None);
        };
        let mut refused = None;
        if request.handle != 0 {
            match self.by_cufile(request, dest) {
                Ok(n) => return done(Ok(n), Some(self.way)),
                Err(error) if self.require => return done(Err(ReadFailure::Copy(error)), None),
                Err(error) => refused = Some(error),
            }
        }
        match self.by_pread(request, dest) {
            Ok(n) => match refused {
                // The bytes are there all the same; the caller remembers not to try this file again.
                Some(error) => done(Err(ReadFailure::Refused(n, error)), None),
                None => done(Ok(n), None),
            },
            Err(failure) => done(Err(failure), None),
        }
    }

    fn by_cufile(&self, request: &Request, dest: u64) -> Result<u32> {
        let base = self.regions[request.region as usize];
        let _entered = self.context.enter()?;
        let handle = CUfileHandle_t(request.handle as *mut _);
        let (from, at) = (request.offset as libc::off_t, (dest - base) as libc::off_t);
        // SAFETY: the handle stays registered until the read has been reaped; the destination lies in the region, which
        // is allocated, and nobody else touches it meanwhile (the contract of `Reader::start`).
        let n = unsafe { (self.read)(handle, base as *mut _, request.len as usize, from, at) };
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        match decode_return(n, errno) {
            Ok(n) if n < request.len as usize && stalled(request, n) => {
                let what = format!("cuFile brought {n} of {} bytes, though the file goes on", request.len);
                Err(Error::new(ErrorKind::Io, what))
            }
            Ok(n) if n <= request.len as usize => Ok(n as u32),
            Ok(n) => Err(Error::new(ErrorKind::Io, format!("cuFile reports {n} bytes of {}", request.len))),
            Err(failure) => Err(Error::new(ErrorKind::Io, format!("the cuFile read failed: {failure}"))),
        }
    }

    fn by_pread(&self, request: &Request, dest: u64) -> Result<u32, ReadFailure> {
        let n = pread(request, self.bounce.as_ptr())?;
        // SAFETY: the bounce buffer has room for the largest I/O, of which `n` bytes were just read, and is this
        // thread's alone.
        let bytes = unsafe { std::slice::from_raw_parts(self.bounce.as_ptr(), n as usize) };
        // SAFETY: the destination has room for the whole request and is this read's alone.
        unsafe { cuda::copy_in(&self.context, bytes, dest) }.map_err(ReadFailure::Copy)?;
        Ok(n)
    }
}

/// Whether a read has come short of the next boundary and not to the end of the file: the loader would ask for the same
/// bytes again.
fn stalled(request: &Request, n: usize) -> bool {
    // SAFETY: zeros are a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open while the read is in flight, and the result lives through the call.
    let known = n < BLOCK && unsafe { libc::fstat(request.fd, &mut stat) } == 0;
    known && request.offset + (n as u64) < stat.st_size as u64
}

/// Whether a descriptor is open for direct I/O.
fn is_direct(fd: RawFd) -> bool {
    // SAFETY: takes a descriptor, and changes nothing.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags != -1 && flags & libc::O_DIRECT != 0
}

impl FileObserver for GdsReader {
    fn opened(&mut self, index: u32, fd: RawFd) {
        let place = index as usize;
        if self.handles.len() <= place {
            self.handles.resize_with(place + 1, || None);
            self.refused.resize(place + 1, None);
        }
        self.refused[place] = None;
        if self.way == Way::Gds && !is_direct(fd) {
            // cuFile would read it through the page cache, and not say so. Why it is not is told elsewhere.
            self.refused[place] = Some("it is not open for direct I/O".into());
            return;
        }
        match crate::cufile::register(&self.driver, fd) {
            Ok(raw) => self.handles[place] = Some(Arc::new(Handle { raw, driver: self.driver.clone() })),
            Err(error) => {
                self.refused[place] = Some(error.to_string());
                self.note(format!("a file is not read by cuFile: {error}"));
            }
        }
    }

    fn closing(&mut self, index: u32) {
        if let Some(handle) = self.handles.get_mut(index as usize) {
            *handle = None;
        }
    }
}

impl GdsReader {
    /// Kept few: what happens to one file mostly happens to all.
    fn note(&mut self, note: String) {
        const MOST: usize = 16;
        if self.notes.len() < MOST && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

impl Reader for GdsReader {
    unsafe fn start(&mut self, mut request: Request) -> io::Result<()> {
        let place = request.file as usize;
        let unfit = self.refused[place].is_some() || request.cached || request.len < self.settings.smallest;
        let handle = self.handles[place].as_ref().filter(|_| !unfit || self.settings.require);
        if handle.is_none() && self.settings.require {
            let why = self.refused[place].as_deref().unwrap_or("it has no handle");
            return Err(io::Error::other(format!("GDS is required, and does not read the file: {why}")));
        }
        request.handle = handle.map_or(0, |handle| handle.raw.0 as usize);
        self.in_use[request.token as usize] = (place, handle.cloned());
        // SAFETY: as the caller vouches; the handle is kept until the read has been reaped.
        unsafe { self.pool.start(request) }
    }

    fn reap(&mut self, block: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        let before = done.len();
        let reaped = self.pool.reap(block, done);
        for completion in &mut done[before..] {
            let (place, _handle) = std::mem::take(&mut self.in_use[completion.token as usize]);
            if let Err(ReadFailure::Refused(n, error)) = &completion.result {
                let (n, note) =
                    (*n, format!("cuFile failed once and was not used for that file again: {error}"));
                completion.result = Ok(n);
                self.refused[place] = Some(note.clone());
                self.note(note);
            }
        }
        reaped
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}
