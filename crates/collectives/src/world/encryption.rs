//! What ranks show each other, and what of their connections is encrypted.

use std::str::FromStr;

use super::hello::Plane;
use super::secret::Secret;
use crate::error::{CommError, Result};

/// What is encrypted of the connections between the ranks of a world that has a [`Secret`]; who has none of it is refused
/// whatever this says. Without a secret nothing is encrypted. What ranks of a host have in shared memory never is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Encryption {
    /// Nothing, after the handshake.
    None,
    /// The rendezvous and the control plane, whose messages are few and small: nobody on the way can forge them.
    #[default]
    Control,
    /// Every connection. It needs a secret.
    All,
}

impl Encryption {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Control, Self::All];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Control => "control",
            Self::All => "all",
        }
    }
}

impl std::fmt::Display for Encryption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Encryption {
    type Err = CommError;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|encryption| encryption.name() == text).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            let problem = format!("`{text}` says nothing of what is encrypted; there are {known}");
            CommError::Argument { operation: "encryption", problem }
        })
    }
}

/// What connections of a world have to show, and what becomes of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Credentials {
    pub(super) secret: Option<Secret>,
    pub(super) encryption: Encryption,
}

impl Credentials {
    /// Whether a connection is encrypted after its handshake.
    pub(super) fn seals(&self, plane: Plane) -> bool {
        self.secret.is_some()
            && match (self.encryption, plane) {
                (Encryption::None, _) => false,
                (Encryption::All, _) | (Encryption::Control, Plane::Rendezvous | Plane::Succession) => true,
                (Encryption::Control, Plane::Data | Plane::Mail) => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_say_what_is_sealed() {
        for encryption in Encryption::ALL {
            assert_eq!(encryption.to_string().parse(), Ok(encryption));
        }
        let error = "some".parse::<Encryption>().expect_err("unknown").to_string();
        assert!(error.contains("none, control, all"), "{error}");
        let secret = Some(Secret::new(&[1; 16]).expect("long"));
        let planes = [Plane::Rendezvous, Plane::Data, Plane::Mail, Plane::Succession];
        for (encryption, sealed) in [
            (Encryption::None, [false; 4]),
            (Encryption::Control, [true, false, false, true]),
            (Encryption::All, [true; 4]),
        ] {
            let with = Credentials { secret: secret.clone(), encryption };
            assert_eq!(planes.map(|plane| with.seals(plane)), sealed);
            let without = Credentials { secret: None, encryption };
            assert_eq!(planes.map(|plane| without.seals(plane)), [false; 4]);
        }
    }
}
