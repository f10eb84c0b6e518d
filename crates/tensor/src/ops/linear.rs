//! Matrix products: the fully connected layer and the batched product.

use std::sync::Arc;

use candle_core::{DType, Shape};

pub use crate::backend::WeightLayout;

use super::cut::{POSITIONS, copy_for_parts, no_ranks, param_for, split_lens};
use super::overlap::PartialProduct;
use super::rank_split::RankSplit;
use crate::backend::{Array, BinaryOp, Factor, LinearProduct, MatrixProduct};
use crate::group::ProcessGroup;
use crate::storage::wide;
use crate::tape::{Grads, Op, Placement, PlacementRule, Tape, Value};
use crate::{Result, TensorError};

const OP: &str = "linear";

/// A linear layer's weight and bias.
#[derive(Debug, Clone, Copy)]
pub struct LinearWeight<'a> {
    /// The weight.
    pub weight: &'a Value,
    /// Its order in memory.
    pub layout: WeightLayout,
    /// The bias `[O]`.
    pub bias: Option<&'a Value>,
}

/// Checks that the arithmetic of both operands has the same type.
fn same_type(op: &'static str, a: &Array, b: &Array) -> Result<()> {
    if wide(a.dtype()) == wide(b.dtype()) {
        return Ok(());
    }
    Err(TensorError::shape(op, format!("element types {:?} and {:?}", a.dtype(), b.dtype())))
}

/// The dimension of a weight of which a rank has a portion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Outputs,
    Inputs,
}

impl<'a> LinearWeight<'a> {
    /// Returns the dimension that is cut over ranks, if one is.
    fn cut(&self) -> Option<Cut> {
        let dim = self.weight.placement()?.cut_dim()?;
        let outputs = match self.layout {
            WeightLayout::OutputsFirst => 0,
            WeightLayout::InputsFirst => 1,
        };
        Some(if dim == outputs { Cut::Outputs } else { Cut::Inputs })
    }

    /// True if a rank has some of the outputs.
    pub(crate) fn is_cut_by_outputs(&self) -> bool {
        self.cut() == Some(Cut::Outputs)
    }

    /// Returns the rule for the placements of a product with `x`.
    fn rule(&self, x: &Value) -> Result<PlacementRule> {
        let last = x.dims().len().saturating_sub(1);
        let weight = self.weight.placement();
        let bias = self.bias.and_then(Value::placement);
        let wrong = |needs: &str| {
            let found = x.placement().map_or_else(|| "a constant".to_owned(), |found| found.to_string());
            let name = self.weight.param().map_or("weight", |param| param.name());
            let cut = match self.cut() {
                Some(Cut::Outputs) => "a portion of the outputs",
                Some(Cut::Inputs) => "a portion of the inputs",
                None => "all elements",
            };
            let problem =
                format!("linear: `{name}` has {cut} on this rank, and {needs}; x {:?} is {found}", x.shape());
            Err(TensorError::placement(problem))
        };
        match (self.cut(), x.placement()) {
            // A constant may be the rank's own.
            (Some(Cut::Outputs), _) if bias.is_some() && bias != weight.map(|is| is.along(0)) => {
                wrong("its bias needs the same portion")
            }
            (Some(Cut::Outputs), None | Some(Placement::Copied)) => {
                Ok(weight.map_or(PlacementRule::Whole, |is| PlacementRule::Own(is.along(last))))
            }
            (Some(Cut::Outputs), _) => wrong("takes whole rows"),
            (Some(Cut::Inputs), _) if bias.is_some_and(|is| is != Placement::Same) => {
                wrong("its bias is added once, to the sum, and must be whole")
            }
            (Some(Cut::Inputs), Some(found)) if found == (Placement::Shard { dim: last }) => {
                Ok(PlacementRule::Own(Placement::Same))
            }
            (Some(Cut::Inputs), _) => wrong(
                "takes a shard of the last dimension, as a layer with a portion of the outputs makes it",
            ),
            (None, Some(found)) if found.cut_dim() == Some(last) => wrong("takes whole rows"),
            (None, Some(other)) if other.cut_dim().is_some() => Ok(PlacementRule::Own(other)),
            (None, _) => Ok(PlacementRule::Whole),
        }
    }

