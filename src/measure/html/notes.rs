//! Why figures are not what they seem to be: a badge beside the figure, and the reason in words below.

use std::fmt::Write;

use super::text::Escaped;
use crate::measure::Mark;

/// The marks of some figures; each reason once, with the figures that it is about.
pub(super) struct Notes<'a> {
    id: &'a str,
    all: Vec<(&'a Mark, Vec<String>)>,
}

impl<'a> Notes<'a> {
    /// The notes of the section `id`, from what each figure is called and its marks.
    pub(super) fn of(id: &'a str, figures: impl Iterator<Item = (String, &'a [Mark])>) -> Self {
        let mut all: Vec<(&Mark, Vec<String>)> = Vec::new();
        for (name, marks) in figures {
            for mark in marks {
                match all.iter_mut().find(|(known, _)| *known == mark) {
                    Some((_, names)) if names.contains(&name) => {}
                    Some((_, names)) => names.push(name.clone()),
                    None => all.push((mark, vec![name.clone()])),
                }
            }
        }
        Notes { id, all }
    }

    /// The badges of one figure, which lead to their reasons.
    pub(super) fn badges(&self, marks: &[Mark]) -> String {
        let mut out = String::new();
        for mark in marks {
            if let Some(at) = self.all.iter().position(|(known, _)| *known == mark) {
                let (id, kind) = (self.id, Escaped(&mark.kind));
                let _ = write!(out, "<a class=\"badge\" href=\"#{id}-note-{at}\">{kind}</a> ");
            }
        }
        if out.is_empty() { "<span class=\"none\">none</span>".into() } else { out.trim_end().into() }
    }

    /// The reasons, as a list.
    pub(super) fn write(&self, out: &mut String) {
        if self.all.is_empty() {
            return;
        }
        out.push_str("<ul class=\"notes\" aria-label=\"Why figures are not what they seem to be\">\n");
        for (at, (mark, names)) in self.all.iter().enumerate() {
            let _ = writeln!(
                out,
                "<li id=\"{}-note-{at}\"><span class=\"badge\">{}</span> <strong>{}</strong>: {}</li>",
                self.id,
                Escaped(&mark.kind),
                Escaped(&names.join("; ")),
                Escaped(&mark.reason)
            );
        }
        out.push_str("</ul>\n");
    }
}

/// Badges with their reasons right behind them, where there is room for that.
pub(super) fn with_reasons(marks: &[Mark]) -> String {
    let one = |mark: &Mark| {
        format!("<span class=\"badge\">{}</span> {}", Escaped(&mark.kind), Escaped(&mark.reason))
    };
    if marks.is_empty() {
        return "<span class=\"none\">none</span>".into();
    }
    marks.iter().map(one).collect::<Vec<_>>().join("<br>")
}
