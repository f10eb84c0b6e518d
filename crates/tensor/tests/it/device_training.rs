//! Training steps on a device: results equal the CPU's to the bit, and only the batch and the loss are transferred.

use std::sync::Arc;

use crate::checking::{Checking, Transfer};
use crate::nets::{Images, Mlp, Net, STEPS, Tokens, train};
use candle_core::{DType, Tensor};
use phalanx_tensor::{ComputeDevice, Context, Precision};

fn bits(tensors: &[Tensor]) -> Vec<Vec<u64>> {
    let bits = |tensor: &Tensor| {
        let wide = tensor.to_dtype(DType::F64).and_then(|tensor| tensor.flatten_all()?.to_vec1::<f64>());
        wide.expect("numbers").into_iter().map(f64::to_bits).collect()
    };
    tensors.iter().map(bits).collect()
}

fn agrees<N: Net>() {
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let on_cpu = train::<N>(&ComputeDevice::host(), precision, || ()).expect("trains on the CPU");
        let loss = |step: usize| on_cpu[step].to_scalar::<f32>().expect("a loss");
        let (first, last) = (loss(0), loss(STEPS as usize - 1));
        assert!(first.is_finite() && last.is_finite() && first != last, "{first} {last}");

        let checking = Checking::new(Context::new(2));
        let device = ComputeDevice::of(Arc::new(checking.clone()));
        let mut crossed = Vec::new();
        let on_device = train::<N>(&device, precision, || crossed.push(checking.take_transfers()));
        assert_eq!(bits(&on_device.expect("trains on the device")), bits(&on_cpu), "{precision}");
        for (step, transfers) in crossed.into_iter().skip(1).enumerate() {
            let batch = N::batch(step as u64).into_iter();
            let mut expected: Vec<_> =
                batch.map(|tensor| Transfer::In(tensor.dtype(), tensor.dims().to_vec())).collect();
            expected.push(Transfer::Out(DType::F32, Vec::new()));
            assert_eq!(transfers, expected, "step {step} at {precision}: the batch in, the loss out");
        }
    }
}

#[test]
fn a_perceptron_trains_with_its_batch_in_and_its_loss_out() {
    agrees::<Mlp>();
}

#[test]
fn a_classifier_of_images_trains_with_its_batch_in_and_its_loss_out() {
    agrees::<Images>();
}

#[test]
fn a_network_with_attention_trains_with_its_batch_in_and_its_loss_out() {
    agrees::<Tokens>();
}
