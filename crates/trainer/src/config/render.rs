//! A configuration as TOML text that explains itself.

use std::fmt::Write as _;

use super::{Config, Origin, Resolved};

/// How much `phalanx config show` says about each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Every key with its meaning, its type and where its value came from.
    Full,
    /// Keys and values.
    Values,
}

impl Resolved {
    /// The configuration as a file that gives the same configuration again.
    pub fn to_toml(&self, detail: Detail) -> String {
        let mut text = String::new();
        if let Some(description) = &self.description {
            let _ = writeln!(text, "description = {}", toml::Value::String(description.clone()));
        }
        let keys = Config::keys();
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

/// The keys in which two configurations differ, with both values.
pub fn diff(a: &Config, b: &Config) -> Vec<(String, toml::Value, toml::Value)> {
    let values =
        Config::keys().into_iter().filter_map(|key| Some((a.get(&key.path)?, b.get(&key.path)?, key.path)));
    values.filter(|(a, b, _)| a != b).map(|(a, b, path)| (path, a, b)).collect()
}
