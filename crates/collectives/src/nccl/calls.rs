//! Calls of NCCL that make up each operation on one rank.
//!
//! NCCL's own operations cut buffers into equal parts. This crate's chunks differ by at most one element. If they are not equal, an
//! operation is a group of calls, one for each chunk, which NCCL runs as one.

use super::memory::{Span, SpanMut};
use crate::dtype::ReduceOp;
use crate::error::{CommError, Result};
use crate::operation::{Kind, Tag};
use crate::partition::chunk;

/// One call of NCCL.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Call<'a> {
    /// All-reduce: every rank's `to` becomes the reduction of all `from`.
    AllReduce { from: Span<'a>, to: SpanMut<'a>, op: ReduceOp },
    /// Reduce-scatter: `to` becomes this rank's part of the reduction; parts are equal.
    ReduceScatter { from: Span<'a>, to: SpanMut<'a>, op: ReduceOp },
    /// All-gather: every rank's `to` becomes all `from`, one after the other.
    AllGather { from: Span<'a>, to: SpanMut<'a> },
    /// Broadcast: every rank's `to` becomes the root's `from`; the others have none.
    Broadcast { from: Option<Span<'a>>, to: SpanMut<'a>, root: usize },
    /// Reduce: the root's `to` becomes the reduction of all `from`; the others have none.
    Reduce { from: Span<'a>, to: Option<SpanMut<'a>>, op: ReduceOp, root: usize },
    /// A message to a rank, which may be this one.
    Send { from: Span<'a>, to: usize },
    /// A message from a rank, which may be this one.
    Receive { to: SpanMut<'a>, from: usize },
}

impl Call<'_> {
    /// True if it moves nothing. All ranks of the call know that, so all leave it out.
    pub(super) fn is_empty(&self) -> bool {
        let len = match self {
            Self::AllReduce { from, .. }
            | Self::ReduceScatter { from, .. }
            | Self::AllGather { from, .. }
            | Self::Reduce { from, .. }
            | Self::Send { from, .. } => from.len(),
            Self::Broadcast { to, .. } | Self::Receive { to, .. } => to.len(),
        };
        len == 0
    }

    /// Returns the bytes sent and received by this rank, counted as in a ring: NCCL does not tell its algorithm.
    pub(super) fn moved(&self, member: Member) -> (u64, u64) {
        let bytes = |span: Span<'_>| (span.len() * span.dtype().size()) as u64;
        let (n, others) = (member.world_size as u64, member.world_size as u64 - 1);
        let both = |bytes: u64| (bytes, bytes);
        match *self {
            Self::AllReduce { from, .. } => both(2 * bytes(from) * others / n),
            Self::ReduceScatter { from, .. } | Self::Reduce { from, .. } => both(bytes(from) * others / n),
            Self::AllGather { from, .. } => both(bytes(from) * others),
            Self::Broadcast { to, .. } => both(bytes(to.read()) * others / n),
            Self::Send { from, to } => (if to == member.rank { 0 } else { bytes(from) }, 0),
            Self::Receive { to, from } => (0, if from == member.rank { 0 } else { bytes(to.read()) }),
        }
    }
}

/// A rank and the number of ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub(super) rank: usize,
    pub(super) world_size: usize,
}

impl Member {
    /// Returns this rank's chunk of `len` elements.
    pub(super) fn own(self, len: usize) -> std::ops::Range<usize> {
        chunk(len, self.world_size, self.rank)
    }

    fn even(self, len: usize) -> bool {
        len.is_multiple_of(self.world_size)
    }
}

