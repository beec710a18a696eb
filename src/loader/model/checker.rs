//! Visits every state of a small system, by every interleaving of its steps.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

/// A system whose states can be listed.
pub(super) trait System {
    type State: Copy + Eq + Hash + fmt::Debug;

    fn start(&self) -> Self::State;

    /// Every step that any part of the system can take from here.
    fn steps(&self, state: &Self::State, steps: &mut Vec<Step<Self::State>>);

    /// What must hold in every state.
    fn check(&self, state: &Self::State) -> Result<(), &'static str>;

    /// Nothing is left to do.
    fn is_over(&self, state: &Self::State) -> bool;
}

/// One step, and where it leads to. An error is a rule that the step itself breaks.
#[derive(Debug)]
pub(super) struct Step<S> {
    pub(super) what: &'static str,
    pub(super) by: By,
    pub(super) to: Result<S, &'static str>,
}

/// Who takes a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// A thread of the system, which gets on if it can.
    Thread,
    /// Luck, or somebody who is free not to: a failure, a panic, a batch that is dropped. The system may not wait for it.
    World,
}

/// What was visited.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Visited {
    pub(super) states: usize,
    pub(super) steps: usize,
    /// Steps of the longest of the shortest ways to a state.
    pub(super) depth: usize,
}

impl fmt::Display for Visited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} states, {} steps, {} deep", self.states, self.steps, self.depth)
    }
}

/// A rule that is broken, and a shortest way there.
#[derive(Debug)]
pub(super) struct Flaw {
    pub(super) what: String,
    pub(super) way: Vec<&'static str>,
    pub(super) state: String,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, after {} steps:", self.what, self.way.len())?;
        self.way.iter().try_for_each(|what| writeln!(f, "  {what}"))?;
        f.write_str(&self.state)
    }
}

/// Visits everything that can be reached from the start. Finds states and steps that break a rule, and states from which
/// the threads of the system, left to themselves, cannot come to an end any more: they are stuck, or run in a circle.
pub(super) fn explore<S: System>(system: &S) -> Result<Visited, Box<Flaw>> {
    let mut seen = Seen::default();
    let mut steps = Vec::new();
    // Steps of threads, backwards.
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut over = VecDeque::new();
    let mut visited = Visited::default();
    seen.number(system.start(), (0, ""));
    let mut current = 0;
    while let Some(&state) = seen.states.get(current as usize) {
        if let Err(what) = system.check(&state) {
            return Err(seen.flaw(what, current, None));
        }
        if system.is_over(&state) {
            over.push_back(current);
        }
        system.steps(&state, &mut steps);
        for step in steps.drain(..) {
            let to = match step.to {
                Ok(to) => seen.number(to, (current, step.what)),
                Err(what) => return Err(seen.flaw(what, current, Some(step.what))),
            };
            visited.steps += 1;
            if step.by == By::Thread && to != current {
                edges.push((to, current));
            }
        }
        current += 1;
    }
    visited.states = seen.states.len();
    visited.depth = seen.way(current - 1).len();
    match never_ending(visited.states, edges, over) {
        None => Ok(visited),
        Some(state) => {
            Err(seen.flaw("the threads, left to themselves, never come to an end from here", state, None))
        }
    }
}

/// The first state from which no way of threads leads to one that is over.
fn never_ending(states: usize, mut edges: Vec<(u32, u32)>, mut over: VecDeque<u32>) -> Option<u32> {
    edges.sort_unstable();
    let mut ends = vec![false; states];
    over.iter().for_each(|&state| ends[state as usize] = true);
    while let Some(state) = over.pop_front() {
        let first = edges.partition_point(|(to, _)| *to < state);
        for (_, from) in edges[first..].iter().take_while(|(to, _)| *to == state) {
            if !std::mem::replace(&mut ends[*from as usize], true) {
                over.push_back(*from);
            }
        }
    }
    ends.iter().position(|&ends| !ends).map(|state| state as u32)
}

