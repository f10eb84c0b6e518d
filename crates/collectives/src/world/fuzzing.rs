//! Readers of bytes that other processes send, for the fuzzer of this workspace. Each accepts any bytes, must not
//! panic, and asserts its invariants.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::mail;
use crate::config::WorldConfig;
use crate::control::frame::{self, Message};
use crate::control::fuzzing::watched;
use crate::encrypted;
use crate::engine::{Facts, measure};
use crate::failure::Failure;
use crate::mailbox::{Channel, Inbox};
use crate::operation::{Algorithm, Kind, Tag};
use crate::rendezvous::{RankEntry, admit, this_process};
use crate::security::{Credentials, Encryption, HELLO, Hello, Initiator, Purpose, Responder, Secret};
use crate::simulated::{Clock, Port, SimulatedLink};
use crate::transport::{Link, Section, SimulatedDelay};
use crate::waiting::{LinkFault, WaitLimits};

fn on_a_runtime<R>(work: impl Future<Output = R>) -> R {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap_or_else(|error| unreachable!("a runtime: {error}")).block_on(work)
}

async fn all_frames(mut bytes: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Ok(message) = frame::read(&mut bytes).await {
        messages.push(message);
    }
    messages
}

/// Reads control frames, one after the other. Messages survive another write and read.
pub fn frames(bytes: &[u8]) {
    on_a_runtime(async {
        let messages = all_frames(bytes).await;
        let mut written = Vec::new();
        for message in &messages {
            frame::write(&mut written, message).await.unwrap_or_else(|error| unreachable!("memory: {error}"));
        }
        assert_eq!(all_frames(&written).await.len(), messages.len());
    });
}

/// Encodes a control frame as ranks do.
pub fn frame_of(json: &str) -> Vec<u8> {
    [&(json.len() as u32).to_be_bytes(), json.as_bytes()].concat()
}

/// Registrations with a rank 0 of four ranks, by callers whose hello is the first bytes. No rank registers twice.
pub fn registrations(bytes: &[u8]) {
    let config = WorldConfig { job: "job".into(), ..WorldConfig::local(0, 4, 1) };
    let own = ([127, 0, 0, 1], 1).into();
    let mut table = vec![None; config.world_size];
    table[0] = Some(RankEntry { data: own, process: this_process(&config) });
    let Some((said, rest)) = bytes.split_first_chunk::<HELLO>() else { return };
    let Ok(hello) = Hello::read(said) else { return };
    for message in on_a_runtime(all_frames(rest)) {
        if let Ok((rank, place)) = admit(&config, &table, &hello, &message) {
            assert!(table[rank].is_none() && hello.caller == rank as u64);
            table[rank] = Some(place);
        }
    }
}

/// Encodes the hello of rank `caller` at the rendezvous.
pub fn hello_of(caller: u64) -> [u8; HELLO] {
    hello(Purpose::Rendezvous, caller, 0).to_bytes()
}

fn hello(purpose: Purpose, caller: u64, callee: u64) -> Hello {
    Hello::between(purpose, caller as usize, callee as usize, 4)
}

fn credentials() -> Option<Credentials> {
    Some(Credentials { secret: Some(Secret::new(&[7; 16]).ok()?), encryption: Encryption::All })
}

/// The first message of an initiator with the secret; the keys are fresh.
pub fn first_words() -> Vec<u8> {
    let initiator = credentials().and_then(|ours| Initiator::new(&ours, hello(Purpose::Data, 1, 0)).ok());
    initiator.map_or_else(Vec::new, |(_, first)| first)
}

