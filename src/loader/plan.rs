//! From the samples of a batch to the reads that bring them.
//!
//! Samples that are neighbours both in the file and in the batch form a run. A run is read straight into the slot
//! where direct I/O's boundaries allow; the rest goes through a staging chunk, from which the payload is copied.

use std::sync::Arc;

use crate::Result;
use crate::backend::Piece;
use crate::dataset::Dataset;
use crate::storage::{Drives, FileMode};

/// Where the columns of a batch lie in a slot. The same for every slot and every batch.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) columns: Vec<ColumnRegion>,
    /// The size of a slot in bytes: a multiple of the page size.
    pub(crate) slot_bytes: usize,
    /// The size of a staging chunk, and the most bytes that one read asks for.
    pub(crate) io_bytes: u32,
    /// Where in a file a run that is longer than one read is best cut: at multiples of this, which is no more than
    /// `io_bytes`. 0: anywhere.
    pub(crate) cut: u32,
    /// Every read goes through a staging chunk, as the two-copy baseline does.
    pub(crate) stage_all: bool,
}

/// The part of a slot that one column may use: `SLACK` bytes, the payload, and `SLACK` bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ColumnRegion {
    pub(crate) start: usize,
    pub(crate) sample_bytes: u64,
    /// Alignment of the column's elements in memory.
    pub(crate) align: u32,
}

/// Room around the payload for blocks that are only partly payload. Files that need larger blocks are staged.
const SLACK: u32 = 4096;

/// A run shorter than this whose ends are not on boundaries is staged whole: one read instead of up to three.
const WORTH_SPLITTING: u64 = 256 << 10;

impl Layout {
    /// `None` if the size of a slot overflows.
    pub(crate) fn new(dataset: &Dataset, batch_size: u64, io_bytes: u32, stage_all: bool) -> Option<Layout> {
        let mut columns = Vec::new();
        let mut start = 0usize;
        for column in dataset.columns() {
            let (sample_bytes, align) = (column.sample_bytes(), column.dtype().alignment() as u32);
            columns.push(ColumnRegion { start, sample_bytes, align });
            let payload = usize::try_from(batch_size.checked_mul(sample_bytes)?).ok()?;
            start = payload
                .checked_next_multiple_of(4096)?
                .checked_add(2 * SLACK as usize)?
                .checked_add(start)?;
        }
        (start <= isize::MAX as usize / 2).then_some(Layout {
            columns,
            slot_bytes: start,
            io_bytes,
            cut: 0,
            stage_all,
        })
    }

    /// The most bytes of one read, and where longer runs are cut.
    pub(super) fn sizes(&self) -> (u64, u64) {
        (self.io_bytes.into(), self.cut.into())
    }
}

/// One read of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlannedRead {
    pub(crate) file: u32,
    pub(crate) offset: u64,
    /// Bytes asked for; a multiple of the file's alignment, and possibly beyond the end of the file.
    pub(crate) len: u32,
    /// Bytes that must come: up to the last one that is payload.
    pub(crate) need: u32,
    /// Bytes of payload.
    pub(crate) payload: u32,
    pub(crate) target: Target,
}

/// Where a read lands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// In a slot, from this byte of the ring on.
    Slot(usize),
    /// In a staging chunk, from which `pieces[from..from + count]` are copied.
    Chunk { from: u32, count: u32 },
}

/// The reads of some batches that are read together, and where their columns start. Reused again and again.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Those of a drive are neighbours.
    pub(crate) reads: Vec<PlannedRead>,
    /// For each drive, by its number, which reads it has to do.
    pub(crate) shares: Vec<Share>,
    pub(crate) pieces: Vec<Piece>,
    /// For each batch, and in it for each column, the first byte of its payload in the batch's slot.
    pub(crate) starts: Vec<usize>,
}

/// How much a plan can hold without more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Room([usize; 4]);

impl Room {
    /// As much as either of them.
    pub(super) fn or(self, other: Room) -> Room {
        Room(std::array::from_fn(|i| self.0[i].max(other.0[i])))
    }
}

/// The reads of one drive in a plan that have not been started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) next: usize,
    pub(crate) end: usize,
}

impl Share {
    pub(crate) fn left(self) -> usize {
        self.end - self.next
    }
}

impl Plan {
    /// Makes it a plan of nothing, for so many drives.
    pub(crate) fn clear(&mut self, drives: usize) {
        self.reads.clear();
        self.pieces.clear();
        self.starts.clear();
        self.shares.clear();
        self.shares.resize(drives.max(1), Share { next: 0, end: 0 });
    }

    /// How much it can hold as it is.
    pub(super) fn room(&self) -> Room {
        let Plan { reads, shares, pieces, starts } = self;
        Room([reads.capacity(), shares.capacity(), pieces.capacity(), starts.capacity()])
    }

    /// Lets it hold as much.
    pub(super) fn make_room(&mut self, Room([reads, shares, pieces, starts]): Room) {
        fn grow<T>(vec: &mut Vec<T>, capacity: usize) {
            vec.reserve_exact(capacity.saturating_sub(vec.len()));
        }
        grow(&mut self.reads, reads);
        grow(&mut self.shares, shares);
        grow(&mut self.pieces, pieces);
        grow(&mut self.starts, starts);
    }

