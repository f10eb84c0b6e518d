//! Bytes of a connection as records, encrypted and authenticated with the keys that a Noise handshake leaves both ends with.
//!
//! A record is a length of two bytes, big-endian, and as many bytes of a transport message of Noise: at most [`LONGEST`] bytes
//! of the stream, and a tag. Records are numbered by both ends, so that one which is altered, left out, repeated or moved is not
//! opened. After [`REKEY`] records of a direction its key is replaced as Noise says (section 11.3): AES-GCM is proven for only so
//! many blocks under a key.

mod stream;

pub(crate) use stream::SealedStream;

use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use snow::StatelessTransportState;

/// Bytes of the tag that authenticates a record.
pub(crate) const TAG: usize = 16;

/// Bytes before each record.
const LENGTH: usize = 2;

/// The most bytes of a stream in a record.
const LONGEST: usize = 65_535 - TAG;

/// Records of one direction under one key: with the longest of them 4 GiB.
const REKEY: u64 = 1 << 16;

/// What came over an encrypted connection is not what the other end has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what came over an encrypted connection was altered on its way")]
pub(crate) struct Altered;

impl From<Altered> for io::Error {
    fn from(altered: Altered) -> Self {
        Self::new(io::ErrorKind::InvalidData, altered)
    }
}

/// Whether reading failed because something was altered on its way.
pub(crate) fn is_altered(error: &io::Error) -> bool {
    let Some(inner) = error.get_ref() else { return false };
    inner.is::<Altered>()
}

/// The keys of both directions. Records are numbered by who seals and who opens them, so that the two need not wait for each other.
type Keys = Arc<RwLock<StatelessTransportState>>;

/// The two ends of a connection at one rank: what seals for the other, and what opens what the other has sealed.
pub(crate) fn ends(state: StatelessTransportState) -> (Sealer, Opener) {
    let keys = Arc::new(RwLock::new(state));
    let opener = Opener {
        keys: keys.clone(),
        opened: 0,
        came: Vec::new(),
        start: 0,
        end: 0,
        plain: Vec::new(),
        filled: 0,
        taken: 0,
    };
    (Sealer { keys, sealed: 0 }, opener)
}

/// What encrypts for the other end.
pub(crate) struct Sealer {
    keys: Keys,
    sealed: u64,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("sealed", &self.sealed).finish_non_exhaustive()
    }
}

impl Sealer {
    /// Seals at most [`LONGEST`] bytes into as many and a tag.
    fn message(&mut self, bytes: &[u8], into: &mut [u8]) -> io::Result<()> {
        if self.sealed > 0 && self.sealed.is_multiple_of(REKEY) {
            self.keys.write().unwrap_or_else(PoisonError::into_inner).rekey_outgoing();
        }
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.write_message(self.sealed, bytes, into).map_err(io::Error::other)?;
        self.sealed += 1;
        Ok(())
    }

    /// What proves to the other end that this one has the keys.
    pub(crate) fn proof(&mut self) -> io::Result<[u8; TAG]> {
        let mut proof = [0; TAG];
        self.message(&[], &mut proof)?;
        Ok(proof)
    }

    /// Appends bytes to `out` as a record; at most [`LONGEST`] of them, and says how many.
    fn record(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
        let count = bytes.len().min(LONGEST);
        let start = out.len() + LENGTH;
        out.extend_from_slice(&((count + TAG) as u16).to_be_bytes());
        out.resize(start + count + TAG, 0);
        self.message(&bytes[..count], &mut out[start..])?;
        Ok(count)
    }

    /// Appends the records of bytes to `out` until that has `enough` of them or there are no more; how many bytes are in them.
    pub(crate) fn records(&mut self, bytes: &[u8], out: &mut Vec<u8>, enough: usize) -> io::Result<usize> {
        let mut sealed = 0;
        while sealed < bytes.len() && out.len() < enough {
            sealed += self.record(&bytes[sealed..], out)?;
        }
        Ok(sealed)
    }
}

