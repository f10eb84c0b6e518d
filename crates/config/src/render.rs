//! A configuration as TOML text that explains itself.

use std::fmt::Write as _;
use std::path::Path;

use phalanx_run::{RunError, write_aside};

use super::{Config, Origin, Resolved};

/// The detail of `phalanx config show` for each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Every key with its meaning, its type and where its value came from.
    Full,
    /// Keys and values.
    Values,
}

impl Resolved {
    /// Writes the values into a file, which is replaced as a whole.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), RunError> {
        write_aside(path, self.to_toml(Detail::Values).trim_start().as_bytes())
            .map_err(RunError::io("write", path))
    }

    /// The configuration as a file that gives the same configuration again.
    pub fn to_toml(&self, detail: Detail) -> String {
        let mut text = String::new();
        if let Some(description) = &self.description {
            let _ = writeln!(text, "description = {}", toml::Value::String(description.clone()));
        }
        let keys = self.catalogue().keys(&self.config);
        for (section, about) in Config::sections() {
            let _ = match detail {
                Detail::Full => write!(text, "\n# {about}\n[{section}]\n"),
                Detail::Values => write!(text, "\n[{section}]\n"),
            };
            for key in keys.iter().filter(|key| key.path.split('.').next() == Some(section)) {
                let name = &key.path[section.len() + 1..];
                // Every key of the table is a key of the struct, so the default is never taken here.
                let value = self.config.get(&key.path).unwrap_or_else(|| key.default.clone());
                if detail == Detail::Full {
                    let origin = match self.origin(&key.path) {
                        Origin::Default => String::new(),
                        origin => format!("; default {}; set by {origin}", key.default),
                    };
                    let _ = write!(text, "\n# {}\n# ({}{origin})\n", key.meaning, key.kind);
                }
                let _ = writeln!(text, "{name} = {value}");
            }
        }
        for (section, keys) in self.config.network_sections() {
            let _ = writeln!(text, "\n[{section}]");
            for (name, value) in keys {
                let _ = writeln!(text, "{name} = {value}");
            }
        }
        text
    }
}

/// The keys in which two configurations differ, with both values; `None` where a task has no such key.
pub fn diff(a: &Config, b: &Config) -> Vec<(String, Option<toml::Value>, Option<toml::Value>)> {
    let mut paths: Vec<String> = a.keys().into_iter().map(|key| key.path).collect();
    for key in b.keys() {
        if !paths.contains(&key.path) {
            paths.push(key.path);
        }
    }
    let values = paths.into_iter().map(|path| (a.get(&path), b.get(&path), path));
    values.filter(|(a, b, _)| a != b).map(|(a, b, path)| (path, a, b)).collect()
}
