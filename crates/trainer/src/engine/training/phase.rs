//! The phases of a step, and the training that consists of them.

use phalanx_tensor::{Session, Tape, Value};

use super::drawing::{Drawing, DrawingKind};
use super::judging::Judgement;
use super::step::{Loss, Step};
use crate::engine::error::TrainError;

/// What a phase is to the loop.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::engine) struct Phase {
    /// Its name; empty for the only one.
    pub(in crate::engine) name: String,
    /// The networks that it updates; none stands for all that are learnt.
    pub(in crate::engine) updates: Vec<String>,
    /// Names of what it measures besides its loss.
    pub(in crate::engine) measures: Vec<String>,
    /// The part of the run in which steps have it, from 0 to 1: where it begins and where it ends.
    pub(in crate::engine) span: [f64; 2],
    /// Whether its loss is watched, and which of its measures are.
    pub(in crate::engine) watched: Option<Vec<String>>,
}

impl Phase {
    /// One that every step has, that measures nothing, and that nobody watches.
    pub(in crate::engine) fn new(name: &str, updates: Vec<String>) -> Self {
        Self { name: name.to_owned(), updates, measures: Vec::new(), span: [0.0, 1.0], watched: None }
    }

    /// Whether it updates the learnt network of this name.
    pub(in crate::engine) fn updates(&self, network: &str) -> bool {
        self.updates.is_empty() || self.updates.iter().any(|name| name == network)
    }
}

type LossFn<M> = Box<dyn Fn(&M, &Step<'_>) -> Result<Loss, TrainError> + Sync>;
type EvaluateFn<M> = Box<dyn Fn(&M, &Step<'_>) -> Result<Vec<f64>, TrainError> + Sync>;
type DrawFn<M> = Box<dyn Fn(&M, &Tape, &Drawing) -> Result<Vec<Vec<f32>>, TrainError> + Sync>;
type PanelsFn<M> = Box<dyn Fn(&M, &Tape, &[String], usize) -> Result<Vec<Vec<f32>>, TrainError> + Sync>;
type RestoreFn<M> = Box<dyn Fn(&M, &Tape, &Value) -> Result<Value, TrainError> + Sync>;
type JudgeFn<M> = Box<dyn Fn(&M, &Step<'_>) -> Result<Judgement, TrainError> + Sync>;

/// A model and how it is trained, tested and shown.
///
/// `M` is whatever the phases need: usually a struct with the networks in it. Logical ranks of one rank (`train.logical_ranks`) have
/// threads, of which one at a time computes; so it must be `Sync`, as must be what computes losses.
///
/// ```
/// use phalanx_tensor::{Value, loss, nn};
/// use phalanx_trainer::engine::{Setup, Step, TrainError, Training};
///
/// struct Fit {
///     line: nn::Linear,
/// }
///
/// impl Fit {
///     fn loss(&self, step: &Step<'_>) -> Result<Value, TrainError> {
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
    description: String,
    model: M,
    phases: Vec<(Phase, LossFn<M>)>,
    evaluated: Vec<String>,
    evaluate: Option<EvaluateFn<M>>,
    draw: Option<DrawFn<M>>,
    panels: Option<PanelsFn<M>>,
    restore: Option<RestoreFn<M>>,
    judge: Option<JudgeFn<M>>,
}

impl<M> std::fmt::Debug for Training<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let phases: Vec<&Phase> = self.phases.iter().map(|(phase, _)| phase).collect();
        let mut fields = f.debug_struct("Training");
        fields.field("description", &self.description).field("phases", &phases);
        fields
            .field("evaluated", &self.evaluated)
            .field("draws", &(self.draw.is_some() || self.restore.is_some()));
        fields.finish_non_exhaustive()
    }
}

impl<M> Training<M> {
    /// A training of `model`, described in a few words, that has no phase yet.
    pub fn new(description: impl Into<String>, model: M) -> Self {
        let (phases, evaluated) = (Vec::new(), Vec::new());
        Self {
            description: description.into(),
            model,
            phases,
            evaluated,
            evaluate: None,
            draw: None,
            panels: None,
            restore: None,
            judge: None,
        }
    }

