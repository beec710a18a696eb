//! cuFile's structures, unions and handles.
//!
//! Sizes, alignments and offsets are those of 64-bit Linux and are asserted at compile time;
//! `tests/header.rs` compares them with NVIDIA's header.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;

use libc::{off_t, sockaddr};

use crate::codes::CUfileOpError;
use crate::constants::{
    CUfileBatchMode_t, CUfileDriverStatusFlags_t, CUfileFeatureFlags_t, CUfileFileHandleType, CUfileOpcode_t,
    CUfileStatus_t,
};

/// Asserts a type's size, alignment and the offset of each of its fields, in bytes.
macro_rules! layout {
    ($type:ty, size $size:literal, align $align:literal,
     { $($field:ident $(. $inner:ident)* @ $offset:literal),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            assert!(align_of::<$type>() == $align);
            $(assert!(std::mem::offset_of!($type, $field $(. $inner)*) == $offset);)*
        };
    };
}
pub(crate) use layout;

/// Defines an opaque handle: a pointer into memory of the library.
macro_rules! handle {
    ($( $(#[$doc:meta])* $name:ident; )*) => {$(
        $(#[$doc])*
        #[allow(non_camel_case_types)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// The null handle.
            pub const NULL: Self = Self(std::ptr::null_mut());
        }

        layout!($name, size 8, align 8, {});
    )*};
}

handle! {
    /// A registered file.
    CUfileHandle_t;
    /// A batch.
    CUfileBatchHandle_t;
    /// A stream of the CUDA driver, as `cuStreamCreate` gives it. Null is the default stream.
    CUstream;
}

/// A result of the CUDA driver: 0, or an error code of `cuda.h`.
pub type CUresult = i32;

/// What most functions return, by value: cuFile's code, and the CUDA driver's where that is
/// [`CUDA_DRIVER_ERROR`](CUfileOpError::CUDA_DRIVER_ERROR).
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct CUfileError_t {
    /// cuFile's code.
    pub err: CUfileOpError,
    /// The CUDA driver's code. It means something only beside
    /// [`CUDA_DRIVER_ERROR`](CUfileOpError::CUDA_DRIVER_ERROR).
    pub cu_err: CUresult,
}

impl CUfileError_t {
    /// The success that functions return.
    pub const SUCCESS: Self = Self { err: CUfileOpError::SUCCESS, cu_err: 0 };

    /// Turns a failure into an error.
    ///
    /// # Errors
    /// The value itself, if its code is not [`SUCCESS`](CUfileOpError::SUCCESS).
    pub const fn result(self) -> Result<(), Self> {
        if self.err.is_success() { Ok(()) } else { Err(self) }
    }
}

impl fmt::Display for CUfileError_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.err)?;
        if self.err == CUfileOpError::CUDA_DRIVER_ERROR {
            write!(f, " (CUDA code {})", self.cu_err)?;
        }
        Ok(())
    }
}

impl std::error::Error for CUfileError_t {}

layout!(CUfileError_t, size 8, align 4, { err @ 0, cu_err @ 4 });

/// The part of [`CUfileDrvProps_t`] that is about nvidia-fs. In the header it has no name of its own.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct CUfileDrvPropsNvfs_t {
    /// Major version of nvidia-fs.
    pub major_version: c_uint,
    /// Minor version of nvidia-fs.
    pub minor_version: c_uint,
    /// Largest I/O that is polled for, in KiB.
    pub poll_thresh_size: usize,
    /// Largest I/O that is handed to nvidia-fs at once, in KiB.
    pub max_direct_io_size: usize,
    /// Kinds of storage that work: one bit for each [`CUfileDriverStatusFlags_t`].
    pub dstatusflags: c_uint,
    /// Ways of working that are on; see
    /// [`CUfileDriverControlFlags_t`](crate::CUfileDriverControlFlags_t).
    pub dcontrolflags: c_uint,
}

layout!(CUfileDrvPropsNvfs_t, size 32, align 8, {
    major_version @ 0, minor_version @ 4, poll_thresh_size @ 8, max_direct_io_size @ 16, dstatusflags @ 24,
    dcontrolflags @ 28,
});

