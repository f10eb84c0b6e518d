//! LAMB.

use std::collections::BTreeSet;

use candle_core::Tensor;

use super::moments::Moments;
use super::offload::{BucketUpdate, each_owned, each_owned_unchanged};
use super::param_norms::{Operand, ParamNorms};
use super::{Optimizer, StateLocation};
use crate::backend::{Array, LambOptions, ParamUpdate, ScaledStep};
use crate::store::{FlatStorage, OwnedGroup, ParamBucket};
use crate::{Context, Result, TensorError};

/// LAMB (You et al. 2020): Adam with decoupled weight decay, and with a learning rate for each parameter in proportion to
/// the norm of its weights over that of its direction.
///
/// As in the authors' code, parameters without weight decay ([`crate::ParamGroup::decay`]: norms and biases) have the
/// learning rate itself. The norms are over whole parameters: where ranks own parts, they add up the sums of
/// [`Optimizer::begin_step`].
#[derive(Debug)]
pub struct Lamb {
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    steps: u64,
    /// The number of skipped steps among these.
    left_out: u64,
    moments: Moments,
    is_exact: bool,
    /// The parameters of the whole model, where ranks hold different ones.
    model: BTreeSet<String>,
    /// The norms of the next step.
    norms: Option<ParamNorms>,
}

impl Lamb {
    /// Makes LAMB.
    pub fn new(betas: (f64, f64), eps: f64, weight_decay: f64) -> Self {
        Self {
            betas,
            eps,
            weight_decay,
            steps: 0,
            left_out: 0,
            moments: Moments::new(["exp_avg", "exp_avg_sq"]),
            is_exact: false,
            model: BTreeSet::new(),
            norms: None,
        }
    }

    /// Sets the location of the state.
    #[must_use]
    pub fn with_state_location(self, at: StateLocation) -> Self {
        Self { moments: self.moments.kept_at(at), ..self }
    }

    /// Sets whether norms are summed exactly, so that their bits do not depend on the partition among ranks. Parameters
    /// must be f32.
    #[must_use]
    pub fn with_exact_norms(self, is_exact: bool) -> Self {
        Self { is_exact, ..self }
    }

    /// Sets the parameters of the whole model, where ranks hold different ones, such as the stages of a pipeline: each has a place in
    /// the sums of all ranks.
    #[must_use]
    pub fn with_model(self, names: impl IntoIterator<Item = String>) -> Self {
        Self { model: names.into_iter().collect(), ..self }
    }

    fn options(&self, lr: f64) -> impl Fn(&OwnedGroup) -> LambOptions + use<> {
        let &Self { betas, eps, weight_decay, steps, .. } = self;
        move |group| LambOptions {
            lr: lr * group.rate,
            betas,
            eps,
            weight_decay: if group.decay { weight_decay } else { 0.0 },
            step: steps + 1,
        }
    }

    /// Computes this rank's parts of the norms of the next step.
    fn measure(
        &mut self,
        params: &[ParamBucket],
        scaled: Option<&ScaledStep>,
        context: &Context,
    ) -> Result<ParamNorms> {
        let norms = ParamNorms::new(params, &self.model, self.moments.at(), self.is_exact)?;
        let options = self.options(0.0);
        let mut kinds = self.moments.both();
        each_owned_unchanged(params, &mut kinds, context, |bucket| {
            let BucketUpdate { param, values, grads, states, backend } = bucket;
            for group in param.owned_groups().into_iter().filter(|group| group.decay && group.counts) {
                let at = group.range.clone();
                let part = |flat: &FlatStorage| flat.narrow(at.clone());
                let (weights, grads) = (part(values)?, part(grads)?);
                let (first, second) = (part(&states[0])?, part(&states[1])?);
                let of = ParamUpdate { weights: weights.array(), grads: grads.array(), scaled };
                let direction =
                    backend.lamb_direction(options(&group), of, [first.array(), second.array()])?;
                let direction = FlatStorage::new(direction)?;
                for (row, range) in norms.rows_of(param, &at) {
                    let inner = range.start - at.start..range.end - at.start;
                    norms.add((row, Operand::Weights), values.narrow(range)?.array(), context)?;
                    norms.add((row, Operand::Direction), direction.narrow(inner)?.array(), context)?;
                }
            }
            Ok(())
        })?;
        Ok(norms)
    }

