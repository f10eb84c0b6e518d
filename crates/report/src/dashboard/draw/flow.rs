//! Texts in rows: parts that do not fit begin the next row, so that no border cuts them.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// A part of a row that stays together.
pub(super) type Part = Vec<Span<'static>>;

/// Returns a part of one text.
pub(super) fn part(text: impl Into<String>, style: Style) -> Part {
    vec![Span::styled(text.into(), style)]
}

fn part_width(part: &Part) -> usize {
    part.iter().map(Span::width).sum()
}

/// Places parts in rows of a width, with two spaces between them. Rows after the first begin with `indent` spaces. A part
/// that is wider than a row is divided.
pub(super) fn flow(parts: Vec<Part>, width: u16, indent: usize) -> Vec<Line<'static>> {
    place(parts, width, indent, 2)
}

/// Places the words of a text after a first part in rows of a width, as [`flow`] does.
pub(super) fn words(first: Part, text: &str, style: Style, width: u16) -> Vec<Line<'static>> {
    let indent = part_width(&first);
    let mut words = text.split(' ');
    let mut begin = first;
    begin.extend(words.next().map(|word| Span::styled(word.to_owned(), style)));
    let rest = words.map(|word| part(word, style));
    place(std::iter::once(begin).chain(rest).collect(), width, indent, 1)
}

fn place(parts: Vec<Part>, width: u16, indent: usize, gap: usize) -> Vec<Line<'static>> {
    let width = usize::from(width).max(1);
    let indent = if indent < width { indent } else { 0 };
    let mut rows: Vec<Line<'static>> = vec![Line::default()];
    let mut used = 0;
    for part in parts {
        let begun = if rows.len() > 1 { used > indent } else { used > 0 };
        if begun && used + gap + part_width(&part) > width {
            rows.push(Line::from(" ".repeat(indent)));
            used = indent;
        } else if begun {
            push(&mut rows, Span::raw(" ".repeat(gap)));
            used += gap;
        }
        for span in part {
            for word in span.content.split_inclusive(' ') {
                used = place_word(&mut rows, word, span.style, (used, width, indent));
            }
        }
    }
    rows
}

/// Places a word of a part that is wider than a row, or of one that fits. Returns the used width of the last row.
fn place_word(
    rows: &mut Vec<Line<'static>>,
    word: &str,
    style: Style,
    (mut used, width, indent): (usize, usize, usize),
) -> usize {
    let wide = Span::raw(word.trim_end()).width();
    if used + wide > width && used > indent && wide <= width - indent {
        rows.push(Line::from(" ".repeat(indent)));
        used = indent;
    }
    let mut rest = word.chars().peekable();
    while rest.peek().is_some_and(|letter| used < width || *letter != ' ') {
        if used >= width {
            rows.push(Line::from(" ".repeat(indent)));
            used = indent;
        }
        let mut text = String::new();
        while let Some(letter) =
            rest.next_if(|letter| used + letter_width(*letter) <= width || text.is_empty())
        {
            used += letter_width(letter);
            text.push(letter);
        }
        push(rows, Span::styled(text, style));
    }
    used
}

fn letter_width(letter: char) -> usize {
    Span::raw(letter.to_string()).width()
}

fn push(rows: &mut [Line<'static>], span: Span<'static>) {
    if let Some(row) = rows.last_mut() {
        row.push_span(span);
    }
}

/// Returns the first of some versions of a text, the longest first, that fits a width. If none fits, the last one is
/// shortened and ends with `…`.
pub(super) fn fitting(versions: &[String], width: usize) -> String {
    let fits = |text: &&String| Span::raw(text.as_str()).width() <= width;
    versions
        .iter()
        .find(fits)
        .cloned()
        .unwrap_or_else(|| shortened(versions.last().map_or("", String::as_str), width))
}

/// Returns a text of at most `width` columns. A shortened one ends with `…`.
pub(super) fn shortened(text: &str, width: usize) -> String {
    if Span::raw(text).width() <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for letter in text.chars() {
        let longer = format!("{short}{letter}");
        if Span::raw(longer.as_str()).width() + 1 > width {
            break;
        }
        short = longer;
    }
    if width > 0 {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(parts: &[&str], width: u16, indent: usize) -> Vec<String> {
        let parts = parts.iter().map(|text| part(*text, Style::new())).collect();
        flow(parts, width, indent).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn parts_that_do_not_fit_begin_a_row() {
        assert_eq!(
            rows(&["speed", "12 samples/s", "4 steps/s"], 22, 7),
            ["speed  12 samples/s", "       4 steps/s"]
        );
        assert_eq!(rows(&["abcdefgh", "ij"], 5, 2), ["abcde", "  fgh", "  ij"]);
        assert_eq!(rows(&["test", "long_name 0.5"], 12, 2), ["test", "  long_name ", "  0.5"]);
        assert_eq!(rows(&[], 5, 0), [""]);
        assert_eq!(rows(&["ab"], 0, 9), ["a", "b"]);
        let lines = words(part("1 ", Style::new()), "step 3  loss 0.5", Style::new(), 12);
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        assert_eq!(lines, ["1 step 3 ", "  loss 0.5"]);
    }

    #[test]
    fn the_longest_version_that_fits_is_taken() {
        let versions = ["a long text", "a text", "text"].map(str::to_owned);
        assert_eq!(
            [fitting(&versions, 20), fitting(&versions, 7), fitting(&versions, 3)],
            ["a long text", "a text", "te…"]
        );
        assert_eq!((shortened("ab", 0), shortened("犬犬", 3)), (String::new(), "犬…".to_owned()));
    }
}
