//! cuFile's enumerations, each as an integer newtype: a value that this crate does not know is just an
//! integer.

use std::fmt;

use crate::version::Version;

/// A named constant of cuFile, as C spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Constant {
    /// The name in `cufile.h`.
    pub name: &'static str,
    /// The value.
    pub value: i64,
    /// The first version whose header has it, as far as is known.
    pub since: Version,
}

/// Defines an integer newtype for a C enumeration, with its constants, their C names and the version of each.
macro_rules! c_enum {
    (
        $(#[$meta:meta])* $name:ident($repr:ty)
        $( $(#[$doc:meta])* $since:literal $constant:ident = $value:expr, $c_name:literal; )*
    ) => {
        $(#[$meta])*
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            $(
                $(#[$doc])*
                #[doc = concat!("\n\nC name `", $c_name, "`, since cuFile ", $since, ".")]
                pub const $constant: Self = Self($value);
            )*

            /// Every constant above.
            pub const CONSTANTS: &'static [Constant] = &[$(
                Constant { name: $c_name, value: $value as i64, since: Version::literal($since) },
            )*];

            /// The C name of this value, if it is one of the constants.
            pub fn name(self) -> Option<&'static str> {
                Self::CONSTANTS.iter().find(|known| known.value == i64::from(self.0)).map(|known| known.name)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({})"), self.0),
                }
            }
        }

        const _: () = assert!(size_of::<$name>() == 4 && align_of::<$name>() == 4);
    };
}

c_enum! {
    /// Kinds of storage. Each value is the number of a bit of
    /// [`dstatusflags`](crate::CUfileDrvPropsNvfs_t::dstatusflags), and the storage that the P2P flag
    /// functions ask about.
    CUfileDriverStatusFlags_t(i32)
    /// DDN Lustre.
    "1.0" LUSTRE_SUPPORTED = 0, "CU_FILE_LUSTRE_SUPPORTED";
    /// WekaFS.
    "1.0" WEKAFS_SUPPORTED = 1, "CU_FILE_WEKAFS_SUPPORTED";
    /// NFS over RDMA.
    "1.0" NFS_SUPPORTED = 2, "CU_FILE_NFS_SUPPORTED";
    /// IBM Spectrum Scale.
    "1.0" GPFS_SUPPORTED = 3, "CU_FILE_GPFS_SUPPORTED";
    /// A local NVMe drive.
    "1.0" NVME_SUPPORTED = 4, "CU_FILE_NVME_SUPPORTED";
    /// NVMe over fabrics.
    "1.0" NVMEOF_SUPPORTED = 5, "CU_FILE_NVMEOF_SUPPORTED";
    /// SCSI devices.
    "1.0" SCSI_SUPPORTED = 6, "CU_FILE_SCSI_SUPPORTED";
    /// ScaleFlux computational storage.
    "1.0" SCALEFLUX_CSD_SUPPORTED = 7, "CU_FILE_SCALEFLUX_CSD_SUPPORTED";
    /// NVMesh block devices.
    "1.0" NVMESH_SUPPORTED = 8, "CU_FILE_NVMESH_SUPPORTED";
    /// BeeGFS.
    "1.11" BEEGFS_SUPPORTED = 9, "CU_FILE_BEEGFS_SUPPORTED";
    /// NVMe by PCI peer-to-peer DMA, without nvidia-fs. The newer headers call it deprecated; see
    /// [`CUfileFeatureFlags_t::P2P_SUPPORTED`].
    "1.13" NVME_P2P_SUPPORTED = 11, "CU_FILE_NVME_P2P_SUPPORTED";
    /// ScateFS.
    "1.14" SCATEFS_SUPPORTED = 12, "CU_FILE_SCATEFS_SUPPORTED";
    /// virtio-fs.
    "1.16" VIRTIOFS_SUPPORTED = 13, "CU_FILE_VIRTIOFS_SUPPORTED";
    /// PanFS.
    "1.19" PANFS_SUPPORTED = 14, "CU_FILE_PANFS_SUPPORTED";
    /// One more than the last kind; not a kind. It moves: 14 from 1.16 to 1.18, 15 since 1.19.
    "1.16" MAX_TARGET_TYPES = 15, "CU_FILE_MAX_TARGET_TYPES";
}

