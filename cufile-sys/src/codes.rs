//! cuFile's error codes: a number, a name, and what it means in words.

use std::fmt;

use crate::constants::Constant;
use crate::version::Version;

/// A result code of cuFile: [`SUCCESS`](Self::SUCCESS), or a number above 5000.
///
/// Any integer is a valid value: a newer library may have codes that this crate does not know, and they are
/// shown as numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct CUfileOpError(pub i32);

const _: () = assert!(size_of::<CUfileOpError>() == 4 && align_of::<CUfileOpError>() == 4);

/// What is known of one code.
struct Code {
    constant: Constant,
    text: &'static str,
}

/// Defines the codes: first version, constant, number, C name, text.
macro_rules! codes {
    ($( $since:literal $constant:ident = $value:literal, $c_name:literal, $text:literal; )*) => {
        impl CUfileOpError {
            $(
                #[doc = concat!("`", $c_name, "` (", $value, "): ", $text, ".\n\nIn headers since cuFile ", $since, ".")]
                pub const $constant: Self = Self($value);
            )*

            /// Every code above.
            pub const CONSTANTS: &'static [Constant] = &[$(
                Constant { name: $c_name, value: $value, since: Version::literal($since) },
            )*];
        }

        const CODES: &[Code] = &[$(Code {
            constant: Constant { name: $c_name, value: $value, since: Version::literal($since) },
            text: $text,
        },)*];
    };
}

