//! Ratios of a plan to that of `ddp`.

use phalanx_sharding::MemoryPlan;
use phalanx_trainer::engine::ModelPlan;

/// Returns `part / whole`; 1 if the whole is 0.
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

/// Returns the plan that ratios are relative to: that of `ddp`.
pub(super) fn reference(plan: &ModelPlan) -> Option<&MemoryPlan> {
    plan.plans.iter().find(|plan| plan.strategy.name == "ddp")
}