/// What decrypts what the other end has sealed.
pub(crate) struct Opener {
    keys: Keys,
    opened: u64,
    /// Bytes as they came: those from `start` to `end` are not opened.
    came: Vec<u8>,
    start: usize,
    end: usize,
    /// A record that was opened and not taken as a whole: bytes from `taken` to `filled` are left of it.
    plain: Vec<u8>,
    filled: usize,
    taken: usize,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener").field("opened", &self.opened).finish_non_exhaustive()
    }
}

/// Opens a message that is the so-many-th of its direction.
fn open(keys: &Keys, opened: &mut u64, message: &[u8], into: &mut [u8]) -> Result<usize, Altered> {
    if *opened > 0 && opened.is_multiple_of(REKEY) {
        keys.write().unwrap_or_else(PoisonError::into_inner).rekey_incoming();
    }
    let keys = keys.read().unwrap_or_else(PoisonError::into_inner);
    let count = keys.read_message(*opened, message, into).map_err(|_| Altered)?;
    *opened += 1;
    Ok(count)
}

impl Opener {
    /// Whether this is what the other end has given as its proof.
    pub(crate) fn is_proof(&mut self, proof: &[u8; TAG]) -> bool {
        open(&self.keys, &mut self.opened, proof, &mut [0; TAG]) == Ok(0)
    }

