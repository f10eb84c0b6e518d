//! Segments: recorded work between two operations that cannot be part of a graph.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};

use cudarc::driver::CudaStream;

use crate::driver::{Call, CapturedGraph, Executable, KeepAlive, Node, Shape, last_captured};
use crate::{GpuError, Result};

/// Work that can be part of a graph.
pub(crate) enum Work<'a> {
    /// A kernel. Its arguments and shape may change from run to run.
    Kernel(Call<'a>),
    /// Other work, identified by a hash: it must be the same each time.
    Fixed(&'a dyn Fn(&mut DefaultHasher)),
}

impl Work<'_> {
    fn fingerprint(hash: &dyn Fn(&mut DefaultHasher)) -> u64 {
        let mut hasher = DefaultHasher::new();
        hash(&mut hasher);
        hasher.finish()
    }
}

/// A recorded piece of work.
#[derive(Debug)]
pub(super) struct Operation {
    action: String,
    kind: OperationKind,
}

#[derive(Debug)]
enum OperationKind {
    /// A kernel with its latest shape and arguments.
    Kernel {
        identity: usize,
        shape: Shape,
        arguments: Vec<u64>,
        node: Node,
    },
    Fixed(u64),
}

impl Operation {
    /// Returns the operation of work that a stream has just captured.
    pub(super) fn captured(stream: &CudaStream, action: &str, work: &Work<'_>) -> Result<Self> {
        let kind = match work {
            Work::Kernel(call) => OperationKind::Kernel {
                identity: call.identity()?,
                shape: call.shape,
                arguments: call.arguments.to_vec(),
                node: last_captured(stream)?,
            },
            Work::Fixed(hash) => OperationKind::Fixed(Work::fingerprint(hash)),
        };
        Ok(Self { action: action.to_owned(), kind })
    }
}

/// Work between two operations that cannot be part of a graph.
#[derive(Debug)]
pub(crate) struct Segment {
    operations: Vec<Operation>,
    executable: Executable,
    // Keeps the nodes alive.
    _captured: CapturedGraph,
}

impl Segment {
    /// Returns the segment of captured operations, which use `memory`.
    pub(super) fn new(
        operations: Vec<Operation>,
        captured: CapturedGraph,
        memory: Vec<KeepAlive>,
    ) -> Result<Self> {
        let executable = captured.instantiate(memory)?;
        Ok(Self { operations, executable, _captured: captured })
    }

    /// Launches the graph on the compute stream.
    pub(super) fn launch(&mut self, stream: &CudaStream) -> Result<()> {
        self.executable.launch(stream)
    }

    /// Returns the name of operation `at`.
    pub(super) fn action(&self, at: usize) -> &str {
        &self.operations[at].action
    }

    /// Returns the pieces of work.
    pub(crate) fn len(&self) -> usize {
        self.operations.len()
    }

    /// Checks that work equals operation `at`, and updates its arguments.
    pub(super) fn follow(&mut self, at: usize, action: &str, work: &Work<'_>) -> Result<()> {
        let op = &mut self.operations[at];
        let same = match (&mut op.kind, work) {
            (OperationKind::Kernel { identity, shape, arguments, node }, Work::Kernel(call)) => {
                let same = *identity == call.identity()?;
                if same && (*shape != call.shape || *arguments != call.arguments) {
                    call.put(&mut self.executable, *node)?;
                    *shape = call.shape;
                    arguments.clear();
                    arguments.extend_from_slice(call.arguments);
                }
                same
            }
            (OperationKind::Fixed(known), Work::Fixed(hash)) => *known == Work::fingerprint(hash),
            _ => false,
        };
        match same {
            true => Ok(()),
            false => Err(differs(
                action,
                format!("`{}`, or the same work with other memory or sizes, was", op.action),
            )),
        }
    }
}

/// Returns the error of work that differs from the recording.
pub(super) fn differs(action: &str, problem: String) -> GpuError {
    GpuError::Replay { action: format!("`{action}`"), problem }
}

/// The segments of each branch.
pub(crate) type Segments = HashMap<Vec<u64>, Vec<Segment>>;
