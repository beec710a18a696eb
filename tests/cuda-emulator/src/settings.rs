//! What the environment asks of the emulator. Read once, at the first call.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::Code;

/// How long stream operations are held back before they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delay {
    /// Each operation runs as soon as its stream and its dependencies allow.
    None,
    /// Each operation first sleeps for a time drawn from `seed`, its stream and its place in the stream.
    Random { seed: u64, max: Duration },
    /// Each operation is held until somebody waits for it, has asked `queries` times whether it is done, or until
    /// `hold` has passed since the call (the driver promises progress without being asked, but not when).
    Adversarial { hold: Duration, queries: u32 },
}

/// A fault that strikes once a budget is used up, and the code that the caller then sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) after: u64,
    pub(crate) code: Code,
}

/// All variables, parsed. README.md documents each.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The devices that the process sees, as numbers of the machine's devices.
    pub(crate) devices: Vec<i32>,
    pub(crate) memory: u64,
    pub(crate) driver_version: i32,
    pub(crate) init_error: Option<Code>,
    pub(crate) peer_access: bool,
    pub(crate) delay: Delay,
    pub(crate) report: Option<PathBuf>,
    pub(crate) abort: bool,
    pub(crate) leaks: bool,
    /// Misuse to overlook, as (kind, file name of the caller).
    pub(crate) overlook: Vec<(String, String)>,
    pub(crate) fail_alloc: Option<Limit>,
    pub(crate) fail_host_alloc: Option<Limit>,
    pub(crate) fail_register: Option<Limit>,
    pub(crate) fail_copy: Option<Limit>,
    pub(crate) fail_copy_late: Option<Limit>,
    pub(crate) lose_device: Option<Limit>,
}

/// The settings of this process.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        Settings::read(|name| std::env::var(name).ok()).unwrap_or_else(|error| refuse(&error))
    })
}

/// A setting that is not understood ends the process: a test whose fault is silently not injected would pass.
fn refuse(error: &str) -> ! {
    eprintln!("cuda-emulator: {error}");
    std::process::abort();
}

impl Settings {
    /// Reads all variables through `get`.
    fn read(get: impl Fn(&str) -> Option<String>) -> Result<Settings, String> {
        let only = get("CUDA_VISIBLE_DEVICES");
        let get = |name: &str| get(&format!("CUDA_EMULATOR_{name}")).filter(|value| !value.is_empty());
        Ok(Settings {
            devices: visible(number(&get, "DEVICES", 1)?, only.as_deref()),
            memory: number(&get, "MEMORY", 2 << 30)?,
            driver_version: number(&get, "DRIVER_VERSION", 13_000)?,
            init_error: optional(&get, "INIT_ERROR")?.map(Code),
            peer_access: switch(&get, "PEER_ACCESS")?,
            delay: get("DELAY").map_or(Ok(Delay::None), |value| {
                delay(&value).ok_or_else(|| {
                    complain(
                        "DELAY",
                        &value,
                        "none, random:<seed>:<max_us> or adversarial[:<hold_ms>[:<queries>]]",
                    )
                })
            })?,
            report: get("REPORT").map(PathBuf::from),
            abort: switch(&get, "ABORT")?,
            leaks: switch(&get, "LEAKS")?,
            overlook: overlook(&get, "OVERLOOK")?,
            fail_alloc: limit(&get, "FAIL_ALLOC_AFTER", Code::OUT_OF_MEMORY)?,
            fail_host_alloc: limit(&get, "FAIL_HOST_ALLOC_AFTER", Code::OUT_OF_MEMORY)?,
            fail_register: limit(&get, "FAIL_REGISTER_AFTER", Code::OUT_OF_MEMORY)?,
            fail_copy: limit(&get, "FAIL_COPY", Code::UNKNOWN)?,
            fail_copy_late: limit(&get, "FAIL_COPY_LATE", Code::LAUNCH_FAILED)?,
            lose_device: limit(&get, "LOSE_DEVICE_AFTER", Code::ECC_UNCORRECTABLE)?,
        })
    }
}

/// The driver's own variable: a list of ordinals that ends at the first that is none.
fn visible(devices: i32, only: Option<&str>) -> Vec<i32> {
    let Some(only) = only else { return (0..devices).collect() };
    let ordinals = only.split(',').map(|ordinal| ordinal.trim().parse().ok());
    let mut seen = Vec::new();
    for ordinal in ordinals.map_while(|ordinal| ordinal.filter(|ordinal| (0..devices).contains(ordinal))) {
        // A repeated ordinal makes the whole list void.
        if seen.contains(&ordinal) {
            return Vec::new();
        }
        seen.push(ordinal);
    }
    seen
}

fn complain(name: &str, value: &str, wanted: &str) -> String {
    format!("CUDA_EMULATOR_{name}={value}: expected {wanted}")
}

fn optional<T: FromStr>(get: &impl Fn(&str) -> Option<String>, name: &str) -> Result<Option<T>, String> {
    get(name).map(|value| value.parse().map_err(|_| complain(name, &value, "a number"))).transpose()
}

