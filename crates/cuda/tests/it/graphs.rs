//! Graphs on the software GPU: the bits of eager work, memory at fixed addresses, and errors for operations that cannot be
//! captured.

use phalanx_cuda::blas::{Blas, Matrix, Product};
use phalanx_cuda::dnn::{Convolution, ConvolutionFormat, Dnn};
use phalanx_cuda::graph::CapturedStep;
use phalanx_cuda::kernels::{
    self, CrossEntropyTargets, Dropout, EmaInputs, StepInputs, StepOptions as _, StepScalars, StreamKey,
};
use phalanx_cuda::memory::Pinned;
use phalanx_cuda::{ElementType, Gpu, GpuError, Graph, Result, Slice, Source, Stream, TensorLayout};
use phalanx_kernels::{AdamOptions, BinaryOp, CrossEntropyOptions, EmaOptions, SgdOptions, UnaryOp};

use crate::harness::{KERNEL_MACRO, gpu, random};
use crate::software;

const F32: ElementType = ElementType::F32;

const IMAGES: usize = 2;
const CONVOLUTION: Convolution = Convolution {
    batch: IMAGES,
    in_channels: 1,
    height: 4,
    width: 4,
    out_channels: 2,
    kernel: [3; 2],
    stride: [1; 2],
    padding: [1; 2],
    dilation: [1; 2],
    groups: 1,
};
/// Features of an image, and classes.
const SIZES: [usize; 2] = [32, 3];

/// A small network with its training state.
struct Training<'a> {
    gpu: &'a Gpu,
    blas: Blas,
    dnn: Dnn,
    input: Slice,
    labels: Slice,
    filter: Slice,
    weights: Slice,
    bias: Slice,
    moments: [Slice; 2],
    momentum: Slice,
    low: Slice,
    average: Slice,
    /// The result of the communication stream.
    reduced: Slice,
}

/// The arguments that change from step to step.
#[derive(Clone, Copy)]
struct StepArguments<'a> {
    step: u64,
    adam: StepScalars<'a, AdamOptions>,
    sgd: StepScalars<'a, SgdOptions>,
}

impl<'a> Training<'a> {
    fn new(gpu: &'a Gpu) -> Self {
        let up = |seed, len| gpu.upload(&random(seed, len)).unwrap();
        let len = SIZES[0] * SIZES[1];
        let zeros = |dtype, len| gpu.zeros(dtype, len).unwrap();
        Self {
            gpu,
            blas: Blas::new(gpu).unwrap(),
            dnn: Dnn::new(gpu).unwrap(),
            input: up(1, IMAGES * 16),
            labels: gpu.upload(&[0_u32; IMAGES]).unwrap(),
            filter: up(2, 18),
            weights: up(3, len),
            bias: up(4, SIZES[1]),
            moments: [zeros(F32, len), zeros(F32, len)],
            momentum: zeros(F32, SIZES[1]),
            low: zeros(ElementType::Bf16, len),
            average: up(3, len),
            reduced: zeros(F32, len),
        }
    }

