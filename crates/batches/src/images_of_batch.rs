//! Images of a batch as bytes, prepared where they are used: on a device or on the host.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_core::{Device, Tensor};
use phalanx_data::{ImageBytes, ImageRecipe, Normalise, Placement};
use phalanx_tensor::backend::{ImageBlend, ImagePreparation, PLACE_NUMBERS};
use phalanx_tensor::{Array, ArrayBackend, ComputeDevice, Context, Precision};

use crate::device_cache::DeviceCache;
use crate::error::BatchError;
use crate::sample_hash::SampleHash;

/// Images as bytes, with the preparation of each. Clones share the bytes.
#[derive(Debug, Clone)]
pub(crate) struct BatchImages {
    pixels: Pixels,
    recipe: ImageRecipe,
    /// The images prepared on the host, after the first use.
    prepared: OnceLock<Tensor>,
}

#[derive(Debug, Clone)]
enum Pixels {
    /// The pixels of the samples, and of others that they are mixed with, on the host, u8 [M, H, W, 3].
    Here(Tensor),
    /// Cached on a device, with others.
    Cached(Arc<DeviceCache>),
}

impl BatchImages {
    /// Creates the images of a batch. Those of a cached set are added to `cache`.
    pub(crate) fn new(images: ImageBytes, cache: Option<&Arc<DeviceCache>>) -> Result<Self, BatchError> {
        let (recipe, pixels) = images.into_parts();
        let pixels = match (recipe.fresh(), cache) {
            (None, _) => {
                let [height, width] = recipe.source();
                let shape = (pixels.len() / (3 * height * width).max(1), height, width, 3);
                Pixels::Here(Tensor::from_vec(pixels, shape, &Device::Cpu)?)
            }
            (Some(_), Some(cache)) => {
                cache.take(&recipe, pixels)?;
                Pixels::Cached(cache.clone())
            }
            (Some(_), None) => {
                return Err(BatchError::NoCache);
            }
        };
        Ok(Self { pixels, recipe, prepared: OnceLock::new() })
    }

    /// The dimensions after preparation, [N, 3, height, width], then the height and width of the bytes.
    pub(crate) fn shape(&self) -> Vec<usize> {
        let ([height, width], source) = (self.recipe.size(), self.recipe.source());
        [self.recipe.samples().len(), 3, height, width].into_iter().chain(source).collect()
    }

    /// Returns some of the samples.
    pub(crate) fn narrow(&self, samples: &Range<usize>) -> Result<Self, BatchError> {
        let (recipe, needed) = self.recipe.narrow(samples);
        let pixels = match &self.pixels {
            Pixels::Here(pixels) => Pixels::Here(chosen(pixels, &needed)?),
            Pixels::Cached(cache) => Pixels::Cached(cache.clone()),
        };
        Ok(Self { pixels, recipe, prepared: OnceLock::new() })
    }

    /// Returns the images on `device`, f32 [N, 3, height, width], prepared by `backend` for products of this precision.
    pub(crate) fn prepared_at(
        &self,
        device: &ComputeDevice,
        backend: &dyn ArrayBackend,
        precision: Precision,
    ) -> Result<Array, BatchError> {
        match &self.pixels {
            Pixels::Here(_) if device.is_host() => Ok(self.on_host()?.into()),
            Pixels::Here(pixels) => self.by(backend, &device.put(pixels)?, device, precision),
            Pixels::Cached(cache) => self.by(backend, cache.images(), device, precision),
        }
    }

    /// Returns a hash of each image: of its bytes, or of its number in a cache, and of what is done to it. `None` if they are
    /// mixed with others.
    pub(crate) fn hashes(&self) -> Result<Option<Vec<SampleHash>>, BatchError> {
        if self.recipe.mix().is_some() {
            return Ok(None);
        }
        let (bytes, set) = match &self.pixels {
            Pixels::Here(pixels) => (pixels.flatten_all()?.to_vec1::<u8>()?, None),
            Pixels::Cached(cache) => (Vec::new(), Some(cache.number())),
        };
        let ([height, width], Normalise { mean, std }) = (self.recipe.source(), self.recipe.normalise());
        let side = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
        let sides = [height, width].into_iter().chain(self.recipe.size()).map(side);
        let shared: Vec<u32> = sides.chain(mean.iter().chain(&std).map(|number| number.to_bits())).collect();
        let each = 3 * height * width;
        let of = |sample: &(u32, Placement)| {
            // Without a cache, the number is that of the bytes.
            let (number, [_, how @ ..]) = (sample.0, numbers(sample));
            let at = number as usize * each;
            let which = set.map(|set| [set, u64::from(number)].map(u64::to_le_bytes).concat());
            let image = which.as_deref().or_else(|| bytes.get(at..at + each)).unwrap_or_default();
            let how: Vec<u8> = shared.iter().chain(&how).flat_map(|number| number.to_le_bytes()).collect();
            SampleHash::of([how.as_slice(), image])
        };
        Ok(Some(self.recipe.samples().iter().map(of).collect()))
    }

