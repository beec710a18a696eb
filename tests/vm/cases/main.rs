//! What only a machine with drives, a kernel and servers of its own can show. `tests/vm/run` boots one and runs these there,
//! one after the other, as root. Each makes its file systems anew and takes them away again.

#[path = "../../common/launcher.rs"]
mod launcher;

mod cufile;
mod data;
mod faults;
mod guest;
mod lies_on;
mod local;
mod nfs;
mod nvme;
mod odd;
mod odd_server;
mod refused;
mod server;
mod stops;
mod stuck;
