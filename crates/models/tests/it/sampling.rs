//! Schedules, objectives and the sampling loop, without recorded values.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_models::diffusion::samplers::{SamplerConfig, SamplerKind, Spacing, noise_of_samples};
use phalanx_models::diffusion::{
    BetaSchedule, InitialImages, NoiseSchedule, Objective, Prediction, SamplingLoop, Uncertainty, latent_mask,
};
use phalanx_tensor::loss::{LossDivisor, mse};
use phalanx_tensor::{BuildOptions, Context, Key, Session, Tape, Value, ops};

use crate::harness::{self, evaluation_tape as tape, numbers};

fn schedule(kind: BetaSchedule) -> NoiseSchedule {
    NoiseSchedule::new(kind, 1000, kind.usual_range()).expect("a schedule")
}

#[test]
fn noise_depends_on_the_sample_alone() {
    let (tape, key) = (tape(), Key::new(3).stream("noise"));
    let together = numbers(&noise_of_samples(&tape, key, &[4, 9, 2], &[2, 3]).expect("drawn"));
    for (row, sample) in [4, 9, 2].into_iter().enumerate() {
        let alone = numbers(&noise_of_samples(&tape, key, &[sample], &[2, 3]).expect("drawn"));
        assert_eq!(alone, together[row * 6..(row + 1) * 6]);
    }
}

/// Makes a network that predicts the known image exactly.
fn knowing(
    schedule: &NoiseSchedule,
    prediction: Prediction,
    image: f64,
) -> impl Fn(&Tape, &Value, f64) -> Value {
    let alphas = schedule.alphas_cumprod().to_vec();
    move |tape, x, timestep| {
        // Noise levels are interpolated between timesteps, as in Euler's method.
        let level = |at: f64| ((1.0 - alphas[at as usize]) / alphas[at as usize].max(2_f64.powi(-24))).sqrt();
        let below = timestep.floor();
        let above = (below + 1.0).min(999.0);
        let sigma = level(below) + (level(above) - level(below)) * (timestep - below);
        let signal = 1.0 / (1.0 + sigma * sigma).sqrt();
        let strength = sigma * signal;
        // The network of a flow sees (1 − s)·image + s·noise.
        let whole = if prediction == Prediction::Flow { signal + strength } else { 1.0 };
        let sample = ops::scale(tape, x, whole).expect("scaled");
        let noise = ops::add_scalar(tape, &sample, -signal * image).expect("sum");
        let noise = ops::scale(tape, &noise, 1.0 / strength).expect("scaled");
        match prediction {
            Prediction::Flow => ops::add_scalar(tape, &noise, -image).expect("sum"),
            Prediction::Sample => {
                let nothing = ops::scale(tape, &noise, 0.0).expect("scaled");
                ops::add_scalar(tape, &nothing, image).expect("sum")
            }
            Prediction::Epsilon => noise,
            Prediction::Velocity => {
                let of_noise = ops::scale(tape, &noise, signal).expect("scaled");
                ops::add_scalar(tape, &of_noise, -strength * image).expect("sum")
            }
        }
    }
}

#[test]
fn an_expected_error_is_learnt_by_its_loss() {
    let (uncertainty, store) = harness::build(BuildOptions::default(), Uncertainty::new);
    assert_eq!(store.num_parameters(), 129);
    let (timesteps, errors) = ([10.0, 500.0, 990.0], [0.25, 1.0, 4.0]);
    // Each sample's squared error is that of its timestep.
    let target = Tensor::new(&[[0.5_f32, -0.5], [1.0, 1.0], [-2.0, 2.0]], &Device::Cpu).expect("numbers");
    let prediction = Value::constant(target.zeros_like().expect("zeros"));
    let target = Value::constant(target);
    let mut u = Vec::new();
    for _ in 0..400 {
        let tape = Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(1)));
        let found = uncertainty.forward(&tape, &timesteps).expect("fits");
        u = numbers(&found);
        let difference = Uncertainty::weigh(&tape, &found, &prediction, &target).expect("fits");
        let zeros = ops::full_like(&tape, &difference, 0.0).expect("as large");
        let error = mse(&tape, &difference, &zeros, LossDivisor::Batch).expect("fits");
        let loss = ops::add(&tape, &error, &ops::mean(&tape, &found).expect("numbers")).expect("scalars");
        tape.backward(&loss).expect("sound");
        for param in store.params() {
            let grad = param.grad().expect("built").expect("it takes part");
            let moved = param.tensor().expect("resident") - (grad * 0.02).expect("scaled");
            param.set(&moved.expect("as large")).expect("as large");
        }
        store.zero_grads();
    }
    for (u, error) in u.iter().zip(errors) {
        assert!((f64::from(*u) - f64::ln(error)).abs() < 0.02, "{u} of an error of {error}");
    }
}

