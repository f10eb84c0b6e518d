//! Messages between two ranks, in pieces if an int of MPI cannot count their bytes.

use super::engine::Mpi;
use super::partition::part_of;
use super::raw::{DATA, HEADER, SendRequest};
use crate::algorithms::Messages;
use crate::error::Result;

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
    pub(super) fn pieces(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.world.settings.piece).max(1)
    }

    /// Starts to send bytes, of which MPI gets a copy: two ranks may send to each other before they receive. So all pieces of a
    /// message start, and a rank that is far ahead waits before the next message.
    pub(super) fn begin_send(&mut self, bytes: &[u8], to: usize) -> Result<()> {
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

    pub(super) fn check_length(&self, from: usize, wanted: usize, got: usize) -> Result<()> {
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
