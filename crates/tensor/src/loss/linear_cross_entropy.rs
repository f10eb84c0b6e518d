//! A language model's head: the product with the vocabulary and its cross-entropy, without keeping logits.
//!
//! Logits of a vocabulary of 50,000 are the largest array of a step by far, and their softmax and gradient as large.
//! Here a block of rows is multiplied, replaced by its gradient, and multiplied back; then the next block takes its
//! memory. Gradients are computed in forward, which saves a second product of each block.

use std::sync::Arc;

use candle_core::{DType, Shape};

use super::cross_entropy::{CrossEntropyOptions, PlacedTargets, RankColumns, RowTargets, times};
use crate::backend::{Array, ArrayBackend, Destination, Factor, LinearProduct, MatrixProduct};
use crate::group::ProcessGroup;
use crate::ops::{LinearWeight, WeightLayout, copy_for_parts, no_ranks};
use crate::tape::{Placement, PlacementRule, Tape, Value};
use crate::{Precision, Result, TensorError};
use phalanx_array::wide;

const OP: &str = "linear_cross_entropy";

/// The bytes of a block of logits.
const BLOCK: usize = 100 << 20;

/// Rows of larger blocks are a multiple of this, so that threads get as many.
const TOGETHER: usize = 32;

/// Computes the weighted sum of the cross-entropies of logits x·W + b: `x` is [.., C], its rows are those of `targets`.
/// It equals [`super::cross_entropy_of_rows`] of [`crate::ops::linear_by`], in the memory of a block of rows.
///
/// Where layers are cut over ranks and a rank has some rows of the weight, `x` and the loss are the same on all ranks, which exchange
/// four numbers of each row of `x`.
///
/// # Errors
/// If the shapes do not match, and those of [`super::cross_entropy_of_rows`].
pub fn linear_cross_entropy(
    tape: &Tape,
    x: &Value,
    weight: LinearWeight<'_>,
    targets: &RowTargets<'_>,
    options: CrossEntropyOptions,
) -> Result<Value> {
    in_blocks(tape, x, weight, (targets, options), BLOCK)
}

/// As [`linear_cross_entropy`], with blocks of about this number of bytes.
fn in_blocks(
    tape: &Tape,
    x: &Value,
    weight: LinearWeight<'_>,
    (targets, options): (&RowTargets<'_>, CrossEntropyOptions),
    bytes: usize,
) -> Result<Value> {
    let LinearWeight { weight: w, layout, bias } = weight;
    let sizes = weight.sizes(OP, x)?;
    let cut = weight.is_cut_by_outputs().then(|| CutHead::of(tape, weight)).transpose()?;
    let x = &if cut.is_some() { copy_for_parts(tape, x)? } else { x.clone() };
    let rule = if cut.is_some() { PlacementRule::Own(Placement::Same) } else { PlacementRule::Whole };
    let (input, matrix) = (x.contiguous()?, w.contiguous_part()?);
    let bias_array = bias.map(Value::contiguous_part).transpose()?;
    let backend = input.backend(tape.context());
    // All blocks multiply the weight and the input, which are rounded once.
    let precision = tape.session().precision;
    let rounded = |array| backend.rounded(array, precision);
    let head = Head {
        backend,
        sizes,
        x: &rounded(&input)?.reshape(sizes[0] * sizes[1])?,
        weight: &rounded(&matrix)?,
        layout,
        bias: bias_array.as_ref(),
        precision,
        dtype: wide(input.dtype()),
        columns: cut.as_ref().filter(|cut| cut.group.size() > 1).map(CutHead::columns),
    };
    let targets = targets.on(backend, sizes[0], options)?;
    let wants = [x, w].map(Value::needs_grad);
    let wants = HeadGrads { x: wants[0], weight: wants[1], bias: bias.is_some_and(Value::needs_grad) };
    let wants = if tape.records() { wants } else { HeadGrads { x: false, weight: false, bias: false } };
    let (loss, made) = head.run(&targets, wants, bytes)?;
    let products = 1 + [wants.x, wants.weight].into_iter().filter(|wanted| *wanted).count();
    tape.count_forward(products * sizes.iter().product::<usize>());
    let x_shape = x.shape().clone();
    let none = Value::absent()?;
    tape.push_by(rule, OP, &[x, w, bias.unwrap_or(&none)], loss, move |tape, grad, grads| {
        let backend = grad.backend(tape.context());
        for (index, made) in [made.x, made.weight, made.bias].into_iter().enumerate() {
            let Some(made) = made.filter(|_| grads.wants(index)) else { continue };
            let made = times(backend, made, grad)?;
            grads.add(index, if index == 0 { made.reshape(&x_shape)? } else { made })?;
        }
        Ok(())
    })
}

/// One thing for each of the head's gradients.
#[derive(Clone, Copy)]
struct HeadGrads<T> {
    x: T,
    weight: T,
    bias: T,
}

/// A weight of which a rank has the rows of some outputs.
struct CutHead {
    group: Arc<dyn ProcessGroup>,
    first: usize,
    all: usize,
}

impl CutHead {
    fn of(tape: &Tape, weight: LinearWeight<'_>) -> Result<Self> {
        let group = tape.session().tensor_ranks().cloned();
        let group = group.ok_or_else(|| no_ranks("the head is cut over ranks"))?;
        let portion = weight.weight.param().and_then(|param| param.portion());
        match portion.map(|portion| (portion, portion.kept())) {
            Some((portion, [only])) => {
                let all = portion.whole().dims()[portion.dim()];
                Ok(Self { group, first: only.start, all })
            }
            _ => Err(TensorError::placement(
                "linear_cross_entropy: a rank needs the rows of successive classes",
            )),
        }
    }

    fn columns(&self) -> RankColumns<'_> {
        RankColumns { group: &*self.group, first: self.first, all: self.all }
    }
}

