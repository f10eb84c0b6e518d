//! A rank's operations on buffers in the memory of its GPU.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use super::bootstrap::{self, OPENING};
use super::calls::{self, Call, Member};
use super::channel::Channel;
use super::handle::DeviceHandle;
use super::memory::{DeviceElement, DeviceSource, DeviceTarget, lend, lend_mut};
use super::watch::Watch;
use crate::communicator::Communicator;
use crate::dtype::ReduceOp;
use crate::error::{CommError, Result};

/// A rank's GPU, connected to those of all other ranks.
///
/// Operations run on a stream of their own, in the order of their issue, which must be the same on every rank. Each
/// waits for what was on the computing stream when it was issued, and returns at once; see [`DeviceHandle`]. NCCL does
/// not compare what ranks call: where they disagree, results are garbage or time runs out. Ranks that have several of
/// these communicators must use all of them in the same order.
///
/// A failure here is one of the world: the other ranks are told, and what they wait for is given up.
#[derive(Debug)]
pub struct DeviceCommunicator {
    pub(super) channel: Arc<Channel>,
    /// What barriers reduce.
    token: Mutex<CudaSlice<i32>>,
}

impl DeviceCommunicator {
    /// Connects this rank's GPU. Every rank of `world` calls this at the same place, each with a GPU of its own. The
    /// world must outlive it.
    ///
    /// # Errors
    /// [`CommError::Nccl`] on every rank if one has no library or no usable GPU; otherwise that of the world.
    pub fn new(world: &Communicator, context: Arc<CudaContext>) -> Result<Self> {
        let member = Member { rank: world.rank(), world_size: world.world_size() };
        let id = bootstrap::id(member.rank, &context, |own| world.all_gatherv(own))?;
        let watch = world.with_backend(OPENING, |backend| Ok(Watch::of(backend)))?;
        let channel = Channel::open(context, &id, member, watch)?;
        let token = channel.stream().alloc_zeros(1).map_err(|error| channel.driver(OPENING, error))?;
        Ok(Self { channel, token: Mutex::new(token) })
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.channel.member.rank
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.channel.member.world_size
    }

    /// The stream that operations run on.
    pub fn stream(&self) -> &Arc<CudaStream> {
        self.channel.stream()
    }

    /// Makes the operations' stream wait for the computing one, if that and all buffers are on this GPU.
    pub(super) fn follow(
        &self,
        operation: &'static str,
        compute: &CudaStream,
        buffers: &[&Arc<CudaStream>],
    ) -> Result<&CudaStream> {
        let own = self.channel.context();
        if compute.context() != own || buffers.iter().any(|stream| stream.context() != own) {
            let problem = format!("its stream and buffers must be of the context of GPU {}", own.ordinal());
            return Err(CommError::Argument { operation, problem });
        }
        let stream = self.channel.stream();
        stream.join(compute).map_err(|error| self.channel.driver(operation, error))?;
        Ok(stream)
    }

    pub(super) fn check_rank(&self, operation: &'static str, rank: usize) -> Result<()> {
        if rank < self.world_size() {
            return Ok(());
        }
        let problem = format!("rank {rank} does not exist in a world of {}", self.world_size());
        Err(CommError::Argument { operation, problem })
    }

    pub(super) fn check_other(&self, operation: &'static str, rank: usize) -> Result<()> {
        self.check_rank(operation, rank)?;
        if rank != self.rank() {
            return Ok(());
        }
        Err(CommError::Argument { operation, problem: format!("rank {rank} is this rank") })
    }

    /// Every rank's buffer becomes the reduction of all.
    ///
    /// # Errors
    /// [`CommError::Unsupported`] for the mean of integers, [`CommError::Argument`] for a buffer or a stream of another GPU;
    /// otherwise that of the world.
    pub fn all_reduce<T: DeviceElement>(
        &self,
        buffer: &mut impl DeviceTarget<T>,
        op: ReduceOp,
        compute: &CudaStream,
    ) -> Result<DeviceHandle> {
        const NAME: &str = "all-reduce";
        op.check(T::DTYPE)?;
        let stream = self.follow(NAME, compute, &[buffer.stream()])?;
        let (all, _noted) = lend_mut(buffer, stream);
        self.channel.issue(NAME, &[Call::AllReduce { from: all.read(), to: all, op }])?;
        DeviceHandle::after(&self.channel, NAME)
    }

