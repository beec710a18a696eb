//! Faults on request: budgets that are used up by allocations, registrations, copies and operations.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Answer, Code};
use crate::settings::{Limit, settings};

/// A running total that is held against a limit.
#[derive(Debug)]
struct Budget(AtomicU64);

impl Budget {
    const fn new() -> Budget {
        Budget(AtomicU64::new(0))
    }

    /// Uses up `amount`; an error once the total passes the limit. A refused amount is not used up, so that a
    /// smaller request may still succeed, as with real memory.
    fn spend(&self, amount: u64, limit: Option<Limit>) -> Answer {
        let Some(limit) = limit else { return Ok(()) };
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(amount).filter(|total| *total <= limit.after)
            })
            .map(|_| ())
            .map_err(|_| limit.code)
    }

    /// Counts one event and answers the code if it is exactly the one that should fail.
    fn strikes(&self, limit: Option<Limit>) -> Option<Code> {
        let limit = limit?;
        (self.0.fetch_add(1, Ordering::Relaxed) + 1 == limit.after).then_some(limit.code)
    }
}

/// Device memory asked for so far, in bytes, whether or not freed since.
pub(crate) fn allocate(bytes: u64) -> Answer {
    static SPENT: Budget = Budget::new();
    SPENT.spend(bytes, settings().fail_alloc)
}

/// Pinned memory allocated by the driver so far, in bytes.
pub(crate) fn allocate_host(bytes: u64) -> Answer {
    static SPENT: Budget = Budget::new();
    SPENT.spend(bytes, settings().fail_host_alloc)
}

/// Host memory registered so far, in bytes.
pub(crate) fn register(bytes: u64) -> Answer {
    static SPENT: Budget = Budget::new();
    SPENT.spend(bytes, settings().fail_register)
}

/// One copy is asked for: an error if this is the one that the call itself must refuse.
pub(crate) fn copy() -> Answer {
    static COPIES: Budget = Budget::new();
    COPIES.strikes(settings().fail_copy).map_or(Ok(()), Err)
}

/// One copy is asked for: a code if this is the one that must fail when its stream comes to run it.
pub(crate) fn copy_late() -> Option<Code> {
    static COPIES: Budget = Budget::new();
    COPIES.strikes(settings().fail_copy_late)
}

/// One copy or fill is put on a stream: the code with which the device is lost once the budget is used up.
pub(crate) fn operation() -> Answer {
    static OPERATIONS: Budget = Budget::new();
    OPERATIONS.spend(1, settings().lose_device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_refuses_what_passes_it_and_still_grants_what_fits() {
        let limit = Some(Limit { after: 100, code: Code::OUT_OF_MEMORY });
        let budget = Budget::new();
        assert_eq!(budget.spend(60, limit), Ok(()));
        assert_eq!(budget.spend(50, limit), Err(Code::OUT_OF_MEMORY));
        assert_eq!(budget.spend(40, limit), Ok(()));
        assert_eq!(budget.spend(1, limit), Err(Code::OUT_OF_MEMORY));
    }

    #[test]
    fn only_the_nth_event_is_struck() {
        let limit = Some(Limit { after: 2, code: Code::UNKNOWN });
        let budget = Budget::new();
        let struck: Vec<_> = (0..4).map(|_| budget.strikes(limit).is_some()).collect();
        assert_eq!(struck, [false, true, false, false]);
    }
}
