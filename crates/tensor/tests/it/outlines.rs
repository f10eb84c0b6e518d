//! Outlines: shapes, types and memory of the CPU's arrays, without numbers.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::backend::Outlines;
use phalanx_tensor::optim::Ema;
use phalanx_tensor::{
    Array, ArrayError, BuildOptions, ComputeDevice, Context, Key, OutlineGroup, Precision, ProcessGroup,
    Session, StoreBuilder, Tape, TensorError, Value, take_peak_recorded_bytes,
};

use crate::cases::{CASES, outcome_there};
use crate::nets::{Images, Mlp, Net, Tokens};

/// The shape and the type of arrays.
fn forms(arrays: &[Array]) -> Vec<(Vec<usize>, DType)> {
    arrays.iter().map(|array| (array.dims().to_vec(), array.dtype())).collect()
}

#[test]
fn every_op_has_the_shapes_and_the_memory_of_the_cpu() {
    for case in CASES {
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            let run = |device: &ComputeDevice| {
                let before = take_peak_recorded_bytes();
                let arrays = outcome_there(*case, device, precision);
                let arrays = arrays.unwrap_or_else(|error| panic!("{} in {precision}: {error}", case.0));
                (forms(&arrays), take_peak_recorded_bytes() - before)
            };
            let found = run(&Outlines::new().device());
            assert_eq!(found, run(&ComputeDevice::host()), "{} in {precision}", case.0);
        }
    }
}

/// Takes a step with averages, and returns the loss, the parameters and their gradients, and the memory of activations.
fn step<N: Net>(device: &ComputeDevice, precision: Precision) -> Result<(Vec<Array>, usize), TensorError> {
    let context = Arc::new(Context::new(1));
    let builder = StoreBuilder::new(BuildOptions { device: device.clone(), ..Default::default() });
    let net = N::new(&builder.root())?;
    let store = builder.build()?;
    let session = Session::training(context.clone(), Key::new(1));
    let tape = Tape::recording(Session { device: device.clone(), precision, ..session });
    let batch = N::batch(0).iter().map(|tensor| device.put(tensor)).collect::<Result<Vec<_>, _>>()?;
    let before = take_peak_recorded_bytes();
    let loss = net.loss(&tape, &batch)?;
    tape.backward(&loss)?;
    let kept = take_peak_recorded_bytes() - before;
    let (mut optimizer, mut ema) = (N::optimizer(), Ema::new(0.5));
    optimizer.step(store.buckets(), 0.1, &context)?;
    ema.update(store.buckets(), &context)?;
    let mut arrays = vec![loss.array()?];
    for bucket in store.buckets() {
        arrays.extend(bucket.values().map(|values| values.array().clone()));
        arrays.extend(bucket.owned_grads()?.map(|grads| grads.array().clone()));
    }
    Ok((arrays, kept))
}

fn trains_alike<N: Net>() {
    for precision in [Precision::F32, Precision::Bf16] {
        let outlines = Outlines::new();
        let (found, kept) = step::<N>(&outlines.device(), precision).expect("runs");
        let (expected, kept_there) = step::<N>(&ComputeDevice::host(), precision).expect("trains");
        assert_eq!((forms(&found), kept), (forms(&expected), kept_there));
        assert!(outlines.usage().parameters > 0);
        drop(found);
        let usage = outlines.usage();
        assert_eq!([usage.parameters, usage.gradients, usage.activations], [0; 3], "memory was leaked");
        assert!(usage.peak_activations > kept);
    }
}

#[test]
fn networks_train_without_numbers() {
    trains_alike::<Mlp>();
    trains_alike::<Images>();
    trains_alike::<Tokens>();
}

#[test]
fn numbers_of_the_host_are_kept_and_no_others_can_be_read() {
    let outlines = Outlines::new();
    let device = outlines.device();
    let given = Tensor::new(&[[1_u32, 2, 3], [4, 5, 6]], &Device::Cpu).expect("numbers");
    let put = device.put(&given).expect("puts");
    let backend = put.device_backend().expect("an outline");
    let narrowed = backend.narrow(&put, 1, 1, 2).and_then(|part| part.to_host()).expect("known");
    assert_eq!(narrowed.to_vec2::<u32>().expect("u32"), [[2, 3], [5, 6]]);
    let turned = backend.permute(&put, &[1, 0]).and_then(|part| part.reshape(6)).expect("known");
    assert_eq!(
        turned.to_host().and_then(|part| Ok(part.to_vec1::<u32>()?)).expect("u32"),
        [1, 4, 2, 5, 3, 6]
    );
    let part = put.view(0, 3).expect("there");
    backend.zero(&part).expect("writes");
    assert!(matches!(put.to_host(), Err(ArrayError::NoNumbers { .. })), "it was written to");
    let made = Value::constant(device.full(1.0, (2, 3), DType::F32).expect("makes"));
    assert!(matches!(made.to_host(), Err(TensorError::Array(ArrayError::NoNumbers { .. }))));
    assert!(matches!(made.array().expect("whole").number(), Err(ArrayError::NoNumbers { .. })));
    let later = made.array().and_then(|array| Ok(array.begin_snapshot()?)).expect("begins");
    assert!(matches!(later.wait(), Err(ArrayError::NoNumbers { .. })));
}

#[test]
fn a_group_counts_messages_and_answers_for_all_ranks() {
    let group = OutlineGroup::new(1, 3);
    let device = Outlines::new().device();
    let there = device.full(0.0, 6, DType::F32).expect("makes");
    let group: Arc<OutlineGroup> = Arc::new(group);
    group.all_reduce(&there).expect("counts");
    group.all_gather(&there, &[1, 2, 3]).expect("counts");
    assert!(group.all_gather(&there, &[1, 2]).is_err() && group.reduce_scatter(&there, &[2, 2, 3]).is_err());
    let here = Array::from(Tensor::new(&[0.0_f64, 7.0, 0.0], &Device::Cpu).expect("numbers"));
    group.all_gather(&here, &[1; 3]).expect("gathers");
    let numbers = |array: &Array| array.to_host().and_then(|all| Ok(all.to_vec1::<f64>()?)).expect("f64");
    assert_eq!(numbers(&here), [7.0; 3]);
    group.all_reduce(&here).expect("sums");
    assert_eq!(numbers(&here), [21.0; 3]);
    let traffic = group.traffic();
    assert_eq!((traffic.operations, traffic.summed, traffic.gathered), (4, 48, 48));
    // A ring sends two thirds of the elements twice for sums, and once to gather.
    assert_eq!(traffic.sent(3), 96);
}
