//! Maps [N, C, H, W]: pooling, up-sampling, group norm, depthwise convolution, images from bytes.

use half::{bf16, f16};
use phalanx_cuda::kernels::{
    ImageBatch, ImageBlend, NormInputs, avg_pool2d, avg_pool2d_backward, depthwise, depthwise_backward_input,
    depthwise_backward_weight, group_norm, group_norm_backward, images, max_pool2d, max_pool2d_backward,
    put_rows, upsample_nearest2d, upsample_nearest2d_backward,
};
use phalanx_cuda::{ElementType, TensorLayout};
use phalanx_kernels::{
    Conv2dShape, GroupNormShape, NormBackward, NormGrads, NormInput, NormOutput, Pool2dShape,
    avg_pool2d_backward as cpu_avg_backward, avg_pool2d_forward, conv2d_backward_input,
    conv2d_backward_weight, conv2d_forward, group_norm_backward as cpu_group_backward, group_norm_forward,
    max_pool2d_backward as cpu_max_backward, max_pool2d_forward,
    upsample_nearest2d_backward as cpu_upsample_backward, upsample_nearest2d_forward,
};

use super::inputs::{Draw, FLOATS, PAIRS, assert_close, assert_within, cpu, download, on_gpu, upload};

const FIRST: TensorLayout = TensorLayout::ChannelsFirst;

fn pools(draw: &mut Draw) -> Vec<Pool2dShape> {
    let pool = |size: [usize; 4], kernel, stride, padding| Pool2dShape {
        batch: size[0],
        channels: size[1],
        height: size[2],
        width: size[3],
        kernel,
        stride,
        padding,
    };
    let mut shapes = vec![
        pool([2, 3, 8, 8], [2, 2], [2, 2], [0, 0]),
        pool([1, 2, 13, 9], [3, 3], [2, 2], [1, 1]),
        pool([1, 1, 1, 1], [1, 1], [1, 1], [0, 0]),
        pool([3, 5, 7, 7], [7, 7], [1, 1], [0, 0]),
        pool([1, 2, 5, 6], [3, 2], [1, 3], [1, 0]),
    ];
    while shapes.len() < 14 {
        let kernel = [1 + draw.below(4), 1 + draw.below(4)];
        let shape = pool(
            [1 + draw.below(2), 1 + draw.below(3), 1 + draw.below(12), 1 + draw.below(12)],
            kernel,
            [1 + draw.below(3), 1 + draw.below(3)],
            kernel.map(|kernel| draw.below(kernel / 2 + 1)),
        );
        if shape.validate().is_ok() {
            shapes.push(shape);
        }
    }
    shapes
}

