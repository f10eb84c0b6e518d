//! Follows a run and returns its new points.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::served_folder::ServedFolder;
use crate::{Position, Progress, Tails};

/// The interval at which a run is polled.
pub(super) const EVERY: Duration = Duration::from_millis(500);

/// A follower of a run.
#[derive(Debug)]
pub(super) struct Follower {
    served: ServedFolder,
    folder: PathBuf,
    tails: Tails,
    markers: ChangeMarkers,
    progress: Progress,
}

/// Markers of changes other than new numbers: the time of the summary, and the number of pictures.
type ChangeMarkers = (Option<SystemTime>, usize);

/// A change of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RunUpdate {
    /// New points as JSON `[[key, step, seconds, value], …]`, and the position after them.
    Points(String, String),
    /// A change of the progress, as JSON. The page computes the remaining time from the points that it knows.
    Progress(String),
    /// The page must be reloaded.
    Changed,
    /// No change.
    Nothing,
}

fn markers(folder: &Path) -> ChangeMarkers {
    let summary = std::fs::metadata(folder.join("summary.json")).and_then(|metadata| metadata.modified());
    let count =
        |name: &str| std::fs::read_dir(folder.join(name)).map_or(0, |entries| entries.flatten().count());
    (summary.ok(), count("samples") + count("evaluation"))
}

impl Follower {
    /// Follows a run from the position `from`.
    pub(super) fn new(served: ServedFolder, folder: PathBuf, from: &str) -> Self {
        let tails = Tails::new(&folder, Position::parse(from));
        let markers = markers(&folder);
        Self { served, folder, tails, markers, progress: Progress::default() }
    }

    /// Returns the changes since the last call.
    pub(super) fn poll(&mut self) -> RunUpdate {
        // A symbolic link may have been created in the meantime.
        if !self.served.holds_run(&self.folder) {
            return RunUpdate::Changed;
        }
        let mut points: Vec<Value> = Vec::new();
        let read = self
            .tails
            .read(|point| points.push(json!([point.key, point.step, point.seconds, point.value])), |_| {});
        if read != Ok(true) || markers(&self.folder) != self.markers {
            return RunUpdate::Changed;
        }
        if !points.is_empty() {
            return RunUpdate::Points(Value::from(points).to_string(), self.tails.position().to_string());
        }
        let progress = Progress::of(&self.folder, 0, &[]);
        match std::mem::replace(&mut self.progress, progress) == progress {
            true => RunUpdate::Nothing,
            false => RunUpdate::Progress(json!(progress).to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_run_is_followed_to_its_end() {
        let place = tempfile::tempdir().expect("a folder");
        let run = place.path().join("run");
        std::fs::create_dir_all(run.join("samples")).expect("a folder");
        let metrics = run.join("metrics.jsonl");
        std::fs::write(&metrics, "{\"step\":1,\"loss\":3.5}\n").expect("writes");
        let served = ServedFolder::new(place.path()).expect("a folder");
        let mut follower = Follower::new(served.clone(), run.clone(), "metrics.1");
        assert_eq!(follower.poll(), RunUpdate::Nothing);
        let mut file = std::fs::File::options().append(true).open(&metrics).expect("opens");
        file.write_all(b"{\"step\":2,\"seconds\":0.5,\"loss\":2.5}\n{\"step\":3").expect("writes");
        let points = RunUpdate::Points("[[\"metrics/loss\",2.0,0.5,2.5]]".into(), "metrics.2_ranks.0".into());
        assert_eq!(follower.poll(), points);
        assert_eq!(follower.poll(), RunUpdate::Nothing, "half a line is none");
        let state = phalanx_run::RunState { step: 3, total: 9, ..phalanx_run::RunState::default() };
        state.write(&run.join("state.json")).expect("writes");
        let progress = "{\"step\":3,\"total\":9,\"left\":null,\"paused\":false}";
        assert_eq!(follower.poll(), RunUpdate::Progress(progress.to_owned()));
        assert_eq!(follower.poll(), RunUpdate::Nothing);
        std::fs::write(run.join("summary.json"), "{}").expect("writes");
        assert_eq!(follower.poll(), RunUpdate::Changed);
        // Who has lost the connection goes on where it was; who knows more than there is begins anew.
        assert_eq!(Follower::new(served.clone(), run.clone(), "metrics.1").poll(), points);
        assert_eq!(Follower::new(served, run, "metrics.9").poll(), RunUpdate::Changed);
    }
}