    /// Makes a step one phase that updates every learnt network by this loss.
    #[must_use]
    pub fn loss<L: Into<Loss>>(
        self,
        loss: impl Fn(&M, &Step<'_>) -> Result<L, TrainError> + Sync + 'static,
    ) -> Self {
        self.phase("", [], loss)
    }

    /// Adds a phase, which comes after those before it in every step: it updates the networks of these names by this loss.
    #[must_use]
    pub fn phase<'n, L: Into<Loss>>(
        mut self,
        name: &str,
        updates: impl IntoIterator<Item = &'n str>,
        loss: impl Fn(&M, &Step<'_>) -> Result<L, TrainError> + Sync + 'static,
    ) -> Self {
        let updates = updates.into_iter().map(str::to_owned).collect();
        let phase = Phase::new(name, updates);
        self.phases.push((phase, Box::new(move |model, step| Ok(loss(model, step)?.into()))));
        self
    }

    /// Names what the phase that was added last measures besides its loss: see [`Loss::new`].
    #[must_use]
    pub fn measures<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Self {
        if let Some((phase, _)) = self.phases.last_mut() {
            phase.measures = names.into_iter().map(str::to_owned).collect();
        }
        self
    }

    /// Says that only the steps of a part of the run have the phase that was added last: those between these two fractions of
    /// its length, such as 0 and 0.5 for the first half. So a training can consist of several that follow each other. The
    /// schedules of networks that are not learnt all the time run over the time in which they are.
    #[must_use]
    pub fn during(mut self, from: f64, to: f64) -> Self {
        if let Some((phase, _)) = self.phases.last_mut() {
            phase.span = [from, to];
        }
        self
    }

    /// Says that the phase that was added last is one of networks against each other, whose loss comes to rest nowhere: one
    /// that does has collapsed, and so has one of the measures of these names that falls towards 0, such as how different
    /// samples are. What counts as that the section `[watch]` of the configuration says; it is told, and the run goes on.
    #[must_use]
    pub fn watched<'n>(mut self, measures: impl IntoIterator<Item = &'n str>) -> Self {
        if let Some((phase, _)) = self.phases.last_mut() {
            phase.watched = Some(measures.into_iter().map(str::to_owned).collect());
        }
        self
    }

    /// Says how the test split is measured: a number for each name, as sums over the batch's samples. The first is usually the
    /// loss.
    #[must_use]
    pub fn evaluate<'n, S: Into<Vec<f64>>>(
        mut self,
        names: impl IntoIterator<Item = &'n str>,
        evaluate: impl Fn(&M, &Step<'_>) -> Result<S, TrainError> + Sync + 'static,
    ) -> Self {
        self.evaluated = names.into_iter().map(str::to_owned).collect();
        self.evaluate = Some(Box::new(move |model, step| Ok(evaluate(model, step)?.into())));
        self
    }

    /// Says how pictures are drawn for prompts: so many for each, one after the other, `[3, size, size]` planar in [-1, 1].
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
                "this training draws samples of prompts, and nothing else: no strips, interpolations, changes to pictures"
                    .to_owned(),
            )),
        })
    }

    /// Says how drawings of every kind are made: their rows one after the other, each picture `[3, size, size]` planar
    /// in [-1, 1].
    #[must_use]
    pub fn draw(
        mut self,
        draw: impl Fn(&M, &Tape, &Drawing) -> Result<Vec<Vec<f32>>, TrainError> + Sync + 'static,
    ) -> Self {
        self.draw = Some(Box::new(draw));
        self
    }

    /// Says what grids show in place of samples: for each of them as many pictures, one after the other and of their size, such
    /// as the stages of its making with the sample itself at their end.
    #[must_use]
    pub fn panels(
        mut self,
        panels: impl Fn(&M, &Tape, &[String], usize) -> Result<Vec<Vec<f32>>, TrainError> + Sync + 'static,
    ) -> Self {
        self.panels = Some(Box::new(panels));
        self
    }

    /// Says what comes back of pictures `[N, 3, size, size]` in [-1, 1] that the network is given, of their shape, where it draws
    /// none from prompts: grids show each picture beside what came back of it, and judges look at the latter.
    #[must_use]
    pub fn restore(
        mut self,
        restore: impl Fn(&M, &Tape, &Value) -> Result<Value, TrainError> + Sync + 'static,
    ) -> Self {
        self.restore = Some(Box::new(restore));
        self
    }

    /// Says what the network sees in pictures, so that it can judge those of another run (`[quality]`). The batch has `images`,
    /// prepared as this training's own test images are, and `captions`.
    #[must_use]
    pub fn judge(
        mut self,
        judge: impl Fn(&M, &Step<'_>) -> Result<Judgement, TrainError> + Sync + 'static,
    ) -> Self {
        self.judge = Some(Box::new(judge));
        self
    }
}

/// A training of any model, as the loop sees it.
pub(in crate::engine) trait AnyTraining: Sync {
    /// The model, in words.
    fn describe(&self) -> &str;

