//! The state that caller and reading thread have together, and each for itself.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::checker::{By, Step, System};
use super::reads::Group;

/// The most slots that a state has room for.
pub(super) const MOST_SLOTS: usize = 6;

/// What is explored: the sizes, and what may go wrong.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Slots of the ring.
    pub(super) slots: u8,
    /// Batches in an epoch.
    pub(super) batches: u8,
    /// How often the caller may start an epoch.
    pub(super) epochs: u8,
    /// Drives that the files are on: 1 or 2.
    pub(super) drives: u8,
    /// Reads in flight at once on each drive.
    pub(super) depth: u8,
    /// Reads of a batch: see [`Group::reads`].
    pub(super) reads: u8,
    /// Batches whose samples are mixed with each other, and which are planned together: 1 for no window.
    pub(super) window: u8,
    /// Chunks of a loader that copies to a GPU. `None`: the host.
    pub(super) chunks: Option<u8>,
    /// A read may fail, when it starts or later, and so may planning.
    pub(super) failures: bool,
    /// The reading thread may panic at any moment.
    pub(super) panics: bool,
    /// Samples that cannot be read are skipped.
    pub(super) skip: bool,
    /// There is a limit on bytes per second, which may put a read off.
    pub(super) limited: bool,
    /// Calls of the GPU's driver may fail; and streams of the caller may still use a slot that came back.
    pub(super) driver: bool,
    /// Storage may leave the reading thread without an answer, for a while or for ever.
    pub(super) stalls: bool,
    /// What is done wrong on purpose.
    pub(super) fault: Fault,
}

/// Faults that are planted, to see that they are found. Each undoes something that the code does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// `deliveries` has no room for the word that an epoch is over.
    DeliveriesTooSmall,
    /// `drain` forgets the slots that are not whole.
    DrainLosesSlots,
    /// `begin` resets the cancel flag after it has sent `Start`.
    CancelResetLate,
    /// `begin` does not end an epoch that was forgotten.
    ForgottenEpochRuns,
    /// `end_epoch` does not wait for the end.
    EndNotAwaited,
    /// `end_epoch` only sets the flag, and wakes nobody.
    CancelNotSent,
    /// `run` sends nothing after a failure.
    FailureNotSent,
    /// `deliver` gives up at the first failure, though earlier batches could still come.
    FailureAtOnce,
    /// `hand_on` sends whichever batch is whole.
    AnyOrder,
    /// `receive` takes the word to stop out of the channel for good.
    StopNotPutBack,
    /// `slots_for` waits for a whole window, whatever the caller keeps.
    WindowAlwaysWhole,
    /// `slots_for` drops the slot if the driver fails while it looks at it.
    FailedLookLosesSlot,
    /// `plan` leaves a gap between the batches that it planned and the one that it says cannot come.
    GapBeforeFailure,
    /// `start_reads` starts nothing more of a group that the failed batch is in.
    FailureStopsGroup,
    /// `start_reads` looks at the first drive alone.
    OneDriveForAll,
    /// `wait_for_slot` waits for a slot alone.
    CommandsIgnored,
    /// `investigate` does not plan batches again from which bad samples were taken.
    NotPlannedAgain,
    /// `Lent::drop` does not give the slot back.
    DropLosesSlot,
    /// `receive` waits for a batch, whatever storage does.
    ReceiveWaits,
    /// `end_epoch` waits for the end, whatever storage does.
    EndEpochWaits,
    /// `Loader::drop` joins the thread, whatever storage does.
    DropJoins,
    /// `close_behind` leaves the channel of commands open.
    CommandsLeftOpen,
}

/// Slots, by number, in no order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Slots(u8);

impl Slots {
    pub(super) fn first(count: u8) -> Slots {
        Slots(((1u16 << count) - 1) as u8)
    }

