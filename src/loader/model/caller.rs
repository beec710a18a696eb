//! The steps of the caller, and of whoever else holds batches or a stop handle. Each step does one thing that the reading
//! thread could see, and names the function that it mirrors.

use super::checker::By::{Thread, World};
use super::state::{ANY, Bounds, CallerAt, Command, Delivery, Fault, ReaderAt, State, Steps, Then};

pub(super) fn steps(steps: &mut Steps<'_>) {
    of_the_caller(steps);
    of_others(steps);
}

fn of_the_caller(steps: &mut Steps<'_>) {
    let (from, bounds) = (*steps.from, *steps.bounds);
    let room = from.commands.len() < 2;
    match from.caller.at {
        CallerAt::Idle => {
            // Loader::epoch, next_epoch. A closed loader only returns an error.
            if from.caller.epochs_left > 0 && !from.caller.closed {
                steps.add(Thread, "the caller begins an epoch", |to| {
                    to.caller.epochs_left -= 1;
                    to.caller.at = match bounds.fault {
                        Fault::ForgottenEpochRuns => CallerAt::ResetCancel,
                        _ => CallerAt::EndEpoch(Then::Begin),
                    };
                    Ok(())
                });
            }
            // Loader::resume, or a begin that finds that no such epoch can be dealt to the ranks.
            if from.caller.running {
                steps.add(Thread, "the caller resumes", |to| {
                    to.caller.at = CallerAt::EndEpoch(Then::Resume);
                    Ok(())
                });
            }
            // Loader::drop
            steps.add(Thread, "the caller drops the loader", |to| {
                to.caller.at = CallerAt::DropFlag;
                Ok(())
            });
        }
        CallerAt::InEpoch => {
            // Epoch::next. After the end, or an error, it only returns None.
            if from.caller.running && !from.caller.left {
                steps.add(Thread, "the caller wants the next batch", |to| {
                    to.caller.at = CallerAt::Look;
                    Ok(())
                });
            }
            // Epoch::drop
            steps.add(Thread, "the caller drops the epoch", |to| {
                to.caller.at = CallerAt::EndEpoch(Then::Leave);
                Ok(())
            });
            // std::mem::forget
            steps.add(Thread, "the caller forgets the epoch", |to| {
                to.caller.at = CallerAt::Idle;
                Ok(())
            });
        }
        // Loader::end_epoch: sets the flag, unless it has before.
        CallerAt::EndEpoch(then) => steps.add(Thread, "end_epoch sets the cancel flag, if it runs", |to| {
            if !to.caller.running {
                return after(then, to);
            }
            if std::mem::replace(&mut to.caller.left, true) {
                to.caller.at = CallerAt::Drain(then);
                return Ok(());
            }
            to.cancel = true;
            to.caller.at = match bounds.fault {
                Fault::CancelNotSent => CallerAt::Drain(then),
                _ => CallerAt::SendCancel(then),
            };
            Ok(())
        }),
        // Loader::end_epoch: sends Cancel if there is room.
        CallerAt::SendCancel(then) => steps.add(Thread, "end_epoch sends Cancel", |to| {
            if to.commands_receiver && room {
                to.commands.push(Command::Cancel);
            }
            to.caller.at = CallerAt::Drain(then);
            match bounds.fault {
                Fault::EndNotAwaited => after(then, to),
                _ => Ok(()),
            }
        }),
        // Loader::end_epoch: receives until the end.
        CallerAt::Drain(then) => {
            if !from.deliveries.is_empty() {
                steps.add(Thread, "end_epoch receives", |to| match receive(to, &bounds)? {
                    Some(slot) => {
                        to.caller.in_hand = Some(slot);
                        to.caller.at = CallerAt::Discard(then);
                        Ok(())
                    }
                    None => after(then, to),
                });
            } else if !from.deliveries_sender {
                steps.add(Thread, "end_epoch finds the thread gone", |to| after(then, to));
            } else if from.reader.stuck && bounds.fault != Fault::EndEpochWaits {
                // Loader::check_overdue
                steps.add(Thread, "end_epoch gives up", |to| {
                    match then {
                        // It goes on running.
                        Then::Return => to.caller.at = CallerAt::InEpoch,
                        Then::Leave => to.caller.at = CallerAt::Idle,
                        Then::Begin | Then::Resume => {
                            close_behind(to, &bounds);
                            to.caller.at = CallerAt::Idle;
                        }
                    }
                    Ok(())
                });
            }
        }
        // Ready::discard
        CallerAt::Discard(then) => steps.add(Thread, "end_epoch discards a batch", |to| {
            to.caller.at = CallerAt::Drain(then);
            to.caller.in_hand.take().map_or(Ok(()), |slot| to.send_home(slot, &bounds))
        }),
        // Loader::begin: resets the flag.
        CallerAt::ResetCancel => steps.add(Thread, "begin resets the cancel flag", |to| {
            if bounds.fault == Fault::CancelResetLate {
                return send_start(to);
            }
            to.cancel = false;
            to.caller.at = CallerAt::SendStart;
            Ok(())
        }),
        // Loader::begin: sends Start, and waits while the channel is full.
        CallerAt::SendStart => {
            if room || !from.commands_receiver {
                steps.add(Thread, "begin sends Start", |to| {
                    if bounds.fault == Fault::CancelResetLate {
                        to.cancel = false;
                        to.caller.at = CallerAt::InEpoch;
                        return Ok(());
                    }
                    send_start(to)
                });
            }
        }
        // Epoch::receive: a stop comes first.
        CallerAt::Look => steps.add(Thread, "receive looks for a stop", |to| {
            to.caller.at = if to.stop { CallerAt::EndEpoch(Then::Return) } else { CallerAt::Select };
            Ok(())
        }),
        CallerAt::Select => select(steps),
        // Epoch::receive: a message was taken out of the stop channel; StopHandle::stop puts one in if there is room.
        CallerAt::PutStopBack => steps.add(Thread, "receive puts the stop back", |to| {
            to.stop = true;
            to.caller.at = CallerAt::Look;
            Ok(())
        }),
        // Epoch::receive: the lend timeout is over.
        CallerAt::TimedOut => steps.add(Thread, "receive looks how many are lent", |to| {
            let all_lent = to.lent_count == bounds.slots;
            to.caller.at = if all_lent { CallerAt::EndEpoch(Then::Return) } else { CallerAt::Look };
            Ok(())
        }),
        // Loader::why_gone: joins the thread. In an epoch, `finish` follows, and has nothing to do.
        CallerAt::WhyGone { in_epoch } => {
            if from.reader.at == ReaderAt::Gone {
                steps.add(Thread, "why_gone joins the thread", |to| {
                    to.caller.closed = true;
                    to.caller.at = if in_epoch { CallerAt::InEpoch } else { CallerAt::Idle };
                    Ok(())
                });
            }
        }
        // Loader::drop
        CallerAt::DropFlag => steps.add(Thread, "Loader::drop sets the cancel flag", |to| {
            to.cancel = true;
            to.caller.at = CallerAt::DropCommands;
            Ok(())
        }),
        CallerAt::DropCommands => steps.add(Thread, "Loader::drop closes the commands", |to| {
            to.commands_sender &= bounds.fault == Fault::CommandsLeftOpen && to.caller.left_behind;
            match to.caller.left_behind {
                true => be_gone(to),
                false => to.caller.at = CallerAt::Join,
            }
            Ok(())
        }),
        CallerAt::Join => {
            if !from.deliveries.is_empty() {
                steps.add(Thread, "Loader::drop receives", |to| match to.deliveries.pop() {
                    Some(Delivery::Batch { slot, .. }) => to.send_home(slot, &bounds),
                    _ => Ok(()),
                });
            } else if from.reader.at == ReaderAt::Gone {
                steps.add(Thread, "Loader::drop joins the thread", |to| {
                    be_gone(to);
                    Ok(())
                });
            } else if from.reader.stuck && bounds.fault != Fault::DropJoins {
                steps.add(Thread, "Loader::drop leaves the thread behind", |to| {
                    be_gone(to);
                    Ok(())
                });
            }
        }
        CallerAt::Done => {}
    }
}

