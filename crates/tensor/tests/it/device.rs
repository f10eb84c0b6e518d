//! Ops on a device whose arrays only its back end can read: results equal the CPU's to the bit.

use std::sync::Arc;

use crate::cases::{CASES, draw, outcome};
use crate::checking::{Checking, Transfer};
use candle_core::{DType, Tensor};
use phalanx_tensor::backend::{ComputeDevice, Transfers as _};
use phalanx_tensor::loss::{self, CrossEntropyOptions, LossDivisor, RowTargets};
use phalanx_tensor::{Context, Key, Precision, Session, Tape, Value, ops};

#[test]
fn reading_a_device_array_on_the_host_is_an_error_naming_the_op() {
    let device = Checking::new(Context::new(1));
    let value = Value::constant(device.from_host(&draw("x", &[2, 3])).expect("small"));
    let error = value.tensor().expect_err("it lies on a device").to_string();
    assert_eq!(
        error,
        "`tensor` of a value needs an array on the host, and this one is on the checking back end; \
         copy it with `to_host`"
    );
    let tape = Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)));
    let error =
        tape.segment(&[&value], |x| x[0].sqr()).expect_err("candle's graph is the host's").to_string();
    assert!(error.starts_with("segment needs an array on the host"), "{error}");
    // Arrays of the host and the device in one op.
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
    assert_eq!(device.take_transfers(), [Transfer::Out(DType::F32, vec![2, 3])]);
}

/// The number of classes does not change what is read.
#[test]
fn judging_reads_five_numbers_of_each_row() {
    let device = Checking::new(Context::new(1));
    let logits = Value::constant(device.from_host(&draw("logits", &[3, 100])).expect("small"));
    let tape = Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)));
    let targets = RowTargets { labels: (&[5, 99, 0]).into(), weights: None, over: LossDivisor::Batch };
    device.take_transfers();
    loss::judge_rows(&tape, &logits, &targets, CrossEntropyOptions::default()).expect("sound");
    let read: usize = device
        .take_transfers()
        .iter()
        .filter_map(|transfer| match transfer {
            Transfer::Out(_, dims) => Some(dims.iter().product::<usize>()),
            _ => None,
        })
        .sum();
    assert_eq!(read, 3 * 5 + 3, "five numbers and the label of each row");
}

/// Ops that the networks of the training tests lack: forward and backward, with the gradients of all inputs.
#[test]
fn every_op_gives_the_cpus_bits_on_a_device() {
    for case in CASES {
        let name = case.0;
        for precision in [Precision::F32, Precision::Bf16] {
            let on_cpu = outcome(*case, &ComputeDevice::host(), precision)
                .unwrap_or_else(|error| panic!("{name} on the CPU: {error}"));
            let device = ComputeDevice::of(Arc::new(Checking::new(Context::new(1))));
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
