//! Records of an encrypted connection, with the keys of a Noise handshake.
//!
//! A record is a length of two bytes, big-endian, and a transport message of Noise of that length: at most [`LONGEST`] bytes of the
//! stream, and a tag. Both ends number records, so one that is altered, left out, repeated or moved is not decrypted. After [`REKEY`]
//! records of a direction its key is replaced (Noise, section 11.3), as AES-GCM is proven for a limited number of blocks under a key.

mod stream;

pub(crate) use stream::EncryptedStream;

use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use snow::StatelessTransportState;

/// Bytes of the tag that authenticates a record.
pub(crate) const TAG: usize = 16;

/// Bytes before each record.
const LENGTH: usize = 2;

/// The most bytes of a stream in a record.
const LONGEST: usize = 65_535 - TAG;

/// Records of one direction under one key; 4 GiB if they are the longest.
const REKEY: u64 = 1 << 16;

/// A failed message authentication code: received bytes differ from the sent ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("bytes of an encrypted connection were altered on their way")]
pub(crate) struct MacError;

impl From<MacError> for io::Error {
    fn from(altered: MacError) -> Self {
        Self::new(io::ErrorKind::InvalidData, altered)
    }
}

/// True if a read failed because bytes were altered in transit.
pub(crate) fn is_altered(error: &io::Error) -> bool {
    let Some(inner) = error.get_ref() else { return false };
    inner.is::<MacError>()
}

/// The keys of both directions. Encryptor and decryptor number their records themselves, so neither waits for the other.
type Keys = Arc<RwLock<StatelessTransportState>>;

/// Returns the ciphers of one end of a connection.
pub(crate) fn cipher_pair(state: StatelessTransportState) -> (Encryptor, Decryptor) {
    let keys = Arc::new(RwLock::new(state));
    let decryptor = Decryptor {
        keys: keys.clone(),
        decrypted: 0,
        came: Vec::new(),
        start: 0,
        end: 0,
        plain: Vec::new(),
        filled: 0,
        taken: 0,
    };
    (Encryptor { keys, encrypted: 0 }, decryptor)
}

/// Encrypts records for the other end.
pub(crate) struct Encryptor {
    keys: Keys,
    encrypted: u64,
}

impl std::fmt::Debug for Encryptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encryptor").field("encrypted", &self.encrypted).finish_non_exhaustive()
    }
}

impl Encryptor {
    /// Encrypts at most [`LONGEST`] bytes; the result has as many and a tag.
    fn message(&mut self, bytes: &[u8], into: &mut [u8]) -> io::Result<()> {
        if self.encrypted > 0 && self.encrypted.is_multiple_of(REKEY) {
            self.keys.write().unwrap_or_else(PoisonError::into_inner).rekey_outgoing();
        }
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.write_message(self.encrypted, bytes, into).map_err(io::Error::other)?;
        self.encrypted += 1;
        Ok(())
    }

    /// Returns a message that proves to the other end that this one has the keys.
    pub(crate) fn proof(&mut self) -> io::Result<[u8; TAG]> {
        let mut proof = [0; TAG];
        self.message(&[], &mut proof)?;
        Ok(proof)
    }

    /// Appends at most [`LONGEST`] bytes to `out` as a record; returns their number.
    fn record(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
        let count = bytes.len().min(LONGEST);
        let start = out.len() + LENGTH;
        out.extend_from_slice(&((count + TAG) as u16).to_be_bytes());
        out.resize(start + count + TAG, 0);
        self.message(&bytes[..count], &mut out[start..])?;
        Ok(count)
    }

    /// Appends bytes to `out` as records until `out` has `enough` bytes; returns the number of bytes taken.
    pub(crate) fn records(&mut self, bytes: &[u8], out: &mut Vec<u8>, enough: usize) -> io::Result<usize> {
        let mut encrypted = 0;
        while encrypted < bytes.len() && out.len() < enough {
            encrypted += self.record(&bytes[encrypted..], out)?;
        }
        Ok(encrypted)
    }
}

