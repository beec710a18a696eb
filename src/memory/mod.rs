//! Memory that bytes land in, and the devices that it belongs to.

mod buffer;
pub(crate) mod cuda;
mod device;
mod mapping;

pub use buffer::DeviceBuffer;
pub use cuda::DeviceSlice;
pub use device::Device;
pub(crate) use device::{Target, resolve};
pub(crate) use mapping::HostMapping;
