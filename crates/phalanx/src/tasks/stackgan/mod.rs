//! Text to image in two stages: StackGAN.
//!
//! One run trains up to three things, one after the other: the text encoder, by CLIP's contrastive loss with an image tower,
//! which can teach the generators afterwards (`model.matching_weight`); the first stage, on images made smaller; and the second over the first, which then stays as it is. Each
//! has its networks with optimizers of their own (`text`, `stage1_generator`, `stage1_discriminator`, `stage2_…`), and its part of
//! the run.

mod embeddings;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod networks;
mod settings;
mod vectors;

use phalanx_models::stackgan::{AdversarialLoss, Discriminator};
use phalanx_models::{StageOneGenerator, StageTwoGenerator};

use networks::{StackGan, Stage, Stages};
use phalanx_trainer::engine::{Setup, TaskSpec, TrainError, Training};
use settings::{GanSettings, StackGanSettings, check};
use vectors::TextVectors;

/// Both stages, or one of them.
pub(super) fn spec() -> TaskSpec<StackGanSettings> {
    TaskSpec::new("stackgan", "Text-to-image: StackGAN's two stages", stackgan).validate(check)
}

fn stackgan(setup: &mut Setup<'_>, settings: &StackGanSettings) -> Result<Training<StackGan>, TrainError> {
    let trained = settings.stages();
    let vectors = TextVectors::register(setup, settings)?;
    let description = describe(settings, setup.config().model.image_size, &vectors);
    let learns_text = vectors.learns();
    let gan = networks(setup, settings, vectors)?;
    let mut training = Training::new(description, gan);
    let [of_text, of_one, of_two] = settings.parts();
    if learns_text {
        training = training.phase("text", ["text"], StackGan::learn_text).during(of_text[0], of_text[1]);
    }
    let stages = [(Stage::One, "stage1", of_one), (Stage::Two, "stage2", of_two)];
    let stages = stages.into_iter().zip(trained).filter(|(_, trained)| *trained).map(|(stage, _)| stage);
    for (stage, name, part) in stages.clone() {
        training = add_phases(training, stage, name, part, &settings.gan);
    }
    let losses = ["discriminator_loss", "generator_loss", "matched"];
    let evaluated = stages.clone().flat_map(|(_, name, _)| losses.map(|loss| format!("{name}_{loss}")));
    let evaluated: Vec<String> = evaluated.collect();
    let names: Vec<&str> = evaluated.iter().map(String::as_str).collect();
    let stages: Vec<Stage> = stages.map(|(stage, ..)| stage).collect();
    let training = training.evaluate(names, move |gan: &StackGan, step| {
        let measured = stages.iter().map(|stage| gan.evaluate(step, *stage));
        Ok(measured.collect::<Result<Vec<_>, _>>()?.concat())
    });
    let training = training.sample(StackGan::sample).reads_captions();
    let [_, second] = trained;
    Ok(if second { training.panels(StackGan::both_stages) } else { training })
}

/// Describes the stages that are trained, at images of `size` pixels, and the source of text vectors.
fn describe(settings: &StackGanSettings, size: usize, vectors: &TextVectors) -> String {
    let small = settings.small_size(size);
    let stages = match settings.stages() {
        [true, true] => format!("StackGAN: {small}x{small}, then {size}x{size}"),
        [true, false] => format!("StackGAN's stage I at {small}x{small}"),
        [false, _] => format!("StackGAN's stage II at {size}x{size} over a stage I at {small}x{small}"),
    };
    format!("{stages}, {}", vectors.describe())
}

/// Registers the networks of the trained stages, and loads the generator of a stage I that is not trained.
fn networks(
    setup: &mut Setup<'_>,
    settings: &StackGanSettings,
    vectors: TextVectors,
) -> Result<StackGan, TrainError> {
    let size = setup.config().model.image_size;
    let [first, second] = settings.stages();
    let sizes = |second| settings.sizes(vectors.dim(), size, second);
    let (one, two) = (sizes(false), sizes(true));
    let build = |scope: &phalanx_tensor::Scope| StageOneGenerator::new(scope, &one);
    let generator_one = match first {
        true => {
            setup.cut_by(|| one.stage_one_plan())?;
            setup.network("stage1_generator", build)?
        }
        false => {
            let run = std::path::Path::new(&settings.stage1);
            setup.frozen_network_of_run("stage1_generator", run, &["stage1_generator."], build)?
        }
    };
    let discriminator_one = match first {
        true => {
            setup.cut_by(|| one.discriminator_plan(one.stage_one_size))?;
            Some(setup.network("stage1_discriminator", |scope| Discriminator::stage_one(scope, &one))?)
        }
        false => {
            setup.leave_out("stage1_discriminator")?;
            None
        }
    };
    let stage_two = match second {
        true => {
            setup.cut_by(|| two.stage_two_plan())?;
            let generator = setup.network("stage2_generator", |scope| StageTwoGenerator::new(scope, &two))?;
            setup.cut_by(|| two.discriminator_plan(two.stage_two_size))?;
            let build = |scope: &phalanx_tensor::Scope| Discriminator::stage_two(scope, &two);
            Some((generator, setup.network("stage2_discriminator", build)?))
        }
        false => {
            setup.leave_out("stage2_generator")?;
            setup.leave_out("stage2_discriminator")?;
            None
        }
    };
    let stages = Stages { generator_one, discriminator_one, stage_two };
    Ok(StackGan::new(vectors, stages, &one, &settings.gan))
}

/// Adds the phases of a stage, which train in this part of the run: the discriminator, then the generator.
fn add_phases(
    training: Training<StackGan>,
    stage: Stage,
    name: &str,
    [from, to]: [f64; 2],
    gan: &GanSettings,
) -> Training<StackGan> {
    let [discriminator, generator] =
        ["discriminator", "generator"].map(|network| format!("{name}_{network}"));
    let matching = (gan.matching_weight > 0.0).then_some("matching");
    let training = training
        .phase(&discriminator, [discriminator.as_str()], move |gan: &StackGan, step| {
            gan.discriminate(step, stage)
        })
        .measures(["real", "wrong", "fake", "diversity"])
        .watched(["diversity"])
        .during(from, to)
        .phase(&generator, [generator.as_str()], move |gan: &StackGan, step| gan.generate(step, stage))
        .measures(["adversarial", "kl"].into_iter().chain(matching))
        .during(from, to);
    match gan.adversarial {
        AdversarialLoss::CrossEntropy => training.watched([]).watched_loss("adversarial"),
        // It has no bounds: 0 is as good as any other value.
        AdversarialLoss::Hinge => training,
    }
}
