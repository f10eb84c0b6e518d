//! Operations on buffers in GPU memory.
//!
//! They are issued on the caller's thread in program order, and run when the GPU reaches them. The communication thread checks in
//! the background that all ranks have issued the same operation ([`Lifetime::agree`](super::Lifetime::agree)).

use std::ops::Range;
use std::sync::Arc;

use crate::buffer::DeviceMut;
use crate::error::Result;
use crate::operation::Tag;

/// The place of a rank's part of the whole.
pub(crate) enum Part<'a> {
    /// In the whole, in this crate's partition.
    Chunk,
    /// In the whole, which consists of these parts, one for each rank.
    Lengths(&'a [Range<usize>]),
    /// In a separate buffer.
    Apart(DeviceMut<'a>),
    /// A part for each rank at `out`, and the part from each rank for this one at a part of another buffer.
    Exchange {
        out: &'a [Range<usize>],
        #[cfg_attr(not(feature = "nccl"), expect(dead_code, reason = "only NCCL moves bytes between GPUs"))]
        to: DeviceMut<'a>,
        inn: &'a [Range<usize>],
    },
}

/// Facts of an operation in addition to its tag, which ranks compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Facts {
    /// A text that must be equal on all ranks.
    Same(String),
    /// The numbers of elements for each rank and from each rank.
    Exchange { out: Vec<usize>, inn: Vec<usize> },
}

impl Facts {
    /// Returns the message to the other ranks.
    pub(crate) fn message(&self) -> Vec<u8> {
        match self {
            Self::Same(text) => text.as_bytes().to_vec(),
            Self::Exchange { out, inn } => {
                out.iter().chain(inn).flat_map(|length| (*length as u64).to_le_bytes()).collect()
            }
        }
    }

    /// Checks that the messages of all ranks are consistent with the facts of rank `own`. Otherwise returns the first rank that
    /// differs, and both facts.
    pub(crate) fn check(
        &self,
        all: &[Vec<u8>],
        own: usize,
    ) -> std::result::Result<(), (usize, String, String)> {
        match self {
            Self::Same(text) => same_facts(all, text).map_err(|(rank, theirs)| (rank, text.clone(), theirs)),
            Self::Exchange { out, inn } => {
                for (rank, message) in all.iter().enumerate() {
                    let (words, _) = message.as_chunks::<8>();
                    let told = |at: usize| words.get(at).map(|word| u64::from_le_bytes(*word) as usize);
                    let theirs = (told(own), told(all.len() + own));
                    if theirs != (Some(inn[rank]), Some(out[rank])) {
                        let ours = format!("{} elements for rank {rank} and {} of it", out[rank], inn[rank]);
                        let said = |told: Option<usize>| told.map_or("nothing".to_owned(), |n| n.to_string());
                        let theirs = format!(
                            "{} elements for rank {own} and {} of it",
                            said(theirs.0),
                            said(theirs.1)
                        );
                        return Err((rank, ours, theirs));
                    }
                }
                Ok(())
            }
        }
    }
}

/// The queue of operations on a GPU.
pub(crate) trait DeviceQueue: Send + Sync {
    /// Checks that the operation can be issued.
    ///
    /// # Errors
    /// [`CommError::Argument`](crate::CommError::Argument) if not; the world stays intact.
    fn check(&self, tag: Tag, whole: &DeviceMut<'_>, part: &Part<'_>) -> Result<()>;

    /// Issues an operation that [`DeviceQueue::check`] has accepted, after the work of the computing streams and the operations
    /// issued before.
    fn issue(
        self: Arc<Self>,
        tag: Tag,
        whole: DeviceMut<'_>,
        part: Part<'_>,
    ) -> Result<Box<dyn DeviceOperation>>;
}

/// An operation that was issued. Its buffers must not be freed before [`DeviceOperation::hand_over`].
pub(crate) trait DeviceOperation: Send + Sync {
    /// Returns the bytes sent and received by this rank.
    fn moved(&self) -> (u64, u64);

    /// True if the GPU has finished or failed.
    fn is_done(&self) -> bool;

    /// Makes the computing streams wait for it. The host does not wait.
    ///
    /// # Errors
    /// The error of the world, if one is known.
    fn hand_over(&self) -> Result<()>;
}

/// Returns the first rank whose text differs from `own`, with its text.
pub(crate) fn same_facts(all: &[Vec<u8>], own: &str) -> Result<(), (usize, String)> {
    match all.iter().position(|other| other != own.as_bytes()) {
        None => Ok(()),
        Some(rank) => Err((rank, String::from_utf8_lossy(&all[rank]).into_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_an_exchange_must_fit() {
        let facts =
            |out: [usize; 2], inn: [usize; 2]| Facts::Exchange { out: out.to_vec(), inn: inn.to_vec() };
        let (first, second) = (facts([1, 5], [1, 3]), facts([3, 0], [5, 0]));
        let all = [first.message(), second.message()];
        assert_eq!((first.check(&all, 0), second.check(&all, 1)), (Ok(()), Ok(())));
        let wrong = facts([3, 0], [4, 0]);
        let (rank, ours, theirs) = wrong.check(&[first.message(), wrong.message()], 1).expect_err("5 come");
        assert_eq!((rank, ours.as_str()), (0, "3 elements for rank 0 and 4 of it"));
        assert_eq!(theirs, "5 elements for rank 1 and 3 of it");
        assert!(first.check(&[first.message(), Vec::new()], 0).is_err(), "a rank that says nothing");
        assert!(Facts::Same("a".to_owned()).check(&[b"a".to_vec(), b"b".to_vec()], 0).is_err());
    }
}
