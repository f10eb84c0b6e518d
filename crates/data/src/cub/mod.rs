//! CUB-200-2011, birds of 200 species (Wah et al. 2011), with the captions of Reed et al. 2016.
//!
//! ```text
//! CUB_200_2011/
//!   classes.txt               1 001.Black_footed_Albatross
//!   images.txt                1 001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg
//!   image_class_labels.txt    1 1
//!   train_test_split.txt      1 0                         1 = for training
//!   bounding_boxes.txt        1 60.0 27.0 325.0 304.0     left, top, width, height in pixels
//!   images/001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg
//!   text_c10/001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.txt    ten captions, one a line
//! ```
//!
//! Each line of a table begins with the id of an image, in any order. Samples have the order of `images.txt`. Every
//! image needs a line in every table and a caption; a line for an unknown image is an error.

mod crop;
mod tables;

use crate::captioned_image::CaptionedImage;
use crate::captions;
use crate::dataset::{Split, check_index};
use crate::decode::{decode_cropped, read};
use crate::error::{DataError, Result};
use crate::exclusions::Exclusions;
use crate::file_list::FileList;
use crate::image_catalog::{Header, ImageCatalog};
use crate::lines::LinesFile;
use crate::strings::CaptionLists;
use crop::BoundingBox;
use image::RgbImage;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tables::Table;

/// The origin of the captions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CubCaptions {
    /// The folder `text_c10` in the dataset's folder or its parent.
    #[default]
    Adjacent,
    /// Another folder of this form.
    Folder(PathBuf),
    /// Sentences made from the names of the species.
    ClassNames,
}

/// The tables of the published folder that every split needs.
const TABLES: [&str; 4] = ["classes.txt", "images.txt", "image_class_labels.txt", "bounding_boxes.txt"];

/// The settings of [`CubDataset`].
#[derive(Debug, Clone)]
pub struct CubConfig {
    /// The folder `CUB_200_2011`, or its parent.
    pub path: PathBuf,
    /// The split, by `train_test_split.txt` or `test_classes`.
    pub split: Split,
    /// A file with the names of the test species, one a line; all others are for training. StackGAN splits 150 and 50
    /// species by Reed et al.'s `testclasses.txt`. With `None`, `train_test_split.txt` decides for each image.
    pub test_classes: Option<PathBuf>,
    /// The origin of the captions.
    pub captions: CubCaptions,
    /// The half side of the square crop around the bird, as a multiple of the longer side of its bounding box. The crop
    /// ends at the image's edge. 0 keeps the whole image; StackGAN uses 0.75.
    pub crop: f64,
    /// The seed that selects the caption of each epoch.
    pub caption_seed: u64,
    /// Files to leave out.
    pub excluded: Exclusions,
}

impl CubConfig {
    /// Returns StackGAN's settings for one split: crop 0.75, captions in `text_c10`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, split: Split) -> Self {
        Self {
            path: path.into(),
            split,
            test_classes: None,
            captions: CubCaptions::Adjacent,
            crop: 0.75,
            caption_seed: 0,
            excluded: Exclusions::default(),
        }
    }
}

/// One split of CUB-200-2011: birds with their species and ten captions each, one of which is used in each epoch.
#[derive(Debug, Clone)]
pub struct CubDataset {
    header: Header,
    files: FileList,
    boxes: Vec<BoundingBox>,
    /// `None` if captions are made from class names.
    captions: Option<CaptionLists>,
    crop: f64,
}

impl CubDataset {
    /// Reads the tables and the captions. Images are read by [`Dataset::get`](crate::Dataset::get).
    ///
    /// # Errors
    /// If a file is missing or a line is malformed; the error names the file and the line.
    pub fn open(config: &CubConfig) -> Result<Self> {
        check_crop(config.crop)?;
        let root = find_root(&config.path)?;
        let texts = caption_folder(&config.captions, &root)?;
        let classes = Table::read(&root.join("classes.txt"), tables::name)?;
        let images = Table::read(&root.join("images.txt"), tables::path)?;
        let labels = images.join(&root.join("image_class_labels.txt"), |fields| {
            let id = tables::id(fields)?;
            let no_class = || format!("class {id} is not in classes.txt");
            classes.position(id).ok_or_else(no_class)
        })?;
        let split_file = config.test_classes.clone().unwrap_or_else(|| root.join("train_test_split.txt"));
        let for_training = match &config.test_classes {
            Some(file) => {
                let names: Vec<&str> = classes.rows().map(|(_, name)| name).collect();
                let held_out = named_classes(file, &names)?;
                labels.iter().map(|label| !held_out.contains(label)).collect()
            }
            None => images.join(&split_file, tables::flag)?,
        };
        let boxes = images.join(&root.join("bounding_boxes.txt"), BoundingBox::parse)?;

        let mut this = Self {
            header: Header {
                classes_from: root.join("classes.txt"),
                files: TABLES.map(|name| root.join(name)).to_vec(),
                ..header(config, &classes)
            },
            files: FileList::default(),
            boxes: Vec::new(),
            captions: texts.is_some().then(CaptionLists::default),
            crop: config.crop,
        };
        let folder = root.join("images");
        this.files.begin_folder(folder.clone());
        for (at, (line, path)) in images.rows().enumerate() {
            let wanted = for_training[at] == (config.split == Split::Train);
            if !wanted || config.excluded.contains(&folder.join(path)) {
                continue;
            }
            if let (Some(all), Some(texts)) = (&mut this.captions, &texts) {
                let file = texts.join(path).with_extension("txt");
                read_captions(&file, all, || {
                    images.error(line, format!("the captions {} are missing", file.display()))
                })?;
            }
            this.files.push(path.as_ref(), labels[at] as u32);
            this.boxes.push(boxes[at]);
        }
        if this.files.len() == 0 {
            let is_missing = config.split == Split::Test && !for_training.contains(&false);
            return Err(no_images(config.split, is_missing, &split_file, images.file()));
        }
        Ok(this)
    }

