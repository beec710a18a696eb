//! NVIDIA's own cuFile with the real udev and the real list of modules, over the emulated driver.
//!
//! Its driver takes seconds to open where the processor is emulated too, so it is opened once, in this process.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use gpufeed::cufile::Driver;
use gpufeed::{Backend, Dataset, Device, Dtype, LastBatch, Loader, Report, Shuffle, Way};
use serde_json::Value;

use crate::data::{Data, RECORD, ways};
use crate::guest::{Mounted, PROGRAMS, drive, forget_caches};

/// Keeps the driver open between loaders.
fn driver() {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| Driver::open(Device::Cuda(0)).unwrap());
}

/// Reads all of the data by cuFile onto an emulated GPU, in order and shuffled, and compares every byte.
#[track_caller]
fn read(data: &Data) -> Vec<Report> {
    driver();
    let shards = data.shards().to_vec();
    let dataset = Dataset::builder().records("data", shards, Dtype::U8, &[RECORD as u64]).build().unwrap();
    let dataset = Arc::new(dataset);
    let read = |shuffle| {
        forget_caches();
        let mut loader: Loader = Loader::builder(Arc::clone(&dataset))
            .batch_size(64)
            .last_batch(LastBatch::Short)
            .shuffle(shuffle)
            .device(Device::Cuda(0))
            .backend(Backend::Gds)
            .prefetch(4)
            .queue_depth(4)
            .build()
            .unwrap();
        let (mut seen, mut bytes) = (0, Vec::new());
        for batch in loader.next_epoch().unwrap() {
            let batch = batch.unwrap();
            batch.column("data").unwrap().copy_to_host(&mut bytes).unwrap();
            for (record, &sample) in bytes.chunks(RECORD).zip(batch.samples()) {
                assert!(record == data.record(sample as usize), "other bytes in sample {sample}");
                seen += 1;
            }
        }
        assert_eq!(seen, data.samples());
        loader.report()
    };
    [Shuffle::None, Shuffle::Full].map(read).into()
}

/// cuFile takes the files, and reads them in its compatibility mode, since there is no nvidia-fs here.
#[track_caller]
pub(crate) fn takes(data: &Data) {
    for report in read(data) {
        assert_eq!(report.bytes_by_way.bytes(Way::CufileCompat), data.size(), "{report:?}");
    }
}

/// The versions of cuFile that are there.
fn libraries() -> Vec<PathBuf> {
    let named = |i| PathBuf::from(format!("{PROGRAMS}/cufile-{i}/libcufile.so.0"));
    let found: Vec<_> = (0..).map(named).take_while(|path| path.exists()).collect();
    assert!(!found.is_empty(), "no cuFile in {PROGRAMS}");
    found
}

/// Loads all of the data by one of them.
#[track_caller]
fn loads_by(library: &Path, data: &Data) -> Value {
    // 1.14 frees its first device memory twice, which the emulated driver reports.
    let settings = [
        ("GPUFEED_LIBCUFILE", library.to_str().unwrap()),
        ("CUDA_EMULATOR_OVERLOOK", "double-free@libcufile.so.0"),
    ];
    data.loads_in(&settings, &["--backend", "gds", "--device", "cuda:0"])
}

#[test]
fn every_version_reads_ext4_on_nvme() {
    let mounted = Mounted::fresh("mkfs.ext4 -q -F", &drive("n0"), "data=ordered");
    let data = Data::in_folder(mounted.join("data"));
    for library in libraries() {
        let json = loads_by(&library, &data);
        assert_eq!(ways(&json), [("cufile_compat", data.size())], "{}: {json}", library.display());
    }
}

#[test]
fn what_an_old_version_does_not_take_comes_all_the_same_and_a_note_says_why() {
    let mounted = Mounted::fresh("mkfs.btrfs -q -f", &drive("n0"), "defaults");
    let data = Data::in_folder(mounted.join("data"));
    let (old, new) = (loads_by(&libraries()[0], &data), loads_by(libraries().last().unwrap(), &data));
    assert_eq!(ways(&old), [("pread_direct", data.size())], "{old}");
    assert!(old["notes"].to_string().contains("5030"), "{old}");
    assert_eq!(ways(&new), [("cufile_compat", data.size())], "{new}");
}
