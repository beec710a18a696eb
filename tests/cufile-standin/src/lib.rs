//! A stand-in for NVIDIA's `libcufile.so.0`, for tests on machines with no GPU.
//!
//! It runs on the emulated CUDA driver of this workspace, really moves bytes between files and that driver's memory,
//! says on request that they went by way of nvidia-fs or PCI P2PDMA, fails on request at any call, and reports each
//! misuse. It measures nothing, and no result from it is a GPUDirect Storage result.
//!
//! README.md, included below, says how a test uses it and lists its environment variables.
//!
//! # Inside
//!
//! ```text
//! driver.rs  handle.rs  buffer.rs  plain_io.rs  batch.rs  stream.rs  parameters.rs  statistics.rs  machine.rs  entry points
//!     |
//! call.rs        may this process call cuFile now, and is a fault asked for?
//!     |
//! state.rs       the one lock, and the tables behind it
//! target.rs      which memory an operation names, and whether it may
//! transfer.rs    the moving of bytes, through cuda.rs
//! ledger.rs      what was moved, by way and by device
//!     |
//! settings.rs  fault.rs  misuse.rs  counts.rs  leaks.rs            what a test asks for, and what it is told
//! functions.rs  missing.rs                                        the names, and hiding them
//! ```
//!
#![doc = include_str!("../README.md")]
#![allow(non_snake_case, reason = "the entry points have the names of cufile.h")]

mod batch;
mod buffer;
mod call;
mod counts;
mod cuda;
mod driver;
mod error;
mod fault;
mod ffi;
mod functions;
mod handle;
mod latency;
mod leaks;
mod ledger;
mod machine;
mod missing;
mod misuse;
mod parameters;
mod plain_io;
mod probe;
mod settings;
mod state;
mod statistics;
mod stream;
mod target;
mod threads;
mod transfer;
