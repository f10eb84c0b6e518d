//! Checkpoints: folders that are complete or not there.
//!
//! A checkpoint is the folder `checkpoints/step-N` with some files and an index, `checkpoint.json`, which names
//! every file with its length and checksum. All of it is written to a hidden folder, reaches the disk, and is
//! then renamed into place, so that a run that is killed or meets a full disk while saving damages nothing.
//! The file `latest` names the newest for people and scripts; the program itself looks for the newest that is
//! complete.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::atomic::{sync_folder, write_aside};

/// The version of the layout, in case it ever changes.
const FORMAT: u32 = 1;
const INDEX: &str = "checkpoint.json";

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file or folder cannot be written or read.
    #[error("checkpoint of step {step}: cannot {action} {}: {source}", path.display())]
    Io {
        /// The step.
        step: u64,
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The state itself cannot be written, as the one who writes it says.
    #[error("checkpoint of step {step}: {source}")]
    Write {
        /// The step.
        step: u64,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file is not what the index says.
    #[error("checkpoint is damaged: {}: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the checkpoint's folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The 64-bit FNV-1a hash of what is in it, in hexadecimal.
    pub fnv1a64: String,
}

/// What is in a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// The version of the layout.
    pub format: u32,
    /// Steps done.
    pub step: u64,
    /// Whatever else the run needs to go on.
    pub state: Map<String, Value>,
    /// The files.
    pub files: Vec<FileEntry>,
}

/// A complete checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    folder: PathBuf,
    index: Index,
}

