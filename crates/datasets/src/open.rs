//! Opens both splits of the datasets that a configuration can name.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use phalanx_data::archives::expand;
use phalanx_data::cifar10::CLASS_NAMES;
use phalanx_data::image_folder::TEST_FOLDERS;
use phalanx_data::scenes::{ScenesConfig, ScenesDataset};
use phalanx_data::shapes::{Objects, ShapesConfig, ShapesDataset};
use phalanx_data::{
    ArchivesConfig, ArchivesDataset, Attribute, CocoCaptions, CocoConfig, CubCaptions, CubConfig, CubDataset,
    DataError, Dataset as _, Exclusions, HeldOut, ImageDataset, ImageFolder, Split, Subset,
    open_cifar10_seeded, open_imagenet,
};

use crate::error::DatasetError;
use crate::transforms::read_side;
use phalanx_config::{Config, DataConfig, DataKind};

/// A dataset of images, shared with the threads that read it.
pub type Images = Arc<ImageDataset>;

/// Both splits of the configured images.
pub struct OpenedSplits {
    /// The images for training.
    pub train: Images,
    /// `None` if the data have no images for testing and the run needs none.
    pub test: Option<Images>,
    /// Facts about the files for the user.
    pub notes: Vec<String>,
}

impl std::fmt::Debug for OpenedSplits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let test = self.test.as_ref().map(|test| test.name());
        f.debug_struct("OpenedSplits")
            .field("train", &self.train.name())
            .field("test", &test)
            .finish_non_exhaustive()
    }
}

impl OpenedSplits {
    /// Opens both splits of the configured images. With `data.test_fraction` the test split is cut from the training images.
    ///
    /// # Errors
    /// If the configuration does not say where they are, they cannot be read, or there are none for testing and the run needs some.
    pub fn open(config: &Config) -> Result<Self, DatasetError> {
        let data = &config.data;
        let excluded = match data.exclude.as_str() {
            "" => Exclusions::default(),
            file => Exclusions::read(file)?,
        };
        let all = open_split(config, Split::Train, &excluded)?;
        let mut notes = all.notes().to_vec();
        let (train, test): (Images, Option<Images>) = if data.test_fraction > 0.0 {
            let HeldOut { train, test } = HeldOut::of(&all, data.test_fraction)?;
            notes.push(format!(
                "data.test_fraction = {}: {} of {} images are held out for testing",
                data.test_fraction,
                test.len(),
                all.len()
            ));
            (Arc::new(train), Some(Arc::new(test)))
        } else {
            (all, open_test(config, &excluded)?)
        };
        match &test {
            Some(test) if data.test_fraction == 0.0 => notes.extend(test.notes().iter().cloned()),
            Some(_) => {}
            None => notes.push("the data have no test split, so nothing is evaluated".to_owned()),
        }
        excluded.check_used()?;
        Ok(Self { train, test, notes })
    }
}

/// Opens the test split; `None` if there is none and the run needs none.
fn open_test(config: &Config, excluded: &Exclusions) -> Result<Option<Images>, DatasetError> {
    let is_needed = config.eval.enabled || !config.quality.judges.is_empty();
    match open_split(config, Split::Test, excluded) {
        Ok(images) => Ok(Some(images)),
        Err(DatasetError::Data(DataError::NoTestSplit { .. })) if !is_needed => Ok(None),
        Err(DatasetError::Data(error @ DataError::NoTestSplit { .. })) => {
            Err(DatasetError::NoTestSplit(error))
        }
        Err(error) => Err(error),
    }
}

/// Opens one split of the configured images.
fn open_split(config: &Config, split: Split, excluded: &Exclusions) -> Result<Images, DatasetError> {
    let (data, seed) = (&config.data, config.train.seed);
    if data.path.is_empty() && !data.kind.is_embedded() {
        return Err(DatasetError::NoPath { kind: data.kind });
    }
    Ok(match data.kind {
        DataKind::Shapes => {
            let objects = if data.objects == 2 { Objects::OneOrTwo } else { Objects::One };
            let (len, resolution) = (pictures(data, split), read_side(config)?);
            Arc::new(ShapesDataset::new(ShapesConfig { split, len, resolution, seed, objects })?)
        }
        DataKind::Scenes => {
            let (len, resolution, objects) =
                (pictures(data, split), read_side(config)?, scene_objects(config));
            Arc::new(ScenesDataset::new(ScenesConfig {
                split,
                len,
                resolution,
                seed,
                objects,
                placed: data.placed_captions,
                partly_placed: data.partly_placed_captions,
            })?)
        }
        DataKind::Cifar10 => {
            let images = open_cifar10_seeded(&data.path, split, seed, excluded)?;
            // Class folders are listed without the excluded files; images of other forms are left out here.
            let rows = if excluded.is_empty() { Vec::new() } else { excluded_rows(&images, excluded)? };
            if rows.is_empty() { images } else { Arc::new(Subset::without(images, &rows)?) }
        }
        DataKind::Folder => Arc::new(ImageFolder::open_seeded(&data.path, split, seed, excluded)?),
        DataKind::Cub => open_cub(config, split, excluded)?,
        DataKind::Coco => Arc::new(CocoCaptions::open(&CocoConfig {
            path: PathBuf::from(&data.path),
            split,
            caption_seed: seed,
            excluded: excluded.clone(),
        })?),
        DataKind::Imagenet => Arc::new(open_imagenet(&data.path, split, seed, excluded)?),
        DataKind::Shards => open_archives(config, split, excluded)?,
    })
}