    /// Puts the reads into order: by drive, and on each by place.
    fn sort(&mut self, drives: &Drives) {
        if let [only] = &mut self.shares[..] {
            self.reads.sort_unstable_by_key(|read| (read.file, read.offset));
            only.end = self.reads.len();
            return;
        }
        self.reads.sort_unstable_by_key(|read| (drives.of(read.file), read.file, read.offset));
        let mut next = 0;
        for (drive, share) in self.shares.iter_mut().enumerate() {
            let end = self.reads.partition_point(|read| drives.of(read.file) as usize <= drive);
            *share = Share { next, end };
            next = end;
        }
    }
}

/// One batch to be planned: where in the ring its slot starts, and its samples.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lot<'a> {
    pub(crate) base: usize,
    pub(crate) samples: &'a [u64],
}

/// Payload that is neighbours in the file and in the batch.
#[derive(Debug, Clone, Copy)]
struct Run {
    file: u32,
    mode: FileMode,
    offset: u64,
    len: u64,
    /// First byte within the column's payload.
    at: u64,
}

/// Payload that has to be staged.
#[derive(Debug, Clone, Copy)]
struct Part {
    file: u32,
    align: u64,
    offset: u64,
    len: u64,
    to: usize,
}

/// Makes plans, and keeps the memory that it needs for that.
#[derive(Debug, Default)]
pub(crate) struct Planner {
    drives: Arc<Drives>,
    runs: Vec<Run>,
    parts: Vec<Part>,
}

impl Planner {
    pub(crate) fn new(drives: Arc<Drives>) -> Planner {
        Planner { drives, ..Planner::default() }
    }

    /// Plans the reads of `count` batches together, so that samples of different batches that are neighbours in a file
    /// are read at once. `mode_of` says how a file is read, and may have to open it for that.
    pub(crate) fn plan<'a>(
        &mut self,
        plan: &mut Plan,
        layout: &Layout,
        dataset: &Dataset,
        count: usize,
        lot: impl Fn(usize) -> Lot<'a>,
        mut mode_of: impl FnMut(u32) -> Result<FileMode>,
    ) -> Result<()> {
        plan.clear(self.drives.count());
        let columns = dataset.columns().len();
        plan.starts.resize(count * columns, 0);
        for (index, (column, region)) in dataset.columns().iter().zip(&layout.columns).enumerate() {
            self.parts.clear();
            let bytes = region.sample_bytes;
            for number in 0..count {
                self.runs.clear();
                let Lot { base, samples } = lot(number);
                for (i, &sample) in samples.iter().enumerate() {
                    let place = dataset.locate(column, sample);
                    match self.runs.last_mut() {
                        Some(run) if run.file == place.file && run.offset + run.len == place.offset => {
                            run.len += bytes
                        }
                        _ => {
                            let mode = mode_of(place.file)?;
                            let at = i as u64 * bytes;
                            self.runs.push(Run {
                                file: place.file,
                                mode,
                                offset: place.offset,
                                len: bytes,
                                at,
                            });
                        }
                    }
                }
                let start = region.start + best_phase(&self.runs, region, layout) as usize;
                let total = samples.len() as u64 * bytes;
                for i in 0..self.runs.len() {
                    self.place(plan, layout, self.runs[i], base + start, total, count > 1);
                }
                plan.starts[number * columns + index] = start;
            }
            self.stage(plan, layout);
        }
        plan.sort(&self.drives);
        Ok(())
    }

    /// Sends a run straight to the slot as far as boundaries allow; what is left becomes parts to be staged.
    /// One that is `together` with others, whose neighbours may be in another batch, is staged unless it is long.
    fn place(
        &mut self,
        plan: &mut Plan,
        layout: &Layout,
        run: Run,
        start: usize,
        total: u64,
        together: bool,
    ) {
        let align = u64::from(run.mode.align);
        let to = start + run.at as usize;
        let (lo, hi) = (run.offset, run.offset + run.len);
        let part = |from: u64, until: u64| Part {
            file: run.file,
            align,
            offset: from,
            len: until - from,
            to: to + (from - lo) as usize,
        };
        if !lands(&run, start, layout) || (together && run.len < WORTH_SPLITTING) {
            return self.parts.push(part(lo, hi));
        }
        // Only at the ends of the column's payload is there room for the rest of a block.
        let (first, last) = (run.at == 0, run.at + run.len == total);
        let direct_lo = if first { down(lo, align) } else { up(lo, align) };
        let direct_hi = if last { up(hi, align) } else { down(hi, align) };
        let whole = direct_lo <= lo && hi <= direct_hi;
        if !whole && (run.len < WORTH_SPLITTING || direct_hi <= direct_lo) {
            return self.parts.push(part(lo, hi));
        }
        if direct_lo > lo {
            self.parts.push(part(lo, direct_lo));
        }
        if direct_hi < hi {
            self.parts.push(part(direct_hi, hi));
        }
        for_each_io((direct_lo, direct_hi), align, layout.sizes(), |from, until| {
            let payload = (from.max(lo), until.min(hi));
            plan.reads.push(PlannedRead {
                file: run.file,
                offset: from,
                len: (until - from) as u32,
                need: (payload.1 - from) as u32,
                payload: (payload.1 - payload.0) as u32,
                // `from` may lie before `lo`: by less than a block, which is the slack before the payload.
                target: Target::Slot((to as u64 + from - lo) as usize),
            });
        });
    }

    /// Joins the parts whose windows touch, and makes a read of each.
    fn stage(&mut self, plan: &mut Plan, layout: &Layout) {
        let chunk = u64::from(layout.io_bytes);
        self.parts.sort_unstable_by_key(|part| (part.file, part.offset));
        let mut open: Option<(PlannedRead, u64)> = None; // and the end of its window
        for part in &self.parts {
            for_each_io((part.offset, part.offset + part.len), part.align, layout.sizes(), |from, until| {
                let to = part.to + (from - part.offset) as usize;
                let (window, end) = window(from, until, part.align);
                let joined = open.filter(|(read, open_end)| {
                    // A sample that comes twice (padding) can start before a window that its first cut left open.
                    read.file == part.file
                        && (read.offset..=*open_end).contains(&window)
                        && end.max(*open_end) - read.offset <= chunk
                });
                let (mut read, read_end) = joined.unwrap_or_else(|| {
                    plan.reads.extend(open.map(|(read, _)| read));
                    let target = Target::Chunk { from: plan.pieces.len() as u32, count: 0 };
                    let read =
                        PlannedRead { file: part.file, offset: window, len: 0, need: 0, payload: 0, target };
                    (read, window)
                });
                let piece = Piece { from: (from - read.offset) as u32, to, len: (until - from) as u32 };
                plan.pieces.push(piece);
                if let Target::Chunk { count, .. } = &mut read.target {
                    *count += 1;
                }
                let end = end.max(read_end);
                read.len = (end - read.offset) as u32;
                read.need = read.need.max((until - read.offset) as u32);
                read.payload += (until - from) as u32;
                open = Some((read, end));
            });
        }
        plan.reads.extend(open.map(|(read, _)| read));
    }
}

