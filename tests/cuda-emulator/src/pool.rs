//! Memory pools: one per device, whose handle and attributes are all that callers here need.

use std::ffi::c_void;

use crate::call;
use crate::driver::Driver;
use crate::error::{Answer, Code};
use crate::ffi::{Device, Out};
use crate::settings::settings;

/// Pool handles are no addresses either; the device's ordinal is the low byte.
const POOL_BASE: usize = 0xE0F0_0000_0000_0000;

fn pool_of(device: Device) -> usize {
    POOL_BASE + device as usize + 1
}

impl Driver {
    pub(crate) fn device_of_pool(&self, pool: usize) -> Answer<Device> {
        let device = pool.checked_sub(POOL_BASE + 1).ok_or(Code::INVALID_VALUE)?;
        let device = Device::try_from(device).map_err(|_| Code::INVALID_VALUE)?;
        self.device(device).map(|_| device).map_err(|_| Code::INVALID_VALUE)
    }
}

fn pool(call: &'static str, pool: Out<usize>, device: Device) -> Code {
    call::initialized(call, |driver| {
        driver.device(device)?;
        pool.set(pool_of(device))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetDefaultMemPool(out: Out<usize>, device: Device) -> Code {
    pool("cuDeviceGetDefaultMemPool", out, device)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetMemPool(out: Out<usize>, device: Device) -> Code {
    pool("cuDeviceGetMemPool", out, device)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceSetMemPool(device: Device, pool: usize) -> Code {
    call::initialized("cuDeviceSetMemPool", |driver| {
        driver.device(device)?;
        if driver.device_of_pool(pool)? == device { Ok(()) } else { Err(Code::INVALID_VALUE) }
    })
}

/// `CU_MEMPOOL_ATTR_*`: three reuse switches (int), then the release threshold and four sizes (u64).
const SWITCHES: std::ops::RangeInclusive<u32> = 1..=3;
const RELEASE_THRESHOLD: u32 = 4;
const SIZES: std::ops::RangeInclusive<u32> = 5..=8;

/// # Safety
///
/// `value` must be null or valid for a write of the attribute's type.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemPoolGetAttribute(pool: usize, attribute: u32, value: *mut c_void) -> Code {
    call::initialized("cuMemPoolGetAttribute", |driver| {
        let used = driver.device(driver.device_of_pool(pool)?)?.used.min(settings().memory);
        match attribute {
            // SAFETY: valid for an int or null, by the caller's contract.
            _ if SWITCHES.contains(&attribute) => unsafe { Out::from_raw(value.cast::<i32>()) }.set(1),
            // SAFETY: valid for a u64 or null, by the caller's contract.
            RELEASE_THRESHOLD => unsafe { Out::from_raw(value.cast::<u64>()) }.set(0),
            // SAFETY: as above.
            _ if SIZES.contains(&attribute) => unsafe { Out::from_raw(value.cast::<u64>()) }.set(used),
            _ => Err(Code::INVALID_VALUE),
        }
    })
}

/// Nothing is ever kept in a pool, so there is nothing that an attribute would change.
#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAttribute(pool: usize, attribute: u32, value: *const c_void) -> Code {
    call::initialized("cuMemPoolSetAttribute", |driver| {
        driver.device_of_pool(pool)?;
        let known =
            SWITCHES.contains(&attribute) || attribute == RELEASE_THRESHOLD || SIZES.contains(&attribute);
        if known && !value.is_null() { Ok(()) } else { Err(Code::INVALID_VALUE) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolTrimTo(pool: usize, _keep: usize) -> Code {
    call::initialized("cuMemPoolTrimTo", |driver| driver.device_of_pool(pool).map(|_| ()))
}
