//! Work that is cut for a fixed number of threads gives the same bits on any number of them.

use std::num::NonZeroUsize;

use phalanx_kernels::{
    Context, Conv2dShape, Matrix, MatrixMut, conv2d_backward_bias, conv2d_backward_input,
    conv2d_backward_weight, conv2d_forward, matmul_batched, sum_columns,
};

use crate::harness::random;

/// Checks that `run` gives the same bits with each number of threads.
fn check(what: &str, run: impl Fn(&Context) -> Vec<Vec<f32>>) {
    let on = |threads| {
        let context = Context::new(threads).with_parts(NonZeroUsize::new(4).expect("not 0"));
        run(&context).into_iter().map(|values| values.into_iter().map(f32::to_bits).collect()).collect()
    };
    let alone: Vec<Vec<u32>> = on(1);
    for threads in [2, 3, 5] {
        assert_eq!(on(threads), alone, "{what} on {threads} threads");
    }
}

#[test]
fn convolutions() {
    let plain = Conv2dShape {
        batch: 5,
        in_channels: 16,
        height: 12,
        width: 12,
        out_channels: 24,
        kernel: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
        dilation: [1, 1],
        groups: 1,
    };
    let shapes = [
        plain,
        Conv2dShape { stride: [2, 2], ..plain },
        Conv2dShape { kernel: [1, 1], padding: [0, 0], ..plain },
        Conv2dShape { kernel: [1, 1], padding: [0, 0], stride: [2, 2], ..plain },
        Conv2dShape { in_channels: 3, ..plain },
        Conv2dShape { in_channels: 3, kernel: [7, 7], stride: [2, 2], padding: [3, 3], ..plain },
        Conv2dShape { in_channels: 24, groups: 24, ..plain },
        Conv2dShape { in_channels: 24, groups: 24, height: 4, width: 4, stride: [2, 2], ..plain },
        Conv2dShape { height: 4, width: 4, in_channels: 64, out_channels: 64, ..plain },
        Conv2dShape { height: 2, width: 2, in_channels: 96, out_channels: 96, ..plain },
        Conv2dShape { batch: 1, height: 30, width: 30, ..plain },
        Conv2dShape { batch: 2, kernel: [4, 4], stride: [2, 2], out_channels: 8, ..plain },
    ];
    for shape in shapes {
        let inputs = shape.batch * shape.in_channels * shape.height * shape.width;
        let outputs = shape.batch * shape.out_channels * shape.out_height() * shape.out_width();
        let weights =
            shape.out_channels * shape.in_channels / shape.groups * shape.kernel[0] * shape.kernel[1];
        let (x, w, dy) = (random(1, inputs), random(2, weights), random(3, outputs));
        check(&format!("{shape:?}"), |context| {
            let (mut y, mut dx, mut dw) = (vec![0.0; outputs], vec![0.0; inputs], vec![0.5; weights]);
            let mut db = vec![0.0; shape.out_channels];
            conv2d_forward(context, &shape, &x, &w, None, &mut y).expect("fits");
            conv2d_backward_input(context, &shape, &dy, &w, &mut dx).expect("fits");
            conv2d_backward_weight(context, &shape, &x, &dy, &mut dw, true).expect("fits");
            conv2d_backward_bias(context, &shape, &dy, &mut db, false).expect("fits");
            vec![y, dx, dw, db]
        });
    }
}

#[test]
fn products_and_sums() {
    for [m, k, n] in [[1, 40, 30], [7, 300, 65], [130, 64, 33], [256, 512, 16]] {
        for batch in [1, 6] {
            let (a, b) = (random(4, batch * m * k), random(5, batch * k * n));
            check(&format!("product of {m} x {k} and {k} x {n}, {batch} times"), |context| {
                let mut c = vec![0.0; batch * m * n];
                let (a, b) = (Matrix::batched(&a, m, k, false), Matrix::batched(&b, k, n, false));
                matmul_batched(context, batch, a, b, MatrixMut::batched(&mut c, m, n), false).expect("fits");
                vec![c]
            });
        }
    }
    let x = random(6, 1000 * 37);
    check("sums of columns", |context| {
        let mut sums = vec![0.0; 37];
        sum_columns(context, [1000, 37], &x, &mut sums).expect("fits");
        vec![sums]
    });
}

#[test]
fn columns_of_several_threads_have_the_bits_of_one() {
    for [m, k, n] in [[2, 700, 300], [3, 32, 130], [7, 32, 200], [20, 90, 257], [60, 33, 450]] {
        for turned in [false, true] {
            let (a, b) = (random(4, m * k), random(5, k * n));
            let on = |threads| {
                let mut c = vec![0.0; m * n];
                let (a, b) = (Matrix::batched(&a, m, k, false), Matrix::batched(&b, k, n, turned));
                let to = MatrixMut::batched(&mut c, m, n);
                matmul_batched(&Context::new(threads), 1, a, b, to, false).expect("fits");
                c
            };
            let alone = on(1);
            for threads in [2, 3, 4] {
                assert_eq!(
                    on(threads),
                    alone,
                    "{m} x {k} by {k} x {n} on {threads} threads, turned {turned}"
                );
            }
        }
    }
}
