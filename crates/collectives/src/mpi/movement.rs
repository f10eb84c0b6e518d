//! Movement of bytes among all ranks, in rounds if there are more than an int of MPI counts.

use super::collective::Parts;
use super::engine::Mpi;
use super::partition::part_of;
use super::scratch::{COPIED, typed};
use crate::buffer::{SliceMut, on_slice};
use crate::dtype::{Element, ReduceOp};
use crate::engine::Movement;
use crate::error::Result;
use crate::operation::{Kind, Scope, Tag};
use crate::partition::chunk;

/// Parts of different lengths in rounds of at most `step` bytes of each.
struct Rounds {
    step: usize,
    /// The longest part of any rank.
    longest: usize,
}

impl Rounds {
    fn each(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.longest.div_ceil(self.step)
    }

    /// Returns the bytes of a part of this length in a round.
    fn of(&self, length: usize, round: usize) -> usize {
        part_of(0..length, round, self.step).len()
    }

    /// Returns the parts of all ranks in a round.
    fn parts(&self, lengths: &[usize], round: usize) -> Result<Parts> {
        Parts::of(lengths.iter().map(|length| self.of(*length, round)))
    }
}

/// Returns empty buffers for parts of these lengths.
fn room(lengths: &[usize]) -> Vec<Vec<u8>> {
    lengths.iter().map(|length| Vec::with_capacity(*length)).collect()
}

/// Appends the bytes of a round to the parts.
fn append(parts: &mut [Vec<u8>], mut all: &[u8], count: impl Fn(usize) -> usize) {
    for (rank, part) in parts.iter_mut().enumerate() {
        let (own, rest) = all.split_at(count(rank));
        part.extend_from_slice(own);
        all = rest;
    }
}

impl Mpi {
    fn rounds(&self, longest: usize) -> Rounds {
        Rounds { step: (COPIED.min(self.world.settings.piece) / self.comm.size).max(1), longest }
    }

    /// Returns the lengths of all ranks.
    fn lengths(&self, own: usize) -> Result<Vec<usize>> {
        let mut all = vec![0_i64; self.comm.size];
        self.comm.all_gather(&[own as i64], &mut all)?;
        Ok(all.into_iter().map(|length| length as usize).collect())
    }

    fn all_gather_chunks<T: Element>(&mut self, values: &mut [T]) -> Result<()> {
        let (len, rank, ranks) = (values.len(), self.comm.rank, self.comm.size);
        let own = chunk(len, ranks, rank);
        if len <= self.world.settings.piece {
            let parts = Parts::of((0..ranks).map(|rank| chunk(len, ranks, rank).len()))?;
            let part = typed::<T>(&mut self.scratch, own.len());
            part.copy_from_slice(&values[own.clone()]);
            self.comm.all_gather_parts(part, values, &parts)?;
        } else {
            let rounds = self.rounds(len.div_ceil(ranks));
            for round in rounds.each() {
                let range = |rank: usize| part_of(chunk(len, ranks, rank), round, rounds.step);
                let parts = Parts::of((0..ranks).map(|rank| range(rank).len()))?;
                let all = typed::<T>(&mut self.scratch, parts.total());
                self.comm.all_gather_parts(&values[range(rank)], all, &parts)?;
                let mut rest = &*all;
                for rank in 0..ranks {
                    let (here, after) = rest.split_at(range(rank).len());
                    values[range(rank)].copy_from_slice(here);
                    rest = after;
                }
            }
        }
        self.count(own.len() * size_of::<T>(), (len - own.len()) * size_of::<T>());
        Ok(())
    }

    fn broadcast_from<T: Element>(&mut self, values: &mut [T], root: usize) -> Result<()> {
        let bytes = size_of_val(values);
        for piece in values.chunks_mut(self.world.settings.piece) {
            self.comm.broadcast(piece, root)?;
        }
        if self.comm.rank == root {
            self.count(bytes, 0);
        } else {
            self.count(0, bytes);
        }
        Ok(())
    }
}

impl Movement for Mpi {
    fn all_gather(&mut self, values: SliceMut<'_>) -> Result<()> {
        on_slice!(values, |values| self.all_gather_chunks(values))
    }

    /// This is a barrier too, as no rank returns before all have called.
    fn all_gatherv(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.lengths(own.len())?;
        let rounds = self.rounds(lengths.iter().copied().max().unwrap_or(0));
        let mut parts = room(&lengths);
        for round in rounds.each() {
            let now = rounds.parts(&lengths, round)?;
            let all = typed::<u8>(&mut self.scratch, now.total());
            self.comm.all_gather_parts(&own[part_of(0..own.len(), round, rounds.step)], all, &now)?;
            append(&mut parts, all, |rank| rounds.of(lengths[rank], round));
        }
        self.count(own.len(), lengths.iter().sum::<usize>() - own.len());
        Ok(parts)
    }

    fn broadcast(&mut self, values: SliceMut<'_>, root: usize) -> Result<()> {
        on_slice!(values, |values| self.broadcast_from(values, root))
    }

