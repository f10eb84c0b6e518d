//! Two-dimensional convolution.

use std::sync::Arc;

use candle_core::DType;

use super::cut::{copy_for_parts, no_ranks};
use super::underway::OpRanks;
use crate::backend::{Array, ArrayBackend, BinaryOp, Conv2dShape, ConvBackward, ConvForward};
use crate::group::ProcessGroup;
use crate::tape::{Grads, Op, Placement, PlacementRule, SavedValue, Tape, Value};
use crate::{Result, TensorError};
use phalanx_array::wide;

const OP: &str = "conv2d";

/// Stride, padding, dilation and groups of a convolution, each size as [height, width].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// Step between windows.
    pub stride: [usize; 2],
    /// Zeros added on each side.
    pub padding: [usize; 2],
    /// Step between the taps of a window.
    pub dilation: [usize; 2],
    /// Number of groups of channels, each an independent convolution.
    pub groups: usize,
}

impl Default for Conv2dOptions {
    fn default() -> Self {
        Self::new(1, 0)
    }
}

impl Conv2dOptions {
    /// Makes options with square stride and padding, no dilation, and one group.
    pub fn new(stride: usize, padding: usize) -> Self {
        Self { stride: [stride; 2], padding: [padding; 2], dilation: [1; 2], groups: 1 }
    }

    /// Splits the channels into `groups` groups.
    #[must_use]
    pub fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }
}

/// Convolves (cross-correlates) `x` [N, C, H, W] with `weight` [O, C/groups, KH, KW] and adds `bias` `[O]`. The
/// result is [N, O, H', W'] with H' = (H + 2·padding − dilation·(KH − 1) − 1)/stride + 1, rounded down.
///
/// # Errors
/// If the shapes do not match or a window does not fit.
pub fn conv2d(
    tape: &Tape,
    x: &Value,
    weight: &Value,
    bias: Option<&Value>,
    options: Conv2dOptions,
) -> Result<Value> {
    match weight.placement() {
        Some(is @ Placement::Shard { dim: 0 }) if is_depthwise(weight, options.groups) => {
            check_depthwise(x, (weight, bias))?;
            let options = options.groups(weight.dims()[0]);
            conv2d_by(tape, (PlacementRule::Own(is.along(1)), None), x, (weight, bias), options)
        }
        Some(Placement::Shard { dim: 0 }) => {
            let (rule, x) = (PlacementRule::Own(Placement::Shard { dim: 1 }), &copy_for_parts(tape, x)?);
            check_channels(x, (weight, bias), options.groups)?;
            conv2d_by(tape, (rule, None), x, (weight, bias), options)
        }
        Some(Placement::Shard { dim: 1 }) => {
            check_channels(x, (weight, bias), options.groups)?;
            let group = tape.session().tensor_ranks();
            let group = group.ok_or_else(|| no_ranks("a parameter is cut over ranks"))?;
            conv2d_by(tape, (PlacementRule::Own(Placement::Same), Some(group)), x, (weight, bias), options)
        }
        _ => conv2d_by(tape, (PlacementRule::Whole, None), x, (weight, bias), options),
    }
}

/// True if each channel has a filter of its own.
fn is_depthwise(weight: &Value, groups: usize) -> bool {
    let all = weight.param().map_or(0, |param| param.whole_shape().dims()[0]);
    groups > 1 && groups == all && weight.dims().get(1) == Some(&1)
}

/// Refuses a convolution with a filter for each channel whose channels are not those of its weight on this rank.
fn check_depthwise(x: &Value, (weight, bias): (&Value, Option<&Value>)) -> Result<()> {
    let has_own = bias.and_then(Value::placement).is_none_or(|is| is == Placement::Shard { dim: 0 });
    if x.placement() == Some(Placement::Shard { dim: 1 }) && x.dims()[1] == weight.dims()[0] && has_own {
        return Ok(());
    }
    let name = weight.param().map_or("weight", |param| param.name());
    let found = x.placement().map_or_else(|| "a constant".to_owned(), |found| found.to_string());
    Err(TensorError::placement(format!(
        "conv2d: `{name}` has the filters of {} channels on this rank, and takes those with their bias; x {:?} is {found}",
        weight.dims()[0],
        x.shape()
    )))
}

