//! The start of a run in its folder: from the newest checkpoint, or from step 1 if it has never saved.

use std::path::Path;

use phalanx_checkpoint::Checkpoint;
use phalanx_run::WeightsRecord;

use super::reporter::{last_evaluated, lines_until};
use super::run::Run;
use super::sample_kind::SampleKind;
use crate::engine::TrainError;
use crate::engine::checkpoint::{find_checkpoint, saved_step};
use crate::engine::distributed::Network;
use crate::engine::observer::Event;
use crate::engine::training::Task;
use phalanx_config::Resolved;
use phalanx_datasets::DataRecord;
use phalanx_weights::HeadRule;

impl Run<'_> {
    /// Resumes from the newest checkpoint, if there is one. All ranks agree on which. Otherwise reads the weights that the run begins
    /// with, if there are any, and returns their use.
    pub(super) fn resume(&mut self) -> Result<Option<WeightsRecord>, TrainError> {
        let (newest, damaged) = find_checkpoint(&self.distributed, self.env.folder)?;
        let mut weights = None;
        match newest {
            None => {
                self.check_unsaved(damaged)?;
                weights = self.load_weights()?;
            }
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
        self.state.networks().try_for_each(Network::broadcast_state)?;
        Ok(weights)
    }

    /// Reads `model.weights`. All ranks call this together.
    fn load_weights(&mut self) -> Result<Option<WeightsRecord>, TrainError> {
        let config = self.env.config;
        if config.model.weights.is_empty() {
            return Ok(None);
        }
        let path = Path::new(&config.model.weights);
        let wrong = |problem: String| TrainError::Setup(format!("model.weights: {problem}"));
        let record = self.state.load_weights(path, HeadRule::of(config));
        let mut record = record.map_err(|error| wrong(error.to_string()))?;
        if !config.lora.from.is_empty() {
            record.adapters = Some(self.state.load_adapters(&config.lora)?);
        }
        // Hosts may have files of their own under one name.
        let length = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        let own = format!("{length} {}", record.loaded.join(" "));
        if self.distributed.exchange().gather_text(&own)?.iter().any(|other| *other != own) {
            let path = path.display();
            return Err(wrong(format!("{path}: ranks read different weights; is it the same on all hosts?")));
        }
        if self.is_first() {
            self.reporter.note(record.describe());
        }
        Ok(Some(record))
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
        self.restore_selection(checkpoint)?;
        self.followed = self.state.step;
        self.reporter.losses.begin_after(checkpoint.step());
        let (step, path) = (checkpoint.step(), checkpoint.folder().to_owned());
        tracing::info!("resumes after step {step} with {bytes} bytes read from {}", path.display());
        self.reporter.event(&Event::Resumed { step, path });
        Ok(())
    }

    /// Restores the best evaluation so far from a checkpoint and the metrics. All ranks call this together.
    pub(super) fn restore_selection(&mut self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        let lines = if self.is_first() { lines_until(&self.env, checkpoint.step())? } else { Vec::new() };
        self.selection.restore(checkpoint, &lines, &self.distributed)?;
        self.env.plan.stop = self.selection.stop(checkpoint.step());
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
        let samples = SampleKind::of(&*self.state.training, &env.config.sample);
        let is_sampled = samples.is_none_or(|kind| env.samples_path(step, kind).exists());
        let mut repeats = [u8::from(!is_evaluated || !is_sampled)];
        // The folders of several hosts need not be in sync.
        self.distributed.exchange().broadcast_bytes(&mut repeats, 0)?;
        if repeats == [1] {
            self.followed = step.saturating_sub(1);
        }
        Ok(())
    }

    /// Writes the configuration that the run continues with into its folder, on rank 0, with the fingerprint of the data and the
    /// weights that it begins with. Everything that can refuse it was checked before.
    pub(super) fn accept_configuration(
        &mut self,
        task: &Task,
        resolved: &Resolved,
        weights: Option<&WeightsRecord>,
    ) -> Result<(), TrainError> {
        if self.is_first() {
            let data = self.data.record(self.env.config)?;
            let before = DataRecord::read(&self.env.folder.data()).filter(|_| self.state.step > 0);
            if let (Some(data), Some(before)) = (&data, before) {
                for line in data.changes(&before)? {
                    self.reporter.note(format!("changed: data: {line}"));
                }
            }
            data.map_or(Ok(()), |data| data.write(&self.env.folder.data()))?;
            weights.map_or(Ok(()), |weights| weights.write(&self.env.folder.weights()))?;
            let folder = self.env.folder;
            task.keep(self.env.config, folder.path(), self.state.step == 0)?;
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
