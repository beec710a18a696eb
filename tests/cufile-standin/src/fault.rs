//! Faults on request: which call of which function fails, and how.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Answer, Error, Failure};
use crate::functions::{self, Kind};
use crate::settings::{known_code, settings};

/// Which calls of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nth {
    All,
    Only(u64),
    From(u64),
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Code(i32),
    Cuda(i32),
    Errno(i32),
    MinusCode(i32),
    Short(usize),
    Half,
    Hang,
    /// For one entry of a batch, or for all.
    Entry(Option<usize>, Entry),
}

/// How an entry of a batch fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Stays in flight until it is cancelled.
    Never,
    /// Moves nothing and ends with this status, and yet the length says that all was done.
    Status(i32),
    /// Not negative: moves so many bytes at most. Negative: moves nothing. And yet the status says complete.
    Ret(i64),
}

/// One fault.
#[derive(Debug)]
pub(crate) struct Fault {
    function: &'static str,
    nth: Nth,
    what: What,
}

static STRUCK: AtomicU64 = AtomicU64::new(0);

/// How many faults have struck.
pub(crate) fn struck() -> u64 {
    STRUCK.load(Ordering::Relaxed)
}

/// The faults for the `nth` call of a function, counted from 1.
pub(crate) fn strike(function: &str, nth: u64) -> Vec<What> {
    let hits = settings().faults.iter().filter(|fault| fault.function == function && fault.nth.is(nth));
    let hits: Vec<What> = hits.map(|fault| fault.what).collect();
    STRUCK.fetch_add(hits.len() as u64, Ordering::Relaxed);
    hits
}

impl Nth {
    fn is(self, call: u64) -> bool {
        match self {
            Nth::All => true,
            Nth::Only(nth) => call == nth,
            Nth::From(nth) => call >= nth,
        }
    }

    fn parse(text: &str) -> Option<Nth> {
        let positive = |text: &str| text.parse().ok().filter(|nth| *nth > 0);
        match text {
            "*" => Some(Nth::All),
            _ => match text.strip_suffix('+') {
                Some(first) => positive(first).map(Nth::From),
                None => positive(text).map(Nth::Only),
            },
        }
    }
}

impl What {
    /// The error that a call answers at once.
    pub(crate) fn at_once(self) -> Answer {
        match self {
            What::Code(code) => Err(Error::cufile(code)),
            What::Cuda(code) => Err(Error::cuda(code)),
            _ => Ok(()),
        }
    }

    /// How a read or a write fails, or how many of `size` bytes it moves.
    pub(crate) fn of_transfer(self, size: usize) -> Result<usize, Failure> {
        match self {
            What::Errno(errno) => Err(Failure::Errno(errno)),
            What::MinusCode(code) => Err(Failure::Code(code)),
            What::Short(bytes) => Ok(bytes.min(size)),
            What::Half => Ok(size / 2),
            _ => Ok(size),
        }
    }

    fn parse(text: &str) -> Option<What> {
        if let Some(code) = known_code(text) {
            return Some(What::Code(code));
        }
        let (word, rest) = text.split_once(':').unwrap_or((text, ""));
        match (word, rest) {
            ("half", "") => Some(What::Half),
            ("zero", "") => Some(What::Short(0)),
            ("hang", "") => Some(What::Hang),
            ("cuda", code) => code.parse().ok().filter(|code| *code > 0).map(What::Cuda),
            ("errno", errno) => errno.parse().ok().filter(|errno| *errno > 0).map(What::Errno),
            ("code", code) => known_code(code).map(What::MinusCode),
            ("short", bytes) => bytes.parse().ok().map(What::Short),
            ("entry", rest) => {
                let (index, outcome) = rest.split_once(':')?;
                let index = if index == "*" { None } else { Some(index.parse().ok()?) };
                Some(What::Entry(index, Entry::parse(outcome)?))
            }
            _ => None,
        }
    }

