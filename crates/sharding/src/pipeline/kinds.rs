//! The schedules that there are.

use super::schedule::{PipelineSchedule, PipelineSizes, StagePass, StageWork};
use crate::{Result, ShardingError};

impl PipelineSchedule {
    /// The names of the schedules that there are.
    pub const NAMES: &[&str] = &["gpipe", "1f1b", "interleaved", "zero-bubble"];

    /// Makes a schedule:
    ///
    /// | name | order |
    /// |---|---|
    /// | `gpipe` | all forward passes, then all backward passes (Huang et al. 2019) |
    /// | `1f1b` | a backward pass as soon as there can be one, then one forward and one backward in turn (Narayanan et al. 2019) |
    /// | `interleaved` | `1f1b` with several chunks of a rank, so that pipelines fill sooner (Narayanan et al. 2021) |
    /// | `zero-bubble` | `1f1b` with backward in two parts, of which gradients of weights fill the gaps (Qi et al. 2024, ZB-H1) |
    ///
    /// # Errors
    /// [`ShardingError::Schedule`] if there is no such schedule, or it needs other sizes.
    pub fn named(name: &str, sizes: PipelineSizes) -> Result<Self> {
        let wrong = |problem: String| Err(ShardingError::Schedule(format!("{name}: {problem}")));
        let PipelineSizes { ranks, chunks, micros } = sizes;
        if ranks == 0 || chunks == 0 || micros == 0 {
            return wrong(format!(
                "{ranks} ranks with {chunks} chunks each and {micros} micro-batches: none may be 0"
            ));
        }
        if name != "interleaved" && chunks > 1 {
            return wrong(format!(
                "a rank has one chunk, and {chunks} are asked for; `interleaved` has several"
            ));
        }
        Ok(match name {
            "gpipe" => gpipe(ranks, micros),
            "1f1b" => one_forward_one_backward(ranks, micros),
            "interleaved" if micros.is_multiple_of(ranks) => interleaved(sizes),
            "interleaved" => {
                return wrong(format!(
                    "chunks take turns after a micro-batch for each rank, so that the {ranks} ranks must divide the {micros} micro-batches"
                ));
            }
            "zero-bubble" => zero_bubble(ranks, micros),
            _ => return wrong(format!("there is no such schedule; there is: {}", Self::NAMES.join(", "))),
        })
    }
}

fn work(pass: StagePass, chunk: usize, micro: usize) -> StageWork {
    StageWork { pass, chunk, micro }
}

/// All forward passes, then all backward passes. Gradients of weights are added up in the order of micro-batches, as without a pipeline.
fn gpipe(ranks: usize, micros: usize) -> PipelineSchedule {
    let of_rank = |rank| {
        let passes = [StagePass::Forward, StagePass::Backward];
        passes.into_iter().flat_map(|pass| (0..micros).map(move |micro| work(pass, rank, micro))).collect()
    };
    PipelineSchedule { name: "gpipe", ranks: (0..ranks).map(of_rank).collect() }
}

/// Forward passes until the first backward pass can follow, then backward and forward passes in turn.
fn in_turn(forward: &[StageWork], backward: &[StageWork], before: usize) -> Vec<StageWork> {
    let before = before.min(forward.len());
    let mut order = forward[..before].to_vec();
    let (mut later, mut back) = (forward[before..].iter(), backward.iter());
    for next in later.by_ref() {
        order.push(*next);
        order.extend(back.next());
    }
    order.extend(back);
    order
}

/// One forward, one backward: a stage keeps as many micro-batches as there are stages from it to the last one.
fn one_forward_one_backward(ranks: usize, micros: usize) -> PipelineSchedule {
    let of_rank = |rank: usize| {
        let passes = |pass| (0..micros).map(|micro| work(pass, rank, micro)).collect::<Vec<_>>();
        in_turn(&passes(StagePass::Forward), &passes(StagePass::Backward), ranks - rank - 1)
    };
    PipelineSchedule { name: "1f1b", ranks: (0..ranks).map(of_rank).collect() }
}

/// One forward, one backward with several chunks of each rank, which take turns after as many micro-batches as there are ranks.
fn interleaved(sizes: PipelineSizes) -> PipelineSchedule {
    let PipelineSizes { ranks, chunks, micros } = sizes;
    let of_rank = |rank: usize| {
        let passes = |pass: StagePass| {
            let at = move |index: usize| {
                let turn = index % (ranks * chunks) / ranks;
                let own = if pass == StagePass::Forward { turn } else { chunks - 1 - turn };
                work(pass, own * ranks + rank, index / (ranks * chunks) * ranks + index % ranks)
            };
            (0..micros * chunks).map(at).collect::<Vec<_>>()
        };
        let before = 2 * (ranks - rank - 1) + (chunks - 1) * ranks;
        in_turn(&passes(StagePass::Forward), &passes(StagePass::Backward), before)
    };
    PipelineSchedule { name: "interleaved", ranks: (0..ranks).map(of_rank).collect() }
}

/// One forward, one backward with backward in two parts. A stage delays gradients of weights by as many micro-batches as there are stages
/// before it, for the time when it would wait, and so keeps as many micro-batches as there are stages: no more than the first stage
/// of `1f1b`.
fn zero_bubble(ranks: usize, micros: usize) -> PipelineSchedule {
    let of_rank = |rank: usize| {
        let mut forward = (0..micros).map(|micro| work(StagePass::Forward, rank, micro));
        let mut weight = (0..micros).map(|micro| work(StagePass::BackwardWeight, rank, micro));
        let mut order: Vec<StageWork> = forward.by_ref().take(ranks - rank).collect();
        for micro in 0..micros {
            order.push(work(StagePass::BackwardInput, rank, micro));
            if micro >= rank {
                order.extend(weight.next());
            }
            order.extend(forward.next());
        }
        order.extend(weight);
        order
    };
    PipelineSchedule { name: "zero-bubble", ranks: (0..ranks).map(of_rank).collect() }
}
