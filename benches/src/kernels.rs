//! Single operations, forward and backward.

use std::time::Instant;

use anyhow::Result;
use clap::Args;
use phalanx_kernels::{
    Activation, ActivationMask, Affine, BatchNormBackward, BatchNormGrads, BatchNormOutput, Context,
    Conv2dShape, Epilogue, NormInput, batch_norm_train, batch_norm_train_backward, conv2d_backward_input,
    conv2d_backward_weight, conv2d_forward,
};
use serde_json::{Value as Json, json};

use crate::Common;
use crate::machine::Machine;
use crate::numbers::numbers;
use crate::peer::Peer;
use crate::rounds::alternate;

/// The arguments of a measurement.
#[derive(Debug, Args)]
pub(crate) struct KernelArgs {
    /// Only operations with this text in their name
    #[arg(long, default_value = "")]
    filter: String,
    #[command(flatten)]
    common: Common,
}

/// Images in a batch.
const BATCH: usize = 64;

/// One operation.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// A convolution.
    Conv { inputs: usize, outputs: usize, size: usize, kernel: usize, stride: usize, groups: usize },
    /// Batch norm in training with a ReLU, over [BATCH, channels, size, size].
    BatchNormRelu { channels: usize, size: usize },
}

const fn conv3(channels: usize, size: usize) -> Work {
    Work::Conv { inputs: channels, outputs: channels, size, kernel: 3, stride: 1, groups: 1 }
}

const fn depthwise(channels: usize, size: usize, stride: usize) -> Work {
    Work::Conv { inputs: channels, outputs: channels, size, kernel: 3, stride, groups: channels }
}

const fn pointwise(inputs: usize, outputs: usize, size: usize) -> Work {
    Work::Conv { inputs, outputs, size, kernel: 1, stride: 1, groups: 1 }
}

/// The shapes of ResNet-18 at 32² with the CIFAR stem, then MobileNetV2's at the same size.
const WORKS: &[Work] = &[
    conv3(64, 32),
    conv3(128, 16),
    conv3(256, 8),
    conv3(512, 4),
    conv3(256, 2),
    conv3(512, 1),
    Work::Conv { inputs: 64, outputs: 128, size: 32, kernel: 3, stride: 2, groups: 1 },
    depthwise(96, 16, 1),
    depthwise(144, 8, 1),
    depthwise(144, 8, 2),
    depthwise(384, 2, 1),
    depthwise(960, 1, 1),
    pointwise(16, 96, 16),
    pointwise(96, 24, 8),
    pointwise(24, 144, 8),
    pointwise(144, 32, 4),
    pointwise(384, 64, 2),
    pointwise(320, 1280, 1),
    Work::BatchNormRelu { channels: 64, size: 32 },
];

impl Work {
    fn name(self) -> String {
        match self {
            Self::Conv { inputs, outputs, size, kernel, stride, groups } => {
                let kind = if groups > 1 { "depthwise" } else { "conv" };
                format!("{kind} {kernel}x{kernel} {inputs}->{outputs} at {size}x{size} stride {stride}")
            }
            Self::BatchNormRelu { channels, size } => {
                format!("batch norm + relu {channels} at {size}x{size}")
            }
        }
    }

    fn shape(
        inputs: usize,
        outputs: usize,
        size: usize,
        kernel: usize,
        stride: usize,
        groups: usize,
    ) -> Conv2dShape {
        Conv2dShape {
            batch: BATCH,
            in_channels: inputs,
            height: size,
            width: size,
            out_channels: outputs,
            kernel: [kernel; 2],
            stride: [stride; 2],
            padding: [kernel / 2; 2],
            dilation: [1; 2],
            groups,
        }
    }

    fn for_peer(self) -> Json {
        match self {
            Self::Conv { inputs, outputs, size, kernel, stride, groups } => json!({
                "kind": "conv", "batch": BATCH, "inputs": inputs, "outputs": outputs, "size": size,
                "kernel": kernel, "stride": stride, "groups": groups,
            }),
            Self::BatchNormRelu { channels, size } => {
                json!({ "kind": "batch_norm_relu", "batch": BATCH, "channels": channels, "size": size })
            }
        }
    }

    /// Returns the operations of forward and backward, and the least number of bytes to move.
    fn cost(self) -> (f64, f64) {
        match self {
            Self::Conv { inputs, outputs, size, kernel, stride, groups } => {
                let shape = Self::shape(inputs, outputs, size, kernel, stride, groups);
                let products = shape.output_len() * inputs / groups * kernel * kernel;
                let elements = 3 * (shape.input_len() + shape.output_len()) + 4 * shape.weight_len();
                (6.0 * products as f64, 4.0 * elements as f64)
            }
            Self::BatchNormRelu { channels, size } => {
                let elements = (BATCH * channels * size * size) as f64;
                // Read for the moments, read and written for the output; x, y and dy read twice, dx written.
                (16.0 * elements, 4.0 * 8.0 * elements)
            }
        }
    }

