//! The count of a training's arithmetic.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets, linear_cross_entropy};
use phalanx_tensor::ops::{AttentionOptions, Conv2dOptions, LinearWeight};
use phalanx_tensor::{ArithmeticCount, Context, Key, Result, Session, Tape, Value, ops};

/// A leaf of these dimensions.
fn leaf(tape: &Tape, dims: &[usize]) -> Value {
    tape.leaf(Tensor::ones(dims, DType::F32, &Device::Cpu).expect("small"))
}

/// The multiplications of a forward pass, and of forward and backward together.
fn counted(op: impl Fn(&Tape) -> Result<Value>) -> [u64; 2] {
    let session = || Session::training(Arc::new(Context::new(1)), Key::new(1));
    let count = |tape: Tape, is_trained: bool| {
        let found: ArithmeticCount = tape.session().arithmetic.clone();
        let loss = op(&tape).and_then(|output| ops::sum(&tape, &output)).expect("sound");
        if is_trained {
            tape.backward(&loss).expect("sound");
        }
        let operations = found.take();
        assert_eq!((operations % 2, found.take()), (0, 0), "pairs, and none of them twice");
        operations / 2
    };
    [count(Tape::forward_only(session()), false), count(Tape::recording(session()), true)]
}

#[test]
fn products_count_once_for_each_result_and_gradient() {
    let linear = counted(|tape| {
        ops::linear(tape, &leaf(tape, &[2, 3, 5]), &leaf(tape, &[7, 5]), Some(&leaf(tape, &[7])))
    });
    assert_eq!(linear, [210, 630]);
    // The input of a first layer needs no gradient.
    let first = counted(|tape| {
        let x = Value::constant(Tensor::ones((6, 5), DType::F32, &Device::Cpu)?);
        ops::linear(tape, &x, &leaf(tape, &[7, 5]), None)
    });
    assert_eq!(first, [210, 420]);
    assert_eq!(
        counted(|tape| ops::matmul(tape, &leaf(tape, &[2, 3, 4]), &leaf(tape, &[2, 4, 5]))),
        [120, 360]
    );
    // Images of 8 x 6 by windows of 3 x 3 at every second place: 4 x 3 places of 6 channels, 2 channels in each of 2 groups.
    let options = Conv2dOptions::new(2, 1).groups(2);
    let conv = counted(|tape| {
        ops::conv2d(tape, &leaf(tape, &[2, 4, 8, 6]), &leaf(tape, &[6, 2, 3, 3]), None, options)
    });
    assert_eq!(conv, [2 * 12 * 6 * 18, 3 * 2 * 12 * 6 * 18]);
    let mirrored = counted(|tape| {
        let (x, weight) = (leaf(tape, &[2, 4, 5, 5]), leaf(tape, &[4, 3, 2, 2]));
        ops::conv_transpose2d(tape, &x, &weight, None, Conv2dOptions::new(2, 0), [0, 0])
    });
    assert_eq!(mirrored, [2 * 25 * 4 * 3 * 4, 3 * 2 * 25 * 4 * 3 * 4]);
}

#[test]
fn attention_counts_the_pairs_that_its_mask_leaves() {
    let pairs = |options: AttentionOptions, queries: usize| {
        let [forward, both] = counted(|tape| {
            let (q, k) = (leaf(tape, &[2, queries, 4, 8]), leaf(tape, &[2, 5, 2, 8]));
            ops::attention(tape, &q, &k, &leaf(tape, &[2, 5, 2, 8]), &options)
        });
        // Of a pair two products in forward and four in backward, in 2 samples, 4 heads and 8 dimensions.
        assert_eq!(both, 3 * forward);
        forward / (2 * 2 * 4 * 8)
    };
    let mut windowed = AttentionOptions::causal();
    windowed.mask.window = Some(2);
    assert_eq!(pairs(AttentionOptions::default(), 3), 15);
    assert_eq!(pairs(AttentionOptions::causal(), 5), 15);
    assert_eq!(pairs(AttentionOptions::causal(), 2), 9, "queries at the end of the keys");
    assert_eq!(pairs(windowed, 5), 9);
    let joined =
        counted(|tape| ops::self_attention(tape, &leaf(tape, &[2, 5, 24]), 2, &AttentionOptions::default()));
    assert_eq!(joined, [2 * 25 * 2 * 2 * 4, 6 * 25 * 2 * 2 * 4]);
}

#[test]
fn a_head_in_blocks_counts_as_the_product_that_it_is() {
    let head = counted(|tape| {
        let (x, weight) = (leaf(tape, &[6, 5]), leaf(tape, &[11, 5]));
        let labels = [1, 2, 3, 4, 5, 6];
        let targets = RowTargets { labels: (&labels).into(), weights: None, over: LossDivisor::Sum(6.0) };
        linear_cross_entropy(tape, &x, LinearWeight::new(&weight), &targets, CrossEntropyOptions::default())
    });
    assert_eq!(head, [330, 990]);
}
