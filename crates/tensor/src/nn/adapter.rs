//! The adapter of a linear layer.

use crate::ops::{LinearWeight, WeightLayout};
use crate::store::{Param, Scope};
use crate::tape::{Tape, Value};
use crate::{Result, ops};

/// The product (α/r)·B·(A·x) that is added to that of a layer's frozen weight ([`crate::AdapterRule`]). A has the initial values
/// of a linear layer, and B is zero, so the layer begins as it was.
#[derive(Debug, Clone)]
pub(super) struct Adapter {
    a: Param,
    b: Param,
    scale: f64,
    dropout: f64,
}

impl Adapter {
    /// Makes the adapter of a layer of inputs and outputs, if the rules of the scope give it one.
    ///
    /// # Errors
    /// If a name is taken.
    pub(super) fn new(scope: &Scope, sizes: [usize; 2], layout: WeightLayout) -> Result<Option<Self>> {
        let Some(rule) = scope.adapter() else { return Ok(None) };
        let [a, b] = scope.adapter_params(rule, sizes, layout == WeightLayout::InputsFirst)?;
        Ok(Some(Self { a, b, scale: rule.scale(), dropout: rule.dropout }))
    }

    /// Adds the product with `x` [.., I] to `y` [.., O].
    ///
    /// # Errors
    /// If sizes differ.
    pub(super) fn add(&self, tape: &Tape, x: &Value, y: &Value) -> Result<Value> {
        let x = ops::dropout(tape, x, self.dropout)?;
        let inner = ops::linear_by(tape, &x, LinearWeight::new(&tape.param(&self.a)?))?;
        let inner = ops::scale(tape, &inner, self.scale)?;
        let outer = ops::linear_by(tape, &inner, LinearWeight::new(&tape.param(&self.b)?))?;
        ops::add(tape, y, &outer)
    }
}
