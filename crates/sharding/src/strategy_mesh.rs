//! The mesh that suits a strategy.

use phalanx_collectives::Communicator;

use crate::Result;
use crate::mesh::{Degree, Degrees, ProcessMesh, natural_group};
use crate::strategy::{DataAxes, Strategy};

impl Degrees {
    /// Returns the degrees that suit a strategy where none are given: one data axis for all ranks, or, for a strategy with groups of
    /// ranks, `replicate` × `shard` with `group` ranks in a group. With `group` 0 a group is the ranks of a host, if all hosts have as
    /// many, and otherwise as many ranks as the largest proper divisor of the world size. `hosts` has the host of each rank.
    pub fn suiting(strategy: &Strategy, hosts: &[usize], group: usize) -> Self {
        let ranks = hosts.len();
        if !strategy.data.has_groups() {
            return Self::of([(strategy.data.first_axis(), Degree::Of(ranks))]);
        }
        let group = if group == 0 { natural_group(hosts) } else { group };
        Self::of([("replicate", Degree::Of(ranks / group)), ("shard", Degree::Of(group))])
    }
}

impl ProcessMesh {
    /// Arranges the ranks of `world` as suits a strategy ([`Degrees::suiting`]): along one data axis, or as groups of `group` ranks.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`](crate::ShardingError::Mesh) if the world is not whole groups, and those of communication.
    pub fn suiting(world: Communicator, strategy: &Strategy, group: usize) -> Result<Self> {
        let layout = Degrees::suiting(strategy, world.hosts(), group).layout(world.world_size())?;
        Self::of(world, layout)
    }

    /// The groups `sharding` of a strategy's data axes: the ranks that share what is sharded, and the ranks that hold the same shards, if
    /// there are groups.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`](crate::ShardingError::Mesh) if the mesh lacks an axis.
    pub fn sharding(&self, axes: DataAxes) -> Result<(&Communicator, Option<&Communicator>)> {
        match axes.has_groups() {
            true => Ok((self.axis("shard")?, Some(self.axis("replicate")?))),
            false => Ok((self.batch(), None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_have_degrees_of_their_own() {
        let suiting = |name: &str, hosts: &[usize], group| {
            let row = Strategy::named(name).expect("a row");
            Degrees::suiting(&row, hosts, group).layout(hosts.len()).expect("fits").to_string()
        };
        assert_eq!(suiting("ddp", &[0, 0], 0), "replicate 2");
        assert_eq!(suiting("fsdp", &[0, 0], 0), "shard 2");
        assert_eq!(suiting("hsdp", &[0, 0, 1, 1], 0), "replicate 2 × shard 2");
        assert_eq!(suiting("hsdp", &[0; 4], 4), "replicate 1 × shard 4");
    }
}
