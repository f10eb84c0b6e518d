//! Encodes texts into files of tokens.

use std::path::Path;

use phalanx_data::{DataError, Result, Split};

use crate::documents::{Documents, Passage, SplitRule};
use crate::shards::{ShardFormat, ShardWriter};
use crate::tokenizer::{TOKENIZER_FILE, Tokenizer};

/// The bytes of text that are encoded together, about.
const AT_ONCE: usize = 8 << 20;

/// The settings of [`encode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeConfig {
    /// The format of the files.
    pub format: ShardFormat,
    /// The percentage of the documents, or of the end of a single text, for testing; 0 = none.
    pub test_percent: u64,
}

impl Default for EncodeConfig {
    fn default() -> Self {
        Self { format: ShardFormat::default(), test_percent: 10 }
    }
}

/// The tokens of a split that were written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncodedSplit {
    /// Tokens, with the ends of documents.
    pub tokens: u64,
    /// Documents.
    pub documents: u64,
    /// Bytes of text.
    pub bytes: u64,
}

/// The tokens of both splits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Encoded {
    /// `train.bin`.
    pub train: EncodedSplit,
    /// `val.bin`; it is not written without tokens.
    pub test: EncodedSplit,
}

/// A split that is being written.
struct Target {
    writer: ShardWriter,
    written: EncodedSplit,
    /// Passages that are not encoded yet.
    waiting: Vec<Passage>,
    waiting_bytes: usize,
}

/// Encodes documents on all cores into `train.bin` and `val.bin` of a folder, with `tokenizer.json`. The end of each document
/// has the token of [`Tokenizer::end_of_text`], if there is one. `progress` gets the bytes that were read.
///
/// # Errors
/// If a text cannot be read or encoded, there is none, or a file cannot be written.
pub fn encode(
    documents: &Documents,
    tokenizer: &Tokenizer,
    folder: &Path,
    config: EncodeConfig,
    progress: &mut dyn FnMut(u64),
) -> Result<Encoded> {
    if config.test_percent >= 100 {
        let reason = format!("{} is not in 0..100", config.test_percent);
        return Err(DataError::config("test", reason));
    }
    std::fs::create_dir_all(folder).map_err(|error| DataError::io(folder, error))?;
    let target = |name: &str| Target::create(&folder.join(name), config.format, tokenizer.vocab());
    let (mut train, mut test) = (target("train.bin")?, target("val.bin")?);
    let mut rule = SplitRule::new(documents, config.test_percent);
    // A single text is cut at a line near the place that the percentage says.
    let cut = documents.is_one_text().then(|| documents.bytes() * (100 - config.test_percent) / 100);
    let mut read = 0;
    for file in documents.files() {
        documents.read(file, &mut |passage| {
            let length = passage.text.len() as u64;
            match cut {
                Some(cut) => {
                    let [first, last] = cut_passage(passage, cut.saturating_sub(read));
                    train.add(first, tokenizer)?;
                    test.add(last, tokenizer)?;
                }
                None => match rule.assign(file, passage.ends) {
                    Split::Train => train.add(passage, tokenizer)?,
                    Split::Test => test.add(passage, tokenizer)?,
                },
            }
            read += length;
            progress(read);
            Ok(())
        })?;
    }
    let encoded = Encoded { train: train.finish(tokenizer)?, test: test.finish(tokenizer)? };
    let path = folder.join(TOKENIZER_FILE);
    std::fs::write(&path, tokenizer.json()).map_err(|error| DataError::io(&path, error))?;
    if encoded.train.tokens == 0 {
        let name = folder.display().to_string();
        return Err(DataError::Text { name, reason: "no tokens for training among the texts".to_owned() });
    }
    Ok(encoded)
}

/// Cuts a passage behind `first` bytes, or at the next line. The parts are documents of their own.
fn cut_passage(passage: Passage, first: u64) -> [Passage; 2] {
    let none = || Passage { text: String::new(), ends: true };
    let text = &passage.text;
    if first >= text.len() as u64 {
        return [passage, Passage { ends: false, ..none() }];
    }
    let from = (first as usize..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let at = if from == 0 { 0 } else { text[from..].find('\n').map_or(from, |line| from + line + 1) };
    let last = Passage { text: text[at..].to_owned(), ends: passage.ends };
    [Passage { text: text[..at].to_owned(), ends: true }, last]
}

impl Target {
    fn create(path: &Path, format: ShardFormat, vocab: usize) -> Result<Self> {
        let writer = ShardWriter::create(path, format, vocab)?;
        Ok(Self { writer, written: EncodedSplit::default(), waiting: Vec::new(), waiting_bytes: 0 })
    }

    fn add(&mut self, passage: Passage, tokenizer: &Tokenizer) -> Result<()> {
        self.waiting_bytes += passage.text.len();
        self.waiting.push(passage);
        if self.waiting_bytes >= AT_ONCE { self.flush(tokenizer) } else { Ok(()) }
    }

    fn flush(&mut self, tokenizer: &Tokenizer) -> Result<()> {
        let passages = std::mem::take(&mut self.waiting);
        self.written.bytes += std::mem::take(&mut self.waiting_bytes) as u64;
        let ends: Vec<bool> = passages.iter().map(|passage| passage.ends).collect();
        let texts: Vec<String> = passages.into_iter().map(|passage| passage.text).collect();
        for (tokens, ends) in tokenizer.encode_all(&texts)?.into_iter().zip(ends) {
            self.writer.push(&tokens)?;
            if ends && self.writer.document_len() > 0 {
                let end: Vec<u32> = tokenizer.end_of_text().into_iter().collect();
                self.writer.push(&end)?;
                self.writer.end_document();
                self.written.documents += 1;
            }
        }
        Ok(())
    }

    fn finish(mut self, tokenizer: &Tokenizer) -> Result<EncodedSplit> {
        self.flush(tokenizer)?;
        self.written.tokens = self.writer.len();
        match self.written.tokens {
            0 => self.writer.discard()?,
            _ => self.writer.finish()?,
        }
        Ok(self.written)
    }
}
