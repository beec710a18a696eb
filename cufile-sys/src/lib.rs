//! Raw bindings of NVIDIA's cuFile, the library of GPUDirect Storage: it moves bytes between files and GPU
//! memory.
//!
//! Nothing is linked. The library is looked for and opened at run time, once per process, and never closed;
//! each of its functions is optional, for they came with different versions. The bindings are written by hand
//! and cover the public API from cuFile 1.14 (CUDA 12.9) to 1.20.
//!
//! ```no_run
//! use cufile_sys::{CUfileDrvProps_t, Library, sym};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let library = Library::open()?;
//!     match library.version() {
//!         Some(version) => println!("{} is cuFile {version}", library.path().display()),
//!         None => println!("{} does not tell its version", library.path().display()),
//!     }
//!     let properties = library.require(sym::cuFileDriverGetProperties)?;
//!     let mut found = CUfileDrvProps_t::default();
//!     // SAFETY: the structure lives through the call, which fills it in.
//!     unsafe { properties(&mut found) }.result()?;
//!     println!("a batch has up to {} entries", found.max_batch_io_size);
//!     Ok(())
//! }
//! ```
//!
//! # Calling functions
//!
//! Every function is unsafe to call. Unless its own text says otherwise:
//!
//! - pointers must be valid for what the function does with them, and handles must come from this library and
//!   still be registered;
//! - memory that an I/O uses must stay allocated, and registered if it was, until the I/O is done;
//! - cuFile must not be used in a child that was forked after its first use.
//!
//! Sizes and offsets are in bytes unless a name or a text says KiB.
//!
//! `cuFileDriverOpen` does not return on some machines (see [`Functions::cuFileDriverOpen`]).
//!
//! # Versions
//!
//! Each function and constant says the first version that has it. From 1.11 on that was compared with the
//! header and the library of every version; what is older than 1.11 is told by what other bindings of those
//! versions have.
//!
//! # Numbers, not Rust enums
//!
//! Codes and enumerations are integer newtypes with associated constants: a library may return a number that
//! this crate does not know, and that must be no more than an unknown number.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64", target_endian = "little")))]
compile_error!("cuFile exists for 64-bit little-endian Linux only");

mod codes;
mod constants;
mod elf;
mod error;
mod functions;
mod library;
mod search;
mod stats;
mod types;
mod version;

pub use codes::{CUfileOpError, IoFailure, decode_return};
pub use constants::*;
pub use error::{Attempt, LoadError, MissingSymbol, Reason};
pub use functions::{FUNCTIONS, Function, Functions, Symbol, sym};
pub use library::Library;
pub use search::LIBRARY_VARIABLE;
pub use stats::*;
pub use types::{
    CUfileBatchHandle_t, CUfileDescr_t, CUfileDescrHandle_t, CUfileDrvProps_t, CUfileDrvPropsNvfs_t,
    CUfileError_t, CUfileFSOps_t, CUfileHandle_t, CUfileIOEvents_t, CUfileIOParams_t, CUfileIOParamsBatch_t,
    CUfileIOParamsUnion_t, CUfileIOVec_t, CUresult, CUstream, cufileRDMAInfo_t,
};
pub use version::Version;

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
