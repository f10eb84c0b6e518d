//! Losses, summed in f64.

use candle_core::{DType, Tensor};
use phalanx_kernels::{
    CrossEntropyColumns, CrossEntropyRows, Float as _, ROW_PARTS, cross_entropy_parts, cross_entropy_rows,
    cross_entropy_slopes,
};

use crate::backend::{
    Array, CrossEntropy, CutCrossEntropy, ElementLoss, ElementLossInputs, KlInputs, Losses,
};
use crate::storage::{Contiguous, Indices, dispatch, tensor_from, with_slice_mut};
use crate::{ArrayError, Context, Result};

fn scalar(op: &'static str, array: &Array) -> Result<f64> {
    Ok(array.host(op)?.to_dtype(DType::F64)?.to_scalar::<f64>()?)
}

/// Calls a function with the targets of some columns.
fn with_columns(
    op: &'static str,
    of: CutCrossEntropy<'_>,
    run: impl FnOnce(CrossEntropyColumns<'_>) -> Result<()>,
) -> Result<()> {
    let CutCrossEntropy { rows: CrossEntropy { labels, weights, options, factor }, first, columns } = of;
    let labels = Indices::of(op, labels.host(op)?)?;
    let weights = weights.map(|weights| Contiguous::locked(op, weights.host(op)?)).transpose()?;
    let (labels, weights) = (labels.slice()?, weights.as_ref().map(Contiguous::slice).transpose()?);
    let rows = CrossEntropyRows { labels, weights, options, factor };
    run(CrossEntropyColumns { rows, first, columns })
}

impl Losses for Context {
    fn cross_entropy(&self, logits: &Array, of: CrossEntropy<'_>) -> Result<Array> {
        const OP: &str = "cross_entropy";
        let (logits, labels) = (logits.host(OP)?, Indices::of(OP, of.labels.host(OP)?)?);
        let (rows, classes) = logits.dims2()?;
        let weights = of.weights.map(|weights| Contiguous::locked(OP, weights.host(OP)?)).transpose()?;
        let weights = weights.as_ref().map(Contiguous::slice).transpose()?;
        let CrossEntropy { options, factor, .. } = of;
        let of = CrossEntropyRows { labels: labels.slice()?, weights, options, factor };
        dispatch!(OP, logits.dtype(), T => {
            let mut losses = vec![T::default(); rows];
            with_slice_mut::<T, _>(OP, logits, |logits| {
                Ok(cross_entropy_rows(self, classes, of, logits, &mut losses)?)
            })?;
            let total: f64 = losses.iter().map(|loss| loss.to_f64()).sum();
            Ok(tensor_from(vec![T::from_f64(total)], ())?.into())
        })
    }

    fn cross_entropy_parts(&self, logits: &Array, of: CutCrossEntropy<'_>) -> Result<Array> {
        const OP: &str = "cross_entropy_parts";
        let (dtype, (rows, width)) = (logits.dtype(), logits.host(OP)?.dims2()?);
        let logits = Contiguous::locked(OP, logits.host(OP)?)?;
        let mut parts = vec![0.0; rows * ROW_PARTS];
        with_columns(OP, of, |of| {
            dispatch!(OP, dtype, T => {
                Ok(cross_entropy_parts(self, width, of, logits.slice::<T>()?, &mut parts)?)
            })
        })?;
        Ok(tensor_from(parts, (rows, ROW_PARTS))?.into())
    }

    fn cross_entropy_slopes(&self, logits: &Array, of: CutCrossEntropy<'_>, log_sums: &[f64]) -> Result<()> {
        const OP: &str = "cross_entropy_slopes";
        let logits = logits.host(OP)?;
        let (_, width) = logits.dims2()?;
        with_columns(OP, of, |of| {
            dispatch!(OP, logits.dtype(), T => with_slice_mut::<T, _>(OP, logits, |logits| {
                Ok(cross_entropy_slopes(self, width, of, log_sums, logits)?)
            }))
        })
    }

    fn element_loss(&self, of: ElementLossInputs<'_>) -> Result<Array> {
        let ElementLossInputs { loss, x, target, factor } = of;
        let op = loss.name();
        let (x, t) = (x.host(op)?, target.host(op)?);
        match loss {
            ElementLoss::L1 => total(self, op, x, t, factor, |x, t| (x - t).abs()),
            ElementLoss::SmoothL1 { beta } => total(self, op, x, t, factor, |x, t| {
                let off = (x - t).abs();
                if off < beta { 0.5 * off * off / beta } else { off - 0.5 * beta }
            }),
            ElementLoss::Mse => total(self, op, x, t, factor, |x, t| (x - t) * (x - t)),
            ElementLoss::BceWithLogits => {
                total(self, op, x, t, factor, |x, t| x.max(0.0) - x * t + (-x.abs()).exp().ln_1p())
            }
        }
    }

    fn element_loss_backward(&self, of: ElementLossInputs<'_>, grad: &Array) -> Result<Array> {
        let ElementLossInputs { loss, x, target, factor } = of;
        let op = loss.name();
        let grad = scalar(op, grad)? * factor;
        let (x, t) = (x.host(op)?, target.host(op)?);
        match loss {
            ElementLoss::L1 => {
                derivative(self, op, x, t, grad, |x, t| if x == t { 0.0 } else { (x - t).signum() })
            }
            ElementLoss::SmoothL1 { beta } => {
                derivative(self, op, x, t, grad, |x, t| ((x - t) / beta).clamp(-1.0, 1.0))
            }
            ElementLoss::Mse => derivative(self, op, x, t, grad, |x, t| 2.0 * (x - t)),
            // This form of the sigmoid never overflows e^x.
            ElementLoss::BceWithLogits => derivative(self, op, x, t, grad, |x, t| {
                if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) - t } else { x.exp() / (1.0 + x.exp()) - t }
            }),
        }
    }

    fn kl_standard_normal(&self, of: KlInputs<'_>) -> Result<Array> {
        let KlInputs { mu, logvar, factor } = of;
        let f = |mu: f64, lv: f64| 0.5 * (mu * mu + lv.exp() - 1.0 - lv);
        const OP: &str = "kl_standard_normal";
        total(self, OP, mu.host(OP)?, logvar.host(OP)?, factor, f)
    }

    fn kl_standard_normal_backward(&self, of: KlInputs<'_>, grad: &Array) -> Result<[Array; 2]> {
        let KlInputs { mu, logvar, factor } = of;
        const OP: &str = "kl_standard_normal";
        let grad = scalar(OP, grad)? * factor;
        let (mu_t, lv_t) = (mu.host(OP)?, logvar.host(OP)?);
        let (mu, lv) = (Contiguous::by(OP, self, mu_t)?, Contiguous::by(OP, self, lv_t)?);
        dispatch!(OP, mu_t.dtype(), T => {
            let dmu = mu.slice::<T>()?.iter().map(|mu| T::from_f64(mu.to_f64() * grad)).collect::<Vec<T>>();
            let dlv = lv.slice::<T>()?.iter().map(|lv| T::from_f64(0.5 * (lv.to_f64().exp() - 1.0) * grad));
            let dlv = dlv.collect::<Vec<T>>();
            let shape = mu_t.shape();
            Ok([tensor_from(dmu, shape.clone())?.into(), tensor_from(dlv, shape.clone())?.into()])
        })
    }
}

