//! The engine of a communicator over MPI.

use std::collections::VecDeque;
use std::sync::Arc;

use super::mail::{MAIL_TIMEOUT, MpiMail};
use super::numbered;
use super::raw::{Comm, SendRequest, abort};
use super::universe::EngineGuard;
use super::world::World;
use crate::algorithms::cost::CostModel;
use crate::control::Control;
use crate::dtype::DType;
use crate::engine::{Description, Engine, ExitActions, Lifetime, Services, measure, part_id};
use crate::error::{CommError, Result};
use crate::mailbox::Mailbox;
use crate::operation::{Algorithm, Kind, Scope, Sequences, Tag};
use crate::recorder::OperationRecord;

/// One communicator over MPI. The order of fields is that of dropping: pending messages, the communicator, then perhaps MPI
/// itself.
pub(super) struct Mpi {
    /// Messages that MPI has not finished sending, in pieces, the oldest first.
    pub(super) sends: VecDeque<Vec<SendRequest>>,
    pub(super) comm: Comm,
    /// Messages that belong to no operation, if MPI allows calls from several threads.
    mail: Option<Arc<MpiMail>>,
    guard: EngineGuard,
    pub(super) world: Arc<World>,
    /// The number of this communicator; 0 is the world.
    id: u32,
    /// The numbers of its ranks in the world, which errors name.
    pub(super) members: Vec<usize>,
    /// The host of each rank, numbered in the order of appearance.
    hosts: Vec<usize>,
    sequences: Sequences,
    pub(super) sequence: u64,
    pub(super) tag: Tag,
    pub(super) sent: u64,
    pub(super) received: u64,
    costs: Option<CostModel>,
    /// Memory that MPI reads or writes in place of a caller's buffer. 64-bit words align any element type.
    pub(super) scratch: Vec<u64>,
}

impl Mpi {
    /// The engine of the world's ranks `members` on these hosts.
    pub(super) fn new(
        world: Arc<World>,
        mail: Option<Arc<MpiMail>>,
        guard: EngineGuard,
        comm: Comm,
        id: u32,
        members: Vec<usize>,
        hosts: Vec<usize>,
    ) -> Self {
        Self {
            sends: VecDeque::new(),
            sequences: Sequences::new(comm.size),
            comm,
            mail,
            guard,
            world,
            id,
            members,
            hosts,
            sequence: 0,
            tag: Tag::new(Kind::Barrier, DType::U8, 0),
            sent: 0,
            received: 0,
            costs: None,
            scratch: Vec::new(),
        }
    }

    /// Counts bytes that other ranks need from this one, and that it needs from them.
    pub(super) fn count(&mut self, sent: usize, received: usize) {
        if self.comm.size > 1 {
            self.sent += sent as u64;
            self.received += received as u64;
        }
    }

    /// Returns the bytes of all ranks.
    fn tell_all(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = vec![0; own.len() * self.comm.size];
        self.comm.all_gather(own, &mut all)?;
        Ok(all.chunks_exact(own.len().max(1)).map(<[u8]>::to_vec).collect())
    }

    /// Returns the number of the next operation of this scope.
    pub(super) fn next(&mut self, scope: Scope) -> u64 {
        self.sequences.next(scope)
    }

    fn measure(&mut self) -> Result<CostModel> {
        let (hosts, rank) = (self.hosts.clone(), self.comm.rank);
        let (local, remote) = measure::links(self, &hosts, rank)?;
        let own = measure::found(local, remote, None);
        Ok(measure::agreed(&self.tell_all(bytemuck::cast_slice(&own))?))
    }
}

/// The error of a buffer in memory that MPI cannot use.
pub(super) fn not_in_place(kind: Kind) -> CommError {
    let problem = "the buffer is in shared memory of another communicator; MPI needs plain memory";
    CommError::Argument { operation: kind.name(), problem: problem.into() }
}

