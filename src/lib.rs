//! Feeds training data from storage straight into the memory, of the host or of a GPU, where a training step wants it.
//!
//! ```
//! use gpufeed::{Dataset, Loader, Shuffle};
//!
//! # fn main() -> gpufeed::Result<()> {
//! let dataset = Dataset::open("datasets/digits")?;
//! let mut loader = Loader::builder(dataset).batch_size(64).shuffle(Shuffle::Full).seed(7).build()?;
//!
//! for batch in loader.epoch(0)? {
//!     let batch = batch?;
//!     let images: &[u8] = batch.column("image")?.bytes()?; // 64 images of 8 x 8 bytes
//!     let labels: &[u8] = batch.column("label")?.bytes()?;
//!     assert_eq!((images.len(), labels.len()), (64 * 64, 64));
//! } // each batch gives its slot back here
//!
//! println!("{:?}", loader.report().bytes_by_way);
//! # Ok(()) }
//! ```
//!
//! # The way of a byte
//!
//! A [`Dataset`] is an index: which file, offset and length a sample has. An [`Order`] says which sample comes when,
//! by arithmetic on (seed, epoch, position). A [`Loader`] plans the reads of each batch, has a [`Backend`] do them
//! ahead of time into a ring of slots, and lends the slots out as [`Batch`]es, in order. A [`Report`] says which way
//! the bytes really took, and why.
//!
//! # What always holds
//!
//! - The bytes delivered are the bytes in the file; a range that cannot be read is an error.
//! - Order depends on the dataset's length, the seed and the epoch, never on threads, timing or backend.
//! - Memory is allocated when the loader is built, and is bounded by what [`Loader::memory`] says.
//! - Every value may be dropped at any moment. Files are opened read-only.

mod backend;
mod checkpoint;
pub mod cufile;
mod dataset;
mod error;
mod launch;
mod loader;
pub mod measure;
mod memory;
mod order;
mod storage;

pub use backend::{Backend, BytesByWay, Capabilities, Polling, Unavailable, Way};
pub use checkpoint::{CheckpointFile, WriteOptions};
/// The CUDA crate whose streams and slices the GPU side of the interface takes.
pub use cudarc;
pub use dataset::{
    AlignmentReport, Column, Dataset, DatasetBuilder, Dtype, Format, Mixture, OpenOptions, ShardFile, Shards,
};
pub use error::{Error, ErrorKind, Result};
pub use launch::{Agreement, Launcher, Rank};
pub use loader::{
    BadSample, BadSamples, Batch, Bottleneck, ColumnView, DriveFiles, Epoch, Loader, LoaderBuilder,
    LoaderStats, MemoryUse, NotDirect, PollingReport, Report, Source, Stage, StageStats, StatsHandle,
    StopHandle, Wait,
};
pub use memory::{Device, DeviceBuffer, DeviceSlice};
pub use order::{LastBatch, Order, Shuffle, State};
pub use storage::{
    Alignment, BlockDevice, BlockKind, DirectIo, FileIdentity, FileSystem, GdsVerdict, IoPriority, Residency,
    evict, residency,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
