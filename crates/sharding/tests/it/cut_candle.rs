//! Models of candle-nn whose layers are cut over ranks, against candle's own forward and backward.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use candle_nn::{Conv2dConfig, Module as _};
use phalanx_sharding::RankGroup;
use phalanx_tensor::{
    BuildOptions, CandleLayer, CandleModule, Context, Key, ParamStore, Portion, ProcessGroup, Result, Scope,
    Session, StoreBuilder, Tape, TensorPlan, TensorRank, Value, ops,
};

use crate::common::on_ranks;

/// Two texts of three tokens as images of 2 x 3 pixels with 5 channels.
const IDS: [u32; 12] = [0, 4, 6, 1, 1, 3, 5, 2, 6, 6, 0, 4];

/// The gradient of a parameter, or of the portion that a rank has.
struct Gradient {
    values: Tensor,
    portion: Option<Arc<Portion>>,
}

/// The loss, and the gradients by name.
type Outcome = (f64, BTreeMap<String, Gradient>);

fn builder(cut: Option<TensorRank>) -> Result<StoreBuilder> {
    let plan = TensorPlan::new([
        "*.table = vocabulary",
        "*.conv_in = column",
        "*.conv_out = row",
        "*.fc_in = column",
        "*.fc_out = row",
    ])?;
    let layout = cut.map(|rank| plan.layout(rank));
    let options = BuildOptions { key: Key::new(3), dtype: DType::F64, layout, ..BuildOptions::default() };
    Ok(StoreBuilder::new(options))
}

fn tape(group: Option<Arc<dyn ProcessGroup>>) -> Tape {
    let session = Session::training(Arc::new(Context::new(1)), Key::new(0));
    Tape::recording(Session { tensor_group: group.map(Into::into), ..session })
}

/// The network as candle runs it.
fn by_candle() -> Result<Outcome> {
    let builder = builder(None)?;
    let module = CandleModule::register(&builder.root().pp("net"), |vb| {
        let padded = Conv2dConfig { padding: 1, ..Conv2dConfig::default() };
        Ok((
            candle_nn::embedding(7, 5, vb.pp("table"))?,
            candle_nn::conv2d(5, 8, 3, padded, vb.pp("conv_in"))?,
            candle_nn::conv2d(8, 4, 1, Conv2dConfig::default(), vb.pp("conv_out"))?,
            candle_nn::linear(24, 9, vb.pp("fc_in"))?,
            candle_nn::linear(9, 3, vb.pp("fc_out"))?,
        ))
    })?;
    let (store, tape) = (builder.build()?, tape(None));
    let y = module.forward(&tape, &[&ids()?], |(table, conv_in, conv_out, fc_in, fc_out), x| {
        let x = table.forward(&x[0])?.transpose(1, 2)?.reshape((2, 5, 2, 3))?;
        let x = conv_out.forward(&conv_in.forward(&x)?.tanh()?)?.reshape((2, 24))?;
        fc_out.forward(&fc_in.forward(&x)?.tanh()?)
    })?;
    outcome(&store, &tape, &y)
}

/// Candle's layers, each of which an op computes.
struct Layers {
    table: CandleLayer,
    convs: [CandleLayer; 2],
    fcs: [CandleLayer; 2],
}

impl Layers {
    fn new(scope: &Scope) -> Result<Self> {
        let padded = Conv2dConfig { padding: 1, ..Conv2dConfig::default() };
        let plain = Conv2dConfig::default();
        Ok(Self {
            table: CandleLayer::register(&scope.pp("table"), |vb| candle_nn::embedding(7, 5, vb))?,
            convs: [
                CandleLayer::register(&scope.pp("conv_in"), |vb| candle_nn::conv2d(5, 8, 3, padded, vb))?,
                CandleLayer::register(&scope.pp("conv_out"), |vb| candle_nn::conv2d(8, 4, 1, plain, vb))?,
            ],
            fcs: [
                CandleLayer::register(&scope.pp("fc_in"), |vb| candle_nn::linear(24, 9, vb))?,
                CandleLayer::register(&scope.pp("fc_out"), |vb| candle_nn::linear(9, 3, vb))?,
            ],
        })
    }

