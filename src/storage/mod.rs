//! Files as the kernel sees them: how they are opened, identity, direct-I/O alignment, page-cache residency, and a
//! bounded set of open descriptors.

mod direct;
mod identity;
mod listing;
mod opener;
mod priority;
mod residency;
mod root;
mod table;
mod whole;

pub use direct::{Alignment, DirectIo};
pub(crate) use direct::{memory_file_system, refuses_direct};
pub use identity::FileIdentity;
pub(crate) use listing::{expand, matching};
pub(crate) use opener::Opener;
pub use priority::IoPriority;
pub(crate) use priority::{apply as apply_priority, honours_priority, scheduler_of};
pub use residency::{Residency, evict, residency};
pub(crate) use residency::{evict_by, residency_by};
pub(crate) use table::{FileMode, FileObserver, FileTable, OpenPolicy, PassedOver};
pub(crate) use whole::write_whole;
