//! The variables that torchrun's agent sets for the ranks that it starts and restarts.
//!
//! The agent ends its ranks when one of them fails, or when hosts come (`--nnodes 1:4`), and starts the same command anew. Its count of
//! restarts (`TORCHELASTIC_RESTART_COUNT`) says too little: it does not count what it does when hosts come, and does count ranks that
//! were refused a folder. So a run's folder keeps which launch it was begun in.

use std::path::{Path, PathBuf};

use phalanx_collectives::environment::{TorchrunAgent, Variables};
use phalanx_run::host_name;

/// The name that a launch has which was given none.
const UNNAMED: &str = "none";

/// A launch by torchrun, as a rank sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torchrun {
    /// The identity of the launch: its name (`--rdzv-id`, or one that torchrun has made up), or else the agent's
    /// process.
    launch: String,
    /// The number of restarts that the agent may make after failures.
    most: u64,
}

impl Torchrun {
    /// Reads the variables that `get` looks up, for a rank whose parent is the agent; `None` if no agent has set them.
    pub fn of(get: Variables<'_>) -> Option<Self> {
        let TorchrunAgent { run_id, max_restarts } = TorchrunAgent::from_variables(get)?;
        let launch = match run_id.as_str() {
            "" | UNNAMED => agent(),
            name => format!("launch {name}"),
        };
        Some(Self { launch, most: max_restarts })
    }

    /// Returns true if the agent may restart its ranks.
    pub fn restarts(&self) -> bool {
        self.most > 0
    }

    /// Returns true if this launch has begun the run in this folder, and continues it.
    pub fn has_begun(&self, run: &Path) -> bool {
        let kept = std::fs::read_to_string(marker(run));
        run.join("config.toml").is_file() && kept.is_ok_and(|kept| kept == self.launch)
    }

    /// Keeps with a run by which launch it was begun.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn begin(&self, run: &Path) -> std::io::Result<()> {
        std::fs::write(marker(run), &self.launch)
    }
}

/// The process that has started this one. Where a launch has no name its hosts do not come and go, so that rank 0 keeps its agent.
fn agent() -> String {
    #[cfg(unix)]
    let parent = std::os::unix::process::parent_id();
    #[cfg(not(unix))]
    let parent = 0;
    // When it began, in ticks since the system's start (proc_pid_stat(5)): numbers of processes come again.
    let stat = std::fs::read_to_string(format!("/proc/{parent}/stat")).unwrap_or_default();
    let began =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)).unwrap_or_default();
    format!("agent {parent} since {began} on {}", host_name())
}

/// Where that is kept.
fn marker(run: &Path) -> PathBuf {
    run.join("logs").join("torchrun")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(name: &str) -> Torchrun {
        let get = |variable: &str| (variable == "TORCHELASTIC_RUN_ID").then(|| name.to_owned());
        Torchrun::of(&get).expect("torchrun")
    }

    #[test]
    fn a_launch_goes_on_with_what_it_has_begun_and_with_nothing_else() {
        for (begins, others) in [("a", ["b", "none"]), ("none", ["a", "agent"])] {
            let place = tempfile::tempdir().expect("a folder");
            let run = place.path();
            std::fs::create_dir(run.join("logs")).expect("creates");
            launch(begins).begin(run).expect("writes");
            assert!(!launch(begins).has_begun(run), "there is no run");
            std::fs::write(run.join("config.toml"), "").expect("writes");
            assert!(launch(begins).has_begun(run));
            assert!(!others.iter().any(|other| launch(other).has_begun(run)), "{begins}");
        }
        // Another agent has begun the run.
        let other = Torchrun { launch: "agent 1 since 2 on 3".to_owned(), most: 0 };
        let place = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(place.path().join("logs")).expect("creates");
        std::fs::write(place.path().join("config.toml"), "").expect("writes");
        other.begin(place.path()).expect("writes");
        assert!(!launch("none").has_begun(place.path()));
        assert_eq!(Torchrun::of(&|_| None), None);
    }
}
