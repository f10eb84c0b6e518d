//! Trained models: their weights, and the classes that they know.

use std::path::PathBuf;

use phalanx_checkpoint::{Checkpoint, newest_checkpoint};
use phalanx_run::RunFolder;

use super::ModelMetadata;
use crate::engine::TrainError;
use crate::engine::training::Task;
use phalanx_config::Config;
use phalanx_datasets::{DataRecord, class_names};

/// The weights of a trained model.
#[derive(Debug, Clone)]
pub enum TrainedWeights {
    /// A checkpoint of a run.
    Checkpoint {
        /// The checkpoint.
        checkpoint: Box<Checkpoint>,
        /// True to use averages in place of the parameters that have one, as a run's evaluation does.
        averages: bool,
    },
    /// A file that an export has written, with its description.
    Exported(PathBuf),
    /// A file of another program.
    Foreign(PathBuf),
    /// A folder of another program with the weights of all networks.
    Published(PathBuf),
}

/// A trained model.
#[derive(Debug, Clone)]
pub struct TrainedModel {
    /// The weights.
    pub weights: TrainedWeights,
    /// The steps that it was trained for; 0 if that is unknown.
    pub step: u64,
    /// The classes in the order of their labels; empty if it has none, or they are unknown.
    pub classes: Vec<String>,
}

impl TrainedModel {
    /// Makes the model of a run's newest checkpoint, with averages if there are any.
    ///
    /// # Errors
    /// If there is no complete checkpoint, and errors of [`TrainedModel::of_checkpoint`].
    pub fn of_run(task: &Task, folder: &RunFolder, config: &Config) -> Result<Self, TrainError> {
        Self::of_checkpoint(task, newest_checkpoint(folder)?, folder, config)
    }

    /// Makes the model of a run's checkpoint, with averages if there are any. The classes are those of the run's record of its
    /// data.
    ///
    /// # Errors
    /// If there is no record and the images cannot be opened.
    pub fn of_checkpoint(
        task: &Task,
        checkpoint: Checkpoint,
        folder: &RunFolder,
        config: &Config,
    ) -> Result<Self, TrainError> {
        let record = DataRecord::read(&folder.data());
        let classes = match record.as_ref().and_then(DataRecord::classes) {
            Some(classes) => classes.to_vec(),
            None if task.reads_images() => class_names(config)?,
            None => Vec::new(),
        };
        let (step, checkpoint) = (checkpoint.step(), Box::new(checkpoint));
        Ok(Self { weights: TrainedWeights::Checkpoint { checkpoint, averages: true }, step, classes })
    }

    /// Chooses between a checkpoint's parameters and its averages.
    #[must_use]
    pub fn with_averages(mut self, on: bool) -> Self {
        if let TrainedWeights::Checkpoint { averages, .. } = &mut self.weights {
            *averages = on;
        }
        self
    }

    /// Makes the model of an exported file.
    pub fn exported(file: PathBuf, metadata: &ModelMetadata) -> Self {
        let (step, classes) = (metadata.step, metadata.classes.clone());
        Self { weights: TrainedWeights::Exported(file), step, classes }
    }

    /// Makes the model of a folder of another program with the weights of all networks.
    pub fn published(folder: PathBuf) -> Self {
        Self { weights: TrainedWeights::Published(folder), step: 0, classes: Vec::new() }
    }

    /// Makes the model of a file of another program, which names no classes.
    pub fn foreign(file: PathBuf) -> Self {
        Self { weights: TrainedWeights::Foreign(file), step: 0, classes: Vec::new() }
    }
}
