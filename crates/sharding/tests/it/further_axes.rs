//! Every strategy on meshes with a further axis: of size 1, or with ranks that do the same work.

use phalanx_sharding::{
    MeshLayout, Options, PlainUpdate, ProcessMesh, STRATEGIES, ServerPace, Strategy, SyncOptions, Synchrony,
    parallelize,
};
use phalanx_tensor::optim::Sgd;

use crate::common::layers::{AnyError, backward, model, shown};
use crate::common::on_ranks;

/// The sum of losses over the ranks, and all parameters, after some steps on a mesh.
fn train(
    world: phalanx_collectives::Communicator,
    strategy: Strategy,
    axes: &[(&str, usize)],
) -> Result<(f64, Vec<f32>, bool), AnyError> {
    let mesh = ProcessMesh::of(world, MeshLayout::new(axes, axes.iter().map(|(_, size)| size).product())?)?;
    let (part, parts) = (mesh.data_rank(), mesh.data_size());
    let (layers, store) = model()?;
    let sync = SyncOptions { every: 2, ..SyncOptions::default() };
    let parallel = parallelize(&store, mesh, strategy, Options::default(), sync)?;
    let rule = PlainUpdate::of(Sgd::new(0.9, false, 0.0), 1);
    parallel.set_optimizer(&rule)?;
    for at in 0..4 {
        let step = parallel.begin_step()?;
        backward(&layers, &parallel, (part, at, parts))?;
        step.finish_with(&rule, 0.1)?;
    }
    let mut losses = [part as f64 + 1.0];
    parallel.sum(&mut losses)?;
    let role = parallel.role();
    Ok((losses[0], shown(&parallel, &store)?, role.saves(role.parameters)))
}

/// The axes of the data of two ranks under a strategy.
fn data_axes(strategy: Strategy) -> Vec<(&'static str, usize)> {
    match (strategy.data.has_groups(), strategy.data.shard) {
        (true, _) => vec![("replicate", 1), ("shard", 2)],
        (false, phalanx_sharding::AlongAxis::Sharded) => vec![("shard", 2)],
        (false, phalanx_sharding::AlongAxis::Replicated) => vec![("replicate", 2)],
    }
}

/// True if a run of the strategy repeats itself to the bit.
fn repeats(strategy: Strategy) -> bool {
    !matches!(strategy.synchrony, Synchrony::Servers(ServerPace::Bounded | ServerPace::Free))
        && strategy.name != "ad-psgd"
}

#[test]
fn further_axes_change_no_curve() {
    for strategy in STRATEGIES {
        let on = |axes: Vec<(&'static str, usize)>| {
            let world = axes.iter().map(|(_, size)| size).product();
            let found =
                on_ranks(world, move |comm| train(comm, *strategy, &axes).map_err(|error| error.to_string()));
            found
                .into_iter()
                .collect::<Result<Vec<_>, _>>()
                .unwrap_or_else(|error| panic!("{strategy}: {error}"))
        };
        let axes = data_axes(*strategy);
        let plain = on(axes.clone());
        for further in [("tensor", 1), ("context", 1), ("duplicate", 1)] {
            let found = on([vec![further], axes.clone()].concat());
            assert!(!repeats(*strategy) || found == plain, "{strategy} with {further:?}");
        }
        // Outermost, so that ranks that do the same work are two apart.
        let twice = on([vec![("duplicate", 2)], axes.clone()].concat());
        assert_eq!(twice.len(), 4);
        for (rank, (losses, values, saves)) in twice.iter().enumerate() {
            let (expected, of_plain, saves_alone) = &plain[rank % 2];
            assert!((losses - expected).abs() < 1e-12, "{strategy}: losses of {rank}");
            assert!(!repeats(*strategy) || values == of_plain, "{strategy}: parameters of {rank}");
            let bulk = strategy.is_bulk_synchronous();
            assert!(!bulk || *saves == (*saves_alone && rank < 2), "{strategy}: rank {rank} saves {saves}");
        }
    }
}
