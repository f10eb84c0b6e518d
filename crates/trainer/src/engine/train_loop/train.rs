//! Entry points of a training.

use std::time::Instant;

use phalanx_run::{RunFolder, StopFlag};
use phalanx_tensor::{ComputeDevice, TensorRank};

use super::reporter::{prepare, write_partial};
use super::run::{Run, RunEnd};
use super::selection::{check_measure, check_range_test};
use crate::engine::TrainError;
use crate::engine::data::Data;
use crate::engine::distributed::{Distributed, World};
use crate::engine::observer::Observer;
use crate::engine::stages::Stages;
use crate::engine::step_outline::check_cuts;
use crate::engine::training::{BuildTarget, Task, Weights};
use phalanx_config::{Config, Resolved};
use phalanx_weights::check_configured;

/// Trains a task as one rank of `world`, until the configured step or until `stop` is raised on any rank. Resumes from the newest
/// complete checkpoint in `folder`, if there is one.
///
/// # Errors
/// See [`TrainError`]. [`TrainError::is_cancelled`] holds if `stop` is raised before the ranks have met. If a rank fails, the others fail
/// with an error for which [`TrainError::is_consequence`] holds.
pub fn train(
    task: &Task,
    folder: &RunFolder,
    resolved: &Resolved,
    world: &World,
    stop: &StopFlag,
    observer: Box<dyn Observer>,
) -> Result<RunEnd, TrainError> {
    let start = Instant::now();
    let config = &resolved.config;
    world.check(config)?;
    prepare(config)?;
    // Events of this thread, and of threads that it starts, belong to this rank.
    let rank =
        tracing::trace_span!(target: "phalanx_trace::rank", "rank", rank = world.rank() as u64).entered();
    let train = || {
        let distributed = Distributed::connect(world, config, &folder.logs(), stop)?;
        Run::new(task, folder, config, distributed, observer)?.train(task, resolved, start)
    };
    let trained: Result<RunEnd, TrainError> = train();
    drop(rank);
    trained.inspect_err(|_| write_partial(config, folder, world))
}

/// Opens the data of a run, builds its networks without values and reads its weights, so that errors appear before other ranks wait.
///
/// # Errors
/// See [`TrainError`].
pub fn rehearse(task: &Task, config: &Config) -> Result<(), TrainError> {
    let (device, alone) = (ComputeDevice::host(), Distributed::none());
    let data = Data::open(config, task.open_data(config), &alone, &device, 0)?;
    data.plan(config)?;
    // The first rank's portions, if layers are cut.
    let tensor = config.tensor_ranks().map(|ranks| TensorRank { rank: 0, ranks });
    let target = BuildTarget { tensor, ..BuildTarget::whole(Weights::Absent, &device) };
    let built = task.build(config, Some(data.num_classes()), target)?;
    check_configured(config, &built.learnt_stores(), &built.names, true)?;
    check_measure(config, &*built.training)?;
    check_range_test(config, &*built.training)?;
    Stages::of(task, config, Some(&data))?;
    match tensor {
        Some(_) => check_cuts(task, config, Some(&data)),
        None => Ok(()),
    }
}
