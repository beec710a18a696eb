//! Files as the kernel sees them: identity, direct-I/O alignment, page-cache residency, and a bounded set of open
//! descriptors.

mod direct;
mod identity;
mod listing;
mod priority;
mod residency;
mod table;

pub(crate) use direct::refuses_direct;
pub use direct::{Alignment, DirectIo};
pub use identity::FileIdentity;
pub(crate) use identity::open_regular;
pub(crate) use listing::{expand, matching};
pub use priority::IoPriority;
pub(crate) use priority::{apply as apply_priority, honours_priority, scheduler_of};
pub use residency::{Residency, evict, residency};
pub(crate) use table::{FileMode, FileObserver, FileTable, OpenPolicy, PassedOver};
