//! A rank's end of the pipe from its parent.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{ABORTED, SUPERVISED};

/// Whether somebody asked for the run to stop after the step that it is in. Clones share the answer.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Asks for the stop; true if nobody had asked before.
    pub fn raise(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    /// Whether the stop was asked for.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A supervised rank's end of the pipe from its parent.
#[derive(Debug)]
pub struct Leash;

impl Leash {
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
