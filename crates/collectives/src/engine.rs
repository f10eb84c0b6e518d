//! The communication thread's view of the world: checked messages over a transport.

use std::sync::Arc;
use std::time::Duration;

use crate::dtype::DType;
#[cfg(target_os = "linux")]
use crate::dtype::{Element, ReduceOp};
use crate::error::{CommError, Result};
use crate::failure::{Cause, Failure};
#[cfg(target_os = "linux")]
use crate::shared::{Board, BoardError, Deadline};
use crate::transport::{LinkError, Transport};
use crate::world::Control;

/// What an operation is; the position is its code on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduceSum,
    AllReduceMean,
    AllReduceMin,
    AllReduceMax,
    AllReduceProduct,
    ReduceScatter,
    AllGather,
    AllGatherRagged,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    SendRecv,
    Barrier,
}

impl Kind {
    const ALL: [Self; 14] = [
        Self::AllReduceSum,
        Self::AllReduceMean,
        Self::AllReduceMin,
        Self::AllReduceMax,
        Self::AllReduceProduct,
        Self::ReduceScatter,
        Self::AllGather,
        Self::AllGatherRagged,
        Self::Broadcast,
        Self::Reduce,
        Self::Gather,
        Self::Scatter,
        Self::SendRecv,
        Self::Barrier,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduceSum => "all-reduce (sum)",
            Self::AllReduceMean => "all-reduce (mean)",
            Self::AllReduceMin => "all-reduce (min)",
            Self::AllReduceMax => "all-reduce (max)",
            Self::AllReduceProduct => "all-reduce (product)",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::AllGatherRagged => "all-gather (ragged)",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::SendRecv => "send/receive",
            Self::Barrier => "barrier",
        }
    }
}

/// What all ranks must agree on in one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) kind: Kind,
    pub(crate) dtype: DType,
    /// Elements of the whole buffer; 0 where ranks may differ.
    pub(crate) count: u64,
}

/// Each message starts with this: a mark, the sequence number, kind, type, count, and the payload's bytes.
const HEADER: usize = 32;
const MARK: [u8; 4] = *b"PHLX";

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
struct Sequences {
    world: u64,
    to: Vec<u64>,
    from: Vec<u64>,
}

impl Sequences {
    fn next(&mut self, scope: Scope) -> u64 {
        let count = match scope {
            Scope::World => &mut self.world,
            Scope::To(rank) => &mut self.to[rank],
            Scope::From(rank) => &mut self.from[rank],
        };
        *count += 1;
        *count - 1
    }
}

/// How long the control plane gets to say why a connection broke, before the neighbour is blamed.
const VERDICT: Duration = Duration::from_millis(1500);

/// Sends and receives the messages of one operation after the other.
pub(crate) struct Engine {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    transport: Box<dyn Transport>,
    failure: Arc<Failure>,
    control: Arc<Control>,
    sequences: Sequences,
    sequence: u64,
    tag: Tag,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Memory that all ranks share, if they do.
    #[cfg(target_os = "linux")]
    pub(crate) board: Option<Board>,
    /// How long an operation may take.
    #[cfg(target_os = "linux")]
    timeout: Duration,
    /// Received pieces land here before they are reduced; 64-bit words, so that any element type is aligned.
    pub(crate) scratch: Vec<u64>,
}

impl Engine {
    pub(crate) fn new(
        rank: usize,
        world_size: usize,
        transport: Box<dyn Transport>,
        failure: Arc<Failure>,
        control: Arc<Control>,
        timeout: Duration,
    ) -> Self {
        #[cfg(not(target_os = "linux"))]
        let _ = timeout;
        let tag = Tag { kind: Kind::Barrier, dtype: DType::U8, count: 0 };
        Self {
            rank,
            world_size,
            transport,
            failure,
            control,
            sequences: Sequences { world: 0, to: vec![0; world_size], from: vec![0; world_size] },
            sequence: 0,
            tag,
            sent: 0,
            received: 0,
            #[cfg(target_os = "linux")]
            board: None,
            #[cfg(target_os = "linux")]
            timeout,
            scratch: Vec::new(),
        }
    }

    /// Begins an operation; an error if the world is broken.
    pub(crate) fn begin(&mut self, scope: Scope, tag: Tag) -> Result<()> {
        (self.sequence, self.tag) = (self.sequences.next(scope), tag);
        #[cfg(target_os = "linux")]
        if let (Scope::World, Some(board)) = (scope, &self.board) {
            board.begin(self.sequence, tag);
        }
        match self.failure.get() {
            Some(cause) => Err(self.error(cause)),
            None => Ok(()),
        }
    }

    /// Ends an operation. One that failed on this rank alone leaves the others waiting for messages that never
    /// come, so they are told.
    pub(crate) fn end<R>(&self, result: &Result<R>) {
        match result {
            Err(error @ (CommError::Mismatch { .. } | CommError::Timeout { .. } | CommError::Buffer(_))) => {
                self.control.report(self.rank, Cause::Aborted(self.rank, error.to_string()));
            }
            Err(CommError::PeerLost { rank, .. }) => self.control.report(self.rank, Cause::Lost(*rank)),
            _ => {}
        }
    }

    fn describe(sequence: u64, tag: Tag) -> String {
        let count = if tag.count > 0 { format!(" of {} elements", tag.count) } else { String::new() };
        format!("{}{count} {} as operation {sequence}", tag.kind.name(), tag.dtype.name())
    }

