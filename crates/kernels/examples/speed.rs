//! Prints how fast the kernels are here: GFLOP/s of products and convolutions on one and two threads.

use std::time::Instant;

use phalanx_kernels::{
    Context, Conv2dShape, KernelError, Matrix, MatrixMut, conv2d_backward_input, conv2d_backward_weight,
    conv2d_forward, matmul_batched,
};

/// The median seconds of a few runs.
fn median(mut f: impl FnMut() -> Result<(), KernelError>) -> Result<f64, KernelError> {
    let mut times = Vec::new();
    for _ in 0..7 {
        let start = Instant::now();
        f()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn main() -> Result<(), KernelError> {
    for threads in [1, 2] {
        let context = Context::new(threads);
        for n in [256, 1024, 2048] {
            let (a, b, mut c) = (vec![1.0_f32; n * n], vec![1.0_f32; n * n], vec![0.0; n * n]);
            let time = median(|| {
                let out = MatrixMut::batched(&mut c, n, n);
                matmul_batched(
                    &context,
                    1,
                    Matrix::batched(&a, n, n, false),
                    Matrix::batched(&b, n, n, false),
                    out,
                    false,
                )
            })?;
            println!("{threads} threads, product {n}³: {:.0} GFLOP/s", 2.0 * (n as f64).powi(3) / time / 1e9);
        }
        for (batch, inputs, outputs, size, kernel, groups) in [
            (64, 64, 64, 32, 3, 1),
            (64, 128, 128, 16, 3, 1),
            (64, 256, 256, 8, 3, 1),
            (64, 512, 512, 4, 3, 1),
            (64, 96, 96, 16, 3, 96),
            (64, 96, 24, 16, 1, 1),
        ] {
            let shape = Conv2dShape {
                batch,
                in_channels: inputs,
                height: size,
                width: size,
                out_channels: outputs,
                kernel: [kernel; 2],
                stride: [1; 2],
                padding: [kernel / 2; 2],
                dilation: [1; 2],
                groups,
            };
            let (x, w) = (vec![1.0_f32; shape.input_len()], vec![1.0_f32; shape.weight_len()]);
            let mut y = vec![0.0_f32; shape.output_len()];
            let (mut dx, mut dw) = (x.clone(), w.clone());
            let work = 2.0 * (shape.output_len() * inputs / groups * kernel * kernel) as f64 / 1e9;
            let forward = median(|| conv2d_forward(&context, &shape, &x, &w, None, &mut y))?;
            let input = median(|| conv2d_backward_input(&context, &shape, &y, &w, &mut dx))?;
            let weight = median(|| conv2d_backward_weight(&context, &shape, &x, &y, &mut dw, false))?;
            println!(
                "{threads} threads, {inputs}→{outputs} {kernel}×{kernel} at {size}², {groups} groups: forward {:.0}, input {:.0}, weight {:.0} GFLOP/s; {:.1} ms in all",
                work / forward,
                work / input,
                work / weight,
                (forward + input + weight) * 1e3
            );
        }
    }
    Ok(())
}
