//! Reads and writes in the order of a CUDA stream. Sizes and offsets are read when the stream comes to them.

use std::ffi::c_void;

use crate::call::{self, When};
use crate::cuda;
use crate::error::{Answer, Error, Failure, code};
use crate::fault::What;
use crate::ledger::{Direction, Form};
use crate::misuse::{Misuse, report};
use crate::settings::settings;
use crate::state::{State, Stream};
use crate::target::{self, Busy, Naming};
use crate::{probe, threads, transfer};

const FIXED_BUFFER_OFFSET: u32 = 1;
const FIXED_FILE_OFFSET: u32 = 2;
const FIXED_SIZE: u32 = 4;
const PAGE_ALIGNED: u32 = 8;

/// Put where the result will be, to see whether somebody else writes there before the stream has passed. As a result
/// it makes no sense.
const CANARY: u64 = 0xA5A5_CAFE_0000_5A5A;

/// Where the parameters lie in the caller's memory, as plain numbers: they may be gone when they are read.
#[derive(Clone, Copy, Debug)]
struct Pointers {
    size: usize,
    file_offset: usize,
    buffer_offset: usize,
    result: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Values {
    size: usize,
    file_offset: i64,
    buffer_offset: i64,
}

impl Pointers {
    fn load(&self) -> Option<Values> {
        Some(Values {
            size: probe::load(self.size)? as usize,
            file_offset: probe::load(self.file_offset)? as i64,
            buffer_offset: probe::load(self.buffer_offset)? as i64,
        })
    }
}

/// One operation on its way through a stream.
#[derive(Debug)]
struct Job {
    call: &'static str,
    direction: Direction,
    handle: usize,
    base: u64,
    pointers: Pointers,
    /// What the parameters were in the call.
    submitted: Values,
    stream: usize,
    flags: u32,
    context: usize,
    faults: Vec<What>,
    /// Keeps the file and the memory marked as in use.
    _busy: Busy,
}

impl Job {
    /// The values that count: those of now, except where the stream's flags say otherwise.
    fn values(&self, now: Values) -> Values {
        let pick = |flag| self.flags & flag != 0;
        Values {
            size: if pick(FIXED_SIZE) { self.submitted.size } else { now.size },
            file_offset: if pick(FIXED_FILE_OFFSET) { self.submitted.file_offset } else { now.file_offset },
            buffer_offset: if pick(FIXED_BUFFER_OFFSET) {
                self.submitted.buffer_offset
            } else {
                now.buffer_offset
            },
        }
    }

    fn report(&self, misuse: Misuse, detail: &str) {
        report(misuse, self.call, self.pointers.result as u64, detail);
    }

    /// Does the operation, and stores its result.
    fn run(&self) {
        let (Some(now), Some(canary)) = (self.pointers.load(), probe::load(self.pointers.result)) else {
            self.report(Misuse::AsyncParametersGone, "freed before the stream came to the operation");
            return;
        };
        if canary != CANARY {
            let detail = "written to, or freed, before the stream came to the operation";
            self.report(Misuse::AsyncResultOverwritten, detail);
            return;
        }
        let values = self.values(now);
        let fixed = now != values;
        if fixed || (now != self.submitted && !settings().async_changes) {
            let detail = format!("{:?} in the call, {now:?} when the stream came to it", self.submitted);
            self.report(Misuse::AsyncParametersChanged, &detail);
        }
        let result = match self.transfer(values) {
            Ok(bytes) => bytes as i64,
            Err(failure) => -i64::from(failure.number()),
        };
        if !probe::store(self.pointers.result, result as u64) {
            self.report(Misuse::AsyncParametersGone, "the result's place was freed during the operation");
        }
    }

