//! Captions made from class names, for datasets without captions.

use crate::rng::{Purpose, below, rng_for};

/// The sentences, after the prompts of openai/CLIP's evaluation on CIFAR-10. `{}` stands for the class with its
/// article.
pub const TEMPLATES: [&str; 8] = [
    "a photo of {}",
    "a blurry photo of {}",
    "a low contrast photo of {}",
    "a good photo of {}",
    "a photo of {} outdoors",
    "a small picture of {}",
    "a close-up photo of {}",
    "an image of {}",
];

/// Returns the plain caption: “a photo of a dog”, “a photo of an airplane”.
#[must_use]
pub fn plain(class_name: &str) -> String {
    fill(TEMPLATES[0], class_name)
}

/// Returns a caption by one of the [`TEMPLATES`], chosen by (seed, epoch, index).
#[must_use]
pub fn varied(class_name: &str, seed: u64, epoch: u64, index: usize) -> String {
    let mut rng = rng_for(seed, Purpose::Caption, epoch, index as u64);
    fill(TEMPLATES[below(&mut rng, TEMPLATES.len())], class_name)
}

/// Converts a class name to words: “Black_footed-albatross” becomes “black footed albatross”. The number of a folder's
/// name (“001.Black_footed”) is removed.
#[must_use]
pub fn readable(class_name: &str) -> String {
    let name = match class_name.split_once('.') {
        Some((number, rest)) if !rest.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => rest,
        _ => class_name,
    };
    let words: Vec<String> = name
        .split(|c: char| c == '_' || c == '-' || c.is_whitespace())
        .filter(|w| !w.is_empty())
        .map(str::to_lowercase)
        .collect();
    if words.is_empty() { class_name.to_string() } else { words.join(" ") }
}

fn fill(template: &str, class_name: &str) -> String {
    let name = readable(class_name);
    template.replace("{}", &format!("{} {name}", article(&name)))
}

/// Returns “a” or “an”, by the first letters of the word and the common exceptions of sound.
pub(crate) fn article(word: &str) -> &'static str {
    let begins = |with: &[&str]| with.iter().any(|prefix| word.starts_with(prefix));
    let vowel = begins(&["a", "e", "i", "o", "u", "hour", "honest", "heir"]);
    let sounds_otherwise = begins(&["uni", "use", "usu", "eu", "one", "ukulele", "uten", "ewe"])
        && !begins(&["unin", "unim", "unid"]);
    if vowel && !sounds_otherwise { "an" } else { "a" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn articles_and_names_read_well() {
        for (name, caption) in [
            ("dog", "a photo of a dog"),
            ("airplane", "a photo of an airplane"),
            ("unicycle", "a photo of a unicycle"),
            ("umbrella", "a photo of an umbrella"),
            ("001.Black_footed_Albatross", "a photo of a black footed albatross"),
            ("hour-glass", "a photo of an hour glass"),
            ("__", "a photo of a __"),
        ] {
            assert_eq!(plain(name), caption);
        }
    }

    #[test]
    fn every_template_has_its_turn_and_repeats() {
        let all: BTreeSet<_> = (0..200).map(|epoch| varied("cat", 0, epoch, 3)).collect();
        assert_eq!(all.len(), TEMPLATES.len());
        assert_eq!(varied("cat", 1, 2, 3), varied("cat", 1, 2, 3));
    }
}
