//! Memory that bytes land in, and the devices that it belongs to.

pub(crate) mod cuda;
mod device;
mod mapping;

pub use cuda::DeviceSlice;
pub use device::Device;
pub(crate) use device::{Target, resolve};
pub(crate) use mapping::HostMapping;
