//! Text files of lines, with or without a byte order mark, with the line ends of any system.

use crate::encoding::without_mark;
use crate::error::{DataError, ParseResult, Result};
use std::path::{Path, PathBuf};

/// The lines of a UTF-8 file. A byte order mark, Windows line ends, surrounding white space and empty lines are
/// ignored.
#[derive(Debug)]
pub(crate) struct LinesFile {
    file: PathBuf,
    text: String,
}

impl LinesFile {
    /// Reads a file.
    ///
    /// # Errors
    /// If the file cannot be read or is not UTF-8; the error names the line.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let mut bytes = crate::Links::Follow.read(file).map_err(|error| DataError::io(file, error))?;
        let line_error = |line, reason: &str| DataError::Line {
            file: file.to_path_buf(),
            line,
            reason: reason.to_owned(),
        };
        let mark = bytes.len() - without_mark(&bytes).map_err(|reason| line_error(1, &reason))?.len();
        bytes.drain(..mark);
        let text = String::from_utf8(bytes).map_err(|error| {
            let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            line_error(line, "not UTF-8; save the file as UTF-8")
        })?;
        Ok(Self { file: file.to_path_buf(), text })
    }

    /// Returns the lines that are not empty, with their numbers from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(number, line)| (number + 1, line.trim()))
            .filter(|(_, line)| !line.is_empty())
    }

    /// Makes an error that names a line.
    pub(crate) fn error(&self, line: usize, reason: impl Into<String>) -> DataError {
        DataError::Line { file: self.file.clone(), line, reason: reason.into() }
    }

    /// Returns the path of the file.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }
}

/// Splits a line of a CSV file at its commas. A field may be in double quotes, in which two stand for one.
///
/// # Errors
/// If a quote is not closed, or text follows it.
pub(crate) fn csv_fields(line: &str) -> ParseResult<Vec<String>> {
    let (mut fields, mut rest) = (Vec::new(), line);
    loop {
        let Some(quoted) = rest.trim_start().strip_prefix('"') else {
            let (field, after) =
                rest.split_once(',').map_or((rest, None), |(field, after)| (field, Some(after)));
            fields.push(field.trim().to_owned());
            let Some(after) = after else { return Ok(fields) };
            rest = after;
            continue;
        };
        let (field, after) = quoted_field(quoted)?;
        fields.push(field);
        match after.trim_start().strip_prefix(',') {
            Some(after) => rest = after,
            None if after.trim().is_empty() => return Ok(fields),
            None => return Err(format!("{after:?} follows a quoted field; expected a comma")),
        }
    }
}

/// Reads a field up to its closing quote. Returns it with the text behind the quote.
fn quoted_field(text: &str) -> ParseResult<(String, &str)> {
    let (mut field, mut rest) = (String::new(), text);
    loop {
        let (part, after) = rest.split_once('"').ok_or("a double quote is not closed on this line")?;
        field.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None => return Ok((field, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Result<Vec<(usize, String)>> {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("list.txt");
        std::fs::write(&file, bytes).unwrap();
        let read = LinesFile::read(&file)?;
        Ok(read.lines().map(|(number, line)| (number, line.to_owned())).collect())
    }

    #[test]
    fn lines_of_any_system_are_lines() {
        let expected = vec![(1, "one 1".to_owned()), (3, "two".to_owned())];
        assert_eq!(lines(b"one 1\n\ntwo").unwrap(), expected);
        assert_eq!(lines(b"\xef\xbb\xbfone 1 \r\n\r\n two\r\n").unwrap(), expected);
        assert_eq!(lines(b"").unwrap(), []);
    }

    #[test]
    fn other_encodings_are_errors_that_name_the_line() {
        let error = lines(b"fine\nna\xefve\n").unwrap_err();
        assert!(matches!(error, DataError::Line { line: 2, .. }), "{error}");
        let error = lines(b"\xff\xfeo\0").unwrap_err().to_string();
        assert!(error.contains("UTF-16"), "{error}");
    }

    #[test]
    fn csv_fields_may_be_quoted() {
        let fields = |line: &str| csv_fields(line).map(|fields| fields.join("|"));
        assert_eq!(fields("a,b c, d").as_deref(), Ok("a|b c|d"));
        assert_eq!(fields("\"a\",\"b, \"\"c\"\"\" ,").as_deref(), Ok("a|b, \"c\"|"));
        assert!(fields("\"a,b").is_err() && fields("\"a\"b,c").is_err());
    }
}
