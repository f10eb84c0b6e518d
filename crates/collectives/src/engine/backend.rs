//! This crate's own engine: checked messages over links, and memory that ranks of a host share.

use std::sync::Arc;
use std::time::Duration;

use super::memory::HostMemory;
use crate::algorithms::cost::CostModel;
use crate::algorithms::{Exchange, Group, Messages, hierarchical};
use crate::control::ControlPlane;
use crate::dtype::DType;
use crate::error::{CommError, Result};
use crate::failure::{Cause, Failure};
use crate::flight::FlightWriter;
use crate::mailbox::Mail;
use crate::operation::{Algorithm, Kind, Scope, Sequences, Tag};
use crate::recorder::Recorder;
use crate::simulated::Port;
use crate::transport::{Links, Section};
use crate::waiting::{LinkError, WaitLimits};

/// Bytes of a message's header: a mark, the operation, and the length of the payload.
pub(crate) const HEADER: usize = 40;
const MARK: [u8; 4] = *b"PHLX";

/// The time for the control plane to tell why a connection broke, before its rank counts as lost.
pub(super) const VERDICT: Duration = Duration::from_millis(1500);

/// State that all communicators of a rank share: the failure flag, the control plane and the flight recorder.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) failure: Arc<Failure>,
    pub(crate) control: Arc<ControlPlane>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) timeout: Duration,
    /// The port of messages over simulated links.
    pub(crate) port: Option<Arc<Port>>,
    /// The port of messages to ranks of the same host, if their simulated link differs.
    pub(crate) inside: Option<Arc<Port>>,
    /// Messages of the world's ranks that belong to no operation.
    pub(crate) mail: Arc<dyn Mail>,
    /// Connects this rank to others for communicators of some of them.
    pub(crate) connector: Arc<dyn Connector>,
    /// The writer of the flight record, if one is wanted.
    pub(crate) flight: Option<Arc<FlightWriter>>,
}

/// Bytes sent and received, with headers.
#[derive(Clone, Copy, Default)]
pub(crate) struct Traffic {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// Some of a backend's ranks, which get a backend of their own.
pub(crate) struct Members {
    /// Their ranks in the backend that is split, in the new order.
    pub(crate) places: Vec<usize>,
    /// Their numbers in the world.
    pub(crate) of_world: Vec<usize>,
    /// This rank's number among them.
    pub(crate) own: usize,
    /// The new communicator's number.
    pub(crate) id: u32,
}

/// Connects this rank to others for communicators of some of them.
pub(crate) trait Connector: Send + Sync {
    /// Makes a backend with its own links for `members`. Every rank of `backend` calls this at the same place, with the members that
    /// it is one of.
    fn connect(&self, backend: &mut Backend, members: Members) -> Result<Backend>;
}

/// One communicator of this rank.
pub(crate) struct Backend {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// The number of this communicator; 0 is the world.
    pub(crate) id: u32,
    /// The numbers of its ranks in the world, which errors name.
    pub(crate) members: Vec<usize>,
    pub(crate) links: Links,
    /// The host of each rank, numbered in the order of appearance.
    pub(crate) hosts: Vec<usize>,
    /// Memory shared with the other ranks of this host.
    pub(crate) host_memory: Option<HostMemory>,
    pub(crate) shared: Shared,
    pub(crate) limits: WaitLimits,
    sequences: Sequences,
    pub(crate) sequence: u64,
    pub(crate) tag: Tag,
    pub(crate) traffic: Traffic,
    pub(crate) costs: Option<CostModel>,
    /// Received pieces before they are reduced. 64-bit words align any element type.
    pub(crate) scratch: Vec<u64>,
}

impl Backend {
    /// The engine of the world's ranks `members`, as number `rank` of them. At first each counts to a host of its own.
    pub(crate) fn new(rank: usize, id: u32, members: Vec<usize>, links: Links, shared: Shared) -> Self {
        let world_size = members.len();
        shared.recorder.set_members(id, &members);
        Self {
            rank,
            world_size,
            id,
            members,
            links,
            hosts: (0..world_size).collect(),
            host_memory: None,
            limits: WaitLimits { failure: shared.failure.clone(), timeout: shared.timeout },
            shared,
            sequences: Sequences::new(world_size),
            sequence: 0,
            tag: Tag::new(Kind::Barrier, DType::U8, 0),
            traffic: Traffic::default(),
            costs: None,
            scratch: Vec::new(),
        }
    }

