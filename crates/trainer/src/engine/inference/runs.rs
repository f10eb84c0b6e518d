//! Evaluation and samples of a finished run, or of weights in a file.

use std::path::Path;
use std::sync::Arc;

use phalanx_tensor::{Context, ParamBucket, Session};

use super::{TestPass, draw, evaluate};
use crate::config::Config;
use crate::engine::checkpoint::newest_checkpoint;
use crate::engine::data::Data;
use crate::engine::device::Device;
use crate::engine::distributed::{BatchGroups, Cores, Distributed, Network};
use crate::engine::generative_metrics::GenerativeMetrics;
use crate::engine::training::{Built, Drawing, Task, Weights};
use crate::engine::weights::{HeadRule, check_configured, load};
use crate::engine::{Plan, TrainError, optimize, precision};
use phalanx_run::RunFolder;

/// The networks and the data of a training, for inference.
struct InferenceModel {
    built: Built,
    data: Data,
    context: Arc<Context>,
    session: Session,
}

impl InferenceModel {
    /// Builds the networks; `weights` says if files of initial values are read before `load`.
    fn new(
        task: &Task,
        config: &Config,
        weights: Weights,
        load: impl FnOnce(&Built) -> Result<(), TrainError>,
    ) -> Result<Self, TrainError> {
        let device = Device::alone(config)?;
        // Each image is used once, so none is cached on the device.
        let data = Data::open(config, task.open_data(config), &Distributed::none(), device.compute(), 0)?;
        let mut built = task.build(config, Some(data.num_classes()), weights, device.compute())?;
        load(&built)?;
        let listener = built.ready(config)?;
        let context = precision::context(
            config,
            Cores::of(config, &device, None, false)?.threads(config.train.threads),
        )?;
        let (precision, device) = (config.train.precision, device.compute().clone());
        let session = Session { precision, device, listener, ..Session::evaluation(context.clone()) };
        Ok(Self { built, data, context, session })
    }

    fn evaluate(&self, config: &Config, step: u64) -> Result<Vec<(String, f64)>, TrainError> {
        let batch = if config.eval.batch > 0 { config.eval.batch } else { config.train.global_batch };
        let (training, alone) = (&*self.built.training, Distributed::none());
        let pass = TestPass { step, limit: config.eval.limit, batch };
        evaluate(training, &self.data, &alone, &BatchGroups::default(), &self.session, pass)
    }
}

/// Evaluates the newest checkpoint of a run on its test split. Returns its step and the measures by name.
///
/// # Errors
/// If there is no complete checkpoint, or the test images cannot be read.
pub fn evaluate_run(
    task: &Task,
    folder: &RunFolder,
    config: &Config,
) -> Result<(u64, Vec<(String, f64)>), TrainError> {
    let checkpoint = newest_checkpoint(folder)?;
    let model = InferenceModel::new(task, config, Weights::Drawn, |built| built.load_for_use(&checkpoint))?;
    let mut measures = model.evaluate(config, checkpoint.step())?;
    if let Some(mut quality) = GenerativeMetrics::open(task, &model.context, &model.session.device)? {
        let (training, alone) = (&*model.built.training, Distributed::none());
        measures.extend(quality.measure(training, &model.data, &alone, &model.session, config)?);
    }
    Ok((checkpoint.step(), measures))
}

/// Evaluates the weights of a file, a folder or a run on the configured test split. Returns the measures by name.
///
/// # Errors
/// If the weights do not fit the configured model, or the test images cannot be read.
pub fn evaluate_weights(
    task: &Task,
    weights: &Path,
    config: &Config,
) -> Result<Vec<(String, f64)>, TrainError> {
    let model = InferenceModel::new(task, config, Weights::Here, |built| {
        let networks: Vec<&Network> = built.networks.iter().collect();
        load(weights, &networks, &built.names, HeadRule::Load).map(drop)
    })?;
    model.evaluate(config, 0)
}

/// Generates images with the newest checkpoint of a run and writes them as a grid, a row for each prompt. Returns the step.
///
/// # Errors
/// If there is no complete checkpoint, the model draws nothing of that kind, or the picture cannot be written.
pub fn sample_run(
    task: &Task,
    folder: &RunFolder,
    config: &Config,
    drawing: &Drawing,
    seed: u64,
    out: &Path,
) -> Result<u64, TrainError> {
    let checkpoint = newest_checkpoint(folder)?;
    let model = InferenceModel::new(task, config, Weights::Drawn, |built| built.load_for_use(&checkpoint))?;
    let (training, size) = (&*model.built.training, config.model.image_size);
    if !draw(training, model.session.clone(), seed, drawing, size, out)? {
        return Err(TrainError::Setup(format!("a `{}` draws no pictures", config.model.kind)));
    }
    Ok(checkpoint.step())
}

