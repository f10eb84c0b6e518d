//! Writing a checkpoint: by all ranks into one hidden folder, which rank 0 renames into place when it is complete.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use candle_core::Tensor;
use phalanx_tensor::io::{TensorHeader, sort_for_safetensors, write_elements, write_header};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::checksum::HashingWriter;
use super::hashes::{Hashes, SummingWriter, TensorSum, WrittenElements, hashes};
use super::index::{FORMAT, INDEX, Index};
use super::region::Region;
use super::{Checkpoint, CheckpointError, FileEntry, Piece, Retention, list, name};
use phalanx_run::{Links, sync_folder, write_aside};

/// A piece that is to be written, with its elements.
#[derive(Debug)]
pub struct NewPiece {
    /// See [`Piece::kind`].
    pub kind: String,
    /// The name in the reference state dict.
    pub name: String,
    /// The whole tensor's shape.
    pub shape: Vec<usize>,
    /// The elements in this piece.
    pub region: Region,
    /// The tensor's name in the file.
    pub key: String,
    /// The elements, as many as the region has. They must not change until they are written.
    pub values: Tensor,
}

/// A file to be written.
#[derive(Debug)]
pub struct NewFile {
    /// Its name.
    pub name: String,
    /// The pieces in it.
    pub pieces: Vec<NewPiece>,
}

/// The files and pieces that one rank has written, for the index.
#[derive(Debug, Default, Serialize, Deserialize)]
struct RankFiles {
    files: Vec<FileEntry>,
    tensors: Vec<Piece>,
    sums: Vec<TensorSum>,
}

/// The hidden folder that ranks write a checkpoint into before it is renamed into place. Clones are handles.
#[derive(Debug, Clone)]
pub struct StagingFolder {
    checkpoints: PathBuf,
    step: u64,
    ticket: u64,
    path: PathBuf,
}

