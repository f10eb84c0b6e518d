//! Tar archives of images with captions, in the form of webdataset.
//!
//! An archive is a plain tar file in which the members of a sample follow each other and have one name up to the first dot:
//! `000017.jpg`, `000017.txt`, `000017.json`, `000017.cls`. The image is `.jpg`, `.jpeg`, `.png`, `.webp` or `.bmp`; the
//! caption is the text of `.txt`, or else the field `caption` of `.json`; the class is the whole number in `.cls`. Members
//! with other endings are passed over.
//!
//! # Why an index
//!
//! Where the usual reader streams archives through a shuffle buffer, each rank its own archives, here every archive is *indexed*: where
//! in the file each sample's members lie. Then a sample is two reads at known places, a sample has a number, and all that is
//! built on numbers holds for archives as for anything else: one seed gives one order whatever the number of ranks, workers and
//! threads; a resumed run goes on at the very sample without reading the ones before it, on another number of ranks too;
//! epochs have an exact length; no rank runs out before the others; a subset is a subset.
//!
//! What that costs: an index is made by reading the 512-byte header of every member and seeking over its contents, several
//! archives at a time. It is kept in memory, 48 bytes a sample, or, with a folder for it
//! ([`ArchivesConfig::index`]), in a small file for each archive: then it is made once, and later runs and other ranks read 48
//! bytes of each archive's index when they start and the rest of one when they come to it.
//!
//! Reading stays nearly sequential: an epoch visits archives in a random order and shuffles samples only within a window of
//! a few archives ([`Order::Windows`](crate::sampler::Order)), so an archive is read from end to end once in an epoch, within a
//! short time, by all ranks together, each of its samples by one rank.

mod cache;
mod index;
mod pattern;

use crate::captioned_image::CaptionedImage;
use crate::captions;
use crate::dataset::{Dataset, Labelled, check_index};
use crate::decode::decode;
use crate::error::{Checked, DataError, Result};
use crate::lines::LinesFile;
use cache::Kept;
use index::{ArchiveIndex, Caption, Entry, Span};
pub use pattern::expand;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How many archives stay open, and how many of their indices in memory where they are in files.
const KEPT: usize = 32;

/// What [`ArchivesDataset`] is read from.
#[derive(Debug, Clone)]
pub struct ArchivesConfig {
    /// The dataset's name, for messages.
    pub name: String,
    /// The archives, in order: those that [`expand`] finds.
    pub archives: Vec<PathBuf>,
    /// A folder for the archives' indices; `None` keeps them in memory. Ranks and runs may share one.
    pub index: Option<PathBuf>,
    /// The names of the classes, one a line; `None` uses `classes.txt` beside the first archive where it is, or else numbers.
    pub classes: Option<PathBuf>,
    /// Fixes the wording of captions that are made from class names.
    pub caption_seed: u64,
}

/// Images with captions in tar archives, in the order of the archives.
#[derive(Debug)]
pub struct ArchivesDataset {
    name: String,
    archives: Vec<Archive>,
    /// The first sample of each archive, and how many samples there are.
    first: Vec<usize>,
    class_names: Vec<String>,
    caption_seed: u64,
    index_folder: Option<PathBuf>,
    open: Kept<File>,
    indices: Kept<ArchiveIndex>,
}

/// An archive, with its index where that is kept in memory.
#[derive(Debug)]
struct Archive {
    path: PathBuf,
    index: Option<Arc<ArchiveIndex>>,
}

impl ArchivesDataset {
    /// Reads the indices of the archives, and makes those that are missing or older than their archives.
    ///
    /// # Errors
    /// If there is no archive, one cannot be read, is cut, compressed, or has a sample without an image or without a caption, or
    /// a class has no name; the error names the archive and the sample.
    pub fn open(config: &ArchivesConfig) -> Result<Self> {
        if config.archives.is_empty() {
            return Err(DataError::config("shards", "there is no archive"));
        }
        if let Some(folder) = &config.index {
            std::fs::create_dir_all(folder).map_err(|error| DataError::io(folder, error))?;
        }
        let summaries = index::all(&config.archives, config.index.as_deref())?;
        let (mut archives, mut first, mut classes) = (Vec::new(), vec![0], 0);
        for (path, summary) in config.archives.iter().zip(summaries) {
            first.push(first[first.len() - 1] + summary.samples);
            classes = classes.max(summary.classes);
            archives.push(Archive { path: path.clone(), index: summary.index.map(Arc::new) });
        }
        Ok(Self {
            name: config.name.clone(),
            class_names: class_names(config, classes)?,
            archives,
            first,
            caption_seed: config.caption_seed,
            index_folder: config.index.clone(),
            open: Kept::new(KEPT),
            indices: Kept::new(KEPT),
        })
    }

