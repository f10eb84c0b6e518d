//! Polls the files of a run's folder and adds new content to the model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::model::{Model, Sample};
use super::tail::TextTail;
use phalanx_run::{FailureReport, Links, RunFolder, RunState, Summary};

/// The number of bytes at the end of an existing log that are shown.
const LOG_BYTES: u64 = 64 << 10;

/// The number of bytes at the end of an existing usage file that are read.
const USAGE_BYTES: u64 = 16 << 10;

/// The files of a run.
#[derive(Debug)]
pub(super) struct Source {
    folder: RunFolder,
    /// Files written before this time belong to an earlier attempt.
    since: Option<SystemTime>,
    metrics: TextTail,
    usages: BTreeMap<usize, TextTail>,
    logs: BTreeMap<usize, TextTail>,
    /// The modification times and inodes of files that are read as a whole.
    seen: BTreeMap<PathBuf, (SystemTime, u64)>,
}

impl Source {
    /// Watches the files of a run. Ignores states, summaries and failures from before `since`.
    pub(super) fn new(folder: &RunFolder, since: Option<SystemTime>) -> Self {
        let metrics = TextTail::whole(&folder.metrics());
        let (usages, logs, seen) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { folder: folder.clone(), since, metrics, usages, logs, seen }
    }

    /// Adds new content to the model. Returns true if anything has changed.
    pub(super) fn poll(&mut self, model: &mut Model) -> bool {
        let mut changed = false;
        let news = self.metrics.poll();
        if news.restarted {
            model.forget_metrics();
        }
        changed |= news.restarted || !news.lines.is_empty();
        news.lines.iter().for_each(|line| model.take_metrics(line));
        changed |= self.read_rank_files(model);
        let state = self.folder.state();
        if self.is_new(&state) {
            model.state = RunState::read(&state).ok();
            changed = true;
        }
        let alive = model.state.as_ref().and_then(RunState::is_alive);
        changed |= std::mem::replace(&mut model.alive, alive) != alive;
        let summary = self.folder.summary();
        if self.is_new(&summary) {
            model.summary = Summary::read(&summary).ok();
            changed = true;
        }
        changed | self.read_newest_sample(model)
    }

    /// Reads the logs, usage files and failure reports of ranks.
    fn read_rank_files(&mut self, model: &mut Model) -> bool {
        let mut changed = false;
        for name in names(&self.folder.logs()) {
            let Some((rank, kind)) = rank_of(&name) else { continue };
            let path = self.folder.logs().join(&name);
            match kind {
                "log" => {
                    let tail = self.logs.entry(rank).or_insert_with(|| TextTail::last(&path, LOG_BYTES));
                    for line in tail.poll().lines {
                        model.take_log(Some(rank), &line);
                        changed = true;
                    }
                }
                "usage.jsonl" => {
                    let tail = self.usages.entry(rank).or_insert_with(|| TextTail::last(&path, USAGE_BYTES));
                    for line in tail.poll().lines {
                        model.take_usage(rank, &line);
                        changed = true;
                    }
                }
                "error.json" if self.is_new(&path) => {
                    let report = FailureReport::read(&self.folder.logs(), rank);
                    // A failure that is no consequence of another one is the cause.
                    if let Some(report) =
                        report.filter(|report| !report.consequence || model.failure.is_none())
                    {
                        model.failure = Some(format!("rank {rank}: {}", report.message));
                        changed = true;
                    }
                }
                _ => {}
            }
        }
        changed
    }

    /// Reads the newest grid of samples.
    fn read_newest_sample(&mut self, model: &mut Model) -> bool {
        let pictures = names(&self.folder.samples()).into_iter();
        let newest = pictures.filter(|name| name.starts_with("step-") && name.ends_with(".png")).max();
        let Some(name) = newest else { return false };
        let path = self.folder.samples().join(&name);
        if !self.is_new(&path) {
            return false;
        }
        let read = Links::Refuse.read(&path).ok().and_then(|bytes| phalanx_data::decode_image(&bytes).ok());
        let Some(picture) = read else {
            // The file may be incomplete: try again at the next poll.
            self.seen.remove(&path);
            return false;
        };
        model.sample = Some(Sample { name, picture: Arc::new(picture) });
        true
    }