/// `Epoch::receive`: what its `select!` may find.
fn select(steps: &mut Steps<'_>) {
    let (from, bounds) = (*steps.from, *steps.bounds);
    if !from.deliveries.is_empty() {
        steps.add(Thread, "receive takes a delivery", |to| {
            to.caller.at = CallerAt::InEpoch;
            let ended = match to.deliveries.items().first() {
                Some(Delivery::End { .. }) => to.caller.expect != bounds.batches,
                Some(&Delivery::Failed { at, panicked, .. }) => {
                    // The error is returned; a panic of one of the pool's threads closes the loader.
                    to.caller.closed |= panicked;
                    at != ANY && at != to.caller.expect
                }
                _ => false,
            };
            if ended {
                return Err("batches are missing at the end of an epoch that nobody cancelled");
            }
            match receive(to, &bounds)? {
                // Ready::lend
                Some(slot) => {
                    to.lent.put(slot);
                    to.lent_count += 1;
                }
                None => to.caller.running = false,
            }
            Ok(())
        });
    } else if !from.deliveries_sender {
        steps.add(Thread, "receive finds the thread gone", |to| {
            to.caller.running = false;
            to.caller.at = CallerAt::WhyGone { in_epoch: true };
            Ok(())
        });
    }
    if from.stop {
        steps.add(Thread, "receive takes the stop", |to| {
            to.stop = false;
            to.caller.at = match bounds.fault {
                Fault::StopNotPutBack => CallerAt::EndEpoch(Then::Return),
                _ => CallerAt::PutStopBack,
            };
            Ok(())
        });
    } else if from.deliveries.is_empty() && from.deliveries_sender {
        if from.reader.stuck && bounds.fault != Fault::ReceiveWaits {
            // Loader::give_up_if_overdue
            steps.add(Thread, "receive gives up", |to| {
                close_behind(to, &bounds);
                to.caller.at = CallerAt::InEpoch;
                Ok(())
            });
        }
        steps.add(Thread, "receive times out", |to| {
            to.caller.at = CallerAt::TimedOut;
            Ok(())
        });
    }
}

