//! bf16 compared with f32: the same work on the same threads, in alternation.

use std::time::Instant;

use anyhow::Result;
use phalanx_kernels::{
    Context, Conv2dShape, Matrix, MatrixMut, RoundedFactor, RoundedResult, bf16, conv2d_backward_input,
    conv2d_backward_input_bf16, conv2d_forward, conv2d_forward_bf16, matmul_batched, matmul_bf16,
};
use serde_json::{Value as Json, json};

use crate::numbers::numbers;
use crate::rounds::median;

/// One piece of work.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// A product of matrices: rows, columns, terms of a sum.
    Product([usize; 3]),
    /// A convolution, forward and the input's gradient: channels, size, window, stride.
    Conv([usize; 2], usize, usize, usize),
}

const WORKS: &[Work] = &[
    Work::Product([1024; 3]),
    Work::Product([2048; 3]),
    Work::Product([64, 4096, 1024]),
    Work::Product([256, 3072, 768]),
    Work::Product([4096, 1536, 384]),
    Work::Product([512, 50_257, 384]),
    Work::Product([512, 384, 50_257]),
    Work::Product([50_257, 384, 512]),
    Work::Conv([64, 128], 32, 3, 2),
    Work::Conv([128, 256], 16, 3, 2),
    Work::Conv([256, 512], 8, 3, 2),
    Work::Conv([256, 256], 8, 1, 1),
    Work::Conv([64, 64], 32, 4, 2),
];

type Closure<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

impl Work {
    fn name(self) -> String {
        match self {
            Self::Product([m, n, k]) => format!("product {m}x{n}x{k}"),
            Self::Conv([inputs, outputs], size, kernel, stride) => {
                format!("conv {kernel}x{kernel} {inputs}->{outputs} at {size}x{size} stride {stride}")
            }
        }
    }

    fn shape(
        [in_channels, out_channels]: [usize; 2],
        size: usize,
        kernel: usize,
        stride: usize,
    ) -> Conv2dShape {
        Conv2dShape {
            batch: 64,
            in_channels,
            height: size,
            width: size,
            out_channels,
            kernel: [kernel; 2],
            stride: [stride; 2],
            padding: [(kernel - 1) / 2; 2],
            dilation: [1; 2],
            groups: 1,
        }
    }

    fn operations(self) -> f64 {
        match self {
            Self::Product([m, n, k]) => 2.0 * (m * n * k) as f64,
            Self::Conv(channels, size, kernel, stride) => {
                let shape = Self::shape(channels, size, kernel, stride);
                4.0 * (shape.output_len() * channels[0] * kernel * kernel) as f64
            }
        }
    }

    /// One repetition in f32 and one in bf16.
    fn ready(self, context: &Context) -> [Closure<'_>; 2] {
        let narrow = |values: &[f32]| values.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<bf16>>();
        match self {
            Self::Product([m, n, k]) => {
                let (a, b) = (numbers(m * k), numbers(k * n));
                let (a16, b16) = (narrow(&a), narrow(&b));
                let (mut c, mut c16) = (vec![0.0; m * n], vec![0.0; m * n]);
                let single = move || {
                    let (a, b) = (Matrix::batched(&a, m, k, false), Matrix::batched(&b, k, n, false));
                    Ok(matmul_batched(context, 1, a, b, MatrixMut::batched(&mut c, m, n), false)?)
                };
                let half = move || {
                    let (a, b) = (Matrix::batched(&a16, m, k, false), Matrix::batched(&b16, k, n, false));
                    let (a, b) = (RoundedFactor::Bf16(a), RoundedFactor::Bf16(b));
                    let to = RoundedResult::F32(MatrixMut::batched(&mut c16, m, n));
                    Ok(matmul_bf16(context, 1, a, b, None, to)?)
                };
                [Box::new(single), Box::new(half)]
            }
            Self::Conv(channels, size, kernel, stride) => {
                let shape = Self::shape(channels, size, kernel, stride);
                let (x, w, dy) =
                    (numbers(shape.input_len()), numbers(shape.weight_len()), numbers(shape.output_len()));
                let (x16, w16, dy16) = (narrow(&x), narrow(&w), narrow(&dy));
                let (mut y, mut dx, mut y16, mut dx16) = (dy.clone(), x.clone(), dy16.clone(), x16.clone());
                let single = move || {
                    conv2d_forward(context, &shape, &x, &w, None, &mut y)?;
                    Ok(conv2d_backward_input(context, &shape, &dy, &w, &mut dx)?)
                };
                let half = move || {
                    conv2d_forward_bf16(context, &shape, &x16, &w16, None, &mut y16)?;
                    Ok(conv2d_backward_input_bf16(context, &shape, &dy16, &w16, &mut dx16)?)
                };
                [Box::new(single), Box::new(half)]
            }
        }
    }
}

/// Measures, prints a table and returns it.
pub(crate) fn run(context: &Context, rounds: u64, filter: &str) -> Result<Vec<Json>> {
    let works: Vec<_> =
        WORKS.iter().filter(|work| format!("bf16 {}", work.name()).contains(filter)).collect();
    if works.is_empty() {
        return Ok(Vec::new());
    }
    println!("{:<46} {:>9} {:>9} {:>8} {:>7}", "bf16 against f32", "f32", "bf16", "GFLOP/s", "ratio");
    let mut results = Vec::new();
    for work in works {
        let mut both = work.ready(context);
        let repetitions = (0.5e9_f64 * 20.0 / work.operations()).ceil().max(1.0) as u64;
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..=rounds {
            for (once, times) in both.iter_mut().zip(&mut times) {
                let start = Instant::now();
                for _ in 0..repetitions {
                    once()?;
                }
                // The first round warms up.
                if round > 0 {
                    times.push(start.elapsed().as_secs_f64() / repetitions as f64);
                }
            }
        }
        let [single, half] = times.map(median);
        println!(
            "{:<46} {:>6.2} ms {:>6.2} ms {:>8.0} {:>6.2}x",
            work.name(),
            single * 1e3,
            half * 1e3,
            work.operations() / half / 1e9,
            single / half
        );
        results.push(json!({
            "name": format!("bf16 {}", work.name()), "seconds": half, "f32_seconds": single,
            "ratio_to_f32": single / half, "flops": work.operations() / half,
        }));
    }
    Ok(results)
}
