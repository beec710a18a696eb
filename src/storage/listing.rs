//! From what a user names (a folder, a file, a pattern) to a list of shards.

use std::ffi::{CString, OsStr, OsString};
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use super::opener::Opener;
use crate::{Error, ErrorKind, Result};

/// The shards that `path` names, in byte order of their names: the files of a folder (hidden ones and `except` left
/// out; folders inside it are not searched), one file, or what a pattern of the shell (`*`, `?`, `[...]`) matches.
/// Names need not be UTF-8. A path that exists is never taken for a pattern.
pub(crate) fn expand(opener: &Opener, path: &Path, except: &str) -> Result<Vec<PathBuf>> {
    match opener.metadata(path) {
        Ok(metadata) if metadata.is_dir() => files_of(opener, path, except),
        Ok(_) => Ok(vec![path.to_path_buf()]),
        Err(error) if error.kind() == NotFound && is_pattern(path.as_os_str()) => {
            let found = glob(opener, Path::new(""), path)?;
            if found.is_empty() {
                return Err(Error::new(ErrorKind::NotFound, "the pattern matches no file").at(path));
            }
            Ok(found)
        }
        Err(error)
            if error.kind() == NotFound && opener.link_metadata(path).is_ok_and(|it| it.is_symlink()) =>
        {
            Err(Error::new(ErrorKind::NotFound, "it is a symbolic link to nothing").at(path).caused_by(error))
        }
        Err(error) if error.kind() == NotFound => {
            Err(Error::new(ErrorKind::NotFound, "no such file or folder").at(path))
        }
        Err(error) => Err(opener.error(path, "cannot read its status", error)),
    }
}

/// The files of `folder` whose names match `pattern` of the shell, in byte order.
pub(crate) fn matching(opener: &Opener, folder: &Path, pattern: &str) -> Result<Vec<PathBuf>> {
    glob(opener, folder, Path::new(pattern))
}

fn files_of(opener: &Opener, folder: &Path, except: &str) -> Result<Vec<PathBuf>> {
    let names = opener.names(folder).map_err(|e| opener.error(folder, "cannot list the folder", e))?;
    let mut files: Vec<_> = names
        .into_iter()
        .filter(|name| !name.as_bytes().starts_with(b".") && name != OsStr::new(except))
        .map(|name| folder.join(name))
        .collect();
    if files.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "the folder holds no shard").at(folder));
    }
    sort(&mut files);
    Ok(files)
}

fn sort(paths: &mut [PathBuf]) {
    paths.sort_unstable_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
}

fn is_pattern(name: &OsStr) -> bool {
    name.as_bytes().iter().any(|b| b"*?[".contains(b))
}

/// What matches below `folder`, folder by folder. Not the C library's `glob`: that opens folders by their names, and
/// lets a pattern like `.?/x` match the folder above.
fn glob(opener: &Opener, folder: &Path, pattern: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![folder.to_path_buf()];
    let mut sure = false;
    for part in pattern.components() {
        match part {
            Component::Normal(part) if is_pattern(part) => {
                let part = CString::new(part.as_bytes()).map_err(|_| {
                    Error::argument(format!("{}: a path cannot hold a NUL byte", pattern.display()))
                })?;
                let mut matched = Vec::new();
                for folder in &found {
                    matched.extend(matches_in(opener, folder, &part)?);
                }
                (found, sure) = (matched, true);
            }
            Component::Normal(part) => {
                let name = unescaped(part);
                // Only the user can mean these, and then writes them as they are.
                if name == "." || name == ".." {
                    return Ok(Vec::new());
                }
                found.iter_mut().for_each(|path| path.push(&name));
                sure = false;
            }
            part => found.iter_mut().for_each(|path| path.push(part)),
        }
    }
    if !sure {
        let mut there = Vec::new();
        for path in found {
            match opener.link_metadata(&path) {
                Ok(_) => there.push(path),
                Err(error) if matches!(error.kind(), NotFound | NotADirectory) => {}
                Err(error) => return Err(opener.error(&path, "cannot read its status", error)),
            }
        }
        found = there;
    }
    sort(&mut found);
    Ok(found)
}

