//! A dataset below a root: whatever its paths, links and manifest say, nothing outside of the root is opened.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use common::{backends, folder, noise, run, write};
use gpufeed::{Backend, Dataset, Dtype, Error, ErrorKind, Loader, OpenOptions, Result};
use tempfile::TempDir;

const RECORD: u64 = 1000;

/// Two tenants side by side. `mine` is the root: it has the shards `train/a.bin` and `train/b.bin` of 8 records each.
/// `other` has shards of the same names and size, and a manifest.
struct Tenants(TempDir);

impl Tenants {
    fn new() -> Tenants {
        let it = Tenants(folder());
        for (seed, tenant) in [(1, "mine"), (3, "other")] {
            fs::create_dir_all(it.path(tenant).join("train")).unwrap();
            write(&it.path(tenant).join("train/a.bin"), &noise(seed, 8000));
            write(&it.path(tenant).join("train/b.bin"), &noise(seed + 1, 8000));
        }
        write(&it.path("other/dataset.json"), MANIFEST.as_bytes());
        it
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn root(&self) -> PathBuf {
        self.path("mine")
    }

    fn open(&self, path: &str) -> Result<Dataset> {
        self.records().open(self.path(path))
    }

    fn records(&self) -> OpenOptions {
        OpenOptions::new().record_bytes(RECORD).root(self.root())
    }

    /// The error for `path`, by each way to name it as a dataset.
    #[track_caller]
    fn assert_refused(&self, path: &str, at: &str, words: &str) {
        let path = self.path(path);
        let builder = || Dataset::builder().root(self.root());
        for outcome in [
            self.records().open(&path),
            OpenOptions::new().root(self.root()).open(&path),
            builder().records("data", &*path, Dtype::U8, &[RECORD]).build(),
            builder().npy("data", &*path).build(),
        ] {
            self.assert_outside(&outcome.unwrap_err(), at, words);
        }
    }

    #[track_caller]
    fn assert_outside(&self, error: &Error, at: &str, words: &str) {
        let (text, at) = (error.to_string(), self.path(at));
        assert_eq!((error.kind(), error.path()), (ErrorKind::OutsideRoot, Some(&*at)), "{text}");
        let root = self.root();
        for words in [words, at.to_str().unwrap(), root.to_str().unwrap()] {
            assert!(text.contains(words), "no {words:?} in: {text}");
        }
        assert!(!text.contains('\n'), "{text}");
    }
}

const MANIFEST: &str = r#"{ "version": 1, "columns": [
    { "name": "x", "format": "records", "files": "train/*.bin", "record_bytes": 1000 } ] }"#;

const LINK: &str = "a symbolic link in it leads out of the root";

fn samples(dataset: Dataset, backend: Backend) -> Vec<u8> {
    let batch = dataset.len();
    run(&mut Loader::builder(dataset).backend(backend).batch_size(batch).build().unwrap(), 0).0
}

fn mine() -> Vec<u8> {
    [noise(1, 8000), noise(2, 8000)].concat()
}

#[test]
fn a_dataset_below_the_root_is_as_it_is_without_one() {
    let it = Tenants::new();
    let free = OpenOptions::new().record_bytes(RECORD).open(it.path("mine/train")).unwrap();
    for backend in backends() {
        for path in ["mine/train", "mine/./train/", "mine/train/*.bin", "mine/t*/?.bin"] {
            let dataset = it.open(path).unwrap();
            assert_eq!(dataset.fingerprint(), free.fingerprint());
            assert_eq!(dataset.alignment().unwrap(), free.alignment().unwrap());
            assert_eq!(dataset.residency().unwrap().pages, free.residency().unwrap().pages);
            assert_eq!(samples(dataset, backend), mine(), "{path}");
        }
        assert_eq!(samples(it.open("mine/train/b.bin").unwrap(), backend), noise(2, 8000));
    }
    // The dataset's folder may be the root itself, and so may that of all files.
    write(&it.path("mine/dataset.json"), MANIFEST.as_bytes());
    for root in [it.root(), "/".into()] {
        let dataset = OpenOptions::new().root(root).open(it.root()).unwrap();
        assert_eq!(samples(dataset, Backend::Auto), mine());
    }
}

