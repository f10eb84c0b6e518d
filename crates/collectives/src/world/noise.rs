//! The handshake of every connection, by the Noise framework: both ends prove that they know the world's secret.
//!
//! The pattern is `NNpsk0`: fresh keys of X25519 at both ends, and the secret mixed in from the first message on; the prologue is
//! the caller's [`Hello`]. The secret is never sent, who records everything and learns it later reads nothing, and messages of
//! another handshake, of the other direction, or for other ranks are not accepted.
//!
//! ```text
//! caller                                   who answers
//!   hello, psk e                 ─────►      knows now that the caller had the secret, now or earlier
//!          ◄─────  verdict, e ee             the caller knows that who answers has it, now
//!   proof                        ─────►      and now the other way round
//! ```
//!
//! Without a secret only the hello and the verdict are sent, which keeps out strangers by accident and nobody else. What is here
//! reads and writes no connection; [`super::handshake`] does.

use snow::{Builder, HandshakeState};

use super::encryption::Credentials;
use super::hello::{HELLO, Hello, NoHello};
use crate::sealed::{self, Opener, Sealer, TAG};

/// AES-GCM as processors have instructions for it.
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

/// Bytes of either of Noise's two messages: a key and a tag.
const MESSAGE: usize = 32 + TAG;

/// Why a connection was not accepted, in words for whom it concerns.
pub(super) type Refusal = String;

/// The keys that the ends have agreed on.
pub(super) type Ends = (Sealer, Opener);

/// What who answers says to a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Accepted,
    CallerLacksSecret,
    CallerHasSecret,
    OtherSecret,
    OtherEncryption,
    WrongDoor,
    OtherVersion,
}

impl Verdict {
    const ALL: [Self; 7] = [
        Self::Accepted,
        Self::CallerLacksSecret,
        Self::CallerHasSecret,
        Self::OtherSecret,
        Self::OtherEncryption,
        Self::WrongDoor,
        Self::OtherVersion,
    ];

