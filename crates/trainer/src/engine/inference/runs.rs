//! Evaluation and samples of a trained model, and the description of a run.

use std::path::Path;
use std::time::{Duration, Instant};

use phalanx_tensor::{ParamBucket, Tape};
use phalanx_weights::check_configured;

use super::model::InferenceModel;
use super::{Drawn, GridStyle, TestPass, TrainedModel, class_report, evaluate, grid_of, write_class_files};
use crate::engine::data::Data;
use crate::engine::distributed::{BatchGroups, Distributed, Network};
use crate::engine::generative_metrics::{ConfusedValues, GenerativeMetrics};
use crate::engine::training::{Drawing, Task, Weights, Writing, WrittenPart, WrittenTexts};
use crate::engine::{Plan, TrainError, optimize};
use phalanx_config::Config;
use phalanx_run::{ClassReport, TextUse};

/// The evaluation of a trained model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunEvaluation {
    /// The steps that the model was trained for; 0 if that is unknown.
    pub step: u64,
    /// The measures by name.
    pub measures: Vec<(String, f64)>,
    /// The evaluation of each class, if the model is a classifier.
    pub classes: Option<ClassReport>,
    /// The values of properties that judges found confused in generated images.
    pub confusions: Vec<ConfusedValues>,
}

/// Evaluates a trained model on the configured test split, and its samples by the configured judges. Writes the files of a
/// classifier's evaluation into `files`.
///
/// # Errors
/// If the weights do not fit the configured model, labels mean other classes than in training, the test images cannot be
/// read, or a file cannot be written.
pub fn evaluate_model(
    task: &Task,
    model: &TrainedModel,
    config: &Config,
    files: Option<&Path>,
) -> Result<RunEvaluation, TrainError> {
    let inference = InferenceModel::open(task, config, model)?;
    let InferenceModel { built, context, session } = &inference;
    let mut quality = GenerativeMetrics::open(task, context, &session.device)?;
    if quality.is_some() {
        GenerativeMetrics::check_draws(&*built.training, &config.model.kind)?;
    }
    let data = open_data(task, config, &inference)?;
    data.check_classes(&model.classes)?;
    let batch = if config.eval.batch > 0 { config.eval.batch } else { config.train.global_batch };
    let (training, alone) = (&*built.training, Distributed::none());
    let (step, mistakes) = (model.step, config.eval.mistakes);
    let pass = TestPass { step, limit: config.eval.limit, batch, mistakes };
    let result = evaluate(training, &data, &alone, &BatchGroups::default(), session, None, pass)?;
    let mut evaluation =
        RunEvaluation { step, measures: result.measures, classes: None, confusions: Vec::new() };
    if let (Some(tally), Some(classes)) = (&result.classes, training.outline().classes) {
        let report = class_report(tally, &classes, &data, config, step)?;
        if let Some(files) = files {
            write_class_files(&report, tally, &data, config, files)?;
        }
        evaluation.classes = Some(report);
    }
    if let Some(quality) = &mut quality {
        let quality = quality.measure(training, &data, &alone, session, config, None)?;
        evaluation.measures.extend(quality.measures);
        evaluation.confusions = quality.confusions;
    }
    Ok(evaluation)
}

/// Opens the data of a configuration. Each image is used once, so none is cached on the device.
fn open_data(task: &Task, config: &Config, inference: &InferenceModel) -> Result<Data, TrainError> {
    Data::open(config, task.open_data(config), &Distributed::none(), &inference.session.device, 0)
}

/// The samples that [`sample_model`] has generated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleReport {
    /// The number of samples.
    pub samples: usize,
    /// The time that they took, without reading weights and writing the grid.
    pub time: Duration,
}

/// Images of a trained model.
#[derive(Debug, Clone, PartialEq)]
pub struct DrawnPictures {
    /// The images, `[3, size, size]` each, planar in [-1, 1].
    pub pictures: Vec<Vec<f32>>,
    /// The time that they took, without reading weights.
    pub time: Duration,
}

/// Generates the images of a drawing with a trained model, row by row.
///
/// # Errors
/// If the weights do not fit, or the model draws nothing of that kind.
pub fn draw_pictures(
    task: &Task,
    model: &TrainedModel,
    config: &Config,
    drawing: &Drawing,
    seed: u64,
) -> Result<DrawnPictures, TrainError> {
    let InferenceModel { built, session, .. } = InferenceModel::open(task, config, model)?;
    let start = Instant::now();
    let drawn = Drawn::of(&*built.training, session, seed, drawing)?.ok_or_else(|| draws_nothing(config))?;
    Ok(DrawnPictures { pictures: drawn.into_pictures(), time: start.elapsed() })
}

fn draws_nothing(config: &Config) -> TrainError {
    TrainError::Setup(format!("a `{}` draws no pictures", config.model.kind))
}

