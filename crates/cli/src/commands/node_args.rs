//! The options by which hosts that each start one process find each other, as torchrun's.

use clap::Args;

use super::error::CliError;

/// The port where ranks of several hosts meet unless told otherwise, as torchrun has it.
const PORT: u16 = 29_500;

/// One host of several.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Ranks and hosts")]
pub(super) struct NodeArgs {
    /// Start the ranks of this host alone, one of N hosts that each run this same command, as pods do. All hosts must
    /// see the run's folder (--out).
    #[arg(long, value_name = "N", requires = "node_rank", requires = "master_addr", requires = "out",
        conflicts_with_all = ["hosts", "tui", "ranks", "servers"])]
    nnodes: Option<usize>,
    /// With --nnodes: which of the hosts this is, from 0.
    #[arg(long, value_name = "K", requires = "nnodes")]
    node_rank: Option<usize>,
    /// With --nnodes: how many ranks each host has [default: 1].
    #[arg(long, value_name = "N", requires = "nnodes")]
    nproc_per_node: Option<usize>,
    /// With --nnodes: a name or an address of host 0.
    #[arg(long, value_name = "HOST", requires = "nnodes")]
    master_addr: Option<String>,
    /// With --nnodes: the port where rank 0 listens there [default: 29500].
    #[arg(long, value_name = "PORT", requires = "nnodes")]
    master_port: Option<u16>,
}

/// Where a host is among the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) nodes: usize,
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) master: String,
    pub(super) port: u16,
}

impl NodeArgs {
    /// The host's place, if these are given.
    pub(super) fn place(&self) -> Result<Option<Node>, CliError> {
        let (Some(nodes), Some(rank), Some(master)) = (self.nnodes, self.node_rank, &self.master_addr) else {
            return Ok(None);
        };
        let ranks = self.nproc_per_node.unwrap_or(1);
        let port = self.master_port.unwrap_or(PORT);
        if rank >= nodes || ranks == 0 || port == 0 {
            return Err(CliError::Usage(format!(
                "--node-rank {rank} of --nnodes {nodes} with --nproc-per-node {ranks} at port {port}: hosts count from 0, and ranks and ports \
                 from 1"
            )));
        }
        Ok(Some(Node { nodes, rank, ranks, master: master.clone(), port }))
    }
}

impl Node {
    /// Returns the number of ranks on all hosts.
    pub(super) fn world_size(&self) -> usize {
        self.nodes.saturating_mul(self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_cannot_be_are_refused() {
        let args = |nodes, rank, ranks| NodeArgs {
            nnodes: Some(nodes),
            node_rank: Some(rank),
            nproc_per_node: Some(ranks),
            master_addr: Some("a".to_owned()),
            master_port: None,
        };
        let place = args(2, 1, 4).place().expect("sound").expect("given");
        assert_eq!((place.world_size(), place.rank * place.ranks, place.port), (8, 4, PORT));
        for (nodes, rank, ranks) in [(2, 2, 1), (0, 0, 1), (1, 0, 0)] {
            assert!(args(nodes, rank, ranks).place().is_err(), "{nodes} {rank} {ranks}");
        }
    }
}
