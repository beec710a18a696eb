//! What is still registered when the process ends, reported on request.

use crate::misuse::{Misuse, report};
use crate::state::State;

/// Reports each handle, buffer, batch and stream that nobody gave back, and a driver that is still open.
pub(crate) fn report_all() {
    let state = State::lock();
    let leak = |address: u64, what: &str| report(Misuse::Leak, "exit", address, what);
    for (handle, file) in &state.handles {
        leak(*handle as u64, &format!("the handle of descriptor {} was never deregistered", file.fd));
    }
    for (base, buffer) in &state.buffers {
        leak(*base, &format!("a registration of {} bytes was never ended", buffer.len));
    }
    for batch in state.batches.keys() {
        leak(*batch as u64, "a batch was never destroyed");
    }
    for stream in state.streams.keys() {
        leak(*stream as u64, "a stream was never deregistered");
    }
    if state.opens > 0 {
        leak(0, &format!("the driver was opened {} times more than it was closed", state.opens));
    }
}
