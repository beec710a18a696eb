//! File systems on NVMe drives, alone and put together.

use crate::cufile;
use crate::data::{Data, every_way};
use crate::guest::{Mounted, Undo, drive, sh};

/// A file system on one drive.
#[track_caller]
fn on_drive(name: &str, sector: u32, make: &str, options: &str) {
    let device = drive(name);
    let sectors = sh(&format!("blockdev --getss {}", device.display()));
    assert_eq!(sectors, sector.to_string());
    let mounted = Mounted::fresh(make, &device, options);
    let data = Data::in_folder(mounted.join("data"));
    every_way(&data);
    cufile::takes(&data);
}

#[test]
fn ext4_with_sectors_of_512_bytes() {
    on_drive("n0", 512, "mkfs.ext4 -q -F", "data=ordered");
}

#[test]
fn ext4_with_sectors_of_4096_bytes() {
    on_drive("n2", 4096, "mkfs.ext4 -q -F", "data=ordered");
}

#[test]
fn xfs_with_sectors_of_512_bytes() {
    on_drive("n0", 512, "mkfs.xfs -q -f", "defaults");
}

#[test]
fn xfs_with_sectors_of_4096_bytes() {
    on_drive("n2", 4096, "mkfs.xfs -q -f", "defaults");
}

#[test]
fn btrfs() {
    on_drive("n0", 512, "mkfs.btrfs -q -f", "defaults");
}

#[test]
fn overlay_over_ext4() {
    let below = Mounted::fresh("mkfs.ext4 -q -F", &drive("n0"), "data=ordered");
    let below_data = Data::in_folder(below.join("lower/data"));
    sh(&format!("cd {} && mkdir upper work", below.point().display()));
    let at = below.point().display();
    let options = format!("-t overlay -o lowerdir={at}/lower,upperdir={at}/upper,workdir={at}/work overlay");
    let overlay = Mounted::at("overlay", &options);
    let data = below_data.at(overlay.join("data"));
    every_way(&data);
    cufile::takes(&data);
}

#[test]
fn ext4_on_a_logical_volume() {
    let device = drive("n0");
    let device = device.display();
    let _volume = Undo::after(
        &format!(
            "wipefs -qa {device}; vgcreate -qq cases {device} && lvcreate -qq -Wn -l 100%FREE -n volume cases; udevadm settle"
        ),
        format!("vgremove -qq -f cases && pvremove -qq {device}"),
    );
    let mounted = Mounted::fresh("mkfs.ext4 -q -F", "/dev/cases/volume".as_ref(), "data=ordered");
    let data = Data::in_folder(mounted.join("data"));
    every_way(&data);
    cufile::takes(&data);
}

#[test]
fn xfs_on_a_raid_of_two_drives() {
    let (one, two) = (drive("n0"), drive("n1"));
    let (one, two) = (one.display(), two.display());
    let _raid = Undo::after(
        &format!(
            "wipefs -qa {one} {two}; mdadm --create /dev/md0 --quiet --run --level=0 --raid-devices=2 {one} {two}; \
             udevadm settle"
        ),
        format!("mdadm --quiet --stop /dev/md0 && mdadm --zero-superblock {one} {two}"),
    );
    let mounted = Mounted::fresh("mkfs.xfs -q -f", "/dev/md0".as_ref(), "defaults");
    let data = Data::in_folder(mounted.join("data"));
    every_way(&data);
    cufile::takes(&data);
}