    /// Returns true if a file is new or has changed since the last call.
    fn is_new(&mut self, path: &Path) -> bool {
        let Ok(metadata) = std::fs::metadata(path) else { return false };
        let Ok(changed) = metadata.modified() else { return false };
        if self.since.is_some_and(|since| changed < since) {
            return false;
        }
        // Files that were replaced within one clock tick differ in their inode.
        #[cfg(unix)]
        let number = std::os::unix::fs::MetadataExt::ino(&metadata);
        #[cfg(not(unix))]
        let number = metadata.len();
        self.seen.insert(path.to_owned(), (changed, number)) != Some((changed, number))
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Parses the rank and the kind of a file `rank-N.KIND`.
fn rank_of(name: &str) -> Option<(usize, &str)> {
    let (rank, kind) = name.strip_prefix("rank-")?.split_once('.')?;
    Some((rank.parse().ok()?, kind))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::dashboard::model::Status;
    use phalanx_run::RunActivity;

    #[test]
    fn a_run_s_files_are_found_as_they_come() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(Some(&place.path().join("run")), place.path(), "run").expect("new");
        let (mut source, mut model) = (Source::new(&folder, None), Model::default());
        assert!(!source.poll(&mut model));
        assert_eq!(model.status(), Status::Starting);
        fs::write(folder.metrics(), "{\"step\":1,\"loss\":2.0,\"seconds\":0.5}\n{\"step\":2,")
            .expect("writes");
        fs::write(folder.logs().join("rank-1.log"), "hello\n").expect("writes");
        fs::write(folder.logs().join("rank-0.usage.jsonl"), "{\"step\":1,\"cpu_percent\":50.0}\n")
            .expect("writes");
        fs::write(folder.logs().join("rank-0.flight.json"), "{}").expect("writes");
        let state = RunState { step: 1, total: 8, host: "elsewhere".into(), ..RunState::default() };
        state.write(&folder.state()).expect("writes");
        assert!(source.poll(&mut model));
        assert_eq!((model.step(), model.total(), model.status()), (1, Some(8), Status::Training));
        assert_eq!(model.log.len(), 1);
        assert_eq!(model.ranks[&0].last().and_then(|usage| usage.cpu_percent), Some(50.0));
        assert!(!source.poll(&mut model), "nothing is new");

        image::RgbImage::new(4, 2).save(folder.samples().join("step-00000001.png")).expect("writes");
        assert!(source.poll(&mut model));
        assert_eq!(model.sample.as_ref().map(|sample| sample.picture.dimensions()), Some((4, 2)));

        let failure = |rank, message: &str, consequence| {
            FailureReport::now(rank, message, consequence).write(&folder.logs()).expect("writes");
        };
        failure(0, "rank 1 is gone", true);
        failure(1, "no such image", false);
        RunState { doing: RunActivity::Failed, ..state }.write(&folder.state()).expect("writes");
        assert!(source.poll(&mut model));
        assert_eq!(model.status(), Status::Failed("rank 1: no such image".to_owned()));
    }

    #[test]
    fn what_an_earlier_attempt_has_left_is_not_taken_for_this_one_s() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(Some(&place.path().join("run")), place.path(), "run").expect("new");
        RunState { doing: RunActivity::Ended, ..RunState::default() }.write(&folder.state()).expect("writes");
        let since = SystemTime::now() + std::time::Duration::from_secs(5);
        let (mut source, mut model) = (Source::new(&folder, Some(since)), Model::default());
        source.poll(&mut model);
        assert_eq!(model.status(), Status::Starting);
    }
}
