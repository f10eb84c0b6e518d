//! HTML tables. Scripts make them sortable.

use std::fmt::Write as _;

use crate::html::escape;

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    /// Text.
    Text(String),
    /// A formatted number, and its value for sorting.
    Number(String, f64),
    /// HTML that is not escaped.
    Html(String),
    /// No value.
    Empty,
}

impl Cell {
    /// Creates a number cell; an empty cell for `None`.
    pub(super) fn number(value: Option<f64>, written: impl Fn(f64) -> String) -> Self {
        value.map_or(Self::Empty, |value| Self::Number(written(value), value))
    }
}

/// Renders a table with a header row. The first cell of each row is its header.
pub(super) fn table(caption: &str, head: &[String], rows: &[Vec<Cell>]) -> String {
    let mut html = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\"><table class=\"sortable\"><caption>{0}</caption><thead><tr>",
        escape(caption)
    );
    for name in head {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(name));
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        html.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let (open, close) = if at == 0 { ("<th scope=\"row\"", "</th>") } else { ("<td", "</td>") };
            let _ = match cell {
                Cell::Text(text) => write!(html, "{open}>{}{close}", escape(text)),
                Cell::Number(text, value) => {
                    write!(html, "{open} class=\"number\" data-value=\"{value}\">{}{close}", escape(text))
                }
                Cell::Html(marks) => write!(html, "{open}>{marks}{close}"),
                Cell::Empty => write!(html, "{open} class=\"none\">–{close}"),
            };
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div>");
    html
}
