//! The types that cross the C boundary, and the few places where a pointer from the caller is read or written.

use std::ffi::{CStr, c_char};

use crate::error::{Answer, Code};

/// `CUdeviceptr`: an address in device memory, or in pinned host memory under unified addressing.
pub(crate) type DevicePtr = u64;

/// `CUdevice`: an ordinal.
pub(crate) type Device = i32;

/// An output argument: a C pointer that, as `cuda.h` demands of every caller, is null or valid for one write of `T`.
///
/// Values of this type only ever come from C callers, so its methods may rely on that contract.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// The same contract for a pointer that arrived as an element of a caller's array or as a `void*`.
    ///
    /// # Safety
    ///
    /// `pointer` must be null or valid for one write of `T`.
    pub(crate) unsafe fn from_raw(pointer: *mut T) -> Out<T> {
        Out(pointer)
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes the answer; a null pointer is the caller's `INVALID_VALUE`.
    pub(crate) fn set(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and so valid for a write by this type's contract. Unaligned, since attribute data may
        // lie anywhere in a caller's byte buffer.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the answer where the caller asked for it: null means "do not tell me".
    pub(crate) fn set_if_asked(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: as in `set`.
            unsafe { self.0.write_unaligned(value) };
        }
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
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: valid for the writes by this function's contract, and the caller's buffer is not our slice.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }
}

/// An input array: null, or valid for reads of as many elements as the call's count argument says.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Array<T>(*const T);

impl<T: Copy> Array<T> {
    /// The elements, copied out so that nothing borrows the caller's memory while locks are held.
    ///
    /// # Safety
    ///
    /// A pointer that is not null must be valid for reads of `count` elements.
    pub(crate) unsafe fn read(self, count: usize) -> Answer<Vec<T>> {
        if self.0.is_null() && count > 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: valid for reads of `count` elements by this function's contract; unaligned reads ask no more.
        Ok((0..count).map(|index| unsafe { self.0.add(index).read_unaligned() }).collect())
    }
}

/// A C string argument: null, or NUL-terminated.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The string; null or text that is not UTF-8 is the caller's `INVALID_VALUE`.
    pub(crate) fn read(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and so NUL-terminated by this type's contract.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| Code::INVALID_VALUE)
    }
}

/// Writes `text` and its NUL into a caller's buffer of `len` bytes, cut where it does not fit.
///
/// # Safety
///
/// `buffer` must be null or valid for `len` writes.
pub(crate) unsafe fn put_text(buffer: Out<c_char>, len: i32, text: &str) -> Answer {
    let room = usize::try_from(len).ok().filter(|room| *room > 0).ok_or(Code::INVALID_VALUE)?;
    let mut bytes: Vec<c_char> = text.bytes().take(room - 1).map(|byte| byte as c_char).collect();
    bytes.push(0);
    // SAFETY: at most `len` elements, which the caller's buffer holds.
    unsafe { buffer.fill(&bytes) }
}