    /// Runs a step, and returns its loss.
    fn step(&self, varying: StepArguments<'_>) -> Result<Slice> {
        let (gpu, [features, classes]) = (self.gpu, SIZES);
        let key = StreamKey { seed: 7, step: varying.step, rank: 0, stream: 5 };
        let maps = gpu.unwritten(F32, CONVOLUTION.output_len())?;
        let format = ConvolutionFormat { layout: TensorLayout::ChannelsFirst, tf32: false };
        self.dnn.forward(&CONVOLUTION, format, &self.input, &self.filter, &maps)?;
        let hidden = kernels::unary(gpu, UnaryOp::Gelu, &maps)?;
        let dropped = Dropout { key, p: 0.4, first_sample: 2, part: None };
        // Random numbers of a fixed step.
        let fixed = Dropout { key: StreamKey { step: 1 << 40, ..key }, p: 0.1, first_sample: 0, part: None };
        let hidden = kernels::dropout(gpu, &kernels::dropout(gpu, &hidden, IMAGES, dropped)?, IMAGES, fixed)?;
        let logits = gpu.unwritten(F32, IMAGES * classes)?;
        self.product(
            [IMAGES, classes, features],
            [(&hidden, false), (&self.weights, false)],
            &logits,
            Some(&self.bias),
        )?;
        let options = CrossEntropyOptions { smoothing: 0.1, ..CrossEntropyOptions::default() };
        let of = CrossEntropyTargets { labels: &self.labels, weights: None, options, factor: 0.5 };
        let loss = kernels::cross_entropy(gpu, &logits, classes, of)?;
        let slope = logits;
        let grads = gpu.unwritten(F32, self.weights.len())?;
        self.product([features, classes, IMAGES], [(&hidden, true), (&slope, false)], &grads, None)?;
        let noise = kernels::normal(gpu, StreamKey { stream: 9, ..key }, 3, grads.len(), F32)?;
        kernels::accumulate(gpu, &grads, &kernels::affine(gpu, &noise, 0.01, 0.0)?)?;
        // To another stream and back, concurrently with the bias's gradient.
        let device = gpu.device();
        device.wait(Stream::Communication, Stream::Compute)?;
        self.reduced.copy_from_on(&grads, Stream::Communication)?;
        let bias = kernels::sum_over(gpu, &slope, [1, IMAGES, classes], F32)?;
        kernels::sgd_step(gpu, varying.sgd, StepInputs::new(&self.bias, &bias), Some(&self.momentum))?;
        device.wait(Stream::Compute, Stream::Communication)?;
        let factor = kernels::clip_factor(gpu, &kernels::sum_of_squares(gpu, &self.reduced)?, 0.3)?;
        let step = StepInputs {
            factor: Some(&factor),
            low: Some(&self.low),
            ..StepInputs::new(&self.weights, &self.reduced)
        };
        kernels::adam_step(gpu, varying.adam, step, self.moments.each_ref())?;
        let ema = EmaOptions { decay: 0.9, updates: 100 };
        kernels::ema_step(gpu, ema, EmaInputs::new(&self.average, &self.weights))?;
        Ok(loss)
    }

    fn product(
        &self,
        [m, n, k]: [usize; 3],
        [(a, turned), (b, _)]: [(&Slice, bool); 2],
        to: &Slice,
        bias: Option<&Slice>,
    ) -> Result<()> {
        let (a, b) = (Matrix { slice: a, transposed: turned }, Matrix::plain(b));
        self.blas.matmul(&Product { sizes: [1, m, n, k], a, b, to, add: false, bias, tf32: false })
    }

    /// Returns every bit of the training state.
    fn bits(&self) -> Vec<u32> {
        let [first, second] = &self.moments;
        let kept = [&self.weights, &self.bias, first, second, &self.momentum, &self.average];
        let all = kept.into_iter().flat_map(|slice| self.gpu.download::<f32>(slice).unwrap());
        let low = self.gpu.download::<half::bf16>(&self.low).unwrap();
        all.map(f32::to_bits).chain(low.into_iter().map(|low| u32::from(low.to_bits()))).collect()
    }
}

/// Returns the options of a step, each with its own learning rate.
fn options(step: u64) -> (AdamOptions, SgdOptions) {
    let lr = 0.01 / step as f64;
    let adam = AdamOptions { lr, betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1, decoupled: true, step };
    let first = step == 1;
    (adam, SgdOptions { lr: 2.0 * lr, momentum: 0.9, nesterov: true, weight_decay: 0.01, first })
}

fn batch(step: u64) -> (Vec<f32>, [u32; IMAGES]) {
    (random(100 + step, IMAGES * 16), [step as u32 % 3, (step as u32 + 1) % 3])
}