impl Checkpoint {
    /// Writes the checkpoint of `step` into `checkpoints` and then removes all but the newest `keep`.
    ///
    /// `write` writes the files into the folder that it is given. If there is a complete checkpoint of this step
    /// already, it stays and nothing is written.
    ///
    /// # Errors
    /// If anything cannot be written; checkpoints that exist are then untouched.
    pub fn save<E>(
        checkpoints: &Path,
        step: u64,
        keep: usize,
        state: Map<String, Value>,
        write: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<Self, CheckpointError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let folder = checkpoints.join(name(step));
        if let Ok(existing) = Self::open(&folder) {
            return Ok(existing);
        }
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| CheckpointError::Io { step, action, path, source }
        };
        remove_leftovers(checkpoints);
        let aside = checkpoints.join(format!(".tmp-{}", name(step)));
        fs::create_dir_all(&aside).map_err(io("create", &aside))?;
        let written = (|| {
            write(&aside).map_err(|source| CheckpointError::Write { step, source: source.into() })?;
            let mut files = Vec::new();
            for entry in fs::read_dir(&aside).map_err(io("list", &aside))? {
                let path = entry.map_err(io("list", &aside))?.path();
                File::open(&path).and_then(|file| file.sync_all()).map_err(io("sync", &path))?;
                files.push(entry_of(&path).map_err(io("read back", &path))?);
            }
            files.sort_by(|a, b| a.name.cmp(&b.name));
            let index = Index { format: FORMAT, step, state, files };
            let bytes = serde_json::to_vec_pretty(&index).map_err(io::Error::from);
            let path = aside.join(INDEX);
            bytes.and_then(|bytes| write_aside(&path, &bytes)).map_err(io("write", &path))?;
            if folder.exists() {
                // Something incomplete is in the way: not by this program, which renames only what is complete.
                let old = checkpoints.join(format!(".old-{}", name(step)));
                fs::rename(&folder, old).map_err(io("move away", &folder))?;
            }
            fs::rename(&aside, &folder).map_err(io("rename", &aside))?;
            sync_folder(checkpoints).map_err(io("sync", checkpoints))?;
            Ok(index)
        })();
        let index = match written {
            Ok(index) => index,
            Err(error) => {
                // Give the space back; on a full disk it is what is missing.
                let _ = fs::remove_dir_all(&aside);
                return Err(error);
            }
        };
        let latest = checkpoints.join("latest");
        write_aside(&latest, format!("{}\n", name(step)).as_bytes()).map_err(io("write", &latest))?;
        prune(checkpoints, keep);
        Ok(Self { folder, index })
    }

    /// Opens a checkpoint and checks every file against the index.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] naming the file that is missing, truncated or changed.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let damaged =
            |path: &Path, problem: String| CheckpointError::Damaged { path: path.to_owned(), problem };
        let path = folder.join(INDEX);
        let bytes = fs::read(&path).map_err(|error| damaged(&path, error.to_string()))?;
        let index: Index =
            serde_json::from_slice(&bytes).map_err(|error| damaged(&path, error.to_string()))?;
        if index.format != FORMAT {
            return Err(damaged(
                &path,
                format!("has format {}; this program reads format {FORMAT}", index.format),
            ));
        }
        for expected in &index.files {
            let path = folder.join(&expected.name);
            let found = fs::metadata(&path).map_err(|error| damaged(&path, error.to_string()))?.len();
            if found != expected.bytes {
                return Err(damaged(&path, format!("has {found} bytes, not {}", expected.bytes)));
            }
            let found = entry_of(&path).map_err(|error| damaged(&path, error.to_string()))?;
            if found != *expected {
                return Err(damaged(&path, "its checksum differs".to_owned()));
            }
        }
        Ok(Self { folder: folder.to_owned(), index })
    }

    /// The newest complete checkpoint in `checkpoints`, and what is wrong with newer ones.
    pub fn newest(checkpoints: &Path) -> (Option<Self>, Vec<CheckpointError>) {
        let mut damaged = Vec::new();
        for (_, folder) in list(checkpoints).into_iter().rev() {
            match Self::open(&folder) {
                Ok(checkpoint) => return (Some(checkpoint), damaged),
                Err(error) => damaged.push(error),
            }
        }
        (None, damaged)
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.index.step
    }

    /// Whatever else the run needs to go on.
    pub fn state(&self) -> &Map<String, Value> {
        &self.index.state
    }

    /// The path of one of its files.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] if the checkpoint has no such file.
    pub fn file(&self, name: &str) -> Result<PathBuf, CheckpointError> {
        if self.index.files.iter().any(|file| file.name == name) {
            return Ok(self.folder.join(name));
        }
        Err(CheckpointError::Damaged { path: self.folder.join(INDEX), problem: format!("lists no {name}") })
    }

    /// Whether it has a file called `name`.
    pub fn has(&self, name: &str) -> bool {
        self.index.files.iter().any(|file| file.name == name)
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The folders that are named as checkpoints, the oldest first.
fn list(checkpoints: &Path) -> Vec<(u64, PathBuf)> {
    let entries =
        fs::read_dir(checkpoints).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let mut found: Vec<_> = entries
        .filter_map(|path| Some((path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()?, path)))
        .collect();
    found.sort();
    found
}

/// Removes all but the newest `keep`. What cannot be removed is tried again after the next checkpoint.
fn prune(checkpoints: &Path, keep: usize) {
    let found = list(checkpoints);
    for (step, path) in &found[..found.len().saturating_sub(keep.max(1))] {
        // Renamed first, so that one that is half removed is not taken for a checkpoint.
        let old = checkpoints.join(format!(".old-{}", name(*step)));
        if fs::rename(path, &old).is_ok() {
            let _ = fs::remove_dir_all(old);
        }
    }
}

/// Removes what runs that were killed while saving have left.
fn remove_leftovers(checkpoints: &Path) {
    for entry in fs::read_dir(checkpoints).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(".tmp-step-") || name.starts_with(".old-step-") {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn entry_of(path: &Path) -> io::Result<FileEntry> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    let (mut bytes, mut hash) = (0, 0xcbf2_9ce4_8422_2325_u64);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        bytes += read as u64;
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        hash = buffer[..read].iter().fold(hash, step);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(FileEntry { name, bytes, fnv1a64: format!("{hash:016x}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn save(checkpoints: &Path, step: u64, text: &str) -> Result<Checkpoint, CheckpointError> {
        let state = Map::from_iter([("epoch".to_owned(), Value::from(step / 10))]);
        Checkpoint::save(checkpoints, step, 2, state, |folder| {
            fs::write(folder.join("a.bin"), text)?;
            fs::write(folder.join("b.bin"), [7; 100])
        })
    }

    fn steps(checkpoints: &Path) -> Vec<u64> {
        list(checkpoints).into_iter().map(|(step, _)| step).collect()
    }

    #[test]
    fn the_newest_are_kept_and_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let checkpoints = folder.path();
        assert_eq!(Checkpoint::newest(checkpoints).0, None);
        for step in [5, 20, 100] {
            save(checkpoints, step, "x").expect("saves");
        }
        assert_eq!(steps(checkpoints), [20, 100]);
        let (newest, damaged) = Checkpoint::newest(checkpoints);
        let newest = newest.expect("a checkpoint");
        assert_eq!((newest.step(), newest.state()["epoch"].as_u64()), (100, Some(10)));
        assert!(damaged.is_empty() && newest.file("a.bin").is_ok() && newest.file("c.bin").is_err());
        assert_eq!(fs::read_to_string(checkpoints.join("latest")).expect("reads"), "step-00000100\n");
    }

    #[test]
    fn damage_is_named_and_an_older_one_is_used() {
        type Harm = fn(&Path);
        let harms: &[(Harm, &str)] = &[
            (|path| fs::write(path.join("b.bin"), [7; 99]).expect("writes"), "b.bin: has 99 bytes, not 100"),
            (|path| fs::write(path.join("b.bin"), [8; 100]).expect("writes"), "b.bin: its checksum differs"),
            (|path| fs::remove_file(path.join("a.bin")).expect("removes"), "a.bin: No such file"),
            (|path| fs::write(path.join(INDEX), "{\"format\": 1, ").expect("writes"), "checkpoint.json: EOF"),
            (|path| fs::remove_file(path.join(INDEX)).expect("removes"), "checkpoint.json: No such file"),
        ];
        for (harm, words) in harms {
            let folder = tempfile::tempdir().expect("a folder");
            save(folder.path(), 1, "x").expect("saves");
            let newer = save(folder.path(), 2, "y").expect("saves");
            harm(newer.folder());
            let (newest, damaged) = Checkpoint::newest(folder.path());
            assert_eq!(newest.map(|found| found.step()), Some(1), "{words}");
            assert!(damaged[0].to_string().contains(words), "{}", damaged[0]);
            // A run that goes on from the older one replaces the damaged one.
            save(folder.path(), 2, "z").expect("saves");
            assert_eq!(Checkpoint::newest(folder.path()).0.map(|found| found.step()), Some(2));
        }
    }

    #[test]
    fn failing_to_save_damages_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        save(folder.path(), 1, "x").expect("saves");
        // As when the disk is full half way.
        let failed = Checkpoint::save(folder.path(), 2, 1, Map::new(), |aside| {
            fs::write(aside.join("a.bin"), "half")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        let message = failed.expect_err("a full disk").to_string();
        assert!(message.starts_with("checkpoint of step 2: "), "{message}");
        assert_eq!(steps(folder.path()), [1]);
        assert_eq!(Checkpoint::newest(folder.path()).0.map(|found| found.step()), Some(1));
        // What a killed run left behind goes when the next checkpoint comes.
        fs::create_dir(folder.path().join(".tmp-step-00000002")).expect("a folder");
        save(folder.path(), 3, "x").expect("saves");
        let hidden = fs::read_dir(folder.path()).expect("lists").filter_map(Result::ok);
        assert!(!hidden.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().starts_with('.')));
    }
}
