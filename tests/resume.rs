//! A run that goes on from a saved state is the run that was never interrupted: the same samples and bytes, in the same
//! order, wherever it was left, and however the rest is read.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::data::{Data, Got, rest, samples, whole};
use common::{SHUFFLES, backends, expected};
use gpufeed::{
    Backend, Dataset, Dtype, ErrorKind, LastBatch, Loader, LoaderBuilder, Mixture, Order, Rank, Shuffle,
    Source, State,
};
use proptest::prelude::*;

const POLICIES: [LastBatch; 3] = [LastBatch::Drop, LastBatch::Pad, LastBatch::Short];
const SEED: u64 = 9;

fn data() -> Data {
    Data::records(5, &[17, 1, 3, 25])
}

/// A loader that is made quickly.
fn small(source: impl Into<Source>, shuffle: Shuffle) -> LoaderBuilder {
    let builder =
        common::loader(source).backend(Backend::PageCache).queue_depth(1).io_bytes(4096).prefetch(2);
    builder.batch_size(4).shuffle(shuffle).seed(SEED)
}

fn of(data: &Data, shuffle: Shuffle) -> LoaderBuilder {
    small(Arc::clone(&data.dataset), shuffle)
}

/// The state as another process has it: by way of its JSON.
fn sent(state: &State) -> State {
    serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap()
}

/// The state with other values of some keys.
fn with(state: &State, keys: &[(&str, serde_json::Value)]) -> State {
    let mut value = serde_json::to_value(state).unwrap();
    for (key, new) in keys {
        assert_ne!(value[*key], *new, "{key}");
        value[*key] = new.clone();
    }
    serde_json::from_value(value).unwrap()
}

/// Whatever comes next, up to the end of the epoch before `epochs`.
fn on(loader: &mut Loader, epochs: u64) -> Vec<Got> {
    let mut all = Vec::new();
    while loader.state().epoch() < epochs {
        all.extend(rest(loader.next_epoch().unwrap()));
    }
    all
}

/// Goes on for so many batches and stops there, wherever the epoch is.
fn some(loader: &mut Loader, batches: usize) -> Vec<Got> {
    let mut all = Vec::new();
    while all.len() < batches {
        let epoch = loader.next_epoch().unwrap();
        all.extend(epoch.take(batches - all.len()).map(|batch| Got::from(&batch.unwrap())));
    }
    all
}

/// Two epochs, then the same from every batch on, each time by a new loader.
fn from_every_batch(make: impl Fn() -> LoaderBuilder, what: &str) {
    let mut loader = make().build().unwrap();
    let start = loader.state();
    let all = on(&mut loader, 2);
    assert_eq!(all.len() as u64, 2 * loader.batches_per_epoch());
    let states = std::iter::once(&start).chain(all.iter().map(|batch| &batch.state));
    for (delivered, state) in states.enumerate() {
        let mut resumed = make().resume(sent(state)).build().unwrap();
        assert_eq!(resumed.state(), *state, "{what}");
        let got = on(&mut resumed, 2);
        assert!(got == all[delivered..], "{what}: from batch {delivered} on");
        assert_eq!(resumed.state(), loader.state(), "{what}");
    }
}

#[test]
fn from_every_batch_on_it_is_the_run_that_was_not_interrupted() {
    let data = data();
    for backend in backends() {
        for shuffle in SHUFFLES {
            for last in POLICIES {
                let what = format!("{backend} {shuffle} {last}");
                from_every_batch(|| of(&data, shuffle).backend(backend).last_batch(last), &what);
            }
        }
    }
}

#[test]
fn from_every_batch_on_each_rank_has_its_part_of_the_rest() {
    let data = Data::npy(&[9, 0, 1, 36]);
    for shuffle in SHUFFLES {
        for last in POLICIES {
            for rank in 0..3 {
                let rank = Rank::new(rank, 3).unwrap();
                // 46 = 5 x 9 + 1 would be uneven with batches of 3.
                let make = || of(&data, shuffle).batch_size(2).last_batch(last).rank(rank.clone());
                from_every_batch(make, &format!("{rank} {shuffle} {last}"));
            }
        }
    }
}

