//! Every op's backward against central differences in f64, on odd and non-square shapes.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_tensor::gradcheck::check_gradients;
use phalanx_tensor::ops::{
    self, AttentionHeads, AttentionMask, AttentionOptions, BatchNormAffine, Conv2dOptions, FusedActivation,
    PoolOptions, UnaryOp,
};
use phalanx_tensor::{BuildOptions, Context, Key, Result, Session, StoreBuilder, Tape, Value};

/// A fixed pseudo-random f64 tensor.
fn draw(name: &str, dims: &[usize]) -> Tensor {
    let mut values = vec![0.0; dims.iter().product()];
    Key::new(5).stream(name).normal(0, &mut values);
    Tensor::from_vec(values, dims, &Device::Cpu).expect("as many values as the shape has")
}

/// Returns a permutation of well separated numbers, so that no maximum changes within a step.
fn separated(dims: &[usize]) -> Tensor {
    let n: usize = dims.iter().product();
    let values: Vec<f64> = (0..n).map(|i| ((i * 7919 + 13) % n) as f64 / n as f64 - 0.5).collect();
    Tensor::from_vec(values, dims, &Device::Cpu).expect("as many values as the shape has")
}

#[track_caller]
fn check(what: &str, inputs: &[Tensor], f: impl Fn(&Tape, &[Value]) -> Result<Value>) {
    let worst = check_gradients(inputs, f).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(worst < 1e-5, "{what}: worst relative difference {worst:e}");
}

#[test]
fn arithmetic_and_reductions() {
    let (a, b) = (draw("a", &[3, 5]), draw("b", &[3, 5]));
    let row = draw("row", &[5]);
    let column = draw("column", &[3, 1]);
    check("add", &[a.clone(), b.clone()], |t, v| ops::add(t, &v[0], &v[1]));
    check("add to itself", std::slice::from_ref(&a), |t, v| ops::add(t, &v[0], &v[0]));
    check("sub", &[a.clone(), b.clone()], |t, v| ops::sub(t, &v[0], &v[1]));
    check("mul", &[a.clone(), b.clone()], |t, v| ops::mul(t, &v[0], &v[1]));
    check("square", std::slice::from_ref(&a), |t, v| ops::mul(t, &v[0], &v[0]));
    check("scale", std::slice::from_ref(&a), |t, v| ops::scale(t, &v[0], -2.5));
    check("add_scalar", std::slice::from_ref(&a), |t, v| ops::add_scalar(t, &v[0], 3.0));
    for other in [row, column] {
        check("broadcast_add", &[a.clone(), other.clone()], |t, v| ops::broadcast_add(t, &v[0], &v[1]));
        check("broadcast_mul", &[a.clone(), other.clone()], |t, v| ops::broadcast_mul(t, &v[0], &v[1]));
    }
    check("sum", std::slice::from_ref(&a), |t, v| ops::sum(t, &v[0]));
    check("mean", std::slice::from_ref(&a), |t, v| ops::mean(t, &v[0]));
    for dim in [0, 1] {
        check("sum_over", std::slice::from_ref(&a), |t, v| ops::sum_over(t, &v[0], dim));
    }
}

/// Differences of rounded numbers tell nothing, so the gradient is that of a product with numbers that f32 has.
#[test]
fn gradients_come_back_in_the_type_of_what_was_cast() {
    let tape = Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)));
    let x = tape.leaf(draw("x", &[3, 5]));
    let factors = Tensor::arange(0_f32, 15.0, &Device::Cpu).and_then(|all| all.reshape((3, 5))).expect("15");
    let narrow = ops::cast(&tape, &x, candle_core::DType::F32).expect("floating-point");
    assert_eq!(narrow.dtype().expect("known"), candle_core::DType::F32);
    let y = ops::mul(&tape, &narrow, &Value::constant(factors.clone())).expect("equal shapes");
    let y = ops::cast(&tape, &y, candle_core::DType::F64).expect("floating-point");
    let ones = Tensor::ones((3, 5), candle_core::DType::F64, &Device::Cpu).expect("small");
    tape.backward_from([(&y, ones)]).expect("recorded");
    let grad = tape.leaf_grad(&x).expect("it has one").tensor().expect("on the host");
    let flat = |tensor: &Tensor| {
        tensor.flatten_all().and_then(|flat| flat.to_dtype(candle_core::DType::F64)?.to_vec1::<f64>())
    };
    assert_eq!(
        (grad.dtype(), flat(&grad).expect("f64")),
        (candle_core::DType::F64, flat(&factors).expect("f32"))
    );
    let same = ops::cast(&tape, &x, candle_core::DType::F64).expect("nothing to do");
    assert_eq!(same.dims(), x.dims());
}

