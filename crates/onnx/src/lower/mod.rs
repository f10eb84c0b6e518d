//! Ops as ONNX nodes.

mod elementwise;
mod images;
mod norms;
mod products;
mod shapes;

use std::collections::BTreeMap;

use phalanx_tensor::{Array, GraphInput, GraphNode, Op, Param};

use crate::dims::Dim;
use crate::error::{OnnxError, Result};
use crate::node::{Attribute, Constant, Node, Values};

/// The attributes of a node.
type Attributes = Vec<(&'static str, Attribute)>;

/// An op in both traces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TracedOp<'a> {
    /// The op in the smaller batch.
    pub(crate) node: &'a GraphNode,
    /// The sizes of its output.
    pub(crate) dims: &'a [Dim],
}

impl TracedOp<'_> {
    fn name(&self) -> &'static str {
        self.node.op.name()
    }

    fn unsupported(&self) -> OnnxError {
        OnnxError::Unsupported(self.name())
    }
}

/// The nodes and constants of a model under construction.
#[derive(Debug, Default)]
pub(crate) struct Lowering {
    pub(crate) nodes: Vec<Node>,
    pub(crate) constants: BTreeMap<String, Constant>,
    /// The name and the sizes of each value of the graph.
    values: BTreeMap<usize, (String, Vec<Dim>)>,
    /// The number of names given so far.
    named: usize,
}

impl Lowering {
    /// Names a value of the graph.
    pub(crate) fn define(&mut self, value: usize, name: String, dims: Vec<Dim>) {
        self.values.insert(value, (name, dims));
    }

    /// Returns the name of a value of the graph.
    pub(crate) fn name_of(&self, value: usize) -> Option<&str> {
        self.values.get(&value).map(|(name, _)| name.as_str())
    }

    /// Adds the nodes of an op.
    ///
    /// # Errors
    /// [`OnnxError::Unsupported`] for an op without an ONNX form, and errors of reading parameters.
    pub(crate) fn add(&mut self, op: TracedOp<'_>) -> Result<()> {
        let name = match &op.node.op {
            Op::Conv2d(shape) => self.conv2d(op, shape)?,
            Op::ConvTranspose2d(shape) => self.conv_transpose2d(op, shape)?,
            Op::MaxPool2d(shape) => self.pool("MaxPool", op, shape, Vec::new())?,
            Op::AvgPool2d { shape, count_include_pad } => {
                let counted = ("count_include_pad", Attribute::flag(*count_include_pad));
                self.pool("AveragePool", op, shape, vec![counted])?
            }
            Op::UpsampleNearest2d(factor) => self.upsample(op, *factor)?,
            Op::BatchNorm2d { mean, variance, eps, activation } => {
                self.batch_norm(op, [mean, variance], *eps, *activation)?
            }
            Op::GroupNorm { groups, eps } => self.group_norm(op, *groups, *eps)?,
            Op::LayerNorm { eps } => self.layer_norm(op, *eps)?,
            Op::Unary(function) => self.unary(op, *function)?,
            Op::Add => self.of_inputs("Add", op, Vec::new())?,
            Op::Sub => self.of_inputs("Sub", op, Vec::new())?,
            Op::Mul => self.of_inputs("Mul", op, Vec::new())?,
            Op::Scale(factor) => self.with_scalar("Mul", op, *factor)?,
            Op::AddScalar(addend) => self.with_scalar("Add", op, *addend)?,
            Op::Linear(layout) => self.linear(op, *layout)?,
            Op::MatMul => self.of_inputs("MatMul", op, Vec::new())?,
            Op::Softmax => self.of_inputs("Softmax", op, vec![("axis", Attribute::Int(-1))])?,
            Op::Attention { causal } => self.attention(op, *causal)?,
            Op::SelfAttention { heads, causal } => self.self_attention(op, *heads, *causal)?,
            Op::Reshape => self.reshape(op)?,
            Op::Permute(order) => self.of_inputs("Transpose", op, vec![("perm", Attribute::sizes(order))])?,
            Op::Narrow { dim, start, len } => self.narrow(op, *dim, *start..*start + *len)?,
            Op::Pad { dim, before, after } => self.pad(op, *dim, [*before, *after])?,
            Op::Cat(dim) => self.of_inputs("Concat", op, vec![("axis", Attribute::Int(*dim as i64))])?,
            Op::SumOver(dim) => self.sum_over(op, *dim)?,
            _ => return Err(op.unsupported()),
        };
        self.define(op.node.output, name, op.dims.to_vec());
        Ok(())
    }

