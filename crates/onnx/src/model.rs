//! Models out of two traces.

use phalanx_tensor::{Graph, GraphInput, GraphPort, Op};

use crate::dims::{BATCHES, unify};
use crate::encode::{Parts, Port, model};
use crate::error::{OnnxError, Result};
use crate::lower::{Lowering, TracedOp};
use crate::node::{Constant, Node};

/// The limit of a file of Protocol Buffers, with room for everything but weights.
const MAX_WEIGHTS: u64 = (1 << 31) - (64 << 20);

/// The names of a model, its inputs and its outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnnxNames {
    graph: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

impl OnnxNames {
    /// Makes the names of a model `graph`.
    pub fn new<N: Into<String>, M: Into<String>>(
        graph: impl Into<String>,
        inputs: impl IntoIterator<Item = N>,
        outputs: impl IntoIterator<Item = M>,
    ) -> Self {
        Self {
            graph: graph.into(),
            inputs: inputs.into_iter().map(Into::into).collect(),
            outputs: outputs.into_iter().map(Into::into).collect(),
        }
    }
}

/// A model in ONNX's form.
#[derive(Debug, Clone, PartialEq)]
pub struct OnnxModel {
    name: String,
    nodes: Vec<Node>,
    constants: Vec<Constant>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    metadata: Vec<(String, String)>,
}

impl OnnxModel {
    /// Makes a model of the graphs that `trace` returns for batches of two and of three samples, on different inputs.
    ///
    /// # Errors
    /// Errors of `trace`; [`OnnxError::Unsupported`] naming an op without an ONNX form; [`OnnxError::OutsideTape`] and
    /// [`OnnxError::DependsOnBatch`] if the graphs differ by more than the batch.
    pub fn trace<E: Into<OnnxError>>(
        names: &OnnxNames,
        trace: impl Fn(usize) -> std::result::Result<Graph, E>,
    ) -> Result<Self> {
        let [first, second] = BATCHES.map(|batch| trace(batch).map_err(Into::into));
        let (first, second) = (first?, second?);
        let graphs = [&first, &second];
        if graphs[0].nodes.len() != graphs[1].nodes.len() {
            return Err(OnnxError::OtherOps(graphs[0].nodes.len(), graphs[1].nodes.len()));
        }
        let inputs = ports("inputs", &names.inputs, graphs.map(|graph| &graph.inputs[..]))?;
        let outputs = ports("outputs", &names.outputs, graphs.map(|graph| &graph.outputs[..]))?;
        let mut lowering = Lowering::default();
        for (port, of) in inputs.iter().zip(&graphs[0].inputs) {
            lowering.define(of.value, port.name.clone(), port.dims.clone());
        }
        for (node, other) in graphs[0].nodes.iter().zip(&graphs[1].nodes) {
            let op = node.op.name();
            check_attributes(&node.op, &other.op)?;
            check_inputs(op, [&node.inputs, &other.inputs])?;
            let dims = unify(op, [node.shape.dims(), other.shape.dims()])?;
            lowering.add(TracedOp { node, dims: &dims })?;
        }
        for (port, of) in outputs.iter().zip(&graphs[0].outputs) {
            let value = lowering.name_of(of.value).ok_or(OnnxError::OutsideTape("output"))?.to_owned();
            let node = Node {
                operator: "Identity",
                inputs: vec![value],
                output: port.name.clone(),
                attributes: Vec::new(),
            };
            lowering.nodes.push(node);
        }
        let constants = lowering.constants.into_values().collect();
        let name = names.graph.clone();
        Ok(Self { name, nodes: lowering.nodes, constants, inputs, outputs, metadata: Vec::new() })
    }

    /// Adds an entry of `metadata_props`.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.push((key.into(), value.into()));
        self
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns true without nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the file's bytes: a `ModelProto` of opset 17.
    ///
    /// # Errors
    /// [`OnnxError::TooLarge`] if the weights do not fit into a file of Protocol Buffers.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let bytes = self.constants.iter().map(|constant| constant.values.bytes() as u64).sum();
        if bytes > MAX_WEIGHTS {
            return Err(OnnxError::TooLarge(bytes));
        }
        Ok(model(&Parts {
            name: &self.name,
            nodes: &self.nodes,
            constants: &self.constants,
            inputs: &self.inputs,
            outputs: &self.outputs,
            metadata: &self.metadata,
        }))
    }
}

/// Names the inputs or outputs of both graphs.
fn ports(kind: &'static str, names: &[String], graphs: [&[GraphPort]; 2]) -> Result<Vec<Port>> {
    let values = graphs[0].len();
    if names.len() != values || graphs[1].len() != values {
        return Err(OnnxError::Names { kind, names: names.len(), values });
    }
    let port = |((name, two), three): ((&String, &GraphPort), &GraphPort)| {
        Ok(Port { name: name.clone(), dims: unify(kind, [two.shape.dims(), three.shape.dims()])? })
    };
    names.iter().zip(graphs[0]).zip(graphs[1]).map(port).collect()
}

/// Checks that an op has the same attributes in both graphs. Sizes of images cannot differ if shapes are equal.
fn check_attributes(two: &Op, three: &Op) -> Result<()> {
    let numbers = |op: &Op| -> Vec<f64> {
        match op {
            Op::Scale(number) | Op::AddScalar(number) => vec![*number],
            Op::Permute(order) => order.iter().map(|dim| *dim as f64).collect(),
            Op::Narrow { dim, start, len } => vec![*dim as f64, *start as f64, *len as f64],
            Op::Pad { dim, before, after } => vec![*dim as f64, *before as f64, *after as f64],
            Op::Cat(dim) | Op::SumOver(dim) | Op::UpsampleNearest2d(dim) => vec![*dim as f64],
            _ => Vec::new(),
        }
    };
    if two.name() == three.name() && numbers(two) == numbers(three) {
        return Ok(());
    }
    let problem = match two.name() == three.name() {
        true => "its attributes are others for 3 than for 2".to_owned(),
        false => format!("it is `{}` for 3", three.name()),
    };
    Err(OnnxError::DependsOnBatch { op: two.name(), problem })
}

/// Checks that an op has the same inputs in both graphs, whose images differ.
fn check_inputs(op: &'static str, [two, three]: [&[GraphInput]; 2]) -> Result<()> {
    let same = |(two, three): (&GraphInput, &GraphInput)| -> Result<bool> {
        Ok(match (two, three) {
            (GraphInput::Value(two), GraphInput::Value(three)) => two == three,
            (GraphInput::Param(two), GraphInput::Param(three)) => two.name() == three.name(),
            (GraphInput::Constant(two), GraphInput::Constant(three)) => {
                let bits = |array: &phalanx_tensor::Array| -> Result<Vec<u64>> {
                    let flat = array.to_host()?.to_dtype(candle_core::DType::F64)?.flatten_all()?;
                    Ok(flat.to_vec1::<f64>()?.into_iter().map(f64::to_bits).collect())
                };
                two.shape() == three.shape() && bits(two)? == bits(three)?
            }
            _ => false,
        })
    };
    for pair in two.iter().zip(three) {
        if !same(pair)? {
            return Err(OnnxError::OutsideTape(op));
        }
    }
    if two.len() == three.len() { Ok(()) } else { Err(OnnxError::OutsideTape(op)) }
}
