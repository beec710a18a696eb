//! Plans are carried out in memory, by a few obvious lines, and held to what a plain slice of each file gives.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;
use crate::dataset::{Column, Dtype, Format, ShardFile};
use crate::storage::FileIdentity;

/// Where the bytes of all files are taken from: any two places in it differ.
static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 1u64;
    let mut noise = vec![0; 12 << 20];
    for part in noise.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bytes = (state ^ (state >> 29)).to_le_bytes();
        part.copy_from_slice(&bytes[..part.len()]);
    }
    noise
});

#[derive(Debug, Clone)]
struct ColumnCase {
    dtype: Dtype,
    elements: u64,
    /// For each shard where its data begins, and how many samples it has.
    shards: Vec<(u64, u64)>,
}

#[derive(Debug, Clone)]
struct Case {
    columns: Vec<ColumnCase>,
    samples: Vec<u64>,
    /// Of the files in turn.
    aligns: Vec<u32>,
    io_bytes: u32,
    cut: u32,
    stage_all: bool,
}

impl Case {
    fn dataset(&self) -> Dataset {
        let (mut columns, mut files): (Vec<Column>, Vec<ShardFile>) = Default::default();
        let mut samples = 0;
        for (number, case) in self.columns.iter().enumerate() {
            let sample_bytes = case.dtype.size() * case.elements;
            let mut starts = vec![0];
            let first_file = files.len() as u32;
            for &(data_offset, count) in &case.shards {
                let size = data_offset + count * sample_bytes;
                let inode = files.len() as u64;
                files.push(ShardFile {
                    path: PathBuf::from(format!("shard-{inode}")),
                    identity: FileIdentity { device: 1, inode, size, mtime_ns: 0 },
                    data_offset,
                    samples: count,
                });
                starts.push(starts[starts.len() - 1] + count);
            }
            samples = starts[starts.len() - 1];
            columns.push(Column {
                name: format!("column-{number}"),
                format: Format::Npy,
                dtype: case.dtype,
                shape: vec![case.elements],
                sample_bytes,
                first_file,
                starts,
            });
        }
        Dataset { columns, files, samples, fingerprint: String::new(), opener: Default::default() }
    }

    fn align(&self, file: u32) -> u32 {
        self.aligns[file as usize % self.aligns.len()]
    }

    fn mode(&self, file: u32) -> FileMode {
        let align = self.align(file);
        FileMode { direct: align > 1, cached: false, align }
    }

    /// Plans the case as one batch, carries the plan out, and checks everything that must hold of it.
    fn check(&self) -> Plan {
        self.check_in(self.samples.len())
    }