/// Describes a run of `config` in lines of text, without training.
///
/// # Errors
/// If the model cannot be built or the images cannot be found.
pub fn describe(task: &Task, config: &Config) -> Result<Vec<String>, TrainError> {
    // Weights of a first stage that is not trained yet cannot be read.
    let weights = if task.first_run(config).is_some() { Weights::Drawn } else { Weights::Here };
    let model = InferenceModel::new(task, config, weights, |_| Ok(()))?;
    let (images, batch) = (model.data.train_len(), config.train.global_batch);
    let plan = Plan::new(config, images).ok_or(TrainError::NoStep { images, batch })?;
    let networks = &model.built.networks;
    let params = || networks.iter().flat_map(|network| network.store().buckets());
    let learnt = |network: &Network| -> usize {
        network.store().buckets().iter().filter(|param| param.trainable()).map(ParamBucket::len).sum()
    };
    let trainable: usize = networks.iter().map(learnt).sum();
    let values: usize = params().map(ParamBucket::bytes).sum();
    let states: usize = networks
        .iter()
        .map(|network| {
            let own = config.for_network(network.name());
            let numbers = optimize::numbers_per_parameter(&own) + usize::from(own.train.ema > 0.0);
            numbers * learnt(network) * size_of::<f32>()
        })
        .sum();
    let bytes = |count: usize| format!("{:.1} MiB", count as f64 / f64::from(1 << 20));
    let gradients = trainable * size_of::<f32>();
    let ranks = config.train.ranks.max(1);
    let share = match batch.is_multiple_of(ranks) {
        true => (batch / ranks).to_string(),
        false => format!("{} or {}", batch / ranks, batch.div_ceil(ranks)),
    };
    let mut lines = vec![
        format!("model: {}", model.built.training.describe()),
        format!(
            "parameters: {} ({trainable} trainable) in {} flat memories",
            networks.iter().map(|network| network.store().num_parameters()).sum::<usize>(),
            params().count()
        ),
        format!(
            "memory of each rank, activations not counted: parameters {}, gradients {}, optimizer {}",
            bytes(values),
            bytes(gradients),
            bytes(states)
        ),
        format!("data: {}, {images} training images", model.data.describe()),
        format!("steps: {} in an epoch, {} in all", plan.steps_per_epoch, plan.stop),
        format!("each of {ranks} ranks takes {share} images a step"),
    ];
    lines.extend(check_configured(config, &model.built, false)?.map(|record| record.describe()));
    lines.extend(networks.iter().flat_map(|network| rules_of(network, config, &plan)));
    Ok(lines)
}

/// Describes the frozen parameters of a network, and those with another learning rate.
fn rules_of(network: &Network, config: &Config, plan: &Plan) -> Vec<String> {
    let whose = if network.name().is_empty() { String::new() } else { format!(" of {}", network.name()) };
    let params = network.store().params();
    let optim = config.for_network(network.name()).optim;
    let frozen: Vec<_> = params.iter().filter(|param| param.is_frozen_by_rule()).collect();
    let elements: usize = frozen.iter().map(|param| param.elem_count()).sum();
    let until = optim.unfreezes_after(plan.steps_per_epoch);
    let until = until.map_or_else(String::new, |step| format!(" until step {step}"));
    let mut lines = Vec::new();
    if !frozen.is_empty() {
        lines.push(format!("frozen{whose}: {} tensors of {elements} elements{until}", frozen.len()));
    }
    let mut rates: Vec<(f64, usize)> = Vec::new();
    for group in network.store().buckets().iter().flat_map(ParamBucket::groups) {
        match rates.iter_mut().find(|(rate, _)| *rate == group.rate) {
            Some((_, elements)) => *elements += group.range.len(),
            None => rates.push((group.rate, group.range.len())),
        }
    }
    let others = rates.into_iter().filter(|(rate, _)| *rate != 1.0);
    lines.extend(
        others.map(|(rate, elements)| format!("rate{whose}: {rate} x optim.lr for {elements} elements")),
    );
    lines
}
