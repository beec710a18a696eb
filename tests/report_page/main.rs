//! The page of a benchmark's report: its figures are the report's, it holds together whatever is in it, and a browser
//! shows it at any width, in light and dark, without asking for anything.

mod browser;
mod samples;
mod tags;

use gpufeed::measure::render_html;
use serde_json::Value;

use tags::{Element, elements};

/// What a report says at a place of it; `None` for what is not a number there.
fn number_at(report: &Value, path: &str) -> Option<f64> {
    report.pointer(path).and_then(Value::as_f64)
}

fn with<'a>(all: &'a [Element], attribute: &'a str) -> impl Iterator<Item = &'a Element> {
    all.iter().filter(move |it| it.attribute(attribute).is_some())
}

fn parse(text: &str) -> f64 {
    text.parse().unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

#[test]
fn every_figure_is_the_one_that_the_report_has_at_its_place() {
    for (name, report) in samples::all() {
        let json = serde_json::to_value(&report).unwrap();
        let mut seen = 0;
        for it in with(&elements(&render_html(&report)), "data-path") {
            let [path, value, factor] =
                ["data-path", "data-value", "data-factor"].map(|it_is| it.attribute(it_is).unwrap());
            let there = number_at(&json, path).unwrap_or_else(|| panic!("{name}: nothing at {path}"));
            assert_eq!(parse(value), there, "{name}: {path}");
            let (shown, exact) = (parse(&it.text), there * parse(factor));
            assert!(
                (shown - exact).abs() <= exact.abs() * 0.006,
                "{name}: {path} is {exact}, shown as {shown}"
            );
            seen += 1;
        }
        assert!(seen > if report.summary.is_empty() { 5 } else { 50 }, "{name}: only {seen} figures");
    }
}

#[test]
fn plots_and_tables_have_a_row_for_each_summary_and_they_agree() {
    let report = samples::ordinary();
    let all = elements(&render_html(&report));
    for it in &report.summary {
        let cache = format!("{:?}", it.cache).to_lowercase();
        let rows: Vec<&Element> = with(&all, "data-backend")
            .filter(|row| row.attribute("data-backend") == Some(&*it.backend))
            .filter(|row| row.attribute("data-cache") == Some(&*cache))
            .collect();
        let of = |attribute: &str| -> Vec<f64> {
            rows.iter().filter_map(|row| row.attribute(attribute)).map(parse).collect()
        };
        // Once in the plot, once in the table.
        let both = |value: Option<f64>| value.map_or(vec![], |value| vec![value; 2]);
        assert_eq!(of("data-gib-min"), both(it.gib_per_s.map(|it| it.min)));
        assert_eq!(of("data-gib-median"), both(it.gib_per_s.map(|it| it.median)));
        assert_eq!(of("data-gib-max"), both(it.gib_per_s.map(|it| it.max)));
        assert_eq!(of("data-cpu-median"), both(it.cpu_seconds_per_gib.map(|it| it.median)));
        let measured = it.reads.count > 0;
        assert_eq!(of("data-reads-p99"), if measured { vec![it.reads.p99_us] } else { vec![] });
        let withheld = rows.iter().filter(|row| row.name == "g" && row.text.contains("withheld")).count();
        assert_eq!(withheld > 0, it.gib_per_s.is_none(), "{} {cache}", it.backend);
    }
}

#[test]
fn bars_are_as_long_as_their_figures_say() {
    let report = samples::ordinary();
    let page = render_html(&report);
    let plot = &page[page.find("id=\"plot-throughput-title\"").unwrap()..page.find("<table>").unwrap()];
    let mut scales = Vec::new();
    for row in plot.split("<g class=\"row\"").skip(1) {
        let Some((_, median)) = row.split_once("data-gib-median=\"") else { continue };
        let (_, width) = row.split_once("<rect class=\"bar").unwrap().1.split_once("width=\"").unwrap();
        let [median, width] = [median, width].map(|it| parse(it.split(['"', '%']).next().unwrap()));
        scales.push(width / median);
    }
    assert_eq!(scales.len(), report.summary.iter().filter(|it| it.gib_per_s.is_some()).count());
    assert!(scales.iter().all(|scale| (scale - scales[0]).abs() < scales[0] * 0.001), "{scales:?}");
}

#[test]
fn a_page_holds_its_report_and_nothing_in_that_is_taken_for_a_tag() {
    for (name, report) in samples::all() {
        let page = render_html(&report);
        let all = elements(&page);
        let scripts: Vec<&Element> = all.iter().filter(|it| it.name == "script").collect();
        assert_eq!(scripts.len(), 1, "{name}");
        assert_eq!(scripts[0].attribute("type"), Some("application/json"), "{name}");
        assert!(!scripts[0].text.contains('<'), "{name}");
        // As text, since a number need not come back from it to the last bit.
        let escapes = [("\\u003c", "<"), ("\\u003e", ">"), ("\\u0026", "&")];
        let held = escapes.iter().fold(scripts[0].text.clone(), |it, (from, to)| it.replace(from, to));
        assert_eq!(held, serde_json::to_string(&report).unwrap(), "{name}");
        serde_json::from_str::<Value>(&scripts[0].text).unwrap();
        // An element or attribute that does something, or asks for something, would have come from the report's text.
        for it in &all {
            assert!(
                !matches!(&*it.name, "img" | "iframe" | "object" | "base" | "form"),
                "{name}: <{}>",
                it.name
            );
            for (key, value) in &it.attributes {
                assert!(!key.starts_with("on") && key != "src", "{name}: {key}={value}");
                let local = value.starts_with('#') || value == "data:,";
                assert!(key != "href" || local, "{name}: {key}={value}");
            }
        }
        let control = |c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || c == '\u{202e}';
        let body = &page[..page.find("<script").unwrap()];
        assert!(!body.contains(control), "{name}");
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("@import"), "{name}");
        assert!(!body.contains("NaN") && !body.contains("inf%") && !body.contains("\"inf"), "{name}");
    }
}