/// A handshake with a side that does not know the secret. The first byte tells which side calls. It never succeeds.
pub fn handshakes(bytes: &[u8]) {
    let (Some(ours), Some((role, said))) = (credentials(), bytes.split_first()) else { return };
    if *role % 2 == 0 {
        let Some((first, rest)) = said.split_first_chunk::<HELLO>() else { return };
        let Ok((mut responder, follows)) = Responder::new(&ours, first, |_| Ok(())) else { return };
        let Some((message, rest)) = rest.split_at_checked(follows) else { return };
        let Ok((_, follows)) = responder.answer(message) else { return };
        let proof = rest.get(..follows).unwrap_or(rest);
        assert!(responder.finish(proof).is_err(), "a stranger was accepted");
    } else {
        let Ok((initiator, _)) = Initiator::new(&ours, hello(Purpose::Data, 1, 0)) else { return };
        let Some((verdict, rest)) = said.split_first() else { return };
        let Ok(follows) = initiator.read_verdict(*verdict) else { return };
        assert!(initiator.finish(rest.get(..follows).unwrap_or(rest)).is_err(), "a stranger was trusted");
    }
}

/// Reads a stream of encrypted records that is changed in transit: each three bytes give the position and kind of a
/// change. What is read is what was sent, as far as it goes.
pub fn records(bytes: &[u8]) {
    let Some(ours) = credentials() else { return };
    let begun = Initiator::new(&ours, hello(Purpose::Data, 1, 0));
    let Ok((initiator, first)) = begun else { return };
    let Some((said, message)) = first.split_first_chunk::<HELLO>() else { return };
    let Ok((mut responder, _)) = Responder::new(&ours, said, |_| Ok(())) else { return };
    let Ok((answer, _)) = responder.answer(message) else { return };
    let Ok((proof, Some((mut encryptor, _)))) = initiator.finish(&answer[1..]) else { return };
    let Ok((_, Some((_, mut decryptor)))) = responder.finish(&proof) else { return };
    let sent: Vec<u8> = (0..3000_u32).map(|at| (at * 7) as u8).collect();
    let mut link = Vec::new();
    for part in sent.chunks(500) {
        let encrypted = encryptor.records(part, &mut link, usize::MAX);
        assert_eq!(encrypted.ok(), Some(part.len()));
    }
    for change in bytes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % link.len().max(1);
        match change[2] % 4 {
            0 => link.truncate(at),
            1 if at < link.len() => drop(link.remove(at)),
            2 => link.insert(at, change[2]),
            _ if at < link.len() => link[at] ^= change[2] | 1,
            _ => {}
        }
    }
    decryptor.room(link.len())[..link.len()].copy_from_slice(&link);
    decryptor.put(link.len());
    let (mut read, mut some) = (Vec::new(), [0; 700]);
    while let Ok(Some(count @ 1..)) = decryptor.take(&mut some) {
        read.extend_from_slice(&some[..count]);
    }
    assert!(sent.starts_with(&read), "what was read is not what was sent");
    assert!(encrypted::is_altered(&encrypted::MacError.into()));
}

/// Reads mail of rank 1, received directly or over a simulated link.
pub fn mail(bytes: &[u8]) {
    let link = SimulatedLink { bandwidth: 1e9, latency: Duration::from_micros(20), clock: Clock::Wall };
    for port in [None, Some(Arc::new(Port::new(link)))] {
        let inbox = Inbox::new(0, Failure::default().into(), port);
        on_a_runtime(async {
            // The end of the stream does not matter here.
            let _ = mail::read(&inbox, 1, bytes.take(1 << 20)).await;
        });
        let channel = Channel { communicator: 1, number: 2 };
        while let Ok(Some(message)) = inbox.take(channel, Duration::ZERO) {
            let from = message.from;
            assert_eq!(from, 1);
        }
    }
}

/// A link that replays these bytes.
struct ReplayLink(std::io::Cursor<Vec<u8>>);

impl Link for ReplayLink {
    fn send(&mut self, _: [&[u8]; 2]) -> Result<(), LinkFault> {
        Ok(())
    }

    fn receive(&mut self, _: Section, into: &mut [u8]) -> Result<(), LinkFault> {
        std::io::Read::read_exact(&mut self.0, into).map_err(|_| LinkFault::Closed)
    }
}

