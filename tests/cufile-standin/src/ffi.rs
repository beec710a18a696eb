//! The structs of `cufile.h` that cross the C boundary, and the places where a caller's pointer is read or written.

use std::ffi::c_void;

use crate::error::{Answer, Error, code};

/// An output argument: null, or, as `cufile.h` demands of every caller, valid for one write of `T`.
///
/// Values of this type only ever come from C callers, so its methods may rely on that contract.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes the answer; a null pointer is the caller's `INVALID_VALUE`.
    pub(crate) fn set(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Error::cufile(code::INVALID_VALUE));
        }
        // SAFETY: not null, and so valid for a write by this type's contract.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Reads what the caller put there.
    pub(crate) fn get(self) -> Answer<T>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Error::cufile(code::INVALID_VALUE));
        }
        // SAFETY: an in-out argument, initialised by the caller.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Writes `values` from the pointer on.
    ///
    /// # Safety
    ///
    /// The pointer must be null or valid for as many writes.
    pub(crate) unsafe fn fill(self, values: &[T]) -> Answer
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Error::cufile(code::INVALID_VALUE));
        }
        // SAFETY: valid for the writes by this function's contract, and the caller's buffer is not our slice.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }
}

/// An input array, or one value: null, or valid for reads of as many elements as the call says.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Array<T>(*const T);

impl<T: Copy> Array<T> {
    /// The elements, copied out.
    ///
    /// # Safety
    ///
    /// A pointer that is not null must be valid for reads of `count` elements.
    pub(crate) unsafe fn read(self, count: usize) -> Answer<Vec<T>> {
        if self.0.is_null() && count > 0 {
            return Err(Error::cufile(code::INVALID_VALUE));
        }
        // SAFETY: valid for reads of `count` elements by this function's contract; unaligned reads ask no more.
        Ok((0..count).map(|index| unsafe { self.0.add(index).read_unaligned() }).collect())
    }
}

/// `CUfileDescr_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) kind: i32,
    /// The union of a file descriptor and a pointer; the descriptor lies in its first four bytes.
    pub(crate) handle: u64,
    pub(crate) operations: *const c_void,
}

/// `CUfileDrvProps_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Properties {
    pub(crate) major_version: u32,
    pub(crate) minor_version: u32,
    pub(crate) poll_threshold_kib: usize,
    pub(crate) max_direct_io_kib: usize,
    pub(crate) status_flags: u32,
    pub(crate) control_flags: u32,
    pub(crate) feature_flags: u32,
    pub(crate) max_device_cache_kib: u32,
    pub(crate) per_buffer_cache_kib: u32,
    pub(crate) max_pinned_kib: u32,
    pub(crate) max_batch_io: u32,
    pub(crate) max_batch_timeout_ms: u32,
}

/// `CUfileIOParams_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters {
    pub(crate) mode: i32,
    pub(crate) base: u64,
    pub(crate) file_offset: i64,
    pub(crate) buffer_offset: i64,
    pub(crate) size: usize,
    pub(crate) handle: usize,
    pub(crate) opcode: i32,
    pub(crate) cookie: usize,
}

/// `CUfileIOEvents_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) cookie: usize,
    pub(crate) status: i32,
    pub(crate) ret: i64,
}

/// `CUfileIOVec_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoVec {
    pub(crate) base: u64,
    pub(crate) len: usize,
}

const _: () = {
    assert!(size_of::<Error>() == 8);
    assert!(size_of::<Descriptor>() == 24 && std::mem::offset_of!(Descriptor, handle) == 8);
    assert!(size_of::<Properties>() == 56 && std::mem::offset_of!(Properties, feature_flags) == 32);
    assert!(size_of::<Parameters>() == 64 && std::mem::offset_of!(Parameters, handle) == 40);
    assert!(size_of::<Event>() == 24 && size_of::<IoVec>() == 16);
};