/// Every state once, in the order in which they were first seen, with the step that led there.
#[derive(Debug)]
struct Seen<S> {
    states: Vec<S>,
    origins: Vec<(u32, &'static str)>,
    /// Numbers of states by their hash, with open addressing; the size is a power of two.
    table: Vec<u32>,
}

const EMPTY: u32 = u32::MAX;

impl<S> Default for Seen<S> {
    fn default() -> Self {
        Seen { states: Vec::new(), origins: Vec::new(), table: vec![EMPTY; 1 << 12] }
    }
}

impl<S: Copy + Eq + Hash + fmt::Debug> Seen<S> {
    fn number(&mut self, state: S, origin: (u32, &'static str)) -> u32 {
        if self.states.len() * 2 > self.table.len() {
            self.grow();
        }
        let place = self.place(&state);
        if self.table[place] == EMPTY {
            self.table[place] = self.states.len() as u32;
            self.states.push(state);
            self.origins.push(origin);
        }
        self.table[place]
    }

    /// Where the state is in the table, or would be.
    fn place(&self, state: &S) -> usize {
        let mask = self.table.len() - 1;
        let mut place = BuildHasherDefault::<Mixer>::default().hash_one(state) as usize & mask;
        while self.table[place] != EMPTY && self.states[self.table[place] as usize] != *state {
            place = (place + 1) & mask;
        }
        place
    }

    fn grow(&mut self) {
        self.table = vec![EMPTY; self.table.len() * 4];
        for number in 0..self.states.len() {
            let place = self.place(&self.states[number]);
            self.table[place] = number as u32;
        }
    }

    fn way(&self, mut state: u32) -> Vec<&'static str> {
        let mut way = Vec::new();
        while state != 0 {
            let (from, what) = self.origins[state as usize];
            way.push(what);
            state = from;
        }
        way.reverse();
        way
    }

    fn flaw(&self, what: &str, state: u32, last: Option<&'static str>) -> Box<Flaw> {
        let mut way = self.way(state);
        way.extend(last);
        Box::new(Flaw { what: what.into(), way, state: format!("{:?}", self.states[state as usize]) })
    }
}

/// A fast hash of many small numbers; nobody chooses them to collide.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u8(*byte));
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads count to `most`, each in its own half of the state, and then are over.
    struct Counters {
        most: u8,
        /// The second thread gets no further than this by itself.
        stuck_at: u8,
        forbidden: (u8, u8),
    }

    impl System for Counters {
        type State = (u8, u8);

        fn start(&self) -> (u8, u8) {
            (0, 0)
        }

        fn steps(&self, &(a, b): &(u8, u8), steps: &mut Vec<Step<(u8, u8)>>) {
            if a < self.most {
                steps.push(Step { what: "a", by: By::Thread, to: Ok((a + 1, b)) });
            }
            if b < self.most {
                let by = if b == self.stuck_at { By::World } else { By::Thread };
                steps.push(Step { what: "b", by, to: Ok((a, b + 1)) });
            }
        }

        fn check(&self, state: &(u8, u8)) -> Result<(), &'static str> {
            if *state == self.forbidden { Err("forbidden") } else { Ok(()) }
        }

        fn is_over(&self, state: &(u8, u8)) -> bool {
            *state == (self.most, self.most)
        }
    }

    #[test]
    fn every_interleaving_is_visited_once() {
        let visited = explore(&Counters { most: 99, stuck_at: 200, forbidden: (200, 0) }).unwrap();
        assert_eq!((visited.states, visited.steps, visited.depth), (100 * 100, 2 * 99 * 100, 2 * 99));
    }

    #[test]
    fn a_broken_rule_is_told_with_a_shortest_way() {
        let flaw = explore(&Counters { most: 9, stuck_at: 200, forbidden: (2, 1) }).unwrap_err();
        assert_eq!((flaw.what.as_str(), flaw.way.len()), ("forbidden", 3));
        assert!(flaw.to_string().contains("after 3 steps"));
    }

    #[test]
    fn who_gets_on_only_by_luck_is_stuck() {
        let flaw = explore(&Counters { most: 3, stuck_at: 2, forbidden: (200, 0) }).unwrap_err();
        assert!(flaw.what.contains("never come to an end"), "{flaw}");
        // From the very start on: no thread alone gets past 2.
        assert_eq!(flaw.way.len(), 0);
    }
}
