//! The feed-forward part of several experts, of which each token uses few.

use phalanx_tensor::nn::Linear;
use phalanx_tensor::{Result, Scope, Tape, TensorError, Value, ops};

use super::projection::linear;
use super::{DecoderConfig, ExpertsConfig};
use crate::routed_states::{Choices, balance};

/// Added to the scores of experts that a token does not use, so that their weights are 0.
const NOT_CHOSEN: f32 = -1e30;

/// A mixture of experts, as Mixtral's (Jiang et al. 2024): Σ w_e · down_e(silu(gate_e(x))·up_e(x)) over the chosen experts, whose
/// weights are the softmax of their scores. No token is left out.
#[derive(Debug)]
pub(super) struct Experts {
    router: Linear,
    experts: Vec<Expert>,
    chosen: usize,
}

/// One expert, with the names of the published weights.
#[derive(Debug)]
struct Expert {
    gate: Linear,
    down: Linear,
    up: Linear,
}

/// The result of a feed-forward part.
pub(super) struct Routed {
    /// The states, [N, T, C].
    pub(super) output: Value,
    /// The balance of the choices of whole texts; `None` without experts, and where nothing asks for it.
    pub(super) balance: Option<Value>,
}

/// The experts of each row.
struct Routes {
    /// By expert: its rows, ascending.
    rows: Vec<Vec<u32>>,
    /// For each row its chosen experts, ascending, one row after the other.
    chosen: Vec<usize>,
}

impl Experts {
    pub(super) fn new(scope: &Scope, config: &DecoderConfig, experts: ExpertsConfig) -> Result<Self> {
        let DecoderConfig { width, inner, init_std: std, .. } = *config;
        let expert = |index: usize| {
            let scope = scope.pp("experts").pp(index);
            Ok(Expert {
                gate: linear(&scope.pp("w1"), width, inner, std, false)?,
                down: linear(&scope.pp("w2"), inner, width, std, false)?,
                up: linear(&scope.pp("w3"), width, inner, std, false)?,
            })
        };
        Ok(Self {
            router: linear(&scope.pp("gate"), width, experts.count, std, false)?,
            experts: (0..experts.count).map(expert).collect::<Result<_>>()?,
            chosen: experts.chosen,
        })
    }

    /// Maps [N, T, C] to the same shape. With the weights of tokens, f32 [N, T], the choices are judged.
    pub(super) fn forward(&self, tape: &Tape, x: &Value, weights: Option<&Value>) -> Result<Routed> {
        let mut balance = None;
        let output = ops::with_whole_sequences(tape, x, |x| {
            let routed = self.chosen_of(tape, x, weights)?;
            balance = routed.balance;
            Ok(routed.output)
        })?;
        Ok(Routed { output, balance })
    }

    /// Computes the weighted sum of the experts that each token chooses.
    fn chosen_of(&self, tape: &Tape, x: &Value, weights_of_tokens: Option<&Value>) -> Result<Routed> {
        let dims = x.dims().to_vec();
        let width = dims.last().copied().unwrap_or_default();
        let count = x.shape().elem_count() / width.max(1);
        let x = ops::reshape(tape, x, (count, width))?;
        let scores = self.router.forward(tape, &x)?;
        let routes = self.routes(tape, &scores)?;
        let weights = self.weights(tape, &scores, &routes)?;
        let mut outputs = Vec::new();
        for (index, (expert, rows)) in self.experts.iter().zip(&routes.rows).enumerate() {
            // An expert without rows computes the first one with a weight of 0, so that all parameters have gradients.
            let rows = if rows.is_empty() { &vec![0] } else { rows };
            let weight = ops::narrow(tape, &weights, 1, index, 1)?;
            let weight = ops::select_rows(tape, &weight, rows)?;
            let output = expert.forward(tape, &ops::select_rows(tape, &x, rows)?)?;
            outputs.push(ops::broadcast_mul(tape, &output, &weight)?);
        }
        let outputs = ops::cat(tape, &outputs.iter().collect::<Vec<_>>(), 0)?;
        let mut sum = None;
        for slot in 0..self.chosen {
            let part = ops::select_rows(tape, &outputs, &routes.places(slot, self.chosen))?;
            sum = Some(match sum {
                None => part,
                Some(sum) => ops::add(tape, &sum, &part)?,
            });
        }
        let sum = sum.ok_or_else(|| TensorError::Backward("no expert is chosen".into()))?;
        let balance =
            weights_of_tokens.map(|weights| self.balance(tape, &scores, &routes, weights)).transpose()?;
        Ok(Routed { output: ops::reshape(tape, &sum, dims)?, balance })
    }

