//! The format of messages with one scale for each chunk of numbers.

use super::integer::{int4_len, scales_len};
use super::sign::sign_len;

/// The encoding of a number of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkKind {
    /// An integer of 8 bits; the scale is the largest magnitude over 127 ([`super::quantise_int8`]).
    Int8,
    /// An integer of 4 bits; the scale is the largest magnitude over 7 ([`super::quantise_int4`]).
    Int4,
    /// One of 127 levels to each side of 0, rounded at random; the scale is the norm ([`super::quantise_stochastic`]).
    Qsgd,
    /// A bit, its sign; the scale is the mean magnitude ([`super::sign_encode`]).
    Sign,
}

impl ChunkKind {
    /// The name of its codecs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Qsgd => "qsgd",
            Self::Sign => "sign",
        }
    }
}

/// A message of numbers in chunks: an f32 scale for each chunk, then all encoded numbers. The last chunk may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkFormat {
    /// The encoding of a number.
    pub kind: ChunkKind,
    /// Numbers that share a scale.
    pub chunk: usize,
}

impl ChunkFormat {
    /// Levels of QSGD to each side of 0.
    pub const LEVELS: u8 = 127;

    /// Bytes of the scales of a message of `len` numbers.
    pub fn scale_bytes(self, len: usize) -> usize {
        4 * scales_len(len, self.chunk)
    }

    /// Bytes of a message of `len` numbers.
    pub fn message_len(self, len: usize) -> usize {
        let numbers = match self.kind {
            ChunkKind::Int8 | ChunkKind::Qsgd => len,
            ChunkKind::Int4 => int4_len(len),
            ChunkKind::Sign => sign_len(len),
        };
        self.scale_bytes(len) + numbers
    }
}
