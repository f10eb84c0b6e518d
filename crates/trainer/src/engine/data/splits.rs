//! The images of a run: which datasets, prepared how, and which of them this rank gets.

use std::sync::Arc;

use phalanx_data::cifar10::CLASS_NAMES;
use phalanx_data::loader::{Loader, LoaderConfig};
use phalanx_data::shapes::{Objects, ShapesConfig, ShapesDataset, heldout_prompts};
use phalanx_data::transform::{Filter, Normalise, RandomCrop, Resize, Transform, TransformConfig};
use phalanx_data::{
    DataError, Dataset, DistributedSampler, ImageFolder, SamplerConfig, Split, Subset, Tail,
    open_cifar10_seeded,
};
use serde::{Deserialize, Serialize};

use super::Batch;
use super::feed::{self, Feed};
use crate::config::{Config, DataConfig, DataKind, FilterKind, NormaliseKind, TailKind};
use crate::engine::distributed::Distributed;
use crate::engine::{Plan, TrainError};

/// A dataset, shared with the threads that read it.
type Images = Arc<dyn Dataset>;

/// The training and the test split, as a rank knows them.
pub(in crate::engine) struct Data {
    facts: Facts,
    /// `None` on ranks whose batches come from the first.
    splits: Option<Splits>,
}

/// What every rank knows of the data.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Facts {
    /// Training images.
    train_len: usize,
    num_classes: usize,
    description: String,
}

/// The images, and how batches of them are made.
struct Splits {
    train: Images,
    test: Images,
    for_training: Transform,
    for_testing: Transform,
    loader: LoaderConfig,
    kind: DataKind,
}

impl Data {
    /// Finds the images; none is decoded yet. Where the first rank reads for all, it tells the others what they need to know,
    /// so every rank calls this at the same place.
    pub(in crate::engine) fn open(config: &Config, distributed: &Distributed) -> Result<Self, TrainError> {
        let Some(fed) = distributed.fed() else { return Self::open_here(config) };
        if distributed.rank() == 0 {
            let this = Self::open_here(config)?;
            feed::tell(fed, &this.facts)?;
            return Ok(this);
        }
        Ok(Self { facts: feed::hear(fed)?, splits: None })
    }

    fn open_here(config: &Config) -> Result<Self, TrainError> {
        let data = &config.data;
        let (train, test) = open_splits(config)?;
        let train = choose(train, data.per_class, data.limit, config.train.seed)?;
        let (for_training, for_testing) = transforms(config)?;
        let loader = LoaderConfig { workers: data.workers, prefetch: data.prefetch };
        let num_classes = train.class_names().len();
        let description = format!("{} of {num_classes} classes", train.name());
        let facts = Facts { train_len: train.len(), num_classes, description };
        let splits = Splits { train, test, for_training, for_testing, loader, kind: data.kind };
        Ok(Self { facts, splits: Some(splits) })
    }

    /// How many training images there are.
    pub(in crate::engine) fn train_len(&self) -> usize {
        self.facts.train_len
    }

    /// How many classes there are.
    pub(in crate::engine) fn num_classes(&self) -> usize {
        self.facts.num_classes
    }

    /// What the images are, in words.
    pub(in crate::engine) fn describe(&self) -> String {
        self.facts.description.clone()
    }

    /// `count` captions of the test split, each once if there are enough; none on a rank that reads no data.
    pub(in crate::engine) fn test_captions(&self, count: usize) -> Result<Vec<String>, TrainError> {
        let Some(splits) = &self.splits else { return Ok(Vec::new()) };
        if splits.kind == DataKind::Shapes {
            return Ok(heldout_prompts(count).into_iter().map(|(caption, _)| caption).collect());
        }
        let mut captions: Vec<String> = Vec::new();
        // One of each class, then what comes.
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..splits.test.len() {
            if captions.len() == count || seen.len() == self.num_classes() {
                break;
            }
            if seen.insert(splits.test.label(index)?) {
                captions.push(splits.test.get(index, 0)?.caption);
            }
        }
        let distinct = captions.len().max(1);
        for index in captions.len()..count {
            captions.push(captions[index % distinct].clone());
        }
        Ok(captions)
    }

    /// The training batches of one rank from step `step` on.
    pub(in crate::engine) fn feed(
        &self,
        config: &Config,
        plan: &Plan,
        distributed: &Distributed,
        step: u64,
    ) -> Result<Feed, TrainError> {
        let (epoch, within) = plan.place(step);
        let within = usize::try_from(within).unwrap_or(usize::MAX);
        let start = (epoch as u64, within);
        let loader_of = |splits: &Splits, rank| {
            let sampler = DistributedSampler::new(SamplerConfig {
                len: splits.train.len(),
                world_size: distributed.size(),
                rank,
                global_batch: config.train.global_batch,
                pieces: config.train.accumulate,
                seed: config.train.seed,
                shuffle: true,
                tail: match config.data.tail {
                    TailKind::Drop => Tail::Drop,
                    TailKind::Pad => Tail::Pad,
                    TailKind::Ragged => Tail::Ragged,
                },
            })?;
            Loader::new(splits.train.clone(), splits.for_training.clone(), sampler, splits.loader, start)
        };
        Ok(Feed::new(self.loaders(distributed, loader_of)?, distributed))
    }

    /// The test batches of one rank, `batch` images each, over the first `limit` images (0 = all). All ranks have as many, of
    /// which the last may be empty. Every rank calls this at the same place.
    pub(in crate::engine) fn test_batches(
        &self,
        distributed: &Distributed,
        limit: usize,
        batch: usize,
    ) -> Result<impl Iterator<Item = Result<Batch, TrainError>>, TrainError> {
        let loader_of = |splits: &Splits, rank| {
            let test = choose(splits.test.clone(), 0, limit, 0)?;
            let sampler = DistributedSampler::new(SamplerConfig {
                len: test.len(),
                world_size: distributed.size(),
                rank,
                global_batch: batch.max(1) * distributed.size(),
                pieces: 1,
                seed: 0,
                shuffle: false,
                tail: Tail::Ragged,
            })?;
            Loader::new(test, splits.for_testing.clone(), sampler, splits.loader, (0, 0))
        };
        feed::once(self.loaders(distributed, loader_of)?, distributed)
    }

    /// The loaders of what this rank reads: its own share, that of all ranks, or nothing.
    fn loaders(
        &self,
        distributed: &Distributed,
        loader_of: impl Fn(&Splits, usize) -> Result<Loader, DataError>,
    ) -> Result<Vec<Loader>, TrainError> {
        let Some(splits) = &self.splits else { return Ok(Vec::new()) };
        let ranks = if distributed.fed().is_some() {
            0..distributed.size()
        } else {
            distributed.rank()..distributed.rank() + 1
        };
        Ok(ranks.map(|rank| loader_of(splits, rank)).collect::<Result<_, _>>()?)
    }
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
pub(in crate::engine) fn num_classes(config: &Config) -> Result<usize, TrainError> {
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
