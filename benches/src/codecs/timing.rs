//! The time of a codec's kernels for some gradients, on one thread.

use std::time::Instant;

use anyhow::{Result, bail};
use phalanx_kernels::{
    Context, Matrix, MatrixMut, accumulate_momentum, bf16, clear_indices, compress_lossless,
    decompress_lossless, dequantise_int4, dequantise_int8, dequantise_stochastic, gather_indices, int4_len,
    low_rank_product, matmul_batched, narrow, orthogonalise, quantise_int4, quantise_int8,
    quantise_stochastic, random_indices, scales_len, scatter_add, sign_decode, sign_encode, sign_len, top_k,
    widen,
};
use phalanx_sharding::{Bucket, CodecKind, CodecSettings};

use crate::rounds::median;

/// Returns the median seconds of some work, after one warm-up round.
fn timed(rounds: u64, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    work()?;
    let mut round = || {
        let start = Instant::now();
        work()?;
        Ok(start.elapsed().as_secs_f64())
    };
    Ok(median((0..rounds).map(|_| round()).collect::<Result<_>>()?))
}

/// Returns the seconds of encoding one rank's gradients `x`, with error feedback, and of decoding the message.
pub(super) fn coding_seconds(
    settings: &CodecSettings,
    bucket: &Bucket,
    x: &[f32],
    rounds: u64,
) -> Result<[f64; 2]> {
    let (context, n, chunk) = (Context::new(1), x.len(), settings.chunk);
    let mut out = vec![0.0_f32; n];
    let mut scales = vec![0.0; scales_len(n, chunk)];
    Ok(match settings.kind {
        CodecKind::None => bail!("uncompressed gradients are not encoded"),
        CodecKind::Bf16 => {
            let mut halves = vec![bf16::ZERO; n];
            let encode = timed(rounds, || Ok(narrow(&context, x, &mut halves)?))?;
            [encode, timed(rounds, || Ok(widen(&context, &halves, &mut out)?))?]
        }
        CodecKind::Int8 => {
            let mut q = vec![0; n];
            let encode = timed(rounds, || Ok(quantise_int8(&context, x, chunk, &mut scales, &mut q)?))?;
            [encode, timed(rounds, || Ok(dequantise_int8(&context, (&scales, &q), chunk, &mut out, false)?))?]
        }
        CodecKind::Int4 => {
            let mut q = vec![0; int4_len(n)];
            let encode = timed(rounds, || Ok(quantise_int4(&context, x, chunk, &mut scales, &mut q)?))?;
            [encode, timed(rounds, || Ok(dequantise_int4(&context, (&scales, &q), chunk, &mut out, false)?))?]
        }
        CodecKind::Qsgd => {
            let mut q = vec![0; n];
            let encode = timed(rounds, || {
                Ok(quantise_stochastic(&context, (x, chunk), (127, 1), &mut scales, &mut q)?)
            })?;
            let decode =
                || Ok(dequantise_stochastic(&context, (&scales, &q), (chunk, 127), &mut out, false)?);
            [encode, timed(rounds, decode)?]
        }
        CodecKind::Sign => {
            let (mut bits, mut errors) = (vec![0; sign_len(n)], vec![0.0_f32; n]);
            let encode = timed(rounds, || {
                sign_encode(&context, x, chunk, &mut scales, &mut bits)?;
                sign_decode(&context, (&scales, &bits), chunk, &mut errors, false)?;
                errors.iter_mut().zip(x).for_each(|(error, x)| *error = x - *error);
                Ok(())
            })?;
            [encode, timed(rounds, || Ok(sign_decode(&context, (&scales, &bits), chunk, &mut out, false)?))?]
        }
        CodecKind::TopK | CodecKind::TopKInt8 | CodecKind::Dgc | CodecKind::RandomK => {
            entries(settings, &context, x, rounds)?
        }
        CodecKind::PowerSgd => products(settings, &context, bucket, x, rounds)?,
        CodecKind::Lossless => {
            let mut message = Vec::new();
            let encode = timed(rounds, || {
                message.clear();
                compress_lossless(&context, x, &mut message);
                Ok(())
            })?;
            [encode, timed(rounds, || Ok(decompress_lossless(&context, &message, &mut out)?))?]
        }
    })
}

