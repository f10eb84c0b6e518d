//! candle-nn modules on the tape: variables become parameters of a store, and forward becomes one node.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::VarBuilder;
use candle_nn::init::NormalOrUniform;
use candle_nn::var_builder::SimpleBackend;

use crate::store::{Param, Scope};
use crate::tape::{Tape, Value};
use crate::{Init, Result, TensorError};

/// A candle-nn module with its variables in a [`crate::ParamStore`].
///
/// The given function builds the module from a [`VarBuilder`]: once to list the variables and their initial
/// distributions, then at every forward from the current values. Building a module from tensors in memory only clones
/// handles. The store draws the initial values from its seed, by candle's initialisers. So every run and every rank
/// has the same ones. [`Tape::segment`] reports candle layers without a backward.
///
/// In a [`Scope::block`], every forward runs as that block, so strategies gather sharded parameters for it. candle's
/// graph keeps copies of them until backward has passed; register the layers of a large model one by one.
pub struct CandleModule<M> {
    build: Box<dyn Fn(VarBuilder<'_>) -> candle_core::Result<M> + Send + Sync>,
    block: String,
    params: NamedParams,
}

/// The variables that a module requests, sorted by name: candle's order may differ between runs.
#[derive(Clone, Default)]
struct VariableRequests(Arc<Mutex<BTreeMap<String, (Shape, candle_nn::Init)>>>);

impl SimpleBackend for VariableRequests {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: candle_nn::Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let zeros = Tensor::zeros(&shape, dtype, device)?;
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Two layers may share a variable.
        match asked.get(name) {
            Some((known, _)) if *known != shape => {
                candle_core::bail!("variable {name} is asked for as {known:?} and as {shape:?}")
            }
            Some(_) => {}
            None => drop(asked.insert(name.to_owned(), (shape, init))),
        }
        Ok(zeros)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        let asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match asked.get(name) {
            Some((shape, _)) => Tensor::zeros(shape, dtype, device),
            None => candle_core::bail!("variable {name} is asked for without a shape"),
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }
}

/// Converts candle's initialiser to the store's.
fn init_of(init: &candle_nn::Init, shape: &Shape) -> Init {
    match *init {
        candle_nn::Init::Const(value) => Init::Constant(value),
        candle_nn::Init::Randn { mean, stdev } => Init::Normal { mean, std: stdev },
        candle_nn::Init::Uniform { lo, up } => Init::Uniform { low: lo, high: up },
        candle_nn::Init::Kaiming { dist, fan, non_linearity } => {
            let std = non_linearity.gain() / (fan.for_shape(shape) as f64).sqrt();
            let bound = 3_f64.sqrt() * std;
            match dist {
                NormalOrUniform::Normal => Init::Normal { mean: 0.0, std },
                NormalOrUniform::Uniform => Init::Uniform { low: -bound, high: bound },
            }
        }
    }
}

/// The parameters of a module or layer, with candle's names.
pub(crate) type NamedParams = Vec<(String, Param)>;

/// Registers the variables that a module requests. Returns the module, whose variables are zeros.
pub(crate) fn registered<M>(
    scope: &Scope,
    build: impl FnOnce(VarBuilder<'_>) -> candle_core::Result<M>,
) -> Result<(M, NamedParams)> {
    let asked = VariableRequests::default();
    let module = build(VarBuilder::from_backend(Box::new(asked.clone()), scope.dtype(), Device::Cpu))?;
    let asked = std::mem::take(&mut *asked.0.lock().unwrap_or_else(PoisonError::into_inner));
    let mut params = Vec::with_capacity(asked.len());
    for (name, (shape, init)) in asked {
        let init = init_of(&init, &shape);
        params.push((name.clone(), scope.param(&name, shape, init)?));
    }
    Ok((module, params))
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
    /// Errors of candle, duplicate names, and [`TensorError::TensorPlan`] if a plan cuts a variable over ranks: candle computes with whole
    /// ones ([`crate::CandleLayer`] with portions).
    pub fn register(
        scope: &Scope,
        build: impl Fn(VarBuilder<'_>) -> candle_core::Result<M> + Send + Sync + 'static,
    ) -> Result<Self> {
        let (_, params) = registered(scope, &build)?;
        if let Some((_, param)) = params.iter().find(|(_, param)| param.portion().is_some()) {
            return Err(TensorError::TensorPlan(format!(
                "`{}` is of a module that candle computes, with whole variables; register its layer as `CandleLayer`, or give it the rule \
                 `whole`",
                param.name()
            )));
        }
        Ok(Self { build: Box::new(build), block: scope.block_name().to_owned(), params })
    }

    /// Runs the module: `run` gets the module and the tensors of the inputs.
    ///
    /// # Errors
    /// Errors of candle and of [`Tape::segment`].
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
        let dtype = first.bucket()?.dtype();
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
