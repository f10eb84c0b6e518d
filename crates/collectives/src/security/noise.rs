//! The handshake of every connection by the Noise framework: both ends prove that they know the world's secret.
//!
//! The pattern is `NNpsk0`: fresh X25519 keys at both ends, and the secret mixed in from the first message on. The prologue is the
//! initiator's [`Hello`]. The secret is never sent. A recording stays unreadable even if the secret leaks later. Messages of another
//! handshake, of the other direction, or for other ranks are not accepted.
//!
//! ```text
//! initiator                                 responder
//!   hello, psk e                 ─────►      knows that the initiator had the secret, now or earlier
//!          ◄─────  verdict, e ee             the initiator knows that the responder has it now
//!   proof                        ─────►      knows that the initiator has it now
//! ```
//!
//! Without a secret only the hello and the verdict are sent. This keeps out strangers by accident, not attackers. This module does no
//! I/O; [`super::handshake`] does.

use snow::{Builder, HandshakeState};

use super::encryption::Credentials;
use super::hello::{HELLO, Hello, HelloError};
use crate::encrypted::{self, Decryptor, Encryptor, TAG};

/// AES-GCM, which CPUs have instructions for.
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

/// Bytes of each of Noise's two messages: a key and a tag.
const MESSAGE: usize = 32 + TAG;

/// The reason why a connection was not accepted.
pub(crate) type Refusal = String;

/// The ciphers of both directions, from the keys that the ends have agreed on.
pub(crate) type CipherPair = (Encryptor, Decryptor);

/// The responder's answer to a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Accepted,
    CallerLacksSecret,
    CallerHasSecret,
    OtherSecret,
    OtherEncryption,
    WrongPeer,
    OtherVersion,
}

impl Verdict {
    const ALL: [Self; 7] = [
        Self::Accepted,
        Self::CallerLacksSecret,
        Self::CallerHasSecret,
        Self::OtherSecret,
        Self::OtherEncryption,
        Self::WrongPeer,
        Self::OtherVersion,
    ];

    fn read(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// Returns the refusal that this verdict means to the initiator.
    fn check(self) -> Result<(), Refusal> {
        let text = match self {
            Self::Accepted => return Ok(()),
            Self::CallerLacksSecret => "the world has a secret and this rank has none (PHALANX_SECRET_FILE)",
            Self::CallerHasSecret => "this rank has a secret and the world has none (PHALANX_SECRET_FILE)",
            Self::OtherSecret => "the world's secret is another than this rank's (PHALANX_SECRET_FILE)",
            Self::OtherEncryption => "the world encrypts other connections than this rank (comm.encryption)",
            Self::WrongPeer => "another rank or another world listens there",
            Self::OtherVersion => "the world speaks another version of this protocol",
        };
        Err(text.to_owned())
    }
}

fn begin(
    credentials: &Credentials,
    hello: &[u8; HELLO],
    calls: bool,
) -> Result<Option<HandshakeState>, Refusal> {
    let Some(secret) = &credentials.secret else { return Ok(None) };
    let key = secret.key();
    let build = || {
        let builder = Builder::new(PATTERN.parse()?).psk(0, &key)?.prologue(hello)?;
        if calls { builder.build_initiator() } else { builder.build_responder() }
    };
    build().map(Some).map_err(|error: snow::Error| format!("cannot begin a handshake: {error}"))
}

fn write(noise: &mut HandshakeState, to: &mut Vec<u8>) -> Result<(), Refusal> {
    let mut message = [0; MESSAGE];
    match noise.write_message(&[], &mut message) {
        Ok(MESSAGE) => to.extend_from_slice(&message),
        Ok(length) => return Err(format!("a message of {length} bytes in a handshake")),
        Err(error) => return Err(format!("cannot go on with a handshake: {error}")),
    }
    Ok(())
}

fn ciphers_of(noise: HandshakeState) -> Result<CipherPair, Refusal> {
    let state = noise.into_stateless_transport_mode();
    state.map(encrypted::cipher_pair).map_err(|error| format!("cannot end a handshake: {error}"))
}

/// The side that opened the connection.
pub(crate) struct Initiator(Option<HandshakeState>);

impl Initiator {
    /// Begins a handshake; returns the first message. Fills in the flags of `hello`.
    pub(crate) fn new(credentials: &Credentials, hello: Hello) -> Result<(Self, Vec<u8>), Refusal> {
        let (has_secret, encrypted) = (credentials.secret.is_some(), credentials.encrypts(hello.purpose));
        let hello = Hello { has_secret, encrypted, ..hello }.to_bytes();
        let mut noise = begin(credentials, &hello, true)?;
        let mut first = hello.to_vec();
        if let Some(noise) = &mut noise {
            write(noise, &mut first)?;
        }
        Ok((Self(noise), first))
    }

