//! What is mounted where, as `/proc/self/mountinfo` tells it.
//!
//! Everything here but [`Mounts::of`] goes by the words of a path, and by links on local file systems. That is what an error message needs: a look
//! at the path itself could wait for ever for the very server that the message is about.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// One mount: a line of `mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// Tells one mount from another for as long as both are there.
    pub(super) id: u64,
    /// `st_dev` of the files on it; not so for btrfs and overlayfs, which give files devices of their own.
    pub(super) device: u64,
    /// The folder of the file system that is the root of this mount: not `/` for bind mounts and btrfs subvolumes.
    pub(super) root: PathBuf,
    pub(super) point: PathBuf,
    /// The kind, as the kernel names it: `ext4`, `nfs4`, `fuse.sshfs`.
    pub(super) kind: String,
    /// What is mounted: `/dev/nvme0n1`, `server:/export`, or any word where there is no such thing.
    pub(super) source: String,
    /// Those of the mount, and then those of the file system, as the kernel writes them.
    pub(super) options: String,
}

impl Mount {
    /// Whether either the mount or the file system is read-only.
    pub(super) fn is_read_only(&self) -> bool {
        self.options.split(',').any(|it| it == "ro")
    }

    /// Whether what it shows comes from elsewhere, or from another program, so that to ask it can take for ever.
    pub(super) fn is_remote(&self) -> bool {
        const REMOTE: [&str; 17] = [
            "9p", "afs", "autofs", "beegfs", "ceph", "cifs", "fuse", "fuseblk", "gpfs", "lustre", "ncpfs",
            "nfs", "nfs4", "panfs", "smb3", "virtiofs", "wekafs",
        ];
        REMOTE.contains(&self.kind.as_str()) || self.kind.starts_with("fuse.")
    }
}

/// The value of an option in a list of them; `""` for one without a value. Of several the last counts: those of the mount
/// come before the file system's own.
pub(super) fn option<'a>(options: &'a str, name: &str) -> Option<&'a str> {
    options.rsplit(',').find_map(|it| match it.split_once('=') {
        Some((key, value)) => (key == name).then_some(value),
        None => (it == name).then_some(""),
    })
}

/// Everything that is mounted, in the order in which it was.
#[derive(Debug, Clone, Default)]
pub(super) struct Mounts(Vec<Mount>);

impl Mounts {
    /// What this process sees. Nothing where `/proc` is not mounted.
    pub(super) fn now() -> Mounts {
        Mounts::parse(&fs::read("/proc/self/mountinfo").unwrap_or_default())
    }

    /// Lines that are not understood are left out.
    pub(super) fn parse(text: &[u8]) -> Mounts {
        Mounts(text.split(|byte| *byte == b'\n').filter_map(line).collect())
    }

    /// The mount with this number.
    pub(super) fn by_id(&self, id: u64) -> Option<&Mount> {
        self.0.iter().find(|mount| mount.id == id)
    }

    /// The mount that an absolute path lies on by its words: the longest mount point that it is below, and of several
    /// at one point the last, which hides the others.
    pub(super) fn by_words(&self, path: &Path) -> Option<&Mount> {
        // `max_by_key` takes the last of equals.
        let above = self.0.iter().filter(|mount| path.starts_with(&mount.point));
        above.max_by_key(|mount| mount.point.components().count())
    }

    /// The mount of a file with this `st_dev`. `open` opens it without reading it (`O_PATH`), and is asked only where neither the
    /// words of the path nor the local links in it settle it: for files whose device is not that of their mount.
    pub(super) fn of(
        &self,
        path: &Path,
        device: u64,
        open: impl FnOnce() -> io::Result<File>,
    ) -> Option<&Mount> {
        if let Some(mount) = self.by_words(&absolute(path)).filter(|mount| mount.device == device) {
            return Some(mount);
        }
        let place = self.by_links(path);
        if let Some(mount) = place.filter(|mount| mount.device == device) {
            return Some(mount);
        }
        // A server might never answer.
        let ask = place.is_some_and(|mount| !mount.is_remote());
        let told = || open().ok().and_then(|file| mount_id(&file)).and_then(|id| self.by_id(id));
        // Before Linux 5.8 there is no number to ask for.
        let by_device = || self.0.iter().rev().find(|mount| mount.device == device);
        ask.then(told).flatten().or_else(by_device).or(place)
    }

