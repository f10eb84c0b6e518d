//! The key `train.logical_ranks`, and the settings that do not go with it.

use phalanx_sharding::{CodecKind, VirtualRanks};

use super::keys::{Config, WeightCodec};
use super::validate::Relations;

impl Config {
    /// Returns the number of logical ranks, if it is set.
    pub fn logical_ranks(&self) -> Option<usize> {
        (self.train.logical_ranks > 0).then_some(self.train.logical_ranks)
    }

    /// Checks what logical ranks need.
    pub(super) fn check_logical_ranks(&self, relations: &mut Relations<'_>) {
        const KEY: &str = "train.logical_ranks";
        let Self { train, codec, sync, .. } = self;
        let Some(logical) = self.logical_ranks() else { return };
        if let Err(error) = VirtualRanks::new(logical, train.ranks.max(1)) {
            relations.require(
                false,
                KEY,
                format!("{KEY} = {logical} with train.ranks = {}: {error}", train.ranks),
            );
        }
        if let Err(error) = train.strategy.sums_over_virtual_ranks() {
            relations.require(false, KEY, format!("{KEY} = {logical}: {error}"));
        }
        let (batch, pieces) = (train.global_batch, logical.saturating_mul(train.accumulate));
        relations.require(
            batch >= pieces,
            KEY,
            format!(
                "train.global_batch {batch} is not at least {KEY} {logical} x train.accumulate {} = {pieces}",
                train.accumulate
            ),
        );
        relations.require(
            codec.kind == CodecKind::None && codec.weights == WeightCodec::None,
            KEY,
            format!(
                "{KEY} = {logical} with codec.kind = {} and codec.weights = {}: codecs round, or add up in the order of ranks; set both to none",
                codec.kind,
                codec.weights.as_str()
            ),
        );
        relations.require(
            !train.graphs,
            KEY,
            format!("{KEY} = {logical} with train.graphs = true: logical ranks take turns, which is not recorded; set train.graphs = false"),
        );
        relations.require(
            sync.servers == 0,
            KEY,
            format!(
                "{KEY} = {logical} with sync.servers = {}: servers add up gradients as they come",
                sync.servers
            ),
        );
    }
}
