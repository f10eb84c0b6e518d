//! `codecs.json`: messages and residuals of gradient codecs between threads, and the integers and levels of their
//! kernels.

use std::sync::Arc;

use phalanx_collectives::{Algorithm, threads};
use phalanx_kernels::{
    Context, KernelError, dequantise_int8, dequantise_stochastic, quantise_int8, quantise_stochastic,
    scales_len,
};
use phalanx_sharding::{
    Bucket, CodecKind, CodecSettings, CodecState, GradCodec, MatrixRange, Peers, ShardingError, SumPlacement,
};
use serde_json::Value;

use crate::report::numbers;
use crate::{ParityError, Quantity, Reference, fill};

const TOLERANCE: f64 = 1e-5;

pub(super) fn check(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let mut found = Vec::new();
    entries(reference, "topk_error_feedback", CodecKind::TopK, &mut found)?;
    entries(reference, "dgc", CodecKind::Dgc, &mut found)?;
    power_sgd(reference, &mut found)?;
    int8(reference, &mut found)?;
    qsgd(reference, &mut found)?;
    Ok(found)
}

/// The largest number of workers in a reference. Each is a thread.
const MOST_WORKERS: usize = 64;

/// The largest number of elements or rows in a reference.
const MOST: u64 = 1 << 10;

/// Reads a count. Returns 0 if it is missing or exceeds [`MOST`].
fn whole(json: &Value, key: &str) -> usize {
    let known = json[key].as_u64().filter(|number| *number <= MOST);
    known.and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

fn l2(values: &[f32]) -> f64 {
    wide(values).iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// Sums the gradients of all ranks. Also returns the state of each rank's codec.
fn summed(
    codecs: &[Arc<dyn GradCodec>],
    bucket: &Bucket,
    gradients: Vec<Vec<f32>>,
) -> Result<Vec<(Vec<f32>, CodecState)>, ParityError> {
    let run =
        |(comm, (codec, mut own)): (phalanx_collectives::Communicator, (&Arc<dyn GradCodec>, Vec<f32>))| {
            let mut peers = Peers::new(&comm, Algorithm::Auto);
            codec.reduce(bucket, own.as_mut_slice().into(), SumPlacement::All, &mut peers)?;
            Ok::<_, ShardingError>((own, codec.state()?))
        };
    let ranks = threads(codecs.len()).map_err(ShardingError::from)?;
    let own = ranks.into_iter().zip(codecs.iter().zip(gradients));
    std::thread::scope(|scope| {
        let running: Vec<_> = own.map(|own| scope.spawn(|| run(own))).collect();
        let ended = || ShardingError::Step("a rank has ended");
        running.into_iter().map(|rank| Ok(rank.join().map_err(|_| ended())??)).collect()
    })
}

fn codec(settings: &CodecSettings) -> Result<Arc<dyn GradCodec>, ParityError> {
    let none = || ShardingError::Step("no codec");
    Ok(settings.codec().map_err(ShardingError::from)?.ok_or_else(none)?)
}

fn kept<'s>(state: &'s CodecState, field: &str) -> &'s [f32] {
    let named = format!("0.{field}");
    state.iter().find(|(name, _)| *name == named).map_or(&[], |(_, values)| values)
}

