//! Training on a GPU by the real path, on the software GPU: kernels, libraries, streams and memory are what a GPU is given, and
//! the numbers are the CPU's within rounding.
#![cfg(feature = "cuda")]

mod cases;
mod nets;
#[path = "../../cuda/tests/software/mod.rs"]
mod software;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use cases::{CASES, outcome};
use nets::{Images, Mlp, Net, Tokens, train};
use phalanx_cuda::Options;
use phalanx_tensor::backend::{Cuda, ImagePreparation, Images as _};
use phalanx_tensor::{Place, Precision};

fn cuda() -> Cuda {
    let options = match software::is_real() {
        true => Options::default(),
        false => Options { cache: Some(software::cache()), ..Options::default() },
    };
    Cuda::new(0, &options).expect("a GPU")
}

fn wide(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).and_then(|t| t.flatten_all()?.to_vec1::<f64>()).expect("numbers")
}

/// How far two arrays are apart, against the largest number of the first.
fn apart(expected: &Tensor, found: &Tensor) -> f64 {
    assert_eq!((expected.dtype(), expected.dims()), (found.dtype(), found.dims()));
    far(&wide(expected), &wide(found))
}

fn far(expected: &[f64], found: &[f64]) -> f64 {
    assert_eq!(expected.len(), found.len());
    let size = expected.iter().fold(1e-3_f64, |size, value| size.max(value.abs()));
    let off = |a: f64, b: f64| if (a - b).is_finite() { (a - b).abs() } else { f64::INFINITY };
    expected.iter().zip(found).fold(0.0_f64, |most, (a, b)| most.max(off(*a, *b))) / size
}