/// Returns the sum of `f` over pairs of elements, times `factor`.
fn total(
    context: &Context,
    op: &'static str,
    x: &Tensor,
    t: &Tensor,
    factor: f64,
    f: impl Fn(f64, f64) -> f64,
) -> Result<Array> {
    let dtype = x.dtype();
    let (x, t) = (Contiguous::by(op, context, x)?, Contiguous::by(op, context, t)?);
    dispatch!(op, dtype, T => {
        let pairs = x.slice::<T>()?.iter().zip(t.slice::<T>()?);
        let total: f64 = pairs.map(|(x, t)| f(x.to_f64(), t.to_f64())).sum();
        Ok::<_, ArrayError>(tensor_from(vec![T::from_f64(total * factor)], ())?.into())
    })
}

/// Returns `df` of pairs of elements, times `grad`.
fn derivative(
    context: &Context,
    op: &'static str,
    x_t: &Tensor,
    t: &Tensor,
    grad: f64,
    df: impl Fn(f64, f64) -> f64,
) -> Result<Array> {
    let (x, t) = (Contiguous::by(op, context, x_t)?, Contiguous::by(op, context, t)?);
    dispatch!(op, x_t.dtype(), T => {
        let pairs = x.slice::<T>()?.iter().zip(t.slice::<T>()?);
        let dx = pairs.map(|(x, t)| T::from_f64(df(x.to_f64(), t.to_f64()) * grad)).collect::<Vec<T>>();
        Ok::<_, ArrayError>(tensor_from(dx, x_t.shape().clone())?.into())
    })
}