/// Refuses a convolution of other channels than its weight's on this rank.
fn check_channels(x: &Value, (weight, bias): (&Value, Option<&Value>), groups: usize) -> Result<()> {
    let wrong = |needs: &str| {
        let name = weight.param().map_or("weight", |param| param.name());
        let found = x.placement().map_or_else(|| "a constant".to_owned(), |found| found.to_string());
        Err(TensorError::placement(format!(
            "conv2d: `{name}` has a portion of the channels on this rank, and {needs}; x {:?} is {found}",
            x.shape()
        )))
    };
    let bias = bias.and_then(Value::placement);
    match (weight.placement(), x.placement()) {
        (Some(Placement::Shard { .. }), _) if groups != 1 => wrong("channels in groups are not cut"),
        (Some(Placement::Shard { dim: 0 }), _)
            if bias.is_some_and(|is| is != Placement::Shard { dim: 0 }) =>
        {
            wrong("its bias needs the same portion")
        }
        (Some(Placement::Shard { dim: 1 }), _) if bias.is_some_and(|is| is != Placement::Same) => {
            wrong("its bias is added once, to the sum, and must be whole")
        }
        (Some(Placement::Shard { dim: 0 }), None | Some(Placement::Copied)) => Ok(()),
        (Some(Placement::Shard { dim: 0 }), _) => wrong("takes all channels"),
        (Some(Placement::Shard { dim: 1 }), Some(Placement::Shard { dim: 1 })) => Ok(()),
        (Some(Placement::Shard { .. }), _) => wrong("takes a shard of the channels"),
        _ => Ok(()),
    }
}

/// Adds up the parts of all ranks, then adds the bias. What is added up is not rounded to 16 bits before.
fn sum_over(
    tape: &Tape,
    group: &Arc<dyn ProcessGroup>,
    of: ConvForward<'_, Conv2dShape>,
    dtype: DType,
) -> Result<Array> {
    let backend = of.x.backend(tape.context());
    let part = backend.conv2d(ConvForward { bias: None, dtype: wide(dtype), ..of })?;
    let sum = part.contiguous()?;
    OpRanks::waiting(OP, &**group).sum(&sum)?.wait()?;
    let sum = match of.bias {
        Some(bias) => {
            backend.binary(BinaryOp::Add, &sum, &bias.reshape((1, of.shape.out_channels, 1, 1))?)?
        }
        None => sum,
    };
    Ok(backend.cast(&sum, dtype)?)
}

/// Convolves by a rule for placements. With a group the ranks have parts of a sum.
fn conv2d_by(
    tape: &Tape,
    (rule, group): (PlacementRule, Option<&Arc<dyn ProcessGroup>>),
    x: &Value,
    (weight, bias): (&Value, Option<&Value>),
    options: Conv2dOptions,
) -> Result<Value> {
    let shape = shape_of(x, weight, bias, options)?;
    let (x_t, w_t) = (x.contiguous_part()?, weight.contiguous_part()?);
    let b_t = bias.map(Value::contiguous_part).transpose()?;
    let precision = tape.session().precision;
    let dtype = precision.product(x_t.dtype());
    let of = ConvForward { shape: &shape, x: &x_t, weight: &w_t, bias: b_t.as_ref(), precision, dtype };
    let output = match group {
        Some(group) => sum_over(tape, group, of, dtype)?,
        None => x_t.backend(tape.context()).conv2d(of)?,
    };
    let multiply_adds = shape.multiply_adds();
    tape.count_forward(multiply_adds);
    let kept =
        ConvKept::new(
            (x, weight, bias),
            shape,
            multiply_adds,
            |backend, of| Ok(backend.conv2d_backward(of)?),
        );
    let none = Value::absent()?;
    tape.push_by(
        rule,
        Op::Conv2d(shape),
        &[x, weight, bias.unwrap_or(&none)],
        output,
        move |tape, grad, grads| kept.backward(tape, grad, grads),
    )
}

