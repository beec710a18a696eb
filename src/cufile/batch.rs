//! Many reads at once, by cuFile's batch interface.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cufile_sys::{
    CUfileBatchHandle_t, CUfileBatchMode_t, CUfileIOEvents_t, CUfileIOParams_t, CUfileIOParamsBatch_t,
    CUfileIOParamsUnion_t, CUfileOpcode_t, CUfileStatus_t, decode_return, sym,
};

use super::file::Registered;
use super::registration::Registration;
use super::{Driver, FileHandle, RegisteredBuffer, check, io_failed, offset};
use crate::{Error, ErrorKind, Result};

/// A batch of which no entry is done for so long is not waited for any more when it is dropped.
const STUCK: Duration = Duration::from_secs(30);

/// A set of reads and writes that are submitted together; needs cuFile 1.2.
///
/// Entries are added, submitted once, and waited for. Dropping a submitted batch waits for it.
///
/// ```compile_fail,E0505
/// # use gpufeed::{Device, DeviceBuffer, cufile::{Batch, Driver, FileHandle, RegisteredBuffer}};
/// # let driver = Driver::open(Device::Cuda(0))?;
/// # let file = FileHandle::open(&driver, "data.bin")?;
/// let buffer = DeviceBuffer::new(Device::Cuda(0), 1 << 20)?;
/// let registered = RegisteredBuffer::unregistered(&driver, &buffer)?;
/// let mut batch = Batch::new(&driver, 1)?;
/// batch.read(&file, 0, 4096, &registered, 0)?;
/// drop(registered); // does not compile: the batch reads into it
/// batch.submit()?;
/// # Ok::<(), gpufeed::Error>(())
/// ```
#[derive(Debug)]
pub struct Batch<'b> {
    raw: CUfileBatchHandle_t,
    driver: Driver,
    entries: Vec<Entry>,
    capacity: usize,
    submitted: bool,
    buffers: PhantomData<&'b ()>,
}

// SAFETY: the handle may be used from any thread, one at a time, which `&mut self` sees to.
unsafe impl Send for Batch<'_> {}

#[derive(Debug)]
struct Entry {
    params: CUfileIOParams_t,
    /// Whether the driver is through with it. Its outcome goes to the caller once.
    done: bool,
    outcome: Option<Result<usize>>,
    // What the entry needs until it is done, even if the batch is forgotten.
    file: Arc<Registered>,
    _registration: Arc<Registration>,
}

/// What became of one entry of a batch.
#[derive(Debug)]
#[non_exhaustive]
pub struct BatchOutcome {
    /// The number that adding the entry gave.
    pub entry: usize,
    /// The bytes moved; fewer than asked for at the end of the file, or where the driver stopped short.
    pub result: Result<usize>,
}

