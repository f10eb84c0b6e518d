//! The images of a run: which datasets, prepared how, and which of them this rank gets.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_data::cifar10::CLASS_NAMES;
use phalanx_data::loader::{Loader, LoaderConfig};
use phalanx_data::shapes::{Objects, ShapesConfig, ShapesDataset, heldout_prompts};
use phalanx_data::transform::{Filter, Normalise, RandomCrop, Resize, Transform, TransformConfig};
use phalanx_data::{
    DataError, Dataset, DistributedSampler, ImageFolder, SamplerConfig, Split, Subset, Tail,
    open_cifar10_seeded,
};

use super::peers::Peers;
use super::{Batch, Plan, TrainError};
use crate::config::{Config, DataConfig, DataKind, FilterKind, NormaliseKind, TailKind};

/// A dataset, shared with the threads that read it.
type Images = Arc<dyn Dataset>;

/// The training and the test split.
pub(super) struct Data {
    train: Images,
    test: Images,
    for_training: Transform,
    for_testing: Transform,
    loader: LoaderConfig,
    kind: DataKind,
}

impl Data {
    /// Finds the images; none is decoded yet.
    pub(super) fn open(config: &Config) -> Result<Self, TrainError> {
        let data = &config.data;
        let (train, test) = open_splits(config)?;
        let train = choose(train, data.per_class, data.limit, config.train.seed)?;
        let (for_training, for_testing) = transforms(config)?;
        let loader = LoaderConfig { workers: data.workers, prefetch: data.prefetch };
        Ok(Self { train, test, for_training, for_testing, loader, kind: data.kind })
    }

    /// How many training images there are.
    pub(super) fn train_len(&self) -> usize {
        self.train.len()
    }

    /// How many classes there are.
    pub(super) fn num_classes(&self) -> usize {
        self.train.class_names().len()
    }

    /// What the images are, in words.
    pub(super) fn describe(&self) -> String {
        format!("{} of {} classes", self.train.name(), self.num_classes())
    }

    /// `count` captions of the test split, each once if there are enough.
    pub(super) fn test_captions(&self, count: usize) -> Result<Vec<String>, TrainError> {
        if self.kind == DataKind::Shapes {
            return Ok(heldout_prompts(count).into_iter().map(|(caption, _)| caption).collect());
        }
        let mut captions: Vec<String> = Vec::new();
        // One of each class, then what comes.
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..self.test.len() {
            if captions.len() == count || seen.len() == self.num_classes() {
                break;
            }
            if seen.insert(self.test.label(index)?) {
                captions.push(self.test.get(index, 0)?.caption);
            }
        }
        let distinct = captions.len().max(1);
        for index in captions.len()..count {
            captions.push(captions[index % distinct].clone());
        }
        Ok(captions)
    }

    /// The training batches of one rank from step `step` on.
    pub(super) fn feed(
        &self,
        config: &Config,
        plan: &Plan,
        peers: &Peers,
        step: u64,
    ) -> Result<Feed, TrainError> {
        let sampler = DistributedSampler::new(SamplerConfig {
            len: self.train.len(),
            world_size: peers.size(),
            rank: peers.rank(),
            global_batch: config.train.global_batch,
            seed: config.train.seed,
            shuffle: true,
            tail: match config.data.tail {
                TailKind::Drop => Tail::Drop,
                TailKind::Pad => Tail::Pad,
                TailKind::Ragged => Tail::Ragged,
            },
        })?;
        let (epoch, within) = plan.place(step);
        let within = usize::try_from(within).unwrap_or(usize::MAX);
        let start = (epoch as u64, within);
        let loader = Loader::new(self.train.clone(), self.for_training.clone(), sampler, self.loader, start)?;
        Ok(Feed { loader, pieces: config.train.accumulate })
    }

    /// The test batches of one rank of `size`, `batch` images each, over the first `limit` images (0 = all). All ranks have
    /// as many, of which the last may be empty.
    pub(super) fn test_batches(
        &self,
        rank: usize,
        size: usize,
        limit: usize,
        batch: usize,
    ) -> Result<impl Iterator<Item = Result<Batch, TrainError>>, TrainError> {
        let test = choose(self.test.clone(), 0, limit, 0)?;
        let sampler = DistributedSampler::new(SamplerConfig {
            len: test.len(),
            world_size: size,
            rank,
            global_batch: batch.max(1) * size,
            seed: 0,
            shuffle: false,
            tail: Tail::Ragged,
        })?;
        let steps = sampler.steps_per_epoch();
        let loader = Loader::new(test, self.for_testing.clone(), sampler, self.loader, (0, 0))?;
        Ok(loader.take(steps).map(|batch| convert(&batch?)))
    }
}

/// The training batches of one rank, cut into micro-batches.
pub(super) struct Feed {
    loader: Loader,
    pieces: usize,
}

/// A rank's share of one step.
pub(super) struct StepShare {
    /// Micro-batches that are not empty, each with the position of its first image in the global batch.
    pub(super) pieces: Vec<(usize, Batch)>,
    /// Images of the step over all ranks.
    pub(super) global: usize,
}

