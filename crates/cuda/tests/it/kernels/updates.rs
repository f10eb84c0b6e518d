//! Losses, optimizer steps, averages, norms and loss scaling over whole buckets.

use phalanx_cuda::kernels::{
    EmaInputs, PairLoss, ScaledStep, StepInputs, adam_step, clip_factor, ema_step,
    kl_standard_normal_backward, lamb_direction, lamb_step, lion_step, loss_scale_step, not_finite,
    pair_loss, pair_loss_backward, scale_by, sgd_step, sum_of_squares,
};
use phalanx_cuda::{ElementType, Gpu, Stream};
use phalanx_kernels::{
    AdamOptions, EmaOptions, LambOptions, LionOptions, LossScaleOptions, SgdOptions,
    adam_step as cpu_adam_step, ema_step as cpu_ema_step, lamb_direction as cpu_lamb_direction,
    lamb_step as cpu_lamb_step, lion_step as cpu_lion_step, loss_scale_step as cpu_loss_scale_step,
    sgd_step as cpu_sgd_step, trust_ratio,
};

use super::inputs::{
    Draw, FLOATS, LENGTHS, assert_close, assert_within, cpu, download, on_gpu, rounded, upload,
};

fn loss_of(loss: PairLoss, x: f64, t: f64) -> (f64, f64) {
    let off = x - t;
    match loss {
        PairLoss::L1 => (off.abs(), if off == 0.0 { 0.0 } else { off.signum() }),
        PairLoss::SmoothL1 { beta } => (
            if off.abs() < beta { 0.5 * off * off / beta } else { off.abs() - 0.5 * beta },
            (off / beta).clamp(-1.0, 1.0),
        ),
        PairLoss::Mse => (off * off, 2.0 * off),
        PairLoss::BceWithLogits => {
            (x.max(0.0) - x * t + (-x.abs()).exp().ln_1p(), 1.0 / (1.0 + (-x).exp()) - t)
        }
        PairLoss::KlStandardNormal => (0.5 * (x * x + t.exp() - 1.0 - t), x),
    }
}

#[test]
fn losses_of_pairs() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(41);
        let losses = [
            PairLoss::L1,
            PairLoss::SmoothL1 { beta: 0.3 },
            PairLoss::Mse,
            PairLoss::BceWithLogits,
            PairLoss::KlStandardNormal,
        ];
        for loss in losses {
            for (a, b) in [
                (ElementType::F32, ElementType::F32),
                (ElementType::F64, ElementType::F64),
                (ElementType::Bf16, ElementType::Bf16),
                (ElementType::Bf16, ElementType::F32),
                (ElementType::F32, ElementType::F16),
                (ElementType::F16, ElementType::F16),
            ] {
                for len in LENGTHS {
                    let what = format!("{loss:?} {a} {b} {len}");
                    let ((x, x_gpu), (t, t_gpu)) = (draw.slice(gpu, a, len), draw.slice(gpu, b, len));
                    let pairs = || x.iter().zip(&t).map(|(x, t)| loss_of(loss, *x, *t));
                    let total = 0.1 * pairs().map(|(loss, _)| loss).sum::<f64>();
                    let result = pair_loss(gpu, loss, &x_gpu, &t_gpu, 0.1).unwrap();
                    assert_within(
                        gpu,
                        &what,
                        &result,
                        &[total],
                        if a == ElementType::F64 { 1e-12 } else { 1e-5 },
                    );
                    let grad = upload(gpu, a.wide(), &[-2.0]);
                    let expected: Vec<f64> = pairs().map(|(_, slope)| -0.2 * slope).collect();
                    if loss == PairLoss::KlStandardNormal {
                        let [dmu, dlogvar] =
                            kl_standard_normal_backward(gpu, &x_gpu, &t_gpu, 0.1, &grad).unwrap();
                        assert_close(gpu, &what, &dmu, &expected);
                        let expected: Vec<f64> = t.iter().map(|t| -0.1 * (t.exp() - 1.0)).collect();
                        assert_close(gpu, &what, &dlogvar, &expected);
                        continue;
                    }
                    let dx = pair_loss_backward(gpu, loss, &x_gpu, &t_gpu, 0.1, &grad).unwrap();
                    assert_close(gpu, &what, &dx, &expected);
                }
            }
        }
        let far = gpu.upload(&[200.0_f32, -200.0]).unwrap();
        let none = gpu.zeros(ElementType::F32, 2).unwrap();
        let grad = gpu.upload(&[1.0_f32]).unwrap();
        let loss = pair_loss(gpu, PairLoss::BceWithLogits, &far, &none, 1.0).unwrap();
        assert_eq!(download(gpu, &loss), [200.0]);
        let dx = pair_loss_backward(gpu, PairLoss::BceWithLogits, &far, &none, 1.0, &grad).unwrap();
        let dx = download(gpu, &dx);
        assert!(dx[0] == 1.0 && dx[1].abs() < 1e-30, "{dx:?}");
    });
}

