//! Keeps the original standard output in a rank that may take over from rank 0.

use std::fs::File;
use std::io;
use std::path::Path;

/// The original standard output of this process, if it was redirected.
#[derive(Debug, Default)]
pub struct OriginalOutput(Option<File>);

impl OriginalOutput {
    /// Keeps the standard output and redirects later output to the end of a file. Foreign code may print on every rank.
    ///
    /// # Errors
    /// If the file cannot be opened or the system refuses.
    #[cfg(unix)]
    pub fn redirect(to: &Path) -> io::Result<Self> {
        let kept = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?;
        let log = phalanx_run::open_to_append(to)?;
        rustix::stdio::dup2_stdout(&log)?;
        Ok(Self(Some(kept.into())))
    }

    /// Redirects nothing on this platform.
    ///
    /// # Errors
    /// None.
    #[cfg(not(unix))]
    pub fn redirect(_: &Path) -> io::Result<Self> {
        Ok(Self(None))
    }

    /// Returns the original output; `None` if it was not redirected.
    pub fn into_file(self) -> Option<File> {
        self.0
    }
}