    /// Checks the verdict; returns the number of bytes that follow it.
    pub(crate) fn read_verdict(&self, verdict: u8) -> Result<usize, Refusal> {
        let verdict = Verdict::read(verdict).ok_or("the other side is not of this protocol")?;
        verdict.check()?;
        Ok(if self.0.is_some() { MESSAGE } else { 0 })
    }

    /// Ends the handshake with the message after the verdict; returns the proof for the responder, and the ciphers.
    pub(crate) fn finish(self, message: &[u8]) -> Result<(Vec<u8>, Option<CipherPair>), Refusal> {
        let Some(mut noise) = self.0 else { return Ok((Vec::new(), None)) };
        let read = noise.read_message(message, &mut [0; MESSAGE]);
        read.map_err(|_| "the other side does not know the secret")?;
        let (mut encryptor, decryptor) = ciphers_of(noise)?;
        let proof = encryptor.proof().map_err(|error| error.to_string())?;
        Ok((proof.to_vec(), Some((encryptor, decryptor))))
    }
}

/// The rejection of an initiator, with the answer that is sent to it, if any.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(super) why: Refusal,
    pub(super) answer: Option<u8>,
}

impl Rejection {
    fn with(verdict: Verdict, why: impl Into<Refusal>) -> Self {
        Self { why: why.into(), answer: Some(verdict as u8) }
    }
}

impl From<Refusal> for Rejection {
    fn from(why: Refusal) -> Self {
        Self { why, answer: None }
    }
}

/// The side that accepted the connection.
pub(crate) struct Responder {
    hello: Hello,
    noise: Option<HandshakeState>,
    /// The ciphers, once the keys are agreed on and the initiator's proof is awaited.
    ciphers: Option<CipherPair>,
}

impl Responder {
    /// Begins a handshake with an initiator's hello, unless `check` refuses it; returns the number of bytes that follow.
    pub(crate) fn new(
        credentials: &Credentials,
        hello: &[u8; HELLO],
        check: impl FnOnce(&Hello) -> Result<(), Refusal>,
    ) -> Result<(Self, usize), Rejection> {
        let hello_read = Hello::read(hello).map_err(|error| match error {
            HelloError::NotPhalanx => Rejection::from("it is not of this protocol".to_owned()),
            HelloError::OtherVersion => {
                Rejection::with(Verdict::OtherVersion, "it speaks another version of this protocol")
            }
        })?;
        match (hello_read.has_secret, credentials.secret.is_some()) {
            (false, true) => return Err(Rejection::with(Verdict::CallerLacksSecret, "it has no secret")),
            (true, false) => {
                let why = "it has a secret, and this world has none";
                return Err(Rejection::with(Verdict::CallerHasSecret, why));
            }
            _ => {}
        }
        check(&hello_read).map_err(|why| Rejection::with(Verdict::WrongPeer, why))?;
        if hello_read.encrypted != credentials.encrypts(hello_read.purpose) {
            let why = "it encrypts other connections than this world (comm.encryption)";
            return Err(Rejection::with(Verdict::OtherEncryption, why));
        }
        let noise = begin(credentials, hello, false)?;
        let follows = if noise.is_some() { MESSAGE } else { 0 };
        Ok((Self { hello: hello_read, noise, ciphers: None }, follows))
    }