/// Returns the calls of an operation of all ranks on a buffer, or on a buffer and this rank's separate part.
pub(super) fn of<'a>(
    tag: Tag,
    member: Member,
    all: SpanMut<'a>,
    apart: Option<SpanMut<'a>>,
) -> Result<Vec<Call<'a>>> {
    let part = || apart.unwrap_or_else(|| all.part(member.own(all.len())));
    let op = tag.op.unwrap_or(ReduceOp::Sum);
    let root = tag.root.map_or(0, |root| root as usize);
    let is_root = root == member.rank;
    Ok(match tag.kind {
        Kind::AllReduce => vec![Call::AllReduce { from: all.read(), to: all, op }],
        Kind::ReduceScatter => reduce_scatter(member, all.read(), part(), op),
        Kind::AllGather => all_gather(member, part().read(), all),
        Kind::Broadcast => vec![Call::Broadcast { from: is_root.then(|| all.read()), to: all, root }],
        Kind::Reduce => vec![Call::Reduce { from: all.read(), to: is_root.then_some(all), op, root }],
        _ => {
            let operation = tag.kind.name();
            return Err(CommError::NotOffered { operation, by: "NCCL on buffers of a GPU" });
        }
    })
}

/// Reduce-scatter: writes this rank's chunk of the reduction of all `from` to `to`.
pub(super) fn reduce_scatter<'a>(
    member: Member,
    from: Span<'a>,
    to: SpanMut<'a>,
    op: ReduceOp,
) -> Vec<Call<'a>> {
    let Member { rank, world_size } = member;
    if member.even(from.len()) {
        return vec![Call::ReduceScatter { from, to, op }];
    }
    let of = |root| Call::Reduce {
        from: from.part(chunk(from.len(), world_size, root)),
        to: (root == rank).then_some(to),
        op,
        root,
    };
    (0..world_size).map(of).collect()
}

/// All-gather: writes all ranks' `from`, each of which is its chunk, to `to`.
pub(super) fn all_gather<'a>(member: Member, from: Span<'a>, to: SpanMut<'a>) -> Vec<Call<'a>> {
    if member.even(to.len()) {
        return vec![Call::AllGather { from, to }];
    }
    let parts: Vec<_> = (0..member.world_size).map(|root| chunk(to.len(), member.world_size, root)).collect();
    all_gather_parts(member, from, to, &parts)
}

/// All-gather: writes all ranks' `from`, with the lengths of `parts`, to `to`.
pub(super) fn all_gather_parts<'a>(
    member: Member,
    from: Span<'a>,
    to: SpanMut<'a>,
    parts: &[std::ops::Range<usize>],
) -> Vec<Call<'a>> {
    let of = |(root, part): (usize, &std::ops::Range<usize>)| Call::Broadcast {
        from: (root == member.rank).then_some(from),
        to: to.part(part.clone()),
        root,
    };
    parts.iter().enumerate().map(of).collect()
}

/// Sends part `r` of `from` to rank `r`.
pub(super) fn send_parts<'a>(from: Span<'a>, parts: &[std::ops::Range<usize>]) -> Vec<Call<'a>> {
    let of = |(to, part): (usize, &std::ops::Range<usize>)| Call::Send { from: from.part(part.clone()), to };
    parts.iter().enumerate().map(of).collect()
}

