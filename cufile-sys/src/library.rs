//! The library, opened once per process and never closed.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::fmt;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::elf;
use crate::error::{Attempt, LoadError, MissingSymbol, Reason};
use crate::functions::{Functions, Symbol, sym};
use crate::search::{LIBRARY_VARIABLE, Place, Surroundings};
use crate::stats::{
    CUfileStatsLevel1_t, CUfileStatsLevel2_t, CUfileStatsLevel2_v1_15_t, CUfileStatsLevel3_t,
    CUfileStatsLevel3_v1_15_t, StatsLayout,
};
use crate::types::CUfileError_t;
use crate::version::Version;

/// What every cuFile has: a library without these is something else.
const SURE: [&CStr; 3] = [c"cuFileDriverOpen", c"cuFileHandleRegister", c"cuFileRead"];

/// The one library of this process, once it is open.
static OPEN: Mutex<Option<&'static Library>> = Mutex::new(None);

/// cuFile, loaded into this process. Its functions are its fields, by [`Functions`]: `library.cuFileRead`.
///
/// It is never closed: cuFile runs threads of its own and hands out pointers to its own code.
pub struct Library {
    functions: Functions,
    path: PathBuf,
    version: OnceLock<Option<Version>>,
}

impl Library {
    /// Opens cuFile, or gives the one that is open.
    ///
    /// If the environment variable `GPUFEED_LIBCUFILE` names a file or a folder, only that is tried. Else the
    /// first that is cuFile is taken of:
    ///
    /// 1. `libcufile.so.0` and `libcufile.so`, as the dynamic loader finds them (loaded already,
    ///    `LD_LIBRARY_PATH`, the system's cache);
    /// 2. the folders of CUDA toolkits: `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda`, `/usr/local/cuda-*`,
    ///    newest first;
    /// 3. the folders of the system's libraries;
    /// 4. the folders of a conda environment, `CONDA_PREFIX`;
    /// 5. NVIDIA's Python packages (`nvidia/*/lib`) in `VIRTUAL_ENV`, `CONDA_PREFIX`, beside each Python on
    ///    `PATH`, and in the user's `.local`. No Python is run.
    ///
    /// A failure is not remembered: the next call looks again.
    ///
    /// # Errors
    /// Each place that was tried, and why it gave no cuFile.
    pub fn open() -> Result<&'static Self, LoadError> {
        let mut open = lock();
        if let Some(library) = *open {
            return Ok(library);
        }
        let surroundings = Surroundings::real();
        let (places, named_by) = match surroundings.named() {
            Some(places) => (places, Some(LIBRARY_VARIABLE)),
            None => (surroundings.usual(), None),
        };
        let mut attempts = Vec::with_capacity(places.len());
        let mut tried = Vec::new();
        for place in places {
            let (place, outcome) = match place {
                Place::Missing(path) => (path, Err(Reason::Missing)),
                Place::Name(name) => (PathBuf::from(name), load(Path::new(name))),
                Place::File(path) => {
                    // Toolkits link their folders to each other: a file that failed is not tried by another
                    // name.
                    let real = path.canonicalize().unwrap_or_else(|_| path.clone());
                    if tried.contains(&real) {
                        continue;
                    }
                    tried.push(real);
                    let outcome = load_file(&path);
                    (path, outcome)
                }
            };
            match outcome {
                Ok(library) => return Ok(open.insert(library)),
                Err(reason) => attempts.push(Attempt { place, reason }),
            }
        }
        Err(LoadError { attempts, named_by })
    }

    /// Opens the cuFile of this file, or gives it if it is open. [`open`](Self::open) gives it from then on.
    ///
    /// # Errors The file is not there, is not cuFile, or another cuFile is open: two of them in one process
    /// would both believe that they own the driver.
    pub fn open_at(path: impl AsRef<Path>) -> Result<&'static Self, LoadError> {
        let path = std::path::absolute(path.as_ref()).unwrap_or_else(|_| path.as_ref().to_path_buf());
        let mut open = lock();
        let outcome = match *open {
            _ if !path.exists() => Err(Reason::Missing),
            Some(library) if same_file(&library.path, &path) => Ok(library),
            Some(library) => Err(Reason::OtherIsOpen(library.path.clone())),
            None => load_file(&path),
        };
        match outcome {
            Ok(library) => Ok(open.insert(library)),
            Err(reason) => Err(LoadError { attempts: vec![Attempt { place: path, reason }], named_by: None }),
        }
    }

    /// The file that the functions come from, as the dynamic loader names it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The library's version, asked for once. `None` before cuFile 1.8, or if the library does not tell.
    pub fn version(&self) -> Option<Version> {
        *self.version.get_or_init(|| {
            let ask = self.cuFileGetVersion?;
            let mut version: c_int = 0;
            // SAFETY: the function fills in the integer, which lives through the call. It needs no open
            // driver.
            let outcome = unsafe { ask(&mut version) };
            (outcome.err.is_success() && version > 0).then_some(Version(version))
        })
    }

    /// Gives a function, or the error that names it.
    ///
    /// ```no_run
    /// use cufile_sys::{Library, sym};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let library = Library::open()?;
    /// let use_count = library.require(sym::cuFileUseCount)?;
    /// // SAFETY: it takes nothing and only reads a counter.
    /// println!("the driver is open {} times", unsafe { use_count() });
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The library has no such function. The error says which version brought it.
    pub fn require<F>(&self, symbol: Symbol<F>) -> Result<F, MissingSymbol> {
        (symbol.pick)(&self.functions).ok_or_else(|| MissingSymbol {
            name: symbol.name,
            since: symbol.since,
            version: self.version(),
            path: self.path.clone(),
        })
    }

    /// Which layout of the statistics the library writes. `None` if it has no statistics.
    pub fn stats_layout(&self) -> Option<StatsLayout> {
        self.cuFileGetStatsL1?;
        // The counters of vectored I/O came with vectored I/O itself, which can be seen without asking for a
        // version.
        Some(if self.cuFileReadv.is_some() { StatsLayout::V1_19 } else { StatsLayout::V1_15 })
    }

    /// Fills in the statistics of level 1, in whichever layout the library writes them. Counters that its
    /// layout lacks become 0.
    ///
    /// # Errors
    /// The library is older than 1.15.
    ///
    /// # Safety
    /// As for every function of cuFile: see [calling functions](crate#calling-functions).
    pub unsafe fn stats_level1(
        &self,
        stats: &mut CUfileStatsLevel1_t,
    ) -> Result<CUfileError_t, MissingSymbol> {
        let fill = self.require(sym::cuFileGetStatsL1)?;
        *stats = CUfileStatsLevel1_t::default();
        // SAFETY: `stats` lives through the call, and has room for either layout: the older one is its
        // beginning.
        Ok(unsafe { fill(stats) })
    }

    /// Fills in the statistics of level 2, in whichever layout the library writes them. Counters that its
    /// layout lacks become 0.
    ///
    /// # Errors
    /// The library is older than 1.15.
    ///
    /// # Safety
    /// As for every function of cuFile: see [calling functions](crate#calling-functions).
    pub unsafe fn stats_level2(
        &self,
        stats: &mut CUfileStatsLevel2_t,
    ) -> Result<CUfileError_t, MissingSymbol> {
        let fill = self.require(sym::cuFileGetStatsL2)?;
        if self.stats_layout() == Some(StatsLayout::V1_19) {
            // SAFETY: `stats` lives through the call and has the layout that this library writes.
            return Ok(unsafe { fill(stats) });
        }
        let mut old = CUfileStatsLevel2_v1_15_t::default();
        // SAFETY: `old` lives through the call and has the layout that this library writes.
        let outcome = unsafe { fill((&raw mut old).cast()) };
        *stats = old.into();
        Ok(outcome)
    }

    /// Fills in the statistics of level 3, in whichever layout the library writes them. Counters that its
    /// layout lacks become 0.
    ///
    /// # Errors
    /// The library is older than 1.15.
    ///
    /// # Safety
    /// As for every function of cuFile: see [calling functions](crate#calling-functions).
    pub unsafe fn stats_level3(
        &self,
        stats: &mut CUfileStatsLevel3_t,
    ) -> Result<CUfileError_t, MissingSymbol> {
        let fill = self.require(sym::cuFileGetStatsL3)?;
        if self.stats_layout() == Some(StatsLayout::V1_19) {
            // SAFETY: `stats` lives through the call and has the layout that this library writes.
            return Ok(unsafe { fill(stats) });
        }
        let mut old = CUfileStatsLevel3_v1_15_t::default();
        // SAFETY: `old` lives through the call and has the layout that this library writes.
        let outcome = unsafe { fill((&raw mut old).cast()) };
        *stats = old.into();
        Ok(outcome)
    }
}

