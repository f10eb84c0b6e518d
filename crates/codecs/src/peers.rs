//! The ranks that a codec sums over: the few operations that codecs are made of.

use std::ops::Range;
use std::time::{Duration, Instant};

use phalanx_collectives::{Algorithm, Communicator, FlatBuffer, ReduceOp};

use crate::Result;
use crate::bucket::SumPlacement;
use crate::buffer::InPlace;
use crate::messages::{Messages, Packed};
use crate::quantisers::{bad_message, numbers, put_numbers};
use crate::slice::{DeviceSlice, FlatSlice, RankSplit, StateBuffer, mixed_memory};
use crate::timer::SumTimer;

/// The ranks that a bucket's gradients are summed over, as one of them sees them. Every rank calls the same operations in the
/// same order.
#[derive(Debug)]
pub struct Peers<'a> {
    comm: &'a Communicator,
    /// Which way reductions go.
    by: Communicator,
    moving: Duration,
    /// The timer of operations on a device, if they are measured.
    watch: Option<&'a SumTimer>,
}

impl<'a> Peers<'a> {
    /// The ranks of a communicator, whose reductions go by `algorithm`.
    pub fn new(comm: &'a Communicator, algorithm: Algorithm) -> Self {
        Self { comm, by: comm.using(algorithm), moving: Duration::ZERO, watch: None }
    }

    /// These, with operations on a device measured by it.
    pub fn watched(self, watch: Option<&'a SumTimer>) -> Self {
        Self { watch, ..self }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.comm.world_size()
    }

    /// The time that operations have taken so far, with the wait for other ranks. On a device, the time to enqueue them.
    pub fn moving(&self) -> Duration {
        self.moving
    }

    fn timed<R>(&mut self, run: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let note = |watch: Option<&SumTimer>| watch.map_or(Ok(()), SumTimer::note);
        note(self.watch)?;
        let start = Instant::now();
        let result = run(self);
        self.moving += start.elapsed();
        note(self.watch)?;
        result
    }

    /// Adds up the buffers of all ranks element by element. What a rank does not keep is unspecified afterwards.
    ///
    /// # Errors
    /// Errors of communication.
    pub fn sum<B: FlatBuffer + ?Sized>(&mut self, buffer: &mut B, keeps: SumPlacement) -> Result<()> {
        self.timed(|peers| {
            Ok(match keeps {
                SumPlacement::All => peers.by.all_reduce(buffer, ReduceOp::Sum),
                SumPlacement::Shard => peers.by.reduce_scatter_in_place(buffer, ReduceOp::Sum),
                SumPlacement::Root => peers.by.reduce(buffer, ReduceOp::Sum, 0),
            }?)
        })
    }

    /// Adds up the numbers of all ranks as they are. What a rank does not keep is unspecified afterwards.
    ///
    /// # Errors
    /// Errors of communication.
    pub fn add(&mut self, numbers: &mut FlatSlice<'_>, keeps: SumPlacement) -> Result<()> {
        match numbers {
            FlatSlice::Host(numbers) => self.sum(*numbers, keeps),
            FlatSlice::Device(numbers) => self.sum(&mut InPlace::of_codecs(numbers.flat.clone())?, keeps),
        }
    }

    /// Brings the parts together that [`SumPlacement::Shard`] has left on each rank.
    ///
    /// # Errors
    /// Errors of communication.
    pub fn bring_together(&mut self, numbers: &mut FlatSlice<'_>) -> Result<()> {
        self.timed(|peers| {
            Ok(match numbers {
                FlatSlice::Host(numbers) => peers.comm.all_gather_in_place(*numbers),
                FlatSlice::Device(numbers) => {
                    peers.comm.all_gather_in_place(&mut InPlace::of_codecs(numbers.flat.clone())?)
                }
            }?)
        })
    }

