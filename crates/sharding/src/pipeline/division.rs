//! Division of a traced pass into chunks: who computes what, and what goes from chunk to chunk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_tensor::{PlannedCall, PlannedValue, StagePlan, TracedPass, TracedValue};

use super::play::SentValue;
use crate::{Result, ShardingError};

/// A pass, divided into chunks.
#[derive(Debug, Clone)]
pub struct DividedPass {
    /// By chunk, who computes what.
    pub plans: Vec<Arc<StagePlan>>,
    /// The values that go from chunk to chunk.
    pub sent: Vec<SentValue>,
    /// By chunk, the parameters that it reads.
    pub params: Vec<BTreeSet<String>>,
    /// By number of a sent value, its size in bytes and whether its gradient comes back.
    pub sizes: BTreeMap<usize, SentSize>,
}

/// The size of a value that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentSize {
    /// Bytes of a micro-batch.
    pub bytes: usize,
    /// True if its gradient comes back.
    pub has_gradient: bool,
}

fn wrong(problem: String) -> ShardingError {
    ShardingError::Pipeline(problem)
}

impl DividedPass {
    /// Divides a pass into chunks that begin with these calls; the first one begins with call 0. Code between blocks belongs to the
    /// latest chunk among its inputs.
    ///
    /// # Errors
    /// [`ShardingError::Pipeline`] if the calls do not ascend from 0, a parameter lies outside of blocks, or a value goes back to an
    /// earlier chunk, with the block.
    pub fn new(pass: &TracedPass, first_calls: &[usize]) -> Result<Self> {
        let ascends = first_calls.windows(2).all(|pair| pair[0] < pair[1]);
        if first_calls.first() != Some(&0) || !ascends || first_calls.last() >= Some(&pass.calls.len()) {
            return Err(wrong(format!(
                "stages begin with calls {first_calls:?} of {} blocks: they ascend from 0",
                pass.calls.len()
            )));
        }
        let chunks = first_calls.len();
        let of_call = |call: usize| first_calls.partition_point(|first| *first <= call) - 1;
        let mut places = Vec::with_capacity(pass.values.len());
        let mut users: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let mut params = vec![BTreeSet::new(); chunks];
        for value in &pass.values {
            let chunk = place_of(value, &places, &of_call, pass)?;
            if let Some(param) = &value.param {
                params[chunk].insert(param.clone());
            }
            for input in value.inputs.iter().filter(|input| places[**input] != chunk) {
                users.entry(*input).or_default().insert(chunk);
            }
            places.push(chunk);
        }
        let sent: Vec<SentValue> = users
            .iter()
            .map(|(value, to)| SentValue {
                value: *value,
                from: places[*value],
                to: to.iter().copied().collect(),
            })
            .collect();
        let size = |value: usize| {
            let TracedValue { shape, dtype, needs_grad, .. } = &pass.values[value];
            SentSize { bytes: shape.elem_count() * dtype.size_in_bytes(), has_gradient: *needs_grad }
        };
        let sizes = users.keys().map(|value| (*value, size(*value))).collect();
        let planned_calls = pass.calls.iter().enumerate();
        let calls: Vec<PlannedCall> = planned_calls
            .map(|(at, call)| PlannedCall { block: call.block.clone(), chunk: of_call(at) })
            .collect();
        let values: Vec<PlannedValue> = pass
            .values
            .iter()
            .zip(&places)
            .map(|(value, chunk)| PlannedValue { op: value.op, chunk: *chunk })
            .collect();
        let plan = |chunk: usize| {
            Arc::new(StagePlan {
                chunk,
                calls: calls.clone(),
                values: values.clone(),
                received: sent
                    .iter()
                    .filter(|sent| sent.to.contains(&chunk))
                    .map(|sent| sent.value)
                    .collect(),
                sent: sent.iter().filter(|sent| sent.from == chunk).map(|sent| sent.value).collect(),
            })
        };
        Ok(Self { plans: (0..chunks).map(plan).collect(), sent, params, sizes })
    }

    /// The chunk that computes the loss.
    pub fn loss_chunk(&self) -> usize {
        self.plans.first().and_then(|plan| plan.values.last()).map_or(0, |value| value.chunk)
    }
}

/// Returns the chunk of a value.
fn place_of(
    value: &TracedValue,
    places: &[usize],
    of_call: &impl Fn(usize) -> usize,
    pass: &TracedPass,
) -> Result<usize> {
    let latest = value.inputs.iter().map(|input| places[*input]).max();
    let Some(call) = value.call else {
        return match (&value.param, latest) {
            (Some(param), _) => Err(wrong(format!(
                "parameter `{param}` lies outside of blocks, so that no stage can have it: register it in a block"
            ))),
            (None, latest) => Ok(latest.unwrap_or(0)),
        };
    };
    let own = of_call(call);
    if latest.is_some_and(|latest| latest > own) {
        let block = &pass.calls[call].block;
        let problem = format!("block `{block}` of stage {own} reads a value of a later stage ({})", value.op);
        return Err(wrong(format!("{problem}: values of a pass flow from stage to stage")));
    }
    Ok(own)
}