    /// Sends everything by messages through this rank's simulated link, if there is one. Every rank calls this at the same place.
    pub(crate) fn over_simulated_link(mut self) -> Self {
        if let Some(port) = &self.shared.port {
            let inside = self.shared.inside.as_ref().unwrap_or(port);
            let own = self.hosts[self.rank];
            self.links.delay(|rank| if self.hosts[rank] == own { inside } else { port }, &self.limits);
            self.host_memory = None;
        }
        self
    }

    /// Returns all ranks.
    pub(crate) fn all_ranks(&self) -> Group {
        Group::world(self.world_size, self.rank)
    }

    /// Returns the number of ranks of each host.
    pub(crate) fn host_sizes(&self) -> Vec<usize> {
        hierarchical::by_host(&self.hosts).iter().map(Vec::len).collect()
    }

    /// True if all ranks share memory.
    pub(crate) fn is_direct(&self) -> bool {
        self.host_memory.as_ref().is_some_and(|memory| memory.group.len() == self.world_size)
    }

    /// Makes an operation with this tag the current one.
    pub(crate) fn enter(&mut self, scope: Scope, tag: Tag) -> Result<()> {
        let resolved = if scope == Scope::World { self.resolve(tag)? } else { tag };
        self.enter_as(scope, resolved)
    }

    /// Makes an operation with a chosen algorithm the current one.
    pub(crate) fn enter_as(&mut self, scope: Scope, resolved: Tag) -> Result<()> {
        (self.sequence, self.tag) = (self.sequences.next(scope), resolved);
        self.shared.recorder.begin(self.id, scope, self.sequence, resolved);
        if let (Scope::World, Some(memory)) = (scope, &self.host_memory) {
            memory.begin(self.sequence, resolved);
        }
        match self.shared.failure.is_set() {
            true => {
                let cause = self.shared.failure.get().unwrap_or(Cause::Lost(self.members[self.rank]));
                Err(self.error(cause))
            }
            false => Ok(()),
        }
    }

    /// Returns the number of the next message from a rank.
    pub(super) fn next_from(&mut self, rank: usize) -> u64 {
        self.sequences.next(Scope::From(rank))
    }

    /// Returns the tag with the chosen algorithm.
    fn resolve(&mut self, tag: Tag) -> Result<Tag> {
        let wanted = tag.algorithm;
        if self.world_size == 1 || matches!(tag.kind, Kind::Measure) {
            return Ok(tag.with_algorithm(Algorithm::Auto));
        }
        if wanted != Algorithm::Auto {
            return match self.lacks(tag.kind, wanted) {
                None => Ok(tag),
                Some(problem) => Err(CommError::Argument { operation: tag.kind.name(), problem }),
            };
        }
        if self.is_direct() {
            return Ok(tag.with_algorithm(Algorithm::Direct));
        }
        let messages = Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Auto);
        let possible: Vec<_> =
            messages.filter(|algorithm| self.lacks(tag.kind, *algorithm).is_none()).collect();
        // Between two ranks all algorithms are the same.
        if let ([only], _) | ([only, ..], true) = (possible.as_slice(), self.world_size == 2) {
            return Ok(tag.with_algorithm(*only));
        }
        let model = self.measured()?;
        let hosts = self.host_sizes();
        let time = |algorithm: &Algorithm| {
            model.of(tag.kind, *algorithm, tag.bytes(), &hosts).unwrap_or(f64::INFINITY)
        };
        let best = possible.iter().copied().min_by(|a, b| time(a).total_cmp(&time(b)));
        Ok(tag.with_algorithm(best.unwrap_or(Algorithm::Ring)))
    }

    /// Returns the reason why an algorithm cannot run an operation here, if it cannot.
    pub(super) fn lacks(&self, kind: Kind, algorithm: Algorithm) -> Option<String> {
        if !algorithm.offers(kind) {
            let others = Algorithm::ALL.into_iter().filter(|other| other.offers(kind));
            let others: Vec<_> = others.map(Algorithm::name).collect();
            return Some(format!("there is none by {algorithm}; there are {}", others.join(", ")));
        }
        let scattered = matches!(kind, Kind::ReduceScatter | Kind::AllGather);
        match algorithm {
            Algorithm::Direct if !self.is_direct() => {
                Some("direct needs all ranks on one host, with memory that all of them map".into())
            }
            Algorithm::HalvingDoubling if scattered && !self.world_size.is_power_of_two() => Some(format!(
                "halving-doubling leaves the chunks in place only for a power of two of ranks, not {}",
                self.world_size
            )),
            _ => None,
        }
    }

    pub(crate) fn error(&self, cause: Cause) -> CommError {
        cause.error(self.tag.name(), self.sequence)
    }

