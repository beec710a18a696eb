//! What a run says of the local file system that it reads from: the devices below it, and what that means for GDS.

use std::path::Path;

use crate::data::Data;
use crate::guest::{Mounted, Undo, drive, sh};

/// What a run says of the one file system that holds its data: kind, devices with their kinds, whether GDS could work, and why.
#[track_caller]
fn told(data: &Data) -> (String, Vec<(String, String)>, Option<bool>, String) {
    let json = data.loads(&["--device", "host"]);
    let [on] = &json["file_systems"].as_array().unwrap()[..] else { panic!("{}", json["file_systems"]) };
    assert!(on["transport"].is_null() && on["files"].as_u64() == Some(data.shards().len() as u64), "{on}");
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_string();
    let device = |it: &serde_json::Value| (text(&it["name"]), text(&it["kind"]));
    let devices = on["devices"].as_array().unwrap().iter().map(device).collect();
    (text(&on["kind"]), devices, on["gds"]["possible"].as_bool(), text(&on["gds"]["reason"]))
}

/// The name of a device file, as in sysfs.
fn name_of(device: &Path) -> &str {
    device.file_name().and_then(|name| name.to_str()).expect("a device has a name")
}

fn nvme(device: &Path) -> (String, String) {
    (name_of(device).into(), "NVMe by pcie".into())
}

#[test]
fn the_mode_of_an_ext4_decides_and_has_to_be_told() {
    let device = drive("n0");
    for (options, possible) in [
        ("data=ordered", Some(true)),
        ("defaults", None),
        ("data=writeback", Some(false)),
        ("data=journal", Some(false)),
    ] {
        let mounted = Mounted::fresh("mkfs.ext4 -q -F", &device, options);
        let (kind, devices, could, why) = told(&Data::in_folder(mounted.join("data")));
        assert_eq!((kind.as_str(), could), ("ext4", possible), "{options}: {why}");
        assert_eq!(devices, [nvme(&device)]);
        assert_eq!(why.contains("data="), possible != Some(true), "{options}: {why}");
    }
}

#[test]
fn a_partition_is_told_with_its_drive() {
    let device = drive("n2");
    // One that only the kernel knows, in units of 512 bytes.
    let _partition = Undo::after(
        &format!("wipefs -qa {0}; addpart {0} 1 2048 700000; udevadm settle", device.display()),
        format!("delpart {} 1", device.display()),
    );
    let part = format!("{}p1", device.display());
    let mounted = Mounted::fresh("mkfs.xfs -q -f", part.as_ref(), "defaults");
    let (_, devices, could, why) = told(&Data::in_folder(mounted.join("data")));
    assert_eq!(devices, [(name_of(part.as_ref()).into(), "partition".into()), nvme(&device)]);
    assert_eq!(could, Some(true), "{why}");
}

#[test]
fn a_logical_volume_and_a_raid_are_told_from_the_top_down() {
    let (one, two) = (drive("n0"), drive("n1"));
    let _raid = Undo::after(
        &format!(
            "wipefs -qa {0} {1}; mdadm --create /dev/md0 --quiet --run --level=0 --chunk=64 --raid-devices=2 {0} {1}; \
             udevadm settle",
            one.display(),
            two.display()
        ),
        format!(
            "mdadm --quiet --stop /dev/md0 && mdadm --zero-superblock {} {}",
            one.display(),
            two.display()
        ),
    );
    let raid = [("md0".into(), "software RAID, raid0".into()), nvme(&one), nvme(&two)];
    {
        let mounted = Mounted::fresh("mkfs.xfs -q -f", "/dev/md0".as_ref(), "defaults");
        let (_, devices, could, why) = told(&Data::in_folder(mounted.join("data")));
        assert_eq!(devices, raid);
        assert!(could == Some(true) && why.contains("not by PCI P2PDMA, which cannot do RAID 0"), "{why}");
    }
    let _volume = Undo::after(
        "wipefs -qa /dev/md0; vgcreate -qq cases /dev/md0 && lvcreate -qq -Wn -l 100%FREE -n volume cases; udevadm settle",
        "vgremove -qq -f cases && pvremove -qq /dev/md0",
    );
    let mounted = Mounted::fresh("mkfs.xfs -q -f", "/dev/cases/volume".as_ref(), "defaults");
    let (_, devices, could, why) = told(&Data::in_folder(mounted.join("data")));
    assert_eq!(devices[0].1, "device-mapper, LVM");
    assert_eq!(devices[1..], raid);
    assert!(could == Some(false) && why.contains("device-mapper"), "{why}");
}

#[test]
fn a_btrfs_of_two_drives_and_its_subvolumes_are_one_file_system() {
    let (one, two) = (drive("n0"), drive("n1"));
    sh(&format!("wipefs -qa {} {}", one.display(), two.display()));
    let make = format!("mkfs.btrfs -q -f -d raid0 {}", two.display());
    let mounted = Mounted::fresh(&make, &one, &format!("device={}", two.display()));
    sh(&format!("btrfs subvolume create {}/data", mounted.point().display()));
    let (kind, mut devices, could, _) = told(&Data::in_folder(mounted.join("data")));
    devices.sort();
    let mut drives = [nvme(&one), nvme(&two)];
    drives.sort();
    assert_eq!((kind.as_str(), &devices[..], could), ("btrfs", &drives[..], Some(false)));
}

#[test]
fn a_bind_mount_is_told_as_what_it_shows() {
    let device = drive("n0");
    let below = Mounted::fresh("mkfs.xfs -q -f", &device, "defaults");
    let data = Data::in_folder(below.join("deep/data"));
    let bound = Mounted::at("bound", &format!("--bind {}", below.join("deep").display()));
    let (kind, devices, could, _) = told(&data.at(bound.join("data")));
    assert_eq!((kind.as_str(), devices, could), ("xfs", vec![nvme(&device)], Some(true)));
}
