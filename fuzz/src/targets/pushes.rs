//! Encoded gradients that workers push to servers, and encoded values that they pull.

use phalanx_fuzz_harness::Random;
use phalanx_sharding::fuzzing;

use super::Target;
use super::codecs::{LONGEST, in_place, numbers, other_frequencies};

fn pushes() -> Vec<Vec<u8>> {
    let push = |number: u8, len: usize| -> Option<Vec<u8>> {
        let message = fuzzing::push_of(number, &numbers(len)).ok()?;
        Some([&[number][..], &(len as u16).to_le_bytes(), &message].concat())
    };
    let all = (0..fuzzing::CODECS).flat_map(|number| [0, 1, 33, 300].map(|len| push(number, len)));
    let all: Option<Vec<_>> = all.collect();
    assert!(all.is_some(), "gradients are encoded");
    all.unwrap_or_default()
}

/// Changes a message in place, or its number of values or entries together with its length.
fn of_a_push(input: &mut Vec<u8>, random: &mut Random) -> bool {
    const HEADER: usize = 3;
    let Some((&[number, low, high], message)) = input.split_first_chunk::<HEADER>() else { return false };
    let len = usize::from(u16::from_le_bytes([low, high]));
    match (random.below(3), fuzzing::push_name(number)) {
        (0, "lossless") => other_frequencies(&mut input[HEADER..], len, random),
        (0, "topk") if message.len() >= 4 => {
            let entries = random.below(200);
            input.resize(HEADER + 4 + 8 * entries, 0);
            input[HEADER..HEADER + 4].copy_from_slice(&(entries as u32).to_le_bytes());
            true
        }
        (0, _) => {
            let len = random.below(LONGEST);
            let Ok(bytes) = fuzzing::push_len(number, len) else { return false };
            input[1..HEADER].copy_from_slice(&(len as u16).to_le_bytes());
            input.resize(HEADER + bytes, random.number() as u8);
            true
        }
        _ => in_place(input, HEADER, random),
    }
}

pub(super) const PUSHES: Target = Target {
    name: "pushes",
    about: "gradients that workers push to servers, and values that they pull, by every codec",
    seeds: pushes,
    words: &["\u{10}\0", "\0\u{10}", "\0\0\u{7f}\0"],
    change: of_a_push,
    read: fuzzing::pushes,
    cases: 300,
    memory: 48 << 20,
};
