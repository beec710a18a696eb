//! What there is to read: an index from sample numbers to places in files.

mod builder;
pub(crate) mod dtype;
mod index;
mod manifest;
mod mixture;
mod npy;
mod open;

pub use builder::{DatasetBuilder, Shards};
pub use dtype::Dtype;
pub use index::{AlignmentReport, Column, Dataset, Format, ShardFile};
pub use mixture::Mixture;
pub use open::OpenOptions;
