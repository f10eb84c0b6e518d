//! Looks at all hosts of a world before something is trained on them: whether every two reach each other and how fast, and
//! whether all have the same program, the same data, and clocks that agree.
//!
//! Every rank calls [`Checkup::of`], as it would train. Ranks exchange their [`Facts`]. Then one rank of each host (all
//! ranks, on a single host) measures messages to each other one. Each talks to one other in a round, so pairs disturb
//! each other only where their links meet. [`Checkup::findings`] reports problems with the names of hosts.
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
        /// The problem with it.
        source: serde_json::Error,
    },
}

/// The results for a world.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkup {
    /// The facts of each rank.
    pub ranks: Vec<Facts>,
    /// The measurements between each two of the measuring ranks.
    pub pairs: Vec<Pair>,
}

impl Checkup {
    /// Looks at the world of `communicator`; every rank calls this, and all get what was found. `host` is what this rank's host
    /// is called, `data` a file or folder whose content is to be the same everywhere.
    ///
    /// # Errors
    /// [`CheckupError::Comm`] if a rank is lost during the check-up, [`CheckupError::Answer`] if one has a version that says other things.
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

    /// Returns the problems. Pairs that are more than `slow` times slower than the median of all count as problems.
    pub fn findings(&self, slow: f64) -> Vec<Finding> {
        findings(self, slow)
    }

    /// The name of a rank's host.
    pub fn host_of(&self, rank: usize) -> &str {
        self.ranks.get(rank).map_or("a host that is none", |rank| &rank.host)
    }
}

/// Returns the values of all ranks, on every rank.
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
