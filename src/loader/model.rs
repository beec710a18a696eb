//! A model of the loader's threads that is small enough to visit every state that they can be in.
//!
//! What `mod.rs`, `pipeline.rs`, `flight.rs`, `bad.rs` and `ring.rs` do is taken apart into the steps that one thread could
//! see of another: a send, a receive, a look at a flag. [`checker`] then takes these steps in every order. Each names the
//! function that it mirrors, so whoever changes what the threads tell each other, or when, changes the step too.
//!
//! - The caller begins epochs, takes batches, leaves an epoch early, forgets it, resumes, and drops the loader at any moment.
//!   It gives up on a reading thread that storage keeps, and leaves it behind.
//!   Others drop batches at any moment and in any order, or keep them, and call `stop` at any moment.
//! - The reading thread plans, reads, skips bad samples, and hands on. Reads complete in any order, and a limit on bytes puts
//!   any of them off. Each read, each plan and each call of a GPU's driver may fail, and the thread may panic anywhere. Storage
//!   may keep it in a read or an open for a while, or for ever.
//! - Channels have the capacities that `builder.rs` gives them: 2 commands, a delivery for each slot and one more, a free
//!   slot for each slot, 1 stop.
//!
//! # What holds in every state
//!
//! - Each slot is in exactly one place. None is lost, as long as a thread is there that needs it.
//! - The reading thread never waits for room in `deliveries`, and nobody for room among the free slots.
//! - Batches come in order, none twice, none of another epoch, and none is missing when an epoch ends that nobody cancelled.
//!   A failure takes away the batch that it is of, and none before it. Nothing of an epoch is left when it has ended.
//! - No `Start` is taken for a wake-up. A stop is never forgotten. The count of lent slots is right.
//! - No batch waits for reads that nobody does. From every state the threads can come to the end, with the loader dropped, by
//!   their own steps alone: nobody has to give back a batch, to call `stop` or to fail, and storage has to answer nothing. So
//!   there is no deadlock and no livelock, and a caller who holds every slot gets `SlotsExhausted`. A thread that was left
//!   behind ends if storage answers after all.
//!
//! The caller can find `commands` full, with the `Cancel` of one epoch and the `Start` of the next in it. It does not wait there:
//! what is in the channel wakes the reading thread as well as another `Cancel` would.
//!
//! # What was visited
//!
//! All within the bounds that the tests name: 2 to 6 slots, 0 to 6 batches, 1 to 3 epochs, 1 or 2 reads of a batch, 1 or 2
//! drives with 1 or 2 reads in flight each, up to 3 batches planned together, with and without a GPU. So many millions of
//! states as the tests print, most of them in one that is ignored and takes a minute:
//!
//! ```text
//! cargo test --release --lib loader::model -- --include-ignored --nocapture
//! ```
//!
//! It found the fault of `plan` that [`Fault::GapBeforeFailure`] plants; `tests/gap.rs` has it on the loader itself.
//!
//! # What is not in it
//!
//! - More than that. Epochs of different lengths in one run; rings of one slot, which the builder does not make.
//! - The order of memory: all threads see all steps in one order. (The cancel flag is always set before the channel is used that
//!   tells of it. The count of lent slots is relaxed: who reads an old one looks again.)
//! - Time: a timeout can come whenever there is nothing to receive.
//! - What is inside a step: channels, `select!`, the reader with its own threads, the kernel, files, streams of a GPU; and which
//!   samples a batch has. Forks.

mod caller;
mod checker;
mod reader;
mod reads;
mod state;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Instant;

use checker::{Step, System, Visited, explore};
use state::{Bounds, Fault, State};

/// Two slots, reads one by one, and all that can go wrong on a host.
const HOST: Bounds = Bounds {
    slots: 2,
    batches: 3,
    epochs: 2,
    drives: 1,
    depth: 1,
    reads: 1,
    window: 1,
    chunks: None,
    failures: true,
    panics: true,
    skip: false,
    limited: false,
    driver: false,
    stalls: false,
    fault: Fault::None,
};

/// Three slots, and reads that overlap within a batch and between batches.
const WIDE: Bounds = Bounds { slots: 3, batches: 4, depth: 2, reads: 2, ..HOST };

/// A GPU whose driver may fail at any call, with as many chunks as reads.
const GPU: Bounds = Bounds { slots: 3, chunks: Some(2), driver: true, depth: 2, ..HOST };

fn visit(bounds: Bounds) -> Visited {
    let started = Instant::now();
    match explore(&bounds) {
        Ok(visited) => {
            eprintln!("{visited} in {:.1?}: {bounds:?}", started.elapsed());
            visited
        }
        Err(flaw) => panic!("{flaw}\nwithin {bounds:?}"),
    }
}

fn visit_all(all: &[Bounds]) -> usize {
    all.iter().map(|bounds| visit(*bounds).states).sum()
}