#[test]
fn a_value_used_in_many_places_gets_every_gradient_once() {
    // Shared, exclusive and in-place accumulation occur here in every order.
    check("diamond", &[draw("x", &[4, 3])], |t, v| {
        let x = &v[0];
        let square = ops::mul(t, x, x)?;
        let a = ops::add(t, x, &square)?;
        let b = ops::sub(t, &square, x)?;
        let c = ops::mul(t, &a, &b)?;
        let d = ops::add(t, &c, x)?;
        ops::add(t, &d, &d)
    });
}

#[test]
fn shapes() {
    let x = draw("x", &[2, 3, 5]);
    check("reshape", std::slice::from_ref(&x), |t, v| ops::reshape(t, &v[0], (5, 6)));
    check("permute", std::slice::from_ref(&x), |t, v| ops::permute(t, &v[0], &[2, 0, 1]));
    check("transpose", std::slice::from_ref(&x), |t, v| ops::transpose(t, &v[0], 0, 2));
    for (dim, start, len) in [(0, 1, 1), (1, 0, 2), (2, 1, 3)] {
        check("narrow", std::slice::from_ref(&x), |t, v| ops::narrow(t, &v[0], dim, start, len));
    }
    for (dim, before, after) in [(0, 1, 0), (1, 0, 2), (2, 2, 1)] {
        check("pad_with_zeros", std::slice::from_ref(&x), |t, v| {
            ops::pad_with_zeros(t, &v[0], dim, before, after)
        });
    }
    check("cat", &[x.clone(), draw("y", &[2, 1, 5])], |t, v| ops::cat(t, &[&v[0], &v[1], &v[0]], 1));
    check("broadcast_as", &[draw("b", &[3, 1])], |t, v| ops::broadcast_as(t, &v[0], (2, 3, 4)));
}

#[test]
fn matrix_products() {
    check("linear", &[draw("x", &[2, 3, 5]), draw("w", &[4, 5]), draw("b", &[4])], |t, v| {
        ops::linear(t, &v[0], &v[1], Some(&v[2]))
    });
    check("linear, inputs first", &[draw("x", &[2, 3, 5]), draw("w", &[5, 4]), draw("b", &[4])], |t, v| {
        let layout = ops::WeightLayout::InputsFirst;
        ops::linear_by(t, &v[0], ops::LinearWeight { weight: &v[1], layout, bias: Some(&v[2]) })
    });
    check("linear without bias", &[draw("x", &[1, 7]), draw("w", &[3, 7])], |t, v| {
        ops::linear(t, &v[0], &v[1], None)
    });
    check("matmul", &[draw("a", &[2, 3, 4, 5]), draw("b", &[2, 3, 5, 2])], |t, v| {
        ops::matmul(t, &v[0], &v[1])
    });
}

#[test]
fn transposed_convolutions() {
    for (x, w, options, output_padding) in [
        ([2, 3, 4, 3], [3, 2, 3, 3], Conv2dOptions::new(2, 1), [1, 1]),
        ([1, 2, 3, 5], [2, 4, 4, 2], Conv2dOptions { stride: [1, 3], ..Conv2dOptions::new(1, 0) }, [0, 2]),
        ([2, 4, 3, 3], [4, 1, 3, 3], Conv2dOptions::new(1, 1).groups(2), [0, 0]),
    ] {
        let outputs = w[1] * options.groups;
        let inputs = [draw("x", &x), draw("w", &w), draw("b", &[outputs])];
        check("conv_transpose2d", &inputs, |t, v| {
            ops::conv_transpose2d(t, &v[0], &v[1], Some(&v[2]), options, output_padding)
        });
    }
}

#[test]
fn activations() {
    // Away from the kinks of ReLU and ReLU6.
    let x =
        Tensor::new(&[[-7.3, -1.7, -0.4, -0.01], [0.02, 0.9, 5.5, 6.4]], &Device::Cpu).expect("a constant");
    let all = [
        UnaryOp::Relu,
        UnaryOp::ReluSquared,
        UnaryOp::Relu6,
        UnaryOp::LeakyRelu(0.2),
        UnaryOp::Sigmoid,
        UnaryOp::Tanh,
        UnaryOp::Silu,
        UnaryOp::Gelu,
        UnaryOp::GeluTanh,
        UnaryOp::QuickGelu,
        UnaryOp::Exp,
        UnaryOp::Clamp { low: -1.0, high: 5.0 },
    ];
    for op in all {
        check(&format!("{op:?}"), std::slice::from_ref(&x), |t, v| ops::unary(t, &v[0], op));
    }
    check("geglu", &[draw("both", &[2, 3, 8])], |t, v| ops::geglu(t, &v[0]));
    check("swiglu", &[draw("gate", &[2, 3, 5]), draw("value", &[2, 3, 5])], |t, v| {
        ops::swiglu(t, &v[0], &v[1])
    });
}

