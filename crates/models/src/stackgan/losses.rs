//! The losses of both stages, over batches that ranks may share.

use phalanx_tensor::loss::{self, LossDivisor, weighted};
use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

use crate::names::named;

use super::{Condition, Discriminator, GeneratorOutput};

/// The weights of the samples of a batch. Losses are means over the *global* batch, so those of the ranks add up.
#[derive(Debug, Clone, Copy)]
pub struct SampleWeights<'a> {
    /// The weight of each sample of this rank.
    pub weights: &'a [f32],
    /// The sum of the weights over all ranks.
    pub sum: f64,
}

/// The function that makes losses of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdversarialLoss {
    /// Binary cross-entropy, as in StackGAN: the generator maximises log σ(logit).
    CrossEntropy,
    /// Hinge loss, as in Lim and Ye (2017) and Miyato et al. (2018): a discriminator is content with logits beyond 1
    /// and −1, and the generator maximises the logit.
    Hinge,
}

impl AdversarialLoss {
    /// All losses.
    pub const ALL: &'static [Self] = &[Self::CrossEntropy, Self::Hinge];
}

named! {
    AdversarialLoss { CrossEntropy = "cross-entropy", Hinge = "hinge" }
}

/// The losses of both networks of a stage.
#[derive(Debug, Clone, Copy)]
pub struct GanObjective<'a> {
    /// The function that makes losses of logits.
    pub adversarial: AdversarialLoss,
    /// The weight of the divergence of conditions in the generator's loss, 2 in the authors' code.
    pub kl_weight: f64,
    /// The weights of the samples.
    pub counts: SampleWeights<'a>,
}

/// A discriminator's loss and its parts.
#[derive(Debug, Clone)]
pub struct DiscriminatorLosses {
    /// The minimised loss.
    pub total: Value,
    /// The loss of real images with their own conditions; in stage II averaged with that of real images alone.
    pub real: Value,
    /// The loss of real images with the conditions of other images; `None` in a batch of one sample.
    pub wrong: Option<Value>,
    /// The loss of generated images; in stage II averaged in the same way.
    pub fake: Value,
}

/// A generator's loss and its parts.
#[derive(Debug, Clone)]
pub struct GeneratorLosses {
    /// The minimised loss.
    pub total: Value,
    /// The adversarial part.
    pub adversarial: Value,
    /// The divergence of the conditions from the standard normal distribution, averaged over samples and elements.
    pub kl: Value,
}

