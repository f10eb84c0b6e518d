//! The losses of the first stage.

use phalanx_tensor::loss::{self, Over};
use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

use super::{Generated, StageOneDiscriminator};

/// Weight of the divergence in the generator's loss.
const KL_WEIGHT: f64 = 2.0;

/// A generator's loss and its parts.
#[derive(Debug, Clone)]
pub struct StageOneLosses {
    /// What is minimised.
    pub total: Value,
    /// That of the judgement alone.
    pub adversarial: Value,
    /// The divergence of conditions from the standard normal distribution, averaged over samples and elements.
    pub kl: Value,
}

/// Binary cross-entropy of logits `[N]` that should all be `target`.
fn judged(tape: &Tape, logits: &Value, target: f64) -> Result<Value> {
    loss::bce_with_logits(tape, logits, &ops::full_like(tape, logits, target)?, Over::Batch)
}

/// Real images with their own condition should pass; with the next one's, and generated ones, should not:
/// real + ½(wrong + fake). `fake` and `condition` must be cut off from the generator ([`Value::detach`]).
///
/// # Errors
/// If the shapes do not go together, or there are fewer than two images.
pub fn stage_one_discriminator_loss(
    tape: &Tape,
    discriminator: &StageOneDiscriminator,
    real: &Value,
    fake: &Value,
    condition: &Value,
) -> Result<Value> {
    let batch = real.dims().first().copied().unwrap_or(0);
    if batch < 2 {
        let problem = format!(
            "each image is also judged with the next one's condition, which takes at least two; there are {batch}"
        );
        return Err(TensorError::Shape { op: "stage_one_discriminator_loss", problem });
    }
    let real_features = discriminator.features(tape, real)?;
    let fake_features = discriminator.features(tape, fake)?;
    let logits = discriminator.logits(tape, &real_features, condition)?;
    let right = judged(tape, &logits, 1.0)?;
    let others = ops::narrow(tape, condition, 0, 1, batch - 1)?;
    let features = ops::narrow(tape, &real_features, 0, 0, batch - 1)?;
    let wrong = judged(tape, &discriminator.logits(tape, &features, &others)?, 0.0)?;
    let made = judged(tape, &discriminator.logits(tape, &fake_features, condition)?, 0.0)?;
    ops::add(tape, &right, &ops::scale(tape, &ops::add(tape, &wrong, &made)?, 0.5)?)
}

/// Generated images should pass, and conditions should be near the standard normal distribution. `shown` is the
/// condition that the discriminator sees; the authors' training shows it the mean, cut off ([`Value::detach`]), so that
/// texts are not bent to please it. The discriminator's parameters get no gradient.
///
/// # Errors
/// If the shapes do not go together.
pub fn stage_one_generator_loss(
    tape: &Tape,
    discriminator: &StageOneDiscriminator,
    generated: &Generated,
    shown: &Value,
) -> Result<StageOneLosses> {
    let condition = &generated.condition;
    let logits = tape.frozen(|tape| {
        let features = discriminator.features(tape, &generated.image)?;
        discriminator.logits(tape, &features, shown)
    })?;
    let adversarial = judged(tape, &logits, 1.0)?;
    let elements = condition.mu.dims().get(1).copied().unwrap_or(1).max(1);
    let kl = loss::kl_standard_normal(tape, &condition.mu, &condition.logvar, Over::Batch)?;
    let kl = ops::scale(tape, &kl, 1.0 / elements as f64)?;
    let total = ops::add(tape, &adversarial, &ops::scale(tape, &kl, KL_WEIGHT)?)?;
    Ok(StageOneLosses { total, adversarial, kl })
}
