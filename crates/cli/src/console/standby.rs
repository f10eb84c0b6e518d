//! The standard output of a launcher, kept by a rank that may take over from rank 0.

use std::fs::File;
use std::io;
use std::path::Path;

/// A standard output that this process had before it was redirected, if it was.
#[derive(Debug, Default)]
pub struct OriginalOutput(Option<File>);

impl OriginalOutput {
    /// Keeps this process's standard output, and sends what is printed from now on to the end of a file, as foreign code may that
    /// prints on every rank.
    ///
    /// # Errors
    /// If the file cannot be opened or the system refuses.
    #[cfg(unix)]
    pub fn redirect(to: &Path) -> io::Result<Self> {
        let kept = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?;
        let log = File::options().create(true).append(true).open(to)?;
        rustix::stdio::dup2_stdout(&log)?;
        Ok(Self(Some(kept.into())))
    }

    /// Nothing is redirected here.
    ///
    /// # Errors
    /// None.
    #[cfg(not(unix))]
    pub fn redirect(_: &Path) -> io::Result<Self> {
        Ok(Self(None))
    }

    /// The output; none where this process's own is still what it was.
    pub fn into_file(self) -> Option<File> {
        self.0
    }
}