impl SampleWeights<'_> {
    /// Returns the weighted mean of the binary cross-entropies of logits `[N]` with the same target.
    fn cross_entropy(&self, tape: &Tape, logits: &Value, target: f64) -> Result<Value> {
        weighted(tape, logits, self.weights, self.sum, |logits, _, over| {
            loss::bce_with_logits(tape, logits, &ops::full_like(tape, logits, target)?, over)
        })
    }

    /// Returns the weighted mean of values `[N]`.
    fn mean(&self, tape: &Tape, values: &Value) -> Result<Value> {
        weighted(tape, values, self.weights, self.sum, |values, _, over| {
            let samples = values.dims()[0];
            ops::scale(tape, &ops::sum(tape, values)?, 1.0 / over.divisor(samples))
        })
    }

    /// Returns the weighted mean of the divergences of conditions, each averaged over its elements.
    fn divergence(&self, tape: &Tape, condition: &Condition) -> Result<Value> {
        let Condition { mu, logvar } = condition;
        let elements = mu.dims().get(1).copied().unwrap_or(1).max(1);
        let kl = weighted(tape, mu, self.weights, self.sum, |mu, rows, over: LossDivisor| {
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

/// Replaces the condition of each sample by that of the next sample of the *global* batch, and the last by the first.
/// This makes wrong pairs of real images. Returns `None` if the batch has one sample.
///
/// The samples of the ranks follow each other, so a rank's last sample is followed by the next rank's first. These
/// first conditions are exchanged in the session's [`phalanx_tensor::Session::batch_group`], where each rank must have
/// a sample. So n ranks make the same pairs as one. The authors' code leaves the last sample without a pair; here every
/// rank has as many pairs as samples, and all three kinds of pairs have equal weight.
///
/// # Errors
/// If `condition`, [N, C], has another shape, is empty or needs a gradient; and the errors of the transport.
pub fn conditions_of_next(tape: &Tape, condition: &Value) -> Result<Option<Value>> {
    const OP: &str = "conditions_of_next";
    let &[samples, _] = condition.dims() else {
        let problem = format!("expected conditions [N, C], not {:?}", condition.shape());
        return Err(TensorError::Shape { op: OP, problem });
    };
    if samples == 0 || condition.needs_grad() {
        let problem = format!("{samples} conditions; expected at least one, detached from the generator");
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

impl GanObjective<'_> {
    /// Computes the loss of a discriminator. Real images with their own conditions should pass; real images with
    /// others' conditions (`wrong`, [`conditions_of_next`]) and generated images should not.
    ///
    /// Stage I: real + ½(wrong + fake). Stage II, which also judges images alone: ½(real + real alone) + ⅓(wrong + fake
    /// + fake alone). `fake` and the conditions must be detached from the generator ([`Value::detach`]).
    ///
    /// # Errors
    /// If the shapes do not go together.
    pub fn discriminator_loss(
        &self,
        tape: &Tape,
        discriminator: &Discriminator,
        (real, fake): (&Value, &Value),
        (condition, wrong): (&Value, Option<&Value>),
    ) -> Result<DiscriminatorLosses> {
        let real_features = discriminator.features(tape, real)?;
        let fake_features = discriminator.features(tape, fake)?;
        let paired = |features: &Value, condition: &Value, real: bool| {
            self.judged(tape, &discriminator.logits(tape, features, condition)?, real)
        };
        let alone = |features: &Value, real: bool| {
            let logits = discriminator.logits_alone(tape, features)?;
            logits.map(|logits| self.judged(tape, &logits, real)).transpose()
        };
        let right = paired(&real_features, condition, true)?;
        let wrong = wrong.map(|wrong| paired(&real_features, wrong, false)).transpose()?;
        let made = paired(&fake_features, condition, false)?;
        let not = match &wrong {
            Some(wrong) => ops::add(tape, wrong, &made)?,
            None => made.clone(),
        };
        let (Some(right_alone), Some(made_alone)) =
            (alone(&real_features, true)?, alone(&fake_features, false)?)
        else {
            let total = ops::add(tape, &right, &ops::scale(tape, &not, 0.5)?)?;
            return Ok(DiscriminatorLosses { total, real: right, wrong, fake: made });
        };
        let real = ops::scale(tape, &ops::add(tape, &right, &right_alone)?, 0.5)?;
        let fake = ops::scale(tape, &ops::add(tape, &made.detach(), &made_alone.detach())?, 0.5)?;
        let not = ops::scale(tape, &ops::add(tape, &not, &made_alone)?, 1.0 / 3.0)?;
        Ok(DiscriminatorLosses { total: ops::add(tape, &real, &not)?, real, wrong, fake })
    }

    /// Computes the loss of a generator. Generated images should pass, with their conditions and in stage II also
    /// alone, and the conditions should be near the standard normal distribution.
    ///
    /// `shown` is the condition that the discriminator sees. The authors use the detached mean ([`Value::detach`]), so
    /// that texts do not adapt to the discriminator. The discriminator's parameters get no gradient.
    ///
    /// # Errors
    /// If the shapes do not go together.
    pub fn generator_loss(
        &self,
        tape: &Tape,
        discriminator: &Discriminator,
        generated: &GeneratorOutput,
        shown: &Value,
    ) -> Result<GeneratorLosses> {
        let (logits, alone) = tape.frozen(|tape| {
            let features = discriminator.features(tape, &generated.image)?;
            Ok((discriminator.logits(tape, &features, shown)?, discriminator.logits_alone(tape, &features)?))
        })?;
        let mut adversarial = self.convincing(tape, &logits)?;
        if let Some(alone) = alone {
            adversarial = ops::add(tape, &adversarial, &self.convincing(tape, &alone)?)?;
        }
        let kl = self.counts.divergence(tape, &generated.condition)?;
        let total = ops::add(tape, &adversarial, &ops::scale(tape, &kl, self.kl_weight)?)?;
        Ok(GeneratorLosses { total, adversarial, kl })
    }

    /// Returns the discriminator's mean loss of logits `[N]` of pairs that should pass (`real`) or not.
    fn judged(&self, tape: &Tape, logits: &Value, real: bool) -> Result<Value> {
        match self.adversarial {
            AdversarialLoss::CrossEntropy => {
                self.counts.cross_entropy(tape, logits, if real { 1.0 } else { 0.0 })
            }
            AdversarialLoss::Hinge => {
                let signed = if real { ops::scale(tape, logits, -1.0)? } else { logits.clone() };
                let short = ops::relu(tape, &ops::add_scalar(tape, &signed, 1.0)?)?;
                self.counts.mean(tape, &short)
            }
        }
    }

    /// Returns the generator's mean loss of logits `[N]` of its images.
    fn convincing(&self, tape: &Tape, logits: &Value) -> Result<Value> {
        match self.adversarial {
            AdversarialLoss::CrossEntropy => self.counts.cross_entropy(tape, logits, 1.0),
            AdversarialLoss::Hinge => self.counts.mean(tape, &ops::scale(tape, logits, -1.0)?),
        }
    }
}
