//! `cuMemcpyBatchAsync`: many copies in one call, in no order among themselves.

use crate::address::Expect;
use crate::copy::{Copy, Reading};
use crate::driver::Driver;
use crate::error::{Answer, Code};
use crate::ffi::{Array, DevicePtr, Out};
use crate::queue::StreamId;
use crate::stream::{LEGACY, on_stream, per_thread};

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Attributes {
    source_access_order: u32,
    source_hint: [i32; 2],
    destination_hint: [i32; 2],
    flags: u32,
}

fn reading(attributes: &Attributes) -> Answer<Reading> {
    match attributes.source_access_order {
        // "Any" promises the least of all; in stream order is the latest that it may be.
        1 | 3 => Ok(Reading::Late),
        2 => Ok(Reading::DuringCall),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// The arguments that both versions share.
struct Batch {
    to: Array<DevicePtr>,
    from: Array<DevicePtr>,
    sizes: Array<usize>,
    count: usize,
    attributes: Array<Attributes>,
    /// For each of `attributes`, the first copy that it is for.
    starts: Array<usize>,
    attribute_count: usize,
}

impl Batch {
    /// # Safety
    ///
    /// The arrays must hold as many elements as their counts say.
    unsafe fn put_on(self, driver: &mut Driver, stream: StreamId, fail_index: Out<usize>) -> Answer {
        fail_index.set_if_asked(usize::MAX);
        if self.count == 0 || self.attribute_count == 0 || self.attribute_count > self.count {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: each array holds its count of elements.
        let (to, from, sizes, attributes, starts) = unsafe {
            (
                self.to.read(self.count)?,
                self.from.read(self.count)?,
                self.sizes.read(self.count)?,
                self.attributes.read(self.attribute_count)?,
                self.starts.read(self.attribute_count)?,
            )
        };
        let rising = starts.windows(2).all(|pair| pair[0] < pair[1]);
        if starts.first() != Some(&0) || !rising || starts.last().is_some_and(|last| *last >= self.count) {
            return Err(Code::INVALID_VALUE);
        }
        let readings = attributes.iter().map(reading).collect::<Answer<Vec<_>>>()?;
        let mut waits = Vec::new();
        for index in 0..self.count {
            let group = starts.partition_point(|start| *start <= index) - 1;
            let copy = Copy {
                to: to[index],
                to_kind: Expect::Any,
                from: from[index],
                from_kind: Expect::Any,
                len: sizes[index],
            };
            match driver.copy(copy, stream, readings[group]) {
                Ok(Some((ticket, true))) => waits.push(ticket),
                Ok(_) => {}
                Err(code) => {
                    fail_index.set_if_asked(index);
                    return Err(code);
                }
            }
        }
        for ticket in waits {
            driver.wait_for(ticket);
        }
        Ok(())
    }
}

/// # Safety
///
/// As [`Batch::put_on`].
unsafe fn run(call: &'static str, batch: Batch, stream: StreamId, fail_index: Out<usize>) -> Code {
    on_stream(call, stream, |driver, id| {
        if stream == 0 || stream == LEGACY {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: this function's contract.
        unsafe { batch.put_on(driver, id, fail_index) }
    })
}

/// # Safety
///
/// The arrays must hold as many elements as their counts say.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyBatchAsync(
    to: Array<DevicePtr>,
    from: Array<DevicePtr>,
    sizes: Array<usize>,
    count: usize,
    attributes: Array<Attributes>,
    starts: Array<usize>,
    attribute_count: usize,
    fail_index: Out<usize>,
    stream: StreamId,
) -> Code {
    let batch = Batch { to, from, sizes, count, attributes, starts, attribute_count };
    // SAFETY: the caller's contract.
    unsafe { run("cuMemcpyBatchAsync", batch, stream, fail_index) }
}

/// # Safety
///
/// As [`cuMemcpyBatchAsync`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyBatchAsync_ptsz(
    to: Array<DevicePtr>,
    from: Array<DevicePtr>,
    sizes: Array<usize>,
    count: usize,
    attributes: Array<Attributes>,
    starts: Array<usize>,
    attribute_count: usize,
    fail_index: Out<usize>,
    stream: StreamId,
) -> Code {
    let batch = Batch { to, from, sizes, count, attributes, starts, attribute_count };
    // SAFETY: the caller's contract.
    unsafe { run("cuMemcpyBatchAsync_ptsz", batch, per_thread(stream), fail_index) }
}

/// # Safety
///
/// As [`cuMemcpyBatchAsync`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyBatchAsync_v2(
    to: Array<DevicePtr>,
    from: Array<DevicePtr>,
    sizes: Array<usize>,
    count: usize,
    attributes: Array<Attributes>,
    starts: Array<usize>,
    attribute_count: usize,
    stream: StreamId,
) -> Code {
    let batch = Batch { to, from, sizes, count, attributes, starts, attribute_count };
    // SAFETY: null is a valid "do not tell me"; the rest is the caller's contract.
    unsafe { run("cuMemcpyBatchAsync_v2", batch, stream, Out::from_raw(std::ptr::null_mut())) }
}

/// # Safety
///
/// As [`cuMemcpyBatchAsync`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyBatchAsync_v2_ptsz(
    to: Array<DevicePtr>,
    from: Array<DevicePtr>,
    sizes: Array<usize>,
    count: usize,
    attributes: Array<Attributes>,
    starts: Array<usize>,
    attribute_count: usize,
    stream: StreamId,
) -> Code {
    let batch = Batch { to, from, sizes, count, attributes, starts, attribute_count };
    // SAFETY: null is a valid "do not tell me"; the rest is the caller's contract.
    unsafe {
        run("cuMemcpyBatchAsync_v2_ptsz", batch, per_thread(stream), Out::from_raw(std::ptr::null_mut()))
    }
}
