//! The block devices that a file system lies on, from the one that is mounted down to the disks, as sysfs tells.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A block device below a file system.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct BlockDevice {
    /// The kernel's name, without `/dev/`: `nvme0n1p1`, `dm-0`, `md127`.
    pub name: String,
    /// What it is.
    pub kind: BlockKind,
}

/// What a block device is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BlockKind {
    /// A part of the device that follows.
    Partition,
    /// An NVMe namespace.
    Nvme {
        /// How it is reached: `pcie`, or over a fabric by `tcp`, `rdma` or `fc`; empty where the kernel does not say.
        transport: String,
        /// Whether it is the one head of several possible paths (`nvme_core.multipath`).
        multipath: bool,
    },
    /// A disk of a virtual machine, by virtio.
    Virtio,
    /// A disk that speaks SCSI: SATA and SAS too.
    Scsi,
    /// A file as a disk.
    Loop,
    /// A device-mapper target, with what made it: `LVM`, `CRYPT`, `mpath`; empty where that is not known.
    Mapper(String),
    /// A software RAID, with its level: `raid0`, `raid1`, `linear`.
    Raid(String),
    /// None of these.
    Other,
}

impl fmt::Display for BlockDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            BlockKind::Other => f.write_str(&self.name),
            kind => write!(f, "{} ({kind})", self.name),
        }
    }
}

impl fmt::Display for BlockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockKind::Partition => f.write_str("partition"),
            BlockKind::Nvme { transport, multipath } => {
                let by = if transport.is_empty() { "" } else { " by " };
                write!(f, "NVMe{by}{transport}{}", if *multipath { ", multipath" } else { "" })
            }
            BlockKind::Virtio => f.write_str("virtio"),
            BlockKind::Scsi => f.write_str("SCSI or SATA"),
            BlockKind::Loop => f.write_str("loop"),
            BlockKind::Mapper(target) if target.is_empty() => f.write_str("device-mapper"),
            BlockKind::Mapper(target) => write!(f, "device-mapper, {target}"),
            BlockKind::Raid(level) => write!(f, "software RAID, {level}"),
            BlockKind::Other => f.write_str("block device"),
        }
    }
}

/// What a block device says of the sizes that suit it. 0 is not known, or no wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Limits {
    /// The most bytes that it takes in one command.
    pub(super) most: u64,
    /// The least bytes that it likes: the chunk of a RAID.
    pub(super) least: u64,
    /// The bytes that it likes best: the stripe of a RAID, over all its disks.
    pub(super) best: u64,
}

/// Where sysfs shows block devices. Another folder in tests.
#[derive(Debug, Clone)]
pub(super) struct Sysfs(PathBuf);

impl Default for Sysfs {
    fn default() -> Self {
        Sysfs("/sys".into())
    }
}

impl Sysfs {
    /// A folder that looks like it.
    #[cfg(test)]
    pub(super) fn at(folder: &Path) -> Sysfs {
        Sysfs(folder.into())
    }

    /// The folder of a device, by its number.
    pub(super) fn folder(&self, device: u64) -> Option<PathBuf> {
        let (major, minor) = (libc::major(device), libc::minor(device));
        fs::canonicalize(self.0.join(format!("dev/block/{major}:{minor}"))).ok()
    }

    /// The devices of a btrfs, one of which is `name`.
    pub(super) fn btrfs_members(&self, name: &str) -> Vec<PathBuf> {
        let systems = fs::read_dir(self.0.join("fs/btrfs")).into_iter().flatten().flatten();
        let mut members = systems.map(|system| system.path().join("devices"));
        let Some(of) = members.find(|devices| devices.join(name).exists()) else { return Vec::new() };
        let names: BTreeSet<PathBuf> =
            fs::read_dir(of).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        names.into_iter().filter_map(|path| fs::canonicalize(path).ok()).collect()
    }
}

/// The device with this folder, and all below it, each once, from the top down.
pub(super) fn chain(folder: &Path) -> Vec<BlockDevice> {
    let mut found = Vec::new();
    descend(folder, 8, &mut found);
    found
}

