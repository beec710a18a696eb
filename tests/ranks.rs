//! Ranks: together they deliver an epoch exactly once, in the order that one rank alone would have it, and each gets as
//! many batches as the others.

mod common;

use std::sync::Arc;

use common::data::{Data, Got, part, rest, samples, whole};
use common::{SHUFFLES, expected};
use gpufeed::{
    Agreement, Backend, Dataset, Dtype, Error, ErrorKind, LastBatch, Loader, LoaderBuilder, Mixture, Order,
    Rank, Shuffle, State,
};
use proptest::prelude::*;

const POLICIES: [LastBatch; 3] = [LastBatch::Drop, LastBatch::Pad, LastBatch::Short];

/// A loader that is made quickly: what it reads by makes no difference to who gets what, as another test shows.
fn small(data: &Data) -> LoaderBuilder {
    let builder = common::loader(Arc::clone(&data.dataset)).backend(Backend::PageCache);
    builder.queue_depth(1).io_bytes(4096).prefetch(2)
}

/// The loaders of all ranks, or the error that all of them get alike.
fn job(world: u32, make: impl Fn() -> LoaderBuilder) -> Result<Vec<Loader>, Error> {
    let made: Vec<_> = (0..world).map(|rank| make().rank(Rank::new(rank, world).unwrap()).build()).collect();
    if made.iter().all(Result::is_ok) {
        return Ok(made.into_iter().map(Result::unwrap).collect());
    }
    let mut errors: Vec<Error> =
        made.into_iter().map(|it| it.expect_err("a rank was built and another was refused")).collect();
    let told: Vec<_> = errors.iter().map(|error| (error.kind(), error.to_string())).collect();
    assert!(told.iter().all(|it| *it == told[0]), "{told:?}");
    Err(errors.remove(0))
}

/// Puts together what ranks were delivered: one global batch after the other, and each in the order of ranks.
fn together(ranks: &[Vec<Got>]) -> Vec<Got> {
    assert!(ranks.iter().all(|rank| rank.len() == ranks[0].len()), "some ranks have more batches");
    let one = |number: usize| {
        let parts: Vec<&Got> = ranks.iter().map(|rank| &rank[number]).collect();
        let alike = parts.iter().all(|it| (it.index, &it.state) == (parts[0].index, &parts[0].state));
        assert!(alike, "batch {number}: {parts:?}");
        Got {
            samples: parts.iter().flat_map(|it| it.samples.clone()).collect(),
            bytes: parts.iter().flat_map(|it| it.bytes.clone()).collect(),
            padding: parts.iter().map(|it| it.padding).sum(),
            ..parts[0].clone()
        }
    };
    (0..ranks[0].len()).map(one).collect()
}

/// Whether there can be no such loaders, by the rules as they are written down.
fn refused(samples: u64, size: u64, world: u64, last: LastBatch) -> bool {
    match last {
        LastBatch::Drop => samples < size * world,
        LastBatch::Pad => false,
        // Some rank would have no part of the last global batch.
        LastBatch::Short => (1..world).contains(&(samples % (size * world))),
    }
}

/// What a rank gets of a global batch of `n` samples, of which `own` are not padding.
fn dealt(n: u64, own: u64, size: u64, world: u64, rank: u64) -> (std::ops::Range<usize>, u64) {
    if n == size * world {
        let rows = part(size, rank);
        let padding = rows.clone().filter(|row| *row as u64 >= own).count();
        return (rows, padding as u64);
    }
    ((n * rank / world) as usize..(n * (rank + 1) / world) as usize, 0)
}

