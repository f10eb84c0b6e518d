//! This crate's own engine: checked messages over links, and memory that ranks of a host share.

use std::sync::Arc;
use std::time::Duration;

use super::{Connector, HostMemory};
use crate::algorithms::cost::CostModel;
use crate::algorithms::{Exchange, Group, Messages, hierarchical};
use crate::control::ControlPlane;
use crate::dtype::DType;
use crate::error::{CommError, Result};
use crate::failure::{Cause, Failure};
use crate::flight::FlightWriter;
use crate::mailbox::Mail;
use crate::operation::{Algorithm, Kind, Scope, Sequences, Tag};
use crate::patience::{LinkError, Patience};
use crate::recorder::Recorder;
use crate::simulated::Port;
use crate::transport::{Links, Section};

/// Each message starts with this: a mark, what it belongs to, and the payload's bytes.
pub(crate) const HEADER: usize = 40;
const MARK: [u8; 4] = *b"PHLX";

/// How long the control plane gets to say why a connection broke, before the neighbour is blamed.
pub(super) const VERDICT: Duration = Duration::from_millis(1500);

/// What all communicators of a rank share: the world's fate, the watch, and the flight recorder.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) failure: Arc<Failure>,
    pub(crate) control: Arc<ControlPlane>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) timeout: Duration,
    /// What messages go through, if links are simulated.
    pub(crate) port: Option<Arc<Port>>,
    /// What messages to ranks of the same host go through, if that is another link.
    pub(crate) inside: Option<Arc<Port>>,
    /// Messages of the world's ranks that belong to no operation.
    pub(crate) mail: Arc<dyn Mail>,
    /// How this rank reaches others, for communicators of some of them.
    pub(crate) connector: Arc<dyn Connector>,
    /// Who writes down what this rank did when the world breaks, if that is wanted.
    pub(crate) flight: Option<Arc<FlightWriter>>,
}

/// One communicator's view of its ranks.
pub(crate) struct Backend {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// Which communicator this is; 0 is the world.
    pub(crate) id: u32,
    /// The ranks in the world, by which errors name them.
    pub(crate) members: Vec<usize>,
    pub(crate) links: Links,
    /// The host of each rank, numbered in the order of appearance.
    pub(crate) hosts: Vec<usize>,
    /// Memory shared with the other ranks of this one's host.
    pub(crate) host_memory: Option<HostMemory>,
    pub(crate) shared: Shared,
    pub(crate) patience: Patience,
    sequences: Sequences,
    pub(crate) sequence: u64,
    pub(crate) tag: Tag,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) costs: Option<CostModel>,
    /// Received pieces land here before they are reduced; 64-bit words, so that any element type is aligned.
    pub(crate) scratch: Vec<u64>,
}

impl Backend {
    /// An engine for the world's ranks `members`, of which this is number `rank`; all on hosts of their own, as yet.
    pub(crate) fn new(rank: usize, id: u32, members: Vec<usize>, links: Links, shared: Shared) -> Self {
        let world_size = members.len();
        shared.recorder.meet(id, &members);
        Self {
            rank,
            world_size,
            id,
            members,
            links,
            hosts: (0..world_size).collect(),
            host_memory: None,
            patience: Patience { failure: shared.failure.clone(), timeout: shared.timeout },
            shared,
            sequences: Sequences::new(world_size),
            sequence: 0,
            tag: Tag::new(Kind::Barrier, DType::U8, 0),
            sent: 0,
            received: 0,
            costs: None,
            scratch: Vec::new(),
        }
    }

    /// Has everything go by messages through this rank's simulated link, if there is one. Every rank does so at the same place.
    pub(crate) fn over_simulated_link(mut self) -> Self {
        if let Some(port) = &self.shared.port {
            let inside = self.shared.inside.as_ref().unwrap_or(port);
            let own = self.hosts[self.rank];
            self.links.delay(|rank| if self.hosts[rank] == own { inside } else { port }, &self.patience);
            self.host_memory = None;
        }
        self
    }

    /// All ranks.
    pub(crate) fn everybody(&self) -> Group {
        Group::world(self.world_size, self.rank)
    }

    /// How many ranks each host has.
    pub(crate) fn host_sizes(&self) -> Vec<usize> {
        hierarchical::by_host(&self.hosts).iter().map(Vec::len).collect()
    }

    /// Whether all ranks share memory.
    pub(crate) fn is_direct(&self) -> bool {
        self.host_memory.as_ref().is_some_and(|memory| memory.group.len() == self.world_size)
    }

    /// Makes an operation of this tag the current one.
    pub(crate) fn enter(&mut self, scope: Scope, tag: Tag) -> Result<()> {
        let resolved = if scope == Scope::World { self.resolve(tag)? } else { tag };
        self.enter_as(scope, resolved)
    }

    /// Makes an operation whose algorithm is settled the current one.
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

    /// The number of the next message from a rank.
    pub(super) fn next_from(&mut self, rank: usize) -> u64 {
        self.sequences.next(Scope::From(rank))
    }

    /// The tag with the algorithm that it will be done by.
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
        // Between two ranks all of them are the same.
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

    /// Why an algorithm cannot do an operation here, if it cannot.
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

    /// The error of a broken link: the control plane's verdict if it comes in time, else the neighbour's loss.
    pub(crate) fn broken(&self, link: LinkError) -> CommError {
        match link {
            LinkError::Closed(rank) => {
                let patience = self.shared.control.verdict_after(VERDICT);
                let cause = self.shared.failure.wait(patience).unwrap_or(Cause::Lost(self.members[rank]));
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

    /// The error of an operation that took too long: who has come to it, who has not, and what each does.
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
            seconds: self.patience.timeout.as_secs_f64(),
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
        self.received += HEADER as u64;
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
        self.sent += (HEADER + payload.len()) as u64;
        self.links.send(to, [&header, payload]).map_err(|link| self.broken(link))
    }

    fn receive(&mut self, from: usize, into: &mut [u8]) -> Result<()> {
        let length = self.receive_header(from)?;
        if length != into.len() {
            let theirs = format!("a piece of {length} bytes in place of one of {}", into.len());
            return Err(self.mismatch(from, theirs));
        }
        self.received += length as u64;
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
        self.received += length as u64;
        self.links.receive(from, Section::Payload, &mut bytes).map_err(|link| self.broken(link))?;
        Ok(bytes)
    }

    fn scratch(&mut self) -> &mut Vec<u64> {
        &mut self.scratch
    }
}
