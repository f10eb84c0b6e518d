//! The first bytes of a connection: its purpose and the ranks at its ends.
//!
//! A hello is sent in plain text, so that the other side can check it before the handshake. It is also the prologue of the handshake:
//! it cannot be altered, and no part of a handshake fits another connection.

/// The protocol and its version. It changes with the messages of a handshake.
const MARK: [u8; 8] = *b"PHALANX3";

/// Bytes of a hello.
pub(crate) const HELLO: usize = 48;

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Registration with rank 0. The connection then serves the control plane.
    Rendezvous,
    /// Operations between two ranks.
    Data,
    /// Messages that belong to no operation.
    Mail,
    /// Search for a coordinator by a rank that has lost its own.
    Succession,
}

impl Purpose {
    const ALL: [Self; 4] = [Self::Rendezvous, Self::Data, Self::Mail, Self::Succession];
}

/// The caller's description of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) purpose: Purpose,
    /// True if the caller has a secret.
    pub(crate) has_secret: bool,
    /// True if the connection is encrypted after the handshake.
    pub(crate) encrypted: bool,
    /// The number of this connection among those between the two ranks.
    pub(crate) lane: u32,
    /// The token of the world; 0 at the rendezvous.
    pub(crate) token: u64,
    /// The rank that calls.
    pub(crate) caller: u64,
    /// The rank that is called.
    pub(crate) callee: u64,
    pub(crate) world_size: u64,
}

/// The reason why bytes are not a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HelloError {
    /// They belong to another protocol.
    NotPhalanx,
    /// They belong to another version of this protocol.
    OtherVersion,
}

impl Hello {
    /// A hello from rank `caller` to rank `callee`, at the rendezvous or with a token to be set. The handshake fills in the flags.
    pub(crate) fn between(purpose: Purpose, caller: usize, callee: usize, world_size: usize) -> Self {
        Self {
            purpose,
            has_secret: false,
            encrypted: false,
            lane: 0,
            token: 0,
            caller: caller as u64,
            callee: callee as u64,
            world_size: world_size as u64,
        }
    }

    /// Encodes the hello.
    pub(crate) fn to_bytes(self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..8].copy_from_slice(&MARK);
        bytes[8] = Purpose::ALL.iter().position(|purpose| *purpose == self.purpose).unwrap_or(0) as u8;
        (bytes[9], bytes[10]) = (self.has_secret.into(), self.encrypted.into());
        bytes[12..16].copy_from_slice(&self.lane.to_le_bytes());
        for (at, word) in [self.token, self.caller, self.callee, self.world_size].into_iter().enumerate() {
            bytes[16 + 8 * at..24 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a hello. Every byte counts: encoding the result gives the same bytes.
    pub(crate) fn read(bytes: &[u8; HELLO]) -> Result<Self, HelloError> {
        if bytes[..7] != MARK[..7] {
            return Err(HelloError::NotPhalanx);
        }
        if bytes[7] != MARK[7] {
            return Err(HelloError::OtherVersion);
        }
        let purpose = *Purpose::ALL.get(usize::from(bytes[8])).ok_or(HelloError::NotPhalanx)?;
        let (has_secret, encrypted) = match [bytes[9], bytes[10], bytes[11]] {
            [secret @ (0 | 1), encrypted @ (0 | 1), 0] => (secret == 1, encrypted == 1),
            _ => return Err(HelloError::NotPhalanx),
        };
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[16 + 8 * at + i]));
        let lane = u32::from_le_bytes(std::array::from_fn(|i| bytes[12 + i]));
        let [token, caller, callee, world_size] = std::array::from_fn(word);
        Ok(Self { purpose, has_secret, encrypted, lane, token, caller, callee, world_size })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decoded_bytes_encode_to_themselves(mut bytes in prop::array::uniform32(any::<u8>()), tail in prop::array::uniform16(any::<u8>())) {
            bytes[..8].copy_from_slice(&MARK);
            (bytes[8], bytes[9], bytes[10], bytes[11]) = (bytes[8] % 5, bytes[9] % 3, bytes[10] % 2, 0);
            let mut whole = [0; HELLO];
            whole[..32].copy_from_slice(&bytes);
            whole[32..].copy_from_slice(&tail);
            match Hello::read(&whole) {
                Ok(hello) => prop_assert_eq!(hello.to_bytes(), whole),
                Err(why) => prop_assert!(why == HelloError::NotPhalanx && (bytes[8] == 4 || bytes[9] == 2)),
            }
            whole[7] += 1;
            prop_assert_eq!(Hello::read(&whole), Err(HelloError::OtherVersion));
            whole[0] += 1;
            prop_assert_eq!(Hello::read(&whole), Err(HelloError::NotPhalanx));
        }
    }
}
