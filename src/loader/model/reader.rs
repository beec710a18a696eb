//! The steps of the reading thread. What it does between two things that the caller could see is one step, with all the ways
//! in which it may turn out.

use super::checker::By::{self, Thread, World};
use super::reads::{
    Group, give_up, has_suspects, in_flight, in_flight_on, is_whole, is_whole_in, not_whole, retire_plans,
    some_drive_wants_more,
};
use super::state::{ANY, Bounds, Command, Delivery, Fault, Reader, ReaderAt, State, Steps};

/// A way in which something turned out. Only a failure makes it an affair of the `World`.
type Outcomes = Vec<(By, State)>;

pub(super) fn steps(steps: &mut Steps<'_>) {
    let (from, bounds) = (*steps.from, *steps.bounds);
    // Pipeline::run and all below it: a panic ends the thread.
    if bounds.panics && !from.reader.stuck && !matches!(from.reader.at, ReaderAt::Unwind(_) | ReaderAt::Gone)
    {
        steps.add(World, "the reading thread panics", |to| {
            to.reader.at = ReaderAt::Unwind(0);
            Ok(())
        });
    }
    if from.reader.stuck {
        return steps.add(World, "storage answers after all", |to| {
            to.reader.stuck = false;
            Ok(())
        });
    }
    // An open while planning, reads in flight, also those that are drained, or that the drop of the reader waits for.
    let may_hang = match from.reader.at {
        ReaderAt::Plan | ReaderAt::Reap | ReaderAt::Last(_) | ReaderAt::Unwind(0) => bounds.stalls,
        _ => false,
    };
    if may_hang {
        steps.add(World, "storage does not answer", |to| {
            to.reader.stuck = true;
            Ok(())
        });
    }
    match from.reader.at {
        // Pipeline::run: receives a command, or finds the channel closed and empty.
        ReaderAt::Recv => {
            if !from.commands.is_empty() {
                steps.add(Thread, "run receives a command", |to| {
                    if let Some(Command::Start(epoch)) = to.commands.pop() {
                        start_epoch(&mut to.reader, epoch)?;
                    }
                    Ok(())
                });
            } else if !from.commands_sender {
                steps.add(Thread, "run finds the loader gone", |to| {
                    to.reader.at = ReaderAt::Unwind(0);
                    Ok(())
                });
            }
        }
        // Pipeline::deliver: `while !self.cancelled()`.
        ReaderAt::Top => steps.add(Thread, "deliver looks at the cancel flag", |to| {
            match to.cancel {
                true => finish(to, None, &bounds),
                false => to.reader.at = ReaderAt::Plan,
            }
            Ok(())
        }),
        ReaderAt::Plan => plan_more(steps),
        // Pipeline::slots_for: whether more can still come by themselves.
        ReaderAt::Lent(found) => {
            let mut outcomes = Outcomes::new();
            let stuck = from.reader.filling.is_empty()
                && from.lent_count + from.reader.spare.len() == bounds.slots
                && bounds.fault != Fault::WindowAlwaysWhole;
            match stuck {
                true => look_at_streams(from, found, &bounds, &mut outcomes),
                false => read_on(Thread, from, &bounds, &mut outcomes),
            }
            add_all(steps, "slots_for looks how many are lent", outcomes);
        }
        ReaderAt::Hand => hand_on(steps),
        // Pipeline::reap: some reads have completed, at least one.
        ReaderAt::Reap => {
            let mut outcomes = Outcomes::new();
            let flying = in_flight(&from.reader, &bounds);
            complete(Thread, from, flying.items(), false, &bounds, &mut outcomes);
            if bounds.failures {
                // Waiting itself fails.
                let mut to = from;
                finish(&mut to, Some(ANY), &bounds);
                outcomes.push((World, to));
            }
            add_all(steps, "reap gets completions", outcomes);
        }
        // Copier::wait
        ReaderAt::CopyWait => {
            steps.add(Thread, "a copy is waited for", |to| {
                to.reader.busy -= 1;
                to.reader.at = ReaderAt::Top;
                Ok(())
            });
            if bounds.driver {
                steps.add(World, "waiting for a copy fails", |to| {
                    finish(to, Some(ANY), &bounds);
                    Ok(())
                });
            }
        }
        ReaderAt::WaitBytes => wait_for_bytes(steps),
        ReaderAt::Wait => wait_for_slot(steps),
        // Pipeline::wait_for_slot: `command.is_ok() && !self.cancelled()`.
        ReaderAt::WaitLook => steps.add(Thread, "wait_for_slot looks at the cancel flag", |to| {
            match to.cancel {
                true => finish(to, None, &bounds),
                false => to.reader.at = ReaderAt::Top,
            }
            Ok(())
        }),
        // Pipeline::run: `deliveries.send(last)`.
        ReaderAt::Last(failed) => {
            let epoch = from.reader.epoch;
            if !from.deliveries_receiver {
                return steps.add(Thread, "run finds that nobody wants to hear of the end", |to| {
                    to.reader.at = ReaderAt::Unwind(0);
                    Ok(())
                });
            }
            let Some(at) = failed else {
                steps.add(Thread, "run sends End", |to| {
                    to.reader.at = ReaderAt::Recv;
                    deliver(to, Delivery::End { epoch }, &bounds)
                });
                if bounds.driver && bounds.chunks.is_some() {
                    // Copier::drain failed.
                    steps.add(World, "run sends Failed, for the drain", |to| {
                        to.reader.at = ReaderAt::Recv;
                        deliver(to, Delivery::Failed { epoch, at: ANY, panicked: false }, &bounds)
                    });
                }
                return;
            };
            if bounds.fault == Fault::FailureNotSent {
                return steps.add(Thread, "run forgets to send Failed", |to| {
                    to.reader.at = ReaderAt::Recv;
                    Ok(())
                });
            }
            steps.add(Thread, "run sends Failed", |to| {
                to.reader.at = ReaderAt::Recv;
                deliver(to, Delivery::Failed { epoch, at, panicked: false }, &bounds)
            });
            // The failure was the panic of one of the pool's threads.
            steps.add(World, "run sends Failed, for a panic", |to| {
                to.reader.at = ReaderAt::Recv;
                deliver(to, Delivery::Failed { epoch, at, panicked: true }, &bounds)
            });
        }
        // Pipeline's drop, field after field: `links` goes before the slots.
        ReaderAt::Unwind(0) => steps.add(Thread, "the thread drops its end of the commands", |to| {
            to.commands_receiver = false;
            to.commands.clear();
            to.reader.at = ReaderAt::Unwind(1);
            Ok(())
        }),
        ReaderAt::Unwind(1) => steps.add(Thread, "the thread drops its end of the free slots", |to| {
            to.free_receiver = false;
            to.gone.put_all(&mut to.free);
            to.reader.at = ReaderAt::Unwind(2);
            Ok(())
        }),
        ReaderAt::Unwind(_) => steps.add(Thread, "the thread drops its end of the deliveries", |to| {
            to.deliveries_sender = false;
            drain(&mut to.reader);
            to.gone.put_all(&mut to.reader.spare);
            to.reader.epoch = 0;
            to.reader.at = ReaderAt::Gone;
            Ok(())
        }),
        ReaderAt::Spin | ReaderAt::Gone => {}
    }
}

