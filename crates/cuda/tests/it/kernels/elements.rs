//! Elementwise kernels: memory, functions, broadcasts, sums, changes of shape.

use phalanx_cuda::kernels::{
    accumulate, affine, binary, broadcast_as, cat, convert, convert_to, count_up, fill, geglu,
    geglu_backward, mul_backward, narrow, neg, pad_with_zeros, permute, sum_all, sum_over, sum_to_shape,
    unary, unary_backward,
};
use phalanx_cuda::{ElementType, Gpu};
use phalanx_kernels::{
    BinaryOp, UnaryOp, geglu_backward as cpu_geglu_backward, geglu_forward,
    unary_backward as cpu_unary_backward, unary_forward,
};

use super::inputs::{
    Draw, FLOATS, LENGTHS, PAIRS, assert_close, assert_within, cpu, download, on_gpu, rounded, upload,
};

const FUNCTIONS: [UnaryOp; 12] = [
    UnaryOp::Relu,
    UnaryOp::ReluSquared,
    UnaryOp::Relu6,
    UnaryOp::LeakyRelu(0.2),
    UnaryOp::Sigmoid,
    UnaryOp::Tanh,
    UnaryOp::Silu,
    UnaryOp::Gelu,
    UnaryOp::GeluTanh,
    UnaryOp::QuickGelu,
    UnaryOp::Exp,
    UnaryOp::Clamp { low: -0.4, high: 0.7 },
];

#[test]
fn memory_is_filled_converted_and_added_to() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(1);
        let all = [FLOATS.as_slice(), &[ElementType::U8, ElementType::U32, ElementType::I64]].concat();
        for dtype in all.iter().copied() {
            for len in LENGTHS {
                let whole = gpu.zeros(dtype, len + 2).unwrap();
                fill(gpu, &whole.view(1..len + 1).unwrap(), 3.0).unwrap();
                let expected = [vec![0.0], vec![3.0; len], vec![0.0]].concat();
                assert_eq!(download(gpu, &whole), expected, "{dtype} {len}");
            }
        }
        for from in all.iter().copied() {
            for to in all.iter().copied() {
                let whole = |dtype| !FLOATS.contains(&dtype);
                if whole(to) && from.is_half() || to == ElementType::U8 && whole(from) && from != to {
                    assert!(convert(gpu, &gpu.zeros(from, 4).unwrap(), to).is_err(), "{from} to {to}");
                    continue;
                }
                for len in [1, 8, 1003] {
                    let values: Vec<f64> = if whole(from) || whole(to) {
                        (0..len).map(|i| rounded(from, (i % 200) as f64)).collect()
                    } else {
                        draw.numbers(from, len)
                    };
                    let result = convert(gpu, &upload(gpu, from, &values), to).unwrap();
                    let expected: Vec<f64> = values.iter().map(|value| rounded(to, *value)).collect();
                    assert_eq!(download(gpu, &result), expected, "{from} to {to}");
                }
            }
        }
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -3.7, 255.9, 1e30, -1e30];
        let odd = upload(gpu, ElementType::F32, &odd);
        let bytes = convert(gpu, &odd, ElementType::U8).unwrap();
        assert_eq!(gpu.download::<u8>(&bytes).unwrap(), [0, 255, 0, 0, 255, 255, 0]);
        let wide = convert(gpu, &odd, ElementType::I64).unwrap();
        assert_eq!(
            gpu.download::<i64>(&wide).unwrap(),
            [0, i64::MAX, i64::MIN, -3, 255, 1e30_f32 as i64, i64::MIN]
        );
        let halves = convert(gpu, &odd, ElementType::F16).unwrap();
        let halves = download(gpu, &halves);
        assert!(halves[0].is_nan() && halves[1] == f64::INFINITY && halves[5] == f64::INFINITY);
        for (a, b) in [
            ("f32", "f32"),
            ("f32", "bf16"),
            ("bf16", "f32"),
            ("bf16", "bf16"),
            ("f16", "f32"),
            ("f64", "f64"),
        ] {
            let named = |name: &str| FLOATS.into_iter().find(|dtype| dtype.suffix() == name).unwrap();
            let (a, b) = (named(a), named(b));
            for len in LENGTHS {
                let ((x, to), (y, addend)) = (draw.slice(gpu, a, len), draw.slice(gpu, b, len));
                accumulate(gpu, &to, &addend).unwrap();
                let expected: Vec<f64> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
                assert_close(gpu, "accumulate", &to, &expected);
            }
        }
        let counter = gpu.upload(&[41_i64]).unwrap();
        count_up(gpu, &counter).unwrap();
        assert_eq!(gpu.download::<i64>(&counter).unwrap(), [42]);
        assert!(convert_to(gpu, &counter, &gpu.zeros(ElementType::F32, 2).unwrap()).is_err());
    });
}

