//! cuFile's statistics, in the two layouts that they have had.
//!
//! cuFile 1.19 put counters for vectored I/O at the end of level 1, which lies inside level 2, which lies
//! inside level 3: all that follows moved. A library from 1.15 to 1.18 writes the older layout, whatever it
//! is given room for. [`Library::stats_layout`](crate::Library::stats_layout) tells which one a library
//! writes.

use std::ffi::c_char;

use crate::constants::CUFILE_GPU_UUID_LEN;
use crate::types::layout;

/// Which layout of the statistics a library writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatsLayout {
    /// That of cuFile 1.15 to 1.18: `CUfileStatsLevel1_v1_15_t` and its kin.
    V1_15,
    /// That of cuFile 1.19 and later: `CUfileStatsLevel1_t` and its kin.
    V1_19,
}

/// How often something succeeded and failed.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct CUfileOpCounter_t {
    /// Successes.
    pub ok: u64,
    /// Failures.
    pub err: u64,
}

layout!(CUfileOpCounter_t, size 16, align 8, { ok @ 0, err @ 8 });

/// Defines a layout of level 1 and the levels around it: the fields that all layouts have, then those given.
macro_rules! levels {
    (
        $version:literal, $level1:ident size $size1:literal, $level2:ident size $size2:literal,
        $level3:ident size $size3:literal, $reads:literal, $writes:literal, $gpus:literal, $per_gpu:literal,
        { $( $(#[$doc:meta])* $field:ident: $type:ty = $offset:literal, )* }
    ) => {
        #[doc = concat!("Statistics of level 1: operations and bytes, ", $version, ".")]
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[repr(C)]
        pub struct $level1 {
            /// Reads.
            pub read_ops: CUfileOpCounter_t,
            /// Writes.
            pub write_ops: CUfileOpCounter_t,
            /// Registrations of files.
            pub hdl_register_ops: CUfileOpCounter_t,
            /// Deregistrations of files.
            pub hdl_deregister_ops: CUfileOpCounter_t,
            /// Registrations of buffers.
            pub buf_register_ops: CUfileOpCounter_t,
            /// Deregistrations of buffers.
            pub buf_deregister_ops: CUfileOpCounter_t,
            /// Bytes read.
            pub read_bytes: u64,
            /// Bytes written.
            pub write_bytes: u64,
            /// Bytes read per second.
            pub read_bw_bytes_per_sec: u64,
            /// Bytes written per second.
            pub write_bw_bytes_per_sec: u64,
            /// Mean time of a read, in microseconds.
            pub read_lat_avg_us: u64,
            /// Mean time of a write, in microseconds.
            pub write_lat_avg_us: u64,
            /// Reads per second.
            pub read_ops_per_sec: u64,
            /// Writes per second.
            pub write_ops_per_sec: u64,
            /// Sum of the times of reads, in microseconds.
            pub read_lat_sum_us: u64,
            /// Sum of the times of writes, in microseconds.
            pub write_lat_sum_us: u64,
            /// Submissions of batches.
            pub batch_submit_ops: CUfileOpCounter_t,
            /// Completions in batches.
            pub batch_complete_ops: CUfileOpCounter_t,
            /// Batches set up.
            pub batch_setup_ops: CUfileOpCounter_t,
            /// Batches cancelled.
            pub batch_cancel_ops: CUfileOpCounter_t,
            /// Batches destroyed.
            pub batch_destroy_ops: CUfileOpCounter_t,
            /// Entries of batches queued.
            pub batch_enqueued_ops: CUfileOpCounter_t,
            /// Entries of batches queued for POSIX I/O.
            pub batch_posix_enqueued_ops: CUfileOpCounter_t,
            /// Entries of batches processed.
            pub batch_processed_ops: CUfileOpCounter_t,
            /// Entries of batches processed by POSIX I/O.
            pub batch_posix_processed_ops: CUfileOpCounter_t,
            /// Submissions by nvidia-fs.
            pub batch_nvfs_submit_ops: CUfileOpCounter_t,
            /// Submissions by PCI peer-to-peer DMA.
            pub batch_p2p_submit_ops: CUfileOpCounter_t,
            /// Submissions by Linux AIO.
            pub batch_aio_submit_ops: CUfileOpCounter_t,
            /// Submissions by io_uring.
            pub batch_iouring_submit_ops: CUfileOpCounter_t,
            /// Submissions of reads and writes together.
            pub batch_mixed_io_submit_ops: CUfileOpCounter_t,
            /// Submissions of all kinds.
            pub batch_total_submit_ops: CUfileOpCounter_t,
            /// Bytes read by batches.
            pub batch_read_bytes: u64,
            /// Bytes written by batches.
            pub batch_write_bytes: u64,
            /// Bytes read by batches per second.
            pub batch_read_bw_bytes: u64,
            /// Bytes written by batches per second.
            pub batch_write_bw_bytes: u64,
            /// Mean time of a submission, in microseconds.
            pub batch_submit_lat_avg_us: u64,
            /// Mean time of a completion, in microseconds.
            pub batch_completion_lat_avg_us: u64,
            /// Submissions per second.
            pub batch_submit_ops_per_sec: u64,
            /// Completions per second.
            pub batch_complete_ops_per_sec: u64,
            /// Sum of the times of submissions, in microseconds.
            pub batch_submit_lat_sum_us: u64,
            /// Sum of the times of completions, in microseconds.
            pub batch_completion_lat_sum_us: u64,
            /// Bytes read by the last batch.
            pub last_batch_read_bytes: u64,
            /// Bytes written by the last batch.
            pub last_batch_write_bytes: u64,
            $( $(#[$doc])* pub $field: $type, )*
        }

        layout!($level1, size $size1, align 8, {
            read_ops @ 0, write_ops @ 16, hdl_register_ops @ 32, hdl_deregister_ops @ 48, buf_register_ops @ 64,
            buf_deregister_ops @ 80, read_bytes @ 96, write_bytes @ 104, read_bw_bytes_per_sec @ 112,
            write_bw_bytes_per_sec @ 120, read_lat_avg_us @ 128, write_lat_avg_us @ 136, read_ops_per_sec @ 144,
            write_ops_per_sec @ 152, read_lat_sum_us @ 160, write_lat_sum_us @ 168, batch_submit_ops @ 176,
            batch_complete_ops @ 192, batch_setup_ops @ 208, batch_cancel_ops @ 224, batch_destroy_ops @ 240,
            batch_enqueued_ops @ 256, batch_posix_enqueued_ops @ 272, batch_processed_ops @ 288,
            batch_posix_processed_ops @ 304, batch_nvfs_submit_ops @ 320, batch_p2p_submit_ops @ 336,
            batch_aio_submit_ops @ 352, batch_iouring_submit_ops @ 368, batch_mixed_io_submit_ops @ 384,
            batch_total_submit_ops @ 400, batch_read_bytes @ 416, batch_write_bytes @ 424,
            batch_read_bw_bytes @ 432, batch_write_bw_bytes @ 440, batch_submit_lat_avg_us @ 448,
            batch_completion_lat_avg_us @ 456, batch_submit_ops_per_sec @ 464, batch_complete_ops_per_sec @ 472,
            batch_submit_lat_sum_us @ 480, batch_completion_lat_sum_us @ 488, last_batch_read_bytes @ 496,
            last_batch_write_bytes @ 504, $($field @ $offset,)*
        });

        #[doc = concat!("Statistics of level 2: level 1 and histograms of sizes, ", $version, ".")]
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[repr(C)]
        pub struct $level2 {
            /// Level 1.
            pub basic: $level1,
            /// Reads by size, in KiB.
            pub read_size_kb_hist: [u64; 32],
            /// Writes by size, in KiB.
            pub write_size_kb_hist: [u64; 32],
        }

        layout!($level2, size $size2, align 8, {
            basic @ 0, read_size_kb_hist @ $reads, write_size_kb_hist @ $writes,
        });

        #[doc = concat!("Statistics of level 3: level 2 and those of each GPU, ", $version, ".")]
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[repr(C)]
        pub struct $level3 {
            /// Level 2.
            pub detailed: $level2,
            /// GPUs found. Entries of `per_gpu_stats` from this one on mean nothing.
            pub num_gpus: u32,
            /// One entry for each GPU.
            pub per_gpu_stats: [CUfilePerGpuStats_t; 16],
        }

        layout!($level3, size $size3, align 8, { detailed @ 0, num_gpus @ $gpus, per_gpu_stats @ $per_gpu });
    };
}

levels! {
    "as cuFile 1.19 and later write it",
    CUfileStatsLevel1_t size 624, CUfileStatsLevel2_t size 1136, CUfileStatsLevel3_t size 5112,
    624, 880, 1136, 1144,
    {
        /// Vectored reads. They are not among `read_ops`.
        readv_ops: CUfileOpCounter_t = 512,
        /// Vectored writes. They are not among `write_ops`.
        writev_ops: CUfileOpCounter_t = 528,
        /// Bytes read by vectored reads.
        readv_bytes: u64 = 544,
        /// Bytes written by vectored writes.
        writev_bytes: u64 = 552,
        /// Bytes read by vectored reads per second.
        readv_bw_bytes_per_sec: u64 = 560,
        /// Bytes written by vectored writes per second.
        writev_bw_bytes_per_sec: u64 = 568,
        /// Mean time of a vectored read, in microseconds.
        readv_lat_avg_us: u64 = 576,
        /// Mean time of a vectored write, in microseconds.
        writev_lat_avg_us: u64 = 584,
        /// Vectored reads per second.
        readv_ops_per_sec: u64 = 592,
        /// Vectored writes per second.
        writev_ops_per_sec: u64 = 600,
        /// Sum of the times of vectored reads, in microseconds.
        readv_lat_sum_us: u64 = 608,
        /// Sum of the times of vectored writes, in microseconds.
        writev_lat_sum_us: u64 = 616,
    }
}

levels! {
    "as cuFile 1.15 to 1.18 write it",
    CUfileStatsLevel1_v1_15_t size 512, CUfileStatsLevel2_v1_15_t size 1024, CUfileStatsLevel3_v1_15_t size 5000,
    512, 768, 1024, 1032,
    {}
}

impl From<CUfileStatsLevel1_v1_15_t> for CUfileStatsLevel1_t {
    /// The counters of vectored I/O, which the older layout lacks, are 0.
    fn from(old: CUfileStatsLevel1_v1_15_t) -> Self {
        let mut new = Self::default();
        // SAFETY: both are `repr(C)` structures of u64 alone, and the older one is the beginning of the newer
        // one, as the offsets asserted above say; `new` is larger than what is written to it.
        unsafe { std::ptr::from_mut(&mut new).cast::<CUfileStatsLevel1_v1_15_t>().write(old) };
        new
    }
}

impl From<CUfileStatsLevel2_v1_15_t> for CUfileStatsLevel2_t {
    /// The counters of vectored I/O, which the older layout lacks, are 0.
    fn from(old: CUfileStatsLevel2_v1_15_t) -> Self {
        Self {
            basic: old.basic.into(),
            read_size_kb_hist: old.read_size_kb_hist,
            write_size_kb_hist: old.write_size_kb_hist,
        }
    }
}

impl From<CUfileStatsLevel3_v1_15_t> for CUfileStatsLevel3_t {
    /// The counters of vectored I/O, which the older layout lacks, are 0.
    fn from(old: CUfileStatsLevel3_v1_15_t) -> Self {
        Self { detailed: old.detailed.into(), num_gpus: old.num_gpus, per_gpu_stats: old.per_gpu_stats }
    }
}

/// Statistics of one GPU, within level 3.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct CUfilePerGpuStats_t {
    /// The GPU's UUID, 16 bytes, not text.
    pub uuid: [c_char; CUFILE_GPU_UUID_LEN],
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes read per second.
    pub read_bw_bytes_per_sec: u64,
    /// Utilisation by reads, in per cent.
    pub read_utilization: u64,
    /// Time of reads, in microseconds.
    pub read_duration_us: u64,
    /// Reads.
    pub n_total_reads: u64,
    /// Reads by PCI peer-to-peer DMA.
    pub n_p2p_reads: u64,
    /// Reads by nvidia-fs.
    pub n_nvfs_reads: u64,
    /// Reads by POSIX I/O, which is compatibility mode.
    pub n_posix_reads: u64,
    /// Reads that were not aligned.
    pub n_unaligned_reads: u64,
    /// Reads that were routed around a PCIe bridge.
    pub n_dr_reads: u64,
    /// Holes in files.
    pub n_sparse_regions: u64,
    /// Regions kept in the inode.
    pub n_inline_regions: u64,
    /// Reads that failed.
    pub n_reads_err: u64,
    /// Bytes written.
    pub writes_bytes: u64,
    /// Bytes written per second.
    pub write_bw_bytes_per_sec: u64,
    /// Utilisation by writes, in per cent.
    pub write_utilization: u64,
    /// Time of writes, in microseconds.
    pub write_duration_us: u64,
    /// Writes.
    pub n_total_writes: u64,
    /// Writes by PCI peer-to-peer DMA.
    pub n_p2p_writes: u64,
    /// Writes by nvidia-fs.
    pub n_nvfs_writes: u64,
    /// Writes by POSIX I/O, which is compatibility mode.
    pub n_posix_writes: u64,
    /// Writes that were not aligned.
    pub n_unaligned_writes: u64,
    /// Writes that were routed around a PCIe bridge.
    pub n_dr_writes: u64,
    /// Writes that failed.
    pub n_writes_err: u64,
    /// Registrations of buffers.
    pub n_mmap: u64,
    /// Registrations that succeeded.
    pub n_mmap_ok: u64,
    /// Registrations that failed.
    pub n_mmap_err: u64,
    /// Deregistrations.
    pub n_mmap_free: u64,
    /// Bytes registered.
    pub reg_bytes: u64,
}

layout!(CUfilePerGpuStats_t, size 248, align 8, {
    uuid @ 0, read_bytes @ 16, read_bw_bytes_per_sec @ 24, read_utilization @ 32, read_duration_us @ 40,
    n_total_reads @ 48, n_p2p_reads @ 56, n_nvfs_reads @ 64, n_posix_reads @ 72, n_unaligned_reads @ 80,
    n_dr_reads @ 88, n_sparse_regions @ 96, n_inline_regions @ 104, n_reads_err @ 112, writes_bytes @ 120,
    write_bw_bytes_per_sec @ 128, write_utilization @ 136, write_duration_us @ 144, n_total_writes @ 152,
    n_p2p_writes @ 160, n_nvfs_writes @ 168, n_posix_writes @ 176, n_unaligned_writes @ 184, n_dr_writes @ 192,
    n_writes_err @ 200, n_mmap @ 208, n_mmap_ok @ 216, n_mmap_err @ 224, n_mmap_free @ 232, reg_bytes @ 240,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_layout_becomes_the_newer_one_field_by_field() {
        let mut old = CUfileStatsLevel3_v1_15_t { num_gpus: 2, ..Default::default() };
        old.detailed.basic.read_ops = CUfileOpCounter_t { ok: 7, err: 1 };
        old.detailed.basic.last_batch_write_bytes = 9;
        old.detailed.read_size_kb_hist[31] = 3;
        old.per_gpu_stats[1].reg_bytes = 5;
        let new = CUfileStatsLevel3_t::from(old);
        assert_eq!(new.detailed.basic.read_ops, CUfileOpCounter_t { ok: 7, err: 1 });
        assert_eq!(new.detailed.basic.last_batch_write_bytes, 9);
        assert_eq!(new.detailed.basic.readv_ops, CUfileOpCounter_t::default());
        assert_eq!(new.detailed.read_size_kb_hist[31], 3);
        assert_eq!((new.num_gpus, new.per_gpu_stats[1].reg_bytes), (2, 5));
    }
}
