//! The section `[sync]`, and the limits of asynchronous strategies.

use phalanx_sharding::{ServerPace, SyncOptions, Synchrony};
use phalanx_tensor::Precision;

use super::keys::Config;
use super::validate::Relations;

impl Config {
    /// Returns the number of ranks of a run: workers and separate parameter servers.
    pub fn world_size(&self) -> usize {
        self.train.ranks.max(1).saturating_add(self.sync.servers)
    }

    /// Checks `[sync]`, and that the strategy supports the other settings.
    pub(super) fn check_synchrony(&self, relations: &mut Relations<'_>) {
        let Self { train, sync, .. } = self;
        let strategy = &train.strategy;
        let name = strategy.name;
        let options = SyncOptions {
            every: sync.every,
            fragments: sync.fragments,
            overlap: sync.overlap,
            mixing: sync.mixing,
            outer_bf16: sync.outer_bf16,
            compensation: sync.compensation,
            servers: sync.servers,
            ..SyncOptions::default()
        };
        if let Err(error) = options.check(strategy) {
            relations.require(false, "train.strategy", format!("[sync]: {error}"));
        }
        relations.require(
            sync.min_workers == 0 || strategy.outlives_workers(sync.servers),
            "sync.min_workers",
            format!(
                "sync.min_workers = {}: {name} with sync.servers = {} cannot go on without a worker; d-psgd, sgp and ad-psgd can, and \
                 ps-ssp and ps-asp with sync.servers above 0",
                sync.min_workers, sync.servers
            ),
        );
        relations.require(
            sync.min_workers <= train.ranks || train.ranks == 1,
            "sync.min_workers",
            format!("sync.min_workers = {} is above train.ranks = {}", sync.min_workers, train.ranks),
        );
        if strategy.is_bulk_synchronous() {
            return;
        }
        let numbers = [("sync.outer_lr", sync.outer_lr), ("sync.outer_momentum", sync.outer_momentum)];
        for (key, value) in numbers {
            relations.not_negative(key, value);
        }
        let together = matches!(strategy.synchrony, Synchrony::Servers(ServerPace::Together));
        relations.require(
            together || (train.precision != Precision::F16 && train.loss_scale == 0.0),
            "train.precision",
            format!("loss scaling needs all ranks to agree on every step, which {name} does not support; use bf16 or f32"),
        );
    }
}
