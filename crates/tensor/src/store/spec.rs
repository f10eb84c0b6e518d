//! Registered properties of a parameter, before it has memory.

use candle_core::Shape;

use crate::init::Init;

/// A parameter's name, shape and initial distribution, and the block that it belongs to.
#[derive(Debug)]
pub(super) struct ParamSpec {
    pub(super) name: String,
    /// Empty for a parameter outside of blocks.
    pub(super) block: String,
    pub(super) shape: Shape,
    pub(super) trainable: bool,
    pub(super) init: Init,
}
