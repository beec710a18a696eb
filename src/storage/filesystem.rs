//! The file systems that the files of a dataset lie on.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::block::{BlockDevice, Limits, Sysfs, chain, limits};
use super::gds_rules::{GdsVerdict, judge};
use super::mount::{Mount, Mounts, device_of_node, option};
use super::opener::Opener;

/// A file system that files of a dataset lie on, as the kernel tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileSystem {
    /// The kind, by the kernel's name for it: `ext4`, `xfs`, `nfs4`, `overlay`, `fuse.sshfs`.
    pub kind: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// What is mounted: `/dev/nvme0n1p1`, `server:/export`, or any word where there is no such thing.
    pub source: String,
    /// How the server is reached: `tcp`, `rdma` or another; `None` for one that is local, or where the kernel does not
    /// tell.
    pub transport: Option<String>,
    /// Its options, as the kernel writes them: those of the mount, and then its own.
    pub options: String,
    /// Whether it can only be read.
    pub read_only: bool,
    /// The block devices below it, from the one that is mounted down to the disks. Empty where there are none, and where
    /// that is not known, as for overlayfs.
    pub devices: Vec<BlockDevice>,
    /// Whether GPUDirect Storage could work on it.
    pub gds: GdsVerdict,
    /// How many files of the dataset lie on it.
    pub files: u64,
    /// What the topmost device says of sizes.
    pub(super) limits: Limits,
}

impl FileSystem {
    fn new(mount: &Mount, sysfs: &Sysfs) -> FileSystem {
        let (devices, limits) = devices(mount, sysfs);
        let transport = transport(&mount.kind, &mount.source, &mount.options);
        let mut it = FileSystem {
            kind: mount.kind.clone(),
            mount_point: mount.point.clone(),
            source: mount.source.clone(),
            transport,
            options: mount.options.clone(),
            read_only: mount.is_read_only(),
            devices,
            gds: GdsVerdict::default(),
            files: 0,
            limits,
        };
        it.gds = judge(&it);
        it
    }

    /// The value of an option; `""` for one without a value.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        option(&self.options, name)
    }

    /// Whether it is NFS, of any version.
    pub(crate) fn is_nfs(&self) -> bool {
        matches!(self.kind.as_str(), "nfs" | "nfs4")
    }

    /// Kind, mount point and source, which is what tells it from others.
    pub(crate) fn name(&self) -> String {
        name(&self.kind, &self.mount_point, &self.source)
    }
}

/// `nfs4 at /mnt/data from server:/export, by rdma, vers=4.2 rsize=1048576 nconnect=4 hard`.
impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// What is worth a place in a line, of each kind that has it.
        const TELLING: [&str; 10] =
            ["vers", "rsize", "nconnect", "hard", "soft", "softerr", "timeo", "retrans", "data", "ro"];
        f.write_str(&self.name())?;
        if let Some(transport) = &self.transport {
            write!(f, ", by {transport}")?;
        }
        let told = TELLING.iter().filter_map(|name| match self.option(name)? {
            "" => Some(name.to_string()),
            value => Some(format!("{name}={value}")),
        });
        let told: Vec<_> = told.collect();
        if !told.is_empty() {
            write!(f, ", {}", told.join(" "))?;
        }
        let devices: Vec<_> = self.devices.iter().map(ToString::to_string).collect();
        if devices.is_empty() { Ok(()) } else { write!(f, ", on {}", devices.join(", ")) }
    }
}

/// `ext4 at /data from /dev/vdb`; the source is left out where it is but the name of the kind again.
pub(super) fn name(kind: &str, point: &Path, source: &str) -> String {
    let from = if source == kind || source == "none" { String::new() } else { format!(" from {source}") };
    format!("{kind} at {}{from}", point.display())
}

/// The file systems of all `files`, which come as path and `st_dev`, in the order of the first file on each.
///
/// Asks the kernel once for each file system, however many files there are. Where `/proc` is not mounted, there are none.
pub(crate) fn file_systems<'a>(
    opener: &Opener,
    files: impl Iterator<Item = (&'a Path, u64)>,
) -> Vec<FileSystem> {
    let mut devices: Vec<(u64, &Path, u64)> = Vec::new();
    let mut places: HashMap<u64, usize> = HashMap::new();
    for (path, device) in files {
        let place = *places.entry(device).or_insert_with(|| {
            devices.push((device, path, 0));
            devices.len() - 1
        });
        devices[place].2 += 1;
    }
    let (mounts, sysfs) = (Mounts::now(), Sysfs::default());
    let mut found: Vec<(u64, FileSystem)> = Vec::new();
    for (device, first, files) in devices {
        let Some(mount) = mounts.of(first, device, || opener.open_as_place(first)) else { continue };
        // Subvolumes of one btrfs have devices of their own.
        match found.iter_mut().find(|(id, _)| *id == mount.id) {
            Some((_, known)) => known.files += files,
            None => found.push((mount.id, FileSystem { files, ..FileSystem::new(mount, &sysfs) })),
        }
    }
    found.into_iter().map(|(_, file_system)| file_system).collect()
}

fn devices(mount: &Mount, sysfs: &Sysfs) -> (Vec<BlockDevice>, Limits) {
    // Kinds without a device of their own have the major number 0; of these, btrfs names one of its devices.
    let own = (libc::major(mount.device) != 0).then_some(mount.device);
    let device = own.or_else(|| (mount.kind == "btrfs").then(|| device_of_node(&mount.source)).flatten());
    let Some(folder) = device.and_then(|device| sysfs.folder(device)) else {
        return (Vec::new(), Limits::default());
    };
    let mut members = match (own, folder.file_name().and_then(|name| name.to_str())) {
        (None, Some(name)) => sysfs.btrfs_members(name),
        _ => Vec::new(),
    };
    if members.is_empty() {
        members.push(folder);
    }
    let mut all = Vec::new();
    for device in members.iter().flat_map(|folder| chain(folder)) {
        if !all.contains(&device) {
            all.push(device);
        }
    }
    let limits = if members.len() == 1 { limits(&members[0]) } else { Limits::default() };
    (all, limits)
}

