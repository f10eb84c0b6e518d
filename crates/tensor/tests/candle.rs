//! Modules of candle-nn on the tape: those that candle can differentiate, and those that it cannot.
#![cfg(feature = "candle-nn")]

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
    // candle_nn's fused layer norm has no backward: in candle the gradient silently disappears.
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
    let mut module = CandleModule::register(&builder.root().pp("mlp").block(), |vb| {
        let hidden = candle_nn::linear(6, 8, vb.pp("hidden"))?;
        let out = candle_nn::linear(8, 1, vb.pp("out"))?;
        Ok((hidden, out))
    })
    .expect("two layers");
    let store = builder.build().expect("small");
    module.initialise().expect("built");
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
