//! Chunk codecs: the bytes of the CPU's messages, and the bits of its decoded values.

use std::ops::Range;

use phalanx_cuda::kernels::{
    ChunkMessages, add_residual, chunk_errors, decode_chunks, encode_chunks, poison,
};
use phalanx_cuda::{ElementType, Gpu, Slice, Stream};
use phalanx_kernels::{
    ChunkFormat, ChunkKind, Context, dequantise_int4, dequantise_int8, dequantise_stochastic, int4_len,
    mixed, mixed_with, quantise_int4, quantise_int8, quantise_stochastic, scales_len, sign_decode,
    sign_encode, sign_len,
};

use super::inputs::{Draw, on_gpu};

const KINDS: [ChunkKind; 4] = [ChunkKind::Int8, ChunkKind::Int4, ChunkKind::Qsgd, ChunkKind::Sign];

/// Values, parts, values of a chunk: with empty parts, partial chunks and partial words.
const SHAPES: [(usize, usize, usize); 8] = [
    (1, 1, 8),
    (3, 4, 8),
    (100, 1, 256),
    (1000, 3, 64),
    (4099, 4, 256),
    (2048, 2, 256),
    (777, 2, 16),
    (5000, 5, 1000),
];

fn part(len: usize, parts: usize, at: usize) -> Range<usize> {
    at * len / parts..(at + 1) * len / parts
}

/// Encodes a message on the CPU.
pub(crate) fn message(format: ChunkFormat, values: &[f32], draw: u64) -> Vec<u8> {
    let (context, chunk, len) = (Context::new(1), format.chunk, values.len());
    let mut scales = vec![0.0; scales_len(len, chunk)];
    let mut whole = vec![0_i8; len];
    let mut bytes: Vec<u8>;
    match format.kind {
        ChunkKind::Int8 => quantise_int8(&context, values, chunk, &mut scales, &mut whole).unwrap(),
        ChunkKind::Qsgd => {
            let by = (ChunkFormat::LEVELS, draw);
            quantise_stochastic(&context, (values, chunk), by, &mut scales, &mut whole).unwrap();
        }
        ChunkKind::Int4 | ChunkKind::Sign => {}
    }
    match format.kind {
        ChunkKind::Int8 | ChunkKind::Qsgd => bytes = whole.iter().map(|q| q.cast_unsigned()).collect(),
        ChunkKind::Int4 => {
            bytes = vec![0; int4_len(len)];
            quantise_int4(&context, values, chunk, &mut scales, &mut bytes).unwrap();
        }
        ChunkKind::Sign => {
            bytes = vec![0; sign_len(len)];
            sign_encode(&context, values, chunk, &mut scales, &mut bytes).unwrap();
        }
    }
    scales.iter().flat_map(|scale| scale.to_le_bytes()).chain(bytes).collect()
}

/// Decodes a message on the CPU.
fn numbers(format: ChunkFormat, message: &[u8], out: &mut [f32], add: bool) {
    let (context, chunk) = (Context::new(1), format.chunk);
    let (scales, bytes) = message.split_at(format.scale_bytes(out.len()));
    let scales: Vec<f32> = scales.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let whole: Vec<i8> = bytes.iter().map(|byte| byte.cast_signed()).collect();
    match format.kind {
        ChunkKind::Int8 => dequantise_int8(&context, (&scales, &whole), chunk, out, add),
        ChunkKind::Qsgd => {
            dequantise_stochastic(&context, (&scales, &whole), (chunk, ChunkFormat::LEVELS), out, add)
        }
        ChunkKind::Int4 => dequantise_int4(&context, (&scales, bytes), chunk, out, add),
        ChunkKind::Sign => sign_decode(&context, (&scales, bytes), chunk, out, add),
    }
    .unwrap();
}

