//! Megatron-LM's index of a token file.
//!
//! `MMIDIDX\0\0`, a version (u64 1), the type of tokens (u8: 4 = i32, 8 = u16), the numbers of sequences and of document
//! borders (u64 each), the length of each sequence (i32), its offset in bytes (i64), and the first sequence of each document
//! with one more at the end (i64).

use std::path::Path;
use std::sync::Arc;

use phalanx_data::{DataError, Links, Result};

use super::{ShardFormat, TokenShard, Width, opened};

/// The beginning of an index.
pub(super) const MAGIC: &[u8] = b"MMIDIDX\0\0";

/// The number of a type of tokens.
pub(super) fn type_code(width: Width) -> u8 {
    match width {
        Width::Two => 8,
        Width::Four => 4,
    }
}

/// Opens a file of tokens with its index. The sequences must follow each other without gaps.
pub(super) fn open(bin: &Path, index: &Path) -> Result<TokenShard> {
    let bytes = Links::Follow.read(index).map_err(|error| DataError::io(index, error))?;
    let parsed = parse(&bytes).map_err(|reason| DataError::file(index, reason))?;
    let (file, found) = opened(bin)?;
    let needed = parsed.len * parsed.width.bytes();
    if needed != found {
        let reason = format!(
            "{found} bytes, but {} describes {needed}: the file is cut short or damaged",
            index.display()
        );
        return Err(DataError::file(bin, reason));
    }
    Ok(TokenShard {
        path: bin.to_owned(),
        file: Arc::new(file),
        format: ShardFormat::Megatron,
        width: parsed.width,
        begin: 0,
        len: parsed.len,
        documents: Some(parsed.documents.into()),
    })
}

/// The facts of an index.
struct Index {
    width: Width,
    len: u64,
    documents: Vec<u64>,
}

fn parse(bytes: &[u8]) -> std::result::Result<Index, String> {
    let mut rest = bytes.strip_prefix(MAGIC).ok_or("not an index of Megatron-LM")?;
    let version = number(&mut rest)?;
    if version != 1 {
        return Err(format!("version {version}; expected 1"));
    }
    let (&code, after) = rest.split_first().ok_or_else(cut_short)?;
    rest = after;
    let width = match code {
        8 => Width::Two,
        4 => Width::Four,
        other => return Err(format!("tokens of type {other}; expected 8 (u16) or 4 (i32)")),
    };
    let (sequences, borders) = (number(&mut rest)?, number(&mut rest)?);
    let expected = sequences.checked_mul(12).and_then(|bytes| bytes.checked_add(borders.checked_mul(8)?));
    if expected != Some(rest.len() as u64) {
        return Err(format!(
            "{} bytes of tables, but {sequences} sequences and {borders} document borders need another number",
            rest.len()
        ));
    }
    let (lengths, rest) = rest.split_at(4 * sequences as usize);
    let (offsets, borders) = rest.split_at(8 * sequences as usize);
    let mut starts = Vec::with_capacity(sequences as usize + 1);
    let mut len = 0_u64;
    for (at, (length, offset)) in lengths.chunks_exact(4).zip(offsets.chunks_exact(8)).enumerate() {
        let offset = eight(offset);
        if offset != len * width.bytes() {
            return Err(format!("sequence {at} begins at byte {offset}, not behind the one before"));
        }
        starts.push(len);
        let length = i32::from_le_bytes([length[0], length[1], length[2], length[3]]);
        len += u64::try_from(length).map_err(|_| format!("sequence {at} has {length} tokens"))?;
    }
    let mut documents = Vec::new();
    for border in borders.chunks_exact(8).map(eight) {
        match starts.get(border as usize) {
            Some(&start) => documents.push(start),
            None if border == sequences => {}
            None => return Err(format!("a document begins with sequence {border} of {sequences}")),
        }
    }
    if !documents.is_sorted() {
        return Err("its documents are not in order".to_owned());
    }
    documents.dedup();
    Ok(Index { width, len, documents })
}

fn number(rest: &mut &[u8]) -> std::result::Result<u64, String> {
    let (taken, others) = rest.split_at_checked(8).ok_or_else(cut_short)?;
    *rest = others;
    Ok(eight(taken))
}

fn eight(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn cut_short() -> String {
    "the index is cut short".to_owned()
}
