//! Muon: momentum whose matrices are made orthogonal.

use std::ops::Range;

use candle_core::{Shape, Tensor};

use super::moments::Moments;
use super::offload::{BucketUpdate, each_owned};
use super::{Optimizer, StateLocation};
use crate::backend::{
    AdamOptions, Array, ArrayBackend, BinaryOp, Factor, MatrixProduct, ParamUpdate, ScaledStep, SgdOptions,
};
use crate::store::{BucketEntry, FlatStorage, OwnedGroup, ParamBucket};
use crate::{Context, Precision, Result, TensorError};

/// The polynomial a·x + b·x³ + c·x⁵ that takes singular values towards 1 (Jordan 2024), and how often it is applied.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.775, 2.0315];
const ITERATIONS: usize = 5;

/// The root mean square of an update of AdamW, which that of a matrix is scaled to (Liu et al. 2025).
const ADAM_RMS: f64 = 0.2;

/// Muon (Jordan et al. 2024) as `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`: the step of a matrix is its Nesterov
/// momentum with all singular values near 1. It is scaled so that learning rate and weight decay are those of AdamW, which
/// steps everything else: vectors, tables ([`crate::Scope::table`]) and parameters that the rules except
/// ([`crate::ParamRules::unturned`]).
///
/// A matrix is [O, I]; further dimensions count as inputs. Rank by rank it must be whole. The state is as large as that of
/// AdamW, whose second moments stay 0 for matrices, and has names of its own: AdamW must not go on with it.
#[derive(Debug)]
pub struct Muon {
    momentum: f64,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    precision: Precision,
    steps: u64,
    moments: Moments,
}

impl Muon {
    /// Makes Muon with the momentum of matrices, and `betas` and `eps` of AdamW for the others.
    pub fn new(momentum: f64, betas: (f64, f64), eps: f64, weight_decay: f64) -> Self {
        Self {
            momentum,
            betas,
            eps,
            weight_decay,
            precision: Precision::F32,
            steps: 0,
            moments: Moments::new(["exp_avg", "exp_avg_sq_of_vectors"]),
        }
    }

    /// Sets the location of the state.
    #[must_use]
    pub fn with_state_location(self, at: StateLocation) -> Self {
        Self { moments: self.moments.kept_at(at), ..self }
    }

    /// Sets the precision of the products that make matrices orthogonal; PyTorch's are bf16.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }
}

/// The numbers of a step.
#[derive(Clone, Copy)]
struct Step {
    lr: f64,
    momentum: f64,
    weight_decay: f64,
    precision: Precision,
    adam: AdamOptions,
}

impl Step {
    /// Steps the owned parameters of a group.
    fn group(&self, update: &BucketUpdate<'_>, entries: &[BucketEntry], group: &OwnedGroup) -> Result<()> {
        let lr = self.lr * group.rate;
        let weight_decay = if group.decay { self.weight_decay } else { 0.0 };
        let step = Self { lr, weight_decay, adam: AdamOptions { lr, weight_decay, ..self.adam }, ..*self };
        // Neighbours that AdamW steps are stepped together.
        let mut others: Option<Range<usize>> = None;
        let of_group = |entry: &&BucketEntry| group.range.contains(&entry.range.start);
        for entry in entries.iter().filter(of_group) {
            if entry.is_turned {
                step.matrix(update, entry)?;
                continue;
            }
            others = Some(match others {
                Some(range) if range.end == entry.range.start => range.start..entry.range.end,
                before => {
                    before.map_or(Ok(()), |range| step.others(update, &range))?;
                    entry.range.clone()
                }
            });
        }
        others.map_or(Ok(()), |range| step.others(update, &range))
    }

    /// Steps elements as AdamW.
    fn others(&self, update: &BucketUpdate<'_>, range: &Range<usize>) -> Result<()> {
        let part = |flat: &FlatStorage| flat.narrow(range.clone());
        let (weights, grads) = (part(&update.values)?, part(&update.grads)?);
        let (first, second) = (part(&update.states[0])?, part(&update.states[1])?);
        let of = ParamUpdate { weights: weights.array(), grads: grads.array(), scaled: None };
        Ok(update.backend.adam_step(self.adam, of, [first.array(), second.array()])?)
    }

