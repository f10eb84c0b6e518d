//! The neighbours that ranks average with.

use crate::{Result, ShardingError};

/// The neighbours of each rank. All ranks have the same number of them, so that weights of 1/(neighbours + 1) keep the
/// mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Topology {
    /// The ranks before and after.
    #[default]
    Ring,
    /// The neighbours in a torus, as square as possible.
    Torus,
    /// The ranks at distances 1, 2, 4, ….
    Exponential,
    /// All other ranks.
    Complete,
}

impl Topology {
    /// All topologies.
    pub const ALL: &'static [Self] = &[Self::Ring, Self::Torus, Self::Exponential, Self::Complete];

    /// Returns the ranks that rank `rank` of `ranks` sends to, in order, without itself.
    pub fn sends_to(self, rank: usize, ranks: usize) -> Vec<usize> {
        self.at(rank, ranks, |rank, step| (rank + step) % ranks)
    }

    /// Returns the ranks that rank `rank` of `ranks` receives from, in order, without itself.
    pub fn receives_from(self, rank: usize, ranks: usize) -> Vec<usize> {
        self.at(rank, ranks, |rank, step| (rank + ranks - step % ranks) % ranks)
    }

    fn at(self, rank: usize, ranks: usize, go: impl Fn(usize, usize) -> usize) -> Vec<usize> {
        let mut all: Vec<usize> = match self {
            Self::Ring => vec![go(rank, 1), go(rank, ranks - 1)],
            Self::Torus => {
                let columns = (1..=ranks).find(|side| ranks.is_multiple_of(*side) && side * side >= ranks);
                let columns = columns.unwrap_or(ranks);
                let (rows, row, column) = (ranks / columns, rank / columns, rank % columns);
                [(1, 0), (rows - 1, 0), (0, 1), (0, columns - 1)]
                    .map(|(down, along)| (row + down) % rows * columns + (column + along) % columns)
                    .to_vec()
            }
            Self::Exponential => {
                let steps = (0..).map(|power| 1_usize << power).take_while(|step| *step < ranks);
                steps.map(|step| go(rank, step)).collect()
            }
            Self::Complete => (0..ranks).collect(),
        };
        all.sort_unstable();
        all.dedup();
        all.retain(|other| *other != rank);
        all
    }

    /// Returns the rank that `rank` sends to in a step with one receiver each. Neighbours take turns, so that values
    /// reach all ranks in one round.
    pub fn sends_in_turn(self, rank: usize, ranks: usize, step: u64) -> Option<usize> {
        let distances = self.distances(ranks);
        let turn = usize::try_from(step % (distances.len().max(1) as u64)).unwrap_or(0);
        distances.get(turn).map(|distance| (rank + distance) % ranks)
    }

    /// Returns the rank that `rank` receives from in a step with one receiver each.
    pub fn receives_in_turn(self, rank: usize, ranks: usize, step: u64) -> Option<usize> {
        let distances = self.distances(ranks);
        let turn = usize::try_from(step % (distances.len().max(1) as u64)).unwrap_or(0);
        distances.get(turn).map(|distance| (rank + ranks - distance) % ranks)
    }

    /// Returns the distances to the ranks that a rank sends to in turn.
    fn distances(self, ranks: usize) -> Vec<usize> {
        match self {
            // Distances are equal for all ranks, except in a torus, whose rows end.
            Self::Torus => Self::Ring.sends_to(0, ranks),
            _ => self.sends_to(0, ranks),
        }
    }
}

impl std::fmt::Display for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ring => "ring",
            Self::Torus => "torus",
            Self::Exponential => "exponential",
            Self::Complete => "complete",
        })
    }
}

impl std::str::FromStr for Topology {
    type Err = ShardingError;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|topology| topology.to_string() == text);
        let all: Vec<_> = Self::ALL.iter().map(ToString::to_string).collect();
        let unknown =
            || ShardingError::Mesh(format!("topology `{text}` is unknown; there is: {}", all.join(", ")));
        found.copied().ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_and_senders_agree() {
        for topology in Topology::ALL {
            assert_eq!(topology.to_string().parse::<Topology>().expect("its name"), *topology);
            for ranks in 1..=12 {
                let degree = topology.sends_to(0, ranks).len();
                for rank in 0..ranks {
                    let neighbours = topology.sends_to(rank, ranks);
                    assert_eq!(neighbours.len(), degree, "{topology} of {ranks}");
                    for to in neighbours {
                        assert!(
                            to != rank && topology.receives_from(to, ranks).contains(&rank),
                            "{topology} of {ranks}"
                        );
                    }
                    for step in 0..7 {
                        let to = topology.sends_in_turn(rank, ranks, step);
                        let back = to.and_then(|to| topology.receives_in_turn(to, ranks, step));
                        assert_eq!(back, to.map(|_| rank), "{topology} of {ranks}");
                        assert_eq!(to.is_none(), ranks == 1);
                    }
                }
            }
        }
        assert_eq!(Topology::Torus.sends_to(0, 12), [1, 3, 4, 8]);
        assert_eq!(Topology::Exponential.sends_to(6, 8), [0, 2, 7]);
    }
}
