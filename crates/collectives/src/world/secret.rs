//! A secret that all ranks share, and the challenge by which they prove that they know it.
//!
//! Who calls says hello with a random number, who answers replies with another, and each proves that it knows the secret by
//! a keyed hash (HMAC-SHA-256, RFC 2104) of both numbers, its role, and what the connection is for. The secret is never
//! sent, and what was heard on another connection proves nothing on this one. Without a secret the same messages are
//! exchanged with an empty key, which keeps out strangers by accident and nobody else.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::error::{CommError, Result};

/// Says what protocol this is; changes with the messages below.
const MARK: [u8; 8] = *b"PHALANX2";

/// What the connection is for: a part of what is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Control,
    Data,
    Mail,
}

/// Bytes of the four messages of a handshake.
pub(super) const HELLO: usize = 8 + 8 + NONCE;
pub(super) const CHALLENGE: usize = 1 + NONCE;
pub(super) const PROOF: usize = 32;
pub(super) const VERDICT: usize = 1 + PROOF;
const NONCE: usize = 32;

/// A secret shared by all ranks of a world. It is not shown when printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// A secret of these bytes.
    ///
    /// # Errors
    /// [`CommError::Argument`] if it has fewer than 16 bytes, which could be guessed.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < 16 {
            let problem = format!("a secret of {} bytes can be guessed; it needs at least 16", bytes.len());
            return Err(CommError::Argument { operation: "secret", problem });
        }
        Ok(Self(bytes.into()))
    }

    /// The secret that a file holds; white space around it does not count.
    ///
    /// # Errors
    /// [`CommError::Argument`] if the file cannot be read or the secret is too short.
    pub fn from_file(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).map_err(|error| CommError::Argument {
            operation: "secret",
            problem: format!("cannot read {}: {error}", path.display()),
        })?;
        Self::new(text.trim_ascii())
    }
}

/// Why a connection was not accepted, in words for whom it concerns.
pub(super) type Refusal = String;

fn random() -> std::io::Result<[u8; NONCE]> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(nonce)
}

/// What either side knows of a handshake under way.
struct Transcript<'a> {
    secret: Option<&'a Secret>,
    purpose: Purpose,
    caller: [u8; NONCE],
    answerer: [u8; NONCE],
}

impl Transcript<'_> {
    fn keyed(&self, role: &[u8]) -> Hmac<Sha256> {
        let key = self.secret.map_or(&[][..], |secret| &secret.0);
        // The hash takes keys of any length.
        #[allow(clippy::expect_used, reason = "HMAC takes keys of any length")]
        let mut hash = Hmac::<Sha256>::new_from_slice(key).expect("any length of key");
        for part in [&MARK[..], role, &[self.purpose as u8], &self.caller, &self.answerer] {
            hash.update(part);
        }
        hash
    }

    fn proof(&self, role: &[u8]) -> [u8; PROOF] {
        self.keyed(role).finalize().into_bytes().into()
    }

    /// Compares in a time that does not depend on where the difference is.
    fn holds(&self, role: &[u8], proof: &[u8]) -> bool {
        self.keyed(role).verify_slice(proof).is_ok()
    }
}

/// The side that has opened the connection.
pub(super) struct Caller<'a>(Transcript<'a>);

impl<'a> Caller<'a> {
    pub(super) fn new(secret: Option<&'a Secret>, purpose: Purpose) -> std::io::Result<Self> {
        Ok(Self(Transcript { secret, purpose, caller: random()?, answerer: [0; NONCE] }))
    }

    pub(super) fn hello(&self) -> [u8; HELLO] {
        let mut hello = [0; HELLO];
        hello[..8].copy_from_slice(&MARK);
        (hello[8], hello[9]) = (self.0.purpose as u8, u8::from(self.0.secret.is_some()));
        hello[16..].copy_from_slice(&self.0.caller);
        hello
    }

    /// The proof that a challenge asks for.
    pub(super) fn prove(&mut self, challenge: &[u8; CHALLENGE]) -> Result<[u8; PROOF], Refusal> {
        match challenge[0] {
            0 => {}
            1 => return Err("the world has a secret and this rank has none (PHALANX_SECRET)".into()),
            2 => return Err("this rank has a secret and the world has none (PHALANX_SECRET)".into()),
            _ => return Err("the other side is not of this protocol".into()),
        }
        self.0.answerer.copy_from_slice(&challenge[1..]);
        Ok(self.0.proof(b"caller"))
    }