    /// Whether a function of this kind can fail so.
    fn fits(self, kind: Kind) -> bool {
        match self {
            What::Hang => true,
            What::Code(_) | What::Cuda(_) => matches!(kind, Kind::Status | Kind::Async | Kind::Submit),
            What::Errno(_) | What::MinusCode(_) | What::Short(_) | What::Half => {
                matches!(kind, Kind::Transfer | Kind::Async)
            }
            What::Entry(..) => kind == Kind::Submit,
        }
    }
}

impl Entry {
    fn parse(text: &str) -> Option<Entry> {
        match text {
            "never" => Some(Entry::Never),
            "invalid" => Some(Entry::Status(4)),
            "canceled" => Some(Entry::Status(8)),
            "timeout" => Some(Entry::Status(0x20)),
            "failed" => Some(Entry::Status(0x40)),
            _ => text.parse().ok().map(Entry::Ret),
        }
    }
}

/// Reads `<function>:<nth>:<what>`, separated by commas.
pub(crate) fn parse(text: &str) -> Result<Vec<Fault>, String> {
    text.split(',').filter(|fault| !fault.is_empty()).map(parse_one).collect()
}

fn parse_one(text: &str) -> Result<Fault, String> {
    let mut parts = text.splitn(3, ':');
    let (name, nth, what) = (parts.next(), parts.next(), parts.next());
    let function = name.and_then(functions::find).ok_or_else(|| format!("{text}: no such function"))?;
    let nth =
        nth.and_then(Nth::parse).ok_or_else(|| format!("{text}: expected <n>, <n>+ or * as the call"))?;
    let what = what.and_then(What::parse).ok_or_else(|| format!("{text}: no such fault"))?;
    if !what.fits(function.kind) {
        return Err(format!("{text}: {} cannot fail in this way", function.name));
    }
    Ok(Fault { function: function.name, nth, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> (&'static str, Nth, What) {
        let faults = parse(text).unwrap();
        assert_eq!(faults.len(), 1);
        (faults[0].function, faults[0].nth, faults[0].what)
    }

    #[test]
    fn faults_are_read_with_their_parts() {
        assert_eq!(one("cuFileDriverOpen:*:5033"), ("cuFileDriverOpen", Nth::All, What::Code(5033)));
        assert_eq!(one("cuFileDriverOpen:1:hang"), ("cuFileDriverOpen", Nth::Only(1), What::Hang));
        assert_eq!(one("cuFileBufRegister:2+:cuda:2"), ("cuFileBufRegister", Nth::From(2), What::Cuda(2)));
        assert_eq!(one("cuFileRead:1:errno:5"), ("cuFileRead", Nth::Only(1), What::Errno(5)));
        assert_eq!(one("cuFileRead:1:code:5030"), ("cuFileRead", Nth::Only(1), What::MinusCode(5030)));
        assert_eq!(one("cuFileWrite:1:zero"), ("cuFileWrite", Nth::Only(1), What::Short(0)));
        let entry = What::Entry(Some(3), Entry::Ret(-5));
        assert_eq!(one("cuFileBatchIOSubmit:1:entry:3:-5"), ("cuFileBatchIOSubmit", Nth::Only(1), entry));
        assert_eq!(parse("cuFileRead:1:half,cuFileRead:2:short:7").unwrap().len(), 2);
    }

    #[test]
    fn what_a_function_cannot_do_is_refused() {
        for text in [
            "cuFileRead",
            "cuFileRead:0:zero",
            "cuFileRead:x:zero",
            "cuFileRead:1:5011",
            "cuFileRead:1:code:4000",
            "cuFileBufRegister:1:half",
            "cuFileHandleDeregister:1:5027",
            "cuFileDriverOpen:1:entry:0:failed",
            "cuFileBatchIOSubmit:1:entry:0:lost",
            "cuFileTeleport:1:5001",
            "cuFileDriverOpen:1:4999",
            "cuFileDriverOpen:1:hang:2",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