#[test]
fn every_sampler_finds_the_image_of_an_exact_network() {
    for kind in SamplerKind::ALL {
        for prediction in Prediction::ALL {
            let plain = schedule(BetaSchedule::ScaledLinear);
            for schedule in [plain.zero_terminal_snr(), plain, schedule(BetaSchedule::Flow)] {
                if schedule.ends_in_noise() && *prediction == Prediction::Epsilon {
                    continue;
                }
                for eta in [0.0, 1.0] {
                    let config = SamplerConfig { eta, ..SamplerConfig::new(*kind, 12) };
                    let mut sampler = config.sampler(&schedule, *prediction).expect("a sampler");
                    let (tape, key) = (tape(), Key::new(1));
                    let noise = noise_of_samples(&tape, key, &[0, 1], &[1, 2, 2]).expect("drawn");
                    let network = knowing(&schedule, *prediction, 0.7);
                    let image = SamplingLoop { sampler: sampler.as_mut(), noise, initial: None }
                        .run(
                            &tape,
                            &mut |x, timestep| Ok(network(&tape, x, timestep)),
                            &mut |at| noise_of_samples(&tape, key.index(at as u64), &[0, 1], &[1, 2, 2]),
                            &mut |_, _, _| Ok(()),
                        )
                        .expect("samples");
                    let ends = schedule.alphas_cumprod()[999];
                    let what = format!("{kind} {prediction} of a schedule to {ends} eta {eta}");
                    for value in numbers(&image) {
                        assert!((value - 0.7).abs() < 0.02, "{what}: {value}");
                    }
                }
            }
        }
    }
}

#[test]
fn samplers_of_a_flow_take_steps_of_eulers_method_along_it() {
    let schedule = schedule(BetaSchedule::Flow);
    let direction = |tape: &Tape, x: &Value, timestep: f64| {
        let bent = ops::tanh(tape, x).expect("a function");
        ops::add_scalar(tape, &bent, timestep / 1000.0).expect("a sum")
    };
    for kind in [SamplerKind::Ddim, SamplerKind::Euler] {
        let spacing = Some(Spacing::Trailing);
        let config = SamplerConfig { spacing, ..SamplerConfig::new(kind, 4) };
        let mut sampler = config.sampler(&schedule, Prediction::Flow).expect("a sampler");
        let (tape, key) = (tape(), Key::new(5));
        let noise = noise_of_samples(&tape, key, &[0], &[1, 2, 2]).expect("drawn");
        let mut expected = noise.clone();
        for timestep in [999.0, 749.0, 499.0, 249.0] {
            let moved = ops::scale(&tape, &direction(&tape, &expected, timestep), -0.25).expect("scaled");
            expected = ops::add(&tape, &expected, &moved).expect("a sum");
        }
        let found = SamplingLoop { sampler: sampler.as_mut(), noise, initial: None }
            .run(
                &tape,
                &mut |x, timestep| Ok(direction(&tape, x, timestep)),
                &mut |_| panic!("no fresh noise"),
                &mut |_, _, _| Ok(()),
            )
            .expect("samples");
        for (found, expected) in numbers(&found).into_iter().zip(numbers(&expected)) {
            // Euler's largest noise level is finite.
            assert!((found - expected).abs() < 2e-3, "{kind}: {found} instead of {expected}");
        }
    }
}

