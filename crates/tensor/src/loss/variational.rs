//! The KL divergence of a variational encoder's distribution from its prior.

use super::LossDivisor;
use crate::backend::{Array, KlInputs};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// Computes KL(N(mu, e^logvar) ‖ N(0, 1)) = ½ Σ (mu² + e^logvar − 1 − logvar) over a sample's latent elements,
/// averaged over samples (Kingma & Welling 2014). `mu` and `logvar` are [N, Z].
///
/// # Errors
/// If the shapes differ.
pub fn kl_standard_normal(tape: &Tape, mu: &Value, logvar: &Value, over: LossDivisor) -> Result<Value> {
    const OP: &str = "kl_standard_normal";
    if mu.shape() != logvar.shape() {
        return Err(TensorError::unequal(OP, mu.shape(), logvar.shape()));
    }
    let factor = over.factor(mu.dims().first().copied().unwrap_or(1));
    let (mu_t, lv_t) = (mu.contiguous()?, logvar.contiguous()?);
    let loss = Array::backend_of(tape.context(), [&mu_t, &lv_t]).kl_standard_normal(KlInputs {
        mu: &mu_t,
        logvar: &lv_t,
        factor,
    })?;
    tape.push(OP, &[mu, logvar], loss, move |tape, grad, grads| {
        let backend = grad.backend(tape.context());
        let [dmu, dlogvar] =
            backend.kl_standard_normal_backward(KlInputs { mu: &mu_t, logvar: &lv_t, factor }, grad)?;
        grads.add(0, dmu)?;
        grads.add(1, dlogvar)
    })
}
