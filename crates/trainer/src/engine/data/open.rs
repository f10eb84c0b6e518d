//! Opens both splits of the datasets that a configuration can name.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use phalanx_data::archives::expand;
use phalanx_data::cifar10::CLASS_NAMES;
use phalanx_data::scenes::{ScenesConfig, ScenesDataset};
use phalanx_data::shapes::{Objects, ShapesConfig, ShapesDataset};
use phalanx_data::{
    ArchivesConfig, ArchivesDataset, Attribute, CocoCaptions, CocoConfig, CubCaptions, CubConfig, CubDataset,
    Exclusions, ImageDataset, ImageFolder, Split, open_cifar10_seeded, open_imagenet,
};

use super::transforms::read_side;
use crate::config::{Config, DataConfig, DataKind};
use crate::engine::TrainError;

/// A dataset of images, shared with the threads that read it.
pub(super) type Images = Arc<ImageDataset>;

/// Opens both splits of the configured images.
pub(super) fn open_splits(config: &Config) -> Result<(Images, Images), TrainError> {
    let data = &config.data;
    let excluded = match data.exclude.as_str() {
        "" => Exclusions::default(),
        file => Exclusions::read(file)?,
    };
    match data.kind {
        DataKind::Shapes => both(|split| {
            let objects = if data.objects == 2 { Objects::OneOrTwo } else { Objects::One };
            let (len, resolution, seed) = (pictures(data, split), read_side(config)?, config.train.seed);
            Ok(Arc::new(ShapesDataset::new(ShapesConfig { split, len, resolution, seed, objects })?))
        }),
        DataKind::Scenes => both(|split| {
            let (len, resolution, seed) = (pictures(data, split), read_side(config)?, config.train.seed);
            let objects = scene_objects(config);
            Ok(Arc::new(ScenesDataset::new(ScenesConfig { split, len, resolution, seed, objects })?))
        }),
        DataKind::Cifar10 => {
            both(|split| Ok(open_cifar10_seeded(&data.path, split, config.train.seed, &excluded)?))
        }
        DataKind::Folder => both(|split| {
            Ok(Arc::new(ImageFolder::open_seeded(&data.path, split, config.train.seed, &excluded)?))
        }),
        DataKind::Cub => both(|split| open_cub(config, split, &excluded)),
        DataKind::Coco => both(|split| {
            Ok(Arc::new(CocoCaptions::open(&CocoConfig {
                path: PathBuf::from(&data.path),
                split,
                caption_seed: config.train.seed,
                excluded: excluded.clone(),
            })?))
        }),
        DataKind::Imagenet => {
            both(|split| Ok(Arc::new(open_imagenet(&data.path, split, config.train.seed, &excluded)?)))
        }
        DataKind::Shards => open_archives(config),
    }
}

/// Opens a split of CUB-200.
fn open_cub(config: &Config, split: Split, excluded: &Exclusions) -> Result<Images, TrainError> {
    let data = &config.data;
    let captions = match data.captions.as_str() {
        "" => CubCaptions::Adjacent,
        "classes" => CubCaptions::ClassNames,
        folder => CubCaptions::Folder(PathBuf::from(folder)),
    };
    Ok(Arc::new(CubDataset::open(&CubConfig {
        path: PathBuf::from(&data.path),
        split,
        test_classes: (!data.test_classes.is_empty()).then(|| PathBuf::from(&data.test_classes)),
        captions,
        crop: data.box_crop,
        caption_seed: config.train.seed,
        excluded: excluded.clone(),
    })?))
}

/// Opens both splits of archives.
fn open_archives(config: &Config) -> Result<(Images, Images), TrainError> {
    let data = &config.data;
    let archives = find_archives(data)?;
    both(|split| {
        let archives = if split == Split::Train { &archives.0 } else { &archives.1 };
        Ok(Arc::new(ArchivesDataset::open(&ArchivesConfig {
            name: format!("shards/{split}"),
            archives: archives.clone(),
            index: (!data.index.is_empty()).then(|| PathBuf::from(&data.index)),
            classes: None,
            caption_seed: config.train.seed,
        })?))
    })
}

fn both(open: impl Fn(Split) -> Result<Images, TrainError>) -> Result<(Images, Images), TrainError> {
    Ok((open(Split::Train)?, open(Split::Test)?))
}

/// The number of generated images of a split.
fn pictures(data: &DataConfig, split: Split) -> usize {
    match split {
        Split::Train => data.images,
        Split::Test => data.test_images,
    }
}

/// The number of objects of scenes.
pub(super) fn scene_objects(config: &Config) -> RangeInclusive<usize> {
    if config.data.objects == 2 { 2..=2 } else { 2..=3 }
}

/// Finds the archives for training and those for testing.
fn find_archives(data: &DataConfig) -> Result<(Vec<PathBuf>, Vec<PathBuf>), TrainError> {
    if !data.test_path.is_empty() {
        return Ok((expand(&data.path)?, expand(&data.test_path)?));
    }
    let root = Path::new(&data.path);
    let held_out = ["test", "val"].map(|name| root.join(name)).into_iter().find(|folder| folder.is_dir());
    if let (train, Some(held_out)) = (root.join("train"), held_out)
        && train.is_dir()
    {
        return Ok((expand(&train.display().to_string())?, expand(&held_out.display().to_string())?));
    }
    let mut all = expand(&data.path)?;
    match all.pop() {
        Some(last) if !all.is_empty() => Ok((all, vec![last])),
        _ => Err(TrainError::Setup(format!(
            "data.path {} is one archive, so none is left for testing; name archives for testing in data.test_path",
            data.path
        ))),
    }
}

/// Returns the number of classes of the configured images. CIFAR-10 need not be downloaded for it.
pub(in crate::engine) fn num_classes(config: &Config) -> Result<usize, TrainError> {
    let data = &config.data;
    if data.kind == DataKind::Cifar10 {
        return Ok(CLASS_NAMES.len());
    }
    if data.path.is_empty() && !data.kind.is_embedded() {
        return Err(TrainError::Setup(format!(
            "the classes of data.kind = {0} are those of its images: name their folder by data.path, or by the option \
             --data {0}=PATH",
            data.kind
        )));
    }
    match open_splits(config)?.0.class_names().len() {
        0 => Err(TrainError::Setup(match data.kind {
            DataKind::Shards => {
                "the samples of the shards have no classes, which a member .cls would hold".to_owned()
            }
            kind => format!("the images of data.kind = {kind} have captions and no classes"),
        })),
        number => Ok(number),
    }
}

/// Returns the attributes of the configured images: the names of their arrays in a batch, and the meaning of their numbers. Only
/// embedded datasets have attributes, so no folder is read.
pub(in crate::engine) fn attributes(config: &Config) -> Result<Vec<Attribute>, TrainError> {
    if !config.data.kind.is_embedded() {
        return Ok(Vec::new());
    }
    Ok(open_splits(config)?.0.attributes().to_vec())
}
