//! Models trained in bf16 and f16 against f32: the same curves within their precision.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_models::{
    Clip, ClipTextConfig, CvaeConfig, ImageTowerConfig, MobileNetV2, MobileNetV2Config, ResNet, ResNetConfig,
    ResNetVariant, TextToImage,
};
use phalanx_tensor::loss::{self, LossDivisor};
use phalanx_tensor::optim::{Adam, LossScale, Optimizer, Sgd, StepDecision, grad_sum_of_squares};
use phalanx_tensor::{
    Array, BuildOptions, Context, Key, Precision, Recompute, Result, Session, StoreBuilder, Tape,
    TensorError, Value,
};

use crate::harness;

const STEPS: u64 = 20;
const BATCH: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq)]
enum TestedModel {
    ResNet,
    MobileNet,
    Cvae,
    Clip,
}

type Forward = Box<dyn Fn(&Tape, &Value, &Tensor) -> Result<Value>>;

fn build(subject: TestedModel, builder: &StoreBuilder) -> Result<Forward> {
    let root = builder.root();
    let text =
        ClipTextConfig { context: 8, vocab: 12, width: 16, heads: 2, layers: 2, embed: 12, causal: true };
    let labels: Vec<u32> = (0..BATCH).map(|i| (i % 4) as u32).collect();
    Ok(match subject {
        TestedModel::ResNet => {
            let config =
                ResNetConfig { width: 8, cifar_stem: true, ..ResNetConfig::new(ResNetVariant::R18, 4) };
            let model = ResNet::new(&root, &config)?;
            Box::new(move |t, x, _| {
                loss::cross_entropy(t, &model.forward(t, x)?, &labels, 0.1, LossDivisor::Batch)
            })
        }
        TestedModel::MobileNet => {
            let config = MobileNetV2Config { cifar_stem: true, ..MobileNetV2Config::new(4) };
            let model = MobileNetV2::new(&root, &config)?;
            Box::new(move |t, x, _| {
                loss::cross_entropy(t, &model.forward(t, x)?, &labels, 0.0, LossDivisor::Batch)
            })
        }
        TestedModel::Cvae => {
            let cvae = CvaeConfig { image_size: 16, widths: vec![8, 12], latent: 6, text_dim: 12 };
            let model = TextToImage::new(&root, &text, &cvae, false)?;
            Box::new(move |t, x, ids| {
                Ok(model.forward(t, x, ids)?.loss(t, x, (0.01, 0.5), LossDivisor::Batch)?.total)
            })
        }
        TestedModel::Clip => {
            let model = Clip::new(&root, &text, &ImageTowerConfig { widths: vec![8, 12] })?;
            Box::new(move |t, x, ids| {
                let out = model.forward(t, x, ids)?;
                loss::clip_contrastive(t, &out.image, &out.text, &out.scale, LossDivisor::Batch)
            })
        }
    })
}

fn train(subject: TestedModel, precision: Precision, recompute: Recompute, steps: u64) -> Vec<f64> {
    let builder = StoreBuilder::new(BuildOptions { key: Key::new(3), ..Default::default() });
    let forward = build(subject, &builder).expect("a sound configuration");
    let store = builder.build().expect("enough memory");
    let context = Arc::new(Context::new(1).with_products(precision.products()));
    let mut optimizer: Box<dyn Optimizer> = match subject {
        TestedModel::ResNet | TestedModel::MobileNet => Box::new(Sgd::new(0.9, false, 5e-4)),
        TestedModel::Cvae | TestedModel::Clip => Box::new(Adam::new((0.9, 0.999), 1e-8, 0.0)),
    };
    let lr = if subject == TestedModel::MobileNet { 1e-3 } else { 5e-3 };
    // Small enough that no step is skipped, which would shift the curve.
    let start = || LossScale::dynamic_from(1024.0).expect("positive");
    let mut scale = (precision == Precision::F16).then(start);
    let ids = (0..BATCH).flat_map(|i| [10, 1 + (i % 3) as u32, 4 + (i % 5) as u32, 11]).collect::<Vec<u32>>();
    let ids = Tensor::from_vec(ids, (BATCH, 4), &Device::Cpu).expect("a constant");
    let mut losses = Vec::new();
    for step in 0..steps {
        let session = Session::training(context.clone(), Key::new(9).step(step));
        let tape = Tape::recording(Session { precision, recompute, ..session });
        let images = Value::constant(harness::random(
            Key::new(5).stream("images").step(step % 2),
            &[BATCH, 3, 16, 16],
            DType::F32,
        ));
        let loss = forward(&tape, &images, &ids).expect("every op knows this precision");
        losses.push(f64::from(loss.tensor().expect("a tensor").to_scalar::<f32>().expect("losses are f32")));
        store.zero_grads();
        let params = store.buckets();
        let factor = scale.as_ref().map_or(1.0, LossScale::scale);
        tape.backward_scaled(&loss, factor).expect("sound");
        let scaled = scale.as_mut().map(|scale| {
            let squares = grad_sum_of_squares(params, &context).expect("held");
            let alone = |_: &Array| Ok::<_, TensorError>(());
            let scaled = scale.step(&squares, None, &context, alone).expect("on the host");
            let outcome = scale.apply_report(&scaled.read().expect("on the host")).expect("numbers");
            assert!(!outcome.left_out, "{subject:?}, step {step}");
            scaled
        });
        optimizer.scaled_step(params, lr, scaled.as_ref().map(StepDecision::step), &context).expect("held");
    }
    losses
}

#[test]
fn low_precision_learns_as_f32_does() {
    // The allowed mean difference of curves, relative to the first loss: rounding noise that training amplifies.
    for (subject, bf16, f16) in [(TestedModel::ResNet, 0.05, 0.02), (TestedModel::Cvae, 0.02, 0.01)] {
        let exact = train(subject, Precision::F32, Recompute::Never, STEPS);
        assert!(exact[19] < 0.9 * exact[0], "{subject:?} learns: {exact:?}");
        for (precision, tolerance) in [(Precision::Bf16, bf16), (Precision::F16, f16)] {
            let low = train(subject, precision, Recompute::Never, STEPS);
            assert!(low.iter().all(|loss| loss.is_finite()), "{subject:?}, {precision}: {low:?}");
            let apart = low.iter().zip(&exact).map(|(low, exact)| (low - exact).abs()).sum::<f64>();
            let apart = apart / (STEPS as f64 * exact[0]);
            assert!(apart < tolerance, "{subject:?}, {precision}: {apart} apart; {low:?}, {exact:?}");
            // The same bits twice; with recomputation, the same curve.
            assert_eq!(low[..5], train(subject, precision, Recompute::Never, 5), "{subject:?}, {precision}");
            let again = train(subject, precision, Recompute::Every(1), 5);
            for (low, again) in low.iter().zip(&again) {
                assert!(
                    (low - again).abs() < tolerance * low,
                    "{subject:?}, {precision}, recomputed: {again}"
                );
            }
        }
    }
}

#[test]
fn every_model_trains_in_every_precision() {
    for subject in [TestedModel::MobileNet, TestedModel::Clip] {
        let exact = train(subject, Precision::F32, Recompute::Never, 3);
        for precision in [Precision::Bf16, Precision::F16] {
            let low = train(subject, precision, Recompute::Every(2), 3);
            for (low, exact) in low.iter().zip(&exact) {
                assert!((low - exact).abs() < 0.1 * exact, "{subject:?}, {precision}: {low} and {exact}");
            }
        }
    }
}