#[test]
fn from_every_batch_on_a_mixture_goes_on_where_each_of_its_datasets_was() {
    let (a, b) = (Data::records(4, &[20, 3]), Data::records(4, &[9]));
    let part = |data: &Data| Dataset::clone(&data.dataset);
    for epoch_samples in [10, 32, 50] {
        let mixture = Mixture::new([(part(&a), 3), (part(&b), 1)]).unwrap();
        let mixture = mixture.epoch_samples(epoch_samples).unwrap();
        for shuffle in SHUFFLES {
            for last in POLICIES {
                let what = format!("{epoch_samples} {shuffle} {last}");
                from_every_batch(|| small(mixture.clone(), shuffle).last_batch(last), &what);
            }
        }
    }
}

#[test]
fn what_was_read_ahead_and_not_delivered_does_not_count() {
    let data = Data::records(100, &[40, 60, 28]);
    for shuffle in SHUFFLES {
        for backend in backends() {
            let make = || of(&data, shuffle).backend(backend).prefetch(16).queue_depth(8);
            let mut loader = make().build().unwrap();
            let wanted = whole(&mut loader, 0);
            for attempt in 0.. {
                let before = loader.report().bytes_by_way.total();
                let mut epoch = loader.epoch(0).unwrap();
                // The caller may keep batches as long as it likes: they were delivered.
                let kept: Vec<_> = epoch.by_ref().take(3).map(Result::unwrap).collect();
                std::thread::sleep(Duration::from_millis(attempt));
                let state = epoch.state();
                drop(epoch);
                assert_eq!((state.epoch(), state.position()), (0, 12));
                assert_eq!([&kept[2].state(), &loader.state()], [&state; 2]);
                assert_eq!(on(&mut make().resume(sent(&state)).build().unwrap(), 1), wanted[3..]);
                drop(kept);
                let ahead = loader.report().bytes_by_way.total() - before > 1200;
                assert_eq!(on(&mut loader, 1), wanted[3..], "the same loader goes on too");
                if ahead {
                    break;
                }
                // On a busy machine nothing more may have been read yet.
                assert!(attempt < 100, "it does not read ahead");
            }
        }
    }
}

#[test]
fn batches_that_the_caller_keeps_neither_stop_nor_change_the_rest() {
    let data = Data::records(100, &[40, 60, 28]);
    for shuffle in SHUFFLES {
        for prefetch in [1, 2, 7, 16] {
            for kept in [1, prefetch / 2, prefetch] {
                let mut loader = of(&data, shuffle).prefetch(prefetch).build().unwrap();
                let order = Order::new(128, SEED, 0, shuffle);
                let mut held = std::collections::VecDeque::new();
                let mut position = 0;
                for batch in loader.next_epoch().unwrap() {
                    let batch = batch.unwrap();
                    position += 4;
                    assert_eq!(batch.state().position(), position % 128);
                    held.push_back(batch);
                    // All slots but one may be with the caller while it asks for the next.
                    if held.len() as u32 > kept {
                        held.pop_front();
                    }
                    let first = position - 4 * held.len() as u64;
                    for (batch, at) in held.iter().zip((first..).step_by(4)) {
                        let wanted: Vec<u64> = (at..at + 4).filter_map(|it| order.sample(it)).collect();
                        let got = Got::from(batch);
                        assert!(got.samples == wanted && got.bytes == data.bytes_of(&wanted), "{shuffle}");
                    }
                }
                assert_eq!(position, 128);
            }
        }
    }
}

#[test]
fn a_loader_tells_where_it_stands_before_in_and_between_epochs() {
    let data = data();
    let mut loader = of(&data, Shuffle::Full).build().unwrap();
    let stand = |state: State| (state.epoch(), state.position());
    let start = loader.state();
    assert_eq!((start.seed(), start.shuffle()), (SEED, Shuffle::Full));
    assert_eq!((start.fingerprint(), stand(start.clone())), (data.dataset.fingerprint(), (0, 0)));
    // An epoch that nothing was taken of has not moved it.
    drop(loader.next_epoch().unwrap());
    assert_eq!(loader.state(), start);
    for batches in 1..11 {
        assert_eq!(loader.epoch(3).unwrap().take(batches).map(Result::unwrap).count(), batches);
        assert_eq!(stand(loader.state()), (3, 4 * batches as u64));
    }
    // The last batch ends the epoch, whether or not its end was heard; what is dropped of it is gone by.
    assert_eq!(loader.epoch(3).unwrap().take(11).map(Result::unwrap).count(), 11);
    assert_eq!(stand(loader.state()), (4, 0));
    whole(&mut loader, 6);
    assert_eq!(stand(loader.state()), (7, 0));
    loader.resume(&start).unwrap();
    assert_eq!(loader.state(), start);
}

