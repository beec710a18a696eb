//! What the environment asks of the stand-in. Read once, when the library is loaded.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::error::code;
use crate::fault::{self, Fault};
use crate::functions;

/// The way that the bytes are said to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Compat,
    Nvfs,
    P2pDma,
}

/// What becomes of a read or a write that is larger than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLarge {
    Refuse,
    Shorten,
}

/// All variables, parsed. README.md documents each.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) route: Route,
    pub(crate) version: i32,
    /// Names to hide, besides those that are newer than the version.
    pub(crate) missing: Vec<String>,
    pub(crate) faults: Vec<Fault>,
    /// Bytes that may be registered at one time, and the code that one more gets.
    pub(crate) register_limit: Option<(u64, i32)>,
    pub(crate) unregistered_reads: bool,
    /// The code that every registration of a file gets.
    pub(crate) handle_fs: Option<i32>,
    pub(crate) max_batch: u32,
    pub(crate) max_io: Option<(u64, TooLarge)>,
    /// Whether host memory may be given where device memory is meant.
    pub(crate) host_memory: bool,
    /// Whether the calling thread needs the memory's context current.
    pub(crate) context_required: bool,
    /// Whether a stream-ordered operation's parameters may change before the stream comes to it.
    pub(crate) async_changes: bool,
    /// The seed and the longest time in microseconds.
    pub(crate) latency: Option<(u64, u64)>,
    pub(crate) bar_kib: u64,
    pub(crate) report: Option<PathBuf>,
    pub(crate) abort: bool,
    pub(crate) leaks: bool,
}

/// The settings of this process.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let known = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let unknown = known
            .filter(|name| name.starts_with(PREFIX))
            .find(|name| !NAMES.contains(&&name[PREFIX.len()..]));
        if let Some(name) = unknown {
            refuse(&format!("{name}: no such setting"));
        }
        Settings::read(|name| std::env::var(name).ok()).unwrap_or_else(|error| refuse(&error))
    })
}

const PREFIX: &str = "CUFILE_STANDIN_";

const NAMES: &[&str] = &[
    "ROUTE",
    "VERSION",
    "MISSING",
    "FAIL",
    "REGISTER_LIMIT",
    "UNREGISTERED_READS",
    "HANDLE_FS",
    "MAX_BATCH",
    "MAX_IO",
    "HOST_MEMORY",
    "CONTEXT",
    "ASYNC_CHANGES",
    "LATENCY",
    "BAR_KIB",
    "REPORT",
    "ABORT",
    "LEAKS",
];

/// A setting that is not understood ends the process: a test whose fault is silently not injected would pass.
pub(crate) fn refuse(error: &str) -> ! {
    eprintln!("cufile-standin: {error}");
    std::process::abort();
}

impl Settings {
    /// Reads all variables through `get`.
    fn read(get: impl Fn(&str) -> Option<String>) -> Result<Settings, String> {
        let get = |name: &str| get(&format!("{PREFIX}{name}")).filter(|value| !value.is_empty());
        Ok(Settings {
            route: choice(
                &get,
                "ROUTE",
                &[("compat", Route::Compat), ("nvfs", Route::Nvfs), ("p2pdma", Route::P2pDma)],
            )?,
            version: number(&get, "VERSION", 1200)?,
            missing: missing(&get)?,
            faults: fault::parse(&get("FAIL").unwrap_or_default())
                .map_err(|why| format!("{PREFIX}FAIL: {why}"))?,
            register_limit: limit(&get, "REGISTER_LIMIT", |rest| {
                if rest.is_empty() { Some(code::INVALID_MAPPING_SIZE) } else { known_code(rest) }
            })?,
            unregistered_reads: choice(&get, "UNREGISTERED_READS", &[("ok", true), ("fail", false)])?,
            handle_fs: handle_fs(&get)?,
            max_batch: number(&get, "MAX_BATCH", 128)?,
            max_io: limit(&get, "MAX_IO", |rest| match rest {
                "" | "refuse" => Some(TooLarge::Refuse),
                "shorten" => Some(TooLarge::Shorten),
                _ => None,
            })?,
            host_memory: choice(&get, "HOST_MEMORY", &[("refuse", false), ("allow", true)])?,
            context_required: choice(&get, "CONTEXT", &[("required", true), ("any", false)])?,
            async_changes: choice(&get, "ASYNC_CHANGES", &[("allow", true), ("report", false)])?,
            latency: latency(&get)?,
            bar_kib: number(&get, "BAR_KIB", 256 << 10)?,
            report: get("REPORT").map(PathBuf::from),
            abort: choice(&get, "ABORT", SWITCH)?,
            leaks: choice(&get, "LEAKS", SWITCH)?,
        })
    }
}

const SWITCH: &[(&str, bool)] = &[("0", false), ("off", false), ("1", true), ("on", true)];

