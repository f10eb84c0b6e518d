//! Keys that a network of a training with several has for itself, as `[critic.optim]`.

use toml::Value;

use super::keys::Config;
use super::section::Mismatch;

/// Returns true if a network can have its own value of a key: keys of the update of its parameters.
fn is_of_networks(key: &str) -> bool {
    key.starts_with("optim.")
        || key.starts_with("schedule.")
        || ["train.ema", "train.clip_norm", "train.loss_scale"].contains(&key)
}

impl Config {
    /// The configuration as the network called `name` has it: its own keys override those of all.
    #[must_use]
    pub fn for_network(&self, name: &str) -> Self {
        let mut own = Self { networks: Default::default(), ..self.clone() };
        for (key, value) in self.networks.get(name).into_iter().flatten() {
            // The key and its value were checked when they were set.
            let _ = own.set(key, value);
        }
        own
    }

    /// Sets a key `network.section.key`; `None` if there is no such key, or networks cannot have it.
    pub(super) fn set_of_network(&mut self, path: &str, value: &Value) -> Option<Result<(), Mismatch>> {
        let (network, key) = path.split_once('.')?;
        if !is_of_networks(key) || Self::sections().iter().any(|(section, _)| *section == network) {
            return None;
        }
        let mut probe = Self::default();
        if let Err(mismatch) = probe.set(key, value)? {
            return Some(Err(mismatch));
        }
        let value = probe.get(key)?;
        self.networks.entry(network.to_owned()).or_default().insert(key.to_owned(), value);
        Some(Ok(()))
    }

    /// The keys that networks have for themselves, as sections of a file: `critic.optim` with its keys and values.
    pub(super) fn network_sections(&self) -> Vec<(String, Vec<(&str, &Value)>)> {
        let mut sections: Vec<(String, Vec<(&str, &Value)>)> = Vec::new();
        for (network, keys) in &self.networks {
            for (path, value) in keys {
                let (section, key) = path.split_once('.').unwrap_or((path, ""));
                let section = format!("{network}.{section}");
                match sections.last_mut() {
                    Some((last, keys)) if *last == section => keys.push((key, value)),
                    _ => sections.push((section, vec![(key, value)])),
                }
            }
        }
        sections
    }
}