#[test]
fn two_slots_keep_every_rule() {
    let short = [0, 1, 2, 3].map(|batches| Bounds { batches, ..HOST });
    let rest = [Bounds { epochs: 3, ..HOST }, Bounds { depth: 2, reads: 2, ..HOST }];
    assert!(visit_all(&short) + visit_all(&rest) > 300_000);
}

#[test]
fn three_slots_with_reads_that_overlap_keep_every_rule() {
    let states = visit_all(&[
        Bounds { epochs: 1, ..WIDE },
        Bounds { batches: 3, panics: false, ..WIDE },
        Bounds { epochs: 3, failures: false, panics: false, ..WIDE },
    ]);
    assert!(states > 400_000);
}

#[test]
fn batches_that_are_planned_together_keep_every_rule() {
    let states = visit_all(&[
        Bounds { slots: 4, window: 2, batches: 5, epochs: 1, panics: false, ..HOST },
        Bounds {
            slots: 4,
            window: 2,
            batches: 5,
            epochs: 1,
            depth: 2,
            reads: 2,
            failures: false,
            panics: false,
            ..HOST
        },
        Bounds { slots: 4, window: 2, batches: 3, epochs: 1, depth: 2, reads: 2, panics: false, ..HOST },
        Bounds { slots: 4, window: 2, batches: 2, epochs: 2, depth: 2, reads: 2, panics: false, ..HOST },
        Bounds { slots: 6, window: 3, panics: false, ..HOST },
    ]);
    assert!(states > 200_000);
}

#[test]
fn drives_with_queues_of_their_own_keep_every_rule() {
    let two = Bounds { drives: 2, slots: 3, ..HOST };
    let windows = Bounds { slots: 4, window: 2, reads: 2, epochs: 1, panics: false, ..two };
    let states = visit_all(&[
        two,
        Bounds { reads: 2, panics: false, ..two },
        Bounds { depth: 2, epochs: 1, panics: false, ..two },
        Bounds { depth: 2, reads: 2, failures: false, panics: false, ..two },
        windows,
        Bounds { skip: true, batches: 2, ..windows },
        Bounds { limited: true, batches: 2, ..windows },
        Bounds { drives: 2, epochs: 1, depth: 1, reads: 2, panics: false, ..GPU },
    ]);
    assert!(states > 100_000);
}

#[test]
fn bad_samples_and_a_limit_on_bytes_keep_every_rule() {
    let states = visit_all(&[
        Bounds { skip: true, limited: true, ..HOST },
        Bounds { limited: true, depth: 2, failures: false, ..HOST },
        Bounds { skip: true, depth: 2, reads: 2, epochs: 1, panics: false, ..HOST },
        Bounds { skip: true, slots: 4, window: 2, depth: 2, reads: 2, epochs: 1, panics: false, ..HOST },
        Bounds { skip: true, slots: 6, window: 3, epochs: 1, panics: false, ..HOST },
    ]);
    assert!(states > 300_000);
}

#[test]
fn copies_to_a_gpu_that_fails_keep_every_rule() {
    let states = visit_all(&[
        Bounds { slots: 2, depth: 1, chunks: Some(1), ..GPU },
        Bounds { epochs: 1, ..GPU },
        Bounds { slots: 4, window: 2, failures: false, panics: false, ..GPU },
        Bounds { epochs: 1, slots: 6, window: 3, chunks: Some(1), depth: 1, panics: false, ..GPU },
    ]);
    assert!(states > 300_000);
}

#[test]
fn storage_that_does_not_answer_keeps_nobody() {
    let states = visit_all(&[
        Bounds { stalls: true, batches: 2, ..HOST },
        Bounds { stalls: true, batches: 2, epochs: 3, panics: false, failures: false, ..HOST },
        Bounds { stalls: true, epochs: 1, panics: false, depth: 2, reads: 2, ..HOST },
        Bounds { stalls: true, slots: 2, batches: 2, epochs: 1, depth: 1, chunks: Some(1), ..GPU },
        Bounds { stalls: true, slots: 4, window: 2, panics: false, epochs: 1, ..HOST },
    ]);
    assert!(states > 100_000);
}

/// Takes note of the steps that are taken.
struct Noting(Bounds, RefCell<BTreeSet<&'static str>>);

impl System for Noting {
    type State = State;

    fn start(&self) -> State {
        self.0.start()
    }

    fn steps(&self, state: &State, steps: &mut Vec<Step<State>>) {
        self.0.steps(state, steps);
        self.1.borrow_mut().extend(steps.iter().map(|step| step.what));
    }

    fn check(&self, state: &State) -> Result<(), &'static str> {
        self.0.check(state)
    }

    fn is_over(&self, state: &State) -> bool {
        self.0.is_over(state)
    }
}

