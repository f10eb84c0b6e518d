//! Messages between ranks of asynchronous strategies.

use phalanx_fuzz_harness::Random;
use phalanx_sharding::fuzzing;

use super::Target;

/// Bytes of a message before its numbers.
const HEADER: usize = 32;

/// The kinds of messages.
const PUSH: u64 = 1;
const PUSHED: u64 = 2;
const DROP: u64 = 3;
const COMMIT: u64 = 4;
const PULL: u64 = 5;
const READ: u64 = 6;
const FENCE: u64 = 7;
const LEAVE: u64 = 8;
const VALUES: u64 = 10;
const UNCHANGED: u64 = 11;
const DONE: u64 = 12;
const MIX: u64 = 13;
const ASK: u64 = 14;
const ANSWER: u64 = 15;
const PUSH_CODED: u64 = 16;
const VALUES_CODED: u64 = 17;

/// A sender and its message.
type SentMessage = (u8, Vec<u8>);

fn message(kind: u64, number: u64, bucket: usize, values: usize, coded: usize) -> Vec<u8> {
    let values: Vec<f32> = (0..values).map(|at| at as f32 * 0.5 - 1.0).collect();
    let made = fuzzing::message_of(kind, (number, bucket, 0.1), &values, &vec![1; coded]);
    made.unwrap_or_else(|error| panic!("a message: {error}"))
}

/// Returns a message without values.
fn word(kind: u64, number: u64) -> Vec<u8> {
    message(kind, number, 0, 0, 0)
}

/// Returns an input: the receiver, the options, a codec, and the messages.
fn join(head: [u8; 3], said: &[SentMessage]) -> Vec<u8> {
    let mut input = head.to_vec();
    for (from, bytes) in said {
        input.push(*from);
        input.extend_from_slice(&(bytes.len().min(usize::from(u16::MAX)) as u16).to_le_bytes());
        input.extend_from_slice(&bytes[..bytes.len().min(usize::from(u16::MAX))]);
    }
    input
}

fn split(input: &[u8]) -> Option<([u8; 3], Vec<SentMessage>)> {
    let (head, mut rest) = input.split_first_chunk::<3>()?;
    let mut said = Vec::new();
    while let Some(([from, low, high], after)) = rest.split_first_chunk::<3>() {
        let (bytes, after) = after.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(after.len()));
        said.push((*from, bytes.to_vec()));
        rest = after;
    }
    Some((*head, said))
}

/// Returns the messages of a worker's step. `together` sums its gradients with another worker's.
fn step(worker: u8, attempt: u64, together: bool) -> Vec<SentMessage> {
    let pushed = if together { vec![word(PUSHED, attempt)] } else { vec![] };
    let pushes = [message(PUSH, attempt, 1, 2, 0), message(PUSH, attempt, 0, 7, 0)];
    let ends = [word(COMMIT, attempt), word(PULL, attempt)];
    pushes.into_iter().chain(pushed).chain(ends).map(|bytes| (worker, bytes)).collect()
}

fn seeds() -> Vec<Vec<u8>> {
    [to_a_server(), to_a_worker(), to_a_peer()].concat()
}

/// Returns messages to a parameter server.
fn to_a_server() -> Vec<Vec<u8>> {
    const SERVER: u8 = 2;
    let (together, bounded, free) = (0, 1 << 6, 2 << 6);
    let leave = [(0, word(LEAVE, 0)), (1, word(LEAVE, 0))];
    let both = |attempt, is_together| [step(0, attempt, is_together), step(1, attempt, is_together)].concat();
    let agree = [(SERVER, Vec::new())];
    let summed = [&both(1, true), &agree[..], &both(2, true), &agree[..], &leave].concat();
    let given_up = [&step(0, 1, true)[..2], &[(0, word(DROP, 1))], &both(2, true), &agree[..]].concat();
    let asynchronous = [
        &both(1, false)[..],
        &step(0, 2, false),
        &step(0, 3, false),
        &[(1, word(READ, 0)), (1, word(FENCE, 0))],
        &step(1, 2, false),
        &leave,
    ];
    let asynchronous = asynchronous.concat();
    let coded = [
        (0, message(PUSH_CODED, 1, 0, 0, 14)),
        (0, message(PUSH_CODED, 1, 1, 0, 4)),
        (0, word(COMMIT, 1)),
        (0, word(PULL, 3)),
    ];
    vec![
        join([0, together, 0], &summed),
        join([0, together | 1 << 3, 0], &given_up),
        join([0, bounded | 0b110, 0], &asynchronous),
        join([0, bounded | 0b1001, 0], &asynchronous),
        join([0, free | 0b11, 0], &asynchronous),
        join([0, free, 1], &coded),
    ]
}

