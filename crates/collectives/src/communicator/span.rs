//! Spans of operations, for whoever traces them by `tracing`: what is moved, which way, how many bytes went.
//!
//! A span is made when its operation is issued and entered where it runs, so that a subscriber can tell how long it has waited
//! for its turn. All are of level TRACE and of a target that begins with `phalanx_trace`; without a subscriber that wants these
//! each costs the look at one static.

use tracing::Span;
use tracing::field::Empty;

use crate::dtype::ReduceOp;
use crate::engine::Engine;
use crate::operation::{Scope, Tag};

/// The span of an operation.
pub(super) fn operation(tag: Tag) -> Span {
    tracing::trace_span!(
        target: "phalanx_trace::communication",
        "collective",
        operation = tag.kind.name(),
        reduction = tag.op.map(ReduceOp::name),
        bytes = tag.bytes() as u64,
        dtype = tag.dtype.name(),
        algorithm = Empty,
        communicator = Empty,
        ranks = Empty,
        sequence = Empty,
        sent = Empty,
        received = Empty,
    )
}

/// The span of issuing an operation to a GPU, which runs it later, by a clock that the host does not see.
pub(super) fn issue(tag: Tag) -> Span {
    tracing::trace_span!(
        target: "phalanx_trace::issuing",
        "issue to the GPU",
        operation = tag.kind.name(),
        reduction = tag.op.map(ReduceOp::name),
        bytes = tag.bytes() as u64,
        dtype = tag.dtype.name(),
        sent = Empty,
        received = Empty,
    )
}

/// The span of finding out whether all ranks have issued the same to their GPUs.
pub(super) fn agreement(tag: Tag) -> Span {
    tracing::trace_span!(
        target: "phalanx_trace::agreement",
        "agreement",
        on = tag.kind.name(),
        algorithm = Empty,
        communicator = Empty,
        ranks = Empty,
        sequence = Empty,
        sent = Empty,
        received = Empty,
    )
}

/// The span of waiting for operations that were issued before.
pub(super) fn waiting() -> Span {
    tracing::trace_span!(target: "phalanx_trace::waiting", "wait for communication")
}

/// Adds what is known once an operation has begun. Operations of two ranks have numbers that only those share, and are told
/// without.
pub(super) fn begun(span: &Span, engine: &dyn Engine, scope: Scope) {
    if span.is_disabled() {
        return;
    }
    let (communicator, sequence, tag) = engine.under_way();
    span.record("algorithm", tag.algorithm.name());
    if scope == Scope::World {
        span.record("communicator", communicator);
        span.record("ranks", engine.world_size() as u64);
        span.record("sequence", sequence);
    }
}

/// Adds the bytes that have left this rank, and those that have come.
pub(super) fn moved(span: &Span, sent: u64, received: u64) {
    span.record("sent", sent);
    span.record("received", received);
}
