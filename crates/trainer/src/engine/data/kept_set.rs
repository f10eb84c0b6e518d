//! The images of a split that stay in a device's memory, so that a batch brings only their numbers.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_data::{CachedImages, ImageRecipe};
use phalanx_tensor::{Array, ComputeDevice, Context};

use crate::engine::TrainError;

/// The images of a split as bytes, u8 [samples, H, W, 3], in a device's memory. Each comes there with the first batch that this rank
/// reads it for, so that nothing is read ahead of training; a batch that was made ahead of that one brings it once more.
#[derive(Debug)]
pub(super) struct KeptSet {
    set: Array,
    held: Arc<CachedImages>,
    device: ComputeDevice,
    /// What a device does not compute by, and the host does.
    context: Context,
}

impl KeptSet {
    /// Room for `len` images of a height and a width on `device`, none of which is there yet.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub(super) fn new(
        device: &ComputeDevice,
        len: usize,
        [height, width]: [usize; 2],
    ) -> Result<Self, TrainError> {
        let context = Context::new(1);
        let set = device.backend(&context).image_set([len, height, width, 3])?;
        Ok(Self { set, held: Arc::new(CachedImages::new(len)), device: device.clone(), context })
    }

    /// Which images it has.
    pub(super) fn held(&self) -> Arc<CachedImages> {
        self.held.clone()
    }

    /// All images, of which only those may be read that it has.
    pub(super) fn images(&self) -> &Array {
        &self.set
    }

    /// Where it lies.
    pub(super) fn device(&self) -> &ComputeDevice {
        &self.device
    }

    /// What computes there on the host, if that is where it lies.
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Takes over the images that come along with a recipe: `pixels` of those that it names as fresh.
    ///
    /// # Errors
    /// If they are of another size than the set's, and the device's.
    pub(super) fn take(&self, recipe: &ImageRecipe, pixels: Vec<u8>) -> Result<(), TrainError> {
        let fresh = recipe.fresh().unwrap_or_default();
        if fresh.is_empty() {
            return Ok(());
        }
        let ([height, width], dims) = (recipe.source(), self.set.dims());
        if dims[1..3] != [height, width] {
            return Err(TrainError::Setup(format!(
                "images of {height} × {width} pixels come for a set of {} × {}",
                dims[1], dims[2]
            )));
        }
        let pixels = Tensor::from_vec(pixels, (fresh.len(), height, width, 3), &Device::Cpu)?;
        let rows = Tensor::from_slice(fresh, fresh.len(), &Device::Cpu)?;
        let (rows, pixels) = (self.device.put(&rows)?, self.device.put(&pixels)?);
        self.device.backend(&self.context).put_images(&self.set, &rows, &pixels)?;
        // What is issued from now on finds them, in the order of the device's stream.
        fresh.iter().for_each(|number| self.held.insert(*number as usize));
        Ok(())
    }
}