    /// Returns a weight [O, I] without a bias.
    pub fn new(weight: &'a Value) -> Self {
        Self { weight, layout: WeightLayout::OutputsFirst, bias: None }
    }

    /// Checks the shapes of a linear layer and returns `[rows, inputs, outputs]`.
    pub(crate) fn sizes(&self, op: &'static str, x: &Value) -> Result<[usize; 3]> {
        let Self { weight, layout, bias } = *self;
        let (&[first, second], Some((&last, lead))) = (weight.dims(), x.dims().split_last()) else {
            let problem =
                format!("expected [.., I] and a matrix, not {:?} and {:?}", x.shape(), weight.shape());
            return Err(TensorError::shape(op, problem));
        };
        let [outputs, inputs] = match layout {
            WeightLayout::OutputsFirst => [first, second],
            WeightLayout::InputsFirst => [second, first],
        };
        if last != inputs || bias.is_some_and(|b| b.dims() != [outputs]) {
            let problem = format!(
                "x {:?}, weight {:?} and bias {:?} do not match",
                x.shape(),
                weight.shape(),
                bias.map(Value::shape)
            );
            return Err(TensorError::shape(op, problem));
        }
        Ok([lead.iter().product(), inputs, outputs])
    }
}

/// Computes x·Wᵀ + b: `x` is [.., I], `weight` [O, I], `bias` `[O]`, and the result [.., O], as
/// `torch.nn.functional.linear`.
///
/// # Errors
/// If the shapes do not match.
pub fn linear(tape: &Tape, x: &Value, weight: &Value, bias: Option<&Value>) -> Result<Value> {
    linear_by(tape, x, LinearWeight { bias, ..LinearWeight::new(weight) })
}

/// Computes x·W + b with a weight of either order: `x` is [.., I] and the result [.., O].
///
/// Where layers are cut over ranks, the weight says how. With the rows of some outputs, `x` is the same on all ranks, and the result a
/// shard of the outputs. With the columns of some inputs, `x` is a shard of the inputs; the ranks' parts are added up, then the bias.
///
/// # Errors
/// If the shapes or the placements do not match.
pub fn linear_by(tape: &Tape, x: &Value, of: LinearWeight<'_>) -> Result<Value> {
    let dtype = tape.session().precision.product(x.dtype()?);
    match of.cut() {
        None => {
            of.rule(x)?;
            let weight = &param_for(tape, of.weight, x)?;
            let bias = of.bias.map(|bias| param_for(tape, bias, x)).transpose()?;
            linear_stored(tape, x, LinearWeight { weight, bias: bias.as_ref(), ..of }, dtype)
        }
        Some(Cut::Outputs) => linear_stored(tape, &copy_for_parts(tape, x)?, of, dtype),
        Some(Cut::Inputs) => linear_of_parts(tape, x, of, dtype),
    }
}

/// Returns the copy of a weight in bf16 that a session keeps for products of `rows` rows, if it keeps one.
fn kept(tape: &Tape, weight: &Value, rows: usize) -> Result<Option<Array>> {
    match (&tape.session().kept_weights, weight.param()) {
        (Some(kept), Some(param)) if !tape.records() => kept.of(param, rows, tape.session().precision),
        _ => Ok(None),
    }
}

/// As [`linear_by`], with a result of another type: f32 for the input of a loss.
pub(crate) fn linear_stored(tape: &Tape, x: &Value, of: LinearWeight<'_>, dtype: DType) -> Result<Value> {
    let rule = of.rule(x)?;
    let output = product(tape, x, of, dtype)?;
    record(tape, x, of, (rule, output), None)
}