    /// Checks that the other side knows the secret too.
    pub(super) fn check(&self, verdict: &[u8; VERDICT]) -> Result<(), Refusal> {
        if verdict[0] != 0 {
            return Err("the world's secret is another than this rank's (PHALANX_SECRET)".into());
        }
        let known = self.0.holds(b"answerer", &verdict[1..]);
        if known { Ok(()) } else { Err("the other side does not know the secret".into()) }
    }
}

/// Why a hello is refused, and what to answer if anything.
pub(super) type Turned = (Refusal, Option<[u8; CHALLENGE]>);

/// The side that listens.
pub(super) struct Answerer<'a>(Transcript<'a>);

impl<'a> Answerer<'a> {
    /// What to answer to a hello, and why it is refused if it is.
    pub(super) fn new(
        secret: Option<&'a Secret>,
        purpose: Purpose,
        hello: &[u8; HELLO],
    ) -> Result<(Self, [u8; CHALLENGE]), Turned> {
        if hello[..8] != MARK {
            return Err(("it is not of this protocol".into(), None));
        }
        if hello[8] != purpose as u8 {
            return Err(("it came to the wrong port".into(), None));
        }
        let mut challenge = [0; CHALLENGE];
        if (hello[9] == 1) != secret.is_some() {
            challenge[0] = if secret.is_some() { 1 } else { 2 };
            let why = if secret.is_some() {
                "it has no secret"
            } else {
                "it has a secret, and this world has none"
            };
            return Err((why.into(), Some(challenge)));
        }
        let answerer = random().map_err(|error| (error.to_string(), None))?;
        challenge[1..].copy_from_slice(&answerer);
        let mut caller = [0; NONCE];
        caller.copy_from_slice(&hello[16..]);
        Ok((Self(Transcript { secret, purpose, caller, answerer }), challenge))
    }

    /// The last word to a caller that has given this proof, and whether it is let in.
    pub(super) fn judge(&self, proof: &[u8; PROOF]) -> ([u8; VERDICT], Result<(), Refusal>) {
        let mut verdict = [0; VERDICT];
        if self.0.holds(b"caller", proof) {
            verdict[1..].copy_from_slice(&self.0.proof(b"answerer"));
            return (verdict, Ok(()));
        }
        verdict[0] = 1;
        (verdict, Err("it does not know the secret".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shake(caller: Option<&Secret>, answerer: Option<&Secret>) -> Result<(), Refusal> {
        let mut calling = Caller::new(caller, Purpose::Data).expect("random numbers");
        match Answerer::new(answerer, Purpose::Data, &calling.hello()) {
            Err((_, Some(challenge))) => calling.prove(&challenge).map(|_| ()),
            Err((why, None)) => Err(why),
            Ok((answering, challenge)) => {
                let (verdict, judged) = answering.judge(&calling.prove(&challenge)?);
                assert_eq!(judged.is_ok(), calling.check(&verdict).is_ok());
                calling.check(&verdict)
            }
        }
    }

    #[test]
    fn only_those_who_know_the_secret_are_let_in() {
        let (one, two) = (Secret::new(&[1; 16]).expect("long"), Secret::new(&[2; 16]).expect("long"));
        assert_eq!(shake(Some(&one), Some(&one)), Ok(()));
        assert_eq!(shake(None, None), Ok(()));
        for (caller, answerer) in [(Some(&one), Some(&two)), (None, Some(&one)), (Some(&one), None)] {
            assert!(shake(caller, answerer).is_err());
        }
        assert!(Secret::new(b"short").is_err());
        assert!(!format!("{one:?}").contains('1'));
    }

    #[test]
    fn what_was_heard_before_proves_nothing() {
        let secret = Secret::new(&[7; 32]).expect("long");
        let mut calling = Caller::new(Some(&secret), Purpose::Control).expect("random numbers");
        let hello = calling.hello();
        let answer =
            || Answerer::new(Some(&secret), Purpose::Control, &hello).unwrap_or_else(|_| panic!("known"));
        let (first, challenge) = answer();
        let proof = calling.prove(&challenge).expect("a challenge");
        assert!(first.judge(&proof).1.is_ok());
        // The same hello and the same proof on another connection.
        let (second, _) = answer();
        assert!(second.judge(&proof).1.is_err());
        // A proof for one purpose is none for another.
        assert!(Answerer::new(Some(&secret), Purpose::Data, &hello).is_err());
        // Who only repeats what it hears does not pass for the other side.
        let mut verdict = [0; VERDICT];
        verdict[1..].copy_from_slice(&proof);
        assert!(calling.check(&verdict).is_err());
    }
}
