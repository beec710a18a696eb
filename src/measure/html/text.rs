//! Text and figures for a page: escaped, rounded for people, and exact for programs.

use std::fmt;

/// 2^30 / 10^9: what turns GiB/s into GB/s.
pub(super) const GB_PER_GIB: f64 = 1.073_741_824;

/// Text as it may stand between tags and in quoted attributes.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(c)?,
                // Characters that HTML has no place for, and those that turn the direction of the text around them: shown.
                c if c.is_control() || turns(c) => write!(f, "{}", c.escape_unicode())?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Whether a character changes the order in which the ones after it are shown.
fn turns(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// At most so many characters, the last an ellipsis if some are missing: for plots, where text cannot wrap.
pub(super) fn clipped(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Three significant digits.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "not known".into();
    }
    match size {
        0.0 => "0".into(),
        _ if !(1e-3..1e7).contains(&size) => format!("{value:.2e}"),
        _ if size >= 99.95 => format!("{value:.0}"),
        _ if size >= 9.995 => format!("{value:.1}"),
        _ if size >= 0.9995 => format!("{value:.2}"),
        _ if size >= 0.0995 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

/// A unit that leaves few digits, and how many of the given units it is.
pub(super) type Unit = (f64, &'static str);

/// The unit for a time in microseconds.
pub(super) fn time_unit(us: f64) -> Unit {
    match us.abs() {
        it if it >= 999_500.0 => (1e-6, "s"),
        it if it >= 999.5 => (1e-3, "ms"),
        _ => (1.0, "µs"),
    }
}

/// The unit for a number of bytes.
pub(super) fn size_unit(bytes: u64) -> Unit {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut factor, mut unit) = (1.0, 0);
    while bytes as f64 * factor >= 10_000.0 && unit + 1 < UNITS.len() {
        factor /= 1024.0;
        unit += 1;
    }
    (factor, UNITS[unit])
}

/// A time in microseconds, as words in a plot.
pub(super) fn time(us: f64) -> String {
    let (factor, unit) = time_unit(us);
    format!("{} {unit}", number(us * factor))
}

/// A share of 1 as words in a plot.
pub(super) fn percent(share: f64) -> String {
    format!("{} %", number(share * 100.0))
}

/// A number of the report: where it is there, what it is, and what it is times `factor` for people.
pub(super) fn figure(path: &str, value: f64, (factor, unit): Unit) -> String {
    if !value.is_finite() {
        return missing();
    }
    marked(path, &format!("{value:?}"), factor, &number(value * factor), unit)
}

/// The same for a whole number that is not rounded.
pub(super) fn count(path: &str, value: u64) -> String {
    marked(path, &value.to_string(), 1.0, &value.to_string(), "")
}

/// The same for a number of bytes.
pub(super) fn size(path: &str, bytes: u64) -> String {
    let (factor, unit) = size_unit(bytes);
    marked(path, &bytes.to_string(), factor, &number(bytes as f64 * factor), unit)
}

/// The same for a time in microseconds.
pub(super) fn micros(path: &str, us: f64) -> String {
    figure(path, us, time_unit(us))
}

/// What stands where the report has no number.
pub(super) fn missing() -> String {
    r#"<span class="none">not known</span>"#.into()
}

fn marked(path: &str, value: &str, factor: f64, text: &str, unit: &str) -> String {
    let space = if unit.is_empty() { "" } else { "\u{a0}" };
    format!(
        r#"<span data-path="{}" data-value="{value}" data-factor="{factor:?}">{text}</span>{space}{unit}"#,
        Escaped(path)
    )
}

/// A time in seconds since 1970, as a date and time in UTC.
pub(super) fn date(seconds: u64) -> String {
    // Days are counted from 1 March of the year 0, so that a leap day is the last of its year (as in Hinnant's
    // "chrono-compatible low-level date algorithms").
    let days = (seconds / 86_400).min(1 << 40) + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_a_tag_an_attribute_or_a_line() {
        let escaped = |text| Escaped(text).to_string();
        assert_eq!(escaped("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
        assert_eq!(escaped("\0\u{1b}[31m\u{7f}\u{85}"), r"\u{0}\u{1b}[31m\u{7f}\u{85}");
        assert_eq!(escaped("x\u{202e}txt.exe\r\n"), "x\\u{202e}txt.exe\\u{d}\n");
        assert_eq!(escaped("Größe µs 数据"), "Größe µs 数据");
    }

    #[test]
    fn numbers_keep_three_digits_and_are_never_nan() {
        let all =
            [0.0, 0.016, 0.999_96, 1.0, 9.999, 12.34, 99.97, 123.4, 1e-9, 1e12, f64::NAN, f64::INFINITY];
        let texts = all.map(number);
        let right = [
            "0",
            "0.0160",
            "1.00",
            "1.00",
            "10.0",
            "12.3",
            "100",
            "123",
            "1.00e-9",
            "1.00e12",
            "not known",
            "not known",
        ];
        assert_eq!(texts, right);
        for value in all.into_iter().filter(|value| value.is_finite()) {
            let text: f64 = number(value).parse().unwrap();
            assert!((text - value).abs() <= value.abs() * 0.006, "{value}: {text}");
        }
    }

    #[test]
    fn units_leave_few_digits() {
        assert_eq!(time(412.0), "412 µs");
        assert_eq!(time(1234.0), "1.23 ms");
        assert_eq!(time(2.5e6), "2.50 s");
        assert_eq!(size_unit(9999).1, "B");
        assert_eq!(size_unit(64 << 20).1, "MiB");
        assert_eq!(size_unit(u64::MAX).1, "PiB");
        assert_eq!(percent(0.5), "50.0 %");
        assert_eq!(clipped("page-cache", 5), "page…");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_827_696), "2000-02-29 12:34 UTC");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59 UTC");
        let _ = date(u64::MAX);
    }
}
