//! Readers of bytes that other ranks send, for the fuzzer of this workspace. Each accepts any bytes, must not panic,
//! and asserts its invariants.

use crate::Result;
use crate::asynchronous::gossip;
use crate::asynchronous::message::{Kind, Message};
use crate::asynchronous::parameter_server::fuzzing::{Choice, server_hears, worker_hears};
use crate::rehearsed::{InjectedMessage, taken, world};
use phalanx_codecs::{CodecKind, CodecSettings, PushCodec, WeightRounding};

/// The number of codecs of [`push_of`].
pub const CODECS: u8 = 10;

/// The numbers of all kinds of messages.
pub const KINDS: std::ops::RangeInclusive<u64> = Kind::Push as u64..=Kind::ValuesCoded as u64;

/// The largest number of values that is read from a message.
const LONGEST: usize = 4096;

/// Returns the codec of a number below [`CODECS`]: first the codecs of pushed gradients, then the codec of rounded
/// values.
fn codec(number: u8) -> Result<PushCodec> {
    let pushing = CodecKind::ALL.iter().filter(|kind| kind.pushes() && **kind != CodecKind::None);
    let pushing = pushing.copied().nth(usize::from(number % CODECS)).and_then(|kind| {
        let settings = CodecSettings { kind, density: 0.1, chunk: 16, ..CodecSettings::default() };
        settings.codec().transpose()?.map(|codec| codec.push()).transpose()
    });
    Ok(pushing.unwrap_or_else(|| WeightRounding::Int8 { chunk: 3 }.codec())?)
}

/// Encodes numbers by a codec, as ranks do.
///
/// # Errors
/// Errors of the codec.
pub fn push_of(number: u8, values: &[f32]) -> Result<Vec<u8>> {
    Ok(codec(number)?.message(values)?)
}

/// Returns a codec's name.
pub fn push_name(number: u8) -> &'static str {
    codec(number).map_or("none", |codec| codec.name())
}

/// Returns the most bytes of a codec's message of `len` values.
///
/// # Errors
/// Errors of the codec.
pub fn push_len(number: u8, len: usize) -> Result<usize> {
    Ok(codec(number)?.message_len(len) as usize)
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Decodes a message: a byte that chooses the codec, two bytes of length, and the message. The result must not depend on the
/// memory's former content, and can be encoded again.
pub fn pushes(bytes: &[u8]) {
    let Some(([number, low, high], message)) = bytes.split_first_chunk::<3>() else { return };
    let Ok(codec) = codec(*number) else { unreachable!("codecs with sound settings") };
    let len = usize::from(u16::from_le_bytes([*low, *high])) % LONGEST;
    let (mut one, mut other) = (vec![0.0; len], vec![1.0; len]);
    let decoded =
        [codec.decode(message, &mut one), codec.decode(message, &mut other)].map(|came| came.is_ok());
    assert_eq!(decoded[0], decoded[1], "what was there before counts");
    if !decoded[0] {
        return;
    }
    assert_eq!(bits(&one), bits(&other), "what was there before counts");
    let Ok(again) = codec.message(&one) else { panic!("what came cannot be sent") };
    assert!(again.len() as u64 <= codec.message_len(len), "a message is longer than said");
    assert!(codec.decode(&again, &mut other).is_ok(), "what was sent cannot be read");
    if codec.name() == CodecKind::Lossless.name() {
        assert_eq!(bits(&one), bits(&other), "something was lost");
    }
}

/// A channel on which a rank sends to itself.
const ECHO: u32 = 9;

/// All channels.
const CHANNELS: [u32; 3] = [1, 2, ECHO];

/// Reads messages: sender, length, bytes.
fn said(mut bytes: &[u8]) -> Vec<InjectedMessage> {
    let mut all = Vec::new();
    while let Some(([from, low, high], rest)) = bytes.split_first_chunk::<3>() {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (message, rest) = rest.split_at(length);
        all.push(InjectedMessage { from: usize::from(*from) % world().len(), bytes: message.to_vec() });
        bytes = rest;
    }
    all
}

/// Sends a message to its own rank, and returns the bytes that arrive.
fn echo(message: &Message) -> Result<Vec<u8>> {
    message.send(&world()[0], 0, ECHO)?;
    Ok(world()[0].recv_any(ECHO)?.1)
}

/// Encodes a message as ranks do: its kind, the number of an attempt or a version, a bucket, a learning rate, and plain
/// or encoded numbers.
///
/// # Errors
/// If there is no such kind.
pub fn message_of(
    kind: u64,
    (number, bucket, rate): (u64, usize, f64),
    values: &[f32],
    coded: &[u8],
) -> Result<Vec<u8>> {
    let mut header = [0; 32];
    header[..8].copy_from_slice(&kind.to_le_bytes());
    let (values, coded) = (values.to_vec(), coded.to_vec());
    echo(&Message { number, bucket, rate, values, coded, ..Message::read(&header)? })
}

/// Runs messages against a strategy: a byte chooses the receiver, one its options, one its codec; the messages follow. A
/// message must be written as it was read.
pub fn strategy_messages(bytes: &[u8]) {
    let Some(([role, options, codec], rest)) = bytes.split_first_chunk::<3>() else { return };
    for rank in 0..world().len() {
        for channel in CHANNELS {
            assert!(taken(rank, channel).is_ok(), "a word has broken the world");
        }
    }
    let said = said(rest);
    for InjectedMessage { bytes, .. } in &said {
        if let Ok(message) = Message::read(bytes) {
            let written = echo(&message).unwrap_or_else(|error| panic!("it cannot be sent: {error}"));
            assert_eq!(written, *bytes, "{message:?}");
        }
    }
    let choice = Choice { options: *options, codec: *codec };
    // The receiver may refuse.
    let _ = match role % 5 {
        0 => server_hears(choice, &said),
        1 => worker_hears(choice, &said),
        2 => {
            gossip::fuzzing::pair_hears(&said);
            Ok(())
        }
        3 => gossip::fuzzing::round_hears(false, &said),
        _ => gossip::fuzzing::round_hears(true, &said),
    };
}

#[cfg(test)]
mod tests {
    use phalanx_fuzz_harness::{Reader, check};

    #[test]
    fn readers_hold_their_limits() {
        type NamedReader = (&'static str, fn(&[u8]));
        let readers: [NamedReader; 2] =
            [("pushes", super::pushes), ("strategy_messages", super::strategy_messages)];
        for (name, read) in readers {
            check(Reader { name, read, memory: 48 << 20 }, Vec::new(), 200, |_, _| false);
        }
    }
}
