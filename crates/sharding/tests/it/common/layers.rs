//! Two layers in memories of their own, and steps of every rank on numbers of its own.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_sharding::ParallelStrategy;
use phalanx_tensor::{
    BuildOptions, ComputeDevice, Context, Key, Listener, ParamStore, Session, StoreBuilder, Tape, Value,
    loss, nn,
};

pub(crate) type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// A layer as a block.
#[derive(Debug)]
struct Layer {
    name: String,
    linear: nn::Linear,
}

impl phalanx_tensor::Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> phalanx_tensor::Result<Vec<Value>> {
        Ok(vec![self.linear.forward(tape, &inputs[0])?])
    }
}

pub(crate) type Layers = [Arc<dyn phalanx_tensor::Block>; 2];

pub(crate) fn model() -> Result<(Layers, ParamStore), AnyError> {
    model_at(&ComputeDevice::host())
}

/// The model, to be computed with at a device.
pub(crate) fn model_at(device: &ComputeDevice) -> Result<(Layers, ParamStore), AnyError> {
    let device = device.clone();
    let builder =
        StoreBuilder::new(BuildOptions { device, key: Key::new(2), bucket_bytes: 0, ..Default::default() });
    let layer = |name: &str, from, to| {
        let linear = nn::Linear::new(&builder.root().pp(name).block(), from, to)?;
        let layer: Arc<dyn phalanx_tensor::Block> = Arc::new(Layer { name: name.to_owned(), linear });
        Ok::<_, AnyError>(layer)
    };
    let layers = [layer("hidden", 5, 7)?, layer("out", 7, 3)?];
    Ok((layers, builder.build()?))
}

/// Forward and backward of a rank's sample of a step, its loss divided by `samples`.
pub(crate) fn backward(
    layers: &Layers,
    parallel: &Arc<dyn ParallelStrategy>,
    (rank, step, samples): (usize, u64, usize),
) -> Result<(), AnyError> {
    backward_at(&ComputeDevice::host(), layers, parallel, (rank, step, samples))
}

/// Forward and backward as [`backward`] has them, at a device.
pub(crate) fn backward_at(
    device: &ComputeDevice,
    layers: &Layers,
    parallel: &Arc<dyn ParallelStrategy>,
    (rank, step, samples): (usize, u64, usize),
) -> Result<(), AnyError> {
    let session = Session::training(Arc::new(Context::new(1)), Key::new(3).step(step));
    let (listener, device): (Arc<dyn Listener>, _) = (parallel.clone(), device.clone());
    let tape = Tape::recording(Session { listener: Some(listener), device: device.clone(), ..session });
    let mut draw = vec![0.0; 5];
    Key::new(4).step(step).normal(5 * rank, &mut draw);
    let draw: Vec<f32> = draw.into_iter().map(|value| value as f32).collect();
    let mut x = Value::constant(device.put(&Tensor::from_vec(draw, (1, 5), &Device::Cpu)?)?);
    for layer in layers {
        x = tape.run1(layer, &x)?;
    }
    let loss = loss::cross_entropy(&tape, &x, &[(step % 3) as u32], 0.0, loss::LossDivisor::Count(samples))?;
    Ok(tape.backward(&loss)?)
}

/// All parameters of a store as this rank has them now.
pub(crate) fn values(store: &ParamStore) -> Result<Vec<f32>, AnyError> {
    let mut all = Vec::new();
    for param in store.params() {
        all.extend(param.tensor()?.flatten_all()?.to_vec1::<f32>()?);
    }
    Ok(all)
}

/// All parameters of the model, as [`phalanx_sharding::Residency::unshard`] shows them.
pub(crate) fn shown(parallel: &Arc<dyn ParallelStrategy>, store: &ParamStore) -> Result<Vec<f32>, AnyError> {
    parallel.unshard()?;
    let all = values(store)?;
    parallel.reshard()?;
    Ok(all)
}

/// Overwrites all parameters.
pub(crate) fn set_values(store: &ParamStore, values: &[f32]) -> Result<(), AnyError> {
    let mut rest = values;
    for param in store.params() {
        let (own, later) = rest.split_at(param.elem_count());
        rest = later;
        param.set(&Tensor::from_slice(own, param.shape(), &Device::Cpu)?)?;
    }
    Ok(())
}
