//! cuFile's functions: one optional pointer each, and what is known of each by name.
//!
//! Every function is unsafe to call. Unless it says otherwise: pointers must be valid for what the function
//! does with them, handles must come from this library and still be registered, and cuFile must not be used
//! in a child that was forked after its first use. Sizes and offsets are in bytes unless a name or a text
//! says KiB.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::fmt;

use libc::{off_t, timespec};

use crate::constants::{
    CUFileBoolConfigParameter_t, CUFileSizeTConfigParameter_t, CUFileStringConfigParameter_t,
    CUfileDriverStatusFlags_t, CUfileP2PFlags_t,
};
use crate::stats::{CUfileStatsLevel1_t, CUfileStatsLevel2_t, CUfileStatsLevel3_t};
use crate::types::{
    CUfileBatchHandle_t, CUfileDescr_t, CUfileDrvProps_t, CUfileError_t, CUfileHandle_t, CUfileIOEvents_t,
    CUfileIOParams_t, CUfileIOVec_t, CUstream,
};
use crate::version::Version;

/// A function of cuFile, by name. Each function has one in [`sym`](crate::sym), for
/// [`Library::require`](crate::Library::require).
pub struct Symbol<F> {
    /// The name that the library exports.
    pub name: &'static str,
    /// The first version that has it, as far as is known.
    pub since: Version,
    pub(crate) pick: fn(&Functions) -> Option<F>,
}

impl<F> fmt::Debug for Symbol<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Symbol").field("name", &self.name).field("since", &self.since).finish()
    }
}

/// What is known of a function without its type, for tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// The name that the library exports.
    pub name: &'static str,
    /// The first version that has it, as far as is known.
    pub since: Version,
}

/// Makes of each function a field of [`Functions`], a [`Symbol`] in `sym`, and an entry of [`FUNCTIONS`].
macro_rules! functions {
    ($( $(#[$doc:meta])* $since:literal fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $return:ty)?; )*) => {
        /// The functions that were found in a library; one that it lacks is `None`. See the
        /// [module's rules](crate#calling-functions) for calling them.
        #[allow(non_snake_case)]
        #[derive(Clone, Copy)]
        pub struct Functions {
            $(
                $(#[$doc])*
                #[doc = concat!("\n\nSince cuFile ", $since, ".")]
                pub $name: Option<unsafe extern "C" fn($($argument: $type),*) $(-> $return)?>,
            )*
        }

        impl Functions {
            /// Looks each function up by its name.
            ///
            /// # Safety What `find` gives for a name must be null, or the address of cuFile's function of
            /// that name, which must stay loaded.
            pub(crate) unsafe fn look_up(find: impl Fn(&CStr) -> *mut c_void) -> Self {
                Self {$(
                    $name: {
                        let name = const {
                            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                                Ok(name) => name,
                                Err(_) => panic!(),
                            }
                        };
                        // SAFETY: by the caller's word the pointer is null or that function. Null is the
                        // `None` of an optional function pointer, which is as large as a pointer.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                Option<unsafe extern "C" fn($($argument: $type),*) $(-> $return)?>,
                            >(find(name))
                        }
                    },
                )*}
            }

            /// The names of the functions that were found, in the order of [`FUNCTIONS`].
            pub fn found(&self) -> impl Iterator<Item = &'static str> {
                [$((stringify!($name), self.$name.is_some()),)*]
                    .into_iter()
                    .filter_map(|(name, found)| found.then_some(name))
            }
        }

        /// A [`Symbol`] for each function, under the function's own name.
        #[allow(non_upper_case_globals)]
        pub mod sym {
            use super::*;
            $(
                #[doc = concat!("`", stringify!($name), "`, since cuFile ", $since, ".")]
                pub const $name: Symbol<unsafe extern "C" fn($($argument: $type),*) $(-> $return)?> = Symbol {
                    name: stringify!($name),
                    since: Version::literal($since),
                    pick: |functions| functions.$name,
                };
            )*
        }

        /// Every function of cuFile that this crate knows.
        pub const FUNCTIONS: &[Function] =
            &[$(Function { name: stringify!($name), since: Version::literal($since) },)*];
    };
}