/// Compares top-k of one worker: the sent entries and the residual.
fn entries(
    reference: &Reference<'_>,
    part: &str,
    kind: CodecKind,
    found: &mut Vec<Quantity>,
) -> Result<(), ParityError> {
    let json = &reference.json[part];
    let (n, k) = (whole(json, "n"), whole(json, "k"));
    let momentum = json["momentum"].as_f64().unwrap_or(0.0);
    let settings =
        CodecSettings { kind, density: k as f64 / n.max(1) as f64, momentum, ..Default::default() };
    let codecs = [codec(&settings)?];
    let bucket = Bucket { slot: 0, len: n, matrices: Vec::new() };
    let mut state = Vec::new();
    for (t, step) in json["steps"].as_array().into_iter().flatten().enumerate() {
        let gradients = fill::sym(&format!("grad.{t}"), reference.seed, n, 1.0);
        let Some((sum, now)) = summed(&codecs, &bucket, vec![gradients])?.pop() else { continue };
        let sent: Vec<f64> = (0..n).filter(|at| sum[*at] != 0.0).map(|at| at as f64).collect();
        let values: Vec<f64> =
            sum.iter().filter(|value| **value != 0.0).map(|value| f64::from(*value)).collect();
        let name = |what: &str| format!("{part} step {t} {what}");
        found.push(Quantity::exact(&name("indices"), &sent, &numbers(&step["indices"])));
        found.push(Quantity::vector(&name("values"), &values, &numbers(&step["values"]), TOLERANCE));
        for (norm, field) in [("error_l2", "residual"), ("u_l2", "velocity"), ("v_l2", "sum")] {
            if let Some(expected) = step[norm].as_f64() {
                found.push(Quantity::vector(&name(norm), &[l2(kept(&now, field))], &[expected], TOLERANCE));
            }
        }
        state = now;
    }
    for (after, field) in [("error_after", "residual"), ("u_after", "velocity"), ("v_after", "sum")] {
        let expected = numbers(&json[after]);
        if !expected.is_empty() {
            let head: Vec<f64> = wide(kept(&state, field)).into_iter().take(expected.len()).collect();
            found.push(Quantity::vector(&format!("{part} {after}"), &head, &expected, TOLERANCE));
        }
    }
    Ok(())
}

/// Compares PowerSGD of two workers.
fn power_sgd(reference: &Reference<'_>, found: &mut Vec<Quantity>) -> Result<(), ParityError> {
    let json = &reference.json["powersgd"];
    let (rows, columns, rank) = (whole(json, "rows"), whole(json, "columns"), whole(json, "rank"));
    let (workers, len) = (whole(json, "workers").min(MOST_WORKERS), rows * columns);
    let settings = CodecSettings { kind: CodecKind::PowerSgd, rank, ..Default::default() };
    let q = fill::sym("powersgd.Q", reference.seed, columns * rank, 1.0);
    let mut codecs = Vec::new();
    for _ in 0..workers {
        let codec = codec(&settings)?;
        codec.load_state(vec![("0.q".to_owned(), q.clone())]).map_err(ShardingError::from)?;
        codecs.push(codec);
    }
    let bucket = Bucket { slot: 0, len, matrices: vec![MatrixRange { range: 0..len, rows }] };
    for (t, step) in json["steps"].as_array().into_iter().flatten().enumerate() {
        let own = |worker: usize| fill::sym(&format!("powersgd.grad.{worker}.{t}"), reference.seed, len, 1.0);
        let ranks = summed(&codecs, &bucket, (0..workers).map(own).collect())?;
        let name = |what: &str| format!("powersgd step {t} {what}");
        let flat: Vec<f64> = step["Q"].as_array().into_iter().flatten().flat_map(numbers).collect();
        for (worker, (sum, state)) in ranks.iter().enumerate() {
            let mean: Vec<f32> = sum.iter().map(|sum| sum / workers as f32).collect();
            let (expected, head) = (&step["decompressed"], numbers(&step["decompressed"]["head"]));
            let of = |what: &str| name(&format!("worker {worker} {what}"));
            found.push(Quantity::vector(&of("Q"), &wide(kept(state, "q")), &flat, TOLERANCE));
            found.push(Quantity::vector(
                &of("decompressed"),
                &wide(&mean)[..head.len().min(len)],
                &head,
                TOLERANCE,
            ));
            let norms = [l2(&mean), l2(kept(state, "residual"))];
            let error = step["error_l2"][worker].as_f64().unwrap_or(f64::NAN);
            let expected = [expected["l2"].as_f64().unwrap_or(f64::NAN), error];
            found.push(Quantity::vector(&of("l2"), &norms, &expected, TOLERANCE));
        }
    }
    Ok(())
}

fn kernel(error: KernelError) -> ParityError {
    ShardingError::from(error).into()
}

