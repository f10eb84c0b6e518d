//! Settings that do not go with layers that are cut over ranks.

use super::keys::{Config, OptimKind};
use super::validate::Relations;

impl Config {
    /// Checks the settings of a run whose layers are cut over ranks.
    pub(super) fn check_tensor(&self, relations: &mut Relations<'_>) {
        let Self { tensor, train, optim, elastic, .. } = self;
        let Some(ranks) = self.tensor_ranks() else {
            relations.require(
                !tensor.sequence,
                "tensor.sequence",
                "tensor.sequence says what ranks that share layers have of sequences: give parallel.tensor, the number of ranks".to_owned(),
            );
            relations.require(
                tensor.plan.is_empty(),
                "tensor.plan",
                "tensor.plan says how layers are cut over ranks: give parallel.tensor, the number of ranks; 1 checks the plan on one rank"
                    .to_owned(),
            );
            return;
        };
        let key = "parallel.tensor";
        let mut refuse = |holds: bool, what: String, why: &str| {
            relations.require(holds, key, format!("{key} = {ranks} does not go with {what}: {why}"));
        };
        refuse(
            train.strategy.is_bulk_synchronous(),
            format!("train.strategy = {}", train.strategy),
            "ranks that share a layer take every step together; choose ddp, zero1, zero2, fsdp or hsdp",
        );
        refuse(
            self.logical_ranks().is_none(),
            format!("train.logical_ranks = {}", train.logical_ranks),
            "logical ranks are parts of the data on one rank each, with whole layers",
        );
        refuse(
            elastic.min == 0,
            format!("elastic.min = {}", elastic.min),
            "a rank that leaves takes its portions of the layers along",
        );
        refuse(
            !train.graphs,
            "train.graphs = true".to_owned(),
            "sums over ranks within a layer are not recorded in graphs",
        );
        refuse(
            optim.kind != OptimKind::Muon,
            "optim.kind = muon".to_owned(),
            "it turns whole matrices, of which ranks have portions",
        );
    }
}