c_enum! {
    /// Ways of working that the driver is set to. The first three are numbers of bits of
    /// [`dcontrolflags`](crate::CUfileDrvPropsNvfs_t::dcontrolflags); whether 4 is a bit's number or a mask,
    /// the header does not say.
    CUfileDriverControlFlags_t(i32)
    /// Small I/O is polled for.
    "1.0" USE_POLL_MODE = 0, "CU_FILE_USE_POLL_MODE";
    /// Compatibility mode (copies through host memory) may be used where the direct path cannot.
    "1.0" ALLOW_COMPAT_MODE = 1, "CU_FILE_ALLOW_COMPAT_MODE";
    /// Plain POSIX I/O.
    "1.19" VANILLA_POSIX_IO_MODE = 2, "CU_FILE_VANILLA_POSIX_IO_MODE";
    /// The older name of [`VANILLA_POSIX_IO_MODE`](Self::VANILLA_POSIX_IO_MODE).
    "1.17" POSIX_IO_MODE = 2, "CU_FILE_POSIX_IO_MODE";
    /// An I/O that fails on the direct path may be done again on another.
    "1.17" FALLBACK_IO_MODE = 4, "CU_FILE_FALLBACK_IO_MODE";
}

c_enum! {
    /// What the library can do. Each value is the number of a bit of
    /// [`fflags`](crate::CUfileDrvProps_t::fflags).
    CUfileFeatureFlags_t(i32)
    /// Routing around PCIe bridges that a drive and a GPU do not share.
    "1.0" DYN_ROUTING_SUPPORTED = 0, "CU_FILE_DYN_ROUTING_SUPPORTED";
    /// Batches.
    "1.0" BATCH_IO_SUPPORTED = 1, "CU_FILE_BATCH_IO_SUPPORTED";
    /// Stream-ordered I/O.
    "1.0" STREAMS_SUPPORTED = 2, "CU_FILE_STREAMS_SUPPORTED";
    /// One I/O spread over several threads.
    "1.11" PARALLEL_IO_SUPPORTED = 3, "CU_FILE_PARALLEL_IO_SUPPORTED";
    /// PCI peer-to-peer DMA, without nvidia-fs.
    "1.16" P2P_SUPPORTED = 4, "CU_FILE_P2P_SUPPORTED";
}

c_enum! {
    /// Ways to move bytes between storage and a GPU. The header uses one type for two things: the constants
    /// that begin with `FLAG_` are masks, which `cuFileDriverGetP2PFlags` gives and `cuFileDriverSetP2PFlags`
    /// takes; the others are the numbers of the masks' bits.
    CUfileP2PFlags_t(u32)
    /// Bit number of PCI peer-to-peer DMA.
    "1.16" P2PDMA = 0, "CUFILE_P2PDMA";
    /// Bit number of nvidia-fs.
    "1.16" NVFS = 1, "CUFILE_NVFS";
    /// Bit number of DMA buffers.
    "1.16" DMABUF = 2, "CUFILE_DMABUF";
    /// Bit number of chip to chip, on Grace systems.
    "1.16" C2C = 3, "CUFILE_C2C";
    /// Bit number of nvidia-peermem, for IBM Spectrum Scale and WekaFS only.
    "1.16" NVIDIA_PEERMEM = 4, "CUFILE_NVIDIA_PEERMEM";
    /// Mask of PCI peer-to-peer DMA, the only one that may be set on x86_64.
    "1.16" FLAG_PCI_P2PDMA = 1 << 0, "CU_FILE_P2P_FLAG_PCI_P2PDMA";
    /// Mask of nvidia-fs; cannot be set.
    "1.16" FLAG_NVFS = 1 << 1, "CU_FILE_P2P_FLAG_NVFS";
    /// Mask of DMA buffers; cannot be set.
    "1.16" FLAG_DMABUF = 1 << 2, "CU_FILE_P2P_FLAG_DMABUF";
    /// Mask of chip to chip, the only one that may be set on aarch64.
    "1.16" FLAG_C2C = 1 << 3, "CU_FILE_P2P_FLAG_C2C";
}

