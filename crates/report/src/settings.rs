//! The configuration of a run as keys and texts. It may come from any version of the program.

use std::path::Path;

use serde_json::Value;

/// Keys `section.key` with their values as texts, in alphabetical order.
pub(crate) type Settings = Vec<(String, String)>;

/// Reads `config.toml`.
///
/// # Errors
/// A message that begins with the name of the file.
pub(crate) fn read_settings(path: &Path) -> Result<Settings, String> {
    let text = phalanx_run::Links::Refuse
        .read_text(path)
        .map_err(|error| format!("config.toml cannot be read: {error}"))?;
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| format!("config.toml: {}", error.message()))?;
    let mut settings = Settings::new();
    flatten("", &toml::Value::Table(table), &mut settings);
    Ok(settings)
}

fn flatten(path: &str, value: &toml::Value, found: &mut Settings) {
    match value {
        toml::Value::Table(table) => {
            for (name, value) in table {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, found);
            }
        }
        toml::Value::String(text) => found.push((path.to_owned(), text.clone())),
        other => found.push((path.to_owned(), other.to_string())),
    }
}

/// Returns the value of a key.
pub(crate) fn get<'a>(settings: &'a Settings, key: &str) -> Option<&'a str> {
    settings.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
}

/// A key and its values over several runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SettingRow<'a> {
    /// The key.
    pub(crate) key: &'a str,
    /// The values, in the order of the runs; `None` for runs without this key.
    pub(crate) values: Vec<Option<&'a str>>,
}

impl SettingRow<'_> {
    /// Returns true if the values differ.
    pub(crate) fn differs(&self) -> bool {
        self.values.windows(2).any(|pair| pair[0] != pair[1])
    }
}

/// Compares all keys of all runs. Keys that differ come first.
pub(crate) fn compare<'a>(runs: &[&'a Settings]) -> Vec<SettingRow<'a>> {
    let mut keys: Vec<&str> = Vec::new();
    let mut known = std::collections::BTreeSet::new();
    for (key, _) in runs.iter().copied().flatten() {
        if known.insert(key.as_str()) {
            keys.push(key);
        }
    }
    let maps: Vec<std::collections::BTreeMap<&str, &str>> = runs
        .iter()
        .map(|run| run.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect())
        .collect();
    let row =
        |key: &'a str| SettingRow { key, values: maps.iter().map(|map| map.get(key).copied()).collect() };
    let mut rows: Vec<SettingRow<'_>> = keys.into_iter().map(row).collect();
    rows.sort_by_key(|row| !row.differs());
    rows
}

/// Returns a value of a JSON document by its path, `a.b.c`.
pub(crate) fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, name| value.get(name)).filter(|value| !value.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_flat_and_differences_come_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.toml");
        let text = "description = \"x\"\n[train]\nranks = 2\n[optim]\nlr = 1e-3\nbetas = [0.9, 0.99]\n[critic.optim]\nlr = 2.0\n";
        std::fs::write(&path, text).expect("writes");
        let a = read_settings(&path).expect("reads");
        assert_eq!(get(&a, "optim.betas"), Some("[0.9, 0.99]"));
        assert_eq!(get(&a, "critic.optim.lr"), Some("2.0"));
        std::fs::write(
            &path,
            text.replace("ranks = 2", "ranks = 3").replace("[critic.optim]\nlr = 2.0\n", ""),
        )
        .expect("writes");
        let b = read_settings(&path).expect("reads");
        let rows = compare(&[&a, &b]);
        let different: Vec<_> =
            rows.iter().filter(|row| row.differs()).map(|row| (row.key, row.values.clone())).collect();
        assert_eq!(
            different,
            [("critic.optim.lr", vec![Some("2.0"), None]), ("train.ranks", vec![Some("2"), Some("3")])]
        );
        assert_eq!((rows.len(), rows[0].key), (5, "critic.optim.lr"));
        std::fs::write(&path, "[train").expect("writes");
        assert!(read_settings(&path).expect_err("damaged").starts_with("config.toml: "));
    }
}
