//! A step of each of StackGAN's two networks, of either stage, as in the authors' code.

use anyhow::Result;
use candle_core::{Device, Tensor};
use phalanx_collectives::Communicator;
use phalanx_models::stackgan::{
    AdversarialLoss, Discriminator, GanObjective, GeneratorOutput, SampleWeights, conditions_of_next,
};
use phalanx_models::{StackGanConfig, StageOneGenerator, StageTwoGenerator};
use phalanx_tensor::optim::Adam;
use phalanx_tensor::{ComputeDevice, StoreBuilder, Tape, Value};

use super::TrainArgs;
use super::model::{Model, options};
use super::replica::{Replica, Step, StepCost};
use super::strategy_ranks::StrategyRanks;

/// The generators. Stage II has both; the generator of stage I is then frozen.
struct Generators {
    one: StageOneGenerator,
    two: Option<StageTwoGenerator>,
}

impl Generators {
    fn make(&self, tape: &Tape, text: &Value, noise: &Value, condition: &Value) -> Result<GeneratorOutput> {
        let Some(two) = &self.two else { return Ok(self.one.forward(tape, text, noise, condition)?) };
        let small = tape.frozen(|tape| self.one.forward(tape, text, noise, condition))?;
        Ok(two.forward(tape, &small.image.detach(), text, condition)?)
    }
}

/// Builds a step of discriminator and generator, with Adam as in the authors' code.
pub(super) fn step(
    args: &TrainArgs,
    strategy: &str,
    comm: Communicator,
    device: &ComputeDevice,
) -> Result<Step> {
    anyhow::ensure!(strategy != "fsdp", "StackGAN's networks run on each other's tapes; not by fsdp");
    let (batch, size, ranks) = (args.batch, args.image_size, comm.world_size());
    let second = matches!(args.model(), Model::Stackgan2);
    let config = match second {
        true => StackGanConfig { stage_one_size: size / 4, stage_two_size: size, ..StackGanConfig::new() },
        false => StackGanConfig { stage_one_size: size, ..StackGanConfig::new() },
    };
    let builder = || StoreBuilder::new(options(args, device));
    let (of_one, of_g, of_d) = (builder(), builder(), builder());
    let one = StageOneGenerator::new(&of_one.root(), &config)?;
    let (two, discriminator) = match second {
        true => {
            let two = StageTwoGenerator::new(&of_g.root(), &config)?;
            (Some(two), Discriminator::stage_two(&of_d.root(), &config)?)
        }
        false => (None, Discriminator::stage_one(&of_d.root(), &config)?),
    };
    // Only the last generator is trained.
    let (still, learnt) =
        if second { (Some(of_one.build()?), of_g.build()?) } else { (None, of_one.build()?) };
    let (g, d) = (
        Replica::new(args, StrategyRanks::new(args, strategy, comm.clone(), device)?, &learnt, device)?,
        Replica::new(args, StrategyRanks::new(args, strategy, comm, device)?, &of_d.build()?, device)?,
    );
    let maker = Generators { one, two };
    let random = |dims: &[usize]| {
        let drawn = Tensor::rand(-1.0_f32, 1.0, dims, &Device::Cpu)?;
        Ok::<_, anyhow::Error>(Value::constant(device.put(&drawn)?))
    };
    let (real, text) = (random(&[batch, 3, size, size])?, random(&[batch, config.text_dim])?);
    let (noise, condition_noise) = (random(&[batch, config.z_dim])?, random(&[batch, config.condition_dim])?);
    let (mut adam_g, mut adam_d) = (Adam::new((0.5, 0.999), 1e-8, 0.0), Adam::new((0.5, 0.999), 1e-8, 0.0));
    let weights = vec![1.0; batch];
    Ok(Box::new(move |context, step| {
        // Keeps the store of the frozen parameters alive.
        let _ = &still;
        let counts = SampleWeights { weights: &weights, sum: (batch * ranks) as f64 };
        let objective = GanObjective { adversarial: AdversarialLoss::CrossEntropy, kl_weight: 2.0, counts };
        let tape = g.tape(context, step);
        let generated = maker.make(&tape, &text, &noise, &condition_noise)?;
        let shown = generated.condition.mu.detach();
        let judging = d.tape(context, step);
        let images = (&real, &generated.image.detach());
        let wrong = conditions_of_next(&judging, &shown)?;
        let pairs = (&shown, wrong.as_ref());
        let losses = objective.discriminator_loss(&judging, &discriminator, images, pairs)?;
        d.step((&judging, &losses.total), &mut adam_d, 2e-4, context)?;
        let losses = objective.generator_loss(&tape, &discriminator, &generated, &shown)?;
        g.step((&tape, &losses.total), &mut adam_g, 2e-4, context)?;
        // The networks share a communicator.
        let (of_d, of_g) = (d.cost(), g.cost());
        Ok(StepCost { operations: of_d.operations + of_g.operations, ..of_g })
    }))
}
