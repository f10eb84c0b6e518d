//! Tar archives of captioned images, in the form of webdataset, which calls them shards.
//!
//! An archive is a plain tar file. The members of a sample are adjacent and share their name up to the first dot:
//! `000017.jpg`, `000017.txt`, `000017.json`, `000017.cls`. The image is `.jpg`, `.jpeg`, `.png`, `.webp` or `.bmp`. The
//! caption is the text of `.txt`, or the field `caption` of `.json`. The class is the whole number in `.cls`. Other
//! members are ignored.
//!
//! # Why an index
//!
//! The usual reader streams archives through a shuffle buffer, with different archives for each rank. Here each archive
//! is *indexed*: the index has the position of each sample's members. A sample is then two reads at known positions and
//! has a number, so archives have all properties of other datasets. One seed gives one order with any number of ranks
//! and threads. A resumed run continues at the exact sample, also on a different number of ranks. Epochs have an exact
//! length, no rank runs out early, and subsets work.
//!
//! The cost: the index is made by reading the 512-byte header of each member and seeking over its contents, several
//! archives at a time. It is kept in memory at 48 bytes a sample. With a folder for it ([`ArchivesConfig::index`]), it is
//! a small file for each archive, made once. Later runs and other ranks read 48 bytes of each index at the start, and the
//! rest when they reach the archive.
//!
//! Reading stays nearly sequential: an epoch visits archives in random order and shuffles samples only within a window of
//! a few archives ([`Order::Windows`](crate::sampler::Order)). So all ranks together read an archive once in an epoch,
//! from end to end within a short time, and each of its samples is read by one rank.

mod index;
mod lru_cache;
mod pattern;

use crate::captioned_image::CaptionedImage;
use crate::captions;
use crate::dataset::{Dataset, LabelledDataset, check_index, sample_beyond};
use crate::decode::decode;
use crate::encoding::{parse_json, without_mark};
use crate::error::{DataError, ParseResult, Result};
use crate::exclusions::Exclusions;
use crate::lines::LinesFile;
use image::RgbImage;
use index::{ArchiveIndex, CaptionSource, Entry, Span, Summary};
use lru_cache::LruCache;
pub use pattern::expand;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The number of archives that stay open, and of stored indices that stay in memory.
const CACHED: usize = 32;

/// The settings of [`ArchivesDataset`].
#[derive(Debug, Clone)]
pub struct ArchivesConfig {
    /// The name of the dataset, for messages.
    pub name: String,
    /// The archives in order, as [`expand`] finds them.
    pub archives: Vec<PathBuf>,
    /// A folder for the stored indices, which ranks and runs may share; `None` keeps them in memory.
    pub index: Option<PathBuf>,
    /// A file of class names, one a line. With `None`, `classes.txt` in the folder of the first archive is used;
    /// without it, classes are named by their numbers.
    pub classes: Option<PathBuf>,
    /// The seed of the captions that are made from class names.
    pub caption_seed: u64,
}

/// Captioned images in tar archives, in the order of the archives.
#[derive(Debug)]
pub struct ArchivesDataset {
    name: String,
    archives: Vec<Archive>,
    paths: Vec<PathBuf>,
    /// The first sample of each archive, and the number of samples.
    first: Vec<usize>,
    class_names: Vec<String>,
    /// The file of the class names, if there is one.
    classes_from: Option<PathBuf>,
    caption_seed: u64,
    index_folder: Option<PathBuf>,
    open: LruCache<File>,
    indices: LruCache<ArchiveIndex>,
}

/// An archive, and its index if that is kept in memory.
#[derive(Debug)]
struct Archive {
    path: PathBuf,
    index: Option<Arc<ArchiveIndex>>,
}

