//! A cache of a split's images on a device, so that batches carry only indices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{Device, Tensor};
use phalanx_data::{CachedImages, ImageRecipe};
use phalanx_tensor::{Array, ComputeDevice, Context};

use crate::error::BatchError;

/// The number of caches that were made.
static CACHES: AtomicU64 = AtomicU64::new(0);

/// The images of a split as bytes on a device, u8 [samples, H, W, 3]. Each is uploaded with the first batch of this rank that has it. A
/// batch that was prefetched before that one uploads it again.
#[derive(Debug)]
pub struct DeviceCache {
    /// Its number among the caches of this process.
    number: u64,
    set: Array,
    held: Arc<CachedImages>,
    device: ComputeDevice,
    /// The threads of the host.
    context: Context,
}

impl DeviceCache {
    /// Creates an empty cache for `len` images of a height and a width on `device`.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn new(device: &ComputeDevice, len: usize, [height, width]: [usize; 2]) -> Result<Self, BatchError> {
        let context = Context::new(1);
        let set = device.backend(&context).image_set([len, height, width, 3])?;
        let number = CACHES.fetch_add(1, Ordering::Relaxed);
        Ok(Self { number, set, held: Arc::new(CachedImages::new(len)), device: device.clone(), context })
    }

    /// Its number among the caches of this process: equal images of one are those of one number in the set.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the cached images.
    pub fn held(&self) -> Arc<CachedImages> {
        self.held.clone()
    }

    /// The array of all images. Read only those that are cached.
    pub fn images(&self) -> &Array {
        &self.set
    }

    /// The device of the cache.
    pub fn device(&self) -> &ComputeDevice {
        &self.device
    }

    /// The threads of the host, which compute if the cache is there.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Adds the fresh images of a recipe, whose pixels are given.
    ///
    /// # Errors
    /// If they have another size than the set, and those of the device.
    pub fn take(&self, recipe: &ImageRecipe, pixels: Vec<u8>) -> Result<(), BatchError> {
        let fresh = recipe.fresh().unwrap_or_default();
        if fresh.is_empty() {
            return Ok(());
        }
        let ([height, width], dims) = (recipe.source(), self.set.dims());
        if dims[1..3] != [height, width] {
            return Err(BatchError::ImageSize { found: [height, width], cached: [dims[1], dims[2]] });
        }
        let pixels = Tensor::from_vec(pixels, (fresh.len(), height, width, 3), &Device::Cpu)?;
        let rows = Tensor::from_slice(fresh, fresh.len(), &Device::Cpu)?;
        let (rows, pixels) = (self.device.put(&rows)?, self.device.put(&pixels)?);
        self.device.backend(&self.context).put_images(&self.set, &rows, &pixels)?;
        // Later work on the stream of the device finds them.
        fresh.iter().for_each(|number| self.held.insert(*number as usize));
        Ok(())
    }
}
