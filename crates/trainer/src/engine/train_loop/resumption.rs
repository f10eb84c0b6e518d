//! The start of a run in its folder: from the newest checkpoint, or from step 1 if it has never saved.

use phalanx_checkpoint::Checkpoint;

use super::reporter::last_evaluated;
use super::run::Run;
use crate::config::Resolved;
use crate::engine::TrainError;
use crate::engine::checkpoint::{find_checkpoint, saved_step};
use crate::engine::data::DataRecord;
use crate::engine::distributed::Network;
use crate::engine::observer::Event;

impl Run<'_> {
    /// Resumes from the newest checkpoint, if there is one. All ranks agree on which.
    pub(super) fn resume(&mut self) -> Result<(), TrainError> {
        let (newest, damaged) = find_checkpoint(&self.distributed, self.env.folder)?;
        match newest {
            None => self.check_unsaved(damaged)?,
            Some(checkpoint) => {
                for problem in damaged {
                    self.reporter.note(format!("{problem}; an older checkpoint is used"));
                }
                if self.is_reset_proposed()? {
                    self.state.reset_at = Some(checkpoint.step());
                    self.reporter
                        .note("the optimizer begins with fresh state; weights and averages continue");
                }
                self.load(&checkpoint)?;
            }
        }
        self.state.networks().try_for_each(Network::broadcast_state)
    }

    /// True if the resumption is to begin with fresh optimizer state. All ranks call this together.
    fn is_reset_proposed(&self) -> Result<bool, TrainError> {
        let mut answer = [u8::from(self.env.folder.proposed_reset().exists())];
        // The folders of several hosts need not be in sync.
        self.distributed.exchange().broadcast_bytes(&mut answer, 0)?;
        Ok(answer == [1])
    }

    fn load(&mut self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        let bytes = self.state.load(&self.distributed, checkpoint)?;
        self.followed = self.state.step;
        self.reporter.losses.begin_after(checkpoint.step());
        let (step, path) = (checkpoint.step(), checkpoint.folder().to_owned());
        tracing::info!("resumes after step {step} with {bytes} bytes read from {}", path.display());
        self.reporter.event(&Event::Resumed { step, path });
        Ok(())
    }

    /// Refuses to start at step 1 if the run has saved a checkpoint before, which is damaged or missing now. All ranks call this together.
    fn check_unsaved(&mut self, mut problems: Vec<String>) -> Result<(), TrainError> {
        let folder = self.env.folder;
        // The folders of several hosts need not be in sync.
        let mut saved = saved_step(folder).unwrap_or_default().to_le_bytes();
        self.distributed.exchange().broadcast_bytes(&mut saved, 0)?;
        let saved = u64::from_le_bytes(saved);
        if problems.is_empty() && saved > 0 {
            problems.push(format!("the checkpoint of step {saved} was saved, and checkpoints/ holds none"));
        }
        if !problems.is_empty() {
            return Err(TrainError::NoCheckpoint { folder: folder.path().display().to_string(), problems });
        }
        let has_metrics = std::fs::metadata(folder.metrics()).is_ok_and(|metrics| metrics.len() > 0);
        if self.is_first() && has_metrics {
            self.reporter.note("stopped before its first checkpoint; it starts again at step 1");
        }
        Ok(())
    }

    /// Evaluates and samples after the last step again, unless the metrics and the samples of that step exist. All ranks call this
    /// together.
    pub(super) fn repeat_measures(&mut self) -> Result<(), TrainError> {
        let (env, step) = (&self.env, self.state.step);
        let is_evaluated = !env.config.eval.enabled || last_evaluated(env)? == step;
        let is_sampled = !self.state.training.draws() || env.samples_path(step).exists();
        let mut repeats = [u8::from(!is_evaluated || !is_sampled)];
        // The folders of several hosts need not be in sync.
        self.distributed.exchange().broadcast_bytes(&mut repeats, 0)?;
        if repeats == [1] {
            self.followed = step.saturating_sub(1);
        }
        Ok(())
    }

    /// Writes the configuration that the run continues with into its folder, on rank 0, with the fingerprint of the data. Everything
    /// that can refuse it was checked before.
    pub(super) fn accept_configuration(&mut self, resolved: &Resolved) -> Result<(), TrainError> {
        if self.is_first() {
            let data = DataRecord::of(&self.data, self.env.config)?;
            let before = DataRecord::read(&self.env.folder.data()).filter(|_| self.state.step > 0);
            if let (Some(data), Some(before)) = (&data, before) {
                for line in data.changes(&before)? {
                    self.reporter.note(format!("changed: data: {line}"));
                }
            }
            data.map_or(Ok(()), |data| data.write(&self.env.folder.data()))?;
            let folder = self.env.folder;
            resolved.write(&folder.config())?;
            if resolved.config.elastic().is_some() {
                // The state of an earlier attempt would send processes away that wait to join this one.
                let _ = std::fs::remove_file(folder.state());
            }
            folder.accept_start()?;
            folder.withdraw_proposal();
        }
        Ok(())
    }
}
