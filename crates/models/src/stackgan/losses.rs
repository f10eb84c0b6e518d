//! The losses of both stages, over batches that ranks may share.

use phalanx_tensor::loss::{self, Over, weighted};
use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

use super::{Condition, Discriminator, Generated};

/// How much the samples of a batch count: the losses are means over the *global* batch, so that those of ranks add up.
#[derive(Debug, Clone, Copy)]
pub struct SampleWeights<'a> {
    /// The weight of each of this rank's samples.
    pub weights: &'a [f32],
    /// The sum of the weights of all ranks' samples.
    pub sum: f64,
}

/// A discriminator's loss and its parts.
#[derive(Debug, Clone)]
pub struct DiscriminatorLosses {
    /// What is minimised.
    pub total: Value,
    /// That of real images with their own conditions, in stage II averaged with that of real images alone.
    pub real: Value,
    /// That of real images with other images' conditions; none in a batch of one sample.
    pub wrong: Option<Value>,
    /// That of generated images, in stage II averaged likewise.
    pub fake: Value,
}

/// A generator's loss and its parts.
#[derive(Debug, Clone)]
pub struct GeneratorLosses {
    /// What is minimised.
    pub total: Value,
    /// That of the judgements alone.
    pub adversarial: Value,
    /// The divergence of conditions from the standard normal distribution, averaged over samples and elements.
    pub kl: Value,
}

impl SampleWeights<'_> {
    /// The weighted mean of binary cross-entropies of logits `[N]` that should all be `target`.
    fn judged(&self, tape: &Tape, logits: &Value, target: f64) -> Result<Value> {
        weighted(tape, logits, self.weights, self.sum, |logits, _, over| {
            loss::bce_with_logits(tape, logits, &ops::full_like(tape, logits, target)?, over)
        })
    }

    /// The weighted mean of the divergences of conditions, each averaged over its elements.
    fn divergence(&self, tape: &Tape, condition: &Condition) -> Result<Value> {
        let Condition { mu, logvar } = condition;
        let elements = mu.dims().get(1).copied().unwrap_or(1).max(1);
        let kl = weighted(tape, mu, self.weights, self.sum, |mu, rows, over: Over| {
            let whole = rows.len() == logvar.dims()[0];
            let logvar = match whole {
                true => logvar.clone(),
                false => ops::narrow(tape, logvar, 0, rows.start, rows.len())?,
            };
            loss::kl_standard_normal(tape, mu, &logvar, over)
        })?;
        ops::scale(tape, &kl, 1.0 / elements as f64)
    }
}

/// Each sample's condition replaced by that of the next sample of the *global* batch, and the last one's by the first one's:
/// what makes of real images wrong pairs. `None` if the batch has one sample only.
///
/// Ranks have the global batch's samples in its order, so that a rank's last sample is followed by the next rank's first; these
/// first conditions travel between the ranks of the session's [`phalanx_tensor::Session::batch_group`], each of which must have
/// a sample. So n ranks pair as one does. The authors' code leaves the last sample without a pair; with one, every rank has as
/// many pairs as samples, whatever their number, and all three kinds of pairs weigh alike.
///
/// # Errors
/// If `condition`, [N, C], is of another shape or empty, or needs a gradient; and the transport's.
pub fn conditions_of_next(tape: &Tape, condition: &Value) -> Result<Option<Value>> {
    const OP: &str = "conditions_of_next";
    let &[samples, _] = condition.dims() else {
        let problem = format!("expected conditions [N, C], not {:?}", condition.shape());
        return Err(TensorError::Shape { op: OP, problem });
    };
    if samples == 0 || condition.needs_grad() {
        let problem = format!("{samples} conditions, which must be some, and cut off from what made them");
        return Err(TensorError::Shape { op: OP, problem });
    }
    let first = ops::narrow(tape, condition, 0, 0, 1)?;
    let next = match &tape.session().batch_group {
        Some(group) if group.size() > 1 => {
            let firsts = ops::all_gather(tape, &first, 0, &vec![1; group.size()], group)?;
            ops::narrow(tape, &firsts, 0, (group.rank() + 1) % group.size(), 1)?
        }
        _ if samples == 1 => return Ok(None),
        _ => first,
    };
    if samples == 1 {
        return Ok(Some(next));
    }
    let own = ops::narrow(tape, condition, 0, 1, samples - 1)?;
    Ok(Some(ops::cat(tape, &[&own, &next], 0)?))
}

