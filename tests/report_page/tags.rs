//! A page taken apart, strictly: what a browser would mend is an error here.

use std::collections::HashMap;

/// Elements that have no end.
const VOID: [&str; 3] = ["meta", "link", "br"];

/// One element, with its attributes and all the text in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) attributes: HashMap<String, String>,
    pub(crate) text: String,
    /// Names of the elements around it, the outermost first.
    pub(crate) within: Vec<String>,
}

impl Element {
    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }
}

/// All elements of a page, in the order in which they end; elements of SVG that end at once (`<line/>`) among them.
#[track_caller]
pub(crate) fn elements(page: &str) -> Vec<Element> {
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a page begins with its type");
    let (mut open, mut all): (Vec<Element>, Vec<Element>) = Default::default();
    while let Some(at) = rest.find('<') {
        let text = unescaped(&rest[..at]);
        open.iter_mut().for_each(|it| it.text.push_str(&text));
        rest = &rest[at + 1..];
        // No attribute's value may have a `>`, which this relies on: those of the page are all escaped.
        let end = rest.find('>').expect("a tag ends");
        let tag = &rest[..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            let element = open.pop().unwrap_or_else(|| panic!("</{name}> ends nothing"));
            assert_eq!(element.name, name, "inside of {:?}", element.within);
            all.push(element);
            continue;
        }
        let mut element = element(tag.trim_end_matches('/'));
        element.within = open.iter().map(|it| it.name.clone()).collect();
        let leaf = VOID.contains(&&*element.name) || tag.ends_with('/');
        if matches!(&*element.name, "script" | "style") {
            // Their text is taken as it is, up to their end.
            let end = rest.find(&format!("</{}>", element.name)).expect("it ends");
            element.text = rest[..end].to_owned();
            rest = &rest[end + element.name.len() + 3..];
            all.push(element);
        } else if leaf {
            all.push(element);
        } else {
            open.push(element);
        }
    }
    assert!(open.is_empty(), "never ended: {:?}", open.iter().map(|it| &it.name).collect::<Vec<_>>());
    all
}

#[track_caller]
fn element(tag: &str) -> Element {
    let (name, mut rest) = tag.split_once(|c: char| c.is_ascii_whitespace()).unwrap_or((tag, ""));
    assert!(name.chars().all(|c| c.is_ascii_alphanumeric()) && !name.is_empty(), "<{tag}>");
    let mut attributes = HashMap::new();
    rest = rest.trim();
    while !rest.is_empty() {
        let (key, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("no value in <{tag}>"));
        let (value, after) = after.split_once('"').unwrap_or_else(|| panic!("no end of a value in <{tag}>"));
        assert!(key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{key:?} in <{tag}>");
        assert!(after.is_empty() || after.starts_with(' '), "<{tag}>");
        assert!(attributes.insert(key.to_owned(), unescaped(value)).is_none(), "{key} twice in <{tag}>");
        rest = after.trim_start();
    }
    Element { name: name.to_owned(), attributes, ..Element::default() }
}

#[track_caller]
fn unescaped(text: &str) -> String {
    const NAMES: [(&str, &str); 5] = [("lt", "<"), ("gt", ">"), ("quot", "\""), ("#39", "'"), ("amp", "&")];
    let mut parts = text.split('&');
    let mut out = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let (name, after) = part.split_once(';').unwrap_or_else(|| panic!("a bare & before {part:?}"));
        let found = NAMES.iter().find(|(known, _)| *known == name);
        out.push_str(found.unwrap_or_else(|| panic!("what is &{name};?")).1);
        out.push_str(after);
    }
    out
}
