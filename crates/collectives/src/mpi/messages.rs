//! Messages between two ranks, in pieces if an int of MPI cannot count their bytes.

use super::engine::Mpi;
use super::partition::part_of;
use super::raw::{DATA, HEADER, SendRequest};
use crate::algorithms::Messages;
use crate::error::Result;
use crate::operation::{Scope, Tag};

/// Messages to others, and their headers, that may be under way.
const SENDS: usize = 64;

impl Mpi {
    /// Forgets messages that MPI has finished.
    pub(super) fn forget_sent(&mut self) -> Result<()> {
        while let Some(oldest) = self.sends.front_mut() {
            for piece in oldest {
                if !piece.is_done()? {
                    return Ok(());
                }
            }
            self.sends.pop_front();
        }
        Ok(())
    }

    /// Returns the number of pieces of a message; an empty one has one empty piece.
    fn pieces(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.world.settings.piece).max(1)
    }

    /// Starts to send bytes, of which MPI gets a copy: two ranks may send to each other before they receive. So all pieces of a
    /// message start, and a rank that is far ahead waits before the next message.
    fn begin_send(&mut self, bytes: &[u8], to: usize) -> Result<()> {
        self.make_room()?;
        let range = |round| part_of(0..bytes.len(), round, self.world.settings.piece);
        let pieces = (0..self.pieces(bytes.len()))
            .map(|round| self.comm.send(bytes[range(round)].to_vec(), to, DATA))
            .collect::<Result<_>>()?;
        self.sends.push_back(pieces);
        Ok(())
    }

    /// Starts to tell a rank which operation the next message belongs to.
    pub(super) fn begin_header(&mut self, header: &[u8], to: usize) -> Result<()> {
        self.make_room()?;
        self.sends.push_back(vec![self.comm.send(header.to_vec(), to, HEADER)?]);
        Ok(())
    }

    fn make_room(&mut self) -> Result<()> {
        while self.sends.len() >= SENDS
            && let Some(oldest) = self.sends.pop_front()
        {
            oldest.into_iter().try_for_each(SendRequest::wait)?;
        }
        Ok(())
    }

    pub(super) fn send(&mut self, to: usize, bytes: &[u8]) -> Result<()> {
        self.begin_send(bytes, to)?;
        self.count(bytes.len(), 0);
        Ok(())
    }

    pub(super) fn receive(&mut self, from: usize, into: &mut [u8]) -> Result<()> {
        self.receive_pieces(from, into)?;
        self.count(0, into.len());
        Ok(())
    }

    /// Receives the pieces of a message.
    pub(super) fn receive_pieces(&mut self, from: usize, into: &mut [u8]) -> Result<()> {
        let (len, step) = (into.len(), self.world.settings.piece);
        for round in 0..self.pieces(len) {
            let piece = &mut into[part_of(0..len, round, step)];
            let (wanted, got) = (piece.len(), self.comm.receive(piece, from, DATA)?);
            self.check_length(from, wanted, got)?;
        }
        Ok(())
    }

    /// Sends to one rank while it receives from one: a send and a receive, each with its own number.
    pub(super) fn send_and_receive(
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

    fn check_length(&self, from: usize, wanted: usize, got: usize) -> Result<()> {
        if got == wanted {
            return Ok(());
        }
        Err(self.mismatch(from, format!("a piece of {got} bytes in place of one of {wanted}")))
    }
}

impl Messages for Mpi {
    fn send(&mut self, to: usize, bytes: &[u8]) -> Result<()> {
        self.begin_send(bytes, to)
    }

    fn receive(&mut self, from: usize, into: &mut [u8]) -> Result<()> {
        self.receive_pieces(from, into)
    }
}
