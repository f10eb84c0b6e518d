//! The tape: blocks, listeners, recomputation, handles instead of weights, memory.

use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::nn::{LayerNorm, RmsNorm};
use phalanx_tensor::{
    ArrayError, Block, BuildOptions, Context, FlatStorage, HookResult, Init, Key, Listener, Param,
    ParamBucket, ParamStore, Recompute, Result, Session, StoreBuilder, Tape, TensorError, Value, ops,
};

/// x -> gelu(norm(tanh(x W) with dropout)), as a block.
#[derive(Debug)]
struct Layer {
    name: String,
    weight: Param,
    norm: LayerNorm,
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let y = ops::linear(tape, &inputs[0], &tape.param(&self.weight)?, None)?;
        let y = ops::dropout(tape, &ops::tanh(tape, &y)?, 0.25)?;
        Ok(vec![ops::gelu(tape, &self.norm.forward(tape, &y)?)?])
    }
}

fn model(depth: usize) -> (Vec<Arc<dyn Block>>, ParamStore) {
    // Every block has a bucket of its own.
    let options = BuildOptions { key: Key::new(4), bucket_bytes: 0, ..Default::default() };
    let builder = StoreBuilder::new(options);
    let layers = (0..depth)
        .map(|i| {
            let scope = builder.root().pp("layers").pp(i).block();
            let weight = scope.param("weight", (6, 6), Init::TorchDefault).expect("a new name");
            let norm = LayerNorm::new(&scope.pp("norm"), 6, 1e-5).expect("a new name");
            let layer: Arc<dyn Block> = Arc::new(Layer { name: scope.block_name().to_owned(), weight, norm });
            layer
        })
        .collect();
    (layers, builder.build().expect("small tensors"))
}

fn input() -> Tensor {
    let mut values = vec![0.0; 24];
    Key::new(8).normal(0, &mut values);
    Tensor::from_vec(values, (4, 6), &Device::Cpu).and_then(|t| t.to_dtype(DType::F32)).expect("a constant")
}

/// The recorded calls of a listener.
#[derive(Debug, Default)]
struct RecordingListener(Mutex<Vec<String>>);

impl RecordingListener {
    fn note(&self, text: String) -> HookResult {
        self.0.lock().expect("no panic while noting").push(text);
        Ok(())
    }
}

impl Listener for RecordingListener {
    fn before_forward(&self, block: &str) -> HookResult {
        self.note(format!("+f {block}"))
    }
    fn after_forward(&self, block: &str) -> HookResult {
        self.note(format!("-f {block}"))
    }
    fn before_backward(&self, block: &str) -> HookResult {
        self.note(format!("+b {block}"))
    }
    fn after_backward(&self, block: &str) -> HookResult {
        self.note(format!("-b {block}"))
    }
    fn gradients_ready(&self, param: &ParamBucket) -> HookResult {
        self.note(format!("ready {}", param.blocks().collect::<String>()))
    }
}

fn run(
    layers: &[Arc<dyn Block>],
    recompute: Recompute,
    listener: Option<Arc<RecordingListener>>,
) -> Result<f32> {
    let session = Session {
        recompute,
        listener: listener.map(|l| l as Arc<dyn Listener>),
        ..Session::training(Arc::new(Context::new(1)), Key::new(1))
    };
    let tape = Tape::recording(session);
    let mut x = Value::constant(input());
    for layer in layers {
        x = tape.run1(layer, &x)?;
    }
    let loss = ops::mean(&tape, &ops::mul(&tape, &x, &x)?)?;
    tape.backward(&loss)?;
    Ok(loss.tensor()?.to_scalar::<f32>()?)
}

#[test]
fn a_block_that_is_recomputed_counts_its_arithmetic_once() {
    for recompute in [Recompute::Never, Recompute::Every(1), Recompute::Every(2)] {
        let (layers, _store) = model(3);
        let session = Session { recompute, ..Session::training(Arc::new(Context::new(1)), Key::new(1)) };
        let tape = Tape::recording(session);
        let last = layers.iter().try_fold(Value::constant(input()), |x, layer| tape.run1(layer, &x));
        let loss = ops::sum(&tape, &last.expect("a sound model")).expect("sound");
        tape.backward(&loss).expect("sound");
        // Three products of 4 x 6 by 6 x 6, the gradients of three weights, and those of two inputs.
        assert_eq!(tape.session().arithmetic.take(), 2 * 8 * 144, "{recompute:?}");
    }
}

