//! The section `[elastic]`, and the settings that do not go with it.

use std::ops::RangeInclusive;

use phalanx_collectives::Clock;
use phalanx_sharding::{CodecKind, Partition, Ranks};

use super::keys::{Config, Offload, WeightCodec};
use super::validate::Relations;

impl Config {
    /// With how many ranks the run goes on when they die, leave and join; `None` if the world is not to change.
    pub fn elastic(&self) -> Option<RangeInclusive<usize>> {
        let most = if self.elastic.max > 0 { self.elastic.max } else { self.train.ranks };
        (self.elastic.min > 0).then_some(self.elastic.min..=most)
    }

    /// Returns true if each rank has a shard of the state that no other rank has.
    pub fn has_lone_shards(&self) -> bool {
        let strategy = &self.train.strategy;
        strategy.layout.optimizer == Partition::Sharded && !strategy.data.has_groups()
    }

    /// Checks what worlds need that change.
    pub(super) fn check_elastic(&self, relations: &mut Relations<'_>) {
        const KEY: &str = "elastic.min";
        let Self { train, elastic, .. } = self;
        let Some(bounds) = self.elastic() else {
            let unused = elastic.max == 0 && elastic.respawn == 0 && elastic.redundancy == 0;
            relations.require(
                unused,
                KEY,
                "elastic.max, elastic.respawn and elastic.redundancy are for worlds that change; set elastic.min above 0".to_owned(),
            );
            return;
        };
        let (least, most) = bounds.into_inner();
        let (ranks, batch) = (train.ranks, train.global_batch);
        relations.require(
            least <= ranks && ranks <= most,
            KEY,
            format!("train.ranks = {ranks} is not from elastic.min = {least} to elastic.max = {most}"),
        );
        let pieces = most.saturating_mul(train.accumulate);
        relations.require(
            batch >= pieces,
            "elastic.max",
            format!(
                "train.global_batch {batch} is not at least elastic.max {most} x train.accumulate {} = {pieces}",
                train.accumulate
            ),
        );
        if let Some(logical) = self.logical_ranks() {
            relations.require(
                most <= logical,
                "elastic.max",
                format!("elastic.max = {most}, but train.logical_ranks = {logical} has one shard for at most as many ranks"),
            );
        }
        let redundancy = elastic.redundancy;
        let strategy = &train.strategy;
        relations.require(
            redundancy == 0 || (redundancy == 1 && self.has_lone_shards()),
            "elastic.redundancy",
            format!(
                "elastic.redundancy = {redundancy} with train.strategy = {strategy}: it is 0, or 1 for zero1, zero2 and fsdp, where no other rank has a rank's shard"
            ),
        );
        self.check_changing_world(relations, least);
    }

    /// Refuses settings that need a world which stays as it is.
    fn check_changing_world(&self, relations: &mut Relations<'_>, least: usize) {
        const KEY: &str = "elastic.min";
        let Self { train, codec, comm, sync, log, .. } = self;
        let strategy = &train.strategy;
        let other = [
            (
                strategy.is_bulk_synchronous() && strategy.ranks == Ranks::Processes,
                "train.strategy",
                format!(
                    "{strategy} does not go on with other ranks; ddp, zero1, zero2, fsdp and hsdp do, and gossip and servers by sync.min_workers"
                ),
            ),
            (
                codec.kind == CodecKind::None && codec.weights == WeightCodec::None,
                "codec.kind",
                "what codecs keep from step to step belongs to ranks that may be lost; set codec.kind and codec.weights to none".to_owned(),
            ),
            (
                !train.graphs,
                "train.graphs",
                "what is recorded belongs to a world that stays as it is; set it to false".to_owned(),
            ),
            (
                matches!(train.offload, Offload::None | Offload::Optimizer),
                "train.offload",
                "parameters and files of an offloaded state belong to ranks; set train.offload to none or optimizer".to_owned(),
            ),
            (
                comm.link.is_empty() && comm.clock == Clock::Wall,
                "comm.link",
                "simulated links and clocks are for worlds that stay as they are".to_owned(),
            ),
            (
                log.trace.is_none(),
                "log.trace",
                "a trace is of ranks that are there from the first step to the last".to_owned(),
            ),
            (
                sync.min_workers == 0,
                "sync.min_workers",
                "sync.min_workers is for strategies whose ranks are apart".to_owned(),
            ),
        ];
        for (holds, key, problem) in other {
            relations.require(holds, key, format!("{KEY} = {least}: {problem}"));
        }
    }
}
