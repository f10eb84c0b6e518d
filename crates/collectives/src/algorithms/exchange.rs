//! The step that most algorithms are made of: a part of the buffer goes out while another comes in.

use std::ops::Range;

use super::pieces;
use crate::dtype::Element;
use crate::engine::Native;
use crate::error::Result;
use crate::reduce::Reduction;

/// What happens to values that come in.
#[derive(Clone, Copy)]
pub(super) enum Take {
    /// They replace what is there.
    Copy,
    /// They are reduced into what is there.
    Reduce(Reduction),
}

impl Native {
    /// Receives the elements of one message into a part of the buffer.
    pub(super) fn take<T: Element>(&mut self, values: &mut [T], from: usize, take: Take) -> Result<()> {
        match take {
            Take::Copy => self.receive(from, bytemuck::cast_slice_mut(values)),
            Take::Reduce(reduction) => {
                let mut scratch = std::mem::take(&mut self.scratch);
                let len = size_of_val(values);
                scratch.resize(len.div_ceil(8).max(scratch.len()), 0);
                let bytes = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut scratch)[..len];
                let arrived = self.receive(from, bytes);
                if arrived.is_ok() {
                    reduction.combine(values, bytemuck::cast_slice(bytes));
                }
                self.scratch = scratch;
                arrived
            }
        }
    }

    /// Sends one range to a rank and takes another from a rank, piece by piece, so that a piece is reduced while the next
    /// is on its way. `None` on a side does nothing there. The ranges must not overlap.
    pub(super) fn exchange<T: Element>(
        &mut self,
        values: &mut [T],
        out: Option<(usize, Range<usize>)>,
        inn: Option<(usize, Range<usize>, Take)>,
    ) -> Result<()> {
        let to = out.as_ref().map_or(0, |(to, _)| *to);
        let (from, take) = inn.as_ref().map_or((0, Take::Copy), |(from, _, take)| (*from, *take));
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