#[test]
fn no_kind_of_step_is_in_the_model_in_vain() {
    let windows = Bounds { slots: 4, window: 2, panics: false, failures: false, ..HOST };
    let mut kinds = BTreeSet::new();
    let copies = Bounds { slots: 2, batches: 2, epochs: 1, depth: 1, chunks: Some(1), ..GPU };
    let stalls = Bounds { batches: 2, epochs: 1, stalls: true, ..HOST };
    for bounds in [Bounds { batches: 2, limited: true, ..HOST }, windows, copies, stalls] {
        let noting = Noting(bounds, RefCell::default());
        explore(&noting).unwrap();
        kinds.extend(noting.1.into_inner());
    }
    // All that `caller.rs` and `reader.rs` name, but the one of a planted fault.
    assert_eq!(kinds.len(), 62, "{kinds:#?}");
}

#[test]
#[ignore = "takes minutes without optimisation"]
fn more_of_everything_keeps_every_rule() {
    visit_all(&[
        WIDE,
        Bounds { epochs: 3, ..WIDE },
        Bounds { slots: 4, window: 2, ..WIDE },
        Bounds { slots: 4, window: 2, batches: 6, epochs: 1, ..WIDE },
        Bounds { slots: 6, window: 3, batches: 3, ..WIDE },
        Bounds { skip: true, limited: true, ..WIDE },
        Bounds { skip: true, slots: 4, window: 2, epochs: 1, ..WIDE },
        Bounds { stalls: true, ..HOST },
        Bounds { stalls: true, batches: 3, panics: false, ..WIDE },
        Bounds { stalls: true, batches: 2, epochs: 1, ..GPU },
        Bounds { skip: true, limited: true, slots: 6, window: 3, batches: 3, epochs: 1, ..WIDE },
        GPU,
        Bounds { skip: true, limited: true, epochs: 1, ..GPU },
        Bounds { epochs: 1, batches: 4, reads: 2, ..GPU },
        Bounds { slots: 4, window: 2, ..GPU },
        Bounds { epochs: 1, slots: 4, window: 2, reads: 2, ..GPU },
        Bounds { epochs: 1, slots: 6, window: 3, reads: 2, chunks: Some(3), panics: false, ..GPU },
    ]);
}

#[test]
fn every_planted_fault_is_found() {
    let lost = "a slot is lost";
    let missing = "batches are missing";
    let hangs = "never come to an end";
    let deep = Bounds { depth: 2, ..HOST };
    let once = Bounds { epochs: 1, ..HOST };
    let windows = Bounds { slots: 4, window: 2, depth: 2, reads: 2, epochs: 1, panics: false, ..HOST };
    let stalls = Bounds { stalls: true, panics: false, ..once };
    let large = Bounds { slots: 6, window: 3, skip: true, panics: false, epochs: 1, ..HOST };
    for (fault, within, expected) in [
        (Fault::DeliveriesTooSmall, HOST, "would wait for room to deliver"),
        (Fault::DrainLosesSlots, HOST, lost),
        (Fault::DropLosesSlot, HOST, lost),
        (Fault::FailedLookLosesSlot, GPU, lost),
        (Fault::CancelResetLate, HOST, missing),
        (Fault::FailureAtOnce, deep, missing),
        (Fault::ForgottenEpochRuns, HOST, "meant for another"),
        (Fault::EndNotAwaited, HOST, "left when it has ended"),
        (Fault::AnyOrder, deep, "not the next one"),
        (Fault::StopNotPutBack, HOST, "a stop is forgotten"),
        (Fault::CancelNotSent, once, hangs),
        (Fault::CommandsIgnored, once, hangs),
        (Fault::FailureNotSent, once, hangs),
        (Fault::FailureStopsGroup, windows, "reads that nobody does"),
        (Fault::NotPlannedAgain, Bounds { skip: true, ..once }, "reads that nobody does"),
        (Fault::WindowAlwaysWhole, Bounds { epochs: 2, depth: 1, reads: 1, ..windows }, hangs),
        (Fault::GapBeforeFailure, large, hangs),
        (Fault::ReceiveWaits, stalls, hangs),
        (Fault::EndEpochWaits, stalls, hangs),
        (Fault::DropJoins, stalls, hangs),
        (Fault::CommandsLeftOpen, stalls, hangs),
        (Fault::OneDriveForAll, Bounds { drives: 2, slots: 3, ..once }, "reads that nobody does"),
    ] {
        let started = Instant::now();
        match explore(&Bounds { fault, ..within }) {
            Ok(visited) => panic!("{fault:?} is not found: {visited}"),
            Err(flaw) => {
                eprintln!(
                    "{fault:?} in {:?}: {}, after {} steps",
                    started.elapsed(),
                    flaw.what,
                    flaw.way.len()
                );
                assert!(flaw.what.contains(expected), "{fault:?} is found as: {flaw}");
            }
        }
    }
}