fn grads(store: &ParamStore) -> Vec<Vec<f32>> {
    let flat = |param: &ParamBucket| {
        let grads = param.grads().expect("sound").expect("backward ran");
        grads.tensor().expect("on the CPU").to_vec1::<f32>().expect("f32")
    };
    store.buckets().iter().map(flat).collect()
}

#[test]
fn a_listener_hears_blocks_and_ready_gradients_in_order() {
    for recompute in [Recompute::Never, Recompute::Every(1)] {
        let (layers, _store) = model(2);
        let heard = Arc::new(RecordingListener::default());
        run(&layers, recompute, Some(heard.clone())).expect("a sound model");
        let expected = [
            "+f layers.0",
            "-f layers.0",
            "+f layers.1",
            "-f layers.1",
            "+b layers.1",
            "ready layers.1",
            "-b layers.1",
            "+b layers.0",
            "ready layers.0",
            "-b layers.0",
        ];
        assert_eq!(*heard.0.lock().expect("no panic"), expected, "{recompute:?}");
    }
}

#[test]
fn parameters_used_in_two_blocks_are_ready_once_after_the_last() {
    let (layers, _store) = model(1);
    let twice = [layers[0].clone(), layers[0].clone()];
    for recompute in [Recompute::Never, Recompute::Every(1), Recompute::Every(2)] {
        let heard = Arc::new(RecordingListener::default());
        run(&twice, recompute, Some(heard.clone())).expect("a sound model");
        let heard = heard.0.lock().expect("no panic").clone();
        assert_eq!(heard.iter().filter(|h| h.starts_with("ready")).count(), 1, "{recompute:?}: {heard:?}");
        assert_eq!(heard[heard.len() - 2], "ready layers.0", "{recompute:?}: {heard:?}");
    }
}

#[test]
fn recomputed_blocks_give_the_same_bits() {
    let (layers, store) = model(4);
    let loss = run(&layers, Recompute::Never, None).expect("a sound model");
    let expected = grads(&store);
    for recompute in [Recompute::Every(1), Recompute::Every(2), Recompute::Every(3)] {
        store.zero_grads();
        assert_eq!(run(&layers, recompute, None).expect("a sound model"), loss);
        assert_eq!(grads(&store), expected, "{recompute:?}");
    }
}

/// Releases every block's parameters after forward and backward, and gathers them again.
#[derive(Debug)]
struct Sharder {
    params: Vec<ParamBucket>,
    kept: Vec<FlatStorage>,
}

impl Sharder {
    fn each(&self, block: &str, f: impl Fn(&ParamBucket, &FlatStorage) -> Result<()>) -> HookResult {
        let all = self.params.iter().zip(&self.kept);
        for (param, kept) in all.filter(|(param, _)| param.blocks().any(|known| known == block)) {
            f(param, kept)?;
        }
        Ok(())
    }
    fn gather(&self, block: &str) -> HookResult {
        self.each(block, |param, kept| {
            let (full, _) = param.begin_gather()?;
            full.copy_from(kept)?;
            param.end_gather()
        })
    }
    fn release(&self, block: &str) -> HookResult {
        self.each(block, |param, _| param.reshard())
    }
}

impl Listener for Sharder {
    fn before_forward(&self, block: &str) -> HookResult {
        self.gather(block)
    }
    fn after_forward(&self, block: &str) -> HookResult {
        self.release(block)
    }
    fn before_backward(&self, block: &str) -> HookResult {
        self.gather(block)
    }
    fn after_backward(&self, block: &str) -> HookResult {
        self.release(block)
    }
}