c_enum! {
    /// The direction of an I/O of a batch.
    CUfileOpcode_t(i32)
    /// From file to memory.
    "1.2" READ = 0, "CUFILE_READ";
    /// From memory to file.
    "1.2" WRITE = 1, "CUFILE_WRITE";
}

c_enum! {
    /// What the `handle` of a [`CUfileDescr_t`](crate::CUfileDescr_t) is.
    CUfileFileHandleType(i32)
    /// A Linux file descriptor.
    "1.0" OPAQUE_FD = 1, "CU_FILE_HANDLE_TYPE_OPAQUE_FD";
    /// A Windows handle; not supported.
    "1.0" OPAQUE_WIN32 = 2, "CU_FILE_HANDLE_TYPE_OPAQUE_WIN32";
    /// A file of a filesystem in user space, reached by a [`CUfileFSOps_t`](crate::CUfileFSOps_t).
    "1.0" USERSPACE_FS = 3, "CU_FILE_HANDLE_TYPE_USERSPACE_FS";
}

c_enum! {
    /// Where an I/O of a batch stands. The values are single bits, and one is reported at a time.
    CUfileStatus_t(u32)
    /// Not yet submitted.
    "1.2" WAITING = 0x01, "CUFILE_WAITING";
    /// Queued.
    "1.2" PENDING = 0x02, "CUFILE_PENDING";
    /// Malformed, or could not be queued.
    "1.2" INVALID = 0x04, "CUFILE_INVALID";
    /// Cancelled.
    "1.2" CANCELED = 0x08, "CUFILE_CANCELED";
    /// Done. The event's `ret` must still be compared with the size that was asked for.
    "1.2" COMPLETE = 0x10, "CUFILE_COMPLETE";
    /// Given up after the batch's time.
    "1.2" TIMEOUT = 0x20, "CUFILE_TIMEOUT";
    /// Failed.
    "1.2" FAILED = 0x40, "CUFILE_FAILED";
}

c_enum! {
    /// The form of a [`CUfileIOParams_t`](crate::CUfileIOParams_t). There is one.
    CUfileBatchMode_t(i32)
    /// The `batch` member of the union is used.
    "1.2" BATCH = 1, "CUFILE_BATCH";
}

c_enum! {
    /// Parameters of type `size_t`. They are set before the driver is opened.
    CUFileSizeTConfigParameter_t(i32)
    /// Level of statistics.
    "1.14" PROFILE_STATS = 0, "CUFILE_PARAM_PROFILE_STATS";
    /// Entries of the queue of each I/O thread.
    "1.14" EXECUTION_MAX_IO_QUEUE_DEPTH = 1, "CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH";
    /// Threads for parallel I/O.
    "1.14" EXECUTION_MAX_IO_THREADS = 2, "CUFILE_PARAM_EXECUTION_MAX_IO_THREADS";
    /// Smallest I/O that is split among threads, in KiB.
    "1.14" EXECUTION_MIN_IO_THRESHOLD_SIZE_KB = 3, "CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB";
    /// Parts that one I/O is split into at most.
    "1.14" EXECUTION_MAX_REQUEST_PARALLELISM = 4, "CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM";
    /// Largest I/O that is handed to nvidia-fs at once, in KiB.
    "1.14" PROPERTIES_MAX_DIRECT_IO_SIZE_KB = 5, "CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB";
    /// GPU memory that the library keeps per device for bounce buffers, in KiB.
    "1.14" PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB = 6, "CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB";
    /// Size of one bounce buffer, in KiB.
    "1.14" PROPERTIES_PER_BUFFER_CACHE_SIZE_KB = 7, "CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB";
    /// GPU memory that may be registered per device, in KiB.
    "1.14" PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB = 8, "CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB";
    /// Entries of a batch at most.
    "1.14" PROPERTIES_IO_BATCHSIZE = 9, "CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE";
    /// Largest I/O that is polled for, in KiB.
    "1.14" POLLTHRESHOLD_SIZE_KB = 10, "CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB";
    /// Time that a batch gets, in milliseconds.
    "1.14" PROPERTIES_BATCH_IO_TIMEOUT_MS = 11, "CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS";
}