    /// The same in batches of so many samples, which are planned together.
    fn check_in(&self, rows: usize) -> Plan {
        let dataset = self.dataset();
        let lots: Vec<&[u64]> = self.samples.chunks(rows).collect();
        let rows = rows as u64;
        let mut layout = Layout::new(&dataset, rows, self.io_bytes, self.stage_all).unwrap();
        layout.cut = self.cut;
        let layout = layout;
        let mut plan = Plan::default();
        // A plan is made into the memory of an older one.
        plan.reads.push(PlannedRead {
            file: 0,
            offset: 0,
            len: 1,
            need: 1,
            payload: 1,
            target: Target::Slot(0),
        });
        plan.starts.push(77);
        let mut planner = Planner::default();
        // Their slots lie in the ring in any order.
        let base = |lot: usize| (lots.len() - 1 - lot) * layout.slot_bytes;
        let lot = |i: usize| Lot { base: base(i), samples: lots[i] };
        planner.plan(&mut plan, &layout, &dataset, lots.len(), lot, |file| Ok(self.mode(file))).unwrap();

        assert_eq!(layout.slot_bytes % 4096, 0);
        let columns = dataset.columns.len();
        assert_eq!(plan.starts.len(), lots.len() * columns);
        // For each batch, and in it for each column.
        let payloads: Vec<Range<usize>> = (plan.starts.iter().enumerate())
            .map(|(i, &start)| {
                let (lot, column) = (i / columns, &dataset.columns[i % columns]);
                let region = region_of(&layout, i % columns);
                let len = lots[lot].len() * column.sample_bytes as usize;
                assert!(region.start <= start && start + len <= region.end);
                assert_eq!(start as u64 % column.dtype.alignment(), 0, "elements are aligned");
                base(lot) + start..base(lot) + start + len
            })
            .collect();
        let lot_at = |to: usize| lots.len() - 1 - to / layout.slot_bytes;

        let files: Vec<&[u8]> = (dataset.files.iter().enumerate())
            .map(|(i, file)| &NOISE[i * 262_147..][..file.identity.size as usize])
            .collect();
        let mut ring = vec![0xAA; layout.slot_bytes * lots.len()];
        let mut written: Vec<Range<usize>> = Vec::new();
        for read in &plan.reads {
            let align = u64::from(self.align(read.file));
            let (offset, len) = (read.offset, u64::from(read.len));
            let file = files[read.file as usize];
            assert!(offset % align == 0 && len % align == 0, "{read:?} is not aligned to {align}");
            assert!(read.len > 0 && read.len <= self.io_bytes, "{read:?}");
            assert!(offset + len <= (file.len() as u64).next_multiple_of(align), "{read:?} asks for nothing");
            // What comes, and no more than that much of it is relied on.
            let come = &file[offset as usize..file.len().min((offset + len) as usize)];
            let index = column_of(&dataset, read.file);
            match read.target {
                Target::Slot(to) => {
                    let lot = lot_at(to);
                    let payload = &payloads[lot * columns + index];
                    let region = region_of(&layout, index);
                    let region = base(lot) + region.start..base(lot) + region.end;
                    assert!(!self.stage_all);
                    assert!(
                        (to as u64).is_multiple_of(align) && align <= 4096,
                        "{read:?} is at a bad address"
                    );
                    let window = to..to + read.len as usize;
                    assert!(region.start <= window.start && window.end <= region.end, "{read:?} leaves");
                    let within = window.start.max(payload.start)..window.end.min(payload.end);
                    // Every payload byte under the window, though the read may not bring it, belongs to it.
                    let bytes = dataset.columns[index].sample_bytes as usize;
                    for at in samples_in(&within, payload.start, bytes) {
                        let place =
                            dataset.locate(&dataset.columns[index], lots[lot][(at - payload.start) / bytes]);
                        assert_eq!(place.file, read.file, "{read:?} overwrites byte {at}");
                        assert_eq!(
                            place.offset as i64 - at as i64,
                            offset as i64 - to as i64,
                            "{read:?} overwrites byte {at}"
                        );
                    }
                    assert_eq!(read.payload as usize, within.len(), "{read:?}");
                    assert_eq!(read.need as usize, within.end - to, "{read:?}");
                    ring[to..to + come.len()].copy_from_slice(come);
                    written.push(within);
                }
                Target::Chunk { from, count } => {
                    let pieces = &plan.pieces[from as usize..(from + count) as usize];
                    assert!(!pieces.is_empty());
                    let mut chunk = vec![0xBB; self.io_bytes as usize];
                    chunk[..come.len()].copy_from_slice(come);
                    let end = pieces.iter().map(|piece| piece.from + piece.len).max();
                    assert_eq!(Some(read.need), end, "{read:?}");
                    assert_eq!(read.payload, pieces.iter().map(|piece| piece.len).sum::<u32>(), "{read:?}");
                    for piece in pieces {
                        let (from, len) = (piece.from as usize, piece.len as usize);
                        let to = piece.to..piece.to + len;
                        let payload = &payloads[lot_at(piece.to) * columns + index];
                        assert!(payload.start <= to.start && to.end <= payload.end, "{piece:?} leaves");
                        ring[to.clone()].copy_from_slice(&chunk[from..from + len]);
                        written.push(to);
                    }
                }
            }
            assert!(read.need as usize <= come.len(), "{read:?} needs what the file does not have");
        }

        // Each payload byte is written once: what was written is the payloads, cut into pieces.
        written.retain(|range| !range.is_empty());
        written.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<usize>> = Vec::new();
        for range in written {
            match joined.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                Some(last) => {
                    assert!(last.end < range.start, "{range:?} is written twice");
                    joined.push(range);
                }
                None => joined.push(range),
            }
        }
        let mut wanted = payloads.clone();
        wanted.sort_unstable_by_key(|range| range.start);
        assert_eq!(joined, wanted);

        for (i, payload) in payloads.iter().enumerate() {
            let column = &dataset.columns[i % columns];
            let bytes = column.sample_bytes as usize;
            for (row, &sample) in lots[i / columns].iter().enumerate() {
                let place = dataset.locate(column, sample);
                let naive = &files[place.file as usize][place.offset as usize..][..bytes];
                assert!(ring[payload.start + row * bytes..][..bytes] == *naive, "row {row} is wrong");
            }
        }
        plan
    }
}

