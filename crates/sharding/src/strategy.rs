//! Strategies as rows of a table: what each rank holds, when ranks wait, which way bytes go, what bytes are.

use crate::{Result, ShardingError};

/// How a kind of state lies over the ranks of the data axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Every rank holds all of it.
    Replicated,
    /// Every rank holds its part.
    Sharded,
    /// Rank 0, the leader, holds all of it, and the others nothing.
    Leader,
}

/// What each rank holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLayout {
    /// Parameters between uses.
    pub parameters: Held,
    /// Gradients after reduction.
    pub gradients: Held,
    /// Optimizer state.
    pub optimizer: Held,
}

/// Which ranks share what is sharded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardAxis {
    /// All of the world.
    World,
    /// Those of a group, such as a host; groups are replicas of each other.
    Group,
}

/// What the ranks of a run are.
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
    /// At every step (bulk-synchronous).
    EveryStep,
}

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// Whichever way the communicator finds fastest.
    Fastest,
}

/// What the bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// The numbers themselves, in the element type of the unit.
    Dense,
}

/// One row: a named point on the four axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strategy {
    /// The name people know.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// What each rank holds.
    pub placement: StateLayout,
    /// Over which ranks sharded state is spread.
    pub axis: ShardAxis,
    /// What the ranks are.
    pub ranks: Ranks,
    /// When ranks wait for each other.
    pub synchrony: Synchrony,
    /// Which way the bytes go.
    pub topology: Topology,
    /// What the bytes are.
    pub codec: Codec,
}

const fn held(parameters: Held, gradients: Held, optimizer: Held) -> StateLayout {
    StateLayout { parameters, gradients, optimizer }
}

const fn row(name: &'static str, summary: &'static str, placement: StateLayout) -> Strategy {
    Strategy {
        name,
        summary,
        placement,
        axis: ShardAxis::World,
        ranks: Ranks::Processes,
        synchrony: Synchrony::EveryStep,
        topology: Topology::Fastest,
        codec: Codec::Dense,
    }
}

/// Every strategy that can be run.
pub const PRESETS: &[Strategy] = &[
    Strategy {
        ranks: Ranks::Threads,
        ..row(
            "dp",
            "one process, a replica on each thread; the leader scatters inputs, sums gradients, updates and broadcasts",
            held(Held::Replicated, Held::Leader, Held::Leader),
        )
    },
    row(
        "ddp",
        "every rank holds the whole model; gradients are summed per flat unit while backward still runs",
        held(Held::Replicated, Held::Replicated, Held::Replicated),
    ),
    row(
        "zero1",
        "as ddp, but each rank keeps the optimizer's state of its part only, and updates that part for all",
        held(Held::Replicated, Held::Replicated, Held::Sharded),
    ),
    row(
        "zero2",
        "as zero1, and each rank keeps the summed gradients of its part only",
        held(Held::Replicated, Held::Sharded, Held::Sharded),
    ),
    row(
        "fsdp",
        "as zero2, and each rank keeps its part of the parameters only; whole units are gathered while they are used",
        held(Held::Sharded, Held::Sharded, Held::Sharded),
    ),
    Strategy {
        axis: ShardAxis::Group,
        ..row(
            "hsdp",
            "as fsdp inside a group of ranks, such as a host; the groups are replicas that sum their parts' gradients",
            held(Held::Sharded, Held::Sharded, Held::Sharded),
        )
    },
];

/// Other names of rows.
const ALIASES: &[(&str, &str)] = &[("zero3", "fsdp")];

/// Names that people will ask for and that no row answers yet.
const NOT_BUILT: &[&str] = &["ps-bsp", "ps-asp", "ps-ssp", "local-sgd"];

impl Strategy {
    /// The row called `name`.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] listing what there is.
    pub fn named(name: &str) -> Result<Self> {
        let row = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, row)| row);
        if let Some(row) = PRESETS.iter().find(|known| known.name == row) {
            return Ok(*row);
        }
        let known = PRESETS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        let problem = if NOT_BUILT.contains(&name) {
            format!("is not built yet; there is: {known}")
        } else {
            format!("is unknown; there is: {known}")
        };
        Err(ShardingError::Strategy { name: name.to_owned(), problem })
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
        assert_eq!(Strategy::named("ddp").expect("a row").placement.optimizer, Held::Replicated);
        assert_eq!(Strategy::named("zero3").expect("a row").name, "fsdp");
        let error = Strategy::named("ps-bsp").expect_err("no row yet").to_string();
        assert_eq!(error, "strategy `ps-bsp` is not built yet; there is: dp, ddp, zero1, zero2, fsdp, hsdp");
        assert!(Strategy::named("dpp").expect_err("a typo").to_string().contains("is unknown"));
        assert!(NOT_BUILT.iter().all(|name| PRESETS.iter().all(|row| row.name != *name)));
    }
}
