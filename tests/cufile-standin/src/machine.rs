//! The version, and what the library says of the machine.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use crate::call::{self, When};
use crate::cuda;
use crate::error::{Error, code};
use crate::ffi::Out;
use crate::settings::{Route, settings};

/// `CU_FILE_NVME_SUPPORTED`, and the last kind of storage there is.
const NVME: u32 = 4;
const LAST: u32 = 14;
const P2PDMA: u32 = 1;
const NVFS: u32 = 1 << 1;
const ALL_FLAGS: u32 = 0b1_1111;

/// Flags that a program has set, by kind of storage.
static FLAGS: Mutex<BTreeMap<u32, u32>> = Mutex::new(BTreeMap::new());

#[unsafe(no_mangle)]
extern "C" fn cuFileGetVersion(version: Out<i32>) -> Error {
    call::status("cuFileGetVersion", When::Anytime, || version.set(settings().version))
}

#[unsafe(no_mangle)]
extern "C" fn cuFileGetBARSizeInKB(device: i32, kib: Out<usize>) -> Error {
    call::status("cuFileGetBARSizeInKB", When::DriverOpen, || {
        if device < 0 || device >= cuda::devices().map_err(Error::cuda)? {
            return Err(Error::cufile(code::INVALID_VALUE));
        }
        if settings().route == Route::Compat {
            // As the real library says it where it cannot find out.
            return Err(Error { cufile: 0, cuda: cuda::not_supported() });
        }
        kib.set(settings().bar_kib as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverGetP2PFlags(storage: u32, flags: Out<u32>) -> Error {
    call::status("cuFileDriverGetP2PFlags", When::DriverOpen, || {
        if storage > LAST {
            return Err(Error::cufile(code::INVALID_VALUE));
        }
        let chosen = FLAGS.lock().unwrap_or_else(PoisonError::into_inner).get(&storage).copied();
        let own = match settings().route {
            Route::Nvfs if storage == NVME => NVFS,
            Route::P2pDma if storage == NVME => P2PDMA,
            _ => 0,
        };
        // A wish changes what is tried, not what there is.
        flags.set(chosen.map_or(own, |chosen| chosen & own))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverSetP2PFlags(storage: u32, flags: u32) -> Error {
    call::status("cuFileDriverSetP2PFlags", When::Anytime, || {
        if storage > LAST || flags & !ALL_FLAGS != 0 {
            return Err(Error::cufile(code::INVALID_VALUE));
        }
        FLAGS.lock().unwrap_or_else(PoisonError::into_inner).insert(storage, flags);
        Ok(())
    })
}

/// Writes a small file; its form is not that of the real library, which is not documented.
///
/// # Safety
///
/// `path` must be null or NUL-terminated.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileExportPCIeTopology(path: *const c_char) -> Error {
    call::status("cuFileExportPCIeTopology", When::DriverOpen, || {
        if path.is_null() {
            return Err(Error::cufile(code::INVALID_VALUE));
        }
        // SAFETY: not null, and so NUL-terminated by this function's contract.
        let path = OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes());
        let devices = cuda::devices().map_err(Error::cuda)?;
        let lines: String = (0..devices).map(|device| format!("GPU {device}: emulated\n")).collect();
        std::fs::write(path, lines).map_err(|_| Error::cufile(code::INVALID_VALUE))
    })
}