#[test]
fn convolutions() {
    struct Case {
        x: [usize; 4],
        w: [usize; 4],
        options: Conv2dOptions,
    }
    let options = |stride, padding, dilation, groups| Conv2dOptions { stride, padding, dilation, groups };
    let cases = [
        Case { x: [2, 3, 5, 7], w: [4, 3, 3, 3], options: options([1, 1], [1, 1], [1, 1], 1) },
        Case { x: [1, 2, 6, 5], w: [3, 2, 3, 2], options: options([2, 1], [1, 0], [1, 1], 1) },
        Case { x: [2, 4, 7, 5], w: [6, 2, 3, 3], options: options([2, 2], [2, 1], [1, 2], 2) },
        Case { x: [2, 3, 5, 4], w: [3, 1, 3, 3], options: options([1, 1], [1, 1], [1, 1], 3) },
        Case { x: [1, 3, 7, 6], w: [6, 1, 3, 3], options: options([2, 2], [1, 1], [1, 1], 3) },
        Case { x: [2, 3, 4, 5], w: [5, 3, 1, 1], options: options([1, 1], [0, 0], [1, 1], 1) },
        Case { x: [2, 3, 5, 5], w: [2, 3, 1, 1], options: options([2, 2], [0, 0], [1, 1], 1) },
        Case { x: [1, 2, 1, 1], w: [3, 2, 3, 3], options: options([1, 1], [1, 1], [1, 1], 1) },
        Case { x: [1, 2, 9, 9], w: [2, 2, 7, 7], options: options([2, 2], [3, 3], [1, 1], 1) },
    ];
    for Case { x, w, options } in cases {
        let what = format!("conv2d {x:?} {w:?} {options:?}");
        let inputs = [draw("x", &x), draw("w", &w), draw("b", &w[..1])];
        check(&what, &inputs, |t, v| ops::conv2d(t, &v[0], &v[1], Some(&v[2]), options));
    }
}

#[test]
fn pooling_and_upsampling() {
    // 31 -> 15 -> 7 and the stem of an ImageNet ResNet: windows that overlap, overhang, or leave a remainder.
    for (dims, options) in [
        ([1, 2, 7, 5], PoolOptions::new(2, 2, 0)),
        ([2, 1, 7, 6], PoolOptions::new(3, 2, 1)),
        ([1, 1, 5, 9], PoolOptions::new(3, 1, 1)),
        ([1, 2, 6, 4], PoolOptions { kernel: [3, 2], stride: [2, 1], padding: [1, 0] }),
    ] {
        check("max_pool2d", &[separated(&dims)], |t, v| ops::max_pool2d(t, &v[0], options));
        for include in [true, false] {
            check("avg_pool2d", &[draw("x", &dims)], |t, v| ops::avg_pool2d(t, &v[0], options, include));
        }
    }
    check("global_avg_pool2d", &[draw("x", &[2, 3, 3, 5])], |t, v| ops::global_avg_pool2d(t, &v[0]));
    for factor in [1, 2, 3] {
        check("upsample", &[draw("x", &[2, 2, 3, 4])], |t, v| ops::upsample_nearest2d(t, &v[0], factor));
    }
}

#[test]
fn normalisations() {
    let inputs =
        |dims: &[usize], affine: usize| [draw("x", dims), draw("gamma", &[affine]), draw("beta", &[affine])];
    check("layer_norm", &inputs(&[2, 3, 5], 5), |t, v| ops::layer_norm(t, &v[0], &v[1], &v[2], 1e-5));
    check("layer_norm with a residual", &inputs(&[2, 3, 5], 5), |t, v| {
        ops::add(t, &ops::layer_norm(t, &v[0], &v[1], &v[2], 1e-5)?, &v[0])
    });
    for groups in [1, 2, 4] {
        check("group_norm", &inputs(&[2, 4, 3, 5], 4), |t, v| {
            ops::group_norm(t, &v[0], groups, &v[1], &v[2], 1e-5)
        });
    }
    check("l2_normalise", &[draw("x", &[3, 4])], |t, v| ops::l2_normalise(t, &v[0]));
}

