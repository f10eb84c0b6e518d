//! Channels-last kernels, against their channels-first results.

use phalanx_cuda::kernels;
use phalanx_cuda::kernels::{BatchNorm, NormInputs, batch_norm_train};
use phalanx_cuda::{ElementType, Gpu, Slice, TensorLayout};
use phalanx_kernels::{Activation, Conv2dShape, Pool2dShape};

use super::inputs::{Draw, FLOATS, PAIRS, assert_of, assert_within, download, on_gpu, upload};

/// Converts [N, C, P] to [N, P, C].
fn turned([batch, channels, pixels]: [usize; 3], values: &[f64]) -> Vec<f64> {
    let mut to = vec![0.0; values.len()];
    for (at, value) in values.iter().enumerate() {
        let (image, place) = (at / (channels * pixels), at % (channels * pixels));
        to[image * channels * pixels + place % pixels * channels + place / pixels] = *value;
    }
    assert_eq!(to.len(), batch * channels * pixels);
    to
}

/// Returns random maps in both layouts.
fn maps(gpu: &Gpu, draw: &mut Draw, dtype: ElementType, dims: [usize; 3]) -> [Slice; 2] {
    let (values, first) = draw.slice(gpu, dtype, dims.iter().product());
    [first, upload(gpu, dtype, &turned(dims, &values))]
}

/// Checks that two arrays are equal in both layouts, except for the order of sums.
fn same(gpu: &Gpu, what: &str, dims: [usize; 3], first: &Slice, last: &Slice) {
    let tolerance = if first.dtype() == ElementType::F64 { 1e-10 } else { 1e-5 };
    assert_eq!(first.dtype(), last.dtype());
    assert_of(gpu, what, last, &turned(dims, &download(gpu, first)), tolerance, 1.0);
}

#[test]
fn pooling_and_upsampling() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(61);
        for (channels, size, kernel, stride, padding) in [
            (8, [6, 7], [3, 3], [2, 2], [1, 1]),
            (3, [5, 5], [2, 2], [2, 2], [0, 0]),
            (16, [7, 7], [7, 7], [1, 1], [0, 0]),
            (12, [9, 4], [3, 2], [1, 3], [1, 0]),
            (1, [1, 1], [1, 1], [1, 1], [0, 0]),
        ] {
            let shape =
                Pool2dShape { batch: 2, channels, height: size[0], width: size[1], kernel, stride, padding };
            let what = format!("{shape:?}");
            let (input, output) =
                ([2, channels, size[0] * size[1]], [2, channels, shape.out_height() * shape.out_width()]);
            for dtype in FLOATS {
                let [x, x_last] = maps(gpu, &mut draw, dtype, input);
                let [dy, dy_last] = maps(gpu, &mut draw, dtype, output);
                let ((y, at), (y_last, at_last)) = (
                    kernels::max_pool2d(gpu, TensorLayout::ChannelsFirst, &shape, &x).unwrap(),
                    kernels::max_pool2d(gpu, TensorLayout::ChannelsLast, &shape, &x_last).unwrap(),
                );
                same(gpu, &what, output, &y, &y_last);
                assert_eq!(download(gpu, &at_last), turned(output, &download(gpu, &at)), "{what}");
                let dx =
                    kernels::max_pool2d_backward(gpu, TensorLayout::ChannelsFirst, &shape, &dy, &at).unwrap();
                let dx_last =
                    kernels::max_pool2d_backward(gpu, TensorLayout::ChannelsLast, &shape, &dy_last, &at_last)
                        .unwrap();
                same(gpu, &what, input, &dx, &dx_last);
                for count_padding in [false, true] {
                    let y = kernels::avg_pool2d(gpu, TensorLayout::ChannelsFirst, &shape, count_padding, &x)
                        .unwrap();
                    same(
                        gpu,
                        &what,
                        output,
                        &y,
                        &kernels::avg_pool2d(gpu, TensorLayout::ChannelsLast, &shape, count_padding, &x_last)
                            .unwrap(),
                    );
                    let dx = kernels::avg_pool2d_backward(
                        gpu,
                        TensorLayout::ChannelsFirst,
                        &shape,
                        count_padding,
                        &dy,
                    )
                    .unwrap();
                    let dx_last = kernels::avg_pool2d_backward(
                        gpu,
                        TensorLayout::ChannelsLast,
                        &shape,
                        count_padding,
                        &dy_last,
                    )
                    .unwrap();
                    same(gpu, &what, input, &dx, &dx_last);
                }
                let dims = [2, channels, size[0], size[1]];
                let large = [2, channels, 4 * size[0] * size[1]];
                let y = kernels::upsample_nearest2d(gpu, TensorLayout::ChannelsFirst, dims, 2, &x).unwrap();
                same(
                    gpu,
                    &what,
                    large,
                    &y,
                    &kernels::upsample_nearest2d(gpu, TensorLayout::ChannelsLast, dims, 2, &x_last).unwrap(),
                );
                let [dy, dy_last] = maps(gpu, &mut draw, dtype, large);
                let dx = kernels::upsample_nearest2d_backward(gpu, TensorLayout::ChannelsFirst, dims, 2, &dy)
                    .unwrap();
                let dx_last =
                    kernels::upsample_nearest2d_backward(gpu, TensorLayout::ChannelsLast, dims, 2, &dy_last)
                        .unwrap();
                same(gpu, &what, input, &dx, &dx_last);
            }
        }
    });
}

