//! Image preparation without numbers.

use candle_core::DType;

use super::Outlines;
use crate::Result;
use crate::backend::{Array, ImagePreparation, Images};

impl Images for Outlines {
    fn image_set(&self, dims: [usize; 4]) -> Result<Array> {
        Ok(self.array(dims.to_vec(), DType::U8))
    }

    fn put_images(&self, _: &Array, _: &Array, _: &Array) -> Result<()> {
        Ok(())
    }

    fn images(&self, _: &Array, places: &Array, how: &ImagePreparation) -> Result<Array> {
        let [height, width] = how.size;
        Ok(self.array((places.dims()[0], 3, height, width), DType::F32))
    }
}
