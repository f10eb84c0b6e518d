//! The trait by which the training loop runs a training of any model type.

use phalanx_tensor::{Tape, Value};

use super::caption_reader::CaptionReader;
use super::classes::Evaluated;
use super::drawing::Drawing;
use super::evaluator::EvaluatorOutput;
use super::forward::ForwardPass;
use super::phase::{Phase, Training, TrainingOutline};
use super::step::{Loss, StepInput};
use super::text_input::TextInput;
use super::writing::{Writing, WrittenPart, WrittenText};
use crate::engine::error::TrainError;

/// The source of generated images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum ImageSource {
    /// Prompts: [`AnyTraining::draw`] returns images.
    Prompts,
    /// Images: [`AnyTraining::restore`] returns images.
    Images,
}

/// The use of texts by a training of any model type.
pub(in crate::engine) trait TextTraining {
    /// Writes texts; `None` if this training does not. `take` gets parts of texts as soon as they are known.
    fn write(
        &self,
        tape: &Tape,
        writing: &Writing,
        take: &mut dyn FnMut(WrittenPart<'_>),
    ) -> Result<Option<Vec<WrittenText>>, TrainError>;

    /// Returns the logits of the classes of texts; `None` if this training classifies no texts.
    fn classify_texts(&self, tape: &Tape, texts: &[TextInput]) -> Result<Option<Value>, TrainError>;
}

/// A training, with its model type erased for the loop.
pub(in crate::engine) trait AnyTraining: TextTraining + Sync {
    /// Returns the description of the model.
    fn describe(&self) -> &str;

    /// Returns the phases of a step, in order.
    fn phases(&self) -> Vec<&Phase>;

    /// Computes the loss of the phase with this index.
    fn loss(&self, phase: usize, step: &StepInput<'_>) -> Result<Loss, TrainError>;

    /// Returns the measures of the evaluation.
    fn outline(&self) -> TrainingOutline;

    /// Returns the measures of a test batch, as sums over its samples.
    fn evaluate(&self, step: &StepInput<'_>) -> Result<Evaluated, TrainError>;

    /// The source of the images that it makes, if it makes any.
    fn image_source(&self) -> Option<ImageSource>;

    /// Generates the requested images; `None` if this training generates none.
    fn draw(&self, tape: &Tape, drawing: &Drawing) -> Result<Option<Vec<Vec<f32>>>, TrainError>;

    /// Generates the images that a grid shows in place of each sample of [`AnyTraining::draw`]; `None` if it shows the sample.
    fn panels(
        &self,
        tape: &Tape,
        prompts: &[String],
        columns: usize,
    ) -> Result<Option<Vec<Vec<f32>>>, TrainError>;

    /// Reconstructs images; `None` if this training does not.
    fn restore(&self, tape: &Tape, images: &Value) -> Result<Option<Value>, TrainError>;

    /// Returns the features and classes of the images of a batch; `None` if this training is no evaluator.
    fn evaluator_output(&self, step: &StepInput<'_>) -> Result<Option<EvaluatorOutput>, TrainError>;

    /// Returns the forward pass for predictions and exports; `None` if this training has none.
    fn forward(&self) -> Option<ForwardPass<'_>>;

    /// The reader of captions, if images are generated from them.
    fn caption_reader(&self) -> Option<&dyn CaptionReader>;
}

impl<M: Sync> AnyTraining for Training<M> {
    fn describe(&self) -> &str {
        &self.description
    }

    fn phases(&self) -> Vec<&Phase> {
        self.phases.iter().map(|(phase, _)| phase).collect()
    }

    fn loss(&self, phase: usize, step: &StepInput<'_>) -> Result<Loss, TrainError> {
        let (phase, run) = &self.phases[phase];
        let loss = run(&self.model, step)?;
        counted(loss.measures.len(), &phase.measures, || match phase.name.as_str() {
            "" => "the loss".to_owned(),
            name => format!("phase `{name}`"),
        })?;
        Ok(loss)
    }

    fn outline(&self) -> TrainingOutline {
        TrainingOutline::of(self)
    }

    fn evaluate(&self, step: &StepInput<'_>) -> Result<Evaluated, TrainError> {
        let mut evaluated = match &self.classify {
            Some((classes, scores)) => scores(&self.model, step)?.evaluate(step, classes)?,
            None => Evaluated::default(),
        };
        if let Some(evaluate) = &self.evaluate {
            let sums = evaluate(&self.model, step)?;
            counted(sums.len(), &self.evaluated, || "the evaluation".to_owned())?;
            evaluated.sums.extend(sums);
        }
        Ok(evaluated)
    }

    fn image_source(&self) -> Option<ImageSource> {
        match (&self.images.draw, &self.images.restore) {
            (_, Some(_)) => Some(ImageSource::Images),
            (Some(_), None) => Some(ImageSource::Prompts),
            (None, None) => None,
        }
    }

    fn draw(&self, tape: &Tape, drawing: &Drawing) -> Result<Option<Vec<Vec<f32>>>, TrainError> {
        self.images.draw.as_ref().map(|draw| draw(&self.model, tape, drawing)).transpose()
    }

    fn panels(
        &self,
        tape: &Tape,
        prompts: &[String],
        columns: usize,
    ) -> Result<Option<Vec<Vec<f32>>>, TrainError> {
        self.images.panels.as_ref().map(|panels| panels(&self.model, tape, prompts, columns)).transpose()
    }

    fn restore(&self, tape: &Tape, images: &Value) -> Result<Option<Value>, TrainError> {
        self.images.restore.as_ref().map(|restore| restore(&self.model, tape, images)).transpose()
    }

    fn evaluator_output(&self, step: &StepInput<'_>) -> Result<Option<EvaluatorOutput>, TrainError> {
        self.images.evaluator.as_ref().map(|evaluator| evaluator(&self.model, step)).transpose()
    }

    fn forward(&self) -> Option<ForwardPass<'_>> {
        self.forward.as_ref().map(|forward| ForwardPass::new(&self.model, forward))
    }

    fn caption_reader(&self) -> Option<&dyn CaptionReader> {
        self.images.captions.map(|reader| reader(&self.model))
    }
}

/// Checks that there is a number for each name.
fn counted(count: usize, names: &[String], who: impl Fn() -> String) -> Result<(), TrainError> {
    if count == names.len() {
        return Ok(());
    }
    let (who, wanted) = (who(), names.len());
    Err(TrainError::Setup(format!("{who} gives {count} numbers for {wanted} names: {names:?}")))
}

impl<M: Sync> TextTraining for Training<M> {
    fn write(
        &self,
        tape: &Tape,
        writing: &Writing,
        take: &mut dyn FnMut(WrittenPart<'_>),
    ) -> Result<Option<Vec<WrittenText>>, TrainError> {
        self.write.as_ref().map(|write| write(&self.model, tape, writing, take)).transpose()
    }

    fn classify_texts(&self, tape: &Tape, texts: &[TextInput]) -> Result<Option<Value>, TrainError> {
        self.classify_texts.as_ref().map(|logits| logits(&self.model, tape, texts)).transpose()
    }
}
