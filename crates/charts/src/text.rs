//! Widths of texts, and their division into lines.

/// The widths of the ASCII characters from the space on, in hundredths of the font size. They are those of DejaVu Sans,
/// which is wider than most other sans-serif fonts.
pub const ADVANCES: [u8; 95] = [
    32, 40, 46, 84, 64, 95, 78, 28, 39, 39, 50, 84, 32, 36, 32, 34, // space to slash
    64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 34, 34, 84, 84, 84, 53, // digits to question mark
    100, 68, 69, 70, 77, 63, 58, 78, 75, 30, 30, 66, 56, 86, 75, 79, // @ to O
    60, 79, 70, 64, 61, 73, 68, 99, 69, 61, 69, 39, 34, 39, 84, 50, // P to _
    50, 61, 64, 55, 64, 62, 35, 64, 63, 28, 28, 58, 28, 97, 63, 61, // ` to o
    64, 64, 41, 52, 39, 63, 59, 82, 59, 59, 53, 64, 34, 64, 84, // p to ~
];
/// The width of other letters, and of ideographs and pictograms.
const OTHER: u32 = 70;
const WIDE: u32 = 105;
/// The first character that counts as wide.
const FIRST_WIDE: char = '\u{1100}';

/// Returns the width of a text of one line at a font size, in the unit of the size.
pub fn width(text: &str, size: f64) -> f64 {
    let advance = |letter: char| match u32::from(letter).checked_sub(32).map(|at| at as usize) {
        Some(at) if at < ADVANCES.len() => u32::from(ADVANCES[at]),
        _ if letter >= FIRST_WIDE => WIDE,
        _ => OTHER,
    };
    text.chars().map(advance).sum::<u32>() as f64 * size / 100.0
}

/// Divides a text into lines of at most `room`: after spaces and marks, and within words that are wider than a line.
/// No letter is lost. A line has at least one letter.
pub(crate) fn wrapped(text: &str, size: f64, room: f64) -> Vec<String> {
    let mut lines = vec![String::new()];
    for part in parts(text) {
        let line = lines.last().map_or("", String::as_str);
        if width(&format!("{line}{}", part.trim_end()), size) <= room {
            if let Some(line) = lines.last_mut() {
                line.push_str(part);
            }
            continue;
        }
        if !line.is_empty() {
            lines.push(String::new());
        }
        for letter in part.chars() {
            let line = lines.last().map_or("", String::as_str);
            if !line.is_empty() && letter != ' ' && width(&format!("{line}{letter}"), size) > room {
                lines.push(String::new());
            }
            if let Some(line) = lines.last_mut() {
                line.push(letter);
            }
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// Returns the parts of a text between which a line may end.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive([' ', '_', '/', ',', ';', ':'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_are_as_wide_as_their_letters() {
        assert_eq!(width("", 10.0), 0.0);
        assert!((width("10", 10.0) - 12.8).abs() < 1e-9);
        assert!(width("mm", 10.0) > width("ll", 10.0) && width("犬", 10.0) > width("é", 10.0));
    }

    #[test]
    fn long_texts_are_divided_at_spaces_and_marks_first() {
        assert_eq!(wrapped("test critic loss", 12.0, 80.0), ["test critic", "loss"]);
        assert_eq!(wrapped("test_critic_loss", 12.0, 80.0), ["test_critic_", "loss"]);
        assert_eq!(wrapped("", 12.0, 90.0), [""]);
        assert_eq!(wrapped("abc", 12.0, 1.0), ["a", "b", "c"]);
    }

    proptest! {
        #[test]
        fn lines_fit_and_no_letter_is_lost(text in "[ -~äé犬]{0,60}", room in 20.0..200.0) {
            let lines = wrapped(&text, 12.0, room);
            for line in &lines {
                prop_assert!(width(line, 12.0) <= room || line.chars().count() == 1, "{line}");
            }
            let letters = |text: &str| text.chars().filter(|c| *c != ' ').collect::<String>();
            prop_assert_eq!(letters(&lines.concat()), letters(&text));
        }
    }
}