fn add_all(steps: &mut Steps<'_>, what: &'static str, outcomes: Outcomes) {
    for (by, outcome) in outcomes {
        steps.add(by, what, |to| {
            *to = outcome;
            Ok(())
        });
    }
}

/// `Pipeline::run`: an epoch starts. Nothing may be left of the one before.
fn start_epoch(reader: &mut Reader, epoch: u8) -> Result<(), &'static str> {
    if !reader.filling.is_empty() || !reader.groups.is_empty() || reader.busy > 0 || reader.failure != ANY {
        return Err("an epoch starts with something left of the one before");
    }
    (reader.epoch, reader.batch, reader.first) = (epoch, 0, 0);
    reader.at = ReaderAt::Top;
    Ok(())
}

/// `Pipeline::deliver`: the head of the loop that plans ahead, and `slots_for`, up to where it looks at the count of lent slots.
fn plan_more(steps: &mut Steps<'_>) {
    let (from, bounds) = (*steps.from, *steps.bounds);
    let mut outcomes = Outcomes::new();
    let reader = &from.reader;
    let plan =
        reader.batch < bounds.batches && reader.failure == ANY && some_drive_wants_more(reader, &bounds);
    if !plan {
        read_on(Thread, from, &bounds, &mut outcomes);
        return add_all(steps, "deliver has planned enough", outcomes);
    }
    // Pipeline::batches_together
    let in_window = bounds.window - reader.batch % bounds.window;
    let wanted = in_window.min((bounds.slots / 2).max(1)).min(bounds.batches - reader.batch);
    // Pipeline::slots_for: takes slots out of the channel one by one. Nobody else takes any, so it may as well be at once.
    let mut to = from;
    while to.reader.spare.len() < wanted {
        let Some(slot) = to.free.take() else { break };
        to.reader.spare.put(slot);
    }
    match to.reader.spare.len().min(wanted) {
        // Whether it is stuck or not, there is nothing to plan in.
        0 => read_on(Thread, to, &bounds, &mut outcomes),
        found if found < wanted => {
            to.reader.at = ReaderAt::Lent(found);
            outcomes.push((Thread, to));
        }
        found => look_at_streams(to, found, &bounds, &mut outcomes),
    }
    add_all(steps, "deliver plans", outcomes);
}

