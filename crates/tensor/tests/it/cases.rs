//! Ops that the networks of the training tests lack: forward and backward, with the gradients of all inputs.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::loss::{self, LossDivisor};
use phalanx_tensor::ops::{AttentionHeads, AttentionMask, AttentionOptions};
use phalanx_tensor::{Array, ComputeDevice, Context, Key, Precision, Result, Session, Tape, Value, ops};

pub(crate) fn draw(name: &str, dims: &[usize]) -> Tensor {
    let mut values = vec![0.0; dims.iter().product()];
    Key::new(3).stream(name).normal(0, &mut values);
    Tensor::from_vec(values, dims, &Device::Cpu).and_then(|t| t.to_dtype(DType::F32)).expect("a constant")
}

/// One or several ops.
pub(crate) type Run = fn(&Tape, &[Value]) -> Result<Value>;
/// Name, shapes of the inputs, and ops of each case.
pub(crate) const CASES: &[(&str, &[&[usize]], Run)] = &[
    ("arithmetic", &[&[2, 3], &[2, 3]], |t, v| {
        let sum = ops::broadcast_add(t, &ops::sub(t, &v[0], &v[1])?, &ops::sum_over(t, &v[0], 0)?)?;
        ops::add_scalar(t, &ops::scale(t, &ops::mul(t, &sum, &v[1])?, 0.7)?, 0.1)
    }),
    ("shapes", &[&[2, 3, 4], &[2, 1, 4]], |t, v| {
        let both = ops::cat(t, &[&v[0], &v[1]], 1)?;
        let part = ops::narrow(t, &ops::transpose(t, &both, 0, 2)?, 1, 1, 3)?;
        ops::broadcast_as(t, &ops::reshape(t, &ops::sum_over(t, &part, 2)?, (1, 12))?, (3, 12))
    }),
    ("functions", &[&[3, 5]], |t, v| ops::gelu(t, &ops::tanh(t, &ops::leaky_relu(t, &v[0], 0.2)?)?)),
    ("gated functions", &[&[3, 6]], |t, v| ops::geglu(t, &v[0])),
    ("swiglu", &[&[3, 35], &[3, 35]], |t, v| ops::swiglu(t, &v[0], &v[1])),
    ("rms_norm", &[&[2, 90, 35], &[35]], |t, v| ops::rms_norm(t, &v[0], &v[1], 1e-5)),
    ("rms_norm with a residual", &[&[2, 90, 35], &[35]], |t, v| {
        ops::add(t, &v[0], &ops::rms_norm(t, &v[0], &v[1], 1e-5)?)
    }),
    ("rotary", &[&[2, 3, 2, 6]], |t, v| {
        let positions = Tensor::new(&[[3_u32, 4, 0], [0, 1, 100]], &Device::Cpu)?;
        let [cos, sin] = ops::rotary_angles(t, &positions, &[1.0, 0.1, 0.003], 1.5)?;
        ops::rotary(t, &v[0], [&cos, &sin])
    }),
    ("matmul", &[&[2, 3, 4], &[2, 4, 5]], |t, v| ops::softmax(t, &ops::matmul(t, &v[0], &v[1])?)),
    ("conv2d", &[&[2, 4, 7, 6], &[6, 2, 3, 2], &[6]], |t, v| {
        let options = ops::Conv2dOptions { dilation: [2, 1], ..ops::Conv2dOptions::new(2, 1).groups(2) };
        ops::conv2d(t, &v[0], &v[1], Some(&v[2]), options)
    }),
    ("depthwise", &[&[2, 4, 7, 6], &[4, 1, 3, 3], &[4]], |t, v| {
        ops::conv2d(t, &v[0], &v[1], Some(&v[2]), ops::Conv2dOptions::new(2, 1).groups(4))
    }),
    ("conv_transpose2d", &[&[2, 4, 3, 3], &[4, 2, 3, 3], &[4]], |t, v| {
        let options = ops::Conv2dOptions::new(2, 1).groups(2);
        ops::conv_transpose2d(t, &v[0], &v[1], Some(&v[2]), options, [1, 1])
    }),
    ("pooling", &[&[2, 2, 6, 6]], |t, v| {
        let max = ops::max_pool2d(t, &v[0], ops::PoolOptions::new(3, 2, 1))?;
        let up = ops::upsample_nearest2d(t, &max, 2)?;
        ops::avg_pool2d(t, &up, ops::PoolOptions::new(2, 2, 0), false)
    }),
    ("norms", &[&[2, 4, 3], &[4], &[4]], |t, v| {
        ops::l2_normalise(t, &ops::group_norm(t, &v[0], 2, &v[1], &v[2], 1e-5)?)
    }),
    ("noise", &[&[4, 6]], |t, v| {
        let noise = ops::gaussian_noise(t, v[0].shape().clone(), DType::F32)?;
        ops::dropout(t, &ops::add(t, &v[0], &noise)?, 0.5)
    }),
    ("select_positions", &[&[3, 4, 2]], |t, v| ops::select_positions(t, &v[0], &[3, 0, 2])),
    ("element losses", &[&[4, 3], &[4, 3]], |t, v| {
        let target = ops::full_like(t, &v[0], 0.25)?;
        let losses = [
            loss::mse(t, &v[0], &target, LossDivisor::Batch)?,
            loss::l1(t, &v[0], &target, LossDivisor::Batch)?,
            loss::smooth_l1(t, &v[0], &target, 0.5, LossDivisor::Count(9))?,
            loss::bce_with_logits(t, &v[1], &target, LossDivisor::Batch)?,
            loss::kl_standard_normal(t, &v[0], &v[1], LossDivisor::Batch)?,
        ];
        let mut total = ops::mean(t, &v[1])?;
        for loss in &losses {
            total = ops::add(t, &total, loss)?;
        }
        Ok(total)
    }),
    ("attention of a large head", &[&[1, 3, 1, 300], &[1, 4, 1, 300], &[1, 4, 1, 300]], |t, v| {
        ops::attention(t, &v[0], &v[1], &v[2], &AttentionOptions::default())
    }),
    ("attention with all masks", &[&[2, 5, 4, 8], &[2, 7, 2, 8], &[2, 7, 2, 8]], |t, v| {
        let lengths = Tensor::new(&[7_u32, 3], &Device::Cpu)?;
        let starts = Tensor::new(&[[0_u32, 0, 3, 3, 3], [0, 1, 1, 1, 4]], &Device::Cpu)?;
        let (lengths, starts) = (Some((&lengths).into()), Some((&starts).into()));
        let mask = AttentionMask { causal: true, window: Some(3), lengths, starts };
        ops::attention(t, &v[0], &v[1], &v[2], &AttentionOptions { mask, ..AttentionOptions::default() })
    }),
    ("self_attention with shared heads", &[&[2, 6, 64]], |t, v| {
        let heads = AttentionHeads { queries: 4, keys: 2 };
        ops::self_attention(t, &v[0], heads, &AttentionOptions::causal())
    }),
    ("self_attention with dropout", &[&[2, 6, 96]], |t, v| {
        let options = AttentionOptions { dropout: 0.3, ..AttentionOptions::causal() };
        ops::self_attention(t, &v[0], 4, &options)
    }),
    ("clip_contrastive", &[&[3, 4], &[3, 4], &[]], |t, v| {
        let (images, texts) = (ops::l2_normalise(t, &v[0])?, ops::l2_normalise(t, &v[1])?);
        loss::clip_contrastive(t, &images, &texts, &ops::exp(t, &v[2])?, LossDivisor::Batch)
    }),
];

