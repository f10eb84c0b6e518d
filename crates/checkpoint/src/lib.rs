//! Checkpoints: folders that are complete or not there.
//!
//! A checkpoint is the folder `checkpoints/step-N` with some files of tensors and an index, `checkpoint.json`, which names
//! every file with its length and checksum, and says which elements of which tensor lie where: a range of them in a row, or a
//! range of every dimension ([`Region`]). Where state is sharded every
//! rank writes its own parts, into a hidden folder that rank 0 has made ([`StagingFolder`]); when all of it has reached the disk,
//! rank 0 adds the index and renames the folder into place, so that a run that is killed or meets a full disk while saving
//! damages nothing. What is read is read by name and region ([`Reader`]), so that the ranks that read need not be
//! those that have written.
//! The file `latest` names the newest for people and scripts; the program itself looks for the newest that is
//! complete. `best.json` names the best one, by a measure of the evaluations. `docs/checkpoints.md` has the layout.

#![forbid(unsafe_code)]

mod checksum;
mod error;
mod export;
mod file_entry;
mod finite;
mod hashes;
mod index;
mod newest;
mod piece;
mod read;
mod region;
mod retention;
mod snapshot;
mod write;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub use checksum::Checksum;
pub use error::CheckpointError;
pub use export::{ExportCount, ExportOptions, Renaming};
pub use file_entry::FileEntry;
pub use hashes::Hashes;
pub use index::Index;
pub use newest::newest_checkpoint;
pub use piece::{EMA, MODEL, Piece};
pub use read::Reader;
pub use region::Region;
pub use retention::Retention;
pub use snapshot::{PieceSource, SnapshotPiece, StateSnapshot, bytes_of, choose};
pub use write::{NewFile, NewPiece, StagingFolder};

/// A complete checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    folder: PathBuf,
    index: Index,
}

impl Checkpoint {
    fn new(folder: PathBuf, index: Index) -> Self {
        Self { folder, index }
    }