#[test]
fn masked_elements_are_kept_and_a_strength_of_zero_changes_nothing() {
    let schedule = schedule(BetaSchedule::ScaledLinear);
    for kind in SamplerKind::ALL {
        let run = |strength: f64, mask: Option<Value>| {
            let tape = tape();
            let mut sampler =
                SamplerConfig::new(*kind, 8).sampler(&schedule, Prediction::Epsilon).expect("a sampler");
            let noise = noise_of_samples(&tape, Key::new(1), &[0], &[1, 2, 2]).expect("drawn");
            let images = Tensor::new(&[[[[0.1_f32, 0.2], [0.3, 0.4]]]], &Device::Cpu).expect("a picture");
            let known = InitialImages { images: Value::constant(images), strength, mask };
            let network = knowing(&schedule, Prediction::Epsilon, -0.9);
            let mut steps = 0;
            let image = SamplingLoop { sampler: sampler.as_mut(), noise, initial: Some(known) }
                .run(
                    &tape,
                    &mut |x, timestep| Ok(network(&tape, x, timestep)),
                    &mut |at| noise_of_samples(&tape, Key::new(2).index(at as u64), &[0], &[1, 2, 2]),
                    &mut |_, _, _| {
                        steps += 1;
                        Ok(())
                    },
                )
                .expect("samples");
            (numbers(&image), steps)
        };
        let (image, steps) = run(0.0, None);
        assert_eq!(steps, 0);
        for (value, expected) in image.iter().zip([0.1, 0.2, 0.3, 0.4]) {
            assert!((value - expected).abs() < 1e-6, "{kind}: {value}");
        }
        assert_eq!(run(0.5, None).1, 4);
        let mask = Tensor::new(&[[[[0.0_f32, 1.0], [1.0, 0.0]]]], &Device::Cpu).expect("a mask");
        let (image, _) = run(1.0, Some(Value::constant(mask)));
        for (value, expected) in image.iter().zip([0.1, -0.9, -0.9, 0.4]) {
            assert!((value - expected).abs() < 0.03, "{kind}: {value}");
        }
    }
}

#[test]
fn shifted_schedules_have_less_signal() {
    for kind in BetaSchedule::ALL.iter().copied() {
        let plain = schedule(kind);
        let shifted = plain.shifted(3.0).expect("a number above 0");
        assert!((0..1000).all(|t| (plain.snr(t) - 9.0 * shifted.snr(t)).abs() <= 1e-9 * plain.snr(t)));
        assert_eq!(plain.ends_in_noise(), shifted.ends_in_noise());
        // β belongs to the shifted ā.
        let mut product = 1.0;
        for (beta, alpha) in shifted.betas().iter().zip(shifted.alphas_cumprod()) {
            product *= 1.0 - beta;
            assert!((product - alpha).abs() < 1e-12, "{product} {alpha}");
        }
    }
    // A flow's share s of noise becomes shift·s/(1 + (shift − 1)·s) (Esser et al. 2024).
    let shifted = schedule(BetaSchedule::Flow).shifted(3.0).expect("a number above 0");
    let ratio = (1.0 - 0.75) / 0.75;
    assert!((shifted.snr(499) - ratio * ratio).abs() < 1e-9, "{}", shifted.snr(499));
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(schedule(BetaSchedule::Cosine).shifted(wrong).is_err());
    }
}