#[test]
fn nodes_hold_handles_so_weights_can_leave_between_forward_and_backward() {
    for recompute in [Recompute::Never, Recompute::Every(1)] {
        let (layers, store) = model(3);
        let loss = run(&layers, Recompute::Never, None).expect("a sound model");
        let expected = grads(&store);
        let kept = store.buckets().iter().map(|param| param.values().expect("resident")).collect::<Vec<_>>();
        let sharder = Sharder { params: store.buckets().to_vec(), kept };
        for param in store.buckets() {
            // An empty shard: all values leave.
            param.set_owned(0..0).expect("all are in memory");
            param.shard().expect("all are in memory");
        }
        let session = Session {
            recompute,
            listener: Some(Arc::new(sharder)),
            ..Session::training(Arc::new(Context::new(1)), Key::new(1))
        };
        let tape = Tape::recording(session);
        let mut x = Value::constant(input());
        for layer in &layers {
            x = tape.run1(layer, &x).expect("gathered");
            assert!(store.buckets().iter().all(|param| param.values().is_none()), "released after forward");
        }
        let value = ops::mean(&tape, &ops::mul(&tape, &x, &x).expect("sound")).expect("sound");
        tape.backward(&value).expect("gathered again");
        assert_eq!(value.tensor().expect("a tensor").to_scalar::<f32>().expect("f32"), loss);
        assert_eq!(grads(&store), expected);
    }
    let missing = model(1);
    missing.1.buckets()[0].shard().expect("all are in memory");
    match run(&missing.0, Recompute::Never, None) {
        Err(TensorError::NotResident { name, .. }) => assert_eq!(name, "layers.0.weight"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_listener_that_fails_ends_the_pass() {
    #[derive(Debug)]
    struct Failing;
    impl Listener for Failing {
        fn before_backward(&self, block: &str) -> HookResult {
            Err(format!("lost the shard of {block}").into())
        }
    }
    let (layers, _store) = model(1);
    let session = Session {
        listener: Some(Arc::new(Failing)),
        ..Session::training(Arc::new(Context::new(1)), Key::new(1))
    };
    let tape = Tape::recording(session);
    let x = tape.run1(&layers[0], &Value::constant(input())).expect("forward works");
    let loss = ops::sum(&tape, &x).expect("sound");
    let error = tape.backward(&loss).expect_err("the listener failed");
    assert!(error.to_string().contains("lost the shard of layers.0"), "{error}");
}

#[test]
fn misuse_is_an_error() {
    let session = || Session::training(Arc::new(Context::new(1)), Key::new(1));
    let (one, two) = (Tape::recording(session()), Tape::recording(session()));
    let x = one.leaf(input());
    let y = two.leaf(input());
    assert!(matches!(ops::add(&one, &x, &y), Err(TensorError::ForeignValue { op: "add" })));
    assert!(matches!(one.backward(&x), Err(TensorError::Backward(_))), "not a scalar");
    let constant = ops::sum(&one, &Value::constant(input())).expect("sound");
    assert!(matches!(one.backward(&constant), Err(TensorError::Backward(_))), "no gradient");
    let sum = ops::sum(&one, &x).expect("sound");
    one.backward(&sum).expect("sound");
    assert!(
        matches!(ops::sum(&one, &x), Err(TensorError::ForeignValue { .. })),
        "a value of a past recording"
    );
    let whole = Value::constant(input().to_dtype(DType::I64).expect("a cast"));
    assert!(matches!(ops::relu(&one, &whole), Err(TensorError::Array(ArrayError::Unsupported { .. }))));
}

#[test]
fn noise_is_drawn_by_sample_of_the_global_batch() {
    let draw = |offset: usize, rows: usize| {
        let session =
            Session { sample_offset: offset, ..Session::training(Arc::new(Context::new(1)), Key::new(6)) };
        let tape = Tape::forward_only(session);
        let noise = ops::gaussian_noise(&tape, (rows, 3, 5), DType::F32).expect("sound");
        noise.tensor().expect("a tensor").flatten_all().and_then(|t| t.to_vec1::<f32>()).expect("f32")
    };
    let whole = draw(0, 7);
    assert_eq!([draw(0, 3), draw(3, 1), draw(4, 3)].concat(), whole);
}

#[test]
fn zeroed_gradients_are_overwritten() {
    let (layers, store) = model(2);
    run(&layers, Recompute::Never, None).expect("sound");
    let grads = |layer: &Arc<dyn Block>| {
        let weight = store.param(&format!("{}.weight", layer.name())).expect("a parameter");
        let grad = weight.grad().expect("built")?;
        Some(grad.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).expect("f32"))
    };
    let first = [grads(&layers[0]), grads(&layers[1])];
    assert!(first.iter().flatten().flatten().any(|grad| *grad != 0.0));
    // Without zeroing, gradients add up.
    run(&layers, Recompute::Never, None).expect("sound");
    let twice: Vec<f32> = first[1].iter().flatten().map(|grad| 2.0 * grad).collect();
    assert_eq!(grads(&layers[1]), Some(twice));
    // After zeroing, only the layer in use has a gradient.
    store.zero_grads();
    run(&layers[..1], Recompute::Never, None).expect("sound");
    assert!(grads(&layers[0]).expect("allocated").iter().any(|grad| *grad != 0.0));
    assert_eq!(grads(&layers[1]), Some(vec![0.0; 36]));
    store.zero_grads();
    run(&layers, Recompute::Never, None).expect("sound");
    assert_eq!([grads(&layers[0]), grads(&layers[1])], first);
}

#[test]
fn recorded_bytes_count_until_backward() -> Result<()> {
    let rows = 8 * 4 * size_of::<f32>();
    let taken = || phalanx_tensor::take_peak_recorded_bytes();
    taken();
    let start = taken();
    let tape = Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)));
    let x = tape.leaf(Tensor::ones((8, 4), DType::F32, &Device::Cpu)?);
    let squares = ops::mul(&tape, &x, &x)?;
    // A view has no memory of its own.
    let flat = ops::reshape(&tape, &squares, 32)?;
    let sums = ops::mul(&tape, &flat, &flat)?;
    let loss = ops::mean(&tape, &sums)?;
    assert_eq!(taken() - start, 2 * rows + size_of::<f32>());
    tape.backward(&loss)?;
    taken();
    assert_eq!(taken(), start, "backward has passed all of it");
    // A tape that is dropped without backward frees its values.
    let tape = Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)));
    let x = tape.leaf(Tensor::ones((8, 4), DType::F32, &Device::Cpu)?);
    ops::mul(&tape, &x, &x)?;
    drop(tape);
    assert_eq!((taken() - start, taken() - start), (rows, 0));
    Ok(())
}

