//! The devices that the files of a dataset are on, and whether they have queues that can be polled.

use std::path::{Path, PathBuf};

/// Devices by their `st_dev`, numbered in the order in which files name them.
///
/// What a file system gives as the device of its files counts: two partitions of a disk are two, as are two btrfs subvolumes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Drives {
    devices: Vec<u64>,
    /// For each file the number of its device.
    of: Vec<u32>,
    #[cfg(test)]
    pretend: bool,
}

impl Drives {
    /// The devices of files, of which `files` gives the `st_dev` of each.
    pub(crate) fn new(files: impl Iterator<Item = u64>) -> Drives {
        let mut numbers = std::collections::HashMap::new();
        let mut devices = Vec::new();
        let of = files
            .map(|device| {
                *numbers.entry(device).or_insert_with(|| {
                    devices.push(device);
                    devices.len() as u32 - 1
                })
            })
            .collect();
        Drives {
            devices,
            of,
            #[cfg(test)]
            pretend: false,
        }
    }

    /// As if all of them had polled queues.
    #[cfg(test)]
    pub(crate) fn pretend_polled(self) -> Drives {
        Drives { pretend: true, ..self }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.devices.len()
    }

    /// Each device, with the number of files on it.
    pub(crate) fn files(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<_> = self.devices.iter().map(|&device| (device, 0)).collect();
        self.of.iter().for_each(|&drive| all[drive as usize].1 += 1);
        all
    }

    /// The number of the device that a file is on.
    pub(crate) fn of(&self, file: u32) -> u32 {
        self.of[file as usize]
    }

    /// For each device, by its number, whether it has queues that can be polled; `Err` if none has: why the first has not.
    pub(crate) fn polled(&self) -> Result<Vec<bool>, String> {
        #[cfg(test)]
        if self.pretend {
            return Ok(vec![true; self.count()]);
        }
        let all: Vec<_> = self.devices.iter().map(|&device| polled_queues(&folder_of(device))).collect();
        match all.iter().all(|it| it.is_err()) {
            true => Err(all.into_iter().find_map(|it| it.err()).unwrap_or_else(|| "there is no file".into())),
            false => Ok(all.into_iter().map(|it| it.is_ok()).collect()),
        }
    }
}

/// `major:minor` of a device.
fn name_of(device: u64) -> String {
    format!("{}:{}", libc::major(device), libc::minor(device))
}

fn folder_of(device: u64) -> PathBuf {
    Path::new("/sys/dev/block").join(name_of(device))
}

/// Whether a block device, by its folder in sysfs, has queues that can be polled; the error says why not.
///
/// The kernel says so itself (`queue/io_poll`). For NVMe it is the module's parameter `poll_queues` that makes such queues; a
/// volume of device mapper has them if all of its disks do (Linux 5.14, dm.c `dm_table_supports_poll`).
fn polled_queues(folder: &Path) -> Result<(), String> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    if !folder.exists() {
        return Err(format!(
            "the file system has no block device of its own (there is none with the number {name})"
        ));
    }
    // A partition has its queue one folder up.
    let text = ["queue", "../queue"]
        .iter()
        .find_map(|it| std::fs::read_to_string(folder.join(it).join("io_poll")).ok());
    match text.as_deref().map(str::trim) {
        Some("1") => Ok(()),
        Some(_) => {
            let disk = std::fs::canonicalize(folder).unwrap_or_default();
            let parts: Vec<_> = disk.iter().map(|part| part.to_string_lossy()).collect();
            let hint = match parts.iter().any(|part| part.starts_with("nvme")) {
                true => "; for NVMe the module parameter nvme.poll_queues makes some",
                false => "",
            };
            Err(format!("the block device {name} has no polled queues (queue/io_poll is 0){hint}"))
        }
        None => Err(format!("this kernel does not say whether the block device {name} has polled queues")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn devices_are_numbered_as_files_name_them() {
        let drives = Drives::new([7, 7, 3, 7, 9, 3].into_iter());
        assert_eq!((drives.count(), &drives.devices[..]), (3, &[7, 3, 9][..]));
        assert_eq!((0..6).map(|file| drives.of(file)).collect::<Vec<_>>(), [0, 0, 1, 0, 2, 1]);
        assert_eq!(drives.files(), [(7, 3), (3, 2), (9, 1)]);
        assert_eq!(Drives::new([].into_iter()).count(), 0);
    }

    #[test]
    fn a_disk_or_a_partition_of_it_says_whether_it_has_polled_queues() {
        let sys = tempfile::tempdir().unwrap();
        let disk = |name: &str, polls: &str| {
            let folder = sys.path().join(name);
            fs::create_dir_all(folder.join("queue")).unwrap();
            fs::create_dir(folder.join("part1")).unwrap();
            fs::write(folder.join("queue/io_poll"), polls).unwrap();
            folder
        };
        let (with, without) = (disk("nvme0n1", "1\n"), disk("sda", "0\n"));
        assert_eq!((polled_queues(&with), polled_queues(&with.join("part1"))), (Ok(()), Ok(())));
        for folder in [&without, &without.join("part1")] {
            let why = polled_queues(folder).unwrap_err();
            assert!(why.contains("io_poll is 0") && !why.contains("nvme"), "{why}");
        }
        let why = polled_queues(&disk("nvme1n1", "0\n").join("part1")).unwrap_err();
        assert!(why.contains("part1") && why.contains("nvme.poll_queues"), "{why}");
        assert!(polled_queues(&sys.path().join("0:77")).unwrap_err().contains("no block device of its own"));
        fs::remove_file(without.join("queue/io_poll")).unwrap();
        assert!(polled_queues(&without).unwrap_err().contains("does not say"));
    }

    #[test]
    fn only_if_no_drive_can_be_polled_is_there_a_reason_why_not() {
        // Anonymous devices, as of tmpfs, have no entry.
        let none = Drives::new([libc::makedev(0, 12345), libc::makedev(0, 12346)].into_iter());
        let why = none.polled().unwrap_err();
        assert!(why.contains("0:12345"), "{why}");
        assert!(Drives::new([].into_iter()).polled().is_err());
    }
}