/// Generates images with a trained model and writes them as a grid, a row for each prompt. With several seeds each column is the first
/// one of a seed, in place of the columns of `drawing`.
///
/// # Errors
/// If the weights do not fit, the model draws nothing of that kind, or the picture cannot be written.
pub fn sample_model(
    task: &Task,
    model: &TrainedModel,
    config: &Config,
    drawing: &Drawing,
    seeds: &[u64],
    (out, style): (&Path, GridStyle),
) -> Result<SampleReport, TrainError> {
    let InferenceModel { built, session, .. } = InferenceModel::open(task, config, model)?;
    let start = Instant::now();
    let drawn = match seeds {
        &[seed] => Drawn::of(&*built.training, session, seed, drawing)?,
        _ => Drawn::of_seeds(&*built.training, &session, seeds, drawing)?,
    };
    let drawn = drawn.ok_or_else(|| draws_nothing(config))?;
    let report = SampleReport { samples: drawn.samples(), time: start.elapsed() };
    grid_of(&drawn, drawing, (config.model.image_size, style))?.write(out)?;
    Ok(report)
}

/// Writes texts with a trained model, if what it writes for a given text is among `uses`. `take` gets parts of texts as soon as they
/// are known.
///
/// # Errors
/// If the weights do not fit, a prompt is too long or cannot be encoded, or the model writes no texts or other ones.
pub fn write_texts(
    task: &Task,
    model: &TrainedModel,
    config: &Config,
    (writing, uses): (&Writing, &[TextUse]),
    take: &mut dyn FnMut(WrittenPart<'_>),
) -> Result<WrittenTexts, TrainError> {
    let InferenceModel { built, session, .. } = InferenceModel::open(task, config, model)?;
    let tape = Tape::forward_only(session);
    let kind = &config.model.kind;
    let text_use = match built.training.outline().texts {
        None => return Err(TrainError::Setup(format!("a `{kind}` writes no texts"))),
        Some(TextUse::Translate) if !uses.contains(&TextUse::Translate) => {
            let problem = format!("a `{kind}` translates texts: `phalanx translate` does that");
            return Err(TrainError::Setup(problem));
        }
        Some(text_use) if !uses.contains(&text_use) => {
            return Err(TrainError::Setup(format!("a `{kind}` translates no texts: see `phalanx write`")));
        }
        Some(text_use) => text_use,
    };
    let texts = built.training.write(&tape, writing, take)?.unwrap_or_default();
    Ok(WrittenTexts { texts, text_use })
}

/// Describes a run of `config` in lines of text, without training.
///
/// # Errors
/// If the model cannot be built or the images cannot be found.
pub fn describe(task: &Task, config: &Config) -> Result<Vec<String>, TrainError> {
    // Weights of a first stage that is not trained yet cannot be read.
    let weights = if task.first_run(config).is_some() { Weights::Placeholder } else { Weights::Here };
    let inference = InferenceModel::build(task, config, None, weights, |_| Ok(()))?;
    let data = open_data(task, config, &inference)?;
    let (images, batch) = (data.train_len(), config.train.global_batch);
    let plan = data.plan(config)?;
    let networks = &inference.built.networks;
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
        format!("model: {}", inference.built.training.describe()),
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
        format!("data: {}, {images} training samples", data.describe()),
        format!("steps: {} in an epoch, {} in all", plan.steps_per_epoch, plan.stop),
        format!("each of {ranks} ranks takes {share} samples a step"),
    ];
    let (stores, names) = (inference.built.learnt_stores(), &inference.built.names);
    lines.extend(check_configured(config, &stores, names, false)?.map(|record| record.describe()));
    lines.extend(networks.iter().flat_map(|network| rules_of(network, config, &plan)));
    Ok(lines)
}

/// Describes the frozen parameters of a network, and those with another learning rate.
fn rules_of(network: &Network, config: &Config, plan: &Plan) -> Vec<String> {
    let whose = if network.name().is_empty() { String::new() } else { format!(" of {}", network.name()) };
    let optim = config.for_network(network.name()).optim;
    let frozen: Vec<_> = network.store().model_params().filter(|param| param.is_frozen_by_rule()).collect();
    let elements: usize = frozen.iter().map(|param| param.elem_count()).sum();
    let until = optim.unfreezes_after(plan.steps_per_epoch);
    let until = until.map_or_else(String::new, |step| format!(" until step {step}"));
    let mut lines = Vec::new();
    if !frozen.is_empty() {
        lines.push(format!("frozen{whose}: {} tensors of {elements} elements{until}", frozen.len()));
    }
    let groups = || network.store().buckets().iter().flat_map(ParamBucket::groups);
    if !optim.no_decay.is_empty() {
        let elements: usize = groups().filter(|group| !group.decay).map(|group| group.range.len()).sum();
        lines.push(format!("no weight decay{whose}: {elements} elements"));
    }
    let mut rates: Vec<(f64, usize)> = Vec::new();
    for group in groups() {
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
