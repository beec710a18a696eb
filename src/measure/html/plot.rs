//! Plots of one row for each backend and state of the cache, as SVG.
//!
//! Positions along a row are percentages and heights are pixels, so a plot fills any width and its text keeps its
//! size. Colours come from the style sheet; nothing is told by colour alone.

use std::fmt::Write;

use super::scale::{Linear, Log};
use super::text::{Escaped, clipped, number, percent, time};
use super::{cache_name, kinds};
use crate::measure::{Cache, Mark, Quantiles, Spread};

/// What a plot is called, and what it says to those who do not see it.
pub(super) struct Plot<'a> {
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    pub(super) unit: &'a str,
    /// The attribute that has the figures of a row, as in `data-gib-median`.
    pub(super) attribute: &'a str,
}

/// One row.
pub(super) struct Row<'a> {
    pub(super) backend: &'a str,
    pub(super) cache: Cache,
    pub(super) spread: Option<Spread>,
    /// What stands for a figure that is not there.
    pub(super) absent: &'a str,
    /// A line under the bar.
    pub(super) under: String,
    pub(super) marks: &'a [Mark],
}

/// A line across all rows.
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    pub(super) class: &'a str,
    pub(super) value: f64,
}

/// Characters of a backend's name that fit on a phone.
const NAME: usize = 18;

