//! cuFile's own statistics, of levels 1 to 3, from what was really moved.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::call::{self, When};
use crate::cuda;
use crate::error::{Answer, Error, code};
use crate::ffi::Out;
use crate::ledger::{Direction, Form, Operation, Way};
use crate::settings::{Route, settings};

/// Things that are counted besides reads and writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    HandleRegister,
    HandleDeregister,
    BufferRegister { ok: bool, base: u64, len: u64 },
    BufferDeregister { ok: bool, base: u64 },
    BatchSetup { ok: bool },
    BatchSubmit { ok: bool, entries: u64 },
    BatchEntry { ok: bool },
    BatchCancel { ok: bool },
    BatchDestroy { ok: bool },
}

/// Places in level 1, in words of eight bytes. A counter is two words: successes, failures.
mod word {
    pub(super) const OPS: usize = 0;
    pub(super) const HANDLE_REGISTER: usize = 4;
    pub(super) const HANDLE_DEREGISTER: usize = 6;
    pub(super) const BUFFER_REGISTER: usize = 8;
    pub(super) const BUFFER_DEREGISTER: usize = 10;
    pub(super) const BYTES: usize = 12;
    pub(super) const BYTES_PER_SECOND: usize = 14;
    pub(super) const AVERAGE_US: usize = 16;
    pub(super) const OPS_PER_SECOND: usize = 18;
    pub(super) const SUM_US: usize = 20;
    pub(super) const BATCH_SUBMIT: usize = 22;
    pub(super) const BATCH_COMPLETE: usize = 24;
    pub(super) const BATCH_SETUP: usize = 26;
    pub(super) const BATCH_CANCEL: usize = 28;
    pub(super) const BATCH_DESTROY: usize = 30;
    pub(super) const BATCH_ENQUEUED: usize = 32;
    pub(super) const BATCH_POSIX_ENQUEUED: usize = 34;
    pub(super) const BATCH_PROCESSED: usize = 36;
    pub(super) const BATCH_POSIX_PROCESSED: usize = 38;
    pub(super) const BATCH_NVFS: usize = 40;
    pub(super) const BATCH_P2P: usize = 42;
    pub(super) const BATCH_AIO: usize = 44;
    pub(super) const BATCH_TOTAL: usize = 50;
    pub(super) const BATCH_BYTES: usize = 52;
    pub(super) const VECTOR_OPS: usize = 64;
    pub(super) const VECTOR_BYTES: usize = 68;
    pub(super) const VECTOR_SUM_US: usize = 76;
    /// Words before 1.19, when the vectored counters came.
    pub(super) const OLDER: usize = 64;
    pub(super) const ALL: usize = 78;
}

/// Places in the statistics of one GPU, in words after its UUID. Writes have no sparse and inline regions.
mod gpu {
    pub(super) const READS: usize = 0;
    pub(super) const WRITES: usize = 13;
    pub(super) const BYTES: usize = 0;
    pub(super) const DURATION_US: usize = 3;
    pub(super) const TOTAL: usize = 4;
    pub(super) const P2P: usize = 5;
    pub(super) const NVFS: usize = 6;
    pub(super) const POSIX: usize = 7;
    pub(super) const UNALIGNED: usize = 8;
    pub(super) const READ_ERRORS: usize = 12;
    pub(super) const WRITE_ERRORS: usize = 10;
    pub(super) const REGISTERED: usize = 24;
    pub(super) const REGISTERED_OK: usize = 25;
    pub(super) const REGISTERED_ERR: usize = 26;
    pub(super) const DEREGISTERED: usize = 27;
    pub(super) const REGISTERED_BYTES: usize = 28;
    pub(super) const ALL: usize = 29;
}

const GPUS: usize = 16;
const BUCKETS: usize = 32;

#[derive(Debug)]
struct Statistics {
    level: i32,
    started: Option<Instant>,
    words: [u64; word::ALL],
    sizes: [[u64; BUCKETS]; 2],
    gpus: [[u64; gpu::ALL]; GPUS],
}

static STATISTICS: Mutex<Statistics> = Mutex::new(Statistics {
    level: 0,
    started: None,
    words: [0; word::ALL],
    sizes: [[0; BUCKETS]; 2],
    gpus: [[0; gpu::ALL]; GPUS],
});

