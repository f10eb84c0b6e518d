//! ImageNet's classification set (ILSVRC 2012): class folders named by synsets.
//!
//! ```text
//! imagenet/                                   as torchvision expects it
//!   train/n01440764/n01440764_10026.JPEG
//!   val/n01440764/ILSVRC2012_val_00000293.JPEG
//!   LOC_synset_mapping.txt                    n01440764 tench, Tinca tinca       (or words.txt)
//!
//! imagenet/                                   as on Kaggle
//!   ILSVRC/Data/CLS-LOC/train/n01440764/n01440764_10026.JPEG
//!   ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000293.JPEG
//!   LOC_synset_mapping.txt
//!   LOC_val_solution.csv                      ImageId,PredictionString
//! ```
//!
//! Classes have the order of their synsets. Their names are the first words of the mapping, or the synsets without a
//! mapping. Captions are made from the names.

use crate::dataset::Split;
use crate::error::{DataError, Result};
use crate::exclusions::Exclusions;
use crate::folder_listing::{FolderListing, class_folders};
use crate::image_catalog::Header;
use crate::image_folder::{ImageFolder, ListedFiles, list_classes};
use crate::lines::{LinesFile, csv_fields};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The files that name synsets, and the separator between a synset and its names.
const MAPPINGS: [(&str, char); 2] = [("LOC_synset_mapping.txt", ' '), ("words.txt", '\t')];

/// Lists one split.
///
/// # Errors
/// If a folder or a file is missing, there are no classes or no images, or a line is malformed; the error names the
/// file and the line.
pub fn open_imagenet(
    path: impl AsRef<Path>,
    split: Split,
    caption_seed: u64,
    excluded: &Exclusions,
) -> Result<ImageFolder> {
    let path = path.as_ref();
    if !path.is_dir() {
        return Err(DataError::NoFolder(path.to_path_buf()));
    }
    let places = [path.to_path_buf(), path.join("ILSVRC/Data/CLS-LOC")];
    let Some(root) = places.iter().find(|folder| folder.join("train").is_dir()) else {
        let looked_for = "train/<synset>/*.JPEG (also in ILSVRC/Data/CLS-LOC)".to_owned();
        return Err(DataError::Unrecognised { path: path.to_path_buf(), looked_for });
    };
    let train = root.join("train");
    let synsets = class_folders(&train)?;
    if synsets.is_empty() {
        let looked_for = "train/<synset>/*.JPEG".to_owned();
        return Err(DataError::Unrecognised { path: root.clone(), looked_for });
    }
    let listed = match split {
        Split::Train => list_classes(&train, &synsets, &train, excluded)?,
        Split::Test => {
            let folders = ["val", "test", "valid", "validation"];
            let Some(held_out) = folders.map(|name| root.join(name)).into_iter().find(|f| f.is_dir()) else {
                let looked_for = format!("one of the folders {}", folders.join(", "));
                return Err(DataError::NoTestSplit { path: root.clone(), looked_for });
            };
            if class_folders(&held_out)?.is_empty() {
                list_flat(&held_out, &path.join("LOC_val_solution.csv"), &synsets, excluded)?
            } else {
                list_classes(&held_out, &synsets, &train, excluded)?
            }
        }
    };
    let names = class_names(&[path, root], &synsets)?;
    let header = Header {
        name: format!("imagenet/{split}"),
        class_names: names.names,
        caption_seed,
        classes_from: names.file.unwrap_or(train),
        notes: listed.notes(split),
        ..Header::default()
    };
    Ok(ImageFolder::new(header, listed.files))
}

