//! Which backend works here, and which one `auto` takes.

use std::fmt;
use std::sync::Arc;

use super::Backend;
use super::uring::{NoRing, UringReader};
use crate::cufile::{Driver, Route};
use crate::memory::Device;
use crate::memory::cuda::Context;
use crate::storage::{FileSystem, certainly_not, gds_in_words};
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
        Backend::Auto => probe(probe(Backend::Uring).map_or(Backend::Pread, |it| it.backend)),
        Backend::Gds => {
            let driver = Driver::open(Device::Cuda(0)).and_then(|driver| driver.route());
            let route = driver.map_err(|error| Unavailable { backend, reason: error.to_string() })?;
            Ok(Capabilities { backend, direct: route.is_direct() })
        }
        Backend::Uring => match UringReader::new(1, &[], 1) {
            Ok(_) => Ok(Capabilities { backend, direct: true }),
            Err(NoRing(reason)) => Err(Unavailable { backend, reason }),
        },
        Backend::Pread => Ok(Capabilities { backend, direct: true }),
        Backend::PageCache => Ok(Capabilities { backend, direct: false }),
    }
}

/// What a loader asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'c> {
    pub(crate) backend: Backend,
    /// The GPU that reads land on, if they land on one.
    pub(crate) context: Option<&'c Arc<Context>>,
    /// Nothing but GDS that is really direct will do.
    pub(crate) require_gds: bool,
    /// Files may be opened only below a root.
    pub(crate) below_root: bool,
    /// What the files lie on, where that is known.
    pub(crate) file_systems: &'c [FileSystem],
}

/// The backend that is used, why, and why not those before it.
#[derive(Debug, Clone)]
pub(crate) struct Chosen {
    pub(crate) backend: Backend,
    pub(crate) reason: String,
    pub(crate) passed_over: Vec<Unavailable>,
    /// For `gds`: the driver, and the way that it goes.
    pub(crate) gds: Option<(Driver, Route)>,
}

impl Chosen {
    /// What `auto` takes where the chosen backend does not work after all, for this reason; `None` if nothing is left.
    pub(crate) fn next_best(mut self, reason: String) -> Option<Chosen> {
        let after = match self.backend {
            Backend::Gds => Backend::Uring,
            Backend::Uring => Backend::Pread,
            _ => return None,
        };
        self.passed_over.push(Unavailable { backend: self.backend, reason });
        (self.backend, self.gds) = (after, None);
        self.reason = best(&self.passed_over);
        match probe(after) {
            Ok(_) => Some(self),
            Err(refused) => self.next_best(refused.reason),
        }
    }
}

/// Takes the backend that was named, or the best that works.
pub(crate) fn choose(wanted: Wanted<'_>) -> Result<Chosen> {
    let named =
        |gds| Chosen { backend: wanted.backend, reason: "it was named".into(), passed_over: vec![], gds };
    match wanted.backend {
        Backend::Auto => {}
        Backend::Gds => return Ok(named(Some(gds(wanted).map_err(|error| with_storage(error, wanted))?))),
        other if wanted.require_gds => {
            return Err(Error::argument(format!(
                "backend {other} was named and GDS is required; they exclude each other"
            )));
        }
        other => {
            probe(other)?;
            return Ok(named(None));
        }
    }
    let mut passed_over = Vec::new();
    if wanted.require_gds || (wanted.context.is_some() && !certainly_not(wanted.file_systems)) {
        let asked = gds(Wanted { require_gds: true, ..wanted }).map_err(|error| with_storage(error, wanted));
        match asked {
            Ok((driver, route)) => {
                let mut reason = format!("cuFile reads straight into GPU memory, by {}", route.name());
                let not: Vec<_> =
                    wanted.file_systems.iter().filter(|it| it.gds.possible == Some(false)).collect();
                for it in not {
                    reason += &format!("; it may not from {}: {}", it.name(), it.gds.reason);
                }
                return Ok(Chosen { backend: Backend::Gds, reason, passed_over, gds: Some((driver, route)) });
            }
            Err(error) if wanted.require_gds => return Err(error),
            Err(error) => passed_over.push(Unavailable { backend: Backend::Gds, reason: error.to_string() }),
        }
    } else if wanted.context.is_some() {
        // cuFile would read every one of these files through host memory.
        let reason = gds_in_words(wanted.file_systems).unwrap_or_default();
        passed_over.push(Unavailable { backend: Backend::Gds, reason });
    }
    let reason = match &passed_over[..] {
        [] => "io_uring works and keeps one thread busy, whatever the queue depth".into(),
        some => best(some),
    };
    let chosen = Chosen { backend: Backend::Uring, reason, passed_over, gds: None };
    match probe(Backend::Uring) {
        Ok(_) => Ok(chosen),
        Err(refused) => Ok(chosen.next_best(refused.reason.clone()).ok_or(refused)?),
    }
}

