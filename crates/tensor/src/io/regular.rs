//! Opening of files whose ranges are read.

use std::fs::File;
use std::io;
use std::path::Path;

/// Opens a regular file. The open of a FIFO would block until another process writes to it.
///
/// # Errors
/// If it cannot be opened, or is a FIFO, a device or a folder.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    if std::fs::metadata(path)?.is_file() {
        return File::open(path);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "it is a folder, a FIFO or a device, and no regular file",
    ))
}