/// Whether a run's bytes can be read to where they belong: file offset and address agree modulo the boundary.
fn lands(run: &Run, start: usize, layout: &Layout) -> bool {
    let align = u64::from(run.mode.align);
    let to = start as u64 + run.at;
    !layout.stage_all && (align == 1 || align <= u64::from(SLACK) && to % align == run.offset % align)
}

/// How far into its region a column's payload starts, so that most of its bytes need no copy. It keeps the
/// elements aligned in memory.
fn best_phase(runs: &[Run], region: &ColumnRegion, layout: &Layout) -> u64 {
    const CANDIDATES: usize = 8;
    let phase_for = |run: &Run| {
        let align = u64::from(run.mode.align).min(SLACK.into());
        (run.offset % align + align - run.at % align) % align
    };
    let landing = |phase: u64| -> u64 {
        runs.iter().filter(|run| lands(run, region.start + phase as usize, layout)).map(|run| run.len).sum()
    };
    let mut best = (0, 0);
    if layout.stage_all || runs.iter().all(|run| run.mode.align == 1) {
        return 0;
    }
    for (i, run) in runs.iter().take(CANDIDATES).enumerate() {
        let phase = phase_for(run);
        let seen = runs[..i].iter().any(|earlier| phase_for(earlier) == phase);
        if phase % u64::from(region.align) == 0 && !seen {
            let bytes = landing(phase);
            if bytes > best.0 {
                best = (bytes, phase);
            }
        }
    }
    best.1
}

/// Cuts `lo..hi` into I/Os of at most `most` bytes. Windows around them that are widened to `align` stay within
/// `most`, which is a multiple of `align`. What does not fit into one is cut at multiples of `cut`, if that is not 0 and
/// `align` allows, else into about equal sizes.
pub(super) fn for_each_io(
    (lo, hi): (u64, u64),
    align: u64,
    (most, cut): (u64, u64),
    mut io: impl FnMut(u64, u64),
) {
    let base = down(lo, align);
    let count = (up(hi, align) - base).div_ceil(most).max(1);
    let (mut next, step) = if cut > 0 && cut.is_multiple_of(align) && count > 1 {
        (down(lo, cut) + cut, cut)
    } else {
        // Cuts on page boundaries where that leaves the pieces within `most`.
        let page = if most.is_multiple_of(4096) { align.max(4096) } else { align };
        let step = up((up(hi, align) - base).div_ceil(count), page).min(most);
        (base + step, step)
    };
    let mut from = lo;
    while from < hi {
        let until = next.min(hi);
        io(from, until);
        from = until;
        next += step;
    }
}

/// The smallest range on boundaries that has `from..until` in it.
pub(super) fn window(from: u64, until: u64, align: u64) -> (u64, u64) {
    (down(from, align), up(until, align))
}

fn down(value: u64, align: u64) -> u64 {
    value / align * align
}

fn up(value: u64, align: u64) -> u64 {
    value.div_ceil(align) * align
}

#[cfg(test)]
mod tests;
