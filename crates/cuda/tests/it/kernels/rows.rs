//! Rows: softmax, layer norm, L2 norm, cross-entropy, embeddings.

use phalanx_cuda::kernels::{
    CrossEntropyColumns, CrossEntropyTargets, NormInputs, cross_entropy, cross_entropy_parts,
    cross_entropy_slopes, embedding, embedding_backward, l2_normalise, l2_normalise_backward, layer_norm,
    layer_norm_backward, progression, softmax, softmax_backward,
};
use phalanx_cuda::{ElementType, Gpu};
use phalanx_kernels::{
    CrossEntropyColumns as Columns, CrossEntropyOptions, CrossEntropyRows, NormBackward, NormGrads,
    NormInput, NormOutput, ROW_PARTS, cross_entropy_parts as cpu_parts, cross_entropy_rows,
    cross_entropy_slopes as cpu_slopes, layer_norm_backward as cpu_layer_backward, layer_norm_forward,
    softmax_rows_backward, softmax_rows_forward,
};

use super::inputs::{
    Draw, FLOATS, PAIRS, assert_close, assert_of, assert_within, cpu, download, on_gpu, upload,
};

/// Rows and their widths: for warps and blocks, of whole packs and not.
const ROWS: [[usize; 2]; 11] =
    [[1, 1], [3, 2], [5, 7], [9, 8], [2, 32], [17, 33], [1, 100], [3, 256], [2, 1000], [3, 1024], [2, 2051]];

#[test]
fn softmax_and_its_derivative() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(21);
        for [rows, width] in ROWS {
            for (from, to) in [
                ("f32", "f32"),
                ("f64", "f64"),
                ("f32", "bf16"),
                ("f32", "f16"),
                ("bf16", "bf16"),
                ("bf16", "f32"),
                ("f16", "f16"),
                ("f16", "f32"),
            ] {
                let named = |name: &str| FLOATS.into_iter().find(|dtype| dtype.suffix() == name).unwrap();
                let (from, to) = (named(from), named(to));
                let (mut x, _) = draw.slice(gpu, from, rows * width);
                x.iter_mut().for_each(|x| *x *= 16.0);
                if width > 2 {
                    x.iter_mut().skip(1).step_by(width).for_each(|x| *x = f64::NEG_INFINITY);
                }
                let mut y = vec![0.0; x.len()];
                softmax_rows_forward(&cpu(), rows, width, &x, &mut y).unwrap();
                let y_gpu = softmax(gpu, &upload(gpu, from, &x), width, to).unwrap();
                assert_close(gpu, &format!("softmax of {rows}x{width} {from}"), &y_gpu, &y);
            }
            for (dtype, grad) in PAIRS {
                let ((y, y_gpu), (dy, dy_gpu)) =
                    (draw.slice(gpu, dtype, rows * width), draw.slice(gpu, grad, rows * width));
                let mut dx = vec![0.0; y.len()];
                softmax_rows_backward(&cpu(), rows, width, &y, &dy, &mut dx).unwrap();
                let dx_gpu = softmax_backward(gpu, &y_gpu, &dy_gpu, width).unwrap();
                assert_close(gpu, &format!("softmax backward of {rows}x{width}"), &dx_gpu, &dx);
            }
        }
        let x = gpu.zeros(ElementType::F32, 6).unwrap();
        assert!(softmax(gpu, &x, 4, ElementType::F32).is_err());
        assert!(softmax(gpu, &x, 3, ElementType::F64).is_err());
    });
}