functions! {
    /// Opens the driver for this process; further opens count up. Needs a CUDA device and context. On a
    /// machine without a GPU, or without a readable `/proc/modules`, some versions never return: ask first,
    /// in a child process with a deadline.
    "1.0" fn cuFileDriverOpen() -> CUfileError_t;

    /// Closes the driver, in its older form; see [`Functions::driver_close`].
    "1.0" fn cuFileDriverClose() -> CUfileError_t;

    /// Closes the driver. The header makes this the meaning of `cuFileDriverClose`; see
    /// [`Functions::driver_close`].
    "1.4" fn cuFileDriverClose_v2() -> CUfileError_t;

    /// How often the driver is open in this process.
    "1.4" fn cuFileUseCount() -> c_long;

    /// Fills in the driver's properties; before it is opened, those that it would be opened with.
    "1.0" fn cuFileDriverGetProperties(properties: *mut CUfileDrvProps_t) -> CUfileError_t;

    /// Turns polling on or off for I/O of up to `threshold_kib` KiB. To be called before the driver is
    /// opened.
    "1.0" fn cuFileDriverSetPollMode(poll: bool, threshold_kib: usize) -> CUfileError_t;

    /// Sets the largest I/O that is handed to nvidia-fs at once, in KiB. To be called before the driver is
    /// opened.
    "1.0" fn cuFileDriverSetMaxDirectIOSize(size_kib: usize) -> CUfileError_t;

    /// Sets the GPU memory for bounce buffers per device, in KiB. To be called before the driver is opened.
    "1.0" fn cuFileDriverSetMaxCacheSize(size_kib: usize) -> CUfileError_t;

    /// Sets the GPU memory that may be registered, in KiB. To be called before the driver is opened.
    "1.0" fn cuFileDriverSetMaxPinnedMemSize(size_kib: usize) -> CUfileError_t;

    /// Tells which ways (a mask) a kind of storage may use.
    "1.16" fn cuFileDriverGetP2PFlags(
        storage: CUfileDriverStatusFlags_t,
        flags: *mut CUfileP2PFlags_t,
    ) -> CUfileError_t;

    /// Sets which ways (a mask) a kind of storage may use: PCI peer-to-peer DMA on x86_64, chip to chip on
    /// aarch64, no other.
    "1.16" fn cuFileDriverSetP2PFlags(
        storage: CUfileDriverStatusFlags_t,
        flags: CUfileP2PFlags_t,
    ) -> CUfileError_t;

    /// Registers an open file and gives its handle. The descriptor must stay open until the handle is
    /// deregistered.
    "1.0" fn cuFileHandleRegister(handle: *mut CUfileHandle_t, file: *mut CUfileDescr_t) -> CUfileError_t;

    /// Deregisters a file. No I/O on it may be in flight. It does not close the descriptor.
    "1.0" fn cuFileHandleDeregister(handle: CUfileHandle_t);

    /// Registers `length` bytes of device (or host) memory for direct I/O. The memory must stay allocated
    /// until it is deregistered. `flags`: 0, or [`CU_FILE_RDMA_REGISTER`](crate::CU_FILE_RDMA_REGISTER) and
    /// [`CU_FILE_RDMA_RELAXED_ORDERING`](crate::CU_FILE_RDMA_RELAXED_ORDERING).
    "1.0" fn cuFileBufRegister(base: *const c_void, length: usize, flags: c_int) -> CUfileError_t;

    /// Deregisters memory. No I/O on it may be in flight.
    "1.0" fn cuFileBufDeregister(base: *const c_void) -> CUfileError_t;

    /// Reads up to `size` bytes of the file from `file_offset` to `base + buffer_offset`, and waits for them.
    /// It is not ordered with any stream. See [`decode_return`](crate::decode_return) for what it returns.
    "1.0" fn cuFileRead(
        handle: CUfileHandle_t,
        base: *mut c_void,
        size: usize,
        file_offset: off_t,
        buffer_offset: off_t,
    ) -> isize;

    /// Writes up to `size` bytes from `base + buffer_offset` to the file at `file_offset`, and waits for
    /// them. It is not ordered with any stream. See [`decode_return`](crate::decode_return) for what it
    /// returns.
    "1.0" fn cuFileWrite(
        handle: CUfileHandle_t,
        base: *const c_void,
        size: usize,
        file_offset: off_t,
        buffer_offset: off_t,
    ) -> isize;

    /// Reads into `count` pieces of memory, one after another, from `file_offset` on, and waits for them.
    /// `flags`: 0. See [`decode_return`](crate::decode_return) for what it returns.
    "1.19" fn cuFileReadv(
        handle: CUfileHandle_t,
        pieces: *const CUfileIOVec_t,
        count: usize,
        file_offset: off_t,
        flags: c_uint,
    ) -> isize;

    /// Writes `count` pieces of memory, one after another, from `file_offset` on, and waits for them.
    /// `flags`: 0. See [`decode_return`](crate::decode_return) for what it returns.
    "1.19" fn cuFileWritev(
        handle: CUfileHandle_t,
        pieces: *const CUfileIOVec_t,
        count: usize,
        file_offset: off_t,
        flags: c_uint,
    ) -> isize;

    /// Makes a batch of up to `count` entries, which is limited by
    /// [`max_batch_io_size`](CUfileDrvProps_t::max_batch_io_size).
    "1.2" fn cuFileBatchIOSetUp(batch: *mut CUfileBatchHandle_t, count: c_uint) -> CUfileError_t;

    /// Submits `count` entries. Their memory must stay valid until each has been reported. `flags`: 0.
    "1.2" fn cuFileBatchIOSubmit(
        batch: CUfileBatchHandle_t,
        count: c_uint,
        entries: *mut CUfileIOParams_t,
        flags: c_uint,
    ) -> CUfileError_t;

    /// Waits for at least `min_count` entries, and reports those that are done. `count` holds the room in
    /// `events` before, and the number of events after. `timeout` may be null.
    "1.2" fn cuFileBatchIOGetStatus(
        batch: CUfileBatchHandle_t,
        min_count: c_uint,
        count: *mut c_uint,
        events: *mut CUfileIOEvents_t,
        timeout: *mut timespec,
    ) -> CUfileError_t;

    /// Asks for a batch to be cancelled. Entries may still be in flight after it.
    "1.2" fn cuFileBatchIOCancel(batch: CUfileBatchHandle_t) -> CUfileError_t;

    /// Frees a batch. It must be called once for each, when nothing of it is in flight.
    "1.2" fn cuFileBatchIODestroy(batch: CUfileBatchHandle_t);

    /// Queues a read on a stream. The four numbers behind pointers are read and written when the stream gets
    /// there: they and the memory must stay valid until it has passed. `bytes_read` gets what
    /// [`decode_return`](crate::decode_return) takes.
    "1.7" fn cuFileReadAsync(
        handle: CUfileHandle_t,
        base: *mut c_void,
        size: *mut usize,
        file_offset: *mut off_t,
        buffer_offset: *mut off_t,
        bytes_read: *mut isize,
        stream: CUstream,
    ) -> CUfileError_t;

    /// Queues a write on a stream. The four numbers behind pointers are read and written when the stream gets
    /// there: they and the memory must stay valid until it has passed. `bytes_written` gets what
    /// [`decode_return`](crate::decode_return) takes.
    "1.7" fn cuFileWriteAsync(
        handle: CUfileHandle_t,
        base: *mut c_void,
        size: *mut usize,
        file_offset: *mut off_t,
        buffer_offset: *mut off_t,
        bytes_written: *mut isize,
        stream: CUstream,
    ) -> CUfileError_t;

    /// Prepares a stream for I/O, which makes each cheaper. `flags`: 0, or the `CU_FILE_STREAM_` constants of
    /// what is known when an I/O is queued.
    "1.7" fn cuFileStreamRegister(stream: CUstream, flags: c_uint) -> CUfileError_t;

    /// Frees what cuFile keeps for a stream. To be called before the stream is destroyed, and after an error
    /// on it.
    "1.7" fn cuFileStreamDeregister(stream: CUstream) -> CUfileError_t;

    /// Tells the library's version: see [`Version`]. It works before the driver is opened.
    "1.8" fn cuFileGetVersion(version: *mut c_int) -> CUfileError_t;

    /// Reads a parameter: its value now, or before the driver is opened the one that it would be opened with.
    "1.14" fn cuFileGetParameterSizeT(
        parameter: CUFileSizeTConfigParameter_t,
        value: *mut usize,
    ) -> CUfileError_t;

    /// Reads a parameter: its value now, or before the driver is opened the one that it would be opened with.
    "1.14" fn cuFileGetParameterBool(
        parameter: CUFileBoolConfigParameter_t,
        value: *mut bool,
    ) -> CUfileError_t;

    /// Reads a parameter into `length` bytes: its value now, or before the driver is opened the one that it
    /// would be opened with.
    "1.14" fn cuFileGetParameterString(
        parameter: CUFileStringConfigParameter_t,
        text: *mut c_char,
        length: c_int,
    ) -> CUfileError_t;

    /// Tells the smallest and the largest value that a parameter may have.
    "1.15" fn cuFileGetParameterMinMaxValue(
        parameter: CUFileSizeTConfigParameter_t,
        smallest: *mut usize,
        largest: *mut usize,
    ) -> CUfileError_t;

    /// Reads the sizes in KiB and the numbers of the buffers for POSIX I/O. `length` must be exactly the
    /// number of slabs.
    "1.15" fn cuFileGetParameterPosixPoolSlabArray(
        sizes_kib: *mut usize,
        counts: *mut usize,
        length: c_int,
    ) -> CUfileError_t;

    /// Reads the sizes in KiB and the numbers of the GPU's bounce buffers. `length` must be exactly the
    /// number of slabs.
    "1.17" fn cuFileGetParameterGpuBounceBufferSlabArray(
        sizes_kib: *mut usize,
        counts: *mut usize,
        length: c_int,
    ) -> CUfileError_t;

    /// Sets a parameter, before the driver is opened. It goes before the environment and the configuration
    /// file.
    "1.14" fn cuFileSetParameterSizeT(parameter: CUFileSizeTConfigParameter_t, value: usize) -> CUfileError_t;

    /// Sets a parameter, before the driver is opened. It goes before the environment and the configuration
    /// file.
    "1.14" fn cuFileSetParameterBool(parameter: CUFileBoolConfigParameter_t, value: bool) -> CUfileError_t;

    /// Sets a parameter, before the driver is opened. It goes before the environment and the configuration
    /// file.
    "1.14" fn cuFileSetParameterString(
        parameter: CUFileStringConfigParameter_t,
        text: *const c_char,
    ) -> CUfileError_t;

    /// Sets the sizes in KiB and the numbers of the buffers for POSIX I/O, before the driver is opened.
    "1.15" fn cuFileSetParameterPosixPoolSlabArray(
        sizes_kib: *const usize,
        counts: *const usize,
        length: c_int,
    ) -> CUfileError_t;

    /// Sets the sizes in KiB (multiples of 4, ascending) and the numbers of the GPU's bounce buffers, before
    /// the driver is opened.
    "1.17" fn cuFileSetParameterGpuBounceBufferSlabArray(
        sizes_kib: *const usize,
        counts: *const usize,
        length: c_int,
    ) -> CUfileError_t;

    /// Sets the level of statistics: 0 (none) to 3. It goes before the configuration file.
    "1.15" fn cuFileSetStatsLevel(level: c_int) -> CUfileError_t;

    /// Tells the level of statistics.
    "1.15" fn cuFileGetStatsLevel(level: *mut c_int) -> CUfileError_t;

    /// Begins to count. The level must have been set and the driver opened.
    "1.15" fn cuFileStatsStart() -> CUfileError_t;

    /// Ceases to count.
    "1.15" fn cuFileStatsStop() -> CUfileError_t;

    /// Sets all counters to 0.
    "1.15" fn cuFileStatsReset() -> CUfileError_t;

    /// Fills in the statistics of level 1. Before 1.19 the last 112 bytes are left as they were; see
    /// [`Library::stats_level1`](crate::Library::stats_level1).
    "1.15" fn cuFileGetStatsL1(stats: *mut CUfileStatsLevel1_t) -> CUfileError_t;

    /// Fills in the statistics of level 2. **Before 1.19 it writes another layout**,
    /// [`CUfileStatsLevel2_v1_15_t`](crate::CUfileStatsLevel2_v1_15_t); see
    /// [`Library::stats_level2`](crate::Library::stats_level2).
    "1.15" fn cuFileGetStatsL2(stats: *mut CUfileStatsLevel2_t) -> CUfileError_t;

    /// Fills in the statistics of level 3. **Before 1.19 it writes another layout**,
    /// [`CUfileStatsLevel3_v1_15_t`](crate::CUfileStatsLevel3_v1_15_t); see
    /// [`Library::stats_level3`](crate::Library::stats_level3).
    "1.15" fn cuFileGetStatsL3(stats: *mut CUfileStatsLevel3_t) -> CUfileError_t;

    /// Tells the size of a GPU's BAR in KiB.
    "1.15" fn cuFileGetBARSizeInKB(gpu: c_int, size_kib: *mut usize) -> CUfileError_t;

    /// Writes the PCIe topology that the library sees to a file, as JSON.
    "1.17" fn cuFileExportPCIeTopology(path: *const c_char) -> CUfileError_t;
}

