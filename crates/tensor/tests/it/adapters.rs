//! Adapters of linear layers: their products, gradients and merged weights.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::nn::Linear;
use phalanx_tensor::{
    AdapterRule, BuildOptions, ComputeDevice, Context, Init, Key, NamePattern, ParamRules, ParamStore,
    Session, StoreBuilder, Tape, Value, ops,
};

/// Two layers of 5 inputs and 3 outputs, the second with a weight [I, O], both with adapters of rank 2.
fn layers(dropout: f64) -> (ParamStore, [Linear; 2]) {
    let adapters = AdapterRule { rank: 2, alpha: 3.0, dropout, layers: Vec::new(), trained: Vec::new() };
    let rules = Arc::new(ParamRules { adapters: Some(adapters), ..ParamRules::default() });
    let builder = StoreBuilder::new(BuildOptions { dtype: DType::F64, rules, ..BuildOptions::default() });
    let scope = builder.root();
    let (init, zeros) = (Init::TorchDefault, Some(Init::ZEROS));
    let layers = [
        Linear::with_init(&scope.pp("a").block(), 5, 3, init, zeros).expect("a new name"),
        Linear::inputs_first(&scope.pp("b").block(), 5, 3, init, zeros).expect("a new name"),
    ];
    (builder.build().expect("small"), layers)
}

fn draw(name: &str, dims: &[usize]) -> Tensor {
    let mut values = vec![0.0; dims.iter().product()];
    Key::new(5).stream(name).normal(0, &mut values);
    Tensor::from_vec(values, dims, &Device::Cpu).and_then(|t| t.to_dtype(DType::F64)).expect("small")
}

fn largest(tensor: &Tensor) -> f64 {
    let all = tensor.flatten_all().and_then(|t| t.to_vec1::<f64>()).expect("f64");
    all.iter().fold(0.0, |most, value| value.abs().max(most))
}

fn forward(layer: &Linear, tape: &Tape, x: &Tensor) -> Value {
    let x = Value::constant(ComputeDevice::host().put(x).expect("on the host"));
    layer.forward(tape, &x).expect("it fits")
}

fn session() -> Session {
    Session::evaluation(Arc::new(Context::new(1)))
}

#[test]
fn a_layer_with_an_adapter_is_that_of_the_merged_weight() {
    let (store, layers) = layers(0.0);
    let x = draw("x", &[2, 4, 5]);
    let before = layers.each_ref().map(|layer| forward(layer, &Tape::forward_only(session()), &x));
    for (layer, built) in layers.iter().zip(store.adapted_layers()) {
        let param = |name: String| store.param(&name).expect("known");
        assert_eq!(param(built.a()).dims(), [2, 5]);
        assert!(param(built.a()).is_adapter() && param(built.b()).trainable());
        assert!(!param(built.weight()).trainable() && !param(format!("{}.bias", built.name)).trainable());
        param(built.b()).set(&draw(&built.name, &[3, 2])).expect("it fits");
        let tensor = |name: String| param(name).tensor().expect("in memory");
        let merged = built.merged(&tensor(built.weight()), &tensor(built.a()), &tensor(built.b()));
        let merged = merged.expect("it fits");
        let merged = if built.inputs_first { merged } else { merged.t().expect("a matrix") };
        let expected = x.broadcast_matmul(&merged).expect("it fits");
        let found = forward(layer, &Tape::forward_only(session()), &x);
        let found = found.array().and_then(|array| Ok(array.to_host()?)).expect("a value");
        assert!(largest(&(&found - &expected).expect("one shape")) < 1e-12, "{}", built.name);
        let first = before[usize::from(built.inputs_first)].array().and_then(|array| Ok(array.to_host()?));
        assert!(largest(&(found - first.expect("a value")).expect("one shape")) > 0.1, "B was zero");
    }
}