/// Everything about one epoch of one job. `false` if there is no such job.
fn prove(data: &Data, (size, world): (u64, u32), last: LastBatch, shuffle: Shuffle, epoch: u64) -> bool {
    let what = format!("{} samples, {size} x {world}, {last}, {shuffle}, epoch {epoch}", data.len());
    let (count, ranks, global) = (data.len(), u64::from(world), size * u64::from(world));
    let builder = || small(data).last_batch(last).shuffle(shuffle).seed(11);
    let made = job(world, || builder().batch_size(size));
    if refused(count, size, ranks, last) {
        let error = made.err().unwrap_or_else(|| panic!("{what}: it should have been refused"));
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{what}");
        return false;
    }
    let mut loaders = made.unwrap_or_else(|error| panic!("{what}: {error}"));
    let ranks: Vec<Vec<Got>> = loaders.iter_mut().map(|loader| whole(loader, epoch)).collect();

    // The oracle: the order, cut into global batches, and these into parts.
    let wanted = expected(count, global, last, &Order::new(count, 11, epoch, shuffle));
    assert_eq!(ranks[0].len(), wanted.len(), "{what}");
    for (number, wanted) in wanted.iter().enumerate() {
        let own = global.min(count - number as u64 * global);
        for (rank, got) in (0..).zip(&ranks) {
            let (rows, padding) = dealt(wanted.len() as u64, own, size, world.into(), rank);
            assert_eq!(got[number].samples, wanted[rows], "{what}, batch {number} of rank {rank}");
            assert_eq!(got[number].padding, padding, "{what}, batch {number} of rank {rank}");
            assert!(got[number].bytes == data.bytes_of(&got[number].samples), "{what}, batch {number}");
        }
    }

    // The same, without an oracle: one rank with batches that are as large as those of all together.
    let mut alone = builder().batch_size(global).build().unwrap();
    assert_eq!(together(&ranks), whole(&mut alone, epoch), "{what}");
    let told: u64 = loaders.iter().map(Loader::samples_per_epoch).sum();
    assert_eq!(told, alone.samples_per_epoch(), "{what}");
    true
}

#[test]
fn the_ranks_of_any_world_deliver_the_epoch_once_and_in_its_order() {
    let records = Data::records(5, &[17, 1, 3, 25]);
    let arrays = Data::npy(&[9, 0, 1, 19]);
    for world in 1..=9 {
        for size in [1, 3, 8] {
            for last in POLICIES {
                for shuffle in SHUFFLES {
                    prove(&records, (size, world), last, shuffle, 2);
                }
                prove(&arrays, (size, world), last, Shuffle::Full, 0);
            }
        }
    }
}

fn shuffles() -> impl Strategy<Value = Shuffle> {
    let blocks = (1u64..30, 1u64..90).prop_map(|(block, window)| Shuffle::Blocks { block, window });
    prop_oneof![Just(Shuffle::None), Just(Shuffle::Full), blocks]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn an_epoch_of_any_shape_is_delivered_once_by_any_world(
        shards in proptest::collection::vec(1usize..40, 1..6),
        size in 1u64..12,
        world in 1u32..10,
        last in proptest::sample::select(&POLICIES[..]),
        shuffle in shuffles(),
        epoch in 0u64..1 << 40,
    ) {
        prove(&Data::records(3, &shards), (size, world), last, shuffle, epoch);
    }
}

#[test]
fn one_shard_is_enough_for_four_ranks() {
    let data = Data::records(7, &[33]);
    for last in [LastBatch::Drop, LastBatch::Pad] {
        assert!(prove(&data, (2, 4), last, Shuffle::Full, 0));
    }
    // 33 = 4 x 8 + 1: one rank would have a batch more than the others.
    assert!(!prove(&data, (2, 4), LastBatch::Short, Shuffle::Full, 0));
    assert!(prove(&data, (3, 4), LastBatch::Short, Shuffle::Full, 0));
}

#[test]
fn shards_of_seven_five_and_one_records_give_two_ranks_equally_many_batches() {
    let data = Data::records(9, &[7, 5, 1]);
    for shuffle in SHUFFLES {
        for size in 1..=6 {
            for last in [LastBatch::Drop, LastBatch::Pad] {
                assert!(prove(&data, (size, 2), last, shuffle, 1));
            }
            // Batches of 2, 4 and 6 for both leave one sample over.
            assert_eq!(prove(&data, (size, 2), LastBatch::Short, shuffle, 1), 13 % (2 * size) != 1);
        }
    }
}

