//! Weights in bf16 for models that are only used.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use candle_core::DType;

use crate::backend::Array;
use crate::store::Param;
use crate::{Precision, Result};

/// The least number of elements of a weight that is kept.
const LEAST: usize = 1 << 16;

/// Copies in bf16 of the weights that a model multiplies with one row at a time, such as one that writes a text token by
/// token. Each is made at its first use.
///
/// It is for weights that do not change: [`super::Session::kept_weights`] of a model that is used and not trained.
#[derive(Debug, Default)]
pub struct KeptWeights(Mutex<BTreeMap<usize, KeptWeight>>);

#[derive(Debug)]
struct KeptWeight {
    /// Keeps the parameter's place in memory, which is the key.
    _param: Param,
    array: Array,
}

impl KeptWeights {
    /// Returns the copy of a weight for a product of `rows` rows; `None` if the product takes the weight itself.
    pub(crate) fn of(&self, param: &Param, rows: usize, precision: Precision) -> Result<Option<Array>> {
        if rows != 1 || precision != Precision::Bf16 || param.shape().elem_count() < LEAST {
            return Ok(None);
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept.get(&param.place()) {
            return Ok(Some(found.array.clone()));
        }
        let whole = param.array()?;
        if !whole.is_host() || whole.dtype() != DType::F32 {
            return Ok(None);
        }
        let array = Array::from(whole.to_host()?.contiguous()?.to_dtype(DType::BF16)?);
        kept.insert(param.place(), KeptWeight { _param: param.clone(), array: array.clone() });
        Ok(Some(array))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::{Device, Tensor};

    use super::*;
    use crate::ops::{LinearWeight, WeightLayout, linear_by};
    use crate::{BuildOptions, Context, Init, Session, StoreBuilder, Tape, Value};

    #[test]
    fn products_of_one_row_are_those_of_rounded_weights() {
        let (inputs, outputs) = (384, 300);
        for layout in [WeightLayout::OutputsFirst, WeightLayout::InputsFirst] {
            let builder = StoreBuilder::new(BuildOptions::default());
            let normal = Init::Normal { mean: 0.0, std: 0.1 };
            let weight =
                builder.root().param("weight", &layout.dims(inputs, outputs), normal).expect("a name");
            let bias = builder.root().param("bias", outputs, normal).expect("a name");
            builder.build().expect("small");
            let x: Vec<f32> = (0..2 * inputs).map(|at| (at * 37 % 101) as f32 / 50.0 - 1.0).collect();
            let product = |rows: usize, kept_weights: Option<Arc<KeptWeights>>, precision: Precision| {
                let session = Session::evaluation(Arc::new(Context::new(2)));
                let tape = Tape::forward_only(Session { kept_weights, precision, ..session });
                let x = Tensor::from_slice(&x[..rows * inputs], (rows, inputs), &Device::Cpu).expect("small");
                let (weight, bias) = (tape.param(&weight).expect("built"), tape.param(&bias).expect("built"));
                let weight = LinearWeight { weight: &weight, layout, bias: Some(&bias) };
                let y =
                    linear_by(&tape, &Value::constant(x), weight).and_then(|y| y.to_host()).expect("sound");
                y.to_dtype(DType::F32).and_then(|y| y.flatten_all()?.to_vec1::<f32>()).expect("numbers")
            };
            let kept = Arc::new(KeptWeights::default());
            let number = || kept.0.lock().unwrap_or_else(PoisonError::into_inner).len();
            let near =
                |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 0.01 * (1.0 + b.abs()));
            let plain = product(1, None, Precision::Bf16);
            assert!(near(&product(1, Some(kept.clone()), Precision::Bf16), &plain), "{layout:?}");
            assert_eq!(number(), 1);
            assert_eq!(
                product(1, Some(kept.clone()), Precision::Bf16),
                product(1, Some(kept.clone()), Precision::Bf16)
            );
            assert_eq!(number(), 1, "it is made once");
            // Other products take the weight itself.
            assert_eq!(product(2, Some(kept.clone()), Precision::Bf16), product(2, None, Precision::Bf16));
            assert_eq!(product(1, Some(kept.clone()), Precision::F32), product(1, None, Precision::F32));
        }
    }
}
