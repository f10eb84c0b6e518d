//! The secret that all ranks share.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::error::{CommError, Result};

/// The fewest bytes of a secret. Shorter ones can be guessed.
const SHORTEST: usize = 16;

/// The most bytes of a file with a secret.
const LONGEST: u64 = 4096;

/// The salt of the key derivation.
const SALT: &[u8] = b"Phalanx pre-shared key 1";

/// A secret shared by all ranks of a world. Printing does not show it.
///
/// It should be random, as from `openssl rand -hex 32`: an attacker who has recorded a handshake can try guesses.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

fn wrong(problem: String) -> CommError {
    CommError::Argument { operation: "secret", problem }
}

impl Secret {
    /// The secret with these bytes.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there are fewer than 16, which could be guessed.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < SHORTEST {
            let length = bytes.len();
            return Err(wrong(format!(
                "a secret of {length} bytes can be guessed; it needs at least {SHORTEST}"
            )));
        }
        Ok(Self(bytes.into()))
    }

    /// Reads a secret from a file, without surrounding white space.
    ///
    /// # Errors
    /// [`CommError::Argument`] if the file cannot be read, is readable by other users (Unix), has more than 4096 bytes, or
    /// holds a secret that is too short.
    pub fn from_file(path: &Path) -> Result<Self> {
        let unreadable = |error: std::io::Error| wrong(format!("cannot read {}: {error}", path.display()));
        let file = std::fs::File::open(path).map_err(unreadable)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let metadata = file.metadata().map_err(unreadable)?;
            let mode = metadata.permissions().mode() & 0o777;
            if metadata.is_file() && mode & 0o077 != 0 {
                let path = path.display();
                return Err(wrong(format!(
                    "{path} is open to other users (mode {mode:03o}); run `chmod 600 {path}`"
                )));
            }
        }
        let mut text = Vec::new();
        file.take(LONGEST + 1).read_to_end(&mut text).map_err(unreadable)?;
        if text.len() as u64 > LONGEST {
            return Err(wrong(format!("{} has more than {LONGEST} bytes", path.display())));
        }
        Self::new(text.trim_ascii())
    }

    /// Returns the key of handshakes: HKDF-Extract (RFC 5869) of the secret.
    pub(super) fn key(&self) -> [u8; 32] {
        #[allow(clippy::expect_used, reason = "HMAC takes keys of any length")]
        let mut hash = Hmac::<Sha256>::new_from_slice(SALT).expect("any length of key");
        hash.update(&self.0);
        hash.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_long_and_never_printed() {
        let secret = Secret::new(b"sixteen letters!").expect("long");
        assert!(Secret::new(b"fifteen letters").is_err());
        assert!(!format!("{secret:?}").contains("letters"));
        assert_ne!(secret.key(), Secret::new(b"sixteen letters.").expect("long").key());
        assert_eq!(secret.key(), secret.clone().key());
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("phalanx-secret-{}", std::process::id()));
        let with = |mode, text: &[u8]| {
            std::fs::write(&path, text).expect("a temporary file");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("ours");
            let read = Secret::from_file(&path);
            std::fs::remove_file(&path).expect("it is there");
            read
        };
        let ours = Secret::new(b"of this one world");
        assert_eq!(with(0o600, b" of this one world\n"), ours);
        assert_eq!(with(0o400, b"of this one world"), ours);
        for mode in [0o644, 0o640, 0o602] {
            let text = with(mode, b"of this one world").expect_err("open to others").to_string();
            assert!(text.contains(&format!("{mode:03o}")) && text.contains("chmod 600"), "{text}");
        }
        assert!(with(0o600, b"short").is_err());
        let text = with(0o600, &[b'x'; 5000]).expect_err("long").to_string();
        assert!(text.contains("4096"), "{text}");
        assert!(Secret::from_file(&path).expect_err("gone").to_string().contains("cannot read"));
    }
}