    /// Returns the error of a broken link: the control plane's verdict if it comes in time, or else the loss of the rank.
    pub(crate) fn broken(&self, link: LinkError) -> CommError {
        match link {
            LinkError::Closed(rank) => {
                let limit = self.shared.control.verdict_after(VERDICT);
                let cause = self.shared.failure.wait(limit).unwrap_or(Cause::Lost(self.members[rank]));
                self.error(cause)
            }
            LinkError::Timeout(rank) => {
                if let Some(cause) = self.shared.failure.get() {
                    return self.error(cause);
                }
                self.timed_out(rank)
            }
            LinkError::Altered(rank) => CommError::Altered {
                rank: self.members[rank],
                operation: self.tag.name(),
                sequence: self.sequence,
            },
        }
    }

    /// Returns the error of an operation that took too long: the ranks that have begun it, those that have not, and the activity of
    /// each.
    fn timed_out(&self, waiting_for: usize) -> CommError {
        let doing = self.shared.control.ask(self.id);
        let (mut arrived, mut missing, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for member in &self.members {
            let found = doing.get(*member).and_then(Option::as_ref);
            let here = found.and_then(|doing| doing.sequence).is_some_and(|at| at >= self.sequence);
            if here || *member == self.members[self.rank] {
                arrived.push(*member);
            } else {
                missing.push(*member);
            }
            last.push((
                *member,
                found.map_or_else(|| "gives no answer".to_owned(), |doing| doing.last.clone()),
            ));
        }
        CommError::Timeout {
            operation: self.tag.describe(self.sequence),
            seconds: self.limits.timeout.as_secs_f64(),
            waiting_for: self.members[waiting_for],
            arrived,
            missing,
            last: last.into(),
        }
    }

    pub(crate) fn mismatch(&self, rank: usize, theirs: String) -> CommError {
        CommError::Mismatch { rank: self.members[rank], ours: self.tag.describe(self.sequence), theirs }
    }

    /// Receives a message's header, checks that it belongs to the current operation, and returns its length.
    fn receive_header(&mut self, from: usize) -> Result<usize> {
        let mut header = [0_u8; HEADER];
        self.links.receive(from, Section::Header, &mut header).map_err(|link| self.broken(link))?;
        self.traffic.received += HEADER as u64;
        let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        if header[..4] != MARK {
            return Err(self.mismatch(from, "something that is not a message of this protocol".into()));
        }
        let Some(tag) = Tag::unpacked((short(4), short(32), long(16))) else {
            return Err(self.mismatch(from, "an operation that this version does not know".into()));
        };
        let sequence = long(8);
        if sequence != self.sequence || tag != self.tag {
            return Err(self.mismatch(from, tag.describe(sequence)));
        }
        usize::try_from(long(24)).map_err(|_| self.mismatch(from, "a message of impossible length".into()))
    }
}

impl Messages for Backend {
    fn send(&mut self, to: usize, payload: &[u8]) -> Result<()> {
        let mut header = [0_u8; HEADER];
        let (code, root, count) = self.tag.packed();
        header[..4].copy_from_slice(&MARK);
        header[4..8].copy_from_slice(&code.to_le_bytes());
        header[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        header[16..24].copy_from_slice(&count.to_le_bytes());
        header[24..32].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        header[32..36].copy_from_slice(&root.to_le_bytes());
        self.traffic.sent += (HEADER + payload.len()) as u64;
        self.links.send(to, [&header, payload]).map_err(|link| self.broken(link))
    }

    fn receive(&mut self, from: usize, into: &mut [u8]) -> Result<()> {
        let length = self.receive_header(from)?;
        if length != into.len() {
            let theirs = format!("a piece of {length} bytes in place of one of {}", into.len());
            return Err(self.mismatch(from, theirs));
        }
        self.traffic.received += length as u64;
        self.links.receive(from, Section::Payload, into).map_err(|link| self.broken(link))
    }
}

impl Exchange for Backend {
    fn receive_any(&mut self, from: usize, limit: usize) -> Result<Vec<u8>> {
        let length = self.receive_header(from)?;
        if length > limit {
            let theirs = format!("a message of {length} bytes, where at most {limit} are allowed");
            return Err(self.mismatch(from, theirs));
        }
        let mut bytes = vec![0; length];
        self.traffic.received += length as u64;
        self.links.receive(from, Section::Payload, &mut bytes).map_err(|link| self.broken(link))?;
        Ok(bytes)
    }

    fn scratch(&mut self) -> &mut Vec<u64> {
        &mut self.scratch
    }
}
