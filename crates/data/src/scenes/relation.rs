//! How one object lies to another.

use crate::shapes::Position;
use crate::shapes::vocabulary::vocabulary;

vocabulary! {
    /// How an object lies to another.
    Relation { LeftOf = "left of", RightOf = "right of", Above = "above", Below = "below" }
}

impl Relation {
    /// How the other object lies to this one.
    #[must_use]
    pub fn converse(self) -> Self {
        match self {
            Self::LeftOf => Self::RightOf,
            Self::RightOf => Self::LeftOf,
            Self::Above => Self::Below,
            Self::Below => Self::Above,
        }
    }

    /// How an object at `from` lies to one at `to`: the direction in which they are further apart; `None` where they are
    /// as far apart in both, or at the same place.
    #[must_use]
    pub fn between(from: Position, to: Position) -> Option<Self> {
        let ((column, row), (to_column, to_row)) = (from.column_and_row(), to.column_and_row());
        match (column.abs_diff(to_column), row.abs_diff(to_row)) {
            (across, down) if across > down => {
                Some(if column < to_column { Self::LeftOf } else { Self::RightOf })
            }
            (across, down) if across < down => Some(if row < to_row { Self::Above } else { Self::Below }),
            _ => None,
        }
    }

    /// Whether an object at `from` lies so to one at `to`.
    #[must_use]
    pub fn holds(self, from: Position, to: Position) -> bool {
        Self::between(from, to) == Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_further_direction_decides() {
        for (from, to, expected) in [
            (Position::Left, Position::Right, Some(Relation::LeftOf)),
            (Position::TopRight, Position::Left, Some(Relation::RightOf)),
            (Position::Top, Position::BottomLeft, Some(Relation::Above)),
            (Position::Bottom, Position::Center, Some(Relation::Below)),
            (Position::TopLeft, Position::BottomRight, None),
            (Position::Top, Position::Top, None),
        ] {
            assert_eq!(Relation::between(from, to), expected);
            assert_eq!(Relation::between(to, from), expected.map(Relation::converse));
        }
    }
}
