//! Gradients of embeddings, sums of columns and rows, and gated functions against plain loops in f64.

use phalanx_kernels::{
    BinaryOp, Context, binary, embedding_backward, geglu_backward, geglu_forward, sum_columns, sum_rows,
};

use crate::harness::random;

fn assert_close(what: &str, found: &[f32], expected: &[f64]) {
    assert_near(what, found, expected, expected.iter().fold(1e-3, |max, v| max.max(v.abs())));
}

/// Asserts that values are within a few roundings of f32 of what is expected, at a `scale`.
fn assert_near(what: &str, found: &[f32], expected: &[f64], scale: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*found) - expected).abs() < 3e-6 * scale, "{what}[{index}]: {found} {expected}");
    }
}

#[test]
fn gradients_of_embeddings_are_added_in_the_order_of_positions() {
    for (rows, width, count) in [(1, 1, 1), (7, 3, 20), (900, 40, 2000), (3, 5, 0)] {
        let ids: Vec<u32> = (0..count).map(|at| (at * at + at / 3) as u32 % rows as u32).collect();
        let (dy, before) = (random::<f32>(11, count * width), random::<f32>(12, rows * width));
        for accumulate in [false, true] {
            let mut expected = if accumulate { before.clone() } else { vec![0.0; before.len()] };
            for (id, dy) in ids.iter().zip(dy.chunks(width)) {
                let to = &mut expected[*id as usize * width..][..width];
                to.iter_mut().zip(dy).for_each(|(to, from)| *to += *from);
            }
            for threads in [1, 2, 3] {
                let mut table = before.clone();
                let context = Context::new(threads);
                embedding_backward(&context, width, &ids, &dy, &mut table, accumulate).expect("fits");
                assert_eq!(table, expected, "{rows} rows, {threads} threads: not the same bits");
            }
        }
    }
    let error = embedding_backward(&Context::new(1), 2, &[0, 3], &[0.0_f32; 4], &mut [0.0; 6], true);
    assert!(error.expect_err("no row").to_string().contains("id 3 at position 1"));
}

#[test]
fn numbers_are_combined_with_numbers_and_with_those_of_planes() {
    for (len, plane) in [(1, 1), (7, 1), (33_000, 1), (6, 3), (40_000, 25), (128, 64)] {
        let (a, b) = (random(5, len), random(6, len / plane));
        for (op, of) in [
            (BinaryOp::Add, (|a, b| a + b) as fn(f32, f32) -> f32),
            (BinaryOp::Sub, |a, b| a - b),
            (BinaryOp::Mul, |a, b| a * b),
        ] {
            for threads in [1, 3] {
                let mut y = vec![0.0; len];
                binary(&Context::new(threads), op, &a, &b, &mut y).expect("fits");
                assert!(
                    y.iter().enumerate().all(|(i, y)| *y == of(a[i], b[i / plane])),
                    "{op:?} {len} {plane}"
                );
            }
        }
    }
    assert!(binary(&Context::new(1), BinaryOp::Add, &[0.0; 7], &[0.0; 2], &mut [0.0; 7]).is_err());
}

#[test]
fn columns_and_rows_add_up_on_any_number_of_threads() {
    for (rows, cols) in [(1, 1), (3, 5), (700, 33), (65, 128)] {
        let x = random(7, rows * cols);
        let column = |c: usize| (0..rows).map(|r| f64::from(x[r * cols + c])).sum();
        let row = |r: usize| (0..cols).map(|c| f64::from(x[r * cols + c])).sum();
        let (columns, all_rows): (Vec<f64>, Vec<f64>) =
            ((0..cols).map(column).collect(), (0..rows).map(row).collect());
        let mut before: Option<(Vec<f32>, Vec<f32>)> = None;
        for threads in [1, 2, 3] {
            let context = Context::new(threads);
            let (mut of_columns, mut of_rows) = (vec![9.0; cols], vec![9.0; rows]);
            sum_columns(&context, [rows, cols], &x, &mut of_columns).expect("fits");
            sum_rows(&context, [rows, cols], &x, &mut of_rows).expect("fits");
            assert_close("columns", &of_columns, &columns);
            assert_close("rows", &of_rows, &all_rows);
            let now = (of_columns, of_rows);
            assert!(before.is_none_or(|before| before == now), "threads change no bit");
            before = Some(now);
        }
    }
}

#[test]
fn gates_let_through_what_they_should() {
    let phi = |x: f64| 0.5 * (1.0 + erf(x / std::f64::consts::SQRT_2));
    let gelu = |x: f64| x * phi(x);
    let slope = |x: f64| phi(x) + x * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    for (rows, width) in [(1, 1), (3, 7), (900, 24)] {
        let (x, dy) = (random::<f32>(8, rows * 2 * width), random(9, rows * width));
        let x: Vec<f32> = x.into_iter().map(|v| 3.0 * v).collect();
        let (mut y, mut dx) = (vec![0.0; rows * width], vec![0.0; x.len()]);
        let (mut expected_y, mut expected_dx) = (vec![0.0; y.len()], vec![0.0; x.len()]);
        for row in 0..rows {
            for col in 0..width {
                let at = row * 2 * width + col;
                let (value, gate, dy) =
                    (f64::from(x[at]), f64::from(x[at + width]), f64::from(dy[row * width + col]));
                expected_y[row * width + col] = value * gelu(gate);
                expected_dx[at] = dy * gelu(gate);
                expected_dx[at + width] = dy * value * slope(gate);
            }
        }
        for threads in [1, 3] {
            let context = Context::new(threads);
            geglu_forward(&context, width, &x, &mut y).expect("fits");
            geglu_backward(&context, width, &x, &dy, &mut dx).expect("fits");
            // The gate adds 1 to an error function that nears -1, so its rounding is that of the factors.
            assert_near("y", &y, &expected_y, 1.0);
            assert_near("dx", &dx, &expected_dx, 1.0);
        }
    }
    assert!(geglu_forward(&Context::new(1), 2, &[0.0_f32; 6], &mut [0.0; 3]).is_err());
}

/// The error function by its series, exact to f64's rounding for the numbers here.
fn erf(x: f64) -> f64 {
    let (mut power, mut sum) = (x, x);
    for n in 1..60 {
        power *= -x * x / f64::from(n);
        sum += power / f64::from(2 * n + 1);
    }
    std::f64::consts::FRAC_2_SQRT_PI * sum
}