    /// Returns the norms of this step: those of [`Optimizer::begin_step`], or this rank's own if it owns all elements.
    fn take_norms(
        &mut self,
        params: &[ParamBucket],
        scaled: Option<&ScaledStep>,
        context: &Context,
    ) -> Result<ParamNorms> {
        if let Some(norms) = self.norms.take() {
            return Ok(norms);
        }
        if let Some(cut) = params.iter().find(|param| param.trainable() && param.owned().len() < param.len())
        {
            let name = cut.entries().first().map_or("", |entry| &entry.name);
            let problem = format!(
                "LAMB needs norms of all of `{name}`, of which this rank owns a part; call begin_step"
            );
            return Err(TensorError::shape("lamb", problem));
        }
        self.measure(params, scaled, context)
    }
}

impl Optimizer for Lamb {
    fn begin_step(
        &mut self,
        params: &[ParamBucket],
        scaled: Option<&ScaledStep>,
        context: &Context,
    ) -> Result<Option<Array>> {
        let norms = self.measure(params, scaled, context)?;
        let sums = norms.sums().clone();
        self.norms = Some(norms);
        Ok((sums.elem_count() > 0).then_some(sums))
    }

    fn scaled_step(
        &mut self,
        params: &[ParamBucket],
        lr: f64,
        scaled: Option<&ScaledStep>,
        context: &Context,
    ) -> Result<()> {
        let norms = self.take_norms(params, scaled, context)?;
        let options = self.options(lr);
        self.steps += 1;
        let mut kinds = self.moments.both();
        each_owned(params, &mut kinds, context, |BucketUpdate { param, values, grads, states, backend }| {
            for group in param.owned_groups() {
                let at = group.range.clone();
                let rows = match group.decay {
                    true => {
                        norms.rows_of(param, &at).into_iter().map(|(row, range)| (Some(row), range)).collect()
                    }
                    false => vec![(None, at)],
                };
                for (row, range) in rows {
                    let part = |flat: &FlatStorage| flat.narrow(range.clone());
                    let (weights, grads) = (part(values)?, part(grads)?);
                    let (first, second) = (part(&states[0])?, part(&states[1])?);
                    let of = ParamUpdate { weights: weights.array(), grads: grads.array(), scaled };
                    let squares = row.map(|row| norms.squares(row, weights.array(), context)).transpose()?;
                    let squares = squares.as_ref().map(|[weights, direction]| [weights, direction]);
                    backend.lamb_step(options(&group), of, [first.array(), second.array()], squares)?;
                }
            }
            Ok(())
        })
    }

    fn note_left_out(&mut self, steps: u64) {
        self.left_out = steps;
    }

    fn set_momentum(&mut self, momentum: f64) {
        self.betas.0 = momentum;
    }

    fn reserve(&mut self, params: &[ParamBucket]) -> Result<()> {
        self.moments.reserve(params)
    }

    fn kinds(&self) -> Vec<&'static str> {
        self.moments.kinds().to_vec()
    }

    fn state(&self, params: &[ParamBucket]) -> Result<(u64, Vec<(String, Tensor)>)> {
        Ok((self.steps - self.left_out, self.moments.named(params)?))
    }

    fn load_state(&mut self, params: &[ParamBucket], steps: u64, tensors: &[(String, Tensor)]) -> Result<()> {
        (self.steps, self.left_out, self.norms) = (steps, 0, None);
        self.moments.load(params, tensors)
    }

    fn state_bytes(&self) -> usize {
        self.moments.bytes()
    }
}