    /// Answers the message after the hello; returns the answer and the number of bytes that follow.
    pub(crate) fn answer(&mut self, message: &[u8]) -> Result<(Vec<u8>, usize), Rejection> {
        let mut answer = vec![Verdict::Accepted as u8];
        let Some(mut noise) = self.noise.take() else { return Ok((answer, 0)) };
        let read = noise.read_message(message, &mut [0; MESSAGE]);
        read.map_err(|_| Rejection::with(Verdict::OtherSecret, "it does not know the secret"))?;
        write(&mut noise, &mut answer)?;
        self.ciphers = Some(ciphers_of(noise)?);
        Ok((answer, TAG))
    }

    /// Checks the initiator's proof; returns its hello and the ciphers.
    pub(crate) fn finish(self, proof: &[u8]) -> Result<(Hello, Option<CipherPair>), Refusal> {
        let Some((encryptor, mut decryptor)) = self.ciphers else { return Ok((self.hello, None)) };
        let holds = proof.try_into().is_ok_and(|proof| decryptor.is_proof(proof));
        match holds {
            true => Ok((self.hello, Some((encryptor, decryptor)))),
            false => Err("it replays another handshake and does not know the secret".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::encryption::Encryption;
    use super::super::hello::Purpose;
    use super::super::secret::Secret;
    use super::*;

    fn with(secret: Option<u8>, encryption: Encryption) -> Credentials {
        Credentials { secret: secret.map(|byte| Secret::new(&[byte; 16]).expect("long")), encryption }
    }

    fn hello(purpose: Purpose) -> Hello {
        Hello { lane: 1, token: 5, ..Hello::between(purpose, 3, 2, 4) }
    }

    fn check(said: &Hello) -> Result<(), Refusal> {
        let Hello { purpose, token, callee, .. } = said;
        if (*purpose, *token, *callee) == (Purpose::Data, 5, 2) { Ok(()) } else { Err("not here".into()) }
    }

    fn first(bytes: &[u8]) -> &[u8; HELLO] {
        bytes[..HELLO].try_into().expect("a hello")
    }

    /// The ciphers of the initiator and the responder, if there is a secret.
    type CipherPairs = (Option<CipherPair>, Option<CipherPair>);

    /// Runs a handshake whose messages `on_the_way` may change.
    fn shake(
        initiator: &Credentials,
        responder: &Credentials,
        mut on_the_way: impl FnMut(usize, &mut Vec<u8>),
    ) -> Result<CipherPairs, (Refusal, &'static str)> {
        let (calling, mut said) = Initiator::new(initiator, hello(Purpose::Data)).expect("begun");
        on_the_way(0, &mut said);
        let rejection = |rejection: Rejection| match rejection.answer.map(|byte| calling.read_verdict(byte)) {
            Some(Ok(_)) => panic!("rejected and accepted"),
            Some(Err(why)) => (why, "initiator"),
            None => (rejection.why, "responder"),
        };
        let (mut answering, follows) = Responder::new(responder, first(&said), check).map_err(rejection)?;
        assert_eq!(said.len(), HELLO + follows);
        let (mut answer, follows) = answering.answer(&said[HELLO..]).map_err(rejection)?;
        on_the_way(1, &mut answer);
        assert_eq!(calling.read_verdict(answer[0]).map_err(|why| (why, "initiator"))?, answer.len() - 1);
        let (mut proof, mine) = calling.finish(&answer[1..]).map_err(|why| (why, "initiator"))?;
        on_the_way(2, &mut proof);
        assert_eq!(proof.len(), follows);
        let (who, theirs) = answering.finish(&proof).map_err(|why| (why, "responder"))?;
        assert_eq!((who.caller, who.lane), (3, 1));
        Ok((mine, theirs))
    }

    #[test]
    fn only_ranks_that_know_the_secret_are_accepted() {
        let control = Encryption::Control;
        let (mine, theirs) =
            shake(&with(Some(1), control), &with(Some(1), control), |_, _| {}).expect("the same");
        assert!(mine.is_some() && theirs.is_some());
        let (mine, theirs) = shake(&with(None, control), &with(None, control), |_, _| {}).expect("neither");
        assert!(mine.is_none() && theirs.is_none());
        for (initiator, responder, words) in [
            (Some(1), Some(2), "another than this rank's"),
            (None, Some(1), "this rank has none"),
            (Some(1), None, "the world has none"),
        ] {
            let refused = shake(&with(initiator, control), &with(responder, control), |_, _| {});
            assert!(refused.expect_err("refused").0.contains(words), "{words}");
        }
        let refused = shake(&with(Some(1), Encryption::All), &with(Some(1), control), |_, _| {});
        assert!(refused.expect_err("one encrypts").0.contains("comm.encryption"));
    }

    #[test]
    fn every_byte_of_a_handshake_counts() {
        let ours = with(Some(1), Encryption::None);
        let mut lengths = [0; 3];
        shake(&ours, &ours, |at, bytes| lengths[at] = bytes.len()).expect("the same");
        assert_eq!(lengths, [HELLO + MESSAGE, 1 + MESSAGE, TAG]);
        for (at, length) in lengths.into_iter().enumerate() {
            for byte in 0..length {
                for bit in [1, 128] {
                    let change = |which: usize, bytes: &mut Vec<u8>| {
                        if which == at {
                            bytes[byte] ^= bit;
                        }
                    };
                    // X25519 ignores the highest bit of a key, but the handshake authenticates it.
                    assert!(shake(&ours, &ours, change).is_err(), "byte {byte} of message {at}");
                }
            }
        }
    }

    #[test]
    fn replayed_messages_prove_nothing() {
        let ours = with(Some(7), Encryption::None);
        let (mut said, mut proof) = (Vec::new(), Vec::new());
        let record = |at, bytes: &mut Vec<u8>| match at {
            0 => said.clone_from(bytes),
            2 => proof.clone_from(bytes),
            _ => {}
        };
        shake(&ours, &ours, record).expect("the same");
        // The same messages on another connection: the first is accepted, as it must be, and the last is not a proof.
        let (mut second, _) =
            Responder::new(&ours, first(&said), check).unwrap_or_else(|rejection| panic!("{rejection:?}"));
        second.answer(&said[HELLO..]).expect("a right first message");
        assert!(second.finish(&proof).expect_err("replayed").contains("replays"));
        // A first message for one connection is not valid for another.
        for change in [
            Hello { lane: 0, ..hello(Purpose::Data) },
            Hello { caller: 1, ..hello(Purpose::Data) },
            Hello { world_size: 3, ..hello(Purpose::Data) },
        ] {
            let other = Hello { has_secret: true, ..change }.to_bytes();
            let (mut third, _) =
                Responder::new(&ours, &other, check).unwrap_or_else(|rejection| panic!("{rejection:?}"));
            let rejection = third.answer(&said[HELLO..]).expect_err("of another connection");
            assert_eq!(rejection.answer, Some(Verdict::OtherSecret as u8));
        }
        // A side that reflects the messages of the other is not accepted by either.
        let (calling, said) = Initiator::new(&ours, hello(Purpose::Data)).expect("begun");
        assert!(calling.finish(&said[HELLO..]).expect_err("reflected").contains("does not know"));
        let to_itself = |said: &Hello| if said.callee == 3 { Ok(()) } else { Err("not me".to_owned()) };
        let rejection = Responder::new(&ours, first(&said), to_itself).map(drop).expect_err("reflected");
        assert_eq!(rejection.answer, Some(Verdict::WrongPeer as u8));
        // Truncated messages are refused.
        let (calling, said) = Initiator::new(&ours, hello(Purpose::Data)).expect("begun");
        let (mut answering, _) =
            Responder::new(&ours, first(&said), check).unwrap_or_else(|rejection| panic!("{rejection:?}"));
        let (answer, _) = answering.answer(&said[HELLO..]).expect("right");
        assert!(calling.finish(&answer[1..40]).is_err());
        assert!(answering.finish(&[]).is_err());
    }

    #[test]
    fn keys_are_fresh_in_every_handshake() {
        // Both have the same secret and the same hello.
        let ours = with(Some(9), Encryption::All);
        let keys = || shake(&ours, &ours, |_, _| {}).expect("the same");
        let ((one, _), (_, two)) = (keys(), keys());
        let (mut encryptor, _) = one.expect("a secret");
        let (_, mut decryptor) = two.expect("a secret");
        assert!(!decryptor.is_proof(&encryptor.proof().expect("encrypted")));
    }
}
