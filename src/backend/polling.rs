//! Whether whoever waits for a drive asks it again and again, instead of being interrupted by it.

use std::fmt;
use std::str::FromStr;

use crate::error::by_name;
use crate::{Error, Result};

/// Whether the backend [`Uring`](crate::Backend::Uring) polls for the completions of direct reads (`IORING_SETUP_IOPOLL`)
/// on drives that have polled queues. Polling saves the interrupt and keeps one processor busy while reads are in flight.
///
/// An NVMe drive has such queues if the kernel was told so: `nvme.poll_queues=N` on its command line, or as an option of the
/// module. `/sys/block/*/queue/io_poll` is then 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Polling {
    /// With [`Backend::Auto`](crate::Backend::Auto), where a trial on the dataset's own files, polled and not in turn, shows
    /// that it is faster by a clear margin. A dataset that is too small for a trial to be worth it is read without.
    #[default]
    Auto,
    /// Yes; where that cannot be, building the loader fails and says why.
    Always,
    /// No.
    Never,
}

impl Polling {
    const ALL: [Polling; 3] = [Polling::Auto, Polling::Always, Polling::Never];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Polling::Auto => "auto",
            Polling::Always => "always",
            Polling::Never => "never",
        }
    }
}

impl FromStr for Polling {
    type Err = Error;

    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for anything but the three names.
    fn from_str(name: &str) -> Result<Self> {
        by_name("polling", &Polling::ALL, Polling::name, name)
    }
}

impl fmt::Display for Polling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_poll_is_read_as_it_is_written() {
        for polling in Polling::ALL {
            assert_eq!(polling.to_string().parse::<Polling>().unwrap(), polling);
        }
        let error = "yes".parse::<Polling>().unwrap_err().to_string();
        assert!(error.contains("\"yes\"") && error.contains("auto, always, never"), "{error}");
    }
}
