//! The driver: opened once for the process, counted, and closed when its last user goes.

use std::sync::{Arc, Mutex};

use cufile_sys::{
    CUFileBoolConfigParameter_t, CUFileSizeTConfigParameter_t, CUfileDrvProps_t, CUfileError_t,
    CUfileStatsLevel3_t, Constant, Library, sym,
};

use super::{Properties, ReadCounts, Route, check, not_loaded, probe};
use crate::memory::Device;
use crate::memory::cuda::Context;
use crate::{Error, ErrorKind, Result};

/// An open cuFile driver. Clones share it; file handles and registrations keep it open.
#[derive(Debug, Clone)]
pub struct Driver(Arc<Open>);

/// The value of a setting of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setting {
    /// A number, or a size.
    Number(u64),
    /// On or off.
    Switch(bool),
}

/// One opening, counted in `USERS`.
#[derive(Debug)]
struct Open {
    library: &'static Library,
    context: Arc<Context>,
}

/// How many `Open` there are. The driver of the process is open while this is not 0.
static USERS: Mutex<usize> = Mutex::new(0);

impl Driver {
    /// Opens the driver for a GPU, after making sure that the attempt ends: the library must be there, the GPU have a
    /// context, `/proc/modules` be readable (without it some versions never return), and, once per process, a child
    /// process must have opened the driver within 20 seconds. (The child is this program, started again with a
    /// variable that makes it do that and nothing else before its `main`; where gpufeed is not part of the program
    /// itself but of a library that was loaded later, there is no such child.)
    ///
    /// Any cuFile since 1.0 will do.
    ///
    /// # Errors
    /// `Unavailable`, in words, for all of these; `InvalidArgument` for a device that is no GPU.
    pub fn open(device: Device) -> Result<Driver> {
        let Device::Cuda(ordinal) = device else {
            return Err(Error::argument(format!("cuFile needs a GPU; device {device} is none (cuda:N is)")));
        };
        Driver::open_in(&Context::open(ordinal)?)
    }

