//! Losses: gradients, extreme inputs, and divisors.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::gradcheck::check_gradients;
use phalanx_tensor::loss::{self, CrossEntropyOptions, JudgedRows, LabelPairs, LossDivisor, RowTargets};
use phalanx_tensor::ops::{LinearWeight, WeightLayout};
use phalanx_tensor::{Context, Key, Result, Session, Tape, TensorError, Value, ops};

fn draw(name: &str, dims: &[usize]) -> Tensor {
    let mut values = vec![0.0; dims.iter().product()];
    Key::new(5).stream(name).normal(0, &mut values);
    Tensor::from_vec(values, dims, &Device::Cpu).expect("as many values as the shape has")
}

#[track_caller]
fn check(inputs: &[Tensor], f: impl Fn(&Tape, &[Value]) -> Result<Value>) {
    let worst = check_gradients(inputs, f).expect("sound");
    assert!(worst < 1e-5, "worst relative difference {worst:e}");
}

#[test]
fn gradients() {
    let target = Value::constant(draw("target", &[3, 2, 5]));
    let x = [draw("x", &[3, 2, 5])];
    for over in [LossDivisor::Batch, LossDivisor::Count(7)] {
        check(&x, |t, v| loss::l1(t, &v[0], &target, over));
        check(&x, |t, v| loss::smooth_l1(t, &v[0], &target, 0.5, over));
        check(&x, |t, v| loss::mse(t, &v[0], &target, over));
        let targets =
            Value::constant(Tensor::new(&[[0.0, 1.0], [0.3, 0.9]], &Device::Cpu).expect("a constant"));
        check(&[draw("x", &[2, 2])], |t, v| loss::bce_with_logits(t, &v[0], &targets, over));
        check(&[draw("mu", &[3, 4]), draw("logvar", &[3, 4])], |t, v| {
            loss::kl_standard_normal(t, &v[0], &v[1], over)
        });
        for smoothing in [0.0, 0.1] {
            check(&[draw("logits", &[4, 6])], |t, v| {
                loss::cross_entropy(t, &v[0], &[5, 0, 2, 2], smoothing, over)
            });
            check(&[draw("logits", &[4, 6])], |t, v| {
                let pairs = LabelPairs { labels: &[5, 0, 2, 2], partners: &[0, 5, 2, 1], share: 0.3 };
                loss::mixed_cross_entropy(t, &v[0], pairs, smoothing, over)
            });
        }
        for (z_loss, soft_cap) in [(0.0, None), (0.1, Some(2.0))] {
            let options = CrossEntropyOptions { smoothing: 0.1, z_loss, soft_cap, classes: Some(5) };
            let weights = [1.0, 0.0, 0.5, 2.0, 1.0, 0.0];
            let targets = RowTargets { labels: (&[4, 9, 0, 1, 2, 0]).into(), weights: Some(&weights), over };
            check(&[draw("logits", &[2, 3, 6])], |t, v| {
                loss::cross_entropy_of_rows(t, &v[0], &targets, options)
            });
            check(&[draw("x", &[2, 3, 4]), draw("w", &[6, 4]), draw("b", &[6])], |t, v| {
                let layout = WeightLayout::OutputsFirst;
                let of = LinearWeight { weight: &v[1], layout, bias: Some(&v[2]) };
                loss::linear_cross_entropy(t, &v[0], of, &targets, options)
            });
        }
        check(&[draw("i", &[3, 4]), draw("t", &[3, 4]), draw("s", &[1])], |t, v| {
            let (image, text) = (ops::l2_normalise(t, &v[0])?, ops::l2_normalise(t, &v[1])?);
            loss::clip_contrastive(t, &image, &text, &v[2], over)
        });
    }
}

fn tape() -> Tape {
    Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)))
}

fn scalar(value: &Value) -> f64 {
    value.tensor().and_then(|t| Ok(t.to_dtype(DType::F64)?.to_scalar::<f64>()?)).expect("a scalar")
}

