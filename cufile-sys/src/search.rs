//! Where to look for `libcufile`.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable that names the library's file, or its folder. If it is set, nothing else is
/// tried.
pub const LIBRARY_VARIABLE: &str = "GPUFEED_LIBCUFILE";

/// The library's names: that of a runtime package, then the one that a development package adds.
pub(crate) const NAMES: [&str; 2] = ["libcufile.so.0", "libcufile.so"];

/// Folders below `targets/` of a CUDA toolkit for this machine.
const TARGETS: &[&str] =
    if cfg!(target_arch = "aarch64") { &["sbsa-linux", "aarch64-linux"] } else { &["x86_64-linux"] };
/// Folders of a distribution's libraries.
const SYSTEM: &[&str] = if cfg!(target_arch = "aarch64") {
    &["usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib"]
} else {
    &["usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib"]
};

/// A place to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A bare name, for the dynamic loader to find.
    Name(&'static str),
    /// A file that is there.
    File(PathBuf),
    /// A file, or a pattern of files, that is not there.
    Missing(PathBuf),
}

/// What the search depends on, so that a test can make it up.
pub(crate) struct Surroundings<'a> {
    /// The root of the filesystem.
    pub(crate) root: &'a Path,
    /// Gives an environment variable.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
}

impl Surroundings<'static> {
    /// The real ones.
    pub(crate) fn real() -> Self {
        Self { root: Path::new("/"), variable: &|name| std::env::var_os(name) }
    }
}

impl Surroundings<'_> {
    /// The places to try, in order, if the environment names one: then there is no other.
    pub(crate) fn named(&self) -> Option<Vec<Place>> {
        let named = (self.variable)(LIBRARY_VARIABLE).filter(|value| !value.is_empty())?;
        let path = std::path::absolute(&named).unwrap_or_else(|_| named.into());
        if path.is_dir() {
            let mut places = Vec::new();
            self.folder(&path, &mut places);
            return Some(places);
        }
        Some(vec![if path.exists() { Place::File(path) } else { Place::Missing(path) }])
    }

    /// The places to try, in order, if the environment names none.
    pub(crate) fn usual(&self) -> Vec<Place> {
        let mut places: Vec<_> = NAMES.iter().map(|name| Place::Name(name)).collect();
        for toolkit in self.folders_of(&["CUDA_HOME", "CUDA_PATH"]) {
            self.toolkit(&toolkit, &mut places);
        }
        let local = self.root.join("usr/local");
        self.toolkit(&local.join("cuda"), &mut places);
        let numbered = children(&local, |name| name.starts_with("cuda-"));
        if numbered.is_empty() {
            places.push(Place::Missing(local.join("cuda-*")));
        }
        for toolkit in numbered {
            self.toolkit(&toolkit, &mut places);
        }
        for folder in SYSTEM {
            self.folder(&self.root.join(folder), &mut places);
        }
        for environment in self.folders_of(&["CONDA_PREFIX"]) {
            self.folder(&environment.join("lib"), &mut places);
            for target in TARGETS {
                self.folder(&environment.join("targets").join(target).join("lib"), &mut places);
            }
        }
        for prefix in self.python_prefixes() {
            self.python(&prefix, &mut places);
        }
        let mut seen = Vec::with_capacity(places.len());
        places.retain(|place| {
            !seen.contains(place) && {
                seen.push(place.clone());
                true
            }
        });
        places
    }

    /// The folders that hold a Python: the active environments, those of each Python on the path, the user's
    /// own.
    fn python_prefixes(&self) -> Vec<PathBuf> {
        let mut prefixes = self.folders_of(&["VIRTUAL_ENV", "CONDA_PREFIX"]);
        let path = (self.variable)("PATH").unwrap_or_default();
        for folder in std::env::split_paths(&path).filter(|folder| folder.is_absolute()) {
            let has_python = ["python3", "python"].iter().any(|name| folder.join(name).exists());
            if let Some(prefix) = folder.parent().filter(|_| has_python) {
                prefixes.push(prefix.to_path_buf());
            }
        }
        prefixes.extend(self.folders_of(&["HOME"]).into_iter().map(|home| home.join(".local")));
        let mut seen = Vec::with_capacity(prefixes.len());
        prefixes.retain(|prefix| {
            !seen.contains(prefix) && {
                seen.push(prefix.clone());
                true
            }
        });
        prefixes
    }

    /// The absolute folders that these variables name.
    fn folders_of(&self, variables: &[&str]) -> Vec<PathBuf> {
        let values = variables.iter().filter_map(|name| (self.variable)(name));
        values.map(PathBuf::from).filter(|folder| folder.is_absolute()).collect()
    }

    /// The places of a CUDA toolkit.
    fn toolkit(&self, toolkit: &Path, places: &mut Vec<Place>) {
        self.folder(&toolkit.join("lib64"), places);
        for target in TARGETS {
            self.folder(&toolkit.join("targets").join(target).join("lib"), places);
        }
    }

    /// The places of NVIDIA's Python packages: `nvidia/cufile/lib` for CUDA 12, `nvidia/cu13/lib` for 13.
    fn python(&self, prefix: &Path, places: &mut Vec<Place>) {
        let before = places.len();
        for lib in ["lib", "lib64"] {
            for python in children(&prefix.join(lib), |name| name.starts_with("python3")) {
                for packages in ["site-packages", "dist-packages"] {
                    for package in children(&python.join(packages).join("nvidia"), |_| true) {
                        places.extend(files_in(&package.join("lib")).map(Place::File));
                    }
                }
            }
        }
        if places.len() == before {
            places.push(Place::Missing(prefix.join("lib/python3*/site-packages/nvidia/*/lib")));
        }
    }

    /// The library's files in a folder, or that there are none.
    fn folder(&self, folder: &Path, places: &mut Vec<Place>) {
        let before = places.len();
        places.extend(files_in(folder).map(Place::File));
        if places.len() == before {
            places.push(Place::Missing(folder.join(NAMES[0])));
        }
    }
}