fn number<T: FromStr>(get: &impl Fn(&str) -> Option<String>, name: &str, default: T) -> Result<T, String> {
    Ok(optional(get, name)?.unwrap_or(default))
}

fn switch(get: &impl Fn(&str) -> Option<String>, name: &str) -> Result<bool, String> {
    match get(name).as_deref() {
        None | Some("0" | "off") => Ok(false),
        Some("1" | "on") => Ok(true),
        Some(value) => Err(complain(name, value, "1, on, 0 or off")),
    }
}

/// `<kind>@<file name>`, separated by commas.
fn overlook(get: &impl Fn(&str) -> Option<String>, name: &str) -> Result<Vec<(String, String)>, String> {
    let value = get(name).unwrap_or_default();
    let entries = value.split(',').filter(|entry| !entry.is_empty());
    entries
        .map(|entry| {
            let (kind, file) =
                entry.split_once('@').ok_or_else(|| complain(name, &value, "<kind>@<file name>,..."))?;
            Ok((kind.to_owned(), file.to_owned()))
        })
        .collect()
}

/// `<after>` or `<after>:<code>`.
fn limit(get: &impl Fn(&str) -> Option<String>, name: &str, default: Code) -> Result<Option<Limit>, String> {
    let Some(value) = get(name) else { return Ok(None) };
    let (after, code) = value.split_once(':').unwrap_or((&value, ""));
    let code = if code.is_empty() { Some(default) } else { code.parse().ok().map(Code) };
    match (after.parse().ok(), code) {
        (Some(after), Some(code)) => Ok(Some(Limit { after, code })),
        _ => Err(complain(name, &value, "<number> or <number>:<error code>")),
    }
}

fn delay(value: &str) -> Option<Delay> {
    let mut parts = value.split(':');
    let delay = match parts.next()? {
        "none" => Delay::None,
        "random" => Delay::Random {
            seed: parts.next()?.parse().ok()?,
            max: Duration::from_micros(parts.next()?.parse().ok()?),
        },
        "adversarial" => Delay::Adversarial {
            hold: Duration::from_millis(parts.next().map_or(Some(50), |part| part.parse().ok())?),
            queries: parts.next().map_or(Some(3), |part| part.parse().ok())?,
        },
        _ => return None,
    };
    parts.next().is_none().then_some(delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<Settings, String> {
        Settings::read(|asked| (asked == format!("CUDA_EMULATOR_{name}")).then(|| value.to_owned()))
    }

    #[test]
    fn nothing_set_means_one_device_without_delays_faults_or_peers() {
        let settings = Settings::read(|_| None).unwrap();
        assert_eq!(settings.devices, [0]);
        assert_eq!(settings.delay, Delay::None);
        assert!(!settings.peer_access && !settings.abort && !settings.leaks);
        assert_eq!(settings.fail_alloc, None);
    }

    #[test]
    fn the_list_of_visible_devices_ends_at_the_first_that_is_none() {
        for (only, wanted) in [
            (None, vec![0, 1, 2]),
            (Some(""), vec![]),
            (Some("2,0"), vec![2, 0]),
            (Some("1,-1,0"), vec![1]),
            (Some("1,7,0"), vec![1]),
            (Some("1,1"), vec![]),
        ] {
            assert_eq!(visible(3, only), wanted, "{only:?}");
        }
    }

    #[test]
    fn delays_are_read_with_their_parts() {
        let random = Delay::Random { seed: 7, max: Duration::from_micros(300) };
        assert_eq!(read("DELAY", "random:7:300").unwrap().delay, random);
        let adversarial = Delay::Adversarial { hold: Duration::from_millis(50), queries: 3 };
        assert_eq!(read("DELAY", "adversarial").unwrap().delay, adversarial);
        let slow = Delay::Adversarial { hold: Duration::from_millis(9000), queries: 2 };
        assert_eq!(read("DELAY", "adversarial:9000:2").unwrap().delay, slow);
    }

    #[test]
    fn a_limit_may_name_its_code() {
        let plain = read("FAIL_COPY", "3").unwrap().fail_copy;
        assert_eq!(plain, Some(Limit { after: 3, code: Code::UNKNOWN }));
        let coded = read("FAIL_COPY", "3:700").unwrap().fail_copy;
        assert_eq!(coded, Some(Limit { after: 3, code: Code::ILLEGAL_ADDRESS }));
    }

    #[test]
    fn what_is_not_understood_is_refused_with_the_name_of_the_variable() {
        for (name, value) in [
            ("DEVICES", "two"),
            ("DELAY", "later"),
            ("DELAY", "random:1"),
            ("DELAY", "none:1"),
            ("PEER_ACCESS", "maybe"),
            ("FAIL_COPY", "3:x"),
            ("OVERLOOK", "double-free"),
        ] {
            let error = read(name, value).unwrap_err();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