#[test]
fn numbers_of_16_bits_are_rounded_as_on_the_cpu() {
    on_gpu(|gpu| {
        // All 16-bit numbers, their midpoints, and the neighbours of these.
        for dtype in [ElementType::Bf16, ElementType::F16] {
            let every: Vec<f64> = (0..=u16::MAX)
                .map(|bits| match dtype {
                    ElementType::Bf16 => f64::from(half::bf16::from_bits(bits)),
                    _ => f64::from(half::f16::from_bits(bits)),
                })
                .filter(|value| value.is_finite() && value.abs() < 3e38)
                .collect();
            let mut values: Vec<f32> = Vec::new();
            for pair in every.windows(2) {
                let middle = ((pair[0] + pair[1]) / 2.0) as f32;
                values.extend([pair[0] as f32, middle, middle.next_up(), middle.next_down()]);
            }
            let expected: Vec<f64> = values.iter().map(|value| rounded(dtype, f64::from(*value))).collect();
            let result = convert(gpu, &gpu.upload(&values).unwrap(), dtype).unwrap();
            let found = download(gpu, &result);
            for ((value, found), expected) in values.iter().zip(found).zip(expected) {
                assert!(found == expected, "{dtype} of {value:e}: {found:e}, expected {expected:e}");
            }
        }
    });
}

#[test]
fn functions_and_their_derivatives() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(2);
        for op in FUNCTIONS {
            for (dtype, grad) in PAIRS {
                for len in [1, 5, 256, 1027] {
                    let (x, x_gpu) = draw.slice(gpu, dtype, len);
                    let mut y = vec![0.0; len];
                    unary_forward(&cpu(), op, &x, &mut y).unwrap();
                    let y_gpu = unary(gpu, op, &x_gpu).unwrap();
                    let what = format!("{op:?} {dtype} {grad}");
                    assert_close(gpu, &what, &y_gpu, &y);
                    let (dy, dy_gpu) = draw.slice(gpu, grad, len);
                    let mut dx = vec![0.0; len];
                    // From the same rounded output, so that both see the same side of a kink.
                    let seen = download(gpu, &y_gpu);
                    cpu_unary_backward(&cpu(), op, &x, &seen, &dy, &mut dx).unwrap();
                    let dx_gpu = unary_backward(gpu, op, &x_gpu, &y_gpu, &dy_gpu).unwrap();
                    assert_eq!(dx_gpu.dtype(), grad);
                    assert_close(gpu, &what, &dx_gpu, &dx);
                }
            }
        }
        let (x, x_gpu) = draw.slice(gpu, ElementType::F32, 1001);
        let scaled: Vec<f64> = x.iter().map(|x| 3.0 * x - 0.5).collect();
        assert_close(gpu, "affine", &affine(gpu, &x_gpu, 3.0, -0.5).unwrap(), &scaled);
        let negated: Vec<f64> = x.iter().map(|x| -x).collect();
        assert_eq!(download(gpu, &neg(gpu, &x_gpu).unwrap()), negated);
        assert!(unary(gpu, UnaryOp::Relu, &gpu.zeros(ElementType::U8, 4).unwrap()).is_err());
        let wrong = gpu.zeros(ElementType::F32, 4).unwrap();
        assert!(unary_backward(gpu, UnaryOp::Relu, &x_gpu, &x_gpu, &wrong).is_err());
    });
}

#[test]
fn gated_units_and_their_derivatives() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(3);
        for (dtype, grad) in PAIRS {
            for (rows, width) in [(1, 1), (3, 7), (33, 64)] {
                let (x, x_gpu) = draw.slice(gpu, dtype, rows * 2 * width);
                let (dy, dy_gpu) = draw.slice(gpu, grad, rows * width);
                let (mut y, mut dx) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
                geglu_forward(&cpu(), width, &x, &mut y).unwrap();
                cpu_geglu_backward(&cpu(), width, &x, &dy, &mut dx).unwrap();
                let what = format!("geglu {dtype} {grad} {rows}x{width}");
                assert_close(gpu, &what, &geglu(gpu, &x_gpu, width).unwrap(), &y);
                let dx_gpu = geglu_backward(gpu, &x_gpu, &dy_gpu, width).unwrap();
                assert_eq!(dx_gpu.dtype(), grad);
                assert_close(gpu, &what, &dx_gpu, &dx);
            }
        }
        assert!(geglu(gpu, &gpu.zeros(ElementType::F32, 6).unwrap(), 2).is_err());
    });
}

