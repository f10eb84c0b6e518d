//! Atomic replacement of files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use phalanx_data::Links;

/// Writes a temporary file in the same folder, syncs it to disk, and renames it to `path`.
///
/// # Errors
/// If an operation fails. The previous file at `path` is then unchanged.
pub fn write_aside(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}.tmp"));
    let written = create(&aside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(error) = written.and_then(|()| fs::rename(&aside, path)) {
        let _ = fs::remove_file(&aside);
        return Err(error);
    }
    path.parent().map_or(Ok(()), sync_folder)
}

/// Writes a temporary file in the same folder and renames it to `path`, so that no reader sees half of it. Unlike [`write_aside`]
/// it does not wait for the disk: for files that need not survive a crash of the machine.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}"));
    create(&aside)?.write_all(bytes).and_then(|()| fs::rename(&aside, path))
}

/// Creates or empties a file. A link in its place is an error: other users may be able to write to the folder.
fn create(path: &Path) -> io::Result<File> {
    Links::Refuse.open_with(OpenOptions::new().write(true).create(true).truncate(true), path)
}

/// Opens a file of a run's folder to append to it. A link in its place is an error.
///
/// # Errors
/// If it cannot be opened, or is no regular file.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    Links::Refuse.open_with(OpenOptions::new().create(true).append(true), path)
}

/// Creates a folder and its missing parents, and syncs the folders that hold the new names, so that these survive a crash of
/// the machine.
///
/// # Errors
/// If a folder cannot be created or synced.
pub fn create_synced(path: &Path) -> io::Result<()> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    fs::create_dir_all(path)?;
    missing.into_iter().rev().filter_map(Path::parent).try_for_each(sync_folder)
}

/// Syncs the entries of a folder to disk.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    // An empty path is the current folder.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}
