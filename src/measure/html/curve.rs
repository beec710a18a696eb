//! The curve of a sweep, as SVG: one setting along the axis, in steps of equal width.

use std::fmt::Write;

use super::kinds;
use super::plot::{Plot, open, short};
use super::scale::Linear;
use super::text::{Escaped, clipped, number};
use crate::measure::{Spread, Sweep, SweepPoint};

const TOP: f64 = 22.0;
const BOTTOM: f64 = 196.0;
const HEIGHT: u32 = 228;
/// Characters of a value that are shown under the axis.
const VALUE: usize = 16;

/// An axis that has room for all sweeps of one setting, so that their curves can be compared.
pub(super) fn axis<'a>(sweeps: impl IntoIterator<Item = &'a Sweep>) -> Linear {
    let points = sweeps.into_iter().flat_map(|sweep| &sweep.points);
    Linear::over(points.filter_map(|point| point.gib_per_s).map(|it| it.max))
}

/// Medians as a line, in a band from the smallest to the largest; a gap where a figure was withheld.
pub(super) fn curve(out: &mut String, plot: &Plot<'_>, sweep: &Sweep, axis: &Linear) {
    let count = sweep.points.len();
    let x = |i: usize| if count < 2 { 50.0 } else { 15.0 + 79.0 * i as f64 / (count - 1) as f64 };
    let y = |value: f64| BOTTOM - (BOTTOM - TOP) * axis.at(value) / 100.0;
    let say: Vec<String> = sweep.points.iter().map(|point| say(point, plot.unit)).collect();
    open(out, plot, HEIGHT, &say);
    for tick in &axis.ticks {
        let at = y(*tick);
        let _ = write!(
            out,
            r#"<line class="grid" x1="0" x2="100%" y1="{at:.1}" y2="{at:.1}"/><text class="tick" x="0" y="{:.1}">{}</text>"#,
            at - 3.0,
            short(number(*tick))
        );
    }
    // Lines and bands have no percentages, so they get a coordinate system of their own that is stretched.
    let _ = write!(
        out,
        r#"<svg class="curve {}" x="0" y="0" width="100%" height="{HEIGHT}" viewBox="0 0 100 {HEIGHT}" preserveAspectRatio="none">"#,
        super::cache_name(sweep.cache)
    );
    let spreads: Vec<_> =
        sweep.points.iter().enumerate().map(|(i, point)| known(point).map(|it| (i, it))).collect();
    for part in spreads.split(Option::is_none).filter(|part| part.len() > 1) {
        let points = || part.iter().flatten();
        let mut band = String::new();
        for (i, it) in points() {
            let _ = write!(band, "{:.3},{:.2} ", x(*i), y(it.max));
        }
        for (i, it) in points().rev() {
            let _ = write!(band, "{:.3},{:.2} ", x(*i), y(it.min));
        }
        let mut line = String::new();
        for (i, it) in points() {
            let _ = write!(line, "{:.3},{:.2} ", x(*i), y(it.median));
        }
        let _ =
            write!(out, r#"<polygon points="{}"/><polyline points="{}"/>"#, band.trim_end(), line.trim_end());
    }
    out.push_str("</svg>");
    // Values are written at the points where there is room, and under the axis as many as fit.
    let longest = sweep.points.iter().map(|it| it.value.chars().count().min(VALUE)).max().unwrap_or(1) as f64;
    // A long label near an edge is moved inwards, towards the next one.
    let width = if longest > 6.0 { longest * 7.0 + 36.0 } else { longest * 7.0 + 10.0 };
    let every = |pixels: f64| ((count as f64 * width) / pixels).ceil().max(1.0) as usize;
    let desktop = every(430.0);
    let phone = every(270.0).next_multiple_of(desktop);
    for (i, point) in sweep.points.iter().enumerate() {
        let x = x(i);
        let _ = write!(
            out,
            r#"<g class="point {}" data-value="{}""#,
            super::cache_name(sweep.cache),
            Escaped(&point.value)
        );
        match known(point) {
            Some(it) => {
                let [min, median, max] = [y(it.min), y(it.median), y(it.max)];
                let _ = write!(
                    out,
                    r#" data-gib-min="{:?}" data-gib-median="{:?}" data-gib-max="{:?}"><line x1="{x:.3}%" x2="{x:.3}%" y1="{min:.2}" y2="{max:.2}"/><circle cx="{x:.3}%" cy="{median:.2}" r="4.5"/>"#,
                    it.min, it.median, it.max
                );
                let mark = if point.marks.is_empty() { "" } else { "▲ " };
                if count <= 7 || !mark.is_empty() {
                    let text =
                        if count <= 7 { format!("{mark}{}", number(it.median)) } else { mark.trim().into() };
                    let class = if mark.is_empty() { "at" } else { "at marks" };
                    let _ = write!(
                        out,
                        r#"<text class="{class}" x="{x:.3}%" y="{:.2}" text-anchor="middle">{text}</text>"#,
                        (max - 8.0).max(12.0)
                    );
                }
            }
            None => {
                let _ = write!(
                    out,
                    r#"><line class="absent" x1="{x:.3}%" x2="{x:.3}%" y1="{TOP}" y2="{BOTTOM}"/><text class="at marks" x="{x:.3}%" y="{:.1}" text-anchor="middle">{}</text>"#,
                    BOTTOM - 8.0,
                    if count <= 4 { "withheld" } else { "×" }
                );
            }
        }
        out.push_str("</g>");
        if i % desktop == 0 {
            let class = if i % phone == 0 { "tick" } else { "tick wide" };
            let (x, anchor) = match x {
                x if longest > 6.0 && x < 25.0 => (0.0, "start"),
                x if longest > 6.0 && x > 75.0 => (100.0, "end"),
                x => (x, "middle"),
            };
            let _ = write!(
                out,
                r#"<text class="{class}" x="{x:.3}%" y="{}" text-anchor="{anchor}">{}</text>"#,
                HEIGHT - 14,
                Escaped(&clipped(&point.value, VALUE))
            );
        }
    }
    out.push_str("</svg>");
}

/// A spread that can be drawn.
fn known(point: &SweepPoint) -> Option<Spread> {
    point.gib_per_s.filter(|it| [it.min, it.median, it.max].iter().all(|it| it.is_finite()))
}

fn say(point: &SweepPoint, unit: &str) -> String {
    let marks =
        if point.marks.is_empty() { String::new() } else { format!(" ({})", kinds(&point.marks).join(", ")) };
    match point.gib_per_s {
        Some(it) => format!(
            "{}: {} {unit}, from {} to {}{marks}",
            point.value,
            number(it.median),
            number(it.min),
            number(it.max)
        ),
        None => format!("{}: withheld{marks}", point.value),
    }
}