fn lock() -> MutexGuard<'static, Statistics> {
    STATISTICS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Statistics {
    fn counts(&self) -> bool {
        self.level > 0 && self.started.is_some()
    }

    fn count(&mut self, counter: usize, ok: bool, by: u64) {
        self.words[counter + usize::from(!ok)] += by;
    }

    fn gpu(&mut self, device: i32) -> &mut [u64; gpu::ALL] {
        &mut self.gpus[usize::try_from(device).unwrap_or(0).min(GPUS - 1)]
    }

    fn operation(&mut self, operation: &Operation) {
        let side = operation.direction as usize;
        let ok = operation.moved.is_some();
        let bytes = operation.moved.unwrap_or(0);
        let (ops, sums, times) = match operation.form {
            Form::Vector => (word::VECTOR_OPS, word::VECTOR_BYTES, word::VECTOR_SUM_US),
            _ => (word::OPS, word::BYTES, word::SUM_US),
        };
        self.count(ops + 2 * side, ok, 1);
        self.words[sums + side] += bytes;
        self.words[times + side] += operation.microseconds;
        if operation.form == Form::Batch {
            self.words[word::BATCH_BYTES + side] += bytes;
        }
        let bucket = (u64::BITS - (bytes >> 10).leading_zeros()) as usize;
        self.sizes[side][bucket.min(BUCKETS - 1)] += u64::from(ok);
        let of_gpu = self.gpu(operation.device);
        let (first, errors) = match operation.direction {
            Direction::Read => (gpu::READS, gpu::READ_ERRORS),
            Direction::Write => (gpu::WRITES, gpu::WRITE_ERRORS),
        };
        of_gpu[first + gpu::BYTES] += bytes;
        of_gpu[first + gpu::DURATION_US] += operation.microseconds;
        of_gpu[first + gpu::TOTAL] += 1;
        of_gpu[first + gpu::UNALIGNED] += u64::from(operation.unaligned);
        of_gpu[first + errors] += u64::from(!ok);
        let way = match operation.way {
            Way::Posix => gpu::POSIX,
            Way::Nvfs => gpu::NVFS,
            Way::P2pDma => gpu::P2P,
        };
        of_gpu[first + way] += 1;
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::HandleRegister => self.count(word::HANDLE_REGISTER, true, 1),
            Event::HandleDeregister => self.count(word::HANDLE_DEREGISTER, true, 1),
            Event::BufferRegister { ok, base, len } => {
                self.count(word::BUFFER_REGISTER, ok, 1);
                let of_gpu = self.gpu(cuda::memory(base).map_or(0, |memory| memory.device));
                of_gpu[gpu::REGISTERED] += 1;
                of_gpu[if ok { gpu::REGISTERED_OK } else { gpu::REGISTERED_ERR }] += 1;
                of_gpu[gpu::REGISTERED_BYTES] += if ok { len } else { 0 };
            }
            Event::BufferDeregister { ok, base } => {
                self.count(word::BUFFER_DEREGISTER, ok, 1);
                self.gpu(cuda::memory(base).map_or(0, |memory| memory.device))[gpu::DEREGISTERED] +=
                    u64::from(ok);
            }
            Event::BatchSetup { ok } => self.count(word::BATCH_SETUP, ok, 1),
            Event::BatchCancel { ok } => self.count(word::BATCH_CANCEL, ok, 1),
            Event::BatchDestroy { ok } => self.count(word::BATCH_DESTROY, ok, 1),
            Event::BatchSubmit { ok, entries } => {
                let posix = settings().route == Route::Compat;
                self.count(word::BATCH_SUBMIT, ok, 1);
                self.count(word::BATCH_TOTAL, ok, 1);
                self.count(
                    if posix { word::BATCH_POSIX_ENQUEUED } else { word::BATCH_ENQUEUED },
                    ok,
                    entries,
                );
                let way = match settings().route {
                    Route::Compat => word::BATCH_AIO,
                    Route::Nvfs => word::BATCH_NVFS,
                    Route::P2pDma => word::BATCH_P2P,
                };
                self.count(way, ok, 1);
            }
            Event::BatchEntry { ok } => {
                let posix = settings().route == Route::Compat;
                self.count(word::BATCH_COMPLETE, ok, 1);
                self.count(if posix { word::BATCH_POSIX_PROCESSED } else { word::BATCH_PROCESSED }, ok, 1);
            }
        }
    }

    /// Level 1 with its averages, in this version's length.
    fn level1(&self) -> Vec<u64> {
        let mut words = self.words;
        let seconds = self.started.map_or(1, |started| started.elapsed().as_secs().max(1));
        for side in 0..2 {
            let ops: u64 = words[word::OPS + 2 * side..][..2].iter().sum();
            words[word::BYTES_PER_SECOND + side] = words[word::BYTES + side] / seconds;
            words[word::OPS_PER_SECOND + side] = ops / seconds;
            words[word::AVERAGE_US + side] = words[word::SUM_US + side] / ops.max(1);
        }
        words[..if settings().version < 1190 { word::OLDER } else { word::ALL }].to_vec()
    }

    fn level2(&self) -> Vec<u64> {
        [self.level1(), self.sizes.concat()].concat()
    }

    fn level3(&self) -> Answer<Vec<u64>> {
        let devices = cuda::devices().map_err(Error::cuda)?;
        let mut words = self.level2();
        // A 32-bit number, and padding.
        words.push(devices as u64);
        for (device, of_gpu) in self.gpus.iter().enumerate() {
            let known = (device as i32) < devices;
            let uuid = if known { cuda::uuid(device as i32) } else { [0; 16] };
            let halves = uuid.as_chunks::<8>().0.iter().map(|half| u64::from_ne_bytes(*half));
            words.extend(halves);
            words.extend(of_gpu);
        }
        Ok(words)
    }
}