    pub(super) fn len(self) -> u8 {
        self.0.count_ones() as u8
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Any slot: they are all alike.
    pub(super) fn take(&mut self) -> Option<u8> {
        let slot = (self.0 != 0).then(|| self.0.trailing_zeros() as u8)?;
        self.0 &= !(1 << slot);
        Some(slot)
    }

    pub(super) fn put(&mut self, slot: u8) {
        self.0 |= 1 << slot;
    }

    pub(super) fn put_all(&mut self, others: &mut Slots) {
        self.0 |= std::mem::take(others).0;
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((0..8).filter(|slot| self.0 >> slot & 1 == 1)).finish()
    }
}

/// A queue of a few small things. What is not in use has the default value, so that equal queues are equal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Fifo<T, const N: usize> {
    items: [T; N],
    len: u8,
}

impl<T: Copy + Default, const N: usize> Default for Fifo<T, N> {
    fn default() -> Self {
        Fifo { items: [T::default(); N], len: 0 }
    }
}

impl<T: Copy + Default + fmt::Debug, const N: usize> fmt::Debug for Fifo<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.items().fmt(f)
    }
}

impl<T: Copy + Default + Hash, const N: usize> Hash for Fifo<T, N> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.items().hash(hasher);
    }
}

impl<T: Copy + Default, const N: usize> Fifo<T, N> {
    pub(super) fn items(&self) -> &[T] {
        &self.items[..self.len as usize]
    }

    pub(super) fn items_mut(&mut self) -> &mut [T] {
        &mut self.items[..self.len as usize]
    }

    pub(super) fn len(&self) -> u8 {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push(&mut self, item: T) {
        self.items[self.len as usize] = item;
        self.len += 1;
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        (self.len > 0).then(|| self.remove(0))
    }

    pub(super) fn remove(&mut self, index: usize) -> T {
        let item = self.items[index];
        self.items.copy_within(index + 1..self.len as usize, index);
        self.len -= 1;
        self.items[self.len as usize] = T::default();
        item
    }

    pub(super) fn clear(&mut self) {
        *self = Fifo::default();
    }
}

/// `pipeline::Command`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum Command {
    #[default]
    Cancel,
    Start(u8),
}

/// `pipeline::Delivery`, with what tells whether it is the right one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum Delivery {
    #[default]
    None,
    Batch {
        slot: u8,
        epoch: u8,
        index: u8,
    },
    End {
        epoch: u8,
    },
    /// `at` is the batch that cannot come; [`ANY`] where any may be the next.
    Failed {
        epoch: u8,
        at: u8,
        panicked: bool,
    },
}

/// No particular batch.
pub(super) const ANY: u8 = u8::MAX;

/// Where the reading thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ReaderAt {
    /// `run`: waits for a command.
    Recv,
    /// `deliver`: at the head of its loop.
    Top,
    /// `deliver`: planning; nothing of this batch is done yet.
    Plan,
    /// `slots_for`: so many slots were found, fewer than wanted; looks how many are lent.
    Lent(u8),
    /// `hand_on`, and what follows it.
    Hand,
    /// `reap`: waits for a completion.
    Reap,
    /// `Copier::wait`: waits for a copy.
    CopyWait,
    /// `deliver`: a batch waits for reads that nobody does.
    Spin,
    /// `wait_for_bytes`.
    WaitBytes,
    /// `wait_for_slot`.
    Wait,
    /// `wait_for_slot`: has taken a command, and looks at the flag.
    WaitLook,
    /// `run`: all is drained; sends the end, or [`Delivery::Failed`] with this batch.
    Last(Option<u8>),
    /// The thread ends, by a panic or not: drops the receiver of commands, the receiver of free slots, the sender of deliveries.
    Unwind(u8),
    Gone,
}

/// What the reading thread has for itself: `pipeline::Pipeline`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Reader {
    pub(super) at: ReaderAt,
    pub(super) epoch: u8,
    /// Batches planned so far.
    pub(super) batch: u8,
    pub(super) spare: Slots,
    /// The slots being filled, in the order of their batches.
    pub(super) filling: Fifo<u8, MOST_SLOTS>,
    /// The batch that the first of `filling` is for.
    pub(super) first: u8,
    pub(super) groups: Fifo<Group, 4>,
    /// The limit on bytes per second keeps the next read from starting.
    pub(super) put_off: bool,
    /// The batch that cannot come, or [`ANY`] as long as nothing is wrong.
    pub(super) failure: u8,
    /// Chunks that are being copied from.
    pub(super) busy: u8,
    /// Storage does not answer: `Pulse::silence`.
    pub(super) stuck: bool,
}

