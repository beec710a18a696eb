//! A network file system: the same bytes, and what becomes of a run whose server stops.

use crate::cufile;
use crate::data::{Data, every_way};
use crate::server::{RDMA, Server, TCP, TCP_3, options_of};

/// Reads by every backend through a mount with these options, and what the run says of the mount.
#[track_caller]
fn reads_by(options: &str, transport: &str, version: &str) {
    let server = Server::start();
    let data = Data::in_folder(server.folder().join("data"));
    let mounted = server.mount(options);
    let data = data.at(mounted.join("data"));
    let json = every_way(&data);
    let system = &json["file_systems"][0];
    assert_eq!(system["transport"], transport, "{system}");
    let said = system["options"].as_str().unwrap().split(',').collect::<Vec<_>>();
    for option in options_of(mounted.point()).split(',') {
        assert!(said.contains(&option), "{option} in {system}");
    }
    assert!(said.contains(&&*format!("vers={version}")), "{system}");
    assert!(system["source"].as_str().unwrap().ends_with(":/mnt/served/export"), "{system}");
    assert_eq!(system["gds"]["possible"], transport == "rdma", "{system}");
    cufile::takes(&data);
}

#[test]
fn nfs_4_2_over_tcp() {
    reads_by(TCP, "tcp", "4.2");
}

#[test]
fn nfs_4_2_over_tcp_with_several_connections() {
    reads_by(&format!("{TCP},nconnect=4,rsize=65536"), "tcp", "4.2");
}

#[test]
fn nfs_3_over_tcp() {
    reads_by(TCP_3, "tcp", "3");
}

#[test]
fn nfs_4_2_over_rdma() {
    reads_by(RDMA, "rdma", "4.2");
}