/// Computes this rank's part of a product, adds up the parts of all ranks, then adds the bias. What is added up is not rounded to 16
/// bits before. Of sequences whose positions ranks share, each rank gets the sums of its own.
fn linear_of_parts(tape: &Tape, x: &Value, of: LinearWeight<'_>, dtype: DType) -> Result<Value> {
    let mut rule = of.rule(x)?;
    let group = tape.session().tensor_ranks().ok_or_else(|| no_ranks("a parameter is cut over ranks"))?;
    let without_bias = LinearWeight { bias: None, ..of };
    let mut split = None;
    let sum = match split_lens(tape, x) {
        Some(lens) => {
            let part = product(tape, x, without_bias, wide(dtype))?;
            let of_positions = RankSplit::of_whole(OP, &**group, part.dims(), POSITIONS, &lens)?;
            rule = PlacementRule::Own(Placement::Shard { dim: POSITIONS });
            let own = of_positions.scattered(tape.context(), &**group, &part)?;
            split = Some((of_positions, group.clone()));
            own
        }
        None => sum_of_product(tape, x, without_bias, wide(dtype), group)?,
    };
    let backend = sum.backend(tape.context());
    let sum = match of.bias {
        Some(bias) => backend.binary(BinaryOp::Add, &sum, &bias.array()?)?,
        None => sum.clone(),
    };
    let output = backend.cast(&sum, dtype)?;
    record(tape, x, of, (rule, output), split)
}

/// Computes the sum of the ranks' parts of x·W.
fn sum_of_product(
    tape: &Tape,
    x: &Value,
    of: LinearWeight<'_>,
    dtype: DType,
    group: &Arc<dyn ProcessGroup>,
) -> Result<Array> {
    let sizes = of.sizes(OP, x)?;
    let shape = shape_of(x, sizes[2]);
    let (x, w) = (x.part()?.contiguous()?, of.weight.part()?.contiguous()?);
    same_type(OP, &x, &w)?;
    let w = kept(tape, of.weight, sizes[0])?.unwrap_or(w);
    PartialProduct { x: &x, weight: &w, layout: of.layout, sizes, shape: &shape, dtype }.sum(OP, tape, group)
}

/// The shape of a product of x with this number of outputs.
fn shape_of(x: &Value, outputs: usize) -> Shape {
    let mut shape = x.dims().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = outputs;
    }
    shape.into()
}

/// Computes x·W + b.
fn product(tape: &Tape, x: &Value, of: LinearWeight<'_>, dtype: DType) -> Result<Array> {
    let sizes = of.sizes(OP, x)?;
    let [rows, inputs, outputs] = sizes;
    let shape = &shape_of(x, outputs);
    let (x, w) = (x.part()?.contiguous()?, of.weight.part()?.contiguous()?);
    same_type(OP, &x, &w)?;
    let w = kept(tape, of.weight, rows)?.unwrap_or(w);
    let bias = of.bias.map(|bias| bias.part()?.contiguous()).transpose()?;
    let precision = tape.session().precision;
    tape.count_forward(rows * inputs * outputs);
    let (x, weight, bias) = (&x, of.layout.factor(&w), bias.as_ref());
    x.backend(tape.context()).linear(LinearProduct { sizes, x, weight, bias, shape, precision, dtype })
}

