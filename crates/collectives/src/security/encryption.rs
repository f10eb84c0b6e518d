//! The choice of connections that are encrypted.

use std::str::FromStr;

use super::hello::Purpose;
use super::secret::Secret;
use crate::error::{CommError, Result};

/// The encrypted connections of a world that has a [`Secret`].
///
/// Every choice refuses ranks that do not know the secret. Without a secret nothing is encrypted. Shared memory never is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Encryption {
    /// None, after the handshake.
    None,
    /// The rendezvous and the control plane, whose messages are few and small.
    #[default]
    Control,
    /// All. This needs a secret.
    All,
}

impl Encryption {
    /// All choices.
    pub const ALL: [Self; 3] = [Self::None, Self::Control, Self::All];

    /// Returns the name in configurations.
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
            let problem = format!("`{text}` is not a choice of encryption; use one of {known}");
            CommError::Argument { operation: "encryption", problem }
        })
    }
}

/// The secret of a world and its encrypted connections; equal on every rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Credentials {
    /// The secret that every connection must prove to know.
    pub secret: Option<Secret>,
    /// The encrypted connections, if there is a secret.
    pub encryption: Encryption,
}

impl Credentials {
    /// True if a connection is encrypted after its handshake.
    pub(super) fn encrypts(&self, purpose: Purpose) -> bool {
        self.secret.is_some()
            && match (self.encryption, purpose) {
                (Encryption::None, _) => false,
                (Encryption::All, _) | (Encryption::Control, Purpose::Rendezvous | Purpose::Succession) => {
                    true
                }
                (Encryption::Control, Purpose::Data | Purpose::Mail) => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_choose_connections() {
        for encryption in Encryption::ALL {
            assert_eq!(encryption.to_string().parse(), Ok(encryption));
        }
        let error = "some".parse::<Encryption>().expect_err("unknown").to_string();
        assert!(error.contains("none, control, all"), "{error}");
        let secret = Some(Secret::new(&[1; 16]).expect("long"));
        let purposes = [Purpose::Rendezvous, Purpose::Data, Purpose::Mail, Purpose::Succession];
        for (encryption, encrypted) in [
            (Encryption::None, [false; 4]),
            (Encryption::Control, [true, false, false, true]),
            (Encryption::All, [true; 4]),
        ] {
            let with = Credentials { secret: secret.clone(), encryption };
            assert_eq!(purposes.map(|purpose| with.encrypts(purpose)), encrypted);
            let without = Credentials { secret: None, encryption };
            assert_eq!(purposes.map(|purpose| without.encrypts(purpose)), [false; 4]);
        }
    }
}