impl StagingFolder {
    /// Creates the folder, and removes leftovers of interrupted saves. `ticket` is a number that no other attempt has. Only rank 0 calls
    /// this.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(checkpoints: &Path, step: u64, ticket: u64) -> Result<Self, CheckpointError> {
        remove_leftovers(checkpoints);
        let staging = Self::at(checkpoints, step, ticket);
        fs::create_dir_all(&staging.path).map_err(CheckpointError::io(step, "create", &staging.path))?;
        Ok(staging)
    }

    /// Returns the folder that rank 0 has created.
    ///
    /// # Errors
    /// [`CheckpointError::NotShared`] if this rank does not find it.
    pub fn join(checkpoints: &Path, step: u64, ticket: u64, rank: usize) -> Result<Self, CheckpointError> {
        let staging = Self::at(checkpoints, step, ticket);
        match staging.path.is_dir() {
            true => Ok(staging),
            false => Err(CheckpointError::NotShared { step, rank, path: staging.path }),
        }
    }

    /// Returns the folder of a ticket, which need not exist.
    pub fn at(checkpoints: &Path, step: u64, ticket: u64) -> Self {
        // The ticket in its name tells the folder of this attempt from leftovers.
        let path = checkpoints.join(format!(".tmp-{}-{ticket:013x}", name(step)));
        Self { checkpoints: checkpoints.to_owned(), step, ticket, path }
    }

    /// Returns the step of the checkpoint.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns the number that no other attempt has.
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Returns the error of an `action` that failed on the folder.
    pub fn failed(&self, action: &'static str, source: io::Error) -> CheckpointError {
        CheckpointError::io(self.step, action, &self.path)(source)
    }

    /// Writes a rank's files and syncs them to disk, then a list of them for [`StagingFolder::commit`]. Frees the memory of each piece as
    /// soon as it is written.
    ///
    /// # Errors
    /// Naming the file that cannot be written.
    pub fn write(&self, rank: usize, files: Vec<NewFile>) -> Result<(), CheckpointError> {
        let mut written = RankFiles::default();
        for file in files {
            let path = self.path.join(&file.name);
            let entry = self.write_file(&path, file, (&mut written.tensors, &mut written.sums));
            written.files.push(entry?);
        }
        let path = self.path.join(note(rank));
        let bytes = serde_json::to_vec(&written).map_err(io::Error::from);
        bytes
            .and_then(|bytes| write_aside(&path, &bytes))
            .map_err(CheckpointError::io(self.step, "write", &path))
    }

    fn write_file(
        &self,
        path: &Path,
        mut file: NewFile,
        (pieces, sums): (&mut Vec<Piece>, &mut Vec<TensorSum>),
    ) -> Result<FileEntry, CheckpointError> {
        let io = |source| CheckpointError::io(self.step, "write", path)(source);
        sort_for_safetensors(&mut file.pieces, |piece| (&piece.key, piece.values.dtype()));
        let header = |piece: &NewPiece| TensorHeader {
            name: piece.key.clone(),
            dtype: piece.values.dtype(),
            shape: piece.values.dims().to_vec(),
        };
        let headers: Vec<_> = file.pieces.iter().map(header).collect();
        let mut out = BufWriter::with_capacity(1 << 20, HashingWriter::new(File::create(path).map_err(io)?));
        write_header(&mut out, &headers, &[]).map_err(io)?;
        for NewPiece { kind, name, shape, region, key, values } in file.pieces {
            let count = values.elem_count();
            if !region.fits(&shape) || region.len() != count {
                let problem =
                    format!("{count} elements cannot be {region} of {kind} `{name}` of shape {shape:?}");
                return Err(io(io::Error::new(io::ErrorKind::InvalidInput, problem)));
            }
            let (dtype, file) = (values.dtype().as_str().to_owned(), file.name.clone());
            let piece = Piece { kind, name, dtype, shape, region, file, key };
            let mut summing = SummingWriter::new(&mut out, &piece, values.dtype());
            write_elements(&mut summing, &values).map_err(io)?;
            let WrittenElements { sum, non_finite } = summing.finish();
            if non_finite > 0 {
                let Piece { kind, name, .. } = piece;
                return Err(CheckpointError::NotFinite { step: self.step, kind, name, count: non_finite });
            }
            sums.push(sum);
            pieces.push(piece);
        }
        out.flush().map_err(io)?;
        let hashing = out.into_inner().map_err(io::IntoInnerError::into_error).map_err(io)?;
        let (out, bytes, checksum) = hashing.finish();
        out.sync_all().map_err(io)?;
        Ok(FileEntry { name: file.name, bytes, checksum })
    }

    /// Completes the checkpoint from the files of `ranks` ranks, then removes older checkpoints by the `retention`: a rule, or the number of
    /// newest ones to keep. Only rank 0 calls this, once all ranks have written.
    ///
    /// # Errors
    /// If a rank's list or file is missing, or a write fails. Existing checkpoints are then untouched.
    pub fn commit(
        &self,
        ranks: usize,
        state: Map<String, Value>,
        retention: impl Into<Retention>,
    ) -> Result<Checkpoint, CheckpointError> {
        let (step, checkpoints) = (self.step, &self.checkpoints);
        let io = |action, path: &Path| CheckpointError::io(step, action, path);
        let mut index = Index {
            format: FORMAT,
            step,
            state,
            hashes: Hashes::new(),
            files: Vec::new(),
            tensors: Vec::new(),
        };
        let mut sums = Vec::new();
        for rank in 0..ranks {
            let path = self.path.join(note(rank));
            let bytes = Links::Refuse.read(&path).map_err(io("read", &path))?;
            let written: RankFiles =
                serde_json::from_slice(&bytes).map_err(io::Error::from).map_err(io("read", &path))?;
            for file in &written.files {
                let path = self.path.join(&file.name);
                let found = fs::metadata(&path).map_err(io("find", &path))?.len();
                if found != file.bytes {
                    let problem =
                        format!("rank {rank} has written {} bytes, and {found} are here", file.bytes);
                    return Err(io("use", &path)(io::Error::other(problem)));
                }
            }
            index.files.extend(written.files);
            index.tensors.extend(written.tensors);
            sums.extend(written.sums);
            fs::remove_file(&path).map_err(io("remove", &path))?;
        }
        index.hashes = hashes(sums);
        index.files.sort_by(|a, b| a.name.cmp(&b.name));
        let first =
            |piece: &Piece| piece.region.intervals(&piece.shape).first().map_or(0, |interval| interval.start);
        let order = |piece: &Piece| (piece.kind.clone(), piece.name.clone(), first(piece));
        index.tensors.sort_by_cached_key(order);
        let path = self.path.join(INDEX);
        // This syncs the folder as well, and with it the names of the ranks' files.
        let text = index.to_json().map_err(io::Error::from);
        text.and_then(|text| write_aside(&path, text.as_bytes())).map_err(io("write", &path))?;
        let folder = checkpoints.join(name(step));
        if folder.exists() {
            // An incomplete folder of that name is not from this program, which renames only complete ones.
            let old = checkpoints.join(format!(".old-{}", name(step)));
            fs::rename(&folder, old).map_err(io("move away", &folder))?;
        }
        fs::rename(&self.path, &folder).map_err(io("rename", &self.path))?;
        sync_folder(checkpoints).map_err(io("sync", checkpoints))?;
        let latest = checkpoints.join("latest");
        write_aside(&latest, format!("{}\n", name(step)).as_bytes()).map_err(io("write", &latest))?;
        retention.into().apply(checkpoints, step)?;
        Ok(Checkpoint::new(folder, index))
    }

    /// Removes leftovers of interrupted saves, and makes `latest` name the newest checkpoint. The next save repeats
    /// failed actions. Only rank 0 calls this, while no rank writes.
    pub fn clear(checkpoints: &Path) {
        remove_leftovers(checkpoints);
        let latest = checkpoints.join("latest");
        if let Some((step, _)) = list(checkpoints).last() {
            let newest = format!("{}\n", name(*step));
            if Links::Refuse.read_text(&latest).is_ok_and(|there| there != newest) || !latest.exists() {
                let _ = write_aside(&latest, newest.as_bytes());
            }
        }
    }

    /// Removes the folder, so that a full disk has space again. Only rank 0 calls this, once no rank writes.
    pub fn abandon(&self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Returns the name of the list of a rank's files.
fn note(rank: usize) -> String {
    format!("written-by-{rank}.json")
}

/// Removes leftovers of interrupted saves.
fn remove_leftovers(checkpoints: &Path) {
    for entry in fs::read_dir(checkpoints).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(".tmp-step-") || name.starts_with(".old-step-") {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
