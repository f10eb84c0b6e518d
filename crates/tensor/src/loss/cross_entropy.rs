//! Cross-entropy of logits with class labels, and with mixtures of two labels.

use candle_core::{DType, Device, Shape, Tensor};
use phalanx_kernels::{CrossEntropyColumns, CrossEntropyRows, ROW_PARTS, cross_entropy_of_parts};

use super::LossDivisor;
use crate::backend::{Array, ArrayBackend, BinaryOp, CrossEntropy, CutCrossEntropy};
use crate::group::ProcessGroup;
use crate::ops::Indices;
use crate::tape::{Tape, Value};
use crate::{Result, TensorError, ops};
use phalanx_array::wide;

pub use crate::backend::CrossEntropyOptions;

const OP: &str = "cross_entropy";

/// The targets of rows of logits.
#[derive(Debug, Clone)]
pub struct RowTargets<'a> {
    /// The class of each row.
    pub labels: Indices<'a>,
    /// The weight of each row; 1 without. A row of weight 0, such as padding, has no loss, and its label is not checked.
    pub weights: Option<&'a [f32]>,
    /// The divisor of the sum of the rows' losses.
    pub over: LossDivisor,
}

impl RowTargets<'_> {
    /// Checks the number of labels and weights, and the weights.
    fn check(&self, rows: usize) -> Result<()> {
        if self.labels.len() != rows {
            let problem = format!("{} labels for {rows} rows of logits", self.labels.len());
            return Err(TensorError::shape(OP, problem));
        }
        let Some(weights) = self.weights else { return Ok(()) };
        if weights.len() != rows {
            let problem = format!("{} weights for {rows} rows of logits", weights.len());
            return Err(TensorError::shape(OP, problem));
        }
        match weights.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0)) {
            Some(weight) => {
                let (value, expected) = (weight.to_string(), "expected a finite number, at least 0");
                Err(TensorError::Argument { name: "weights", value, expected })
            }
            None => Ok(()),
        }
    }

    /// Moves labels and weights to where the logits are.
    pub(super) fn on(
        &self,
        backend: &dyn ArrayBackend,
        rows: usize,
        options: CrossEntropyOptions,
    ) -> Result<PlacedTargets> {
        self.check(rows)?;
        check_options(options)?;
        let weights =
            self.weights.map(|weights| Tensor::from_slice(weights, rows, &Device::Cpu)).transpose()?;
        Ok(PlacedTargets {
            labels: self.labels.on(OP, backend)?,
            weights: weights.map(|weights| backend.from_host(&weights)).transpose()?,
            options,
            factor: self.over.factor(rows),
        })
    }
}

/// Targets at the place of the logits.
pub(super) struct PlacedTargets {
    labels: Array,
    weights: Option<Array>,
    options: CrossEntropyOptions,
    pub(super) factor: f64,
}

impl PlacedTargets {
    /// Replaces logits [R, K] of the rows from `first` on by the gradient of their loss, which is returned.
    pub(super) fn replace(&self, backend: &dyn ArrayBackend, logits: &Array, first: usize) -> Result<Array> {
        let (labels, weights) = self.part(first, logits.dims()[0])?;
        let (labels, weights, options) = (&labels, weights.as_ref(), self.options);
        Ok(backend.cross_entropy(logits, CrossEntropy { labels, weights, options, factor: self.factor })?)
    }

    /// Returns the labels and the weights of some rows.
    pub(super) fn part(&self, first: usize, rows: usize) -> Result<(Array, Option<Array>)> {
        let all = self.labels.elem_count();
        let part = |array: &Array| match rows == all {
            true => array.reshape(all),
            false => array.reshape(all)?.view(first, rows),
        };
        Ok((part(&self.labels)?, self.weights.as_ref().map(part).transpose()?))
    }
}

/// The columns of logits that a rank has, where the ranks of a group have others.
pub(super) struct RankColumns<'a> {
    pub(super) group: &'a dyn ProcessGroup,
    /// The class of the first one.
    pub(super) first: usize,
    /// The number of all.
    pub(super) all: usize,
}

