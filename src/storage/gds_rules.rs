//! Whether GPUDirect Storage could work on a file system, by what NVIDIA documents.
//!
//! These are facts about the storage alone: they hold on a machine without a GPU too, and say nothing about drivers,
//! modules and PCIe. Whether GDS does work is for cuFile to say.
//!
//! Sources, as they are named below:
//!
//! - *nvidia-fs*: "NVIDIA GPUDirect Storage Filesystem Kernel Driver", section 4, Key Features
//!   (<https://docs.nvidia.com/gpudirect-storage/nvidia_fs/index.html>)
//! - *Limitations*: "GPUDirect Storage Release Notes", section 9, Known Limitations
//!   (<https://docs.nvidia.com/gpudirect-storage/release-notes/known-limitations.html>)
//! - *P2PDMA*: "Installation and Troubleshooting Guide", section 14, NVMe P2PDMA Troubleshooting
//!   (<https://docs.nvidia.com/gpudirect-storage/troubleshooting-guide/nvme-p2pdma-troubleshooting.html>)
//! - *NVMe P2PDMA*: "GDS Support for NVME Drives Using Linux PCI P2PDMA Support", Intro
//!   (<https://docs.nvidia.com/deploy/gds-support-for-nvme/intro.html>)
//! - *API errors*: "Installation and Troubleshooting Guide", section API Errors, `CU_FILE_IO_NOT_SUPPORTED`
//!   (<https://docs.nvidia.com/gpudirect-storage/troubleshooting-guide/api-errors.html>)
//! - *O_DIRECT*: "O_DIRECT Requirements Guide", section GPUDirect Storage Requirements
//!   (<https://docs.nvidia.com/gpudirect-storage/o-direct-guide/gpudirect-storage-requirements.html>)

use super::block::BlockKind;
use super::filesystem::FileSystem;

/// Whether GPUDirect Storage could work on a file system, given a GPU and its drivers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct GdsVerdict {
    /// Whether it could; `None` where NVIDIA's documents do not settle it.
    pub possible: Option<bool>,
    /// Why, in words.
    pub reason: String,
    /// That it could not is so certain that cuFile need not be asked.
    pub(crate) certain: bool,
}

impl GdsVerdict {
    fn yes(reason: impl Into<String>) -> Self {
        GdsVerdict { possible: Some(true), reason: reason.into(), certain: false }
    }

    fn unknown(reason: impl Into<String>) -> Self {
        GdsVerdict { possible: None, reason: reason.into(), certain: false }
    }

    fn unlikely(reason: impl Into<String>) -> Self {
        GdsVerdict { possible: Some(false), reason: reason.into(), certain: false }
    }

    fn never(reason: impl Into<String>) -> Self {
        GdsVerdict { possible: Some(false), reason: reason.into(), certain: true }
    }
}

