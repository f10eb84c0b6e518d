//! The losses of StackGAN's phases, and its pictures.

use candle_core::{DType, Shape, Tensor};
use phalanx_models::stackgan::{
    AdversarialLoss, Discriminator, GanObjective, GeneratorOutput, SampleWeights, conditions_of_next,
};
use phalanx_models::{StackGanConfig, StageOneGenerator, StageTwoGenerator};
use phalanx_tensor::{Tape, Value, ops};

use super::settings::GanSettings;
use super::vectors::TextVectors;
use phalanx_trainer::engine::{CaptionFeatures, CaptionReader, Loss, Measure, StepInput, TrainError, number};

/// Pictures that are drawn at a time.
const AT_A_TIME: usize = 64;

/// One of the two stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    One,
    Two,
}

/// The networks of both stages. Stage I has a discriminator while it is trained.
pub(super) struct Stages {
    pub(super) generator_one: StageOneGenerator,
    pub(super) discriminator_one: Option<Discriminator>,
    pub(super) stage_two: Option<(StageTwoGenerator, Discriminator)>,
}

/// A training of text vectors and stages.
pub(super) struct StackGan {
    vectors: TextVectors,
    stages: Stages,
    z_dim: usize,
    condition_dim: usize,
    /// Height and width of the images of stage I.
    small: usize,
    adversarial: AdversarialLoss,
    kl_weight: f64,
    matching_weight: f64,
}

/// Text vectors, noise, and the noise of each stage's condition.
struct Inputs {
    text: Value,
    noise: Value,
    conditions: [Value; 2],
}

/// The output of the generators: of both stages, if there are two.
struct StageImages {
    small: GeneratorOutput,
    large: Option<GeneratorOutput>,
}

impl StackGan {
    pub(super) fn new(
        vectors: TextVectors,
        stages: Stages,
        sizes: &StackGanConfig,
        settings: &GanSettings,
    ) -> Self {
        Self {
            vectors,
            stages,
            z_dim: sizes.z_dim,
            condition_dim: sizes.condition_dim,
            small: sizes.stage_one_size,
            adversarial: settings.adversarial,
            kl_weight: settings.kl_weight,
            matching_weight: settings.matching_weight,
        }
    }

    /// The contrastive loss of captions and images, as large as those of stage I.
    pub(super) fn learn_text(&self, step: &StepInput<'_>) -> Result<Loss, TrainError> {
        let images = self.images(step, Stage::One)?;
        Ok(self.vectors.contrastive_loss(step, &images)?.into())
    }

    /// Returns the discriminator's loss in a stage, with its parts, and the diversity of generated images relative to
    /// real ones.
    pub(super) fn discriminate(&self, step: &StepInput<'_>, stage: Stage) -> Result<Loss, TrainError> {
        let real = self.images(step, stage)?;
        let generated = self.generated(step, stage)?;
        let (condition, fake) = (generated.condition.mu.detach(), generated.image.detach());
        let wrong = conditions_of_next(step.tape, &condition)?;
        let (images, pairs) = ((&real, &fake), (&condition, wrong.as_ref()));
        let losses =
            self.objective(step).discriminator_loss(step.tape, self.discriminator(stage)?, images, pairs)?;
        let diversity = step.diversity(&fake, &real)?;
        let of_wrong = losses.wrong.as_ref().map_or_else(|| Ok(0.0.into()), Measure::of)?;
        let (of_real, of_fake) = (Measure::of(&losses.real)?, Measure::of(&losses.fake)?);
        Ok(Loss::new(losses.total, [of_real, of_wrong, of_fake, diversity]))
    }

    /// The generator's loss in a stage, with its parts.
    pub(super) fn generate(&self, step: &StepInput<'_>, stage: Stage) -> Result<Loss, TrainError> {
        let generated = self.generated(step, stage)?;
        let shown = generated.condition.mu.detach();
        let discriminator = self.discriminator(stage)?;
        let losses = self.objective(step).generator_loss(step.tape, discriminator, &generated, &shown)?;
        let (mut total, mut measures) =
            (losses.total, vec![Measure::of(&losses.adversarial)?, Measure::of(&losses.kl)?]);
        if self.matching_weight > 0.0 {
            let matching = self.vectors.matching_loss(step, &self.reduced(step.tape, &generated.image)?)?;
            measures.push(Measure::of(&matching)?);
            total = ops::add(step.tape, &total, &ops::scale(step.tape, &matching, self.matching_weight)?)?;
        }
        Ok(Loss::new(total, measures))
    }

