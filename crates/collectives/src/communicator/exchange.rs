//! All-to-all exchange from one buffer into another.

use std::ops::Range;

use super::{Communicator, open};
use crate::buffer::{FlatBuffer, on_slice};
use crate::engine::Engine;
use crate::error::{CommError, Result};
use crate::handle::Handle;
use crate::operation::{Kind, Scope, Tag};

const NAME: &str = "all-to-allv";

impl Communicator {
    /// Exchanges parts of any lengths with every rank: elements `out[r]` of `from` go to rank `r`, and rank `r`'s part for this
    /// rank goes to elements `inn[r]` of `to`. The rest of `to` keeps its values. Both buffers are on the host, or both in GPU
    /// memory.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is not one part for each rank, a part is outside its buffer, or types differ;
    /// [`CommError::Mismatch`] if a rank has a part of another length for this one; otherwise the error of the world.
    pub fn all_to_allv_into<B: FlatBuffer + ?Sized, P: FlatBuffer + ?Sized>(
        &self,
        (from, out): (&mut B, &[Range<usize>]),
        (to, inn): (&mut P, &[Range<usize>]),
    ) -> Result<()> {
        self.check_exchange((from, out), (to, inn))?;
        let tag = Tag::new(Kind::AllToAllV, from.dtype(), 0);
        if let Some(under_way) = self.exchange_on_device(tag, (from, out), (to, inn))? {
            return under_way.hand_over();
        }
        self.run(Scope::World, tag, |engine| exchange(engine, (from, out), (to, inn)))
    }

    /// [`Communicator::all_to_allv_into`] without waiting: [`Handle::wait`] returns both buffers.
    pub fn all_to_allv_into_async<B: FlatBuffer, P: FlatBuffer>(
        &self,
        (mut from, out): (B, Vec<Range<usize>>),
        (mut to, inn): (P, Vec<Range<usize>>),
    ) -> Handle<(B, P)> {
        let tag = Tag::new(Kind::AllToAllV, from.dtype(), 0);
        let begun = self
            .check_exchange((&from, &out), (&to, &inn))
            .and_then(|()| self.exchange_on_device(tag, (&mut from, &out), (&mut to, &inn)));
        match begun {
            Err(error) => Handle::failed(error, self.inner.counters.clone()),
            Ok(Some(under_way)) => Handle::on_device((from, to), under_way, self.inner.counters.clone()),
            Ok(None) => self.issue(Scope::World, tag, move |engine| {
                exchange(engine, (&mut from, &out), (&mut to, &inn))?;
                Ok((from, to))
            }),
        }
    }

    fn check_exchange<B: FlatBuffer + ?Sized, P: FlatBuffer + ?Sized>(
        &self,
        (from, out): (&B, &[Range<usize>]),
        (to, inn): (&P, &[Range<usize>]),
    ) -> Result<()> {
        let wrong = |problem: String| Err(CommError::Argument { operation: NAME, problem });
        if from.dtype() != to.dtype() {
            return wrong(format!("{} cannot come as {}", from.dtype().name(), to.dtype().name()));
        }
        for (parts, len) in [(out, from.len()), (inn, to.len())] {
            self.check_parts(NAME, parts.len())?;
            if let Some(part) = parts.iter().find(|part| part.start > part.end || part.end > len) {
                return wrong(format!("a part at {part:?} of a buffer of {len}"));
            }
        }
        let (gives, takes) = (out[self.rank()].len(), inn[self.rank()].len());
        if gives != takes {
            return wrong(format!("rank {} has {gives} elements for itself and takes {takes}", self.rank()));
        }
        Ok(())
    }
}

/// Runs the exchange between buffers on the host.
fn exchange<B: FlatBuffer + ?Sized, P: FlatBuffer + ?Sized>(
    engine: &mut dyn Engine,
    (from, out): (&mut B, &[Range<usize>]),
    (to, inn): (&mut P, &[Range<usize>]),
) -> Result<()> {
    let (dtype, lengths) = (from.dtype(), (from.len(), to.len()));
    let size = dtype.size();
    let place = |part: &Range<usize>| part.start * size..part.end * size;
    let mut all = Vec::new();
    open(from, (dtype, lengths.0), &mut |slice| {
        let bytes: &[u8] = on_slice!(slice, |values| bytemuck::cast_slice(values));
        let parts: Vec<&[u8]> = out.iter().map(|part| &bytes[place(part)]).collect();
        all = engine.all_to_all(&parts)?;
        Ok(())
    })?;
    open(to, (dtype, lengths.1), &mut |slice| {
        let bytes: &mut [u8] = on_slice!(slice, |values| bytemuck::cast_slice_mut(values));
        for (rank, (got, part)) in all.iter().zip(inn).enumerate() {
            if got.len() != part.len() * size {
                let ours = format!("{} elements of rank {rank}", part.len());
                let theirs = format!("{} elements", got.len() / size);
                return Err(CommError::Mismatch { rank, ours, theirs });
            }
            bytes[place(part)].copy_from_slice(got);
        }
        Ok(())
    })
}
