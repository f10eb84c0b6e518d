//! A layer of one's own whose features are cut over two ranks, against one rank: `cargo run -p phalanx-sharding --example tensor_parallel`.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_collectives::threads;
use phalanx_sharding::RankGroup;
use phalanx_tensor::{
    BuildOptions, Context, Key, PlacementRule, ProcessGroup, Result, Session, StoreBuilder, Tape, TensorPlan,
    TensorRank, Value, nn, ops,
};

/// x³ as an op of one's own. It is elementwise, so it takes shards: it reads them by `part`, and its rule says so.
fn cube(tape: &Tape, x: &Value) -> Result<Value> {
    let input = x.part()?.host("cube")?.clone();
    let output = input.powf(3.0)?;
    tape.push_by(PlacementRule::Elementwise, "cube", &[x], output, move |_, grad, grads| {
        let slope = (input.sqr()? * 3.0)?;
        grads.add(0, (grad.host("cube")? * slope)?)
    })
}

/// The loss of a small network on whole layers, or on the portions of a rank.
fn loss(cut: Option<(TensorRank, Arc<dyn ProcessGroup>)>) -> Result<f32> {
    let plan = TensorPlan::new(["mlp.up = column", "mlp.down = row"])?;
    let layout = cut.as_ref().map(|(rank, _)| plan.layout(*rank));
    let builder = StoreBuilder::new(BuildOptions { key: Key::new(1), layout, ..BuildOptions::default() });
    let mlp = builder.root().pp("mlp").block();
    let up = nn::Linear::new(&mlp.pp("up"), 4, 7)?;
    let down = nn::Linear::new(&mlp.pp("down"), 7, 4)?;
    let store = builder.build()?;
    println!("mlp.up.weight is {:?} here", store.param("mlp.up.weight")?.dims());

    let session = Session::training(Arc::new(Context::new(1)), Key::new(2));
    let tape = Tape::recording(Session { tensor_group: cut.map(|(_, group)| group.into()), ..session });
    let x = Value::constant(Tensor::new(&[[0.1_f32, -0.4, 0.7, 0.2]], &Device::Cpu)?);
    let y = down.forward(&tape, &cube(&tape, &up.forward(&tape, &x)?)?)?;
    let loss = ops::mean(&tape, &ops::mul(&tape, &y, &y)?)?;
    tape.backward(&loss)?;
    Ok(loss.tensor()?.to_scalar()?)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let whole = loss(None)?;
    let ranks: Vec<_> = threads(2)?
        .into_iter()
        .map(|comm| {
            let rank = TensorRank { rank: comm.rank(), ranks: 2 };
            std::thread::spawn(move || loss(Some((rank, RankGroup::of(&comm)))))
        })
        .collect();
    for rank in ranks {
        let cut = rank.join().expect("no panic")?;
        println!("whole layers: {whole}, cut over two ranks: {cut}");
        assert!((cut - whole).abs() < 1e-6);
    }
    Ok(())
}