impl Feed {
    /// The next step's share.
    pub(super) fn next(&mut self) -> Result<StepShare, TrainError> {
        // A loader without end that has ended has given its error before.
        let Some(batch) = self.loader.next() else {
            return Err(TrainError::Setup("the loader of training images has ended".to_owned()));
        };
        let batch = batch?;
        let (offset, global) = (batch.offset, batch.global_valid);
        let whole = convert(&batch)?;
        if self.pieces == 1 || whole.is_empty() {
            let pieces = if whole.is_empty() { Vec::new() } else { vec![(offset, whole)] };
            return Ok(StepShare { pieces, global });
        }
        let size = whole.len().div_ceil(self.pieces);
        let mut pieces = Vec::with_capacity(self.pieces);
        for start in (0..whole.len()).step_by(size) {
            let len = size.min(whole.len() - start);
            let piece = Batch {
                images: whole.images.narrow(0, start, len)?.contiguous()?,
                labels: whole.labels[start..start + len].to_vec(),
                captions: whole.captions[start..start + len].to_vec(),
            };
            pieces.push((offset + start, piece));
        }
        Ok(StepShare { pieces, global })
    }
}

/// A loader's batch as tensors. Images that only pad it are left out: a mean over true samples needs no others.
fn convert(batch: &phalanx_data::batch::Batch) -> Result<Batch, TrainError> {
    let [_, channels, height, width] = batch.shape;
    let valid = batch.valid;
    let numbers = &batch.images[..valid * channels * height * width];
    Ok(Batch {
        images: Tensor::from_slice(numbers, (valid, channels, height, width), &Device::Cpu)?,
        labels: batch.labels[..valid].to_vec(),
        captions: batch.captions[..valid].to_vec(),
    })
}

/// At most `per_class` images of each class and at most `limit` in all (0 = no limit), chosen by `seed`.
fn choose(all: Images, per_class: usize, limit: usize, seed: u64) -> Result<Images, DataError> {
    let mut chosen = all;
    if per_class > 0 {
        chosen = Arc::new(Subset::per_class(chosen, per_class, seed)?);
    }
    if limit > 0 && limit < chosen.len() {
        chosen = Arc::new(Subset::take(chosen, limit, seed)?);
    }
    Ok(chosen)
}

/// Opens both splits of the configured images.
fn open_splits(config: &Config) -> Result<(Images, Images), TrainError> {
    let data = &config.data;
    match data.kind {
        DataKind::Shapes => {
            let shapes = |split, len| -> Result<Images, TrainError> {
                Ok(Arc::new(ShapesDataset::new(ShapesConfig {
                    split,
                    len,
                    resolution: side(config)?,
                    seed: config.train.seed,
                    objects: if data.objects == 2 { Objects::OneOrTwo } else { Objects::One },
                })?))
            };
            Ok((shapes(Split::Train, data.images)?, shapes(Split::Test, data.test_images)?))
        }
        DataKind::Cifar10 => {
            let open = |split| open_cifar10_seeded(&data.path, split, config.train.seed);
            Ok((open(Split::Train)?, open(Split::Test)?))
        }
        DataKind::Folder => {
            let open = |split| ImageFolder::open_seeded(&data.path, split, config.train.seed);
            Ok((Arc::new(open(Split::Train)?), Arc::new(open(Split::Test)?)))
        }
    }
}

/// How many classes the configured images have; CIFAR-10's need not be there for that.
pub(super) fn num_classes(config: &Config) -> Result<usize, TrainError> {
    match config.data.kind {
        DataKind::Cifar10 => Ok(CLASS_NAMES.len()),
        DataKind::Folder if config.data.path.is_empty() => Err(TrainError::Setup(
            "the classes of data.kind = folder are those of its folders: name it by data.path, or by the option --data \
             folder=PATH"
                .to_owned(),
        )),
        DataKind::Shapes | DataKind::Folder => Ok(open_splits(config)?.0.class_names().len()),
    }
}

fn side(config: &Config) -> Result<u32, TrainError> {
    u32::try_from(config.model.image_size)
        .map_err(|_| TrainError::Setup(format!("model.image_size {} is too large", config.model.image_size)))
}

/// What happens to training and to test images.
fn transforms(config: &Config) -> Result<(Transform, Transform), TrainError> {
    let (data, size) = (&config.data, side(config)?);
    let filter = match data.resize_filter {
        FilterKind::Nearest => Filter::Nearest,
        FilterKind::Bilinear => Filter::Bilinear,
        FilterKind::Bicubic => Filter::Bicubic,
        FilterKind::Lanczos3 => Filter::Lanczos3,
    };
    let for_testing = TransformConfig {
        resize: Some(Resize::square(size, filter)),
        normalise: normalise(data),
        seed: config.train.seed,
        ..TransformConfig::default()
    };
    let padding = u32::try_from(data.crop_padding).unwrap_or(u32::MAX);
    let for_training = TransformConfig {
        random_crop: (padding > 0).then_some(RandomCrop { size, padding }),
        flip: if data.flip { 0.5 } else { 0.0 },
        ..for_testing.clone()
    };
    Ok((Transform::new(for_training)?, Transform::new(for_testing)?))
}

fn normalise(data: &DataConfig) -> Normalise {
    match data.normalise {
        NormaliseKind::Symmetric => Normalise::SYMMETRIC,
        NormaliseKind::Cifar10 => Normalise::CIFAR10,
        NormaliseKind::ImageNet => Normalise::IMAGENET,
        NormaliseKind::Clip => Normalise::CLIP,
    }
}