codes! {
    "1.0" SUCCESS = 0, "CU_FILE_SUCCESS", "success";
    "1.0" DRIVER_NOT_INITIALIZED = 5001, "CU_FILE_DRIVER_NOT_INITIALIZED",
        "the cuFile driver is not open, or nvidia-fs is not loaded and compatibility mode is not allowed; load nvidia-fs, use P2PDMA, or set allow_compat_mode in cufile.json";
    "1.0" DRIVER_INVALID_PROPS = 5002, "CU_FILE_DRIVER_INVALID_PROPS",
        "a property of the driver has an invalid value; check cufile.json";
    "1.0" DRIVER_UNSUPPORTED_LIMIT = 5003, "CU_FILE_DRIVER_UNSUPPORTED_LIMIT",
        "a size or limit is outside of what the driver accepts; choose another";
    "1.0" DRIVER_VERSION_MISMATCH = 5004, "CU_FILE_DRIVER_VERSION_MISMATCH",
        "the nvidia-fs module and the cuFile library do not fit each other; install matching versions";
    "1.0" DRIVER_VERSION_READ_ERROR = 5005, "CU_FILE_DRIVER_VERSION_READ_ERROR",
        "the version of nvidia-fs or of cuFile could not be read; check that the module is loaded and /proc is readable";
    "1.0" DRIVER_CLOSING = 5006, "CU_FILE_DRIVER_CLOSING",
        "the driver is being closed; finish all I/O first, and start none after";
    "1.0" PLATFORM_NOT_SUPPORTED = 5007, "CU_FILE_PLATFORM_NOT_SUPPORTED",
        "this machine cannot do GPUDirect Storage; use another way to read";
    "1.0" IO_NOT_SUPPORTED = 5008, "CU_FILE_IO_NOT_SUPPORTED",
        "this file's filesystem or device cannot do GPUDirect Storage; move the file or use another way to read";
    "1.0" DEVICE_NOT_SUPPORTED = 5009, "CU_FILE_DEVICE_NOT_SUPPORTED",
        "this GPU cannot do GPUDirect Storage; use another GPU or another way to read";
    "1.0" NVFS_DRIVER_ERROR = 5010, "CU_FILE_NVFS_DRIVER_ERROR",
        "the nvidia-fs module refused a request; the kernel log says why";
    "1.0" CUDA_DRIVER_ERROR = 5011, "CU_FILE_CUDA_DRIVER_ERROR",
        "a call of the CUDA driver failed; the CUDA code beside this one says why";
    "1.0" CUDA_POINTER_INVALID = 5012, "CU_FILE_CUDA_POINTER_INVALID",
        "the pointer is not one that CUDA knows; give the base of live device memory";
    "1.0" CUDA_MEMORY_TYPE_INVALID = 5013, "CU_FILE_CUDA_MEMORY_TYPE_INVALID",
        "memory of this type cannot be used; use memory from cuMemAlloc";
    "1.0" CUDA_POINTER_RANGE_ERROR = 5014, "CU_FILE_CUDA_POINTER_RANGE_ERROR",
        "the range goes beyond the allocation that the pointer lies in; give a smaller size";
    "1.0" CUDA_CONTEXT_MISMATCH = 5015, "CU_FILE_CUDA_CONTEXT_MISMATCH",
        "the memory belongs to another CUDA context than the current one; make its context current first";
    "1.0" INVALID_MAPPING_SIZE = 5016, "CU_FILE_INVALID_MAPPING_SIZE",
        "the buffer is larger than what may be pinned (BAR1, or max_device_pinned_mem_size); register less, or use it unregistered";
    "1.0" INVALID_MAPPING_RANGE = 5017, "CU_FILE_INVALID_MAPPING_RANGE",
        "the access goes beyond the registered part of the buffer; check offset and size";
    "1.0" INVALID_FILE_TYPE = 5018, "CU_FILE_INVALID_FILE_TYPE",
        "the file is not of a kind that cuFile takes; give a regular file";
    "1.0" INVALID_FILE_OPEN_FLAG = 5019, "CU_FILE_INVALID_FILE_OPEN_FLAG",
        "the file was opened with flags that cuFile does not take; open it with O_DIRECT, and without O_APPEND";
    "1.0" DIO_NOT_SET = 5020, "CU_FILE_DIO_NOT_SET",
        "the file was opened without O_DIRECT; open it with O_DIRECT";
    "1.0" INVALID_VALUE = 5022, "CU_FILE_INVALID_VALUE",
        "an argument is invalid; check pointers, sizes and handles";
    "1.0" MEMORY_ALREADY_REGISTERED = 5023, "CU_FILE_MEMORY_ALREADY_REGISTERED",
        "the buffer, or a part of it, is registered already; register it once";
    "1.0" MEMORY_NOT_REGISTERED = 5024, "CU_FILE_MEMORY_NOT_REGISTERED",
        "the buffer is not registered; register it, or do not deregister it twice";
    "1.0" PERMISSION_DENIED = 5025, "CU_FILE_PERMISSION_DENIED",
        "the driver or the file may not be accessed; check the modes of the file and of /dev/nvidia-fs*";
    "1.0" DRIVER_ALREADY_OPEN = 5026, "CU_FILE_DRIVER_ALREADY_OPEN",
        "the driver is open; parameters must be set before it is opened";
    "1.0" HANDLE_NOT_REGISTERED = 5027, "CU_FILE_HANDLE_NOT_REGISTERED",
        "the file handle is not registered; register it first, and keep it registered during I/O";
    "1.0" HANDLE_ALREADY_REGISTERED = 5028, "CU_FILE_HANDLE_ALREADY_REGISTERED",
        "the file descriptor is registered already; register it once";
    "1.0" DEVICE_NOT_FOUND = 5029, "CU_FILE_DEVICE_NOT_FOUND",
        "no such GPU; check the device number and CUDA_VISIBLE_DEVICES";
    "1.0" INTERNAL_ERROR = 5030, "CU_FILE_INTERNAL_ERROR",
        "an internal error of cuFile; when registering a file in a container, check that /run/udev is mounted there; cufile.log may say more";
    "1.0" GETNEWFD_FAILED = 5031, "CU_FILE_GETNEWFD_FAILED",
        "cuFile could not get a file descriptor of its own; raise the limit of open files";
    "1.0" NVFS_SETUP_ERROR = 5033, "CU_FILE_NVFS_SETUP_ERROR",
        "the driver could not be set up; check that a GPU is visible and that nvidia-fs or P2PDMA works, or allow compatibility mode";
    "1.0" IO_DISABLED = 5034, "CU_FILE_IO_DISABLED",
        "the configuration turns GPUDirect Storage off for this file; check cufile.json";
    "1.2" BATCH_SUBMIT_FAILED = 5035, "CU_FILE_BATCH_SUBMIT_FAILED",
        "the batch could not be submitted; check its entries, or read without a batch";
    "1.2" GPU_MEMORY_PINNING_FAILED = 5036, "CU_FILE_GPU_MEMORY_PINNING_FAILED",
        "GPU memory could not be pinned; register less, or use the buffer unregistered";
    "1.2" BATCH_FULL = 5037, "CU_FILE_BATCH_FULL",
        "the batch holds no more entries; collect finished ones first";
    "1.7" ASYNC_NOT_SUPPORTED = 5038, "CU_FILE_ASYNC_NOT_SUPPORTED",
        "stream-ordered I/O does not work here; use synchronous I/O or a batch";
    "1.15" INTERNAL_BATCH_SETUP_ERROR = 5039, "CU_FILE_INTERNAL_BATCH_SETUP_ERROR",
        "an internal error while a batch was set up; try again later (before cuFile 1.15 this number was the end of the list)";
    "1.15" INTERNAL_BATCH_SUBMIT_ERROR = 5040, "CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR",
        "an internal error while a batch was submitted; try again later";
    "1.15" INTERNAL_BATCH_GETSTATUS_ERROR = 5041, "CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR",
        "an internal error while a batch was asked for its state; try again later";
    "1.15" INTERNAL_BATCH_CANCEL_ERROR = 5042, "CU_FILE_INTERNAL_BATCH_CANCEL_ERROR",
        "an internal error while a batch was cancelled; try again later";
    "1.15" NOMEM_ERROR = 5043, "CU_FILE_NOMEM_ERROR",
        "cuFile ran out of memory or of bounce buffers; use less at once, or try again later";
    "1.15" IO_ERROR = 5044, "CU_FILE_IO_ERROR",
        "an I/O failed; check the storage and the kernel log";
    "1.15" INTERNAL_BUF_REGISTER_ERROR = 5045, "CU_FILE_INTERNAL_BUF_REGISTER_ERROR",
        "an internal error while a buffer was registered; use it unregistered";
    "1.15" HASH_OPR_ERROR = 5046, "CU_FILE_HASH_OPR_ERROR",
        "an internal table of cuFile could not be changed or searched; close the driver and open it again";
    "1.15" INVALID_CONTEXT_ERROR = 5047, "CU_FILE_INVALID_CONTEXT_ERROR",
        "there is no valid CUDA context; make the device's context current in this thread";
    "1.15" NVFS_INTERNAL_DRIVER_ERROR = 5048, "CU_FILE_NVFS_INTERNAL_DRIVER_ERROR",
        "an internal error of nvidia-fs; the kernel log says more";
    "1.15" BATCH_NOCOMPAT_ERROR = 5049, "CU_FILE_BATCH_NOCOMPAT_ERROR",
        "the batch needs compatibility mode, which is off; allow it, or read without a batch";
    "1.0" IO_MAX_ERROR = 5050, "CU_FILE_IO_MAX_ERROR",
        "the end of the list of codes, not an error of its own; it was 5039 before cuFile 1.15";
}

