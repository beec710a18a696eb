//! How many reads are in flight at once.

/// Reads in flight: on each drive, so that a slow one does not take the places of a fast one, and on all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Depth {
    pub(super) each: u32,
    pub(super) all: u32,
}

/// The kernel makes no larger ring for every user, and nobody wants more threads.
pub(super) const MOST_READS: u32 = 4096;

/// What the reads of several drives take together at most, unless one drive's take more.
const SHARED_BYTES: u32 = 256 << 20;

impl Depth {
    /// `asked` on each of so many drives, but together no more than `most`, nor than what memory is for: they share it then.
    pub(super) fn new(asked: u32, drives: usize, most: u32, io_bytes: u32) -> Depth {
        Depth::within(asked, drives, most.min((SHARED_BYTES / io_bytes).max(asked)))
    }

    fn within(asked: u32, drives: usize, most: u32) -> Depth {
        let drives = u32::try_from(drives).unwrap_or(u32::MAX).max(1);
        let each = asked.min(most / drives).max(1);
        Depth { each, all: each.saturating_mul(drives).min(most).max(1) }
    }

    /// About half as many together, but not fewer than were asked for a single drive; `None` if there are no more than that.
    pub(super) fn less(self, asked: u32, drives: usize) -> Option<Depth> {
        let less = Depth::within(asked, drives, (self.all / 2).max(asked));
        (less.all < self.all).then_some(less)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(each: u32, all: u32) -> Depth {
        Depth { each, all }
    }

    #[test]
    fn each_drive_has_what_was_asked_as_far_as_all_together_may_have_it() {
        assert_eq!(Depth::new(16, 1, 4096, 1 << 20), of(16, 16));
        assert_eq!(Depth::new(16, 2, 4096, 1 << 20), of(16, 32));
        assert_eq!(Depth::new(16, 3, 4096, 1 << 20), of(16, 48));
        // More than 256 MiB, which 100 drives share; but one drive may have more.
        assert_eq!(Depth::new(16, 100, 4096, 1 << 20), of(2, 200));
        assert_eq!(Depth::new(512, 1, 4096, 1 << 20), of(512, 512));
        assert_eq!(Depth::new(512, 2, 4096, 1 << 20), of(256, 512));
        // Descriptors, and the largest ring.
        assert_eq!(Depth::new(16, 2, 7, 1 << 20), of(3, 6));
        assert_eq!(Depth::new(16, 1, 7, 1 << 20), of(7, 7));
        assert_eq!(Depth::new(4096, 3, MOST_READS, 4096), of(1365, 4095));
        // More drives than reads.
        assert_eq!(Depth::new(16, 9000, 4096, 4096), of(1, 4096));
        assert_eq!(Depth::new(1, 5, 4096, 1 << 30), of(1, 1));
    }

    #[test]
    fn less_ends_at_what_was_asked_for_a_single_drive() {
        let mut depth = Depth::new(16, 4, 4096, 1 << 20);
        let mut all = vec![depth];
        while let Some(less) = depth.less(16, 4) {
            depth = less;
            all.push(depth);
        }
        assert_eq!(all, [of(16, 64), of(8, 32), of(4, 16)]);
        assert_eq!(Depth::new(16, 1, 4096, 1 << 20).less(16, 1), None);
        assert_eq!(of(1, 40).less(3, 40), Some(of(1, 20)));
    }
}
