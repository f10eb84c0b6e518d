//! Changes of bytes that keep most of what they were.

use crate::random::Random;

/// The longest input that is made.
pub const LONGEST: usize = 64 << 10;

/// Changes an input in one to eight places; `other` is one that pieces may be taken of, `words` mean something to the reader.
pub fn bytes(input: &mut Vec<u8>, other: &[u8], words: &[&str], random: &mut Random) {
    for _ in 0..1 + random.below(8) {
        once(input, other, words, random);
    }
    input.truncate(LONGEST);
}

fn once(input: &mut Vec<u8>, other: &[u8], words: &[&str], random: &mut Random) {
    let len = input.len();
    let at = random.below(len + 1);
    let piece = at..(at + 1 + random.below(1 + len / 4)).min(len).max(at);
    match random.below(12) {
        0 if at < len => input[at] ^= 1 << random.below(8),
        1 if at < len => {
            input[at] = *random.pick(&[0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b'{', b'"', b'\n', b'/']);
        }
        2 if at < len => input[at] = random.number() as u8,
        3 => drop(input.drain(piece)),
        4 => {
            let copy = input[piece].to_vec();
            for _ in 0..1 + random.below(4) {
                input.splice(at..at, copy.iter().copied());
                if input.len() > LONGEST {
                    break;
                }
            }
        }
        5 => input.truncate(at),
        6 if !words.is_empty() => drop(input.splice(at..at, random.pick(words).bytes())),
        7 if !other.is_empty() => {
            let from = random.below(other.len());
            let to = (from + 1 + random.below(200)).min(other.len());
            input.splice(piece, other[from..to].iter().copied());
        }
        // A number in binary, in either order of bytes.
        8 | 9 => {
            let size = *random.pick(&[1, 2, 4, 8]);
            let number = random.awkward();
            let bytes = if random.once_in(2) {
                number.to_le_bytes()
            } else {
                (number << (64 - 8 * size)).to_be_bytes()
            };
            let end = (at + size).min(len);
            input.splice(at..end, bytes[..size].iter().copied());
        }
        // A number in digits.
        10 => {
            let digits = |byte: &u8| byte.is_ascii_digit();
            let Some(start) = input[at..].iter().position(digits).map(|found| at + found) else { return };
            let end = start + input[start..].iter().take_while(|byte| digits(byte)).count();
            let sign = if random.once_in(4) { "-" } else { "" };
            input.splice(start..end, format!("{sign}{}", random.awkward()).into_bytes());
        }
        // Something deep.
        11 if random.once_in(8) => {
            let opening = *random.pick(b"[{(\\<");
            input.splice(at..at, std::iter::repeat_n(opening, 1 + random.below(20_000)));
        }
        _ => input.extend((0..random.below(8)).map(|_| random.number() as u8)),
    }
}

/// Any bytes.
pub fn noise(random: &mut Random) -> Vec<u8> {
    (0..random.below(300)).map(|_| random.number() as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_those_of_their_seed_and_stay_short() {
        for case in 0..3000 {
            let make = || {
                let mut random = Random::of_case(7, "test", case);
                let mut input = b"{\"a\": 12, \"b\": [1, 2]}".to_vec();
                bytes(&mut input, b"other", &["word"], &mut random);
                input
            };
            assert_eq!(make(), make());
            assert!(make().len() <= LONGEST);
        }
    }
}