impl CUfileOpError {
    /// Is it [`SUCCESS`](Self::SUCCESS)?
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// The C name, such as `CU_FILE_DIO_NOT_SET`, if the code is known.
    pub fn name(self) -> Option<&'static str> {
        self.code().map(|code| code.constant.name)
    }

    /// What the code means and what can be done about it, if the code is known.
    pub fn text(self) -> Option<&'static str> {
        self.code().map(|code| code.text)
    }

    fn code(self) -> Option<&'static Code> {
        CODES.iter().find(|code| code.constant.value == i64::from(self.0))
    }
}

impl fmt::Display for CUfileOpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code() {
            Some(code) => write!(f, "{} ({}): {}", code.constant.name, self.0, code.text),
            None => write!(f, "unknown cuFile code {}", self.0),
        }
    }
}

impl fmt::Debug for CUfileOpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name}({})", self.0),
            None => write!(f, "CUfileOpError({})", self.0),
        }
    }
}

impl std::error::Error for CUfileOpError {}

/// Why an I/O of cuFile failed; see [`decode_return`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IoFailure {
    /// The operating system's error number. 0 if cuFile failed without setting one.
    Os(i32),
    /// cuFile's own code.
    Cufile(CUfileOpError),
}

impl fmt::Display for IoFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Os(0) => f.write_str("cuFile failed and set no error number"),
            Self::Os(errno) => write!(f, "{}", std::io::Error::from_raw_os_error(*errno)),
            Self::Cufile(code) => write!(f, "{code}"),
        }
    }
}

impl std::error::Error for IoFailure {}

