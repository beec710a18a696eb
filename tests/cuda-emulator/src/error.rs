//! Result codes: the numbers, names and texts of `CUresult`.

use std::ffi::{CStr, c_char};

use crate::call;
use crate::ffi::Out;

/// A `CUresult` as it crosses the C boundary. An integer newtype and not an enum: callers may hand in any number.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Code(pub(crate) i32);

/// What every entry point computes before it is flattened to a [`Code`].
pub(crate) type Answer<T = ()> = Result<T, Code>;

impl From<Answer> for Code {
    fn from(answer: Answer) -> Code {
        match answer {
            Ok(()) => Code::SUCCESS,
            Err(code) => code,
        }
    }
}

/// Builds the constants and the two lookup functions from one list, so that a code cannot lack its text.
macro_rules! codes {
    ($($name:ident = $number:literal, $prefix:literal, $text:literal;)*) => {
        #[allow(dead_code, reason = "the table is the whole of CUresult, whether or not the emulator returns it")]
        impl Code {
            $(pub(crate) const $name: Code = Code($number);)*

            fn name(self) -> Option<&'static CStr> {
                match self.0 {
                    $($number => CStr::from_bytes_with_nul(
                        concat!($prefix, stringify!($name), "\0").as_bytes()).ok(),)*
                    _ => None,
                }
            }

            fn text(self) -> Option<&'static CStr> {
                match self.0 {
                    $($number => CStr::from_bytes_with_nul(concat!($text, "\0").as_bytes()).ok(),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0, "CUDA_", "no error";
    INVALID_VALUE = 1, "CUDA_ERROR_", "invalid argument";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_", "out of memory";
    NOT_INITIALIZED = 3, "CUDA_ERROR_", "initialization error";
    DEINITIALIZED = 4, "CUDA_ERROR_", "driver shutting down";
    PROFILER_DISABLED = 5, "CUDA_ERROR_", "profiler disabled while using external profiling tool";
    PROFILER_NOT_INITIALIZED = 6, "CUDA_ERROR_", "profiler not initialized: call cudaProfilerInitialize()";
    PROFILER_ALREADY_STARTED = 7, "CUDA_ERROR_", "profiler already started";
    PROFILER_ALREADY_STOPPED = 8, "CUDA_ERROR_", "profiler already stopped";
    STUB_LIBRARY = 34, "CUDA_ERROR_", "CUDA driver is a stub library";
    DEVICE_UNAVAILABLE = 46, "CUDA_ERROR_", "CUDA-capable device(s) is/are busy or unavailable";
    NO_DEVICE = 100, "CUDA_ERROR_", "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "CUDA_ERROR_", "invalid device ordinal";
    DEVICE_NOT_LICENSED = 102, "CUDA_ERROR_", "device doesn't have valid Grid license";
    INVALID_IMAGE = 200, "CUDA_ERROR_", "device kernel image is invalid";
    INVALID_CONTEXT = 201, "CUDA_ERROR_", "invalid device context";
    CONTEXT_ALREADY_CURRENT = 202, "CUDA_ERROR_", "context already current";
    MAP_FAILED = 205, "CUDA_ERROR_", "mapping of buffer object failed";
    UNMAP_FAILED = 206, "CUDA_ERROR_", "unmapping of buffer object failed";
    ARRAY_IS_MAPPED = 207, "CUDA_ERROR_", "array is mapped";
    ALREADY_MAPPED = 208, "CUDA_ERROR_", "resource already mapped";
    NO_BINARY_FOR_GPU = 209, "CUDA_ERROR_", "no kernel image is available for execution on the device";
    ALREADY_ACQUIRED = 210, "CUDA_ERROR_", "resource already acquired";
    NOT_MAPPED = 211, "CUDA_ERROR_", "resource not mapped";
    NOT_MAPPED_AS_ARRAY = 212, "CUDA_ERROR_", "resource not mapped as array";
    NOT_MAPPED_AS_POINTER = 213, "CUDA_ERROR_", "resource not mapped as pointer";
    ECC_UNCORRECTABLE = 214, "CUDA_ERROR_", "uncorrectable ECC error encountered";
    UNSUPPORTED_LIMIT = 215, "CUDA_ERROR_", "limit is not supported on this architecture";
    CONTEXT_ALREADY_IN_USE = 216, "CUDA_ERROR_", "exclusive-thread device already in use by a different thread";
    PEER_ACCESS_UNSUPPORTED = 217, "CUDA_ERROR_", "peer access is not supported between these two devices";
    INVALID_PTX = 218, "CUDA_ERROR_", "a PTX JIT compilation failed";
    INVALID_GRAPHICS_CONTEXT = 219, "CUDA_ERROR_", "invalid OpenGL or DirectX context";
    NVLINK_UNCORRECTABLE = 220, "CUDA_ERROR_", "uncorrectable NVLink error detected during the execution";
    JIT_COMPILER_NOT_FOUND = 221, "CUDA_ERROR_", "PTX JIT compiler library not found";
    UNSUPPORTED_PTX_VERSION = 222, "CUDA_ERROR_", "the provided PTX was compiled with an unsupported toolchain.";
    JIT_COMPILATION_DISABLED = 223, "CUDA_ERROR_", "PTX JIT compilation was disabled";
    UNSUPPORTED_EXEC_AFFINITY = 224, "CUDA_ERROR_", "the provided execution affinity is not supported";
    UNSUPPORTED_DEVSIDE_SYNC = 225, "CUDA_ERROR_", "the provided PTX contains unsupported call to cudaDeviceSynchronize";
    CONTAINED = 226, "CUDA_ERROR_", "Invalid access of peer GPU memory over nvlink or a hardware error";
    INVALID_SOURCE = 300, "CUDA_ERROR_", "device kernel image is invalid";
    FILE_NOT_FOUND = 301, "CUDA_ERROR_", "file not found";
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, "CUDA_ERROR_", "shared object symbol not found";
    SHARED_OBJECT_INIT_FAILED = 303, "CUDA_ERROR_", "shared object initialization failed";
    OPERATING_SYSTEM = 304, "CUDA_ERROR_", "OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, "CUDA_ERROR_", "invalid resource handle";
    ILLEGAL_STATE = 401, "CUDA_ERROR_", "the operation cannot be performed in the present state";
    LOSSY_QUERY = 402, "CUDA_ERROR_", "attempted introspection would be semantically lossy";
    NOT_FOUND = 500, "CUDA_ERROR_", "named symbol not found";
    NOT_READY = 600, "CUDA_ERROR_", "device not ready";
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_", "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "CUDA_ERROR_", "too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, "CUDA_ERROR_", "the launch timed out and was terminated";
    LAUNCH_INCOMPATIBLE_TEXTURING = 703, "CUDA_ERROR_", "launch uses incompatible texturing mode";
    PEER_ACCESS_ALREADY_ENABLED = 704, "CUDA_ERROR_", "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, "CUDA_ERROR_", "peer access has not been enabled";
    PRIMARY_CONTEXT_ACTIVE = 708, "CUDA_ERROR_", "cannot set while device is active in this process";
    CONTEXT_IS_DESTROYED = 709, "CUDA_ERROR_", "context is destroyed";
    ASSERT = 710, "CUDA_ERROR_", "device-side assert triggered";
    TOO_MANY_PEERS = 711, "CUDA_ERROR_", "peer mapping resources exhausted";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "CUDA_ERROR_", "part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, "CUDA_ERROR_", "pointer does not correspond to a registered memory region";
    HARDWARE_STACK_ERROR = 714, "CUDA_ERROR_", "hardware stack error";
    ILLEGAL_INSTRUCTION = 715, "CUDA_ERROR_", "an illegal instruction was encountered";
    MISALIGNED_ADDRESS = 716, "CUDA_ERROR_", "misaligned address";
    INVALID_ADDRESS_SPACE = 717, "CUDA_ERROR_", "operation not supported on global/shared address space";
    INVALID_PC = 718, "CUDA_ERROR_", "invalid program counter";
    LAUNCH_FAILED = 719, "CUDA_ERROR_", "unspecified launch failure";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, "CUDA_ERROR_", "too many blocks in cooperative launch";
    TENSOR_MEMORY_LEAK = 721, "CUDA_ERROR_", "tensor memory not completely freed";
    NOT_PERMITTED = 800, "CUDA_ERROR_", "operation not permitted";
    NOT_SUPPORTED = 801, "CUDA_ERROR_", "operation not supported";
    SYSTEM_NOT_READY = 802, "CUDA_ERROR_", "system not yet initialized";
    SYSTEM_DRIVER_MISMATCH = 803, "CUDA_ERROR_", "system has unsupported display driver / cuda driver combination";
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, "CUDA_ERROR_", "forward compatibility was attempted on non supported HW";
    MPS_CONNECTION_FAILED = 805, "CUDA_ERROR_", "MPS client failed to connect to the MPS control daemon or the MPS server";
    MPS_RPC_FAILURE = 806, "CUDA_ERROR_", "the remote procedural call between the MPS server and the MPS client failed";
    MPS_SERVER_NOT_READY = 807, "CUDA_ERROR_", "MPS server is not ready to accept new MPS client requests";
    MPS_MAX_CLIENTS_REACHED = 808, "CUDA_ERROR_", "the hardware resources required to create MPS client have been exhausted";
    MPS_MAX_CONNECTIONS_REACHED = 809, "CUDA_ERROR_", "the hardware resources required to support device connections have been exhausted";
    MPS_CLIENT_TERMINATED = 810, "CUDA_ERROR_", "the MPS client has been terminated by the server";
    CDP_NOT_SUPPORTED = 811, "CUDA_ERROR_", "CDP is not supported";
    CDP_VERSION_MISMATCH = 812, "CUDA_ERROR_", "CDP version mismatch";
    STREAM_CAPTURE_UNSUPPORTED = 900, "CUDA_ERROR_", "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "CUDA_ERROR_", "operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE = 902, "CUDA_ERROR_", "operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED = 903, "CUDA_ERROR_", "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED = 904, "CUDA_ERROR_", "capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION = 905, "CUDA_ERROR_", "dependency created on uncaptured work in another stream";
    STREAM_CAPTURE_IMPLICIT = 906, "CUDA_ERROR_", "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, "CUDA_ERROR_", "operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD = 908, "CUDA_ERROR_", "attempt to terminate a thread-local capture sequence from another thread";
    TIMEOUT = 909, "CUDA_ERROR_", "wait operation timed out";
    GRAPH_EXEC_UPDATE_FAILURE = 910, "CUDA_ERROR_", "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    EXTERNAL_DEVICE = 911, "CUDA_ERROR_", "an async error has occured in external entity outside of CUDA";
    INVALID_CLUSTER_SIZE = 912, "CUDA_ERROR_", "a kernel launch error has occurred due to cluster misconfiguration";
    FUNCTION_NOT_LOADED = 913, "CUDA_ERROR_", "the function handle is not loaded when calling an API that requires a loaded function";
    INVALID_RESOURCE_TYPE = 914, "CUDA_ERROR_", "one or more resources passed in are not valid resource types for the operation";
    INVALID_RESOURCE_CONFIGURATION = 915, "CUDA_ERROR_", "one or more resources are insufficient or non-applicable for the operation";
    UNKNOWN = 999, "CUDA_ERROR_", "unknown error";
}

/// Shared by the two lookups: a known code answers its string, any other number is `INVALID_VALUE` and a null string.
fn lookup(call: &'static str, string: Out<*const c_char>, found: Option<&'static CStr>) -> Code {
    call::anywhere(call, || {
        string.set(found.map_or(std::ptr::null(), CStr::as_ptr))?;
        found.map(|_| ()).ok_or(Code::INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(error: Code, string: Out<*const c_char>) -> Code {
    lookup("cuGetErrorName", string, error.name())
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(error: Code, string: Out<*const c_char>) -> Code {
    lookup("cuGetErrorString", string, error.text())
}
