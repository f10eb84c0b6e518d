//! Helpers that several modules share: building models, random inputs, reading values.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::{
    BuildOptions, Context, Key, ParamStore, Result, Scope, Session, StoreBuilder, Tape, Value,
};

/// Registers a model's parameters and allocates them.
pub(crate) fn build<M>(options: BuildOptions, make: impl FnOnce(&Scope) -> Result<M>) -> (M, ParamStore) {
    let builder = StoreBuilder::new(options);
    let model = make(&builder.root()).expect("a sound configuration");
    (model, builder.build().expect("enough memory"))
}

/// Standard normal values that the key determines.
pub(crate) fn random(key: Key, dims: &[usize], dtype: DType) -> Tensor {
    let mut values = vec![0.0; dims.iter().product()];
    key.normal(0, &mut values);
    let tensor = Tensor::from_vec(values, dims, &Device::Cpu).and_then(|tensor| tensor.to_dtype(dtype));
    tensor.expect("as many values as the shape has")
}

/// A tape for evaluation on one thread, without gradients.
pub(crate) fn evaluation_tape() -> Tape {
    Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))))
}

/// The elements of an f32 value, in row-major order.
pub(crate) fn numbers(value: &Value) -> Vec<f32> {
    value.tensor().and_then(|tensor| Ok(tensor.flatten_all()?.to_vec1::<f32>()?)).expect("f32")
}
