//! A rank that gives up, or is gone, ends the training of the others with its number under every strategy, and no rank hangs.

use phalanx_sharding::{Options, PlainUpdate, STRATEGIES, SyncOptions, parallelize};
use phalanx_tensor::optim::Sgd;

use crate::common::layers::{AnyError, backward, model, set_values, shown, values};
use crate::common::on_ranks;

#[test]
fn all_ranks_learn_which_rank_gave_up_and_why() {
    for row in STRATEGIES.iter().filter(|row| !row.is_bulk_synchronous()) {
        let ends = on_ranks(3, move |comm| {
            let train = || -> Result<(), AnyError> {
                let (layers, store) = model()?;
                let rank = comm.rank();
                // All ranks begin with what rank 0 has.
                let own = values(&store)?.into_iter().map(|value| value + rank as f32).collect::<Vec<_>>();
                set_values(&store, &own)?;
                let sync = SyncOptions { every: 2, ..SyncOptions::default() };
                let parallel = parallelize(
                    &store,
                    phalanx_sharding::ProcessMesh::suiting(comm.clone(), row, 0)?,
                    *row,
                    Options::default(),
                    sync,
                )?;
                let rule = PlainUpdate::of(Sgd::new(0.0, false, 0.0), 1);
                parallel.set_optimizer(&rule)?;
                assert!(values(&store)?.iter().all(|value| value.abs() < 0.9), "not rank 0's: {rank}");
                for at in 0..2000 {
                    if (rank, at) == (1, 5) {
                        comm.abort("no such image: cat.png");
                    }
                    let step = parallel.begin_step()?;
                    backward(&layers, &parallel, (rank, at, 3))?;
                    step.finish_with(&rule, 0.01)?;
                }
                // A rank that does not wait learns it at the latest where all come together.
                shown(&parallel, &store).map(drop)
            };
            train().expect_err("the world is broken").to_string()
        });
        for (rank, end) in ends.iter().enumerate() {
            assert!(
                end.contains("rank 1") && end.contains("no such image: cat.png"),
                "{row}, rank {rank}: {end}"
            );
        }
    }
}
