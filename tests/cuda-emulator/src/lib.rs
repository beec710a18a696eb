//! An emulated CUDA driver, for tests on machines with no GPU.
//!
//! Built as a shared library and found by a program as `libcuda.so.1`, it does what the driver API's manual promises
//! and nothing kinder: device pointers that the host cannot read, streams that run late and in their own threads,
//! copies that read their source when they run, and a report of each misuse. It launches no kernels, measures nothing,
//! and no result from it is a GPU result.
//!
//! README.md, included below, says how a test uses it and lists its environment variables.
//!
//! # Inside
//!
//! ```text
//! stream.rs  event.rs  copy.rs  fill.rs  device_memory.rs  host_memory.rs  context.rs  device.rs ...   entry points
//!     |
//! call.rs      may this thread call the driver, and has it a context?
//!     |
//! driver.rs    the one lock, and the tables behind it:
//!     |            context.rs   contexts, and each thread's stack of them
//!     |            address.rs   addresses -> allocations (memory.rs), live and freed
//!     |            queue.rs     streams: queues of operations (work.rs), a thread for each
//!     |            event.rs     marks in a stream
//!     |
//! settings.rs  faults.rs  misuse.rs  stats.rs                    what a test asks for, and what it is told
//! symbols.rs  stubs.rs  libc_interpose.rs                        names that must exist
//! ```
//!
#![doc = include_str!("../README.md")]
#![allow(non_snake_case, reason = "the entry points have the names of cuda.h")]

mod address;
mod attributes;
mod call;
mod caller;
mod context;
mod copy;
mod copy_batch;
mod device;
mod device_memory;
mod driver;
mod error;
mod event;
mod faults;
mod ffi;
mod fill;
mod host_memory;
mod leaks;
mod libc_interpose;
mod memory;
mod misuse;
mod pointer;
mod pool;
mod primary;
mod queue;
mod settings;
mod stats;
mod stream;
mod stubs;
mod symbols;
mod work;
