//! `losses.json`: L1, KL and binary cross-entropy of given tensors.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_tensor::loss::{self, LossDivisor};
use phalanx_tensor::{Context, Session, Tape, Value};

use crate::{ParityError, Quantity, Reference, fill};

pub(super) fn check(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    const TOLERANCE: f64 = 1e-4;
    let tensor = |name: &str, dims: &[usize]| -> Result<Tensor, ParityError> {
        let n = dims.iter().product();
        Ok(Tensor::from_vec(fill::sym(name, reference.seed, n, 1.0), dims, &Device::Cpu)?)
    };
    let (mu, logvar) = (tensor("mu", &[4, 16])?, tensor("logvar", &[4, 16])?);
    let (recon, target) = (tensor("recon", &[4, 3, 8, 8])?, tensor("target", &[4, 3, 8, 8])?);
    // The target probabilities: 1 where the target is positive.
    let positive = target.gt(0.0)?.to_dtype(target.dtype())?;

    let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
    let [mu, logvar, recon, target, positive] = [mu, logvar, recon, target, positive].map(Value::constant);
    let number =
        |value: Value| -> Result<f64, ParityError> { Ok(f64::from(value.tensor()?.to_scalar::<f32>()?)) };
    let kl = number(loss::kl_standard_normal(&tape, &mu, &logvar, LossDivisor::Batch)?)?;
    let found = [
        ("l1_mean", number(loss::l1(&tape, &recon, &target, LossDivisor::Batch)?)?),
        ("kld_sum_over_latent_mean_over_batch", kl),
        ("kld_mean", kl / 16.0),
        ("bce_sigmoid_mean", number(loss::bce_with_logits(&tape, &recon, &positive, LossDivisor::Batch)?)?),
    ];
    found
        .into_iter()
        .map(|(name, found)| Ok(Quantity::vector(name, &[found], &[reference.number(name)?], TOLERANCE)))
        .collect()
}