    /// The phases of a step, in order.
    fn phases(&self) -> Vec<&Phase>;

    /// The loss of the phase with this index.
    fn loss(&self, phase: usize, step: &Step<'_>) -> Result<Loss, TrainError>;

    /// Names of what [`AnyTraining::evaluate`] measures.
    fn evaluated(&self) -> &[String];

    /// Measures of the test split, as sums over the batch's samples.
    fn evaluate(&self, step: &Step<'_>) -> Result<Vec<f64>, TrainError>;

    /// Whether there are pictures to show: [`AnyTraining::draw`] draws some, or [`AnyTraining::restore`] restores some.
    fn draws(&self) -> bool;

    /// The pictures of a drawing; `None` if this training draws nothing.
    fn draw(&self, tape: &Tape, drawing: &Drawing) -> Result<Option<Vec<Vec<f32>>>, TrainError>;

    /// What a grid shows in place of each sample of [`AnyTraining::draw`]: as many for each as there are panels; `None` if
    /// that is the picture.
    fn panels(
        &self,
        tape: &Tape,
        prompts: &[String],
        columns: usize,
    ) -> Result<Option<Vec<Vec<f32>>>, TrainError>;

    /// Whether [`AnyTraining::restore`] restores pictures.
    fn restores(&self) -> bool;

    /// What comes back of pictures; `None` if this training restores none.
    fn restore(&self, tape: &Tape, images: &Value) -> Result<Option<Value>, TrainError>;

    /// What the network sees in the pictures of a batch; `None` if this training judges none.
    fn judge(&self, step: &Step<'_>) -> Result<Option<Judgement>, TrainError>;
}

impl<M: Sync> AnyTraining for Training<M> {
    fn describe(&self) -> &str {
        &self.description
    }

    fn phases(&self) -> Vec<&Phase> {
        self.phases.iter().map(|(phase, _)| phase).collect()
    }

    fn loss(&self, phase: usize, step: &Step<'_>) -> Result<Loss, TrainError> {
        let (phase, run) = &self.phases[phase];
        let loss = run(&self.model, step)?;
        counted(loss.measures.len(), &phase.measures, || match phase.name.as_str() {
            "" => "the loss".to_owned(),
            name => format!("phase `{name}`"),
        })?;
        Ok(loss)
    }

    fn evaluated(&self) -> &[String] {
        &self.evaluated
    }

    fn evaluate(&self, step: &Step<'_>) -> Result<Vec<f64>, TrainError> {
        let Some(evaluate) = &self.evaluate else { return Ok(Vec::new()) };
        let sums = evaluate(&self.model, step)?;
        counted(sums.len(), &self.evaluated, || "the evaluation".to_owned())?;
        Ok(sums)
    }

    fn draws(&self) -> bool {
        self.draw.is_some() || self.restore.is_some()
    }

    fn restores(&self) -> bool {
        self.restore.is_some()
    }

    fn draw(&self, tape: &Tape, drawing: &Drawing) -> Result<Option<Vec<Vec<f32>>>, TrainError> {
        self.draw.as_ref().map(|draw| draw(&self.model, tape, drawing)).transpose()
    }

    fn panels(
        &self,
        tape: &Tape,
        prompts: &[String],
        columns: usize,
    ) -> Result<Option<Vec<Vec<f32>>>, TrainError> {
        self.panels.as_ref().map(|panels| panels(&self.model, tape, prompts, columns)).transpose()
    }

    fn restore(&self, tape: &Tape, images: &Value) -> Result<Option<Value>, TrainError> {
        self.restore.as_ref().map(|restore| restore(&self.model, tape, images)).transpose()
    }

    fn judge(&self, step: &Step<'_>) -> Result<Option<Judgement>, TrainError> {
        self.judge.as_ref().map(|judge| judge(&self.model, step)).transpose()
    }
}

/// Checks that there is a number for every name.
fn counted(count: usize, names: &[String], who: impl Fn() -> String) -> Result<(), TrainError> {
    if count == names.len() {
        return Ok(());
    }
    let (who, wanted) = (who(), names.len());
    Err(TrainError::Setup(format!("{who} gives {count} numbers for {wanted} names: {names:?}")))
}

/// The number that a scalar on the tape has, f32, for which this waits: in a step, where a device would stand idle meanwhile,
/// [`super::Measure::of`] does not.
///
/// # Errors
/// If it is no scalar, or of another type.
pub fn number(value: &Value) -> Result<f64, TrainError> {
    Ok(f64::from(value.to_host()?.to_scalar::<f32>()?))
}
