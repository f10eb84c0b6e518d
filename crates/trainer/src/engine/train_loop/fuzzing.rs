//! A training that goes on from any checkpoint, for the fuzzer of this workspace.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Tensor;
use phalanx_sharding::CodecState;
use phalanx_tensor::Context;
use serde_json::Map;

use super::state::TrainState;
use crate::engine::checkpoint::{codec_file, codec_state, own_file};
use crate::engine::distributed::{Distributed, Network};
use crate::engine::training::{BuildTarget, Task, Weights};
use crate::engine::{Plan, TrainError, precision};
use phalanx_checkpoint::{Checkpoint, EMA, MODEL, NewFile, NewPiece, StagingFolder};
use phalanx_config::Config;

/// Builds the state of a one-rank training any number of times.
pub struct Resumable {
    task: Task,
    config: Config,
    plan: Plan,
    distributed: Distributed,
    context: Arc<Context>,
    folder: PathBuf,
}

impl std::fmt::Debug for Resumable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resumable").field("task", &self.task).finish_non_exhaustive()
    }
}

impl Resumable {
    /// Prepares the training of a task, without data. State that lies in files is kept in `folder`.
    ///
    /// # Errors
    /// See [`TrainError`].
    pub fn new(task: Task, config: Config, folder: &Path) -> Result<Self, TrainError> {
        const IMAGES: usize = 64;
        let batch = config.train.global_batch;
        let plan =
            Plan::new(&config, IMAGES, IMAGES as f64).ok_or(TrainError::NoStep { images: IMAGES, batch })?;
        let context = precision::context(&config, 1)?;
        Ok(Self { task, config, plan, distributed: Distributed::none(), context, folder: folder.to_owned() })
    }

    /// The state before the first step.
    fn state(&self) -> Result<TrainState, TrainError> {
        let place = self.distributed.device().compute();
        let built = self.task.build(&self.config, None, BuildTarget::whole(Weights::Here, place))?;
        let (plan, context) = (&self.plan, self.context.clone());
        TrainState::new(&self.config, built, plan, &self.distributed, context, &self.folder)
    }

    /// Saves the state as after step `step`. Averages equal the weights. `kept` is the codec's state of the first network, `own` the
    /// part of it that only this rank has.
    ///
    /// # Errors
    /// See [`TrainError`].
    pub fn save(
        &self,
        checkpoints: &Path,
        step: u64,
        (kept, own): (CodecState, CodecState),
    ) -> Result<Checkpoint, TrainError> {
        let mut state = self.state()?;
        state.step = step;
        let mut counters = Map::new();
        let mut files = state.parts(&self.distributed, &mut counters)?;
        if self.config.train.ema > 0.0 {
            files.push(averages(&files));
        }
        let network = state.networks().next().map(Network::name).unwrap_or_default();
        files.extend(codec_file(vec![(network, kept)], self.distributed.state_owner())?);
        files.extend(own_file(vec![(network, own)], self.distributed.state_owner())?);
        let staging = StagingFolder::create(checkpoints, step, 1)?;
        staging.write(0, files)?;
        Ok(staging.commit(1, counters, 1)?)
    }

    /// Resumes from a checkpoint. Checks that a snapshot equals the loaded state, and that another state can load the snapshot.
    ///
    /// # Errors
    /// If the checkpoint is of another training, or damaged.
    pub fn resume(&self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        let mut state = self.state()?;
        state.load(&self.distributed, checkpoint)?;
        let snapshot = state.snapshot()?;
        assert_eq!(snapshot.step, checkpoint.step(), "it goes on after another step");
        let mut other = self.state()?;
        let loaded = other.load_from(&self.distributed, &snapshot.reader(), snapshot.step, &snapshot.state);
        assert!(loaded.is_ok(), "what was loaded is refused: {:?}", loaded.err());
        assert_eq!(other.snapshot()?, snapshot, "what was loaded is not what the snapshot holds");
        Ok(())
    }

    /// Returns the codec's state of the first network.
    ///
    /// # Errors
    /// If ranks were more than one, or a file is damaged.
    pub fn kept(&self, checkpoint: &Checkpoint) -> Result<CodecState, TrainError> {
        let state = self.state()?;
        let network = state.networks().next().map(Network::name).unwrap_or_default();
        codec_state(&checkpoint.reader(), network, self.distributed.state_owner())
    }
}

/// Returns averages that equal the weights in these files.
fn averages(files: &[NewFile]) -> NewFile {
    let weights = files.iter().flat_map(|file| &file.pieces).filter(|piece| piece.kind == MODEL);
    let average = |of: &NewPiece| {
        let (kind, key) = (EMA.to_owned(), format!("{EMA}.{}", of.name));
        let (name, shape, region) = (of.name.clone(), of.shape.clone(), of.region.clone());
        let values: Tensor = of.values.clone();
        NewPiece { kind, name, shape, region, key, values }
    };
    NewFile { name: "ema.safetensors".to_owned(), pieces: weights.map(average).collect() }
}
