//! Inference: evaluation, samples, predictions and exports of trained models, and memory plans.

mod adapters;
mod class_files;
mod evaluate;
mod explain;
mod memory;
mod metadata;
mod picture;
mod samples;
mod tally;
mod trained;

mod model;

mod onnx;
mod predict;
mod runs;

pub use adapters::model_adapters;
pub use explain::{ExplainOptions, Explanation, ReadPicture, WordMap, explain_model};
pub use memory::{ModelPlan, plan_memory};
pub use metadata::{ImageMetadata, METADATA_KEY, ModelMetadata};
pub use onnx::{OnnxExport, export_onnx};
pub use picture::Picture;
pub use predict::{ClassAnswer, PredictOptions, PredictOutcome, Prediction, predict, predict_texts};
pub use runs::{
    DrawnPictures, RunEvaluation, SampleReport, describe, draw_pictures, evaluate_model, sample_model,
    write_texts,
};
pub use samples::GridStyle;
pub use trained::{TrainedModel, TrainedWeights};

pub(super) use class_files::{class_report, write_class_files};
pub(super) use evaluate::{TestPass, evaluate};
pub(super) use samples::{Drawn, drawn, grid_of, restored};