#[test]
fn two_records_for_eight_ranks_are_an_error_on_all_ranks_or_clean_empty_epochs() {
    let data = Data::records(4, &[2]);
    for last in [LastBatch::Drop, LastBatch::Short] {
        let error = job(8, || small(&data).batch_size(1).last_batch(last)).err().unwrap();
        for words in ["2 samples", "8 ranks", "`pad`"] {
            assert!(error.to_string().contains(words), "{error}");
        }
        let empty = || small(&data).batch_size(1).last_batch(last).allow_empty_epochs(true);
        for mut loader in job(8, empty).unwrap() {
            assert_eq!((loader.batches_per_epoch(), loader.samples_per_epoch()), (0, 0));
            for epoch in 0..3 {
                assert!(rest(loader.next_epoch().unwrap()).is_empty());
                assert_eq!((loader.state().epoch(), loader.state().position()), (epoch + 1, 0));
            }
            assert!(rest(loader.epoch(7).unwrap()).is_empty());
        }
    }
    // Every rank has a batch, most of them of padding alone.
    assert!(prove(&data, (1, 8), LastBatch::Pad, Shuffle::Full, 0));
    let mut last_rank = small(&data).batch_size(3).last_batch(LastBatch::Pad).rank(Rank::new(7, 8).unwrap());
    last_rank = last_rank.shuffle(Shuffle::None);
    let got = whole(&mut last_rank.build().unwrap(), 0);
    assert_eq!((got.len(), got[0].padding), (1, 3));
    assert_eq!(got[0].samples, [1, 0, 1]);
}

#[test]
fn empty_epochs_are_allowed_only_where_nothing_at_all_would_come() {
    // Full batches for all, and one sample over: an epoch that is uneven is not empty.
    let data = Data::records(4, &[9]);
    for allow in [false, true] {
        let uneven = || small(&data).batch_size(2).last_batch(LastBatch::Short).allow_empty_epochs(allow);
        let error = job(4, uneven).err().unwrap();
        assert!(error.to_string().contains("1 do not fill batches of 2 on each of 4 ranks"), "{error}");
    }
    // Where there are batches, to allow empty epochs changes nothing.
    let allowed = || small(&data).batch_size(2).last_batch(LastBatch::Drop).allow_empty_epochs(true);
    let got: Vec<_> = job(4, allowed).unwrap().iter_mut().map(|loader| whole(loader, 0)).collect();
    assert_eq!(samples(&together(&got)), (0..8).collect::<Vec<_>>());
}

#[test]
fn a_global_batch_holds_the_same_samples_at_any_world_size() {
    let data = Data::records(6, &[50, 1, 49]);
    for shuffle in SHUFFLES {
        for last in POLICIES {
            let mut all = Vec::new();
            for world in [1, 2, 3, 4, 6, 12] {
                let size = u64::from(12 / world);
                // 100 = 8 x 12 + 4 is uneven for more than four ranks.
                let made = job(world, || small(&data).batch_size(size).last_batch(last).shuffle(shuffle));
                let Ok(mut loaders) = made else {
                    assert!(world > 4 && last == LastBatch::Short);
                    continue;
                };
                let ranks: Vec<_> = loaders.iter_mut().map(|loader| whole(loader, 5)).collect();
                all.push(together(&ranks));
            }
            assert!(all.len() >= 4 && all.iter().all(|it| *it == all[0]), "{shuffle} {last}");
        }
    }
}