impl Description for Mpi {
    fn name(&self) -> &'static str {
        "MPI"
    }

    fn rank(&self) -> usize {
        self.comm.rank
    }

    fn world_size(&self) -> usize {
        self.comm.size
    }

    fn traffic(&self) -> (u64, u64) {
        (self.sent, self.received)
    }

    fn under_way(&self) -> (u32, u64, Tag) {
        (self.id, self.sequence, self.tag)
    }

    fn hosts(&self) -> Vec<usize> {
        self.hosts.clone()
    }

    fn recent(&self) -> Vec<OperationRecord> {
        self.world.recorder.recent()
    }
}

impl Lifetime for Mpi {
    fn begin(&mut self, scope: Scope, tag: Tag) -> Result<()> {
        if tag.algorithm != Algorithm::Auto {
            let problem = format!("algorithm {} is not available: MPI chooses its own", tag.algorithm);
            return Err(CommError::Argument { operation: tag.kind.name(), problem });
        }
        if matches!(tag.kind, Kind::AllReduceInPlace | Kind::ReduceScatterInPlace | Kind::AllGatherInPlace) {
            return Err(not_in_place(tag.kind));
        }
        (self.sequence, self.tag) = (self.next(scope), tag);
        self.world.recorder.begin(self.id, scope, self.sequence, tag);
        self.world.check_failure()?;
        self.forget_sent()?;
        self.check(scope)
    }

    fn end(&mut self, error: Option<&CommError>) {
        self.world.recorder.end(self.id, error.is_none());
        let Some(error) = error else { return };
        // All ranks of a communicator notice a mismatch. An error of MPI, a buffer or a message shows on this rank alone, so others
        // may wait.
        let alone = match error {
            CommError::Mismatch { .. } => self.tag.kind == Kind::SendRecv,
            CommError::Mpi { .. } | CommError::Buffer(_) => true,
            _ => return,
        };
        if alone {
            self.guard.universe().strand();
        }
        // The first failure counts.
        let _ = self.world.failure.set((self.members[self.comm.rank], error.to_string()));
    }

    fn costs(&mut self) -> Result<CostModel> {
        if let Some(costs) = self.costs {
            return Ok(costs);
        }
        self.begin(Scope::World, Tag::new(Kind::Measure, DType::F32, 0))?;
        let result = self.measure();
        self.end(result.as_ref().err());
        let costs = result?;
        self.costs = Some(costs);
        Ok(costs)
    }

    fn split(&mut self, groups: &[Vec<usize>], number: u32) -> Result<Box<dyn Engine>> {
        let rank = self.comm.rank;
        let position = groups.iter().position(|group| group.contains(&rank));
        let (colour, group) = position.map_or((0, &[][..]), |at| (at, groups[at].as_slice()));
        let key = group.iter().position(|other| *other == rank).unwrap_or(0);
        let guard = self.guard.universe().enter()?;
        let comm = self.comm.split(colour, key)?;
        let members: Vec<usize> = group.iter().map(|rank| self.members[*rank]).collect();
        let hosts: Vec<usize> = group.iter().map(|rank| self.hosts[*rank]).collect();
        let id = part_id(self.id, number, &members);
        Ok(Box::new(Self::new(
            self.world.clone(),
            self.mail.clone(),
            guard,
            comm,
            id,
            members,
            numbered(&hosts),
        )))
    }

    fn ending(&self) -> ExitActions {
        let (world, rank) = (self.world.clone(), self.members[self.comm.rank]);
        let give_up = move |reason: &str| {
            tracing::error!(rank, reason, "this rank gives up; MPI ends all ranks");
            if let Some(universe) = world.universe.upgrade() {
                abort(&universe);
            }
        };
        ExitActions { abort: Box::new(give_up), leave: None, _whole: None }
    }
}

impl Services for Mpi {
    fn mailbox(&self) -> std::result::Result<Mailbox, &'static str> {
        let mail = self.mail.clone().ok_or("MPI without MPI_THREAD_MULTIPLE")?;
        Ok(Mailbox {
            mail,
            communicator: self.id,
            members: self.members.as_slice().into(),
            timeout: MAIL_TIMEOUT,
        })
    }

    fn control(&self) -> std::result::Result<Control, &'static str> {
        Err("MPI")
    }
}

impl Engine for Mpi {}