/// The rules, from the file system down to its disks.
pub(super) fn judge(it: &FileSystem) -> GdsVerdict {
    match it.kind.as_str() {
        // O_DIRECT: data goes by DMA from a drive or a network card, and never through the memory of the host.
        "tmpfs" | "ramfs" | "hugetlbfs" | "devtmpfs" | "rootfs" => GdsVerdict::never(format!(
            "{} keeps its files in memory, and GDS reads from drives or by RDMA",
            it.kind
        )),
        // nvidia-fs: "NFS over RDMA with MOFED 5.1 and later".
        "nfs" | "nfs4" => match it.transport.as_deref() {
            Some("rdma") => GdsVerdict::yes(
                "GDS could work here, with a GPU, nvidia-fs, and the NFS over RDMA of MLNX_OFED or DOCA",
            ),
            Some(other) => GdsVerdict::never(format!(
                "GDS reads NFS over RDMA only, and this is mounted with proto={other}"
            )),
            None => GdsVerdict::unknown(
                "GDS reads NFS over RDMA only, and the kernel does not tell the transport",
            ),
        },
        // nvidia-fs: "RDMA-capable distributed file systems, including DDN EXAScaler (which is Lustre), WekaFS, VAST (NFS),
        // IBM Spectrum Scale (gpfs), and BeeGFS".
        "lustre" | "wekafs" | "gpfs" | "beegfs" => match it.transport.as_deref() {
            None | Some("rdma") => GdsVerdict::yes(format!(
                "GDS could work here, with a GPU, nvidia-fs, and a client of {} that was built for it and uses RDMA",
                it.kind
            )),
            Some(other) => {
                GdsVerdict::unlikely(format!("GDS reads {} by RDMA, and this one goes by {other}", it.kind))
            }
        },
        // libcufile has readers of these, which no document describes.
        "panfs" | "scatefs" | "virtiofs" => {
            GdsVerdict::unknown(format!("libcufile names {}, but NVIDIA's documents do not", it.kind))
        }
        "ext4" => match it.option("data") {
            // nvidia-fs: "EXT4 in ordered mode on NVMe and NVMe-oF".
            Some(mode @ ("journal" | "writeback")) => GdsVerdict::never(format!(
                "GDS needs ext4 in ordered mode, and this is mounted with data={mode}"
            )),
            Some(_) => on_devices(it),
            None => match on_devices(it) {
                // cuFile reads the mode from the mount table, where the kernel shows it only if it was asked for when mounting.
                // Seen with 1.14 and 1.20 on Linux 6.1, mounted without: "mount option not found in mount table data device".
                known if known.possible == Some(true) => GdsVerdict::unknown(format!(
                    "{}; but cuFile looks for data=ordered among the mount options, where it is not (mount it with that)",
                    known.reason
                )),
                known => known,
            },
        },
        // nvidia-fs: "XFS on NVMe and NVMe-oF".
        "xfs" => on_devices(it),
        // API errors: "The file descriptor belongs to an unsupported file system." Seen with 1.14 and 1.20, on overlay and on btrfs:
        // "error creating udev_device for block device dev_no: 0:35", since these have none.
        "overlay" => GdsVerdict::never(
            "overlay is none of the file systems that GDS reads; a folder of ext4 or xfs can be bind-mounted into a \
             container instead",
        ),
        kind if UNSUPPORTED.contains(&kind) || kind.starts_with("fuse.") => {
            GdsVerdict::never(format!("{kind} is none of the file systems that GDS reads"))
        }
        kind => GdsVerdict::unknown(format!("{kind} is not named in NVIDIA's documents")),
    }
}

/// Widespread kinds that neither NVIDIA's documents nor libcufile name, and none of which is any other's name.
const UNSUPPORTED: [&str; 26] = [
    "9p", "afs", "bcachefs", "btrfs", "ceph", "cifs", "cramfs", "ecryptfs", "erofs", "exfat", "ext2", "ext3",
    "f2fs", "fuse", "fuseblk", "iso9660", "jfs", "nilfs2", "ntfs3", "ocfs2", "reiserfs", "smb3", "squashfs",
    "udf", "vfat", "zfs",
];