#[test]
fn links_that_stay_below_the_root_are_followed() {
    let it = Tenants::new();
    fs::create_dir_all(it.path("mine/views/deep")).unwrap();
    symlink("../../train/a.bin", it.path("mine/views/deep/1.bin")).unwrap();
    symlink("3.bin", it.path("mine/views/deep/2.bin")).unwrap();
    symlink("../second/b.bin", it.path("mine/views/deep/3.bin")).unwrap();
    symlink("../train", it.path("mine/views/second")).unwrap();
    for backend in backends() {
        let dataset = it.open("mine/views/deep/[12].bin").unwrap();
        dataset.alignment().unwrap();
        assert_eq!(samples(dataset, backend), mine());
        for path in ["mine/views/second", "mine/views/second/*", "mine/*/second/*.bin"] {
            assert_eq!(samples(it.open(path).unwrap(), backend), mine());
        }
    }
}

#[test]
fn a_path_that_is_not_below_the_root_is_refused() {
    let it = Tenants::new();
    for path in
        ["other/train", "other/train/a.bin", "other/*/a.bin", "mine-too", ".", "nothing", "m*/train/a.bin"]
    {
        it.assert_refused(path, path, "not below the root");
    }
    let dots = ["mine/..", "mine/../other/train", "mine/train/../train/a.bin", "mine/../*/train/a.bin"];
    for path in dots {
        it.assert_refused(path, path, "has a `..`");
    }
    let listed = vec![it.path("mine/train/a.bin"), it.path("other/train/b.bin")];
    let builder = Dataset::builder().root(it.root()).records("x", listed, Dtype::U8, &[RECORD]);
    it.assert_outside(&builder.build().unwrap_err(), "other/train/b.bin", "not below the root");
}

#[test]
fn a_link_that_leaves_the_root_is_refused() {
    let it = Tenants::new();
    let link = |to: &Path, name: &str| symlink(to, it.path(name)).unwrap();
    link(Path::new("../other/train/a.bin"), "mine/file");
    link(&it.path("other/train/a.bin"), "mine/absolute-file");
    link(Path::new("../other/train"), "mine/folder");
    link(&it.path("other/train"), "mine/absolute-folder");
    link(Path::new("file"), "mine/chain");
    link(Path::new("../mine/train/a.bin"), "mine/out-and-back");
    link(&it.path("mine/train/a.bin"), "mine/absolute-inside");
    link(Path::new("../other/nothing"), "mine/to-nothing");
    for path in [
        "mine/file",
        "mine/absolute-file",
        "mine/folder",
        "mine/absolute-folder",
        "mine/folder/a.bin",
        "mine/absolute-folder/a.bin",
        "mine/folder/nothing",
        "mine/chain",
        "mine/out-and-back",
        "mine/absolute-inside",
        "mine/to-nothing",
    ] {
        it.assert_refused(path, path, LINK);
    }
    // As one shard among others, too.
    symlink("../../other/train/b.bin", it.path("mine/train/c.bin")).unwrap();
    for path in ["mine/train", "mine/train/*.bin"] {
        let error = it.open(path).unwrap_err();
        it.assert_outside(&error, "mine/train/c.bin", LINK);
    }
    // Without a root, a link leads wherever it leads.
    assert_eq!(OpenOptions::new().record_bytes(RECORD).open(it.path("mine/chain")).unwrap().len(), 8);
}