/// Returns values of several magnitudes, with zeros and a chunk of zeros, at an address that may be unaligned.
pub(crate) fn gradients(draw: &mut Draw, gpu: &Gpu, len: usize) -> (Vec<f32>, Slice) {
    let scale = draw.numbers(ElementType::F32, len);
    let mut values: Vec<f32> =
        draw.numbers(ElementType::F32, len).iter().zip(scale).map(|(a, b)| (a * b * b) as f32).collect();
    values.iter_mut().skip(16).step_by(7).for_each(|value| *value = -0.0);
    values.iter_mut().skip(256).take(256).for_each(|value| *value = 0.0);
    let offset = draw.below(3);
    let slice = gpu.upload(&[vec![0.0; offset], values.clone()].concat()).unwrap();
    (values, slice.view(offset..offset + len).unwrap())
}

/// Makes codecs wait for compute, or compute for codecs.
pub(crate) fn after(gpu: &Gpu, waiter: Stream, waited: Stream) {
    gpu.device().wait(waiter, waited).unwrap();
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    // All NaNs are equal.
    values.iter().map(|value| if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() }).collect()
}

#[test]
fn messages_have_the_bytes_of_the_cpu() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(51);
        for kind in KINDS {
            for (len, parts, chunk) in SHAPES {
                let format = ChunkFormat { kind, chunk };
                let what = format!("{kind:?} {len} in {parts}, chunks of {chunk}");
                let (values, on_gpu) = gradients(&mut draw, gpu, len);
                let stride = ChunkMessages::stride(format, len, parts);
                let sources = 3;
                let state = mixed(&[7, len as u64]);
                let all = gpu.upload(&vec![0xaa_u8; stride * parts * sources]).unwrap();
                // Messages of three sources for each part: the second of doubled values, the third not finite.
                let mut from: Vec<Vec<f32>> =
                    vec![values.clone(), values.iter().map(|v| 2.0 * v).collect(), values];
                from[2][len / 2] = if len % 2 == 0 { f32::INFINITY } else { f32::NAN };
                let mut given: Vec<Slice> = vec![on_gpu];
                given.extend(from[1..].iter().map(|values| gpu.upload(values).unwrap()));
                let mut expected = vec![0.0_f32; len];
                for (source, (values, on_gpu)) in from.iter().zip(&given).enumerate() {
                    let own = gpu.upload(&vec![0xaa_u8; stride * parts]).unwrap();
                    let messages = ChunkMessages { format, bytes: &own, stride };
                    after(gpu, Stream::Communication, Stream::Compute);
                    encode_chunks(gpu, (on_gpu, parts), (state, 11), messages).unwrap();
                    after(gpu, Stream::Compute, Stream::Communication);
                    let bytes = gpu.download::<u8>(&own).unwrap();
                    for at in 0..parts {
                        let range = part(len, parts, at);
                        let written =
                            message(format, &values[range.clone()], mixed_with(state, 11 + at as u64));
                        let (found, rest) = bytes[at * stride..(at + 1) * stride].split_at(written.len());
                        let scales = format.scale_bytes(range.len());
                        // The bits of NaN differ between CPUs.
                        let sound = |bytes: &[u8]| {
                            let scales = bytes[..scales].as_chunks::<4>().0.iter();
                            bits(&scales.map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>())
                        };
                        assert_eq!(sound(found), sound(&written), "{what}: scales of part {at}");
                        assert_eq!(found[scales..], written[scales..], "{what}: numbers of part {at}");
                        assert!(rest.iter().all(|byte| *byte == 0xaa), "{what}: written beyond part {at}");
                        numbers(format, &written, &mut expected[range], source > 0);
                        let place = (at * sources + source) * stride;
                        let to = all.view(place..place + stride).unwrap();
                        to.copy_from_on(&own.view(at * stride..(at + 1) * stride).unwrap(), Stream::Compute)
                            .unwrap();
                    }
                    let mut alone = vec![0.0; len];
                    (0..parts).for_each(|at| {
                        let range = part(len, parts, at);
                        let written =
                            message(format, &values[range.clone()], mixed_with(state, 11 + at as u64));
                        numbers(format, &written, &mut alone[range], false);
                    });
                    let decoded = gpu.upload(&vec![9.0_f32; len]).unwrap();
                    after(gpu, Stream::Communication, Stream::Compute);
                    decode_chunks(gpu, messages, (parts, 1), &decoded).unwrap();
                    after(gpu, Stream::Compute, Stream::Communication);
                    assert_eq!(bits(&gpu.download::<f32>(&decoded).unwrap()), bits(&alone), "{what}");
                }
                let (_, sum) = gradients(&mut draw, gpu, len);
                let messages = ChunkMessages { format, bytes: &all, stride };
                after(gpu, Stream::Communication, Stream::Compute);
                decode_chunks(gpu, messages, (parts, sources), &sum).unwrap();
                after(gpu, Stream::Compute, Stream::Communication);
                assert_eq!(bits(&gpu.download::<f32>(&sum).unwrap()), bits(&expected), "{what}: sum");
            }
        }
    });
}

