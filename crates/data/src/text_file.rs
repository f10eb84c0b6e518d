//! Text files as sequences of tokens, lines or windows, for language models.
//!
//! The file is split by position: its beginning is for training and its end for testing, so no window crosses the
//! boundary. The vocabulary is that of the whole file, so both splits have the same tokens.

use crate::dataset::{Dataset, Split, check_index};
use crate::encoding::without_mark;
use crate::error::{DataError, Result};
use std::ops::Range;
use std::path::Path;

/// The padding token, which no text contains.
pub const PADDING: u32 = 0;

/// The unit of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TextUnit {
    /// A byte: 256 tokens, for any file.
    Bytes,
    /// A character of the file, which must be UTF-8.
    #[default]
    Characters,
}

/// The unit of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextSample {
    /// A line with its line feed. A line of more than `max_tokens` continues in the next sample, which begins with the
    /// last token of the one before. So every token but the first of a line is predicted once.
    Lines {
        /// The longest sample; at least 2.
        max_tokens: usize,
    },
    /// Windows of `tokens` tokens that start every `stride` tokens. The last may be shorter.
    Windows {
        /// The number of tokens in a window; at least 2.
        tokens: usize,
        /// The distance between the starts of two windows; at least 1.
        stride: usize,
    },
}

/// The settings of a [`TextFile`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextFileConfig {
    /// The split: the beginning or the end of the text.
    pub split: Split,
    /// The unit of a token.
    pub unit: TextUnit,
    /// The unit of a sample.
    pub sample: TextSample,
    /// The percentage of the text for testing, from its end; 1 to 99. With lines, the line at the boundary is for
    /// training.
    pub test_percent: usize,
}

impl Default for TextFileConfig {
    /// Lines of at most 256 characters for training, with a tenth of the text for testing.
    fn default() -> Self {
        Self {
            split: Split::Train,
            unit: TextUnit::Characters,
            sample: TextSample::Lines { max_tokens: 256 },
            test_percent: 10,
        }
    }
}

/// One split of a text file, as sequences of at least two tokens.
///
/// The weight of a sample is its number of predictions, one less than its tokens. A loss that is a mean over a sample's
/// predictions thus becomes the mean over those of the global batch.
#[derive(Debug, Clone)]
pub struct TextFile {
    name: String,
    /// The characters in ascending order; empty for bytes. The token of the first is 1.
    characters: Vec<char>,
    tokens: Vec<u32>,
    samples: Vec<Range<usize>>,
}

impl TextFile {
    /// Reads a file and cuts one of its splits into samples.
    ///
    /// # Errors
    /// If the file cannot be read, is not UTF-8 with characters as tokens, a setting is out of range, or the split has
    /// no sample of two tokens.
    pub fn open(path: impl AsRef<Path>, config: TextFileConfig) -> Result<Self> {
        let path = path.as_ref();
        let bytes = crate::Links::Follow.read(path).map_err(|error| DataError::io(path, error))?;
        let name = path.file_name().map_or("text".into(), |name| name.to_string_lossy());
        Self::from_bytes(&name, bytes, config)
    }

    /// Cuts one split of a text in memory into samples; `name` is for messages.
    ///
    /// # Errors
    /// If the text is not UTF-8 with characters as tokens, a setting is out of range, or the split has no sample of two
    /// tokens.
    pub fn from_bytes(name: &str, bytes: Vec<u8>, config: TextFileConfig) -> Result<Self> {
        if !(1..100).contains(&config.test_percent) {
            let reason = format!("{} is not in 1..100", config.test_percent);
            return Err(DataError::config("text.test_percent", reason));
        }
        match config.sample {
            TextSample::Lines { max_tokens: tokens } | TextSample::Windows { tokens, .. } if tokens < 2 => {
                let reason = format!("a sample of {tokens} tokens has no prediction; at least 2 are needed");
                return Err(DataError::config("text.sample", reason));
            }
            TextSample::Windows { stride: 0, .. } => {
                return Err(DataError::config("text.sample", "a stride of 0 tokens"));
            }
            _ => {}
        }
        let name = format!("{name}/{}", config.split);
        let (characters, tokens, line_feed): (Vec<char>, Vec<u32>, u32) = match config.unit {
            TextUnit::Bytes => {
                let token = |byte: u8| u32::from(byte) + 1;
                (Vec::new(), bytes.into_iter().map(token).collect(), token(b'\n'))
            }
            TextUnit::Characters => {
                let failed = |reason: String| DataError::Text { name: name.clone(), reason };
                let text = without_mark(&bytes).map_err(failed)?;
                let text = std::str::from_utf8(text).map_err(|error| failed(error.to_string()))?;
                let mut characters: Vec<char> = text.chars().collect();
                characters.sort_unstable();
                characters.dedup();
                let tokens = text.chars().filter_map(|character| token_of(&characters, character)).collect();
                // Without a line feed, a token that no text contains.
                let line_feed = token_of(&characters, '\n').unwrap_or(PADDING);
                (characters, tokens, line_feed)
            }
        };
        let split = split_range(&tokens, &config, line_feed);
        let samples = match config.sample {
            TextSample::Lines { max_tokens } => lines(&tokens, split, max_tokens, line_feed),
            TextSample::Windows { tokens, stride } => windows(split, tokens, stride),
        };
        if samples.is_empty() {
            let reason = format!("no sample of two tokens among {} of the whole text", tokens.len());
            return Err(DataError::Text { name, reason });
        }
        Ok(Self { name, characters, tokens, samples })
    }