const SGD: SgdOptions =
    SgdOptions { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.01, first: false };
const ADAM: AdamOptions =
    AdamOptions { lr: 0.01, betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1, decoupled: true, step: 3 };

/// Types of weights and gradients.
const STEPS: [(ElementType, ElementType); 4] = [
    (ElementType::F32, ElementType::F32),
    (ElementType::F64, ElementType::F64),
    (ElementType::F32, ElementType::Bf16),
    (ElementType::F32, ElementType::F16),
];

#[test]
fn steps_of_sgd() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(42);
        let kinds = [
            SGD,
            SgdOptions { momentum: 0.9, ..SGD },
            SgdOptions { momentum: 0.9, nesterov: true, ..SGD },
            SgdOptions { momentum: 0.9, first: true, ..SGD },
        ];
        for options in kinds {
            for (dtype, grad) in STEPS {
                for len in LENGTHS {
                    let what = format!("{options:?} {grad} {len}");
                    let ((mut w, w_gpu), (g, g_gpu)) =
                        (draw.slice(gpu, dtype, len), draw.slice(gpu, grad, len));
                    let (mut b, b_gpu) = draw.slice(gpu, dtype, len);
                    // The factor is on the device, as after clipping.
                    let factor = gpu.upload(&[0.5_f64]).unwrap();
                    let halved: Vec<f64> = g.iter().map(|g| 0.5 * g).collect();
                    cpu_sgd_step(&cpu(), options, &mut w, &halved, &mut b).unwrap();
                    let low = gpu.zeros(ElementType::Bf16, len).unwrap();
                    let step = StepInputs {
                        factor: Some(&factor),
                        low: Some(&low),
                        ..StepInputs::new(&w_gpu, &g_gpu)
                    };
                    sgd_step(gpu, options, step, Some(&b_gpu)).unwrap();
                    assert_close(gpu, &what, &w_gpu, &w);
                    assert_close(gpu, &what, &b_gpu, &b);
                    copy_is_rounded(gpu, &what, &low, &download(gpu, &w_gpu));
                }
            }
        }
        let w = gpu.zeros(ElementType::F32, 4).unwrap();
        assert!(sgd_step(gpu, SgdOptions { momentum: 0.9, ..SGD }, StepInputs::new(&w, &w), None).is_err());
    });
}

fn copy_is_rounded(gpu: &Gpu, what: &str, low: &phalanx_cuda::Slice, weights: &[f64]) {
    let expected: Vec<f64> = weights.iter().map(|w| rounded(low.dtype(), *w)).collect();
    assert_eq!(download(gpu, low), expected, "{what}: the copy");
}

