//! Strategies as rows of a table: what each rank holds, over which ranks it is spread, and what the ranks are.

use std::ops::Range;

use phalanx_codecs::{CodecKind, CodecScope, GradCodec, SumPlacement};
use phalanx_collectives::Algorithm;
use phalanx_tensor::ParamBucket;

use crate::mesh::natural_group;
use crate::{Result, ShardingError};

/// The partition of a kind of state over the data ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partition {
    /// Every rank holds all of it.
    Replicated,
    /// Every rank holds its part.
    Sharded,
    /// Rank 0, the root, holds all of it, and the others nothing.
    Root,
}

/// The rank that holds what [`Partition::Root`] says.
pub(crate) const ROOT: usize = 0;

/// The partitions of a strategy's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatePartition {
    /// Parameters between uses.
    pub parameters: Partition,
    /// Gradients after reduction.
    pub gradients: Partition,
    /// Optimizer state.
    pub optimizer: Partition,
}

/// The use of a data axis of the mesh for state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlongAxis {
    /// Ranks along the axis share what is sharded.
    Sharded,
    /// Ranks along the axis hold the same.
    Replicated,
}

/// The use of the data axes of a mesh by a strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataAxes {
    /// Along the axis `replicate`.
    pub replicate: AlongAxis,
    /// Along the axis `shard`.
    pub shard: AlongAxis,
}

impl DataAxes {
    /// State is replicated on all data ranks.
    const REPLICATED: Self = Self { replicate: AlongAxis::Replicated, shard: AlongAxis::Replicated };
    /// State is spread over all data ranks.
    const SHARDED: Self = Self { replicate: AlongAxis::Sharded, shard: AlongAxis::Sharded };
    /// State is spread inside of groups, which are replicas of each other.
    const GROUPS: Self = Self { replicate: AlongAxis::Replicated, shard: AlongAxis::Sharded };

    /// True if groups of ranks, which share what is sharded, are replicas of each other.
    pub fn has_groups(self) -> bool {
        self == Self::GROUPS
    }

    /// The axis along which all ranks lie where no mesh is given.
    pub(crate) fn first_axis(self) -> &'static str {
        if self.shard == AlongAxis::Sharded { "shard" } else { "replicate" }
    }
}

/// The kind of the ranks of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranks {
    /// Processes, on one host or several, each of which reads its own share of the data.
    Processes,
    /// Threads of one process, whose leader reads the data and scatters it.
    Threads,
}

/// When ranks wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synchrony {
    /// All take every step together (bulk-synchronous): [`crate::DataParallel`].
    EveryStep,
    /// Servers hold and update the parameters; workers push gradients and pull: [`crate::ParameterServer`].
    Servers(ServerPace),
    /// Each trains by itself and from time to time all meet: [`crate::LocalSgd`].
    Rounds(Meeting),
    /// Each rank averages with some neighbours: [`crate::Gossip`].
    Neighbours(GossipKind),
}

/// The bound on the distance of a parameter server's workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerPace {
    /// Not at all: one update for the gradients of all.
    Together,
    /// [`crate::SyncOptions::staleness`] steps; an update for each worker's gradients.
    Bounded,
    /// As far as it comes; an update for each worker's gradients.
    Free,
}

/// The meeting of ranks after some steps of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meeting {
    /// Parameters become their mean (local SGD, Stich 2019).
    Average,
    /// Gradients are summed in every step of the first phase, then parameters become their mean from time to time (post-local
    /// SGD, Lin et al. 2020).
    AverageAfterStart,
    /// The mean way that parameters have gone is the gradient of an outer optimizer (DiLoCo, Douillard et al. 2023).
    OuterStep,
}

/// The kind of averages with neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GossipKind {
    /// With all neighbours in every step (D-PSGD, Lian et al. 2017).
    AllNeighbours,
    /// With a random neighbour, without waiting for it (AD-PSGD, Lian et al. 2018).
    RandomNeighbour,
    /// Half goes to one neighbour, another one in every step, with a weight that corrects for what came (SGP, Assran et al. 2019).
    PushSum,
}

/// One row: a named way of training together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strategy {
    /// The name people know.
    pub name: &'static str,
    /// A summary in one line.
    pub summary: &'static str,
    /// The partitions of a strategy's state.
    pub layout: StatePartition,
    /// The use of the data axes of a mesh.
    pub data: DataAxes,
    /// The kind of the ranks.
    pub ranks: Ranks,
    /// When they wait for each other.
    pub synchrony: Synchrony,
}

const fn held(parameters: Partition, gradients: Partition, optimizer: Partition) -> StatePartition {
    StatePartition { parameters, gradients, optimizer }
}

