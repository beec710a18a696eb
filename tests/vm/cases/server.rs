//! An NFS server on this machine, and mounts of what it exports.

use std::path::{Path, PathBuf};

use crate::guest::{Mounted, Undo, drive, sh};

/// The address of the network that is only here. RDMA over a loopback device does not work, so it has one of its own.
const ADDRESS: &str = "10.1.1.1";

/// A server that exports one folder, which is on a drive of its own, until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    // In the order in which they are undone.
    _serving: Undo,
    _exported: Undo,
    _daemons: Undo,
    _network: Undo,
    disk: Mounted,
}

impl Server {
    /// Starts it, for versions 3 and 4.2, over TCP and RDMA.
    #[track_caller]
    pub(crate) fn start() -> Server {
        Server::exporting("rw,no_root_squash")
    }

    /// The same, exporting with these options.
    #[track_caller]
    pub(crate) fn exporting(options: &str) -> Server {
        let disk = Mounted::fresh_at("served", "mkfs.ext4 -q -F", &drive("n3"), "data=ordered");
        let folder = disk.join("export");
        std::fs::create_dir(&folder).unwrap();
        let network = Undo::after(
            &format!(
                "ip link add served type dummy; ip addr add {ADDRESS}/24 dev served; ip link set served up; \
                 modprobe rdma_rxe; rdma link add rxe0 type rxe netdev served"
            ),
            "rdma link delete rxe0; ip link delete served",
        );
        // What holds the state of clients over a restart is given little time for it.
        let daemons = Undo::after(
            "modprobe nfsd; mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd; mkdir -p /run/rpc_pipefs; \
             rpcbind -w; rpc.mountd --no-udp 2>/dev/null",
            "pkill -x rpc.mountd; pkill -x rpcbind",
        );
        let exported = Undo::after(
            &format!("exportfs -i -o {options},fsid=1,insecure,no_subtree_check '*:{}'", folder.display()),
            "exportfs -ua; exportfs -f",
        );
        let serving = Undo::after(SERVE, "rpc.nfsd 0");
        Server { _serving: serving, _exported: exported, _daemons: daemons, _network: network, disk }
    }

    /// The folder as the server sees it.
    pub(crate) fn folder(&self) -> PathBuf {
        self.disk.join("export")
    }

    /// Mounts it with these options.
    #[track_caller]
    pub(crate) fn mount(&self, options: &str) -> Mounted {
        Mounted::at("nfs", &format!("-t nfs -o {options} {ADDRESS}:{}", self.folder().display()))
    }

    /// Stops serving. Whoever asks waits for an answer.
    #[track_caller]
    pub(crate) fn stop(&self) {
        sh("rpc.nfsd 0");
    }

    /// Serves again.
    #[track_caller]
    pub(crate) fn go_on(&self) {
        sh(SERVE);
    }
}

/// Serves with 4 threads. Clients of before have 10 seconds to say which files they had open.
const SERVE: &str =
    "rpc.nfsd --no-udp --nfs-version 3 --nfs-version 4.2 --grace-time 10 --lease-time 10 --rdma=20049 4";

/// Options for a mount by each transport.
pub(crate) const TCP: &str = "vers=4.2,proto=tcp";
pub(crate) const TCP_3: &str = "vers=3,proto=tcp,nolock";
pub(crate) const RDMA: &str = "vers=4.2,proto=rdma,port=20049";

/// The options that the kernel took for a mount.
#[track_caller]
pub(crate) fn options_of(point: &Path) -> String {
    sh(&format!("findmnt -no OPTIONS {}", point.display()))
}