    /// The balance of the experts in texts whose tokens have these weights, [N, T].
    fn balance(&self, tape: &Tape, scores: &Value, routes: &Routes, weights: &Value) -> Result<Value> {
        let dims: Vec<usize> = weights.dims().iter().copied().chain([self.experts.len()]).collect();
        let choices = Choices { experts: &routes.chosen, of_token: self.chosen };
        balance(tape, &ops::reshape(tape, scores, dims)?, choices, weights)
    }

    /// Chooses the experts of each row of scores [R, E].
    fn routes(&self, tape: &Tape, scores: &Value) -> Result<Routes> {
        if !tape.backend().has_numbers() {
            return Ok(self.even_routes(scores.dims()[0]));
        }
        let scores = scores.array()?.to_host()?.to_dtype(candle_core::DType::F32)?.to_vec2::<f32>()?;
        let mut routes = Routes { rows: vec![Vec::new(); self.experts.len()], chosen: Vec::new() };
        for (row, scores) in scores.iter().enumerate() {
            let mut order: Vec<usize> = (0..scores.len()).collect();
            // The sort keeps the order of equal scores.
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            order.truncate(self.chosen);
            order.sort_unstable();
            order.iter().for_each(|expert| routes.rows[*expert].push(row as u32));
            routes.chosen.extend(order);
        }
        Ok(routes)
    }

    /// Gives experts equally many rows, up to one, where scores are not known.
    fn even_routes(&self, count: usize) -> Routes {
        let experts = self.experts.len();
        let mut routes = Routes { rows: vec![Vec::new(); experts], chosen: Vec::new() };
        for row in 0..count {
            let mut order: Vec<usize> =
                (0..self.chosen).map(|slot| (row * self.chosen + slot) % experts).collect();
            order.sort_unstable();
            order.iter().for_each(|expert| routes.rows[*expert].push(row as u32));
            routes.chosen.extend(order);
        }
        routes
    }

    /// The weights of all experts [R, E], 0 for those that are not chosen.
    fn weights(&self, tape: &Tape, scores: &Value, routes: &Routes) -> Result<Value> {
        let count = self.experts.len();
        let mut mask = vec![NOT_CHOSEN; scores.shape().elem_count()];
        for (row, chosen) in routes.chosen.chunks_exact(self.chosen).enumerate() {
            chosen.iter().for_each(|expert| mask[row * count + expert] = 0.0);
        }
        let mask = candle_core::Tensor::from_vec(mask, scores.shape(), &candle_core::Device::Cpu)?;
        let array = scores.array()?;
        let mask = Value::constant(array.alongside(&mask.to_dtype(array.dtype())?)?);
        ops::softmax(tape, &ops::add(tape, scores, &mask)?)
    }
}

impl Routes {
    /// The places of each row's results of its expert number `slot`, in the results of all experts one after the other.
    fn places(&self, slot: usize, chosen: usize) -> Vec<u32> {
        let mut next: Vec<u32> = Vec::new();
        let mut start = 0;
        for rows in &self.rows {
            next.push(start);
            start += rows.len().max(1) as u32;
        }
        let mut places = Vec::new();
        for experts in self.chosen.chunks_exact(chosen) {
            for (at, expert) in experts.iter().enumerate() {
                if at == slot {
                    places.push(next[*expert]);
                }
                next[*expert] += 1;
            }
        }
        places
    }
}

impl Expert {
    fn forward(&self, tape: &Tape, x: &Value) -> Result<Value> {
        let (gate, up) = (self.gate.forward(tape, x)?, self.up.forward(tape, x)?);
        self.down.forward(tape, &ops::swiglu(tape, &gate, &up)?)
    }
}