    /// Returns the images on the host, f32 [N, 3, height, width]: prepared there, or copied from the device that caches them.
    pub(crate) fn on_host(&self) -> Result<&Tensor, BatchError> {
        if let Some(prepared) = self.prepared.get() {
            return Ok(prepared);
        }
        let prepared = match &self.pixels {
            Pixels::Here(pixels) => {
                let context = Context::new(1);
                self.by(&context, &pixels.into(), &ComputeDevice::host(), Precision::F32)?.tensor()?
            }
            Pixels::Cached(cache) => {
                let (device, backend) = (cache.device(), cache.device().backend(cache.context()));
                self.by(backend, cache.images(), device, Precision::F32)?.to_host()?
            }
        };
        Ok(self.prepared.get_or_init(|| prepared))
    }

    fn by(
        &self,
        backend: &dyn ArrayBackend,
        pixels: &Array,
        device: &ComputeDevice,
        precision: Precision,
    ) -> Result<Array, BatchError> {
        let (samples, mix) = (self.recipe.samples(), self.recipe.mix());
        let mut places: Vec<u32> = Vec::new();
        for (at, sample) in samples.iter().enumerate() {
            let partner = mix.and_then(|mix| mix.partners().get(at));
            [sample].into_iter().chain(partner).for_each(|of| places.extend(numbers(of)));
        }
        let each = if mix.is_some() { 2 * PLACE_NUMBERS } else { PLACE_NUMBERS };
        let places = Tensor::from_vec(places, (samples.len(), each), &Device::Cpu)?;
        let normalise = self.recipe.normalise();
        let (mean, std) = (normalise.mean, normalise.std);
        let blend = mix.map(|mix| {
            let mixture = mix.mixture();
            let patch = mixture.patch.map(|patch| [patch.top, patch.left, patch.height, patch.width]);
            ImageBlend { share: mixture.share, patch }
        });
        let how = ImagePreparation { size: self.recipe.size(), mean, std, blend, precision };
        Ok(backend.images(pixels, &device.put(&places)?, &how)?)
    }
}

/// Returns the images with these numbers, in this order.
fn chosen(pixels: &Tensor, numbers: &[u32]) -> Result<Tensor, BatchError> {
    let first = numbers.first().copied().unwrap_or(0);
    if (first..).zip(numbers).all(|(expected, number)| expected == *number) {
        return Ok(pixels.narrow(0, first as usize, numbers.len())?.contiguous()?);
    }
    Ok(pixels.index_select(&Tensor::from_slice(numbers, numbers.len(), &Device::Cpu)?, 0)?)
}

/// Returns the image and the placement of a sample as the numbers of a back end.
fn numbers((image, how): &(u32, Placement)) -> [u32; PLACE_NUMBERS] {
    let [top, left, height, width] =
        how.erased.map_or([0; 4], |patch| [patch.top, patch.left, patch.height, patch.width]);
    let corner = [how.top, how.left].map(i32::cast_unsigned);
    [*image, corner[0], corner[1], u32::from(how.flipped), top, left, height, width]
}

#[cfg(test)]
mod tests {
    use phalanx_data::transform::{
        ColorJitter, Filter, RandAugment, RandomCrop, RandomErasing, Resize, ResizeMode, Transform,
        TransformConfig,
    };
    use phalanx_data::{
        BatchSource, CachedImages, CollatedDataset, DistributedSampler, ImageCollation, Loader, LoaderConfig,
        Mixing, Order, SamplerConfig, ShapesConfig, ShapesDataset, StepBatch, Tail,
    };

    use super::*;

    const LEN: usize = 6;

    fn sources(config: TransformConfig) -> CollatedDataset<ShapesDataset, ImageCollation> {
        let shapes = ShapesDataset::new(ShapesConfig { len: LEN, resolution: 12, ..ShapesConfig::default() });
        let collation = ImageCollation::new(Transform::new(config).expect("sound"));
        CollatedDataset::new(Arc::new(shapes.expect("sound")), collation)
    }

    fn bytes(source: &dyn BatchSource, held: Option<Arc<CachedImages>>, epoch: u64) -> ImageBytes {
        let indices: Vec<usize> = (0..LEN).rev().collect();
        let batch = source.as_bytes(held).expect("images").batch(&indices, epoch, &|| true).expect("sound");
        batch.images("images").expect("there").clone()
    }