/// The first byte, within `within`, of each sample that has a byte there.
fn samples_in(within: &Range<usize>, payload: usize, bytes: usize) -> impl Iterator<Item = usize> {
    let within = within.clone();
    let first = if within.is_empty() { 0 } else { (within.start - payload) / bytes };
    let end = if within.is_empty() { 0 } else { (within.end - payload).div_ceil(bytes) };
    (first..end).map(move |row| payload + row * bytes)
}

fn region_of(layout: &Layout, column: usize) -> Range<usize> {
    let end = layout.columns.get(column + 1).map_or(layout.slot_bytes, |next| next.start);
    layout.columns[column].start..end
}

fn column_of(dataset: &Dataset, file: u32) -> usize {
    dataset.columns.iter().rposition(|column| column.first_file <= file).unwrap()
}

fn staged(plan: &Plan) -> Vec<PlannedRead> {
    plan.reads.iter().copied().filter(|read| matches!(read.target, Target::Chunk { .. })).collect()
}

/// One column of `u8`, all files with one alignment.
fn plain(record: u64, shards: &[(u64, u64)], samples: impl IntoIterator<Item = u64>, align: u32) -> Case {
    Case {
        columns: vec![ColumnCase { dtype: Dtype::U8, elements: record, shards: shards.to_vec() }],
        samples: samples.into_iter().collect(),
        aligns: vec![align],
        io_bytes: 1 << 20,
        cut: 0,
        stage_all: false,
    }
}

fn column(samples: u64) -> impl Strategy<Value = ColumnCase> {
    let dtype = select(vec![Dtype::U8, Dtype::Bool, Dtype::F16, Dtype::I32, Dtype::F64, Dtype::C128]);
    // Sizes of every order, those near a block among them, but no more than 3 MiB in all.
    let sizes =
        prop_oneof![1u64..10_000, 1u64..64, select(vec![1, 7, 511, 512, 513, 1024, 4095, 4096, 4097, 8192])];
    let offset = prop_oneof![Just(0u64), Just(4096), Just(128), (0u64..160).prop_map(|n| n * 64), 0u64..9000];
    (dtype, sizes, prop::collection::vec((offset, any::<Index>()), 1..5)).prop_map(
        move |(dtype, bytes, cuts)| {
            let elements = (bytes / dtype.size()).clamp(1, (3 << 20) / (samples * dtype.size()));
            let mut ends: Vec<u64> =
                cuts[1..].iter().map(|(_, cut)| cut.index(samples as usize + 1) as u64).collect();
            ends.sort_unstable();
            ends.push(samples);
            let mut start = 0;
            let shards = (cuts.iter().zip(ends))
                .map(|(&(offset, _), end)| (offset, end - std::mem::replace(&mut start, end)))
                .collect();
            ColumnCase { dtype, elements, shards }
        },
    )
}