/// The inputs of the product.
struct Head<'a> {
    backend: &'a dyn ArrayBackend,
    /// `[rows, inputs, outputs]`.
    sizes: [usize; 3],
    /// The flat input.
    x: &'a Array,
    weight: &'a Array,
    layout: WeightLayout,
    bias: Option<&'a Array>,
    precision: Precision,
    /// The type of logits and gradients.
    dtype: DType,
    /// The columns of the logits that this rank has, if others have others.
    columns: Option<RankColumns<'a>>,
}

impl Head<'_> {
    /// Computes the loss and the wanted gradients, block by block.
    fn run(
        &self,
        targets: &PlacedTargets,
        wants: HeadGrads<bool>,
        bytes: usize,
    ) -> Result<(Array, HeadGrads<Option<Array>>)> {
        let (backend, dtype, [rows, inputs, outputs]) = (self.backend, self.dtype, self.sizes);
        let made = |wanted: bool, shape: Shape| wanted.then(|| backend.unwritten(&shape, dtype)).transpose();
        let mut grads = HeadGrads {
            x: made(wants.x, Shape::from(rows * inputs))?,
            weight: made(wants.weight, Shape::from(&self.layout.dims(inputs, outputs)))?,
            bias: None,
        };
        let mut loss: Option<Array> = None;
        // Ranks have the same blocks.
        let most = self.columns.as_ref().map_or(outputs, |of| of.all.div_ceil(of.group.size()));
        let block = (bytes / (most * dtype.size_in_bytes()).max(1)).clamp(1, rows.max(1));
        // Blocks of equal size: no small rest.
        let block = rows.div_ceil(rows.div_ceil(block).max(1)).max(1);
        let block = if block > TOGETHER { block.next_multiple_of(TOGETHER) } else { block };
        let mut first = 0;
        while first < rows || loss.is_none() {
            let count = block.min(rows - first);
            let x = self.x.view(first * inputs, (count, inputs))?;
            let slopes = self.logits(&x, count)?;
            let of_block = match &self.columns {
                Some(columns) => targets.replace_columns(backend, columns, &slopes, first)?,
                None => targets.replace(backend, &slopes, first)?,
            };
            // Products on a CPU round while they read.
            let rounded =
                if slopes.is_host() { None } else { Some(backend.rounded(&slopes, self.precision)?) };
            let rounded = rounded.as_ref().unwrap_or(&slopes);
            if let Some(to) = &grads.x {
                let from = self.backward_input(rounded, count)?;
                backend.copy(&to.view(first * inputs, (count, inputs))?, &from)?;
            }
            if let Some(to) = &grads.weight {
                let to = Destination { array: to.clone(), add: first > 0 };
                self.backward_weight(&x, rounded, count, &to)?;
            }
            if wants.bias {
                let sums = backend.linear_backward_bias([count, inputs, outputs], &slopes)?;
                grads.bias = Some(added(backend, grads.bias.take(), sums)?);
            }
            loss = Some(added(backend, loss.take(), of_block)?);
            first += count.max(1);
        }
        let loss = loss.ok_or_else(|| TensorError::shape(OP, "no rows"))?;
        Ok((loss, grads))
    }

    fn logits(&self, x: &Array, count: usize) -> Result<Array> {
        let [_, inputs, outputs] = self.sizes;
        Ok(self.backend.linear(LinearProduct {
            sizes: [count, inputs, outputs],
            x,
            weight: self.layout.factor(self.weight),
            bias: self.bias,
            shape: &Shape::from((count, outputs)),
            precision: self.precision,
            dtype: self.dtype,
        })?)
    }

    fn backward_input(&self, slopes: &Array, count: usize) -> Result<Array> {
        let [_, inputs, outputs] = self.sizes;
        Ok(self.backend.matmul(MatrixProduct {
            sizes: [1, count, inputs, outputs],
            a: Factor::plain(slopes),
            b: self.layout.factor(self.weight).turned(),
            shape: &Shape::from((count, inputs)),
            precision: self.precision,
            dtype: self.dtype,
        })?)
    }

    fn backward_weight(&self, x: &Array, slopes: &Array, count: usize, to: &Destination) -> Result<()> {
        let [_, inputs, outputs] = self.sizes;
        Ok(self.backend.linear_backward_weight(
            self.layout.weight_grad([count, inputs, outputs], slopes, x, self.precision),
            to,
        )?)
    }
}