/// Receives part `r` of `to` from rank `r`.
pub(super) fn receive_parts<'a>(to: SpanMut<'a>, parts: &[std::ops::Range<usize>]) -> Vec<Call<'a>> {
    let of =
        |(from, part): (usize, &std::ops::Range<usize>)| Call::Receive { to: to.part(part.clone()), from };
    parts.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::partition::in_a_row;

    const PLACE: Member = Member { rank: 1, world_size: 3 };

    fn memory(len: usize) -> SpanMut<'static> {
        SpanMut::imagined(0, len, DType::F32)
    }

    #[test]
    fn a_tag_describes_operations_in_place_and_with_a_separate_part() {
        let (all, own) = (memory(9), memory(3));
        let tag = |kind| Tag::new(kind, DType::F32, 9).with_op(ReduceOp::Max).with_root(1);
        let calls = |kind, apart| of(tag(kind), PLACE, all, apart).expect("an operation on a buffer");
        let (from, op) = (all.read(), ReduceOp::Max);
        assert_eq!(calls(Kind::AllReduce, None), [Call::AllReduce { from, to: all, op }]);
        let to = all.part(3..6);
        assert_eq!(calls(Kind::ReduceScatter, None), [Call::ReduceScatter { from, to, op }]);
        assert_eq!(calls(Kind::ReduceScatter, Some(own)), [Call::ReduceScatter { from, to: own, op }]);
        assert_eq!(calls(Kind::AllGather, None), [Call::AllGather { from: to.read(), to: all }]);
        assert_eq!(calls(Kind::AllGather, Some(own)), [Call::AllGather { from: own.read(), to: all }]);
        assert_eq!(calls(Kind::Broadcast, None), [Call::Broadcast { from: Some(from), to: all, root: 1 }]);
        assert_eq!(calls(Kind::Reduce, None), [Call::Reduce { from, to: Some(all), op, root: 1 }]);
        assert!(matches!(of(tag(Kind::AllToAll), PLACE, all, None), Err(CommError::NotOffered { .. })));
    }

    #[test]
    fn equal_parts_are_one_call() {
        let (all, own) = (memory(9), memory(3));
        let calls = reduce_scatter(PLACE, all.read(), own, ReduceOp::Sum);
        assert_eq!(calls, [Call::ReduceScatter { from: all.read(), to: own, op: ReduceOp::Sum }]);
        assert_eq!(all_gather(PLACE, own.read(), all), [Call::AllGather { from: own.read(), to: all }]);
    }

    #[test]
    fn unequal_parts_are_a_call_each() {
        // Chunks of 10 elements among 3 ranks: 3, 3 and 4.
        let (all, own) = (memory(10), memory(3));
        let calls = reduce_scatter(PLACE, all.read(), own, ReduceOp::Max);
        let lengths: Vec<usize> = calls
            .iter()
            .enumerate()
            .map(|(rank, call)| match call {
                Call::Reduce { from, to, op: ReduceOp::Max, root } => {
                    assert_eq!((*root, to.is_some()), (rank, rank == 1));
                    from.len()
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(lengths, [3, 3, 4]);
        let calls = all_gather(PLACE, own.read(), all);
        let ends: Vec<u64> = calls
            .iter()
            .enumerate()
            .map(|(rank, call)| match call {
                Call::Broadcast { from, to, root } => {
                    assert_eq!((*root, from.is_some()), (rank, rank == 1));
                    to.read().address() / 4 + to.len() as u64
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ends, [3, 6, 10]);
    }

    #[test]
    fn bytes_between_ranks_are_counted() {
        let all = memory(9);
        let reduced = Call::AllReduce { from: all.read(), to: all, op: ReduceOp::Sum };
        assert_eq!(reduced.moved(PLACE), (48, 48));
        let parts = in_a_row([2, 3, 4]);
        let sent: Vec<_> = send_parts(all.read(), &parts).iter().map(|call| call.moved(PLACE)).collect();
        assert_eq!(sent, [(8, 0), (0, 0), (16, 0)]);
        let got: Vec<_> = receive_parts(all, &parts).iter().map(|call| call.moved(PLACE)).collect();
        assert_eq!(got, [(0, 8), (0, 0), (0, 16)]);
        let gathered = all_gather(PLACE, memory(3).read(), all);
        assert_eq!(gathered[0].moved(PLACE), (24, 24));
        let alone = Member { rank: 0, world_size: 1 };
        assert_eq!((reduced.moved(alone), gathered[0].moved(alone)), ((0, 0), (0, 0)));
    }

    #[test]
    fn a_rank_may_have_nothing() {
        let calls = reduce_scatter(PLACE, memory(2).read(), memory(1), ReduceOp::Sum);
        assert_eq!(calls.iter().map(Call::is_empty).collect::<Vec<_>>(), [true, false, false]);
        let parts = in_a_row([2, 0, 3]);
        assert_eq!(parts, [0..2, 2..2, 2..5]);
        let calls = send_parts(memory(5).read(), &parts);
        assert_eq!(calls.iter().map(Call::is_empty).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(receive_parts(memory(5), &parts)[2], Call::Receive { to: memory(5).part(2..5), from: 2 });
        assert!(receive_parts(memory(0), &in_a_row([])).is_empty());
    }
}
