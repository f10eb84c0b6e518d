//! Products, convolutions and measurements on the software GPU: the arguments of cuBLASLt and cuDNN in all types, layouts and
//! alignments.

use std::time::Duration;

use half::{bf16, f16};
use phalanx_cuda::blas::{Blas, Matrix, Product};
use phalanx_cuda::dnn::{Convolution, ConvolutionFormat, Dnn, TensorLayout};
use phalanx_cuda::libraries::Library;
use phalanx_cuda::nvml::{Link, Monitor, Path, links};
use phalanx_cuda::{Element, ElementType, Gpu, GpuError, Kind, Options, Slice, self_test};
use phalanx_kernels::{Context, Conv2dShape, conv2d_backward_input, conv2d_backward_weight, conv2d_forward};

use crate::harness::{gpu, gpu_at};
use crate::software;

/// Returns pseudo-random numbers of few bits, which all types represent exactly.
fn random(seed: u64, len: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 60) as f64 / 8.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn up(gpu: &Gpu, dtype: ElementType, values: &[f64]) -> Slice {
    match dtype {
        ElementType::F64 => gpu.upload(values),
        ElementType::F32 => gpu.upload(&values.iter().map(|v| *v as f32).collect::<Vec<_>>()),
        ElementType::Bf16 => gpu.upload(&values.iter().map(|v| bf16::from_f64(*v)).collect::<Vec<_>>()),
        _ => gpu.upload(&values.iter().map(|v| f16::from_f64(*v)).collect::<Vec<_>>()),
    }
    .expect("memory")
}

fn down(gpu: &Gpu, slice: &Slice) -> Vec<f64> {
    fn of<T: Element>(gpu: &Gpu, slice: &Slice, widen: impl Fn(&T) -> f64) -> Vec<f64> {
        gpu.download::<T>(slice).expect("values").iter().map(widen).collect()
    }
    match slice.dtype() {
        ElementType::F64 => of::<f64>(gpu, slice, |v| *v),
        ElementType::F32 => of::<f32>(gpu, slice, |v| f64::from(*v)),
        ElementType::Bf16 => of::<bf16>(gpu, slice, |v| v.to_f64()),
        _ => of::<f16>(gpu, slice, |v| v.to_f64()),
    }
}

fn close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (found - expected).abs();
        assert!(off <= tolerance * expected.abs().max(1.0), "at {at}: {found}, not {expected}");
    }
}

fn tolerance(dtype: ElementType) -> f64 {
    match dtype {
        ElementType::F64 => 1e-12,
        ElementType::F32 => 1e-5,
        ElementType::F16 => 1e-3,
        _ => 8e-3,
    }
}

#[test]
fn versions_are_found() {
    software::run(|| {
        let version = |library: Library| library.find().expect("a stand-in").version;
        assert_eq!(Library::ALL.map(version), ["13.0", "13.0", "13.0.0", "9.10.2", "2.27.3", "13.580.1"]);
    });
}

#[test]
fn links_between_gpus_are_found() {
    software::run_with(&[("SOFTWARE_GPU_COUNT", "3")], || {
        let links = links().unwrap();
        let far = |gpus| Link { gpus, nvlinks: 0, switched: 0, path: Some(Path::Node), peer_access: false };
        let near =
            Link { gpus: (0, 1), nvlinks: 2, switched: 0, path: Some(Path::Switch), peer_access: true };
        assert_eq!(links, [near, far((0, 2)), far((1, 2))]);
        assert_eq!(links[0].to_string(), "GPU 0 and GPU 1: 2 NVLinks; they read each other's memory");
    });
}

#[test]
fn one_gpu_has_no_links() {
    software::run(|| assert_eq!(links().unwrap(), []));
}

#[test]
fn a_gpu_is_monitored() {
    software::run_with(&[("SOFTWARE_GPU_COUNT", "2")], || {
        let gpu = gpu_at(1);
        let monitor = Monitor::new(gpu.device()).unwrap();
        let before = monitor.read().unwrap();
        let memory = gpu.zeros(ElementType::F32, 1000).unwrap();
        gpu.synchronize().unwrap();
        let after = monitor.read().unwrap();
        assert_eq!((after.utilisation, after.power), (Some(1.0), Some(123.456)));
        assert_eq!((before.memory, after.memory), (Some(0), Some(4000)));
        assert!(after.energy.unwrap() - before.energy.unwrap() >= 2.0);
        assert_eq!(monitor.read().unwrap().utilisation, Some(0.0));
        drop(memory);
        let outcome = self_test::run(&gpu, Duration::from_millis(300)).unwrap();
        assert!(outcome.size >= 128 && outcome.flops > 0.0);
    });
}

