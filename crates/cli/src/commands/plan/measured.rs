//! The stages of a model by measured seconds of its blocks.

use phalanx_run::format;
use phalanx_trainer::engine::{MeasuredBlock, MeasuredStages};
use serde_json::{Value, json};

/// Returns the stages as lines of a plan: by measured seconds, and as they are cut without.
pub(super) fn lines(stages: &MeasuredStages) -> Vec<String> {
    let (by_time, by_operations) = (
        stages.seconds_of_chunks(|block| block.chunk),
        stages.seconds_of_chunks(|block| block.by_operations),
    );
    let first = |chunk: usize, of: fn(&MeasuredBlock) -> usize| {
        stages.blocks.iter().find(|block| of(block) == chunk).map_or("", |block| block.block.as_str())
    };
    let mut table: Vec<Vec<String>> =
        vec![["stage", "first block", "ms", "by operations", "ms"].map(str::to_owned).to_vec()];
    for chunk in 0..stages.chunks {
        table.push(vec![
            chunk.to_string(),
            first(chunk, |block| block.chunk).to_owned(),
            milliseconds(by_time[chunk]),
            first(chunk, |block| block.by_operations).to_owned(),
            milliseconds(by_operations[chunk]),
        ]);
    }
    let mut lines = vec![
        String::new(),
        "Stages by measured times on this machine, forward and backward over a micro-batch:".to_owned(),
    ];
    lines.extend(format::columns(&table));
    let slowest = |seconds: &[f64]| milliseconds(seconds.iter().copied().fold(0.0, f64::max));
    lines.push(format!(
        "The slowest stage takes {} ms, and {} ms as it is cut by operations. A run takes them by",
        slowest(&by_time),
        slowest(&by_operations)
    ));
    let names: Vec<String> = stages.first_blocks().iter().map(|name| format!("\"{name}\"")).collect();
    lines.push(format!("  --set 'pipeline.stages=[{}]'", names.join(",")));
    lines
}

/// Returns the stages for JSON.
pub(super) fn json(stages: &MeasuredStages) -> Value {
    let blocks = stages.blocks.iter().map(|block| {
        json!({
            "block": block.block,
            "forward_seconds": block.seconds.forward,
            "backward_seconds": block.seconds.backward,
            "stage": block.chunk,
            "stage_by_operations": block.by_operations,
        })
    });
    json!({ "first_blocks": stages.first_blocks(), "blocks": blocks.collect::<Vec<_>>() })
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.2}", seconds * 1e3)
}
