//! Checkpoints of a run.

use phalanx_data::Tail;
use serde_json::{Map, Value};

use super::environment::Environment;
use super::replica_check::check_replicas;
use super::selection::Selection;
use super::state::TrainState;
use crate::engine::TrainError;
use crate::engine::checkpoint::{Saved, Saver};
use crate::engine::distributed::Distributed;

/// Writes the checkpoints of a run.
pub(super) struct Saving {
    saver: Saver,
    /// The step of a checkpoint that was not complete when a rank was lost.
    pub(super) unsaved: Option<u64>,
    /// The step after which ranks have compared what they hold alike.
    compared: Option<u64>,
}

impl Saving {
    /// Creates the writer of a run.
    pub(super) fn new(env: &Environment<'_>) -> Self {
        Self { saver: Saver::new(env.folder, env.config), unsaved: None, compared: None }
    }

    /// Compares what ranks hold alike, unless they have done so after this step. All ranks call this together.
    pub(super) fn check_replicas(
        &mut self,
        env: &Environment<'_>,
        distributed: &Distributed,
        state: &TrainState,
    ) -> Result<(), TrainError> {
        if self.compared == Some(state.step) || distributed.size() < 2 {
            return Ok(());
        }
        let _checking = tracing::trace_span!(target: "phalanx_trace::evaluation", "check replicas").entered();
        // A rank without samples of a step does not move statistics of synchronised batch norm, until it takes rank 0's.
        let has_equal_buffers = env.config.data.tail == Tail::Drop;
        let prints = state.fingerprints(distributed, has_equal_buffers)?;
        check_replicas(distributed, state.step, &prints)?;
        self.compared = Some(state.step);
        Ok(())
    }

    /// Starts to save the state, if checkpoints are enabled and rank 0 `wants` this one. Returns the checkpoints that have become
    /// complete. With `train.check_replicas` ranks compare what they hold alike first, so that no checkpoint has damaged values.
    /// All ranks call this together.
    pub(super) fn begin(
        &mut self,
        env: &Environment<'_>,
        distributed: &Distributed,
        state: &TrainState,
        selection: &Selection,
        wants: bool,
    ) -> Result<Vec<Saved>, TrainError> {
        let (config, step) = (env.config, state.step);
        if !config.checkpoint.enabled {
            return Ok(Vec::new());
        }
        if config.train.check_replicas > 0 {
            self.check_replicas(env, distributed, state)?;
        }
        let mut index = Map::from_iter([
            ("images".to_owned(), Value::from(step * env.plan.global_batch as u64)),
            ("epoch".to_owned(), Value::from(env.plan.place(step).0)),
            ("model".to_owned(), Value::from(config.model.kind.as_str())),
            ("seed".to_owned(), Value::from(config.train.seed)),
        ]);
        selection.save(&mut index);
        self.saver.set_retention(selection.retention(config.checkpoint.keep));
        let _saving = tracing::trace_span!(target: "phalanx_trace::saving", "begin a checkpoint").entered();
        let parts = || {
            let parts = state.parts(distributed, &mut index)?;
            distributed.check()?;
            Ok((parts, index))
        };
        self.saver.begin(distributed, step, wants, parts)
    }

    /// Marks the checkpoint of the best evaluation on rank 0, if it is complete; otherwise it is marked when it is.
    pub(super) fn mark_best(
        &mut self,
        env: &Environment<'_>,
        selection: &Selection,
        step: u64,
    ) -> Result<(), TrainError> {
        let retention = selection.retention(env.config.checkpoint.keep);
        retention.apply(&env.folder.checkpoints(), step)?;
        self.saver.set_retention(retention);
        Ok(())
    }

    /// Returns the checkpoint that has become complete on rank 0, without waiting.
    pub(super) fn poll(&mut self, distributed: &Distributed) -> Result<Option<Saved>, TrainError> {
        self.saver.poll(distributed)
    }

    /// Waits until the current checkpoint is complete. All ranks call this together.
    pub(super) fn settle(&mut self, distributed: &Distributed) -> Result<Option<Saved>, TrainError> {
        let span = tracing::trace_span!(target: "phalanx_trace::saving", "wait for the checkpoint");
        span.in_scope(|| self.saver.settle(distributed))
    }

    /// The time that all checkpoints have paused training, in seconds.
    pub(super) fn paused_seconds(&self) -> f64 {
        self.saver.stalled().as_secs_f64()
    }

    /// Gives up the current checkpoint after ranks were lost. Returns its step, or that of an earlier one that was not complete.
    pub(super) fn interrupt(&mut self) -> Option<u64> {
        // The step is taken again by the others.
        self.compared = None;
        self.saver.interrupt().or(self.unsaved)
    }

    /// Removes incomplete checkpoints on rank 0. `unsaved` is the step of one that is to be written again.
    pub(super) fn clear(&mut self, is_first: bool, unsaved: Option<u64>) {
        self.saver.clear(is_first);
        self.unsaved = unsaved;
    }
}
