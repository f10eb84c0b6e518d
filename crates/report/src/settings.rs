//! The configuration of a run as keys and texts. It may come from any version of the program.

use std::collections::{BTreeMap, BTreeSet};
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
        value => found.push((path.to_owned(), text(value))),
    }
}

/// Returns a value as text, without the quotes of a string.
fn text(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the value of a key.
pub(crate) fn get<'a>(settings: &'a Settings, key: &str) -> Option<&'a str> {
    settings.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
}

/// The default values of settings, by the kind of the model. The report itself knows no keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Defaults(BTreeMap<String, BTreeMap<String, String>>);

impl Defaults {
    /// Adds the default values of the keys of a kind of model.
    pub fn insert(&mut self, kind: &str, keys: impl IntoIterator<Item = (String, toml::Value)>) {
        let values = keys.into_iter().map(|(key, value)| (key, text(&value)));
        self.0.insert(kind.to_owned(), values.collect());
    }

    /// Returns true if a run has another value than the default for a key, or if the default is unknown.
    fn is_changed(&self, run: &Settings, key: &str, value: Option<&str>) -> bool {
        let of_kind = get(run, KIND).and_then(|kind| self.0.get(kind));
        key == KIND
            || value
                .is_some_and(|value| of_kind.and_then(|keys| keys.get(key)).is_none_or(|own| own != value))
    }
}

/// The key of the kind of the model.
const KIND: &str = "model.kind";

/// A key and its values over several runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SettingRow<'a> {
    /// The key.
    pub(crate) key: &'a str,
    /// The values, in the order of the runs; `None` for runs without this key.
    pub(crate) values: Vec<Option<&'a str>>,
    /// True if a run has another value than the default.
    pub(crate) is_changed: bool,
}

impl SettingRow<'_> {
    /// Returns true if the values differ.
    pub(crate) fn differs(&self) -> bool {
        self.values.windows(2).any(|pair| pair[0] != pair[1])
    }
}

/// Compares all keys of all runs. Keys that differ come first, then those with another value than the default.
pub(crate) fn compare<'a>(runs: &[&'a Settings], defaults: &Defaults) -> Vec<SettingRow<'a>> {
    let mut keys: Vec<&str> = Vec::new();
    let mut known = BTreeSet::new();
    for (key, _) in runs.iter().copied().flatten() {
        if known.insert(key.as_str()) {
            keys.push(key);
        }
    }
    let maps: Vec<BTreeMap<&str, &str>> = runs
        .iter()
        .map(|run| run.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect())
        .collect();
    let row = |key: &'a str| {
        let values: Vec<Option<&str>> = maps.iter().map(|map| map.get(key).copied()).collect();
        let mut of_runs = runs.iter().zip(&values);
        let is_changed = of_runs.any(|(run, value)| defaults.is_changed(run, key, *value));
        SettingRow { key, values, is_changed }
    };
    let mut rows: Vec<SettingRow<'_>> = keys.into_iter().map(row).collect();
    rows.sort_by_key(|row| (!row.differs(), !row.is_changed));
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
    fn changed_values_come_before_defaults() {
        let settings = |pairs: &[(&str, &str)]| -> Settings {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let run = settings(&[("a.b", "1"), ("model.kind", "mlp"), ("optim.lr", "0.5"), ("z.of_old", "x")]);
        let mut defaults = Defaults::default();
        let value = |number: f64| toml::Value::Float(number);
        let keys = [("a.b", toml::Value::Integer(1)), ("model.kind", "mlp".into()), ("optim.lr", value(0.1))];
        defaults.insert("mlp", keys.map(|(key, value)| (key.to_owned(), value)));
        let changed = |defaults: &Defaults| -> Vec<String> {
            let rows = compare(&[&run], defaults);
            rows.iter().take_while(|row| row.is_changed).map(|row| row.key.to_owned()).collect()
        };
        assert_eq!(changed(&defaults), ["model.kind", "optim.lr", "z.of_old"]);
        assert_eq!(changed(&Defaults::default()).len(), 4, "without defaults all are shown");
    }

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
        let rows = compare(&[&a, &b], &Defaults::default());
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
