//! Spatial relations between two objects.

use crate::shapes::Position;
use crate::shapes::vocabulary::vocabulary;

vocabulary! {
    /// A spatial relation of one object to another.
    Relation { LeftOf = "left of", RightOf = "right of", Above = "above", Below = "below" }
}

impl Relation {
    /// Returns the relation of the second object to the first.
    #[must_use]
    pub fn converse(self) -> Self {
        match self {
            Self::LeftOf => Self::RightOf,
            Self::RightOf => Self::LeftOf,
            Self::Above => Self::Below,
            Self::Below => Self::Above,
        }
    }

    /// Returns the relation of an object at `from` to one at `to`: the direction in which they are further apart.
    /// `None` if the distances are equal, or the positions are the same.
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

    /// Returns true if an object at `from` is in this relation to one at `to`.
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
