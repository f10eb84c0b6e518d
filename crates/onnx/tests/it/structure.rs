//! Models parsed back: nodes, constants, ports, and what is refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_onnx::{OnnxError, OnnxModel, OnnxNames, Result};
use phalanx_tensor::nn::{BatchNorm2d, BatchNormConfig, Conv2d, GroupNorm, Linear};
use phalanx_tensor::ops::{self, AttentionOptions, Conv2dOptions, FusedActivation, PoolOptions};
use phalanx_tensor::{BuildOptions, Context, Graph, Init, Session, StoreBuilder, Tape, TensorError, Value};

use crate::reader::{ReadModel, ReadNode, read};

/// Numbers that differ between batches.
fn noise(batch: usize, dims: &[usize]) -> Tensor {
    let shape: Vec<usize> = [batch].iter().chain(dims).copied().collect();
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|at| ((at * 37 + batch * 11) % 101) as f32 / 50.0 - 1.0).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).expect("a tensor")
}

/// Traces a function of inputs of `dims`.
fn traced(
    dims: &[usize],
    run: impl Fn(&Tape, &Value) -> std::result::Result<Value, TensorError>,
) -> Result<OnnxModel> {
    OnnxModel::trace(
        &OnnxNames::new("test", ["x"], ["y"]),
        |batch| -> std::result::Result<Graph, TensorError> {
            let tape = Tape::tracing(Session::evaluation(Arc::new(Context::new(1))));
            let x = tape.leaf(noise(batch, dims));
            let y = run(&tape, &x)?;
            tape.into_graph(&[&x], &[&y])
        },
    )
}

fn parsed(model: Result<OnnxModel>) -> ReadModel {
    let model = read(&model.expect("exportable").to_bytes().expect("small"));
    // Each input of a node is an input of the graph, a constant, or the output of an earlier node.
    let mut known: BTreeSet<String> = model.constants.keys().cloned().collect();
    known.extend([model.ports[0].0.clone(), String::new()]);
    for node in &model.nodes {
        for input in &node.inputs {
            assert!(known.contains(input), "{input} of {node:?}");
        }
        assert!(known.insert(node.output.clone()), "{node:?} writes a name twice");
    }
    assert!(known.contains("y"));
    model
}

fn operators(model: &ReadModel) -> Vec<&str> {
    model.nodes.iter().map(|node| node.operator.as_str()).collect()
}

fn attribute(node: &ReadNode, name: &str) -> Vec<i64> {
    node.attributes.get(name).cloned().unwrap_or_else(|| panic!("{node:?} has no {name}"))
}

#[test]
fn a_small_network_keeps_its_names_sizes_and_numbers() {
    let builder = StoreBuilder::new(BuildOptions::default());
    let root = builder.root();
    let options = Conv2dOptions { stride: [2, 1], padding: [1, 0], dilation: [1, 2], groups: 2 };
    let conv = Conv2d::new(&root.pp("conv").block(), 4, 6, 3, options).expect("a layer");
    let norm =
        BatchNorm2d::new(&root.pp("bn").block(), 6, BatchNormConfig { eps: 0.25, ..Default::default() })
            .expect("a layer");
    let line = Linear::new(&root.pp("fc").block(), 6, 3).expect("a layer");
    let store = builder.build().expect("a store");
    let model = traced(&[4, 8, 9], |tape, x| {
        let maps = conv.forward(tape, x)?;
        let maps = norm.forward_added(tape, &maps, &maps, FusedActivation::Relu6)?;
        let maps = ops::max_pool2d(tape, &maps, PoolOptions::new(2, 2, 1))?;
        line.forward(tape, &ops::global_avg_pool2d(tape, &maps)?)
    });
    let model = parsed(model);
    let expected = [
        "Conv",
        "BatchNormalization",
        "Add",
        "Clip",
        "MaxPool",
        "AveragePool",
        "Reshape",
        "Gemm",
        "Identity",
    ];
    assert_eq!((model.opset, operators(&model)), (17, expected.to_vec()));
    let sizes = |sizes: &[&str]| sizes.iter().map(|size| (*size).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        model.ports,
        [("x".to_owned(), sizes(&["batch", "4", "8", "9"])), ("y".to_owned(), sizes(&["batch", "3"]))]
    );
    let conv = &model.nodes[0];
    assert_eq!(conv.inputs, ["x", "conv.weight", "conv.bias"]);
    for (name, values) in [
        ("kernel_shape", &[3, 3][..]),
        ("strides", &[2, 1]),
        ("pads", &[1, 0, 1, 0]),
        ("dilations", &[1, 2]),
        ("group", &[2]),
    ] {
        assert_eq!(attribute(conv, name), values, "{name}");
    }
    let norm = &model.nodes[1];
    assert_eq!(
        norm.inputs[1..],
        ["bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"].map(String::from)
    );
    assert_eq!(attribute(norm, "epsilon"), [i64::from(0.25_f32.to_bits())]);
    assert_eq!(model.constants["bn.running_var"].floats, [1.0; 6]);
    let clip: Vec<f32> =
        model.nodes[3].inputs[1..].iter().map(|name| model.constants[name].floats[0]).collect();
    assert_eq!(clip, [0.0, 6.0]);
    assert_eq!(attribute(&model.nodes[4], "pads"), [1; 4]);
    assert_eq!(model.constants[&model.nodes[6].inputs[1]].integers, [-1, 6], "the batch is open");
    assert_eq!(attribute(&model.nodes[7], "transB"), [1]);
    // Parameters under their names, to the bit.
    for param in store.params() {
        let own = param.array().and_then(|array| Ok(array.to_host()?)).expect("here");
        let values: Vec<f32> = own.flatten_all().and_then(|flat| flat.to_vec1()).expect("f32");
        let constant = &model.constants[param.name()];
        assert_eq!(constant.floats, values, "{}", param.name());
        assert_eq!(constant.dims, param.dims().iter().map(|size| *size as i64).collect::<Vec<_>>());
    }
}