#[test]
fn gradients_of_adapters_are_those_of_finite_differences() {
    let (store, layers) = layers(0.0);
    let (x, factors) = (draw("x", &[6, 5]), draw("factors", &[6, 3]));
    for name in ["a.lora_B.weight", "b.lora_B.weight"] {
        store.param(name).expect("known").set(&draw(name, &[3, 2])).expect("it fits");
    }
    let loss = |tape: &Tape| {
        let factors = Value::constant(ComputeDevice::host().put(&factors).expect("a value"));
        let [a, b] = layers.each_ref().map(|layer| forward(layer, tape, &x));
        let product = ops::mul(tape, &ops::mul(tape, &a, &b)?, &factors)?;
        ops::sum(tape, &product)
    };
    let value = |store: &ParamStore, name: &str, at: usize, step: f64| {
        let param = store.param(name).expect("known");
        let own = param.to_host().and_then(|t| Ok(t.flatten_all()?.to_vec1::<f64>()?)).expect("in memory");
        let mut moved = own.clone();
        moved[at] += step;
        let set = |values: Vec<f64>| {
            param
                .set(&Tensor::from_vec(values, param.dims(), &Device::Cpu).expect("as many"))
                .expect("it fits");
        };
        set(moved);
        let found = loss(&Tape::forward_only(session())).expect("it fits");
        set(own);
        let found = found.array().and_then(|array| Ok(array.to_host()?)).expect("a value");
        found.to_scalar::<f64>().expect("a number")
    };
    let tape = Tape::recording(session());
    let sum = loss(&tape).expect("it fits");
    tape.backward(&sum).expect("a number");
    for name in ["a.lora_A.weight", "a.lora_B.weight", "b.lora_A.weight", "b.lora_B.weight"] {
        let grad = store.param(name).expect("known").grad().expect("built").expect("trained");
        let grad = grad.flatten_all().and_then(|t| t.to_vec1::<f64>()).expect("f64");
        for (at, grad) in grad.iter().enumerate() {
            let slope = (value(&store, name, at, 1e-5) - value(&store, name, at, -1e-5)) / 2e-5;
            assert!((slope - grad).abs() < 1e-7 * (1.0 + grad.abs()), "{name} {at}: {grad} and {slope}");
        }
    }
    assert!(store.param("a.weight").expect("known").grad().expect("built").is_none());
}

#[test]
fn dropout_of_adapters_is_that_of_training_alone() {
    let (store, layers) = layers(0.5);
    store.param("a.lora_B.weight").expect("known").set(&draw("b", &[3, 2])).expect("it fits");
    let x = draw("x", &[6, 5]);
    let host = |value: Value| value.array().and_then(|array| Ok(array.to_host()?)).expect("a value");
    let plain = || host(forward(&layers[0], &Tape::forward_only(session()), &x));
    let trained = host(forward(
        &layers[0],
        &Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(7))),
        &x,
    ));
    assert!(largest(&(plain() - plain()).expect("one shape")) == 0.0);
    assert!(largest(&(plain() - trained).expect("one shape")) > 0.01);
}

#[test]
fn patterns_choose_layers_by_name_last_part_or_block() {
    let pattern = |text: &&str| NamePattern::new(text).expect("a pattern");
    let adapted = |layers: &[&str], trained: &[&str]| {
        let (layers, trained) = (layers.iter().map(pattern).collect(), trained.iter().map(pattern).collect());
        let adapters = AdapterRule { rank: 1, alpha: 1.0, dropout: 0.0, layers, trained };
        let rules = Arc::new(ParamRules { adapters: Some(adapters), ..ParamRules::default() });
        let builder = StoreBuilder::new(BuildOptions { rules: rules.clone(), ..BuildOptions::default() });
        for (block, name) in [("h0", "q"), ("h0", "v"), ("h1", "q"), ("head", "out")] {
            let scope = builder.root().pp("net").pp(block).block_named("").block();
            Linear::new(&scope.pp(name), 2, 2).expect("a new name");
        }
        let store = builder.build().expect("small");
        let names: Vec<String> = store
            .adapted_layers()
            .iter()
            .map(|layer| layer.name.trim_start_matches("net.").to_owned())
            .collect();
        (names.join(" "), store.unmatched_layers(&rules).len() + store.unmatched(&rules).len())
    };
    for (layers, trained, expected) in [
        (&[][..], &[][..], ("h0.q h0.v h1.q head.out", 0)),
        (&["q"], &[], ("h0.q h1.q", 0)),
        (&["net.h0"], &[], ("h0.q h0.v", 0)),
        (&["*.v", "x"], &[], ("h0.v", 1)),
        (&[], &["net.head"], ("h0.q h0.v h1.q", 0)),
        (&[], &["net.tail"], ("h0.q h0.v h1.q head.out", 1)),
    ] {
        assert_eq!(adapted(layers, trained), (expected.0.to_owned(), expected.1), "{layers:?} {trained:?}");
    }
}