/// Returns the images whose file and row a list names.
fn excluded_rows(images: &Images, excluded: &Exclusions) -> Result<Vec<usize>, DataError> {
    let mut rows = Vec::new();
    for index in 0..images.len() {
        if excluded.contains(&images.sample_path(index)?) {
            rows.push(index);
        }
    }
    Ok(rows)
}

/// Opens a split of CUB-200.
fn open_cub(config: &Config, split: Split, excluded: &Exclusions) -> Result<Images, DatasetError> {
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

/// Opens a split of archives without the samples that a list names.
fn open_archives(config: &Config, split: Split, excluded: &Exclusions) -> Result<Images, DatasetError> {
    let data = &config.data;
    let archives = Arc::new(ArchivesDataset::open(&ArchivesConfig {
        name: format!("shards/{split}"),
        archives: find_archives(data, split)?,
        index: (!data.index.is_empty()).then(|| PathBuf::from(&data.index)),
        classes: None,
        caption_seed: config.train.seed,
    })?);
    let without = archives.excluded(excluded)?;
    Ok(if without.is_empty() { archives } else { Arc::new(Subset::without(archives, &without)?) })
}

/// The number of generated images of a split.
fn pictures(data: &DataConfig, split: Split) -> usize {
    match split {
        Split::Train => data.images,
        Split::Test => data.test_images,
    }
}

/// The number of objects of scenes.
pub(crate) fn scene_objects(config: &Config) -> RangeInclusive<usize> {
    if config.data.objects == 2 { 2..=2 } else { 2..=3 }
}

/// Finds the archives of a split.
fn find_archives(data: &DataConfig, split: Split) -> Result<Vec<PathBuf>, DatasetError> {
    if !data.test_path.is_empty() {
        return Ok(expand(if split == Split::Train { &data.path } else { &data.test_path })?);
    }
    let root = Path::new(&data.path);
    let train = Some(root.join("train")).filter(|folder| folder.is_dir());
    let held_out = TEST_FOLDERS.map(|name| root.join(name)).into_iter().find(|folder| folder.is_dir());
    let folder = match split {
        Split::Train => train.as_ref(),
        Split::Test => held_out.as_ref().filter(|_| train.is_some()),
    };
    if let Some(folder) = folder {
        return Ok(expand(&folder.display().to_string())?);
    }
    let mut all = if train.is_some() { Vec::new() } else { expand(&data.path)? };
    // The last archive is for testing, unless the test split is cut from all of them.
    match (split, all.len()) {
        (Split::Train, 1) => Ok(all),
        (Split::Train, _) if data.test_fraction > 0.0 => Ok(all),
        (_, 0 | 1) => Err(DataError::NoTestSplit {
            path: root.to_path_buf(),
            looked_for: format!(
                "one of the folders {}, or a second archive; or name archives for testing in data.test_path",
                TEST_FOLDERS.join(", ")
            ),
        }
        .into()),
        (Split::Train, _) => {
            all.pop();
            Ok(all)
        }
        (Split::Test, _) => Ok(all.split_off(all.len() - 1)),
    }
}

/// Returns the number of classes of the configured images. CIFAR-10 need not be downloaded for it.
///
/// # Errors
/// If the images cannot be opened or have no classes.
pub fn num_classes(config: &Config) -> Result<usize, DatasetError> {
    let data = &config.data;
    if data.kind == DataKind::Cifar10 {
        return Ok(CLASS_NAMES.len());
    }
    if data.path.is_empty() && !data.kind.is_embedded() {
        return Err(DatasetError::NoPathOfClasses { kind: data.kind });
    }
    match OpenedSplits::open(config)?.train.class_names().len() {
        0 => Err(DatasetError::NoClasses { kind: data.kind }),
        number => Ok(number),
    }
}

/// Returns the classes of the configured images in the order of their labels; none if images have captions alone.
///
/// # Errors
/// If the images cannot be opened.
pub fn class_names(config: &Config) -> Result<Vec<String>, DatasetError> {
    match config.data.kind {
        DataKind::Cifar10 => Ok(CLASS_NAMES.iter().map(|name| (*name).to_owned()).collect()),
        kind if kind.is_embedded() => {
            let images = open_split(config, Split::Train, &Exclusions::default())?;
            Ok(images.class_names().to_vec())
        }
        _ => Ok(OpenedSplits::open(config)?.train.class_names().to_vec()),
    }
}

/// Returns the attributes of the configured images: the names of their arrays in a batch, and the meaning of their numbers. Only
/// embedded datasets have attributes, so no folder is read.
///
/// # Errors
/// If the configuration has no sound size of images.
pub fn attributes(config: &Config) -> Result<Vec<Attribute>, DatasetError> {
    if !config.data.kind.is_embedded() {
        return Ok(Vec::new());
    }
    Ok(open_split(config, Split::Train, &Exclusions::default())?.attributes().to_vec())
}
