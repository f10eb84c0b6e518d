//! Steps of logical ranks on any number of ranks, by every strategy whose ranks take each step together, end in the same bits.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_collectives::{Communicator, threads};
use phalanx_sharding::{
    DataParallel, Options, RankCollectives as _, Residency as _, STRATEGIES, ShardingError, Strategy,
    VirtualRankGroup, VirtualRankTurns, VirtualRanks,
};
use phalanx_tensor::optim::{Optimizer as _, Sgd};
use phalanx_tensor::{
    Block, BuildOptions, Context, Key, Result, Session, StoreBuilder, Tape, Value, nn, ops,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A fully connected layer as a block.
#[derive(Debug)]
struct Layer(String, nn::Linear);

impl Block for Layer {
    fn name(&self) -> &str {
        &self.0
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![ops::relu(tape, &self.1.forward(tape, &inputs[0])?)?])
    }
}

/// The weights of a rank after three steps.
fn weights(
    comm: Communicator,
    shards: usize,
    strategy: Strategy,
) -> Result<Vec<(String, Vec<u32>)>, Failure> {
    let builder = StoreBuilder::new(BuildOptions { bucket_bytes: 256, ..BuildOptions::default() });
    let layers: Vec<Arc<dyn Block>> = (0..4)
        .map(|at| {
            let scope = builder.root().pp(format!("layer{at}")).block();
            let layer = nn::Linear::new(&scope, 7, 7)?;
            Ok(Arc::new(Layer(format!("layer{at}"), layer)) as Arc<dyn Block>)
        })
        .collect::<Result<_>>()?;
    let store = builder.build()?;
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let placed = VirtualRanks::new(shards, ranks)?;
    let options = Options { virtual_ranks: Some(shards), ..Options::default() };
    let parallel = DataParallel::with_options(
        &store,
        phalanx_sharding::ProcessMesh::suiting(comm, &strategy, 0)?,
        strategy,
        options,
    )?;
    let (context, mut sgd) = (Arc::new(Context::new(1)), Sgd::new(0.9, false, 0.01));
    for number in 0..3_u64 {
        let step = parallel.begin_step()?;
        if !placed.is_even() {
            parallel.unshard()?;
        }
        let turns = VirtualRankTurns::new(placed.of(rank), vec![parallel.clone()]);
        let group = (ranks > 1).then(|| parallel.batch_group(ranks)).transpose()?;
        turns.run(|shard| -> Result<(), Failure> {
            turns.micro_batch(shard, false)?;
            let group = VirtualRankGroup::of(0, (placed, shards), (shard, turns.clone()), group.clone());
            let session = Session {
                listener: Some(parallel.clone()),
                batch_group: Some(group.clone()),
                ..Session::training(context.clone(), Key::new(0))
            };
            let tape = Tape::recording(session);
            // Shards of different sizes.
            let key = Key::new(5).step(number).index(shard as u64);
            let mut input = vec![0.0_f64; 7 * (1 + shard % 3)];
            key.normal(0, &mut input);
            let input = Tensor::from_vec(input, (1 + shard % 3, 7), &Device::Cpu)?.to_dtype(DType::F32)?;
            let output = tape.run_sequence(&layers, &Value::constant(input))?;
            // Something that needs all shards, so that they take turns in the middle.
            let total = Tensor::new(&[shard as f32 / 3.0], &Device::Cpu)?.into();
            group.all_reduce(&total)?;
            let square = ops::mul(&tape, &output, &output)?;
            let loss = ops::mean(&tape, &ops::add(&tape, &square, &output)?)?;
            tape.backward(&loss)?;
            Ok(())
        })?;
        if !placed.is_even() {
            parallel.reshard()?;
        }
        step.finish(|params| sgd.step(params, 0.1, &context))?;
    }
    parallel.unshard()?;
    let mut all = Vec::new();
    for (name, tensor) in store.state_dict()? {
        let bits = tensor.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect();
        all.push((name, bits));
    }
    Ok(all)
}

fn on(ranks: usize, shards: usize, strategy: Strategy) -> Vec<(String, Vec<u32>)> {
    let of_ranks: Vec<_> = threads(ranks)
        .expect("threads")
        .into_iter()
        .map(|comm| std::thread::spawn(move || weights(comm, shards, strategy)))
        .collect();
    let mut all = Vec::new();
    for rank in of_ranks {
        all.push(rank.join().expect("no panic").unwrap_or_else(|error| panic!("{}: {error}", strategy.name)));
    }
    all.dedup();
    assert_eq!(all.len(), 1, "{} on {ranks}: ranks differ", strategy.name);
    all.remove(0)
}

#[test]
fn weights_do_not_depend_on_strategy_or_ranks() {
    for shards in [4, 5] {
        let alone = on(1, shards, Strategy::named("ddp").expect("a row"));
        for strategy in STRATEGIES.iter().filter(|row| row.is_bulk_synchronous()) {
            for ranks in 1..=shards {
                assert_eq!(on(ranks, shards, *strategy), alone, "{} on {ranks} of {shards}", strategy.name);
            }
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let builder = StoreBuilder::new(BuildOptions::default());
    nn::Linear::new(&builder.root().pp("a").block(), 2, 2).expect("a new name");
    let store = builder.build().expect("small");
    let comm = threads(1).expect("a thread").remove(0);
    let row = Strategy::named("ddp").expect("a row");
    let options = Options { virtual_ranks: Some(0), ..Options::default() };
    let mesh = phalanx_sharding::ProcessMesh::suiting(comm, &row, 0).expect("a mesh");
    let error = DataParallel::with_options(&store, mesh, row, options).expect_err("no logical rank");
    assert!(matches!(error, ShardingError::VirtualRanks { shards: 0, ranks: 1 }), "{error}");
}
