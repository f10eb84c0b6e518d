//! The lock of a run's folder: one process at a time trains the run.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use phalanx_data::Links;
use serde::{Deserialize, Serialize};

use super::folder::{RunError, RunFolder};
use super::machine::host_name;
use super::process::is_process_alive;

/// The age of `state.json` up to which a run on another host counts as training, where the file system does not share locks.
const FRESH: Duration = Duration::from_secs(60);

/// The longest wait for the ranks of a holder that has ended: they finish their step and save.
const LAST_RANKS: Duration = Duration::from_secs(30);

/// The process that trains a run, as the lock's file names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    /// Its host.
    pub host: String,
    /// Its process.
    pub process: u32,
    /// The start of its attempt, in UTC.
    pub since: String,
}

/// Holds the lock of a run's folder until it is dropped. The system releases the lock of a process that ends in any way.
///
/// The lock is the system's on the file `lock`. A network file system that shares locks keeps other hosts out too. Where it does not,
/// a holder on another host counts as alive while `state.json` says that the run trains, and is less than a minute old.
#[derive(Debug)]
pub struct RunLock {
    file: File,
}

/// The folder of a new run, and its lock.
#[derive(Debug)]
pub struct LockedFolder {
    /// The folder.
    pub folder: RunFolder,
    /// Its lock.
    pub lock: RunLock,
}

impl RunFolder {
    /// Creates the folder of a new run and takes its lock: of several processes that create the same one, one succeeds. See
    /// [`RunFolder::create`].
    ///
    /// # Errors
    /// As [`RunFolder::create`] and [`RunLock::take`].
    pub fn create_locked(out: Option<&Path>, runs: &Path, name: &str) -> Result<LockedFolder, RunError> {
        let folder = Self::create(out, runs, name)?;
        let lock = RunLock::take(&folder)?;
        if folder.config().exists() {
            return Err(RunError::Exists(folder.path().to_owned()));
        }
        Ok(LockedFolder { folder, lock })
    }
}

impl RunLock {
    /// Takes the lock. If the last holder was killed and its ranks still end, waits for them up to 30 s.
    ///
    /// # Errors
    /// [`RunError::Locked`], which names the holder; and if the file cannot be written.
    pub fn take(folder: &RunFolder) -> Result<Self, RunError> {
        let path = folder.lock();
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = Links::Refuse.open_with(options, &path).map_err(RunError::io("open", &path))?;
        let began = Instant::now();
        loop {
            let holder = read(&mut file);
            let is_alive = match file.try_lock() {
                Ok(()) => holder.as_ref().is_some_and(|holder| is_fresh_elsewhere(holder, folder)),
                Err(TryLockError::WouldBlock) => {
                    let has_ended = holder.as_ref().is_some_and(|holder| holder.is_alive() == Some(false));
                    if has_ended && began.elapsed() < LAST_RANKS {
                        std::thread::sleep(Duration::from_millis(50));
                        continue;
                    }
                    true
                }
                // The file system has no locks.
                Err(TryLockError::Error(_)) => holder
                    .as_ref()
                    .is_some_and(|holder| holder.is_alive().unwrap_or_else(|| is_fresh(folder))),
            };
            if is_alive {
                return Err(RunError::Locked {
                    folder: folder.path().to_owned(),
                    holder: describe(holder.as_ref()),
                });
            }
            let own = LockHolder { host: host_name(), process: std::process::id(), since: now() };
            write(&mut file, &own).map_err(RunError::io("write", &path))?;
            return Ok(Self { file });
        }
    }

    /// Lets processes that this one starts from now on hold the lock as well, so that it lasts until all of them have ended.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn share_with_children(&self) -> io::Result<()> {
        #[cfg(unix)]
        rustix::io::fcntl_setfd(&self.file, rustix::io::FdFlags::empty())?;
        Ok(())
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // Without a name the file tells the next process nothing; the lock itself ends with the file.
        let _ = self.file.set_len(0);
    }
}

impl LockHolder {
    /// Returns true if the process runs; `None` if it is on another host.
    fn is_alive(&self) -> Option<bool> {
        if self.host == host_name() { is_process_alive(self.process) } else { None }
    }
}

/// Describes the holder in an error.
fn describe(holder: Option<&LockHolder>) -> String {
    holder.map_or_else(
        || "another process".to_owned(),
        |holder| format!("process {} on {} since {}", holder.process, holder.host, holder.since),
    )
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

fn read(file: &mut File) -> Option<LockHolder> {
    file.rewind().ok()?;
    let mut text = String::new();
    (&*file).take(4096).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn write(file: &mut File, holder: &LockHolder) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&serde_json::to_vec(holder)?)
}

/// Returns true if the holder is on another host, and its run was training a moment ago.
fn is_fresh_elsewhere(holder: &LockHolder, folder: &RunFolder) -> bool {
    holder.is_alive().is_none() && is_fresh(folder)
}

/// Returns true if the state of the run was written less than a minute ago and says that the run goes on.
fn is_fresh(folder: &RunFolder) -> bool {
    use super::state::{RunActivity, RunState};
    let path: PathBuf = folder.state();
    let goes_on = RunState::read(&path)
        .is_ok_and(|state| matches!(state.doing, RunActivity::Training | RunActivity::Paused));
    goes_on && age(&path).is_some_and(|age| age < FRESH)
}

fn age(path: &Path) -> Option<Duration> {
    SystemTime::now().duration_since(std::fs::metadata(path).ok()?.modified().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunState;

    fn folder() -> (tempfile::TempDir, RunFolder) {
        let place = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(Some(&place.path().join("run")), place.path(), "x").expect("new");
        (place, folder)
    }

    #[test]
    fn a_lock_is_held_by_one_and_names_its_holder() {
        let (_place, folder) = folder();
        let lock = RunLock::take(&folder).expect("free");
        let refused = RunLock::take(&folder).expect_err("held").to_string();
        let process = format!("process {} on {} since 2", std::process::id(), host_name());
        assert!(refused.contains(&process) && refused.contains("run"), "{refused}");
        drop(lock);
        drop(RunLock::take(&folder).expect("free again"));
        // What a killed process has left is taken over.
        let process = 999_999_999;
        let gone = LockHolder { host: host_name(), process, since: "yesterday".to_owned() };
        std::fs::write(folder.lock(), serde_json::to_vec(&gone).expect("writes")).expect("writes");
        drop(RunLock::take(&folder).expect("stale"));
    }

    #[test]
    fn a_holder_on_another_host_counts_while_its_run_writes_its_state() {
        let (_place, folder) = folder();
        let holder = LockHolder { host: "elsewhere".to_owned(), process: 1, since: "today".to_owned() };
        let hold = || std::fs::write(folder.lock(), serde_json::to_vec(&holder).expect("writes"));
        hold().expect("writes");
        drop(RunLock::take(&folder).expect("nothing trains"));
        hold().expect("writes");
        RunState::default().write(&folder.state()).expect("writes");
        let refused = RunLock::take(&folder).expect_err("trains").to_string();
        assert!(refused.contains("process 1 on elsewhere since today"), "{refused}");
        let old = SystemTime::now() - 2 * FRESH;
        File::options()
            .write(true)
            .open(folder.state())
            .and_then(|file| file.set_modified(old))
            .expect("a time");
        drop(RunLock::take(&folder).expect("old"));
    }
}