#[test]
fn layer_norm_and_its_gradients() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(22);
        for [rows, width] in ROWS.into_iter().skip(1).chain([[700, 5], [0, 4]]) {
            for (dtype, grad) in PAIRS {
                let what = format!("{rows}x{width} {dtype} {grad}");
                let (wide, len) = (dtype.wide(), rows * width);
                let ((x, x_gpu), (dy, dy_gpu)) = (draw.slice(gpu, dtype, len), draw.slice(gpu, grad, len));
                let ((gamma, gamma_gpu), (beta, beta_gpu)) =
                    (draw.slice(gpu, wide, width), draw.slice(gpu, wide, width));
                let (mut y, mut mean, mut inv_std) = (vec![0.0; len], vec![0.0; rows], vec![0.0; rows]);
                let eps = 1e-3;
                let input = NormInput { x: &x, gamma: &gamma, beta: &beta, eps };
                let normed = NormOutput { y: &mut y, mean: &mut mean, inv_std: &mut inv_std };
                layer_norm_forward(&cpu(), [rows, width], input, normed).unwrap();
                let [y_gpu, mean_gpu, inv_std_gpu] =
                    layer_norm(gpu, &x_gpu, &gamma_gpu, &beta_gpu, width, eps).unwrap();
                assert_close(gpu, &what, &y_gpu, &y);
                assert_close(gpu, &what, &mean_gpu, &mean);
                assert_close(gpu, &what, &inv_std_gpu, &inv_std);
                let (mut dx, mut dgamma, mut dbeta) = (vec![0.0; len], vec![0.0; width], vec![0.0; width]);
                let kept = NormBackward { x: &x, dy: &dy, gamma: &gamma, mean: &mean, inv_std: &inv_std };
                let grads = NormGrads { dx: &mut dx, dgamma: &mut dgamma, dbeta: &mut dbeta };
                cpu_layer_backward(&cpu(), [rows, width], kept, None, grads).unwrap();
                let from = NormInputs {
                    x: &x_gpu,
                    dy: &dy_gpu,
                    gamma: &gamma_gpu,
                    mean: &mean_gpu,
                    inv_std: &inv_std_gpu,
                };
                let (before, before_gpu) = draw.slice(gpu, grad, len);
                let found = layer_norm_backward(gpu, from, None, width).unwrap();
                let with = layer_norm_backward(gpu, from, Some(&before_gpu), width).unwrap();
                let both: Vec<f64> = dx.iter().zip(&before).map(|(dx, before)| dx + before).collect();
                let tolerance = if wide == ElementType::F64 { 1e-10 } else { 1e-5 };
                let largest = |values: &[f64]| values.iter().fold(0.0_f64, |most, v| most.max(v.abs()));
                let terms = largest(&dy) * largest(&gamma) * largest(&inv_std);
                assert_of(gpu, &what, &found[0], &dx, tolerance, terms);
                assert_of(gpu, &what, &with[0], &both, tolerance, terms + largest(&before));
                assert_within(gpu, &what, &found[1], &dgamma, tolerance);
                assert_within(gpu, &what, &found[2], &dbeta, tolerance);
            }
        }
    });
}

#[test]
fn l2_normalisation_and_its_gradient() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(23);
        for [rows, width] in ROWS {
            for (dtype, grad) in PAIRS {
                let (mut x, _) = draw.slice(gpu, dtype, rows * width);
                x[..width].fill(0.0);
                let [y_gpu, inverses] = l2_normalise(gpu, &upload(gpu, dtype, &x), width).unwrap();
                let lengths: Vec<f64> =
                    x.chunks(width).map(|row| row.iter().map(|x| x * x).sum::<f64>().sqrt()).collect();
                let factors: Vec<f64> =
                    lengths.iter().map(|length| if *length > 0.0 { 1.0 / length } else { 0.0 }).collect();
                let y: Vec<f64> = x.iter().enumerate().map(|(at, x)| x * factors[at / width]).collect();
                assert_close(gpu, "length one", &y_gpu, &y);
                assert_close(gpu, "inverses", &inverses, &factors);
                let seen = download(gpu, &y_gpu);
                let (dy, dy_gpu) = draw.slice(gpu, grad, x.len());
                let along: Vec<f64> = seen
                    .chunks(width)
                    .zip(dy.chunks(width))
                    .map(|(y, dy)| y.iter().zip(dy).map(|(y, dy)| y * dy).sum())
                    .collect();
                let dx: Vec<f64> = (0..x.len())
                    .map(|at| (dy[at] - seen[at] * along[at / width]) * factors[at / width])
                    .collect();
                let dx_gpu = l2_normalise_backward(gpu, &y_gpu, &dy_gpu, &inverses, width).unwrap();
                assert_close(gpu, "length one, backward", &dx_gpu, &dx);
            }
        }
    });
}

