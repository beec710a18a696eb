//! cuFile's configuration file: JSON, with comments.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Error, ErrorKind, Result};

/// The settings that cuFile finds in a configuration file.
///
/// cuFile takes the file named by `CUFILE_ENV_PATH_JSON`, else `/etc/cufile.json`. Where there is none it works with its
/// defaults; with one that is not JSON its driver does not open. This type says what is wrong with one.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    path: PathBuf,
    value: Value,
}

/// Numbers that cuFile takes, by their place in the file, with the least and the most that make sense.
const NUMBERS: [(&str, u64, u64); 8] = [
    ("/properties/max_direct_io_size_kb", 4, 1 << 24),
    ("/properties/max_device_cache_size_kb", 4, 1 << 26),
    ("/properties/max_device_pinned_mem_size_kb", 4, 1 << 32),
    ("/properties/per_buffer_cache_size_kb", 4, 1 << 24),
    ("/properties/io_batchsize", 1, 4096),
    ("/execution/max_io_threads", 0, 4096),
    ("/execution/max_io_queue_depth", 1, 1 << 16),
    ("/execution/max_request_parallelism", 0, 4096),
];

const SWITCHES: [&str; 4] = [
    "/properties/use_poll_mode",
    "/properties/allow_compat_mode",
    "/properties/use_pci_p2pdma",
    "/execution/parallel_io",
];

impl Config {
    /// Where cuFile looks for its configuration in this process.
    pub fn path_in_use() -> PathBuf {
        std::env::var_os("CUFILE_ENV_PATH_JSON").map_or_else(|| "/etc/cufile.json".into(), PathBuf::from)
    }

    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// `NotFound` or `Io` if it cannot be read; `InvalidData` if it is not JSON, or a known setting has a value that
    /// makes no sense, naming the setting.
    pub fn read(path: impl AsRef<Path>) -> Result<Config> {
        let path = path.as_ref();
        let text =
            std::fs::read_to_string(path).map_err(|e| Error::io(path, "cannot read the configuration", e))?;
        Config::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Config> {
        let value: Value = serde_json::from_str(&without_comments(text)).map_err(|e| {
            Error::data(path, "the configuration is not JSON (comments are fine)").caused_by(e)
        })?;
        if !value.is_object() {
            return Err(Error::data(path, "the configuration is not a JSON object"));
        }
        let wrong = |place: &str, found: &Value, wanted: String| {
            let name = place.trim_start_matches('/').replace('/', ".");
            Error::new(ErrorKind::InvalidData, format!("{name} is {found}; it must be {wanted}")).at(path)
        };
        for (place, least, most) in NUMBERS {
            if let Some(found) = value.pointer(place)
                && !found.as_u64().is_some_and(|number| (least..=most).contains(&number))
            {
                return Err(wrong(place, found, format!("a whole number from {least} to {most}")));
            }
        }
        for place in SWITCHES {
            if let Some(found) = value.pointer(place).filter(|found| !found.is_boolean()) {
                return Err(wrong(place, found, "true or false".into()));
            }
        }
        Ok(Config { path: path.into(), value })
    }

    /// Where it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value of a setting, by its place: `config.setting("properties.allow_compat_mode")`. `None` where the file does not
    /// set it, and cuFile's default holds.
    pub fn setting(&self, name: &str) -> Option<&Value> {
        self.value.pointer(&format!("/{}", name.replace('.', "/")))
    }
}

/// Blanks out `//` and `/* */` comments, as cuFile's own parser passes over them. Places in the text stay the same.
fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let (mut in_string, mut escaped) = (false, false);
    while let Some(c) = chars.next() {
        if in_string {
            in_string = c != '"' || escaped;
            escaped = c == '\\' && !escaped;
            plain.push(c);
            continue;
        }
        match (c, chars.peek()) {
            ('/', Some('/')) => {
                while chars.peek().is_some_and(|&next| next != '\n') {
                    chars.next();
                }
            }
            ('/', Some('*')) => {
                chars.next();
                let mut last = ' ';
                for next in chars.by_ref() {
                    if next == '\n' {
                        plain.push('\n');
                    }
                    if last == '*' && next == '/' {
                        break;
                    }
                    last = next;
                }
            }
            _ => {
                in_string = c == '"';
                plain.push(c);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(Path::new("cufile.json"), text)
    }

    #[test]
    fn comments_are_passed_over_and_strings_are_not() {
        let config = parse(
            "{ // a comment\n \"logging\": { \"dir\": \"/var/log//x\" }, /* and\n another */ \"properties\": { \"io_batchsize\": 128 } }",
        )
        .unwrap();
        assert_eq!(config.setting("logging.dir"), Some(&Value::from("/var/log//x")));
        assert_eq!(config.setting("properties.io_batchsize"), Some(&Value::from(128)));
        assert_eq!(config.setting("properties.use_poll_mode"), None);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, word) in [
            ("{ \"properties\": { \"io_batchsize\": 0 } }", "properties.io_batchsize is 0"),
            ("{ \"properties\": { \"max_direct_io_size_kb\": \"16MB\" } }", "max_direct_io_size_kb"),
            ("{ \"properties\": { \"allow_compat_mode\": 1 } }", "true or false"),
            ("[1]", "not a JSON object"),
            ("{ \"a\": ", "not JSON"),
            ("", "not JSON"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        }
        assert_eq!(Config::read("/nowhere/cufile.json").unwrap_err().kind(), ErrorKind::NotFound);
    }
}