/// `Pipeline::slots_for`, its end: streams of the caller may still use the slots.
fn look_at_streams(from: State, found: u8, bounds: &Bounds, outcomes: &mut Outcomes) {
    plan(from, found, bounds, outcomes);
    if bounds.driver && !in_flight(&from.reader, bounds).is_empty() {
        read_on(World, from, bounds, outcomes);
        // Event::passed fails.
        let mut to = from;
        if bounds.fault == Fault::FailedLookLosesSlot {
            to.reader.spare.take();
        }
        finish(&mut to, Some(ANY), bounds);
        outcomes.push((World, to));
    }
}

/// `Pipeline::plan`: makes slots ready one by one, and plans for them together.
fn plan(from: State, together: u8, bounds: &Bounds, outcomes: &mut Outcomes) {
    let number = from.reader.first + from.reader.filling.len();
    // For each slot Copier::reopen can fail, and a batch can have no good sample; and each can be one that cannot be planned.
    let fallible = bounds.driver || (bounds.skip && bounds.failures);
    for ready in if fallible { 0..=together } else { together..=together } {
        for bad in if bounds.failures { 0..=ready } else { ready..=ready } {
            let mut to = from;
            to.reader.at = ReaderAt::Plan;
            // Halved until the bad one is not among them, or is alone.
            let mut planned = ready;
            while planned > 1 && bad < planned {
                planned /= 2;
            }
            if bad < planned {
                to.reader.failure = number;
                planned = 0;
            } else {
                // If fewer were planned, what is wrong with one before it is found next.
                if ready < together && (planned == ready || bounds.fault == Fault::GapBeforeFailure) {
                    to.reader.failure = number + ready;
                }
                to.reader.groups.push(Group::new(number, planned));
            }
            for _ in 0..planned {
                to.reader.spare.take().into_iter().for_each(|slot| to.reader.filling.push(slot));
            }
            to.reader.batch += planned;
            let lucky = ready == together && bad == ready;
            outcomes.push((if lucky { Thread } else { World }, to));
        }
    }
}

/// `Pipeline::deliver`, after planning: `Copier::reclaim`, `investigate` if something is suspect, and then `start_reads` and what
/// follows it.
fn read_on(by: By, from: State, bounds: &Bounds, outcomes: &mut Outcomes) {
    let suspects = in_flight(&from.reader, bounds).is_empty() && has_suspects(&from.reader);
    for done in 0..=from.reader.busy {
        let mut to = from;
        to.reader.busy -= done;
        match suspects {
            true => investigate(by, to, 0, bounds, outcomes),
            false => start_reads(by, to, bounds, outcomes),
        }
    }
    if bounds.driver && bounds.chunks.is_some() {
        let mut to = from;
        finish(&mut to, Some(ANY), bounds);
        outcomes.push((World, to));
    }
}