#[test]
fn cross_entropy_and_its_gradient() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(24);
        for [rows, width] in ROWS {
            for dtype in [ElementType::F32, ElementType::F64] {
                for (smoothing, z_loss, soft_cap) in [(0.0, 0.0, None), (0.1, 0.01, Some(5.0))] {
                    let classes = Some(width - width / 3);
                    let options = CrossEntropyOptions { smoothing, z_loss, soft_cap, classes };
                    let what = format!("{rows}x{width} {dtype} {options:?}");
                    let (mut x, _) = draw.slice(gpu, dtype, rows * width);
                    x.iter_mut().for_each(|x| *x *= 8.0);
                    let labels: Vec<u32> = (0..rows).map(|_| draw.below(width - width / 3) as u32).collect();
                    // The second row has no weight, and no label either.
                    let weights: Vec<f32> =
                        (0..rows).map(|row| if row == 1 { 0.0 } else { 0.5 + row as f32 }).collect();
                    let weights = Some(weights.as_slice()).filter(|_| rows > 1);
                    let of = CrossEntropyRows { labels: &labels, weights, options, factor: 0.25 };
                    let (mut losses, mut slopes) = (vec![0.0; rows], x.clone());
                    cross_entropy_rows(&cpu(), width, of, &mut slopes, &mut losses).unwrap();
                    let logits = upload(gpu, dtype, &x);
                    let labels = gpu.upload(&labels).unwrap();
                    let weights = weights.map(|weights| gpu.upload(weights).unwrap());
                    let weights = weights.as_ref();
                    let of = CrossEntropyTargets { labels: &labels, weights, options, factor: 0.25 };
                    let loss = cross_entropy(gpu, &logits, width, of).unwrap();
                    assert_eq!(loss.dtype(), dtype);
                    // With one class the loss is a rounding error.
                    let total = losses.iter().sum::<f64>();
                    let found = download(gpu, &loss)[0];
                    assert!((found - total).abs() <= 1e-5 * total.abs().max(1.0), "{what}: {found}, {total}");
                    let within = if dtype == ElementType::F64 { 1e-12 } else { 1e-4 };
                    assert_within(gpu, &what, &logits, &slopes, within);
                }
            }
        }
        let labels = &gpu.upload(&[3_u32]).unwrap();
        let options = CrossEntropyOptions::default();
        let of = CrossEntropyTargets { labels, weights: None, options, factor: 1.0 };
        let loss = cross_entropy(gpu, &gpu.zeros(ElementType::F32, 3).unwrap(), 3, of).unwrap();
        assert!(download(gpu, &loss)[0].is_nan(), "a label that is none");
    });
}