const fn row(name: &'static str, summary: &'static str, layout: StatePartition) -> Strategy {
    let (ranks, synchrony) = (Ranks::Processes, Synchrony::EveryStep);
    let data = match layout.optimizer {
        Partition::Sharded => DataAxes::SHARDED,
        Partition::Replicated | Partition::Root => DataAxes::REPLICATED,
    };
    Strategy { name, summary, layout, data, ranks, synchrony }
}

/// A row whose ranks hold the whole model and do not take every step together.
const fn apart(name: &'static str, summary: &'static str, synchrony: Synchrony) -> Strategy {
    let layout = held(Partition::Replicated, Partition::Replicated, Partition::Replicated);
    Strategy { synchrony, ..row(name, summary, layout) }
}

/// A row whose ranks are workers and servers.
const fn by_servers(name: &'static str, summary: &'static str, pace: ServerPace) -> Strategy {
    let layout = held(Partition::Replicated, Partition::Replicated, Partition::Sharded);
    Strategy { synchrony: Synchrony::Servers(pace), ..row(name, summary, layout) }
}

/// Every strategy that can be run.
pub const STRATEGIES: &[Strategy] = &[
    Strategy {
        ranks: Ranks::Threads,
        ..row(
            "dp",
            "one process, a replica on each thread; the leader scatters inputs, sums gradients, updates and broadcasts",
            held(Partition::Replicated, Partition::Root, Partition::Root),
        )
    },
    row(
        "ddp",
        "every rank holds the whole model; gradients are summed bucket by bucket while backward still runs",
        held(Partition::Replicated, Partition::Replicated, Partition::Replicated),
    ),
    row(
        "zero1",
        "as ddp, but each rank keeps the optimizer's state of its part only, and updates that part for all",
        held(Partition::Replicated, Partition::Replicated, Partition::Sharded),
    ),
    row(
        "zero2",
        "as zero1, and each rank keeps the summed gradients of its part only",
        held(Partition::Replicated, Partition::Sharded, Partition::Sharded),
    ),
    row(
        "fsdp",
        "as zero2, and each rank keeps its part of the parameters only; whole blocks are gathered while they are used",
        held(Partition::Sharded, Partition::Sharded, Partition::Sharded),
    ),
    Strategy {
        data: DataAxes::GROUPS,
        ..row(
            "hsdp",
            "as fsdp inside a group of ranks, such as a host; the groups are replicas that sum their parts' gradients",
            held(Partition::Sharded, Partition::Sharded, Partition::Sharded),
        )
    },
    by_servers(
        "ps-bsp",
        "a server on every rank updates its part of the parameters by the sum of all gradients; workers push and pull",
        ServerPace::Together,
    ),
    by_servers(
        "ps-ssp",
        "as ps-bsp, but by each worker's gradients as they come; a worker waits when it is too far ahead of the slowest",
        ServerPace::Bounded,
    ),
    by_servers("ps-asp", "as ps-ssp, but no worker waits", ServerPace::Free),
    apart(
        "local-sgd",
        "every rank trains by itself; every few steps parameters become their mean",
        Synchrony::Rounds(Meeting::Average),
    ),
    apart(
        "post-local-sgd",
        "as ddp for the first steps, then as local-sgd",
        Synchrony::Rounds(Meeting::AverageAfterStart),
    ),
    apart(
        "diloco",
        "as local-sgd, but the mean way of a round is the gradient of an outer optimizer with momentum",
        Synchrony::Rounds(Meeting::OuterStep),
    ),
    apart(
        "d-psgd",
        "every rank averages its parameters with its neighbours' in every step, without a central rank",
        Synchrony::Neighbours(GossipKind::AllNeighbours),
    ),
    apart(
        "ad-psgd",
        "as d-psgd, but with one random neighbour, and without waiting for it",
        Synchrony::Neighbours(GossipKind::RandomNeighbour),
    ),
    apart(
        "sgp",
        "every rank gives half of what it has to one neighbour, another one in every step (push-sum)",
        Synchrony::Neighbours(GossipKind::PushSum),
    ),
];

/// Other names of rows.
const ALIASES: &[(&str, &str)] = &[("zero3", "fsdp")];