    /// Adds a node of all inputs of an op, and returns the name of its output.
    fn of_inputs(
        &mut self,
        operator: &'static str,
        op: TracedOp<'_>,
        attributes: Attributes,
    ) -> Result<String> {
        let inputs = (0..op.node.inputs.len()).map(|at| self.input(op, at)).collect::<Result<Vec<_>>>()?;
        Ok(self.emit(operator, inputs, attributes))
    }

    /// Adds a node, and returns the name of its output.
    fn emit(
        &mut self,
        operator: &'static str,
        inputs: impl IntoIterator<Item = impl Into<String>>,
        attributes: Attributes,
    ) -> String {
        let output = self.fresh(operator);
        let inputs = inputs.into_iter().map(Into::into).collect();
        self.nodes.push(Node { operator, inputs, output: output.clone(), attributes });
        output
    }

    fn fresh(&mut self, stem: &str) -> String {
        self.named += 1;
        format!("{stem}_{}", self.named)
    }

    /// Returns the name of an op's input, and adds it to the constants if it is one.
    fn input(&mut self, op: TracedOp<'_>, at: usize) -> Result<String> {
        match op.node.inputs.get(at) {
            Some(GraphInput::Value(value)) => {
                self.name_of(*value).map(str::to_owned).ok_or(OnnxError::OutsideTape(op.name()))
            }
            Some(GraphInput::Param(param)) => self.param(op.name(), param),
            Some(GraphInput::Constant(array)) => self.array(op.name(), array),
            None => Err(OnnxError::OutsideTape(op.name())),
        }
    }

    /// Returns the name of an op's optional input; `None` if it is missing.
    fn optional_input(&mut self, op: TracedOp<'_>, at: usize) -> Result<Option<String>> {
        match op.node.inputs.get(at) {
            None => Ok(None),
            Some(GraphInput::Constant(array)) if array.shape().elem_count() == 0 => Ok(None),
            Some(_) => self.input(op, at).map(Some),
        }
    }

    /// Returns the sizes of an op's input.
    fn input_dims(&self, op: TracedOp<'_>, at: usize) -> Result<Vec<Dim>> {
        let fixed = |dims: &[usize]| dims.iter().map(|size| Dim::Fixed(*size)).collect();
        match op.node.inputs.get(at) {
            Some(GraphInput::Value(value)) => {
                self.values.get(value).map(|(_, dims)| dims.clone()).ok_or(OnnxError::OutsideTape(op.name()))
            }
            Some(GraphInput::Param(param)) => Ok(fixed(param.dims())),
            Some(GraphInput::Constant(array)) => Ok(fixed(array.shape().dims())),
            None => Err(OnnxError::OutsideTape(op.name())),
        }
    }

    /// Adds a parameter to the constants under its name.
    fn param(&mut self, op: &'static str, param: &Param) -> Result<String> {
        if !self.constants.contains_key(param.name()) {
            self.named_array(op, param.name(), &param.array()?)?;
        }
        Ok(param.name().to_owned())
    }

    /// Adds an array to the constants under this name.
    fn named_array(&mut self, op: &'static str, name: &str, array: &Array) -> Result<()> {
        let (dims, values) = (array.shape().dims().to_vec(), Values::of(op, array)?);
        self.constants.insert(name.to_owned(), Constant { name: name.to_owned(), dims, values });
        Ok(())
    }

    /// Adds an array to the constants under a new name.
    fn array(&mut self, op: &'static str, array: &Array) -> Result<String> {
        let name = self.fresh("constant");
        self.named_array(op, &name, array)?;
        Ok(name)
    }

    /// Adds a constant under a new name.
    fn constant(&mut self, dims: Vec<usize>, values: Values) -> String {
        let name = self.fresh("constant");
        self.constants.insert(name.clone(), Constant { name: name.clone(), dims, values });
        name
    }

    /// Adds a scalar, f32.
    fn scalar(&mut self, number: f64) -> String {
        self.constant(Vec::new(), Values::F32(vec![number as f32]))
    }

    /// Adds a vector of integers: a shape, axes or positions.
    fn integers(&mut self, numbers: &[i64]) -> String {
        self.constant(vec![numbers.len()], Values::I64(numbers.to_vec()))
    }
}