fn complain(name: &str, value: &str, wanted: &str) -> String {
    format!("{PREFIX}{name}={value}: expected {wanted}")
}

/// One of several words; the first is the default.
fn choice<T: Copy>(
    get: &impl Fn(&str) -> Option<String>,
    name: &str,
    words: &[(&str, T)],
) -> Result<T, String> {
    let Some(value) = get(name) else { return Ok(words[0].1) };
    let found = words.iter().find(|(word, _)| *word == value);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        complain(name, &value, &words.join(" or "))
    })
}

fn number<T: FromStr>(get: &impl Fn(&str) -> Option<String>, name: &str, default: T) -> Result<T, String> {
    let Some(value) = get(name) else { return Ok(default) };
    value.parse().map_err(|_| complain(name, &value, "a number"))
}

/// `<number>` or `<number>:<rest>`.
fn limit<T>(
    get: &impl Fn(&str) -> Option<String>,
    name: &str,
    rest_of: impl Fn(&str) -> Option<T>,
) -> Result<Option<(u64, T)>, String> {
    let Some(value) = get(name) else { return Ok(None) };
    let (number, rest) = value.split_once(':').unwrap_or((&value, ""));
    match (number.parse().ok(), rest_of(rest)) {
        (Some(number), Some(rest)) => Ok(Some((number, rest))),
        _ => Err(complain(name, &value, "<bytes> or <bytes>:<what then>")),
    }
}

/// A number of `CUfileOpError`.
pub(crate) fn known_code(text: &str) -> Option<i32> {
    text.parse().ok().filter(|number| code::ALL.contains(number))
}

fn missing(get: &impl Fn(&str) -> Option<String>) -> Result<Vec<String>, String> {
    let value = get("MISSING").unwrap_or_default();
    let names: Vec<String> = value.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    match names.iter().find(|name| functions::find(name).is_none()) {
        Some(name) => Err(complain("MISSING", name, "names of cuFile functions")),
        None => Ok(names),
    }
}

fn handle_fs(get: &impl Fn(&str) -> Option<String>) -> Result<Option<i32>, String> {
    match get("HANDLE_FS").as_deref() {
        None | Some("ok") => Ok(None),
        Some(value) => {
            let code = value.strip_prefix("fail:").and_then(known_code);
            code.map(Some).ok_or_else(|| complain("HANDLE_FS", value, "ok or fail:<cuFile code>"))
        }
    }
}

fn latency(get: &impl Fn(&str) -> Option<String>) -> Result<Option<(u64, u64)>, String> {
    let value = get("LATENCY").unwrap_or_else(|| "none".to_owned());
    if value == "none" {
        return Ok(None);
    }
    let parts = value.strip_prefix("random:").and_then(|rest| rest.split_once(':'));
    let parts = parts.and_then(|(seed, max)| Some((seed.parse().ok()?, max.parse().ok()?)));
    parts.map(Some).ok_or_else(|| complain("LATENCY", &value, "none or random:<seed>:<max_us>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<Settings, String> {
        Settings::read(|asked| (asked == format!("{PREFIX}{name}")).then(|| value.to_owned()))
    }

    #[test]
    fn nothing_set_means_compatibility_mode_without_faults() {
        let settings = Settings::read(|_| None).unwrap();
        assert_eq!((settings.route, settings.version, settings.max_batch), (Route::Compat, 1200, 128));
        assert!(settings.faults.is_empty() && settings.latency.is_none() && !settings.host_memory);
        assert!(settings.context_required && settings.unregistered_reads && !settings.leaks);
    }

    #[test]
    fn limits_may_say_what_happens_then() {
        assert_eq!(read("REGISTER_LIMIT", "4096").unwrap().register_limit, Some((4096, 5016)));
        assert_eq!(read("REGISTER_LIMIT", "0:5036").unwrap().register_limit, Some((0, 5036)));
        assert_eq!(read("MAX_IO", "8:shorten").unwrap().max_io, Some((8, TooLarge::Shorten)));
        assert_eq!(read("HANDLE_FS", "fail:5030").unwrap().handle_fs, Some(5030));
        assert_eq!(read("LATENCY", "random:7:300").unwrap().latency, Some((7, 300)));
    }

    #[test]
    fn what_is_not_understood_is_refused_with_the_name_of_the_variable() {
        for (name, value) in [
            ("ROUTE", "gds"),
            ("VERSION", "1.14"),
            ("MISSING", "cuFileTeleport"),
            ("FAIL", "cuFileRead:1:4999"),
            ("REGISTER_LIMIT", "many"),
            ("REGISTER_LIMIT", "1:0"),
            ("UNREGISTERED_READS", "maybe"),
            ("HANDLE_FS", "fail"),
            ("MAX_IO", "8:split"),
            ("LATENCY", "random:1"),
            ("LEAKS", "yes"),
        ] {
            let error = read(name, value).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }
}
