//! CLIP: contrastive training of a text encoder and an image tower.

use candle_core::{DType, Tensor};
use phalanx_models::{Clip, ClipOutput, ClipTextConfig, ImageTowerConfig};
use phalanx_tensor::group::gather_counts;
use phalanx_tensor::loss::LossDivisor;
use phalanx_tensor::{Scope, Tape, TensorError, Value, ops};

use super::text::{TextSettings, Texts};
use phalanx_trainer::engine::{EvaluatorOutput, Setup, StepInput, TaskSpec, TrainError, Training, number};

/// CLIP with small towers. The contrastive loss compares each image with the texts of the micro-batch on all ranks.
pub(super) struct Contrastive {
    model: Clip,
    texts: Texts,
    words_weight: f64,
}

phalanx_config::settings! {
    /// The settings of CLIP.
    pub(super) struct ClipSettings {
        /// Channels after each downsampling, from the image inwards.
        widths: Vec<usize> = vec![32, 64, 128];
        /// Weight of the words of captions, read in images by the image tower, added to the contrastive loss; 0 = none.
        words_weight: f64 = 0.0;
        flatten text: TextSettings;
    }
}

/// Returns the task of CLIP.
pub(super) fn spec() -> TaskSpec<ClipSettings> {
    TaskSpec::new("clip", "Contrastive: a text encoder and an image tower", contrastive).validate(
        |settings: &ClipSettings, _, relations| {
            relations.not_negative("model.words_weight", settings.words_weight);
            settings.text.check(relations);
        },
    )
}

fn contrastive(setup: &mut Setup<'_>, settings: &ClipSettings) -> Result<Training<Contrastive>, TrainError> {
    let texts = Texts::new(&settings.text)?;
    let text = texts.encoder().clone();
    let image = ImageTowerConfig { widths: settings.widths.clone() };
    let name = format!(
        "CLIP with a text encoder of {} x {} and an image tower of {:?}",
        text.layers, text.width, settings.widths
    );
    let words_weight = settings.words_weight;
    setup.cut_by(|| Ok(text.tensor_plan()?.and(image.tensor_plan()?)))?;
    let model = texts.register(setup, "", |scope| clip_model(scope, &text, &image, words_weight))?;
    Ok(Training::new(name, Contrastive { model, texts, words_weight })
        .loss(Contrastive::loss)
        .evaluate(["loss", "accuracy"], Contrastive::evaluate)
        .evaluator(Contrastive::evaluator_output))
}

impl Contrastive {
    /// Computes the features of a batch. Also returns the token ids of its captions.
    fn features(&self, step: &StepInput<'_>) -> Result<(ClipOutput, Tensor), TrainError> {
        let ids = self.texts.encode(step.texts("captions")?)?;
        Ok((self.model.forward(step.tape, &step.value("images")?, &ids)?, ids))
    }

    fn evaluator_output(&self, step: &StepInput<'_>) -> Result<EvaluatorOutput, TrainError> {
        let (out, _) = self.features(step)?;
        Ok(EvaluatorOutput { captions: Some(out.text), ..EvaluatorOutput::of_features(out.image) })
    }

    fn loss(&self, step: &StepInput<'_>) -> Result<Value, TrainError> {
        let (features, ids) = self.features(step)?;
        self.texts.warn(step);
        Ok(clip_loss(step.tape, &features, &ids, self.words_weight, step.over()?)?)
    }

    fn evaluate(&self, step: &StepInput<'_>) -> Result<[f64; 2], TrainError> {
        let (out, ids) = self.features(step)?;
        let loss = number(&clip_loss(step.tape, &out, &ids, self.words_weight, step.over()?)?)?;
        Ok([loss, matched(step, &out, &ids)?])
    }
}

/// Registers CLIP, with a head for the words of captions if these have a weight.
pub(super) fn clip_model(
    scope: &Scope,
    text: &ClipTextConfig,
    image: &ImageTowerConfig,
    words_weight: f64,
) -> Result<Clip, TensorError> {
    if words_weight > 0.0 { Clip::with_words(scope, text, image) } else { Clip::new(scope, text, image) }
}

/// Returns CLIP's contrastive loss, with `words_weight` times that of the words of the captions `ids` if the model has a
/// head for them.
pub(super) fn clip_loss(
    tape: &Tape,
    out: &ClipOutput,
    ids: &Tensor,
    words_weight: f64,
    over: LossDivisor,
) -> Result<Value, TensorError> {
    let contrastive = out.loss(tape, over)?;
    match out.words_loss(tape, ids, over)? {
        Some(words) => ops::add(tape, &contrastive, &ops::scale(tape, &words, words_weight)?),
        None => Ok(contrastive),
    }
}

/// Sums the weights of this rank's images whose nearest text in the batch of all ranks is their own. Texts with equal
/// tokens count as one.
fn matched(step: &StepInput<'_>, out: &ClipOutput, ids: &Tensor) -> Result<f64, TrainError> {
    let image = out.image.to_host()?.to_dtype(DType::F32)?;
    let text = Value::constant(out.text.to_host()?.to_dtype(DType::F32)?);
    // f32 holds the ids of tokens exactly.
    let own = Value::constant(ids.to_dtype(DType::F32)?);
    let (text, all) = match &step.tape.session().batch_group {
        Some(group) => {
            let counts = gather_counts(group.as_ref(), ids.dim(0)?);
            let counts = counts.map_err(|source| TensorError::Hook { op: "matched", source })?;
            let gather = |value: &Value| ops::all_gather(step.tape, value, 0, &counts, group);
            (gather(&text)?, gather(&own)?)
        }
        None => (text, own.clone()),
    };
    let similarity = image.matmul(&text.tensor()?.t()?)?;
    let best = similarity.argmax(1)?.to_vec1::<u32>()?;
    let (own, all) = (own.tensor()?.to_vec2::<f32>()?, all.tensor()?.to_vec2::<f32>()?);
    let rows = best.iter().zip(own).zip(step.batch.weights());
    let matched = rows.filter(|((best, own), _)| all[**best as usize] == *own);
    Ok(matched.map(|(_, weight)| f64::from(*weight)).sum())
}