    fn forward(&self, tape: &Tape) -> Result<Value> {
        let ([conv_in, conv_out], [fc_in, fc_out]) = (&self.convs, &self.fcs);
        let x = ops::permute(tape, &self.table.forward(tape, &ids()?)?, &[0, 2, 1])?;
        let x = ops::tanh(tape, &conv_in.forward(tape, &ops::reshape(tape, &x, (2, 5, 2, 3))?)?)?;
        let x = ops::reshape(tape, &conv_out.forward(tape, &x)?, (2, 24))?;
        fc_out.forward(tape, &ops::tanh(tape, &fc_in.forward(tape, &x)?)?)
    }
}

fn ids() -> Result<Value> {
    Ok(Value::constant(Tensor::from_slice(&IDS, (2, 6), &Device::Cpu)?))
}

fn outcome(store: &ParamStore, tape: &Tape, y: &Value) -> Result<Outcome> {
    let loss = ops::mean(tape, &ops::mul(tape, y, y)?)?;
    tape.backward(&loss)?;
    let gradients = store.params().iter().map(|param| {
        let gradient = param.grad()?.expect("all take part");
        let portion = param.portion().cloned();
        Ok((param.name().to_owned(), Gradient { values: gradient, portion }))
    });
    Ok((loss.tensor()?.to_scalar()?, gradients.collect::<Result<_>>()?))
}

fn assert_near(what: &str, (loss, gradients): &Outcome, (whole_loss, whole): &Outcome) {
    assert!((loss - whole_loss).abs() < 1e-12, "{what}: {loss}, not {whole_loss}");
    let names = |of: &BTreeMap<String, Gradient>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(gradients), names(whole), "{what}");
    for (name, own) in gradients {
        let expected = own
            .portion
            .as_ref()
            .map_or_else(|| Ok(whole[name].values.clone()), |portion| portion.cut(&whole[name].values));
        let off = expected.and_then(|expected| {
            Ok((expected - &own.values)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?)
        });
        assert!(off.expect("the same shape") < 1e-12, "{what}: {name}");
    }
}

#[test]
fn layers_of_candle_are_cut_over_ranks() {
    let whole = by_candle().expect("sound");
    let alone = builder(None).and_then(|builder| {
        let layers = Layers::new(&builder.root().pp("net"))?;
        let (store, tape) = (builder.build()?, tape(None));
        outcome(&store, &tape, &layers.forward(&tape)?)
    });
    assert_near("alone", &alone.expect("sound"), &whole);
    for ranks in [2, 3] {
        let parts = on_ranks(ranks, move |comm| {
            let builder = builder(Some(TensorRank { rank: comm.rank(), ranks })).expect("a plan");
            let layers = Layers::new(&builder.root().pp("net")).expect("layers");
            let (store, tape) = (builder.build().expect("small"), tape(Some(RankGroup::of(&comm))));
            let cut = store.params().iter().filter(|param| param.portion().is_some()).count();
            assert_eq!(cut, 7, "a table, two weights with their biases, and two weights");
            layers.forward(&tape).and_then(|y| outcome(&store, &tape, &y)).expect("sound")
        });
        for (rank, own) in parts.iter().enumerate() {
            assert_near(&format!("rank {rank} of {ranks}"), own, &whole);
        }
    }
}

#[test]
fn modules_that_candle_computes_are_not_cut() {
    let builder = builder(Some(TensorRank { rank: 0, ranks: 2 })).expect("a plan");
    let error =
        CandleModule::register(&builder.root().pp("net"), |vb| candle_nn::linear(4, 6, vb.pp("fc_in")));
    let told = error.expect_err("candle has no portions").to_string();
    assert!(told.contains("`net.fc_in.bias` is of a module that candle computes"), "{told}");
    assert!(told.contains("register its layer as `CandleLayer`"), "{told}");
}
