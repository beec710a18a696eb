//! Why cuFile, or a function of it, is not there.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::version::Version;

/// Why one place gave no cuFile.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// There is no such file, or nothing matches the pattern.
    Missing,
    /// The file is no shared library that this machine could load. The text says what is wrong.
    NotLoadable(String),
    /// The file is a shared library, but not cuFile: it lacks these functions, which every cuFile has.
    NotCufile(Vec<&'static str>),
    /// Another file has been opened as cuFile by this process, and there is only one per process.
    OtherIsOpen(PathBuf),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("not there"),
            Self::NotLoadable(why) => f.write_str(why),
            Self::NotCufile(missing) => {
                write!(f, "a library, but not cuFile: it has no {}", missing.join(", no "))
            }
            Self::OtherIsOpen(path) => {
                write!(f, "this process has already opened {} as its cuFile", path.display())
            }
        }
    }
}

/// A place that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The file, the bare name that the dynamic loader was asked for, or a pattern that matched nothing.
    pub place: PathBuf,
    /// Why it gave no cuFile.
    pub reason: Reason,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place.display(), self.reason)
    }
}

/// No cuFile could be opened.
///
/// `{}` is one line: the places that held something unusable, each with the reason, then those that held
/// nothing. `{:#}` has one line for each place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError {
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) named_by: Option<&'static str>,
}

impl LoadError {
    /// The places that were tried, in order.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// The environment variable that named the file, if one did: then nothing else was tried.
    pub fn named_by(&self) -> Option<&'static str> {
        self.named_by
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cuFile cannot be loaded")?;
        if let Some(variable) = self.named_by {
            write!(f, " from where {variable} says")?;
        }
        if f.alternate() {
            f.write_str(":")?;
            return self.attempts.iter().try_for_each(|attempt| write!(f, "\n  {attempt}"));
        }
        let (missing, unusable): (Vec<_>, Vec<_>) =
            self.attempts.iter().partition(|attempt| attempt.reason == Reason::Missing);
        let mut separator = ": ";
        for attempt in unusable {
            write!(f, "{separator}{attempt}")?;
            separator = "; ";
        }
        for (at, attempt) in missing.iter().enumerate() {
            let before = if at == 0 { separator } else { ", " };
            let word = if at == 0 { "not there: " } else { "" };
            write!(f, "{before}{word}{}", attempt.place.display())?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}

/// A function that the opened library does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingSymbol {
    /// The function.
    pub name: &'static str,
    /// The first version that has it, as far as is known.
    pub since: Version,
    /// The version of the library, if it tells one.
    pub version: Option<Version>,
    pub(crate) path: PathBuf,
}

impl MissingSymbol {
    /// The library's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for MissingSymbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has no {}, which came with cuFile {}", self.path.display(), self.name, self.since)?;
        match self.version {
            Some(version) => write!(f, "; it is cuFile {version}"),
            None => f.write_str("; it does not tell its version"),
        }
    }
}

impl std::error::Error for MissingSymbol {}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(place: &str, reason: Reason) -> Attempt {
        Attempt { place: place.into(), reason }
    }

    #[test]
    fn a_load_error_is_one_line_with_every_place_and_every_reason() {
        let mut error = LoadError {
            attempts: vec![
                attempt(
                    "libcufile.so.0",
                    Reason::NotLoadable("no such library is known to the loader".into()),
                ),
                attempt("/a/libcufile.so.0", Reason::Missing),
                attempt("/b/libcufile.so", Reason::NotCufile(vec!["cuFileDriverOpen", "cuFileRead"])),
                attempt("/c/*/lib", Reason::Missing),
            ],
            named_by: None,
        };
        assert_eq!(
            error.to_string(),
            "cuFile cannot be loaded: libcufile.so.0: no such library is known to the loader; /b/libcufile.so: a \
             library, but not cuFile: it has no cuFileDriverOpen, no cuFileRead; not there: /a/libcufile.so.0, \
             /c/*/lib"
        );
        assert_eq!(format!("{error:#}").lines().count(), 5);
        assert!(format!("{error:#}").ends_with("\n  /c/*/lib: not there"));

        error.attempts.truncate(2);
        error.attempts.remove(0);
        error.named_by = Some("GPUFEED_LIBCUFILE");
        assert_eq!(
            error.to_string(),
            "cuFile cannot be loaded from where GPUFEED_LIBCUFILE says: not there: /a/libcufile.so.0"
        );
        assert_eq!(error.named_by(), Some("GPUFEED_LIBCUFILE"));
    }

    #[test]
    fn a_second_cufile_is_refused_by_name() {
        let reason = Reason::OtherIsOpen("/opt/libcufile.so.0".into());
        assert_eq!(reason.to_string(), "this process has already opened /opt/libcufile.so.0 as its cuFile");
    }

    #[test]
    fn a_missing_function_is_named_with_the_versions() {
        let mut missing = MissingSymbol {
            name: "cuFileReadv",
            since: Version::new(1, 19),
            version: Some(Version::new(1, 14)),
            path: "/x/libcufile.so.0".into(),
        };
        assert_eq!(
            missing.to_string(),
            "/x/libcufile.so.0 has no cuFileReadv, which came with cuFile 1.19; it is cuFile 1.14"
        );
        missing.version = None;
        assert!(missing.to_string().ends_with("; it does not tell its version"));
    }
}
