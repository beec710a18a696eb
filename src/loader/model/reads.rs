//! The reads of planned batches: which are in flight, and which batches they have made whole.

use std::ops::Range;

use super::state::{Bounds, Fifo, Reader};

/// `pipeline::Group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Group {
    /// The number of the first batch.
    pub(super) first: u8,
    pub(super) batches: u8,
    /// Those that the plan is for, one bit each: at first all of them.
    pub(super) planned: u8,
    /// Those that were whole when the rest was planned again.
    pub(super) whole: u8,
    /// How many reads of the plan have started, for each drive.
    pub(super) started: [u8; 2],
    /// Reads that have landed, one bit each.
    pub(super) landed: u8,
    /// Reads that failed.
    pub(super) failed: u8,
    /// Of a read that failed it is to be found out which samples are bad.
    pub(super) suspect: bool,
}

impl Group {
    pub(super) fn new(first: u8, batches: u8) -> Group {
        Group { first, batches, planned: (1 << batches) - 1, ..Group::default() }
    }

    /// The reads of a drive in the plan: `plan::Share`. Those of one are neighbours.
    pub(super) fn share(&self, drive: u8, bounds: &Bounds) -> Range<u8> {
        let all = self.reads(bounds).len() as u8;
        let first = match (bounds.drives, all) {
            (1, _) => all,
            // By turns the one drive has the only read, and the other.
            (_, 1) => self.first % 2,
            _ => all.div_ceil(2),
        };
        if drive == 0 { 0..first } else { first..all }
    }

    /// The reads of a drive that have not started.
    pub(super) fn left(&self, drive: u8, bounds: &Bounds) -> u8 {
        self.share(drive, bounds).len() as u8 - self.started[drive as usize]
    }

    /// The plan: for each read, in the order in which they start on a drive, the batches that it brings a part of, one bit each. For more
    /// than one batch reads come in the order of files, not of batches, and some are for several.
    pub(super) fn reads(&self, bounds: &Bounds) -> &'static [u8] {
        match (self.planned, bounds.reads) {
            (0, _) => &[],
            (0b001, 1) => &[0b001],
            (0b010, 1) => &[0b010],
            (0b100, 1) => &[0b100],
            (0b001, _) => &[0b001, 0b001],
            (0b010, _) => &[0b010, 0b010],
            (0b100, _) => &[0b100, 0b100],
            (0b011, 1) => &[0b011],
            (0b101, 1) => &[0b101],
            (0b110, 1) => &[0b110],
            (0b011, _) => &[0b010, 0b011, 0b001],
            (0b101, _) => &[0b100, 0b101, 0b001],
            (0b110, _) => &[0b100, 0b110, 0b010],
            (_, 1) => &[0b110, 0b011],
            (_, _) => &[0b100, 0b011, 0b110, 0b001],
        }
    }
}

/// Whether of some read that failed it is to be found out which samples are bad.
pub(super) fn has_suspects(reader: &Reader) -> bool {
    reader.groups.items().iter().any(|group| group.suspect)
}

/// `Pipeline::give_up`: a read failed for good, and with it the first batch that it is for.
pub(super) fn give_up(reader: &mut Reader, (group, read): (u8, u8), bounds: &Bounds) {
    let group = &mut reader.groups.items_mut()[group as usize];
    group.failed |= 1 << read;
    let batches = group.reads(bounds)[read as usize];
    reader.failure = reader.failure.min(group.first + batches.trailing_zeros() as u8);
}

/// `Pipeline::retire_plans`. Here a plan also stays while a batch of it is not whole, which tells that this one cannot come.
pub(super) fn retire_plans(reader: &mut Reader, bounds: &Bounds) {
    while let Some(group) = reader.groups.items().first() {
        let left = group.reads(bounds).len() as u32 - group.landed.count_ones();
        if left > 0 || !(0..group.batches).all(|batch| is_whole_in(group, batch, bounds)) {
            return;
        }
        reader.groups.pop();
    }
}

/// The reads in flight, as places in `groups` and in their plan.
pub(super) fn in_flight(reader: &Reader, bounds: &Bounds) -> Fifo<(u8, u8), 4> {
    let mut flying = Fifo::default();
    for drive in 0..bounds.drives {
        let of_drive = in_flight_on(reader, drive, bounds);
        of_drive.items().iter().for_each(|it| flying.push(*it));
    }
    flying
}

/// Those of one drive: `Pipeline::flying`.
pub(super) fn in_flight_on(reader: &Reader, drive: u8, bounds: &Bounds) -> Fifo<(u8, u8), 4> {
    let mut flying = Fifo::default();
    for (place, group) in reader.groups.items().iter().enumerate() {
        let done = group.landed | group.failed;
        let started = group.share(drive, bounds).take(group.started[drive as usize].into());
        started.filter(|read| done >> read & 1 == 0).for_each(|read| flying.push((place as u8, read)));
    }
    debug_assert!(flying.len() <= bounds.depth);
    flying
}

/// `Pipeline::some_drive_wants_more`: fewer reads are planned and not yet started than some drive can have in flight.
pub(super) fn some_drive_wants_more(reader: &Reader, bounds: &Bounds) -> bool {
    let left = |drive| reader.groups.items().iter().map(|group| group.left(drive, bounds)).sum::<u8>();
    (0..bounds.drives).any(|drive| left(drive) < bounds.depth)
}

/// Whether the batch at this place in `filling` is whole.
pub(super) fn is_whole(reader: &Reader, place: u8, bounds: &Bounds) -> bool {
    let batch = reader.first + place;
    let own = |group: &&Group| (group.first..group.first + group.batches).contains(&batch);
    // Plans are retired when all of their batches are whole.
    let group = reader.groups.items().iter().find(own);
    group.is_none_or(|group| is_whole_in(group, batch - group.first, bounds))
}

/// Whether every read has landed that brings a part of this batch of the group.
pub(super) fn is_whole_in(group: &Group, batch: u8, bounds: &Bounds) -> bool {
    if (group.planned | group.whole) >> batch & 1 == 0 {
        // It was left out of the plan, since it cannot come.
        return false;
    }
    let reads = group.reads(bounds).iter().enumerate();
    let mut of_it = reads.filter(|(_, batches)| *batches >> batch & 1 == 1);
    of_it.all(|(read, _)| group.landed >> read & 1 == 1)
}

/// `Pipeline::fills_of`: the batches of the group at this place that are not whole and can come.
pub(super) fn not_whole(reader: &Reader, place: usize, bounds: &Bounds) -> Fifo<u8, 4> {
    let mut batches = Fifo::default();
    let group = &reader.groups.items()[place];
    let left = (0..group.batches).filter(|batch| !is_whole_in(group, *batch, bounds));
    left.map(|batch| group.first + batch)
        .filter(|batch| *batch < reader.failure)
        .for_each(|batch| batches.push(batch));
    batches
}
