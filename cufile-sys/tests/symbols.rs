//! The functions of this crate, compared with what NVIDIA's library exports.
//!
//! Each library is opened by a process of its own: a process holds one cuFile. `cuFileDriverOpen` is never
//! called.

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::{Folder, Found, run_test, wheels};
use cufile_sys::{FUNCTIONS, Library, Reason, StatsLayout, Version};

/// Exported, but in no header: pieces of the library's own GPU code, and what NVIDIA's other libraries use.
const LEFT_OUT: &[&str] = &[
    "cuFileCopyGpu",
    "cuFileCopyGpuPosixIORetry",
    "cuFileCopyGpuWrap",
    "cuFileCopyGpuWrapPosixIORetry",
    "cuFileGpuWaitValue32",
    "cuFileInlineGpu",
    "cuFileObjectDriverOpen",
    "cuFileObjectDriverOpenForDiagnostics",
    "cuFileObjectInitialize",
    "cuFileSparseGpu",
    "cuFileStreamHandleInline",
    "cuFileStreamHandleSparse",
    "cuFileStreamWaitValue32",
];

/// Names the library for the child.
const LIBRARY: &str = "GPUFEED_TEST_LIBRARY";

#[test]
fn each_library_has_exactly_the_functions_that_its_version_should_have() {
    let Some(libraries) = wheels("libcufile.so.0") else { return };
    let folder = Folder::new("symbols");
    for Found { version, file } in libraries {
        let (status, output) =
            run_test("child_opens_the_library", folder.path(), &[(LIBRARY, file.as_path())]);
        assert!(status.success(), "{}: {status}\n{output}", file.display());
        let line = |key: &str| {
            output
                .lines()
                .find_map(|line| line.split_once(key).map(|(_, value)| value.to_string()))
                .unwrap_or_else(|| panic!("{key} is not in what the child printed:\n{output}"))
        };
        let found: BTreeSet<_> = line("functions: ").split(' ').map(str::to_string).collect();
        let expected: BTreeSet<_> = FUNCTIONS
            .iter()
            .filter(|function| function.since <= version)
            .map(|function| function.name.to_string())
            .collect();
        assert_eq!(found, expected, "cuFile {version}");
        assert_eq!(line("version: "), version.0.to_string());
        assert_eq!(Path::new(&line("path: ")), file);
        let layout = match version {
            old if old < Version::new(1, 15) => None,
            old if old < Version::new(1, 19) => Some(StatsLayout::V1_15),
            _ => Some(StatsLayout::V1_19),
        };
        assert_eq!(line("layout: "), format!("{layout:?}"));
        eprintln!("cuFile {version}: {} functions", found.len());
    }
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_opens_the_library() {
    let Some(file) = std::env::var_os(LIBRARY) else { return };
    let library = Library::open_at(&file).unwrap_or_else(|error| panic!("{error}"));
    println!();
    println!("functions: {}", library.found().collect::<Vec<_>>().join(" "));
    println!("path: {}", library.path().display());
    println!("layout: {:?}", library.stats_layout());
    println!("version: {}", library.version().map_or(0, |version| version.0));
    assert!(library.driver_close().is_some());
    assert!(std::ptr::eq(Library::open().unwrap(), library), "open() gives the library that is open");
}

#[test]
fn each_exported_function_is_known_or_left_out_on_purpose() {
    let Some(libraries) = wheels("libcufile.so.0") else { return };
    let known: BTreeSet<_> = FUNCTIONS.iter().map(|function| function.name).collect();
    assert!(LEFT_OUT.iter().all(|name| !known.contains(name)));
    for Found { version, file } in libraries {
        let exported = exports(&std::fs::read(&file).unwrap());
        let exported: BTreeSet<_> = exported.iter().map(String::as_str).collect();
        assert!(exported.len() > 30, "cuFile {version}: only {exported:?}");
        let unknown: Vec<_> =
            exported.iter().filter(|name| !known.contains(*name) && !LEFT_OUT.contains(name)).collect();
        assert!(unknown.is_empty(), "cuFile {version} also has {unknown:?}");
    }
}

#[test]
fn a_library_that_is_cut_short_is_refused_and_not_loaded() {
    let Some(libraries) = wheels("libcufile.so.0") else { return };
    let folder = Folder::new("cut");
    let Found { file, .. } = libraries.last().unwrap();
    let whole = std::fs::read(file).unwrap();
    let cut = folder.path().join("libcufile.so.0");
    for part in [0, 100, whole.len() / 2] {
        std::fs::write(&cut, &whole[..part]).unwrap();
        let error = Library::open_at(&cut).unwrap_err();
        assert!(matches!(error.attempts()[0].reason, Reason::NotLoadable(_)), "{error}");
    }
}

/// The defined symbols of a 64-bit library that begin with `cuFile`, from its dynamic symbol table.
fn exports(elf: &[u8]) -> Vec<String> {
    let number = |at: usize, bytes: usize| {
        elf[at..at + bytes].iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte))
    };
    let (table, size, count) = (number(40, 8), number(58, 2), number(60, 2));
    let section = |index: usize| table + index * size;
    let symbols = (0..count).map(section).find(|at| number(at + 4, 4) == 11).expect("a dynamic symbol table");
    let strings = number(section(number(symbols + 40, 4)) + 24, 8);
    let (start, length) = (number(symbols + 24, 8), number(symbols + 32, 8));
    (start..start + length)
        .step_by(24)
        .filter(|symbol| number(symbol + 6, 2) != 0)
        .map(|symbol| {
            let name = &elf[strings + number(symbol, 4)..];
            let end = name.iter().position(|byte| *byte == 0).unwrap();
            String::from_utf8_lossy(&name[..end]).into_owned()
        })
        .filter(|name| name.starts_with("cuFile"))
        .collect()
}
