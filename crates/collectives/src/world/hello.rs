//! What who calls says first: what the connection is for, and between whom.
//!
//! It is sent readable, so that whoever answers knows what to hold it against, and is the prologue of the handshake, so that
//! nothing of it can be altered, and no part of a handshake fits another connection.

/// The protocol and its version; changes with the messages of a handshake.
const MARK: [u8; 8] = *b"PHALANX3";

/// Bytes of a hello.
pub(super) const HELLO: usize = 48;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plane {
    /// Ranks meet rank 0, and stay connected: the control plane.
    Rendezvous,
    /// Operations of two ranks.
    Data,
    /// Messages that belong to no operation.
    Mail,
    /// The caller has lost the hub of the control plane, and asks who takes over.
    Succession,
}

impl Plane {
    const ALL: [Self; 4] = [Self::Rendezvous, Self::Data, Self::Mail, Self::Succession];
}

/// What who calls says of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) plane: Plane,
    /// Whether the caller has a secret, and whether what follows the handshake is encrypted.
    pub(super) has_secret: bool,
    pub(super) sealed: bool,
    /// Which of the connections between the two this is.
    pub(super) lane: u32,
    /// Which world is meant; 0 before ranks have met.
    pub(super) token: u64,
    /// Who calls, and whom.
    pub(super) caller: u64,
    pub(super) callee: u64,
    pub(super) world_size: u64,
}

/// Why bytes are no hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoHello {
    /// They are of something else.
    Stranger,
    /// They are of another version of this protocol.
    OtherVersion,
}

impl Hello {
    pub(super) fn to_bytes(self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..8].copy_from_slice(&MARK);
        bytes[8] = Plane::ALL.iter().position(|plane| *plane == self.plane).unwrap_or(0) as u8;
        (bytes[9], bytes[10]) = (self.has_secret.into(), self.sealed.into());
        bytes[12..16].copy_from_slice(&self.lane.to_le_bytes());
        for (at, word) in [self.token, self.caller, self.callee, self.world_size].into_iter().enumerate() {
            bytes[16 + 8 * at..24 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Every byte counts: what is read and written again is the same.
    pub(super) fn read(bytes: &[u8; HELLO]) -> Result<Self, NoHello> {
        if bytes[..7] != MARK[..7] {
            return Err(NoHello::Stranger);
        }
        if bytes[7] != MARK[7] {
            return Err(NoHello::OtherVersion);
        }
        let plane = *Plane::ALL.get(usize::from(bytes[8])).ok_or(NoHello::Stranger)?;
        let (has_secret, sealed) = match [bytes[9], bytes[10], bytes[11]] {
            [secret @ (0 | 1), sealed @ (0 | 1), 0] => (secret == 1, sealed == 1),
            _ => return Err(NoHello::Stranger),
        };
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[16 + 8 * at + i]));
        let lane = u32::from_le_bytes(std::array::from_fn(|i| bytes[12 + i]));
        let [token, caller, callee, world_size] = std::array::from_fn(word);
        Ok(Self { plane, has_secret, sealed, lane, token, caller, callee, world_size })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_read_is_written_again(mut bytes in prop::array::uniform32(any::<u8>()), tail in prop::array::uniform16(any::<u8>())) {
            bytes[..8].copy_from_slice(&MARK);
            (bytes[8], bytes[9], bytes[10], bytes[11]) = (bytes[8] % 5, bytes[9] % 3, bytes[10] % 2, 0);
            let mut whole = [0; HELLO];
            whole[..32].copy_from_slice(&bytes);
            whole[32..].copy_from_slice(&tail);
            match Hello::read(&whole) {
                Ok(hello) => prop_assert_eq!(hello.to_bytes(), whole),
                Err(why) => prop_assert!(why == NoHello::Stranger && (bytes[8] == 4 || bytes[9] == 2)),
            }
            whole[7] += 1;
            prop_assert_eq!(Hello::read(&whole), Err(NoHello::OtherVersion));
            whole[0] += 1;
            prop_assert_eq!(Hello::read(&whole), Err(NoHello::Stranger));
        }
    }
}
