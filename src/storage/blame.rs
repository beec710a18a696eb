//! What the file system under a path has to do with an error: its name, and the cause in words.
//!
//! Nothing here asks the file that failed: its server may be the very one that does not answer. See
//! [`mount`](super::mount).

use std::path::Path;

use super::filesystem::name;
use super::mount::{Mount, Mounts, absolute, unmounted};

/// The file system that `path` lies on and what this error means there; nothing for errors that are about the file
/// itself.
pub(crate) fn blamed(path: &Path, errno: i32) -> Option<String> {
    if !matters(errno) {
        return None;
    }
    let mounts = Mounts::now();
    let mount = mounts.by_links(path)?;
    // SAFETY: takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let cause = cause(mount, errno, root)?;
    Some(format!("{}; {cause}", name(&mount.kind, &mount.point, &mount.source)))
}

/// The file system that `path` lies on, as far as words tell: links are not followed, since even a local disk may be one that
/// does not answer. Where they could mislead, the device that the file was on must be that of the mount.
pub(crate) fn lies_on(path: &Path, device: Option<u64>) -> Option<String> {
    let mounts = Mounts::now();
    let mount = mounts.by_words(&absolute(path))?;
    let sure = mount.is_remote() || device == Some(mount.device);
    sure.then(|| name(&mount.kind, &mount.point, &mount.source))
}

/// Why a path may be missing: what should be mounted there is not.
pub(crate) fn not_mounted(path: &Path) -> Option<String> {
    missing(path, &Mounts::now(), &std::fs::read("/etc/fstab").unwrap_or_default())
}

fn missing(path: &Path, mounts: &Mounts, fstab: &[u8]) -> Option<String> {
    let path = absolute(path);
    if let Some(wanted) = unmounted(fstab, mounts, &path) {
        return Some(format!(
            "nothing is mounted at {}, where /etc/fstab has {} ({})",
            wanted.point.display(),
            wanted.source,
            wanted.kind
        ));
    }
    let automatic = mounts.by_words(&path).filter(|mount| mount.kind == "autofs" && mount.point != path)?;
    Some(format!("autofs at {} has mounted nothing there", automatic.point.display()))
}

/// Whether an error can have its cause in the file system, whatever its kind.
fn matters(errno: i32) -> bool {
    matches!(
        errno,
        libc::EACCES
            | libc::EPERM
            | libc::EROFS
            | libc::ENOSPC
            | libc::EDQUOT
            | libc::EIO
            | libc::EREMOTEIO
            | libc::EUCLEAN
            | libc::EBADMSG
            | libc::ENODEV
            | libc::ENXIO
            | libc::ENOMEDIUM
            | libc::ENOLINK
            | libc::ESTALE
            | libc::ETIMEDOUT
            | libc::ENOTCONN
            | libc::ESHUTDOWN
            | libc::ECONNREFUSED
            | libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::EHOSTDOWN
            | libc::EHOSTUNREACH
            | libc::ENETDOWN
            | libc::ENETUNREACH
            | libc::EKEYEXPIRED
    )
}

