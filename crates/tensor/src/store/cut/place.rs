//! Where the elements of a parameter are, if layers are cut over ranks or the model into stages.

use std::sync::Arc;

use candle_core::Shape;

use super::Portion;
use crate::Result;

/// Says what this rank holds of each parameter: [`BuildOptions::layout`](crate::BuildOptions::layout).
pub trait ParamLayout: std::fmt::Debug + Send + Sync {
    /// Returns the place of the elements of a parameter of this whole shape.
    ///
    /// # Errors
    /// If the parameter cannot be cut as the layout says.
    fn place(&self, param: &PlacedName<'_>, whole: &Shape) -> Result<ParamPlace>;

    /// The number of ranks that hold the portions of a parameter.
    fn ranks(&self) -> usize;
}

/// The names of a parameter or a buffer, and of its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedName<'a> {
    /// The parameter or buffer.
    pub name: &'a str,
    /// Its block; empty outside of blocks.
    pub block: &'a str,
    /// True for a buffer.
    pub is_buffer: bool,
}

impl<'a> PlacedName<'a> {
    /// A parameter outside of blocks.
    pub fn param(name: &'a str) -> Self {
        Self { name, block: "", is_buffer: false }
    }
}

/// The place of a parameter's elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamPlace {
    /// The portion that this rank holds; `None` if it holds the whole parameter.
    pub portion: Option<Portion>,
    /// False if another rank has the same elements, and sums over all parameters take them from there.
    pub counts: bool,
    /// The stages of a pipeline that hold it.
    pub stages: StagePlace,
}

impl Default for ParamPlace {
    /// The whole parameter, which no other rank counts.
    fn default() -> Self {
        Self { portion: None, counts: true, stages: StagePlace::Here }
    }
}

/// The stages of a pipeline that hold a parameter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StagePlace {
    /// This one alone, or there are no others.
    #[default]
    Here,
    /// This one and others, ascending: each has a part of the gradient's sum.
    Shared(Arc<[usize]>),
    /// Others only.
    Elsewhere,
}

impl StagePlace {
    /// The stages, if there are several.
    pub(in crate::store) fn several(&self) -> Arc<[usize]> {
        match self {
            Self::Shared(stages) => stages.clone(),
            Self::Here | Self::Elsewhere => Arc::default(),
        }
    }
}