fn files_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    NAMES.iter().map(|name| folder.join(name)).filter(|file| file.exists())
}

/// What lies in a folder and has a name that is wanted; higher version numbers first, then by name.
fn children(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| wanted(name))
        .map(|name| (Reverse(numbers(&name)), name))
        .collect();
    names.sort();
    names.into_iter().map(|(_, name)| folder.join(name)).collect()
}

/// The numbers in a name, in order: 12 and 9 of `cuda-12.9`.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::HashMap;

    /// A folder that is removed at the end.
    pub(crate) struct Folder(pub(crate) PathBuf);

    impl Folder {
        pub(crate) fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("cufile-sys-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn file(&self, path: &str) -> PathBuf {
            let file = self.0.join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "").unwrap();
            file
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn search(root: &Path, variables: &[(&str, &Path)]) -> (Option<Vec<Place>>, Vec<Place>) {
        let variables: HashMap<_, _> =
            variables.iter().map(|(name, value)| (*name, value.as_os_str().to_owned())).collect();
        let variable = |name: &str| variables.get(name).cloned();
        let surroundings = Surroundings { root, variable: &variable };
        (surroundings.named(), surroundings.usual())
    }

    fn files(places: &[Place]) -> Vec<&Path> {
        places
            .iter()
            .filter_map(|place| if let Place::File(file) = place { Some(file.as_path()) } else { None })
            .collect()
    }

    #[test]
    fn the_loaders_names_come_first_and_every_empty_place_is_told() {
        let root = Folder::new("empty");
        let (named, places) = search(&root.0, &[]);
        assert_eq!(named, None);
        assert_eq!(places[..2], [Place::Name("libcufile.so.0"), Place::Name("libcufile.so")]);
        assert!(places[2..].iter().all(|place| matches!(place, Place::Missing(_))));
        for part in ["usr/local/cuda/lib64/libcufile.so.0", "usr/local/cuda-*", "usr/lib64/libcufile.so.0"] {
            assert!(places.contains(&Place::Missing(root.0.join(part))), "{part}");
        }
    }

    #[test]
    fn the_search_goes_from_toolkits_to_the_system_to_python() {
        let root = Folder::new("order");
        let target = TARGETS[0];
        let wanted = [
            root.file("opt/mine/lib64/libcufile.so"),
            root.file("usr/local/cuda/lib64/libcufile.so.0"),
            root.file("usr/local/cuda/lib64/libcufile.so"),
            root.file(&format!("usr/local/cuda-13.0/targets/{target}/lib/libcufile.so.0")),
            root.file("usr/local/cuda-12.10/lib64/libcufile.so.0"),
            root.file("usr/local/cuda-12.9/lib64/libcufile.so.0"),
            root.file(&format!("{}/libcufile.so.0", SYSTEM[0])),
            root.file("conda/lib/libcufile.so.0"),
            root.file("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcufile.so.0"),
            root.file("venv/lib/python3.12/site-packages/nvidia/cufile/lib/libcufile.so.0"),
            root.file("venv/lib/python3.9/site-packages/nvidia/cufile/lib/libcufile.so.0"),
            root.file("conda/lib/python3.11/site-packages/nvidia/cufile/lib/libcufile.so.0"),
            root.file("py/lib/python3/dist-packages/nvidia/cu13/lib/libcufile.so.0"),
            root.file("home/.local/lib/python3.11/site-packages/nvidia/cu13/lib/libcufile.so.0"),
        ];
        root.file("py/bin/python3");
        root.file("nopython/lib/python3/site-packages/nvidia/cu13/lib/libcufile.so.0");
        root.file("usr/local/cuda-13.0/lib64/libcufile_rdma.so.1");
        let path =
            std::env::join_paths([root.0.join("nopython/bin"), "relative".into(), root.0.join("py/bin")]);
        let (_, places) = search(
            &root.0,
            &[
                ("CUDA_HOME", &root.0.join("opt/mine")),
                ("CUDA_PATH", Path::new("relative/is/not/trusted")),
                ("VIRTUAL_ENV", &root.0.join("venv")),
                ("CONDA_PREFIX", &root.0.join("conda")),
                ("PATH", Path::new(&path.unwrap())),
                ("HOME", &root.0.join("home")),
            ],
        );
        assert_eq!(files(&places), wanted.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    }

    #[test]
    fn a_place_is_tried_once() {
        let root = Folder::new("once");
        let file = root.file("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcufile.so.0");
        root.file("venv/bin/python3");
        let (venv, bin) = (root.0.join("venv"), root.0.join("venv/bin"));
        let (_, places) = search(&root.0, &[("VIRTUAL_ENV", &venv), ("CONDA_PREFIX", &venv), ("PATH", &bin)]);
        assert_eq!(files(&places), [file.as_path()]);
    }

    #[test]
    fn a_named_file_or_folder_is_the_only_place() {
        let root = Folder::new("named");
        let file = root.file("a/libcufile.so.0");
        let odd = root.file("a/another.so");
        let absent = root.0.join("absent.so");
        let name = |path: &Path| search(&root.0, &[(LIBRARY_VARIABLE, path)]).0;
        assert_eq!(name(&odd), Some(vec![Place::File(odd.clone())]));
        assert_eq!(name(&root.0.join("a")), Some(vec![Place::File(file)]));
        assert_eq!(name(&root.0), Some(vec![Place::Missing(root.0.join("libcufile.so.0"))]));
        assert_eq!(name(&absent), Some(vec![Place::Missing(absent.clone())]));
        assert_eq!(name(Path::new("")), None);
        assert!(
            matches!(&name(Path::new("nowhere.so")).unwrap()[..], [Place::Missing(path)] if path.is_absolute())
        );
    }
}