impl ArchivesDataset {
    /// Reads the indices of the archives, and makes those that are missing or out of date.
    ///
    /// # Errors
    /// If there is no archive; one is unreadable, truncated, compressed, or has a sample without an image or a caption;
    /// or a class has no name. The error names the archive and the sample.
    pub fn open(config: &ArchivesConfig) -> Result<Self> {
        if config.archives.is_empty() {
            return Err(DataError::config("shards", "no archives"));
        }
        if let Some(folder) = &config.index {
            std::fs::create_dir_all(folder).map_err(|error| DataError::io(folder, error))?;
        }
        let summaries = index::all(&config.archives, config.index.as_deref())?;
        check_classes(&config.archives, &summaries)?;
        let (mut archives, mut first, mut classes) = (Vec::new(), vec![0], 0);
        for (path, summary) in config.archives.iter().zip(summaries) {
            first.push(first[first.len() - 1] + summary.samples);
            classes = classes.max(summary.classes);
            archives.push(Archive { path: path.clone(), index: summary.index.map(Arc::new) });
        }
        let mut this = Self {
            name: config.name.clone(),
            class_names: Vec::new(),
            classes_from: None,
            archives,
            paths: config.archives.clone(),
            first,
            caption_seed: config.caption_seed,
            index_folder: config.index.clone(),
            open: LruCache::new(CACHED),
            indices: LruCache::new(CACHED),
        };
        (this.class_names, this.classes_from) = class_names(config, classes)?;
        if let Some(path) = this.classes_from.clone().filter(|_| this.class_names.len() < classes) {
            let names = this.class_names.len();
            let mut reason = format!("{names} names, but a sample has class {}", classes - 1);
            if let Some(sample) = sample_beyond(&this, names)? {
                reason += &format!("; the first without a name is {}", sample.display());
            }
            return Err(DataError::ClassNames { path, reason });
        }
        Ok(this)
    }

    /// Returns the archive of a sample, and the sample's key: the name of its members up to the first dot.
    ///
    /// # Errors
    /// If `index` is not below the length, or the archive cannot be read.
    pub fn source(&self, index: usize) -> Result<(&Path, String)> {
        let (archive, entry) = self.entry(index)?;
        let file = self.file(archive)?;
        Ok((&self.archives[archive].path, index::key_at(&file, &self.archives[archive].path, entry.image)?))
    }

    /// Returns the samples that a list names by their archive and key, `s-000.tar/000017`, or by their key alone.
    ///
    /// # Errors
    /// If an archive cannot be read.
    pub fn excluded(&self, list: &Exclusions) -> Result<Vec<usize>> {
        let mut excluded = Vec::new();
        for (number, archive) in self.archives.iter().enumerate() {
            // Keys are in the archive, so only archives that the list names are read.
            if !list.concern(&archive.path) {
                continue;
            }
            for index in self.first[number]..self.first[number + 1] {
                if list.contains(&self.sample_path(index)?) {
                    excluded.push(index);
                }
            }
        }
        Ok(excluded)
    }

    /// Returns the archive of a sample and its index entry.
    fn entry(&self, index: usize) -> Result<(usize, Entry)> {
        check_index(&self.name, index, self.len())?;
        let archive = self.first.partition_point(|first| *first <= index) - 1;
        let index_of_archive = match &self.archives[archive].index {
            Some(index) => Arc::clone(index),
            None => self.indices.get(archive, || {
                index::read_or_make(&self.archives[archive].path, self.index_folder.as_deref())
            })?,
        };
        let within = index - self.first[archive];
        let entry = index_of_archive.entries.get(within).copied().ok_or_else(|| {
            let reason = format!("the archive has lost sample {within} since it was indexed");
            DataError::file(&self.archives[archive].path, reason)
        })?;
        Ok((archive, entry))
    }

    fn file(&self, archive: usize) -> Result<Arc<File>> {
        let path = &self.archives[archive].path;
        self.open.get(archive, || crate::Links::Follow.open(path).map_err(|error| DataError::io(path, error)))
    }
}

impl Dataset for ArchivesDataset {
    type Item = CaptionedImage;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.first[self.archives.len()]
    }

    fn get(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        self.read(index, epoch, true)
    }

    fn without_pixels(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        self.read(index, epoch, false)
    }

    fn chunks(&self) -> Option<Vec<usize>> {
        Some(self.first.windows(2).map(|pair| pair[1] - pair[0]).collect())
    }

    fn sample_path(&self, index: usize) -> Result<PathBuf> {
        let (archive, key) = self.source(index)?;
        Ok(archive.join(key))
    }
}

