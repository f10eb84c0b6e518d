//! The ranks of an algorithm: all of a world, or those of a host, a row, a column.

/// Some ranks in an order that all of them know, and this rank's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    ranks: Vec<usize>,
    own: usize,
}

impl Group {
    /// Ranks `0..size`.
    pub(crate) fn world(size: usize, rank: usize) -> Self {
        Self { ranks: (0..size).collect(), own: rank }
    }

    /// The ranks of a list; `None` if `rank` is not among them.
    pub(crate) fn of(ranks: Vec<usize>, rank: usize) -> Option<Self> {
        let own = ranks.iter().position(|other| *other == rank)?;
        Some(Self { ranks, own })
    }

    /// Returns the number of ranks.
    pub(crate) fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Returns this rank's place.
    pub(crate) fn own(&self) -> usize {
        self.own
    }

    /// Returns the rank at a place, modulo the size.
    pub(crate) fn at(&self, place: usize) -> usize {
        self.ranks[place % self.len()]
    }

    /// Returns the place of a rank.
    pub(crate) fn place_of(&self, rank: usize) -> Option<usize> {
        self.ranks.iter().position(|other| *other == rank)
    }

    /// Returns the neighbour that this rank sends to.
    pub(crate) fn next(&self) -> usize {
        self.at(self.own + 1)
    }

    /// Returns the neighbour that this rank receives from.
    pub(crate) fn previous(&self) -> usize {
        self.at(self.behind(1))
    }

    /// Returns the place `steps` behind this one.
    pub(crate) fn behind(&self, steps: usize) -> usize {
        (self.own + self.len() - steps % self.len()) % self.len()
    }

    /// Returns the ranks.
    #[cfg(target_os = "linux")]
    pub(crate) fn ranks(&self) -> &[usize] {
        &self.ranks
    }
}
