//! Matrix products: the fully connected layer and the batched product.

use std::sync::Arc;

use candle_core::{DType, Shape};

pub use crate::backend::WeightLayout;

use super::cut::{CopyAndProduct, copy_for_parts, copy_for_product, no_ranks, param_for, split_lens};
use super::overlap::{GatheredProduct, PositionBlock, RowProduct, product_of_gathered, with_last};
use super::rank_split::{Gathering, POSITIONS, RankSplit};
use super::underway::OpRanks;
use crate::backend::{Array, BinaryOp, Factor, MatrixProduct};
use crate::group::ProcessGroup;
use crate::tape::{Grads, Op, Placement, PlacementRule, SavedValue, Tape, Value};
use crate::{Result, TensorError};
use phalanx_array::wide;

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
        Some(Cut::Outputs) => linear_of_outputs(tape, x, of, dtype),
        Some(Cut::Inputs) => linear_of_inputs(tape, x, of, dtype),
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
    let output = Factors::of(tape, x, of)?.product(dtype).of(tape, &x.contiguous_part()?)?;
    record(tape, x, of, (rule, output), None)
}

/// Computes this rank's outputs of a product. Of sequences whose positions ranks share, those of the others are on their way while this
/// rank's are multiplied.
fn linear_of_outputs(tape: &Tape, x: &Value, of: LinearWeight<'_>, dtype: DType) -> Result<Value> {
    if split_lens(tape, x).is_none() {
        return linear_stored(tape, &copy_for_parts(tape, x)?, of, dtype);
    }
    let rule = of.rule(&x.detach().placed(Some(Placement::Copied)))?;
    let factors = Factors::of(tape, x, of)?;
    let CopyAndProduct { copy, product } = copy_for_product(tape, x, |x| factors.product(dtype).of(tape, x))?;
    let output = match product {
        Some(product) => product,
        None => factors.product(dtype).of(tape, &copy.contiguous_part()?)?,
    };
    record(tape, &copy, of, (rule, output), None)
}

/// Computes this rank's part of a product, adds up the parts of all ranks, then adds the bias. What is added up is not rounded to 16
/// bits before. Of sequences whose positions ranks share, each rank gets the sums of its own.
fn linear_of_inputs(tape: &Tape, x: &Value, of: LinearWeight<'_>, dtype: DType) -> Result<Value> {
    let mut rule = of.rule(x)?;
    let group = tape.session().tensor_ranks().ok_or_else(|| no_ranks("a parameter is cut over ranks"))?;
    let factors = Factors::of(tape, x, LinearWeight { bias: None, ..of })?;
    let (product, ranks) = (factors.product(wide(dtype)), OpRanks::new(OP, tape, group));
    let part = x.contiguous_part()?;
    let mut split = None;
    let sum = match split_lens(tape, x) {
        Some(lens) => {
            let of_positions = RankSplit::of_whole(OP, &**group, x.dims(), POSITIONS, &lens)?;
            rule = PlacementRule::Own(Placement::Shard { dim: POSITIONS });
            split = Some((of_positions.clone(), group.clone()));
            product.scattered(tape, ranks, &PositionBlock { x: part, split: of_positions })?
        }
        None => product.sum(tape, ranks, &part)?,
    };
    let backend = sum.backend(tape.context());
    let sum = match of.bias {
        Some(bias) => backend.binary(BinaryOp::Add, &sum, &bias.array()?)?,
        None => sum.clone(),
    };
    let output = backend.cast(&sum, dtype)?;
    record(tape, x, of, (rule, output), split)
}

/// The weight and bias of a product, in memory.
struct Factors {
    weight: Array,
    layout: WeightLayout,
    bias: Option<Array>,
    inputs: usize,
    outputs: usize,
}

impl Factors {
    /// Reads the weight and bias of a product with `x`.
    fn of(tape: &Tape, x: &Value, of: LinearWeight<'_>) -> Result<Self> {
        let [rows, inputs, outputs] = of.sizes(OP, x)?;
        let weight = of.weight.contiguous_part()?;
        same_type(OP, &x.part()?, &weight)?;
        let weight = kept(tape, of.weight, rows)?.unwrap_or(weight);
        let bias = of.bias.map(Value::contiguous_part).transpose()?;
        Ok(Self { weight, layout: of.layout, bias, inputs, outputs })
    }

    /// Returns the product with results of a type.
    fn product(&self, dtype: DType) -> RowProduct<'_> {
        let Self { weight, layout, bias, inputs, outputs } = self;
        let (inputs, outputs) = (*inputs, *outputs);
        RowProduct { weight, layout: *layout, bias: bias.as_ref(), inputs, outputs, dtype }
    }
}