/// What the caller does when `end_epoch` is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Then {
    /// Goes on with `begin`.
    Begin,
    /// Returns from `Epoch::next`.
    Return,
    /// Has no epoch any more: `Epoch::drop`.
    Leave,
    /// The same, for `Loader::resume`.
    Resume,
}

/// Where the caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CallerAt {
    /// Has a loader, and no epoch.
    Idle,
    /// Has an epoch.
    InEpoch,
    /// `end_epoch`, from its beginning.
    EndEpoch(Then),
    SendCancel(Then),
    Drain(Then),
    /// `Ready::discard` of the slot in hand.
    Discard(Then),
    /// `begin`, after `end_epoch`.
    ResetCancel,
    SendStart,
    /// `receive`: looks for a stop.
    Look,
    /// `receive`: in its `select!`.
    Select,
    PutStopBack,
    TimedOut,
    /// `why_gone`, in `receive` or else in `begin`: waits for the thread.
    WhyGone {
        in_epoch: bool,
    },
    /// `Loader::drop`: the flag, the channel of commands, the thread.
    DropFlag,
    DropCommands,
    Join,
    /// The loader is gone.
    Done,
}

/// What the caller's thread has for itself: `Loader` and `Epoch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Caller {
    pub(super) at: CallerAt,
    pub(super) epochs_left: u8,
    pub(super) running: bool,
    /// `Loader::left_at`: the epoch that is running is not wanted any more.
    pub(super) left: bool,
    pub(super) closed: bool,
    /// `close_behind`: the thread is nobody's any more.
    pub(super) left_behind: bool,
    /// The number of the epoch that was last begun.
    pub(super) epoch: u8,
    /// The batch of it that has to come next.
    pub(super) expect: u8,
    pub(super) in_hand: Option<u8>,
}

/// All there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) caller: Caller,
    pub(super) reader: Reader,
    pub(super) cancel: bool,
    pub(super) commands: Fifo<Command, 2>,
    pub(super) commands_sender: bool,
    pub(super) commands_receiver: bool,
    pub(super) deliveries: Fifo<Delivery, { MOST_SLOTS + 1 }>,
    pub(super) deliveries_sender: bool,
    pub(super) deliveries_receiver: bool,
    /// In the channel `Ring::home`.
    pub(super) free: Slots,
    pub(super) free_receiver: bool,
    /// In the caller's hands, or somebody else's.
    pub(super) lent: Slots,
    /// `Lent::drop` has counted them off, and not yet sent them home.
    pub(super) returning: Slots,
    /// `Ring::lent`.
    pub(super) lent_count: u8,
    /// Dropped with the reading thread or the loader, which need no slots any more.
    pub(super) gone: Slots,
    /// The channel of the stop handle is full.
    pub(super) stop: bool,
    /// Somebody has called `StopHandle::stop`.
    pub(super) stopped: bool,
}

impl State {
    /// Sends a slot home, as `Ready::discard` and `Lent::drop` do.
    pub(super) fn send_home(&mut self, slot: u8, bounds: &Bounds) -> Result<(), &'static str> {
        if !self.free_receiver {
            self.gone.put(slot);
        } else if self.free.len() < bounds.slots {
            self.free.put(slot);
        } else {
            return Err("the channel for free slots is full");
        }
        Ok(())
    }

    /// Slots are all alike: gives them numbers by where they are, so that states that differ in nothing else are one.
    fn renumber(&mut self) {
        let mut next = 0;
        let mut number = |slot: &mut u8| {
            *slot = next;
            next += 1;
        };
        self.reader.filling.items_mut().iter_mut().for_each(&mut number);
        for delivery in self.deliveries.items_mut() {
            if let Delivery::Batch { slot, .. } = delivery {
                number(slot);
            }
        }
        self.caller.in_hand.iter_mut().for_each(&mut number);
        let mut place = |slots: &mut Slots| {
            let len = slots.len();
            slots.0 = Slots::first(len).0 << next;
            next += len;
        };
        let State { reader, free, lent, returning, gone, .. } = self;
        for slots in [&mut reader.spare, free, lent, returning, gone] {
            place(slots);
        }
    }

    /// Every slot is in exactly one place.
    fn check_slots(&self, all: u8) -> Result<(), &'static str> {
        let (mut count, mut union) = (0, 0);
        let mut add = |slots: Slots| {
            count += slots.len();
            union |= slots.0;
        };
        [self.reader.spare, self.free, self.lent, self.returning, self.gone].into_iter().for_each(&mut add);
        let delivered = self.deliveries.items().iter().filter_map(|it| match it {
            Delivery::Batch { slot, .. } => Some(slot),
            _ => None,
        });
        for slot in self.reader.filling.items().iter().chain(delivered).chain(&self.caller.in_hand) {
            add(Slots(1 << slot));
        }
        match (Slots(union).len(), count) {
            (different, _) if different < all => Err("a slot is lost"),
            (_, places) if places > all => Err("a slot is in two places"),
            _ => Ok(()),
        }
    }
}