/// How the server of a network file system is reached.
fn transport(kind: &str, source: &str, options: &str) -> Option<String> {
    match kind {
        "nfs" | "nfs4" => option(options, "proto").map(Into::into),
        "9p" => option(options, "trans").map(Into::into),
        "cifs" | "smb3" if option(options, "rdma").is_some() => Some("rdma".into()),
        "cifs" | "smb3" => Some("tcp".into()),
        // The network is part of a Lustre server's name: `10.0.0.1@o2ib:/scratch`.
        "lustre" => {
            let network = source.split_once('@')?.1.split([':', ',']).next()?;
            Some(
                if network.starts_with("o2ib") { "rdma" } else { network.trim_end_matches(char::is_numeric) }
                    .into(),
            )
        }
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::storage::block::BlockKind;

    /// A file system by the line of its mount, with these devices.
    pub(in crate::storage) fn file_system(line: &str, devices: &[BlockKind]) -> FileSystem {
        let mounts = Mounts::parse(line.as_bytes());
        let mount = mounts.by_id(1).unwrap_or_else(|| panic!("{line} is no line of mountinfo"));
        // No sysfs, whatever this machine has.
        let mut it = FileSystem::new(mount, &Sysfs::at(Path::new("/nowhere")));
        let device =
            |(i, kind): (usize, &BlockKind)| BlockDevice { name: format!("disk{i}"), kind: kind.clone() };
        it.devices = devices.iter().enumerate().map(device).collect();
        it.gds = judge(&it);
        it
    }

    #[test]
    fn a_file_system_is_told_in_a_line() {
        let nfs = file_system(
            "1 2 0:51 / /mnt/data rw,relatime - nfs4 server:/export rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,\
             proto=rdma,nconnect=4,port=20049,timeo=600,retrans=2,sec=sys,clientaddr=10.0.0.2,local_lock=none,addr=10.0.0.1",
            &[],
        );
        let text = "nfs4 at /mnt/data from server:/export, by rdma, vers=4.2 rsize=1048576 nconnect=4 hard timeo=600 retrans=2";
        assert_eq!(nfs.to_string(), text);
        assert!(nfs.is_nfs() && !nfs.read_only);
        let pcie = BlockKind::Nvme { transport: "pcie".into(), multipath: false };
        let ext4 = file_system(
            "1 2 259:1 / /data ro,relatime - ext4 /dev/nvme0n1p1 rw,data=ordered",
            &[BlockKind::Partition, pcie],
        );
        let text =
            "ext4 at /data from /dev/nvme0n1p1, data=ordered ro, on disk0 (partition), disk1 (NVMe by pcie)";
        assert_eq!(ext4.to_string(), text);
        assert!(ext4.read_only && ext4.transport.is_none());
        assert_eq!(
            file_system("1 2 0:5 / /dev/shm rw - tmpfs tmpfs rw", &[]).to_string(),
            "tmpfs at /dev/shm"
        );
    }

    #[test]
    fn the_transport_of_each_network_file_system_is_known() {
        for (kind, source, options, expected) in [
            ("nfs4", "s:/e", "rw,proto=tcp6", Some("tcp6")),
            ("nfs", "s:/e", "rw,vers=3,proto=tcp,mountproto=udp", Some("tcp")),
            ("lustre", "10.1.0.1@o2ib1:/scratch", "rw", Some("rdma")),
            ("lustre", "10.1.0.1@tcp0:10.1.0.2@tcp0:/scratch", "rw", Some("tcp")),
            ("9p", "host", "rw,trans=virtio", Some("virtio")),
            ("cifs", "//s/e", "rw,vers=3.1.1", Some("tcp")),
            ("xfs", "/dev/sda", "rw", None),
        ] {
            assert_eq!(transport(kind, source, options).as_deref(), expected, "{kind} {source}");
        }
    }

    #[test]
    fn files_are_counted_on_the_file_system_that_they_lie_on() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir_in(".").unwrap();
        let file = dir.path().join("a");
        std::fs::write(&file, b"1").unwrap();
        let device = std::fs::metadata(&file).unwrap().dev();
        let link = tempfile::tempdir_in("/dev/shm").unwrap();
        let through = link.path().join("link");
        std::os::unix::fs::symlink(std::path::absolute(&file).unwrap(), &through).unwrap();
        // The words of the second path lead to another file system.
        let files = [(file.as_path(), device), (&file, device), (&through, device)];
        let found = file_systems(&Opener::default(), files.into_iter());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].files, 3);
        let alone = file_systems(&Opener::default(), [(through.as_path(), device)].into_iter());
        assert_eq!((&alone[0].kind, &alone[0].mount_point), (&found[0].kind, &found[0].mount_point));
        assert_ne!(found[0].kind, "tmpfs");
        let shm = link.path().join("b");
        std::fs::write(&shm, b"1").unwrap();
        let device = std::fs::metadata(&shm).unwrap().dev();
        let found = file_systems(&Opener::default(), [(shm.as_path(), device)].into_iter());
        assert_eq!(found[0].kind, "tmpfs");
        assert_eq!(found[0].gds.possible, Some(false));
    }
}
