//! Hides functions, so that `dlsym` does not find them, as in a library that is older or that was built otherwise.
//!
//! When the library is loaded, the first letter of each hidden name is overwritten in the loaded image's table of
//! names: the loader's hash still leads to the symbol, and its comparison of the name then fails.

use std::ffi::c_void;

use crate::functions::FUNCTIONS;
use crate::settings::{refuse, settings};

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// Also reads the settings, so that a program with a wrong one ends at once.
extern "C" fn at_load() {
    let settings = settings();
    let hidden: Vec<&str> = FUNCTIONS
        .iter()
        .filter(|function| {
            function.since > settings.version || settings.missing.iter().any(|name| name == function.name)
        })
        .map(|function| function.name)
        .collect();
    if hidden.is_empty() {
        return;
    }
    let Some(names) = Names::find() else { refuse("cannot find the library's own table of names") };
    for name in hidden {
        if !names.hide(name) {
            refuse(&format!("cannot hide {name}"));
        }
    }
}

/// One entry of the dynamic section.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dynamic {
    tag: i64,
    value: u64,
}

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_STRSZ: i64 = 10;

/// The loaded image's table of names, and how the pages that it lies in are protected.
#[derive(Debug)]
struct Names {
    address: usize,
    len: usize,
    protection: i32,
}

impl Names {
    fn find() -> Option<Names> {
        // SAFETY: an all-zero Dl_info is a valid value to be overwritten.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: dladdr answers for any address, and fills in a struct of our own.
        if unsafe { libc::dladdr(at_load as *const c_void, &mut info) } == 0 || info.dli_fbase.is_null() {
            return None;
        }
        let base = info.dli_fbase as usize;
        // SAFETY: a shared library's image begins with its ELF header, and stays mapped while its code runs.
        let header = unsafe { &*(base as *const libc::Elf64_Ehdr) };
        if header.e_ident[..4] != *b"\x7fELF" {
            return None;
        }
        // SAFETY: the header says where its table of segments lies, inside the first loaded segment.
        let segments = unsafe {
            std::slice::from_raw_parts(
                (base + header.e_phoff as usize) as *const libc::Elf64_Phdr,
                usize::from(header.e_phnum),
            )
        };
        let dynamic = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC)?;
        let mut entry = (base + dynamic.p_vaddr as usize) as *const Dynamic;
        let (mut address, mut len) = (0, 0);
        loop {
            // SAFETY: the dynamic section is mapped, and ends with an entry of type DT_NULL.
            let Dynamic { tag, value } = unsafe { *entry };
            match tag {
                DT_NULL => break,
                DT_STRTAB => address = value as usize,
                DT_STRSZ => len = value as usize,
                _ => {}
            }
            // SAFETY: not the last entry, and so there is a next one.
            entry = unsafe { entry.add(1) };
        }
        // Some loaders leave the file's own addresses in place.
        if address != 0 && address < base {
            address += base;
        }
        let offset = (address.checked_sub(base)?) as u64;
        let segment = segments.iter().find(|segment| {
            segment.p_type == libc::PT_LOAD
                && (segment.p_vaddr..segment.p_vaddr + segment.p_memsz).contains(&offset)
        })?;
        let allowed = |flag, protection| if segment.p_flags & flag != 0 { protection } else { 0 };
        let protection = allowed(libc::PF_R, libc::PROT_READ)
            | allowed(libc::PF_W, libc::PROT_WRITE)
            | allowed(libc::PF_X, libc::PROT_EXEC);
        Some(Names { address, len, protection })
    }

    /// Overwrites the name's first letter; false if there is no such name.
    fn hide(&self, name: &str) -> bool {
        // SAFETY: the table of names is mapped, and nobody writes it but this function, at load.
        let table = unsafe { std::slice::from_raw_parts(self.address as *const u8, self.len) };
        let wanted = [b"\0", name.as_bytes(), b"\0"].concat();
        let Some(place) = table.windows(wanted.len()).position(|window| window == wanted) else {
            return false;
        };
        let letter = self.address + place + 1;
        // SAFETY: sysconf has no preconditions.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let page = letter & !(size - 1);
        // SAFETY: a page of this library's own image. It is made writable for one store, and then as it was before;
        // the private mapping keeps the file unchanged.
        unsafe {
            if libc::mprotect(page as *mut c_void, size, self.protection | libc::PROT_WRITE) != 0 {
                return false;
            }
            (letter as *mut u8).write_volatile(b'-');
            libc::mprotect(page as *mut c_void, size, self.protection) == 0
        }
    }
}
