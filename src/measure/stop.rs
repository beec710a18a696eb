//! Ending a benchmark early.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::StopHandle;

/// Ends a benchmark from another thread, or at a time; what was measured until then is kept.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    asked: AtomicBool,
    deadline: Mutex<Option<Instant>>,
    /// The loader that runs, which may be waiting for a batch.
    loader: Mutex<Option<StopHandle>>,
}

impl Stop {
    /// One that nobody has asked for yet.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Asks for the end, soon.
    pub fn stop(&self) {
        self.0.asked.store(true, Ordering::Release);
        if let Some(loader) = &*lock(&self.0.loader) {
            loader.stop();
        }
    }

    /// Asks for the end at a time.
    pub fn stop_at(&self, deadline: Instant) {
        *lock(&self.0.deadline) = Some(deadline);
    }

    /// Whether it was asked for, by [`stop`](Stop::stop) or because the time has come.
    pub fn asked(&self) -> bool {
        self.interrupted() || lock(&self.0.deadline).is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Whether [`stop`](Stop::stop) was called.
    pub fn interrupted(&self) -> bool {
        self.0.asked.load(Ordering::Acquire)
    }

    /// A run ended as if it had been asked to.
    pub(super) fn stop_if_not_asked(&self) {
        if !self.asked() {
            self.stop();
        }
    }

    /// Has this loader stopped too, until the next one is named.
    pub(super) fn stops(&self, loader: StopHandle) {
        let mut slot = lock(&self.0.loader);
        if self.interrupted() {
            loader.stop();
        }
        *slot = Some(loader);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_asked_for_by_a_call_or_by_the_time() {
        let stop = Stop::new();
        assert!(!stop.asked());
        stop.stop_at(Instant::now());
        assert!(stop.asked() && !stop.interrupted());
        let stop = Stop::new();
        stop.clone().stop();
        assert!(stop.asked() && stop.interrupted());
    }
}