/// `Loader::close_behind`
fn close_behind(to: &mut State, bounds: &Bounds) {
    to.cancel = true;
    to.commands_sender = bounds.fault == Fault::CommandsLeftOpen;
    (to.caller.running, to.caller.left, to.caller.closed) = (false, false, true);
    to.caller.left_behind = true;
}

/// The loader is dropped. What was delivered and never taken goes with the channel.
fn be_gone(to: &mut State) {
    while let Some(delivery) = to.deliveries.pop() {
        if let Delivery::Batch { slot, .. } = delivery {
            to.gone.put(slot);
        }
    }
    to.deliveries_receiver = false;
    to.caller.at = CallerAt::Done;
}

/// Takes the next delivery, which has to be the right one. A batch gives its slot.
fn receive(to: &mut State, bounds: &Bounds) -> Result<Option<u8>, &'static str> {
    let expected = (to.caller.epoch, to.caller.expect);
    let (epoch, slot) = match to.deliveries.pop() {
        Some(Delivery::Batch { slot, epoch, index }) => {
            if (epoch, index) != expected || index >= bounds.batches {
                return Err("a batch comes that is not the next one");
            }
            to.caller.expect += 1;
            (epoch, Some(slot))
        }
        Some(Delivery::End { epoch } | Delivery::Failed { epoch, .. }) => (epoch, None),
        Some(Delivery::None) | None => return Err("the model receives from an empty channel"),
    };
    if epoch != to.caller.epoch {
        return Err("an epoch gets what was meant for another");
    }
    Ok(slot)
}

/// `Loader::begin`: `Start` is sent, or finds the thread gone.
fn send_start(to: &mut State) -> Result<(), &'static str> {
    if !to.commands_receiver {
        to.caller.at = CallerAt::WhyGone { in_epoch: false };
        return Ok(());
    }
    to.caller.epoch += 1;
    to.caller.expect = 0;
    to.commands.push(Command::Start(to.caller.epoch));
    to.caller.running = true;
    // With the fault, the flag comes next.
    to.caller.at = match to.caller.at {
        CallerAt::ResetCancel => CallerAt::SendStart,
        _ => CallerAt::InEpoch,
    };
    Ok(())
}

/// What follows `end_epoch`.
fn after(then: Then, to: &mut State) -> Result<(), &'static str> {
    (to.caller.running, to.caller.left) = (false, false);
    to.caller.at = match then {
        // Loader::begin: a closed loader only returns an error.
        Then::Begin if to.caller.closed => CallerAt::Idle,
        Then::Begin => CallerAt::ResetCancel,
        Then::Return => CallerAt::InEpoch,
        Then::Leave | Then::Resume => CallerAt::Idle,
    };
    match to.deliveries.is_empty() || to.caller.left_behind {
        true => Ok(()),
        false => Err("something of an epoch is left when it has ended"),
    }
}

/// The caller's other threads, or the caller itself between its calls.
fn of_others(steps: &mut Steps<'_>) {
    let (from, bounds) = (*steps.from, *steps.bounds);
    // Lent::drop: counts the slot off, and then sends it home. It may also be kept, or forgotten.
    if !from.lent.is_empty() {
        steps.add(World, "somebody drops a batch", |to| {
            let slot = to.lent.take();
            to.lent_count -= 1;
            slot.into_iter().for_each(|slot| to.returning.put(slot));
            Ok(())
        });
    }
    if !from.returning.is_empty() {
        steps.add(Thread, "the batch's slot goes home", |to| {
            let slot = to.returning.take();
            if bounds.fault == Fault::DropLosesSlot {
                return Ok(());
            }
            slot.map_or(Ok(()), |slot| to.send_home(slot, &bounds))
        });
    }
    // StopHandle::stop
    if !from.stop && from.caller.at != CallerAt::Done {
        steps.add(World, "somebody calls stop", |to| {
            (to.stop, to.stopped) = (true, true);
            Ok(())
        });
    }
}
