//! Operations on buffers in the memory of a GPU, as a communicator sees them.
//!
//! They are issued on their caller's thread, in the order of the caller's program, and run when the GPU comes to them. Whether
//! all ranks have issued the same is found out beside, by [`Engine::agree`](super::Engine::agree) on the communication thread.

use std::ops::Range;
use std::sync::Arc;

use super::same_facts;
use crate::buffer::DeviceMut;
use crate::error::Result;
use crate::operation::Tag;

/// Where a rank's part of the whole is.
pub(crate) enum Part<'a> {
    /// In the whole, as this crate cuts it.
    Chunk,
    /// In the whole, which has these parts, one a rank.
    Lengths(&'a [Range<usize>]),
    /// In a buffer of its own.
    Apart(DeviceMut<'a>),
    /// There is a part for each rank at `out`, and what each rank has for this one goes to a part of another buffer.
    Exchange { out: &'a [Range<usize>], to: DeviceMut<'a>, inn: &'a [Range<usize>] },
}

/// What ranks say of an operation beside its tag, to find out whether they mean the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Facts {
    /// All say this.
    Same(String),
    /// How many elements this rank has for each rank, and how many it takes of each.
    Exchange { out: Vec<usize>, inn: Vec<usize> },
}

impl Facts {
    /// What the other ranks are told.
    pub(crate) fn message(&self) -> Vec<u8> {
        match self {
            Self::Same(text) => text.as_bytes().to_vec(),
            Self::Exchange { out, inn } => {
                out.iter().chain(inn).flat_map(|length| (*length as u64).to_le_bytes()).collect()
            }
        }
    }

    /// Whether what all ranks have told goes together with what rank `own` says; otherwise the first rank with which it does not,
    /// and what both say.
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

/// What operations on a GPU are issued to.
pub(crate) trait DeviceQueue: Send + Sync {
    /// Whether the operation can be issued.
    ///
    /// # Errors
    /// [`CommError::Argument`](crate::CommError::Argument) if not; nothing is harmed.
    fn check(&self, tag: Tag, whole: &DeviceMut<'_>, part: &Part<'_>) -> Result<()>;

    /// Issues an operation that [`DeviceQueue::check`] has let pass, after what the computing streams were given. Operations that
    /// were issued before are done before.
    fn issue(
        self: Arc<Self>,
        tag: Tag,
        whole: DeviceMut<'_>,
        part: Part<'_>,
    ) -> Result<Box<dyn DeviceOperation>>;
}

/// An operation that was issued. Its buffers may not be freed before [`DeviceOperation::hand_over`].
pub(crate) trait DeviceOperation: Send + Sync {
    /// Bytes that leave this rank and that come to it.
    fn moved(&self) -> (u64, u64);

    /// Whether the GPU is done with it, well or not.
    fn is_done(&self) -> bool;

    /// Makes the computing streams wait for it. The host does not.
    ///
    /// # Errors
    /// That of the world, as far as it is known now.
    fn hand_over(&self) -> Result<()>;
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