#[test]
fn pooling() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(11);
        for shape in pools(&mut draw) {
            for dtype in FLOATS {
                let what = format!("{shape:?}");
                let (mut x, _) = draw.slice(gpu, dtype, shape.input_len());
                // The first of equal elements wins.
                let repeated = x[0];
                x.iter_mut().step_by(3).for_each(|x| *x = repeated);
                let x_gpu = upload(gpu, dtype, &x);
                let len = shape.output_len();
                let (mut y, mut positions) = (vec![0.0; len], vec![0; len]);
                max_pool2d_forward(&cpu(), &shape, &x, &mut y, &mut positions).unwrap();
                let (y_gpu, positions_gpu) = max_pool2d(gpu, FIRST, &shape, &x_gpu).unwrap();
                assert_eq!(download(gpu, &y_gpu), y, "{what}");
                assert_eq!(gpu.download::<u32>(&positions_gpu).unwrap(), positions, "{what}");
                let (dy, dy_gpu) = draw.slice(gpu, dtype, len);
                let mut dx = vec![0.0; x.len()];
                cpu_max_backward(&cpu(), &shape, &dy, &positions, &mut dx).unwrap();
                let dx_gpu = max_pool2d_backward(gpu, FIRST, &shape, &dy_gpu, &positions_gpu).unwrap();
                assert_close(gpu, &what, &dx_gpu, &dx);
                for count_padding in [false, true] {
                    avg_pool2d_forward(&cpu(), &shape, count_padding, &x, &mut y).unwrap();
                    let y_gpu = avg_pool2d(gpu, FIRST, &shape, count_padding, &x_gpu).unwrap();
                    assert_close(gpu, &what, &y_gpu, &y);
                    cpu_avg_backward(&cpu(), &shape, count_padding, &dy, &mut dx).unwrap();
                    let dx_gpu = avg_pool2d_backward(gpu, FIRST, &shape, count_padding, &dy_gpu).unwrap();
                    assert_close(gpu, &what, &dx_gpu, &dx);
                }
            }
        }
        let shape = Pool2dShape {
            batch: 1,
            channels: 1,
            height: 2,
            width: 2,
            kernel: [2, 2],
            stride: [1, 1],
            padding: [0, 0],
        };
        let x = gpu.upload(&[1.0_f32, f32::NAN, 7.0, f32::INFINITY]).unwrap();
        let (y, positions) = max_pool2d(gpu, FIRST, &shape, &x).unwrap();
        assert!(download(gpu, &y)[0].is_nan());
        assert_eq!(gpu.download::<u32>(&positions).unwrap(), [1]);
        assert!(max_pool2d(gpu, FIRST, &Pool2dShape { padding: [2, 2], ..shape }, &x).is_err());
        assert!(avg_pool2d(gpu, FIRST, &Pool2dShape { batch: 2, ..shape }, true, &x).is_err());
    });
}

#[test]
fn upsampling() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(12);
        for (dims, factor) in
            [([1, 1, 1, 1], 1), ([2, 3, 4, 4], 2), ([1, 2, 3, 5], 2), ([2, 1, 2, 3], 3), ([1, 4, 8, 8], 4)]
        {
            let [batch, channels, height, width] = dims;
            let (planes, to) = (batch * channels, [height * factor, width * factor]);
            for dtype in FLOATS {
                let (x, x_gpu) = draw.slice(gpu, dtype, dims.iter().product());
                let mut y = vec![0.0; planes * to[0] * to[1]];
                upsample_nearest2d_forward(&cpu(), planes, [height, width], to, &x, &mut y).unwrap();
                let y_gpu = upsample_nearest2d(gpu, FIRST, dims, factor, &x_gpu).unwrap();
                assert_eq!(download(gpu, &y_gpu), y, "{dims:?} {factor}");
                let (dy, dy_gpu) = draw.slice(gpu, dtype, y.len());
                let mut dx = vec![0.0; x.len()];
                cpu_upsample_backward(&cpu(), planes, [height, width], to, &dy, &mut dx).unwrap();
                let dx_gpu = upsample_nearest2d_backward(gpu, FIRST, dims, factor, &dy_gpu).unwrap();
                assert_close(gpu, &format!("{dims:?} {factor}"), &dx_gpu, &dx);
            }
        }
    });
}

