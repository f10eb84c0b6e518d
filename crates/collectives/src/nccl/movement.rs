//! A rank's operations that move what is on its GPU and leave it as it is: messages, and parts from and for every rank.

use cudarc::driver::{CudaStream, CudaView, CudaViewMut, DeviceSlice};

use super::calls::{self, Call, Member, in_a_row};
use super::device::{DeviceCommunicator, check_len};
use super::handle::DeviceHandle;
use super::memory::{DeviceElement, DeviceSource, DeviceTarget, lend, lend_mut};
#[cfg(doc)]
use crate::error::CommError;
use crate::error::Result;
use crate::partition::chunk;

impl DeviceCommunicator {
    /// Sends a buffer to one other rank, which must call [`DeviceCommunicator::recv`]. The stream waits until it does: two
    /// ranks that both send first wait for each other until time is up. [`DeviceCommunicator::send_recv`] does
    /// both at once.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is no such rank or it is this one; otherwise as [`DeviceCommunicator::all_reduce`].
    pub fn send<T: DeviceElement>(
        &self,
        buffer: &impl DeviceSource<T>,
        to: usize,
        compute: &CudaStream,
    ) -> Result<DeviceHandle> {
        const NAME: &str = "send";
        self.check_other(NAME, to)?;
        let stream = self.follow(NAME, compute, &[buffer.stream()])?;
        let (from, _noted) = lend(buffer, stream);
        self.channel.issue(NAME, &[Call::Send { from, to }])?;
        DeviceHandle::after(&self.channel, NAME)
    }

    /// Receives a buffer of the same length from one other rank; see [`DeviceCommunicator::send`].
    ///
    /// # Errors
    /// As [`DeviceCommunicator::send`].
    pub fn recv<T: DeviceElement>(
        &self,
        buffer: &mut impl DeviceTarget<T>,
        from: usize,
        compute: &CudaStream,
    ) -> Result<DeviceHandle> {
        const NAME: &str = "receive";
        self.check_other(NAME, from)?;
        let stream = self.follow(NAME, compute, &[buffer.stream()])?;
        let (to, _noted) = lend_mut(buffer, stream);
        self.channel.issue(NAME, &[Call::Receive { to, from }])?;
        DeviceHandle::after(&self.channel, NAME)
    }

    /// Sends a buffer to one rank while one comes from another, or from the same: neighbours in a ring all call this.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is no such rank; otherwise as [`DeviceCommunicator::all_reduce`].
    pub fn send_recv<T: DeviceElement>(
        &self,
        buffer: &impl DeviceSource<T>,
        to: usize,
        into: &mut impl DeviceTarget<T>,
        from: usize,
        compute: &CudaStream,
    ) -> Result<DeviceHandle> {
        const NAME: &str = "send/receive";
        self.check_rank(NAME, to)?;
        self.check_rank(NAME, from)?;
        let stream = self.follow(NAME, compute, &[buffer.stream(), into.stream()])?;
        let ((out, _read), (inn, _written)) = (lend(buffer, stream), lend_mut(into, stream));
        self.channel.issue(NAME, &[Call::Send { from: out, to }, Call::Receive { to: inn, from }])?;
        DeviceHandle::after(&self.channel, NAME)
    }

    /// `to` becomes what every rank has for this one: rank `r` gets elements `r·len/world .. (r + 1)·len/world` of each
    /// `from`, one after the other in the order of ranks. All `from` are of equal length.
    ///
    /// # Errors
    /// [`CommError::Argument`] if `to` has another length than that; otherwise as [`DeviceCommunicator::all_reduce`].
    pub fn all_to_all<T: DeviceElement>(
        &self,
        from: &impl DeviceSource<T>,
        to: &mut impl DeviceTarget<T>,
        compute: &CudaStream,
    ) -> Result<DeviceHandle> {
        const NAME: &str = "all-to-all";
        let (len, Member { rank, world_size }) = (from.len(), self.channel.member);
        let own = chunk(len, world_size, rank).len();
        check_len(NAME, to.len(), own * world_size)?;
        let stream = self.follow(NAME, compute, &[from.stream(), to.stream()])?;
        let ((from, _read), (to, _written)) = (lend(from, stream), lend_mut(to, stream));
        let out: Vec<_> = (0..world_size).map(|rank| chunk(len, world_size, rank)).collect();
        let mut calls = calls::send_parts(from, &out);
        calls.extend(calls::receive_parts(to, &in_a_row(vec![own; world_size])));
        self.channel.issue(NAME, &calls)?;
        DeviceHandle::after(&self.channel, NAME)
    }

    /// The root's `to` becomes all ranks' `from`, which are of equal length, one after the other; `to` counts only there.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is no such root, or its `to` is missing or of another length; otherwise as
    /// [`DeviceCommunicator::all_reduce`].
    pub fn gather<T: DeviceElement>(
        &self,
        from: &impl DeviceSource<T>,
        to: Option<CudaViewMut<'_, T>>,
        root: usize,
        compute: &CudaStream,
    ) -> Result<DeviceHandle> {
        const NAME: &str = "gather";
        self.check_rank(NAME, root)?;
        let (len, world_size) = (from.len(), self.world_size());
        let mut to = to.filter(|_| root == self.rank());
        if root == self.rank() {
            check_len(NAME, to.as_ref().map_or(0, CudaViewMut::len), len * world_size)?;
        }
        let mut buffers = vec![from.stream()];
        buffers.extend(to.as_ref().map(DeviceSlice::stream));
        let stream = self.follow(NAME, compute, &buffers)?;
        let (from, _read) = lend(from, stream);
        let (to, _written) = to.as_mut().map(|to| lend_mut(to, stream)).unzip();
        let mut calls = vec![Call::Send { from, to: root }];
        if let Some(to) = to {
            calls.extend(calls::receive_parts(to, &in_a_row(vec![len; world_size])));
        }
        self.channel.issue(NAME, &calls)?;
        DeviceHandle::after(&self.channel, NAME)
    }

    /// Each rank's `to` becomes its part of the root's `from`, of which it is elements `rank·len .. (rank + 1)·len`; `from`
    /// counts only at the root.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is no such root, or its `from` is missing or of another length; otherwise as
    /// [`DeviceCommunicator::all_reduce`].
    pub fn scatter<T: DeviceElement>(
        &self,
        from: Option<CudaView<'_, T>>,
        to: &mut impl DeviceTarget<T>,
        root: usize,
        compute: &CudaStream,
    ) -> Result<DeviceHandle> {
        const NAME: &str = "scatter";
        self.check_rank(NAME, root)?;
        let (len, world_size) = (to.len(), self.world_size());
        let from = from.filter(|_| root == self.rank());
        if root == self.rank() {
            check_len(NAME, from.as_ref().map_or(0, CudaView::len), len * world_size)?;
        }
        let mut buffers = vec![to.stream()];
        buffers.extend(from.as_ref().map(DeviceSlice::stream));
        let stream = self.follow(NAME, compute, &buffers)?;
        let (from, _read) = from.as_ref().map(|from| lend(from, stream)).unzip();
        let (to, _written) = lend_mut(to, stream);
        let mut calls = vec![Call::Receive { to, from: root }];
        if let Some(from) = from {
            calls.extend(calls::send_parts(from, &in_a_row(vec![len; world_size])));
        }
        self.channel.issue(NAME, &calls)?;
        DeviceHandle::after(&self.channel, NAME)
    }
}
