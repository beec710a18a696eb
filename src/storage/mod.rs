//! Files as the kernel sees them: how they are opened, identity, direct-I/O alignment, page-cache residency, the file
//! systems that they lie on, and a bounded set of open descriptors.

mod blame;
mod block;
mod direct;
mod drives;
mod filesystem;
mod gds_rules;
mod identity;
mod listing;
mod mount;
mod opener;
mod priority;
mod pulse;
mod residency;
mod root;
mod shape;
mod table;
mod whole;
mod within;

pub(crate) use blame::{blamed, lies_on, not_mounted};
pub use block::{BlockDevice, BlockKind};
pub use direct::{Alignment, DirectIo};
pub(crate) use direct::{memory_file_system, refuses_direct};
pub(crate) use drives::Drives;
pub use filesystem::FileSystem;
pub(crate) use filesystem::file_systems;
pub use gds_rules::GdsVerdict;
pub(crate) use gds_rules::{certainly_not, in_words as gds_in_words};
pub use identity::FileIdentity;
pub(crate) use listing::{expand, matching};
pub(crate) use opener::{Opener, twice_if_stale};
pub use priority::IoPriority;
pub(crate) use priority::{apply as apply_priority, honours_priority, scheduler_of};
pub(crate) use pulse::{Call, Pulse, Unanswered};
pub use residency::{Residency, evict, residency};
pub(crate) use residency::{evict_by, residency_by};
pub(crate) use shape::IoShape;
pub(crate) use table::{FileMode, FileObserver, FileTable, OpenPolicy, PassedOver};
pub(crate) use whole::write_whole;
pub(crate) use within::{Visits, in_words, within};
