//! The seam under the ops: what trains on the CPU trains on arrays that nobody can look into, to the same bits, and nothing
//! crosses between the host and the device but the batch and the loss.

mod cases;
mod checking;

use std::sync::Arc;

use candle_core::{DType, Tensor};
use cases::{CASES, draw, outcome};
use checking::Checking;
use phalanx_tensor::backend::{Memory as _, Place};
use phalanx_tensor::{Context, Key, Precision, Session, Tape, Value, ops};

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
    for case in CASES {
        let name = case.0;
        for precision in [Precision::F32, Precision::Bf16] {
            let on_cpu = outcome(*case, &Place::host(), precision)
                .unwrap_or_else(|error| panic!("{name} on the CPU: {error}"));
            let device = Place::device(Arc::new(Checking::new(Context::new(1))));
            let on_device = outcome(*case, &device, precision)
                .unwrap_or_else(|error| panic!("{name} on the device: {error}"));
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