/// Decrypts records of the other end.
pub(crate) struct Decryptor {
    keys: Keys,
    decrypted: u64,
    /// Received bytes. Those from `start` to `end` are not decrypted yet.
    came: Vec<u8>,
    start: usize,
    end: usize,
    /// A decrypted record. Bytes from `taken` to `filled` are not taken yet.
    plain: Vec<u8>,
    filled: usize,
    taken: usize,
}

impl std::fmt::Debug for Decryptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decryptor").field("decrypted", &self.decrypted).finish_non_exhaustive()
    }
}

/// Decrypts the next message of a direction.
fn decrypt(keys: &Keys, decrypted: &mut u64, message: &[u8], into: &mut [u8]) -> Result<usize, MacError> {
    if *decrypted > 0 && decrypted.is_multiple_of(REKEY) {
        keys.write().unwrap_or_else(PoisonError::into_inner).rekey_incoming();
    }
    let keys = keys.read().unwrap_or_else(PoisonError::into_inner);
    let count = keys.read_message(*decrypted, message, into).map_err(|_| MacError)?;
    *decrypted += 1;
    Ok(count)
}

impl Decryptor {
    /// True if this is the other end's proof.
    pub(crate) fn is_proof(&mut self, proof: &[u8; TAG]) -> bool {
        decrypt(&self.keys, &mut self.decrypted, proof, &mut [0; TAG]) == Ok(0)
    }

    /// Returns room for received bytes: for the rest of the record under way, and at least `least`.
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

    /// Records that `count` bytes were received into the room.
    pub(crate) fn put(&mut self, count: usize) {
        self.end += count;
    }

    /// Returns the length of the record under way; `None` until it was received.
    fn announced(&self) -> Option<usize> {
        match self.came[self.start..self.end] {
            [high, low, ..] => Some(usize::from(u16::from_be_bytes([high, low]))),
            _ => None,
        }
    }

    /// True if the stream may end here, between records.
    pub(crate) fn is_between_records(&self) -> bool {
        self.start == self.end
    }

