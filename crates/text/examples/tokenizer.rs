//! Learns a tokenizer from a text file and shows what it does with a sentence:
//! `cargo run --release -p phalanx-text --example tokenizer -- README.md "a sentence"`

use phalanx_data::Result;
use phalanx_text::{PieceKind, WordCounts, learn};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "README.md".to_owned());
    let sentence = arguments.next().unwrap_or_else(|| "Train on several hosts.".to_owned());
    let text = phalanx_data::Links::Follow
        .read_text(file.as_ref())
        .map_err(|error| phalanx_data::DataError::io(file.as_ref(), error))?;
    let mut counts = WordCounts::new(PieceKind::Bpe);
    counts.add(&text)?;
    let tokenizer = learn(&counts, 1000)?;
    for token in tokenizer.encode(&sentence)? {
        println!("{token:5}  {}", tokenizer.piece(token).unwrap_or_default());
    }
    Ok(())
}