#[test]
fn steps_of_adam() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(43);
        for options in
            [ADAM, AdamOptions { decoupled: false, step: 1, ..ADAM }, AdamOptions { step: 100_000, ..ADAM }]
        {
            for (dtype, grad) in STEPS {
                for len in LENGTHS {
                    let what = format!("{options:?} {grad} {len}");
                    let ((mut w, w_gpu), (g, g_gpu)) =
                        (draw.slice(gpu, dtype, len), draw.slice(gpu, grad, len));
                    let (mut m, m_gpu) = draw.slice(gpu, dtype, len);
                    let mut v: Vec<f64> = draw.numbers(dtype, len).into_iter().map(f64::abs).collect();
                    let v_gpu = upload(gpu, dtype, &v);
                    cpu_adam_step(&cpu(), options, &mut w, &g, &mut m, &mut v).unwrap();
                    let low = gpu.zeros(ElementType::F16, len).unwrap();
                    let run = gpu.zeros(ElementType::U32, 1).unwrap();
                    let step =
                        StepInputs { skip: Some(&run), low: Some(&low), ..StepInputs::new(&w_gpu, &g_gpu) };
                    adam_step(gpu, options, step, [&m_gpu, &v_gpu]).unwrap();
                    assert_close(gpu, &what, &w_gpu, &w);
                    assert_close(gpu, &what, &m_gpu, &m);
                    assert_close(gpu, &what, &v_gpu, &v);
                    copy_is_rounded(gpu, &what, &low, &download(gpu, &w_gpu));
                    let left_out = gpu.upload(&[1_u32]).unwrap();
                    let before = [&w_gpu, &m_gpu, &v_gpu].map(|slice| download(gpu, slice));
                    let step = StepInputs { skip: Some(&left_out), ..StepInputs::new(&w_gpu, &g_gpu) };
                    adam_step(gpu, options, step, [&m_gpu, &v_gpu]).unwrap();
                    assert_eq!([&w_gpu, &m_gpu, &v_gpu].map(|slice| download(gpu, slice)), before);
                    // Bias corrections count the steps that were not skipped.
                    let earlier = gpu.upload(&[3.0_f64]).unwrap();
                    let step = StepInputs { left_out: Some(&earlier), ..StepInputs::new(&w_gpu, &g_gpu) };
                    let issued = AdamOptions { step: options.step + 4, ..options };
                    adam_step(gpu, issued, step, [&m_gpu, &v_gpu]).unwrap();
                    let found = download(gpu, &w_gpu);
                    for (slice, values) in [&w_gpu, &m_gpu, &v_gpu].into_iter().zip(&before) {
                        slice.copy_from_on(&upload(gpu, dtype, values), Stream::Compute).unwrap();
                    }
                    let counted = AdamOptions { step: options.step + 1, ..options };
                    adam_step(gpu, counted, StepInputs::new(&w_gpu, &g_gpu), [&m_gpu, &v_gpu]).unwrap();
                    assert_close(gpu, &what, &w_gpu, &found);
                }
            }
        }
    });
}

#[test]
fn steps_of_lion() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(45);
        let options = LionOptions { lr: 0.01, betas: (0.9, 0.99), weight_decay: 0.1 };
        for (dtype, grad) in STEPS {
            for len in LENGTHS {
                let what = format!("{dtype} {grad} {len}");
                let ((mut w, w_gpu), (g, g_gpu)) = (draw.slice(gpu, dtype, len), draw.slice(gpu, grad, len));
                let (mut m, m_gpu) = draw.slice(gpu, dtype, len);
                let factor = gpu.upload(&[0.5_f64]).unwrap();
                let halved: Vec<f64> = g.iter().map(|g| 0.5 * g).collect();
                cpu_lion_step(&cpu(), options, &mut w, &halved, &mut m).unwrap();
                let low = gpu.zeros(ElementType::Bf16, len).unwrap();
                let step =
                    StepInputs { factor: Some(&factor), low: Some(&low), ..StepInputs::new(&w_gpu, &g_gpu) };
                lion_step(gpu, options, step, &m_gpu).unwrap();
                assert_close(gpu, &what, &w_gpu, &w);
                assert_close(gpu, &what, &m_gpu, &m);
                copy_is_rounded(gpu, &what, &low, &download(gpu, &w_gpu));
                let (left_out, before) = (gpu.upload(&[1_u32]).unwrap(), download(gpu, &w_gpu));
                lion_step(gpu, options, StepInputs { skip: Some(&left_out), ..step }, &m_gpu).unwrap();
                assert_eq!(download(gpu, &w_gpu), before);
            }
        }
        let (w, short) = (gpu.zeros(ElementType::F32, 4).unwrap(), gpu.zeros(ElementType::F32, 3).unwrap());
        assert!(lion_step(gpu, options, StepInputs::new(&w, &w), &short).is_err());
    });
}