/// What a batch may ask for: neighbours, an epoch that starts again (padding), a shuffle, or anything.
fn batch(samples: u64) -> impl Strategy<Value = Vec<u64>> {
    let most = samples as usize;
    prop_oneof![
        (0..samples, 1..most + 1).prop_map(move |(first, n)| (first..samples).take(n).collect()),
        (0..samples, 1..most + 1)
            .prop_map(move |(first, n)| (first..samples).chain(0..samples).take(n).collect()),
        (Just((0..samples).collect::<Vec<_>>()).prop_shuffle(), 1..most + 1).prop_map(|(mut all, n)| {
            all.truncate(n);
            all
        }),
        prop::collection::vec(0..samples, 1..most + 1),
        // Neighbours in groups, the groups in any order.
        (Just((0..samples).collect::<Vec<_>>()), 1..9usize, any::<u64>()).prop_map(|(all, group, seed)| {
            let mut groups: Vec<&[u64]> = all.chunks(group).collect();
            groups.sort_by_key(|group| group[0].wrapping_mul(seed | 1));
            groups.concat()
        }),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let samples = prop_oneof![1u64..300, 1u64..10, Just(1u64), 1000u64..3000];
    samples.prop_flat_map(|samples| {
        let columns = prop::collection::vec(column(samples), 1..4);
        let aligns = prop::collection::vec(select(vec![1u32, 512, 4096, 65536]), 1..4);
        let io_bytes = prop_oneof![
            Just(4096u32),
            Just(65536),
            Just(1 << 20),
            (1u32..257).prop_map(|n| n * 4096),
            (1u32..17).prop_map(|n| n * 65536)
        ];
        let stage_all = prop::bool::weighted(0.2);
        // In parts of the I/O size: none, all of it, or one of several.
        let cut = prop_oneof![Just(0u32), Just(1), 1u32..5];
        (columns, batch(samples), aligns, (io_bytes, cut), stage_all).prop_map(
            |(columns, samples, mut aligns, (io_bytes, cut), stage_all)| {
                let cut = io_bytes.checked_div(cut).unwrap_or(0) / 4096 * 4096;
                // A file whose alignment I/Os cannot meet is read through the page cache.
                for align in &mut aligns {
                    if io_bytes % *align != 0 || stage_all {
                        *align = 1;
                    }
                }
                Case { columns, samples, aligns, io_bytes, cut, stage_all }
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_brings_every_payload_byte_once_by_aligned_reads(case in case()) {
        case.check();
    }

    #[test]
    fn batches_that_are_planned_together_get_every_payload_byte_once(case in case(), lots in 2usize..12) {
        case.check_in(case.samples.len().div_ceil(lots));
    }

    #[test]
    fn cuts_cover_a_range_in_order_and_their_windows_stay_within_the_largest_io(
        lo in 0u64..1 << 40, len in 1u64..3 << 20, align in select(vec![1u64, 512, 4096, 65536]), pages in 1u64..300,
        part in 0u64..5,
    ) {
        let most = (pages * 4096).next_multiple_of(align);
        let cut = most.checked_div(part).unwrap_or(0) / 4096 * 4096;
        let (mut at, mut count) = (lo, 0);
        for_each_io((lo, lo + len), align, (most, cut), |from, until| {
            assert_eq!(from, at);
            assert!(until > from && up(until, align) - down(from, align) <= most);
            assert!(until == lo + len || until % align == 0);
            (at, count) = (until, count + 1);
        });
        prop_assert_eq!(at, lo + len);
        let fewest = (up(lo + len, align) - down(lo, align)).div_ceil(most);
        prop_assert!(count == 1 || fewest > 1, "what fits into one read is one");
    }
}

#[test]
fn edges_of_blocks_and_files_are_planned_right_for_every_record_size() {
    for record in [1, 7, 511, 512, 513, 4095, 4096, 4097, 9999] {
        for count in [1, 2, 9] {
            for offset in [0, 1, 128, 511, 512, 4095, 4096, 4097] {
                for align in [1, 512, 4096, 65536] {
                    for io_bytes in [4096, 65536, 1 << 20] {
                        if io_bytes % align == 0 {
                            let shards = [(offset, count), (0, count)];
                            let sequential = plain(record, &shards, 0..2 * count, align);
                            Case { io_bytes, ..sequential }.check();
                            let backwards = plain(record, &shards, (0..2 * count).rev(), align);
                            Case { io_bytes, ..backwards }.check();
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn neighbours_on_boundaries_are_read_with_no_staging() {
    for align in [512, 4096] {
        for (record, offset) in [(4096, 0), (4096, 4096), (8192, 8192), (512, 0)] {
            let plan = plain(record, &[(offset, 512)], 0..512, align).check();
            assert_eq!(staged(&plan), [], "records of {record} at {offset}, alignment {align}");
        }
    }
}

#[test]
fn neighbours_off_the_boundaries_that_fill_a_batch_are_read_as_one_window_with_no_staging() {
    // The batch's view starts inside the window, and the slack takes what the window has too much.
    for (offset, first) in [(128, 0), (1000, 0), (0, 3), (4095, 5)] {
        for align in [512, 4096] {
            let plan = plain(1003, &[(offset, 400)], first..first + 300, align).check();
            assert_eq!(staged(&plan), []);
            let bytes: u64 = plan.reads.iter().map(|read| u64::from(read.len)).sum();
            assert!(bytes < 300 * 1003 + 2 * u64::from(align));
        }
    }
}

#[test]
fn a_buffered_run_lands_in_the_slot_wherever_it_is() {
    let plan = plain(1003, &[(77, 100), (5, 100)], (150..200).chain(0..20), 1).check();
    assert_eq!((staged(&plan).len(), plan.reads.len()), (0, 2));
}

#[test]
fn a_long_run_off_the_boundaries_stages_its_edges_only() {
    // Two shards meet inside the batch, in the middle of a block: each has one edge there.
    let plan = plain(1024, &[(0, 513), (1024, 513)], 0..1026, 4096).check();
    let staged_bytes: u64 = staged(&plan).iter().map(|read| u64::from(read.payload)).sum();
    assert!(staged_bytes < 2 * 4096, "{staged_bytes} bytes are staged");
    assert!(!staged(&plan).is_empty());
}

#[test]
fn a_run_that_can_never_meet_its_boundary_is_staged_whole() {
    // The second shard's data is off by an odd number of bytes from where it has to be.
    let plan = plain(1000, &[(0, 400), (3, 400)], 0..800, 512).check();
    let payload = |file| plan.reads.iter().filter(move |read| read.file == file).map(|read| read.payload);
    let staged =
        |file| staged(&plan).into_iter().filter(move |read| read.file == file).map(|read| read.payload);
    assert_eq!(payload(1).sum::<u32>(), staged(1).sum::<u32>());
    assert!(staged(0).sum::<u32>() < 512);
}

#[test]
fn a_long_run_is_cut_at_whole_requests_of_the_storage_and_a_short_one_not_at_all() {
    const RSIZE: u64 = 256 << 10;
    for (stage_all, align) in [(false, 4096), (true, 1)] {
        // 3 MiB from somewhere within a request on.
        let case = plain(4096, &[(4096, 1024)], 100..868, align);
        let case = Case { io_bytes: 1 << 20, cut: 1 << 20, stage_all, ..case };
        let plan = case.check();
        let (first, last) = (plan.reads[0], plan.reads[plan.reads.len() - 1]);
        assert_eq!(plan.reads.len(), 4);
        for read in &plan.reads {
            let (from, until) = (read.offset, read.offset + u64::from(read.len));
            assert!(*read == first || from % RSIZE == 0, "{read:?}");
            assert!(*read == last || until % RSIZE == 0, "{read:?}");
        }
        // One read, though a boundary lies in it.
        let short = Case { samples: (200..400).collect(), ..case };
        assert_eq!(short.check().reads.len(), 1);
    }
}

#[test]
fn the_two_copy_baseline_stages_everything() {
    let case = Case { stage_all: true, ..plain(4096, &[(0, 512)], 0..512, 1) };
    let plan = case.check();
    assert_eq!(staged(&plan).len(), plan.reads.len());
}

#[test]
fn neighbours_in_the_file_that_are_not_neighbours_in_the_batch_share_a_read() {
    let plan = plain(100, &[(0, 1000)], (0..1000).rev(), 4096).check();
    assert!(plan.reads.len() <= 2, "{} reads for 100000 neighbouring bytes", plan.reads.len());
}

#[test]
fn a_sample_that_comes_many_times_comes_right_each_time() {
    for align in [1, 512, 4096] {
        plain(700, &[(64, 3)], [2, 2, 0, 2, 1, 0, 0, 2, 2], align).check();
        let case = Case { io_bytes: 4096, ..plain(9000, &[(64, 2)], [1, 1, 0, 1, 0, 0], align) };
        case.check();
    }
}

#[test]
fn reads_come_in_the_order_of_the_disk() {
    let plan = plain(5000, &[(0, 50), (0, 50)], (0..100).map(|i| i * 37 % 100), 4096).check();
    assert!(plan.reads.is_sorted_by_key(|read| (read.file, read.offset)));
}

#[test]
fn a_file_that_cannot_be_opened_fails_the_plan() {
    let case = plain(10, &[(0, 5), (0, 5)], 0..10, 1);
    let dataset = case.dataset();
    let layout = Layout::new(&dataset, 10, 4096, false).unwrap();
    let refuse = |file| match file {
        1 => Err(crate::Error::argument("no")),
        _ => Ok(case.mode(file)),
    };
    let lot = |_| Lot { base: 0, samples: &case.samples };
    let planned = Planner::default().plan(&mut Plan::default(), &layout, &dataset, 1, lot, refuse);
    assert_eq!(planned.unwrap_err().to_string(), "no");
}

#[test]
fn neighbours_in_different_batches_are_read_at_once() {
    // A window of 256 samples of 5000 bytes, mixed, in 8 batches: alone each reads single samples.
    let mut samples: Vec<u64> = (1000..1256).collect();
    samples.sort_by_key(|sample| sample.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let case = plain(5000, &[(0, 2000)], samples, 4096);
    let together = case.check_in(32);
    assert_eq!(together.reads.len(), 2, "{:?}", together.reads);
    let alone = Case { samples: case.samples[..32].to_vec(), ..case };
    assert!(alone.check().reads.len() > 16);
}

#[test]
fn a_batch_that_no_address_space_holds_has_no_layout() {
    let dataset = plain(1 << 20, &[(0, 3)], 0..3, 1).dataset();
    for rows in [u64::MAX, 1 << 43, 1 << 42] {
        assert!(Layout::new(&dataset, rows, 4096, false).is_none());
    }
}