/// Compares int8 by chunk.
fn int8(reference: &Reference<'_>, found: &mut Vec<Quantity>) -> Result<(), ParityError> {
    let json = &reference.json["int8"];
    let (n, chunk, context) = (whole(json, "n"), whole(json, "chunk"), Context::new(1));
    let mut x = fill::sym("int8.x", reference.seed, n, 1.0);
    // As in the file's `input`.
    for (i, x) in x.iter_mut().enumerate() {
        *x = match i {
            256 => 127.0,
            257..512 => ((i - 256) % 9) as f32 - 4.0 + 0.5,
            512..768 => 0.0,
            768.. => *x * 1e-3,
            _ => *x,
        };
    }
    let (mut scales, mut q) = (vec![0.0; scales_len(n, chunk)], vec![0_i8; n]);
    quantise_int8(&context, &x, chunk, &mut scales, &mut q).map_err(kernel)?;
    let mut decoded = vec![0.0; n];
    dequantise_int8(&context, (&scales, &q), chunk, &mut decoded, false).map_err(kernel)?;
    let parts = scales.iter().zip(q.chunks(chunk.max(1)).zip(decoded.chunks(chunk.max(1))));
    for (at, (expected, (scale, (q, decoded)))) in
        json["chunks"].as_array().into_iter().flatten().zip(parts).enumerate()
    {
        let name = |what: &str| format!("int8 chunk {at} {what}");
        let q: Vec<f64> = q.iter().map(|q| f64::from(*q)).collect();
        let number = |key: &str| expected[key].as_f64().unwrap_or(f64::NAN);
        let sums = [q.iter().sum(), q.iter().map(|q| q * q).sum()];
        let (head, first) = (numbers(&expected["decoded_head"]), numbers(&expected["q_first32"]));
        found.push(Quantity::exact(&name("first q"), &q[..first.len().min(q.len())], &first));
        found.push(Quantity::exact(
            &name("sums of q"),
            &sums,
            &[number("q_sum"), number("q_sum_of_squares")],
        ));
        let reals = [f64::from(*scale), l2(decoded)].into_iter().chain(wide(decoded));
        let expected = [number("scale"), number("decoded_l2")].into_iter().chain(head);
        let named = |at: usize| match at {
            0 => "scale".to_owned(),
            1 => "decoded_l2".to_owned(),
            _ => format!("decoded [{}]", at - 2),
        };
        let pairs =
            reals.zip(expected).enumerate().map(|(at, (found, expected))| (named(at), found, expected));
        let pairs: Vec<_> = pairs.collect();
        found.push(Quantity::each(&name("scale and decoded"), &pairs, 1e-12, TOLERANCE));
    }
    Ok(())
}

/// Compares QSGD's stochastic levels.
fn qsgd(reference: &Reference<'_>, found: &mut Vec<Quantity>) -> Result<(), ParityError> {
    let json = &reference.json["qsgd"];
    let (n, context) = (whole(json, "n"), Context::new(1));
    let x = fill::sym("qsgd.x", reference.seed, n, 1.0);
    let base = fill::base("qsgd.u", reference.seed);
    for (levels, expected) in json["levels"].as_object().into_iter().flatten() {
        let name = |what: &str| format!("qsgd of {levels} levels {what}");
        let levels: u8 = levels.parse().map_err(|_| reference.unknown("number of levels", levels))?;
        let (mut norms, mut q) = (vec![0.0; 1], vec![0_i8; n]);
        quantise_stochastic(&context, (&x, n), (levels, base), &mut norms, &mut q).map_err(kernel)?;
        let mut decoded = vec![0.0; n];
        dequantise_stochastic(&context, (&norms, &q), (n, levels), &mut decoded, false).map_err(kernel)?;
        let q: Vec<f64> = q.iter().map(|q| f64::from(*q)).collect();
        found.push(Quantity::exact(&name("q"), &q, &numbers(&expected["q"])));
        let head = numbers(&expected["decoded_head"]);
        found.push(Quantity::vector(
            &name("decoded"),
            &wide(&decoded)[..head.len().min(n)],
            &head,
            TOLERANCE,
        ));
        let number = |key: &str| expected[key].as_f64().unwrap_or(f64::NAN);
        let norms = [f64::from(norms[0]), l2(&decoded)];
        found.push(Quantity::vector(
            &name("norms"),
            &norms,
            &[number("norm"), number("decoded_l2")],
            TOLERANCE,
        ));
    }
    Ok(())
}