/// Values of `torch.nn.functional.cross_entropy` of PyTorch 2.15 in f64, for logits 2·sin(0.7 i); mixed ones by targets of
/// probabilities, as torchvision's MixUp makes them. The gradients are those of two logits.
#[test]
fn smoothed_and_mixed_labels_are_those_of_pytorch() {
    let logits = (0..18).map(|at| 2.0 * (0.7 * f64::from(at)).sin()).collect::<Vec<_>>();
    let logits = Tensor::from_vec(logits, (3, 6), &Device::Cpu).expect("18 numbers");
    let (labels, partners) = ([5, 0, 2], [1, 0, 3]);
    for (share, smoothing, expected) in [
        (1.0, 0.0, [3.612_890_274_050_720_5, -0.325_017_779_368_887_5, 0.027_426_255_893_605_634]),
        (1.0, 0.1, [3.507_145_921_467_746, -0.297_240_001_591_109_7, 0.021_870_700_338_050_074]),
        (1.0, 0.6, [2.978_424_158_552_874, -0.158_351_112_702_220_83, -0.005_907_077_439_727_699]),
        (0.3, 0.0, [3.388_057_608_087_189, -0.091_684_446_035_554_16, 0.027_426_255_893_605_634]),
        (0.3, 0.1, [3.304_796_522_100_568, -0.087_240_001_591_109_73, 0.021_870_700_338_050_077]),
    ] {
        let tape = tape();
        let value = tape.leaf(logits.clone());
        let pairs = LabelPairs { labels: &labels, partners: &partners, share };
        let loss =
            loss::mixed_cross_entropy(&tape, &value, pairs, smoothing, LossDivisor::Batch).expect("sound");
        if share == 1.0 {
            let alone =
                loss::cross_entropy(&tape, &value, &labels, smoothing, LossDivisor::Batch).expect("sound");
            assert_eq!(scalar(&alone), scalar(&loss));
        }
        tape.backward(&loss).expect("differentiates");
        let grads = tape.leaf_grad(&value).and_then(|grads| grads.tensor().ok()?.to_vec2::<f64>().ok());
        let grads = grads.expect("numbers");
        for (found, expected) in [scalar(&loss), grads[0][5], grads[1][3]].into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-13, "{share} {smoothing}: {found} is not {expected}");
        }
    }
    let tape = tape();
    let pairs = LabelPairs { labels: &labels, partners: &partners, share: 1.5 };
    let value = tape.leaf(logits);
    assert!(loss::mixed_cross_entropy(&tape, &value, pairs, 0.0, LossDivisor::Batch).is_err());
}

#[test]
fn extreme_logits_give_finite_losses_and_gradients() {
    let extremes = Tensor::new(&[[1e4_f32, -1e4], [-1e4, 1e4]], &Device::Cpu).expect("a constant");
    let tape = tape();
    let x = tape.leaf(extremes.clone());
    let loss = loss::cross_entropy(&tape, &x, &[1, 1], 0.0, LossDivisor::Batch).expect("sound");
    assert_eq!(scalar(&loss), 1e4);
    tape.backward(&loss).expect("sound");
    let grad = tape
        .leaf_grad(&x)
        .and_then(|g| g.tensor().ok()?.flatten_all().ok()?.to_vec1::<f32>().ok())
        .expect("a gradient");
    assert_eq!(grad, [0.5, -0.5, 0.0, 0.0]);
    let x = tape.leaf(extremes);
    let targets =
        Value::constant(Tensor::new(&[[0.0_f32, 0.0], [1.0, 1.0]], &Device::Cpu).expect("a constant"));
    let loss = loss::bce_with_logits(&tape, &x, &targets, LossDivisor::Batch).expect("sound");
    assert_eq!(scalar(&loss), 5e3);
    tape.backward(&loss).expect("sound");
    let grad = tape
        .leaf_grad(&x)
        .and_then(|g| g.tensor().ok()?.flatten_all().ok()?.to_vec1::<f32>().ok())
        .expect("a gradient");
    assert_eq!(grad, [0.25, 0.0, -0.25, 0.0]);
}

#[test]
fn judged_rows_have_the_loss_and_count_the_most_probable_labels() {
    let logits = draw("logits", &[3, 2, 6]).to_dtype(DType::F32).expect("floats");
    let rows = logits.reshape((6, 6)).expect("6 rows").to_vec2::<f32>().expect("f32");
    let best: Vec<u32> = rows
        .iter()
        .map(|row| (1..5).fold(0, |best: usize, at| if row[at] > row[best] { at } else { best }) as u32)
        .collect();
    // Two rows of other labels, and one without weight, whose label is no class.
    let labels = [best[0], best[1], (best[2] + 1) % 5, best[3], (best[4] + 4) % 5, 9];
    let weights = [1.0, 0.5, 4.0, 2.0, 8.0, 0.0];
    let over = LossDivisor::Sum(15.5);
    let targets = RowTargets { labels: (&labels).into(), weights: Some(&weights), over };
    for soft_cap in [None, Some(2.0)] {
        let options = CrossEntropyOptions { soft_cap, classes: Some(5), ..Default::default() };
        for (dtype, within) in [(DType::F64, 1e-7), (DType::F32, 1e-6), (DType::BF16, 1e-6)] {
            let value = Value::constant(logits.to_dtype(dtype).expect("floats"));
            let JudgedRows { loss, right } =
                loss::judge_rows(&tape(), &value, &targets, options).expect("sound");
            let expected = loss::cross_entropy_of_rows(&tape(), &value, &targets, options).expect("sound");
            assert!((loss - scalar(&expected)).abs() < within, "{dtype:?} {options:?}: {loss}");
            assert_eq!(right, 3.5, "{dtype:?} {options:?}");
        }
    }
    let short = RowTargets { labels: (&labels[..5]).into(), ..targets };
    let value = Value::constant(logits);
    let error = loss::judge_rows(&tape(), &value, &short, CrossEntropyOptions::default()).expect_err("short");
    assert!(error.to_string().contains("5 labels for 6 rows of logits"), "{error}");
}