/// Times the sparse codecs. Encoding accumulates, selects and removes entries. Decoding adds them to zeros.
fn entries(settings: &CodecSettings, context: &Context, x: &[f32], rounds: u64) -> Result<[f64; 2]> {
    let (n, k) = (x.len(), (x.len() as f64 * settings.density).ceil() as usize);
    let (mut waiting, mut velocity) = (vec![0.0_f32; n], vec![0.0_f32; n]);
    let (mut indices, mut values) = (Vec::new(), vec![0.0; k]);
    let (mut scales, mut q) = (vec![0.0; scales_len(k, settings.chunk)], vec![0_i8; k]);
    let mut round = 0;
    let encode = timed(rounds, || {
        round += 1;
        if settings.kind == CodecKind::Dgc {
            accumulate_momentum(context, settings.momentum as f32, x, &mut velocity, &mut waiting)?;
        } else {
            waiting.iter_mut().zip(x).for_each(|(waiting, x)| *waiting += x);
        }
        if settings.kind == CodecKind::RandomK {
            indices = random_indices(round, n, k);
        } else {
            top_k(context, &waiting, k, &mut indices)?;
        }
        gather_indices(&waiting, &indices, &mut values)?;
        clear_indices(&indices, &mut waiting)?;
        if settings.kind == CodecKind::Dgc {
            clear_indices(&indices, &mut velocity)?;
        }
        if settings.kind == CodecKind::TopKInt8 {
            quantise_int8(context, &values, settings.chunk, &mut scales, &mut q)?;
        }
        Ok(())
    })?;
    let mut sum = vec![0.0_f32; n];
    let decode = timed(rounds, || {
        sum.fill(0.0);
        if settings.kind == CodecKind::TopKInt8 {
            dequantise_int8(context, (&scales, &q), settings.chunk, &mut values, false)?;
        }
        Ok(scatter_add(&indices, &values, &mut sum)?)
    })?;
    Ok([encode, decode])
}

/// Times PowerSGD. Encoding computes P, orthonormalises its columns, and computes Q. Decoding computes P·Qᵀ and the
/// residual.
fn products(
    settings: &CodecSettings,
    context: &Context,
    bucket: &Bucket,
    x: &[f32],
    rounds: u64,
) -> Result<[f64; 2]> {
    let rank = settings.rank;
    let thin = || {
        bucket.matrices.iter().filter(|matrix| (matrix.rows + matrix.columns()) * rank < matrix.range.len())
    };
    let largest = thin().map(|matrix| matrix.range.len()).max().unwrap_or(0);
    let (mut p, mut q) = (Vec::new(), Vec::new());
    for matrix in thin() {
        p.push(vec![0.0_f32; matrix.rows * rank]);
        q.push((0..matrix.columns() * rank).map(|at| (at as f32 * 0.7).sin()).collect::<Vec<_>>());
    }
    let encode = timed(rounds, || {
        for ((matrix, p), q) in thin().zip(&mut p).zip(&mut q) {
            let (m, rows, columns) = (&x[matrix.range.clone()], matrix.rows, matrix.columns());
            let (a, b) = (Matrix::batched(m, rows, columns, false), Matrix::batched(q, columns, rank, false));
            matmul_batched(context, 1, a, b, MatrixMut::batched(p, rows, rank), false)?;
            orthogonalise(p, rank)?;
            let (a, b) = (Matrix::batched(m, columns, rows, true), Matrix::batched(p, rows, rank, false));
            matmul_batched(context, 1, a, b, MatrixMut::batched(q, columns, rank), false)?;
        }
        Ok(())
    })?;
    let (mut product, mut errors) = (vec![0.0; largest], vec![0.0_f32; x.len()]);
    let decode = timed(rounds, || {
        for ((matrix, p), q) in thin().zip(&p).zip(&q) {
            let product = &mut product[..matrix.range.len()];
            low_rank_product(context, p, q, rank, product)?;
            let pairs = errors[matrix.range.clone()].iter_mut().zip(&x[matrix.range.clone()]).zip(product);
            pairs.for_each(|((error, x), product)| *error = x - *product);
        }
        Ok(())
    })?;
    Ok([encode, decode])
}
