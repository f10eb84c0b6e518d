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
pub struct Leash {
    /// The secret that the ranks prove to each other; `None` where they find it elsewhere.
    pub secret: Option<Secret>,
}

impl Leash {
    /// Follows the leash if this process has one: from now on the parent's `stop` raises `stop`, and `abort`
    /// or the parent's end ends this process with the code [`ABORTED`]. Nothing if the process has no leash.
    ///
    /// # Errors
    /// If what the parent gives for a secret is none.
    pub fn follow(stop: &StopFlag) -> Result<Option<Self>, CommError> {
        if std::env::var_os(SUPERVISED).is_none() {
            return Ok(None);
        }
        let mut lines = std::io::stdin().lock().lines();
        let Some(Ok(first)) = lines.next() else { std::process::exit(ABORTED.into()) };
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
            std::process::exit(ABORTED.into());
        });
        Ok(Some(Self { secret }))
    }
}

/// The first line of a leash that gives a secret.
pub(super) fn line_of(secret: &str) -> String {
    format!("{SECRET} {secret}\n")
}

/// The variable that names a file with the ranks' secret.
pub const SECRET_FILE: &str = "PHALANX_SECRET_FILE";

/// The first line of a leash: a fresh secret, unless the ranks find one where their environment says. With a file the secret is
/// written there, for its owner alone, and ranks find it there too.
pub(super) fn first_line(file: Option<&Path>) -> std::io::Result<String> {
    if std::env::var_os(SECRET_FILE).is_some() {
        return Ok(format!("{SECRET}\n"));
    }
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|error| std::io::Error::other(error.to_string()))?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let Some(file) = file else { return Ok(line_of(&digits)) };
    // One that is left of a run that was killed may not be written to.
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