#[test]
fn a_run_may_be_left_after_every_batch_and_gone_on_with_each_time() {
    let data = data();
    for shuffle in SHUFFLES {
        for last in POLICIES {
            let make = || of(&data, shuffle).last_batch(last);
            let wanted = on(&mut make().build().unwrap(), 2);
            // Each batch by a loader of its own.
            let (mut state, mut got) = (make().build().unwrap().state(), Vec::new());
            while state.epoch() < 2 {
                let mut loader = make().resume(sent(&state)).build().unwrap();
                got.extend(some(&mut loader, 1));
                state = loader.state();
            }
            assert_eq!(got, wanted, "{shuffle} {last}");
            // Each by an epoch of its own, of one loader.
            let mut loader = make().build().unwrap();
            let got: Vec<Got> = (0..wanted.len()).flat_map(|_| some(&mut loader, 1)).collect();
            assert_eq!(got, wanted, "{shuffle} {last}");
        }
    }
}

#[test]
fn an_epoch_that_was_left_early_goes_on_in_the_same_loader() {
    let data = data();
    for shuffle in SHUFFLES {
        let mut loader = of(&data, shuffle).last_batch(LastBatch::Short).build().unwrap();
        let wanted = on(&mut loader, 3);
        let count = loader.batches_per_epoch() as usize;
        for left in 0..=count {
            loader.resume(&wanted[count - 1].state).unwrap();
            let mut got = some(&mut loader, left);
            if left % 2 == 1 {
                // What was begun and never looked at changes nothing, even if nobody dropped it.
                std::mem::forget(loader.next_epoch().unwrap());
            }
            got.extend(on(&mut loader, 3));
            assert!(got == wanted[count..], "{shuffle}: left after {left}");
        }
        // Back to where it was, as often as one likes.
        for state in [&wanted[4].state, &wanted[2].state, &wanted[7].state] {
            loader.resume(state).unwrap();
            let next = wanted.iter().position(|batch| batch.state == *state).unwrap() + 1;
            assert_eq!(some(&mut loader, 2), wanted[next..next + 2]);
        }
    }
}

#[test]
fn after_an_error_it_goes_on_behind_the_last_batch_that_came() {
    let data = data();
    for shuffle in SHUFFLES {
        let make = || of(&data, shuffle).last_batch(LastBatch::Short);
        let wanted = on(&mut make().build().unwrap(), 2);
        let mut loader = make().build().unwrap();
        let (here, away) = (&data.paths[3], data.folder().join("away"));
        std::fs::rename(here, &away).unwrap();
        let mut came = Vec::new();
        let mut epoch = loader.next_epoch().unwrap();
        let error = loop {
            match epoch.next().expect("a shard is missing") {
                Ok(batch) => came.push(Got::from(&batch)),
                Err(error) => break error,
            }
        };
        assert!(epoch.next().is_none());
        drop(epoch);
        assert_eq!((error.kind(), error.path()), (ErrorKind::NotFound, Some(here.as_path())));
        assert_eq!(came, wanted[..came.len()], "{shuffle}");
        let state = loader.state();
        assert_eq!(state.position(), samples(&came).len() as u64);
        std::fs::rename(&away, here).unwrap();
        // By another loader, and by the same.
        assert!(on(&mut make().resume(sent(&state)).build().unwrap(), 2) == wanted[came.len()..]);
        assert!(on(&mut loader, 2) == wanted[came.len()..], "{shuffle}");
    }
}

#[test]
fn a_named_epoch_of_a_resumed_loader_starts_at_its_beginning() {
    let data = data();
    let make = || of(&data, Shuffle::Full).last_batch(LastBatch::Pad);
    let mut fresh = make().build().unwrap();
    let all = on(&mut fresh, 4);
    let count = fresh.batches_per_epoch() as usize;
    let mut resumed = make().resume(sent(&all[count + 4].state)).build().unwrap();
    assert_eq!(resumed.batches_per_epoch(), fresh.batches_per_epoch());
    assert_eq!(resumed.samples_per_epoch(), fresh.samples_per_epoch());
    // The one that it would have gone on with, too.
    for epoch in [1, 0, 3, 2] {
        let epoch_of = &all[epoch * count..][..count];
        assert_eq!(whole(&mut resumed, epoch as u64), epoch_of);
    }
    assert_eq!(on(&mut resumed, 4), all[3 * count..], "from there on it goes with the next");
    // And the epoch after the one that was resumed is a whole one.
    let mut resumed = make().resume(sent(&all[count + 4].state)).build().unwrap();
    rest(resumed.next_epoch().unwrap());
    assert_eq!(rest(resumed.next_epoch().unwrap()), all[2 * count..][..count]);
}

