//! Memory set to a pattern, and single values written and awaited by streams.

use crate::address::{Expect, Place};
use crate::call;
use crate::driver::Driver;
use crate::error::{Answer, Code};
use crate::ffi::DevicePtr;
use crate::misuse::Misuse;
use crate::queue::{StreamId, Ticket};
use crate::stream::{LEGACY, PER_THREAD, on_stream, per_thread};
use crate::work::{Comparison, Value, Work};

/// A fill, as asked for.
struct Fill {
    to: DevicePtr,
    pattern: Vec<u8>,
    count: usize,
}

impl Fill {
    /// Puts the fill on a stream. Answers its place, and whether it goes to host memory.
    fn put_on(self, driver: &mut Driver, stream: StreamId) -> Answer<Option<(Ticket, bool)>> {
        let size = self.pattern.len();
        let len = self.count.checked_mul(size).ok_or(Code::INVALID_VALUE)?;
        if !self.to.is_multiple_of(size as u64) {
            return Err(Code::INVALID_VALUE);
        }
        if len == 0 {
            return Ok(None);
        }
        let context = driver.context_of(stream)?;
        let to = driver.place(self.to, len, Expect::Device, context)?;
        driver.count_operation(stream)?;
        let on_host = !to.on_device();
        let ticket = driver.enqueue(stream, Work::Fill { to, len, pattern: self.pattern }, Vec::new());
        Ok(Some((ticket, on_host)))
    }
}

/// Asynchronous towards the host even in this form, unless it goes to pinned host memory.
fn synchronous(call: &'static str, fill: Fill, stream: StreamId) -> Code {
    call::in_context(call, |driver, context| {
        let stream = driver.stream(stream)?;
        let sync = driver.addresses.find(fill.to as usize).is_some_and(|memory| memory.sync_memops());
        if let Some((ticket, on_host)) = fill.put_on(driver, stream)?
            && (on_host || sync)
        {
            driver.wait_for(ticket);
        }
        driver.healthy(context)
    })
}

fn asynchronous(call: &'static str, fill: Fill, stream: StreamId) -> Code {
    on_stream(call, stream, |driver, stream| fill.put_on(driver, stream).map(|_| ()))
}

/// Defines a fill in its four forms.
macro_rules! fills {
    ($($value:ty: $sync:ident, $sync_own:ident, $queued:ident, $queued_own:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $sync(to: DevicePtr, value: $value, count: usize) -> Code {
                synchronous(stringify!($sync), Fill { to, pattern: value.to_ne_bytes().to_vec(), count }, LEGACY)
            }

            #[unsafe(no_mangle)]
            extern "C" fn $sync_own(to: DevicePtr, value: $value, count: usize) -> Code {
                synchronous(stringify!($sync_own), Fill { to, pattern: value.to_ne_bytes().to_vec(), count }, PER_THREAD)
            }

            #[unsafe(no_mangle)]
            extern "C" fn $queued(to: DevicePtr, value: $value, count: usize, stream: StreamId) -> Code {
                asynchronous(stringify!($queued), Fill { to, pattern: value.to_ne_bytes().to_vec(), count }, stream)
            }

            #[unsafe(no_mangle)]
            extern "C" fn $queued_own(to: DevicePtr, value: $value, count: usize, stream: StreamId) -> Code {
                let fill = Fill { to, pattern: value.to_ne_bytes().to_vec(), count };
                asynchronous(stringify!($queued_own), fill, per_thread(stream))
            }
        )*
    };
}

fills! {
    u8: cuMemsetD8_v2, cuMemsetD8_v2_ptds, cuMemsetD8Async, cuMemsetD8Async_ptsz;
    u16: cuMemsetD16_v2, cuMemsetD16_v2_ptds, cuMemsetD16Async, cuMemsetD16Async_ptsz;
    u32: cuMemsetD32_v2, cuMemsetD32_v2_ptds, cuMemsetD32Async, cuMemsetD32Async_ptsz;
}

/// The aligned word that a stream memory operation is about.
fn word(driver: &Driver, stream: StreamId, address: DevicePtr, value: Value) -> Answer<Place> {
    let size = match value {
        Value::Bits32(_) => 4,
        Value::Bits64(_) => 8,
    };
    if !address.is_multiple_of(size as u64) {
        let detail = "the address of a stream memory operation must be aligned to its size";
        return driver.misuse(Misuse::OutOfBounds, address, Code::INVALID_VALUE, detail);
    }
    driver.place(address, size, Expect::Device, driver.context_of(stream)?)
}

fn write_value(call: &'static str, stream: StreamId, address: DevicePtr, value: Value, flags: u32) -> Code {
    on_stream(call, stream, |driver, stream| {
        // CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER.
        if flags & !1 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let to = word(driver, stream, address, value)?;
        driver.enqueue(stream, Work::WriteValue { to, value }, Vec::new());
        Ok(())
    })
}

fn wait_value(call: &'static str, stream: StreamId, address: DevicePtr, value: Value, flags: u32) -> Code {
    /// `CU_STREAM_WAIT_VALUE_FLUSH`: wait for remote writes too, which are never pending here.
    const FLUSH: u32 = 1 << 30;
    on_stream(call, stream, |driver, stream| {
        let comparison = match flags & !FLUSH {
            0 => Comparison::GreaterOrEqual,
            1 => Comparison::Equal,
            2 => Comparison::And,
            3 => Comparison::Nor,
            _ => return Err(Code::INVALID_VALUE),
        };
        let at = word(driver, stream, address, value)?;
        driver.enqueue(stream, Work::WaitValue { at, value, comparison }, Vec::new());
        Ok(())
    })
}

/// Defines a stream memory operation in each of its names.
macro_rules! values {
    ($($does:ident($kind:ty, $make:path): $($name:ident)* ; own: $($own:ident)*;)*) => {
        $(
            $(
                #[unsafe(no_mangle)]
                extern "C" fn $name(stream: StreamId, address: DevicePtr, value: $kind, flags: u32) -> Code {
                    $does(stringify!($name), stream, address, $make(value), flags)
                }
            )*
            $(
                #[unsafe(no_mangle)]
                extern "C" fn $own(stream: StreamId, address: DevicePtr, value: $kind, flags: u32) -> Code {
                    $does(stringify!($own), per_thread(stream), address, $make(value), flags)
                }
            )*
        )*
    };
}

values! {
    write_value(u32, Value::Bits32): cuStreamWriteValue32 cuStreamWriteValue32_v2; own: cuStreamWriteValue32_ptsz;
    write_value(u64, Value::Bits64): cuStreamWriteValue64 cuStreamWriteValue64_v2; own: cuStreamWriteValue64_ptsz;
    wait_value(u32, Value::Bits32): cuStreamWaitValue32 cuStreamWaitValue32_v2; own: cuStreamWaitValue32_ptsz;
    wait_value(u64, Value::Bits64): cuStreamWaitValue64 cuStreamWaitValue64_v2; own: cuStreamWaitValue64_ptsz;
}