/// Adds an array to another in place, if there is one.
fn added(backend: &dyn ArrayBackend, to: Option<Array>, addend: Array) -> Result<Array> {
    match to {
        Some(to) => Ok(backend.accumulate(&to, &addend).map(|()| to)?),
        None => Ok(addend),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::Tensor;

    use super::*;
    use crate::loss::{LossDivisor, cross_entropy_of_rows};
    use crate::{BuildOptions, Context, Init, Key, Session, StoreBuilder, ops};

    /// The loss, and the gradients of the input, the weight and the bias.
    fn gradients(layout: WeightLayout, options: CrossEntropyOptions, bytes: Option<usize>) -> [Vec<f64>; 4] {
        let (inputs, outputs, dtype) = (6, 11, DType::F64);
        let builder = StoreBuilder::new(BuildOptions { dtype, ..BuildOptions::default() });
        let normal = Init::Normal { mean: 0.0, std: 1.0 };
        let scope = builder.root();
        let x = scope.param("x", (2, 5, inputs), normal).expect("a name");
        let weight = scope.param("weight", &layout.dims(inputs, outputs), normal).expect("a name");
        let bias = scope.param("bias", outputs, normal).expect("a name");
        let store = builder.build().expect("a store");
        let tape = Tape::recording(Session::training(Arc::new(Context::new(2)), Key::new(0)));
        let [input, w, b] = [&x, &weight, &bias].map(|param| tape.param(param).expect("built"));
        let of = LinearWeight { weight: &w, layout, bias: Some(&b) };
        let labels = [1, 0, 7, 3, 5, 2, 2, 8, 0, 4];
        let weights = [1.0, 0.0, 2.0, 1.0, 1.0, 0.0, 0.0, 0.5, 1.0, 1.0];
        let targets =
            RowTargets { labels: (&labels).into(), weights: Some(&weights), over: LossDivisor::Sum(7.5) };
        let loss = match bytes {
            Some(bytes) => in_blocks(&tape, &input, of, (&targets, options), bytes),
            None => ops::linear_by(&tape, &input, of)
                .and_then(|logits| cross_entropy_of_rows(&tape, &logits, &targets, options)),
        };
        let loss = loss.expect("sound");
        let scaled = ops::scale(&tape, &loss, 3.0).expect("sound");
        tape.backward(&scaled).expect("sound");
        let numbers = |tensor: Tensor| tensor.flatten_all().and_then(|t| t.to_vec1::<f64>()).expect("f64");
        let grad =
            |name: &str| numbers(store.param(name).expect("built").grad().expect("is there").expect("some"));
        [numbers(loss.to_host().expect("a scalar")), grad("x"), grad("weight"), grad("bias")]
    }

    #[test]
    fn blocks_of_any_size_are_the_whole() {
        let capped =
            CrossEntropyOptions { smoothing: 0.1, z_loss: 0.01, soft_cap: Some(4.0), classes: Some(9) };
        for layout in [WeightLayout::OutputsFirst, WeightLayout::InputsFirst] {
            for options in [CrossEntropyOptions::default(), capped] {
                let whole = gradients(layout, options, None);
                // Rows of 88 bytes: blocks of 1, 3 (and a rest) and all.
                for bytes in [1, 300, 1 << 20] {
                    for (found, expected) in gradients(layout, options, Some(bytes)).iter().zip(&whole) {
                        assert_eq!(found.len(), expected.len());
                        let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12);
                        assert!(close, "{layout:?}, {bytes} bytes: {found:?} and {expected:?}");
                    }
                }
            }
        }
    }
}
