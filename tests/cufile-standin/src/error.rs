//! How cuFile says no: a pair of codes by value, or a negative number.

/// `CUfileError_t`, returned by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Error {
    pub(crate) cufile: i32,
    pub(crate) cuda: i32,
}

/// The numbers of `CUfileOpError` that the stand-in gives of its own accord.
pub(crate) mod code {
    pub(crate) const DRIVER_NOT_INITIALIZED: i32 = 5001;
    pub(crate) const DRIVER_UNSUPPORTED_LIMIT: i32 = 5003;
    pub(crate) const CUDA_DRIVER_ERROR: i32 = 5011;
    pub(crate) const CUDA_POINTER_INVALID: i32 = 5012;
    pub(crate) const CUDA_MEMORY_TYPE_INVALID: i32 = 5013;
    pub(crate) const CUDA_POINTER_RANGE_ERROR: i32 = 5014;
    pub(crate) const CUDA_CONTEXT_MISMATCH: i32 = 5015;
    pub(crate) const INVALID_MAPPING_SIZE: i32 = 5016;
    pub(crate) const INVALID_MAPPING_RANGE: i32 = 5017;
    pub(crate) const INVALID_FILE_TYPE: i32 = 5018;
    pub(crate) const INVALID_FILE_OPEN_FLAG: i32 = 5019;
    pub(crate) const INVALID_VALUE: i32 = 5022;
    pub(crate) const MEMORY_ALREADY_REGISTERED: i32 = 5023;
    pub(crate) const MEMORY_NOT_REGISTERED: i32 = 5024;
    pub(crate) const DRIVER_ALREADY_OPEN: i32 = 5026;
    pub(crate) const HANDLE_NOT_REGISTERED: i32 = 5027;
    pub(crate) const HANDLE_ALREADY_REGISTERED: i32 = 5028;
    pub(crate) const INTERNAL_ERROR: i32 = 5030;
    pub(crate) const GETNEWFD_FAILED: i32 = 5031;
    pub(crate) const BATCH_FULL: i32 = 5037;
    /// The least and the greatest number that a cuFile code can have.
    pub(crate) const ALL: std::ops::RangeInclusive<i32> = 5001..=5050;
}

impl Error {
    pub(crate) const SUCCESS: Error = Error { cufile: 0, cuda: 0 };

    pub(crate) fn cufile(code: i32) -> Error {
        Error { cufile: code, cuda: 0 }
    }

    pub(crate) fn cuda(code: i32) -> Error {
        Error { cufile: code::CUDA_DRIVER_ERROR, cuda: code }
    }
}

/// What most entry points answer.
pub(crate) type Answer<T = ()> = Result<T, Error>;

impl From<Answer> for Error {
    fn from(answer: Answer) -> Error {
        answer.err().unwrap_or(Error::SUCCESS)
    }
}

/// How a read or a write fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// -1, and this in `errno`: the kernel's, or one of cuFile's codes, which the real library puts there too.
    Errno(i32),
    /// Minus this cuFile code.
    Code(i32),
    /// Minus `CUDA_DRIVER_ERROR`; calls that can say so also name this code of the driver.
    Cuda(i32),
}

impl Failure {
    /// The return value, with `errno` set where it says more.
    pub(crate) fn answer(self) -> isize {
        if let Failure::Errno(errno) = self {
            // SAFETY: the calling thread's errno is always writable.
            unsafe { *libc::__errno_location() = errno };
            return -1;
        }
        -(self.number() as isize)
    }

    /// The number alone, as batch entries and stream operations, which have no `errno`, give it with a minus sign.
    pub(crate) fn number(self) -> i32 {
        match self {
            Failure::Errno(number) | Failure::Code(number) => number,
            Failure::Cuda(_) => code::CUDA_DRIVER_ERROR,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Cuda(code) => Error::cuda(code),
            // A kernel's errno has no place in a `CUfileError_t`.
            Failure::Errno(number) if !code::ALL.contains(&number) => Error::cufile(code::INTERNAL_ERROR),
            _ => Error::cufile(failure.number()),
        }
    }
}
