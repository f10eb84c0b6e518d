//! A model of one's own in two stages, against one rank: `cargo run -p phalanx-sharding --example pipeline`.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_collectives::{Communicator, threads};
use phalanx_sharding::ShardingError;
use phalanx_sharding::pipeline::{
    BuiltModel, PipelineSchedule, PipelineSizes, StageCut, StagedModel, StagedSetup,
};
use phalanx_tensor::{
    Block, BuildOptions, ComputeDevice, Context, Key, ParamLayout, Result, Session, StoreBuilder, Tape,
    Value, nn, ops,
};

const MICRO_BATCHES: usize = 4;

/// A block of a model: a stage has some of them.
#[derive(Debug)]
struct Layer(String, nn::Linear);

impl Block for Layer {
    fn name(&self) -> &str {
        &self.0
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![ops::tanh(tape, &self.1.forward(tape, &inputs[0])?)?])
    }
}

/// Four layers and their loss, as for one rank. A layout says which parameters are here.
fn build(device: &ComputeDevice, layout: Option<Arc<dyn ParamLayout>>) -> Result<BuiltModel> {
    let options =
        BuildOptions { key: Key::new(1), device: device.clone(), layout, ..BuildOptions::default() };
    let builder = StoreBuilder::new(options);
    let layer = |at: usize| {
        let scope = builder.root().pp(format!("layers.{at}")).block();
        let layer = Layer(scope.block_name().to_owned(), nn::Linear::new(&scope, 6, 6)?);
        Ok(Arc::new(layer) as Arc<dyn Block>)
    };
    let layers = (0..4).map(layer).collect::<Result<Vec<_>>>()?;
    let loss = move |tape: &Tape, micro: usize| {
        let x = Tensor::full(0.1 * (micro as f32 + 1.0), (2, 6), &Device::Cpu)?;
        let y = tape.run_sequence(&layers, &Value::constant(x))?;
        ops::mean(tape, &ops::mul(tape, &y, &y)?)
    };
    Ok(BuiltModel { store: builder.build()?, loss: Box::new(loss) })
}

fn session(micro: usize) -> Session {
    Session::training(Arc::new(Context::new(1)), Key::new(2).index(micro as u64))
}

/// The losses of micro-batches, on the rank that has them.
fn losses(comm: &Communicator) -> std::result::Result<Vec<f32>, ShardingError> {
    let sizes = PipelineSizes { ranks: comm.world_size(), chunks: 1, micros: MICRO_BATCHES };
    let schedule = PipelineSchedule::named("zero-bubble", sizes)?;
    let setup = StagedSetup { comm, schedule, cut: StageCut::Operations, session: &session(0) };
    let model = StagedModel::new(setup, |device, layout| Ok::<_, ShardingError>(build(device, layout)?))?;
    let losses = model.gradients(session, 1.0.into())?;
    model.sum_shared_grads(model.store().buckets())?;
    let here = model.store().params().iter().filter(|param| matches!(param.grad(), Ok(Some(_)))).count();
    println!("rank {} has the gradients of {here} parameters", comm.rank());
    losses.iter().map(|loss| Ok(loss.to_host()?.to_scalar()?)).collect()
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let on = |ranks: usize| {
        let running: Vec<_> =
            threads(ranks)?.into_iter().map(|comm| std::thread::spawn(move || losses(&comm))).collect();
        let mut all = Vec::new();
        for rank in running {
            all.extend(rank.join().expect("no panic")?);
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(all)
    };
    let (one, two) = (on(1)?, on(2)?);
    println!("losses of one rank: {one:?}, in two stages: {two:?}");
    assert!(one.len() == MICRO_BATCHES && one == two);
    Ok(())
}
