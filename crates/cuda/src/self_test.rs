//! Whether a GPU computes right, and how fast, in about a second.

use std::time::{Duration, Instant};

use crate::blas::{Blas, Matrix, Product};
use crate::{ElementType, Gpu, GpuError, Result, kernels};

/// What a self-test found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Multiplications and additions of f32 a second, in products of square matrices.
    pub flops: f64,
    /// The size of the matrices.
    pub size: usize,
}

/// Compiles kernels, fills memory, multiplies ever larger matrices for at most about `limit`, and checks sums of the products.
///
/// # Errors
/// What is missing or fails; [`GpuError::Argument`] if a sum is wrong.
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
        // The first one finds out how.
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
        // The next one takes eight times as long, twice.
        if start.elapsed() + 16 * took > limit {
            break;
        }
    }
    Ok(outcome)
}