/// `Pipeline::investigate`: from the group at this place on, `probe_samples`. It finds bad samples or none, which is the same here,
/// or that one of the batches cannot come.
fn investigate(by: By, mut from: State, place: usize, bounds: &Bounds, outcomes: &mut Outcomes) {
    // Copier::drain. If it fails, so may Copier::reclaim just before.
    from.reader.busy = 0;
    let Some(group) = from.reader.groups.items().get(place) else {
        return plan_again(by, from, 0, bounds, outcomes);
    };
    if group.suspect {
        for batch in not_whole(&from.reader, place, bounds).items() {
            let mut to = from;
            to.reader.failure = to.reader.failure.min(*batch);
            investigate(World, to, place + 1, bounds, outcomes);
        }
    }
    investigate(by, from, place + 1, bounds, outcomes);
}

/// `Pipeline::plan_again`, for the group at this place and those behind it.
fn plan_again(by: By, from: State, place: usize, bounds: &Bounds, outcomes: &mut Outcomes) {
    let Some(group) = from.reader.groups.items().get(place) else {
        return start_reads(by, from, bounds, outcomes);
    };
    if !group.suspect {
        return plan_again(by, from, place + 1, bounds, outcomes);
    }
    if bounds.fault == Fault::NotPlannedAgain {
        let mut to = from;
        to.reader.groups.items_mut()[place].suspect = false;
        return plan_again(by, to, place + 1, bounds, outcomes);
    }
    let all = not_whole(&from.reader, place, bounds);
    let whole =
        (0..group.batches).filter(|batch| is_whole_in(group, *batch, bounds)).map(|batch| 1 << batch).sum();
    // Each may be the first that has no good sample. If they cannot be planned, the first of them cannot come.
    let results = (0..=all.len()).map(|good| (good, good)).chain((!all.is_empty()).then_some((0, 0)));
    for (good, planned) in results {
        let mut to = from;
        let planned = all.items()[..planned as usize].iter().map(|batch| 1 << (batch - group.first)).sum();
        let new = Group { whole, planned, ..Group::new(group.first, group.batches) };
        to.reader.groups.items_mut()[place] = new;
        let mut by = by;
        if let Some(batch) = all.items().get(good as usize) {
            to.reader.failure = to.reader.failure.min(*batch);
            by = World;
        }
        plan_again(by, to, place + 1, bounds, outcomes);
    }
}

/// `Pipeline::start_reads`
fn start_reads(by: By, mut to: State, bounds: &Bounds, outcomes: &mut Outcomes) {
    to.reader.put_off = false;
    let (mut place, mut drive) = (0, 0);
    while !has_suspects(&to.reader) {
        let flying = in_flight(&to.reader, bounds).len();
        let Some(group) = to.reader.groups.items().get(place).copied() else { break };
        // Batches before the one that failed still come, and their reads may be anywhere in their group.
        let last = if bounds.fault == Fault::FailureStopsGroup { ANY - 1 } else { group.first };
        if flying == bounds.depth * bounds.drives || to.reader.failure <= last {
            break;
        }
        if drive == bounds.drives || (drive == 1 && bounds.fault == Fault::OneDriveForAll) {
            (place, drive) = (place + 1, 0);
            continue;
        }
        let full = in_flight_on(&to.reader, drive, bounds).len() == bounds.depth;
        if full || group.left(drive, bounds) == 0 {
            drive += 1;
            continue;
        }
        if bounds.chunks.is_some_and(|chunks| flying + to.reader.busy == chunks) {
            break;
        }
        if bounds.limited {
            let mut later = to;
            later.reader.put_off = true;
            go_on(&mut later, bounds);
            outcomes.push((World, later));
        }
        to.reader.groups.items_mut()[place].started[drive as usize] += 1;
        if bounds.failures {
            // Pipeline::launch fails.
            let read = group.share(drive, bounds).start + group.started[drive as usize];
            let mut refused = to;
            give_up(&mut refused.reader, (place as u8, read), bounds);
            start_reads(World, refused, bounds, outcomes);
        }
    }
    go_on(&mut to, bounds);
    outcomes.push((by, to));
}

