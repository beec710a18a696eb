//! Recorded texts of `mountinfo`, as kernels and container engines write them.

use std::os::unix::fs::symlink;

use super::*;

/// A machine with disks, as Debian's 6.1 writes it.
const MACHINE: &str = r"22 29 0:20 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
29 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
31 29 259:1 / /boot/efi rw,relatime shared:31 - vfat /dev/nvme0n1p1 rw,fmask=0077,codepage=437,errors=remount-ro
88 29 259:5 / /data rw,noatime shared:44 - ext4 /dev/nvme1n1 rw,data=ordered
90 29 9:127 / /data/fast rw,relatime - xfs /dev/md127 rw,attr2,inode64,logbufs=8,sunit=1024,swidth=2048,noquota
92 29 253:3 / /lv rw,relatime - xfs /dev/mapper/vg0-train rw,attr2,inode64
94 29 0:44 /@home /home rw,relatime shared:50 - btrfs /dev/sda2 rw,space_cache=v2,subvolid=256,subvol=/@home
95 29 0:44 /@data /srv/with\040space rw,relatime shared:51 - btrfs /dev/sda2 rw,space_cache=v2,subvolid=257,subvol=/@data
97 29 259:5 /shards/train /train ro,relatime shared:44 - ext4 /dev/nvme1n1 rw,data=ordered
99 29 0:50 / /mnt/nfs rw,relatime shared:60 - nfs4 10.0.0.1:/export rw,vers=4.2,rsize=262144,wsize=262144,namlen=255,hard,proto=tcp,nconnect=4,timeo=600,retrans=2,sec=sys,clientaddr=10.0.0.2,local_lock=none,addr=10.0.0.1
100 29 0:52 / /mnt/rdma rw,relatime - nfs4 [fd00::1]:/export rw,vers=4.2,rsize=1048576,wsize=1048576,hard,proto=rdma,port=20049,timeo=600,retrans=2,sec=sys
101 29 0:53 / /mnt/old ro,relatime - nfs srv:/old ro,vers=3,rsize=1048576,soft,proto=tcp,timeo=50,retrans=3,mountproto=tcp,local_lock=none
102 29 0:54 / /auto rw,relatime shared:70 - autofs /etc/auto.master rw,fd=7,pgrp=1,timeout=300,minproto=5,maxproto=5,indirect
103 29 0:60 / /mnt/s3 rw,nosuid,nodev,relatime - fuse.s3fs s3fs rw,user_id=0,group_id=0
104 29 0:61 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw,size=8k
105 29 0:62 / /mnt/odd\134name\011tab\043 rw - tmpfs none rw
";

/// A container, as Docker makes it.
const CONTAINER: &str = r"1250 1020 0:222 / / rw,relatime master:300 - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/AB:/var/lib/docker/overlay2/l/CD,upperdir=/var/lib/docker/overlay2/ef/diff,workdir=/var/lib/docker/overlay2/ef/work
1251 1250 0:225 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
1260 1250 259:2 /var/lib/docker/containers/12/hosts /etc/hosts rw,relatime - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
1261 1250 259:5 /shards /data ro,relatime - ext4 /dev/nvme1n1 rw,data=ordered
";

fn machine() -> Mounts {
    Mounts::parse(MACHINE.as_bytes())
}

