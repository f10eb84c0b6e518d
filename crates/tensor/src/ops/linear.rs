//! Matrix products: the fully connected layer and the batched product.

use candle_core::{DType, Tensor, WithDType as _};
use phalanx_kernels::{Matrix, MatrixMut, linear_forward, matmul_batched};

use crate::storage::unwritten;
use crate::storage::{Contiguous, cast, dispatch, operand, stored, tensor_from, wide};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// How a stored matrix is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// As it lies.
    Plain,
    /// Transposed.
    Transposed,
}

/// `batch` products of contiguous matrices: the result is [batch, m, n], not rounded yet if that is to be stored in 16 bits.
///
/// `a` holds m×k (or k×m when transposed) a product, `b` k×n (or n×k).
pub(super) fn product(
    tape: &Tape,
    op: &'static str,
    [batch, m, n, k]: [usize; 4],
    (a, read_a): (&Tensor, Read),
    (b, read_b): (&Tensor, Read),
    shape: Vec<usize>,
) -> Result<Tensor> {
    let (a, b) = (a.contiguous()?, b.contiguous()?);
    same_type(op, &a, &b)?;
    let (a_read, b_read) = (
        operand(op, tape.context(), tape.session().precision, &a)?,
        operand(op, tape.context(), tape.session().precision, &b)?,
    );
    dispatch!(op, a.dtype(), T => {
        let mut out = unwritten::<T>(batch * m * n);
        let a = Matrix::batched(a_read.slice::<T>()?, m, k, read_a == Read::Transposed);
        let b = Matrix::batched(b_read.slice::<T>()?, k, n, read_b == Read::Transposed);
        matmul_batched(tape.context(), batch, a, b, MatrixMut::batched(&mut out, m, n), false)?;
        tensor_from(out, shape)
    })
}

/// Refuses operands that are computed with in different types.
fn same_type(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    if wide(a.dtype()) == wide(b.dtype()) {
        return Ok(());
    }
    Err(TensorError::shape(op, format!("element types {:?} and {:?}", a.dtype(), b.dtype())))
}

/// x·Wᵀ + b: `x` is [.., I], `weight` [O, I], `bias` `[O]`; the result is [.., O], as in `torch.nn.functional.linear`.
///
/// # Errors
/// If the shapes do not go together.
pub fn linear(tape: &Tape, x: &Value, weight: &Value, bias: Option<&Value>) -> Result<Value> {
    linear_stored(tape, x, weight, bias, tape.session().precision.product(x.dtype()?))
}

/// [`linear`] with a result of another type: f32 for what a loss takes at once.
pub(crate) fn linear_stored(
    tape: &Tape,
    x: &Value,
    weight: &Value,
    bias: Option<&Value>,
    dtype: DType,
) -> Result<Value> {
    const OP: &str = "linear";
    let (&[outputs, inputs], Some((&last, lead))) = (weight.dims(), x.dims().split_last()) else {
        let problem = format!("expected [.., I] and [O, I], not {:?} and {:?}", x.shape(), weight.shape());
        return Err(TensorError::shape(OP, problem));
    };
    if last != inputs || bias.is_some_and(|b| b.dims() != [outputs]) {
        let problem = format!(
            "x {:?}, weight {:?} and bias {:?} do not go together",
            x.shape(),
            weight.shape(),
            bias.map(Value::shape)
        );
        return Err(TensorError::shape(OP, problem));
    }
    let rows: usize = lead.iter().product();
    let x_shape = x.dims().to_vec();
    let mut shape = lead.to_vec();
    shape.push(outputs);
    let output = {
        let (x, w) = (x.tensor()?.contiguous()?, weight.tensor()?.contiguous()?);
        same_type(OP, &x, &w)?;
        let bias = bias.map(|bias| Ok::<_, TensorError>(bias.tensor()?.contiguous()?)).transpose()?;
        let (x_read, w_read) = (
            operand(OP, tape.context(), tape.session().precision, &x)?,
            operand(OP, tape.context(), tape.session().precision, &w)?,
        );
        let bias = bias.as_ref().map(|bias| Contiguous::by(OP, tape.context(), bias)).transpose()?;
        dispatch!(OP, x.dtype(), T => {
            let bias = bias.as_ref().map(|bias| bias.slice::<T>()).transpose()?;
            let (x, w) = (x_read.slice::<T>()?, w_read.slice::<T>()?);
            let mut y = unwritten::<T>(rows * outputs);
            linear_forward(tape.context(), [rows, inputs, outputs], x, w, bias, None, None, &mut y)?;
            stored(tape.context(), y, shape, dtype)
        })?
    };
    let (x_saved, w_saved) = (x.save(), weight.save());
    let none = Value::constant(Tensor::zeros(0, DType::F32, &candle_core::Device::Cpu)?);
    tape.push(OP, &[x, weight, bias.unwrap_or(&none)], output, move |tape, grad, grads| { let grad = &grad.tensor()?;
        let cx = tape.context();
        if grads.wants(0) {
            let size = [1, rows, inputs, outputs];
            let w = w_saved.array()?.tensor()?;
            grads.add(0, product(tape, OP, size, (grad, Read::Plain), (&w, Read::Plain), x_shape)?)?;
        }
        if grads.wants(1) {
            let x = x_saved.array()?.tensor()?.contiguous()?;
            let grad = grad.contiguous()?;
            let (x, dy) = (operand(OP, tape.context(), tape.session().precision, &x)?, operand(OP, tape.context(), tape.session().precision, &grad)?);
            dispatch!(OP, grad.dtype(), T => {
                let dy = Matrix::batched(dy.slice::<T>()?, outputs, rows, true);
                let x = Matrix::batched(x.slice::<T>()?, rows, inputs, false);
                grads.write(cx, 1, &[outputs, inputs], T::DTYPE, |to, add| {
 crate::storage::with_slice_mut::<T, _>(OP, to.host(OP)?, |dw| Ok(matmul_batched(cx, 1, dy, x, MatrixMut::batched(dw, outputs, inputs), add)?))
 })
            })?;
        }
        if grads.wants(2) {
            let grad = cast(cx, grad, wide(grad.dtype()))?;
            grads.add(2, grad.reshape((rows, outputs))?.contiguous()?.sum(0)?)?;
        }
        Ok(())
    })
}

/// The batched matrix product of [.., M, K] and [.., K, N] with equal leading dimensions.
///
/// # Errors
/// If the shapes do not go together.
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
    let (a_shape, b_shape) = (a_dims.to_vec(), b_dims.to_vec());
    let mut shape = a_shape.clone();
    shape[rank - 1] = n;
    let size = [batch, m, n, k];
    let output = product(tape, OP, size, (&a.tensor()?, Read::Plain), (&b.tensor()?, Read::Plain), shape)?;
    let output = cast(tape.context(), &output, tape.session().precision.product(output.dtype()))?;
    let (a_saved, b_saved) = (a.save(), b.save());
    tape.push(OP, &[a, b], output, move |tape, grad, grads| {
        let grad = &grad.tensor()?;
        if grads.wants(0) {
            let b = b_saved.array()?.tensor()?;
            let size = [batch, m, k, n];
            grads.add(0, product(tape, OP, size, (grad, Read::Plain), (&b, Read::Transposed), a_shape)?)?;
        }
        if grads.wants(1) {
            let a = a_saved.array()?.tensor()?;
            let size = [batch, k, n, m];
            grads.add(1, product(tape, OP, size, (&a, Read::Transposed), (grad, Read::Plain), b_shape)?)?;
        }
        Ok(())
    })
}