    /// Sends each part's message to the rank that takes the part: what came for this one, by rank; nothing if it takes none.
    ///
    /// # Errors
    /// Errors of communication.
    pub(crate) fn deal(&mut self, messages: Messages, cut: RankSplit) -> Result<Messages> {
        let Packed { bytes, stride, stream, .. } = match messages {
            Messages::Host(messages) => return Ok(Messages::Host(self.all_to_all(messages)?)),
            Messages::Device(packed) => packed,
        };
        self.timed(|peers| {
            let at = |index: usize| index * stride..(index + 1) * stride;
            let takes = |rank: usize| cut.keeps != SumPlacement::Root || rank == 0;
            let nothing = 0..0;
            let own = takes(peers.rank());
            let (out, inn): (Vec<_>, Vec<_>) = (0..peers.ranks())
                .map(|rank| {
                    let out = if takes(rank) { at(rank) } else { nothing.clone() };
                    (out, if own { at(rank) } else { nothing.clone() })
                })
                .unzip();
            let came = stream.room(if own { stride * peers.ranks() } else { stride }, bytes.dtype())?;
            let from = (&mut InPlace::of_codecs(bytes)?, out.as_slice());
            peers.comm.all_to_allv_into(from, (&mut InPlace::of_codecs(came.clone())?, &inn))?;
            Ok(Messages::Device(Packed { bytes: came, stride, stream, among: None }))
        })
    }

    /// Sends each rank its part of some numbers, as they are: what came for this one, by rank.
    ///
    /// # Errors
    /// [`crate::CodecError::Codec`] naming `codec` if a rank sends another number of them; and those of communication.
    pub(crate) fn deal_numbers(
        &mut self,
        codec: &str,
        values: &StateBuffer,
        parts: &[Range<usize>],
        of: &FlatSlice<'_>,
    ) -> Result<Vec<StateBuffer>> {
        let len = parts[self.rank()].len();
        match (values, of) {
            (StateBuffer::Host(values), FlatSlice::Host(_)) => {
                let message = |part: &Range<usize>| {
                    let mut message = Vec::with_capacity(4 * part.len());
                    put_numbers(&values[part.clone()], &mut message);
                    message
                };
                let coming = self.all_to_all(parts.iter().map(message).collect())?;
                let read = |message: &Vec<u8>| {
                    let values = numbers(message);
                    if values.len() == len {
                        Ok(StateBuffer::Host(values))
                    } else {
                        Err(bad_message(codec, message, len))
                    }
                };
                coming.iter().map(read).collect()
            }
            (StateBuffer::Device(values), FlatSlice::Device(DeviceSlice { stream, .. })) => {
                self.timed(|peers| {
                    let came = stream.room(len * peers.ranks(), values.dtype())?;
                    let inn: Vec<_> = (0..peers.ranks()).map(|rank| rank * len..(rank + 1) * len).collect();
                    let from = (&mut InPlace::of_codecs(values.clone())?, parts);
                    peers.comm.all_to_allv_into(from, (&mut InPlace::of_codecs(came.clone())?, &inn))?;
                    inn.into_iter().map(|part| Ok(StateBuffer::Device(came.narrow(part)?))).collect()
                })
            }
            _ => Err(mixed_memory()),
        }
    }

    /// One message of every rank, by rank.
    ///
    /// # Errors
    /// Errors of communication.
    pub(crate) fn gather(&mut self, own: Messages) -> Result<Messages> {
        match own {
            Messages::Host(own) => Ok(Messages::Host(self.all_gather(&own.concat())?)),
            Messages::Device(Packed { bytes, stride, stream, among }) => self.timed(|peers| {
                let all = among.unwrap_or(bytes);
                peers.comm.all_gather_in_place(&mut InPlace::of_codecs(all.clone())?)?;
                Ok(Messages::Device(Packed { bytes: all, stride, stream, among: None }))
            }),
        }
    }

    /// Gathers the messages of all ranks, which may differ in length, by rank.
    ///
    /// # Errors
    /// Errors of communication.
    pub fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.timed(|peers| Ok(peers.comm.all_gatherv(own)?))
    }

    /// Exchanges messages: `parts[r]` goes to rank `r`, and the result has the message from rank `r` at `r`. The part for
    /// this rank itself does not travel.
    ///
    /// # Errors
    /// Errors of communication; [`phalanx_collectives::CommError::Argument`] if there is not one part for each rank.
    pub fn all_to_all(&mut self, mut parts: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        self.timed(|peers| {
            let rank = peers.rank();
            let own = parts.get_mut(rank).map(std::mem::take).unwrap_or_default();
            let mut all = peers.comm.all_to_allv(&parts)?;
            all[rank] = own;
            Ok(all)
        })
    }
}
