//! The properties of an operation that ranks must agree on, its number, and their encoding.

use super::algorithm::Algorithm;
use super::kind::Kind;
use crate::dtype::{DType, ReduceOp};

/// The properties of an operation that all ranks must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) kind: Kind,
    pub(crate) dtype: DType,
    /// The reduction, if the operation has one.
    pub(crate) op: Option<ReduceOp>,
    /// The algorithm.
    pub(crate) algorithm: Algorithm,
    /// The root rank, if the operation has one.
    pub(crate) root: Option<u32>,
    /// Elements of the whole buffer; 0 if ranks may differ.
    pub(crate) count: u64,
}

/// The code of no reduction.
const NO_OP: u8 = 0xff;

impl Tag {
    pub(crate) fn new(kind: Kind, dtype: DType, count: usize) -> Self {
        Self { kind, dtype, op: None, algorithm: Algorithm::Auto, root: None, count: count as u64 }
    }

    pub(crate) fn with_op(self, op: ReduceOp) -> Self {
        Self { op: Some(op), ..self }
    }

    pub(crate) fn with_root(self, root: usize) -> Self {
        Self { root: Some(root as u32), ..self }
    }

    pub(crate) fn with_algorithm(self, algorithm: Algorithm) -> Self {
        Self { algorithm, ..self }
    }

    /// Returns the bytes of the buffer.
    pub(crate) fn bytes(&self) -> usize {
        self.count as usize * self.dtype.size()
    }

    /// Encodes the tag: kind, type, reduction and algorithm in four bytes, the root plus one, and the count.
    pub(crate) fn packed(&self) -> (u32, u32, u64) {
        let op = self.op.map_or(NO_OP, |op| op as u8);
        let code = u32::from_le_bytes([self.kind as u8, self.dtype as u8, op, self.algorithm as u8]);
        (code, self.root.map_or(0, |root| root + 1), self.count)
    }

    /// Decodes a tag; `None` for codes that this version does not know.
    pub(crate) fn unpacked((code, root, count): (u32, u32, u64)) -> Option<Self> {
        let [kind, dtype, op, algorithm] = code.to_le_bytes();
        Some(Self {
            kind: *Kind::ALL.get(usize::from(kind))?,
            dtype: *DType::ALL.get(usize::from(dtype))?,
            op: if op == NO_OP { None } else { Some(*ReduceOp::ALL.get(usize::from(op))?) },
            algorithm: *Algorithm::ALL.get(usize::from(algorithm))?,
            root: root.checked_sub(1),
            count,
        })
    }

    /// Returns the operation's name with its reduction.
    pub(crate) fn name(&self) -> String {
        match self.op {
            Some(op) => format!("{} ({})", self.kind.name(), op.name()),
            None => self.kind.name().to_owned(),
        }
    }

    /// Describes the operation.
    pub(crate) fn describe(&self, sequence: u64) -> String {
        let mut text = self.name();
        if self.count > 0 {
            text += &format!(" of {} elements", self.count);
        }
        text += &format!(" {}", self.dtype.name());
        if let Some(root) = self.root {
            text += &format!(" with root {root}");
        }
        if self.algorithm != Algorithm::Auto {
            text += &format!(" by {}", self.algorithm.name());
        }
        text + &format!(" as operation {sequence}")
    }
}

/// The ranks of an operation, which decide the count that numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All ranks.
    World,
    /// This rank and the one that it sends to.
    To(usize),
    /// This rank and the one that it receives from.
    From(usize),
}

/// The number of operations of each scope so far. Messages between two ranks are numbered separately, so that the other ranks
/// still agree on the numbers of collective operations.
pub(crate) struct Sequences {
    world: u64,
    to: Vec<u64>,
    from: Vec<u64>,
}

impl Sequences {
    pub(crate) fn new(world_size: usize) -> Self {
        Self { world: 0, to: vec![0; world_size], from: vec![0; world_size] }
    }

    /// Returns the number of the next operation of a scope.
    pub(crate) fn next(&mut self, scope: Scope) -> u64 {
        let count = match scope {
            Scope::World => &mut self.world,
            Scope::To(rank) => &mut self.to[rank],
            Scope::From(rank) => &mut self.from[rank],
        };
        *count += 1;
        *count - 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn known_codes_round_trip_and_others_are_none(code: u32, root: u32, count: u64) {
            if let Some(tag) = Tag::unpacked((code, root, count)) {
                prop_assert_eq!(tag.packed(), (code, root, count));
            }
        }
    }
}