#[test]
fn products_of_all_types_transposed_added_and_with_a_bias() {
    software::run(|| {
        let gpu = gpu();
        let blas = Blas::new(&gpu).unwrap();
        let mut count = 0;
        for ([batch, m, n, k], seed) in
            [([1, 1, 1, 1], 1), ([3, 5, 7, 4], 2), ([2, 1, 9, 6], 3), ([1, 17, 3, 33], 4)]
        {
            let (a, b) = (random(seed, batch * m * k), random(seed + 9, batch * k * n));
            let (old, bias) = (random(seed + 5, batch * m * n), random(seed + 6, n));
            for case in 0..8 {
                let [a_turned, b_turned, more] = [case & 1, case >> 1 & 1, case >> 2].map(|bit| bit == 1);
                let at = |turned: bool, item: usize, rows: usize, columns: usize, r: usize, c: usize| {
                    item * rows * columns + if turned { c * rows + r } else { r * columns + c }
                };
                let mut expected = Vec::new();
                for (item, row, column) in (0..batch * m * n).map(|i| (i / (m * n), i / n % m, i % n)) {
                    let term =
                        |p| a[at(a_turned, item, m, k, row, p)] * b[at(b_turned, item, k, n, p, column)];
                    let sum: f64 = (0..k).map(term).sum();
                    expected.push(if more { sum + old[expected.len()] + bias[column] } else { sum });
                }
                for (factors, to) in [
                    (ElementType::F32, ElementType::F32),
                    (ElementType::F64, ElementType::F64),
                    (ElementType::Bf16, ElementType::Bf16),
                    (ElementType::Bf16, ElementType::F32),
                    (ElementType::F16, ElementType::F32),
                    (ElementType::F16, ElementType::F16),
                ] {
                    // In the middle of an allocation, at a small alignment.
                    let inside = |dtype, values: &[f64]| {
                        let padded: Vec<f64> = [0.0].iter().chain(values).copied().collect();
                        up(&gpu, dtype, &padded).view(1..padded.len()).unwrap()
                    };
                    let with_bias = more && factors != ElementType::F64;
                    let mut expected = expected.clone();
                    if more && !with_bias {
                        expected.iter_mut().enumerate().for_each(|(i, value)| *value -= bias[i % n]);
                    }
                    let (a, b, to) = (inside(factors, &a), up(&gpu, factors, &b), inside(to, &old));
                    let bias = with_bias.then(|| up(&gpu, to.dtype(), &bias));
                    blas.matmul(&Product {
                        sizes: [batch, m, n, k],
                        a: Matrix { slice: &a, transposed: a_turned },
                        b: Matrix { slice: &b, transposed: b_turned },
                        to: &to,
                        add: more,
                        bias: bias.as_ref(),
                        tf32: false,
                    })
                    .unwrap();
                    close(&down(&gpu, &to), &expected, tolerance(to.dtype()));
                    count += 1;
                }
            }
        }
        assert_eq!(count, 4 * 8 * 6);
        assert!(gpu.pool().usage().peak[Kind::Workspace as usize] > 0);
    });
}

#[test]
fn products_of_mismatched_arguments_are_refused() {
    software::run(|| {
        let gpu = gpu();
        let blas = Blas::new(&gpu).unwrap();
        let (x, y) = (up(&gpu, ElementType::F32, &[1.0; 6]), up(&gpu, ElementType::Bf16, &[1.0; 6]));
        let to = gpu.zeros(ElementType::F32, 4).unwrap();
        let product = |a, b, k| Product {
            sizes: [1, 2, 2, k],
            a: Matrix::plain(a),
            b: Matrix::transposed(b),
            to: &to,
            add: false,
            bias: None,
            tf32: false,
        };
        assert!(matches!(blas.matmul(&product(&x, &y, 3)), Err(GpuError::Unsupported { .. })));
        assert!(matches!(blas.matmul(&product(&x, &x, 4)), Err(GpuError::Argument { .. })));
        let biased = Product { bias: Some(&y), ..product(&x, &x, 3) };
        assert!(matches!(blas.matmul(&biased), Err(GpuError::Argument { .. })));
        blas.matmul(&product(&x, &x, 3)).unwrap();
        assert_eq!(down(&gpu, &to), [3.0; 4]);
        let nothing = gpu.upload::<f32>(&[]).unwrap();
        blas.matmul(&product(&nothing, &nothing, 0)).unwrap();
        assert_eq!(down(&gpu, &to), [0.0; 4]);
        // The bias is added without any terms, too.
        let bias = up(&gpu, ElementType::F32, &[1.0, -2.0]);
        let biased = Product { bias: Some(&bias), ..product(&nothing, &nothing, 0) };
        blas.matmul(&biased).unwrap();
        assert_eq!(down(&gpu, &to), [1.0, -2.0, 1.0, -2.0]);
        blas.matmul(&Product { add: true, ..biased }).unwrap();
        assert_eq!(down(&gpu, &to), [2.0, -4.0, 2.0, -4.0]);
    });
}

