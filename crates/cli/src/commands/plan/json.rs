//! A plan as JSON.

use phalanx_config::Config;
use phalanx_sharding::{MemoryPlan, StepTime};
use phalanx_trainer::engine::{Estimate, RankOutline, StepOutline};
use serde_json::{Value, json};

use super::ratio::{ratio, reference};

/// Renders an estimate with all ranks and exact bytes; marks the strategy `chosen`.
pub(super) fn of(
    config: &Config,
    estimate: &Estimate,
    chosen: Option<&str>,
    step: Option<&StepOutline>,
) -> Value {
    let plan = &estimate.plan;
    let reference = reference(plan);
    let rows = plan.plans.iter().zip(&estimate.times);
    let activations = step.and_then(StepOutline::largest).map(|rank| rank.activations);
    let rows = rows.map(|(row, time)| strategy(row, time.as_ref(), reference, chosen, activations));
    let rows: Vec<Value> = rows.collect();
    let layout = reference.map(|ddp| {
        json!({
            "flat_params": ddp.bucket_count,
            "blocks": ddp.blocks.len(),
            "largest_block": ddp.largest_block().map(|block| json!({ "name": block.name, "bytes": block.bytes })),
            "outside_of_blocks_bytes": ddp.outside,
        })
    });
    json!({
        "model": plan.model,
        "parameters": plan.parameters,
        "trainable_parameters": plan.trainable,
        "ranks": plan.workload.ranks,
        "tensor_ranks": plan.tensor,
        "global_batch": config.train.global_batch,
        "micro_batches": plan.workload.micro_batches,
        "algorithm": config.comm.algorithm.name(),
        "codec": config.codec.kind.to_string(),
        "codec_in_words": config.codec.describe(),
        "optimizer": config.optim.kind.as_str(),
        "optimizer_numbers_per_parameter": plan.workload.optimizer_numbers,
        "averages": plan.workload.averages,
        "layout": layout,
        "strategies": rows,
        "step": step.map(outline),
    })
}

/// A step that ran without numbers.
fn outline(step: &StepOutline) -> Value {
    let rank = |rank: &RankOutline| {
        json!({
            "operations": rank.operations,
            "parameter_bytes": rank.parameters,
            "gradient_bytes": rank.gradients,
            "activation_bytes": rank.activations,
            "recorded_bytes": rank.recorded,
            "messages": rank.traffic.operations,
            "bytes_sent": rank.traffic.sent(step.tensor_ranks),
            "bytes_to_stages": rank.to_stages,
        })
    };
    json!({ "samples": step.samples, "ranks": step.ranks.iter().map(rank).collect::<Vec<_>>() })
}

/// The row of a strategy.
fn strategy(
    row: &MemoryPlan,
    time: Option<&StepTime>,
    reference: Option<&MemoryPlan>,
    chosen: Option<&str>,
    activations: Option<u64>,
) -> Value {
    let ms = |part: fn(&StepTime) -> f64| time.map(|time| 1e3 * part(time));
    let held = row.largest_rank();
    let ranks = row.ranks.iter().map(|rank| {
        json!({
            "parameter_bytes": rank.parameters, "gradient_bytes": rank.gradients,
            "optimizer_bytes": rank.optimizer + rank.averages, "average_bytes": rank.averages,
            "codec_bytes": rank.codec, "synchrony_bytes": rank.synchrony,
        })
    });
    json!({
        "strategy": row.strategy.name,
        "chosen": chosen == Some(row.strategy.name),
        "shards": row.shards,
        "parameter_bytes": held.parameters,
        "gradient_bytes": held.gradients,
        "optimizer_bytes": held.optimizer + held.averages,
        "average_bytes": held.averages,
        "held_bytes": held.total(),
        "held_of_ddp": reference.map(|ddp| ratio(held.total(), ddp.largest_rank().total())),
        "gathered_bytes": row.gathered,
        "unreduced_bytes": row.unreduced,
        "wire_bytes": row.wire,
        "codec_bytes": held.codec,
        "synchrony_bytes": held.synchrony,
        "activation_bytes": activations.map_or_else(|| json!("not counted"), |bytes| json!(bytes)),
        "peak_bytes": row.peak(),
        "peak_of_ddp": reference.map(|ddp| ratio(row.peak(), ddp.peak())),
        "bytes_sent_per_step": row.sent_per_step,
        "predicted_step_ms": ms(|time| time.whole),
        "predicted_communication_ms": ms(|time| time.communication),
        "predicted_exposed_ms": ms(|time| time.exposed),
        "ranks": ranks.collect::<Vec<_>>(),
    })
}
