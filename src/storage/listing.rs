//! From what a user names (a folder, a file, a pattern) to a list of shards.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::{Error, ErrorKind, Result};

/// The shards that `path` names, in byte order of their names: the files of a folder (hidden ones and `except` left
/// out; folders inside it are not searched), one file, or what a pattern of the shell (`*`, `?`, `[...]`) matches.
/// Names need not be UTF-8. A path that exists is never taken for a pattern.
pub(crate) fn expand(path: &Path, except: &str) -> Result<Vec<PathBuf>> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => files_of(path, except),
        Ok(_) => Ok(vec![path.to_path_buf()]),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && is_pattern(path) => {
            let found = glob(path)?;
            if found.is_empty() {
                return Err(Error::new(ErrorKind::NotFound, "the pattern matches no file").at(path));
            }
            Ok(found)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && path.is_symlink() => {
            Err(Error::new(ErrorKind::NotFound, "it is a symbolic link to nothing").at(path).caused_by(error))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::new(ErrorKind::NotFound, "no such file or folder").at(path))
        }
        Err(error) => Err(Error::io(path, "cannot read its status", error)),
    }
}

/// The files of `folder` whose names match `pattern` of the shell, in byte order.
pub(crate) fn matching(folder: &Path, pattern: &str) -> Result<Vec<PathBuf>> {
    let mut whole = escape(folder.as_os_str());
    whole.push("/");
    whole.push(pattern);
    glob(Path::new(&whole))
}

fn files_of(folder: &Path, except: &str) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io(folder, "cannot list the folder", e))?;
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| Error::io(folder, "cannot list the folder", e))?;
        let name = entry.file_name();
        if !name.as_bytes().starts_with(b".") && name != OsStr::new(except) {
            files.push(entry.path());
        }
    }
    if files.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "the folder holds no shard").at(folder));
    }
    files.sort_unstable_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    Ok(files)
}

fn is_pattern(path: &Path) -> bool {
    path.as_os_str().as_bytes().iter().any(|b| b"*?[".contains(b))
}

/// Backslashes before everything that a pattern would take for more than itself.
fn escape(text: &OsStr) -> OsString {
    let mut escaped = Vec::new();
    for &byte in text.as_bytes() {
        if b"*?[]\\".contains(&byte) {
            escaped.push(b'\\');
        }
        escaped.push(byte);
    }
    OsString::from_vec(escaped)
}

fn glob(pattern: &Path) -> Result<Vec<PathBuf>> {
    let text = CString::new(pattern.as_os_str().as_bytes())
        .map_err(|_| Error::argument(format!("{}: a path cannot hold a NUL byte", pattern.display())))?;
    // SAFETY: all zeros is a valid `glob_t` for a call without GLOB_DOOFFS or GLOB_APPEND.
    let mut found: libc::glob_t = unsafe { std::mem::zeroed() };
    // SAFETY: `text` is a C string, there is no error callback, and `found` lives through the call.
    let code = unsafe { libc::glob(text.as_ptr(), libc::GLOB_ERR | libc::GLOB_NOSORT, None, &mut found) };
    let mut paths = Vec::new();
    if code == 0 {
        for i in 0..found.gl_pathc {
            // SAFETY: on success gl_pathv holds gl_pathc C strings, which live until globfree.
            let name = unsafe { std::ffi::CStr::from_ptr(*found.gl_pathv.add(i)) };
            paths.push(PathBuf::from(OsStr::from_bytes(name.to_bytes())));
        }
    }
    let error = std::io::Error::last_os_error();
    // SAFETY: `found` was filled by glob (or is still zero), and nothing points into it any more.
    unsafe { libc::globfree(&mut found) };
    match code {
        0 | libc::GLOB_NOMATCH => {}
        libc::GLOB_NOSPACE => {
            return Err(Error::new(ErrorKind::OutOfMemory, "no memory to expand the pattern").at(pattern));
        }
        _ => return Err(Error::io(pattern, "cannot read a folder of the pattern", error)),
    }
    paths.sort_unstable_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, create_dir};

    fn names(paths: &[PathBuf]) -> Vec<&[u8]> {
        paths.iter().map(|p| p.file_name().unwrap().as_bytes()).collect()
    }

    #[test]
    fn shards_come_in_byte_order_whatever_their_names_are() {
        let dir = tempfile::tempdir().unwrap();
        for name in [&b"s10.bin"[..], b"s2.bin", b"S3.bin", b"\xff\xfe.bin", b".hidden", b"dataset.json"] {
            File::create(dir.path().join(OsStr::from_bytes(name))).unwrap();
        }
        let all = expand(dir.path(), "dataset.json").unwrap();
        assert_eq!(names(&all), [&b"S3.bin"[..], b"s10.bin", b"s2.bin", b"\xff\xfe.bin"]);
        let some = expand(&dir.path().join("[sS]*.bin"), "").unwrap();
        assert_eq!(names(&some), [&b"S3.bin"[..], b"s10.bin", b"s2.bin"]);
        assert_eq!(names(&matching(dir.path(), "s?.bin").unwrap()), [&b"s2.bin"[..]]);
    }

    #[test]
    fn a_folder_whose_name_looks_like_a_pattern_is_taken_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("run[1]*");
        create_dir(&odd).unwrap();
        File::create(odd.join("a.bin")).unwrap();
        assert_eq!(names(&expand(&odd, "").unwrap()), [b"a.bin"]);
        assert_eq!(names(&matching(&odd, "*.bin").unwrap()), [b"a.bin"]);
    }

    #[test]
    fn what_is_not_there_is_told_in_words() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(dir.path().join("nothing"), dir.path().join("dangling")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("loop"), dir.path().join("loop")).unwrap();
        for (name, words) in [
            ("nope", "no such file or folder"),
            ("*.nope", "matches no file"),
            ("dangling", "symbolic link to nothing"),
            ("loop", "cannot read its status"),
        ] {
            let error = expand(&dir.path().join(name), "").unwrap_err();
            assert!(error.to_string().contains(words) && error.to_string().contains(name), "{error}");
        }
        std::fs::remove_file(dir.path().join("dangling")).unwrap();
        std::fs::remove_file(dir.path().join("loop")).unwrap();
        assert!(expand(dir.path(), "").unwrap_err().to_string().contains("holds no shard"));
    }
}