/// The paths in `folder` whose names match. What is no folder has none.
fn matches_in(opener: &Opener, folder: &Path, pattern: &CString) -> Result<Vec<PathBuf>> {
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let names = match opener.names(here) {
        Ok(names) => names,
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(Vec::new()),
        Err(error) => return Err(opener.error(folder, "cannot read a folder of the pattern", error)),
    };
    let matches = |name: &OsStr| {
        // A directory entry has no NUL byte.
        CString::new(name.as_bytes()).is_ok_and(|name| {
            // SAFETY: both are C strings, which live through the call.
            unsafe { libc::fnmatch(pattern.as_ptr(), name.as_ptr(), libc::FNM_PERIOD) == 0 }
        })
    };
    Ok(names.into_iter().filter(|name| matches(name)).map(|name| folder.join(name)).collect())
}

/// A part of a pattern with nothing to match in it, as the name that it means: a backslash stands for what follows it.
fn unescaped(part: &OsStr) -> OsString {
    let mut name = Vec::new();
    let mut bytes = part.as_bytes().iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => name.extend(bytes.next().or(Some(&byte))),
            _ => name.push(byte),
        }
    }
    OsString::from_vec(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Visits;
    use std::fs::{File, create_dir, create_dir_all};
    use std::os::unix::fs::symlink;

    fn opener() -> Opener {
        Opener::default()
    }

    fn names(paths: &[PathBuf]) -> Vec<&[u8]> {
        paths.iter().map(|p| p.file_name().unwrap().as_bytes()).collect()
    }

    #[test]
    fn shards_come_in_byte_order_whatever_their_names_are() {
        let dir = tempfile::tempdir().unwrap();
        for name in [&b"s10.bin"[..], b"s2.bin", b"S3.bin", b"\xff\xfe.bin", b".hidden", b"dataset.json"] {
            File::create(dir.path().join(OsStr::from_bytes(name))).unwrap();
        }
        let all = expand(&opener(), dir.path(), "dataset.json").unwrap();
        assert_eq!(names(&all), [&b"S3.bin"[..], b"s10.bin", b"s2.bin", b"\xff\xfe.bin"]);
        let some = expand(&opener(), &dir.path().join("[sS]*.bin"), "").unwrap();
        assert_eq!(names(&some), [&b"S3.bin"[..], b"s10.bin", b"s2.bin"]);
        assert_eq!(names(&matching(&opener(), dir.path(), "s?.bin").unwrap()), [&b"s2.bin"[..]]);
    }

    #[test]
    fn a_folder_whose_name_looks_like_a_pattern_is_taken_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("run[1]*");
        create_dir(&odd).unwrap();
        File::create(odd.join("a.bin")).unwrap();
        assert_eq!(names(&expand(&opener(), &odd, "").unwrap()), [b"a.bin"]);
        assert_eq!(names(&matching(&opener(), &odd, "*.bin").unwrap()), [b"a.bin"]);
    }

    #[test]
    fn what_is_not_there_is_told_in_words() {
        let dir = tempfile::tempdir().unwrap();
        symlink(dir.path().join("nothing"), dir.path().join("dangling")).unwrap();
        symlink(dir.path().join("loop"), dir.path().join("loop")).unwrap();
        for (name, words) in [
            ("nope", "no such file or folder"),
            ("*.nope", "matches no file"),
            ("dangling", "symbolic link to nothing"),
            ("loop", "cannot read its status"),
        ] {
            let error = expand(&opener(), &dir.path().join(name), "").unwrap_err();
            assert!(error.to_string().contains(words) && error.to_string().contains(name), "{error}");
        }
        std::fs::remove_file(dir.path().join("dangling")).unwrap();
        std::fs::remove_file(dir.path().join("loop")).unwrap();
        assert!(expand(&opener(), dir.path(), "").unwrap_err().to_string().contains("holds no shard"));
    }

    /// Folders, files, hidden ones and links, and every way to lead a pattern astray.
    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for folder in ["in/a", "in/b", "in/[d]"] {
            create_dir_all(path(folder)).unwrap();
            File::create(path(folder).join("x.bin")).unwrap();
        }
        for file in
            ["x.bin", "in/x.bin", "in/y.bin", "in/.hidden.bin", "in/star*.bin", "in/back\\slash", "in/-"]
        {
            File::create(path(file)).unwrap();
        }
        create_dir(path("in/.c")).unwrap();
        symlink("b", path("in/to-b")).unwrap();
        symlink("nothing", path("in/to-nothing.bin")).unwrap();
        dir
    }

    #[test]
    fn a_pattern_matches_as_it_does_in_a_shell() {
        let dir = tree();
        let inside = dir.path().join("in");
        for (pattern, expected) in [
            ("*.bin", &["star*.bin", "to-nothing.bin", "x.bin", "y.bin"][..]),
            ("?.bin", &["x.bin", "y.bin"]),
            ("[!x].bin", &["y.bin"]),
            ("[x-y].bin", &["x.bin", "y.bin"]),
            (".*", &[".c", ".hidden.bin"]),
            (".h*.bin", &[".hidden.bin"]),
            ("*/x.bin", &["[d]/x.bin", "a/x.bin", "b/x.bin", "to-b/x.bin"]),
            ("?/*.bin", &["a/x.bin", "b/x.bin"]),
            ("./a/*", &["a/x.bin"]),
            ("a/x.bin", &["a/x.bin"]),
            ("x.bin/*", &[]),
            ("*/y.bin", &[]),
            ("nothing/*.bin", &[]),
            ("to-nothing.bin/*", &[]),
            ("to-noth*.bin", &["to-nothing.bin"]),
            (r"star\*.bin", &["star*.bin"]),
            (r"\[d]/x.bin", &["[d]/x.bin"]),
            (r"\[d]/*.bin", &["[d]/x.bin"]),
            (r"\x.bin", &["x.bin"]),
            (r"back\\slash", &["back\\slash"]),
            (r"back\\*", &["back\\slash"]),
        ] {
            let found = matching(&opener(), &inside, pattern).unwrap();
            let found: Vec<_> = found.iter().map(|path| path.strip_prefix(&inside).unwrap()).collect();
            assert_eq!(found, expected.iter().map(Path::new).collect::<Vec<_>>(), "{pattern}");
            let root = Opener::below(Some(dir.path()), Visits::default()).unwrap();
            assert_eq!(matching(&root, &inside, pattern).unwrap().len(), expected.len(), "{pattern}");
        }
    }

    #[test]
    fn no_pattern_matches_the_folder_above() {
        let dir = tree();
        for pattern in
            [".?/x.bin", ".*/x.bin", ".[.]/x.bin", r"\.\./x.bin", r"\../x*", "..?/x.bin", "a/.?/y.bin"]
        {
            let found = matching(&opener(), &dir.path().join("in"), pattern).unwrap();
            assert!(found.is_empty(), "{pattern}: {found:?}");
        }
        // A user may say it in so many words.
        let found = expand(&opener(), &dir.path().join("in/../in/a/../?.bin"), "").unwrap();
        assert_eq!(names(&found), [b"x.bin", b"y.bin"]);
    }

    #[test]
    fn a_pattern_with_no_folder_is_about_the_current_one() {
        let found = expand(&opener(), Path::new("Cargo.tom?"), "").unwrap();
        assert_eq!(found, [Path::new("Cargo.toml")]);
        let root = Opener::below(Some(Path::new(".")), Visits::default()).unwrap();
        assert_eq!(expand(&root, Path::new("./src/lib.r?"), "").unwrap(), [Path::new("./src/lib.rs")]);
    }
}
