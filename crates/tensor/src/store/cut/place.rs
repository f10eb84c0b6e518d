//! Where the elements of a parameter are, if layers are cut over ranks.

use candle_core::Shape;

use super::Portion;
use crate::Result;

/// Says which portion of each parameter this rank holds: [`BuildOptions::layout`](crate::BuildOptions::layout).
pub trait ParamLayout: std::fmt::Debug + Send + Sync {
    /// Returns the place of the elements of a parameter of this whole shape.
    ///
    /// # Errors
    /// If the parameter cannot be cut as the layout says.
    fn place(&self, name: &str, whole: &Shape) -> Result<ParamPlace>;

    /// The number of ranks that hold the portions of a parameter.
    fn ranks(&self) -> usize;
}

/// The place of a parameter's elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamPlace {
    /// The portion that this rank holds; `None` if it holds the whole parameter.
    pub portion: Option<Portion>,
    /// False if another rank has the same elements, and sums over all parameters take them from there.
    pub counts: bool,
}

impl Default for ParamPlace {
    /// The whole parameter, which no other rank counts.
    fn default() -> Self {
        Self { portion: None, counts: true }
    }
}
