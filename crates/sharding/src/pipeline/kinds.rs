//! The schedules that there are.

use super::schedule::{PipelineSchedule, PipelineSizes, StagePass, StageWork};

fn work(pass: StagePass, chunk: usize, micro: usize) -> StageWork {
    StageWork { pass, chunk, micro }
}

/// All forward passes, then all backward passes. Gradients of weights are added up in the order of micro-batches, as without a pipeline.
pub(super) fn gpipe(ranks: usize, micros: usize) -> PipelineSchedule {
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
pub(super) fn one_forward_one_backward(ranks: usize, micros: usize) -> PipelineSchedule {
    let of_rank = |rank: usize| {
        let passes = |pass| (0..micros).map(|micro| work(pass, rank, micro)).collect::<Vec<_>>();
        in_turn(&passes(StagePass::Forward), &passes(StagePass::Backward), ranks - rank - 1)
    };
    PipelineSchedule { name: "1f1b", ranks: (0..ranks).map(of_rank).collect() }
}

/// One forward, one backward with several chunks of each rank, which take turns after as many micro-batches as there are ranks.
pub(super) fn interleaved(sizes: PipelineSizes) -> PipelineSchedule {
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
pub(super) fn zero_bubble(ranks: usize, micros: usize) -> PipelineSchedule {
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
