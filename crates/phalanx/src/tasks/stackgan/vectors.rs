//! Where the vectors of texts come from: a text encoder that is trained first, one that was trained before, or a file.

use std::path::Path;

use phalanx_models::{Clip, ClipTextEncoder, ImageTowerConfig};
use phalanx_tensor::{Scope, Tape, Value, ops};

use super::embeddings::Embeddings;
use super::settings::StackGanSettings;
use crate::tasks::clip::{clip_loss, clip_model};
use crate::tasks::text::Texts;
use phalanx_trainer::engine::{Setup, StepInput, TrainError};
use phalanx_weights::WeightError;

/// The source of the vectors of captions.
pub(super) struct TextVectors {
    source: Source,
    dim: usize,
    words_weight: f64,
}

enum Source {
    /// An encoder with the image tower that it is trained with, in this run (`learns`) or before.
    Pair { clip: Box<Clip>, texts: Texts, learns: bool },
    /// An encoder that stays as it is.
    Fixed(ClipTextEncoder, Texts),
    /// No encoder.
    Read(Embeddings),
}

impl TextVectors {
    /// Registers the network `text`, unless the vectors are read from a file.
    pub(super) fn register(setup: &mut Setup<'_>, settings: &StackGanSettings) -> Result<Self, TrainError> {
        if !settings.text_embeddings.is_empty() {
            setup.leave_out("text")?;
            let read = Embeddings::open(Path::new(&settings.text_embeddings))?;
            return Ok(Self { dim: read.dim(), source: Source::Read(read), words_weight: 0.0 });
        }
        let texts = Texts::new(&settings.text)?;
        let config = texts.encoder().clone();
        let words_weight = settings.gan.words_weight;
        let pair = |scope: &Scope| clip_model(scope, &config, &ImageTowerConfig::default(), words_weight);
        let of_run = [&settings.stage1, &settings.text_run].into_iter().find(|run| !run.is_empty());
        let source = match of_run {
            Some(run) => {
                // A run of `clip` has the encoder's own names.
                let (run, prefixes) = (Path::new(run), ["text.", ""]);
                if settings.gan.matching_weight > 0.0 {
                    let clip = setup.frozen_network_of_run("text", run, &prefixes, pair).map_err(no_tower)?;
                    Source::Pair { clip: Box::new(clip), texts, learns: false }
                } else {
                    let build = |scope: &Scope| ClipTextEncoder::new(scope, &config);
                    Source::Fixed(setup.frozen_network_of_run("text", run, &prefixes, build)?, texts)
                }
            }
            None if !settings.text.text_weights.is_empty() => {
                Source::Fixed(texts.register_frozen(setup, "text")?, texts)
            }
            None => {
                setup.cut_by(|| Ok(config.tensor_plan()?.and(ImageTowerConfig::default().tensor_plan()?)))?;
                Source::Pair { clip: Box::new(setup.network("text", pair)?), texts, learns: true }
            }
        };
        Ok(Self { source, dim: config.embed, words_weight })
    }

    /// Elements of a vector.
    pub(super) fn dim(&self) -> usize {
        self.dim
    }

    /// Returns true if the encoder is trained in this run.
    pub(super) fn learns(&self) -> bool {
        matches!(self.source, Source::Pair { learns: true, .. })
    }

    /// Where the vectors come from, in words.
    pub(super) fn describe(&self) -> String {
        let dim = self.dim;
        match &self.source {
            Source::Pair { learns: true, .. } => format!("texts by an encoder of its own to {dim} numbers"),
            Source::Pair { .. } | Source::Fixed(..) => format!("texts by a trained encoder to {dim} numbers"),
            Source::Read(read) => format!("texts by {} vectors of {dim} numbers", read.len()),
        }
    }

    /// The vectors of captions, [N, dim]. Those of an encoder have the length √dim, so that their elements are about 1; what
    /// makes conditions of them does not change them.
    pub(super) fn vectors(&self, tape: &Tape, captions: &[String]) -> Result<Value, TrainError> {
        let (encoder, texts) = match &self.source {
            Source::Pair { clip, texts, .. } => (clip.text(), texts),
            Source::Fixed(encoder, texts) => (encoder, texts),
            Source::Read(read) => {
                return Ok(Value::constant(tape.backend().from_host(&read.vectors(captions)?)?));
            }
        };
        let features = encoder.forward(tape, &texts.encode(captions)?)?.pooled;
        let unit = ops::l2_normalise(tape, &features)?;
        Ok(ops::scale(tape, &unit, (self.dim as f64).sqrt())?.detach())
    }

    /// CLIP's loss of a batch's captions and images, with that of the words.
    pub(super) fn contrastive_loss(&self, step: &StepInput<'_>, images: &Value) -> Result<Value, TrainError> {
        let (clip, texts) = self.pair()?;
        let ids = texts.encode(step.texts("captions")?)?;
        texts.warn(step);
        let out = clip.forward(step.tape, images, &ids)?;
        Ok(clip_loss(step.tape, &out, &ids, self.words_weight, step.over()?)?)
    }

    /// CLIP's loss, with that of the words, of a batch's captions and generated images, without a gradient for encoder and tower.
    pub(super) fn matching_loss(&self, step: &StepInput<'_>, images: &Value) -> Result<Value, TrainError> {
        let (clip, texts) = self.pair()?;
        let (ids, over) = (texts.encode(step.texts("captions")?)?, step.over()?);
        Ok(step.tape.frozen(|tape| {
            clip_loss(tape, &clip.forward(tape, images, &ids)?, &ids, self.words_weight, over)
        })?)
    }

    /// The encoder with its image tower.
    fn pair(&self) -> Result<(&Clip, &Texts), TrainError> {
        match &self.source {
            Source::Pair { clip, texts, .. } => Ok((clip, texts)),
            _ => Err(TrainError::Setup("the text encoder has no image tower".to_owned())),
        }
    }
}

/// Adds to the error of a run that does not fit what the run should have.
fn no_tower(error: TrainError) -> TrainError {
    match error {
        TrainError::Weights(problem @ WeightError::OfRun { .. }) => TrainError::Setup(format!(
            "{problem}; model.matching_weight needs the image tower of a run of clip or stackgan, with model.words_weight \
             as there, or is 0"
        )),
        other => other,
    }
}