#[test]
fn depthwise_convolutions() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(62);
        for (batch, channels, size, stride, padding, dilation) in [
            (2, 8, [6, 7], 1, 1, 1),
            (3, 3, [5, 5], 2, 1, 1),
            (1, 40, [9, 8], 1, 2, 2),
            (20, 16, [8, 8], 2, 0, 1),
        ] {
            let shape = Conv2dShape {
                batch,
                in_channels: channels,
                height: size[0],
                width: size[1],
                out_channels: channels,
                kernel: [3; 2],
                stride: [stride; 2],
                padding: [padding; 2],
                dilation: [dilation; 2],
                groups: channels,
            };
            let what = format!("{shape:?}");
            let input = [batch, channels, size[0] * size[1]];
            let output = [batch, channels, shape.out_height() * shape.out_width()];
            for dtype in FLOATS {
                let ([x, x_last], [dy, dy_last]) =
                    (maps(gpu, &mut draw, dtype, input), maps(gpu, &mut draw, dtype, output));
                let (_, w) = draw.slice(gpu, dtype, shape.weight_len());
                let y = kernels::depthwise(gpu, TensorLayout::ChannelsFirst, &shape, &x, &w).unwrap();
                same(
                    gpu,
                    &what,
                    output,
                    &y,
                    &kernels::depthwise(gpu, TensorLayout::ChannelsLast, &shape, &x_last, &w).unwrap(),
                );
                let dx = kernels::depthwise_backward_input(gpu, TensorLayout::ChannelsFirst, &shape, &dy, &w)
                    .unwrap();
                let dx_last =
                    kernels::depthwise_backward_input(gpu, TensorLayout::ChannelsLast, &shape, &dy_last, &w)
                        .unwrap();
                same(gpu, &what, input, &dx, &dx_last);
                let dw =
                    kernels::depthwise_backward_weight(gpu, TensorLayout::ChannelsFirst, &shape, &x, &dy)
                        .unwrap();
                let dw_last = kernels::depthwise_backward_weight(
                    gpu,
                    TensorLayout::ChannelsLast,
                    &shape,
                    &x_last,
                    &dy_last,
                )
                .unwrap();
                let tolerance = if dtype == ElementType::F64 { 1e-12 } else { 1e-5 };
                assert_within(gpu, &what, &dw_last, &download(gpu, &dw), tolerance);
            }
        }
    });
}

#[test]
fn norms() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(63);
        for (dims, groups) in [([2, 8, 49], 4), ([1, 64, 300], 32), ([3, 6, 5], 2), ([2, 40, 130], 5)] {
            for (dtype, grad) in PAIRS {
                let (what, channels) = (format!("{dims:?} in {groups}, {dtype} {grad}"), dims[1]);
                let ([x, x_last], [dy, dy_last]) =
                    (maps(gpu, &mut draw, dtype, dims), maps(gpu, &mut draw, grad, dims));
                let ((_, gamma), (_, beta)) =
                    (draw.slice(gpu, dtype.wide(), channels), draw.slice(gpu, dtype.wide(), channels));
                let [y, mean, inv_std] = kernels::group_norm(
                    gpu,
                    TensorLayout::ChannelsFirst,
                    dims,
                    groups,
                    &x,
                    [&gamma, &beta],
                    1e-3,
                )
                .unwrap();
                let forward = kernels::group_norm(
                    gpu,
                    TensorLayout::ChannelsLast,
                    dims,
                    groups,
                    &x_last,
                    [&gamma, &beta],
                    1e-3,
                )
                .unwrap();
                same(gpu, &what, dims, &y, &forward[0]);
                let tolerance = if dtype == ElementType::F64 { 1e-10 } else { 1e-5 };
                assert_of(gpu, &what, &forward[1], &download(gpu, &mean), tolerance, 1.0);
                assert_within(gpu, &what, &forward[2], &download(gpu, &inv_std), tolerance);
                let (gamma, mean, inv_std) = (&gamma, &mean, &inv_std);
                let from = NormInputs { x: &x, dy: &dy, gamma, mean, inv_std };
                let [dx, dgamma, dbeta] =
                    kernels::group_norm_backward(gpu, TensorLayout::ChannelsFirst, dims, groups, from)
                        .unwrap();
                let from = NormInputs { x: &x_last, dy: &dy_last, ..from };
                let found = kernels::group_norm_backward(gpu, TensorLayout::ChannelsLast, dims, groups, from)
                    .unwrap();
                same(gpu, &what, dims, &dx, &found[0]);
                assert_within(gpu, &what, &found[1], &download(gpu, &dgamma), tolerance);
                assert_within(gpu, &what, &found[2], &download(gpu, &dbeta), tolerance);
                let eps = 1e-3;
                let activation = Activation::Relu;
                let pass = BatchNorm { dims, x: &x, gamma, beta: &beta, eps, activation };
                let (y, _) = batch_norm_train(gpu, pass, None).unwrap();
                let pass = BatchNorm { dims: [dims[0] * dims[2], channels, 1], x: &x_last, ..pass };
                let (y_last, _) = batch_norm_train(gpu, pass, None).unwrap();
                same(gpu, &what, dims, &y, &y_last);
            }
        }
    });
}
