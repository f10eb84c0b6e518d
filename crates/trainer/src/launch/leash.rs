//! A rank's end of the pipe from its parent.

use std::io::BufRead;

use super::stop::StopFlag;
use super::{ABORTED, KEEPS_SECRET, SUPERVISED};

/// A supervised rank's end of the pipe from its parent.
#[derive(Debug)]
pub struct Leash;

impl Leash {
    /// The secret of this rank's world, if its parent says one; before the leash is followed.
    pub fn secret() -> Option<String> {
        std::env::var_os(KEEPS_SECRET)?;
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).ok()?;
        Some(line.trim_end().to_owned())
    }

    /// Follows the leash if this process has one: from now on the parent's `stop` raises `stop`, and `abort`
    /// or the parent's end ends this process with the code [`ABORTED`]. False if the process has no leash.
    pub fn follow(stop: &StopFlag) -> bool {
        if std::env::var_os(SUPERVISED).is_none() {
            return false;
        }
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
        true
    }
}
