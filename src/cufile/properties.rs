//! What the driver says of itself.

use cufile_sys::{CUfileDrvProps_t, CUfileFeatureFlags_t};

/// The way that bytes take between storage and the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Route {
    /// By NVIDIA's kernel module nvidia-fs: direct.
    NvidiaFs,
    /// By the kernel's PCI peer-to-peer DMA: direct.
    PciP2pdma,
    /// cuFile's compatibility mode: through host memory.
    Compatibility,
}

impl Route {
    /// Whether bytes make no stop in host memory.
    pub fn is_direct(self) -> bool {
        !matches!(self, Route::Compatibility)
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Route::NvidiaFs => "nvidia-fs",
            Route::PciP2pdma => "PCI P2PDMA",
            Route::Compatibility => "compatibility mode",
        }
    }
}

/// The driver's properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// Major and minor version of nvidia-fs; 0 and 0 without it.
    pub nvidia_fs: (u32, u32),
    /// Bit set of the kinds of storage that work directly, by cuFile's numbers (4 is NVMe, 2 NFS).
    pub storage: u32,
    /// Bit set of the features that work, by cuFile's numbers (4 is PCI P2PDMA).
    pub features: u32,
    /// Bit set of the driver's modes, by cuFile's numbers (1: compatibility mode is allowed).
    pub control: u32,
    /// The largest I/O handed on at once, in bytes.
    pub max_direct_io_bytes: u64,
    /// GPU memory that may be registered per device, in bytes.
    pub max_pinned_bytes: u64,
    /// The most entries of a batch.
    pub max_batch: u32,
}

impl Properties {
    pub(super) fn of(raw: &CUfileDrvProps_t) -> Self {
        Properties {
            nvidia_fs: (raw.nvfs.major_version, raw.nvfs.minor_version),
            storage: raw.nvfs.dstatusflags,
            features: raw.fflags,
            control: raw.nvfs.dcontrolflags,
            max_direct_io_bytes: raw.nvfs.max_direct_io_size as u64 * 1024,
            max_pinned_bytes: u64::from(raw.max_device_pinned_mem_size) * 1024,
            max_batch: raw.max_batch_io_size,
        }
    }

    /// The way that reads take, by these properties: nvidia-fs if it is loaded and serves some kind of storage, else
    /// P2PDMA if that works, else compatibility mode. A single file can still be refused, and a single read go another
    /// way: the statistics count what was done.
    pub fn route(&self) -> Route {
        let p2p = self.features & (1 << CUfileFeatureFlags_t::P2P_SUPPORTED.0) != 0;
        match self.nvidia_fs {
            (0, 0) if p2p && self.storage != 0 => Route::PciP2pdma,
            (0, 0) => Route::Compatibility,
            _ if self.storage != 0 => Route::NvidiaFs,
            _ => Route::Compatibility,
        }
    }
}

/// How many reads went which way, over all GPUs and files of the process, as the driver counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ReadCounts {
    /// By nvidia-fs.
    pub nvidia_fs: u64,
    /// By PCI P2PDMA.
    pub pci_p2pdma: u64,
    /// Through host memory.
    pub posix: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_direct_only_where_the_driver_says_so() {
        let told = |major, storage, features| {
            let mut raw = CUfileDrvProps_t::default();
            (raw.nvfs.major_version, raw.nvfs.dstatusflags, raw.fflags) = (major, storage, features);
            Properties::of(&raw).route()
        };
        let p2p = 1 << CUfileFeatureFlags_t::P2P_SUPPORTED.0;
        assert_eq!(told(0, 0, 0), Route::Compatibility);
        assert_eq!(told(2, 0, 0), Route::Compatibility);
        assert_eq!(told(2, 1 << 4, 0), Route::NvidiaFs);
        assert_eq!(told(0, 1 << 4, p2p), Route::PciP2pdma);
        assert_eq!(told(0, 0, p2p), Route::Compatibility);
        assert_eq!(told(0, 1 << 4, 0), Route::Compatibility);
    }
}
