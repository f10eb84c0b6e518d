//! Follows a run and returns its new points.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::served_folder::ServedFolder;
use crate::{Position, Tails};

/// The interval at which a run is polled.
pub(super) const EVERY: Duration = Duration::from_millis(500);

/// A follower of a run.
#[derive(Debug)]
pub(super) struct Follower {
    served: ServedFolder,
    folder: PathBuf,
    tails: Tails,
    markers: ChangeMarkers,
}

/// Markers of changes other than new numbers: the time of the summary, and the number of samples.
type ChangeMarkers = (Option<SystemTime>, usize);

/// A change of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RunUpdate {
    /// New points as JSON `[[key, step, seconds, value], …]`, and the position after them.
    Points(String, String),
    /// The page must be reloaded.
    Changed,
    /// No change.
    Nothing,
}

fn markers(folder: &Path) -> ChangeMarkers {
    let summary = std::fs::metadata(folder.join("summary.json")).and_then(|metadata| metadata.modified());
    let pictures = std::fs::read_dir(folder.join("samples")).map_or(0, |entries| entries.flatten().count());
    (summary.ok(), pictures)
}

impl Follower {
    /// Follows a run from the position `from`.
    pub(super) fn new(served: ServedFolder, folder: PathBuf, from: &str) -> Self {
        let tails = Tails::new(&folder, Position::parse(from));
        let markers = markers(&folder);
        Self { served, folder, tails, markers }
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
        match points.is_empty() {
            true => RunUpdate::Nothing,
            false => RunUpdate::Points(Value::from(points).to_string(), self.tails.position().to_string()),
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
        std::fs::write(run.join("summary.json"), "{}").expect("writes");
        assert_eq!(follower.poll(), RunUpdate::Changed);
        // Who has lost the connection goes on where it was; who knows more than there is begins anew.
        assert_eq!(Follower::new(served.clone(), run.clone(), "metrics.1").poll(), points);
        assert_eq!(Follower::new(served, run, "metrics.9").poll(), RunUpdate::Changed);
    }
}