    fn read(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// What it means to who called.
    fn heard(self) -> Result<(), Refusal> {
        let text = match self {
            Self::Accepted => return Ok(()),
            Self::CallerLacksSecret => "the world has a secret and this rank has none (PHALANX_SECRET_FILE)",
            Self::CallerHasSecret => "this rank has a secret and the world has none (PHALANX_SECRET_FILE)",
            Self::OtherSecret => "the world's secret is another than this rank's (PHALANX_SECRET_FILE)",
            Self::OtherEncryption => "the world encrypts other connections than this rank (comm.encryption)",
            Self::WrongDoor => "another rank or another world listens there",
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

fn ends(noise: HandshakeState) -> Result<Ends, Refusal> {
    let state = noise.into_stateless_transport_mode();
    state.map(sealed::ends).map_err(|error| format!("cannot end a handshake: {error}"))
}

/// The side that has opened the connection.
pub(super) struct Caller(Option<HandshakeState>);

impl Caller {
    /// With what it says first. What `hello` says of secrets and encryption is filled in.
    pub(super) fn new(credentials: &Credentials, hello: Hello) -> Result<(Self, Vec<u8>), Refusal> {
        let (has_secret, sealed) = (credentials.secret.is_some(), credentials.seals(hello.plane));
        let hello = Hello { has_secret, sealed, ..hello }.to_bytes();
        let mut noise = begin(credentials, &hello, true)?;
        let mut first = hello.to_vec();
        if let Some(noise) = &mut noise {
            write(noise, &mut first)?;
        }
        Ok((Self(noise), first))
    }

    /// How many bytes follow a verdict, unless it is a refusal.
    pub(super) fn hear(&self, verdict: u8) -> Result<usize, Refusal> {
        let verdict = Verdict::read(verdict).ok_or("the other side is not of this protocol")?;
        verdict.heard()?;
        Ok(if self.0.is_some() { MESSAGE } else { 0 })
    }

    /// What proves to who answers that this side is there now, after what followed the verdict; and the keys.
    pub(super) fn finish(self, message: &[u8]) -> Result<(Vec<u8>, Option<Ends>), Refusal> {
        let Some(mut noise) = self.0 else { return Ok((Vec::new(), None)) };
        let read = noise.read_message(message, &mut [0; MESSAGE]);
        read.map_err(|_| "the other side does not know the secret")?;
        let (mut sealer, opener) = ends(noise)?;
        let proof = sealer.proof().map_err(|error| error.to_string())?;
        Ok((proof.to_vec(), Some((sealer, opener))))
    }
}

/// Why a caller is turned away, and what is said to it, if anything.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Turned {
    pub(super) why: Refusal,
    pub(super) answer: Option<u8>,
}

impl Turned {
    fn with(verdict: Verdict, why: impl Into<Refusal>) -> Self {
        Self { why: why.into(), answer: Some(verdict as u8) }
    }
}

impl From<Refusal> for Turned {
    fn from(why: Refusal) -> Self {
        Self { why, answer: None }
    }
}

/// The side that listens.
pub(super) struct Answerer {
    hello: Hello,
    noise: Option<HandshakeState>,
    /// The keys, once there are any; the proof that the caller has them is awaited.
    ends: Option<Ends>,
}

impl Answerer {
    /// With what a caller says first, if `is_meant` finds nothing wrong with it; how many bytes of the caller follow.
    pub(super) fn new(
        credentials: &Credentials,
        hello: &[u8; HELLO],
        is_meant: impl FnOnce(&Hello) -> Result<(), Refusal>,
    ) -> Result<(Self, usize), Turned> {
        let said = Hello::read(hello).map_err(|no| match no {
            NoHello::Stranger => Turned::from("it is not of this protocol".to_owned()),
            NoHello::OtherVersion => {
                Turned::with(Verdict::OtherVersion, "it speaks another version of this protocol")
            }
        })?;
        match (said.has_secret, credentials.secret.is_some()) {
            (false, true) => return Err(Turned::with(Verdict::CallerLacksSecret, "it has no secret")),
            (true, false) => {
                let why = "it has a secret, and this world has none";
                return Err(Turned::with(Verdict::CallerHasSecret, why));
            }
            _ => {}
        }
        is_meant(&said).map_err(|why| Turned::with(Verdict::WrongDoor, why))?;
        if said.sealed != credentials.seals(said.plane) {
            let why = "it encrypts other connections than this world (comm.encryption)";
            return Err(Turned::with(Verdict::OtherEncryption, why));
        }
        let noise = begin(credentials, hello, false)?;
        let follows = if noise.is_some() { MESSAGE } else { 0 };
        Ok((Self { hello: said, noise, ends: None }, follows))
    }

    /// The answer to what followed the hello; how many bytes of the caller follow that.
    pub(super) fn answer(&mut self, message: &[u8]) -> Result<(Vec<u8>, usize), Turned> {
        let mut answer = vec![Verdict::Accepted as u8];
        let Some(mut noise) = self.noise.take() else { return Ok((answer, 0)) };
        let read = noise.read_message(message, &mut [0; MESSAGE]);
        read.map_err(|_| Turned::with(Verdict::OtherSecret, "it does not know the secret"))?;
        write(&mut noise, &mut answer)?;
        self.ends = Some(ends(noise)?);
        Ok((answer, TAG))
    }

    /// Who has called, if what it has said last is the proof, and the keys.
    pub(super) fn finish(self, proof: &[u8]) -> Result<(Hello, Option<Ends>), Refusal> {
        let Some((sealer, mut opener)) = self.ends else { return Ok((self.hello, None)) };
        let holds = proof.try_into().is_ok_and(|proof| opener.is_proof(proof));
        match holds {
            true => Ok((self.hello, Some((sealer, opener)))),
            false => Err("it repeats what another has said, and does not know the secret".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::encryption::Encryption;
    use super::super::hello::Plane;
    use super::super::secret::Secret;
    use super::*;

    fn with(secret: Option<u8>, encryption: Encryption) -> Credentials {
        Credentials { secret: secret.map(|byte| Secret::new(&[byte; 16]).expect("long")), encryption }
    }

    fn hello(plane: Plane) -> Hello {
        Hello {
            plane,
            has_secret: false,
            sealed: false,
            lane: 1,
            token: 5,
            caller: 3,
            callee: 2,
            world_size: 4,
        }
    }

    fn meant(said: &Hello) -> Result<(), Refusal> {
        let Hello { plane, token, callee, .. } = said;
        if (*plane, *token, *callee) == (Plane::Data, 5, 2) { Ok(()) } else { Err("not here".into()) }
    }

    fn first(bytes: &[u8]) -> &[u8; HELLO] {
        bytes[..HELLO].try_into().expect("a hello")
    }

    /// What the caller and the answerer go on with, by encryption if they agreed on it.
    type BothEnds = (Option<Ends>, Option<Ends>);

    /// A handshake, and each of its messages as they are changed on their way.
    fn shake(
        caller: &Credentials,
        answerer: &Credentials,
        mut on_the_way: impl FnMut(usize, &mut Vec<u8>),
    ) -> Result<BothEnds, (Refusal, &'static str)> {
        let (calling, mut said) = Caller::new(caller, hello(Plane::Data)).expect("begun");
        on_the_way(0, &mut said);
        let turned = |turned: Turned| match turned.answer.map(|byte| calling.hear(byte)) {
            Some(Ok(_)) => panic!("turned away and accepted"),
            Some(Err(why)) => (why, "caller"),
            None => (turned.why, "answerer"),
        };
        let (mut answering, follows) = Answerer::new(answerer, first(&said), meant).map_err(turned)?;
        assert_eq!(said.len(), HELLO + follows);
        let (mut answer, follows) = answering.answer(&said[HELLO..]).map_err(turned)?;
        on_the_way(1, &mut answer);
        assert_eq!(calling.hear(answer[0]).map_err(|why| (why, "caller"))?, answer.len() - 1);
        let (mut proof, mine) = calling.finish(&answer[1..]).map_err(|why| (why, "caller"))?;
        on_the_way(2, &mut proof);
        assert_eq!(proof.len(), follows);
        let (who, theirs) = answering.finish(&proof).map_err(|why| (why, "answerer"))?;
        assert_eq!((who.caller, who.lane), (3, 1));
        Ok((mine, theirs))
    }

    #[test]
    fn only_those_who_know_the_secret_are_let_in() {
        let control = Encryption::Control;
        let (mine, theirs) =
            shake(&with(Some(1), control), &with(Some(1), control), |_, _| {}).expect("the same");
        assert!(mine.is_some() && theirs.is_some());
        let (mine, theirs) = shake(&with(None, control), &with(None, control), |_, _| {}).expect("neither");
        assert!(mine.is_none() && theirs.is_none());
        for (caller, answerer, words) in [
            (Some(1), Some(2), "another than this rank's"),
            (None, Some(1), "this rank has none"),
            (Some(1), None, "the world has none"),
        ] {
            let refused = shake(&with(caller, control), &with(answerer, control), |_, _| {});
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
                    // The highest bit of a key of X25519 is not used by it, but it is part of what is authenticated.
                    assert!(shake(&ours, &ours, change).is_err(), "byte {byte} of message {at}");
                }
            }
        }
    }

    #[test]
    fn what_was_heard_before_proves_nothing() {
        let ours = with(Some(7), Encryption::None);
        let (mut said, mut proof) = (Vec::new(), Vec::new());
        let record = |at, bytes: &mut Vec<u8>| match at {
            0 => said.clone_from(bytes),
            2 => proof.clone_from(bytes),
            _ => {}
        };
        shake(&ours, &ours, record).expect("the same");
        // The same messages on another connection: the first is heard, as it must be, and the last is no proof.
        let (mut second, _) =
            Answerer::new(&ours, first(&said), meant).unwrap_or_else(|turned| panic!("{turned:?}"));
        second.answer(&said[HELLO..]).expect("a right first message");
        assert!(second.finish(&proof).expect_err("replayed").contains("repeats"));
        // A first message for one connection is none for another.
        for change in [
            Hello { lane: 0, ..hello(Plane::Data) },
            Hello { caller: 1, ..hello(Plane::Data) },
            Hello { world_size: 3, ..hello(Plane::Data) },
        ] {
            let other = Hello { has_secret: true, ..change }.to_bytes();
            let (mut third, _) =
                Answerer::new(&ours, &other, meant).unwrap_or_else(|turned| panic!("{turned:?}"));
            let turned = third.answer(&said[HELLO..]).expect_err("of another connection");
            assert_eq!(turned.answer, Some(Verdict::OtherSecret as u8));
        }
        // Who only repeats what it hears does not pass for the other side, and is turned away by whom it calls.
        let (calling, said) = Caller::new(&ours, hello(Plane::Data)).expect("begun");
        assert!(calling.finish(&said[HELLO..]).expect_err("reflected").contains("does not know"));
        let to_itself = |said: &Hello| if said.callee == 3 { Ok(()) } else { Err("not me".to_owned()) };
        let turned = Answerer::new(&ours, first(&said), to_itself).map(drop).expect_err("reflected");
        assert_eq!(turned.answer, Some(Verdict::WrongDoor as u8));
        // What is cut short is no message.
        let (calling, said) = Caller::new(&ours, hello(Plane::Data)).expect("begun");
        let (mut answering, _) =
            Answerer::new(&ours, first(&said), meant).unwrap_or_else(|turned| panic!("{turned:?}"));
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
        let (mut sealer, _) = one.expect("a secret");
        let (_, mut opener) = two.expect("a secret");
        assert!(!opener.is_proof(&sealer.proof().expect("sealed")));
    }
}