#[test]
fn batch_norm() {
    let builder = StoreBuilder::new(BuildOptions { dtype: candle_core::DType::F64, ..Default::default() });
    let root = builder.root();
    let mean = root.buffer("running_mean", 3, 0.1).expect("a new name");
    let var = root.buffer("running_var", 3, 1.3).expect("a new name");
    let count = root.counter("num_batches_tracked").expect("a new name");
    let stats = |fixed| ops::BatchNormStats {
        running_mean: &mean,
        running_var: &var,
        num_batches: &count,
        momentum: 0.1,
        eps: 1e-5,
        sync: false,
        fixed,
    };
    for (dims, fixed) in [([3, 3, 2, 5], false), ([2, 3, 4, 5], false), ([3, 3, 2, 5], true)] {
        let stats = stats(fixed);
        let inputs = [draw("x", &dims), draw("gamma", &[3]), draw("beta", &[3]), draw("added", &dims)];
        for activation in [FusedActivation::None, FusedActivation::Relu, FusedActivation::Relu6] {
            check(&format!("batch_norm2d {activation:?}"), &inputs[..3], |t, v| {
                let affine = BatchNormAffine { gamma: &v[1], beta: &v[2], residual: None, activation };
                ops::batch_norm2d(t, &v[0], affine, &stats)
            });
            check(&format!("batch_norm2d and addition {activation:?}"), &inputs, |t, v| {
                let residual = Some(&v[3]);
                let affine = BatchNormAffine { gamma: &v[1], beta: &v[2], residual, activation };
                ops::batch_norm2d(t, &v[0], affine, &stats)
            });
        }
    }
}

#[test]
fn embeddings_and_attention() {
    let ids = Tensor::new(&[[1_u32, 0, 3], [3, 3, 2]], &Device::Cpu).expect("a constant");
    check("embedding", &[draw("table", &[5, 4])], |t, v| ops::embedding(t, &v[0], &ids));
    check("select_positions", &[draw("x", &[3, 4, 2])], |t, v| ops::select_positions(t, &v[0], &[3, 0, 2]));
    check("softmax", &[draw("x", &[2, 3, 4])], |t, v| ops::softmax(t, &v[0]));
    let dims = [2, 5, 2, 3];
    for options in [AttentionOptions::default(), AttentionOptions::causal()] {
        check("attention", &[draw("q", &dims), draw("k", &dims), draw("v", &dims)], |t, v| {
            ops::attention(t, &v[0], &v[1], &v[2], &options)
        });
    }
    let (queries, keys) = ([2, 5, 2, 3], [2, 4, 2, 3]);
    check("cross-attention", &[draw("q", &queries), draw("k", &keys), draw("v", &keys)], |t, v| {
        ops::attention(t, &v[0], &v[1], &v[2], &AttentionOptions::default())
    });
}

#[test]
fn root_mean_square_norms() {
    for width in [5, 70] {
        check("rms_norm", &[draw("x", &[2, 3, width]), draw("gamma", &[width])], |t, v| {
            ops::rms_norm(t, &v[0], &v[1], 1e-3)
        });
        check("rms_norm with a residual", &[draw("x", &[2, 3, width]), draw("gamma", &[width])], |t, v| {
            ops::add(t, &v[0], &ops::rms_norm(t, &v[0], &v[1], 1e-3)?)
        });
    }
}

#[test]
fn rotations_by_position() {
    let positions = Tensor::new(&[[3_u32, 4, 0], [0, 1, 100]], &Device::Cpu).expect("a constant");
    let frequencies = [1.0, 0.1, 0.003];
    check("rotary", &[draw("x", &[2, 3, 2, 6])], |t, v| {
        let [cos, sin] = ops::rotary_angles(t, &positions, &frequencies, 1.5)?;
        ops::rotary(t, &v[0], [&cos, &sin])
    });
    let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
    let [cos, sin] = ops::rotary_angles(&tape, &positions, &frequencies, 1.5).expect("numbers");
    let x = draw("x", &[2, 3, 2, 6]);
    let y = ops::rotary(&tape, &Value::constant(&x), [&cos, &sin]).expect("the shapes match");
    let flat = |tensor: &Tensor| tensor.flatten_all().and_then(|t| t.to_vec1::<f64>()).expect("f64");
    let (x, y) = (flat(&x), flat(&y.tensor().expect("on the host")));
    // The last position, the second head, the second pair.
    let (first, angle) = (36 + 24 + 6 + 1, 100.0 * 0.1_f64);
    let (a, b) = (x[first], x[first + 3]);
    let expected = [1.5 * (a * angle.cos() - b * angle.sin()), 1.5 * (b * angle.cos() + a * angle.sin())];
    assert!((y[first] - expected[0]).abs() < 1e-6 && (y[first + 3] - expected[1]).abs() < 1e-6);
    let odd = Value::constant(draw("x", &[2, 3, 2, 5]));
    assert!(ops::rotary(&tape, &odd, [&cos, &sin]).expect_err("odd").to_string().contains("even D"));
    let other = Value::constant(draw("x", &[2, 2, 2, 6]));
    assert!(ops::rotary(&tape, &other, [&cos, &sin]).expect_err("positions").to_string().contains("angles"));
}

