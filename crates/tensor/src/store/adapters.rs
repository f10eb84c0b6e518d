//! Adapters: pairs of small matrices that are trained in place of a layer's weight.

use candle_core::{DType, Tensor};

use super::NamePattern;
use crate::Result;

/// Layers whose product has an adapter, y = W·x + (α/r)·B·(A·x), with A of r rows. The adapters are trained, and all other
/// parameters are not, unless `trained` names them.
///
/// Source: LoRA (Hu et al. 2021).
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterRule {
    /// The rows of A and columns of B, r.
    pub rank: usize,
    /// The numerator of the factor, α.
    pub alpha: f64,
    /// The probability that an element of x is set to zero on its way to A, in training.
    pub dropout: f64,
    /// The layers, by their names, the last part of these, or their blocks; empty = all linear layers.
    pub layers: Vec<NamePattern>,
    /// Parameters that are trained themselves, such as those of a new head. Their layers have no adapters.
    pub trained: Vec<NamePattern>,
}

impl AdapterRule {
    /// The factor of B·A.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }
}

/// A layer that has an adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct AdaptedLayer {
    /// The layer's name. Its `weight` is W, its `lora_A.weight` [r, I] and its `lora_B.weight` [O, r].
    pub name: String,
    /// Its block.
    pub block: String,
    /// True if W is stored as [I, O], in place of [O, I].
    pub inputs_first: bool,
    /// The factor of B·A.
    pub scale: f64,
}

impl AdaptedLayer {
    /// The layer whose A or B has this name; `None` for other parameters.
    pub fn named_by(param: &str) -> Option<&str> {
        param.strip_suffix(".lora_A.weight").or_else(|| param.strip_suffix(".lora_B.weight"))
    }

    /// The name of W.
    pub fn weight(&self) -> String {
        format!("{}.weight", self.name)
    }

    /// The name of A.
    pub fn a(&self) -> String {
        format!("{}.lora_A.weight", self.name)
    }

    /// The name of B.
    pub fn b(&self) -> String {
        format!("{}.lora_B.weight", self.name)
    }

    /// Returns W + scale·B·A in the type and layout of `weight`, computed in f64.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn merged(&self, weight: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let [a, b] = [a.to_dtype(DType::F64)?, b.to_dtype(DType::F64)?];
        let product = b.matmul(&a)?.affine(self.scale, 0.0)?;
        let product = if self.inputs_first { product.t()? } else { product };
        Ok((weight.to_dtype(DType::F64)? + product)?.to_dtype(weight.dtype())?)
    }
}