/// Norms, activations and gated units, each read by two products: with `kept`, through views, which backward does not compute again.
fn readers_of_cheap_ops(kept: bool) -> Result<(f32, Vec<Vec<f32>>, usize)> {
    let builder = StoreBuilder::new(BuildOptions { key: Key::new(3), ..Default::default() });
    let scope = builder.root();
    let weights = (0..9)
        .map(|index| scope.param(&format!("weight.{index}"), (6, 6), Init::TorchDefault))
        .collect::<Result<Vec<_>>>()?;
    let norms = (LayerNorm::new(&scope.pp("norm"), 6, 1e-5)?, RmsNorm::new(&scope.pp("rms"), 6, 1e-5)?);
    let store = builder.build()?;
    phalanx_tensor::take_peak_recorded_bytes();
    let before = phalanx_tensor::take_peak_recorded_bytes();
    let tape = Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(1)));
    let read = |x: &Value| if kept { ops::reshape(&tape, x, (4, 6)) } else { Ok(x.clone()) };
    let product = |index: usize, x: &Value| ops::linear(&tape, x, &tape.param(&weights[index])?, None);
    let twice = |index: usize, x: &Value| -> Result<[Value; 2]> {
        let x = read(x)?;
        Ok([product(index, &x)?, product(index + 1, &x)?])
    };
    let x = product(0, &Value::constant(input()))?;
    let [a, b] = twice(1, &norms.0.forward(&tape, &x)?)?;
    let [a, b] = twice(3, &ops::swiglu(&tape, &a, &b)?)?;
    let [a, b] = twice(5, &norms.1.forward(&tape, &ops::add(&tape, &a, &b)?)?)?;
    let [a, b] = twice(7, &ops::gelu_tanh(&tape, &ops::mul(&tape, &a, &b)?)?)?;
    let loss = ops::mean(&tape, &ops::mul(&tape, &a, &b)?)?;
    let recorded = phalanx_tensor::take_peak_recorded_bytes() - before;
    tape.backward(&loss)?;
    Ok((loss.tensor()?.to_scalar()?, grads(&store), recorded))
}

#[test]
fn results_that_are_computed_again_give_the_same_bits() {
    let (loss, gradients, recorded) = readers_of_cheap_ops(false).expect("sound");
    let kept = readers_of_cheap_ops(true).expect("sound");
    assert_eq!((loss, &gradients), (kept.0, &kept.1));
    // A product gives 4 x 6 numbers, of which there are 9, and the sum and the two products of numbers as many.
    assert_eq!(recorded, (12 * 24 + 1) * size_of::<f32>());
}