impl Deref for Library {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library")
            .field("path", &self.path)
            .field("version", &self.version.get().copied().flatten())
            .field("functions", &self.functions)
            .finish()
    }
}

fn lock() -> MutexGuard<'static, Option<&'static Library>> {
    // What it guards is one pointer, which a panic cannot leave half-written.
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn same_file(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Loads a file, after a look at it.
fn load_file(path: &Path) -> Result<&'static Library, Reason> {
    elf::check(path).map_err(Reason::NotLoadable)?;
    load(path)
}

/// Loads what the dynamic loader finds for a path or a bare name.
fn load(place: &Path) -> Result<&'static Library, Reason> {
    let name = CString::new(place.as_os_str().as_bytes())
        .map_err(|_| Reason::NotLoadable("a path with a zero byte in it".into()))?;
    // SAFETY: the name is a C string. Loading runs the library's initialisers, as linking to it would.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(refusal(place));
    }
    // A library that turns out not to be cuFile stays loaded too: closing one that does not expect it can
    // crash.
    let find = |name: &CStr| {
        // SAFETY: `handle` came from dlopen and is never closed, and the name is a C string.
        unsafe { libc::dlsym(handle, name.as_ptr()) }
    };
    let missing: Vec<_> =
        SURE.iter().filter(|name| find(name).is_null()).filter_map(|name| name.to_str().ok()).collect();
    if !missing.is_empty() {
        return Err(Reason::NotCufile(missing));
    }
    let path = file_of(find(SURE[0])).unwrap_or_else(|| place.to_path_buf());
    // SAFETY: the addresses are those that the library exports under these names, so they are cuFile's
    // functions, whose signatures have not changed from the first version of each on; it is never unloaded.
    let functions = unsafe { Functions::look_up(find) };
    Ok(Box::leak(Box::new(Library { functions, path, version: OnceLock::new() })))
}

/// The file that an address was loaded from.
fn file_of(address: *mut c_void) -> Option<PathBuf> {
    // SAFETY: the structure is pointers and integers, for which zero is a value.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr takes any address, and fills in a structure that lives through the call.
    let known = unsafe { libc::dladdr(address, &mut found) } != 0 && !found.dli_fname.is_null();
    known.then(|| {
        // SAFETY: on success the name is a C string that lives as long as the library, which is never
        // unloaded.
        let name = unsafe { CStr::from_ptr(found.dli_fname) };
        PathBuf::from(OsStr::from_bytes(name.to_bytes()))
    })
}

/// Why the last dlopen of this thread failed.
fn refusal(place: &Path) -> Reason {
    // SAFETY: dlerror gives null or a C string that stays valid until this thread's next call of the loader.
    let text = unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return Reason::NotLoadable("the dynamic loader refused it and did not say why".into());
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    };
    // The text begins with the name of the file that it is about: this one, or one that this one needs.
    match text.strip_prefix(&format!("{}: ", place.display())) {
        Some(rest) if rest.starts_with("cannot open shared object file: No such file") => Reason::Missing,
        Some(rest) => Reason::NotLoadable(rest.to_string()),
        None => Reason::NotLoadable(text),
    }
}