    /// Opens a checkpoint and checks every file against the index, its contents included.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] naming the file that is missing, truncated or changed.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        Self::open_share(folder, 0, 1)
    }

    /// Opens a checkpoint as one of `readers` that open it together: each checks that all files are there and as long as they
    /// should be, and the contents of every `readers`-th file, so that all contents are read once and not by everyone. It is
    /// sound if none finds anything.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] naming the file that is missing, truncated or changed.
    pub fn open_share(folder: &Path, reader: usize, readers: usize) -> Result<Self, CheckpointError> {
        let index = Index::read(folder)?;
        for expected in &index.files {
            let path = folder.join(&expected.name);
            let damaged = |problem: String| CheckpointError::damaged(&path, problem);
            let found = fs::metadata(&path).map_err(|error| damaged(error.to_string()))?.len();
            if found != expected.bytes {
                return Err(damaged(format!("has {found} bytes, not {}", expected.bytes)));
            }
        }
        for expected in index.files.iter().skip(reader).step_by(readers.max(1)) {
            let path = folder.join(&expected.name);
            let same = expected.checksum.is_of(&path);
            if !same.map_err(|error| CheckpointError::damaged(&path, error.to_string()))? {
                return Err(CheckpointError::damaged(&path, "its checksum differs"));
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

    /// The folders in `checkpoints` that are named as checkpoints, with their steps, the oldest first. They may be damaged.
    pub fn list(checkpoints: &Path) -> Vec<(u64, PathBuf)> {
        list(checkpoints)
    }

    /// Returns true if a complete checkpoint of `step` exists.
    pub fn exists(checkpoints: &Path, step: u64) -> bool {
        Self::open(&checkpoints.join(name(step))).is_ok()
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.index.step
    }

    /// Returns the counters that the run needs to continue.
    pub fn state(&self) -> &Map<String, Value> {
        &self.index.state
    }

    /// Returns the index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Reads tensors from it, or parts of them.
    pub fn reader(&self) -> Reader {
        Reader::new(self)
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn name(step: u64) -> String {
    format!("step-{step:08}")
}

/// Returns the step in the name of a checkpoint's folder; `None` if it is not named as one.
fn step_of(folder: &Path) -> Option<u64> {
    folder.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

/// The folders that are named as checkpoints, the oldest first.
fn list(checkpoints: &Path) -> Vec<(u64, PathBuf)> {
    let entries =
        fs::read_dir(checkpoints).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let mut found: Vec<_> = entries.filter_map(|path| Some((step_of(&path)?, path))).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};
    use phalanx_run::BestEvaluation;

    use super::*;

    /// Elements `start..` of a tensor `w` of ten, numbered, as one rank would write them.
    fn file(rank: usize, values: &[f32], start: usize) -> NewFile {
        let region = Region::from(start..start + values.len());
        let values = Tensor::new(values, &Device::Cpu).expect("a tensor");
        let piece = NewPiece {
            kind: MODEL.to_owned(),
            name: "w".to_owned(),
            shape: vec![2, 5],
            region,
            key: "model.w".to_owned(),
            values,
        };
        NewFile { name: format!("rank-{rank}.safetensors"), pieces: vec![piece] }
    }

    /// Saves as three ranks would, one of which has nothing.
    fn save(checkpoints: &Path, step: u64, keep: usize) -> Result<Checkpoint, CheckpointError> {
        let staging = StagingFolder::create(checkpoints, step, step + 7)?;
        let other = StagingFolder::join(checkpoints, step, step + 7, 1)?;
        staging.write(0, vec![file(0, &[0.0, 1.0, 2.0, 3.0], 0)])?;
        other.write(1, vec![file(1, &[4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 4)])?;
        other.write(2, Vec::new())?;
        staging.commit(3, Map::from_iter([("epoch".to_owned(), Value::from(step / 10))]), keep)
    }

    fn steps(checkpoints: &Path) -> Vec<u64> {
        list(checkpoints).into_iter().map(|(step, _)| step).collect()
    }

    fn hidden(checkpoints: &Path) -> Vec<String> {
        let entries = fs::read_dir(checkpoints).expect("lists").filter_map(Result::ok);
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with('.')).collect()
    }

    #[test]
    fn the_newest_are_kept_and_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let checkpoints = folder.path();
        assert_eq!(Checkpoint::newest(checkpoints).0, None);
        for step in [5, 20, 100] {
            let saved = save(checkpoints, step, 2).expect("saves");
            assert_eq!(
                Checkpoint::open(saved.folder()).expect("opens"),
                saved,
                "what is read is what was written"
            );
        }
        assert_eq!(steps(checkpoints), [20, 100]);
        let (newest, damaged) = Checkpoint::newest(checkpoints);
        let newest = newest.expect("a checkpoint");
        assert_eq!((newest.step(), newest.state()["epoch"].as_u64()), (100, Some(10)));
        assert!(damaged.is_empty() && hidden(checkpoints).is_empty());
        let files: Vec<&str> = newest.index().files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(files, ["rank-0.safetensors", "rank-1.safetensors"]);
        assert_eq!(fs::read_dir(newest.folder()).expect("lists").count(), 3, "the two and the index");
        assert_eq!(fs::read_to_string(checkpoints.join("latest")).expect("reads"), "step-00000100\n");
    }

    #[test]
    fn every_range_is_read_across_pieces() {
        let folder = tempfile::tempdir().expect("a folder");
        let checkpoint = save(folder.path(), 1, 2).expect("saves");
        let reader = checkpoint.reader();
        for start in 0..10 {
            for end in start..=10 {
                let target =
                    Tensor::zeros(end - start, candle_core::DType::F64, &Device::Cpu).expect("zeros");
                assert!(reader.read_into(MODEL, "w", &(start..end).into(), &target).expect("reads"));
                let expected: Vec<f64> = (start..end).map(|value| value as f64).collect();
                assert_eq!(target.to_vec1::<f64>().expect("numbers"), expected, "{start}..{end}");
            }
        }
        let whole = reader.read(MODEL, "w").expect("reads");
        assert_eq!((whole.dims(), whole.dtype()), (&[2, 5][..], candle_core::DType::F32));
        assert!(
            reader.read(MODEL, "v").expect_err("no such tensor").to_string().contains("lists no model `v`")
        );
        // Elements that no file has.
        let mut index = checkpoint.index().clone();
        index.tensors.remove(0);
        let cut = Checkpoint::new(checkpoint.folder().to_owned(), index);
        let error = cut.reader().read(MODEL, "w").expect_err("elements are missing").to_string();
        assert!(error.contains("elements 0..4 of model `w`"), "{error}");
    }

    #[test]
    fn damage_is_named_and_an_older_one_is_used() {
        type Corruption = fn(&Path);
        const FILE: &str = "rank-1.safetensors";
        fn change(path: &Path, how: impl Fn(&mut Vec<u8>)) {
            let path = path.join(FILE);
            let mut bytes = fs::read(&path).expect("reads");
            how(&mut bytes);
            fs::write(path, bytes).expect("writes");
        }
        fn change_index(path: &Path, how: impl Fn(&str) -> String) {
            let path = path.join(index::INDEX);
            let text = fs::read_to_string(&path).expect("reads");
            fs::write(path, how(&text)).expect("writes");
        }
        let harms: &[(Corruption, &str)] = &[
            (|path| change(path, |bytes| bytes.truncate(95)), "rank-1.safetensors: has "),
            (|path| change(path, |bytes| bytes[80] ^= 1), "rank-1.safetensors: its checksum differs"),
            (|path| fs::remove_file(path.join(FILE)).expect("removes"), "rank-1.safetensors: No such file"),
            (
                |path| fs::write(path.join(index::INDEX), "{\"format\": 1, ").expect("writes"),
                "checkpoint.json: EOF",
            ),
            (
                |path| fs::remove_file(path.join(index::INDEX)).expect("removes"),
                "checkpoint.json: No such file",
            ),
            (
                |path| change_index(path, |text| index::seal_after(text, ("\"end\":10", "\"end\":11"))),
                "says that elements 4..11 of model `w`",
            ),
            (
                |path| change_index(path, |text| text.replace("\"end\":10", "\"end\":9")),
                "checkpoint.json: its checksum differs",
            ),
            (
                |path| change_index(path, |text| text.replace("\"epoch\":0", "\"epoch\":1")),
                "checkpoint.json: its checksum differs",
            ),
            (|path| change_index(path, |text| text.replace("blake3", "sha256")), "checkpoint.json"),
            (
                |path| {
                    change_index(path, |text| {
                        index::seal_after(text, ("\"step\": 2", "\"step\": 9223372036854775808"))
                    });
                },
                "is of step 9223372036854775808, and its folder is named as step 2",
            ),
            (
                |path| change_index(path, |text| text.replace("\"format\": 4", "\"format\": 3")),
                "has format 3; this program reads format 4",
            ),
        ];
        for (harm, words) in harms {
            let folder = tempfile::tempdir().expect("a folder");
            save(folder.path(), 1, 2).expect("saves");
            let newer = save(folder.path(), 2, 2).expect("saves");
            harm(newer.folder());
            let (newest, damaged) = Checkpoint::newest(folder.path());
            assert_eq!(newest.map(|found| found.step()), Some(1), "{words}");
            assert!(damaged[0].to_string().contains(words), "{}", damaged[0]);
            // Of several readers one finds what is in a file, and all find what is about a file.
            let found = [0, 1].map(|reader| Checkpoint::open_share(newer.folder(), reader, 2).is_err());
            let contents = words.contains("safetensors: its checksum");
            assert_eq!(found, [!contents, true], "{words}");
            // A run that goes on from the older one replaces the damaged one, and keeps what it has until then.
            assert!(!Checkpoint::exists(folder.path(), 2));
            save(folder.path(), 2, 1).expect("saves");
            assert_eq!(Checkpoint::newest(folder.path()).0.map(|found| found.step()), Some(2));
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        save(folder.path(), 1, 2).expect("saves");
        let newer = save(folder.path(), 2, 2).expect("saves").folder().to_owned();
        let files = fs::read_dir(&newer).expect("lists").map(|entry| entry.expect("a file").path());
        for path in files.collect::<Vec<_>>() {
            let whole = fs::read(&path).expect("reads");
            for bit in (0..8 * whole.len()).step_by(7) {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                fs::write(&path, bytes).expect("writes");
                let (found, damaged) = Checkpoint::newest(folder.path());
                assert_eq!(found.map(|found| found.step()), Some(1), "bit {bit} of {}", path.display());
                let name = path.file_name().expect("a name").to_string_lossy();
                assert!(damaged[0].to_string().contains(&*name), "{}", damaged[0]);
            }
            fs::write(&path, whole).expect("writes");
        }
        assert_eq!(Checkpoint::newest(folder.path()).0.map(|found| found.step()), Some(2));
    }

    #[test]
    fn a_damaged_newer_one_does_not_cost_the_one_that_was_just_written() {
        let folder = tempfile::tempdir().expect("a folder");
        save(folder.path(), 3, 1).expect("saves");
        let newer = save(folder.path(), 6, 2).expect("saves");
        fs::remove_file(newer.folder().join("rank-0.safetensors")).expect("removes");
        save(folder.path(), 4, 1).expect("saves");
        assert_eq!(Checkpoint::newest(folder.path()).0.map(|found| found.step()), Some(4));
    }

    #[test]
    fn the_best_one_is_kept_and_marked_once_it_is_complete() {
        let folder = tempfile::tempdir().expect("a folder");
        let best = |step, value| BestEvaluation { measure: "test_loss".to_owned(), step, value };
        let save_with = |step, best: Option<BestEvaluation>| {
            let staging = StagingFolder::create(folder.path(), step, step + 7).expect("a folder");
            staging.write(0, vec![file(0, &[1.0], 0)]).expect("writes");
            staging.commit(1, Map::new(), Retention { keep: 1, best }).expect("completes")
        };
        let marked = || {
            let best = Checkpoint::best(folder.path()).expect("reads");
            best.map(|(checkpoint, best)| (checkpoint.step(), best.value))
        };
        save_with(1, None);
        assert_eq!(marked(), None);
        save_with(2, Some(best(2, 0.1 + 0.2)));
        save_with(3, Some(best(2, 0.1 + 0.2)));
        save_with(4, Some(best(2, 0.1 + 0.2)));
        assert_eq!((steps(folder.path()), marked()), (vec![2, 4], Some((2, 0.1 + 0.2))));
        // The checkpoint of a better evaluation is not complete: the one before remains.
        save_with(5, Some(best(6, 0.25)));
        assert_eq!((steps(folder.path()), marked()), (vec![2, 5], Some((2, 0.1 + 0.2))));
        save_with(6, Some(best(6, 0.25)));
        assert_eq!((steps(folder.path()), marked()), (vec![6], Some((6, 0.25))));
        // One that was saved before its evaluation is marked afterwards.
        save_with(7, Some(best(6, 0.25)));
        let retention = Retention { keep: 1, best: Some(best(7, 0.125)) };
        retention.apply(folder.path(), 7).expect("marks");
        assert_eq!((steps(folder.path()), marked()), (vec![7], Some((7, 0.125))));
        // Without a rule for it, a marked one stays.
        save(folder.path(), 8, 1).expect("saves");
        assert_eq!(steps(folder.path()), [7, 8]);
        fs::write(folder.path().join("best.json"), "{").expect("writes");
        let error = Checkpoint::best(folder.path()).expect_err("damaged").to_string();
        assert!(error.contains("best.json"), "{error}");
    }

    #[test]
    fn failing_to_save_damages_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        save(folder.path(), 1, 1).expect("saves");
        let staging = StagingFolder::create(folder.path(), 2, 1).expect("a folder");
        staging.write(0, vec![file(0, &[1.0], 0)]).expect("writes");
        // A rank that has written nothing, and a file that is not where it was written.
        let error = staging.commit(2, Map::new(), 1).expect_err("rank 1 has not written").to_string();
        assert!(error.starts_with("checkpoint of step 2: cannot read ") && error.contains("by-1"), "{error}");
        staging.write(0, vec![file(0, &[1.0], 0)]).expect("writes");
        let files = fs::read_dir(folder.path().join(hidden(folder.path()).remove(0))).expect("lists");
        let file = files.filter_map(Result::ok).find(|file| file.file_name() == "rank-0.safetensors");
        fs::write(file.expect("the file").path(), "short").expect("writes");
        let error = staging.commit(1, Map::new(), 1).expect_err("a file is short").to_string();
        assert!(error.contains("rank-0.safetensors") && error.contains("5 are here"), "{error}");
        staging.abandon();
        assert!(hidden(folder.path()).is_empty());
        // A rank that does not share the folder, and one that joins an attempt that is over.
        let error = StagingFolder::join(folder.path(), 2, 1, 3).expect_err("no folder").to_string();
        assert!(error.contains("rank 3 does not see ") && error.contains("must share"), "{error}");
        assert_eq!(steps(folder.path()), [1]);
        assert_eq!(Checkpoint::newest(folder.path()).0.map(|found| found.step()), Some(1));
        // What a killed run left behind goes when the next checkpoint comes.
        fs::create_dir(folder.path().join(".tmp-step-00000002-0000000000001")).expect("a folder");
        save(folder.path(), 3, 1).expect("saves");
        assert!(hidden(folder.path()).is_empty());
    }
}

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
