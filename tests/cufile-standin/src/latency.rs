//! Time that operations take, on request: the same at the same seed and place, whatever the timing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::settings::settings;

/// Sleeps for as long as the next operation is to take.
pub(crate) fn pause() {
    static OPERATIONS: AtomicU64 = AtomicU64::new(0);
    if let Some((seed, max)) = settings().latency {
        let place = OPERATIONS.fetch_add(1, Ordering::Relaxed);
        let mut bits = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ place;
        // The finaliser of SplitMix64.
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^= bits >> 31;
        std::thread::sleep(Duration::from_micros(bits % (max + 1)));
    }
}

/// Never returns.
pub(crate) fn hang() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
