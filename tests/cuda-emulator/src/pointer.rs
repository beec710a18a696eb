//! What the driver knows about an address.

use std::ffi::c_void;
use std::sync::Arc;

use crate::call;
use crate::error::{Answer, Code};
use crate::ffi::{Array, DevicePtr, Out};
use crate::memory::{Kind, Memory};
use crate::misuse::Misuse;

const MEMORYTYPE_HOST: u32 = 1;
const MEMORYTYPE_DEVICE: u32 = 2;
const SYNC_MEMOPS: u32 = 6;
/// `CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE`.
const READ_WRITE: u64 = 3;

/// An attribute's value, in the type that the caller's buffer has.
enum Value {
    Bool(bool),
    Word(u32),
    Long(u64),
}

impl Value {
    /// # Safety
    ///
    /// `data` must be null or valid for a write of this value's type.
    unsafe fn put(self, data: *mut c_void) -> Answer {
        match self {
            // SAFETY: valid for the write or null, by this function's contract; so for the other two.
            Value::Bool(value) => unsafe { Out::from_raw(data.cast::<bool>()) }.set(value),
            // SAFETY: as above.
            Value::Word(value) => unsafe { Out::from_raw(data.cast::<u32>()) }.set(value),
            // SAFETY: as above.
            Value::Long(value) => unsafe { Out::from_raw(data.cast::<u64>()) }.set(value),
        }
    }
}

/// The attribute of a known address.
fn describe(memory: &Memory, address: usize, attribute: u32) -> Answer<Value> {
    let device = memory.kind.on_device();
    Ok(match attribute {
        1 if memory.kind == Kind::Pool => Value::Long(0),
        1 => Value::Long(memory.context as u64),
        2 => Value::Word(if device { MEMORYTYPE_DEVICE } else { MEMORYTYPE_HOST }),
        3 => Value::Long(address as u64),
        // Device memory has no address on the host.
        4 if device => return Err(Code::INVALID_VALUE),
        4 => Value::Long(address as u64),
        SYNC_MEMOPS => Value::Word(u32::from(memory.sync_memops())),
        7 => Value::Long(memory.id),
        8 => Value::Bool(false),
        9 => Value::Word(memory.device as u32),
        10 => Value::Bool(false),
        11 => Value::Long(memory.base as u64),
        12 => Value::Long(memory.len as u64),
        13 => Value::Bool(true),
        14 => Value::Long(0),
        15 => Value::Bool(memory.kind == Kind::Device),
        16 => Value::Long(READ_WRITE),
        17 => Value::Long(0),
        18 => Value::Long(memory.len as u64),
        19 => Value::Long(memory.base as u64),
        20 => Value::Long(memory.id),
        21 => Value::Bool(false),
        // 5: tokens for the long-gone kernel interface of GPUDirect RDMA.
        5 => return Err(Code::NOT_SUPPORTED),
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// What `cuPointerGetAttributes` says of an address that the driver does not know.
fn describe_unknown(attribute: u32) -> Answer<Value> {
    Ok(match attribute {
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 16..=20 => Value::Long(0),
        2 | SYNC_MEMOPS => Value::Word(0),
        8 | 10 | 13 | 15 | 21 => Value::Bool(false),
        // CU_DEVICE_INVALID.
        9 => Value::Word(-2_i32 as u32),
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// # Safety
///
/// `data` must be null or valid for a write of the attribute's type.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, pointer: DevicePtr) -> Code {
    call::initialized("cuPointerGetAttribute", |driver| {
        // Asking is how a caller finds out what a pointer is, so an unknown one is an error but no misuse.
        let memory = driver.addresses.find(pointer as usize).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the caller's contract.
        unsafe { describe(memory, pointer as usize, attribute)?.put(data) }
    })
}

/// # Safety
///
/// `attributes` and `data` must hold `count` elements, and each element of `data` must be valid for a write of its
/// attribute's type.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttributes(
    count: u32,
    attributes: Array<u32>,
    data: Array<*mut c_void>,
    pointer: DevicePtr,
) -> Code {
    call::initialized("cuPointerGetAttributes", |driver| {
        // SAFETY: both arrays hold `count` elements.
        let (attributes, data) = unsafe { (attributes.read(count as usize)?, data.read(count as usize)?) };
        let memory = driver.addresses.find(pointer as usize);
        for (attribute, data) in attributes.into_iter().zip(data) {
            let value = match memory {
                // Here a value that does not exist is null, not an error.
                Some(memory) => {
                    describe(memory, pointer as usize, attribute).or_else(|_| describe_unknown(attribute))
                }
                None => describe_unknown(attribute),
            };
            // SAFETY: valid for the attribute's type, by the caller's contract.
            unsafe { value?.put(data)? };
        }
        Ok(())
    })
}

/// # Safety
///
/// `value` must be null or valid for a read of the attribute's type.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerSetAttribute(value: Array<u32>, attribute: u32, pointer: DevicePtr) -> Code {
    call::initialized("cuPointerSetAttribute", |driver| {
        if attribute != SYNC_MEMOPS {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: one element of the attribute's type, by the caller's contract.
        let on = unsafe { value.read(1)? }.first().is_some_and(|value| *value != 0);
        let memory: Option<&Arc<Memory>> = driver.addresses.find(pointer as usize);
        match memory {
            Some(memory) if memory.kind.on_device() => {
                memory.set_sync_memops(on);
                Ok(())
            }
            _ => driver.misuse(Misuse::UnknownPointer, pointer, Code::INVALID_VALUE, "not device memory"),
        }
    })
}