/// The smallest convolution.
const POINT: Convolution = Convolution {
    batch: 1,
    in_channels: 1,
    height: 1,
    width: 1,
    out_channels: 1,
    kernel: [1; 2],
    stride: [1; 2],
    padding: [0; 2],
    dilation: [1; 2],
    groups: 1,
};

#[test]
fn failures_leave_no_descriptors() {
    // The stand-ins end the process if descriptors outlive their library's handle.
    for (function, call) in [
        ("cublasLtMatrixLayoutCreate", "2"),
        ("cublasLtMatrixLayoutCreate", "3"),
        ("cudnnCreateFilterDescriptor", "1"),
    ] {
        software::run_with(&[("SOFTWARE_GPU_FAILS", &format!("{function}:{call}"))], || {
            let gpu = gpu();
            let (x, to) = (up(&gpu, ElementType::F32, &[3.0]), gpu.zeros(ElementType::F32, 1).unwrap());
            let (a, b) = (Matrix::plain(&x), Matrix::plain(&x));
            let product = Product { sizes: [1; 4], a, b, to: &to, add: false, bias: None, tf32: false };
            let (blas, dnn) = (Blas::new(&gpu).unwrap(), Dnn::new(&gpu).unwrap());
            let format = ConvolutionFormat { layout: TensorLayout::ChannelsFirst, tf32: false };
            let results = [blas.matmul(&product), dnn.forward(&POINT, format, &x, &x, &to)];
            assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1, "{results:?}");
            // A failed plan is made again.
            blas.matmul(&product).unwrap();
            dnn.forward(&POINT, format, &x, &x, &to).unwrap();
            assert_eq!(down(&gpu, &to), [9.0]);
        });
        if software::is_inside() {
            break;
        }
    }
}

#[test]
fn memory_for_timing_algorithms_is_released() {
    software::run(|| {
        let gpu = Gpu::new(0, &Options { repeatable: false, cache: None }).unwrap();
        let (x, to) = (up(&gpu, ElementType::F32, &[3.0]), gpu.zeros(ElementType::F32, 1).unwrap());
        let dnn = Dnn::new(&gpu).unwrap();
        let before = gpu.pool().reserved().unwrap();
        let format = ConvolutionFormat { layout: TensorLayout::ChannelsFirst, tf32: false };
        dnn.forward(&POINT, format, &x, &x, &to).unwrap();
        // Of the gigabyte of workspace during timing, only the algorithm's own remains.
        assert!(gpu.pool().reserved().unwrap() <= before + (2 << 20));
        assert!(gpu.pool().usage().peak[Kind::Workspace as usize] >= 1 << 30);
    });
}

#[test]
fn tf32_rounds_factors_and_f32_does_not() {
    software::run(|| {
        for (tf32, expected) in [(false, 1.0 + f64::from(f32::EPSILON)), (true, 1.0)] {
            let gpu = Gpu::new(0, &Options { cache: None, repeatable: true }).unwrap();
            let x = up(&gpu, ElementType::F32, &[1.0 + f64::from(f32::EPSILON)]);
            let (one, to) = (up(&gpu, ElementType::F32, &[1.0]), gpu.zeros(ElementType::F32, 1).unwrap());
            let (a, b) = (Matrix::plain(&x), Matrix::plain(&one));
            let product = Product { sizes: [1; 4], a, b, to: &to, add: false, bias: None, tf32 };
            Blas::new(&gpu).unwrap().matmul(&product).unwrap();
            assert_eq!(down(&gpu, &to), [expected]);
            Dnn::new(&gpu)
                .unwrap()
                .forward(
                    &POINT,
                    ConvolutionFormat { layout: TensorLayout::ChannelsFirst, tf32 },
                    &x,
                    &one,
                    &to,
                )
                .unwrap();
            assert_eq!(down(&gpu, &to), [expected]);
        }
    });
}

/// Converts [A, B, H, W] to [A, H, W, B].
fn last(values: &[f64], [a, b, h, w]: [usize; 4]) -> Vec<f64> {
    let mut to = Vec::new();
    for (i, y, x, j) in (0..a * h * w * b).map(|at| (at / (h * w * b), at / (w * b) % h, at / b % w, at % b))
    {
        to.push(values[((i * b + j) * h + y) * w + x]);
    }
    to
}

