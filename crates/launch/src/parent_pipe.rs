//! A rank's end of the pipe from its parent.

use std::io::{BufRead, Write as _};
use std::path::Path;

use phalanx_collectives::{CommError, Secret};

use super::ABORTED;
use phalanx_run::SUPERVISED;
use phalanx_run::StopFlag;

/// The word on the first line before the ranks' secret, which may be missing.
const SECRET: &str = "secret";

/// A supervised rank's end of the pipe from its parent.
#[derive(Debug)]
pub struct ParentPipe {
    /// The secret that the ranks prove to each other; `None` where they find it elsewhere.
    pub secret: Option<Secret>,
}

impl ParentPipe {
    /// Follows the parent's messages: `stop` raises `stop`, and `abort` or the parent's end ends this process with the code
    /// [`ABORTED`]. Returns `None` if no supervisor started this process.
    ///
    /// # Errors
    /// If the parent's secret is malformed.
    pub fn follow(stop: &StopFlag) -> Result<Option<Self>, CommError> {
        if std::env::var_os(SUPERVISED).is_none() {
            return Ok(None);
        }
        let mut lines = std::io::stdin().lock().lines();
        let Some(Ok(first)) = lines.next() else { exit() };
        let secret = match first.strip_prefix(SECRET).map(str::trim) {
            None | Some("") => None,
            Some(text) => Some(Secret::new(text.as_bytes())?),
        };
        drop(lines);
        let stop = stop.clone();
        // The thread is never joined: it ends with the process, or ends it.
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                match line.as_deref() {
                    Ok("stop") => {
                        stop.raise();
                    }
                    Ok("abort") | Err(_) => break,
                    Ok(_) => {}
                }
            }
            exit();
        });
        Ok(Some(Self { secret }))
    }
}

/// Ends a rank whose parent has ended or said so. A parent that was killed has left the secret that it drew: the rank removes it.
fn exit() -> ! {
    if let Some(file) = std::env::var_os(DRAWN_SECRET) {
        let _ = std::fs::remove_file(file);
    }
    std::process::exit(ABORTED.into())
}

/// Removes the file of a secret that an earlier launcher has left behind, unless the environment names it as the secret of this one.
/// Only the holder of the run's lock calls this.
///
/// # Errors
/// If the file cannot be removed.
pub fn remove_stale_secret(file: &Path) -> std::io::Result<()> {
    let is_present = file.symlink_metadata().is_ok();
    let given = std::env::var_os(SECRET_FILE).map(std::path::PathBuf::from);
    let is_given = given.is_some_and(|given| match (given.canonicalize(), file.canonicalize()) {
        (Ok(given), Ok(file)) => given == file,
        _ => given == file,
    });
    if is_present && !is_given { std::fs::remove_file(file) } else { Ok(()) }
}

/// Returns the first line of the pipe with a secret.
pub(super) fn line_of(secret: &str) -> String {
    format!("{SECRET} {secret}\n")
}

/// The variable that names a file with the ranks' secret.
pub const SECRET_FILE: &str = "PHALANX_SECRET_FILE";

/// The variable that names the file of a secret that the parent drew, for its ranks.
pub(super) const DRAWN_SECRET: &str = "PHALANX_DRAWN_SECRET";

/// Returns the first line of the pipe: a fresh secret, unless the environment names a file of the ranks' secret. With `file`
/// the secret is written there instead, readable by its owner only.
pub(super) fn first_line(file: Option<&Path>) -> std::io::Result<String> {
    if std::env::var_os(SECRET_FILE).is_some() {
        return Ok(format!("{SECRET}\n"));
    }
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|error| std::io::Error::other(error.to_string()))?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let Some(file) = file else { return Ok(line_of(&digits)) };
    // A file left by a killed run may not be writable.
    let _ = std::fs::remove_file(file);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file)?.write_all(digits.as_bytes())?;
    Ok(format!("{SECRET}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_fresh_and_long() {
        let (one, two) =
            (first_line(None).expect("random numbers"), first_line(None).expect("random numbers"));
        assert!(one != two && one.starts_with("secret ") && one.len() == 72);
    }
}
