//! From the name of a strategy to what follows it.

use std::sync::Arc;

use phalanx_tensor::ParamStore;

use crate::strategy::{Strategy, Synchrony};
use crate::synchrony::SyncOptions;
use crate::{
    DataParallel, Gossip, LocalSgd, Options, ParallelStrategy, ParameterServer, ProcessMesh, Result,
};

/// Makes the strategy of a row for a model over the ranks of a mesh ([`ProcessMesh::suiting`]). All ranks call this at the same
/// place with the same row and options.
///
/// ```
/// use phalanx_sharding::{Options, PlainUpdate, ProcessMesh, Strategy, SyncOptions, parallelize};
/// use phalanx_tensor::{BuildOptions, StoreBuilder, optim::Sgd};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let world = phalanx_collectives::threads(1)?.remove(0);
/// let store = StoreBuilder::new(BuildOptions::default()).build()?;
/// let row = Strategy::named("diloco")?;
/// let sync = SyncOptions { every: 100, ..SyncOptions::default() };
/// let parallel = parallelize(&store, ProcessMesh::suiting(world, &row, 0)?, row, Options::default(), sync)?;
/// let rule = PlainUpdate::of(Sgd::new(0.9, false, 0.0), 1);
/// parallel.set_optimizer(&rule)?;
/// let step = parallel.begin_step()?;
/// // … forward and backward, with `parallel` as listener.
/// step.finish_with(&rule, 0.1)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Errors of [`DataParallel::with_options`], [`LocalSgd::new`], [`ParameterServer::new`] and [`Gossip::new`];
/// [`crate::ShardingError::Strategy`] if the row does not support an option.
pub fn parallelize(
    store: &ParamStore,
    mesh: ProcessMesh,
    strategy: Strategy,
    options: Options,
    sync: SyncOptions,
) -> Result<Arc<dyn ParallelStrategy>> {
    options.codec.as_ref().map_or(Ok(()), |codec| strategy.encodes_by(&**codec, options.codec_scope))?;
    options.weights.map_or(Ok(()), |_| strategy.moves_parameters())?;
    strategy.goes_by(options.algorithm)?;
    options.virtual_ranks.map_or(Ok(()), |_| strategy.sums_over_virtual_ranks())?;
    Ok(match strategy.synchrony {
        Synchrony::EveryStep => DataParallel::with_options(store, mesh, strategy, options)?,
        Synchrony::Rounds(_) => LocalSgd::new(store, mesh.batch().using(options.algorithm), strategy, sync)?,
        Synchrony::Servers(_) => ParameterServer::new(store, mesh.batch().clone(), strategy, &options, sync)?,
        Synchrony::Neighbours(_) => Gossip::new(store, mesh.batch().clone(), strategy, sync)?,
    })
}