impl Strategy {
    /// The row called `name`.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] listing what there is.
    pub fn named(name: &str) -> Result<Self> {
        let row = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, row)| row);
        if let Some(row) = STRATEGIES.iter().find(|known| known.name == row) {
            return Ok(*row);
        }
        let known = STRATEGIES.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        let problem = match crate::Degrees::names().any(|axis| axis == name) {
            true => format!("is an axis of the mesh (--parallel {name}=2), no strategy; there is: {known}"),
            false => format!("is unknown; there is: {known}"),
        };
        Err(ShardingError::Strategy { name: name.to_owned(), problem })
    }

    /// Checks that parameters are gathered or pulled before use, so that they can be quantised.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] if every rank has them all.
    pub fn moves_parameters(&self) -> Result<()> {
        if self.layout.parameters == Partition::Sharded || matches!(self.synchrony, Synchrony::Servers(_)) {
            return Ok(());
        }
        let problem = "gathers no parameters that could be quantised; `fsdp` and `hsdp` do, and workers of `ps-bsp`, `ps-ssp` \
            and `ps-asp` pull them"
            .to_owned();
        Err(ShardingError::Strategy { name: self.name.to_owned(), problem })
    }

    /// Checks that gradients can be those of virtual ranks ([`crate::VirtualRanks`]): all ranks take every step together.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] if ranks do not.
    pub fn sums_over_virtual_ranks(&self) -> Result<()> {
        if self.is_bulk_synchronous() {
            return Ok(());
        }
        let problem = "has no step that all ranks take together, so that weights depend on how many there are; logical ranks are for \
            dp, ddp, zero1, zero2, fsdp (zero3) and hsdp"
            .to_owned();
        Err(ShardingError::Strategy { name: self.name.to_owned(), problem })
    }

    /// Checks that parameters can be kept on the host and come to a device with the blocks that use them: each rank updates
    /// the parameters that it keeps, and no others.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] if a rank has parameters that others update.
    pub(crate) fn keeps_on_host(&self) -> Result<()> {
        let StatePartition { parameters, optimizer, .. } = self.layout;
        if self.is_bulk_synchronous() && parameters == optimizer && parameters != Partition::Root {
            return Ok(());
        }
        let problem = "has parameters on ranks that do not update them, so they cannot be kept on the host alone; `ddp`, `fsdp` and \
                       `hsdp` can, and one rank by itself";
        Err(ShardingError::strategy(self.name, problem))
    }

    /// Checks that the strategy can use a codec of gradients.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] saying what is wrong, and what would be right.
    pub fn encodes_by(&self, codec: &dyn GradCodec, scope: CodecScope) -> Result<()> {
        let problem = match self.synchrony {
            Synchrony::EveryStep => return Ok(()),
            Synchrony::Rounds(_) | Synchrony::Neighbours(_) => {
                "sends no gradients that a codec could encode in every step; use codec none".to_owned()
            }
            Synchrony::Servers(_) if scope != CodecScope::All => {
                format!(
                    "has workers that push for themselves, not hosts: codec scope {scope} is for sums; use all"
                )
            }
            Synchrony::Servers(_) if codec.push().is_none() => {
                let kinds = CodecKind::ALL.iter().filter(|kind| kind.pushes());
                let names = kinds.map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
                format!(
                    "cannot push gradients by codec {}, which is for sums; there is: {names}",
                    codec.name()
                )
            }
            Synchrony::Servers(_) => return Ok(()),
        };
        Err(ShardingError::strategy(self.name, problem))
    }

    /// The number of ranks of a group where the strategy has no groups of its own and only messages between groups are encoded: the
    /// ranks of a host, if hosts have as many ranks each, and otherwise the largest proper divisor of the number of ranks.
    pub(crate) fn codec_group(&self, scope: CodecScope, hosts: &[usize]) -> Option<usize> {
        (scope == CodecScope::InterHost && !self.data.has_groups()).then(|| natural_group(hosts))
    }

    /// True if all ranks take every step together, as [`crate::DataParallel`] does.
    pub fn is_bulk_synchronous(&self) -> bool {
        self.synchrony == Synchrony::EveryStep
    }

    /// Checks that ranks hold equal state after every step, so that a difference is a fault.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] saying why there is nothing to compare.
    pub fn has_replicas(&self) -> Result<()> {
        let problem = if !self.is_bulk_synchronous() {
            "has ranks whose weights differ between meetings; dp, ddp, zero1, zero2 and hsdp have replicas to compare"
        } else if self.layout.parameters == Partition::Sharded && !self.data.has_groups() {
            "keeps every parameter on one rank only, so that there are no replicas to compare; hsdp has some"
        } else {
            return Ok(());
        };
        Err(ShardingError::strategy(self.name, problem.to_owned()))
    }

    /// True if the distance of ranks in steps is bounded. Without a bound, an action of all ranks before one step waits
    /// until the slowest has come that far.
    pub fn bounds_leads(&self) -> bool {
        !matches!(
            self.synchrony,
            Synchrony::Servers(ServerPace::Free) | Synchrony::Neighbours(GossipKind::RandomNeighbour)
        )
    }

    /// True if gradients and parameters go between ranks through the host's memory and network, also if a device computes:
    /// ranks send messages at times of their own, and GPU libraries have collectives only.
    pub fn exchanges_on_host(&self) -> bool {
        matches!(self.synchrony, Synchrony::Servers(_) | Synchrony::Neighbours(_))
    }

    /// True if the other workers can go on when one dies, with `servers` servers that are ranks of their own: the dead rank
    /// has no state that all need.
    pub fn outlives_workers(&self, servers: usize) -> bool {
        match self.synchrony {
            Synchrony::Neighbours(_) => true,
            Synchrony::Servers(pace) => servers > 0 && pace != ServerPace::Together,
            Synchrony::EveryStep | Synchrony::Rounds(_) => false,
        }
    }

    /// Checks that the algorithm has the collectives of the strategy.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] naming the collective that does not go so.
    pub fn goes_by(&self, algorithm: Algorithm) -> Result<()> {
        use Algorithm::{Auto, Direct, Grid, HalvingDoubling, PushPull, Ring, SingleReducer, Tree};
        let StatePartition { gradients, optimizer, .. } = self.layout;
        if self.exchanges_on_host() && algorithm != Auto {
            let problem =
                format!("cannot go by `{algorithm}`: it sends messages from rank to rank; use `auto`");
            return Err(ShardingError::strategy(self.name, problem));
        }
        let reduces = match gradients {
            Partition::Sharded => ("reduce-scatter", matches!(algorithm, Ring | HalvingDoubling | PushPull)),
            Partition::Root => ("reduce", matches!(algorithm, Ring | Tree | SingleReducer)),
            Partition::Replicated => ("all-reduce", true),
        };
        let gathers = match optimizer {
            Partition::Sharded => ("all-gather", matches!(algorithm, Ring | HalvingDoubling | PushPull)),
            Partition::Root => ("broadcast", !matches!(algorithm, HalvingDoubling | PushPull | Grid)),
            Partition::Replicated => ("", true),
        };
        let lacking = [reduces, gathers].into_iter().find(|(_, goes)| !goes);
        match (algorithm, lacking) {
            (Auto | Direct, _) | (_, None) => Ok(()),
            (_, Some((collective, _))) => {
                let problem = format!("cannot go by `{algorithm}`: it has no {collective}");
                Err(ShardingError::Strategy { name: self.name.to_owned(), problem })
            }
        }
    }
}