#[test]
fn group_norm_and_its_gradients() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(15);
        for (dims, groups) in [
            ([2, 4, 16], 2),
            ([1, 1, 1], 1),
            ([3, 6, 49], 3),
            ([2, 64, 1], 32),
            ([1, 8, 1100], 4),
            ([2, 80, 9], 2),
            ([4, 5, 7], 5),
        ] {
            for (dtype, grad) in PAIRS {
                let what = format!("{dims:?} in {groups}, {dtype} {grad}");
                let (channels, wide, len) = (dims[1], dtype.wide(), dims.iter().product::<usize>());
                let ((x, x_gpu), (dy, dy_gpu)) = (draw.slice(gpu, dtype, len), draw.slice(gpu, grad, len));
                let ((gamma, gamma_gpu), (beta, beta_gpu)) =
                    (draw.slice(gpu, wide, channels), draw.slice(gpu, wide, channels));
                let stats = dims[0] * groups;
                let (mut y, mut mean, mut inv_std) = (vec![0.0; len], vec![0.0; stats], vec![0.0; stats]);
                // A group of one element has no variance, so that eps dominates.
                let eps = 1e-2;
                let shape = GroupNormShape { batch: dims[0], channels, plane: dims[2], groups };
                let input = NormInput { x: &x, gamma: &gamma, beta: &beta, eps };
                let normed = NormOutput { y: &mut y, mean: &mut mean, inv_std: &mut inv_std };
                group_norm_forward(&cpu(), shape, input, normed).unwrap();
                let [y_gpu, mean_gpu, inv_std_gpu] =
                    group_norm(gpu, FIRST, dims, groups, &x_gpu, [&gamma_gpu, &beta_gpu], eps).unwrap();
                assert_close(gpu, &what, &y_gpu, &y);
                assert_close(gpu, &what, &mean_gpu, &mean);
                assert_close(gpu, &what, &inv_std_gpu, &inv_std);
                let (mut dx, mut dgamma, mut dbeta) =
                    (vec![0.0; len], vec![0.0; channels], vec![0.0; channels]);
                let kept = NormBackward { x: &x, dy: &dy, gamma: &gamma, mean: &mean, inv_std: &inv_std };
                let grads = NormGrads { dx: &mut dx, dgamma: &mut dgamma, dbeta: &mut dbeta };
                cpu_group_backward(&cpu(), shape, kept, grads).unwrap();
                let from = NormInputs {
                    x: &x_gpu,
                    dy: &dy_gpu,
                    gamma: &gamma_gpu,
                    mean: &mean_gpu,
                    inv_std: &inv_std_gpu,
                };
                let found = group_norm_backward(gpu, FIRST, dims, groups, from).unwrap();
                let tolerance = if wide == ElementType::F64 { 1e-10 } else { 1e-5 };
                // With one element the gradient is the rounding error of a difference.
                if dims[2] * channels / groups > 1 {
                    assert_within(gpu, &what, &found[0], &dx, tolerance);
                }
                assert_within(gpu, &what, &found[1], &dgamma, tolerance);
                assert_within(gpu, &what, &found[2], &dbeta, tolerance);
            }
        }
        let x = gpu.zeros(ElementType::F32, 12).unwrap();
        assert!(group_norm(gpu, FIRST, [1, 3, 4], 2, &x, [&x, &x], 1e-5).is_err());
    });
}

