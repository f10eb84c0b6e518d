//! The settings of a run that experiment trackers list.

use serde_json::Value;

use phalanx_config::Config;

/// Sections whose keys change how a run is watched or where it runs, but not what it learns.
const OTHER_SECTIONS: [&str; 10] =
    ["comm", "elastic", "chaos", "checkpoint", "log", "watch", "sample", "quality", "eval", "parallel"];

/// Returns the hyper-parameters of a run: the keys of all other sections with their values.
pub(super) fn hyperparameters(config: &Config) -> Vec<(String, Value)> {
    let is_one =
        |path: &str| path.split_once('.').is_some_and(|(section, _)| !OTHER_SECTIONS.contains(&section));
    let value = |path: String| {
        let value = config.get(&path)?;
        Some((path, serde_json::to_value(value).ok()?))
    };
    let paths = config.keys().into_iter().map(|key| key.path).filter(|path| is_one(path));
    paths.filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_learning_are_hyperparameters() {
        let all = hyperparameters(&Config::default());
        let value = |name: &str| all.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        assert!(
            value("optim.lr").is_some_and(Value::is_number)
                && value("schedule.kind").is_some_and(Value::is_string)
        );
        assert!(value("log.every").is_none() && value("eval.every").is_none());
    }
}