#[test]
fn objectives_weigh_and_refuse() {
    let schedule = schedule(BetaSchedule::Linear);
    let (noisy, clear) = (900, 5);
    assert!(schedule.snr(noisy) < 1.0 && schedule.snr(clear) > 100.0);
    assert_eq!(schedule.min_snr_weight(noisy, 5.0, Prediction::Epsilon), 1.0);
    let weight = schedule.min_snr_weight(clear, 5.0, Prediction::Epsilon);
    assert!((weight - 5.0 / schedule.snr(clear)).abs() < 1e-12);
    let weight = schedule.min_snr_weight(clear, 5.0, Prediction::Velocity);
    assert!((weight - 5.0 / (schedule.snr(clear) + 1.0)).abs() < 1e-12);
    let zero = schedule.zero_terminal_snr();
    assert_eq!(zero.min_snr_weight(999, 5.0, Prediction::Velocity), 0.0);
    let refused =
        Objective::new(zero.clone(), Prediction::Epsilon, None).expect_err("nothing to tell").to_string();
    assert!(refused.contains("v_prediction"), "{refused}");
    let objective = Objective::new(zero, Prediction::Velocity, Some(5.0)).expect("sound");
    assert_eq!(objective.timesteps(&[0.0, 0.5, 0.999_999_999]), [0, 500, 999]);
    assert_eq!(Objective::shifted(&[0.0, 0.3, 0.5], 1.0), [0.0, 0.3, 0.5]);
    let shifted = Objective::shifted(&[0.0, 0.5, 0.998, 1.0], 3.0);
    assert_eq!([shifted[0], shifted[1], shifted[3]], [0.0, 0.75, 1.0]);
    assert!(((1.0 - shifted[2]) * 3.0 / 0.002 - 1.0).abs() < 0.01, "three times as dense at the end");
    // In pure noise the velocity is the negative image.
    let tape = tape();
    let image = |value: f32| Value::constant(Tensor::full(value, (1, 1, 1, 2), &Device::Cpu).expect("small"));
    let noised = objective.noisy_samples(&tape, &image(0.5), &image(2.0), &[999]).expect("fits");
    assert_eq!((numbers(&noised.sample), numbers(&noised.target)), (vec![2.0; 2], vec![-0.5; 2]));
    // A quarter of the way along a flow; its direction is the same everywhere.
    let flow = Objective::new(self::schedule(BetaSchedule::Flow), Prediction::Flow, None).expect("sound");
    let noised = flow.noisy_samples(&tape, &image(0.5), &image(2.5), &[249]).expect("fits");
    assert!(numbers(&noised.sample).iter().all(|value| (value - 1.0).abs() < 1e-6));
    assert_eq!(numbers(&noised.target), vec![2.0; 2]);
    assert!((flow.schedule.snr(249) - 9.0).abs() < 1e-9 && flow.schedule.ends_in_noise());
    assert!((flow.schedule.min_snr_weight(249, 5.0, Prediction::Flow) - 5.0 / 16.0).abs() < 1e-9);
    let refused =
        objective.noisy_samples(&tape, &image(0.5), &image(2.0), &[1000]).expect_err("no such timestep");
    assert!(refused.to_string().contains("[1000] of 1000"), "{refused}");
    let config = SamplerConfig::new(SamplerKind::Ddim, 1001);
    assert!(config.sampler(&schedule, Prediction::Epsilon).is_err());
    let config = SamplerConfig { eta: 1.5, ..SamplerConfig::new(SamplerKind::Ddim, 10) };
    assert!(config.sampler(&schedule, Prediction::Epsilon).is_err());
    assert!("karras".parse::<SamplerKind>().is_err());
}

#[test]
fn a_mask_of_pixels_covers_every_latent_pixel_that_it_touches() {
    let mut mask = vec![0.0_f32; 16];
    mask[5] = 1.0;
    let mask = Tensor::from_vec(mask, (1, 1, 4, 4), &Device::Cpu).and_then(|mask| mask.to_dtype(DType::F32));
    let mask = Value::constant(mask.expect("a mask"));
    assert_eq!(numbers(&latent_mask(&tape(), &mask, 2).expect("fits")), [1.0, 0.0, 0.0, 0.0]);
    assert_eq!(numbers(&latent_mask(&tape(), &mask, 1).expect("fits")).len(), 16);
}