#[test]
fn ranks_at_work_at_once_need_not_read_alike() {
    let data = Data::records(513, &[40, 1, 60, 27]);
    let backends = common::backends();
    for shuffle in SHUFFLES {
        let mut ranks: Vec<Vec<Got>> = std::thread::scope(|scope| {
            let one = |rank: u32| {
                // Each has another backend, depth, prefetch and I/O size.
                let backend = backends[rank as usize % backends.len()];
                let builder = small(&data).backend(backend).queue_depth(1 + 5 * rank).prefetch(1 + 4 * rank);
                let builder = builder.io_bytes(4096 << rank).rank(Rank::new(rank, 4).unwrap());
                let builder = builder.batch_size(5).shuffle(shuffle).last_batch(LastBatch::Short);
                scope.spawn(move || {
                    let mut loader = builder.build().unwrap();
                    (0..3).flat_map(|epoch| whole(&mut loader, epoch)).collect()
                })
            };
            let threads: Vec<_> = (0..4).map(one).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut alone = small(&data).batch_size(20).shuffle(shuffle).last_batch(LastBatch::Short);
        alone = alone.prefetch(3);
        let mut alone = alone.build().unwrap();
        let wanted: Vec<Got> = (0..3).flat_map(|epoch| whole(&mut alone, epoch)).collect();
        assert_eq!(together(&ranks), wanted, "{shuffle}");
        // A rank that is swapped with another is found out, so the comparison is no empty one.
        ranks.swap(1, 2);
        assert_ne!(together(&ranks), wanted);
    }
}

#[test]
fn the_ranks_of_a_mixture_deliver_its_epochs_once_and_in_order() {
    let (a, b) = (Data::records(4, &[20, 3]), Data::records(4, &[9]));
    let part = |data: &Data| Dataset::clone(&data.dataset);
    let mixture = Mixture::new([(part(&a), 3), (part(&b), 1)]).unwrap().epoch_samples(52).unwrap();
    let bytes = |sample: u64| match sample.checked_sub(a.len()) {
        None => a.sample(sample),
        Some(within) => b.sample(within),
    };
    for shuffle in SHUFFLES {
        for last in POLICIES {
            let of = |world: u32, size: u64| {
                let builder = || {
                    let builder = common::loader(mixture.clone()).backend(Backend::PageCache).queue_depth(1);
                    builder.io_bytes(4096).batch_size(size).shuffle(shuffle).seed(3).last_batch(last)
                };
                let mut loaders = job(world, builder).unwrap();
                let epochs = |loader: &mut Loader| (0..4).flat_map(|it| whole(loader, it)).collect();
                together(&loaders.iter_mut().map(epochs).collect::<Vec<Vec<Got>>>())
            };
            let alone = of(1, 12);
            for (world, size) in [(2, 6), (3, 4)] {
                assert_eq!(of(world, size), alone, "{shuffle} {last}");
            }
            for batch in &alone {
                let wanted: Vec<u8> = batch.samples.iter().flat_map(|it| bytes(*it)).copied().collect();
                assert!(batch.bytes == wanted);
            }
            if last == LastBatch::Short {
                let of_a = samples(&alone).into_iter().filter(|sample| *sample < a.len()).count();
                assert_eq!(of_a, 4 * 39, "three of four are of the first");
            }
        }
    }
}

/// The state at another place, by way of its JSON, as it is in a file.
fn moved(state: &State, epoch: u64, position: u64) -> State {
    let mut value = serde_json::to_value(state).unwrap();
    (value["epoch"], value["position"]) = (epoch.into(), position.into());
    serde_json::from_value(value).unwrap()
}

#[test]
fn ranks_that_agree_have_one_value_whatever_else_they_are_set_to() {
    let data = Data::records(8, &[30, 30]);
    let base = || small(&data).batch_size(4).shuffle(Shuffle::Full).seed(5);
    let agreement = |builder: LoaderBuilder, rank: u32| {
        builder.rank(Rank::new(rank, 3).unwrap()).build().unwrap().agreement()
    };
    let first = agreement(base(), 0);
    // The same files under another folder, as another host has them.
    let copy = Data::records(8, &[30, 30]);
    let copied = common::loader(Arc::clone(&copy.dataset)).batch_size(4).shuffle(Shuffle::Full).seed(5);
    let start = base().build().unwrap().state();
    let others: Vec<Agreement> = [
        base(),
        copied,
        base().backend(Backend::Pread).queue_depth(7).prefetch(9).io_bytes(1 << 20),
        base().allow_empty_epochs(true).clear_slots(true).limit_rate(1 << 40).memory_limit(1 << 40),
        base().resume(start.clone()),
    ]
    .into_iter()
    .zip([1, 2].into_iter().cycle())
    .map(|(builder, rank)| agreement(builder, rank))
    .collect();
    assert!(others.iter().all(|it| *it == first), "{first}: {others:?}");
    Agreement::check(&others).unwrap();
    let end = agreement(base().resume(moved(&start, 3, 60)), 1);
    assert_eq!(end, agreement(base().resume(moved(&start, 4, 0)), 2), "the end of an epoch is the next one");
    // It makes no difference whether a loader was built to go on from there, or put there later.
    let mut later = base().rank(Rank::new(0, 3).unwrap()).build().unwrap();
    later.resume(&moved(&start, 3, 60)).unwrap();
    assert_eq!(later.agreement(), end);
    // Where it has come to by itself makes none.
    whole(&mut later, 0);
    assert_eq!(later.agreement(), end);
    later.resume(&start).unwrap();
    assert_eq!(later.agreement(), first);
}

#[test]
fn each_setting_that_the_order_depends_on_makes_another_value() {
    let data = Data::records(8, &[30, 30]);
    let of =
        |data: &Data| small(data).batch_size(4).shuffle(Shuffle::Blocks { block: 4, window: 16 }).seed(5);
    let base = || of(&data).rank(Rank::new(1, 3).unwrap());
    let start = base().build().unwrap().state();
    // Datasets that differ in the number of records, in how they are cut into shards, and in a name.
    let (longer, recut) = (Data::records(8, &[30, 31]), Data::records(8, &[31, 29]));
    let renamed = Data::records(8, &[30, 30]);
    std::fs::rename(&renamed.paths[1], renamed.folder().join("shard-0002.bin")).unwrap();
    let renamed = Dataset::builder().records("data", renamed.folder(), Dtype::U8, &[8]).build().unwrap();
    let named = Dataset::builder().records("image", data.paths.clone(), Dtype::U8, &[8]).build().unwrap();
    let shaped = Dataset::builder().records("data", data.paths.clone(), Dtype::U8, &[4, 2]).build().unwrap();
    let mixed = |weight: u64, samples: u64| {
        let parts = [(Dataset::clone(&data.dataset), weight), (Dataset::clone(&longer.dataset), 1)];
        Mixture::new(parts).unwrap().epoch_samples(samples).unwrap()
    };
    let with = |source: gpufeed::Source| {
        let builder = common::loader(source).batch_size(4).rank(Rank::new(1, 3).unwrap());
        builder.shuffle(Shuffle::Blocks { block: 4, window: 16 }).seed(5)
    };
    let others = [
        ("a record more", of(&longer).rank(Rank::new(1, 3).unwrap())),
        ("other shards", of(&recut).rank(Rank::new(1, 3).unwrap())),
        ("another name of a shard", with(renamed.into())),
        ("another name of a column", with(named.into())),
        ("another shape", with(shaped.into())),
        ("a mixture", with(mixed(2, 60).into())),
        ("another weight", with(mixed(3, 60).into())),
        ("another length of an epoch", with(mixed(2, 63).into())),
        ("seed", base().seed(6)),
        ("no shuffle", base().shuffle(Shuffle::None)),
        ("another shuffle", base().shuffle(Shuffle::Full)),
        ("another block", base().shuffle(Shuffle::Blocks { block: 5, window: 16 })),
        ("another window", base().shuffle(Shuffle::Blocks { block: 4, window: 17 })),
        ("batch size", base().batch_size(5)),
        ("world size", base().rank(Rank::new(1, 4).unwrap())),
        // With the same global batch it is still another part that a rank gets.
        ("both", base().batch_size(3).rank(Rank::new(1, 4).unwrap())),
        ("pad", base().last_batch(LastBatch::Pad)),
        ("short", base().last_batch(LastBatch::Short)),
        ("position", base().resume(moved(&start, 0, 12))),
        ("another position", base().resume(moved(&start, 0, 24))),
        ("epoch", base().resume(moved(&start, 1, 0))),
        ("epoch and position", base().resume(moved(&start, 1, 12))),
    ];
    let mut seen = vec![("nothing", base().build().unwrap().agreement())];
    for (what, builder) in others {
        let value = builder.build().unwrap_or_else(|error| panic!("{what}: {error}")).agreement();
        if let Some((same, _)) = seen.iter().find(|(_, known)| *known == value) {
            panic!("{what} and {same} have the same value");
        }
        // By it the rank that differs is found among those that agree.
        let all = [seen[0].1, seen[0].1, value, seen[0].1];
        let error = Agreement::check(&all).unwrap_err().to_string();
        assert!(error.contains("rank 2 has another"), "{what}: {error}");
        seen.push((what, value));
    }
}
