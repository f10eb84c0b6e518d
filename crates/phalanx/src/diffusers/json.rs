//! A reader of JSON configuration files with errors that name file and key.

use std::path::{Path, PathBuf};

use phalanx_data::encoding::parse_json;
use serde_json::Value;

use super::DiffusersError;

/// The largest accepted size. Vocabularies have a few hundred thousand tokens.
const LARGEST: usize = 1 << 20;

/// The largest accepted number of layers, blocks or heads.
const MOST: usize = 1 << 10;

/// A JSON file with its path for error messages.
#[derive(Debug)]
pub(super) struct Json {
    pub(super) path: PathBuf,
    value: Value,
}

impl Json {
    pub(super) fn read(path: &Path) -> Result<Self, DiffusersError> {
        if !path.is_file() {
            let (folder, wanted) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
            let wanted = wanted.to_string_lossy().into_owned();
            return Err(DiffusersError::Missing { folder: folder.to_owned(), wanted });
        }
        let failed = |source| DiffusersError::Read { path: path.to_owned(), source };
        let bytes = std::fs::read(path).map_err(failed)?;
        let value: Value = parse_json(&bytes).map_err(|error| DiffusersError::unfit(path, error))?;
        if !value.is_object() {
            return Err(DiffusersError::unfit(path, "it is no JSON object"));
        }
        Ok(Self { path: path.to_owned(), value })
    }

    fn wrong(&self, key: &str, expected: &str) -> DiffusersError {
        let found = match &self.value[key] {
            Value::Null => "is missing".to_owned(),
            other => format!("is {other}"),
        };
        DiffusersError::unfit(&self.path, format!("`{key}` {found}; expected {expected}"))
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.value.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn size(&self, key: &str) -> Result<usize, DiffusersError> {
        let expected = format!("an integer from 1 to {LARGEST}");
        self.size_of(&self.value[key]).ok_or_else(|| self.wrong(key, &expected))
    }

    /// Reads the number of repeated parts with separate parameters.
    pub(super) fn count(&self, key: &str) -> Result<usize, DiffusersError> {
        let count = self.size(key)?;
        if count <= MOST { Ok(count) } else { Err(self.wrong(key, &format!("an integer from 1 to {MOST}"))) }
    }

    pub(super) fn count_or(&self, key: &str, default: usize) -> Result<usize, DiffusersError> {
        if self.get(key).is_some() { self.count(key) } else { Ok(default) }
    }

    fn size_of(&self, value: &Value) -> Option<usize> {
        value.as_u64().and_then(|size| usize::try_from(size).ok()).filter(|size| (1..=LARGEST).contains(size))
    }

    pub(super) fn size_or(&self, key: &str, default: usize) -> Result<usize, DiffusersError> {
        if self.get(key).is_some() { self.size(key) } else { Ok(default) }
    }

    pub(super) fn sizes(&self, key: &str) -> Result<Vec<usize>, DiffusersError> {
        let list = self.value[key].as_array();
        let sizes = list.and_then(|list| list.iter().map(|value| self.size_of(value)).collect());
        let sizes = sizes.filter(|sizes: &Vec<usize>| sizes.len() <= MOST);
        sizes
            .ok_or_else(|| self.wrong(key, &format!("a list of at most {MOST} integers from 1 to {LARGEST}")))
    }

    pub(super) fn words(&self, key: &str) -> Result<Vec<String>, DiffusersError> {
        let list = self.value[key].as_array();
        let words = list
            .and_then(|list| list.iter().map(|word| Some(word.as_str()?.to_owned())).collect::<Option<_>>());
        words.ok_or_else(|| self.wrong(key, "a list of names"))
    }

    pub(super) fn number_or(&self, key: &str, default: f64) -> Result<f64, DiffusersError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| self.wrong(key, "a number")),
        }
    }

    pub(super) fn flag_or(&self, key: &str, default: bool) -> Result<bool, DiffusersError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(key, "true or false")),
        }
    }

    pub(super) fn word_or(&self, key: &str, default: &str) -> Result<String, DiffusersError> {
        match self.get(key) {
            None => Ok(default.to_owned()),
            Some(value) => value.as_str().map(str::to_owned).ok_or_else(|| self.wrong(key, "a name")),
        }
    }

    /// Requires that keys, if set, have the only supported value.
    pub(super) fn only(&self, allowed: &[(&str, Value)]) -> Result<(), DiffusersError> {
        for (key, value) in allowed {
            let found = self.get(key);
            // 1 and 1.0 are the same number.
            let same = found.is_none_or(|found| {
                found == value || (found.is_number() && found.as_f64() == value.as_f64())
            });
            if !same {
                return Err(self.wrong(key, &format!("{value}: nothing else is computed here")));
            }
        }
        Ok(())
    }
}
