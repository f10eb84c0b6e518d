//! The files of a folder.

use std::path::{Path, PathBuf};

use phalanx_data::{DataError, Result};

/// Finds the files of a folder and its subfolders with one of the endings, sorted by their paths. Hidden ones, whose names
/// begin with a dot, are left out, and links to folders are not followed.
pub(super) fn of_folder(folder: &Path, endings: &[String]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    walk(folder, endings, &mut found)?;
    if found.is_empty() {
        let looked_for = match endings {
            [] => "files of text".to_owned(),
            endings => format!("files that end in .{}", endings.join(" or .")),
        };
        return Err(DataError::Unrecognised { path: folder.to_owned(), looked_for });
    }
    Ok(found)
}

fn walk(folder: &Path, endings: &[String], found: &mut Vec<PathBuf>) -> Result<()> {
    let io = |error| DataError::io(folder, error);
    let mut entries =
        std::fs::read_dir(folder).map_err(io)?.collect::<std::io::Result<Vec<_>>>().map_err(io)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if entry.file_type().map_err(io)?.is_dir() {
            walk(&path, endings, found)?;
        } else if path.is_file() {
            let ending = path.extension().map(|ending| ending.to_string_lossy().into_owned());
            if endings.is_empty() || ending.is_some_and(|ending| endings.contains(&ending)) {
                found.push(path);
            }
        }
    }
    Ok(())
}
