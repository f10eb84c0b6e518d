//! Distributes a candle-nn model over ranks: `cargo run --release --example candle_model [STRATEGY]`.
//!
//! Two ranks as threads of this process learn a function together, each from its half of every batch. With
//! `connect(&WorldConfig::from_env()?…)` instead of `threads` the same code runs as processes on many hosts.
use candle_core::{DType, Device, Tensor};
use candle_nn::Module as _;
use phalanx_collectives::{Communicator, threads};
use phalanx_sharding::{DataParallel, RankCollectives as _, Strategy};
use phalanx_tensor::optim::{Adam, Optimizer as _};
use phalanx_tensor::{BuildOptions, CandleModule, Context, Key, Session, StoreBuilder, Tape, Value, loss};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

fn train(comm: Communicator) -> Result<(), AnyError> {
    let (rank, world) = (comm.rank(), comm.world_size());
    // Your model, built as candle builds it.
    let builder = StoreBuilder::new(BuildOptions::default());
    let model = CandleModule::register(&builder.root().pp("mlp").block(), |vb| {
        Ok((candle_nn::linear(2, 64, vb.pp("hidden"))?, candle_nn::linear(64, 1, vb.pp("out"))?))
    })?;
    let store = builder.build()?;
    // What makes it distributed: what each rank holds, and summed gradients at every step.
    let strategy = Strategy::named(&std::env::args().nth(1).unwrap_or_else(|| "fsdp".into()))?;
    let parallel = DataParallel::new(&store, comm, strategy)?;
    let (context, mut adam) = (std::sync::Arc::new(Context::new(1)), Adam::new((0.9, 0.999), 1e-8, 0.0));
    let mut draw = vec![0.0; 128];
    for step in 0..=300 {
        // Every rank draws the points of its own part of the global batch of 64 a rank.
        Key::new(1).step(step).normal(rank * 128, &mut draw);
        let points = Tensor::from_slice(&draw, (64, 2), &Device::Cpu)?.to_dtype(DType::F32)?;
        let target = (points.narrow(1, 0, 1)? * points.narrow(1, 1, 1)?)?.sin()?;
        let session = Session::training(context.clone(), Key::new(1).step(step));
        let tape = Tape::recording(Session { listener: Some(parallel.clone()), ..session });
        let output = model.forward(&tape, &[&Value::constant(points)], |(hidden, out), x| {
            out.forward(&hidden.forward(&x[0])?.tanh()?)
        })?;
        let loss = loss::mse(&tape, &output, &Value::constant(target), loss::LossDivisor::Count(64 * world))?;
        let step_under_way = parallel.begin_step()?;
        tape.backward(&loss)?;
        step_under_way.finish(|params| adam.step(params, 0.01, &context))?;
        let mut global = [f64::from(loss.tensor()?.to_scalar::<f32>()?)];
        parallel.sum(&mut global)?;
        if rank == 0 && step % 100 == 0 {
            println!("step {step}: loss {:.4}", global[0]);
        }
    }
    Ok(())
}

fn main() -> Result<(), AnyError> {
    let ranks: Vec<_> = threads(2)?.into_iter().map(|comm| std::thread::spawn(|| train(comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
