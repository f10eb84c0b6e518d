//! Processes that want to take part in a run that goes on: each has a folder of its own, called by its number, in a folder of the
//! run's. There it says again and again that it waits, and there it is told where the others meet.
//!
//! Any process that sees the run's folder can join, also from another host. The invitation is no secret: a process that
//! connects must prove the run's secret.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::RunError;
use super::atomic::replace;

/// The size limit of a ticket's file in bytes.
const LONGEST: u64 = 4096;

/// The age up to which a ticket counts as waiting.
const FRESH: Duration = Duration::from_secs(2);

/// The invitation of a newcomer: its rank, and where the ranks meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// Its rank.
    pub rank: usize,
    /// The number of ranks, the newcomer included.
    pub world_size: usize,
    /// The number of ranks on the host of the rank that invites.
    pub local_world_size: usize,
    /// The address where they meet.
    pub address: String,
    /// The port.
    pub port: u16,
    /// The job's name.
    pub job: String,
}

/// The place of a process that wants to take part.
#[derive(Debug, PartialEq, Eq)]
pub struct JoinTicket {
    folder: PathBuf,
    number: usize,
    said: u64,
}

impl JoinTicket {
    /// Takes the first number from `from` on that no process has had, in the folder `joins`.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn claim(joins: &Path, from: usize) -> Result<Self, RunError> {
        fs::create_dir_all(joins).map_err(RunError::io("create", joins))?;
        for number in from.. {
            let folder = joins.join(number.to_string());
            match fs::create_dir(&folder) {
                Ok(()) => return Ok(Self { folder, number, said: 0 }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(RunError::io("create", &folder)(error)),
            }
        }
        Err(RunError::Malformed { path: joins.to_owned(), problem: "has no number left".to_owned() })
    }

    /// Keeps newcomers from these numbers, which ranks of the run have.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn reserve(joins: &Path, numbers: Range<usize>) -> Result<(), RunError> {
        for number in numbers {
            let folder = joins.join(number.to_string());
            fs::create_dir_all(&folder).map_err(RunError::io("create", &folder))?;
        }
        Ok(())
    }

    /// Returns the ticket of a process whose number was claimed for it.
    pub fn of(joins: &Path, number: usize) -> Self {
        Self { folder: joins.join(number.to_string()), number, said: 0 }
    }

    /// The number.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Says once more that the process waits. An invitation, if one has come: it is taken, and counts once.
    ///
    /// # Errors
    /// If the folder cannot be read or written, as when the run has begun anew.
    pub fn wait(&mut self) -> Result<Option<Invitation>, RunError> {
        let path = self.invitation();
        if let Ok(bytes) = fs::read(&path) {
            fs::remove_file(&path).map_err(RunError::io("remove", &path))?;
            return match serde_json::from_slice(&bytes) {
                Ok(invitation) => Ok(Some(invitation)),
                Err(error) => Err(RunError::Malformed { path, problem: error.to_string() }),
            };
        }
        self.said += 1;
        let path = self.folder.join("waits");
        replace(&path, self.said.to_string().as_bytes()).map_err(RunError::io("write", &path))?;
        Ok(None)
    }

    /// Says that the process waits no longer.
    pub fn stop_waiting(&self) {
        // Who says nothing for a while is taken to have gone as well.
        let _ = fs::remove_file(self.folder.join("waits"));
    }

    /// Tells the process of this number where the others meet.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn invite(joins: &Path, number: usize, invitation: &Invitation) -> Result<(), RunError> {
        let path = Self::of(joins, number).invitation();
        let malformed =
            |error: serde_json::Error| RunError::Malformed { path: path.clone(), problem: error.to_string() };
        let bytes = serde_json::to_vec(invitation).map_err(malformed)?;
        replace(&path, &bytes).map_err(RunError::io("write", &path))
    }

    fn invitation(&self) -> PathBuf {
        self.folder.join("invitation.json")
    }
}

/// The processes that wait, as seen by repeated looks.
#[derive(Debug)]
pub struct Waiting {
    joins: PathBuf,
    /// By number what was said last, and when that was seen to be new; nothing of the first that is seen.
    heard: BTreeMap<usize, (String, Option<Instant>)>,
}

impl Waiting {
    /// For those who wait in the folder `joins`.
    pub fn at(joins: &Path) -> Self {
        Self { joins: joins.to_owned(), heard: BTreeMap::new() }
    }

    /// The numbers of those who have said a moment ago that they wait, the lowest first. Clocks of other hosts do not count: what
    /// they say must have changed between two looks.
    ///
    /// # Errors
    /// If the folder cannot be read. A missing folder has no waiting processes.
    pub fn look(&mut self) -> Result<Vec<usize>, RunError> {
        let Ok(entries) = fs::read_dir(&self.joins) else { return Ok(Vec::new()) };
        let now = Instant::now();
        let mut there = BTreeMap::new();
        for entry in entries.flatten() {
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // One that is being replaced is read by the next look.
            let waits = entry.path().join("waits");
            // Other users may be able to write there, so anything may be there.
            if !fs::metadata(&waits).is_ok_and(|found| found.is_file() && found.len() <= LONGEST) {
                continue;
            }
            let Ok(said) = fs::read_to_string(waits) else { continue };
            let when = match self.heard.remove(&number) {
                None => None,
                Some((before, when)) if before == said => when,
                Some(_) => Some(now),
            };
            there.insert(number, (said, when));
        }
        self.heard = there;
        let is_fresh = |when: &Option<Instant>| when.is_some_and(|when| now.duration_since(when) < FRESH);
        Ok(self.heard.iter().filter(|(_, (_, when))| is_fresh(when)).map(|(number, _)| *number).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_seen_and_told_once() {
        let place = tempfile::tempdir().expect("a folder");
        let joins = place.path().join("joins");
        let mut waiting = Waiting::at(&joins);
        assert!(waiting.look().expect("no folder").is_empty());
        let mut first = JoinTicket::claim(&joins, 3).expect("free");
        let mut second = JoinTicket::claim(&joins, 3).expect("free");
        assert_eq!((first.number(), second.number()), (3, 4));
        assert_eq!(first.wait().expect("writes"), None);
        assert_eq!(second.wait().expect("writes"), None);
        // A leftover of a process that is gone does not count until it changes.
        assert!(waiting.look().expect("reads").is_empty());
        assert_eq!(second.wait().expect("writes"), None);
        assert_eq!(waiting.look().expect("reads"), [4]);
        assert_eq!(first.wait().expect("writes"), None);
        assert_eq!(waiting.look().expect("reads"), [3, 4]);
        let invitation = Invitation {
            rank: 2,
            world_size: 3,
            local_world_size: 2,
            address: "127.0.0.1".into(),
            port: 7,
            job: String::new(),
        };
        JoinTicket::invite(&joins, 4, &invitation).expect("writes");
        assert_eq!(second.wait().expect("reads"), Some(invitation));
        second.stop_waiting();
        assert_eq!(waiting.look().expect("reads"), [3]);
        assert_eq!(second.wait().expect("writes"), None, "an invitation counts once");
        assert_eq!(
            JoinTicket::of(&joins, 4).number(),
            JoinTicket::claim(&joins, 4).expect("free").number() - 1
        );
    }
}
