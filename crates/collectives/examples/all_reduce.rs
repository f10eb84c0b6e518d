//! Times all-reduces in a world that a launcher's environment describes, or between two threads without one.
//!
//! Under torchrun's variables, in two terminals:
//! `RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 cargo run --release --example all_reduce`, and the
//! same with `RANK=1`.

use std::time::Instant;

use phalanx_collectives::{CommError, Communicator, ReduceOp, WorldConfig, connect, threads};

fn measure(comm: &Communicator) -> Result<(), CommError> {
    for bytes in [1 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let mut buffer = vec![1.0_f32; bytes / 4];
        let mut times = Vec::new();
        for _ in 0..15 {
            buffer.fill(1.0);
            comm.barrier("start")?;
            let start = Instant::now();
            buffer = comm.all_reduce_async(buffer, ReduceOp::Sum).wait()?;
            times.push(start.elapsed().as_secs_f64());
        }
        assert!(buffer.iter().all(|v| *v == comm.world_size() as f32));
        times.sort_by(f64::total_cmp);
        let (time, world) = (times[times.len() / 2], comm.world_size() as f64);
        if comm.rank() == 0 {
            // Bus bandwidth as nccl-tests defines it: what each link must have carried.
            let bus = bytes as f64 / time * 2.0 * (world - 1.0) / world;
            println!("{:>6} KiB  {:>9.1} us  {:>6.2} GB/s", bytes >> 10, time * 1e6, bus / 1e9);
        }
    }
    Ok(())
}

fn main() -> Result<(), CommError> {
    if let Some(config) = WorldConfig::from_env()? {
        return measure(&connect(&config)?);
    }
    let ranks: Vec<_> =
        threads(2)?.into_iter().map(|comm| std::thread::spawn(move || measure(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
