//! A limit on bytes per second: a token bucket in whole numbers.

use std::fmt;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

/// Tells the time that has passed since some start. It should not go backwards.
pub(crate) trait Clock: Send + fmt::Debug {
    fn now(&self) -> Duration;

    /// A channel that has a message when so much time has passed.
    fn after(&self, wait: Duration) -> Receiver<Instant>;
}

/// The time since it was made.
#[derive(Debug)]
pub(crate) struct SystemClock(Instant);

impl SystemClock {
    pub(crate) fn new() -> Self {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn after(&self, wait: Duration) -> Receiver<Instant> {
        crossbeam_channel::after(wait)
    }
}

/// Lets so many bytes through per second, and up to `burst` at once after a pause. It starts full.
///
/// In any stretch of time `t`, the bytes granted are at most `rate * t` and, on top of it, the burst or the largest
/// request, whichever is more.
///
/// What is counted are billionths of a byte: `rate` of them come in each nanosecond, so nothing is ever rounded off
/// and the limit does not drift, however long it runs and however often it is asked.
pub(crate) struct TokenBucket {
    rate: NonZeroU64,
    /// What the bucket holds when it is full, in billionths of a byte.
    full: i128,
    /// What it holds. Below zero after a request larger than the burst, until the debt is paid off.
    level: i128,
    /// When `level` was right.
    at: Duration,
    clock: Box<dyn Clock>,
}

/// Billionths in a byte, and nanoseconds in a second.
const PARTS: i128 = 1_000_000_000;

impl TokenBucket {
    /// A full bucket.
    pub(crate) fn new(bytes_per_second: NonZeroU64, burst: u64, clock: Box<dyn Clock>) -> Self {
        let full = i128::from(burst) * PARTS;
        TokenBucket { rate: bytes_per_second, full, level: full, at: clock.now(), clock }
    }

    /// Takes `bytes`, or takes nothing and says how long to wait: a call for as many bytes after that time succeeds,
    /// and none before it does.
    ///
    /// A request larger than the burst is granted when the bucket is full, and leaves a debt that later ones wait for.
    /// (A wait beyond `Duration::MAX`, which takes rates of a few bytes per second, is cut to that.)
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), Duration> {
        self.refill();
        let wanted = i128::from(bytes) * PARTS;
        let missing = wanted.min(self.full) - self.level;
        if missing <= 0 {
            self.level -= wanted;
            return Ok(());
        }
        // Rounded up: a nanosecond less would not do.
        Err(nanoseconds(missing.unsigned_abs().div_ceil(self.rate.get().into())))
    }

    /// Takes `bytes` that cannot be put off: what is missing is a debt.
    pub(crate) fn charge(&mut self, bytes: u64) {
        self.refill();
        // No more than a caller could ever pay back.
        self.level = (self.level - i128::from(bytes) * PARTS).max(-(i128::from(u64::MAX) * PARTS));
    }

    /// A channel that has a message when so much of the bucket's time has passed.
    pub(crate) fn after(&self, wait: Duration) -> Receiver<Instant> {
        self.clock.after(wait)
    }

    fn refill(&mut self) {
        let now = self.clock.now();
        // A clock that steps back is broken; what it says is taken for the present, so that it can neither give bytes
        // for the step nor, by a large one, stop them from coming.
        let passed = now.saturating_sub(self.at).as_nanos();
        self.at = now;
        let room = (self.full - self.level).unsigned_abs();
        // An overflow is far more than there can be room for.
        let came = passed.checked_mul(self.rate.get().into()).map_or(room, |came| came.min(room));
        self.level += came.cast_signed();
    }
}

impl fmt::Debug for TokenBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenBucket")
            .field("bytes_per_second", &self.rate)
            .field("burst", &(self.full / PARTS))
            .finish_non_exhaustive()
    }
}

