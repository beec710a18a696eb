//! Which device batches are delivered to.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::cuda::{self, Context};
use crate::{Error, Result};

/// Where batches are delivered, as the user names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Device {
    /// The first GPU if there is one that works, else host memory.
    Auto,
    /// Host memory.
    #[default]
    Host,
    /// The NVIDIA GPU that the CUDA driver counts under this number, from 0. (`CUDA_VISIBLE_DEVICES` changes what it
    /// counts.)
    Cuda(u32),
}

impl FromStr for Device {
    type Err = Error;

    /// Reads `auto`, `host` or `cuda:N`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for anything else.
    fn from_str(name: &str) -> Result<Self> {
        let cuda = || name.strip_prefix("cuda:").and_then(|index| index.parse().ok()).map(Device::Cuda);
        match name {
            "auto" => Some(Device::Auto),
            "host" => Some(Device::Host),
            _ => cuda(),
        }
        .ok_or_else(|| Error::argument(format!("unknown device {name:?}; known are auto, host, cuda:N")))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => f.pad("auto"),
            Device::Host => f.pad("host"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// A device that was found and opened.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Host,
    /// The first is the one that reads land on; the others get copies from it.
    Cuda(Vec<Arc<Context>>),
}

impl Target {
    /// The contexts of GPUs; none for the host.
    pub(crate) fn contexts(&self) -> &[Arc<Context>] {
        match self {
            Target::Host => &[],
            Target::Cuda(contexts) => contexts,
        }
    }

    pub(crate) fn devices(&self) -> Vec<Device> {
        match self {
            Target::Host => vec![Device::Host],
            Target::Cuda(contexts) => {
                contexts.iter().map(|context| Device::Cuda(context.ordinal())).collect()
            }
        }
    }
}

/// Opens the devices that were named. Also says, in words, why this is what was opened.
pub(crate) fn resolve(wanted: &[Device]) -> Result<(Target, String)> {
    match wanted {
        [] => Err(Error::argument("no device was named to deliver to")),
        [Device::Host] => Ok((Target::Host, "it was named".into())),
        [Device::Auto] => match cuda::probe().and_then(|_| Context::open(0).map_err(|e| e.to_string())) {
            Ok(context) => Ok((Target::Cuda(vec![context]), "the first GPU".into())),
            Err(why) => Ok((Target::Host, format!("no GPU: {}", why))),
        },
        several => {
            let mut contexts: Vec<Arc<Context>> = Vec::new();
            for device in several {
                let Device::Cuda(index) = device else {
                    return Err(Error::argument(format!(
                        "device {device} cannot be one of several; name GPUs only"
                    )));
                };
                if contexts.iter().any(|known| known.ordinal() == *index) {
                    return Err(Error::argument(format!("device {device} is named twice")));
                }
                contexts.push(Context::open(*index)?);
            }
            let mut reason = String::from("it was named");
            if let Some((first, further)) = contexts.split_first() {
                for other in further {
                    let peer = other.enable_peer(first)?;
                    let how =
                        if peer { "peer access" } else { "copies through the host, without peer access" };
                    reason += &format!(
                        "; cuda:{} gets batches from cuda:{} by {how}",
                        other.ordinal(),
                        first.ordinal()
                    );
                }
            }
            Ok((Target::Cuda(contexts), reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        for device in [Device::Auto, Device::Host, Device::Cuda(0), Device::Cuda(17)] {
            assert_eq!(device.to_string().parse::<Device>().unwrap(), device);
        }
        for name in ["cuda", "cuda:", "cuda:x", "cuda:-1", "gpu:0", "Host", ""] {
            assert!(name.parse::<Device>().unwrap_err().to_string().contains("known are auto, host, cuda:N"));
        }
    }

    #[test]
    fn a_device_cannot_be_named_twice_or_beside_the_host() {
        for wanted in [&[][..], &[Device::Host, Device::Cuda(0)], &[Device::Auto, Device::Host]] {
            assert_eq!(resolve(wanted).unwrap_err().kind(), crate::ErrorKind::InvalidArgument);
        }
    }
}