/// For ext4 and xfs: what they lie on decides.
fn on_devices(it: &FileSystem) -> GdsVerdict {
    let kinds = it.devices.iter().map(|device| (&device.kind, &device.name));
    // Nvidia-fs alone can do these.
    let mut not_by_p2pdma: Vec<&str> = Vec::new();
    let mut drives = 0;
    let mut in_doubt = None;
    for (kind, name) in kinds {
        match kind {
            BlockKind::Partition => {}
            // cuFile's log on such a one: "Unsupported block device: /dev/dm-0"
            // (<https://github.com/NVIDIA/gds-nvidia-fs/issues/62>); and seen with 1.14 and 1.20, on LVM: "mount options not specified
            // for device in mount table /dev/dm-0".
            BlockKind::Mapper(_) => {
                return GdsVerdict::never(format!(
                    "GDS reads no device-mapper volumes (LVM, dm-crypt), and {name} is one"
                ));
            }
            // nvidia-fs: both file systems "on NVMe and NVMe-oF", which these two are not.
            BlockKind::Loop => {
                return GdsVerdict::never(format!("GDS reads from drives, and {name} is a file (loop)"));
            }
            BlockKind::Virtio => {
                in_doubt = Some(GdsVerdict::unlikely(format!(
                    "GDS reads {} on NVMe only, and {name} is a virtio disk",
                    it.kind
                )));
            }
            // Limitations: "P2PDMA feature is not supported with RAID0 and multipath NVMe support"; so with nvidia-fs RAID 0 is.
            BlockKind::Raid(level) if level == "raid0" => not_by_p2pdma.push("RAID 0"),
            // libcufile 1.20 has settings for these (`block.raid1.use_pci_p2pdma`, `block.raid10.use_pci_p2pdma`).
            BlockKind::Raid(level) if level == "raid1" || level == "raid10" => {
                in_doubt = Some(GdsVerdict::unknown(format!(
                    "NVIDIA documents RAID 0 only, and {name} is {level}; newer versions of libcufile have settings for it"
                )));
            }
            BlockKind::Raid(level) => {
                return GdsVerdict::unlikely(format!("NVIDIA documents RAID 0 only, and {name} is {level}"));
            }
            BlockKind::Nvme { transport, multipath } => {
                drives += 1;
                // NVMe P2PDMA: "RAID0 over NVMe and NVMEoF are not supported in this release".
                if !transport.is_empty() && transport != "pcie" {
                    not_by_p2pdma.push("NVMe over fabrics");
                }
                // P2PDMA, 14.3: "NVMe Multipathing is currently not enabled with PCI P2PDMA in the upstream driver".
                if *multipath {
                    not_by_p2pdma.push("NVMe multipath");
                }
            }
            // The driver's properties have a bit for SCSI, and the documents name NVMe only.
            BlockKind::Scsi | BlockKind::Other => {
                in_doubt = Some(GdsVerdict::unknown(format!(
                    "NVIDIA documents {} on NVMe only, and {name} is none",
                    it.kind
                )));
            }
        }
    }
    if let Some(verdict) = in_doubt {
        return verdict;
    }
    if drives == 0 {
        return GdsVerdict::unknown(format!(
            "{} works on NVMe, and what this one lies on is not known",
            it.kind
        ));
    }
    not_by_p2pdma.dedup();
    GdsVerdict::yes(match not_by_p2pdma[..] {
        [] => format!("GDS could work here ({} on NVMe), with a GPU and nvidia-fs or PCI P2PDMA", it.kind),
        _ => format!(
            "GDS could work here ({} on NVMe), with a GPU and nvidia-fs, but not by PCI P2PDMA, which cannot do {}",
            it.kind,
            not_by_p2pdma.join(" and ")
        ),
    })
}

/// What all the file systems of a dataset mean for GDS, in words; nothing for no file systems.
pub(crate) fn in_words(file_systems: &[FileSystem]) -> Option<String> {
    let of = |it: &FileSystem| format!("{}: {}", it.name(), it.gds.reason);
    (!file_systems.is_empty()).then(|| file_systems.iter().map(of).collect::<Vec<_>>().join("; "))
}

