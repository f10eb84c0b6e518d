//! Tables of lines that begin with an id.

use crate::error::{Checked, DataError, Result};
use crate::lines::LinesFile;
use crate::strings::Strings;
use std::collections::BTreeMap;
use std::path::Path;

/// A table that says which ids there are: each with a text.
pub(super) struct Table {
    file: LinesFile,
    /// Each id's place, and the line that gave it.
    places: BTreeMap<u64, (usize, usize)>,
    texts: Strings,
    /// The line of each place.
    lines: Vec<usize>,
}

impl Table {
    /// Reads a table whose rows keep what `text` takes of the rest of each line.
    pub(super) fn read(file: &Path, text: fn(&str) -> Checked<&str>) -> Result<Self> {
        let file = LinesFile::read(file)?;
        let (mut places, mut texts, mut lines) = (BTreeMap::new(), Strings::default(), Vec::new());
        for (number, line) in file.lines() {
            let (id, rest) = id_and_rest(line).map_err(|reason| file.error(number, reason))?;
            let rest = text(rest).map_err(|reason| file.error(number, reason))?;
            if let Some((_, before)) = places.insert(id, (lines.len(), number)) {
                return Err(file.error(number, format!("id {id} is that of line {before} already")));
            }
            texts.push(rest);
            lines.push(number);
        }
        if lines.is_empty() {
            return Err(DataError::file(file.file(), "the table is empty"));
        }
        Ok(Self { file, places, texts, lines })
    }

    /// The place of an id.
    pub(super) fn place(&self, id: u64) -> Option<usize> {
        self.places.get(&id).map(|(place, _)| *place)
    }

    /// The lines' numbers and texts, in the file's order.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines.iter().enumerate().map(|(place, line)| (*line, self.texts.get(place)))
    }

    /// The file.
    pub(super) fn file(&self) -> &Path {
        self.file.file()
    }

    /// An error that names a line of this table.
    pub(super) fn error(&self, line: usize, reason: impl Into<String>) -> DataError {
        self.file.error(line, reason)
    }

    /// Reads another table about the same ids; a value for each, in this table's order.
    pub(super) fn join<T: Clone>(
        &self,
        file: &Path,
        parse: impl Fn(&[&str]) -> Checked<T>,
    ) -> Result<Vec<T>> {
        let file = LinesFile::read(file)?;
        let own = self.file.file().file_name().unwrap_or_default().to_string_lossy();
        let mut values: Vec<Option<(T, usize)>> = vec![None; self.lines.len()];
        for (number, line) in file.lines() {
            let parsed = id_and_rest(line).and_then(|(id, rest)| {
                let place = self.place(id).ok_or_else(|| format!("id {id} is not in {own}"))?;
                let fields: Vec<&str> = rest.split_whitespace().collect();
                Ok((id, place, parse(&fields)?))
            });
            let (id, place, value) = parsed.map_err(|reason| file.error(number, reason))?;
            if let Some((_, before)) = values[place].replace((value, number)) {
                return Err(file.error(number, format!("id {id} is that of line {before} already")));
            }
        }
        let missing = values.iter().position(Option::is_none);
        if let Some(place) = missing {
            let (line, text) = (self.lines[place], self.texts.get(place));
            let reason = format!("there is no line for {text}, line {line} of {own}");
            return Err(DataError::file(file.file(), reason));
        }
        Ok(values.into_iter().flatten().map(|(value, _)| value).collect())
    }
}

/// The id that a line begins with, and what follows.
fn id_and_rest(line: &str) -> Checked<(u64, &str)> {
    let (id, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let number = id.parse().map_err(|_| format!("{id:?} is no id; a line begins with a whole number"))?;
    Ok((number, rest.trim_start()))
}

/// A class's name: one word.
pub(super) fn name(rest: &str) -> Checked<&str> {
    match rest.split_whitespace().count() {
        1 => Ok(rest),
        number => Err(format!("{} fields; a class has 2: its id and its name", number + 1)),
    }
}

/// An image's path: all that follows, so that it may have spaces. It stays within the folder of images.
pub(super) fn path(rest: &str) -> Checked<&str> {
    if rest.is_empty() {
        return Err("1 field; an image has 2: its id and its path".to_owned());
    }
    let inside = |part: std::path::Component<'_>| matches!(part, std::path::Component::Normal(_));
    if Path::new(rest).components().all(inside) {
        Ok(rest)
    } else {
        Err(format!("{rest:?} is no path within the folder of images"))
    }
}

/// One id.
pub(super) fn id(fields: &[&str]) -> Checked<u64> {
    match fields {
        [id] => id.parse().map_err(|_| format!("{id:?} is no id of a class")),
        _ => Err(format!("{} fields; there are 2: an image's id and its class", fields.len() + 1)),
    }
}

/// 0 or 1.
pub(super) fn flag(fields: &[&str]) -> Checked<bool> {
    match fields {
        ["0"] => Ok(false),
        ["1"] => Ok(true),
        [other] => Err(format!("{other:?} is neither 0 (for testing) nor 1 (for training)")),
        _ => Err(format!("{} fields; there are 2: an image's id and 0 or 1", fields.len() + 1)),
    }
}

/// A finite number.
pub(super) fn number(field: &str) -> Checked<f64> {
    let number = field.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| format!("{field:?} is no number"))
}
