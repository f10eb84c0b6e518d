//! The phases of a step, and the training that they make up.

use std::sync::Arc;

use phalanx_run::TextUse;
use phalanx_tensor::io::NamePart;
use phalanx_tensor::{Session, Tape, Value};
use phalanx_weights::{NameDeclarations, ShapeAdvice, Translate};

use super::caption_reader::CaptionReader;
use super::classes::{CLASS_SUMS, ClassScores, Classes};
use super::drawing::{Drawing, DrawingKind};
use super::evaluator::EvaluatorOutput;
use super::forward::{ForwardFn, ForwardInput, ForwardOutput};
use super::step::{Loss, StepInput};
use super::text_input::TextInput;
use super::writing::{Writing, WrittenPart, WrittenText};
use crate::engine::distributed::Network;
use crate::engine::error::TrainError;

/// A phase of a step, as the loop sees it.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::engine) struct Phase {
    /// The name; empty for the only phase.
    pub(in crate::engine) name: String,
    /// The networks that it updates; none stands for all trained ones.
    pub(in crate::engine) updates: Vec<String>,
    /// The names of its measures, without the loss.
    pub(in crate::engine) measures: Vec<String>,
    /// The part of the run in which steps have it, as two fractions from 0 to 1.
    pub(in crate::engine) span: [f64; 2],
    /// The measures that are watched for collapse, if the phase is watched.
    pub(in crate::engine) watched: Option<Vec<String>>,
    /// The measure that is watched in place of the loss.
    pub(in crate::engine) watched_loss: Option<String>,
}

impl Phase {
    /// Creates a phase of all steps, without measures, that is not watched.
    pub(in crate::engine) fn new(name: &str, updates: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            updates,
            measures: Vec::new(),
            span: [0.0, 1.0],
            watched: None,
            watched_loss: None,
        }
    }

    /// True if it updates the trained network of this name.
    pub(in crate::engine) fn updates(&self, network: &str) -> bool {
        self.updates.is_empty() || self.updates.iter().any(|name| name == network)
    }

    /// Prefixes of the names of the parameters that are constants in it: those of the networks that it does not update.
    pub(in crate::engine) fn constants<'a>(
        &self,
        networks: impl IntoIterator<Item = &'a Network>,
    ) -> Arc<[String]> {
        let others =
            networks.into_iter().filter(|network| !(network.is_learnt() && self.updates(network.name())));
        others.map(|network| format!("{}.", network.name())).collect()
    }
}

/// Measures that follow from the means of the others.
#[derive(Debug, Clone)]
pub(in crate::engine) struct DerivedMeasures {
    /// The names.
    pub(in crate::engine) names: Vec<String>,
    /// Computes them from the means, in the order of [`Training::evaluate`], and the sum of the weights.
    pub(in crate::engine) compute: fn(&[f64], f64) -> Vec<f64>,
}

impl PartialEq for DerivedMeasures {
    fn eq(&self, other: &Self) -> bool {
        self.names == other.names
    }
}

impl Eq for DerivedMeasures {}

/// Measures that stand out and those that follow from others, and the meaning of texts.
#[derive(Debug, Clone, Default)]
pub(super) struct NamedMeasures {
    pub(super) derived: Option<DerivedMeasures>,
    /// The measure that leads.
    pub(super) headline: Option<String>,
    /// The unit that the weights of samples count.
    pub(super) weight_unit: Option<&'static str>,
    /// The text that is written for a given one.
    pub(super) text_use: TextUse,
    /// The sums at the end that are no measures.
    pub(super) hidden: usize,
}