/// Returns the sizes of a convolution of these operands.
fn shape_of(x: &Value, weight: &Value, bias: Option<&Value>, options: Conv2dOptions) -> Result<Conv2dShape> {
    let (&[batch, in_channels, height, width], &[out_channels, per_group, kernel_h, kernel_w]) =
        (x.dims(), weight.dims())
    else {
        let problem =
            format!("expected [N, C, H, W] and [O, I, KH, KW], not {:?} and {:?}", x.shape(), weight.shape());
        return Err(TensorError::shape(OP, problem));
    };
    if per_group * options.groups != in_channels || bias.is_some_and(|b| b.dims() != [out_channels]) {
        let problem = format!(
            "x {:?}, weight {:?}, bias {:?} and {} groups do not match",
            x.shape(),
            weight.shape(),
            bias.map(Value::shape),
            options.groups
        );
        return Err(TensorError::shape(OP, problem));
    }
    let shape = Conv2dShape {
        batch,
        in_channels,
        height,
        width,
        out_channels,
        kernel: [kernel_h, kernel_w],
        stride: options.stride,
        padding: options.padding,
        dilation: options.dilation,
        groups: options.groups,
    };
    shape.validate()?;
    Ok(shape)
}

/// Computes gradients of a convolution: returns that of the input, if that is wanted.
type RunFn<S> = for<'a> fn(&dyn ArrayBackend, ConvBackward<'a, S>) -> Result<Option<Array>>;

/// A convolution's inputs and sizes, for its backward.
pub(super) struct ConvKept<S> {
    shape: S,
    x: SavedValue,
    weight: SavedValue,
    weight_dims: Vec<usize>,
    /// True if weight and bias are parameters, whose gradients may be computed later.
    are_params: bool,
    /// Multiplications of each gradient.
    multiply_adds: usize,
    run: RunFn<S>,
}

/// Gradients of a convolution that are computed together.
#[derive(Clone, Copy)]
struct Wanted {
    input: bool,
    weight: bool,
}

impl<S: 'static> ConvKept<S> {
    pub(super) fn new(
        (x, weight, bias): (&Value, &Value, Option<&Value>),
        shape: S,
        multiply_adds: usize,
        run: RunFn<S>,
    ) -> Self {
        Self {
            shape,
            x: x.save(),
            weight: weight.save(),
            weight_dims: weight.dims().to_vec(),
            are_params: weight.param().is_some() && bias.is_none_or(|bias| bias.param().is_some()),
            multiply_adds,
            run,
        }
    }

    /// Computes and adds the gradients, those of weight and bias in the second part of backward if there is one.
    pub(super) fn backward(self, tape: &Tape, grad: &Array, grads: &mut Grads<'_>) -> Result<()> {
        let dy = grad.contiguous()?;
        if !(self.are_params && tape.leaves_weights()) {
            return self.add(tape, &dy, grads, Wanted { input: true, weight: true });
        }
        self.add(tape, &dy, grads, Wanted { input: true, weight: false })?;
        grads.later(move |tape, grads| self.add(tape, &dy, grads, Wanted { input: false, weight: true }));
        Ok(())
    }

    fn add(&self, tape: &Tape, dy: &Array, grads: &mut Grads<'_>, wanted: Wanted) -> Result<()> {
        let backend = dy.backend(tape.context());
        let (input, weight) = (wanted.input && grads.wants(0), wanted.weight && grads.wants(1));
        let bias = wanted.weight && grads.wants(2);
        if !(input || weight || bias) {
            return Ok(());
        }
        tape.count_backward(self.multiply_adds * (usize::from(input) + usize::from(weight)));
        let x = weight.then(|| self.x.contiguous()).transpose()?;
        let w = input.then(|| self.weight.contiguous()).transpose()?;
        let (precision, shape, run) = (tape.session().precision, &self.shape, self.run);
        let input = w.as_ref();
        let dx = if weight || bias {
            let out_channels = dy.dims()[1];
            let places = [(1, &self.weight_dims[..]), (2, &[out_channels][..])];
            grads.write(backend, places, wide(dy.dtype()), |[weight, bias]| {
                let weight = x.as_ref().zip(weight);
                run(backend, ConvBackward { shape, dy, weight, bias, input, precision })
            })?
        } else {
            run(backend, ConvBackward { shape, dy, weight: None, bias: None, input, precision })?
        };
        match dx {
            Some(dx) => grads.add(0, dx),
            None => Ok(()),
        }
    }
}
