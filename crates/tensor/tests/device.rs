//! The seam under the ops: what trains on the CPU trains on arrays that nobody can look into, to the same bits, and nothing
//! crosses between the host and the device but the batch and the loss.

mod checking;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use checking::Checking;
use phalanx_tensor::backend::{Array, Memory as _, Place};
use phalanx_tensor::loss::{self, Over};
use phalanx_tensor::{Context, Key, Session, Tape, Value, ops};

fn draw(name: &str, dims: &[usize]) -> Tensor {
    let mut values = vec![0.0; dims.iter().product()];
    Key::new(3).stream(name).normal(0, &mut values);
    Tensor::from_vec(values, dims, &Device::Cpu).and_then(|t| t.to_dtype(DType::F32)).expect("a constant")
}

#[test]
fn reading_a_devices_array_on_the_host_is_an_error_that_names_who_reads() {
    let device = Checking::new(Context::new(1));
    let value = Value::constant(device.from_host(&draw("x", &[2, 3])).expect("small"));
    let error = value.tensor().expect_err("it lies on a device").to_string();
    assert_eq!(
        error,
        "`tensor` of a value reads numbers on the host, and this array is one of the checking back end; \
         `to_host` copies it"
    );
    let tape = Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)));
    let error =
        tape.segment(&[&value], |x| x[0].sqr()).expect_err("candle's graph is the host's").to_string();
    assert!(error.starts_with("segment reads numbers on the host"), "{error}");
    // Arrays of both sides in one op.
    let host = Value::constant(draw("y", &[2, 3]));
    for (a, b) in [(&value, &host), (&host, &value)] {
        let error = ops::add(&tape, a, b).expect_err("two places").to_string();
        assert!(error.contains("add") && error.contains("checking back end"), "{error}");
    }
    device.take_transfers();
    assert_eq!(
        value.to_host().expect("a named transfer").to_vec2::<f32>().expect("f32"),
        draw("x", &[2, 3]).to_vec2::<f32>().expect("f32")
    );
    assert_eq!(device.take_transfers(), [checking::Transfer::Out(DType::F32, vec![2, 3])]);
}

/// Every op that the two networks of the training test lack: forward and backward, with the gradients of all inputs.
#[test]
fn every_op_computes_on_a_device_what_it_computes_on_the_cpu() {
    type Run = fn(&Tape, &[Value]) -> phalanx_tensor::Result<Value>;
    let cases: &[(&str, &[&[usize]], Run)] = &[
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
        ("matmul", &[&[2, 3, 4], &[2, 4, 5]], |t, v| ops::softmax(t, &ops::matmul(t, &v[0], &v[1])?)),
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
                loss::mse(t, &v[0], &target, Over::Batch)?,
                loss::l1(t, &v[0], &target, Over::Batch)?,
                loss::smooth_l1(t, &v[0], &target, 0.5, Over::Count(9))?,
                loss::bce_with_logits(t, &v[1], &target, Over::Batch)?,
                loss::kl_standard_normal(t, &v[0], &v[1], Over::Batch)?,
            ];
            let mut total = ops::mean(t, &v[1])?;
            for loss in &losses {
                total = ops::add(t, &total, loss)?;
            }
            Ok(total)
        }),
        ("clip_contrastive", &[&[3, 4], &[3, 4], &[]], |t, v| {
            let (images, texts) = (ops::l2_normalise(t, &v[0])?, ops::l2_normalise(t, &v[1])?);
            loss::clip_contrastive(t, &images, &texts, &ops::exp(t, &v[2])?, Over::Batch)
        }),
    ];
    for (name, shapes, run) in cases {
        let inputs: Vec<Tensor> =
            shapes.iter().enumerate().map(|(i, dims)| draw(&format!("{name}{i}"), dims)).collect();
        for precision in [phalanx_tensor::Precision::F32, phalanx_tensor::Precision::Bf16] {
            let outcome = |device: Option<&Checking>| -> phalanx_tensor::Result<Vec<Tensor>> {
                let place = |tensor: &Tensor| match device {
                    Some(device) => device.from_host(tensor),
                    None => Ok(Array::from(tensor)),
                };
                let mut session = Session::training(Arc::new(Context::new(1)), Key::new(5));
                session.precision = precision;
                if let Some(device) = device {
                    session.place = Place::device(Arc::new(device.clone()));
                }
                let tape = Tape::recording(session);
                let leaves = inputs
                    .iter()
                    .map(|x| Ok(tape.leaf(place(x)?)))
                    .collect::<phalanx_tensor::Result<Vec<_>>>()?;
                let output = run(&tape, &leaves)?;
                let seed = place(&draw("seed", output.dims()).to_dtype(output.dtype()?)?)?;
                tape.backward_from([(&output, seed)])?;
                let mut all = vec![output.to_host()?];
                for leaf in &leaves {
                    all.push(tape.leaf_grad(leaf).expect("takes part").to_host()?);
                }
                Ok(all)
            };
            let on_cpu = outcome(None).unwrap_or_else(|error| panic!("{name} on the CPU: {error}"));
            let device = Checking::new(Context::new(1));
            let on_device =
                outcome(Some(&device)).unwrap_or_else(|error| panic!("{name} on the device: {error}"));
            for (a, b) in on_cpu.iter().zip(&on_device) {
                assert_eq!((a.dtype(), a.dims()), (b.dtype(), b.dims()), "{name}");
                let bits = |t: &Tensor| {
                    let wide = t.to_dtype(DType::F64).and_then(|t| t.flatten_all()?.to_vec1::<f64>());
                    wide.expect("floats").into_iter().map(f64::to_bits).collect::<Vec<_>>()
                };
                assert_eq!(bits(a), bits(b), "{name} {precision}");
            }
        }
    }
}