#[test]
fn steps_of_lamb() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(46);
        let of_step = |step| LambOptions { lr: 0.01, betas: (0.9, 0.99), eps: 1e-6, weight_decay: 0.1, step };
        for (dtype, grad) in STEPS {
            for len in LENGTHS {
                let what = format!("{dtype} {grad} {len}");
                let ((mut w, w_gpu), (g, g_gpu)) = (draw.slice(gpu, dtype, len), draw.slice(gpu, grad, len));
                let (mut m, m_gpu) = draw.slice(gpu, dtype, len);
                let mut v: Vec<f64> = draw.numbers(dtype, len).into_iter().map(f64::abs).collect();
                let v_gpu = upload(gpu, dtype, &v);
                let moments = [&m_gpu, &v_gpu];
                // Of step 7, two were skipped.
                let (skipped, factor) = (gpu.upload(&[2.0_f64]).unwrap(), gpu.upload(&[0.5_f64]).unwrap());
                let step = StepInputs {
                    factor: Some(&factor),
                    left_out: Some(&skipped),
                    ..StepInputs::new(&w_gpu, &g_gpu)
                };
                let halved: Vec<f64> = g.iter().map(|g| 0.5 * g).collect();
                let mut direction = vec![0.0; len];
                cpu_lamb_direction(&cpu(), of_step(5), &w, &halved, [&m, &v], &mut direction).unwrap();
                let found = lamb_direction(gpu, of_step(7), step, moments).unwrap();
                assert_close(gpu, &what, &found, &direction);
                let squares = [4.0, 9.0].map(|square| gpu.upload(&[square]).unwrap());
                let squares = [&squares[0], &squares[1]];
                let (left_out, before) = (gpu.upload(&[1_u32]).unwrap(), download(gpu, &m_gpu));
                let skipped_step = StepInputs { skip: Some(&left_out), ..step };
                lamb_step(gpu, of_step(7), skipped_step, moments, Some(squares)).unwrap();
                assert_eq!(download(gpu, &m_gpu), before);
                let ratio = trust_ratio(4.0, 9.0);
                cpu_lamb_step(&cpu(), of_step(5), ratio, &mut w, &halved, [&mut m, &mut v]).unwrap();
                let low = gpu.zeros(ElementType::F16, len).unwrap();
                let step = StepInputs { low: Some(&low), ..step };
                lamb_step(gpu, of_step(7), step, moments, Some(squares)).unwrap();
                assert_close(gpu, &what, &w_gpu, &w);
                assert_close(gpu, &what, &m_gpu, &m);
                assert_close(gpu, &what, &v_gpu, &v);
                copy_is_rounded(gpu, &what, &low, &download(gpu, &w_gpu));
                // Without sums the learning rate is that of all.
                cpu_lamb_step(&cpu(), of_step(6), 1.0, &mut w, &g, [&mut m, &mut v]).unwrap();
                lamb_step(gpu, of_step(6), StepInputs::new(&w_gpu, &g_gpu), moments, None).unwrap();
                assert_close(gpu, &what, &w_gpu, &w);
            }
        }
    });
}