impl<'b> Batch<'b> {
    /// Makes room for `capacity` entries.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 entries or more than the driver's limit ([`Properties::max_batch`]), `Unsupported` for a
    /// library without batches, `Device` if the driver refuses.
    ///
    /// [`Properties::max_batch`]: super::Properties::max_batch
    pub fn new(driver: &Driver, capacity: usize) -> Result<Batch<'b>> {
        let setup = driver.library().require(sym::cuFileBatchIOSetUp)?;
        let limit = driver.properties()?.max_batch as usize;
        if capacity == 0 || capacity > limit {
            return Err(Error::argument(format!(
                "a batch of {capacity} entries cannot be made; from 1 to the driver's limit of {limit} can"
            )));
        }
        let mut raw = CUfileBatchHandle_t::NULL;
        let _entered = driver.context().enter()?;
        // SAFETY: the result lives through the call.
        check("cuFile cannot set up a batch", unsafe { setup(&mut raw, capacity as u32) })?;
        Ok(Batch {
            raw,
            driver: driver.clone(),
            entries: Vec::with_capacity(capacity),
            capacity,
            submitted: false,
            buffers: PhantomData,
        })
    }

    /// Adds a read of `len` bytes from byte `from` of the file into the buffer, from its byte `at` on. Returns the
    /// entry's number.
    ///
    /// # Errors
    /// `InvalidArgument` for a range beyond the buffer, a batch that is full or was submitted, or a file or buffer of
    /// another driver's device.
    pub fn read(
        &mut self,
        file: &'b FileHandle,
        from: u64,
        len: usize,
        buffer: &'b RegisteredBuffer<'_>,
        at: usize,
    ) -> Result<usize> {
        self.add(CUfileOpcode_t::READ, file, from, len, buffer, at)
    }

    /// Adds a write of `len` bytes of the buffer, from its byte `at` on, to byte `to` of the file. Returns the entry's
    /// number.
    ///
    /// # Errors
    /// As `read`.
    pub fn write(
        &mut self,
        file: &'b FileHandle,
        to: u64,
        len: usize,
        buffer: &'b RegisteredBuffer<'_>,
        at: usize,
    ) -> Result<usize> {
        self.add(CUfileOpcode_t::WRITE, file, to, len, buffer, at)
    }

    fn add(
        &mut self,
        opcode: CUfileOpcode_t,
        file: &FileHandle,
        from: u64,
        len: usize,
        buffer: &RegisteredBuffer<'_>,
        at: usize,
    ) -> Result<usize> {
        buffer.check(at, len)?;
        if self.submitted {
            return Err(Error::argument("the batch was submitted already; make another"));
        }
        if self.entries.len() == self.capacity {
            return Err(Error::argument(format!(
                "the batch is full: it was made for {} entries",
                self.capacity
            )));
        }
        let number = self.entries.len();
        let registration = buffer.registration();
        let params = CUfileIOParams_t {
            mode: CUfileBatchMode_t::BATCH,
            u: CUfileIOParamsUnion_t {
                batch: CUfileIOParamsBatch_t {
                    devPtr_base: registration.start() as *mut c_void,
                    file_offset: offset(from)?,
                    devPtr_offset: offset(at as u64)?,
                    size: len,
                },
            },
            fh: file.shared().raw(),
            opcode,
            // Entries are told apart by their number, not by a pointer.
            cookie: (number + 1) as *mut c_void,
        };
        let (file, _registration) = (Arc::clone(file.shared()), Arc::clone(registration));
        self.entries.push(Entry { params, done: false, outcome: None, file, _registration });
        Ok(number)
    }

    /// Hands all entries to the driver.
    ///
    /// # Errors
    /// `InvalidArgument` for a batch without entries or one that was submitted; `Device` if the driver refuses, and
    /// then nothing is in flight.
    pub fn submit(&mut self) -> Result<()> {
        if self.submitted || self.entries.is_empty() {
            return Err(Error::argument("a batch is submitted once, with at least one entry"));
        }
        let submit = self.driver.library().require(sym::cuFileBatchIOSubmit)?;
        let mut params: Vec<CUfileIOParams_t> = self.entries.iter().map(|entry| entry.params).collect();
        let _entered = self.driver.context().enter()?;
        // SAFETY: the handle is set up for at least this many entries, which name registered files and ranges inside
        // buffers that the entries keep alive; the driver copies the parameters.
        let returned = unsafe { submit(self.raw, params.len() as u32, params.as_mut_ptr(), 0) };
        check("cuFile refuses the batch", returned)?;
        self.submitted = true;
        Ok(())
    }

    /// Waits until every entry is done, and checks the status and the length of each.
    ///
    /// # Errors
    /// `InvalidArgument` for a batch that was not submitted; `Device` if the driver fails or the deadline passes: the
    /// entries that were not done are then still in flight, and dropping the batch waits for them.
    pub fn wait(&mut self, deadline: Duration) -> Result<Vec<BatchOutcome>> {
        if !self.submitted {
            return Err(Error::argument("the batch was not submitted"));
        }
        let start = Instant::now();
        while self.unfinished() > 0 {
            let Some(left) = deadline.checked_sub(start.elapsed()) else {
                let what = format!(
                    "{} of {} entries were not done within {deadline:?}",
                    self.unfinished(),
                    self.entries.len()
                );
                return Err(Error::new(ErrorKind::Device, what));
            };
            self.poll(left.min(Duration::from_millis(100)))?;
        }
        let outcomes = self.entries.iter_mut().enumerate();
        Ok(outcomes
            .map(|(entry, it)| BatchOutcome {
                entry,
                result: it
                    .outcome
                    .take()
                    .unwrap_or_else(|| Err(Error::argument("the batch was waited for already"))),
            })
            .collect())
    }

    /// Waits for as long as entries keep being done.
    fn settle(&mut self) {
        let (mut left, mut since) = (self.unfinished(), Instant::now());
        while self.submitted && left > 0 && since.elapsed() < STUCK {
            if self.poll(Duration::from_millis(100)).is_err() {
                return;
            }
            if self.unfinished() < left {
                (left, since) = (self.unfinished(), Instant::now());
            }
        }
    }

    fn unfinished(&self) -> usize {
        self.entries.iter().filter(|entry| !entry.done).count()
    }

    /// Takes note of what is done, waiting for at least one entry, for about this long.
    fn poll(&mut self, patience: Duration) -> Result<()> {
        let ask = self.driver.library().require(sym::cuFileBatchIOGetStatus)?;
        let none = CUfileIOEvents_t { cookie: std::ptr::null_mut(), status: CUfileStatus_t(0), ret: 0 };
        let mut events = vec![none; self.unfinished()];
        let mut count = events.len() as u32;
        let mut timeout = libc::timespec {
            tv_sec: patience.as_secs() as libc::time_t,
            tv_nsec: patience.subsec_nanos().into(),
        };
        let entered = self.driver.context().enter()?;
        // SAFETY: the handle is set up and submitted, `events` has room for `count` entries, and all live through the
        // call.
        let returned = unsafe { ask(self.raw, 1, &mut count, events.as_mut_ptr(), &mut timeout) };
        drop(entered);
        check("cuFile does not tell a batch's status", returned)?;
        if count == 0 {
            // Not every version waits as long as it is asked to.
            std::thread::sleep(Duration::from_micros(100).min(patience));
        }
        for event in &events[..(count as usize).min(events.len())] {
            let number = (event.cookie as usize).wrapping_sub(1);
            let Some(entry) = self.entries.get_mut(number) else {
                return Err(Error::new(
                    ErrorKind::Device,
                    format!("cuFile reports an entry {number} that there is not"),
                ));
            };
            // Waiting and pending entries are reported too, by some versions.
            if event.status != CUfileStatus_t::WAITING && event.status != CUfileStatus_t::PENDING {
                entry.outcome = Some(judge(entry, event));
                entry.done = true;
            }
        }
        Ok(())
    }
}