    pub(crate) fn open_in(context: &Arc<Context>) -> Result<Driver> {
        let library = Library::open().map_err(|error| not_loaded(&error))?;
        let open = library.require(sym::cuFileDriverOpen)?;
        let mut users = USERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if *users == 0 {
            probe::check(library, context.ordinal())
                .map_err(|why| Error::new(ErrorKind::Unavailable, format!("cuFile cannot be used: {why}")))?;
            let _entered = context.enter()?;
            // SAFETY: takes nothing; a context is current, and a child process has shown that the call returns.
            check("cuFile's driver cannot be opened", unsafe { open() })
                .map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))?;
        }
        *users += 1;
        Ok(Driver(Arc::new(Open { library, context: Arc::clone(context) })))
    }

    /// The library's version, 1200 for 1.20; since cuFile 1.8.
    ///
    /// # Errors
    /// `Unsupported` for an older library.
    pub fn version(&self) -> Result<i32> {
        self.context().check_process()?;
        let ask = self.library().require(sym::cuFileGetVersion)?;
        let mut version = 0;
        // SAFETY: the result lives through the call.
        check("cuFile does not tell its version", unsafe { ask(&mut version) })?;
        Ok(version)
    }

    /// Where the library was found.
    pub fn library_path(&self) -> &std::path::Path {
        self.library().path()
    }

    /// The driver's properties.
    ///
    /// # Errors
    /// `Device` if the driver does not tell.
    pub fn properties(&self) -> Result<Properties> {
        self.context().check_process()?;
        let ask = self.library().require(sym::cuFileDriverGetProperties)?;
        let mut raw = CUfileDrvProps_t::default();
        // One at a time: in 1.14 two calls at once destroy the heap.
        let _alone = USERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // SAFETY: the result lives through the call.
        check("cuFile does not tell its properties", unsafe { ask(&mut raw) })?;
        Ok(Properties::of(&raw))
    }

    /// The way that reads take, by the driver's properties.
    ///
    /// # Errors
    /// As `properties`.
    pub fn route(&self) -> Result<Route> {
        Ok(self.properties()?.route())
    }

    /// Starts counting reads by the way they take; since cuFile 1.15.
    ///
    /// # Errors
    /// `Unsupported` for an older library, `Device` if the driver refuses.
    pub fn count_reads(&self) -> Result<()> {
        self.context().check_process()?;
        let level = self.library().require(sym::cuFileSetStatsLevel)?;
        let start = self.library().require(sym::cuFileStatsStart)?;
        // SAFETY: takes a number.
        check("cuFile's statistics cannot be turned on", unsafe { level(3) })?;
        // SAFETY: takes nothing.
        check("cuFile's statistics cannot be started", unsafe { start() })
    }

    /// Reads by the way they took, since [`count_reads`](Driver::count_reads), over the whole process; since
    /// cuFile 1.15.
    ///
    /// # Errors
    /// As `count_reads`.
    pub fn reads(&self) -> Result<ReadCounts> {
        self.context().check_process()?;
        // SAFETY: the statistics are plain numbers and bytes, for which all zeros is valid.
        let mut raw: Box<CUfileStatsLevel3_t> = unsafe { Box::new(std::mem::zeroed()) };
        // SAFETY: the driver is open, and the result lives through the call.
        check("cuFile does not tell its statistics", unsafe { self.library().stats_level3(&mut raw) }?)?;
        let mut sum = ReadCounts::default();
        for gpu in raw.per_gpu_stats.iter().take(raw.num_gpus as usize) {
            sum.nvidia_fs += gpu.n_nvfs_reads;
            sum.pci_p2pdma += gpu.n_p2p_reads;
            sum.posix += gpu.n_posix_reads;
        }
        Ok(sum)
    }

    /// The GPU's BAR1 size in bytes, which bounds what can be registered at once; since cuFile 1.15.
    ///
    /// # Errors
    /// `Unsupported` for an older library, `Device` if the driver does not tell.
    pub fn bar_bytes(&self) -> Result<u64> {
        self.context().check_process()?;
        let ask = self.library().require(sym::cuFileGetBARSizeInKB)?;
        let mut kib = 0;
        // SAFETY: the result lives through the call.
        check("cuFile does not tell the BAR size", unsafe {
            ask(self.context().ordinal() as i32, &mut kib)
        })?;
        Ok(kib as u64 * 1024)
    }

    /// The driver's settings as they are in effect, each by the name of its parameter in the header, in lower case and
    /// without `CUFILE_PARAM_`; sizes in the unit that the name ends in. Settings that this version does not know, or
    /// does not tell, are left out. Since cuFile 1.14.
    ///
    /// # Errors
    /// `Unsupported` for an older library.
    pub fn settings(&self) -> Result<Vec<(String, Setting)>> {
        let number = self.library().require(sym::cuFileGetParameterSizeT)?;
        let switch = self.library().require(sym::cuFileGetParameterBool)?;
        self.context().check_process()?;
        let _alone = USERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let name =
            |constant: &Constant| constant.name.trim_start_matches("CUFILE_PARAM_").to_ascii_lowercase();
        let mut settings = Vec::new();
        for constant in CUFileSizeTConfigParameter_t::CONSTANTS {
            let mut value = 0;
            // SAFETY: the result lives through the call; an unknown parameter is an error code.
            let returned = unsafe { number(CUFileSizeTConfigParameter_t(constant.value as i32), &mut value) };
            if returned == CUfileError_t::SUCCESS {
                settings.push((name(constant), Setting::Number(value as u64)));
            }
        }
        for constant in CUFileBoolConfigParameter_t::CONSTANTS {
            // A byte, since C may leave anything in it.
            let mut value = 0u8;
            // SAFETY: as above; a C bool is a byte.
            let returned = unsafe {
                switch(CUFileBoolConfigParameter_t(constant.value as i32), (&raw mut value).cast())
            };
            if returned == CUfileError_t::SUCCESS {
                settings.push((name(constant), Setting::Switch(value != 0)));
            }
        }
        Ok(settings)
    }

    /// Turns polling on or off, for I/O of up to this many bytes.
    ///
    /// # Errors
    /// `Device` if the driver refuses.
    pub fn set_poll_mode(&self, poll: bool, up_to_bytes: u64) -> Result<()> {
        self.context().check_process()?;
        let set = self.library().require(sym::cuFileDriverSetPollMode)?;
        // SAFETY: takes numbers.
        check("cuFile's poll mode cannot be set", unsafe { set(poll, (up_to_bytes / 1024) as usize) })
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.0.library
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.0.context
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // In a forked child the driver is the parent's, and the lock may be held by a thread that is not there.
        if self.context.check_process().is_err() {
            return;
        }
        let mut users = USERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *users -= 1;
        if *users > 0 {
            return;
        }
        let Ok(_entered) = self.context.enter() else { return };
        if let Some(close) = self.library.driver_close() {
            // SAFETY: takes nothing; no handle and no registration is left, since each keeps an opening.
            unsafe { close() };
        }
    }
}