    /// The archive of a sample, and the sample's name in it, which its members have up to the first dot.
    ///
    /// # Errors
    /// If `index` is not below the length, or the archive cannot be read.
    pub fn source(&self, index: usize) -> Result<(&Path, String)> {
        let (archive, entry) = self.entry(index)?;
        let file = self.file(archive)?;
        Ok((&self.archives[archive].path, index::key_at(&file, &self.archives[archive].path, entry.image)?))
    }

    /// The archive of a sample, and where its members are.
    fn entry(&self, index: usize) -> Result<(usize, Entry)> {
        check_index(&self.name, index, self.len())?;
        let archive = self.first.partition_point(|first| *first <= index) - 1;
        let of_archive = match &self.archives[archive].index {
            Some(index) => Arc::clone(index),
            None => self.indices.get(archive, || {
                index::read_or_make(&self.archives[archive].path, self.index_folder.as_deref())
            })?,
        };
        let within = index - self.first[archive];
        let entry = of_archive.entries.get(within).copied().ok_or_else(|| {
            let reason = format!("it had sample {within} when it was indexed and does not any more");
            DataError::file(&self.archives[archive].path, reason)
        })?;
        Ok((archive, entry))
    }

    fn file(&self, archive: usize) -> Result<Arc<File>> {
        let path = &self.archives[archive].path;
        self.open.get(archive, || File::open(path).map_err(|error| DataError::io(path, error)))
    }

    fn caption(&self, bytes: &[u8], of: Caption) -> Checked<String> {
        let text = match of {
            Caption::Text => std::str::from_utf8(bytes)
                .map_err(|error| format!(".txt is not UTF-8: {error}"))?
                .trim_start_matches('\u{feff}')
                .to_owned(),
            Caption::Json => {
                let json: serde_json::Value =
                    serde_json::from_slice(bytes).map_err(|error| format!(".json: {error}"))?;
                let caption = json.get("caption").and_then(serde_json::Value::as_str);
                caption.ok_or("its .json has no text `caption`, and there is no .txt")?.to_owned()
            }
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        if words.is_empty() { Err("its caption is empty".to_owned()) } else { Ok(words.join(" ")) }
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
        let (archive, entry) = self.entry(index)?;
        let file = self.file(archive)?;
        let path = &self.archives[archive].path;
        let of_sample = |reason: String| {
            let key = index::key_at(&file, path, entry.image);
            let key = key.unwrap_or_else(|_| format!("at byte {}", entry.image.offset));
            DataError::ArchiveSample { archive: path.clone(), key, reason }
        };
        let read = |span: Span| index::read(&file, path, span);
        let image = decode(&read(entry.image)?).map_err(&of_sample)?;
        let caption = match entry.caption {
            Some((span, of)) => self.caption(&read(span)?, of).map_err(&of_sample)?,
            // The index has a caption or a class for every sample.
            None => {
                let class = entry.label.and_then(|label| self.class_names.get(label as usize));
                let class = class.ok_or_else(|| of_sample("it has neither caption nor class".to_owned()))?;
                captions::varied(class, self.caption_seed, epoch, index)
            }
        };
        Ok(CaptionedImage::new(image, entry.label.unwrap_or(0), caption))
    }

    fn chunks(&self) -> Option<Vec<usize>> {
        Some(self.first.windows(2).map(|pair| pair[1] - pair[0]).collect())
    }
}

impl Labelled for ArchivesDataset {
    /// None where samples have no `.cls`.
    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    /// The number in the sample's `.cls`; 0 where it has none.
    fn label(&self, index: usize) -> Result<u32> {
        Ok(self.entry(index)?.1.label.unwrap_or(0))
    }
}

/// How many classes go without names: more than any data set of pictures has, and fewer than fill the memory. What has a larger
/// number is a name's, a time's or a file's by mistake.
const MOST_NAMELESS: usize = 1 << 20;

/// The names of so many classes.
fn class_names(config: &ArchivesConfig, classes: usize) -> Result<Vec<String>> {
    let beside = config.archives[0].with_file_name("classes.txt");
    let file = match &config.classes {
        Some(file) => file,
        None if beside.is_file() && classes > 0 => &beside,
        None if classes > MOST_NAMELESS => {
            let class = classes - 1;
            let reason =
                format!("a sample is of class {class}; from {MOST_NAMELESS} on classes need names here");
            return Err(DataError::ClassNames { path: beside, reason });
        }
        None => return Ok((0..classes).map(|class| class.to_string()).collect()),
    };
    let lines = LinesFile::read(file)?;
    let names: Vec<String> = lines.lines().map(|(_, name)| name.to_owned()).collect();
    if names.len() < classes {
        let reason = format!("{} names, but a sample is of class {}", names.len(), classes - 1);
        return Err(DataError::ClassNames { path: file.clone(), reason });
    }
    Ok(names)
}