/// The steps from one state.
pub(super) struct Steps<'a> {
    pub(super) from: &'a State,
    pub(super) bounds: &'a Bounds,
    pub(super) steps: &'a mut Vec<Step<State>>,
}

impl Steps<'_> {
    /// Adds a step that changes the state so, or breaks a rule.
    pub(super) fn add(
        &mut self,
        by: By,
        what: &'static str,
        change: impl FnOnce(&mut State) -> Result<(), &'static str>,
    ) {
        let mut to = *self.from;
        let broken = change(&mut to).err();
        self.steps.push(Step { what, by, to: broken.map_or(Ok(to), Err) });
    }
}

impl System for Bounds {
    type State = State;

    fn start(&self) -> State {
        assert!(usize::from(self.slots) <= MOST_SLOTS);
        State {
            caller: Caller {
                at: CallerAt::Idle,
                epochs_left: self.epochs,
                running: false,
                left: false,
                closed: false,
                left_behind: false,
                epoch: 0,
                expect: 0,
                in_hand: None,
            },
            reader: Reader {
                at: ReaderAt::Recv,
                epoch: 0,
                batch: 0,
                spare: Slots::default(),
                filling: Fifo::default(),
                first: 0,
                groups: Fifo::default(),
                put_off: false,
                failure: ANY,
                busy: 0,
                stuck: false,
            },
            cancel: false,
            commands: Fifo::default(),
            commands_sender: true,
            commands_receiver: true,
            deliveries: Fifo::default(),
            deliveries_sender: true,
            deliveries_receiver: true,
            free: Slots::first(self.slots),
            free_receiver: true,
            lent: Slots::default(),
            returning: Slots::default(),
            lent_count: 0,
            gone: Slots::default(),
            stop: false,
            stopped: false,
        }
    }

    fn steps(&self, state: &State, steps: &mut Vec<Step<State>>) {
        let mut all = Steps { from: state, bounds: self, steps: &mut *steps };
        super::caller::steps(&mut all);
        super::reader::steps(&mut all);
        for step in steps {
            if let Ok(to) = &mut step.to {
                // Before slots lose their numbers.
                match to.check_slots(self.slots) {
                    Ok(()) => to.renumber(),
                    Err(what) => step.to = Err(what),
                }
            }
        }
    }

    fn check(&self, state: &State) -> Result<(), &'static str> {
        if state.lent_count != state.lent.len() {
            return Err("the count of lent slots is wrong");
        }
        if state.stopped && !state.stop && state.caller.at != CallerAt::PutStopBack {
            return Err("a stop is forgotten");
        }
        if state.reader.at == ReaderAt::Spin {
            return Err("a batch waits for reads that nobody does");
        }
        if !state.gone.is_empty() && state.free_receiver && state.caller.at != CallerAt::Done {
            return Err("a slot is dropped while the reading thread still needs it");
        }
        Ok(())
    }

    fn is_over(&self, state: &State) -> bool {
        // A thread that was left behind has still to end, unless storage keeps it.
        let ended = state.reader.at == ReaderAt::Gone || state.reader.stuck;
        state.caller.at == CallerAt::Done && ended
    }
}