    /// Both losses of a stage on the test split, and for how many real images their own text seems to fit better than that of the
    /// next image.
    pub(super) fn evaluate(&self, step: &StepInput<'_>, stage: Stage) -> Result<[f64; 3], TrainError> {
        let (tape, discriminator) = (step.tape, self.discriminator(stage)?);
        let real = self.images(step, stage)?;
        let generated = self.generated(step, stage)?;
        let (condition, fake) = (generated.condition.mu.detach(), generated.image.detach());
        let wrong = conditions_of_next(tape, &condition)?;
        let pairs = (&condition, wrong.as_ref());
        let objective = self.objective(step);
        let of_discriminator = objective.discriminator_loss(tape, discriminator, (&real, &fake), pairs)?;
        let of_generator = objective.generator_loss(tape, discriminator, &generated, &condition)?;
        let mut matched = 0.0;
        if let Some(wrong) = wrong {
            let features = discriminator.features(tape, &real)?;
            let logits = |condition: &Value| -> Result<Vec<f32>, TrainError> {
                Ok(discriminator
                    .logits(tape, &features, condition)?
                    .to_host()?
                    .to_dtype(DType::F32)?
                    .to_vec1()?)
            };
            let rows = logits(&condition)?.into_iter().zip(logits(&wrong)?).zip(step.batch.weights());
            let right = rows.filter(|((own, other), _)| own > other);
            matched = right.map(|(_, weight)| f64::from(*weight)).sum();
        }
        Ok([number(&of_discriminator.total)?, number(&of_generator.total)?, matched])
    }

    /// Draws pictures for prompts by the last stage.
    pub(super) fn sample(
        &self,
        tape: &Tape,
        prompts: &[String],
        columns: usize,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        let mut pictures = Vec::with_capacity(prompts.len() * columns);
        for images in self.draw(tape, prompts, columns) {
            let StageImages { small, large } = images?;
            pictures.extend(flat(&large.unwrap_or(small).image)?);
        }
        Ok(pictures)
    }

    /// Draws pairs of pictures for prompts: the enlarged one of stage I, and stage II's.
    pub(super) fn both_stages(
        &self,
        tape: &Tape,
        prompts: &[String],
        columns: usize,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        let mut pictures = Vec::with_capacity(2 * prompts.len() * columns);
        for images in self.draw(tape, prompts, columns) {
            let StageImages { small, large } = images?;
            let large = large.unwrap_or_else(|| small.clone()).image;
            let factor = large.dims()[2] / self.small;
            let small = ops::upsample_nearest2d(tape, &small.image, factor)?;
            pictures.extend(
                flat(&small)?.into_iter().zip(flat(&large)?).flat_map(|(small, large)| [small, large]),
            );
        }
        Ok(pictures)
    }

    /// The batch's images, in the size of a stage.
    fn images(&self, step: &StepInput<'_>, stage: Stage) -> Result<Value, TrainError> {
        let images = step.value("images")?;
        if stage == Stage::Two { Ok(images) } else { self.reduced(step.tape, &images) }
    }

    /// Images in the size of stage I.
    fn reduced(&self, tape: &Tape, images: &Value) -> Result<Value, TrainError> {
        let factor = images.dims().last().copied().unwrap_or(1) / self.small.max(1);
        if factor <= 1 {
            return Ok(images.clone());
        }
        Ok(ops::avg_pool2d(tape, images, ops::PoolOptions::new(factor, factor, 0), false)?)
    }

