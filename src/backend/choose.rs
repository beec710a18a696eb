//! Which backend works here, and which one `auto` takes.

use std::fmt;

use super::Backend;
use super::uring::{NoRing, UringReader};
use crate::{Error, ErrorKind, Result};

/// What a backend that works can do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend.
    pub backend: Backend,
    /// Whether it can read around the page cache, where the file system lets it.
    pub direct: bool,
}

/// Why a backend does not work here.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unavailable {
    /// The backend.
    pub backend: Backend,
    /// The reason, in words.
    pub reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend {} does not work here: {}", self.backend, self.reason)
    }
}

impl std::error::Error for Unavailable {}

impl From<Unavailable> for Error {
    fn from(it: Unavailable) -> Self {
        Error::new(ErrorKind::Unavailable, it.to_string())
    }
}

pub(super) fn probe(backend: Backend) -> Result<Capabilities, Unavailable> {
    match backend {
        Backend::Auto => {
            Ok(choose(Backend::Auto).map_or(Backend::Pread, |chosen| chosen.backend)).and_then(probe)
        }
        Backend::Uring => match UringReader::new(1, &[], 1) {
            Ok(_) => Ok(Capabilities { backend, direct: true }),
            Err(NoRing(reason)) => Err(Unavailable { backend, reason }),
        },
        Backend::Pread => Ok(Capabilities { backend, direct: true }),
        Backend::PageCache => Ok(Capabilities { backend, direct: false }),
    }
}

/// The backend that is used, why, and why not those before it.
#[derive(Debug, Clone)]
pub(crate) struct Chosen {
    pub(crate) backend: Backend,
    pub(crate) reason: String,
    pub(crate) passed_over: Vec<Unavailable>,
}

impl Chosen {
    /// What `auto` takes where io_uring does not work, for this reason.
    pub(crate) fn instead_of_uring(reason: String) -> Chosen {
        let refused = Unavailable { backend: Backend::Uring, reason };
        let reason = format!("the best that works: uring was passed over ({})", refused.reason);
        Chosen { backend: Backend::Pread, reason, passed_over: vec![refused] }
    }
}

/// Takes the backend that was named, or the best that works.
pub(crate) fn choose(wanted: Backend) -> Result<Chosen, Unavailable> {
    if wanted != Backend::Auto {
        probe(wanted)?;
        return Ok(Chosen { backend: wanted, reason: "it was named".into(), passed_over: Vec::new() });
    }
    match probe(Backend::Uring) {
        Ok(_) => Ok(Chosen {
            backend: Backend::Uring,
            reason: "io_uring works and keeps one thread busy, whatever the queue depth".into(),
            passed_over: Vec::new(),
        }),
        Err(refused) => Ok(Chosen::instead_of_uring(refused.reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_what_works_and_says_why() {
        let chosen = choose(Backend::Auto).unwrap();
        assert!(probe(chosen.backend).is_ok());
        assert!(!chosen.reason.is_empty());
        assert_eq!(chosen.backend == Backend::Uring, chosen.passed_over.is_empty());
    }

    #[test]
    fn a_named_backend_is_taken_or_refused_never_replaced() {
        for backend in [Backend::Pread, Backend::PageCache] {
            assert_eq!(choose(backend).unwrap().backend, backend);
        }
        match probe(Backend::Uring) {
            Ok(_) => assert_eq!(choose(Backend::Uring).unwrap().backend, Backend::Uring),
            Err(refused) => assert_eq!(choose(Backend::Uring).unwrap_err(), refused),
        }
    }
}
