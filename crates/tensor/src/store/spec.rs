//! Registered properties of a parameter, before it has memory.

use std::sync::Arc;

use candle_core::Shape;

use super::Portion;
use crate::init::Init;

/// A parameter's name, shape and initial distribution, and the block that it belongs to.
#[derive(Debug)]
pub(super) struct ParamSpec {
    pub(super) name: String,
    /// Empty for a parameter outside of blocks.
    pub(super) block: String,
    /// The shape of what this rank holds.
    pub(super) shape: Shape,
    /// The portion that this rank holds, if layers are cut over ranks and this one is.
    pub(super) portion: Option<Arc<Portion>>,
    /// False if another rank has the same elements, and sums over all parameters take them from there.
    pub(super) counts: bool,
    /// The stages of a pipeline that hold it, if it is several.
    pub(super) stages: Arc<[usize]>,
    pub(super) trained: Trained,
    /// True if a rule of the store freezes it, for a time or for good.
    pub(super) is_frozen_by_rule: bool,
    /// The factor of its learning rate.
    pub(super) rate: f64,
    pub(super) kind: ParamKind,
    pub(super) init: Init,
}

/// The use of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParamKind {
    /// A parameter of a layer.
    Layer,
    /// A table; see [`super::Scope::table`].
    Table,
    /// A matrix of an adapter.
    Adapter,
}

/// The part of a run in which a parameter is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trained {
    /// All of it.
    Always,
    /// Its later part: the parameter is frozen at first.
    Later,
    /// None: the parameter is frozen.
    Never,
}