    /// `to` becomes this rank's part of the reduction of all `from`: elements `rank·len/world .. (rank + 1)·len/world`.
    ///
    /// # Errors
    /// [`CommError::Argument`] if `to` has another length than that; otherwise as [`DeviceCommunicator::all_reduce`].
    pub fn reduce_scatter<T: DeviceElement>(
        &self,
        from: &impl DeviceSource<T>,
        to: &mut impl DeviceTarget<T>,
        op: ReduceOp,
        compute: &CudaStream,
    ) -> Result<DeviceHandle> {
        const NAME: &str = "reduce-scatter";
        op.check(T::DTYPE)?;
        check_len(NAME, to.len(), self.channel.member.own(from.len()).len())?;
        let stream = self.follow(NAME, compute, &[from.stream(), to.stream()])?;
        let ((from, _read), (to, _written)) = (lend(from, stream), lend_mut(to, stream));
        self.channel.issue(NAME, &calls::reduce_scatter(self.channel.member, from, to, op))?;
        DeviceHandle::after(&self.channel, NAME)
    }

    /// Every rank's `to` becomes all ranks' `from`, each of which is elements `rank·len/world .. (rank + 1)·len/world`
    /// of it.
    ///
    /// # Errors
    /// [`CommError::Argument`] if `from` has another length than that; otherwise as [`DeviceCommunicator::all_reduce`].
    pub fn all_gather<T: DeviceElement>(
        &self,
        from: &impl DeviceSource<T>,
        to: &mut impl DeviceTarget<T>,
        compute: &CudaStream,
    ) -> Result<DeviceHandle> {
        const NAME: &str = "all-gather";
        check_len(NAME, from.len(), self.channel.member.own(to.len()).len())?;
        let stream = self.follow(NAME, compute, &[from.stream(), to.stream()])?;
        let ((from, _read), (to, _written)) = (lend(from, stream), lend_mut(to, stream));
        self.channel.issue(NAME, &calls::all_gather(self.channel.member, from, to))?;
        DeviceHandle::after(&self.channel, NAME)
    }

    /// Every rank's buffer becomes the root's.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is no such root; otherwise as [`DeviceCommunicator::all_reduce`].
    pub fn broadcast<T: DeviceElement>(
        &self,
        buffer: &mut impl DeviceTarget<T>,
        root: usize,
        compute: &CudaStream,
    ) -> Result<DeviceHandle> {
        const NAME: &str = "broadcast";
        self.check_rank(NAME, root)?;
        let stream = self.follow(NAME, compute, &[buffer.stream()])?;
        let (all, _noted) = lend_mut(buffer, stream);
        let from = (root == self.rank()).then(|| all.read());
        self.channel.issue(NAME, &[Call::Broadcast { from, to: all, root }])?;
        DeviceHandle::after(&self.channel, NAME)
    }

    /// The root's buffer becomes the reduction of all; the others keep theirs.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is no such root; otherwise as [`DeviceCommunicator::all_reduce`].
    pub fn reduce<T: DeviceElement>(
        &self,
        buffer: &mut impl DeviceTarget<T>,
        op: ReduceOp,
        root: usize,
        compute: &CudaStream,
    ) -> Result<DeviceHandle> {
        const NAME: &str = "reduce";
        op.check(T::DTYPE)?;
        self.check_rank(NAME, root)?;
        let stream = self.follow(NAME, compute, &[buffer.stream()])?;
        let (all, _noted) = lend_mut(buffer, stream);
        let to = (root == self.rank()).then_some(all);
        self.channel.issue(NAME, &[Call::Reduce { from: all.read(), to, op, root }])?;
        DeviceHandle::after(&self.channel, NAME)
    }

    /// What is after it on a stream that waits for it begins once every rank's computing stream has come here.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`].
    pub fn barrier(&self, compute: &CudaStream) -> Result<DeviceHandle> {
        const NAME: &str = "barrier";
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = self.follow(NAME, compute, &[])?;
        let (all, _noted) = lend_mut(&mut *token, stream);
        self.channel.issue(NAME, &[Call::AllReduce { from: all.read(), to: all, op: ReduceOp::Sum }])?;
        DeviceHandle::after(&self.channel, NAME)
    }
}

pub(super) fn check_len(operation: &'static str, is: usize, should_be: usize) -> Result<()> {
    if is == should_be {
        return Ok(());
    }
    let problem = format!("a buffer of {is} elements where {should_be} belong");
    Err(CommError::Argument { operation, problem })
}
