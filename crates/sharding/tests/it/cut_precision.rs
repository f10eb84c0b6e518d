//! Parts of sums in 16 bits, and what sums of uneven sequences send.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_sharding::RankGroup;
use phalanx_tensor::group::even_lens;
use phalanx_tensor::{
    BuildOptions, Context, Key, Precision, Session, StoreBuilder, Tape, TensorPlan, TensorRank, Value, nn,
    ops,
};

use crate::common::on_ranks;

/// The part of the first rank has more bits than fit, and the sum has one.
#[test]
fn parts_of_convolutions_and_products_are_summed_before_they_are_rounded() {
    for (precision, large) in [(Precision::Bf16, 256.0_f32), (Precision::F16, 4096.0)] {
        let sums = on_ranks(2, move |comm| {
            let (rank, group) = (TensorRank { rank: comm.rank(), ranks: 2 }, RankGroup::of(&comm));
            let plan = TensorPlan::new(["conv = row", "fc = row"]).expect("rules");
            let layout = Some(plan.layout(rank));
            let builder = StoreBuilder::new(BuildOptions { layout, ..BuildOptions::default() });
            let conv = nn::Conv2d::new(&builder.root().pp("conv"), 4, 1, 1, ops::Conv2dOptions::default());
            let conv = conv.expect("a layer");
            let fc = nn::Linear::new(&builder.root().pp("fc"), 4, 1).expect("a layer");
            let store = builder.build().expect("small");
            for param in store.params() {
                let value = if param.name().ends_with("bias") { 2.0 } else { 1.0 };
                let filled = Tensor::full(value, param.shape(), &Device::Cpu).expect("small");
                param.set(&filled.to_dtype(DType::F32).expect("f32")).expect("its shape");
            }
            let session = Session {
                precision,
                tensor_group: Some(group.clone().into()),
                ..Session::training(Arc::new(Context::new(1)), Key::new(0))
            };
            let tape = Tape::recording(session);
            let low = |dims: &[usize]| {
                let all = [large, 1.0, 2.0 - large, -2.0];
                let x = Tensor::from_slice(&all, dims, &Device::Cpu).expect("four numbers");
                Value::constant(x.to_dtype(precision.dtype()).expect("16 bits"))
            };
            let split = |x: &Value, dim| ops::split_to_group(&tape, x, dim, &[2, 2], &group).expect("halves");
            let convolved = conv.forward(&tape, &split(&low(&[1, 4, 1, 1]), 1)).expect("convolves");
            let product = fc.forward(&tape, &split(&low(&[1, 1, 4]), 2)).expect("multiplies");
            [convolved, product].map(|sum| {
                assert_eq!(sum.dtype().expect("a type"), precision.dtype());
                let sum = sum.tensor().and_then(|sum| Ok(sum.flatten_all()?.to_dtype(DType::F32)?));
                sum.and_then(|sum| Ok(sum.to_vec1::<f32>()?)).expect("a number")[0]
            })
        });
        // One, and a bias of two.
        assert_eq!(sums, [[3.0; 2]; 2], "{precision}");
    }
}

/// Positions that differ by one are scattered as even ones are: a rank sends as much as of a row more.
#[test]
fn uneven_sequences_are_not_summed_whole() {
    let sent = |length: usize| {
        let sent = on_ranks(3, move |comm| {
            let group = RankGroup::of(&comm);
            let tape = Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)));
            let whole = Tensor::ones((2, length, 4096), DType::F32, &Device::Cpu).expect("small");
            let before = comm.stats().bytes_sent;
            let lens = even_lens(length, 3);
            let own = ops::reduce_scatter(&tape, &tape.leaf(whole), 1, &lens, &group).expect("sums");
            assert_eq!(own.dims(), [2, lens[comm.rank()], 4096]);
            let sums = own.tensor().and_then(|own| Ok(own.flatten_all()?.to_vec1::<f32>()?));
            assert!(sums.expect("numbers").iter().all(|sum| *sum == 3.0));
            comm.stats().bytes_sent - before
        });
        sent.into_iter().max().expect("ranks")
    };
    let (even, uneven) = (sent(33), sent(31));
    assert_eq!(uneven, even, "11 rows of each rank");
}
