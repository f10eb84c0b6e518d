//! Errors of metrics.

/// The reason why a metric cannot be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QualityError {
    /// The numbers are no whole rows.
    #[error("{values} numbers are no rows of {width} features")]
    Width {
        /// The count of numbers.
        values: usize,
        /// The features of a row.
        width: usize,
    },
    /// Rows that are compared have different features.
    #[error("rows of {one} features cannot be compared with rows of {other}")]
    Widths {
        /// The features of a row of the first set.
        one: usize,
        /// The features of a row of the other.
        other: usize,
    },
    /// Classes are not those of the rows.
    #[error("{classes} classes are given for {rows} rows")]
    Classes {
        /// The count of classes.
        classes: usize,
        /// The count of rows.
        rows: usize,
    },
    /// A set that must have rows has none.
    #[error("there are no rows")]
    Empty,
    /// A feature is infinite or not a number.
    #[error("the features are not finite")]
    NotFinite,
}