/// Reads messages over a simulated link with a CPU clock: a departure time, a header with the length in one byte, and
/// the payload. The clock is never set back.
pub fn stamps(bytes: &[u8]) {
    let link = SimulatedLink { bandwidth: 1e9, latency: Duration::from_micros(20), clock: Clock::Cpu };
    let limits = WaitLimits { failure: Arc::default(), timeout: Duration::from_secs(1) };
    let replay = Box::new(ReplayLink(std::io::Cursor::new(bytes.to_vec())));
    let mut delayed = SimulatedDelay::new(replay, Arc::new(Port::new(link)), limits);
    // Every thread has a clock of its own.
    let receiving = std::thread::spawn(move || {
        let (mut header, mut payload) = ([0], [0; 255]);
        let mut receive = || {
            delayed.receive(Section::Header, &mut header)?;
            delayed.receive(Section::Payload, &mut payload[..usize::from(header[0])])
        };
        let mut now = Clock::Cpu.nanos();
        while receive().is_ok() {
            let then = std::mem::replace(&mut now, Clock::Cpu.nanos());
            assert!(then <= now, "a clock was set back from {then} to {now}");
        }
    });
    if let Err(panic) = receiving.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a script in JSON for one of four ranks on the control plane: its rank, the ended processes, and the messages.
pub fn control(bytes: &[u8]) {
    // Malformed JSON is ignored.
    let _ = on_a_runtime(watched(bytes));
}

/// Checks facts that ranks exchange before operations: this rank, the number of ranks, the length of each message, and
/// the messages.
pub fn gathered(bytes: &[u8]) {
    let Some((&[own, world], rest)) = bytes.split_first_chunk::<2>() else { return };
    let world = usize::from(world % 8) + 1;
    let own = usize::from(own) % world;
    let Some((lengths, mut rest)) = rest.split_at_checked(world) else { return };
    let told = lengths.iter().map(|length| {
        let (words, after) = rest.split_at(usize::from(*length).min(rest.len()));
        rest = after;
        words.to_vec()
    });
    let all: Vec<Vec<u8>> = told.collect();
    let same = Facts::Same(String::from_utf8_lossy(&all[own]).into_owned()).check(&all, own);
    assert!(same.is_err() || all.iter().all(|other| *other == all[own]), "what differs is the same");
    let mut lengths = all[own].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word) as usize);
    let mut parts = || (0..world).map(|_| lengths.next().unwrap_or(0)).collect();
    let exchange = Facts::Exchange { out: parts(), inn: parts() };
    if let Err((rank, ..)) = exchange.check(&all, own) {
        assert!(rank < world);
    }
    let model = measure::agreed(&all);
    let mut rejection = all;
    rejection.rotate_left(own);
    assert_eq!(model, measure::agreed(&rejection), "costs depend on the order of ranks");
    for kind in Kind::ALL {
        for algorithm in Algorithm::ALL {
            let _ = (model.of(kind, algorithm, 1 << 20, &[2, 3]), model.of(kind, algorithm, 1, &[4]));
        }
    }
}

/// Encodes a rank's message about an exchange: its numbers of elements for each rank and from each rank.
pub fn exchange_of(out: &[usize], inn: &[usize]) -> Vec<u8> {
    Facts::Exchange { out: out.to_vec(), inn: inn.to_vec() }.message()
}

/// Decodes tags of headers. Valid ones encode to themselves.
pub fn tags(bytes: &[u8]) {
    for word in bytes.chunks_exact(16) {
        let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| word[at + i]));
        let count = u64::from_le_bytes(std::array::from_fn(|i| word[8 + i]));
        if let Some(tag) = Tag::unpacked((short(0), short(4), count)) {
            assert_eq!(tag.packed(), (short(0), short(4), count));
            assert!(!tag.describe(count).is_empty() && !tag.name().is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use phalanx_fuzz_harness::{Reader, check};

    #[test]
    fn readers_hold_their_limits() {
        type NamedReader = (&'static str, fn(&[u8]));
        let readers: [NamedReader; 9] = [
            ("frames", super::frames),
            ("registrations", super::registrations),
            ("handshakes", super::handshakes),
            ("records", super::records),
            ("mail", super::mail),
            ("tags", super::tags),
            ("control", super::control),
            ("gathered", super::gathered),
            ("stamps", super::stamps),
        ];
        for (name, read) in readers {
            check(Reader { name, read, memory: 48 << 20 }, Vec::new(), 200, |_, _| false);
        }
    }
}
