//! Tests of the crate from outside.

mod corpora;
mod encoders;
mod encoding;
mod learned;
mod pairs;
mod shards;
mod tokenizers;
mod translation;
mod windows;

/// A text of words that repeat, with characters of one to four bytes.
fn text() -> String {
    let mut text = String::new();
    for number in 0..400_u32 {
        let word = ["theory", "thing", "there", "other", "naïve", "the 🦀", "hello, World!", "x1y2"]
            [(number % 8) as usize];
        text.push_str(word);
        text.push(if number % 7 == 3 { '\n' } else { ' ' });
    }
    text
}