    fn error(&self, cause: Cause) -> CommError {
        match cause {
            Cause::Lost(rank) => {
                CommError::PeerLost { rank, operation: self.tag.kind.name().into(), sequence: self.sequence }
            }
            Cause::Aborted(rank, reason) => CommError::Aborted { rank, reason },
        }
    }

    /// The error of a broken link: the control plane's verdict if it comes in time, else the neighbour's loss.
    fn broken(&self, link: LinkError) -> CommError {
        match link {
            LinkError::Closed(rank) => {
                let patience = self.control.verdict_after(VERDICT);
                let cause = self.failure.wait(patience).unwrap_or(Cause::Lost(rank));
                self.error(cause)
            }
            LinkError::Timeout(rank) => {
                if let Some(cause) = self.failure.get() {
                    return self.error(cause);
                }
                CommError::Timeout {
                    operation: self.tag.kind.name().into(),
                    sequence: self.sequence,
                    waiting_for: rank,
                }
            }
        }
    }

    /// The all-reduce through shared memory; `None` if there is none.
    #[cfg(target_os = "linux")]
    pub(crate) fn all_reduce_shared<T: Element>(
        &mut self,
        values: &mut [T],
        op: ReduceOp,
    ) -> Option<Result<()>> {
        let mut board = self.board.take()?;
        let deadline = Deadline { failure: &self.failure, timeout: self.timeout };
        let result = board.all_reduce(values, op, (self.sequence, self.tag), deadline);
        self.board = Some(board);
        // What a rank reads of the others' and they of its own.
        let moved = 2 * size_of_val(values) as u64 * (self.world_size as u64 - 1) / self.world_size as u64;
        self.sent += moved;
        self.received += moved;
        Some(result.map_err(|error| match error {
            BoardError::Link(link) => self.broken(link),
            BoardError::Mismatch { rank, sequence, code, count } => {
                let ours = Self::describe(self.sequence, self.tag);
                let kind = Kind::ALL.get(code as usize & 0xff);
                let dtype = DType::ALL.get(code as usize >> 8);
                let theirs = match (kind, dtype) {
                    (Some(&kind), Some(&dtype)) => Self::describe(sequence, Tag { kind, dtype, count }),
                    _ => "an operation that this version does not know".into(),
                };
                CommError::Mismatch { rank, ours, theirs }
            }
        }))
    }

    /// Sends one message of the current operation.
    pub(crate) fn send(&mut self, to: usize, payload: &[u8]) -> Result<()> {
        let mut header = [0_u8; HEADER];
        header[..4].copy_from_slice(&MARK);
        header[4] = self.tag.kind as u8;
        header[5] = self.tag.dtype as u8;
        header[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        header[16..24].copy_from_slice(&self.tag.count.to_le_bytes());
        header[24..32].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        self.sent += (HEADER + payload.len()) as u64;
        self.transport.send(to, [&header, payload]).map_err(|link| self.broken(link))
    }

    /// Receives a message's header, checks that it belongs to the current operation, and returns its length.
    fn receive_header(&mut self, from: usize) -> Result<usize> {
        let mut header = [0_u8; HEADER];
        self.transport.receive(from, &mut header).map_err(|link| self.broken(link))?;
        self.received += HEADER as u64;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let ours = Self::describe(self.sequence, self.tag);
        let mismatch = |theirs: String| CommError::Mismatch { rank: from, ours: ours.clone(), theirs };
        if header[..4] != MARK {
            return Err(mismatch("something that is not a message of this protocol".into()));
        }
        let (kind, dtype) = (Kind::ALL.get(header[4] as usize), DType::ALL.get(header[5] as usize));
        let (Some(&kind), Some(&dtype)) = (kind, dtype) else {
            return Err(mismatch("an operation that this version does not know".into()));
        };
        let (sequence, tag) = (word(8), Tag { kind, dtype, count: word(16) });
        if sequence != self.sequence || tag != self.tag {
            return Err(mismatch(Self::describe(sequence, tag)));
        }
        usize::try_from(word(24)).map_err(|_| mismatch("a message of impossible length".into()))
    }

    /// Receives one message into a buffer of exactly its length.
    pub(crate) fn receive(&mut self, from: usize, into: &mut [u8]) -> Result<()> {
        let length = self.receive_header(from)?;
        if length != into.len() {
            let ours =
                format!("{}, a piece of {} bytes", Self::describe(self.sequence, self.tag), into.len());
            return Err(CommError::Mismatch {
                rank: from,
                ours,
                theirs: format!("a piece of {length} bytes"),
            });
        }
        self.received += length as u64;
        self.transport.receive(from, into).map_err(|link| self.broken(link))
    }

    /// Receives one message whose length only the sender knows, at most `limit` bytes.
    pub(crate) fn receive_any(&mut self, from: usize, limit: usize) -> Result<Vec<u8>> {
        let length = self.receive_header(from)?;
        if length > limit {
            let ours = format!("{}, at most {limit} bytes", Self::describe(self.sequence, self.tag));
            return Err(CommError::Mismatch {
                rank: from,
                ours,
                theirs: format!("a message of {length} bytes"),
            });
        }
        let mut bytes = vec![0; length];
        self.received += length as u64;
        self.transport.receive(from, &mut bytes).map_err(|link| self.broken(link))?;
        Ok(bytes)
    }
}