impl ArchivesDataset {
    /// Reads a sample, with or without decoding its image.
    fn read(&self, index: usize, epoch: u64, with_pixels: bool) -> Result<CaptionedImage> {
        let (archive, entry) = self.entry(index)?;
        let file = self.file(archive)?;
        let path = &self.archives[archive].path;
        let of_sample = |reason: String| {
            let key = index::key_at(&file, path, entry.image);
            let key = key.unwrap_or_else(|_| format!("at byte {}", entry.image.offset));
            DataError::ArchiveSample { archive: path.clone(), key, reason }
        };
        let read = |span: Span| index::read(&file, path, span);
        let image = match with_pixels {
            true => decode(&read(entry.image)?).map_err(&of_sample)?,
            false => RgbImage::default(),
        };
        let caption = match entry.caption {
            Some((span, source)) => parse_caption(&read(span)?, source).map_err(&of_sample)?,
            // The index has a caption or a class for each sample.
            None => {
                let class = entry.label.and_then(|label| self.class_names.get(label as usize));
                let class =
                    class.ok_or_else(|| of_sample("it has neither a caption nor a class".to_owned()))?;
                captions::varied(class, self.caption_seed, epoch, index)
            }
        };
        Ok(CaptionedImage::new(image, entry.label.unwrap_or(0), caption))
    }
}

impl LabelledDataset for ArchivesDataset {
    /// Empty if no sample has a `.cls`.
    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    /// The number in the sample's `.cls`, or 0.
    fn label(&self, index: usize) -> Result<u32> {
        Ok(self.entry(index)?.1.label.unwrap_or(0))
    }

    fn files(&self) -> &[PathBuf] {
        &self.paths
    }

    fn classes_from(&self) -> Option<&Path> {
        self.classes_from.as_deref()
    }
}

/// Parses the caption of a sample from the bytes of its member.
fn parse_caption(bytes: &[u8], source: CaptionSource) -> ParseResult<String> {
    let text = match source {
        CaptionSource::Text => {
            let bytes = without_mark(bytes).map_err(|error| format!(".txt: {error}"))?;
            std::str::from_utf8(bytes).map_err(|error| format!(".txt is not UTF-8: {error}"))?.to_owned()
        }
        CaptionSource::Json => {
            let json: serde_json::Value = parse_json(bytes).map_err(|error| format!(".json: {error}"))?;
            let caption = json.get("caption").and_then(serde_json::Value::as_str);
            caption.ok_or("its .json has no text `caption`, and it has no .txt")?.to_owned()
        }
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.is_empty() { Err("its caption is empty".to_owned()) } else { Ok(words.join(" ")) }
}

/// The number of classes that need no names: more than any image dataset has. A larger number is a mistake, such as a
/// name, a time or a file number.
const MAX_UNNAMED: usize = 1 << 20;

/// Checks that all archives have classes, or none.
fn check_classes(archives: &[PathBuf], summaries: &[Summary]) -> Result<()> {
    let mut with_classes = archives.iter().zip(summaries).filter(|(_, summary)| summary.classes > 0);
    let mut without = archives.iter().zip(summaries).filter(|(_, summary)| summary.classes == 0);
    match (with_classes.next(), without.next()) {
        (Some((with, _)), Some((without, _))) => {
            let reason = format!("its samples have no class, .cls, but those of {} have", with.display());
            Err(DataError::file(without, reason))
        }
        _ => Ok(()),
    }
}

/// Returns the names of the classes, and the file that has them. The file may have too few.
fn class_names(config: &ArchivesConfig, classes: usize) -> Result<(Vec<String>, Option<PathBuf>)> {
    let default = config.archives[0].with_file_name("classes.txt");
    let file = match &config.classes {
        Some(file) => file,
        None if default.is_file() && classes > 0 => &default,
        None if classes > MAX_UNNAMED => {
            let class = classes - 1;
            let reason =
                format!("a sample has class {class}; classes from {MAX_UNNAMED} on need names in this file");
            return Err(DataError::ClassNames { path: default, reason });
        }
        None => return Ok(((0..classes).map(|class| class.to_string()).collect(), None)),
    };
    let lines = LinesFile::read(file)?;
    Ok((lines.lines().map(|(_, name)| name.to_owned()).collect(), Some(file.clone())))
}