/// Lists the images of a flat folder, whose classes are in a table.
fn list_flat(folder: &Path, table: &Path, synsets: &[String], excluded: &Exclusions) -> Result<ListedFiles> {
    if !table.is_file() {
        let looked_for = format!("<synset>/*.JPEG, or the table {}", table.display());
        return Err(DataError::Unrecognised { path: folder.to_path_buf(), looked_for });
    }
    let labels = read_solution(table, synsets)?;
    let FolderListing { images, unread } = FolderListing::read(folder)?;
    let mut listed = ListedFiles { unread, ..ListedFiles::default() };
    listed.files.begin_folder(folder.to_path_buf());
    for name in images {
        let path = folder.join(&name);
        if excluded.contains(&path) {
            continue;
        }
        let image = path.file_stem().unwrap_or_default().to_string_lossy();
        let Some(label) = labels.get(image.as_ref()) else {
            return Err(DataError::file(table, format!("no line for {}", path.display())));
        };
        listed.files.push(&name, *label);
    }
    if listed.files.len() == 0 {
        let looked_for = "<synset>/*.JPEG or *.JPEG".to_owned();
        return Err(DataError::Unrecognised { path: folder.to_path_buf(), looked_for });
    }
    Ok(listed)
}

/// Reads the label of every image from `LOC_val_solution.csv`.
fn read_solution(table: &Path, synsets: &[String]) -> Result<BTreeMap<String, u32>> {
    let lines = LinesFile::read(table)?;
    let mut labels = BTreeMap::new();
    for (number, line) in lines.lines() {
        // `ILSVRC2012_val_00048981,n03995372 85 1 499 272 …`: a synset and a box for each object, all of one class.
        let mut fields = csv_fields(line).map_err(|reason| lines.error(number, reason))?.into_iter();
        let (image, objects) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        if number == 1 && image == "ImageId" {
            continue;
        }
        let synset = objects.split_whitespace().next().unwrap_or_default();
        let Ok(label) = synsets.binary_search_by(|name| name.as_str().cmp(synset)) else {
            let reason = format!("{synset:?} is not one of the {} folders of train", synsets.len());
            return Err(lines.error(number, reason));
        };
        let image = without_ending(image.strip_prefix("./").unwrap_or(&image));
        if labels.insert(image.to_owned(), label as u32).is_some() {
            return Err(lines.error(number, format!("image {image} already has a line")));
        }
    }
    Ok(labels)
}

/// Returns the name of an image without `.JPEG`, which some copies of the table have.
fn without_ending(image: &str) -> &str {
    let ending = image.len().saturating_sub(".jpeg".len());
    match image.get(ending..) {
        Some(text) if text.eq_ignore_ascii_case(".jpeg") => &image[..ending],
        _ => image,
    }
}

/// The names of the classes, and the file that has them.
struct ClassNames {
    names: Vec<String>,
    file: Option<PathBuf>,
}

/// Returns the first name of every synset by the mapping in one of these folders, or the synsets without a mapping.
fn class_names(folders: &[&Path], synsets: &[String]) -> Result<ClassNames> {
    let mappings = |folder: &&Path| MAPPINGS.map(|(name, separator)| (folder.join(name), separator));
    let mut files: Vec<(PathBuf, char)> = folders.iter().flat_map(mappings).collect();
    files.retain(|(file, _)| file.is_file());
    let Some((file, separator)) = files.first() else {
        return Ok(ClassNames { names: synsets.to_vec(), file: None });
    };
    let lines = LinesFile::read(file)?;
    let mut names: Vec<Option<String>> = vec![None; synsets.len()];
    for (number, line) in lines.lines() {
        let Some((synset, words)) = line.split_once(*separator) else {
            let reason = "expected a synset and its names, such as: n01440764 tench, Tinca tinca";
            return Err(lines.error(number, reason));
        };
        // `words.txt` names all of WordNet.
        if let Ok(label) = synsets.binary_search_by(|name| name.as_str().cmp(synset)) {
            let first = words.split(',').next().unwrap_or_default().trim();
            if first.is_empty() {
                return Err(lines.error(number, format!("{synset} has no name")));
            }
            names[label] = Some(first.to_owned());
        }
    }
    let named = synsets.iter().zip(names).map(|(synset, name)| {
        name.ok_or_else(|| DataError::file(file, format!("no name for class folder {synset}")))
    });
    Ok(ClassNames { names: named.collect::<Result<_>>()?, file: Some(file.clone()) })
}
