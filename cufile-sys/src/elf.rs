//! A look at a shared library's header before it is loaded.
//!
//! The dynamic loader maps a file by what its header says. If the file is cut short behind the header, the
//! process dies of a bus error instead of getting an error, so that is looked for here.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// The machine's number in an ELF header.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
/// Bytes of an ELF header of 64 bits, and of an entry of its program header table.
const HEADER: usize = 64;
const ENTRY: usize = 56;
/// The type of a program header that is mapped.
const LOAD: u32 = 1;

/// Is this a whole 64-bit shared library for this machine?
///
/// # Errors
/// Why not, in words.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    let cannot = |error: io::Error| format!("cannot be read: {error}");
    // A named pipe that is opened without O_NONBLOCK would wait for a writer.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if !metadata.is_file() {
        return Err("not a regular file".into());
    }
    check_file(&file, metadata.len())
}

fn check_file(file: &File, length: u64) -> Result<(), String> {
    let mut header = [0; HEADER];
    let at = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => "not a shared library: it is cut short".to_string(),
        _ => format!("cannot be read: {error}"),
    };
    if length < 4 {
        return Err("not a shared library: it is too short".into());
    }
    let whole = HEADER.min(usize::try_from(length).unwrap_or(HEADER));
    file.read_exact_at(&mut header[..whole], 0).map_err(at)?;
    if header[..4] != *b"\x7fELF" {
        return Err("not a shared library".into());
    }
    if whole < HEADER {
        return Err("not a shared library: it is cut short".into());
    }
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    // Class 2 is 64 bits, data 1 is little-endian, type 3 a shared object.
    if header[4] != 2 || header[5] != 1 || half(18) != MACHINE {
        return Err("a library for another kind of machine".into());
    }
    if half(16) != 3 {
        return Err("not a shared library, but a program or an object file".into());
    }
    if usize::from(half(54)) != ENTRY {
        return Err("not a shared library: its header is malformed".into());
    }
    let table = u64_at(&header, 32);
    for number in 0..u64::from(half(56)) {
        let mut entry = [0; ENTRY];
        let place = table
            .checked_add(number * ENTRY as u64)
            .ok_or("not a shared library: its header is malformed")?;
        if place.checked_add(ENTRY as u64).is_none_or(|end| end > length) {
            return Err("not a shared library: it is cut short".into());
        }
        file.read_exact_at(&mut entry, place).map_err(at)?;
        let kind = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let (offset, size) = (u64_at(&entry, 8), u64_at(&entry, 32));
        if kind == LOAD && offset.checked_add(size).is_none_or(|end| end > length) {
            return Err("not a shared library: it is cut short".into());
        }
    }
    Ok(())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::tests::Folder;

    /// The C library, which is surely there and whole.
    fn libc_file() -> std::path::PathBuf {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.contains("/libc.so.6") || line.contains("/libc-2")).unwrap();
        line[line.find('/').unwrap()..].into()
    }

    #[test]
    fn a_whole_library_passes() {
        assert_eq!(check(&libc_file()), Ok(()));
    }

    #[test]
    fn what_is_no_library_is_refused_in_words() {
        let folder = Folder::new("elf");
        let file = folder.0.join("file");
        for (content, word) in [
            (&b""[..], "too short"),
            (b"\x7fE", "too short"),
            (b"# a text", "not a shared library"),
            (b"\x7fELF\x02\x01", "cut short"),
        ] {
            std::fs::write(&file, content).unwrap();
            let why = check(&file).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
        assert_eq!(check(&folder.0).unwrap_err(), "not a regular file");
        let pipe = folder.0.join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert_eq!(check(&pipe).unwrap_err(), "not a regular file");
    }

    #[test]
    fn a_library_that_is_cut_short_anywhere_before_its_last_segments_end_is_refused() {
        let whole = std::fs::read(libc_file()).unwrap();
        let folder = Folder::new("elf-cut");
        let file = folder.0.join("file");
        for kept in [HEADER, HEADER + ENTRY, 4096, whole.len() / 2] {
            std::fs::write(&file, &whole[..kept]).unwrap();
            assert!(check(&file).unwrap_err().contains("cut short"), "{kept}");
        }
    }

    #[test]
    fn a_library_for_another_machine_and_a_program_are_refused() {
        let mut bytes = std::fs::read(libc_file()).unwrap();
        let folder = Folder::new("elf-other");
        let file = folder.0.join("file");
        bytes[18] = 8;
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(check(&file).unwrap_err(), "a library for another kind of machine");
        bytes[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        bytes[16] = 2;
        std::fs::write(&file, &bytes).unwrap();
        assert!(check(&file).unwrap_err().contains("program"));
    }
}
