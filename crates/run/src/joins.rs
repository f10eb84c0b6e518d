//! Joining a running run. Each process that wants to join has a folder `joins/NUMBER` in the run's folder. There it
//! renews a heartbeat file while it waits, and receives an invitation with the address of the rendezvous.
//!
//! Any process that sees the run's folder can join, also from another host. The invitation is no secret: a process that
//! connects must prove the run's secret.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use phalanx_data::Links;
use serde::{Deserialize, Serialize};

use super::RunError;
use super::atomic::replace;

/// The size limit of a ticket's file in bytes.
const LONGEST: u64 = 4096;

/// The maximum age of a heartbeat.
const FRESH: Duration = Duration::from_secs(2);

/// The invitation of a joining process: its rank, and the address of the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// Its rank.
    pub rank: usize,
    /// The number of ranks, including the invited one.
    pub world_size: usize,
    /// The number of ranks on the host of the inviting rank.
    pub local_world_size: usize,
    /// The address of the rendezvous.
    pub address: String,
    /// The port of the rendezvous.
    pub port: u16,
    /// The job's name.
    pub job: String,
}

/// The claim of a process to a rank number, while it waits to join.
#[derive(Debug, PartialEq, Eq)]
pub struct JoinTicket {
    folder: PathBuf,
    number: usize,
    beat: u64,
}

impl JoinTicket {
    /// Claims the first unused number from `from` on, in the folder `joins`.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn claim(joins: &Path, from: usize) -> Result<Self, RunError> {
        fs::create_dir_all(joins).map_err(RunError::io("create", joins))?;
        for number in from.. {
            let folder = joins.join(number.to_string());
            match fs::create_dir(&folder) {
                Ok(()) => return Ok(Self { folder, number, beat: 0 }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(RunError::io("create", &folder)(error)),
            }
        }
        Err(RunError::Malformed { path: joins.to_owned(), problem: "has no number left".to_owned() })
    }

    /// Reserves the numbers of ranks of the run, so that no joining process claims them.
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

    /// Returns the ticket of a number that was claimed before.
    pub fn of(joins: &Path, number: usize) -> Self {
        Self { folder: joins.join(number.to_string()), number, beat: 0 }
    }

    /// The number.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Renews the heartbeat. Returns an invitation if one has arrived, and renames its file to `accepted.json`, so that it counts
    /// once and can be read later.
    ///
    /// # Errors
    /// If the folder cannot be read or written, for example because the run was restarted.
    pub fn poll(&mut self) -> Result<Option<Invitation>, RunError> {
        let path = self.invitation();
        if let Ok(bytes) = Links::Refuse.read(&path) {
            fs::rename(&path, self.accepted()).map_err(RunError::io("rename", &path))?;
            return match serde_json::from_slice(&bytes) {
                Ok(invitation) => Ok(Some(invitation)),
                Err(error) => Err(RunError::Malformed { path, problem: error.to_string() }),
            };
        }
        self.beat += 1;
        let path = self.folder.join("waits");
        replace(&path, self.beat.to_string().as_bytes()).map_err(RunError::io("write", &path))?;
        Ok(None)
    }

    /// Removes the heartbeat.
    pub fn stop_waiting(&self) {
        // If this fails, the heartbeat expires.
        let _ = fs::remove_file(self.folder.join("waits"));
    }

    /// Writes the invitation of the process with this number.
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

    fn accepted(&self) -> PathBuf {
        self.folder.join("accepted.json")
    }
}

/// The processes that wait to join, detected by polling their heartbeats.
#[derive(Debug)]
pub struct JoinCandidates {
    joins: PathBuf,
    /// The last heartbeat of each number, and when it was seen to change. A first heartbeat has no time.
    last_seen: BTreeMap<usize, (String, Option<Instant>)>,
}

impl JoinCandidates {
    /// Watches the folder `joins`.
    pub fn at(joins: &Path) -> Self {
        Self { joins: joins.to_owned(), last_seen: BTreeMap::new() }
    }

    /// Returns the numbers of processes with a fresh heartbeat, in ascending order. A heartbeat is fresh if it changed
    /// between two polls: clocks of other hosts are not compared.
    ///
    /// # Errors
    /// If the folder cannot be read. A missing folder has no waiting processes.
    pub fn poll(&mut self) -> Result<Vec<usize>, RunError> {
        let Ok(entries) = fs::read_dir(&self.joins) else { return Ok(Vec::new()) };
        let now = Instant::now();
        let mut present = BTreeMap::new();
        for entry in entries.flatten() {
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // A file that is being replaced is read by the next poll.
            let waits = entry.path().join("waits");
            // Other users may be able to write to the folder, so check the type and size of the file.
            if !fs::symlink_metadata(&waits).is_ok_and(|found| found.is_file() && found.len() <= LONGEST) {
                continue;
            }
            let Ok(beat) = Links::Refuse.read_text(&waits) else { continue };
            let when = match self.last_seen.remove(&number) {
                None => None,
                Some((before, when)) if before == beat => when,
                Some(_) => Some(now),
            };
            present.insert(number, (beat, when));
        }
        self.last_seen = present;
        let is_fresh = |when: &Option<Instant>| when.is_some_and(|when| now.duration_since(when) < FRESH);
        Ok(self.last_seen.iter().filter(|(_, (_, when))| is_fresh(when)).map(|(number, _)| *number).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_processes_are_found_and_invited_once() {
        let place = tempfile::tempdir().expect("a folder");
        let joins = place.path().join("joins");
        let mut waiting = JoinCandidates::at(&joins);
        assert!(waiting.poll().expect("no folder").is_empty());
        let mut first = JoinTicket::claim(&joins, 3).expect("free");
        let mut second = JoinTicket::claim(&joins, 3).expect("free");
        assert_eq!((first.number(), second.number()), (3, 4));
        assert_eq!(first.poll().expect("writes"), None);
        assert_eq!(second.poll().expect("writes"), None);
        // A leftover of a process that is gone does not count until it changes.
        assert!(waiting.poll().expect("reads").is_empty());
        assert_eq!(second.poll().expect("writes"), None);
        assert_eq!(waiting.poll().expect("reads"), [4]);
        assert_eq!(first.poll().expect("writes"), None);
        assert_eq!(waiting.poll().expect("reads"), [3, 4]);
        let invitation = Invitation {
            rank: 2,
            world_size: 3,
            local_world_size: 2,
            address: "127.0.0.1".into(),
            port: 7,
            job: String::new(),
        };
        JoinTicket::invite(&joins, 4, &invitation).expect("writes");
        assert_eq!(second.poll().expect("reads"), Some(invitation));
        second.stop_waiting();
        assert_eq!(waiting.poll().expect("reads"), [3]);
        assert_eq!(second.poll().expect("writes"), None, "an invitation counts once");
        assert!(joins.join("4/accepted.json").exists() && !joins.join("4/invitation.json").exists());
        assert_eq!(
            JoinTicket::of(&joins, 4).number(),
            JoinTicket::claim(&joins, 4).expect("free").number() - 1
        );
    }
}