/// Returns messages of servers to a worker.
fn to_a_worker() -> Vec<Vec<u8>> {
    let free = 2 << 6;
    // Halves of buckets of 8 and 3 values, from servers on ranks 1 and 2.
    let halves = |version: u64| {
        [(1, 0, 4), (2, 0, 4), (1, 1, 1), (2, 1, 2)]
            .map(|(from, bucket, values)| (from, message(VALUES, version, bucket, values, 0)))
    };
    let done = [(1, word(DONE, 0)), (2, word(DONE, 0))];
    let answers = [&halves(4)[..], &halves(5), &done].concat();
    let unchanged = [(1, word(UNCHANGED, 4)), (2, word(UNCHANGED, 4))];
    let unchanged = [&unchanged[..], &halves(4), &done].concat();
    let rounded = [(1, 0, 12), (2, 0, 12), (1, 1, 5), (2, 1, 6)]
        .map(|(from, bucket, bytes)| (from, message(VALUES_CODED, 4, bucket, 0, bytes)));
    let rounded = [&rounded[..], &halves(4), &done].concat();
    vec![join([1, free, 0], &answers), join([1, free, 0], &unchanged), join([1, free | 1, 0], &rounded)]
}

/// Returns messages of peers to a rank.
fn to_a_peer() -> Vec<Vec<u8>> {
    let pairs = [
        (1, message(ASK, 3, 0, 3, 0)),
        (1, message(ASK, 3, 2, 5, 0)),
        (2, message(ANSWER, 1, 0, 3, 0)),
        (2, message(ANSWER, 1, 2, 5, 0)),
        (1, word(LEAVE, 0)),
        (2, word(LEAVE, 0)),
        (0, word(LEAVE, 0)),
    ];
    let mix = |step: u64| {
        [(1, 0, 8), (2, 1, 3), (2, 0, 8), (1, 1, 3)]
            .map(|(from, bucket, values)| (from, message(MIX, step, bucket, values, 0)))
    };
    let rounds = [mix(1), mix(0)].concat();
    vec![join([2, 0, 0], &pairs), join([3, 0, 0], &rounds), join([4, 0, 0], &rounds)]
}

/// Changes a word of a message's header, its number of values, or a byte of them.
fn of_message(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.len() < HEADER {
        return;
    }
    match random.below(3) {
        0 => {
            let (kinds, rates) = (fuzzing::KINDS, [0.0, -1.0, 1e300, f64::NAN, f64::INFINITY]);
            let which = random.below(4);
            let new = match which {
                0 => kinds.start() + random.below(*kinds.end() as usize) as u64,
                3 => random.pick(&rates).to_bits(),
                _ if random.once_in(2) => random.below(5) as u64,
                _ => random.awkward(),
            };
            bytes[8 * which..8 * which + 8].copy_from_slice(&new.to_le_bytes());
        }
        1 => bytes.resize(HEADER + 4 * random.below(10), 0),
        _ if bytes.len() > HEADER => {
            let at = HEADER + random.below(bytes.len() - HEADER);
            bytes[at] = random.number() as u8;
        }
        _ => {}
    }
}

/// Changes a message, its sender or its position. The input stays a list of messages.
fn of_messages(input: &mut Vec<u8>, random: &mut Random) -> bool {
    let Some((mut head, mut said)) = split(input).filter(|(_, said)| !said.is_empty()) else { return false };
    for _ in 0..1 + random.below(3) {
        let (at, other) = (random.below(said.len()), random.below(said.len()));
        match random.below(8) {
            0 => said[at].0 = random.below(3) as u8,
            1 => said.insert(other, said[at].clone()),
            2 if said.len() > 1 => drop(said.remove(at)),
            3 => said.swap(at, other),
            4 => head[1 + random.below(2)] = random.number() as u8,
            _ => of_message(&mut said[at].1, random),
        }
    }
    *input = join(head, &said);
    true
}

pub(super) const STRATEGY_MESSAGES: Target = Target {
    name: "strategy_messages",
    about: "what workers and servers say to each other, and neighbours that average",
    seeds,
    words: &["\u{1}\0\0\0\0\0\0\0", "\0\0\u{f8}\u{7f}"],
    change: of_messages,
    read: fuzzing::strategy_messages,
    cases: 200,
    memory: 48 << 20,
};
