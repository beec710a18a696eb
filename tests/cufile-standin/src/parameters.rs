//! The parameters of cuFile's configuration, as numbers, switches and texts.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, PoisonError};

use crate::call::{self, When};
use crate::driver::must_be_closed;
use crate::error::{Answer, Error, code};
use crate::ffi::{Array, Out};
use crate::settings::settings;

/// A number, with the least and the greatest that it may be set to.
struct Size {
    name: &'static str,
    value: u64,
    least: u64,
    most: u64,
}

const fn at(name: &'static str, value: u64, least: u64, most: u64) -> Size {
    Size { name, value, least, most }
}

/// In the order of the header's enumeration; values and ranges as a 1.20 library answered in compatibility mode.
const SIZES: &[Size] = &[
    at("profile_stats", 0, 0, 3),
    at("max_io_queue_depth", 128, 1, 256),
    at("max_io_threads", 8, 0, 128),
    at("min_io_threshold", 1024, 4, u32::MAX as u64),
    at("max_request_parallelism", 4, 0, 8),
    at("max_direct_io", 16384, 64, 16384),
    at("max_device_cache", 131_072, 0, 1 << 30),
    at("per_buffer_cache", 1024, 64, 16384),
    at("max_pinned", 18_014_398_509_481_980, 64, 18_014_398_509_481_980),
    at("io_batchsize", 128, 1, 256),
    at("poll_threshold", 4, 4, 18_014_398_509_481_980),
    at("batch_timeout", 5, 1, 1000),
];

const PROFILE_STATS: u32 = 0;
const IO_BATCHSIZE: u32 = 9;

/// In the order of the header's enumeration.
const SWITCHES: &[bool] =
    &[false, true, false, false, true, false, true, false, false, false, false, false, false, false];
const ALLOW_COMPAT: u32 = 1;
const PROFILE_NVTX: u32 = 5;
const OLDER_SWITCHES: usize = 12;

const TEXTS: &[Option<&str>] = &[Some("ERROR"), None, Some("/tmp"), Some("DC_V1")];
const OLDER_TEXTS: usize = 3;

/// What a program has set, by (kind, number).
#[derive(Debug)]
struct Chosen {
    sizes: BTreeMap<u32, usize>,
    switches: BTreeMap<u32, bool>,
    texts: BTreeMap<u32, Vec<u8>>,
    slabs: [Vec<(usize, usize)>; 2],
}

static CHOSEN: Mutex<Chosen> = Mutex::new(Chosen {
    sizes: BTreeMap::new(),
    switches: BTreeMap::new(),
    texts: BTreeMap::new(),
    slabs: [const { Vec::new() }; 2],
});

