//! An optional small exchange before each operation, which finds ranks that call different operations.

use super::engine::Mpi;
use super::raw::HEADER;
use crate::error::{CommError, Result};
use crate::operation::{Scope, Tag};

/// The numbers by which a rank describes its operation.
const WORDS: usize = 4;

type OperationWords = [i64; WORDS];

fn told(tag: &Tag, sequence: u64) -> OperationWords {
    let (code, root, count) = tag.packed();
    [code.into(), root.into(), count as i64, sequence as i64]
}

/// Describes the operation of another rank.
fn in_words(told: &[i64]) -> String {
    let unknown = || "an operation that this version does not know".to_owned();
    let [code, root, count, sequence] = *told else { return unknown() };
    let tag = Tag::unpacked((code as u32, root as u32, count as u64));
    tag.map_or_else(unknown, |tag| tag.describe(sequence as u64))
}

impl Mpi {
    /// Compares the operation that begins with those of the other ranks of its scope.
    pub(super) fn check(&mut self, scope: Scope) -> Result<()> {
        if !self.world.settings.check {
            return Ok(());
        }
        let own = told(&self.tag, self.sequence);
        match scope {
            Scope::World => {
                let mut all = vec![0; WORDS * self.comm.size];
                self.comm.all_gather(&own, &mut all)?;
                match all.chunks_exact(WORDS).position(|theirs| theirs != own) {
                    Some(rank) => Err(self.mismatch(rank, in_words(&all[WORDS * rank..][..WORDS]))),
                    None => Ok(()),
                }
            }
            Scope::To(rank) => self.begin_header(bytemuck::cast_slice(&own), rank),
            Scope::From(rank) => {
                let mut theirs: OperationWords = [0; WORDS];
                self.comm.receive(bytemuck::cast_slice_mut(&mut theirs), rank, HEADER)?;
                if theirs == own {
                    return Ok(());
                }
                // The sender's bytes are received all the same, or it would wait for ever.
                let dtype = Tag::unpacked((theirs[0] as u32, 0, 0)).map_or(self.tag.dtype, |tag| tag.dtype);
                self.receive_pieces(rank, &mut vec![0; theirs[2] as usize * dtype.size()])?;
                Err(self.mismatch(rank, in_words(&theirs)))
            }
        }
    }

    pub(super) fn mismatch(&self, rank: usize, theirs: String) -> CommError {
        CommError::Mismatch { rank: self.members[rank], ours: self.tag.describe(self.sequence), theirs }
    }
}