impl StatePartition {
    /// True if the parameters of a bucket leave memory between uses, where `world` ranks share what is sharded. Parameters
    /// outside of any block are used at any time, and stay; so does the only shard.
    pub(crate) fn leaves_memory(&self, param: &ParamBucket, world: usize) -> bool {
        self.parameters == Partition::Sharded && world > 1 && !param.is_outside()
    }

    /// The part of summed gradients that a rank keeps.
    pub(crate) fn placement(&self) -> SumPlacement {
        match self.gradients {
            Partition::Replicated => SumPlacement::All,
            Partition::Sharded => SumPlacement::Shard,
            Partition::Root => SumPlacement::Root,
        }
    }

    /// True if each rank gets its shard of the summed gradients.
    pub(crate) fn scatters(&self) -> bool {
        self.gradients == Partition::Sharded
    }

    /// True if rank `rank` of the ranks that share what is sharded keeps the whole summed gradients.
    pub(crate) fn keeps_gradients(&self, rank: usize) -> bool {
        match self.gradients {
            Partition::Replicated => true,
            Partition::Sharded => false,
            Partition::Root => rank == ROOT,
        }
    }

    /// The elements of `len` that the optimizer of rank `rank` of `world` updates, and whose state it holds.
    pub(crate) fn owned(&self, len: usize, (rank, world): (usize, usize)) -> Range<usize> {
        match self.optimizer {
            Partition::Root if rank == ROOT => 0..len,
            Partition::Root => 0..0,
            Partition::Replicated => 0..len,
            Partition::Sharded => rank * len / world..(rank + 1) * len / world,
        }
    }
}

impl std::fmt::Display for Strategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl std::str::FromStr for Strategy {
    type Err = ShardingError;

    fn from_str(name: &str) -> Result<Self> {
        Self::named(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_rows_or_to_a_list() {
        assert_eq!(Strategy::named("ddp").expect("a row").layout.optimizer, Partition::Replicated);
        assert_eq!(Strategy::named("zero3").expect("a row").name, "fsdp");
        let error = Strategy::named("pipeline").expect_err("an axis").to_string();
        assert!(
            error.starts_with("strategy `pipeline` is an axis of the mesh (--parallel pipeline=2), no strategy; there is: dp,"),
            "{error}"
        );
        assert!(Strategy::named("dpp").expect_err("a typo").to_string().contains("is unknown"));
    }
}