    /// Takes bytes of the stream; `None` until more were received.
    ///
    /// # Errors
    /// [`MacError`] if a record is not the next one of the other end, and for everything after it.
    pub(crate) fn take(&mut self, into: &mut [u8]) -> Result<Option<usize>, MacError> {
        loop {
            if self.taken < self.filled || into.is_empty() {
                let count = into.len().min(self.filled - self.taken);
                into[..count].copy_from_slice(&self.plain[self.taken..self.taken + count]);
                self.taken += count;
                return Ok(Some(count));
            }
            let Some(length) = self.announced() else { return Ok(None) };
            if length < TAG {
                return Err(MacError);
            }
            let begin = self.start + LENGTH;
            if self.end - begin < length {
                return Ok(None);
            }
            let message = &self.came[begin..begin + length];
            self.start = begin + length;
            // If the whole record fits with its tag, it is decrypted in place, without another copy.
            if into.len() >= length {
                let count = decrypt(&self.keys, &mut self.decrypted, message, into)?;
                if count > 0 {
                    return Ok(Some(count));
                }
            } else {
                self.plain.resize(self.plain.len().max(length), 0);
                (self.filled, self.taken) = (0, 0);
                self.filled = decrypt(&self.keys, &mut self.decrypted, message, &mut self.plain)?;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The ciphers of both ends of a connection.
    pub(crate) fn pair() -> [(Encryptor, Decryptor); 2] {
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
        [caller, answerer].map(|end| cipher_pair(end.into_stateless_transport_mode().expect("done")))
    }

    fn put(decryptor: &mut Decryptor, bytes: &[u8]) {
        for part in bytes.chunks(1000) {
            decryptor.room(0)[..part.len().min(1)].copy_from_slice(&part[..part.len().min(1)]);
            decryptor.put(1);
            for byte in &part[1..] {
                decryptor.room(0)[0] = *byte;
                decryptor.put(1);
            }
        }
    }

    fn encrypted(encryptor: &mut Encryptor, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        assert_eq!(encryptor.records(bytes, &mut out, usize::MAX).expect("encrypted"), bytes.len());
        out
    }

    fn drain(decryptor: &mut Decryptor, by: usize) -> Result<Vec<u8>, MacError> {
        let (mut all, mut some) = (Vec::new(), vec![0; by]);
        while let Some(count) = decryptor.take(&mut some)? {
            all.extend_from_slice(&some[..count]);
        }
        Ok(all)
    }

    #[test]
    fn streams_of_any_length_come_through_in_pieces_of_any_length() {
        let [(mut encryptor, _), (_, mut decryptor)] = pair();
        for len in [1, 15, 16, 17, LONGEST - 1, LONGEST, LONGEST + 1, 200_000] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
            let records = encrypted(&mut encryptor, &bytes);
            assert!(!records.windows(8).any(|part| bytes.windows(8).next() == Some(part)), "readable");
            for part in records.chunks(90_001) {
                decryptor.room(part.len())[..part.len()].copy_from_slice(part);
                decryptor.put(part.len());
            }
            for by in [1_000_000, 70_000, 999] {
                if by == 1_000_000 {
                    assert_eq!(drain(&mut decryptor, by), Ok(bytes.clone()));
                } else {
                    put(&mut decryptor, &encrypted(&mut encryptor, &bytes[..len.min(3000)]));
                    assert_eq!(drain(&mut decryptor, by), Ok(bytes[..len.min(3000)].to_vec()));
                }
            }
            assert!(decryptor.is_between_records());
        }
    }

    #[test]
    fn records_that_are_altered_left_out_repeated_or_moved_are_not_decrypted() {
        let attempt = |change: fn(&mut Vec<Vec<u8>>)| {
            let [(mut encryptor, mut back), (_, mut decryptor)] = pair();
            let mut records: Vec<_> = [b"one".as_slice(), b"two", b"three"]
                .into_iter()
                .map(|text| encrypted(&mut encryptor, text))
                .collect();
            change(&mut records);
            put(&mut decryptor, &records.concat());
            // A record is not valid for the end that encrypted it.
            put(&mut back, &records[0]);
            assert_eq!(drain(&mut back, 10), Err(MacError));
            drain(&mut decryptor, 10)
        };
        assert_eq!(attempt(|_| {}), Ok(b"onetwothree".to_vec()));
        assert_eq!(attempt(|records| records[1][4] ^= 1), Err(MacError));
        assert_eq!(attempt(|records| records[2][20] ^= 128), Err(MacError));
        assert_eq!(attempt(|records| records[1][1] = 3), Err(MacError), "shorter than a tag");
        assert_eq!(attempt(|records| drop(records.remove(1))), Err(MacError));
        assert_eq!(attempt(|records| records.swap(0, 1)), Err(MacError));
        assert_eq!(attempt(|records| records.insert(1, records[0].clone())), Err(MacError));
        // A record that is not complete is not there yet.
        assert_eq!(attempt(|records| records[2].truncate(9)), Ok(b"onetwo".to_vec()));
    }

    #[test]
    fn keys_are_replaced_and_the_stream_goes_on() {
        let [(mut encryptor, _), (_, mut decryptor)] = pair();
        for at in 0..2 * REKEY + 3 {
            put(&mut decryptor, &encrypted(&mut encryptor, &[at as u8]));
            assert_eq!(drain(&mut decryptor, 64), Ok(vec![at as u8]), "record {at}");
        }
    }

    #[test]
    fn a_proof_is_given_once() {
        let [(mut encryptor, mut own), (_, mut decryptor)] = pair();
        let proof = encryptor.proof().expect("encrypted");
        assert!(!own.is_proof(&proof), "it is not valid for the end that made it");
        assert!(decryptor.is_proof(&proof) && !decryptor.is_proof(&proof));
    }
}
