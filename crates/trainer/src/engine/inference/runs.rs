//! Evaluation and samples of a finished run, or of weights in a file.

use std::path::Path;
use std::sync::Arc;

use phalanx_tensor::io::load_into;
use phalanx_tensor::{Context, ParamBucket, Session};

use super::{TestPass, class_report, draw, evaluate, write_class_files};
use crate::config::Config;
use crate::engine::checkpoint::CheckpointChoice;
use crate::engine::data::Data;
use crate::engine::device::Device;
use crate::engine::distributed::{BatchGroups, Cores, Distributed, Network};
use crate::engine::generative_metrics::GenerativeMetrics;
use crate::engine::training::{Built, Drawing, Task, Weights};
use crate::engine::{Plan, TrainError, optimize, precision};
use phalanx_run::{ClassReport, RunFolder};

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

    /// Evaluates on the test split. Writes the files of a classifier into `files`.
    fn evaluate(
        &self,
        config: &Config,
        step: u64,
        files: Option<&Path>,
    ) -> Result<RunEvaluation, TrainError> {
        let batch = if config.eval.batch > 0 { config.eval.batch } else { config.train.global_batch };
        let (training, alone) = (&*self.built.training, Distributed::none());
        let pass = TestPass { step, limit: config.eval.limit, batch, mistakes: config.eval.mistakes };
        let result = evaluate(training, &self.data, &alone, &BatchGroups::default(), &self.session, pass)?;
        let mut evaluation = RunEvaluation { step, measures: result.measures, classes: None };
        if let (Some(tally), Some(classes)) = (&result.classes, training.outline().classes) {
            let report = class_report(tally, &classes, &self.data, config, step)?;
            if let Some(files) = files {
                write_class_files(&report, tally, &self.data, config, files)?;
            }
            evaluation.classes = Some(report);
        }
        Ok(evaluation)
    }
}

/// The evaluation of a checkpoint, or of weights.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunEvaluation {
    /// The step of the checkpoint; 0 for weights of a file.
    pub step: u64,
    /// The measures by name.
    pub measures: Vec<(String, f64)>,
    /// The evaluation of each class, if the model is a classifier.
    pub classes: Option<ClassReport>,
}

/// Evaluates a checkpoint of a run on its test split. Writes the files of a classifier's evaluation into `files`.
///
/// # Errors
/// If there is no complete checkpoint, the test images cannot be read, or a file cannot be written.
pub fn evaluate_run(
    task: &Task,
    folder: &RunFolder,
    config: &Config,
    choice: CheckpointChoice,
    files: Option<&Path>,
) -> Result<RunEvaluation, TrainError> {
    let checkpoint = choice.open(folder)?;
    let model = InferenceModel::new(task, config, Weights::Drawn, |built| built.load_for_use(&checkpoint))?;
    let mut evaluation = model.evaluate(config, checkpoint.step(), files)?;
    if let Some(mut quality) = GenerativeMetrics::open(task, &model.context, &model.session.device)? {
        let (training, alone) = (&*model.built.training, Distributed::none());
        let measured = quality.measure(training, &model.data, &alone, &model.session, config)?;
        evaluation.measures.extend(measured);
    }
    Ok(evaluation)
}

/// Evaluates the weights of a file on the configured test split. Writes the files of a classifier's evaluation into `files`.
///
/// # Errors
/// If the weights do not fit the configured model, the test images cannot be read, or a file cannot be written.
pub fn evaluate_weights(
    task: &Task,
    weights: &Path,
    config: &Config,
    files: Option<&Path>,
) -> Result<RunEvaluation, TrainError> {
    let model = InferenceModel::new(task, config, Weights::Here, |built| {
        let [network] = built.networks.as_slice() else {
            let problem = "a file of weights is for one network; this training has several";
            return Err(TrainError::Setup(problem.to_owned()));
        };
        load_into(network.store(), weights, true)?;
        Ok(())
    })?;
    model.evaluate(config, 0, files)
}

/// Generates images with a checkpoint of a run and writes them as a grid, a row for each prompt. Returns the step.
///
/// # Errors
/// If there is no complete checkpoint, the model draws nothing of that kind, or the picture cannot be written.
pub fn sample_run(
    task: &Task,
    folder: &RunFolder,
    config: &Config,
    choice: CheckpointChoice,
    drawing: &Drawing,
    seed: u64,
    out: &Path,
) -> Result<u64, TrainError> {
    let checkpoint = choice.open(folder)?;
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
    Ok(vec![
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
    ])
}