#[test]
fn every_op_with_a_form_has_its_nodes() {
    let builder = StoreBuilder::new(BuildOptions::default());
    let norm = GroupNorm::new(&builder.root().pp("norm").block(), 2, 4, 1e-6).expect("a layer");
    let line = Linear::new(&builder.root().pp("fc").block(), 5, 7).expect("a layer");
    let inputs_first = builder.root().pp("conv1d").block();
    let inputs_first =
        Linear::inputs_first(&inputs_first, 5, 7, Init::ZEROS, Some(Init::ZEROS)).expect("a layer");
    builder.build().expect("a store");
    type Run<'a> = &'a dyn Fn(&Tape, &Value) -> std::result::Result<Value, TensorError>;
    let cases: [(&str, Run<'_>, &[&str]); 20] = [
        ("silu", &|tape, x| ops::silu(tape, x), &["Sigmoid", "Mul"]),
        ("relu_squared", &|tape, x| ops::relu_squared(tape, x), &["Relu", "Mul"]),
        ("gelu", &|tape, x| ops::gelu(tape, x), &["Mul", "Erf", "Add", "Mul", "Mul"]),
        ("gelu_tanh", &|tape, x| ops::gelu_tanh(tape, x), &["Mul", "Mul", "Add", "Mul", "Sigmoid", "Mul"]),
        ("quick_gelu", &|tape, x| ops::quick_gelu(tape, x), &["Mul", "Sigmoid", "Mul"]),
        ("leaky_relu", &|tape, x| ops::leaky_relu(tape, x, 0.2), &["LeakyRelu"]),
        ("clamp", &|tape, x| ops::clamp(tape, x, -0.5, 0.5), &["Clip"]),
        ("scale", &|tape, x| ops::add_scalar(tape, &ops::scale(tape, x, 2.0)?, 1.0), &["Mul", "Add"]),
        ("sub", &|tape, x| ops::sub(tape, x, &ops::tanh(tape, x)?), &["Tanh", "Sub"]),
        ("linear", &|tape, x| line.forward(tape, x), &["Transpose", "MatMul", "Add"]),
        ("linear with inputs first", &|tape, x| inputs_first.forward(tape, x), &["MatMul", "Add"]),
        ("softmax", &|tape, x| ops::softmax(tape, x), &["Softmax"]),
        (
            "attention",
            &|tape, x| ops::attention(tape, x, x, x, &AttentionOptions::causal()),
            &[
                "Transpose",
                "Transpose",
                "Transpose",
                "MatMul",
                "Mul",
                "Add",
                "Softmax",
                "MatMul",
                "Transpose",
            ],
        ),
        (
            "self_attention",
            &|tape, x| {
                let thrice = ops::cat(tape, &[x, x, x], 2)?;
                let joined = ops::reshape(tape, &thrice, (x.dims()[0], 4, 75))?;
                ops::self_attention(tape, &joined, 1, &AttentionOptions::causal())
            },
            &[
                "Concat",
                "Reshape",
                "Reshape",
                "Gather",
                "Gather",
                "Gather",
                "Transpose",
                "Transpose",
                "Transpose",
                "MatMul",
                "Mul",
                "Add",
                "Softmax",
                "MatMul",
                "Transpose",
                "Reshape",
            ],
        ),
        (
            "matmul",
            &|tape, x| ops::matmul(tape, x, &ops::transpose(tape, x, 2, 3)?),
            &["Transpose", "MatMul"],
        ),
        ("narrow", &|tape, x| ops::narrow(tape, x, 1, 1, 2), &["Slice"]),
        ("pad", &|tape, x| ops::pad_with_zeros(tape, x, 3, 0, 1), &["Pad"]),
        ("cat", &|tape, x| ops::cat(tape, &[x, x], 1), &["Concat"]),
        ("sum_over", &|tape, x| ops::sum_over(tape, x, 2), &["ReduceSum"]),
        ("upsample", &|tape, x| ops::upsample_nearest2d(tape, x, 2), &["Resize"]),
    ];
    for (name, run, expected) in cases {
        let model = parsed(traced(&[4, 5, 5], run));
        let found = operators(&model);
        assert_eq!(found[..found.len() - 1], *expected, "{name}");
    }
    let model = parsed(traced(&[4, 5, 5], |tape, x| norm.forward(tape, x)));
    assert_eq!(
        operators(&model),
        ["Reshape", "InstanceNormalization", "Reshape", "Reshape", "Reshape", "Mul", "Add", "Identity"]
    );
    assert_eq!(model.constants[&model.nodes[0].inputs[1]].integers, [0, 2, -1]);
    assert_eq!(model.constants[&model.nodes[3].inputs[1]].integers, [4, 1, 1]);
}

#[test]
fn what_has_no_form_is_named() {
    let refused = |run: &dyn Fn(&Tape, &Value) -> std::result::Result<Value, TensorError>| {
        traced(&[4, 6], run).expect_err("no form").to_string()
    };
    let own = |tape: &Tape, x: &Value| tape.push("my_op", &[x], x.array()?, |_, _, _| Ok(()));
    assert_eq!(
        refused(&own),
        "the op `my_op` has no ONNX form here; models with it cannot be exported to ONNX"
    );
    let candle = |tape: &Tape, x: &Value| tape.segment(&[x], |inputs| inputs[0].sqr());
    assert!(refused(&candle).contains("`segment`"));
    // An array that follows from the input, taken off the tape.
    let detached = |tape: &Tape, x: &Value| ops::add(tape, x, &x.detach());
    assert!(refused(&detached).contains("an input of the op `add` was computed outside of the tape"));
    let constant = |tape: &Tape, x: &Value| {
        let ones = Tensor::ones((1, 6), candle_core::DType::BF16, &Device::Cpu)?;
        ops::broadcast_add(tape, x, &Value::constant(ones))
    };
    assert!(refused(&constant).contains("element type bf16"));
    let first = |tape: &Tape, x: &Value| ops::narrow(tape, x, 0, 0, 1);
    assert!(refused(&first).contains("along dimension 0, the batch"));
    let most = |tape: &Tape, x: &Value| ops::narrow(tape, x, 0, 0, x.dims()[0] - 1);
    let shown = refused(&most);
    assert!(shown.contains("sizes are [1, 4, 6] for 2 samples and [2, 4, 6] for 3"), "{shown}");
    let by_batch = |tape: &Tape, x: &Value| ops::scale(tape, x, 1.0 / x.dims()[0] as f64);
    assert!(refused(&by_batch).contains("`scale` depends on the number of samples"));
    let outside = |_: &Tape, x: &Value| Ok(x.detach());
    assert!(refused(&outside).contains("an output was not computed by ops on the tape"));
    let names = OnnxNames::new("test", ["x", "more"], ["y"]);
    let error = OnnxModel::trace(&names, |batch| -> std::result::Result<Graph, TensorError> {
        let tape = Tape::tracing(Session::evaluation(Arc::new(Context::new(1))));
        let x = tape.leaf(noise(batch, &[2]));
        tape.into_graph(&[&x], &[&x])
    });
    assert!(matches!(error, Err(OnnxError::Names { kind: "inputs", names: 2, values: 1 })));
}

#[test]
fn metadata_is_written() {
    let model = traced(&[4], ops::relu).expect("exportable");
    let model = model.with_metadata("classes", "[\"cat\"]").with_metadata("mean", "0.5 0.5 0.5");
    let read = read(&model.to_bytes().expect("small"));
    let entries: Vec<_> = read.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(entries, [("classes", "[\"cat\"]"), ("mean", "0.5 0.5 0.5")]);
}
