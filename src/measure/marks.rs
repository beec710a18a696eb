//! When a figure is not what it seems to be, and the words for it.

use super::caches::in_memory;
use super::report::{Cache, Limit, Mark, Run, Spread};
use super::run::SHORTEST;
use crate::{Dataset, NotDirect};

/// More than this share in the page cache, and a run was not cold; less than 1 less this, and it was not warm.
pub(super) const STRAY: f64 = 0.01;
/// Below this many seconds, the start of a run is a good part of it.
const SHORT: f64 = 0.1;
/// With fewer batches, the first one is a good part of the run.
const FEW_BATCHES: u64 = 4;
/// The largest of several rates may be this many times the smallest.
const NOISY: f64 = 1.5;
/// A rate may be this many times a limit, by noise alone.
const ABOVE: f64 = 1.1;

pub(super) fn mark(kind: &str, reason: impl Into<String>) -> Mark {
    Mark { kind: kind.into(), reason: reason.into() }
}

/// The marks that one run has by itself.
pub(super) fn of_run(run: &Run, not_direct: &[NotDirect], dataset: &Dataset) -> Vec<Mark> {
    let mut marks = Vec::new();
    match in_memory(dataset) {
        Some(name) => {
            marks.push(mark("memory", format!("{name} keeps its files in memory: no disk was read")))
        }
        None => marks.extend(of_cache(run.cache, run.cached_fraction_before)),
    }
    if run.seconds < SHORTEST || run.bytes == 0 {
        let what = match run.bytes {
            0 => "no batch came, so there is no rate",
            _ => "less than 10 ms: no rate can be told",
        };
        marks.push(mark("short", what));
    } else if run.seconds < SHORT || run.batches < FEW_BATCHES {
        let what = "less than 0.1 s or than 4 batches: its start and its end weigh much";
        marks.push(mark("short", what));
    }
    marks.extend(detour(run, not_direct));
    marks
}

fn of_cache(cache: Cache, share: Option<f64>) -> Option<Mark> {
    match (cache, share) {
        (_, None) => Some(mark(
            "unchecked",
            "the kernel does not tell who neither owns nor may write the files what of them is in the page cache",
        )),
        (Cache::Cold, Some(share)) if share > STRAY => {
            let what = "could not be dropped from the page cache (mapped or in use by another program?)";
            Some(mark("cached", format!("not cold: {:.1} % {what}", share * 100.0)))
        }
        (Cache::Warm, Some(share)) if share < 1.0 - STRAY => Some(mark(
            "not-cached",
            format!("not warm: only {:.1} % stayed in the page cache", share * 100.0),
        )),
        _ => None,
    }
}

/// Bytes that took another way than the one that a named backend is there for.
fn detour(run: &Run, not_direct: &[NotDirect]) -> Option<Mark> {
    let own = match run.backend.as_str() {
        "gds" => "gds",
        "uring" => "uring_direct",
        "pread" => "pread_direct",
        "page-cache" => "page_cache",
        _ => return None,
    };
    let total: u64 = run.bytes_by_way.values().sum();
    let (way, bytes) =
        run.bytes_by_way.iter().filter(|(way, _)| *way != own).max_by_key(|(_, bytes)| **bytes)?;
    let share = *bytes as f64 / total.max(1) as f64;
    if share <= STRAY {
        return None;
    }
    let mut what = format!("{:.0} % of the bytes took the way {way}", share * 100.0);
    if let Some(why) = not_direct.first() {
        what += &format!(": {}", why.reason);
    }
    Some(mark("detour", what))
}

/// Marks what no disk and no link can have done.
pub(super) fn above(run: &Run, disk: Option<f64>, link: Option<&Limit>) -> Vec<Mark> {
    let Some(rate) = run.gib_per_s else { return Vec::new() };
    let mut marks = Vec::new();
    if let Some(limit) = disk.filter(|limit| run.cache == Cache::Cold && rate > limit * ABOVE) {
        let what = "cold, and faster than the plain read loops: either not all was read from the disk, or the limit \
                    was measured too low";
        marks.push(mark("above-disk", format!("{what} ({limit:.3} GiB/s)")));
    }
    if let Some(limit) = link.map(|link| link.gib_per_s.max).filter(|limit| rate > limit * ABOVE) {
        let what = format!("faster than copies to the device ({limit:.3} GiB/s): it cannot all have arrived");
        marks.push(mark("above-link", what));
    }
    marks
}