/// Nobody stacks disks deeper than `levels`, or in a ring; if somebody did, it ends.
fn descend(folder: &Path, levels: u32, found: &mut Vec<BlockDevice>) {
    let Some(levels) = levels.checked_sub(1) else { return };
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let device = BlockDevice { kind: kind(folder, &name), name };
    if found.contains(&device) {
        return;
    }
    let partition = device.kind == BlockKind::Partition;
    found.push(device);
    if partition {
        return folder.parent().into_iter().for_each(|disk| descend(disk, levels, found));
    }
    let below: BTreeSet<PathBuf> =
        fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten().map(|it| it.path()).collect();
    for slave in below.into_iter().filter_map(|path| fs::canonicalize(path).ok()) {
        descend(&slave, levels, found);
    }
}

fn kind(folder: &Path, name: &str) -> BlockKind {
    let has = |part: &str| folder.join(part).exists();
    if has("partition") {
        BlockKind::Partition
    } else if has("dm") {
        // `LVM-...`, `CRYPT-LUKS2-...`, `mpath-...`: the part before the first dash names who made it.
        let uuid = text(&folder.join("dm/uuid"));
        BlockKind::Mapper(uuid.split_once('-').map(|(made_by, _)| made_by.into()).unwrap_or_default())
    } else if has("md") {
        BlockKind::Raid(text(&folder.join("md/level")))
    } else if name.starts_with("nvme") {
        let multipath = folder.components().any(|part| part.as_os_str() == "nvme-subsystem");
        BlockKind::Nvme { transport: transport(&folder.join("device")), multipath }
    } else if has("loop") || name.starts_with("loop") {
        BlockKind::Loop
    } else if folder.components().any(|part| part.as_os_str().as_encoded_bytes().starts_with(b"virtio")) {
        BlockKind::Virtio
    } else if has("device/scsi_device") || has("device/scsi_level") {
        BlockKind::Scsi
    } else {
        BlockKind::Other
    }
}

/// How an NVMe namespace is reached. Its `device` is its controller, or with several paths the subsystem that has
/// the controllers.
fn transport(device: &Path) -> String {
    let own = text(&device.join("transport"));
    if !own.is_empty() {
        return own;
    }
    let entries = fs::read_dir(device).into_iter().flatten().flatten().map(|entry| entry.path());
    let all: BTreeSet<String> =
        entries.map(|path| text(&path.join("transport"))).filter(|it| !it.is_empty()).collect();
    all.into_iter().collect::<Vec<_>>().join(" and ")
}