    fn gather(&mut self, own: &[u8], root: usize) -> Result<Vec<Vec<u8>>> {
        // All ranks must know the number of rounds.
        let lengths = self.lengths(own.len())?;
        let rounds = self.rounds(lengths.iter().copied().max().unwrap_or(0));
        let at_root = self.comm.rank == root;
        let mut parts = if at_root { room(&lengths) } else { Vec::new() };
        for round in rounds.each() {
            let now = rounds.parts(&lengths, round)?;
            let all = typed::<u8>(&mut self.scratch, if at_root { now.total() } else { 0 });
            self.comm.gather(&own[part_of(0..own.len(), round, rounds.step)], all, &now, root)?;
            append(&mut parts, all, |rank| rounds.of(lengths[rank], round));
        }
        if at_root {
            self.count(0, lengths.iter().sum::<usize>() - own.len());
        } else {
            self.count(own.len(), 0);
        }
        Ok(parts)
    }

    fn scatter(&mut self, parts: &[&[u8]], root: usize) -> Result<Vec<u8>> {
        let (rank, ranks) = (self.comm.rank, self.comm.size);
        let at_root = rank == root;
        let mut lengths = vec![0_i64; ranks];
        if at_root {
            lengths.iter_mut().zip(parts).for_each(|(length, part)| *length = part.len() as i64);
        }
        self.comm.broadcast(&mut lengths, root)?;
        let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
        let rounds = self.rounds(lengths.iter().copied().max().unwrap_or(0));
        let mut own = vec![0; lengths[rank]];
        for round in rounds.each() {
            let now = rounds.parts(&lengths, round)?;
            let all = typed::<u8>(&mut self.scratch, if at_root { now.total() } else { 0 });
            if at_root {
                pack(parts, all, &rounds, round);
            }
            let here = part_of(0..own.len(), round, rounds.step);
            self.comm.scatter(all, &now, &mut own[here], root)?;
        }
        if at_root {
            self.count(lengths.iter().sum::<usize>() - own.len(), 0);
        } else {
            self.count(0, own.len());
        }
        Ok(own)
    }

    fn all_to_all(&mut self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        let (rank, ranks) = (self.comm.rank, self.comm.size);
        let out: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        let (back, longest) = if self.tag.kind == Kind::AllToAll {
            // Every rank has equally many elements, so the parts are known.
            let (len, size) = (self.tag.count as usize, self.tag.dtype.size());
            (vec![chunk(len, ranks, rank).len() * size; ranks], len.div_ceil(ranks) * size)
        } else {
            let own: Vec<i64> = out.iter().map(|length| *length as i64).collect();
            let (mut theirs, mut longest) = (vec![0; ranks], [0]);
            self.comm.all_to_all(&own, &mut theirs)?;
            self.comm.all_reduce(&[own.iter().copied().max().unwrap_or(0)], &mut longest, ReduceOp::Max)?;
            (theirs.into_iter().map(|length| length as usize).collect(), longest[0] as usize)
        };
        let rounds = self.rounds(longest);
        let mut got = room(&back);
        for round in rounds.each() {
            let (of_own, of_theirs) = (rounds.parts(&out, round)?, rounds.parts(&back, round)?);
            let both = typed::<u8>(&mut self.scratch, of_own.total() + of_theirs.total());
            let (own, theirs) = both.split_at_mut(of_own.total());
            pack(parts, own, &rounds, round);
            self.comm.all_to_all_parts((own, &of_own), (theirs, &of_theirs))?;
            append(&mut got, theirs, |rank| rounds.of(back[rank], round));
        }
        let others = |lengths: &[usize]| lengths.iter().sum::<usize>() - lengths[rank];
        self.count(others(&out), others(&back));
        Ok(got)
    }

    fn send_to(&mut self, to: usize, bytes: &[u8]) -> Result<()> {
        self.begin_send(bytes, to)?;
        self.count(bytes.len(), 0);
        Ok(())
    }

    fn receive_from(&mut self, from: usize, into: &mut [u8]) -> Result<()> {
        self.receive_pieces(from, into)?;
        self.count(0, into.len());
        Ok(())
    }

    /// Sends to one rank while it receives from one: a send and a receive, each with its own number.
    fn send_recv(
        &mut self,
        to: usize,
        bytes: &[u8],
        from: usize,
        into: &mut [u8],
        incoming: usize,
    ) -> Result<()> {
        // If one call does not suffice, all sends must be under way before any wait.
        let at_once =
            !self.world.settings.check && self.pieces(bytes.len()) == 1 && self.pieces(into.len()) == 1;
        if !at_once {
            self.begin_send(bytes, to)?;
        }
        self.sequence = self.next(Scope::From(from));
        self.tag = Tag { count: incoming as u64, ..self.tag };
        self.check(Scope::From(from))?;
        if at_once {
            let got = self.comm.exchange(bytes, to, into, from)?;
            self.check_length(from, into.len(), got)?;
        } else {
            self.receive_pieces(from, into)?;
        }
        self.count(bytes.len(), into.len());
        Ok(())
    }
}

/// Packs the bytes of a round of all parts.
fn pack(parts: &[&[u8]], mut all: &mut [u8], rounds: &Rounds, round: usize) {
    for part in parts {
        let piece = &part[part_of(0..part.len(), round, rounds.step)];
        let (here, rest) = all.split_at_mut(piece.len());
        here.copy_from_slice(piece);
        all = rest;
    }
}