#[test]
fn attention_with_masks_and_shared_heads() {
    let lengths = Tensor::new(&[0_u32, 4], &Device::Cpu).expect("a constant");
    let starts = Tensor::new(&[[0_u32, 0, 2, 2, 2], [0, 1, 1, 1, 4]], &Device::Cpu).expect("a constant");
    let mask = AttentionMask { lengths: Some((&lengths).into()), ..AttentionMask::default() };
    let packed = AttentionMask { causal: true, starts: Some((&starts).into()), ..mask.clone() };
    let window = AttentionMask { causal: true, window: Some(2), ..AttentionMask::default() };
    let joined = [draw("projected", &[2, 5, 8 * 3])];
    for mask in [mask, packed, window] {
        let options = AttentionOptions { mask, ..AttentionOptions::default() };
        let (queries, keys) = ([2, 5, 4, 3], [2, 5, 2, 3]);
        check("attention", &[draw("q", &queries), draw("k", &keys), draw("v", &keys)], |t, v| {
            ops::attention(t, &v[0], &v[1], &v[2], &options)
        });
        let heads = AttentionHeads { queries: 4, keys: 2 };
        check("self_attention", &joined, |t, v| ops::self_attention(t, &v[0], heads, &options));
    }
}

#[test]
fn joined_operands_have_the_attention_of_their_parts() {
    let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(2))));
    let joined = Value::constant(draw("projected", &[2, 5, 8 * 3]));
    let heads = ops::reshape(&tape, &joined, (2, 5, 8, 3)).expect("the same elements");
    let [q, k, v] = [(0, 4), (4, 2), (6, 2)]
        .map(|(first, count)| ops::narrow(&tape, &heads, 2, first, count).expect("in range"));
    let options = AttentionOptions::causal();
    let apart = ops::attention(&tape, &q, &k, &v, &options).expect("fits");
    let heads = AttentionHeads { queries: 4, keys: 2 };
    let whole = ops::self_attention(&tape, &joined, heads, &options).expect("fits");
    let flat =
        |value: &Value| value.tensor().and_then(|t| Ok(t.flatten_all()?.to_vec1::<f64>()?)).expect("f64");
    assert_eq!(flat(&whole), flat(&apart));
}

#[test]
fn attention_refuses_heads_and_masks_that_do_not_fit() {
    let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
    let value = |dims: &[usize]| Value::constant(draw("x", dims));
    let (q, k) = (value(&[1, 4, 3, 2]), value(&[1, 4, 2, 2]));
    let refused = |options: &AttentionOptions, q: &Value, k: &Value| {
        ops::attention(&tape, q, k, k, options).expect_err("refused").to_string()
    };
    assert!(refused(&AttentionOptions::default(), &q, &k).contains("3 heads of queries"));
    let mask = AttentionMask { window: Some(2), ..AttentionMask::default() };
    assert!(refused(&AttentionOptions { mask, ..AttentionOptions::default() }, &k, &k).contains("window"));
    let lengths = Tensor::new(&[1_u32, 2], &Device::Cpu).expect("a constant");
    let mask = AttentionMask { lengths: Some((&lengths).into()), ..AttentionMask::default() };
    assert!(refused(&AttentionOptions { mask, ..AttentionOptions::default() }, &k, &k).contains("lengths"));
    assert!(
        refused(&AttentionOptions { dropout: 1.0, ..AttentionOptions::default() }, &k, &k).contains("p < 1")
    );
    let joined = value(&[1, 4, 10]);
    let error = ops::self_attention(&tape, &joined, 3, &AttentionOptions::default()).expect_err("refused");
    assert!(error.to_string().contains("10 elements"), "{error}");
}

#[test]
fn dropout_keeps_its_mask_for_backward() {
    check("dropout", &[draw("x", &[4, 9])], |t, v| ops::dropout(t, &v[0], 0.4));
}

#[test]
fn segments_are_differentiated_by_candle() {
    check("segment", &[draw("x", &[2, 3]), draw("w", &[3, 4])], |t, v| {
        t.segment(&[&v[0], &v[1]], |x| x[0].matmul(&x[1])?.tanh()?.sqr())
    });
}