#[test]
fn extreme_arguments() {
    on_gpu(|gpu| {
        let values =
            [0.0_f32, -0.0, 100.0, -100.0, 1e30, -1e30, f32::INFINITY, f32::NEG_INFINITY, 1e-30, -1e-30];
        let x = gpu.upload(&values).unwrap();
        for op in FUNCTIONS {
            let doubles: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
            let mut expected = vec![0.0_f32; values.len()];
            unary_forward(&cpu(), op, &values, &mut expected).unwrap();
            let found = download(gpu, &unary(gpu, op, &x).unwrap());
            for ((x, found), expected) in doubles.iter().zip(found).zip(expected) {
                let expected = f64::from(expected);
                let close = (found - expected).abs() <= 1e-5 * expected.abs().max(1.0);
                assert!(
                    close || found == expected || found.is_nan() && expected.is_nan(),
                    "{op:?} of {x:e}: {found:e}, expected {expected:e}"
                );
            }
        }
    });
}

/// Returns an element of a broadcast array.
fn broadcast_at(values: &[f64], dims: &[usize], to: &[usize], index: &[usize]) -> f64 {
    let extra = to.len() - dims.len();
    let at = dims
        .iter()
        .enumerate()
        .fold(0, |at, (d, size)| at * size + if *size == 1 { 0 } else { index[extra + d] });
    values[at]
}

fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
    let count: usize = dims.iter().product();
    (0..count)
        .map(|mut at| {
            let mut index = vec![0; dims.len()];
            for d in (0..dims.len()).rev() {
                index[d] = at % dims[d];
                at /= dims[d];
            }
            index
        })
        .collect()
}

fn joined(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let size = |of: &[usize], at: usize| (at + of.len()).checked_sub(rank).map_or(1, |at| of[at]);
    (0..rank).map(|at| if size(a, at) == 1 { size(b, at) } else { size(a, at) }).collect()
}