impl PlacedTargets {
    /// Replaces logits [R, K] of the rows from `first` on, of which ranks have different columns, by the gradient of their loss. The
    /// loss, which is returned, is that of all columns, and the same on all ranks.
    pub(super) fn replace_columns(
        &self,
        backend: &dyn ArrayBackend,
        columns: &RankColumns<'_>,
        logits: &Array,
        first: usize,
    ) -> Result<Array> {
        let rows = logits.dims()[0];
        let (labels, weights) = self.part(first, rows)?;
        let of = CrossEntropy {
            labels: &labels,
            weights: weights.as_ref(),
            options: self.options,
            factor: self.factor,
        };
        let of = CutCrossEntropy { rows: of, first: columns.first, columns: columns.all };
        let (size, rank) = (columns.group.size(), columns.group.rank());
        let own = rows * ROW_PARTS;
        let all = backend.unwritten(&Shape::from(size * own), DType::F64)?;
        backend.copy(&all.view(rank * own, own)?, &backend.cross_entropy_parts(logits, of)?.reshape(own)?)?;
        columns.group.all_gather(&all, &vec![own; size]).map_err(TensorError::hook(OP))?;
        let Some(parts) = backend.has_numbers().then(|| all.to_host()).transpose()? else {
            backend.cross_entropy_slopes(logits, of, &[])?;
            return Ok(backend.full(0.0, &().into(), logits.dtype())?);
        };
        let of_all = HostTargets::read(of)?;
        let (loss, log_sums) = cross_entropy_of_parts(of_all.columns(of), &parts.to_vec1::<f64>()?)?;
        backend.cross_entropy_slopes(logits, of, &log_sums)?;
        Ok(backend.full(loss, &().into(), logits.dtype())?)
    }
}

/// Targets on the host.
pub(super) struct HostTargets {
    labels: Vec<u32>,
    weights: Option<Vec<f32>>,
}

impl HostTargets {
    pub(super) fn read(of: CutCrossEntropy<'_>) -> Result<Self> {
        let labels = of.rows.labels.to_host()?.to_dtype(DType::U32)?.to_vec1::<u32>()?;
        let weights = of.rows.weights.map(|weights| Ok::<_, TensorError>(weights.to_host()?.to_vec1()?));
        Ok(Self { labels, weights: weights.transpose()? })
    }

    /// Returns the rows with all their columns.
    pub(super) fn columns(&self, of: CutCrossEntropy<'_>) -> CrossEntropyColumns<'_> {
        let CrossEntropy { options, factor, .. } = of.rows;
        let rows =
            CrossEntropyRows { labels: &self.labels, weights: self.weights.as_deref(), options, factor };
        CrossEntropyColumns { rows, first: 0, columns: of.columns }
    }
}

fn check_options(options: CrossEntropyOptions) -> Result<()> {
    let CrossEntropyOptions { smoothing, z_loss, soft_cap, .. } = options;
    let argument =
        |name, value: f64, expected| Err(TensorError::Argument { name, value: value.to_string(), expected });
    match soft_cap {
        _ if !(0.0..1.0).contains(&smoothing) => argument("label_smoothing", smoothing, "expected 0 ≤ s < 1"),
        _ if !(z_loss.is_finite() && z_loss >= 0.0) => {
            argument("z_loss", z_loss, "expected a number, at least 0")
        }
        Some(cap) if !(cap.is_finite() && cap > 0.0) => {
            argument("soft_cap", cap, "expected a positive number")
        }
        _ => Ok(()),
    }
}

/// Multiplies an array by a scalar array, in new memory unless the scalar is known to be 1.
pub(super) fn times(backend: &dyn ArrayBackend, array: Array, scalar: &Array) -> Result<Array> {
    if scalar.is_host() && scalar.host(OP)?.to_dtype(DType::F64)?.to_scalar::<f64>()? == 1.0 {
        return Ok(array);
    }
    Ok(backend.binary(BinaryOp::Mul, &array, scalar)?)
}

/// Computes the mean of −log softmax(logits) at the label. `logits` is [N, K], `labels` N classes below K, on the
/// host or on the logits' device.
///
/// With `label_smoothing` s the target is 1 − s on the label plus s/K everywhere, as in PyTorch.
///
/// # Errors
/// If the shapes do not match, a label is out of range (named with its row, where the back end can tell), or s is not
/// in [0, 1).
pub fn cross_entropy<'a>(
    tape: &Tape,
    logits: &Value,
    labels: impl Into<Indices<'a>>,
    label_smoothing: f64,
    over: LossDivisor,
) -> Result<Value> {
    if logits.dims().len() != 2 {
        return Err(TensorError::shape(OP, format!("expected logits [N, K], not {:?}", logits.shape())));
    }
    let targets = RowTargets { labels: labels.into(), weights: None, over };
    let options = CrossEntropyOptions { smoothing: label_smoothing, ..Default::default() };
    cross_entropy_of_rows(tape, logits, &targets, options)
}