/// What `cuFileDriverGetProperties` tells.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct CUfileDrvProps_t {
    /// About nvidia-fs.
    pub nvfs: CUfileDrvPropsNvfs_t,
    /// Features that work: one bit for each [`CUfileFeatureFlags_t`].
    pub fflags: c_uint,
    /// GPU memory that the library keeps per device for bounce buffers, in KiB.
    pub max_device_cache_size: c_uint,
    /// Size of one bounce buffer, in KiB.
    pub per_buffer_cache_size: c_uint,
    /// GPU memory that may be registered per device, in KiB.
    pub max_device_pinned_mem_size: c_uint,
    /// Entries of a batch at most.
    pub max_batch_io_size: c_uint,
    /// Time that a batch gets, in milliseconds.
    pub max_batch_io_timeout_msecs: c_uint,
}

impl CUfileDrvProps_t {
    /// Is the bit of this kind of storage set?
    pub const fn has_storage(&self, kind: CUfileDriverStatusFlags_t) -> bool {
        has_bit(self.nvfs.dstatusflags, kind.0)
    }

    /// Is the bit of this feature set?
    pub const fn has_feature(&self, feature: CUfileFeatureFlags_t) -> bool {
        has_bit(self.fflags, feature.0)
    }
}

const fn has_bit(bits: c_uint, number: i32) -> bool {
    number >= 0 && number < 32 && bits & (1 << number) != 0
}

layout!(CUfileDrvProps_t, size 56, align 8, {
    nvfs @ 0, fflags @ 32, max_device_cache_size @ 36, per_buffer_cache_size @ 40,
    max_device_pinned_mem_size @ 44, max_batch_io_size @ 48, max_batch_io_timeout_msecs @ 52,
});

/// What a filesystem in user space is told about an RDMA transfer.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct cufileRDMAInfo_t {
    /// Version of the description.
    pub version: c_int,
    /// Length of the description in bytes.
    pub desc_len: c_int,
    /// The description.
    pub desc_str: *const c_char,
}

layout!(cufileRDMAInfo_t, size 16, align 8, { version @ 0, desc_len @ 4, desc_str @ 8 });

/// The functions of a filesystem in user space. Up to 1.15 the header has its `const` pointers without
/// `const`; the layout is the same.
#[allow(non_camel_case_types, non_snake_case)]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CUfileFSOps_t {
    /// Names the filesystem's type. None: it is found by `fstat`.
    pub fs_type: Option<unsafe extern "C" fn(handle: *const c_void) -> *const c_char>,
    /// Lists the addresses of hosts to use. None: any.
    pub getRDMADeviceList:
        Option<unsafe extern "C" fn(handle: *const c_void, hosts: *mut *mut sockaddr) -> c_int>,
    /// The priority of a host for a range of a file; -1: no preference.
    pub getRDMADevicePriority: Option<
        unsafe extern "C" fn(
            handle: *const c_void,
            buffer: *mut c_char,
            size: usize,
            offset: i64,
            host: *const sockaddr,
        ) -> c_int,
    >,
    /// Reads. None: by the kernel's filesystem.
    pub read: Option<
        unsafe extern "C" fn(
            handle: *const c_void,
            buffer: *mut c_char,
            size: usize,
            offset: i64,
            info: *const cufileRDMAInfo_t,
        ) -> isize,
    >,
    /// Writes. None: by the kernel's filesystem.
    pub write: Option<
        unsafe extern "C" fn(
            handle: *const c_void,
            buffer: *const c_char,
            size: usize,
            offset: i64,
            info: *const cufileRDMAInfo_t,
        ) -> isize,
    >,
}

layout!(CUfileFSOps_t, size 40, align 8, {
    fs_type @ 0, getRDMADeviceList @ 8, getRDMADevicePriority @ 16, read @ 24, write @ 32,
});

/// The file of a [`CUfileDescr_t`]. In the header it has no name of its own.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
#[repr(C)]
pub union CUfileDescrHandle_t {
    /// A Linux file descriptor.
    pub fd: c_int,
    /// A handle of another kind, or that of a filesystem in user space.
    pub handle: *mut c_void,
}

impl fmt::Debug for CUfileDescrHandle_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CUfileDescrHandle_t")
    }
}

layout!(CUfileDescrHandle_t, size 8, align 8, { fd @ 0, handle @ 0 });

/// A file to register.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUfileDescr_t {
    /// What `handle` is. In C this field is named `type`.
    pub kind: CUfileFileHandleType,
    /// The file.
    pub handle: CUfileDescrHandle_t,
    /// The functions of a filesystem in user space; null for any other.
    pub fs_ops: *const CUfileFSOps_t,
}

impl CUfileDescr_t {
    /// Describes an open file of Linux. Every byte is set, also those of the union that `fd` does not cover.
    pub const fn from_fd(fd: c_int) -> Self {
        let mut handle = CUfileDescrHandle_t { handle: std::ptr::null_mut() };
        handle.fd = fd;
        Self { kind: CUfileFileHandleType::OPAQUE_FD, handle, fs_ops: std::ptr::null() }
    }
}