#[test]
fn every_op_computes_on_a_gpu_what_it_computes_on_the_cpu() {
    software::run_anywhere(|| {
        let place = Place::device(Arc::new(cuda()));
        let mut problems = Vec::new();
        for case in CASES {
            for (precision, tolerance) in [
                (Precision::F32, 2e-5),
                (Precision::Tf32, 3e-3),
                (Precision::Bf16, 2e-2),
                (Precision::F16, 4e-3),
            ] {
                let on_cpu = outcome(*case, &Place::host(), precision).expect("on the CPU");
                match outcome(*case, &place, precision) {
                    Ok(on_gpu) => {
                        for (at, (a, b)) in on_cpu.iter().zip(&on_gpu).enumerate() {
                            let apart = apart(a, b);
                            if apart > tolerance {
                                problems
                                    .push(format!("{} {precision}: number {at} is off by {apart:e}", case.0));
                            }
                        }
                    }
                    Err(error) => problems.push(format!("{} {precision}: {error}", case.0)),
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    });
}

/// The numbers of an array that mathematics determines. The bias of keys moves all scores of a position alike, which softmax
/// does not see: its gradient is rounding, which Adam makes as large as any other.
fn determined(tensor: &Tensor) -> Vec<f64> {
    let values = wide(tensor);
    match tensor.dims() {
        [24] => {
            values.into_iter().enumerate().filter(|(at, _)| !(8..16).contains(at)).map(|(_, v)| v).collect()
        }
        _ => values,
    }
}

/// The farthest that any of some arrays is off.
fn farthest(expected: &[Tensor], found: &[Tensor]) -> (f64, usize) {
    assert_eq!(expected.len(), found.len());
    let mut most = (0.0, 0);
    for (at, (a, b)) in expected.iter().zip(found).enumerate() {
        assert_eq!((a.dtype(), a.dims()), (b.dtype(), b.dims()));
        let off = far(&determined(a), &determined(b));
        if off > most.0 {
            most = (off, at);
        }
    }
    most
}

fn agrees<N: Net>() {
    let on_cpu = |precision| train::<N>(&Place::host(), precision, || ()).expect("trains on the CPU");
    let exact = on_cpu(Precision::F32);
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let cuda = cuda();
        let place = Place::device(Arc::new(cuda.clone()));
        let on_gpu = train::<N>(&place, precision, || ()).expect("trains on the GPU");
        // In 16 bits both are as far from what is right as their roundings make them, which Adam enlarges where gradients
        // are small. A GPU rounds more often: cuDNN gives gradients in the type of its operands.
        let allowed = match precision {
            Precision::F32 => 1e-4,
            low => 1e-3 + 4.0 * farthest(&exact, &on_cpu(low)).0,
        };
        let (off, at) = farthest(&exact, &on_gpu);
        assert!(off <= allowed, "{precision}: array {at} is off by {off:e}, of {allowed:e}");
        drop((place, on_gpu));
        cuda.gpu().synchronize().expect("all work is done");
        assert_eq!(cuda.gpu().pool().held().total(), 0, "memory that nobody gave back");
    }
}

#[test]
fn a_perceptron_trains_as_on_the_cpu() {
    software::run(agrees::<Mlp>);
}

#[test]
fn a_classifier_of_images_trains_as_on_the_cpu() {
    software::run(agrees::<Images>);
}

#[test]
fn a_network_with_attention_trains_as_on_the_cpu() {
    software::run(agrees::<Tokens>);
}

#[test]
fn what_is_written_to_images_that_lie_channels_last_is_read_in_both_orders() {
    software::run_anywhere(|| {
        use phalanx_tensor::backend::{Conv2dShape, Convolutions as _, Elementwise as _, Memory as _};
        let gpu = cuda();
        let shape = Conv2dShape {
            batch: 2,
            in_channels: 3,
            height: 4,
            width: 5,
            out_channels: 3,
            kernel: [1, 1],
            stride: [1, 1],
            padding: [0, 0],
            dilation: [1, 1],
            groups: 1,
        };
        let [x, other] = ["x", "other"].map(|name| cases::draw(name, &[2, 3, 4, 5]));
        let one = Tensor::eye(3, DType::F32, &Device::Cpu).and_then(|one| one.reshape((3, 3, 1, 1)));
        let (x_at, other_at) = (gpu.from_host(&x).expect("memory"), gpu.from_host(&other).expect("memory"));
        let one = gpu.from_host(&one.expect("a matrix")).expect("memory");
        // Both with and without a copy in row-major order that exists already.
        for read in [false, true] {
            let y = gpu.conv2d(&shape, &x_at, &one, None, Precision::Tf32).expect("convolves");
            let both = |expected: &[f64]| {
                assert!(far(expected, &wide(&gpu.to_host(&y).expect("numbers"))) < 2e-3);
                let negative: Vec<f64> = expected.iter().map(|value| -value).collect();
                let neg = gpu.neg(&y).expect("memory");
                assert!(far(&negative, &wide(&gpu.to_host(&neg).expect("numbers"))) < 2e-3);
            };
            if read {
                both(&wide(&x));
            }
            gpu.accumulate(&y, &other_at).expect("adds");
            both(&wide(&x).iter().zip(wide(&other)).map(|(a, b)| a + b).collect::<Vec<_>>());
            gpu.copy(&y, &other_at).expect("copies");
            both(&wide(&other));
            gpu.zero(&y).expect("clears");
            both(&[0.0; 120]);
        }
    });
}

#[test]
fn numbers_are_read_later_and_stay_what_they_were() {
    software::run_anywhere(|| {
        let place = Place::device(Arc::new(cuda()));
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let numbers = Tensor::new(&[1.5_f32, -2.0, 0.25], &Device::Cpu).and_then(|t| t.to_dtype(dtype));
            let array = place.put(&numbers.expect("three numbers")).expect("memory");
            let coming = array.begin_numbers().expect("begins");
            assert!(!coming.is_here(), "nobody has waited for {dtype:?}");
            array.zero().expect("overwrites");
            let found = coming.take().and_then(|t| Ok(t.to_vec1::<f32>()?)).expect("arrives");
            assert_eq!(found, [1.5, -2.0, 0.25], "{dtype:?}");
        }
    });
}

#[test]
fn images_have_the_bits_of_the_processors() {
    software::run_anywhere(|| {
        let cuda = cuda();
        let place = Place::device(Arc::new(cuda.clone()));
        let cpu = phalanx_tensor::Context::new(1);
        for ([count, height, width], size) in [([3, 8, 8], [8, 8]), ([2, 5, 9], [4, 6]), ([4, 6, 6], [9, 7])]
        {
            let bytes: Vec<u8> = (0..count * height * width * 3).map(|at| (at * 89 % 251) as u8).collect();
            let bytes = Tensor::from_vec(bytes, (count, height, width, 3), &Device::Cpu).expect("a tensor");
            // Images in any order, one twice; beginning in the border and within; mirrored or not.
            let places = (0..count as u32 + 1).flat_map(|n| {
                let corner = |more: u32| ((n * 3 + more) % 5).wrapping_sub(2);
                [(n * 2 + 1) % count as u32, corner(0), corner(1), n % 2]
            });
            let places = Tensor::from_vec(places.collect::<Vec<u32>>(), (count + 1, 4), &Device::Cpu);
            let places = places.expect("a tensor");
            let (mean, std) = ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]);
            let how = ImagePreparation { size, mean, std };
            let expected =
                cpu.images(&(&bytes).into(), &(&places).into(), &how, Precision::F32).expect("on the CPU");
            let expected = expected.tensor().expect("on the host").flatten_all().expect("flat");
            // A set whose images came one after the other, the last first.
            let set = cuda.image_set([count, height, width, 3]).expect("room");
            for n in (0..count).rev() {
                let one = place.put(&bytes.narrow(0, n, 1).expect("there")).expect("copied");
                let row =
                    place.put(&Tensor::new(&[n as u32], &Device::Cpu).expect("a tensor")).expect("copied");
                cuda.put_images(&set, &row, &one).expect("put");
            }
            let places = place.put(&places).expect("copied");
            for pixels in [&place.put(&bytes).expect("copied"), &set] {
                for precision in [Precision::F32, Precision::Tf32, Precision::Bf16, Precision::F16] {
                    let made = cuda.images(pixels, &places, &how, precision).expect("prepared");
                    assert_eq!(made.dims(), [count + 1, 3, size[0], size[1]]);
                    let made = made.to_host().expect("copied").flatten_all().expect("flat");
                    let [made, expected] = [&made, &expected].map(|t| t.to_vec1::<f32>().expect("numbers"));
                    assert_eq!(made, expected, "{precision}");
                }
            }
        }
        assert!(cuda.gpu().pool().held().peak[phalanx_cuda::Kind::Data as usize] >= 3 * 8 * 8 * 3);
    });
}