/// Marks values that differ too much to be one figure.
pub(super) fn noisy(spread: Option<&Spread>) -> Option<Mark> {
    let spread = spread.filter(|spread| spread.count > 1 && spread.max > spread.min * NOISY)?;
    // Withheld rates are not among the values, but a rate can be as small as it likes.
    let times = if spread.min > 0.0 { spread.max / spread.min } else { f64::MAX };
    Some(mark("noisy", format!("the largest of {} rates is {times:.1} times the smallest", spread.count)))
}

/// Every kind of mark once: with the reason of the first run that has it, and in how many runs it was found.
pub(super) fn together<'r>(runs: impl Iterator<Item = &'r Run> + Clone) -> Vec<Mark> {
    let count = runs.clone().count();
    let mut found: Vec<(Mark, usize)> = Vec::new();
    for mark in runs.flat_map(|run| &run.marks) {
        match found.iter_mut().find(|(known, _)| known.kind == mark.kind) {
            Some((_, times)) => *times += 1,
            None => found.push((mark.clone(), 1)),
        }
    }
    let told = |(it, times): (Mark, usize)| match times {
        _ if count == 1 => it,
        times if times == count => it,
        times => mark(&it.kind, format!("{} ({times} of {count} runs)", it.reason)),
    };
    found.into_iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(marks: &[Mark]) -> Vec<&str> {
        marks.iter().map(|mark| mark.kind.as_str()).collect()
    }

    #[test]
    fn what_is_cached_is_not_called_cold_and_what_is_not_is_not_called_warm() {
        let kind = |cache, share| of_cache(cache, share).map(|mark| mark.kind);
        assert_eq!(kind(Cache::Cold, Some(0.0)), None);
        assert_eq!(kind(Cache::Cold, Some(0.011)).as_deref(), Some("cached"));
        assert_eq!(kind(Cache::Warm, Some(1.0)), None);
        assert_eq!(kind(Cache::Warm, Some(0.5)).as_deref(), Some("not-cached"));
        for cache in [Cache::Cold, Cache::Warm] {
            assert_eq!(kind(cache, None).as_deref(), Some("unchecked"));
        }
    }

    #[test]
    fn a_rate_above_the_disk_or_the_link_is_marked() {
        let link =
            Limit { method: String::new(), gib_per_s: Spread::of(&[1.0, 2.0]).unwrap(), marks: Vec::new() };
        let run = |cache, rate| Run { cache, gib_per_s: rate, ..super::super::summary::tests::run() };
        assert_eq!(kinds(&above(&run(Cache::Cold, Some(1.05)), Some(1.0), Some(&link))), [""; 0]);
        assert_eq!(kinds(&above(&run(Cache::Cold, Some(1.2)), Some(1.0), Some(&link))), ["above-disk"]);
        assert_eq!(kinds(&above(&run(Cache::Warm, Some(1.2)), Some(1.0), Some(&link))), [""; 0]);
        assert_eq!(kinds(&above(&run(Cache::Warm, Some(2.3)), Some(1.0), Some(&link))), ["above-link"]);
        assert_eq!(kinds(&above(&run(Cache::Cold, None), Some(1.0), Some(&link))), [""; 0]);
    }

    #[test]
    fn bytes_on_another_way_than_the_backends_own_are_a_detour() {
        let mut run = super::super::summary::tests::run();
        run.backend = "uring".into();
        run.bytes_by_way = [("uring_direct".into(), 995), ("uring_buffered".into(), 5)].into();
        assert_eq!(detour(&run, &[]), None);
        run.bytes_by_way = [("uring_direct".into(), 50), ("uring_buffered".into(), 50)].into();
        let mark = detour(&run, &[]).unwrap();
        assert!(mark.kind == "detour" && mark.reason.contains("50 %"), "{mark:?}");
        run.backend = "auto".into();
        assert_eq!(detour(&run, &[]), None);
    }

    #[test]
    fn rates_that_differ_too_much_are_noisy() {
        assert_eq!(noisy(Spread::of(&[1.0, 1.5]).as_ref()), None);
        assert_eq!(noisy(Spread::of(&[1.0]).as_ref()), None);
        assert_eq!(noisy(None), None);
        assert!(noisy(Spread::of(&[1.0, 1.2, 1.6]).as_ref()).unwrap().reason.contains("1.6 times"));
    }
}