#[test]
fn shares_of_a_batch_add_up_to_its_mean() {
    let tape = tape();
    let (x, t) = (draw("x", &[5, 3]), draw("t", &[5, 3]));
    let part = |tensor: &Tensor, start, len| Value::constant(tensor.narrow(0, start, len).expect("in range"));
    let whole =
        scalar(&loss::mse(&tape, &part(&x, 0, 5), &part(&t, 0, 5), LossDivisor::Batch).expect("sound"));
    let shares = [(0, 2), (2, 3)].map(|(start, len)| {
        scalar(
            &loss::mse(&tape, &part(&x, start, len), &part(&t, start, len), LossDivisor::Count(5))
                .expect("sound"),
        )
    });
    assert!((shares[0] + shares[1] - whole).abs() < 1e-12);
}

#[test]
fn samples_count_by_their_weights() {
    let labels = [5, 0, 2, 2];
    let weighted = |tape: &Tape, logits: &Value, weights: &[f32], sum| {
        loss::weighted(tape, logits, weights, sum, |logits, rows, over| {
            loss::cross_entropy(tape, logits, &labels[rows], 0.0, over)
        })
    };
    let (tape, logits) = (tape(), draw("logits", &[4, 6]));
    let value = Value::constant(logits.clone());
    let row = |row: usize| {
        let logits = Value::constant(logits.narrow(0, row, 1).expect("in range"));
        scalar(&loss::cross_entropy(&tape, &logits, &[labels[row]], 0.0, LossDivisor::Batch).expect("sound"))
    };
    // Two of four samples count half and one not at all; other ranks have a weight of 3 more.
    let weights = [0.5, 0.5, 0.0, 2.0];
    let expected = (0.5 * row(0) + 0.5 * row(1) + 2.0 * row(3)) / 6.0;
    let found = scalar(&weighted(&tape, &value, &weights, 6.0).expect("sound"));
    assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    check(&[logits], |t, v| weighted(t, &v[0], &weights, 6.0));
    // Equal weights give a plain loss, to the bit.
    let plain = loss::cross_entropy(&tape, &value, &labels, 0.0, LossDivisor::Count(7)).expect("sound");
    let even = scalar(&weighted(&tape, &value, &[1.0; 4], 7.0).expect("sound"));
    assert_eq!(even.to_bits(), scalar(&plain).to_bits());
    // A batch without weight has a loss of 0, also if all ranks together have no weight.
    for sum in [0.0, 3.0] {
        assert_eq!(scalar(&weighted(&tape, &value, &[0.0; 4], sum).expect("sound")), 0.0);
    }
    assert!(weighted(&tape, &value, &[1.0; 3], 1.0).is_err());
    assert!(weighted(&tape, &value, &[1.0, 1.0, -1.0, 1.0], 1.0).is_err());
}

#[test]
fn wrong_arguments_are_named() {
    let tape = tape();
    let logits = Value::constant(draw("logits", &[2, 3]));
    let error = loss::cross_entropy(&tape, &logits, &[0, 3], 0.0, LossDivisor::Batch)
        .expect_err("no class 3")
        .to_string();
    assert!(error.contains("label 3 of row 1") && error.contains("3 classes"), "{error}");
    assert!(loss::cross_entropy(&tape, &logits, &[0], 0.0, LossDivisor::Batch).is_err());
    assert!(loss::cross_entropy(&tape, &logits, &[0, 1], 1.0, LossDivisor::Batch).is_err());
    let other = Value::constant(draw("other", &[3, 2]));
    assert!(matches!(loss::l1(&tape, &logits, &other, LossDivisor::Batch), Err(TensorError::Shape { .. })));
    let target = tape.leaf(draw("logits", &[2, 3]));
    let error = loss::l1(&tape, &logits, &target, LossDivisor::Batch).expect_err("targets have no gradient");
    assert!(error.to_string().contains("detach"), "{error}");
}