#[test]
fn error_feedback_flags_values_that_are_not_finite() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(52);
        for (at, (len, parts, chunk)) in SHAPES.into_iter().enumerate() {
            let format = ChunkFormat { kind: KINDS[at % 4], chunk };
            let stride = ChunkMessages::stride(format, len, parts);
            for broken in [false, true] {
                let ((mut values, given), (residual, errors)) =
                    (gradients(&mut draw, gpu, len), gradients(&mut draw, gpu, len));
                if broken {
                    values[len / 3] = f32::NEG_INFINITY;
                    gpu.upload(&values)
                        .and_then(|values| given.copy_from_on(&values, Stream::Compute))
                        .unwrap();
                }
                let invalid = gpu.upload(&[0_u32]).unwrap();
                let own = gpu.upload(&vec![0_u8; stride * parts]).unwrap();
                let messages = ChunkMessages { format, bytes: &own, stride };
                after(gpu, Stream::Communication, Stream::Compute);
                add_residual(gpu, &given, &errors, &invalid).unwrap();
                poison(gpu, &given, &invalid).unwrap();
                encode_chunks(gpu, (&given, parts), (5, 0), messages).unwrap();
                chunk_errors(gpu, messages, (&given, parts), &invalid, &errors).unwrap();
                after(gpu, Stream::Compute, Stream::Communication);
                let found = gpu.download::<f32>(&errors).unwrap();
                values.iter_mut().zip(&residual).for_each(|(value, residual)| *value += residual);
                let sums = gpu.download::<f32>(&given).unwrap();
                if broken {
                    assert!(sums.iter().all(|value| value.is_nan()));
                    assert_eq!(bits(&found), bits(&residual), "what was residual stays");
                    assert_eq!(gpu.download::<u32>(&invalid).unwrap(), [1]);
                    continue;
                }
                assert_eq!(bits(&sums), bits(&values));
                let mut expected = vec![0.0; len];
                for at in 0..parts {
                    let range = part(len, parts, at);
                    let written = message(format, &values[range.clone()], mixed_with(5, at as u64));
                    numbers(format, &written, &mut expected[range], false);
                }
                expected.iter_mut().zip(&values).for_each(|(sent, value)| *sent = value - *sent);
                assert_eq!(bits(&found), bits(&expected), "{format:?} of {len} in {parts}");
            }
        }
    });
}

#[test]
fn messages_that_do_not_fit_are_refused() {
    on_gpu(|gpu| {
        let values = gpu.upload(&[1.0_f32; 100]).unwrap();
        let bytes = gpu.upload(&[0_u8; 400]).unwrap();
        let refused = |chunk: usize, stride: usize, used: Range<usize>, expected: &str| {
            let bytes = bytes.view(used).unwrap();
            let format = ChunkFormat { kind: ChunkKind::Int8, chunk };
            let messages = ChunkMessages { format, bytes: &bytes, stride };
            let error = encode_chunks(gpu, (&values, 2), (0, 0), messages).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        refused(12, 80, 0..160, "multiple of 8");
        refused(64, 80, 0..161, "it should have 160");
        refused(64, 48, 0..96, "messages need 64");
        refused(64, 64, 2..130, "do not begin at a multiple of 4");
    });
}