c_enum! {
    /// Parameters of type `bool`. They are set before the driver is opened.
    CUFileBoolConfigParameter_t(i32)
    /// Poll for small I/O.
    "1.14" PROPERTIES_USE_POLL_MODE = 0, "CUFILE_PARAM_PROPERTIES_USE_POLL_MODE";
    /// Allow compatibility mode where the direct path cannot be used.
    "1.14" PROPERTIES_ALLOW_COMPAT_MODE = 1, "CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE";
    /// Use compatibility mode always.
    "1.14" FORCE_COMPAT_MODE = 2, "CUFILE_PARAM_FORCE_COMPAT_MODE";
    /// Check the arguments of each call more strictly.
    "1.14" FS_MISC_API_CHECK_AGGRESSIVE = 3, "CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE";
    /// Split large I/O among threads.
    "1.14" EXECUTION_PARALLEL_IO = 4, "CUFILE_PARAM_EXECUTION_PARALLEL_IO";
    /// NVTX ranges for profilers. The newer headers call it deprecated.
    "1.14" PROFILE_NVTX = 5, "CUFILE_PARAM_PROFILE_NVTX";
    /// Allow host memory as the buffer of an I/O.
    "1.14" PROPERTIES_ALLOW_SYSTEM_MEMORY = 6, "CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY";
    /// Use PCI peer-to-peer DMA rather than nvidia-fs.
    "1.14" USE_PCIP2PDMA = 7, "CUFILE_PARAM_USE_PCIP2PDMA";
    /// Prefer io_uring to Linux AIO.
    "1.14" PREFER_IO_URING = 8, "CUFILE_PARAM_PREFER_IO_URING";
    /// Use direct I/O even for files that were opened without it.
    "1.14" FORCE_ODIRECT_MODE = 9, "CUFILE_PARAM_FORCE_ODIRECT_MODE";
    /// Do not look at the PCIe topology.
    "1.14" SKIP_TOPOLOGY_DETECTION = 10, "CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION";
    /// Do not use memory operations of streams.
    "1.14" STREAM_MEMOPS_BYPASS = 11, "CUFILE_PARAM_STREAM_MEMOPS_BYPASS";
    /// Plain POSIX I/O.
    "1.19" PROPERTIES_POSIX_IO_MODE = 12, "CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE";
    /// Do an I/O again on another path when it fails on the direct one.
    "1.19" GDS_FALLBACK_IO = 13, "CUFILE_PARAM_GDS_FALLBACK_IO";
}

c_enum! {
    /// Parameters of type string. They are set before the driver is opened.
    CUFileStringConfigParameter_t(i32)
    /// Level of the log.
    "1.14" LOGGING_LEVEL = 0, "CUFILE_PARAM_LOGGING_LEVEL";
    /// The log file.
    "1.14" ENV_LOGFILE_PATH = 1, "CUFILE_PARAM_ENV_LOGFILE_PATH";
    /// The folder of the log file.
    "1.14" LOG_DIR = 2, "CUFILE_PARAM_LOG_DIR";
    /// The transport for RDMA.
    "1.19" RDMA_TRANSPORT = 3, "CUFILE_PARAM_RDMA_TRANSPORT";
}

c_enum! {
    /// Parameters that are arrays. No function takes these values: the slab functions set each pair at once.
    CUFileArrayConfigParameter_t(i32)
    /// Sizes of the slabs for POSIX I/O, in KiB.
    "1.15" POSIX_POOL_SLAB_SIZE_KB = 0, "CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB";
    /// Buffers in each of those slabs.
    "1.15" POSIX_POOL_SLAB_COUNT = 1, "CUFILE_PARAM_POSIX_POOL_SLAB_COUNT";
    /// Sizes of the slabs of GPU bounce buffers, in KiB.
    "1.17" GPU_BOUNCE_BUFFER_SLAB_SIZE_KB = 2, "CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_SIZE_KB";
    /// Buffers in each of those slabs.
    "1.17" GPU_BOUNCE_BUFFER_SLAB_COUNT = 3, "CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_COUNT";
}

