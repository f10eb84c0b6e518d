//! Looks at all hosts of a world before something is trained on them: whether every two reach each other and how fast, and
//! whether all have the same program, the same data, and clocks that agree.
//!
//! Every rank calls [`Checkup::of`], as it would train. Ranks say what they are ([`Facts`]); then one rank of each host (all
//! ranks, where there is one host) measures messages to each other one, in rounds in which everybody talks to one other:
//! pairs do not disturb each other but where their links meet. What is wrong is told with the names of hosts
//! ([`Checkup::findings`]).
//!
//! ```
//! use phalanx_launch::checkup::rounds;
//!
//! // Four hosts meet each other in three rounds.
//! assert_eq!(rounds(4).len(), 3);
//! assert_eq!(rounds(4).concat().len(), 6);
//! ```

mod facts;
mod findings;
mod pairs;

use std::path::Path;

use phalanx_collectives::{CommError, Communicator};
use serde::{Deserialize, Serialize};

pub use facts::{DataFacts, Facts};
pub use findings::{Finding, findings};
pub use pairs::{Pair, rounds};

/// Why hosts could not be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckupError {
    /// Ranks do not meet, or lose each other.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A rank says what is not understood: another version of the program.
    #[error("rank {rank} says what this version does not understand: {source}")]
    Answer {
        /// The rank.
        rank: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// What was found about a world.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkup {
    /// What each rank says of itself.
    pub ranks: Vec<Facts>,
    /// What lies between every two of those that measured.
    pub pairs: Vec<Pair>,
}

impl Checkup {
    /// Looks at the world of `communicator`; every rank calls this, and all get what was found. `host` is what this rank's host
    /// is called, `data` a file or folder whose content is to be the same everywhere.
    ///
    /// # Errors
    /// [`CheckupError::Comm`] if a rank is lost meanwhile, [`CheckupError::Answer`] if one has a version that says other things.
    pub fn of(communicator: &Communicator, host: &str, data: Option<&Path>) -> Result<Self, CheckupError> {
        let rank = communicator.rank();
        let own = Facts::of(rank, (communicator.hosts()[rank], host), data);
        let mut ranks: Vec<Facts> = everyone(communicator, &own)?;
        let first = |host: usize| communicator.hosts().iter().position(|of| *of == host);
        let hosts = communicator.hosts().iter().max().map_or(1, |last| last + 1);
        let measuring: Vec<usize> = match hosts {
            1 => (0..communicator.world_size()).collect(),
            _ => (0..hosts).filter_map(first).collect(),
        };
        let measured = pairs::measure(communicator, &measuring)?;
        for told in everyone(communicator, &measured.clock)?.into_iter().zip(&mut ranks) {
            told.1.clock = told.0;
        }
        let mut pairs: Vec<Pair> = everyone(communicator, &measured.pairs)?.concat();
        pairs.sort_by_key(|pair| (pair.from, pair.to));
        Ok(Self { ranks, pairs })
    }

    /// What is wrong; empty if nothing is. Pairs that are more than `slow` times slower than the median of all count as wrong.
    pub fn findings(&self, slow: f64) -> Vec<Finding> {
        findings(self, slow)
    }

    /// The name of a rank's host.
    pub fn host_of(&self, rank: usize) -> &str {
        self.ranks.get(rank).map_or("a host that is none", |rank| &rank.host)
    }
}

/// What every rank says, on every rank.
fn everyone<T: Serialize + for<'a> Deserialize<'a>>(
    communicator: &Communicator,
    own: &T,
) -> Result<Vec<T>, CheckupError> {
    // Plain structures of numbers and texts can be written.
    let text = serde_json::to_vec(own).unwrap_or_default();
    let told = communicator.all_gatherv(&text)?.into_iter().enumerate();
    told.map(|(rank, text)| {
        serde_json::from_slice(&text).map_err(|source| CheckupError::Answer { rank, source })
    })
    .collect()
}
