//! Every op in bf16 and f16 against f32: results, gradients and their types; and training in low precision.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::loss::{self, LossDivisor};
use phalanx_tensor::ops::{self, AttentionOptions, Conv2dOptions, FusedActivation, PoolOptions, UnaryOp};
use phalanx_tensor::optim::{LossScale, Optimizer as _, Sgd, grad_sum_of_squares};
use phalanx_tensor::{
    BuildOptions, Context, Init, Key, Precision, Result, Session, StoreBuilder, Tape, Value, nn,
};

const LOW: [Precision; 2] = [Precision::Bf16, Precision::F16];

/// Returns half a unit in the last place, relative to the number.
fn epsilon(precision: Precision) -> f64 {
    match precision {
        Precision::F32 | Precision::Tf32 => f64::powi(2.0, -24),
        Precision::Bf16 => f64::powi(2.0, -9),
        Precision::F16 => f64::powi(2.0, -12),
    }
}

fn session(precision: Precision, threads: usize) -> Session {
    let context = Arc::new(Context::new(threads).with_products(precision.products()));
    Session { precision, ..Session::training(context, Key::new(4)) }
}

fn draw(name: &str, dims: &[usize]) -> Tensor {
    let mut values = vec![0.0; dims.iter().product()];
    Key::new(5).stream(name).normal(0, &mut values);
    Tensor::from_vec(values, dims, &Device::Cpu).and_then(|t| t.to_dtype(DType::F32)).expect("a constant")
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).and_then(|t| t.flatten_all()?.to_vec1::<f64>()).expect("numbers")
}

/// Returns the distance of two tensors relative to the size of the second.
fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.dims(), b.dims());
    let (a, b) = (floats(a), floats(b));
    let off: f64 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum();
    let size: f64 = b.iter().map(|b| b * b).sum();
    (off / size.max(1e-30)).sqrt()
}

type Run = Box<dyn Fn(&Tape, &[Value]) -> Result<Value>>;

/// An op over values. The first `activations` may have 16 bits; the others are parameters in f32.
struct Case {
    name: &'static str,
    inputs: Vec<Tensor>,
    activations: usize,
    /// True if the result is always f32.
    wide: bool,
    run: Run,
}

fn case(
    name: &'static str,
    activations: usize,
    inputs: &[&[usize]],
    run: impl Fn(&Tape, &[Value]) -> Result<Value> + 'static,
) -> Case {
    let inputs = inputs.iter().enumerate().map(|(i, dims)| draw(&format!("{name} {i}"), dims)).collect();
    Case { name, inputs, activations, wide: false, run: Box::new(run) }
}

fn to_loss(case: Case) -> Case {
    Case { wide: true, ..case }
}

