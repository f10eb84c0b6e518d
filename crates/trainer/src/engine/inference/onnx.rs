//! ONNX models of trained networks, and reference values to check them by.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use phalanx_onnx::{OnnxError, OnnxModel, OnnxNames};
use phalanx_tensor::io::save_safetensors;
use phalanx_tensor::{Graph, Key, Precision, Session, Tape, TensorError, Value};

use super::model::InferenceModel;
use super::{METADATA_KEY, ModelMetadata, TrainedModel};
use crate::engine::TrainError;
use crate::engine::training::{ForwardOutput, ForwardPass, Task};
use phalanx_config::{Config, DeviceKind, Offload};
use phalanx_run::{RunError, write_aside};

/// The seed of reference inputs.
const REFERENCE_SEED: u64 = 17;

/// The samples of reference inputs: neither of the batches that a model is traced with.
const REFERENCE_SAMPLES: usize = 5;

/// The facts of a written ONNX model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnnxExport {
    /// The number of nodes.
    pub nodes: usize,
    /// The name of the input.
    pub input: String,
    /// The names of the outputs.
    pub outputs: Vec<String>,
    /// The size of the file in bytes.
    pub bytes: u64,
}

/// Writes the forward pass of a trained model as ONNX, in f32, and reference inputs and outputs to `check`, if it is given: a
/// safetensors file with the names of the model.
///
/// # Errors
/// If the task has no forward pass, an op has no ONNX form, or a file cannot be written.
pub fn export_onnx(
    task: &Task,
    model: &TrainedModel,
    config: &Config,
    metadata: &ModelMetadata,
    out: &Path,
    check: Option<&Path>,
) -> Result<OnnxExport, TrainError> {
    let mut config = config.clone();
    // The graph is traced on the host, with whole parameters in f32.
    (config.train.device, config.train.precision) = (DeviceKind::Cpu, Precision::F32);
    config.train.offload = Offload::None;
    let inference = InferenceModel::open(task, &config, model)?;
    let kind = &config.model.kind;
    let forward = inference.built.training.forward().ok_or_else(|| {
        TrainError::Setup(format!(
            "a `{kind}` has no forward pass to export to ONNX; --out FILE.safetensors exports its weights"
        ))
    })?;
    let context = inference.context.clone();
    let session = Session::evaluation(context);
    let references = run(&forward, &Tape::forward_only(session.clone()), REFERENCE_SAMPLES, REFERENCE_SEED)?;
    let outputs: Vec<String> = references.outputs.iter().map(|output| output.name.clone()).collect();
    let names = OnnxNames::new(kind, [&forward.input.name], &outputs);
    let failed = |error: OnnxError| TrainError::Setup(format!("a `{kind}`: {error}"));
    let traced = OnnxModel::trace(&names, |batch| trace(&forward, session.clone(), batch)).map_err(failed)?;
    let classes = serde_json::to_string(&metadata.classes).unwrap_or_default();
    let traced = traced
        .with_metadata("mean", numbers(metadata.images.mean))
        .with_metadata("std", numbers(metadata.images.std))
        .with_metadata("classes", classes)
        .with_metadata(METADATA_KEY, metadata.to_json());
    let bytes = traced.to_bytes().map_err(failed)?;
    write_aside(out, &bytes).map_err(RunError::io("write", out))?;
    if let Some(check) = check {
        let mut tensors = vec![(forward.input.name.clone(), references.input)];
        for output in references.outputs {
            tensors.push((output.name, output.value.to_host()?.contiguous()?));
        }
        save_safetensors(check, &tensors, &[("input", forward.input.name.clone())])?;
    }
    let (nodes, input) = (traced.len(), forward.input.name.clone());
    Ok(OnnxExport { nodes, input, outputs, bytes: bytes.len() as u64 })
}

/// An input and its outputs.
struct Pass {
    input: Tensor,
    value: Value,
    outputs: Vec<ForwardOutput>,
}

/// Runs a forward pass on normal noise.
fn run(forward: &ForwardPass<'_>, tape: &Tape, batch: usize, seed: u64) -> Result<Pass, TrainError> {
    let dims: Vec<usize> = [batch].iter().chain(&forward.input.dims).copied().collect();
    let mut noise = vec![0.0; dims.iter().product()];
    Key::new(seed).normal(0, &mut noise);
    let input = Tensor::from_vec(noise, dims, &Device::Cpu)?.to_dtype(DType::F32)?;
    let value = tape.leaf(input.clone());
    let outputs = forward.run(tape, &value)?;
    Ok(Pass { input, value, outputs })
}

/// Traces a forward pass on normal noise that differs between batches.
fn trace(forward: &ForwardPass<'_>, session: Session, batch: usize) -> Result<Graph, OnnxError> {
    let tape = Tape::tracing(session);
    let pass = run(forward, &tape, batch, batch as u64).map_err(|error| match error {
        TrainError::Tensor(error) => error,
        other => TensorError::Trace(other.to_string()),
    })?;
    let outputs: Vec<&Value> = pass.outputs.iter().map(|output| &output.value).collect();
    Ok(tape.into_graph(&[&pass.value], &outputs)?)
}

/// Lists numbers with spaces between them.
fn numbers(numbers: [f32; 3]) -> String {
    numbers.map(|number| number.to_string()).join(" ")
}
