//! Byte-pair merges (Sennrich et al. 2016) over bytes (Radford et al. 2019).
//!
//! Token ids have a structure that keeps tables small: 0..256 are bytes within a word, 256..512 bytes at its end, and
//! 512 + i is merge i. So the id of a merge is also its rank.

use std::collections::HashMap;

/// The number of byte tokens: within a word and at its end.
pub(super) const BYTES: usize = 512;

/// The merge table. Maps are only used for lookups, so their iteration order does not matter.
#[derive(Debug)]
pub(super) struct Merges {
    /// The id of the token that a pair merges into.
    pairs: HashMap<(u32, u32), u32>,
    /// The pair of each merge.
    parts: Vec<(u32, u32)>,
    /// The token of each byte within a word.
    byte_ids: [u32; 256],
}

/// Returns the bytes in the order of their tokens: printable Latin-1 first, then the others.
fn byte_order() -> Vec<u8> {
    let printable = |b: &u8| (b'!'..=b'~').contains(b) || (0xa1..=0xac).contains(b) || *b >= 0xae;
    let (mut order, others): (Vec<u8>, Vec<u8>) = (0..=255).partition(printable);
    order.extend(others);
    order
}

/// Returns the character of each byte in the file of merges: itself if printable, else one from 256 on.
fn byte_characters() -> [char; 256] {
    let mut characters = ['\0'; 256];
    let mut next = 256_u32;
    let order = byte_order();
    let printable = order.iter().position(|byte| *byte == 0).unwrap_or(order.len());
    for (index, byte) in order.into_iter().enumerate() {
        characters[usize::from(byte)] = if index < printable {
            char::from(byte)
        } else {
            next += 1;
            char::from_u32(next - 1).unwrap_or('\u{fffd}')
        };
    }
    characters
}

impl Merges {
    /// Parses the first `count` merges of a text: a header line, then a pair a line.
    pub(super) fn parse(text: &str, count: usize) -> Result<Self, String> {
        let characters = byte_characters();
        let mut byte_ids = [0; 256];
        let mut ids: HashMap<String, u32> = HashMap::with_capacity(BYTES + count);
        for (id, byte) in byte_order().into_iter().enumerate() {
            byte_ids[usize::from(byte)] = id as u32;
            let character = characters[usize::from(byte)];
            ids.insert(character.to_string(), id as u32);
            ids.insert(format!("{character}</w>"), id as u32 + 256);
        }
        let mut pairs = HashMap::with_capacity(count);
        let mut parts = Vec::with_capacity(count);
        for (index, line) in text.lines().skip(1).take(count).enumerate() {
            let wrong = || format!("line {}: `{line}` is not a pair of known tokens", index + 2);
            let (left, right) = line.split_once(' ').ok_or_else(wrong)?;
            let pair = (*ids.get(left).ok_or_else(wrong)?, *ids.get(right).ok_or_else(wrong)?);
            let id = (BYTES + index) as u32;
            pairs.insert(pair, id);
            parts.push(pair);
            ids.insert(format!("{left}{right}"), id);
        }
        if parts.len() < count {
            return Err(format!("{} merges; expected {count}", parts.len()));
        }
        Ok(Self { pairs, parts, byte_ids })
    }

    /// Returns the size of the vocabulary, with the two special tokens.
    pub(super) fn vocab(&self) -> usize {
        BYTES + self.parts.len() + 2
    }

    /// Appends the ids of one piece of text.
    pub(super) fn encode(&self, piece: &str, ids: &mut Vec<u32>) {
        let mut word: Vec<u32> = piece.bytes().map(|byte| self.byte_ids[usize::from(byte)]).collect();
        if let Some(last) = word.last_mut() {
            *last += 256;
        }
        // The pair that was learnt first is merged everywhere, then the next, until no pair is known.
        while let Some((pair, merged)) = word
            .windows(2)
            .filter_map(|pair| Some(((pair[0], pair[1]), *self.pairs.get(&(pair[0], pair[1]))?)))
            .min_by_key(|(_, merged)| *merged)
        {
            let mut next = Vec::with_capacity(word.len());
            let mut at = 0;
            while at < word.len() {
                if at + 1 < word.len() && (word[at], word[at + 1]) == pair {
                    next.push(merged);
                    at += 2;
                } else {
                    next.push(word[at]);
                    at += 1;
                }
            }
            word = next;
        }
        ids.extend(word);
    }

    /// Decodes ids; bytes that are not UTF-8 become replacement characters.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        let order = byte_order();
        let mut bytes = Vec::new();
        let mut stack: Vec<u32> = ids.iter().rev().copied().collect();
        while let Some(id) = stack.pop() {
            let id = id as usize;
            if id < 256 {
                bytes.push(order[id]);
            } else if id < BYTES {
                bytes.extend([order[id - 256], b' ']);
            } else if let Some((left, right)) = self.parts.get(id - BYTES) {
                stack.extend([*right, *left]);
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