    /// As [`Mounts::by_words`], with the symbolic links in the path followed: those that lie on local file systems, since the
    /// others cannot be read without asking a server.
    pub(super) fn by_links(&self, path: &Path) -> Option<&Mount> {
        self.by_words(&self.follow(&absolute(path)))
    }

    fn follow(&self, path: &Path) -> PathBuf {
        const MOST_LINKS: u32 = 40; // as the kernel follows
        let mut links = 0;
        let mut rest: Vec<OsString> = Vec::new();
        let push = |rest: &mut Vec<OsString>, path: &Path| {
            rest.extend(path.components().rev().map(|part| part.as_os_str().to_os_string()));
        };
        push(&mut rest, path);
        let mut done = PathBuf::from("/");
        while let Some(part) = rest.pop() {
            match Path::new(&part).components().next() {
                Some(Component::RootDir) => done = PathBuf::from("/"),
                Some(Component::ParentDir) => {
                    done.pop();
                }
                Some(Component::Normal(_)) => {
                    let next = done.join(&part);
                    let remote = self.by_words(&next).is_none_or(Mount::is_remote);
                    match (!remote).then(|| fs::read_link(&next)) {
                        Some(Ok(target)) if links < MOST_LINKS => {
                            links += 1;
                            push(&mut rest, &target);
                        }
                        _ => done = next,
                    }
                }
                _ => {}
            }
        }
        done
    }
}

/// The path from the root on, by its words.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// The number of the mount that an open file lies on, by `statx(STATX_MNT_ID)`: Linux 5.8.
fn mount_id(file: &File) -> Option<u64> {
    let mut stat = std::mem::MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the descriptor is open, the empty path with AT_EMPTY_PATH names it, and `stat` has room for one `statx`.
    let done = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC,
            libc::STATX_MNT_ID,
            stat.as_mut_ptr(),
        )
    };
    if done != 0 {
        return None;
    }
    // SAFETY: the call above succeeded and filled `stat` (all zeros is a valid value in any case).
    let stat = unsafe { stat.assume_init() };
    (stat.stx_mask & libc::STATX_MNT_ID != 0).then_some(stat.stx_mnt_id)
}

/// Of `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.
fn line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let mut next = || fields.next();
    let id = number(next()?)?;
    let _parent = next()?;
    let (major, minor) = std::str::from_utf8(next()?).ok()?.split_once(':')?;
    let device = libc::makedev(major.parse().ok()?, minor.parse().ok()?);
    let (root, point) = (path(next()?), path(next()?));
    let of_mount = words(next()?);
    // Any number of optional fields, and a dash.
    while next()? != b"-" {}
    let (kind, source) = (words(next()?), words(next()?));
    let options = match words(next().unwrap_or_default()) {
        of_file_system if of_file_system.is_empty() => of_mount,
        of_file_system => format!("{of_mount},{of_file_system}"),
    };
    Some(Mount { id, device, root, point, kind, source, options })
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescaped(field)))
}

fn words(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescaped(field)).into_owned()
}

/// Space, tab, newline, backslash and `#` are written as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| byte == b'\\');
        match code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok()) {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    bytes
}

/// What `/etc/fstab` wants mounted at a point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) point: PathBuf,
    pub(super) kind: String,
    pub(super) source: String,
}

/// The entry of `fstab` for the longest mount point that `path` is below, unless something is mounted there.
pub(super) fn unmounted(fstab: &[u8], mounts: &Mounts, path: &Path) -> Option<Wanted> {
    let entries = fstab.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        let source = fields.next().filter(|field| !field.starts_with(b"#"))?;
        let (point, kind) = (self::path(fields.next()?), fields.next()?);
        Some(Wanted { point, kind: words(kind), source: words(source) })
    });
    let above = entries.filter(|entry| entry.point.is_absolute() && path.starts_with(&entry.point));
    let entry = above.max_by_key(|entry| entry.point.components().count())?;
    let mounted = mounts.by_words(path).is_some_and(|mount| mount.point.starts_with(&entry.point));
    (!mounted).then_some(entry)
}

/// The number of a block device by the path of its node.
pub(super) fn device_of_node(node: &str) -> Option<u64> {
    let metadata = fs::metadata(node).ok()?;
    metadata.file_type().is_block_device().then(|| metadata.rdev())
}

#[cfg(test)]
#[path = "mount/tests.rs"]
mod tests;