    /// Returns the size of the vocabulary, with the padding token.
    #[must_use]
    pub fn vocab(&self) -> usize {
        1 + if self.characters.is_empty() { 256 } else { self.characters.len() }
    }

    /// Encodes a text, for example as a prompt.
    ///
    /// # Errors
    /// If a character is not in the file.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        if self.characters.is_empty() {
            return Ok(text.bytes().map(|byte| u32::from(byte) + 1).collect());
        }
        let token = |character| {
            let reason = || format!("{character:?} is not in the text");
            let unknown = || DataError::Text { name: self.name.clone(), reason: reason() };
            token_of(&self.characters, character).ok_or_else(unknown)
        };
        text.chars().map(token).collect()
    }

    /// Decodes tokens. Padding is left out, and bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// If a number is not a token.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let vocab = self.vocab();
        let known = tokens.iter().copied().filter(|&token| token != PADDING).map(|id| {
            if (id as usize) < vocab {
                Ok(id as usize - 1)
            } else {
                Err(DataError::UnknownToken { id, vocab })
            }
        });
        let known = known.collect::<Result<Vec<usize>>>()?;
        if self.characters.is_empty() {
            let bytes: Vec<u8> = known.into_iter().map(|byte| byte as u8).collect();
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        Ok(known.into_iter().map(|place| self.characters[place]).collect())
    }
}

impl Dataset for TextFile {
    type Item = Vec<u32>;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.samples.len()
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<Vec<u32>> {
        check_index(&self.name, index, self.len())?;
        Ok(self.tokens[self.samples[index].clone()].to_vec())
    }

    fn weight(&self, index: usize) -> Result<f32> {
        check_index(&self.name, index, self.len())?;
        Ok((self.samples[index].len() - 1) as f32)
    }
}

/// Returns the token of a character, if it has one.
fn token_of(characters: &[char], character: char) -> Option<u32> {
    characters.binary_search(&character).ok().map(|place| place as u32 + 1)
}

/// Returns the range of the tokens of one split.
fn split_range(tokens: &[u32], config: &TextFileConfig, line_feed: u32) -> Range<usize> {
    let mut boundary = tokens.len() * (100 - config.test_percent) / 100;
    if matches!(config.sample, TextSample::Lines { .. }) && boundary > 0 && tokens[boundary - 1] != line_feed
    {
        let rest = tokens[boundary..].iter().position(|token| *token == line_feed);
        boundary = rest.map_or(tokens.len(), |more| boundary + more + 1);
    }
    match config.split {
        Split::Train => 0..boundary,
        Split::Test => boundary..tokens.len(),
    }
}

/// Returns the lines with at least two tokens, cut if they are too long.
fn lines(tokens: &[u32], within: Range<usize>, max_tokens: usize, line_feed: u32) -> Vec<Range<usize>> {
    let mut samples = Vec::new();
    let mut begin = within.start;
    for line in tokens[within].split_inclusive(|token| *token == line_feed) {
        // Each sample ends with the first token of the next.
        samples.extend(windows(begin..begin + line.len(), max_tokens, max_tokens - 1));
        begin += line.len();
    }
    samples
}