#[test]
fn cross_entropy_of_columns_on_several_ranks() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(25);
        for [rows, width] in ROWS {
            for dtype in [ElementType::F32, ElementType::F64] {
                for (smoothing, z_loss, soft_cap) in [(0.0, 0.0, None), (0.1, 0.01, Some(5.0))] {
                    // These columns are the second of three parts; the last classes are here.
                    let (first, columns) = (width / 2 + 1, 3 * width);
                    let classes = first + width.div_ceil(2);
                    let options = CrossEntropyOptions { smoothing, z_loss, soft_cap, classes: Some(classes) };
                    let what = format!("{rows}x{width} {dtype} {options:?}");
                    let (mut x, _) = draw.slice(gpu, dtype, rows * width);
                    x.iter_mut().for_each(|x| *x *= 8.0);
                    let labels: Vec<u32> = (0..rows).map(|_| draw.below(classes) as u32).collect();
                    let weights: Vec<f32> = (0..rows).map(|row| row as f32).collect();
                    let of =
                        CrossEntropyRows { labels: &labels, weights: Some(&weights), options, factor: 0.25 };
                    let of = Columns { rows: of, first, columns };
                    let (mut parts, mut slopes) = (vec![0.0; ROW_PARTS * rows], x.clone());
                    cpu_parts(&cpu(), width, of, &x, &mut parts).unwrap();
                    let log_sums: Vec<f64> =
                        parts.chunks_exact(ROW_PARTS).map(|part| part[0] + part[1].ln() + 1.5).collect();
                    cpu_slopes(&cpu(), width, of, &log_sums, &mut slopes).unwrap();
                    let logits = upload(gpu, dtype, &x);
                    let [labels, weights] = [gpu.upload(&labels).unwrap(), gpu.upload(&weights).unwrap()];
                    let of = CrossEntropyTargets {
                        labels: &labels,
                        weights: Some(&weights),
                        options,
                        factor: 0.25,
                    };
                    let of = CrossEntropyColumns { rows: of, first, columns };
                    let found = cross_entropy_parts(gpu, &logits, width, of).unwrap();
                    let within = if dtype == ElementType::F64 { 1e-12 } else { 1e-4 };
                    assert_within(gpu, &what, &found, &parts, within);
                    let log_sums = gpu.upload(&log_sums).unwrap();
                    cross_entropy_slopes(gpu, &logits, width, of, &log_sums).unwrap();
                    assert_within(gpu, &what, &logits, &slopes, within);
                }
            }
        }
    });
}

fn looked_up(gpu: &Gpu, draw: &mut Draw, rows: usize, width: usize, ids: &[u32]) {
    let ids_gpu = gpu.upload(ids).unwrap();
    for (from, to) in [
        (ElementType::F32, ElementType::F32),
        (ElementType::F64, ElementType::F64),
        (ElementType::F32, ElementType::Bf16),
        (ElementType::F32, ElementType::F16),
        (ElementType::Bf16, ElementType::Bf16),
        (ElementType::F16, ElementType::F32),
    ] {
        let (table, table_gpu) = draw.slice(gpu, from, rows * width);
        let expected: Vec<f64> =
            ids.iter().flat_map(|id| table[*id as usize * width..][..width].to_vec()).collect();
        let y = embedding(gpu, &table_gpu, &ids_gpu, width, to).unwrap();
        assert_close(gpu, &format!("{} of {rows} rows of {width}", ids.len()), &y, &expected);
    }
    for dtype in FLOATS {
        let (dy, dy_gpu) = draw.slice(gpu, dtype, ids.len() * width);
        let mut expected = vec![0.0; rows * width];
        for (id, row) in ids.iter().zip(dy.chunks(width)) {
            expected[*id as usize * width..][..width].iter_mut().zip(row).for_each(|(to, from)| *to += from);
        }
        let table = embedding_backward(gpu, &dy_gpu, &ids_gpu, rows, width).unwrap();
        assert_eq!(table.dtype(), dtype.wide());
        assert_close(gpu, &format!("{} into {rows} rows of {width}", ids.len()), &table, &expected);
    }
}

#[test]
fn embeddings() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(25);
        for (rows, width, count) in
            [(1, 1, 1), (10, 8, 3), (7, 33, 300), (50, 300, 40), (3, 4, 1030), (20, 16, 0)]
        {
            let ids: Vec<u32> = (0..count).map(|_| draw.below(rows) as u32).collect();
            looked_up(gpu, &mut draw, rows, width, &ids);
        }
        let table = gpu.zeros(ElementType::F32, 8).unwrap();
        let ids = gpu.upload(&[1_u32, 2]).unwrap();
        let y = download(gpu, &embedding(gpu, &table, &ids, 4, ElementType::F32).unwrap());
        assert!(y[..4].iter().all(|v| *v == 0.0) && y[4..].iter().all(|v| v.is_nan()), "{y:?}");
        assert_eq!(gpu.download::<u32>(&progression(gpu, 3, 5, 4).unwrap()).unwrap(), [3, 8, 13, 18]);
    });
}
