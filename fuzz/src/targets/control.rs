//! Events around a rank on the control plane, gathered settings of ranks, and time stamps of messages.

use phalanx_collectives::fuzzing;
use phalanx_fuzz_harness::Random;

use super::network::messages;
use super::{Target, of_json};

/// A script: the observing rank, the ended processes, and the messages of each rank; null closes a rank's connection.
fn script(own: usize, ended: &[usize], said: &[(usize, &str)]) -> Vec<u8> {
    let said: Vec<String> = said.iter().map(|(rank, message)| format!("[{rank},{message}]")).collect();
    format!(r#"{{"own":{own},"ended":{ended:?},"said":[{}]}}"#, said.join(",")).into_bytes()
}

const ASK: &str = r#"{"Ask":{"communicator":0}}"#;
const DOING: &str = r#"{"Doing":{"question":1,"doing":{"sequence":3,"last":"an all-reduce"}}}"#;
const STOP: &str = r#"{"RequestStop":{"reason":"enough","goes_on":true}}"#;
const STEP: &str = r#"{"InStep":{"step":5}}"#;
const REGROUP: &str = r#""Regroup""#;
const KNOCK: &str = r#""Knock""#;
const TELL: &str = r#"{"Tell":{"question":1,"communicator":0}}"#;
const HOLD: &str = r#""Hold""#;
const AFTER: &str = r#"{"StopAfter":{"after":5,"rank":1,"reason":"enough","goes_on":false}}"#;
const NEWS: &str = r#"{"Notice":{"name":"news","payload":[1,2]}}"#;
const ABORTED: &str = r#"{"Aborted":{"rank":2,"reason":"because"}}"#;
const REGROUPED: &str = r#"{"Regrouped":{"members":[1,2,3],"port":9}}"#;
const REFUSED: &str = r#"{"Refused":{"reason":"late"}}"#;
const DEPARTED: &str = r#"{"Departed":{"rank":3}}"#;
const APART: &str = r#"{"Apart":{"Minority":{"left":[3],"lost":[0,1,2],"world_size":4}}}"#;

fn scripts() -> Vec<Vec<u8>> {
    let (admitted, bye) = (r#""Admitted""#, r#""Bye""#);
    let all = messages();
    let of_all: Vec<(usize, &str)> =
        all.iter().enumerate().map(|(at, message)| (1 + at % 3, message.as_str())).collect();
    let of_the_hub: Vec<(usize, &str)> = all.iter().map(|message| (0, message.as_str())).collect();
    vec![
        script(
            0,
            &[2],
            &[
                (1, ASK),
                (2, DOING),
                (3, DOING),
                (1, DOING),
                (3, STOP),
                (0, STOP),
                (1, STEP),
                (2, STEP),
                (3, STEP),
                (0, NEWS),
                (2, "null"),
                (0, REGROUP),
                (1, REGROUP),
                (3, REGROUP),
            ],
        ),
        script(0, &[], &[(1, "null"), (1, KNOCK), (1, REGROUP), (2, REGROUP), (3, REGROUP), (0, REGROUP)]),
        script(0, &[], &[(3, DEPARTED), (1, ABORTED), (0, ASK), (2, bye), (1, bye), (3, bye)]),
        script(0, &[], &of_all),
        script(
            1,
            &[0],
            &[
                (0, TELL),
                (0, HOLD),
                (0, AFTER),
                (1, REGROUP),
                (0, "null"),
                (2, KNOCK),
                (3, KNOCK),
                (2, REGROUP),
                (3, REGROUP),
            ],
        ),
        script(2, &[], &[(1, admitted), (1, REGROUPED), (0, NEWS), (2, REGROUP), (0, "null")]),
        script(2, &[], &[(1, REFUSED), (2, REGROUP), (3, KNOCK), (0, "null")]),
        script(3, &[0, 1], &[(3, ASK), (3, REGROUP), (0, APART), (3, REGROUP), (0, "null"), (2, admitted)]),
        script(3, &[], &[(3, REGROUP), (0, REGROUPED), (3, ABORTED), (0, bye)]),
        script(3, &[], &of_the_hub),
    ]
}

pub(super) const CONTROL: Target = Target {
    name: "control",
    about: "what other ranks say to one on the control plane: as the hub, as another, and when the hub is lost",
    seeds: scripts,
    words: &["\"Knock\"", "\"Regroup\"", "\"Bye\"", "null", "[0,", "[1,", "{\"Lost\":{\"rank\":9}}"],
    change: of_json,
    read: fuzzing::control,
    cases: 200,
    memory: 48 << 20,
};

/// Returns an input: this rank, the number of ranks, the length of each one's text, and the texts.
fn told(own: u8, words: &[Vec<u8>]) -> Vec<u8> {
    let lengths: Vec<u8> = words.iter().map(|words| words.len() as u8).collect();
    [&[own, words.len() as u8 - 1][..], &lengths, &words.concat()].concat()
}

fn gathered() -> Vec<Vec<u8>> {
    let costs = |by: f64| -> Vec<u8> {
        let found = [[1e-5, 1e-9]; 4].as_flattened().iter().copied().chain([f64::NAN, f64::NAN, 1e-10, 0.0]);
        found.flat_map(|number| (number * by).to_ne_bytes()).collect()
    };
    let names = ["gpu-1", "gpu-1", "gpu-2"].map(|name| name.as_bytes().to_vec());
    let exchanges = [fuzzing::exchange_of(&[1, 5], &[1, 3]), fuzzing::exchange_of(&[3, 0], &[5, 0])];
    vec![
        told(0, &names),
        told(1, &[b"step".to_vec(), b"step".to_vec()]),
        told(0, &exchanges),
        told(1, &exchanges),
        told(2, &[costs(1.0), costs(2.0), costs(0.5), vec![]]),
    ]
}

/// Changes one rank's text, and updates its length.
fn of_one(input: &mut Vec<u8>, random: &mut Random) -> bool {
    let Some((&[own, world], rest)) = input.split_first_chunk::<2>() else { return false };
    let Some((lengths, mut rest)) = rest.split_at_checked(usize::from(world % 8) + 1) else { return false };
    let mut all = Vec::new();
    for length in lengths {
        let (words, after) = rest.split_at(usize::from(*length).min(rest.len()));
        all.push(words.to_vec());
        rest = after;
    }
    let (at, other) = (random.below(all.len()), random.below(all.len()));
    match random.below(6) {
        0 => all[at] = all[other].clone(),
        1 => all[at].truncate(random.below(100)),
        2 if all.len() < 8 => all.push(all[other].clone()),
        3 if all.len() > 1 => drop(all.remove(at)),
        _ => {
            let numbers = [f64::INFINITY, -1.0, 5e-324, 1e308, -0.0].map(f64::to_bits);
            let number = if random.once_in(2) { random.awkward() } else { *random.pick(&numbers) };
            let words = all[at].as_chunks_mut::<8>().0;
            let word = random.below(words.len());
            words.iter_mut().skip(word).take(1).for_each(|word| *word = number.to_le_bytes());
        }
    }
    all.iter_mut().for_each(|words| words.truncate(usize::from(u8::MAX)));
    *input = told(if random.once_in(4) { random.number() as u8 } else { own }, &all);
    true
}

pub(super) const GATHERED: Target = Target {
    name: "gathered",
    about: "what ranks tell each other of what they are about to do, and of what links cost",
    seeds: gathered,
    words: &["\0\0\0\0\0\0\u{f0}\u{7f}", "\u{1}\0\0\0\0\0\0\0"],
    change: of_one,
    read: fuzzing::gathered,
    cases: 300,
    memory: 48 << 20,
};

fn stamps() -> Vec<Vec<u8>> {
    let message = |left: u64, bytes: &[u8]| [&left.to_le_bytes()[..], &[bytes.len() as u8], bytes].concat();
    vec![
        message(1_000_000, b"abc"),
        [message(2_000_000_000, b"first"), message(1_000_000_000, b"second"), message(3, b"")].concat(),
    ]
}

/// Changes the send time of a message, without changing its length.
fn of_stamps(input: &mut Vec<u8>, random: &mut Random) -> bool {
    const HEADER: usize = 9;
    let (mut at, mut all) = (0, Vec::new());
    while at + HEADER <= input.len() {
        all.push(at);
        at += HEADER + usize::from(input[at + HEADER - 1]);
    }
    if all.is_empty() {
        return false;
    }
    for _ in 0..1 + random.below(all.len()) {
        let at = *random.pick(&all);
        input[at..at + 8].copy_from_slice(&random.awkward().to_le_bytes());
    }
    if random.once_in(2) {
        input.extend_from_within(..);
    }
    true
}

pub(super) const STAMPS: Target = Target {
    name: "stamps",
    about: "when messages over simulated links say that they have left",
    seeds: stamps,
    words: &["\0\0\0\0\0\0\0\0"],
    change: of_stamps,
    read: fuzzing::stamps,
    cases: 300,
    memory: 48 << 20,
};
