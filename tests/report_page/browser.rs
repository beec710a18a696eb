//! The pages as a real browser shows them. `browser.py` drives it and says what is wrong.

use std::fs;
use std::path::Path;
use std::process::Command;

use gpufeed::measure::render_html;

use crate::samples;

/// A name of the browser, or a path in the variable `CHROMIUM`.
fn chromium() -> Option<String> {
    let names = ["chromium", "chromium-browser", "google-chrome"].map(String::from);
    let names = std::env::var("CHROMIUM").into_iter().chain(names);
    let works =
        |name: &String| Command::new(name).arg("--version").output().is_ok_and(|it| it.status.success());
    names.into_iter().find(works)
}

#[test]
fn a_browser_shows_every_page_whole_and_asks_for_nothing() {
    let Some(chromium) = chromium() else {
        eprintln!("skipped: there is no chromium to look at the pages with");
        assert!(std::env::var_os("CI").is_none(), "the checks promise to run a browser");
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report-pages");
    fs::create_dir_all(&folder).unwrap();
    for (name, report) in samples::all() {
        fs::write(folder.join(format!("{name}.html")), render_html(&report)).unwrap();
        fs::write(folder.join(format!("{name}.json")), serde_json::to_vec(&report).unwrap()).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/report_page/browser.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(chromium).arg(&folder);
    match python.output() {
        Ok(out) => {
            let [out_text, errors] = [&out.stdout, &out.stderr].map(|it| String::from_utf8_lossy(it));
            assert!(out.status.success(), "{out_text}{errors}");
            println!("{out_text}");
        }
        Err(error) => {
            eprintln!("skipped: there is no python3 to drive the browser: {error}");
            assert!(std::env::var_os("CI").is_none(), "the checks promise to run python3");
        }
    }
}