#[test]
fn averages_norms_and_factors() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(44);
        for dtype in FLOATS {
            for len in LENGTHS.into_iter().chain([70_001]) {
                let (x, x_gpu) = draw.slice(gpu, dtype, len);
                let squares: f64 = x.iter().map(|x| x * x).sum();
                assert_within(gpu, "squares", &sum_of_squares(gpu, &x_gpu).unwrap(), &[squares], 1e-13);
                if dtype == dtype.wide() {
                    let (mut average, average_gpu) = draw.slice(gpu, dtype, len);
                    let options = EmaOptions { decay: 0.99, updates: 5 };
                    cpu_ema_step(&cpu(), options.keep(), &mut average, &x).unwrap();
                    let step = EmaInputs::new(&average_gpu, &x_gpu);
                    ema_step(gpu, options, step).unwrap();
                    assert_close(gpu, "average", &average_gpu, &average);
                    let (left_out, before) = (gpu.upload(&[1_u32]).unwrap(), download(gpu, &average_gpu));
                    ema_step(gpu, options, EmaInputs { skip: Some(&left_out), ..step }).unwrap();
                    assert_eq!(download(gpu, &average_gpu), before);
                    let late = EmaOptions { updates: 9, ..options };
                    let earlier = gpu.upload(&[4.0_f64]).unwrap();
                    ema_step(gpu, late, EmaInputs { left_out: Some(&earlier), ..step }).unwrap();
                    cpu_ema_step(&cpu(), options.keep(), &mut average, &x).unwrap();
                    assert_close(gpu, "average of fewer", &average_gpu, &average);
                    // The first update that counts overwrites the average, even NaN.
                    let nothing = upload(gpu, dtype, &vec![f64::NAN; len]);
                    let first = EmaInputs { left_out: Some(&earlier), ..EmaInputs::new(&nothing, &x_gpu) };
                    ema_step(gpu, EmaOptions { updates: 4, ..options }, first).unwrap();
                    assert_eq!(download(gpu, &nothing), download(gpu, &x_gpu));
                }
                scale_by(gpu, &x_gpu, &gpu.upload(&[-0.25_f64]).unwrap()).unwrap();
                let scaled: Vec<f64> = x.iter().map(|x| -0.25 * x).collect();
                assert_close(gpu, "scaled", &x_gpu, &scaled);
            }
        }
        for (squares, expected) in
            [(4.0, 1.0), (16.0, 3.0 / (4.0 + 1e-6)), (f64::NAN, 1.0), (f64::INFINITY, 1.0)]
        {
            let factor = clip_factor(gpu, &gpu.upload(&[squares]).unwrap(), 3.0).unwrap();
            assert_eq!(gpu.download::<f64>(&factor).unwrap(), [expected]);
        }
    });
}

#[test]
fn the_scale_of_the_loss_changes_on_the_device() {
    on_gpu(|gpu| {
        let state = gpu.upload(&[1024.0_f64, 0.0, 0.0, 0.0]).unwrap();
        let options = LossScaleOptions { max_norm: Some(2.0), interval: Some(3) };
        let step = |squares: f64, elsewhere: bool| {
            let squares = gpu.upload(&[squares]).unwrap();
            let overflow = match elsewhere {
                true => gpu.upload(&[1.0_f64]).unwrap(),
                false => not_finite(gpu, &squares).unwrap(),
            };
            let ScaledStep { factor, skip, report } =
                loss_scale_step(gpu, options, (&squares, &overflow), &state).unwrap();
            let (factor, skip) =
                (gpu.download::<f64>(&factor).unwrap()[0], gpu.download::<u32>(&skip).unwrap()[0]);
            let (report, state) =
                (gpu.download::<f64>(&report).unwrap(), gpu.download::<f64>(&state).unwrap());
            assert_eq!((report[1], &report[3..]), (f64::from(skip), &state[..]));
            (factor, skip, report[..3].to_vec(), state)
        };
        // The CPU's results, for any input.
        let mut expected = [1024.0, 0.0, 0.0, 0.0];
        let norms = [1.0, 4.0, f64::INFINITY, f64::NAN, 0.0, 0.1, 3.0, 1.0, 1.0, 1.0];
        for (at, norm) in norms.into_iter().enumerate() {
            let (scale, elsewhere) = (expected[0], at == 7);
            let squares = (norm * scale).powi(2);
            let overflow = elsewhere || !squares.is_finite();
            let on_cpu = cpu_loss_scale_step(options, (squares, overflow), &mut expected);
            let (factor, skip, report, state) = step(squares, elsewhere);
            assert_eq!((factor, skip), (on_cpu.factor, u32::from(on_cpu.left_out)), "step {at}");
            assert_eq!((report[0], state.as_slice()), (scale, &expected[..]), "step {at}");
            assert!(report[2] == on_cpu.norm || report[2].is_nan() && on_cpu.norm.is_nan(), "step {at}");
        }
        assert_eq!(expected, [256.0, 2.0, 0.0, 3.0]);
    });
}