#[test]
fn broadcasts_and_their_gradients() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(3);
        let mut shapes: Vec<(Vec<usize>, Vec<usize>)> = vec![
            (vec![5, 1000], vec![5, 1000]),
            (vec![3, 8, 16], vec![16]),
            (vec![3, 8, 5], vec![5]),
            (vec![2, 6, 7, 4], vec![1, 6, 1, 1]),
            (vec![2, 6, 4, 4], vec![2, 6, 1, 1]),
            (vec![2, 6, 4, 4], vec![2, 1, 4, 4]),
            (vec![4, 1], vec![1, 8]),
            (vec![2, 1, 3, 1, 2], vec![1, 5, 1, 7, 1]),
            (vec![1000], vec![]),
            (vec![], vec![]),
            (vec![1, 1], vec![3, 1027]),
            (vec![0, 4], vec![1, 4]),
        ];
        for _ in 0..12 {
            let dims: Vec<usize> = (0..1 + draw.below(4)).map(|_| 1 + draw.below(9)).collect();
            let mut cut = |dims: &[usize]| -> Vec<usize> {
                dims.iter().map(|size| if draw.below(2) == 0 { 1 } else { *size }).collect()
            };
            shapes.push((cut(&dims), cut(&dims)));
        }
        let types = [
            (ElementType::F32, ElementType::F32, ElementType::F32),
            (ElementType::F64, ElementType::F64, ElementType::F64),
            (ElementType::Bf16, ElementType::Bf16, ElementType::Bf16),
            (ElementType::F32, ElementType::Bf16, ElementType::Bf16),
            (ElementType::Bf16, ElementType::F32, ElementType::F32),
            (ElementType::F16, ElementType::F32, ElementType::F16),
        ];
        for (a_dims, b_dims) in &shapes {
            let dims = joined(a_dims, b_dims);
            for (ta, tb, to) in types {
                let (a, a_gpu) = draw.slice(gpu, ta, a_dims.iter().product());
                let (b, b_gpu) = draw.slice(gpu, tb, b_dims.iter().product());
                for (op, f) in [
                    (BinaryOp::Add, (|a, b| a + b) as fn(f64, f64) -> f64),
                    (BinaryOp::Sub, |a, b| a - b),
                    (BinaryOp::Mul, |a, b| a * b),
                ] {
                    let y = binary(gpu, op, (&a_gpu, a_dims), (&b_gpu, b_dims), to).unwrap();
                    let at = |index: &Vec<usize>| {
                        f(broadcast_at(&a, a_dims, &dims, index), broadcast_at(&b, b_dims, &dims, index))
                    };
                    let expected: Vec<f64> = indices(&dims).iter().map(at).collect();
                    assert_close(gpu, &format!("{op:?} {a_dims:?} {b_dims:?}"), &y, &expected);
                }
                if dims.contains(&0) {
                    continue;
                }
                let (grad, grad_gpu) = draw.slice(gpu, to.wide(), dims.iter().product());
                let da = mul_backward(gpu, (&grad_gpu, &dims), (&b_gpu, b_dims), a_dims).unwrap();
                let mut expected = vec![0.0; a.len()];
                for (index, grad) in indices(&dims).iter().zip(&grad) {
                    let extra = dims.len() - a_dims.len();
                    let at = a_dims
                        .iter()
                        .enumerate()
                        .fold(0, |at, (d, size)| at * size + if *size == 1 { 0 } else { index[extra + d] });
                    expected[at] += grad * broadcast_at(&b, b_dims, &dims, index);
                }
                assert_close(gpu, &format!("gradient of {a_dims:?} by {b_dims:?}"), &da, &expected);
            }
            if !dims.contains(&0) {
                let (x, x_gpu) = draw.slice(gpu, ElementType::Bf16, a_dims.iter().product());
                let wide = broadcast_as(gpu, &x_gpu, a_dims, &dims).unwrap();
                let expected: Vec<f64> =
                    indices(&dims).iter().map(|index| broadcast_at(&x, a_dims, &dims, index)).collect();
                assert_eq!(download(gpu, &wide), expected, "{a_dims:?} as {dims:?}");
            }
        }
        let x = gpu.zeros(ElementType::F32, 6).unwrap();
        assert!(binary(gpu, BinaryOp::Add, (&x, &[2, 3]), (&x, &[3, 2]), ElementType::F32).is_err());
        assert!(binary(gpu, BinaryOp::Add, (&x, &[6]), (&x, &[6]), ElementType::Bf16).is_err());
        assert!(sum_to_shape(gpu, &x, &[2, 3], &[2, 2]).is_err());
    });
}

#[test]
fn sums() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(4);
        for dtype in FLOATS {
            for len in LENGTHS.into_iter().chain([300_001]) {
                let (x, x_gpu) = draw.slice(gpu, dtype, len);
                let magnitude: f64 = x.iter().map(|x| x.abs()).sum();
                let total = download(gpu, &sum_all(gpu, &x_gpu, 0.5).unwrap())[0];
                let expected = 0.5 * x.iter().sum::<f64>();
                assert!((total - expected).abs() <= 1e-6 * magnitude, "{dtype} {len}: {total}, {expected}");
            }
            for [outer, length, inner] in [
                [1, 1, 1],
                [3, 5, 7],
                [2, 1000, 33],
                [1, 5000, 3],
                [7, 2049, 1],
                [300, 32, 1],
                [2, 3, 500],
                [70, 2, 2],
            ] {
                let (x, x_gpu) = draw.slice(gpu, dtype, outer * length * inner);
                let mut expected = vec![0.0; outer * inner];
                for (at, x) in x.iter().enumerate() {
                    expected[at / (length * inner) * inner + at % inner] += x;
                }
                for to in [dtype, dtype.wide()] {
                    let sums = sum_over(gpu, &x_gpu, [outer, length, inner], to).unwrap();
                    assert_close(gpu, &format!("sum of {outer}, {length}, {inner}"), &sums, &expected);
                }
            }
        }
        assert_eq!(
            download(
                gpu,
                &sum_over(gpu, &gpu.zeros(ElementType::F32, 0).unwrap(), [2, 0, 2], ElementType::F32)
                    .unwrap()
            ),
            [0.0; 4]
        );
    });
}