    /// Returns the work of one repetition. All memory is allocated here, once.
    fn ready(self, context: &Context) -> Box<dyn FnMut() -> Result<()> + '_> {
        match self {
            Self::Conv { inputs, outputs, size, kernel, stride, groups } => {
                let shape = Self::shape(inputs, outputs, size, kernel, stride, groups);
                let (x, w) = (numbers(shape.input_len()), numbers(shape.weight_len()));
                let mut y = numbers(shape.output_len());
                let dy = numbers(y.len());
                let (mut dx, mut dw) = (x.clone(), w.clone());
                Box::new(move || {
                    conv2d_forward(context, &shape, &x, &w, None, &mut y)?;
                    conv2d_backward_input(context, &shape, &dy, &w, &mut dx)?;
                    conv2d_backward_weight(context, &shape, &x, &dy, &mut dw, false)?;
                    Ok(())
                })
            }
            Self::BatchNormRelu { channels, size } => {
                let dims = [BATCH, channels, size * size];
                let x = numbers(dims.iter().product());
                let (mut y, dy, mut dx) = (x.clone(), x.clone(), x.clone());
                let (gamma, beta) = (vec![1.0_f32; channels], vec![0.0_f32; channels]);
                let count = (BATCH * size * size) as f64;
                let activation = Activation::Relu;
                Box::new(move || {
                    let (mut mean, mut m2) = (vec![0.0; channels], vec![0.0; channels]);
                    let finish = Epilogue::with(activation);
                    let input = NormInput { x: &x, gamma: &gamma, beta: &beta, eps: 1e-5 };
                    let to = BatchNormOutput { y: &mut y, mean: &mut mean, moment: &mut m2 };
                    batch_norm_train(context, dims, input, finish, to)?;
                    let inv_std: Vec<f32> =
                        m2.iter().map(|m2| (1.0 / (m2 / count + 1e-5).sqrt()) as f32).collect();
                    let mean: Vec<f32> = mean.iter().map(|&mean| mean as f32).collect();
                    let affine = Affine { mean: &mean, inv_std: &inv_std, gamma: &gamma, beta: &beta };
                    let (mut sum_dy, mut sum_dy_xhat) = (vec![0.0; channels], vec![0.0; channels]);
                    let sums = [sum_dy.as_mut_slice(), &mut sum_dy_xhat];
                    let mask = ActivationMask { activation, output: None };
                    let from = BatchNormBackward { x: &x, dy: &dy, affine, mask };
                    let to = BatchNormGrads { dx: &mut dx, residual: None };
                    batch_norm_train_backward(context, dims, from, sums, to)?;
                    Ok(())
                })
            }
        }
    }
}

pub(crate) fn run(args: &KernelArgs) -> Result<()> {
    let threads = args.common.threads();
    let machine = Machine::measure(threads);
    println!(
        "{threads} threads: {:.0} GFLOP/s of multiply-adds in registers, {:.1} GB/s copied",
        machine.flops / 1e9,
        machine.copy / 1e9
    );
    let mut peer = args.common.peer.map(|library| Peer::start(library, threads)).transpose()?;
    if let Some(peer) = &peer {
        println!("peer: {}", peer.version);
    }
    println!(
        "{:<46} {:>9} {:>8} {:>7} {:>7}",
        "forward and backward, batch 64", "ours", "GFLOP/s", "peak", "ratio"
    );
    let context = Context::new(threads);
    let (mut results, mut ratios) = (Vec::new(), Vec::new());
    let start = Instant::now();
    for work in WORKS.iter().filter(|work| work.name().contains(&args.filter)) {
        let mut prepared = match &mut peer {
            Some(peer) => peer.prepare(&work.for_peer())?,
            None => None,
        };
        let mut ready = work.ready(&context);
        let mut repeated = |count: u64| (0..count).try_for_each(|_| ready());
        let medians = alternate(args.common.rounds, &mut [&mut repeated], prepared.as_mut())?;
        let ours = medians.ours[0];
        let ratio = medians.theirs.map(|theirs| theirs / ours);
        let (operations, bytes) = work.cost();
        // The least time by either limit. A copied byte is read once and written once.
        let least = (operations / machine.flops).max(bytes / 2.0 / machine.copy);
        println!(
            "{:<46} {:>6.2} ms {:>8.0} {:>6.0}% {:>7}",
            work.name(),
            ours * 1e3,
            operations / ours / 1e9,
            100.0 * least / ours,
            ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x")),
        );
        ratios.extend(ratio);
        results.push(json!({
            "name": work.name(), "seconds": ours, "peer_seconds": medians.theirs,
            "ratio": ratio, "flops": operations / ours, "part_of_limit": least / ours,
        }));
    }
    if !ratios.is_empty() {
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        println!("geometric mean of the ratios: {mean:.2}x");
    }
    let narrow = crate::narrow::run(&context, args.common.rounds, &args.filter)?;
    println!("took {:.0} s", start.elapsed().as_secs_f64());
    args.common.write(&json!({
        "threads": threads, "rounds": args.common.rounds, "peak_flops": machine.flops,
        "copy_bytes_per_s": machine.copy, "peer": peer.map(|peer| peer.version.clone()), "kernels": results,
        "bf16": narrow,
    }))
}
