//! Estimates of memory, traffic and step time of a training under several strategies.

use phalanx_sharding::{ClusterModel, ComputeTimes, Overlap, StepTime, Strategy};

use super::inference::{ModelPlan, plan_memory};
use super::{Task, TrainError};
use phalanx_config::Config;

/// The estimate of a training under several strategies.
#[derive(Debug, Clone)]
pub struct Estimate {
    /// The model, the workload, and the memory and messages of each strategy.
    pub plan: ModelPlan,
    /// The time of a step under each strategy of the plan. None without a link or without a measured step.
    pub times: Vec<Option<StepTime>>,
}

/// Estimates the configured training of a task under `strategies`. Reads no data and allocates no parameters.
///
/// Times need `step_seconds`, the measured seconds of a step of one rank alone with its share of the batch, and a link
/// (`comm.link`).
///
/// # Errors
/// If the model cannot be built, strategies do not fit the number of ranks, the link cannot be read, or `step_seconds` is not
/// above 0.
pub fn estimate(
    task: &Task,
    config: &Config,
    strategies: &[Strategy],
    step_seconds: Option<f64>,
) -> Result<Estimate, TrainError> {
    let plan = plan_memory(task, config, strategies)?;
    let costs = config.comm.simulated_costs().map_err(|error| TrainError::Setup(error.to_string()))?;
    let (Some(seconds), Some(costs)) = (step_seconds, costs) else {
        let times = vec![None; plan.plans.len()];
        return Ok(Estimate { plan, times });
    };
    if !(seconds.is_finite() && seconds > 0.0) {
        return Err(TrainError::Setup(format!("a step takes more than 0 s, and not {seconds} s")));
    }
    let hosts = config.comm.ranks_by_host(plan.workload.ranks);
    let cluster = ClusterModel {
        costs: &costs,
        hosts: &hosts,
        algorithm: config.comm.algorithm,
        overlaps: config.train.overlap != Overlap::Never,
        scattered: config.scattered_bytes(),
    };
    let computing = ComputeTimes::of_step(seconds);
    let times = plan.plans.iter().map(|plan| plan.step_time(computing, &cluster)).collect();
    Ok(Estimate { plan, times })
}