/// Real images with their own conditions should pass; with others' (`wrong`, [`conditions_of_next`]), and generated ones, should
/// not: in stage I real + ½(wrong + fake); in stage II, where images are judged alone as well,
/// ½(real + real alone) + ⅓(wrong + fake + fake alone). `fake` and the conditions must be cut off from the generator
/// ([`Value::detach`]).
///
/// # Errors
/// If the shapes do not go together.
pub fn discriminator_loss(
    tape: &Tape,
    discriminator: &Discriminator,
    (real, fake): (&Value, &Value),
    (condition, wrong): (&Value, Option<&Value>),
    counts: SampleWeights<'_>,
) -> Result<DiscriminatorLosses> {
    let real_features = discriminator.features(tape, real)?;
    let fake_features = discriminator.features(tape, fake)?;
    let judged = |features: &Value, condition: &Value, target: f64| {
        counts.judged(tape, &discriminator.logits(tape, features, condition)?, target)
    };
    let alone = |features: &Value, target: f64| {
        let logits = discriminator.logits_alone(tape, features)?;
        logits.map(|logits| counts.judged(tape, &logits, target)).transpose()
    };
    let right = judged(&real_features, condition, 1.0)?;
    let wrong = wrong.map(|wrong| judged(&real_features, wrong, 0.0)).transpose()?;
    let made = judged(&fake_features, condition, 0.0)?;
    let not = match &wrong {
        Some(wrong) => ops::add(tape, wrong, &made)?,
        None => made.clone(),
    };
    let (Some(right_alone), Some(made_alone)) = (alone(&real_features, 1.0)?, alone(&fake_features, 0.0)?)
    else {
        let total = ops::add(tape, &right, &ops::scale(tape, &not, 0.5)?)?;
        return Ok(DiscriminatorLosses { total, real: right, wrong, fake: made });
    };
    let real = ops::scale(tape, &ops::add(tape, &right, &right_alone)?, 0.5)?;
    let fake = ops::scale(tape, &ops::add(tape, &made.detach(), &made_alone.detach())?, 0.5)?;
    let not = ops::scale(tape, &ops::add(tape, &not, &made_alone)?, 1.0 / 3.0)?;
    Ok(DiscriminatorLosses { total: ops::add(tape, &real, &not)?, real, wrong, fake })
}

/// Generated images should pass, with their conditions and in stage II also alone, and conditions should be near the standard
/// normal distribution: the judgements' losses plus `kl_weight` (2 in the authors' code) times the divergence. `shown` is the
/// condition that the discriminator sees; the authors' training shows it the mean, cut off ([`Value::detach`]), so that texts
/// are not bent to please it. The discriminator's parameters get no gradient.
///
/// # Errors
/// If the shapes do not go together.
pub fn generator_loss(
    tape: &Tape,
    discriminator: &Discriminator,
    generated: &Generated,
    shown: &Value,
    kl_weight: f64,
    counts: SampleWeights<'_>,
) -> Result<GeneratorLosses> {
    let (logits, alone) = tape.frozen(|tape| {
        let features = discriminator.features(tape, &generated.image)?;
        Ok((discriminator.logits(tape, &features, shown)?, discriminator.logits_alone(tape, &features)?))
    })?;
    let mut adversarial = counts.judged(tape, &logits, 1.0)?;
    if let Some(alone) = alone {
        adversarial = ops::add(tape, &adversarial, &counts.judged(tape, &alone, 1.0)?)?;
    }
    let kl = counts.divergence(tape, &generated.condition)?;
    let total = ops::add(tape, &adversarial, &ops::scale(tape, &kl, kl_weight)?)?;
    Ok(GeneratorLosses { total, adversarial, kl })
}
