//! MS-COCO's captions (Chen et al. 2015): the official JSON with a folder of images.
//!
//! ```text
//! coco/
//!   annotations/captions_train2017.json
//!   annotations/captions_val2017.json
//!   train2017/000000000009.jpg
//!   val2017/000000000139.jpg
//! ```
//!
//! Of any year, and also `captions_*.json` of other data sets in this form: the images of `captions_X.json` are in the
//! folder `X`, or in `images/X`. Images have about five captions, of which an epoch takes one, and no classes.

use crate::captioned_image::CaptionedImage;
use crate::dataset::{Dataset, Labelled, Split, check_index};
use crate::decode::decode_file;
use crate::error::{DataError, Result};
use crate::exclusions::Exclusions;
use crate::file_list::FileList;
use crate::strings::CaptionLists;
use image::RgbImage;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Component, Path, PathBuf};

/// What [`CocoCaptions`] is read from.
#[derive(Debug, Clone)]
pub struct CocoConfig {
    /// The folder with `annotations` and the images.
    pub path: PathBuf,
    /// `captions_train*.json` or `captions_val*.json`.
    pub split: Split,
    /// Fixes which caption an epoch takes.
    pub caption_seed: u64,
    /// Files to pass over.
    pub excluded: Exclusions,
}

/// One split of MS-COCO's captions, in the order of its images' ids.
#[derive(Debug, Clone)]
pub struct CocoCaptions {
    name: String,
    files: FileList,
    captions: CaptionLists,
    caption_seed: u64,
}

/// The part of the JSON that is needed.
#[derive(Deserialize)]
struct Annotations {
    images: Vec<Image>,
    annotations: Vec<Caption>,
}

#[derive(Deserialize)]
struct Image {
    id: u64,
    file_name: String,
}

#[derive(Deserialize)]
struct Caption {
    image_id: u64,
    caption: String,
}

impl CocoCaptions {
    /// Reads the captions; images are read when they are asked for.
    ///
    /// # Errors
    /// If a file is missing or is not in this form, an image has no caption or is there twice, or a caption is empty or of an
    /// image that there is not; the error names the file and the id.
    pub fn open(config: &CocoConfig) -> Result<Self> {
        let CocoConfig { path, split, caption_seed, excluded } = config;
        let (file, of_images) = find_annotations(path, *split)?;
        let folders = [path.join(&of_images), path.join("images").join(&of_images)];
        let Some(folder) = folders.iter().find(|folder| folder.is_dir()) else {
            return Err(DataError::NoFolder(folders[0].clone()));
        };
        let reader = BufReader::new(File::open(&file).map_err(|error| DataError::io(&file, error))?);
        let Annotations { images, annotations } = serde_json::from_reader(reader)
            .map_err(|error| DataError::file(&file, format!("not COCO's captions: {error}")))?;

        let mut by_id: BTreeMap<u64, (&str, Vec<&str>)> = BTreeMap::new();
        for Image { id, file_name } in &images {
            if !Path::new(file_name).components().all(|part| matches!(part, Component::Normal(_))) {
                let reason = format!("image {id}: {file_name:?} is no path within the folder of images");
                return Err(DataError::file(&file, reason));
            }
            if by_id.insert(*id, (file_name, Vec::new())).is_some() {
                return Err(DataError::file(&file, format!("two images have the id {id}")));
            }
        }
        for Caption { image_id, caption } in &annotations {
            let Some((_, captions)) = by_id.get_mut(image_id) else {
                let reason = format!("a caption is of image {image_id}, which is not among `images`");
                return Err(DataError::file(&file, reason));
            };
            captions.push(caption);
        }

        let mut this = Self {
            name: format!("coco/{split}"),
            files: FileList::default(),
            captions: CaptionLists::default(),
            caption_seed: *caption_seed,
        };
        this.files.begin_folder(folder.clone());
        for (id, (name, captions)) in &by_id {
            if excluded.contains(&folder.join(name)) {
                continue;
            }
            for caption in captions {
                let words: Vec<&str> = caption.split_whitespace().collect();
                if words.is_empty() {
                    let reason = format!("image {id} ({name}): a caption is empty");
                    return Err(DataError::file(&file, reason));
                }
                this.captions.push(&words.join(" "));
            }
            if this.captions.end_sample() == 0 {
                let reason = format!("image {id} ({name}) has no caption; give it one, or exclude it");
                return Err(DataError::file(&file, reason));
            }
            this.files.push(name.as_ref(), 0);
        }
        if this.files.len() == 0 {
            return Err(DataError::file(&file, "there are no images in it"));
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

impl Dataset for CocoCaptions {
    type Item = CaptionedImage;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        let image = decode_file(&self.file(index)?)?;
        Ok(CaptionedImage { image, ..self.without_pixels(index, epoch)? })
    }

    fn without_pixels(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        check_index(&self.name, index, self.files.len())?;
        let caption = self.captions.draw(self.caption_seed, epoch, index).to_owned();
        Ok(CaptionedImage::new(RgbImage::default(), 0, caption))
    }

    fn has_fixed_pixels(&self) -> bool {
        true
    }
}

impl Labelled for CocoCaptions {
    /// None: images have captions and no classes.
    fn class_names(&self) -> &[String] {
        &[]
    }

    /// Always 0.
    fn label(&self, index: usize) -> Result<u32> {
        check_index(&self.name, index, self.files.len())?;
        Ok(0)
    }
}

/// The file of a split's captions, and the name of the folder of its images.
fn find_annotations(path: &Path, split: Split) -> Result<(PathBuf, String)> {
    if !path.is_dir() {
        return Err(DataError::NoFolder(path.to_path_buf()));
    }
    let begins = match split {
        Split::Train => "captions_train",
        Split::Test => "captions_val",
    };
    let mut found = Vec::new();
    for folder in [path.join("annotations"), path.to_path_buf()] {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let file = entry.map_err(|error| DataError::io(&folder, error))?.path();
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if let Some(rest) = name.strip_suffix(".json")
                && rest.starts_with(begins)
            {
                let of_images = rest["captions_".len()..].to_owned();
                found.push((file, of_images));
            }
        }
    }
    found.sort();
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => {
            let looked_for = format!("{begins}*.json (also in annotations)");
            Err(DataError::Unrecognised { path: path.to_path_buf(), looked_for })
        }
        _ => {
            let names: Vec<String> = found.iter().map(|(file, _)| file.display().to_string()).collect();
            let reason = format!("several files of captions: {}; leave one", names.join(", "));
            Err(DataError::file(path, reason))
        }
    }
}
