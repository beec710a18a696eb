//! What the link to a GPU can give: copies from pinned host memory into device memory.

use std::time::{Duration, Instant};

use super::disk::Reading;
use super::stop::Stop;
use crate::backend::{Address, Piece};
use crate::memory::HostMapping;
use crate::memory::cuda::{Context, Copier, CudaBuffer, Pinned};
use crate::{Device, Result};

/// The bytes of one copy.
const CHUNK: u32 = 32 << 20;
/// Copies in flight, so that one starts when another ends.
const CHUNKS: u32 = 2;
/// Copies are repeated for at least this long.
const SPAN: Duration = Duration::from_millis(200);

pub(super) fn method(device: Device) -> String {
    format!("copies of 32 MiB from pinned host memory to {device}")
}

/// Copies to the device, `rounds` times.
///
/// # Errors
/// The device cannot be used, or the memory for it is not there.
pub(super) fn copy(ordinal: u32, rounds: u64, stop: &Stop) -> Result<Vec<Reading>> {
    let context = Context::open(ordinal)?;
    let len = (CHUNK * CHUNKS) as usize;
    let host = HostMapping::new(len)?;
    // SAFETY: the mapping is fresh, and outlives the registration, which is declared after it and so dropped before.
    let _pinned = unsafe { Pinned::register(&context, host.as_ptr(), len, CHUNK as usize)? };
    let device = CudaBuffer::new(&context, len)?;
    let mut copier = Copier::new(std::slice::from_ref(&context), CHUNKS)?;
    let mut readings = Vec::new();
    // The first one wakes the device up, and is not counted.
    for round in 0..=rounds {
        let (mut bytes, start) = (0, Instant::now());
        let mut next = 0;
        while start.elapsed() < SPAN && !stop.asked() {
            let mut free = bytes < u64::from(CHUNK * CHUNKS);
            if !free {
                copier.wait(|_| free = true)?;
            }
            let to = next as usize * CHUNK as usize;
            let piece = Piece { from: 0, to, len: CHUNK };
            // SAFETY: the chunk lies in the mapping and nobody writes to it; the piece lies in the device's buffer of
            // the same size; the copier, dropped first, waits for every copy.
            unsafe {
                let from = Address::Host(host.as_ptr().wrapping_add(to));
                copier.copy(next, from, device.start(), &[piece])?;
            }
            bytes += u64::from(CHUNK);
            next = (next + 1) % CHUNKS;
        }
        copier.drain(|_| ())?;
        if round > 0 {
            readings.push(Reading { bytes, seconds: start.elapsed().as_secs_f64() });
        }
    }
    Ok(readings)
}