#[test]
fn a_pattern_does_not_list_what_is_outside_of_the_root() {
    let it = Tenants::new();
    symlink("../other", it.path("mine/out")).unwrap();
    for (path, at) in [
        ("mine/out/train/*.bin", "mine/out/train/*.bin"),
        ("mine/out/*/a.bin", "mine/out/*/a.bin"),
        ("mine/o*/train/?.bin", "mine/out/train"),
        ("mine/o*/*", "mine/out"),
        ("mine/*/a.bin", "mine/out/a.bin"),
        ("mine/*/nothing", "mine/out/nothing"),
    ] {
        it.assert_refused(path, at, LINK);
    }
    let error = it.open("mine/.?/other/train/*.bin").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "no name matches the folder above: {error}");
}

#[test]
fn a_manifest_leads_nowhere_out_of_the_root() {
    let it = Tenants::new();
    let open = |path: &str| OpenOptions::new().root(it.root()).open(it.path(path));
    symlink("../other", it.path("mine/out")).unwrap();
    for (files, at) in [("out/train/*.bin", "mine/out/train"), ("*/train/a.bin", "mine/out/train/a.bin")] {
        write(&it.path("mine/dataset.json"), MANIFEST.replace("train/*.bin", files).as_bytes());
        it.assert_outside(&open("mine").unwrap_err(), at, LINK);
    }
    for files in ["../other/train/*.bin", "/etc/passwd", "train/../../other/train/a.bin"] {
        write(&it.path("mine/dataset.json"), MANIFEST.replace("train/*.bin", files).as_bytes());
        let error = open("mine").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(error.to_string().contains("out of the dataset's folder"), "{error}");
    }
    // The manifest itself. It is not as if there were none.
    for to in [PathBuf::from("../other/dataset.json"), it.path("other/dataset.json")] {
        fs::remove_file(it.path("mine/dataset.json")).unwrap();
        symlink(to, it.path("mine/dataset.json")).unwrap();
        it.assert_outside(&open("mine").unwrap_err(), "mine/dataset.json", LINK);
        it.assert_outside(&it.open("mine").unwrap_err(), "mine/dataset.json", LINK);
    }
}