    /// Steps a matrix.
    fn matrix(&self, update: &BucketUpdate<'_>, entry: &BucketEntry) -> Result<()> {
        let &[rows, second, ref further @ ..] = entry.shape.dims() else {
            let what = format!("a part of `{}`: its steps need whole matrices", entry.name);
            return Err(TensorError::unsupported("muon", what));
        };
        let (cols, backend) = (second * further.iter().product::<usize>(), update.backend);
        let part = |flat: &FlatStorage| flat.narrow(entry.range.clone());
        let (weights, grads, mean) = (part(&update.values)?, part(&update.grads)?, part(&update.states[0])?);
        // The mean of gradients moves towards the gradient, and the direction is the gradient moved towards the mean.
        let mixed = || {
            let kept = backend.affine(mean.array(), self.momentum, 0.0)?;
            let new = backend.affine(grads.array(), 1.0 - self.momentum, 0.0)?;
            backend.binary(BinaryOp::Add, &kept, &new)
        };
        backend.copy(mean.array(), &mixed()?)?;
        let direction = mixed()?;
        let direction = orthogonal(backend, &direction, [rows, cols], self.precision)?;
        let lr = self.lr * ADAM_RMS * (rows.max(cols) as f64).sqrt();
        // Decoupled decay: w − lr·decay·w is the step of a decay that counts with the adjusted rate.
        let weight_decay = if lr > 0.0 { self.lr * self.weight_decay / lr } else { 0.0 };
        let options = SgdOptions { lr, momentum: 0.0, nesterov: false, weight_decay, first: false };
        let of = ParamUpdate { weights: weights.array(), grads: &direction, scaled: None };
        Ok(backend.sgd_step(options, of, None)?)
    }
}

/// Returns the matrix, flat, with singular values near 1, by Newton and Schulz's iteration on its shorter side.
fn orthogonal(
    backend: &dyn ArrayBackend,
    of: &Array,
    [rows, cols]: [usize; 2],
    precision: Precision,
) -> Result<Array> {
    let (dtype, count) = (of.dtype(), rows * cols);
    let (mut x, _) = backend.l2_normalise(&of.reshape((1, count))?)?;
    let side = rows.min(cols);
    let product = |sizes: [usize; 3], a: Factor<'_>, b: Factor<'_>| {
        let [m, n, k] = sizes;
        let shape = &Shape::from((m, n));
        backend.matmul(MatrixProduct { sizes: [1, m, n, k], a, b, shape, precision, dtype })
    };
    let [a, b, c] = COEFFICIENTS;
    for _ in 0..ITERATIONS {
        // With the shorter side first this is X·Xᵀ and P·X, else Xᵀ·X and X·P.
        let gram = match rows <= cols {
            true => product([side, side, cols], Factor::plain(&x), Factor::transposed(&x))?,
            false => product([side, side, rows], Factor::transposed(&x), Factor::plain(&x))?,
        };
        let square = product([side; 3], Factor::plain(&gram), Factor::plain(&gram))?;
        let (gram, square) = (backend.affine(&gram, b, 0.0)?, backend.affine(&square, c, 0.0)?);
        let polynomial = backend.binary(BinaryOp::Add, &gram, &square)?;
        let turned = match rows <= cols {
            true => product([rows, cols, side], Factor::plain(&polynomial), Factor::plain(&x))?,
            false => product([rows, cols, side], Factor::plain(&x), Factor::plain(&polynomial))?,
        };
        let kept = backend.affine(&x.reshape(count)?, a, 0.0)?;
        x = backend.binary(BinaryOp::Add, &kept, &turned.reshape(count)?)?;
    }
    Ok(x.reshape(count)?)
}

impl Optimizer for Muon {
    fn scaled_step(
        &mut self,
        params: &[ParamBucket],
        lr: f64,
        scaled: Option<&ScaledStep>,
        context: &Context,
    ) -> Result<()> {
        if scaled.is_some() {
            return Err(TensorError::unsupported("muon", "gradients of a scaled loss"));
        }
        self.steps += 1;
        let &mut Self { momentum, betas, eps, weight_decay, precision, steps, .. } = self;
        let adam = AdamOptions { lr, betas, eps, weight_decay, decoupled: true, step: steps };
        let step = Step { lr, momentum, weight_decay, precision, adam };
        let mut kinds = self.moments.both();
        each_owned(params, &mut kinds, context, |update| {
            let entries = update.param.owned_entries();
            let mut groups = update.param.owned_groups().into_iter();
            groups.try_for_each(|group| step.group(update, &entries, &group))
        })
    }

    fn note_left_out(&mut self, _: u64) {}

    fn set_momentum(&mut self, momentum: f64) {
        (self.momentum, self.betas.0) = (momentum, momentum);
    }

    fn reserve(&mut self, params: &[ParamBucket]) -> Result<()> {
        self.moments.reserve(params)
    }

    fn kinds(&self) -> Vec<&'static str> {
        self.moments.kinds().to_vec()
    }

    fn state(&self, params: &[ParamBucket]) -> Result<(u64, Vec<(String, Tensor)>)> {
        Ok((self.steps, self.moments.named(params)?))
    }

    fn load_state(&mut self, params: &[ParamBucket], steps: u64, tensors: &[(String, Tensor)]) -> Result<()> {
        self.steps = steps;
        self.moments.load(params, tensors)
    }

    fn state_bytes(&self) -> usize {
        self.moments.bytes()
    }
}