#[test]
fn replays_have_the_bits_of_eager_steps() {
    for seed in ["1", "2", "3"] {
        software::run_anywhere_with(&[("SOFTWARE_GPU_SEED", seed)], || {
            let gpu = &gpu();
            let eager = Training::new(gpu);
            let mut expected = Vec::new();
            for step in 1..=5 {
                let (input, labels) = batch(step);
                eager.input.upload_on(&input, Stream::Compute).unwrap();
                eager.labels.upload_on(&labels, Stream::Compute).unwrap();
                let (adam, sgd) = options(step);
                let loss = eager.step(StepArguments { step, adam: adam.into(), sgd: sgd.into() }).unwrap();
                expected.push((gpu.download::<f32>(&loss).unwrap()[0].to_bits(), eager.bits()));
            }
            assert!(expected.windows(2).all(|pair| pair[0] != pair[1]));

            let captured = Training::new(gpu);
            let at = gpu.zeros(ElementType::I64, 1).unwrap();
            let numbers = gpu.zeros(ElementType::F64, 16).unwrap();
            let (for_adam, for_sgd) = (numbers.view(0..11).unwrap(), numbers.view(11..16).unwrap());
            let varying = StepArguments {
                step: 17,
                adam: StepScalars::OnDevice(&for_adam),
                sgd: StepScalars::OnDevice(&for_sgd),
            };
            let untouched = captured.bits();
            let step = CapturedStep { step: 17, at: &at };
            // Plans belong to their library's handle, which has none yet.
            let refused = Graph::capture(gpu, Some(step), || captured.step(varying)).unwrap_err();
            assert!(refused.to_string().contains("run the same work once before"), "{refused}");
            let warm = Training { blas: eager.blas, dnn: eager.dnn, ..captured };
            let (graph, loss) = Graph::capture(gpu, Some(step), || warm.step(varying)).unwrap();
            assert_eq!(warm.bits(), untouched, "a capture runs nothing");
            assert!(graph.bytes() > 0);
            for (step, expected) in (1..=5).zip(&expected) {
                let (input, labels) = batch(step);
                kernels::write(gpu, &warm.input, &input).unwrap();
                kernels::write(gpu, &warm.labels, &labels).unwrap();
                kernels::write(gpu, &at, &[step as i64]).unwrap();
                let (adam, sgd) = options(step);
                kernels::write(gpu, &for_adam, &adam.scalars()).unwrap();
                kernels::write(gpu, &for_sgd, &sgd.scalars()).unwrap();
                graph.launch().unwrap();
                // Allocations between launches do not affect the graph.
                drop(
                    kernels::binary(gpu, BinaryOp::Add, (&warm.weights, &[96]), (&warm.weights, &[96]), F32)
                        .unwrap(),
                );
                assert_eq!(
                    gpu.download::<f32>(&loss).unwrap()[0].to_bits(),
                    expected.0,
                    "the loss of step {step}"
                );
                assert_eq!(warm.bits(), expected.1, "step {step}");
            }
        });
        if software::is_inside() {
            break;
        }
    }
}

#[test]
fn memory_of_a_graph_is_reused_kept_and_released() {
    software::run_anywhere(|| {
        let gpu = &gpu();
        let size = 4 << 20;
        let input = gpu.zeros(F32, size / 4).unwrap();
        let chain = |input: &Slice| -> Result<Slice> {
            let mut x = kernels::affine(gpu, input, 1.0, 1.0)?;
            for _ in 0..9 {
                x = kernels::affine(gpu, &x, 1.0, 1.0)?;
            }
            Ok(x)
        };
        chain(&input).unwrap();
        gpu.synchronize().unwrap();
        let before = gpu.pool().usage().total();
        let (graph, output) = Graph::capture(gpu, None, || chain(&input)).unwrap();
        assert_eq!(graph.bytes(), 2 * size, "ten arrays of which two are there at a time");
        assert_eq!(gpu.pool().usage().total(), before + 2 * size);
        graph.launch().unwrap();
        assert_eq!(gpu.download::<f32>(&output).unwrap()[..2], [10.0; 2]);
        // The graph keeps its inputs, and a slice keeps the graph's memory.
        drop(input);
        graph.launch().unwrap();
        assert_eq!(gpu.download::<f32>(&output).unwrap()[..2], [10.0; 2]);
        graph.launch().unwrap();
        drop(graph);
        assert_eq!(gpu.download::<f32>(&output).unwrap()[..2], [10.0; 2]);
        drop(output);
        gpu.synchronize().unwrap();
        assert_eq!(gpu.pool().usage().total(), 0);
        // A real driver keeps memory for itself.
        if !software::is_real() {
            let (free, all) = gpu.device().memory().unwrap();
            assert_eq!(free, all);
        }
    });
}

#[test]
fn a_graph_outlives_other_handles_of_its_gpu() {
    software::run_anywhere(|| {
        let expected = {
            let gpu = gpu();
            let training = Training::new(&gpu);
            let (adam, sgd) = options(1);
            let varying = StepArguments { step: 1, adam: adam.into(), sgd: sgd.into() };
            let loss = training.step(varying).unwrap();
            gpu.download::<f32>(&loss).unwrap()
        };
        let (graph, loss) = {
            let gpu = gpu();
            let training = Training::new(&gpu);
            let (adam, sgd) = options(1);
            let varying = StepArguments { step: 1, adam: adam.into(), sgd: sgd.into() };
            training.step(varying).unwrap();
            // Training::new resets the weights.
            let fresh = Training { blas: training.blas, dnn: training.dnn, ..Training::new(&gpu) };
            Graph::capture(&gpu, None, || fresh.step(varying)).unwrap()
        };
        graph.launch().unwrap();
        assert_eq!(loss.download_on::<f32>(Stream::Compute).unwrap(), expected);
    });
}