/// Records a product with its backward. If ranks share the positions of the output, their gradients are brought together.
fn record(
    tape: &Tape,
    x: &Value,
    of: LinearWeight<'_>,
    (rule, output): (PlacementRule, Array),
    split: Option<(RankSplit, Arc<dyn ProcessGroup>)>,
) -> Result<Value> {
    let LinearWeight { weight, layout, bias } = of;
    let kept = Kept { sizes: of.sizes(OP, x)?, x: x.save(), weight: weight.save(), layout };
    let none = Value::absent()?;
    // The sum over ranks of the gradient of a copy follows, during which the weight's is computed.
    let (is_copied, is_param) = (x.placement() == Some(Placement::Copied), weight.param().is_some());
    let inputs = [x, weight, bias.unwrap_or(&none)];
    tape.push_by(rule, Op::Linear(layout), &inputs, output, move |tape, grad, grads| {
        let is_later = is_param && (is_copied || tape.leaves_weights());
        let grad = match &split {
            Some((split, group)) => {
                let ranks = OpRanks::new(OP, tape, group);
                kept.grads_of_gathered(
                    tape,
                    split.begin_gathered(tape.context(), ranks, grad)?,
                    (grad, grads),
                )?
            }
            None => {
                let grad = grad.contiguous()?;
                if is_later && grads.wants(1) {
                    kept.x.begin()?;
                }
                if let Some(dtype) = grads.dtype(0) {
                    grads.add(0, kept.input_grad(tape, &grad, dtype)?)?;
                }
                grad
            }
        };
        if grads.wants(2) {
            grads.add(2, grad.backend(tape.context()).linear_backward_bias(kept.sizes, &grad)?)?;
        }
        let of_weight = move |tape: &Tape, grads: &mut Grads<'_>| kept.add_weight_grad(tape, &grad, grads);
        match is_later {
            true => grads.later(of_weight),
            false => of_weight(tape, grads)?,
        }
        Ok(())
    })
}

/// The values that the backward of a product needs.
struct Kept {
    /// `[rows, inputs, outputs]`.
    sizes: [usize; 3],
    x: SavedValue,
    weight: SavedValue,
    layout: WeightLayout,
}

impl Kept {
    /// Computes the gradient of rows of the input, in type `dtype`.
    fn input_grad(&self, tape: &Tape, grad: &Array, dtype: DType) -> Result<Array> {
        let [_, inputs, outputs] = self.sizes;
        let w = self.weight.contiguous()?;
        same_type(OP, grad, &w)?;
        let rows: usize = grad.dims()[..grad.rank() - 1].iter().product();
        let (a, b) = (Factor::plain(grad), self.layout.factor(&w).turned());
        let (shape, precision) = (&with_last(grad.dims(), inputs), tape.session().precision);
        tape.count_backward(rows * inputs * outputs);
        let sizes = [1, rows, inputs, outputs];
        Ok(grad.backend(tape.context()).matmul(MatrixProduct { sizes, a, b, shape, precision, dtype })?)
    }

    /// Adds the gradient of the input, whose positions of other ranks are on their way while those of this rank's are computed, and
    /// returns the gradient of the output with all positions.
    fn grads_of_gathered(
        &self,
        tape: &Tape,
        gathering: Gathering,
        (own, grads): (&Array, &mut Grads<'_>),
    ) -> Result<Array> {
        let Some(dtype) = grads.dtype(0) else {
            return gathering.finish(tape.context(), own.dtype());
        };
        let multiply = |grad: &Array| self.input_grad(tape, grad, dtype);
        let GatheredProduct { whole, product } =
            product_of_gathered(tape.context(), own, gathering, multiply)?;
        grads.add(0, product)?;
        Ok(whole.contiguous()?)
    }

    /// Adds the gradient of the weight.
    fn add_weight_grad(&self, tape: &Tape, grad: &Array, grads: &mut Grads<'_>) -> Result<()> {
        let Self { sizes, layout, .. } = *self;
        let [rows, inputs, outputs] = sizes;
        let (backend, precision) = (grad.backend(tape.context()), tape.session().precision);
        grads.write(backend, [(1, &layout.dims(inputs, outputs))], wide(grad.dtype()), |[to]| match to {
            Some(to) => {
                let x = &self.x.contiguous()?;
                tape.count_backward(rows * inputs * outputs);
                Ok(backend.linear_backward_weight(layout.weight_grad(sizes, grad, x, precision), to)?)
            }
            None => Ok(()),
        })
    }
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
        let (a, b) = (a.contiguous()?, b.contiguous()?);
        same_type(OP, &a, &b)?;
        let precision = tape.session().precision;
        let (dtype, shape) = (precision.product(a.dtype()), &Shape::from(shape));
        let (sizes, backend) = ([batch, m, n, k], Array::backend_of(tape.context(), [&a, &b]));
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
            let b = b_saved.contiguous()?;
            let (sizes, a, b) = ([batch, m, k, n], Factor::plain(&grad), Factor::transposed(&b));
            let of = MatrixProduct { sizes, a, b, shape: &a_shape, precision, dtype };
            tape.count_backward(multiply_adds);
            grads.add(0, backend.matmul(of)?)?;
        }
        if let Some(dtype) = grads.dtype(1) {
            let a = a_saved.contiguous()?;
            let (sizes, a, b) = ([batch, k, n, m], Factor::transposed(&a), Factor::plain(&grad));
            let of = MatrixProduct { sizes, a, b, shape: &b_shape, precision, dtype };
            tape.count_backward(multiply_adds);
            grads.add(1, backend.matmul(of)?)?;
        }
        Ok(())
    })
}
