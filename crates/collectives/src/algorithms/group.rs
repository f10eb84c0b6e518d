//! The ranks that an algorithm runs among: all of a world, or those of a host, a row, a column.

/// Some ranks in an order that all of them know, and this one's place.
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

    /// The ranks of a list; `None` if `rank` is not one of them.
    pub(crate) fn of(ranks: Vec<usize>, rank: usize) -> Option<Self> {
        let own = ranks.iter().position(|other| *other == rank)?;
        Some(Self { ranks, own })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ranks.len()
    }

    /// This rank's place.
    pub(crate) fn own(&self) -> usize {
        self.own
    }

    /// The rank at a place, counted around.
    pub(crate) fn at(&self, place: usize) -> usize {
        self.ranks[place % self.len()]
    }

    /// The place of a rank.
    pub(crate) fn place_of(&self, rank: usize) -> Option<usize> {
        self.ranks.iter().position(|other| *other == rank)
    }

    /// The neighbour that this rank sends to.
    pub(crate) fn next(&self) -> usize {
        self.at(self.own + 1)
    }

    /// The neighbour that this rank receives from.
    pub(crate) fn previous(&self) -> usize {
        self.at(self.behind(1))
    }

    /// The place so many steps behind this one.
    pub(crate) fn behind(&self, steps: usize) -> usize {
        (self.own + self.len() - steps % self.len()) % self.len()
    }

    /// The ranks.
    #[cfg(target_os = "linux")]
    pub(crate) fn ranks(&self) -> &[usize] {
        &self.ranks
    }
}
