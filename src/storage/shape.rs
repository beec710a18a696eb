//! The size of I/O that suits a file system, and where in a file it is best cut.
//!
//! Nothing has to be done for several connections to one NFS server (`nconnect`): the client sends the requests that are in
//! flight over all of them in turn. And io_uring keeps as many in flight as it is asked to, whatever its limit of worker
//! threads: Linux 6.1 starts a direct read on NFS in the thread that submits it, and Linux 6.12 by a worker that does not
//! wait for the answer (`nfs_direct_wait` returns at once for a request that is not synchronous). Seen on both with two
//! processors: 61 of 64 reads in flight with none or one of the workers, and four connections used alike.

use super::block::BlockKind;
use super::filesystem::FileSystem;

/// What one read asks for where neither the user nor the storage says anything.
const DEFAULT_IO: u64 = 1 << 20;
/// What the storage says is not followed beyond this: reads in flight take that much memory each.
const MOST_IO: u64 = 4 << 20;
/// Sizes are multiples of this, as the boundaries of direct I/O are.
const PAGE: u64 = 4096;

/// The I/O that suits the storage of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IoShape {
    /// The bytes that one read asks for at most, unless the user says.
    pub(crate) bytes: u64,
    /// Long reads are best cut where the offset in the file is a multiple of this; 0 if that makes no difference.
    pub(crate) unit: u64,
    /// Where `unit` comes from, in words.
    pub(crate) why: String,
}

impl IoShape {
    /// The shape for all of the file systems together. Those that want different things get what all are served with.
    pub(crate) fn of(file_systems: &[FileSystem]) -> IoShape {
        let mut shapes = file_systems.iter().map(one);
        let Some(first) = shapes.next() else { return IoShape::any() };
        if shapes.all(|other| (other.bytes, other.unit) == (first.bytes, first.unit)) {
            first
        } else {
            IoShape::any()
        }
    }

    fn any() -> IoShape {
        IoShape { bytes: DEFAULT_IO, unit: 0, why: String::new() }
    }
}

fn one(it: &FileSystem) -> IoShape {
    let sensible = |bytes: u64| bytes > PAGE && bytes.is_multiple_of(PAGE);
    if it.is_nfs() {
        // One request to the server brings at most this much, and a read of more is cut there by the client.
        let rsize = it.option("rsize").and_then(|text| text.parse().ok()).filter(|rsize| sensible(*rsize));
        let Some(rsize) = rsize else { return IoShape::any() };
        return IoShape { bytes: fit(rsize), unit: rsize, why: format!("rsize={rsize} of {}", it.name()) };
    }
    let stacked = it.devices.iter().any(|it| matches!(it.kind, BlockKind::Raid(_) | BlockKind::Mapper(_)));
    if stacked {
        // The stripe, so that a read keeps every disk as busy as the others; of a stripe that is longer than a read its
        // chunk, so that a read keeps as few disks busy as it can.
        let (stripe, chunk) = (it.limits.best, it.limits.least);
        let unit = [stripe, chunk].into_iter().find(|unit| sensible(*unit) && *unit <= DEFAULT_IO);
        if let Some(unit) = unit {
            let what = if unit == stripe { "stripe" } else { "chunk" };
            return IoShape {
                bytes: fit(unit),
                unit,
                why: format!("a {what} of {unit} bytes of {}", it.name()),
            };
        }
    }
    // A larger read is sent to the device in as many commands as it takes, the last of which shall not be a small one.
    match it.limits.most {
        most if sensible(most) => IoShape { bytes: fit(most).min(DEFAULT_IO), ..IoShape::any() },
        _ => IoShape::any(),
    }
}

/// About the default, in whole units; one unit if that is more, up to a limit.
fn fit(unit: u64) -> u64 {
    match unit {
        0..=DEFAULT_IO => DEFAULT_IO / unit.max(1) * unit,
        _ => unit.min(MOST_IO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::block::Limits;
    use crate::storage::filesystem::tests::file_system;

    fn nfs(options: &str) -> FileSystem {
        file_system(&format!("1 2 0:9 / /m rw - nfs4 s:/e rw,proto=tcp{options}"), &[])
    }

    fn disk(devices: &[BlockKind], limits: Limits) -> FileSystem {
        FileSystem { limits, ..file_system("1 2 9:0 / /m rw - xfs /dev/md0 rw", devices) }
    }

    fn shape(it: &FileSystem) -> (u64, u64) {
        let shape = IoShape::of(std::slice::from_ref(it));
        assert!(shape.bytes.is_multiple_of(PAGE) && shape.bytes <= MOST_IO);
        assert_eq!(shape.unit == 0, shape.why.is_empty());
        (shape.bytes, shape.unit)
    }

    #[test]
    fn nfs_is_read_in_whole_requests() {
        assert_eq!(shape(&nfs(",rsize=1048576")), (1 << 20, 1 << 20));
        assert_eq!(shape(&nfs(",rsize=262144")), (1 << 20, 256 << 10));
        assert_eq!(shape(&nfs(",rsize=786432")), (768 << 10, 768 << 10));
        assert_eq!(shape(&nfs(",rsize=4194304")), (4 << 20, 4 << 20));
        assert_eq!(shape(&nfs(",rsize=8388608")), (4 << 20, 8 << 20));
        for odd in ["", ",rsize=1024", ",rsize=5000", ",rsize=4096", ",rsize=x", ",rsize=0"] {
            assert_eq!(shape(&nfs(odd)), (DEFAULT_IO, 0), "{odd}");
        }
    }

    #[test]
    fn a_raid_is_read_by_its_stripes_and_a_disk_by_what_a_command_takes() {
        let raid = [BlockKind::Raid("raid0".into()), BlockKind::Scsi, BlockKind::Scsi];
        let limits = |most, least, best| Limits { most, least, best };
        assert_eq!(shape(&disk(&raid, limits(0, 64 << 10, 128 << 10))), (1 << 20, 128 << 10));
        assert_eq!(shape(&disk(&raid, limits(0, 512 << 10, 4 << 20))), (1 << 20, 512 << 10));
        assert_eq!(shape(&disk(&raid, limits(0, 64 << 10, 192 << 10))), (960 << 10, 192 << 10));
        assert_eq!(shape(&disk(&raid, limits(0, 512, 0))), (DEFAULT_IO, 0));
        // What a single disk likes best is meant for writes.
        assert_eq!(shape(&disk(&[BlockKind::Scsi], limits(0, 4096, 128 << 10))), (DEFAULT_IO, 0));
        for (most, bytes) in
            [(128 << 10, 1 << 20), (1280 << 10, 1 << 20), (768 << 10, 768 << 10), (0, 1 << 20)]
        {
            assert_eq!(shape(&disk(&[BlockKind::Scsi], limits(most, 512, 0))), (bytes, 0), "{most}");
        }
    }

    #[test]
    fn file_systems_that_disagree_get_the_default() {
        let (small, large) = (nfs(",rsize=65536"), nfs(",rsize=1048576"));
        assert_eq!(IoShape::of(&[small.clone(), large]), IoShape::any());
        assert_eq!(IoShape::of(&[small.clone(), small]).unit, 64 << 10);
        assert_eq!(IoShape::of(&[]), IoShape::any());
    }
}