/// What a device says of its sizes. A partition has its queue one folder up.
pub(super) fn limits(folder: &Path) -> Limits {
    let queue = [folder.join("queue"), folder.join("../queue")].into_iter().find(|queue| queue.exists());
    let Some(queue) = queue else { return Limits::default() };
    let number = |name: &str| text(&queue.join(name)).parse::<u64>().unwrap_or(0);
    Limits {
        most: number("max_sectors_kb").saturating_mul(1024),
        least: number("minimum_io_size"),
        best: number("optimal_io_size"),
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A sysfs with a partitioned NVMe drive, a RAID of two more, and LVM on it.
    fn machine() -> (tempfile::TempDir, Sysfs) {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        let write = |path: &str, content: &str| {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), content).unwrap();
        };
        fs::create_dir_all(at("dev/block")).unwrap();
        for (number, minor) in [(0, 0), (1, 2), (2, 3)] {
            let disk = format!("devices/pci0/nvme/nvme{number}/nvme{number}n1");
            write(&format!("devices/pci0/nvme/nvme{number}/transport"), "pcie\n");
            write(&format!("{disk}/queue/max_sectors_kb"), "512\n");
            symlink(at(&format!("devices/pci0/nvme/nvme{number}")), at(&format!("{disk}/device"))).unwrap();
            symlink(at(&disk), at(&format!("dev/block/259:{minor}"))).unwrap();
        }
        write("devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p1/partition", "1\n");
        symlink(at("devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p1"), at("dev/block/259:1")).unwrap();
        let stack = |number: &str, name: &str, below: &[&str]| {
            fs::create_dir_all(at(&format!("devices/virtual/block/{name}/slaves"))).unwrap();
            for path in below {
                let slave = Path::new(path).file_name().unwrap().to_str().unwrap();
                symlink(at(path), at(&format!("devices/virtual/block/{name}/slaves/{slave}"))).unwrap();
            }
            symlink(at(&format!("devices/virtual/block/{name}")), at(&format!("dev/block/{number}")))
                .unwrap();
        };
        let members = ["devices/pci0/nvme/nvme1/nvme1n1", "devices/pci0/nvme/nvme2/nvme2n1"];
        stack("9:0", "md0", &members);
        write("devices/virtual/block/md0/md/level", "raid0\n");
        write("devices/virtual/block/md0/queue/minimum_io_size", "524288\n");
        write("devices/virtual/block/md0/queue/optimal_io_size", "1048576\n");
        stack("253:0", "dm-0", &["devices/virtual/block/md0"]);
        write("devices/virtual/block/dm-0/dm/uuid", "LVM-WfXk0dQ\n");
        stack("253:1", "dm-1", &["devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p1"]);
        write("devices/virtual/block/dm-1/dm/uuid", "CRYPT-LUKS2-0b\n");
        for member in members {
            let name = Path::new(member).file_name().unwrap();
            fs::create_dir_all(at("fs/btrfs/12-34/devices")).unwrap();
            symlink(at(member), at("fs/btrfs/12-34/devices").join(name)).unwrap();
        }
        let sysfs = Sysfs::at(dir.path());
        (dir, sysfs)
    }

    fn names(sysfs: &Sysfs, major: u32, minor: u32) -> String {
        let chain = chain(&sysfs.folder(libc::makedev(major, minor)).unwrap());
        chain.iter().map(ToString::to_string).collect::<Vec<_>>().join(" > ")
    }

    #[test]
    fn a_stack_of_devices_is_told_from_the_top_down() {
        let (_dir, sysfs) = machine();
        assert_eq!(names(&sysfs, 259, 0), "nvme0n1 (NVMe by pcie)");
        assert_eq!(names(&sysfs, 259, 1), "nvme0n1p1 (partition) > nvme0n1 (NVMe by pcie)");
        let raid = "md0 (software RAID, raid0) > nvme1n1 (NVMe by pcie) > nvme2n1 (NVMe by pcie)";
        assert_eq!(names(&sysfs, 9, 0), raid);
        assert_eq!(names(&sysfs, 253, 0), format!("dm-0 (device-mapper, LVM) > {raid}"));
        let crypt = "dm-1 (device-mapper, CRYPT) > nvme0n1p1 (partition) > nvme0n1 (NVMe by pcie)";
        assert_eq!(names(&sysfs, 253, 1), crypt);
        assert_eq!(sysfs.folder(libc::makedev(0, 41)), None);
    }

    #[test]
    fn a_btrfs_lies_on_all_its_devices() {
        let (_dir, sysfs) = machine();
        let members = sysfs.btrfs_members("nvme2n1");
        let names: Vec<_> = members.iter().filter_map(|it| it.file_name()?.to_str()).collect();
        assert_eq!(names, ["nvme1n1", "nvme2n1"]);
        assert!(sysfs.btrfs_members("nvme0n1").is_empty());
    }

    #[test]
    fn sizes_come_from_the_device_or_for_a_partition_from_its_disk() {
        let (_dir, sysfs) = machine();
        let of = |major, minor| limits(&sysfs.folder(libc::makedev(major, minor)).unwrap());
        assert_eq!(of(259, 1), Limits { most: 512 << 10, ..Limits::default() });
        assert_eq!(of(9, 0), Limits { most: 0, least: 512 << 10, best: 1 << 20 });
        assert_eq!(of(253, 1), Limits::default());
    }

    #[test]
    fn several_paths_to_a_namespace_are_told_and_a_ring_of_devices_ends() {
        let dir = tempfile::tempdir().unwrap();
        let subsystem = dir.path().join("devices/virtual/nvme-subsystem/nvme-subsys0");
        for controller in ["nvme0", "nvme1"] {
            fs::create_dir_all(subsystem.join(controller)).unwrap();
            fs::write(subsystem.join(controller).join("transport"), "tcp\n").unwrap();
        }
        let head = subsystem.join("nvme0n1");
        fs::create_dir_all(head.join("slaves")).unwrap();
        symlink(&subsystem, head.join("device")).unwrap();
        symlink(&head, head.join("slaves/nvme0n1")).unwrap();
        let found = chain(&head);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "nvme0n1 (NVMe by tcp, multipath)");
    }
}