/// Status and length, both: a failed or short entry is never taken for a whole one.
fn judge(entry: &Entry, event: &CUfileIOEvents_t) -> Result<usize> {
    // SAFETY: entries are made with this form of the union only.
    let asked = unsafe { entry.params.u.batch };
    let error = |error: Error| {
        error.at(entry.file.path()).range(asked.file_offset as u64, asked.size as u64).by("gds")
    };
    let what = format!("an entry of a cuFile batch failed (status {})", event.status.0);
    match decode_return(event.returned(), 0) {
        Ok(n) if event.status == CUfileStatus_t::COMPLETE && n <= asked.size => Ok(n),
        Ok(n) => Err(error(Error::new(ErrorKind::Io, format!("{what}, {n} of {} bytes", asked.size)))),
        Err(failure) => Err(error(io_failed(&what, failure))),
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let library = self.driver.library();
        if self.driver.context().check_process().is_err() {
            return;
        }
        // Not cancelled first: a cancelled batch never tells when the driver is through with its memory.
        self.settle();
        if self.submitted && self.unfinished() > 0 {
            // The driver does not tell what became of these: neither they nor their memory are ever given back.
            std::mem::forget(std::mem::take(&mut self.entries));
            return;
        }
        if let (Ok(destroy), Ok(_entered)) =
            (library.require(sym::cuFileBatchIODestroy), self.driver.context().enter())
        {
            // SAFETY: set up in `new` and destroyed only here; nothing of it is in flight.
            unsafe { destroy(self.raw) };
        }
    }
}