pub(super) type LossFn<M> = Box<dyn Fn(&M, &StepInput<'_>) -> Result<Loss, TrainError> + Sync>;
pub(super) type EvaluateFn<M> = Box<dyn Fn(&M, &StepInput<'_>) -> Result<Vec<f64>, TrainError> + Sync>;
pub(super) type ClassifyFn<M> = Box<dyn Fn(&M, &StepInput<'_>) -> Result<ClassScores, TrainError> + Sync>;
pub(super) type DrawFn<M> = Box<dyn Fn(&M, &Tape, &Drawing) -> Result<Vec<Vec<f32>>, TrainError> + Sync>;
pub(super) type PanelsFn<M> =
    Box<dyn Fn(&M, &Tape, &[String], usize) -> Result<Vec<Vec<f32>>, TrainError> + Sync>;
pub(super) type WriteFn<M> = Box<
    dyn Fn(&M, &Tape, &Writing, &mut dyn FnMut(WrittenPart<'_>)) -> Result<Vec<WrittenText>, TrainError>
        + Sync,
>;
pub(super) type ClassifyTextsFn<M> = Box<dyn Fn(&M, &Tape, &[TextInput]) -> Result<Value, TrainError> + Sync>;
pub(super) type RestoreFn<M> = Box<dyn Fn(&M, &Tape, &Value) -> Result<Value, TrainError> + Sync>;
pub(super) type EvaluatorFn<M> =
    Box<dyn Fn(&M, &StepInput<'_>) -> Result<EvaluatorOutput, TrainError> + Sync>;

/// The functions of a training that generate or judge images.
pub(super) struct ImageFns<M> {
    pub(super) draw: Option<DrawFn<M>>,
    pub(super) panels: Option<PanelsFn<M>>,
    pub(super) restore: Option<RestoreFn<M>>,
    pub(super) evaluator: Option<EvaluatorFn<M>>,
    pub(super) captions: Option<fn(&M) -> &dyn CaptionReader>,
}

impl<M> Default for ImageFns<M> {
    fn default() -> Self {
        Self { draw: None, panels: None, restore: None, evaluator: None, captions: None }
    }
}

/// A model, its losses, its evaluation and its samples.
///
/// `M` holds what the phases need: usually a struct of networks. Virtual ranks (`train.logical_ranks`) run on threads, one at a time, so
/// the model and the closures must be `Sync`.
///
/// ```
/// use phalanx_tensor::{Value, loss, nn};
/// use phalanx_trainer::engine::{Setup, StepInput, TrainError, Training};
///
/// struct Fit {
///     line: nn::Linear,
/// }
///
/// impl Fit {
///     fn loss(&self, step: &StepInput<'_>) -> Result<Value, TrainError> {
///         let noise = step.normal(&[3])?;
///         let output = self.line.forward(step.tape, &noise)?;
///         Ok(loss::mse(step.tape, &output, &step.normal(&[1])?, step.over()?)?)
///     }
/// }
///
/// fn build(setup: &mut Setup<'_>, _: &()) -> Result<Training<Fit>, TrainError> {
///     let line = setup.model(|scope| nn::Linear::new(&scope.pp("line").block(), 3, 1))?;
///     Ok(Training::new("a line through noise", Fit { line }).loss(Fit::loss))
/// }
/// ```
pub struct Training<M> {
    pub(super) description: String,
    pub(super) model: M,
    pub(super) phases: Vec<(Phase, LossFn<M>)>,
    pub(super) evaluated: Vec<String>,
    pub(super) evaluate: Option<EvaluateFn<M>>,
    pub(super) classify: Option<(Classes, ClassifyFn<M>)>,
    pub(super) named: NamedMeasures,
    pub(super) images: ImageFns<M>,
    pub(super) write: Option<WriteFn<M>>,
    pub(super) classify_texts: Option<ClassifyTextsFn<M>>,
    pub(super) forward: Option<(ForwardInput, ForwardFn<M>)>,
    pub(super) names: NameDeclarations,
}

impl<M> std::fmt::Debug for Training<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let phases: Vec<&Phase> = self.phases.iter().map(|(phase, _)| phase).collect();
        let mut fields = f.debug_struct("Training");
        fields.field("description", &self.description).field("phases", &phases);
        fields
            .field("evaluated", &self.evaluated)
            .field("classes", &self.classify.as_ref().map(|(classes, _)| classes))
            .field("draws", &(self.images.draw.is_some() || self.images.restore.is_some()));
        fields.finish_non_exhaustive()
    }
}

impl<M> Training<M> {
    /// Creates a training of `model` without phases, with a short description.
    pub fn new(description: impl Into<String>, model: M) -> Self {
        let (phases, evaluated) = (Vec::new(), Vec::new());
        Self {
            description: description.into(),
            model,
            phases,
            evaluated,
            evaluate: None,
            classify: None,
            named: NamedMeasures::default(),
            images: ImageFns::default(),
            write: None,
            classify_texts: None,
            forward: None,
            names: NameDeclarations::default(),
        }
    }

    /// Adds the only phase: it updates all trained networks by this loss.
    #[must_use]
    pub fn loss<L: Into<Loss>>(
        self,
        loss: impl Fn(&M, &StepInput<'_>) -> Result<L, TrainError> + Sync + 'static,
    ) -> Self {
        self.phase("", [], loss)
    }

    /// Adds a phase after the others of a step: it updates the networks of these names by this loss.
    #[must_use]
    pub fn phase<'n, L: Into<Loss>>(
        mut self,
        name: &str,
        updates: impl IntoIterator<Item = &'n str>,
        loss: impl Fn(&M, &StepInput<'_>) -> Result<L, TrainError> + Sync + 'static,
    ) -> Self {
        let updates = updates.into_iter().map(str::to_owned).collect();
        let phase = Phase::new(name, updates);
        self.phases.push((phase, Box::new(move |model, step| Ok(loss(model, step)?.into()))));
        self
    }

    /// Names the measures of the last phase; see [`Loss::new`].
    #[must_use]
    pub fn measures<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Self {
        if let Some((phase, _)) = self.phases.last_mut() {
            phase.measures = names.into_iter().map(str::to_owned).collect();
        }
        self
    }

    /// Restricts the last phase to a part of the run, between two fractions of its length, such as 0 and 0.5 for the first half. The
    /// schedule of a network that is trained in a part of the run covers that part.
    #[must_use]
    pub fn during(mut self, from: f64, to: f64) -> Self {
        if let Some((phase, _)) = self.phases.last_mut() {
            phase.span = [from, to];
        }
        self
    }

    /// Watches the last phase for collapse: it is adversarial, so its loss should not come to rest, and these measures, such as the
    /// diversity of samples, should not fall towards 0. The section `[watch]` sets the bounds. A collapse is reported, and the run
    /// continues.
    #[must_use]
    pub fn watched<'n>(mut self, measures: impl IntoIterator<Item = &'n str>) -> Self {
        if let Some((phase, _)) = self.phases.last_mut() {
            phase.watched = Some(measures.into_iter().map(str::to_owned).collect());
        }
        self
    }

    /// Watches a measure of the last phase in place of its loss, which has further parts that say nothing of the contest.
    #[must_use]
    pub fn watched_loss(mut self, measure: &str) -> Self {
        if let Some((phase, _)) = self.phases.last_mut() {
            phase.watched_loss = Some(measure.to_owned());
        }
        self
    }

    /// Sets the evaluation on the test split: for each name, the sum of a number over the samples of a batch. The first is usually the
    /// loss.
    #[must_use]
    pub fn evaluate<'n, S: Into<Vec<f64>>>(
        mut self,
        names: impl IntoIterator<Item = &'n str>,
        evaluate: impl Fn(&M, &StepInput<'_>) -> Result<S, TrainError> + Sync + 'static,
    ) -> Self {
        self.evaluated = names.into_iter().map(str::to_owned).collect();
        self.evaluate = Some(Box::new(move |model, step| Ok(evaluate(model, step)?.into())));
        self
    }

    /// Adds measures that `compute` derives from the means of [`Training::evaluate`] and the sum of the samples' weights, in the order of
    /// the names, such as the perplexity of a mean loss.
    #[must_use]
    pub fn derive<'n>(
        mut self,
        names: impl IntoIterator<Item = &'n str>,
        compute: fn(&[f64], f64) -> Vec<f64>,
    ) -> Self {
        let names = names.into_iter().map(str::to_owned).collect();
        self.named.derived = Some(DerivedMeasures { names, compute });
        self
    }

    /// Says that the last `count` numbers of [`Training::evaluate`] are parts of derived measures and no measures of their own, such as
    /// the counts of a score.
    #[must_use]
    pub fn hide(mut self, count: usize) -> Self {
        self.named.hidden = count;
        self
    }

    /// Declares a classifier: its evaluation gives the scores of the classes for each test sample. The engine computes loss, accuracy,
    /// top-5 accuracy, and precision, recall and F1 score of each class. It writes the confusion matrix and the worst mistakes into the
    /// run's folder. The measures are the same on any number of ranks. They come before the measures of [`Training::evaluate`].
    ///
    /// ```
    /// # use phalanx_tensor::{Value, nn};
    /// # use phalanx_trainer::{ClassScores, StepInput, TrainError, Training};
    /// # fn training(line: nn::Linear, loss: fn(&nn::Linear, &StepInput<'_>) -> Result<Value, TrainError>) -> Training<nn::Linear> {
    /// Training::new("three classes of points", line).loss(loss).classify(3, |line, step| {
    ///     let logits = line.forward(step.tape, &step.value("points")?)?;
    ///     Ok(ClassScores::new(logits, step.classes("labels")?))
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn classify(
        mut self,
        classes: impl Into<Classes>,
        scores: impl Fn(&M, &StepInput<'_>) -> Result<ClassScores, TrainError> + Sync + 'static,
    ) -> Self {
        self.classify = Some((classes.into(), Box::new(scores)));
        self
    }

    /// Sets the measure of the evaluation that a reader looks at first. It leads in lines, tables and charts, together with a measure of
    /// training of the same name. A classifier's is `accuracy` unless another one is set.
    #[must_use]
    pub fn headline(mut self, name: &str) -> Self {
        self.named.headline = Some(name.to_owned());
        self
    }

    /// Names the unit that the weights of samples count, such as `tokens`. Lines and the summary then have its number per second, too.
    #[must_use]
    pub fn counts(mut self, unit: &'static str) -> Self {
        self.named.weight_unit = Some(unit);
        self
    }

    /// Sets the generation of samples: for each prompt this number of images, one after the other, `[3, size, size]` planar in [-1, 1].
    #[must_use]
    pub fn sample(
        self,
        sample: impl Fn(&M, &Tape, &[String], usize) -> Result<Vec<Vec<f32>>, TrainError> + Sync + 'static,
    ) -> Self {
        self.draw(move |model, tape, drawing| match drawing.kind {
            DrawingKind::Samples => sample(model, tape, &drawing.prompts, drawing.columns),
            DrawingKind::Each { first } => {
                let mut pictures = Vec::with_capacity(drawing.prompts.len());
                for (prompt, number) in drawing.prompts.iter().zip(first..) {
                    let session = tape.session();
                    let tape = Tape::forward_only(Session { key: session.key.step(number), ..session.clone() });
                    pictures.extend(sample(model, &tape, std::slice::from_ref(prompt), 1)?);
                }
                Ok(pictures)
            }
            _ => Err(TrainError::Setup(
                "this training generates samples of prompts only: no strips, interpolations or image-to-image"
                    .to_owned(),
            )),
        })
    }

    /// Sets the generation of images for requests of all kinds: rows one after the other, each image `[3, size, size]` planar in
    /// [-1, 1].
    #[must_use]
    pub fn draw(
        mut self,
        draw: impl Fn(&M, &Tape, &Drawing) -> Result<Vec<Vec<f32>>, TrainError> + Sync + 'static,
    ) -> Self {
        self.images.draw = Some(Box::new(draw));
        self
    }

    /// Sets the images that grids show in place of a sample: equally many for each, of its size, such as stages of its generation that end
    /// with the sample.
    #[must_use]
    pub fn panels(
        mut self,
        panels: impl Fn(&M, &Tape, &[String], usize) -> Result<Vec<Vec<f32>>, TrainError> + Sync + 'static,
    ) -> Self {
        self.images.panels = Some(Box::new(panels));
        self
    }

    /// Sets the reconstruction of images `[N, 3, size, size]` in [-1, 1], of the same shape, for networks that do not generate from
    /// prompts. Grids show each image next to its reconstruction, and evaluators measure the latter.
    #[must_use]
    pub fn restore(
        mut self,
        restore: impl Fn(&M, &Tape, &Value) -> Result<Value, TrainError> + Sync + 'static,
    ) -> Self {
        self.images.restore = Some(Box::new(restore));
        self
    }

    /// Sets the writing of texts, by default continuations: for each prompt the requested number of samples, one after the other. The
    /// closure's last argument takes parts of texts as soon as they are known.
    #[must_use]
    pub fn write(
        mut self,
        write: impl Fn(
            &M,
            &Tape,
            &Writing,
            &mut dyn FnMut(WrittenPart<'_>),
        ) -> Result<Vec<WrittenText>, TrainError>
        + Sync
        + 'static,
    ) -> Self {
        self.write = Some(Box::new(write));
        self
    }

    /// Says that [`Training::write`] writes another text for a given one than its continuation.
    #[must_use]
    pub fn text_use(mut self, text_use: TextUse) -> Self {
        self.named.text_use = text_use;
        self
    }

    /// Sets the logits [N, classes] of N texts, in evaluation: `phalanx predict` reads the classes of texts from them.
    #[must_use]
    pub fn classify_texts(
        mut self,
        logits: impl Fn(&M, &Tape, &[TextInput]) -> Result<Value, TrainError> + Sync + 'static,
    ) -> Self {
        self.classify_texts = Some(Box::new(logits));
        self
    }

    /// Sets the features and classes of images, with which the network measures the images of another run (`[quality]`). The batch has
    /// `images`, prepared as this training's test images, and `captions`.
    #[must_use]
    pub fn evaluator(
        mut self,
        evaluator: impl Fn(&M, &StepInput<'_>) -> Result<EvaluatorOutput, TrainError> + Sync + 'static,
    ) -> Self {
        self.images.evaluator = Some(Box::new(evaluator));
        self
    }

    /// Declares that images are generated from captions, which the model reads: `phalanx explain` shows what it makes of them.
    #[must_use]
    pub fn reads_captions(mut self) -> Self
    where
        M: CaptionReader,
    {
        fn reader<M: CaptionReader>(model: &M) -> &dyn CaptionReader {
            model
        }
        self.images.captions = Some(reader::<M>);
        self
    }

    /// Sets the forward pass from `input` to its outputs, in evaluation: `phalanx predict` reads logits of images from it, and
    /// `phalanx export` traces it for ONNX. It must compute by ops on the tape alone.
    #[must_use]
    pub fn forward(
        mut self,
        input: ForwardInput,
        forward: impl Fn(&M, &Tape, &Value) -> Result<Vec<ForwardOutput>, TrainError> + Sync + 'static,
    ) -> Self {
        self.forward = Some((input, Box::new(forward)));
        self
    }

    /// Names the parameters of the head, by the beginnings of their names up to a dot, such as `fc`. Where `model.weights` has them
    /// in another shape, or not at all, they are made new, as for another number of classes. All other parameters must fit.
    #[must_use]
    pub fn head<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Self {
        self.names.head.extend(names.into_iter().map(str::to_owned));
        self
    }

    /// Adds the names of another program, for `model.weights`: a function that returns the name here of a tensor there, and `None`
    /// for tensors that it does not know. Names here are always known.
    #[must_use]
    pub fn names_of(mut self, translate: fn(&str) -> Option<String>) -> Self {
        self.names.programs.push(Translate::Names(translate));
        self
    }

    /// As [`Training::names_of`], for a program that keeps some tensors in parts, such as the projections of queries, keys and values.
    #[must_use]
    pub fn names_of_parts(mut self, translate: fn(&str) -> Option<NamePart>) -> Self {
        self.names.programs.push(Translate::Parts(translate));
        self
    }

    /// Names learned positions of a square grid of patches behind a class token, [1, 1 + side², C]: those of `model.weights` for images of
    /// another size are resampled, as by torchvision's `interpolate_embeddings`.
    #[must_use]
    pub fn positions_of_patches(mut self, names: &str) -> Self {
        self.names.positions.push(names.to_owned());
        self
    }

    /// Adds advice to the error that parameters have another shape in `model.weights`, such as the setting that their shape comes from.
    #[must_use]
    pub fn shape_advice(mut self, names: &str, advice: impl Into<String>) -> Self {
        self.names.advice.push(ShapeAdvice { pattern: names.to_owned(), text: advice.into() });
        self
    }
}

/// The measures of a training, and the unit of the weights of its samples.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::engine) struct TrainingOutline {
    /// The measures that are sums over samples.
    pub(in crate::engine) sums: Vec<String>,
    /// The sums at the end that are no measures of their own.
    pub(in crate::engine) hidden: usize,
    /// The measures that follow from the means of the sums.
    pub(in crate::engine) derived: Option<DerivedMeasures>,
    /// The classes of a classifier.
    pub(in crate::engine) classes: Option<Classes>,
    /// The measure that leads.
    pub(in crate::engine) headline: Option<String>,
    /// The unit that the weights of samples count, such as tokens.
    pub(in crate::engine) weight_unit: Option<&'static str>,
    /// The text that it writes for a given one, if it writes texts.
    pub(in crate::engine) texts: Option<TextUse>,
}

impl TrainingOutline {
    /// Creates the outline of a training.
    pub(super) fn of<M>(training: &Training<M>) -> Self {
        let named = &training.named;
        let classes = training.classify.as_ref().map(|(classes, _)| classes.clone());
        let of_classes = if classes.is_some() { &CLASS_SUMS[..] } else { &[] };
        let sums = of_classes.iter().map(|name| (*name).to_owned()).chain(training.evaluated.iter().cloned());
        let headline = named.headline.clone().or_else(|| classes.as_ref().map(|_| "accuracy".to_owned()));
        let (derived, weight_unit) = (named.derived.clone(), named.weight_unit);
        Self {
            sums: sums.collect(),
            hidden: named.hidden,
            derived,
            classes,
            headline,
            weight_unit,
            texts: training.write.as_ref().map(|_| named.text_use),
        }
    }

    /// The names of all measures, in the order in which they are computed.
    pub(in crate::engine) fn names(&self) -> Vec<String> {
        let of_means = self.derived.iter().flat_map(|derived| derived.names.iter().cloned());
        let of_classes = self.classes.iter().flat_map(Classes::measures).map(str::to_owned);
        let shown = self.sums.len() - self.hidden.min(self.sums.len());
        self.sums[..shown].iter().cloned().chain(of_means).chain(of_classes).collect()
    }

    /// The loss of the evaluation, for charts: the first measure whose name ends in `loss`, or else the first.
    pub(in crate::engine) fn loss(&self) -> Option<&String> {
        self.sums.iter().find(|name| name.ends_with("loss")).or_else(|| self.sums.first())
    }

    /// Puts the measure that leads before the others, and after it the top-5 accuracy of a classifier.
    pub(in crate::engine) fn lead(&self, measures: &mut [(String, f64)]) {
        let place = |name: &str| match &self.headline {
            Some(headline) if headline == name => 0,
            _ if self.classes.is_some() && name == "top5_accuracy" => 1,
            _ => 2,
        };
        // The sort is stable.
        measures.sort_by_key(|(name, _)| place(name));
    }
}
