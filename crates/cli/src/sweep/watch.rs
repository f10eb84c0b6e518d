//! Watches a run for the rule that stops hopeless trials.

use std::path::Path;
use std::time::{Duration, Instant};

use super::search::{Goal, Peer, Prune, Rungs, StopDecision};
use phalanx_run::{Request, RunFolder, read_whole_metrics};

/// The interval at which the metrics of a run are read.
const INTERVAL: Duration = Duration::from_millis(200);

/// A rule that stops a run, with the trials that it is compared with. These have ended, so the decision does not depend
/// on the time at which it is made.
#[derive(Debug)]
pub struct PruneWatch {
    measure: String,
    goal: Goal,
    prune: Prune,
    peers: Vec<Peer>,
    read: Option<Instant>,
    stop: Option<StopDecision>,
}

impl PruneWatch {
    /// A rule over the number `measure` of the lines of metrics.
    pub fn new(measure: String, goal: Goal, prune: Prune, peers: Vec<Peer>) -> Self {
        Self { measure, goal, prune, peers, read: None, stop: None }
    }

    /// Decides by the metrics in `folder` if the run is to be stopped.
    pub fn decide(&mut self, folder: &Path) -> Option<StopDecision> {
        if self.stop.is_none() {
            let folder = RunFolder::open(folder).ok()?;
            // While a run begins, it has no lines.
            let lines = read_whole_metrics(&folder.metrics()).unwrap_or_default();
            let rungs = Rungs::of(&lines, &self.prune, &self.measure);
            self.stop = self.prune.stop(self.goal, &rungs, &self.peers);
        }
        self.stop
    }

    /// Returns the decision by which it has asked the run to stop.
    pub fn stopped(&self) -> Option<StopDecision> {
        self.stop
    }

    /// Asks the run in `folder` to stop once the rule says so, as `watch` does.
    pub fn poll(&mut self, folder: &Path) {
        if self.stop.is_some() || self.read.is_some_and(|read| read.elapsed() < INTERVAL) {
            return;
        }
        self.read = Some(Instant::now());
        if self.decide(folder).is_some()
            && let Ok(folder) = RunFolder::open(folder)
        {
            // If the request cannot be written, the run goes on to its end, and the decision is the same.
            let _ = Request::Stop.post(&folder.requests());
        }
    }
}