layout!(CUfileDescr_t, size 24, align 8, { kind @ 0, handle @ 8, fs_ops @ 16 });

/// One I/O of a batch, as to where.
#[allow(non_camel_case_types, non_snake_case)]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUfileIOParamsBatch_t {
    /// Base of the buffer, in device or host memory.
    pub devPtr_base: *mut c_void,
    /// First byte in the file.
    pub file_offset: off_t,
    /// First byte in the buffer, from `devPtr_base`.
    pub devPtr_offset: off_t,
    /// Bytes.
    pub size: usize,
}

layout!(CUfileIOParamsBatch_t, size 32, align 8, {
    devPtr_base @ 0, file_offset @ 8, devPtr_offset @ 16, size @ 24,
});

/// The forms of an I/O of a batch. In the header it has no name of its own, and one form.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
#[repr(C)]
pub union CUfileIOParamsUnion_t {
    /// The form of [`CUfileBatchMode_t::BATCH`].
    pub batch: CUfileIOParamsBatch_t,
}

impl fmt::Debug for CUfileIOParamsUnion_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CUfileIOParamsUnion_t")
    }
}

layout!(CUfileIOParamsUnion_t, size 32, align 8, { batch @ 0 });

/// One I/O of a batch.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUfileIOParams_t {
    /// Which form `u` has.
    pub mode: CUfileBatchMode_t,
    /// Where.
    pub u: CUfileIOParamsUnion_t,
    /// The file.
    pub fh: CUfileHandle_t,
    /// Read or write.
    pub opcode: CUfileOpcode_t,
    /// Comes back with the event.
    pub cookie: *mut c_void,
}

layout!(CUfileIOParams_t, size 64, align 8, { mode @ 0, u @ 8, fh @ 40, opcode @ 48, cookie @ 56 });

/// What became of one I/O of a batch.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUfileIOEvents_t {
    /// The cookie of the I/O.
    pub cookie: *mut c_void,
    /// Where it stands.
    pub status: CUfileStatus_t,
    /// Bytes, or a negative number although the type is unsigned: see [`returned`](Self::returned).
    pub ret: usize,
}

impl CUfileIOEvents_t {
    /// `ret` with its sign, as [`decode_return`](crate::decode_return) takes it.
    pub const fn returned(&self) -> isize {
        self.ret as isize
    }
}

layout!(CUfileIOEvents_t, size 24, align 8, { cookie @ 0, status @ 8, ret @ 16 });

/// A part of the memory of a vectored I/O.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUfileIOVec_t {
    /// Its first byte, in device or host memory.
    pub base: *mut c_void,
    /// Bytes.
    pub len: usize,
}

layout!(CUfileIOVec_t, size 16, align 8, { base @ 0, len @ 8 });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_the_cuda_code_only_where_it_means_something() {
        let cuda = CUfileError_t { err: CUfileOpError::CUDA_DRIVER_ERROR, cu_err: 201 };
        assert!(cuda.to_string().ends_with("(CUDA code 201)"));
        let other = CUfileError_t { err: CUfileOpError::INVALID_VALUE, cu_err: 201 };
        assert!(!other.to_string().contains("201"));
        assert_eq!(other.result(), Err(other));
        assert_eq!(CUfileError_t::SUCCESS.result(), Ok(()));
    }

    #[test]
    fn a_flag_that_is_no_bit_is_not_set() {
        let mut properties = CUfileDrvProps_t::default();
        properties.nvfs.dstatusflags = 1 << 4;
        properties.fflags = u32::MAX;
        assert!(properties.has_storage(CUfileDriverStatusFlags_t::NVME_SUPPORTED));
        assert!(!properties.has_storage(CUfileDriverStatusFlags_t::NFS_SUPPORTED));
        assert!(properties.has_feature(CUfileFeatureFlags_t(31)));
        assert!(!properties.has_feature(CUfileFeatureFlags_t(32)));
        assert!(!properties.has_feature(CUfileFeatureFlags_t(-1)));
    }

    #[test]
    fn an_events_number_of_bytes_has_a_sign() {
        let event = CUfileIOEvents_t {
            cookie: std::ptr::null_mut(),
            status: CUfileStatus_t::FAILED,
            ret: (-5022_isize) as usize,
        };
        assert_eq!(event.returned(), -5022);
    }
}