/// Defines the constants that the header has as macros.
macro_rules! macros {
    ($( $(#[$doc:meta])* $since:literal $name:ident: $type:ty = $value:expr; )*) => {
        $(
            $(#[$doc])*
            #[doc = concat!("\n\nSince cuFile ", $since, ".")]
            pub const $name: $type = $value;
        )*

        /// Every constant that the header has as a macro.
        pub const MACROS: &[Constant] = &[$(
            Constant { name: stringify!($name), value: $value as i64, since: Version::literal($since) },
        )*];
    };
}

macros! {
    /// Codes of [`CUfileOpError`](crate::CUfileOpError) are above this number.
    "1.0" CUFILEOP_BASE_ERR: i32 = 5000;
    /// Flag of `cuFileBufRegister`: register the buffer for RDMA too.
    "1.11" CU_FILE_RDMA_REGISTER: i32 = 1;
    /// Flag of `cuFileBufRegister`: let RDMA reorder its writes.
    "1.11" CU_FILE_RDMA_RELAXED_ORDERING: i32 = 2;
    /// Flag of `cuFileStreamRegister`: the offset in the buffer is known when an I/O is queued.
    "1.7" CU_FILE_STREAM_FIXED_BUF_OFFSET: u32 = 1;
    /// Flag of `cuFileStreamRegister`: the offset in the file is known when an I/O is queued.
    "1.7" CU_FILE_STREAM_FIXED_FILE_OFFSET: u32 = 2;
    /// Flag of `cuFileStreamRegister`: the size is known when an I/O is queued.
    "1.7" CU_FILE_STREAM_FIXED_FILE_SIZE: u32 = 4;
    /// Flag of `cuFileStreamRegister`: offsets and sizes are multiples of 4096.
    "1.7" CU_FILE_STREAM_PAGE_ALIGNED_INPUTS: u32 = 8;
    /// Bytes of a GPU's UUID.
    "1.15" CUFILE_GPU_UUID_LEN: usize = 16;
    /// The base of the RDMA codes. They pass between NVIDIA's own libraries; no function here returns them.
    "1.19" CU_FILE_RDMA_ERR_BASE: i32 = 6000;
    /// The RDMA operation succeeded.
    "1.19" CU_FILE_RDMA_SUCCESS: i32 = 0;
    /// The reset of a queue pair was asked for.
    "1.19" CU_FILE_RDMA_RESET_TOKEN: i32 = 6001;
    /// The reset of a queue pair failed.
    "1.19" CU_FILE_RDMA_RESET_TOKEN_FAILED: i32 = 6002;
}

/// The constants of every enumeration but [`CUfileOpError`](crate::CUfileOpError), and of the header's
/// macros.
pub fn constants() -> impl Iterator<Item = Constant> {
    [
        CUfileDriverStatusFlags_t::CONSTANTS,
        CUfileDriverControlFlags_t::CONSTANTS,
        CUfileFeatureFlags_t::CONSTANTS,
        CUfileP2PFlags_t::CONSTANTS,
        CUfileOpcode_t::CONSTANTS,
        CUfileFileHandleType::CONSTANTS,
        CUfileStatus_t::CONSTANTS,
        CUfileBatchMode_t::CONSTANTS,
        CUFileSizeTConfigParameter_t::CONSTANTS,
        CUFileBoolConfigParameter_t::CONSTANTS,
        CUFileStringConfigParameter_t::CONSTANTS,
        CUFileArrayConfigParameter_t::CONSTANTS,
        MACROS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_without_a_name_is_shown_as_a_number() {
        assert_eq!(format!("{:?}", CUfileStatus_t::COMPLETE), "CUFILE_COMPLETE");
        assert_eq!(format!("{:?}", CUfileStatus_t(0x80)), "CUfileStatus_t(128)");
        assert_eq!(format!("{:?}", CUfileOpcode_t(-3)), "CUfileOpcode_t(-3)");
        assert_eq!(CUfileDriverStatusFlags_t(10).name(), None);
    }

    #[test]
    fn no_c_name_is_listed_twice() {
        let mut names: Vec<_> = constants().map(|constant| constant.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
