//! Tables whose lines begin with an id.

use crate::error::{DataError, ParseResult, Result};
use crate::lines::LinesFile;
use crate::strings::Strings;
use std::collections::BTreeMap;
use std::path::Path;

/// The table that defines the ids, with a text for each.
pub(super) struct Table {
    file: LinesFile,
    /// The position of each id and its line number.
    places: BTreeMap<u64, (usize, usize)>,
    texts: Strings,
    /// The line number of each position.
    lines: Vec<usize>,
}

impl Table {
    /// Reads a table. `text` extracts the text of a row from the line after the id.
    pub(super) fn read(file: &Path, text: fn(&str) -> ParseResult<&str>) -> Result<Self> {
        let file = LinesFile::read(file)?;
        let (mut places, mut texts, mut lines) = (BTreeMap::new(), Strings::default(), Vec::new());
        for (number, line) in file.lines() {
            let (id, rest) = id_and_rest(line).map_err(|reason| file.error(number, reason))?;
            let rest = text(rest).map_err(|reason| file.error(number, reason))?;
            if let Some((_, before)) = places.insert(id, (lines.len(), number)) {
                return Err(file.error(number, format!("id {id} is already on line {before}")));
            }
            texts.push(rest);
            lines.push(number);
        }
        if lines.is_empty() {
            return Err(DataError::file(file.file(), "the table is empty"));
        }
        Ok(Self { file, places, texts, lines })
    }

    /// Returns the position of an id.
    pub(super) fn position(&self, id: u64) -> Option<usize> {
        self.places.get(&id).map(|(place, _)| *place)
    }

    /// Returns the line numbers and texts, in the order of the file.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines.iter().enumerate().map(|(place, line)| (*line, self.texts.get(place)))
    }

    /// Returns the path of the file.
    pub(super) fn file(&self) -> &Path {
        self.file.file()
    }

    /// Makes an error that names a line of this table.
    pub(super) fn error(&self, line: usize, reason: impl Into<String>) -> DataError {
        self.file.error(line, reason)
    }

    /// Reads another table of the same ids. Returns one value for each id, in the order of this table.
    pub(super) fn join<T: Clone>(
        &self,
        file: &Path,
        parse: impl Fn(&[&str]) -> ParseResult<T>,
    ) -> Result<Vec<T>> {
        let file = LinesFile::read(file)?;
        let own = self.file.file().file_name().unwrap_or_default().to_string_lossy();
        let mut values: Vec<Option<(T, usize)>> = vec![None; self.lines.len()];
        for (number, line) in file.lines() {
            let parsed = id_and_rest(line).and_then(|(id, rest)| {
                let place = self.position(id).ok_or_else(|| format!("id {id} is not in {own}"))?;
                let fields: Vec<&str> = rest.split_whitespace().collect();
                Ok((id, place, parse(&fields)?))
            });
            let (id, place, value) = parsed.map_err(|reason| file.error(number, reason))?;
            if let Some((_, before)) = values[place].replace((value, number)) {
                return Err(file.error(number, format!("id {id} is already on line {before}")));
            }
        }
        let missing = values.iter().position(Option::is_none);
        if let Some(place) = missing {
            let (line, text) = (self.lines[place], self.texts.get(place));
            let reason = format!("no line for {text}, line {line} of {own}");
            return Err(DataError::file(file.file(), reason));
        }
        Ok(values.into_iter().flatten().map(|(value, _)| value).collect())
    }
}

/// Splits a line into its id and the rest.
fn id_and_rest(line: &str) -> ParseResult<(u64, &str)> {
    let (id, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let number = id.parse().map_err(|_| format!("{id:?} is not an id; a line begins with a whole number"))?;
    Ok((number, rest.trim_start()))
}

/// Parses the name of a class: one word.
pub(super) fn name(rest: &str) -> ParseResult<&str> {
    match rest.split_whitespace().count() {
        1 => Ok(rest),
        number => Err(format!("{} fields; a class has 2: its id and its name", number + 1)),
    }
}

/// Parses the path of an image, which may contain spaces and stays within the image folder.
pub(super) fn path(rest: &str) -> ParseResult<&str> {
    if rest.is_empty() {
        return Err("1 field; an image has 2: its id and its path".to_owned());
    }
    let rest = rest.trim_start_matches("./");
    let inside = |part: std::path::Component<'_>| matches!(part, std::path::Component::Normal(_));
    if Path::new(rest).components().all(inside) {
        Ok(rest)
    } else {
        Err(format!("{rest:?} is not a path within the image folder"))
    }
}

/// Parses one id.
pub(super) fn id(fields: &[&str]) -> ParseResult<u64> {
    match fields {
        [id] => id.parse().map_err(|_| format!("{id:?} is not the id of a class")),
        _ => Err(format!("{} fields; there are 2: an image's id and its class", fields.len() + 1)),
    }
}

/// Parses 0 or 1.
pub(super) fn flag(fields: &[&str]) -> ParseResult<bool> {
    match fields {
        ["0"] => Ok(false),
        ["1"] => Ok(true),
        [other] => Err(format!("{other:?} is neither 0 (for testing) nor 1 (for training)")),
        _ => Err(format!("{} fields; there are 2: an image's id and 0 or 1", fields.len() + 1)),
    }
}

/// Parses a finite number.
pub(super) fn number(field: &str) -> ParseResult<f64> {
    let number = field.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| format!("{field:?} is not a number"))
}