fn cause(mount: &Mount, errno: i32, root: bool) -> Option<&'static str> {
    let nfs = matches!(mount.kind.as_str(), "nfs" | "nfs4");
    let (remote, fuse) = (mount.is_remote(), mount.kind.starts_with("fuse"));
    Some(match errno {
        // On a local file system these are about the file, and say enough.
        libc::EACCES | libc::EPERM if nfs && root => {
            "the server refuses it, as it does to root with root_squash"
        }
        libc::EACCES | libc::EPERM if remote => "the server refuses it to this user",
        libc::EACCES | libc::EPERM => return None,
        libc::EKEYEXPIRED if remote => "the Kerberos ticket of this user has expired",
        libc::EROFS if mount.is_read_only() => "it is mounted read-only",
        libc::EROFS if remote => "the server lets it be read only",
        libc::EROFS => "it has gone read-only, as it does after an error of its disk",
        libc::ENOSPC => "it is full",
        libc::EDQUOT => "the quota on it is used up",
        libc::EIO if fuse => "its server program failed",
        libc::EIO if remote => {
            "the server failed, or did not answer for as long as the mount waits (soft, timeo, retrans)"
        }
        libc::EIO => "its disk failed, or is gone; the kernel's log says more",
        libc::EREMOTEIO => "the server failed",
        libc::EUCLEAN | libc::EBADMSG => "it is damaged; the kernel's log says more",
        libc::ENODEV | libc::ENXIO | libc::ENOMEDIUM | libc::ENOLINK => "its device is gone",
        libc::ESTALE if remote => {
            "the server does not know this file any more: it was removed or replaced there, or the export was made anew"
        }
        libc::ETIMEDOUT if remote => {
            "the server did not answer for as long as the mount waits (soft, timeo, retrans)"
        }
        libc::ETIMEDOUT => "its disk did not answer in time",
        libc::ENOTCONN | libc::ECONNABORTED if fuse => "its server program has ended",
        // No local file system has these.
        _ if remote => "the server cannot be reached",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        1 0 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        2 1 0:51 / /mnt/x rw,relatime - nfs4 srv:/export rw,vers=4.2,proto=tcp\n\
        3 1 0:52 / /mnt/old ro,relatime - nfs srv:/old ro,vers=3,proto=tcp\n\
        4 1 0:53 / /mnt/ssh rw - fuse.sshfs host:/ rw\n\
        5 1 0:54 / /net rw - autofs auto.net rw,fd=7\n\
        6 1 259:1 / /mnt/gone rw - xfs /dev/nvme1n1 ro\n";

    fn of(path: &str, errno: i32, root: bool) -> Option<&'static str> {
        cause(Mounts::parse(MOUNTS.as_bytes()).by_words(Path::new(path)).unwrap(), errno, root)
    }

    #[test]
    fn the_cause_depends_on_the_file_system_and_on_who_asks() {
        assert!(of("/mnt/x/a", libc::EACCES, true).unwrap().contains("root_squash"));
        assert!(of("/mnt/x/a", libc::EACCES, false).unwrap().contains("to this user"));
        assert_eq!(of("/a", libc::EACCES, false), None);
        assert!(of("/mnt/x/a", libc::ESTALE, false).unwrap().contains("does not know"));
        assert_eq!(of("/a", libc::ESTALE, false), None);
        assert!(of("/mnt/x/a", libc::EIO, false).unwrap().contains("server"));
        assert!(of("/a", libc::EIO, false).unwrap().contains("disk"));
        assert!(of("/mnt/ssh/a", libc::ENOTCONN, false).unwrap().contains("program has ended"));
        assert!(of("/mnt/x/a", libc::EHOSTDOWN, false).unwrap().contains("cannot be reached"));
        assert!(of("/mnt/old/a", libc::EROFS, false).unwrap().contains("mounted read-only"));
        assert!(of("/mnt/x/a", libc::EROFS, false).unwrap().contains("server"));
        assert!(of("/mnt/gone/a", libc::EROFS, false).unwrap().contains("read-only"));
        assert!(of("/a", libc::EROFS, false).unwrap().contains("gone read-only"));
        assert!(of("/a", libc::ENOSPC, false).unwrap().contains("full"));
        assert!(of("/mnt/gone/a", libc::ENODEV, false).unwrap().contains("gone"));
    }

    #[test]
    fn an_error_about_the_file_itself_blames_nobody() {
        for errno in [libc::ENOENT, libc::EINVAL, libc::ENOMEM, libc::EMFILE, libc::EISDIR, libc::EXDEV] {
            assert_eq!(blamed(Path::new("/"), errno), None);
        }
        // Every error that matters has words somewhere, and those that are named have them on a server.
        for errno in (1..134).filter(|errno| matters(*errno)) {
            assert!(of("/mnt/x/a", errno, false).is_some(), "errno {errno}");
        }
    }

    #[test]
    fn the_file_system_of_a_real_path_is_named() {
        let told = blamed(Path::new("/dev/shm/nothing"), libc::ENOSPC).unwrap();
        assert!(told.starts_with("tmpfs at /dev/shm") && told.ends_with("; it is full"), "{told}");
        // By a symbolic link too.
        let dir = tempfile::tempdir_in(".").unwrap();
        std::os::unix::fs::symlink("/dev/shm", dir.path().join("link")).unwrap();
        let told = blamed(&dir.path().join("link/nothing"), libc::ENOSPC).unwrap();
        assert!(told.starts_with("tmpfs at /dev/shm"), "{told}");
    }

    #[test]
    fn a_path_below_an_empty_mount_point_is_told() {
        let fstab = b"# what\tthere is\n/dev/vda / ext4 defaults 0 1\nnone swap swap\n\
            srv:/data /mnt/data nfs4 ro,_netdev 0 0\nsrv:/export /mnt/x nfs4 rw\n";
        let mounts = Mounts::parse(MOUNTS.as_bytes());
        let told = |path: &str| missing(Path::new(path), &mounts, fstab);
        let words = "nothing is mounted at /mnt/data, where /etc/fstab has srv:/data (nfs4)";
        assert_eq!(told("/mnt/data/train/a.bin").as_deref(), Some(words));
        assert_eq!(told("/mnt/data").as_deref(), Some(words));
        for mounted in ["/mnt/x/a.bin", "/data", "/mnt/data2"] {
            assert_eq!(told(mounted), None, "{mounted}");
        }
        assert_eq!(told("/net/host/a").as_deref(), Some("autofs at /net has mounted nothing there"));
    }
}