/// `Pipeline::reap` and `complete`: of the reads in flight, those in `left` may each stay there, be done, or fail. `some`
/// completed before.
fn complete(by: By, from: State, left: &[(u8, u8)], some: bool, bounds: &Bounds, outcomes: &mut Outcomes) {
    let Some((&(group, read), left)) = left.split_first() else {
        if some {
            let mut to = from;
            to.reader.at = ReaderAt::Top;
            outcomes.push((by, to));
        }
        return;
    };
    complete(by, from, left, some, bounds, outcomes);
    let copies = u8::from(bounds.chunks.is_some());
    // Pipeline::copy_out, book and land.
    let mut done = from;
    done.reader.groups.items_mut()[group as usize].landed |= 1 << read;
    done.reader.busy += copies;
    complete(by, done, left, true, bounds, outcomes);
    if bounds.failures {
        let mut failed = from;
        give_up(&mut failed.reader, (group, read), bounds);
        complete(World, failed, left, true, bounds, outcomes);
    }
    if bounds.failures && bounds.skip {
        // Pipeline::is_suspect
        let mut failed = from;
        let its = &mut failed.reader.groups.items_mut()[group as usize];
        (its.failed, its.suspect) = (its.failed | 1 << read, true);
        complete(World, failed, left, true, bounds, outcomes);
    }
    if bounds.driver && copies > 0 {
        // Copier::copy fails, and has the chunk all the same.
        let mut failed = from;
        give_up(&mut failed.reader, (group, read), bounds);
        failed.reader.busy += 1;
        complete(World, failed, left, true, bounds, outcomes);
    }
}

/// `Pipeline::hand_on`: a batch at the front is whole, and is sent.
fn hand_on(steps: &mut Steps<'_>) {
    let (from, bounds) = (*steps.from, *steps.bounds);
    let (epoch, first) = (from.reader.epoch, from.reader.first);
    if !from.deliveries_receiver {
        // The loader has left this thread behind.
        return steps.add(Thread, "hand_on finds the loader gone", |to| {
            to.reader.filling.pop().into_iter().try_for_each(|slot| to.send_home(slot, &bounds))?;
            finish(to, Some(ANY), &bounds);
            Ok(())
        });
    }
    steps.add(Thread, "hand_on sends a batch", |to| {
        let place =
            (0..to.reader.filling.len()).find(|place| is_whole(&to.reader, *place, &bounds)).unwrap_or(0);
        let slot = to.reader.filling.remove(place.into());
        to.reader.first += 1;
        deliver(to, Delivery::Batch { slot, epoch, index: first + place }, &bounds)?;
        go_on(to, &bounds);
        Ok(())
    });
    if bounds.driver && bounds.chunks.is_some() {
        // Pipeline::send_off fails.
        steps.add(World, "hand_on cannot send a batch off", |to| {
            to.reader.filling.pop().into_iter().for_each(|slot| to.reader.spare.put(slot));
            finish(to, Some(first), &bounds);
            Ok(())
        });
    }
}

/// `Pipeline::deliver`, from `hand_on` on: what it does next when no batch is whole.
fn go_on(to: &mut State, bounds: &Bounds) {
    let reader = &mut to.reader;
    let places = if bounds.fault == Fault::AnyOrder { reader.filling.len() } else { 1 };
    if (0..places.min(reader.filling.len())).any(|place| is_whole(reader, place, bounds)) {
        reader.at = ReaderAt::Hand;
        return;
    }
    retire_plans(reader, bounds);
    let failure = reader.failure;
    if failure <= reader.first || (failure != ANY && bounds.fault == Fault::FailureAtOnce) {
        return finish(to, Some(failure), bounds);
    }
    let (put_off, suspects) = (std::mem::take(&mut reader.put_off), has_suspects(reader));
    reader.at = if !in_flight(reader, bounds).is_empty() {
        ReaderAt::Reap
    } else if put_off {
        ReaderAt::WaitBytes
    } else if !reader.filling.is_empty() && !suspects {
        if reader.busy > 0 { ReaderAt::CopyWait } else { ReaderAt::Spin }
    } else if suspects {
        ReaderAt::Top
    } else if reader.batch == bounds.batches {
        return finish(to, None, bounds);
    } else {
        ReaderAt::Wait
    };
}