#[test]
fn every_field_of_a_mount_is_read() {
    let mounts = machine();
    assert_eq!(mounts.0.len(), MACHINE.lines().count());
    let expected = Mount {
        id: 88,
        device: libc::makedev(259, 5),
        root: "/".into(),
        point: "/data".into(),
        kind: "ext4".into(),
        source: "/dev/nvme1n1".into(),
        options: "rw,noatime,rw,data=ordered".into(),
    };
    assert_eq!(mounts.by_id(88), Some(&expected));
    let nfs = mounts.by_id(99).unwrap();
    assert_eq!(nfs.source, "10.0.0.1:/export");
    for (name, value) in [
        ("vers", Some("4.2")),
        ("rsize", Some("262144")),
        ("proto", Some("tcp")),
        ("nconnect", Some("4")),
        ("hard", Some("")),
        ("timeo", Some("600")),
        ("retrans", Some("2")),
        ("soft", None),
        ("size", None),
    ] {
        assert_eq!(option(&nfs.options, name), value, "{name}");
    }
    assert_eq!(option(&mounts.by_id(100).unwrap().options, "proto"), Some("rdma"));
    // Not that of its mount protocol.
    assert_eq!(option(&mounts.by_id(101).unwrap().options, "proto"), Some("tcp"));
    let bind = mounts.by_id(97).unwrap();
    assert_eq!((&bind.root, bind.is_read_only()), (&PathBuf::from("/shards/train"), true));
    assert!(!mounts.by_id(88).unwrap().is_read_only());
    assert_eq!(option("rw,data=writeback,data=ordered", "data"), Some("ordered"));
}