#[test]
fn images_are_cut_turned_and_normalised() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(16);
        let (mean, std) = ([0.49_f32, 0.48, 0.45], [0.25_f32, 0.24, 0.26]);
        for ([count, height, width], [out_height, out_width]) in
            [([3, 8, 8], [8, 8]), ([2, 5, 9], [4, 6]), ([1, 1, 1], [3, 3]), ([4, 32, 32], [32, 32])]
        {
            let bytes: Vec<u8> = (0..count * height * width * 3).map(|_| draw.word() as u8).collect();
            let mut planes_of_bytes = Vec::new();
            for (n, c, place) in (0..count * 3 * height * width)
                .map(|at| (at / (3 * height * width), at / (height * width) % 3, at % (height * width)))
            {
                planes_of_bytes.push(bytes[(n * height * width + place) * 3 + c]);
            }
            let pixels = gpu.upload(&bytes).unwrap();
            let pixel_planes = gpu.upload(&planes_of_bytes).unwrap();
            // More results than images, in any order; the last index does not exist.
            let mut places: Vec<[i32; 8]> = (0..count + 3)
                .map(|_| {
                    let [image, flip] = [count, 2].map(|below| draw.below(below) as i32);
                    let [top, left] = [5, 5].map(|below| draw.below(below) as i32 - 2);
                    let [row, column, rows, columns] = [3; 4].map(|below| draw.below(below) as i32);
                    [image, top, left, flip, row, column, rows, columns]
                })
                .collect();
            places[count + 2][0] = count as i32;
            let places_gpu =
                places.iter().flatten().map(|number| number.cast_unsigned()).collect::<Vec<u32>>();
            let pairs = (count + 3) / 2;
            let pairs_gpu = gpu.upload(&places_gpu[..16 * pairs]).unwrap();
            let places_gpu = gpu.upload(&places_gpu).unwrap();
            for (cut, blend) in [
                (false, None),
                (true, None),
                (true, Some(ImageBlend { share: 0.3, patch: None })),
                (true, Some(ImageBlend { share: 0.3, patch: Some([1, 0, 2, 3]) })),
            ] {
                for dtype in [ElementType::F32, ElementType::Bf16, ElementType::F16] {
                    let batch = ImageBatch {
                        pixels: &pixels,
                        layout: TensorLayout::ChannelsLast,
                        dims: [count, height, width, 3],
                        size: [out_height, out_width],
                        places: cut.then_some(if blend.is_some() { &pairs_gpu } else { &places_gpu }),
                        blend,
                        mean: &mean,
                        std: &std,
                    };
                    let within = |[top, left, height, width]: [i32; 4], row: usize, column: usize| {
                        (top..top + height).contains(&(row as i32))
                            && (left..left + width).contains(&(column as i32))
                    };
                    let value_of = |n: usize, c: usize, row: usize, column: usize| {
                        let [n, top, left, flip, erased @ ..] =
                            if cut { places[n] } else { [n as i32, 0, 0, 0, 0, 0, 0, 0] };
                        if n as usize >= count {
                            return f32::NAN;
                        }
                        if within(erased, row, column) {
                            return 0.0;
                        }
                        let (n, column) =
                            (n as usize, if flip == 1 { out_width - 1 - column } else { column });
                        let (y, x) = (row as i32 + top, column as i32 + left);
                        let inside = (0..height as i32).contains(&y) && (0..width as i32).contains(&x);
                        let at = ((n * height + y.max(0) as usize) * width + x.max(0) as usize) * 3 + c;
                        let byte = if inside { f32::from(bytes[at]) } else { 0.0 };
                        // As `Normalise` of `phalanx-data`.
                        (byte / 255.0 - mean[c]) / std[c]
                    };
                    let value = |n: usize, c: usize, row: usize, column: usize| {
                        let at = |n: usize| value_of(n, c, row, column);
                        f64::from(match blend {
                            None => at(n),
                            Some(ImageBlend { patch: Some(patch), .. }) => {
                                at(2 * n + usize::from(within(patch.map(u32::cast_signed), row, column)))
                            }
                            Some(ImageBlend { share, .. }) => {
                                share * at(2 * n) + (1.0 - share) * at(2 * n + 1)
                            }
                        })
                    };
                    let (mut planes, mut last) = (Vec::new(), Vec::new());
                    let results = match (cut, blend) {
                        (false, _) => count,
                        (true, None) => count + 3,
                        (true, Some(_)) => pairs,
                    };
                    for n in 0..results {
                        for at in 0..3 * out_height * out_width {
                            let (c, place) = (at / (out_height * out_width), at % (out_height * out_width));
                            planes.push(value(n, c, place / out_width, place % out_width));
                            last.push(value(n, at % 3, at / 3 / out_width, at / 3 % out_width));
                        }
                    }
                    let other = ImageBatch { pixels: &pixel_planes, layout: FIRST, ..batch };
                    for (expected, layout) in [(planes, FIRST), (last, TensorLayout::ChannelsLast)] {
                        for batch in [batch, other] {
                            let maps = images(gpu, batch, dtype, layout).unwrap();
                            let found = download(gpu, &maps);
                            assert_eq!(found.len(), expected.len());
                            for (found, expected) in found.into_iter().zip(&expected) {
                                // f32 and 16 bits have the CPU's bits.
                                let rounded = match dtype {
                                    ElementType::F32 => *expected,
                                    ElementType::Bf16 => f64::from(bf16::from_f64(*expected)),
                                    _ => f64::from(f16::from_f64(*expected)),
                                };
                                assert!(
                                    found == rounded || found.is_nan() && rounded.is_nan(),
                                    "{found}, {rounded}"
                                );
                            }
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn rows_of_bytes_are_put_where_they_belong() {
    on_gpu(|gpu| {
        let to = gpu.zeros(ElementType::U8, 5 * 3).unwrap();
        let from = gpu.upload::<u8>(&[1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
        // Of five rows, number 5 does not exist.
        let rows = gpu.upload::<u32>(&[4, 5, 1]).unwrap();
        put_rows(gpu, &to, &from, &rows, 3).unwrap();
        let expected = [0, 0, 0, 7, 8, 9, 0, 0, 0, 0, 0, 0, 1, 2, 3];
        assert_eq!(gpu.download::<u8>(&to).unwrap(), expected);
        assert!(put_rows(gpu, &to, &from, &rows, 4).is_err(), "three rows of four are no nine bytes");
    });
}

#[test]
fn depthwise_convolutions() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(17);
        let shape = |batch,
                     channels: usize,
                     multiplier: usize,
                     size: [usize; 2],
                     kernel,
                     stride,
                     padding,
                     dilation| {
            Conv2dShape {
                batch,
                in_channels: channels,
                height: size[0],
                width: size[1],
                out_channels: channels * multiplier,
                kernel: [kernel; 2],
                stride: [stride; 2],
                padding: [padding; 2],
                dilation: [dilation; 2],
                groups: channels,
            }
        };
        for shape in [
            shape(2, 3, 1, [7, 9], 3, 1, 1, 1),
            shape(1, 2, 1, [1, 1], 3, 1, 1, 1),
            shape(3, 4, 1, [8, 8], 3, 2, 1, 1),
            shape(2, 2, 3, [6, 5], 5, 1, 2, 1),
            shape(1, 5, 1, [11, 10], 5, 2, 2, 1),
            shape(2, 2, 1, [9, 12], 3, 1, 2, 2),
            shape(70, 2, 1, [16, 16], 3, 1, 1, 1),
            shape(1, 2, 2, [5, 5], 3, 3, 0, 1),
        ] {
            for dtype in FLOATS {
                let what = format!("{shape:?}");
                let ((x, x_gpu), (w, w_gpu), (dy, dy_gpu)) = (
                    draw.slice(gpu, dtype, shape.input_len()),
                    draw.slice(gpu, dtype, shape.weight_len()),
                    draw.slice(gpu, dtype, shape.output_len()),
                );
                let mut y = vec![0.0; dy.len()];
                conv2d_forward(&cpu(), &shape, &x, &w, None, &mut y).unwrap();
                assert_close(gpu, &what, &depthwise(gpu, FIRST, &shape, &x_gpu, &w_gpu).unwrap(), &y);
                let mut dx = vec![0.0; x.len()];
                conv2d_backward_input(&cpu(), &shape, &dy, &w, &mut dx).unwrap();
                let found = depthwise_backward_input(gpu, FIRST, &shape, &dy_gpu, &w_gpu).unwrap();
                assert_close(gpu, &what, &found, &dx);
                let mut dw = vec![0.0; w.len()];
                conv2d_backward_weight(&cpu(), &shape, &x, &dy, &mut dw, false).unwrap();
                let found = depthwise_backward_weight(gpu, FIRST, &shape, &x_gpu, &dy_gpu).unwrap();
                assert_eq!(found.dtype(), dtype.wide());
                assert_close(gpu, &what, &found, &dw);
            }
        }
        let x = gpu.zeros(ElementType::F32, 8).unwrap();
        assert!(depthwise(gpu, FIRST, &shape(1, 2, 1, [2, 2], 2, 1, 0, 1), &x, &x).is_err(), "a window of 2");
    });
}
