//! What ranks must agree on: the operation's tag, its number, and how both are told to others.

use super::algorithm::Algorithm;
use crate::dtype::{DType, ReduceOp};

/// What an operation is; the position is its code on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllGatherV,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    AllToAll,
    AllToAllV,
    SendRecv,
    Barrier,
    Measure,
    AllReduceInPlace,
    ReduceScatterInPlace,
    AllGatherInPlace,
    Setup,
}

impl Kind {
    pub(crate) const ALL: [Self; 17] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::AllGatherV,
        Self::Broadcast,
        Self::Reduce,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::AllToAllV,
        Self::SendRecv,
        Self::Barrier,
        Self::Measure,
        Self::AllReduceInPlace,
        Self::ReduceScatterInPlace,
        Self::AllGatherInPlace,
        Self::Setup,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::AllGatherV => "all-gatherv",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all-to-all",
            Self::AllToAllV => "all-to-allv",
            Self::SendRecv => "send/receive",
            Self::Barrier => "barrier",
            Self::Measure => "measuring of links",
            Self::AllReduceInPlace => "all-reduce in place",
            Self::ReduceScatterInPlace => "reduce-scatter in place",
            Self::AllGatherInPlace => "all-gather in place",
            Self::Setup => "setting up",
        }
    }
}

/// What all ranks must agree on in one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) kind: Kind,
    pub(crate) dtype: DType,
    /// How values are reduced, where they are.
    pub(crate) op: Option<ReduceOp>,
    /// The way of the bytes.
    pub(crate) algorithm: Algorithm,
    /// The special rank, where there is one.
    pub(crate) root: Option<u32>,
    /// Elements of the whole buffer; 0 where ranks may differ.
    pub(crate) count: u64,
}

/// "None" in the place of an operation's code.
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

    /// Bytes of the buffer.
    pub(crate) fn bytes(&self) -> usize {
        self.count as usize * self.dtype.size()
    }

    /// Kind, type, operation and algorithm in four bytes, the root plus one, and the count.
    pub(crate) fn packed(&self) -> (u32, u32, u64) {
        let op = self.op.map_or(NO_OP, |op| op as u8);
        let code = u32::from_le_bytes([self.kind as u8, self.dtype as u8, op, self.algorithm as u8]);
        (code, self.root.map_or(0, |root| root + 1), self.count)
    }

    /// The reverse; `None` for codes that this version does not know.
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

    /// The operation's name, its reduction included.
    pub(crate) fn name(&self) -> String {
        match self.op {
            Some(op) => format!("{} ({})", self.kind.name(), op.name()),
            None => self.kind.name().to_owned(),
        }
    }

    /// The operation in words.
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

/// Who takes part in an operation, and thereby which count numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All ranks.
    World,
    /// This rank and the one that it sends to.
    To(usize),
    /// This rank and the one that it receives from.
    From(usize),
}

/// How many operations of each scope there have been. Messages between two ranks have numbers of their own, so
/// that ranks which take no part in them still agree on the numbers of the collective ones.
pub(crate) struct Sequences {
    world: u64,
    to: Vec<u64>,
    from: Vec<u64>,
}

impl Sequences {
    pub(crate) fn new(world_size: usize) -> Self {
        Self { world: 0, to: vec![0; world_size], from: vec![0; world_size] }
    }

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
        fn codes_that_are_known_come_back_and_others_are_none(code: u32, root: u32, count: u64) {
            if let Some(tag) = Tag::unpacked((code, root, count)) {
                prop_assert_eq!(tag.packed(), (code, root, count));
            }
        }
    }
}
