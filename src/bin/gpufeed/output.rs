//! Numbers for people and for scripts.

use std::io::Write;

use serde_json::Value;

/// Writes the one JSON object of a run.
pub(crate) fn json(value: &Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// Bytes per second as (10^9 bytes, 2^30 bytes) per second; 0 for a run too short for the clock.
pub(crate) fn rates(bytes: u64, seconds: f64) -> (f64, f64) {
    if seconds <= 0.0 {
        return (0.0, 0.0);
    }
    let rate = bytes as f64 / seconds;
    (rate / 1e9, rate / f64::from(1u32 << 30))
}

/// `1234` as `1234 B`, larger numbers in the unit that leaves up to four digits.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 10_000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// User and system seconds of this process so far, all threads together, and of children that it has waited for.
pub(crate) fn cpu_seconds() -> f64 {
    rusage(libc::RUSAGE_SELF) + rusage(libc::RUSAGE_CHILDREN)
}

fn rusage(who: libc::c_int) -> f64 {
    // SAFETY: all zeros is a valid `rusage`, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// The most memory that was resident at once, in bytes. (`ru_maxrss` would count what was there before `exec`.)
pub(crate) fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_comes_in_both_units_and_is_never_infinite() {
        let (gb, gib) = rates(1 << 30, 1.0);
        assert!((gb - 1.073_741_824).abs() < 1e-9 && (gib - 1.0).abs() < 1e-9);
        assert_eq!(rates(1 << 30, 0.0), (0.0, 0.0));
        assert_eq!(rates(0, 1.0), (0.0, 0.0));
    }

    #[test]
    fn sizes_are_exact_while_they_are_small() {
        assert_eq!(size(1797), "1797 B");
        assert_eq!(size(64 << 20), "64.0 MiB");
    }
}
