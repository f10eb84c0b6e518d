//! Pieces of training state in memory, in the form of checkpoints. Ranks exchange them when their world changes. A
//! [`Reader`] finds them by name and region, as it does in files.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_tensor::io::write_elements;
use serde_json::{Map, Value};

use super::read::Reader;
use super::region::{Interval, find};
use super::{CheckpointError, NewPiece, Piece};

/// The state of one rank after a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StateSnapshot {
    /// Steps done.
    pub step: u64,
    /// The counters that the index of a checkpoint would hold.
    pub state: Map<String, Value>,
    /// The elements that the rank holds.
    pub pieces: Vec<SnapshotPiece>,
}

/// Some elements of a tensor, in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotPiece {
    /// Their tensor and region.
    pub piece: Piece,
    /// The elements, as little-endian bytes.
    pub bytes: Arc<Vec<u8>>,
}

/// The rank that sends a piece, and the piece's index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceSource {
    /// The rank.
    pub rank: usize,
    /// The index among the rank's pieces.
    pub at: usize,
}

impl SnapshotPiece {
    /// Copies the elements of a piece that would be written into a file.
    ///
    /// # Errors
    /// [`CheckpointError::Unfit`] if the elements have a type that is not saved.
    pub fn copy(new: &NewPiece) -> Result<Self, CheckpointError> {
        let NewPiece { kind, name, shape, region, key, values } = new;
        let dtype = values.dtype();
        let mut bytes = Vec::with_capacity(values.elem_count() * dtype.size_in_bytes());
        write_elements(&mut bytes, values).map_err(|error| unfit(format!("{kind} `{name}`: {error}")))?;
        let piece = Piece {
            kind: kind.clone(),
            name: name.clone(),
            dtype: dtype.as_str().to_owned(),
            shape: shape.clone(),
            region: region.clone(),
            file: String::new(),
            key: key.clone(),
        };
        Ok(Self { piece, bytes: Arc::new(bytes) })
    }
}

impl StateSnapshot {
    /// Returns the size of all elements in bytes.
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.bytes.len()).sum()
    }

    /// Returns a reader of the pieces.
    pub fn reader(&self) -> Reader {
        Reader::of_memory(self.pieces.iter().map(|piece| (piece.piece.clone(), piece.bytes.clone())))
    }
}

/// Returns the size of a piece's elements in bytes.
///
/// # Errors
/// [`CheckpointError::Unfit`] if their type is unknown, or they are more than any memory has.
pub fn bytes_of(piece: &Piece) -> Result<usize, CheckpointError> {
    let dtype =
        piece.element_type().ok_or_else(|| unfit(format!("`{}` is of an unknown type", piece.dtype)))?;
    let bytes = piece.region.len().checked_mul(dtype.size_in_bytes());
    bytes.ok_or_else(|| unfit(format!("{} of `{}` is more than any memory has", piece.region, piece.name)))
}

/// Chooses pieces, by rank, that together hold all elements. No element is chosen twice unless pieces overlap in part;
/// the first rank that has a piece gives it. Returns `None` if elements are missing of a tensor that some rank has in
/// part, or that `wanted` names by kind and name.
pub fn choose<'w>(
    of_ranks: &[Vec<Piece>],
    wanted: impl IntoIterator<Item = (&'w str, &'w str)>,
) -> Option<Vec<PieceSource>> {
    let mut chosen = Vec::new();
    // The missing elements of each tensor, by kind and name.
    let mut missing: BTreeMap<(&str, &str), Vec<Interval>> = BTreeMap::new();
    for (rank, pieces) in of_ranks.iter().enumerate() {
        for (at, piece) in pieces.iter().enumerate() {
            let whole = || super::Region::whole(&piece.shape).intervals(&piece.shape);
            let missing = missing.entry((&piece.kind, &piece.name)).or_insert_with(whole);
            let (shared, left) = find(missing, &piece.region.intervals(&piece.shape));
            if !shared.is_empty() {
                chosen.push(PieceSource { rank, at });
                *missing = left;
            }
        }
    }
    let all_there = missing.values().all(Vec::is_empty);
    (all_there && wanted.into_iter().all(|name| missing.contains_key(&name))).then_some(chosen)
}

fn unfit(problem: String) -> CheckpointError {
    CheckpointError::Unfit { path: "memory".into(), problem }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;
    use crate::{MODEL, Region};

    fn snapshot_piece(start: usize, values: &[f32]) -> SnapshotPiece {
        let new = NewPiece {
            kind: MODEL.to_owned(),
            name: "w".to_owned(),
            shape: vec![2, 4],
            region: Region::from(start..start + values.len()),
            key: "model.w".to_owned(),
            values: Tensor::new(values, &Device::Cpu).expect("a tensor"),
        };
        SnapshotPiece::copy(&new).expect("f32 is saved")
    }

    #[test]
    fn pieces_of_several_ranks_are_read_as_from_files() {
        let parts = [
            snapshot_piece(0, &[0.0, 1.0, 2.0]),
            snapshot_piece(2, &[2.0, 3.0, 4.0]),
            snapshot_piece(5, &[5.0, 6.0, 7.0]),
        ];
        let pieces: Vec<Vec<Piece>> = parts.iter().map(|part| vec![part.piece.clone()]).collect();
        let chosen = choose(&pieces, [(MODEL, "w")]).expect("all is there");
        assert_eq!(chosen, [0, 1, 2].map(|rank| PieceSource { rank, at: 0 }));
        assert_eq!(choose(&pieces[1..], []), None, "the first elements are missing");
        assert_eq!(choose(&pieces, [(MODEL, "v")]), None, "no rank has it");
        let twice = [pieces[0].clone(), pieces[0].clone(), pieces[1].clone(), pieces[2].clone()];
        let chosen = choose(&twice, []).expect("all is there");
        assert_eq!(chosen.iter().map(|chosen| chosen.rank).collect::<Vec<_>>(), [0, 2, 3]);
        let all = StateSnapshot { step: 3, pieces: parts.to_vec(), ..StateSnapshot::default() };
        assert_eq!((all.bytes(), bytes_of(&parts[0].piece).ok()), (36, Some(12)));
        // Elements of half a byte, and more of them than there are bytes.
        let of = |dtype: &str, region| Piece { dtype: dtype.to_owned(), region, ..parts[0].piece.clone() };
        for damaged in [
            of("f4", Region::from(0..3)),
            of("f32", Region::from(0..usize::MAX)),
            of("x", Region::from(0..3)),
        ] {
            assert!(bytes_of(&damaged).is_err(), "{damaged:?}");
        }
        let reader = all.reader();
        let whole = reader.read(MODEL, "w").expect("reads").flatten_all().expect("flat");
        assert_eq!(whole.to_vec1::<f32>().expect("f32"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        let middle = Tensor::zeros(4, DType::F32, &Device::Cpu).expect("zeros");
        assert!(reader.read_into(MODEL, "w", &(2..6).into(), &middle).expect("reads"));
        assert_eq!(middle.to_vec1::<f32>().expect("f32"), [2.0, 3.0, 4.0, 5.0]);
        let lacking =
            StateSnapshot { pieces: vec![snapshot_piece(3, &[3.0])], ..StateSnapshot::default() }.reader();
        assert!(lacking.read(MODEL, "w").is_err(), "elements are missing");
        let mut short = snapshot_piece(0, &[1.0; 8]);
        short.bytes = Arc::new(vec![0; 31]);
        let error =
            StateSnapshot { pieces: vec![short], ..StateSnapshot::default() }.reader().read(MODEL, "w");
        assert!(error.expect_err("a byte is missing").to_string().contains("31 bytes"));
    }
}