    /// The losses of a step.
    fn objective<'a>(&self, step: &StepInput<'a>) -> GanObjective<'a> {
        let counts = SampleWeights { weights: step.batch.weights(), sum: step.sum };
        GanObjective { adversarial: self.adversarial, kl_weight: self.kl_weight, counts }
    }

    /// Generates a stage's images for the batch's texts: the same in all phases of a step.
    fn generated(&self, step: &StepInput<'_>, stage: Stage) -> Result<GeneratorOutput, TrainError> {
        let condition = |name: &str| step.shared_normal(name, &[self.condition_dim]);
        let inputs = Inputs {
            text: self.vectors.vectors(step.tape, step.texts("captions")?)?,
            noise: step.shared_normal("noise", &[self.z_dim])?,
            conditions: [condition("condition of stage I")?, condition("condition of stage II")?],
        };
        let StageImages { small, large } = self.run(step.tape, &inputs, stage)?;
        Ok(large.unwrap_or(small))
    }

    /// Runs the generators up to a stage.
    fn run(&self, tape: &Tape, inputs: &Inputs, stage: Stage) -> Result<StageImages, TrainError> {
        let Inputs { text, noise, conditions: [one, two] } = inputs;
        let small = self.stages.generator_one.forward(tape, text, noise, one)?;
        let large = match (&self.stages.stage_two, stage) {
            (Some((generator, _)), Stage::Two) => {
                Some(generator.forward(tape, &small.image.detach(), text, two)?)
            }
            _ => None,
        };
        Ok(StageImages { small, large })
    }

    /// Generates images for prompts, `columns` for each, some prompts at a time. The noise is the same for each prompt,
    /// so they differ by the text alone.
    fn draw<'a>(
        &'a self,
        tape: &'a Tape,
        prompts: &'a [String],
        columns: usize,
    ) -> impl Iterator<Item = Result<StageImages, TrainError>> + 'a {
        let stage = if self.stages.stage_two.is_some() { Stage::Two } else { Stage::One };
        prompts.chunks((AT_A_TIME / columns.max(1)).max(1)).map(move |prompts| {
            let normal = |name: &str, width: usize| -> Result<Value, TrainError> {
                let (key, shape) = (tape.session().key.stream(name), Shape::from((columns, width)));
                let one = tape.backend().gaussian_noise(key, 0, &shape, tape.session().precision.dtype())?;
                let one = Value::constant(one);
                Ok(ops::cat(tape, &vec![&one; prompts.len()], 0)?)
            };
            let captions: Vec<String> =
                prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt.clone(), columns)).collect();
            let inputs = Inputs {
                text: self.vectors.vectors(tape, &captions)?,
                noise: normal("noise", self.z_dim)?,
                conditions: [
                    normal("condition of stage I", self.condition_dim)?,
                    normal("condition of stage II", self.condition_dim)?,
                ],
            };
            self.run(tape, &inputs, stage)
        })
    }

    fn discriminator(&self, stage: Stage) -> Result<&Discriminator, TrainError> {
        let discriminator = match stage {
            Stage::One => self.stages.discriminator_one.as_ref(),
            Stage::Two => self.stages.stage_two.as_ref().map(|(_, discriminator)| discriminator),
        };
        discriminator
            .ok_or_else(|| TrainError::Setup(format!("there is no discriminator of stage {stage:?}")))
    }
}

impl CaptionReader for StackGan {
    /// The vectors of captions, and the conditions of stage I: their means, and as they are drawn.
    fn features(&self, tape: &Tape, captions: &[String]) -> Result<Vec<CaptionFeatures>, TrainError> {
        let text = self.vectors.vectors(tape, captions)?;
        let normal = |name: &str, width: usize| -> Result<Value, TrainError> {
            let (key, shape) = (tape.session().key.stream(name), Shape::from((captions.len(), width)));
            let dtype = tape.session().precision.dtype();
            Ok(Value::constant(tape.backend().gaussian_noise(key, 0, &shape, dtype)?))
        };
        let (noise, of_condition) = (normal("noise", self.z_dim)?, normal("condition", self.condition_dim)?);
        let condition = self.stages.generator_one.forward(tape, &text, &noise, &of_condition)?.condition;
        let drawn = condition.sample(tape, &of_condition)?;
        let named = |(name, rows): (&str, Value)| CaptionFeatures { name: name.to_owned(), rows };
        let all = [("vector", text), ("mean of the condition", condition.mu), ("drawn condition", drawn)];
        Ok(all.map(named).into())
    }
}

/// Each image's numbers.
fn flat(images: &Value) -> Result<Vec<Vec<f32>>, TrainError> {
    let images: Tensor = images.to_host()?.to_dtype(DType::F32)?;
    Ok(images.flatten_from(1)?.to_vec2()?)
}