    /// Preparations of images of 12 × 12, and the side of the bytes of each.
    fn ways() -> [(TransformConfig, usize); 6] {
        let base = TransformConfig { flip: 0.5, normalise: Normalise::CLIP, seed: 3, ..Default::default() };
        let crop = |size, padding| Some(RandomCrop { size, padding });
        let resize = |size, mode| Some(Resize { size, filter: Filter::Bilinear, mode });
        [
            (TransformConfig { resize: resize(12, ResizeMode::Square), ..base.clone() }, 12),
            // With padding the bytes are those before the crop, otherwise those after it.
            (
                TransformConfig {
                    resize: resize(9, ResizeMode::Square),
                    random_crop: crop(10, 2),
                    ..base.clone()
                },
                9,
            ),
            (
                TransformConfig {
                    resize: resize(12, ResizeMode::Square),
                    random_crop: crop(8, 0),
                    ..base.clone()
                },
                8,
            ),
            // Images have different sizes.
            (
                TransformConfig {
                    resize: resize(10, ResizeMode::ShorterSide),
                    random_crop: crop(8, 1),
                    ..base.clone()
                },
                8,
            ),
            (
                TransformConfig {
                    resize: resize(12, ResizeMode::Square),
                    random_crop: crop(10, 1),
                    erasing: Some(RandomErasing::new(0.6)),
                    ..base.clone()
                },
                10,
            ),
            // Changed colours cannot wait for a device, so the bytes are those after the crop.
            (
                TransformConfig {
                    resize: resize(9, ResizeMode::Square),
                    random_crop: crop(10, 2),
                    rand_augment: Some(RandAugment::new(2, 9)),
                    color_jitter: Some(ColorJitter { hue: 0.2, ..ColorJitter::default() }),
                    erasing: Some(RandomErasing::new(0.6)),
                    ..base
                },
                10,
            ),
        ]
    }

    #[test]
    fn prepared_bytes_equal_images_prepared_by_the_host() {
        for (config, side) in ways() {
            let source = sources(config);
            for epoch in [0, 1] {
                let indices: Vec<usize> = (0..LEN).rev().collect();
                let whole = source.batch(&indices, epoch, &|| true).expect("sound");
                let expected = whole.values::<f32>("images").expect("numbers").to_vec();
                let images = bytes(&source, None, epoch);
                assert_eq!(images.pixels().len(), LEN * side * side * 3);
                let images = BatchImages::new(images, None).expect("sound");
                let flat = |images: &BatchImages| {
                    images
                        .on_host()
                        .and_then(|made| Ok(made.flatten_all()?.to_vec1::<f32>()?))
                        .expect("sound")
                };
                assert_eq!(flat(&images), expected);
                let part = images.narrow(&(2..5)).expect("there");
                assert_eq!(flat(&part), expected[2 * expected.len() / LEN..5 * expected.len() / LEN]);
            }
        }
    }

    /// The batches of the second of two ranks, whose samples are mixed with each other and with one of the first rank.
    fn mixed(source: Arc<dyn BatchSource>) -> Vec<phalanx_data::Batch> {
        let sampler = DistributedSampler::new(SamplerConfig {
            len: LEN,
            world_size: 2,
            rank: 1,
            global_batch: 5,
            micro_batches: 1,
            seed: 1,
            order: Order::Shuffled,
            tail: Tail::Pad,
        });
        let mixing = Some(Mixing { mixup: 1.0, cutmix: 1.0, seed: 8 });
        let config = LoaderConfig { workers: 0, prefetch: 1, mixing };
        let loader = Loader::new(source, sampler.expect("sound"), config, (0, 0)).expect("sound");
        loader.take(8).map(|made| made.map(|StepBatch { batch, .. }| batch).expect("sound")).collect()
    }

    #[test]
    fn mixed_bytes_equal_images_mixed_by_the_host() {
        for (config, _) in ways() {
            let source = sources(config);
            let cache = source.fixed_images();
            let cache = cache.map(|size| DeviceCache::new(&ComputeDevice::host(), LEN, size).expect("room"));
            let cache = cache.map(Arc::new);
            let fresh = source.as_bytes(None).expect("images");
            let cached = cache.as_ref().map(|cache| source.as_bytes(Some(cache.held())).expect("images"));
            let expected = mixed(Arc::new(source));
            for (source, cache) in [(Some(fresh), None), (cached, cache.as_ref())] {
                let Some(source) = source else { continue };
                for (found, expected) in mixed(source).into_iter().zip(&expected) {
                    let images = found.images("images").expect("bytes").clone();
                    let images = BatchImages::new(images, cache).expect("sound");
                    let flat = |images: &BatchImages| {
                        let made = images.on_host().expect("sound").flatten_all().expect("flat");
                        made.to_vec1::<f32>().expect("numbers")
                    };
                    let expected = expected.values::<f32>("images").expect("numbers");
                    // The host mixes bytes, a device numbers.
                    let found_all = flat(&images);
                    assert_eq!(found_all.len(), expected.len());
                    let is_near = |(a, b): (&f32, &f32)| (a - b).abs() < 2e-6;
                    assert!(found_all.iter().zip(expected).all(is_near), "{found_all:?}");
                    let each = expected.len() / found.len();
                    let last = images.narrow(&(found.len() - 1..found.len())).expect("there");
                    assert_eq!(flat(&last), found_all[expected.len() - each..]);
                }
            }
        }
    }