#[test]
fn escaped_names_are_read_as_they_are() {
    let mounts = machine();
    assert_eq!(mounts.by_id(95).unwrap().point, Path::new("/srv/with space"));
    assert_eq!(mounts.by_id(105).unwrap().point, Path::new("/mnt/odd\\name\ttab#"));
    assert_eq!(unescaped(br"a\04"), br"a\04");
    assert_eq!(unescaped(br"\777\x\"), br"\777\x\");
    assert_eq!(unescaped(b"\\303\\274\xff"), b"\xc3\xbc\xff");
}

#[test]
fn lines_that_are_not_understood_are_left_out() {
    let text = b"\n\nnonsense\n1 2 x:y / / rw - ext4 a rw\n1 2 8:1 / / rw shared:1 ext4 a rw\n7 1 8:1 / /m rw - ext4 /dev/sda1\n\
        8 1 8:1 / /n rw -\n9 1 8:1\n";
    let mounts = Mounts::parse(text);
    let points: Vec<_> = mounts.0.iter().map(|mount| (mount.id, mount.options.as_str())).collect();
    assert_eq!(points, [(7, "rw")]);
    assert!(Mounts::parse(b"").by_words(Path::new("/")).is_none());
}

#[test]
fn a_path_lies_on_the_longest_mount_point_above_it_and_on_the_last_of_one_point() {
    let mounts = machine();
    let kind_at = |path: &str| {
        let mount = mounts.by_words(Path::new(path)).unwrap();
        (mount.id, mount.kind.as_str())
    };
    assert_eq!(kind_at("/data/a.bin"), (88, "ext4"));
    assert_eq!(kind_at("/data/fast/a.bin"), (90, "xfs"));
    assert_eq!(kind_at("/data/faster/a.bin"), (88, "ext4"));
    assert_eq!(kind_at("/database"), (29, "ext4"));
    assert_eq!(kind_at("/"), (29, "ext4"));
    assert_eq!(kind_at("/srv/with space/x"), (95, "btrfs"));
    assert_eq!(kind_at("/mnt/rdma"), (100, "nfs4"));
    let over = format!("{MACHINE}200 88 0:70 / /data rw - tmpfs tmpfs rw\n");
    let over = Mounts::parse(over.as_bytes());
    assert_eq!(over.by_words(Path::new("/data/a.bin")).unwrap().kind, "tmpfs");
}

#[test]
fn a_file_is_found_by_its_device_where_that_is_the_mounts() {
    let mounts = machine();
    let never = || -> io::Result<File> { panic!("the words of the path settle it") };
    let found = mounts.of(Path::new("/data/a.bin"), libc::makedev(259, 5), never).unwrap();
    assert_eq!(found.id, 88);
    // By a link on /data that leads to /lv; no file to ask, as on a kernel before 5.8.
    let gone = || Err(io::Error::from_raw_os_error(libc::ENOENT));
    assert_eq!(mounts.of(Path::new("/data/link"), libc::makedev(253, 3), gone).unwrap().id, 92);
    // A btrfs subvolume has a device that no mount has.
    assert_eq!(mounts.of(Path::new("/home/me/a.bin"), libc::makedev(0, 45), gone).unwrap().id, 94);
    let container = Mounts::parse(CONTAINER.as_bytes());
    assert_eq!(container.of(Path::new("/work/a"), libc::makedev(0, 999), gone).unwrap().kind, "overlay");
    assert_eq!(
        container.of(Path::new("/data/a"), libc::makedev(259, 5), gone).unwrap().root,
        Path::new("/shards")
    );
}

#[test]
fn a_file_is_found_by_the_kernels_own_number_for_its_mount() {
    // A device that is none makes it ask.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let text = format!("1 0 0:9 / {} rw - nfs4 s:/e rw\n", dir.path().display());
    let remote = Mounts::parse(text.as_bytes());
    let never = || -> io::Result<File> { panic!("a server is not asked") };
    assert_eq!(remote.of(&dir.path().join("a"), u64::MAX, never).unwrap().kind, "nfs4");
    let path = dir.path().join("a");
    std::fs::write(&path, b"1").unwrap();
    let mounts = Mounts::now();
    let asked = std::cell::Cell::new(false);
    let found = mounts.of(&path, u64::MAX, || {
        asked.set(true);
        File::open(&path)
    });
    assert!(asked.get());
    assert_eq!(found, mounts.by_words(&path));
    assert_eq!(found.unwrap().kind, "tmpfs");
}

#[test]
fn links_are_followed_on_local_file_systems_and_left_alone_on_others() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("real/deep")).unwrap();
    symlink(at("real"), at("absolute")).unwrap();
    symlink("../real/./deep/..", at("real/relative")).unwrap();
    symlink("ring", at("ring")).unwrap();
    let root = Mounts::parse(b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n");
    assert_eq!(root.follow(&at("absolute/deep/x")), at("real/deep/x"));
    assert_eq!(root.follow(&at("real/relative/y")), at("real/y"));
    assert_eq!(root.follow(&at("ring/z")), at("ring/z"), "a ring of links ends");
    let text =
        format!("1 0 8:1 / / rw - ext4 a rw\n2 1 0:9 / {} rw - nfs4 s:/e rw\n", at("absolute").display());
    let remote = Mounts::parse(text.as_bytes());
    assert_eq!(remote.follow(&at("absolute/deep/x")), at("absolute/deep/x"));
    assert_eq!(remote.by_links(&at("absolute/deep/x")).unwrap().kind, "nfs4");
}

#[test]
fn the_mounts_of_this_machine_are_understood() {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = Mounts::parse(text.as_bytes());
    assert_eq!(mounts.0.len(), text.lines().count());
    assert!(mounts.by_words(Path::new("/proc/self")).is_some_and(|mount| mount.kind == "proc"));
}

#[test]
fn what_fstab_wants_and_is_not_mounted_is_found() {
    let fstab = b"UUID=1 / ext4 defaults 0 1\n  # /dev/x /nothing ext4\n/dev/sdb1\t/srv\\040data xfs noauto\n\
        10.0.0.1:/export /mnt/nfs nfs4 rw 0 0\nsrv:/more /mnt/nfs/more nfs4 rw 0 0\nbroken\n/dev/sdc2 none swap sw 0 0\n";
    let at = |path: &str| unmounted(fstab, &machine(), Path::new(path)).map(|wanted| wanted.source);
    assert_eq!(at("/srv data/a").as_deref(), Some("/dev/sdb1"));
    assert_eq!(at("/mnt/nfs/more/a").as_deref(), Some("srv:/more"));
    assert_eq!(at("/mnt/nfs/a"), None);
    assert_eq!(at("/nothing/a"), None);
    assert_eq!(at("/srv"), None);
}