/// Says what the return value of `cuFileRead`, `cuFileWrite`, `cuFileReadv` or `cuFileWritev` means: a number
/// of bytes, possibly fewer than were asked for.
///
/// `errno` is the thread's error number, read directly after the call.
///
/// The bytes that a stream-ordered I/O reports and, cast to `isize`, the `ret` of a
/// [`CUfileIOEvents_t`](crate::CUfileIOEvents_t) have the same form. No error number belongs to those: give
/// 0.
///
/// # Errors
/// -1 is the error `errno`, which can be a cuFile code too. Below -5000 is minus a cuFile code. Between the two is minus an error number of
/// the operating system, which the header does not mention but the library does return (-5 from a
/// stream-ordered read).
pub fn decode_return(n: isize, errno: i32) -> Result<usize, IoFailure> {
    if let Ok(bytes) = usize::try_from(n) {
        return Ok(bytes);
    }
    // A number that no i32 holds is no code; it stays a failure, with the largest number there is.
    let code = i32::try_from(n.unsigned_abs()).unwrap_or(i32::MAX);
    Err(match code {
        // Some versions leave a code of cuFile's own there.
        1 if errno > crate::CUFILEOP_BASE_ERR => IoFailure::Cufile(CUfileOpError(errno)),
        1 => IoFailure::Os(errno),
        code if code > crate::CUFILEOP_BASE_ERR => IoFailure::Cufile(CUfileOpError(code)),
        code => IoFailure::Os(code),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_name_and_a_text_and_the_gaps_have_none() {
        for number in 5001..=5050 {
            let code = CUfileOpError(number);
            if [5021, 5032].contains(&number) {
                assert_eq!((code.name(), code.text()), (None, None), "{number}");
                assert_eq!(code.to_string(), format!("unknown cuFile code {number}"));
                continue;
            }
            let (name, text) = (code.name().unwrap(), code.text().unwrap());
            assert!(name.starts_with("CU_FILE_"), "{number}");
            assert!(text.len() > 20 && !text.ends_with('.'), "{number}");
            assert_eq!(code.to_string(), format!("{name} ({number}): {text}"));
        }
        assert_eq!(CODES.len(), 49);
        assert_eq!(CUfileOpError::CONSTANTS.len(), 49);
    }

    #[test]
    fn an_unknown_code_is_shown_as_its_number() {
        for number in [1, -1, 4999, 5051, 6001, i32::MAX, i32::MIN] {
            assert_eq!(CUfileOpError(number).to_string(), format!("unknown cuFile code {number}"));
            assert_eq!(format!("{:?}", CUfileOpError(number)), format!("CUfileOpError({number})"));
        }
    }

    #[test]
    fn returns_are_bytes_or_an_error_number_or_a_code() {
        assert_eq!(decode_return(0, 5), Ok(0));
        assert_eq!(decode_return(4096, 5), Ok(4096));
        assert_eq!(decode_return(isize::MAX, 0), Ok(isize::MAX as usize));
        assert_eq!(decode_return(-1, 5019), Err(IoFailure::Cufile(CUfileOpError(5019))));
        assert_eq!(decode_return(-1, libc::EIO), Err(IoFailure::Os(libc::EIO)));
        assert_eq!(decode_return(-1, 0), Err(IoFailure::Os(0)));
        assert_eq!(decode_return(-5, 0), Err(IoFailure::Os(5)));
        assert_eq!(decode_return(-5000, 0), Err(IoFailure::Os(5000)));
        assert_eq!(decode_return(-5022, 7), Err(IoFailure::Cufile(CUfileOpError::INVALID_VALUE)));
        assert_eq!(decode_return(-5099, 0), Err(IoFailure::Cufile(CUfileOpError(5099))));
        for lost in [isize::MIN, isize::MIN + 1, -(1 << 31), -(1 << 40)] {
            assert_eq!(decode_return(lost, 0), Err(IoFailure::Cufile(CUfileOpError(i32::MAX))));
        }
    }

    #[test]
    fn failures_are_told_in_words() {
        assert!(IoFailure::Os(libc::ENOSPC).to_string().contains("No space left"));
        assert!(IoFailure::Os(0).to_string().contains("no error number"));
        assert!(IoFailure::Cufile(CUfileOpError(5020)).to_string().contains("O_DIRECT"));
        assert_eq!(IoFailure::Cufile(CUfileOpError(5077)).to_string(), "unknown cuFile code 5077");
    }
}