    /// Where bytes that come are put: room for what the record under way lacks, and for `least`.
    pub(crate) fn room(&mut self, least: usize) -> &mut [u8] {
        if self.start > 0 {
            self.came.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let record = LENGTH + self.announced().unwrap_or(0);
        let wanted = record.max(self.end + least.max(1));
        if self.came.len() < wanted {
            self.came.resize(wanted, 0);
        }
        &mut self.came[self.end..]
    }

    /// So many bytes were put there.
    pub(crate) fn put(&mut self, count: usize) {
        self.end += count;
    }

    /// The length of the record under way, as far as it has come.
    fn announced(&self) -> Option<usize> {
        match self.came[self.start..self.end] {
            [high, low, ..] => Some(usize::from(u16::from_be_bytes([high, low]))),
            _ => None,
        }
    }

    /// Whether the stream may end here: not in the middle of a record.
    pub(crate) fn is_between_records(&self) -> bool {
        self.start == self.end
    }

    /// Bytes of the stream; nothing if none are there until more have come.
    ///
    /// # Errors
    /// [`Altered`] if a record is not the next one of the other end; so is everything after it.
    pub(crate) fn take(&mut self, into: &mut [u8]) -> Result<Option<usize>, Altered> {
        loop {
            if self.taken < self.filled || into.is_empty() {
                let count = into.len().min(self.filled - self.taken);
                into[..count].copy_from_slice(&self.plain[self.taken..self.taken + count]);
                self.taken += count;
                return Ok(Some(count));
            }
            let Some(length) = self.announced() else { return Ok(None) };
            if length < TAG {
                return Err(Altered);
            }
            let begin = self.start + LENGTH;
            if self.end - begin < length {
                return Ok(None);
            }
            let message = &self.came[begin..begin + length];
            self.start = begin + length;
            // Where the whole record has room with its tag it is opened there, without another copy.
            if into.len() >= length {
                let count = open(&self.keys, &mut self.opened, message, into)?;
                if count > 0 {
                    return Ok(Some(count));
                }
            } else {
                self.plain.resize(self.plain.len().max(length), 0);
                (self.filled, self.taken) = (0, 0);
                self.filled = open(&self.keys, &mut self.opened, message, &mut self.plain)?;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Both ends of a connection whose ranks have met.
    pub(crate) fn pair() -> [(Sealer, Opener); 2] {
        let build = |caller: bool| {
            let params = "Noise_NNpsk0_25519_AESGCM_SHA256".parse().expect("known");
            let builder = snow::Builder::new(params).psk(0, &[7; 32]).expect("one secret");
            if caller { builder.build_initiator() } else { builder.build_responder() }.expect("complete")
        };
        let (mut caller, mut answerer) = (build(true), build(false));
        let (mut message, mut nothing) = ([0; 64], [0; 64]);
        let length = caller.write_message(&[], &mut message).expect("room");
        answerer.read_message(&message[..length], &mut nothing).expect("the same secret");
        let length = answerer.write_message(&[], &mut message).expect("room");
        caller.read_message(&message[..length], &mut nothing).expect("the same secret");
        [caller, answerer].map(|end| ends(end.into_stateless_transport_mode().expect("done")))
    }

    fn put(opener: &mut Opener, bytes: &[u8]) {
        for part in bytes.chunks(1000) {
            opener.room(0)[..part.len().min(1)].copy_from_slice(&part[..part.len().min(1)]);
            opener.put(1);
            for byte in &part[1..] {
                opener.room(0)[0] = *byte;
                opener.put(1);
            }
        }
    }

    fn sealed(sealer: &mut Sealer, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        assert_eq!(sealer.records(bytes, &mut out, usize::MAX).expect("sealed"), bytes.len());
        out
    }

    fn drain(opener: &mut Opener, by: usize) -> Result<Vec<u8>, Altered> {
        let (mut all, mut some) = (Vec::new(), vec![0; by]);
        while let Some(count) = opener.take(&mut some)? {
            all.extend_from_slice(&some[..count]);
        }
        Ok(all)
    }

    #[test]
    fn streams_of_any_length_come_through_in_pieces_of_any_length() {
        let [(mut sealer, _), (_, mut opener)] = pair();
        for len in [1, 15, 16, 17, LONGEST - 1, LONGEST, LONGEST + 1, 200_000] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
            let records = sealed(&mut sealer, &bytes);
            assert!(!records.windows(8).any(|part| bytes.windows(8).next() == Some(part)), "readable");
            for part in records.chunks(90_001) {
                opener.room(part.len())[..part.len()].copy_from_slice(part);
                opener.put(part.len());
            }
            for by in [1_000_000, 70_000, 999] {
                if by == 1_000_000 {
                    assert_eq!(drain(&mut opener, by), Ok(bytes.clone()));
                } else {
                    put(&mut opener, &sealed(&mut sealer, &bytes[..len.min(3000)]));
                    assert_eq!(drain(&mut opener, by), Ok(bytes[..len.min(3000)].to_vec()));
                }
            }
            assert!(opener.is_between_records());
        }
    }

    #[test]
    fn whatever_is_altered_left_out_repeated_or_moved_is_not_opened() {
        let attempt = |change: fn(&mut Vec<Vec<u8>>)| {
            let [(mut sealer, mut back), (_, mut opener)] = pair();
            let mut records: Vec<_> = [b"one".as_slice(), b"two", b"three"]
                .into_iter()
                .map(|text| sealed(&mut sealer, text))
                .collect();
            change(&mut records);
            put(&mut opener, &records.concat());
            // What goes back to who has sealed it is not for it either.
            put(&mut back, &records[0]);
            assert_eq!(drain(&mut back, 10), Err(Altered));
            drain(&mut opener, 10)
        };
        assert_eq!(attempt(|_| {}), Ok(b"onetwothree".to_vec()));
        assert_eq!(attempt(|records| records[1][4] ^= 1), Err(Altered));
        assert_eq!(attempt(|records| records[2][20] ^= 128), Err(Altered));
        assert_eq!(attempt(|records| records[1][1] = 3), Err(Altered), "shorter than a tag");
        assert_eq!(attempt(|records| drop(records.remove(1))), Err(Altered));
        assert_eq!(attempt(|records| records.swap(0, 1)), Err(Altered));
        assert_eq!(attempt(|records| records.insert(1, records[0].clone())), Err(Altered));
        // One that has not come as a whole is not there yet.
        assert_eq!(attempt(|records| records[2].truncate(9)), Ok(b"onetwo".to_vec()));
    }

    #[test]
    fn keys_are_replaced_and_the_stream_goes_on() {
        let [(mut sealer, _), (_, mut opener)] = pair();
        for at in 0..2 * REKEY + 3 {
            put(&mut opener, &sealed(&mut sealer, &[at as u8]));
            assert_eq!(drain(&mut opener, 64), Ok(vec![at as u8]), "record {at}");
        }
    }

    #[test]
    fn a_proof_is_given_once() {
        let [(mut sealer, mut own), (_, mut opener)] = pair();
        let proof = sealer.proof().expect("sealed");
        assert!(!own.is_proof(&proof), "it is not for who has given it");
        assert!(opener.is_proof(&proof) && !opener.is_proof(&proof));
    }
}