    fn transfer(&self, values: Values) -> Result<usize, Failure> {
        let Values { size, file_offset, buffer_offset } = values;
        if size > self.submitted.size {
            let detail =
                format!("{} bytes in the call, {size} when the stream came to it", self.submitted.size);
            self.report(Misuse::AsyncSizeGrew, &detail);
            return Err(Failure::Code(code::INVALID_VALUE));
        }
        let page = |value: i64| value % 4096 == 0;
        let aligned = page(file_offset) && page(buffer_offset) && page(size as i64);
        if self.flags & PAGE_ALIGNED != 0 && !aligned {
            return Err(Failure::Code(code::INVALID_VALUE));
        }
        // This thread is none of the caller's, and has no context of its own.
        let outcome = cuda::in_context(self.context, || {
            Ok(check(self.call, self.direction, self.handle, self.base, values).and_then(|busy| {
                busy.map_or(Ok(0), |busy| {
                    transfer::run(&busy, self.direction, Form::Stream, file_offset, &self.faults)
                })
            }))
        });
        outcome.map_err(Failure::Cuda)?
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let mut state = State::lock();
        state.stream_operations -= 1;
        if let Some(stream) = state.streams.get_mut(&self.stream) {
            stream.in_flight = stream.in_flight.saturating_sub(1);
        }
    }
}

/// The file and the memory of an operation; none if there is nothing to move.
fn check(
    call: &str,
    direction: Direction,
    handle: usize,
    base: u64,
    values: Values,
) -> Result<Option<Busy>, Failure> {
    let file = target::file(call, handle)?;
    transfer::check(&file, direction, values.file_offset)?;
    let size = target::limited(values.size)?;
    let end = values.file_offset.checked_add_unsigned(size as u64);
    end.ok_or(Failure::Code(code::INVALID_VALUE))?;
    if size == 0 {
        return Ok(None);
    }
    let memory = target::memory(call, base, values.buffer_offset, size, Naming::BaseAndOffset)?;
    Ok(Some(Busy::new(file, vec![memory])))
}

/// Called by the stream, which waits for it. Host functions may not call the driver, but another thread may.
extern "C" fn run(job: *mut c_void) {
    // SAFETY: the box that `enqueue` gave up, and that only this call takes back.
    let job = unsafe { Box::from_raw(job.cast::<Job>()) };
    // A panic in the thread has aborted nothing yet, and leaves the result unwritten, which the caller must see.
    if threads::start(move || job.run()).join().is_err() {
        std::process::abort();
    }
}

fn enqueue(
    call: &'static str,
    direction: Direction,
    (handle, base): (usize, u64),
    pointers: Pointers,
    stream: usize,
    faults: &[What],
) -> Answer {
    let submitted = pointers.load().ok_or(Error::cufile(code::INVALID_VALUE))?;
    let context = call::context_of(call, cuda::memory(base).map(|memory| memory.context), base)?;
    cuda::check_stream(stream).map_err(Error::cuda)?;
    let busy = check(call, direction, handle, base, submitted)?;
    // The result belongs to the operation from here on.
    if !probe::store(pointers.result, CANARY) {
        return Err(Error::cufile(code::INVALID_VALUE));
    }
    let Some(busy) = busy else {
        // Sizes only shrink, so that there will be nothing to move.
        probe::store(pointers.result, 0);
        return Ok(());
    };
    let mut state = State::lock();
    state.stream_operations += 1;
    let flags = state.streams.get_mut(&stream).map(|stream| {
        stream.in_flight += 1;
        stream.flags
    });
    drop(state);
    let job = Box::new(Job {
        call,
        direction,
        handle,
        base,
        pointers,
        submitted,
        stream,
        flags: flags.unwrap_or(0),
        context,
        faults: faults.to_vec(),
        _busy: busy,
    });
    let job = Box::into_raw(job);
    // SAFETY: `run` takes the box back, once.
    unsafe { cuda::launch(stream, run, job.cast()) }.map_err(|error| {
        // SAFETY: the driver has not taken the operation, and so nobody else has the box.
        drop(unsafe { Box::from_raw(job) });
        Error::cuda(error)
    })
}

macro_rules! operations {
    ($($name:ident $direction:ident;)*) => {
        $(
            /// The pointers are plain numbers here: they are followed only through the kernel, which checks them.
            #[unsafe(no_mangle)]
            extern "C" fn $name(
                handle: usize,
                base: u64,
                size: usize,
                file_offset: usize,
                buffer_offset: usize,
                result: usize,
                stream: usize,
            ) -> Error {
                const CALL: &str = stringify!($name);
                call::status_with(CALL, When::DriverOpen, |faults| {
                    let pointers = Pointers { size, file_offset, buffer_offset, result };
                    enqueue(CALL, Direction::$direction, (handle, base), pointers, stream, faults)
                })
            }
        )*
    };
}

operations! {
    cuFileReadAsync Read;
    cuFileWriteAsync Write;
}

#[unsafe(no_mangle)]
extern "C" fn cuFileStreamRegister(stream: usize, flags: u32) -> Error {
    const CALL: &str = "cuFileStreamRegister";
    call::status(CALL, When::DriverOpen, || {
        if flags > FIXED_BUFFER_OFFSET | FIXED_FILE_OFFSET | FIXED_SIZE | PAGE_ALIGNED {
            return Err(Error::cufile(code::INVALID_VALUE));
        }
        cuda::check_stream(stream).map_err(Error::cuda)?;
        let mut state = State::lock();
        if state.streams.contains_key(&stream) {
            drop(state);
            report(Misuse::DoubleRegister, CALL, stream as u64, "this stream is registered already");
            return Err(Error::cufile(code::INVALID_VALUE));
        }
        state.streams.insert(stream, Stream { flags, in_flight: 0 });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileStreamDeregister(stream: usize) -> Error {
    const CALL: &str = "cuFileStreamDeregister";
    call::status(CALL, When::DriverOpen, || {
        let Some(registered) = State::lock().streams.remove(&stream) else {
            report(Misuse::DoubleDeregister, CALL, stream as u64, "this stream is not registered");
            return Err(Error::cufile(code::INVALID_VALUE));
        };
        if registered.in_flight > 0 {
            let detail = "the stream has not come to all its operations";
            report(Misuse::DeregisterInFlight, CALL, stream as u64, detail);
        }
        Ok(())
    })
}