#[test]
fn how_the_rest_is_read_makes_no_difference() {
    let data = Data::records(513, &[40, 1, 60, 27]);
    for shuffle in SHUFFLES {
        let make = || of(&data, shuffle).last_batch(LastBatch::Short).batch_size(7);
        let wanted = on(&mut make().build().unwrap(), 2);
        for state in [&wanted[0].state, &wanted[10].state, &wanted[24].state] {
            let next = wanted.iter().position(|batch| batch.state == *state).unwrap() + 1;
            for backend in backends() {
                for (threads, prefetch, io_bytes) in [(1, 1, 4096), (8, 16, 4096), (3, 5, 1 << 20)] {
                    let builder = make().backend(backend).queue_depth(threads).prefetch(prefetch);
                    let mut loader = builder.io_bytes(io_bytes).resume(sent(state)).build().unwrap();
                    let got = on(&mut loader, 2);
                    assert!(got == wanted[next..], "{shuffle} {backend} {threads} {prefetch} {io_bytes}");
                }
            }
        }
    }
}

/// What the ranks of a world deliver of the epoch from `state` on, in global order; `None` if it cannot be dealt evenly,
/// which all of them find when they are built. At most `batches` of each.
fn by(make: &dyn Fn() -> LoaderBuilder, world: u32, state: &State, batches: usize) -> Option<Vec<Got>> {
    let made: Vec<_> = (0..world)
        .map(|rank| make().rank(Rank::new(rank, world).unwrap()).resume(sent(state)).build())
        .collect();
    assert!(made.iter().all(Result::is_ok) || made.iter().all(Result::is_err), "{made:?}");
    let mut made: Vec<Loader> = made.into_iter().collect::<Result<_, _>>().ok()?;
    let one = |loader: &mut Loader| rest(loader.next_epoch().unwrap());
    let all: Vec<Vec<Got>> = made.iter_mut().map(one).collect();
    let count = all[0].len();
    assert!(all.iter().all(|rank| rank.len() == count), "some ranks have more batches");
    Some((0..count.min(batches)).flat_map(|i| all.iter().map(move |rank| rank[i].clone())).collect())
}

/// Some batches by one world, the rest by another: together the epoch, in its order.
fn handed_over(
    data: &Data,
    shuffle: Shuffle,
    (world, size): (u32, u64),
    (then_world, then_size): (u32, u64),
    last: LastBatch,
) {
    let count = data.len();
    let order = Order::new(count, SEED, 0, shuffle);
    let global = |world: u32, size: u64| size * u64::from(world);
    let start = of(data, shuffle).batch_size(1).build().unwrap().state();
    for done in 0..=(count / global(world, size)) as usize {
        let what =
            format!("{count}, {shuffle}, {world} x {size}, then {then_world} x {then_size} {last}, {done}");
        let first = by(&|| of(data, shuffle).batch_size(size), world, &start, done);
        let first = first.unwrap_or_default();
        let state = first.last().map_or(&start, |batch| &batch.state);
        if first.len() != done * world as usize || state.epoch() != 0 {
            // The epoch does not have a batch, or was over.
            continue;
        }
        let position = state.position();
        let then = || of(data, shuffle).batch_size(then_size).last_batch(last);
        let left = count - position;
        let over = left % global(then_world, then_size);
        let Some(second) = by(&then, then_world, state, usize::MAX) else {
            let whole = match last {
                LastBatch::Drop => count < global(then_world, then_size),
                LastBatch::Pad => false,
                LastBatch::Short => {
                    let uneven = |over: u64| (1..u64::from(then_world)).contains(&over);
                    uneven(over) || uneven(count % global(then_world, then_size))
                }
            };
            assert!(whole, "{what}: refused");
            continue;
        };
        // The oracle: the order from the position on, as if that were all there is, padded from the epoch's beginning.
        let mut wanted: Vec<u64> = (0..count).map(|at| order.sample(at).unwrap()).collect();
        let begin = wanted.clone();
        match last {
            LastBatch::Drop => wanted.truncate((count - over) as usize),
            LastBatch::Pad if over > 0 => {
                let missing = global(then_world, then_size) - over;
                wanted.extend(begin.iter().cycle().take(missing as usize));
            }
            _ => {}
        }
        let got = [samples(&first), samples(&second)].concat();
        assert!(got == wanted, "{what}: {got:?} {wanted:?}");
        for batch in first.iter().chain(&second) {
            assert!(batch.bytes == data.bytes_of(&batch.samples), "{what}");
        }
        let padded: u64 = second.iter().map(|batch| batch.padding).sum();
        assert_eq!(padded, (wanted.len() as u64).saturating_sub(count), "{what}");
    }
}