fn cases() -> Vec<Case> {
    let over = LossDivisor::Batch;
    let mut all = vec![
        case("add", 2, &[&[3, 5], &[3, 5]], |t, v| ops::add(t, &v[0], &v[1])),
        case("add of a parameter", 1, &[&[3, 5], &[3, 5]], |t, v| ops::add(t, &v[0], &v[1])),
        case("sub", 2, &[&[3, 5], &[3, 5]], |t, v| ops::sub(t, &v[0], &v[1])),
        case("mul", 2, &[&[3, 5], &[3, 5]], |t, v| ops::mul(t, &v[0], &v[1])),
        case("broadcast_add", 1, &[&[4, 3, 5], &[3, 5]], |t, v| ops::broadcast_add(t, &v[0], &v[1])),
        case("broadcast_mul", 1, &[&[64, 5], &[5]], |t, v| ops::broadcast_mul(t, &v[0], &v[1])),
        case("scale", 1, &[&[3, 5]], |t, v| ops::scale(t, &v[0], 0.3)),
        case("add_scalar", 1, &[&[3, 5]], |t, v| ops::add_scalar(t, &v[0], 0.3)),
        to_loss(case("sum", 1, &[&[40, 50]], |t, v| ops::sum(t, &v[0]))),
        to_loss(case("mean", 1, &[&[40, 50]], |t, v| ops::mean(t, &v[0]))),
        case("sum_over", 1, &[&[40, 5]], |t, v| ops::sum_over(t, &v[0], 0)),
        case("reshape", 1, &[&[4, 6]], |t, v| ops::reshape(t, &v[0], (3, 8))),
        case("permute", 1, &[&[2, 3, 5]], |t, v| ops::permute(t, &v[0], &[2, 0, 1])),
        case("transpose", 1, &[&[4, 6]], |t, v| ops::transpose(t, &v[0], 0, 1)),
        case("narrow", 1, &[&[4, 6]], |t, v| ops::narrow(t, &v[0], 1, 2, 3)),
        case("cat", 1, &[&[2, 3], &[2, 4]], |t, v| ops::cat(t, &[&v[0], &v[1]], 1)),
        case("broadcast_as", 1, &[&[3, 1]], |t, v| ops::broadcast_as(t, &v[0], (2, 3, 4))),
        case("linear, inputs first", 1, &[&[6, 20], &[20, 7], &[7]], |t, v| {
            let layout = ops::WeightLayout::InputsFirst;
            ops::linear_by(t, &v[0], ops::LinearWeight { weight: &v[1], layout, bias: Some(&v[2]) })
        }),
        case("linear", 1, &[&[6, 20], &[7, 20], &[7]], |t, v| ops::linear(t, &v[0], &v[1], Some(&v[2]))),
        case("matmul", 2, &[&[2, 3, 20], &[2, 20, 4]], |t, v| ops::matmul(t, &v[0], &v[1])),
        case("softmax", 1, &[&[3, 7]], |t, v| ops::softmax(t, &v[0])),
        case("attention", 3, &[&[2, 5, 2, 8], &[2, 5, 2, 8], &[2, 5, 2, 8]], |t, v| {
            ops::attention(t, &v[0], &v[1], &v[2], &AttentionOptions::causal())
        }),
        case("self_attention", 1, &[&[2, 5, 48]], |t, v| {
            ops::self_attention(t, &v[0], 2, &AttentionOptions::causal())
        }),
        case("layer_norm", 1, &[&[6, 20], &[20], &[20]], |t, v| {
            ops::layer_norm(t, &v[0], &v[1], &v[2], 1e-5)
        }),
        case("rms_norm", 1, &[&[6, 20], &[20]], |t, v| ops::rms_norm(t, &v[0], &v[1], 1e-5)),
        case("swiglu", 1, &[&[6, 20], &[6, 20]], |t, v| ops::swiglu(t, &v[0], &v[1])),
        case("group_norm", 1, &[&[2, 4, 3, 5], &[4], &[4]], |t, v| {
            ops::group_norm(t, &v[0], 2, &v[1], &v[2], 1e-5)
        }),
        case("l2_normalise", 1, &[&[3, 7]], |t, v| ops::l2_normalise(t, &v[0])),
        case("avg_pool2d", 1, &[&[2, 2, 7, 6]], |t, v| {
            ops::avg_pool2d(t, &v[0], PoolOptions::new(3, 2, 1), true)
        }),
        case("max_pool2d", 1, &[&[2, 2, 7, 6]], |t, v| ops::max_pool2d(t, &v[0], PoolOptions::new(3, 2, 1))),
        case("upsample", 1, &[&[2, 2, 3, 4]], |t, v| ops::upsample_nearest2d(t, &v[0], 2)),
        case("dropout", 1, &[&[6, 9]], |t, v| ops::dropout(t, &v[0], 0.3)),
        case("embedding", 0, &[&[5, 4]], |t, v| {
            ops::embedding(t, &v[0], &Tensor::new(&[[1_u32, 0, 3], [3, 3, 2]], &Device::Cpu)?)
        }),
        case("select_positions", 1, &[&[3, 4, 2]], |t, v| ops::select_positions(t, &v[0], &[3, 0, 2])),
        to_loss(case("cross_entropy", 1, &[&[4, 6]], move |t, v| {
            loss::cross_entropy(t, &v[0], &[1, 0, 5, 2], 0.1, over)
        })),
        to_loss(case("mse", 1, &[&[4, 6]], move |t, v| {
            loss::mse(t, &v[0], &Value::constant(draw("target", &[4, 6])), over)
        })),
        to_loss(case("smooth_l1", 1, &[&[4, 6]], move |t, v| {
            loss::smooth_l1(t, &v[0], &Value::constant(draw("target", &[4, 6])), 0.5, over)
        })),
        to_loss(case("bce_with_logits", 1, &[&[4, 6]], move |t, v| {
            let targets = Value::constant(Tensor::ones((4, 6), DType::F32, &Device::Cpu)?);
            loss::bce_with_logits(t, &v[0], &targets, over)
        })),
        to_loss(case("kl", 2, &[&[4, 6], &[4, 6]], move |t, v| {
            loss::kl_standard_normal(t, &v[0], &v[1], over)
        })),
        to_loss(case("clip_contrastive", 2, &[&[4, 6], &[4, 6], &[1]], move |t, v| {
            loss::clip_contrastive(t, &v[0], &v[1], &v[2], over)
        })),
    ];
    let all_functions = [
        ("relu", UnaryOp::Relu),
        ("relu_squared", UnaryOp::ReluSquared),
        ("relu6", UnaryOp::Relu6),
        ("leaky_relu", UnaryOp::LeakyRelu(0.2)),
        ("sigmoid", UnaryOp::Sigmoid),
        ("tanh", UnaryOp::Tanh),
        ("silu", UnaryOp::Silu),
        ("gelu", UnaryOp::Gelu),
        ("gelu_tanh", UnaryOp::GeluTanh),
        ("quick_gelu", UnaryOp::QuickGelu),
        ("exp", UnaryOp::Exp),
        ("clamp", UnaryOp::Clamp { low: -1.0, high: 0.5 }),
    ];
    all.extend(
        all_functions.map(|(name, op)| case(name, 1, &[&[4, 6]], move |t, v| ops::unary(t, &v[0], op))),
    );
    // Winograd's, strided, depthwise and pointwise.
    let convolutions: [(&'static str, [usize; 4], [usize; 4], Conv2dOptions); 4] = [
        ("conv2d 3x3", [2, 16, 8, 8], [16, 16, 3, 3], Conv2dOptions::new(1, 1)),
        ("conv2d strided", [4, 16, 8, 8], [32, 16, 3, 3], Conv2dOptions::new(2, 1)),
        ("conv2d depthwise", [2, 6, 8, 8], [6, 1, 3, 3], Conv2dOptions::new(1, 1).groups(6)),
        ("conv2d pointwise", [2, 6, 8, 8], [10, 6, 1, 1], Conv2dOptions::new(1, 0)),
    ];
    all.extend(convolutions.map(|(name, x, w, options)| {
        case(name, 1, &[&x, &w, &w[..1]], move |t, v| ops::conv2d(t, &v[0], &v[1], Some(&v[2]), options))
    }));
    all.push(case("conv_transpose2d", 1, &[&[2, 3, 4, 3], &[3, 2, 3, 3], &[2]], |t, v| {
        ops::conv_transpose2d(t, &v[0], &v[1], Some(&v[2]), Conv2dOptions::new(2, 1), [1, 1])
    }));
    for (name, activation, added) in
        [("batch_norm2d", FusedActivation::None, false), ("batch_norm2d, added", FusedActivation::Relu, true)]
    {
        let builder = StoreBuilder::new(BuildOptions::default());
        let root = builder.root();
        let mean = root.buffer("mean", 4, 0.0).expect("a new name");
        let var = root.buffer("var", 4, 1.0).expect("a new name");
        let count = root.counter("count").expect("a new name");
        let dims: &[usize] = &[3, 4, 3, 5];
        let mut new = case(name, 2, &[dims, dims, &[4], &[4]], move |t, v| {
            let stats = ops::BatchNormStats {
                running_mean: &mean,
                running_var: &var,
                num_batches: &count,
                momentum: 0.1,
                eps: 1e-5,
                sync: false,
                fixed: false,
            };
            let residual = added.then_some(&v[1]);
            let affine = ops::BatchNormAffine { gamma: &v[2], beta: &v[3], residual, activation };
            let out = ops::batch_norm2d(t, &v[0], affine, &stats)?;
            assert_eq!(mean.array().dtype(), DType::F32);
            Ok(out)
        });
        if !added {
            new.inputs[1] = new.inputs[0].clone();
        }
        all.push(new);
    }
    all
}

/// Returns the result, and the gradients of the inputs for a weighted sum of all elements.
fn outcome(case: &Case, inputs: &[Tensor], precision: Precision) -> (Tensor, Vec<Option<Tensor>>) {
    let tape = Tape::recording(session(precision, 2));
    let leaves: Vec<Value> = inputs.iter().map(|input| tape.leaf(input.clone())).collect();
    let output = (case.run)(&tape, &leaves).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    let seed = draw("seed", output.dims());
    tape.backward_from([(&output, seed)]).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    (
        output.tensor().expect("a tensor"),
        leaves.iter().map(|leaf| Some(tape.leaf_grad(leaf)?.tensor().expect("on the CPU"))).collect(),
    )
}

#[test]
fn every_op_rounds_and_no_more() {
    for case in cases() {
        for precision in LOW {
            let low = precision.dtype();
            // The f32 op gets the same rounded inputs, so that only the op's own rounding matters.
            let given: Vec<Tensor> = case
                .inputs
                .iter()
                .enumerate()
                .map(|(i, x)| if i < case.activations { x.to_dtype(low).expect("rounds") } else { x.clone() })
                .collect();
            let plain: Vec<Tensor> = given.iter().map(|x| x.to_dtype(DType::F32).expect("widens")).collect();
            let what = format!("{} in {precision}", case.name);
            let (result, gradients) = outcome(&case, &given, precision);
            let (exact, exact_gradients) = outcome(&case, &plain, Precision::F32);
            assert_eq!(result.dtype(), if case.wide { DType::F32 } else { low }, "{what}");
            // A few roundings: operands, intermediate results and the result.
            let tolerance = 8.0 * epsilon(precision);
            assert!(distance(&result, &exact) < tolerance, "{what}: {:e}", distance(&result, &exact));
            for (index, (found, expected)) in gradients.iter().zip(&exact_gradients).enumerate() {
                let (Some(found), Some(expected)) = (found, expected) else {
                    assert_eq!(found.is_some(), expected.is_some(), "{what}, input {index}");
                    continue;
                };
                let off = distance(found, expected);
                assert!(off < tolerance, "{what}, gradient of input {index}: {off:e}");
                assert_eq!(found.dtype(), given[index].dtype(), "{what}, gradient of input {index}");
            }
        }
    }
}

#[test]
fn instructions_and_threads_change_no_more_than_the_order_of_sums() {
    let (x, w) = (draw("x", &[4, 16, 8, 8]), draw("w", &[32, 16, 3, 3]));
    let wide = |tensor: &Tensor| tensor.to_dtype(DType::F32).expect("widens");
    let run = |context: Context| {
        let tape = Tape::recording(Session { context: Arc::new(context), ..session(Precision::Bf16, 1) });
        let (x, w) = (tape.leaf(x.clone()), tape.leaf(w.clone()));
        let y = ops::conv2d(&tape, &x, &w, None, Conv2dOptions::new(2, 1)).expect("sound");
        tape.backward_from([(&y, draw("seed", y.dims()))]).expect("sound");
        let grad = |leaf| tape.leaf_grad(leaf).and_then(|grad| grad.tensor().ok()).expect("used, on the CPU");
        [y.tensor().expect("a tensor"), grad(&x), grad(&w)]
    };
    let reference = run(Context::new(1));
    for level in phalanx_tensor::Level::ALL {
        for (threads, products) in [(1, Precision::Bf16.products()), (3, Precision::F32.products())] {
            let Ok(context) = Context::with_level(threads, *level) else { continue };
            for (found, expected) in run(context.with_products(products)).iter().zip(&reference) {
                // Another order of a sum in f32 rarely changes the rounding of a result.
                assert!(distance(found, expected) < 5e-4, "{level}: {:e}", distance(found, expected));
            }
        }
    }
    // Products of rounded operands equal rounding first and multiplying in f32.
    let rounded = |tensor: &Tensor| wide(&tensor.to_dtype(DType::BF16).expect("rounds"));
    let tape = Tape::forward_only(session(Precision::F32, 1));
    let (x, w) = (Value::constant(rounded(&x)), Value::constant(rounded(&w)));
    let exact = ops::conv2d(&tape, &x, &w, None, Conv2dOptions::new(2, 1)).expect("sound");
    assert!(distance(&reference[0], &rounded(&exact.tensor().expect("a tensor"))) < 5e-4);
}

#[test]
fn parameters_and_their_gradients_stay_f32() {
    for precision in LOW {
        let options = BuildOptions { key: Key::new(1), bucket_bytes: 0, ..Default::default() };
        let builder = StoreBuilder::new(options);
        let (first, second) = (
            nn::Conv2d::new(&builder.root().pp("conv").block(), 3, 4, 3, Conv2dOptions::new(1, 1)),
            nn::Linear::new(&builder.root().pp("fc").block(), 4, 2),
        );
        let (first, second) = (first.expect("new names"), second.expect("new names"));
        let store = builder.build().expect("small");
        let gradients = |precision: Precision| {
            store.zero_grads();
            let tape = Tape::recording(session(precision, 1));
            let x = first.forward(&tape, &Value::constant(draw("x", &[2, 3, 6, 6]))).expect("sound");
            assert_eq!(x.dtype().expect("a tensor"), precision.dtype());
            let x = ops::global_avg_pool2d(&tape, &ops::relu(&tape, &x).expect("sound")).expect("sound");
            let logits = second.forward(&tape, &x).expect("sound");
            let loss = loss::cross_entropy(&tape, &logits, &[0, 1], 0.0, LossDivisor::Batch).expect("sound");
            assert_eq!(loss.dtype().expect("a tensor"), DType::F32);
            // The scale multiplies all gradients.
            tape.backward_scaled(&loss, 1024.0).expect("sound");
            let of = |param: &phalanx_tensor::ParamBucket| {
                let grads = param.grads().expect("held").expect("some");
                grads.tensor().expect("on the CPU").copy().expect("copies")
            };
            store.buckets().iter().map(of).collect::<Vec<_>>()
        };
        for (low, exact) in gradients(precision).iter().zip(gradients(Precision::F32)) {
            assert_eq!(low.dtype(), DType::F32);
            assert!(
                distance(low, &exact) < 16.0 * epsilon(precision),
                "{precision}: {:e}",
                distance(low, &exact)
            );
        }
    }
}

#[test]
fn mismatched_operands_are_errors() {
    let mixed = Session { precision: Precision::F16, ..session(Precision::Bf16, 1) };
    let tape = Tape::forward_only(mixed);
    let constant = |dtype| Value::constant(draw("x", &[2, 2]).to_dtype(dtype).expect("rounds"));
    let error =
        ops::linear(&tape, &constant(DType::F32), &constant(DType::F32), None).expect_err("rounds twice");
    assert!(error.to_string().contains("Products::F32"), "{error}");
    let error = ops::add(&tape, &constant(DType::BF16), &constant(DType::F16)).expect_err("two low types");
    assert!(error.to_string().contains("BF16") && error.to_string().contains("F16"), "{error}");
    for precision in [Precision::F32, Precision::Bf16] {
        let tape = Tape::forward_only(session(precision, 1));
        let of = |dtype| Value::constant(draw("x", &[1, 2, 1, 4]).to_dtype(dtype).expect("rounds"));
        for [q, k, v] in [
            [DType::F64, DType::F32, DType::F64],
            [DType::F32, DType::F32, DType::F64],
            [DType::BF16, DType::F64, DType::BF16],
        ] {
            let options = AttentionOptions::default();
            let error = ops::attention(&tape, &of(q), &of(k), &of(v), &options).expect_err("f64 and others");
            assert!(error.to_string().contains("attention"), "{error}");
        }
    }
}

#[test]
fn candle_code_computes_in_f32() {
    let tape = Tape::recording(session(Precision::Bf16, 1));
    let x = tape.leaf(draw("x", &[2, 3]).to_dtype(DType::BF16).expect("rounds"));
    let w = tape.leaf(draw("w", &[3, 4]));
    let y = tape.segment(&[&x, &w], |x| x[0].matmul(&x[1])?.tanh()).expect("sound");
    assert_eq!(y.dtype().expect("a tensor"), DType::F32);
    tape.backward(&ops::sum(&tape, &y).expect("sound")).expect("sound");
    assert_eq!(tape.leaf_grad(&x).expect("used").dtype(), DType::BF16);
    assert_eq!(tape.leaf_grad(&w).expect("used").dtype(), DType::F32);
}

#[test]
fn a_scale_brings_small_gradients_through_f16() {
    let builder = StoreBuilder::new(BuildOptions::default());
    let weight = builder.root().pp("fc").block().param("weight", (1, 1), Init::ONES).expect("a new name");
    let store = builder.build().expect("small");
    let context = Arc::new(Context::new(1));
    let gradient = |scale: &mut LossScale| {
        store.zero_grads();
        let tape = Tape::recording(session(Precision::F16, 1));
        let x = Value::constant(Tensor::new(&[[1.0_f32]], &Device::Cpu).expect("a constant"));
        let y = ops::linear(&tape, &x, &tape.param(&weight).expect("built"), None).expect("sound");
        // A gradient of 2e-9, which f16 cannot represent.
        let small = ops::scale(&tape, &ops::sum(&tape, &y).expect("sound"), 2e-9).expect("sound");
        tape.backward_scaled(&small, scale.factor().expect("held")).expect("sound");
        let squares = grad_sum_of_squares(store.buckets(), &context).expect("held");
        let alone = |_: &phalanx_tensor::Array| Ok::<_, phalanx_tensor::TensorError>(());
        let step = scale.step(&squares, None, &context, alone).expect("on the host");
        let outcome = scale.apply_report(&step.read().expect("on the host")).expect("numbers");
        if !outcome.left_out {
            step.unscale(store.buckets(), &context).expect("held");
        }
        (!outcome.left_out, floats(&weight.grad().expect("built").expect("some"))[0])
    };
    assert_eq!(gradient(&mut LossScale::fixed(1.0).expect("positive")), (true, 0.0));
    let mut scale = LossScale::dynamic().expect("a constant");
    let (finite, scaled) = gradient(&mut scale);
    assert!(finite && (scaled / 2e-9 - 1.0).abs() < 1e-3, "{scaled:e}");
    // A scale that is too large is detected and halved until it fits.
    let mut scale = LossScale::dynamic_from(f64::powi(2.0, 50)).expect("positive");
    let mut rejected = 0;
    while !gradient(&mut scale).0 {
        rejected += 1;
    }
    assert!(rejected > 0 && scale.scale() == f64::powi(2.0, 50 - rejected), "{rejected} {}", scale.scale());
    let mut sgd = Sgd::new(0.0, false, 0.0);
    sgd.step(store.buckets(), 1.0, &context).expect("held");
}

#[test]
fn a_processor_multiplies_f32_where_a_gpu_takes_tf32() {
    let product = |precision| {
        let tape = Tape::forward_only(session(precision, 1));
        let (a, b) = (Value::constant(draw("a", &[5, 7])), Value::constant(draw("b", &[7, 3])));
        ops::matmul(&tape, &a, &b).and_then(|product| product.to_host()).expect("multiplies")
    };
    let (f32, tf32) = (product(Precision::F32), product(Precision::Tf32));
    assert_eq!((f32.dtype(), floats(&f32)), (tf32.dtype(), floats(&tf32)));
    assert_eq!("tf32".parse::<Precision>().expect("is one"), Precision::Tf32);
}