/// Counts one read or write.
pub(crate) fn record(operation: &Operation) {
    let mut statistics = lock();
    if statistics.counts() {
        statistics.operation(operation);
    }
}

/// Counts something else.
pub(crate) fn event(event: Event) {
    let mut statistics = lock();
    if statistics.counts() {
        statistics.event(event);
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileSetStatsLevel(level: i32) -> Error {
    call::status("cuFileSetStatsLevel", When::Anytime, || {
        if !(0..=3).contains(&level) {
            return Err(Error::cufile(code::INVALID_VALUE));
        }
        lock().level = level;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileGetStatsLevel(level: Out<i32>) -> Error {
    call::status("cuFileGetStatsLevel", When::Anytime, || level.set(lock().level))
}

#[unsafe(no_mangle)]
extern "C" fn cuFileStatsStart() -> Error {
    call::status("cuFileStatsStart", When::DriverOpen, || {
        let mut statistics = lock();
        if statistics.level == 0 {
            return Err(Error::cufile(code::INTERNAL_ERROR));
        }
        statistics.started = Some(Instant::now());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileStatsStop() -> Error {
    call::status("cuFileStatsStop", When::DriverOpen, || {
        lock().started = None;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileStatsReset() -> Error {
    call::status("cuFileStatsReset", When::DriverOpen, || {
        let mut statistics = lock();
        statistics.words = [0; word::ALL];
        statistics.sizes = [[0; BUCKETS]; 2];
        statistics.gpus = [[0; gpu::ALL]; GPUS];
        Ok(())
    })
}

macro_rules! levels {
    ($($name:ident $level:literal $words:expr;)*) => {
        $(
            /// # Safety
            ///
            /// `out` must be null or point to this level's struct.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(out: Out<u64>) -> Error {
                call::status(stringify!($name), When::DriverOpen, || {
                    let statistics = lock();
                    if statistics.level < $level {
                        return Err(Error::cufile(code::INVALID_VALUE));
                    }
                    let words: fn(&Statistics) -> Answer<Vec<u64>> = $words;
                    // SAFETY: as many words as the struct of this version has.
                    unsafe { out.fill(&words(&statistics)?) }
                })
            }
        )*
    };
}

levels! {
    cuFileGetStatsL1 1 |statistics| Ok(statistics.level1());
    cuFileGetStatsL2 2 |statistics| Ok(statistics.level2());
    cuFileGetStatsL3 3 Statistics::level3;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_levels_are_as_long_as_the_structs_of_the_header() {
        assert_eq!((word::ALL * 8, word::OLDER * 8), (624, 512));
        let gpu = 16 + gpu::ALL * 8;
        assert_eq!(gpu, 248);
        let statistics = lock();
        assert_eq!(statistics.level2().len() * 8, 624 + 512);
    }
}
