//! Small random changes of bytes.

use crate::random::Random;

/// The largest size of an input.
const LONGEST: usize = 64 << 10;

/// Changes an input at one to four positions, possibly with pieces of `other`.
pub fn bytes(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        once(input, other, random);
    }
    input.truncate(LONGEST);
}

fn once(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let len = input.len();
    let at = random.below(len + 1);
    let piece = at..(at + 1 + random.below(1 + len / 4)).min(len).max(at);
    match random.below(7) {
        0 if at < len => input[at] ^= 1 << random.below(8),
        1 => drop(input.drain(piece)),
        2 => input.truncate(at),
        3 => {
            let copy = input[piece].to_vec();
            input.splice(at..at, copy);
        }
        4 if !other.is_empty() => {
            let from = random.below(other.len());
            let to = (from + 1 + random.below(200)).min(other.len());
            input.splice(piece, other[from..to].iter().copied());
        }
        // A number in binary.
        5 => {
            let size = *random.pick(&[1, 2, 4, 8]);
            let number = random.awkward().to_le_bytes();
            input.splice(at..(at + size).min(len), number[..size].iter().copied());
        }
        // A number in digits.
        _ => {
            let Some(start) = input[at..].iter().position(u8::is_ascii_digit).map(|found| at + found) else {
                return;
            };
            let end = start + input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            input.splice(start..end, random.awkward().to_string().into_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_those_of_their_seed_and_stay_short() {
        for seed in 0..3000 {
            let make = || {
                let mut random = Random::new(seed);
                let mut input = b"{\"a\": 12, \"b\": [1, 2]}".to_vec();
                bytes(&mut input, b"other", &mut random);
                input
            };
            assert_eq!(make(), make());
            assert!(make().len() <= LONGEST);
        }
    }
}