#[test]
fn convolutions_of_all_types_and_layouts_with_their_gradients() {
    software::run(|| {
        let context = Context::new(1);
        for (repeatable, seed) in [(true, 1), (false, 2)] {
            let gpu = Gpu::new(0, &Options { repeatable, cache: None }).unwrap();
            let dnn = Dnn::new(&gpu).unwrap();
            let shapes = [
                (2, [3, 5], [6, 7], [3, 3], [1, 1], [1, 1], [1, 1], 1),
                (1, [4, 6], [9, 8], [3, 2], [2, 1], [1, 0], [2, 3], 2),
                (3, [5, 5], [5, 5], [3, 3], [2, 2], [1, 1], [1, 1], 5),
                (2, [2, 3], [4, 4], [1, 1], [1, 1], [0, 0], [1, 1], 1),
            ];
            for (
                batch,
                [in_channels, out_channels],
                [height, width],
                kernel,
                stride,
                padding,
                dilation,
                groups,
            ) in shapes
            {
                let of = Convolution {
                    batch,
                    in_channels,
                    height,
                    width,
                    out_channels,
                    kernel,
                    stride,
                    padding,
                    dilation,
                    groups,
                };
                let shape = Conv2dShape {
                    batch,
                    in_channels,
                    height,
                    width,
                    out_channels,
                    kernel,
                    stride,
                    padding,
                    dilation,
                    groups,
                };
                let [out_height, out_width] = of.output().unwrap();
                assert_eq!([out_height, out_width], [shape.out_height(), shape.out_width()]);
                let images = [batch, in_channels, height, width];
                let outputs = [batch, out_channels, out_height, out_width];
                let weights = [out_channels, in_channels / groups, kernel[0], kernel[1]];
                let x = random(seed, of.input_len());
                let (w, dy) = (random(seed + 1, of.weight_len()), random(seed + 2, of.output_len()));
                let old = random(seed + 3, of.weight_len());
                let (mut y, mut dx, mut dw) = (dy.clone(), x.clone(), old.clone());
                conv2d_forward(&context, &shape, &x, &w, None, &mut y).unwrap();
                conv2d_backward_input(&context, &shape, &dy, &w, &mut dx).unwrap();
                conv2d_backward_weight(&context, &shape, &x, &dy, &mut dw, true).unwrap();
                for dtype in [ElementType::F32, ElementType::F64, ElementType::Bf16, ElementType::F16] {
                    for layout in [TensorLayout::ChannelsFirst, TensorLayout::ChannelsLast] {
                        let format = ConvolutionFormat { layout, tf32: false };
                        let laid = |values: &[f64], dims| match layout {
                            TensorLayout::ChannelsFirst => values.to_vec(),
                            TensorLayout::ChannelsLast => last(values, dims),
                        };
                        let send = |values: &[f64], dims| up(&gpu, dtype, &laid(values, dims));
                        let (x_at, w_at, dy_at) = (send(&x, images), send(&w, weights), send(&dy, outputs));
                        let dw_at = send(&old, weights);
                        let y_at = gpu.unwritten(dtype, y.len()).unwrap();
                        let dx_at = gpu.unwritten(dtype, x.len()).unwrap();
                        for _ in 0..2 {
                            dnn.forward(&of, format, &x_at, &w_at, &y_at).unwrap();
                            dnn.backward_input(&of, format, &dy_at, &w_at, &dx_at).unwrap();
                        }
                        dnn.backward_weight(&of, format, &x_at, &dy_at, &dw_at, true).unwrap();
                        let tolerance = tolerance(dtype);
                        close(&down(&gpu, &y_at), &laid(&y, outputs), tolerance);
                        close(&down(&gpu, &dx_at), &laid(&dx, images), tolerance);
                        close(&down(&gpu, &dw_at), &laid(&dw, weights), tolerance);
                    }
                }
                let (x_at, w_at) = (up(&gpu, ElementType::F32, &x), up(&gpu, ElementType::F64, &w));
                let y_at = gpu.zeros(ElementType::F32, y.len()).unwrap();
                let error = dnn
                    .forward(
                        &of,
                        ConvolutionFormat { layout: TensorLayout::ChannelsFirst, tf32: false },
                        &x_at,
                        &w_at,
                        &y_at,
                    )
                    .unwrap_err();
                assert!(matches!(error, GpuError::Argument { .. }), "{error}");
            }
            let asked = gpu.pool().usage().peak[Kind::Workspace as usize];
            // Deterministic algorithms need little workspace; timing may use much.
            assert_eq!(asked < 1 << 20, repeatable, "{asked}");
        }
    });
}