impl Functions {
    /// The function that closes the driver: `cuFileDriverClose_v2` where there is one, as the header has it.
    pub fn driver_close(&self) -> Option<unsafe extern "C" fn() -> CUfileError_t> {
        self.cuFileDriverClose_v2.or(self.cuFileDriverClose)
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.found()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn stand_in() -> CUfileError_t {
        CUfileError_t::SUCCESS
    }

    fn only(names: &'static [&'static str]) -> Functions {
        // SAFETY: the only names that get an address are those of functions with this signature.
        unsafe {
            Functions::look_up(|name| match name.to_str() {
                Ok(name) if names.contains(&name) => stand_in as *mut c_void,
                _ => std::ptr::null_mut(),
            })
        }
    }

    #[test]
    fn a_function_that_is_not_there_is_none() {
        let functions = only(&["cuFileDriverOpen", "cuFileStatsStart"]);
        assert!(functions.cuFileDriverOpen.is_some() && functions.cuFileRead.is_none());
        assert_eq!(functions.found().collect::<Vec<_>>(), ["cuFileDriverOpen", "cuFileStatsStart"]);
        assert_eq!(only(&[]).found().count(), 0);
        assert!((sym::cuFileDriverOpen.pick)(&functions).is_some());
        assert!((sym::cuFileReadv.pick)(&functions).is_none());
    }

    #[test]
    fn the_driver_is_closed_by_the_newer_function_where_there_is_one() {
        assert!(only(&[]).driver_close().is_none());
        assert!(only(&["cuFileDriverClose"]).driver_close().is_some());
        assert!(only(&["cuFileDriverClose_v2"]).driver_close().is_some());
    }

    #[test]
    fn no_function_is_listed_twice() {
        let mut names: Vec<_> = FUNCTIONS.iter().map(|function| function.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FUNCTIONS.len());
        assert!(names.iter().all(|name| name.starts_with("cuFile")));
    }
}
