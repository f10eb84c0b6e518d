//! The optimizer and the schedule of a configuration.

use std::path::Path;

use phalanx_tensor::optim::{
    Adam, Decay, Disk, Ema, Lamb, Lion, MomentumRange, Muon, OneCycle, Optimizer, Schedule, Sgd,
    StateLocation, linear_scaling,
};
use phalanx_tensor::{ParamStore, TensorError};

use super::Plan;
use phalanx_config::{Config, Offload, OptimKind, ScheduleKind};

/// Creates the optimizer of a network.
pub(super) fn optimizer(config: &Config, network: &ParamStore, state: StateLocation) -> Box<dyn Optimizer> {
    let optim = &config.optim;
    let betas = match (optim.betas.as_slice(), optim.kind) {
        (&[first, second], _) => (first, second),
        (_, OptimKind::Lion) => (0.9, 0.99),
        _ => (0.9, 0.999),
    };
    match optim.kind {
        OptimKind::Sgd => {
            let sgd = Sgd::new(optim.momentum, optim.nesterov, optim.weight_decay);
            Box::new(sgd.with_state_location(state))
        }
        OptimKind::Adam => {
            let adam = Adam::new(betas, optim.eps, optim.weight_decay);
            Box::new(adam.with_state_location(state))
        }
        OptimKind::AdamW => {
            let adamw = Adam::decoupled(betas, optim.eps, optim.weight_decay);
            Box::new(adamw.with_state_location(state))
        }
        OptimKind::Lamb => {
            let lamb = Lamb::new(betas, optim.eps, optim.weight_decay).with_state_location(state);
            let lamb = lamb.with_exact_norms(config.logical_ranks().is_some());
            if config.pipeline_ranks() == 1 {
                return Box::new(lamb);
            }
            // Ranks add up the norms of all parameters, and each stage has some of these.
            let trained = network.model_params().filter(|param| param.trainable());
            Box::new(lamb.with_model(trained.map(|param| param.name().to_owned())))
        }
        OptimKind::Muon => {
            let muon = Muon::new(optim.momentum, betas, optim.eps, optim.weight_decay);
            Box::new(muon.with_state_location(state).with_precision(config.train.precision))
        }
        OptimKind::Lion => Box::new(Lion::new(betas, optim.weight_decay).with_state_location(state)),
    }
}

/// Creates the averages of the weights, if they are configured.
pub(super) fn averages(config: &Config, state: StateLocation) -> Option<Ema> {
    (config.train.ema > 0.0).then(|| Ema::new(config.train.ema).with_state_location(state))
}

/// Chooses the place of a network's optimizer state and averages. Files are under `folder` or `train.offload_folder`.
///
/// # Errors
/// If the folder cannot be created.
pub(super) fn state_at(
    config: &Config,
    folder: &Path,
    rank: usize,
    network: &str,
) -> Result<StateLocation, TensorError> {
    Ok(match config.train.offload {
        Offload::None => StateLocation::Parameters,
        Offload::Optimizer | Offload::Parameters => StateLocation::Host,
        Offload::Disk => {
            let run = folder.file_name().map(Path::new).unwrap_or(folder);
            let base = match config.train.offload_folder.as_str() {
                "" => folder.to_owned(),
                elsewhere => Path::new(elsewhere).join(run),
            };
            let network = if network.is_empty() { "network" } else { network };
            StateLocation::Disk(Disk::new(base.join("offload").join(format!("rank-{rank}")).join(network))?)
        }
    })
}

/// The number of values that the optimizer keeps for each trained parameter.
pub(super) fn numbers_per_parameter(config: &Config) -> usize {
    match config.optim.kind {
        OptimKind::Adam | OptimKind::AdamW | OptimKind::Lamb | OptimKind::Muon => 2,
        OptimKind::Lion => 1,
        OptimKind::Sgd => usize::from(config.optim.momentum > 0.0),
    }
}

/// Returns the learning rate after the warm-up, scaled by the batch if `optim.base_batch` is set.
pub(super) fn peak_rate(config: &Config) -> f64 {
    let optim = &config.optim;
    match optim.base_batch {
        0 => optim.lr,
        base_batch => linear_scaling(optim.lr, config.train.global_batch, base_batch),
    }
}

/// Returns the steps of the warm-up: at most a tenth of the run, since a long warm-up would take all of a short run.
pub(super) fn warm_up(config: &Config, plan: &Plan) -> u64 {
    config.schedule.warmup_steps.min(plan.horizon / 10)
}

/// Creates the schedule of the learning rate over the steps of `plan`.
///
/// # Errors
/// If a number is out of range.
pub(super) fn schedule(config: &Config, plan: &Plan) -> Result<Schedule, TensorError> {
    let schedule = &config.schedule;
    let base = peak_rate(config);
    let warmup = warm_up(config, plan);
    let (total, min) = (plan.horizon.max(1), schedule.final_fraction);
    let decay = match schedule.kind {
        ScheduleKind::Constant => Decay::Constant,
        ScheduleKind::InverseRoot => Decay::InverseRoot,
        ScheduleKind::Cosine => Decay::Cosine { total, min },
        ScheduleKind::Linear => Decay::Linear { total, min },
        ScheduleKind::Stable => {
            let steps = ((schedule.decay_fraction * total as f64).round() as u64).clamp(1, total - warmup);
            Decay::Stable { start: total - steps, total, min, curve: schedule.decay_curve }
        }
        ScheduleKind::OneCycle => {
            let momentum = match schedule.momentum[..] {
                [low, high] => Some(MomentumRange { low, high }),
                _ => None,
            };
            Decay::OneCycle(OneCycle {
                total,
                rise: schedule.pct_start,
                divisor: schedule.div_factor,
                final_divisor: schedule.final_div_factor,
                momentum,
            })
        }
        ScheduleKind::RangeTest => Decay::Range { total, ratio: schedule.range_ratio },
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