/// Bars from 0 to the median, with whiskers from the smallest to the largest.
pub(super) fn bars(out: &mut String, plot: &Plot<'_>, rows: &[Row<'_>], lines: &[Line<'_>]) {
    let Plot { unit, attribute, .. } = plot;
    let all = || rows.iter().filter_map(|row| row.spread);
    let most = all().map(|it| it.max).filter(|it| it.is_finite()).fold(0.0, f64::max);
    // A limit far beyond all bars would leave nothing to see of them.
    let (mut near, far): (Vec<&Line<'_>>, Vec<&Line<'_>>) = lines
        .iter()
        .filter(|line| line.value.is_finite())
        .partition(|line| most <= 0.0 || line.value <= 2.5 * most);
    near.sort_by(|a, b| a.value.total_cmp(&b.value));
    let axis = Linear::over(all().map(|it| it.max).chain(near.iter().map(|line| line.value)));
    let top = 20 * lines.len() as u32 + 6;
    let height = top + rows.iter().map(row_height).sum::<u32>() + 24;

    let mut say: Vec<String> = rows.iter().map(|row| say_bar(row, unit)).collect();
    say.extend(lines.iter().map(|line| format!("{}: {} {unit}", line.name, number(line.value))));
    open(out, plot, height, &say);
    grid(out, top, height, axis.ticks.iter().map(|tick| (axis.at(*tick), short(number(*tick)))));
    for (i, line) in near.iter().enumerate() {
        let (x, y) = (axis.at(line.value), 14 + 20 * i as u32);
        let (anchor, dx) = if x > 50.0 { ("end", -5) } else { ("start", 5) };
        let _ = write!(
            out,
            r#"<g class="limit {}" data-limit="{:?}"><line class="faint" x1="{x:.3}%" x2="{x:.3}%" y1="{}" y2="{}"/><text x="{x:.3}%" dx="{dx}" y="{y}" text-anchor="{anchor}">{} {} {unit}</text></g>"#,
            line.class,
            line.value,
            y - 10,
            height - 24,
            Escaped(line.name),
            number(line.value)
        );
    }
    for (i, line) in (near.len() as u32..).zip(&far) {
        let _ = write!(
            out,
            r#"<g class="limit {}" data-limit="{:?}"><text x="100%" y="{}" text-anchor="end">{} {} {unit}, beyond this scale →</text></g>"#,
            line.class,
            line.value,
            14 + 20 * i,
            Escaped(line.name),
            number(line.value)
        );
    }
    let mut y = top;
    for row in rows {
        let (bar, middle) = (y + 22, y + 30);
        let spread = row.spread.unwrap_or_default();
        let _ = write!(
            out,
            r#"<g class="row" data-backend="{}" data-cache="{}""#,
            Escaped(row.backend),
            cache_name(row.cache)
        );
        match row.spread {
            Some(spread) => {
                let [min, median, max] = [spread.min, spread.median, spread.max];
                let _ = write!(
                    out,
                    r#" data-{attribute}-min="{min:?}" data-{attribute}-median="{median:?}" data-{attribute}-max="{max:?}">"#
                );
                let [from, width, to] = [axis.at(min), axis.at(median), axis.at(max)];
                let _ = write!(
                    out,
                    r#"<rect class="track" x="0" y="{bar}" width="100%" height="16"/><rect class="bar {}" x="0" y="{bar}" width="{width:.3}%" height="16"/>"#,
                    cache_name(row.cache)
                );
                if spread.count > 1 {
                    whisker(out, from, to, middle);
                }
            }
            None => {
                let _ =
                    write!(out, r#"><rect class="track absent" x="0" y="{bar}" width="100%" height="16"/>"#);
            }
        }
        for line in &near {
            // Once more: across a bar it has to be seen, and behind text it must not be in the way.
            let (x, class) = (axis.at(line.value), line.class);
            let (from, to) = (y + 18, y + 42);
            let _ = write!(
                out,
                r#"<g class="limit {class}"><line x1="{x:.3}%" x2="{x:.3}%" y1="{from}" y2="{to}"/></g>"#
            );
        }
        let right = match row.spread {
            Some(_) => format!("{} {unit}", number(spread.median)),
            None => row.absent.to_owned(),
        };
        labels(out, row, y, &right, &row.under);
        out.push_str("</g>");
        y += row_height(row);
    }
    out.push_str("</svg>");
}

/// From the smallest to the largest.
fn whisker(out: &mut String, from: f64, to: f64, middle: u32) {
    let (high, low) = (middle - 5, middle + 5);
    let _ = write!(
        out,
        r#"<g class="whisker"><line x1="{from:.3}%" x2="{to:.3}%" y1="{middle}" y2="{middle}"/><line x1="{from:.3}%" x2="{from:.3}%" y1="{high}" y2="{low}"/><line x1="{to:.3}%" x2="{to:.3}%" y1="{high}" y2="{low}"/></g>"#
    );
}

/// Half, 99 of 100 and all of some latencies, on an axis of powers of ten.
pub(super) fn latencies(out: &mut String, plot: &Plot<'_>, rows: &[(Row<'_>, Quantiles)]) {
    let known =
        |it: &Quantiles| it.count > 0 && [it.p50_us, it.p99_us, it.max_us].iter().all(|it| it.is_finite());
    let measured = || rows.iter().map(|(_, it)| it).filter(|it| known(it));
    let axis = Log::over(measured().flat_map(|it| [it.p50_us, it.p99_us, it.max_us]));
    let top = 6;
    let height = top + rows.iter().map(|(row, _)| row_height(row)).sum::<u32>() + 24;
    let values = |it: &Quantiles| {
        format!("50 % {} · 99 % {} · all {}", time(it.p50_us), time(it.p99_us), time(it.max_us))
    };
    let say: Vec<String> = rows
        .iter()
        .map(|(row, it)| match known(it) {
            false => format!("{}, {}: not measured", row.backend, cache_name(row.cache)),
            true => format!("{}, {}: {}", row.backend, cache_name(row.cache), values(it)),
        })
        .collect();
    open(out, plot, height, &say);
    grid(out, top, height, axis.ticks().into_iter().map(|tick| (axis.at(tick), tick_time(tick))));
    let mut y = top;
    for (row, it) in rows {
        let _ = write!(
            out,
            r#"<g class="row" data-backend="{}" data-cache="{}""#,
            Escaped(row.backend),
            cache_name(row.cache)
        );
        let middle = y + 30;
        if !known(it) {
            let _ =
                write!(out, r#"><rect class="track absent" x="0" y="{}" width="100%" height="16"/>"#, y + 22);
            labels(out, row, y, "not measured", &row.under);
        } else {
            let [half, most, all] = [it.p50_us, it.p99_us, it.max_us];
            let _ = write!(
                out,
                r#" data-{0}-p50="{half:?}" data-{0}-p99="{most:?}" data-{0}-max="{all:?}"><rect class="track" x="0" y="{1}" width="100%" height="16"/>"#,
                plot.attribute,
                y + 22
            );
            let [half, most, all] = [axis.at(half), axis.at(most), axis.at(all)];
            let _ = write!(
                out,
                r#"<g class="quantiles {}"><line x1="{half:.3}%" x2="{all:.3}%" y1="{middle}" y2="{middle}"/><line class="all" x1="{all:.3}%" x2="{all:.3}%" y1="{}" y2="{}"/><svg x="{most:.3}%" y="{middle}" overflow="visible"><path d="M0-7 7 0 0 7-7 0z"/></svg><circle cx="{half:.3}%" cy="{middle}" r="5.5"/></g>"#,
                cache_name(row.cache),
                middle - 7,
                middle + 7
            );
            labels(out, row, y, &row.under, &values(it));
        }
        out.push_str("</g>");
        y += row_height(row);
    }
    out.push_str("</svg>");
}

/// The beginning of a plot, with its name and what it says in words.
pub(super) fn open(out: &mut String, plot: &Plot<'_>, height: u32, say: &[String]) {
    let id = plot.id;
    let say = if say.is_empty() { "Nothing was measured".to_owned() } else { say.join("; ") };
    let _ = write!(
        out,
        r#"<svg class="plot" role="img" width="100%" height="{height}" aria-labelledby="{id}-title" aria-describedby="{id}-desc"><title id="{id}-title">{}</title><desc id="{id}-desc">{}. The table after the plot has the same figures.</desc>"#,
        Escaped(plot.title),
        Escaped(&say)
    );
}

fn grid(out: &mut String, top: u32, height: u32, ticks: impl ExactSizeIterator<Item = (f64, String)>) {
    let last = ticks.len() - 1;
    for (i, (x, text)) in ticks.enumerate() {
        let anchor = match i {
            0 => "start",
            _ if i == last => "end",
            _ => "middle",
        };
        // On a phone there is room for every other one.
        let class = if i % 2 == 1 && i != last && last > 4 { "tick wide" } else { "tick" };
        let _ = write!(
            out,
            r#"<line class="grid" x1="{x:.3}%" x2="{x:.3}%" y1="{top}" y2="{}"/><text class="{class}" x="{x:.3}%" y="{}" text-anchor="{anchor}">{}</text>"#,
            height - 24,
            height - 7,
            Escaped(&text)
        );
    }
}

fn labels(out: &mut String, row: &Row<'_>, y: u32, right: &str, under: &str) {
    let _ = write!(
        out,
        r#"<text class="name" x="0" y="{}">{}<tspan class="cache"> · {}</tspan></text><text class="value" x="100%" y="{}" text-anchor="end">{}</text><text class="under" x="0" y="{}">{}</text>"#,
        y + 16,
        Escaped(&clipped(row.backend, NAME)),
        cache_name(row.cache),
        y + 16,
        Escaped(right),
        y + 54,
        Escaped(under)
    );
    if !row.marks.is_empty() {
        let names = kinds(row.marks).join(", ");
        let _ = write!(
            out,
            r#"<text class="marks" x="0" y="{}">▲ {}</text>"#,
            y + 71,
            Escaped(&clipped(&names, 46))
        );
    }
}

fn row_height(row: &Row<'_>) -> u32 {
    if row.marks.is_empty() { 68 } else { 86 }
}

fn say_bar(row: &Row<'_>, unit: &str) -> String {
    let mut say = format!("{}, {}: ", row.backend, cache_name(row.cache));
    match row.spread {
        Some(it) => {
            let _ =
                write!(say, "{} {unit}, from {} to {}", number(it.median), number(it.min), number(it.max));
        }
        None => say.push_str(row.absent),
    }
    if !row.marks.is_empty() {
        let _ = write!(say, " ({})", kinds(row.marks).join(", "));
    }
    say
}

/// A power of ten of microseconds.
fn tick_time(us: f64) -> String {
    let text = time(us);
    match text.split_once(' ') {
        Some((value, unit)) => format!("{} {unit}", short(value.to_owned())),
        None => text,
    }
}

/// A number without digits that say nothing: values on an axis are exact.
pub(super) fn short(number: String) -> String {
    match number.contains('.') && !number.contains('e') {
        true => number.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => number,
    }
}

/// What a row says of the page cache.
pub(super) fn cached(share: Option<f64>) -> String {
    match share.filter(|it| it.is_finite()) {
        Some(share) => format!("{} cached before", percent(share)),
        None => "cached before: not known".into(),
    }
}

/// The same where there is little room.
pub(super) fn cached_in_short(share: Option<f64>) -> String {
    match share.filter(|it| it.is_finite()) {
        Some(share) => format!("{} cached", percent(share)),
        None => String::new(),
    }
}