/// Records a product with its backward. If ranks share the positions of the output, their gradients are brought together.
fn record(
    tape: &Tape,
    x: &Value,
    of: LinearWeight<'_>,
    (rule, output): (PlacementRule, Array),
    split: Option<(RankSplit, Arc<dyn ProcessGroup>)>,
) -> Result<Value> {
    let sizes = of.sizes(OP, x)?;
    let LinearWeight { weight, layout, bias } = of;
    let [rows, inputs, outputs] = sizes;
    let x_shape = x.shape().clone();
    let multiply_adds = rows * inputs * outputs;
    let (x_saved, w_saved) = (x.save(), weight.save());
    let none = Value::absent()?;
    // The sum over ranks of the gradient of a copy follows, during which the weight's is computed.
    let is_later = x.placement() == Some(Placement::Copied) && weight.param().is_some();
    tape.push_by(
        rule,
        Op::Linear(layout),
        &[x, weight, bias.unwrap_or(&none)],
        output,
        move |tape, grad, grads| {
            let grad = match &split {
                Some((split, group)) => split.gathered(tape.context(), &**group, grad, grad.dtype())?,
                None => grad.contiguous()?,
            };
            let backend = grad.backend(tape.context());
            let (precision, dtype) = (tape.session().precision, wide(grad.dtype()));
            if let Some(dtype) = grads.dtype(0) {
                let w = w_saved.array()?.contiguous()?;
                same_type(OP, &grad, &w)?;
                let (sizes, a, b) =
                    ([1, rows, inputs, outputs], Factor::plain(&grad), layout.factor(&w).turned());
                let of = MatrixProduct { sizes, a, b, shape: &x_shape, precision, dtype };
                tape.count_backward(multiply_adds);
                grads.add(0, backend.matmul(of)?)?;
            }
            if grads.wants(2) {
                grads.add(2, backend.linear_backward_bias(sizes, &grad)?)?;
            }
            let of_weight = move |tape: &Tape, grads: &mut Grads<'_>| {
                let backend = grad.backend(tape.context());
                grads.write(backend, [(1, &layout.dims(inputs, outputs))], dtype, |[to]| match to {
                    Some(to) => {
                        let x = &x_saved.array()?.contiguous()?;
                        tape.count_backward(multiply_adds);
                        backend.linear_backward_weight(layout.weight_grad(sizes, &grad, x, precision), to)
                    }
                    None => Ok(()),
                })
            };
            match is_later {
                true => grads.later(of_weight),
                false => of_weight(tape, grads)?,
            }
            Ok(())
        },
    )
}

/// Multiplies batches of matrices, [.., M, K] and [.., K, N] with equal leading dimensions.
///
/// # Errors
/// If the shapes do not match.
pub fn matmul(tape: &Tape, a: &Value, b: &Value) -> Result<Value> {
    const OP: &str = "matmul";
    let (a_dims, b_dims) = (a.dims(), b.dims());
    let rank = a_dims.len();
    let fits = rank >= 2
        && b_dims.len() == rank
        && a_dims[..rank - 2] == b_dims[..rank - 2]
        && a_dims[rank - 1] == b_dims[rank - 2];
    if !fits {
        let problem = format!("{:?} times {:?}; expected [.., M, K] and [.., K, N]", a.shape(), b.shape());
        return Err(TensorError::shape(OP, problem));
    }
    let batch: usize = a_dims[..rank - 2].iter().product();
    let (m, k, n) = (a_dims[rank - 2], a_dims[rank - 1], b_dims[rank - 1]);
    let (a_shape, b_shape) = (a.shape().clone(), b.shape().clone());
    let mut shape = a_dims.to_vec();
    shape[rank - 1] = n;
    let output = {
        let (a, b) = (a.array()?.contiguous()?, b.array()?.contiguous()?);
        same_type(OP, &a, &b)?;
        let precision = tape.session().precision;
        let (dtype, shape) = (precision.product(a.dtype()), &Shape::from(shape));
        let (sizes, backend) = ([batch, m, n, k], a.backend(tape.context()));
        let (a, b) = (Factor::plain(&a), Factor::plain(&b));
        backend.matmul(MatrixProduct { sizes, a, b, shape, precision, dtype })?
    };
    let multiply_adds = batch * m * n * k;
    tape.count_forward(multiply_adds);
    let (a_saved, b_saved) = (a.save(), b.save());
    tape.push(Op::MatMul, &[a, b], output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        let backend = grad.backend(tape.context());
        let precision = tape.session().precision;
        if let Some(dtype) = grads.dtype(0) {
            let b = b_saved.array()?.contiguous()?;
            let (sizes, a, b) = ([batch, m, k, n], Factor::plain(&grad), Factor::transposed(&b));
            let of = MatrixProduct { sizes, a, b, shape: &a_shape, precision, dtype };
            tape.count_backward(multiply_adds);
            grads.add(0, backend.matmul(of)?)?;
        }
        if let Some(dtype) = grads.dtype(1) {
            let a = a_saved.array()?.contiguous()?;
            let (sizes, a, b) = ([batch, k, n, m], Factor::transposed(&a), Factor::plain(&grad));
            let of = MatrixProduct { sizes, a, b, shape: &b_shape, precision, dtype };
            tape.count_backward(multiply_adds);
            grads.add(1, backend.matmul(of)?)?;
        }
        Ok(())
    })
}
