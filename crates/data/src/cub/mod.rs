//! CUB-200-2011, birds of 200 species (Wah et al. 2011), as it is published, with the captions of Reed et al. 2016.
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
//! Each line of a table begins with an image's id, and tables may have any order; samples have that of `images.txt`.
//! Every image must have its line in every table and a caption, and no table may speak of an image that there is not.

mod crop;
mod tables;

use crate::captioned_image::CaptionedImage;
use crate::captions;
use crate::dataset::{Dataset, Labelled, Split, check_index};
use crate::decode::{decode_region, read};
use crate::error::{DataError, Result};
use crate::exclusions::Exclusions;
use crate::file_list::FileList;
use crate::lines::LinesFile;
use crate::strings::CaptionLists;
use crop::BoundingBox;
use image::RgbImage;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tables::Table;

/// Where captions come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CubCaptions {
    /// The folder `text_c10` in the data set's folder, or in the one that holds it.
    #[default]
    Adjacent,
    /// A folder of this form elsewhere.
    Folder(PathBuf),
    /// Made from the names of the species.
    ClassNames,
}

/// What [`CubDataset`] is read from.
#[derive(Debug, Clone)]
pub struct CubConfig {
    /// The folder `CUB_200_2011`, or the one that holds it.
    pub path: PathBuf,
    /// Which images, by `train_test_split.txt` or by `test_classes`.
    pub split: Split,
    /// A file with the names of the species that are for testing, one a line, all others being for training: StackGAN's split of
    /// 150 and 50 species, Reed et al.'s `testclasses.txt`. Nothing = `train_test_split.txt` decides for each image.
    pub test_classes: Option<PathBuf>,
    /// Where captions come from.
    pub captions: CubCaptions,
    /// The image is cut to a square around the bird whose half side is this times the longer side of its box, as far as
    /// the image reaches; 0 keeps the whole image. StackGAN's is 0.75.
    pub crop: f64,
    /// Fixes which caption an epoch takes.
    pub caption_seed: u64,
    /// Files to pass over.
    pub excluded: Exclusions,
}

impl CubConfig {
    /// One split as StackGAN takes it, with the captions beside it.
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

/// One split of CUB-200-2011: birds with their species and ten captions each, of which an epoch takes one.
#[derive(Debug, Clone)]
pub struct CubDataset {
    name: String,
    class_names: Vec<String>,
    files: FileList,
    boxes: Vec<BoundingBox>,
    /// `None` where captions are made from class names.
    captions: Option<CaptionLists>,
    crop: f64,
    caption_seed: u64,
}

impl CubDataset {
    /// Reads the tables and the captions; images are read when they are asked for.
    ///
    /// # Errors
    /// If a file is missing, or a line is not what it should be; the error names both.
    pub fn open(config: &CubConfig) -> Result<Self> {
        if !(config.crop.is_finite() && config.crop >= 0.0) {
            let reason = format!("{} is no factor; 0.75 is StackGAN's, 0 keeps whole images", config.crop);
            return Err(DataError::config("cub.crop", reason));
        }
        let root = find_root(&config.path)?;
        let texts = match &config.captions {
            CubCaptions::Adjacent => Some(find_captions(&root)?),
            CubCaptions::Folder(folder) if folder.is_dir() => Some(folder.clone()),
            CubCaptions::Folder(folder) => return Err(DataError::NoFolder(folder.clone())),
            CubCaptions::ClassNames => None,
        };
        let classes = Table::read(&root.join("classes.txt"), tables::name)?;
        let images = Table::read(&root.join("images.txt"), tables::path)?;
        let labels = images.join(&root.join("image_class_labels.txt"), |fields| {
            let id = tables::id(fields)?;
            let no_class = || format!("class {id} is not in classes.txt");
            classes.place(id).ok_or_else(no_class)
        })?;
        let decides = config.test_classes.clone().unwrap_or_else(|| root.join("train_test_split.txt"));
        let for_training = match &config.test_classes {
            Some(file) => {
                let names: Vec<&str> = classes.rows().map(|(_, name)| name).collect();
                let held_out = named_classes(file, &names)?;
                labels.iter().map(|label| !held_out.contains(label)).collect()
            }
            None => images.join(&decides, tables::flag)?,
        };
        let boxes = images.join(&root.join("bounding_boxes.txt"), BoundingBox::parse)?;

        let mut this = Self {
            name: format!("cub/{}", config.split),
            class_names: classes.rows().map(|(_, name)| name.to_owned()).collect(),
            files: FileList::default(),
            boxes: Vec::new(),
            captions: texts.is_some().then(CaptionLists::default),
            crop: config.crop,
            caption_seed: config.caption_seed,
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
                    images.error(line, format!("its captions {} are missing", file.display()))
                })?;
            }
            this.files.push(path.as_ref(), labels[at] as u32);
            this.boxes.push(boxes[at]);
        }
        if this.files.len() == 0 {
            let reason = format!("none of the images of {} is for {}", images.file().display(), config.split);
            return Err(DataError::file(&decides, reason));
        }
        Ok(this)
    }

    /// The file of a sample.
    ///
    /// # Errors
    /// If `index` is not below the length.
    pub fn file(&self, index: usize) -> Result<PathBuf> {
        check_index(&self.name, index, self.files.len())?;
        Ok(self.files.path(index))
    }
}

