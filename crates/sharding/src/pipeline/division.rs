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
    /// The bytes of the values that go from chunk to chunk, of a micro-batch.
    pub bytes: u64,
}

/// The elements of a value that counts as numbers for a report, at most.
const MOST_NUMBERS: usize = 64;

fn wrong(problem: String) -> ShardingError {
    ShardingError::Pipeline(problem)
}

impl DividedPass {
    /// Divides a pass into chunks; `calls` has the chunk of each call. Code between blocks belongs to the latest chunk among its inputs.
    ///
    /// # Errors
    /// [`ShardingError::Pipeline`] if a parameter lies outside of blocks, or a value goes back to an earlier chunk, with the block.
    pub fn new(pass: &TracedPass, calls: &[usize], chunks: usize) -> Result<Self> {
        if calls.len() != pass.calls.len() || calls.iter().any(|chunk| *chunk >= chunks) {
            let problem = format!("chunks {calls:?} of {} calls, in {chunks} chunks", pass.calls.len());
            return Err(wrong(format!("{problem}: each call has one of them")));
        }
        let mut places = Vec::with_capacity(pass.values.len());
        let mut users: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let mut params = vec![BTreeSet::new(); chunks];
        for value in &pass.values {
            let chunk = place_of(value, &places, calls, pass)?;
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
        let size = |value: &usize| {
            let TracedValue { shape, dtype, .. } = &pass.values[*value];
            (shape.elem_count() * dtype.size_in_bytes()) as u64
        };
        let bytes = users.keys().map(size).sum();
        let plans = plans(pass, (&places, &sent), chunks, calls);
        Ok(Self { plans, sent, params, bytes })
    }

    /// Sends the last chunk also the numbers that earlier ones find between blocks, such as terms of a loss: an evaluation reads them all
    /// there.
    #[must_use]
    pub fn with_numbers_at_the_end(mut self, pass: &TracedPass) -> Self {
        let last = self.plans.len() - 1;
        let places: Vec<usize> = self.plans[last].values.iter().map(|value| value.chunk).collect();
        for (value, traced) in pass.values.iter().enumerate() {
            let is_number = traced.call.is_none() && traced.shape.elem_count() <= MOST_NUMBERS;
            if !is_number || places[value] == last {
                continue;
            }
            match self.sent.iter_mut().find(|sent| sent.value == value) {
                Some(sent) if sent.to.contains(&last) => {}
                Some(sent) => sent.to.push(last),
                None => self.sent.push(SentValue { value, from: places[value], to: vec![last] }),
            }
        }
        self.sent.sort_by_key(|sent| sent.value);
        let calls: Vec<usize> = self.plans[last].calls.iter().map(|call| call.chunk).collect();
        self.plans = plans(pass, (&places, &self.sent), last + 1, &calls);
        self
    }
}

/// Returns the plan of each chunk.
fn plans(
    pass: &TracedPass,
    (places, sent): (&[usize], &[SentValue]),
    chunks: usize,
    calls: &[usize],
) -> Vec<Arc<StagePlan>> {
    let calls = pass.calls.iter().zip(calls);
    let calls: Vec<PlannedCall> =
        calls.map(|(call, chunk)| PlannedCall { block: call.block.clone(), chunk: *chunk }).collect();
    let values = pass.values.iter().zip(places);
    let values: Vec<PlannedValue> =
        values.map(|(value, chunk)| PlannedValue { op: value.op, chunk: *chunk }).collect();
    let plan = |chunk: usize| {
        Arc::new(StagePlan {
            chunk,
            calls: calls.clone(),
            values: values.clone(),
            received: sent.iter().filter(|sent| sent.to.contains(&chunk)).map(|sent| sent.value).collect(),
            sent: sent.iter().filter(|sent| sent.from == chunk).map(|sent| sent.value).collect(),
        })
    };
    (0..chunks).map(plan).collect()
}

/// Returns the chunk of a value.
fn place_of(value: &TracedValue, places: &[usize], calls: &[usize], pass: &TracedPass) -> Result<usize> {
    let latest = value.inputs.iter().map(|input| places[*input]).max();
    let Some(call) = value.call else {
        return match (&value.param, latest) {
            (Some(param), _) => Err(wrong(format!(
                "parameter `{param}` lies outside of blocks, so that no stage can have it: register it in a block"
            ))),
            (None, latest) => Ok(latest.unwrap_or(0)),
        };
    };
    let own = calls[call];
    if latest.is_some_and(|latest| latest > own) {
        let block = &pass.calls[call].block;
        let problem = format!("block `{block}` of stage {own} reads a value of a later stage ({})", value.op);
        return Err(wrong(format!("{problem}: values of a pass flow from stage to stage")));
    }
    Ok(own)
}
