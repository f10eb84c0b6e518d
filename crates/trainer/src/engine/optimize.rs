//! The optimizer and the schedule that a configuration asks for.

use phalanx_tensor::TensorError;
use phalanx_tensor::optim::{Adam, Decay, Optimizer, Schedule, Sgd, linear_scaling};

use super::Plan;
use crate::config::{Config, OptimKind, ScheduleKind};

/// The optimizer.
pub(super) fn optimizer(config: &Config) -> Box<dyn Optimizer> {
    let optim = &config.optim;
    // The configuration has been checked to hold two.
    let betas = (optim.betas.first().copied().unwrap_or(0.9), optim.betas.get(1).copied().unwrap_or(0.999));
    match optim.kind {
        OptimKind::Sgd => Box::new(Sgd::new(optim.momentum, optim.nesterov, optim.weight_decay)),
        OptimKind::Adam => Box::new(Adam::new(betas, optim.eps, optim.weight_decay)),
        OptimKind::AdamW => Box::new(Adam::decoupled(betas, optim.eps, optim.weight_decay)),
    }
}

/// Numbers that the optimizer keeps for every parameter that it changes.
pub(super) fn numbers_per_parameter(config: &Config) -> usize {
    match config.optim.kind {
        OptimKind::Adam | OptimKind::AdamW => 2,
        OptimKind::Sgd => usize::from(config.optim.momentum > 0.0),
    }
}

/// The learning rate over the steps of `plan`.
///
/// # Errors
/// If a number is out of range.
pub(super) fn schedule(config: &Config, plan: &Plan) -> Result<Schedule, TensorError> {
    let (optim, schedule) = (&config.optim, &config.schedule);
    let base = match optim.base_batch {
        0 => optim.lr,
        base_batch => linear_scaling(optim.lr, config.train.global_batch, base_batch),
    };
    // On a short run a long warm-up would be all there is.
    let warmup = schedule.warmup_steps.min(plan.horizon / 10);
    let decay = match schedule.kind {
        ScheduleKind::Constant => Decay::Constant,
        ScheduleKind::Cosine => Decay::Cosine { total: plan.horizon.max(1), min: schedule.final_fraction },
        ScheduleKind::Step => {
            let every = match (schedule.step_epochs, schedule.step_every) {
                (0, 0) => plan.horizon.div_ceil(3).max(1),
                (0, steps) => steps,
                (epochs, _) => epochs as u64 * plan.steps_per_epoch,
            };
            Decay::Step { every, gamma: schedule.gamma }
        }
    };
    Schedule::new(base, warmup, decay)
}