#[test]
fn hostile_text_is_shown_as_it_is() {
    let (_, report) = samples::all().into_iter().find(|(name, _)| *name == "hostile").unwrap();
    let all = elements(&render_html(&report));
    let shown = samples::HOSTILE
        .replace('\u{0}', "\\u{0}")
        .replace('\u{1b}', "\\u{1b}")
        .replace('\u{202e}', "\\u{202e}");
    for (tag, at_least) in
        [("h1", 1), ("title", 1), ("h4", 4), ("code", 1), ("dd", 5), ("span", 10), ("th", 10)]
    {
        let with = all.iter().filter(|it| it.name == tag && it.text.contains(&shown)).count();
        assert!(with >= at_least, "{tag}: {with}");
    }
}

#[test]
fn marks_failures_and_an_interruption_are_told_in_words() {
    let mut report = samples::ordinary();
    let page = render_html(&report);
    let all = elements(&page);
    let text = &all.iter().find(|it| it.name == "main").unwrap().text;
    for mark in report.summary.iter().flat_map(|it| &it.marks) {
        assert!(text.contains(&mark.reason), "{}", mark.reason);
    }
    for failure in &report.failures {
        let of = with(&all, "data-failure").find(|it| it.attribute("data-failure") == Some(&failure.backend));
        assert!(of.unwrap().text.contains(&failure.error));
    }
    // A badge leads to its reason.
    for it in all.iter().filter(|it| it.name == "a") {
        let target = it.attribute("href").unwrap().trim_start_matches('#');
        assert!(with(&all, "id").any(|it| it.attribute("id") == Some(target)), "{target}");
    }
    for sentence in &report.conclusion {
        assert!(text.contains(sentence));
    }
    assert!(!page.contains("Interrupted."));
    report.interrupted = true;
    assert!(render_html(&report).contains("Interrupted."));
}

#[test]
fn a_page_can_be_read_by_ear_and_by_keyboard() {
    for (name, report) in samples::all() {
        let page = render_html(&report);
        let all = elements(&page);
        let html = all.iter().find(|it| it.name == "html").unwrap();
        assert_eq!(html.attribute("lang"), Some("en"));
        let mut ids: Vec<&str> = with(&all, "id").filter_map(|it| it.attribute("id")).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "{name}: an id is there twice");
        let named =
            |it: &Element, by: &str| it.attribute(by).is_some_and(|id| ids.binary_search(&id).is_ok());
        for it in &all {
            match &*it.name {
                "svg" if it.attribute("role") == Some("img") => {
                    assert!(named(it, "aria-labelledby") && named(it, "aria-describedby"), "{name}");
                }
                // One in another is a part of its picture.
                "svg" if !it.within.contains(&"svg".to_owned()) => {
                    assert_eq!(it.attribute("aria-hidden"), Some("true"), "{name}");
                }
                "section" => assert!(named(it, "aria-labelledby"), "{name}"),
                "th" => assert!(matches!(it.attribute("scope"), Some("row" | "col")), "{name}"),
                "table" => assert!(it.within.contains(&"div".to_owned()), "{name}"),
                _ => {}
            }
            if it.attribute("class") == Some("scroll") {
                assert_eq!((it.attribute("role"), it.attribute("tabindex")), (Some("region"), Some("0")));
                assert!(it.attribute("aria-label").is_some_and(|label| label.len() > 8), "{name}");
            }
        }
        let count = |tag| all.iter().filter(|it| it.name == tag).count();
        assert_eq!((count("h1"), count("main"), count("table")), (1, 1, count("caption")), "{name}");
        let levels: Vec<u32> = page
            .match_indices("<h")
            .filter_map(|(at, _)| page[at + 2..].chars().next()?.to_digit(10))
            .collect();
        assert!(levels[0] == 1 && levels.windows(2).all(|pair| pair[1] <= pair[0] + 1), "{name}: {levels:?}");
    }
}
