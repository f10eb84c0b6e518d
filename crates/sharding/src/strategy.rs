//! Strategies as rows of a table: what each rank holds, when ranks wait, which way bytes go, what bytes are.

use crate::{Result, ShardingError};

/// How a kind of state lies over the ranks of the data axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Every rank holds all of it.
    Replicated,
    /// Every rank holds its part.
    Sharded,
}

/// What each rank holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Parameters between uses.
    pub parameters: Held,
    /// Gradients after reduction.
    pub gradients: Held,
    /// Optimizer state.
    pub optimizer: Held,
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
    /// Around a ring: reduce-scatter, then all-gather.
    Ring,
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
    pub placement: Placement,
    /// When ranks wait for each other.
    pub synchrony: Synchrony,
    /// Which way the bytes go.
    pub topology: Topology,
    /// What the bytes are.
    pub codec: Codec,
}

const REPLICATED: Placement =
    Placement { parameters: Held::Replicated, gradients: Held::Replicated, optimizer: Held::Replicated };

/// Every strategy that can be run.
pub const PRESETS: &[Strategy] = &[Strategy {
    name: "ddp",
    summary: "every rank holds the whole model; gradients are summed per flat unit while backward still runs",
    placement: REPLICATED,
    synchrony: Synchrony::EveryStep,
    topology: Topology::Ring,
    codec: Codec::Dense,
}];

/// Names that people will ask for and that no row answers yet.
const NOT_BUILT: &[&str] =
    &["dp", "zero1", "zero2", "zero3", "fsdp", "hsdp", "ps-bsp", "ps-asp", "ps-ssp", "local-sgd"];

impl Strategy {
    /// The row called `name`.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] listing what there is.
    pub fn named(name: &str) -> Result<Self> {
        if let Some(row) = PRESETS.iter().find(|row| row.name == name) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_rows_or_to_a_list() {
        assert_eq!(Strategy::named("ddp").expect("a row").placement, REPLICATED);
        let error = Strategy::named("fsdp").expect_err("no row yet").to_string();
        assert_eq!(error, "strategy `fsdp` is not built yet; there is: ddp");
        assert!(Strategy::named("dpp").expect_err("a typo").to_string().contains("is unknown"));
        assert!(NOT_BUILT.iter().all(|name| PRESETS.iter().all(|row| row.name != *name)));
    }
}
