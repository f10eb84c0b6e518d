//! The divergence of a variational encoder's distribution from its prior.

use candle_core::WithDType as _;

use super::Over;
use crate::storage::{Contiguous, dispatch, tensor_from};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// KL(N(mu, e^logvar) ‖ N(0, 1)) = ½ Σ (mu² + e^logvar − 1 − logvar) over a sample's latent elements, averaged
/// over samples (Kingma & Welling 2014); `mu` and `logvar` are [N, Z].
///
/// # Errors
/// If the shapes differ.
pub fn kl_standard_normal(tape: &Tape, mu: &Value, logvar: &Value, over: Over) -> Result<Value> {
    const OP: &str = "kl_standard_normal";
    if mu.shape() != logvar.shape() {
        return Err(TensorError::unequal(OP, mu.shape(), logvar.shape()));
    }
    let factor = over.factor(mu.dims().first().copied().unwrap_or(1));
    let (mu_t, lv_t) = (mu.tensor()?.contiguous()?, logvar.tensor()?.contiguous()?);
    let dtype = mu_t.dtype();
    let loss = {
        let (mu, lv) =
            (Contiguous::by(OP, tape.context(), &mu_t)?, Contiguous::by(OP, tape.context(), &lv_t)?);
        dispatch!(OP, dtype, T => {
            let pairs = mu.slice::<T>()?.iter().zip(lv.slice::<T>()?);
            let total: f64 = pairs
                .map(|(mu, lv)| (mu.to_f64(), lv.to_f64()))
                .map(|(mu, lv)| 0.5 * (mu * mu + lv.exp() - 1.0 - lv))
                .sum();
            tensor_from(vec![T::from_f64(total * factor)], ())
        })?
    };
    tape.push(OP, &[mu, logvar], loss, move |tape, grad, grads| {
        let grad = &grad.tensor()?;
        let grad = grad.to_dtype(candle_core::DType::F64)?.to_scalar::<f64>()? * factor;
        let (mu, lv) =
            (Contiguous::by(OP, tape.context(), &mu_t)?, Contiguous::by(OP, tape.context(), &lv_t)?);
        dispatch!(OP, dtype, T => {
            let dmu = mu.slice::<T>()?.iter().map(|mu| T::from_f64(mu.to_f64() * grad)).collect::<Vec<T>>();
            let dlv = lv.slice::<T>()?.iter().map(|lv| T::from_f64(0.5 * (lv.to_f64().exp() - 1.0) * grad));
            let dlv = dlv.collect::<Vec<T>>();
            grads.add(0, tensor_from(dmu, mu_t.shape().clone())?)?;
            grads.add(1, tensor_from(dlv, mu_t.shape().clone())?)
        })
    })
}