fn moved(gpu: &Gpu, dtype: ElementType) {
    let mut draw = Draw::new(5);
    for _ in 0..25 {
        let dims: Vec<usize> = (0..1 + draw.below(5)).map(|_| 1 + draw.below(7)).collect();
        let count: usize = dims.iter().product();
        let values: Vec<f64> = (0..count).map(|i| (i % 251) as f64).collect();
        let offset = draw.below(2);
        let whole = upload(gpu, dtype, &[vec![0.0; offset], values.clone()].concat());
        let x = whole.view(offset..offset + count).unwrap();
        let mut order: Vec<usize> = (0..dims.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, draw.below(at + 1));
        }
        let turned: Vec<usize> = order.iter().map(|at| dims[*at]).collect();
        let at = |index: &[usize]| dims.iter().zip(index).fold(0, |at, (size, i)| at * size + i);
        let expected: Vec<f64> = indices(&turned)
            .iter()
            .map(|index| {
                let mut source = vec![0; dims.len()];
                order.iter().zip(index).for_each(|(dim, i)| source[*dim] = *i);
                values[at(&source)]
            })
            .collect();
        assert_eq!(
            download(gpu, &permute(gpu, &x, &dims, &order).unwrap()),
            expected,
            "{dims:?} as {order:?}"
        );
        let dim = draw.below(dims.len());
        let start = draw.below(dims[dim]);
        let len = 1 + draw.below(dims[dim] - start);
        let inside = |index: &&Vec<usize>| (start..start + len).contains(&index[dim]);
        let expected: Vec<f64> =
            indices(&dims).iter().filter(inside).map(|index| values[at(index)]).collect();
        let cut = narrow(gpu, &x, &dims, dim, start, len).unwrap();
        assert_eq!(download(gpu, &cut), expected, "{dims:?}, {start} + {len} of {dim}");
        let (before, after) = (draw.below(3), draw.below(3));
        let mut padded = dims.clone();
        padded[dim] += before + after;
        let expected: Vec<f64> = indices(&padded)
            .iter()
            .map(|index| {
                let mut source = index.clone();
                source[dim] = source[dim].wrapping_sub(before);
                if source[dim] < dims[dim] { values[at(&source)] } else { 0.0 }
            })
            .collect();
        let result = pad_with_zeros(gpu, &x, &dims, dim, before, after).unwrap();
        assert_eq!(download(gpu, &result), expected, "{dims:?} with {before} and {after} at {dim}");
        let mut cut_dims = dims.clone();
        cut_dims[dim] = len;
        let together = cat(gpu, &[(&x, &dims), (&cut, &cut_dims), (&x, &dims)], dim).unwrap();
        let mut long = dims.clone();
        long[dim] = 2 * dims[dim] + len;
        let expected: Vec<f64> = indices(&long)
            .iter()
            .map(|index| {
                let mut source = index.clone();
                let i = index[dim];
                source[dim] = if i < dims[dim] {
                    i
                } else if i < dims[dim] + len {
                    i - dims[dim] + start
                } else {
                    i - dims[dim] - len
                };
                values[at(&source)]
            })
            .collect();
        assert_eq!(download(gpu, &together), expected, "{dims:?} twice and {len} between, along {dim}");
    }
}

#[test]
fn changes_of_shape() {
    on_gpu(|gpu| {
        for dtype in
            [ElementType::F32, ElementType::Bf16, ElementType::F64, ElementType::U8, ElementType::U32]
        {
            moved(gpu, dtype);
        }
        // Matrices of whole tiles and of partial ones.
        for [batch, rows, columns] in [[1, 64, 32], [3, 33, 65], [2, 1, 100], [5, 100, 3]] {
            let values: Vec<f64> = (0..batch * rows * columns).map(|i| (i % 1009) as f64).collect();
            let x = upload(gpu, ElementType::F32, &values);
            let turned = permute(gpu, &x, &[batch, rows, columns], &[0, 2, 1]).unwrap();
            let expected: Vec<f64> = (0..values.len())
                .map(|at| {
                    let (matrix, place) = (at / (rows * columns), at % (rows * columns));
                    values[matrix * rows * columns + place % rows * columns + place / rows]
                })
                .collect();
            assert_eq!(download(gpu, &turned), expected);
        }
        let x = gpu.zeros(ElementType::F32, 6).unwrap();
        assert!(permute(gpu, &x, &[2, 3], &[0, 0]).is_err());
        assert!(narrow(gpu, &x, &[2, 3], 1, 2, 2).is_err());
        assert!(cat(gpu, &[(&x, &[2, 3]), (&x, &[3, 2])], 0).is_err());
        assert_within(gpu, "nothing", &x, &[0.0; 6], 0.0);
    });
}