impl Dataset for CubDataset {
    type Item = CaptionedImage;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        let file = self.file(index)?;
        let region = |width, height| match self.crop {
            0.0 => Ok(None),
            factor => self.boxes[index].around(factor, width, height).map(Some),
        };
        let image = decode_region(&read(&file)?, region)
            .map_err(|reason| DataError::ImageFile { file: file.clone(), reason })?;
        Ok(CaptionedImage { image, ..self.without_pixels(index, epoch)? })
    }

    fn without_pixels(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        let label = self.label(index)?;
        let caption = match &self.captions {
            Some(captions) => captions.draw(self.caption_seed, epoch, index).to_owned(),
            None => captions::varied(&self.class_names[label as usize], self.caption_seed, epoch, index),
        };
        Ok(CaptionedImage::new(RgbImage::default(), label, caption))
    }

    fn has_fixed_pixels(&self) -> bool {
        true
    }
}

impl Labelled for CubDataset {
    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn label(&self, index: usize) -> Result<u32> {
        check_index(&self.name, index, self.files.len())?;
        Ok(self.files.label(index))
    }
}

/// The folder with `images.txt`.
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

/// The places of the classes that a file names, one a line, among all.
fn named_classes(file: &Path, all: &[&str]) -> Result<BTreeSet<usize>> {
    let lines = LinesFile::read(file)?;
    let places = lines.lines().map(|(line, name)| {
        let place = all.iter().position(|known| *known == name);
        place.ok_or_else(|| lines.error(line, format!("there is no class `{name}` in classes.txt")))
    });
    places.collect()
}

/// The folder `text_c10` in the data set's folder or beside it.
fn find_captions(root: &Path) -> Result<PathBuf> {
    let beside = root.parent().map(|parent| parent.join("text_c10"));
    let mut places = std::iter::once(root.join("text_c10")).chain(beside);
    places.find(|folder| folder.is_dir()).ok_or_else(|| {
        let looked_for =
            "text_c10 with the captions, in this folder or beside it; name it where it lies elsewhere, or \
                          have captions made from class names"
                .to_owned();
        DataError::Unrecognised { path: root.to_path_buf(), looked_for }
    })
}

/// Adds the captions of one image, a line each.
fn read_captions(file: &Path, all: &mut CaptionLists, missing: impl FnOnce() -> DataError) -> Result<()> {
    if !file.is_file() {
        return Err(missing());
    }
    let lines = LinesFile::read(file)?;
    for (_, line) in lines.lines() {
        // Where letters were lost before the captions were published there are marks of replacement.
        let words =
            line.split(|c: char| c.is_whitespace() || c == '\u{fffd}').filter(|word| !word.is_empty());
        all.push(&words.collect::<Vec<_>>().join(" "));
    }
    if all.end_sample() == 0 {
        return Err(DataError::file(file, "there is no caption in it; write one, or exclude the image"));
    }
    Ok(())
}
