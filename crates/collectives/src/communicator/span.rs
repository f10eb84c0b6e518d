//! Spans of operations for `tracing`: kind, algorithm and bytes.
//!
//! A span is created when its operation is issued and entered when it runs, so that subscribers can measure its wait. All spans
//! have level TRACE and a target that begins with `phalanx_trace`. Without a subscriber each costs one load of a static.

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

/// The span of issuing an operation to a GPU, whose own clock times it.
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

/// The span of checking that all ranks have issued the same operation to their GPUs.
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

/// Adds the properties that are known once an operation has begun. Messages between two ranks have numbers that only those share,
/// so their numbers are left out.
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

/// Adds the bytes that this rank has sent and received.
pub(super) fn moved(span: &Span, sent: u64, received: u64) {
    span.record("sent", sent);
    span.record("received", received);
}
