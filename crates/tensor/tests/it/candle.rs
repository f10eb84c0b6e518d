//! candle-nn modules on the tape: with and without a backward in candle.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::{
    BuildOptions, CandleModule, Context, Key, Session, StoreBuilder, Tape, TensorError, Value, ops,
};

fn input() -> Tensor {
    let mut values = vec![0.0; 24];
    Key::new(8).normal(0, &mut values);
    Tensor::from_vec(values, (4, 6), &Device::Cpu).and_then(|t| t.to_dtype(DType::F32)).expect("a constant")
}

#[test]
fn a_segment_that_candle_cannot_differentiate_is_an_error() {
    // candle_nn's fused layer norm has no backward: candle cuts its gradient silently.
    let tape = Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(1)));
    let x = tape.leaf(input());
    let norm = candle_nn::LayerNorm::new(
        Tensor::ones(6, DType::F32, &Device::Cpu).expect("small"),
        Tensor::zeros(6, DType::F32, &Device::Cpu).expect("small"),
        1e-5,
    );
    let y = tape.segment(&[&x], |x| candle_nn::Module::forward(&norm, &x[0])).expect("forward works");
    let loss = ops::sum(&tape, &y).expect("sound");
    assert!(matches!(tape.backward(&loss), Err(TensorError::Backward(_))));
}

#[test]
fn a_candle_model_trains_as_a_module() {
    let builder = StoreBuilder::new(BuildOptions::default());
    let module = CandleModule::register(&builder.root().pp("mlp").block(), |vb| {
        let hidden = candle_nn::linear(6, 8, vb.pp("hidden"))?;
        let out = candle_nn::linear(8, 1, vb.pp("out"))?;
        Ok((hidden, out))
    })
    .expect("two layers");
    let store = builder.build().expect("small");
    let names: Vec<_> = store.params().iter().map(|p| p.name().to_owned()).collect();
    assert_eq!(names, ["mlp.hidden.bias", "mlp.hidden.weight", "mlp.out.bias", "mlp.out.weight"]);
    let context = Arc::new(Context::new(1));
    let mut losses = Vec::new();
    for step in 0..50 {
        let tape = Tape::recording(Session::training(context.clone(), Key::new(1).step(step)));
        let y = module
            .forward(&tape, &[&Value::constant(input())], |(hidden, out), x| {
                use candle_nn::Module as _;
                out.forward(&hidden.forward(&x[0])?.tanh()?)
            })
            .expect("sound");
        let off = ops::add_scalar(&tape, &y, -1.0).expect("sound");
        let loss = ops::mean(&tape, &ops::mul(&tape, &off, &off).expect("sound")).expect("sound");
        losses.push(loss.tensor().expect("a tensor").to_scalar::<f32>().expect("f32"));
        store.zero_grads();
        tape.backward(&loss).expect("sound");
        for param in store.params() {
            let grad = param.grad().expect("built").expect("used");
            let moved = (param.tensor().expect("resident") - (grad * 0.1).expect("sound")).expect("sound");
            param.set(&moved).expect("the same shape");
        }
    }
    assert!(losses[49] < 0.1 * losses[0], "{losses:?}");
}

#[test]
fn variables_begin_as_candle_says_and_the_same_in_every_run() {
    use candle_nn::init::{DEFAULT_KAIMING_NORMAL, DEFAULT_KAIMING_UNIFORM, ZERO};

    let start = |seed| {
        let builder = StoreBuilder::new(BuildOptions { key: Key::new(seed), ..BuildOptions::default() });
        CandleModule::register(&builder.root().pp("net").block(), |vb| {
            vb.get_with_hints((64, 100), "normal", DEFAULT_KAIMING_NORMAL)?;
            vb.get_with_hints(3, "zero", ZERO)?;
            candle_nn::layer_norm(5, 1e-5, vb.pp("norm"))?;
            // Two layers may share a variable.
            vb.get_with_hints((64, 100), "uniform", DEFAULT_KAIMING_UNIFORM)?;
            vb.get_with_hints((64, 100), "uniform", DEFAULT_KAIMING_UNIFORM)
        })
        .expect("sound");
        let store = builder.build().expect("small");
        let value = |param: &phalanx_tensor::Param| {
            let values = param.tensor().and_then(|value| Ok(value.flatten_all()?.to_vec1::<f32>()?));
            (param.name().to_owned(), values.expect("resident"))
        };
        store.params().iter().map(value).collect::<Vec<_>>()
    };
    let (first, again, other) = (start(1), start(1), start(2));
    assert!(first == again && first != other);
    let names: Vec<&str> = first.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["net.norm.bias", "net.norm.weight", "net.normal", "net.uniform", "net.zero"]);
    assert!(first[0].1 == [0.0; 5] && first[1].1 == [1.0; 5] && first[4].1 == [0.0; 3]);
    let deviation = |values: &[f32]| {
        (values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
    };
    // Kaiming, for 100 inputs: a standard deviation of √(2 / 100).
    assert!((deviation(&first[2].1) / 0.02_f64.sqrt() - 1.0).abs() < 0.05);
    let largest = first[3].1.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    assert!((0.9..=1.0).contains(&(f64::from(largest) / 0.06_f64.sqrt())), "{largest}");

    let builder = StoreBuilder::new(BuildOptions::default());
    let two = CandleModule::register(&builder.root(), |vb| {
        vb.get(3, "w")?;
        vb.get(4, "w")
    });
    let said = two.map(drop).expect_err("two shapes").to_string();
    assert!(said.contains("variable w is asked for as [3] and as [4]"), "{said}");
}
