//! Bringing a candle-nn model: its variables become parameters of a store, its forward one node of the tape.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use candle_nn::{VarBuilder, VarMap};

use crate::store::{Param, Scope};
use crate::tape::{Tape, Value};
use crate::{Init, Result, TensorError};

/// A candle-nn module whose variables live in a [`crate::ParamStore`].
///
/// The module is built by the given function from a [`VarBuilder`]: once to learn which variables it has and
/// what candle fills them with, then at every forward from the current values (building a module from tensors
/// in memory only clones handles). Beware of candle layers without a backward: [`Tape::segment`] reports them.
///
/// Registered in a [`Scope::block`], every forward runs as that block, so that strategies which keep parameters sharded
/// gather them for it. candle's graph holds copies of them until backward has passed; for a large model register its layers
/// one by one.
pub struct CandleModule<M> {
    build: Box<dyn Fn(VarBuilder<'_>) -> candle_core::Result<M> + Send + Sync>,
    block: String,
    params: Vec<(String, Param)>,
    initial: Vec<Tensor>,
}

impl<M> std::fmt::Debug for CandleModule<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.params.iter().map(|(name, _)| name)).finish()
    }
}

impl<M> CandleModule<M> {
    /// Registers the variables of the module that `build` makes.
    ///
    /// # Errors
    /// candle's, and duplicate names.
    pub fn register(
        scope: &Scope,
        build: impl Fn(VarBuilder<'_>) -> candle_core::Result<M> + Send + Sync + 'static,
    ) -> Result<Self> {
        let map = VarMap::new();
        build(VarBuilder::from_varmap(&map, scope.dtype(), &Device::Cpu))?;
        let mut variables: Vec<(String, Tensor)> = {
            let data = map.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            data.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect()
        };
        // candle's map has no order; ranks need one.
        variables.sort_by(|a, b| a.0.cmp(&b.0));
        let mut params = Vec::with_capacity(variables.len());
        let mut initial = Vec::with_capacity(variables.len());
        for (name, value) in variables {
            let param = scope.param(&name, value.shape().clone(), Init::ZEROS)?;
            params.push((name, param));
            initial.push(value);
        }
        Ok(Self { build: Box::new(build), block: scope.block_name().to_owned(), params, initial })
    }

    /// Fills the parameters with the values that candle's initialisers drew. Call it once after the store is
    /// built. candle draws from an unseeded generator, so with several ranks broadcast rank 0's parameters
    /// afterwards (`phalanx-sharding` does so when it wraps a model).
    ///
    /// # Errors
    /// If the store is not built.
    pub fn initialise(&mut self) -> Result<()> {
        for ((_, param), value) in self.params.iter().zip(self.initial.drain(..)) {
            param.set(&value)?;
        }
        Ok(())
    }

    /// Runs the module: `run` gets the module and the inputs' tensors.
    ///
    /// # Errors
    /// candle's, and those of [`Tape::segment`].
    pub fn forward(
        &self,
        tape: &Tape,
        inputs: &[&Value],
        run: impl FnOnce(&M, &[Tensor]) -> candle_core::Result<Tensor>,
    ) -> Result<Value> {
        if self.block.is_empty() {
            return self.segment(tape, inputs, run);
        }
        tape.in_block(&self.block, || self.segment(tape, inputs, run))
    }

    fn segment(
        &self,
        tape: &Tape,
        inputs: &[&Value],
        run: impl FnOnce(&M, &[Tensor]) -> candle_core::Result<Tensor>,
    ) -> Result<Value> {
        let Some((_, first)) = self.params.first() else {
            return Err(TensorError::Backward("the candle module has no variables".into()));
        };
        let dtype = first.flat_param()?.dtype();
        let params = self.params.iter().map(|(_, param)| tape.param(param)).collect::<Result<Vec<_>>>()?;
        let mut all: Vec<&Value> = inputs.to_vec();
        all.extend(&params);
        tape.segment(&all, |tensors| {
            let (inputs, values) = tensors.split_at(inputs.len());
            let named: HashMap<String, Tensor> =
                self.params.iter().map(|(name, _)| name.clone()).zip(values.iter().cloned()).collect();
            let module = (self.build)(VarBuilder::from_tensors(named, dtype, &Device::Cpu))?;
            run(&module, inputs)
        })
    }
}
