//! Single test samples: their files, their classes, and their images as they are looked at.

use candle_core::DType;
use phalanx_data::transform::Normalise;
use phalanx_run::PlanarPicture;

use super::Data;
use crate::engine::TrainError;
use phalanx_batches::Batch;
use phalanx_config::Config;
use phalanx_datasets::ConfiguredImages;

/// The array of a batch that has the images.
const IMAGES: &str = "images";

impl Data {
    /// The names of the classes, on a rank that loads data; none if the data do not name them.
    pub(in crate::engine) fn class_names(&self) -> &[String] {
        self.images().map(ConfiguredImages::class_names).unwrap_or_default()
    }

    /// Returns the files of test samples, by their positions in a pass over `limit` samples.
    pub(in crate::engine) fn test_paths(
        &self,
        limit: usize,
        positions: &[usize],
    ) -> Result<Vec<String>, TrainError> {
        let source = self.test_source(limit)?;
        let path = |at: &usize| Ok(source.sample_path(*at)?.display().to_string());
        positions.iter().map(path).collect()
    }

    /// Returns the images of test samples, as the network gets them but not normalised; none if the data have no images. A user's own
    /// images are taken as being in [-1, 1].
    pub(in crate::engine) fn test_pictures(
        &self,
        config: &Config,
        positions: &[usize],
    ) -> Result<Vec<PlanarPicture>, TrainError> {
        if positions.is_empty() {
            return Ok(Vec::new());
        }
        let source = self.test_source(config.eval.limit)?;
        let batch = Batch::try_from(source.batch(positions, 0, &|| true)?)?;
        let Ok(images) = batch.tensor(IMAGES) else { return Ok(Vec::new()) };
        let &[_, 3, height, width] = images.dims() else { return Ok(Vec::new()) };
        let normalise = if self.images().is_some() { config.data.normalise } else { Normalise::SYMMETRIC };
        let plane = height * width;
        let mut pictures = images.to_dtype(DType::F32)?.flatten_from(1)?.to_vec2::<f32>()?;
        for values in &mut pictures {
            for (channel, values) in values.chunks_exact_mut(plane.max(1)).enumerate() {
                let (mean, std) = (normalise.mean[channel], normalise.std[channel]);
                values.iter_mut().for_each(|value| *value = 2.0 * (*value * std + mean) - 1.0);
            }
        }
        Ok(pictures.into_iter().map(|values| PlanarPicture { values, width, height }).collect())
    }
}