#[test]
fn another_world_and_another_batch_size_go_on_with_the_very_next_sample() {
    let data = data();
    for shuffle in SHUFFLES {
        for last in POLICIES {
            for then in [(1, 4), (1, 5), (2, 3), (3, 4), (4, 1), (7, 2), (1, 46)] {
                handed_over(&data, shuffle, (2, 4), then, last);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_world_goes_on_where_any_other_was(
        shards in proptest::collection::vec(1usize..20, 1..4),
        shuffle in proptest::sample::select(&SHUFFLES[..]),
        first in (1u32..5, 1u64..7),
        then in (1u32..6, 1u64..9),
        last in proptest::sample::select(&POLICIES[..]),
    ) {
        handed_over(&Data::records(2, &shards), shuffle, first, then, last);
    }
}

#[test]
fn a_rest_that_cannot_be_dealt_evenly_is_told_when_the_loader_is_built() {
    let data = data();
    let start = of(&data, Shuffle::Full).build().unwrap().state();
    let state = with(&start, &[("position", 44.into())]);
    for rank in 0..3 {
        let make = || of(&data, Shuffle::Full).batch_size(2).rank(Rank::new(rank, 3).unwrap());
        let error = make().last_batch(LastBatch::Short).resume(state.clone()).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("of the 2 samples that are left from position 44"), "{error}");
        // In place it is told when the rest is asked for, and whole epochs still go.
        let mut loader = make().last_batch(LastBatch::Short).build().unwrap();
        loader.resume(&state).unwrap();
        assert_eq!(loader.next_epoch().unwrap_err().kind(), ErrorKind::InvalidArgument);
        whole(&mut loader, 0);
        // Dropped, the rest has no batch, and the next epoch is whole; padded, it has one.
        let mut loader = make().resume(state.clone()).build().unwrap();
        assert!(rest(loader.next_epoch().unwrap()).is_empty());
        assert_eq!(rest(loader.next_epoch().unwrap()).len() as u64, loader.batches_per_epoch());
        let mut loader = make().last_batch(LastBatch::Pad).resume(state.clone()).build().unwrap();
        assert_eq!(rest(loader.next_epoch().unwrap()).len(), 1);
    }
}

#[test]
fn the_end_of_an_epoch_is_the_beginning_of_the_next() {
    let data = data();
    let start = of(&data, Shuffle::Full).build().unwrap().state();
    let end = with(&start, &[("epoch", 2.into()), ("position", 46.into())]);
    let next = with(&start, &[("epoch", 3.into())]);
    let mut loader = of(&data, Shuffle::Full).resume(end).build().unwrap();
    assert_eq!(loader.state(), next);
    let wanted = whole(&mut of(&data, Shuffle::Full).build().unwrap(), 3);
    assert_eq!(on(&mut loader, 4), wanted);
}

#[test]
fn a_state_of_another_run_is_refused_with_what_differs_and_changes_nothing() {
    let data = data();
    let make = || of(&data, Shuffle::Blocks { block: 4, window: 16 });
    let mut loader = make().build().unwrap();
    some(&mut loader, 3);
    let state = loader.state();
    let longer = Data::records(5, &[17, 1, 3, 26]);
    let renamed = Data::records(5, &[17, 1, 3, 25]);
    std::fs::rename(&renamed.paths[3], renamed.folder().join("shard-0009.bin")).unwrap();
    let renamed = Dataset::builder().records("data", renamed.folder(), Dtype::U8, &[5]).build().unwrap();
    let [longer, renamed] = [Dataset::clone(&longer.dataset), renamed];
    let blocks = |block, window| Shuffle::Blocks { block, window };
    let prints = |other: &Dataset| {
        [format!("fingerprint {}", data.dataset.fingerprint()), format!("this one {}", other.fingerprint())]
    };
    let mixture =
        |weight| Mixture::new([(Dataset::clone(&data.dataset), weight), (longer.clone(), 1)]).unwrap();
    let cases: [(&str, LoaderBuilder, Vec<String>); 8] = [
        ("a record more", small(longer.clone(), blocks(4, 16)), prints(&longer).to_vec()),
        ("a shard renamed", small(renamed.clone(), blocks(4, 16)), prints(&renamed).to_vec()),
        ("a mixture", small(mixture(2), blocks(4, 16)), vec![mixture(2).fingerprint().into()]),
        ("seed", make().seed(8), vec!["seed is 9, this run's 8".into()]),
        ("shuffle", make().shuffle(Shuffle::Full), vec!["blocks:4:16, this run's full".into()]),
        ("block", make().shuffle(blocks(5, 16)), vec!["blocks:4:16, this run's blocks:5:16".into()]),
        ("window", make().shuffle(blocks(4, 17)), vec!["this run's blocks:4:17".into()]),
        (
            "all",
            small(longer.clone(), Shuffle::None).seed(1),
            vec!["fingerprint".into(), "seed is 9, this run's 1".into(), "this run's none".into()],
        ),
    ];
    for (what, builder, words) in cases {
        let mut other = builder.build().unwrap();
        let before = other.state();
        let error = other.resume(&state).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{what}");
        assert!(words.iter().all(|part| error.to_string().contains(part.as_str())), "{what}: {error}");
        assert_eq!(other.state(), before, "{what}");
        assert_eq!(rest(other.next_epoch().unwrap()).len() as u64, other.batches_per_epoch(), "{what}");
    }
    let refused = |state: State| {
        let built = make().resume(state.clone()).build().unwrap_err();
        let mut loader = make().build().unwrap();
        let told = loader.resume(&state).unwrap_err();
        assert_eq!((built.kind(), built.to_string()), (told.kind(), told.to_string()));
        built
    };
    let error = refused(with(&state, &[("seed", 10.into())]));
    assert!(error.to_string().contains("seed is 10, this run's 9"), "{error}");
    let error = refused(with(&state, &[("position", 47.into())]));
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("position 47 is beyond the 46 samples"), "{error}");
    let error = refused(with(&state, &[("version", 2.into())]));
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 2"), "{error}");
    // Two mixtures of the same datasets are two runs, if one has more of the first.
    let of_two = small(mixture(2), Shuffle::Full).build().unwrap().state();
    let error = small(mixture(3), Shuffle::Full).resume(of_two.clone()).build().unwrap_err();
    assert!(error.to_string().contains("fingerprint"), "{error}");
    let shorter = mixture(2).epoch_samples(20).unwrap();
    assert!(small(shorter, Shuffle::Full).resume(of_two).build().is_err());
}

#[test]
fn a_state_is_kept_in_a_file_by_any_rank() {
    let data = data();
    let path = data.folder().join("state");
    let make = |rank| of(&data, Shuffle::Full).batch_size(2).rank(Rank::new(rank, 2).unwrap());
    let wanted = whole(&mut make(1).build().unwrap(), 0);
    let mut loader = make(0).build().unwrap();
    for number in 0..wanted.len() {
        // Written over and over; whoever reads has one whole state.
        some(&mut loader, 1)[0].state.write(&path).unwrap();
        let state = State::read(&path).unwrap();
        assert_eq!(state, wanted[number].state);
        let left = on(&mut make(1).resume(state).build().unwrap(), 1);
        assert_eq!(left, wanted[number + 1..]);
    }
    let files = std::fs::read_dir(data.folder()).unwrap().count();
    assert_eq!(files, data.paths.len() + 1, "no temporary file is left");
}

#[test]
fn the_order_of_a_resumed_epoch_is_that_of_the_order_itself() {
    // Without any loader to compare with.
    let data = data();
    let start = of(&data, Shuffle::Full).build().unwrap().state();
    for epoch in [0, 7, 1 << 40] {
        let order = Order::new(46, SEED, epoch, Shuffle::Full);
        let wanted = expected(46, 4, LastBatch::Short, &order);
        for position in (0..46).step_by(4) {
            let keys = [("epoch", epoch.into()), ("position", position.into())];
            let moved: Vec<_> = keys.into_iter().filter(|(_, value)| *value != 0).collect();
            let builder = of(&data, Shuffle::Full).last_batch(LastBatch::Short);
            let mut loader = builder.resume(with(&start, &moved)).build().unwrap();
            let got = rest(loader.next_epoch().unwrap());
            let got: Vec<_> = got.into_iter().map(|batch| batch.samples).collect();
            assert_eq!(got, wanted[position as usize / 4..]);
        }
    }
}
