//! What torchrun's agent tells the ranks that it starts, and starts again.
//!
//! The agent ends its ranks when one of them fails, or when hosts come (`--nnodes 1:4`), and starts the same command anew. It counts
//! what it does after failures (`TORCHELASTIC_RESTART_COUNT`), each agent for itself, and does not count what it does when hosts come;
//! so a run's folder keeps the name of the launch that it was begun in (`--rdzv-id`), too.

use std::path::{Path, PathBuf};

/// The name that a launch has which was given none.
const UNNAMED: &str = "none";

/// A launch by torchrun, as a rank sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torchrun {
    /// The launch's name: `--rdzv-id`, or one that torchrun has made up; nothing where it has none.
    name: Option<String>,
    /// How often this host's agent has started its ranks again after a failure.
    restarts: u64,
    /// How often it may.
    most: u64,
}

impl Torchrun {
    /// What the variables say that `get` looks up; `None` if no agent has set them.
    pub fn of(get: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let name = get("TORCHELASTIC_RUN_ID")?;
        let number = |name: &str| get(name).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Some(Self {
            name: Some(name).filter(|name| !name.is_empty() && name != UNNAMED),
            restarts: number("TORCHELASTIC_RESTART_COUNT"),
            most: number("TORCHELASTIC_MAX_RESTARTS"),
        })
    }

    /// Whether the agent may start its ranks again, or has.
    pub fn restarts(&self) -> bool {
        self.most > 0 || self.restarts > 0
    }

    /// Whether the run in this folder is one that this launch has begun, and goes on with.
    pub fn has_begun(&self, run: &Path) -> bool {
        let kept = || std::fs::read_to_string(marker(run)).ok();
        run.join("config.toml").is_file()
            && (self.restarts > 0 || self.name.is_some() && kept().as_ref() == self.name.as_ref())
    }

    /// Keeps the launch's name with the run that it begins.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn begin(&self, run: &Path) -> std::io::Result<()> {
        match &self.name {
            Some(name) => std::fs::write(marker(run), name),
            None => Ok(()),
        }
    }
}

/// Where the name is kept.
fn marker(run: &Path) -> PathBuf {
    run.join("logs").join("torchrun")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(name: &str, restarts: &str) -> Torchrun {
        let get = |variable: &str| match variable {
            "TORCHELASTIC_RUN_ID" => Some(name.to_owned()),
            "TORCHELASTIC_RESTART_COUNT" => Some(restarts.to_owned()),
            _ => None,
        };
        Torchrun::of(&get).expect("torchrun")
    }

    #[test]
    fn a_launch_goes_on_with_what_it_has_begun_and_with_nothing_else() {
        let place = tempfile::tempdir().expect("a folder");
        let run = place.path();
        std::fs::create_dir(run.join("logs")).expect("creates");
        assert!(!launch("a", "1").has_begun(run), "there is no run");
        launch("a", "0").begin(run).expect("writes");
        std::fs::write(run.join("config.toml"), "").expect("writes");
        for (name, restarts, expected) in
            [("a", "0", true), ("b", "0", false), ("none", "0", false), ("none", "1", true), ("b", "2", true)]
        {
            assert_eq!(launch(name, restarts).has_begun(run), expected, "{name} {restarts}");
        }
        // Launches without names are all alike.
        launch("none", "0").begin(run).expect("nothing to write");
        assert!(!launch("none", "0").has_begun(run));
        assert_eq!(Torchrun::of(&|_| None), None);
    }
}