    /// Returns the path of an image.
    ///
    /// # Errors
    /// If `index` is not below the length.
    pub fn file(&self, index: usize) -> Result<PathBuf> {
        check_index(&self.header.name, index, self.files.len())?;
        Ok(self.files.path(index))
    }
}

impl ImageCatalog for CubDataset {
    fn header(&self) -> &Header {
        &self.header
    }

    fn count(&self) -> usize {
        self.files.len()
    }

    fn label_of(&self, index: usize) -> u32 {
        self.files.label(index)
    }

    fn path_of(&self, index: usize) -> PathBuf {
        self.files.path(index)
    }

    fn pixels(&self, index: usize) -> Result<RgbImage> {
        let file = self.files.path(index);
        let crop = |width, height| match self.crop {
            0.0 => Ok(None),
            factor => self.boxes[index].around(factor, width, height).map(Some),
        };
        decode_cropped(&read(&file)?, crop).map_err(|reason| DataError::ImageFile { file, reason })
    }

    fn describe(&self, index: usize, epoch: u64) -> CaptionedImage {
        let (label, seed) = (self.files.label(index), self.header.caption_seed);
        let caption = match &self.captions {
            Some(captions) => captions.pick(seed, epoch, index).to_owned(),
            None => captions::varied(&self.header.class_names[label as usize], seed, epoch, index),
        };
        CaptionedImage::new(RgbImage::default(), label, caption)
    }
}

fn check_crop(crop: f64) -> Result<()> {
    if crop.is_finite() && crop >= 0.0 {
        return Ok(());
    }
    let reason = format!("{crop} is not a valid factor; StackGAN uses 0.75, and 0 keeps whole images");
    Err(DataError::config("cub.crop", reason))
}

/// Makes the error of a split without images. `is_missing` holds if no image is for testing.
fn no_images(split: Split, is_missing: bool, split_file: &Path, images: &Path) -> DataError {
    if is_missing {
        let looked_for = "images for testing".to_owned();
        return DataError::NoTestSplit { path: split_file.to_path_buf(), looked_for };
    }
    DataError::file(split_file, format!("none of the images of {} is for {split}", images.display()))
}

/// Returns the folder of the captions; `None` if they are made from class names.
fn caption_folder(captions: &CubCaptions, root: &Path) -> Result<Option<PathBuf>> {
    match captions {
        CubCaptions::Adjacent => find_captions(root).map(Some),
        CubCaptions::Folder(folder) if folder.is_dir() => Ok(Some(folder.clone())),
        CubCaptions::Folder(folder) => Err(DataError::NoFolder(folder.clone())),
        CubCaptions::ClassNames => Ok(None),
    }
}

fn header(config: &CubConfig, classes: &Table) -> Header {
    Header {
        name: format!("cub/{}", config.split),
        class_names: classes.rows().map(|(_, name)| name.to_owned()).collect(),
        caption_seed: config.caption_seed,
        ..Header::default()
    }
}

/// Finds the folder that holds `images.txt`.
fn find_root(path: &Path) -> Result<PathBuf> {
    if !path.is_dir() {
        return Err(DataError::NoFolder(path.to_path_buf()));
    }
    let inside = [path.to_path_buf(), path.join("CUB_200_2011")];
    inside.into_iter().find(|folder| folder.join("images.txt").is_file()).ok_or_else(|| {
        let looked_for = "images.txt (also in CUB_200_2011)".to_owned();
        DataError::Unrecognised { path: path.to_path_buf(), looked_for }
    })
}

/// Returns the indices in `all` of the classes that a file names, one a line.
fn named_classes(file: &Path, all: &[&str]) -> Result<BTreeSet<usize>> {
    let lines = LinesFile::read(file)?;
    let places = lines.lines().map(|(line, name)| {
        let place = all.iter().position(|known| *known == name);
        place.ok_or_else(|| lines.error(line, format!("there is no class `{name}` in classes.txt")))
    });
    places.collect()
}

/// Finds the folder `text_c10` in the dataset's folder or its parent.
fn find_captions(root: &Path) -> Result<PathBuf> {
    let in_parent = root.parent().map(|parent| parent.join("text_c10"));
    let mut places = std::iter::once(root.join("text_c10")).chain(in_parent);
    places.find(|folder| folder.is_dir()).ok_or_else(|| {
        let looked_for =
            "text_c10 with the captions (also in the parent folder); name it, or use captions made from class names"
                .to_owned();
        DataError::Unrecognised { path: root.to_path_buf(), looked_for }
    })
}

/// Adds the captions of one image, one a line.
fn read_captions(file: &Path, all: &mut CaptionLists, missing: impl FnOnce() -> DataError) -> Result<()> {
    if !file.is_file() {
        return Err(missing());
    }
    let lines = LinesFile::read(file)?;
    for (_, line) in lines.lines() {
        // The published captions have replacement characters where letters were lost.
        let words =
            line.split(|c: char| c.is_whitespace() || c == '\u{fffd}').filter(|word| !word.is_empty());
        all.push(&words.collect::<Vec<_>>().join(" "));
    }
    if all.end_sample() == 0 {
        return Err(DataError::file(file, "the file has no caption; add one, or exclude the image"));
    }
    Ok(())
}
