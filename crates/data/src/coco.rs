//! MS-COCO captions (Chen et al. 2015): the official JSON and a folder of images.
//!
//! ```text
//! coco/
//!   annotations/captions_train2017.json
//!   annotations/captions_val2017.json
//!   train2017/000000000009.jpg
//!   val2017/000000000139.jpg
//! ```
//!
//! Any year is accepted, and other datasets in this form: the images of `captions_X.json` are in the folder `X` or
//! `images/X`. An image has about five captions and no class; each epoch uses one of the captions.

use crate::captioned_image::CaptionedImage;
use crate::dataset::{Split, check_index};
use crate::decode::decode_file;
use crate::encoding::parse_json;
use crate::error::{DataError, ParseResult, Result};
use crate::exclusions::Exclusions;
use crate::file_list::FileList;
use crate::image_catalog::{Header, ImageCatalog};
use crate::strings::CaptionLists;
use image::RgbImage;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// The settings of [`CocoCaptions`].
#[derive(Debug, Clone)]
pub struct CocoConfig {
    /// The folder that holds `annotations` and the images.
    pub path: PathBuf,
    /// `captions_train*.json` or `captions_val*.json`.
    pub split: Split,
    /// The seed that selects the caption of each epoch.
    pub caption_seed: u64,
    /// Files to leave out.
    pub excluded: Exclusions,
}

/// One split of MS-COCO captions, in the order of the image ids. It has no class names, and every label is 0.
#[derive(Debug, Clone)]
pub struct CocoCaptions {
    header: Header,
    files: FileList,
    captions: CaptionLists,
}

/// The fields of the JSON that are read.
#[derive(Deserialize)]
struct Annotations {
    images: Vec<Image>,
    annotations: Vec<Caption>,
}

#[derive(Deserialize)]
struct Image {
    #[serde(deserialize_with = "id")]
    id: u64,
    file_name: String,
}

#[derive(Deserialize)]
struct Caption {
    #[serde(deserialize_with = "id")]
    image_id: u64,
    caption: String,
}

/// Reads an id, which some tools write as a text: `9` or `"9"`.
fn id<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<u64, D::Error> {
    match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::Number(number) => number.as_u64(),
        serde_json::Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
    .ok_or_else(|| D::Error::custom("an id is a whole number from 0, or such a number as a text"))
}

impl CocoCaptions {
    /// Reads the captions. Images are read by [`Dataset::get`](crate::Dataset::get).
    ///
    /// # Errors
    /// If a file is missing or has another form, an image has no caption or appears twice, or a caption is empty or
    /// belongs to an unknown image. The error names the file and the id.
    pub fn open(config: &CocoConfig) -> Result<Self> {
        let CocoConfig { path, split, caption_seed, excluded } = config;
        let (file, of_images) = find_annotations(path, *split)?;
        let folders = [path.join(&of_images), path.join("images").join(&of_images)];
        let Some(folder) = folders.iter().find(|folder| folder.is_dir()) else {
            return Err(DataError::NoFolder(folders[0].clone()));
        };
        let bytes = crate::Links::Follow.read(&file).map_err(|error| DataError::io(&file, error))?;
        let Annotations { images, annotations } = parse_json(&bytes)
            .map_err(|error| DataError::file(&file, format!("not in the form of COCO captions: {error}")))?;
        let by_id =
            captions_by_image(&images, &annotations).map_err(|reason| DataError::file(&file, reason))?;
        let header = Header {
            name: format!("coco/{split}"),
            caption_seed: *caption_seed,
            files: vec![file.clone()],
            ..Header::default()
        };
        let mut this = Self { header, files: FileList::default(), captions: CaptionLists::default() };
        this.files.begin_folder(folder.clone());
        for (id, (name, captions)) in &by_id {
            if excluded.contains(&folder.join(name)) {
                continue;
            }
            for caption in captions {
                let words: Vec<&str> = caption.split_whitespace().collect();
                if words.is_empty() {
                    let reason = format!("image {id} ({name}): empty caption");
                    return Err(DataError::file(&file, reason));
                }
                this.captions.push(&words.join(" "));
            }
            if this.captions.end_sample() == 0 {
                let reason = format!("image {id} ({name}) has no caption; add one, or exclude the image");
                return Err(DataError::file(&file, reason));
            }
            this.files.push(name.as_ref(), 0);
        }
        if this.files.len() == 0 {
            return Err(DataError::file(&file, "the file lists no images"));
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

impl ImageCatalog for CocoCaptions {
    fn header(&self) -> &Header {
        &self.header
    }

    fn count(&self) -> usize {
        self.files.len()
    }

    fn label_of(&self, _index: usize) -> u32 {
        0
    }

    fn path_of(&self, index: usize) -> PathBuf {
        self.files.path(index)
    }

    fn pixels(&self, index: usize) -> Result<RgbImage> {
        decode_file(&self.files.path(index))
    }

    fn describe(&self, index: usize, epoch: u64) -> CaptionedImage {
        let caption = self.captions.pick(self.header.caption_seed, epoch, index).to_owned();
        CaptionedImage::new(RgbImage::default(), 0, caption)
    }
}

/// Collects the captions of every image, keyed by its id, with the name of its file.
fn captions_by_image<'a>(
    images: &'a [Image],
    annotations: &'a [Caption],
) -> ParseResult<BTreeMap<u64, (&'a str, Vec<&'a str>)>> {
    let mut by_id: BTreeMap<u64, (&str, Vec<&str>)> = BTreeMap::new();
    for Image { id, file_name } in images {
        let file_name = file_name.trim_start_matches("./");
        if file_name.is_empty()
            || !Path::new(file_name).components().all(|part| matches!(part, Component::Normal(_)))
        {
            return Err(format!("image {id}: {file_name:?} is not a path within the image folder"));
        }
        if by_id.insert(*id, (file_name, Vec::new())).is_some() {
            return Err(format!("two images have the id {id}"));
        }
    }
    for Caption { image_id, caption } in annotations {
        let Some((_, captions)) = by_id.get_mut(image_id) else {
            return Err(format!("a caption belongs to image {image_id}, which `images` does not list"));
        };
        captions.push(caption);
    }
    Ok(by_id)
}

/// Finds the annotation file of a split, and the name of the folder of its images.
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
            let (path, looked_for) = (path.to_path_buf(), format!("{begins}*.json (also in annotations)"));
            match split {
                Split::Train => Err(DataError::Unrecognised { path, looked_for }),
                Split::Test => Err(DataError::NoTestSplit { path, looked_for }),
            }
        }
        _ => {
            let names: Vec<String> = found.iter().map(|(file, _)| file.display().to_string()).collect();
            let reason = format!("several caption files: {}; leave one", names.join(", "));
            Err(DataError::file(path, reason))
        }
    }
}
