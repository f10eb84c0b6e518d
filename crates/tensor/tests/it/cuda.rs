//! Training on the software GPU. Kernels, libraries, streams and memory are used as on a real GPU, and results equal
//! the CPU's up to rounding.

use std::sync::Arc;

use crate::cases::{CASES, outcome};
use crate::nets::{Images, Mlp, Net, Tokens, train};
use candle_core::{DType, Device, Tensor};
use phalanx_cuda::Options;
use phalanx_tensor::backend::{ConvForward, Cuda, ImageBlend, ImagePreparation, Images as _};
use phalanx_tensor::{ComputeDevice, Precision};

use crate::{cases, software};

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

/// Returns the largest difference of two arrays, relative to the largest number of the first.
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
fn every_op_gives_the_cpus_results_on_a_gpu() {
    software::run_anywhere(|| {
        let device = ComputeDevice::of(Arc::new(cuda()));
        let mut problems = Vec::new();
        for case in CASES {
            for (precision, tolerance) in [
                (Precision::F32, 2e-5),
                (Precision::Tf32, 3e-3),
                (Precision::Bf16, 2e-2),
                (Precision::F16, 4e-3),
            ] {
                let on_cpu = outcome(*case, &ComputeDevice::host(), precision).expect("on the CPU");
                match outcome(*case, &device, precision) {
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

/// Returns the elements whose exact value is not zero. The bias of keys moves all scores of a position equally, which
/// softmax ignores: its gradient is pure rounding, which Adam enlarges.
fn determined(tensor: &Tensor) -> Vec<f64> {
    let values = wide(tensor);
    match tensor.dims() {
        [24] => {
            values.into_iter().enumerate().filter(|(at, _)| !(8..16).contains(at)).map(|(_, v)| v).collect()
        }
        _ => values,
    }
}

/// Returns the largest difference of several arrays, and its array.
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
    let on_cpu = |precision| train::<N>(&ComputeDevice::host(), precision, || ()).expect("trains on the CPU");
    let exact = on_cpu(Precision::F32);
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let cuda = cuda();
        let device = ComputeDevice::of(Arc::new(cuda.clone()));
        let on_gpu = train::<N>(&device, precision, || ()).expect("trains on the GPU");
        // In 16 bits both differ from the exact value by their rounding errors, which Adam enlarges where gradients
        // are small. A GPU rounds more often: cuDNN's gradients have the type of its operands.
        let allowed = match precision {
            Precision::F32 => 1e-4,
            low => 1e-3 + 4.0 * farthest(&exact, &on_cpu(low)).0,
        };
        let (off, at) = farthest(&exact, &on_gpu);
        assert!(off <= allowed, "{precision}: array {at} is off by {off:e}, of {allowed:e}");
        drop((device, on_gpu));
        cuda.gpu().synchronize().expect("all work is done");
        assert_eq!(cuda.gpu().pool().usage().total(), 0, "memory was leaked");
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
fn writes_to_channels_last_images_are_read_in_both_orders() {
    software::run_anywhere(|| {
        use phalanx_tensor::backend::{
            Conv2dShape, Convolutions as _, Elementwise as _, Memory as _, Transfers as _,
        };
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
        // With and without a cached row-major copy.
        for read in [false, true] {
            let (precision, dtype) = (Precision::Tf32, DType::F32);
            let y = gpu
                .conv2d(ConvForward { shape: &shape, x: &x_at, weight: &one, bias: None, precision, dtype })
                .expect("convolves");
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
fn snapshots_do_not_change_with_later_writes() {
    software::run_anywhere(|| {
        let device = ComputeDevice::of(Arc::new(cuda()));
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let numbers = Tensor::new(&[1.5_f32, -2.0, 0.25], &Device::Cpu).and_then(|t| t.to_dtype(dtype));
            let array = device.put(&numbers.expect("three numbers")).expect("memory");
            let coming = array.begin_snapshot().expect("begins");
            assert!(!coming.is_ready(), "no wait yet for {dtype:?}");
            array.zero().expect("overwrites");
            let found = coming.wait().and_then(|t| Ok(t.to_vec1::<f32>()?)).expect("arrives");
            assert_eq!(found, [1.5, -2.0, 0.25], "{dtype:?}");
        }
    });
}

#[test]
fn images_have_the_bits_of_the_cpu() {
    software::run_anywhere(|| {
        let cuda = cuda();
        let device = ComputeDevice::of(Arc::new(cuda.clone()));
        let cpu = phalanx_tensor::Context::new(1);
        for ([count, height, width], size) in [([3, 8, 8], [8, 8]), ([2, 5, 9], [4, 6]), ([4, 6, 6], [9, 7])]
        {
            let bytes: Vec<u8> = (0..count * height * width * 3).map(|at| (at * 89 % 251) as u8).collect();
            let bytes = Tensor::from_vec(bytes, (count, height, width, 3), &Device::Cpu).expect("a tensor");
            // Images in any order, one twice; crops from the border and the inside; mirrored or not.
            let places = (0..count as u32 + 1).flat_map(|n| {
                let corner = |more: u32| ((n * 3 + more) % 5).wrapping_sub(2);
                [(n * 2 + 1) % count as u32, corner(0), corner(1), n % 2, n, 1, n, 2]
            });
            let places = Tensor::from_vec(places.collect::<Vec<u32>>(), (count + 1, 8), &Device::Cpu);
            let places = places.expect("a tensor");
            let (mean, std) = ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]);
            let how = |precision| ImagePreparation { size, mean, std, blend: None, precision };
            let expected =
                cpu.images(&(&bytes).into(), &(&places).into(), &how(Precision::F32)).expect("on the CPU");
            let expected = expected.tensor().expect("on the host").flatten_all().expect("flat");
            // A set filled image by image, from the last to the first.
            let set = cuda.image_set([count, height, width, 3]).expect("room");
            for n in (0..count).rev() {
                let one = device.put(&bytes.narrow(0, n, 1).expect("there")).expect("copied");
                let row =
                    device.put(&Tensor::new(&[n as u32], &Device::Cpu).expect("a tensor")).expect("copied");
                cuda.put_images(&set, &row, &one).expect("put");
            }
            let places_there = device.put(&places).expect("copied");
            for pixels in [&device.put(&bytes).expect("copied"), &set] {
                for precision in [Precision::F32, Precision::Tf32, Precision::Bf16, Precision::F16] {
                    let made = cuda.images(pixels, &places_there, &how(precision)).expect("prepared");
                    assert_eq!(made.dims(), [count + 1, 3, size[0], size[1]]);
                    let made = made.to_host().expect("copied").flatten_all().expect("flat");
                    let [made, expected] = [&made, &expected].map(|t| t.to_vec1::<f32>().expect("numbers"));
                    assert_eq!(made, expected, "{precision}");
                }
            }
            // In pairs, mixed by shares or by a patch.
            let pairs = count.div_ceil(2);
            let of_pairs =
                |places: &Tensor| places.narrow(0, 0, 2 * pairs).and_then(|all| all.reshape((pairs, 16)));
            let pairs = of_pairs(&places).expect("as many numbers");
            let pairs_there = device.put(&pairs).expect("copied");
            for patch in [None, Some([1, 2, 3, 2])] {
                let how =
                    ImagePreparation { blend: Some(ImageBlend { share: 0.3, patch }), ..how(Precision::F32) };
                let expected = cpu.images(&(&bytes).into(), &(&pairs).into(), &how).expect("on the CPU");
                let made = cuda.images(&set, &pairs_there, &how).expect("prepared");
                let [made, expected] = [made, expected].map(|images| {
                    let flat = images.to_host().expect("copied").flatten_all().expect("flat");
                    flat.to_vec1::<f32>().expect("numbers")
                });
                assert_eq!(made, expected, "{patch:?}");
            }
        }
        assert!(cuda.gpu().pool().usage().peak[phalanx_cuda::Kind::Data as usize] >= 3 * 8 * 8 * 3);
    });
}