#[test]
fn slices_dropped_in_a_capture_outlive_it() {
    software::run_anywhere(|| {
        let gpu = &gpu();
        let mut state = Some(gpu.upload(&[1.0_f32; 100]).unwrap());
        let mut unused = Some(gpu.upload(&[1.0_f32; 100]).unwrap());
        kernels::affine(gpu, state.as_ref().unwrap(), 2.0, 0.0).unwrap();
        let (graph, output) = Graph::capture(gpu, None, || {
            unused = None;
            let input = state.take().unwrap();
            kernels::affine(gpu, &input, 2.0, 0.0)
        })
        .unwrap();
        // Memory that outlives another graph may be dropped in a capture, too.
        let (other, mut left) =
            Graph::capture(gpu, None, || kernels::affine(gpu, &output, 2.0, 0.0).map(Some)).unwrap();
        drop(other);
        Graph::capture(gpu, None, || {
            left = None;
            kernels::affine(gpu, &output, 2.0, 0.0)
        })
        .unwrap();
        for _ in 0..3 {
            graph.launch().unwrap();
            assert_eq!(gpu.download::<f32>(&output).unwrap(), [2.0; 100]);
        }
    });
}

const LATE: Source =
    Source { name: "late", parts: &[KERNEL_MACRO, "KERNEL(late_f32, 1, float *x) { x[0] = 3; }\n"] };

#[test]
fn operations_that_cannot_be_captured_end_the_capture_with_an_error() {
    software::run_anywhere(|| {
        let gpu = &gpu();
        let device = gpu.device();
        let x = &gpu.upload(&[1.0_f32; 64]).unwrap();
        let (blas, dnn) = (Blas::new(gpu).unwrap(), Dnn::new(gpu).unwrap());
        let double = || kernels::affine(gpu, x, 2.0, 0.0);
        double().unwrap();
        let (graph, _) = Graph::capture(gpu, None, double).unwrap();
        let to = gpu.zeros(F32, 64).unwrap();
        let (a, b) = (Matrix::plain(x), Matrix::plain(x));
        let product = Product { sizes: [1, 8, 8, 8], a, b, to: &to, add: false, bias: None, tf32: false };
        let format = ConvolutionFormat { layout: TensorLayout::ChannelsFirst, tf32: false };
        let (w, y) = (x.view(0..18).unwrap(), gpu.zeros(F32, 64).unwrap());
        let images = x.view(0..32).unwrap();
        let pinned = || Pinned::<f32>::new(device, 64);
        type Act<'a> = Box<dyn Fn() -> Result<()> + 'a>;
        let acts: Vec<(&str, Act<'_>)> = vec![
            ("a download", Box::new(|| gpu.download::<f32>(x).map(drop))),
            ("copy from the host", Box::new(|| x.upload_on(&[0.0_f32; 64], Stream::Compute))),
            ("copy from the host", Box::new(|| gpu.upload(&[0.0_f32; 64]).map(drop))),
            ("waiting for the GPU", Box::new(|| gpu.synchronize())),
            ("page-locked", Box::new(|| pinned()?.upload_to(x, Stream::Copies).map(drop))),
            ("page-locked", Box::new(|| pinned()?.download_from(x, Stream::Compute).map(drop))),
            (
                "loading kernels `late`",
                Box::new(|| phalanx_cuda::launch::Launch::of(gpu, &LATE, "late_f32").slice(x).run()),
            ),
            ("the kernel `tanh_f32`", Box::new(|| kernels::unary(gpu, UnaryOp::Tanh, x).map(drop))),
            ("a product of [1, 8, 8, 8]", Box::new(|| blas.matmul(&product))),
            ("a convolution of", Box::new(|| dnn.forward(&CONVOLUTION, format, &images, &w, &y))),
            ("opening cuBLASLt", Box::new(|| Blas::new(gpu).map(drop))),
            ("opening cuDNN", Box::new(|| Dnn::new(gpu).map(drop))),
            ("launching a graph", Box::new(|| graph.launch())),
            ("a capture", Box::new(|| Graph::capture(gpu, None, double).map(drop))),
            ("not part of the capture", Box::new(|| device.wait(Stream::Compute, Stream::Copies))),
            (
                "was not waited for",
                Box::new(|| {
                    device.wait(Stream::Copies, Stream::Compute).and_then(|()| to.zero_on(Stream::Copies))
                }),
            ),
        ];
        for (expected, act) in &acts {
            // The result is the same if the caller drops the error.
            for handed_on in [true, false] {
                let result = Graph::capture(gpu, None, || {
                    double()?;
                    match act() {
                        Err(error) if handed_on => Err(error),
                        _ => double(),
                    }
                });
                let error = result.expect_err(expected);
                assert!(matches!(&error, GpuError::Capture { .. }), "{error:?}");
                assert!(error.to_string().contains(expected), "not `{expected}`: {error}");
                // The GPU works as before.
                assert_eq!(gpu.download::<f32>(&double().unwrap()).unwrap(), [2.0; 64]);
                let (graph, output) = Graph::capture(gpu, None, double).unwrap();
                graph.launch().unwrap();
                assert_eq!(gpu.download::<f32>(&output).unwrap(), [2.0; 64]);
            }
        }
        for (_, act) in acts.iter().filter(|(name, _)| !name.contains("capture")) {
            act().unwrap();
        }
        let wrong = CapturedStep { step: 0, at: x };
        assert!(matches!(Graph::capture(gpu, Some(wrong), double), Err(GpuError::Argument { .. })));
        let mine = Graph::capture(gpu, None, || Err::<(), _>(GpuError::argument("mine", "of the body")));
        assert_eq!(mine.unwrap_err(), GpuError::argument("mine", "of the body"));
    });
}