/// Computes the weighted sum of the rows' cross-entropies, divided by the targets' divisor: of samples, or of the
/// positions of sequences. `logits` is [.., K], with a row for each target.
///
/// # Errors
/// As [`cross_entropy`], and if a weight is negative or not finite or an option is out of its range.
pub fn cross_entropy_of_rows(
    tape: &Tape,
    logits: &Value,
    targets: &RowTargets<'_>,
    options: CrossEntropyOptions,
) -> Result<Value> {
    let Some((width, lead)) = logits.dims().split_last() else {
        return Err(TensorError::shape(OP, "expected logits [.., K], not a scalar"));
    };
    let rows = lead.iter().product();
    let input = logits.contiguous()?;
    let backend = input.backend(tape.context());
    let targets = targets.on(backend, rows, options)?;
    // The logits may have other readers.
    let slopes = backend.unwritten(&Shape::from((rows, *width)), wide(input.dtype()))?;
    backend.copy(&slopes, &input)?;
    let loss = targets.replace(backend, &slopes, 0)?;
    let shape = input.shape().clone();
    tape.push(OP, &[logits], loss, move |tape, grad, grads| {
        grads.add(0, times(grad.backend(tape.context()), slopes, grad)?.reshape(shape)?)
    })
}

/// The labels of samples that were mixed in pairs, as by MixUp and CutMix.
#[derive(Debug, Clone, Copy)]
pub struct LabelPairs<'a> {
    /// The label of each sample.
    pub labels: &'a [u32],
    /// The label of each sample's partner.
    pub partners: &'a [u32],
    /// The share of a sample's own label, 0 to 1; the rest is the partner's.
    pub share: f64,
}

/// Computes share·[`cross_entropy`] with the labels plus (1 − share) times that with the partners' labels. This is the
/// cross-entropy with the mixture of both smoothed targets (Zhang et al. 2018).
///
/// # Errors
/// Errors of [`cross_entropy`], and if the share is not in [0, 1].
pub fn mixed_cross_entropy(
    tape: &Tape,
    logits: &Value,
    pairs: LabelPairs<'_>,
    label_smoothing: f64,
    over: LossDivisor,
) -> Result<Value> {
    let LabelPairs { labels, partners, share } = pairs;
    if !(0.0..=1.0).contains(&share) {
        let (value, expected) = (share.to_string(), "expected 0 ≤ share ≤ 1");
        return Err(TensorError::Argument { name: "share", value, expected });
    }
    let own = cross_entropy(tape, logits, labels, label_smoothing, over)?;
    let other = cross_entropy(tape, logits, partners, label_smoothing, over)?;
    ops::add(tape, &ops::scale(tape, &own, share)?, &ops::scale(tape, &other, 1.0 - share)?)
}
