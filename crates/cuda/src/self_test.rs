//! A check of a GPU's results and speed that takes about a second.

use std::time::{Duration, Instant};

use crate::blas::{Blas, Matrix, Product};
use crate::{ElementType, Gpu, GpuError, Result, kernels};

/// The result of a self-test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Floating-point operations of f32 per second, in products of square matrices.
    pub flops: f64,
    /// The size of the matrices.
    pub size: usize,
}

/// Compiles kernels, fills memory, multiplies ever larger matrices for about `limit`, and checks sums of the products.
///
/// # Errors
/// Missing libraries and failures of the device; [`GpuError::Argument`] if a sum is wrong.
pub fn run(gpu: &Gpu, limit: Duration) -> Result<Outcome> {
    let blas = Blas::new(gpu)?;
    let start = Instant::now();
    let mut outcome = Outcome { flops: 0.0, size: 0 };
    for size in [128, 256, 512, 1024, 2048, 4096, 8192] {
        let full = |value: f64| -> Result<_> {
            let slice = gpu.unwritten(ElementType::F32, size * size)?;
            kernels::fill(gpu, &slice, value)?;
            Ok(slice)
        };
        let (a, b, to) = (full(0.5)?, full(2.0)?, full(-1.0)?);
        let product = Product {
            sizes: [1, size, size, size],
            a: Matrix::plain(&a),
            b: Matrix::transposed(&b),
            to: &to,
            add: false,
            bias: None,
            tf32: false,
        };
        // The first product makes the plan.
        blas.matmul(&product)?;
        gpu.synchronize()?;
        let began = Instant::now();
        blas.matmul(&product)?;
        gpu.synchronize()?;
        let took = began.elapsed();
        let (sum, right) =
            (gpu.download::<f32>(&kernels::sum_all(gpu, &to, 1.0)?)?[0], (size as f64).powi(3));
        if (f64::from(sum) - right).abs() > 1e-5 * right {
            let problem = format!("a product of {size}×{size} matrices adds up to {sum}, not {right}");
            return Err(GpuError::argument("self-test", problem));
        }
        let flops = 2.0 * right / took.as_secs_f64().max(1e-9);
        if flops > outcome.flops {
            outcome = Outcome { flops, size };
        }
        // The next size takes eight times as long, and runs twice.
        if start.elapsed() + 16 * took > limit {
            break;
        }
    }
    Ok(outcome)
}