/// Whether it is certain that GDS works for none of the files.
pub(crate) fn certainly_not(file_systems: &[FileSystem]) -> bool {
    !file_systems.is_empty() && file_systems.iter().all(|it| it.gds.certain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::filesystem::tests::file_system;

    fn nvme(transport: &str, multipath: bool) -> BlockKind {
        BlockKind::Nvme { transport: transport.into(), multipath }
    }

    /// Kind, options, devices; what is possible, and a word of the reason.
    type Rule = (&'static str, &'static str, Vec<BlockKind>, Option<bool>, &'static str);

    #[test]
    fn every_rule_decides_as_nvidia_documents_it() {
        let pcie = || nvme("pcie", false);
        let raid = |level: &str| BlockKind::Raid(level.into());
        let cases: Vec<Rule> = vec![
            ("xfs", "rw", vec![pcie()], Some(true), "nvidia-fs or PCI P2PDMA"),
            ("xfs", "rw", vec![BlockKind::Partition, pcie()], Some(true), "xfs on NVMe"),
            ("ext4", "rw,data=ordered", vec![pcie()], Some(true), "ext4 on NVMe"),
            ("ext4", "rw", vec![pcie()], None, "mount it with that"),
            ("ext4", "rw,data=writeback", vec![pcie()], Some(false), "data=writeback"),
            ("ext4", "rw,data=journal", vec![pcie()], Some(false), "ordered mode"),
            ("ext4", "rw", vec![BlockKind::Virtio], Some(false), "virtio"),
            ("xfs", "rw", vec![BlockKind::Scsi], None, "NVMe only"),
            ("xfs", "rw", vec![], None, "not known"),
            ("xfs", "rw", vec![BlockKind::Loop], Some(false), "loop"),
            ("xfs", "rw", vec![BlockKind::Mapper("LVM".into()), pcie()], Some(false), "LVM"),
            ("ext4", "rw", vec![BlockKind::Mapper("CRYPT".into()), pcie()], Some(false), "dm-crypt"),
            ("xfs", "rw", vec![raid("raid0"), pcie(), pcie()], Some(true), "cannot do RAID 0"),
            ("xfs", "rw", vec![raid("raid1"), pcie(), pcie()], None, "raid1"),
            ("xfs", "rw", vec![raid("raid5"), pcie(), pcie(), pcie()], Some(false), "raid5"),
            ("xfs", "rw", vec![raid("raid0"), pcie(), BlockKind::Scsi], None, "NVMe only"),
            ("xfs", "rw", vec![nvme("rdma", false)], Some(true), "cannot do NVMe over fabrics"),
            ("xfs", "rw", vec![nvme("tcp", true)], Some(true), "NVMe over fabrics and NVMe multipath"),
            ("nfs4", "rw,proto=rdma", vec![], Some(true), "DOCA"),
            ("nfs4", "rw,proto=tcp", vec![], Some(false), "proto=tcp"),
            ("nfs", "rw,proto=tcp6", vec![], Some(false), "RDMA only"),
            ("nfs", "rw", vec![], None, "transport"),
            ("lustre", "rw", vec![], Some(true), "lustre"),
            ("wekafs", "rw", vec![], Some(true), "wekafs"),
            ("gpfs", "rw", vec![], Some(true), "gpfs"),
            ("beegfs", "rw", vec![], Some(true), "beegfs"),
            ("scatefs", "rw", vec![], None, "scatefs"),
            ("btrfs", "rw", vec![pcie()], Some(false), "btrfs"),
            ("overlay", "rw", vec![], Some(false), "bind-mounted"),
            ("fuse.juicefs", "rw", vec![], Some(false), "fuse.juicefs"),
            ("tmpfs", "rw", vec![], Some(false), "memory"),
            ("newfs", "rw", vec![], None, "newfs"),
        ];
        for (kind, options, devices, possible, word) in cases {
            let found = file_system(&format!("1 2 0:9 / /m rw - {kind} what {options}"), &devices).gds;
            assert_eq!(found.possible, possible, "{kind} {options} {devices:?}: {found:?}");
            assert!(found.reason.contains(word), "{kind} {options} {devices:?}: {found:?}");
            assert!(!found.certain || found.possible == Some(false), "{found:?}");
        }
        let slow = file_system("1 2 0:9 / /m rw - lustre 10.0.0.1@tcp:/x rw", &[]);
        assert_eq!(slow.gds.possible, Some(false));
    }

    #[test]
    fn only_where_no_file_can_go_by_gds_is_cufile_not_asked() {
        let [tcp, rdma, virtio] = [
            file_system("1 2 0:9 / /a rw - nfs4 s:/a rw,proto=tcp", &[]),
            file_system("1 2 0:9 / /b rw - nfs4 s:/b rw,proto=rdma", &[]),
            file_system("1 2 0:9 / /c rw - xfs /dev/vda rw", &[BlockKind::Virtio]),
        ];
        assert!(certainly_not(std::slice::from_ref(&tcp)));
        assert!(!certainly_not(&[]) && !certainly_not(&[tcp.clone(), rdma.clone()]));
        // A hypervisor may show a drive in any way.
        assert!(!certainly_not(&[virtio]));
        let words = in_words(&[tcp, rdma]).unwrap();
        assert!(words.contains("nfs4 at /a from s:/a: GDS reads NFS over RDMA only"), "{words}");
        assert!(words.contains("; nfs4 at /b from s:/b: GDS could work here"), "{words}");
        assert_eq!(in_words(&[]), None);
    }
}
