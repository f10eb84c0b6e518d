//! Noise keyed by sample.

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::{Key, Result, Tape, Value};

/// Returns standard normal noise [N, dims…], f32. The noise of a sample is a function of the key and the sample's
/// number, independent of the others in the batch.
///
/// # Errors
/// If memory cannot be allocated.
pub fn noise_of_samples(tape: &Tape, key: Key, samples: &[u64], dims: &[usize]) -> Result<Value> {
    let len: usize = dims.iter().product();
    let mut values = vec![0.0; samples.len() * len];
    for (row, sample) in values.chunks_exact_mut(len.max(1)).zip(samples) {
        key.index(*sample).normal(0, row);
    }
    let shape: Vec<usize> = [samples.len()].iter().chain(dims).copied().collect();
    let tensor = Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(DType::F32)?;
    Ok(Value::constant(tape.backend().from_host(&tensor)?))
}