/// `Pipeline::wait_for_bytes`: what its `select!` may find. Whatever it is, the loop goes on.
fn wait_for_bytes(steps: &mut Steps<'_>) {
    let from = *steps.from;
    if !from.commands.is_empty() {
        steps.add(Thread, "wait_for_bytes gets a command", |to| {
            to.reader.at = ReaderAt::Top;
            match to.commands.pop() {
                Some(Command::Start(_)) => Err("the start of an epoch is taken for a wake-up"),
                _ => Ok(()),
            }
        });
    } else if !from.commands_sender {
        steps.add(Thread, "wait_for_bytes finds the loader gone", |to| {
            to.reader.at = ReaderAt::Top;
            // Or it would find so again and again.
            if to.cancel { Ok(()) } else { Err("the loader is gone, and nobody has told the reading thread") }
        });
    }
    steps.add(Thread, "wait_for_bytes has waited", |to| {
        to.reader.at = ReaderAt::Top;
        Ok(())
    });
}

/// `Pipeline::wait_for_slot`: what its `select!` may find.
fn wait_for_slot(steps: &mut Steps<'_>) {
    let (from, bounds) = (*steps.from, *steps.bounds);
    if !from.free.is_empty() {
        steps.add(Thread, "wait_for_slot gets a slot", |to| {
            to.free.take().into_iter().for_each(|slot| to.reader.spare.put(slot));
            to.reader.at = ReaderAt::Top;
            Ok(())
        });
    }
    if bounds.fault == Fault::CommandsIgnored {
        return;
    }
    if !from.commands.is_empty() {
        steps.add(Thread, "wait_for_slot gets a command", |to| {
            to.reader.at = ReaderAt::WaitLook;
            match to.commands.pop() {
                Some(Command::Start(_)) => Err("the start of an epoch is taken for a wake-up"),
                _ => Ok(()),
            }
        });
    } else if !from.commands_sender {
        steps.add(Thread, "wait_for_slot finds the loader gone", |to| {
            finish(to, None, &bounds);
            Ok(())
        });
    }
    if !from.reader.spare.is_empty() {
        steps.add(Thread, "wait_for_slot has waited long enough", |to| {
            to.reader.at = ReaderAt::Top;
            Ok(())
        });
    }
}

/// `Pipeline::run`: `deliver` has returned, with the batch that cannot come if something is wrong; now `drain`.
fn finish(to: &mut State, failed: Option<u8>, bounds: &Bounds) {
    if bounds.fault == Fault::DrainLosesSlots {
        to.reader.filling.clear();
    }
    drain(&mut to.reader);
    to.reader.at = ReaderAt::Last(failed);
}

/// `Pipeline::drain`: waits for reads and copies, and takes back the slots that are not whole.
fn drain(reader: &mut Reader) {
    while let Some(slot) = reader.filling.pop() {
        reader.spare.put(slot);
    }
    reader.groups.clear();
    (reader.put_off, reader.failure, reader.busy) = (false, ANY, 0);
    // Of no account until the next epoch.
    (reader.batch, reader.first) = (0, 0);
}

/// A send on `deliveries`: the reading thread must never wait for the caller here.
fn deliver(to: &mut State, delivery: Delivery, bounds: &Bounds) -> Result<(), &'static str> {
    let room = bounds.slots + u8::from(bounds.fault != Fault::DeliveriesTooSmall);
    if to.deliveries.len() >= room {
        return Err("the reading thread would wait for room to deliver");
    }
    to.deliveries.push(delivery);
    Ok(())
}