#[test]
fn a_panic_ends_a_capture() {
    software::run_anywhere(|| {
        let gpu = &gpu();
        let x = gpu.upload(&[1.0_f32; 8]).unwrap();
        kernels::neg(gpu, &x).unwrap();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Graph::capture(gpu, None, || -> Result<()> {
                let _held = kernels::neg(gpu, &x)?;
                panic!("in the body")
            })
        }));
        assert!(panicked.is_err());
        let (graph, y) = Graph::capture(gpu, None, || kernels::neg(gpu, &x)).unwrap();
        graph.launch().unwrap();
        assert_eq!(gpu.download::<f32>(&y).unwrap(), [-1.0; 8]);
    });
}

#[test]
fn other_threads_use_other_streams_during_a_capture() {
    software::run_anywhere(|| {
        let gpu = &gpu();
        let (x, other) = (gpu.upload(&[1.0_f32; 8]).unwrap(), gpu.zeros(F32, 8).unwrap());
        kernels::neg(gpu, &x).unwrap();
        gpu.device().wait(Stream::Copies, Stream::Compute).unwrap();
        let (graph, y) = Graph::capture(gpu, None, || {
            let y = kernels::neg(gpu, &x)?;
            std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let refused = kernels::neg(gpu, &x).unwrap_err();
                    assert!(refused.to_string().contains("another thread captures"), "{refused}");
                    // The copy stream has waited for the allocations before.
                    other.copy_from_on(&x, Stream::Copies).and_then(|()| gpu.unwritten(F32, 8))
                });
                other.join().expect("no panic")
            })?;
            Ok::<_, GpuError>(y)
        })
        .unwrap_or_else(|error| panic!("{error}"));
        graph.launch().unwrap();
        assert_eq!(gpu.download::<f32>(&y).unwrap(), [-1.0; 8]);
        gpu.device().wait(Stream::Compute, Stream::Copies).unwrap();
        assert_eq!(gpu.download::<f32>(&other).unwrap(), [1.0; 8]);
    });
}

#[test]
fn waits_of_a_capture_have_no_effect_outside_of_it() {
    software::run_anywhere(|| {
        let gpu = &gpu();
        let (x, y) = (gpu.upload(&[1.0_f32; 8]).unwrap(), gpu.zeros(F32, 8).unwrap());
        // Allocated before: the communication stream has not waited for it after the capture.
        let other = gpu.unwritten(F32, 8).unwrap();
        let (graph, ()) = Graph::capture(gpu, None, || -> Result<()> {
            y.copy_from_on(&x, Stream::Communication)?;
            gpu.device().wait(Stream::Compute, Stream::Communication)
        })
        .unwrap();
        other.zero_on(Stream::Communication).unwrap();
        graph.launch().unwrap();
        assert_eq!(gpu.download::<f32>(&y).unwrap(), [1.0; 8]);
        drop(other);
    });
}

#[test]
fn a_missing_wait_within_a_graph_is_found() {
    software::refused("missing wait: ", || {
        let gpu = &gpu();
        let (x, y) = (gpu.upload(&[1.0_f32; 8]).unwrap(), gpu.zeros(F32, 8).unwrap());
        let body = || -> Result<()> {
            gpu.device().wait(Stream::Communication, Stream::Compute)?;
            x.zero_on(Stream::Compute)?;
            y.copy_from_on(&x, Stream::Communication)?;
            gpu.device().wait(Stream::Compute, Stream::Communication)
        };
        let (graph, ()) = Graph::capture(gpu, None, body).unwrap();
        graph.launch().unwrap();
    });
}