    #[test]
    fn hashes_tell_images_and_what_is_done_to_them() {
        let resize = Some(Resize { size: 12, filter: Filter::Bilinear, mode: ResizeMode::Square });
        let config = || TransformConfig { resize, flip: 0.5, seed: 3, ..Default::default() };
        let source = sources(config());
        let size = source.fixed_images().expect("one size");
        let cache = Arc::new(DeviceCache::new(&ComputeDevice::host(), LEN, size).expect("room"));
        let other = Arc::new(DeviceCache::new(&ComputeDevice::host(), LEN, size).expect("room"));
        for cache in [None, Some(&cache), Some(&other)] {
            let held = cache.map(|cache| cache.held());
            let mut seen: Vec<(SampleHash, Vec<f32>)> = Vec::new();
            for epoch in 0..4 {
                let images = BatchImages::new(bytes(&source, held.clone(), epoch), cache).expect("sound");
                let found = images.hashes().expect("sound").expect("not mixed");
                let pixels = images.on_host().expect("sound").flatten_from(1).expect("flat");
                seen.extend(found.into_iter().zip(pixels.to_vec2::<f32>().expect("numbers")));
            }
            // Each image as it is and flipped, which may be the same pixels.
            for (at, (one, pixels)) in seen.iter().enumerate() {
                let alike: Vec<_> = seen.iter().filter(|(another, _)| another == one).collect();
                assert!(alike.iter().all(|(_, others)| others == pixels));
                let of_image = seen.iter().skip(at % LEN).step_by(LEN);
                let others = of_image.filter(|(_, others)| others == pixels).count();
                assert!((1..=others).contains(&alike.len()));
            }
            let different: std::collections::HashSet<_> = seen.iter().map(|(hash, _)| hash).collect();
            assert!((LEN + 1..=2 * LEN).contains(&different.len()), "{}", different.len());
            let part = BatchImages::new(bytes(&source, held, 0), cache).expect("sound");
            let part = part.narrow(&(2..4)).expect("there").hashes().expect("sound").expect("not mixed");
            assert_eq!(part, [seen[2].0, seen[3].0]);
        }
        let of = |cache: &Arc<DeviceCache>| {
            let images = BatchImages::new(bytes(&source, Some(cache.held()), 0), Some(cache)).expect("sound");
            images.hashes().expect("sound").expect("not mixed")
        };
        assert!(of(&cache).iter().zip(of(&other)).all(|(one, another)| *one != another));
        assert!(mixed(sources(config()).as_bytes(None).expect("images")).iter().all(|batch| {
            let images =
                BatchImages::new(batch.images("images").expect("bytes").clone(), None).expect("sound");
            images.hashes().expect("sound").is_none()
        }));
    }

    #[test]
    fn a_cached_set_is_read_once() {
        for (config, _) in ways() {
            let source = sources(config);
            // Images of different sizes cannot be cached.
            let Some(size) = source.fixed_images() else { continue };
            let cache = Arc::new(DeviceCache::new(&ComputeDevice::host(), LEN, size).expect("room"));
            for epoch in 0..3 {
                let indices: Vec<usize> = (0..LEN).rev().collect();
                let whole = source.batch(&indices, epoch, &|| true).expect("sound");
                let expected = whole.values::<f32>("images").expect("numbers").to_vec();
                let images = bytes(&source, Some(cache.held()), epoch);
                let brought = if epoch == 0 { LEN * size[0] * size[1] * 3 } else { 0 };
                assert_eq!(images.pixels().len(), brought);
                let images = BatchImages::new(images, Some(&cache)).expect("sound");
                let made = images.on_host().expect("sound").flatten_all().expect("flat");
                assert_eq!(made.to_vec1::<f32>().expect("numbers"), expected);
            }
            let images = bytes(&source, Some(cache.held()), 0);
            assert!(BatchImages::new(images, None).is_err(), "there is no cache");
        }
    }
}