fn chosen<T>(look: impl FnOnce(&mut Chosen) -> T) -> T {
    look(&mut CHOSEN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn invalid<T>() -> Answer<T> {
    Err(Error::cufile(code::INVALID_VALUE))
}

fn size_at(which: u32) -> Answer<usize> {
    let Some(size) = SIZES.get(which as usize) else { return invalid() };
    let older = settings().version < 1150;
    let own = match size.name {
        "io_batchsize" => u64::from(settings().max_batch),
        "max_direct_io" if older => 1024,
        "max_io_threads" | "max_request_parallelism" if older => 0,
        _ => size.value,
    };
    Ok(chosen(|chosen| chosen.sizes.get(&which).copied()).unwrap_or(own as usize))
}

/// A number by its name in [`SIZES`].
pub(crate) fn size(name: &str) -> usize {
    let which = SIZES.iter().position(|size| size.name == name);
    which.and_then(|which| size_at(which as u32).ok()).unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn cuFileGetParameterSizeT(which: u32, value: Out<usize>) -> Error {
    call::status("cuFileGetParameterSizeT", When::Anytime, || value.set(size_at(which)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuFileSetParameterSizeT(which: u32, value: usize) -> Error {
    call::status("cuFileSetParameterSizeT", When::Anytime, || {
        must_be_closed()?;
        let Some(size) = SIZES.get(which as usize) else { return invalid() };
        let most = if which == IO_BATCHSIZE { u64::from(settings().max_batch) } else { size.most };
        if !(size.least..=most).contains(&(value as u64)) {
            return invalid();
        }
        chosen(|chosen| chosen.sizes.insert(which, value));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileGetParameterMinMaxValue(which: u32, least: Out<usize>, most: Out<usize>) -> Error {
    call::status("cuFileGetParameterMinMaxValue", When::Anytime, || match SIZES.get(which as usize) {
        Some(size) if which != PROFILE_STATS => {
            least.set(size.least as usize)?;
            most.set(size.most as usize)
        }
        _ => invalid(),
    })
}

/// The switch, unless this version has none with this number.
fn switch(which: u32) -> Answer<bool> {
    let older = settings().version < 1150;
    let known = if older { OLDER_SWITCHES } else { SWITCHES.len() };
    match SWITCHES.get(which as usize) {
        Some(own) if (which as usize) < known && (older || which != PROFILE_NVTX) => {
            Ok(chosen(|chosen| chosen.switches.get(&which).copied()).unwrap_or(*own || which == ALLOW_COMPAT))
        }
        _ => invalid(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileGetParameterBool(which: u32, value: Out<bool>) -> Error {
    call::status("cuFileGetParameterBool", When::Anytime, || value.set(switch(which)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuFileSetParameterBool(which: u32, value: u8) -> Error {
    call::status("cuFileSetParameterBool", When::Anytime, || {
        must_be_closed()?;
        switch(which)?;
        chosen(|chosen| chosen.switches.insert(which, value != 0));
        Ok(())
    })
}

fn text(which: u32) -> Answer<Vec<u8>> {
    let known = if settings().version < 1190 { OLDER_TEXTS } else { TEXTS.len() };
    let Some(own) = TEXTS.get(which as usize).filter(|_| (which as usize) < known) else { return invalid() };
    match chosen(|chosen| chosen.texts.get(&which).cloned()).or(own.map(|own| own.as_bytes().to_vec())) {
        Some(text) => Ok(text),
        None => invalid(),
    }
}

/// # Safety
///
/// `buffer` must be null or valid for `len` writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetParameterString(which: u32, buffer: Out<u8>, len: i32) -> Error {
    call::status("cuFileGetParameterString", When::Anytime, || {
        let mut text = text(which)?;
        text.push(0);
        if usize::try_from(len).is_ok_and(|room| room >= text.len()) {
            // SAFETY: the text fits in the `len` bytes that the caller promises.
            return unsafe { buffer.fill(&text) };
        }
        invalid()
    })
}

/// # Safety
///
/// `value` must be null or NUL-terminated.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileSetParameterString(which: u32, value: *const c_char) -> Error {
    call::status("cuFileSetParameterString", When::Anytime, || {
        must_be_closed()?;
        if value.is_null() || which as usize >= TEXTS.len() {
            return invalid();
        }
        // SAFETY: not null, and so NUL-terminated by this function's contract.
        let text = unsafe { CStr::from_ptr(value) }.to_bytes().to_vec();
        chosen(|chosen| chosen.texts.insert(which, text));
        Ok(())
    })
}

/// # Safety
///
/// Both arrays must be null or hold `len` elements.
unsafe fn set_slabs(
    call: &'static str,
    which: usize,
    sizes: Array<usize>,
    counts: Array<usize>,
    len: i32,
) -> Error {
    call::status(call, When::Anytime, || {
        must_be_closed()?;
        let Some(len) = usize::try_from(len).ok().filter(|len| *len > 0) else { return invalid() };
        // SAFETY: `len` elements each, by this function's contract.
        let (sizes, counts) = unsafe { (sizes.read(len)?, counts.read(len)?) };
        chosen(|chosen| chosen.slabs[which] = sizes.into_iter().zip(counts).collect());
        Ok(())
    })
}

/// # Safety
///
/// Both arrays must be null or valid for `len` writes.
unsafe fn get_slabs(
    call: &'static str,
    which: usize,
    sizes: Out<usize>,
    counts: Out<usize>,
    len: i32,
) -> Error {
    call::status(call, When::Anytime, || {
        let slabs = chosen(|chosen| chosen.slabs[which].clone());
        let slabs = if slabs.is_empty() { vec![(4, 128), (1024, 64), (16384, 16)] } else { slabs };
        if !usize::try_from(len).is_ok_and(|room| room >= slabs.len()) {
            return invalid();
        }
        let (size, count): (Vec<usize>, Vec<usize>) = slabs.into_iter().unzip();
        // SAFETY: at most `len` elements each, by this function's contract.
        unsafe {
            sizes.fill(&size)?;
            counts.fill(&count)
        }
    })
}

macro_rules! slabs {
    ($($which:literal: $set:ident $get:ident;)*) => {
        $(
            /// # Safety
            ///
            /// Both arrays must be null or hold `len` elements.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $set(sizes: Array<usize>, counts: Array<usize>, len: i32) -> Error {
                // SAFETY: this function's contract.
                unsafe { set_slabs(stringify!($set), $which, sizes, counts, len) }
            }

            /// # Safety
            ///
            /// Both arrays must be null or valid for `len` writes.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $get(sizes: Out<usize>, counts: Out<usize>, len: i32) -> Error {
                // SAFETY: this function's contract.
                unsafe { get_slabs(stringify!($get), $which, sizes, counts, len) }
            }
        )*
    };
}

slabs! {
    0: cuFileSetParameterPosixPoolSlabArray cuFileGetParameterPosixPoolSlabArray;
    1: cuFileSetParameterGpuBounceBufferSlabArray cuFileGetParameterGpuBounceBufferSlabArray;
}