#[test]
fn no_pattern_of_a_manifest_leads_out_of_its_folder_root_or_not() {
    let it = Tenants::new();
    for files in [
        ".?/other/train/*.bin",
        ".[.]/other/train/*.bin",
        ".*/other/train/*.bin",
        r"\\.\\./other/train/*.bin",
    ] {
        write(&it.path("mine/dataset.json"), MANIFEST.replace("train/*.bin", files).as_bytes());
        for options in [OpenOptions::new(), OpenOptions::new().root(it.root())] {
            let error = options.open(it.root()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{files}: {error}");
        }
    }
}

/// Indexes the shards, has `change` change them, and gives what each backend then says of the second.
fn after(change: impl Fn(&Tenants)) {
    for backend in backends() {
        let it = Tenants::new();
        let dataset = it.open("mine/train").unwrap();
        let builder =
            Loader::builder(dataset.clone()).backend(backend).batch_size(8).prefetch(1).queue_depth(1);
        let mut loader = builder.build().unwrap();
        change(&it);
        for epoch in 0..2 {
            let error = loader.epoch(epoch).unwrap().find_map(Result::err).unwrap();
            it.assert_outside(&error, "mine/train/b.bin", LINK);
        }
        it.assert_outside(&dataset.alignment().unwrap_err(), "mine/train/b.bin", LINK);
        it.assert_outside(&dataset.residency().unwrap_err(), "mine/train/b.bin", LINK);
    }
}

#[test]
fn a_link_that_takes_a_shards_place_after_it_was_indexed_is_refused() {
    for absolute in [false, true] {
        after(|it| {
            let to = if absolute { it.path("other/train/b.bin") } else { "../../other/train/b.bin".into() };
            symlink(to, it.path("mine/new")).unwrap();
            fs::rename(it.path("mine/new"), it.path("mine/train/b.bin")).unwrap();
        });
    }
    // The very file that was indexed, but outside: its identity alone would not tell.
    after(|it| {
        fs::rename(it.path("mine/train/b.bin"), it.path("other/moved")).unwrap();
        symlink("../../other/moved", it.path("mine/train/b.bin")).unwrap();
    });
}

#[test]
fn a_link_that_takes_a_folders_place_after_it_was_indexed_is_refused() {
    let it = Tenants::new();
    let dataset = it.open("mine/train").unwrap();
    fs::rename(it.path("mine/train"), it.path("other/moved")).unwrap();
    symlink("../other/moved", it.path("mine/train")).unwrap();
    for backend in backends() {
        let mut loader = Loader::builder(dataset.clone()).backend(backend).batch_size(8).build().unwrap();
        let error = loader.epoch(0).unwrap().find_map(Result::err).unwrap();
        it.assert_outside(&error, "mine/train/a.bin", LINK);
    }
}

#[test]
fn a_shard_replaced_below_the_root_is_told_as_changed_as_ever() {
    let it = Tenants::new();
    let dataset = it.open("mine/train").unwrap();
    fs::remove_file(it.path("mine/train/b.bin")).unwrap();
    symlink("a.bin", it.path("mine/train/b.bin")).unwrap();
    let mut loader = Loader::builder(dataset).batch_size(8).build().unwrap();
    let error = loader.epoch(0).unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
}

#[test]
fn the_root_stays_the_folder_that_it_was_when_the_dataset_was_opened() {
    for backend in backends() {
        let it = Tenants::new();
        let dataset = it.open("mine/train").unwrap();
        fs::rename(it.root(), it.path("renamed")).unwrap();
        symlink("other", it.root()).unwrap();
        assert_eq!(samples(dataset, backend), mine());
    }
}

#[test]
fn the_root_may_be_reached_through_links() {
    let it = Tenants::new();
    symlink("mine", it.path("link")).unwrap();
    for (root, path) in [("link", "link/train"), ("link", "mine/train"), ("link/train", "link/train/")] {
        let options = OpenOptions::new().record_bytes(RECORD).root(it.path(root));
        let dataset = options.open(it.path(path)).unwrap();
        assert!(dataset.files()[0].path().starts_with(it.path(path)), "paths stay as the user named them");
        assert_eq!(samples(dataset, Backend::Auto), mine());
    }
    // Some other link is not looked into: what it leads to now is not what it leads to when a shard is read.
    it.assert_refused("link/train", "link/train", "not below the root");
}

#[test]
fn links_of_proc_are_refused() {
    let it = Tenants::new();
    let shard = it.path("mine/train/a.bin");
    let file = fs::File::open(&shard).unwrap();
    let fd = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let whole = shard.to_str().unwrap();
    for path in [fd.clone(), format!("/proc/self/root{whole}"), "/proc/self/cwd/Cargo.toml".into()] {
        for root in ["/", "/proc/", "/proc/self"] {
            let outcome = OpenOptions::new().record_bytes(1).root(root).open(&path);
            let error = outcome.unwrap_err();
            assert_eq!(
                (error.kind(), error.path()),
                (ErrorKind::OutsideRoot, Some(Path::new(&path))),
                "{error}"
            );
            assert!(
                error.to_string().contains("link of /proc") && error.to_string().contains(root),
                "{error}"
            );
        }
        let error = OpenOptions::new().record_bytes(1).root(it.root()).open(&path).unwrap_err();
        assert!(error.to_string().contains("not below the root"), "{error}");
    }
    // A link to such a link.
    symlink(&fd, it.path("mine/fd")).unwrap();
    it.assert_refused("mine/fd", "mine/fd", LINK);
}

#[test]
fn what_is_wrong_below_the_root_is_told_as_without_one() {
    let it = Tenants::new();
    symlink("nothing", it.path("mine/dangling")).unwrap();
    symlink("loop", it.path("mine/loop")).unwrap();
    fs::create_dir(it.path("mine/empty")).unwrap();
    let names = ["nothing", "*.nothing", "dangling", "loop", "empty", "train/a.bin/below", "train/nothing/x"];
    for path in names.iter().map(|name| it.root().join(name)).chain([PathBuf::new()]) {
        let free = OpenOptions::new().record_bytes(RECORD).open(&path).unwrap_err();
        let below = it.records().open(&path).unwrap_err();
        assert_eq!((below.kind(), below.path()), (free.kind(), free.path()));
        assert_eq!(below.to_string(), free.to_string());
        assert_eq!(
            format!("{:?}", std::error::Error::source(&below)),
            format!("{:?}", std::error::Error::source(&free))
        );
    }
    let nowhere = OpenOptions::new().root(it.path("nowhere")).open(it.path("mine/train")).unwrap_err();
    assert_eq!((nowhere.kind(), nowhere.path()), (ErrorKind::NotFound, Some(&*it.path("nowhere"))));
    let no_folder =
        OpenOptions::new().root(it.path("mine/train/a.bin")).open(it.path("mine/train")).unwrap_err();
    assert_eq!(no_folder.kind(), ErrorKind::InvalidArgument);
}

#[cfg(feature = "cli")]
mod command_line {
    use super::*;

    fn ran(folder: &Path, args: &[&str]) -> (i32, String, String) {
        common::command::told(common::command::gpufeed().args(args).current_dir(folder).output().unwrap())
    }

    #[test]
    fn the_command_line_opens_below_a_root_however_the_two_are_named() {
        let it = Tenants::new();
        let (root, train) = (it.root(), it.path("mine/train"));
        let (root, train) = (root.to_str().unwrap(), train.to_str().unwrap());
        let mut fingerprints = Vec::new();
        for (here, root, train) in [
            (".", "mine", "mine/train"),
            (".", root, "mine/train"),
            (".", "mine", train),
            (".", "./mine/", "./mine/./train"),
            ("other", "../mine", "../mine/train"),
            ("other/train", root, "../../mine/train"),
            ("mine", ".", "train"),
            ("mine", "..", "train"),
            ("mine/train", "..", "."),
            ("mine/train", root, "*.bin"),
        ] {
            for verb in ["inspect", "load"] {
                let args = [verb, train, "--root", root, "--record-bytes", "1000", "--json"];
                let args = [&args[..], if verb == "load" { &["--batch-size", "16"] } else { &[] }].concat();
                let (status, stdout, stderr) = ran(&it.path(here), &args);
                assert_eq!(status, 0, "{here} {root} {train}: {stderr}");
                let found: serde_json::Value = serde_json::from_str(&stdout).unwrap();
                assert_eq!(found["samples"], 16);
                fingerprints.extend(found.get("fingerprint").map(ToString::to_string));
            }
        }
        fingerprints.dedup();
        assert_eq!(fingerprints.len(), 1);
    }

    #[test]
    fn the_command_line_says_what_leads_out_of_the_root() {
        let it = Tenants::new();
        symlink("../other/train", it.path("mine/out")).unwrap();
        for verb in ["inspect", "load"] {
            for (path, words) in [
                ("other/train", "it is not below the root mine"),
                ("mine/../other/train", "it has a `..` below the root mine"),
                ("mine/out", "a symbolic link in it leads out of the root mine"),
                ("mine/out/a.bin", "a symbolic link in it leads out of the root mine"),
            ] {
                let args = [verb, path, "--root", "mine", "--record-bytes", "1000", "--json"];
                let (status, stdout, stderr) = ran(it.0.path(), &args);
                assert_eq!((status, &*stdout), (1, ""), "{stderr}");
                assert!(stderr.starts_with(&format!("error: {path}: {words}")), "{stderr}");
                assert_eq!(stderr.lines().count(), 1, "{stderr}");
            }
            let (status, _, stderr) = ran(it.0.path(), &[verb, "mine", "--root", "nowhere"]);
            assert_eq!(status, 1);
            assert!(stderr.starts_with("error: nowhere: cannot open the root"), "{stderr}");
        }
    }
}
