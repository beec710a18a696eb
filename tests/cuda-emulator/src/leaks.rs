//! What is still alive when the process ends, reported on request.

use crate::driver::Driver;
use crate::memory::Kind;
use crate::misuse::{Misuse, report};

/// Reports each allocation, registration, stream and event that nobody gave back.
pub(crate) fn report_all() {
    let driver = Driver::lock("exit");
    for memory in driver.addresses.live() {
        let what = match memory.kind {
            Kind::Device => "device memory",
            Kind::Pool => "stream-ordered device memory",
            Kind::HostAlloc => "pinned host memory",
            Kind::HostRegistered => "a registration of host memory",
        };
        report(
            Misuse::Leak,
            "exit",
            memory.base as u64,
            &format!("{} bytes of {what} were never given back", memory.len),
        );
    }
    for (handle, stream) in driver.streams.iter().filter(|(_, stream)| stream.was_created()) {
        report(
            Misuse::Leak,
            "exit",
            *handle as u64,
            &format!("a stream of device {} was never destroyed", stream.device),
        );
    }
    for handle in driver.events.keys() {
        report(Misuse::Leak, "exit", *handle as u64, "an event was never destroyed");
    }
}
