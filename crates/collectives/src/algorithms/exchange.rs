//! Building blocks of algorithms: messages between two ranks, and a step that sends one part of the buffer while it receives
//! another.

use std::ops::Range;

use crate::dtype::Element;
use crate::error::Result;
use crate::partition::pieces;
use crate::reduce::Reduction;

/// Messages between this rank and others, in order for each pair.
pub(crate) trait Messages {
    /// Sends a message without waiting for its receiver.
    fn send(&mut self, to: usize, bytes: &[u8]) -> Result<()>;

    /// Receives a message of known length.
    fn receive(&mut self, from: usize, into: &mut [u8]) -> Result<()>;
}

/// The treatment of received values.
#[derive(Clone, Copy)]
pub(crate) enum ReceiveMode {
    /// They replace the current values.
    Copy,
    /// They are reduced into the current values.
    Reduce(Reduction),
}

/// Messages, and the exchange of buffers piece by piece.
pub(crate) trait Exchange: Messages {
    /// Receives a message of at most `limit` bytes whose length only the sender knows.
    fn receive_any(&mut self, from: usize, limit: usize) -> Result<Vec<u8>>;

    /// Returns memory in which pieces arrive before they are reduced, kept between operations. 64-bit words align any element type.
    fn scratch(&mut self) -> &mut Vec<u64>;

    /// Receives the elements of one message into a part of the buffer.
    fn take<T: Element>(&mut self, values: &mut [T], from: usize, take: ReceiveMode) -> Result<()> {
        match take {
            ReceiveMode::Copy => self.receive(from, bytemuck::cast_slice_mut(values)),
            ReceiveMode::Reduce(reduction) => {
                let mut scratch = std::mem::take(self.scratch());
                let len = size_of_val(values);
                scratch.resize(len.div_ceil(8).max(scratch.len()), 0);
                let bytes = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut scratch)[..len];
                let arrived = self.receive(from, bytes);
                if arrived.is_ok() {
                    reduction.combine(values, bytemuck::cast_slice(bytes));
                }
                *self.scratch() = scratch;
                arrived
            }
        }
    }

    /// Sends one range to a rank and receives another from a rank, piece by piece, so that a piece is reduced while the next one
    /// arrives. `None` skips a side. The ranges must not overlap.
    fn exchange<T: Element>(
        &mut self,
        values: &mut [T],
        out: Option<(usize, Range<usize>)>,
        inn: Option<(usize, Range<usize>, ReceiveMode)>,
    ) -> Result<()> {
        let to = out.as_ref().map_or(0, |(to, _)| *to);
        let (from, take) = inn.as_ref().map_or((0, ReceiveMode::Copy), |(from, _, take)| (*from, *take));
        let mut outgoing = out.into_iter().flat_map(|(_, range)| pieces::<T>(range));
        let mut incoming = inn.into_iter().flat_map(|(_, range, _)| pieces::<T>(range));
        loop {
            let (out, inn) = (outgoing.next(), incoming.next());
            if let Some(out) = &out {
                self.send(to, bytemuck::cast_slice(&values[out.clone()]))?;
            }
            if let Some(inn) = &inn {
                self.take(&mut values[inn.clone()], from, take)?;
            }
            if out.is_none() && inn.is_none() {
                return Ok(());
            }
        }
    }
}
