//! Memory that bytes land in.

mod mapping;

pub(crate) use mapping::HostMapping;