fn nanoseconds(count: u128) -> Duration {
    const SECOND: u128 = PARTS.unsigned_abs();
    match u64::try_from(count / SECOND) {
        // The rest is below a second, so it fits.
        Ok(seconds) => Duration::new(seconds, (count % SECOND) as u32),
        Err(_) => Duration::MAX,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;

    use super::*;

    /// A clock that stands still until it is set, or somebody waits for it.
    #[derive(Debug, Default, Clone)]
    pub(crate) struct FakeClock(Arc<Mutex<Duration>>);

    impl FakeClock {
        fn pass(&self, time: Duration) {
            let mut now = self.0.lock().unwrap();
            *now = now.saturating_add(time);
        }

        fn set(&self, now: Duration) {
            *self.0.lock().unwrap() = now;
        }
    }

    impl Clock for FakeClock {
        fn now(&self) -> Duration {
            *self.0.lock().unwrap()
        }

        /// The time passes at once.
        fn after(&self, wait: Duration) -> Receiver<Instant> {
            *self.0.lock().unwrap() += wait;
            crossbeam_channel::after(Duration::ZERO)
        }
    }

    fn bucket(rate: u64, burst: u64) -> (TokenBucket, FakeClock) {
        let clock = FakeClock::default();
        (TokenBucket::new(NonZeroU64::new(rate).unwrap(), burst, Box::new(clock.clone())), clock)
    }

    /// What `rate` lets through in a time, by plain division; rounded down.
    fn earned(rate: u64, time: Duration) -> u128 {
        u128::from(rate) * time.as_nanos() / 1_000_000_000
    }

    const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
    const NANO: Duration = Duration::from_nanos(1);

    #[test]
    fn a_full_bucket_gives_its_burst_at_once_and_then_its_rate() {
        let (mut bucket, clock) = bucket(1000, 500);
        assert_eq!(bucket.take(200), Ok(()));
        assert_eq!(bucket.take(300), Ok(()));
        assert_eq!(bucket.take(1), Err(Duration::from_millis(1)));
        clock.pass(Duration::from_millis(250));
        assert_eq!(bucket.take(251), Err(Duration::from_millis(1)));
        assert_eq!(bucket.take(250), Ok(()));
        // A long pause fills it, and no more than that.
        clock.pass(WEEK);
        assert_eq!(bucket.take(500), Ok(()));
        assert_eq!(bucket.take(1), Err(Duration::from_millis(1)));
    }

    #[test]
    fn a_request_of_nothing_is_granted_unless_there_is_a_debt() {
        let (mut bucket, clock) = bucket(10, 0);
        assert_eq!(bucket.take(0), Ok(()));
        assert_eq!(bucket.take(5), Ok(()));
        assert_eq!(bucket.take(0), Err(Duration::from_millis(500)));
        clock.pass(Duration::from_millis(500));
        assert_eq!(bucket.take(0), Ok(()));
    }

    #[test]
    fn a_request_larger_than_the_burst_waits_for_a_full_bucket_and_is_paid_off_afterwards() {
        let (mut bucket, clock) = bucket(100, 50);
        assert_eq!(bucket.take(10), Ok(()));
        assert_eq!(bucket.take(1000), Err(Duration::from_millis(100)));
        clock.pass(Duration::from_millis(100));
        assert_eq!(bucket.take(1000), Ok(()));
        // 950 bytes of debt, and the byte itself.
        assert_eq!(bucket.take(1), Err(Duration::from_millis(9510)));
        clock.pass(Duration::from_millis(9510));
        assert_eq!(bucket.take(1), Ok(()));
    }

    #[test]
    fn the_largest_numbers_neither_overflow_nor_panic() {
        for (rate, burst) in [(u64::MAX, u64::MAX), (1, u64::MAX), (u64::MAX, 0), (u64::MAX, 1), (1, 0)] {
            let (mut bucket, clock) = bucket(rate, burst);
            for time in [Duration::ZERO, NANO, WEEK, Duration::MAX, Duration::ZERO, NANO] {
                clock.pass(time);
                for bytes in [u64::MAX, 1, 0, u64::MAX] {
                    let _ = bucket.take(bytes);
                }
            }
        }
        // At one byte a second that is 584 billion years.
        for (rate, wait) in [(1, Duration::from_secs(u64::MAX)), (u64::MAX, Duration::from_secs(1))] {
            let (mut bucket, clock) = bucket(rate, u64::MAX);
            assert_eq!(bucket.take(u64::MAX), Ok(()));
            assert_eq!(bucket.take(u64::MAX), Err(wait));
            clock.pass(wait);
            assert_eq!(bucket.take(u64::MAX), Ok(()));
        }
    }

    #[test]
    fn a_clock_that_stands_still_gives_the_burst_and_no_more() {
        let (mut bucket, _clock) = bucket(1_000_000_000, 64);
        let granted: u64 = (0..1000).filter(|_| bucket.take(1).is_ok()).count() as u64;
        assert_eq!(granted, 64);
    }

    #[test]
    fn after_weeks_of_odd_steps_not_one_byte_is_lost_or_won() {
        // Rates that divide a second badly, asked at times that fit neither; the bucket never gets full.
        for rate in [3, 7, 999_999_937, 3_333_333_333, 12_345_678_901_234_567] {
            let (mut bucket, clock) = bucket(rate, u64::MAX);
            assert_eq!(bucket.take(u64::MAX), Ok(()));
            let (mut time, mut granted) = (Duration::ZERO, 0u128);
            for step in 0..20_000u64 {
                let pass = Duration::from_nanos(1 + step * 7_919 + step % 13 * 21_000_000_011);
                clock.pass(pass);
                time += pass;
                let due = earned(rate, time) - granted;
                let due = u64::try_from(due).unwrap();
                assert_eq!(bucket.take(due), Ok(()), "rate {rate}, step {step}");
                granted += u128::from(due);
                assert!(bucket.take(1).is_err());
            }
            assert!(time > 3 * WEEK);
        }
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing_for_it_and_does_not_stop_the_flow() {
        let (mut bucket, clock) = bucket(1000, 100);
        clock.set(WEEK);
        assert_eq!(bucket.take(100), Ok(()));
        clock.set(Duration::ZERO);
        assert_eq!(bucket.take(100), Err(Duration::from_millis(100)));
        clock.pass(Duration::from_millis(100));
        assert_eq!(bucket.take(100), Ok(()));
    }

    #[test]
    fn the_system_clock_goes_on_and_a_wait_by_it_is_enough() {
        let rate = NonZeroU64::new(1_000_000).unwrap();
        let mut bucket = TokenBucket::new(rate, 1000, Box::new(SystemClock::new()));
        let start = Instant::now();
        let mut granted = 0;
        while granted < 20_000 {
            match bucket.take(1000) {
                Ok(()) => granted += 1000,
                Err(wait) => {
                    std::thread::sleep(wait);
                    assert_eq!(bucket.take(1000), Ok(()));
                    granted += 1000;
                }
            }
        }
        assert!(start.elapsed() >= Duration::from_millis(19));
    }

    /// Rates from a byte a second to the most there is, as likely small as large.
    fn rates() -> impl Strategy<Value = u64> {
        (0u32..64, any::<u64>()).prop_map(|(shift, bits)| (bits >> shift).max(1))
    }

    fn sizes() -> impl Strategy<Value = u64> {
        (0u32..65, any::<u64>()).prop_map(|(shift, bits)| bits.checked_shr(shift).unwrap_or(0))
    }

    /// Pauses from none to days, and the rare month.
    fn pauses() -> impl Strategy<Value = Duration> {
        (0u32..64, any::<u64>())
            .prop_map(|(shift, bits)| Duration::from_nanos((bits >> shift) % (30 * 86_400 * 1_000_000_000)))
    }

    proptest! {
        #[test]
        fn the_bytes_of_any_interval_are_bounded(
            rate in rates(),
            burst in sizes(),
            calls in proptest::collection::vec((pauses(), sizes()), 1..60),
        ) {
            let (mut bucket, clock) = bucket(rate, burst);
            let mut grants = Vec::new();
            let mut now = Duration::ZERO;
            for (pause, bytes) in calls {
                clock.pass(pause);
                now += pause;
                if bucket.take(bytes).is_ok() {
                    grants.push((now, bytes));
                }
            }
            for (first, (start, _)) in grants.iter().enumerate() {
                let (mut sum, mut largest) = (0u128, 0);
                for (end, bytes) in &grants[first..] {
                    sum += u128::from(*bytes);
                    largest = largest.max(*bytes);
                    let most = earned(rate, *end - *start) + u128::from(burst.max(largest));
                    prop_assert!(sum <= most, "{sum} bytes from {start:?} to {end:?}, at most {most} are allowed");
                }
            }
        }

        #[test]
        fn a_wait_is_enough_and_a_nanosecond_less_is_not(
            rate in rates(),
            burst in sizes(),
            calls in proptest::collection::vec((pauses(), sizes()), 1..60),
        ) {
            let (mut bucket, clock) = bucket(rate, burst);
            for (pause, bytes) in calls {
                clock.pass(pause);
                let Err(wait) = bucket.take(bytes) else { continue };
                prop_assert!(wait > Duration::ZERO);
                if wait > Duration::from_secs(u64::MAX / 1000) {
                    // The fake clock would reach its end.
                    continue;
                }
                clock.pass(wait - NANO);
                prop_assert_eq!(bucket.take(bytes), Err(NANO));
                clock.pass(NANO);
                prop_assert_eq!(bucket.take(bytes), Ok(()));
            }
        }

        #[test]
        fn greedy_demand_gets_the_whole_rate(
            rate in rates(),
            burst in sizes(),
            sizes in proptest::collection::vec(1u64..1 << 40, 1..200),
        ) {
            let (mut bucket, clock) = bucket(rate, burst);
            let (mut time, mut granted, mut waits) = (Duration::ZERO, 0u128, 0u128);
            for bytes in sizes {
                while let Err(wait) = bucket.take(bytes) {
                    clock.pass(wait);
                    time += wait;
                    waits += 1;
                }
                granted += u128::from(bytes);
            }
            // Each wait ends on a whole nanosecond, and what comes in the rest of it may find the bucket full.
            let paid = time.saturating_sub(Duration::from_nanos(waits as u64));
            prop_assert!(granted >= earned(rate, paid), "{granted} bytes in {time:?} at {rate} bytes per second");
        }

        #[test]
        fn a_clock_that_jumps_anywhere_never_panics(
            rate in rates(),
            burst in sizes(),
            calls in proptest::collection::vec((any::<u64>(), 0u32..1_000_000_000, sizes()), 1..60),
        ) {
            let (mut bucket, clock) = bucket(rate, burst);
            for (seconds, nanoseconds, bytes) in calls {
                clock.set(Duration::new(seconds, nanoseconds));
                let _ = bucket.take(bytes);
                prop_assert!(bucket.level <= bucket.full);
            }
        }
    }
}