/// Returns windows of `tokens` that start every `stride`, up to the end; those of one token are left out.
fn windows(within: Range<usize>, tokens: usize, stride: usize) -> Vec<Range<usize>> {
    let mut samples = Vec::new();
    let mut begin = within.start;
    while begin + 1 < within.end {
        let end = begin.saturating_add(tokens).min(within.end);
        samples.push(begin..end);
        if end == within.end {
            break;
        }
        begin = begin.saturating_add(stride);
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "to be\n\nor not to be\nthat is\nthe question\n!\n";

    fn open(config: TextFileConfig) -> Result<TextFile> {
        TextFile::from_bytes("play", TEXT.as_bytes().to_vec(), config)
    }

    fn texts(file: &TextFile) -> Vec<String> {
        (0..file.len()).map(|index| file.decode(&file.get(index, 0).unwrap()).unwrap()).collect()
    }

    #[test]
    fn lines_keep_their_lengths_and_empty_ones_are_left_out() {
        let config = TextFileConfig { test_percent: 30, ..Default::default() };
        let train = open(config).unwrap();
        assert_eq!(texts(&train), ["to be\n", "or not to be\n", "that is\n", "the question\n"]);
        assert_eq!(train.name(), "play/train");
        let test = open(TextFileConfig { split: Split::Test, ..config }).unwrap();
        assert_eq!(texts(&test), ["!\n"]);
        assert_eq!(test.vocab(), train.vocab());
        // A line of one character predicts its line feed.
        assert_eq!((train.weight(1).unwrap(), test.weight(0).unwrap()), (12.0, 1.0));
        assert!(train.get(4, 0).is_err() && train.weight(4).is_err());
    }

    #[test]
    fn long_lines_continue_with_their_last_token() {
        let config = TextFileConfig {
            sample: TextSample::Lines { max_tokens: 5 },
            test_percent: 1,
            ..Default::default()
        };
        let file = TextFile::from_bytes("lines", b"abcdefghi\nabcde\n12345".to_vec(), config).unwrap();
        assert_eq!(texts(&file), ["abcde", "efghi", "i\n", "abcde", "e\n", "12345"]);
        let predicted: f32 = (0..file.len()).map(|index| file.weight(index).unwrap()).sum();
        assert_eq!(predicted, 9.0 + 5.0 + 4.0);
    }

    #[test]
    fn windows_stay_within_their_split() {
        let sample = TextSample::Windows { tokens: 4, stride: 3 };
        let config = TextFileConfig { sample, unit: TextUnit::Bytes, test_percent: 40, split: Split::Train };
        let open = |split| {
            TextFile::from_bytes("w", b"0123456789".to_vec(), TextFileConfig { split, ..config }).unwrap()
        };
        assert_eq!(texts(&open(Split::Train)), ["0123", "345"]);
        assert_eq!(texts(&open(Split::Test)), ["6789"]);
        assert_eq!(open(Split::Test).vocab(), 257);
    }

    #[test]
    fn text_becomes_tokens_and_text_again() {
        for unit in [TextUnit::Bytes, TextUnit::Characters] {
            let file = open(TextFileConfig { unit, ..Default::default() }).unwrap();
            let tokens = file.encode("not that!").unwrap();
            assert!(tokens.iter().all(|token| *token != PADDING && (*token as usize) < file.vocab()));
            assert_eq!(file.decode(&[&tokens[..], &[PADDING]].concat()).unwrap(), "not that!");
            assert!(file.decode(&[file.vocab() as u32]).is_err());
        }
        assert!(
            open(TextFileConfig::default()).unwrap().encode("Zebra").unwrap_err().to_string().contains("'Z'")
        );
    }

    #[test]
    fn invalid_settings_and_texts_are_refused() {
        let default = TextFileConfig::default();
        for config in [
            TextFileConfig { test_percent: 0, ..default },
            TextFileConfig { test_percent: 100, ..default },
            TextFileConfig { sample: TextSample::Lines { max_tokens: 1 }, ..default },
            TextFileConfig { sample: TextSample::Windows { tokens: 1, stride: 1 }, ..default },
            TextFileConfig { sample: TextSample::Windows { tokens: 2, stride: 0 }, ..default },
        ] {
            assert!(open(config).is_err(), "{config:?}");
        }
        let marked = TextFile::from_bytes("marked", b"\xef\xbb\xbfab\n".to_vec(), default).unwrap();
        assert_eq!((texts(&marked), marked.vocab()), (vec!["ab\n".to_owned()], 4));
        let named = TextFile::from_bytes("wide", b"\xff\xfea\0\n\0".to_vec(), default).unwrap_err();
        assert!(named.to_string().contains("UTF-16"), "{named}");
        for text in [&b"\n\n\n"[..], b"", b"\xff\xfe"] {
            assert!(TextFile::from_bytes("bad", text.to_vec(), default).is_err());
        }
        let bytes = TextFileConfig { unit: TextUnit::Bytes, ..default };
        assert!(TextFile::from_bytes("good", b"\xff\xfe\xfd".to_vec(), bytes).is_ok());
        assert!(matches!(TextFile::open("no/such/file.txt", default).unwrap_err(), DataError::Io { .. }));
    }
}
