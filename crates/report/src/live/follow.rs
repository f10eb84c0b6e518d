//! Following a run: what it has written since the last look.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::inside::Inside;
use crate::{Position, Tails};

/// The interval at which a run is polled.
pub(super) const EVERY: Duration = Duration::from_millis(500);

/// A run that is followed.
#[derive(Debug)]
pub(super) struct Follower {
    inside: Inside,
    folder: PathBuf,
    tails: Tails,
    seen: Seen,
}

/// The signs of changes other than new numbers: the summary, and the pictures.
type Seen = (Option<SystemTime>, usize);

/// A change of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum News {
    /// Points have come, as JSON `[[key, step, seconds, value], …]`; and how far that is.
    Points(String, String),
    /// The page is to be made anew.
    Changed,
    /// Nothing.
    Nothing,
}

fn seen(folder: &Path) -> Seen {
    let summary = std::fs::metadata(folder.join("summary.json")).and_then(|metadata| metadata.modified());
    let pictures = std::fs::read_dir(folder.join("samples")).map_or(0, |entries| entries.flatten().count());
    (summary.ok(), pictures)
}

impl Follower {
    /// Follows a run of which is known what lies before `from`.
    pub(super) fn new(inside: Inside, folder: PathBuf, from: &str) -> Self {
        let tails = Tails::new(&folder, Position::parse(from));
        let seen = seen(&folder);
        Self { inside, folder, tails, seen }
    }

    /// Returns the changes since the last call.
    pub(super) fn look(&mut self) -> News {
        // A link may have been created there since.
        if !self.inside.holds_run(&self.folder) {
            return News::Changed;
        }
        let mut points: Vec<Value> = Vec::new();
        let read = self
            .tails
            .read(|point| points.push(json!([point.key, point.step, point.seconds, point.value])), |_| {});
        if read != Ok(true) || seen(&self.folder) != self.seen {
            return News::Changed;
        }
        match points.is_empty() {
            true => News::Nothing,
            false => News::Points(Value::from(points).to_string(), self.tails.position().to_string()),
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
        let inside = Inside::new(place.path()).expect("a folder");
        let mut follower = Follower::new(inside.clone(), run.clone(), "metrics.1");
        assert_eq!(follower.look(), News::Nothing);
        let mut file = std::fs::File::options().append(true).open(&metrics).expect("opens");
        file.write_all(b"{\"step\":2,\"seconds\":0.5,\"loss\":2.5}\n{\"step\":3").expect("writes");
        let points = News::Points("[[\"metrics/loss\",2.0,0.5,2.5]]".into(), "metrics.2_ranks.0".into());
        assert_eq!(follower.look(), points);
        assert_eq!(follower.look(), News::Nothing, "half a line is none");
        std::fs::write(run.join("summary.json"), "{}").expect("writes");
        assert_eq!(follower.look(), News::Changed);
        // Who has lost the connection goes on where it was; who knows more than there is begins anew.
        assert_eq!(Follower::new(inside.clone(), run.clone(), "metrics.1").look(), points);
        assert_eq!(Follower::new(inside, run, "metrics.9").look(), News::Changed);
    }
}