fn best(passed_over: &[Unavailable]) -> String {
    let why: Vec<_> =
        passed_over.iter().map(|it| format!("{} was passed over ({})", it.backend, it.reason)).collect();
    format!("the best that works: {}", why.join("; "))
}

/// The error that GDS does not work, with what is to be said of it for the storage. A wrong argument is only that.
fn with_storage(error: Error, wanted: Wanted<'_>) -> Error {
    match gds_in_words(wanted.file_systems) {
        Some(words) if error.kind() != ErrorKind::InvalidArgument => {
            error.also(&format!("on the storage side, {words}"))
        }
        _ => error,
    }
}

/// Opens cuFile for the GPU that reads land on. With `require_gds`, only where it is really direct.
fn gds(wanted: Wanted<'_>) -> Result<(Driver, Route)> {
    if wanted.below_root {
        // Seen in 1.14 and 1.20: it asks /proc for the name of a descriptor's file, and opens what has that name now.
        return Err(Error::new(
            ErrorKind::Unavailable,
            "cuFile opens each file once more by its name, which nothing keeps below the root of the dataset",
        )
        .by("gds"));
    }
    let Some(context) = wanted.context else {
        return Err(Error::argument("GDS reads into GPU memory; name a GPU to deliver to (cuda:N)"));
    };
    let driver = Driver::open_in(context)?;
    let route = driver.route()?;
    if wanted.require_gds && !route.is_direct() {
        return Err(Error::new(
            ErrorKind::Unavailable,
            "cuFile would read in its compatibility mode, through host memory, since its driver reports neither \
             nvidia-fs nor PCI P2PDMA for any kind of storage",
        )
        .by("gds"));
    }
    Ok((driver, route))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(backend: Backend) -> Wanted<'static> {
        Wanted { backend, context: None, require_gds: false, below_root: false, file_systems: &[] }
    }

    #[test]
    fn auto_takes_what_works_and_says_why() {
        let chosen = choose(wanted(Backend::Auto)).unwrap();
        assert!(probe(chosen.backend).is_ok());
        assert!(!chosen.reason.is_empty());
        assert_eq!(chosen.backend == Backend::Uring, chosen.passed_over.is_empty());
    }

    #[test]
    fn gds_without_a_gpu_is_an_error_that_says_so() {
        for wanted in [wanted(Backend::Gds), Wanted { require_gds: true, ..wanted(Backend::Auto) }] {
            assert!(choose(wanted).unwrap_err().to_string().contains("name a GPU"));
        }
        let both = Wanted { require_gds: true, ..wanted(Backend::Pread) };
        assert_eq!(choose(both).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn gds_is_not_used_below_a_root() {
        let named = Wanted { below_root: true, ..wanted(Backend::Gds) };
        for wanted in [named, Wanted { backend: Backend::Auto, require_gds: true, ..named }] {
            let error = choose(wanted).unwrap_err();
            assert_eq!((error.kind(), error.backend()), (ErrorKind::Unavailable, Some("gds")));
            assert!(error.to_string().contains("below the root"), "{error}");
        }
        assert!(choose(Wanted { backend: Backend::Auto, ..named }).is_ok());
    }

    #[test]
    fn that_gds_is_refused_is_told_with_what_the_files_lie_on() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        std::fs::write(dir.path().join("a.bin"), [0; 64]).unwrap();
        let dataset = crate::OpenOptions::new().record_bytes(8).open(dir.path().join("a.bin")).unwrap();
        let file_systems = dataset.file_systems();
        let named = Wanted { below_root: true, file_systems: &file_systems, ..wanted(Backend::Gds) };
        for wanted in [named, Wanted { backend: Backend::Auto, require_gds: true, ..named }] {
            let error = choose(wanted).unwrap_err().to_string();
            assert!(
                error.contains("below the root") && error.contains("tmpfs keeps its files in memory"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_named_backend_is_taken_or_refused_never_replaced() {
        for backend in [Backend::Pread, Backend::PageCache] {
            assert_eq!(choose(wanted(backend)).unwrap().backend, backend);
        }
        match probe(Backend::Uring) {
            Ok(_) => assert_eq!(choose(wanted(Backend::Uring)).unwrap().backend, Backend::Uring),
            Err(refused) => {
                let error = choose(wanted(Backend::Uring)).unwrap_err();
                assert!(error.to_string().contains(&refused.reason));
            }
        }
    }
}