/// Computes the output of a case and the gradients of its inputs on a device, and returns them on the host.
#[cfg(feature = "cuda")]
pub(crate) fn outcome(
    case: (&str, &[&[usize]], Run),
    device: &ComputeDevice,
    precision: Precision,
) -> Result<Vec<Tensor>> {
    outcome_there(case, device, precision)?.iter().map(|array| Ok(array.to_host()?)).collect()
}

/// Computes the output of a case and the gradients of its inputs on a device.
pub(crate) fn outcome_there(
    (name, shapes, run): (&str, &[&[usize]], Run),
    device: &ComputeDevice,
    precision: Precision,
) -> Result<Vec<Array>> {
    let mut session = Session::training(Arc::new(Context::new(1)), Key::new(5));
    (session.precision, session.device) = (precision, device.clone());
    let tape = Tape::recording(session);
    let inputs = shapes.iter().enumerate().map(|(i, dims)| draw(&format!("{name}{i}"), dims));
    let leaves = inputs.map(|x| Ok(tape.leaf(device.put(&x)?))).collect::<Result<Vec<_>>>()?;
    let output = run(&tape, &leaves)?;
    let seed = device.put(&draw("seed", output.dims()).to_dtype(output.dtype()?)?)?;
    tape.backward_from([(&output, seed)])?;
    let mut all = vec![output.array()?];
    for leaf in &leaves {
        all.push(tape.leaf_grad(leaf).expect("takes part"));
    }
    Ok(all)
}
