//! Convolutions against a plain f64 reference over drawn shapes, in both types and with one and two threads.

use phalanx_kernels::{
    Context, Conv2dShape, ConvTranspose2dShape, Float, KernelError, Level, conv_transpose2d_forward,
    conv2d_backward_bias, conv2d_backward_input, conv2d_backward_weight, conv2d_forward,
};
use proptest::prelude::*;

use crate::harness::{contexts, distance, random, wide};

/// Calls `f` with the indices of every (input, weight, output) triple that a convolution multiplies.
fn triples(s: &Conv2dShape, mut f: impl FnMut(usize, usize, usize)) {
    let (out_h, out_w) = (s.out_height(), s.out_width());
    let (in_group, out_group) = (s.in_channels / s.groups, s.out_channels / s.groups);
    for n in 0..s.batch {
        for o in 0..s.out_channels {
            for (y, x) in (0..out_h).flat_map(|y| (0..out_w).map(move |x| (y, x))) {
                for c in 0..in_group {
                    for (ky, kx) in (0..s.kernel[0]).flat_map(|ky| (0..s.kernel[1]).map(move |kx| (ky, kx))) {
                        let iy = (y * s.stride[0] + ky * s.dilation[0]).checked_sub(s.padding[0]);
                        let ix = (x * s.stride[1] + kx * s.dilation[1]).checked_sub(s.padding[1]);
                        let (Some(iy), Some(ix)) = (iy, ix) else { continue };
                        if iy < s.height && ix < s.width {
                            let channel = o / out_group * in_group + c;
                            f(
                                ((n * s.in_channels + channel) * s.height + iy) * s.width + ix,
                                ((o * in_group + c) * s.kernel[0] + ky) * s.kernel[1] + kx,
                                ((n * s.out_channels + o) * out_h + y) * out_w + x,
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Checks on every instruction set of this CPU.
fn check<T: Float>(s: &Conv2dShape, threads: usize, bound: f64) {
    for (level, context) in contexts(threads) {
        check_with::<T>(&context, level, s, bound);
    }
}

fn check_with<T: Float>(context: &Context, level: Level, s: &Conv2dShape, bound: f64) {
    let threads = format!("{} threads, {level}", context.threads());
    let (x, w): (Vec<T>, Vec<T>) = (random(1, s.input_len()), random(2, s.weight_len()));
    let (b, dy): (Vec<T>, Vec<T>) = (random(3, s.out_channels), random(4, s.output_len()));
    let (x64, w64, dy64) = (wide(&x), wide(&w), wide(&dy));
    let plane = s.out_height() * s.out_width();
    let mut y_ref: Vec<f64> = (0..s.output_len()).map(|i| b[i / plane % s.out_channels].to_f64()).collect();
    let (mut dx_ref, mut dw_ref) = (vec![0.0; x.len()], vec![0.0; w.len()]);
    triples(s, |i, j, k| {
        y_ref[k] += x64[i] * w64[j];
        dx_ref[i] += dy64[k] * w64[j];
        dw_ref[j] += dy64[k] * x64[i];
    });
    // Garbage in the outputs, to see that everything is written.
    let mut y = vec![T::from_f64(7.0); y_ref.len()];
    conv2d_forward(context, s, &x, &w, Some(&b), &mut y).expect("a sound shape");
    assert!(distance(&y, &y_ref) < bound, "forward {s:?} on {threads}: {:e}", distance(&y, &y_ref));
    let mut dx = vec![T::from_f64(7.0); x.len()];
    conv2d_backward_input(context, s, &dy, &w, &mut dx).expect("a sound shape");
    assert!(distance(&dx, &dx_ref) < bound, "input {s:?} on {threads}: {:e}", distance(&dx, &dx_ref));
    let mut dw = vec![T::from_f64(7.0); w.len()];
    conv2d_backward_weight(context, s, &x, &dy, &mut dw, false).expect("a sound shape");
    assert!(distance(&dw, &dw_ref) < bound, "weight {s:?} on {threads}: {:e}", distance(&dw, &dw_ref));
    let once = dw.clone();
    conv2d_backward_weight(context, s, &x, &dy, &mut dw, true).expect("a sound shape");
    let twice: Vec<f64> = once.iter().map(|v| 2.0 * v.to_f64()).collect();
    assert!(distance(&dw, &twice) < 1e-6, "accumulation {s:?}");
    let mut again = vec![T::ZERO; w.len()];
    conv2d_backward_weight(context, s, &x, &dy, &mut again, false).expect("a sound shape");
    assert!(again == once, "the same bits again {s:?} on {threads}");
    let db_ref: Vec<f64> = (0..s.out_channels)
        .map(|o| {
            (0..s.batch).map(|n| dy64[(n * s.out_channels + o) * plane..][..plane].iter().sum::<f64>()).sum()
        })
        .collect();
    let mut db = vec![T::from_f64(7.0); s.out_channels];
    conv2d_backward_bias(context, s, &dy, &mut db, false).expect("a sound shape");
    let largest = dy64.iter().map(|v| v.abs()).sum::<f64>();
    for (got, want) in db.iter().zip(&db_ref) {
        assert!((got.to_f64() - want).abs() < bound * largest.max(1.0), "bias {s:?}");
    }
}

prop_compose! {
    fn shapes()(
        batch in 1_usize..4,
        in_group in 1_usize..5,
        out_group in 1_usize..5,
        groups in prop_oneof![3 => Just(1_usize), 2 => 2_usize..5],
        height in 1_usize..13,
        width in 1_usize..13,
        kernel in [1_usize..5, 1_usize..5],
        stride in [1_usize..4, 1_usize..4],
        padding in [0_usize..4, 0_usize..4],
        dilation in [1_usize..3, 1_usize..3],
    ) -> Conv2dShape {
        Conv2dShape {
            batch, in_channels: in_group * groups, height, width, out_channels: out_group * groups,
            kernel, stride, padding, dilation, groups,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]
    #[test]
    fn drawn_shapes(shape in shapes().prop_filter("the window fits", |s| s.validate().is_ok()), threads in 1_usize..4) {
        check::<f32>(&shape, threads, 1e-5);
        check::<f64>(&shape, threads, 1e-12);
    }
}

prop_compose! {
    /// Shapes with enough channels and images for the kernels with the channels innermost.
    fn wide_shapes()(
        batch in 4_usize..20,
        in_channels in 16_usize..70,
        out_channels in 16_usize..70,
        height in 1_usize..7,
        width in 1_usize..7,
        kernel in [1_usize..4, 1_usize..4],
        stride in [1_usize..3, 1_usize..3],
        padding in [0_usize..3, 0_usize..3],
        dilation in [1_usize..3, 1_usize..3],
    ) -> Conv2dShape {
        Conv2dShape {
            batch, in_channels, height, width, out_channels, kernel, stride, padding, dilation, groups: 1,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]
    #[test]
    fn drawn_shapes_with_many_channels(
        shape in wide_shapes().prop_filter("the window fits", |s| s.validate().is_ok()),
        threads in 1_usize..4,
    ) {
        check::<f32>(&shape, threads, 1e-5);
    }
}

prop_compose! {
    /// Shapes for Winograd's method: 3×3 without stride, maps of several tiles.
    fn tiled_shapes()(
        batch in 4_usize..7,
        in_channels in 16_usize..50,
        out_channels in 16_usize..50,
        height in 5_usize..14,
        width in 5_usize..14,
        padding in [0_usize..3, 0_usize..3],
    ) -> Conv2dShape {
        Conv2dShape {
            batch, in_channels, height, width, out_channels,
            kernel: [3; 2], stride: [1; 2], padding, dilation: [1; 2], groups: 1,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]
    #[test]
    fn drawn_shapes_in_tiles(shape in tiled_shapes(), threads in 1_usize..4) {
        check::<f32>(&shape, threads, 2e-5);
    }
}

#[test]
fn shapes_of_the_models() {
    let square = |batch, inputs, outputs, size, kernel, stride, padding, groups| Conv2dShape {
        batch,
        in_channels: inputs,
        height: size,
        width: size,
        out_channels: outputs,
        kernel: [kernel; 2],
        stride: [stride; 2],
        padding: [padding; 2],
        dilation: [1; 2],
        groups,
    };
    for shape in [
        square(2, 64, 64, 16, 3, 1, 1, 1),
        square(3, 16, 32, 33, 3, 2, 1, 1),
        square(5, 64, 32, 2, 3, 1, 1, 1),
        square(7, 64, 48, 1, 3, 1, 1, 1),
        // In tiles of 4×4; then with weights that are more than the tiles.
        square(4, 24, 40, 16, 3, 1, 1, 1),
        square(24, 136, 128, 4, 3, 1, 1, 1),
        square(20, 130, 120, 5, 3, 1, 2, 1),
        // More input channels than are added at a time.
        square(5, 150, 40, 3, 3, 1, 1, 1),
        square(11, 16, 136, 4, 3, 2, 1, 1),
        square(2, 3, 16, 31, 7, 2, 3, 1),
        square(2, 48, 48, 15, 3, 1, 1, 48),
        square(2, 48, 48, 16, 3, 2, 1, 48),
        square(5, 40, 40, 4, 3, 1, 1, 40),
        square(5, 40, 40, 4, 3, 2, 1, 40),
        square(6, 48, 48, 2, 3, 2, 1, 48),
        square(7, 20, 20, 1, 3, 1, 1, 20),
        square(2, 48, 24, 8, 1, 1, 0, 1),
        square(9, 48, 24, 2, 1, 1, 0, 1),
        square(5, 20, 13, 4, 1, 1, 0, 1),
        square(3, 7, 50, 12, 1, 1, 0, 1),
        square(2, 24, 48, 9, 1, 2, 0, 1),
    ] {
        for threads in [1, 2] {
            check::<f32>(&shape, threads, 1e-5);
        }
    }
}

#[test]
fn wrong_arguments_are_named() {
    let shape = Conv2dShape {
        batch: 1,
        in_channels: 4,
        height: 3,
        width: 3,
        out_channels: 4,
        kernel: [3, 3],
        stride: [1, 1],
        padding: [0, 0],
        dilation: [1, 1],
        groups: 1,
    };
    let context = Context::new(1);
    let error = conv2d_forward(&context, &shape, &[0.0_f32; 35], &[0.0; 144], None, &mut [0.0; 4]);
    let expected = KernelError::Length { kernel: "conv2d_forward", argument: "x", expected: 36, found: 35 };
    assert_eq!(error, Err(expected));
    for wrong in [
        Conv2dShape { groups: 3, ..shape },
        Conv2dShape { groups: 0, ..shape },
        Conv2dShape { stride: [0, 1], ..shape },
        Conv2dShape { kernel: [4, 3], ..shape },
        Conv2dShape { dilation: [2, 1], ..shape },
    ] {
        assert!(wrong.validate().is_err(), "{wrong:?}");
        assert!(conv2d_forward(&context, &wrong, &[0.0_f32; 36], &[0.0; 144], None, &mut [0.0; 4]).is_err());
    }
}

#[test]
fn a_transposed_convolution_spreads_each_pixel_by_its_window() {
    let context = Context::new(2);
    for (stride, padding, output_padding, dilation, groups, batch) in
        [(1, 0, 0, 1, 1, 2), (2, 1, 1, 1, 1, 5), (3, 0, 2, 1, 2, 1), (2, 2, 0, 2, 1, 3), (2, 1, 1, 1, 4, 4)]
    {
        for [inputs, outputs] in [[4, 8], [32, 16]] {
            let shape = ConvTranspose2dShape {
                batch,
                in_channels: inputs,
                height: 4,
                width: 3,
                out_channels: outputs,
                kernel: [3, 4],
                stride: [stride; 2],
                padding: [padding; 2],
                output_padding: [output_padding; 2],
                dilation: [dilation; 2],
                groups,
            };
            let size = |size: usize, kernel: usize| {
                (size - 1) * stride + dilation * (kernel - 1) + output_padding + 1 - 2 * padding
            };
            let (height, width) = (size(4, 3), size(3, 4));
            let per_group = outputs / groups;
            let x: Vec<f32> = random(1, batch * inputs * 12);
            let w: Vec<f32> = random(2, inputs * per_group * 12);
            let bias: Vec<f32> = random(3, outputs);
            let mut expected: Vec<f64> = (0..batch * outputs * height * width)
                .map(|i| f64::from(bias[i / (height * width) % outputs]))
                .collect();
            for (n, c) in (0..batch).flat_map(|n| (0..inputs).map(move |c| (n, c))) {
                for (pixel, o, tap) in
                    (0..12).flat_map(|p| (0..per_group).flat_map(move |o| (0..12).map(move |t| (p, o, t))))
                {
                    let y = (pixel / 3 * stride + tap / 4 * dilation).checked_sub(padding);
                    let x_out = (pixel % 3 * stride + tap % 4 * dilation).checked_sub(padding);
                    let (Some(y), Some(x_out)) = (y, x_out) else { continue };
                    if y < height && x_out < width {
                        let o_all = c / (inputs / groups) * per_group + o;
                        let at = ((n * outputs + o_all) * height + y) * width + x_out;
                        let product = f64::from(x[(n * inputs + c) * 12 + pixel])
                            * f64::from(w[(c * per_group + o) * 12 + tap]);
                        expected[at] += product;
                    }
                }
            }
            let mut y = vec![7.0; expected.len()];
            conv_transpose2d_forward(&context, &shape, &x, &w, Some(&bias), &mut y).expect("sound");
            assert!(distance(&y, &expected) < 1e-5, "{shape:?}: {:e}", distance(&y, &expected));
        }
    }
    let shape = ConvTranspose2dShape {
        batch: 1,
        in_channels: 1,
        height: 2,
        width: 2,
        out_channels: 1,
        kernel: [3; 2],
        stride: [2; 2],
        padding: [1; 2],
        output_padding: [2, 0],
        dilation: [1; 2],
        groups: 1,
    };
    let error = shape.convolution().expect_err("too much").to_string();
    assert!(error.contains("output padding [2, 0]"), "{error}");
    assert!(ConvTranspose2dShape { output_padding: [0; 2], padding: [3; 2], ..shape }.convolution().is_err());
}
