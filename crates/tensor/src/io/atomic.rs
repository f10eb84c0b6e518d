//! Atomic writes: a file is complete or unchanged.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::{Result, TensorError};

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TensorError {
    let path = path.to_owned();
    move |source| TensorError::Io { action, path, source }
}

/// Writes a temporary file, syncs it, renames it to `path` and syncs the folder. After any failure or crash, `path`
/// is whole: the old file or the new one.
///
/// # Errors
/// [`TensorError::Io`] naming the file and the operation; the temporary file is removed.
pub fn atomic_write(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}.partial", std::process::id()));
    let aside = PathBuf::from(aside);
    let result = write_aside(&aside, path, write);
    if result.is_err() {
        // It may not exist; the first error is the one to report.
        let _ = fs::remove_file(&aside);
    }
    result
}

fn write_aside(
    aside: &Path,
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let file = File::create(aside).map_err(io_error("create", path))?;
    let mut buffered = BufWriter::with_capacity(1 << 20, file);
    write(&mut buffered).map_err(io_error("write", path))?;
    let file = buffered.into_inner().map_err(|error| io_error("write", path)(error.into_error()))?;
    file.sync_all().map_err(io_error("sync", path))?;
    drop(file);
    fs::rename(aside, path).map_err(io_error("rename into place", path))?;
    sync_folder(path)
}

/// Syncs `path`'s folder, which makes its names durable.
///
/// # Errors
/// [`TensorError::Io`] if the folder cannot be synced.
pub fn sync_folder(path: &Path) -> Result<()> {
    // Only Unix can open folders. Elsewhere a rename has no stronger guarantee.
    if cfg!(unix) {
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(io_error("sync the folder of", path))?;
    }
    Ok(())
}
